/* JSON from outside: size and nesting are bounded before jansson parses it; typed getters name what is wrong.
 *
 * Called by every reader of JSON files and by tools that print JSON. The returned json_t is owned by the
 * caller (json_decref). Borrowed strings live as long as the object they came from. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

#define JSON_DEPTH_MAX 64 /* deepest nesting accepted from any file or frame */

/* Parses exactly one JSON value of at most max_bytes. Duplicate keys are an error. `what` names the source in
 * errors. */
HELM_MUST_CHECK int json_parse_bounded(const char *what, const char *text, size_t length, size_t max_bytes,
                                       json_t **out, struct helm_err *err);

/* The same of files that Python wrote: NaN, Infinity and -Infinity are texts of that name, which no getter
 * takes for a number. In both, an integer beyond 64 bits is a real number, and one beyond those the largest
 * of them. */
HELM_MUST_CHECK int json_parse_python(const char *what, const char *text, size_t length, size_t max_bytes,
                                      json_t **out, struct helm_err *err);

/* The fewest digits that are read as the same number (0.1 for 0.1), with a point or an exponent. Returns its
 * length. */
#define JSON_REAL_TEXT 40
size_t json_real_text(double value, char *out, size_t space);
/* As json_dumps, with such numbers: for values that are passed on. The caller frees it; NULL: no memory. */
char *json_dump_text(const json_t *value, size_t flags);

/* Reads a whole regular file (not a symlink out of its folder: see file_read) and parses it as Python
 * does. */
HELM_MUST_CHECK int json_read_file(const char *path, size_t max_bytes, json_t **out, struct helm_err *err);

/* Members of an object. With `required` false an absent or null member leaves *out untouched and returns 0.
 */
HELM_MUST_CHECK int json_get_u64(const json_t *obj, const char *key, bool required, uint64_t min,
                                 uint64_t max, uint64_t *out, struct helm_err *err);
HELM_MUST_CHECK int json_get_double(const json_t *obj, const char *key, bool required, double min, double max,
                                    double *out, struct helm_err *err);
HELM_MUST_CHECK int json_get_bool(const json_t *obj, const char *key, bool required, bool *out,
                                  struct helm_err *err);
/* *out is borrowed from obj. */
HELM_MUST_CHECK int json_get_string(const json_t *obj, const char *key, bool required, const char **out,
                                    struct helm_err *err);

/* Texts of JSON numbers beside their values: jansson keeps a double or 64 bits, what is passed on keeps 1.50
 * and digits beyond.
 *
 * Called where JSON is handed on: bodies of requests, templates, schemas. A table is made by
 * json_parse_numbers, asked while the values are used, and freed by its owner. It holds a reference of each
 * value that is in it, so a value's address stays its own. One thread at a time. */
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
