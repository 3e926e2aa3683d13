/* Calls of tools as expressions of a grammar: what the parser of answers (client/text/answer/answer.h) reads,
 * in the way that the model writes it. Called by ask_grammar.c; pure.
 *
 *   tool_grammar.c   calls around their arguments      tool_arguments.c  arguments that are not JSON */
#pragma once

#include <jansson.h>

#include "client/text/answer/answer.h"
#include "client/text/answer/markers.h"
#include "client/text/tokenizer/tokenizer.h"

struct tool_wish {
    const struct call_syntax *syntax;
    const struct helm_tokenizer *tokenizer; /* which markers are special tokens */
    const json_t *tools;                    /* as the request lists them */
    const char *only;                       /* the one that may be called; NULL: any */
    bool one;                               /* one call at most */
};

/* Calls alone. Arguments fit the parameters of a tool that is `strict`, else they are any object. */
HELM_MUST_CHECK int tool_grammar_calls(struct exprs *exprs, const struct tool_wish *wish, uint32_t *out,
                                       struct helm_err *err);
/* The same, or text without calls, or (where calls have markers) text in front of them. */
HELM_MUST_CHECK int tool_grammar_free(struct exprs *exprs, const struct tool_wish *wish, uint32_t *out,
                                      struct helm_err *err);
bool tool_is_strict(const json_t *tool);
const char *tool_name(const json_t *tool);

/* ---- tool_arguments.c ---- */

/* Arguments in tags, with bare keys, or as Python's keywords and a closing bracket, after a call's name. */
HELM_MUST_CHECK int tool_arguments_parameters(struct exprs *exprs, const struct tool_wish *wish,
                                              const json_t *tool, uint32_t *out, struct helm_err *err);
HELM_MUST_CHECK int tool_arguments_bare(struct exprs *exprs, const struct tool_wish *wish, const json_t *tool,
                                        uint32_t *out, struct helm_err *err);
HELM_MUST_CHECK int tool_arguments_python(struct exprs *exprs, const json_t *tool, uint32_t *out,
                                          struct helm_err *err);
