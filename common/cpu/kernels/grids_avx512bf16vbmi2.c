/* Grids' blocks decoded to bf16 with VBMI (blocks_bf16.h). Called through the table of linear.c after the CPU
 * check, and by gemm_amx.c. */
#include "common/cpu/kernels/lanes512.h"

#include "common/cpu/kernels/blocks_bf16.h"
#include "common/cpu/kernels/grids512.h"

INLINE void grid_values(uint16_t *to, const size_t step, const uint8_t *block, size_t blocks,
                        const float *scale, const enum tensor_format format)
{
    const size_t groups = 256 / block_group(format), second = groups == 16 ? 1 : 0;
    const __m512i less = _mm512_set1_epi8((char)number_less(format));
    _Alignas(64) int8_t number[256];
    for (; blocks; blocks--, block += decode_bytes(256, format), scale += groups) {
        __m512i v[1][4];
        grid_rows(v, NULL, &block, 1, format);
        grid_in_order(v[0], format);
        UNROLL for (size_t k = 0; k < 4; k++)
            _mm512_store_si512(number + 64 * k, _mm512_sub_epi8(v[0][k], less));
        UNROLL for (size_t i = 0; i < 8; i++, to += step)
        {
            const float *of = scale + (second + 1) * i;
            _mm512_store_si512(to, (__m512i)_mm512_cvtne2ps_pbh(
                                       vec_mul(block_numbers(number + 32 * i + 16), vec_set1(of[second])),
                                       vec_mul(block_numbers(number + 32 * i), vec_set1(of[0]))));
        }
    }
}
#define VALUES_OF(format_, FORMAT_NAME, VALUES, BYTES, GROUP)                                                \
    INLINE void format_##_values(uint16_t *to, const size_t step, const uint8_t *block, size_t blocks,       \
                                 const float *scale, const float *least)                                     \
    {                                                                                                        \
        (void)least;                                                                                         \
        grid_values(to, step, block, blocks, scale, FORMAT_##FORMAT_NAME);                                   \
    }
BLOCK_GRID_FORMATS(VALUES_OF)

#define NAME     "avx512-bf16"
#define FEATURES (CPU_AVX2 | CPU_AVX512 | CPU_AVX512_BF16 | CPU_AVX512_VBMI2)
BLOCK_GRID_FORMATS(FUNCTIONS)

#define ROW(format_, FORMAT_NAME, VALUES, BYTES, GROUP)                                                      \
    [BLOCK_##FORMAT_NAME] = ENTRY(FORMAT_##FORMAT_NAME, format_##_decode),
const struct linear_kernel grids_avx512bf16vbmi2[BLOCK_FORMAT_COUNT] = {BLOCK_GRID_FORMATS(ROW)};
