#!/usr/bin/python3
"""Experts of a layer in both memories, through helmd and both workers on the emulated device: the references' tokens while
experts move between the memories, chunks that stream them, a GPU worker that is killed midway; what is counted; and a
histogram that helm-plan and helmd read. `--device cuda` in the stead of the emulated one: on a machine with a GPU."""
import json
import os
import signal
import subprocess
import sys
import time

import helmd_harness as h
import processor
import test_golden_cli as golden

MODEL = os.path.join(h.DATA, "golden", "mixtral")  # two sparse layers of 8 experts, 2 a token
LAYERS, EXPERTS, CHOSEN = 2, 8, 2
_, WORST, MEAN, GAP = golden.CLASSES["bf16"]
DEVICE = sys.argv[2] if sys.argv[1:2] == ["--device"] else "emulated"
VRAM = "64M" if DEVICE == "emulated" else "2G"  # with a GPU's context
counts = {True: 0, False: 0}


def check(name, ok, detail=""):
    counts[bool(ok)] += 1
    print("%s %s%s" % ("ok  " if ok else "FAIL", name, "" if ok else "  [%s]" % (detail,)), flush=True)


def cli(daemon, *arguments):
    run = processor.run([os.path.join(h.BIN, "helm-cli"), "--connect", daemon.endpoint, *arguments],
                         stdin=subprocess.DEVNULL, capture_output=True, timeout=60 * h.SLOW)
    return run.returncode, run.stdout.decode(), run.stderr.decode()


def agrees(daemon, name, cases):
    differences = []
    for n, case in enumerate(cases):
        found, fine, gap = golden.compare(case, golden.generate(daemon.endpoint, case["prompt"]), GAP, WORST,
                                          golden.MARGIN["bf16"])
        differences += found
        check("%s: tokens of case %d" % (name, n), fine, gap)
    mean, worst = sum(differences) / len(differences), max(differences)
    check("%s: log probabilities, mean %.5f, worst %.4f" % (name, mean, worst), mean <= MEAN and worst <= WORST)


def mixed_plan(prefill=None, parts=1, **experts):
    """Attention on the GPU, experts in both memories, each in as many parts; `prefill` for chunks of 17 tokens and more."""
    return dict(h.plan_json(LAYERS, "gmgm", "g", "g", prefill=prefill, prefill_from=17 if prefill else None,
                            ring_bytes=4 << 20, mixed=experts), expert_parts=parts)


def run_plan(name, plan, cases, kill=False):
    daemon = h.Daemon("--device", DEVICE, "--vram", VRAM, real=True, model=MODEL, plan=plan)
    try:
        agrees(daemon, name, cases)
        if kill:
            before = daemon.children()["gpu"]
            os.kill(before, signal.SIGKILL)
            h.wait_until(lambda: daemon.children().get("gpu", before) != before, 20 * h.SLOW)
            agrees(daemon, name + ", GPU worker killed", cases[:1])
        status = json.loads(cli(daemon, "status", "--json")[1])
        used, present = status["experts_used_total"], status["experts_present_total"]
        check(name + ": some uses were found in VRAM", 0 < present < used, (present, used))
        check(name + ": experts moved, if they may",
              (status["experts_moved_total"] > 0) == (plan["mixed"]["moves"] > 0), status["experts_moved_total"])
        code, text, error = cli(daemon, "experts", "--histogram")
        check(name + ": a histogram", code == 0, error)
        seen = json.loads(text)
        uses = [sum(layer["uses"]) for layer in seen["layers"]]
        check(name + ": it has what was counted", sum(uses) * plan["expert_parts"] == used and all(len(layer["uses"]) == EXPERTS for layer in seen["layers"]) and len(set(uses)) == 1 and
              [layer["layer"] for layer in seen["layers"]] == list(range(LAYERS)), (uses, used))
        check(name + ": the table has a line a layer", len(cli(daemon, "experts")[1].splitlines()) == LAYERS + 1)
        return text
    finally:
        check(name + ": helmd ends with 0", daemon.stop() == 0)
        daemon.close()


def main():
    cases = [c for c in json.load(open(os.path.join(MODEL, "golden.json")))["cases"] if len(c["prompt"]) < 200]
    cases = cases[:2] if h.SLOW > 1 else cases[:4]
    text = run_plan("moving", mixed_plan(slots=3, direct_permille=400, moves=2, move_cost=0), cases, kill=True)
    run_plan("streamed chunks, experts in 4 parts", mixed_plan(prefill="gsgs", parts=4, slots=6, direct_permille=300, moves=0), cases[-1:])

    path = os.path.join(os.environ.get("TMPDIR", "/tmp"), "helm-experts-%d.json" % os.getpid())
    with open(path, "w") as f:
        f.write(text)
    try:
        run = processor.run([os.path.join(h.BIN, "helm-plan"), "--model", MODEL, "--profile", h.PROFILE,
                              "--vram", "336M", "--strategy", "mixed", "--experts-histogram", path, "--json"],
                             capture_output=True, timeout=60 * h.SLOW)
        plan = json.loads(run.stdout) if run.returncode == 0 else {}
        experts = plan.get("mixed", {})
        check("helm-plan: experts by a histogram", experts, run.stderr)
        uses = {layer["layer"]: layer["uses"] for layer in json.loads(text)["layers"]}
        first = experts.get("first", [])
        of = [s["layers"][0] for s in plan["stages"]["decode"] if s["home"] == "mixed"]
        check("helm-plan: the most used ones are in VRAM at first", len(first) == len(of) and all(
            sum(uses[l][e] for e in ids) == sum(sorted(uses[l])[-len(ids):]) for l, ids in zip(of, first)), (first, uses))
        check("helm-plan: with the share of uses that they caught", experts.get("hit_permille", 0) > 0, experts)
    finally:
        os.unlink(path)
    print("%d passed, %d failed" % (counts[True], counts[False]))
    return 1 if counts[False] else 0


if __name__ == "__main__":
    sys.exit(main())
