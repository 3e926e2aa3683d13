/* sampling_draw_few against sampling_draw: the same result, bit for bit, from what sampling_ask asks for;
 * what it asks for; and the sums over a row that come with the candidates (common/sampling/pass.c). */
#include <math.h>

#include "common/sampling/pass.h"
#include "tests/unit/common/sampling/sampling_case.h"

/* Instrumented, a quarter of what is drawn at random: its numbers are release's. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ROUNDS 3000
#else
#define ROUNDS 12000
#endif

static int falling_logits(const void *a, const void *b)
{
    const struct sampling_logit *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->token < y->token ? -1 : x->token > y->token;
}

/* Sum of the row's weights at this temperature; its largest logit is the best. */
static uint64_t weigh_row(const float *x, uint32_t vocab, float inv_temp)
{
    uint32_t blocks = (vocab + SAMPLING_BLOCK - 1) / SAMPLING_BLOCK;
    struct sampling_row row = {x, vocab, blocks, 0, inv_temp};
    float *block_max = malloc(blocks * sizeof *block_max);
    sampling_find_maxima(&row, block_max);
    uint64_t sum = row.top == -INFINITY ? 0 : sampling_find_weights(&row, block_max, NULL);
    free(block_max);
    return sum;
}

struct few_case {
    struct sampling_logit *all;
    uint32_t *token, *times;
    float *changed;
    void *scratch;
    const float *row;
    uint32_t vocab;
};

/* Draws from a device's candidates, with `more` than were asked for, in some order. 2: the row is needed. */
static int draw_few(const struct few_case *c, const struct sampling_params *p,
                    const struct sampling_tokens *tokens, uint32_t more, uint64_t *random,
                    struct sampling_result *result)
{
    const float *x = c->row;
    const uint32_t vocab = c->vocab;
    struct sampling_changes changes = {c->token, c->times, 0};
    struct sampling_ask ask;
    struct sampling_few few = {.candidate = c->all, .changed = c->changed};
    uint32_t finite = 0;
    sampling_ask(p, vocab, tokens, c->scratch, &changes, &ask);
    if (ask.need != SAMPLING_NEEDS_FEW) return 2;
    assert_true(ask.candidates <= SAMPLING_FEW_MAX && changes.count <= SAMPLING_CHANGES_MAX);
    for (uint32_t i = 0; i < vocab; i++)
        if (isfinite(x[i])) c->all[finite++] = (struct sampling_logit){i, x[i]};
    qsort(c->all, finite, sizeof *c->all, falling_logits);
    few.count = ask.candidates + more < finite ? ask.candidates + more : finite;
    few.all = few.count == finite;
    for (uint32_t i = few.count; i > 1; i--) {
        uint32_t j = random_u32(random) % i;
        struct sampling_logit swap = c->all[i - 1];
        c->all[i - 1] = c->all[j];
        c->all[j] = swap;
    }
    for (uint32_t i = 0; i < changes.count; i++) c->changed[i] = x[changes.token[i]];
    if (ask.sum) few.sum = weigh_row(x, vocab, ask.inv_temp);
    if (ask.model_sum) few.model_sum = weigh_row(x, vocab, 1);
    return sampling_draw_few(p, &few, vocab, &changes, tokens->count, c->scratch, result);
}

