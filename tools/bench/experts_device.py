#!/usr/bin/env python3
"""Mixtures of experts on a machine with a GPU: decode and first tokens beside the daemon's own forecasts, by plan.

  experts_device.py --bin DIR [--work DIR] [--profile FILE] [--quick] [--layers N] [--only NAME[:ROW[+ROW ...]],...] [--seconds N] [--keep] [--out DIR]
  experts_device.py --bin DIR --case MODEL:VRAM:STRATEGY[,...] --device emulated      (a quick look at any model)

Models of random weights are made by make_gguf.py in --work (default /dev/shm/helm-experts), one at a time. Their routing is even, or
(`sticky`) as sticky as published traces; tokens are drawn of the 200 likeliest, so that they do not repeat (greedy where all is in
VRAM). A row: decode of one sequence behind 128 tokens, TTFT of 2,048, both the second of two; what helm-cli plan --json says of the
first and of the second, by what memory gives right before (helm-profile --now); which part of the chosen experts was found in VRAM, and what helm-plan says of decode with that part.
Sticky rows with slots of their own have all sparse layers in both memories, slots that move or (`still`) do not, and beside the part
found that of slots_simulation.py for the same tokens. --out keeps each row's plan and rates and the profile. Rows that would begin behind --seconds are named and not run. --only even:0+3: two
rows of a case. --quick: a quick profile. --layers: as many of each model alone. At the end the forecasts at the part found: median and
worst difference. Of one sequence a row says which part of the least time by bytes and hand-overs it is (plan_bound.py).

`shared` is 8 of the 28 layers of Qwen2-57B-A14B, whose shared expert is as many bytes a token as those that it chooses. `bf16` is all
of 30B-A3B (61 GB in memory as a file beside 40 pinned), `half` 24 of its 48 layers (24 GiB hold all of them packed), `gptoss` half of gpt-oss-120b by helm-mkmodel,
`gptoss36` all of it (63 GB beside 40). Standard library only."""
import argparse
import collections
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import slots_simulation
from plan_bound import mixture_bound_seconds

HERE = os.path.dirname(os.path.abspath(__file__))
STICKY = 0.8
#        VRAM, strategy, sequences; slots of each layer, which are all in both memories (None: what the plan has), held still
ROW = collections.namedtuple("ROW", "vram strategy sequences slots still", defaults=(None, False))
#        size, type, layers (None: all), sticky, rows
CASES = {"even": ("30b-a3b", "Q4_K_M", None, 0, [ROW("8GiB", "best", 1), ROW("all", "best", 1), ROW("8GiB", "best", 8),
                                                 ROW("8GiB", "experts-cpu", 1), ROW("all", "best", 8), ROW("6GiB", "best", 1),
                                                 ROW("10GiB", "best", 1), ROW("12GiB", "best", 1)]),
         "sticky": ("30b-a3b", "Q4_K_M", None, STICKY, [ROW("8GiB", "mixed", 1, 32), ROW("8GiB", "mixed", 1, 32, True),
                                                        ROW("8GiB", "best", 1), ROW("8GiB", "best", 8)]),
         "mixtral": ("8x7b", "Q4_K_M", None, 0, [ROW("12GiB", "best", 1), ROW("12GiB", "experts-cpu", 1)]),
         "bf16": ("30b-a3b", "BF16", None, 0, [ROW("24GiB", "best", 1)]),
         "half": ("30b-a3b", "BF16", 24, 0, [ROW("12GiB", "best", 1), ROW("all", "best", 1), ROW("12GiB", "experts-cpu", 1),
                                             ROW("24GiB", "best", 1)]),
         "shared": ("57b-a14b", "Q4_K_M", 8, 0, [ROW("5GiB", "best", 1), ROW("5GiB", "experts-cpu", 1), ROW("all", "best", 1)]),
         "gptoss": ("120b", "MXFP4", 18, 0, [ROW("12GiB", "best", 1), ROW("12GiB", "experts-cpu", 1)]),
         "gptoss36": ("120b", "MXFP4", 36, 0, [ROW("24GiB", "best", 1)])}
USUAL = ("even", "sticky", "mixtral")
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


def staying(topics):
    """The part of the tokens of an answer that are in the topic of the one before."""
    return sum(a == b for a, b in zip(topics, topics[1:])) / max(1, len(topics) - 1)


