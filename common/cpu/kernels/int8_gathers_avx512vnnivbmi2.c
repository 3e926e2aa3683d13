/* The same as int8_gemv_avx512vnnivbmi2.c, of grids of 1,024 entries and more, with instructions that gather
 * entries. Sapphire Rapids and later ones gather 32 in 17 cycles, where one by one takes 47; other processors
 * are slower with it: it is chosen on those that have AVX512-FP16. Called through the table of linear.c after
 * the CPU check. */
#include "common/cpu/kernels/lanes512.h"

#define GRID_GATHERS 1
#define NAME         "avx512-gather"
#define KERNELS      int8_avx512vnnivbmi2_gathers
#define FORMATS      BLOCK_LARGE_GRID_FORMATS
#include "common/cpu/kernels/int8_grids512.h"
