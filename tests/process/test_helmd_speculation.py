#!/usr/bin/python3
"""Speculation (docs/speculation.md) through real processes: every answer has the tokens that it has without drafts. A prediction is a draft
of which the test knows how good it is: the answer itself, wrong at a place that the test chooses, so every number of right drafts comes
up. Fake workers show what helmd does with pages, tiers, deaths and ends of answers; real ones compute dense models, models with windows
and hybrids, on the CPU, on the emulated device and on both."""
import json
import os
import random
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gateway_harness  # noqa: E402
from helmd_harness import (DATA, SLOW, VOCAB, Client, Daemon, check, expected_tokens, pb, plan_json, run_tests, running,  # noqa: E402
                           same, status_of, wait_until)

OFF, NGRAM, AUTO = pb.SPECULATE_OFF, pb.SPECULATE_NGRAM, pb.SPECULATE_AUTO
DRAFTS = ("--draft-tokens", 5)


def wrong_at(tokens, *places, vocab=VOCAB):
    """The tokens with others in these places."""
    return [2 + (t + 1) % (vocab - 2) if i in places else t for i, t in enumerate(tokens)]


def used(stream):
    return stream.done.usage.drafted_tokens, stream.done.usage.accepted_tokens


# ---- fake workers: each token follows from all before it ----

# One worker; two, of which each has a part; a cache in two tiers; pages in VRAM alone.
PLANS = {"cpu": None, "both": plan_json(2, "gc", "c", "g"), "tiers": plan_json(2, "gg", "g", "g", vram_page_count=24, page_count=64),
         "vram": plan_json(2, "gg", "g", "g")}


def start(kind, *options, **named):
    if kind == "cpu":
        return running(*DRAFTS, *options, **named)
    return running("--device", "emulated", *DRAFTS, *options, gpu=True, plan=PLANS[kind], **named)


def test_a_draft_may_be_wrong_at_every_place():
    prompt, count = [5, 6, 7, 8, 9] * 6, 40
    want = expected_tokens(prompt, count)
    for kind in PLANS:
        with start(kind) as d:
            c = Client(d.endpoint)
            for place in range(count):
                s = c.generate(prompt, count, prediction=wrong_at(want, place), ignore_eos=True)
                c.run(s)
                same(s.tokens, want, f"{kind}: wrong at {place}: {s.error}")
                same(len(s.tokens), s.done.usage.completion_tokens, "tokens that usage counts")
            s = c.generate(prompt, count, prediction=want, ignore_eos=True)
            c.run(s)
            same((s.tokens, used(s)[0] == used(s)[1] >= 30), (want, True), f"{kind}: nothing wrong, {used(s)}")
            st = status_of(d)
            check(30 * count < st.tokens_accepted_total < st.tokens_drafted_total, f"{st.tokens_accepted_total} of {st.tokens_drafted_total}")
            same((st.speculate, st.draft_tokens), ("off", 5), "status")


def test_several_sequences_have_drafts_of_their_own():
    """More of them than drafts have room for, one without drafts; each with another seed."""
    rng, count = random.Random(3), 60
    with start("both", "--parallel", 6) as d:
        c, streams, wants = Client(d.endpoint), [], []
        for n in range(12):
            prompt = [3 + n, 4, 5] * (1 + n % 5)
            want = expected_tokens(prompt, count, seed=n)
            fields = {"speculate": OFF} if n % 4 == 3 else {}
            text = wrong_at(want, *rng.sample(range(count), n % 3))
            streams.append(c.generate(prompt, count, seed=n, prediction=text, ignore_eos=True, **fields))
            wants.append(want)
        c.run(*streams)
        for n, s in enumerate(streams):
            same(s.tokens, wants[n], f"stream {n}: {s.error}")
            same(used(s)[0] > 0, n % 4 != 3, f"stream {n}: whether it had drafts")


