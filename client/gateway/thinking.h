/* The thinking part of an answer, apart from what is said: text in as it comes, two texts out.
 *
 * Called by choice.c for conversations. An answer thinks if it begins with <think>, or if its prompt ended with that; it is
 * thinking until </think>. White space around the part belongs to neither. Pure. */
#ifndef HELM_CLIENT_GATEWAY_THINKING_H
#define HELM_CLIENT_GATEWAY_THINKING_H

#include "client/shared/cli.h"

enum thinking_state { THINKING_BEGIN, THINKING_INSIDE, THINKING_BEHIND, THINKING_OVER };

struct thinking {
    enum thinking_state state;
    struct cli_text held;     /* what may be the beginning of a tag, or white space before one */
    struct cli_text *thought; /* where the thinking goes */
};

/* Takes more of the answer; what is said of it is appended to *said. */
void thinking_push(struct thinking *thinking, const char *data, size_t length, struct cli_text *said);
/* The answer is over. */
void thinking_finish(struct thinking *thinking, struct cli_text *said);

#endif
