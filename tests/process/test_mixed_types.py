#!/usr/bin/python3
"""GGUF files whose matrices have any types: F32, F16 and BF16 beside blocks, another type from tensor to tensor, rows that are no
multiple of 256 or of 32. On the CPU, on the emulated device and on both they answer with the tokens of the same weights as F32: each
weight is a small whole number times a power of two, which every type here has exactly."""
import os
import random
import struct
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from gguf_edit import Gguf  # noqa: E402
from helmd_harness import check, format_tokens, plan_json, run_tests, same  # noqa: E402

GOLDEN = "tests/data/golden-gguf/%s/model.gguf"
LAYERS, VOCABULARY = 3, 2048
MIXED = {"ring_bytes": 4 << 20, "mixed": {"slots": 6, "direct_permille": 300, "moves": 0}}
UNIT = 2.0 ** -6  # of weights, which are -7 to 7 times it


def halves(numbers):
    return bytes((numbers[i] + 8) | (numbers[i + 16] + 8) << 4 for i in range(16))


def q4_0(n):
    return struct.pack("<e", UNIT) + halves(n)


def q4_1(n):
    return struct.pack("<ee", UNIT, -8 * UNIT) + halves(n)


def q5_0(n):
    five = [v + 16 for v in n]
    high = sum((v >> 4) << i for i, v in enumerate(five))
    return struct.pack("<eI", UNIT, high) + bytes((five[i] & 15) | (five[i + 16] & 15) << 4 for i in range(16))


def q5_1(n):
    return struct.pack("<eeI", UNIT, -8 * UNIT, 0) + halves(n)


def q8_0(n):
    return struct.pack("<e32b", UNIT, *n)


def q4_k(n):
    head = struct.pack("<ee", UNIT, UNIT) + bytes([1] * 4 + [8] * 4 + [1 | 8 << 4] * 4)
    return head + b"".join(bytes((n[64 * p + i] + 8) | (n[64 * p + 32 + i] + 8) << 4 for i in range(32)) for p in range(4))


def q6_k(n):
    low, high, six = bytearray(128), bytearray(64), [v + 32 for v in n]
    for i, v in enumerate(six):
        half, run, at = i // 128, i % 128 // 32, i % 32
        low[half * 64 + run % 2 * 32 + at] |= (v & 15) << run // 2 * 4
        high[half * 32 + at] |= (v >> 4) << run * 2
    return bytes(low) + bytes(high) + struct.pack("<16be", *[1] * 16, UNIT)


def single(form, cut=0):
    """Packs any count of numbers, each from byte `cut` on."""
    of = {v: struct.pack(form, v * UNIT)[cut:] for v in range(-8, 8)}
    return lambda n: b"".join(map(of.get, n))


# Name: number in files, values of a block, its bytes of whole numbers.
TYPES = {"F32": (0, 8, single("<f")), "F16": (1, 8, single("<e")), "BF16": (30, 8, single("<f", 2)),
         "Q4_0": (2, 32, q4_0), "Q4_1": (3, 32, q4_1),
         "Q5_0": (6, 32, q5_0), "Q5_1": (7, 32, q5_1), "Q8_0": (8, 32, q8_0), "Q4_K": (12, 256, q4_k), "Q6_K": (14, 256, q6_k)}


def matrix(draw, shape, kind):
    """A tensor's data in a type, and as F32: where tokens have no row each, a few different rows, strewn over it."""
    number, values, block = TYPES[kind]
    cols, rows = shape[0], 1
    for n in shape[1:]:
        rows *= n
    pairs = []
    for _ in range(rows if rows == VOCABULARY else min(rows, 61)):
        n = draw.choices(range(-7, 8), k=cols)
        pairs.append((b"".join(block(n[i:i + values]) for i in range(0, cols, values)),
                      TYPES["F32"][2](n)))
    order = range(rows) if len(pairs) == rows else draw.choices(range(len(pairs)), k=rows)
    return b"".join(pairs[i][0] for i in order), b"".join(pairs[i][1] for i in order)


def vector(draw, length):
    return struct.pack("<%df" % length, *[1 + draw.randrange(-4, 5) / 16 for _ in range(length)])


