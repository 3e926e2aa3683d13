#!/usr/bin/python3
"""Drafts by a draft model (docs/speculation.md) through real processes: a second helmd makes them. Every answer has the tokens that it
has without, whether the draft model is the model itself, other weights, slow, hung or killed; and nothing of it outlives helmd."""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import processor  # noqa: E402
from helmd_harness import BIN, DATA, DEMO, Client, Daemon, check, pb, run_tests, running, same, status_of, wait_until  # noqa: E402

OFF, NGRAM, AUTO, MTP, DRAFT = pb.SPECULATE_OFF, pb.SPECULATE_NGRAM, pb.SPECULATE_AUTO, pb.SPECULATE_MTP, pb.SPECULATE_DRAFT
EXACT = ("--kv-dtype", "f32", "--threads", 2, "--activations", "exact", "--kernels", "avx2", "--device", "cpu", "--ctx", 512)
FOLDER = tempfile.mkdtemp(prefix="helm-draft-")
MODEL = os.path.join(DATA, "golden", "qwen3")
PROMPTS = [[5 + 7 * n + k * k % 50 for k in range(length)] for n, length in enumerate((3, 17, 40))]
SAMPLINGS = {"greedy": {}, "seeded": {"temperature": 1.5}, "penalties": {"temperature": 0.9, "top_k": 40, "repetition_penalty": 1.3,
                                                                         "presence_penalty": 0.4, "frequency_penalty": 0.3}}


