#!/usr/bin/python3
"""States of fixed size (docs/state.md) through real processes: the prefix cache, several sequences at once, preemption, workers'
deaths and sessions, on the CPU, the emulated device and both. The model is the test architecture's: two of its four layers keep
a running mean of their inputs and one of these means, the others attend. Every answer is held against a reference here, in plain Python: a state of
another sequence, or of another position, gives other tokens."""
import json
import math
import operator
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import processor  # noqa: E402
from helmd_harness import BIN, SLOW, Client, check, plan_json, run_tests, running, same, status_of, wait_until  # noqa: E402

PAGE, VOCAB, LAYERS, HIDDEN, HEADS, HEAD_DIM = 32, 64, 4, 32, 2, 16
RECORD = 2 * HEADS * HEAD_DIM * 4  # of two states
FOLDER = tempfile.TemporaryDirectory(prefix="helm-states-")
MODEL = os.path.join(FOLDER.name, "model")
CONFIG = {
    "architectures": ["HelmStateTestForCausalLM"], "model_type": "helm_state_test", "hidden_size": HIDDEN,
    "intermediate_size": 48, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": 1,
    "head_dim": HEAD_DIM, "vocab_size": VOCAB, "rms_norm_eps": 1e-6, "max_position_embeddings": 1024,
    "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu", "torch_dtype": "float32",
    "full_attention_interval": 2, "bos_token_id": 0, "eos_token_id": 1,
}
CLOSE = 0.001  # between the reference's logits, whose spread is about 1: everything is of fp32


def make_model():
    """Random numbers of fp32, so that all processors compute in it and agree."""
    rng, shapes = random.Random(36), {"model.embed_tokens": [VOCAB, HIDDEN], "model.norm": [HIDDEN], "lm_head": [VOCAB, HIDDEN]}
    for n in range(LAYERS):
        p, q = f"model.layers.{n}.", [HEADS * HEAD_DIM, HIDDEN]
        shapes.update({p + "input_layernorm": [HIDDEN], p + "post_attention_layernorm": [HIDDEN], p + "self_attn.q_proj": q,
                       p + "self_attn.o_proj": q[::-1], p + "mlp.gate_proj": [48, HIDDEN], p + "mlp.up_proj": [48, HIDDEN],
                       p + "mlp.down_proj": [HIDDEN, 48]})
        if (n + 1) % 2 == 0:
            shapes.update({p + "self_attn.k_proj": [HEAD_DIM, HIDDEN], p + "self_attn.v_proj": [HEAD_DIM, HIDDEN]})
    os.makedirs(MODEL)
    tensors, header, data = {}, {}, b""
    for name, shape in shapes.items():
        cols, rows = shape[-1], shape[0] if len(shape) == 2 else 1
        mean, spread = (0, cols ** -0.5) if len(shape) == 2 else (1, 0.05)
        packed = struct.pack(f"<{rows * cols}f", *[rng.gauss(mean, spread) for _ in range(rows * cols)])
        values = struct.unpack(f"<{rows * cols}f", packed)
        tensors[name] = [values[i:i + cols] for i in range(0, len(values), cols)]
        header[name + ".weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(MODEL, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    with open(os.path.join(MODEL, "config.json"), "w") as f:
        json.dump(CONFIG, f)
    return tensors


def dot(a, b):
    return sum(map(operator.mul, a, b))


def times(matrix, x):
    return [dot(row, x) for row in matrix]


def norm(x, weight):
    scale = 1 / math.sqrt(dot(x, x) / len(x) + 1e-6)
    return [v * scale * w for v, w in zip(x, weight[0])]


def rotate(x, position):
    half = len(x) // 2
    angles = [position * 10000.0 ** (-i / half) for i in range(half)]
    return [x[i] * math.cos(a) - x[i + half] * math.sin(a) for i, a in enumerate(angles)] + \
           [x[i + half] * math.cos(a) + x[i] * math.sin(a) for i, a in enumerate(angles)]


class Reference:
    """One sequence, token by token; logits of what comes next. `forget`: the running means begin anew at this position."""

    weights, ends = [], []

    def __init__(self, forget=None):
        self.position, self.forget, self.logits = 0, forget, None
        self.sums = [[[0.0] * (HEADS * HEAD_DIM)] * 2 for _ in range(LAYERS)]
        self.keys = [[] for _ in range(LAYERS)]
        self.values = [[[] for _ in range(HEAD_DIM)] for _ in range(LAYERS)]  # by column

    @classmethod
    def load(cls, tensors):
        for layer in range(LAYERS):
            prefix = f"model.layers.{layer}."
            cls.weights.append({n[len(prefix):]: t for n, t in tensors.items() if n.startswith(prefix)})
        cls.ends = [tensors[n] for n in ("model.embed_tokens", "model.norm", "lm_head")]

    def copy(self):
        other = Reference(self.forget)
        other.position, other.logits, other.sums = self.position, self.logits, list(self.sums)
        other.keys = [list(k) for k in self.keys]
        other.values = [[list(c) for c in v] for v in self.values]
        return other

    def attend(self, layer, h, w):
        q, k = times(w["self_attn.q_proj"], h), times(w["self_attn.k_proj"], h)
        self.keys[layer].append(rotate(k, self.position))
        for column, value in zip(self.values[layer], times(w["self_attn.v_proj"], h)):
            column.append(value)
        out = []
        for head in range(HEADS):
            mine = rotate(q[head * HEAD_DIM:(head + 1) * HEAD_DIM], self.position)
            scores = [dot(mine, key) / math.sqrt(HEAD_DIM) for key in self.keys[layer]]
            most = max(scores)
            weights = [math.exp(s - most) for s in scores]
            total = sum(weights)
            out += [dot(weights, column) / total for column in self.values[layer]]
        return out

    def mean(self, layer, h, w):
        x = times(w["self_attn.q_proj"], h)
        sums = [[0.0] * (HEADS * HEAD_DIM)] * 2 if self.forget == self.position else self.sums[layer]
        self.sums[layer] = []
        for before in sums:
            self.sums[layer].append(list(map(operator.add, before, x)))
            x = [s / (self.position + 1) for s in self.sums[layer][-1]]
        return x

    def take(self, token):
        embed, final, head = self.ends
        x = embed[token]
        for layer, w in enumerate(self.weights):
            h = norm(x, w["input_layernorm"])
            a = (self.attend if (layer + 1) % 2 == 0 else self.mean)(layer, h, w)
            x = list(map(operator.add, x, times(w["self_attn.o_proj"], a)))
            h = norm(x, w["post_attention_layernorm"])
            gate, up = times(w["mlp.gate_proj"], h), times(w["mlp.up_proj"], h)
            inner = [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up)]
            x = list(map(operator.add, x, times(w["mlp.down_proj"], inner)))
        self.position += 1
        self.logits = times(head, norm(x, final))


