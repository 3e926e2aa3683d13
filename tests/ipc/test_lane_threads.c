/* A chain of workers that hand activations on by lane, as threads, so that thread sanitizer sees every side.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/shared/lane.h"

#define STAGES     3 /* the first writes, the middle one reads and writes, the last reads */
#define TOKENS     4u
#define HIDDEN     48u
#define TICKETS    20000u
#define TIMEOUT_MS 60000

struct chain {
    struct lane *lane[STAGES]; /* [i]: from stage i to the next; the last goes back to the first */
    uint32_t first_ticket;
};
struct stage {
    struct chain *chain;
    int number;
    uint32_t failed_ticket;
};

static struct lane *make_lane(uint32_t last_ticket)
{
    struct lane *lane = aligned_alloc(4096, lane_bytes(TOKENS, HIDDEN));
    assert_non_null(lane);
    lane_init(lane);
    doorbell_init(&lane->bell, last_ticket);
    return lane;
}

/* A step: stage 0 writes its ticket, each later one adds 1, stage 0 checks what comes back. */
static void *run_stage(void *argument)
{
    struct stage *stage = argument;
    struct chain *chain = stage->chain;
    struct lane *in = chain->lane[(stage->number + STAGES - 1) % STAGES], *out = chain->lane[stage->number];
    struct helm_err err = {0};
    for (uint32_t i = 0; i < TICKETS; i++) {
        uint32_t ticket = chain->first_ticket + i, spin_us = i % 3 * 10u;
        bool ok = true;
        if (stage->number == 0) {
            for (uint32_t k = 0; k < TOKENS * HIDDEN; k++) out->data[k] = (float)(i + k);
            ok = lane_publish(out, ticket, &err) == 0 &&
                 lane_wait(in, ticket, spin_us, TIMEOUT_MS, NULL, &err) == 0;
            for (uint32_t k = 0; ok && k < TOKENS * HIDDEN; k++)
                ok = in->data[k] == (float)(i + k + STAGES - 1);
        } else {
            ok = lane_wait(in, ticket, spin_us, TIMEOUT_MS, NULL, &err) == 0;
            for (uint32_t k = 0; ok && k < TOKENS * HIDDEN; k++) out->data[k] = in->data[k] + 1;
            ok = ok && lane_publish(out, ticket, &err) == 0;
        }
        if (!ok) {
            stage->failed_ticket = i + 1;
            return NULL;
        }
    }
    return NULL;
}

static void run_chain(uint32_t first_ticket)
{
    struct chain chain = {.first_ticket = first_ticket};
    struct stage stages[STAGES];
    pthread_t threads[STAGES];
    for (int i = 0; i < STAGES; i++) chain.lane[i] = make_lane(first_ticket - 1);
    for (int i = 0; i < STAGES; i++) {
        stages[i] = (struct stage){&chain, i, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, run_stage, &stages[i]), 0);
    }
    for (int i = 0; i < STAGES; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(stages[i].failed_ticket, 0);
    }
    for (int i = 0; i < STAGES; i++) free(chain.lane[i]);
}

static void activations_arrive_whole_and_in_order(void **state)
{
    (void)state;
    run_chain(1);
}

static void tickets_wrap(void **state)
{
    (void)state;
    run_chain(UINT32_MAX - TICKETS / 2);
}

static void wrong_tickets_are_seen(void **state)
{
    (void)state;
    struct lane *lane = make_lane(0);
    struct helm_err err = {0};
    assert_int_equal(lane_publish(lane, 2, &err), HELM_E_STATE); /* skipped one */
    assert_int_equal(lane_publish(lane, 0, &err), HELM_E_STATE); /* repeated */
    assert_int_equal(lane_publish(lane, 1, &err), 0);
    assert_int_equal(lane_publish(lane, 1, &err), HELM_E_STATE);
    assert_int_equal(lane_wait(lane, 1, 0, 0, NULL, &err), 0);
    assert_int_equal(lane_wait(lane, 2, 0, 20, NULL, &err),
                     HELM_E_PEER); /* a late peer is a fault, not a hang */
    assert_non_null(strstr(err.text, "ticket 2 not published within 20 ms"));
    assert_int_equal(lane_publish(lane, 2, &err), 0);
    assert_int_equal(lane_wait(lane, 1, 0, 1000, NULL, &err),
                     HELM_E_PEER); /* overwritten: never read as new */
    assert_non_null(strstr(err.text, "2 is published already"));
    free(lane);
}

/* The step protocol: tickets 1 .. n in both directions, words back at 0, the same in every step; the reader
 * runs ahead into the next step as soon as it has answered. */
#define HAND_OVERS 3u
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) /* a fifth of the speed */
#define STEPS 1000u
#else
#define STEPS 4000u
#endif

static bool step_writes(struct lane *lane, uint32_t ticket, float value, struct helm_err *err)
{
    if (lane_acquire(lane, ticket, 10, TIMEOUT_MS, NULL, err)) return false;
    for (uint32_t k = 0; k < TOKENS * HIDDEN; k++) lane->data[k] = value + (float)k;
    return lane_publish(lane, ticket, err) == 0;
}

