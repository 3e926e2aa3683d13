/* helm-cli run: text in, text streamed out. See cli.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/commands.h"
#include "client/cli/grammar.h"
#include "client/cli/stream.h"

struct run_options {
    bool chat, json, stats;
    const char *system;
    struct sampling_options sampling;
    struct grammar_options grammar;
};

/* The prompt's tokens; `at`: where a conversation's leaves thinking. */
struct run_prompt {
    struct helm_chat_prompt of;
    enum reasoning_at at;
};

static int encode_prompt(const struct cli *cli, const struct run_options *options, const char *text,
                         size_t length, struct run_prompt *to, struct helm_err *err)
{
    if (!options->chat)
        return helm_tokenizer_encode(cli->tok, text, length,
                                     HELM_TOKENIZER_ENCODE_PARSE_ADDED | HELM_TOKENIZER_ENCODE_ADD_SPECIAL,
                                     &to->of.ids, &to->of.count, err);
    if (strlen(text) != length)
        return helm_fail(err, HELM_E_FORMAT, "a chat message may not hold a NUL byte (at byte %zu)",
                         strlen(text));
    const struct helm_chat_message messages[2] = {{"system", options->system}, {"user", text}};
    const struct helm_chat_message *first = options->system ? messages : messages + 1;
    return cli_encode_chat(cli, first, options->system ? 2 : 1, &to->of, &to->at, err);
}

/* Connected; everything from the tokenizer to the last token. */
static int run_prompt(struct cli *cli, struct run_options *options, const char *text, size_t length)
{
    struct helm_err err = {0};
    struct stream_result result = {0};
    struct run_prompt prompt = {0};
    char *folder = NULL;
    int status = CLI_EXIT_DONE;
    int rc = cli_open_tokenizer(cli, &err);
    if (rc == 0) rc = cli_text_folder(cli, &folder, &err);
    if (rc == 0) rc = sampling_apply_checkpoint(folder, &options->sampling, &err);
    if (rc == 0 && options->chat) rc = cli_open_chat(cli, &err);
    if (rc == 0) rc = encode_prompt(cli, options, text, length, &prompt, &err);
    if (rc < 0) {
        status = cli_fail(&err, false);
        goto out;
    }
    const struct reasoning_tags *tags = options->chat ? cli->tags : NULL;
    cli_find_ends(cli);
    if ((rc = grammar_open(cli, tags, prompt.at, &options->grammar, &err)) < 0) {
        status = cli_fail(&err, false);
        goto out;
    }
    const struct stream_request request = {
        .prompt = prompt.of.ids,
        .prompt_count = prompt.of.count,
        .marks = prompt.of.marks,
        .mark_count = prompt.of.mark_count,
        .options = &options->sampling,
        .grammar = options->grammar.opened,
        .ends = &cli->ends,
        .tags = tags,
        .at = prompt.at,
        .print = options->json ? STREAM_PRINT_NOTHING : STREAM_PRINT_TEXT,
        .label = "helm-cli run",
    };
    rc = stream_run(cli, &request, &result, &err);
    bool begun = result.id != 0;
    if (begun && options->json && stream_print_json(&result, &err) < 0 && rc == 0) rc = err.code;
    if (!options->json && result.text.length && result.text.data[result.text.length - 1] != '\n')
        (void)!cli_write("\n", 1, &(struct helm_err){0});
    if (rc == 0 && options->stats) stream_print_stats(&result);
    if (rc < 0)
        status = cli_fail(&err, begun);
    else
        status = stream_exit(&result);
out:
    stream_free(&result);
    grammar_free(&options->grammar);
    free(folder);
    helm_chat_prompt_free(&prompt.of);
    return status;
}

int command_run(struct cli *cli, int argc, char *const argv[])
{
    struct run_options options = {0};
    struct args_option table[SAMPLING_OPTION_COUNT + GRAMMAR_OPTION_COUNT + 6] = {
        {"chat", 0, ARGS_FLAG, NULL, "put the prompt through the checkpoint's chat template",
         .target = &options.chat},
        {"system", 0, ARGS_TEXT, "TEXT", "system message, with --chat", .target = &options.system},
        {"allow-special", 0, ARGS_FLAG, NULL,
         "with --chat: control tokens written in messages (<|im_end|>) become such tokens",
         .target = &cli->allow_special},
        {"raw", 0, ARGS_FLAG, NULL, "control characters of the answer go to a terminal as they are",
         .target = &cli->raw},
        {"json", 0, ARGS_FLAG, NULL, "print one JSON object when done, as generate does",
         .target = &options.json},
        {"stats", 0, ARGS_FLAG, NULL, "say on standard error how fast it was", .target = &options.stats},
    };
    sampling_fill_table(&options.sampling, table + 6);
    grammar_fill_table(&options.grammar, table + 6 + SAMPLING_OPTION_COUNT);
    const struct args_spec spec = {
        .program = "helm-cli run",
        .usage = "[PROMPT|-] [options]",
        .about = "Continues the prompt (- or nothing: standard input) until the model's end of sequence or "
                 "the end of\n"
                 "the context. Sampling is as the checkpoint's generation_config.json says unless options "
                 "say otherwise.",
        .options = table,
        .option_count = SAMPLING_OPTION_COUNT + GRAMMAR_OPTION_COUNT + 6,
        .max_operands = 1,
        .parent = cli->global,
    };
    struct args_parsed parsed;
    struct helm_err err = {0};
    char *text = NULL;
    size_t length = 0;
    args_parse_main(&spec, argc, argv, &parsed);
    const char *wrong = grammar_check(&options.grammar, options.sampling.ignore_eos);
    if (wrong) return cli_usage(&spec, "%s", wrong);
    if (options.system && !options.chat) return cli_usage(&spec, "--system needs --chat");
    if (parsed.operand.count == 0 && isatty(STDIN_FILENO))
        return cli_usage(&spec, "no prompt given ('-' reads it from the terminal)");
    const char *prompt = parsed.operand.count ? parsed.operand.item[0] : NULL;
    if (cli_read_operand(prompt, true, &text, &length, &err) < 0) return cli_fail(&err, false);
    int status = cli_open(cli);
    if (status == CLI_EXIT_DONE) status = run_prompt(cli, &options, text, length);
    free(text);
    return status;
}
