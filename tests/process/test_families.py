#!/usr/bin/python3
"""Families of models that the same operations compute (GLM, MiniMax-M2, SmolLM3, Seed-OSS, OLMo, Ministral 3, DeepSeek) through helmd: every placement on the emulated GPU and the CPU, GGUF
files, what is refused. References: tests/data/golden (tests/golden/test_golden_cpu.c walks them with every kernel)."""
import json
import os
import re
import struct
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import processor  # noqa: E402
from gguf_edit import Gguf, string  # noqa: E402
from helmd_harness import BIN, DEVICE, check, plan_json, run_tests, same  # noqa: E402
from test_architectures import BF16, CPU, F32, GOLDEN, LOAD, SIZES, agrees, golden, interleave, number, read_safetensors  # noqa: E402

EMULATED = (*SIZES, "--device", DEVICE)
WORST = 0.6  # of long prompts: 16-bit products may choose another expert where margins are small
MIXED = {"mixed": {"slots": 3, "direct_permille": 0, "moves": 1, "move_cost": 1}}


# ---- files of a family ----

NAMES = {"embed_tokens.": "token_embd.", "lm_head.": "output.", "self_attn.q_proj.": "attn_q.", "self_attn.k_proj.": "attn_k.",
         "self_attn.v_proj.": "attn_v.", "self_attn.o_proj.": "attn_output.", "self_attn.q_norm.": "attn_q_norm.",
         "self_attn.k_norm.": "attn_k_norm.", "input_layernorm.": "attn_norm.", "post_attention_layernorm.": "ffn_norm.",
         "mlp.gate_proj.": "ffn_gate.", "mlp.up_proj.": "ffn_up.", "mlp.down_proj.": "ffn_down.", "mlp.gate.weight": "ffn_gate_inp.weight",
         "mlp.gate.e_score_correction_bias": "exp_probs_b.bias", "mlp.shared_experts.gate_proj.": "ffn_gate_shexp.",
         "mlp.shared_experts.up_proj.": "ffn_up_shexp.", "mlp.shared_experts.down_proj.": "ffn_down_shexp.",
         "eh_proj.": "nextn.eh_proj.", "enorm.": "nextn.enorm.", "hnorm.": "nextn.hnorm.", "shared_head.norm.": "nextn.shared_head_norm.",
         "mlp.experts.gate_proj.": "ffn_gate_exps.", "mlp.experts.up_proj.": "ffn_up_exps.", "mlp.experts.down_proj.": "ffn_down_exps."}


def experts_keys(c):
    return {"expert_count": c.get("n_routed_experts") or c["num_local_experts"], "expert_used_count": c["num_experts_per_tok"],
            "expert_feed_forward_length": c.get("moe_intermediate_size", c["intermediate_size"]), "expert_gating_func": 2}


def rope_keys(c):
    return {"rope.dimension_count": int(c["head_dim"] * c["partial_rotary_factor"])}


def glm4moe_keys(c):
    return {**rope_keys(c), **experts_keys(c), "expert_shared_count": c["n_shared_experts"],
            "leading_dense_block_count": c["first_k_dense_replace"], "expert_weights_scale": c["routed_scaling_factor"],
            "expert_weights_norm": True}


def ministral3_keys(c):
    rope = c["rope_parameters"]
    return {"rope.scaling.type": "yarn", "rope.scaling.factor": rope["factor"], "rope.scaling.yarn_log_multiplier": rope["mscale_all_dim"],
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
            "attention.temperature_scale": rope["llama_4_scaling_beta"]}


# Latent attention. Newer files have its two parts apart, K_B's turned; older ones have the tensor of both, and heads' own sizes.
LATENT = {"self_attn.q_a_proj.": "attn_q_a.", "self_attn.q_a_layernorm.": "attn_q_a_norm.", "self_attn.q_b_proj.": "attn_q_b.",
          "self_attn.kv_a_proj_with_mqa.": "attn_kv_a_mqa.", "self_attn.kv_a_layernorm.": "attn_kv_a_norm.",
          "self_attn.kv_b_proj.": "attn_kv_b."}


