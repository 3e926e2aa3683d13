/* The step thread. See server.h. */
#include "common/worker/server.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cpu.h"
#include "common/cpu/pool.h"

/* How often a thread that sleeps between steps looks whether it should end. */
#define STOP_CHECK_MS 100
/* Between steps only this thread waits. helmd answers within some tens of microseconds; where it was asleep,
 * too, it takes a hundred, and being woken takes as long again. */
#define STEP_SPIN_US 200

static void server_report(struct server *server, enum server_state state)
{
    uint64_t one = 1;
    atomic_store(&server->state, state);
    while (write(server->report_fd, &one, sizeof one) < 0 && errno == EINTR) continue;
}

static void server_announce(struct server *server, uint32_t serial)
{
    struct arena_done *done = &arena_control_of(server->arena)->done[server->worker];
    uint64_t one = 1;
    atomic_store(&server->last_serial, serial);
    done->times[serial % ARENA_STEP_RING] = server->engine->times;
    doorbell_ring(&done->bell, serial);
    while (write(server->done_fd, &one, sizeof one) < 0 && errno == EINTR) continue;
}

/* Runs every step from the one after `last` to `now`. */
static int server_run_steps(struct server *server, uint32_t last, uint32_t now)
{
    if (now - last > ARENA_STEP_RING)
        return helm_fail(&server->err, HELM_E_PEER,
                         "step ring: from step %u to %u at once, the ring holds %d", last, now,
                         ARENA_STEP_RING);
    while (last != now) {
        last++;
        const struct step *step = &arena_control_of(server->arena)->step[last % ARENA_STEP_RING];
        if (step->epoch != server->epoch) continue; /* made for the worker before this one */
        int rc = server->ops->step(server->engine, last, &server->err);
        if (rc) return rc;
        server_announce(server, last);
    }
    return 0;
}

/* On a single CPU a spinning thread keeps helmd from answering. */
static uint32_t step_spin_us(void)
{
    struct helm_err err = {0};
    struct cpu_set *set = malloc(sizeof *set);
    bool alone = !set || cpu_usable(-1, set, &err) || set->count == 1;
    free(set);
    return alone ? 0 : STEP_SPIN_US;
}

static void *server_main(void *arg)
{
    struct server *server = arg;
    const uint32_t spin_us = step_spin_us(); /* before an engine pins this thread to one */
    struct doorbell *bell = &arena_control_of(server->arena)->step_bell;
    uint32_t last = doorbell_read(bell), now;
    int rc = server->ops->load(server->engine, server->arena, &server->options, &server->err);
    if (!rc) {
        server_report(server, SERVER_SERVING);
        while (!rc && !atomic_load_explicit(&server->stop, memory_order_relaxed)) {
            if (!doorbell_wait(bell, last, spin_us, STOP_CHECK_MS, &now)) continue;
            rc = server_run_steps(server, last, now);
            last = now;
        }
        server->ops->free(server->engine);
    }
    if (rc) server_report(server, SERVER_FAILED);
    return NULL;
}

int server_start(struct server *server, struct helm_err *err)
{
    size_t bytes = (server->ops->bytes + 63) / 64 * 64;
    server->engine = aligned_alloc(64, bytes);
    if (!server->engine) return helm_fail(err, HELM_E_NOMEM, "no memory for an engine of %zu bytes", bytes);
    memset(server->engine, 0, bytes);
    int rc = pin_create_thread(&server->thread, -1, server_main, server, err);
    if (rc) return rc;
    pthread_setname_np(server->thread, "compute 0");
    server->started = true;
    return 0;
}

void server_stop(struct server *server)
{
    if (server->started) {
        atomic_store(&server->engine->cancel, true);
        atomic_store(&server->stop, true);
        pthread_join(server->thread, NULL);
    }
    server->started = false;
    free(server->engine);
    server->engine = NULL;
}
