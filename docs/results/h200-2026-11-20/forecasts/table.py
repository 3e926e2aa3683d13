#!/usr/bin/env python3
"""Prints the table of docs/benchmarks.md, "Forecasts", of the H200, and the medians and worst errors over all of its cells, from
the result.json files that planner_bench.py wrote. Where a cell was measured twice the later one counts: the two of 14B all on the
GPU. Arguments: the folders of the runs in their order; without any, the runs of 2026-11-20. Standard library only."""
import json
import os
import statistics
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
# in this order: a later run's cell takes the place of an earlier one's
RUNS = ("../asking/accuracy8", "../asking/prompts", "../asking/accuracy14", "accuracy4", "accuracy16", "accuracy14all")
MODELS = ("0.6b", "4b", "8b", "14b")
CEILINGS = ("4GiB", "8GiB", "16GiB", "24GiB", "all")


def percent(error):
    return "" if error is None else f"{100 * error:+.1f} %"


def few(value):
    return "" if value is None else f"{value:,.0f}" if value >= 200 else f"{value:.1f}"


cells = {}
for run in sys.argv[1:] or [os.path.join(HERE, run) for run in RUNS]:
    with open(os.path.join(run, "result.json"), encoding="utf-8") as file:
        for row in json.load(file)["rows"]:
            cells[row["model"], row["vram"], row["prompt"]] = row

print("| model | VRAM | prompt | token/s said | measured | error | at its reads | TTFT ms said | measured | error |")
print("| --- " * 10 + "|")
for key in sorted(cells, key=lambda k: (MODELS.index(k[0]), CEILINGS.index(k[1]), k[2])):
    r = cells[key]
    print(f"| {key[0].upper()} | {key[1].replace('GiB', ' GiB')} | {key[2]:,} | {few(r.get('said_tok_s'))} | {few(r.get('tok_s'))} "
          f"| {percent(r.get('decode_error'))} | {percent(r.get('decode_error_at_read'))} | {few(r['said_ttft_ms'])} "
          f"| {few(r['ttft_ms'])} | {percent(r['ttft_error'])} |")

for name, member in (("decode", "decode_error"), ("decode at the run's reads", "decode_error_at_read"), ("TTFT", "ttft_error")):
    errors = {key: r[member] for key, r in cells.items() if r.get(member) is not None}
    worst = max(errors, key=lambda key: abs(errors[key]))
    print(f"\n{name}: median {100 * statistics.median(map(abs, errors.values())):.2f} %, worst {percent(errors[worst])} "
          f"({' '.join(map(str, worst))}), {len(errors)} cells")
