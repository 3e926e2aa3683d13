/* What waking up takes: one thread that sleeps in futex, and the CPU worker's pool after a pause. See
 * profile_tool.h. Called by cpu.c and helm_profile.c; owns its thread while it measures.
 *
 * Where CPUs are virtual a thread that slept comes back tens of microseconds after it was woken, longer the
 * longer it slept, and a pool's threads are woken by one of them, which came back that late itself. In a step
 * that happens at every visit of the CPU behind more than a moment's work of the GPU. */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "common/shared/doorbell.h"
#include "common/shared/lane.h"
#include "common/base/units.h"
#include "tools/profile/profile_tool.h"
#include "common/cpu/pin.h"
#include "common/cpu/pool.h"

#define PAUSE_MS      2 /* longer than any thread spins on a doorbell */
#define POOL_PAUSE_MS (2 * POOL_SPIN_QUIET_US / 1000)
#define WAIT_MS       10000
#define LEAST_S       1e-7       /* that is believed */
#define PIECE_BYTES   (32 * MIB) /* of memory that a pool reads: some hundred microseconds for many threads */

/* The other thread: it sleeps until it is rung, each time. */
struct sleeper {
    struct doorbell bell;
    uint32_t rounds;
    _Atomic uint32_t word; /* the last ring that it answered */
    _Atomic double then_s; /* when it was there, or when it wrote the word */
    _Atomic bool late;
    const cpu_set_t *cpus; /* that it may run on */
};

/* ---- one thread ---- */

static void *sleeper_main(void *arg)
{
    struct sleeper *s = arg;
    for (uint32_t i = 0; i < s->rounds; i++) {
        if (!doorbell_wait(&s->bell, i, 0, WAIT_MS, NULL)) {
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
        rc = helm_fail(err, HELM_E_PEER, "a doorbell was not heard within %d ms", WAIT_MS);
    *value = profile_samples_value(&samples);
out:
    free(s);
    return rc;
}

/* ---- the pool ---- */

/* In the device's place: says after a pause that the CPU's turn has come. */
static void *peer_main(void *arg)
{
    struct sleeper *s = arg;
    (void)sched_setaffinity(0, sizeof *s->cpus,
                            s->cpus); /* else it shares the CPU of its creator, which waits for it */
    for (uint32_t i = 0; i < s->rounds; i++) {
        if (!doorbell_wait(&s->bell, i, 0, WAIT_MS, NULL)) break;
        units_sleep_ms(POOL_PAUSE_MS);
        atomic_store(&s->then_s, units_now_s());
        atomic_store_explicit(&s->word, i + 1, memory_order_release);
    }
    return NULL;
}

/* Pieces one behind another, round and round all that there is, so that each comes from memory. */
static void next_piece(const struct reader *all, uint32_t *at, struct reader *piece, uint32_t chunks)
{
    if (*at + chunks > all->chunks) *at = 0;
    piece->data = all->data + *at * all->chunk_bytes;
    *at += chunks;
}

int profile_pool_wake(const struct reader *reader, struct pool *pool, const cpu_set_t *cpus, bool quick,
                      struct profile_value *value, struct helm_err *err)
{
    struct profile_samples samples = {.count = 0};
    struct reader piece = *reader;
    uint32_t at = 0, rounds = quick ? 20 : 60, chunks = PIECE_BYTES / (uint32_t)reader->chunk_bytes;
    pthread_t thread;
    struct sleeper *s = calloc(1, sizeof *s);
    if (!s) return helm_fail(err, HELM_E_NOMEM, "no memory to measure waking up");
    if (chunks > reader->chunks) chunks = reader->chunks;
    piece.chunks = chunks;
    doorbell_init(&s->bell, 0);
    s->rounds = rounds;
    s->cpus = cpus;
    int rc = pin_create_thread(&thread, -1, peer_main, s, err);
    if (rc) goto out;
    for (uint32_t i = 0; i < rounds && !rc; i++) {
        uint32_t seen;
        doorbell_ring(&s->bell, i + 1);
        /* as a worker waits for a lane */
        if (!lane_poll(&s->word, i + 1, POOL_SPIN_US_DEFAULT, WAIT_MS, NULL, &seen))
            rc = helm_fail(err, HELM_E_PEER, "a word was not written within %d ms", WAIT_MS);
        next_piece(reader, &at, &piece, chunks);
        if (!rc) (void)reader_pass(&piece, pool);
        double asleep = units_now_s() - atomic_load(&s->then_s);
        next_piece(reader, &at, &piece, chunks); /* the pool looks for work: it is rung only now and then */
        double begin = units_now_s();
        if (!rc) (void)reader_pass(&piece, pool);
        double awake = units_now_s() - begin;
        if (i && !rc) profile_samples_add(&samples, fmax(asleep - awake, LEAST_S));
    }
    doorbell_ring(&s->bell, rounds); /* after a failure: it ends */
    pthread_join(thread, NULL);
    *value = profile_samples_value(&samples);
out:
    free(s);
    return rc;
}
