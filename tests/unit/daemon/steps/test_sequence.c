/* Unit tests of daemon/steps/sequence.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "daemon/steps/sequence.h"

static struct sequence *make(uint32_t prompt_count, uint32_t max_tokens)
{
    struct helm_err err = {0};
    struct request_generate request = {.prompt_count = prompt_count, .max_tokens = max_tokens};
    request.prompt = calloc(prompt_count, sizeof *request.prompt);
    struct sequence *seq = NULL;
    assert_int_equal(sequence_create(&request, &seq, &err), 0);
    assert_null(request.prompt); /* ownership moved */
    return seq;
}

static const int32_t eos[] = {2, 7};

static int append(struct sequence *seq, uint32_t token, uint64_t now_us)
{
    struct helm_err err = {0};
    return sequence_append(seq, token, eos, 2, now_us, &err);
}

static void ends_at_length(void **state)
{
    (void)state;
    struct sequence *seq = make(3, 200);
    for (uint32_t i = 0; i < 200; i++) {
        assert_int_equal(seq->finish, HELM__V1__FINISH_REASON__FINISH_UNSPECIFIED);
        assert_int_equal(append(seq, 10 + i, 5), 0);
    }
    assert_int_equal(seq->finish, HELM__V1__FINISH_REASON__FINISH_LENGTH);
    assert_int_equal(seq->tokens[3], 10);
    assert_int_equal(seq->tokens[202], 209);
    assert_int_equal(append(seq, 1, 5), HELM_E_NOMEM); /* never beyond what it was promised */
    sequence_free(seq);
}

static void ends_at_eos_unless_ignored(void **state)
{
    (void)state;
    struct sequence *seq = make(1, 9);
    assert_int_equal(append(seq, 7, 5), 0);
    assert_int_equal(seq->finish, HELM__V1__FINISH_REASON__FINISH_EOS);
    sequence_free(seq);
    seq = make(1, 9);
    seq->ignore_eos = true;
    assert_int_equal(append(seq, 7, 5), 0);
    assert_int_equal(seq->finish, HELM__V1__FINISH_REASON__FINISH_UNSPECIFIED);
    sequence_free(seq);
}

static void stop_ids_stop_and_the_first_reason_stays(void **state)
{
    (void)state;
    struct sequence *seq = make(1, 1);
    seq->stop[0] = 40;
    seq->stop_count = 1;
    assert_int_equal(append(seq, 40, 5), 0);
    assert_int_equal(seq->finish, HELM__V1__FINISH_REASON__FINISH_STOP);
    sequence_finish(seq, HELM__V1__FINISH_REASON__FINISH_CANCELLED, "late");
    assert_int_equal(seq->finish, HELM__V1__FINISH_REASON__FINISH_STOP);
    assert_string_equal(seq->detail, "");
    sequence_free(seq);
}

static void timings_add_up(void **state)
{
    (void)state;
    struct sequence *seq = make(100, 10);
    Helm__V1__Timings t;
    seq->arrived_us = 1000;
    sequence_timings(seq, 3000, &t);
    assert_true(t.queue_ms == 2 && t.ttft_ms == 0 && t.total_ms == 2);
    assert_string_equal(sequence_state_name(seq), "queued");
    seq->started_us = 2000;
    seq->slot = 0;
    assert_string_equal(sequence_state_name(seq), "prefill");
    assert_int_equal(append(seq, 50, 52000), 0);
    seq->cached = 100;
    assert_string_equal(sequence_state_name(seq), "decode");
    for (uint32_t i = 1; i < 5; i++) assert_int_equal(append(seq, 50, 52000 + i * 10000), 0);
    sequence_timings(seq, 100000, &t);
    assert_true(t.queue_ms == 1 && t.ttft_ms == 51 && t.total_ms == 99);
    assert_true(t.tpot_ms == 10 && t.decode_tok_s == 100 && t.prefill_tok_s == 2000);
    sequence_free(seq);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends_at_length),
        cmocka_unit_test(ends_at_eos_unless_ignored),
        cmocka_unit_test(stop_ids_stop_and_the_first_reason_stays),
        cmocka_unit_test(timings_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
