/* The thread that asks helmd. See inquiry.h. Owns the thread, its connection and the last answers; exchanges
 * are only passed through. */
#include "client/gateway/inquiry.h"

#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "client/gateway/routes.h"
#include "common/base/log.h"
#include "common/base/units.h"

#define ANSWER_MS 1000
#define TICK_US   1000000
#define MODEL_MS  10000 /* of a connection that was made anew */

struct inquiry {
    struct cli cli;   /* options of the connection; the thread's own one */
    uint64_t tick_us; /* when the status was last asked for */
    pthread_t thread;
    int event_fd;
    pthread_mutex_t lock;
    pthread_cond_t more;
    /* guarded by it: */
    struct inquiry_fact *known[INQUIRY_QUESTIONS];
    struct exchange_list waiting, done;
    struct helm_client *lost, *made; /* the loop's: to be closed, to be taken */
    struct helm_model_info *made_model;
    bool silent; /* the last question had no answer */
    bool wants_client, quit;
};

/* ---- answers ---------------------------------------------------------------------------------------- */

void inquiry_give_back(struct inquiry_fact *fact)
{
    if (!fact || atomic_fetch_sub(&fact->users, 1) > 1) return;
    free(fact->any);
    free(fact->shown);
    free(fact);
}

/* The lock is held. */
static struct inquiry_fact *use(struct inquiry *q, enum inquiry_question which)
{
    struct inquiry_fact *fact = q->known[which];
    if (fact) atomic_fetch_add(&fact->users, 1);
    return fact;
}

struct inquiry_fact *inquiry_last(struct inquiry *q, enum inquiry_question which)
{
    pthread_mutex_lock(&q->lock);
    struct inquiry_fact *fact = use(q, which);
    pthread_mutex_unlock(&q->lock);
    return fact;
}

/* Keeps the parts of a plan that are asked for often: a line for each matrix is too much for every two
 * seconds. */
static void read_plan(struct inquiry_fact *fact)
{
    json_t *json = json_loads(fact->plan->json, 0, NULL);
    json_object_del(json, "placements");
    fact->slots = (uint32_t)json_integer_value(json_object_get(json, "slots"));
    fact->shown = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
}

static void keep(struct inquiry *q, enum inquiry_question which, void *answer)
{
    struct inquiry_fact *fact = calloc(1, sizeof *fact);
    if (!fact) {
        free(answer);
        return;
    }
    atomic_init(&fact->users, 1);
    fact->at_us = units_now_us();
    fact->any = answer;
    const struct inquiry_fact *before = q->known[which]; /* only this thread changes it */
    if (which == INQUIRY_PLAN && before && before->shown &&
        strcmp(before->plan->json, fact->plan->json) == 0) {
        fact->shown = strdup(before->shown);
        fact->slots = before->slots;
    } else if (which == INQUIRY_PLAN) {
        read_plan(fact);
    }
    pthread_mutex_lock(&q->lock);
    struct inquiry_fact *old = q->known[which];
    q->known[which] = fact;
    pthread_mutex_unlock(&q->lock);
    inquiry_give_back(old);
}

/* ---- questions, in the thread ----------------------------------------------------------------------- */

static void note_silence(struct inquiry *q, const char *why)
{
    pthread_mutex_lock(&q->lock);
    const bool silent = why != NULL, changed = q->silent != silent;
    q->silent = silent;
    pthread_mutex_unlock(&q->lock);
    if (changed && silent) log_warn("helmd does not answer, its last status serves: %s", why);
    if (changed && !silent) log_info("helmd answers again");
}

static int send_question(struct helm_client *client, enum inquiry_question which, void **answer,
                         struct helm_err *err)
{
    struct inquiry_fact a = {0};
    int rc = 0;
    switch (which) {
    case INQUIRY_STATUS:
        rc = helm_status(client, ANSWER_MS, &a.status, err);
        *answer = a.status;
        break;
    case INQUIRY_MODEL:
        rc = helm_model_info(client, ANSWER_MS, &a.model, err);
        *answer = a.model;
        break;
    case INQUIRY_PLAN:
        rc = helm_plan_info(client, ANSWER_MS, &a.plan, err);
        *answer = a.plan;
        break;
    default:
        rc = helm_list(client, ANSWER_MS, &a.list, err);
        *answer = a.list;
    }
    return rc;
}

