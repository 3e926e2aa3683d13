/* The files of a model, open for reading its tensors.
 *
 * Called by both workers' loaders, which read all of them, and by the planner, which looks at some. Any
 * number of threads may read. */
#pragma once

#include <stdatomic.h>

#include "common/model/model.h"

struct model_shards {
    int *fd;         /* [count] */
    uint64_t *bytes; /* that each has now */
    uint32_t count;
    const struct model_piece *pieces; /* the model's */
    _Atomic uint64_t *content;        /* of all that was read (content.h) */
};
/* On failure nothing is open. */
HELM_MUST_CHECK int model_shards_open(const struct model *model, struct model_shards *shards,
                                      struct helm_err *err);
/* Bytes of a tensor from its byte `from` on. */
HELM_MUST_CHECK int model_shards_read(const struct model_shards *shards, const struct model_tensor *tensor,
                                      uint64_t from, uint64_t bytes, void *to, struct helm_err *err);
/* Rows of a tensor, laid down in a format that its own can be converted to (tensor_format_converts). */
struct model_rows {
    const struct model_tensor *tensor;
    uint32_t row, rows;
    enum tensor_format format;
};
HELM_MUST_CHECK int model_shards_read_rows(const struct model_shards *shards, const struct model_rows *what,
                                           void *to, struct helm_err *err);
/* Where in its file row `row` of `rows` lies, of a tensor with interleaved heads. */
uint64_t model_shards_row(const struct model_tensor *tensor, uint64_t rows, uint64_t row);
/* Accepts a zeroed struct. */
void model_shards_close(struct model_shards *shards);
