/* Decoders: how a format's bytes become numbers, for every schedule of linear layers.
 *
 * Included by the schedules (gemv_*.cu, gemm_*.cu, chain.cu, expand.cu, elementwise.cu), which are templates over
 * a decoder: schedules move bytes and add up, decoders know formats. To add a format: a decoder here, a line in the
 * files of the schedules that it shall have, its cells in linear.cu. A decoder is a struct of what these ask for:
 *
 *   value                what tensor cores multiply, and gpuk_expand writes: the registry's product dtype
 *   bytes(c)             of a row, in front of column c
 *   number(row, c)       one number                                           any schedule's slowest way, embedding
 *   piece                PIECE_VALUES values, one lane's, from device memory           gemv_plain, gemm_tensor
 *     piece_at(row, c)     loads it; c is a multiple of PIECE_VALUES
 *     piece_column(c)      the column of its first 4 values; 4 more are PIECE_APART columns on
 *     unpack(piece, f)     as fp32
 *     halves(piece)        as 8 16-bit values; SCALED: each is to be multiplied by its scale, and (LEAST) less its
 *                          least, of .scales, which all pieces of one row's 32 columns share: [0] of the first 16
 *                          columns, [1] of the others; the same where GROUPS is 1
 *     takes_pieces(args)   whether addresses allow it
 *   unit                 UNIT_VALUES neighbours, one lane's of a tile in shared memory          gemv_bulk, chains
 *     LINE_BYTES           bytes of 32 units, one of each lane
 *     TILE, TILE_LARGE     bytes of a tile's row: whole lines, and a multiple of 16
 *     LOOSE                rows need not begin on 16 bytes
 *     unit_offset(lane)    bytes of a line in front of what the lane's unit is in
 *     unit_at(line, lane), unit_add(a, b, x, sum_a, sum_b); unless SCALED: unit_none()
 *
 * Formats of groups (tensor_format.h: group_rows) have instead what gemv_groups.cu and expand.cu ask for. */
#ifndef HELM_WORKER_GPU_KERNELS_DECODE_CUH
#define HELM_WORKER_GPU_KERNELS_DECODE_CUH

#include "worker-gpu/kernels/decode_blocks.cuh"
#include "worker-gpu/kernels/decode_plain.cuh"

typedef decode_plain<__nv_bfloat16> decode_bf16;
typedef decode_plain<__half> decode_f16;
typedef decode_plain<float> decode_f32;
#define DECODE_BLOCK(name) typedef decode_block<block_##name> decode_##name;
DECODE_BLOCKS(DECODE_BLOCK)
/* Any of them, in chains: which one is known there. */
struct decode_blocks;

#endif
