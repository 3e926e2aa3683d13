/* helm-cli generate: tokens or text in, tokens and text out, for scripts. See cli.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/commands.h"
#include "client/cli/grammar.h"
#include "client/cli/stream.h"

struct generate_options {
    const char *prompt, *tokens, *tokens_file;
    bool json;
    struct sampling_options sampling;
    struct grammar_options grammar;
};

/* The prompt's ids from whichever of the three options was given. */
static int read_prompt(struct cli *cli, const struct generate_options *options, uint32_t **ids, size_t *count,
                       struct helm_err *err)
{
    if (options->prompt)
        return helm_tokenizer_encode(cli->tok, options->prompt, strlen(options->prompt),
                                     HELM_TOKENIZER_ENCODE_PARSE_ADDED | HELM_TOKENIZER_ENCODE_ADD_SPECIAL,
                                     ids, count, err);
    return cli_read_ids(options->tokens, options->tokens_file, ids, count, err);
}

int command_generate(struct cli *cli, int argc, char *const argv[])
{
    struct generate_options options = {0};
    struct args_option table[SAMPLING_OPTION_COUNT + GRAMMAR_OPTION_COUNT + 5] = {
        {"prompt", 0, ARGS_TEXT, "TEXT", "the prompt as text; the tokenizer adds its special tokens",
         .target = &options.prompt},
        {"tokens", 0, ARGS_TEXT, "1,2,3", "the prompt as token ids", .target = &options.tokens},
        {"tokens-file", 0, ARGS_TEXT, "FILE", "the same, read from a file", .target = &options.tokens_file},
        {"raw", 0, ARGS_FLAG, NULL, "control characters of the answer go to a terminal as they are",
         .target = &cli->raw},
        {"json", 0, ARGS_FLAG, NULL, "print one JSON object when done", .target = &options.json},
    };
    sampling_fill_table(&options.sampling, table + 5);
    grammar_fill_table(&options.grammar, table + 5 + SAMPLING_OPTION_COUNT);
    const struct args_spec spec = {
        .program = "helm-cli generate",
        .usage = "(--prompt TEXT | --tokens 1,2,3 | --tokens-file FILE) -n N [options]",
        .about = "Greedy unless --temperature is given. Without --json the text is printed as it comes "
                 "(token ids where\n"
                 "the checkpoint has no tokenizer).",
        .options = table,
        .option_count = SAMPLING_OPTION_COUNT + GRAMMAR_OPTION_COUNT + 5,
        .parent = cli->global,
    };
    struct args_parsed parsed;
    struct helm_err err = {0};
    struct stream_result result = {0};
    uint32_t *ids = NULL;
    size_t count = 0;
    args_parse_main(&spec, argc, argv, &parsed);
    if (!!options.prompt + !!options.tokens + !!options.tokens_file != 1)
        return cli_usage(&spec, "exactly one of --prompt, --tokens and --tokens-file is needed");
    const char *wrong = grammar_check(&options.grammar, options.sampling.ignore_eos);
    if (wrong) return cli_usage(&spec, "%s", wrong);
    if (!options.sampling.has_max_tokens)
        return cli_usage(&spec, "-n N is needed: how many tokens to generate");

    int rc = 0, status = CLI_EXIT_DONE;
    if (!options.prompt && (rc = read_prompt(cli, &options, &ids, &count, &err)) < 0) {
        status = cli_fail(&err, false);
        goto out;
    }
    status = cli_open(cli);
    if (status != CLI_EXIT_DONE) goto out;
    rc = cli_open_tokenizer(cli, &err);
    if (rc == HELM_E_NOT_FOUND && !options.prompt && !cli->tokenizer) rc = 0; /* ids need no tokenizer */
    if (rc == 0 && options.prompt) rc = read_prompt(cli, &options, &ids, &count, &err);
    if (rc == 0) rc = grammar_open(cli, NULL, REASONING_FREE, &options.grammar, &err);
    if (rc < 0) {
        status = cli_fail(&err, false);
        goto out;
    }
    const struct stream_request request = {
        .prompt = ids,
        .prompt_count = count,
        .options = &options.sampling,
        .grammar = options.grammar.opened,
        .print = options.json ? STREAM_PRINT_NOTHING : STREAM_PRINT_TEXT,
        .label = "helm-cli generate",
    };
    rc = stream_run(cli, &request, &result, &err);
    bool begun = result.id != 0;
    if (rc < 0) status = cli_fail(&err, begun);
    if (begun && options.json && stream_print_json(&result, &err) < 0) status = cli_fail(&err, true);
    if (begun && !options.json && result.token_count) (void)!cli_write("\n", 1, &err);
    if (status == CLI_EXIT_DONE) status = stream_exit(&result);
out:
    stream_free(&result);
    grammar_free(&options.grammar);
    free(ids);
    return status;
}
