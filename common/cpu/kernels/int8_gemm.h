/* Several tokens' products of blocks with activations of 8 bits; int8_ref.c defines the arithmetic.
 *
 * Rows are lanes. PANELS panels of LANES rows are unpacked BLOCKS blocks of 32 columns at a time, which stay
 * in L1, and multiplied with TOKENS tokens at once, all tokens in turn: four neighbouring weights of each row
 * are a vector, with which a token's four numbers, everywhere, are multiplied and added as integers. The
 * numbers are increased by 128 so that they have no sign; what that adds stands with the weights of each
 * group. A group's sum is scaled and added to the tokens' sums.
 *
 * Included after lanes256.h or lanes512.h and blocks_words256.h or blocks_words512.h by files that define, of
 * a format that is a constant wherever they are inlined:
 *   ivec                                       a vector of whole numbers
 *   ivec_load, ivec_store, ivec_to_floats, ivec_of_floats (to nearest)
 *   PANELS, TOKENS, NAME, FEATURES, BEATEN, KERNELS, FORMATS (of which)
 *   unpack_numbers(to, row, format)            a block of LANES rows: dwords of four columns, [column /
 *                                              4][row]; blocks of 32 columns of them are INT8_PANEL bytes
 *                                              apart
 *   group_extra(w, steps)                      -128 times the sums of each row's numbers
 *   group_sums(sum, w, panel, x, stride, steps, T, format)
 *                                              adds the products of `steps` dwords of each of T tokens to
 *                                                sum[T][PANELS] */
#pragma once

#include "common/cpu/kernels/int8_gemm_sizes.h"
#include "common/cpu/kernels/variants.h"

/* ---- activations ---- */

/* A block of a token: numbers increased by 128, their scale, the scale times sums of the first 16, the last,
 * all. */
struct int8_block {
    uint8_t number[INT8_BLOCK];
    float scale, least[3];
};

static size_t tiled_bytes(size_t tokens, size_t cols)
{
    return tokens * (cols / INT8_BLOCK) * sizeof(struct int8_block);
}

static void tile(void *tiled, const float *x, size_t ldx, size_t tokens, size_t cols, size_t first,
                 size_t last, size_t col_first, size_t col_last)
{
    (void)tokens;
    for (size_t t = first; t < last; t++)
        for (size_t c = col_first; c < col_last; c += INT8_BLOCK) {
            struct int8_block *const to = (struct int8_block *)tiled + (t * cols + c) / INT8_BLOCK;
            const float *from = x + (t - first) * ldx + (c - col_first);
            uint32_t most = 0;
            int sum[2] = {0, 0};
            for (size_t i = 0; i < INT8_BLOCK; i++) {
                uint32_t bits;
                memcpy(&bits, from + i, sizeof bits);
                bits &= 0x7fffffff;
                most = bits > most ? bits : most;
            }
            const bool finite = most < 0x7f800000;
            const float largest = finite ? convert_bits_f32(most) : 0;
            if (largest < INT8_LEAST) {
                memset(to->number, 128, sizeof to->number);
                to->scale = to->least[0] = to->least[1] = to->least[2] =
                    finite ? 0 : convert_bits_f32(0x7fc00000);
                continue;
            }
            const vec by = vec_set1(127 / largest);
            int32_t number[INT8_BLOCK];
            UNROLL for (size_t i = 0; i < INT8_BLOCK; i += LANES)
                ivec_store(number + i, ivec_of_floats(vec_mul(vec_load(from + i), by)));
            for (size_t i = 0; i < INT8_BLOCK; i++) to->number[i] = (uint8_t)(number[i] + 128);
            for (size_t i = 0; i < 16; i++) {
                sum[0] += number[i];
                sum[1] += number[i + 16];
            }
            to->scale = largest / 127;
            to->least[0] = to->scale * (float)sum[0];
            to->least[1] = to->scale * (float)sum[1];
            to->least[2] = to->scale * (float)(sum[0] + sum[1]);
        }
}

/* ---- weights ---- */

#define BLOCKS 16 /* of 32 columns, unpacked at a time */
#define ROWS   (PANELS * LANES)

