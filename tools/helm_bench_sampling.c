/* helm-bench-sampling: what a token's draw from a row of logits takes on one thread, setting by setting.
 *
 * Rows are made up: logits fall with the logarithm of a token's rank, as those of language models do, at
 * random places in the vocabulary. "sure" falls fast (a nucleus of a few tokens), "wide" slowly (one of
 * thousands). As many rows are drawn from in turn as exceed the second-level cache. "row": the whole row is
 * looked through. "few": what the GPU sends of it is enough (common/sampling_few.h). Medians; the first round
 * counts not. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/args.h"
#include "common/cpu.h"
#include "common/sampling.h"
#include "common/units.h"

#define ROWS        8
#define HISTORY     2000
#define ROUNDS_MAX  10000
#define SCRATCH_END 64

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

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Microseconds of one draw, the median of `rounds`. */
static double time_draws(const struct setting *setting, float *rows, uint32_t vocab, const uint32_t *history,
                         void *scratch, uint32_t rounds, uint32_t *sum)
{
    static uint64_t ns[ROUNDS_MAX];
    struct sampling_params params = setting->params;
    struct sampling_result result;
    for (uint32_t r = 0; r < rounds + ROWS; r++) {
        params.seed = r;
        uint64_t start = units_now_ns();
        if (sampling_draw(&params, rows + (size_t)(r % ROWS) * vocab, vocab, history, HISTORY, HISTORY / 2,
                          scratch, &result))
            exit(1);
        if (r >= ROWS) ns[r - ROWS] = units_now_ns() - start;
        *sum += result.token;
    }
    qsort(ns, rounds, sizeof *ns, by_size);
    return (double)ns[rounds / 2] * 1e-3;
}

int main(int argc, char *argv[])
{
    static const double falls[] = {2.2, 1.05};
    uint64_t vocab64 = 151936, rounds = 400, random = 1;
    const struct args_option options[] = {
        {"vocab", 0, ARGS_U64, "N", "logits of a row (151936)", .target = &vocab64, .min = 1,
         .max = 4u << 20},
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
    uint32_t vocab = (uint32_t)vocab64, *history = malloc(HISTORY * sizeof *history), sum = 0;
    float *rows = malloc((size_t)ROWS * vocab * sizeof *rows);
    size_t bytes = (sampling_scratch_bytes(vocab) + 127) / 64 * 64;
    void *scratch = aligned_alloc(64, bytes);
    char text[128];
    if (!history || !rows || !scratch) return fprintf(stderr, "helm-bench-sampling: no memory\n"), 1;
    for (uint32_t i = 0; i < HISTORY; i++) history[i] = random_u32(&random) % vocab;
    cpu_model_name(text, sizeof text);
    printf("%s, one thread, %u logits, microseconds a draw\n%-32s %8s %8s\n", text, vocab, "", "sure",
           "wide");
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        double us[2];
        for (int f = 0; f < 2; f++) {
            for (uint32_t r = 0; r < ROWS; r++) make_row(rows + (size_t)r * vocab, vocab, falls[f], &random);
            us[f] = time_draws(&settings[i], rows, vocab, history, scratch, (uint32_t)rounds, &sum);
        }
        printf("%-32s %8.1f %8.1f\n", settings[i].name, us[0], us[1]);
    }
    free(history);
    free(rows);
    free(scratch);
    return sum == 0 && vocab > 1;
}
