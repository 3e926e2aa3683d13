/* --json-schema, --regex and --grammar. See grammar.h. */
#include "client/cli/grammar.h"

#include <stdlib.h>
#include <string.h>

#include "client/text/answer/markers.h"
#include "client/text/grammar/engine.h"
#include "common/base/file.h"

void grammar_fill_table(struct grammar_options *options, struct args_option table[GRAMMAR_OPTION_COUNT])
{
    const struct args_option rows[GRAMMAR_OPTION_COUNT] = {
        {"json-schema", 0, ARGS_TEXT, "FILE", "the output is JSON that fits the schema in this file",
         .target = &options->json_schema},
        {"regex", 0, ARGS_TEXT, "EXPRESSION", "the output as a whole matches the regular expression",
         .target = &options->regex},
        {"grammar", 0, ARGS_TEXT, "FILE",
         "the output fits the grammar in this file (GBNF, as llama.cpp writes it)",
         .target = &options->grammar},
    };
    memcpy(table, rows, sizeof rows);
}

const char *grammar_check(const struct grammar_options *o, bool ignore_eos)
{
    const int given = !!o->json_schema + !!o->regex + !!o->grammar;
    if (given > 1) return "at most one of --json-schema, --regex and --grammar can be given";
    if (given && ignore_eos) return "--ignore-eos and a grammar exclude each other: the output ends with it";
    return NULL;
}

int grammar_open(const struct cli *cli, const struct reasoning_tags *tags, enum reasoning_at at,
                 struct grammar_options *o, struct helm_err *err)
{
    const char *file = o->json_schema ? o->json_schema : o->grammar;
    const enum helm_grammar_kind kind = o->json_schema ? HELM_GRAMMAR_JSON_SCHEMA
                                        : o->regex     ? HELM_GRAMMAR_REGEX
                                                       : HELM_GRAMMAR_GBNF;
    struct helm_model_info *info = NULL;
    struct exprs x = {0};
    uint32_t root = 0;
    char *text = NULL;
    size_t length = o->regex ? strlen(o->regex) : 0, ends = 0;
    uint32_t end[64 + ENDS_MAX];
    if (!file && !o->regex) return 0;
    if (!cli->tok)
        return helm_fail(err, HELM_E_NOT_FOUND, "a grammar is about text, and there is no tokenizer for it");
    int rc = file ? file_read(file, HELM_GRAMMAR_TEXT_LIMIT, &text, &length, err) : 0;
    if (rc == 0) rc = helm_model_info(cli->client, CLI_ANSWER_MS, &info, err);
    for (size_t i = 0; rc == 0 && i < info->eos_count && ends < 64; i++) end[ends++] = info->eos[i];
    for (size_t i = 0; rc == 0 && i < cli->ends.count; i++)
        if (cli->ends.ids[i] < info->vocab) end[ends++] = cli->ends.ids[i];
    if (rc == 0) rc = helm_vocabulary_open(cli->tok, end, ends, info->vocab, &o->vocabulary, err);
    if (rc == 0) {
        rc = grammar_read(&x, kind, file ? text : o->regex, length, &root, err);
        if (rc == 0 && tags) root = markers_final(&x, cli->tok, tags, at, root);
        if (rc == 0) rc = grammar_open_exprs(o->vocabulary, &x, root, &o->opened, err);
        if (rc < 0 && file) rc = helm_err_prefix(err, "%s", file);
    }
    exprs_free(&x);
    free(info);
    free(text);
    return rc;
}

void grammar_free(struct grammar_options *o)
{
    helm_grammar_close(o->opened);
    helm_vocabulary_close(o->vocabulary);
    o->opened = NULL;
    o->vocabulary = NULL;
}
