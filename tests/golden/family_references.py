#!/usr/bin/python3
"""Reference models and outputs of families that need no operation of their own, without transformers: GLM-4, GLM-4.5, MiniMax-M2,
SmolLM3, Seed-OSS, OLMo 2 and 3, Ministral 3, DeepSeek-V2 and V3, GLM-4.7-Flash.

  family_references.py --out DIR [glm4moe] [minimaxm2] ...      (default: all; a minute on a CPU)
  family_references.py --check DIR [glm4moe] [minimaxm2] ...    what transformers says of the same steps, which needs torch

As plain_references.py makes its own, in numpy (float64 over the weights as stored), from the published definitions: the GLM-4.5 Team
2025, OLMo Team 2025, the model cards of MiniMax, Hugging Face, ByteDance Seed and Mistral AI. Every step computes the whole sequence
again: no cache. Needs numpy (apt-get install python3-numpy)."""
import math

import numpy as np

import plain_references as plain

BASE = dict(plain.COMMON, num_key_value_heads=1, head_dim=32, hidden_act="silu", tie_word_embeddings=False,
            max_position_embeddings=4096, rms_norm_eps=1e-5, attention_bias=False, rope_theta=10000.0, intermediate_size=96)
# A dense layer before those with experts; half of each head turns; norms of heads, and biases.
GLM4MOE = dict(BASE, architectures=["Glm4MoeForCausalLM"], model_type="glm4_moe", num_hidden_layers=3, attention_bias=True,
               use_qk_norm=True, partial_rotary_factor=0.5, first_k_dense_replace=1, n_routed_experts=8, num_experts_per_tok=3,
               n_shared_experts=1, moe_intermediate_size=32, norm_topk_prob=True, routed_scaling_factor=2.5, n_group=1, topk_group=1)
# Norms of q and k, all heads of one together; experts in every layer, none shared.
MINIMAXM2 = dict(BASE, architectures=["MiniMaxM2ForCausalLM"], model_type="minimax_m2", num_attention_heads=4, num_key_value_heads=2,
                 use_qk_norm=True, rotary_dim=16, partial_rotary_factor=0.5, num_local_experts=8, num_experts_per_tok=3,
                 intermediate_size=32, scoring_func="sigmoid", use_routing_bias=True)
# Neighbours of the first half of each head turn together; norms of what halves add; gate and up in one tensor.
GLM4 = dict(BASE, architectures=["Glm4ForCausalLM"], model_type="glm4", attention_bias=True, partial_rotary_factor=0.5)
# Nothing turns in the fourth layer; a tied head.
SMOLLM3 = dict(BASE, architectures=["SmolLM3ForCausalLM"], model_type="smollm3", num_hidden_layers=4, no_rope_layer_interval=4,
               tie_word_embeddings=True)
SEEDOSS = dict(BASE, architectures=["SeedOssForCausalLM"], model_type="seed_oss", attention_bias=True, attention_out_bias=False,
               mlp_bias=False, residual_dropout=0.0)
# No norms of inputs; norms of q and k, all heads of one together; of the third a window in three of four layers.
OLMO2 = dict(BASE, architectures=["Olmo2ForCausalLM"], model_type="olmo2", num_attention_heads=4, num_key_value_heads=2)
OLMO3 = dict(BASE, architectures=["Olmo3ForCausalLM"], model_type="olmo3", num_hidden_layers=4, sliding_window=40,
             layer_types=["sliding_attention"] * 3 + ["full_attention"],
             rope_parameters={kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in ("full_attention", "sliding_attention")})
# YaRN whose multipliers cancel each other; q grows with each 128 tokens before it.
MINISTRAL3 = dict(BASE, architectures=["Ministral3ForCausalLM"], model_type="ministral3", sliding_window=None,
                  rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                                   "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 128,
                                   "llama_4_scaling_beta": 0.4})
