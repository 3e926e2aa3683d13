#!/usr/bin/env python3
"""What a long context over both memories must keep, on one machine, in one table (8B bf16 at 8 GiB: about 90 s on an H200).

  context_check.py --bin DIR --model DIR [--prompt N] [--output N] [--vram SIZE] [--ctx N] [--only exact,fill,prefix,turns]
                   [--profile FILE] [-- helmd options]

  exact   a prompt of --prompt (32768) random tokens and --output (512) greedy ones at --vram (8GiB): the same tokens as with
          all in VRAM, up to the first of which the two likeliest are nearer than 0.4; the largest difference of log
          probabilities; VRAM in use, which must stay under the ceiling
  fill    of the tokens of that run: steps that fill a page, whose copy to host memory is the only one that an eviction
          costs, beside the others; the goal is 3 % more at most
  prefix  a second request with the same 2,048 tokens and 32 others: first token in a fifth of the first one's
  turns   ten requests, each with all before it and 32 new tokens: the tenth's first token within 20 % of a prompt's that is as
          long as what the tenth computes

The checkpoint has no tokenizer (helm-mkmodel). Standard library only. Exit status: 0, also where a goal is missed, which the table
says; 5 something failed."""
import json
import os
import random
import statistics
import subprocess
import tempfile
import threading
import time

from token_path import Daemon, die, parse, parser_of, status

PAGE, NEAR = 32, 0.4


class Talk:
    """One daemon with its prefix cache, and what is asked of it."""

    def __init__(self, options, folder, name, vram):
        self.options = options
        rundir = os.path.join(folder, name)
        os.mkdir(rundir, 0o700)
        options.helmd = options.more + ["--ctx", str(options.ctx)] + (["--vram", vram] if vram else [])
        self.daemon = Daemon(options, rundir, "on")
        self.endpoint, self.folder = self.daemon.endpoint, rundir

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.daemon.__exit__()

    def begin(self, tokens, count, *more):
        path = os.path.join(self.folder, "prompt.tokens")
        with open(path, "w", encoding="utf-8") as file:
            file.write(",".join(map(str, tokens)))
        return subprocess.Popen([os.path.join(self.options.bin, "helm-cli"), "--connect", self.endpoint, "generate", "--tokens-file", path,
                                 "-n", str(count), "--temperature", "0", "--ignore-eos", *more], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, bufsize=0)

    def ask(self, tokens, count, *more):
        process = self.begin(tokens, count, "--json", *more)
        out, err = process.communicate()
        if process.returncode:
            die(f"helm-cli generate: {err.decode().strip()}")
        return json.loads(out)

    def vram(self):
        return max(w.get("vram_bytes", 0) for w in status(self.options, self.endpoint)["workers"])


def some(draw, vocab, count):
    return [draw.randrange(vocab) for _ in range(count)]


def streamed(talk, prompt, count):
    """Seconds at which each token came, from the request on, and the most VRAM that was seen in use."""
    process, times, most, over = talk.begin(prompt, count), [], [talk.vram()], threading.Event()

    def look():
        while not over.wait(0.5):
            most[0] = max(most[0], talk.vram())
    looking = threading.Thread(target=look)
    looking.start()
    begin, number = time.monotonic(), b""
    while True:
        got = process.stdout.read(1)
        if got.isdigit():
            number += got
            continue
        if number:
            times.append(time.monotonic() - begin)
        number = b""
        if not got:
            break
    over.set()
    looking.join()
    if process.wait() or len(times) != count:
        die(f"helm-cli generate: {len(times)} of {count} tokens: {process.stderr.read().decode().strip()}")
    return times, most[0]


def filling(times, prompt):
    """Medians of steps that fill a page and of the others: token j of the output is drawn by the step that appends position
    prompt + j - 1."""
    steps = {True: [], False: []}
    for j in range(2, len(times)):
        steps[(prompt + j) % PAGE == 0].append(times[j] - times[j - 1])
    return statistics.median(steps[True]), statistics.median(steps[False]), len(steps[True])


def entries(answer):
    """(token, its log probability, how far the second likeliest is) of each position."""
    found = []
    for top in answer["logprobs"]:
        found.append((top[0]["token"], top[0]["logprob"], top[0]["logprob"] - top[1]["logprob"]))
    return found


