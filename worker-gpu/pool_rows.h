/* Rows whose hidden states are pooled (STEP_ROW_POOL_...), where the head is the GPU's.
 *
 * Called by step.c once a step's draws are done and before the next one may be launched: the residual stream
 * is in the workspace still. It is copied to the arena's logits, which are unused at that time, a few rows at
 * a time, and the host pools it (common/worker/pooled.h). That saves two kernels and costs copies: 8 MiB for
 * a chunk of 512 tokens of 4,096 numbers. */
#pragma once

#include "common/base/err.h"

struct gpu_engine;

HELM_MUST_CHECK int gpu_pool_rows(struct gpu_engine *g, struct helm_err *err);
