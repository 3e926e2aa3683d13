/* Prompts whose hidden states are pooled, through both engines, against tests/data/golden/embeddings.json.
 * For test_golden_split.c, which includes it once. Everything asserts; owns nothing. */
#pragma once

#include "tests/golden/pair_walks.h"

#define EMBED_HIDDEN 256
#define EMBED_CASES  3
/* Bounds for numbers of 1 to 3: activations and cache are rounded to 16 bits, as for logprobs. On the
 * emulated device and CPUs with bf16 dot products at most 0.020, cosine 0.99998; of a row too many or too few
 * it is below 0.99. */
#define EMBED_WORST  0.1
#define EMBED_COSINE 0.9998

struct embed_walk {
    const struct golden_case *golden;
    double wanted[EMBED_HIDDEN];
    uint32_t slot, done, flags;
};

static inline void embed_read(const char *path, const struct golden *golden,
                              struct embed_walk walks[2 * EMBED_CASES])
{
    static const struct {
        const char *name;
        uint32_t flag;
    } kinds[2] = {{"mean", STEP_ROW_POOL_MEAN}, {"last", STEP_ROW_POOL_LAST}};
    struct helm_err err = {0};
    json_t *json = NULL;
    assert_int_equal(json_read_file(path, MIB, &json, &err), 0);
    assert_int_equal(json_array_size(json), EMBED_CASES);
    for (uint32_t i = 0; i < 2 * EMBED_CASES; i++) {
        const json_t *one = json_array_get(json, i / 2), *values = json_object_get(one, kinds[i % 2].name);
        walks[i] =
            (struct embed_walk){.golden = &golden->cases[json_integer_value(json_object_get(one, "case"))],
                                .slot = i,
                                .flags = kinds[i % 2].flag};
        assert_int_equal(json_array_size(values), EMBED_HIDDEN);
        for (size_t k = 0; k < EMBED_HIDDEN; k++)
            walks[i].wanted[k] = json_number_value(json_array_get(values, k));
    }
    json_decref(json);
}

static inline void embed_compare(const struct pair *pair, const struct embed_walk *walk, const char *name)
{
    const double *got = arena_pooled_of(&pair->arena, walk->slot);
    const double count = walk->flags == STEP_ROW_POOL_MEAN ? walk->golden->prompt_count : 1;
    double worst = 0, product = 0, mine = 0, other = 0;
    for (uint32_t i = 0; i < EMBED_HIDDEN; i++) {
        const double value = got[i] / count, wanted = walk->wanted[i];
        if (!(fabs(value - wanted) <= worst)) worst = fabs(value - wanted);
        product += value * wanted;
        mine += value * value;
        other += wanted * wanted;
    }
    const double cosine = product / sqrt(mine * other);
    if (!(worst <= EMBED_WORST && cosine >= EMBED_COSINE))
        fail_msg("%s: %s of %u tokens: worst %.4f, cosine %.6f", name,
                 walk->flags == STEP_ROW_POOL_MEAN ? "mean" : "last", walk->golden->prompt_count, worst,
                 cosine);
}

/* All of them together in steps of odd chunks, and beside them a request that generates, whose tokens they do
 * not change. */
static inline void run_embeddings(struct pair *pair, const struct golden *golden, const char *name)
{
    static const uint32_t pattern[] = {100, 1, 16, 0, 40, 7, 3};
    const uint32_t slot = 2 * EMBED_CASES, count = slot;
    struct embed_walk walks[2 * EMBED_CASES];
    const struct golden_case *other = &golden->cases[2];
    struct helm_err err = {0};
    uint32_t turn = 0, length = other->prompt_count;
    bool open = true;
    embed_read("tests/data/golden/embeddings.json", golden, walks);
    memcpy(arena_history_of(&pair->arena, slot), other->prompt, other->prompt_count * sizeof(uint32_t));
    for (uint32_t i = 0; i < count; i++)
        memcpy(arena_history_of(&pair->arena, i), walks[i].golden->prompt,
               walks[i].golden->prompt_count * sizeof(uint32_t));
    for (uint32_t step = 0; open && step < other->step_count; step++) {
        struct step_row rows[2 * EMBED_CASES + 1];
        const struct step_result *result;
        const uint32_t start = step ? length - 1 : 0;
        uint32_t used = 0, budget = arena_header_of(&pair->arena)->step_tokens - (length - start);
        open = false;
        for (uint32_t i = 0; i < count; i++) {
            struct embed_walk *w = &walks[i];
            uint32_t left = w->golden->prompt_count - w->done, chunk = pattern[turn++ % 7];
            if (!chunk || chunk > left) chunk = left;
            if (chunk > budget) chunk = budget;
            if (!chunk) continue;
            rows[used++] =
                (struct step_row){.slot = w->slot, .start = w->done, .count = chunk, .flags = w->flags};
            w->done += chunk;
            budget -= chunk;
            open = true;
        }
        rows[used++] = (struct step_row){.slot = slot,
                                         .start = start,
                                         .count = length - start,
                                         .flags = STEP_ROW_SAMPLE};
        if (pair_step(pair, rows, used, &result, &err)) fail_msg("%s: %s", name, err.text);
        for (uint32_t r = 0; r < used; r++) assert_int_equal(result->row[r].status, STEP_ROW_OK);
        const uint32_t token = result->row[used - 1].sampled.token;
        if (token != other->step[step].token) assert_true(other->step[step].gap <= pair_tolerance(pair)->gap);
        arena_history_of(&pair->arena, slot)[length++] = other->step[step].token;
    }
    assert_false(open);
    for (uint32_t i = 0; i < count; i++) embed_compare(pair, &walks[i], name);
}
