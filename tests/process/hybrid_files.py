"""Reference checkpoints of hybrids (tests/data/golden/qwen35, qwen35moe, qwen3next) in the other forms that such models come in:
as the text part of a multimodal checkpoint, with fused experts, and as GGUF files, whose v heads are in another order; and with
a chat template and a tokenizer."""
import array
import json
import math
import os
import shutil
import struct

GOLDEN = "tests/data/golden"


def read(name):
    """The configuration, and tensors as {name: (shape, bytes)}, all of them bf16. `name`: of a reference checkpoint, or a whole path."""
    with open(os.path.join(GOLDEN, name, "config.json")) as f:
        config = json.load(f)
    with open(os.path.join(GOLDEN, name, "model.safetensors"), "rb") as f:
        data = f.read()
    length = struct.unpack("<Q", data[:8])[0]
    header, data = json.loads(data[8:8 + length]), data[8 + length:]
    header.pop("__metadata__", None)
    return config, {n: (t["shape"], data[t["data_offsets"][0]:t["data_offsets"][1]]) for n, t in header.items()}


def write_safetensors(folder, config, tensors):
    os.makedirs(folder, exist_ok=True)
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    return folder


def rows(tensor):
    shape, data = tensor
    each = len(data) // shape[0]
    return [data[i:i + each] for i in range(0, len(data), each)]


def fuse_experts(tensors, layer, config):
    """Gate and up of all experts, expert by expert, and their downs: two tensors, taken out of the others."""
    prefix, count = f"model.layers.{layer}.mlp.experts.", config["num_experts"]
    if prefix + "gate_up_proj" in tensors:  # they are
        return tensors.pop(prefix + "gate_up_proj"), tensors.pop(prefix + "down_proj")
    parts = {kind: [tensors.pop(f"{prefix}{e}.{kind}_proj.weight")[1] for e in range(count)] for kind in ("gate", "up", "down")}
    hidden, inner = config["hidden_size"], config["moe_intermediate_size"]
    return (([count, 2 * inner, hidden], b"".join(g + u for g, u in zip(parts["gate"], parts["up"]))),
            ([count, hidden, inner], b"".join(parts["down"])))


def multimodal(name, folder):
    """As published: keys in text_config, names below model.language_model, experts fused; images and drafts beside them."""
    config, tensors = read(name)
    for layer in range(config["num_hidden_layers"] if "num_experts" in config else 0):
        gate_up, down = fuse_experts(tensors, layer, config)
        tensors[f"model.layers.{layer}.mlp.experts.gate_up_proj"] = gate_up
        tensors[f"model.layers.{layer}.mlp.experts.down_proj"] = down
    tensors = {n.replace("model.", "model.language_model.", 1) if n.startswith("model.") else n: t for n, t in tensors.items()}
    tensors["model.visual.blocks.0.attn.qkv.weight"] = ([4, 2], bytes(16))
    tensors.setdefault("mtp.layers.0.self_attn.q_proj.weight", ([4, 2], bytes(16)))
    outer = {"architectures": [config["architectures"][0].replace("ForCausalLM", "ForConditionalGeneration")],
             "model_type": config["model_type"].replace("_text", ""), "text_config": config, "vision_config": {"depth": 1},
             "tie_word_embeddings": config["tie_word_embeddings"]}
    return write_safetensors(folder, outer, tensors)


# ---- GGUF ----

F32, BF16 = 0, 30


def byte_tokenizer(special):
    """A token for each byte, from 3 on; in front of them those of the reference checkpoints, after them the special ones."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    letter = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}
    names = {0: "<|bos|>", 1: "<|eos|>", 2: "<|pad|>", **{259 + i: name for i, name in enumerate(special)}}
    added = [{"id": i, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for i, name in names.items()]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {"version": "1.0", "added_tokens": added, "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
            "model": {"type": "BPE", "vocab": {letter[b]: 3 + b for b in range(256)}, "merges": []}}


def chat_model(name, folder, template="qwen3.jinja", special=("<|im_start|>", "<|im_end|>"), context=4096):
    """The checkpoint with a chat template, and a tokenizer of bytes: tokens beyond the checkpoint's own have rows of others."""
    config, tensors = read(name)
    count = 259 + len(special)
    for tensor in ("model.embed_tokens.weight", "lm_head.weight"):
        shape, data = tensors[tensor]
        each, more = len(data) // shape[0], count - shape[0]
        tensors[tensor] = ([count, shape[1]], data + data[3 * each:(3 + more) * each])
    write_safetensors(folder, {**config, "vocab_size": count, "max_position_embeddings": context}, tensors)
    with open(os.path.join(folder, "tokenizer.json"), "w") as f:
        json.dump(byte_tokenizer(special), f)
    shutil.copy(os.path.join("tests/data/chat/templates", template), os.path.join(folder, "chat_template.jinja"))
    return folder


def floats(data):
    return [struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] for i in range(0, len(data), 2)]


