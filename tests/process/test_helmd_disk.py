#!/usr/bin/python3
"""Experts on disk through helmd and its workers: the tokens of plans that have all in memory, from safetensors and from
blocks of a GGUF file, for several sequences at once, on the CPU and with a device beside it, with either worker killed midway, in an
invariant plan too; what is counted; a plan of three levels that helmd makes for less memory than the model needs; a file that changes
under the daemon."""
import json
import os
import re
import shutil
import signal
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import processor  # noqa: E402
from helmd_harness import BIN, DATA, DEVICE, PROFILE, Client, Daemon, check, plan_json, run_tests, running, same, wait_until, SLOW  # noqa: E402

CACHE = tempfile.TemporaryDirectory()
os.environ.update(XDG_CACHE_HOME=CACHE.name, STATE_DIRECTORY="")  # what is found of experts is kept there
MIXTRAL = os.path.join(DATA, "golden", "mixtral")  # two sparse layers of 8 experts, 2 a token
LAYERS, EXPERTS, CHOSEN = 2, 8, 2
SIZES = ["--device", "cpu", "--ctx", 512, "--parallel", 4, "--step-tokens", 64]
PROMPTS = [[5, 6, 7], [(7 * i * i + 3) % 1000 for i in range(150)], [900 - i for i in range(70)]]
COUNT = 24


def disk_plan(slots, **more):
    return plan_json(LAYERS, "cdcd", "c", "c", disk_slots=slots, slots=4, **more)


def answers(d, prompts=PROMPTS, kill=None):
    """Tokens of the prompts, all at once. kill: the worker that dies after some tokens."""
    c = Client(d.endpoint)
    streams = [c.generate(p, COUNT, ignore_eos=True) for p in prompts]
    if kill:
        while len(streams[0].tokens) < 3:
            c.receive(30)
        os.kill(d.children()[kill], signal.SIGKILL)
    for s in streams:
        c.run(s, timeout=60 * SLOW)
        check(s.done and not s.error, f"{s.error or s.done}")
    return [list(s.tokens) for s in streams]


def helm_cli(d, *words):
    return processor.run([os.path.join(BIN, "helm-cli"), "--connect", d.endpoint, *words], capture_output=True, timeout=60 * SLOW).stdout


def status(d):
    return json.loads(helm_cli(d, "status", "--json"))


class copied:
    """with copied() as folder: ... ; the model, to be spoiled. Not in a folder in memory, which cannot be read past the page cache."""

    def __enter__(self):
        self.base = tempfile.mkdtemp(prefix="helmd-disk-", dir=os.path.dirname(BIN))
        shutil.copytree(MIXTRAL, self.base + "/model", ignore=shutil.ignore_patterns("golden*"))
        return self.base + "/model"

    def __exit__(self, *_):
        shutil.rmtree(self.base)


def test_tokens_are_those_of_experts_in_memory():
    with running(*SIZES, real=True, model=MIXTRAL) as d:
        wanted = answers(d)
    for slots, kill in ((1, "cpu"), (3, None)):
        with running(*SIZES, real=True, model=MIXTRAL, plan=disk_plan(slots)) as d:
            same(answers(d, kill=kill), wanted, f"{slots} slots: tokens")
            seen = status(d)
            used, present = seen["experts_used_total"], seen["experts_present_total"]
            check(0 < present < used, f"{slots} slots: {present} of {used} uses were in memory")
            check(slots < 2 or present > used / EXPERTS, f"{slots} slots: {present} of {used} uses were in memory")


def test_a_device_has_the_rest():
    """Attention, ends and some layer's experts: the tokens of plans whose other experts are the CPU's in memory, whichever worker dies."""
    device = ["--device", DEVICE, "--vram", "64M"]
    for homes, kill in (("gdgd", None), ("gdgg", "cpu"), ("gggd", "gpu")):
        sizes = dict(slots=4, invariant=not kill)
        with running(*SIZES[2:], *device, real=True, model=MIXTRAL, plan=plan_json(LAYERS, homes.replace("d", "c"), "g", "g", **sizes)) as d:
            wanted = answers(d)
        with running(*SIZES[2:], *device, real=True, model=MIXTRAL, plan=plan_json(LAYERS, homes, "g", "g", disk_slots=2, **sizes)) as d:
            same(answers(d, kill=kill), wanted, f"{homes}: tokens")
            seen = status(d)
            check(0 < seen["experts_present_total"] < seen["experts_used_total"], seen)


