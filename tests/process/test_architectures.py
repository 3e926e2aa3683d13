#!/usr/bin/python3
"""Phi-3, OPT and Granite through helmd: both tables of a longrope by the planned context, the emulated GPU or its refusal by
name, GGUF files. References: tests/data/golden (tests/golden/test_golden_cpu.c walks the long cases with every kernel)."""
import json
import os
import struct
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import processor  # noqa: E402
from gguf_edit import Gguf, string  # noqa: E402
from test_helmd_sessions import ask, save  # noqa: E402
from helmd_harness import BIN, DATA, DEVICE, PROFILE, Client, check, plan_json, run_tests, running, same  # noqa: E402

GOLDEN = os.path.join(DATA, "golden")
SIZES = ["--parallel", 1, "--step-tokens", 64, "--kv-dtype", "f32", "--threads", 1]
CPU = SIZES + ["--device", "cpu"]
LOAD = ["--ctx", 512]
SHORT = ["--ctx", 128]  # phi3's original_max_position_embeddings
BF16, F32 = 30, 0


def golden(name, cases="cases"):
    with open(os.path.join(GOLDEN, name, "golden.json"), encoding="utf-8") as file:
        return json.load(file)[cases]


def decode(model, prompt, count, *options, plan=None):
    with running(*options, real=True, model=model, plan=plan) as d:
        c = Client(d.endpoint)
        s = c.generate(prompt, count, logprobs=20, ignore_eos=True)
        c.run(s)
        same(len(s.tokens), count, f"tokens: {s.error or s.done}")
        return [(x.token, {t.token: t.logprob for t in x.top}) for x in s.first], d.log()


def worst(got, steps):
    """The largest error of the ten highest logprobs, as long as the tokens are the reference's."""
    off = []
    for (token, top), step in zip(got, steps):
        off += [abs(top[t] - p) for t, p in step["top"][:10] if t in top]
        if token != step["token"]:
            break
    return max(off)


def agrees(model, case, most, *options, plan=None):
    got, log = decode(model, case["prompt"], len(case["steps"]), *options, plan=plan)
    far = worst(got, case["steps"])
    check(far <= most, f"{model} {options}: logprobs differ by {far}, at most {most}")
    for (token, _), step in zip(got, case["steps"]):
        if token != step["token"]:
            check(step["gap"] <= 2.5 * most, f"{model} {options}: token {token}, not {step['token']} with a gap of {step['gap']}")
            break
    return log


def test_a_longrope_has_the_table_of_the_planned_context():
    model = os.path.join(GOLDEN, "phi3")
    short, long = golden("phi3", "short")[1], golden("phi3")[5]
    agrees(model, short, 0.02, *CPU, "--activations", "exact", *SHORT)
    agrees(model, long, 0.4, *CPU, "--ctx", 129)
    got, _ = decode(model, short["prompt"], 2, *CPU, "--ctx", 129)
    check(worst(got, short["steps"]) > 0.4, "one position more is the other table's")


def test_a_session_of_the_other_table_is_another_models():
    prompt, saved = golden("phi3")[6]["prompt"][:96], {}
    other = [5] + prompt[1:]  # so that none of its pages is there
    for context in 128, 129, 160:
        with running(*CPU, "--ctx", context, real=True, model=os.path.join(GOLDEN, "phi3")) as d:
            c = Client(d.endpoint)
            c.run(c.generate(prompt, 2, ignore_eos=True))
            saved[context] = save(c, prompt)
            for of, session in saved.items():
                wanted = "session_opened" if (of > 128) == (context > 128) else "error"
                answer = ask(c, "session_restore", tokens=other, shape=session[0].shape)
                same(answer.WhichOneof("body"), wanted, f"saved with a context of {of}, now {context}: {answer}")
                if wanted == "session_opened":
                    ask(c, "session_end", id=answer.session_opened.id)


def test_phi3_on_the_emulated_gpu():
    case = golden("phi3")[6]
    for homes in "gg", "cs":
        agrees(os.path.join(GOLDEN, "phi3"), case, 0.4, *SIZES, "--device", DEVICE,
               plan=plan_json(2, homes, "g", "g", kv_dtype="f32", ring_bytes=1 << 20, slots=1))


