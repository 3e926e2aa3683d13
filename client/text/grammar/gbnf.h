/* Grammars in llama.cpp's notation, GBNF, as expressions. Called by grammar.c and schema_values.c. Known from
 * its documentation: rules `name ::= ...`, texts, classes, `.`, groups, | ? * + {m,n}, comments. Tokens by
 * name or number (`<...>`) are refused. */
#pragma once

#include "client/text/grammar/expr.h"

/* The rule `root`. */
uint32_t gbnf_parse(struct exprs *exprs, const char *text, size_t length);
/* The rules of `count` names, each of which the text must define. */
void gbnf_rules(struct exprs *exprs, const char *text, size_t length, const char *const *names,
                uint32_t *rules, size_t count);
