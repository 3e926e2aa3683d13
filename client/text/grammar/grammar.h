/* Grammars for what a model writes: JSON schemas, regular expressions, GBNF, and which tokens they allow
 * next; part of libhelm's public, stable C API.
 *
 * Called by programs that put a grammar into helm_generate_request, by helm-cli and the gateway. helmd never
 * sees a grammar: helm_generate sends it the set of allowed tokens for each token to come.
 *
 * A struct helm_vocabulary is immutable. A struct helm_grammar remembers what it found out about its states;
 * any number of threads may use one at the same time. A struct helm_matcher is one output's place in its
 * grammar and belongs to one thread at a time. Close matchers before their grammar, grammars before their
 * vocabulary.
 *
 * A feature of a grammar that is not supported fails at open with HELM_E_UNSUPPORTED and its name; nothing is
 * ignored. docs/grammars.md lists what is. Limits (HELM_E_LIMIT names the one that broke): text
 * HELM_GRAMMAR_TEXT_LIMIT bytes; the states that it becomes; nesting. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/text/tokenizer/tokenizer.h"
#include "common/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HELM_GRAMMAR_TEXT_LIMIT ((size_t)1 << 20) /* bytes of a schema, an expression or a grammar */

struct helm_vocabulary; /* opaque */
struct helm_grammar;    /* opaque */
struct helm_matcher;    /* opaque */

/* A tokenizer's tokens by their bytes. ends: the ids that end an output (helm_model_info.eos, and stop tokens
 * of a chat template): allowed exactly where the grammar may end; at least one. vocab: rows of the model,
 * which may be more or fewer than the tokenizer has ids; masks have one bit each. The tokenizer must outlive
 * it. */
HELM_MUST_CHECK int helm_vocabulary_open(const struct helm_tokenizer *tokenizer, const uint32_t *ends,
                                         size_t end_count, uint32_t vocab, struct helm_vocabulary **out,
                                         struct helm_err *err);
/* Frees it; NULL is allowed. */
void helm_vocabulary_close(struct helm_vocabulary *vocabulary);
uint32_t helm_vocabulary_size(const struct helm_vocabulary *vocabulary);

enum helm_grammar_kind {
    HELM_GRAMMAR_JSON_OBJECT, /* any JSON object; `text` is not looked at */
    HELM_GRAMMAR_JSON_SCHEMA,
    HELM_GRAMMAR_REGEX, /* of the whole output */
    HELM_GRAMMAR_GBNF,  /* as llama.cpp writes it; begins with the rule `root` */
};
/* Nothing of `text` is kept. */
HELM_MUST_CHECK int helm_grammar_open(const struct helm_vocabulary *vocabulary, enum helm_grammar_kind kind,
                                      const char *text, size_t length, struct helm_grammar **out,
                                      struct helm_err *err);
/* Frees it; NULL is allowed. */
void helm_grammar_close(struct helm_grammar *grammar);

/* At the beginning of the grammar. */
HELM_MUST_CHECK int helm_matcher_open(struct helm_grammar *grammar, struct helm_matcher **out,
                                      struct helm_err *err);
/* Frees it; NULL is allowed. */
void helm_matcher_close(struct helm_matcher *matcher);
/* Bits of the tokens that may come next: id i is bit i % 32 of bits[i / 32], (vocab + 31) / 32 words.
 * HELM_E_LIMIT: too many ways to read the output so far; HELM_E_UNSUPPORTED: the grammar goes on, but no
 * token of the vocabulary does. */
HELM_MUST_CHECK int helm_matcher_mask(struct helm_matcher *matcher, uint32_t *bits, struct helm_err *err);
/* Goes on by a token. HELM_E_FORMAT: it is not allowed here; the matcher stays where it is. */
HELM_MUST_CHECK int helm_matcher_take(struct helm_matcher *matcher, uint32_t token, struct helm_err *err);
/* Whether the output may end here, and whether it has (an end token was taken). */
bool helm_matcher_may_end(const struct helm_matcher *matcher);
bool helm_matcher_has_ended(const struct helm_matcher *matcher);

#ifdef __cplusplus
}
#endif
