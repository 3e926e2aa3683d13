/* Exports of the kernel files to the tables of linear.c and vector.c. Nothing else includes this but the
 * kernels and their tests. */
#pragma once

#include "common/cpu/kernels/int8.h"
#include "common/cpu/kernels/linear.h"
#include "common/cpu/kernels/vector.h"
#include "common/formats/blocks.h"

/* Kernels of single numbers, indexed by format. */
#define LINEAR_PLAIN DTYPE_COUNT
extern const struct linear_kernel linear_ref_gemv[LINEAR_PLAIN], linear_ref_gemm[LINEAR_PLAIN];
extern const struct linear_kernel linear_avx2_gemv[LINEAR_PLAIN], linear_avx2_gemm[LINEAR_PLAIN];
extern const struct linear_kernel linear_avx512_gemv[LINEAR_PLAIN], linear_avx512_gemm[LINEAR_PLAIN];
extern const struct linear_kernel linear_openblas_gemm[LINEAR_PLAIN];
/* bf16 weights only. */
extern const struct linear_kernel linear_avx512bf16_gemm, linear_amx_gemm, linear_amx_gemv;
extern const struct linear_kernel bf16_packed_ref_gemv, bf16_packed_ref_decode;
extern const struct linear_kernel bf16_packed_avx512vbmi2_gemv, bf16_packed_avx512vbmi2_decode;
extern const struct linear_kernel q8_0_ref_gemv, q8_0_ref_decode;
extern const struct linear_kernel q8_0_avx2_gemv, q8_0_avx2_decode, q8_0_avx512_gemv, q8_0_avx512_decode;
extern const struct linear_kernel fp8_ref_gemv, fp8_ref_decode;
extern const struct linear_kernel fp8_avx2_gemv, fp8_avx2_decode, fp8_avx512_gemv, fp8_avx512_decode;
/* Kernels of GGUF's blocks, by their numbers in blocks.h: for one token, decoding. */
extern const struct linear_kernel blocks_ref[BLOCK_FORMAT_COUNT][2], blocks_avx2[2][BLOCK_FORMAT_COUNT],
    blocks_avx512[2][BLOCK_FORMAT_COUNT];
/* These are for grids alone: one token's products, rows decoded to bf16. */
extern const struct linear_kernel grids_avx512vbmi2[BLOCK_FORMAT_COUNT],
    grids_avx512bf16vbmi2[BLOCK_FORMAT_COUNT];
/* With activations of 8 bits, by their numbers in int8.h: of one token, of several. */
extern const struct linear_kernel int8_ref[INT8_FORMAT_COUNT][2];
extern const struct linear_kernel int8_avx2_gemv[INT8_FORMAT_COUNT], int8_avx512vnni_gemv[INT8_FORMAT_COUNT];
extern const struct linear_kernel int8_avx512vnnivbmi2_gathers[INT8_FORMAT_COUNT], /* of large grids alone */
    int8_avx512vnnivbmi2_gemv[INT8_FORMAT_COUNT],
    int8_avx512vnnivbmi2_gemm[INT8_FORMAT_COUNT]; /* of grids alone */
extern const struct linear_kernel int8_avx2_gemm[INT8_FORMAT_COUNT], int8_avx512vnni_gemm[INT8_FORMAT_COUNT];
/* Decoding to bf16. */
extern const struct linear_kernel blocks_avx512bf16[BLOCK_FORMAT_COUNT], q8_0_avx512bf16_decode;
/* Decoding some columns of some rows, row_bytes apart, to tiles of 16 rows x 32 columns, [row / 16][column /
 * 32][16][32]: by the formats' numbers in int8.h. The blocks decoded next, which lie `ahead` bytes from
 * there, are fetched. */
typedef void blocks_tiles_fn(void *tiles, const void *w, size_t row_bytes, size_t rows, size_t cols,
                             ptrdiff_t ahead);
extern blocks_tiles_fn *const blocks_tiles[INT8_FORMAT_COUNT];
#define BLOCKS_TILES(format, FORMAT_NAME, values, bytes, group) blocks_tiles_fn format##_tiles;
INT8_FORMATS(BLOCKS_TILES)
/* Several tokens' products with AMX. */
extern const struct linear_kernel blocks_amx[INT8_FORMAT_COUNT];
/* One token's and a few's with AMX: of blocks whose groups are of 32, and whose numbers come out of bytes
 * fast enough. A row: name, name in files, tokens up to which it is faster than blocks_amx, and features with
 * which one token by other kernels is faster (16 threads; then it is chosen by name alone). */
#define BLOCKS_AMX_FORMATS(X)                                                                                \
    X(q8_0, Q8_0, 16, CPU_AVX512)                                                                            \
    X(q4_0, Q4_0, 16, 0)                                                                                     \
    X(q4_1, Q4_1, 16, 0)                                                                                     \
    X(iq4_nl, IQ4_NL, 16, 0)                                                                                 \
    X(mxfp4, MXFP4, 16, 0)                                                                                   \
    X(iq4_xs, IQ4_XS, 16, 0)                                                                                 \
    X(q4_k, Q4_K, 10, CPU_AVX512)                                                                            \
    X(q5_k, Q5_K, 16, 0)
#define BLOCKS_AMX_NUMBER(format, FORMAT_NAME, apart, beaten) BLOCKS_AMX_##FORMAT_NAME,
enum { BLOCKS_AMX_FORMATS(BLOCKS_AMX_NUMBER) BLOCKS_AMX_COUNT };
extern const struct linear_kernel blocks_amxint8_gemv[BLOCKS_AMX_COUNT];

extern const struct vector_variant vector_ref;
extern const struct vector_variant vector_avx2; /* the OpenBLAS kernel converts weights with it */
extern const struct vector_variant vector_avx512;

/* Activations as they are: fp32, token after token. */
size_t linear_ref_tiled_bytes(size_t tokens, size_t cols);
gemm_tile_fn linear_ref_tile;
/* Activations as [panel of 16 tokens][ceil(cols / 32) * 16 pairs][16 tokens][2] bf16, zero-padded: the
 * operand of vdpbf16ps with tokens as lanes, and row for row the B tile of tdpbf16ps. The latter's tiles lie
 * in blocks of columns (amx_panels.h). */
gemm_tile_fn linear_avx512bf16_tile_panels, linear_avx512bf16_tile_blocks;
