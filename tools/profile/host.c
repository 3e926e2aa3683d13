/* The host's own times: doorbells, waking up. See profile_tool.h. Called by cpu.c and helm_profile.c; owns
 * its threads while it measures. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "common/shared/doorbell.h"
#include "common/base/units.h"
#include "tools/profile/profile_tool.h"
#include "common/cpu/pool.h"

/* ---- doorbells ---- */

#define BELL_SPIN_US 20
#define BELL_ROUNDS  50
#define BELL_WAIT_MS 10000

struct bells {
    struct doorbell down, up;
    uint32_t rounds;
    _Atomic bool late;
};

static void *bell_main(void *arg)
{
    struct bells *b = arg;
    for (uint32_t i = 0; i < b->rounds; i++) {
        if (!doorbell_wait(&b->down, i, BELL_SPIN_US, BELL_WAIT_MS, NULL)) {
            atomic_store(&b->late, true);
            break;
        }
        doorbell_ring(&b->up, i + 1);
    }
    return NULL;
}

int profile_host_doorbell(struct profile_value *value, struct helm_err *err)
{
    struct profile_samples samples = {.count = 0};
    pthread_t thread;
    struct bells *b = calloc(1, sizeof *b);
    if (!b) return helm_fail(err, HELM_E_NOMEM, "no memory to measure doorbells");
    doorbell_init(&b->down, 0);
    doorbell_init(&b->up, 0);
    b->rounds = BELL_ROUNDS;
    int rc = pin_create_thread(&thread, -1, bell_main, b, err);
    if (rc) goto out;
    const struct timespec pause = {.tv_nsec =
                                       200000}; /* as between steps: the other side may sleep by then */
    bool ok = true;
    for (uint32_t i = 0; i < BELL_ROUNDS && ok; i++) {
        nanosleep(&pause, NULL);
        double begin = units_now_s();
        doorbell_ring(&b->down, i + 1);
        ok = doorbell_wait(&b->up, i, BELL_SPIN_US, BELL_WAIT_MS, NULL);
        profile_samples_add(&samples, units_now_s() - begin);
    }
    pthread_join(thread, NULL);
    if (!ok || atomic_load(&b->late))
        rc = helm_fail(err, HELM_E_PEER, "a doorbell was not heard within %d ms", BELL_WAIT_MS);
    *value = profile_samples_value(&samples);
    value->source = PROFILE_ESTIMATE; /* of what helmd does in a step */
out:
    free(b);
    return rc;
}

/* ---- waking up ---- */

#define PAUSE_MS 2 /* longer than any thread spins on a doorbell */

/* The other thread: it sleeps until it is rung, each time. */
struct sleeper {
    struct doorbell bell;
    uint32_t rounds;
    _Atomic uint32_t word; /* the last ring that it answered */
    _Atomic double then_s; /* when it was there */
    _Atomic bool late;
};

static void *sleeper_main(void *arg)
{
    struct sleeper *s = arg;
    for (uint32_t i = 0; i < s->rounds; i++) {
        if (!doorbell_wait(&s->bell, i, 0, BELL_WAIT_MS, NULL)) {
            atomic_store(&s->late, true);
            break;
        }
        atomic_store(&s->then_s, units_now_s());
        atomic_store(&s->word, i + 1);
    }
    return NULL;
}

int profile_host_wake(bool quick, struct profile_value *value, struct helm_err *err)
{
    struct profile_samples samples = {.count = 0};
    pthread_t thread;
    struct sleeper *s = calloc(1, sizeof *s);
    if (!s) return helm_fail(err, HELM_E_NOMEM, "no memory to measure waking up");
    doorbell_init(&s->bell, 0);
    s->rounds = quick ? 25 : 75;
    int rc = pin_create_thread(&thread, -1, sleeper_main, s, err);
    if (rc) goto out;
    for (uint32_t i = 0; i < s->rounds && !atomic_load(&s->late); i++) {
        units_sleep_ms(PAUSE_MS);
        double begin = units_now_s();
        doorbell_ring(&s->bell, i + 1);
        for (; atomic_load(&s->word) != i + 1 && !atomic_load(&s->late);)
            units_sleep_ms(1); /* asleep, so that a single CPU is the other's */
        if (i) profile_samples_add(&samples, atomic_load(&s->then_s) - begin);
    }
    pthread_join(thread, NULL);
    if (atomic_load(&s->late))
        rc = helm_fail(err, HELM_E_PEER, "a doorbell was not heard within %d ms", BELL_WAIT_MS);
    *value = profile_samples_value(&samples);
out:
    free(s);
    return rc;
}