def latent_keys(c, apart, gating):
    nope, rope, value, rank = (c[n] for n in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank"))
    own = {"attention.key_length": nope + rope, "attention.value_length": value}
    keys = {"attention.head_count_kv": 1, "attention.key_length": rank + rope, "attention.value_length": rank,
            "attention.key_length_mla": nope + rope, "attention.value_length_mla": value} if apart else own
    yarn = c.get("rope_parameters", {})
    if "factor" in yarn:
        keys.update({"rope.scaling.type": "yarn", "rope.scaling.factor": yarn["factor"],
                     "rope.scaling.original_context_length": yarn["original_max_position_embeddings"],
                     "rope.scaling.yarn_log_multiplier": 0.1 * yarn["mscale_all_dim"]})
    if c["q_lora_rank"]:
        keys["attention.q_lora_rank"] = c["q_lora_rank"]
    return {**keys, **experts_keys(c), "attention.kv_lora_rank": rank, "rope.dimension_count": rope, "expert_gating_func": gating,
            "expert_shared_count": c["n_shared_experts"], "leading_dense_block_count": c["first_k_dense_replace"],
            "expert_weights_scale": c["routed_scaling_factor"], "expert_weights_norm": c["norm_topk_prob"],
            "expert_group_count": c["n_group"], "expert_group_used_count": c["topk_group"]}


def parted(tensor, c):
    """The rows of kv_b of each head: the first ones as columns, and the others."""
    name, _, kind, data = tensor
    heads, nope, value, rank = (c[n] for n in ("num_attention_heads", "qk_nope_head_dim", "v_head_dim", "kv_lora_rank"))
    row, keys, values = 2 * rank, b"", b""
    for head in range(heads):
        at = head * (nope + value) * row
        rows = [data[at + r * row:at + (r + 1) * row] for r in range(nope + value)]
        keys += b"".join(rows[r][2 * i:2 * i + 2] for i in range(rank) for r in range(nope))
        values += b"".join(rows[nope:])
    return [[name.replace("kv_b", "k_b"), [nope, rank, heads], kind, keys],
            [name.replace("kv_b", "v_b"), [rank, value, heads], kind, values]]


W123 = {"block_sparse_moe.gate.": "ffn_gate_inp.", "block_sparse_moe.e_score_correction_bias": "exp_probs_b.bias",
        "block_sparse_moe.experts.w1.": "ffn_gate_exps.", "block_sparse_moe.experts.w3.": "ffn_up_exps.",
        "block_sparse_moe.experts.w2.": "ffn_down_exps."}
AFTER_ATTENTION = {"post_attention_layernorm.": "post_attention_norm."}
AFTER = {**AFTER_ATTENTION, "post_feedforward_layernorm.": "post_ffw_norm."}
# By its folder in tests/data/golden. arch: in GGUF files, whose keys beside the usual ones `keys` gives; names: of theirs that are not as
# above; homes: of layers, or of halves of them; interleaved: rows of q and k are, in GGUF files
FAMILIES = {
    "glm4moe": {"arch": "glm4moe", "keys": glm4moe_keys, "names": AFTER_ATTENTION, "layers": 3,
                "homes": ("cgg", "scc", "gcgcgc", "gggcsc"), "mixed": "gggmgm",
                "lack": ("rope.dimension_count", "expert_used_count", "blk.1.exp_probs_b.bias", "blk.2.ffn_up_shexp.weight",
                         "blk.1.attn_k.bias", "blk.1.attn_k_norm.weight", "blk.2.post_attention_norm.weight")},
    "minimaxm2": {"arch": "minimax-m2", "keys": lambda c: {**rope_keys(c), **experts_keys(c)}, "names": W123, "layers": 2,
                  "homes": ("cg", "gcsc"), "mixed": "gmgm",
                  "lack": ("rope.dimension_count", "expert_count", "blk.1.exp_probs_b.bias", "blk.0.attn_q_norm.weight")},
    "glm4": {"arch": "glm4", "keys": rope_keys, "layers": 2, "homes": ("cs", "gcsc"),
             "names": {"post_attention_layernorm.": "ffn_norm.", "post_self_attn_layernorm.": "post_attention_norm.",
                       "post_mlp_layernorm.": "post_ffw_norm.", "mlp.gate_up_proj.": "ffn_up."},
             "lack": ("rope.dimension_count", "blk.1.post_attention_norm.weight", "blk.0.post_ffw_norm.weight", "blk.1.attn_q.bias")},
    "smollm3": {"arch": "smollm3", "keys": lambda c: {}, "names": {}, "layers": 4, "homes": ("cgsg", "gcsccgcs"),
                "interleaved": True, "lack": ("context_length", "blk.2.attn_k.weight")},
    "seedoss": {"arch": "seed_oss", "keys": lambda c: {}, "names": AFTER_ATTENTION, "layers": 2, "homes": ("cs",),
                "lack": ("blk.1.post_attention_norm.weight", "blk.1.attn_v.bias")},
    "olmo2": {"arch": "olmo2", "keys": lambda c: {}, "names": AFTER, "layers": 2, "homes": ("gcsc",),
              "lack": ("blk.1.post_ffw_norm.weight", "blk.0.post_attention_norm.weight", "blk.1.attn_k_norm.weight")},
    "olmo3": {"arch": "olmo2", "keys": lambda c: {"attention.sliding_window": c["sliding_window"]}, "names": AFTER, "layers": 4,
              "homes": ("cgsg", "gcsccgcs"), "lack": ("blk.3.attn_q_norm.weight",)},
    "deepseekv2": {"arch": "deepseek2", "keys": lambda c: latent_keys(c, False, 1), "names": LATENT, "layers": 3, "homes": ("cgg", "scc", "gcgcgc", "gggcsc"), "mixed": "gggmgm",
                   "lack": ("attention.kv_lora_rank", "rope.dimension_count", "blk.1.attn_kv_a_mqa.weight",
                            "blk.0.attn_q.weight", "blk.2.ffn_gate_shexp.weight")},
    "deepseekv3": {"arch": "deepseek2", "keys": lambda c: latent_keys(c, True, 2), "names": LATENT, "layers": 3, "homes": ("cgg", "scc", "gcgcgc", "gggcsc"), "mixed": "gggmgm",
                   "apart": True, "lack": ("attention.kv_lora_rank", "blk.1.attn_k_b.weight", "blk.2.attn_v_b.weight",
                                           "blk.0.attn_q_a_norm.weight", "blk.1.exp_probs_b.bias", "blk.0.attn_kv_a_norm.weight")},
    "glm47flash": {"arch": "deepseek2", "keys": lambda c: latent_keys(c, True, 2), "names": LATENT, "layers": 3, "homes": ("cgg", "scc", "gcgcgc", "gggcsc"), "mixed": "gggmgm",
                   "apart": True, "lack": ("attention.kv_lora_rank", "blk.1.attn_kv_a_mqa.weight", "blk.2.attn_q_b.weight")},
    "ministral3": {"arch": "mistral3", "keys": ministral3_keys, "names": {}, "layers": 2, "homes": ("cs", "gcsc"),
                   "interleaved": True, "lack": ("rope.scaling.factor", "blk.0.attn_v.weight")},
}


def config_of(name):
    with open(os.path.join(GOLDEN, name, "config.json"), encoding="utf-8") as file:
        return json.load(file)


def value(v):
    if isinstance(v, bytes):
        return v
    return struct.pack("<IB", 7, v) if isinstance(v, bool) else number(v)


def wide(data):
    return b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))


