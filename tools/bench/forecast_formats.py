#!/usr/bin/env python3
"""How far forecasts of mixtures of weight formats are from measurements, over GGUF files and ceilings of VRAM, in one call of
at most eight minutes on a machine with a GPU.

  forecast_formats.py --bin DIR --out DIR [--models DIR] [--cells MODEL:VRAM,...] [--device D] [--quick] [--seconds S]

A MODEL is SIZE-TYPE, made by make_gguf.py as SIZE-TYPE.gguf in --models (default /dev/shm/helm-models)
unless it is there, and removed behind its cells if it was made; or the path of a GGUF file. VRAM: a size, or all. The default is
the twelve cells of CELLS. Before the cells of a model the machine is measured anew (helm-profile --quick --model), since
others may use its memory; with --once only before the first model's, and then only its formats for the others. A cell is one start of helmd with the plan that was forecast, made as helmd makes it, by
what memory gives right before (helm-profile --now --model): --requests (3) requests of one token and
as many of up to 64 in turns, their medians, between two reads of memory.

Writes forecasts.md, which is also printed, and forecasts.json into --out, and nothing else. Of each cell: token/s forecast by the
profile and by what memory gives now, measured, the errors of both and of a forecast by plain reads now, and TTFT by now; the error if the profile's CPU rates are scaled
to the reads beside the cell ("at reads": what is left is the model's own); of the bound: the least time of the bytes that move, host bytes by CPU and link together, VRAM's by its
read, as a part of the time measured. A second table has the parts of a step.
--quick: two requests each, of up to 32. --seconds (default 460): begin no further cell after so long. SIGTERM and SIGINT end it early with the tables of what there is.
Exit status: 0; 2 usage; 5 a cell failed (it is named; the rest went on) or was not reached; 128+N cut short by signal N."""
import argparse
import json
import os
import signal
import sys
import tempfile
import time

from cpu_share import Reader
from plan_bound import bound_seconds, limits_of, moved_bytes
from plan_lists import homes_text
from planner_run import Bench, Cut, Failed, cut, figure, percent, relative, run, said_at_read, summary, vram_arguments

CELLS = ("8b-Q4_K_M:all,8b-Q4_K_M:4GiB,8b-Q4_K_M:2GiB,8b-Q6_K:all,8b-Q6_K:6GiB,8b-Q6_K:4GiB,8b-Q8_0:all,8b-Q8_0:8GiB,8b-Q8_0:4GiB,"
         "32b-Q4_K_M:16GiB,32b-Q4_K_M:8GiB,70b-Q4_K_M:24GiB")
PROMPT = 128
OUTPUT_MOST, OUTPUT_LEAST, OUTPUT_S, OUTPUT_QUICK = 64, 16, 4, 32  # tokens of a request, and about its seconds where those are fewer
CONTEXT_SLACK = 16
MAKE_S = 300


def die(text):
    print(f"forecast_formats.py: {text}", file=sys.stderr)
    sys.exit(2)


def cells_of(text):
    """{model: [VRAM, ...]} in order."""
    cells = {}
    for cell in text.split(","):
        model, colon, vram = cell.rpartition(":")
        if not colon or not model or not vram:
            die(f"'{cell}' is no MODEL:VRAM")
        cells.setdefault(model, []).append(vram)
    return cells


def short_name(model):
    return os.path.basename(model).removesuffix(".gguf")


class Model:
    """A GGUF file; `with` makes it where it is missing, and removes it then."""

    def __init__(self, name, folder):
        self.path = name if os.path.exists(name) else os.path.join(folder, name + ".gguf")
        self.name, self.made = name, False

    def __enter__(self):
        if not os.path.exists(self.path):
            self.made = True
            try:
                self.make()
            except BaseException:  # a signal, too
                self.__exit__()
                raise
        return self.path

    def make(self):
        size, dash, kind = self.name.rpartition("-")
        if not dash:
            raise Failed(f"{self.name}: no such file, and no SIZE-TYPE")
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        make = os.path.join(os.path.dirname(os.path.abspath(__file__)), "make_gguf.py")
        status, _, err = run([sys.executable, make, "--size", size, "--type", kind, "--out", self.path], MAKE_S)
        if status:
            raise Failed(f"make_gguf.py: {err.strip()[-300:]}")

    def __exit__(self, *_):
        if self.made and os.path.exists(self.path):
            os.remove(self.path)


