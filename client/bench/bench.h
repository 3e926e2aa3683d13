/* `helm-cli bench` and helm-bench: what their files share.
 *
 * command_bench.c holds the options and the order of work; cells.c makes the matrix and runs it round by
 * round; drive.c sends one cell's requests and times their tokens; read_limit.c measures the machine's read
 * bandwidth beside them; bytes.c says which device reads how many bytes of weights for a token; prompt.c
 * makes the prompts; samples.c holds numbers; text.c and json.c report. Everything hangs on one struct bench
 * that the command owns. docs/benchmarking.md says what each number means. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "client/shared/cli.h"

#define BENCH_SCHEMA      "helm-bench/1"
#define BENCH_LIST_MAX    32
#define BENCH_CELLS_MAX   1024
#define BENCH_DEVICES_MAX 4 /* cpu, gpu, link, disk */

/* ---- samples.c ---- */

struct samples {
    double *value;
    size_t count, space;
};
HELM_MUST_CHECK int samples_add(struct samples *samples, double value, struct helm_err *err);
/* The value that the fraction `at` of all are below (nearest rank); 0 when there is none. */
double samples_quantile(const struct samples *samples, double at);
/* The same of the samples from `first` on. */
double samples_quantile_from(const struct samples *samples, size_t first, double at);
void samples_free(struct samples *samples);

/* ---- prompt.c ---- */

/* Token `index` of request `request`: the same in every program that knows seed and vocabulary
 * (tests/golden/prompt_ids.py). */
uint32_t prompt_token(uint64_t seed, uint64_t request, uint64_t index, uint32_t vocab);
void prompt_fill(uint64_t seed, uint64_t request, uint32_t vocab, uint32_t *ids, size_t count);
/* FNV-1a over the ids, four bytes each, lowest first: shows that two programs used the same prompt. */
uint64_t prompt_checksum(const uint32_t *ids, size_t count);
#define PROMPT_WARMUP_FIRST ((uint64_t)1 << 31) /* numbers of warm-up requests begin here */

/* ---- read_limit.c ---- */

struct read_limit;
/* `threads` threads, one a core of `node` (-1: any), over `bytes` of memory of their own (`memory` NULL), or
 * of the caller's, which stays his, is touched already and is only read; a rest of less than 2 MiB is left
 * out. Its bytes should be far beyond the caches. */
HELM_MUST_CHECK int read_limit_open(uint32_t threads, int node, const void *memory, uint64_t bytes,
                                    struct read_limit **out, struct helm_err *err);
/* GB/s just now. */
HELM_MUST_CHECK int read_limit_measure(struct read_limit *limit, double *gb_s, struct helm_err *err);
void read_limit_close(struct read_limit **limit);

/* ---- the matrix ---- */

struct bench_options {
    const char *json_path, *markdown_path;
    struct args_list models;
    struct args_list daemon_arguments;   /* of the private daemons; --ctx included */
    uint64_t vram_bytes[BENCH_LIST_MAX]; /* 0: as much as there is */
    uint32_t vram_count;
    uint64_t prompt[BENCH_LIST_MAX], output[BENCH_LIST_MAX];
    uint32_t prompt_count, output_count;
    uint64_t requests, concurrency, warmup, rounds, seed, silence_seconds;
    uint64_t read_bytes; /* to measure reading in; 0: do not measure, UINT64_MAX: as the weights */
    double vram_read_gb_s, link_read_gb_s;         /* 0: not known */
    double temperature, top_p, repetition_penalty; /* of every request; temperature 0: greedy */
    uint64_t top_k;
    bool keep;
};

/* One daemon, and the cells that it is started for. */
struct bench_group {
    const char *model; /* as given; NULL with --connect */
    uint64_t vram_bytes;
    struct cli cli; /* its connection and private daemon while open */
    bool open;
    struct samples load_seconds;
    /* the daemon's answers, from the first time it was open */
    struct helm_model_info *info;
    char *version;
    json_t *stages, *workers;
    uint32_t threads; /* of the CPU worker, as are */
    uint64_t weight_bytes;
    int node;
    bool local, has_cpu;
    struct bench_device {
        const char *name;
        uint64_t token_bytes; /* of weights read for one token */
    } device[BENCH_DEVICES_MAX];
    uint32_t device_count;
};

struct bench_cell {
    uint32_t group;
    uint32_t prompt_tokens, output_tokens;
    uint64_t checksum;                                           /* of its first prompt */
    struct samples ttft_ms, gap_ms, decode_tok_s, prefill_tok_s; /* seen from here */
    struct samples throughput_tok_s;                             /* one a round */
    struct samples server_ttft_ms, server_tpot_ms, server_prefill_tok_s, server_decode_tok_s;
    struct samples read_gb_s, bound_ms, ratio; /* one a round */
    double seconds_linear, seconds_attention, seconds_sample, seconds_idle;
    uint64_t steps, requests_done;
    int status; /* enum cli_exit; of the error, if there was one */
    struct helm_err err;
};

struct bench {
    struct bench_options options;
    int argc;
    char *const *argv;
    struct cli base; /* options of helm-cli, signals; copied into each group */
    struct bench_group *group;
    uint32_t group_count;
    struct bench_cell *cell;
    uint32_t cell_count;
    struct read_limit *limit;
    uint64_t limit_bytes;
    uint32_t limit_threads;
    int limit_node;
    struct samples read_gb_s; /* every measurement of the run */
    int signal_number;        /* that ended it; 0: none */
};

/* ---- cells.c ---- */

HELM_MUST_CHECK int cells_make(struct bench *bench, struct helm_err *err);
/* Runs every round; what goes wrong with a cell is kept in it. Returns the first bad exit status. */
int cells_run(struct bench *bench);
void cells_free(struct bench *bench);

/* ---- drive.c ---- */

/* Sends `count` requests numbered from `first`, `concurrency` at once, and adds what is measured to the cell,
 * or throws it away (`warm_up`). */
HELM_MUST_CHECK int drive_requests(struct bench *bench, struct bench_group *group, struct bench_cell *cell,
                                   uint64_t first, uint64_t count, bool warm_up, struct helm_err *err);

/* ---- bytes.c ---- */

/* Reads the plan (JSON text of the daemon) into group->stages and group->device. */
HELM_MUST_CHECK int bytes_read_plan(struct bench_group *group, const char *plan, struct helm_err *err);
/* GB/s that a device can read, 0 if not known. `read_gb_s`: the machine's memory, as measured. */
double bytes_limit(const struct bench *bench, const struct bench_device *device, double read_gb_s);
/* Milliseconds in which all devices, one after another, can read one token's weights at best; 0: not known.
 */
double bytes_bound_ms(const struct bench *bench, const struct bench_group *group, double read_gb_s);

/* ---- text.c, json.c ---- */

const char *bench_model_name(const struct bench_group *group); /* the folder's last part */
const char *bench_vram_text(const struct bench_group *group, char text[32]);
void text_table(const struct bench *bench, FILE *out);
void text_markdown(const struct bench *bench, FILE *out);
json_t *json_report(const struct bench *bench); /* NULL without memory */
