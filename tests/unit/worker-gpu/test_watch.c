/* The turns, as the lanes' words say them, and how long the host sleeps meanwhile: never while the device
 * computes, nearly all of a turn of the CPU worker that took as long before, and never long past its end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker-gpu/watch.h"

#define SPIN_NS UINT64_C(10000000)
#define NAP_NS  UINT64_C(20000)
#define MS      UINT64_C(1000000)

struct words {
    _Atomic uint32_t in, out, sent;
};

/* The CPU worker begins, the GPU goes on, the CPU worker and the GPU again. */
static struct gpu_turn turns_of_two[] = {{.in = 1, .out = 1, .lane_out = 1}, {.in = 2, .lane_out = 1}};

static void begin_with(struct watch *w, struct gpu_program *p, struct words *words, uint32_t tokens,
                       uint64_t now)
{
    const _Atomic uint32_t *word[PLAN_LINKS] = {&words->in, &words->out};
    watch_begin(w, p, tokens, word, &words->sent, now);
}

static void begin(struct watch *w, struct gpu_program *p, struct words *words, uint32_t tokens, uint64_t now)
{
    words->in = words->out = words->sent = 0;
    begin_with(w, p, words, tokens, now);
}

/* Looks as often as it is told to until the word is there, which is at `end`; returns when that was seen. */
static uint64_t sleep_until(struct watch *w, _Atomic uint32_t *word, uint32_t value, uint64_t now,
                            uint64_t end, uint32_t *looks)
{
    for (;;) {
        if (now >= end) atomic_store(word, value);
        watch_look(w, now);
        if (now >= end) return now;
        uint64_t nap = watch_nap_ns(w, SPIN_NS, NAP_NS, now);
        assert_in_range(nap, WATCH_NAP_MIN_NS, WATCH_NAP_MAX_NS);
        now += nap;
        ++*looks;
    }
}

static void test_turns_and_waits(void **state)
{
    (void)state;
    struct gpu_program p = {.turn = turns_of_two, .turns = 2};
    struct words words;
    struct watch w;
    begin(&w, &p, &words, 1, 100);
    assert_true(w.waiting && w.turn == 0);
    watch_look(&w, 300);
    assert_int_equal(watch_end(&w), 200);
    words.in = 1;
    watch_look(&w, 500); /* the GPU's turn */
    assert_true(!w.waiting && w.turn == 0);
    watch_look(&w, 900);
    assert_int_equal(watch_end(&w), 400);
    words.out = 1;
    watch_look(&w, 1000);
    assert_true(w.waiting && w.turn == 1);
    watch_look(&w, 1600);
    words.in = 2;
    watch_look(&w, 1700);
    assert_false(w.waiting);
    watch_look(&w, 5000);
    assert_int_equal(watch_end(&w), 400 + 700);
    assert_int_equal(p.turn[0].usual_ns, 400);
    assert_int_equal(p.turn[1].usual_ns, 700);
}

/* While the device computes, and where it is alone, it is looked for without pause, but not for ever. */
static void test_device_is_looked_for(void **state)
{
    (void)state;
    struct gpu_program p = {.turn = turns_of_two, .turns = 2};
    struct words words;
    struct watch w;
    begin(&w, &p, &words, 1, 0);
    assert_true(watch_nap_ns(&w, SPIN_NS, NAP_NS, 0) >= WATCH_NAP_MIN_NS);
    words.in = 1;
    watch_look(&w, 50 * MS);
    assert_int_equal(watch_nap_ns(&w, SPIN_NS, NAP_NS, 50 * MS + SPIN_NS - 1), 0);
    assert_int_equal(watch_nap_ns(&w, SPIN_NS, NAP_NS, 50 * MS + SPIN_NS), NAP_NS);
    struct gpu_program alone = {0};
    watch_begin(&w, &alone, 1, NULL, NULL, 7);
    watch_look(&w, 8);
    assert_int_equal(watch_nap_ns(&w, SPIN_NS, NAP_NS, 8), 0);
    assert_int_equal(watch_nap_ns(&w, SPIN_NS, NAP_NS, 7 + SPIN_NS), NAP_NS);
    assert_int_equal(watch_end(&w), 0);
}

