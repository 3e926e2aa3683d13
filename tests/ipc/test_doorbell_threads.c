/* Both sides of a doorbell as threads, so that thread sanitizer sees them. A lost wake-up shows as a timeout;
 * a missing release or acquire shows as a stale or racing payload. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdbool.h>

#include "common/shared/doorbell.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) /* a fifth of the speed */
#define ROUNDS 50000u
#else
#define ROUNDS 250000u
#endif
#define TIMEOUT_MS 60000 /* far beyond any scheduling delay: only a lost wake-up reaches it */
#define WAITERS    3

struct side {
    struct doorbell *mine, *theirs;
    uint64_t *written, *read; /* plain memory that the doorbells publish */
    uint32_t rounds;
    uint64_t random;
    bool serves; /* rings first */
    uint32_t failed_round;
};

static uint32_t next_random(uint64_t *random)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*random >> 40);
}

/* 0 (straight to sleep) half of the time, else 1 to 32 us. */
static uint32_t random_spin_us(uint64_t *random)
{
    uint32_t bits = next_random(random);
    return bits & 1 ? 0 : 1u << (bits >> 1) % 6;
}

/* Mostly well under a microsecond, now and then longer than a system call, so that the ring meets the other
 * side at every point of its going to sleep and asleep; without it both run in step, and a ringer that looks
 * for sleepers too early goes unnoticed. */
static void dawdle(uint64_t *random)
{
    uint32_t bits = next_random(random);
    uint32_t turns = bits % 16 ? (bits >> 4) % 256 : (bits >> 4) % 65536;
    for (uint32_t i = turns; i > 0; i--) __asm__ volatile("");
}

static void *play(void *argument)
{
    struct side *side = argument;
    for (uint32_t round = 1; round <= side->rounds; round++) {
        uint32_t now = 0;
        if (side->serves) {
            *side->written = round * 3ull;
            dawdle(&side->random);
            doorbell_ring(side->mine, round);
        }
        if (!doorbell_wait(side->theirs, round - 1, random_spin_us(&side->random), TIMEOUT_MS, &now) ||
            now != round || *side->read != round * 3ull) {
            side->failed_round = round;
            return NULL;
        }
        if (!side->serves) {
            *side->written = round * 3ull;
            dawdle(&side->random);
            doorbell_ring(side->mine, round);
        }
    }
    return NULL;
}

static void ping_pong_loses_no_wake_up(void **state)
{
    (void)state;
    struct doorbell ping, pong;
    uint64_t there = 0, back = 0;
    doorbell_init(&ping, 0);
    doorbell_init(&pong, 0);
    struct side a = {&ping, &pong, &there, &back, ROUNDS, 1, true, 0};
    struct side b = {&pong, &ping, &back, &there, ROUNDS, 2, false, 0};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, play, &b), 0);
    play(&a);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(a.failed_round, 0);
    assert_int_equal(b.failed_round, 0);
    assert_int_equal(ping.sleepers, 0);
    assert_int_equal(pong.sleepers, 0);
}

struct follower {
    struct doorbell *bell;
    uint64_t random;
    uint32_t rounds, failed_round;
};

/* Follows a bell to its last value; may skip values, never sees one again or an older one. */
static void *follow(void *argument)
{
    struct follower *follower = argument;
    uint32_t seen = 0;
    while (seen < follower->rounds) {
        uint32_t now = 0;
        if (!doorbell_wait(follower->bell, seen, random_spin_us(&follower->random), TIMEOUT_MS, &now) ||
            now <= seen) {
            follower->failed_round = seen + 1;
            return NULL;
        }
        seen = now;
    }
    return NULL;
}

static void one_ring_wakes_every_waiter(void **state)
{
    (void)state;
    struct doorbell bell;
    doorbell_init(&bell, 0);
    struct follower followers[WAITERS];
    pthread_t threads[WAITERS];
    for (uint32_t i = 0; i < WAITERS; i++) {
        followers[i] = (struct follower){.bell = &bell, .random = i + 5, .rounds = 20000};
        assert_int_equal(pthread_create(&threads[i], NULL, follow, &followers[i]), 0);
    }
    for (uint32_t value = 1; value <= 20000; value++) doorbell_ring(&bell, value);
    for (uint32_t i = 0; i < WAITERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(followers[i].failed_round, 0);
    }
    assert_int_equal(bell.sleepers, 0);
}

static void *ring_once(void *argument)
{
    doorbell_ring(argument, 0); /* from UINT32_MAX: the value wraps */
    return NULL;
}

static void an_endless_wait_ends_with_the_ring(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        struct doorbell bell;
        uint32_t now = 1;
        pthread_t thread;
        doorbell_init(&bell, UINT32_MAX);
        assert_int_equal(pthread_create(&thread, NULL, ring_once, &bell), 0);
        assert_true(doorbell_wait(&bell, UINT32_MAX, i % 3 * 10u, -1, &now));
        assert_int_equal(now, 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ping_pong_loses_no_wake_up),
        cmocka_unit_test(one_ring_wakes_every_waiter),
        cmocka_unit_test(an_endless_wait_ends_with_the_ring),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
