#!/usr/bin/env python3
"""Measures HELM by rows: each cell under its plan beside its forecasts, beside another build, other plans and llama.cpp.

  cells.py --bin DIR --out DIR [--set NAME,...] [--cell "NAME MODEL VRAM CONTEXT PROMPT OUTPUT SEQUENCES [helm-plan's options]"]...
           [--only NAME,...] [--old DIR] [--beside "NAME=OPTIONS"]... [--llama PROGRAM [--llama-try "OPTIONS;..."]]
           [--show VIEW,...] [--rounds 3] [--starts 1] [--apart] [--limit PERCENT] [--seconds S] [--models DIR] [--keep]
           [--profile FILE | --refresh] [--no-now] [--device cuda] [-- helmd's options]

A set is a table of cells below; --only: cells of these names or loads. A MODEL is a path, or is made in --models (/dev/shm/helm-models) and
removed after its last cell unless --keep: SIZE (a bf16 checkpoint of helm-mkmodel), SIZE-TYPE (a GGUF file of make_gguf.py),
with :N of so many layers, with +sticky of routing as sticky as published traces.

Sides of a cell: `new` (--bin), `old` (--old: programs of another build, which plan for themselves), each --beside: the new build with
more options of helm-plan ("thesis=--strategy thesis", "invariant=--invariant on") or other members of the plan
("none=plan:kv_direct_permille=0,mixed.moves=0"), and llama.cpp (llama_bench.c's program) with the fastest of its settings. Sides
stay loaded and are measured in turns, forwards and backwards by round; with --apart, and beside llama.cpp, each is loaded for its
turn. --starts: all is loaded anew so often. A sample is one request, of several sequences one each at once; figures are medians over
samples, ratios medians of each round's ratio to the first other side.

Plans go by --profile, or by this machine's, which gets a model's formats first (--refresh: all of it anew, quickly), and by what memory
gives right before (helm-profile --now; --no-now: not). Views are tables of columns, below. Markdown goes to standard output and OUT/result.md, all samples to OUT/result.json.
Exit status: 0; 1 new is slower than old by more than --limit percent in a cell; 2 usage; 5 a side failed (it is named; the others
went on) or cells were not reached; 128+N ended by signal N, with the tables of what there is. Standard library only."""
import argparse
import collections
import contextlib
import json
import os
import shutil
import signal
import statistics
import sys
import time

from plan_bound import bound_seconds, gpu_of, limits_of, mixture_bound_seconds, moved_bytes
from sides import Cut, Failed, Helm, Llama, cut, run, wait_for

HERE = os.path.dirname(os.path.abspath(__file__))
# load: cells of the same one are measured in one load, under a plan for the first; none: each under its own
Cell = collections.namedtuple("Cell", "name model vram context prompt output sequences plan helmd drawn load", defaults=((), (), False, ""))


def over(name, model, vram, prompts, sequences=1, output=40, plan=(), helmd=(), context=None):
    """Cells of one model and ceiling over lengths of the context."""
    return [Cell(f"{name}-{prompt}" + (f"-x{sequences}" if sequences > 1 else ""), model, vram, context or prompt + output + 64, prompt, output,
                 sequences, plan, helmd) for prompt in prompts]


def experts(name, model, *rows):
    """Cells of a mixture: tokens are drawn, so that experts do not repeat."""
    return [Cell(f"{name}-{vram}" + (f"-x{n}" if n > 1 else ""), model, vram, 448, 128, 160, n, (), (), True) for vram, n in rows]


def lengths(name, model, drawn, context, *vrams):
    """Decode after a short context, first tokens of prompts, and decode after a context that is nearly full, by ceilings; a load each."""
    kinds = [("128", 128, 96), ("ttft-2048", 2048, 2)] + ([("ttft-25000", 25000, 2), ("32768", 32768, 48)] if context > 32768 + 48 else [])
    return [Cell(f"{name}-{vram}-{what}", model, vram, context, prompt, output, 1, (), (), drawn, f"{name}-{vram}")
            for vram in vrams for what, prompt, output in kinds]


