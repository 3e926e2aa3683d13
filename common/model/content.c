/* Digests of what was read. See content.h. */
#include "common/model/content.h"

#include <stdlib.h>

#include "common/model/shards.h"

#define XXH_INLINE_ALL
#include <string.h>
#include <xxhash.h>

uint64_t content_of(const void *bytes, size_t count, uint64_t place)
{
    return XXH3_64bits_withSeed(bytes, count, place);
}

uint64_t content_of_config(const struct model_config *c)
{
    const struct rope_config *r = &c->rope[0];
    const double number[] = {c->norm_eps,
                             r->kind,
                             r->theta,
                             r->factor,
                             r->low_freq_factor,
                             r->high_freq_factor,
                             r->beta_fast,
                             r->beta_slow,
                             r->attention_factor,
                             r->truncate,
                             r->original_context,
                             c->layers,
                             c->hidden,
                             c->intermediate,
                             c->vocab,
                             c->heads,
                             c->kv_heads,
                             c->head_dim,
                             c->qk_norm,
                             c->q_bias,
                             c->k_bias,
                             c->v_bias,
                             c->o_bias,
                             c->mlp_bias,
                             c->tied_head};
    const double scale[] = {c->embedding_scale, c->residual_scale, c->attention_scale, c->logit_scale};
    uint64_t sum = content_of(number, sizeof number, 1) + content_of(scale, sizeof scale, 5) +
                   content_of(c->architecture, strlen(c->architecture), 6);
    if (c->rope[0].factors)
        sum += content_of(c->rope[0].factors, c->head_dim / 2 * sizeof *c->rope[0].factors, 2);
    if (c->rope[0].long_factors)
        sum += content_of(c->rope[0].long_factors, c->head_dim / 2 * sizeof *c->rope[0].long_factors, 7);
    if (c->window) sum += content_of(c->window, c->layers * sizeof *c->window, 3);
    if (model_ropes(c) > 1) {
        const double second[] = {
            c->rope[1].kind,          c->rope[1].theta, c->rope[1].factor, c->window_heads.kv_heads,
            c->window_heads.head_dim, c->logit_cap,     c->k_is_v,         c->rope[0].part};
        sum += content_of(second, sizeof second, 10);
    }
    if (c->router.experts) {
        const double experts[] = {c->router.experts, c->router.chosen, c->router.score, c->router.normalise,
                                  (double)c->router.scale};
        sum += content_of(experts, sizeof experts, 4);
    }
    if (c->delta.value_heads) {
        const struct model_delta *d = &c->delta;
        const double delta[] = {d->key_heads, d->value_heads, d->key_dim, d->value_dim,
                                d->conv,      d->order,       r->dims};
        sum += content_of(delta, sizeof delta, 8);
    }
    if (c->per_layer) sum += content_of(&c->per_layer, sizeof c->per_layer, 11);
    if (c->q_growth != 0) sum += content_of(&c->q_growth, sizeof c->q_growth, 14);
    if (c->reads) sum += content_of(c->reads, c->layers * sizeof *c->reads, 13);
    if (c->widths) sum += content_of(c->widths, c->layers * sizeof *c->widths, 12);
    if (c->recurrent) sum += content_of(c->recurrent, c->layers * sizeof *c->recurrent, 9);
    return sum;
}

/* ---- which model it is ---- */

#define VECTOR_MAX ((uint64_t)1 << 20) /* of one larger than any real one the same samples as of a matrix */

/* A sum of what each tensor gives, which does not depend on their order in the files. */
static int add_bytes(const struct model_shards *shards, const struct model_tensor *t, uint64_t from,
                     uint64_t bytes, uint64_t *digest, struct helm_err *err)
{
    void *read = malloc((size_t)bytes + 1);
    if (!read)
        return helm_fail(err, HELM_E_NOMEM, "no memory for %llu bytes of %s", (unsigned long long)bytes,
                         t->name);
    int rc = model_shards_read(shards, t, from, bytes, read, err);
    if (!rc) *digest = content_of(read, (size_t)bytes, *digest + from);
    free(read);
    return rc;
}

static int add_tensor(const struct model_shards *shards, const struct model_tensor *t, uint64_t *sum,
                      struct helm_err *err)
{
    const uint64_t shape[] = {
        (uint64_t)t->role, (uint64_t)(uint32_t)t->layer, (uint64_t)t->format, t->rows, t->cols, t->bytes};
    uint64_t digest = content_of(shape, sizeof shape, 1);
    int rc;
    if (t->rows == 1 && t->bytes <= VECTOR_MAX) {
        rc = add_bytes(shards, t, 0, t->bytes, &digest, err);
    } else {
        const uint64_t part = t->bytes < IDENTITY_SAMPLE ? t->bytes : IDENTITY_SAMPLE,
                       middle = (t->bytes - part) / 2;
        rc = add_bytes(shards, t, 0, part, &digest, err);
        if (!rc) rc = add_bytes(shards, t, middle, part, &digest, err);
    }
    *sum += digest;
    return rc;
}

int model_identity(const struct model *model, uint64_t *identity, struct helm_err *err)
{
    struct model_shards shards = {0};
    uint64_t sum = content_of_config(&model->config);
    *identity = 0;
    int rc = model_shards_open(model, &shards, err);
    for (uint32_t i = 0; i < model->tensor_count && !rc; i++)
        rc = add_tensor(&shards, &model->tensors[i], &sum, err);
    model_shards_close(&shards);
    if (rc) return helm_err_prefix(err, "telling the model from others");
    *identity = sum ? sum : 1;
    return 0;
}
