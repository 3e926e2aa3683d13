/* llama_bench: llama.cpp as one client sees it, with the time of every token.
 *
 *   llama_bench --model FILE.gguf [options]            llama_bench --help: the options
 *   cc -std=c11 -O3 -o llama_bench llama_bench.c -lllama -lggml -lggml-base -lm
 *     (an installed libllama, v0.5.0)
 *
 * Started by people. Beside llama-bench, which gives one time for each generation and leaves out the first
 * token: one request is measured as helm-bench measures it. The context is filled with --depth tokens, which
 * do not count; then come a prompt, whose first token is chosen on the host (TTFT), and further tokens one at
 * a time. Lists of prompts and outputs are cases of one load; of a list of threads, the fastest to decode the
 * first case is taken. Only the library's public interface is called. Prompts are random ids, another prompt
 * each time. All is allocated before the first request, and of each case one request warms up, with no more
 * tokens than are handed over at once. Exit status: 0, 2 usage, 5 an error. */
#define _POSIX_C_SOURCE 200809L
#include <ggml-backend.h>
#include <llama.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define OVERRIDES_MOST 256
#define PATTERN_BYTES  64
#define LIST_MOST      16
#define TRIAL_TOKENS   24 /* that each number of threads decodes */

struct list {
    long value[LIST_MOST];
    int count;
};

struct settings {
    const char *model;
    struct list threads, prompts, outputs;
    long gpu_layers, split, context, depth, requests, warmup, batch, ubatch, cpu_experts, seed;
    const char *type_k, *type_v, *backends;
    long kv_on_cpu, no_host, no_op_offload, no_flash, no_mmap, random_tokens, verbose;
    const char *overrides[OVERRIDES_MOST];
    int override_count;
};

enum option_kind { OPTION_TEXT, OPTION_NUMBER, OPTION_FLAG, OPTION_OVERRIDE, OPTION_LIST };

/* one option: where its value goes, what --help says */
struct option {
    const char *name;
    enum option_kind kind;
    void *value;
    long least, most;
    const char *help;
};

/* times of a case's requests that count; milliseconds */
struct samples {
    double *ttft, *tpot, *decode; /* decode: from the first token to the last, by request */
    int ttft_count, tpot_count, decode_count;
};

struct bench {
    const struct settings *settings;
    struct llama_model *model;
    struct llama_context *context;
    int32_t vocabulary;
    uint64_t random;
    llama_token *tokens; /* max(depth, prompts) */
    long threads;
};

static bool show_all;

static void fail(const char *what, const char *detail)
{
    fprintf(stderr, "llama_bench: %s%s%s\n", what, detail ? ": " : "", detail ? detail : "");
    exit(5);
}

