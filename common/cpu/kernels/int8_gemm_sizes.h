/* How int8_gemm.h lays unpacked weights down. Included after lanes256.h or lanes512.h. */
#pragma once

#include "common/cpu/kernels/int8.h"

/* Bytes of a panel's block of 32 columns, of LANES rows: numbers, then, a vector for each of two groups, what
 * their increase adds, scales, smallest values. */
#define INT8_NUMBERS (INT8_BLOCK * LANES)
#define INT8_EXTRA   INT8_NUMBERS
#define INT8_SCALES  (INT8_EXTRA + 2 * LANES * 4)
#define INT8_SMALL   (INT8_SCALES + 2 * LANES * 4)
#define INT8_PANEL   (INT8_SMALL + 2 * LANES * 4)
