/* Types of activations that a matrix product multiplies weights with.
 *
 * EXACT: numbers of 16 or 32 bits, as the weights' type asks for. INT8: each block of 32 neighbouring
 * activations is rounded to whole numbers of 8 bits and one fp32 scale, the block's largest magnitude / 127;
 * products with the numbers of the weights' blocks are summed as integers within a group of weights, scales
 * are applied in fp32. Only formats of blocks (Q8_0 and those of blocks.h) have INT8 products; others are
 * multiplied as EXACT whatever is asked for. The definition is common/cpu/kernels/int8_ref.c. Constants only;
 * read by CUDA C++ too. */
#pragma once

enum linear_inputs { LINEAR_EXACT, LINEAR_INT8, LINEAR_INPUTS };

/* "exact", "int8": in plans, reports and options. */
static inline const char *linear_inputs_name(enum linear_inputs inputs)
{
    return inputs == LINEAR_INT8 ? "int8" : "exact";
}