static void on_log(enum ggml_log_level level, const char *text, void *data)
{
    static bool shown; /* whether the line that goes on was shown */
    (void)data;
    if (level != GGML_LOG_LEVEL_CONT)
        shown = show_all || level == GGML_LOG_LEVEL_WARN || level == GGML_LOG_LEVEL_ERROR;
    if (shown) fputs(text, stderr);
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* ---- options ---- */

static int usage(const struct option *options, int count, FILE *to)
{
    fprintf(to, "usage: llama_bench --model FILE.gguf [options]\n\n"
                "Decode and prefill of llama.cpp, token by token.\n\noptions:\n");
    for (int i = 0; i < count; i++) {
        static const char *const values[] = {" TEXT", " N", "", " REGEX", " N[,N...]"};
        char left[64];
        snprintf(left, sizeof left, "%s%s", options[i].name, values[options[i].kind]);
        fprintf(to, "  %-22s %s\n", left, options[i].help);
    }
    return to == stdout ? 0 : 2;
}

static bool read_list(const struct option *option, const char *value)
{
    struct list *list = option->value;
    list->count = 0;
    for (const char *at = value;; at++) {
        char *end;
        long number = strtol(at, &end, 10);
        if (end == at || number < option->least || number > option->most || list->count == LIST_MOST)
            return false;
        list->value[list->count++] = number;
        at = end;
        if (*at != ',') return !*at;
    }
}

static bool read_option(const struct option *option, const char *value, struct settings *settings)
{
    char *end;
    switch (option->kind) {
    case OPTION_FLAG:
        *(long *)option->value = 1;
        return true;
    case OPTION_TEXT:
        *(const char **)option->value = value;
        return true;
    case OPTION_OVERRIDE:
        if (settings->override_count == OVERRIDES_MOST) return false;
        settings->overrides[settings->override_count++] = value;
        return true;
    case OPTION_LIST:
        return read_list(option, value);
    default:
        *(long *)option->value = strtol(value, &end, 10);
        return end != value && !*end && *(long *)option->value >= option->least &&
               *(long *)option->value <= option->most;
    }
}

/* The exit status, or -1: go on. */
static int read_options(int argc, char **argv, struct settings *s)
{
    const struct option options[] = {
        {"--model", OPTION_TEXT, &s->model, 0, 0, "the file (required)"},
        {"--ngl", OPTION_NUMBER, &s->gpu_layers, 0, 9999, "layers on the GPU (0)"},
        {"--split", OPTION_NUMBER, &s->split, 0, 3,
         "over several GPUs: 0 not, 1 by layers, 2 by rows, 3 by tensors (1)"},
        {"--threads", OPTION_LIST, &s->threads, 1, 1024, "threads, or some to try (all CPUs)"},
        {"--prompt", OPTION_LIST, &s->prompts, 0, 1 << 24, "tokens of each case's prompt (128)"},
        {"--output", OPTION_LIST, &s->outputs, 1, 1 << 20,
         "tokens of its answer, the prompt's first among them; the last is for all further cases (64)"},
        {"--context", OPTION_NUMBER, &s->context, 0, 1 << 24, "tokens of the context (what is needed)"},
        {"--depth", OPTION_NUMBER, &s->depth, 0, 1 << 24,
         "tokens in the context before the prompt, not timed (0)"},
        {"--requests", OPTION_NUMBER, &s->requests, 1, 1000, "requests that count (3)"},
        {"--warmup", OPTION_NUMBER, &s->warmup, 0, 100, "requests before them (1)"},
        {"--type-k", OPTION_TEXT, &s->type_k, 0, 0, "type of cached keys: f16, bf16, f32, q8_0, q4_0 (f16)"},
        {"--type-v", OPTION_TEXT, &s->type_v, 0, 0, "type of cached values (f16)"},
        {"--kv-on-cpu", OPTION_FLAG, &s->kv_on_cpu, 0, 0,
         "keep the KV cache in host memory (llama.cpp's -nkvo)"},
        {"--cpu-experts", OPTION_NUMBER, &s->cpu_experts, 0, OVERRIDES_MOST,
         "layers whose experts stay on the CPU (-ncmoe; 0)"},
        {"--on-cpu", OPTION_OVERRIDE, NULL, 0, 0,
         "tensors that stay on the CPU; may be given again (-ot REGEX=CPU)"},
        {"--no-host", OPTION_FLAG, &s->no_host, 0, 0,
         "CPU layers outside pinned memory: lets them be repacked, AMX too"},
        {"--no-op-offload", OPTION_FLAG, &s->no_op_offload, 0, 0,
         "a prompt's CPU layers are computed on the CPU"},
        {"--no-flash", OPTION_FLAG, &s->no_flash, 0, 0, "without flash attention"},
        {"--no-mmap", OPTION_FLAG, &s->no_mmap, 0, 0, "read the file instead of mapping it"},
        {"--batch", OPTION_NUMBER, &s->batch, 1, 1 << 20, "tokens handed over at once (2048)"},
        {"--ubatch", OPTION_NUMBER, &s->ubatch, 1, 1 << 20, "tokens computed at once (512)"},
        {"--backends", OPTION_TEXT, &s->backends, 0, 0, "folder with libggml-*.so (beside this program)"},
        {"--random", OPTION_FLAG, &s->random_tokens, 0, 0, "feed random tokens instead of the likeliest"},
        {"--seed", OPTION_NUMBER, &s->seed, 0, 1L << 40, "of prompts (1)"},
        {"--verbose", OPTION_FLAG, &s->verbose, 0, 0, "all that llama.cpp says"},
    };
    int count = sizeof options / sizeof *options;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help")) return usage(options, count, stdout);
        int at = 0;
        while (at < count && strcmp(argv[i], options[at].name)) at++;
        if (at == count) {
            fprintf(stderr, "llama_bench: no option %s\n", argv[i]);
            return usage(options, count, stderr);
        }
        const char *value = NULL;
        if (options[at].kind != OPTION_FLAG && !(value = argv[++i])) return usage(options, count, stderr);
        if (!read_option(&options[at], value, s)) {
            fprintf(stderr, "llama_bench: %s: '%s' is not taken\n", options[at].name, value);
            return 2;
        }
    }
    return s->model ? -1 : usage(options, count, stderr);
}

