/* Texts of JSON numbers beside their values: jansson keeps a double or 64 bits, what is passed on keeps 1.50
 * and digits beyond.
 *
 * Called where JSON is handed on: bodies of requests, templates, schemas. A table is made by
 * json_parse_numbers, asked while the values are used, and freed by its owner. It holds a reference of each
 * value that is in it, so a value's address stays its own. One thread at a time. */
#pragma once

#include <jansson.h>

#include "common/base/err.h"

struct json_numbers; /* opaque; only numbers that json_dump_text would write otherwise are in it */

/* json_parse_bounded, and the texts of its numbers into *numbers, which is made if it is NULL and there are
 * some. */
HELM_MUST_CHECK int json_parse_numbers(const char *what, const char *text, size_t length, size_t max_bytes,
                                       struct json_numbers **numbers, json_t **out, struct helm_err *err);
/* As it was written; NULL: as json_dump_text writes it. Borrowed from the table. `numbers` may be NULL. */
const char *json_number_text(const struct json_numbers *numbers, const json_t *value);
/* json_dump_text with these texts. Not with JSON_SORT_KEYS. */
char *json_dump_numbers(const json_t *value, size_t flags, const struct json_numbers *numbers);
/* NULL is allowed. */
void json_numbers_free(struct json_numbers *numbers);
