#!/usr/bin/python3
"""Gemma 4's small models (E2B, E4B) through helmd: per-layer embeddings, whose table stays in host memory; layers that read another
one's cache, and have MLPs of another width; every placement on the emulated GPU and the CPU, GGUF files, sessions, what is refused.
Reference: tests/data/golden/gemma4e (tests/golden/test_golden_cpu.c walks it with every kernel)."""
import json
import os
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from helmd_harness import BIN, DEVICE, Client, check, plan_json, run_tests, running, same  # noqa: E402
from test_gemma import BF16, EMULATED, numbers, planned, refused, session_comes_back, write_gguf4  # noqa: E402
from test_helmd_sessions import cli  # noqa: E402
from test_architectures import CPU, GOLDEN, LOAD, SIZES, agrees, golden, number, read_safetensors  # noqa: E402

MODEL = os.path.join(GOLDEN, "gemma4e")
# Layers 0 and 1 have a window and 2 none; 3, 4 and 5 read the caches of 1 and 2.
STATES = {"states": [{"layers": [0, 1], "kind": "window"}, {"layers": [2, 2], "kind": "pages"}, {"layers": [3, 5], "kind": "none"}],
          "window_tokens": 40, "window_page_count": 16, "page_count": 16}


def placed(homes, embed="g", head="g", **more):
    """homes: of half layers, or of layers."""
    return plan_json(6, homes, embed, head, **{"kv_dtype": "f32", "ring_bytes": 1 << 20, "slots": 1, **STATES, **more})


def config():
    with open(os.path.join(MODEL, "config.json"), encoding="utf-8") as file:
        return json.load(file)


def test_the_cpu_computes_the_same():
    agrees(MODEL, golden("gemma4e")[7], 0.4, *CPU, *LOAD)
    agrees(MODEL, golden("gemma4e")[5], 0.1, *CPU, *LOAD, "--invariant", "on")


def test_every_placement_computes_the_same():
    case = golden("gemma4e")[6]
    for homes, embed, head in ("gggggg", "g", "g"), ("gsgsgs", "g", "c"), ("ssssss", "c", "g"):
        agrees(MODEL, case, 0.1, *EMULATED, plan=placed(homes, embed, head))
    # halves of layers: all attention that reads a cache of another layer is where that is; MLPs are on either processor
    for homes, embed, head in ("ccgcgcgcgcgc", "c", "g"), ("ggcgcgcgcgcg", "g", "c"), ("gccccccccccc", "g", "c"):
        agrees(MODEL, case, 0.1, *EMULATED, plan=placed(homes, embed, head))


def test_a_planned_model_computes_the_same():
    for options in (), ("--gpu-chains", "off"), ("--invariant", "on"):
        agrees(MODEL, golden("gemma4e")[7], 0.4, *EMULATED, *LOAD, *options)


def write_e(path, leave_out=(), added=(), **more):
    """A GGUF file as converters write it: a width of MLPs for each layer."""
    c = config()
    first, wide = c["num_hidden_layers"] - c["num_kv_shared_layers"], c["intermediate_size"]
    keys = {"embedding_length_per_layer_input": number(c["hidden_size_per_layer_input"]),
            "attention.shared_kv_layers": number(c["num_kv_shared_layers"]),
            "feed_forward_length": numbers(4, [wide] * first + [2 * wide] * c["num_kv_shared_layers"])}
    write_gguf4(path, leave_out, added, model=MODEL, **{**keys, **more})


def inspected(path):
    run = subprocess.run([os.path.join(BIN, "helm-inspect"), path], capture_output=True, text=True, timeout=60)
    return run.returncode, run.stdout + run.stderr


