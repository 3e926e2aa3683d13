#!/usr/bin/env python3
"""Slots of experts by layer against a pool that all layers share, over generated routing: the table of docs/notes/mixed-experts.md.

  slots_pool.py [--layers N] [--steps N] [--seed N]

A token's logits of a layer are the square root of a part times its topic's, of the rest its own, and the popularity that an expert has in
that layer. Static slots are filled by what the first half of the steps used; moving ones follow recency (half-life of a step, as many moves as
there are misses, an expert is there two steps behind its use). The second half is counted. Standard library only."""
import argparse
import math
import random

EXPERTS, CHOSEN, TOPICS, UNUSED = 128, 8, 64, -1e9


def routing(layers, steps, topical, stay, popular, seed):
    """[step][layer]: the experts chosen. topical, popular: of each layer, the topic's part of a logit and the popularity's deviation."""
    rng = random.Random(seed)
    of_topic = [[[rng.gauss(0, 1) for _ in range(EXPERTS)] for _ in range(TOPICS)] for _ in range(layers)]
    of_expert = [[rng.gauss(0, popular[n]) for _ in range(EXPERTS)] for n in range(layers)]
    topic, trace = 0, []
    for _ in range(steps):
        if rng.random() > stay:
            topic = rng.randrange(TOPICS)
        step = []
        for n in range(layers):
            common, own = math.sqrt(topical[n]), math.sqrt(1 - topical[n])
            logits = [common * of_topic[n][topic][e] + own * rng.gauss(0, 1) + of_expert[n][e] for e in range(EXPERTS)]
            step.append(sorted(range(EXPERTS), key=lambda e: -logits[e])[:CHOSEN])
        trace.append(step)
    return trace


def static(trace, slots):
    """Parts found by layer and globally; the least and the most slots of a layer in the shared pool."""
    half, layers = len(trace) // 2, len(trace[0])
    uses = [[0] * EXPERTS for _ in range(layers)]
    for step in trace[:half]:
        for n, chosen in enumerate(step):
            for e in chosen:
                uses[n][e] += 1
    each = [set(sorted(range(EXPERTS), key=lambda e: (-uses[n][e], e))[:slots]) for n in range(layers)]
    shared = [set() for _ in range(layers)]
    for _, n, e in sorted((-uses[n][e], n, e) for n in range(layers) for e in range(EXPERTS))[:slots * layers]:
        shared[n].add(e)

    def found(pool):
        return sum(e in pool[n] for step in trace[half:] for n, chosen in enumerate(step) for e in chosen) / (
            (len(trace) - half) * layers * CHOSEN)
    return found(each), found(shared), min(map(len, shared)), max(map(len, shared))


def moving(trace, slots, shared):
    layers, used, hits, coming = len(trace[0]), 0, 0, []
    rank = [[UNUSED] * EXPERTS for _ in range(layers)]
    present = [set(range(slots)) for _ in range(layers)]
    for now, step in enumerate(trace):
        for n, e in coming:
            present[n].add(e)
        coming = []
        for n, chosen in enumerate(step):
            if now >= len(trace) // 2:
                used, hits = used + CHOSEN, hits + sum(e in present[n] for e in chosen)
            for e in chosen:
                rank[n][e] = math.log2(2.0 ** max(-60, rank[n][e] - now) + 1) + now
        for part in [range(layers)] if shared else [[n] for n in range(layers)]:
            missed = sorted(((rank[n][e], n, e) for n in part for e in step[n] if e not in present[n]), reverse=True)
            there = sorted((rank[n][e], n, e) for n in part for e in present[n])
            for (worth, n, e), (least, of, evicted) in zip(missed, there):
                if worth <= least:
                    break
                present[of].discard(evicted)
                coming.append((n, e))
    return hits / used


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=3)
    o = parser.parse_args()
    along = [n / max(1, o.layers - 1) for n in range(o.layers)]  # from the first layer to the last
    none = [0.0] * o.layers
    print("| routing | slots a layer | static, by layer | shared | its slots of a layer | moving, by layer | shared |\n" + "| --- " * 7 + "|")
    for name, topical, stay, popular in (
            ("even", none, 0.9, none),
            ("topics 0.8 that stay with 0.93", [0.8] * o.layers, 0.93, none),
            ("popularity 0.8", [0.3] * o.layers, 0.9, [0.8] * o.layers),
            ("popularity from 0 to 1.6", [0.3] * o.layers, 0.9, [1.6 * a for a in along]),
            ("topics from 0.2 to 0.95", [0.2 + 0.75 * a for a in along], 0.93, none),
            ("both", [0.2 + 0.75 * a for a in along], 0.93, [1.2 * (1 - a) for a in along])):
        trace = routing(o.layers, o.steps, topical, stay, popular, o.seed)
        for slots in (14, 32):
            each, shared, least, most = static(trace, slots)
            print("| %s | %d | %.1f %% | %.1f %% | %d to %d | %.1f %% | %.1f %% |" % (
                name, slots, 100 * each, 100 * shared, least, most, 100 * moving(trace, slots, False), 100 * moving(trace, slots, True)), flush=True)


if __name__ == "__main__":
    main()
