/* Reading config.json and generation_config.json into struct model_config. Private to common/model. */
#pragma once

#include <jansson.h>

#include "common/model/model.h"

#define CONFIG_BYTES_MAX (1u << 20) /* of either file */

#define GGUF_ROPE_THETA 10000.0 /* of files that do not say one */

struct arch;
/* Sets the meanings of absent keys: where reading begins. */
void config_start(const struct arch *arch, bool gguf, struct model_config *config);
/* rope_config.c: both generations of RoPE keys of config.json, `max_context` already read, which YaRN may
 * extend. Values that the file does not have are as in config->rope[0]. */
HELM_MUST_CHECK int config_read_rope(const json_t *root, struct model_config *config, struct helm_err *err);

/* Adds the end-of-sequence ids (and the beginning one, if config.json had none) of a generation_config.json.
 */
HELM_MUST_CHECK int config_add_generation(const char *what, const char *text, size_t length,
                                          struct model_config *config, struct helm_err *err);