def test_a_gguf_file_computes_the_same():
    case = golden("gemma4e")[6]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "e.gguf")
        write_e(path)
        agrees(path, case, 0.1, *CPU, *LOAD)
        agrees(path, case, 0.4, *EMULATED, *LOAD)
        # converters write keys and values of layers that have no use for them, too
        write_e(path, added=[["blk.4.attn_k.weight", [64, 32], BF16, b"\1" * 4096], ["blk.5.attn_k_norm.weight", [64], 0, b"\1" * 256],
                             ["blk.4.attn_v.weight", [64, 32], BF16, b"\1" * 4096]])
        agrees(path, case, 0.1, *CPU, *LOAD)
        code, said = inspected(path)
        check(code == 0 and "3 more tensors" in said and "blk.4.attn_k.weight" in said, said)


def test_what_is_missing_or_wrong_in_a_gguf_file_is_refused_by_name():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "e.gguf")
        for part in "per_layer_token_embd.weight", "per_layer_model_proj.weight", "per_layer_proj_norm.weight", "blk.3.inp_gate.weight", \
                "blk.0.proj.weight", "blk.5.post_norm.weight", "blk.2.attn_k.weight", "blk.1.attn_v.weight", \
                "gemma4.feed_forward_length":
            write_e(path, [part])
            code, said = inspected(path)
            check(code > 0 and part in said, f"{part}: {said}")
        for change, why in (({"feed_forward_length": numbers(4, [96] * 5)}, "'gemma4.feed_forward_length' is no number, nor one for each of 6"),
                            ({"feed_forward_length": numbers(4, [96] * 6)}, "blk.3.ffn_gate.weight' has shape [192, 64]"),
                            ({"feed_forward_length": numbers(4, [96, 0, 96, 192, 192, 192])}, "is 0 for layer 1, not between 1 and"),
                            ({"attention.shared_kv_layers": number(6)}, "'gemma4.attention.shared_kv_layers' is 6 of 6 layers"),
                            ({"attention.shared_kv_layers": number(4)}, "'gemma4.attention.shared_kv_layers' is 4: layer 2 has no window"),
                            ({"attention.shared_kv_layers": number(2)}, "blk.3.attn_k.weight"),
                            ({"embedding_length_per_layer_input": number(16)}, "per_layer_token_embd.weight' has shape [256, 192]"),
                            ({"embedding_length_per_layer_input": number(0)}, "per_layer_token_embd.weight"),
                            ({"expert_count": number(4), "expert_used_count": number(2), "expert_feed_forward_length": number(8)},
                             "'gemma4.embedding_length_per_layer_input' is 32: per-layer embeddings with experts")):
            write_e(path, **change)
            code, said = inspected(path)
            check(code > 0 and why in said, f"{change}: {said}")


def test_what_is_not_computed_is_refused_by_name():
    c = config()
    for change, why in (({"vocab_size_per_layer_input": 128}, "'vocab_size_per_layer_input' is 128, but 'vocab_size' 256"),
                        ({"num_kv_shared_layers": 5}, "'num_kv_shared_layers' is 5: layer 2 has no window"),
                        ({"num_kv_shared_layers": 0, "intermediate_size": 192}, "model.layers.0.mlp.gate_proj.weight' has shape [96, 64]"),
                        ({"use_double_wide_mlp": False}, "model.layers.3.mlp.gate_proj.weight' has shape [192, 64]"),
                        ({"hidden_size_per_layer_input": 64}, "embed_tokens_per_layer.weight' has shape [256, 192]"),
                        ({"intermediate_size": 1 << 20}, "'intermediate_size' is 1048576")):
        refused(MODEL, {**c, **change}, why)


