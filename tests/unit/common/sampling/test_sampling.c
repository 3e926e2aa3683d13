/* common/sampling/sampling.c against a brute-force sampler that follows the header's words with a full sort
 * and libm's exp: random vocabularies, ties, every combination of filters; then the draw's distribution, the
 * penalties by hand, logprobs, non-finite logits and reproducibility. Draws from less than a row:
 * test_sampling_few.c.
 *
 * The brute force has another exp, so where the draw or a cut lies within 1e-6 of a border the two may
 * differ: the result must then be what the brute force gives with the number moved by that much, and that
 * must be rare. */
#include <float.h>
#include <math.h>

#include "tests/unit/common/sampling/sampling_case.h"

/* Instrumented, a quarter of what is drawn at random: its numbers are release's. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ROUNDS     1000
#define NEXT_ROUND 5 /* of a large vocabulary: each spread, with each top_k or top_p */
#else
#define ROUNDS     4000
#define NEXT_ROUND 1
#endif

/* ---- brute force ------------------------------------------------------------------------------- */

static void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t k0 = key[0], k1 = key[1];
    memcpy(out, counter, 16);
    for (int i = 0; i < 10; i++) {
        uint64_t a = 0xd2511f53ull * out[0], b = 0xcd9e8d57ull * out[2];
        uint32_t c1 = out[1], c3 = out[3];
        out[0] = (uint32_t)(b >> 32) ^ c1 ^ k0;
        out[1] = (uint32_t)b;
        out[2] = (uint32_t)(a >> 32) ^ c3 ^ k1;
        out[3] = (uint32_t)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
}

static double uniform_of(uint64_t seed, uint32_t index)
{
    const uint32_t counter[4] = {index, 0, 0, 0}, key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t out[4];
    philox(counter, key, out);
    return (double)(((uint64_t)out[0] << 32 | out[1]) >> 11) / 9007199254740992.0;
}

struct entry {
    uint32_t id;
    float x;
    double weight;
    bool stays;
};
static int falling(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->x != y->x) return x->x > y->x ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}
static int by_id(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return x->id < y->id ? -1 : x->id > y->id;
}

static float clip(double x)
{
    return x > FLT_MAX ? FLT_MAX : x < -FLT_MAX ? -FLT_MAX : (float)x;
}

static void adjust_plainly(const struct sampling_params *p, float *x, uint32_t vocab, const uint32_t *history,
                           uint32_t count, uint32_t prompt)
{
    for (uint32_t id = 0; id < vocab; id++) {
        uint32_t anywhere = 0, in_output = 0;
        for (uint32_t i = 0; i < count; i++) {
            anywhere += history[i] == id;
            in_output += i >= prompt && history[i] == id;
        }
        if (!isfinite(x[id])) continue;
        if (anywhere > 0)
            x[id] = clip(x[id] > 0 ? (double)x[id] / p->repetition_penalty
                                   : (double)x[id] * p->repetition_penalty);
        if (in_output > 0)
            x[id] = clip((double)x[id] -
                         ((double)p->presence_penalty + (double)p->frequency_penalty * in_output));
        for (uint32_t b = 0; b < p->bias_count; b++)
            if (p->bias[b].token == id) x[id] = clip((double)x[id] + (double)p->bias[b].bias);
    }
}

