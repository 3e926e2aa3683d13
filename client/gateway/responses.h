/* Responses of /v1/responses that are kept, with the items of their conversations, in bounded memory.
 *
 * Threads that read bodies find what a request goes on with; the loop adds answers, shows them and forgets
 * them. An owner is a user of the gateway: no one finds what another owns. If all of them together exceed the
 * bound, the owner of the most bytes loses its oldest response; so a user within its share loses nothing to
 * others. A response that another one goes on with keeps its items until that one goes, too. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/base/err.h"

#define RESPONSES_ID 48 /* "resp_" and the id of a request */

struct responses; /* opaque */
struct response;  /* opaque; what it holds does not change */

/* A piece of a conversation: JSON text, and the id in it. */
struct response_item {
    char *id, *text;
};

/* Items, the request's and then the answer's. */
struct response_items {
    struct response_item *item; /* [count] */
    size_t count, space, said;  /* said: how many of them are the request's */
};

/* Copies. false: no memory, nothing was added. */
bool response_items_add(struct response_items *items, const char *id, const char *text, size_t length);
void response_items_free(struct response_items *items);

/* `bytes`: the bound; 0 keeps none. */
HELM_MUST_CHECK int responses_open(size_t bytes, struct responses **out, struct helm_err *err);
/* No response may be held. NULL is allowed. */
void responses_close(struct responses *responses);
bool responses_keep_any(const struct responses *responses);

/* An owner's response of this id, held until it is given back; NULL: there is none. */
struct response *responses_find(struct responses *responses, const char *owner, const char *id);
/* NULL is allowed. */
void responses_give_back(struct response *response);
/* A copy of the text of an owner's item; NULL: there is none, or no memory. */
char *responses_copy_item(struct responses *responses, const char *owner, const char *id);
/* false: there is none of this id. */
bool responses_forget(struct responses *responses, const char *owner, const char *id);

struct response_new {
    const char *owner, *id;
    struct response *before;      /* the one that it goes on with, held and taken over; NULL: none */
    struct response_items *items; /* taken over */
    const char *text;             /* the answer, copied */
    size_t length;
};
/* Keeps one, and lets go what exceeds the bound. One that exceeds it alone, or for which there is no memory,
 * is not kept. */
void responses_add(struct responses *responses, const struct response_new *new);

/* Text and items of a response that the caller holds. */
const char *response_text(const struct response *response, size_t *length);
const struct response_items *response_items(const struct response *response);
/* The one that it goes on with; NULL: none. Held as long as this one. */
const struct response *response_before(const struct response *response);
