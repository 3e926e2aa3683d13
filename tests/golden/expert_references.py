#!/usr/bin/env python3
"""Reference models and outputs of mixtures of experts, made with transformers.

  expert_references.py --out DIR [qwen3moe] [mixtral] [gptoss] [qwen2moe] [dots1]    (default: all; a minute on a CPU)

Each architecture has a small random checkpoint with the tensor names of published ones, and golden.json:
greedy steps of transformers in float32 with eager attention and eager experts over the weights as stored
(bf16, fp16, and MXFP4 experts in bf16 for gpt-oss). `router_margin` of a step: the smallest distance between
the last chosen and the first rejected router logit (of dots1: score, or sum of a group's two best scores), in
any layer, at any position so far. tests/data/golden/README.md says how to compare. Needs torch, transformers
5, safetensors."""
import argparse
import json
import math
import os

import torch
import transformers
from safetensors.torch import save_file

STEPS, TOP = 24, 20
PROMPTS = [1, 2, 7, 16, 33, 64, 130, 300]

COMMON = {"vocab_size": 1024, "hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2,
          "max_position_embeddings": 4096, "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1,
          "pad_token_id": 2, "use_cache": True, "attention_dropout": 0.0, "initializer_range": 0.02,
          "hidden_act": "silu"}
# layer 1 is dense between sparse ones
QWEN3MOE = dict(COMMON, architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", dtype="bfloat16", head_dim=64,
                num_hidden_layers=3, intermediate_size=512, moe_intermediate_size=32, num_experts=16, num_experts_per_tok=4,
                norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[1], rms_norm_eps=1e-6, attention_bias=False,
                sliding_window=None, use_sliding_window=False, max_window_layers=3, output_router_logits=False,
                router_aux_loss_coef=0.001, rope_parameters={"rope_theta": 1000000.0, "rope_type": "default"})
MIXTRAL = dict(COMMON, architectures=["MixtralForCausalLM"], model_type="mixtral", dtype="float16", head_dim=32,
               num_hidden_layers=2, intermediate_size=96, num_local_experts=8, num_experts_per_tok=2, rms_norm_eps=1e-5,
               sliding_window=None, output_router_logits=False, router_aux_loss_coef=0.02, router_jitter_noise=0.0,
               rope_parameters={"rope_theta": 1000000.0, "rope_type": "default"})
