/* Characters and texts as they stand inside a JSON string. Called by regex.c and the files of schemas. Every
 * character has one spelling: itself, or the short escape of RFC 8259 where one is needed, or \u00xx for
 * other control characters. */
#pragma once

#include "client/text/grammar/expr.h"

/* One character of the set, spelled in a JSON string. Control characters without a short escape are left out
 * of a set of all, such as `all but x`: a model has no use for them. */
uint32_t json_text_set(struct exprs *exprs, const struct expr_range *ranges, uint32_t count);
/* One of all of them. */
uint32_t json_text_any(struct exprs *exprs);
/* A text in JSON's spelling, without its quotes. */
uint32_t json_text_of(struct exprs *exprs, const char *text, size_t length);
