#!/usr/bin/env python3
"""Reference models and outputs of hybrids (gated delta nets between layers of full attention), made with transformers.

  hybrid_references.py --out DIR [qwen35] [qwen35moe] [qwen3next]    (default: all; a minute on a CPU)

Each architecture has a small random checkpoint as transformers saves it (bf16), and golden.json as
expert_references.py makes it: greedy steps in float32 with eager attention and eager experts, the whole
sequence again at each step, no cache. tests/data/golden/README.md says how to compare. Needs torch,
transformers 5.17, safetensors."""
import argparse
import json
import math
import os

import torch
import transformers
from expert_references import cases_of, load

# Two value heads to a key head; heads of the published size in the delta net; a quarter of an attention head rotates.
COMMON = dict(vocab_size=256, hidden_size=64, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1, head_dim=64,
              max_position_embeddings=4096, tie_word_embeddings=False, bos_token_id=0, eos_token_id=1, pad_token_id=2,
              hidden_act="silu", rms_norm_eps=1e-6, attention_bias=False, attention_dropout=0.0, linear_conv_kernel_dim=4,
              linear_key_head_dim=128, linear_value_head_dim=128, linear_num_key_heads=2, linear_num_value_heads=4,
              layer_types=["linear_attention"] * 3 + ["full_attention"], intermediate_size=96)
EXPERTS = dict(num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, shared_expert_intermediate_size=48,
               norm_topk_prob=True, output_router_logits=False, decoder_sparse_step=1, mlp_only_layers=[])
ROPE = {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25}
KINDS = {"qwen35": ("qwen3_5_text", dict(COMMON, rope_parameters=ROPE), 31),
         "qwen35moe": ("qwen3_5_moe_text", dict(COMMON, rope_parameters=ROPE, **EXPERTS), 32),
         "qwen3next": ("qwen3_next", dict(COMMON, rope_parameters=ROPE, partial_rotary_factor=0.25, **EXPERTS), 33)}


def fill(model, seed):
    """Random weights under which states live for tens of tokens and gates are neither open nor shut."""
    random = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        normal = torch.randn(p.shape, generator=random)
        if name.endswith("A_log"):  # decay of a token: e^-(A softplus(a + dt_bias))
            value = torch.log(0.02 + 0.5 * torch.rand(p.shape, generator=random))
        elif name.endswith("dt_bias"):
            value = normal - 1
        elif name.endswith("linear_attn.norm.weight"):
            value = 1 + 0.1 * normal
        elif p.dim() == 1:
            value = 0.1 * normal  # w - 1
        elif "conv1d" in name:
            value = 0.5 * normal
        else:
            gain = 16 if "embed_tokens" in name else 3 if "lm_head" in name else 8 if name.endswith("mlp.gate.weight") else 2
            value = normal * gain / math.sqrt(p.shape[-1])
        p.data.copy_(value.to(torch.bfloat16))


def make(kind, out):
    model_type, values, seed = KINDS[kind]
    folder = os.path.join(out, kind)
    config = transformers.AutoConfig.for_model(model_type, **values)
    config.dtype = torch.bfloat16
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    fill(model, seed)
    model.save_pretrained(folder)
    with open(os.path.join(folder, "config.json")) as f:
        said = json.load(f)
    model = load(kind, folder)
    sparse = config.num_hidden_layers if "num_experts" in values else 0
    cases = list(cases_of(model, {**values, "num_experts_per_tok": values.get("num_experts_per_tok", 0)}, sparse))
    with open(os.path.join(folder, "golden.json"), "w") as f:
        json.dump({"name": kind, "dtype": "bfloat16", "transformers": transformers.__version__, "cases": cases}, f)
    steps = [s for case in cases for s in case["steps"]]
    print(f"{kind}: {said['architectures']}, {len({s['token'] for s in steps})} different tokens of {len(steps)} steps, gap median "
          f"{sorted(s['gap'] for s in steps)[len(steps) // 2]:.3f}, margins {[c['steps'][-1]['router_margin'] for c in cases]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], help="default: all")
    args = parser.parse_args()
    for kind in args.kinds or KINDS:
        make(kind, args.out)


if __name__ == "__main__":
    main()
