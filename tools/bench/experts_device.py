#!/usr/bin/env python3
"""Mixtures of experts on a machine with a GPU: decode and first tokens beside the daemon's own forecasts, by plan.

  experts_device.py --bin DIR [--work DIR] [--profile FILE] [--only NAME,...] [--keep]
  experts_device.py --bin DIR --case MODEL:VRAM:STRATEGY[,...] --device emulated      (a quick look at any model)

Models of random weights are made by make_gguf.py in --work (default /dev/shm/helm-experts), one at a time. Their routing is
about even, and tokens are drawn so that they do not repeat (greedy where all is in VRAM), so slots catch what their number says. A row: decode of one sequence behind 128 tokens, TTFT of 2,048, both the
second of two; what helm-cli plan --json says of the first, and helm-plan of the second; which part of the chosen experts
was found in VRAM. `gptoss`, half of gpt-oss-120b by helm-mkmodel, is run where --only
names it. Standard library only; about eight minutes on an H100, three without --only profile'd again."""
import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
#        name: size, type, layers (None: all), [(VRAM, strategy, sequences)]
CASES = {"q4": ("30b-a3b", "Q4_K_M", None, [("8GiB", "best", 1), ("8GiB", "experts-cpu", 1),
                                            ("8GiB", "best", 8), ("all", "best", 1)]),
         "mixtral": ("8x7b", "Q4_K_M", None, [("12GiB", "best", 1), ("12GiB", "experts-cpu", 1)]),
         "bf16": ("30b-a3b", "BF16", 24, [("12GiB", "best", 1), ("12GiB", "experts-cpu", 1), ("all", "best", 1)]),
         # half of gpt-oss-120b at half of 24 GiB: the whole and its arena are more than the machine's memory
         "gptoss": ("120b", "MXFP4", 18, [("12GiB", "best", 1), ("12GiB", "mixed", 1), ("12GiB", "experts-cpu", 1)])}
USUAL = ("q4", "mixtral", "bf16")
VOCAB_USED, DECODE, PROMPT, SHORT = 30000, 160, 2048, 128
READY_SECONDS = 300


def run(command, timeout=600):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout)
    if done.returncode:
        raise RuntimeError("%s: %s" % (os.path.basename(command[0]), (done.stderr or done.stdout).strip()[-400:]))
    return done.stdout


class Daemon:
    """helmd with a model, ready; options: of plan and sequences."""

    def __init__(self, o, model, options):
        self.o, self.dir = o, tempfile.mkdtemp(prefix="experts-")
        self.endpoint = "ipc://" + os.path.join(self.dir, "s")
        self.log = open(os.path.join(self.dir, "log"), "w+")
        command = [o.bin + "/helmd", "--model", model, "--device", o.device, "--listen", self.endpoint, "--rundir",
                   os.path.join(self.dir, "r"), "--worker-dir", o.bin, "--log-level", "info"] + options
        os.mkdir(os.path.join(self.dir, "r"), 0o700)
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        until = time.monotonic() + READY_SECONDS
        while True:
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError("helmd: " + self.said())
            try:
                if self.ask("status", "--json")["state"] == "ready":
                    return
            except (RuntimeError, ValueError):
                pass
            time.sleep(0.2)

    def command(self, *arguments):
        return [self.o.bin + "/helm-cli", "--connect", self.endpoint, *arguments]

    def ask(self, *arguments):
        return json.loads(run(self.command(*arguments)))

    def generate(self, tokens, count, seed, drawn=False):
        """drawn: of the 200 likeliest tokens, nearly alike; greedy ones would soon repeat, and their experts with them."""
        rng = random.Random(seed)
        ids = ",".join(str(rng.randrange(10, VOCAB_USED)) for _ in range(tokens))
        return self.command("generate", "--tokens", ids, "-n", str(count), "--ignore-eos", "--json",
                            *(["--temperature", "5", "--top-k", "200", "--seed", str(seed)] if drawn else []))

    def said(self):
        """The end of its log."""
        self.log.seek(0)
        return self.log.read().strip()[-700:]

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()
        shutil.rmtree(self.dir, ignore_errors=True)