def gguf_tensors(name, family):
    """Vectors and routers in fp32; all experts' matrices in one tensor."""
    tensors, experts = [], {}
    for old, (shape, data) in read_safetensors(os.path.join(GOLDEN, name)).items():
        new = old.replace("model.layers.", "blk.").replace("model.", "")
        if new.startswith("norm."):
            new = "output_" + new
        of_one = re.sub(r"\.experts\.\d+\.", ".experts.", new)
        for a, b in {**NAMES, **family["names"]}.items():
            of_one = of_one.replace(a, b)
        if ".experts." in new:
            experts.setdefault(of_one, [of_one, [*shape[::-1], 0], BF16, b""])
            experts[of_one][1][2] += 1
            experts[of_one][3] += data
        elif family.get("interleaved") and re.search("[qk]_proj.weight", old):
            tensors.append([of_one, shape[::-1], BF16, interleave(data, shape[0] // 32)])
        elif len(shape) == 1 or "gate_inp" in of_one:
            tensors.append([of_one, shape[::-1], F32, wide(data)])
        elif family.get("apart") and "attn_kv_b" in of_one:
            tensors += parted([of_one, shape[::-1], BF16, data], config_of(name))
        else:
            tensors.append([of_one, shape[::-1], BF16, data])
    return tensors + list(experts.values())


def write_gguf(name, path, leave_out=(), added=(), folder=None, **more):
    """Of the reference, or of another checkpoint of its family: a folder's whole path."""
    family, c = FAMILIES[name], config_of(folder or name)
    drafts = c.get("num_nextn_predict_layers", 0)
    keys = {"block_count": c["num_hidden_layers"] + drafts, **({"nextn_predict_layers": drafts} if drafts else {}), "embedding_length": c["hidden_size"], "feed_forward_length": c["intermediate_size"],
            "attention.head_count": c["num_attention_heads"], "attention.head_count_kv": c["num_key_value_heads"],
            "attention.key_length": c.get("head_dim"), "attention.value_length": c.get("head_dim"),
            "context_length": c["max_position_embeddings"], "attention.layer_norm_rms_epsilon": c["rms_norm_eps"],
            "rope.freq_base": c.get("rope_theta", 10000.0), **family["keys"](c), **more}
    every = {f"{family['arch']}.{k}": value(v) for k, v in keys.items() if k not in leave_out}
    with open(path, "wb") as file:
        file.write(Gguf(b"GGUF" + struct.pack("<IQQ", 3, 0, 0)).bytes(
            {"general.architecture": string(family["arch"]), **every},
            [t for t in gguf_tensors(folder or name, family) if t[0] not in leave_out] + list(added)))


def write_folder(name, folder, changes, added=None):
    """Its weights, and tensors beside them, with members of its configuration changed; None: left out."""
    header, data = {}, b""
    for tensor, (shape, part) in {**read_safetensors(os.path.join(GOLDEN, name)), **(added or {})}.items():
        header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump({k: v for k, v in {**config_of(name), **changes}.items() if v is not None or k not in changes}, file)


def inspected(path):
    run = processor.run([os.path.join(BIN, "helm-inspect"), path], capture_output=True, text=True, timeout=60)
    return run.returncode, run.stdout + run.stderr


# ---- of every family ----

def placed(family, homes, embed="g", head="g", **more):
    return plan_json(family["layers"], homes, embed, head, **{"kv_dtype": "f32", "ring_bytes": 1 << 20, "slots": 1, **more})


def test_every_placement_computes_the_same():
    for name, family in FAMILIES.items():
        model, case = os.path.join(GOLDEN, name), golden(name)[4]
        for homes in family["homes"]:
            ends = ("g", "g") if homes[0] == "g" else ("c", "g")
            agrees(model, case, 0.4, *EMULATED, plan=placed(family, homes, *ends))
        if len(family["homes"]) == 1:
            continue
        agrees(model, golden(name)[6], WORST, *EMULATED,
               plan=placed(family, "c" * family["layers"], "c", "c", prefill="s" * family["layers"], prefill_from=17))
        if "mixed" in family:
            agrees(model, case, 0.4, *EMULATED, plan=placed(family, family["mixed"], **MIXED))


def test_a_planned_model_computes_the_same():
    """All of it on the GPU; the CPU alone computes GGUF files below."""
    for name in FAMILIES:
        for options in (), ("--invariant", "on"):
            agrees(os.path.join(GOLDEN, name), golden(name)[6], WORST, *EMULATED, *LOAD, *options)


def test_gguf_files_compute_the_same():
    with tempfile.TemporaryDirectory() as folder:
        for name in FAMILIES:
            path = os.path.join(folder, name + ".gguf")
            write_gguf(name, path)
            agrees(path, golden(name)[4], 0.4, *CPU, *LOAD)


def test_gguf_files_that_lack_a_part_are_refused_by_name():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "file.gguf")
        for name, family in FAMILIES.items():
            for part in family["lack"]:
                write_gguf(name, path, [part])
                code, said = inspected(path)
                check(code == 1 and f"{part}'" in said, f"{name} without {part}: {code}, {said[-300:]}")


# ---- GLM-4.5 ----

def test_the_layer_of_drafts_is_skipped_and_counted():
    case = golden("glm4moe")[4]
    with tempfile.TemporaryDirectory() as folder:
        at, of = "model.layers.3.", [64]
        write_folder("glm4moe", folder, {"num_nextn_predict_layers": 1},
                     {at + "eh_proj.weight": ([64, 128], bytes(2 * 64 * 128)), at + "enorm.weight": (of, bytes(128)),
                      at + "input_layernorm.weight": (of, bytes(128)), at + "shared_head.norm.weight": (of, bytes(128))})
        agrees(folder, case, 0.4, *CPU, *LOAD)
        code, said = inspected(folder)
        check(code == 0 and "4 more tensors" in said and at + "e" in said, said)
        path = os.path.join(folder, "file.gguf")
        added = [["blk.3.nextn.eh_proj.weight", [128, 64], BF16, bytes(2 * 64 * 128)], ["blk.3.attn_norm.weight", of, F32, bytes(256)]]
        write_gguf("glm4moe", path, added=added, block_count=4, nextn_predict_layers=1)
        agrees(path, case, 0.4, *CPU, *LOAD)
        code, said = inspected(path)
        check(code == 0 and "2 more tensors" in said and "blk.3.nextn.eh_proj.weight" in said, said)
        write_gguf("glm4moe", path, added=added)
        code, said = inspected(path)
        check(code == 1 and "blk.3." in said, said)


def test_glm_without_norms_of_heads_is_told_by_its_files():
    """GLM-4.5-Air has none."""
    norms = [f"blk.{layer}.attn_{n}_norm.weight" for layer in range(3) for n in "qk"]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "file.gguf")
        write_gguf("glm4moe", path, norms)
        code, said = inspected(path)
        check(code == 0 and "norms on q and k" not in said, said)
        write_gguf("glm4moe", path, norms[:2])
        code, said = inspected(path)
        check(code == 1 and "blk.1.attn_" in said, said)


def test_windows_of_olmo3_in_gguf_files_are_every_nth_or_listed():
    flags = struct.pack("<IIQ4B", 9, 7, 4, 1, 0, 1, 0)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "file.gguf")
        for pattern, why in ((4, "a window of 40 in 3 of 4 layers"), (2, "a window of 40 in 2 of 4 layers"),
                             (flags, "a window of 40 in 2 of 4 layers"), (0, "olmo2.attention.sliding_window_pattern' is no number from 1"),
                             (flags[:-4].replace(b"\4", b"\2") + flags[-2:], "nor one for each of 4 layers")):
            write_gguf("olmo3", path, **{"attention.sliding_window_pattern": pattern})
            code, said = inspected(path)
            check(code == ("olmo2." in why or "nor one" in why) and why in said, f"{pattern}: {code}, {said[-300:]}")
        write_gguf("olmo3", path, ["attention.sliding_window"])
        code, said = inspected(path)
        check(code == 0 and "Olmo2ForCausalLM" in said and "full attention in every layer" in said, said)


