#!/usr/bin/env python3
"""A GGUF file with random blocks in the shape of a published Qwen3 model (70b: Llama 3's widths; 30b-a3b, 8x7b and 57b-a14b: mixtures
of experts, Mixtral's and Qwen2-MoE's with a shared one; 27b and 35b-a3b: Qwen3.6's hybrids, dense and a mixture; 12b, 31b and
26b-a4b: Gemma 4's, dense and experts beside a dense MLP; e2b and e4b: its small ones with per-layer embeddings) and the mixture of types of a published file, for measuring speed.

  make_gguf.py --size 0.6b|4b|8b|12b|14b|27b|31b|32b|70b|e2b|e4b|26b-a4b|30b-a3b|35b-a3b|8x7b|57b-a14b --type Q4_K_M|Q5_K_M|Q6_K|Q8_0|BF16|UD-Q4_K_XL|UD-Q2_K_XL
               [--layers N] [--sticky PART] [--hole] --out FILE.gguf

UD-Q4_K_XL is of 35b-a3b alone, UD-Q2_K_XL of 27b alone: Unsloth's files give each role types of its own (ROLES).

--hole: a hole in place of the weights, which is enough for helm-plan. Codes are random; scales are constants with which every matrix has the mean 0 and keeps activations near 1. There is no tokenizer,
and the file says so ("no_vocab"): llama.cpp loads it too.

Routers are random. A mixture's embeddings are larger than what its layers add, so that the hidden states of two tokens, and their
experts, have nothing in common: each expert is chosen as often as any other. --sticky: tokens of a topic (token % 64) share this
part of an embedding's square, so of a router's logits, and the head finds about 12 of 13 of the 200 likeliest next tokens in the
topic of the last: drawn among these, text stays there for some 13 tokens. 0.8 gives what published traces have: an eighth of
128 experts, kept by recency, catches 69 % of the choices, a quarter 82 %. Facts of the container and of the mixtures:
ggml-org/llama.cpp, ggml/include/gguf.h and src/llama-quant.cpp."""
import argparse
import array
import math
import random
import struct
import sys

#        hidden, layers, inner, heads, kv heads, tied
SIZES = {"0.6b": (1024, 28, 3072, 16, 8, True), "4b": (2560, 36, 9728, 32, 8, True), "8b": (4096, 36, 12288, 32, 8, False),
         "14b": (5120, 40, 17408, 40, 8, False), "27b": (5120, 64, 17408, 24, 4, False), "32b": (5120, 64, 25600, 64, 8, False),
         "70b": (8192, 80, 28672, 64, 8, False), "12b": (3840, 48, 15360, 16, 8, True), "31b": (5376, 60, 21504, 32, 16, True),
         "e2b": (1536, 35, 6144, 8, 1, True), "e4b": (2560, 42, 10240, 8, 2, True)}
#          the same, then experts, chosen of them, the width of one, and of the shared one
MIXTURES_OF_EXPERTS = {"30b-a3b": (2048, 48, 6144, 32, 4, False, 128, 8, 768), "8x7b": (4096, 32, 14336, 32, 8, False, 8, 2, 14336),
                       "57b-a14b": (3584, 28, 18944, 28, 4, False, 64, 8, 2560, 20480),
                       "35b-a3b": (2048, 40, 512, 16, 2, False, 256, 8, 512, 512), "26b-a4b": (2816, 30, 2112, 16, 8, True, 128, 8, 704)}
