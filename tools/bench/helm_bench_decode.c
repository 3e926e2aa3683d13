/* helm-bench-decode: how fast the CPU engine decodes and prefills a checkpoint, beside what the memory
 * allows.
 *
 * Runs the engine in this process, without helmd. Every round measures read bandwidth over the very same
 * weights with the very same threads, then prefill, then decode, so that a machine whose bandwidth varies by
 * the minute still gives a meaningful ratio; medians over rounds are reported. With --busy idle and busy
 * windows alternate: in busy ones a spinning process runs on every core that the engine uses. Called by
 * people and by `make bench`. */
#include <jansson.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/args.h"
#include "common/base/cpu.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/measure/reader.h"
#include "common/measure/stats.h"
#include "worker-cpu/local.h"

#define ROUNDS_MAX 101

struct bench {
    struct local *local;
    uint64_t prompt, tokens, rounds;
    double *read_gbs, *decode_s, *busy_s; /* [rounds][tokens] */
    double prefill_s[ROUNDS_MAX], kept[ROUNDS_MAX];
    uint64_t step_bytes; /* of weights read by one decode step */
    pid_t neighbour[POOL_THREADS_MAX];
    uint32_t neighbours;
};

/* ---- read bandwidth ---- */

#define READ_CHUNK (256 * KIB)

/* One pass over (at most 2 GiB of) the weights, in GB/s. */
static double measure_read(void *bench)
{
    struct bench *b = bench;
    const struct engine *engine = &b->local->engine;
    uint64_t bytes =
        engine->weights.host.region_bytes < 2 * GIB ? engine->weights.host.region_bytes : 2 * GIB;
    struct reader reader;
    reader_open(&reader, arena_region_ptr(&b->local->arena, ARENA_REGION_WEIGHTS), bytes, READ_CHUNK);
    return reader.chunks ? reader_bytes(&reader) * 1e-9 / reader_pass(&reader, engine->pool) : 0;
}

/* ---- busy neighbours ---- */

static int start_neighbours(struct bench *b, struct helm_err *err)
{
    struct cpu_set *set = malloc(sizeof *set);
    if (!set) return helm_fail(err, HELM_E_NOMEM, "no memory");
    int rc = cpu_usable(b->local->engine.base.report.node, set, err);
    for (uint32_t i = 0; !rc && i < b->local->engine.base.report.threads; i++) {
        pid_t pid = fork();
        if (pid < 0) rc = helm_fail_errno(err, "fork");
        if (pid == 0) {
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(set->cpu[i], &one);
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (sched_setaffinity(0, sizeof one, &one)) _exit(1);
            volatile uint64_t n = 0;
            for (;;) n = n + 1;
        }
        if (pid > 0) {
            kill(pid, SIGSTOP);
            b->neighbour[b->neighbours++] = pid;
        }
    }
    free(set);
    return rc;
}

static void signal_neighbours(struct bench *b, int number)
{
    for (uint32_t i = 0; i < b->neighbours; i++) kill(b->neighbour[i], number);
    usleep(20000); /* until they have stopped, or have the processor */
}

static void stop_neighbours(struct bench *b)
{
    for (uint32_t i = 0; i < b->neighbours; i++) kill(b->neighbour[i], SIGKILL);
    for (uint32_t i = 0; i < b->neighbours; i++) waitpid(b->neighbour[i], NULL, 0);
}

/* ---- rounds ---- */

static int run_prefill(struct bench *b, double *seconds, struct helm_err *err)
{
    const struct step_result *result;
    uint32_t step_tokens = arena_header_of(&b->local->arena)->step_tokens;
    uint64_t start = units_now_ns();
    for (uint32_t done = 0; done < b->prompt;) {
        uint32_t count = (uint32_t)b->prompt - done < step_tokens ? (uint32_t)b->prompt - done : step_tokens;
        struct step_row row = {.start = done, .count = count};
        row.flags = done + count == b->prompt ? STEP_ROW_SAMPLE : 0;
        int rc = local_step(b->local, &row, 1, &result, err);
        if (rc) return rc;
        if (result->row[0].status != STEP_ROW_OK)
            return helm_fail(err, HELM_E_INTERNAL, "a prefill step gave status %u", result->row[0].status);
        done += count;
    }
    *seconds = (double)(units_now_ns() - start) * 1e-9;
    return 0;
}

