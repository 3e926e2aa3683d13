/* Text growing in memory. Called by helm-cli, the gateway and the parser of answers; not part of libhelm's
 * API. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/base/err.h"

/* Text growing in memory. Once memory was short nothing is added any more; cli_text_check says so. */
struct cli_text {
    char *data; /* NUL-terminated once something was added */
    size_t length, space;
    bool failed;
};
void cli_text_add(struct cli_text *text, const char *data, size_t length);
void cli_text_printf(struct cli_text *text, const char *fmt, ...) HELM_PRINTF(2, 3);
/* Each control character but tab and newline, and each byte that is no UTF-8, is \xNN. */
void cli_text_shown(struct cli_text *text, const char *data, size_t length);
/* ---- templates: JSON, or lines for people, with values in their places ---- */

/* A value of a template, made by the macros below. Texts are borrowed. */
struct cli_value {
    enum cli_value_kind { CLI_VALUE_PLAIN, CLI_VALUE_CLEAN, CLI_VALUE_STRING } kind;
    const char *text; /* NULL: `number` */
    size_t length;
    char number[64];
};

/* A text as it is, and as it may be shown: '?' for a control character and for a byte that is no UTF-8. */
#define PLAIN_BYTES(data, bytes) ((struct cli_value){CLI_VALUE_PLAIN, data, bytes})
#define PLAIN(chars)             PLAIN_BYTES(chars, strlen(chars))
#define CLEAN(chars)             ((struct cli_value){CLI_VALUE_CLEAN, chars, strlen(chars)})
/* A JSON string of so many bytes, and of a text without its first `from` bytes. Bytes that are no UTF-8
 * become U+FFFD; all control characters are escaped, since some terminals obey them. */
#define JSON_BYTES(data, bytes) ((struct cli_value){CLI_VALUE_STRING, data, bytes})
#define JSON_REST(grown, from)  JSON_BYTES((grown)->data + (from), (grown)->length - (from))
/* JSON of a number, a bool or a string (NULL: null), by its type in C. A real number has nine digits; the
 * largest float stands for an infinity. */
#define JSON(x)                                                                                              \
    _Generic((x),                                                                                            \
        bool: cli_value_bool,                                                                                \
        float: cli_value_real,                                                                               \
        double: cli_value_real,                                                                              \
        char *: cli_value_string,                                                                            \
        const char *: cli_value_string,                                                                      \
        int: cli_value_integer,                                                                              \
        long: cli_value_integer,                                                                             \
        default: cli_value_whole)(x)
struct cli_value cli_value_bool(bool value);
struct cli_value cli_value_real(double value);
struct cli_value cli_value_string(const char *value);
struct cli_value cli_value_integer(int64_t value);
struct cli_value cli_value_whole(uint64_t value);
/* A real number with so many digits, and with so many after the point. */
struct cli_value cli_value_digits(double value, int digits);
struct cli_value cli_value_fixed(double value, int digits);

/* Adds a template of JSON with a value for each '$' of it. ' stands for ", and a comma before a closing
 * bracket is left out: cli_text_fill(out, "{'id':$,'state':$}", JSON(id), JSON("ready")). */
#define cli_text_fill(text, ...)                                                                             \
    cli_text_add_template(text, "$']}", CLI_TEMPLATE(__VA_ARGS__, {CLI_VALUE_PLAIN}))
/* Likewise a line for people: '$' has a value, and every other character is itself. */
#define cli_text_say(text, ...) cli_text_add_template(text, "$", CLI_TEMPLATE(__VA_ARGS__, {CLI_VALUE_PLAIN}))
/* The arguments of the function that both are. */
#define CLI_TEMPLATE(template, ...) template, ((const struct cli_value[]){__VA_ARGS__})
/* marks: characters of the template that are not themselves. */
void cli_text_add_template(struct cli_text *text, const char *marks, const char *template,
                           const struct cli_value *values);

/* Members of an object that are called as a struct's are: cli_text_members(out, JSON_MEMBER(s, running)). A
 * comma follows each. */
struct cli_member {
    const char *name;
    struct cli_value value;
};
#define JSON_MEMBER(of, member)  ((struct cli_member){#member, JSON((of)->member)})
#define JSON_SECONDS(of, member) ((struct cli_member){#member, cli_value_fixed((of)->member, 6)})
#define cli_text_members(text, ...)                                                                          \
    cli_text_add_members(text, (const struct cli_member[]){__VA_ARGS__, {NULL}})
void cli_text_add_members(struct cli_text *text, const struct cli_member *members);

/* "[1,2,3]", or without brackets "1,2,3". */
void cli_text_ids(struct cli_text *text, const uint32_t *ids, size_t count, bool brackets);
void cli_text_free(struct cli_text *text);
