/* Attention of the CPU's layers, chunk by chunk. Called by execute.c; owns nothing: tasks and their parts lie
 * in struct run. */
#pragma once

#include "worker-cpu/program/execute.h"

/* A pool_chunk_fn of OP_ROPE_APPEND: norms and rotates heads of some tokens, and writes their cells. */
void attend_append(void *run, uint32_t chunk, uint32_t thread);
/* OP_ATTEND of the current entry. Cuts the step's attention into tasks, the same for every layer of as many
 * heads. */
struct pool_job attend_job(struct run *run);
