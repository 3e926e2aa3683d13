#!/usr/bin/env python3
"""Where the time of a token goes whose experts lie in both memories: the same model with plans that differ in one number each.

  mixed_device.py --bin DIR [--bin DIR ...] [--layers N] [--tokens N] [--profile FILE] [--device NAME] [--work DIR] [--only NAME,...]
                  [--operations]

A few layers of Qwen3-30B-A3B's shape in Q4_K_M with random blocks and even routing (make_gguf.py); tokens are drawn among the 200
likeliest, so that they do not repeat. Plans are helm-plan's with all experts in both memories, with slots of each layer, the share of
missing experts that the GPU reads itself, and moves set by hand; beside them the same layers with all experts in VRAM and all on
the CPU. A row: milliseconds of a token of one sequence behind 128 tokens, those of a layer's MLP beyond the plan with all in VRAM,
and of that token how long the CPU's threads were busy and what they waited. Several --bin are builds to compare: each case runs
with each in turn. --operations: before the rows the CPU's operations one by one (helm-bench-decode --profile). Standard library
only; about 80 s on an H200 for twelve layers, half of it the profile."""
import argparse
import json
import os
import subprocess
import sys
import time

import experts_device
from experts_device import HERE, run

SHORT, DECODE = 128, 192
#        name: strategy, (slots, of 1,000 missing ones read directly, moves a step) or None: the planner's own
CASES = {"vram": ("all-gpu", None), "cpu": ("experts-cpu", None), "mixed": ("mixed", None)}
CASES.update({"direct-%d" % share: ("mixed", (1, share, 0)) for share in (0, 125, 250, 375)})
CASES.update({"slots-16-%d" % share: ("mixed", (16, share, 0)) for share in (0, 250)})
CASES["moves"] = ("mixed", (4, 125, 8))
KEYS = ("cpu.gemv", "cpu.gemv_beside", "cpu.operation", "cpu.wake", "gpu.operation", "gpu.chain_operation", "gpu.chain_gemv", "gpu.gemv",
        "link.h2d", "link.h2d_beside", "link.direct", "link.hand_over", "link.hand_over_beside", "step",
        "formats.q4_k.cpu_gemv", "formats.q4_k.cpu_gemv_beside", "formats.q4_k.gpu_gemv", "formats.q4_k.gpu_chain_gemv",
        "formats.q4_k.gpu_chain_operation", "formats.q6_k.cpu_gemv", "formats.q6_k.cpu_gemv_beside")


def make_plan(o, model, case, path):
    """The case's plan as a file; None: the planner's own."""
    numbers = CASES[case][1]
    if numbers is None:
        return None
    plan = experts_device.mixed_plan(o, model, ["--ctx", str(SHORT + o.tokens + 64), "--batch", "1"])
    plan["mixed"] = {"slots": numbers[0], "direct_permille": numbers[1], "moves": numbers[2], "move_cost": 0 if numbers[2] else 467}
    with open(path, "w") as f:
        json.dump(plan, f)
    return path


def worker_of(status, name):
    return next((w for w in status["workers"] if w["name"].startswith(name)), {})


def measure(o, directory, model, case):
    o.bin = directory
    path = make_plan(o, model, case, os.path.join(o.work, "plan.json"))
    options = ["--ctx", str(SHORT + o.tokens + 64), "--profile", o.profile] + (
        ["--plan", path] if path else ["--strategy", CASES[case][0]]) + (["--vram", o.vram] if o.vram else [])
    daemon = experts_device.Daemon(o, model, options)
    try:
        rates, spent = [], []
        for seed in (1, 2):
            before = daemon.ask("status", "--json")
            answer = json.loads(run(daemon.generate(SHORT, o.tokens, seed, True)))
            after = daemon.ask("status", "--json")
            rates.append(answer["timings"]["decode_tok_s"])
            steps = after["steps_total"] - before["steps_total"]
            spent.append({(name, what): 1e3 * (worker_of(after, name).get(what, 0) - worker_of(before, name).get(what, 0)) / steps
                          for name in ("cpu", "gpu") for what in ("busy_seconds", "wait_seconds")})
        plan, status = daemon.ask("plan", "--json"), daemon.ask("status", "--json")
        used = status.get("experts_used_total", 0)
        said = [k for k in plan["measured"]["decode"] if k["batch"] == 1]
        return {"ms": 1e3 / rates[-1], "rates": rates, "spent": spent[-1],
                "said": 1e3 / max(said, key=lambda k: k["steps"])["planned_tok_s"] if said else None,
                "hits": status["experts_present_total"] / used if used else None, "moved": status.get("experts_moved_total", 0)}
    finally:
        daemon.close()


