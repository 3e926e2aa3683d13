#!/usr/bin/env python3
"""Holds the planner's word against the clock.

  planner_bench.py accuracy --bin DIR --out DIR --model DIR [--model DIR...] [--vram SIZE,...] [--prompt N,...]
      Plans every (model, ceiling) for each prompt length, runs that plan, and compares predicted with measured decode speed
      (at the context that the output has on average) and TTFT. The machine's own profile first gets the rates of the models'
      formats of weights (helm-profile --model). --refresh takes the machine's profile anew (helm-profile
      --quick) before each model and ceiling, for machines whose memory others use too; and the decode error is given a second
      time with the profile's CPU rates scaled to the reads measured beside the run: what is left is the model's own error.
      A second table says what forecast and measurement are made of (each worker's computing and waiting, by helmd's counters),
      from another start of the same plan, whose medians count as well; --no-parts leaves it out. --ttft-prompt N,...: prompts of which only TTFT is compared,
      with few tokens of output. The last table has the errors alone, a row for each model and ceiling.
  planner_bench.py sweep --bin DIR --out DIR --model DIR --vram SIZE [--prompt N] [--every N] [--random N] [--seed N]
      Runs the chosen plan, every N-th thesis split and N random mixtures of homes, round by round, and says how far the chosen
      one is from the best measured. The chosen one runs again after every eighth of the others: what it is compared with is
      spread over minutes, in which machines change.
  planner_bench.py reach --bin DIR --out DIR --model DIR --vram SIZE [--prompt N,...] [--limits FILE]
      Runs the chosen plan and the best thesis split, interleaved; gives the ratio, and decode against the bound
      Wh / B_both + Wg / B_gpu of the profile (or of --limits, JSON with both_gb_s and vram_gb_s): of all weights as they are
      in the file, and, where some are packed, of the bytes that move over the link, to the CPU and from VRAM.

Common: --output N (tokens, default 64), --requests N (in each run, one after another behind one that does not count; what is
measured is their median; default 3), --bench-rounds N (times that in each run, with a read of memory before and after; default
1), --rounds N (runs, each with a start of its own; their median), --profile FILE, --device D, --seconds S (begin no further
measurement after so long), and after -- options for helmd.
Writes every plan and every helm-bench report into --out, Markdown tables to standard output and to result.md there, and after
every measurement result.json, whose "whole" says whether all was measured. SIGTERM and SIGINT end it early with the tables of
what there is.
Exit status: 0; 2 usage; 5 something failed (it is named; the rest went on); 128+N cut short by signal N. Standard library
only."""
import argparse
import json
import os
import signal
import statistics
import sys

from plan_bound import bound_seconds, bytes_by_home, limits_of, moved_bytes
from plan_lists import homes_text, random_mixtures, thesis_splits
from planner_accuracy import CONTEXT_SLACK, accuracy
from planner_run import Bench, Cut, Failed, cut, vram_arguments

CHOSEN_AGAIN = 8  # of a sweep's plans


def die(text, status=5):
    print(f"planner_bench.py: {text}", file=sys.stderr)
    sys.exit(status)


def sweep_plans(b):
    """The chosen plan's name and those of the others, each written as NAME.plan.json."""
    o = b.o
    sizes = ["--ctx", str(int(o.prompt.split(",")[0]) + o.output + CONTEXT_SLACK), "--prompt", o.prompt.split(",")[0]]
    chosen = b.helm_plan(o.model[0], sizes + vram_arguments(o.vram), "chosen")
    others = []
    for name, plan in list(thesis_splits(chosen, o.every)) + list(random_mixtures(chosen, o.random, o.seed)):
        with open(b.path(name + ".plan.json"), "w", encoding="utf-8") as file:
            json.dump(plan, file)
        others.append(name)
    return ["chosen"] + others


def sweep_order(plans, backwards):
    """All plans, the first of them again and again between the others and at the end."""
    first, others = plans[0], plans[:0:-1] if backwards else plans[1:]
    order = []
    for i in range(0, max(len(others), 1), CHOSEN_AGAIN):
        order += [first] + others[i:i + CHOSEN_AGAIN]
    return order + [first] if others else order


def sweep_result(tok_s, refused):
    medians = {name: statistics.median(values) for name, values in tok_s.items()}
    return {"command": "sweep", "tok_s": tok_s, "medians": medians, "refused": refused,
            "best": max(medians, key=medians.get) if medians else None}


def sweep_measure(b, tok_s, refused):
    o, plans, run = b.o, sweep_plans(b), 0
    for r in range(o.rounds):
        for name in sweep_order(plans, r % 2):
            run += 1
            if name in refused:
                continue
            try:
                got = b.measure(o.model[0], name, vram_arguments(o.vram) and o.vram, int(o.prompt.split(",")[0]), f"{name}-{run}")
                tok_s.setdefault(name, []).append(1000 / got["tpot_ms"])
            except Failed as why:
                if "fit" in str(why) or "VRAM" in str(why):
                    refused.append(name)  # does not fit: not a plan for this machine
                else:
                    b.note(name, why)
            b.save(sweep_result(tok_s, refused))


