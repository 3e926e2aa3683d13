/* HTTP by libmicrohttpd, run by the loop: headers, bodies in, answers out. Connections are peer.c's.
 *
 * libmicrohttpd has no thread of its own here. While an answer is not known or has nothing new, its
 * connection is suspended. An answer that is over must be fetched within gateway->request_us. */
#pragma once

#include "client/gateway/gateway.h"

/* Takes "HOST:PORT" (HOST an address or localhost; port 0: any), before what takes long; no client can
 * connect yet. */
HELM_MUST_CHECK int server_bind(struct gateway *gateway, const char *listen, struct helm_err *err);
/* Listens there, and writes where that is to at[]. */
HELM_MUST_CHECK int server_open(struct gateway *gateway, const char *listen, char at[128],
                                struct helm_err *err);
/* To be watched for reading. */
int server_fd(const struct server *server);
/* A connection that is to be served. */
void server_admit(struct gateway *gateway, struct peer *peer);
/* Does what there is to do. Returns in how many ms it wants to be called again at the latest. */
int server_run(struct gateway *gateway);
/* Once a second: ends answers that are not fetched, breaks silences. */
void server_tick(struct gateway *gateway);
/* No new connections. */
void server_quiesce(struct gateway *gateway);
/* A part of an exchange's query, as in ?limit=2; NULL: it is missing. */
const char *server_query(const struct exchange *exchange, const char *name);
/* Ends what is open; the threads of jobs.c have ended. */
void server_close(struct gateway *gateway);