/* nudge moves p, min_p and u (each by -1, 0 or 1 times 1e-6). */
static uint32_t draw_plainly(const struct sampling_params *p, const float *x, uint32_t vocab, uint32_t index,
                             const int nudge[3])
{
    struct entry *e = malloc(vocab * sizeof(*e));
    size_t n = 0;
    for (uint32_t id = 0; id < vocab; id++)
        if (isfinite(x[id])) e[n++] = (struct entry){id, x[id], 0, true};
    qsort(e, n, sizeof(*e), falling);
    uint32_t winner = e[0].id;
    if (p->temperature == 0) {
        free(e);
        return winner;
    }
    for (size_t i = 0; i < n; i++)
        e[i].weight = exp(((double)e[i].x - (double)e[0].x) / (double)p->temperature);
    if (p->top_k > 0 && p->top_k < n) n = p->top_k;
    double sum = 0, running = 0, top_p = (double)p->top_p + 1e-6 * nudge[0];
    for (size_t i = 0; i < n; i++) sum += e[i].weight;
    if (p->top_p < 1) {
        size_t kept = 0;
        while (kept < n && (kept == 0 || running < top_p * sum)) running += e[kept++].weight;
        n = kept;
    }
    double floor_weight = (double)p->min_p * (1 + 1e-6 * nudge[1]);
    size_t kept = 0;
    while (kept < n && (kept == 0 || e[kept].weight >= floor_weight)) kept++;
    n = kept;
    qsort(e, n, sizeof(*e), by_id);
    sum = running = 0;
    for (size_t i = 0; i < n; i++) sum += e[i].weight;
    double at = (uniform_of(p->seed, index) + 1e-6 * nudge[2]) * sum;
    winner = e[n - 1].id;
    for (size_t i = 0; i < n; i++) {
        running += e[i].weight;
        if (running > at) {
            winner = e[i].id;
            break;
        }
    }
    free(e);
    return winner;
}

/* ---- tests ------------------------------------------------------------------------------------- */

static void test_philox_known_answer(void **state)
{
    (void)state;
    const uint32_t zero[4] = {0};
    uint32_t out[4];
    philox(zero, zero, out); /* the published vector */
    assert_int_equal(out[0], 0x6627e8d5u);
    assert_int_equal(out[1], 0xe169c58du);
    assert_int_equal(out[2], 0xbc57ac4cu);
    assert_int_equal(out[3], 0x9b00dbd8u);
}

static void test_against_brute_force(void **state)
{
    (void)state;
    static const uint32_t vocabs[] = {1, 2, 7, 63, 64, 65, 300, 1000, 5000};
    static const float temperatures[] = {0, 1e-6f, 0.1f, 0.8f, 1, 1.7f, 100},
                       top_ps[] = {1, 0.95f, 0.5f, 0.05f, 0.999f};
    static const float min_ps[] = {0, 0, 0.05f, 0.5f, 1};
    static const uint32_t top_ks[] = {0, 0, 1, 5, 40, 1000};
    uint64_t random = 1;
    int cases = 0, nudged = 0;
    float *x = malloc(5000 * sizeof(float)), *adjusted = malloc(5000 * sizeof(float));
    for (int round = 0; round < ROUNDS; round++, cases++) {
        uint32_t vocab = vocabs[random_u32(&random) % (round % 20 == 0 ? 9 : 8)], history[40],
                 count = random_u32(&random) % 40;
        uint32_t prompt = random_u32(&random) % (count + 1);
        float spread = (float[]){0, 0.5f, 3, 20}[random_u32(&random) % 4];
        bool ties = random_u32(&random) % 3 == 0;
        for (uint32_t i = 0; i < vocab; i++) {
            x[i] = random_normal(&random) * spread;
            if (ties) x[i] = roundf(x[i]);
            if (random_u32(&random) % 100 == 0)
                x[i] = (float[]){NAN, INFINITY, -INFINITY, -0.0f}[random_u32(&random) % 4];
        }
        x[random_u32(&random) % vocab] = 1;
        for (uint32_t i = 0; i < count; i++)
            history[i] = random_u32(&random) % (vocab + 3); /* some out of range */
        struct sampling_params p = plain_params();
        p.temperature = temperatures[random_u32(&random) % 7];
        p.top_k = top_ks[random_u32(&random) % 6];
        p.top_p = top_ps[random_u32(&random) % 5];
        p.min_p = min_ps[random_u32(&random) % 5];
        p.seed = random_u32(&random);
        if (random_u32(&random) % 2 == 0) {
            p.repetition_penalty = (float[]){1, 0.5f, 1.3f, 100}[random_u32(&random) % 4];
            p.presence_penalty = (float)random_unit(&random) * 4 - 2;
            p.frequency_penalty = (float)random_unit(&random) * 4 - 2;
            p.bias_count = random_u32(&random) % 6;
            for (uint32_t b = 0; b < p.bias_count; b++) {
                p.bias[b].token = random_u32(&random) % (vocab + 1);
                p.bias[b].bias = (float)random_unit(&random) * 20 - 10;
            }
        }
        struct sampling_result result;
        assert_int_equal(run(&p, x, vocab, history, count, prompt, &result), 0);
        memcpy(adjusted, x, vocab * sizeof(float));
        adjust_plainly(&p, adjusted, vocab, history, count, prompt);
        bool equal = draw_plainly(&p, adjusted, vocab, count, (int[]){0, 0, 0}) == result.token;
        if (!equal) {
            nudged++;
            for (int i = 0; i < 27 && !equal; i++)
                equal = draw_plainly(&p, adjusted, vocab, count,
                                     (int[]){i % 3 - 1, i / 3 % 3 - 1, i / 9 - 1}) == result.token;
        }
        if (!equal)
            fail_msg("case %d: vocab %u temperature %g top-k %u top-p %g min-p %g: token %u", round, vocab,
                     (double)p.temperature, p.top_k, (double)p.top_p, (double)p.min_p, result.token);
    }
    assert_true(nudged * 200 < cases);
    free(x);
    free(adjusted);
}

