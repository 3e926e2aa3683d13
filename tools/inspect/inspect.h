/* helm-inspect's output: a checkpoint as text or as JSON. Used by tools/inspect/helm_inspect.c.
 *
 * A folder that does not load is reported as far as it could be read, with the reason. Owns nothing. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "common/model/gguf.h"
#include "common/model/model.h"

struct inspect_report {
    const char *folder;
    const struct model_config *config; /* NULL when not even the configuration could be read */
    const struct model *model;         /* NULL when the folder does not load */
    const struct helm_err *problem;    /* why, when model is NULL */
    const struct gguf *gguf; /* its header, of the first file of several; NULL: it is no GGUF file */
};

/* Tensors of one role, over all layers. */
struct inspect_role {
    enum tensor_role role;
    uint32_t count;
    uint64_t rows, cols, bytes;
    const char *dtype; /* "mixed" where they differ */
};
/* Fills roles (TENSOR_ROLE_COUNT entries) in the order of the enum, absent ones left out; returns how many.
 */
uint32_t inspect_roles(const struct model *model, struct inspect_role *roles);

void inspect_print(const struct inspect_report *report, bool tensors, FILE *out);
/* Keys, and tensors as the file has them. */
void inspect_print_gguf(const struct gguf *header, bool tensors, FILE *out);
json_t *inspect_gguf_json(const struct gguf *header);
/* A fresh object; NULL when out of memory. */
json_t *inspect_json(const struct inspect_report *report, bool tensors);
