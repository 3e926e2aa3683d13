#!/usr/bin/env python3
"""What the CPU worker's visits of a token cost beside a GPU, and why: one plan and plans that differ from it in one thing, each with
where every thread's time went (cpu_trace.py).

  cpu_visits.py --bin DIR --out DIR --model FILE.gguf [--profile FILE] [--vram 4GiB] [--cells NAME,...] [--seconds S]

Cells, a daemon each:
  plan      the plan that helm-plan makes; plan-15, plan-14: with so many threads
  idle      what streams lies in VRAM instead: the link copies nothing; idle-15
  link      what the CPU computes streams as well: all that the link can
  one       as many layers on the CPU as its bytes come to, one behind another, the others in VRAM: one visit
Behind a cell's name, variables of its environment: plan+NAME=VALUE. Standard library only; traces stay in --out."""
import json
import os
import subprocess
import sys
import time

from plan_lists import units_of, with_homes
from planner_run import Bench, Failed, parser_of_model, vram_arguments

CELLS = "plan,plan-15,plan-14,idle,idle-15,link,one"
PROMPT, OUTPUT, CONTEXT = 128, 168, 320


def homes_idle(plan):
    return {key: "gpu" if home == "stream" else home for key, home in units_of(plan).items()}


def homes_link(plan):
    return {key: "stream" if home == "cpu" else home for key, home in units_of(plan).items()}


def homes_one(plan):
    """The CPU's part as whole layers in the middle."""
    home = homes_idle(plan)
    layers = max(1, round(sum(where == "cpu" for where in home.values()) * 0.8))
    first = (plan["layers"] - layers) // 2
    return {key: "cpu" if first <= key[0] < first + layers else "gpu" for key in home}


HOMES = {"idle": homes_idle, "link": homes_link, "one": homes_one}


def plan_of(b, kind, plan):
    if kind == "plan":
        return "plan", b.o.vram
    name = kind + "-homes"
    other = with_homes(plan, HOMES[kind](plan), False)
    with open(b.path(name + ".plan.json"), "w", encoding="utf-8") as file:
        json.dump(other, file)
    return name, b.o.vram if kind == "link" else None


def run_cell(b, number, cell, plan):
    what, *variables = cell.split("+")
    kind, _, threads = what.partition("-")
    name, vram = plan_of(b, kind, plan)
    trace = b.path("-".join([str(number), what, *(v.split("=")[0].lower() for v in variables)]) + ".trace")
    changed = dict(v.split("=", 1) for v in variables)
    changed["HELM_CPU_TRACE"] = trace
    b.o.helmd = ["--activations", "int8"] + (["--threads", threads] if threads else [])
    before = dict(os.environ)
    os.environ.update(changed)
    try:
        parts = b.parts(b.o.model, name, vram, PROMPT)["decode"]
    finally:
        os.environ.clear()
        os.environ.update(before)
    b.say(f"\n## {cell}: {1000 / parts['ms']:.1f} token/s; ms: " + ", ".join(f"{key} {value:.2f}" for key, value in parts.items()))
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cpu_trace.py")
    done = subprocess.run([sys.executable, "-B", script, trace], capture_output=True, text=True, check=False)
    if kind != "link":  # no CPU in it
        b.say(done.stdout + done.stderr[-500:])
    return dict(parts, cell=cell)


def main():
    parser = parser_of_model(__doc__, "4GiB", 200)
    parser.add_argument("--cells", default=CELLS)
    options = parser.parse_args()
    options.helmd, options.output, options.requests = [], OUTPUT, 1
    b, rows = Bench(options), []
    if not options.profile:
        b.refresh(options.model)
    sizes = ["--prompt", str(PROMPT), "--ctx", str(CONTEXT), "--at", str(PROMPT + OUTPUT // 2), "--activations", "int8"]
    plan = b.helm_plan(options.model, sizes[:4] + sizes[6:] + vram_arguments(options.vram), "plan")
    said = b.helm_plan(options.model, sizes + ["--plan", b.path("plan.plan.json")] + vram_arguments(options.vram), "said")
    b.say(f"said: {said['decode_tok_s']['value']:.1f} token/s, {json.dumps(said['parts']['decode'])}")
    for number, cell in enumerate(options.cells.split(",")):
        if time.monotonic() - b.begin > options.seconds:
            b.note(cell, "no time left")
            continue
        try:
            rows.append(run_cell(b, number, cell, plan))
        except Failed as why:
            b.note(cell, why)
    b.finish({"command": "cpu_visits", "rows": rows}, None)


if __name__ == "__main__":
    main()
