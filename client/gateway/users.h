/* The gateway's users, and what each may take of it: the owners of API keys, or addresses where there are no
 * keys.
 *
 * A user is in the table while a request of it is open. Called by server.c and exchange.c in the loop; the
 * queue of bodies to be read is called by jobs.c, under its lock. Owns the table. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/gateway/exchange.h"
#include "common/base/err.h"

#define USERS_NAME            64                  /* with the byte after the last */
#define USERS_BODIES_MAX      ((size_t)128 << 20) /* bytes of all bodies that are being received or read */
#define USERS_BODIES_OF_ONE   (USERS_BODIES_MAX / 2)
#define USERS_GENERATIONS_MAX 1000 /* open at helmd, of all users; libhelm has some more, for questions */

struct user {
    struct user *next;
    char name[USERS_NAME]; /* for helmd and `helm-cli ps`; no secret */
    uint32_t requests;     /* that are open */
    size_t body_bytes;
    uint32_t generations; /* open at helmd */
    /* the queue's: its bodies that wait, those that threads read now, and the place among users that have
     * any */
    struct exchange_list waiting;
    uint32_t reading;
    TAILQ_ENTRY(user) turn;
};

struct users {
    struct user *first;
    size_t body_bytes; /* of all */
    uint32_t generations;
};

/* The user of this name, with a request more; NULL: no memory. */
struct user *users_enter(struct users *users, const char *name);
/* One of its requests is over. NULL is allowed. */
void users_leave(struct users *users, struct user *user);
/* The name of a user without a key: the address, or the /64 network of an IPv6 one, since a host has all of
 * that. */
/* An address as an IPv6 one, in network order, becomes that of its network: /64 of IPv6, all of IPv4
 * (mapped). True: IPv4. */
bool users_network_of(unsigned char address[16]);
void users_name_address(const char *address, char name[USERS_NAME]);

/* `bytes` more (or fewer) of its bodies are held. */
void users_add_body(struct users *users, struct user *user, size_t bytes);
void users_drop_body(struct users *users, struct user *user, size_t bytes);
/* The one whose bodies are largest; NULL: there are none. */
struct user *users_largest(const struct users *users);

/* Whether the user may open `more` generations. HELM_E_BUSY: all places are taken, or its share of them. */
HELM_MUST_CHECK int users_check_generations(const struct users *users, const struct user *user, uint32_t more,
                                            struct helm_err *err);
void users_open_generation(struct users *users, struct user *user);
void users_close_generation(struct users *users, struct user *user);

/* Bodies to be read: users take turns, each with its oldest one, and at most `at_once` of a user are read at
 * once. */
struct users_queue {
    TAILQ_HEAD(, user) turns; /* those that have bodies waiting */
    uint32_t at_once;
};
void users_queue_open(struct users_queue *queue, uint32_t at_once);
void users_queue_push(struct users_queue *queue, struct exchange *exchange);
/* The next one; NULL: none may be read now. */
struct exchange *users_queue_take(struct users_queue *queue);
/* Takes one out that waits; false: it does not. */
bool users_queue_remove(struct users_queue *queue, struct exchange *exchange);
/* A body that was taken is read. */
void users_queue_done(struct user *user);
