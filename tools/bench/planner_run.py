"""Programs that the planner's benchmarks run: helm-plan, helm-profile, helm-bench and private daemons, bounded in time; what
they answered, as numbers; and the report, kept where a run that is cut short does not lose it.

Imported by planner_bench.py, planner_accuracy.py, forecast_formats.py, context_cells.py and cpu_visits.py. Standard library only."""
import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import types

import token_path

PARTS_WARM = 8  # tokens
END_S = 5  # for a program that is told to end


class Failed(Exception):
    """A program that did not do what it was asked for: its last words."""


class Cut(BaseException):
    """Time to end: a signal's number, or 0 when --seconds are over."""

    def __init__(self, number=0):
        super().__init__()
        self.number = number


def cut(number, _frame):
    for again in (signal.SIGTERM, signal.SIGINT):
        signal.signal(again, signal.SIG_IGN)  # what is left takes no time
    raise Cut(number)


def parser_of_model(doc, vram, seconds):
    """Options of a script that measures one model; vram, seconds: what is usual."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("bin", "out", "model"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--profile")
    parser.add_argument("--vram", default=vram)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=seconds)
    return parser


def run(command, timeout_s):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as late:
        raise Failed(f"{os.path.basename(command[0])}: no end after {timeout_s} s") from late
    finally:
        if process.poll() is None:  # late, or cut short: it has a daemon to end and a folder to remove
            process.terminate()
            try:
                process.communicate(timeout=END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
    return process.returncode, out, err


class Bench:
    def __init__(self, options):
        self.o = options
        self.failures = []
        self.begin = time.monotonic()
        os.makedirs(options.out, exist_ok=True)
        open(self.path("result.md"), "w", encoding="utf-8").close()

    def say(self, text=""):
        """A line of the report, kept where a closed standard output does not lose it."""
        with open(self.path("result.md"), "a", encoding="utf-8") as file:
            file.write(text + "\n")
        try:
            print(text, flush=True)
        except OSError:
            pass

    def go_on(self):
        if self.o.seconds and time.monotonic() - self.begin > self.o.seconds:
            raise Cut()

    def path(self, name):
        return os.path.join(self.o.out, name)

    def program(self, name):
        return os.path.join(self.o.bin, name)

    def helm_profile(self, *options):
        command = [self.program("helm-profile"), *options]
        if self.o.device:
            command += ["--device", self.o.device]
        status, out, err = run(command, 300)
        if status:
            raise Failed(f"helm-profile: status {status}: {(err or out).strip()[-300:]}")
        return out

    def refresh(self, model, whole=True):
        """The machine as it is now, for all that follows; else what its cached profile lacks of this model's formats."""
        profile = self.path("profile.json")
        self.helm_profile("--quick", *(["--force"] if whole else []), "--out", profile, "--model", model)
        self.o.profile = profile

    def now(self, model=None, activations="exact"):
        """Path of what memory and link give at this moment, by plain reads, or as one token of a model reads with the CPU's activations."""
        path = self.path("now.json" if model else "now-plain.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.helm_profile("--now", *(["--model", model, "--activations", activations] if model else [])))
        return path

    def measure_formats(self, models):
        """This machine's profile has the rates of all their formats, as it would when helmd has started with each."""
        for model in models if not self.o.profile else ():
            begin = time.monotonic()
            self.helm_profile("--model", model)
            self.say(f"helm-profile --model {name_of(model)}: {time.monotonic() - begin:.1f} s")

    def profile(self):
        if not self.o.profile:
            return None
        with open(self.o.profile, encoding="utf-8") as file:
            return json.load(file)

    def helm_plan(self, model, arguments, name):
        """The object that helm-plan --json prints, kept as NAME.plan.json."""
        command = [self.program("helm-plan"), "--model", model, "--json"] + arguments
        if self.o.profile:
            command += ["--profile", self.o.profile]
        elif self.o.device:
            command += ["--device", self.o.device]
        status, out, err = run(command, 60)
        try:
            answer = json.loads(out)
        except ValueError:
            raise Failed(f"helm-plan: status {status}: {err.strip()[-300:]}") from None
        if "error" in answer:
            raise Failed(f"helm-plan: {answer['error']}")
        with open(self.path(name + ".plan.json"), "w", encoding="utf-8") as file:
            json.dump(answer, file, indent=1)
        return answer

    def measure(self, model, plan_name, vram, prompt, name, output=None):
        """Medians that helm-bench reports of a daemon running that plan."""
        self.go_on()
        report = self.path(name + ".bench.json")
        command = [self.program("helm-bench"), "--model", model, "--prompt", str(prompt), "--output",
                   str(output or self.o.output), "--requests", str(self.o.requests), "--rounds", str(self.o.bench_rounds), "--json", report]
        if vram:
            command += ["--vram", vram]
        if self.o.device:
            command += ["--device", self.o.device]
        command += ["--", "--plan", self.path(plan_name + ".plan.json")]
        if self.o.profile:
            command += ["--profile", self.o.profile]
        status, out, err = run(command + self.o.helmd, 600)
        try:
            with open(report, encoding="utf-8") as file:
                cell = json.load(file)["cells"][0]
        except (OSError, ValueError, LookupError):
            raise Failed(f"helm-bench: status {status}: {(err or out).strip()[-300:]}") from None
        if cell.get("error"):
            raise Failed(f"helm-bench: {cell['error']}")
        return {"requests": cell["requests"], "tpot_ms": cell["server"]["tpot_ms"], "ttft_ms": cell["server"]["ttft_ms"],
                "client_ttft_ms": cell["ttft_ms"]["p50"], "read_gb_s": cell.get("read_gb_s"),
                "load_seconds": cell.get("load_seconds")}

    def run_request(self, endpoint, report, prompt, output):
        """The server's own figures of one request."""
        command = [self.program("helm-bench"), "--connect", endpoint, "--prompt", str(prompt), "--output", str(output),
                   "--requests", "1", "--warmup", "0", "--rounds", "1", "--read-buffer", "0", "--json", report]
        status, out, err = run(command, 600)
        if status:
            raise Failed(f"helm-bench --connect: status {status}: {(err or out).strip()[-300:]}")
        with open(report, encoding="utf-8") as file:
            return json.load(file)["cells"][0]["server"]

    def parts_runs(self, options, prompt):
        """{tokens: [(what the server said, what workers computed and waited), ...]} of requests for one token and for all in turn,
        behind one that does not count."""
        with tempfile.TemporaryDirectory(prefix="helm-parts-") as rundir, token_path.Daemon(options, rundir) as daemon:
            report = os.path.join(rundir, "bench.json")
            self.run_request(daemon.endpoint, report, prompt, PARTS_WARM)  # everything touched once
            runs, before = {1: [], self.o.output: []}, token_path.status(options, daemon.endpoint)
            for output in self.o.requests * tuple(runs):
                said = self.run_request(daemon.endpoint, report, prompt, output)
                after = token_path.status(options, daemon.endpoint)
                runs[output].append((said, worker_seconds(before, after)))
                before = after
        return runs

    def parts(self, model, plan_name, vram, prompt):
        """Where the time of a first token and of a decoded one goes, in ms: each worker's computing and waiting, by helmd's
        counters, and what is outside of both. Of --requests for one token the one with the middle TTFT, and of as many for
        all tokens, between those, the one with the middle TPOT: a row's parts are of the request whose time it gives."""
        helmd = ["--plan", self.path(plan_name + ".plan.json")] + (["--vram", vram] if vram else [])
        helmd += ["--device", self.o.device] if self.o.device else []
        helmd += ["--profile", self.o.profile] if self.o.profile else []
        options = types.SimpleNamespace(bin=self.o.bin, model=model, helmd=helmd + self.o.helmd)
        try:
            runs = self.parts_runs(options, prompt)
        except SystemExit as why:  # token_path.py said it on standard error
            raise Failed("helmd or a request to it failed") from why
        first_said, first = middle(runs[1], "ttft_ms")
        said, seconds = middle(runs[self.o.output], "tpot_ms")
        first = {key: 1e3 * value for key, value in first.items()}
        step = {key: (1e3 * value - first[key]) / (self.o.output - 1) for key, value in seconds.items()}
        first["ms"], step["ms"] = first_said["ttft_ms"], said["tpot_ms"]
        for part in (first, step):
            part["outside_ms"] = part["ms"] - max(part[f"{name}_ms"] + part[f"{name}_waits_ms"]
                                                  for name in ("cpu", "gpu") if f"{name}_ms" in part)
        return {"first": first, "decode": step}

    def note(self, what, why):
        self.failures.append(f"{what}: {why}")
        print(f"FAILED {what}: {why}", file=sys.stderr)

    def save(self, result, whole=False):
        """Whole files only: one that is cut off in writing does not replace the last."""
        path = self.path("result.json")
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(dict(result, whole=whole, failures=self.failures), file, indent=1)
        os.replace(path + ".new", path)

    def finish(self, result, ended):
        """`ended`: None, or what cut it short."""
        if ended is not None:
            self.say(f"\ncut short {f'by signal {ended.number}' if ended.number else 'by --seconds'}: not all was measured")
        self.save(result, whole=ended is None)
        sys.exit(128 + ended.number if ended is not None and ended.number else 5 if self.failures else 0)


def name_of(model):
    return os.path.basename(os.path.normpath(model))


def vram_arguments(vram):
    return [] if vram in (None, "all") else ["--vram", vram]


def relative(predicted, measured):
    return (predicted - measured) / measured


def summary(errors):
    sizes = sorted(abs(e) for e in errors)
    return {"cells": len(sizes), "median": statistics.median(sizes), "worst": sizes[-1]} if sizes else None


def said_at_read(b, model, arguments, name, got):
    """Decode token/s forecast for the memory that the runs found, of a plan in `arguments`; None where it is not known."""
    reads = [g["read_gb_s"]["p50"] for g in got if g.get("read_gb_s") and g["read_gb_s"].get("p50")]
    if not reads:
        return None
    path = b.path(name + ".read.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"helm_now": 1, "read": 1e9 * statistics.median(reads)}, file)
    return b.helm_plan(model, arguments + ["--now", path], name + "-at-read")["decode_tok_s"]["value"]


def worker_seconds(before, after):
    """What each worker computed and waited between two states, in seconds: cpu_ms, cpu_waits_ms, ... once it is times 1000."""
    difference = {}
    for old, new in zip(before["workers"], after["workers"]):
        difference[f"{new['name']}_ms"] = new["busy_seconds"] - old["busy_seconds"]
        difference[f"{new['name']}_waits_ms"] = new["wait_seconds"] - old["wait_seconds"]
    return difference


def middle(runs, key):
    """Of (what the server said, ...) the one whose figure is the median; of an even number the larger of two, as helm-bench's."""
    return sorted(runs, key=lambda run: run[0][key])[len(runs) // 2]


def percent(error):
    return "-" if error is None else f"{100 * error:+.1f} %"


def figure(value, digits):
    return "-" if value is None else f"{value:.{digits}f}"
