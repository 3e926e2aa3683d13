/* The gateway's one poll loop. See gateway.h.
 *
 * Order of a turn: what came from the daemon, from the threads and of clients that went away only writes and
 * wakes; libmicrohttpd runs after that and is the only one that gives exchanges back, so that none disappears
 * under an event. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <systemd/sd-daemon.h>

#include "client/shared/private_daemon.h"
#include "client/gateway/arrivals.h"
#include "client/gateway/gateway.h"
#include "client/gateway/jobs.h"
#include "client/gateway/server.h"
#include "common/base/log.h"
#include "common/base/units.h"

#define EVENTS  256
#define TICK_US 1000000

/* Sources of epoll's events. An event of a peer has its pointer, which is larger than any of these. */
enum source {
    SOURCE_SERVER = 1,
    SOURCE_LISTEN,
    SOURCE_DAEMON,
    SOURCE_SIGNAL,
    SOURCE_JOBS,
    SOURCE_INQUIRY,
    SOURCES
};

static int watch(struct gateway *g, int fd, enum source source, struct helm_err *err)
{
    struct epoll_event event = {.events = EPOLLIN, .data = {.u64 = source}};
    return epoll_ctl(g->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 ? helm_fail_errno(err, "epoll_ctl") : 0;
}

void loop_watch(struct gateway *g, struct peer *peer)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data = {.ptr = peer}};
    if (epoll_ctl(g->epoll_fd, EPOLL_CTL_ADD, peer->fd, &event) < 0)
        log_warn("a connection is not watched: %s", strerror(errno)); /* limits of time still end it */
}

void loop_listen(struct gateway *g, bool on)
{
    struct epoll_event event = {.events = on ? EPOLLIN : 0, .data = {.u64 = SOURCE_LISTEN}};
    if (epoll_ctl(g->epoll_fd, EPOLL_CTL_MOD, g->peers.listen_fd, &event) < 0)
        log_warn("the listening socket: %s", strerror(errno));
}

static void take_jobs(struct gateway *g)
{
    for (struct exchange *ex = jobs_take(g->jobs), *next; ex; ex = next) {
        next = STAILQ_NEXT(ex, job);
        exchange_start(ex);
    }
}

static void take_informed(struct gateway *g)
{
    for (struct exchange *ex = inquiry_take(g->inquiry), *next; ex; ex = next) {
        next = STAILQ_NEXT(ex, job);
        exchange_informed(ex);
    }
}

/* ---- the daemon ------------------------------------------------------------------------------------- */

/* Every open request was ended with an error already. */
static void lose_daemon(struct gateway *g, const char *why)
{
    log_error("%s", why);
    epoll_ctl(g->epoll_fd, EPOLL_CTL_DEL, helm_client_fd(g->cli.client), NULL); /* it is closed later */
    inquiry_reconnect(g->inquiry, g->cli.client);
    g->cli.client = NULL;
}

static void talk(struct gateway *g)
{
    struct helm_err err = {0};
    if (g->cli.client && helm_dispatch(g->cli.client, 0, &err) < 0) lose_daemon(g, err.text);
}

void gateway_ask_users(struct gateway *g)
{
    struct inquiry_fact *fact = inquiry_last(g->inquiry, INQUIRY_STATUS);
    g->names_users = fact && fact->status->names_users;
    inquiry_give_back(fact);
    if (!g->names_users)
        log_warn("to helmd all users of this gateway are one: it does not let this program name them (root, "
                 "helmd's own user, "
                 "members of gateway-group, a CURVE key marked gateway may)");
}

const char *gateway_user(const struct exchange *ex)
{
    return ex->gateway->names_users ? ex->whose->name : NULL;
}

/* 0: it is there, or may be there later; else why the gateway cannot go on. */
static int reconnect(struct gateway *g, struct helm_err *err)
{
    struct helm_model_info *model = NULL;
    if (g->cli.client) return 0;
    if (g->cli.daemon) return helm_fail(err, HELM_E_PEER, "the gateway's own helmd died");
    g->cli.client = inquiry_take_client(g->inquiry, &model);
    if (!g->cli.client) return 0;
    int rc = info_check_model(g, model, err);
    free(model);
    if (rc == 0) rc = watch(g, helm_client_fd(g->cli.client), SOURCE_DAEMON, err);
    if (rc == 0) gateway_ask_users(g);
    if (rc == 0) log_info("helmd is there again");
    return rc;
}

