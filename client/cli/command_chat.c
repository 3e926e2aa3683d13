/* helm-cli chat: a conversation with history. See cli.h.
 *
 * On a terminal one message is what was typed or pasted at once: further lines that are already waiting
 * belong to it. From a pipe every line is a message. Owns the history and the input buffer. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/stream.h"

#define PASTE_MS 30 /* lines of one paste arrive together; nobody types a line in this time */

struct chat {
    struct cli *cli;
    struct sampling_options sampling;
    const char *system;
    struct helm_chat_message *messages; /* contents are ours, except the system message's */
    size_t count, space;
    struct cli_text input; /* read and not yet used */
    bool terminal, end_of_input;
};

static const char help_text[] = "  /reset   forget the conversation\n"
                                "  /exit    leave (so does Ctrl-D)\n"
                                "  /help    this\n"
                                "Ctrl-C stops an answer. Lines pasted together are one message.\n";

/* ---- history ---------------------------------------------------------------------------------------- */

static void forget_last(struct chat *chat)
{
    free((char *)chat->messages[--chat->count].content);
}

static int remember(struct chat *chat, const char *role, const char *text, size_t length,
                    struct helm_err *err)
{
    if (chat->count == chat->space) {
        size_t space = chat->space ? 2 * chat->space : 16;
        void *grown = realloc(chat->messages, space * sizeof *chat->messages);
        if (!grown) return helm_fail(err, HELM_E_NOMEM, "no memory for the conversation");
        chat->messages = grown;
        chat->space = space;
    }
    char *copy = strndup(text, length);
    if (!copy) return helm_fail(err, HELM_E_NOMEM, "no memory for the conversation");
    chat->messages[chat->count++] = (struct helm_chat_message){role, copy};
    return 0;
}

static int reset(struct chat *chat, struct helm_err *err)
{
    while (chat->count) forget_last(chat);
    return chat->system ? remember(chat, "system", chat->system, strlen(chat->system), err) : 0;
}

/* ---- input ------------------------------------------------------------------------------------------ */

/* Waits for input or a signal: 1 input, 0 nothing within wait_ms, or the negative of a signal's number. */
static int await_input(struct chat *chat, int wait_ms)
{
    for (;;) {
        struct pollfd p[2] = {{.fd = STDIN_FILENO, .events = POLLIN},
                              {.fd = chat->cli->signal_fd, .events = POLLIN}};
        if (poll(p, 2, wait_ms) < 0 && errno != EINTR) return 1; /* the read will say what is wrong */
        int signal_number = p[1].revents ? cli_take_signal(chat->cli) : 0;
        if (signal_number) return -signal_number;
        if (p[0].revents) return 1;
        if (wait_ms >= 0) return 0;
    }
}

static int read_more(struct chat *chat, struct helm_err *err)
{
    char buffer[4096];
    ssize_t n = read(STDIN_FILENO, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) return 0;
    if (n < 0) return helm_fail_errno(err, "reading standard input");
    if (n == 0) chat->end_of_input = true;
    if (chat->input.length + (size_t)n > CLI_TEXT_MAX)
        return helm_fail(err, HELM_E_LIMIT, "a message is longer than %zu bytes", CLI_TEXT_MAX);
    cli_text_add(&chat->input, buffer, (size_t)n);
    return cli_text_check(&chat->input, err);
}

/* Bytes of the buffer that make one message, newline included; 0: not complete. */
static size_t message_bytes(const struct chat *chat)
{
    const struct cli_text *input = &chat->input;
    if (input->length == 0) return 0;
    if (chat->terminal) /* all that was there at once, from its last newline */
        return input->data[input->length - 1] == '\n' || chat->end_of_input ? input->length : 0;
    const char *newline = memchr(input->data, '\n', input->length);
    if (newline) return (size_t)(newline - input->data) + 1;
    return chat->end_of_input ? input->length : 0;
}

/* The next message, malloc'd, without its newlines at the end. 1 a message, 0 end of input, the negative of a
 * signal's number, or READ_ERROR, which no signal has, with *err filled in. */
enum { READ_ERROR = -1000 };
static int next_message(struct chat *chat, char **text, struct helm_err *err)
{
    *text = NULL;
    for (;;) {
        size_t bytes = message_bytes(chat);
        if (bytes && chat->terminal && !chat->end_of_input && await_input(chat, PASTE_MS) > 0) bytes = 0;
        if (bytes) {
            *text = strndup(chat->input.data, bytes);
            if (!*text) {
                helm_fail(err, HELM_E_NOMEM, "no memory for a message");
                return READ_ERROR;
            }
            memmove(chat->input.data, chat->input.data + bytes, chat->input.length - bytes + 1);
            chat->input.length -= bytes;
            size_t length = strlen(*text);
            while (length && ((*text)[length - 1] == '\n' || (*text)[length - 1] == '\r'))
                (*text)[--length] = 0;
            return 1;
        }
        if (chat->end_of_input) return 0;
        int got = await_input(chat, -1);
        if (got < 0) {
            chat->input.length = 0;
            return got;
        }
        if (read_more(chat, err) < 0) return READ_ERROR;
    }
}