def decode_rate(daemon, sequences, tokens, drawn):
    """Tokens a second of all sequences together, the topics of the last answers, the part of their tokens that stays in one, and of the
    second turn the part of experts found and how many moved for each that was chosen."""
    topics, stay = [], []
    for seed in (1, 2):
        before = daemon.ask("status", "--json")
        running = [subprocess.Popen(daemon.generate(tokens, DECODE, 10 * seed + n, drawn), stdin=subprocess.DEVNULL,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for n in range(sequences)]
        said = [r.communicate(timeout=300) for r in running]
        for r, (_, error) in zip(running, said):
            if r.returncode:
                raise RuntimeError("helm-cli generate: %s; helmd: %s" % (error.strip()[-300:], daemon.said()))
        answers = [json.loads(answer) for answer, _ in said]
        own = [token % slots_simulation.TOPICS for token in answers[-1]["tokens"]]
        topics, stay = topics + own, stay + [staying(own)]
    after = daemon.ask("status", "--json")
    used, present, moved = (after.get("experts_%s_total" % name, 0) - before.get("experts_%s_total" % name, 0)
                            for name in ("used", "present", "moved"))
    found = (present / used, moved / used) if used else (None, 0)
    return sum(a["timings"]["decode_tok_s"] for a in answers), topics, sum(stay) / len(stay), *found


def plan_json(o, model, options, fails=False):
    """What helm-plan says; fails: it refuses, and says what it would need."""
    command = [o.bin + "/helm-plan", "--model", model, "--json", "--now", o.now, *(["--profile", o.profile] if o.profile else ["--device", o.device])]
    done = subprocess.run(command + options, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    if done.returncode != (4 if fails else 0):
        raise RuntimeError("helm-plan: %s" % (done.stderr or done.stdout).strip()[-400:])
    return json.loads(done.stdout)


def mixed_plan(o, model, options):
    """A plan with all sparse layers' experts in both memories: of VRAM the least that has room for slots, so for no layer as a whole."""
    least = plan_json(o, model, ["--strategy", "mixed", "--vram", "1MiB", *options], True)["needed"]
    for more in (64, 128, 256, 512, 1024, 2048):
        try:
            plan = plan_json(o, model, ["--strategy", "mixed", "--vram", str(least + (more << 20)), *options])
            break
        except RuntimeError:
            if more == 2048:
                raise
    for stage in plan["stages"]["decode"]:
        if stage["ops"] == "all":
            raise ValueError("layers %s have their experts in one memory" % stage["layers"])
    plan.pop("placements", None)
    return plan


MOVE_TAKES = 0.6  # of what a hit saves, as daemon/planner/mixed.c


def forecast_at(o, model, row, plan, hits, moves):
    """Tokens a second of all sequences that helm-plan expects of a plan when this part of the experts is found in VRAM; moves: for each
    that is chosen. While experts move, kernels read none in host memory, and a move has its price."""
    if moves < 0.01:
        return planned(o, model, row, plan, hits, plan["mixed"]["direct_permille"])["decode_tok_s"]["value"]
    then, less = (row.sequences / planned(o, model, row, plan, part, 0)["decode_tok_s"]["value"] for part in (hits, max(0.001, hits - 0.1)))
    return row.sequences / (then + MOVE_TAKES * moves * (less - then) / min(0.1, hits - 0.001))


def planned(o, model, row, plan, hits, direct):
    """What helm-plan says of it, with this part of the missing experts read directly."""
    plan = dict(plan, mixed=dict(plan["mixed"], hit_permille=max(1, round(1000 * hits)), direct_permille=direct))
    path = os.path.join(o.work, "at.json")
    with open(path, "w") as f:
        json.dump(plan, f)
    return plan_json(o, model, ["--plan", path, "--batch", str(row.sequences), "--at", str(SHORT + DECODE // 2)] +
                     ([] if row.vram == "all" else ["--vram", row.vram]))


def of_bound(o, model, row, plan, hits, rate):
    """Which part of the least time by bytes and hand-overs (plan_bound.py) one sequence takes; None: several, or no profile."""
    if row.sequences != 1 or not o.profile:
        return None
    with open(o.profile) as f, open(o.reads) as g:
        vram, now = json.load(f)["gpu"]["read"]["value"] / 1e9, json.load(g)
    return rate * mixture_bound_seconds(planned(o, model, row, plan, hits, plan["mixed"]["direct_permille"]), hits, now, vram)


def keep_files(o, model, row, plan):
    """What a row was said by, for --out: the plan, the moment's rates, the profile."""
    if o.out:
        name = "%s-%s-%s-%d" % (os.path.basename(model), row.vram, row.strategy, row.sequences)
        with open(os.path.join(o.out, name + ".json"), "w") as f:
            json.dump(plan, f)
        shutil.copy(o.now, os.path.join(o.out, name + "-now.json"))
        if o.profile:
            shutil.copy(o.profile, os.path.join(o.out, "profile.json"))


def measure(o, model, row, sticky):
    longest = PROMPT if o.case is None else 64
    sizes = ["--ctx", str(longest + DECODE + 64), "--batch", str(row.sequences), "--prompt", str(longest)]
    o.now, o.reads = os.path.join(o.work, "now.json"), os.path.join(o.work, "reads.json")
    products = "exact" if "bf16" in model or "half" in model else "int8"
    for path, more in ((o.reads, []), (o.now, ["--model", model, "--activations", products] if o.profile else [])):
        with open(path, "w") as f:  # what memory gives: the bound goes by plain reads, forecasts by the model's products
            f.write(run([o.bin + "/helm-profile", "--now", "--device", o.device] + more))
    options = sizes + ["--now", o.now] + (["--profile", o.profile] if o.profile else []) + (["--vram", row.vram] if row.vram != "all" else [])
    if row.slots:
        plan = mixed_plan(o, model, sizes)
        few, cost = plan["mixed"]["slots"], plan["mixed"]["move_cost"] / 1000
        part = (cost + few / slots_simulation.EXPERTS) / (1 + cost)  # from which on moving pays, as with so few slots
        cost = max(0, (part - row.slots / slots_simulation.EXPERTS) / (1 - part))
        plan["mixed"].update(slots=row.slots, move_cost=int(1000 * cost), **({"moves": 0} if row.still else {}))
        path = os.path.join(o.work, "plan.json")
        with open(path, "w") as f:
            json.dump(plan, f)
        options += ["--plan", path]
    else:
        options += ["--strategy", row.strategy]
    daemon = Daemon(o, model, options)
    try:
        rate, topics, stay, hits, moves = decode_rate(daemon, row.sequences, min(SHORT, longest), row.vram != "all")
        first = [json.loads(run(daemon.generate(longest, 1, 100 + n)))["timings"]["ttft_ms"] for n in range(2)][1]
        plan, status = daemon.ask("plan", "--json"), daemon.ask("status", "--json")
        keep_files(o, model, row, plan)
        kinds = [k for k in plan["measured"]["decode"] if k["batch"] == row.sequences]
        said = max(kinds, key=lambda k: k["steps"])["planned_tok_s"] if kinds else None
        mixed, moved = plan.get("mixed", {}), status.get("experts_moved_total", 0)
        homes = {}
        for stage in plan["stages"]["decode"]:
            layers = stage["layers"][1] - stage["layers"][0] + 1
            if stage.get("ops", "all") != "attention":
                homes[stage["home"]] = homes.get(stage["home"], 0) + layers
    finally:
        daemon.close()
    simulated = slots_simulation.hit_rate(topics, row.slots, mixed["moves"], mixed["move_cost"] / 1000, sticky,
                                          of_layers=sum(homes.values())) if row.slots and sticky else None
    return {"homes": homes, "slots": mixed.get("slots"), "direct": mixed.get("direct_permille"), "moves": mixed.get("moves", 0),
            "rate": rate, "said": said, "ttft": first, "ttft_said": plan["forecast"]["ttft_ms"]["value"], "hits": hits,
            "now": plan["now"], "products": plan["activations"]["cpu"], "simulated": simulated, "moved": moved, "stay": stay if sticky else None,
            "at": forecast_at(o, model, row, plan, hits, moves) if hits is not None else None,
            "of_bound": of_bound(o, model, row, plan, hits, rate) if hits is not None else None}


def text(value, form="%.1f"):
    return "-" if value is None else form % value


def difference(measured, said):
    return "-" if not measured or not said else "%+.1f %%" % (100 * (measured / said - 1))


def part(value):
    return text(None if value is None else 100 * value, "%.1f %%")


differences = []


def report(name, row, r):
    if r["at"] or r["said"]:
        differences.append(abs(r["rate"] / (r["at"] or r["said"]) - 1))
    homes = ", ".join("%d %s" % (count, home) for home, count in sorted(r["homes"].items()))
    slots = "%d, %d, %.0f %%" % (r["slots"], r["moves"], r["direct"] / 10) if r["slots"] else "-"
    print("| %s | %s | %s | %d | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %d |" % (
        name, row.vram, row.strategy, row.sequences, homes, slots, text(r["rate"]), text(r["said"]), text(r["at"]),
        difference(r["rate"], r["at"] or r["said"]), part(r["of_bound"]), text(r["stay"], "%.2f"), part(r["hits"]), part(r["simulated"]), text(r["ttft"]),
        text(r["ttft_said"]), r["moved"]), flush=True)
    print("<!-- products %s; %s -->" % (r["products"], r["now"]), flush=True)


def try_one(o, name, model, row, sticky):
    try:
        if time.monotonic() - o.begin > o.seconds:
            raise RuntimeError("not run: %d s are over" % o.seconds)
        report(name, row, measure(o, model, row, sticky))
        return True
    except (RuntimeError, ValueError, KeyError, subprocess.TimeoutExpired) as e:
        print("| %s | %s | %s | %d | FAILED: %s |" % (name, row.vram, row.strategy, row.sequences, str(e).replace("\n", " ")), flush=True)
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
    run([o.bin + "/helm-mkmodel", "--config", config, "--out", path, "--force", "--embedding", "16"])
    return path


def make_model(o, name):
    size, kind, layers, sticky, _ = CASES[name]
    layers = o.layers or layers
    if size == "120b":
        return make_gpt_oss(o, size, layers)
    path = os.path.join(o.work, "%s.gguf" % name)
    if not os.path.exists(path):
        run([sys.executable, os.path.join(HERE, "make_gguf.py"), "--size", size, "--type", kind, "--out", path] +
            (["--layers", str(layers)] if layers else []) + (["--sticky", str(sticky)] if sticky else []))
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("--bin", required=True)
    parser.add_argument("--work", default="/dev/shm/helm-experts")
    parser.add_argument("--profile")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--only", default=",".join(USUAL))
    parser.add_argument("--case")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--out")
    parser.add_argument("--seconds", type=int, default=1200)
    o = parser.parse_args()
    o.begin = time.monotonic()
    o.bin = os.path.abspath(o.bin)
    for folder in filter(None, (o.work, o.out)):
        os.makedirs(folder, exist_ok=True)
    if not o.profile and o.case is None:
        o.profile = os.path.join(o.work, "profile.json")
        begin = time.monotonic()
        run([o.bin + "/helm-profile", "--force", "--device", o.device, *(["--quick"] if o.quick else []), "--formats",
             "q4_k,q6_k" + (",mxfp4" if "gptoss" in o.only else ""), "--out", o.profile])
        print("profile: %.0f s" % (time.monotonic() - begin))
    print("\n| model | VRAM | strategy | sequences | layers' MLPs | slots, moves a step, read directly | token/s | said | said at that "
          "part | off | of the bound | stays in a topic | found in VRAM | simulated | TTFT, ms | said | moved |")
    print("| --- " * 17 + "|", flush=True)
    fine = True
    if o.case:
        for case in o.case.split(","):
            model, vram, strategy = case.rsplit(":", 2)
            fine &= try_one(o, os.path.basename(model), model, ROW(vram, strategy, 1), 0)
        return 0 if fine else 1
    for wanted in o.only.split(","):
        name, _, rows = wanted.partition(":")
        begin = time.monotonic()
        model = make_model(o, name)
        print("<!-- %s: made in %.0f s -->" % (name, time.monotonic() - begin), flush=True)
        for row in [CASES[name][4][int(n)] for n in rows.split("+")] if rows else CASES[name][4]:
            fine &= try_one(o, "%s %s %s" % (name, *CASES[name][:2]), model, row, CASES[name][3])
        if not o.keep:
            shutil.rmtree(model) if os.path.isdir(model) else os.unlink(model)
        print("<!-- %s: %.0f s -->" % (name, time.monotonic() - begin), flush=True)
    if differences:
        print("\nforecast at the part found, %d rows: median %.1f %%, worst %.1f %%" % (
            len(differences), 100 * statistics.median(differences), 100 * max(differences)))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
