#!/usr/bin/python3
"""The second turn of a chat with a long history, beside a new prompt of the second turn's length: times to the first token, and the
time that products and attention take of each, and the steps of the prompt: each of them reads all weights. HELM_BIN: folder of the programs; HELM_PYPROTO: protoc's Python output. Run from the
repository's root: tests/process/second_turn.py MODEL [--history N] [--turns N,N] [--rounds N] [options of helmd]."""
import argparse
import statistics
import sys

from helmd_harness import Client, running, status_of


def text_of(count, kind, vocab):
    return [3 + (i * 7 + i // 30 + kind * 11 + i * i * kind) % (vocab - 3) for i in range(count)]


def ask(d, c, prompt, count, marks):
    """The request's stream; milliseconds to the first token, of products and of attention; steps of the prompt."""
    before = status_of(d)
    s = c.generate(prompt, count, ignore_eos=True, marks=marks)
    c.run(s, timeout=1800)
    if s.error:
        sys.exit(str(s.error))
    after = status_of(d)
    return s, (s.done.timings.ttft_ms, 1e3 * (after.seconds_linear - before.seconds_linear),
               1e3 * (after.seconds_attention - before.seconds_attention),
               after.steps_total - before.steps_total - (count - 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("model")
    parser.add_argument("--history", type=int, default=16384)
    parser.add_argument("--turns", default="128,512")
    parser.add_argument("--rounds", type=int, default=5)
    mine, options = parser.parse_known_args()
    with running("--ctx", str(mine.history + 4096), *options, real=True, model=mine.model) as d:
        c = Client(d.endpoint)
        vocab = c.ask("model_info").model_info.vocab
        history = text_of(mine.history, 5, vocab)
        s, times = ask(d, c, history, 100, [mine.history - 10])
        print("history of %d tokens: first token after %.0f ms" % (mine.history, times[0]), flush=True)
        history += s.tokens
        for turn in map(int, mine.turns.split(",")):
            both = [[], []]
            for n in range(mine.rounds):
                second, new = (text_of(turn, turn + 3 * n + k, vocab) for k in range(2))
                for prompt, marks, times in ((history + second, [len(history), len(history) + turn - 4], both[0]), (new, [turn - 4], both[1])):
                    s, took = ask(d, c, prompt, 2, marks)
                    times.append((*took, len(prompt) - s.done.usage.cached_tokens))
            for what, times in zip(("second turn", "new prompt"), both):
                print("%5d tokens, %-11s first token %.1f ms, products %.1f ms, attention %.1f ms, %d steps, %d tokens computed" %
                      (turn, what, *(statistics.median(column) for column in zip(*times))))
            print("%5d tokens, ratio       %.2f" % (turn, statistics.median(t[0] for t in both[0]) / statistics.median(t[0] for t in both[1])),
                  flush=True)


if __name__ == "__main__":
    main()
