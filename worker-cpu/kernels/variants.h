/* What each kernel file exports to the tables of worker-cpu/kernels.c. Nothing else includes this but the
 * kernels. */
#ifndef HELM_WORKER_CPU_KERNELS_VARIANTS_H
#define HELM_WORKER_CPU_KERNELS_VARIANTS_H

#include "worker-cpu/kernels.h"

/* Indexed by dtype of the weights. */
extern const struct linear_variant linear_ref[DTYPE_COUNT];
extern const struct linear_variant linear_openblas[DTYPE_COUNT];
extern const struct linear_variant linear_avx2[DTYPE_COUNT];
extern const struct linear_variant linear_avx512[DTYPE_COUNT];
/* bf16 weights only. */
extern const struct linear_variant linear_avx512bf16;
extern const struct linear_variant linear_amx;

extern const struct vector_variant vector_ref;
extern const struct vector_variant vector_avx2;
extern const struct vector_variant vector_avx512;

/* Shared between files: the OpenBLAS variant converts weights and decodes with the AVX2 kernels, the two bf16
 * GEMMs decode with the AVX-512 kernel (a decode step rounds nothing). */
void vector_avx2_load(float *y, const void *x, enum dtype dtype, size_t n);
gemv_fn linear_avx2_gemv_bf16, linear_avx2_gemv_f16, linear_avx2_gemv_f32;
gemv_fn linear_avx512_gemv_bf16;
/* Activations as [panel of 16 tokens][ceil(cols / 32) * 16 pairs][16 tokens][2] bf16, zero-padded: the
 * operand of vdpbf16ps with tokens as lanes, and row for row the B tile of tdpbf16ps. */
void linear_avx512bf16_pack_panels(void *packed, const float *x, size_t ldx, size_t tokens, size_t cols,
                                   size_t first, size_t last);

#endif
