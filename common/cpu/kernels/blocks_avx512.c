/* GGUF's blocks with AVX-512 and F16C. Called through the table of linear.c after the CPU check. */
#include "common/cpu/kernels/lanes512.h"

#include "common/cpu/kernels/variants.h"
#include "common/formats/blocks.h"

INLINE vec block_numbers(const void *at)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at)));
}

/* A format's bytes of which the halves are numbers: 16 bytes `k` begin at at + 16 k; the numbers of the low halves are
 * sixteen neighbours, those of the high ones stand `apart` behind them. */
struct nibbles {
    size_t values, bytes, group, at, apart;
    int8_t code[16]; /* what the halves stand for */
    void (*scales)(const uint8_t *block, float *scale, float *least);
};
#define NIBBLE_ROWS 2

/* A group's sixteen values are a register, from which halves of bytes choose: exact as the product is. `S` rows side by
 * side share x; every row is summed in the same order whatever S is. */
INLINE void nibble_rows(float *y, const uint8_t *w, const float *x, size_t cols, size_t near,
                        const struct nibbles f, const size_t S)
{
    const size_t stride = cols / f.values * f.bytes, per = f.apart / 16;
    const vec code = block_numbers(f.code);
    float scale[NIBBLE_ROWS][BLOCK_GROUPS_MAX], least[NIBBLE_ROWS][BLOCK_GROUPS_MAX];
    vec low[NIBBLE_ROWS], high[NIBBLE_ROWS];
    UNROLL for (size_t s = 0; s < S; s++) low[s] = high[s] = vec_zero();
    for (size_t c = 0; c < cols; c += f.values, w += f.bytes) {
        UNROLL for (size_t s = 0; s < S; s++)
        {
            UNROLL for (size_t b = 0; b < f.bytes; b += 64)
                _mm_prefetch((const char *)((uintptr_t)w + s * stride + near + b), _MM_HINT_T0);
            f.scales(w + s * stride, scale[s], least[s]);
        }
        UNROLL for (size_t k = 0; k < f.values / 32; k++)
        {
            const size_t first = k / per * 2 * f.apart + k % per * 16, second = first + f.apart;
            const vec xl = vec_load(x + c + first), xh = vec_load(x + c + second);
            UNROLL for (size_t s = 0; s < S; s++)
            {
                const __m512i byte =
                    _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)(w + s * stride + f.at + 16 * k)));
                const vec lows = vec_fmsub(code, vec_set1(scale[s][first / f.group]),
                                           vec_set1(least[s][first / f.group])),
                          highs = vec_fmsub(code, vec_set1(scale[s][second / f.group]),
                                            vec_set1(least[s][second / f.group]));
                low[s] = vec_fmadd(_mm512_permutexvar_ps(byte, lows), xl, low[s]);
                high[s] = vec_fmadd(_mm512_permutexvar_ps(_mm512_srli_epi32(byte, 4), highs), xh, high[s]);
            }
        }
    }
    UNROLL for (size_t s = 0; s < S; s++) y[s] = vec_reduce_add(vec_add(low[s], high[s]));
}

INLINE void nibble_gemv(float *y, const uint8_t *w, const float *x, size_t rows, size_t cols,
                        const struct gemv_reads *reads, const struct nibbles f)
{
    const size_t near = reads ? reads->near : GEMV_NEAR, stride = cols / f.values * f.bytes;
    size_t r = 0;
    for (; r + NIBBLE_ROWS <= rows; r += NIBBLE_ROWS)
        nibble_rows(y + r, w + r * stride, x, cols, near, f, NIBBLE_ROWS);
    for (; r < rows; r++) nibble_rows(y + r, w + r * stride, x, cols, near, f, 1);
}

#define NIBBLE_GEMV(format_, VALUES, BYTES, AT, APART, ...)                                                  \
    static void format_##_gemv(float *y, const void *w, const float *x, size_t rows, size_t cols,            \
                               const struct gemv_reads *reads)                                               \
    {                                                                                                        \
        nibble_gemv(y, w, x, rows, cols, reads,                                                              \
                    (struct nibbles){VALUES, BYTES, 32, AT, APART, {__VA_ARGS__}, format_##_scales});        \
    }
#define FROM_0 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
#define NIBBLES                                                                                              \
    NIBBLE_GEMV(q4_0, 32, 18, 2, 16, -8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7)                 \
    NIBBLE_GEMV(q4_1, 32, 20, 4, 16, FROM_0)                                                                 \
    NIBBLE_GEMV(q4_k, 256, 144, 16, 32, FROM_0)                                                              \
    NIBBLE_GEMV(iq4_nl, 32, 18, 2, 16, IQ4_CODES)                                                            \
    NIBBLE_GEMV(iq4_xs, 256, 136, 8, 16, IQ4_CODES)                                                          \
    NIBBLE_GEMV(mxfp4, 32, 17, 1, 16, MXFP4_CODES)

#define NAME     "avx512"
#define FEATURES (CPU_AVX2 | CPU_AVX512)
#define KERNELS  blocks_avx512
#include "common/cpu/kernels/blocks_simd.h"
