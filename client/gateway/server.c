/* HTTP by libmicrohttpd. See server.h. Owns connections and exchanges; gives each exchange back when
 * libmicrohttpd is through with it. */
#include "client/gateway/server.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/gateway/arrivals.h"
#include "client/gateway/framing.h"
#include "client/gateway/jobs.h"
#include "client/gateway/listen.h"
#include "client/gateway/routes.h"
#include "common/base/log.h"
#include "common/base/units.h"

#define HEADER_BYTES ((size_t)64 << 10) /* of a connection: headers in, a piece of the answer out */
#define TICK_MS      1000
#define SILENCE_US   10000000

struct server {
    struct MHD_Daemon *http;
    int fd; /* libmicrohttpd's epoll */
};

/* ---- answers ---------------------------------------------------------------------------------------- */

void exchange_wake(struct exchange *ex)
{
    if (ex->over && !ex->over_us) ex->over_us = units_now_us();
    if (!ex->suspended) return;
    ex->suspended = false;
    MHD_resume_connection(ex->connection);
}

static void suspend(struct exchange *ex)
{
    ex->suspended = true;
    MHD_suspend_connection(ex->connection);
}

/* libmicrohttpd wants more of a stream. */
static ssize_t read_stream(void *cls, uint64_t pos, char *to, size_t space)
{
    struct exchange *ex = cls;
    const size_t left = ex->out.length - ex->sent;
    (void)pos;
    if (ex->dropped || ex->out.failed) return MHD_CONTENT_READER_END_WITH_ERROR;
    if (left == 0 && ex->over) return MHD_CONTENT_READER_END_OF_STREAM;
    if (left == 0 && ex->writes) {
        ex->state = EXCHANGE_WORK;
        suspend(ex);
        jobs_push(ex->gateway->jobs, ex);
        return 0;
    }
    if (left == 0) {
        suspend(ex);
        return 0;
    }
    if (ex->unread_us)
        metrics_observe(&ex->gateway->metrics.handover, (double)(units_now_us() - ex->unread_us) * 1e-6);
    ex->unread_us = 0;
    ex->spoke_us = units_now_us();
    const size_t count = left < space ? left : space;
    memcpy(to, ex->out.data + ex->sent, count);
    ex->sent += count;
    if (ex->sent > ex->out.length / 2) { /* sent bytes make room */
        ex->out.length -= ex->sent;
        memmove(ex->out.data, ex->out.data + ex->sent, ex->out.length + 1);
        ex->sent = 0;
    }
    return (ssize_t)count;
}

static const char *header(struct exchange *ex, const char *name)
{
    return MHD_lookup_connection_value(ex->connection, MHD_HEADER_KIND, name);
}

static void add_header(struct MHD_Response *response, const char *name, const char *value)
{
    if (MHD_add_response_header(response, name, value) != MHD_YES) log_debug("header %s: not added", name);
}

/* Tells a browser that the page of another site may read the answer, and what it may send. */
static void allow_origin(struct exchange *ex, struct MHD_Response *response)
{
    const char *origin = header(ex, MHD_HTTP_HEADER_ORIGIN);
    if (ex->gateway->access.origins->count) add_header(response, "Vary", MHD_HTTP_HEADER_ORIGIN);
    if (!access_origin_listed(&ex->gateway->access, origin)) return;
    add_header(response, "Access-Control-Allow-Origin", origin);
    add_header(response, "Access-Control-Expose-Headers", "x-request-id, x-helm-ignored, retry-after");
    if (ex->route != &route_preflight) return;
    const char *headers = header(ex, "Access-Control-Request-Headers");
    add_header(response, "Access-Control-Allow-Methods", ex->allow);
    add_header(response, "Access-Control-Allow-Headers", headers ? headers : "");
    add_header(response, "Access-Control-Max-Age", "600");
}