INLINE void scales_of_block(const uint8_t *w, float *scale, float *least, const enum tensor_format format)
{
#define CASE(format_, FORMAT_NAME, VALUES, BYTES, GROUP)                                                     \
    case FORMAT_##FORMAT_NAME:                                                                               \
        format_##_scales(w, scale, least);                                                                   \
        return;
    BLOCK_SWITCH(format, CASE)
#undef CASE
}

/* A block of weights of LANES rows. */
INLINE void unpack_block(char *to, const uint8_t *const row[LANES], const enum tensor_format format)
{
    const size_t groups = block_values(format) / block_group(format),
                 in_block = INT8_BLOCK / block_group(format);
    float scale[LANES][BLOCK_GROUPS_MAX], least[LANES][BLOCK_GROUPS_MAX];
    unpack_numbers(to, row, format);
    for (size_t r = 0; r < LANES; r++) scales_of_block(row[r], scale[r], least[r], format);
    for (size_t g = 0; g < groups; g++) {
        char *block = to + g / in_block * INT8_PANEL, *at = block + g % in_block * LANES * 4;
        const size_t group_bytes = block_group(format) * LANES;
        float column[LANES];
        ivec_store(at + INT8_EXTRA, group_extra(block + g % in_block * group_bytes, block_group(format) / 4));
        for (size_t r = 0; r < LANES; r++) column[r] = scale[r][g];
        vec_store(at + INT8_SCALES, vec_load(column));
        if (!has_least(format)) continue;
        for (size_t r = 0; r < LANES; r++) column[r] = least[r][g];
        vec_store(at + INT8_SMALL, vec_load(column));
    }
}

/* ---- products ---- */

/* sums[T][ROWS] of `blocks` blocks; w: panels `panel` bytes apart. */
INLINE void multiply(float *sums, const char *w, size_t panel, const char *x, size_t stride, size_t blocks,
                     const bool fresh, const size_t T, const enum tensor_format format)
{
    const size_t in_block = INT8_BLOCK / block_group(format), steps = block_group(format) / 4;
    vec total[TOKENS * PANELS];
    UNROLL for (size_t i = 0; i < T * PANELS; i++) total[i] = fresh ? vec_zero() : vec_load(sums + i * LANES);
    for (size_t b = 0; b < blocks; b++, w += INT8_PANEL, x += sizeof(struct int8_block))
        UNROLL for (size_t g = 0; g < in_block; g++)
        {
            const char *at = w + g * LANES * 4;
            ivec sum[TOKENS * PANELS];
            UNROLL for (size_t i = 0; i < T * PANELS; i++) sum[i] =
                ivec_load(at + INT8_EXTRA + i % PANELS * panel);
            group_sums(sum, w + g * steps * LANES * 4, panel, x + g * steps * 4, stride, steps, T, format);
            UNROLL for (size_t t = 0; t < T; t++)
            {
                const struct int8_block *of = (const void *)(x + t * stride);
                const vec by = vec_set1(of->scale), all = vec_set1(of->least[in_block == 2 ? g : 2]);
                UNROLL for (size_t p = 0; p < PANELS; p++)
                {
                    vec *to = &total[t * PANELS + p];
                    const char *mine = at + p * panel;
                    *to =
                        vec_fmadd(vec_mul(ivec_to_floats(sum[t * PANELS + p]), vec_load(mine + INT8_SCALES)),
                                  by, *to);
                    if (has_least(format)) *to = vec_fnmadd(vec_load(mine + INT8_SMALL), all, *to);
                }
            }
        }
    UNROLL for (size_t i = 0; i < T * PANELS; i++) vec_store(sums + i * LANES, total[i]);
}

/* Every token with what was unpacked. */
INLINE void multiply_tokens(float *sums, const char *w, const char *x, size_t stride, size_t blocks,
                            size_t tokens, const bool fresh, const enum tensor_format format)
{
    const size_t panel = BLOCKS * INT8_PANEL;
    for (; tokens >= TOKENS; tokens -= TOKENS, x += TOKENS * stride, sums += TOKENS * ROWS)
        multiply(sums, w, panel, x, stride, blocks, fresh, TOKENS, format);
    for (; tokens; tokens--, x += stride, sums += ROWS)
        multiply(sums, w, panel, x, stride, blocks, fresh, 1, format);
}