/* Which tokens can come out at all: drawn often enough, the support is exactly the set the header defines. */
static void test_survivors_on_ties(void **state)
{
    (void)state;
    enum { VOCAB = 200 };
    float x[VOCAB];
    for (int i = 0; i < VOCAB; i++) x[i] = i % 2 == 0 ? 1 : 0; /* 100 equal winners: even ids */
    struct sampling_params p = plain_params();
    struct sampling_result result;
    bool seen[VOCAB] = {false};
    p.top_k = 5;
    for (uint64_t seed = 0; seed < 300; seed++) {
        p.seed = seed;
        assert_int_equal(run(&p, x, VOCAB, NULL, 0, 0, &result), 0);
        seen[result.token] = true;
    }
    for (int i = 0; i < VOCAB; i++) assert_int_equal(seen[i], i < 10 && i % 2 == 0);
    memset(seen, 0, sizeof(seen));
    p.top_k = 0;
    p.temperature = 0.01f; /* odd ids weigh nothing: 100 equal tokens, of which top-p 0.0401 keeps 5 */
    p.top_p = 0.0401f;
    for (uint64_t seed = 0; seed < 300; seed++) {
        p.seed = seed;
        assert_int_equal(run(&p, x, VOCAB, NULL, 0, 0, &result), 0);
        seen[result.token] = true;
    }
    for (int i = 0; i < VOCAB; i++) assert_int_equal(seen[i], i < 10 && i % 2 == 0);
}