static enum MHD_Result queue_answer(struct exchange *ex)
{
    struct MHD_Response *response = NULL;
    if (ex->dropped || ex->out.failed) return MHD_NO; /* closes the connection */
    if (ex->streams) {
        response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, read_stream, ex, NULL);
    } else {
        response = MHD_create_response_from_buffer(ex->out.length, ex->out.data, MHD_RESPMEM_MUST_FREE);
        if (response) ex->out = (struct cli_text){0};
    }
    if (!response) return MHD_NO;
    add_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, ex->type);
    add_header(response, "x-request-id", ex->id);
    add_header(response, "X-Content-Type-Options", "nosniff");
    add_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    if (*ex->ask.ignored) add_header(response, "x-helm-ignored", ex->ask.ignored);
    if (*ex->allow) add_header(response, MHD_HTTP_HEADER_ALLOW, ex->allow);
    allow_origin(ex, response);
    if (ex->closes) add_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    if (ex->streams) add_header(response, "X-Accel-Buffering", "no"); /* nginx hands pieces on as they come */
    if (ex->status == 401) add_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (ex->status == 429 || ex->status == 503) add_header(response, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    if (strcmp(ex->type, "text/html; charset=utf-8") == 0)
        add_header(
            response, "Content-Security-Policy",
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for "
            "'script'");
    const enum MHD_Result result = MHD_queue_response(ex->connection, (unsigned)ex->status, response);
    MHD_destroy_response(response);
    ex->queued = result == MHD_YES;
    return result;
}

/* ---- requests --------------------------------------------------------------------------------------- */

static void make_id(char id[33])
{
    unsigned char bytes[16];
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) { /* no name of a request is a secret */
        const uint64_t now = units_now_ns();
        memcpy(bytes, &now, sizeof now);
        memcpy(bytes + sizeof now, &now, sizeof now);
    }
    for (size_t i = 0; i < sizeof bytes; i++) sprintf(id + 2 * i, "%02x", bytes[i]);
}

static struct peer *peer_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

/* Enters the request's user: the key's owner, or the address where there are no keys. */
static bool enter_user(struct exchange *ex)
{
    char address[USERS_NAME];
    const char *user =
        access_user(&ex->gateway->access, header(ex, MHD_HTTP_HEADER_AUTHORIZATION), header(ex, "x-api-key"));
    snprintf(ex->user, sizeof ex->user, "%s", user ? user : "");
    users_name_address(ex->peer->address, address);
    ex->whose = users_enter(&ex->gateway->users, user ? user : address);
    return ex->whose != NULL;
}