def decode_rate(daemon, sequences, tokens, drawn):
    """Tokens a second of all sequences together."""
    for seed in (1, 2):
        running = [subprocess.Popen(daemon.generate(tokens, DECODE, 10 * seed + n, drawn), stdin=subprocess.DEVNULL,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for n in range(sequences)]
        said = [r.communicate(timeout=300) for r in running]
        for r, (_, error) in zip(running, said):
            if r.returncode:
                raise RuntimeError("helm-cli generate: %s; helmd: %s" % (error.strip()[-300:], daemon.said()))
        answers = [json.loads(answer) for answer, _ in said]
    return sum(a["timings"]["decode_tok_s"] for a in answers)


def measure(o, model, vram, strategy, sequences):
    longest = PROMPT if o.case is None else 64
    options = ["--strategy", strategy, "--ctx", str(longest + DECODE + 64), "--batch", str(sequences), "--prompt", str(longest)]
    if o.profile:
        options += ["--profile", o.profile]
    if vram != "all":
        options += ["--vram", vram]
    daemon = Daemon(o, model, options)
    try:
        rate = decode_rate(daemon, sequences, min(SHORT, longest), vram != "all")
        first = [json.loads(run(daemon.generate(longest, 1, 100 + n)))["timings"]["ttft_ms"] for n in range(2)][1]
        plan, status = daemon.ask("plan", "--json"), daemon.ask("status", "--json")
        kinds = [k for k in plan["measured"]["decode"] if k["batch"] == sequences]
        said = max(kinds, key=lambda k: k["steps"])["planned_tok_s"] if kinds else None
        mixed, used = plan.get("mixed", {}), status.get("experts_used_total", 0)
        homes = {}
        for stage in plan["stages"]["decode"]:
            layers = stage["layers"][1] - stage["layers"][0] + 1
            if stage.get("ops", "all") != "attention":
                homes[stage["home"]] = homes.get(stage["home"], 0) + layers
        return {"homes": homes, "slots": mixed.get("slots"), "direct": mixed.get("direct_permille"), "rate": rate, "said": said,
                "ttft": first, "ttft_said": plan["forecast"]["ttft_ms"]["value"],
                "hits": status["experts_present_total"] / used if used else None,
                "moved": status.get("experts_moved_total", 0)}
    finally:
        daemon.close()


def text(value, form="%.1f"):
    return "-" if value is None else form % value


def difference(measured, said):
    return "-" if not measured or not said else "%+.1f %%" % (100 * (measured / said - 1))


def report(name, vram, strategy, sequences, row):
    homes = ", ".join("%d %s" % (count, home) for home, count in sorted(row["homes"].items()))
    slots = "%d, %.0f %%" % (row["slots"], row["direct"] / 10) if row["slots"] else "-"
    print("| %s | %s | %s | %d | %s | %s | %s | %s | %s | %s | %s | %s | %d |" % (
        name, vram, strategy, sequences, homes, slots, text(row["said"]), text(row["rate"]), difference(row["rate"], row["said"]),
        text(row["ttft_said"]), text(row["ttft"]), text(None if row["hits"] is None else 100 * row["hits"], "%.1f %%"),
        row["moved"]), flush=True)


def try_one(o, name, model, vram, strategy, sequences):
    try:
        report(name, vram, strategy, sequences, measure(o, model, vram, strategy, sequences))
        return True
    except (RuntimeError, ValueError, KeyError, subprocess.TimeoutExpired) as e:
        print("| %s | %s | %s | %d | FAILED: %s |" % (name, vram, strategy, sequences, str(e).replace("\n", " ")), flush=True)
        return False


def gpt_oss_config(layers):
    """config.json of gpt-oss-120b's shape, as published but for the number of layers."""
    return {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
            "num_hidden_layers": layers, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
            "vocab_size": 201088, "num_local_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128,
            "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 150000.0, "eos_token_id": 200002,
            "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                             "original_max_position_embeddings": 4096},
            "quantization_config": {"quant_method": "mxfp4"}, "dtype": "bfloat16"}


def make_gpt_oss(o, size, layers):
    path = os.path.join(o.work, "gpt-oss-%s" % size)
    config = path + ".json"
    with open(config, "w") as f:
        json.dump(gpt_oss_config(layers), f)
    run([o.bin + "/helm-mkmodel", "--config", config, "--out", path, "--force"])
    return path


def make_model(o, name):
    size, kind, layers, _ = CASES[name]
    if name == "gptoss":
        return make_gpt_oss(o, size, layers)
    path = os.path.join(o.work, "%s-%s.gguf" % (size, kind))
    if not os.path.exists(path):
        run([sys.executable, os.path.join(HERE, "make_gguf.py"), "--size", size, "--type", kind, "--out", path] +
            (["--layers", str(layers)] if layers else []))
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("--bin", required=True)
    parser.add_argument("--work", default="/dev/shm/helm-experts")
    parser.add_argument("--profile")
    parser.add_argument("--only", default=",".join(USUAL))
    parser.add_argument("--case")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--keep", action="store_true")
    o = parser.parse_args()
    o.bin = os.path.abspath(o.bin)
    os.makedirs(o.work, exist_ok=True)
    if not o.profile and o.case is None:
        o.profile = os.path.join(o.work, "profile.json")
        begin = time.monotonic()
        run([o.bin + "/helm-profile", "--force", "--device", o.device, "--formats",
             "q4_k,q6_k" + (",mxfp4" if "gptoss" in o.only else ""), "--out", o.profile])
        print("profile: %.0f s" % (time.monotonic() - begin))
    print("\n| model | VRAM | strategy | sequences | layers' MLPs | slots, read directly | token/s said | token/s | off | "
          "TTFT said, ms | TTFT, ms | found in VRAM | moved |")
    print("| --- " * 13 + "|", flush=True)
    fine = True
    if o.case:
        for case in o.case.split(","):
            model, vram, strategy = case.rsplit(":", 2)
            fine &= try_one(o, os.path.basename(model), model, vram, strategy, 1)
        return 0 if fine else 1
    for name in o.only.split(","):
        begin = time.monotonic()
        model = make_model(o, name)
        for vram, strategy, sequences in CASES[name][3]:
            fine &= try_one(o, "%s %s" % CASES[name][:2], model, vram, strategy, sequences)
        if not o.keep:
            shutil.rmtree(model) if os.path.isdir(model) else os.unlink(model)
        print("<!-- %s: %.0f s -->" % (name, time.monotonic() - begin), flush=True)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
