/* helm-bench-sampling: what a token's draw from a row of logits takes on one thread, setting by setting.
 *
 * Rows are made up: logits fall with the logarithm of a token's rank, as those of language models do, at
 * random places in the vocabulary. "sure" falls fast (a nucleus of a few tokens), "wide" slowly (one of
 * thousands). As many rows are drawn from in turn as exceed the second-level cache. "few": the same draws
 * from what the GPU worker fetches instead of the row, where that is enough; what finds it there is no part
 * of the time. Medians; the first round counts not. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/args.h"
#include "common/base/cpu.h"
#include "common/sampling/sampling.h"
#include "common/sampling/pass.h"
#include "common/base/units.h"
#include "common/measure/stats.h"

#define ROWS       8
#define HISTORY    2000
#define ROUNDS_MAX 10000

struct setting {
    const char *name;
    struct sampling_params params;
};

static const struct setting settings[] = {
    {"greedy", {.temperature = 0, .top_p = 1, .repetition_penalty = 1}},
    {"T 0.6, top-k 20, top-p 0.95",
     {.temperature = 0.6f, .top_k = 20, .top_p = 0.95f, .repetition_penalty = 1}},
    {"  and repetition penalty 1.1",
     {.temperature = 0.6f, .top_k = 20, .top_p = 0.95f, .repetition_penalty = 1.1f}},
    {"  and 5 logprobs",
     {.temperature = 0.6f, .top_k = 20, .top_p = 0.95f, .repetition_penalty = 1, .logprobs = 5}},
    {"T 0.8, top-k 256", {.temperature = 0.8f, .top_k = 256, .top_p = 1, .repetition_penalty = 1}},
    {"T 1, top-p 0.95", {.temperature = 1, .top_p = 0.95f, .repetition_penalty = 1}},
    {"T 1, min-p 0.05", {.temperature = 1, .top_p = 1, .min_p = 0.05f, .repetition_penalty = 1}},
    {"T 1", {.temperature = 1, .top_p = 1, .repetition_penalty = 1}},
    {"greedy, 5 logprobs", {.temperature = 0, .top_p = 1, .repetition_penalty = 1, .logprobs = 5}},
};

#define SETTINGS (sizeof settings / sizeof *settings)

static uint32_t random_u32(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static void make_row(float *x, uint32_t vocab, double fall, uint64_t *random)
{
    uint32_t *rank = malloc(vocab * sizeof *rank);
    if (!rank) exit(1);
    for (uint32_t i = 0; i < vocab; i++) rank[i] = i;
    for (uint32_t i = vocab; i > 1; i--) {
        uint32_t j = random_u32(random) % i, swap = rank[i - 1];
        rank[i - 1] = rank[j];
        rank[j] = swap;
    }
    for (uint32_t i = 0; i < vocab; i++)
        x[i] = (float)(20 - fall * log(1.0 + rank[i]) + random_u32(random) * (1 / 4294967296.0));
    free(rank);
}

struct bench {
    uint32_t vocab, rounds;
    float *rows;
    uint32_t *history;
    void *scratch;
    struct sampling_logit *falling; /* [ROWS][vocab] */
    uint32_t token[SAMPLING_CHANGES_MAX], times[SAMPLING_CHANGES_MAX];
    float changed[SAMPLING_CHANGES_MAX];
    uint32_t drawn; /* a sum of tokens, so that no draw is left out */
};

static int by_fall(const void *a, const void *b)
{
    const struct sampling_logit *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->token < y->token ? -1 : x->token > y->token;
}

/* Microseconds of one draw, the median. */
static double time_draws(struct bench *b, const struct setting *setting)
{
    static double us[ROUNDS_MAX];
    struct sampling_params params = setting->params;
    struct sampling_result result;
    const struct sampling_tokens tokens = {b->history, HISTORY, HISTORY / 2, NULL};
    for (uint32_t r = 0; r < b->rounds + ROWS; r++) {
        params.seed = r;
        uint64_t start = units_now_ns();
        if (sampling_draw(&params, b->rows + (size_t)(r % ROWS) * b->vocab, b->vocab, &tokens, b->scratch,
                          &result))
            exit(1);
        if (r >= ROWS) us[r - ROWS] = (double)(units_now_ns() - start) * 1e-3;
        b->drawn += result.token;
    }
    return stats_quantile(us, b->rounds, 0.5);
}

static uint64_t sum_of(const float *x, uint32_t vocab, float inv_temp)
{
    uint32_t blocks = (vocab + SAMPLING_BLOCK - 1) / SAMPLING_BLOCK;
    struct sampling_row row = {x, vocab, blocks, 0, inv_temp};
    float *block_max = malloc(blocks * sizeof *block_max);
    if (!block_max) exit(1);
    sampling_find_maxima(&row, block_max);
    uint64_t sum = sampling_find_weights(&row, block_max, NULL);
    free(block_max);
    return sum;
}

/* The same from candidates (asking is done while the device computes); below 0 where they are not asked for,
 * or not enough. */
