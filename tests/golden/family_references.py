#!/usr/bin/python3
"""Reference models and outputs of GLM-4.5, without transformers.

  family_references.py --out DIR [glm4moe]      (default: all; a minute on a CPU)
  family_references.py --check DIR [glm4moe]    what transformers says of the same steps, which needs torch

As plain_references.py makes its own, in numpy (float64 over the weights as stored), from the published definitions: the GLM-4.5 Team
2025. Every step computes the whole sequence again: no cache. Needs numpy (apt-get install python3-numpy)."""
import numpy as np

import plain_references as plain

BASE = dict(plain.COMMON, num_key_value_heads=1, head_dim=32, hidden_act="silu", tie_word_embeddings=False,
            max_position_embeddings=4096, rms_norm_eps=1e-5, attention_bias=False, rope_theta=10000.0, intermediate_size=96)
# A dense layer before those with experts; half of each head turns; norms of heads, and biases.
GLM4MOE = dict(BASE, architectures=["Glm4MoeForCausalLM"], model_type="glm4_moe", num_hidden_layers=3, attention_bias=True,
               use_qk_norm=True, partial_rotary_factor=0.5, first_k_dense_replace=1, n_routed_experts=8, num_experts_per_tok=3,
               n_shared_experts=1, moe_intermediate_size=32, norm_topk_prob=True, routed_scaling_factor=2.5, n_group=1, topk_group=1)
CONFIGS = {"glm4moe": (GLM4MOE, 333)}


# ---- checkpoints ----

def is_sparse(c, layer):
    return "num_experts_per_tok" in c and layer >= c.get("first_k_dense_replace", 0)


def make_weights(c, seed):
    w, hidden = plain.Weights(seed), c["hidden_size"]
    q, kv = (c[name] * c["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    w.matrix("model.embed_tokens.weight", c["vocab_size"], hidden)
    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        w.norm(p + "input_layernorm", hidden)
        for name, rows in ("q", q), ("k", kv), ("v", kv):
            w.linear(f"{p}self_attn.{name}_proj", rows, hidden, c["attention_bias"])
        w.linear(p + "self_attn.o_proj", hidden, q)
        if c.get("use_qk_norm"):
            w.norm(p + "self_attn.q_norm", c["head_dim"])
            w.norm(p + "self_attn.k_norm", c["head_dim"])
        w.norm(p + "post_attention_layernorm", hidden)
        if is_sparse(c, layer):
            add_experts(w, c, p)
        else:
            add_mlp(w, p + "mlp.%s_proj", c["intermediate_size"], hidden)
    w.norm("model.norm", hidden)
    w.matrix("lm_head.weight", c["vocab_size"], hidden, 2)
    return w


def add_mlp(w, name, inner, hidden, roles=("gate", "up", "down"), gain=1.0):
    for role, rows, cols, by in (roles[0], inner, hidden, 1), (roles[1], inner, hidden, 1), (roles[2], hidden, inner, gain):
        w.matrix(name % role + ".weight", rows, cols, by)


def add_experts(w, c, p):
    hidden, inner, count = c["hidden_size"], c["moe_intermediate_size"], c["n_routed_experts"]
    w.matrix(p + "mlp.gate.weight", count, hidden, 2)  # sigmoids far from 0 and 1
    w.add(p + "mlp.gate.e_score_correction_bias", count, 0.3)
    for e in range(count):  # small, so that another choice by 16-bit products is no other answer
        add_mlp(w, f"{p}mlp.experts.{e}.%s_proj", inner, hidden, gain=0.4)
    add_mlp(w, p + "mlp.shared_experts.%s_proj", inner * c["n_shared_experts"], hidden)


# ---- forward passes ----

def turned(x, inv_freq):
    """The first numbers of each head turn, those beyond stay."""
    dims = 2 * len(inv_freq)
    return np.concatenate([plain.rotate(x[..., :dims], inv_freq, 1.0), x[..., dims:]], -1)


def frequencies(c):
    dims = int(c["head_dim"] * c.get("partial_rotary_factor", 1))
    return 1 / c["rope_theta"] ** (np.arange(0, dims, 2) / dims)


def attention(h, w, c, p):
    eps, dim = c["rms_norm_eps"], c["head_dim"]
    q, k, v = (plain.linear(h, w, f"{p}self_attn.{n}_proj").reshape(len(h), -1, dim) for n in "qkv")
    if c.get("use_qk_norm"):
        q, k = (plain.rms_norm(x, w, f"{p}self_attn.{n}_norm", eps) for x, n in ((q, "q"), (k, "k")))
    a = plain.attend(turned(q, frequencies(c)), turned(k, frequencies(c)), v, dim ** -0.5, 1 << 30)
    return plain.linear(a, w, p + "self_attn.o_proj")


def mlp(h, w, name, roles=("gate", "up", "down")):
    gate, up, down = (name % role for role in roles)
    return plain.linear(plain.silu(plain.linear(h, w, gate)) * plain.linear(h, w, up), w, down)


def experts(h, w, c, p):
    """Those chosen by sigmoids and a bias, each by its sigmoid's part of their sum. And the least margin of a choice."""
    count, chosen = c["n_routed_experts"], c["num_experts_per_tok"]
    score = 1 / (1 + np.exp(-plain.linear(h, w, p + "mlp.gate")))
    choice = score + w[p + "mlp.gate.e_score_correction_bias"]
    ordered = np.sort(choice, -1)
    margin = (ordered[:, count - chosen] - ordered[:, count - chosen - 1]).min()
    score[choice < ordered[:, [count - chosen]]] = 0
    score *= c["routed_scaling_factor"] / score.sum(-1, keepdims=True)
    out = mlp(h, w, p + "mlp.shared_experts.%s_proj")
    for e in range(count):
        out += score[:, [e]] * mlp(h, w, f"{p}mlp.experts.{e}.%s_proj")
    return out, margin


def last_logits(ids, w, c, _):
    eps, margins = c["rms_norm_eps"], []
    x = w["model.embed_tokens.weight"][ids]
    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        x = x + attention(plain.rms_norm(x, w, p + "input_layernorm", eps), w, c, p)
        h = plain.rms_norm(x, w, p + "post_attention_layernorm", eps)
        if is_sparse(c, layer):
            h, margin = experts(h, w, c, p)
            margins.append(margin)
        else:
            h = mlp(h, w, p + "mlp.%s_proj")
        x = x + h
    logits = plain.linear(plain.rms_norm(x[-1:], w, "model.norm", eps), w, "lm_head")[0]
    return (logits, min(margins)) if margins else logits


if __name__ == "__main__":
    plain.main(CONFIGS, make_weights, {c["model_type"]: last_logits for c, _ in CONFIGS.values()}, __doc__)