class Converted:
    """A checkpoint as converters write it; `reorder` False leaves v heads as they are, which is wrong but for qwen3next."""

    def __init__(self, name, reorder):
        self.config, self.tensors = read(name)
        c = self.config
        self.arch = {"qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe"}.get(c["model_type"], "qwen3next")
        self.keys, self.values = c["linear_num_key_heads"], c["linear_num_value_heads"]
        self.key_dim, self.value_dim = c["linear_key_head_dim"], c["linear_value_head_dim"]
        ratio = self.values // self.keys
        # v head h of the file is that of k head h mod keys
        self.order = [h % self.keys * ratio + h // self.keys for h in range(self.values)] if reorder else list(range(self.values))
        self.out = []
        self.convert()

    def add(self, name, shape, data, kind=BF16):
        self.out.append((name, shape, kind, data))

    def vector(self, name, values):
        self.add(name, [len(values)], array.array("f", values).tobytes(), F32)

    def take(self, name):
        return self.tensors.pop(name)

    def heads(self, parts, each):
        """Items of all v heads, `each` a head, in the file's order."""
        return [parts[h * each + i] for h in self.order for i in range(each)]

    def matrix(self, name, source):
        shape, data = self.take(source)
        self.add(name, shape, data)

    def norm(self, name, source, more=1):
        self.vector(name, [more + v for v in floats(self.take(source)[1])])

    def qkvz(self, p):
        """Rows of q, k, v of all heads, and of z: qwen3_next's lie k head by k head."""
        if p + "in_proj_qkv.weight" in self.tensors:
            return rows(self.take(p + "in_proj_qkv.weight")), rows(self.take(p + "in_proj_z.weight"))
        all_rows, k, v = rows(self.take(p + "in_proj_qkvz.weight")), self.key_dim, self.values // self.keys * self.value_dim
        groups = [all_rows[g * 2 * (k + v):(g + 1) * 2 * (k + v)] for g in range(self.keys)]
        cut = [[row for g in groups for row in g[a:b]] for a, b in ((0, k), (k, 2 * k), (2 * k, 2 * k + v), (2 * k + v, None))]
        return cut[0] + cut[1] + cut[2], cut[3]

    def delta(self, blk, p):
        hidden, before = self.config["hidden_size"], 2 * self.keys * self.key_dim
        qkv, z = self.qkvz(p)
        qkv = qkv[:before] + self.heads(qkv[before:], self.value_dim)
        self.add(blk + "attn_qkv.weight", [len(qkv), hidden], b"".join(qkv))
        self.add(blk + "attn_gate.weight", [len(z), hidden], b"".join(self.heads(z, self.value_dim)))
        if self.arch == "qwen3next":
            self.matrix(blk + "ssm_ba.weight", p + "in_proj_ba.weight")
        else:
            for letter, name in (("a", "alpha"), ("b", "beta")):
                part = self.heads(rows(self.take(p + f"in_proj_{letter}.weight")), 1)
                if self.arch == "qwen35":
                    self.add(blk + f"ssm_{name}.weight", [self.values, hidden], b"".join(part))
                else:  # some files have them so
                    self.add(blk + f"ssm_{name}.weight", [self.values, hidden], array.array("f", floats(b"".join(part))).tobytes(), F32)
        conv = rows(self.take(p + "conv1d.weight"))
        conv = conv[:before] + self.heads(conv[before:], self.value_dim)
        self.add(blk + "ssm_conv1d.weight", [len(conv), 4], array.array("f", floats(b"".join(conv))).tobytes(), F32)
        self.vector(blk + "ssm_dt.bias", self.heads(floats(self.take(p + "dt_bias")[1]), 1))
        self.vector(blk + "ssm_a", [-math.exp(a) for a in self.heads(floats(self.take(p + "A_log")[1]), 1)])
        self.norm(blk + "ssm_norm.weight", p + "norm.weight", 0)
        out, each = rows(self.take(p + "out_proj.weight")), 2 * self.value_dim
        self.add(blk + "ssm_out.weight", [hidden, self.values * self.value_dim],
                 b"".join(row[h * each:(h + 1) * each] for row in out for h in self.order))

    def layer(self, n):
        blk, p = f"blk.{n}.", f"model.layers.{n}."
        self.norm(blk + "attn_norm.weight", p + "input_layernorm.weight")
        self.norm(blk + "post_attention_norm.weight", p + "post_attention_layernorm.weight")
        if self.config["layer_types"][n] == "linear_attention":
            self.delta(blk, p + "linear_attn.")
        else:
            for name, source in (("q", "q"), ("k", "k"), ("v", "v"), ("output", "o")):
                self.matrix(blk + f"attn_{name}.weight", p + f"self_attn.{source}_proj.weight")
            for letter in "qk":
                self.norm(blk + f"attn_{letter}_norm.weight", p + f"self_attn.{letter}_norm.weight")
        kinds = ("gate", "up", "down")
        if "num_experts" not in self.config:
            for kind in kinds:
                self.matrix(blk + f"ffn_{kind}.weight", p + f"mlp.{kind}_proj.weight")
            return
        gate_up, down = fuse_experts(self.tensors, n, self.config)
        self.add(blk + "ffn_gate_up_exps.weight", *gate_up)
        self.add(blk + "ffn_down_exps.weight", *down)
        for kind in kinds:
            self.matrix(blk + f"ffn_{kind}_shexp.weight", p + f"mlp.shared_expert.{kind}_proj.weight")
        router = self.take(p + "mlp.gate.weight")
        self.add(blk + "ffn_gate_inp.weight", router[0], array.array("f", floats(router[1])).tobytes(), F32)
        self.vector(blk + "ffn_gate_inp_shexp.weight", floats(self.take(p + "mlp.shared_expert_gate.weight")[1]))

    def drafts(self, n):
        """The layer that makes drafts, as the last one."""
        for name in [name for name in self.tensors if name.startswith("mtp.layers.0.")]:
            self.tensors[name.replace("mtp.layers.0.", f"model.layers.{n}.")] = self.take(name)
        self.config["layer_types"] = [*self.config["layer_types"], "full_attention"]
        self.layer(n)
        self.matrix(f"blk.{n}.nextn.eh_proj.weight", "mtp.fc.weight")
        for name, source in (("enorm", "pre_fc_norm_embedding"), ("hnorm", "pre_fc_norm_hidden"), ("shared_head_norm", "norm")):
            self.norm(f"blk.{n}.nextn.{name}.weight", f"mtp.{source}.weight")

    def convert(self):
        self.matrix("token_embd.weight", "model.embed_tokens.weight")
        for n in range(self.config["num_hidden_layers"]):
            self.layer(n)
        if self.config.get("mtp_num_hidden_layers"):
            self.drafts(self.config["num_hidden_layers"])
        self.norm("output_norm.weight", "model.norm.weight")
        self.matrix("output.weight", "lm_head.weight")
        assert not self.tensors, list(self.tensors)

    def numbers(self):
        c = self.config
        drafts = c.get("mtp_num_hidden_layers", 0)
        found = {"block_count": c["num_hidden_layers"] + drafts, **({"nextn_predict_layers": drafts} if drafts else {}), "context_length": c["max_position_embeddings"],
                 "embedding_length": c["hidden_size"], "attention.head_count": c["num_attention_heads"],
                 "attention.head_count_kv": c["num_key_value_heads"], "attention.key_length": c["head_dim"],
                 "attention.value_length": c["head_dim"], "attention.layer_norm_rms_epsilon": c["rms_norm_eps"],
                 "rope.dimension_count": int(c["head_dim"] * c["partial_rotary_factor"]), "rope.freq_base": 1e7,
                 "ssm.conv_kernel": 4, "ssm.state_size": self.key_dim, "ssm.group_count": self.keys,
                 "ssm.time_step_rank": self.values, "ssm.inner_size": self.values * self.value_dim,
                 "full_attention_interval": 4}
        if "num_experts" in c:
            found.update({"expert_count": c["num_experts"], "expert_used_count": c["num_experts_per_tok"],
                          "expert_feed_forward_length": c["moe_intermediate_size"],
                          "expert_shared_feed_forward_length": c["shared_expert_intermediate_size"]})
        else:
            found["feed_forward_length"] = c["intermediate_size"]
        return found


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def value_of(value):
    if isinstance(value, list):  # flags, or whole numbers
        flags = isinstance(value[0], bool)
        return struct.pack("<IIQ", 9, 7 if flags else 5, len(value)) + struct.pack(f"<{len(value)}{'?' if flags else 'i'}", *value)
    return struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value)


