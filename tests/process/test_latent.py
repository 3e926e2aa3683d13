#!/usr/bin/python3
"""Latent attention (DeepSeek-V2 and V3, GLM-4.7-Flash) through helmd, beside what test_families.py asks of every family: every type of
cache, two tiers, sessions from one plan to another, the prefix cache, files with both parts in one tensor and apart, also quantised.
References: tests/data/golden/deepseekv2, deepseekv3, glm47flash."""
import os
import struct
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import test_families as families  # noqa: E402
from helmd_harness import DEVICE, Client, check, plan_json, run_tests, running, same  # noqa: E402
from test_architectures import CPU, F32, GOLDEN, LOAD, agrees, decode, golden  # noqa: E402
from test_families import FAMILIES, config_of, inspected, parted, write_folder, write_gguf  # noqa: E402
from test_helmd_sessions import restore, save  # noqa: E402

NAMES = ("deepseekv2", "deepseekv3", "glm47flash")
SIZES = ["--parallel", 1, "--step-tokens", 64, "--threads", 1]
PAGE, Q8_0 = 16, 8


def long_case(name):
    """Several chunks. Margins of choices in deepseekv3's prompt of 130 are as small as the rounding of 16 bits."""
    return golden(name)[5 if name == "deepseekv3" else 6]


def folder_of(name):
    return os.path.join(GOLDEN, name)


def placed(homes, embed, head, **more):
    return plan_json(3, homes, embed, head, **{"slots": 2, "ring_bytes": 1 << 20, "page_tokens": PAGE, "page_count": 64, **more})


def test_every_type_of_cache_computes_the_same():
    """Also by an invariant plan, whose decode attention on a GPU adds up in another order."""
    for name, kv, most in (("deepseekv2", "f16", 0.4), ("deepseekv3", "bf16", 0.4), ("glm47flash", "q8_0", 0.6), ("deepseekv2", "q8_0", 0.6)):
        for device, invariant in ("cpu", "off"), (DEVICE, "off"), (DEVICE, "on"):
            agrees(folder_of(name), long_case(name), most, *SIZES, "--kv-dtype", kv, "--device", device, "--invariant", invariant, *LOAD)


def test_two_tiers_compute_the_same():
    least = (64 - 1) // PAGE + 1 + 2 * 2  # plan_vram_pages_least
    for name, homes, ends, direct in (("deepseekv2", "gcg", ("c", "g"), 0), ("deepseekv3", "ggg", ("g", "g"), 400),
                                      ("glm47flash", "ggc", ("g", "c"), 1000)):
        for kv in "f32", "q8_0":
            plan = placed(homes, *ends, kv_dtype=kv, vram_page_count=least, kv_direct_permille=direct)
            agrees(folder_of(name), long_case(name), 0.4 if kv == "f32" else 0.6, *SIZES, "--device", DEVICE, plan=plan)


def sessions_of(plan, *options, name="deepseekv3"):
    return running(*SIZES, *options, real=True, model=folder_of(name), plan=plan)


def test_a_session_is_the_latents_alone_and_goes_to_another_plan():
    c, prompt = config_of("deepseekv3"), golden("deepseekv3")[6]["prompt"][:96]
    cpu, gpu = placed("ccc", "c", "c"), placed("gcg", "g", "g")
    with sessions_of(cpu, "--device", "cpu") as d:
        client = Client(d.endpoint)
        first = client.generate(prompt, 8, ignore_eos=True)
        client.run(first)
        opened, pages = save(client, prompt)
    row = c["kv_lora_rank"] + c["qk_rope_head_dim"]
    same(opened.page_bytes, 3 * PAGE * row * 2, "bytes of a page: three layers of one row of 16 bits a position")
    same((opened.shape.kv_heads, opened.shape.head_dim), (1, row), "its shape")
    with sessions_of(gpu, "--device", DEVICE) as d:
        client = Client(d.endpoint)
        same(restore(client, prompt, opened, pages), (0, len(pages), False), "a session of the same model from another plan")
        again = client.generate(prompt, 8, ignore_eos=True)
        client.run(again)
        check(again.done.usage.cached_tokens >= len(pages) * PAGE - PAGE, f"{again.done.usage}")
        same(again.tokens, first.tokens, f"tokens after a restored session ({again.error or again.done})")