known = {}  # references after beginnings of sequences: most of the tests' begin alike


def misses(prompt, tokens, forget=None):
    """By how much the reference prefers others of its own to these tokens, at most."""
    every = tuple(prompt) + tuple(tokens)
    at = len(prompt) if forget is None else 0
    while at and every[:at] not in known:
        at -= 1
    sequence, worst = known[every[:at]].copy() if at else Reference(forget), 0.0
    for i in range(at, len(every)):
        if i >= len(prompt):
            worst = max(worst, max(sequence.logits) - sequence.logits[every[i]])
        sequence.take(every[i])
        if forget is None and (i + 1 == len(prompt) or (i + 1) % 32 == 0 and i < len(prompt)):
            known[every[:i + 1]] = sequence.copy()
    return worst


checked = {}


def check_tokens(prompt, tokens, count, what):
    same(len(tokens), count, f"{what}: tokens")
    key = (tuple(prompt), tuple(tokens))
    if key not in checked:
        checked[key] = misses(prompt, tokens)
    check(checked[key] <= CLOSE, f"{what}: the reference prefers others by {checked[key]}: {tokens}")


def prompt_of(count, kind=0):
    return [2 + (i * 7 + i // 30 + kind * 11 + i * i * kind) % (VOCAB - 2) for i in range(count)]


def generate(c, prompt, count, what, seed=0):
    """A request whose answer must be right. How many of its prompt's tokens were found, and the answer."""
    s = c.generate(prompt, count, seed=seed, ignore_eos=True)
    c.run(s)
    check(not s.error, f"{what}: {s.error}")
    check_tokens(prompt, s.tokens, count, what)
    return s.done.usage.cached_tokens, s.tokens


OPTIONS = ("--kv-dtype", "f32", "--threads", 2, "--activations", "exact")
PLANS = {"gpu": plan_json(LAYERS, "gggg", "g", "g", kv_dtype="f32"),
         "split": plan_json(LAYERS, "gcgg", "c", "g", kv_dtype="f32"),
         "halves": plan_json(LAYERS, "cgggccgc", "g", "c", kv_dtype="f32"),
         # the GPU computes prompts' layers whose states the CPU keeps: all of them, and some
         "borrowed": plan_json(LAYERS, "cccc", "c", "c", prefill="ssss", prefill_from=17, ring_bytes=1 << 20, kv_dtype="f32"),
         "partly": plan_json(LAYERS, "ccgg", "c", "g", prefill="scgg", prefill_from=17, ring_bytes=1 << 20, kv_dtype="f32")}


def start(kind, *options, **sizes):
    if kind == "cpu":
        return running("--device", "cpu", *OPTIONS, *options, real=True, model=MODEL)
    return running("--device", "emulated", *OPTIONS, *options, real=True, model=MODEL, plan={**PLANS[kind], **sizes})


KINDS = ["cpu", "gpu", "split", "halves", "borrowed", "partly"]


def test_the_reference_tells_states_apart():
    prompt, sequence, tokens = prompt_of(40), Reference(), []
    for token in prompt:
        sequence.take(token)
    for _ in range(8):
        tokens.append(sequence.logits.index(max(sequence.logits)))
        sequence.take(tokens[-1])
    same(misses(prompt, tokens), 0.0, "the reference's own tokens")
    check(misses(prompt, tokens, forget=32) > 100 * CLOSE, "without the state of 32 tokens")


def test_prompts_begin_at_snapshots():
    for kind in KINDS:
        with start(kind) as d:
            c = Client(d.endpoint)
            prompt = prompt_of(200)
            found, answer = generate(c, prompt, 70, kind)
            same(found, 0, f"{kind}: found the first time")
            same(generate(c, prompt, 4, kind)[0], 192, f"{kind}: the same prompt again, or an answer regenerated")
            same(generate(Client(d.endpoint), prompt[:195] + prompt_of(9, 1), 4, kind)[0], 192, f"{kind}: an edited end")
            same(generate(c, prompt + answer + prompt_of(9, 2), 4, kind)[0], 256, f"{kind}: the next turn")
            same(generate(c, prompt[:100] + prompt_of(60, 3), 4, kind)[0], 0, f"{kind}: pages alone are of no use")
            same(generate(c, prompt[:100] + prompt_of(60, 3), 4, kind)[0], 128, f"{kind}: the same again")


def test_sequences_at_once_mix_no_states():
    for kind in KINDS:
        with start(kind, "--parallel", 8) as d:
            c = Client(d.endpoint)
            prompts = [prompt_of(20 + 13 * n, n) for n in range(7)] + [prompt_of(20 + 13 * 6, 6)]
            for round_ in range(2):
                streams = [c.generate(p, 24 - n, ignore_eos=True) for n, p in enumerate(prompts)]
                c.run(*streams)
                for n, (p, s) in enumerate(zip(prompts, streams)):
                    check(not s.error, f"{kind}: {s.error}")
                    check_tokens(p, s.tokens, 24 - n, f"{kind}: sequence {n} of 8, round {round_}")


def test_preempted_sequences_go_on_from_snapshots():
    for kind, options in [("cpu", ("--ctx", 256, "--kv-tokens", 288)), ("cpu", ("--ctx", 256, "--kv-tokens", 288,
                                                                               "--prefix-cache", "off"))]:
        with start(kind, *options) as d:
            c = Client(d.endpoint)
            prompts = [prompt_of(90, n) for n in range(3)]
            streams = [c.generate(p, 100, ignore_eos=True) for p in prompts]
            c.run(*streams)
            for n, (p, s) in enumerate(zip(prompts, streams)):
                check_tokens(p, s.tokens, 100, f"{kind}: sequence {n} of those that give way")
            check(status_of(d).preemptions_total > 0, f"{kind}: nothing was preempted")
    with start("gpu", context_tokens=256, page_count=9) as d:
        c = Client(d.endpoint)
        streams = [c.generate(prompt_of(90, n), 100, ignore_eos=True) for n in range(3)]
        c.run(*streams)
        for n, s in enumerate(streams):
            check_tokens(prompt_of(90, n), s.tokens, 100, f"gpu: sequence {n} of those that give way")
        check(status_of(d).preemptions_total > 0, "gpu: nothing was preempted")


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
    for kind, worker in [("cpu", "cpu"), ("gpu", "gpu"), ("split", "cpu"), ("split", "gpu"), ("borrowed", "cpu"), ("borrowed", "gpu")]:
        with start(kind) as d:
            c = Client(d.endpoint)
            prompts = [prompt_of(70, n) for n in range(2)]
            for sig in (signal.SIGKILL, signal.SIGABRT):
                victim, streams = stopped_midway(d, c, worker, prompts, 150)
                os.kill(victim, sig)
                if sig != signal.SIGKILL:
                    os.kill(victim, signal.SIGCONT)
                c.run(*streams, timeout=60)
                for n, (p, s) in enumerate(zip(prompts, streams)):
                    check(not s.error, f"{kind}: {s.error}")
                    check_tokens(p, s.tokens, 150, f"{kind}: sequence {n} after {worker}'s {sig.name}")
            # A worker can compute its last tokens while it dies.
            wait_until(lambda: d.log().count(f"worker {worker}: pid") >= 3, 30)
            same(d.log().count(f"worker {worker}: pid"), 3, f"{kind}: workers one after another")
            same(generate(c, prompts[0], 4, kind)[0], 64, f"{kind}: found afterwards")


def test_a_session_takes_its_state_along():
    path = os.path.join(FOLDER.name, "session")
    prompt = prompt_of(200)

    def cli(d, *words):
        done = processor.run([os.path.join(BIN, "helm-cli"), "--connect", d.endpoint, "session", *words],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60 * SLOW)
        same(done.returncode, 0, f"helm-cli session {words[0]}: {done.stderr}")
        return done.stderr
    with start("cpu") as d:
        check("192 of 200 tokens" in cli(d, "save", path, "--tokens", ",".join(map(str, prompt))), "saved")
    for kind in KINDS:
        with start(kind) as d:
            check("192 of 200 tokens" in cli(d, "restore", path), f"{kind}: restored")
            check("192 of 200 tokens" in cli(d, "restore", path), f"{kind}: restored again")
            same(generate(Client(d.endpoint), prompt, 30, f"{kind}: restored")[0], 192, f"{kind}: found")
            cli(d, "save", path, "--tokens", ",".join(map(str, prompt)))
    with open(path, "r+b") as f:  # the last number of the state is none
        text = bytearray(f.read())
    with start("cpu") as d:
        broken = path + "-broken"
        with open(broken, "wb") as f:
            f.write(text[:-30] + b"\xff" + text[-29:])
        done = processor.run([os.path.join(BIN, "helm-cli"), "--connect", d.endpoint, "session", "restore", broken],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60 * SLOW)
        check(done.returncode != 0 and "damaged" in done.stderr, f"a damaged state: {done.stderr}")


def test_two_tiers_move_pages_and_no_state():
    for permille in (1000, 0):  # the GPU reads what lies in host memory alone, or the CPU attends to it
        with start("gpu", "--parallel", 2, context_tokens=512, page_count=40, vram_page_count=8, slots=2, step_tokens=64,
                   kv_direct_permille=permille) as d:
            c = Client(d.endpoint)
            prompts = [prompt_of(170, n) for n in range(2)]
            for found in ([0, 0], [160, 160]):
                streams = [c.generate(p, 60, ignore_eos=True) for p in prompts]
                c.run(*streams)
                for n, (p, s) in enumerate(zip(prompts, streams)):
                    check(not s.error, f"{s.error}")
                    check_tokens(p, s.tokens, 60, f"two tiers, {permille}: sequence {n}")
                same([s.done.usage.cached_tokens for s in streams], found, f"two tiers, {permille}: found")


def test_the_least_used_snapshot_gives_way():
    with start("cpu", "--state-snapshots", 2 * 2 * RECORD) as d:
        c = Client(d.endpoint)
        check("2 snapshots of fixed states" in d.log(), "the ledger's line")
        prompts = [prompt_of(100, n) for n in range(3)]
        same([generate(c, p, 4, "few")[0] for p in prompts], [0, 0, 0], "first")
        same([generate(c, prompts[n], 4, "few")[0] for n in (1, 2)], [96, 96], "the newest two")
        same([generate(c, prompts[n], 4, "few")[0] for n in (0, 2, 1)], [0, 96, 0], "the other took the place of one")
    with start("cpu", "--state-snapshots", 1) as d:  # room for none
        c = Client(d.endpoint)
        same([generate(c, prompt_of(100), 4, "none")[0] for _ in range(2)], [0, 0], "without snapshots")


def test_an_invariant_plan():
    with start("cpu", "--invariant", "on") as d:
        c = Client(d.endpoint)
        prompt = prompt_of(200)
        first, again = generate(c, prompt, 40, "invariant"), generate(c, prompt, 40, "invariant")
        same((first[0], again[0]), (0, 192), "found")
        same(first[1], again[1], "tokens from a snapshot on")


def test_int8_activations_are_checked():
    """The check computes sixteen sequences in turns, twice each: with mixed states both ways would differ widely."""
    with running("--device", "cpu", "--threads", 2, "--weights", "q8_0", "--activations", "int8", real=True, model=MODEL) as d:
        said = [line for line in d.log().splitlines() if "KL divergence" in line][0]
        check(float(said.split("KL divergence ")[1].split()[0]) < 0.001, said)
        prompt = prompt_of(100)
        found = []
        for _ in range(2):
            c = Client(d.endpoint)
            s = c.generate(prompt, 8, ignore_eos=True)
            c.run(s)
            found.append(s.done.usage.cached_tokens)
            check(misses(prompt, s.tokens) < 0.2, f"{misses(prompt, s.tokens)}")
        same(found, [0, 96], "found")


def test_what_is_said_and_refused():
    with start("cpu", "--parallel", 4) as d:
        plan = json.loads(Client(d.endpoint).ask("plan").plan.json)
        same(plan["states"], [{"layers": [n, n], "kind": "pages"} if n % 2 else
                              {"layers": [n, n], "kind": "fixed", "bytes": RECORD} for n in range(LAYERS)], "states")
        lines = {line["what"]: line["bytes"] for line in plan["host"]["lines"]}
        same(lines["fixed states of 4 slots"], 4 * 2 * RECORD, "slots")
        check("(256 B a token)" in d.log(), "a token of two layers' cache")
        same((plan["state_snapshots"], lines["16 snapshots of fixed states"]), (16, 16 * 2 * RECORD), "snapshots")
        kv = [b for w, b in lines.items() if w.startswith("KV cache")][0]
        check(kv < plan["page_count"] * PAGE * 3 * HEAD_DIM * 4 * 2 + (2 << 20), "pages of two layers alone")
    with start("split") as d:
        plan = json.loads(Client(d.endpoint).ask("plan").plan.json)
        lines = {line["what"]: line["bytes"] for line in plan["vram"]["lines"]}
        same(lines["fixed states of 8 slots"], 8 * 2 * RECORD, "slots in VRAM")
    states = [{"layers": [0, 3], "kind": "pages"}]
    for options, plan, said in [(("--device", "cuda"), None, "a state of fixed size is not supported by GPU workers"),
                                (("--device", "emulated"), {**PLANS["gpu"], "states": states}, "layer 0 keeps 'fixed' of 256 bytes"),
                                (("--device", "emulated"),
                                 plan_json(LAYERS, "sggg", "g", "g", prefill="cggg", prefill_from=64, ring_bytes=1 << 20,
                                           kv_dtype="f32"),
                                 "the attention of layer 0 is on 'cpu', but its state is in VRAM")]:
        from helmd_harness import Daemon
        d = Daemon(*OPTIONS, *options, real=True, model=MODEL, plan=plan)
        check(d.ready.startswith("error") and said in d.ready, f"{options}: {d.ready}")
        d.close()


if __name__ == "__main__":
    Reference.load(make_model())
    run_tests(globals())
