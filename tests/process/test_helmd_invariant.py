#!/usr/bin/python3
"""The short form of `make invariance`: the same for seconds, and what `status`, plans and options say of it. The seed is
printed; HELM_SEED chooses it."""
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from helmd_harness import Client, Daemon, check, plan_json, run_tests, running, same, SLOW  # noqa: E402
from invariance import LAYERS, SIZES, invariance  # noqa: E402
import json  # noqa: E402

SEED = int(os.environ.get("HELM_SEED") or random.randrange(1 << 30))


def short(shape):
    counts = invariance(shape, 60 if SLOW == 1 else 12, 2, SEED, distinct=20 if SLOW == 1 else 6)
    check(counts["same"] > 0 and counts["kills"] >= 2, f"{counts}")


def test_streams_are_as_alone_on_the_cpu():
    short("cpu")


def test_streams_are_as_alone_on_a_pair():
    short("phases")


def test_streams_are_as_alone_with_two_tiers():
    short("tiers")


def says(d):
    plan = json.loads(Client(d.endpoint).ask("plan").plan.json)
    return Client(d.endpoint).ask("status").status.invariant, plan.get("invariant", False)


def test_status_and_plan_say_which():
    """By option, by price, and as a plan that was given says."""
    plan = plan_json(LAYERS, "gggggggg", "g", "g", **SIZES)
    for options, given, want, why in [(("--device", "cpu", "--invariant", "off"), None, False, "by configuration"),
                                      (("--device", "cpu", "--parallel", 1), None, True, "by price"),
                                      (("--device", "cpu"), None, False, "the profile does not say what several sequences take"),
                                      (("--device", "emulated"), plan, False, "as the plan says"),
                                      (("--device", "emulated", "--invariant", "on"), plan, True, "by configuration"),
                                      (("--device", "emulated"), {**plan, "invariant": True}, True, "as the plan says")]:
        with running(*options, real=True, plan=given) as d:
            text, planned = says(d)
            check(text.startswith("on" if want else "off") and why in text, f"{options}: {text}")
            same(planned, want, f"{options}: the plan's")


def test_what_cannot_be_is_refused():
    d = Daemon("--device", "cpu", "--invariant", "on", "--kernels", "openblas", real=True)
    check("openblas" in d.ready and "invariant" in d.ready, d.ready)
    same(d.process.wait(20), 4, "status")
    d.close()
    tiers = plan_json(LAYERS, "gggggggg", "g", "g", **{**SIZES, "vram_page_count": 20, "kv_direct_permille": 500, "invariant": True})
    d = Daemon("--device", "emulated", real=True, plan=tiers)
    check("kv_direct_permille" in d.ready, d.ready)
    d.close()


if __name__ == "__main__":
    run_tests(globals())