static void test_few_draw_as_the_row(void **state)
{
    (void)state;
    enum { VOCAB = 3001, HISTORY = 400 };
    static const uint32_t vocabs[] = {1, 5, 64, 257, 300, 1000, VOCAB, VOCAB};
    static const uint32_t top_ks[] = {0, 1, 5, 20, 50, 256, 257};
    static const float top_ps[] = {1, 1, 0.95f, 0.3f}, min_ps[] = {0, 0, 0.05f, 0.9f};
    uint32_t history[HISTORY], drawn = 0, wanting = 0, rows = 0, none = 0;
    float *x = malloc(VOCAB * sizeof *x);
    struct few_case c = {.all = malloc(VOCAB * sizeof *c.all),
                         .token = malloc(SAMPLING_CHANGES_MAX * sizeof *c.token),
                         .times = malloc(SAMPLING_CHANGES_MAX * sizeof *c.times),
                         .changed = malloc(SAMPLING_CHANGES_MAX * sizeof *c.changed)};
    assert_int_equal(posix_memalign(&c.scratch, 64, (sampling_scratch_bytes(VOCAB) + 63) / 64 * 64), 0);
    memset(c.scratch, 0xcd, sampling_scratch_bytes(VOCAB));
    uint64_t random = 77;
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t vocab = vocabs[random_u32(&random) % 8], count = random_u32(&random) % HISTORY;
        uint32_t prompt = random_u32(&random) % (count + 1), kind = random_u32(&random) % 6;
        float spread = (float[]){0, 0.5f, 3, 8}[random_u32(&random) % 4];
        for (uint32_t i = 0; i < vocab; i++) {
            x[i] = random_normal(&random) * spread;
            if (kind == 0) x[i] = roundf(x[i]); /* ties, with zeros of both signs */
            if (kind == 1 && random_u32(&random) % 3 == 0)
                x[i] = (float[]){NAN, INFINITY, -INFINITY, -0.0f}[random_u32(&random) % 4];
            if (kind == 2 && i % 50 != 7) x[i] = -INFINITY;
        }
        /* of the history many are likely tokens, as in a text */
        for (uint32_t i = 0; i < count; i++)
            history[i] = random_u32(&random) % (random_u32(&random) % 2 ? vocab + 3 : vocab / 8 + 1);
        struct sampling_params p = plain_params();
        p.temperature = (float[]){0, 0.6f, 1, 1.7f, 1e-6f, 100}[random_u32(&random) % 6];
        p.top_k = top_ks[random_u32(&random) % 7];
        p.top_p = top_ps[random_u32(&random) % 4];
        p.min_p = min_ps[random_u32(&random) % 4];
        p.seed = random_u32(&random);
        p.logprobs = random_u32(&random) % 3 == 0 ? random_u32(&random) % (SAMPLING_LOGPROBS_MAX + 1) : 0;
        if (random_u32(&random) % 2 == 0) {
            p.repetition_penalty = (float[]){1, 0.7f, 1.1f, 100}[random_u32(&random) % 4];
            p.presence_penalty = (float)random_unit(&random) * 4 - 2;
            p.frequency_penalty = random_u32(&random) % 2 ? (float)random_unit(&random) * 4 - 2 : 0;
            p.bias_count = random_u32(&random) % 6;
            for (uint32_t b = 0; b < p.bias_count; b++) {
                p.bias[b].token = random_u32(&random) % (vocab + 1);
                p.bias[b].bias = (float)random_unit(&random) * 20 - 10;
            }
        }
        struct sampling_result whole, less;
        c.row = x;
        c.vocab = vocab;
        int rc = run(&p, x, vocab, history, count, prompt, &whole);
        int few = draw_few(&c, &p, &(struct sampling_tokens){history, count, prompt, NULL},
                           random_u32(&random) % 20, &random, &less);
        if (few == 2) rows++;
        if (few == 1) wanting++;
        if (few > 0) continue;
        assert_int_equal(few, rc);
        none += few == -1;
        drawn += few == 0;
        if (few == 0 && memcmp(&whole, &less, sizeof whole) != 0)
            fail_msg(
                "round %d: vocab %u T %g top-k %u top-p %g min-p %g logprobs %u: token %u, of the row %u",
                round, vocab, (double)p.temperature, p.top_k, (double)p.top_p, (double)p.min_p, p.logprobs,
                less.token, whole.token);
    }
    print_message(
        "of 12000 draws %u from few, %u of nothing finite, %u wanted the row after all, %u from the start\n",
        drawn, none, wanting, rows);
    assert_true(drawn > ROUNDS / 12 * 7 && none > 0 && wanting > 0 && rows > 0);
    free(x);
    free(c.all);
    free(c.token);
    free(c.times);
    free(c.changed);
    free(c.scratch);
}