SETS = {
    # forecasts of decode and first tokens: three shapes, three formats, ceilings, contexts, one and eight sequences
    "forecast": [cell for kind in ("8b", "8b-Q4_K_M", "8b-Q8_0") for cell in over(kind, kind, "4GiB" if "Q4" in kind else "8GiB", (256, 8192, 32768)) +
                 over(kind, kind, "8GiB", (1024,), 8, 64)] +
                [cell for kind, vram in (("14b", "24GiB"), ("14b-Q4_K_M", "8GiB"), ("14b-Q8_0", "12GiB")) for cell in over(kind, kind, vram, (256, 8192))] +
                [cell for kind, vram in (("30b-a3b-Q4_K_M", "8GiB"), ("30b-a3b-Q8_0", "24GiB")) for cell in experts(kind, kind, (vram, 1), (vram, 8)) +
                 over(kind, kind, vram, (4096,))],
    # old and new build in turns: all on the card, split, several at once, a long context, a mixture
    "builds": over("8b-all", "8b", "all", (128,), 1, 128) + over("8b-all", "8b", "all", (128,), 8, 128) + over("8b-8gib", "8b", "8GiB", (128, 8192), 1, 64) +
              over("8b-8gib", "8b", "8GiB", (1024,), 8, 64) + over("14b-24gib", "14b", "24GiB", (128,), 1, 128) +
              over("8b-q4-all", "8b-Q4_K_M", "all", (128,), 1, 128) + over("8b-q4-4gib", "8b-Q4_K_M", "4GiB", (128,), 1, 96) +
              experts("moe-8gib", "30b-a3b-Q4_K_M", ("8GiB", 1)) + experts("moe-all", "30b-a3b-Q4_K_M", ("all", 1)),
    # one model over contexts: room for little, for much, a smaller cache, one tier, long chunks, eight at once
    "context": over("short", "8b", "8GiB", (256,), 1, 64, context=512) + over("f16", "8b", "8GiB", (256, 1024, 4096, 8192, 16384, 32768), context=40960) +
               over("q8_0", "8b", "8GiB", (256, 1024, 4096, 8192, 16384, 32768), 1, 40, ("--kv-dtype", "q8_0"), context=40960) +
               over("one", "8b", "8GiB", (256, 4096, 16384), 1, 24, ("--kv-tiers", "one"), context=40960) + over("eight", "8b", "8GiB", (8192,), 8, 128),
    # mixtures of experts in VRAM, in both memories, beside sticky routing, with a shared expert, of other makers
    "experts": experts("even", "30b-a3b-Q4_K_M", ("8GiB", 1), ("all", 1), ("8GiB", 8), ("6GiB", 1), ("12GiB", 1)) +
               experts("sticky", "30b-a3b-Q4_K_M+sticky", ("8GiB", 1), ("8GiB", 8)) + experts("mixtral", "8x7b-Q4_K_M", ("12GiB", 1)) +
               experts("shared", "57b-a14b-Q4_K_M:8", ("5GiB", 1), ("all", 1)) + experts("half", "30b-a3b-BF16:24", ("12GiB", 1), ("24GiB", 1)),
    # files that llama.cpp loads, too
    "peers": over("8b-q4-all", "8b-Q4_K_M", "all", (128,), 1, 128) + over("8b-q4-4gib", "8b-Q4_K_M", "4GiB", (128, 8192), 1, 64) +
             over("8b-bf16", "8b-BF16", "8GiB", (128,), 1, 64) + experts("moe", "30b-a3b-Q4_K_M", ("8GiB", 1)),
    # the models that people run, beside llama.cpp; two loads (--only) fit a call of ten minutes
    "hybrids": lengths("35b-ud", "35b-a3b-UD-Q4_K_XL", True, 33024, "8GiB", "all", "12GiB", "4GiB") +
               lengths("35b-q4", "35b-a3b-Q4_K_M", True, 33024, "8GiB") + lengths("27b-q4", "27b-Q4_K_M", False, 4096, "12GiB", "8GiB") +
               lengths("27b-ud", "27b-UD-Q2_K_XL", False, 4096, "8GiB") + lengths("30b-q4", "30b-a3b-Q4_K_M", True, 4096, "all"),
    # Gemma 4, whose layers without a window have heads of 512, beside llama.cpp
    "gemma": lengths("26b-q4", "26b-a4b-Q4_K_M", True, 33024, "8GiB") + lengths("31b-q4", "31b-Q4_K_M", False, 33024, "12GiB") +
             lengths("12b-q4", "12b-Q4_K_M", False, 33024, "8GiB") + lengths("e4b-q4", "e4b-Q4_K_M", False, 33024, "all", "2GiB") +
             lengths("e2b-q4", "e2b-Q4_K_M", False, 33024, "all"),
    # forecasts without a card (--device cpu): three formats, a hybrid, a mixture, a short context and a long one
    "cpu-forecast": [cell for kind in ("0.6b-BF16", "0.6b-Q4_K_M", "0.6b-Q8_0", "0.8b") for cell in over(kind, kind, "all", (256, 4096), 1, 32)] +
                    experts("30b-a3b-Q4_K_M:2", "30b-a3b-Q4_K_M:2", ("all", 1)),
    # without a card (--device cpu)
    "cpu": over("0.6b", "0.6b", "all", (128, 512), 1, 64) + over("4b-q4", "4b-Q4_K_M", "all", (128, 512), 1, 64),
}
ARCHES = {"0.8b": "qwen3_5", "30b-a3b": "qwen3_moe", "8x7b": "mixtral", "20b": "gpt_oss", "120b": "gpt_oss"}
TYPES = "UD-Q4_K_XL", "UD-Q2_K_XL", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "BF16"
STICKY = 0.8


