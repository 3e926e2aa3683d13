#!/usr/bin/python3
"""Checkpoints whose matrices are FP8 or NVFP4, numbers and scales in tensors of their own, and GGUF files of NVFP4: on the CPU, on the
emulated device and on both they answer with the tokens of the same values as F32. A wrong tensor in such a file is refused by its
name. Numbers are drawn as bits, and read here by the definitions of E4M3 and E2M1."""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from gguf_edit import Gguf, string  # noqa: E402
from helmd_harness import FORMAT_OPTIONS, check, format_tokens, plan_json, run_tests, running, same  # noqa: E402

LAYERS, VOCABULARY, HIDDEN, INNER, HEADS, KV, HEAD = 3, 2048, 256, 512, 4, 2, 64
EXPERTS, CHOSEN = 4, 2


def e4m3(bits):
    exponent, mantissa = bits >> 3 & 15, bits & 7
    value = (8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0 ** -9
    return -value if bits & 128 else value


E4M3 = [e4m3(b) for b in range(256)]
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]
MIDDLING = [b for b in range(256) if 0.05 < abs(E4M3[b]) < 4]  # like weights, once scaled


def floats(values):
    return struct.pack("<%df" % len(values), *values)


class Fp8:
    """Blocks of 128 x 128 (`inv`), one scale a matrix, or one a row."""

    def __init__(self, how):
        self.how = how
        self.config = {"quant_method": "fp8", "modules_to_not_convert": ["lm_head"], "activation_scheme": "dynamic"}
        if how == "blocks":
            self.config["weight_block_size"] = [128, 128]
        if how == "rows":
            self.config = {"quant_method": "compressed-tensors", "format": "float-quantized"}

    def matrix(self, draw, rows, cols):
        across = -(-cols // 128) if self.how == "blocks" else 1
        down = -(-rows // 128) if self.how == "blocks" else rows if self.how == "rows" else 1
        bits = [bytes(draw.choices(MIDDLING, k=cols)) for _ in range(rows)]
        scales = [2.0 ** draw.randrange(-6, -3) for _ in range(across * down)]
        values = []
        for r in range(rows):
            of = [scales[r * down // rows * across + c] if self.how != "blocks" else scales[r // 128 * across + c] for c in range(across)]
            for c, b in enumerate(bits[r]):
                values.append(E4M3[b] * of[c // 128 if self.how == "blocks" else 0])
        name, shape = {"blocks": ("weight_scale_inv", [down, across]), "rows": ("weight_scale", [down, 1]), "one": ("weight_scale", [])}[self.how]
        return {"weight": ("F8_E4M3", [rows, cols], b"".join(bits)), name: ("F32", shape, floats(scales)),
                "input_scale": ("F32", [], floats([1]))}, floats(values)


class Nvfp4:
    def __init__(self, packed):
        self.packed = packed
        self.config = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"} if packed else {
            "quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}

    def matrix(self, draw, rows, cols):
        codes = [draw.choices(range(16), k=cols) for _ in range(rows)]
        scales = [bytes(draw.choices([b for b in MIDDLING if b < 128], k=cols // 16)) for _ in range(rows)]
        whole = 2.0 ** draw.randrange(-6, -4)
        values = [E2M1[q] * E4M3[scales[r][c // 16]] * whole for r in range(rows) for c, q in enumerate(codes[r])]
        numbers = b"".join(bytes(row[i] | row[i + 1] << 4 for i in range(0, cols, 2)) for row in codes)
        return {"weight_packed" if self.packed else "weight": ("U8", [rows, cols // 2], numbers),
                "weight_scale": ("F8_E4M3", [rows, cols // 16], b"".join(scales)),
                "weight_global_scale" if self.packed else "weight_scale_2": ("F32", [1], floats([1 / whole if self.packed else whole])),
                "input_global_scale" if self.packed else "input_scale": ("F32", [1], floats([1]))}, floats(values)


def write_tensors(folder, config, tensors):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))


def matrices(sparse):
    p = {"self_attn.q_proj": (HEADS * HEAD, HIDDEN), "self_attn.k_proj": (KV * HEAD, HIDDEN), "self_attn.v_proj": (KV * HEAD, HIDDEN),
         "self_attn.o_proj": (HIDDEN, HEADS * HEAD)}
    for e in [f"experts.{i}." for i in range(EXPERTS)] if sparse else [""]:
        p.update({f"mlp.{e}gate_proj": (INNER, HIDDEN), f"mlp.{e}up_proj": (INNER, HIDDEN), f"mlp.{e}down_proj": (HIDDEN, INNER)})
    return p


def checkpoint(folder, kind, sparse=False, change=None):
    """The model with matrices of a kind, and its twin of F32."""
    draw = random.Random(3)
    config = {"architectures": ["Qwen3MoeForCausalLM" if sparse else "Qwen3ForCausalLM"], "hidden_size": HIDDEN, "intermediate_size": INNER,
              "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": HEAD,
              "vocab_size": VOCABULARY, "rms_norm_eps": 1e-6, "max_position_embeddings": 512, "rope_theta": 10000.0,
              "tie_word_embeddings": False, "hidden_act": "silu", "attention_bias": False, "torch_dtype": "float32", "eos_token_id": 1,
              "bos_token_id": 0}
    if sparse:
        config.update(num_experts=EXPERTS, num_experts_per_tok=CHOSEN, moe_intermediate_size=INNER, norm_topk_prob=True,
                      decoder_sparse_step=1, mlp_only_layers=[])

    def plain(*shape):
        count = 1
        for n in shape:
            count *= n
        values = [1 + draw.randrange(-4, 5) / 16 for _ in range(count)] if len(shape) == 1 else [
            n / 64 for n in draw.choices(range(-8, 9), k=count)]
        return "F32", list(shape), floats(values)
    own = {"model.embed_tokens.weight": plain(VOCABULARY, HIDDEN), "model.norm.weight": plain(HIDDEN), "lm_head.weight": plain(VOCABULARY, HIDDEN)}
    for n in range(LAYERS):
        p = f"model.layers.{n}."
        own.update({p + "input_layernorm.weight": plain(HIDDEN), p + "post_attention_layernorm.weight": plain(HIDDEN),
                    p + "self_attn.q_norm.weight": plain(HEAD), p + "self_attn.k_norm.weight": plain(HEAD)})
        if sparse:
            own[p + "mlp.gate.weight"] = plain(EXPERTS, HIDDEN)
    wide = dict(own)
    for n in range(LAYERS):
        for name, (rows, cols) in matrices(sparse).items():
            parts, values = kind.matrix(draw, rows, cols)
            wide[f"model.layers.{n}.{name}.weight"] = "F32", [rows, cols], values
            own.update({f"model.layers.{n}.{name}.{part}": tensor for part, tensor in parts.items()})
    scaled = dict(config, quantization_config=kind.config)
    if change:
        change(own, scaled)
    paths = [os.path.join(folder, what) for what in ("scaled", "wide")]
    write_tensors(paths[0], scaled, own)
    write_tensors(paths[1], config, wide)
    return paths


def compare(scaled, wide):
    expected = format_tokens(wide, "cpu")
    check(len(set(expected)) > 3, f"tokens that say something: {expected}")
    same(format_tokens(scaled, "cpu"), expected, "the CPU")
    for homes in "ggg", "cgc":
        same(format_tokens(scaled, "emulated", plan=plan_json(LAYERS, homes, embed=homes[0], head="g")), expected, homes)


def test_fp8_of_blocks():
    with tempfile.TemporaryDirectory() as folder:
        compare(*checkpoint(folder, Fp8("blocks")))


def test_fp8_of_whole_matrices_and_rows():
    for how in "one", "rows":
        with tempfile.TemporaryDirectory() as folder:
            scaled, wide = checkpoint(folder, Fp8(how))
            same(format_tokens(scaled, "cpu"), format_tokens(wide, "cpu"), how)


def test_experts_of_fp8():
    with tempfile.TemporaryDirectory() as folder:
        compare(*checkpoint(folder, Fp8("blocks"), sparse=True))


def test_nvfp4_checkpoints():
    for packed in False, True:
        with tempfile.TemporaryDirectory() as folder:
            compare(*checkpoint(folder, Nvfp4(packed), sparse=packed))


def test_nvfp4_in_gguf_files():
    with open("tests/data/golden-gguf/qwen3-Q2_K/model.gguf", "rb") as f:
        gguf = Gguf(f.read())
    draw, own, wide = random.Random(4), [], []
    for name, shape, kind, data in gguf.tensors:
        if len(shape) == 1:
            own.append([name, shape, kind, data])
            wide.append([name, shape, kind, data])
            continue
        cols, rows = shape
        whole, blocks, values = 2.0 ** draw.randrange(-6, -4), [], []
        for _ in range(rows * cols // 64):
            codes, scales = draw.choices(range(16), k=64), draw.choices([b for b in MIDDLING if b < 128], k=4)
            numbers = bytes(codes[16 * g + i] | codes[16 * g + 8 + i] << 4 for g in range(4) for i in range(8))
            blocks.append(bytes(scales) + numbers)
            values += [E2M1[q] * E4M3[scales[i // 16]] * (whole if name.startswith("blk") else 2.0 ** -5) for i, q in enumerate(codes)]
        if name.startswith("blk"):
            own.append([name.replace(".weight", ".scale"), [1], 0, floats([whole])])
            own.append([name, shape, 40, b"".join(blocks)])
        else:
            own.append([name, shape, 0, floats(values)])
        wide.append([name, shape, 0, floats(values)])
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, what + ".gguf") for what in ("own", "wide")]
        for path, tensors in zip(paths, (own, wide)):
            with open(path, "wb") as f:
                f.write(gguf.bytes(tensors=tensors))
        compare(*paths)


def test_nvfp4_of_several_matrices_in_one_tensor_is_refused():
    """Rows of q, k and v are taken from such a tensor by their bytes, which are others in the file."""
    with open("tests/data/golden-gguf/qwen3-Q2_K/model.gguf", "rb") as f:
        gguf = Gguf(f.read())
    keys = {key.replace("qwen3.", "phi3."): value for key, value in gguf.keys.items()}
    keys["general.architecture"] = string("phi3")
    tensors, rows = [], {}
    for name, shape, kind, data in gguf.tensors:
        layer, _, rest = name.rpartition("blk.")[2].partition(".")
        if rest in ("attn_q.weight", "attn_k.weight", "attn_v.weight"):
            rows[layer] = rows.get(layer, 0) + shape[1]
            if rest == "attn_v.weight":
                tensors.append([f"blk.{layer}.attn_qkv.weight", [shape[0], rows[layer]], 40, bytes(shape[0] * rows[layer] // 64 * 36)])
        elif rest == "ffn_up.weight":
            tensors.append([name, [shape[0], 2 * shape[1]], 0, bytes(8 * shape[0] * shape[1])])
        elif rest not in ("ffn_gate.weight", "attn_q_norm.weight", "attn_k_norm.weight"):
            tensors.append([name, shape, kind, data])
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.gguf")
        with open(path, "wb") as f:
            f.write(gguf.bytes(keys=keys, tensors=tensors))
        run = subprocess.run([os.path.join(os.environ.get("HELM_BIN", "build/bin"), "helm-plan"), "--model", path, "--device", "cpu"],
                             capture_output=True, text=True)
    check(run.returncode != 0 and "attn_qkv.weight' has dtype" in run.stderr and "whose rows can be taken" in run.stderr, run.stderr)


def test_a_tied_heads_own_matrix_is_left_out():
    """A tied checkpoint may hold the head that it does not use, with its scales."""
    draw = random.Random(5)

    def tied(own, config):
        config["tie_word_embeddings"] = True
        del own["lm_head.weight"]

    def stored(own, config):
        tied(own, config)
        parts, _ = Fp8("blocks").matrix(draw, VOCABULARY, HIDDEN)
        own.update({"lm_head." + part: tensor for part, tensor in parts.items()})
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        expected = format_tokens(checkpoint(one, Fp8("blocks"), change=tied)[0], "cpu")
        same(format_tokens(checkpoint(other, Fp8("blocks"), change=stored)[0], "cpu"), expected, "with a head of its own")


def refused(text, kind, change):
    with tempfile.TemporaryDirectory() as folder:
        scaled, _ = checkpoint(folder, kind, change=change)
        try:
            with running("--device", "cpu", *FORMAT_OPTIONS, real=True, model=scaled):
                started = True
        except AssertionError as e:
            started = False
            check(text in str(e), f"'{text}' is named: {str(e)[:600]}")
        check(not started, f"'{text}' is refused")


def test_what_is_wrong_is_refused():
    up = "model.layers.1.mlp.up_proj."

    def without(own, _):
        del own[up + "weight_scale_inv"]

    def few(own, _):
        own[up + "weight_scale_inv"] = "F32", [2, 2], floats([1] * 4)

    def nan(own, _):
        dtype, shape, data = own[up + "weight"]
        own[up + "weight"] = dtype, shape, data[:-1] + b"\x7f"

    def alone(own, _):
        own["model.layers.0.input_layernorm.weight_scale"] = "F32", [], floats([1])

    def other(_, config):
        config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}
    refused(f"tensor '{up}weight' is there, but without its scales", Fp8("blocks"), without)
    refused(f"tensor '{up}weight_scale_inv' has 4 scales", Fp8("blocks"), few)
    refused("has a value that is no number", Fp8("blocks"), nan)
    refused("but no 'model.layers.0.input_layernorm.weight' of FP8 or NVFP4", Fp8("blocks"), alone)
    refused("'W4A8_AWQ'", Fp8("blocks"), other)


if __name__ == "__main__":
    run_tests(globals())
