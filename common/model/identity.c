/* Which model it is. See identity.h. Called by helmd; owns nothing between calls. */
#include "common/model/identity.h"

#include <stdlib.h>

#include "common/model/content.h"
#include "common/model/shards.h"

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
