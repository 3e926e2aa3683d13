#!/usr/bin/python3
"""GGUF files whose matrices are IQ1, IQ2 and IQ3 blocks, a mixture from tensor to tensor: on the CPU, on the emulated device and on
both they answer with the tokens of the same weights as F32. Blocks are those whose values gguf's own decoders said
(tests/data/golden-blocks), with scales of the size of weights."""
import math
import os
import random
import struct
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from gguf_edit import Gguf  # noqa: E402
from helmd_harness import DEVICE, check, format_tokens, plan_json, run_tests, same  # noqa: E402

MODEL = "tests/data/golden-gguf/qwen3-Q2_K/model.gguf"
LAYERS, VALUES = 3, 256
# Name, number in files, bytes of a block, and where each run of 32 values has its own bytes: (the first run's, how many). In the
# last two, runs share bytes. The first is the embedding's and the head's, too.
TYPES = [("iq2_xxs", 16, 66, [(2, 8)]), ("iq2_xs", 17, 74, [(2, 8), (66, 1)]), ("iq3_xxs", 18, 98, [(2, 8), (66, 4)]),
         ("iq1_s", 19, 50, [(2, 4), (34, 2)]), ("iq2_s", 22, 82, [(2, 4), (34, 4), (66, 1), (74, 1)]), ("iq3_s", 21, 110, None),
         ("iq1_m", 29, 56, None)]


def scale_of(block, name):
    """A block's scale of scales."""
    if name == "iq1_m":
        return struct.unpack("<e", struct.pack("<H", sum((block[49 + 2 * i] >> 4) << 4 * i for i in range(4))))[0]
    return struct.unpack_from("<e", block)[0]


def with_scale(block, name, scale):
    half = struct.pack("<e", scale)
    if name != "iq1_m":
        return half + block[2:]
    out, bits = bytearray(block), struct.unpack("<H", half)[0]
    for i in range(4):
        out[49 + 2 * i] = (out[49 + 2 * i] & 15) | (bits >> 4 * i & 15) << 4
    return bytes(out)


def golden(name, size):
    """Two blocks, their values for a scale of scales of 1, and what that should be for values like weights."""
    with open(f"tests/data/golden-blocks/{name}.bin", "rb") as f:
        data = f.read()
    blocks, units = [], []
    for i in range(2):
        blocks.append(data[i * size:(i + 1) * size])
        values = struct.unpack_from("<%df" % VALUES, data, 2 * size + 4 * VALUES * i)
        units.append([v / scale_of(blocks[i], name) for v in values])  # exactly
    mean = sum(u * u for of in units for u in of) / (2 * VALUES)
    return blocks, units, 2.0 ** round(math.log2(0.05 / math.sqrt(mean)))


def made(draw, name, runs, blocks, units, scale):
    """A block of runs of the two, and its values as F32."""
    i = draw.randrange(2)
    block, unit = bytearray(blocks[i]), list(units[i])
    for run in range(8 if runs else 0):
        other, place = draw.randrange(2), draw.randrange(8)
        for at, size in runs:
            block[at + run * size:at + (run + 1) * size] = blocks[other][at + place * size:at + (place + 1) * size]
        unit[run * 32:(run + 1) * 32] = units[other][place * 32:(place + 1) * 32]
    scale *= draw.choice((-1, 1)) * (1 + draw.randrange(8) / 8)
    return with_scale(bytes(block), name, scale), struct.pack("<%df" % VALUES, *[u * scale for u in unit])


def write_files(folder):
    """The model of blocks and its twin of F32: their paths, and the types that the first has."""
    with open(MODEL, "rb") as f:
        gguf = Gguf(f.read())
    known = [(name, kind, runs, golden(name, size)) for name, kind, size, runs in TYPES]
    draw, given, blocks, wide = random.Random(7), {}, [], []
    for tensor in gguf.tensors:
        name, shape = tensor[:2]
        if len(shape) == 1:
            blocks.append(tensor)
            wide.append(tensor)
            continue
        # a GPU takes a gate and its up in one format
        number = given.setdefault(name.replace("ffn_up", "ffn_gate"), len(given) % len(known))
        form, kind, runs, of = known[number if name.startswith("blk.") else 0]
        pairs = [made(draw, form, runs, *of) for _ in range(shape[0] * shape[1] // VALUES)]
        blocks.append([name, shape, kind, b"".join(b for b, _ in pairs)])
        wide.append([name, shape, 0, b"".join(v for _, v in pairs)])
    paths = []
    for name, tensors in ("blocks", blocks), ("wide", wide):
        paths.append(os.path.join(folder, name + ".gguf"))
        with open(paths[-1], "wb") as f:
            f.write(gguf.bytes(tensors=tensors))
    return paths, {t[2] for t in blocks if len(t[1]) > 1}


def test_blocks_of_grids_answer_as_their_values():
    with tempfile.TemporaryDirectory() as folder:
        (blocks, wide), kinds = write_files(folder)
        same(kinds, {kind for _, kind, _, _ in TYPES}, "types in the file")
        expected = format_tokens(wide, "cpu")
        check(len(set(expected)) > 3, f"tokens that say something: {expected}")
        same(format_tokens(blocks, "cpu"), expected, "the CPU")
        same(format_tokens(blocks, DEVICE, plan=plan_json(LAYERS, "ggg", embed="g", head="g")), expected, "the emulated device")
        same(format_tokens(blocks, DEVICE, plan=plan_json(LAYERS, "cgc", embed="c", head="g")), expected, "both")


if __name__ == "__main__":
    run_tests(globals())
