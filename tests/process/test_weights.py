#!/usr/bin/python3
"""Blocks: helmd --weights converts a made bf16 model at load, or a checkpoint has them, against one that has the same blocks'
values written out as fp32. On the CPU, on the emulated device, on both, streamed; plans that are saved and read again."""
import array
import functools
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import processor  # noqa: E402
from helmd_harness import BIN, Client, check, plan_json, run_tests, running, same  # noqa: E402

LAYERS = 2
CONFIG = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 256, "intermediate_size": 512,
          "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 300,
          "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "dtype": "bfloat16"}
PROMPT = [(7 * i * i + 3) % 300 for i in range(40)]  # more than are computed as few
COUNT = 24
FEW = PROMPT[:9]
# Every product takes the same numbers, but a GPU's chunks, which round them to bf16. (As would several tokens' on a CPU
# that multiplies bf16, if it were to choose.)
EXACT, ROUNDED = 2e-4, 0.05


def tensors_of(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        start = f.tell()
        for name, t in header.items():
            if name != "__metadata__":
                f.seek(start + t["data_offsets"][0])
                yield name, t["dtype"], t["shape"], f.read(t["data_offsets"][1] - t["data_offsets"][0])


def f32(numbers):
    return array.array("f", numbers)


@functools.lru_cache(None)  # both models have most matrices in common
def through_blocks(data):
    """bf16 values as blocks of 32 with a scale in fp16, and what those make of them, in fp32. The definition, written down
    again."""
    blocks, wide = [], bytearray(2 * len(data))
    wide[2::4], wide[3::4] = data[0::2], data[1::2]
    values = f32(bytes(wide))
    for first in range(0, len(values), 32):
        block = values[first:first + 32]
        scale = f32([max(map(abs, block)) / 127])[0]
        inverse = f32([1 / scale])[0] if scale else 0
        half = struct.unpack("<e", struct.pack("<e", scale))[0]
        numbers = [int(v + 0.5) if v >= 0 else -int(0.5 - v) for v in f32([v * inverse for v in block])]
        values[first:first + 32] = f32([half * number for number in numbers])
        blocks.append(struct.pack("<e32b", scale, *numbers))
    return b"".join(blocks), values.tobytes()


def make_models(folder, tied):
    """The model, and the one that --weights q8_0 is to compute with: as files of blocks, and of their values. An embedding
    that is no head stays as it is."""
    with open(os.path.join(folder, "made.json"), "w") as f:
        json.dump(dict(CONFIG, tie_word_embeddings=tied), f)
    model = os.path.join(folder, "model")
    subprocess.run([os.path.join(BIN, "helm-mkmodel"), "--config", f.name, "--out", model, "--seed", "11"], check=True,
                   stdout=subprocess.DEVNULL)
    files = {"blocks": ({}, []), "wide": ({}, [])}
    for file in sorted(n for n in os.listdir(model) if n.endswith(".safetensors")):
        for name, dtype, shape, data in tensors_of(os.path.join(model, file)):
            made = {"blocks": (dtype, data), "wide": (dtype, data)}
            if len(shape) == 2 and (tied or "embed_tokens" not in name):
                blocks, values = through_blocks(data)
                made = {"blocks": ("Q8_0", blocks), "wide": ("F32", values)}
            for to, (header, body) in files.items():
                start = sum(map(len, body))
                body.append(made[to][1])
                header[name] = {"dtype": made[to][0], "shape": shape, "data_offsets": [start, start + len(made[to][1])]}
    for to, (header, body) in files.items():
        os.mkdir(os.path.join(folder, to))
        text = json.dumps(header).encode()
        with open(os.path.join(folder, to, "model.safetensors"), "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text + b"".join(body))
        shutil.copy(os.path.join(model, "config.json"), os.path.join(folder, to))
    return [model] + [os.path.join(folder, to) for to in files]


def decode(d, prompt=PROMPT):
    """[(token, {token: logprob})] of one request."""
    c = Client(d.endpoint)
    s = c.generate(prompt, COUNT, logprobs=20, ignore_eos=True)
    c.run(s)
    same(len(s.tokens), COUNT, f"tokens: {s.error or s.done}")
    return [(x.token, {t.token: t.logprob for t in x.top}) for x in s.first], c


def agrees(got, expected, tolerance, what):
    worst, compared = 0, 0
    for (mine, top), (token, wanted) in zip(got, expected):
        worst = max([worst] + [abs(top[t] - wanted[t]) for t in list(wanted)[:10] if t in top])
        compared += 1
        first, second = sorted(wanted.values(), reverse=True)[:2]
        if mine != token:
            check(first - second < 2 * tolerance, f"{what}: token {mine}, not {token}, at a gap of {first - second:.4f}")
            break
    check(worst <= tolerance and compared > 5, f"{what}: logprobs off by {worst:.5f}, {compared} tokens")
    print(f"     {what}: {compared} tokens, logprobs off by {worst:.5f} at worst", flush=True)


def formats_of(plan):
    return {stage.get("format") for stage in plan["stages"]["decode"]}


def plan_of(homes, embed, head, **more):
    return plan_json(LAYERS, homes, embed, head, **{"kv_dtype": "f32", **more})


KERNELS = ["--kernels", "avx512" if "avx512f" in processor.flags() else "avx2"]
SIZES = [*KERNELS, "--ctx", 256, "--parallel", 4, "--step-tokens", 64, "--kv-dtype", "f32"]
# where the CPU computes a prompt, or the GPU does
SHAPES = [("cc", "c", "c", EXACT, {}), ("gg", "g", "g", ROUNDED, {}), ("cg", "c", "g", ROUNDED, {}), ("gc", "g", "c", ROUNDED, {}),
          ("ss", "g", "g", ROUNDED, {"ring_bytes": 1 << 20}), ("sc", "c", "c", ROUNDED, {"ring_bytes": 1 << 20})]


def run_all(tied):
    with tempfile.TemporaryDirectory() as folder:
        model, blocks, wide = make_models(folder, tied)
        with running("--device", "cpu", *SIZES, real=True, model=wide) as d:
            expected, _ = decode(d)
            expected_few, _ = decode(d, FEW)
        with running("--device", "cpu", *SIZES, real=True, model=model) as d:
            stored, c = decode(d)
            same(formats_of(json.loads(c.ask("plan").plan.json)), {None}, "formats without the option")
        worst = max(abs(top[t] - other[t]) for (_, top), (_, other) in zip(stored[:1], expected) for t in top if t in other)
        check(worst > EXACT, f"blocks make no difference: {worst}")  # else nothing here would show that they are there
        with running("--device", "cpu", "--weights", "q8_0", *SIZES, real=True, model=model) as d:
            got, c = decode(d)
            agrees(got, expected, EXACT, "cpu")
            plan = json.loads(c.ask("plan").plan.json)
            same((formats_of(plan), plan["weights"]), ({None}, "q8_0"), "formats of the plan")
        for homes, embed, head, tolerance, more in SHAPES:
            with running("--device", "emulated", *KERNELS, "--weights", "q8_0", real=True, model=model,
                         plan=plan_of(homes, embed, head, **more)) as d:
                got, c = decode(d)
                agrees(got, expected, tolerance, f"{homes}, embedding {embed}, head {head}")
                agrees(decode(d, FEW)[0], expected_few, EXACT, f"{homes}, a short prompt")
                plan = json.loads(c.ask("plan").plan.json)
                same(plan["weights"], "q8_0", f"{homes}: weights")
                lines = [line["what"] for line in plan["vram"]["lines"]]
                same("expanded slice" in lines, "s" in homes or "g" in homes, f"{homes}: {lines}")
        for homes in "cc", "gg", "ss":  # of a file that has them nothing is converted
            embed = homes[0].replace("s", "g")
            with running("--device", "emulated", *KERNELS, real=True, model=blocks,
                         plan=plan_of(homes, embed, embed, ring_bytes=1 << 20)) as d:
                agrees(decode(d, FEW)[0], expected_few, EXACT, f"{homes}, a file of blocks")
        # the plan says it all: read again it needs no option
        with running("--device", "emulated", *KERNELS, real=True, model=model, plan=plan) as d:
            got, c = decode(d)
            agrees(got, expected, ROUNDED, "a saved plan")
            same(json.loads(c.ask("plan").plan.json)["weights"], "q8_0", "weights of the plan read again")


def test_converted_at_load_is_the_same_as_written_out():
    run_all(tied=False)


def test_a_tied_head_is_the_embedding_in_blocks_too():
    run_all(tied=True)


if __name__ == "__main__":
    run_tests(globals())