CONFIG = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 256, "head_dim": 32, "num_attention_heads": 8,
          "num_key_value_heads": 2, "num_hidden_layers": 6, "moe_intermediate_size": 256, "intermediate_size": 512, "num_experts": 32,
          "num_experts_per_tok": 4, "vocab_size": 1024, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
          "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": False, "hidden_act": "silu",
          "torch_dtype": "bfloat16", "eos_token_id": 1, "bos_token_id": 0, "attention_bias": False}


def test_helmd_plans_three_levels():
    """75 MiB of weights where neither memory has room for them: a plan with experts in VRAM, in slots and on disk, of the tokens of a plan
    that has the latter in host memory. A ceiling too low for that is refused with the least that would do, which does."""
    with tempfile.TemporaryDirectory(prefix="helmd-disk-", dir=os.path.dirname(BIN)) as base:
        with open(base + "/config.json", "w") as f:
            json.dump(CONFIG, f)
        model = base + "/model"
        run = processor.run([os.path.join(BIN, "helm-mkmodel"), "--config", base + "/config.json", "--out", model], capture_output=True, timeout=60 * SLOW)
        same(run.returncode, 0, run.stderr)
        options = ["--device", "emulated", "--vram", "40M", "--ctx", 512, "--parallel", 4, "--step-tokens", 64, "--disk-rate", "1G"]
        with running(*options, "--host-memory", "390M", real=True, model=model) as d:
            plan = json.loads(helm_cli(d, "plan", "--json"))
            found = answers(d)
            seen = status(d)
            check("planned with experts on disk: no plan (best) fits" in d.log(), d.log()[-3000:])
        homes = {s["home"] for s in plan["stages"]["decode"] if s["ops"] != "attention"}
        same(homes, {"gpu", "disk"}, "homes of experts")
        check(plan["disk"]["total"] > 40 << 20 and plan["disk_slots"] > 4 and plan["vram"]["total"] > 20 << 20, plan["host"])
        check(0 < seen["experts_present_total"] < seen["experts_used_total"], seen)
        for stage in plan["stages"]["decode"]:
            if stage["home"] == "disk":
                stage["home"] = "cpu"
        memory = {k: v for k, v in plan.items() if k not in ("disk", "disk_slots", "placements")}
        with running(*options, real=True, model=model, plan=memory) as d:
            same(found, answers(d), "tokens")
        refused = Daemon(*options, "--host-memory", "300M", real=True, model=model)
        try:
            least = re.search(r"or ([0-9.]+) MiB of host memory with experts on disk", refused.ready)
            check(least, refused.ready)
        finally:
            refused.close()
        with running(*options, "--host-memory", f"{least.group(1)}MiB", real=True, model=model) as d:
            same(answers(d), found, "tokens with the least memory")


def test_what_was_found_is_kept_for_the_next_plan():
    """By the model, in the folder of profiles: the next plan's forecast counts on it, and says so."""
    with tempfile.TemporaryDirectory() as cache:
        env = {"XDG_CACHE_HOME": cache, "STATE_DIRECTORY": ""}
        with running(*SIZES, real=True, model=MIXTRAL, plan=disk_plan(4), env=env) as d:
            check("as if each was chosen alike" in d.log(), d.log()[-2000:])
            c = Client(d.endpoint)
            c.run(c.generate([5, 6, 7], 200, ignore_eos=True), timeout=60 * SLOW)
            seen = status(d)
            d.stop()
            check(seen["experts_present_total"] > 4 / EXPERTS * seen["experts_used_total"], seen)
            kept = re.search(r"experts on disk: ([0-9.]+) % of ([0-9]+) uses were found in 4 slots: kept for the next plan", d.log())
            check(kept, d.log()[-2000:])
            same(int(kept.group(2)), seen["experts_used_total"], "uses")
        with running(*SIZES, real=True, model=MIXTRAL, plan=disk_plan(4), env=env) as d:
            check(f"{kept.group(1)} % of the chosen ones are expected there, by what a run counted" in d.log(), d.log()[-2000:])
            c = Client(d.endpoint)
            c.run(c.generate([5, 6, 7], 70, ignore_eos=True), timeout=60 * SLOW)
            uses = status(d)["experts_used_total"]
            d.stop()
            added = re.search(r"kept for the next plan, with earlier runs ([0-9.]+) % of ([0-9]+)", d.log())
            check(added and int(added.group(2)) == uses + int(kept.group(2)), d.log()[-2000:])
            kept = added
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            json.dump(disk_plan(4), f)
            f.flush()
            run = processor.run([os.path.join(BIN, "helm-plan"), "--model", MIXTRAL, "--plan", f.name, "--disk-rate", "1G", "--profile", PROFILE],
                                capture_output=True, timeout=60 * SLOW, env={**os.environ, **env})
        check(f"by what a run found in 4 slots: {kept.group(1)} % of {kept.group(2)} uses".encode() in run.stdout, run.stdout + run.stderr)


