#!/usr/bin/python3
"""Reference models and outputs of Phi-3, OPT and Granite, without transformers.

  plain_references.py --out DIR [phi3] [opt] [granite]      (default: all; a minute on a CPU)
  plain_references.py --check DIR [phi3] [opt] [granite]    what transformers says of the same steps, which needs torch

Makes a small random checkpoint of each with the tensor names of published ones (bf16), and golden.json: greedy steps of a
forward pass in numpy (float64 over the weights as stored), written from the published definitions: Abdin et al. 2024 and
Ding et al. 2024 (LongRoPE) for Phi-3, Zhang et al. 2022 for OPT, IBM's model cards for Granite. Every step computes the whole
sequence again: no cache. "short" in Phi-3's golden.json has cases by the short factors; "cases" are by the long ones.
tests/data/golden/README.md says how to compare. Needs numpy (apt-get install python3-numpy)."""
import argparse
import json
import math
import os
import struct
import sys

import numpy as np

STEPS, TOP = 24, 20
PROMPTS = [1, 2, 7, 16, 33, 64, 130, 300]
SHORT_PROMPTS, SHORT_STEPS = [5, 60], 12
COMMON = {"vocab_size": 256, "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2, "bos_token_id": 0,
          "eos_token_id": 1, "pad_token_id": 2, "dtype": "bfloat16", "use_cache": True, "attention_dropout": 0.0}
# Heads of 32: 16 factors each. A window that the longest prompts leave.
PHI3 = dict(COMMON, architectures=["Phi3ForCausalLM"], model_type="phi3", num_key_value_heads=1, intermediate_size=128,
            hidden_act="silu", max_position_embeddings=4096, original_max_position_embeddings=128, rms_norm_eps=1e-5,
            sliding_window=150, tie_word_embeddings=False, rope_theta=10000.0,
            rope_scaling={"type": "longrope", "short_factor": [round(1 + 0.02 * i, 2) for i in range(16)],
                          "long_factor": [round(1 + 0.15 * i + 0.1 * i * i, 2) for i in range(16)]})
OPT = dict(COMMON, architectures=["OPTForCausalLM"], model_type="opt", ffn_dim=96, activation_function="relu",
           max_position_embeddings=1120, word_embed_proj_dim=64, do_layer_norm_before=True, enable_bias=True,
           layer_norm_elementwise_affine=True, tie_word_embeddings=True)
GRANITE = dict(COMMON, architectures=["GraniteForCausalLM"], model_type="granite", num_key_value_heads=1,
               intermediate_size=128, hidden_act="silu", max_position_embeddings=4096, rms_norm_eps=1e-5,
               attention_bias=True, mlp_bias=False, tie_word_embeddings=False, rope_theta=10000.0,
               embedding_multiplier=12.0, residual_multiplier=0.35, attention_multiplier=0.09, logits_scaling=0.5)
CONFIGS = {"phi3": (PHI3, 21), "opt": (OPT, 22), "granite": (GRANITE, 23)}


# ---- checkpoints ----

def to_bf16(x):
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(np.uint16)


class Weights:
    """Random tensors by name, rounded to bf16."""

    def __init__(self, seed):
        self.random, self.bits, self.values = np.random.default_rng(seed), {}, {}

    def add(self, name, shape, spread, around=0.0):
        self.bits[name] = to_bf16(around + spread * self.random.standard_normal(shape))
        self.values[name] = (self.bits[name].astype(np.uint32) << 16).view(np.float32).astype(np.float64)

    def matrix(self, name, rows, cols, gain=1.0):
        self.add(name, (rows, cols), gain / math.sqrt(cols))

    def norm(self, name, size, bias=False):
        self.add(name + ".weight", size, 0.1, 1.0)
        if bias:
            self.add(name + ".bias", size, 0.1)

    def linear(self, name, rows, cols, bias=False):
        self.matrix(name + ".weight", rows, cols)
        if bias:
            self.add(name + ".bias", rows, 0.05)

    def save(self, path):
        header, data = {"__metadata__": {"format": "pt"}}, b""
        for name, bits in self.bits.items():
            header[name] = {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": [len(data), len(data) + bits.nbytes]}
            data += bits.tobytes()
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + data)


