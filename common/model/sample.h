/* A model of some layers of another one, which only exists to be measured: shapes, formats and operations, no
 * files.
 *
 * Called by helm-profile, which has the CPU worker's engine run it (worker-cpu/local.h, `made`), and by the
 * GPU worker, which is asked to (worker-gpu/measure/measure.h). Both fill its matrices with random blocks,
 * embeddings with larger ones (formats/random_blocks.h). */
#pragma once

#include "common/model/model.h"

/* Makes *model one of these layers of its own, in this order and as often as each is named. It has no files
 * then, and its tensors have the formats that they would have in memory: the worker's weights are its own
 * making. On failure *model is zeroed. */
HELM_MUST_CHECK int model_sample(struct model *model, const uint32_t *layer, uint32_t count,
                                 struct helm_err *err);

/* A value of one of its vectors; `random`: 32 random bits. Values are small, norms among them, so that what
 * layers add is little beside the embeddings: tokens of a chunk stay different, and choose different experts
 * of a router, whose values are random. States decay. */
float model_sample_value(enum tensor_role role, uint32_t random);
