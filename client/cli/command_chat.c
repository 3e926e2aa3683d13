/* helm-cli chat: a conversation with history. See chat.h.
 *
 * On a terminal messages are what the line editor makes of typing and pasting, and those that begin with a
 * slash are commands. From a pipe every line is a message, but for /exit, /reset and /help. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/commands.h"
#include "client/cli/chat.h"
#include "common/base/printable.h"

#define FULL "/clear begins a new conversation"

/* ---- input from a pipe ------------------------------------------------------------------------------ */

/* Waits for input or a signal: 0, or the negative of a signal's number. */
static int await_input(struct chat *chat)
{
    for (;;) {
        struct pollfd p[2] = {{.fd = STDIN_FILENO, .events = POLLIN},
                              {.fd = chat->cli->signal_fd, .events = POLLIN}};
        if (poll(p, 2, -1) < 0 && errno != EINTR) return 0; /* the read will say what is wrong */
        const int signal_number = p[1].revents ? cli_take_signal(chat->cli) : 0;
        if (signal_number) return -signal_number;
        if (p[0].revents) return 0;
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
static size_t line_bytes(const struct chat *chat)
{
    const struct cli_text *input = &chat->input;
    const char *newline = input->length ? memchr(input->data, '\n', input->length) : NULL;
    if (newline) return (size_t)(newline - input->data) + 1;
    return chat->end_of_input ? input->length : 0;
}

/* As line_editor_read. */
static int read_line(struct chat *chat, char **text, struct helm_err *err)
{
    *text = NULL;
    for (;;) {
        const size_t bytes = line_bytes(chat);
        if (bytes) {
            *text = strndup(chat->input.data, bytes);
            if (!*text) {
                helm_fail(err, HELM_E_NOMEM, "no memory for a message");
                return LINE_EDITOR_ERROR;
            }
            memmove(chat->input.data, chat->input.data + bytes, chat->input.length - bytes + 1);
            chat->input.length -= bytes;
            size_t length = strlen(*text);
            while (length && ((*text)[length - 1] == '\n' || (*text)[length - 1] == '\r'))
                (*text)[--length] = 0;
            return 1;
        }
        if (chat->end_of_input) return 0;
        const int got = await_input(chat);
        if (got < 0) return got;
        if (read_more(chat, err) < 0) return LINE_EDITOR_ERROR;
    }
}

/* ---- one turn --------------------------------------------------------------------------------------- */

/* Keeps what /stats shows: numbers, and words that live as long as the program. */
static void keep_stats(struct chat *chat, const struct stream_result *result)
{
    chat->last = *result;
    chat->last.tokens = NULL;
    chat->last.logprobs = NULL;
    chat->last.logprob_counts = NULL;
    chat->last.text = chat->last.said = (struct cli_text){0};
}

/* Ended by length, and not by the length that was asked for. */
static bool filled_context(const struct chat *chat, const struct stream_result *result)
{
    const uint64_t wanted = chat->sampling.max_tokens;
    return strcmp(result->finish, "length") == 0 && (!wanted || result->token_count < wanted);
}

static int stream_answer(struct chat *chat, struct stream_result *result, struct helm_err *err)
{
    struct helm_chat_prompt prompt;
    enum reasoning_at at = REASONING_FREE;
    struct present present;
    int rc = cli_encode_chat(chat->cli, chat->history.messages, chat->history.count, &prompt, &at, err);
    if (rc == 0) {
        const struct stream_request request = {
            .prompt = prompt.ids,
            .prompt_count = prompt.count,
            .marks = prompt.marks,
            .mark_count = prompt.mark_count,
            .options = &chat->sampling,
            .ends = &chat->cli->ends,
            .tags = chat->cli->tags,
            .at = at,
            .print = STREAM_PRINT_TEXT,
            .present = chat->editor ? &present : NULL,
            .label = "helm-cli chat",
        };
        present_begin(&present, at == REASONING_INSIDE && chat->cli->tags->open);
        rc = stream_run(chat->cli, &request, result, err);
    }
    helm_chat_prompt_free(&prompt);
    return rc;
}

/* Answers the last message. *go_on: the conversation may continue. */
static int answer(struct chat *chat, bool *go_on)
{
    struct helm_err err = {0};
    struct stream_result result = {0};
    int status = CLI_EXIT_DONE;
    *go_on = true;
    const int rc = stream_answer(chat, &result, &err);
    if (result.text.length && result.text.data[result.text.length - 1] != '\n')
        (void)!cli_write("\n", 1, &(struct helm_err){0});
    if (rc < 0) {
        status = cli_fail(&err, result.id != 0);
        if (rc == HELM_E_CAPACITY) cli_complain("the conversation no longer fits the context: " FULL);
        *go_on = chat->editor && rc != HELM_E_PEER && rc != HELM_E_IO;
    } else if (result.signal_number && result.signal_number != SIGINT) {
        status = CLI_EXIT_SIGNAL + result.signal_number;
        *go_on = false;
    } else if (filled_context(chat, &result)) {
        cli_complain("the answer was cut short, the context is full: " FULL);
    }
    if (result.finish) keep_stats(chat, &result);
    /* an answer that was cut short stays in the history as far as it was shown; one that never began takes
     * its question with it, so that the roles go on alternating */
    const struct cli_text *said = result.has_parts ? &result.said : &result.text;
    if (!said->length) {
        chat_forget_last(&chat->history);
    } else if (chat_remember(&chat->history, "assistant", said->data, said->length, &err) < 0) {
        status = cli_fail(&err, true);
        *go_on = false;
    }
    stream_free(&result);
    return status;
}

static const char pipe_help[] = "  /reset   forget the conversation\n  /exit    leave\n  /help    this\n";

/* *go_on false: it is over. Lines from a pipe are messages but for three. */
static bool do_command(struct chat *chat, char *text, bool *go_on)
{
    if (chat->editor) {
        if (!chat_is_command(text)) return false;
        *go_on = chat_command(chat, text);
        return true;
    }
    if (strcmp(text, "/exit") == 0)
        *go_on = false;
    else if (strcmp(text, "/reset") == 0)
        chat_clear(&chat->history);
    else if (strcmp(text, "/help") == 0)
        fputs(pipe_help, stderr);
    else
        return false;
    return true;
}

/* Prints the model's name and the command that lists the others. */
static void greet(const struct chat *chat)
{
    struct helm_model_info *info = NULL;
    struct helm_err ignored = {0};
    char name[256] = "", shown[512];
    if (helm_model_info(chat->cli->client, CLI_ANSWER_MS, &info, &ignored) == 0)
        cli_name_model(info->folder, name, sizeof name);
    free(info);
    printable(shown, sizeof shown, name);
    fprintf(stderr, "%s%s/help lists what may be typed, /exit or Ctrl-D leaves\n", shown, *shown ? ": " : "");
}

static int converse(struct chat *chat)
{
    struct helm_err err = {0};
    int status = CLI_EXIT_DONE;
    bool go_on = true;
    char *text = NULL;
    while (go_on) {
        free(text);
        const int got =
            chat->editor ? line_editor_read(chat->editor, &text, &err) : read_line(chat, &text, &err);
        if (got == LINE_EDITOR_ERROR) {
            status = cli_fail(&err, true);
            break;
        }
        if (got == -SIGINT && chat->editor) {
            fputs("\n(/exit or Ctrl-D leaves)\n", stderr);
            continue;
        }
        if (got < 0) {
            status = CLI_EXIT_SIGNAL - got;
            break;
        }
        if (got == 0) {
            if (chat->editor) fputc('\n', stderr);
            break;
        }
        if (!*text || do_command(chat, text, &go_on)) continue;
        if (chat_remember(&chat->history, "user", text, strlen(text), &err) < 0) {
            status = cli_fail(&err, true);
            break;
        }
        status = answer(chat, &go_on);
        if (go_on) status = CLI_EXIT_DONE;
    }
    free(text);
    return status;
}

int command_chat(struct cli *cli, int argc, char *const argv[])
{
    struct chat chat = {.cli = cli};
    const char *system = NULL;
    struct args_option table[SAMPLING_OPTION_COUNT + 3] = {
        {"system", 0, ARGS_TEXT, "TEXT", "system message", .target = &system},
        {"raw", 0, ARGS_FLAG, NULL, "control characters of the answer go to a terminal as they are",
         .target = &cli->raw},
        {"allow-special", 0, ARGS_FLAG, NULL,
         "control tokens written in messages (<|im_end|>) become such tokens", .target = &cli->allow_special},
    };
    sampling_fill_table(&chat.sampling, table + 3);
    const struct args_spec spec = {
        .program = "helm-cli chat",
        .usage = "[options]",
        .about = "A conversation through the checkpoint's chat template. /help lists what may be typed. "
                 "Sampling is as\n"
                 "the checkpoint's generation_config.json says unless options say otherwise. From a pipe, "
                 "every line is\n"
                 "a message.",
        .options = table,
        .option_count = SAMPLING_OPTION_COUNT + 3,
        .parent = cli->global,
    };
    struct args_parsed parsed;
    struct helm_err err = {0};
    char *folder = NULL;
    args_parse_main(&spec, argc, argv, &parsed);
    int status = cli_open(cli);
    if (status != CLI_EXIT_DONE) return status;
    int rc = cli_catch_signals(cli, &err);
    if (rc == 0) rc = cli_open_tokenizer(cli, &err);
    if (rc == 0) rc = cli_open_chat(cli, &err);
    if (rc == 0) cli_find_ends(cli);
    if (rc == 0) rc = cli_text_folder(cli, &folder, &err);
    if (rc == 0) rc = sampling_apply_checkpoint(folder, &chat.sampling, &err);
    if (rc == 0 && system) rc = chat_set_system(&chat.history, system, &err);
    if (rc == 0 && isatty(STDIN_FILENO) && isatty(STDERR_FILENO))
        rc = line_editor_open(cli, "> ", &chat.editor, &err);
    if (rc == 0 && chat.editor) greet(&chat);
    status = rc == 0 ? converse(&chat) : cli_fail(&err, false);
    line_editor_close(chat.editor);
    chat_free(&chat.history);
    cli_text_free(&chat.input);
    free(folder);
    return status;
}