def row_of(plan, said, by_profile, by_plain, at_read, parts, reads, profile):
    """What a cell's figures come to. said, by_profile, by_plain: forecasts by what memory gives now, by the profile, and by plain reads now; reads: GB/s before and
    behind; parts as Bench.parts gives them."""
    tok_s, ttft, read = 1000 / parts["decode"]["ms"], parts["first"]["ms"], sum(reads) / len(reads)
    limits, read_then = limits_of(profile), max(profile["cpu"]["read"], key=lambda entry: entry["x"])["value"] / 1e9
    row = {"homes": homes_text(plan), "ring_bytes": plan["ring_bytes"], "activations": plan.get("activations"), "said_tok_s": said["decode_tok_s"]["value"], "tok_s": tok_s,
           "by_profile_tok_s": by_profile["decode_tok_s"]["value"], "now": said.get("now"), "said_at_read_tok_s": at_read, "said_ttft_ms": said["ttft_ms"]["value"], "ttft_ms": ttft, "reads_gb_s": reads,
           "profile_read_gb_s": read_then, "said_parts": said["parts"], "parts": parts, "moved": moved_bytes(plan)}
    row.update(by_plain_tok_s=by_plain["decode_tok_s"]["value"], now_plain=by_plain.get("now"), error_by_plain=relative(by_plain["decode_tok_s"]["value"], tok_s))
    row.update(error=relative(row["said_tok_s"], tok_s), error_by_profile=relative(row["by_profile_tok_s"], tok_s), error_at_read=None if at_read is None else relative(at_read, tok_s),
               ttft_error=relative(row["said_ttft_ms"], ttft), bound_ms=None, of_bound=None, of_bound_at_read=None)
    if limits:
        at = dict(limits, both_gb_s=limits["both_gb_s"] * read / read_then)
        row.update(limits=limits, bound_ms=1000 * bound_seconds(row["moved"], limits),
                   of_bound=bound_seconds(row["moved"], limits) * tok_s, of_bound_at_read=bound_seconds(row["moved"], at) * tok_s)
    return row


