#!/usr/bin/python3
"""helmd with a KV cache in two tiers: few places in VRAM, so pages are moved out, attended to in the arena, and fetched.

Fake workers keep their cells in pages and places as helmd says, so every way is checked token by token; real ones on the
demo model and the emulated device are held against the same plan with one tier."""
import os
import random
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from helmd_harness import (Client, check, expected_tokens, plan_json, run_tests, running, same, status_of,  # noqa: E402
                           wait_until, SLOW)
from random_streams import RandomStreams  # noqa: E402

LAYERS, PAGE, STEP, SLOTS = 4, 8, 32, 4
LEAST = (STEP - 1) // PAGE + 1 + 2 * SLOTS  # with less chunks append in the arena (plan_appends_in_arena)
FEW = (16 - 1) // PAGE + 1 + 2 * SLOTS  # plan_vram_pages_least
SHAPES = [("gggg", "g", "g"), ("gcgc", "c", "g"), ("ccgg", "g", "c")]


def tiers_plan(shape, places, direct, layers=LAYERS, **sizes):
    return plan_json(layers, *shape, **{"context_tokens": 256, "page_tokens": PAGE, "step_tokens": STEP, "slots": SLOTS,
                                        "page_count": SLOTS * 256 // PAGE, "vram_page_count": places,
                                        "kv_direct_permille": direct, **sizes})


def fakes(shape=SHAPES[1], places=LEAST, direct=0, *options, faults="", **sizes):
    return running("--device", "emulated", *options, gpu=True, layers=LAYERS, faults=faults,
                   plan=tiers_plan(shape, places, direct, **sizes))


def prompt_of(length, kind=0):
    return [2 + (i * i + 7 * kind + i * kind) % 90 for i in range(length)]


def check_tokens(s, prompt, count, seed=0):
    same(s.tokens, expected_tokens(prompt, count, seed=seed), f"tokens ({s.error or s.done})")


def nothing_is_held(d):
    check(wait_until(lambda: status_of(d).kv_pages_used == 0 and not status_of(d).running, 10), "pages in use at the end")
    same((status_of(d).kv_places_used, status_of(d).kv_pages_host), (0, 0), "places in use at the end")


def test_every_way_gives_the_expected_tokens():
    for shape in SHAPES:
        for direct, places in (0, LEAST), (1000, LEAST), (400, LEAST), (400, FEW):
            with fakes(shape, places, direct) as d:
                c = Client(d.endpoint)
                streams = [(c.generate(prompt_of(n * 40 + 5, n), 90, seed=n), n) for n in range(5)]
                c.run(*[s for s, _ in streams])
                for s, n in streams:
                    check_tokens(s, prompt_of(n * 40 + 5, n), 90, n)
                s = status_of(d)
                workers = ["gpu"] if set(shape) == {"gggg", "g"} and direct == 1000 else ["cpu", "gpu"]
                same([w.name for w in s.workers], workers, f"{shape} {direct}: workers")
                same(s.kv_places_total, places, "places")
                check(s.kv_pages_moved_out_total > 40 and s.kv_pages_fetched_total > 0, f"{shape} {direct}: {s}")
                nothing_is_held(d)


