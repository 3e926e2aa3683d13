#!/usr/bin/python3
"""helm-quantize and helmd --weights with mixtures: what is written is read, and computes what the same weights quantised at
load compute; its distance from bf16; tokenizer and rows of q and k as they were; what is refused, and that a failure leaves
nothing behind."""
import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import processor  # noqa: E402
from helmd_harness import BIN, DEMO, PROFILE, Client, check, plan_json, run_tests, running, same, skip, SLOW  # noqa: E402

MIXTURES = ["Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q5_0", "Q5_1", "Q4_K_M", "Q4_K_S", "Q4_0", "Q4_1", "IQ4_XS", "IQ4_NL", "MXFP4",
            "Q3_K_M", "Q3_K_S", "Q2_K", "BF16", "F16"]
# Sanitized, one of each family: every format's code is tests/unit/common/formats' and tests/kernels'.
WRITTEN = MIXTURES if SLOW == 1 or os.environ.get("HELM_TEST_FULL") else ["Q5_1", "Q4_K_M", "IQ4_XS", "MXFP4", "Q3_K_M", "F16"]
# Relative RMS error of all that is in blocks, at most: a tenth above what the demo model has.
MOST = {"Q8_0": 0.0065, "Q6_K": 0.019, "Q5_K_M": 0.036, "Q4_K_M": 0.061, "Q4_K_S": 0.077, "Q4_0": 0.085, "IQ4_XS": 0.079,
        "MXFP4": 0.115, "Q3_K_M": 0.13, "Q2_K": 0.24}
# How far the demo model's next-token distribution may be from that of bf16: mean KL divergence over its 20 highest.
FAR = {"Q8_0": 0.0015, "Q6_K": 0.02, "Q4_K_M": 0.2}
PROMPT = [(7 * i * i + 3) % 300 for i in range(40)]
COUNT = 16
SIZES = ["--device", "cpu", "--ctx", 256, "--parallel", 2, "--step-tokens", 64, "--kv-dtype", "f32", "--threads", 2]
STORY = "Once upon a time, there was a little girl named Lily. She liked to play in the park with her"
TEXT = "Once upon a time, there was a little girl. She said: \"I'll find 123 stones!\"\n\n  And caf\u00e9 \u4f60\u597d.<|im_end|>"


def quantize(*args):
    run = processor.run([os.path.join(BIN, "helm-quantize"), *map(str, args)], capture_output=True, text=True, timeout=300)
    return run.returncode, run.stdout, run.stderr


def write(model, to, out, *more):
    code, said, err = quantize("--model", model, "--to", to, "--out", out, *more)
    same(code, 0, f"{model} to {to}: {err}")
    return said


def refused(code, words, *args):
    got, said, err = quantize(*args)
    check(got == code and all(w in err for w in words), f"{args}: {got}, {err}, wanted {code}, {words}")


def story():
    """A text that the demo model was made for: on tokens by chance its logprobs mean nothing."""
    run = subprocess.run([os.path.join(BIN, "helm-cli"), "tokenize", "--model", DEMO, "--json", STORY], capture_output=True,
                         text=True, check=True)
    return json.loads(run.stdout)


def decode(model, *options, plan=None, prompt=PROMPT):
    with running(*(SIZES if not plan else ["--device", "emulated"]), *options, real=True, model=model, plan=plan) as d:
        c = Client(d.endpoint)
        s = c.generate(prompt, COUNT, logprobs=20, ignore_eos=True)
        c.run(s)
        same(len(s.tokens), COUNT, f"tokens: {s.error or s.done}")
        return [(x.token, {t.token: t.logprob for t in x.top}) for x in s.first], json.loads(c.ask("plan").plan.json)


def distance(got, expected):
    """Mean and worst of the ten highest logprobs as long as the tokens are the same."""
    off = []
    for (mine, top), (token, wanted) in zip(got, expected):
        off += [abs(top[t] - wanted[t]) for t in sorted(wanted, key=wanted.get, reverse=True)[:10] if t in top]
        if mine != token:
            break
    return sum(off) / len(off), max(off), len(off)


def divergence(got, expected):
    """Mean KL divergence, as long as the tokens are the same; what got does not list counts as its lowest."""
    sums = []
    for (mine, top), (token, wanted) in zip(got, expected):
        sums.append(sum(math.exp(p) * (p - top.get(t, min(top.values()))) for t, p in wanted.items()))
        if mine != token:
            break
    return sum(sums) / len(sums), len(sums)


