/* A model's weights into a GGUF file, in the formats of a mixture: tensors cut into runs of rows that threads
 * take, and the error of each. Called by helm-quantize. */
#pragma once

#include "common/formats/quantize.h"
#include "common/model/gguf_write.h"
#include "common/model/shards.h"
#include "tools/quantize/imatrix.h"

/* One tensor as it is written. */
struct rewrite_tensor {
    struct gguf_output_tensor to;
    const struct model_tensor *from; /* NULL: `values` are all of it */
    const float *values;
    uint32_t interleaved_heads; /* whose rows are written as model_tensor.interleaved_heads says */
    const float *importance;    /* [cols], of experts for each; NULL: none */
    double off, all;            /* found: sums of squares, of what is off and of the values */
};

struct rewrite {
    const struct model *model;
    struct rewrite_tensor *tensors;
    uint32_t count;
    uint32_t quantized, measured;             /* matrices in blocks, and those of them with importance */
    float *factors;                           /* RoPE's, where the model has such */
    struct quantize_grid *grid[FORMAT_COUNT]; /* of the formats that tensors are in */
};

/* The list of tensors: which there will be, in which format. HELM_E_UNSUPPORTED: one is in blocks already and
 * would be converted, or would be in blocks that need importance and has none. */
HELM_MUST_CHECK int rewrite_plan(const struct model *model, const struct mixture *mixture, bool interleaved,
                                 const struct imatrix *imatrix, struct rewrite *rewrite,
                                 struct helm_err *err);
void rewrite_free(struct rewrite *rewrite);

/* Called in the order of tensors as each is written; false: stop. */
typedef bool rewrite_progress(void *context, const struct rewrite_tensor *tensor);
struct rewrite_run {
    uint32_t threads;
    rewrite_progress *progress;
    void *context;
    bool (*stopped)(void); /* asked often, by every thread; true: stop. May be NULL */
};
/* The whole file; HELM_E_CANCELLED, and no file: progress or stopped said so. */
HELM_MUST_CHECK int rewrite_file(struct rewrite *rewrite, const char *path, const struct gguf_values *values,
                                 const struct rewrite_run *run, struct helm_err *err);
