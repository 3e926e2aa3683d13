#!/usr/bin/python3
"""Half layers of dense models on disk through helmd and its workers: the tokens of plans that have all in memory, from safetensors and
from a GGUF file with interleaved rows, for several sequences at once, on the CPU and with a device between them, with either worker
killed midway, in an invariant plan too; a plan that helmd makes for less memory than the model needs; what is refused; a file that
changes under the daemon."""
import json
import os
import re
import shutil
import signal
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import processor  # noqa: E402
from helmd_harness import BIN, DATA, DEVICE, PROFILE, Client, Daemon, check, plan_json, run_tests, running, same, SLOW  # noqa: E402
from test_helmd_disk import PROMPTS, SIZES, answers, helm_cli, overwrite  # noqa: E402

QWEN = os.path.join(DATA, "golden", "qwen3")  # four layers; an attention half has 655,360 bytes, an MLP 1,081,344
LLAMA = os.path.join(DATA, "golden-gguf", "llama-Q4_K_M")  # three layers
RING = 2 << 20  # less than two MLPs of qwen3
CONFIG = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 512, "head_dim": 64, "num_attention_heads": 8,
          "num_key_value_heads": 2, "num_hidden_layers": 16, "intermediate_size": 2048, "vocab_size": 1024, "max_position_embeddings": 4096,
          "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu", "torch_dtype": "bfloat16",
          "eos_token_id": 1, "bos_token_id": 0, "attention_bias": False}


def layers_of(model):
    return 3 if model == LLAMA else 4


def plan_of(model, homes, ends="c", ring=RING, **more):
    """`homes` over and over; those on disk with a ring, or without one in host memory."""
    layers = layers_of(model)
    homes = (homes * 2 * layers)[:2 * layers]
    ring = dict(disk_ring_bytes=ring) if ring else {}
    return plan_json(layers, homes if ring else homes.replace("d", "c"), ends, ends, slots=4, **ring, **more)


def same_tokens(model, homes, options, ends="c", kills=(None,)):
    """Of plans with the homes, and with host memory in the disk's place. Whichever worker dies: invariant, since steps may have other sizes."""
    options, more = [*options, "--invariant", "on"], dict(invariant=True)
    with running(*options, real=True, model=model, plan=plan_of(model, homes, ends, 0, **more)) as d:
        wanted = answers(d)
    for kill in kills:
        with running(*options, real=True, model=model, plan=plan_of(model, homes, ends, **more)) as d:
            same(answers(d, kill=kill), wanted, f"{homes}, {kill} killed: tokens")
            check(re.search(r"plan: [0-9]+ half layers of .* are read from disk in each step, through a ring of 2.00 MiB", d.log()), d.log()[-3000:])


def test_tokens_are_those_of_half_layers_in_memory():
    same_tokens(QWEN, "d", SIZES, kills=(None, "cpu"))
    same_tokens(QWEN, "cd", SIZES)
    same_tokens(LLAMA, "d", SIZES)


def test_a_device_computes_half_layers_between_them():
    device = [*SIZES[2:], "--device", DEVICE, "--vram", "64M"]
    same_tokens(QWEN, "gdgcgd", device, "g", kills=(None, "cpu", "gpu"))
    same_tokens(LLAMA, "ddgd", device, "g")


def test_tokens_do_not_depend_on_each_other():
    options = [*SIZES, "--invariant", "on"]
    with running(*options, real=True, model=QWEN, plan=plan_of(QWEN, "cd", ring=0, invariant=True)) as d:
        wanted = [answers(d, [p])[0] for p in PROMPTS]
    with running(*options, real=True, model=QWEN, plan=plan_of(QWEN, "cd", invariant=True)) as d:
        same(answers(d), wanted, "tokens of all at once, and of each alone in memory")


class made:
    """with made() as model: ... ; of 130 MiB, not in a folder in memory, which cannot be read past the page cache."""

    def __enter__(self):
        self.base = tempfile.mkdtemp(prefix="helmd-layers-", dir=os.path.dirname(BIN))
        with open(self.base + "/config.json", "w") as f:
            json.dump(CONFIG, f)
        run = processor.run([os.path.join(BIN, "helm-mkmodel"), "--config", self.base + "/config.json", "--out", self.base + "/model"],
                            capture_output=True, timeout=60 * SLOW)
        same(run.returncode, 0, run.stderr)
        return self.base + "/model"

    def __exit__(self, *_):
        shutil.rmtree(self.base)


