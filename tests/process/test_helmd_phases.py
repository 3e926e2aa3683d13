#!/usr/bin/python3
"""helmd with two fake workers and plans of half layers in several lists: which worker has which part of a step depends
on how long the step is. Each fake worker checks its KV against the other's, also where the GPU keeps the CPU's cache
for it, so a list that the two chose differently, or KV that a step left out, ends a worker and is seen here."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from helmd_harness import Client, check, expected_tokens, plan_json, run_tests, running, same  # noqa: E402

LAYERS = 4
HOMES = {"c": "cpu", "g": "gpu", "s": "stream"}
# a letter a half layer, attention before MLP: decode, then lists for longer steps
PLANS = [
    ("ccgccsgg", []),
    ("ccccggss", [(17, "ssssggss")]),                    # the CPU has nothing to do in long steps: its cache is borrowed
    ("cscsgcgs", [(20, "cccsgsgs")]),                    # attention stays, MLPs move
    ("ccccgggg", [(17, "csssgggg"), (40, "ssssgggg")]),
    ("ssssssss", [(30, "ssssssss")]),                    # the CPU worker only loads
]


def stages(homes):
    return [{"layers": [u // 2, u // 2], "ops": "mlp" if u % 2 else "attention", "home": HOMES[h], "bytes": 0}
            for u, h in enumerate(homes)]


def plan_of(decode, prefill, embed, head):
    plan = plan_json(LAYERS, "c" * LAYERS, embed, head, ring_bytes=1 << 20)
    plan["stages"] = {"decode": stages(decode)}
    for name, (tokens, homes) in zip(["prefill_short", "prefill"] if len(prefill) == 2 else ["prefill"], prefill):
        plan["stages"][name] = stages(homes)
        plan[name + "_from_tokens"] = tokens
    return plan


def through(d, lengths, count=24):
    c = Client(d.endpoint)
    prompts = [[2 + (i + n) % 90 for i in range(length)] for n, length in enumerate(lengths)]
    streams = [c.generate(prompt, count, seed=n) for n, prompt in enumerate(prompts)]
    c.run(*streams)
    for n, s in enumerate(streams):
        same(s.tokens, expected_tokens(prompts[n], count, seed=n), f"stream {n} of {len(prompts[n])} tokens ({s.error})")
    return c.ask("status").status


def test_steps_of_every_length_agree():
    for decode, prefill in PLANS:
        for embed, head in ["cc", "cg", "gc", "gg"]:
            with running("--device", "emulated", gpu=True, layers=LAYERS,
                         plan=plan_of(decode, prefill, embed, head)) as d:
                for lengths in [[3], [18], [25], [64], [200], [5, 90, 17, 33]]:
                    status = through(d, lengths)
                same([(w.name, w.restarts) for w in status.workers], [("cpu", 0), ("gpu", 0)], f"{decode} {embed}{head}")


def test_a_worker_killed_in_any_list_costs_no_token():
    for worker in ["cpu", "gpu"]:
        for step in [1, 2, 9, 20]:
            with running("--device", "emulated", gpu=True, layers=LAYERS, plan=plan_of(*PLANS[3], "c", "g"),
                         faults=f"{worker}.crash_step={step} crash_epoch=1") as d:
                status = through(d, [100, 30, 4])
                check(sum(w.restarts for w in status.workers) >= 1, "no worker died: the test tests nothing")


if __name__ == "__main__":
    run_tests(globals())
