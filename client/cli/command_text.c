/* helm-cli tokenize and detokenize: the tokenizer alone, no daemon where --model or --tokenizer says which.
 * See cli.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/commands.h"
#include "common/base/json.h"

/* One line of --jsonl input turned into one line of output. */
typedef int line_function(const struct cli *cli, const json_t *value, unsigned flags, struct cli_text *out,
                          struct helm_err *err);

static int encode(const struct cli *cli, const char *text, size_t length, unsigned flags, bool brackets,
                  struct cli_text *out, struct helm_err *err)
{
    uint32_t *ids = NULL;
    size_t count = 0;
    int rc = helm_tokenizer_encode(cli->tok, text, length, flags, &ids, &count, err);
    if (rc == 0) cli_text_ids(out, ids, count, brackets);
    free(ids);
    return rc;
}

static int decode(const struct cli *cli, const uint32_t *ids, size_t count, unsigned flags, bool json,
                  struct cli_text *out, struct helm_err *err)
{
    char *text = NULL;
    size_t length = 0;
    int rc = helm_tokenizer_decode(cli->tok, ids, count, flags, &text, &length, err);
    if (rc == 0) cli_text_say(out, "$", json ? JSON_BYTES(text, length) : PLAIN_BYTES(text, length));
    free(text);
    return rc;
}

static int encode_line(const struct cli *cli, const json_t *value, unsigned flags, struct cli_text *out,
                       struct helm_err *err)
{
    if (!json_is_string(value)) return helm_fail(err, HELM_E_FORMAT, "not a JSON string");
    return encode(cli, json_string_value(value), json_string_length(value), flags, true, out, err);
}

static int decode_line(const struct cli *cli, const json_t *value, unsigned flags, struct cli_text *out,
                       struct helm_err *err)
{
    if (!json_is_array(value)) return helm_fail(err, HELM_E_FORMAT, "not a JSON array of token ids");
    size_t count = json_array_size(value);
    uint32_t *ids = malloc((count ? count : 1) * sizeof *ids);
    if (!ids) return helm_fail(err, HELM_E_NOMEM, "no memory for %zu ids", count);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        const json_t *item = json_array_get(value, i);
        json_int_t id = json_is_integer(item) ? json_integer_value(item) : -1;
        if (id < 0 || id > UINT32_MAX)
            rc = helm_fail(err, HELM_E_FORMAT, "element %zu is not a token id", i);
        else
            ids[i] = (uint32_t)id;
    }
    if (rc == 0) rc = decode(cli, ids, count, flags, true, out, err);
    free(ids);
    return rc;
}

/* Every line of standard input, written out before the next is read, so that a program at both ends of the
 * pipe can wait for each answer. */
static int run_lines(const struct cli *cli, line_function *line_of, unsigned flags)
{
    struct helm_err err = {0};
    struct cli_text out = {0};
    char *line = NULL;
    size_t space = 0;
    ssize_t n;
    int rc = 0;
    uint64_t number = 0;
    while (rc == 0 && (n = getline(&line, &space, stdin)) > 0) {
        json_t *value = NULL;
        number++;
        out.length = 0;
        rc = json_parse_bounded("the line", line, (size_t)n, CLI_TEXT_MAX, &value, &err);
        if (rc == 0) rc = line_of(cli, value, flags, &out, &err);
        if (rc < 0) helm_err_prefix(&err, "standard input, line %llu", (unsigned long long)number);
        json_decref(value);
        cli_text_add(&out, "\n", 1);
        if (rc == 0) rc = cli_text_write(&out, &err);
    }
    if (rc == 0 && ferror(stdin)) rc = helm_fail_errno(&err, "reading standard input");
    free(line);
    cli_text_free(&out);
    return rc < 0 ? cli_fail(&err, number > 1) : CLI_EXIT_DONE;
}

/* Only where neither --model nor --tokenizer names a folder is the running daemon asked for its own. */
static int open_tokenizer(struct cli *cli)
{
    struct helm_err err = {0};
    if (!cli->model && !cli->tokenizer) {
        int status = cli_open(cli);
        if (status != CLI_EXIT_DONE) return status;
    }
    return cli_open_tokenizer(cli, &err) < 0 ? cli_fail(&err, false) : CLI_EXIT_DONE;
}