/* The headers are there: whether the request is one, and is allowed. */
static void look_at_headers(struct exchange *ex, const char *url, const char *method)
{
    struct gateway *g = ex->gateway;
    const char *host = header(ex, MHD_HTTP_HEADER_HOST), *origin = header(ex, MHD_HTTP_HEADER_ORIGIN);
    const char *length = header(ex, MHD_HTTP_HEADER_CONTENT_LENGTH);
    const char *named;
    const struct route *route = routes_find(method, url, &named, ex->allow);
    const bool known = *ex->allow, listed = access_origin_listed(&g->access, origin);
    if (!route && known && listed && strcmp(method, MHD_HTTP_METHOD_OPTIONS) == 0) route = &route_preflight;
    if (route && route != &route_preflight) *ex->allow = 0;
    ex->route = route ? route : routes_stranger(url);
    snprintf(ex->named, sizeof ex->named, "%s", named);
    if (ex->peer->reserved && (!route || !route->reserve)) {
        g->peers.refused++;
        refuse(&ex->refusal, 503, "no_place", NULL,
               "no connection is free: %u of %u are taken, %u of them by %s, which may have %u",
               g->peers.places, g->peers.places_max, ex->peer->from->places, ex->peer->address,
               g->peers.address_max);
        return;
    }
    if (!access_host_allowed(&g->access, host)) {
        refuse(&ex->refusal, 403, "host_not_allowed", "Host",
               "the Host header '%.100s' is none of this gateway's: an IP address, localhost or a name given "
               "with --host",
               host ? host : "");
        return;
    }
    if (!listed && !access_origin_allowed(origin, host)) {
        refuse(
            &ex->refusal, 403, "origin_not_allowed", "Origin",
            "pages of other sites ('%.100s') may not ask this gateway: --allow-origin names those that may",
            origin);
        return;
    }
    if (!route) {
        refuse(&ex->refusal, known ? 405 : 404, known ? "method_not_allowed" : "unknown_url", NULL,
               known ? "%.100s has another method than %.20s" : "there is no %.100s here (%.20s)", url,
               method);
        return;
    }
    const char *name =
        route->open ? "" : access_key_name(&g->access, header(ex, MHD_HTTP_HEADER_AUTHORIZATION));
    if (!name) name = access_name_of(&g->access, header(ex, "x-api-key")); /* Anthropic's */
    if (!name) {
        g->metrics.refused_keys++;
        ex->peer->keyed = false;
        refuse(&ex->refusal, 401, "invalid_api_key", NULL,
               "this gateway wants an API key: Authorization: Bearer KEY, or x-api-key: KEY");
        return;
    }
    if (!route->open) ex->peer->keyed = g->access.file != NULL;
    if (!enter_user(ex)) {
        refuse(&ex->refusal, 503, "server_busy", NULL, "no memory for the request");
        return;
    }
    if (route->unsupported)
        refuse(&ex->refusal, 501, "unsupported", NULL, "%s is not supported by HELM's gateway: %s",
               route->path, route->unsupported);
    else if (length && strtoull(length, NULL, 10) > GATEWAY_BODY_MAX)
        refuse(&ex->refusal, 413, "body_too_large", NULL, "a body of %.20s bytes exceeds the limit of %zu",
               length, GATEWAY_BODY_MAX);
    else if (g->draining)
        refuse(&ex->refusal, 503, "shutting_down", NULL, "this gateway is going down");
}

static struct exchange *begin(struct gateway *g, struct MHD_Connection *connection)
{
    struct exchange *ex = calloc(1, sizeof *ex);
    if (!ex) return NULL;
    ex->gateway = g;
    ex->connection = connection;
    ex->peer = peer_of(connection);
    ex->route = routes_stranger("");
    ex->begin_us = units_now_us();
    ex->created = time(NULL);
    make_id(ex->id);
    LIST_INSERT_HEAD(&g->exchanges, ex, link);
    return ex;
}

/* The whole request is there. */
static void dispatch(struct exchange *ex)
{
    ex->peer->since_us = 0;
    if (ex->refusal.status) {
        exchange_refuse(ex);
    } else if (ex->route->reply && !ex->route->wants) {
        ex->route->reply(ex);
    } else {
        ex->state = EXCHANGE_WORK;
        suspend(ex);
        if (!ex->route->wants || !inquiry_push(ex->gateway->inquiry, ex)) exchange_informed(ex);
    }
}

static enum MHD_Result handle(void *cls, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *data, size_t *data_size,
                              void **request)
{
    struct gateway *g = cls;
    struct exchange *ex = *request;
    (void)version; /* framing.c knows it */
    if (!ex) {
        *request = ex = begin(g, connection);
        if (!ex || !ex->peer) return MHD_NO;
        ex->peer->exchange = ex;
        ex->peer->head_us = 0;
        ex->peer->heard_us = ex->begin_us;
        ex->peer->framing.begun++;
        const char *fault = framing_fault(&ex->peer->framing);
        const char *path = framing_path(url, header(ex, MHD_HTTP_HEADER_HOST));
        if (!fault && !path) fault = "the target has another host than the header Host";
        if (fault)
            refuse(&ex->refusal, 400, "bad_request", NULL, "%s", fault);
        else
            look_at_headers(ex, path, method);
        /* a body that cannot be received is refused at once, and the connection closed after the answer */
        const bool at_once = fault || ex->refusal.status == 413 || (ex->peer->reserved && ex->refusal.status);
        ex->closes = at_once || ex->peer->reserved;
        if (at_once) {
            ex->peer->since_us = 0;
            exchange_refuse(ex);
            return queue_answer(ex);
        }
        return MHD_YES;
    }
    if (*data_size) {
        bodies_take(ex, data, *data_size);
        *data_size = 0;
        return MHD_YES;
    }
    const char *fault = framing_fault(&ex->peer->framing);
    if (fault && ex->state == EXCHANGE_BODY) {
        refuse(&ex->refusal, 400, "bad_request", NULL, "%s", fault);
        ex->closes = true;
    }
    if (ex->state == EXCHANGE_BODY && arrivals_may_go(g, ex)) dispatch(ex);
    if (ex->state != EXCHANGE_ANSWER) {
        if (!ex->suspended) suspend(ex);
        return MHD_YES;
    }
    return ex->queued ? MHD_YES : queue_answer(ex);
}

