#!/usr/bin/env python3
"""A GGUF file with random blocks in the shape of a published Qwen3 model (70b: Llama 3's widths; 30b-a3b and 8x7b: mixtures of
experts, Mixtral's the latter) and the mixture of types of a published file, for measuring speed.

  make_gguf.py --size 0.6b|4b|8b|14b|32b|70b|30b-a3b|8x7b --type Q4_K_M|Q5_K_M|Q6_K|Q8_0|BF16 [--layers N] --out FILE.gguf

Codes are random, scales are constants that keep activations finite. There is no tokenizer, and the file says so
("no_vocab"): llama.cpp loads it too. Routers are random, so that tokens choose about evenly. Facts of the container and of the mixtures: ggml-org/llama.cpp,
ggml/include/gguf.h and src/llama-quant.cpp."""
import argparse
import array
import math
import random
import struct
import sys

#        hidden, layers, inner, heads, kv heads, tied
SIZES = {"0.6b": (1024, 28, 3072, 16, 8, True), "4b": (2560, 36, 9728, 32, 8, True), "8b": (4096, 36, 12288, 32, 8, False),
         "14b": (5120, 40, 17408, 40, 8, False), "32b": (5120, 64, 25600, 64, 8, False), "70b": (8192, 80, 28672, 64, 8, False)}
#          the same, then experts, chosen of them, and the width of one
MIXTURES_OF_EXPERTS = {"30b-a3b": (2048, 48, 6144, 32, 4, False, 128, 8, 768), "8x7b": (4096, 32, 14336, 32, 8, False, 8, 2, 14336)}
VOCAB, HEAD_DIM = 151936, 128
#         id, bytes and values of a block, where its fp16 scales lie
TYPES = {"F32": (0, 4, 1, ()), "Q8_0": (8, 34, 32, (0,)), "Q4_K": (12, 144, 256, (0, 2)), "Q5_K": (13, 176, 256, (0, 2)),
         "Q6_K": (14, 210, 256, (208,)), "BF16": (30, 2, 1, ())}
# of most matrices, of those that count more
MIXTURES = {"Q4_K_M": ("Q4_K", "Q6_K"), "Q5_K_M": ("Q5_K", "Q6_K"), "Q6_K": ("Q6_K", "Q6_K"), "Q8_0": ("Q8_0", "Q8_0"), "BF16": ("BF16", "BF16")}
PIECE_BYTES = 1 << 27
pieces = {}  # of each type: random blocks


def counts_more(layer, layers):
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def matrices_of(shape, n, plain, best):
    """Of one layer's MLP: (name, shape with the input dimension first, type)."""
    hidden, _, inner, *_ = shape
    if len(shape) == 6:
        return ("ffn_gate", (hidden, inner), plain), ("ffn_up", (hidden, inner), plain), ("ffn_down", (inner, hidden), best)
    experts, _, width = shape[6:]
    return (("ffn_gate_inp", (hidden, experts), "F32"), ("ffn_gate_exps", (hidden, width, experts), plain),
            ("ffn_up_exps", (hidden, width, experts), plain), ("ffn_down_exps", (width, hidden, experts), best))


def tensors_of(shape, layers, mixture, head_norms):
    """(name, shape with the input dimension first, type) in order."""
    hidden, _, inner, heads, kv_heads, tied = shape[:6]
    plain, more = MIXTURES[mixture]
    rows, kv_rows = heads * HEAD_DIM, kv_heads * HEAD_DIM
    yield "token_embd.weight", (hidden, VOCAB), more if tied else plain
    for n in range(layers):
        best = more if counts_more(n, layers) else plain
        norms = (("attn_q_norm", (HEAD_DIM,), "F32"), ("attn_k_norm", (HEAD_DIM,), "F32")) if head_norms else ()
        for name, size, kind in (("attn_norm", (hidden,), "F32"), ("attn_q", (hidden, rows), plain),
                                 ("attn_k", (hidden, kv_rows), plain), ("attn_v", (hidden, kv_rows), best),
                                 ("attn_output", (rows, hidden), plain), *norms, ("ffn_norm", (hidden,), "F32"),
                                 *matrices_of(shape, n, plain, best)):
            yield f"blk.{n}.{name}.weight", size, kind
    yield "output_norm.weight", (hidden,), "F32"
    if not tied:
        yield "output.weight", (hidden, VOCAB), more


def bytes_of(shape, kind):
    _, block_bytes, values, _ = TYPES[kind]
    if shape[0] % values:
        sys.exit(f"make_gguf.py: rows of {shape[0]} are not of whole blocks of {kind}")
    return math.prod(shape) // values * block_bytes


