/* The header of a safetensors file, checked before anything believes it.
 *
 * A file is: 8 bytes little-endian header length N, N bytes of JSON {name: {dtype, shape, data_offsets}},
 * then the data, which the tensors cover in full, without gap or overlap. Called by checkpoint.c and by the
 * fuzz target. The entries' names are borrowed from the parsed JSON that the struct owns. */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "common/model/model.h"

#define SAFETENSORS_HEADER_MAX 100000000u /* the format's own limit */
#define SAFETENSORS_RANK_MAX   8

struct safetensors_entry {
    const char *name;
    const char *dtype_text;
    enum tensor_format format; /* FORMAT_COUNT: a type HELM does not compute with */
    uint32_t rank;
    uint64_t shape[SAFETENSORS_RANK_MAX];
    uint64_t bytes;
    uint64_t begin; /* from the start of the data */
};

struct safetensors {
    struct safetensors_entry *entries; /* in the order of their bytes in the file */
    uint32_t count;
    uint64_t data_offset; /* of the data, from the start of the file */
    json_t *json;
};

/* As the size of a file or of its data: unknown, the file may end after its header (planning needs no more).
 */
#define SAFETENSORS_BYTES_UNKNOWN UINT64_MAX

/* From an open file of `bytes`; `what` names it in errors. */
HELM_MUST_CHECK int safetensors_read(int fd, uint64_t bytes, const char *what, struct safetensors *header,
                                     struct helm_err *err);
/* The JSON part alone; data_bytes is what follows it in the file. */
HELM_MUST_CHECK int safetensors_parse(const char *what, const char *text, size_t length, uint64_t data_bytes,
                                      struct safetensors *header, struct helm_err *err);
/* Checks the length word: 8 + N may not pass the end of the file or the limit. */
HELM_MUST_CHECK int safetensors_header_length(const char *what, const uint8_t word[8], uint64_t file_bytes,
                                              uint64_t *length, struct helm_err *err);
void safetensors_free(struct safetensors *header);
