#!/usr/bin/python3
"""Makes embeddings.json: the hidden states of the reference model qwen3 for three of its prompts after the
final norm, their mean and the last one.

A forward pass of its own in numpy (float64, the stored bf16 weights; apt-get install python3-numpy), written from the model's
definition. Before it writes anything it holds its logits against golden.json, which transformers made: the top logprobs of
each case's first step agree within 2e-4. Run in this folder."""
import json
import struct

import numpy as np

FOLDER, CASES = "qwen3", (0, 4, 7)


def read_weights(path):
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(size))
        data = f.read()
    out = {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        assert t["dtype"] == "BF16", name
        raw = np.frombuffer(data[t["data_offsets"][0]:t["data_offsets"][1]], dtype="<u2").astype("<u4") << 16
        out[name] = raw.view("<f4").astype(np.float64).reshape(t["shape"])
    return out


def norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rotate(x, theta):
    """[tokens][heads][dim], halves paired (Su et al. 2021, as Hugging Face lays them out)."""
    tokens, _, dim = x.shape
    angle = np.arange(tokens)[:, None] * theta ** (-np.arange(0, dim, 2) / dim)[None, :]
    cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
    a, b = x[..., :dim // 2], x[..., dim // 2:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def attend(x, w, at, c):
    heads, kv, dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    project = {n: (x @ w[at + n + "_proj.weight"].T).reshape(len(x), -1, dim) for n in "qkv"}
    eps, theta = c["rms_norm_eps"], c["rope_parameters"]["rope_theta"]
    q = rotate(norm(project["q"], w[at + "q_norm.weight"], eps), theta)
    k = rotate(norm(project["k"], w[at + "k_norm.weight"], eps), theta)
    out = np.empty((len(x), heads, dim))
    later = np.triu(np.full((len(x), len(x)), -np.inf), 1)
    for h in range(heads):
        score = q[:, h] @ k[:, h // (heads // kv)].T / np.sqrt(dim) + later
        part = np.exp(score - score.max(-1, keepdims=True))
        out[:, h] = part / part.sum(-1, keepdims=True) @ project["v"][:, h // (heads // kv)]
    return out.reshape(len(x), -1) @ w[at + "o_proj.weight"].T


def hidden_states(prompt, w, c):
    x = w["model.embed_tokens.weight"][prompt]
    for layer in range(c["num_hidden_layers"]):
        at, eps = "model.layers.%d." % layer, c["rms_norm_eps"]
        x = x + attend(norm(x, w[at + "input_layernorm.weight"], eps), w, at + "self_attn.", c)
        h = norm(x, w[at + "post_attention_layernorm.weight"], eps)
        gate = h @ w[at + "mlp.gate_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w[at + "mlp.up_proj.weight"].T)) @ w[at + "mlp.down_proj.weight"].T
    return norm(x, w["model.norm.weight"], c["rms_norm_eps"])


def main():
    w = read_weights(FOLDER + "/model.safetensors")
    with open(FOLDER + "/config.json") as f:
        config = json.load(f)
    with open(FOLDER + "/golden.json") as f:
        cases = json.load(f)["cases"]
    out = []
    for number in CASES:
        prompt = cases[number]["prompt"]
        states = hidden_states(prompt, w, config)
        logits = states[-1] @ w["lm_head.weight"].T
        logprobs = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        worst = max(abs(logprobs[token] - wanted) for token, wanted in cases[number]["steps"][0]["top"])
        print("case %d, %d tokens: logprobs within %.1e of transformers'" % (number, len(prompt), worst))
        assert worst < 2e-4
        out.append({"case": number, "mean": [round(float(v), 6) for v in states.mean(0)],
                    "last": [round(float(v), 6) for v in states[-1]]})
    with open("embeddings.json", "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(o, separators=(",", ":")) for o in out) + "\n]\n")


if __name__ == "__main__":
    main()
