"""The programs that cells.py measures: HELM of one folder of programs under one plan, and llama.cpp with its settings swept.

A side has a name. `prepare` does what a cell needs once (a plan and its forecasts, the best settings), `open` starts what stays
loaded, `measure` gives one sample. Programs are bounded in time, and end with the script. Standard library only."""
import contextlib
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import tempfile
import time

READY_S, RUN_S, END_S = 600, 600, 10
LIKELIEST = ["--temperature", "5", "--top-k", "200"]  # nearly alike: greedy tokens repeat soon, and their experts with them


class Failed(Exception):
    """A program that did not do its work: its last words."""


class Cut(BaseException):
    """Time to end: a signal's number, or 0 when --seconds are over."""

    def __init__(self, number=0):
        super().__init__()
        self.number = number


def cut(number, _frame):
    for again in (signal.SIGTERM, signal.SIGINT):
        signal.signal(again, signal.SIG_IGN)  # the rest takes no time
    raise Cut(number)


def end(process):
    if process.poll() is None:
        process.terminate()
        try:
            process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def run(command, timeout_s=RUN_S, good=(0,)):
    """Standard output of a program that ends with a good status."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as late:
        raise Failed(f"{os.path.basename(command[0])}: no end after {timeout_s} s") from late
    finally:
        end(process)
    if process.returncode not in good:
        raise Failed(f"{os.path.basename(command[0])}: status {process.returncode}: {(err or out).strip()[-300:]}")
    return out


def ceiling(vram):
    return [] if vram == "all" else ["--vram", vram]


class Daemon:
    """A private helmd; `close` ends it and removes its folder."""

    def __init__(self, folder, options):
        self.bin, self.dir = folder, tempfile.mkdtemp(prefix="helm-cells-")
        self.process, (read, write) = None, os.pipe()
        try:
            with open(os.path.join(self.dir, "log"), "w", encoding="utf-8") as log:
                self.process = subprocess.Popen([os.path.join(folder, "helmd"), "--rundir", self.dir, "--ready-fd", str(write), *options],
                                                pass_fds=[write], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            os.close(write)
            with os.fdopen(read, encoding="utf-8") as ready:
                words = ready.readline().split()
            if len(words) < 2 or words[0] != "ready":
                raise Failed(f"helmd: {' '.join(words)} {self.said()}")
        except BaseException:
            self.close()
            raise
        self.endpoint = words[1]

    def said(self):
        with open(os.path.join(self.dir, "log"), encoding="utf-8", errors="replace") as log:
            return log.read().strip()[-500:]

    def command(self, *arguments):
        return [os.path.join(self.bin, "helm-cli"), "--connect", self.endpoint, *arguments]

    def status(self):
        return json.loads(run(self.command("status", "--json")))

    def generate(self, prompts, output, more=()):
        """Answers to all prompts at once."""
        running = []
        try:
            for i, prompt in enumerate(prompts):
                path = os.path.join(self.dir, f"{i}.tokens")
                with open(path, "w", encoding="utf-8") as file:
                    file.write(",".join(map(str, prompt)))
                running.append(subprocess.Popen(self.command("generate", "--tokens-file", path, "-n", str(output), "--ignore-eos", "--json",
                                                             *more), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
            said = [process.communicate(timeout=RUN_S) for process in running]
        except subprocess.TimeoutExpired as late:
            raise Failed(f"helm-cli generate: no end after {RUN_S} s") from late
        finally:
            for process in running:
                end(process)
        for process, (_, error) in zip(running, said):
            if process.returncode:
                raise Failed(f"helm-cli generate: {error.strip()[-300:]}; helmd: {self.said()}")
        return [json.loads(answer) for answer, _ in said]

    def close(self):
        if self.process:
            end(self.process)
        shutil.rmtree(self.dir, ignore_errors=True)


def spent(before, after, steps):
    """Milliseconds a step that each worker computed and waited between two states."""
    parts = {}
    for old, new in zip(before["workers"], after["workers"]):
        for name, key in (("", "busy_seconds"), ("_waits", "wait_seconds")):
            parts[new["name"] + name] = 1e3 * (new[key] - old[key]) / steps
    return parts


def less(whole, part, tokens):
    """Of a request for several tokens, less one for the first alone."""
    return {key: (whole[key] - part[key]) / tokens for key in whole}


def found(before, after):
    """The part of the chosen experts that was in VRAM, and how many moved for each; None: no such counters."""
    used, present, moved = (after.get(f"experts_{name}_total", 0) - before.get(f"experts_{name}_total", 0) for name in ("used", "present", "moved"))
    return {"found": present / used, "moved": moved / used} if used else {}


class Helm:
    """A folder of HELM's programs, with more options for the plan, or with other members of it ("plan:NAME=N,NAME.NAME=N")."""

    def __init__(self, name, folder, options=""):
        self.name, self.bin = name, folder
        self.edits, self.more = (options[5:], []) if options.startswith("plan:") else ("", options.split())

    def program(self, name):
        return os.path.join(self.bin, name)

    def helm_plan(self, o, model, options):
        return json.loads(run([self.program("helm-plan"), "--model", model, "--json", *options,
                               *(["--profile", o.profile] if o.profile else ["--device", o.device])], 120))

    def now(self, o, model, activations):
        """Path of what memory and link give at this moment, read as this model's products read."""
        path = os.path.join(o.out, "now.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write(run([self.program("helm-profile"), "--now", "--device", o.device, "--model", model, "--activations", activations], 60))
        return path

    def prepare(self, o, cell, model):
        """The plan that helmd will run and what helm-plan says of it half way through the answer."""
        sizes = ["--ctx", str(cell.context), "--batch", str(cell.sequences), "--prompt", str(cell.prompt), *ceiling(cell.vram)]
        plan, now = self.helm_plan(o, model, sizes + list(cell.plan) + self.more), []
        if o.now:
            now = ["--now", self.now(o, model, (plan.get("activations") or {}).get("cpu", "exact"))]
            plan = self.helm_plan(o, model, sizes + list(cell.plan) + self.more + now)
        for edit in filter(None, self.edits.split(",")):
            names, value = edit.split("=")
            *outer, last = names.split(".")
            member = plan
            for name in outer:
                member = member[name]
            member[last] = int(value)
        path = os.path.join(o.out, f"{cell.name}-{self.name}.plan.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(plan, file, indent=1)
        at = sizes + ["--plan", path, "--at", str(cell.prompt + cell.output // 2)] + now
        self.options = ["--model", model, "--plan", path, "--device", o.device, "--batch", str(cell.sequences), "--parallel", str(cell.sequences),
                        *ceiling(cell.vram), *(["--profile", o.profile] if o.profile else []), *now, *cell.helmd]
        said = self.helm_plan(o, model, at)
        return {"plan": plan, "said": said, "now": json.load(open(now[1], encoding="utf-8")) if now else None,
                "again": lambda edited: self.again(o, model, at, path, edited)}

    def again(self, o, model, at, path, edited):
        """What helm-plan says of the same plan with other members."""
        with open(path + ".edited", "w", encoding="utf-8") as file:
            json.dump(edited, file)
        return self.helm_plan(o, model, [word if word != path else path + ".edited" for word in at])

    @contextlib.contextmanager
    def open(self, _o, cell, _model):
        daemon = Daemon(self.bin, [*self.options, "--prefix-cache", "on" if cell.sequences > 1 else "off"])
        try:
            self.vocab = daemon.status()["model"]["vocab"]
            daemon.generate([[1] * min(16, cell.prompt)] * cell.sequences, min(8, cell.output))  # all touched once
            yield daemon
        finally:
            daemon.close()

    def measure(self, o, cell, daemon, seed):
        """One sample. Several sequences find their prompts, computed before, so that all of them decode together; one has none to
        find. Its parts are those of the whole request less one for the first token."""
        draw = random.Random(seed)
        prompts = [[draw.randrange(self.vocab) for _ in range(cell.prompt)] for _ in range(cell.sequences + 1)]
        more, ttft, first = LIKELIEST + ["--seed", str(seed)] if cell.drawn else ["--temperature", "0"], [], None
        if cell.sequences > 1 or o.parts:
            for prompt in prompts[:-1] if cell.sequences > 1 else prompts[-1:]:
                before = daemon.status()
                ttft += [daemon.generate([prompt], 1, more)[0]["timings"]["ttft_ms"]]
                first = spent(before, daemon.status(), 1)
        before = daemon.status()
        answers = daemon.generate(prompts[:-1], cell.output, more)
        after = daemon.status()
        tpot = statistics.median(answer["timings"]["tpot_ms"] for answer in answers)
        if cell.sequences == 1:
            ttft += [answers[0]["timings"]["ttft_ms"]]
            parts = less(spent(before, after, 1), first, cell.output - 1) if first else {}
        else:
            parts = spent(before, after, after["steps_total"] - before["steps_total"])
        if parts:
            parts["outside"] = tpot - max(parts[name] + parts[name + "_waits"] for name in ("cpu", "gpu") if name in parts)
        return dict({"tok_s": 1e3 * cell.sequences / tpot, "tpot_ms": tpot, "ttft_ms": statistics.median(ttft), "parts": parts},
                    **found(before, after))


class Llama:
    """llama.cpp by llama_bench.c's program, one run a sample, with the fastest of the settings tried once; a card with a ceiling is
    held by occupy_vram, beside it or in --bin."""
    name = "llama.cpp"

    def __init__(self, program, tries):
        self.program, self.tries, self.best = program, tries, None

    @contextlib.contextmanager
    def open(self, o, cell, _model):
        if cell.vram == "all" or o.device == "cpu":
            yield None
            return
        holder = next((p for p in (os.path.join(d, "occupy_vram") for d in (os.path.dirname(self.program), o.bin)) if os.path.exists(p)), None)
        if not holder:
            raise Failed("occupy_vram: neither beside llama_bench nor in --bin")
        process = subprocess.Popen([holder, "--leave", cell.vram], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            if not process.stdout.readline().startswith("holding"):
                raise Failed("occupy_vram: cannot hold the rest of the card")
            yield None
        finally:
            end(process)

    def settings(self, o, cell, layers, mixture):
        """What is tried: of --llama-try, else all on the card, or its layers (a mixture's experts) in eighths."""
        if self.tries:
            return [one.split() for one in self.tries]
        if o.device == "cpu":
            return [["--ngl", "0"]]
        if cell.vram == "all":
            return [["--ngl", "999"]]
        eighths = sorted({layers * n // 8 for n in range(1, 9)})
        return [["--ngl", "999", "--cpu-experts", str(n)] if mixture else ["--ngl", str(n)] for n in eighths]

    def sample(self, cell, model, settings, output, seed):
        out = run([self.program, "--model", model, "--prompt", str(cell.prompt), "--output", str(output), "--requests", "1", "--seed", str(seed),
                   *(["--random"] if cell.drawn else []), *settings])
        first, later = re.search(r"TTFT ([\d.]+) ms", out), re.search(r"TPOT .* p50 ([\d.]+)", out)
        if not first or not later:
            raise Failed(f"llama_bench: no times in '{out.strip()[-200:]}'")
        return {"ttft_ms": float(first[1]), "tpot_ms": float(later[1]), "tok_s": 1e3 / float(later[1]), "parts": {}}

    def prepare(self, o, cell, model, plan=None):
        if not model.endswith(".gguf") or cell.sequences > 1:
            raise Failed("llama.cpp: one sequence of a GGUF file alone is measured")
        speeds, why = {}, None
        with self.open(o, cell, model):
            for settings in self.settings(o, cell, (plan or {}).get("layers", 1), bool((plan or {}).get("experts"))):
                try:
                    speeds[tuple(settings)] = self.sample(cell, model, settings, min(16, cell.output), 1)["tok_s"]
                except Failed as failed:  # does not fit
                    why = failed
        if not speeds:
            raise why
        self.best, self.model = max(speeds, key=speeds.get), model
        return {"settings": " ".join(self.best), "tried": {" ".join(key): value for key, value in speeds.items()}}

    def measure(self, _o, cell, _daemon, seed):
        return self.sample(cell, self.model, list(self.best), cell.output, seed)


def wait_for(o, begin):
    if o.seconds and time.monotonic() - begin > o.seconds:
        raise Cut()