#define INT8_PANELS (PANELS * BLOCKS * INT8_PANEL)
static size_t scratch_bytes(size_t cols, size_t tokens)
{
    (void)cols;
    return INT8_PANELS + tokens * ROWS * sizeof(float) + 64;
}

/* ROWS rows, or as many as there are: the last row stands for those that are not. */
INLINE void gemm_rows(float *y, size_t ldy, const uint8_t *w, const char *tiled, size_t rows, size_t cols,
                      size_t tokens, bool accumulate, char *scratch, const enum tensor_format format)
{
    const size_t row_bytes = decode_bytes(cols, format), values = block_values(format),
                 bytes = decode_bytes(values, format), stride = cols / INT8_BLOCK * sizeof(struct int8_block);
    float *sums = (float *)(void *)(scratch + INT8_PANELS);
    for (size_t c = 0; c < cols; c += BLOCKS * INT8_BLOCK) {
        const size_t left = cols - c, here = left < BLOCKS * INT8_BLOCK ? left : BLOCKS * INT8_BLOCK;
        for (size_t p = 0; p < PANELS; p++)
            for (size_t i = 0; i < here; i += values) {
                const size_t last = rows - 1, first = p * LANES < last ? p * LANES : last;
                const uint8_t *from = w + first * row_bytes + (c + i) / values * bytes;
                const uint8_t *row[LANES];
                for (size_t r = 0; r < LANES; r++)
                    row[r] = from + (first + r < last ? r : last - first) * row_bytes;
                unpack_block(scratch + (p * BLOCKS + i / INT8_BLOCK) * INT8_PANEL, row, format);
            }
        if (c)
            multiply_tokens(sums, scratch, tiled + c / INT8_BLOCK * sizeof(struct int8_block), stride,
                            here / INT8_BLOCK, tokens, false, format);
        else
            multiply_tokens(sums, scratch, tiled, stride, here / INT8_BLOCK, tokens, true, format);
    }
    for (size_t t = 0; t < tokens; t++)
        for (size_t r = 0; r < rows && r < ROWS; r += LANES) {
            float *out = y + t * ldy + r;
            const vec sum = vec_load(sums + t * ROWS + r);
            vec_store_part(out, rows - r, accumulate ? vec_add(sum, vec_load_part(out, rows - r)) : sum);
        }
}

INLINE void gemm_as(float *y, size_t ldy, const uint8_t *w, const char *tiled, size_t rows, size_t cols,
                    size_t tokens, bool accumulate, char *scratch, const enum tensor_format format)
{
    for (size_t r = 0; r < rows; r += ROWS)
        gemm_rows(y + r, ldy, w + r * decode_bytes(cols, format), tiled, rows - r < ROWS ? rows - r : ROWS,
                  cols, tokens, accumulate, scratch, format);
}

#define FUNCTIONS(format_, FORMAT_NAME, VALUES, BYTES, GROUP)                                                \
    static void format_##_gemm(float *y, size_t ldy, const void *w, const void *tiled, size_t rows,          \
                               size_t cols, size_t tokens, bool accumulate, void *scratch)                   \
    {                                                                                                        \
        gemm_as(y, ldy, w, tiled, rows, cols, tokens, accumulate, scratch, FORMAT_##FORMAT_NAME);            \
    }
FORMATS(FUNCTIONS)

#define ROW(format_, FORMAT_NAME, VALUES, BYTES, GROUP)                                                      \
    [INT8_##FORMAT_NAME] = {.name = NAME,                                                                    \
                            .features = FEATURES,                                                            \
                            .beaten = BEATEN,                                                                \
                            .inputs = LINEAR_INT8,                                                           \
                            .format = FORMAT_##FORMAT_NAME,                                                  \
                            .schedule = LINEAR_TOKENS,                                                       \
                            .tile_tokens = 1,                                                                \
                            .tile_cols = INT8_BLOCK,                                                         \
                            .row_granule = ROWS,                                                             \
                            .tiled_bytes = tiled_bytes,                                                      \
                            .tile = tile,                                                                    \
                            .gemm = format_##_gemm,                                                          \
                            .scratch_bytes = scratch_bytes},
const struct linear_kernel KERNELS[INT8_FORMAT_COUNT] = {FORMATS(ROW)};
