/* The CPU's attention over caches of other types than f16. See profile_tool.h. Called by helm_profile.c.
 *
 * An engine of its own, since a cache has one type: two layers of the 4B shape (32 query heads of 8 KV heads,
 * as the 8B shape's). Steps are of sequences in turn, whose pages lie anywhere in the pool, as those of a
 * daemon that has served a while do: what a sequence reads has left the caches before its next turn, since
 * all sequences' cells and each step's weights have passed by. Weights are zeros; only attention's entries
 * are timed. */
#include <string.h>

#include "tools/profile/profile_tool.h"

#define LONG         (PROFILE_SANITIZED ? 1024 : 4096) /* positions that one query attends to */
#define CHUNK_START  1024                              /* before a chunk */
#define CHUNK_TOKENS 128
#define STEPS        18
#define STEPS_QUICK  6
#define LAYERS       2
#define SEQUENCES    16

/* Gives the pool's pages to the sequences at random, and touches their cells. */
static void scatter_pages(struct profile_steps *s)
{
    const struct arena *arena = &s->local.arena;
    const struct arena_region *region = &arena_header_of(arena)->region[ARENA_REGION_KV];
    const uint32_t each = s->local.pages_per_slot, count = SEQUENCES * each;
    uint32_t random = 1;
    memset(arena_region_ptr(arena, ARENA_REGION_KV), 0, (size_t)region->bytes);
    for (uint32_t i = count - 1; i > 0; i--) {
        const uint32_t j = (random = random * 1664525u + 1013904223u) % (i + 1);
        uint32_t *a = arena_page_table_of(arena, i / each) + i % each,
                 *b = arena_page_table_of(arena, j / each) + j % each;
        const uint32_t page = *a;
        *a = *b;
        *b = page;
    }
}

/* Each layer's time of one step is a sample of `amount` a second. */
static int sample(struct profile_steps *s, uint32_t start, uint32_t tokens, double amount,
                  struct profile_samples *samples, struct helm_err *err)
{
    double spent = 0;
    int rc = profile_steps_run(s, start, tokens, &spent, err);
    s->slot = (s->slot + 1) % SEQUENCES;
    for (uint32_t l = 0; l < s->local.engine.model.config.layers && !rc; l++) {
        const double attend = profile_steps_layer(s, (int32_t)l, PROFILE_KIND(OP_ATTEND));
        profile_samples_add(samples, amount / profile_steps_less(s, attend, 1));
    }
    return rc;
}

static int measure(struct profile_steps *s, bool quick, enum kv_dtype dtype, struct profile_kv *kv,
                   struct helm_err *err)
{
    const struct model_config *c = &s->local.engine.model.config;
    const double bytes = 2.0 * LONG * c->kv_heads * kv_cell_bytes(dtype, c->head_dim),
                 pairs = CHUNK_TOKENS * (CHUNK_START + (CHUNK_TOKENS + 1) / 2.0),
                 flops = 4.0 * c->heads * c->head_dim * pairs;
    struct profile_samples one = {.count = 0}, chunk = {.count = 0};
    double spent = 0;
    int rc = profile_steps_run(s, LONG - 1, 1, &spent, err); /* finds all in its place */
    for (int i = 0; i < (quick ? STEPS_QUICK : STEPS) && !rc; i++)
        rc = sample(s, LONG - 1, 1, bytes, &one, err);
    for (int i = 0; i < (quick ? 1 : 3) && !rc; i++)
        rc = sample(s, CHUNK_START, CHUNK_TOKENS, flops, &chunk, err);
    kv->cpu_attention = profile_samples_value(&one);
    kv->cpu_attention_flops = profile_samples_value(&chunk);
    return rc;
}

int profile_kv_measure(const struct profile_cpu_options *options, enum kv_dtype dtype, struct profile_kv *kv,
                       struct helm_err *err)
{
    const struct profile_shape shape = {.size = "4b", .layers = LAYERS, .layer_bytes = 201850880};
    struct profile_cpu_options own = *options;
    struct profile_steps steps = {.open = false};
    own.sequences = SEQUENCES;
    int rc = profile_steps_open(&own, &shape, dtype, &steps, err);
    if (!rc) scatter_pages(&steps);
    if (!rc) rc = measure(&steps, options->quick, dtype, kv, err);
    profile_steps_close(&steps);
    return rc;
}
