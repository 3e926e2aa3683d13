/* `helm-cli bench` and helm-bench: decode and prefill speed of helmd as a client sees it, over a matrix of
 * models, VRAM ceilings, prompt and output lengths, beside what the machine's memory allows.
 *
 * Start order only: options, matrix, rounds, reports. Called by both programs' mains. Runs against a daemon,
 * or starts a private one for each (model, VRAM) pair. docs/benchmarking.md says what the numbers mean. */
#include <errno.h>
#include <float.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "client/bench/command_bench.h"
#include "common/base/units.h"
#include "client/bench/bench.h"

#define JSON_STYLE    (JSON_INDENT(2) | JSON_REAL_PRECISION(6))
#define TOKENS_MAX    ((uint64_t)1 << 24)
#define REQUESTS_MAX  100000
#define CONTEXT_LEAST 16 /* of helmd's --ctx */

/* "A,B,C" of sizes or counts; a size may be "all" (0). */
static int parse_list(const char *name, const char *text, bool sizes, uint64_t *list, uint32_t *count,
                      struct helm_err *err)
{
    char item[64];
    *count = 0;
    for (const char *at = text;;) {
        size_t length = strcspn(at, ",");
        if (length >= sizeof item || *count == BENCH_LIST_MAX)
            return helm_fail(err, HELM_E_USAGE, "%s: more than %d values, or one too long: %.60s", name,
                             BENCH_LIST_MAX, text);
        memcpy(item, at, length);
        item[length] = 0;
        int rc = 0;
        if (sizes && strcmp(item, "all") == 0)
            list[*count] = 0;
        else
            rc = sizes ? units_parse_size(name, item, &list[*count], err)
                       : units_parse_u64(name, item, 1, TOKENS_MAX, &list[*count], err);
        if (rc < 0) {
            if (err) err->code = HELM_E_USAGE;
            return HELM_E_USAGE;
        }
        ++*count;
        if (!at[length]) return 0;
        at += length + 1;
    }
}

static bool has_argument(const struct args_list *list, const char *name)
{
    size_t length = strlen(name);
    for (uint32_t i = 0; i < list->count; i++)
        if (strncmp(list->item[i], name, length) == 0 &&
            (!list->item[i][length] || list->item[i][length] == '='))
            return true;
    return false;
}

static uint64_t largest(const uint64_t *list, uint32_t count)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < count; i++)
        if (list[i] > most) most = list[i];
    return most;
}

/* `helm-cli --model M --vram 8GiB bench`: a matrix of one row, where the command says no other. */
static void take_global_options(struct bench *bench, const char *vram)
{
    struct bench_options *o = &bench->options;
    if (!o->models.count && bench->base.model) o->models.item[o->models.count++] = bench->base.model;
    o->vram_count = !vram && bench->base.has_vram;
    o->vram_bytes[0] = bench->base.vram_bytes;
}

/* Checks what the table of options cannot see. `extra`: operands, which only stand after "--". */
static int check_options(struct bench *bench, const struct args_parsed *parsed, const char *vram,
                         const char *prompt, const char *output, struct helm_err *err)
{
    struct bench_options *o = &bench->options;
    uint32_t extra = parsed->operand.count;
    if (extra && strcmp(bench->argv[bench->argc - (int)extra - 1], "--") != 0)
        return helm_fail(err, HELM_E_USAGE, "unexpected '%.60s': options of helmd come after --",
                         parsed->operand.item[0]);
    if (bench->base.connect && o->models.count)
        return helm_fail(err, HELM_E_USAGE,
                         "--connect and --model exclude each other: --model starts a daemon of its own");
    if (!o->models.count && (vram || cli_has_daemon_option(&bench->base) || extra || o->keep))
        return helm_fail(err, HELM_E_USAGE, "%s --model: a running daemon has its own",
                         vram                 ? "--vram needs"
                         : bench->base.device ? "--device needs"
                         : o->keep            ? "--keep-daemons needs"
                         : extra              ? "options after -- need"
                                              : "options of helmd need");
    int rc = 0;
    if (!o->vram_count)
        rc = parse_list("--vram", vram ? vram : "all", true, o->vram_bytes, &o->vram_count, err);
    if (rc == 0) rc = parse_list("--prompt", prompt, false, o->prompt, &o->prompt_count, err);
    if (rc == 0) rc = parse_list("--output", output, false, o->output, &o->output_count, err);
    if (rc < 0) return rc;
    uint64_t cells =
        (uint64_t)(o->models.count ? o->models.count : 1) * o->vram_count * o->prompt_count * o->output_count;
    if (cells > BENCH_CELLS_MAX)
        return helm_fail(err, HELM_E_USAGE, "a matrix of %llu cells: %d at most", (unsigned long long)cells,
                         BENCH_CELLS_MAX);
    o->daemon_arguments = parsed->operand;
    /* Measured prompts are computed: those of two cells, or of two runs, begin alike. */
    if (!has_argument(&parsed->operand, "--prefix-cache") && extra < ARGS_LIST_MAX)
        o->daemon_arguments.item[o->daemon_arguments.count++] = "--prefix-cache=off";
    bench->base.daemon_arguments = &o->daemon_arguments;
    /* As much context as the longest cell needs: what KV takes is then no accident of helmd's default. A plan
     * and a file may have a word of their own on it. */
    if (!bench->base.has_ctx && !bench->base.plan && !bench->base.config &&
        !has_argument(&parsed->operand, "--ctx") && !has_argument(&parsed->operand, "--plan") &&
        !has_argument(&parsed->operand, "--config")) {
        bench->base.has_ctx = true;
        bench->base.ctx_tokens = largest(o->prompt, o->prompt_count) + largest(o->output, o->output_count);
        if (bench->base.ctx_tokens < CONTEXT_LEAST) bench->base.ctx_tokens = CONTEXT_LEAST;
    }
    return 0;
}

