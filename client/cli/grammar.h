/* The options of run and generate that say what the output is to look like, and the grammar they make. */
#pragma once

#include "client/shared/cli.h"
#include "client/text/grammar/grammar.h"

struct grammar_options {
    const char *json_schema, *regex, *grammar; /* as given: a file, an expression, a file */
    struct helm_vocabulary *vocabulary;        /* opened by grammar_open */
    struct helm_grammar *opened;               /* NULL: any text */
};

#define GRAMMAR_OPTION_COUNT 3

void grammar_fill_table(struct grammar_options *options, struct args_option table[GRAMMAR_OPTION_COUNT]);
/* NULL, or what is wrong with the options together. */
const char *grammar_check(const struct grammar_options *options, bool ignore_eos);
/* Opens the grammar, if the options name one. Needs cli_open and the tokenizer. cli->ends end the output
 * beside the model's own. tags: of a conversation, whose prompt ended at `at`; NULL: it is none. */
HELM_MUST_CHECK int grammar_open(const struct cli *cli, const struct reasoning_tags *tags,
                                 enum reasoning_at at, struct grammar_options *options, struct helm_err *err);
void grammar_free(struct grammar_options *options);
