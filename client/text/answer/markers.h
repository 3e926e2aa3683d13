/* Markers of answers as expressions of grammars: text, or special tokens. Called by the gateway's and
 * helm-cli's grammars; pure. */
#pragma once

#include "client/text/answer/syntax.h"
#include "client/text/grammar/expr.h"
#include "client/text/tokenizer/tokenizer.h"

/* A text that may have special tokens in it; text up to and with one marker; text without it. */
uint32_t markers_text(struct exprs *exprs, const struct helm_tokenizer *tokenizer, const char *marker);
uint32_t markers_until(struct exprs *exprs, const struct helm_tokenizer *tokenizer, const char *marker);
uint32_t markers_without(struct exprs *exprs, const struct helm_tokenizer *tokenizer, const char *marker);
/* Up to four characters of white space; any text. */
uint32_t markers_blanks(struct exprs *exprs);
uint32_t markers_any(struct exprs *exprs);

/* The header of a message of harmony: its channel, and <|message|>. */
uint32_t markers_header(struct exprs *exprs, const struct helm_tokenizer *tokenizer, const char *channel);
/* An answer that is to fit something: in harmony a message of the final channel, unless the prompt has its
 * header. */
uint32_t markers_final(struct exprs *exprs, const struct helm_tokenizer *tokenizer,
                       const struct reasoning_tags *tags, enum reasoning_at at, uint32_t answer);