def value(said, *names):
    """A member of what helm-plan prints, or None."""
    for name in names:
        said = said.get(name) if isinstance(said, dict) else None
    return said


def homes(row):
    total = collections.Counter()
    for stage in value(row, "plan", "stages", "decode") or ():
        total[stage["home"]] += stage["bytes"]
    return " + ".join(f"{home} {size / 1e9:.1f}" for home, size in total.items()) or value(row, "settings")


def part(name):
    return name, lambda row: value(row, "parts", name), ".2f"


def said_part(name):
    return name + " said", lambda row: value(row, "said", "parts", "decode", name + "_ms"), ".2f"


# columns of each view: title, what it is of a row, its form
VIEWS = {
    "speed": [("token/s", lambda r: r["tok_s"], ".2f"), ("least", lambda r: min(r["all_tok_s"]), ".2f"), ("most", lambda r: max(r["all_tok_s"]), ".2f"),
              ("TTFT ms", lambda r: r["ttft_ms"], ".1f"), ("by", lambda r: r.get("beside"), ""), ("decode", lambda r: r.get("ratio"), ".3f"),
              ("first token", lambda r: r.get("ttft_ratio"), ".3f"), ("homes, GB", homes, "")],
    "forecast": [("token/s", lambda r: r["tok_s"], ".2f"), ("said", lambda r: r.get("said_tok_s"), ".2f"), ("error", lambda r: r.get("error"), "+.1%"),
                 ("TTFT ms", lambda r: r["ttft_ms"], ".1f"), ("said", lambda r: r.get("said_ttft_ms"), ".1f"), ("error", lambda r: r.get("ttft_error"), "+.1%"),
                 ("of the bound", lambda r: r.get("of_bound"), ".0%"), ("host reads GB/s", lambda r: r.get("read_gb_s"), ".0f")],
    # a GPU that waits for the link computes in its worker's eyes; the forecast calls that rest
    "parts": [("ms", lambda r: r["tpot_ms"], ".2f"), said_part("cpu"), part("cpu"), part("cpu_waits"), said_part("gpu"), said_part("rest"), part("gpu"),
              part("gpu_waits"), said_part("link"), said_part("hand_overs"), part("outside")],
    "experts": [("token/s", lambda r: r["tok_s"], ".2f"), ("slots", lambda r: value(r, "plan", "mixed", "slots"), ""), ("moves a step", lambda r: value(r, "plan", "mixed", "moves"), ""),
                ("found in VRAM", lambda r: r.get("found"), ".1%"), ("moved for each chosen", lambda r: r.get("moved"), ".3f"),
                ("said at that part", lambda r: r.get("at_found_tok_s"), ".2f"), ("error", lambda r: r.get("at_found_error"), "+.1%")],
}
ERRORS = (("decode", "error"), ("first tokens", "ttft_error"), ("decode at the part of experts found", "at_found_error"))


def make_model(o, name):
    """Path of a model; made where it is neither a path nor there. The second: to remove."""
    path = os.path.join(o.models, name.replace(":", "-"))
    whole = name.removesuffix("+sticky").partition(":")[0]
    kind = next((kind for kind in TYPES if whole.endswith("-" + kind)), "")
    size, gguf = whole.removesuffix("-" + kind), bool(kind)
    path += ".gguf" if gguf else ""
    if os.path.exists(name):
        return name, None
    if os.path.exists(path):
        return path, None
    os.makedirs(o.models, exist_ok=True)
    layers = name.removesuffix("+sticky").partition(":")[2]
    if gguf:
        run([sys.executable, os.path.join(HERE, "make_gguf.py"), "--size", size, "--type", kind, "--out", path, *(["--layers", layers] if layers else []),
             *(["--sticky", str(STICKY)] if name.endswith("+sticky") else [])])
    else:
        run([os.path.join(o.bin, "helm-mkmodel"), "--arch", ARCHES.get(name, "qwen3"), "--size", name, "--seed", "1", "--out", path,
             *(["--embedding", "16"] if name in ARCHES else [])])
    return path, None if o.keep else path


