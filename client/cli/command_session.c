/* helm-cli session: KV pages of a text, out of a daemon into a file and back. See cli.h.
 *
 * save: the text becomes tokens, the daemon computes of them what its cache has not, and its pages go to a
 * file that has its name once it is whole. restore: the file's pages go into a daemon's cache; whatever text
 * begins with the same tokens is computed from there on. Owns the file and one page's bytes. */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/cli/commands.h"
#include "client/cli/chat.h"
#include "client/session/file.h"
#include "common/base/units.h"

#define SESSION_ANSWER_MS 60000 /* a step of others', and a page's way out of VRAM, may be in front of it */

struct save_options {
    const char *tokens, *tokens_file, *chat;
};

static int stopped(struct cli *cli, int *signal_number, struct helm_err *err)
{
    *signal_number = cli_take_signal(cli);
    return *signal_number ? helm_fail(err, HELM_E_CANCELLED, "ended by a signal") : 0;
}

static int page_memory(uint64_t bytes, unsigned char **page, struct helm_err *err)
{
    *page = malloc((size_t)bytes);
    return *page ? 0
                 : helm_fail(err, HELM_E_NOMEM, "no memory for a page of %llu bytes",
                             (unsigned long long)bytes);
}

static int ended(const char *path, int rc, int signal_number, struct helm_err *err)
{
    if (signal_number) return CLI_EXIT_SIGNAL + signal_number;
    if (!rc) return CLI_EXIT_DONE;
    helm_err_prefix(err, "%s", path);
    return cli_fail(err, false);
}

/* ---- save ---- */

/* The pages, to the file. */
static int save_pages(struct cli *cli, const struct session *s, struct session_head *head, FILE *to,
                      int *signal_number, struct helm_err *err)
{
    struct session_file file;
    unsigned char *page = NULL;
    head->shape = s->shape;
    head->pages = s->pages;
    head->page_bytes = s->page_bytes;
    head->state_bytes = s->state_bytes;
    int rc = session_file_create(&file, to, head, err);
    if (!rc) rc = page_memory(session_file_unit_most(head), &page, err);
    for (uint32_t p = 0; p < session_file_units(head) && !rc; p++) {
        rc = session_read_page(cli->client, s, p, page, err);
        if (!rc) rc = session_file_write_page(&file, head, page, err);
        if (!rc) rc = stopped(cli, signal_number, err);
    }
    free(page);
    return rc ? rc : session_file_write_end(&file, err);
}

/* Has the tokens that the cache lacks computed, by a request for one token after them. */
static int compute(struct cli *cli, const struct session_head *head, int *signal_number, struct helm_err *err)
{
    struct sampling_options options = {.max_tokens = 1, .has_max_tokens = true, .ignore_eos = true};
    const struct stream_request request = {.prompt = head->tokens,
                                           .prompt_count = head->token_count,
                                           .options = &options,
                                           .print = STREAM_PRINT_NOTHING,
                                           .label = "helm-cli session save"};
    struct stream_result result = {0};
    int rc = stream_run(cli, &request, &result, err);
    *signal_number = result.signal_number;
    if (!rc && strcmp(result.finish, "length") != 0)
        rc = helm_fail(err, result.signal_number ? HELM_E_CANCELLED : HELM_E_INTERNAL,
                       "computing the text ended as '%s'", result.finish);
    stream_free(&result);
    return rc;
}

static int save_to(struct cli *cli, struct session_head *head, const char *path)
{
    struct helm_err err = {0}, ignored = {0};
    struct session s = {0};
    char beside[PATH_MAX], size[UNITS_TEXT];
    FILE *file = NULL;
    int signal_number = 0;
    int rc = cli_catch_signals(cli, &err);
    if (!rc) rc = compute(cli, head, &signal_number, &err);
    if (!rc)
        rc = session_open_save(cli->client, head->tokens, head->token_count, SESSION_ANSWER_MS, &s, &err);
    if (!rc) {
        const int n = snprintf(beside, sizeof beside, "%s.%ld~", path, (long)getpid());
        const int fd = n < PATH_MAX ? open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
        file = fd < 0 ? NULL : fdopen(fd, "w");
        if (!file) rc = helm_fail_errno(&err, "cannot be written");
        if (!file && fd >= 0) {
            close(fd);
            unlink(beside);
        }
    }
    if (!rc) rc = save_pages(cli, &s, head, file, &signal_number, &err);
    if (s.id && session_close(cli->client, &s, &ignored))
        s.id = 0; /* it was over, or goes with the connection */
    if (file && fclose(file) && !rc) rc = helm_fail_errno(&err, "writing");
    if (!rc && rename(beside, path)) rc = helm_fail_errno(&err, "cannot be written");
    if (rc && file) unlink(beside);
    if (!rc)
        fprintf(stderr, "%u of %u tokens in %s, %s\n", s.pages * s.shape.page_tokens, head->token_count, path,
                units_format_size(session_file_bytes(head), size));
    return ended(path, rc, signal_number, &err);
}

