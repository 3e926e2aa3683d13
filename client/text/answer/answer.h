/* A model's answer as it comes, taken apart: what it thinks, what it says, the tools it calls.
 *
 * Called by the gateway and helm-cli with the answer's text in pieces of any size; tells its owner of each
 * part by events as soon as they are certain. The events are the same however the text is cut. Text that
 * could be the beginning of a call is held back until that is decided; what only looks like a call is text.
 * Once a call's name and the beginning of its arguments are known it is a call, and its arguments are told as
 * they come. Pure; bounded by the answer's own length. */
#pragma once

#include <jansson.h>

#include "client/text/answer/syntax.h"
#include "client/text/growing_text.h"

#define ANSWER_KEY_MAX   64 /* characters of a key in a grammar */
#define ANSWER_CALLS_MAX 64 /* of one answer; further ones are text */

enum answer_event {
    ANSWER_THOUGHT,   /* more of what it thinks */
    ANSWER_TEXT,      /* more of what it says */
    ANSWER_CALL,      /* a call begins: the data is its name */
    ANSWER_ARGUMENTS, /* more of the open call's arguments, which together are JSON text */
    ANSWER_CALL_END,  /* it is whole; without this event the answer ended in its middle */
};
typedef void answer_take(void *user, enum answer_event event, const char *data, size_t length);

struct answer_wish {
    const struct reasoning_tags *tags; /* NULL: nothing is taken for thinking */
    const struct call_syntax *calls;   /* NULL: nothing is taken for a call */
    const json_t *tools;               /* as the request lists them; borrowed */
    enum reasoning_at at;              /* where the prompt ended */
};

struct answer; /* opaque */

/* NULL: no memory. */
struct answer *answer_open(const struct answer_wish *wish, answer_take *take, void *user);
void answer_push(struct answer *answer, const char *data, size_t length);
/* The answer is over. */
void answer_finish(struct answer *answer);
/* Memory was short: parts are missing. */
bool answer_failed(const struct answer *answer);
/* The answer is thinking, as far as it was read. */
bool answer_is_thinking(const struct answer *answer);
/* It is between the markers of calls, also after a call's end. */
bool answer_is_calling(const struct answer *answer);
void answer_close(struct answer *answer); /* NULL is allowed */

/* Whether a tool of this name is among a request's, and whether some are strict: then only what a grammar
 * writes as a call is one. */
bool answer_has_tool(const json_t *tools, const char *name);
bool answer_any_strict(const json_t *tools);
/* Whether the tool's schema says that a parameter is a text and nothing else: syntaxes of parameters write it
 * bare then. */
bool answer_parameter_is_text(const json_t *tools, const char *tool, const char *key);
