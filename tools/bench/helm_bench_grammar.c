/* helm-bench-grammar: what masks of JSON schemas take, with a real tokenizer.
 *
 * Reads schemas, one a line (tests/process/random_schema.py writes them), opens each as a grammar and walks through it: a
 * random allowed token after the other, every other one of at most two bytes, so that texts end. The same seed walks the
 * same way as long as masks are the same, and their digest is printed: two builds can be compared. Times are processor
 * time of a mask and the step behind it, of the first output after opening (which makes most summaries) and of the second
 * apart. With --runs each schema is opened and walked again so often, and a token's time is its least: what it costs itself,
 * without what other programs do to the caches. With --cold that much other memory is read before each token, as a model's
 * step on the same CPU does. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/text/grammar/engine.h"
#include "common/base/args.h"
#include "common/measure/stats.h"

#define TEXT_TOKENS 200
#define TRIES       64

struct times {
    double *us; /* in the order of the walk */
    size_t count, space;
    size_t from, at; /* where the schema's begin; the next one's place in a further run */
};

struct bench {
    struct helm_vocabulary *vocabulary;
    uint32_t *bits;
    uint64_t random, digest, runs;
    bool last;      /* of the runs */
    uint64_t *cold; /* [cold_bytes / 8] read before each token */
    uint64_t cold_bytes;
    double slow_us;
    struct times open, first, second;
};

/* This thread's processor time, without other programs' turns. */
static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void add_time(struct times *t, double us)
{
    if (t->at < t->count) { /* seen in an earlier run */
        if (us < t->us[t->at]) t->us[t->at] = us;
        t->at++;
        return;
    }
    if (t->count == t->space) {
        t->space = t->space ? 2 * t->space : 4096;
        t->us = realloc(t->us, t->space * sizeof *t->us);
        if (!t->us) exit(1);
    }
    t->us[t->count++] = us;
    t->at = t->count;
}

