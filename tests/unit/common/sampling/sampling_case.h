/* Shared by the tests of sampling: random numbers, parameters that change nothing, one checked draw from a
 * row. Included by test_sampling.c and test_sampling_few.c. */
#pragma once

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/sampling/sampling.h"

static inline uint32_t random_u32(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}
static inline double random_unit(uint64_t *state)
{
    return random_u32(state) / 2147483648.0;
}
static inline float random_normal(uint64_t *state)
{
    double u = random_unit(state) + 1e-12, v = random_unit(state);
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

static inline struct sampling_params plain_params(void)
{
    struct sampling_params p = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    return p;
}

/* Runs with scratch full of rubbish and checks that the logits are untouched. */
static inline int run(const struct sampling_params *p, const float *x, uint32_t vocab,
                      const uint32_t *history, uint32_t count, uint32_t prompt,
                      struct sampling_result *result)
{
    void *scratch = NULL;
    size_t bytes = (sampling_scratch_bytes(vocab) + 63) / 64 * 64;
    float *copy = malloc(vocab * sizeof(float));
    memcpy(copy, x, vocab * sizeof(float));
    assert_int_equal(posix_memalign(&scratch, 64, bytes + 64), 0);
    memset(scratch, 0xcd, bytes + 64);
    memset(result, 0xcd, sizeof(*result));
    int rc = sampling_draw(p, copy, vocab, &(struct sampling_tokens){history, count, prompt, NULL}, scratch,
                           result);
    for (int i = 0; i < 64; i++) assert_int_equal(((unsigned char *)scratch)[bytes + (size_t)i], 0xcd);
    assert_memory_equal(copy, x, vocab * sizeof(float));
    free(copy);
    free(scratch);
    return rc;
}