def make_model(folder, config):
    with open(os.path.join(folder, "made.json"), "w") as f:
        json.dump(config, f)
    model = os.path.join(folder, "made")
    subprocess.run([os.path.join(BIN, "helm-mkmodel"), "--config", f.name, "--out", model, "--seed", "5"], check=True,
                   stdout=subprocess.DEVNULL)
    return model


def tensors(path):
    run = subprocess.run([os.path.join(BIN, "helm-inspect"), "--json", "--tensors", path], capture_output=True, text=True)
    same(run.returncode, 0, f"helm-inspect {path}: {run.stderr}")
    return json.loads(run.stdout)


def test_every_mixture_is_written_and_read():
    with tempfile.TemporaryDirectory() as folder:
        for mixture in WRITTEN:
            out = os.path.join(folder, mixture + ".gguf")
            said = write(DEMO, mixture, out)
            tensors(out)
            last = said.splitlines()[-1]
            error = re.search(r"error ([0-9.]+)", last)
            print(f"     {mixture}: {last[len(out) + 2:]}", flush=True)
            check((error is None) == (mixture in ("BF16", "F16")), f"{mixture}: {last}")
            if mixture in MOST:
                check(float(error[1]) <= MOST[mixture], f"{mixture}: error {error[1]}, at most {MOST[mixture]}")
        same(sorted(os.listdir(folder)), sorted(m + ".gguf" for m in WRITTEN), "files left")


def test_a_file_computes_what_quantising_at_load_computes():
    text = story()
    stored, plan = decode(DEMO, prompt=text)
    check("weights" not in plan, "nothing is quantised that nobody asked for")
    with tempfile.TemporaryDirectory() as folder:
        for mixture, most in FAR.items():
            out = os.path.join(folder, mixture + ".gguf")
            write(DEMO, mixture, out)
            file, plan = decode(out, prompt=text)
            check("weights" not in plan, "a file's blocks are as stored")
            loaded, plan = decode(DEMO, "--weights", mixture.lower(), prompt=text)
            same(plan["weights"], mixture.lower(), "what the plan says")
            same(loaded, file, f"{mixture}: at load and from a file")
            mean, count = divergence(file, stored)
            print(f"     {mixture}: mean divergence {mean:.5f} from bf16, {count} tokens", flush=True)
            check(0 < mean <= most and count > 3, f"{mixture}: {mean} over {count}")
        for homes, end in ("g" * 16, "g"), ("c" * 8 + "s" * 8, "c"):
            device, plan = decode(DEMO, "--weights", "q4_k_m", prompt=text,
                                  plan=plan_json(8, homes, end, end, kv_dtype="f32", ring_bytes=1 << 20))
            mean, worst, count = distance(device, file)
            print(f"     {homes}: mean {mean:.4f}, worst {worst:.4f} from the file on the CPU, {count} logprobs", flush=True)
            check(mean < 0.05 and worst < 0.4 and count > 20, f"{homes}: {mean} {worst} {count}")
            again, other = decode(DEMO, plan=plan, prompt=text)  # the plan says it all
            same((again, other["weights"]), (device, "q4_k_m"), "a saved plan")


def make_imatrix(path, matrices, without=""):
    """A file of the older kind: a column's importance by its number."""
    entries = []
    for name, cols in matrices:
        if name.startswith("blk.") and name != without:
            entries.append(struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", 9, cols) +
                           struct.pack("<%df" % cols, *[1 + i * 7 % 5 for i in range(cols)]))
    with open(path, "wb") as f:
        f.write(struct.pack("<i", len(entries)) + b"".join(entries))