def write_gguf(path, name, reorder=None, drafts=False, change=None):
    """`change`: keys after the architecture's name to other values, or to None, which leaves them out."""
    made = Converted(name, name != "qwen3next" if reorder is None else reorder)
    keys = {**made.numbers(), "rope.dimension_sections": [3, 3, 2, 0]}
    if drafts:  # counted among the layers
        keys.update({"block_count": keys["block_count"] + 1, "nextn_predict_layers": 1})
        made.add(f"blk.{keys['block_count'] - 1}.nextn.eh_proj.weight", [2, 4], bytes(16))
    keys = {k: v for k, v in {**keys, **(change or {})}.items() if v is not None}
    data, listed = b"", b""
    for tensor, shape, kind, values in made.out:
        data += b"\0" * (-len(data) % 32)
        listed += text(tensor) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, len(data))
        data += values
    head = b"GGUF" + struct.pack("<IQQ", 3, len(made.out), len(keys) + 1)
    head += text("general.architecture") + struct.pack("<I", 8) + text(made.arch)
    head += b"".join(text(f"{made.arch}.{k}") + value_of(v) for k, v in keys.items()) + listed
    with open(path, "wb") as f:
        f.write(head + b"\0" * (-len(head) % 32) + data + b"\0" * (-len(data) % 32))
    return path
