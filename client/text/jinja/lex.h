/* Tokens of a template. Called by jinja/parse.c alone. Tokens and their texts live in the run's arena. */
#pragma once

#include "client/text/jinja/run.h"

enum jinja_token_kind {
    JINJA_TOKEN_END = 0,
    JINJA_TOKEN_DATA, /* text outside tags, white space already cut as the tags ask */
    JINJA_TOKEN_PRINT_BEGIN,
    JINJA_TOKEN_PRINT_END,
    JINJA_TOKEN_BLOCK_BEGIN,
    JINJA_TOKEN_BLOCK_END,
    JINJA_TOKEN_NAME,
    JINJA_TOKEN_STRING, /* escapes already resolved */
    JINJA_TOKEN_INTEGER,
    JINJA_TOKEN_FLOAT,
    JINJA_TOKEN_OPERATOR,
};

/* Operators of two characters; one of a single character is that character. */
enum {
    JINJA_OP_EQ = 'E',
    JINJA_OP_NE = 'N',
    JINJA_OP_LE = 'L',
    JINJA_OP_GE = 'G',
    JINJA_OP_POW = 'P',
    JINJA_OP_FLOORDIV = 'D',
};

struct jinja_token {
    enum jinja_token_kind kind;
    char op;
    uint32_t line;
    const char *text;
    size_t length;
    int64_t integer;
    double number;
};

/* `source` is valid UTF-8 and outlives the tokens. The last token is JINJA_TOKEN_END. */
const struct jinja_token *jinja_lex(struct jinja_run *run, const char *source, size_t length);
