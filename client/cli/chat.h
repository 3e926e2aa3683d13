/* helm-cli chat: what its files share. command_chat.c reads messages and has them answered; chat_commands.c
 * does what begins with a slash; chat_history.c keeps the conversation, also in files. */
#pragma once

#include "client/cli/line_editor.h"
#include "client/cli/stream.h"

struct chat_history {
    struct helm_chat_message *messages; /* contents are ours; a system message is the first one */
    size_t count, space;
};

struct chat {
    struct cli *cli;
    struct sampling_options sampling;
    struct chat_history history;
    struct line_editor *editor; /* NULL: not a terminal */
    struct cli_text input;      /* without one: read and not yet used */
    bool end_of_input;
    struct stream_result last; /* of the last answer, without its arrays; finish NULL: there is none */
};

/* ---- chat_history.c ---- */

/* role: a string that lives as long as the program. */
HELM_MUST_CHECK int chat_remember(struct chat_history *history, const char *role, const char *text,
                                  size_t length, struct helm_err *err);
void chat_forget_last(struct chat_history *history);
/* All but the system message. */
void chat_clear(struct chat_history *history);
void chat_free(struct chat_history *history);
/* NULL: there is none. */
const char *chat_system(const struct chat_history *history);
/* NULL: from now on none. */
HELM_MUST_CHECK int chat_set_system(struct chat_history *history, const char *text, struct helm_err *err);
/* {"messages": [{"role", "content"}, ...]}, mode 0600; the file has its name when it is whole. */
HELM_MUST_CHECK int chat_save(const struct chat_history *history, const char *path, struct helm_err *err);
/* Reads what chat_save writes, or the list of messages alone; a failure leaves *history unchanged. */
HELM_MUST_CHECK int chat_load(struct chat_history *history, const char *path, struct helm_err *err);

/* ---- chat_commands.c ---- */

/* Whether this message is one: a slash and letters, alone or before a blank. */
bool chat_is_command(const char *text);
/* Does it, or says why not. false: the conversation ends. */
bool chat_command(struct chat *chat, char *text);