def changed(flips=40, tokens=None, model=MODEL):
    """The model with some bytes of its weights replaced; `tokens`: changes the tokenizer's texts."""
    folder = os.path.join(FOLDER, f"{os.path.basename(model)}-{flips}-{tokens is not None}")
    if os.path.exists(folder):
        return folder
    shutil.copytree(model, folder)
    path, rng = os.path.join(folder, "model.safetensors"), random.Random(1)
    with open(path, "r+b") as f:
        data = f.read()
        start = 8 + int.from_bytes(data[:8], "little")
        for _ in range(flips):
            f.seek(start + 2 * rng.randrange((len(data) - start) // 2))
            f.write(bytes((rng.randrange(256), 0x3e)))  # a bf16 number of 0.1 to 0.25
    if tokens:
        path = os.path.join(folder, "tokenizer.json")
        with open(path) as f:
            tokenizer = json.load(f)
        tokens(tokenizer)
        with open(path, "w") as f:
            json.dump(tokenizer, f)
    return folder


def start(draft, *options, invariant="off", model=MODEL, **named):
    return running(*EXACT, "--draft-model", draft, "--invariant", invariant, *options, real=True, model=model, **named)


def draft_pid(d):
    """The draft model's helmd."""
    found = [pid for pid, parent, _ in processor.stat_rows() if parent == d.pid and b"/draft/helmd.sock" in processor.command_line(pid)]
    return found[0] if found else 0


def answer(c, prompt, count, **fields):
    s = c.generate(prompt, count, seed=7, ignore_eos=True, **fields)
    c.run(s)
    check(not s.error, s.error)
    return s


def used(stream):
    return stream.done.usage.drafted_tokens, stream.done.usage.accepted_tokens


def test_the_model_itself_is_always_right():
    count = 120
    with start(MODEL) as d:
        c = Client(d.endpoint)
        for title, sampling in SAMPLINGS.items():
            plain = answer(c, PROMPTS[1], count, speculate=OFF, sampling=sampling)
            got = answer(c, PROMPTS[1], count, sampling=sampling)
            drafted, right = used(got)
            same((got.tokens, used(plain)), (plain.tokens, (0, 0)), title)
            check(drafted >= 48 and right >= drafted - 1, f"{title}: {right} of {drafted} drafts were right")
        st = status_of(d)
        same((st.speculate, st.draft_tokens), ("draft", 4), "status")


def check_answers(draft, invariant, *titles, count=60, **named):
    """Drafts and right ones. An answer has none until the draft model has read its prompt."""
    drafted = right = 0
    with start(draft, invariant=invariant, **named) as d:
        c = Client(d.endpoint)
        for title in titles:
            fields = {"sampling": SAMPLINGS[title], "logprobs": 2}
            plain = [answer(c, p, count, speculate=OFF, **fields) for p in PROMPTS]
            alone = [answer(c, p, count, **fields) for p in PROMPTS]
            batch = [c.generate(p, count, seed=7, ignore_eos=True, **fields) for p in PROMPTS]
            c.run(*batch)
            for got, how in ((alone, "alone"), (batch, "a batch")):
                same([s.tokens for s in got], [s.tokens for s in plain], f"{title} {how}")
                check(any(used(s)[0] for s in got), f"{title} {how}: drafts {[used(s) for s in got]}")
                drafted += sum(used(s)[0] for s in got)
                right += sum(used(s)[1] for s in got)
                if invariant == "on":
                    same([[t.logprob for t in s.first] for s in got], [[t.logprob for t in s.first] for s in plain], f"{title} {how}: logprobs")
    return drafted, right


def test_answers_are_the_same():
    drafted, right = check_answers(changed(), "on", *SAMPLINGS)
    check(0.1 * drafted < right < 0.95 * drafted, f"{right} of {drafted} drafts were right")
    check_answers(changed(), "off", "greedy")


def test_windows_and_fixed_states_on_both_sides():
    """Of the model, which goes back after wrong drafts, and of the draft model, which is resumed."""
    for name in ("gemma3", "qwen35"):
        model = os.path.join(DATA, "golden", name)
        drafted, right = check_answers(changed(model=model), "on", "greedy", "seeded", model=model)
        check(0 < right < drafted, f"{name}: {right} of {drafted} drafts were right")
        drafted, right = check_answers(model, "off", "penalties", model=model)
        check(right > 0.9 * drafted, f"{name}: {right} of {drafted} drafts of the model itself were right")


def test_a_trained_model_with_its_blocks():
    """The demo model, and itself in blocks of 4 bits in a GGUF file, whose tokenizer is spelled in another way: most drafts are right."""
    blocks = os.path.join(FOLDER, "demo.gguf")
    subprocess.run([os.path.join(BIN, "helm-quantize"), "--model", DEMO, "--to", "Q4_K_M", "--out", blocks], check=True, capture_output=True)
    drafted, right = check_answers(blocks, "on", "greedy", model=DEMO, count=120)
    check(0.4 * drafted < right < drafted, f"{right} of {drafted} drafts were right")


def test_a_shorter_context():
    """Of the draft model: an answer goes on without drafts beyond it, a longer prompt has none, and others keep theirs."""
    short = changed(0, model=MODEL)
    folder = os.path.join(FOLDER, "short")
    shutil.copytree(short, folder)
    path = os.path.join(folder, "config.json")
    with open(path) as f:
        config = dict(json.load(f), max_position_embeddings=64)
    with open(path, "w") as f:
        json.dump(config, f)
    with start(folder) as d:
        check("draft model: its context is 64 tokens, the model's 512" in d.log(), d.log())
        c = Client(d.endpoint)
        beyond, long = PROMPTS[2], [5 + k * k % 50 for k in range(80)]
        plain = [answer(c, p, 60, speculate=OFF).tokens for p in (beyond, long)]
        for _ in range(10):  # on a busy machine the draft model may still read the prompt when the answer is beyond its context
            got = answer(c, beyond, 60)
            same(got.tokens, plain[0], "an answer across the end")
            if used(got)[0] > 0:
                break
        check(0 < used(got)[0] <= 24, f"{used(got)}")
        got = answer(c, long, 60)
        same((got.tokens, used(got)), (plain[1], (0, 0)), "a prompt beyond the end")
        check(any(used(answer(c, PROMPTS[0], 40))[0] > 0 for _ in range(10)), "no drafts afterwards")


def test_each_length_of_an_answer():
    with start(changed(), "--draft-tokens", 7) as d:
        c = Client(d.endpoint)
        want = answer(c, PROMPTS[0], 20, speculate=OFF).tokens
        for count in range(1, 20):
            s = answer(c, PROMPTS[0], count)
            same((s.tokens, s.done.usage.completion_tokens), (want[:count], count), f"{count} tokens")


def run_while(d, c, prompts, count, act):
    """Answers of which each has `count` tokens; `act` is called once, after a third of them."""
    streams = [c.generate(p, count, seed=7, ignore_eos=True) for p in prompts]
    done = False
    while not all(s.ended for s in streams):
        c.receive(60)
        if not done and sum(len(s.tokens) for s in streams) > len(streams) * count // 3:
            act()
            done = True
    check(done, "the answers ended before anything happened")
    return streams


def test_a_killed_draft_model_costs_no_token():
    with start(changed()) as d:
        c = Client(d.endpoint)
        plain = [answer(c, p, 120, speculate=OFF).tokens for p in PROMPTS]
        for kill in range(2):
            first = draft_pid(d)
            streams = run_while(d, c, PROMPTS, 120, lambda: os.kill(first, signal.SIGKILL))
            same([s.tokens for s in streams], plain, f"kill {kill}")
            check(wait_until(lambda: d.log().count("draft model: ready again") == kill + 1, 30), d.log())
            check(draft_pid(d) not in (0, first), f"no other draft model was started: {d.log()}")
            check(any(used(answer(c, PROMPTS[1], 120))[0] > 0 for _ in range(5)), "no drafts after the restart")


def test_a_hung_draft_model_stalls_nothing():
    with start(changed()) as d:
        c = Client(d.endpoint)
        plain = [answer(c, p, 120, speculate=OFF).tokens for p in PROMPTS]
        pid = draft_pid(d)
        begun = processor.clock()
        streams = run_while(d, c, PROMPTS, 120, lambda: os.kill(pid, signal.SIGSTOP))
        same([s.tokens for s in streams], plain, "tokens")
        check(processor.clock() - begun < 10, "the hang held the answers up")
        same(answer(c, PROMPTS[1], 40).tokens, plain[1][:40], "a new request beside a hung draft model")
        os.kill(pid, signal.SIGCONT)
        check(wait_until(lambda: used(answer(c, PROMPTS[1], 120))[0] > 0, 20), d.log())
        os.kill(pid, signal.SIGSTOP)  # and helmd ends with it in that state
        same(d.stop(), 0, "status of helmd")
        same(d.left_behind(), [], "left behind")


def test_a_silent_draft_model_is_replaced():
    """After 20 s, without which its requests would have no drafts until it says something."""
    with start(changed()) as d:
        c = Client(d.endpoint)
        plain, pid = answer(c, PROMPTS[1], 120, speculate=OFF).tokens, draft_pid(d)
        os.kill(pid, signal.SIGSTOP)
        same(answer(c, PROMPTS[1], 120).tokens, plain, "beside one that is silent")
        check(wait_until(lambda: "draft model: ready again" in d.log(), 60), d.log())
        check("silent for 20 s: killing it" in d.log() and draft_pid(d) not in (0, pid), d.log())
        got = answer(c, PROMPTS[1], 120)
        check(got.tokens == plain and used(got)[0] > 0, f"{used(got)}")
        check(", 1 restarts; " in status_of(d).draft_model, status_of(d).draft_model)


def test_nothing_outlives_helmd():
    for sig, wanted in ((signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGKILL, -signal.SIGKILL)):
        d = Daemon(*EXACT, "--draft-model", changed(), real=True, model=MODEL)
        check(draft_pid(d), d.log())
        same(d.stop(sig), wanted, f"{sig}")
        check(wait_until(lambda: not d.left_behind(), 6), d.left_behind())
        d.close()
    d = Daemon(*EXACT, "--draft-model", changed(), real=True, model=MODEL)
    os.kill(draft_pid(d), signal.SIGSTOP)
    d.stop(signal.SIGKILL)
    check(wait_until(lambda: not d.left_behind(), 8), d.left_behind())
    d.close()


def test_what_is_killed_with_its_keepers_is_tidied_up_by_the_next():
    """All processes at once, as by a container that ends: no draft model goes on, and the next helmd removes what is left."""
    d = Daemon(*EXACT, "--draft-model", changed(), real=True, model=MODEL)
    draft = draft_pid(d)
    keepers = [pid for pid, parent, _ in processor.stat_rows() if parent in (d.pid, draft) and b"--keeper" in processor.command_line(pid)]
    same(len(keepers), 2, "keepers")
    for pid in (*keepers, draft, d.pid):
        os.kill(pid, signal.SIGKILL)
    d.process.wait()
    check(wait_until(lambda: not os.path.exists(f"/proc/{draft}"), 10), "the draft model's process is not reaped")
    check(os.path.exists(f"{d.rundir}/worker.{d.pid}/draft/helmd.sock"), d.left_behind())
    next_one = Daemon(*EXACT, real=True, model=MODEL, base=d.base)
    check(not os.path.exists(f"{d.rundir}/worker.{d.pid}"), d.left_behind())
    same(next_one.stop(), 0, "status")
    check(wait_until(lambda: not d.left_behind(), 6), d.left_behind())
    next_one.close()
    d = Daemon(*EXACT, "--draft-model", changed(), real=True, model=MODEL)
    os.kill(d.keeper(), signal.SIGKILL)
    d.stop(signal.SIGKILL)
    check(wait_until(lambda: not any(name.startswith("process") for name in d.left_behind()), 6), d.left_behind())
    shutil.rmtree(d.rundir, ignore_errors=True)  # the draft model may still be removing its own part
    d.close()


def test_a_start_that_is_ended_leaves_nothing():
    d = Daemon(*EXACT, "--draft-model", changed(), real=True, model=MODEL, wait=False)
    check(wait_until(lambda: draft_pid(d), 10), d.log())
    same(d.stop(), 0, "status")
    check(wait_until(lambda: not d.left_behind(), 6), d.left_behind())
    d.close()


def refusal(*options, **named):
    d = Daemon(*options, real=True, **named)
    ready, status = d.ready, processor.ended(d.process, 20)
    same(d.left_behind(), [], f"{options}: left behind")
    d.close()
    return status, ready


def test_vocabularies_must_be_the_same():
    def rename(tokenizer):
        vocab = tokenizer["model"]["vocab"]
        text = next(t for t, i in vocab.items() if i == 300)
        vocab["other"] = vocab.pop(text)

    def drop(tokenizer):
        vocab = tokenizer["model"]["vocab"]
        vocab.pop(max(vocab, key=vocab.get))

    for change, words in ((rename, "token 300 is '"), (drop, "has 2047")):
        shutil.rmtree(os.path.join(FOLDER, "qwen3-0-True"), ignore_errors=True)
        status, ready = refusal(*EXACT, "--draft-model", changed(0, change), model=MODEL)
        check(status == 4 and "--draft-model" in ready and words in ready, f"{status} {ready}")
    folder = os.path.join(FOLDER, "bare")
    shutil.copytree(MODEL, folder)
    os.remove(os.path.join(folder, "tokenizer.json"))
    status, ready = refusal(*EXACT, "--draft-model", folder, model=MODEL)
    check(status == 4 and "no tokenizer to compare" in ready, f"{status} {ready}")


def test_what_does_not_fit_is_refused():
    for options, status, words in ((("--speculate", "draft"), 2, "needs --draft-model"), (("--draft-model", MODEL, "--speculate", "mtp"), 2, "mtp"),
                                   (("--draft-model", MODEL, "--draft-tokens", 0), 2, "--draft-tokens 1 or more"),
                                   (("--draft-model", MODEL, "--speculate", f"draft={MODEL}"), 2, "give one of them"),
                                   (("--draft-model", os.path.join(FOLDER, "none")), 4, "--draft-model"),
                                   (("--draft-model", MODEL, "--host-memory", "1MiB"), 4, "draft model")):
        got, ready = refusal(*EXACT, *options, model=MODEL)
        check(got == status and words in ready, f"{options}: {got} {ready}")
    with running(*EXACT, "--draft-tokens", 4, real=True, model=MODEL) as d:
        c = Client(d.endpoint)
        s = c.generate(PROMPTS[0], 4, speculate=DRAFT)
        c.run(s)
        check("--draft-model" in s.error.message, s.error)


def test_requests_and_short_forms():
    """`draft=MODEL`; drafts for requests that ask; an auto that finds the model itself to be right."""
    with running(*EXACT, "--speculate", f"draft={MODEL}", real=True, model=MODEL) as d:
        same(status_of(d).speculate, "draft", "draft=MODEL")
    with start(MODEL, "--speculate", "off") as d:
        c = Client(d.endpoint)
        plain = answer(c, PROMPTS[1], 120)
        got = answer(c, PROMPTS[1], 120, speculate=DRAFT)
        same((used(plain), got.tokens), ((0, 0), plain.tokens), "drafts for who asks")
        check(used(got)[1] >= 20, f"{used(got)}")
        same(answer(c, PROMPTS[1], 120, speculate=NGRAM).tokens, plain.tokens, "ngram")
        same(answer(c, PROMPTS[1], 120, speculate=AUTO).tokens, plain.tokens, "auto")


def resume(c, request_id, keep, tokens, most):
    r = c.request(request_id)
    r.resume.keep, r.resume.max_tokens = keep, most
    r.resume.tokens.extend(tokens)
    c.socket.send(r.SerializeToString())


def check_resumes(model, turns, **sampling):
    """An answer that is resumed with other tokens, back across pages at times: as one to all these tokens as a prompt."""
    prompt, rng = PROMPTS[1], random.Random(3)
    with running(*EXACT, "--invariant", "off", real=True, model=model) as d:
        c = Client(d.endpoint)
        text, most = prompt, 6
        c.generate(text, most, seed=7, ignore_eos=True, stays=True, sampling=sampling, request_id=1000)
        c.streams.clear()  # its tokens' numbers go back
        for turn in range(turns):
            made = []
            while len(made) < most:
                response = c.receive()
                if response.request_id == 1000 and response.WhichOneof("body") == "token":
                    same(response.token.index, len(text) - len(prompt) + len(made), f"turn {turn}")
                    made.append(response.token.token)
                else:
                    same(response.WhichOneof("body"), "accepted", f"turn {turn}: {response}")
            same(made, answer(c, text, most, sampling=sampling).tokens, f"{model} turn {turn}, {len(text)} tokens")
            keep = max(0, len(text + made) - len(prompt) - rng.choice((0, 1, 3, 6, 40)))
            tail, most = [rng.randrange(3, 250) for _ in range(rng.choice((0, 1, 2, 20)))], rng.randrange(1, 8)
            text = (text + made)[:len(prompt) + keep] + tail
            resume(c, 1000, keep, tail, most)


def test_a_request_that_stays_goes_on_as_another_one():
    """Whole layers of attention, windows, fixed states."""
    check_resumes(MODEL, 30)
    check_resumes(MODEL, 20, temperature=1.5)
    for name in ("gemma3", "qwen35"):
        check_resumes(os.path.join(DATA, "golden", name), 20)


def test_a_resume_that_does_not_fit_ends_its_request():
    with running(*EXACT, real=True, model=MODEL) as d:
        c = Client(d.endpoint)
        for keep, tokens, most, words in ((7, [], 1, "the answer has 2 tokens"), (0, [], 0, "max_tokens is 0"), (2, [1], 600, "do not fit the context of 512"),
                                          (0, [1 << 20], 1, "the vocabulary has")):
            s = c.generate(PROMPTS[0], 2, seed=7, ignore_eos=True, stays=True, request_id=2000)
            while len(s.tokens) < 2:
                c.receive()
            resume(c, 2000, keep, tokens, most)
            c.run(s)
            check(s.done.finish_reason == pb.FINISH_ERROR and words in s.done.detail, s.done)


def test_auto_answers_the_same():
    """The model itself, at a price that its own forecast and then its answers say: whatever is chosen, the tokens are the same."""
    with start(MODEL, "--speculate", "auto") as d:
        c = Client(d.endpoint)
        plain = [answer(c, p, 100, speculate=OFF).tokens for p in PROMPTS]
        streams = [c.generate(p, 100, seed=7, ignore_eos=True) for p in PROMPTS]
        c.run(*streams)
        same([s.tokens for s in streams], plain, "tokens")
        same((status_of(d).speculate, status_of(d).draft_tokens), ("auto", 15), "status")


def test_the_plan_has_the_memory_that_is_left():
    """What the draft model's plan takes of both memories, which status says, is not in the ceilings of the model's plan."""
    options = [o for o in EXACT if o not in ("--device", "cpu")] + ["--device", "emulated", "--vram", "200MiB", "--host-memory", "1GiB"]
    limits = []
    for draft in ([], ["--draft-model", changed()]):
        with running(*options, "--draft-tokens", 4, *draft, real=True, model=MODEL) as d:
            c = Client(d.endpoint)
            plan = json.loads(c.ask("plan").plan.json)
            limits.append([plan[memory]["limit"] for memory in ("host", "vram")])
            said = status_of(d).draft_model
            plain = [answer(c, p, 40, speculate=OFF).tokens for p in PROMPTS]
            same([answer(c, p, 40).tokens for p in PROMPTS], plain, "tokens")
    check(": ready, pid " in said and " 0 restarts; " in said and "ms (forecast)" in said, said)
    taken = [before - after for before, after in zip(*limits)]
    check(all(8 << 20 < bytes < 500 << 20 for bytes in taken), f"{limits}: {taken}")
    for bytes, where in zip(taken, ("host memory", "VRAM")):
        check(f"{bytes / 2**20:.2f} MiB of {where}" in said, f"{taken}: {said}")
    with running(*options, "--draft-model", changed(), "--draft-device", "cpu", real=True, model=MODEL) as d:
        c = Client(d.endpoint)
        same(json.loads(c.ask("plan").plan.json)["vram"]["limit"], limits[0][1], "VRAM beside a draft model on the CPU")
        check(", 0 B of VRAM; " in status_of(d).draft_model, status_of(d).draft_model)
        same([answer(c, p, 40).tokens for p in PROMPTS], plain, "tokens")


def test_a_worker_of_either_may_die():
    with start(changed()) as d:
        c = Client(d.endpoint)
        plain = [answer(c, p, 120, speculate=OFF).tokens for p in PROMPTS]
        streams = run_while(d, c, PROMPTS, 120, lambda: os.kill(d.children()["worker"], signal.SIGKILL))
        same([s.tokens for s in streams], plain, "the model's worker")
        draft = draft_pid(d)
        worker = [pid for pid, parent, _ in processor.stat_rows() if parent == draft and b"helm-worker-" in processor.command_line(pid)]
        streams = run_while(d, c, PROMPTS, 120, lambda: os.kill(worker[0], signal.SIGKILL))
        same([s.tokens for s in streams], plain, "the draft model's worker")
        same(draft_pid(d), draft, "the draft model's helmd")


if __name__ == "__main__":
    run_tests(globals())