def run_cell(b, model, vram, name, reader):
    """A forecast, and a start of helmd with its plan."""
    ceiling, sizes = vram_arguments(vram), ["--prompt", str(PROMPT), "--ctx", str(PROMPT + OUTPUT_MOST + CONTEXT_SLACK)]
    activations = (b.helm_plan(model, sizes + ceiling, name + "-asked").get("activations") or {}).get("cpu", "exact")
    plain, now = b.now(), b.now(model, activations)
    plan = b.helm_plan(model, sizes + ceiling + ["--now", now], name)
    b.o.helmd = ["--now", now]
    b.o.output = min(OUTPUT_QUICK if b.o.quick else OUTPUT_MOST, max(OUTPUT_LEAST, int(OUTPUT_S * plan["decode_tok_s"]["value"])))
    at = sizes + ceiling + ["--plan", b.path(name + ".plan.json"), "--at", str(PROMPT + b.o.output // 2)]
    by_profile = b.helm_plan(model, at, name + "-profile")
    said = b.helm_plan(model, at + ["--now", now], name + "-said")
    by_plain = b.helm_plan(model, at + ["--now", plain], name + "-plain")
    reads = [reader.gb_s()]
    parts = b.parts(model, name, ceiling and vram, PROMPT)
    reads.append(reader.gb_s())
    at_read = said_at_read(b, model, at, name, [{"read_gb_s": {"p50": sum(reads) / 2}}])
    return row_of(plan, said, by_profile, by_plain, at_read, parts, reads, b.profile())


def rates_of(profile):
    """Of a profile what forecasts of blocks go by."""
    values = {f"{part}.{key}": profile[part][key]["value"] for part, keys in
              (("cpu", ("gemv", "gemv_beside", "read_beside", "operation")), ("gpu", ("read", "chain_gemv", "chain_operation", "operation")),
               ("link", ("h2d", "h2d_beside", "h2d_beside_read", "hand_over"))) for key in keys if profile.get(part) and key in profile[part]}
    return {"values": values, "formats": profile.get("formats")}


def run_model(b, name, ceilings, rows, profiles, readers):
    with Model(name, b.o.models) as path:
        begin = time.monotonic()
        b.refresh(path, not b.o.once or not profiles)
        profile = b.profile()
        profiles[short_name(name)] = rates_of(profile)
        print(f"{short_name(name)}: measured in {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
        if not readers:
            worker = {"threads": profile["cpu"]["threads"], "numa_node": -1}
            readers.append(Reader(b.o, worker, []))
        for vram in ceilings:
            b.go_on()
            begin = time.monotonic()
            try:
                row = run_cell(b, path, vram, f"{short_name(name)}-{vram}", readers[0])
            except Failed as why:
                b.note(f"{short_name(name)} at {vram}", why)
                continue
            rows.append(dict({"model": short_name(name), "vram": vram}, **row))
            print(f"{short_name(name)} at {vram}: {percent(row['error'])}, {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)


def result_of(rows, profiles):
    errors = {key: summary([r[key] for r in rows if r[key] is not None]) for key in ("error", "error_by_profile", "error_by_plain", "error_at_read", "ttft_error")}
    return dict({"command": "forecast_formats", "cells": rows, "profiles": profiles}, **errors)


def part(value):
    return "-" if value is None else f"{100 * value:.0f} %"


def tables_of(rows, result):
    """Lines: cells, then what a step is made of, then median and worst."""
    yield ("| model | VRAM | token/s by the profile | error | by plain reads now | error | by now | error | measured | at reads | TTFT ms said | measured | error | "
           "of bound | at reads | read GB/s |")
    yield "| --- " * 16 + "|"
    for r in rows:
        yield (f"| {r['model']} | {r['vram']} | {r['by_profile_tok_s']:.2f} | {percent(r['error_by_profile'])} | {r['by_plain_tok_s']:.2f} | {percent(r['error_by_plain'])} | {r['said_tok_s']:.2f} | "
               f"{percent(r['error'])} | {r['tok_s']:.2f} | {percent(r['error_at_read'])} | {r['said_ttft_ms']:.1f} | {r['ttft_ms']:.1f} | {percent(r['ttft_error'])} | "
               f"{part(r['of_bound'])} | {part(r['of_bound_at_read'])} | {r['profile_read_gb_s']:.0f}: "
               f"{', '.join(f'{read:.0f}' for read in r['reads_gb_s'])} |")
    # A GPU that waits for the link computes in its worker's eyes, and not in the forecast's, which has the wait as rest.
    yield "\n| a step of | VRAM | ms said | ms | CPU said | CPU | GPU said | its waits for the link said | GPU with these | link said | hand-overs said | outside | homes |"
    yield "| --- " * 13 + "|"
    for r in rows:
        said, got = r["said_parts"]["decode"], r["parts"]["decode"]
        cells = [said["ms"], got["ms"], said["cpu_ms"], got.get("cpu_ms"), said["gpu_ms"], said["rest_ms"], got.get("gpu_ms"),
                 said["link_ms"], said["hand_overs_ms"], got["outside_ms"]]
        yield f"| {r['model']} | {r['vram']} | " + " | ".join(figure(cell, 2) for cell in cells) + f" | {r['homes']} |"
    yield ""
    for r in rows:
        yield f"{r['model']} at {r['vram']}: {r['now']}"
    for what, key in (("decode by the profile", "error_by_profile"), ("decode by plain reads now", "error_by_plain"), ("decode by now", "error"), ("decode at the reads beside each cell", "error_at_read"), ("TTFT", "ttft_error")):
        if result[key]:
            yield (f"\n{what}: median error {100 * result[key]['median']:.1f} %, worst {100 * result[key]['worst']:.1f} % of "
                   f"{result[key]['cells']} cells")


def report(out, rows, profiles, b, ended, asked):
    result = dict(result_of(rows, profiles), failures=b.failures, whole=ended is None and len(rows) == asked)
    lines = list(tables_of(rows, result)) + [f"\nFAILED {failure}" for failure in b.failures]
    if ended is not None:
        lines.append(f"\ncut short {f'by signal {ended.number}' if ended.number else 'by --seconds'}: {len(rows)} of {asked} cells")
    with open(os.path.join(out, "forecasts.md"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    with open(os.path.join(out, "forecasts.json"), "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
    print("\n".join(lines), flush=True)
    return 128 + ended.number if ended is not None and ended.number else 0 if result["whole"] else 5


def options_of():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--models", default="/dev/shm/helm-models")
    parser.add_argument("--cells", default=CELLS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--requests", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--seconds", type=float, default=460)
    options = parser.parse_args()
    if options.quick:
        options.requests = 2
    for program in ("helm-plan", "helm-profile", "helm-bench", "helm-bench-read", "helm-cli", "helmd"):
        if not os.access(os.path.join(options.bin, program), os.X_OK):
            die(f"{options.bin} has no {program}")
    return options


def main():
    options = options_of()
    cells, out = cells_of(options.cells), options.out
    rows, profiles, readers, ended = [], {}, [], None
    os.makedirs(out, exist_ok=True)
    for ended_by in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ended_by, cut)
    with tempfile.TemporaryDirectory(prefix="helm-forecasts-") as work:
        options.out, options.profile, options.helmd = work, None, []
        b = Bench(options)
        try:
            for name, ceilings in cells.items():
                try:
                    b.go_on()
                    run_model(b, name, ceilings, rows, profiles, readers)
                except Failed as why:
                    b.note(short_name(name), why)
        except Cut as why:
            ended = why
        for reader in readers:
            reader.__exit__()
        return report(out, rows, profiles, b, ended, sum(map(len, cells.values())))


if __name__ == "__main__":
    sys.exit(main())
