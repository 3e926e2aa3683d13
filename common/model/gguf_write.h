/* Writing GGUF files: key/values are gathered in memory, then header and descriptions of tensors are written
 * and the tensors' bytes follow in any order, from any number of threads.
 *
 * The file grows under a name of its own beside `path` and takes that name once all is there and on the disk;
 * until then a file of that name stays as it is. Called by helm-quantize and tests. Files written here can be
 * read by gguf.h. */
#pragma once

#include "common/model/gguf.h"
#include "common/model/mixture.h"

/* Key/values as bytes. Zeroed to begin with; without memory `failed` is set and further calls do nothing. */
struct gguf_values {
    uint8_t *bytes;
    size_t length, capacity;
    uint64_t count;
    bool failed;
};
void gguf_values_free(struct gguf_values *values);
void gguf_put_string(struct gguf_values *values, const char *key, const char *text, size_t length);
void gguf_put_text(struct gguf_values *values, const char *key, const char *text);
void gguf_put_u32(struct gguf_values *values, const char *key, uint32_t number);
void gguf_put_f32(struct gguf_values *values, const char *key, float number);
void gguf_put_bool(struct gguf_values *values, const char *key, bool flag);
/* `count` elements follow by gguf_put_element; of GGUF_STRING each with its length before it. */
void gguf_put_array(struct gguf_values *values, const char *key, enum gguf_type type, uint64_t count);
void gguf_put_element(struct gguf_values *values, const void *bytes, size_t length);
void gguf_put_string_element(struct gguf_values *values, const char *text, size_t length);
/* All of `from`. */
void gguf_put_values(struct gguf_values *values, const struct gguf_values *from);
/* As it is in another file. */
void gguf_put_value(struct gguf_values *values, const struct gguf_value *value);

/* Puts a model's configuration, and the mixture that its weights are in. HELM_E_UNSUPPORTED: GGUF has no
 * words for something of it. *interleaved: rows of q and k go into the file as model_tensor.interleaved_heads
 * says. (gguf_describe.c) */
HELM_MUST_CHECK int gguf_put_config(struct gguf_values *values, const struct model_config *config,
                                    bool *interleaved, struct helm_err *err);
void gguf_put_mixture(struct gguf_values *values, const struct mixture *mixture);

struct gguf_output_tensor {
    char name[GGUF_NAME_MAX];
    enum tensor_format format; /* that GGUF has */
    uint64_t rows, cols;
    bool vector;            /* one dimension */
    uint32_t experts;       /* above 0: three, of which this is the last; rows are those of all */
    uint64_t bytes, offset; /* filled in: offset in the file */
};

struct gguf_output {
    char *path, *temporary;
    int fd;
    uint64_t bytes; /* of the whole file */
};
/* Header and descriptions, in their order, and room for the data on the disk. On failure no file is left. */
HELM_MUST_CHECK int gguf_output_open(const char *path, const struct gguf_values *values,
                                     struct gguf_output_tensor *tensors, uint32_t count,
                                     struct gguf_output *output, struct helm_err *err);
HELM_MUST_CHECK int gguf_output_write(const struct gguf_output *output,
                                      const struct gguf_output_tensor *tensor, uint64_t from,
                                      const void *bytes, uint64_t length, struct helm_err *err);
/* Gives the file its name. Either way *output is closed. */
HELM_MUST_CHECK int gguf_output_finish(struct gguf_output *output, struct helm_err *err);
/* Removes what was written. Accepts a zeroed or closed one. */
void gguf_output_abandon(struct gguf_output *output);
