"""Prompts that are random, fixed by a seed, and the same as helm-bench's (client/bench/prompt.c: change both).

Imported by against_transformers.py and by tests/process/test_bench.py. Pure, standard library only."""

MASK = 2**64 - 1
WARMUP_FIRST = 1 << 31  # numbers of warm-up requests begin here


def prompt_token(seed, request, index, vocab):
    """splitmix64 at position request * 2**32 + index, scaled to the vocabulary."""
    z = (seed + 0x9E3779B97F4A7C15 * ((request << 32) + index + 1)) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    z ^= z >> 31
    return ((z >> 32) * vocab) >> 32


def prompt_ids(seed, request, count, vocab):
    return [prompt_token(seed, request, i, vocab) for i in range(count)]


def prompt_checksum(ids):
    """FNV-1a over the ids, four bytes each, lowest first; as helm-bench writes it."""
    h = 0xCBF29CE484222325
    for token in ids:
        for byte in token.to_bytes(4, "little"):
            h = ((h ^ byte) * 0x100000001B3) & MASK
    return f"{h:016x}"
