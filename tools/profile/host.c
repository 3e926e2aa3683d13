/* The host's own times: doorbells, waking up. See profile_tool.h. Called by cpu.c and helm_profile.c; owns
 * its thread while it measures. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "common/shared/doorbell.h"
#include "common/base/units.h"
#include "tools/profile/profile_tool.h"
#include "common/cpu/pool.h"

#define BELL_SPIN_US  20
#define BELL_ROUNDS   50
#define BELL_WAIT_MS  10000
#define BELL_PAUSE_NS 200000  /* as between steps: the other side may sleep by then */
#define WAKE_PAUSE_NS 2000000 /* longer than any thread spins on a doorbell */

/* Two doorbells: one thread rings the first, another one answers with the second. */
struct bells {
    struct doorbell down, up;
    uint32_t rounds, spin_us; /* 0: either side sleeps at once */
    long pause_ns;            /* before a ring */
    _Atomic double heard_s;   /* when the other thread heard the last one */
};

static void *bell_main(void *arg)
{
    struct bells *b = arg;
    for (uint32_t i = 0; i < b->rounds; i++) {
        if (!doorbell_wait(&b->down, i, b->spin_us, BELL_WAIT_MS, NULL)) break;
        atomic_store(&b->heard_s, units_now_s());
        doorbell_ring(&b->up, i + 1);
    }
    return NULL;
}

/* Seconds until a ring was heard, and until it was answered. */
static int ring(struct bells *b, struct profile_samples *heard, struct profile_samples *answered,
                struct helm_err *err)
{
    const struct timespec pause = {.tv_nsec = b->pause_ns};
    bool ok = true;
    pthread_t thread;
    doorbell_init(&b->down, 0);
    doorbell_init(&b->up, 0);
    const int rc = pin_create_thread(&thread, -1, bell_main, b, err);
    if (rc) return rc;
    for (uint32_t i = 0; i < b->rounds && ok; i++) {
        nanosleep(&pause, NULL);
        const double begin = units_now_s();
        doorbell_ring(&b->down, i + 1);
        ok = doorbell_wait(&b->up, i, b->spin_us, BELL_WAIT_MS, NULL);
        profile_samples_add(answered, units_now_s() - begin);
        if (i) profile_samples_add(heard, atomic_load(&b->heard_s) - begin);
    }
    pthread_join(thread, NULL);
    return ok ? 0 : helm_fail(err, HELM_E_PEER, "a doorbell was not heard within %d ms", BELL_WAIT_MS);
}

int profile_host_doorbell(struct profile_value *value, struct helm_err *err)
{
    struct profile_samples heard = {.count = 0}, answered = {.count = 0};
    struct bells bells = {.rounds = BELL_ROUNDS, .spin_us = BELL_SPIN_US, .pause_ns = BELL_PAUSE_NS};
    const int rc = ring(&bells, &heard, &answered, err);
    *value = profile_samples_value(&answered);
    value->source = PROFILE_ESTIMATE; /* of what helmd does in a step */
    return rc;
}

int profile_host_wake(bool quick, struct profile_value *value, struct helm_err *err)
{
    struct profile_samples heard = {.count = 0}, answered = {.count = 0};
    struct bells bells = {.rounds = quick ? 25 : 75, .pause_ns = WAKE_PAUSE_NS};
    const int rc = ring(&bells, &heard, &answered, err);
    *value = profile_samples_value(&heard);
    return rc;
}
