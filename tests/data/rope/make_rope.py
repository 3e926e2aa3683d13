#!/usr/bin/env python3
"""Writes rope.json: RoPE frequencies of all four kinds, computed without HELM, numpy or torch.

Every step is rounded as a float32 tensor operation of transformers' ROPE_INIT_FUNCTIONS rounds it: f32() stands where
that code has a tensor, a plain Python number where it has one. `number / tensor` is the tensor's reciprocal times the
number. The values are stored as the bits of a float32, so that the test compares exactly.

transformers 5.17.0 with torch 2.11 gives the same bits for all of them but four, which differ by one or two units in the
last place: torch's vector pow() is not correctly rounded.

    python3 tests/data/rope/make_rope.py > tests/data/rope/rope.json
"""
import json
import math
import struct


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def rdiv(number, tensor):
    return f32(f32(1.0 / tensor) * f32(number))


def pos_freqs(base, dim):
    return [f32(math.pow(f32(base), f32(f32(i) / f32(dim)))) for i in range(0, dim, 2)]


def default(p, dim, context):
    return [rdiv(1.0, f) for f in pos_freqs(p["rope_theta"], dim)], 1.0


def linear(p, dim, context):
    return [f32(f / f32(p["factor"])) for f in default(p, dim, context)[0]], 1.0


def llama3(p, dim, context):
    factor, low, high = p["factor"], p["low_freq_factor"], p["high_freq_factor"]
    old = p.get("original_max_position_embeddings", context)
    low_wavelen, high_wavelen = f32(old / low), f32(old / high)
    out = []
    for inv in default(p, dim, context)[0]:
        wavelen = rdiv(2 * math.pi, inv)
        scaled = f32(inv / f32(factor)) if wavelen > low_wavelen else inv
        if not wavelen < high_wavelen and not wavelen > low_wavelen:
            smooth = f32(f32(rdiv(old, wavelen) - f32(low)) / f32(high - low))
            left = f32(f32(f32(1.0 - smooth) * scaled) / f32(factor))
            scaled = f32(left + f32(smooth * scaled))
        out.append(scaled)
    return out, 1.0


def yarn(p, dim, context):
    base = p["rope_theta"]
    old = p.get("original_max_position_embeddings", context)
    factor = p.get("factor") or context / old

    def get_mscale(scale, mscale=1):
        return 1.0 if scale <= 1 else 0.1 * mscale * math.log(scale) + 1.0

    attention = p.get("attention_factor")
    if attention is None:
        if p.get("mscale") and p.get("mscale_all_dim"):
            attention = get_mscale(factor, p["mscale"]) / get_mscale(factor, p["mscale_all_dim"])
        else:
            attention = get_mscale(factor)
    fast, slow = p.get("beta_fast") or 32, p.get("beta_slow") or 1

    def correction(rotations):
        return (dim * math.log(old / (rotations * 2 * math.pi))) / (2 * math.log(base))

    low, high = correction(fast), correction(slow)
    if p.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    out = []
    for i, freq in enumerate(pos_freqs(base, dim)):
        ramp = min(max(f32(f32(f32(i) - f32(low)) / f32(high - low)), 0.0), 1.0)
        share = f32(1.0 - ramp)
        interpolated = rdiv(1.0, f32(f32(factor) * freq))
        extrapolated = rdiv(1.0, freq)
        out.append(f32(f32(interpolated * f32(1.0 - share)) + f32(extrapolated * share)))
    return out, attention


KINDS = {"default": default, "linear": linear, "llama3": llama3, "yarn": yarn}
CASES = [
    (128, 40960, {"rope_type": "default", "rope_theta": 1000000.0}),
    (64, 4096, {"rope_type": "default", "rope_theta": 10000.0}),
    (96, 8192, {"rope_type": "default", "rope_theta": 1234567.8}),
    (2, 64, {"rope_type": "default", "rope_theta": 10000.0}),
    (128, 16384, {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}),
    (80, 16384, {"rope_type": "linear", "rope_theta": 500000.0, "factor": 2.7}),
    (128, 131072, {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
                   "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    (64, 131072, {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0,
                  "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    (32, 4096, {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 512}),
    (128, 131072, {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0,
                   "original_max_position_embeddings": 32768}),
    (64, 65536, {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0, "beta_fast": 24, "beta_slow": 2,
                 "truncate": False, "original_max_position_embeddings": 4096}),
    (128, 40960, {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40, "mscale": 1.0, "mscale_all_dim": 0.707,
                  "original_max_position_embeddings": 4096}),
    (128, 40960, {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 2.5, "attention_factor": 1.25}),
    (128, 131072, {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": None,
                   "original_max_position_embeddings": 32768}),
    (8, 64, {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 4}),
]

cases = []
for dim, context, parameters in CASES:
    inv_freq, scale = KINDS[parameters["rope_type"]](parameters, dim, context)
    cases.append({"head_dim": dim, "max_position_embeddings": context, "rope_parameters": parameters,
                  "scale": bits(f32(scale)), "inv_freq": [bits(f) for f in inv_freq]})
print("[" + ",\n ".join(json.dumps(c) for c in cases) + "]")
