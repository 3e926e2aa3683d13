#!/usr/bin/env python3
"""What the prefix cache saves: time to the first token of a second request with the same beginning, and of a chat's turns.

  prefix_cache.py --bin DIR --model DIR [--chat-model DIR] [--prefix N] [--new N] [--turns N] [--rounds N] [--json FILE]
                  [-- helmd options]

Starts helmd on --model with the cache. A round sends, through helm-cli, a prompt of --prefix (2048) random tokens and --new (32)
more, then one with the same prefix and other new tokens, then one with another prefix and as many tokens as the second computes.
TTFT is helmd's own. Then, on --chat-model (default: the model), a chat of --turns (10) turns runs through helm-cli chat, with the
cache and without, and each turn's time from the question to the first byte of the answer is printed beside the tokens found.
Medians of --rounds (5). Exit status: 0; 2 usage; 5 something failed. Standard library only."""
import argparse
import json
import os
import random
import select
import statistics
import subprocess
import sys
import tempfile
import time
import types

from token_path import Daemon, die, status

PAGE = 32
QUESTIONS = ["What did the old captain see at the harbour?", "Who else was there that evening?", "And what happened then?",
             "Why did nobody tell the others?", "Describe the house on the hill.", "Who lived in it before the war?",
             "What became of the letters?", "When did the ship come back?", "Who paid for the repairs?",
             "How does the story end?"]


def generate(options, endpoint, tokens):
    with tempfile.NamedTemporaryFile("w", suffix=".tokens") as file:
        file.write(",".join(map(str, tokens)))
        file.flush()
        done = subprocess.run([os.path.join(options.bin, "helm-cli"), "--connect", endpoint, "generate", "--tokens-file", file.name,
                               "-n", "2", "--temperature", "0", "--ignore-eos", "--json"], capture_output=True, text=True)
    if done.returncode:
        die(f"helm-cli generate: {done.stderr.strip()}")
    answer = json.loads(done.stdout)
    return answer["timings"]["ttft_ms"], answer["usage"]["cached_tokens"]


def prefixes(options, endpoint):
    """Rows of (first, second, as short) and what the second found."""
    vocab = status(options, endpoint)["model"]["vocab"]
    draw = random.Random(1)
    rows = []
    for _ in range(options.rounds + 1):
        def some(count):
            return [draw.randrange(vocab) for _ in range(count)]
        prefix = some(options.prefix)
        first, none = generate(options, endpoint, prefix + some(options.new))
        second, found = generate(options, endpoint, prefix + some(options.new))
        short, _ = generate(options, endpoint, some(options.prefix + options.new - found))
        if none or found != options.prefix // PAGE * PAGE:
            die(f"found {none} and {found} tokens of a prefix of {options.prefix}")
        rows.append((first, second, short))
    return rows[1:], found  # the first round warms up


def chat(options, endpoint):
    """Of each turn: milliseconds to the first byte, tokens of the prompt, of it found."""
    turns = []
    program = subprocess.Popen([os.path.join(options.bin, "helm-cli"), "--connect", endpoint, "chat", "--temperature", "0", "-n",
                                "40"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0)
    before = status(options, endpoint)
    for turn in range(options.turns):
        begin = time.monotonic()
        program.stdin.write((QUESTIONS[turn % len(QUESTIONS)] + "\n").encode())
        if not select.select([program.stdout], [], [], 60)[0]:
            die("no answer within a minute")
        first = time.monotonic()
        while True:  # one line a message: the answer is over when the daemon has no more open
            after = status(options, endpoint)
            while select.select([program.stdout], [], [], 0.05)[0]:
                if not os.read(program.stdout.fileno(), 65536):
                    die("helm-cli chat ended")
            if not after["running"] and after["requests_total"] == before["requests_total"] + 1:
                break
        turns.append([(first - begin) * 1e3] + [after[key] - before[key] for key in ("tokens_prompt_total", "tokens_cached_total")])
        before = after
    program.stdin.close()
    program.wait()
    return turns


def of_turns(rounds):
    """The median time of each turn; the counts are the same in every round but for what rounds before it left."""
    return [(statistics.median(r[t][0] for r in rounds), rounds[0][t][1], rounds[0][t][2]) for t in range(len(rounds[0]))]


def main():
    argv, helmd = sys.argv[1:], []
    if "--" in argv:
        at = argv.index("--")
        argv, helmd = argv[:at], argv[at + 1:]
    parser = argparse.ArgumentParser(description="What the prefix cache saves.")
    parser.add_argument("--bin", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--chat-model")
    for name, value in (("prefix", 2048), ("new", 32), ("turns", 10), ("rounds", 5)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--json")
    options = parser.parse_args(argv)
    options.helmd = helmd
    talk = types.SimpleNamespace(**{**vars(options), "model": options.chat_model or options.model})
    with tempfile.TemporaryDirectory() as work:
        def daemon(what, cache, name):
            os.mkdir(os.path.join(work, name), 0o700)
            return Daemon(what, os.path.join(work, name), cache)
        with daemon(options, "on", "prefix") as d:
            rows, found = prefixes(options, d.endpoint)
        first, second, short = (statistics.median(row[i] for row in rows) for i in range(3))
        print(f"prefix of {options.prefix} tokens and {options.new} more, first token after (medians of {options.rounds}):")
        print(f"  computed                 {first:9.1f} ms")
        print(f"  {found:5} tokens found       {second:9.1f} ms   {second / first:.3f} of it")
        print(f"  only {options.prefix + options.new - found:5} tokens         {short:9.1f} ms")
        rounds = {"on": [], "off": []}
        for turn in range(options.rounds):
            for cache in ("on", "off") if turn % 2 else ("off", "on"):  # a daemon anew: nothing is left of the round before
                with daemon(talk, cache, f"{cache}{turn}") as d:
                    rounds[cache].append(chat(talk, d.endpoint))
    turns = {cache: of_turns(rounds[cache]) for cache in rounds}
    print("chat, first byte of each answer (medians):\n  turn  prompt   found   with the cache   without")
    for n, (on, off) in enumerate(zip(turns["on"], turns["off"]), 1):
        print(f"  {n:4}  {on[1]:6}  {on[2]:6}   {on[0]:11.1f} ms  {off[0]:6.1f} ms")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"options": {k: v for k, v in vars(options).items()}, "prefix": rows, "found": found, "chat": rounds}, file,
                      indent=1)


if __name__ == "__main__":
    main()