def make_weights(c, seed):
    w, hidden, kind = Weights(seed), c["hidden_size"], c["model_type"]
    kv = hidden // c["num_attention_heads"] * c.get("num_key_value_heads", c["num_attention_heads"])
    at = "model.decoder." if kind == "opt" else "model."
    w.matrix(at + "embed_tokens.weight", c["vocab_size"], hidden)
    if kind == "opt":
        w.add(at + "embed_positions.weight", (c["max_position_embeddings"] + 2, hidden), 0.1)
    for layer in range(c["num_hidden_layers"]):
        p = f"{at}layers.{layer}."
        if kind == "opt":
            w.norm(p + "self_attn_layer_norm", hidden, True)
            for n in ("q_proj", "k_proj", "v_proj", "out_proj"):
                w.linear(p + "self_attn." + n, hidden, hidden, True)
            w.norm(p + "final_layer_norm", hidden, True)
            w.linear(p + "fc1", c["ffn_dim"], hidden, True)
            w.linear(p + "fc2", hidden, c["ffn_dim"], True)
            continue
        w.norm(p + "input_layernorm", hidden)
        if kind == "phi3":
            w.linear(p + "self_attn.qkv_proj", hidden + 2 * kv, hidden)
        else:
            for n, rows in ("q_proj", hidden), ("k_proj", kv), ("v_proj", kv):
                w.linear(p + "self_attn." + n, rows, hidden, c["attention_bias"])
        w.linear(p + "self_attn.o_proj", hidden, hidden, c.get("attention_bias", False))
        w.norm(p + "post_attention_layernorm", hidden)
        if kind == "phi3":
            w.linear(p + "mlp.gate_up_proj", 2 * c["intermediate_size"], hidden)
        else:
            w.linear(p + "mlp.gate_proj", c["intermediate_size"], hidden)
            w.linear(p + "mlp.up_proj", c["intermediate_size"], hidden)
        w.linear(p + "mlp.down_proj", hidden, c["intermediate_size"])
    if kind == "opt":  # around 0, so that a tied head does not say the input again
        w.add(at + "final_layer_norm.weight", hidden, 1.5)
        w.add(at + "final_layer_norm.bias", hidden, 0.1)
    else:
        w.norm(at + "norm", hidden)
    if not c["tie_word_embeddings"]:
        w.matrix("lm_head.weight", c["vocab_size"], hidden)
    return w


# ---- forward passes ----

def linear(x, w, name):
    out = x @ w[name + ".weight"].T
    return out + w[name + ".bias"] if name + ".bias" in w else out


