/* Reading a configuration by an architecture's table of keys, from config.json or a GGUF header; and what
 * follows from the numbers, the same for both.
 *
 * Called by config.c and gguf_config.c, and by the architectures' own functions (arch/). Pure but for what
 * model_config_free frees. */
#pragma once

#include <jansson.h>

#include "common/model/arch.h"
#include "common/model/gguf.h"

/* One of the two sources. All is borrowed. */
struct keys {
    const struct arch *arch;
    const json_t *json;        /* of config.json; NULL: */
    const struct gguf *header; /* of a GGUF file, */
    const char *prefix;        /* whose keys begin with this and a dot */
};
#define KEYS_NAME_MAX (GGUF_KEY_MAX + 48)
/* A key as the source calls it: of a row of the table, or of the row that fills this member of the
 * configuration. */
const char *keys_row_name(const struct keys *keys, const struct arch_key *row, char name[KEYS_NAME_MAX]);
const char *keys_name(const struct keys *keys, size_t member, char name[KEYS_NAME_MAX]);

/* Whether its table has this key of GGUF files. */
bool keys_reads_gguf(const struct arch *arch, const char *name);

/* All rows of the architecture's table; from a GGUF file also those of keys that only some architectures
 * compute by. */
HELM_MUST_CHECK int keys_read(const struct keys *keys, struct model_config *config, struct helm_err *err);
/* Numbers that follow from others, and whether all of them fit together. Before the architecture's
 * `layers`. */
HELM_MUST_CHECK int keys_check(const struct keys *keys, struct model_config *config, struct helm_err *err);

/* ---- which layer has what ---- */

/* Whether each layer's entry in config.json's list `key` is `other`, not `usual`; the caller's. NULL: there
 * is no such list. */
HELM_MUST_CHECK int layers_listed(const struct keys *keys, const struct model_config *config, const char *key,
                                  const char *usual, const char *other, bool **is_other,
                                  struct helm_err *err);
/* config->window: that of config->sliding_window in layers first, first + step, ... below `last`; but where
 * config.json has `layer_types`, in those that it says. */
HELM_MUST_CHECK int layers_with_window(struct keys *keys, struct model_config *config, uint32_t first,
                                       uint32_t last, uint32_t step, struct helm_err *err);
/* The same without any: the `layers` of an architecture (struct arch) that needs no more. */
HELM_MUST_CHECK int layers_without_window(struct keys *keys, struct model_config *config,
                                          struct helm_err *err);
/* No window in every `interval`-th layer, where config.json does not have `layer_types`. */
void layers_full_every(const struct keys *keys, struct model_config *config, uint32_t interval);
/* config->recurrent, of hybrids: by config.json's `layer_types` or a GGUF file's list of flags; else all but
 * every full_attention_interval-th layer. */
HELM_MUST_CHECK int layers_recurrent(const struct keys *keys, struct model_config *config,
                                     struct helm_err *err);
/* config->sparse: every sparse_step-th layer after the leading_dense ones, less those of config.json's list
 * `dense` (NULL: it has none). Without any such layer the configuration becomes a dense one. */
HELM_MUST_CHECK int layers_with_experts(const struct keys *keys, struct model_config *config,
                                        const char *dense, struct helm_err *err);
/* config->shared_intermediate: the shared experts are computed as one. */
HELM_MUST_CHECK int layers_shared_experts(const struct keys *keys, struct model_config *config,
                                          struct helm_err *err);
/* The kinds of a decoder whose layers have attention, and a dense MLP or experts (MATH_PART_DENSE, _SPARSE;
 * MATH_PART_DRAFTS and one of these in layers that make drafts). */
uint32_t layers_usual_kind(const struct model_config *config, uint32_t layer, enum unit_part part);