def test_answers_end_where_they_end_without_drafts():
    prompt, count = [9, 8, 7] * 4, 30
    want = expected_tokens(prompt, count)
    with start("cpu") as d:
        c = Client(d.endpoint)
        for place in range(2, 12):
            if want.index(want[place]) < place:
                continue
            s = c.generate(prompt, count, prediction=want, stop=[want[place]], ignore_eos=True)
            c.run(s)
            same((s.tokens, s.done.finish_reason), (want[:place + 1], pb.FINISH_STOP), f"stopped by its token {place}")
        for most in (1, 2, 3, 7):
            s = c.generate(prompt, most, prediction=want, ignore_eos=True)
            c.run(s)
            same((s.tokens, s.done.finish_reason), (want[:most], pb.FINISH_LENGTH), f"of {most} tokens")
    with start("cpu", faults="eos_at=9") as d:
        c = Client(d.endpoint)
        s = c.generate(prompt, count, prediction=expected_tokens(prompt, 8) + [1, 5, 6, 7])
        c.run(s)
        same((s.tokens, s.done.finish_reason), (expected_tokens(prompt, count, eos_at=9), pb.FINISH_EOS), "the model's end")


def test_pages_of_wrong_drafts_are_found_by_nobody():
    """An answer's pages are those of its tokens: the next turn finds them, and goes on with the right ones."""
    prompt, count = [5, 6, 7, 8] * 15, 70
    want = expected_tokens(prompt, count)
    for kind in ("cpu", "tiers"):
        for place in (2, 3, 34, 35, 36):  # around the end of a page, at 64 and 96 tokens
            with start(kind) as d:
                c = Client(d.endpoint)
                first = c.generate(prompt, count, prediction=wrong_at(want, place, place + 6), ignore_eos=True)
                c.run(first)
                same(first.tokens, want, "the first turn")
                turn = prompt + want + [11, 12]
                second = c.generate(turn, 20, ignore_eos=True)
                other = c.generate(prompt + wrong_at(want, place) + [11], 20, ignore_eos=True)
                c.run(second, other)
                same(second.tokens, expected_tokens(turn, 20), f"{kind}, wrong at {place}: the next turn")
                same(other.tokens, expected_tokens(prompt + wrong_at(want, place) + [11], 20), "a turn with the wrong tokens")
                check(second.done.usage.cached_tokens >= 96, f"{second.done.usage.cached_tokens} tokens found")


def test_a_workers_death_in_a_step_with_drafts_costs_no_token():
    count = 90
    for kind in PLANS:
        with start(kind, faults="step_us=1500") as d:
            c, streams, wants, killed = Client(d.endpoint), [], [], []
            for n in range(3):
                prompt = [5 + n, 6, 7] * (n + 1)
                wants.append(expected_tokens(prompt, count, seed=n))
                streams.append(c.generate(prompt, count, seed=n, ignore_eos=True, prediction=wrong_at(wants[n], *range(7 + n, count, 11))))
            while not all(s.ended for s in streams):
                c.receive(30)
                worker = d.children().get("worker") if sum(len(s.tokens) for s in streams) > 60 * (len(killed) + 1) else None
                if worker and worker not in killed and len(killed) < 3:
                    os.kill(worker, signal.SIGKILL)
                    killed.append(worker)
            for n, s in enumerate(streams):
                same(s.tokens, wants[n], f"{kind}: stream {n}: {s.error}")
            check(len(killed) >= 2, f"{kind}: only {len(killed)} killed")
    with start("both", faults="crash_step=9 crash_epoch=1") as d:
        c, prompt = Client(d.endpoint), [4, 5, 6]
        want = expected_tokens(prompt, 60)
        s = c.generate(prompt, 60, prediction=want, ignore_eos=True)
        c.run(s)
        same(s.tokens, want, f"a worker that aborts in a step with drafts: {s.error}")


def test_preempted_sequences_keep_their_tokens():
    """Three answers need 18 pages of 10. They take turns unless the first is over before the second has come: then once more."""
    wants = [expected_tokens([6 + n, 7] * 20, 150, seed=n) for n in range(3)]
    with start("cpu", "--ctx", 256, "--kv-tokens", 320, "--parallel", 3, faults="step_us=1000") as d:
        c, rounds = Client(d.endpoint), 0
        while status_of(d).preemptions_total == 0:
            rounds += 1
            check(rounds < 30, "nothing was preempted")
            streams = [c.generate([6 + n, 7] * 20, 150, seed=n, ignore_eos=True,
                                  prediction=wrong_at(wants[n], *range(9, 150, 13))) for n in range(3)]
            c.run(*streams)
            for n, s in enumerate(streams):
                same(s.tokens, wants[n], f"stream {n}: {s.error}")


