#!/usr/bin/env python3
"""HELM's log probabilities beside those of transformers, in one run, for one model after the other under many plans.

  against_transformers.py --bin DIR --out DIR [--golden DIR] [--model DIR...] [--device D,...] [-- helmd options]

--golden DIR   every dense model in a folder of golden models, with the prompts of its golden.json
--model DIR    a checkpoint (repeatable); without a golden.json: random prompts, the same in every run
--device LIST  where HELM runs: cuda, emulated, cpu (cuda,emulated). emulated: models up to 256 MB alone
--reference R  transformers (default; transformers_reference.py, with the GPU unless --reference-device cpu), or
               stored: what golden.json has, without transformers
--prompt N,... --steps N --seed N     lengths of the random prompts (5,128,700), tokens after each (32)
--cpu-steps N  tokens after each where a model above 2 GiB is partly on the CPU (16)
--every N      thesis splits: one and two thirds of the layers on the GPU always, then every N-th split (3)
--seconds S    no such further split is begun after that time (180; 0: none); those left out are named, as are plans on a
               device on which three in a row have failed
--vram SIZE, --profile FILE           handed to helmd; the profile is of no weight, the plans are given

Plans: all on the GPU; thesis splits; layers alternating, CPU first, then GPU first.

Compared, after ../../tests/data/golden/README.md: the reference is float32 arithmetic on the stored weights,
greedy; of each of its steps its ten likeliest tokens' log probabilities, and which token is the likeliest.
Where HELM takes another token and the reference's two best are close, the case ends, and the rest of it is a
new case, whose prompt is the reference's tokens so far: so every step is compared, however near the ties.
Where they are not close, that is an error and the rest is left. A token that HELM does not list among its 20
counts as far off as the 20th, and is counted.

Tolerances: the README's for 16-bit activations, 0.4 at worst, 0.08 in the mean, tokens equal where the gap exceeds
0.4. They were set on models of four layers, and hold for every model with a golden.json whatever transformers does in 16
bits (it also rounds the logits). For other shapes they hold too, unless transformers itself, run in the weights' own 16-bit
type beside the reference, is outside of them: then the limits are 1.25 times what transformers had, and the rows
bear a star. Rounding in each of many layers adds up in any program;
an error above transformers' own is not explained by it.
The reference itself is held against golden.json by the README's limits for float32. "of its mean" is HELM's mean by that of
transformers in 16 bits: above 1, HELM rounds more than transformers does. It is told, and not judged.

Writes result.json, plans, references and logs into --out; a Markdown table to standard output, row by row.
Exit status: 0; 1 outside the tolerances; 2 usage; 5 something failed (it is named; the rest went on). Standard library only."""
import argparse
import collections
import glob
import json
import math
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, here)
from prompt_ids import prompt_ids  # noqa: E402

COMPARED, LISTED = 10, 20  # of the reference's likeliest tokens; as many as helm-cli gives
SMALL, LARGE = 256e6, 2**31  # bytes of weights: the emulated device takes models up to one, few steps are asked above the other
START_S, ANSWER_S, END_S, REFERENCE_S = 90, 60, 30, 420
GIVE_UP = 3  # failures in a row on a device: it may hang each time, and the machine may be lent by the minute
PAGE, STEP_TOKENS = 32, 512

Limits = collections.namedtuple("Limits", "worst mean gap")
FLOAT32, ROUNDED = Limits(0.02, 0.002, 0.05), Limits(0.4, 0.08, 0.4)
WIDENED = 1.25

Model = collections.namedtuple("Model", "name folder layers vocab bytes cases bf16")
Job = collections.namedtuple("Job", "model device plan homes further")


class Failed(Exception):
    """A program that did not do what it was asked for: its last words."""


def is_golden(model):
    return all("steps" in case for case in model.cases)


# ---- comparing ----

def compare(steps, answers, gap_limit):
    """The reference's steps beside [(token, [[token, logprob], ...]), ...], of which there may be fewer."""
    differences, same, permitted, wrong, unlisted = [], 0, 0, [], 0
    for n, (step, (token, top)) in enumerate(zip(steps, answers)):
        listed = dict(map(tuple, top))
        for reference, logprob in step["top"][:COMPARED]:
            if reference in listed:
                difference = abs(listed[reference] - logprob) if listed[reference] is not None else math.inf
            else:
                unlisted += 1
                difference = max(0.0, logprob - top[-1][1]) if top else math.inf
            differences.append(difference if math.isfinite(difference) else math.inf)
        if token == step["token"]:
            same += 1
        elif step["gap"] <= gap_limit:
            permitted += 1
        else:
            wrong.append({"step": n, "gap": step["gap"], "token": token, "reference": step["token"]})
    return {"steps": min(len(steps), len(answers)), "differences": differences, "same": same, "permitted": permitted,
            "wrong": wrong, "unlisted": unlisted}


