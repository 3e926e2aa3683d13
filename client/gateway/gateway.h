/* helm-gateway: what its files share.
 *
 *   main.c      options and start order            loop.c       the one poll loop, signals, time
 *   arrivals.c  connections that wait to be served
 *   health.c    /health for those while they are many
 *   peer.c      connections: places, hang-ups, limits of time
 *   server.c    libmicrohttpd: heads, bodies, answers
 *   framing.c   what libmicrohttpd reads, read strictly
 *   routes.c    the table of paths                 access.c     Host, Origin and API keys
 *   users.c     whose requests are, and shares     bodies.c     bodies while they come
 *   inquiry.c   the thread that asks helmd
 *   jobs.c      threads that read bodies           ask*.c       what a body asks for
 *   grammars.c  grammars that are kept             tool_grammar.c   calls of tools as one
 *   responses.c responses that are kept            ask_history.c    what goes on with them
 *   exchange.c  one request and its generations    choice.c    tokens to text and calls
 *   voice*.c    the dialects of answers            info*.c, metrics.c  what is known of model and daemon
 *
 * One thread runs everything that touches the daemon's connection or libmicrohttpd. Threads of jobs.c read
 * bodies only (JSON, chat template, tokenizer): long prompts do not hold up other clients' tokens. Everything
 * hangs on one struct gateway that main owns. */
#pragma once

#include "client/gateway/access.h"
#include "client/gateway/exchange.h"
#include "client/gateway/inquiry.h"
#include "client/gateway/metrics.h"
#include "client/gateway/peer.h"
#include "client/gateway/users.h"

#define GATEWAY_BODY_MAX    ((size_t)8 << 20) /* of one request */
#define GATEWAY_BACKLOG_MAX ((size_t)8 << 20) /* of one answer that its client does not fetch */
#define GATEWAY_DRAIN_US    10000000

struct jobs;
struct server;

struct gateway {
    struct cli cli; /* connection, private daemon, tokenizer, chat template */
    struct ask_model model;
    struct helm_vocabulary *vocabulary; /* of model */
    struct access access;
    struct server *server;
    struct peers peers;
    struct jobs *jobs;
    struct inquiry *inquiry;
    struct metrics metrics;
    LIST_HEAD(, exchange) exchanges;
    struct users users;
    bool names_users;    /* helmd is told whose a request is */
    uint64_t request_us; /* longest time of a request's receipt, and of fetching an answer that is over */
    int epoll_fd;
    bool draining;
    uint64_t drain_end_us;
    char *folder; /* of the daemon's model */
};

/* ---- loop.c ---- */

/* Until told to end; the exit status. */
int loop_run(struct gateway *gateway);
/* Watches a connection until its socket is closed. */
void loop_watch(struct gateway *gateway, struct peer *peer);
/* Whether new connections are waited for. */
void loop_listen(struct gateway *gateway, bool on);

/* Connected: whether helmd lets this gateway name its users. The log says so if it does not. */
void gateway_ask_users(struct gateway *gateway);
/* Whom a request is for, as helmd is told; NULL: the gateway itself. */
const char *gateway_user(const struct exchange *exchange);

/* ---- info.c ---- */

/* Tokenizer, chat template and defaults of the daemon's model. Prints nothing. */
HELM_MUST_CHECK int info_open_model(struct gateway *gateway, const char *name, struct helm_err *err);
/* pooling.c: how the files at `path` pool embeddings, into model->pooling or ->pooling_why; unchanged where
 * they say nothing. */
HELM_MUST_CHECK int info_read_pooling(struct ask_model *model, const char *path, struct helm_err *err);
/* Whether a request would be taken now, as JSON, and the status. From memory: the inquiry's thread asks every
 * second. */
int info_write_health(struct gateway *gateway, struct cli_text *out);
/* The connection was made anew: HELM_E_MISMATCH where another model is served now. */
HELM_MUST_CHECK int info_check_model(struct gateway *gateway, const struct helm_model_info *info,
                                     struct helm_err *err);