/* Tokens of a file that /save of a chat wrote, as that model's prompt. */
static int tokens_of_chat(struct cli *cli, const char *path, uint32_t **ids, size_t *count,
                          struct helm_err *err)
{
    struct chat_history history = {0};
    struct helm_chat_prompt prompt = {0};
    int rc = chat_load(&history, path, err);
    if (!rc && !history.count)
        rc = helm_fail(err, HELM_E_FORMAT, "%s: a conversation without messages", path);
    if (!rc) rc = cli_open_tokenizer(cli, err);
    if (!rc) rc = cli_open_chat(cli, err);
    if (!rc)
        rc = cli_encode_chat(cli, history.messages, history.count, &prompt, &(enum reasoning_at){0}, err);
    *ids = prompt.ids;
    *count = prompt.count;
    prompt.ids = NULL;
    helm_chat_prompt_free(&prompt);
    chat_free(&history);
    return rc;
}

static int tokens_of_text(struct cli *cli, const char *text, uint32_t **ids, size_t *count,
                          struct helm_err *err)
{
    char *input = NULL;
    size_t length = 0;
    int rc = cli_read_operand(text, true, &input, &length, err);
    if (!rc) rc = cli_open_tokenizer(cli, err);
    if (!rc)
        rc = helm_tokenizer_encode(cli->tok, input, length,
                                   HELM_TOKENIZER_ENCODE_PARSE_ADDED | HELM_TOKENIZER_ENCODE_ADD_SPECIAL, ids,
                                   count, err);
    free(input);
    return rc;
}

static int save(struct cli *cli, const char *path, const char *text, const struct save_options *options)
{
    struct helm_err err = {0};
    struct session_head head = {0};
    uint32_t *ids = NULL;
    size_t count = 0;
    int status = cli_open(cli);
    if (status != CLI_EXIT_DONE) return status;
    int rc = text            ? tokens_of_text(cli, text, &ids, &count, &err)
             : options->chat ? tokens_of_chat(cli, options->chat, &ids, &count, &err)
                             : cli_read_ids(options->tokens, options->tokens_file, &ids, &count, &err);
    if (!rc && (count == 0 || count > SESSION_FILE_TOKENS_MAX))
        rc = helm_fail(&err, HELM_E_LIMIT, "a session of %zu tokens, not between 1 and %u", count,
                       SESSION_FILE_TOKENS_MAX);
    head.tokens = ids;
    head.token_count = (uint32_t)count;
    status = rc ? cli_fail(&err, false) : save_to(cli, &head, path);
    session_head_free(&head);
    return status;
}

/* ---- restore ---- */

/* From the file's first page on; those in front of s->first are read for their checksums alone. */
static int restore_pages(struct cli *cli, const struct session *s, struct session_file *file,
                         const struct session_head *head, uint32_t *there, int *signal_number,
                         struct helm_err *err)
{
    unsigned char *page = NULL;
    bool full = false;
    int rc = page_memory(session_file_unit_most(head), &page, err);
    *there = s->first < s->pages ? s->first : s->pages;
    for (uint32_t p = 0; p < session_file_units(head) && !rc && !full; p++) {
        rc = session_file_read_page(file, head, page, err);
        if (!rc && p >= s->first) rc = session_write_page(cli->client, s, p, page, &full, there, err);
        if (!rc) rc = stopped(cli, signal_number, err);
    }
    free(page);
    return rc || full ? rc : session_file_read_end(file, err);
}