def test_files_are_written_as_they_are_read():
    with tempfile.TemporaryDirectory() as folder:
        for name in "glm4moe", "minimaxm2", "glm4", "smollm3", "olmo3", "ministral3":
            path = os.path.join(folder, name + ".gguf")
            run = processor.run([os.path.join(BIN, "helm-quantize"), "--model", os.path.join(GOLDEN, name), "--to", "BF16", "--out", path],
                                capture_output=True, text=True, timeout=60)
            if name == "glm4":
                check(run.returncode == 1 and "GGUF files hold 2 matrices in 'ffn_up.weight'" in run.stderr, run.stderr)
                continue
            same(run.returncode, 0, run.stderr)
            agrees(path, golden(name)[4], 0.4, *CPU, *LOAD)


def test_configurations_that_are_not_computed_are_refused_by_name():
    for name, change, why in (
            ("glm4moe", {"partial_rotary_factor": None}, "'partial_rotary_factor' is missing"),
            ("glm4moe", {"partial_rotary_factor": 0.3}, "'partial_rotary_factor' is 0.3"),
            ("glm4moe", {"hidden_act": "gelu"}, "'hidden_act' is 'gelu'"),
            ("glm4moe", {"n_group": 3}, "'n_group' 3"),
            ("glm4moe", {"num_experts_per_tok": 9}, "'num_experts_per_tok' is 9"),
            ("glm4moe", {"n_shared_experts": None}, "'n_shared_experts' is missing"),
            ("glm4moe", {"attention_bias": False}, "self_attn.q_proj.bias"),
            ("minimaxm2", {"rotary_dim": 48, "partial_rotary_factor": None}, "'rotary_dim' is 48"),
            ("minimaxm2", {"rotary_dim": 8}, "'partial_rotary_factor' is 0.5 here and another number elsewhere"),
            ("minimaxm2", {"scoring_func": "softmax"}, "'scoring_func' is 'softmax'"),
            ("minimaxm2", {"use_qk_norm": False}, "'use_qk_norm' is false"),
            ("minimaxm2", {"qk_norm_type": "per_head"}, "'qk_norm_type' is 'per_head'"),
            ("minimaxm2", {"use_routing_bias": False}, "'use_routing_bias' is false"),
            ("minimaxm2", {"shared_intermediate_size": 32}, "'shared_intermediate_size' is 32"),
            ("minimaxm2", {"attn_type_list": [1, 0]}, "'attn_type_list' entry 1 is not 1"),
            ("glm4", {"partial_rotary_factor": None}, "'partial_rotary_factor' is missing"),
            ("smollm3", {"no_rope_layers": [1, 0, 1, 0]}, "'no_rope_layers' entry 1 is not 1"),
            ("smollm3", {"no_rope_layers": [1, 1]}, "'no_rope_layers' is no list of 4 entries"),
            ("smollm3", {"use_sliding_window": True}, "'use_sliding_window' is true"),
            ("olmo3", {"layer_types": ["chunked_attention"] * 4}, "'layer_types' entry 0 is 'chunked_attention'"),
            ("olmo3", {"sliding_window": 0}, "'sliding_window' is 0"),
            ("ministral3", {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "llama_4_scaling_beta": 0.1}},
             "'llama_4_scaling_beta' is 0.1: scaling attention by position needs YaRN")):
        with tempfile.TemporaryDirectory() as folder:
            write_folder(name, folder, change)
            code, said = inspected(folder)
            check(code == 1 and why in said, f"{name} {change}: {code}, {said[-300:]}")


if __name__ == "__main__":
    run_tests(dict(globals()))
