/* Several tokens' products of grids' blocks with activations of 8 bits, with AVX512-VNNI and VBMI. Called
 * through the table of linear.c after the CPU check. */
#include "common/cpu/kernels/lanes512.h"

#include "common/cpu/kernels/grids512.h"
#include "common/cpu/kernels/int8_gemm512.h"

INLINE void unpack_numbers(char *to, const uint8_t *const row[LANES], const enum tensor_format format)
{
    vec numbers[4][LANES];
    const __m512i less = _mm512_set1_epi8((char)number_less(format));
    for (size_t r = 0; r < LANES; r += GRID_ROWS) {
        __m512i number[GRID_ROWS][4];
        grid_rows(number, NULL, row + r, GRID_ROWS, format);
        UNROLL for (size_t s = 0; s < GRID_ROWS; s++)
        {
            grid_in_order(number[s], format);
            UNROLL for (size_t k = 0; k < 4; k++) numbers[k][r + s] =
                _mm512_castsi512_ps(_mm512_sub_epi8(number[s][k], less));
        }
    }
    UNROLL for (size_t k = 0; k < 4; k++)
    {
        vec_transpose(numbers[k]);
        UNROLL for (size_t i = 0; i < LANES; i++)
            vec_store(to + (2 * k + i / 8) * INT8_PANEL + i % 8 * LANES * 4, numbers[k][i]);
    }
}

#define NAME     "avx512-vbmi2"
#define FEATURES (FEATURES_VNNI | CPU_AVX512_VBMI2)
#define KERNELS  int8_avx512vnnivbmi2_gemm
#define FORMATS  BLOCK_GRID_FORMATS
#include "common/cpu/kernels/int8_gemm.h"