def test_the_text_of_a_published_checkpoint_computes_the_same():
    """Beside images and sound, with keys and values of layers that read others'."""
    c = config()
    c.pop("architectures")
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump({"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "text_config": c}, file)
        tensors = {name.replace("model.", "model.language_model.", 1): t for name, t in read_safetensors(MODEL).items()}
        for name in "vision_tower.x", "audio_tower.x", "embed_vision.x", "embed_audio.x", "language_model.layers.5.self_attn.v_proj.weight", \
                "language_model.layers.3.self_attn.k_norm.weight":
            tensors["model." + name] = ([2, 2], b"\0" * 8)
        header, data = {}, b""
        for name, (shape, part) in tensors.items():
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
            data += part
        text = json.dumps(header).encode()
        with open(os.path.join(folder, "model.safetensors"), "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + data)
        agrees(folder, golden("gemma4e")[6], 0.1, *CPU, *LOAD)
        check("6 more tensors" in inspected(folder)[1], inspected(folder))


def test_plans_that_tear_a_shared_cache_apart_are_refused():
    for plan, why in ((placed("gggggc"), "layer 5 reads the cache of layer 2, which 'gpu' keeps"),
                      (placed("cccccc", "c", "c", prefill="ssssss", prefill_from=17), "layer 3 reads the cache of layer 1, which 'cpu' keeps"),
                      (placed("gggggg", vram_page_count=13, kv_dtype="f16", kv_direct_permille=0), "which cannot have two tiers"),
                      (placed("gggggg", per_layer_table="vram"), "'per_layer_table' is 'vram'")):
        with running(*EMULATED, real=True, model=MODEL, plan=plan, wait=False) as d:
            check(d.process.wait(60) != 0 and why in d.log(), d.log())
    with running(*EMULATED, "--kv-tiers", "two", *LOAD, real=True, model=MODEL, wait=False) as d:
        check(d.process.wait(60) != 0 and "--kv-tiers two: 3 layers of the model read the cache of others" in d.log(), d.log())


def test_the_table_is_a_line_of_the_plan_and_lies_in_host_memory():
    log = agrees(MODEL, golden("gemma4e")[3], 0.4, *EMULATED, *LOAD, "--strategy", "all-gpu")
    check("96.00 KiB  per-layer embeddings, a row a token" in log, log)
    with running(*EMULATED, *LOAD, real=True, model=MODEL) as d:
        plan = json.loads(cli(d, "plan", "--json"))
        same(plan["per_layer_table"], "host", "where it lies")
        same(sorted((name, memory) for name, _, memory, _, _ in plan["placements"] if "model.embed_tokens_per" in name or "model_proj" in name),
             [("model.embed_tokens_per_layer.weight", "host"), ("model.per_layer_model_projection.weight", "vram")], "where these lie")


def test_eight_sequences_have_the_tokens_of_each_alone():
    """Their lengths differ, so they leave their windows at different steps; bit for bit where the plan is invariant."""
    many = ["--parallel", 8, *SIZES[2:]]
    prompts = [golden("gemma4e")[7]["prompt"][n:n + 20 + 30 * n] for n in range(8)]
    for options in ("--device", "cpu"), ("--device", DEVICE):
        with running(*many, *options, *LOAD, "--invariant", "on", real=True, model=MODEL) as d:
            c = Client(d.endpoint)
            alone = []
            for prompt in prompts:
                s = c.generate(prompt, 40, logprobs=3, ignore_eos=True)
                c.run(s, timeout=60)
                alone.append(s)
            together = [c.generate(prompt, 40, logprobs=3, ignore_eos=True) for prompt in prompts]
            c.run(*together, timeout=60)
            for n, (a, b) in enumerate(zip(alone, together)):
                same(b.tokens, a.tokens, f"sequence {n} {options}")
                same([[(t.token, t.logprob) for t in x.top] for x in b.first], [[(t.token, t.logprob) for t in x.top] for x in a.first],
                     f"logprobs of sequence {n} {options}")
            check(together[7].done.usage.cached_tokens > 0, "a prefix was found")


def test_a_session_is_saved_and_restored():
    session_comes_back(MODEL, golden("gemma4e")[7]["prompt"][:270])


def test_published_shapes_are_planned():
    """On machines that hold all but the table in VRAM, that stream or split, and that have none."""
    for size, least in ("e2b", "2100M"), ("e4b", "3800M"):  # all but the table needs 2.01 and 3.69 GiB
        planned(size, "per-layer embeddings, a row a token",
                *(("--ctx", "8192", "--host-memory", "16G", *more) for more in (
                    ("--vram", "16G"), ("--vram", "2G"), ("--strategy", "all-cpu"), ("--strategy", "all-gpu", "--vram", least))))


if __name__ == "__main__":
    run_tests(globals())