/* Opens before the work is done, so that a path that cannot be written costs no benchmark. */
static int open_output(const char *path, FILE **file, struct helm_err *err)
{
    *file = NULL;
    if (!path) return 0;
    *file = strcmp(path, "-") == 0 ? stdout : fopen(path, "w");
    return *file ? 0 : helm_fail_errno(err, "%s: cannot write", path);
}

static int close_output(const char *path, FILE *file, bool bad, struct helm_err *err)
{
    if (!file) return 0;
    errno = 0;
    bad |= file == stdout ? fflush(file) != 0 : fclose(file) != 0;
    if (bad && file == stdout && errno == EPIPE) return helm_fail(err, HELM_E_IO, "%s", ""); /* `| head` */
    return bad ? helm_fail_errno(err, "%s: cannot write", path) : 0;
}

static int write_reports(const struct bench *bench, FILE *json, FILE *markdown, struct helm_err *err)
{
    const struct bench_options *o = &bench->options;
    int rc = 0;
    if (json != stdout && markdown != stdout) {
        text_table(bench, stdout);
        rc = close_output("standard output", stdout, false, err);
    }
    if (markdown) {
        text_markdown(bench, markdown);
        int written = close_output(o->markdown_path, markdown, ferror(markdown) != 0, err);
        if (rc == 0) rc = written;
    }
    if (json) {
        json_t *report = json_report(bench);
        bool bad = !report || json_dumpf(report, json, JSON_STYLE) < 0 || fputc('\n', json) == EOF;
        json_decref(report);
        int written = close_output(o->json_path, json, bad, err);
        if (rc == 0) rc = written;
    }
    return rc;
}

static const char epilogue[] =
    "A matrix is every combination of --model, --vram, --prompt and --output. Rounds are interleaved\n"
    "over it, and the machine's read bandwidth is measured before and after each cell. Prompts are\n"
    "random token ids, the same for the same --seed; output is greedy and ignores end of sequence.\n"
    "Table to standard output; with --json - or --markdown - that instead.\n"
    "\n"
    "exit status: 0 done, 2 usage, 3 no daemon, 4 refused, 5 failed midway, 128+N ended by signal N;\n"
    "a cell that fails is reported as such, the others are still measured\n";

