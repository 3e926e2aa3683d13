/* Files of CURVE keys: the daemon's own secret one, and the public ones of clients that may connect.
 *
 * Called by client_socket.c. Owns the list. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/clients/curve.h"

struct curve_client_key {
    uint8_t key[CURVE_KEY];
    bool administers; /* the word "admin" follows it */
    bool names_users; /* the word "gateway" or "admin" does */
};

struct curve_keys {
    struct curve_client_key *client;
    uint32_t count;
};

/* One Z85 key, in a file that only its owner may read. */
HELM_MUST_CHECK int curve_keys_read_secret(const char *path, struct curve_server *server,
                                           struct helm_err *err);
/* One Z85 key a line, and perhaps the word "admin" or "gateway"; '#' starts a comment. */
HELM_MUST_CHECK int curve_keys_read_clients(const char *path, struct curve_keys *keys, struct helm_err *err);
void curve_keys_free(struct curve_keys *keys);
/* NULL: it is not among them. */
const struct curve_client_key *curve_keys_find(const struct curve_keys *keys, const uint8_t key[CURVE_KEY]);