/* ---- one turn --------------------------------------------------------------------------------------- */

/* Answers the last message. *go_on: the conversation may continue. */
static int answer(struct chat *chat, bool *go_on)
{
    struct cli *cli = chat->cli;
    struct helm_err err = {0};
    struct stream_result result = {0};
    uint32_t *ids = NULL;
    size_t count = 0;
    int status = CLI_EXIT_DONE;
    *go_on = true;
    int rc = cli_encode_chat(cli, chat->messages, chat->count, &ids, &count, &err);
    if (rc == 0) {
        const struct stream_request request = {
            .prompt = ids,
            .prompt_count = count,
            .options = &chat->sampling,
            .stop_token = sampling_chat_stop(cli, &chat->sampling),
            .print = STREAM_PRINT_TEXT,
            .label = "helm-cli chat",
        };
        rc = stream_run(cli, &request, &result, &err);
    }
    if (result.text.length && result.text.data[result.text.length - 1] != '\n')
        (void)!cli_write("\n", 1, &(struct helm_err){0});
    if (rc < 0) {
        status = cli_fail(&err, result.id != 0);
        if (rc == HELM_E_CAPACITY)
            cli_complain("the conversation no longer fits the context: /reset begins a new one");
        *go_on = chat->terminal && rc != HELM_E_PEER && rc != HELM_E_IO;
    } else if (result.signal_number && result.signal_number != SIGINT) {
        status = CLI_EXIT_SIGNAL + result.signal_number;
        *go_on = false;
    }
    /* an answer that was cut short stays in the history as far as it was shown; one that never began takes
     * its question with it, so that the roles go on alternating */
    if (result.text.length) {
        if (remember(chat, "assistant", result.text.data, result.text.length, &err) < 0) {
            status = cli_fail(&err, true);
            *go_on = false;
        }
    } else {
        forget_last(chat);
    }
    stream_free(&result);
    free(ids);
    return status;
}

static int converse(struct chat *chat)
{
    struct helm_err err = {0};
    int status = CLI_EXIT_DONE;
    bool go_on = true;
    char *text = NULL;
    if (reset(chat, &err) < 0) return cli_fail(&err, false);
    while (go_on) {
        free(text);
        if (chat->terminal) fputs("> ", stderr);
        int got = next_message(chat, &text, &err);
        if (got == READ_ERROR) {
            status = cli_fail(&err, true);
            break;
        }
        if (got == -SIGINT) {
            fputs("\n(/exit or Ctrl-D leaves)\n", stderr);
            continue;
        }
        if (got < 0) {
            status = CLI_EXIT_SIGNAL - got;
            break;
        }
        if (got == 0 || strcmp(text, "/exit") == 0) {
            if (got == 0 && chat->terminal) fputc('\n', stderr);
            break;
        }
        if (strcmp(text, "/help") == 0) {
            fputs(help_text, stderr);
        } else if (strcmp(text, "/reset") == 0) {
            if (reset(chat, &err) < 0) return cli_fail(&err, true);
        } else if (*text) {
            if (remember(chat, "user", text, strlen(text), &err) < 0) return cli_fail(&err, true);
            status = answer(chat, &go_on);
            if (go_on) status = CLI_EXIT_DONE;
        }
    }
    free(text);
    return status;
}

int command_chat(struct cli *cli, int argc, char *const argv[])
{
    struct chat chat = {.cli = cli};
    struct args_option table[SAMPLING_OPTION_COUNT + 1] = {
        {"system", 0, ARGS_TEXT, "TEXT", "system message", .target = &chat.system},
    };
    sampling_fill_table(&chat.sampling, table + 1);
    const struct args_spec spec = {
        .program = "helm-cli chat",
        .usage = "[options]",
        .about = "A conversation through the checkpoint's chat template. /help lists what may be typed. "
                 "Sampling is as\n"
                 "the checkpoint's generation_config.json says unless options say otherwise. From a pipe, "
                 "every line is\n"
                 "a message.",
        .options = table,
        .option_count = SAMPLING_OPTION_COUNT + 1,
        .parent = cli->global,
    };
    struct args_parsed parsed;
    struct helm_err err = {0};
    char *folder = NULL;
    args_parse_main(&spec, argc, argv, &parsed);
    int status = cli_open(cli);
    if (status != CLI_EXIT_DONE) return status;
    chat.terminal = isatty(STDIN_FILENO);
    int rc = cli_catch_signals(cli, &err);
    if (rc == 0) rc = cli_open_tokenizer(cli, &err);
    if (rc == 0) rc = cli_open_chat(cli, &err);
    if (rc == 0) rc = cli_text_folder(cli, &folder, &err);
    if (rc == 0) rc = sampling_apply_checkpoint(folder, &chat.sampling, &err);
    if (rc == 0)
        status = converse(&chat);
    else
        status = cli_fail(&err, false);
    while (chat.count) forget_last(&chat);
    free(chat.messages);
    cli_text_free(&chat.input);
    free(folder);
    return status;
}