def write_files(folder, name, kinds, sizes=None):
    """`kinds`: of each matrix in turn; of one that has none of a row's values, the next that takes it. `sizes`: new lengths of rows by
    the old ones, of whole keys, too. The file, its twin of F32, the types in it."""
    with open(GOLDEN % name, "rb") as f:
        gguf = Gguf(f.read())
    sizes, draw, given, mixed, wide = sizes or {}, random.Random(5), {}, [], []
    for key, value in gguf.keys.items():
        if key.split(".")[-1] in ("embedding_length", "feed_forward_length", "expert_feed_forward_length"):
            gguf.keys[key] = value[:4] + struct.pack("<I", sizes.get(struct.unpack("<I", value[4:])[0],
                                                                     struct.unpack("<I", value[4:])[0]))
    for tensor, shape, kind, data in gguf.tensors:
        heads = tensor.endswith(("attn_q.weight", "attn_k.weight", "attn_v.weight", "_norm.weight")) and "attn_norm" not in tensor
        shape = [n if (heads and (i or "q_norm" in tensor or "k_norm" in tensor)) or (i == 0 and "attn_output" in tensor) or i == 2
                 or n == VOCABULARY else sizes.get(n, n) for i, n in enumerate(shape)]
        if len(shape) == 1 or "ffn_gate_inp" in tensor:
            count = shape[0] * (shape[1] if len(shape) > 1 else 1)
            data = vector(draw, count) if len(shape) == 1 else struct.pack("<%df" % count, *[draw.gauss(0, 0.06) for _ in range(count)])
            mixed.append([tensor, shape, 0, data])
            wide.append([tensor, shape, 0, data])
            continue
        first = given.setdefault(tensor.replace("ffn_up", "ffn_gate"), len(given))  # a GPU takes a gate and its up in one format
        chosen = next(k for k in (kinds[(first + i) % len(kinds)] for i in range(len(kinds))) if shape[0] % TYPES[k][1] == 0)
        packed, values = matrix(draw, shape, chosen)
        mixed.append([tensor, shape, TYPES[chosen][0], packed])
        wide.append([tensor, shape, 0, values])
    paths = []
    for what, tensors in ("mixed", mixed), ("wide", wide):
        paths.append(os.path.join(folder, what + ".gguf"))
        with open(paths[-1], "wb") as f:
            f.write(gguf.bytes(tensors=tensors))
    return paths[0], paths[1], {t[2] for t in mixed}


def compare(name, kinds, sizes=None, placements=("ggg", "cgc")):
    with tempfile.TemporaryDirectory() as folder:
        mixed, wide, there = write_files(folder, name, kinds, sizes)
        same(there, {TYPES[k][0] for k in kinds} | {0}, "types in the file")
        expected = format_tokens(wide, "cpu")
        check(len(set(expected)) > 3, f"tokens that say something: {expected}")
        same(format_tokens(mixed, "cpu"), expected, "the CPU")
        for homes in placements:
            head = "g" if "g" in homes else "c"
            same(format_tokens(mixed, "emulated", plan=plan_json(LAYERS, homes, embed=homes[0], head=head, **(MIXED if "m" in homes else {}))), expected, homes)


def test_single_numbers_beside_blocks():
    compare("qwen3-Q2_K", ["F16", "Q4_K", "BF16", "Q8_0", "F32", "Q6_K", "Q4_0"])


def test_experts_of_single_numbers_beside_blocks():
    compare("qwen3moe-MXFP4_MOE", ["Q4_K", "F16", "Q8_0", "BF16", "Q6_K", "F32"], placements=("ggg", "cgc", "gmgmgm"))


def test_rows_of_no_multiple_of_256():
    compare("qwen3-Q2_K", ["Q8_0", "Q5_0", "Q4_0", "Q5_1", "Q4_1", "F16"], {256: 288, 768: 672})


def test_rows_of_no_multiple_of_32():
    compare("qwen3-Q2_K", ["F16", "BF16", "F32", "Q4_K"], {256: 264, 768: 712})


def test_experts_rows_of_no_multiple_of_256():
    compare("qwen3moe-MXFP4_MOE", ["Q5_0", "Q8_0", "F16", "Q5_1"], {256: 288}, placements=("ggg", "cgc", "gmgmgm"))


if __name__ == "__main__":
    run_tests(globals())
