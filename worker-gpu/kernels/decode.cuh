/* Decoders: how a format's bytes become numbers, for every schedule of linear layers.
 *
 * Included by the schedules (gemv_*.cu, gemm_*.cu, chain.cu, expand.cu, elementwise.cu), which are templates over
 * a decoder: schedules move bytes and add up, decoders know formats. To add a format: a decoder in a file of its own, included
 * here, and its place in BY_FORMAT, from which every schedule has its kernels. A decoder is a struct of what these
 * ask for:
 *
 *   value                what tensor cores multiply, and gpuk_expand writes: the registry's product dtype
 *   bytes(c)             of a row, in front of column c
 *   number(row, c)       one number                                           any schedule's slowest way, embedding
 *   piece                PIECE_VALUES neighbours, one lane's, from device memory       gemv_plain, gemm_tensor
 *     piece_at(row, c)     loads it; c is a multiple of PIECE_VALUES
 *     unpack(piece, f)     as fp32
 *     halves(piece)        as 8 16-bit values; SCALED: each is to be multiplied by
 *     scale(piece)           this, which all pieces of one row's 32 columns share
 *     takes_pieces(args)   whether addresses allow it
 *   unit                 UNIT_VALUES neighbours in UNIT_BYTES, one lane's of a tile in shared memory    gemv_bulk
 *     TILE                 bytes of a tile's row: a multiple of 32 units and of 16
 *     unit_at(tile), unit_none(), unit_add(a, b, x, sum_a, sum_b)
 *
 * Formats of groups (tensor_format.h: group_rows) have instead what gemv_groups.cu and expand.cu ask for. */
#ifndef HELM_WORKER_GPU_KERNELS_DECODE_CUH
#define HELM_WORKER_GPU_KERNELS_DECODE_CUH

#include "worker-gpu/kernels/decode_plain.cuh"
#include "worker-gpu/kernels/decode_q8_0.cuh"

typedef decode_plain<__nv_bfloat16> decode_bf16;
typedef decode_plain<__half> decode_f16;
typedef decode_plain<float> decode_f32;

/* A table by enum tensor_format: OF(decoder) for each, PACKED for bf16-packed, whose groups have schedules of their
 * own. Where OF has nothing for a decoder, and PACKED may be the same: zeros. */
#define BY_FORMAT(OF, ...)                                                                                   \
    {                                                                                                        \
        OF(decode_bf16), OF(decode_f16), OF(decode_f32), __VA_ARGS__, OF(decode_q8_0)                        \
    }

#endif
