#!/usr/bin/python3
"""Gemma 3 and 4 through helmd: every placement of its four layers on the emulated GPU and the CPU, windows whose pages are used again,
a GGUF file, what is refused; Gemma 4, whose windows have cells of another size. References: tests/data/golden/gemma3, gemma4 (tests/golden/test_golden_cpu.c walks them with every kernel)."""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from gguf_edit import Gguf, string  # noqa: E402
from helmd_harness import BIN, DATA, DEVICE, PROFILE, check, plan_json, run_tests, running, same  # noqa: E402
from test_helmd_sessions import cli, greedy  # noqa: E402
from test_architectures import BF16, CPU, F32, GOLDEN, LOAD, SIZES, agrees, golden, number, read_safetensors  # noqa: E402

GEMMA3, GEMMA4, MOE = (os.path.join(GOLDEN, name) for name in ("gemma3", "gemma4", "gemma4moe"))
NAMES = {"embed_tokens.": "token_embd.", "self_attn.q_norm.": "attn_q_norm.", "self_attn.k_norm.": "attn_k_norm.",
         "self_attn.q_proj.": "attn_q.", "self_attn.k_proj.": "attn_k.", "self_attn.v_proj.": "attn_v.",
         "self_attn.o_proj.": "attn_output.", "input_layernorm.": "attn_norm.",
         "post_attention_layernorm.": "post_attention_norm.", "pre_feedforward_layernorm.": "ffn_norm.",
         "post_feedforward_layernorm.": "post_ffw_norm.", "mlp.gate_proj.": "ffn_gate.", "mlp.up_proj.": "ffn_up.",
         "mlp.down_proj.": "ffn_down.", "layer_scalar": "layer_output_scale.weight", "router.scale": "ffn_gate_inp.scale",
         "router.proj.": "ffn_gate_inp.", "router.per_expert_scale": "ffn_down_exps.scale",
         "experts.gate_up_proj": "ffn_gate_up_exps.weight", "experts.down_proj": "ffn_down_exps.weight",
         "pre_feedforward_layernorm_2.": "pre_ffw_norm_2.", "post_feedforward_layernorm_1.": "post_ffw_norm_1.",
         "post_feedforward_layernorm_2.": "post_ffw_norm_2.", "embed_tokens_per_layer.": "per_layer_token_embd.",
         "per_layer_model_projection.": "per_layer_model_proj.", "per_layer_projection_norm.": "per_layer_proj_norm.",
         "per_layer_input_gate.": "inp_gate.", "per_layer_projection.": "proj.", "post_per_layer_input_norm.": "post_norm."}


def gguf_name(name):
    if name == "model.norm.weight":
        return "output_norm.weight"
    name = name.replace("model.layers.", "blk.").replace("model.", "")
    for old, new in NAMES.items():
        name = name.replace(old, new)
    return name


def as_used(data, by=1.0):
    """GGUF files have norms as they are used, in fp32."""
    return struct.pack(f"<{len(data) // 2}f",
                       *(by * (1 + struct.unpack("<f", b"\0\0" + data[i:i + 2])[0]) for i in range(0, len(data), 2)))


def values(name, shape, data, c):
    """No key of GGUF files says that scores are divided by another number than a head's size: q's norm says it here."""
    return data if len(shape) > 1 else \
        as_used(data, (c["head_dim"] / c["query_pre_attn_scalar"]) ** 0.5 if "q_norm" in name else 1.0)


