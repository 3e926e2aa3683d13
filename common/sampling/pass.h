/* Sampling's passes over a whole row of logits, and what they leave.
 *
 * Called by common/sampling/sampling.c and the emulated device. Pure functions over caller-owned memory. A
 * row is read in blocks of SAMPLING_BLOCK logits; non-finite logits read as -inf. Results are the same bits
 * on every x86-64. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SAMPLING_BLOCK      64
#define SAMPLING_WEIGHT_ONE ((uint64_t)1 << 40) /* of the best token */

/* One row of logits as the passes see it. */
struct sampling_row {
    const float *x;
    uint32_t vocab, blocks;
    float top;      /* largest finite logit */
    float inv_temp; /* 1 / temperature, at most FLT_MAX */
};

/* A token that may be drawn. `key` grows in falling order: inverted ordered bits of the logit, then the id.
 */
struct sampling_candidate {
    uint64_t key;
    uint64_t weight;
};

static inline uint64_t falling_key(float x, uint32_t id)
{
    uint32_t bits;
    x += 0.0f; /* -0 and +0 are a tie */
    memcpy(&bits, &x, sizeof(bits));
    bits ^= (bits >> 31) != 0 ? 0xffffffffu : 0x80000000u;
    return (uint64_t)~bits << 32 | id;
}
static inline uint32_t key_id(uint64_t key)
{
    return (uint32_t)key;
}
static inline float key_logit(uint64_t key)
{
    uint32_t bits = ~(uint32_t)(key >> 32);
    bits ^= (bits >> 31) != 0 ? 0x80000000u : 0xffffffffu;
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* Fills block_max[blocks] and row->top; -inf where no logit is finite. */
void sampling_find_maxima(struct sampling_row *row, float *block_max);

/* Sum of all weights; each block's goes to block_weight[blocks] unless that is NULL. */
uint64_t sampling_find_weights(const struct sampling_row *row, const float *block_max,
                               uint64_t *block_weight);

/* Weights of the tokens of block b, 0 past the end of the vocabulary. */
void sampling_block_weights(const struct sampling_row *row, uint32_t b, uint64_t weight[SAMPLING_BLOCK]);

/* The tokens with logit >= floor_logit, a prefix of the falling order, in order of ids; returns how many.
 * Needs room for 4 more than that. */
size_t sampling_gather(const struct sampling_row *row, const float *block_max, float floor_logit,
                       struct sampling_candidate *candidate);

/* Weights of n candidates by their keys. */
void sampling_weigh(const struct sampling_row *row, struct sampling_candidate *candidate, size_t n);

/* A logit a little below the one at which a token is `weight` times as likely as the best. */
float sampling_logit_of(const struct sampling_row *row, double weight);