static bool ask(struct inquiry *q, enum inquiry_question which)
{
    struct helm_err err = {0}, lost = {0};
    void *answer = NULL;
    if (!q->cli.client) return false;
    const int rc = send_question(q->cli.client, which, &answer, &err);
    if (rc == 0) {
        keep(q, which, answer);
        note_silence(q, NULL);
        return true;
    }
    if (helm_dispatch(q->cli.client, 0, &lost) < 0) {
        helm_disconnect(&q->cli.client);
        note_silence(q, err.text);
    } else if (rc == HELM_E_PEER || rc == HELM_E_BUSY) {
        note_silence(q, err.text);
    } else {
        log_warn("helmd was asked: %s", err.text);
    }
    return false;
}

static bool is_silent(struct inquiry *q)
{
    pthread_mutex_lock(&q->lock);
    const bool silent = q->silent;
    pthread_mutex_unlock(&q->lock);
    return silent;
}

/* Once a second: the status, and connections that are missing. */
static void tick(struct inquiry *q)
{
    struct helm_err err = {0};
    q->tick_us = units_now_us();
    if (!q->cli.client && cli_connect(&q->cli, &err) < 0) {
        log_debug("%s", err.text);
        q->cli.client = NULL;
        return;
    }
    if (!ask(q, INQUIRY_STATUS)) return;
    if (!q->known[INQUIRY_MODEL] && !ask(q, INQUIRY_MODEL)) return;
    if (!q->known[INQUIRY_PLAN] && !ask(q, INQUIRY_PLAN)) return;
    pthread_mutex_lock(&q->lock);
    const bool wanted = q->wants_client && !q->made;
    pthread_mutex_unlock(&q->lock);
    if (!wanted) return;
    struct cli fresh = q->cli;
    struct helm_model_info *model = NULL;
    fresh.client = NULL;
    int rc = cli_connect(&fresh, &err);
    if (rc == 0) rc = helm_model_info(fresh.client, MODEL_MS, &model, &err);
    if (rc < 0) {
        log_debug("%s", err.text);
        helm_disconnect(&fresh.client);
        return;
    }
    pthread_mutex_lock(&q->lock);
    q->made = fresh.client;
    q->made_model = model;
    q->wants_client = false;
    pthread_mutex_unlock(&q->lock);
}

static void answer(struct inquiry *q, struct exchange *ex)
{
    for (unsigned which = 0; which < INQUIRY_QUESTIONS && !is_silent(q); which++)
        if (ex->route->wants & INQUIRY_WANTS(which)) (void)ask(q, which);
}

/* The lock is held. */
static void take_facts(struct inquiry *q, struct exchange *ex)
{
    for (unsigned which = 0; which < INQUIRY_QUESTIONS; which++)
        if (ex->route->wants & INQUIRY_WANTS(which)) ex->facts[which] = use(q, which);
}

static void raise_event(struct inquiry *q)
{
    const uint64_t one = 1;
    (void)!write(q->event_fd, &one, sizeof one); /* EAGAIN: it is raised already */
}

/* The lock is held; returns when there is something to do. */
static void wait_for_work(struct inquiry *q)
{
    const uint64_t until = q->tick_us + TICK_US;
    const struct timespec when = {.tv_sec = (time_t)(until / 1000000),
                                  .tv_nsec = (long)(until % 1000000) * 1000};
    while (!q->quit && STAILQ_EMPTY(&q->waiting) && !q->lost && units_now_us() < until)
        (void)pthread_cond_timedwait(&q->more, &q->lock, &when);
}