static void log_request(const struct exchange *ex)
{
    const double ms = (double)(units_now_us() - ex->begin_us) * 1e-3;
    char generated[128] = "", first[32] = "";
    if (ex->first_us)
        snprintf(first, sizeof first, ", first token after %.1f ms",
                 (double)(ex->first_us - ex->begin_us) * 1e-3);
    if (ex->choice_count)
        snprintf(generated, sizeof generated, ", %u + %u tokens%s", voice_prompt_tokens(ex),
                 voice_completion_tokens(ex), first);
    log_info("%.8s %s%s%s %s %s: %d%s%s%s, %.1f ms", ex->id, ex->peer ? ex->peer->address : "",
             *ex->user ? " " : "", ex->user, ex->route->method, ex->route->path, ex->queued ? ex->status : 0,
             ex->refusal.status && *ex->refusal.code ? " " : "",
             ex->refusal.status ? ex->refusal.code
             : ex->dropped      ? " client gone"
                                : "",
             generated, ms);
}

static void completed(void *cls, struct MHD_Connection *connection, void **request,
                      enum MHD_RequestTerminationCode how)
{
    struct gateway *g = cls;
    struct exchange *ex = *request;
    (void)connection;
    if (!ex) return;
    bool open = false;
    for (uint32_t i = 0; i < ex->choice_count; i++) open |= ex->choices[i].number != 0;
    if (how == MHD_REQUEST_TERMINATED_TIMEOUT_REACHED && ex->queued && !ex->dropped)
        g->metrics.slow_dropped++; /* it stopped reading */
    else if (how != MHD_REQUEST_TERMINATED_COMPLETED_OK && open && !ex->dropped)
        g->metrics.cancelled++;
    g->metrics.requests[routes_row(ex->route)][ex->queued ? ex->status / 100 : 0]++;
    log_request(ex);
    if (ex->peer) peer_waits(ex->peer);
    LIST_REMOVE(ex, link);
    exchange_free(ex);
    *request = NULL;
}

/* ---- connections ------------------------------------------------------------------------------------ */

static void connection_changed(void *cls, struct MHD_Connection *connection, void **context,
                               enum MHD_ConnectionNotificationCode code)
{
    struct gateway *g = cls;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        *context =
            info ? peers_started(&g->peers, info->connect_fd) : NULL; /* NULL: its requests are refused */
    } else if (*context) {
        peer_closed(g, *context);
        *context = NULL;
    }
}

void server_admit(struct gateway *g, struct peer *peer)
{
    peer_admit(g, g->server->http, peer);
}

/* A long prompt, or a call that is being written: clients and proxies end a stream without data after a
 * minute. */
static void break_silence(struct exchange *ex, uint64_t now)
{
    const char *text = ex->route->voice ? ex->route->voice->silence : NULL;
    const bool speaks = ex->streams && ex->state == EXCHANGE_ANSWER && !ex->over && !ex->dropped &&
                        ex->out.length == ex->sent;
    if (!text || !speaks || now - ex->spoke_us < SILENCE_US) return;
    cli_text_add(&ex->out, text, strlen(text));
    exchange_wake(ex);
}

