/* GEMM for bf16 weights, and for blocks decoded to them, with AMX tiles (tdpbf16ps): activations rounded to
 * bf16, sums in fp32. The algorithm is in amx_body.h and amx_blocks.h; this file gives it the instructions.
 * Decode (GEMV) rounds nothing and stays with the AVX-512 kernel.
 *
 * The process must have asked the kernel for tile state (cpu_enable_amx), and each thread calls thread_begin
 * before its first gemm. Called through the table of linear.c after the CPU check. */
#include "common/cpu/kernels/amx_tiles.h"
#include "common/cpu/kernels/lanes512.h"
#include "common/cpu/kernels/swiglu_simd.h"
#include "common/cpu/kernels/variants.h"

#define amx_store_transposed lanes_store_transposed
#include "common/cpu/kernels/amx_body.h"

/* Pairs of rows, tokens as lanes, become pairs of numbers. */
INLINE void amx_join_tiles(char *to, const char *gate, const char *up, size_t apart)
{
    static const uint16_t order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                       8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i pairs = _mm512_loadu_si512(order);
    for (size_t half = 0; half < 2; half++, gate += apart, up += apart)
        for (size_t row = 0; row < 16; row += 2, to += 64) {
            const vec even = vec_swiglu(vec_load((const void *)(gate + row * 64)),
                                        vec_load((const void *)(up + row * 64))),
                      odd = vec_swiglu(vec_load((const void *)(gate + row * 64 + 64)),
                                       vec_load((const void *)(up + row * 64 + 64)));
            const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
            _mm512_storeu_si512(to, _mm512_permutexvar_epi16(pairs, both));
        }
}
#include "common/cpu/kernels/amx_joined.h"

static size_t tiled_bytes(size_t tokens, size_t cols)
{
    return (tokens + 15) / 16 * 16 * amx_padded(cols) * 2;
}

static void gemm(float *y, size_t ldy, const void *w, const void *tiled, size_t rows, size_t cols,
                 size_t tokens, bool accumulate, void *scratch)
{
    TILE_FENCE();
    amx_gemm(y, ldy, w, tiled, rows, cols, tokens, accumulate, scratch);
    TILE_FENCE();
}

static void join(const struct gemm_joined *joined)
{
    amx_gemm_joined(joined, &amx_as_they_are);
}

#define GEMM(format_, FORMAT_NAME, VALUES, BYTES, GROUP)                                                     \
    static void format_##_gemm(float *y, size_t ldy, const void *w, const void *tiled, size_t rows,          \
                               size_t cols, size_t tokens, bool accumulate, void *scratch)                   \
    {                                                                                                        \
        const struct amx_blocks of = {VALUES, BYTES, blocks_tiles[INT8_##FORMAT_NAME]};                      \
        amx_gemm_blocks(y, ldy, w, tiled, rows, cols, tokens, accumulate, scratch, &of);                     \
    }                                                                                                        \
    static void format_##_join(const struct gemm_joined *joined)                                             \
    {                                                                                                        \
        const struct amx_blocks of = {VALUES, BYTES, blocks_tiles[INT8_##FORMAT_NAME]};                      \
        amx_gemm_joined(joined, &of);                                                                        \
    }
INT8_FORMATS(GEMM)

/* Grids are decoded by byte permutes. */
#define GRID(format_, FORMAT_NAME, VALUES, BYTES, GROUP)  MORE(format_, FORMAT_NAME, CPU_AVX512_VBMI2)
#define PLAIN(format_, FORMAT_NAME, VALUES, BYTES, GROUP) MORE(format_, FORMAT_NAME, 0)
#define MORE(format_, FORMAT_NAME, FEATURES)                                                                 \
    [INT8_##FORMAT_NAME] = {.name = "amx-bf16",                                                              \
                            .features = CPU_AVX2 | CPU_AVX512 | CPU_AVX512_BF16 | CPU_AMX_BF16 | (FEATURES), \
                            .format = FORMAT_##FORMAT_NAME,                                                  \
                            .schedule = LINEAR_TOKENS,                                                       \
                            .tile_tokens = 16,                                                               \
                            .tile_cols = 32,                                                                 \
                            .row_granule = AMX_GRANULE,                                                      \
                            .call_rows = AMX_ROWS,                                                           \
                            .tiled_bytes = tiled_bytes,                                                      \
                            .tile = linear_avx512bf16_tile_blocks,                                           \
                            .gemm = format_##_gemm,                                                          \
                            .join = format_##_join,                                                          \
                            .join_rows = AMX_JOINED,                                                         \
                            .scratch_bytes = amx_blocks_scratch_bytes,                                       \
                            .thread_begin = tiles_begin,                                                     \
                            .thread_end = tiles_end},
const struct linear_kernel blocks_amx[INT8_FORMAT_COUNT] = {INT8_PLAIN_FORMATS(PLAIN)
                                                                BLOCK_GRID_FORMATS(GRID)};

const struct linear_kernel linear_amx_gemm = {.name = "amx-bf16",
                                              .features =
                                                  CPU_AVX2 | CPU_AVX512 | CPU_AVX512_BF16 | CPU_AMX_BF16,
                                              .format = FORMAT_BF16,
                                              .schedule = LINEAR_TOKENS,
                                              .exact_input = false,
                                              .tile_tokens = 16,
                                              .tile_cols = 32,
                                              .row_granule = AMX_GRANULE,
                                              .call_rows = AMX_ROWS,
                                              .tiled_bytes = tiled_bytes,
                                              .tile = linear_avx512bf16_tile_blocks,
                                              .gemm = gemm,
                                              .join = join,
                                              .join_tokens = 2 * AMX_FEW * 16 + 1,
                                              .join_rows = AMX_JOINED,
                                              .scratch_bytes = amx_scratch_bytes,
                                              .thread_begin = tiles_begin,
                                              .thread_end = tiles_end};
