/* CurveZMQ, the server's half of it (https://rfc.zeromq.org/spec/26), with libsodium's boxes.
 *
 * Called by zmtp.c for endpoints on TCP. Owns the keys of one connection; allocates nothing. Every function
 * that takes bytes from outside checks their sizes first; HELM_E_FORMAT, and why, where they are not what the
 * protocol has. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

#define CURVE_KEY        32
#define CURVE_WELCOME    168
#define CURVE_READY_MAX  128
#define CURVE_OVERHEAD   33 /* bytes of a sealed part beside its own: name, nonce, authenticator, flags */
#define CURVE_FLAG_MORE  1
#define CURVE_FLAG_ORDER 2 /* a command in place of a message's part */

/* The daemon's long-term pair. */
struct curve_server {
    uint8_t secret[CURVE_KEY], public[CURVE_KEY];
};

/* One connection. Zeroed before curve_hello. */
struct curve_session {
    uint8_t client[CURVE_KEY]; /* its long-term public key, once curve_initiate has said that it is its own */
    uint8_t client_short[CURVE_KEY];
    uint8_t short_secret[CURVE_KEY], short_public[CURVE_KEY];
    uint8_t cookie_key[CURVE_KEY];
    uint8_t shared[CURVE_KEY];
    uint64_t sent, received; /* nonces */
};

/* Once a process, before anything else here. */
HELM_MUST_CHECK int curve_init(struct helm_err *err);

/* The client's HELLO; writes the WELCOME that answers it. */
HELM_MUST_CHECK int curve_hello(struct curve_session *session, const struct curve_server *server,
                                const uint8_t *data, size_t size, uint8_t welcome[CURVE_WELCOME],
                                struct helm_err *err);
/* The client's INITIATE, opened in `data`: session->client is known then, and metadata lies in `data`. */
HELM_MUST_CHECK int curve_initiate(struct curve_session *session, const struct curve_server *server,
                                   uint8_t *data, size_t size, const uint8_t **metadata,
                                   size_t *metadata_size, struct helm_err *err);
/* READY with this metadata, at most 64 bytes; returns its size. */
size_t curve_ready(struct curve_session *session, const uint8_t *metadata, size_t size,
                   uint8_t ready[CURVE_READY_MAX]);

/* A MESSAGE from the client, opened in `data`. */
HELM_MUST_CHECK int curve_open(struct curve_session *session, uint8_t *data, size_t size, uint8_t *flags,
                               uint8_t **plain, size_t *plain_size, struct helm_err *err);
/* A MESSAGE to the client: `size` + CURVE_OVERHEAD bytes at `to`. */
void curve_seal(struct curve_session *session, uint8_t flags, const uint8_t *data, size_t size, uint8_t *to);
