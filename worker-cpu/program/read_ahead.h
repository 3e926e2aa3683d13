/* How far ahead weights are read with one token: tried out with the model's own weights when they are loaded.
 *
 * Whether fetching into the L2 besides the L1 pays depends on how many cores share the memory, not on the
 * processor's make: with 16 cores of a Sapphire Rapids whole steps of 8B go from 147 to 160 GB/s, with two of
 * an Ice Lake from 24.4 to 22.1.
 *
 * Called by engine_load, before anything is decoded. Changes no result. */
#pragma once

#include "worker-cpu/program/execute.h"

/* Fewer bytes than this are not worth trying with: caches hold them. */
#define READ_AHEAD_LEAST (64ull << 20)

struct read_ahead {
    double near_rate, far_rate; /* bytes a second into L1 alone, and into the L2 as well; 0: not tried */
};

/* Tries both with the one-token linears of `layers` and `head` (an empty program: none here) and sets
 * run->reads; fewer bytes than `least`, or a difference that may be chance, and they stay as they are. Takes
 * up to a second. */
void read_ahead_choose(struct run *run, const struct program *layers, const struct program *head,
                       uint64_t least, struct read_ahead *found);