static uint32_t random_u32(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* Leaves nothing of the grammar in the caches. */
static void cool(struct bench *b)
{
    for (uint64_t i = 0; i < b->cold_bytes / sizeof *b->cold; i += 8) b->cold[i]++;
}

static bool allowed(const struct bench *b, uint32_t id)
{
    return b->bits[id / 32] >> id % 32 & 1;
}

/* A random allowed token; of at most `bytes` bytes where TRIES find such a one. */
static uint32_t draw(struct bench *b, uint32_t bytes)
{
    const struct helm_vocabulary *v = b->vocabulary;
    uint32_t found = UINT32_MAX;
    for (int i = 0; i < TRIES; i++) {
        const uint32_t from = random_u32(&b->random) % v->words;
        for (uint32_t k = 0; k < v->words; k++) {
            const uint32_t w = (from + k) % v->words;
            if (!b->bits[w]) continue;
            found = 32 * w + (uint32_t)__builtin_ctz(b->bits[w]);
            break;
        }
        if (found == UINT32_MAX || v->offset[found + 1] - v->offset[found] <= bytes) break;
    }
    return found;
}

static void print_slow(double us, const char *schema, const unsigned char *text, size_t length)
{
    printf("%.0f us: %.160s behind: ...", us, schema);
    const size_t from = length > 40 ? length - 40 : 0;
    for (size_t i = from; i < length; i++) putchar(text[i] < 32 || text[i] > 126 ? '?' : text[i]);
    putchar('\n');
}

/* One output. */
static int walk_output(struct bench *b, struct helm_grammar *g, const char *schema, struct times *times,
                       struct helm_err *err)
{
    const struct helm_vocabulary *v = b->vocabulary;
    struct helm_matcher *m;
    unsigned char text[TEXT_TOKENS * 8];
    size_t length = 0;
    int rc = helm_matcher_open(g, &m, err);
    for (uint32_t n = 0; n < TEXT_TOKENS && !rc && !helm_matcher_has_ended(m); n++) {
        cool(b);
        const uint64_t begin = now_ns();
        rc = helm_matcher_mask(m, b->bits, err);
        const uint64_t middle = now_ns();
        if (rc) break;
        for (uint32_t w = 0; w < v->words; w++) b->digest = (b->digest ^ b->bits[w]) * 0x100000001b3u;
        uint32_t token = draw(b, n % 2 ? 2 : VOCABULARY_TOKEN_BYTES);
        for (uint32_t i = 0; i < v->end_count; i++)
            if (allowed(b, v->end[i])) token = v->end[i];
        const uint64_t again = now_ns();
        rc = helm_matcher_take(m, token, err);
        const double us = (double)(middle - begin + now_ns() - again) / 1e3;
        add_time(times, us);
        if (b->last && times->us[times->at - 1] > b->slow_us)
            print_slow(times->us[times->at - 1], schema, text, length);
        for (uint32_t at = v->offset[token]; at < v->offset[token + 1] && length < sizeof text; at++)
            text[length++] = v->bytes[at];
    }
    helm_matcher_close(m);
    return rc;
}

static void print_times(const char *name, const struct times *t)
{
    printf("%-22s %7zu   median %8.1f   90 %% %8.1f   99 %% %8.1f   99.9 %% %8.1f   most %8.1f\n", name,
           t->count, stats_quantile(t->us, t->count, 0.5), stats_quantile(t->us, t->count, 0.9),
           stats_quantile(t->us, t->count, 0.99), stats_quantile(t->us, t->count, 0.999),
           stats_quantile(t->us, t->count, 1));
}

/* Opens one schema and walks two outputs. */
static int run_schema(struct bench *b, const char *schema, size_t length, struct helm_err *err)
{
    struct helm_grammar *g;
    const uint64_t begin = now_ns();
    int rc = helm_grammar_open(b->vocabulary, HELM_GRAMMAR_JSON_SCHEMA, schema, length, &g, err);
    if (rc) return rc;
    add_time(&b->open, (double)(now_ns() - begin) / 1e3);
    rc = walk_output(b, g, schema, &b->first, err);
    if (!rc) rc = walk_output(b, g, schema, &b->second, err);
    helm_grammar_close(g);
    return rc;
}

static int run(struct bench *b, FILE *schemas, struct helm_err *err)
{
    char *line = NULL;
    size_t space = 0;
    ssize_t length;
    int rc = 0;
    struct times *const all[] = {&b->open, &b->first, &b->second};
    while (!rc && (length = getline(&line, &space, schemas)) > 0) {
        const struct bench begin = *b;
        for (int i = 0; i < 3; i++) all[i]->from = all[i]->count;
        for (uint64_t n = 0; n < b->runs && !rc; n++) {
            b->last = n == b->runs - 1;
            b->random = begin.random; /* the same walk, and the same masks */
            b->digest = begin.digest;
            for (int i = 0; i < 3; i++) all[i]->at = all[i]->from;
            rc = run_schema(b, line, (size_t)length, err);
        }
    }
    free(line);
    return rc;
}

int main(int argc, char *argv[])
{
    struct bench bench = {.random = 1, .digest = 1, .runs = 1}, *b = &bench;
    uint64_t vocab = 151936, end = 151645, slow = 1000000;
    const struct args_option options[] = {
        {"vocab", 0, ARGS_U64, "N", "rows of the model (151936)", .target = &vocab, .min = 1,
         .max = 4u << 20},
        {"end", 0, ARGS_U64, "ID", "the token that ends an output (151645)", .target = &end, .max = 4u << 20},
        {"runs", 0, ARGS_U64, "N", "of each schema; of times the least (1)", .target = &b->runs, .min = 1,
         .max = 1000},
        {"cold", 0, ARGS_SIZE, "SIZE", "of other memory to touch before each token (0)",
         .target = &b->cold_bytes},
        {"slow", 0, ARGS_U64, "US", "print where a mask takes longer (1000000)", .target = &slow,
         .max = 1u << 30},
    };
    const struct args_spec spec = {.program = "helm-bench-grammar",
                                   .usage = "MODEL SCHEMAS [options]",
                                   .about = "Measures masks of JSON schemas, one a line of SCHEMAS, with the "
                                            "tokenizer of MODEL\n(a folder or a GGUF file).",
                                   .options = options,
                                   .option_count = sizeof options / sizeof *options,
                                   .min_operands = 2,
                                   .max_operands = 2};
    struct args_parsed parsed;
    struct helm_tokenizer *tokenizer = NULL;
    struct helm_err err = {0};
    args_parse_main(&spec, argc, argv, &parsed);
    b->slow_us = (double)slow;
    FILE *schemas = fopen(parsed.operand.item[1], "r");
    int rc = schemas ? 0 : helm_fail(&err, HELM_E_IO, "cannot read %s", parsed.operand.item[1]);
    if (!rc) rc = helm_tokenizer_open(parsed.operand.item[0], &tokenizer, &err);
    const uint64_t begin = now_ns();
    const uint32_t ends[] = {(uint32_t)end};
    if (!rc) rc = helm_vocabulary_open(tokenizer, ends, 1, (uint32_t)vocab, &b->vocabulary, &err);
    const double opened_ms = (double)(now_ns() - begin) / 1e6;
    if (!rc && !(b->bits = calloc(b->vocabulary->words, sizeof *b->bits))) rc = HELM_E_NOMEM;
    if (!rc && b->cold_bytes && !(b->cold = calloc(1, b->cold_bytes))) rc = HELM_E_NOMEM;
    if (!rc) rc = run(b, schemas, &err);
    if (!rc) {
        printf("vocabulary of %u opened in %.0f ms; masks' digest %016llx; microseconds:\n",
               helm_vocabulary_size(b->vocabulary), opened_ms, (unsigned long long)b->digest);
        print_times("opening a grammar", &b->open);
        print_times("token, first output", &b->first);
        print_times("token, second output", &b->second);
    } else {
        fprintf(stderr, "helm-bench-grammar: %s\n", err.text);
    }
    free(b->open.us);
    free(b->first.us);
    free(b->second.us);
    free(b->bits);
    free(b->cold);
    helm_vocabulary_close(b->vocabulary);
    helm_tokenizer_close(tokenizer);
    if (schemas) fclose(schemas);
    return rc ? 1 : 0;
}