void server_tick(struct gateway *g)
{
    const uint64_t now = units_now_us();
    for (struct exchange *ex = LIST_FIRST(&g->exchanges); ex; ex = LIST_NEXT(ex, link))
        break_silence(ex, now);
    for (struct exchange *ex = LIST_FIRST(&g->exchanges); ex; ex = LIST_NEXT(ex, link))
        if (ex->over_us && ex->state != EXCHANGE_WORK && !ex->dropped && now - ex->over_us > g->request_us) {
            g->metrics.slow_dropped++;
            exchange_drop(ex, "the client does not fetch its answer");
            peer_end(g, ex->peer);
        }
}

static void say(void *cls, const char *fmt, va_list ap)
{
    char text[512];
    (void)cls;
    const int n = vsnprintf(text, sizeof text, fmt, ap);
    for (int i = 0; i < n && i < (int)sizeof text; i++)
        if ((unsigned char)text[i] < 32) text[i] = ' ';
    log_debug("http: %s", text);
}

/* ---- opening ---------------------------------------------------------------------------------------- */

int server_bind(struct gateway *g, const char *listen_at, struct helm_err *err)
{
    g->server = calloc(1, sizeof *g->server);
    if (!g->server) return helm_fail(err, HELM_E_NOMEM, "no memory for the server");
    return listen_bind(listen_at, &g->peers.listen_fd, err);
}

int server_open(struct gateway *g, const char *listen_at, char at[128], struct helm_err *err)
{
    const unsigned connections = g->peers.places_max + PEERS_RESERVED + PEERS_LEAVING;
    struct server *server = g->server;
    const int rc = listen_start(listen_at, g->peers.listen_fd, at, err);
    if (rc < 0) return rc;
    server->http =
        MHD_start_daemon(MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_NO_LISTEN_SOCKET |
                             MHD_USE_ERROR_LOG,
                         0, NULL, NULL, handle, g, MHD_OPTION_EXTERNAL_LOGGER, say, NULL,
                         MHD_OPTION_CONNECTION_LIMIT, connections, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                         HEADER_BYTES, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)(g->request_us / 1000000),
                         MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_NOTIFY_COMPLETED, completed, g,
                         MHD_OPTION_NOTIFY_CONNECTION, connection_changed, g,
                         MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_END);
    const union MHD_DaemonInfo *info =
        server->http ? MHD_get_daemon_info(server->http, MHD_DAEMON_INFO_EPOLL_FD) : NULL;
    if (!info) return helm_fail(err, HELM_E_IO, "libmicrohttpd does not start");
    server->fd = info->epoll_fd;
    return 0;
}

const char *server_query(const struct exchange *ex, const char *name)
{
    return MHD_lookup_connection_value(ex->connection, MHD_GET_ARGUMENT_KIND, name);
}

int server_fd(const struct server *server)
{
    return server->fd;
}

int server_run(struct gateway *g)
{
    unsigned long long left = TICK_MS;
    framing_reads(true);
    if (MHD_run(g->server->http) != MHD_YES) log_debug("http: MHD_run failed");
    framing_reads(false);
    peers_settle(g);
    if (MHD_get_timeout(g->server->http, &left) != MHD_YES || left > TICK_MS) left = TICK_MS;
    return (int)left;
}

void server_quiesce(struct gateway *g)
{
    if (g->peers.listen_fd >= 0) close(g->peers.listen_fd);
    g->peers.listen_fd = -1;
}

void server_close(struct gateway *g)
{
    struct server *server = g->server;
    if (!server) return;
    server_quiesce(g);
    arrivals_close(g);
    if (server->http) {
        for (struct exchange *ex = LIST_FIRST(&g->exchanges); ex; ex = LIST_NEXT(ex, link))
            exchange_drop(ex, "the gateway ends");
        for (int i = 0; i < 3; i++) (void)server_run(g); /* suspended connections end */
        MHD_stop_daemon(server->http);
    }
    g->server = NULL;
    free(server);
}