GPTOSS = dict(COMMON, architectures=["GptOssForCausalLM"], model_type="gpt_oss", dtype="bfloat16", head_dim=32,
              num_hidden_layers=4, intermediate_size=96, num_local_experts=8, num_experts_per_tok=4, rms_norm_eps=1e-5,
              attention_bias=True, sliding_window=32, swiglu_limit=7.0, output_router_logits=False,
              router_aux_loss_coef=0.9, layer_types=["sliding_attention", "full_attention"] * 2,
              quantization_config={"quant_method": "mxfp4",
                                   "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                              "model.embed_tokens", "lm_head"]},
              rope_parameters={"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0,
                               "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 128})
# a shared expert with a gate of its own; weights as they are, summing to less than 1; no dense layers, which GGUF cannot say
QWEN2MOE = dict(COMMON, architectures=["Qwen2MoeForCausalLM"], model_type="qwen2_moe", dtype="bfloat16", vocab_size=512,
                num_hidden_layers=2, intermediate_size=64, moe_intermediate_size=32, shared_expert_intermediate_size=64,
                num_experts=8, num_experts_per_tok=3, norm_topk_prob=False, decoder_sparse_step=1, mlp_only_layers=[],
                rms_norm_eps=1e-6, qkv_bias=True, sliding_window=None, use_sliding_window=False, max_window_layers=2,
                output_router_logits=False, router_aux_loss_coef=0.001,
                rope_parameters={"rope_theta": 1000000.0, "rope_type": "default"})
# DeepSeek-V3's routing (sigmoid, groups, a bias of the choice, scaled weights); shared experts with weight 1
DOTS1 = dict(COMMON, architectures=["Dots1ForCausalLM"], model_type="dots1", dtype="bfloat16", vocab_size=512, head_dim=32,
             num_hidden_layers=3, intermediate_size=64, moe_intermediate_size=32, n_shared_experts=2, n_routed_experts=8,
             num_experts_per_tok=3, n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5,
             first_k_dense_replace=1, rms_norm_eps=1e-6, attention_bias=False, sliding_window=None, max_window_layers=3,
             rope_parameters={"rope_theta": 1000000.0, "rope_type": "default"})
CONFIGS = {"qwen3moe": QWEN3MOE, "mixtral": MIXTRAL, "gptoss": GPTOSS, "qwen2moe": QWEN2MOE, "dots1": DOTS1}
SEEDS = {"qwen3moe": 11, "mixtral": 12, "gptoss": 13, "qwen2moe": 14, "dots1": 15}


class Weights:
    """Random tensors by name, of a seed."""

    def __init__(self, seed, dtype):
        self.random, self.dtype, self.tensors = torch.Generator().manual_seed(seed), dtype, {}

    def matrix(self, name, rows, cols, gain=1.0):
        self.tensors[name] = (torch.randn(rows, cols, generator=self.random) * gain / math.sqrt(cols)).to(self.dtype)

    def vector(self, name, size, middle, spread):
        self.tensors[name] = (middle + spread * torch.randn(size, generator=self.random)).to(self.dtype)

    def fp4(self, name, experts, rows, cols):
        """Blocks of 32 values of four bits, two in a byte, and a power of two for each."""
        self.tensors[name + "_blocks"] = torch.randint(0, 256, (experts, rows, cols // 32, 16), generator=self.random,
                                                       dtype=torch.uint8)
        # values are up to 6: exponents that bring rows to about one over the root of their length
        least = round(math.log2(1 / math.sqrt(cols) / 3))
        self.tensors[name + "_scales"] = torch.randint(126 + least, 129 + least, (experts, rows, cols // 32),
                                                       generator=self.random, dtype=torch.int32).to(torch.uint8)


def weights_of(kind, c):
    w = Weights(SEEDS[kind], getattr(torch, c["dtype"]))
    hidden, vocab = c["hidden_size"], c["vocab_size"]
    head = c.get("head_dim", hidden // c["num_attention_heads"])
    q, kv = c["num_attention_heads"] * head, c["num_key_value_heads"] * head
    w.matrix("model.embed_tokens.weight", vocab, hidden, 16)
    for n in range(c["num_hidden_layers"]):
        at = f"model.layers.{n}."
        w.vector(at + "input_layernorm.weight", hidden, 1, 0.1)
        for name, rows, cols in (("q", q, hidden), ("k", kv, hidden), ("v", kv, hidden), ("o", hidden, q)):
            w.matrix(f"{at}self_attn.{name}_proj.weight", rows, cols, 2 if name in "qk" else 1)
            if kind == "gptoss" or (kind == "qwen2moe" and name != "o"):
                w.vector(f"{at}self_attn.{name}_proj.bias", rows, 0, 0.2)
        if kind == "gptoss":
            w.vector(at + "self_attn.sinks", c["num_attention_heads"], 1, 1)
        if kind in ("qwen3moe", "dots1"):
            w.vector(at + "self_attn.q_norm.weight", head, 1, 0.1)
            w.vector(at + "self_attn.k_norm.weight", head, 1, 0.1)
        w.vector(at + "post_attention_layernorm.weight", hidden, 1, 0.1)
        experts_of(kind, w, c, at, n)
    w.vector("model.norm.weight", hidden, 1, 0.1)
    w.matrix("lm_head.weight", vocab, hidden, 3)
    return w.tensors


def mlp(w, name, inner, hidden, roles=("gate_proj", "up_proj", "down_proj")):
    """Gate, up and down; `name` has a %s for the role."""
    gate, up, down = roles
    for role, rows, cols in (gate, inner, hidden), (up, inner, hidden), (down, hidden, inner):
        w.matrix(name % role, rows, cols)


def dense_layers(c):
    """Layers without experts."""
    return c.get("mlp_only_layers", range(c.get("first_k_dense_replace", 0)))


def experts_of(kind, w, c, at, n):
    hidden, router = c["hidden_size"], 8  # its gain: margins are large beside rounding
    if n in dense_layers(c):
        mlp(w, at + "mlp.%s.weight", c["intermediate_size"], hidden)
    elif kind in ("qwen3moe", "qwen2moe", "dots1"):
        count = c["num_experts"] if "num_experts" in c else c["n_routed_experts"]
        w.matrix(at + "mlp.gate.weight", count, hidden, 2 if kind == "dots1" else router)  # sigmoids far from 0 and 1
        for e in range(count):
            mlp(w, f"{at}mlp.experts.{e}.%s.weight", c["moe_intermediate_size"], hidden)
        if kind == "qwen2moe":
            mlp(w, at + "mlp.shared_expert.%s.weight", c["shared_expert_intermediate_size"], hidden)
            w.matrix(at + "mlp.shared_expert_gate.weight", 1, hidden, 2)
        if kind == "dots1":
            w.vector(at + "mlp.gate.e_score_correction_bias", count, 0, 0.3)
            mlp(w, at + "mlp.shared_experts.%s.weight", c["n_shared_experts"] * c["moe_intermediate_size"], hidden)
    elif kind == "mixtral":
        w.matrix(at + "block_sparse_moe.gate.weight", c["num_local_experts"], hidden, router)
        for e in range(c["num_local_experts"]):
            mlp(w, f"{at}block_sparse_moe.experts.{e}.%s.weight", c["intermediate_size"], hidden, ("w1", "w3", "w2"))
    else:
        count, inner = c["num_local_experts"], c["intermediate_size"]
        w.matrix(at + "mlp.router.weight", count, hidden, router)
        w.vector(at + "mlp.router.bias", count, 0, 0.5)
        w.fp4(at + "mlp.experts.gate_up_proj", count, 2 * inner, hidden)  # rows: gate and up in turn
        w.vector(at + "mlp.experts.gate_up_proj_bias", (count, 2 * inner), 0, 0.2)
        w.fp4(at + "mlp.experts.down_proj", count, hidden, inner)
        w.vector(at + "mlp.experts.down_proj_bias", (count, hidden), 0, 0.2)


def load(kind, folder):
    """The checkpoint as transformers reads it, in float32."""
    more = {"quantization_config": transformers.Mxfp4Config(dequantize=True)} if kind == "gptoss" else {}
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16 if more else torch.float32, attn_implementation="eager", output_loading_info=True, **more)
    # (what is expanded as it is read has other keys than the file)
    assert more or not any(info.get(what) for what in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")), info
    model = model.float().eval()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    return model


class Margins:
    """The distances of what every router sees, kept as forward passes go."""

    def __init__(self, model, c):
        self.chosen, self.least, self.count = c["num_experts_per_tok"], math.inf, 0
        self.groups, self.groups_chosen = c.get("n_group", 1), c.get("topk_group", 1)
        for name, module in model.named_modules():
            if name.endswith((".gate", ".router")) and getattr(module, "weight", None) is not None:
                module.register_forward_pre_hook(self.look)
                self.count += 1

    def look(self, router, args):
        x = args[0].reshape(-1, args[0].shape[-1])
        logits = x @ router.weight.T
        if getattr(router, "bias", None) is not None:
            logits = logits + router.bias
        if getattr(router, "e_score_correction_bias", None) is not None:
            logits = logits.sigmoid() + router.e_score_correction_bias
        if self.groups > self.groups_chosen:
            each = logits.reshape(len(logits), self.groups, -1)
            sums = each.topk(2, dim=-1).values.sum(-1)
            self.keep(sums, self.groups_chosen)
            open_ = torch.zeros_like(sums).scatter_(1, sums.topk(self.groups_chosen, dim=-1).indices, 1).bool()
            logits = each.masked_fill(~open_.unsqueeze(-1), -math.inf).reshape(logits.shape)
        self.keep(logits, self.chosen)

    def keep(self, values, chosen):
        best = values.topk(chosen + 1, dim=-1).values
        self.least = min(self.least, (best[:, -2] - best[:, -1]).min().item())


def cases_of(model, c, sparse_layers):
    margins = Margins(model, c)
    assert margins.count == sparse_layers, f"{margins.count} routers, {sparse_layers} sparse layers"
    random = torch.Generator().manual_seed(7)
    for length in PROMPTS:
        prompt = torch.randint(3, c["vocab_size"], (length,), generator=random).tolist()
        tokens, steps, least = list(prompt), [], math.inf
        for _ in range(STEPS):
            margins.least = math.inf
            with torch.no_grad():
                logits = model(torch.tensor([tokens]), use_cache=False).logits[0, -1].double()
            top = torch.log_softmax(logits, -1).topk(TOP)
            least = min(least, margins.least)
            steps.append({"token": top.indices[0].item(), "gap": round((top.values[0] - top.values[1]).item(), 6),
                          "router_margin": round(least, 6),
                          "top": [[i, round(v, 6)] for i, v in zip(top.indices.tolist(), top.values.tolist())]})
            tokens.append(steps[-1]["token"])
        yield {"prompt": prompt, "steps": steps}


def make(kind, out):
    c = CONFIGS[kind]
    folder = os.path.join(out, kind)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(c, f, indent=2, sort_keys=True)
        f.write("\n")
    save_file(weights_of(kind, c), os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    model = load(kind, folder)
    cases = list(cases_of(model, c, c["num_hidden_layers"] - len(dense_layers(c))))
    with open(os.path.join(folder, "golden.json"), "w") as f:
        json.dump({"name": kind, "dtype": c["dtype"], "transformers": transformers.__version__, "cases": cases}, f)
    steps = [s for case in cases for s in case["steps"]]
    print(f"{kind}: transformers {transformers.__version__}, {len(steps)} steps, "
          f"{len({s['token'] for s in steps})} different tokens, gap median {sorted(s['gap'] for s in steps)[len(steps) // 2]:.3f}, "
          f"router margin at the end {[case['steps'][-1]['router_margin'] for case in cases]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("kinds", nargs="*", choices=[*CONFIGS, []], help="default: all")
    args = parser.parse_args()
    torch.manual_seed(0)
    for kind in args.kinds or CONFIGS:
        make(kind, args.out)


if __name__ == "__main__":
    main()
