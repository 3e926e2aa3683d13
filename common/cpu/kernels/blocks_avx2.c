/* GGUF's blocks with AVX2, FMA and F16C. Called through the table of linear.c after the CPU check.
 *
 * One token: 32 neighbouring weights at a time as the 32 bytes of a vector. Lane l of part b of them is
 * weight 4 l + b, in byte b of the dword. So x is brought into that order once, and no byte is widened: a
 * weight is a whole number without sign in the low bits of its byte; a mask and a conversion make it a float,
 * 256^b times too large, which x in its order makes good. Scales are applied to sums of a group. */
#include "common/cpu/kernels/lanes256.h"

INLINE vec block_numbers(const void *at)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(at)));
}

#include "common/cpu/kernels/blocks_words256.h"
#define GEMV_STREAMS 3
#define FEW_ROWS     1
#define FEW_TOKENS   8
#include "common/cpu/kernels/gemv_streams.h"

#define RUN           32
#define ORDERED       (RUN + LANES) /* floats of a run of x: four parts, their sum */
#define CHUNK(format) block_values(format)
INLINE size_t chunk_x_bytes(const enum tensor_format format)
{
    return block_values(format) / RUN * ORDERED * sizeof(float);
}

static size_t ordered_bytes(size_t cols)
{
    return cols / RUN * ORDERED * sizeof(float);
}

/* Part b is divided by 256^b; of tables not the last. */
INLINE void order_as(float *to, const float *x, size_t cols, const bool table)
{
    for (size_t c = 0; c < cols; c += RUN, to += ORDERED) UNROLL for (size_t l = 0; l < LANES; l++)
        {
            const float *from = x + c + 4 * l;
            to[l] = from[0];
            to[l + LANES] = from[1] * 0x1p-8f;
            to[l + 2 * LANES] = from[2] * 0x1p-16f;
            to[l + 3 * LANES] = table ? from[3] : from[3] * 0x1p-24f;
            to[l + RUN] = (from[0] + from[1]) + (from[2] + from[3]);
        }
}
static void order(float *to, const float *x, size_t cols)
{
    order_as(to, x, cols, false);
}
static void order_table(float *to, const float *x, size_t cols)
{
    order_as(to, x, cols, true);
}

INLINE vec words_part(__m256i words, const int b, const enum tensor_format format)
{
    /* the top bit of a whole byte is no sign */
    if (IS_TABLE(format) && b == 3) return _mm256_cvtepi32_ps(_mm256_srli_epi32(words, 24));
    return _mm256_cvtepi32_ps(_mm256_and_si256(words, _mm256_set1_epi32(number_bits(format) << 8 * b)));
}

INLINE void scales_of(const uint8_t *w, float *scale, float *least, const enum tensor_format format)
{
#define CASE(format_, FORMAT_NAME, VALUES, BYTES, GROUP)                                                     \
    case FORMAT_##FORMAT_NAME:                                                                               \
        format_##_scales(w, scale, least);                                                                   \
        return;
    switch (format) {
        BLOCK_FORMATS(CASE)
    default:
        __builtin_unreachable();
    }
#undef CASE
}
/* The scales of a run's one or two groups, by lanes. */
INLINE vec scales_part(const float *scale, const int r, const enum tensor_format format)
{
    if (block_group(format) == RUN) return vec_set1(scale[r]);
    return _mm256_blend_ps(vec_set1(scale[2 * r]), vec_set1(scale[2 * r + 1]), 0xf0);
}

INLINE void add_chunk(vec *total, vec *least, const uint8_t *w, size_t stride, const char *x, size_t ldx,
                      const size_t cols, const size_t S, const size_t T, const enum tensor_format format)
{
    float scale[GEMV_STREAMS][BLOCK_GROUPS_MAX], smallest[GEMV_STREAMS][BLOCK_GROUPS_MAX];
    struct grid_block grid[GEMV_STREAMS];
    (void)least;
    UNROLL for (size_t s = 0; s < S; s++)
    {
        scales_of(w + s * stride, scale[s], smallest[s], format);
        if (is_grid(format)) grid_open(&grid[s], w + s * stride, format);
    }
    UNROLL for (int r = 0; r < (int)(cols / RUN); r++, x += ORDERED * sizeof(float))
    {
        __m256i words[GEMV_STREAMS];
        UNROLL for (size_t s = 0; s < S; s++) words[s] = words_of(w + s * stride, &grid[s], r, format);
        UNROLL for (size_t t = 0; t < T; t++)
        {
            const float *xt = (const float *)(const void *)(x + t * ldx);
            const vec all = vec_load(xt + RUN), less = vec_mul(all, vec_set1((float)-number_less(format)));
            vec sum[GEMV_STREAMS];
            UNROLL for (int b = 0; b < 4; b++)
            {
                const vec xs = vec_load(xt + LANES * b);
                UNROLL for (size_t s = 0; s < S; s++)
                {
                    const vec part = words_part(words[s], b, format);
                    if (b || number_less(format))
                        sum[s] = vec_fmadd(part, xs, b ? sum[s] : less);
                    else
                        sum[s] = vec_mul(part, xs);
                }
            }
            UNROLL for (size_t s = 0; s < S; s++)
            {
                vec *to = &total[t * S + s];
                *to = vec_fmadd(sum[s], scales_part(scale[s], r, format), *to);
                if (has_least(format)) *to = vec_fnmadd(all, scales_part(smallest[s], r, format), *to);
            }
        }
    }
}

INLINE bool has_two_sums(const enum tensor_format format)
{
    (void)format;
    return false;
}
INLINE vec row_sum(vec total, vec least, const enum tensor_format format)
{
    (void)least, (void)format;
    return total;
}

#include "common/cpu/kernels/gemv_chunks.h"

#define NAME          "avx2"
#define FEATURES      CPU_AVX2
#define KERNELS       blocks_avx2
#define STREAMS       GEMV_STREAMS
#define ORDER(format) (IS_TABLE(format) ? order_table : order)
#define ORDERED_BYTES ordered_bytes
#define FORMATS       BLOCK_FORMATS
#include "common/cpu/kernels/blocks_simd.h"