# Gemma 4: kv heads of each sixth layer, which has no window and no v of its own; the others' are those above
GEMMAS, GEMMA_WINDOW, GEMMA_INTERVAL, GEMMA_DIMS = {"12b": 1, "31b": 4, "26b-a4b": 2, "e2b": 1, "e4b": 2}, 1024, 6, (256, 512)
# of which these have v in all layers, per-layer embeddings, and last layers that read the cache of others: the window, which layers have
# none, how many read, and how much wider their MLPs are
GEMMAS_E, PER_LAYER = {"e2b": (512, 5, 20, 2), "e4b": (512, 6, 18, 1)}, 256
# hybrids: gated delta nets' key and value heads; each fourth layer is attention, whose q has as many rows for its gate
DELTAS = {"27b": (16, 48), "35b-a3b": (16, 32)}
DELTA_DIM, CONV, INTERVAL = 128, 4, 4
CONSTANTS = {"ssm_a": -0.25, "ssm_dt.bias": -1.0}  # of vectors that are not 1: states live for some ten tokens
#         id, bytes and values of a block, where its fp16 scales lie
TYPES = {"F32": (0, 4, 1, ()), "F16": (1, 2, 1, ()), "Q5_0": (6, 22, 32, (0,)), "Q8_0": (8, 34, 32, (0,)), "Q2_K": (10, 84, 256, (80, 82)), "Q3_K": (11, 110, 256, (108,)),
         "Q4_K": (12, 144, 256, (0, 2)), "Q5_K": (13, 176, 256, (0, 2)), "Q6_K": (14, 210, 256, (208,)), "IQ2_XXS": (16, 66, 256, (0,)),
         "IQ2_XS": (17, 74, 256, (0,)), "IQ3_XXS": (18, 98, 256, (0,)), "IQ1_S": (19, 50, 256, (0,)), "IQ3_S": (21, 110, 256, (0,)),
         "IQ2_S": (22, 82, 256, (0,)), "IQ4_XS": (23, 136, 256, (0,)), "IQ1_M": (29, 56, 256, ()), "BF16": (30, 2, 1, ())}
# of most matrices, of those that count more
MIXTURES = {"Q4_K_M": ("Q4_K", "Q6_K"), "Q5_K_M": ("Q5_K", "Q6_K"), "Q6_K": ("Q6_K", "Q6_K"), "Q8_0": ("Q8_0", "Q8_0"), "BF16": ("BF16", "BF16"),
            "UD-Q4_K_XL": ("Q8_0", "Q8_0"), "UD-Q2_K_XL": ("IQ3_S", "IQ3_S")}
# Types of single roles, each with the tensors that have it; other roles have the mixture's. UD-Q2_K_XL: as many of each type as the
# published 27B (without its drafts' layer), given to roles so that its size comes out.
ROLES = {"UD-Q4_K_XL": {"ffn_gate_exps": (("Q4_K", 40),), "ffn_up_exps": (("Q4_K", 40),), "ffn_down_exps": (("Q5_K", 37), ("Q6_K", 3)),
                        "ssm_alpha": (("F16", 30),), "ssm_beta": (("F16", 30),)},
         "UD-Q2_K_XL": {"ffn_gate": (("IQ2_XXS", 24), ("IQ1_S", 12), ("IQ2_XS", 17), ("IQ2_S", 11)),
                        "ffn_up": (("IQ2_XXS", 24), ("IQ1_S", 8), ("IQ2_XS", 17), ("IQ2_S", 15)),
                        "ffn_down": (("IQ2_S", 41), ("Q2_K", 16), ("IQ3_XXS", 7)), "attn_qkv": (("IQ3_XXS", 48),),
                        "attn_gate": (("IQ3_XXS", 41), ("Q3_K", 5), ("IQ1_M", 1), ("IQ3_S", 1)),
                        "ssm_out": (("Q4_K", 20), ("IQ4_XS", 19), ("IQ3_S", 9)), "ssm_alpha": (("Q8_0", 48),), "ssm_beta": (("Q8_0", 48),),
                        "attn_output": (("IQ3_XXS", 16),), "attn_v": (("IQ3_S", 15), ("Q6_K", 1)), "token_embd": (("Q4_K", 1),),
                        "output": (("Q6_K", 1),)},
         "Q4_K_M": {"attn_qkv": (("Q5_K", 64),)}}
OF_ALONE = {"UD-Q4_K_XL": "35b-a3b", "UD-Q2_K_XL": "27b"}
NARROW = {"Q4_K": "Q5_0", "Q5_K": "Q8_0", "Q6_K": "Q8_0"}  # what rows have instead that are not of whole blocks
STRIDE = 37  # types of a role take turns over its layers
# root mean square of random blocks' values with a scale of 1; Q4_K's and Q5_K's second scale takes their mean away
SPREADS = {"Q5_0": 9.25, "Q8_0": 73.9, "Q2_K": 13.9, "Q3_K": 43.3, "Q4_K": 258.3, "Q5_K": 526.9, "Q6_K": 1365.7, "IQ1_S": 7.16, "IQ1_M": 7.22,
           "IQ2_XXS": 53.4, "IQ2_XS": 55.9, "IQ2_S": 56.3, "IQ3_XXS": 142.3, "IQ3_S": 140.3, "IQ4_XS": 1245.6}
