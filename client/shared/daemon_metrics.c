/* helmd's counters as Prometheus's text. See daemon_metrics.h.
 *
 * Names follow Prometheus's conventions: base units (seconds, bytes, ratio) as suffix, _total for what never
 * falls, one family for what is added up. docs/metrics.md lists them by subject. */
#include "client/shared/daemon_metrics.h"

#include <stdio.h>
#include <string.h>

#include "client/shared/exposition.h"

/* ---- one sample each -------------------------------------------------------------------------------- */

/* A family of named counts; none without any. */
static void write_counts(const char *name, const char *label, const struct helm_count *counts, size_t count,
                         const char *help, struct cli_text *out)
{
    if (count) exposition_family(out, name, "counter", help);
    for (size_t i = 0; i < count; i++)
        exposition_sample(out, name, label, counts[i].name, (double)counts[i].count);
}

static void write_requests(const struct helm_status *s, struct cli_text *out)
{
    exposition_counter(out, "helm_requests_total", (double)s->requests_total,
                       "Generations that helmd took, of all clients.");
    write_counts("helm_requests_ended_total", "end", s->ended, s->ended_count,
                 "Generations that are over, by their end.", out);
    write_counts("helm_refusals_total", "code", s->refused, s->refused_count,
                 "Messages of clients that helmd answered with an error, by its code.", out);
    exposition_gauge(out, "helm_requests_running", s->running, "Sequences that have a slot.");
    exposition_gauge(out, "helm_requests_queued", s->queued, "Requests that wait for a slot.");
    exposition_gauge(out, "helm_queue_limit", s->queue_limit, "Requests that may wait.");
    exposition_counter(out, "helm_preemptions_total", (double)s->preemptions_total,
                       "Sequences that gave their pages to older ones and were computed again.");
}

static void write_tokens(const struct helm_status *s, struct cli_text *out)
{
    exposition_counter(out, "helm_prompt_tokens_total", (double)s->tokens_prompt_total,
                       "Tokens of prompts, found ones included.");
    exposition_counter(out, "helm_output_tokens_total", (double)s->tokens_output_total, "Tokens generated.");
    exposition_counter(out, "helm_prefix_hits_total", (double)s->prefix_hits_total,
                       "Requests that found pages of their prompt.");
    exposition_counter(out, "helm_cached_tokens_total", (double)s->tokens_cached_total,
                       "Tokens of prompts that were not computed: their pages were there.");
    exposition_counter(out, "helm_prefix_evictions_total", (double)s->prefix_evictions_total,
                       "Pages that prompts could find and that were given to others.");
    if (s->draft_tokens) {
        exposition_counter(out, "helm_drafted_tokens_total", (double)s->tokens_drafted_total,
                           "Tokens of answers that were guessed and computed.");
        exposition_counter(out, "helm_accepted_tokens_total", (double)s->tokens_accepted_total,
                           "Guessed tokens that were right.");
        exposition_counter(out, "helm_with_drafts_seconds_total", s->seconds_with_drafts,
                           "Seconds of requests in steps with guessed tokens.");
        exposition_counter(out, "helm_without_drafts_seconds_total", s->seconds_without_drafts,
                           "Seconds that steps without would have taken for the same tokens, by forecast.");
    }
    if (!s->snapshots_total) return;
    exposition_gauge(out, "helm_snapshots", s->snapshots, "States of fixed size that prompts can find.");
    exposition_gauge(out, "helm_snapshot_bytes", (double)s->snapshot_bytes * s->snapshots,
                     "Host memory that these states take.");
    exposition_counter(out, "helm_snapshot_hits_total", (double)s->snapshot_hits_total,
                       "Times that a sequence began with one of these states.");
    exposition_counter(out, "helm_snapshots_dropped_total", (double)s->snapshots_dropped_total,
                       "States that prompts could find and that gave their place to others.");
}