static void test_usual_turns_are_slept_through(void **state)
{
    (void)state;
    static const uint64_t takes[] = {MS / 2, 2 * MS, 61 * MS, 900 * MS};
    for (size_t i = 0; i < sizeof takes / sizeof *takes; i++) {
        struct gpu_turn turn[2] = {turns_of_two[0], turns_of_two[1]};
        struct gpu_program p = {.turn = turn, .turns = 2};
        uint64_t now = 0;
        for (int n = 0; n < 40; n++) {
            /* a hundredth more or less each time */
            uint64_t end = now + takes[i] + takes[i] / 100 * (uint64_t)(n * 7 % 3) - takes[i] / 100;
            struct words words;
            struct watch w;
            uint32_t looks = 0;
            begin(&w, &p, &words, 1, now);
            uint64_t seen = sleep_until(&w, &words.in, 1, now, end, &looks);
            if (n > 0) {
                assert_true(seen - end <= takes[i] / 50 + WATCH_NAP_MIN_NS);
                assert_in_range(looks, 1,
                                30 + takes[i] / WATCH_NAP_MAX_NS + takes[i] / 50 / WATCH_NAP_MIN_NS);
            }
            now = seen + MS;
        }
    }
}

/* Another number of tokens takes another time: nothing is known then, and naps are short beside what passed.
 */
static void test_other_steps_are_not_slept_through(void **state)
{
    (void)state;
    struct gpu_turn turn[2] = {turns_of_two[0], turns_of_two[1]};
    struct gpu_program p = {.turn = turn, .turns = 2};
    struct words words;
    struct watch w;
    uint32_t looks = 0;
    begin(&w, &p, &words, 512, 0);
    (void)sleep_until(&w, &words.in, 1, 0, 300 * MS, &looks);
    assert_true(p.turn[0].usual_ns >= 300 * MS);
    begin(&w, &p, &words, 32, 0);
    assert_int_equal(p.turn[0].usual_ns, 0);
    uint64_t seen = sleep_until(&w, &words.in, 1, 0, 20 * MS, &looks);
    assert_true(seen <= 20 * MS + 20 * MS / 50);
}

/* A step begins while the CPU worker has not yet taken the last hand-over of the one before: that word is not
 * this step's. */
static void test_words_of_the_step_before(void **state)
{
    (void)state;
    struct gpu_program p = {.turn = turns_of_two, .turns = 2};
    struct words words = {.out = 1};
    struct watch w;
    begin_with(&w, &p, &words, 1, 100);
    watch_look(&w, 200);
    assert_true(w.waiting && w.turn == 0);
    words.out = 0; /* taken */
    watch_look(&w, 300);
    assert_true(w.waiting && w.turn == 0);
    words.in = 1;
    watch_look(&w, 400);
    assert_true(!w.waiting && w.turn == 0);
    words.out = 1;
    watch_look(&w, 500);
    assert_true(w.waiting && w.turn == 1);
    assert_int_equal(watch_end(&w), 300);
}

/* A second device: the CPU hands over to this one, this one to the other, the other to the CPU and the CPU
 * back, all once. Each turn goes by its own lanes, and the last hand-over in either lane is told apart though
 * readers clear the words. */
static void test_three_workers(void **state)
{
    (void)state;
    struct gpu_turn turn[] = {{.in = 1, .out = 1, .lane_in = 0, .lane_out = 4, .last_out = 1},
                              {.in = 2, .out = 1, .lane_in = 0, .lane_out = 1, .last_out = 2},
                              {.in = 1, .lane_in = 5}};
    struct gpu_program p = {.turn = turn, .turns = 3};
    _Atomic uint32_t lane[PLAN_LINKS] = {0}, sent = 0;
    const _Atomic uint32_t *word[PLAN_LINKS];
    struct watch w;
    for (uint32_t l = 0; l < PLAN_LINKS; l++) word[l] = &lane[l];
    watch_begin(&w, &p, 1, word, &sent, 100);
    lane[0] = 1;
    watch_look(&w, 200);
    assert_true(!w.waiting && w.turn == 0);
    lane[1] = 1; /* of another pair: of no meaning for this turn */
    watch_look(&w, 250);
    assert_true(!w.waiting && w.turn == 0);
    lane[1] = 0;
    sent = 1; /* the other device has taken it and cleared the word */
    watch_look(&w, 300);
    assert_true(w.waiting && w.turn == 1);
    lane[0] = 2;
    watch_look(&w, 400);
    assert_true(!w.waiting && w.turn == 1);
    watch_look(&w, 450); /* the first lane's last hand-over is not this one's */
    assert_true(!w.waiting && w.turn == 1);
    sent = 2;
    watch_look(&w, 500);
    assert_true(w.waiting && w.turn == 2);
    lane[5] = 1;
    watch_look(&w, 700);
    assert_false(w.waiting);
    assert_int_equal(watch_end(&w), 100 + 100 + 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_turns_and_waits),
        cmocka_unit_test(test_words_of_the_step_before),
        cmocka_unit_test(test_three_workers),
        cmocka_unit_test(test_device_is_looked_for),
        cmocka_unit_test(test_usual_turns_are_slept_through),
        cmocka_unit_test(test_other_steps_are_not_slept_through),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
