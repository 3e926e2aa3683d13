/* The parts of helm-mkmodel: which shape, which values, which files. Used by tools/mkmodel/helm_mkmodel.c and
 * its tests.
 *
 * A made checkpoint depends only on its configuration and seed: never on the number of threads or on timing.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "common/model/model.h"

#define MKMODEL_ARCHS "qwen3|qwen2|llama|mistral|qwen3_moe|mixtral|gpt_oss|qwen3_5|qwen3_5_moe"
#define MKMODEL_SIZES "0.6b|0.8b|1.7b|4b|8b|14b|27b|32b|30b-a3b|35b-a3b|8x7b|20b|120b"

/* shape.c: config.json of an architecture at one of the sizes: those of the Qwen3 family, or of a mixture of
 * experts its own. A fresh object. */
HELM_MUST_CHECK int mkmodel_preset(const char *arch, const char *size, enum dtype dtype, json_t **config,
                                   struct helm_err *err);
/* The object of `path`, with its dtype replaced. */
HELM_MUST_CHECK int mkmodel_config_file(const char *path, enum dtype dtype, json_t **config,
                                        struct helm_err *err);
/* generation_config.json to go with it: its special ids. A fresh object, or NULL when out of memory. */
json_t *mkmodel_generation(const json_t *config);

/* values.c: element i of a tensor is a function of (seed, name, i) alone. A table of the 4096 equally likely
 * values of a normal distribution, already in the tensor's type; 12 random bits choose one. */
#define MKMODEL_LEVELS 4096
struct mkmodel_values {
    uint64_t key;
    uint16_t level[MKMODEL_LEVELS];
};
struct mkmodel_normal {
    double quantile[MKMODEL_LEVELS / 2]; /* the lower half; the upper mirrors it */
};
void mkmodel_normal_init(struct mkmodel_normal *normal); /* a few milliseconds: once a run */
void mkmodel_values_init(struct mkmodel_values *values, const struct mkmodel_normal *normal, uint64_t seed,
                         const char *name, enum dtype dtype, double mean, double spread);
/* For MXFP4, in place of that table: any words, of which two bytes are four numbers; and scales, two bytes
 * each, that bring such numbers to about `spread`. */
void mkmodel_values_any(struct mkmodel_values *values);
void mkmodel_values_scales(struct mkmodel_values *values, double spread);
/* Elements [first, first + count) into out; first is a multiple of 4. */
void mkmodel_values_fill(const struct mkmodel_values *values, uint64_t first, uint64_t count, uint16_t *out);

/* files.c: writes the shards (and the index, where there are several) into an existing folder. */
struct mkmodel_request {
    const struct model_config *config;
    const char *folder;
    enum dtype dtype; /* bf16 or f16 */
    uint64_t seed;
    uint64_t shard_bytes; /* a shard is closed before it would pass this */
    uint32_t threads;
    double embedding;      /* root mean square of embeddings; 0: as small as other matrices' numbers */
    bool (*stopped)(void); /* asked often, by every thread; true: stop. May be NULL */
};
struct mkmodel_result {
    uint64_t bytes, tensors, shards;
    double seconds;
};
/* Bytes of the tensors as they will lie in the files, headers not counted. */
HELM_MUST_CHECK int mkmodel_bytes(const struct model_config *config, uint64_t *bytes, struct helm_err *err);
/* HELM_E_CANCELLED: stopped said so. The caller removes what a failure leaves. */
HELM_MUST_CHECK int mkmodel_write(const struct mkmodel_request *request, struct mkmodel_result *result,
                                  struct helm_err *err);