static void test_distribution(void **state)
{
    (void)state;
    enum { VOCAB = 130, DRAWS = 20000 };
    float x[VOCAB];
    uint64_t random = 3;
    for (int i = 0; i < VOCAB; i++) x[i] = random_normal(&random) * 1.5f;
    for (int which = 0; which < 3; which++) {
        struct sampling_params p = plain_params();
        p.temperature = 0.8f;
        p.seed = 1234 + (uint64_t)which;
        if (which == 1) p.top_k = 20;
        if (which == 2) p.top_p = 0.9f;
        struct entry e[VOCAB];
        double sum = 0, running = 0, chi = 0;
        int drawn[VOCAB] = {0}, cells = 0;
        for (uint32_t i = 0; i < VOCAB; i++) e[i] = (struct entry){i, x[i], exp((double)x[i] / 0.8), true};
        qsort(e, VOCAB, sizeof(*e), falling);
        for (int i = 0; i < VOCAB; i++) sum += e[i].weight;
        double whole = sum;
        sum = 0;
        for (int i = 0; i < VOCAB; i++) {
            if (which == 1) e[i].stays = i < 20;
            if (which == 2) e[i].stays = running < (double)0.9f * whole;
            running += e[i].weight;
            if (e[i].stays) sum += e[i].weight;
        }
        struct sampling_result result;
        for (uint32_t index = 0; index < DRAWS; index++) {
            uint32_t *history = calloc(index + 1, sizeof(*history)); /* only its length matters here */
            assert_int_equal(run(&p, x, VOCAB, history, index % 5000, 0, &result), 0);
            free(history);
            if (index % 5000 == 4999) p.seed += 1000;
            drawn[result.token]++;
        }
        double rest_expected = 0;
        int rest_drawn = 0;
        for (int i = 0; i < VOCAB; i++) {
            if (!e[i].stays) {
                assert_int_equal(drawn[e[i].id], 0);
                continue;
            }
            double expected = e[i].weight / sum * DRAWS;
            if (expected < 10) {
                rest_expected += expected;
                rest_drawn += drawn[e[i].id];
                continue;
            }
            chi += (drawn[e[i].id] - expected) * (drawn[e[i].id] - expected) / expected;
            cells++;
        }
        if (rest_expected >= 10) {
            chi += (rest_drawn - rest_expected) * (rest_drawn - rest_expected) / rest_expected;
            cells++;
        }
        /* Mean cells - 1, standard deviation sqrt(2 (cells - 1)); fixed seeds, so this passes or fails for
         * good. */
        assert_true(chi < cells - 1 + 4 * sqrt(2.0 * (cells - 1)));
    }
}

static void test_greedy_ties_and_signed_zero(void **state)
{
    (void)state;
    float x[200];
    struct sampling_params p = plain_params();
    struct sampling_result result;
    p.temperature = 0;
    for (int i = 0; i < 200; i++) x[i] = -1;
    x[77] = x[150] = 3;
    assert_int_equal(run(&p, x, 200, NULL, 0, 0, &result), 0);
    assert_int_equal(result.token, 77);
    x[77] = x[150] = -1;
    x[5] = -0.0f;
    x[9] = 0.0f;
    assert_int_equal(run(&p, x, 200, NULL, 0, 0, &result), 0);
    assert_int_equal(result.token, 5);
    p.temperature = 1;
    p.top_k = 1;
    assert_int_equal(run(&p, x, 200, NULL, 0, 0, &result), 0);
    assert_int_equal(result.token, 5);
}

static void test_non_finite(void **state)
{
    (void)state;
    float x[70];
    struct sampling_params p = plain_params();
    struct sampling_result result;
    p.logprobs = 5;
    for (int i = 0; i < 70; i++) x[i] = (float[]){NAN, INFINITY, -INFINITY}[i % 3];
    for (int i = 0; i < 2; i++) {
        p.temperature = (float)i;
        assert_int_equal(run(&p, x, 70, NULL, 0, 0, &result), -1);
    }
    x[66] = -1e30f;
    x[3] = -FLT_MAX;
    for (int i = 0; i < 2; i++) {
        p.temperature = (float)i;
        assert_int_equal(run(&p, x, 70, NULL, 0, 0, &result), 0);
        assert_int_equal(result.token, 66);
        assert_int_equal(result.top_count, 2);
        assert_int_equal(result.top[0].token, 66);
        assert_int_equal(result.top[1].token, 3);
        assert_true(result.top[0].logprob == 0);
    }
}