/* One token a time; with `reads` each token is followed by a pass of plain reading, so that both see the same
 * minute of the machine. Sample i of round r is in [r * tokens + i]. */
static int run_decode(struct bench *b, double *seconds, double *reads, struct helm_err *err)
{
    uint32_t *history = arena_history_of(&b->local->arena, 0);
    const struct step_result *result;
    for (uint32_t i = 0; i < b->tokens; i++) {
        struct step_row row = {.start = (uint32_t)b->prompt + i, .count = 1, .flags = STEP_ROW_SAMPLE};
        uint64_t start = units_now_ns();
        int rc = local_step(b->local, &row, 1, &result, err);
        if (rc) return rc;
        seconds[i] = (double)(units_now_ns() - start) * 1e-9;
        if (result->row[0].status != STEP_ROW_OK)
            return helm_fail(err, HELM_E_INTERNAL, "a decode step gave status %u", result->row[0].status);
        history[row.start + 1] = result->row[0].sampled.token;
        b->step_bytes = result->weight_bytes;
        if (reads) reads[i] = measure_read(b);
    }
    return 0;
}

static double sum_of(const double *values, uint64_t count)
{
    double sum = 0;
    for (uint64_t i = 0; i < count; i++) sum += values[i];
    return sum;
}

static int run_rounds(struct bench *b, struct helm_err *err)
{
    uint32_t *history = arena_history_of(&b->local->arena, 0);
    double ignored;
    for (uint32_t i = 0; i <= b->prompt; i++)
        history[i] = (i * 7919u + 13u) % arena_header_of(&b->local->arena)->vocab;
    int rc = run_prefill(b, &ignored, err);
    for (uint64_t r = 0; r < b->rounds && !rc; r++) {
        double *decode = b->decode_s + r * b->tokens, *busy = b->busy_s + r * b->tokens;
        rc = run_prefill(b, &b->prefill_s[r], err);
        if (!rc && !b->neighbours) rc = run_decode(b, decode, b->read_gbs + r * b->tokens, err);
        if (rc || !b->neighbours) continue;
        rc = run_decode(b, decode, NULL, err);
        if (rc) break;
        signal_neighbours(b, SIGCONT);
        rc = run_decode(b, busy, NULL, err);
        signal_neighbours(b, SIGSTOP);
        /* Means, not medians: what a neighbour takes comes in slices, and every slice counts. */
        b->kept[r] = sum_of(decode, b->tokens) / sum_of(busy, b->tokens);
    }
    return rc;
}