def row(o, directory, case, r, all_in_vram):
    layer = "-" if all_in_vram is None else "%.1f" % (1e3 * (r["ms"] - all_in_vram) / o.layers)
    print("| %s | %s | %.3f | %s | %s | %s | %s | %s | %d |" % (
        os.path.basename(os.path.dirname(directory + "/")), case, r["ms"], "-" if r["said"] is None else "%.3f" % r["said"], layer,
        "%.3f, %.3f" % (r["spent"][("cpu", "busy_seconds")], r["spent"][("cpu", "wait_seconds")]),
        "%.3f, %.3f" % (r["spent"][("gpu", "busy_seconds")], r["spent"][("gpu", "wait_seconds")]),
        "-" if r["hits"] is None else "%.1f %%" % (100 * r["hits"]), r["moved"]), flush=True)


def value_at(profile, key):
    for part in key.split("."):
        profile = profile.get(part, {}) if isinstance(profile, dict) else {}
    return profile.get("value") if isinstance(profile, dict) else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("--bin", required=True, action="append")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--work", default="/dev/shm/helm-mixed")
    parser.add_argument("--profile")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--vram", help="of all cases; default: what is free")
    parser.add_argument("--tokens", type=int, default=DECODE)
    parser.add_argument("--operations", action="store_true")
    parser.add_argument("--only", default=",".join(CASES))
    o = parser.parse_args()
    o.case = None
    builds = [os.path.abspath(b) for b in o.bin]
    os.makedirs(o.work, exist_ok=True)
    begin = time.monotonic()
    model = os.path.join(o.work, "30b-a3b-%d.gguf" % o.layers)
    if not os.path.exists(model):
        run([sys.executable, os.path.join(HERE, "make_gguf.py"), "--size", "30b-a3b", "--type", "Q4_K_M", "--layers", str(o.layers),
             "--out", model])
    print("model: %.0f s" % (time.monotonic() - begin), flush=True)
    if not o.profile:
        o.profile = os.path.join(o.work, "profile.json")
        run([builds[0] + "/helm-profile", "--force", "--quick", "--device", o.device, "--formats", "q4_k,q6_k", "--out", o.profile])
        print("profile: at %.0f s" % (time.monotonic() - begin), flush=True)
    with open(o.profile) as f:
        profile = json.load(f)
    print("\n".join("%s %s" % (key, value_at(profile, key)) for key in KEYS))
    for build in builds if o.operations else []:
        print("\n%s: the CPU's operations" % build)
        print(run([build + "/helm-bench-decode", "--model", model, "--rounds", "3", "--tokens", "32", "--prompt", "16", "--profile"]),
              flush=True)
    print("| build | case | ms a token | said | us a layer beyond VRAM's | CPU busy, waits, ms | GPU busy, waits, ms | found | moved |")
    print("| --- " * 9 + "|", flush=True)
    fine, vram = True, {}
    for case in o.only.split(","):
        for build in builds:
            try:
                r = measure(o, build, model, case)
                if case == "vram":
                    vram[build] = r["ms"]
                row(o, build, case, r, vram.get(build))
            except (RuntimeError, ValueError, KeyError, subprocess.TimeoutExpired) as e:
                fine = False
                print("| %s | %s | FAILED: %s |" % (build, case, str(e).replace("\n", " ")), flush=True)
    print("<!-- %.0f s -->" % (time.monotonic() - begin), flush=True)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