static void test_penalties_by_hand(void **state)
{
    (void)state;
    const float x[4] = {2, 1.9f, -1, -1.2f};
    const uint32_t history[5] = {0, 0, 1, 1, 1}; /* prompt: 0 0; output: 1 1 1 */
    struct sampling_params p = plain_params();
    struct sampling_result result;
    p.temperature = 0;
    p.repetition_penalty = 2; /* 1, 0.95, -1, -1.2 */
    assert_int_equal(run(&p, x, 4, history, 5, 2, &result), 0);
    assert_int_equal(result.token, 0);
    p.repetition_penalty = 1;
    p.frequency_penalty = -0.1f; /* 2, 2.2: three times in the output */
    assert_int_equal(run(&p, x, 4, history, 5, 2, &result), 0);
    assert_int_equal(result.token, 1);
    p.frequency_penalty = 0;
    p.presence_penalty = -0.2f; /* 2, 2.1: once, however often */
    assert_int_equal(run(&p, x, 4, history, 5, 2, &result), 0);
    assert_int_equal(result.token, 1);
    p.presence_penalty = -0.09f;
    assert_int_equal(run(&p, x, 4, history, 5, 2, &result), 0);
    assert_int_equal(result.token, 0);
    p.presence_penalty = 2; /* of the output only: token 0 keeps its 2 */
    assert_int_equal(run(&p, x, 4, history, 5, 2, &result), 0);
    assert_int_equal(result.token, 0);
    const float negative[2] = {-1, -1.5f}; /* a negative logit is multiplied: -2, -1.5 */
    p = plain_params();
    p.temperature = 0;
    p.repetition_penalty = 2;
    assert_int_equal(run(&p, negative, 2, history, 1, 1, &result), 0);
    assert_int_equal(result.token, 1);
    p = plain_params();
    p.temperature = 0;
    p.bias_count = 3;
    p.bias[0].token = p.bias[1].token = 3; /* entries add up */
    p.bias[0].bias = p.bias[1].bias = 1.7f;
    p.bias[2].token = 4000000000u;
    assert_int_equal(run(&p, x, 4, NULL, 0, 0, &result), 0);
    assert_int_equal(result.token, 3);
    p.bias[0].bias = 1.4f;
    assert_int_equal(run(&p, x, 4, NULL, 0, 0, &result), 0);
    assert_int_equal(result.token, 0);
}

static void test_logprobs_are_the_models(void **state)
{
    (void)state;
    enum { VOCAB = 1500 };
    float *x = malloc(VOCAB * sizeof(float));
    uint64_t random = 9;
    for (int round = 0; round < 60; round++) {
        struct sampling_params p = plain_params();
        struct sampling_result result;
        uint32_t vocab = round < 50 ? VOCAB : 12, history[3] = {1, 2, 3};
        for (uint32_t i = 0; i < vocab; i++) {
            x[i] = random_normal(&random) * 4 + 30;
            if (round % 2 == 0) x[i] = roundf(x[i]);
        }
        p.logprobs = 1 + (uint32_t)round % SAMPLING_LOGPROBS_MAX;
        p.temperature = round % 3 == 0 ? 0 : 0.7f;
        p.repetition_penalty = round % 4 == 0 ? 1.5f : 1;
        p.top_k = round % 5 == 0 ? 10 : 0;
        p.seed = (uint64_t)round;
        assert_int_equal(run(&p, x, vocab, history, 3, 1, &result), 0);
        struct entry e[VOCAB];
        double sum = 0;
        for (uint32_t i = 0; i < vocab; i++) {
            e[i] = (struct entry){i, x[i], 0, true};
            sum += exp((double)x[i] - 30);
        }
        qsort(e, vocab, sizeof(*e), falling);
        double log_sum = 30 + log(sum);
        uint32_t expected = p.logprobs < vocab ? p.logprobs : vocab;
        assert_int_equal(result.top_count, expected);
        assert_true(fabs((double)result.logprob - ((double)x[result.token] - log_sum)) < 2e-6);
        for (uint32_t i = 0; i < expected; i++) {
            assert_int_equal(result.top[i].token, e[i].id);
            assert_true(fabs((double)result.top[i].logprob - ((double)e[i].x - log_sum)) < 2e-6);
        }
        uint32_t token = result.token;
        float own = result.logprob;
        p.asked = 1;
        p.logprobs = 1 + (uint32_t)round % SAMPLING_LOGPROBS_MAX;
        for (uint32_t i = 0; i < p.logprobs; i++)
            p.of[i] = e[(i * 7919u + 5) % vocab].id; /* also the least likely */
        assert_int_equal(run(&p, x, vocab, history, 3, 1, &result), 0);
        assert_int_equal(result.token, token);
        assert_true(result.logprob == own);
        assert_int_equal(result.top_count, p.logprobs);
        for (uint32_t i = 0; i < p.logprobs; i++) {
            assert_int_equal(result.top[i].token, p.of[i]);
            assert_true(fabs((double)result.top[i].logprob - ((double)x[p.of[i]] - log_sum)) < 2e-6);
        }
        p.asked = p.logprobs = 0;
        assert_int_equal(run(&p, x, vocab, history, 3, 1, &result), 0);
        assert_int_equal(result.token, token);
        assert_true(result.logprob == 0);
        assert_int_equal(result.top_count, 0);
    }
    free(x);
}

