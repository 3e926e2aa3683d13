"""Checkpoints with a layer that makes drafts (multi-token prediction), from reference checkpoints without one.

The layer's projection passes on the embedding of the next token, and its norm is that of the model. So it guesses what the model
would say if its layers added nothing: right always where the model's layers add nothing (`adds` 0), and less often the more they
add. Whatever it guesses, the model's answers are its own."""
import array
import functools
import random
import struct

from hybrid_files import read, write_safetensors

# The layer's prefix and its own tensors in hybrids, whose norms are stored less 1; and in others.
HYBRID = ("mtp.layers.0.", "mtp.fc.weight", "mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight", "mtp.norm.weight")
USUAL = ("", "eh_proj.weight", "enorm.weight", "hnorm.weight", "shared_head.norm.weight")
OUTPUTS = ("o_proj.weight", "out_proj.weight", "down_proj.weight", "down_proj")  # of what a half layer adds


def bf16(values):
    values = list(values)
    return array.array("H", array.array("H", struct.pack(f"<{len(values)}f", *values))[1::2]).tobytes()


def times(power):
    """The bits of each bf16 number times a power of two."""
    for bits in range(1 << 16):
        exponent = (bits >> 7 & 255) + power
        yield bits & ~(255 << 7) | exponent << 7 if 0 < exponent < 255 else 0


@functools.cache
def products(power):
    return array.array("H", times(power))


def scaled(data, power):
    """bf16 numbers times a power of two, which is exact; None: zeros."""
    if power is None:
        return bytes(len(data))
    return array.array("H", map(products(power).__getitem__, array.array("H", data))).tobytes()


@functools.cache
def reference(name):
    return read(name)


def is_usual(config):
    return "n_routed_experts" in config


@functools.cache
def draft_layer(name, seed):
    """Tensors of the layer, as published: a layer of attention like the model's last one, with numbers of its own."""
    config, tensors = reference(name)
    rng, hidden, last = random.Random(seed), config["hidden_size"], config["num_hidden_layers"] - 1
    names, one = (USUAL, 1) if is_usual(config) else (HYBRID, 0)
    layer, projection, of_embedding, of_hidden, out = [(f"model.layers.{last + 1}." if one else "") + n for n in names]
    made = {}
    for name, (shape, data) in tensors.items():
        prefix = f"model.layers.{last}."
        if name.startswith(prefix):
            mean, spread = one * name.endswith("norm.weight"), 0.1 if len(shape) == 1 else 1.5 / shape[-1] ** 0.5
            made[layer + name[len(prefix):]] = (shape, bf16(rng.gauss(mean, spread) for _ in range(len(data) // 2)))
    made[projection] = ([hidden, 2 * hidden], bf16(float(c == r) for r in range(hidden) for c in range(2 * hidden)))
    made[of_embedding] = ([hidden], bf16([one] * hidden))
    made[of_hidden] = ([hidden], bf16(rng.gauss(one, 0.1) for _ in range(hidden)))
    made[out] = tensors["model.norm.weight"]
    return made


def draft_model(name, folder, adds=-4, own_adds=None, seed=7):
    """The checkpoint `name` in `folder`, with such a layer. Powers of two: how much the model's layers add, and that one; None: nothing."""
    config, tensors = reference(name)
    made = draft_layer(name, seed)
    tensors = {n: (s, scaled(d, adds) if n.startswith("model.layers.") and n.endswith(OUTPUTS) else d) for n, (s, d) in tensors.items()}
    tensors.update({n: (s, scaled(d, own_adds) if n.endswith(OUTPUTS) else d) for n, (s, d) in made.items()})
    return write_safetensors(folder, {**config, "num_nextn_predict_layers" if is_usual(config) else "mtp_num_hidden_layers": 1}, tensors)