def test_the_prefix_cache_has_the_tokens_of_a_run_without_it():
    prompt = golden("glm47flash")[6]["prompt"]
    for plan, device in (placed("ccc", "c", "c"), "cpu"), (placed("gcg", "g", "g"), DEVICE):
        with sessions_of(plan, "--device", device, name="glm47flash") as d:
            client = Client(d.endpoint)
            runs = [client.generate(prompt, 12, ignore_eos=True) for _ in range(1)]
            client.run(*runs)
            second = client.generate(prompt, 12, ignore_eos=True)
            client.run(second)
            check(second.done.usage.cached_tokens >= len(prompt) // PAGE * PAGE - PAGE, f"{second.done.usage}")
            same(second.tokens, runs[0].tokens, "tokens of a cached prompt")


def test_an_invariant_plan_has_the_same_tokens_beside_others():
    prompts = [case["prompt"] for case in golden("deepseekv2")[2:6]]
    for options in ["--device", "cpu"], ["--device", DEVICE]:
        with running("--parallel", 4, "--step-tokens", 64, "--threads", 1, "--invariant", "on", *options, *LOAD, real=True,
                     model=folder_of("deepseekv2")) as d:
            client = Client(d.endpoint)
            alone = []
            for prompt in prompts:
                alone.append(client.generate(prompt, 16, ignore_eos=True, logprobs=5))
                client.run(alone[-1])
            beside = [client.generate(prompt, 16, ignore_eos=True, logprobs=5) for prompt in prompts]
            client.run(*beside)
            for a, b in zip(alone, beside):
                same(a.tokens, b.tokens, "tokens beside others")
                same([x.logprob for x in a.first], [x.logprob for x in b.first], "log probabilities beside others")


# ---- files ----

def q8_0(data):
    """Rows of bf16, whole blocks of 32, as Q8_0; and the values of that in fp32."""
    values, blocks, plain = [x[0] for x in struct.iter_unpack("<f", families.wide(data))], b"", []
    for i in range(0, len(values), 32):
        block = values[i:i + 32]
        scale = struct.unpack("<e", struct.pack("<e", max(map(abs, block)) / 127))[0]
        numbers = [max(-127, min(127, round(x / scale))) if scale else 0 for x in block]
        blocks += struct.pack("<e32b", scale, *numbers)
        plain += [scale * n for n in numbers]
    return blocks, struct.pack(f"<{len(plain)}f", *plain)


def written(path, name, apart, kind=None):
    """A file of one form or the other; kind: these parts as Q8_0, or as the values of that in fp32."""
    own = FAMILIES[name]
    family = {**own, "apart": apart, "keys": lambda c: families.latent_keys(c, apart, 1 if name == "deepseekv2" else 2)}
    tensors = families.gguf_tensors

    def made(of, _):
        return [[t, shape, kind, q8_0(data)[kind == F32]] if kind is not None and any(part in t for part in ("kv_b", "k_b", "v_b"))
                else [t, shape, old, data] for t, shape, old, data in tensors(of, family)]
    FAMILIES[name], families.gguf_tensors = family, made
    try:
        write_gguf(name, path)
    finally:
        FAMILIES[name], families.gguf_tensors = own, tensors


def test_both_forms_of_files_compute_the_same():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "file.gguf")
        for name in NAMES:
            for apart in False, True:
                written(path, name, apart)
                agrees(path, golden(name)[4], 0.4, *CPU, *LOAD)


def test_quantised_parts_compute_what_their_values_do():
    """attn_kv_b in Q8_0 is turned at load: what meets queries is kept as F16. Apart both are what they are."""
    prompt = golden("deepseekv3")[4]["prompt"]
    with tempfile.TemporaryDirectory() as folder:
        quantised, plain = (os.path.join(folder, n) for n in ("quantised.gguf", "plain.gguf"))
        for apart in False, True:
            written(quantised, "deepseekv3", apart, Q8_0)
            written(plain, "deepseekv3", apart, F32)
            code, said = inspected(quantised)
            turned = next(line.lower() for line in said.splitlines() if "k_b" in line)
            check(code == 0 and ("q8_0" in turned) == apart and ("f16" in turned or "fp16" in turned) == (not apart), f"{apart}: {code}, {said}")
            # a GPU's chunks round what meets values as the weights ask: to 16 bits, or not
            for options, most in (CPU, 0.05), ([*families.EMULATED], 0.3):
                (_, a), (_, b) = (decode(path, prompt, 1, *options, *LOAD)[0][0] for path in (quantised, plain))
                far = max(abs(p - b[t]) for t, p in list(a.items())[:10])
                check(far <= most, f"{apart} {options}: logprobs differ by {far}")


def test_what_is_not_computed_is_refused_by_name():
    for name, change, why in (
            ("deepseekv2", {"n_group": 4, "topk_group": 2}, "'n_group' is 4: a choice by softmax within groups is not supported"),
            ("deepseekv2", {"kv_lora_rank": None}, "'kv_lora_rank' is missing"),
            ("deepseekv2", {"qk_rope_head_dim": 31}, "'qk_rope_head_dim' is 31"),
            ("deepseekv2", {"attention_bias": True}, "biases of latent attention are not supported"),
            ("deepseekv2", {"scoring_func": "sigmoid"}, "'scoring_func' is 'sigmoid'"),
            ("deepseekv2", {"moe_layer_freq": 2}, "'moe_layer_freq'"),
            ("deepseekv3", {"q_lora_rank": 65}, "'q_lora_rank' is 65, more than 'hidden_size', 64"),
            ("deepseekv3", {"rope_interleave": False}, "'rope_interleave'"),
            ("deepseekv3", {"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0}}, "RoPE type 'linear' with latent"),
            ("glm47flash", {"mlp_layer_types": ["dense", "sparse", "dense"]}, "'mlp_layer_types' entry 2 is 'dense'"),
            ("glm47flash", {"mlp_layer_types": ["dense"]}, "'mlp_layer_types' is no list of 3 entries"),
            ("glm47flash", {"v_head_dim": 32}, "self_attn.kv_b_proj.weight")):
        with tempfile.TemporaryDirectory() as folder:
            write_folder(name, folder, change)
            code, said = inspected(folder)
            check(code == 1 and why in said, f"{name} {change}: {code}, {said[-300:]}")


if __name__ == "__main__":
    run_tests(dict(globals()))