/* Tokens without a finite logit: no number stands for them. */
static void test_asked_without_a_logit(void **state)
{
    (void)state;
    const float x[4] = {1, NAN, -INFINITY, 2};
    struct sampling_params p = plain_params();
    struct sampling_result result;
    p.temperature = 0;
    p.asked = 1;
    p.logprobs = 4;
    for (uint32_t i = 0; i < 4; i++) p.of[i] = i == 3 ? 3 : 2 - i;
    assert_int_equal(run(&p, x, 4, NULL, 0, 0, &result), 0);
    assert_true(result.top[0].logprob == -INFINITY && result.top[1].logprob == -INFINITY);
    assert_true(fabs((double)result.top[2].logprob - (1 - log(exp(1) + exp(2)))) < 1e-6);
    assert_true(result.top[3].logprob == result.logprob);
}

/* The draw depends on seed and index alone, and on both. */
static void test_reproducible(void **state)
{
    (void)state;
    float x[512] = {0};
    uint32_t history[100] = {0}, tokens[100];
    struct sampling_params p = plain_params();
    struct sampling_result result;
    int same = 0;
    p.seed = 0x123456789abcdef0u;
    for (uint32_t i = 0; i < 100; i++) {
        assert_int_equal(run(&p, x, 512, history, i, 0, &result), 0);
        tokens[i] = result.token;
        assert_int_equal(run(&p, x, 512, history, i, i / 2, &result), 0);
        assert_int_equal(result.token, tokens[i]);
        assert_int_equal(result.token, (uint32_t)(uniform_of(p.seed, i) * 512));
    }
    p.seed ^= (uint64_t)1 << 63;
    for (uint32_t i = 0; i < 100; i++) {
        assert_int_equal(run(&p, x, 512, history, i, 0, &result), 0);
        same += result.token == tokens[i];
    }
    assert_true(same < 5);
}

/* A real vocabulary, flat and peaked, every path: only the set's bounds can be checked cheaply here. */
static void test_large_vocabulary(void **state)
{
    (void)state;
    const uint32_t vocab = 151936;
    float *x = malloc(vocab * sizeof(float));
    struct sampling_result result;
    uint64_t random = 21;
    for (int round = 0; round < 24; round += NEXT_ROUND) {
        float spread = (float[]){0, 0.1f, 2, 8}[round % 4];
        for (uint32_t i = 0; i < vocab; i++) x[i] = random_normal(&random) * spread;
        struct sampling_params p = plain_params();
        p.seed = (uint64_t)round;
        p.top_k = round / 4 % 3 == 0 ? 0 : round / 4 % 3 == 1 ? 50 : 10000;
        p.top_p = round / 12 == 0 ? 0.95f : 0.3f;
        assert_int_equal(run(&p, x, vocab, NULL, 0, 0, &result), 0);
        bool equal = false;
        for (int i = 0; i < 27 && !equal; i++) {
            int at = (i + 13) % 27; /* no nudge first */
            equal = draw_plainly(&p, x, vocab, 0, (int[]){at % 3 - 1, at / 3 % 3 - 1, at / 9 - 1}) ==
                    result.token;
        }
        assert_true(equal);
    }
    free(x);
}

