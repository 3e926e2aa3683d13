#!/usr/bin/env python3
"""Holds the planner's word against the clock.

  planner_bench.py accuracy --bin DIR --out DIR --model DIR [--model DIR...] [--vram SIZE,...] [--prompt N,...]
      Plans every (model, ceiling) for each prompt length, runs that plan, and compares predicted with measured decode speed
      (at the context that the output has on average) and TTFT. The machine's own profile first gets the rates of the models'
      formats of weights (helm-profile --model). --refresh takes the machine's profile anew (helm-profile
      --quick) before each model and ceiling, for machines whose memory others use too; and the decode error is given a second
      time with the profile's CPU rates scaled to the reads measured beside the run: what is left is the model's own error.
      A second table says what forecast and measurement are made of (each worker's computing and waiting, by helmd's counters),
      from another start of the same plan, whose medians count as well; --no-parts leaves it out. --ttft-prompt N,...: prompts of which only TTFT is compared,
      with few tokens of output. The last table has the errors alone, a row for each model and ceiling.
  planner_bench.py sweep --bin DIR --out DIR --model DIR --vram SIZE [--prompt N] [--every N] [--random N] [--seed N]
      Runs the chosen plan, every N-th thesis split and N random mixtures of homes, round by round, and says how far the chosen
      one is from the best measured. The chosen one runs again after every eighth of the others: what it is compared with is
      spread over minutes, in which machines change.
  planner_bench.py reach --bin DIR --out DIR --model DIR --vram SIZE [--prompt N,...] [--limits FILE]
      Runs the chosen plan and the best thesis split, interleaved; gives the ratio, and decode against the bound
      Wh / B_both + Wg / B_gpu of the profile (or of --limits, JSON with both_gb_s and vram_gb_s): of all weights as they are
      in the file, and, where some are packed, of the bytes that move over the link, to the CPU and from VRAM.

Common: --output N (tokens, default 64), --requests N (in each run, one after another behind one that does not count; what is
measured is their median; default 3), --bench-rounds N (times that in each run, with a read of memory before and after; default
1), --rounds N (runs, each with a start of its own; their median), --profile FILE, --device D, --seconds S (begin no further
measurement after so long), and after -- options for helmd.
Writes every plan and every helm-bench report into --out, Markdown tables to standard output and to result.md there, and after
every measurement result.json, whose "whole" says whether all was measured. SIGTERM and SIGINT end it early with the tables of
what there is.
Exit status: 0; 2 usage; 5 something failed (it is named; the rest went on); 128+N cut short by signal N. Standard library
only."""
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
from plan_bound import bound_seconds, bytes_by_home, moved_bytes
from plan_lists import homes_text, random_mixtures, thesis_splits

CONTEXT_SLACK = 16
PARTS_WARM = 8  # tokens
TTFT_OUTPUT = 4  # tokens after a prompt of which only TTFT is compared
CHOSEN_AGAIN = 8  # of a sweep's plans
END_S = 5  # for a program that is told to end


def die(text, status=5):
    print(f"planner_bench.py: {text}", file=sys.stderr)
    sys.exit(status)


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

    def refresh(self, model):
        """The machine as it is now, for all that follows."""
        profile = self.path("profile.json")
        self.helm_profile("--quick", "--force", "--out", profile, "--model", model)
        self.o.profile = profile

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

    def helm_plan(self, model, arguments, name, profile=None):
        """The object that helm-plan --json prints, kept as NAME.plan.json."""
        command = [self.program("helm-plan"), "--model", model, "--json"] + arguments
        if profile or self.o.profile:
            command += ["--profile", profile or self.o.profile]
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

    def parts(self, model, plan_name, vram, prompt):
        """Where the time of a first token and of a decoded one goes, in ms: each worker's computing and waiting, by helmd's
        counters, and what is outside of both. Of --requests for one token the one with the middle TTFT, and of as many for
        all tokens, between those, the one with the middle TPOT: a row's parts are of the request whose time it gives."""
        helmd = ["--plan", self.path(plan_name + ".plan.json")] + (["--vram", vram] if vram else [])
        helmd += ["--device", self.o.device] if self.o.device else []
        helmd += ["--profile", self.o.profile] if self.o.profile else []
        options = types.SimpleNamespace(bin=self.o.bin, model=model, helmd=helmd + self.o.helmd)
        with tempfile.TemporaryDirectory(prefix="helm-parts-") as rundir, token_path.Daemon(options, rundir) as daemon:
            report = os.path.join(rundir, "bench.json")
            self.run_request(daemon.endpoint, report, prompt, PARTS_WARM)  # everything touched once
            runs, before = {1: [], self.o.output: []}, token_path.status(options, daemon.endpoint)
            for output in self.o.requests * tuple(runs):
                said = self.run_request(daemon.endpoint, report, prompt, output)
                after = token_path.status(options, daemon.endpoint)
                runs[output].append((said, worker_seconds(before, after)))
                before = after
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


