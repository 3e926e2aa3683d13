#!/usr/bin/env python3
"""Prints the H200's table of docs/benchmarks.md, "Forecasts", and the medians and worst errors over all of its cells, from the
result.json files that planner_bench.py wrote. What was measured is the mean of the medians of both starts of a plan, as
planner_bench.py has it since: the earlier two of these runs gave the first start's alone and kept the second's in `parts`.
Arguments: the folders of the runs; without any, those beside this file. Standard library only."""
import json
import os
import statistics
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
RUNS = ("accuracy8", "accuracy8-prompts", "accuracy14")
MODELS = ("0.6b", "4b", "8b", "14b")
CEILINGS = ("8GiB", "24GiB", "all")


def percent(error):
    return "" if error is None else f"{100 * error:+.1f} %"


def few(value):
    return f"{value:,.0f}" if value >= 200 else f"{value:.1f}"


cells = {}
for run in sys.argv[1:] or [os.path.join(HERE, run) for run in RUNS]:
    with open(os.path.join(run, "result.json"), encoding="utf-8") as file:
        for row in json.load(file)["rows"]:
            runs_ms, first_ms = row.get("runs_ms"), row["ttft_ms"]
            if not runs_ms:
                runs_ms = [1000 / row["tok_s"], row["parts"]["decode"]["ms"]]
                first_ms = statistics.mean([first_ms, row["parts"]["first"]["ms"]])
            row.update(runs_ms=runs_ms, tok_s=1000 / statistics.mean(runs_ms), ttft_ms=first_ms)
            row.update(decode_error=row["said_tok_s"] / row["tok_s"] - 1, ttft_error=row["said_ttft_ms"] / first_ms - 1)
            cells[row["model"], row["vram"], row["prompt"]] = row

print("| model | VRAM | prompt | token/s said | measured | of both starts | error | TTFT ms said | measured | error |")
print("| --- " * 10 + "|")
for key in sorted(cells, key=lambda k: (MODELS.index(k[0]), CEILINGS.index(k[1]), k[2])):
    r = cells[key]
    print(f"| {key[0].upper()} | {key[1].replace('GiB', ' GiB')} | {key[2]:,} | {few(r['said_tok_s'])} | {few(r['tok_s'])} "
          f"| {', '.join(few(1000 / ms) for ms in r['runs_ms'])} | {percent(r['decode_error'])} | {r['said_ttft_ms']:.1f} "
          f"| {r['ttft_ms']:.1f} | {percent(r['ttft_error'])} |")

for name, member in (("decode", "decode_error"), ("TTFT", "ttft_error")):
    errors = {key: r[member] for key, r in cells.items()}
    worst = max(errors, key=lambda key: abs(errors[key]))
    print(f"\n{name}: median {100 * statistics.median(map(abs, errors.values())):.2f} %, worst {percent(errors[worst])} "
          f"({' '.join(map(str, worst))}), {len(errors)} cells")