/* With a mask the draw is that of a row in which the others are -inf, with the model's own logprobs. */
static void test_mask_is_minus_infinity(void **state)
{
    (void)state;
    enum { VOCAB = 1000 };
    uint64_t random = 99;
    float *x = malloc(VOCAB * sizeof *x), *cut = malloc(VOCAB * sizeof *cut),
          *copy = malloc(VOCAB * sizeof *copy);
    uint32_t mask[(VOCAB + 31) / 32], history[8];
    void *scratch = aligned_alloc(64, (sampling_scratch_bytes(VOCAB) + 63) / 64 * 64);
    for (int round = 0; round < 400; round++) {
        struct sampling_params p = plain_params();
        struct sampling_result with, without, plain;
        memset(mask, 0, sizeof mask);
        for (int i = 0; i < VOCAB; i++) x[i] = (float)random_unit(&random) * 12 - 6;
        const uint32_t most = 1 + random_u32(&random) % 40;
        for (uint32_t i = 0; i < most; i++) {
            const uint32_t id = random_u32(&random) % VOCAB;
            mask[id / 32] |= 1u << id % 32;
        }
        if (round % 7 == 0) memset(mask, 0xff, sizeof mask - 4);
        for (uint32_t i = 0; i < VOCAB; i++) cut[i] = mask[i / 32] >> i % 32 & 1 ? x[i] : -INFINITY;
        for (int i = 0; i < 8; i++) history[i] = random_u32(&random) % VOCAB;
        p.temperature = round % 3 ? 0.8f : 0;
        p.top_k = round % 4 ? 0 : 5;
        p.top_p = round % 5 ? 1 : 0.7f;
        p.seed = random_u32(&random);
        p.logprobs = 3;
        if (round % 2) p.repetition_penalty = 1.3f;
        p.bias_count = round % 6 ? 0 : 1;
        p.bias[0].token = history[0];
        p.bias[0].bias = 50;
        memcpy(copy, x, VOCAB * sizeof *x);
        const int rc =
            sampling_draw(&p, copy, VOCAB, &(struct sampling_tokens){history, 8, 4, mask}, scratch, &with);
        assert_memory_equal(copy, x, VOCAB * sizeof *x);
        assert_int_equal(rc, run(&p, cut, VOCAB, history, 8, 4, &without));
        assert_int_equal(rc, 0);
        assert_int_equal(with.token, without.token);
        assert_true(mask[with.token / 32] >> with.token % 32 & 1);
        assert_int_equal(run(&p, x, VOCAB, history, 8, 4, &plain), 0);
        assert_memory_equal(with.top, plain.top, sizeof with.top); /* the model's own */
    }
    for (int i = 0; i < VOCAB; i++) x[i] = i == 3 ? NAN : 1;
    memset(mask, 0, sizeof mask);
    mask[0] = 8;
    struct sampling_params p = plain_params();
    struct sampling_result none;
    assert_int_equal(sampling_draw(&p, x, VOCAB, &(struct sampling_tokens){history, 8, 4, mask}, scratch,
                                   &none),
                     -1);
    free(scratch);
    free(copy);
    free(cut);
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox_known_answer),
        cmocka_unit_test(test_against_brute_force),
        cmocka_unit_test(test_survivors_on_ties),
        cmocka_unit_test(test_distribution),
        cmocka_unit_test(test_greedy_ties_and_signed_zero),
        cmocka_unit_test(test_non_finite),
        cmocka_unit_test(test_penalties_by_hand),
        cmocka_unit_test(test_logprobs_are_the_models),
        cmocka_unit_test(test_asked_without_a_logit),
        cmocka_unit_test(test_reproducible),
        cmocka_unit_test(test_large_vocabulary),
        cmocka_unit_test(test_mask_is_minus_infinity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