/* The settings of chat models need few candidates; sampling.h says which settings do not. */
static void test_what_is_asked_for(void **state)
{
    (void)state;
    enum { VOCAB = 151936, LONG = SAMPLING_CHANGES_MAX + 1 };
    struct sampling_changes changes = {malloc(SAMPLING_CHANGES_MAX * 4), malloc(SAMPLING_CHANGES_MAX * 4), 0};
    uint32_t *history = malloc(LONG * sizeof *history);
    void *scratch = aligned_alloc(64, (sampling_scratch_bytes(VOCAB) + 63) / 64 * 64);
    struct sampling_params p = plain_params();
    struct sampling_ask ask;
    for (uint32_t i = 0; i < LONG; i++) history[i] = i;
    const uint32_t *mask = NULL;
#define ASK(length)                                                                                          \
    sampling_ask(&p, VOCAB, &(struct sampling_tokens){history, length, 1, mask}, scratch, &changes, &ask)
    ASK(9);
    assert_int_equal(ask.need, SAMPLING_NEEDS_ROW);
    p.temperature = 0;
    ASK(9);
    assert_int_equal(ask.need, SAMPLING_NEEDS_BEST);
    mask = history; /* any */
    ASK(9);
    assert_int_equal(ask.need, SAMPLING_NEEDS_ROW);
    mask = NULL;
    p.logprobs = 5;
    p.asked = 1;
    ASK(9);
    assert_int_equal(ask.need, SAMPLING_NEEDS_ROW);
    p.asked = 0;
    ASK(9);
    assert_int_equal(ask.need, SAMPLING_NEEDS_FEW);
    assert_int_equal(ask.candidates, 5);
    assert_true(ask.model_sum && !ask.sum);
    p = plain_params();
    p.temperature = 0.6f;
    p.top_k = 20;
    p.top_p = 0.95f;
    ASK(9);
    assert_int_equal(ask.need, SAMPLING_NEEDS_FEW);
    assert_int_equal(ask.candidates, 20);
    assert_true(!ask.model_sum && !ask.sum && changes.count == 0);
    p.repetition_penalty = 1.05f;
    ASK(9);
    assert_int_equal(ask.need, SAMPLING_NEEDS_FEW);
    assert_int_equal(ask.candidates, SAMPLING_FEW_MAX);
    assert_int_equal(changes.count, 9);
    ASK(LONG);
    assert_int_equal(ask.need, SAMPLING_NEEDS_ROW);
    ASK(LONG - 1);
    assert_int_equal(ask.need, SAMPLING_NEEDS_FEW);
    p.top_k = 0;
    ASK(9);
    assert_int_equal(ask.need, SAMPLING_NEEDS_ROW);
    p.repetition_penalty = 1;
    ASK(9);
    assert_int_equal(ask.need, SAMPLING_NEEDS_FEW);
    assert_true(ask.sum && ask.inv_temp == 1 / 0.6f);
    p.top_p = 1;
    p.min_p = 0.05f;
    ASK(9);
    assert_int_equal(ask.need, SAMPLING_NEEDS_FEW);
    assert_true(!ask.sum);
    p.min_p = 0;
    p.top_k = SAMPLING_FEW_MAX + 1;
    ASK(9);
    assert_int_equal(ask.need, SAMPLING_NEEDS_ROW);
#undef ASK
    free(changes.token);
    free(changes.times);
    free(history);
    free(scratch);
}

/* A block's sum of weights has the same bits whichever instructions this machine has: token by token they are
 * computed without any of the wider ones. */
static void test_sums_are_those_of_single_weights(void **state)
{
    (void)state;
    enum { VOCAB = 64 * 40 + 13, BLOCKS = 41 };
    float x[VOCAB], block_max[BLOCKS];
    uint64_t random = 5, sums[BLOCKS], weight[SAMPLING_BLOCK];
    for (int round = 0; round < 200; round++) {
        struct sampling_row row = {x, VOCAB, BLOCKS, 0, (float[]){1, 1 / 0.6f, 0.01f, 1e4f}[round % 4]};
        for (int i = 0; i < VOCAB; i++) x[i] = random_normal(&random) * (float[]){0.1f, 3, 12}[round % 3];
        if (round % 5 == 0) x[round] = NAN;
        sampling_find_maxima(&row, block_max);
        uint64_t whole = sampling_find_weights(&row, block_max, sums), sum = 0;
        for (uint32_t b = 0; b < BLOCKS; b++) {
            uint64_t block = 0;
            sampling_block_weights(&row, b, weight);
            for (int i = 0; i < SAMPLING_BLOCK; i++) block += weight[i];
            assert_int_equal(block, sums[b]);
            sum += block;
        }
        assert_int_equal(sum, whole);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_few_draw_as_the_row),
        cmocka_unit_test(test_what_is_asked_for),
        cmocka_unit_test(test_sums_are_those_of_single_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
