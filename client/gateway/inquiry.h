/* The gateway's questions to helmd: a thread with a connection of its own asks them, so that a daemon that
 * does not answer holds up nothing in the loop. Called by the loop.
 *
 * An exchange whose route wants answers goes in and comes back with them. While helmd is silent, the last
 * answers serve, from memory and with their age. The thread asks for the status every second in any case:
 * /health never waits. It also makes the loop's connection anew, since that waits, too. */
#pragma once

#include <stdatomic.h>

#include "client/shared/cli.h"

#define INQUIRY_SILENT_US 3000000 /* a status of that age says nothing about now */

enum inquiry_question { INQUIRY_STATUS, INQUIRY_MODEL, INQUIRY_PLAN, INQUIRY_LIST, INQUIRY_QUESTIONS };
#define INQUIRY_WANTS(question) (1u << (question))

struct exchange;
struct inquiry; /* opaque */

/* An answer, kept until nobody uses it. */
struct inquiry_fact {
    atomic_uint users;
    uint64_t at_us;
    union {
        void *any;
        struct helm_status *status;
        struct helm_model_info *model;
        struct helm_plan_info *plan;
        struct helm_list *list;
    };
    char *shown;    /* of a plan: its JSON without the list of placements; NULL: it is no JSON */
    uint32_t slots; /* of a plan: sequences that decode together at most; 0: it does not say */
};

/* Connects with the options of `cli`, asks for the first time and starts the thread. */
HELM_MUST_CHECK int inquiry_open(const struct cli *cli, struct inquiry **out, struct helm_err *err);
/* Ends the thread after the question under way, a few seconds at most; clears *inquiry. */
void inquiry_close(struct inquiry **inquiry);
/* Readable when exchanges came back, or a connection was made. */
int inquiry_fd(const struct inquiry *inquiry);
/* exchange->facts of what its route wants: false: at once, since helmd is silent; true: the exchange comes
 * back. */
bool inquiry_push(struct inquiry *inquiry, struct exchange *exchange);
/* All that came back, linked by `job`. */
struct exchange *inquiry_take(struct inquiry *inquiry);
/* The newest answer, or NULL; inquiry_give_back it. */
struct inquiry_fact *inquiry_last(struct inquiry *inquiry, enum inquiry_question question);
void inquiry_give_back(struct inquiry_fact *fact); /* NULL is allowed */

/* The loop's connection is lost: the thread closes it and makes another one. */
void inquiry_reconnect(struct inquiry *inquiry, struct helm_client *lost);
/* That one and its model, which are the caller's then. NULL: not yet. */
struct helm_client *inquiry_take_client(struct inquiry *inquiry, struct helm_model_info **model);