def rms_norm(x, w, name, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w[name + ".weight"]


def layer_norm(x, w, name):
    off = x - x.mean(-1, keepdims=True)
    return off / np.sqrt((off * off).mean(-1, keepdims=True) + 1e-5) * w[name + ".weight"] + w[name + ".bias"]


def rotate(x, inv_freq, scale):
    """[tokens][heads][dim]: value i turns with value i + dim / 2."""
    angle = np.arange(len(x))[:, None] * inv_freq[None, :]
    cos, sin = scale * np.cos(angle)[:, None, :], scale * np.sin(angle)[:, None, :]
    a, b = np.split(x, 2, -1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def attend(q, k, v, score_scale, window):
    tokens, heads, dim = q.shape
    behind = np.arange(tokens)[:, None] - np.arange(tokens)[None, :]
    hidden = (behind < 0) | (behind >= window)
    out = np.empty_like(q)
    for h in range(heads):
        of = h // (heads // k.shape[1])
        score = np.where(hidden, -np.inf, q[:, h] @ k[:, of].T * score_scale)
        part = np.exp(score - score.max(-1, keepdims=True))
        out[:, h] = part / part.sum(-1, keepdims=True) @ v[:, of]
    return out.reshape(tokens, heads * dim)


def silu(x):
    return x / (1 + np.exp(-x))


def rope(c, long):
    dim = c["hidden_size"] // c["num_attention_heads"]
    base, scaling = c["rope_theta"] ** (np.arange(0, dim, 2) / dim), c.get("rope_scaling")
    if not scaling:
        return 1 / base, 1.0
    original = c["original_max_position_embeddings"]
    stretch = c["max_position_embeddings"] / original
    return 1 / (np.array(scaling["long_factor" if long else "short_factor"]) * base), \
        math.sqrt(1 + math.log(stretch) / math.log(original))


def last_logits(ids, w, c, long):
    """Phi-3's and Granite's, which is a Llama with multipliers."""
    heads, dim = c["num_attention_heads"], c["hidden_size"] // c["num_attention_heads"]
    kv, eps, add = c["num_key_value_heads"], c["rms_norm_eps"], c.get("residual_multiplier", 1.0)
    inv_freq, scale = rope(c, long)
    x = w["model.embed_tokens.weight"][ids] * c.get("embedding_multiplier", 1.0)
    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        h = rms_norm(x, w, p + "input_layernorm", eps)
        if c["model_type"] == "phi3":
            q, k, v = np.split(linear(h, w, p + "self_attn.qkv_proj"), [heads * dim, (heads + kv) * dim], -1)
        else:
            q, k, v = (linear(h, w, f"{p}self_attn.{n}_proj") for n in "qkv")
        q, k, v = (t.reshape(len(ids), -1, dim) for t in (q, k, v))
        a = attend(rotate(q, inv_freq, scale), rotate(k, inv_freq, scale), v, c.get("attention_multiplier", dim ** -0.5),
                   c.get("sliding_window") or 1 << 30)
        x = x + add * linear(a, w, p + "self_attn.o_proj")
        h = rms_norm(x, w, p + "post_attention_layernorm", eps)
        if c["model_type"] == "phi3":
            gate, up = np.split(linear(h, w, p + "mlp.gate_up_proj"), 2, -1)
        else:
            gate, up = linear(h, w, p + "mlp.gate_proj"), linear(h, w, p + "mlp.up_proj")
        x = x + add * linear(silu(gate) * up, w, p + "mlp.down_proj")
    head = "model.embed_tokens" if c["tie_word_embeddings"] else "lm_head"
    return linear(rms_norm(x[-1:], w, "model.norm", eps), w, head)[0] / c.get("logits_scaling", 1.0)


def last_logits_opt(ids, w, c, long):
    heads, at = c["num_attention_heads"], "model.decoder."
    x = w[at + "embed_tokens.weight"][ids] + w[at + "embed_positions.weight"][2:2 + len(ids)]
    for layer in range(c["num_hidden_layers"]):
        p = f"{at}layers.{layer}."
        h = layer_norm(x, w, p + "self_attn_layer_norm")
        q, k, v = (linear(h, w, f"{p}self_attn.{n}_proj").reshape(len(ids), heads, -1) for n in "qkv")
        x = x + linear(attend(q, k, v, q.shape[-1] ** -0.5, 1 << 30), w, p + "self_attn.out_proj")
        h = layer_norm(x, w, p + "final_layer_norm")
        x = x + linear(np.maximum(linear(h, w, p + "fc1"), 0), w, p + "fc2")
    return linear(layer_norm(x[-1:], w, at + "final_layer_norm"), w, at + "embed_tokens")[0]


# ---- golden.json ----

def walk(ids, steps, w, c, long, forward):
    ids, out = list(ids), []
    for _ in range(steps):
        logits = forward(ids, w, c, long)  # of a mixture also the least margin of its choices, of all tokens
        logits, margin = logits if isinstance(logits, tuple) else (logits, None)
        logprobs = logits - logits.max()
        logprobs -= math.log(np.exp(logprobs).sum())
        best = np.argsort(-logprobs, kind="stable")[:TOP]
        top = [[int(t), round(float(logprobs[t]), 6)] for t in best]
        out.append({"token": top[0][0], "gap": round(top[0][1] - top[1][1], 6), "top": top} |
                   ({} if margin is None else {"router_margin": round(float(margin), 6)}))
        ids.append(top[0][0])
    return out


def make(name, out, kinds):
    c, seed = kinds.configs[name]
    w, random = kinds.weights(c, seed), np.random.default_rng(seed + 100)
    folder = os.path.join(out, name)
    os.makedirs(folder, exist_ok=True)
    w.save(os.path.join(folder, "model.safetensors"))
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(c, file, indent=1)
        file.write("\n")

    def cases(lengths, steps, long):
        prompts = [random.integers(3, c["vocab_size"], n).tolist() for n in lengths]
        return [{"prompt": p, "steps": walk(p, steps, w.values, c, long, kinds.forward[c["model_type"]])} for p in prompts]
    golden = {"made_by": "tests/golden/" + os.path.basename(sys.argv[0]), "cases": cases(PROMPTS, STEPS, True)}
    if name == "phi3":
        golden["short"] = cases(SHORT_PROMPTS, SHORT_STEPS, False)
    with open(os.path.join(folder, "golden.json"), "w", encoding="utf-8") as file:
        json.dump(golden, file, separators=(",", ":"))
        file.write("\n")
    gaps = sorted(s["gap"] for case in golden["cases"] for s in case["steps"])
    print(f"{name}: {sum(g > 0.4 for g in gaps)} of {len(gaps)} gaps above 0.4, median {gaps[len(gaps) // 2]:.3f}; "
          f"{len({s['token'] for case in golden['cases'] for s in case['steps']})} tokens", flush=True)


def compare(name, folder):
    """The largest distance of a logprob from transformers' in float32. Its Phi-3 takes the factors by the length of what it reads:
    "cases" have the long ones."""
    import torch
    from expert_references import load
    model, folder = load(name, os.path.join(folder, name)), os.path.join(folder, name)
    with open(os.path.join(folder, "golden.json"), encoding="utf-8") as file:
        cases = json.load(file)["cases"]
    steps, worst = 0, 0.0
    for case in cases:
        ids = list(case["prompt"])
        for step in case["steps"]:
            if name != "phi3" or len(ids) > PHI3["original_max_position_embeddings"]:
                with torch.no_grad():
                    logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1].double()
                logprobs = torch.log_softmax(logits, -1)
                steps, worst = steps + 1, max([worst] + [abs(logprobs[t].item() - v) for t, v in step["top"]])
            ids.append(step["token"])
    print(f"{name}: {steps} steps, logprobs at most {worst:.1e} from transformers'", flush=True)
    return worst < 1e-4


class Kinds:
    """Configurations with their seeds by name; how weights are made; forward passes by model_type."""

    def __init__(self, configs, weights, forward):
        self.configs, self.weights, self.forward = configs, weights, forward


def main(configs, weights, forward, about):
    kinds = Kinds(configs, weights, forward)
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--out")
    where.add_argument("--check")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    names = options.names or configs
    if options.check:
        sys.exit(0 if all([compare(name, options.check) for name in names]) else 1)
    for name in names:
        make(name, options.out, kinds)


if __name__ == "__main__":
    main(CONFIGS, make_weights, {"phi3": last_logits, "granite": last_logits, "opt": last_logits_opt}, __doc__)