static double time_few(struct bench *b, const struct setting *setting)
{
    static double us[ROUNDS_MAX];
    struct sampling_changes changes = {.token = b->token, .times = b->times};
    struct sampling_params params = setting->params;
    struct sampling_result result;
    const struct sampling_tokens tokens = {b->history, HISTORY, HISTORY / 2, NULL};
    struct sampling_ask ask;
    for (uint32_t r = 0; r < b->rounds + ROWS; r++) {
        const float *row = b->rows + (size_t)(r % ROWS) * b->vocab;
        params.seed = r;
        sampling_ask(&params, b->vocab, &tokens, b->scratch, &changes, &ask);
        if (ask.need != SAMPLING_NEEDS_FEW) return -1;
        struct sampling_few few = {.candidate = b->falling + (size_t)(r % ROWS) * b->vocab,
                                   .count = ask.candidates < b->vocab ? ask.candidates : b->vocab,
                                   .changed = b->changed,
                                   .sum = ask.sum ? sum_of(row, b->vocab, ask.inv_temp) : 0,
                                   .model_sum = ask.model_sum ? sum_of(row, b->vocab, 1) : 0};
        few.all = few.count == b->vocab;
        for (uint32_t i = 0; i < changes.count; i++) b->changed[i] = row[changes.token[i]];
        uint64_t start = units_now_ns();
        if (sampling_draw_few(&params, &few, b->vocab, &changes, HISTORY, b->scratch, &result)) return -1;
        if (r >= ROWS) us[r - ROWS] = (double)(units_now_ns() - start) * 1e-3;
        b->drawn += result.token;
    }
    return stats_quantile(us, b->rounds, 0.5);
}

static void make_rows(struct bench *b, double fall, uint64_t *random)
{
    for (uint32_t r = 0; r < ROWS; r++) {
        float *row = b->rows + (size_t)r * b->vocab;
        struct sampling_logit *falling = b->falling + (size_t)r * b->vocab;
        make_row(row, b->vocab, fall, random);
        for (uint32_t i = 0; i < b->vocab; i++) falling[i] = (struct sampling_logit){i, row[i]};
        qsort(falling, b->vocab, sizeof *falling, by_fall);
    }
}

int main(int argc, char *argv[])
{
    static const double falls[] = {2.2, 1.05};
    uint64_t vocab = 151936, rounds = 400, random = 1;
    const struct args_option options[] = {
        {"vocab", 0, ARGS_U64, "N", "logits of a row (151936)", .target = &vocab, .min = 1, .max = 4u << 20},
        {"rounds", 0, ARGS_U64, "N", "draws of each setting (400)", .target = &rounds, .min = 1,
         .max = ROUNDS_MAX},
    };
    const struct args_spec spec = {
        .program = "helm-bench-sampling",
        .usage = "[options]",
        .about = "Measures what drawing a token from a row of logits takes on one thread.",
        .options = options,
        .option_count = sizeof options / sizeof *options};
    struct args_parsed parsed;
    args_parse_main(&spec, argc, argv, &parsed);
    static struct bench bench;
    struct bench *b = &bench;
    b->vocab = (uint32_t)vocab;
    b->rounds = (uint32_t)rounds;
    b->history = malloc(HISTORY * sizeof *b->history);
    b->rows = malloc((size_t)ROWS * b->vocab * sizeof *b->rows);
    b->falling = malloc((size_t)ROWS * b->vocab * sizeof *b->falling);
    b->scratch = aligned_alloc(64, (sampling_scratch_bytes(b->vocab) + 127) / 64 * 64);
    if (!b->history || !b->rows || !b->falling || !b->scratch)
        return fprintf(stderr, "helm-bench-sampling: no memory\n"), 1;
    for (uint32_t i = 0; i < HISTORY; i++) b->history[i] = random_u32(&random) % b->vocab;
    char text[128];
    cpu_model_name(text, sizeof text);
    printf("%s, one thread, %u logits, microseconds a draw\n%-32s %18s %18s\n%-32s %9s %8s %9s %8s\n", text,
           b->vocab, "", "sure", "wide", "", "row", "few", "row", "few");
    double us[SETTINGS][2][2];
    for (int f = 0; f < 2; f++) {
        make_rows(b, falls[f], &random);
        for (size_t i = 0; i < SETTINGS; i++) {
            us[i][f][0] = time_draws(b, &settings[i]);
            us[i][f][1] = time_few(b, &settings[i]);
        }
    }
    for (size_t i = 0; i < SETTINGS; i++) {
        printf("%-32s", settings[i].name);
        for (int f = 0; f < 2; f++) {
            printf(" %9.1f", us[i][f][0]);
            if (us[i][f][1] < 0)
                printf(" %8s", "-");
            else
                printf(" %8.1f", us[i][f][1]);
        }
        printf("\n");
    }
    free(b->history);
    free(b->rows);
    free(b->falling);
    free(b->scratch);
    return b->drawn == 0 && b->vocab > 1;
}