static int restore_from(struct cli *cli, const struct session_head *head, struct session_file *file,
                        const char *path)
{
    struct helm_err err = {0}, ignored = {0};
    struct session s = {0};
    const uint32_t whole = head->pages * head->shape.page_tokens;
    uint32_t there = 0;
    int signal_number = 0;
    int rc = cli_catch_signals(cli, &err);
    if (!rc)
        rc =
            session_open_restore(cli->client, &head->shape, head->tokens, whole, SESSION_ANSWER_MS, &s, &err);
    if (!rc && s.state_bytes != head->state_bytes)
        rc = helm_fail(&err, HELM_E_FORMAT, "its state after the pages has %llu bytes, the daemon's %llu",
                       (unsigned long long)head->state_bytes, (unsigned long long)s.state_bytes);
    if (!rc && s.page_bytes != head->page_bytes)
        rc = helm_fail(&err, HELM_E_FORMAT, "its pages have %llu bytes, the daemon's %llu",
                       (unsigned long long)head->page_bytes, (unsigned long long)s.page_bytes);
    if (!rc) rc = restore_pages(cli, &s, file, head, &there, &signal_number, &err);
    if (s.id && session_close(cli->client, &s, &ignored)) s.id = 0;
    if (!rc)
        fprintf(stderr, "%u of %u tokens from %s%s\n", there * head->shape.page_tokens, head->token_count,
                path, there < head->pages ? ": the KV cache has no room for more" : "");
    return ended(path, rc, signal_number, &err);
}

static int restore(struct cli *cli, const char *path)
{
    struct helm_err err = {0};
    struct session_file file;
    struct session_head head = {0};
    struct stat st;
    FILE *from = fopen(path, "re");
    int status = CLI_EXIT_REFUSED;
    int rc = !from || fstat(fileno(from), &st) ? helm_fail_errno(&err, "cannot be read") : 0;
    if (!rc && !S_ISREG(st.st_mode)) rc = helm_fail(&err, HELM_E_FORMAT, "this is no file");
    if (!rc) rc = session_file_open(&file, from, (uint64_t)st.st_size, &head, &err);
    if (rc)
        status = ended(path, rc, 0, &err);
    else if ((status = cli_open(cli)) == CLI_EXIT_DONE)
        status = restore_from(cli, &head, &file, path);
    session_head_free(&head);
    if (from) fclose(from);
    return status;
}

/* ---- the command ---- */

int command_session(struct cli *cli, int argc, char *const argv[])
{
    struct save_options options = {0};
    const struct args_option table[] = {
        {"tokens", 0, ARGS_TEXT, "1,2,3", "save: the text as token ids", .target = &options.tokens},
        {"tokens-file", 0, ARGS_TEXT, "FILE", "save: the same, read from a file",
         .target = &options.tokens_file},
        {"chat", 0, ARGS_TEXT, "FILE", "save: of the conversation that /save of a chat wrote to this file",
         .target = &options.chat},
        {"allow-special", 0, ARGS_FLAG, NULL,
         "with --chat: control tokens written in messages (<|im_end|>) become such tokens",
         .target = &cli->allow_special},
    };
    const struct args_spec spec = {
        .program = "helm-cli session",
        .usage = "save FILE (TEXT|- | --tokens 1,2,3 | --tokens-file FILE | --chat FILE)\nrestore FILE",
        .about = "Saves what the model has computed of a text (its KV cache) to a file, and puts it into a "
                 "daemon's cache\n"
                 "again: of the same model and type of cache, whatever its plan. What then begins with the "
                 "same text is\n"
                 "computed from there on. Of a text whole pages of 32 tokens are kept. Restored pages serve "
                 "the user who\n"
                 "restored them, and are kept as any others are: until the room is needed.",
        ARGS_TABLE(table),
        .min_operands = 2,
        .max_operands = 3,
        .parent = cli->global,
    };
    struct args_parsed parsed;
    args_parse_main(&spec, argc, argv, &parsed);
    const char *what = parsed.operand.item[0], *path = parsed.operand.item[1];
    const char *text = parsed.operand.count > 2 ? parsed.operand.item[2] : NULL;
    const int sources = !!text + !!options.tokens + !!options.tokens_file + !!options.chat;
    if (strcmp(what, "save") == 0) {
        if (sources != 1)
            return cli_usage(&spec, "exactly one of TEXT, --tokens, --tokens-file and --chat is needed");
        return save(cli, path, text, &options);
    }
    if (strcmp(what, "restore") != 0) return cli_usage(&spec, "'%.40s' is neither save nor restore", what);
    if (sources) return cli_usage(&spec, "restore takes a file, and nothing else");
    return restore(cli, path);
}
