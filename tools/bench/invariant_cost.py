#!/usr/bin/env python3
"""What an invariant plan costs: decode of 1 to 16 sequences and prompts, --invariant off and on in turns, in one table.

  invariant_cost.py --bin DIR --model DIR [--rounds N] [--sequences 1,2,4,8,16] [--prompt 128,2048] [--json FILE] [-- helmd options]

Both daemons stay loaded, so both plans must fit: state --vram for each. Decode is the aggregate rate of n sequences at once behind
128 tokens; a prompt's is its TTFT. Bounds are issue 18's: a GPU's one sequence no slower (0.5 % is noise), several and prompts at
most 10 %.
Exit status: 0, also where a bound is missed, which the table says; 5 something failed."""
import contextlib
import json
import os
import statistics
import tempfile

from token_path import Daemon, bench, parse, parser_of, status

SHORT = 128
BOUND = {"sequences": lambda n: 0.5 if n == 1 else 10, "prompt": lambda n: 10}


def cell(options, daemon, prompt, output, concurrency):
    more = ("--prompt", str(prompt), "--output", str(output), "--requests", str(max(2, concurrency)), "--concurrency", str(concurrency),
            "--warmup", "1")
    return bench(options, daemon.endpoint, daemon.log + ".bench.json", more)


def measure(options, daemon):
    """{(kind, n): seconds}: of a token of all sequences together, of a prompt."""
    out = {}
    for n in options.sequences:
        got = cell(options, daemon, SHORT, options.output, n)
        out["sequences", n] = got["tpot_ms"]["p50"] / 1e3
    for n in options.prompts:
        out["prompt", n] = cell(options, daemon, n, 2, 1)["ttft_ms"]["p50"] / 1e3
    return out


def numbers(text):
    return [int(word) for word in text.split(",") if word]


def read_options():
    parser = parser_of(__doc__, 64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sequences", type=numbers, default=[1, 2, 4, 8, 16])
    parser.add_argument("--prompt", dest="prompts", type=numbers, default=[128, 2048])
    parser.add_argument("--json")
    return parse(parser)


def main():
    options = read_options()
    most = max(options.sequences, default=1)
    base = options.helmd + ["--batch", str(most), "--parallel", str(most)]
    seconds = {"off": {}, "on": {}}
    with tempfile.TemporaryDirectory(prefix="helm-inv-") as folder, contextlib.ExitStack() as running:
        daemons = {}
        for mode in seconds:
            rundir = os.path.join(folder, mode)
            os.mkdir(rundir, 0o700)
            options.helmd = base + ["--invariant", mode, "--listen", "ipc://" + os.path.join(rundir, "s")]
            daemons[mode] = running.enter_context(Daemon(options, rundir))
            print(f"--invariant {mode}: status says {status(options, daemons[mode].endpoint).get('invariant')}", flush=True)
        for _ in range(options.rounds):
            for mode, daemon in daemons.items():
                for key, value in measure(options, daemon).items():
                    seconds[mode].setdefault(key, []).append(value)
    print("| case | off | on | longer by | bound |\n| --- | --- | --- | --- | --- |")
    rows = []
    for kind, n in seconds["off"]:
        off, on = (statistics.median(seconds[mode][kind, n]) for mode in ("off", "on"))
        longer, bound = 100 * (on / off - 1), BOUND[kind](n)
        rows.append({"kind": kind, "n": n, "off_s": off, "on_s": on})
        what = f"{n} sequences, ms a step" if kind == "sequences" else f"prompt of {n}, ms"
        print(f"| {what} | {1e3 * off:.2f} | {1e3 * on:.2f} | {longer:+.1f} % | {bound} %: {'met' if longer <= bound else 'missed'} |")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file)


if __name__ == "__main__":
    main()
