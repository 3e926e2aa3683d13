/* Products of blocks with activations of 8 bits, in plain C: the definition, which the fast kernels are
 * compared with. Called through the table of linear.c, by name only.
 *
 * x is rounded block by block of 32: scale = the largest magnitude / 127, numbers = x * (127 / the largest
 * magnitude), to nearest, ties to even. Where that magnitude is below INT8_LEAST numbers and scale are 0;
 * where an x of the block is no finite number they are 0 and NaN, so that every sum is NaN. A group of
 * weights adds
 *   w.scale * x.scale * (the integer sum of w.number * x.number) - w.least * x.scale * (the integer sum of
 *     x.number).
 * Groups are added in double here. */
#include <math.h>

#include "common/cpu/kernels/int8.h"
#include "common/cpu/kernels/variants.h"
#include "common/formats/blocks.h"
#include "common/formats/q8_0.h"

struct rounded {
    float scale;
    int8_t number[INT8_BLOCK];
};

static void round_block(struct rounded *to, const float *x)
{
    float most = 0;
    bool finite = true;
    for (size_t i = 0; i < INT8_BLOCK; i++) {
        finite &= isfinite(x[i]) != 0;
        if (fabsf(x[i]) > most) most = fabsf(x[i]);
    }
    memset(to, 0, sizeof *to);
    if (!finite) to->scale = NAN;
    if (!finite || most < INT8_LEAST) return;
    to->scale = most / 127;
    for (size_t i = 0; i < INT8_BLOCK; i++) to->number[i] = (int8_t)rintf(x[i] * (127 / most));
}

static void round_row(struct rounded *to, const float *x, size_t cols)
{
    for (size_t c = 0; c < cols; c += INT8_BLOCK) round_block(to++, x + c);
}

/* One block of weights, for add_block. */
struct weights {
    float scale[BLOCK_GROUPS_MAX], least[BLOCK_GROUPS_MAX];
    int8_t number[BLOCK_VALUES_MAX];
};

static double add_block(double sum, const struct weights *w, const struct rounded *x, size_t values,
                        size_t group)
{
    for (size_t g = 0; g < values / group; g++) {
        const struct rounded *of = &x[g * group / INT8_BLOCK];
        const int8_t *number = of->number + g * group % INT8_BLOCK;
        int32_t product = 0, all = 0;
        for (size_t i = 0; i < group; i++) {
            product += w->number[g * group + i] * number[i];
            all += number[i];
        }
        sum += (double)w->scale[g] * (double)of->scale * (double)product -
               (double)w->least[g] * (double)of->scale * (double)all;
    }
    return sum;
}

static void q8_0_numbers(const uint8_t *block, int8_t *number)
{
    memcpy(number, block + 2, Q8_0_VALUES);
}
static size_t tiled_bytes(size_t tokens, size_t cols)
{
    return tokens * (cols / INT8_BLOCK) * sizeof(struct rounded);
}

static size_t ordered_bytes(size_t cols)
{
    return tiled_bytes(1, cols);
}

static void order(float *to, const float *x, size_t cols)
{
    round_row((struct rounded *)(void *)to, x, cols);
}

static void tile(void *tiled, const float *x, size_t ldx, size_t tokens, size_t cols, size_t first,
                 size_t last, size_t col_first, size_t col_last)
{
    (void)tokens;
    for (size_t t = first; t < last; t++)
        round_row((struct rounded *)tiled + (t * cols + col_first) / INT8_BLOCK, x + (t - first) * ldx,
                  col_last - col_first);
}

static size_t scratch_bytes(size_t cols, size_t tokens)
{
    (void)cols, (void)tokens;
    return 0;
}

#define TOKENS 64 /* that a block is unpacked for at once */

/* Sums of one row with `tokens` inputs, each added in the same order. */
#define FUNCTIONS(format, FORMAT_NAME, VALUES, BYTES, GROUP)                                                 \
    static void format##_sums(double *sum, const uint8_t *block, const struct rounded *x, size_t cols,       \
                              size_t tokens)                                                                 \
    {                                                                                                        \
        struct weights w;                                                                                    \
        for (size_t t = 0; t < tokens; t++) sum[t] = 0;                                                      \
        for (size_t c = 0; c < cols; c += (VALUES), block += (BYTES)) {                                      \
            format##_numbers(block, w.number);                                                               \
            format##_scales(block, w.scale, w.least);                                                        \
            for (size_t t = 0; t < tokens; t++)                                                              \
                sum[t] = add_block(sum[t], &w, x + (t * cols + c) / INT8_BLOCK, VALUES, GROUP);              \
        }                                                                                                    \
    }                                                                                                        \
    static void format##_gemv(float *y, const void *w, const float *x, size_t rows, size_t cols,             \
                              const struct gemv_reads *reads)                                                \
    {                                                                                                        \
        (void)reads;                                                                                         \
        for (size_t r = 0; r < rows; r++) {                                                                  \
            double sum;                                                                                      \
            format##_sums(&sum, (const uint8_t *)w + r * (cols / (VALUES)) * (BYTES),                        \
                          (const struct rounded *)(const void *)x, cols, 1);                                 \
            y[r] = (float)sum;                                                                               \
        }                                                                                                    \
    }                                                                                                        \
    static void format##_gemm(float *y, size_t ldy, const void *w, const void *tiled, size_t rows,           \
                              size_t cols, size_t tokens, bool accumulate, void *scratch)                    \
    {                                                                                                        \
        (void)scratch;                                                                                       \
        double sum[TOKENS];                                                                                  \
        for (size_t t = 0; t < tokens; t += TOKENS)                                                          \
            for (size_t r = 0; r < rows; r++) {                                                              \
                const size_t count = tokens - t < TOKENS ? tokens - t : TOKENS;                              \
                format##_sums(sum, (const uint8_t *)w + r * (cols / (VALUES)) * (BYTES),                     \
                              (const struct rounded *)tiled + t * (cols / INT8_BLOCK), cols, count);         \
                for (size_t i = 0; i < count; i++) {                                                         \
                    float *to = &y[(t + i) * ldy + r];                                                       \
                    *to = accumulate ? *to + (float)sum[i] : (float)sum[i];                                  \
                }                                                                                            \
            }                                                                                                \
    }
INT8_FORMATS(FUNCTIONS)

#define ROW(format_name, FORMAT_NAME, VALUES, BYTES, GROUP)                                                  \
    [INT8_##FORMAT_NAME] = {{.name = "ref",                                                                  \
                             .inputs = LINEAR_INT8,                                                          \
                             .format = FORMAT_##FORMAT_NAME,                                                 \
                             .schedule = LINEAR_ONE_TOKEN,                                                   \
                             .gemv = format_name##_gemv,                                                     \
                             .streams = 1,                                                                   \
                             .order = order,                                                                 \
                             .ordered_bytes = ordered_bytes},                                                \
                            {.name = "ref",                                                                  \
                             .inputs = LINEAR_INT8,                                                          \
                             .format = FORMAT_##FORMAT_NAME,                                                 \
                             .schedule = LINEAR_TOKENS,                                                      \
                             .tile_tokens = 1,                                                               \
                             .tile_cols = INT8_BLOCK,                                                        \
                             .row_granule = 1,                                                               \
                             .tiled_bytes = tiled_bytes,                                                     \
                             .tile = tile,                                                                   \
                             .gemm = format_name##_gemm,                                                     \
                             .scratch_bytes = scratch_bytes}},
const struct linear_kernel int8_ref[INT8_FORMAT_COUNT][2] = {INT8_FORMATS(ROW)};