def test_iq2_and_iq3_are_written():
    """Mixtures of IQ2 and IQ3, read back by helmd; without importance IQ3 alone, and never laid down at load."""
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(folder, dict(QWEN2, hidden_size=256, intermediate_size=512, num_hidden_layers=1, num_attention_heads=4,
                                        num_key_value_heads=2))
        plain, imatrix, lacks, other = (os.path.join(folder, n) for n in ("plain.gguf", "own.dat", "lacks.dat", "x.gguf"))
        write(model, "Q8_0", plain)
        matrices = [(t["name"], t["shape"][1]) for t in tensors(plain)["tensors"] if len(t["shape"]) == 2]
        make_imatrix(imatrix, matrices)
        make_imatrix(lacks, matrices, without="blk.0.ffn_up.weight")
        for mixture, base, most in (("IQ3_S", "iq3_s", 0.16), ("IQ3_XXS", "iq3_xxs", 0.26), ("IQ2_M", "iq2_s", 0.32), ("IQ2_XS", "iq2_xs", 0.42)):
            out = os.path.join(folder, mixture + ".gguf")
            last = write(model, mixture, out, "--imatrix", imatrix).splitlines()[-1]
            print(f"     {last}", flush=True)
            check(0 < float(re.search(r"error ([0-9.]+)", last)[1]) < most, f"{mixture}: {last}")
            check(base in {t["dtype"] for t in tensors(out)["tensors"]}, f"{mixture}: no {base}")
            if mixture in ("IQ3_XXS", "IQ2_XS"):
                decode(out)
        write(model, "IQ3_S", other)
        os.remove(other)
        refused(1, ["blk.0", "iq2_xs", "--imatrix is missing"], "--model", model, "--to", "IQ2_XS", "--out", other)
        refused(1, ["blk.0.ffn_up.weight", "the imatrix has none of it"], "--model", model, "--to", "IQ2_XS", "--out", other,
                "--imatrix", lacks)
        check(not os.path.exists(other), "no file is left")


def test_tokens_and_template_are_the_folders():
    cli = os.path.join(BIN, "helm-cli")
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "demo.gguf")
        said = write(DEMO, "Q8_0", out)
        check("tokenizer: " in said, said)
        ids = [subprocess.run([cli, "tokenize", "--model", m, TEXT], capture_output=True, text=True, check=True).stdout
               for m in (DEMO, out)]
        same(ids[1], ids[0], "ids")
        with open(os.path.join(DEMO, "tokenizer_config.json")) as f:
            template = json.load(f)["chat_template"]
        check(template.encode() in open(out, "rb").read(), "the chat template is in the file")


TOKENIZERS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data", "tokenizers")


def test_other_tokenizers():
    """Byte-level BPE and SentencePiece's; what GGUF has no kind for is refused, not written as another."""
    with tempfile.TemporaryDirectory() as folder:
        model, out = make_model(folder, dict(QWEN2, vocab_size=700)), os.path.join(folder, "out.gguf")
        for file, kind in ("bytelevel", "qwen2"), ("sentencepiece", "llama"):
            shutil.copy(os.path.join(TOKENIZERS, file + ".json"), os.path.join(model, "tokenizer.json"))
            said = write(model, "Q8_0", out)
            check(f"tokenizer: {kind}" in said, said)
            ids = [subprocess.run([os.path.join(BIN, "helm-cli"), "tokenize", "--model", m, TEXT + " the hello world"],
                                  capture_output=True, text=True, check=True).stdout for m in (model, out)]
            same(ids[1], ids[0], f"{file}: ids")
        shutil.copy(os.path.join(TOKENIZERS, "words.json"), os.path.join(model, "tokenizer.json"))
        refused(1, ["no kind of tokenizer in GGUF files"], "--model", model, "--to", "Q8_0", "--out", out + "2")
        os.remove(os.path.join(model, "tokenizer.json"))
        code, said, err = quantize("--model", model, "--to", "Q8_0", "--out", out)
        check(code == 0 and "the file has no tokenizer" in err, (code, said, err))
        decode(out)  # ids are all that helmd needs


def test_helm_plan_prices_mixtures():
    bytes_of = {}
    for weights in "stored", "q8_0", "q4_k_m", "q2_k":
        run = subprocess.run([os.path.join(BIN, "helm-plan"), "--model", DEMO, "--profile", PROFILE, "--strategy", "all-cpu", "--weights",
                              weights, "--json"], capture_output=True, text=True, check=True)
        plan = json.loads(run.stdout)
        same(plan.get("weights"), None if weights == "stored" else weights, "what the plan says")
        bytes_of[weights] = next(line["bytes"] for line in plan["host"]["lines"] if line["what"] == "weights")
    rising = [bytes_of[w] for w in ("q2_k", "q4_k_m", "q8_0", "stored")]
    same(rising, sorted(set(rising)), f"bytes {bytes_of}")
    run = subprocess.run([os.path.join(BIN, "helm-plan"), "--model", DEMO, "--profile", PROFILE, "--weights", "q4"],
                         capture_output=True, text=True)
    check(run.returncode == 2 and "stored, q8_0" in run.stderr and "q4_k_m" in run.stderr, (run.returncode, run.stderr))


LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
         "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 300,
         "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "attention_bias": True, "mlp_bias": True,
         "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                          "original_max_position_embeddings": 64}, "dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": [2, 5]}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 320, "intermediate_size": 640,
         "num_hidden_layers": 2, "num_attention_heads": 5, "num_key_value_heads": 1, "vocab_size": 300,
         "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "dtype": "bfloat16", "tie_word_embeddings": True}

MIXTRAL = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 256, "intermediate_size": 256,
           "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 300,
           "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "dtype": "bfloat16",
           "num_local_experts": 8, "num_experts_per_tok": 2}
QWEN3_MOE = dict({k: v for k, v in MIXTRAL.items() if k != "num_local_experts"}, architectures=["Qwen3MoeForCausalLM"],
                 model_type="qwen3_moe", num_experts=6, num_experts_per_tok=2, moe_intermediate_size=64, norm_topk_prob=True)
QWEN2_MOE = dict(QWEN3_MOE, architectures=["Qwen2MoeForCausalLM"], model_type="qwen2_moe", norm_topk_prob=False, num_key_value_heads=4,
                 shared_expert_intermediate_size=256)
DOTS1 = dict(QWEN3_MOE, architectures=["Dots1ForCausalLM"], model_type="dots1", n_routed_experts=6, n_shared_experts=4,
             first_k_dense_replace=1, routed_scaling_factor=2.5, n_group=3, topk_group=2, sliding_window=None)
GPT_OSS = dict(MIXTRAL, architectures=["GptOssForCausalLM"], model_type="gpt_oss", sliding_window=8,
               quantization_config={"quant_method": "mxfp4"},
               rope_scaling={"rope_type": "yarn", "factor": 4.0, "truncate": False, "original_max_position_embeddings": 128})


def test_architectures_keep_their_meaning():
    """As BF16 a file computes what its folder does: names, biases, interleaved rows of llama, RoPE's factors. From that file
    the same blocks are made as from the folder."""
    for config in (LLAMA, QWEN2, MIXTRAL, QWEN3_MOE, QWEN2_MOE, DOTS1, GPT_OSS,
                   dict(LLAMA, architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=24, rope_scaling=None)):
        with tempfile.TemporaryDirectory() as folder:
            model, out = make_model(folder, config), os.path.join(folder, "wide.gguf")
            write(model, "BF16", out)
            mean, worst, count = distance(decode(out)[0], decode(model)[0])
            print(f"     {config['model_type']}: mean {mean:.2g}, worst {worst:.2g}, {count} logprobs", flush=True)
            check(worst < 1e-3 and count == 10 * COUNT, f"{config['model_type']}: {mean} {worst} {count}")
            made = [os.path.join(folder, n + ".gguf") for n in ("from-folder", "from-file")]
            for source, to in zip((model, out), made):
                write(source, "Q4_K_M", to)
            if config is QWEN2:  # rows of 320, tied: fallback formats
                same(decode(model, "--weights", "q4_k_m")[0], decode(made[0])[0], "at load and from a file")
            if config is QWEN2_MOE:  # the shared expert's blocks in VRAM, others in both memories, streamed for the prompt
                plan = plan_json(2, "gmgm", "g", "g", prefill="gsgs", prefill_from=17, ring_bytes=4 << 20,
                                 mixed={"slots": 2, "direct_permille": 300, "moves": 1})
                there = distance(decode(made[1], "--exact", "--vram", "64M", plan=plan)[0], decode(made[1], "--exact")[0])
                check(there[0] < 0.02 and there[1] < 0.2 and there[2] >= 5 * COUNT, f"on both processors: {there}")
            data = sum(t["bytes"] for t in tensors(made[0])["tensors"])
            same(*[open(m, "rb").read()[-data:] for m in made], f"{config['model_type']}: blocks from the folder and from its file")