static void *run(void *argument)
{
    struct inquiry *q = argument;
    pthread_mutex_lock(&q->lock);
    for (;;) {
        wait_for_work(q);
        if (q->quit) break;
        struct helm_client *lost = q->lost;
        struct exchange *ex = STAILQ_FIRST(&q->waiting);
        if (ex) STAILQ_REMOVE_HEAD(&q->waiting, job);
        q->lost = NULL;
        pthread_mutex_unlock(&q->lock);
        helm_disconnect(&lost);
        if (ex) answer(q, ex);
        if (units_now_us() >= q->tick_us + TICK_US) tick(q);
        pthread_mutex_lock(&q->lock);
        if (ex) {
            take_facts(q, ex);
            STAILQ_INSERT_TAIL(&q->done, ex, job);
        }
        if (!STAILQ_EMPTY(&q->done) || q->made) raise_event(q);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

/* ---- for the loop ----------------------------------------------------------------------------------- */

int inquiry_open(const struct cli *cli, struct inquiry **out, struct helm_err *err)
{
    struct inquiry *q = calloc(1, sizeof *q);
    pthread_condattr_t attributes;
    *out = NULL;
    if (!q) return helm_fail(err, HELM_E_NOMEM, "no memory for a thread");
    q->cli = *cli;
    q->cli.client = NULL;
    STAILQ_INIT(&q->waiting);
    STAILQ_INIT(&q->done);
    pthread_mutex_init(&q->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&q->more, &attributes);
    pthread_condattr_destroy(&attributes);
    q->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = q->event_fd < 0 ? helm_fail_errno(err, "eventfd") : cli_connect(&q->cli, err);
    if (rc == 0) tick(q);
    if (rc == 0 && pthread_create(&q->thread, NULL, run, q) != 0)
        rc = helm_fail(err, HELM_E_IO, "a thread cannot be started");
    *out = q;
    if (rc < 0) {
        q->quit = true;
        inquiry_close(out);
    }
    return rc;
}

void inquiry_close(struct inquiry **out)
{
    struct inquiry *q = *out;
    if (!q) return;
    *out = NULL;
    pthread_mutex_lock(&q->lock);
    const bool runs = !q->quit;
    q->quit = true;
    pthread_cond_signal(&q->more);
    pthread_mutex_unlock(&q->lock);
    if (runs) pthread_join(q->thread, NULL);
    helm_disconnect(&q->cli.client);
    helm_disconnect(&q->lost);
    helm_disconnect(&q->made);
    free(q->made_model);
    for (unsigned which = 0; which < INQUIRY_QUESTIONS; which++) inquiry_give_back(q->known[which]);
    if (q->event_fd >= 0) close(q->event_fd);
    pthread_cond_destroy(&q->more);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

int inquiry_fd(const struct inquiry *q)
{
    return q->event_fd;
}

bool inquiry_push(struct inquiry *q, struct exchange *ex)
{
    pthread_mutex_lock(&q->lock);
    const bool waits = !q->silent;
    if (waits) {
        STAILQ_INSERT_TAIL(&q->waiting, ex, job);
        pthread_cond_signal(&q->more);
    } else {
        take_facts(q, ex);
    }
    pthread_mutex_unlock(&q->lock);
    return waits;
}

struct exchange *inquiry_take(struct inquiry *q)
{
    uint64_t count;
    (void)!read(q->event_fd, &count, sizeof count); /* EAGAIN: it was not raised */
    pthread_mutex_lock(&q->lock);
    struct exchange *all = STAILQ_FIRST(&q->done);
    STAILQ_INIT(&q->done);
    pthread_mutex_unlock(&q->lock);
    return all;
}

void inquiry_reconnect(struct inquiry *q, struct helm_client *lost)
{
    pthread_mutex_lock(&q->lock);
    struct helm_client *before = q->lost;
    q->lost = lost;
    q->wants_client = true;
    pthread_cond_signal(&q->more);
    pthread_mutex_unlock(&q->lock);
    helm_disconnect(&before); /* lost twice in a moment */
}

struct helm_client *inquiry_take_client(struct inquiry *q, struct helm_model_info **model)
{
    pthread_mutex_lock(&q->lock);
    struct helm_client *client = q->made;
    *model = q->made_model;
    q->made = NULL;
    q->made_model = NULL;
    pthread_mutex_unlock(&q->lock);
    return client;
}
