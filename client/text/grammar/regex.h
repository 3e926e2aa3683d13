/* Regular expressions as expressions of a grammar. Called by grammar.c and, for `pattern`, by
 * schema_string.c. docs/grammars.md lists what is supported; all else is refused by name and place. Needs no
 * library: one that matches texts cannot say which bytes may come next. */
#pragma once

#include "client/text/grammar/expr.h"

enum regex_mode {
    REGEX_WHOLE,       /* the whole text matches; ^ and $ may stand at the ends */
    REGEX_JSON_SEARCH, /* a JSON string (without its quotes) some part of which matches, unless ^ and $ bind
                          it */
};

uint32_t regex_parse(struct exprs *exprs, const char *text, size_t length, enum regex_mode mode);
