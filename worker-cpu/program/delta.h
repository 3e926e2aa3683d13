/* Hybrids: the convolution and the rule of gated delta nets over a step's rows, each with its state in the
 * row's slot (state.h), and the gate of attention's output. Called by execute.c; owns nothing. */
#pragma once

#include "common/cpu/pool.h"
#include "common/program/op.h"

struct run;
struct program_entry;

bool delta_is(enum op_kind kind);
/* CONVOLVE: some channels of a row in a chunk; DELTA: a v head of a row; GATE: attention's output of some
 * tokens. */
struct pool_job delta_job(struct run *run, const struct program_entry *entry);