def compare(got, want):
    """How many tokens agree until one is nearly a tie; the largest difference of log probabilities in them."""
    worst = 0.0
    for i, ((token, logprob, gap), (other, wanted, other_gap)) in enumerate(zip(got, want)):
        if token != other:
            return i, worst, min(gap, other_gap)
        worst = max(worst, abs(logprob - wanted))
    return len(want), worst, None


def say(what, value, goal, met):
    print(f"| {what} | {value} | {goal} | {'met' if met else 'missed'} |", flush=True)


def long_context(options, folder, only):
    draw = random.Random(1)
    with Talk(options, folder, "small", options.vram) as talk:
        prompt = some(draw, status(options, talk.endpoint)["model"]["vocab"], options.prompt)
        count = min(options.output, 200) if "fill" in only else 2
        times, most = streamed(talk, prompt, count)
        say(f"prompt of {options.prompt}", f"first token after {times[0]:.2f} s, {options.prompt / times[0]:,.0f} token/s", "10,000 token/s",
            options.prompt / times[0] >= 10000)
        if "fill" in only:
            full, other, n = filling(times, options.prompt)
            say("a step that fills a page", f"{1e3 * full:.2f} ms beside {1e3 * other:.2f} ({n} of {count})", "3 % more at most",
                full <= 1.03 * other)
        if "exact" not in only:
            return
        got = talk.ask(prompt, options.output, "--logprobs", "2")
        most = max(most, talk.vram())
        say("VRAM in use", f"{most / 2**30:.2f} GiB", f"under {options.vram}", most <= bytes_of(options.vram))
    with Talk(options, folder, "all", None) as talk:
        want = talk.ask(prompt, options.output, "--logprobs", "2")
    same, worst, gap = compare(entries(got), entries(want))
    met = same == options.output or gap < NEAR
    say(f"{options.output} tokens beside all in VRAM", f"{same} alike" + (f", then a tie within {gap:.3f}" if gap is not None else "") +
        f"; log probabilities within {worst:.4f}", f"all, or a tie within {NEAR}", met)


def bytes_of(text):
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20)):
        if text.endswith(unit):
            return int(float(text[:-3]) * factor)
    return int(text)


def short_prompts(options, folder, only):
    draw = random.Random(2)
    with Talk(options, folder, "prefixes", options.vram) as talk:
        vocab = status(options, talk.endpoint)["model"]["vocab"]
        talk.ask(some(draw, vocab, options.prefix + 32), 2)
        rows = []
        for _ in range(5 if "prefix" in only else 0):
            prefix = some(draw, vocab, options.prefix)
            rows.append([talk.ask(prefix + some(draw, vocab, 32), 2)["timings"]["ttft_ms"] for _ in range(2)])
        if rows:
            first, second = (statistics.median(row[i] for row in rows) for i in range(2))
            say(f"second request with the same {options.prefix} tokens", f"{second:.0f} ms beside {first:.0f}: {second / first:.2f} of it",
                "a fifth", second <= first / 5)
        if "turns" not in only:
            return
        tenth, first = [], []
        for _ in range(5):
            history = []
            for turn in range(10):
                history += some(draw, vocab, 32)
                answer = talk.ask(history, 40)
                new = len(history) - answer["usage"]["cached_tokens"]
                if turn == 9:
                    tenth.append(answer["timings"]["ttft_ms"])
                    first.append(talk.ask(some(draw, vocab, new), 2)["timings"]["ttft_ms"])
                history += answer["tokens"]
        late, early = statistics.median(tenth), statistics.median(first)
        say(f"a chat's tenth turn, {new} of {len(history)} tokens computed", f"{late:.1f} ms beside {early:.1f} of a first turn",
            "within 20 %", late <= 1.2 * early)


def main():
    parser = parser_of(__doc__, 512)
    parser.add_argument("--prompt", type=int, default=32768)
    parser.add_argument("--prefix", type=int, default=2048)
    parser.add_argument("--ctx", type=int, default=40960)
    parser.add_argument("--vram", default="8GiB")
    parser.add_argument("--only", default="exact,fill,prefix,turns")
    parser.add_argument("--profile")
    options = parse(parser)
    options.more = options.helmd + (["--profile", options.profile] if options.profile else [])
    only = options.only.split(",")
    print("| case | result | goal | |\n| --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory(prefix="helm-context-") as folder:
        if "exact" in only or "fill" in only:
            long_context(options, folder, only)
        if "prefix" in only or "turns" in only:
            short_prompts(options, folder, only)


if __name__ == "__main__":
    main()
