/* Messages typed at a terminal: editing and history by libedit, whatever is pasted as one message.
 *
 * Called by the chat, on a terminal only. Until it is closed the terminal gives every byte at once, so that
 * no line is too long for it, and what is typed during an answer is there for the next line; a paste is held
 * aside and shown in the line as a word in brackets. Owns libedit's state and gives the terminal back as it
 * was. */
#pragma once

#include <stdbool.h>

#include "client/shared/cli.h"

struct line_editor;

HELM_MUST_CHECK int line_editor_open(struct cli *cli, const char *prompt, struct line_editor **editor,
                                     struct helm_err *err);
void line_editor_close(struct line_editor *editor); /* NULL: nothing */

enum { LINE_EDITOR_ERROR = -1000 }; /* no signal has this number */
/* The next message without its newline, malloc'd: 1. 0: end of input. The negative of a signal's number, for
 * which the line is forgotten; LINE_EDITOR_ERROR with *err. */
int line_editor_read(struct line_editor *editor, char **text, struct helm_err *err);