def test_numbers_of_drafts_follow_acceptance():
    """Steps take as long with drafts as without, so right ones are many. Wrong ones are given up; right ones that come late are found."""
    prompt, count = [5, 6, 7, 8, 9] * 6, 300
    want = expected_tokens(prompt, count)
    late = wrong_at(want, *range(count // 2))
    for kind in PLANS:
        with start(kind, "--speculate", "auto", faults="step_us=1000") as d:
            c = Client(d.endpoint)
            for title, text, least, most in (("right", want, 200, count), ("wrong", wrong_at(want, *range(count)), 0, 0),
                                             ("right late", late, 80, count // 2)):
                s = c.generate(prompt, count, prediction=text, ignore_eos=True)
                c.run(s)
                same(s.tokens, want, f"{kind}, {title}: {s.error}")
                drafted, right = used(s)
                check(least <= right <= most, f"{kind}, {title}: {right} of {drafted} drafts were right")
                check(drafted <= right + 60, f"{kind}, {title}: {drafted - right} wrong drafts")
                same(s.done.usage.draft_gain > 0, drafted > 0, f"{kind}, {title}: gain {s.done.usage.draft_gain}")
            streams, wants = [], []
            for n in range(6):
                wants.append(expected_tokens(prompt[n:], 100, seed=n))
                streams.append(c.generate(prompt[n:], 100, seed=n, prediction=wrong_at(wants[n], *range(9, 100, 3 + 5 * n)), ignore_eos=True,
                                          speculate=(pb.SPECULATE_DEFAULT, NGRAM, AUTO, OFF)[n % 4]))
            c.run(*streams)
            for n, s in enumerate(streams):
                same(s.tokens, wants[n], f"{kind}, stream {n}: {s.error}")
            st = status_of(d)
            same((st.speculate, st.seconds_with_drafts > 0, st.seconds_without_drafts > 0), ("auto", True, True), "status")


def test_long_texts_take_turns():
    """Six predictions of 16,384 tokens are more than are searched while a step is computed. Each sequence has drafts all the same."""
    count = 120
    with start("cpu", "--speculate", "auto", "--parallel", 6, faults="step_us=1000") as d:
        c, streams, wants = Client(d.endpoint), [], []
        for n in range(6):
            wants.append(expected_tokens([5 + n, 6], count, seed=n))
            text = wrong_at(wants[n], *range(20)) + [2] * (16384 - count)
            streams.append(c.generate([5 + n, 6], count, seed=n, prediction=text, ignore_eos=True))
        c.run(*streams)
        for n, s in enumerate(streams):
            same(s.tokens, wants[n], f"stream {n}: {s.error}")
            check(used(s)[1] > 0, f"stream {n}: {used(s)} drafts")


def test_steps_that_take_as_long_as_their_tokens_do():
    """Drafts do not pay where each token takes as long as the one before, but for probes; right and wrong ones change no token."""
    prompt, count = [5, 6, 7, 8, 9] * 6, 200
    want = expected_tokens(prompt, count)
    with start("cpu", "--speculate", "auto", faults="token_us=1000") as d:
        c = Client(d.endpoint)
        for text in (want, wrong_at(want, *range(0, count, 3)), wrong_at(want, *range(count))):
            s = c.generate(prompt, count, prediction=text, ignore_eos=True)
            c.run(s)
            same(s.tokens, want, f"{s.error}")


def test_what_cannot_be_is_refused_with_the_reason():
    with running() as d:
        c = Client(d.endpoint)
        for how, name in ((NGRAM, "ngram"), (AUTO, "auto")):
            s = c.generate([5], 4, speculate=how)
            c.run(s)
            check("--draft-tokens" in s.error.message and name in s.error.message, s.error)
        s = c.generate([5], 4, prediction=expected_tokens([5], 4), ignore_eos=True)
        c.run(s)
        same((s.tokens, used(s)), (expected_tokens([5], 4), (0, 0)), "a prediction where there are no drafts")
    with start("cpu") as d:
        c = Client(d.endpoint)
        for fields, words in (({"speculate": 9}, "speculate is 9"), ({"prediction": [VOCAB]}, f"prediction[0] is token {VOCAB}"),
                              ({"prediction": [5] * 16385}, "prediction has 16385 tokens, at most 16384")):
            s = c.generate([5], 4, **fields)
            c.run(s)
            check(words in s.error.message, s.error)


# ---- real workers ----

GOLDEN = os.path.join(DATA, "golden")
EXACT = ("--kv-dtype", "f32", "--threads", 2, "--activations", "exact", "--kernels", "avx2", "--ctx", 512)
SIZES = {"kv_dtype": "f32", "context_tokens": 512, "ring_bytes": 1 << 20}


def layers_of(name):
    with open(os.path.join(GOLDEN, name, "config.json")) as f:
        config = json.load(f)
    return config.get("text_config", config)["num_hidden_layers"]


def cases_of(name):
    with open(os.path.join(GOLDEN, name, "golden.json")) as f:
        return json.load(f)["cases"]


def homes_of(kind, layers):
    return {"gpu": "g" * layers, "tiers": "g" * layers, "stream": "s" * layers, "split": "gc" * (layers // 2) + "g" * (layers % 2)}[kind]


def start_real(name, kind, *options, invariant="on"):
    options = (*EXACT, *DRAFTS, "--invariant", invariant, *options)
    folder = os.path.join(GOLDEN, name)
    if kind == "cpu":
        return running("--device", "cpu", *options, real=True, model=folder)
    more = {"vram_page_count": 8, "page_count": 64, "slots": 3} if kind == "tiers" else {}
    plan = plan_json(layers_of(name), homes_of(kind, layers_of(name)), "g", "g", **SIZES, **more)
    return running("--device", "emulated", *options, real=True, model=folder, plan=plan)


def answer(c, prompt, count, **fields):
    s = c.generate(prompt, count, seed=7, ignore_eos=True, **fields)
    c.run(s)
    check(not s.error, s.error)
    return s


SAMPLINGS = {"greedy": {}, "seeded": {"temperature": 1.5}, "penalties": {"temperature": 0.9, "top_k": 40, "repetition_penalty": 1.3,
                                                                         "presence_penalty": 0.4, "frequency_penalty": 0.3}}


def check_model(name, kind, *titles, count=24):
    """Alone, in a batch and after deaths: tokens and logprobs of a daemon are the same with and without drafts, bit by bit. `titles`: of
    SAMPLINGS."""
    prompts = [case["prompt"] for case in cases_of(name) if len(case["prompt"]) <= 64][:3]
    vocab = 1 + max(max(p) for p in prompts)
    with start_real(name, kind) as d:
        c, right = Client(d.endpoint), 0
        for title in titles:
            fields = {"sampling": SAMPLINGS[title], "logprobs": 2}
            plain = [answer(c, p, count, speculate=OFF, **fields) for p in prompts]
            drafts = [wrong_at(s.tokens, *range(3 + n, count, 7), vocab=vocab) for n, s in enumerate(plain)]
            for n, s in enumerate(plain):
                got = answer(c, prompts[n], count, prediction=drafts[n], **fields)
                same(got.tokens, s.tokens, f"{name} {kind} {title}: prompt {n} alone")
                same([t.logprob for t in got.first], [t.logprob for t in s.first], f"{name} {kind} {title}: logprobs of prompt {n}")
                right += used(got)[1]
            streams = [c.generate(p, count, seed=7, ignore_eos=True, prediction=drafts[n], **fields)
                       for n, p in enumerate(prompts)]
            c.run(*streams)
            same([s.tokens for s in streams], [s.tokens for s in plain], f"{name} {kind} {title}: a batch")
        check(right > len(titles) * count, f"{name} {kind}: only {right} drafts were right")
        plain = [answer(c, p, 2 * count, speculate=OFF) for p in prompts]
        streams = [c.generate(p, 2 * count, seed=7, ignore_eos=True,
                              prediction=wrong_at(plain[n].tokens, *range(4 + n, 2 * count, 5), vocab=vocab)) for n, p in enumerate(prompts)]
        killed = 0
        while not all(s.ended for s in streams):
            c.receive(60)
            if sum(len(s.tokens) for s in streams) > (killed + 1) * count and killed < 2:
                os.kill(d.children()["worker"], signal.SIGKILL)
                killed += 1
                wait_until(lambda: status_of(d).restarts_total >= killed and status_of(d).state == "ready", 30)
        same([s.tokens for s in streams], [s.tokens for s in plain], f"{name} {kind}: {killed} workers killed")


def test_dense_models_have_the_same_tokens():
    check_model("qwen3", "cpu", *SAMPLINGS)
    check_model("qwen3", "gpu", "penalties")
    check_model("qwen3", "split", "greedy")
    check_model("qwen3", "tiers", "seeded")


def test_models_with_windows_have_the_same_tokens():
    check_model("gptoss", "cpu", "greedy")
    check_model("gemma3", "cpu", "penalties")
    check_model("gemma3", "split", "seeded")


def test_hybrids_have_the_same_tokens():
    check_model("qwen35", "cpu", *SAMPLINGS)
    check_model("qwen35", "gpu", "penalties")
    check_model("qwen35", "split", "greedy")
    check_model("qwen3next", "cpu", "greedy")
    check_model("qwen35moe", "gpu", "seeded")


def test_numbers_by_prices_have_the_same_tokens():
    """Whatever numbers of drafts are chosen, alone, in a batch and after a death."""
    count = 40
    for name, kind in (("qwen3", "cpu"), ("qwen35", "split")):
        prompts = [case["prompt"] for case in cases_of(name) if len(case["prompt"]) <= 64][:3]
        with start_real(name, kind, "--speculate", "auto") as d:
            c = Client(d.endpoint)
            plain = [answer(c, p, count, speculate=OFF, logprobs=2) for p in prompts]
            texts = [wrong_at(s.tokens, *range(3 + n, count, 7), vocab=64) for n, s in enumerate(plain)]
            for n, p in enumerate(prompts):
                got = answer(c, p, count, prediction=texts[n], logprobs=2)
                same(got.tokens, plain[n].tokens, f"{name} {kind}: prompt {n} alone")
                same([t.logprob for t in got.first], [t.logprob for t in plain[n].first], f"{name} {kind}: logprobs of prompt {n}")
            streams = [c.generate(p, count, seed=7, ignore_eos=True, prediction=texts[n]) for n, p in enumerate(prompts)]
            while sum(len(s.tokens) for s in streams) < count:
                c.receive(60)
            os.kill(d.children()["worker"], signal.SIGKILL)
            c.run(*streams, timeout=60)
            same([s.tokens for s in streams], [s.tokens for s in plain], f"{name} {kind}: a batch, whose worker was killed")


def test_a_hybrids_draft_may_be_wrong_at_every_place():
    """States go back to in front of the drafts, whatever their number; snapshots of answers stay right: the next turn begins with one."""
    prompt, count = cases_of("qwen35")[2]["prompt"], 24
    with start_real("qwen35", "split") as d:
        c = Client(d.endpoint)
        want = answer(c, prompt, count, speculate=OFF).tokens
        for place in range(count):
            for most in (1, 2):
                text = wrong_at(want, place, place + most, vocab=64)
                same(answer(c, prompt, count, prediction=text).tokens, want, f"wrong at {place} and {place + most}")
    with start_real("qwen35", "cpu", invariant="off") as d:
        c = Client(d.endpoint)
        want = answer(c, prompt, 120, speculate=OFF).tokens
        turn = prompt + want + [5, 6]
        plain = answer(c, turn, 20, speculate=OFF).tokens
    with start_real("qwen35", "cpu", invariant="off") as d:
        c = Client(d.endpoint)
        same(answer(c, prompt, 120, prediction=wrong_at(want, *range(5, 120, 9), vocab=64)).tokens, want, "the first turn")
        second = answer(c, turn, 20, speculate=OFF)
        same(second.tokens, plain, "the next turn")
        check(second.done.usage.cached_tokens >= 64, f"{second.done.usage.cached_tokens} tokens found")


def test_a_hybrid_needs_a_snapshot_to_go_back_to():
    """With two for three sequences one of them has no drafts in a step; with none helmd does not start."""
    prompts = [case["prompt"] for case in cases_of("qwen35") if len(case["prompt"]) <= 64][:3]
    with start_real("qwen35", "cpu") as d:
        plain = [answer(Client(d.endpoint), p, 24, speculate=OFF).tokens for p in prompts]
        each = status_of(d).snapshot_bytes
    with start_real("qwen35", "cpu", "--state-snapshots", 2 * each) as d:
        same(status_of(d).snapshots_total, 2, "snapshots")
        c = Client(d.endpoint)
        streams = [c.generate(p, 24, seed=7, ignore_eos=True, prediction=wrong_at(plain[n], 5, 12, vocab=64))
                   for n, p in enumerate(prompts)]
        c.run(*streams)
        same([s.tokens for s in streams], plain, "tokens")
    d = Daemon("--device", "cpu", "--state-snapshots", 1, *EXACT, *DRAFTS, real=True, model=os.path.join(GOLDEN, "qwen35"))
    check("--state-snapshots has room for none" in d.ready, d.ready)
    d.close()


def test_ngrams_speed_up_what_is_said_again():
    """The demo model repeats itself: drafts are found in its own answer, without a prediction."""
    prompt = list(range(40, 72)) * 3
    with running("--device", "cpu", "--speculate", "ngram", "--threads", 2, "--invariant", "on", "--activations", "exact", real=True) as d:
        c = Client(d.endpoint)
        plain = answer(c, prompt, 100, speculate=OFF)
        got = answer(c, prompt, 100)
        same(got.tokens, plain.tokens, "greedy")
        check(used(got)[1] > 0 and used(plain) == (0, 0), f"{used(got)} drafts and right ones, {used(plain)}")
        same((status_of(d).speculate, status_of(d).draft_tokens), ("ngram", 4), "status")


def test_the_gateways_prediction_is_a_draft():
    with running("--device", "cpu", "--draft-tokens", 4, "--threads", 2, "--invariant", "on", "--activations", "exact", real=True) as d, \
            gateway_harness.Gateway(d.endpoint) as g:
        def chat(**fields):
            return g.chat("In the beginning", temperature=0, max_tokens=60, ignore_eos=True, **fields)

        plain = chat()
        text = plain.json["choices"][0]["message"]["content"]
        check("completion_tokens_details" not in plain.json["usage"], plain.json["usage"])
        two = dict(temperature=1, max_tokens=20, ignore_eos=True, n=2, seed=5)
        same(*[[x["message"]["content"] for x in g.chat("In the beginning", **two, **more).json["choices"]]
               for more in ({"prediction": {"content": text}}, {})], "two answers")
        for content in (text, [{"type": "text", "text": text[:40]}, {"type": "text", "text": text[40:]}]):
            got = chat(prediction={"type": "content", "content": content})
            same(got.json["choices"][0]["message"]["content"], text, "the same text")
            details = got.json["usage"]["completion_tokens_details"]
            check(details["accepted_prediction_tokens"] >= 20, details)
            check(details["rejected_prediction_tokens"] >= 0, details)
        for wrong in ("text", {"type": "content", "content": 5}, {"type": "other", "content": "a"}, {"content": [{"text": 1}]}):
            same(chat(prediction=wrong).status, 400, f"prediction {wrong}")
        accepted = int(g.metric("helm_accepted_tokens_total"))
        check(40 <= accepted <= g.metric("helm_drafted_tokens_total"), f"{accepted} by the metrics")


if __name__ == "__main__":
    run_tests(dict(globals()))
