/* Weights of no model: random blocks of any format, to measure speed with.
 *
 * Called by tools/profile and worker-gpu/measure. Blocks are random bits, of which those are taken whose
 * values are numbers of the size of weights, as the format itself reads them: scales of random bits would be
 * infinite now and then, or so small that processors take longer over them. Pure. */
#pragma once

#include "common/formats/tensor_format.h"

/* The largest value of a block is at most this, and at least a 256th of it: in matrices, and in embeddings.
 * Beside embeddings of that size all that layers add is little, so that a chunk's tokens stay as different as
 * these are, and choose different experts. */
#define RANDOM_WEIGHTS    0x1p-2f
#define RANDOM_EMBEDDINGS 0x1p7f

/* Fills `bytes`, whole blocks of a format that is not variable, with values of this size. Always the same for
 * the same arguments. */
void random_blocks_fill(enum tensor_format format, float most, void *out, uint64_t bytes);
/* The same of numbers of 16 bits, of either kind: of a size that no sum of products overflows or vanishes
 * with. `number`: others for another part of the same weights. Whole words of 8 bytes, which `out` begins
 * with. */
void random_numbers_fill(void *out, uint64_t bytes, uint64_t number);
