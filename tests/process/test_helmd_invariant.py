#!/usr/bin/python3
"""The short form of `make invariance`: the same for seconds, and what `status`, plans and options say of it. The seed is
printed; HELM_SEED chooses it."""
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import processor  # noqa: E402
from helmd_harness import Client, Daemon, check, pb, plan_json, run_tests, running, same, wait_until, SLOW  # noqa: E402
from test_helmd_sessions import restore, save  # noqa: E402
from invariance import LAYERS, SIZES, invariance, numbers_of  # noqa: E402
import json  # noqa: E402

SEED = int(os.environ.get("HELM_SEED") or random.randrange(1 << 30))


def short(shape):
    counts = invariance(shape, 60 if SLOW == 1 else 12, 2, SEED, distinct=20 if SLOW == 1 else 6)
    check(counts["same"] > 0 and counts["kills"] >= 2, f"{counts}")


def test_streams_are_as_alone_on_the_cpu():
    short("cpu")


def test_streams_are_as_alone_on_a_pair():
    short("phases")


def test_streams_are_as_alone_where_mlps_are_shared():
    short("shared")


def test_streams_are_as_alone_on_two_devices():
    short("two")


def test_streams_are_as_alone_with_two_tiers():
    short("tiers")


def test_a_chats_next_turn_finds_the_answer():
    """Once the daemon had a moment's time; its tokens are those of the same prompt on a daemon that knows nothing."""
    options = ("--device", "cpu", "--ctx", 512, "--invariant", "on")
    prompt, turns = [5 + i * 7 % 900 for i in range(40)], []
    with running(*options, real=True) as d:
        c = Client(d.endpoint)
        for _ in range(3):
            s = c.generate(prompt, 70, seed=3, sampling={"temperature": 0.8}, ignore_eos=True, logprobs=1)
            c.run(s)
            turns.append((list(prompt), numbers_of(s), s.done.usage.cached_tokens))
            prompt += s.tokens + [9, 11, 13]
            pages = (len(prompt) - 3) // 32
            check(wait_until(lambda: c.ask("status").status.kv_pages_cached >= pages, 10), f"{pages} pages: {d.log()[-2000:]}")
            same(len(c.ask("list").list.entries), 0, "open requests")
    same([cached for _, _, cached in turns], [0, 96, 160], "tokens found")
    with running(*options, "--prefix-cache", "off", real=True) as d:
        c = Client(d.endpoint)
        for prompt, numbers, _ in turns:
            s = c.generate(prompt, 70, seed=3, sampling={"temperature": 0.8}, ignore_eos=True, logprobs=1)
            c.run(s)
            same(numbers_of(s), numbers, f"what follows {len(prompt)} tokens")


def test_sessions_come_back_where_their_bits_do():
    """To a daemon of the same plan and kernels, which then answers as one that computed all; to no other."""
    options = ("--device", "cpu", "--ctx", 512)
    prompt = [5 + i * 7 % 900 for i in range(100)]

    def answer(c):
        s = c.generate(prompt + [9, 11], 30, seed=3, sampling={"temperature": 0.8}, ignore_eos=True, logprobs=1)
        c.run(s)
        return numbers_of(s), s.done.usage.cached_tokens

    with running(*options, "--invariant", "on", real=True) as d:
        c = Client(d.endpoint)
        alone, _ = answer(c)
        opened, pages = save(c, prompt)
        same((opened.pages, opened.shape.origin != 0), (3, True), "saved")
    with running(*options, "--invariant", "on", "--kv-tokens", 1024, "--parallel", 3, real=True) as d:
        c = Client(d.endpoint)
        same(restore(c, prompt[:96], opened, pages), (0, 3, False), "first, pages and full")
        same(answer(c), (alone, 96), "what follows the restored pages")
    with running(*options, "--invariant", "on", "--kernels", "ref", real=True) as d:
        text = restore(Client(d.endpoint), prompt[:96], opened, pages)
        check("of another plan, or of other kernels" in text, text)
        shape = pb.SessionShape()
        shape.CopyFrom(opened.shape)
        shape.origin = 0
        text = restore(Client(d.endpoint), prompt[:96], opened, pages, shape)
        check("of a plan that is not" in text, text)
    with running(*options, "--invariant", "off", real=True) as d:
        same(restore(Client(d.endpoint), prompt[:96], opened, pages), (0, 3, False), "where nothing is promised")


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
    same(processor.ended(d.process, 20), 4, "status")
    d.close()
    tiers = plan_json(LAYERS, "gggggggg", "g", "g", **{**SIZES, "vram_page_count": 20, "kv_direct_permille": 500, "invariant": True})
    d = Daemon("--device", "emulated", real=True, plan=tiers)
    check("kv_direct_permille" in d.ready, d.ready)
    d.close()


if __name__ == "__main__":
    run_tests(globals())
