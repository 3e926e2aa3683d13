/* Grammars in llama.cpp's notation, GBNF, as expressions. Called by grammar.c. Known from its documentation:
 * rules `name ::= ...`, texts, classes, `.`, groups, | ? * + {m,n}, comments. Tokens by name or number
 * (`<...>`) are refused. */
#pragma once

#include "client/text/grammar/expr.h"

/* The rule `root`. */
uint32_t gbnf_parse(struct exprs *exprs, const char *text, size_t length);