static enum ggml_type kv_type(const char *name)
{
    static const enum ggml_type types[] = {GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_F32, GGML_TYPE_Q8_0,
                                           GGML_TYPE_Q4_0};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(name, ggml_type_name(types[i]))) return types[i];
    fail("no type of the KV cache", name);
    return GGML_TYPE_F16;
}

/* ---- loading ---- */

/* The tensors that stay on the CPU; the patterns live as long as the model. */
static const struct llama_model_tensor_buft_override *overrides_of(const struct settings *s)
{
    static struct llama_model_tensor_buft_override overrides[2 * OVERRIDES_MOST + 1];
    static char patterns[OVERRIDES_MOST][PATTERN_BYTES];
    int count = 0;
    for (int i = 0; i < s->cpu_experts; i++) {
        snprintf(patterns[i], PATTERN_BYTES, "blk\\.%d\\.ffn_(up|down|gate|gate_up)_(ch|)exps", i);
        overrides[count++].pattern = patterns[i];
    }
    for (int i = 0; i < s->override_count; i++) overrides[count++].pattern = s->overrides[i];
    for (int i = 0; i < count; i++) overrides[i].buft = ggml_backend_cpu_buffer_type();
    return count ? overrides : NULL;
}

static long output_of(const struct settings *s, int at)
{
    return s->outputs.value[at < s->outputs.count ? at : s->outputs.count - 1];
}

static long longer(long a, long b)
{
    return a > b ? a : b;
}

static void load(struct bench *bench)
{
    const struct settings *s = bench->settings;
    long longest = s->depth, needed = s->prompts.value[0] + TRIAL_TOKENS;
    for (int i = 0; i < s->prompts.count; i++) {
        longest = longer(longest, s->prompts.value[i]);
        needed = longer(needed, s->prompts.value[i] + output_of(s, i));
    }
    needed = longer(s->depth + needed, s->context);
    struct llama_model_params model = llama_model_default_params();
    model.n_gpu_layers = (int32_t)s->gpu_layers;
    model.split_mode = (enum llama_split_mode)s->split;
    model.tensor_buft_overrides = overrides_of(s);
    model.no_host = s->no_host;
    if (s->no_mmap) model.load_mode = LLAMA_LOAD_MODE_NONE;
    bench->model = llama_model_load_from_file(s->model, model);
    if (!bench->model) fail("not loaded", s->model);

    struct llama_context_params context = llama_context_default_params();
    context.n_ctx = (uint32_t)((needed + 255) / 256 * 256);
    context.n_batch = (uint32_t)s->batch;
    context.n_ubatch = (uint32_t)s->ubatch;
    context.n_threads = context.n_threads_batch = (int32_t)bench->threads;
    context.flash_attn_type = s->no_flash ? LLAMA_FLASH_ATTN_TYPE_DISABLED : LLAMA_FLASH_ATTN_TYPE_ENABLED;
    context.type_k = kv_type(s->type_k);
    context.type_v = kv_type(s->type_v);
    context.offload_kqv = !s->kv_on_cpu;
    context.op_offload = !s->no_op_offload;
    context.no_perf = true;
    bench->context = llama_init_from_model(bench->model, context);
    if (!bench->context) fail("no context", s->model);
    bench->vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(bench->model));
    if (bench->vocabulary < 1) fail("a file without a size of its vocabulary", s->model);
    bench->random = (uint64_t)s->seed;
    bench->tokens = calloc((size_t)longest + 1, sizeof *bench->tokens);
    if (!bench->tokens) fail("out of memory", NULL);
}