static void report(struct bench *b, bool as_json)
{
    const struct engine_report *r = &b->local->engine.base.report;
    uint64_t samples = b->rounds * b->tokens;
    double decode = stats_quantile(b->decode_s, samples, 0.5),
           decode_best = stats_quantile(b->decode_s, samples, 0.1);
    double prefill = stats_quantile(b->prefill_s, b->rounds, 0.5),
           prefill_best = stats_quantile(b->prefill_s, b->rounds, 0);
    double bytes = (double)b->step_bytes * 1e-9, prompt = (double)b->prompt;
    json_t *out = json_object();
    json_object_set_new(out, "threads", json_integer(r->threads));
    json_object_set_new(out, "kernels", json_string(r->kernels));
    json_object_set_new(out, "weight_bytes", json_integer((json_int_t)r->weight_bytes));
    json_object_set_new(out, "load_seconds", json_real(r->load_seconds));
    json_object_set_new(out, "bytes_per_token", json_integer((json_int_t)b->step_bytes));
    json_object_set_new(out, "decode_tok_s", json_real(1 / decode));
    json_object_set_new(out, "decode_best_tok_s", json_real(1 / decode_best));
    json_object_set_new(out, "prompt_tokens", json_integer((json_int_t)b->prompt));
    json_object_set_new(out, "prefill_tok_s", json_real(prompt / prefill));
    json_object_set_new(out, "prefill_best_tok_s", json_real(prompt / prefill_best));
    if (b->neighbours) {
        json_object_set_new(out, "busy_tok_s", json_real((double)samples / sum_of(b->busy_s, samples)));
        json_object_set_new(out, "busy_kept", json_real(stats_quantile(b->kept, b->rounds, 0.5)));
    } else {
        double read = stats_quantile(b->read_gbs, samples, 0.5),
               read_best = stats_quantile(b->read_gbs, samples, 0.9);
        json_object_set_new(out, "achieved_gb_s", json_real(bytes / decode));
        json_object_set_new(out, "read_gb_s", json_real(read));
        json_object_set_new(out, "ratio", json_real(bytes / decode / read));
        json_object_set_new(out, "achieved_best_gb_s", json_real(bytes / decode_best));
        json_object_set_new(out, "read_best_gb_s", json_real(read_best));
        json_object_set_new(out, "ratio_best", json_real(bytes / decode_best / read_best));
    }
    if (as_json) {
        json_dumpf(out, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
        putchar('\n');
        json_decref(out);
        return;
    }
    printf("%u threads, %s; %.2f GB loaded in %.2f s\n", r->threads, r->kernels,
           (double)r->weight_bytes * 1e-9, r->load_seconds);
    for (uint32_t i = 0; i < r->reduced_count; i++) printf("reduced: %s\n", r->reduced[i]);
    const char *key;
    json_t *value;
    json_object_foreach(out, key, value)
    {
        if (json_is_real(value)) printf("%-20s %12.3f\n", key, json_real_value(value));
        if (json_is_integer(value)) printf("%-20s %12lld\n", key, (long long)json_integer_value(value));
    }
    json_decref(out);
}

/* ---- profile ---- */

/* Entries with the same operations in different layers are one line. */
static void entry_label(const struct program_entry *e, char *text, size_t size)
{
    int n = snprintf(text, size, "%s%s", op_name(e->kind), e->sampled ? " (head)" : "");
    for (uint32_t s = 0; s < e->segment_count && n > 0 && (size_t)n < size; s++)
        n += snprintf(text + n, size - (size_t)n, " %ux%u", e->segment[s].matrix.rows,
                      e->segment[s].matrix.cols);
}

static void print_profile(const struct program *program, const uint64_t *shortest)
{
    double all_us = 0;
    for (uint32_t i = 0; i < program->count; i++) {
        char label[96], other[96];
        uint64_t ns = 0, bytes = 0, count = 0;
        bool seen = false;
        entry_label(&program->entry[i], label, sizeof label);
        for (uint32_t k = 0; k < program->count; k++) {
            entry_label(&program->entry[k], other, sizeof other);
            if (strcmp(label, other) != 0) continue;
            seen |= k < i;
            ns += shortest[k];
            bytes += program->entry[k].bytes;
            count++;
        }
        if (seen) continue;
        printf("%-44s %4llu x %9.2f us %10.2f us", label, (unsigned long long)count,
               (double)ns * 1e-3 / (double)count, (double)ns * 1e-3);
        if (bytes) printf(" %7.1f GB/s", (double)bytes / (double)ns);
        putchar('\n');
        all_us += (double)ns * 1e-3;
    }
    printf("%-44s %25.2f us", "sum", all_us);
    if (program->bytes) printf(" %11.1f GB/s", (double)program->bytes / all_us * 1e-3);
    putchar('\n');
}

/* Each entry's shortest time over all rounds: what it costs when nothing else runs on this machine, even if
 * something does. The same for plain reading, in pieces of 16 MiB. */
static int profile(struct bench *b, struct helm_err *err)
{
    struct engine *engine = &b->local->engine;
    const struct program *layers = &engine->programs[LINEAR_EXACT].tier[0][OP_TIER_ONE];
    const struct program *fill =
        &engine->programs[LINEAR_EXACT].tier[0][program_tier_of((uint32_t)b->prompt)];
    const struct program *head = &engine->programs[LINEAR_EXACT].head_one;
    uint64_t *times[3] = {malloc(layers->count * sizeof(uint64_t)), malloc(head->count * sizeof(uint64_t)),
                          malloc(fill->count * sizeof(uint64_t))};
    uint64_t pieces = engine->weights.host.region_bytes / (16 * MIB),
             *piece = calloc(pieces + 1, sizeof *piece);
    int rc = 0;
    if (!times[0] || !times[1] || !times[2] || !piece) rc = helm_fail(err, HELM_E_NOMEM, "no memory");
    if (!rc) {
        memset(times[0], 0xff, layers->count * sizeof(uint64_t));
        memset(times[1], 0xff, head->count * sizeof(uint64_t));
        memset(times[2], 0xff, fill->count * sizeof(uint64_t));
        memset(piece, 0xff, (pieces + 1) * sizeof *piece);
    }
    for (uint64_t r = 0; r < b->rounds && !rc; r++) {
        double ignored;
        engine->run.entry_ns[0] = times[2];
        rc = run_prefill(b, &ignored, err);
        engine->run.entry_ns[0] = times[0];
        engine->run.entry_ns[1] = times[1];
        if (!rc) rc = run_decode(b, b->decode_s, NULL, err);
        engine->run.entry_ns[0] = engine->run.entry_ns[1] = NULL;
        for (uint64_t i = 0; i < pieces; i++) {
            const char *weights = arena_region_ptr(&b->local->arena, ARENA_REGION_WEIGHTS);
            struct reader reader;
            reader_open(&reader, weights + i * 16 * MIB, 16 * MIB, READ_CHUNK);
            uint64_t spent = (uint64_t)(reader_pass(&reader, engine->pool) * 1e9);
            if (spent < piece[i]) piece[i] = spent;
        }
    }
    if (!rc) {
        uint64_t ns = 0;
        for (uint64_t i = 0; i < pieces; i++) ns += piece[i];
        printf("decode, one token:\n");
        print_profile(layers, times[0]);
        print_profile(head, times[1]);
        printf("prefill, %llu tokens:\n", (unsigned long long)b->prompt);
        print_profile(fill, times[2]);
        if (ns) printf("plain reading: %.1f GB/s\n", (double)(pieces * 16 * MIB) / (double)ns);
    }
    for (int i = 0; i < 3; i++) free(times[i]);
    free(piece);
    return rc;
}

/* Room for every sample. */
static int make_room(struct bench *b, struct helm_err *err)
{
    uint64_t samples = b->rounds * b->tokens;
    b->read_gbs = calloc(samples, sizeof(double));
    b->decode_s = calloc(samples, sizeof(double));
    b->busy_s = calloc(samples, sizeof(double));
    if (b->read_gbs && b->decode_s && b->busy_s) return 0;
    return helm_fail(err, HELM_E_NOMEM, "no memory for %llu samples", (unsigned long long)samples);
}

int main(int argc, char **argv)
{
    const char *model = NULL, *kernels = NULL, *kv = "f16";
    uint64_t threads = 0, spin_us = 0, step_tokens = 512;
    bool as_json = false, busy = false, packed = false, profiling = false, int8 = false;
    struct helm_err err = {0};
    struct args_parsed parsed;
    struct bench *b = calloc(1, sizeof *b);
    if (!b) return 5;
    b->prompt = 128;
    b->tokens = 32;
    b->rounds = 5;
    const struct args_option options[] = {
        {"model", 0, ARGS_TEXT, "DIR", "checkpoint to run", .target = &model},
        {"threads", 0, ARGS_U64, "N", "compute threads (one a core)", .target = &threads, .min = 1,
         .max = POOL_THREADS_MAX},
        {"prompt", 0, ARGS_U64, "N", "tokens to prefill (128)", .target = &b->prompt, .min = 1,
         .max = 1 << 20},
        {"tokens", 0, ARGS_U64, "N", "tokens to decode in a round (32)", .target = &b->tokens, .min = 1,
         .max = 1 << 20},
        {"rounds", 0, ARGS_U64, "N", "rounds; medians are reported (5)", .target = &b->rounds, .min = 1,
         .max = ROUNDS_MAX},
        {"step-tokens", 0, ARGS_U64, "N", "most tokens a prefill step takes (512)", .target = &step_tokens,
         .min = 1, .max = 1 << 16},
        {"kernels", 0, ARGS_TEXT, "NAME", "kernel variant (the fastest)", .target = &kernels},
        {"kv", 0, ARGS_CHOICE, "DTYPE", "of the KV cache (f16)", .target = &kv,
         .choices = "bf16|f16|f32|q8_0"},
        {"spin-us", 0, ARGS_U64, "US", "how long waiting threads spin", .target = &spin_us, .min = 1,
         .max = 100000},
        {"packed", 0, ARGS_FLAG, NULL, "weights packed in memory, where they can be", .target = &packed},
        {"int8", 0, ARGS_FLAG, NULL, "activations of 8 bits, where formats have them", .target = &int8},
        {"busy", 0, ARGS_FLAG, NULL, "also with one busy process a core", .target = &busy},
        {"profile", 0, ARGS_FLAG, NULL, "the shortest time of each operation", .target = &profiling},
        {"json", 0, ARGS_FLAG, NULL, "one JSON object", .target = &as_json},
    };
    const struct args_spec spec = {.program = "helm-bench-decode",
                                   .usage = "--model DIR [options]",
                                   .about =
                                       "Measures decode and prefill on the CPU beside the memory's limit.",
                                   ARGS_TABLE(options)};
    args_parse_main(&spec, argc, argv, &parsed);
    log_init("helm-bench-decode", LOG_LEVEL_INFO);
    if (!model) {
        helm_fail(&err, HELM_E_USAGE, "--model is needed");
        return args_usage_error(&spec, &err);
    }
    b->local = aligned_alloc(64, (sizeof *b->local + 63) / 64 * 64);
    if (!b->local) return 5;
    const struct local_options local_options = {.folder = model,
                                                .kernels = kernels,
                                                .kv_dtype = kv_dtype_named(kv),
                                                .pack_cpu = packed,
                                                .threads = (uint32_t)threads,
                                                .slots = 1,
                                                .context_tokens = (uint32_t)(b->prompt + b->tokens + 1),
                                                .step_tokens = (uint32_t)step_tokens,
                                                .spin_us = (uint32_t)spin_us,
                                                .pin = true};
    int rc = make_room(b, &err);
    if (!rc) rc = local_open(&local_options, b->local, &err);
    if (!rc) {
        if (int8 && engine_use(&b->local->engine, LINEAR_INT8) != LINEAR_INT8) {
            rc = helm_fail(&err, HELM_E_UNSUPPORTED, "--int8: no format of these weights has it here");
        } else {
            if (busy) rc = start_neighbours(b, &err);
            if (!rc) rc = run_rounds(b, &err);
            stop_neighbours(b);
            if (!rc) report(b, as_json);
        }
        if (!rc && profiling) rc = profile(b, &err);
        local_close(b->local);
    }
    if (rc) log_error("%s", err.text);
    free(b->local);
    free(b->read_gbs);
    free(b->decode_s);
    free(b->busy_s);
    free(b);
    return rc ? 5 : 0;
}