static void write_cache(const struct helm_status *s, struct cli_text *out)
{
    exposition_family(out, "helm_kv_pages", "gauge",
                      "Pages that a pool of the KV cache has. all: every page; vram: the places in VRAM of a "
                      "cache in two tiers (one tier: 0).");
    exposition_sample(out, "helm_kv_pages", "pool", "all", s->kv_pages_total);
    exposition_sample(out, "helm_kv_pages", "pool", "vram", s->kv_places_total);
    exposition_family(out, "helm_kv_pages_used", "gauge",
                      "Pages that sequences use. host: those in host memory alone, of a cache in two tiers.");
    exposition_sample(out, "helm_kv_pages_used", "pool", "all", s->kv_pages_used);
    exposition_sample(out, "helm_kv_pages_used", "pool", "vram", s->kv_places_used);
    exposition_sample(out, "helm_kv_pages_used", "pool", "host", s->kv_pages_host);
    exposition_gauge(out, "helm_kv_pages_cached", s->kv_pages_cached,
                     "Free pages that prompts can find by their tokens.");
    exposition_gauge(out, "helm_kv_page_bytes", (double)s->kv_page_tokens * (double)s->kv_token_bytes,
                     "What a page takes, all layers together.");
    exposition_counter(out, "helm_kv_pages_moved_out_total", (double)s->kv_pages_moved_out_total,
                       "Pages that gave their place in VRAM away.");
    exposition_counter(out, "helm_kv_pages_fetched_total", (double)s->kv_pages_fetched_total,
                       "Pages that were copied to VRAM again.");
}

static void write_experts(const struct helm_status *s, struct cli_text *out)
{
    exposition_counter(out, "helm_experts_used_total", (double)s->experts_used_total,
                       "Uses of experts of layers whose experts lie in both memories, by decode steps.");
    exposition_counter(out, "helm_experts_present_total", (double)s->experts_present_total,
                       "Of these uses, in VRAM.");
    exposition_counter(out, "helm_experts_moved_total", (double)s->experts_moved_total,
                       "Experts that were brought to VRAM in the stead of others.");
}

/* ---- time ------------------------------------------------------------------------------------------- */

static double busy_of(const struct helm_status *s, const char *worker)
{
    double sum = 0;
    for (size_t i = 0; i < s->worker_count; i++)
        if (strcmp(s->workers[i].name, worker) == 0) sum += s->workers[i].busy_seconds;
    return sum;
}

static void write_time(const struct helm_status *s, struct cli_text *out)
{
    static const char resource[] = "helm_resource_seconds_total", part[] = "helm_operation_seconds_total";
    exposition_histogram(out, "helm_queue_seconds", &s->queue_seconds,
                         "From a request's admission to its slot.");
    exposition_histogram(out, "helm_time_to_first_token_seconds", &s->ttft_seconds,
                         "From a request's admission to its first token (TTFT).");
    exposition_histogram(out, "helm_time_per_output_token_seconds", &s->tpot_seconds,
                         "A request's mean time per token after the first (TPOT).");
    exposition_histogram(out, "helm_step_sequences", &s->step_sequences,
                         "Sequences that a step computed (batch).");
    exposition_counter(out, "helm_steps_total", (double)s->steps_total, "Steps of the model.");
    exposition_counter(out, "helm_step_seconds_total", s->seconds_steps,
                       "Time in which a step was under way.");
    exposition_counter(out, "helm_idle_seconds_total", s->seconds_idle,
                       "Time since the start in which none was.");
    exposition_family(out, resource, "counter",
                      "Of the steps' time: cpu, gpu (with its waits for the link): it computed; waiting: no "
                      "processor did; link: the least that it copied, its bytes at the profile's rate.");
    exposition_sample(out, resource, "resource", "cpu", busy_of(s, "cpu"));
    exposition_sample(out, resource, "resource", "gpu", busy_of(s, "gpu"));
    exposition_sample(out, resource, "resource", "link", s->seconds_link);
    exposition_sample(out, resource, "resource", "waiting", s->seconds_waiting);
    exposition_family(out, part, "counter", "The workers' time by what they did.");
    exposition_sample(out, part, "operation", "linear", s->seconds_linear);
    exposition_sample(out, part, "operation", "attention", s->seconds_attention);
    exposition_sample(out, part, "operation", "sample", s->seconds_sample);
}

static void write_workers(const struct helm_status *s, struct cli_text *out)
{
    static const struct {
        const char *name, *type, *help;
    } rows[] = {{"helm_worker_up", "gauge", "Whether the worker is ready."},
                {"helm_worker_busy_seconds_total", "counter", "Computing."},
                {"helm_worker_wait_seconds_total", "counter", "In steps, waiting for the other worker."},
                {"helm_worker_weight_bytes_read_total", "counter",
                 "Weights read by the worker's own processor."},
                {"helm_worker_link_bytes_total", "counter", "Bytes copied over the link: weights, KV pages."},
                {"helm_worker_restarts_total", "counter", "Times that helmd started it again."},
                {"helm_worker_vram_bytes", "gauge", "Device memory in use."}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        exposition_family(out, rows[i].name, rows[i].type, rows[i].help);
        for (size_t k = 0; k < s->worker_count; k++) {
            const struct helm_worker_status *w = &s->workers[k];
            const double values[] = {strcmp(w->state, "ready") == 0, w->busy_seconds,       w->wait_seconds,
                                     (double)w->weight_bytes_read,   (double)w->link_bytes, w->restarts,
                                     (double)w->vram_bytes};
            exposition_sample(out, rows[i].name, "worker", w->name, values[i]);
        }
    }
    exposition_counter(out, "helm_restarts_total", (double)s->restarts_total,
                       "Times that the workers were lost and started again, all at once.");
}