def text(string):
    raw = string.encode()
    return struct.pack("<Q", len(raw)) + raw


def piece_of(kind, columns, rng):
    """Random bytes of whole blocks, with scales that make values of about 1 / sqrt(columns)."""
    _, block_bytes, _, scales = TYPES[kind]
    most = PIECE_BYTES // block_bytes
    if kind == "F32":
        return array.array("f", [rng.gauss(0, 1 / math.sqrt(columns)) for _ in range(1 << 20)]).tobytes()
    piece = bytearray(rng.randbytes(most * block_bytes))
    if kind == "BF16":  # one exponent, random sign and mantissa
        exponent = (127 - round(math.log2(columns) / 2)) & ~1
        piece[0::2] = piece[0::2].translate(bytes(i & 0x7f for i in range(256)))
        piece[1::2] = piece[1::2].translate(bytes(i & 0x80 | exponent >> 1 for i in range(256)))
        return bytes(piece)
    # by the largest code times the largest inner scale
    largest = {"Q8_0": 127, "Q4_K": 15 * 63, "Q5_K": 31 * 63, "Q6_K": 32 * 127}[kind]
    scale = struct.pack("<e", max(2.0 / (largest * columns ** 0.5), 6e-8))
    for at in scales:
        for byte in range(2):
            piece[at + byte::block_bytes] = scale[byte:byte + 1] * most
    return bytes(piece)


def write_blocks(file, shape, kind, rng):
    """The same random piece over and over, from another block on each time."""
    _, block_bytes, values, _ = TYPES[kind]
    if kind == "F32" and len(shape) == 1:
        file.write(struct.pack("<f", 1) * shape[0])
        return
    if (kind, shape[0]) not in pieces:
        pieces[kind, shape[0]] = memoryview(piece_of(kind, shape[0], rng))
    piece = pieces[kind, shape[0]]
    left, most = math.prod(shape) // values, len(piece) // block_bytes
    while left:
        first = rng.randrange(most - 1)
        blocks = min(left, most - first)
        file.write(piece[first * block_bytes:(first + blocks) * block_bytes])
        left -= blocks


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("--size", required=True, choices=[*SIZES, *MIXTURES_OF_EXPERTS])
    parser.add_argument("--type", required=True, choices=MIXTURES)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--out", required=True)
    doc = parser.parse_args()
    shape = SIZES.get(doc.size) or MIXTURES_OF_EXPERTS[doc.size]
    hidden, layers, inner, heads, kv_heads = shape[:5]
    layers = doc.layers or layers
    arch = "llama" if doc.size == "8x7b" else "qwen3moe" if len(shape) > 6 else "qwen3"
    keys = [("general.architecture", 8, text(arch)), ("general.alignment", 4, struct.pack("<I", 32)),
            ("tokenizer.ggml.model", 8, text("no_vocab"))]  # without it llama.cpp refuses the file
    numbers = [("context_length", 40960), ("embedding_length", hidden), ("block_count", layers),
               ("feed_forward_length", inner), ("attention.head_count", heads), ("attention.head_count_kv", kv_heads),
               ("attention.key_length", HEAD_DIM), ("attention.value_length", HEAD_DIM), ("vocab_size", VOCAB)]
    if len(shape) > 6:
        numbers += [("expert_count", shape[6]), ("expert_used_count", shape[7])]
    if arch == "qwen3moe":
        numbers.append(("expert_feed_forward_length", shape[8]))
    if arch == "llama":
        numbers.append(("rope.dimension_count", HEAD_DIM))
    keys += [(f"{arch}.{name}", 4, struct.pack("<I", value)) for name, value in numbers]
    keys.append((arch + ".attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-6)))
    keys.append((arch + ".rope.freq_base", 6, struct.pack("<f", 1e6)))
    tensors, offset, infos = list(tensors_of(shape, layers, doc.type, arch != "llama")), 0, b""
    for name, size, kind in tensors:
        infos += text(name) + struct.pack(f"<I{len(size)}qiQ", len(size), *size, TYPES[kind][0], offset)
        offset += (bytes_of(size, kind) + 31) // 32 * 32
    head = b"GGUF" + struct.pack("<Iqq", 3, len(tensors), len(keys))
    head += b"".join(text(name) + struct.pack("<i", kind) + value for name, kind, value in keys) + infos
    rng = random.Random(1)
    with open(doc.out, "wb") as file:
        file.write(head + bytes(-len(head) % 32))
        for _, size, kind in tensors:
            write_blocks(file, size, kind, rng)
            file.write(bytes(-bytes_of(size, kind) % 32))
    print(f"{doc.out}: {len(tensors)} tensors, {offset / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
