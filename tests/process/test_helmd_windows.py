#!/usr/bin/python3
"""Layers that keep their window alone (docs/state.md) through real processes: contexts of several windows, the prefix cache, several
sequences at once, preemption, workers' deaths and sessions. Two of the model's four layers have a window. A daemon whose layers keep all
pages answers every prompt alone first: each answer must be the same, token by token."""
import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import processor  # noqa: E402
from helmd_harness import BIN, SLOW, Client, Daemon, check, plan_json, run_tests, running, same, status_of  # noqa: E402

PAGE, VOCAB, LAYERS, HIDDEN, HEADS, HEAD_DIM, WINDOW = 32, 64, 4, 32, 2, 16, 40
CELLS = 2 * HEAD_DIM * 4 * PAGE  # of a page of a layer
FOLDER = tempfile.TemporaryDirectory(prefix="helm-windows-")
MODEL = os.path.join(FOLDER.name, "model")
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": HIDDEN, "intermediate_size": 48,
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": 1, "head_dim": HEAD_DIM, "vocab_size": VOCAB,
    "rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu",
    "attention_bias": False, "torch_dtype": "float32", "bos_token_id": 0, "eos_token_id": 1, "use_sliding_window": True,
    "sliding_window": WINDOW,
}


def make_model(folder, layer_types):
    """Random numbers of fp32, so that all ways of computing it agree."""
    rng, shapes = random.Random(40), {"model.embed_tokens": [VOCAB, HIDDEN], "model.norm": [HIDDEN], "lm_head": [VOCAB, HIDDEN]}
    for n in range(LAYERS):
        p, q, k = f"model.layers.{n}.", [HEADS * HEAD_DIM, HIDDEN], [HEAD_DIM, HIDDEN]
        shapes.update({p + "input_layernorm": [HIDDEN], p + "post_attention_layernorm": [HIDDEN], p + "self_attn.q_proj": q,
                       p + "self_attn.o_proj": q[::-1], p + "self_attn.k_proj": k, p + "self_attn.v_proj": k,
                       p + "self_attn.q_norm": [HEAD_DIM], p + "self_attn.k_norm": [HEAD_DIM], p + "mlp.gate_proj": [48, HIDDEN],
                       p + "mlp.up_proj": [48, HIDDEN], p + "mlp.down_proj": [HIDDEN, 48]})
    os.makedirs(folder)
    header, data = {}, b""
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        mean, spread = (0, 1.5 * shape[-1] ** -0.5) if len(shape) == 2 else (1, 0.05)
        packed = struct.pack(f"<{count}f", *[rng.gauss(mean, spread) for _ in range(count)])
        header[name + ".weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump({**CONFIG, "layer_types": layer_types}, f)


OPTIONS = ("--kv-dtype", "f32", "--threads", 2, "--activations", "exact")
SIZES = {"kv_dtype": "f32", "context_tokens": 1024, "page_count": 96, "slots": 4, "step_tokens": 64}
WINDOWS = {"states": [{"layers": [n, n], "kind": "pages" if n % 2 else "window"} for n in range(LAYERS)],
           "window_tokens": WINDOW, "window_page_count": 40}
# The homes of a plan; sizes that it has besides
HOMES = {"cpu": ("cccc", "c", "c"), "gpu": ("gggg", "g", "g"), "split": ("gcgg", "c", "g"), "halves": ("cgggccgc", "g", "c"),
         "phases": ("ccgg", "g", "g", "ssgg", 64), "tiers": ("gggg", "g", "g"), "tiers split": ("ccgg", "g", "g", "ssgg", 64)}
MORE = {"phases": {"ring_bytes": 1 << 20}, "tiers": {"vram_page_count": 16, "kv_direct_permille": 0},
        "tiers split": {"vram_page_count": 16, "kv_direct_permille": 500, "ring_bytes": 1 << 20}}
KINDS = list(HOMES)


def plan_of(kind, windows=WINDOWS, **sizes):
    return plan_json(LAYERS, *HOMES[kind], **{**SIZES, **MORE.get(kind, {}), **windows, **sizes})


def start(kind, *options, **sizes):
    """The planner's own plan, or one written by hand of these sizes."""
    device = "cpu" if kind == "cpu" else "emulated"
    if kind == "cpu" and not sizes:
        return running("--device", device, "--parallel", 4, "--ctx", 1024, *OPTIONS, *options, real=True, model=MODEL)
    return running("--device", device, *OPTIONS, *options, real=True, model=MODEL, plan=plan_of(kind, **sizes))


class Reference:
    """Answers of a daemon whose layers all keep pages, each prompt alone."""

    daemon, client, answers = None, None, {}

    @classmethod
    def of(cls, prompt, count):
        key = tuple(prompt)
        if len(cls.answers.get(key, ())) < count:
            if not cls.daemon:
                cls.daemon = Daemon("--device", "cpu", "--prefix-cache", "off", *OPTIONS, real=True, model=MODEL,
                                    plan=plan_of("cpu", windows={}))
                check(cls.daemon.ready.startswith("ready"), cls.daemon.ready)
                check("windows of" not in cls.daemon.log(), "the reference keeps all pages")
                cls.client = Client(cls.daemon.endpoint)
            s = cls.client.generate(prompt, count, ignore_eos=True)
            cls.client.run(s)
            same(len(s.tokens), count, f"the reference: {s.error}")
            cls.answers[key] = s.tokens
        return cls.answers[key][:count]


def prompt_of(count, kind=0):
    return [2 + (i * 7 + i // 30 + kind * 11 + i * i * kind) % (VOCAB - 2) for i in range(count)]


def check_stream(prompt, s, count, what):
    check(not s.error, f"{what}: {s.error}")
    want = Reference.of(prompt, count)
    at = next((i for i in range(count) if s.tokens[i:i + 1] != want[i:i + 1]), count)
    same(s.tokens[at:], want[at:], f"{what}: from token {at} of {count} on")


def generate(c, prompt, count, what):
    """A request whose answer must be right. How many of its prompt's tokens were found, and the answer."""
    s = c.generate(prompt, count, ignore_eos=True)
    c.run(s)
    check_stream(prompt, s, count, what)
    return s.done.usage.cached_tokens, s.tokens


def test_contexts_of_several_windows():
    for kind in KINDS:
        with start(kind) as d:
            plan = json.loads(Client(d.endpoint).ask("plan").plan.json)
            same([s["kind"] for s in plan["states"]], ["window", "pages"] * 2, f"{kind}: states")
            same(plan["window_tokens"], WINDOW, f"{kind}: window")
            c = Client(d.endpoint)
            for count in (WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 7, 300):
                generate(c, prompt_of(count, count), 6, f"{kind}: a prompt of {count}")
            generate(c, prompt_of(3), 5 * WINDOW, f"{kind}: an answer of five windows")


def test_prompts_are_found_where_their_window_is():
    for kind in ("cpu", "halves", "tiers split"):
        with start(kind) as d:
            c = Client(d.endpoint)
            prompt = prompt_of(400)
            found, answer = generate(c, prompt, 70, kind)
            same(found, 0, f"{kind}: found the first time")
            same(generate(c, prompt, 4, kind)[0], 384, f"{kind}: the same prompt again, or an answer regenerated")
            same(generate(Client(d.endpoint), prompt[:395] + prompt_of(9, 1), 4, kind)[0], 384, f"{kind}: an edited end")
            same(generate(c, prompt + answer + prompt_of(9, 2), 4, kind)[0], 448, f"{kind}: the next turn")
            generate(c, prompt[:200] + prompt_of(60, 3), 4, f"{kind}: a branch")
            same(generate(c, prompt[:200] + prompt_of(60, 3), 4, kind)[0], 256, f"{kind}: the branch again")


def test_windows_that_left_are_computed_again():
    """Others' prompts take the pages of windows, while those of the other layers are still known."""
    for kind in ("cpu", "phases"):
        with start(kind, window_page_count=22, page_count=128, slots=2) as d:
            c = Client(d.endpoint)
            prompts = [prompt_of(390, n) for n in range(4)]
            for round_ in range(2):
                for n, p in enumerate(prompts):
                    generate(c, p, 8, f"{kind}: prompt {n}, round {round_}")
            same(generate(c, prompts[3], 8, kind)[0], 384, f"{kind}: the last one")
            shared = prompts[3][:200]
            same(generate(c, shared, 8, f"{kind}: the middle of a known one")[0] % PAGE, 0, "whole pages")


def test_sequences_at_once():
    for kind in ("cpu", "split", "tiers"):
        with start(kind) as d:
            c = Client(d.endpoint)
            prompts = [prompt_of(20 + 97 * n, n) for n in range(7)] + [prompt_of(20 + 97 * 6, 6)] * 2
            for round_ in range(2):
                streams = [c.generate(p, 60 - n, ignore_eos=True) for n, p in enumerate(prompts)]
                c.run(*streams)
                for n, (p, s) in enumerate(zip(prompts, streams)):
                    check_stream(p, s, 60 - n, f"{kind}: sequence {n} of 9, round {round_}")
                gone = c.generate(prompt_of(300, 9), 300, ignore_eos=True)
                while len(gone.tokens) < 5:
                    c.receive()
                Client(d.endpoint).ask("cancel", id=gone.id)
                c.run(gone)


def test_preempted_sequences_go_on():
    for kind in ("cpu", "gpu"):
        for options in ((), ("--prefix-cache", "off")):
            with start(kind, *options, context_tokens=512, page_count=24, window_page_count=20, slots=3) as d:
                c = Client(d.endpoint)
                prompts = [prompt_of(180, n) for n in range(3)]
                streams = [c.generate(p, 160, ignore_eos=True) for p in prompts]
                c.run(*streams)
                for n, (p, s) in enumerate(zip(prompts, streams)):
                    check_stream(p, s, 160, f"{kind}: sequence {n} of those that give way")
                check(status_of(d).preemptions_total > 0, f"{kind}: nothing was preempted")


def stopped_midway(d, c, worker, prompts, count):
    """Streams of which none has ended and each has some tokens, and their worker, which is stopped."""
    for _ in range(50):
        victim, streams = d.children()[worker], [c.generate(p, count, ignore_eos=True) for p in prompts]
        while min(len(s.tokens) for s in streams) < 10 and not any(s.ended for s in streams):
            os.kill(victim, signal.SIGCONT)
            time.sleep(0.002)
            os.kill(victim, signal.SIGSTOP)
            while c.socket.poll(20):
                c.receive()
        if not any(s.ended for s in streams):
            return victim, streams
        os.kill(victim, signal.SIGCONT)
        c.run(*streams)
    raise AssertionError(f"{worker} computes {count} tokens before it can be stopped")


def test_a_workers_death_costs_no_token():
    for kind in ("cpu", "split", "tiers"):
        for worker in [w for w in ("cpu", "gpu") if w[0] in "".join(HOMES[kind][:3])]:
            with start(kind) as d:
                c = Client(d.endpoint)
                prompts = [prompt_of(150, n) for n in range(2)]
                for sig in (signal.SIGKILL, signal.SIGABRT):
                    victim, streams = stopped_midway(d, c, worker, prompts, 200)
                    os.kill(victim, sig)
                    if sig != signal.SIGKILL:
                        os.kill(victim, signal.SIGCONT)
                    c.run(*streams, timeout=60)
                    for n, (p, s) in enumerate(zip(prompts, streams)):
                        check_stream(p, s, 200, f"{kind}: sequence {n} after {worker}'s {sig.name}")
                same(generate(c, prompts[0], 4, kind)[0], 128, f"{kind}: found afterwards")


def test_a_session_takes_its_windows_along():
    path = os.path.join(FOLDER.name, "session")

    def cli(d, *words, fails=False):
        done = processor.run([os.path.join(BIN, "helm-cli"), "--connect", d.endpoint, "session", *words],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60 * SLOW)
        same(done.returncode != 0, fails, f"helm-cli session {words[0]}: {done.stderr}")
        return done.stderr
    for count in (300, 45):  # a whole window, and less than one
        prompt, whole = prompt_of(count), (count - 1) // PAGE * PAGE
        said = f"{whole} of {count} tokens"
        for kind in ("cpu", "cpu", "halves", "tiers"):
            with start(kind) as d:
                c = Client(d.endpoint)
                if kind == "cpu" and not os.path.exists(f"{path}-{count}"):
                    check(said in cli(d, "save", f"{path}-{count}", "--tokens", ",".join(map(str, prompt))), "saved")
                    continue
                check(said in cli(d, "restore", f"{path}-{count}"), f"{kind}: restored")
                check(said in cli(d, "restore", f"{path}-{count}"), f"{kind}: restored again")
                same(generate(c, prompt, 30, f"{kind}: restored")[0], whole, f"{kind}: found")
                cli(d, "save", f"{path}-{count}", "--tokens", ",".join(map(str, prompt)))
    with open(f"{path}-300", "r+b") as f:  # the last numbers of the windows are none
        text = bytearray(f.read())
    with open(path, "wb") as f:
        f.write(text[:-30] + b"\xff" + text[-29:])
    with start("cpu") as d:
        check("damaged" in cli(d, "restore", path, fails=True), "a damaged window")
    with running("--device", "cpu", *OPTIONS, real=True, model=MODEL, plan=plan_of("cpu", windows={})) as d:
        check("layers" in cli(d, "restore", f"{path}-300", fails=True), "of a plan whose layers all keep pages")


def test_a_model_whose_layers_all_have_a_window():
    """The first layer keeps all pages."""
    model, path = os.path.join(FOLDER.name, "all"), os.path.join(FOLDER.name, "session-all")
    make_model(model, ["sliding_attention"] * LAYERS)
    prompt = prompt_of(300)

    def answers(windows, *commands):
        with running("--device", "cpu", *OPTIONS, real=True, model=model, plan=plan_of("cpu", windows)) as d:
            c, got = Client(d.endpoint), []
            for what in commands:
                if what != "ask":
                    tokens = ["--tokens", ",".join(map(str, prompt))] if what == "save" else []
                    subprocess.run([os.path.join(BIN, "helm-cli"), "--connect", d.endpoint, "session", what, path] + tokens, check=True,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                    continue
                s = c.generate(prompt, 60, ignore_eos=True)
                c.run(s)
                got.append((s.tokens, s.done.usage.cached_tokens))
            return got
    kept = {**WINDOWS, "states": [{"layers": [0, 0], "kind": "pages"}, {"layers": [1, LAYERS - 1], "kind": "window"}]}
    want = answers({}, "ask")[0][0]
    same(answers(kept, "ask", "ask", "save"), [(want, 0), (want, 288)], "in windows")
    same(answers(kept, "restore", "ask"), [(want, 288)], "restored")
    with running("--device", "cpu", "--parallel", 2, "--ctx", 2048, *OPTIONS, real=True, model=model) as d:
        same(json.loads(Client(d.endpoint).ask("plan").plan.json)["states"],
             [{"layers": [0, 0], "kind": "pages"}, {"layers": [1, LAYERS - 1], "kind": "window"}], "the planner's own")
    d = Daemon("--device", "cpu", *OPTIONS, real=True, model=model,
               plan=plan_of("cpu", {**WINDOWS, "states": [{"layers": [0, LAYERS - 1], "kind": "window"}]}))
    check(d.ready.startswith("error") and "one has to keep all pages" in d.ready, d.ready)
    d.close()


def test_an_invariant_plan():
    for kind in ("cpu", "gpu"):
        with start(kind, "--invariant", "on") as d:
            c = Client(d.endpoint)
            prompt = prompt_of(300)
            first, again = generate(c, prompt, 100, f"{kind}: invariant"), generate(c, prompt, 100, f"{kind}: invariant")
            same((first[0], again[0]), (0, 288), f"{kind}: found")


def test_what_the_ledger_says():
    with start("cpu") as d:
        plan = json.loads(Client(d.endpoint).ask("plan").plan.json)
        lines = {line["what"]: line["bytes"] for line in plan["host"]["lines"]}
        pages = plan["window_page_count"]
        check(pages < plan["page_count"], f"{pages} pages of windows, of {plan['page_count']}")
        same(lines[f"windows of 2 layers, {pages} pages of 32 tokens"], 2 * pages * CELLS, "windows")
        same(lines[f"KV cache, {plan['page_count']} pages of 32 tokens"] // CELLS, 2 * plan["page_count"], "pages of the other two")
    for windows, said in [({**WINDOWS, "window_tokens": 41}, "layer 0 has a window of 40 tokens, in the plan of 41"),
                          ({**WINDOWS, "window_page_count": 10}, "2 layers keep a window of 40 tokens in 10 pages"),
                          ({**WINDOWS, "states": [{"layers": [0, 1], "kind": "window"}, {"layers": [2, 3], "kind": "pages"}]}, "layer 1 keeps 'pages'"),
                          ({"window_tokens": 40, "window_page_count": 40}, "0 layers keep a window")]:
        d = Daemon("--device", "cpu", *OPTIONS, real=True, model=MODEL, plan=plan_of("cpu", windows))
        check(d.ready.startswith("error") and said in d.ready, f"{windows}: {d.ready}")
        d.close()


def test_both_page_tables_are_one_chain():
    """A GPU's chain goes on from a layer with a window to one that keeps all pages: there are no more chains than without windows."""
    said = []
    for windows in (WINDOWS, {}):
        with running("--device", "emulated", "--threads", 2, real=True, model=MODEL, plan=plan_of("gpu", windows, kv_dtype="f16")) as d:
            same("windows of" in d.log(), windows is WINDOWS, "which layers keep a window")
            said.append(re.search(r"chains \((\d+ operations in \d+), ", d.log()).group(1))
            prompt = prompt_of(100)
            c = Client(d.endpoint)
            s = c.generate(prompt, 60, ignore_eos=True)
            c.run(s)
            said.append(s.tokens)
    same(said[:2], said[2:], "chains and tokens with windows, and without")
    check(said[0].endswith(" in 1"), said[0])


if __name__ == "__main__":
    make_model(MODEL, ["sliding_attention", "full_attention"] * (LAYERS // 2))
    try:
        run_tests(globals())
    finally:
        if Reference.daemon:
            Reference.daemon.close()
