#!/usr/bin/env python3
"""What slots of experts would catch of a made mixture's tokens: the policy of common/experts/slots.c over a generated trace.

  slots_simulation.py [--slots N] [--moves N] [--cost C] [--sticky PART] [--stay P] [--tokens N] [--layers N]

Routers' logits are what make_gguf.py's models have of them: of the token's topic the square root of PART times a normal number
that is the topic's own, of the token itself the rest. Topics: those of a list of tokens (experts_device.py gives what helmd
answered), or with --stay drawn. A layer's moves of a step are its part of --moves; what is asked for behind one step is there
behind the next, as in the worker. Standard library only."""
import argparse
import math
import random

EXPERTS, CHOSEN, TOPICS = 128, 8, 64
HALF_LIFE, AVERAGE_STEPS = 1.0, 64.0  # as common/experts/slots.[ch]


class Layer:
    """A layer's slots; ranks as there."""

    def __init__(self, slots):
        self.slots = list(range(slots))
        self.filled = set(self.slots)
        self.rank = [-math.inf] * EXPERTS
        self.before = list(self.rank)  # without the last step's uses: a move that those ask for is not there yet
        self.coming = []

    def use(self, chosen, now):
        """How many of these a pool without limits would have had, how many the first ones, and how many are present."""
        line = sorted(self.before, reverse=True)
        foretold = sum(self.before[e] > -math.inf and line.index(self.before[e]) < len(self.slots) for e in chosen)
        self.before = list(self.rank)
        coming = [slot for slot, _ in self.coming]
        present = sum(e in self.slots and self.slots.index(e) not in coming for e in chosen)
        for e in chosen:
            self.rank[e] = math.log2(2.0 ** (self.rank[e] - now / HALF_LIFE) + 1) + now / HALF_LIFE
        return foretold, sum(e in self.filled for e in chosen), present

    def move(self, most):
        for _ in range(most):
            coming = [slot for slot, _ in self.coming]
            there = set(self.slots)
            expert = max((e for e in range(EXPERTS) if e not in there), key=lambda e: (self.rank[e], -e))
            slot = min((s for s in range(len(self.slots)) if s not in coming), key=lambda s: self.rank[self.slots[s]], default=None)
            if slot is None or self.rank[expert] <= self.rank[self.slots[slot]]:
                break
            self.slots[slot] = expert
            self.coming.append((slot, expert))
        return len(self.coming)


def hit_rate(topics, slots, moves, cost, sticky, layers=6, of_layers=48, seed=1):
    """Of the second half of the tokens, whose topics these are (None: routing is even). moves: of of_layers layers a step."""
    rng = random.Random(seed)
    pool = [Layer(slots) for _ in range(layers)]
    of_topic = {(t, n): [rng.gauss(0, 1) for _ in range(EXPERTS)] for t in sorted(set(topics)) for n in range(layers)}
    common, own = math.sqrt(sticky), math.sqrt(1 - sticky)
    foretold, filled, weight, moving, left = 0.0, 0.0, 0.0, False, 0.0
    first = turn = 0  # layer: the one that had the last place in a step is the first in the next
    used = present = 0
    for step, topic in enumerate(topics):
        seen = first_seen = 0
        for n, layer in enumerate(pool):
            logits = [common * t + own * rng.gauss(0, 1) for t in of_topic[topic, n]]
            chosen = sorted(range(EXPERTS), key=lambda e: -logits[e])[:CHOSEN]
            would, first_had, had = layer.use(chosen, step)
            seen, first_seen = seen + would, first_seen + first_had
            if step >= len(topics) // 2:
                used, present = used + CHOSEN, present + had
            layer.coming = []
        all_chosen, keep = layers * CHOSEN, weight * (1 - 1 / AVERAGE_STEPS)
        foretold, filled = (foretold * keep + seen / all_chosen) / (keep + 1), (filled * keep + first_seen / all_chosen) / (keep + 1)
        weight = keep + 1
        moving = foretold - filled > cost * (1 - foretold)
        left = moves * layers / of_layers + left % 1
        for n in range(layers if moving else 0):
            if left < 1:
                break
            turn = (first + n) % layers
            left -= pool[turn].move(int(left))
        first = turn
    return present / used


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--moves", type=int, default=16)
    parser.add_argument("--cost", type=float, default=0.6)
    parser.add_argument("--sticky", type=float, default=0.8)
    parser.add_argument("--stay", type=float, default=0.93)
    parser.add_argument("--tokens", type=int, default=320)
    parser.add_argument("--layers", type=int, default=6)
    o = parser.parse_args()
    rng, topics = random.Random(2), [0]
    while len(topics) < o.tokens:
        topics.append(topics[-1] if rng.random() < o.stay else rng.randrange(TOPICS))
    print("%.3f" % hit_rate(topics, o.slots, o.moves, o.cost, o.sticky, o.layers))


if __name__ == "__main__":
    main()