def write_gguf(path, leave_out=(), **more):
    with open(os.path.join(GEMMA3, "config.json"), encoding="utf-8") as file:
        c = json.load(file)
    keys = {"block_count": c["num_hidden_layers"], "embedding_length": c["hidden_size"],
            "feed_forward_length": c["intermediate_size"], "attention.head_count": c["num_attention_heads"],
            "attention.head_count_kv": c["num_key_value_heads"], "attention.key_length": c["head_dim"],
            "attention.value_length": c["head_dim"], "context_length": c["max_position_embeddings"],
            "attention.layer_norm_rms_epsilon": 1e-6, "attention.sliding_window": c["sliding_window"],
            "attention.sliding_window_pattern": 3, "rope.freq_base": 1e6, "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0, **more}
    tensors = [[gguf_name(old), shape[::-1], F32 if len(shape) == 1 else BF16, values(old, shape, data, c)]
               for old, (shape, data) in read_safetensors(GEMMA3).items()]
    every = {f"gemma3.{k}": number(v) for k, v in keys.items() if k not in leave_out}
    with open(path, "wb") as file:
        file.write(Gguf(b"GGUF" + struct.pack("<IQQ", 3, 0, 0)).bytes(dict({"general.architecture": string("gemma3")}, **every),
                                                                     [t for t in tensors if t[0] not in leave_out]))


def test_every_placement_computes_the_same():
    case = golden("gemma3")[6]  # a prompt of 130: three windows of 40, chunks of 64
    for homes, embed, head in ("gggg", "g", "g"), ("cgsg", "g", "c"), ("sscg", "c", "g"):
        agrees(GEMMA3, case, 0.1, *SIZES, "--device", DEVICE,
               plan=plan_json(4, homes, embed, head, kv_dtype="f32", ring_bytes=1 << 20, slots=1))
    agrees(GEMMA3, case, 0.4, *SIZES, "--device", DEVICE,
           plan=plan_json(4, "cccc", "c", "c", prefill="ssss", prefill_from=17, kv_dtype="f32", ring_bytes=1 << 20, slots=1))


def test_a_planned_model_computes_the_same():
    """With windows' pages used again: the longest prompt leaves its windows seven times."""
    agrees(GEMMA3, golden("gemma3")[7], 0.4, *SIZES, *LOAD, "--device", DEVICE)
    agrees(GEMMA3, golden("gemma3")[7], 0.4, *CPU, *LOAD)


def test_a_gguf_file_computes_the_same():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "gemma3.gguf")
        write_gguf(path)
        agrees(path, golden("gemma3")[6], 0.1, *CPU, *LOAD)
        agrees(path, golden("gemma3")[6], 0.4, *SIZES, *LOAD, "--device", DEVICE)