static bool step_reads(struct lane *lane, uint32_t ticket, float value, struct helm_err *err)
{
    if (lane_wait(lane, ticket, 10, TIMEOUT_MS, NULL, err)) return false;
    for (uint32_t k = 0; k < TOKENS * HIDDEN; k++)
        if (lane->data[k] != value + (float)k) return false;
    if (ticket == HAND_OVERS) lane_release(lane);
    return true;
}

static void *run_peer(void *argument)
{
    struct stage *stage = argument;
    struct lane *to = stage->chain->lane[stage->number], *from = stage->chain->lane[1 - stage->number];
    struct helm_err err = {0};
    for (uint32_t s = 0; s < STEPS; s++) {
        for (uint32_t t = 1; t <= HAND_OVERS; t++) {
            float value = (float)(s * 8 + t);
            bool ok = stage->number == 0
                          ? step_writes(to, t, value, &err) && step_reads(from, t, value + 0.5f, &err)
                          : step_reads(from, t, value, &err) && step_writes(to, t, value + 0.5f, &err);
            if (!ok) {
                stage->failed_ticket = s * HAND_OVERS + t;
                return NULL;
            }
        }
    }
    return NULL;
}

static void steps_repeat_their_tickets(void **state)
{
    (void)state;
    struct chain chain = {.lane = {make_lane(0), make_lane(0)}};
    struct stage stages[2] = {{&chain, 0, 0}, {&chain, 1, 0}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, run_peer, &stages[i]), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(stages[i].failed_ticket, 0);
        assert_int_equal(doorbell_read(&chain.lane[i]->bell), 0);
        free(chain.lane[i]);
    }
}

/* A message that was not taken is never written over. */
static void a_full_lane_is_waited_for(void **state)
{
    (void)state;
    struct lane *lane = make_lane(0);
    struct helm_err err = {0};
    assert_int_equal(lane_acquire(lane, 1, 0, 20, NULL, &err), 0);
    assert_int_equal(lane_acquire(lane, 2, 0, 20, NULL, &err), HELM_E_STATE); /* 1 was not published */
    assert_int_equal(lane_publish(lane, 1, &err), 0);
    assert_int_equal(lane_acquire(lane, 1, 0, 20, NULL, &err),
                     HELM_E_PEER); /* the next step's: not taken yet */
    assert_non_null(strstr(err.text, "was not taken within 20 ms"));
    assert_int_equal(lane_acquire(lane, 2, 0, 20, NULL, &err), 0);
    lane_release(lane);
    assert_int_equal(lane_acquire(lane, 1, 0, 20, NULL, &err), 0);
    assert_int_equal(lane_wait(lane, 1, 0, 20, NULL, &err), HELM_E_PEER); /* an old ticket is not a new one */
    free(lane);
}

struct patient {
    struct lane *lane;
    _Atomic bool cancel;
    int wait_rc, acquire_rc;
};

static void *run_patient(void *argument)
{
    struct patient *p = argument;
    p->wait_rc = lane_wait(p->lane, 2, 10, -1, &p->cancel, NULL);
    p->acquire_rc = lane_acquire(p->lane, 1, 10, -1, &p->cancel, NULL);
    return NULL;
}

/* A worker that is to end does not wait for the other one; what is there already is taken all the same. */
static void waiting_can_be_cancelled(void **state)
{
    (void)state;
    struct patient patient = {.lane = make_lane(1)};
    struct helm_err err = {0};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run_patient, &patient), 0);
    atomic_store(&patient.cancel, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(patient.wait_rc, HELM_E_CANCELLED);
    assert_int_equal(patient.acquire_rc, HELM_E_CANCELLED);
    assert_int_equal(lane_wait(patient.lane, 1, 0, 0, &patient.cancel, &err), 0);
    lane_release(patient.lane);
    assert_int_equal(lane_acquire(patient.lane, 1, 0, 0, &patient.cancel, &err), 0);
    free(patient.lane);
}

static void lane_sizes_are_whole_pages(void **state)
{
    (void)state;
    assert_int_equal(lane_bytes(1, 1), 4096);
    assert_int_equal(lane_bytes(1, 1008), 4096); /* 64 bytes of doorbell and 4032 of data */
    assert_int_equal(lane_bytes(1, 1009), 8192);
    assert_int_equal(lane_bytes(512, 5120) % 4096, 0);
    assert_true(lane_bytes(512, 5120) >= 64 + 512ull * 5120 * 4);
    assert_true(lane_bytes(UINT32_MAX, UINT32_MAX) == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(activations_arrive_whole_and_in_order),
        cmocka_unit_test(tickets_wrap),
        cmocka_unit_test(wrong_tickets_are_seen),
        cmocka_unit_test(steps_repeat_their_tickets),
        cmocka_unit_test(a_full_lane_is_waited_for),
        cmocka_unit_test(waiting_can_be_cancelled),
        cmocka_unit_test(lane_sizes_are_whole_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