/* ---- signals and time ------------------------------------------------------------------------------- */

static void reload(struct gateway *g)
{
    struct helm_err err = {0};
    if (access_read_keys(&g->access, &err) < 0)
        log_error("the keys stay as they were: %s", err.text);
    else
        log_info("keys read again: %zu", g->access.key_count);
}

static void take_signal(struct gateway *g)
{
    const int number = cli_take_signal(&g->cli);
    if (number == SIGHUP) {
        reload(g);
    } else if (number) {
        log_info("going down: signal %d%s", number, g->draining ? " again: now" : "");
        g->drain_end_us = units_now_us() + (g->draining ? 0 : GATEWAY_DRAIN_US);
        g->draining = true;
        server_quiesce(g);
        sd_notify(0, "STOPPING=1");
    }
}

static bool any_open(const struct gateway *g)
{
    for (const struct exchange *ex = LIST_FIRST(&g->exchanges); ex; ex = LIST_NEXT(ex, link))
        if (ex->state != EXCHANGE_BODY || ex->called) return true;
    return false;
}

static void handle(struct gateway *g, const struct epoll_event *event)
{
    switch (event->data.u64) {
    case SOURCE_SERVER: /* runs in any case */
        break;
    case SOURCE_LISTEN: /* after the others: who came before and said something is known then */
        g->peers.knocked = true;
        break;
    case SOURCE_DAEMON:
        talk(g);
        break;
    case SOURCE_SIGNAL:
        take_signal(g);
        break;
    case SOURCE_JOBS:
        take_jobs(g);
        break;
    case SOURCE_INQUIRY:
        take_informed(g);
        break;
    default:
        peer_event(g, event->data.ptr, event->events);
    }
}

static int open_loop(struct gateway *g, struct helm_err *err)
{
    g->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    int rc = g->epoll_fd < 0 ? helm_fail_errno(err, "epoll_create1") : 0;
    if (rc == 0) rc = watch(g, server_fd(g->server), SOURCE_SERVER, err);
    if (rc == 0) rc = watch(g, g->peers.listen_fd, SOURCE_LISTEN, err);
    if (rc == 0) rc = watch(g, helm_client_fd(g->cli.client), SOURCE_DAEMON, err);
    if (rc == 0) rc = watch(g, g->cli.signal_fd, SOURCE_SIGNAL, err);
    if (rc == 0) rc = watch(g, jobs_fd(g->jobs), SOURCE_JOBS, err);
    if (rc == 0) rc = watch(g, inquiry_fd(g->inquiry), SOURCE_INQUIRY, err);
    return rc;
}

int loop_run(struct gateway *g)
{
    struct epoll_event events[EVENTS];
    struct helm_err err = {0};
    uint64_t tick_us = 0, turn_us = units_now_us();
    int rc = open_loop(g, &err);
    sd_notify(0, "READY=1");
    while (rc == 0 && !(g->draining && (!any_open(g) || units_now_us() >= g->drain_end_us))) {
        const int wait_ms = server_run(g);
        metrics_observe(&g->metrics.turn, (double)(units_now_us() - turn_us) * 1e-6);
        const int count = epoll_wait(g->epoll_fd, events, EVENTS, arrivals_wait(&g->peers) ? 0 : wait_ms);
        turn_us = units_now_us();
        if (count < 0 && errno != EINTR) rc = helm_fail_errno(&err, "epoll_wait");
        for (int i = 0; i < count; i++) handle(g, &events[i]);
        g->peers.unheard = count == EVENTS ? g->peers.unheard + 1 : 0;
        arrivals_serve(g);
        rc = rc ? rc : reconnect(g, &err);
        if (units_now_us() - tick_us < TICK_US) continue;
        tick_us = units_now_us();
        server_tick(g);
        peers_tick(g);
        arrivals_tick(g);
        talk(g); /* a connection that was lost while a question was asked reports nothing more */
        sd_notify(0, "WATCHDOG=1");
    }
    if (rc == 0) return CLI_EXIT_DONE;
    log_error("%s", err.text);
    if (g->cli.daemon) private_daemon_show_log(g->cli.daemon);
    return CLI_EXIT_FAILED;
}