def old_imatrix(path, cols, bad=False):
    with open(path, "wb") as f:
        names = [f"blk.{i}.ffn_up.weight" for i in range(8)]
        f.write(struct.pack("<i", len(names)))
        for name in names:
            values = [float("nan") if bad else 1 + 99 * (i % 16 == 0) for i in range(cols)]
            f.write(struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", 3, cols) + struct.pack(f"<{cols}f", *values))


def test_importance_is_read_and_used():
    with tempfile.TemporaryDirectory() as folder:
        path, out, without = [os.path.join(folder, n) for n in ("imatrix.dat", "with.gguf", "without.gguf")]
        old_imatrix(path, 256)
        said = write(DEMO, "Q4_0", out, "--imatrix", path)
        plain = write(DEMO, "Q4_0", without)
        check("importance of 8 of 57 matrices" in said and said.count("by importance") == 8, said)
        errors = [re.search(r"blk.3.ffn_up.weight .* error ([0-9.]+)", s)[1] for s in (said, plain)]
        check(float(errors[0]) > float(errors[1]), f"unweighted, importance costs: {errors}")
        check("ffn_down.weight                     256 x 768  q4_1" in said, "importance gives the first eighth of down Q4_1")
        before = open(out, "rb").read()
        for make, words in ((lambda: old_imatrix(path, 128), ["has 256 columns, the imatrix 128"]),
                            (lambda: old_imatrix(path, 256, True), ["importance nan"]),
                            (lambda: open(path, "wb").write(b"GGUF\3\0\0\0"), [path]),
                            (lambda: shutil.copy(without, path), ["of type 'model', not imatrix"])):
            make()
            refused(1, words, "--model", DEMO, "--to", "Q4_0", "--out", out, "--imatrix", path)
        check(open(out, "rb").read() == before, "a failure leaves the file that was there")


def poison(model):
    """A NaN into the last of the model's weights."""
    path = os.path.join(model, "model.safetensors")
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(size))
    t = header["model.layers.1.mlp.down_proj.weight"]
    with open(path, "r+b") as f:
        f.seek(8 + size + t["data_offsets"][0] + 2 * (512 * 100 + 3))
        f.write(b"\xc0\x7f")


def test_what_is_wrong_is_named_and_leaves_nothing():
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.gguf")
        refused(2, ["--model, --to and --out"], "--model", DEMO, "--to", "Q4_0")
        refused(2, ["--to q4", "q4_k_m", "bf16"], "--model", DEMO, "--to", "q4", "--out", out)
        refused(1, ["/nowhere"], "--model", "/nowhere", "--to", "Q4_0", "--out", out)
        refused(1, ["there is no folder"], "--model", DEMO, "--to", "Q4_0", "--out", os.path.join(folder, "none", "out.gguf"))
        refused(2, ["and no file"], "--model", DEMO, "--to", "Q4_0", "--out", folder)
        write(DEMO, "Q8_0", out)
        refused(2, ["is what is read"], "--model", out, "--to", "BF16", "--out", out)
        refused(1, ["token_embd.weight is q8_0 already"], "--model", out, "--to", "Q4_0", "--out", out + "2")
        write(DEMO, "Q4_0", out)  # replaces what was there
        model = make_model(folder, dict(LLAMA, rope_scaling=None))
        poison(model)
        refused(1, ["blk.1.ffn_down.weight", "has nan at 3"], "--model", model, "--to", "Q4_0", "--out", out + "3")
        refused(1, ["blk.1.ffn_down.weight", "not finite, or too large for f16"], "--model", model, "--to", "F16", "--out", out + "3")
        refused(1, ["no GGUF key says that"], "--model", make_window(folder), "--to", "Q4_0", "--out", out + "4")
        same(sorted(n for n in os.listdir(folder) if "gguf" in n), ["out.gguf"], "files left")


def make_window(folder):
    inner = os.path.join(folder, "window")
    os.mkdir(inner)
    return make_model(inner, dict(QWEN2, use_sliding_window=True, max_window_layers=1, sliding_window=32))


def test_other_readers():
    """pip's gguf package, where it is installed."""
    try:
        from gguf import GGUFReader, dequantize
    except ImportError:
        skip("there is no Python package gguf here (pip install gguf)")
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "demo.gguf")
        write(DEMO, "Q4_K_M", out)
        reader = GGUFReader(out)
        same(len(reader.tensors), len(tensors(out)["tensors"]), "tensors")
        for t in reader.tensors:
            check(dequantize(t.data, t.tensor_type).size == t.n_elements, t.name)


if __name__ == "__main__":
    run_tests(globals())
