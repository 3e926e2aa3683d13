#!/usr/bin/env python3
"""Reports of the benchmark programs: numbers that repeat, written as helm-bench writes them, and one table of all.

Imported by accelerate_bench.py; started by llama_cpp.sh and run_matrix.sh:

    peer_report.py table FILE...                  one Markdown table of reports (helm-bench's and the peers')
    peer_report.py llama --model NAME [--vram BYTES] [--out FILE] FILE...
                                                  llama-bench's JSON output as a report

Several reports of the same cell (rounds) become one row: the median of their medians, spread from the lowest p10 to
the highest p90. docs/benchmarking.md describes the members. Standard library only."""
import argparse
import json
import os
import platform
import sys
import time

SCHEMA = "helm-bench/1"


def quantile(values, at):
    """The value that the fraction `at` of all are below (nearest rank), as in client/bench/samples.c."""
    ordered = sorted(values)
    return ordered[int(at * (len(ordered) - 1) + 0.5)] if ordered else None


def spread(values, tail=False):
    if not values:
        return None
    out = {"p10": quantile(values, 0.1), "p50": quantile(values, 0.5), "p90": quantile(values, 0.9)}
    if tail:
        out["p99"] = quantile(values, 0.99)
    return out


def machine():
    cpu, memory = "unknown", 0
    try:
        with open("/proc/cpuinfo") as f:
            cpu = next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), cpu)
        with open("/proc/meminfo") as f:
            memory = next((int(line.split()[1]) * 1024 for line in f if line.startswith("MemTotal")), memory)
    except OSError:
        pass
    return {"cpu": cpu, "cpus": len(os.sched_getaffinity(0)), "kernel": platform.release(), "memory_bytes": memory}


def new_report(version, settings, cells, **more):
    return {"schema": SCHEMA, "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "version": version,
            "command": sys.argv, "machine": machine(), "settings": settings, **more, "cells": cells}


def new_cell(engine, folder, vram_bytes, prompt, output, **more):
    return {"engine": engine, "model": os.path.basename(os.path.normpath(folder)), "folder": folder,
            "vram_bytes": vram_bytes, "prompt_tokens": prompt, "output_tokens": output, "concurrency": 1, "error": None,
            **more}


def write_json(report, path):
    text = json.dumps(report, indent=2) + "\n"
    if path in (None, "-"):
        sys.stdout.write(text)
        return
    with open(path, "w") as f:
        f.write(text)


def read_report(path):
    with open(path) as f:
        report = json.load(f)
    if not isinstance(report, dict) or report.get("schema") != SCHEMA:
        raise ValueError("%s: not a report of schema %s" % (path, SCHEMA))
    return report


# ---- one table ----

def size_text(count):
    if not count:
        return "all"
    gib = count / 2**30
    return "%.2f GiB" % gib if gib >= 1 else "%.0f MiB" % (count / 2**20)


def combined(cells, key):
    """Rounds of one cell's spread as one."""
    spreads = [c[key] for c in cells if c.get(key)]
    if not spreads:
        return None
    out = {"p10": min(s["p10"] for s in spreads), "p50": quantile([s["p50"] for s in spreads], 0.5),
           "p90": max(s["p90"] for s in spreads)}
    tails = [s["p99"] for s in spreads if "p99" in s]
    if tails:
        out["p99"] = max(tails)
    return out


def number(value, digits):
    return "-" if value is None else "%.*f" % (digits, value)


def with_spread(s, digits=2):
    return "-" if not s else "%.*f (%.*f-%.*f)" % (digits, s["p50"], digits, s["p10"], digits, s["p90"])


def tpot_text(s):
    if not s:
        return "-"
    parts = [s["p50"], s["p90"]] + ([s["p99"]] if "p99" in s else [])
    return " / ".join("%.3f" % p for p in parts)


def device_text(cells):
    parts = []
    for name in dict.fromkeys(d["name"] for c in cells for d in c.get("devices", [])):
        same = [d for c in cells for d in c.get("devices", []) if d["name"] == name]
        rate = quantile([d["gb_s"] for d in same if d.get("gb_s")], 0.5)
        limit = quantile([d["limit_gb_s"] for d in same if d.get("limit_gb_s")], 0.5)
        if rate:
            parts.append("%s %.2f" % (name, rate) + (" of %.2f" % limit if limit else ""))
    return ", ".join(parts) or "-"


