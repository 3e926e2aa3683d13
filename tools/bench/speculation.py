#!/usr/bin/python3
"""Measures the gain of drafts on a running helmd: the same answer without drafts and with predictions of
known quality, and with none: then a draft model makes them, if there is one. See docs/speculation.md.

    speculation.py [--endpoint E] [--speculate ngram|auto|draft] [--tokens N] [--prompt N] [--rounds N] [--temperature T]

The answer is drawn with a seed and, unless told otherwise, temperature 1, so that a model with random weights does not repeat itself, and predictions are
the only source of drafts. It is known from a first run, so a prediction can be wrong at places that are chosen: all of it right, one token wrong (a text
quoted with an edit), each token right with probability 0.8 or 0.5, or none. Prints for each the time and the workers' processor time of a
token, both as parts of those without drafts in the same round, and how many drafts were right. Processor time is what counts on a machine
that does other things as well. Every answer must be the first run's: with --invariant on it always is."""
import argparse
import os
import random
import re
import time

from helm_client.connection import Client, default_endpoint

OFF, KINDS = 1, {"ngram": 2, "auto": 3, "draft": 5}


def worker_pids(status):
    """Those of a draft model among them."""
    pids, draft = [w.pid for w in status.workers], re.search(r" pid (\d+),", status.draft_model)
    if draft:
        with open("/proc/{0}/task/{0}/children".format(draft[1])) as f:
            pids += f.read().split()
    return pids


def processor_seconds(pids):
    ticks = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat") as f:
            ticks += sum(map(int, f.read().rsplit(")", 1)[1].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def generate(client, pids, prompt, count, temperature, **fields):
    """Tokens, seconds and processor seconds from the first token on, drafts and right ones."""
    tokens, begun = [], None
    for token in client.stream(prompt, count, {"has_seed": True, "temperature": temperature}, ignore_eos=True, **fields):
        tokens.append(token.token)
        begun = begun or (time.monotonic(), processor_seconds(pids))
    spent = time.monotonic() - begun[0], processor_seconds(pids) - begun[1]
    usage = client.last_done.usage
    return tokens, spent, (usage.drafted_tokens, usage.accepted_tokens)


def median(values):
    values = sorted(values)
    return values[len(values) // 2]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", default=default_endpoint())
    parser.add_argument("--speculate", choices=KINDS, default="ngram")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--temperature", type=float, default=1.0)
    options = parser.parse_args()
    client, rng, n = Client(options.endpoint, timeout_ms=120000), random.Random(5), options.tokens
    while client.status().state != "ready":
        time.sleep(0.2)
    pids = worker_pids(client.status())
    vocab = client.model_info().vocab
    prompt = [rng.randrange(10, vocab) for _ in range(options.prompt)]
    want = generate(client, pids, prompt, n, options.temperature, speculate=OFF)[0]

    def wrong(places):
        return [(t + 1) % vocab if i in places else t for i, t in enumerate(want)]

    predictions = {"all right": want, "one token wrong": wrong({n // 2}),
                   "p = 0.8": wrong({i for i in range(n) if rng.random() > 0.8}),
                   "p = 0.5": wrong({i for i in range(n) if rng.random() > 0.5}), "none right": wrong(set(range(n)))}
    predictions = {**({} if options.speculate == "draft" else predictions), "no prediction": []}
    times, busy, drafts = {k: [] for k in predictions}, {k: [] for k in predictions}, {}
    for _ in range(options.rounds):
        _, (plain_s, plain_busy), _ = generate(client, pids, prompt, n, options.temperature, speculate=OFF)
        for name, prediction in predictions.items():
            tokens, (seconds, spent), drafts[name] = generate(client, pids, prompt, n, options.temperature, prediction=prediction, speculate=KINDS[options.speculate])
            times[name].append(seconds / plain_s)
            busy[name].append(spent / plain_busy)
            if tokens != want:
                print(f"{name}: token {next(i for i in range(n) if tokens[i] != want[i])} is another one")
    print(f"without drafts: {(n - 1) / plain_s:.1f} token/s, {1e3 * plain_busy / (n - 1):.1f} ms of processor time a token")
    for name in predictions:
        print(f"{name:16} {1 / median(times[name]):5.2f} times the speed, {1 / median(busy[name]):5.2f} times the tokens in the same "
              f"processor time; {drafts[name][1]} of {drafts[name][0]} drafts right")


if __name__ == "__main__":
    main()
