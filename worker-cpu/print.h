/* A checkpoint and a plan, lowered, as text. Called by process.c for --print-program; owns nothing that
 * outlives a call. */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "common/plan/plan.h"

/* Lowers the model for `threads` threads without loading its matrices and prints every program: this worker's
 * share of a plan, or (plan NULL) all of it on the CPU. */
HELM_MUST_CHECK int print_plan(const char *folder, const struct plan *plan, uint32_t threads,
                               const char *kernels, FILE *out, struct helm_err *err);