# ---- what only the CPU computes ----

def test_a_model_that_gpus_cannot_compute_is_planned_on_the_cpu():
    for name, why in ("opt", "'embedding' with learned positions"), ("granite", "'o' with a scaled output"):
        model, case = os.path.join(GOLDEN, name), golden(name)[6]
        log = agrees(model, case, 0.4, *SIZES, *LOAD)
        check(why in log and "everything is planned on the CPU" in log, f"{name}: {log}")
        with running(*SIZES, "--device", DEVICE, real=True, model=model, wait=False) as d:
            check(processor.ended(d.process, 60) != 0 and why in d.log() and "by GPU workers" in d.log(), f"{name}: {d.log()}")
        common = [os.path.join(BIN, "helm-plan"), "--model", model, "--profile", PROFILE]
        run = processor.run(common + ["--json"], capture_output=True, text=True, timeout=60)
        same(run.returncode, 0, run.stderr)
        homes = {s["home"] for stages in json.loads(run.stdout)["stages"].values() for s in stages}
        same(homes, {"cpu"}, f"{name}: the profile's machine has a GPU")
        run = processor.run(common + ["--strategy", "stream"], capture_output=True, text=True, timeout=60)
        check(run.returncode != 0 and why in run.stderr, f"{name}: {run.returncode}, {run.stderr}")


# ---- GGUF ----

def number(value):
    if isinstance(value, str):
        return string(value)
    return struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value)