def summed(outcomes):
    """Several cases' outcomes as one, with mean and worst in place of the differences."""
    differences = [d for o in outcomes for d in o["differences"]]
    total = {key: sum(o[key] for o in outcomes) for key in ("steps", "same", "permitted", "unlisted")}
    total["wrong"] = [dict(w, case=n) for n, o in enumerate(outcomes) for w in o["wrong"]]
    total["mean"] = sum(differences) / len(differences) if differences else math.inf
    total["worst"] = max(differences, default=math.inf)
    return total


def within(total, limits):
    return not total["wrong"] and total["mean"] <= limits.mean and total["worst"] <= limits.worst


def limits_of(model, rounded):
    """The README's limits, or wider ones where they were not made for the model and transformers itself is outside."""
    if is_golden(model) or rounded is None or (rounded["worst"] <= ROUNDED.worst and rounded["mean"] <= ROUNDED.mean):
        return ROUNDED
    worst = max(ROUNDED.worst, WIDENED * rounded["worst"])
    return Limits(worst, max(ROUNDED.mean, WIDENED * rounded["mean"]), worst)


def as_answers(steps):
    return [(s["token"], s["top"]) for s in steps]


def until_apart(steps, others):
    """The others' steps as long as the tokens before them are the same."""
    answers = []
    for step, (token, top) in zip(steps, as_answers(others)):
        answers.append((token, top))
        if token != step["token"]:
            break
    return answers


def follow(ask, case, count, gap_limit):
    """HELM along the reference: ask(prompt, n) gives n greedy (token, top); asked again where it went another way."""
    steps, answers = case["steps"][:count], []
    while len(answers) < len(steps):
        done = len(answers)
        got = ask(case["prompt"] + [s["token"] for s in steps[:done]], len(steps) - done)
        if len(got) != len(steps) - done:
            raise Failed(f"{len(got)} tokens instead of {len(steps) - done}")
        for step, (token, top) in zip(steps[done:], got):
            answers.append((token, top))
            if token != step["token"]:
                if step["gap"] > gap_limit:
                    return answers
                break
    return answers


# ---- models, plans, what is to be run ----

def is_dense(config):
    return not any("expert" in key for key in config)


def read_model(folder, prompts, steps, seed):
    """`cases` are those of golden.json, or prompts alone."""
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    golden = os.path.join(folder, "golden.json")
    if os.path.exists(golden):
        with open(golden, encoding="utf-8") as file:
            cases = json.load(file)["cases"]
    else:
        cases = [{"prompt": prompt_ids(seed, n, length, config["vocab_size"])} for n, length in enumerate(prompts)]
    cases = [dict(case, steps=case["steps"][:steps]) if "steps" in case else case for case in cases]
    return Model(os.path.basename(os.path.normpath(folder)), folder, config["num_hidden_layers"], config["vocab_size"],
                 sum(os.path.getsize(f) for f in glob.glob(os.path.join(folder, "*.safetensors"))), cases,
                 config.get("dtype", config.get("torch_dtype")) == "bfloat16")


def golden_folders(folder):
    found = []
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name, "config.json")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                if is_dense(json.load(file)):
                    found.append(os.path.dirname(path))
    return found


def plans_of(layers, every, packed=False):
    """(name, a letter for each layer's home, whether it is one of the further splits); p: on the GPU and packed there, where
    weights can be."""
    thirds = sorted({max(1, round(layers / 3)), round(2 * layers / 3)}, reverse=True)
    plans = [("all GPU", "g" * layers, False)]
    if packed:
        half = layers // 2
        plans += [("all GPU, packed", "p" * layers, False), ("all GPU, half packed", "p" * half + "g" * (layers - half), False)]
    plans += [(f"last {k} of {layers} GPU", "c" * (layers - k) + "g" * k, False) for k in thirds if k < layers]
    if layers > 1:
        plans += [(f"alternating, {first} first", (letters * layers)[:layers], False)
                  for first, letters in (("CPU", "cg"), ("GPU", "gc"))]
    plans += [(f"last {k} of {layers} GPU", "c" * (layers - k) + "g" * k, True)
              for k in range(layers - every, 0, -every) if k not in thirds]
    return plans