def sweep(b):
    tok_s, refused, ended = {}, [], None
    try:
        sweep_measure(b, tok_s, refused)
    except Failed as why:
        b.note("chosen", why)
    except Cut as why:
        ended = why
    result = sweep_result(tok_s, refused)
    medians, best = result["medians"], result["best"]
    b.say("| plan | token/s | of the best | runs |\n| --- | --- | --- | --- |")
    for name in sorted(medians, key=medians.get, reverse=True):
        b.say(f"| {name} | {medians[name]:.2f} | {100 * medians[name] / medians[best]:.1f} % | {len(tok_s[name])} |")
    b.say(f"\n{len(medians)} plans measured; {len(refused)} do not fit: {', '.join(refused) or 'none'}")
    if "chosen" in medians:
        runs = tok_s["chosen"]
        b.say(f"chosen: {100 * medians['chosen'] / medians[best]:.1f} % of the best measured ({best}); its own {len(runs)} runs "
              f"{min(runs):.2f} to {max(runs):.2f}")
    b.finish(result, ended)


def limits(b):
    """Of --limits, else of the profile."""
    if not b.o.limits:
        return limits_of(b.profile())
    with open(b.o.limits, encoding="utf-8") as file:
        return json.load(file)


def reach(b):
    o, model = b.o, b.o.model[0]
    ceiling = vram_arguments(o.vram)
    names, plans, got, ended = [], {}, {}, None
    for prompt in o.prompt.split(","):
        for strategy in ("best", "thesis"):
            name = f"{strategy}-{prompt}"
            sizes = ["--ctx", str(int(prompt) + o.output + CONTEXT_SLACK), "--prompt", prompt]
            try:
                plans[name] = b.helm_plan(model, sizes + ceiling + ["--strategy", strategy], name)
                names.append((name, int(prompt)))
            except Failed as why:
                b.note(name, why)
    try:
        for r in range(o.rounds):
            for name, prompt in names if r % 2 == 0 else reversed(names):
                try:
                    got.setdefault(name, []).append(b.measure(model, name, ceiling and o.vram, prompt, f"{name}-{r}"))
                except Failed as why:
                    b.note(name, why)
                b.save({"command": "reach", "raw": got})
    except Cut as why:
        ended = why
    rows, by = {}, limits(b)
    if by:
        b.say("limits: " + ", ".join(f"{key[:-5].replace('_', ' ')} {value:.1f} GB/s" for key, value in by.items()))
    b.say("| plan | homes | token/s | predicted | TTFT ms | predicted |\n| --- | --- | --- | --- | --- | --- |")
    for name, _ in names:
        if not got.get(name):
            continue
        rows[name] = {"tok_s": statistics.median(1000 / g["tpot_ms"] for g in got[name]),
                      "ttft_ms": statistics.median(g["client_ttft_ms"] for g in got[name])}
        p = plans[name]
        b.say(f"| {name} | {homes_text(p)} | {rows[name]['tok_s']:.2f} | {p['decode_tok_s']['value']:.2f} | "
              f"{rows[name]['ttft_ms']:.1f} | {p['ttft_ms']['value']:.1f} |")
    for prompt in o.prompt.split(","):
        best, thesis = rows.get(f"best-{prompt}"), rows.get(f"thesis-{prompt}")
        if best and thesis:
            b.say(f"\nprompt {prompt}: {best['tok_s'] / thesis['tok_s']:.2f} times the thesis split")
        if best and by:
            plan = plans[f"best-{prompt}"]
            total, moved = bytes_by_home(plan), moved_bytes(plan)
            bound_s = bound_seconds(total, by)
            best["of_bound"] = bound_s * best["tok_s"]
            if moved != total:  # packed: what cannot be beaten is moving fewer bytes
                packed_s = bound_seconds(moved, by)
                best["of_bound_moved"] = packed_s * best["tok_s"]
                b.say(f"prompt {prompt}: {100 * best['of_bound_moved']:.1f} % of the bound of the bytes that move, "
                      f"{moved['stream'] / 1e9:.2f} GB over the link, {moved['cpu'] / 1e9:.2f} to the CPU, {moved['gpu'] / 1e9:.2f} from VRAM "
                      f"({1 / packed_s:.2f} token/s)")
            b.say(f"prompt {prompt}: {100 * best['of_bound']:.1f} % of the bound ({1 / bound_s:.2f} token/s)")
    b.finish({"command": "reach", "rows": rows, "raw": got, "limits": by}, ended)


def main():
    argv, helmd = sys.argv[1:], []
    if "--" in argv:
        at = argv.index("--")
        argv, helmd = argv[:at], argv[at + 1:]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["accuracy", "sweep", "reach"])
    for name in ("bin", "out"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--model", action="append", required=True)
    parser.add_argument("--vram", default="all")
    parser.add_argument("--prompt", default="128")
    parser.add_argument("--ttft-prompt", default="")
    parser.add_argument("--profile")
    parser.add_argument("--limits")
    parser.add_argument("--device", default="")
    for name, value in (("output", 64), ("rounds", 1), ("requests", 3), ("every", 2), ("random", 20), ("seed", 1),
                        ("bench-rounds", 1)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--refresh", action="store_true")
    parser.add_argument("--no-parts", action="store_true")
    options = parser.parse_args(argv)
    options.helmd = helmd
    if options.output < 2 or min(options.requests, options.rounds, options.bench_rounds) < 1:
        die("--output: 2 at least; --requests, --rounds and --bench-rounds: 1 at least", 2)
    for program in ("helm-plan", "helm-bench", "helmd"):
        if not os.access(os.path.join(options.bin, program), os.X_OK):
            die(f"{options.bin} has no {program}")
    b = Bench(options)
    for ended_by in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ended_by, cut)
    try:
        {"accuracy": accuracy, "sweep": sweep, "reach": reach}[options.command](b)
    except Cut as why:  # outside of what can be reported in part
        sys.exit(128 + why.number)


if __name__ == "__main__":
    main()
