#!/usr/bin/python3
"""The prefix cache through real processes: what is found, by which clients, and what happens when pages run out,
workers die or one of those that share ends. The fake workers' KV cells are token ids, and their tokens a hash of all
cells that are read back, so a page that was shared wrongly, or written while another sequence reads it, changes the
tokens."""
import os
import random
import signal
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from helmd_harness import (Client, check, expected_tokens, pb, plan_json, run_tests, running, same, status_of,  # noqa: E402
                           wait_until, zmq)
from random_streams import RandomStreams  # noqa: E402

PAGE = 32
SPLIT = plan_json(6, "cgcgcg", "c", "g")


def prompt_of(count, kind=0):
    return [2 + (i * 7 + i // 30 + kind * 11) % 90 for i in range(count)]


def generate(c, prompt, count=10, seed=1):
    """Runs one request, whose tokens must be right. How many of its prompt's tokens were found."""
    s = c.generate(prompt, count, seed=seed)
    c.run(s)
    check_tokens(s, prompt, count, seed)
    return s.done.usage.cached_tokens


def check_tokens(s, prompt, count, seed=1):
    same(s.tokens, expected_tokens(prompt, count, seed=seed), f"tokens of {len(prompt)} + {count} ({s.error or s.done})")


def split(*options, faults="", **sizes):
    return running("--device", "emulated", *options, gpu=True, layers=6, faults=faults, plan={**SPLIT, **sizes})


def test_a_prompt_begins_behind_what_is_there():
    for kind, start in [("cpu", lambda: running()), ("split", split)]:
        with start() as d:
            c, other = Client(d.endpoint), Client(d.endpoint)
            prompt = prompt_of(200)
            same(generate(c, prompt), 0, f"{kind}: found the first time")
            same(generate(c, prompt), 192, f"{kind}: found by the same client")
            same(generate(other, prompt, seed=2), 192, f"{kind}: found by another one")
            same(generate(c, prompt[:192]), 160, f"{kind}: the last token is computed, with its page")
            same(generate(c, prompt[:100] + prompt_of(60, 1)), 96, f"{kind}: found of a prompt that parts from it")
            same(generate(c, prompt_of(31)), 0, f"{kind}: found of less than a page")
            s = status_of(d)
            same((s.prefix_cache, s.kv_pages_used, s.prefix_hits_total, s.tokens_cached_total),
                 ("on", 0, 4, 192 + 192 + 160 + 96), f"{kind}: status")
            check(s.kv_pages_cached >= 8 and s.prefix_evictions_total == 0, f"{kind}: {s}")


def test_pages_have_the_size_that_is_asked_for():
    with running("--kv-page-tokens", 128) as d:
        c = Client(d.endpoint)
        prompt = prompt_of(200)
        same([generate(c, prompt), generate(c, prompt), generate(c, prompt[:128])], [0, 128, 0], "found")
        check("pages: 128 tokens, as asked: " in d.log(), d.log())
    with running("--kv-page-tokens", "auto") as d:
        size = int(d.log().split("pages: ")[1].split(" ")[0])
        c = Client(d.endpoint)
        generate(c, prompt)
        same(generate(c, prompt), 199 // size * size, f"found in pages of {size}")


def test_an_answer_is_found_by_the_next_turn():
    # of the turn before: its prompt and all of its answer but the last token, which was never computed; of an invariant plan
    # all, once the answer was computed again as a prompt's part
    for invariant, want in [("off", [(40 + 39 * n - 9 - 1) // PAGE * PAGE for n in range(1, 6)]),
                            ("on", [(40 + 39 * n - 9) // PAGE * PAGE for n in range(1, 6)])]:
        with running("--invariant", invariant) as d:
            c = Client(d.endpoint)
            history, found = prompt_of(40), []
            for turn in range(6):
                found.append(generate(c, history, 30, seed=7))
                history = history + expected_tokens(history, 30, seed=7) + prompt_of(9, turn)
                pages = (len(history) - 9) // PAGE
                check(invariant == "off" or wait_until(lambda: status_of(d).kv_pages_cached >= pages, 10), f"{pages} pages known")
            same(found, [0] + want, f"found in each turn, invariant {invariant}")


def test_off_and_peers():
    with running("--prefix-cache", "off") as d:
        c = Client(d.endpoint)
        same([generate(c, prompt_of(100)) for _ in range(2)], [0, 0], "found without a cache")
        s = status_of(d)
        same((s.prefix_cache, s.kv_pages_cached), ("off", 0), "status")
    with running("--prefix-cache", "peer") as d:  # both connections are this user's
        same([generate(Client(d.endpoint), prompt_of(100)) for _ in range(2)], [0, 96], "found by the same user")
        same(status_of(d).prefix_cache, "peer", "status")
    server, (one, two) = zmq.curve_keypair(), [zmq.curve_keypair() for _ in range(2)]
    with tempfile.TemporaryDirectory() as base:
        for name, text in [("server", server[1]), ("clients", one[0] + b"\n" + two[0])]:
            with open(os.path.join(base, name), "wb", opener=lambda p, f: os.open(p, f, 0o600)) as f:
                f.write(text)
        endpoint = f"tcp://127.0.0.1:{random.randrange(20000, 32000)}"
        with running("--prefix-cache", "peer", "--listen", endpoint, "--curve-secret-key-file",
                     os.path.join(base, "server"), "--curve-clients-file", os.path.join(base, "clients")):

            def found(pair):
                c = Client.__new__(Client)
                c.socket, c.next, c.streams = Client.context.socket(zmq.DEALER), 1, {}
                c.socket.linger = 0
                c.socket.curve_serverkey, c.socket.curve_publickey, c.socket.curve_secretkey = server[0], *pair
                c.socket.connect(endpoint)
                return generate(c, prompt_of(100))
            same([found(pair) for pair in (one, two, one, two)], [0, 0, 96, 96], "found by each key")


def test_what_two_prompts_have_in_common_is_computed_once():
    """Ten at once, whose first 400 tokens are the same: one computes them, the others go on from there."""
    for start in [lambda: running("--parallel", 10, "--step-tokens", 64, faults="token_us=50"),
                  lambda: split("--parallel", 10, faults="token_us=50", slots=10)]:
        with start() as d:
            c = Client(d.endpoint)
            prompts = [prompt_of(400) + prompt_of(20, n) for n in range(10)]
            streams = [c.generate(p, 12, seed=1) for p in prompts]
            c.run(*streams)
            for s, p in zip(streams, prompts):
                check_tokens(s, p, 12)
            same(sorted(s.done.usage.cached_tokens for s in streams), [0] + [384] * 9, "found by each")
            same(status_of(d).kv_pages_used, 0, "pages in use at the end")


def test_steps_that_end_within_a_page_are_shared_too():
    """One stream decodes, so the others' chunks are of 44 tokens: none of two that come together stands where a page
    ends, and they take turns. Together they compute what one of them would, and little more."""
    with running("--step-tokens", 45, "--parallel", 4, faults="token_us=20") as d:
        one, two, other = [Client(d.endpoint) for _ in range(3)]
        busy = other.generate([3], 300)
        other.receive()
        prompt = prompt_of(400)
        streams = [c.generate(prompt, 4, seed=1) for c in (one, two)]
        for c, s in zip((one, two), streams):
            c.run(s)
            check_tokens(s, prompt, 4)
        other.run(busy)
        check_tokens(busy, [3], 300, 0)
        computed = 800 - sum(s.done.usage.cached_tokens for s in streams)
        check(computed < 400 + 2 * PAGE, f"computed {computed} tokens of twice 400")


def test_a_small_pool_makes_room():
    """Kept pages hold up no request: as many requests at once as without them, none refused, and those that fit are
    found."""
    for start in [lambda: running("--parallel", 4, "--ctx", 256, "--kv-tokens", 512, "--invariant", "off"),
                  lambda: split(context_tokens=256, page_count=16, slots=4)]:
        with start() as d:
            c = Client(d.endpoint)
            for turn in range(12):
                prompts = [prompt_of(60 + 9 * n, kind) for n, kind in enumerate([0, turn, turn + 1])]
                streams = [c.generate(p, 80, seed=1) for p in prompts]
                c.run(*streams)
                for s, p in zip(streams, prompts):
                    check_tokens(s, p, 80)
            s = status_of(d)
            check(s.prefix_evictions_total > 50 and s.tokens_cached_total > 100, f"{s}")
            same((s.kv_pages_used, s.kv_pages_total), (0, 16), "pages")
            same(generate(c, prompt_of(200, 50), 56), 0, "found of what nobody sent")  # a whole context


def test_who_shares_may_end():
    with split(faults="step_us=2000") as d:
        c = Client(d.endpoint)
        prompt = prompt_of(200)
        streams = [c.generate(prompt, 100, seed=n) for n in range(4)]
        while min(len(s.tokens) for s in streams) < 3:
            c.receive()
        c.ask("cancel", id=streams[0].id)
        gone = Client(d.endpoint)
        gone.generate(prompt, 100)
        while status_of(d).running < 4:
            pass
        gone.close()
        late = c.generate(prompt + prompt_of(70, 2), 40, seed=9)
        c.run(late, *streams)
        for n, s in enumerate(streams[1:], 1):
            check_tokens(s, prompt, 100, n)
        check_tokens(late, prompt + prompt_of(70, 2), 40, 9)
        same(streams[0].done.finish_reason, pb.FINISH_CANCELLED, "the one that was cancelled")
        check(wait_until(lambda: status_of(d).kv_pages_used == 0, 5), "pages in use at the end")


def test_pages_that_died_are_not_found():
    """A worker killed under sequences that share pages. Pages in VRAM are lost, so all of them are computed again, by each for
    itself or once for all; pages in the arena stay, unless a worker failed by itself."""
    for who, faults, kept in [("cpu", "", False), ("gpu", "", False), ("alone", "", True),
                              ("alone", "crash_step=25 crash_epoch=1", False)]:
        start = split if who != "alone" else lambda faults: running(faults=faults)
        with start(faults="step_us=4000 " + faults) as d:
            c = Client(d.endpoint)
            prompt = prompt_of(100)
            same(generate(c, prompt, 2), 0, "found the first time")
            streams = [c.generate(prompt, 60, seed=n) for n in range(4)]
            while min(len(s.tokens) for s in streams) < 3:
                c.receive()
            if not faults:
                os.kill(d.children()["worker" if who == "alone" else who], signal.SIGKILL)
            c.run(*streams)
            for n, s in enumerate(streams):
                check_tokens(s, prompt, 60, n)
                same(s.done.usage.cached_tokens, 96, f"{who}: found by stream {n}")
            check(wait_until(lambda: all(w.restarts == 1 and w.state == "ready" for w in status_of(d).workers), 10), "restarts")
            same(generate(c, prompt, 10, seed=5), 96, f"{who}: found after all that")
            same(status_of(d).kv_pages_used, 0, "pages in use at the end")
        with start(faults=faults.replace("25", "6")) as d:  # no request runs when it dies, or when its successor comes
            c = Client(d.endpoint)
            generate(c, prompt, 2)
            if not faults:
                os.kill(d.children()["worker" if who == "alone" else who], signal.SIGKILL)
                check(wait_until(lambda: all(w.restarts == 1 for w in status_of(d).workers), 10), "restarts")
            else:
                generate(c, prompt_of(50, 9), 8)  # the sixth step is in here
            same(generate(c, prompt), 96 if kept else 0, f"{who} {faults}: found of what was there")


def test_whatever_happens():
    """Prompts that are others' beginnings and answers, few pages, cancelled requests, clients that go, workers that are killed:
    a stream that is not cancelled gets its own tokens, and at the end nothing is held."""
    draw = random.Random(3)
    with split("--queue", 64, faults="step_us=300", context_tokens=256, page_count=24, slots=6, step_tokens=64) as d:
        streams, left = RandomStreams(d, draw, prompt_of), 200
        c, other = Client(d.endpoint), Client(d.endpoint)
        while left or streams.going:
            if left and len(streams.going) < 12:
                streams.begin(c)
                left -= 1
            what = draw.randrange(400)
            if what < 6:
                streams.cancel(c)
            elif what < 8:
                other.generate(draw.choice(streams.known), 30)
                other.socket.send(b"nothing")
                other.close()
                other = Client(d.endpoint)
            elif streams.killed < 2 and streams.ended >= 20 * (streams.killed + 1):
                streams.kill()
            streams.take_ended()  # the answer to a cancel may have come after the last stream's end
            if streams.going:
                c.receive()
                streams.take_ended()
        check(wait_until(lambda: status_of(d).kv_pages_used == 0 and not status_of(d).running, 10), "pages in use at the end")
        s = status_of(d)
        check(streams.ended > 30 and streams.killed and s.prefix_evictions_total > 20 and s.prefix_hits_total > 15,
              f"{streams.ended} {streams.killed} {s}")


def test_a_real_model_says_the_same():
    """Greedy tokens and their logprobs after found pages and without any. Chunks end elsewhere, which changes nothing with
    kernels that sum in one order. Found pages of an answer were computed a token at a time, and may round differently."""
    sizes = ["--ctx", 512, "--parallel", 4, "--step-tokens", 64]
    plan = {"context_tokens": 512, "slots": 4}
    borrowed = plan_json(8, "ccccgggg", "c", "g", prefill="sscsgggg", prefill_from=17, ring_bytes=8 << 20, **plan)
    for what, options, named, length, count, exact in [
            ("ref", ["--device", "cpu", "--kernels", "ref", *sizes], {}, 45, 8, True),
            ("cpu", ["--device", "cpu", "--invariant", "off", *sizes], {}, 150, 40, False),
            ("split", ["--device", "emulated"], {"plan": plan_json(8, "ccggccgg", "c", "g", **plan)}, 150, 40, False),
            ("borrowed", ["--device", "emulated"], {"plan": borrowed}, 150, 40, False)]:
        with running(*options, real=True, **named) as d:
            c = Client(d.endpoint)
            prompt = [3 + i * i % 400 for i in range(length)]
            cold, warm = [run_greedy(c, prompt, count) for _ in range(2)]
            again = run_greedy(c, prompt + cold.tokens[:count // 2], count)  # the next turn
            found = [0, length // PAGE * PAGE, (length + count // 2) // PAGE * PAGE]
            same([s.done.usage.cached_tokens for s in (cold, warm, again)], found, f"{what}: found")
            for got, want, bits in [(warm.first, cold.first, exact), (again.first, cold.first[count // 2:], False)]:
                for g, w in zip(got, want):
                    if bits:
                        same((g.token, g.logprob), (w.token, w.logprob), f"{what}: token {w.index}")
                    check(abs(g.top[0].logprob - w.top[0].logprob) < 0.2, f"{what}: {g} {w}")
                    if g.token != w.token:
                        check(w.top[0].logprob - w.top[1].logprob < 0.4, f"{what}: {g} instead of {w}")
                        break


def run_greedy(c, prompt, count):
    s = c.generate(prompt, count, logprobs=2, ignore_eos=True)
    c.run(s, timeout=120)
    same(len(s.tokens), count, f"{s.error or s.done}")
    return s


if __name__ == "__main__":
    run_tests(globals())