def test_a_context_far_beyond_the_places():
    """One sequence of 31 pages over few places; what is in VRAM stays at the watermark, of 80 %."""
    with fakes(places=LEAST, direct=500, faults="step_us=2000") as d:
        c = Client(d.endpoint)
        s = c.generate(prompt_of(100), 150, seed=4)
        seen = []
        while not s.ended:
            c.receive()
            if len(s.tokens) % 20 == 19:
                status = c.ask("status").status
                seen.append((status.kv_places_used, status.kv_pages_host))
        check_tokens(s, prompt_of(100), 150, 4)
        check(max(used for used, _ in seen) <= LEAST, f"{seen}")
        check(max(host for _, host in seen) >= 250 // PAGE - LEAST, f"{seen}")  # the last may be of when it had ended
        nothing_is_held(d)


def test_pages_come_back_when_there_is_room():
    with fakes(places=24, faults="step_us=500") as d:  # watermark 19
        c = Client(d.endpoint)
        old, young = [c.generate(prompt_of(60, n), 190, seed=n) for n in range(2)]
        check(wait_until(lambda: c.ask("status").status.kv_pages_host >= 4, 10), "nothing was moved out")
        c.ask("cancel", id=old.id)  # the younger one's pages were
        c.run(young)
        check_tokens(young, prompt_of(60, 1), 190, 1)
        check(status_of(d).kv_pages_fetched_total >= 4, f"{status_of(d)}")
        nothing_is_held(d)


def test_either_worker_killed_costs_a_page_of_each_sequence():
    """Whole pages are in the arena, so what is computed again is short: at most a page of each, and what one step had."""
    for who in "cpu", "gpu":
        with fakes(direct=300, faults="step_us=2000") as d:
            c = Client(d.endpoint)
            streams = [(c.generate(prompt_of(60 + 20 * n, n), 100, seed=n), n) for n in range(3)]
            killed = 0
            while not all(s.ended for s, _ in streams):
                c.receive(30)
                if killed < 2 and sum(len(s.tokens) for s, _ in streams) > 80 * (killed + 1):
                    pid = d.children().get(who)
                    if pid and status_of(d).state == "ready":
                        os.kill(pid, signal.SIGKILL)
                        killed += 1
            for s, n in streams:
                check_tokens(s, prompt_of(60 + 20 * n, n), 100, n)
            same(killed, 2, "killed")
            check(wait_until(lambda: all(w.restarts == 2 and w.state == "ready" for w in status_of(d).workers), 10), "restarts")
            nothing_is_held(d)


def test_a_worker_that_failed_by_itself_is_not_believed():
    for who in "cpu", "gpu":
        with fakes(faults=f"{who}.crash_step=25 crash_epoch=1") as d:
            c = Client(d.endpoint)
            s = c.generate(prompt_of(90), 100, seed=1)
            c.run(s)
            check_tokens(s, prompt_of(90), 100, 1)
            same({w.restarts for w in status_of(d).workers}, {1}, "restarts")
            nothing_is_held(d)


def test_prefixes_are_found_in_either_tier():
    """Answers that ended, that run, whose worker was killed: their pages are found in the arena, wherever else they are."""
    with fakes(direct=200, faults="step_us=1000") as d:
        c = Client(d.endpoint)
        prompt = prompt_of(120)

        def answer(extra, seed):
            s = c.generate(prompt + extra, 30, seed=seed)
            c.run(s)
            check_tokens(s, prompt + extra, 30, seed)
            return s.done.usage.cached_tokens
        same(answer([], 0), 0, "found the first time")
        same(answer([5], 1), 120, "found of one that ended")
        going = c.generate(prompt + [9], 100, seed=2)
        same(answer([6, 7], 3), 120, "found of one that runs")
        os.kill(d.children()["gpu"], signal.SIGKILL)
        check(wait_until(lambda: {w.restarts for w in status_of(d).workers} == {1}, 10), "restarts")
        same(answer([8], 4), 120, "found after a worker was killed")
        c.run(going)
        check_tokens(going, prompt + [9], 100, 2)
        nothing_is_held(d)


def test_pages_of_the_arena_run_short_too():
    """More sequences than there are pages for: the youngest waits, and its whole pages are found again."""
    with fakes(direct=600, page_count=48) as d:
        c = Client(d.endpoint)
        streams = [(c.generate(prompt_of(30 + n, n), 150, seed=n), n) for n in range(4)]
        c.run(*[s for s, _ in streams])
        for s, n in streams:
            check_tokens(s, prompt_of(30 + n, n), 150, n)
        check("gives its KV pages" in d.log(), "nothing was preempted: the test tests nothing")
        nothing_is_held(d)


def whatever_happens(places):
    draw = random.Random(5)
    with fakes(("gcgg", "c", "g"), places, 500, "--queue", 64, faults="step_us=200", page_count=64) as d:
        streams, c, end = RandomStreams(d, draw, prompt_of), Client(d.endpoint), time.time() + 2
        begins = lambda: time.time() < end or (streams.ended < 40 and time.time() < end + 60)  # a busy machine needs longer
        while begins() or streams.going:
            if begins() and len(streams.going) < 8:
                streams.begin(c)
            if draw.randrange(300) < 4:
                streams.cancel(c)
            if streams.killed < 3 and streams.ended >= 15 * (streams.killed + 1):
                streams.kill()
            streams.take_ended()  # the answer to a cancel may have come after the last stream's end
            if streams.going:
                c.receive(30)
                streams.take_ended()
        s = status_of(d)
        check(streams.ended > 30 and streams.killed and s.kv_pages_moved_out_total > 100 and s.kv_pages_fetched_total > 0 and
              s.prefix_hits_total > 10, f"{streams.ended} {streams.killed} {s}")
        nothing_is_held(d)


def test_whatever_happens():
    whatever_happens(LEAST + 3)


def test_whatever_happens_to_chunks_in_the_arena():
    whatever_happens(FEW + 1)


def greedy(c, prompt, count, **fields):
    return c.generate(prompt, count, logprobs=2, ignore_eos=True, **fields)


def agrees(got, want, what):
    """The same greedy tokens, but where the two best were near each other: from there on they are of other texts."""
    for g, w in zip(got, want):
        check(abs(g.top[0].logprob - w.top[0].logprob) < 0.4, f"{what}: {g} {w}")
        if g.token != w.token:
            check(w.top[0].logprob - w.top[1].logprob < 0.4, f"{what}: {g} instead of {w}")
            return w.index
    return len(want)


REAL = {"context_tokens": 512, "step_tokens": 64, "page_tokens": 16, "slots": 4, "page_count": 128}
REAL_LEAST = 63 // 16 + 1 + 2 * 4
REAL_FEW = 15 // 16 + 1 + 2 * 4
PROMPTS = [[3 + i * i % 400 for i in range(350)], [5 + i * 3 % 300 for i in range(40)], [7 + i % 50 for i in range(130)]]


def real(shape, **sizes):
    return running("--device", "emulated", real=True, plan=plan_json(8, *shape, **{**REAL, **sizes}))


def test_real_workers_agree_with_one_tier():
    count = 60 if SLOW == 1 else 12
    with real(("ggccgggg", "c", "g")) as d:
        c = Client(d.endpoint)
        want = [greedy(c, p, count) for p in PROMPTS]
        c.run(*want, timeout=120)
        same(status_of(d).kv_places_total, 0, "one tier")
    lists = {"prefill": "ssgsgggg", "prefill_from": 17}  # the CPU's caches are the GPU's to write in prompts
    for homes, places, direct, more in [("ggccgggg", REAL_LEAST, 0, {}), ("gcggcsggggccgcgs", REAL_LEAST + 4, 500, {}),
                                        ("gsggggsg", REAL_LEAST, 1000, {}), ("ccgcgggg", REAL_LEAST, 200, lists),
                                        ("ccgcgggg", REAL_FEW, 200, lists), ("gggggsgc", REAL_FEW + 2, 300, {})]:
        what = f"{homes}, {places} places, {direct} direct"
        with real((homes, "c", "g"), vram_page_count=places, kv_direct_permille=direct, ring_bytes=1 << 20, **more) as d:
            c = Client(d.endpoint)
            got = [greedy(c, p, count) for p in PROMPTS]
            c.run(*got, timeout=120)
            compared = [agrees(g.first, w.first, what) for g, w in zip(got, want)]
            s = status_of(d)
            # with few places pages of prompts have none that they could lose
            check(s.kv_pages_moved_out_total > (20 if places >= REAL_LEAST else 5), f"{what}: {s}")
            again = greedy(c, PROMPTS[0] + [11, 12], 8)
            c.run(again, timeout=60)
            same(again.done.usage.cached_tokens, 350 // 16 * 16, f"{what}: found")
            print(f"     {what}: {compared} of {count} tokens each, {s.kv_pages_moved_out_total} pages out, "
                  f"{s.kv_pages_fetched_total} back", flush=True)
            nothing_is_held(d)


def test_real_workers_that_are_killed_cost_no_token():
    count = 60 if SLOW == 1 else 12
    sizes = dict(vram_page_count=REAL_LEAST, kv_direct_permille=300)
    for homes, who in [("ggccgggg", "gpu"), ("gggggggg", "cpu")]:
        with real((homes, "g", "g")) as d:
            c = Client(d.endpoint)
            want = [greedy(c, p, count) for p in PROMPTS]
            c.run(*want, timeout=120)
        with real((homes, "g", "g"), **sizes) as d:
            c = Client(d.endpoint)
            got = [greedy(c, p, count) for p in PROMPTS]
            killed = False
            while not all(s.ended for s in got):
                c.receive(60)
                if not killed and min(len(s.tokens) for s in got) > count // 3:
                    os.kill(d.children()[who], signal.SIGKILL)
                    killed = True
            for n, (g, w) in enumerate(zip(got, want)):
                same(len(g.tokens), count, f"{g.error or g.done}")
                agrees(g.first, w.first, f"{homes}, {who} killed, stream {n}")
            check(wait_until(lambda: {(w.restarts, w.state) for w in status_of(d).workers} == {(1, "ready")}, 20), "restarts")
            nothing_is_held(d)


if __name__ == "__main__":
    run_tests(globals())
