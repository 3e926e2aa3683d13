/* Matrices that files have as numbers of 8 or 4 bits with scales in tensors of their own: FP8 (E4M3) and
 * NVFP4, of Hugging Face checkpoints (quant_method "fp8", "modelopt", "compressed-tensors") and of GGUF
 * files. Rows become those of FORMAT_FP8 and FORMAT_NVFP4 when they are read.
 *
 *   FP8           X.weight [rows][cols] F8_E4M3, and X.weight_scale_inv of blocks of rows and columns, or
 *                 X.weight_scale: one number, or one a row. F32 or BF16; value = number * scale
 *   NVFP4         X.weight_packed or X.weight [rows][cols / 2] U8, value 2i in the lower half of byte i;
 *                 X.weight_scale [rows][cols / 16] F8_E4M3; one F32 that multiplies (X.weight_scale_2) or
 *                 divides (X.weight_global_scale)
 *   NVFP4, GGUF   blocks of 64: four scales of E4M3, then four times 8 bytes whose lower halves are the first
 *                 8 of 16 values; X.scale: one F32, or one an expert; none: 1
 *
 * Called by take.c, which enters the tensors of a file, by checkpoint.c when all are there, and by shards.c,
 * which reads rows. Scales of activations, which files have beside, are not used. */
#pragma once

#include "common/model/safetensors.h"
#include "common/model/shards.h"

/* The kind of tensor that a name says; `matrix` gets the name of the matrix that it is about. */
enum scaled_name { SCALED_MATRIX, SCALED_SCALES, SCALED_WHOLE, SCALED_DIVISOR, SCALED_UNUSED };
enum scaled_name scaled_name_of(const struct model_config *config, const char *name,
                                char matrix[MODEL_NAME_MAX]);
/* The format that a matrix of a file becomes; FORMAT_COUNT: it is none of these. `entry` gets the shape of
 * its values. */
enum tensor_format scaled_format(const struct model_config *config, struct safetensors_entry *entry);
/* Keeps a tensor of scales until all are there: `matrix` is whose they are. */
HELM_MUST_CHECK int scaled_keep(struct model *model, const struct model_piece *at, enum scaled_name kind,
                                const char *matrix, const struct safetensors_entry *entry,
                                struct helm_err *err);
/* When all tensors are there: each matrix finds its scales, and each scale its matrix. */
HELM_MUST_CHECK int scaled_finish(struct model *model, struct helm_err *err);
/* quantization_config of config.json into the configuration; *known: it is about these. */
HELM_MUST_CHECK int scaled_config(const json_t *quantization, const char *method, struct model_config *config,
                                  bool *known, struct helm_err *err);

/* Bytes of a STORED_SCALED tensor, in the format that it has here. */
HELM_MUST_CHECK int scaled_read(const struct model_shards *shards, const struct model_tensor *tensor,
                                uint64_t from, uint64_t bytes, void *to, struct helm_err *err);
