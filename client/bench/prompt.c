/* Prompts that are random, fixed by a seed, and the same in every program of the comparison. See bench.h.
 * Pure. tests/golden/prompt_ids.py says the same in Python: change both. */
#include "client/bench/bench.h"

uint32_t prompt_token(uint64_t seed, uint64_t request, uint64_t index, uint32_t vocab)
{
    /* splitmix64 at position request * 2^32 + index */
    uint64_t z = seed + 0x9e3779b97f4a7c15u * ((request << 32) + index + 1);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (uint32_t)(((z >> 32) * vocab) >> 32);
}

void prompt_fill(uint64_t seed, uint64_t request, uint32_t vocab, uint32_t *ids, size_t count)
{
    for (size_t i = 0; i < count; i++) ids[i] = prompt_token(seed, request, i, vocab);
}

uint64_t prompt_checksum(const uint32_t *ids, size_t count)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < 4 * count; i++)
        hash = (hash ^ ((ids[i / 4] >> (8 * (i % 4))) & 0xff)) * 0x100000001b3u;
    return hash;
}