def relative(said, got):
    return None if said is None else said / got - 1


def at_found(row, prepared, sequences):
    """helm-plan's speed at the part of experts that was found. Moves cost nothing in it, so it is too fast
    where many move."""
    if row.get("found") is None or not value(prepared, "plan", "mixed"):
        return
    plan = prepared["plan"]
    said = prepared["again"](dict(plan, mixed=dict(plan["mixed"], hit_permille=max(1, round(1000 * row["found"])))))
    row.update(at_found_tok_s=said["decode_tok_s"]["value"], at_found_error=relative(said["decode_tok_s"]["value"], row["tok_s"]))
    if sequences == 1 and row["limits"] and (prepared["now"] or {}).get("read_beside"):
        row["of_bound"] = mixture_bound_seconds(said, row["found"], prepared["now"], row["limits"]["vram_gb_s"]) * row["tok_s"]


def row_of(cell, side, prepared, samples, profile):
    """Medians of a side's samples beside what was said of them."""
    row = {"cell": cell.name, "model": cell.model, "vram": cell.vram, "prompt": cell.prompt, "sequences": cell.sequences, "side": side.name,
           "samples": samples, "all_tok_s": [s["tok_s"] for s in samples], "limits": limits_of(profile)}
    for key in ("tok_s", "tpot_ms", "ttft_ms", "found", "moved"):
        values = [s[key] for s in samples if key in s]
        row[key] = statistics.median(values) if values else None
    row["parts"] = {key: statistics.median(s["parts"][key] for s in samples) for key in samples[0]["parts"]}
    row.update({key: prepared[key] for key in ("plan", "said", "now", "settings", "tried") if key in prepared})
    if "said" in row:
        row["said_tok_s"], row["said_ttft_ms"] = row["said"]["decode_tok_s"]["value"], row["said"]["ttft_ms"]["value"]
        row["error"], row["ttft_error"] = relative(row["said_tok_s"], row["tok_s"]), relative(row["said_ttft_ms"], row["ttft_ms"])
        row["read_gb_s"] = row["now"]["read"] / 1e9 if value(row["now"], "read") else None
        if row["limits"] and cell.sequences == 1 and row["found"] is None:
            row["of_bound"] = bound_seconds(moved_bytes(row["plan"]), row["limits"]) * row["tok_s"]
    return row


def compare(rows):
    """The first row's ratios to the second: medians of the ratios of each round's two samples; above 1 the first is faster."""
    if len(rows) < 2:
        return
    first, second = rows[:2]
    pairs = list(zip(first["samples"], second["samples"]))
    first.update(beside=second["side"], ratio=statistics.median(a["tok_s"] / b["tok_s"] for a, b in pairs),
                 ttft_ratio=statistics.median(b["ttft_ms"] / a["ttft_ms"] for a, b in pairs))


