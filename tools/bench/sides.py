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
    """A token's part of a request for several tokens, less one for the first alone."""
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

    def prepare(self, o, cells, model):
        """The plan that helmd will run and what helm-plan says of it half way through each answer."""
        cell = cells[0]
        machine = ["--ctx", str(cell.context), "--batch", str(cell.sequences), "--parallel", str(cell.sequences), *ceiling(cell.vram)]
        sizes = [*machine, "--prompt", str(cell.prompt)]
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
        self.options = ["--model", model, "--plan", path, "--device", o.device, "--batch", str(cell.sequences), "--parallel", str(cell.sequences),
                        *ceiling(cell.vram), *(["--profile", o.profile] if o.profile else []), *now, *cell.helmd]
        at = {c: machine + ["--prompt", str(c.prompt), "--plan", path, "--at", str(c.prompt + c.output // 2)] + now for c in cells}
        right_now = json.load(open(now[1], encoding="utf-8")) if now else None
        return {c: {"plan": plan, "said": self.helm_plan(o, model, at[c]), "now": right_now,
                    "again": lambda edited, c=c: self.again(o, model, at[c], path, edited)} for c in cells}

    def again(self, o, model, at, path, edited):
        """helm-plan's figures for the same plan with other members."""
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

    def measure(self, o, cells, daemon, seed):
        return {cell: self.sample(o, cell, daemon, seed) for cell in cells}

    def sample(self, o, cell, daemon, seed):
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
    held by occupy_vram, beside it or in --bin.

    The settings tried: of --llama-try each; else the fewest layers (a mixture's experts) on the CPU that fit
    beside the context of all cells of the load, found by what a run leaves free; then threads, in one load,
    and without flash attention where all is on the card. Cells of first tokens alone (PROMPT_OUTPUT tokens or
    fewer) get as many tokens at once as fit instead, with their own layers. Files are mapped while settings
    are tried, and read for the samples."""
    name = "llama.cpp"
    THREADS, BATCHES, PROMPT_OUTPUT, RETRIES = (8, 12, 14, 15, 16), (2048, 1024), 8, 2

    def __init__(self, program, tries):
        self.program, self.tries, self.best = program, tries, {}

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

    def run(self, cells, model, settings, seed, trial=False):
        """A sample of each cell, the fastest threads' number and what is free on the card. A trial: of the first cell, shortly."""
        asked = [(min(cell.prompt, 2048), 16) for cell in cells[:1]] if trial else [(cell.prompt, cell.output) for cell in cells]
        out = run([self.program, "--model", model, "--context", str(cells[0].context), "--prompt", ",".join(str(p) for p, _ in asked),
                   "--output", ",".join(str(n) for _, n in asked), "--requests", "1", "--seed", str(seed),
                   *(["--random"] if cells[0].drawn else []), *settings])
        first, later = re.findall(r"TTFT ([\d.]+) ms", out), re.findall(r"TPOT .* p50 ([\d.]+)", out)
        threads, free = re.search(r"(\d+) threads", out), re.search(r"VRAM [\d.]+ GB, ([\d.]+) free", out)
        if len(first) < len(asked) or len(later) < len(asked) or not threads or not free:
            raise Failed(f"llama_bench: no times in '{out.strip()[-200:]}'")
        samples = [{"ttft_ms": float(a), "tpot_ms": float(b), "tok_s": 1e3 / float(b), "parts": {}} for a, b in zip(first, later)]
        return samples, int(threads[1]), 1e9 * float(free[1])

    def trial(self, cells, model, settings):
        """Kept in `tried` by settings: token/s and bytes left free, or why not."""
        key = " ".join(settings)
        if key not in self.tried:
            try:
                samples, threads, free = self.run(cells, model, settings, 1, True)
                self.tried[key] = {"tok_s": samples[0]["tok_s"], "ttft_ms": samples[0]["ttft_ms"], "threads": threads, "free": free}
            except Failed as why:  # does not fit
                self.tried[key] = {"why": str(why)[-100:]}
        return self.tried[key]

    def fitted(self, cells, model, layers, mixture, more):
        """Settings with the fewest layers on the CPU."""
        def settings(count):
            return (["--ngl", "999", "--cpu-experts", str(count)] if mixture else ["--ngl", str(layers + 1 - count)]) + more

        most = layers if mixture else layers + 1
        if "free" not in self.trial(cells, model, settings(most)):
            raise Failed(f"llama.cpp: {self.tried[' '.join(settings(most))]['why']}")
        count = max(0, most - int(self.tried[" ".join(settings(most))]["free"] / (os.path.getsize(model) / layers)))
        while count < most and "free" not in self.trial(cells, model, settings(count)):
            count += 1
        while count > 0 and "free" in self.trial(cells, model, settings(count - 1)):
            count -= 1
        return settings(count)

    def fit(self, o, cells, model, plan, more):
        if o.device == "cpu" or cells[0].vram == "all":
            return ["--ngl", "0" if o.device == "cpu" else "999"] + more
        return self.fitted(cells, model, (plan or {}).get("layers", 1), bool((plan or {}).get("experts")), more)

    def choose(self, o, cells, model, plan):
        """The fastest settings for cells that decode; those for first tokens alone."""
        if self.tries:
            one = max((t.split() for t in self.tries), key=lambda t: self.trial(cells, model, t).get("tok_s", 0))
            return one, one
        prompts = [cell for cell in cells if cell.output <= self.PROMPT_OUTPUT]
        decoding = [cell for cell in cells if cell not in prompts]
        best = batches = None
        cpus = os.cpu_count() or 1
        few = ["--threads", str(max(1, cpus - 2))]
        if decoding:
            best = self.fit(o, decoding, model, plan, few)
            several = [n for n in self.THREADS if n <= cpus] or range(1, cpus + 1)
            all_threads = best[:-1] + [",".join(str(n) for n in several)]
            best[-1] = str(self.trial(decoding, model, all_threads).get("threads", few[1]))
            if cells[0].vram == "all" and o.device != "cpu":
                best = max((best, best + ["--no-flash"]), key=lambda t: self.trial(decoding, model, t).get("tok_s", 0))
        for batch in self.BATCHES if prompts else ():
            with contextlib.suppress(Failed):
                batches = self.fit(o, prompts, model, plan, few + ["--ubatch", str(batch)])
                break
        return best or batches, batches or best

    def prepare(self, o, cells, model, plan=None):
        if not model.endswith(".gguf") or cells[0].sequences > 1:
            raise Failed("llama.cpp: one sequence of a GGUF file alone is measured")
        self.tried, self.model = {}, model
        with self.open(o, cells[0], model):
            best, batches = self.choose(o, cells, model, plan)
        if self.tried and not any("free" in one for one in self.tried.values()):
            raise Failed(f"llama.cpp: {next(iter(self.tried.values()))['why']}")
        read = [] if o.device == "cpu" else ["--no-mmap"]
        self.best = {cell: (batches if cell.output <= self.PROMPT_OUTPUT else best) + read for cell in cells}
        self.said = {cell: {"settings": " ".join(self.best[cell]), "tried": self.tried} for cell in cells}
        return self.said

    def measure(self, _o, cells, _daemon, seed):
        got = {}
        for settings in dict.fromkeys(tuple(self.best[cell]) for cell in cells):
            mine = [cell for cell in cells if tuple(self.best[cell]) == settings]
            settings = list(settings)
            for left in reversed(range(self.RETRIES + 1)):
                try:
                    got.update(zip(mine, self.run(mine, self.model, settings, seed)[0]))
                    break
                except Failed:  # longer contexts take what a trial left free
                    if not left or not self.retreat(settings):
                        raise
            for cell in mine:
                self.best[cell] = settings
                self.said[cell]["settings"] = " ".join(settings)
        return got

    @staticmethod
    def retreat(settings):
        """One layer more on the CPU; False: there is none to move."""
        for option, step in (("--cpu-experts", 1), ("--ngl", -1)):
            if option in settings and settings[settings.index(option) + 1] not in ("0", "999"):
                at = settings.index(option) + 1
                settings[at] = str(int(settings[at]) + step)
                return True
        return False


def wait_for(o, begin):
    if o.seconds and time.monotonic() - begin > o.seconds:
        raise Cut()