def scaled_profile(profile, read_gb_s):
    """The profile with the CPU's memory rates as they would be if it had read as fast as this; None without both readings."""
    read = max(profile["cpu"]["read"], key=lambda entry: entry["x"], default=None) if profile else None
    if not read or not read_gb_s or not read["value"]:
        return None
    factor = read_gb_s * 1e9 / read["value"]
    other = json.loads(json.dumps(profile))
    rates = [other["cpu"].get(name, {}) for name in ("gemv", "gemv_beside", "gemv_packed", "gemv_packed_beside", "attention")]
    rates += [f.get(name, {}) for f in other.get("formats", {}).values() for name in ("cpu_gemv", "cpu_gemv_beside")]
    for rate in rates:
        rate.update({key: rate[key] * factor for key in ("value", "low", "high") if key in rate})
    return other


def said_at_read(b, model, arguments, name, got):
    """Decode token/s forecast for the memory that the runs found; None where it is not known."""
    reads = [g["read_gb_s"]["p50"] for g in got if g.get("read_gb_s") and g["read_gb_s"].get("p50")]
    profile = scaled_profile(b.profile(), statistics.median(reads) if reads else None)
    if not profile:
        return None
    path = b.path(name + ".scaled-profile.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(profile, file)
    return b.helm_plan(model, arguments, name + "-scaled", path)["decode_tok_s"]["value"]


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


def print_parts(b, rows):
    """Forecast parts beside measured ones. What nobody computes is the forecast's hand-overs and rest; measured it is a
    worker's waiting (for the other's turn, too: of two workers, one's waiting is mostly the other's computing)."""
    b.say("\n| model | VRAM | prompt | of | ms said | ms | CPU said | CPU | its waits | GPU said | GPU | its waits | link said | "
          "hand-overs said | rest said | outside the workers |")
    b.say("| --- " * 16 + "|")
    for r in rows:
        for of in ("first", "decode") if r.get("parts") else ():
            said, got = r["said_parts"][of], r["parts"][of]
            cells = [said["ms"], got["ms"], said["cpu_ms"], got.get("cpu_ms"), got.get("cpu_waits_ms"), said["gpu_ms"],
                     got.get("gpu_ms"), got.get("gpu_waits_ms"), said["link_ms"], said["hand_overs_ms"], said["rest_ms"],
                     got["outside_ms"]]
            b.say(f"| {r['model']} | {r['vram']} | {r['prompt']} | {of} | " +
                  " | ".join("-" if cell is None else f"{cell:.3f}" for cell in cells) + " |")


def percent(error):
    return "-" if error is None else f"{100 * error:+.1f} %"


def accuracy_cell(b, model, vram, prompt, whole):
    """One row; not `whole`: with few tokens, for TTFT alone."""
    output = b.o.output if whole else TTFT_OUTPUT
    name = f"{name_of(model)}-{vram}-{prompt}"
    sizes = ["--ctx", str(prompt + output + CONTEXT_SLACK), "--prompt", str(prompt)]
    ceiling = vram_arguments(vram)
    plan = b.helm_plan(model, sizes + ceiling, name)
    at = sizes + ceiling + ["--plan", b.path(name + ".plan.json"), "--at", str(prompt + output // 2)]
    said = b.helm_plan(model, at, name + "-said")
    got = [b.measure(model, name, ceiling and vram, prompt, f"{name}-{r}", output) for r in range(b.o.rounds)]
    parts = None if b.o.no_parts or not whole else b.parts(model, name, ceiling and vram, prompt)
    # The parts are of a daemon of their own, started a little later: with host memory that others use, too, two medians
    # some seconds apart differ by several per cent, so what is compared is the mean of both.
    again = [parts[of]["ms"] for of in ("first", "decode")] if parts else None
    ttft = statistics.mean([statistics.median(g["ttft_ms"] for g in got)] + (again[:1] if again else []))
    row = {"model": name_of(model), "vram": vram, "prompt": prompt, "said_ttft_ms": said["ttft_ms"]["value"], "ttft_ms": ttft,
           "ttft_error": relative(said["ttft_ms"]["value"], ttft), "requests": sum(g["requests"] for g in got) * (2 if parts else 1),
           "homes": homes_text(plan),
           "load_seconds": got[0]["load_seconds"], "said_parts": said["parts"]}
    if whole:
        runs_ms = [statistics.median(g["tpot_ms"] for g in got)] + (again[1:] if again else [])
        tok_s = 1000 / statistics.mean(runs_ms)
        at_read = said_at_read(b, model, at, name, got)
        row.update(said_tok_s=said["decode_tok_s"]["value"], tok_s=tok_s,
                   decode_error=relative(said["decode_tok_s"]["value"], tok_s),
                   decode_error_at_read=None if at_read is None else relative(at_read, tok_s),
                   runs_ms=runs_ms, parts=parts)
    return row


def accuracy_result(rows):
    def of(key):
        return summary([r[key] for r in rows if r.get(key) is not None])
    return {"command": "accuracy", "rows": rows, "decode": of("decode_error"), "decode_at_read": of("decode_error_at_read"),
            "ttft": of("ttft_error")}


def accuracy_measure(b, rows):
    o = b.o
    prompts = [(int(p), True) for p in o.prompt.split(",")]
    prompts += [(int(p), False) for p in o.ttft_prompt.split(",") if p and (int(p), True) not in prompts]
    for model in o.model:
        for vram in o.vram.split(","):
            b.go_on()
            if o.refresh:
                try:
                    b.refresh(model)
                except Failed as why:
                    b.note(f"{name_of(model)}-{vram}", why)
                    continue
            for prompt, whole in prompts:
                try:
                    rows.append(accuracy_cell(b, model, vram, prompt, whole))
                except Failed as why:
                    b.note(f"{name_of(model)}-{vram}-{prompt}", why)
                b.save(accuracy_result(rows))


def figure(value, digits):
    return "-" if value is None else f"{value:.{digits}f}"


def print_errors(b, rows, result):
    """Errors alone: a row for each model and ceiling, then median and worst."""
    columns = [(of, key, prompt) for of, key in (("decode", "decode_error"), ("TTFT", "ttft_error"))
               for prompt in sorted({r["prompt"] for r in rows if r.get(key) is not None})]
    b.say("\n| model | VRAM | " + " | ".join(f"{of} {prompt:,}" for of, _, prompt in columns) + " |")
    b.say("| --- " * (2 + len(columns)) + "|")
    for model, vram in dict.fromkeys((r["model"], r["vram"]) for r in rows):
        cell = {r["prompt"]: r for r in rows if (r["model"], r["vram"]) == (model, vram)}
        b.say(f"| {model} | {vram} | " + " | ".join(percent(cell.get(prompt, {}).get(key)) for _, key, prompt in columns) + " |")
    for what, key in (("decode", "decode"), ("decode at the reads measured beside each run", "decode_at_read"), ("TTFT", "ttft")):
        if result[key]:
            b.say(f"\n{what}: median error {100 * result[key]['median']:.1f} %, worst {100 * result[key]['worst']:.1f} % of "
                  f"{result[key]['cells']} cells")


def accuracy(b):
    rows, ended = [], None
    try:
        if not b.o.refresh:
            b.measure_formats(b.o.model)
        b.say()
        accuracy_measure(b, rows)
    except Cut as why:
        ended = why
    except Failed as why:
        b.note("the profile", why)
    b.say("| model | VRAM | prompt | homes | token/s predicted | measured | error | at the run's reads | TTFT ms predicted | "
          "measured | error |")
    b.say("| --- " * 11 + "|")
    for r in rows:
        b.say(f"| {r['model']} | {r['vram']} | {r['prompt']} | {r['homes']} | {figure(r.get('said_tok_s'), 2)} | "
              f"{figure(r.get('tok_s'), 2)} | {percent(r.get('decode_error'))} | {percent(r.get('decode_error_at_read'))} | "
              f"{r['said_ttft_ms']:.1f} | {r['ttft_ms']:.1f} | {percent(r['ttft_error'])} |")
    if rows:
        b.say(f"\nmeasured by helmd's own times: medians of {b.o.requests} requests, of two starts of the daemon their mean where "
              "parts were measured")
    if not b.o.no_parts:
        print_parts(b, rows)
    result = accuracy_result(rows)
    print_errors(b, rows, result)
    b.finish(result, ended)


def sweep_plans(b):
    """The chosen plan's name and those of the others, each written as NAME.plan.json."""
    o = b.o
    sizes = ["--ctx", str(int(o.prompt.split(",")[0]) + o.output + CONTEXT_SLACK), "--prompt", o.prompt.split(",")[0]]
    chosen = b.helm_plan(o.model[0], sizes + vram_arguments(o.vram), "chosen")
    others = []
    for name, plan in list(thesis_splits(chosen, o.every)) + list(random_mixtures(chosen, o.random, o.seed)):
        with open(b.path(name + ".plan.json"), "w", encoding="utf-8") as file:
            json.dump(plan, file)
        others.append(name)
    return ["chosen"] + others


def sweep_order(plans, backwards):
    """All plans, the first of them again and again between the others and at the end."""
    first, others = plans[0], plans[:0:-1] if backwards else plans[1:]
    order = []
    for i in range(0, max(len(others), 1), CHOSEN_AGAIN):
        order += [first] + others[i:i + CHOSEN_AGAIN]
    return order + [first] if others else order


def sweep_result(tok_s, refused):
    medians = {name: statistics.median(values) for name, values in tok_s.items()}
    return {"command": "sweep", "tok_s": tok_s, "medians": medians, "refused": refused,
            "best": max(medians, key=medians.get) if medians else None}


def sweep_measure(b, tok_s, refused):
    o, plans, run = b.o, sweep_plans(b), 0
    for r in range(o.rounds):
        for name in sweep_order(plans, r % 2):
            run += 1
            if name in refused:
                continue
            try:
                got = b.measure(o.model[0], name, vram_arguments(o.vram) and o.vram, int(o.prompt.split(",")[0]), f"{name}-{run}")
                tok_s.setdefault(name, []).append(1000 / got["tpot_ms"])
            except Failed as why:
                if "fit" in str(why) or "VRAM" in str(why):
                    refused.append(name)  # does not fit: not a plan for this machine
                else:
                    b.note(name, why)
            b.save(sweep_result(tok_s, refused))


def sweep(b):
    tok_s, refused, ended = {}, [], None
    try:
        sweep_measure(b, tok_s, refused)
    except Failed as why:
        b.note("chosen", why)
    except Cut as why:
        ended = why
    result = sweep_result(tok_s, refused)
    medians, best = result["medians"], result["best"]
    b.say("| plan | token/s | of the best | runs |\n| --- | --- | --- | --- |")
    for name in sorted(medians, key=medians.get, reverse=True):
        b.say(f"| {name} | {medians[name]:.2f} | {100 * medians[name] / medians[best]:.1f} % | {len(tok_s[name])} |")
    b.say(f"\n{len(medians)} plans measured; {len(refused)} do not fit: {', '.join(refused) or 'none'}")
    if "chosen" in medians:
        runs = tok_s["chosen"]
        b.say(f"chosen: {100 * medians['chosen'] / medians[best]:.1f} % of the best measured ({best}); its own {len(runs)} runs "
              f"{min(runs):.2f} to {max(runs):.2f}")
    b.finish(result, ended)


def limits_of(b):
    """What the bound divides by, in GB/s: --limits, or the profile's rates of CPU and link beside each other."""
    if b.o.limits:
        with open(b.o.limits, encoding="utf-8") as file:
            return json.load(file)
    profile = b.profile()
    if not profile or not profile.get("link") or not profile.get("gpu"):
        return None
    return {"both_gb_s": (profile["cpu"]["gemv_beside"]["value"] + profile["link"]["h2d_beside"]["value"]) / 1e9,
            "cpu_gb_s": profile["cpu"]["gemv"]["value"] / 1e9, "vram_gb_s": profile["gpu"]["gemv"]["value"] / 1e9}


def reach(b):
    o, model = b.o, b.o.model[0]
    ceiling = vram_arguments(o.vram)
    names, plans, got, ended = [], {}, {}, None
    for prompt in o.prompt.split(","):
        for strategy in ("best", "thesis"):
            name = f"{strategy}-{prompt}"
            sizes = ["--ctx", str(int(prompt) + o.output + CONTEXT_SLACK), "--prompt", prompt]
            try:
                plans[name] = b.helm_plan(model, sizes + ceiling + ["--strategy", strategy], name)
                names.append((name, int(prompt)))
            except Failed as why:
                b.note(name, why)
    try:
        for r in range(o.rounds):
            for name, prompt in names if r % 2 == 0 else reversed(names):
                try:
                    got.setdefault(name, []).append(b.measure(model, name, ceiling and o.vram, prompt, f"{name}-{r}"))
                except Failed as why:
                    b.note(name, why)
                b.save({"command": "reach", "raw": got})
    except Cut as why:
        ended = why
    rows, limits = {}, limits_of(b)
    if limits:
        b.say("limits: " + ", ".join(f"{key[:-5].replace('_', ' ')} {value:.1f} GB/s" for key, value in limits.items()))
    b.say("| plan | homes | token/s | predicted | TTFT ms | predicted |\n| --- | --- | --- | --- | --- | --- |")
    for name, _ in names:
        if not got.get(name):
            continue
        rows[name] = {"tok_s": statistics.median(1000 / g["tpot_ms"] for g in got[name]),
                      "ttft_ms": statistics.median(g["client_ttft_ms"] for g in got[name])}
        p = plans[name]
        b.say(f"| {name} | {homes_text(p)} | {rows[name]['tok_s']:.2f} | {p['decode_tok_s']['value']:.2f} | "
              f"{rows[name]['ttft_ms']:.1f} | {p['ttft_ms']['value']:.1f} |")
    for prompt in o.prompt.split(","):
        best, thesis = rows.get(f"best-{prompt}"), rows.get(f"thesis-{prompt}")
        if best and thesis:
            b.say(f"\nprompt {prompt}: {best['tok_s'] / thesis['tok_s']:.2f} times the thesis split")
        if best and limits:
            plan = plans[f"best-{prompt}"]
            total = bytes_by_home(plan, model)
            moved = moved_bytes(plan, total)
            bound_s = bound_seconds(total, limits)
            best["of_bound"] = bound_s * best["tok_s"]
            if moved != total:  # packed: what cannot be beaten is moving fewer bytes
                packed_s = bound_seconds(moved, limits)
                best["of_bound_moved"] = packed_s * best["tok_s"]
                b.say(f"prompt {prompt}: {100 * best['of_bound_moved']:.1f} % of the bound of the bytes that move, "
                      f"{moved['stream'] / 1e9:.2f} GB over the link, {moved['cpu'] / 1e9:.2f} to the CPU, {moved['gpu'] / 1e9:.2f} from VRAM "
                      f"({1 / packed_s:.2f} token/s)")
            b.say(f"prompt {prompt}: {100 * best['of_bound']:.1f} % of the bound ({1 / bound_s:.2f} token/s)")
    b.finish({"command": "reach", "rows": rows, "raw": got, "limits": limits}, ended)


def main():
    argv, helmd = sys.argv[1:], []
    if "--" in argv:
        at = argv.index("--")
        argv, helmd = argv[:at], argv[at + 1:]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["accuracy", "sweep", "reach"])
    for name in ("bin", "out"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--model", action="append", required=True)
    parser.add_argument("--vram", default="all")
    parser.add_argument("--prompt", default="128")
    parser.add_argument("--ttft-prompt", default="")
    parser.add_argument("--profile")
    parser.add_argument("--limits")
    parser.add_argument("--device", default="")
    for name, value in (("output", 64), ("rounds", 1), ("requests", 3), ("every", 2), ("random", 20), ("seed", 1),
                        ("bench-rounds", 1)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--refresh", action="store_true")
    parser.add_argument("--no-parts", action="store_true")
    options = parser.parse_args(argv)
    options.helmd = helmd
    if options.output < 2 or min(options.requests, options.rounds, options.bench_rounds) < 1:
        die("--output: 2 at least; --requests, --rounds and --bench-rounds: 1 at least", 2)
    for program in ("helm-plan", "helm-bench", "helmd"):
        if not os.access(os.path.join(options.bin, program), os.X_OK):
            die(f"{options.bin} has no {program}")
    b = Bench(options)
    for ended_by in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ended_by, cut)
    try:
        {"accuracy": accuracy, "sweep": sweep, "reach": reach}[options.command](b)
    except Cut as why:  # outside of what can be reported in part
        sys.exit(128 + why.number)


if __name__ == "__main__":
    main()