def planned(model, options, host, homes):
    """Tokens of helmd's own plan, which are those of the same plan with all in memory."""
    with running(*options, "--host-memory", host, "--disk-rate", "1G", real=True, model=model) as d:
        plan = json.loads(helm_cli(d, "plan", "--json"))
        found = answers(d)
    same({s["home"] for s in plan["stages"]["decode"]}, homes, "homes")
    check(plan["disk"]["total"] > 10 << 20 and plan["disk_ring_bytes"] >= 2 * 6 << 20, plan["host"])
    for stage in plan["stages"]["decode"]:
        if stage["home"] == "disk":
            stage["home"] = "cpu"
    memory = {k: v for k, v in plan.items() if k not in ("disk", "disk_ring_bytes", "placements")}
    with running(*options, real=True, model=model, plan=memory) as d:
        same(found, answers(d), "tokens")
    return found


def test_helmd_plans_them():
    """Where host memory has no room for the model, alone or beside a device; a ceiling too low for that is refused with the least that
    would do, which does."""
    with made() as model:
        sizes = ["--ctx", 512, "--parallel", 4, "--step-tokens", 64, "--invariant", "on"]
        found = planned(model, ["--device", "cpu", *sizes], "260M", {"cpu", "disk"})
        planned(model, ["--device", "emulated", "--vram", "30M", *sizes], "410M", {"cpu", "gpu", "disk"})
        options = ["--device", "cpu", *sizes, "--disk-rate", "1G"]
        refused = Daemon(*options, "--host-memory", "140M", real=True, model=model)
        try:
            least = re.search(r"or ([0-9.]+) MiB of host memory with layers on disk", refused.ready)
            check(least, refused.ready)
        finally:
            refused.close()
        with running(*options, "--host-memory", f"{least.group(1)}MiB", real=True, model=model) as d:
            same(answers(d), found, "tokens with the least memory")


def test_what_cannot_be_is_refused():
    for plan, says in ((plan_of(QWEN, "cd", weights="q8_0"), b"weights on disk are read as the file has them, not converted to q8_0"),
                       (plan_of(QWEN, "cd", ring=1 << 20), b"'disk_ring_bytes' is 1048576: the "),
                       (plan_of(QWEN, "sd", ring_bytes=1 << 20), b"weights are streamed to a GPU and"),
                       (plan_of(QWEN, "cd", disk_slots=2), b"a plan has one of the two")):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            json.dump(plan, f)
            f.flush()
            run = processor.run([os.path.join(BIN, "helm-plan"), "--model", QWEN, "--plan", f.name, "--disk-rate", "1G", "--profile", PROFILE],
                                capture_output=True, timeout=60 * SLOW)
        check(run.returncode and says in run.stderr, run.stderr)


def test_a_disk_that_no_plan_needs_is_not_measured():
    """A measurement would read the model's file for a third of a second."""
    with running(real=True, model=QWEN, plan=plan_of(QWEN, "c", ring=0)) as d:
        with open(f"/proc/{d.process.pid}/io", encoding="ascii") as f:
            read = int(re.search(r"^read_bytes: (\d+)", f.read(), re.M).group(1))
        check(read < 64 << 20, f"helmd has read {read >> 20} MiB")


def spoiled(change):
    base = tempfile.mkdtemp(prefix="helmd-layers-", dir=os.path.dirname(BIN))
    try:
        folder = base + "/model"
        shutil.copytree(QWEN, folder, ignore=shutil.ignore_patterns("golden*"))
        with running(*SIZES, real=True, model=folder, plan=plan_of(QWEN, "cd")) as d:
            c = Client(d.endpoint)
            stream = c.generate([5, 6, 7], 200, ignore_eos=True)
            while len(stream.tokens) < 3:
                c.receive(30)
            change(os.path.join(folder, "model.safetensors"))
            c.run(stream, timeout=60 * SLOW)
            check(stream.done and "model.safetensors" in stream.done.detail, f"{stream.error or stream.done}")
            same(processor.ended(d.process, 30 * SLOW), 5, f"exit status: {d.log()[-800:]}")
    finally:
        shutil.rmtree(base)


def test_a_file_that_changes_ends_it():
    spoiled(overwrite)
    spoiled(lambda path: os.truncate(path, 3 << 20))


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    run_tests(globals())