/* Bytes of all GPUs' memory that are free. */
static size_t vram_free(void)
{
    size_t sum = 0, free_bytes, total;
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        if (ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_GPU) continue;
        ggml_backend_dev_memory(device, &free_bytes, &total);
        sum += free_bytes;
    }
    return sum;
}

/* ---- one request ---- */

static llama_token random_token(struct bench *bench)
{
    uint64_t x = bench->random += 0x9e3779b97f4a7c15u; /* splitmix64 */
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (llama_token)((x ^ x >> 31) % (uint64_t)bench->vocabulary);
}

static void feed(struct bench *bench, llama_token *tokens, long count)
{
    for (long done = 0; done < count;) {
        long now = count - done < bench->settings->batch ? count - done : bench->settings->batch;
        if (llama_decode(bench->context, llama_batch_get_one(tokens + done, (int32_t)now)))
            fail("decoding failed", NULL);
        done += now;
    }
}

static void feed_random(struct bench *bench, long count)
{
    for (long i = 0; i < count; i++) bench->tokens[i] = random_token(bench);
    feed(bench, bench->tokens, count);
}

/* The token after the last one fed. Waits for it. Eight maxima side by side: one would wait for each
 * comparison. */
static llama_token next_token(struct bench *bench)
{
    const float *logits = llama_get_logits_ith(bench->context, -1);
    if (!logits) fail("no logits", NULL);
    if (bench->settings->random_tokens) return random_token(bench);
    float most[8];
    int32_t at = 0, whole = bench->vocabulary / 8 * 8;
    for (int lane = 0; lane < 8; lane++) most[lane] = -INFINITY;
    for (int32_t i = 0; i < whole; i += 8)
        for (int lane = 0; lane < 8; lane++)
            most[lane] = logits[i + lane] > most[lane] ? logits[i + lane] : most[lane];
    float best = most[0];
    for (int lane = 1; lane < 8; lane++) best = most[lane] > best ? most[lane] : best;
    for (int32_t i = whole; i < bench->vocabulary; i++) best = logits[i] > best ? logits[i] : best;
    while (at < bench->vocabulary - 1 && logits[at] != best) at++;
    return at;
}

static void run_request(struct bench *bench, long prompt, long output, struct samples *samples)
{
    const struct settings *s = bench->settings;
    llama_memory_clear(llama_get_memory(bench->context), true);
    feed_random(bench, s->depth);
    llama_synchronize(bench->context);

    llama_token token = random_token(bench);
    double start = now_ms(), first = start;
    if (prompt) {
        feed_random(bench, prompt);
        token = next_token(bench);
        first = now_ms();
        if (samples) samples->ttft[samples->ttft_count++] = first - start;
    }
    double last = first;
    for (long i = 1; i < output; i++) {
        feed(bench, &token, 1);
        token = next_token(bench);
        double now = now_ms();
        if (samples) samples->tpot[samples->tpot_count++] = now - last;
        last = now;
    }
    if (samples && output > 1) samples->decode[samples->decode_count++] = last - first;
}

/* ---- the report ---- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The value that the fraction `at` of all are below; sorts. */
static double quantile(double *values, int count, double at)
{
    qsort(values, (size_t)count, sizeof *values, compare);
    return values[(int)(at * (count - 1) + 0.5)];
}

static void report(long depth, long prompt, long output, struct samples *samples)
{
    if (samples->ttft_count) {
        double p50 = quantile(samples->ttft, samples->ttft_count, 0.5);
        printf("prefill %ld at %ld: %.1f token/s, TTFT %.2f ms (%.2f to %.2f)\n", prompt, depth,
               (double)prompt / p50 * 1e3, p50, samples->ttft[0], samples->ttft[samples->ttft_count - 1]);
    }
    if (samples->tpot_count) {
        double p10 = quantile(samples->tpot, samples->tpot_count, 0.1);
        double p50 = quantile(samples->tpot, samples->tpot_count, 0.5);
        double p90 = quantile(samples->tpot, samples->tpot_count, 0.9);
        double whole = quantile(samples->decode, samples->decode_count, 0.5);
        printf("decode %ld at %ld: median %.2f token/s, whole answer %.2f token/s, TPOT p10 %.3f p50 %.3f "
               "p90 %.3f ms\n",
               output - 1, depth + prompt, 1e3 / p50, (double)(output - 1) / whole * 1e3, p10, p50, p90);
    }
}

