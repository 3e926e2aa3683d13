/* Where clients connect: listening sockets, and the identity of a connected client.
 *
 * Called by client_socket.c and, before what takes long, by main.c. Owns nothing: descriptors are the
 * caller's. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/base/args.h"
#include "common/base/err.h"

#define ENDPOINT_NO_GROUP UINT32_MAX

/* The owner of a connection. */
struct endpoint_peer {
    uint64_t number; /* the same of all connections of one user, or of one key; 0: not known yet */
    bool administers;
    bool names_users; /* may say for which of its users it asks: a gateway */
};

/* Groups whose members have rights; ENDPOINT_NO_GROUP: nobody. */
struct endpoint_groups {
    uint32_t administer, name_users;
};

/* "ipc:///PATH" (mode 0660 from the first moment on) or "tcp://ADDRESS:PORT": *fd listens there, without
 * blocking. */
HELM_MUST_CHECK int endpoint_listen(const char *endpoint, int *fd, struct helm_err *err);
bool endpoint_is_tcp(const char *endpoint);

/* Whether the endpoints of --listen (none: the default one in `rundir`, NULL: the default) are well formed
 * and nothing listens there. Keeps nothing: endpoint_listen may still fail. HELM_E_USAGE, HELM_E_BUSY,
 * HELM_E_IO. */
HELM_MUST_CHECK int endpoint_check_free(const char *rundir, const struct args_list *endpoints,
                                        struct helm_err *err);

/* The next connection that waits, without blocking; -1 and errno. */
int endpoint_accept(int fd, bool tcp);
/* The user of a local connection, as the kernel knows it. Root, the daemon's own user and the members of one
 * group administer. They and the members of the other group name users. */
struct endpoint_peer endpoint_user(int fd, const struct endpoint_groups *groups);
/* The number of a CURVE key: its first bytes. No user of the machine has such a number. */
uint64_t endpoint_key(const uint8_t *key);
/* The number of a user that `peer` named. It depends on `secret`, so that no name can be made to fit
 * another's number. */
#define ENDPOINT_SECRET 16
uint64_t endpoint_named(uint64_t peer, const char *name, const uint8_t secret[ENDPOINT_SECRET]);
