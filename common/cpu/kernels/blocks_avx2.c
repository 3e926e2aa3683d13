/* GGUF's blocks with AVX2, FMA and F16C. Called through the table of linear.c after the CPU check.
 *
 * One token: a block's numbers are unpacked to bytes, which stay in L1, and widened on their way into the sum of their
 * group, which is scaled. */
#include "common/cpu/kernels/lanes256.h"

INLINE vec block_numbers(const void *at)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(at)));
}

#include "common/cpu/kernels/blocks_sizes.h"
#define GEMV_STREAMS 2
#include "common/cpu/kernels/gemv_streams.h"

/* A block taken apart. */
struct parts {
    _Alignas(32) int8_t number[BLOCK_VALUES_MAX];
    float scale[BLOCK_GROUPS_MAX], least[BLOCK_GROUPS_MAX];
};
INLINE void block_parts(struct parts *to, const uint8_t *w, const enum tensor_format format)
{
#define CASE(format_, FORMAT_NAME, VALUES, BYTES, GROUP)                                                     \
    case FORMAT_##FORMAT_NAME:                                                                               \
        format_##_numbers(w, to->number);                                                                    \
        format_##_scales(w, to->scale, to->least);                                                           \
        return;
    switch (format) {
        BLOCK_FORMATS(CASE)
    default:
        __builtin_unreachable();
    }
#undef CASE
}

INLINE void gemv_rows(float *y, size_t row_stride, const char *w, const float *x, size_t cols,
                      const struct gemv_path *path, const size_t S, const bool two_levels,
                      const enum tensor_format format)
{
    const size_t stride = row_stride * decode_bytes(cols, format), values = block_values(format),
                 bytes = decode_bytes(values, format), group = block_group(format);
    const uint8_t *at = (const uint8_t *)w;
    struct parts parts[GEMV_STREAMS];
    vec total[GEMV_STREAMS];
    UNROLL for (size_t s = 0; s < S; s++) total[s] = vec_zero();
    for (size_t c = 0; c < cols; c += values, at += bytes) {
        const struct gemv_ahead ahead = gemv_ahead(path, (uintptr_t)w, decode_bytes(c, format), stride);
        UNROLL for (size_t s = 0; s < S; s++)
        {
            gemv_fetch(ahead, s, bytes, two_levels);
            block_parts(&parts[s], at + s * stride, format);
        }
        UNROLL for (size_t g = 0; g < values / group; g++)
        {
            const float *from = x + c + g * group;
            vec sum[GEMV_STREAMS], xs = vec_load(from), all = xs;
            UNROLL for (size_t i = 0; i < group; i += LANES)
            {
                if (i) xs = vec_load(from + i), all = vec_add(all, xs);
                UNROLL for (size_t s = 0; s < S; s++)
                {
                    const vec number = block_numbers(parts[s].number + g * group + i);
                    sum[s] = i ? vec_fmadd(number, xs, sum[s]) : vec_mul(number, xs);
                }
            }
            UNROLL for (size_t s = 0; s < S; s++)
            {
                total[s] = vec_fmadd(sum[s], vec_set1(parts[s].scale[g]), total[s]);
                if (has_least(format)) total[s] = vec_fnmadd(all, vec_set1(parts[s].least[g]), total[s]);
            }
        }
    }
    UNROLL for (size_t s = 0; s < S; s++) y[s * row_stride] = vec_reduce_add(total[s]);
}

#define GEMV(format_, FORMAT_NAME, VALUES, BYTES, GROUP)                                                     \
    static void format_##_gemv(float *y, const void *w, const float *x, size_t rows, size_t cols,            \
                               const struct gemv_reads *reads)                                               \
    {                                                                                                        \
        gemv(y, w, x, rows, cols, reads, FORMAT_##FORMAT_NAME);                                              \
    }
BLOCK_FORMATS(GEMV)

#define NAME          "avx2"
#define FEATURES      CPU_AVX2
#define KERNELS       blocks_avx2
#define STREAMS       GEMV_STREAMS
#define ORDER(format) NULL
#define ORDERED_BYTES NULL
#include "common/cpu/kernels/blocks_simd.h"
