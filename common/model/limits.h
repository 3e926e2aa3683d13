/* Limits on what a checkpoint may claim. Constants only.
 *
 * Included by model.h, whose readers refuse what is beyond them by name, and by kernels, which count on
 * them. */
#pragma once

/* Each is an error that names the value and the limit. */
#define MODEL_LAYERS_MAX       1024
#define MODEL_HIDDEN_MAX       (1u << 18)
#define MODEL_INTERMEDIATE_MAX (1u << 20)
#define MODEL_VOCAB_MAX        (1u << 24)
#define MODEL_HEADS_MAX        4096
#define MODEL_HEAD_DIM_MAX     4096
#define MODEL_DELTA_HEAD_MAX   256 /* numbers of a head of a gated delta net, */
#define MODEL_DELTA_HEAD_UNIT  16  /* and what they are a multiple of */
#define MODEL_CONTEXT_MAX      (1u << 26)
#define MODEL_EOS_MAX          16
#define MODEL_SHARDS_MAX       4096
#define MODEL_NAME_MAX         160
#define MODEL_TENSORS_MAX      (1u << 16)
#define MODEL_ENTRIES_MAX      (1u << 18) /* of a checkpoint's files: matrices, and scales beside them */