def test_an_invariant_plan_may_have_them():
    with running(*SIZES, "--invariant", "on", real=True, model=MIXTRAL) as d:
        wanted = [answers(d, [p])[0] for p in PROMPTS]
    with running(*SIZES, "--invariant", "on", real=True, model=MIXTRAL, plan=disk_plan(2, invariant=True)) as d:
        same(answers(d), wanted, "tokens of all at once, and of each alone in memory")


def test_blocks_of_a_gguf_file():
    """Mixtral on the CPU; gpt-oss, whose safetensors files cannot be read so, beside a device. Invariant: a load decides which sequences
    share a step."""
    alone = [*SIZES, "--invariant", "on"]
    beside, sizes = [*alone[2:], "--device", DEVICE, "--vram", "64M"], dict(slots=4, invariant=True)
    for model, to, layers, homes, ends, options in (("mixtral", "Q8_0", 2, "cd", "c", alone), ("gptoss", "MXFP4_MOE", 4, "gd", "g", beside)):
        with tempfile.TemporaryDirectory(prefix="helmd-disk-", dir=os.path.dirname(BIN)) as base:
            out = f"{base}/{model}-{to}.gguf"
            run = processor.run([os.path.join(BIN, "helm-quantize"), "--model", os.path.join(DATA, "golden", model), "--to", to, "--out", out],
                                capture_output=True, timeout=60 * SLOW)
            same(run.returncode, 0, run.stderr)
            with running(*options, real=True, model=out, plan=plan_json(layers, homes.replace("d", "c") * layers, ends, ends, **sizes)) as d:
                wanted = answers(d)
            with running(*options, real=True, model=out, plan=plan_json(layers, homes * layers, ends, ends, disk_slots=2, **sizes)) as d:
                same(answers(d), wanted, f"{model}: tokens")


def test_what_would_be_converted_is_refused():
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(dict(disk_plan(2), weights="q8_0"), f)
        f.flush()
        run = processor.run([os.path.join(BIN, "helm-plan"), "--model", MIXTRAL, "--plan", f.name, "--disk-rate", "1G", "--profile", PROFILE],
                            capture_output=True, timeout=60 * SLOW)
    check(run.returncode and b"weights on disk are read as the file has them, not converted to q8_0" in run.stderr, run.stderr)


def spoiled(change, reason):
    with copied() as folder, running(*SIZES, real=True, model=folder, plan=disk_plan(1)) as d:
        c = Client(d.endpoint)
        stream = c.generate([5, 6, 7], 200, ignore_eos=True)
        while len(stream.tokens) < 3:
            c.receive(30)
        change(os.path.join(folder, "model.safetensors"))
        c.run(stream, timeout=60 * SLOW)
        check(stream.done and reason in stream.done.detail, f"{stream.error or stream.done}")
        same(processor.ended(d.process, 30 * SLOW), 5, f"exit status: {d.log()[-800:]}")
        check("model.safetensors" in d.log(), d.log()[-800:])


def overwrite(path):
    st = os.stat(path)
    with open(path, "r+b") as f:
        for at in range(1 << 20, st.st_size - 1, 64):
            f.seek(at)
            f.write(b"\x3d")
    os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns))


def test_a_file_that_changes_ends_it():
    spoiled(overwrite, "model.safetensors")
    spoiled(lambda path: os.truncate(path, 1 << 20), "model.safetensors")


if __name__ == "__main__":
    run_tests(globals())