class Bench:
    def __init__(self, o, sides):
        self.o, self.sides, self.rows, self.failures, self.begin = o, sides, [], [], time.monotonic()

    def note(self, what, why):
        self.failures.append(f"{what}: {why}")
        print(f"FAILED {what}: {why}", file=sys.stderr, flush=True)

    def profile(self):
        with open(self.o.machine, encoding="utf-8") as file:
            return json.load(file)

    def prepare(self, cells, model):
        """Sides that can run these cells, with what each of them needs."""
        ready = {}
        for side in self.sides:
            try:
                plan = next((p[cells[0]]["plan"] for p in ready.values() if "plan" in p[cells[0]]), None)
                ready[side] = side.prepare(self.o, cells, model, plan) if isinstance(side, Llama) else side.prepare(self.o, cells, model)
            except Failed as why:
                self.note(f"{cells[0].name}, {side.name}", why)
        return ready

    def turn(self, cells, model, side, opened, samples, seed):
        """One sample of each cell; a side that fails is left out from then on."""
        try:
            if opened is None:
                with side.open(self.o, cells[0], model) as daemon:
                    got = side.measure(self.o, cells, daemon, seed)
            else:
                got = side.measure(self.o, cells, opened[side], seed)
        except Failed as why:
            self.note(f"{cells[0].name}, {side.name}", why)
            return False
        for cell in cells:
            samples.setdefault((side, cell), []).append(got[cell])
        return True

    def measure(self, cells, model):
        """Cells of one load. Those that were measured count also when time is over."""
        ready, samples = self.prepare(cells, model), {}
        try:
            self.rounds(cells, model, ready, samples)
        finally:
            for cell in cells:
                self.rows += self.rows_of(cell, [(side, ready[side][cell], samples[side, cell]) for side in ready if (side, cell) in samples])

    def rounds(self, cells, model, ready, samples):
        apart = self.o.apart or any(isinstance(side, Llama) for side in self.sides)
        for start in range(self.o.starts):
            with contextlib.ExitStack() as stack:
                order, opened = list(ready) if start % 2 == 0 else list(ready)[::-1], None if apart else {}
                for side in () if apart else order:
                    try:
                        opened[side] = stack.enter_context(side.open(self.o, cells[0], model))
                    except Failed as why:
                        self.note(f"{cells[0].name}, {side.name}", why)
                        ready.pop(side)
                for turn in range(self.o.rounds):
                    for side in order if turn % 2 == 0 else order[::-1]:
                        if side in ready and not self.turn(cells, model, side, opened, samples, 1000 * start + turn + 1):
                            ready.pop(side)
                    wait_for(self.o, self.begin)

    def rows_of(self, cell, measured):
        rows = []
        for side, prepared, samples in measured:
            rows.append(row_of(cell, side, prepared, samples, self.profile()))
            at_found(rows[-1], prepared, cell.sequences)
        compare(rows)
        for row in rows:
            print(f"{cell.name}, {row['side']}: {row['tok_s']:.2f} token/s, first token {row['ttft_ms']:.0f} ms, "
                  f"{time.monotonic() - self.begin:.0f} s", file=sys.stderr, flush=True)
        return rows

    def measure_machine(self, model):
        """This machine's profile, with the rates of the model's formats."""
        if not self.o.profile:
            run([os.path.join(self.o.bin, "helm-profile"), "--device", self.o.device, "--model", model, "--out", self.o.machine,
                 *(["--quick", "--force"] if self.o.refresh else [])])

    def measure_all(self, cells):
        for model in dict.fromkeys(cell.model for cell in cells):
            made = None
            try:
                wait_for(self.o, self.begin)
                path, made = make_model(self.o, model)
                self.measure_machine(path)
                loads = collections.defaultdict(list)
                for cell in (cell for cell in cells if cell.model == model):
                    loads[cell.load or cell.name].append(cell)
                for load in loads.values():
                    wait_for(self.o, self.begin)
                    self.measure(load, path)
                    self.save(False)
            except Failed as why:
                self.note(model, why)
            finally:
                if made:
                    (shutil.rmtree if os.path.isdir(made) else os.remove)(made)

    def save(self, whole):
        """Whole files only: one that is cut off in writing does not replace the last."""
        path = os.path.join(self.o.out, "result.json")
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump({"command": sys.argv[1:], "rows": self.rows, "failures": self.failures, "whole": whole}, file, indent=1)
        os.replace(path + ".new", path)


def shown(got, form):
    return "-" if got is None else format(got, form) if form else str(got)


def tables(rows, views):
    """Lines of Markdown: a table a view, then median and worst of the errors."""
    for view in views:
        titles = ["cell", "side", "VRAM", "prompt", "sequences"] + [title for title, _, _ in VIEWS[view]]
        yield "\n| " + " | ".join(titles) + " |\n" + "| --- " * len(titles) + "|"
        for row in rows:
            cells = [row["cell"], row["side"], row["vram"], f"{row['prompt']:,}", str(row["sequences"])]
            yield "| " + " | ".join(cells + [shown(get(row), form) for _, get, form in VIEWS[view]]) + " |"
    yield ""
    for what, key in ERRORS:
        sizes = sorted(abs(row[key]) for row in rows if row.get(key) is not None and row["side"] == "new")
        if sizes:
            yield f"forecasts of {what}: median error {statistics.median(sizes):.1%}, worst {sizes[-1]:.1%} of {len(sizes)} cells"


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        name = next((line.partition(": ")[2].strip() for line in file if line.startswith("model name")), "CPU")
    return f"machine: {name}, {os.cpu_count()} CPUs, {time.strftime('%F %R', time.gmtime())} UTC, load {os.getloadavg()[0]:.1f}"


