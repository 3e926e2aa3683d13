/* One token's products of grids' blocks with activations of 8 bits, with AVX512-VNNI and VBMI. Called through
 * the table of linear.c after the CPU check. */
#include "common/cpu/kernels/lanes512.h"

#define NAME    "avx512-vbmi2"
#define KERNELS int8_avx512vnnivbmi2_gemv
#define FORMATS BLOCK_GRID_FORMATS
/* Where entries are gathered faster (int8_gathers_avx512vnnivbmi2.c). */
#define BEATEN(format)                                                                                       \
    ((format) == FORMAT_IQ2_S || (format) == FORMAT_IQ1_S || (format) == FORMAT_IQ1_M ? CPU_AVX512_FP16 : 0)
#include "common/cpu/kernels/int8_grids512.h"