int command_bench(struct cli *cli, int argc, char *const argv[])
{
    struct bench bench = {.argc = argc,
                          .argv = argv,
                          .limit_node = -1,
                          .options = {.requests = 3,
                                      .concurrency = 1,
                                      .warmup = 1,
                                      .rounds = 3,
                                      .seed = 1,
                                      .silence_seconds = 600,
                                      .read_bytes = UINT64_MAX}};
    struct bench_options *o = &bench.options;
    const char *vram = NULL, *prompt = "128", *output = "128";
    const struct args_option options[] = {
        {"connect", 0, ARGS_TEXT, "ENDPOINT", "measure this running daemon (default: helm-cli's default)",
         .target = &cli->connect},
        {"model", 0, ARGS_LIST, "DIR", "start private daemons on this checkpoint; repeatable",
         .target = &o->models},
        {"vram", 0, ARGS_TEXT, "SIZE,...", "GPU memory ceilings, one daemon each: 8GiB,24GiB,all (all)",
         .target = &vram},
        {"device", 0, ARGS_TEXT, "DEVICE", "auto, cpu, cuda[:N] or emulated", .target = &cli->device},
        {"prompt", 0, ARGS_TEXT, "N,...", "prompt lengths in tokens (128)", .target = &prompt},
        {"output", 0, ARGS_TEXT, "N,...", "tokens to generate (128)", .target = &output},
        {"requests", 0, ARGS_U64, "N", "measured requests of a cell in a round (3)", .target = &o->requests,
         .min = 1, .max = REQUESTS_MAX},
        {"concurrency", 0, ARGS_U64, "N", "requests open at once (1)", .target = &o->concurrency, .min = 1,
         .max = HELM_OPEN_REQUESTS_MAX},
        {"temperature", 0, ARGS_DOUBLE, "T", "draw tokens at it; 0 is greedy (0)", .target = &o->temperature,
         .max = 100},
        {"top-k", 0, ARGS_U64, "K", "of the K likeliest tokens; 0: off (0)", .target = &o->top_k,
         .max = UINT32_MAX},
        {"top-p", 0, ARGS_DOUBLE, "P", "the likeliest tokens that together reach P, above 0; 1: off (1)",
         .target = &o->top_p, .min = FLT_MIN, .max = 1},
        {"repetition-penalty", 0, ARGS_DOUBLE, "R",
         "divides the logits of tokens that came before, above 0; 1: off (1)",
         .target = &o->repetition_penalty, .min = FLT_MIN, .max = 100},
        {"warmup", 0, ARGS_U64, "N", "requests before them that do not count (1)", .target = &o->warmup,
         .max = REQUESTS_MAX},
        {"rounds", 0, ARGS_U64, "N", "times over the matrix (3)", .target = &o->rounds, .min = 1,
         .max = 1000},
        {"seed", 0, ARGS_U64, "N", "of the prompts (1)", .target = &o->seed,
         .max = (double)((uint64_t)1 << 53)},
        {"keep-daemons", 0, ARGS_FLAG, NULL,
         "keep all private daemons loaded through all rounds\n(else one at a time, loaded anew each round)",
         .target = &o->keep},
        {"read-buffer", 0, ARGS_SIZE, "SIZE",
         "memory to measure read bandwidth in (as the CPU worker's weights,\n256MiB to 4GiB); at most a "
         "quarter of what is free; 0: do not measure",
         .target = &o->read_bytes},
        {"vram-read", 0, ARGS_DOUBLE, "GB/S", "the GPU's own read bandwidth as measured: its limit",
         .target = &o->vram_read_gb_s, .min = 1e-3, .max = 1e6},
        {"link-read", 0, ARGS_DOUBLE, "GB/S", "likewise of host memory read by the GPU",
         .target = &o->link_read_gb_s, .min = 1e-3, .max = 1e6},
        {"timeout", 0, ARGS_U64, "SECONDS", "silence of the daemon that ends a request (600)",
         .target = &o->silence_seconds, .min = 1, .max = 86400},
        {"json", 0, ARGS_TEXT, "FILE", "write the report as JSON; - is standard output",
         .target = &o->json_path},
        {"markdown", 0, ARGS_TEXT, "FILE", "write it as a Markdown table; - is standard output",
         .target = &o->markdown_path},
    };
    const struct args_spec spec = {
        .program = cli->global ? "helm-cli bench" : "helm-bench",
        .usage = "[--connect ENDPOINT | --model DIR...] [options] [-- HELMD OPTIONS]",
        .about = "Measures decode and prefill speed of helmd beside the machine's limits.",
        ARGS_TABLE(options),
        .epilogue = epilogue,
        .max_operands = ARGS_LIST_MAX,
        .parent = cli->global};
    struct helm_err err = {0};
    struct args_parsed parsed;
    FILE *json = NULL, *markdown = NULL;
    args_parse_main(&spec, argc, argv, &parsed);
    bench.base = *cli;
    take_global_options(&bench, vram);
    if (check_options(&bench, &parsed, vram, prompt, output, &err) < 0) return args_usage_error(&spec, &err);
    signal(SIGPIPE, SIG_IGN);
    int status = CLI_EXIT_FAILED;
    int rc = open_output(o->json_path, &json, &err);
    if (rc == 0) rc = open_output(o->markdown_path, &markdown, &err);
    if (rc == 0) rc = cli_catch_signals(&bench.base, &err);
    if (rc == 0) rc = cells_make(&bench, &err);
    if (rc == 0) {
        status = cells_run(&bench);
        if (!bench.signal_number) {
            rc = write_reports(&bench, json, markdown, &err);
            json = markdown = NULL;
        }
    }
    if (rc < 0) {
        cli_complain(err.text);
        if (!status) status = CLI_EXIT_FAILED;
    }
    if (json && json != stdout) fclose(json);
    if (markdown && markdown != stdout) fclose(markdown);
    cells_free(&bench);
    if (bench.base.signal_fd >= 0) close(bench.base.signal_fd);
    return status;
}
