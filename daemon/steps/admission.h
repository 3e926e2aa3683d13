/* Admission control: who may queue another request, and in which order those that wait get slots.
 *
 * Called by batcher.c, which tells it of every request that opens or closes. Owns the table of clients with
 * open requests. Rules:
 *   1. No more requests are open than there are slots and places in the queue.
 *   2. While the queue is at most half full anybody may take a place. Beyond that no client may hold more
 *      than its share: all places, shared by the clients that have requests open.
 *   3. The last eighth of the queue is shared as if there were one client more, so that one client alone
 *      cannot keep out whoever comes next. */
#ifndef HELM_DAEMON_STEPS_ADMISSION_H
#define HELM_DAEMON_STEPS_ADMISSION_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

struct admission_client {
    uint64_t client;
    uint32_t open;                /* its requests; 0: a free entry */
    uint32_t running, head, tail; /* within admission_ends_before: with a slot; first and last that waits */
};

struct admission {
    uint32_t slots, queue_limit;
    uint32_t open, clients;          /* requests, and clients that have any */
    struct admission_client *client; /* [slots + queue_limit] */
    uint32_t used;                   /* entries that were ever used lie below */
    uint32_t *next;                  /* [slots + queue_limit], within admission_ends_before */
};

/* One open request, as admission_ends_before is shown it. */
struct admission_request {
    uint32_t entry; /* its client's */
    bool running;   /* has a slot */
};

HELM_MUST_CHECK int admission_init(struct admission *admission, uint32_t slots, uint32_t queue_limit,
                                   struct helm_err *err);
void admission_free(struct admission *admission);

/* May this client open one more request? HELM_E_BUSY, and why, if not. */
HELM_MUST_CHECK int admission_check(const struct admission *admission, uint64_t client, struct helm_err *err);
/* A request opens, which admission_check allowed: its client's entry, for admission_leave and
 * admission_request. */
uint32_t admission_enter(struct admission *admission, uint64_t client);
void admission_leave(struct admission *admission, uint32_t entry);

/* How many requests must end before list[at] gets a slot, as scheduler.h shares these out, if those that run
 * end in their order here, then the others in the order in which they get slots; 0: it has one, or gets one
 * in the next step if there are pages. `list`: all open requests that have not ended, oldest first. */
uint32_t admission_ends_before(struct admission *admission, const struct admission_request *list,
                               uint32_t count, uint32_t at);

#endif