MINISTRAL3.pop("rope_theta")
# Keys and values are products of a latent: of V2-Lite's kind q comes straight from the input, and experts by softmax.
LATENT = dict(BASE, num_attention_heads=4, num_key_value_heads=4, num_hidden_layers=3, kv_lora_rank=64, qk_rope_head_dim=32,
              first_k_dense_replace=1, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1, moe_intermediate_size=32,
              n_group=1, topk_group=1, moe_layer_freq=1)
LATENT.pop("head_dim")
DEEPSEEKV2 = dict(LATENT, architectures=["DeepseekV2ForCausalLM"], model_type="deepseek_v2", q_lora_rank=None, qk_nope_head_dim=48,
                  v_head_dim=16, norm_topk_prob=False, routed_scaling_factor=1.5, scoring_func="softmax", topk_method="greedy",
                  n_shared_experts=2, rms_norm_eps=1e-6)
# YaRN, whose factor squared multiplies scores; two of four groups of experts.
DEEPSEEKV3 = dict(LATENT, architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", q_lora_rank=32, qk_nope_head_dim=32,
                  v_head_dim=32, norm_topk_prob=True, routed_scaling_factor=1.25, n_group=4, topk_group=2, rms_norm_eps=1e-6,
                  rope_interleave=True,
                  rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0,
                                   "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 512})
DEEPSEEKV3.pop("rope_theta")
# Values of more numbers than keys have; three heads.
GLM47FLASH = dict(LATENT, architectures=["Glm4MoeLiteForCausalLM"], model_type="glm4_moe_lite", q_lora_rank=64, qk_nope_head_dim=32,
                  num_attention_heads=3, num_key_value_heads=3, v_head_dim=64, norm_topk_prob=True, routed_scaling_factor=1.8,
                  rms_norm_eps=1e-6, rope_interleave=True, mlp_layer_types=["dense", "sparse", "sparse"])
CONFIGS = {"glm4moe": (GLM4MOE, 333), "minimaxm2": (MINIMAXM2, 276), "glm4": (GLM4, 53), "smollm3": (SMOLLM3, 54),
           "seedoss": (SEEDOSS, 55), "olmo2": (OLMO2, 56), "olmo3": (OLMO3, 57), "ministral3": (MINISTRAL3, 58),
           "deepseekv2": (DEEPSEEKV2, 61), "deepseekv3": (DEEPSEEKV3, 1227), "glm47flash": (GLM47FLASH, 63)}
# Models whose q and k have a norm of all heads together
WHOLE_NORMS = ("minimax_m2", "olmo2", "olmo3")
# A layer's norms: of attention's input, of its output, of the MLP's input, of its output
NORMS = {"glm4": ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"),
         "olmo2": (None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
         "olmo3": (None, "post_attention_layernorm", None, "post_feedforward_layernorm")}
USUAL_NORMS = ("input_layernorm", None, "post_attention_layernorm", None)


# ---- checkpoints ----

def is_sparse(c, layer):
    return "num_experts_per_tok" in c and layer >= c.get("first_k_dense_replace", 0)


def add_attention(w, c, p):
    hidden, kind = c["hidden_size"], c["model_type"]
    if "kv_lora_rank" in c:
        add_latent(w, c, p + "self_attn.")
        return
    q, kv = (c[name] * c["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    for name, rows in ("q", q), ("k", kv), ("v", kv):
        w.linear(f"{p}self_attn.{name}_proj", rows, hidden, c["attention_bias"])
    w.linear(p + "self_attn.o_proj", hidden, q)
    if c.get("use_qk_norm") or kind in WHOLE_NORMS:
        w.norm(p + "self_attn.q_norm", q if kind in WHOLE_NORMS else c["head_dim"])
        w.norm(p + "self_attn.k_norm", kv if kind in WHOLE_NORMS else c["head_dim"])


def add_latent(w, c, p):
    hidden, heads, rank, rope = (c[n] for n in ("hidden_size", "num_attention_heads", "kv_lora_rank", "qk_rope_head_dim"))
    q = heads * (c["qk_nope_head_dim"] + rope)
    if c["q_lora_rank"]:
        w.linear(p + "q_a_proj", c["q_lora_rank"], hidden)
        w.norm(p + "q_a_layernorm", c["q_lora_rank"])
        w.matrix(p + "q_b_proj.weight", q, c["q_lora_rank"], 2)
    else:
        w.matrix(p + "q_proj.weight", q, hidden, 2)
    w.linear(p + "kv_a_proj_with_mqa", rank + rope, hidden)
    w.norm(p + "kv_a_layernorm", rank)
    w.linear(p + "kv_b_proj", heads * (c["qk_nope_head_dim"] + c["v_head_dim"]), rank)
    w.linear(p + "o_proj", hidden, heads * c["v_head_dim"])


def make_weights(c, seed):
    w, hidden, kind = plain.Weights(seed), c["hidden_size"], c["model_type"]
    w.matrix("model.embed_tokens.weight", c["vocab_size"], hidden)
    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        before, after, mlp_before, mlp_after = NORMS.get(kind, USUAL_NORMS)
        for name in filter(None, (before, after)):
            w.norm(p + name, hidden)
        add_attention(w, c, p)
        for name in filter(None, (mlp_before, mlp_after)):
            w.norm(p + name, hidden)
        if is_sparse(c, layer):
            add_experts(w, c, p)
        elif kind == "glm4":
            w.linear(p + "mlp.gate_up_proj", 2 * c["intermediate_size"], hidden)
            w.linear(p + "mlp.down_proj", hidden, c["intermediate_size"])
        else:
            add_mlp(w, p + "mlp.%s_proj", c["intermediate_size"], hidden)
    if c["tie_word_embeddings"]:  # around 0, so that a tied head does not say the input again
        w.add("model.norm.weight", hidden, 1.5)
    else:
        w.norm("model.norm", hidden)
        w.matrix("lm_head.weight", c["vocab_size"], hidden, 2)
    return w


def add_mlp(w, name, inner, hidden, roles=("gate", "up", "down"), gain=1.0):
    for role, rows, cols, by in (roles[0], inner, hidden, 1), (roles[1], inner, hidden, 1), (roles[2], hidden, inner, gain):
        w.matrix(name % role + ".weight", rows, cols, by)


def experts_names(c, p):
    """The router, the bias of its choice, an expert's matrices, and these matrices' names."""
    if c["model_type"] == "minimax_m2":
        p += "block_sparse_moe."
        return p + "gate", p + "e_score_correction_bias", p + "experts.%d.%%s", ("w1", "w3", "w2")
    return p + "mlp.gate", p + "mlp.gate.e_score_correction_bias", p + "mlp.experts.%d.%%s_proj", ("gate", "up", "down")


def experts_sizes(c):
    return c.get("n_routed_experts") or c["num_local_experts"], c.get("moe_intermediate_size", c["intermediate_size"])


def add_experts(w, c, p):
    router, bias, expert, roles = experts_names(c, p)
    hidden, (count, inner) = c["hidden_size"], experts_sizes(c)
    w.matrix(router + ".weight", count, hidden, 2)  # sigmoids far from 0 and 1
    if c["model_type"] != "deepseek_v2":
        w.add(bias, count, 0.3)
    for e in range(count):  # small, so that another choice by 16-bit products is no other answer
        add_mlp(w, expert % e, inner, hidden, roles, gain=0.4)
    if c.get("n_shared_experts"):
        add_mlp(w, p + "mlp.shared_experts.%s_proj", inner * c["n_shared_experts"], hidden)


# ---- forward passes ----

def turned(x, c, inv_freq):
    """The first numbers of each head turn, those beyond stay."""
    dims = 2 * len(inv_freq)
    head = x[..., :dims]
    if c["model_type"] == "glm4" or "kv_lora_rank" in c:  # neighbours together
        head = plain.rotate(np.concatenate([head[..., 0::2], head[..., 1::2]], -1), inv_freq, 1.0)
        head = np.stack(np.split(head, 2, -1), -1).reshape(head.shape)
    else:
        head = plain.rotate(head, inv_freq, 1.0)
    return np.concatenate([head, x[..., dims:]], -1)


def yarn(freq, rope, theta):
    """The slow ones are slowed down by the factor, in between a mixture."""
    dim = 2 * len(freq)

    def turns_at(rotations):
        return dim * math.log(rope["original_max_position_embeddings"] / (rotations * 2 * math.pi)) / (2 * math.log(theta))
    low, high = max(math.floor(turns_at(rope["beta_fast"])), 0), min(math.ceil(turns_at(rope["beta_slow"])), dim - 1)
    slow = np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
    return freq / rope["factor"] * slow + freq * (1 - slow)


def frequencies(c, layer):
    rope = c.get("rope_parameters", {})
    rope = rope.get("full_attention", rope)  # of all layers alike
    head_dim = c.get("qk_rope_head_dim") or c["head_dim"]
    dims, theta = int(head_dim * c.get("partial_rotary_factor", 1)), rope.get("rope_theta", c.get("rope_theta"))
    freq = 1 / theta ** (np.arange(0, dims, 2) / dims)
    if "no_rope_layer_interval" in c and (layer + 1) % c["no_rope_layer_interval"] == 0:
        return 0 * freq
    return yarn(freq, rope, theta) if "factor" in rope else freq


def latent_attention(h, w, c, layer):
    """Not absorbed: every head's keys and values are made of the latents."""
    eps, p, heads = c["rms_norm_eps"], f"model.layers.{layer}.self_attn.", c["num_attention_heads"]
    nope, rope, value, rank = (c[n] for n in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank"))
    if c["q_lora_rank"]:
        q = plain.linear(plain.rms_norm(plain.linear(h, w, p + "q_a_proj"), w, p + "q_a_layernorm", eps), w, p + "q_b_proj")
    else:
        q = plain.linear(h, w, p + "q_proj")
    q, row = q.reshape(len(h), heads, nope + rope), plain.linear(h, w, p + "kv_a_proj_with_mqa")
    kv = plain.linear(plain.rms_norm(row[:, :rank], w, p + "kv_a_layernorm", eps), w, p + "kv_b_proj").reshape(len(h), heads, -1)
    freq = frequencies(c, layer)
    shared = np.repeat(turned(row[:, None, rank:], c, freq), heads, 1)
    q = np.concatenate([q[..., :nope], turned(q[..., nope:], c, freq)], -1)
    k = np.concatenate([kv[..., :nope], shared], -1)
    scale, yarns = (nope + rope) ** -0.5, c.get("rope_parameters", {})
    if "factor" in yarns:
        scale *= (0.1 * yarns["mscale_all_dim"] * math.log(yarns["factor"]) + 1) ** 2
    seen = np.tril(np.ones((len(h), len(h)), bool))
    scores = np.where(seen, np.einsum("qhd,khd->hqk", q, k) * scale, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out = np.einsum("hqk,khd->qhd", weights, kv[..., nope:]).reshape(len(h), heads * value)
    return plain.linear(out, w, p + "o_proj")


def attention(h, w, c, layer):
    if "kv_lora_rank" in c:
        return latent_attention(h, w, c, layer)
    eps, dim, p = c["rms_norm_eps"], c["head_dim"], f"model.layers.{layer}."
    q, k, v = (plain.linear(h, w, f"{p}self_attn.{n}_proj") for n in "qkv")

    def normed(q, k):
        return (plain.rms_norm(x, w, f"{p}self_attn.{n}_norm", eps) for x, n in ((q, "q"), (k, "k")))
    if c["model_type"] in WHOLE_NORMS:
        q, k = normed(q, k)
    q, k, v = (x.reshape(len(h), -1, dim) for x in (q, k, v))
    if c.get("use_qk_norm") and c["model_type"] not in WHOLE_NORMS:
        q, k = normed(q, k)
    freq = frequencies(c, layer)
    q, k = turned(q, c, freq), turned(k, c, freq)
    if "llama_4_scaling_beta" in c.get("rope_parameters", {}):
        rope = c["rope_parameters"]
        before = np.arange(len(h)) // rope["original_max_position_embeddings"]
        q = q * (1 + rope["llama_4_scaling_beta"] * np.log(1 + before))[:, None, None]
    window = c["sliding_window"] if c.get("layer_types", [""] * 99)[layer] == "sliding_attention" else 1 << 30
    return plain.linear(plain.attend(q, k, v, dim ** -0.5, window), w, p + "self_attn.o_proj")


def mlp(h, w, name, roles=("gate", "up", "down")):
    gate, up, down = (name % role for role in roles)
    return plain.linear(plain.silu(plain.linear(h, w, gate)) * plain.linear(h, w, up), w, down)


def within_groups(choice, c):
    """Experts of groups whose two best have not the largest sums are not chosen. And the least margin of a group."""
    groups, chosen = c.get("n_group", 1), c.get("topk_group", 1)
    if groups == 1:
        return choice, np.inf
    by_group = choice.reshape(len(choice), groups, -1)
    sums = np.sort(by_group, -1)[..., -2:].sum(-1)
    ordered = np.sort(sums, -1)
    margin = (ordered[:, groups - chosen] - ordered[:, groups - chosen - 1]).min()
    return np.where((sums < ordered[:, [groups - chosen]])[..., None], -np.inf, by_group).reshape(choice.shape), margin


def experts(h, w, c, p):
    """Those chosen by sigmoids and a bias, each by its sigmoid's part of their sum. And the least margin of a choice."""
    router, bias, expert, roles = experts_names(c, p)
    (count, _), chosen, softmax = experts_sizes(c), c["num_experts_per_tok"], c["model_type"] == "deepseek_v2"
    logits = plain.linear(h, w, router)
    if softmax:
        score = np.exp(logits - logits.max(-1, keepdims=True))
        score /= score.sum(-1, keepdims=True)
        choice = score.copy()
    else:
        score = 1 / (1 + np.exp(-logits))
        choice = score + w[bias]
    choice, margin = within_groups(choice, c)
    ordered = np.sort(choice, -1)
    margin = min(margin, (ordered[:, count - chosen] - ordered[:, count - chosen - 1]).min())
    score[choice < ordered[:, [count - chosen]]] = 0
    score *= c.get("routed_scaling_factor", 1.0) / (1 if softmax else score.sum(-1, keepdims=True))
    out = mlp(h, w, p + "mlp.shared_experts.%s_proj") if c.get("n_shared_experts") else np.zeros_like(h)
    for e in range(count):
        out += score[:, [e]] * mlp(h, w, expert % e, roles)
    return out, margin


def last_logits(ids, w, c, _):
    eps, margins = c["rms_norm_eps"], []
    x = w["model.embed_tokens.weight"][ids]
    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        before, after, mlp_before, mlp_after = NORMS.get(c["model_type"], USUAL_NORMS)

        def normed(x, name):
            return plain.rms_norm(x, w, p + name, eps) if name else x
        x = x + normed(attention(normed(x, before), w, c, layer), after)
        h = normed(x, mlp_before)
        if is_sparse(c, layer):
            h, margin = experts(h, w, c, p)
            margins.append(margin)
        elif c["model_type"] == "glm4":
            gate, up = np.split(plain.linear(h, w, p + "mlp.gate_up_proj"), 2, -1)
            h = plain.linear(plain.silu(gate) * up, w, p + "mlp.down_proj")
        else:
            h = mlp(h, w, p + "mlp.%s_proj")
        x = x + normed(h, mlp_after)
    head = "model.embed_tokens" if c["tie_word_embeddings"] else "lm_head"
    logits = plain.linear(plain.rms_norm(x[-1:], w, "model.norm", eps), w, head)[0]
    return (logits, min(margins)) if margins else logits


if __name__ == "__main__":
    plain.main(CONFIGS, make_weights, {c["model_type"]: last_logits for c, _ in CONFIGS.values()}, __doc__)
