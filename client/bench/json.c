/* The report for scripts. See bench.h; docs/benchmarking.md describes every member. Called by main. */
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

#include "common/base/cgroup.h"
#include "common/base/cpu.h"
#include "client/bench/bench.h"

#define MACHINE_TEXT 128

static void set(json_t *object, const char *key, json_t *value)
{
    json_object_set_new(object, key, value);
}

/* {"p10", "p50", "p90"}; null when nothing was measured. */
static json_t *spread(const struct samples *samples, bool tail)
{
    if (!samples->count) return json_null();
    json_t *out = json_pack("{s:f, s:f, s:f}", "p10", samples_quantile(samples, 0.1), "p50",
                            samples_quantile(samples, 0.5), "p90", samples_quantile(samples, 0.9));
    if (tail) set(out, "p99", json_real(samples_quantile(samples, 0.99)));
    return out;
}

static json_t *real_or_null(double value)
{
    return value > 0 ? json_real(value) : json_null();
}

static json_t *median_or_null(const struct samples *samples)
{
    return samples->count ? json_real(samples_quantile(samples, 0.5)) : json_null();
}

static json_t *devices(const struct bench *bench, const struct bench_cell *cell)
{
    const struct bench_group *group = &bench->group[cell->group];
    double tpot_ms = samples_quantile(&cell->server_tpot_ms, 0.5);
    json_t *out = json_array();
    for (uint32_t i = 0; i < group->device_count; i++) {
        const struct bench_device *d = &group->device[i];
        double gb_s = tpot_ms > 0 ? (double)d->token_bytes / tpot_ms * 1e-6 : 0;
        double limit = bytes_limit(bench, d, samples_quantile(&cell->read_gb_s, 0.5));
        if (!d->token_bytes) continue;
        json_array_append_new(out, json_pack("{s:s, s:I, s:o, s:o, s:o}", "name", d->name,
                                             "weight_bytes_per_token", (json_int_t)d->token_bytes, "gb_s",
                                             real_or_null(gb_s), "limit_gb_s", real_or_null(limit), "ratio",
                                             real_or_null(limit > 0 ? gb_s / limit : 0)));
    }
    return out;
}

static json_t *cell_report(const struct bench *bench, const struct bench_cell *cell)
{
    const struct bench_group *group = &bench->group[cell->group];
    const char *name = bench_model_name(group);
    char checksum[20];
    json_t *out = json_object();
    set(out, "engine", json_string("helm"));
    set(out, "model", json_stringn(name, strcspn(name, "/")));
    set(out, "folder", json_string(group->info ? group->info->folder : group->model ? group->model : ""));
    set(out, "device", bench->base.device ? json_string(bench->base.device) : json_null());
    set(out, "vram_bytes", group->vram_bytes ? json_integer((json_int_t)group->vram_bytes) : json_null());
    set(out, "prompt_tokens", json_integer(cell->prompt_tokens));
    set(out, "output_tokens", json_integer(cell->output_tokens));
    set(out, "concurrency", json_integer((json_int_t)bench->options.concurrency));
    set(out, "error", cell->status ? json_string(cell->err.text) : json_null());
    if (cell->status) return out;
    snprintf(checksum, sizeof checksum, "%016llx", (unsigned long long)cell->checksum);
    set(out, "prompt_checksum", json_string(checksum));
    set(out, "requests", json_integer((json_int_t)cell->requests_done));
    set(out, "ttft_ms", spread(&cell->ttft_ms, false));
    set(out, "tpot_ms", spread(&cell->gap_ms, true));
    set(out, "decode_tok_s", spread(&cell->decode_tok_s, false));
    set(out, "prefill_tok_s", spread(&cell->prefill_tok_s, false));
    set(out, "throughput_tok_s", spread(&cell->throughput_tok_s, false));
    set(out, "server",
        json_pack("{s:o, s:o, s:o, s:o}", "ttft_ms", median_or_null(&cell->server_ttft_ms), "tpot_ms",
                  median_or_null(&cell->server_tpot_ms), "prefill_tok_s",
                  median_or_null(&cell->server_prefill_tok_s), "decode_tok_s",
                  median_or_null(&cell->server_decode_tok_s)));
    set(out, "devices", devices(bench, cell));
    set(out, "read_gb_s", spread(&cell->read_gb_s, false));
    set(out, "bound_ms", median_or_null(&cell->bound_ms));
    set(out, "bound_ratio", spread(&cell->ratio, false));
    set(out, "worker_seconds",
        json_pack("{s:I, s:f, s:f, s:f, s:f}", "steps", (json_int_t)cell->steps, "linear",
                  cell->seconds_linear, "attention", cell->seconds_attention, "sample", cell->seconds_sample,
                  "idle", cell->seconds_idle));
    set(out, "load_seconds", median_or_null(&group->load_seconds));
    set(out, "weight_bytes", json_integer((json_int_t)group->info->weight_bytes));
    set(out, "context_tokens", json_integer(group->info->context));
    set(out, "helm_version", json_string(group->version ? group->version : ""));
    set(out, "plan", json_incref(group->stages));
    set(out, "workers", json_incref(group->workers));
    return out;
}

static json_t *machine(void)
{
    char cpu[MACHINE_TEXT], features[MACHINE_TEXT];
    struct utsname kernel;
    struct cgroup_memory memory;
    struct cpu_set *set_of = malloc(sizeof *set_of);
    json_t *out = json_object();
    cpu_model_name(cpu, sizeof cpu);
    set(out, "cpu", json_string(cpu));
    set(out, "features", json_string(cpu_features_text(cpu_features(), features, sizeof features)));
    if (set_of && cpu_usable(-1, set_of, NULL) == 0) {
        set(out, "cpus", json_integer(set_of->count));
        set(out, "cores", json_integer(set_of->cores));
    }
    if (uname(&kernel) == 0) set(out, "kernel", json_string(kernel.release));
    if (cgroup_read_memory(&memory, NULL) == 0)
        set(out, "memory_bytes", json_integer((json_int_t)memory.machine_bytes));
    free(set_of);
    return out;
}

json_t *json_report(const struct bench *bench)
{
    const struct bench_options *o = &bench->options;
    char date[32];
    struct tm utc;
    time_t now = time(NULL);
    json_t *out = json_object(), *command = json_array(), *cells = json_array();
    if (!out || !command || !cells) {
        json_decref(out);
        json_decref(command);
        json_decref(cells);
        return NULL;
    }
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    for (int i = 0; i < bench->argc; i++) json_array_append_new(command, json_string(bench->argv[i]));
    for (uint32_t i = 0; i < bench->cell_count; i++)
        json_array_append_new(cells, cell_report(bench, &bench->cell[i]));
    set(out, "schema", json_string(BENCH_SCHEMA));
    set(out, "date", json_string(date));
    set(out, "version", json_string(HELM_VERSION));
    set(out, "command", command);
    set(out, "machine", machine());
    set(out, "settings",
        json_pack("{s:I, s:I, s:I, s:I, s:I}", "requests", (json_int_t)o->requests, "concurrency",
                  (json_int_t)o->concurrency, "warmup", (json_int_t)o->warmup, "rounds",
                  (json_int_t)o->rounds, "seed", (json_int_t)o->seed));
    set(out, "read_gb_s", spread(&bench->read_gb_s, false));
    set(out, "read_threads", bench->limit_threads ? json_integer(bench->limit_threads) : json_null());
    set(out, "vram_read_gb_s", real_or_null(o->vram_read_gb_s));
    set(out, "link_read_gb_s", real_or_null(o->link_read_gb_s));
    set(out, "cells", cells);
    return out;
}
