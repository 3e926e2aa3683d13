#!/usr/bin/python3
"""Reference models and outputs of Gemma 3 and 4, without transformers.

  gemma_references.py --out DIR [gemma3] [gemma4] [gemma4moe] [gemma4e]      (default: all; a minute on a CPU)
  gemma_references.py --check DIR [gemma3] [gemma4] [gemma4moe] [gemma4e]    what transformers says of the same steps, which needs torch

As plain_references.py makes its own, in numpy (float64 over the weights as stored), from the published definition: Gemma Team
2025, and transformers' description of Gemma 4. Every step computes the whole sequence again: no cache. Needs numpy (apt-get install python3-numpy)."""
import math

import numpy as np

import plain_references as plain

GEMMA3 = dict(plain.COMMON, architectures=["Gemma3ForCausalLM"], model_type="gemma3_text", num_hidden_layers=4, head_dim=32,
              num_key_value_heads=1, intermediate_size=128, hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6,
              max_position_embeddings=4096, sliding_window=40, query_pre_attn_scalar=20, tie_word_embeddings=True,
              layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
              rope_theta=1000000.0, rope_local_base_freq=10000.0, rope_scaling={"rope_type": "linear", "factor": 8.0})
# Layers without a window have other heads, half of whose pairs turn, and no v of their own.
GEMMA4 = dict(plain.COMMON, architectures=["Gemma4ForCausalLM"], model_type="gemma4_text", num_hidden_layers=4, head_dim=32,
              num_attention_heads=4, num_key_value_heads=2, global_head_dim=64, num_global_key_value_heads=1,
              attention_k_eq_v=True, intermediate_size=128, hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6,
              max_position_embeddings=4096, sliding_window=40, tie_word_embeddings=True, final_logit_softcapping=6.0,
              hidden_size_per_layer_input=0, num_kv_shared_layers=0, enable_moe_block=False,
              layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
              rope_parameters={"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5,
                                                  "rope_theta": 1000000.0},
                               "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}})
# Experts beside a dense MLP; heads of the sizes that published models have, so that GPUs take the kernels of those.
GEMMA4MOE = dict(GEMMA4, num_attention_heads=2, num_key_value_heads=1, head_dim=256, global_head_dim=512, intermediate_size=96,
                 enable_moe_block=True, num_experts=8, top_k_experts=3, moe_intermediate_size=64)
# As E2B: per-layer embeddings; the last layers of each kind read the cache of the last one before them, and have MLPs twice as wide.
GEMMA4E = dict(GEMMA4, num_hidden_layers=6, num_key_value_heads=1, num_global_key_value_heads=None, attention_k_eq_v=False,
               intermediate_size=96, hidden_size_per_layer_input=32, vocab_size_per_layer_input=plain.COMMON["vocab_size"],
               num_kv_shared_layers=3, use_double_wide_mlp=True, layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2)
CONFIGS = {"gemma3": (GEMMA3, 41), "gemma4": (GEMMA4, 42), "gemma4moe": (GEMMA4MOE, 43), "gemma4e": (GEMMA4E, 44)}


def make_weights(c, seed):
    w, hidden, four = plain.Weights(seed), c["hidden_size"], c["model_type"] == "gemma4_text"

    def norm(name, size):  # Gemma 3's are stored less 1
        w.add(name + ".weight", size, 0.2, 1.0 if four else 0.0)
    w.add("model.embed_tokens.weight", (c["vocab_size"], hidden), 1 / math.sqrt(hidden))
    each, first_reading = c.get("hidden_size_per_layer_input", 0), c["num_hidden_layers"] - c.get("num_kv_shared_layers", 0)
    if each:
        every = each * c["num_hidden_layers"]
        w.add("model.embed_tokens_per_layer.weight", (c["vocab_size"], every), 1 / math.sqrt(each))
        w.add("model.per_layer_model_projection.weight", (every, hidden), 1)
        norm("model.per_layer_projection_norm", each)
    for layer, kind in enumerate(c["layer_types"]):
        p, full, reading = f"model.layers.{layer}.", four and kind == "full_attention", layer >= first_reading
        k_is_v = full and c["attention_k_eq_v"]
        dim = c["global_head_dim"] if full else c["head_dim"]
        kv = c["num_global_key_value_heads"] if k_is_v else c["num_key_value_heads"]
        for name in "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm":
            norm(p + name, hidden)
        for name, heads in ("q", c["num_attention_heads"]), ("k", kv), ("v", kv):
            if not (k_is_v and name == "v") and not (reading and name != "q"):
                w.linear(f"{p}self_attn.{name}_proj", heads * dim, hidden)
        norm(p + "self_attn.q_norm", dim)
        if not reading:
            norm(p + "self_attn.k_norm", dim)
        if four:  # scores are not scaled
            w.add(p + "self_attn.q_norm.weight", dim, 0.05, 0.25)
            w.add(p + "layer_scalar", 1, 0.2, 0.9)
        w.linear(p + "self_attn.o_proj", hidden, c["num_attention_heads"] * dim)
        width = c["intermediate_size"] * (2 if reading and c.get("use_double_wide_mlp") else 1)
        for name in "gate", "up":
            w.linear(f"{p}mlp.{name}_proj", width, hidden)
        w.linear(p + "mlp.down_proj", hidden, width)
        if each:
            w.linear(p + "per_layer_input_gate", each, hidden)
            w.linear(p + "per_layer_projection", hidden, each)
            norm(p + "post_per_layer_input_norm", hidden)
        if not c.get("enable_moe_block"):
            continue
        for name in "pre_feedforward_layernorm_2", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2":
            norm(p + name, hidden)
        count, inner = c["num_experts"], c["moe_intermediate_size"]
        w.add(p + "router.scale", hidden, 3.0, 32.0)  # so that the last of those chosen has a small weight
        w.linear(p + "router.proj", count, hidden)
        w.add(p + "router.per_expert_scale", count, 0.3, 1.0)
        w.add(p + "experts.gate_up_proj", (count, 2 * inner, hidden), 1 / math.sqrt(hidden))
        w.add(p + "experts.down_proj", (count, hidden, inner), 1 / math.sqrt(inner))
    w.add("model.norm.weight", hidden, 1.5, 0.0 if four else -1.0)  # around 0, so that a tied head does not say the input again
    return w


def rms(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def last_logits(ids, w, c, _):
    dim, eps = c["head_dim"], c["rms_norm_eps"]
    exponents = np.arange(0, dim, 2) / dim

    def normed(x, name):
        return rms(x, 1 + w[name + ".weight"], eps)
    x = w["model.embed_tokens.weight"][ids] * math.sqrt(c["hidden_size"])
    for layer, kind in enumerate(c["layer_types"]):
        p, full = f"model.layers.{layer}.", kind == "full_attention"
        freq = 1 / c["rope_theta"] ** exponents / c["rope_scaling"]["factor"] if full else \
            1 / c["rope_local_base_freq"] ** exponents
        h = normed(x, p + "input_layernorm")
        q, k, v = (plain.linear(h, w, f"{p}self_attn.{n}_proj").reshape(len(ids), -1, dim) for n in "qkv")
        q, k = normed(q, p + "self_attn.q_norm"), normed(k, p + "self_attn.k_norm")
        a = plain.attend(plain.rotate(q, freq, 1.0), plain.rotate(k, freq, 1.0), v, c["query_pre_attn_scalar"] ** -0.5,
                         1 << 30 if full else c["sliding_window"])
        x = x + normed(plain.linear(a, w, p + "self_attn.o_proj"), p + "post_attention_layernorm")
        h = normed(x, p + "pre_feedforward_layernorm")
        h = gelu(plain.linear(h, w, p + "mlp.gate_proj")) * plain.linear(h, w, p + "mlp.up_proj")
        x = x + normed(plain.linear(h, w, p + "mlp.down_proj"), p + "post_feedforward_layernorm")
    return plain.linear(normed(x[-1:], "model.norm"), w, "model.embed_tokens")[0]


def experts_of(x, w, c, p):
    """The chosen experts of each token: softmax over all, renormalised, times a scale of each expert. And the least margin of a choice."""
    eps, count, chosen = c["rms_norm_eps"], c["num_experts"], c["top_k_experts"]
    h = rms(x, w[p + "pre_feedforward_layernorm_2.weight"], eps)
    logits = plain.linear(rms(x, w[p + "router.scale"] / math.sqrt(c["hidden_size"]), eps), w, p + "router.proj")
    ordered = np.sort(logits, -1)
    margin = (ordered[:, count - chosen] - ordered[:, count - chosen - 1]).min()
    part = np.exp(logits - logits.max(-1, keepdims=True))
    part /= part.sum(-1, keepdims=True)
    part[part < np.sort(part, -1)[:, [count - chosen]]] = 0
    part = part / part.sum(-1, keepdims=True) * w[p + "router.per_expert_scale"]
    inner = c["moe_intermediate_size"]
    out = np.zeros_like(x)
    for e in range(count):
        gate_up = h @ w[p + "experts.gate_up_proj"][e].T
        out += part[:, [e]] * ((gelu(gate_up[:, :inner]) * gate_up[:, inner:]) @ w[p + "experts.down_proj"][e].T)
    return out, margin


def last_logits4(ids, w, c, _):
    eps, heads, margins = c["rms_norm_eps"], c["num_attention_heads"], []

    def normed(x, name):
        return rms(x, w[name + ".weight"], eps)
    x = w["model.embed_tokens.weight"][ids] * math.sqrt(c["hidden_size"])
    each, first_reading, cache = c["hidden_size_per_layer_input"], c["num_hidden_layers"] - c["num_kv_shared_layers"], {}
    if each:
        shape = (len(ids), c["num_hidden_layers"], each)
        inputs = normed((plain.linear(x, w, "model.per_layer_model_projection") / math.sqrt(c["hidden_size"])).reshape(shape),
                        "model.per_layer_projection_norm")
        inputs = (inputs + w["model.embed_tokens_per_layer.weight"][ids].reshape(shape) * math.sqrt(each)) / math.sqrt(2)
    for layer, kind in enumerate(c["layer_types"]):
        p, full, rope = f"model.layers.{layer}.", kind == "full_attention", c["rope_parameters"][kind]
        dim = c["global_head_dim"] if full else c["head_dim"]
        freq = 1 / rope["rope_theta"] ** (np.arange(0, dim, 2) / dim)
        freq[int(rope.get("partial_rotary_factor", 1) * dim / 2):] = 0
        h = normed(x, p + "input_layernorm")
        q = normed(plain.linear(h, w, p + "self_attn.q_proj").reshape(len(ids), -1, dim), p + "self_attn.q_norm")
        assert q.shape[1] == heads
        if layer < first_reading:  # the last of its kind is what later ones read
            k, v = (plain.linear(h, w, f"{p}self_attn.{n}_proj").reshape(len(ids), -1, dim)
                    for n in ("kk" if full and c["attention_k_eq_v"] else "kv"))
            cache[kind] = plain.rotate(normed(k, p + "self_attn.k_norm"), freq, 1.0), rms(v, 1, eps)
        a = plain.attend(plain.rotate(q, freq, 1.0), *cache[kind], 1.0, 1 << 30 if full else c["sliding_window"])
        x = x + normed(plain.linear(a, w, p + "self_attn.o_proj"), p + "post_attention_layernorm")
        h = normed(x, p + "pre_feedforward_layernorm")
        h = gelu(plain.linear(h, w, p + "mlp.gate_proj")) * plain.linear(h, w, p + "mlp.up_proj")
        h = plain.linear(h, w, p + "mlp.down_proj")
        if c["enable_moe_block"]:
            chosen, margin = experts_of(x, w, c, p)
            margins.append(margin)
            h = normed(h, p + "post_feedforward_layernorm_1") + normed(chosen, p + "post_feedforward_layernorm_2")
        x = x + normed(h, p + "post_feedforward_layernorm")
        if each:
            h = gelu(plain.linear(x, w, p + "per_layer_input_gate")) * inputs[:, layer]
            x = x + normed(plain.linear(h, w, p + "per_layer_projection"), p + "post_per_layer_input_norm")
        x = x * w[p + "layer_scalar"]
    most = c["final_logit_softcapping"]
    logits = most * np.tanh(plain.linear(normed(x[-1:], "model.norm"), w, "model.embed_tokens")[0] / most)
    return (logits, min(margins)) if margins else logits


if __name__ == "__main__":
    plain.main(CONFIGS, make_weights, {"gemma3_text": last_logits, "gemma4_text": last_logits4}, __doc__)
