/* The CPU's attention over caches of other types than f16. See profile_tool.h. Called by helm_profile.c.
 *
 * An engine of its own, since a cache has one type: a few layers of the 4B shape (32 query heads of 8 KV heads, as the 8B
 * shape's), enough of them that each layer's keys and values have left the caches before its next turn. Its weights are
 * zeros; only attention's entries are timed. */
#include "common/base/units.h"
#include "tools/profile/profile_tool.h"

#define LONG         4096 /* positions that one query attends to */
#define CHUNK_START  1024 /* before a chunk */
#define CHUNK_TOKENS 128
#define STEPS        9
#define STEPS_QUICK  4
#define LAYERS_LEAST 2
#define LAYERS_MOST  16

static void choose_shape(uint64_t caches, struct profile_shape *shape)
{
    const uint64_t past = PROFILE_CACHES_LEAST * caches;
    *shape = (struct profile_shape){.size = "4b", .layer_bytes = 201850880};
    shape->layers = (uint32_t)(past / shape->layer_bytes) + 1;
    if (shape->layers < LAYERS_LEAST) shape->layers = LAYERS_LEAST;
    if (shape->layers > LAYERS_MOST) shape->layers = LAYERS_MOST;
}

/* Each layer's time of one step is a sample of `amount` a second. */
static int sample(struct profile_steps *s, uint32_t start, uint32_t tokens, double amount,
                  struct profile_samples *samples, struct helm_err *err)
{
    double spent = 0;
    int rc = profile_steps_run(s, start, tokens, &spent, err);
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
    struct profile_shape shape;
    struct profile_steps steps = {.open = false};
    choose_shape(options->caches, &shape);
    int rc = profile_steps_open(options, &shape, dtype, &steps, err);
    if (!rc) rc = measure(&steps, options->quick, dtype, kv, err);
    profile_steps_close(&steps);
    return rc;
}