BF16_SPREAD = math.sqrt(7 / 3)  # of numbers between 1 and 2
MEANS = {"Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5}
PIECE_BYTES = 1 << 27
TOPICS = 64
EMBEDDING = 16.0  # root mean square of a mixture's embeddings; that of all that its layers add is about 1
# The head's values in a topic's columns, beside 1 in others: about 185 of the 200 likeliest of 151,936 tokens are then in the
# topic, since its logits are 2.5 spreads larger (200 = 2,374 Q(z - 2.5) + 149,562 Q(z) for z = 3.91, and blocks' tails are wider).
TOPIC_LOGITS = 2.5
pieces = {}  # of each type, width and spread: random blocks


def counts_more(layer, layers):
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def matrices_of(shape, n, plain, best):
    """One layer's MLP: (name, shape with the input dimension first, type)."""
    hidden, _, inner, *_ = shape
    if len(shape) == 6:
        return ("ffn_gate", (hidden, inner), plain), ("ffn_up", (hidden, inner), plain), ("ffn_down", (inner, hidden), best)
    experts, _, width, *shared = shape[6:]
    return (("ffn_gate_inp", (hidden, experts), "F32"), ("ffn_gate_exps", (hidden, width, experts), plain),
            ("ffn_up_exps", (hidden, width, experts), plain), ("ffn_down_exps", (width, hidden, experts), best),
            *(m for inner in shared for m in (("ffn_gate_inp_shexp", (hidden,), "F32"), ("ffn_gate_shexp", (hidden, inner), plain),
                                              ("ffn_up_shexp", (hidden, inner), plain), ("ffn_down_shexp", (inner, hidden), best))))


def attention_of(shape, head_dim, plain, best, head_norms, gated):
    """The tensors of one layer's attention."""
    hidden, _, _, heads, kv_heads = shape[:5]
    rows, kv_rows = heads * head_dim, kv_heads * head_dim
    norms = (("attn_q_norm", (head_dim,), "F32"), ("attn_k_norm", (head_dim,), "F32")) if head_norms else ()
    return (("attn_q", (hidden, rows * (2 if gated else 1)), plain), ("attn_k", (hidden, kv_rows), plain), ("attn_v", (hidden, kv_rows), best),
            ("attn_output", (rows, hidden), plain), *norms)


def gemma_e(name):
    return GEMMAS_E.get(name, (GEMMA_WINDOW, GEMMA_INTERVAL, 0, 1))


def gemma_of(name, shape, n, plain, best):
    """The tensors of one of Gemma 4's layers."""
    hidden, layers, inner, heads, kv_heads = shape[:5]
    _, interval, reading, wider = gemma_e(name)
    full, reads = (n + 1) % interval == 0, n >= layers - reading
    dim, kv_heads = GEMMA_DIMS[full], GEMMAS[name] if full else kv_heads
    roles = attention_of((hidden, 0, 0, heads, kv_heads), dim, plain, best, True, False)
    absent = ("attn_k", "attn_v", "attn_k_norm") if reads else ("attn_v",) if full and name not in GEMMAS_E else ()
    yield from (row for row in roles if row[0] not in absent)
    yield from ((role, (hidden,), "F32") for role in ("post_attention_norm", "ffn_norm", "post_ffw_norm"))
    yield "layer_output_scale", (1,), "F32"
    yield from matrices_of((hidden, layers, inner * (wider if reads else 1), *shape[3:6]), n, plain, best)
    if name in GEMMAS_E:
        yield "inp_gate", (hidden, PER_LAYER), plain
        yield "proj", (PER_LAYER, hidden), plain
        yield "post_norm", (hidden,), "F32"
    if len(shape) == 6:
        return
    yield from matrices_of(shape, n, plain, best)
    yield from ((role, (hidden,), "F32") for role in ("ffn_gate_inp.scale", "pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"))
    yield "ffn_down_exps.scale", (shape[6],), "F32"


def delta_of(hidden, keys, values, plain):
    """The tensors of one layer's gated delta net."""
    channels, inner = (2 * keys + values) * DELTA_DIM, values * DELTA_DIM
    return (("attn_qkv", (hidden, channels), plain), ("attn_gate", (hidden, inner), plain), ("ssm_alpha", (hidden, values), plain),
            ("ssm_beta", (hidden, values), plain), ("ssm_conv1d", (CONV, channels), "F32"), ("ssm_a", (values,), "F32"),
            ("ssm_dt.bias", (values,), "F32"), ("ssm_norm", (DELTA_DIM,), "F32"), ("ssm_out", (inner, hidden), plain))


def tensors_of(name, shape, layers, mixture, head_norms):
    """(name, shape with the input dimension first, type) in order."""
    hidden, tied = shape[0], shape[5]
    plain, more = MIXTURES[mixture]
    kinds = {role: [kind for kind, count in row for _ in range(count)] for role, row in ROLES.get(mixture, {}).items()}
    seen = dict.fromkeys(kinds, 0)
    delta, (vocab, head_dim) = DELTAS.get(name), heads_of(name)

    def typed(role, size, kind):
        if role in kinds:
            kind = kinds[role][seen[role] * STRIDE % len(kinds[role])]
            seen[role] += 1
        if size[0] % TYPES[kind][2]:
            kind = NARROW[kind]
        return size, kind

    if name in GEMMAS:
        yield "rope_freqs.weight", (GEMMA_DIMS[1] // 2,), "F32"
    yield "token_embd.weight", *typed("token_embd", (hidden, vocab), more if tied else plain)
    if name in GEMMAS_E:  # converters leave the projection as it is
        yield "per_layer_token_embd.weight", (layers * PER_LAYER, vocab), more
        yield "per_layer_model_proj.weight", (hidden, layers * PER_LAYER), "BF16"
        yield "per_layer_proj_norm.weight", (PER_LAYER,), "F32"
    for n in range(layers):
        best = more if counts_more(n, layers) else plain
        mixer = (delta_of(hidden, *delta, plain) if delta and (n + 1) % INTERVAL else
                 attention_of(shape, head_dim, plain, best, head_norms, delta))
        rows = gemma_of(name, (hidden, layers, *shape[2:]), n, plain, best) if name in GEMMAS else \
            (*mixer, ("post_attention_norm" if delta else "ffn_norm", (hidden,), "F32"), *matrices_of(shape, n, plain, best))
        for role, size, kind in (("attn_norm", (hidden,), "F32"), *rows):
            yield f"blk.{n}.{role}" + ("" if role in CONSTANTS or role.endswith(".scale") else ".weight"), *typed(role, size, kind)
    yield "output_norm.weight", (hidden,), "F32"
    if not tied:
        yield "output.weight", *typed("output", (hidden, vocab), more)


def heads_of(name):
    """Size of the vocabulary and of a head of attention."""
    return (262144, GEMMA_DIMS[1]) if name in GEMMAS else (248320, 256) if name in DELTAS else (151936, 128)


def bytes_of(shape, kind):
    _, block_bytes, values, _ = TYPES[kind]
    if shape[0] % values:
        sys.exit(f"make_gguf.py: rows of {shape[0]} are not of whole blocks of {kind}")
    return math.prod(shape) // values * block_bytes


def text(string):
    raw = string.encode()
    return struct.pack("<Q", len(raw)) + raw


def bf16_exponent(spread):
    return round(math.log2(spread / BF16_SPREAD))


def spread_of(kind, spread):
    """The root mean square of values where this one is wanted."""
    return BF16_SPREAD * 2.0 ** bf16_exponent(spread) if kind == "BF16" else spread


def piece_of(kind, spread, rng):
    """Random bytes of whole blocks, with scales that make values of about this root mean square."""
    _, block_bytes, _, scales = TYPES[kind]
    most = PIECE_BYTES // block_bytes
    if kind == "F32":
        return array.array("f", [rng.gauss(0, spread) for _ in range(1 << 20)]).tobytes()
    piece = bytearray(rng.randbytes(most * block_bytes))
    if kind == "F16":  # one exponent, random sign and mantissa
        exponent = 15 + bf16_exponent(spread)
        piece[1::2] = piece[1::2].translate(bytes(i & 0x83 | exponent << 2 for i in range(256)))
        return bytes(piece)
    if kind == "IQ1_M":  # the scale lies in the high halves of the last four words
        scale, = struct.unpack("<H", struct.pack("<e", spread / SPREADS[kind]))
        for word in range(4):
            high = (scale >> 4 * word & 15) << 4
            piece[49 + 2 * word::block_bytes] = piece[49 + 2 * word::block_bytes].translate(bytes(i & 15 | high for i in range(256)))
        return bytes(piece)
    if kind == "BF16":  # one exponent, random sign and mantissa
        exponent = 127 + bf16_exponent(spread)
        piece[0::2] = piece[0::2].translate(bytes(i & 0x7f | exponent << 7 & 0x80 for i in range(256)))
        piece[1::2] = piece[1::2].translate(bytes(i & 0x80 | exponent >> 1 for i in range(256)))
        return bytes(piece)
    for at, times in zip(scales, (1, MEANS.get(kind))):
        scale = struct.pack("<e", max(times * spread / SPREADS[kind], 6e-8))
        for byte in range(2):
            piece[at + byte::block_bytes] = scale[byte:byte + 1] * most
    return bytes(piece)


def piece_for(kind, spread, rng):
    if (kind, spread) not in pieces:
        pieces[kind, spread] = memoryview(piece_of(kind, spread, rng))
    return pieces[kind, spread]


def write_blocks(file, name, shape, kind, spread, rng):
    """The same random piece over and over, from another block on each time; a vector of one value."""
    _, block_bytes, values, _ = TYPES[kind]
    if name == "rope_freqs.weight":  # a quarter of the pairs turns
        file.write(struct.pack(f"<{shape[0]}f", *(1.0 if i < shape[0] // 4 else 1e30 for i in range(shape[0]))))
        return
    if kind == "F32" and len(shape) == 1:
        file.write(struct.pack("<f", CONSTANTS.get(name.split(".", 2)[-1], 1)) * shape[0])
        return
    piece = piece_for(kind, spread, rng)
    left, most = math.prod(shape) // values, len(piece) // block_bytes
    while left:
        first = rng.randrange(most - 1)
        blocks = min(left, most - first)
        file.write(piece[first * block_bytes:(first + blocks) * block_bytes])
        left -= blocks


def block_of_signs(kind, signs, size):
    """A block whose values are `size` with these signs (True: positive)."""
    if kind == "BF16":
        word = struct.unpack("<I", struct.pack("<f", size))[0] >> 16
        return b"".join(struct.pack("<H", word | (0 if s else 0x8000)) for s in signs)
    if kind == "Q4_K":  # all inner scales 15; codes 0 and 15, less 7.5
        codes = bytes(15 * signs[64 * j + i] | 240 * signs[64 * j + 32 + i] for j in range(4) for i in range(32))
        return struct.pack("<ee", size / (7.5 * 15), size / 15) + b"\x0f" * 8 + b"\xff" * 4 + codes
    if kind == "Q6_K":  # all inner scales 64; codes 16 and 48, less 32
        high = bytes(0x55 | sum(2 << 2 * j if signs[128 * n + 32 * j + i] else 0 for j in range(4))
                     for n in range(2) for i in range(32))
        return bytes(128) + high + b"\x40" * 16 + struct.pack("<e", size / (64 * 16))
    sys.exit(f"make_gguf.py: --sticky takes no {kind}")


def write_topics(file, shape, kind, spread, topic_spread, signs, rng):
    """Rows of tokens: the first quarter of the columns their topic's signs of `topic_spread`, the others random ones of `spread`."""
    _, block_bytes, values, _ = TYPES[kind]
    columns, rows = shape
    own, topic_blocks = columns // values * block_bytes, columns // 4 // values
    own -= topic_blocks * block_bytes
    per = 256 if kind == "BF16" else values
    topics = [b"".join(block_of_signs(kind, s[at:at + per], topic_spread) for at in range(0, columns // 4, per)) for s in signs]
    piece, at = piece_for(kind, spread, rng), 0
    for row in range(rows):
        if at + own > len(piece):
            at = rng.randrange(TOPICS) * block_bytes
        file.write(topics[row % TOPICS] + piece[at:at + own])
        at += own


def write_tokens(file, name, shape, kind, sticky, signs, rng):
    """The embedding and the head of a mixture."""
    if not sticky:
        write_blocks(file, name, shape, kind, EMBEDDING if name == "token_embd.weight" else 1 / math.sqrt(shape[0]), rng)
        return
    columns = shape[0]
    topic, own = math.sqrt(4 * sticky), math.sqrt(4 / 3 * (1 - sticky))  # root mean squares of a normed embedding's columns
    if name == "token_embd.weight":
        spread = spread_of(kind, EMBEDDING * own)
        write_topics(file, shape, kind, spread, spread * topic / own, signs, rng)
        return
    spread = spread_of(kind, 1 / math.sqrt(columns))
    logits = spread * own * math.sqrt(3 / 4 * columns)  # root mean square of those from columns of its own
    write_topics(file, shape, kind, spread, TOPIC_LOGITS * logits / (topic * columns / 4), signs, rng)


def keys_of(name, arch, shape, layers):
    """(name, type, bytes) of what the header says. Without "no_vocab" llama.cpp refuses a file that has no tokenizer."""
    hidden, _, inner, heads, kv_heads = shape[:5]
    delta, (vocab, head_dim), wider = DELTAS.get(name), heads_of(name), gemma_e(name)[3] if name in GEMMAS else 1
    numbers = [("context_length", 131072 if name in GEMMAS_E else 262144 if delta or name in GEMMAS else 40960),
               ("embedding_length", hidden), ("block_count", layers),
               *((("feed_forward_length", inner),) if wider == 1 else ()), ("attention.head_count", heads),
               ("attention.key_length", head_dim), ("attention.value_length", head_dim), ("vocab_size", vocab)]
    if len(shape) > 6:
        numbers += [("expert_count", shape[6]), ("expert_used_count", shape[7])]
    if len(shape) > 9:
        numbers.append(("expert_shared_feed_forward_length", shape[9]))
    if arch in ("qwen2moe", "qwen3moe", "qwen35moe") or len(shape) > 6 and name in GEMMAS:
        numbers.append(("expert_feed_forward_length", shape[8]))
    if arch == "llama":
        numbers.append(("rope.dimension_count", head_dim))
    if delta:
        numbers += [("rope.dimension_count", head_dim // 4), ("full_attention_interval", INTERVAL), ("ssm.conv_kernel", CONV),
                    ("ssm.state_size", DELTA_DIM), ("ssm.group_count", delta[0]), ("ssm.time_step_rank", delta[1]),
                    ("ssm.inner_size", delta[1] * DELTA_DIM)]
    if name in GEMMAS:
        numbers += [("attention.key_length_swa", GEMMA_DIMS[0]), ("attention.value_length_swa", GEMMA_DIMS[0]),
                    ("attention.sliding_window", gemma_e(name)[0]), ("rope.dimension_count", head_dim),
                    ("rope.dimension_count_swa", GEMMA_DIMS[0]), ("attention.shared_kv_layers", gemma_e(name)[2]),
                    ("embedding_length_per_layer_input", PER_LAYER if name in GEMMAS_E else 0)]
    else:
        numbers.append(("attention.head_count_kv", kv_heads))
    keys = [("general.architecture", 8, text(arch)), ("general.alignment", 4, struct.pack("<I", 32)),
            ("tokenizer.ggml.model", 8, text("no_vocab"))]
    keys += [(f"{arch}.{key}", 4, struct.pack("<I", value)) for key, value in numbers]
    keys.append((arch + ".attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-6)))
    keys.append((arch + ".rope.freq_base", 6, struct.pack("<f", 1e7 if delta else 1e6)))
    if name in GEMMAS:  # arrays of int32 and of flags
        _, interval, reading, _ = gemma_e(name)
        full = [(n + 1) % interval == 0 for n in range(layers)]
        if wider > 1:
            keys.append((arch + ".feed_forward_length", 9, struct.pack(f"<IQ{layers}i", 5, layers, *(
                inner * (wider if n >= layers - reading else 1) for n in range(layers)))))
        keys += [(arch + ".rope.freq_base_swa", 6, struct.pack("<f", 1e4)), (arch + ".final_logit_softcapping", 6, struct.pack("<f", 30)),
                 (arch + ".attention.head_count_kv", 9,
                  struct.pack(f"<IQ{layers}i", 5, layers, *(GEMMAS[name] if f else kv_heads for f in full))),
                 (arch + ".attention.sliding_window_pattern", 9, struct.pack(f"<IQ{layers}?", 7, layers, *(not f for f in full)))]
    if delta:  # an array of int32
        keys.append((arch + ".rope.dimension_sections", 9, struct.pack("<IQ4i", 5, 4, 11, 11, 10, 0)))
    return keys


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("--size", required=True, choices=[*SIZES, *MIXTURES_OF_EXPERTS])
    parser.add_argument("--type", required=True, choices=MIXTURES)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--sticky", type=float, default=0.0)
    parser.add_argument("--hole", action="store_true")
    parser.add_argument("--out", required=True)
    doc = parser.parse_args()
    if doc.sticky and (doc.size not in MIXTURES_OF_EXPERTS or not 0 < doc.sticky < 1):
        sys.exit("make_gguf.py: --sticky is a part, between 0 and 1, of a mixture of experts")
    shape = SIZES.get(doc.size) or MIXTURES_OF_EXPERTS[doc.size]
    if doc.type in OF_ALONE and doc.size != OF_ALONE[doc.type]:
        sys.exit(f"make_gguf.py: {doc.type} is of {OF_ALONE[doc.type]} alone")
    delta, mixture = DELTAS.get(doc.size), len(shape) > 6
    arch = "gemma4" if doc.size in GEMMAS else ("qwen35moe" if mixture else "qwen35") if delta else "llama" if doc.size == "8x7b" else "qwen2moe" if len(shape) > 9 else \
        "qwen3moe" if mixture else "qwen3"
    layers = doc.layers or shape[1]
    if doc.size in GEMMAS_E and layers <= sum(GEMMAS_E[doc.size][1:3]):
        sys.exit(f"make_gguf.py: the last {GEMMAS_E[doc.size][2]} layers of {doc.size} read the cache of the {GEMMAS_E[doc.size][1]} before them")
    keys = keys_of(doc.size, arch, shape, layers)
    tensors, offset, infos = list(tensors_of(doc.size, shape, layers, doc.type, arch not in ("llama", "qwen2moe"))), 0, b""
    for name, size, kind in tensors:
        infos += text(name) + struct.pack(f"<I{len(size)}qiQ", len(size), *size, TYPES[kind][0], offset)
        offset += (bytes_of(size, kind) + 31) // 32 * 32
    head = b"GGUF" + struct.pack("<Iqq", 3, len(tensors), len(keys))
    head += b"".join(text(name) + struct.pack("<i", kind) + value for name, kind, value in keys) + infos
    rng = random.Random(1)
    signs = [[rng.random() < 0.5 for _ in range(shape[0] // 4)] for _ in range(TOPICS)]
    with open(doc.out, "wb") as file:
        file.write(head + bytes(-len(head) % 32))
        if doc.hole:
            file.truncate(file.tell() + offset)
            tensors = [tensor for tensor in tensors if tensor[0] == "rope_freqs.weight"]  # the first, which is read
        for name, size, kind in tensors:
            if mixture and name in ("token_embd.weight", "output.weight"):
                write_tokens(file, name, size, kind, doc.sticky, signs, rng)
            else:
                write_blocks(file, name, size, kind, 1 / math.sqrt(size[0]), rng)
            file.write(bytes(-bytes_of(size, kind) % 32))
    print(f"{doc.out}: {offset / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
