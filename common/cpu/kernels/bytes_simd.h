/* Formats of a byte a number and a scale in front of them, Q8_0 and FP8: one token's products and rows
 * decoded to fp32. Included once by q8_0_avx2.c and the like, after their vectors. These define
 *   NAME, FEATURES, GEMV, DECODE      the entries that linear.c knows
 *   FORMAT, VALUES, BYTES             of a block, of 32 values or a multiple
 *   NUMBERS                           bytes of a block in front of its numbers
 *   vec run_numbers(at)               LANES numbers as floats, TIMES too small
 *   float run_scale(block) */
#include "common/cpu/kernels/blocks_sizes.h"

#define RUN 32 /* values that are scaled together */

#define GEMV_STREAMS 3
#define FEW_ROWS     1
#define FEW_TOKENS   (LANES == 16 ? 8 : 4)
#include "common/cpu/kernels/gemv_streams.h"

/* Run `r` of a chunk: its block, and its numbers. */
INLINE const char *run_block(const char *chunk, const size_t r)
{
    return chunk + r * RUN / VALUES * BYTES;
}
INLINE const char *run_at(const char *chunk, const size_t r)
{
    return run_block(chunk, r) + NUMBERS + r * RUN % VALUES;
}

/* A run of a row times x of T tokens: its numbers' sum is scaled. */
INLINE void run_add(vec *total, const char *numbers, const float by, const char *x, size_t ldx,
                    const size_t S, const size_t T)
{
    const vec scale = vec_set1(by * TIMES);
    vec number[RUN / LANES];
    UNROLL for (size_t i = 0; i < RUN / LANES; i++) number[i] = run_numbers(numbers + i * LANES);
    UNROLL for (size_t t = 0; t < T; t++)
    {
        const float *xt = (const float *)(const void *)(x + t * ldx);
        vec sum = vec_mul(number[0], vec_load(xt));
        UNROLL for (size_t i = 1; i < RUN / LANES; i++) sum =
            vec_fmadd(number[i], vec_load(xt + i * LANES), sum);
        total[t * S] = vec_fmadd(sum, scale, total[t * S]);
    }
}

/* Runs of a chunk in turn to two sums, of a row's rest all to one. */
#define CHUNK(format) (4 * RUN)
INLINE size_t chunk_x_bytes(const enum tensor_format format)
{
    (void)format;
    return CHUNK(format) * sizeof(float);
}
INLINE void add_chunk(vec *even, vec *odd, const uint8_t *w, size_t stride, const char *x, size_t ldx,
                      const size_t cols, const size_t S, const size_t T, const enum tensor_format format)
{
    const bool whole = cols == CHUNK(format);
    (void)format;
    UNROLL for (size_t s = 0; s < S; s++) UNROLL for (size_t b = 0; b < CHUNK(format) / RUN; b++)
    {
        const char *row = (const char *)w + s * stride;
        if (b * RUN >= cols) break;
        run_add((whole && b % 2 ? odd : even) + s, run_at(row, b), run_scale(run_block(row, b)),
                x + b * RUN * sizeof(float), ldx, S, T);
    }
}
INLINE bool has_two_sums(const enum tensor_format format)
{
    (void)format;
    return true;
}
INLINE vec row_sum(vec even, vec odd, const enum tensor_format format)
{
    (void)format;
    return vec_add(even, odd);
}

#include "common/cpu/kernels/gemv_chunks.h"

#define FUNCTIONS(...) GEMV_FUNCTIONS(own, __VA_ARGS__)
FUNCTIONS(FORMAT, VALUES, BYTES, VALUES)

static void own_decode(void *values, const void *w, size_t rows, size_t cols)
{
    const char *block = w;
    float *to = values;
    for (size_t at = 0; at < rows * cols; at += VALUES, block += BYTES, to += VALUES) {
        const vec scale = vec_set1(run_scale(block)), times = vec_set1(TIMES);
        UNROLL for (size_t i = 0; i < BYTES; i += 64)
            _mm_prefetch((const char *)((uintptr_t)block + GEMV_NEAR + i), _MM_HINT_T0);
        UNROLL for (size_t i = 0; i < VALUES; i += LANES)
            vec_store(to + i, vec_mul(vec_mul(run_numbers(block + NUMBERS + i), times), scale));
    }
}

#define FORMAT_ID_(name) FORMAT_##name
#define FORMAT_ID(name)  FORMAT_ID_(name)
const struct linear_kernel GEMV = {.name = NAME,
                                   .features = FEATURES,
                                   .format = FORMAT_ID(FORMAT),
                                   .schedule = LINEAR_ONE_TOKEN,
                                   .gemv = own_gemv,
                                   .few = own_few,
                                   .apart = 4,
                                   .streams = GEMV_STREAMS};
const struct linear_kernel DECODE = {.name = NAME,
                                     .features = FEATURES,
                                     .format = FORMAT_ID(FORMAT),
                                     .schedule = LINEAR_DECODE,
                                     .decode = own_decode,
                                     .rows = FORMAT_F32};
