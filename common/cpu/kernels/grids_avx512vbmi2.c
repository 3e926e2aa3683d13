/* One token's exact products of grids' blocks, with AVX-512 VBMI. Called through the table of linear.c after
 * the CPU check.
 *
 * Numbers come four vectors a block, whose lanes are sixteens (grids512.h). A mask and a conversion make byte
 * b of each lane a float, 256^b times too large, which x in its order makes good. So sixteen products are
 * added up in each lane before scales are applied, once a block. */
#include "common/cpu/kernels/lanes512.h"

#include "common/cpu/kernels/grids512.h"
#define GEMV_STREAMS GRID_ROWS
#define FEW_ROWS     2
#define FEW_TOKENS   8
#include "common/cpu/kernels/gemv_streams.h"

#define CHUNK(format) 256
/* Floats of a chunk of x: values in the order of numbers, sums of sixteen. */
#define ORDERED (256 + LANES)
INLINE size_t chunk_x_bytes(const enum tensor_format format)
{
    (void)format;
    return ORDERED * sizeof(float);
}
static size_t ordered_bytes(size_t cols)
{
    return cols / 256 * ORDERED * sizeof(float);
}

/* Lane s of part 4 f + b is the number that byte 4 s + b of vector f has, divided by 256^b. */
INLINE void order_as(float *to, const float *x, size_t cols, const enum tensor_format format)
{
    const __m512i sixteens =
        _mm512_setr_epi32(0, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240);
    for (size_t c = 0; c < cols; c += 256, to += ORDERED) {
        vec sum = vec_zero();
        for (int f = 0; f < 4; f++)
            for (int b = 0; b < 4; b++) {
                const int at = has_fours(format) ? 4 * b + f : f / 2 * 8 + 2 * b + f % 2;
                const vec part = _mm512_i32gather_ps(sixteens, x + c + at, 4);
                vec_store(to + 64 * f + 16 * b, vec_mul(part, vec_set1(1.0f / (float)(1 << 8 * b))));
                sum = vec_add(sum, part);
            }
        vec_store(to + 256, sum);
    }
}
#define ORDER(format_, FORMAT_NAME, VALUES, BYTES, GROUP)                                                    \
    static void format_##_order(float *to, const float *x, size_t cols)                                      \
    {                                                                                                        \
        order_as(to, x, cols, FORMAT_##FORMAT_NAME);                                                         \
    }
BLOCK_GRID_FORMATS(ORDER)

#define MOST_SUMS (FEW_ROWS * FEW_TOKENS)
INLINE void add_chunk(vec *total, vec *least, const uint8_t *w, size_t stride, const char *x, size_t ldx,
                      const size_t cols, const size_t S, const size_t T, const enum tensor_format format)
{
    __m512i number[GRID_ROWS][4];
    vec scale[GRID_ROWS], sum[MOST_SUMS];
    (void)cols;
    grid_rows_at(number, scale, w, stride, S, format);
    UNROLL for (int i = 0; i < 16; i++)
    {
        vec part[GRID_ROWS];
        UNROLL for (size_t s = 0; s < S; s++) part[s] = _mm512_cvtepu32_ps(
            _mm512_and_si512(number[s][i / 4], _mm512_set1_epi32((int)(UINT32_C(0x7f) << 8 * (i % 4)))));
        UNROLL for (size_t t = 0; t < T; t++)
        {
            const vec xs = vec_load(x + t * ldx + 64 * i);
            UNROLL for (size_t s = 0; s < S; s++)
            {
                vec *to = &sum[t * S + s];
                *to = i ? vec_fmadd(part[s], xs, *to) : vec_mul(part[s], xs);
            }
        }
    }
    UNROLL for (size_t j = 0; j < S * T; j++)
    {
        total[j] = vec_fmadd(sum[j], scale[j % S], total[j]);
        least[j] = vec_fmadd(scale[j % S], vec_load(x + j / S * ldx + 256 * sizeof(float)), least[j]);
    }
}

INLINE bool has_two_sums(const enum tensor_format format)
{
    (void)format;
    return true;
}
INLINE vec row_sum(vec total, vec least, const enum tensor_format format)
{
    return vec_fnmadd(least, vec_set1((float)number_less(format)), total);
}

#include "common/cpu/kernels/gemv_chunks.h"
BLOCK_GRID_FORMATS(GEMV_FUNCTIONS)

#define ROW(format_, FORMAT_NAME, VALUES, BYTES, GROUP)                                                      \
    [BLOCK_##FORMAT_NAME] = {.name = "avx512-vbmi2",                                                         \
                             .features = CPU_AVX2 | CPU_AVX512 | CPU_AVX512_VBMI2,                           \
                             .format = FORMAT_##FORMAT_NAME,                                                 \
                             .schedule = LINEAR_ONE_TOKEN,                                                   \
                             .gemv = format_##_gemv,                                                         \
                             .few = format_##_few,                                                           \
                             .apart = 4,                                                                     \
                             .streams = GEMV_STREAMS,                                                        \
                             .order = format_##_order,                                                       \
                             .ordered_bytes = ordered_bytes},
const struct linear_kernel grids_avx512vbmi2[BLOCK_FORMAT_COUNT] = {BLOCK_GRID_FORMATS(ROW)};
