/* A small Jinja2 interpreter: what chat templates use, with the settings that transformers gives it
 * (trim_blocks, lstrip_blocks, break and continue, no autoescape, values that templates cannot change).
 *
 * Called by chat.c, tests and a fuzz target. Parts, one responsibility each:
 *   run      memory of one parse or one rendering, limits, errors with their line
 *   lex      text to tokens, whitespace control
 *   parse    tokens to statements; parse_expr: to expressions (ast.h has the nodes)
 *   value    values, truth, equality, order; text: their text, as Python prints it, and JSON
 *   ops      operators, attributes, subscripts
 *   eval     expressions and calls; exec: statements
 *   filters, filters_seq, tests, methods, methods_text, functions: what templates may call; format,
 *     format: "%" and format
 *
 * Semantics are Jinja2 3.1's, over Python's values. Where they differ: computing with whole numbers beyond 64
 * bits is an error (those of JSON are printed and compared as they are), upper and lower case map one
 * character to one, and what is not implemented is HELM_E_UNSUPPORTED with its name and line.
 *
 * Frozen: no construct is added without a published template that needs it (tests/data/chat/README.md). */
#pragma once

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

#define JINJA_TEMPLATE_BYTES_MAX (1u << 20)
#define JINJA_NESTING_MAX        100      /* brackets, statements, macro calls, values inside values */
#define JINJA_EVAL_DEPTH_MAX     1200     /* expressions inside expressions: guards the C stack */
#define JINJA_STEPS_MAX          2000000u /* a node evaluated, an item looked at, 64 bytes handled */
#define JINJA_OUTPUT_BYTES_MAX   (16u << 20)
#define JINJA_MEMORY_BYTES_MAX   (256u << 20)
#define JINJA_RANGE_MAX          100000 /* items in one range() */

struct jinja_template; /* opaque; immutable once parsed, so threads may share it */

struct jinja_input {
    const json_t *variables; /* an object; borrowed for the call */
    const struct json_numbers
        *numbers;  /* texts of its numbers, borrowed; NULL: as their values are written */
    int64_t now_s; /* the time for strftime_now(), seconds since 1970; 0: the clock */
    /* The template's own words beside those in its source: texts of the object `own` (more variables, which
     * `variables` may replace; NULL: none), and texts of letters, digits, '_' and '-' that are members
     * `own_key` of an object (NULL: none): the roles of messages, around which templates write the rest of a
     * token. */
    const json_t *own;
    const char *own_key;
    uint64_t steps_max; /* each limit: 0 for the constant above */
    size_t output_bytes_max, memory_bytes_max;
};

/* `text` is copied. HELM_E_FORMAT: not a template; HELM_E_UNSUPPORTED: a tag that is not implemented;
 * HELM_E_LIMIT: too long or nested too deep. */
HELM_MUST_CHECK int jinja_parse(const char *text, size_t length, struct jinja_template **out,
                                struct helm_err *err);

/* *text is malloc'd (free() it), NUL-terminated, *length bytes. HELM_E_MISMATCH: raise_exception was called;
 * HELM_E_FORMAT: the template does what its values do not allow; HELM_E_LIMIT, HELM_E_UNSUPPORTED. */
HELM_MUST_CHECK int jinja_render(const struct jinja_template *template, const struct jinja_input *input,
                                 char **text, size_t *length, struct helm_err *err);

/* The same. *own, malloc'd: bit i is set if the template itself wrote byte i of the text; other bytes came
 * with the variables, or were computed. */
HELM_MUST_CHECK int jinja_render_marked(const struct jinja_template *template,
                                        const struct jinja_input *input, char **text, size_t *length,
                                        unsigned char **own, struct helm_err *err);

/* NULL is allowed. */
void jinja_free(struct jinja_template *template);