def limits(bench):
    """The rates of this run's profile, in GB/s: host memory's read, alone and beside the link; the link, likewise; VRAM's read."""
    if not os.path.exists(bench.o.machine) or not limits_of(bench.profile()):
        return []
    profile = bench.profile()
    cpu, gpu = profile["cpu"], gpu_of(profile)
    host, host_beside, link, link_beside, vram = (rate["value"] / 1e9 for rate in (
        cpu["gemv"], cpu["gemv_beside"], gpu["link"]["h2d"], gpu["link"]["h2d_beside"], gpu["read"]))
    return [f"limits: host memory reads {host:.0f} GB/s, {host_beside:.0f} beside the link; link {link:.0f}, {link_beside:.0f} beside the CPU; VRAM {vram:.0f}"]


def report(bench, ended, asked):
    lines = [machine(), *limits(bench), *tables(bench.rows, bench.o.show.split(","))] + [f"FAILED {failure}" for failure in bench.failures]
    slower = [row for row in bench.rows if row.get("beside") == "old" and min(row["ratio"], row["ttft_ratio"]) < 1 - bench.o.limit / 100]
    lines += [f"SLOWER {row['cell']}: decode {row['ratio']:.3f}, first token {row['ttft_ratio']:.3f} of old" for row in slower]
    reached = len({row["cell"] for row in bench.rows})
    if ended:
        lines.append(f"cut short {f'by signal {ended.number}' if ended.number else 'by --seconds'}: {reached} of {asked} cells")
    with open(os.path.join(bench.o.out, "result.md"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    bench.save(ended is None and reached == asked)
    print("\n".join(lines), flush=True)
    return 128 + ended.number if ended and ended.number else 5 if bench.failures or reached < asked else 1 if slower else 0


def cell_of(text):
    words = text.split()
    if len(words) < 7:
        raise argparse.ArgumentTypeError(f"'{text}' is no NAME MODEL VRAM CONTEXT PROMPT OUTPUT SEQUENCES")
    return Cell(*words[:3], *map(int, words[3:7]), tuple(words[7:]))


def read_options():
    argv, _, helmd = " \0".join(sys.argv[1:]).partition(" \0-- \0")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--bin", "--out"):
        parser.add_argument(name, required=True)
    for name in ("--cell", "--beside"):
        parser.add_argument(name, action="append", default=[], type=cell_of if name == "--cell" else str)
    for name, usual in (("--set", ""), ("--only", ""), ("--old", None), ("--llama", None), ("--llama-try", ""), ("--show", "speed,forecast"),
                        ("--models", "/dev/shm/helm-models"), ("--profile", None), ("--device", "cuda")):
        parser.add_argument(name, default=usual)
    for name, usual in (("--rounds", 3), ("--starts", 1), ("--limit", 1.5), ("--seconds", 0.0)):
        parser.add_argument(name, type=type(usual), default=usual)
    for name in ("--apart", "--refresh", "--keep"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--no-now", dest="now", action="store_false")
    o = parser.parse_args(argv.split(" \0") if argv else [])
    unknown = [name for name in filter(None, o.set.split(",")) if name not in SETS] + [name for name in o.show.split(",") if name not in VIEWS]
    if unknown:
        parser.error(f"no set or view {', '.join(unknown)}; sets: {', '.join(SETS)}; views: {', '.join(VIEWS)}")
    cells = [cell for name in filter(None, o.set.split(",")) for cell in SETS[name]] + o.cell
    cells = [cell._replace(helmd=(*cell.helmd, *filter(None, helmd.split(" \0")))) for cell in cells if not o.only or {cell.name, cell.load} & set(o.only.split(","))]
    if not cells or min(o.rounds, o.starts) < 1 or min(cell.output for cell in cells) < 2:
        parser.error("no cell, no round, or an answer of fewer than 2 tokens")
    o.machine = o.profile or os.path.join(o.out, "profile.json")
    o.parts = "parts" in o.show.split(",")
    return o, cells


def main():
    o, cells = read_options()
    os.makedirs(o.out, exist_ok=True)
    sides = [Helm("new", o.bin)] + ([Helm("old", o.old)] if o.old else []) + [Helm(name, o.bin, more) for name, _, more in (b.partition("=") for b in o.beside)]
    sides += [Llama(o.llama, [t for t in o.llama_try.split(";") if t])] if o.llama else []
    for ended_by in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ended_by, cut)
    bench, ended = Bench(o, sides), None
    try:
        bench.measure_all(cells)
    except Cut as why:
        ended = why
    return report(bench, ended, len(cells))


if __name__ == "__main__":
    sys.exit(main())