def row_of(cells):
    first = next((c for c in cells if not c["error"]), cells[0])
    engine = first["engine"] + (" " + first["variant"] if first.get("variant") else "")
    where = first.get("where") or "+".join(d["name"] for d in first.get("devices", [])) or "-"
    head = [engine, first["model"], size_text(first["vram_bytes"]), where,
            "%d + %d" % (first["prompt_tokens"], first["output_tokens"])]
    if first["error"]:
        return head + ["failed: " + first["error"].replace("|", "/").replace("\n", " ")[:200]] + [""] * 5
    good = [c for c in cells if not c["error"]]
    prefill, ratio = combined(good, "prefill_tok_s"), combined(good, "bound_ratio")
    return head + [with_spread(combined(good, "ttft_ms")), tpot_text(combined(good, "tpot_ms")),
                   with_spread(combined(good, "decode_tok_s")), number(prefill and prefill["p50"], 0),
                   device_text(good), "-" if not ratio else "%.0f %%" % (100 * ratio["p50"])]


def table(reports):
    titles = ["engine", "model", "VRAM", "where", "prompt + output", "TTFT ms p50 (p10-p90)", "TPOT ms p50 / p90 / p99",
              "decode token/s (p10-p90)", "prefill token/s", "weights GB/s of limit", "of bound"]
    groups = {}
    for report in reports:
        for c in report["cells"]:
            key = (c["model"], c["prompt_tokens"], c["output_tokens"], c["vram_bytes"] or sys.maxsize, c["engine"],
                   c.get("variant") or "")
            groups.setdefault(key, []).append(c)
    lines = ["| " + " | ".join(titles) + " |", "|" + " --- |" * len(titles)]
    lines += ["| " + " | ".join(row_of(groups[key])) + " |" for key in sorted(groups)]
    return "\n".join(lines) + "\n"


# ---- llama.cpp ----

def llama_cells(results, model, vram_bytes):
    """llama-bench times prompts (n_gen 0) and generation (n_prompt 0, after n_depth tokens) apart; a cell is a pair."""
    prompts, cells = {}, []
    for r in results:
        if r["n_prompt"] and not r["n_gen"]:
            prompts[(r["n_prompt"], r["n_gpu_layers"], r["n_threads"])] = r
    for r in results:
        if not r["n_gen"] or r["n_prompt"]:
            continue
        prompt = prompts.get((r.get("n_depth", 0), r["n_gpu_layers"], r["n_threads"]))
        if not prompt:
            continue
        ttft = [ns * 1e-6 for ns in prompt["samples_ns"]]
        tpot = [ns * 1e-6 / r["n_gen"] for ns in r["samples_ns"]]
        variant = "-ngl %d" % r["n_gpu_layers"] if r["n_gpu_layers"] >= 0 else "--fit"
        cells.append(new_cell(
            "llama.cpp", model, vram_bytes, prompt["n_prompt"], r["n_gen"], variant=variant, where=variant,
            requests=len(tpot), ttft_ms=spread(ttft), tpot_ms=spread(tpot), decode_tok_s=spread(r["samples_ts"]),
            prefill_tok_s=spread(prompt["samples_ts"]), threads=r["n_threads"], devices=[],
            build=str(r.get("build_commit", "")), backends=str(r.get("backends", ""))))
    return cells


def read_llama(path):
    with open(path) as f:
        results = json.load(f)
    needed = ("n_prompt", "n_gen", "n_gpu_layers", "n_threads", "samples_ns", "samples_ts")
    for r in results:
        missing = [k for k in needed if k not in r]
        if missing:
            raise ValueError("%s: a test without %s: not llama-bench's -o json" % (path, ", ".join(missing)))
    return results


def main():
    ap = argparse.ArgumentParser(description="Reports of helm-bench and its peers.")
    sub = ap.add_subparsers(dest="command", required=True)
    one = sub.add_parser("table", help="one Markdown table of reports")
    one.add_argument("file", nargs="+")
    llama = sub.add_parser("llama", help="llama-bench's JSON as a report")
    llama.add_argument("--model", required=True, help="name of the model in the report")
    llama.add_argument("--vram", type=int, help="bytes of GPU memory that were left to it")
    llama.add_argument("--fit", action="store_true", help="layers were placed by --fit-target")
    llama.add_argument("--out", help="file to write (standard output)")
    llama.add_argument("file", nargs="+")
    args = ap.parse_args()
    try:
        if args.command == "table":
            sys.stdout.write(table([read_report(path) for path in args.file]))
            return 0
        results = [r for path in args.file for r in read_llama(path)]
        if args.fit:
            results = [dict(r, n_gpu_layers=-1) for r in results]
        cells = llama_cells(results, args.model, args.vram)
        if not cells:
            raise ValueError("no generation test with a prompt test of the same length (-p N and -n M -d N)")
        write_json(new_report(cells[0]["build"], {"requests": cells[0]["requests"], "rounds": 1}, cells), args.out)
        return 0
    except (OSError, ValueError) as error:
        print("peer_report.py: %s" % error, file=sys.stderr)
        return 5


if __name__ == "__main__":
    sys.exit(main())
