/* The part of rows of logits on the device that a draw needs (common/sampling/sampling.h). A part of
 * kernels.h, whose rules hold.
 *
 * Called by the CUDA device and tests/gpu; the emulated device does the same. Results go into host memory
 * that is mapped for the device, one place a row, so that no copy has to follow. */
#pragma once

#include "common/base/err.h"
#include "common/sampling/sampling.h"

#define GPUK_FEW_ROWS 64
#define GPUK_FEW_ROOM 1024 /* candidates that a room has place for */

struct gpuk_few {
    uint32_t row;
    uint32_t candidates; /* 1 to SAMPLING_FEW_MAX */
    uint32_t changed;    /* tokens in room->token whose logits are wanted */
    bool sum, model_sum;
    float inv_temp; /* of `sum` */
};

/* One row's. Found are at least as many candidates as were asked for (or all finite ones), in any order: the
 * first ones in falling order, and every one that ties with the last of them. `found` above GPUK_FEW_ROOM:
 * too many, and none was stored. */
struct gpuk_few_room {
    uint32_t found, all; /* all: every finite logit of the row is among them */
    uint64_t sum, model_sum;
    struct sampling_logit candidate[GPUK_FEW_ROOM];
    uint32_t token[SAMPLING_CHANGES_MAX]; /* written by the host before */
    float logit[SAMPLING_CHANGES_MAX];    /* of them; NaN for one outside the vocabulary */
};

#ifdef __cplusplus
extern "C" {
#endif
/* All of it zero before the first launch; its counters are left zero. */
size_t gpuk_few_workspace_bytes(uint32_t rows, uint32_t vocab);
/* Row few[i].row of logits [..][vocab] into room[i], i < count <= GPUK_FEW_ROWS. `few` is host memory that
 * is read before this returns. One launch, two where sums are wanted. */
HELM_MUST_CHECK int gpuk_few(const struct gpuk_few *few, uint32_t count, const float *logits, uint32_t vocab,
                             struct gpuk_few_room *room, void *workspace, void *stream, struct helm_err *err);
#ifdef __cplusplus
}
#endif
