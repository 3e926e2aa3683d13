/* The GPU worker's printed facts: its programs for a checkpoint, the devices there are.
 *
 * Called by the worker's main program through engine.c. Owns nothing. */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "common/base/err.h"
#include "common/plan/plan.h"

/* Lowers the model on the emulated device, without loading weights, and prints every program: the first
 * device's share of a plan, each phase's programs, with what comes through the ring; plan NULL: everything on
 * the GPU. threads and kernels are the CPU worker's and ignored. */
HELM_MUST_CHECK int gpu_print_plan(const char *folder, const struct plan *plan, uint32_t threads,
                                   const char *kernels, FILE *out, struct helm_err *err);
/* {"devices": [...]}, one line; "error": TEXT where there is none, "unusable": TEXT where one is there that
 * cannot be used. */
void gpu_print_devices(FILE *out);
