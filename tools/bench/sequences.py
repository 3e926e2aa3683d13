#!/usr/bin/env python3
"""Decode of several sequences that all have a long context: what 1, 2, 4 and 8 of them make together.

  sequences.py --bin DIR --model DIR [--prompt N] [--output N] [--counts 1,2,4,8] [-- helmd options]

Starts helmd with its prefix cache, computes one prompt of --prompt (8192) random tokens for each sequence, one after another, then
sends the same prompts again at once, for --output (96) tokens: the cache has all but their last page, so that all sequences decode
together nearly from the start. helm-bench's concurrent requests compute prompts beside others' decode, and count that as decode.
Prints token/s in all, milliseconds a step, and what of a step each worker computed and waited. The context and the slots
are the helmd options' business (--ctx, --batch, --parallel). Standard library only. Exit status: 0; 5 something failed."""
import json
import os
import random
import subprocess
import tempfile

from token_path import Daemon, die, parse, parser_of, status


def begin(options, endpoint, path, output):
    return subprocess.Popen([os.path.join(options.bin, "helm-cli"), "--connect", endpoint, "generate", "--tokens-file", path, "-n",
                             str(output), "--temperature", "0", "--ignore-eos", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True)


def end(process):
    out, err = process.communicate()
    if process.returncode:
        die(f"helm-cli generate: {err.strip()}")
    return json.loads(out)


def write_prompts(options, endpoint, folder, count):
    vocab, draw, paths = status(options, endpoint)["model"]["vocab"], random.Random(1), []
    for i in range(count):
        paths.append(os.path.join(folder, f"{i}.tokens"))
        with open(paths[-1], "w", encoding="utf-8") as file:
            file.write(",".join(str(draw.randrange(vocab)) for _ in range(options.prompt)))
    return paths


def together(options, endpoint, paths):
    """One row: of sequences that decode at once."""
    before = status(options, endpoint)
    answers = [end(p) for p in [begin(options, endpoint, path, options.output) for path in paths]]
    after = status(options, endpoint)
    found = min(a["usage"]["cached_tokens"] for a in answers)
    if found < options.prompt - 64:
        die(f"only {found} of {options.prompt} tokens were found: the cache is too small for {len(paths)} prompts")
    steps = after["steps_total"] - before["steps_total"]
    parts = " | ".join(f"{1e3 * (new[key] - old[key]) / steps:.1f}" for old, new in zip(before["workers"], after["workers"])
                       for key in ("busy_seconds", "wait_seconds"))
    attention = 1e3 * (after["seconds_attention"] - before["seconds_attention"]) / steps
    step_ms = sorted(a["timings"]["tpot_ms"] for a in answers)[len(answers) // 2]
    print(f"| {len(paths)} | {1e3 * len(paths) / step_ms:.1f} | {step_ms:.1f} | {parts} | {attention:.1f} |", flush=True)


def main():
    parser = parser_of(__doc__, 96)
    parser.add_argument("--prompt", type=int, default=8192)
    parser.add_argument("--counts", default="1,2,4,8")
    options = parse(parser)
    counts = [int(x) for x in options.counts.split(",")]
    with tempfile.TemporaryDirectory(prefix="helm-sequences-") as folder, Daemon(options, folder, "on") as daemon:
        paths = write_prompts(options, daemon.endpoint, folder, max(counts))
        first = [end(begin(options, daemon.endpoint, path, 1))["timings"]["ttft_ms"] for path in paths]
        print(f"prompts of {options.prompt}, alone: first token after {sorted(first)[len(first) // 2]:.0f} ms")
        names = [w["name"] for w in status(options, daemon.endpoint)["workers"]]
        print("| sequences | token/s in all | ms a step | " + " | ".join(f"{n} computes | {n} waits" for n in names) +
              " | attention, worker with the head |\n" + "| --- " * (4 + 2 * len(names)) + "|")
        for count in counts:
            together(options, daemon.endpoint, paths[:count])


if __name__ == "__main__":
    main()
