/* Calls of tools as expressions of a grammar: what the parser of tool_calls.h reads, in the way that the model writes it.
 * Called by ask_grammar.c; pure. */
#ifndef HELM_CLIENT_GATEWAY_TOOL_GRAMMAR_H
#define HELM_CLIENT_GATEWAY_TOOL_GRAMMAR_H

#include <jansson.h>

#include "client/gateway/tool_calls.h"
#include "client/text/grammar/expr.h"
#include "client/text/tokenizer/tokenizer.h"

struct tool_wish {
    enum tool_style style;
    const struct helm_tokenizer *tokenizer; /* which markers are special tokens */
    const json_t *tools;                    /* as the request lists them */
    const char *only;                       /* the one that may be called; NULL: any */
    bool one;                               /* one call at most */
};

/* Calls alone. Arguments fit the parameters of a tool that is `strict`, else they are any object. */
HELM_MUST_CHECK int tool_grammar_calls(struct exprs *exprs, const struct tool_wish *wish, uint32_t *out,
                                       struct helm_err *err);
/* The same, or text without calls, or (TOOLS_TAGGED, TOOLS_LISTED) text in front of them. */
HELM_MUST_CHECK int tool_grammar_free(struct exprs *exprs, const struct tool_wish *wish, uint32_t *out,
                                      struct helm_err *err);
/* Whether some tool is strict. */
bool tool_grammar_is_strict(const json_t *tools);

/* A marker, which may be a special token; text up to and with it. */
uint32_t tool_grammar_marker(struct exprs *exprs, const struct helm_tokenizer *tokenizer, const char *marker);
uint32_t tool_grammar_until(struct exprs *exprs, const struct helm_tokenizer *tokenizer, const char *marker);
/* Up to four characters of white space. */
uint32_t tool_grammar_blanks(struct exprs *exprs);

#endif