int command_tokenize(struct cli *cli, int argc, char *const argv[])
{
    bool json = false, jsonl = false, no_special = false, plain = false;
    const struct args_option table[] = {
        {"json", 0, ARGS_FLAG, NULL, "print a JSON array", .target = &json},
        {"jsonl", 0, ARGS_FLAG, NULL,
         "standard input: one JSON string a line; output: one array of ids a line", .target = &jsonl},
        {"no-special", 0, ARGS_FLAG, NULL, "add no special tokens (such as a leading <s>)",
         .target = &no_special},
        {"plain", 0, ARGS_FLAG, NULL, "special tokens written in the text are text, not tokens",
         .target = &plain},
    };
    const struct args_spec spec = {
        .program = "helm-cli tokenize",
        .usage = "TEXT|- [options]\n--jsonl [options]",
        .about = "Text to token ids, as Hugging Face's encode() does by default. - reads standard input, "
                 "every byte of\n"
                 "it. With --model or --tokenizer no daemon is needed or started.",
        ARGS_TABLE(table),
        .max_operands = 1,
        .parent = cli->global,
    };
    struct args_parsed parsed;
    struct helm_err err = {0};
    args_parse_main(&spec, argc, argv, &parsed);
    if ((parsed.operand.count == 1) == jsonl)
        return cli_usage(&spec, "either a text (or -) or --jsonl is needed");
    int status = open_tokenizer(cli);
    if (status != CLI_EXIT_DONE) return status;
    unsigned flags = (plain ? 0u : (unsigned)HELM_TOKENIZER_ENCODE_PARSE_ADDED) |
                     (no_special ? 0u : (unsigned)HELM_TOKENIZER_ENCODE_ADD_SPECIAL);
    if (jsonl) return run_lines(cli, encode_line, flags);

    struct cli_text out = {0};
    char *text = NULL;
    size_t length = 0;
    int rc = cli_read_operand(parsed.operand.item[0], false, &text, &length, &err);
    if (rc == 0) rc = encode(cli, text, length, flags, json, &out, &err);
    cli_text_add(&out, "\n", 1);
    if (rc == 0) rc = cli_text_write(&out, &err);
    cli_text_free(&out);
    free(text);
    return rc < 0 ? cli_fail(&err, false) : CLI_EXIT_DONE;
}

/* The operands, or standard input for "-", as one list of ids. */
static int read_ids(const struct args_list *operand, uint32_t **ids, size_t *count, struct helm_err *err)
{
    struct cli_text joined = {0};
    int rc = 0;
    *ids = NULL;
    if (operand->count == 1 && strcmp(operand->item[0], "-") == 0) {
        rc = cli_read_all(STDIN_FILENO, "standard input", &joined.data, &joined.length, err);
    } else {
        for (uint32_t i = 0; i < operand->count; i++)
            cli_text_printf(&joined, "%s%s", i ? " " : "", operand->item[i]);
        rc = cli_text_check(&joined, err);
    }
    if (rc == 0) rc = cli_parse_ids("IDS", joined.data, joined.length, ids, count, err);
    cli_text_free(&joined);
    return rc;
}

int command_detokenize(struct cli *cli, int argc, char *const argv[])
{
    bool json = false, jsonl = false, skip_special = false;
    const struct args_option table[] = {
        {"json", 0, ARGS_FLAG, NULL, "print a JSON string", .target = &json},
        {"jsonl", 0, ARGS_FLAG, NULL,
         "standard input: one array of ids a line; output: one JSON string a line", .target = &jsonl},
        {"skip-special", 0, ARGS_FLAG, NULL, "leave special tokens out of the text", .target = &skip_special},
        {"raw", 0, ARGS_FLAG, NULL, "control characters of the text go to a terminal as they are",
         .target = &cli->raw},
    };
    const struct args_spec spec = {
        .program = "helm-cli detokenize",
        .usage = "IDS [options]\n--jsonl [options]",
        .about = "Token ids (1,2,3 or several operands; - reads standard input) to text. With --model or "
                 "--tokenizer no\n"
                 "daemon is needed or started.",
        ARGS_TABLE(table),
        .max_operands = ARGS_LIST_MAX,
        .parent = cli->global,
    };
    struct args_parsed parsed;
    struct helm_err err = {0};
    args_parse_main(&spec, argc, argv, &parsed);
    if ((parsed.operand.count >= 1) == jsonl)
        return cli_usage(&spec, "either ids (or -) or --jsonl is needed");
    uint32_t *ids = NULL;
    size_t count = 0;
    if (!jsonl && read_ids(&parsed.operand, &ids, &count, &err) < 0) return cli_fail(&err, false);
    int status = open_tokenizer(cli);
    unsigned flags = skip_special ? HELM_TOKENIZER_DECODE_SKIP_SPECIAL : HELM_TOKENIZER_DECODE_ALL;
    if (status == CLI_EXIT_DONE && jsonl) {
        status = run_lines(cli, decode_line, flags);
    } else if (status == CLI_EXIT_DONE) {
        struct cli_text out = {0};
        int rc = decode(cli, ids, count, flags, json, &out, &err);
        cli_text_add(&out, "\n", 1);
        if (rc == 0) rc = cli_text_check(&out, &err);
        if (rc == 0) rc = cli_show(out.data, out.length, cli->raw, &err);
        cli_text_free(&out);
        if (rc < 0) status = cli_fail(&err, false);
    }
    free(ids);
    return status;
}
