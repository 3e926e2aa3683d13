/* The header of a GGUF file, checked before anything believes it.
 *
 * A file is: "GGUF", a version, two counts; key/values; descriptions of tensors; then, at the next multiple
 * of the alignment, the tensors' data, each padded to the alignment. Little-endian. Called by gguf_model.c,
 * gguf_config.c, helm-inspect and the fuzz target. Tensors are described as those of safetensors files are.
 * Everything lies in memory that the struct owns, but for values, which gguf_parse borrows from its
 * argument. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/model/safetensors.h"

#define GGUF_HEADER_MAX    (256u << 20)
#define GGUF_KEYS_MAX      4096
#define GGUF_KEY_MAX       128 /* with its end */
#define GGUF_NAME_MAX      64  /* the format's own limit, with its end */
#define GGUF_RANK_MAX      4
#define GGUF_ALIGNMENT     32 /* where the file names none */
#define GGUF_ALIGNMENT_MAX (1u << 20)

/* By their numbers in files. */
enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPES
};
const char *gguf_type_name(enum gguf_type type);
uint32_t gguf_type_bytes(enum gguf_type type); /* 0: it varies */
/* The number in files of tensors of this format; UINT32_MAX: files have none such. */
uint32_t gguf_tensor_type(enum tensor_format format);

struct gguf_value {
    char key[GGUF_KEY_MAX];
    enum gguf_type type; /* of an array its elements' */
    bool array;
    uint64_t count;      /* of elements; 1 of a single value */
    const uint8_t *data; /* as in the file: numbers; strings, each after its length */
};

struct gguf {
    struct gguf_value *values; /* by key */
    uint32_t value_count;
    /* In the order of their bytes in the file; shapes as matrices have them */
    struct safetensors_entry *entries;
    char (*names)[GGUF_NAME_MAX];
    uint32_t count;
    uint64_t alignment;
    uint64_t data_offset; /* of the data, from the start of the file */
    uint8_t *bytes;       /* read by gguf_read */
};

/* From an open file of `bytes`; `what` names it in errors. `headers`: its data may be missing, in part or
 * all. */
HELM_MUST_CHECK int gguf_read(int fd, uint64_t bytes, const char *what, bool headers, struct gguf *header,
                              struct helm_err *err);
/* The header of the file that a path means, the first of several; zeroed: there is no GGUF file. Its data may
 * be missing. (gguf_file.c) */
HELM_MUST_CHECK int gguf_open(const char *path, struct gguf *header, struct helm_err *err);
/* The same from a file's first bytes. *more: they are too few, which is also an error. */
struct gguf_source {
    const char *what;
    const uint8_t *bytes;
    uint64_t length, file_bytes; /* that are here, that the file has */
    bool headers;
};
HELM_MUST_CHECK int gguf_parse(const struct gguf_source *source, struct gguf *header, bool *more,
                               struct helm_err *err);
void gguf_free(struct gguf *header);

/* NULL: the file has no such key. */
const struct gguf_value *gguf_find(const struct gguf *header, const char *key);
/* NULL: no such tensor. */
const struct safetensors_entry *gguf_find_tensor(const struct gguf *header, const char *name);

/* Single values. An absent key that is not required leaves *out untouched. A whole number in [min, max] of
 * any such type; of an array, which says it for each layer, the number that all its elements are. */
HELM_MUST_CHECK int gguf_get_u64(const struct gguf *header, const char *key, bool required, uint64_t min,
                                 uint64_t max, uint64_t *out, struct helm_err *err);
HELM_MUST_CHECK int gguf_get_double(const struct gguf *header, const char *key, bool required, double min,
                                    double max, double *out, struct helm_err *err);
HELM_MUST_CHECK int gguf_get_bool(const struct gguf *header, const char *key, bool required, bool *out,
                                  struct helm_err *err);
/* With its end; HELM_E_FORMAT: it has a NUL, HELM_E_LIMIT: more than size - 1 bytes. */
HELM_MUST_CHECK int gguf_get_string(const struct gguf *header, const char *key, bool required, char *text,
                                    size_t size, struct helm_err *err);

/* Elements of an array or a single value, `index` < count: as they are. */
uint64_t gguf_whole(const struct gguf_value *value, uint64_t index, bool *negative);
double gguf_number(const struct gguf_value *value, uint64_t index); /* of any type but strings */
/* The string at *at, which is moved after it. */
const char *gguf_string(const uint8_t **at, uint64_t *length);