def write_published(folder):
    """As published checkpoints have it: the text's configuration in another's, its tensors beside those of images."""
    with open(os.path.join(GEMMA3, "config.json"), encoding="utf-8") as file:
        c = json.load(file)
    c.pop("architectures")
    full, window = {"rope_type": "linear", "factor": 8.0, "rope_theta": c.pop("rope_theta")}, c.pop("rope_local_base_freq")
    c.pop("rope_scaling")
    c["rope_parameters"] = {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": window}}
    c.pop("layer_types")
    c["sliding_window_pattern"] = 3
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump({"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": c}, file)
    header, data = {}, b""
    tensors = {"language_model." + name: t for name, t in read_safetensors(GEMMA3).items()}
    tensors["vision_tower.embeddings.weight"] = tensors["multi_modal_projector.weight"] = ([2, 2], b"\0" * 8)
    for name, (shape, part) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def test_the_text_of_a_published_checkpoint_computes_the_same():
    with tempfile.TemporaryDirectory() as folder:
        write_published(folder)
        agrees(folder, golden("gemma3")[6], 0.1, *CPU, *LOAD)
        run = subprocess.run([os.path.join(BIN, "helm-inspect"), folder], capture_output=True, text=True, timeout=60)
        check(run.returncode == 0 and "vision_tower.embeddings.weight" in run.stdout, f"{run}")


def refused(golden_folder, config, why):
    """Its weights with another configuration, of which members that are None are left out."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(os.path.join(golden_folder, "model.safetensors"), folder)
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump({k: v for k, v in config.items() if v is not None}, file)
        run = subprocess.run([os.path.join(BIN, "helm-inspect"), folder], capture_output=True, text=True, timeout=60)
        check(run.returncode != 0 and why in run.stdout + run.stderr, f"{why}: {run.returncode}, {run}")


def test_what_is_not_computed_is_refused_by_name():
    with open(os.path.join(GEMMA3, "config.json"), encoding="utf-8") as file:
        c = json.load(file)
    for change, why in (({"attn_logit_softcapping": 50.0}, "'attn_logit_softcapping' is 50"),
                        ({"use_bidirectional_attention": True}, "'use_bidirectional_attention' is true"),
                        ({"hidden_activation": "silu"}, "'hidden_activation' is 'silu'"),
                        ({"sliding_window": None}, "'sliding_window' is missing"),
                        ({"head_dim": 64}, "'head_dim' is 64"), ({"vocab_size": None}, "262208")):
        refused(GEMMA3, {**c, **change}, why)
    with tempfile.TemporaryDirectory() as folder:
        for part in "attention.sliding_window", "attention.key_length", "blk.2.post_ffw_norm.weight":
            path = os.path.join(folder, "file.gguf")
            write_gguf(path, [part])
            run = subprocess.run([os.path.join(BIN, "helm-inspect"), path], capture_output=True, text=True, timeout=60)
            check(run.returncode != 0 and part in run.stdout + run.stderr, f"{part}: {run.returncode}, {run}")


# ---- Gemma 4 ----

EMULATED = (*SIZES, "--device", DEVICE)
# Cells of two sizes share no page: layers with a window keep it.
WINDOWS = {"states": [{"layers": [n, n], "kind": "pages" if n % 2 else "window"} for n in range(4)],
           "window_tokens": 40, "window_page_count": 16, "page_count": 16}


def placed(homes, embed="g", head="g", **more):
    return plan_json(4, homes, embed, head, **{"kv_dtype": "f32", "ring_bytes": 1 << 20, "slots": 1, **WINDOWS, **more})


def test_every_placement_of_gemma4_computes_the_same():
    case = golden("gemma4")[6]
    for homes, embed, head in ("gggg", "g", "g"), ("cgsg", "g", "c"), ("sscg", "c", "g"):
        agrees(GEMMA4, case, 0.1, *EMULATED, plan=placed(homes, embed, head))
    # a long prompt's chunks borrow windows whose cells are of another size than pages
    agrees(GEMMA4, golden("gemma4")[7], 0.4, *EMULATED, plan=placed("cccc", "c", "c", prefill="ssss", prefill_from=17))


def test_tiers_of_gemma4_compute_the_same():
    """Layers without a window in two tiers, also where the CPU attends to a part, and chunks that borrow layers of both kinds."""
    case = golden("gemma4")[7]  # 300 tokens: seven windows
    for more in {}, {"kv_direct_permille": 500}, {"prefill": "ssgg", "prefill_from": 40}:
        homes = "ccgg" if "prefill" in more else "gggg"
        agrees(GEMMA4, case, 0.4, *EMULATED, plan=placed(homes, **{"kv_dtype": "f16", "vram_page_count": 13, "kv_direct_permille": 0, **more}))


def test_a_planned_gemma4_computes_the_same():
    case = golden("gemma4")[7]
    for options in (), ("--gpu-chains", "off"), ("--invariant", "on"):
        log = agrees(GEMMA4, case, 0.4, *EMULATED, *LOAD, *options)
        check("layers 0 to 3 gpu" in log, log)
    quantised = [{"f32": "q8_0"}.get(o, o) for o in EMULATED]
    agrees(GEMMA4, case, 0.6, *quantised, *LOAD)


def numbers(kind, values):
    """An array of u32 (4) or of flags (7)."""
    return struct.pack("<IIQ", 9, kind, len(values)) + b"".join(struct.pack("<I" if kind == 4 else "<B", v) for v in values)


def write_gguf4(path, leave_out=(), added=(), tensors_of=lambda name: True, raw=None, model=GEMMA4, **more):
    with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
        c = json.load(file)
    full = [kind == "full_attention" for kind in c["layer_types"]]
    keys = {"block_count": c["num_hidden_layers"], "embedding_length": c["hidden_size"],
            "feed_forward_length": c["intermediate_size"], "attention.head_count": c["num_attention_heads"],
            "attention.key_length": c["global_head_dim"], "attention.value_length": c["global_head_dim"],
            "attention.key_length_swa": c["head_dim"], "context_length": c["max_position_embeddings"],
            "attention.layer_norm_rms_epsilon": 1e-6, "attention.sliding_window": c["sliding_window"], "rope.freq_base": 1e6,
            "rope.freq_base_swa": 1e4, "rope.dimension_count": c["global_head_dim"],
            "final_logit_softcapping": c["final_logit_softcapping"]}
    if c["enable_moe_block"]:
        keys.update({"expert_count": c["num_experts"], "expert_used_count": c["top_k_experts"],
                     "expert_feed_forward_length": c["moe_intermediate_size"]})
    every = {f"gemma4.{k}": number(v) for k, v in keys.items()}
    every["gemma4.attention.head_count_kv"] = numbers(4, [c["num_global_key_value_heads" if f and c["attention_k_eq_v"] else
                                                                 "num_key_value_heads"] for f in full])
    every["gemma4.attention.sliding_window_pattern"] = numbers(7, [not f for f in full])
    every.update({f"gemma4.{k}": v for k, v in more.items()})
    tensors = []
    for old, (shape, data) in read_safetensors(model).items():
        name = gguf_name(old)
        wide = b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2)) if len(shape) == 1 else data
        tensors.append([name, shape[::-1], F32 if len(shape) == 1 else BF16, wide])
    pairs = c["global_head_dim"] // 2
    tensors.append(["rope_freqs.weight", [pairs], F32, struct.pack(f"<{pairs}f", *([1.0] * (pairs // 2) + [1e30] * (pairs // 2)))])
    with open(path, "wb") as file:
        file.write(Gguf(b"GGUF" + struct.pack("<IQQ", 3, 0, 0)).bytes(
            dict({"general.architecture": string("gemma4")}, **{k: v for k, v in every.items() if k not in leave_out}, **(raw or {})),
            [t for t in tensors if t[0] not in leave_out and tensors_of(t[0])] + list(added)))


def test_experts_of_gemma4_compute_the_same():
    """Experts beside a dense MLP: on a processor, in both memories, borrowed by long prompts; heads of 256 and 512. In 16-bit products
    a choice may be another one where margins are small, so that more than in a dense model is allowed (0.097 with AVX-512, 0.110 with
    AVX2 in the case of the first loop)."""
    cases = golden("gemma4moe")
    agrees(MOE, cases[7], 0.6, *CPU, *LOAD)
    for options in (), ("--gpu-chains", "off"), ("--invariant", "on"):
        agrees(MOE, cases[4], 0.4, *EMULATED, *LOAD, *options)
    for homes, more in ("gggg", {}), ("cgcg", {}), ("cccc", {"prefill": "ssss", "prefill_from": 17}), \
            ("gmgmgmgm", {"mixed": {"slots": 3, "direct_permille": 0, "moves": 1, "move_cost": 1}}):
        agrees(MOE, cases[6], 0.4, *EMULATED, plan=placed(homes, "c" if homes[0] == "c" else "g", "g", **more))
    agrees(MOE, cases[4], 0.4, *EMULATED, *LOAD, "--strategy", "experts-cpu")


def test_a_gguf_file_of_gemma4s_experts_computes_the_same():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "moe.gguf")
        write_gguf4(path, model=MOE)
        agrees(path, golden("gemma4moe")[4], 0.4, *EMULATED, *LOAD)
        for part in "blk.2.ffn_gate_inp.scale", "blk.0.ffn_down_exps.scale", "blk.1.pre_ffw_norm_2.weight", \
                "blk.3.post_ffw_norm_1.weight", "gemma4.expert_used_count":
            write_gguf4(path, [part], model=MOE)
            run = subprocess.run([os.path.join(BIN, "helm-inspect"), path], capture_output=True, text=True, timeout=60)
            said = part if "blk" in part else "of which a token has 0"
            check(run.returncode > 0 and said in run.stdout + run.stderr, f"{part}: {run.returncode}, {run}")


def test_a_gguf_file_of_gemma4_computes_the_same():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "gemma4.gguf")
        write_gguf4(path)
        agrees(path, golden("gemma4")[6], 0.1, *CPU, *LOAD)
        agrees(path, golden("gemma4")[6], 0.4, *EMULATED, *LOAD)
        for part in "gemma4.attention.key_length_swa", "gemma4.attention.head_count_kv", "gemma4.attention.sliding_window_pattern", \
                "blk.2.layer_output_scale.weight", "blk.0.attn_v.weight", "rope_freqs.weight":
            write_gguf4(path, [part])
            run = subprocess.run([os.path.join(BIN, "helm-inspect"), path], capture_output=True, text=True, timeout=60)
            check(run.returncode != 0 and part in run.stdout + run.stderr, f"{part}: {run.returncode}, {run}")
        heads, windows = "attention.head_count_kv", "attention.sliding_window_pattern"
        for change, why in (({heads: numbers(4, [2, 1, 1, 1])}, "is 1 for layer 2, another one of its kind has 2"),
                            ({"rope.dimension_count_swa": number(16)}, "'gemma4.rope.dimension_count_swa' is 16"),
                            ({"attention.value_length_swa": number(64)}, "'gemma4.attention.value_length_swa' is 64"),
                            ({heads: numbers(4, [2, 0, 2, 1])}, "is 0 for layer 1, not between 1 and "),
                            ({windows: numbers(7, [1] * 4), heads: numbers(4, [2] * 4)}, f"'gemma4.{windows}': all of 4 layers"),
                            ({windows: numbers(7, [0] * 4), heads: numbers(4, [1] * 4)}, f"'gemma4.{windows}': none of 4 layers")):
            write_gguf4(path, **change)
            run = subprocess.run([os.path.join(BIN, "helm-inspect"), path], capture_output=True, text=True, timeout=60)
            check(run.returncode > 0 and why in run.stdout + run.stderr, f"{change}: {run}")


def test_which_layers_of_gemma4_lack_v_is_told_by_all_parts():
    """A split file whose first part has keys alone; layers without a window of which one has a v of its own."""
    keys = {f"split.{k}": struct.pack("<IH", 2, v) for k, v in (("count", 2), ("no", 0))}
    with tempfile.TemporaryDirectory() as folder:
        whole, v = os.path.join(folder, "whole.gguf"), ["blk.3.attn_v.weight", [64, 64], BF16, b"\0" * 8192]
        write_gguf4(whole, added=[v])
        run = subprocess.run([os.path.join(BIN, "helm-inspect"), whole], capture_output=True, text=True, timeout=60)
        check(run.returncode > 0 and f"there is a '{v[0]}', but none in layer 1" in run.stdout + run.stderr, f"{run}")
        first, second = (os.path.join(folder, f"g-0000{n}-of-00002.gguf") for n in (1, 2))
        write_gguf4(first, tensors_of=lambda name: name.startswith("blk.0."), raw=keys)
        write_gguf4(second, tensors_of=lambda name: not name.startswith("blk.0."), raw={**keys, "split.no": struct.pack("<IH", 2, 1)})
        agrees(first, golden("gemma4")[6], 0.1, *CPU, *LOAD)
        # All layers have a v, those without a window in the second part: no layer may be read as one without.
        vs = [[f"blk.{n}.attn_v.weight", [64, 64], BF16, b"\0" * 8192] for n in (1, 3)]
        write_gguf4(second, tensors_of=lambda name: not name.startswith("blk.0."), raw={**keys, "split.no": struct.pack("<IH", 2, 1)}, added=vs)
        run = subprocess.run([os.path.join(BIN, "helm-inspect"), first], capture_output=True, text=True, timeout=60)
        check(run.returncode == 0, f"{run}")


def test_gemma4_keeps_windows_whatever_the_context():
    """A context in which all pages are fewer than windows usually have: cells of two sizes share no page."""
    case = golden("gemma4")[4]
    for context in 64, 96, 512:
        agrees(GEMMA4, case, 0.4, *CPU, "--ctx", context)
    plan = plan_json(4, "cccc", "c", "c", kv_dtype="f32", slots=1)
    with running(*SIZES, "--device", "cpu", real=True, model=GEMMA4, plan=plan, wait=False) as d:
        check(d.process.wait(60) != 0 and "heads of another size" in d.log(), d.log())


def planned(size, said, *rows):
    """Plans of a published shape's file of Q4_K_M, one for each row of options, say so."""
    make, plan = os.path.join(DATA, "../../tools/bench/make_gguf.py"), os.path.join(BIN, "helm-plan")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, size + ".gguf")
        subprocess.run([sys.executable, make, "--size", size, "--type", "Q4_K_M", "--hole", "--out", path], check=True,
                       stdout=subprocess.DEVNULL, timeout=60)
        for row in rows:
            run = subprocess.run([plan, "--model", path, "--profile", PROFILE, *row], capture_output=True, text=True, timeout=60)
            check(run.returncode == 0 and said in run.stdout, f"{size}, {row}: {run}")


