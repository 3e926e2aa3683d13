#!/usr/bin/env python3
"""A GGUF file with random blocks in the shape of a published Qwen3 model (70b: Llama 3's widths) and the mixture of types of a
published file, for measuring speed.

  make_gguf.py --size 0.6b|4b|8b|14b|32b|70b --type Q4_K_M|Q5_K_M|Q6_K|Q8_0 --out FILE.gguf

Codes are random, scales are constants that keep activations finite. There is no tokenizer, and the file says so
("no_vocab"): llama.cpp loads it too. Needs numpy. Facts of the container and of the mixtures: ggml-org/llama.cpp,
ggml/include/gguf.h and src/llama-quant.cpp."""
import argparse
import struct
import sys

import numpy

#        hidden, layers, inner, heads, kv heads, tied
SIZES = {"0.6b": (1024, 28, 3072, 16, 8, True), "4b": (2560, 36, 9728, 32, 8, True), "8b": (4096, 36, 12288, 32, 8, False),
         "14b": (5120, 40, 17408, 40, 8, False), "32b": (5120, 64, 25600, 64, 8, False), "70b": (8192, 80, 28672, 64, 8, False)}
VOCAB, HEAD_DIM = 151936, 128
#         id, bytes and values of a block, where its fp16 scales lie
TYPES = {"F32": (0, 4, 1, ()), "Q8_0": (8, 34, 32, (0,)), "Q4_K": (12, 144, 256, (0, 2)), "Q5_K": (13, 176, 256, (0, 2)),
         "Q6_K": (14, 210, 256, (208,))}
# of most matrices, of those that count more
MIXTURES = {"Q4_K_M": ("Q4_K", "Q6_K"), "Q5_K_M": ("Q5_K", "Q6_K"), "Q6_K": ("Q6_K", "Q6_K"), "Q8_0": ("Q8_0", "Q8_0")}
PIECE_BYTES = 1 << 27
pieces = {}  # of each type: random blocks


def counts_more(layer, layers):
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def tensors_of(size, mixture):
    """(name, shape with the input dimension first, type) in order."""
    hidden, layers, inner, heads, kv_heads, tied = SIZES[size]
    plain, more = MIXTURES[mixture]
    rows, kv_rows = heads * HEAD_DIM, kv_heads * HEAD_DIM
    yield "token_embd.weight", (hidden, VOCAB), more if tied else plain
    for n in range(layers):
        best = more if counts_more(n, layers) else plain
        for name, shape, kind in (("attn_norm", (hidden,), "F32"), ("attn_q", (hidden, rows), plain),
                                  ("attn_k", (hidden, kv_rows), plain), ("attn_v", (hidden, kv_rows), best),
                                  ("attn_output", (rows, hidden), plain), ("attn_q_norm", (HEAD_DIM,), "F32"),
                                  ("attn_k_norm", (HEAD_DIM,), "F32"), ("ffn_norm", (hidden,), "F32"),
                                  ("ffn_gate", (hidden, inner), plain), ("ffn_up", (hidden, inner), plain),
                                  ("ffn_down", (inner, hidden), best)):
            yield f"blk.{n}.{name}.weight", shape, kind
    yield "output_norm.weight", (hidden,), "F32"
    if not tied:
        yield "output.weight", (hidden, VOCAB), more


def bytes_of(shape, kind):
    _, block_bytes, values, _ = TYPES[kind]
    if shape[0] % values:
        sys.exit(f"make_gguf.py: rows of {shape[0]} are not of whole blocks of {kind}")
    return int(numpy.prod(shape)) // values * block_bytes


def text(string):
    raw = string.encode()
    return struct.pack("<Q", len(raw)) + raw


def write_blocks(file, shape, kind, rng):
    _, block_bytes, values, scales = TYPES[kind]
    if kind == "F32":
        file.write(numpy.ones(shape, dtype="<f4").tobytes())
        return
    # a constant that makes values of about 1 / sqrt(columns), by the largest code times the largest inner scale
    largest = {"Q8_0": 127, "Q4_K": 15 * 63, "Q5_K": 31 * 63, "Q6_K": 32 * 127}[kind]
    scale = numpy.frombuffer(struct.pack("<e", max(2.0 / (largest * shape[0] ** 0.5), 6e-8)), dtype=numpy.uint8)
    left, most = int(numpy.prod(shape)) // values, PIECE_BYTES // block_bytes
    if kind not in pieces:
        pieces[kind] = rng.integers(0, 256, size=(most, block_bytes), dtype=numpy.uint8)
    for at in scales:
        pieces[kind][:, at:at + 2] = scale
    while left:  # the same random piece over and over, from another block on each time
        first = int(rng.integers(0, most - 1))
        blocks = pieces[kind][first:first + left]
        file.write(blocks.data)
        left -= len(blocks)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("--size", required=True, choices=SIZES)
    parser.add_argument("--type", required=True, choices=MIXTURES)
    parser.add_argument("--out", required=True)
    doc = parser.parse_args()
    hidden, layers, inner, heads, kv_heads, _ = SIZES[doc.size]
    keys = [("general.architecture", 8, text("qwen3")), ("general.alignment", 4, struct.pack("<I", 32)),
            ("tokenizer.ggml.model", 8, text("no_vocab"))]  # without it llama.cpp refuses the file
    for name, value in (("context_length", 40960), ("embedding_length", hidden), ("block_count", layers),
                        ("feed_forward_length", inner), ("attention.head_count", heads),
                        ("attention.head_count_kv", kv_heads), ("attention.key_length", HEAD_DIM),
                        ("attention.value_length", HEAD_DIM), ("vocab_size", VOCAB)):
        keys.append(("qwen3." + name, 4, struct.pack("<I", value)))
    keys.append(("qwen3.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-6)))
    keys.append(("qwen3.rope.freq_base", 6, struct.pack("<f", 1e6)))
    tensors, offset, infos = list(tensors_of(doc.size, doc.type)), 0, b""
    for name, shape, kind in tensors:
        infos += text(name) + struct.pack(f"<I{len(shape)}qiQ", len(shape), *shape, TYPES[kind][0], offset)
        offset += (bytes_of(shape, kind) + 31) // 32 * 32
    head = b"GGUF" + struct.pack("<Iqq", 3, len(tensors), len(keys))
    head += b"".join(text(name) + struct.pack("<i", kind) + value for name, kind, value in keys) + infos
    rng = numpy.random.default_rng(1)
    with open(doc.out, "wb") as file:
        file.write(head + bytes(-len(head) % 32))
        for _, shape, kind in tensors:
            write_blocks(file, shape, kind, rng)
            file.write(bytes(-bytes_of(shape, kind) % 32))
    print(f"{doc.out}: {len(tensors)} tensors, {offset / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