def plan_json(homes, context):
    """A plan as a person writes it: ends on the device of the layers beside them, sizes of stages for helmd to fill in."""
    names, stages = {"c": "cpu", "g": "gpu", "p": "gpu"}, []
    for layer, home in enumerate(homes):
        if layer and homes[layer - 1] == home:
            stages[-1]["layers"][1] = layer
        else:
            stages.append({"layers": [layer, layer], "ops": "all", "home": names[home], "bytes": 0})
            if home == "p":
                stages[-1]["format"] = "bf16-packed"
    empty = {"limit": None, "lines": [], "total": 0}
    return {"layers": len(homes), "context_tokens": -(-context // PAGE) * PAGE, "step_tokens": STEP_TOKENS, "slots": 2,
            "page_tokens": PAGE, "page_count": 0, "kv_dtype": "f16", "stages": {"decode": stages},
            "embed": names[homes[0]], "head": names[homes[-1]], "host": empty, "vram": empty}


def jobs_of(models, devices, every):
    """Jobs of every model, in the order of the models; after them the further splits."""
    jobs = []
    for model in models:
        for device in devices:
            if device == "emulated" and model.bytes > SMALL:
                continue
            plans = [("all CPU", "c" * model.layers, False)] if device == "cpu" else \
                plans_of(model.layers, every, model.bf16 and not is_golden(model))
            jobs += [Job(model, device, *plan) for plan in plans]
    return sorted(jobs, key=lambda job: job.further)


def steps_asked(job, steps, cpu_steps):
    return min(steps, cpu_steps) if job.model.bytes > LARGE and "c" in job.homes else steps


# ---- programs ----

def last_lines(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return " / ".join(file.read().splitlines()[-3:])


class Daemon:
    """A private helmd under one plan; `with` ends it."""

    def __init__(self, options, job, plan, log):
        self.options, self.log, self.device = options, log, job.device
        self.rundir = tempfile.mkdtemp(prefix="helm-against-")
        read, write = os.pipe()
        command = [os.path.join(options.bin, "helmd"), "--model", job.model.folder, "--device", job.device, "--rundir",
                   self.rundir, "--ready-fd", str(write), "--die-with-parent", "--log-level", "info", "--plan", plan,
                   "--profile", options.profile, "--prefix-cache", "off"]
        if options.vram and job.device != "cpu":
            command += ["--vram", options.vram]
        with open(log, "w", encoding="utf-8") as file:
            self.process = subprocess.Popen(command + options.helmd, pass_fds=[write], stdin=subprocess.DEVNULL,
                                            stdout=file, stderr=file)
        os.close(write)
        with os.fdopen(read, encoding="utf-8") as ready:
            words = ready.readline().split() if select.select([ready], [], [], START_S)[0] else []
        if len(words) < 2 or words[0] != "ready":
            self.end()
            raise Failed(f"helmd: {' '.join(words) or 'not ready in time'} ({last_lines(log)})")
        self.endpoint = words[1]

    def end(self):
        """Its exit status."""
        self.process.terminate()
        try:
            return self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            shutil.rmtree(self.rundir, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        status = self.end()
        if status and kind is None:
            raise Failed(f"helmd ended with {status} ({last_lines(self.log)})")

    def cli(self, *arguments):
        command = [os.path.join(self.options.bin, "helm-cli"), "--connect", self.endpoint, *arguments]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_S)
        except subprocess.TimeoutExpired as late:
            raise Failed(f"helm-cli: no end after {ANSWER_S} s") from late
        if done.returncode:
            raise Failed(f"helm-cli: {done.stderr.strip()[-300:]} ({last_lines(self.log)})")
        return json.loads(done.stdout)

    def ask(self, prompt, count):
        path = os.path.join(self.rundir, "prompt")
        with open(path, "w", encoding="utf-8") as file:
            file.write(",".join(map(str, prompt)))
        answer = self.cli("generate", "--tokens-file", path, "-n", str(count), "--logprobs", str(LISTED),
                          "--ignore-eos", "--json")
        return [(token, [[t["token"], t["logprob"]] for t in top])
                for token, top in zip(answer["tokens"], answer["logprobs"])]

    def homes(self):
        """As the plan that is in use has them."""
        letters = {"cpu": "c", "gpu": "g"}
        plan = self.cli("plan", "--json")
        return "".join(("p" if s["home"] == "gpu" and s.get("format") else letters.get(s["home"], "?")) *
                       (s["layers"][1] - s["layers"][0] + 1) for s in plan["stages"]["decode"])


class Stored:
    """References that lie in the models' folders."""

    def of(self, model):
        if not is_golden(model):
            raise Failed("has no golden.json")
        return {"cases": model.cases}

    def end(self):
        pass


class Transformers:
    """The other process; a model's reference is read when it is there."""

    def __init__(self, options, models):
        self.out, self.read = options.out, {}
        job = os.path.join(self.out, "references.job.json")
        for model in models:
            if os.path.exists(self.path(model)):
                os.unlink(self.path(model))
        with open(job, "w", encoding="utf-8") as file:
            json.dump([{"name": m.name, "folder": m.folder, "prompts": [c["prompt"] for c in m.cases],
                        "steps": options.steps} for m in models], file)
        self.log = os.path.join(self.out, "references.log")
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen([sys.executable, "-B", os.path.join(here, "transformers_reference.py"), "--job",
                                             job, "--out", self.out, "--device", options.reference_device],
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def path(self, model):
        return os.path.join(self.out, model.name + ".reference.json")

    def of(self, model):
        late = time.monotonic() + REFERENCE_S
        while model.name not in self.read:
            ended = self.process.poll() is not None
            if os.path.exists(self.path(model)):
                with open(self.path(model), encoding="utf-8") as file:
                    self.read[model.name] = json.load(file)
            elif ended or time.monotonic() > late:
                raise Failed(f"no reference {'was made' if ended else 'in time'} ({last_lines(self.log)})")
            else:
                time.sleep(0.1)
        if "error" in self.read[model.name]:
            raise Failed(self.read[model.name]["error"])
        return self.read[model.name]

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


# ---- the run ----

HEADER = ("| model | device, plan | steps | mean | worst | same token | transformers 16-bit: mean | worst | same token | "
          "of its mean | |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")


def numbers(total):
    return f"{total['mean']:.4f} | {total['worst']:.3f} | {total['same']} of {total['steps']}" if total else "- | - | -"


def row_text(row):
    verdict = "within" if row["within"] else f"**outside**, {len(row['wrong'])} wrong tokens"
    if row["unlisted"]:
        verdict += f", {row['unlisted']} unlisted"
    share = row["mean"] / row["rounded"]["mean"] if row["rounded"] and row["rounded"]["mean"] else None
    star = "" if Limits(*row["limits"]) == ROUNDED else "*"
    return (f"| {row['model']}{star} | {row['device']}, {row['plan']} | {row['steps']} | {numbers(row)} | "
            f"{numbers(row['rounded'])} | {'-' if share is None else f'{share:.2f}'} | {verdict} |")


class Run:
    def __init__(self, options, models):
        self.o, self.begin = options, time.monotonic()
        self.result = {"command": sys.argv[1:], "rows": [], "references": {}, "left_out": [], "failures": []}
        self.jobs = jobs_of(models, options.device.split(","), options.every)
        models = [m for m in models if any(job.model is m for job in self.jobs)]
        self.references = Stored() if options.reference == "stored" else Transformers(options, models)
        self.given_up, self.failed = set(), collections.Counter()

    def note(self, what, why):
        self.result["failures"].append(f"{what}: {why}")
        print(f"FAILED {what}: {why}", file=sys.stderr)

    def save(self):
        self.result["seconds"] = time.monotonic() - self.begin
        with open(os.path.join(self.o.out, "result.json"), "w", encoding="utf-8") as file:
            json.dump(self.result, file, indent=1)

    def check_reference(self, model, reference):
        """Once a model: the reference beside golden.json, where there is one."""
        if model.name in self.result["references"]:
            return
        kept = {key: reference.get(key) for key in ("versions", "stored", "float32_seconds", "rounded_seconds")}
        if self.o.reference == "transformers" and is_golden(model):
            total = summed([compare(old["steps"], until_apart(old["steps"], new["steps"]), FLOAT32.gap)
                            for old, new in zip(model.cases, reference["cases"])])
            kept["golden"] = dict(total, within=within(total, FLOAT32))
        self.result["references"][model.name] = kept

    def measure(self, job, reference):
        count = steps_asked(job, self.o.steps, self.o.cpu_steps)
        rounded = None
        if "rounded" in reference:
            rounded = summed([compare(case["steps"][:count], as_answers(steps)[:count], ROUNDED.gap)
                              for case, steps in zip(reference["cases"], reference["rounded"])])
        limits = limits_of(job.model, rounded)
        label = "-".join([job.model.name, job.device, job.plan]).replace(",", "").replace(" ", "-")
        plan = os.path.join(self.o.out, label + ".plan.json")
        with open(plan, "w", encoding="utf-8") as file:
            json.dump(plan_json(job.homes, max(len(c["prompt"]) for c in job.model.cases) + self.o.steps + 1), file)
        begin = time.monotonic()
        with Daemon(self.o, job, plan, os.path.join(self.o.out, label + ".log")) as daemon:
            if daemon.homes() != job.homes:
                raise Failed(f"runs {daemon.homes()}, not {job.homes}")
            workers = daemon.cli("status", "--json")["workers"]
            ready = time.monotonic()
            total = summed([compare(case["steps"][:count], follow(daemon.ask, case, count, limits.gap), limits.gap)
                            for case in reference["cases"]])
        return dict(total, model=job.model.name, device=job.device, plan=job.plan, homes=job.homes, limits=list(limits),
                    within=within(total, limits), rounded=rounded, start_seconds=ready - begin,
                    seconds=time.monotonic() - begin,
                    workers=[{"name": w["name"], "device": w.get("device"), "kernels": w.get("kernels")} for w in workers])

    def all(self):
        print(HEADER, flush=True)
        for job in self.jobs:
            what = f"{job.model.name}, {job.device}, {job.plan}"
            if job.model.name in self.given_up:
                continue
            late = job.further and time.monotonic() - self.begin > self.o.seconds
            if late or self.failed[job.device] == GIVE_UP:
                self.result["left_out"].append(f"{what} ({'time' if late else 'failures in a row'})")
                continue
            try:
                reference = self.references.of(job.model)
                self.check_reference(job.model, reference)
            except Failed as why:
                self.note(job.model.name, why)
                self.given_up.add(job.model.name)
                continue
            try:
                self.result["rows"].append(self.measure(job, reference))
                self.failed[job.device] = 0
                print(row_text(self.result["rows"][-1]), flush=True)
            except Failed as why:
                self.note(what, why)
                self.failed[job.device] += 1
            self.save()
        self.references.end()

    def finish(self):
        """The closing lines; the exit status."""
        result = self.result
        for name, kept in result["references"].items():
            if kept.get("golden"):
                print(f"\n{name}: float32 of this run beside golden.json: mean {kept['golden']['mean']:.6f}, worst "
                      f"{kept['golden']['worst']:.5f}, {'within' if kept['golden']['within'] else '**outside**'}")
        if any(Limits(*row["limits"]) != ROUNDED for row in result["rows"]):
            print("\n*: limits are 1.25 times what transformers had in 16 bits, which is outside of the golden models' limits")
        if result["left_out"]:
            print(f"\nleft out: {'; '.join(result['left_out'])}")
        outside = [row for row in result["rows"] if not row["within"]]
        outside += [kept for kept in result["references"].values() if kept.get("golden") and not kept["golden"]["within"]]
        self.save()
        print(f"\n{len(result['rows'])} rows, {len(outside)} outside the tolerances, {len(result['failures'])} failed; "
              f"{result['seconds']:.0f} s")
        if result["failures"] or not result["rows"]:
            return 5
        return 1 if outside else 0


def parse(argv):
    helmd = []
    if "--" in argv:
        at = argv.index("--")
        argv, helmd = argv[:at], argv[at + 1:]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("bin", "out"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--golden")
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--device", default="cuda,emulated")
    parser.add_argument("--reference", choices=["transformers", "stored"], default="transformers")
    parser.add_argument("--reference-device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--prompt", default="5,128,700")
    parser.add_argument("--profile", default=os.path.join(here, "../../profiles/h200-sapphire-rapids.json"))
    parser.add_argument("--vram")
    for name, value in (("steps", 32), ("cpu-steps", 16), ("every", 3), ("seconds", 180), ("seed", 1)):
        parser.add_argument("--" + name, type=int, default=value)
    options = parser.parse_args(argv)
    options.helmd = helmd
    if not set(options.device.split(",")) <= {"cuda", "emulated", "cpu"}:
        parser.error("--device is a list of cuda, emulated, cpu")
    if min(options.steps, options.cpu_steps, options.every) < 1:
        parser.error("--steps, --cpu-steps and --every are at least 1")
    options.folders = (golden_folders(options.golden) if options.golden else []) + options.model
    if not options.folders:
        parser.error("no model: --golden or --model")
    names = [os.path.basename(os.path.normpath(f)) for f in options.folders]
    if len(set(names)) < len(names):
        parser.error("two models have one name")
    for program in ("helmd", "helm-cli"):
        if not os.access(os.path.join(options.bin, program), os.X_OK):
            parser.error(f"{options.bin} has no {program}")
    return options


def main():
    options = parse(sys.argv[1:])
    os.makedirs(options.out, exist_ok=True)
    models = [read_model(folder, [int(n) for n in options.prompt.split(",")], options.steps, options.seed)
              for folder in options.folders]
    run = Run(options, models)
    try:
        run.all()
    finally:
        run.references.end()
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