def session_comes_back(model, prompt):
    for options in (*CPU, *LOAD), (*EMULATED, *LOAD):
        with tempfile.TemporaryDirectory() as folder:
            path, words = os.path.join(folder, "session"), ["--tokens", ",".join(map(str, prompt))]
            with running(*options, real=True, model=model) as d:
                tokens, _ = greedy(d, prompt)
                check("256 of 270 tokens" in cli(d, "session", "save", path, *words), "saved")
            with running(*options, real=True, model=model) as d:
                check("256 of 270 tokens" in cli(d, "session", "restore", path), "restored")
                same(greedy(d, prompt), (tokens, 256), "the same tokens, and how many were there")


def test_published_shapes_of_gemma4_are_planned():
    """Pages that a pool has beside the least bring windows with them, whose cells are larger: all of it has room."""
    for size in "12b", "26b-a4b":
        planned(size, "windows of", *(("--ctx", str(context), "--host-memory", "60G") for context in (4096, 8192)))


def test_a_session_of_two_kinds_of_cells_is_saved_and_restored():
    session_comes_back(GEMMA4, golden("gemma4")[7]["prompt"][:270])


def test_what_gemma4_is_not_computed_of_is_refused_by_name():
    with open(os.path.join(GEMMA4, "config.json"), encoding="utf-8") as file:
        c = json.load(file)
    ropes = {kind: {"full_attention": c["rope_parameters"]["full_attention"],
                    "sliding_attention": {"rope_type": kind, "rope_theta": 1e4, "original_max_position_embeddings": 64,
                                          "factor": 2.0, "short_factor": [1.0] * 32, "long_factor": [2.0] * 32}}
             for kind in ("longrope", "yarn", "proportional")}
    for change, why in (*(({"rope_parameters": r}, "'sliding_attention': this RoPE type is not supported") for r in ropes.values()),
                        ({"rope_parameters": None}, "'rope_parameters' is missing"),
                        ({"hidden_size_per_layer_input": 256}, "'vocab_size_per_layer_input' is 0, but 'vocab_size' 256"),
                        ({"num_kv_shared_layers": 4}, "'num_kv_shared_layers' is 4 of 4 layers"),
                        ({"enable_moe_block": True}, "layers have experts, but there are 0"),
                        ({"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2}, "of width 0"),
                        ({"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 64}, "router."),
                        ({"use_bidirectional_attention": "all"}, "'use_bidirectional_attention' is 'all'"),
                        ({"global_head_dim": None}, "'global_head_dim' is missing"),
                        ({"num_global_key_value_heads": 3}, "'num_global_key_value_heads' 3"), ({"num_key_value_heads": 3}, "no multiple of 3")):
        refused(GEMMA4, {**c, **change}, why)


if __name__ == "__main__":
    run_tests(globals())