def read_safetensors(folder):
    with open(os.path.join(folder, "model.safetensors"), "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    header.pop("__metadata__", None)
    return {name: (t["shape"], data[t["data_offsets"][0]:t["data_offsets"][1]]) for name, t in header.items()}


def interleave(data, heads):
    """Rows i and i + half of each head one after the other, as files of interleaved rotation have them."""
    each = len(data) // (heads * 32)
    rows = [data[i * each:(i + 1) * each] for i in range(heads * 32)]
    return b"".join(rows[h * 32 + i + half * 16] for h in range(heads) for i in range(16) for half in (0, 1))


NAMES = {"embed_tokens.": "token_embd.", "embed_positions.": "position_embd.", "lm_head.": "output.",
         "self_attn.qkv_proj.": "attn_qkv.", "self_attn.q_proj.": "attn_q.", "self_attn.k_proj.": "attn_k.",
         "self_attn.v_proj.": "attn_v.", "self_attn.o_proj.": "attn_output.", "self_attn.out_proj.": "attn_output.",
         "input_layernorm.": "attn_norm.", "post_attention_layernorm.": "ffn_norm.", "self_attn_layer_norm.": "attn_norm.",
         "mlp.gate_up_proj.": "ffn_up.", "mlp.gate_proj.": "ffn_gate.", "mlp.up_proj.": "ffn_up.", "mlp.down_proj.": "ffn_down.",
         "fc1.": "ffn_up.", "fc2.": "ffn_down."}


def gguf_name(name):
    name = name.replace("model.decoder.", "model.").replace("model.layers.", "blk.").replace("model.", "")
    for norm in "norm.", "final_layer_norm.":
        if name.startswith(norm):
            return "output_norm." + name[len(norm):]
    name = name.replace("final_layer_norm.", "ffn_norm.")
    for old, new in NAMES.items():
        name = name.replace(old, new)
    return name


def write_gguf(name, path, leave_out=(), **more):
    folder = os.path.join(GOLDEN, name)
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        c = json.load(file)
    heads, kv = c["num_attention_heads"], c.get("num_key_value_heads", c["num_attention_heads"])
    keys = {"block_count": c["num_hidden_layers"], "embedding_length": c["hidden_size"],
            "feed_forward_length": c.get("intermediate_size", c.get("ffn_dim")), "attention.head_count": heads,
            "attention.head_count_kv": kv, "context_length": c["max_position_embeddings"],
            "attention.layer_norm_epsilon" if name == "opt" else "attention.layer_norm_rms_epsilon": 1e-5}
    tensors = []
    for old, (shape, data) in read_safetensors(folder).items():
        if name == "granite" and ("q_proj" in old or "k_proj" in old):
            data = interleave(data, heads if "q_proj" in old else kv)
        tensors.append([gguf_name(old), shape[::-1], BF16, data])
    if name == "phi3":
        scaling = c["rope_scaling"]
        keys.update({"rope.scaling.original_context_length": 128, "rope.scaling.attn_factor": 1.309307,
                     "attention.sliding_window": c["sliding_window"], "rope.dimension_count": 32, "rope.freq_base": 10000.0})
        for table in "long", "short":
            factors = scaling[table + "_factor"]
            tensors.append([f"rope_factors_{table}.weight", [len(factors)], F32, struct.pack(f"<{len(factors)}f", *factors)])
    if name == "granite":
        keys.update({"embedding_scale": c["embedding_multiplier"], "residual_scale": c["residual_multiplier"],
                     "attention.scale": c["attention_multiplier"], "logit_scale": c["logits_scaling"]})
    keys.update(more)
    every = {f"{name}.{k}": number(v) for k, v in keys.items() if k not in leave_out}
    empty = Gguf(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    with open(path, "wb") as file:
        file.write(empty.bytes(dict({"general.architecture": string(name)}, **every),
                               [t for t in tensors if t[0] not in leave_out]))


def test_gguf_files_compute_the_same():
    with tempfile.TemporaryDirectory() as folder:
        for name in "phi3", "opt", "granite":
            path = os.path.join(folder, name + ".gguf")
            write_gguf(name, path)
            agrees(path, golden(name)[6], 0.4, *CPU, *LOAD)
        agrees(os.path.join(folder, "phi3.gguf"), golden("phi3", "short")[1], 0.4, *CPU, *SHORT)


def test_gguf_files_that_lack_a_part_are_refused_by_name():
    with tempfile.TemporaryDirectory() as folder:
        for name, part in (("phi3", "rope_factors_long.weight"), ("phi3", "rope.scaling.original_context_length"),
                           ("phi3", "blk.1.attn_qkv.weight"), ("opt", "attention.layer_norm_epsilon"),
                           ("opt", "position_embd.weight"), ("granite", "blk.0.ffn_gate.weight")):
            path = os.path.join(folder, "file.gguf")
            write_gguf(name, path, [part])
            run = processor.run([os.path.join(BIN, "helm-inspect"), path], capture_output=True, text=True, timeout=60)
            said = "blk.1.attn_q.weight" if "qkv" in part else part
            check(run.returncode == 1 and f"{said}'" in run.stdout, f"{name} without {part}: {run.returncode}, {run.stdout[-300:]}")


def test_an_attention_factor_is_not_ignored():
    with tempfile.TemporaryDirectory() as folder:
        path, tables = os.path.join(folder, "file.gguf"), ["rope_factors_long.weight", "rope_factors_short.weight"]
        write_gguf("phi3", path, tables)
        run = processor.run([os.path.join(BIN, "helm-inspect"), path], capture_output=True, text=True, timeout=60)
        check(run.returncode == 1 and "'rope.scaling.attn_factor' is 1.3" in run.stdout, run.stdout[-300:])
        write_gguf("phi3", path, tables, **{"rope.scaling.type": "linear", "rope.scaling.factor": 2.0})
        run = processor.run([os.path.join(BIN, "helm-inspect"), path], capture_output=True, text=True, timeout=60)
        check(run.returncode == 1 and "only a longrope has one" in run.stdout, run.stdout[-300:])


def test_a_file_with_fused_matrices_is_not_written():
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.gguf")
        run = processor.run([os.path.join(BIN, "helm-quantize"), "--model", os.path.join(GOLDEN, "phi3"), "--to", "Q8_0", "--out",
                              out], capture_output=True, text=True, timeout=60)
        check(run.returncode == 1 and "Phi3ForCausalLM: GGUF files hold 3 matrices in 'attn_qkv.weight'" in run.stderr, run.stderr)
        check(not os.path.exists(out), "nothing is left behind")


if __name__ == "__main__":
    run_tests(dict(globals()))