/* ---- the plan --------------------------------------------------------------------------------------- */

/* "127" of 64 to 127 tokens: a median's own length would be another series with every prompt. */
static void length_label(uint32_t tokens, char text[12])
{
    uint32_t top = 1;
    while (top < tokens && top < UINT32_MAX / 2) top = 2 * top + 1;
    snprintf(text, 12, "%u", top);
}

static void write_seen(const struct helm_plan_steps *steps, size_t count, const char *label, const char *stem,
                       struct cli_text *out)
{
    for (int planned = 0; planned < 2; planned++) {
        char name[96], value[12];
        snprintf(name, sizeof name, "helm_%s_%s_seconds", stem, planned ? "planned" : "measured");
        exposition_family(out, name, "gauge",
                          planned ? "Median of what the plan forecast for the same ones; 0: unknown."
                                  : "Median of the latest 64 of a kind.");
        for (size_t i = 0; i < count; i++) {
            if (steps[i].batch)
                snprintf(value, sizeof value, "%u", steps[i].batch);
            else
                length_label(steps[i].tokens, value);
            exposition_sample(out, name, label, value,
                              planned ? steps[i].planned_seconds : steps[i].measured_seconds);
        }
    }
}

static void write_plan(const struct helm_plan_info *p, struct cli_text *out)
{
    static const char step[] = "helm_plan_decode_step_seconds", first[] = "helm_plan_first_token_seconds";
    exposition_family(out, step, "gauge", "Forecast at the start of a decode step of --batch sequences.");
    exposition_sample(out, step, "bound", "low", p->decode_seconds_low);
    exposition_sample(out, step, "bound", "expected", p->decode_seconds);
    exposition_sample(out, step, "bound", "high", p->decode_seconds_high);
    exposition_family(out, first, "gauge", "Forecast at the start of the first token after --prompt tokens.");
    exposition_sample(out, first, "bound", "low", p->ttft_seconds_low);
    exposition_sample(out, first, "bound", "expected", p->ttft_seconds);
    exposition_sample(out, first, "bound", "high", p->ttft_seconds_high);
    write_seen(p->decode, p->decode_count, "sequences", "decode_step", out);
    write_seen(p->ttft, p->ttft_count, "prompt_tokens_up_to", "first_token", out);
    for (int planned = 0; planned < 2; planned++) {
        const char *name = planned ? "helm_resource_busy_planned_ratio" : "helm_resource_busy_measured_ratio";
        exposition_family(
            out, name, "gauge",
            planned
                ? "Part of the decode steps' time that a resource should be busy."
                : "Part of the decode steps' time that it was; the link's and the disk's are not measured.");
        for (size_t i = 0; i < p->resource_count; i++) {
            const struct helm_plan_resource *r = &p->resources[i];
            if (!planned && (strcmp(r->name, "link") == 0 || strcmp(r->name, "disk") == 0)) continue;
            exposition_sample(out, name, "resource", r->name, planned ? r->busy_planned : r->busy);
        }
    }
    exposition_gauge(out, "helm_plan_drifting", p->drifting,
                     "Whether decoding has been more than 15 % off its plan for a minute.");
}

void daemon_metrics_write(const struct helm_status *s, const struct helm_plan_info *plan,
                          struct cli_text *out)
{
    exposition_gauge(out, "helm_up", s != NULL, "Whether helmd answers.");
    if (!s) return;
    exposition_gauge(out, "helm_ready", strcmp(s->state, "ready") == 0,
                     "Whether a generation would begin now.");
    exposition_gauge(out, "helm_uptime_seconds", (double)s->uptime_ms / 1e3, "Since helmd was started.");
    exposition_family(out, "helm_build_info", "gauge", "1; the version as a label.");
    exposition_sample(out, "helm_build_info", "version", s->version, 1);
    write_requests(s, out);
    write_tokens(s, out);
    write_cache(s, out);
    write_experts(s, out);
    write_time(s, out);
    write_workers(s, out);
    if (plan) write_plan(plan, out);
}
