"""The least time of a token by bytes: what a plan's weights come to at home and on the move, and how long that takes.

Imported by planner_bench.py. Standard library only."""
import json
import os


def bytes_by_home(plan, model):
    """Weights that a decode step needs, by home, as they are in the file, the head's with them."""
    total = {"cpu": 0, "gpu": 0, "stream": 0}
    for stage in plan["stages"]["decode"]:
        total[stage["home"]] += stage["bytes"]
    with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    total[plan["head"]] += 2 * config["vocab_size"] * config["hidden_size"]
    return total


def moved_bytes(plan, total):
    """What of these bytes_by_home really moves where weights are packed: over the link, to the CPU, from VRAM. Plans printed by
    an older helm-plan say nothing of CPU or VRAM: weights lie there as they are."""
    moved = dict(total)
    for home, name, what in (("stream", "link", "link_bytes"), ("cpu", "cpu", "read_bytes"), ("gpu", "gpu", "read_bytes")):
        part = plan.get(name)
        if part:
            moved[home] -= part["weight_bytes"] - part[what]
    return moved


def bound_seconds(total, limits):
    """A token's least time, all of the host's bytes at once by CPU and link, then those in VRAM."""
    return (total["cpu"] + total["stream"]) / (limits["both_gb_s"] * 1e9) + total["gpu"] / (limits["vram_gb_s"] * 1e9)
