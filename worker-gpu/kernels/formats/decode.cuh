/* Decoders: how a format's bytes become numbers, for every schedule of linear layers.
 *
 * Included by the schedules (gemv_*.cu, gemm_*.cu, chain.cu, expand.cu, elementwise.cu), which are templates
 * over a decoder: schedules move bytes and add up, decoders know formats. To add a format: a decoder in a
 * file of its own, included here, and its place in BY_FORMAT, from which every schedule has its kernels. A
 * decoder is a struct of what these ask for:
 *
 *   value                what tensor cores multiply, and gpuk_expand writes: the registry's product dtype
 *   bytes(c)             of a row, in front of column c
 *   number(row, c)       one number: any schedule's slowest way, embedding
 *   piece                PIECE_VALUES values, one lane's, from device memory: gemv_plain, gemm_tensor
 *     piece_at(row, c)     loads it; c is a multiple of PIECE_VALUES
 *     piece_column(c)      the column of its first 4 values; 4 more are PIECE_APART columns on
 *     unpack(piece, f)     as fp32
 *     halves(piece)        as 8 16-bit values; SCALED: each is to be multiplied by its scale, and (LEAST)
 *                          less its least, of .scales, which all pieces of one row's 32 columns share: [0] of
 *                          the first 16 columns, [1] of the others; the same where GROUPS is 1
 *     takes_pieces(args)   whether addresses allow it
 *   TILES                whether it has, for gemv_bulk and chains:
 *   unit                 UNIT_VALUES neighbours, one lane's of a tile in shared memory: gemv_bulk, chains
 *     LINE_BYTES           bytes of 32 units, one of each lane
 *     TILE, TILE_LARGE     bytes of a tile's row: whole lines, and unless LOOSE a multiple of 16
 *     LOOSE                rows need not begin on 16 bytes
 *     unit_offset(lane)    bytes of a line in front of what the lane's unit is in
 *     unless SCALED        unit_at(line, lane), unit_none(), unit_add(a, b, x, sum_a, sum_b)
 *     SCALED               line_add(a, b, bytes, x, sum_a, sum_b): a line of two rows, with x as `x` puts it
 *
 * Formats of groups (tensor_format.h: group_rows) have instead what gemv_groups.cu and expand.cu ask for. */
#pragma once

#include "worker-gpu/kernels/formats/decode_blocks.cuh"
#include "worker-gpu/kernels/formats/decode_fp8.cuh"
#include "worker-gpu/kernels/formats/decode_plain.cuh"

typedef decode_plain<__nv_bfloat16> decode_bf16;
typedef decode_plain<__half> decode_f16;
typedef decode_plain<float> decode_f32;
/* A row for each format of blocks: its name, and its name in enum tensor_format, in the enum's order. */
#define DECODE_BLOCKS(X)                                                                                     \
    X(q8_0, Q8_0)                                                                                            \
    X(q4_0, Q4_0)                                                                                            \
    X(q4_1, Q4_1)                                                                                            \
    X(q5_0, Q5_0)                                                                                            \
    X(q5_1, Q5_1)                                                                                            \
    X(q2_k, Q2_K)                                                                                            \
    X(q3_k, Q3_K)                                                                                            \
    X(q4_k, Q4_K)                                                                                            \
    X(q5_k, Q5_K)                                                                                            \
    X(q6_k, Q6_K)                                                                                            \
    X(iq4_nl, IQ4_NL)                                                                                        \
    X(iq4_xs, IQ4_XS)                                                                                        \
    X(mxfp4, MXFP4)                                                                                          \
    X(nvfp4, NVFP4)                                                                                          \
    X(iq2_xxs, IQ2_XXS)                                                                                      \
    X(iq2_xs, IQ2_XS)                                                                                        \
    X(iq2_s, IQ2_S)                                                                                          \
    X(iq3_xxs, IQ3_XXS)                                                                                      \
    X(iq3_s, IQ3_S)                                                                                          \
    X(iq1_s, IQ1_S)                                                                                          \
    X(iq1_m, IQ1_M)
#define DECODE_BLOCK(name, NAME) typedef decode_block<block_##name> decode_##name;
DECODE_BLOCKS(DECODE_BLOCK)
/* Any of them, in chains, where an operation says which. */
struct decode_blocks;

/* A table by enum tensor_format: OF(decoder) for each, PACKED for bf16-packed, whose groups have schedules of
 * their own. Where OF has nothing for a decoder, and PACKED may be the same: zeros. */
#define BY_FORMAT(OF, ...)                                                                                   \
    {                                                                                                        \
        OF(decode_bf16), OF(decode_f16), OF(decode_f32), __VA_ARGS__, OF(decode_fp8), OF(decode_q8_0),       \
            OF(decode_q4_0), OF(decode_q4_1), OF(decode_q5_0), OF(decode_q5_1), OF(decode_q2_k),             \
            OF(decode_q3_k), OF(decode_q4_k), OF(decode_q5_k), OF(decode_q6_k), OF(decode_iq4_nl),           \
            OF(decode_iq4_xs), OF(decode_mxfp4), OF(decode_nvfp4), OF(decode_iq2_xxs), OF(decode_iq2_xs),    \
            OF(decode_iq2_s), OF(decode_iq3_xxs), OF(decode_iq3_s), OF(decode_iq1_s), OF(decode_iq1_m)       \
    }