/* ---- cases ---- */

static struct samples samples_of(long requests, long output)
{
    size_t gaps = (size_t)requests * (size_t)output;
    struct samples samples = {.ttft = calloc((size_t)requests, sizeof(double)),
                              .tpot = calloc(gaps, sizeof(double)),
                              .decode = calloc((size_t)requests, sizeof(double))};
    if (!samples.ttft || !samples.tpot || !samples.decode) fail("out of memory", NULL);
    return samples;
}

static void drop(struct samples *samples)
{
    free(samples->ttft);
    free(samples->tpot);
    free(samples->decode);
}

static void set_threads(struct bench *bench, long threads)
{
    bench->threads = threads;
    llama_set_n_threads(bench->context, (int32_t)threads, (int32_t)threads);
}

/* Takes the number of threads that decodes fastest. */
static void try_threads(struct bench *bench)
{
    const struct settings *s = bench->settings;
    double least = INFINITY;
    long best = s->threads.value[0];
    if (s->threads.count > 1)
        run_request(bench, s->prompts.value[0], TRIAL_TOKENS, NULL); /* code is loaded */
    for (int i = 0; i < s->threads.count && s->threads.count > 1; i++) {
        struct samples samples = samples_of(1, TRIAL_TOKENS);
        set_threads(bench, s->threads.value[i]);
        run_request(bench, s->prompts.value[0], TRIAL_TOKENS, &samples);
        double each = quantile(samples.tpot, samples.tpot_count, 0.5);
        printf("tried %ld: TPOT median %.3f ms\n", bench->threads, each);
        if (each < least) least = each, best = bench->threads;
        drop(&samples);
    }
    set_threads(bench, best);
}

static void run_case(struct bench *bench, long prompt, long output)
{
    const struct settings *s = bench->settings;
    struct samples samples = samples_of(s->requests, output);
    for (long i = 0; i < s->warmup; i++)
        run_request(bench, prompt < s->batch ? prompt : s->batch, output, NULL);
    for (long i = 0; i < s->requests; i++) run_request(bench, prompt, output, &samples);
    report(s->depth, prompt, output, &samples);
    drop(&samples);
}

int main(int argc, char **argv)
{
    struct settings settings = {.threads = {{sysconf(_SC_NPROCESSORS_ONLN)}, 1},
                                .prompts = {{128}, 1},
                                .outputs = {{64}, 1},
                                .split = 1,
                                .requests = 3,
                                .warmup = 1,
                                .batch = 2048,
                                .ubatch = 512,
                                .seed = 1,
                                .type_k = "f16",
                                .type_v = "f16"};
    int status = read_options(argc, argv, &settings);
    if (status >= 0) return status;
    show_all = settings.verbose;
    llama_log_set(on_log, NULL);
    if (settings.backends)
        ggml_backend_load_all_from_path(settings.backends);
    else
        ggml_backend_load_all();
    llama_backend_init();

    struct bench bench = {.settings = &settings, .threads = settings.threads.value[0]};
    size_t before = vram_free();
    double start = now_ms();
    load(&bench);
    double loaded = now_ms();
    try_threads(&bench);
    for (int i = 0; i < settings.prompts.count; i++)
        run_case(&bench, settings.prompts.value[i], output_of(&settings, i));
    size_t after = vram_free();

    char text[128];
    llama_model_desc(bench.model, text, sizeof text);
    printf("llama.cpp %s: %s, %.2f GB, %d layers; ngl %ld, %ld threads, KV %s/%s%s; loaded in %.1f s, VRAM "
           "%.2f GB, %.2f free\n",
           llama_version(), text, (double)llama_model_size(bench.model) * 1e-9,
           llama_model_n_layer(bench.model), settings.gpu_layers, bench.threads, settings.type_k,
           settings.type_v, settings.kv_on_cpu ? " on the CPU" : "", (loaded - start) * 1e-3,
           before > after ? (double)(before - after) * 1e-9 : 0.0, (double)after * 1e-9);
    llama_free(bench.context);
    llama_model_free(bench.model);
    llama_backend_free();
    free(bench.tokens);
    return 0;
}
