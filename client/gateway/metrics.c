/* Counters of the gateway and of its daemon as Prometheus's text. See metrics.h. */
#include "client/gateway/metrics.h"

#include <string.h>

#include "client/gateway/gateway.h"
#include "client/gateway/routes.h"

static const double bounds[METRICS_BUCKETS] = {0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025,
                                               0.05,   0.1,    0.25,  1,     5,     30,   120};

void metrics_observe(struct metrics_histogram *h, double seconds)
{
    size_t at = 0;
    while (at < METRICS_BUCKETS && seconds > bounds[at]) at++;
    h->bucket[at]++;
    h->count++;
    h->sum += seconds;
}

static void describe(struct cli_text *out, const char *name, const char *type, const char *help)
{
    cli_text_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void write_counter(struct cli_text *out, const char *name, uint64_t value, const char *help)
{
    describe(out, name, "counter", help);
    cli_text_printf(out, "%s %llu\n", name, (unsigned long long)value);
}

static void write_gauge(struct cli_text *out, const char *name, double value, const char *help)
{
    describe(out, name, "gauge", help);
    cli_text_printf(out, "%s %.9g\n", name, voice_finite(value));
}

static void write_seconds(struct cli_text *out, const char *name, double value, const char *help)
{
    describe(out, name, "counter", help);
    cli_text_printf(out, "%s %.9g\n", name, voice_finite(value));
}

static void write_histogram(struct cli_text *out, const char *name, const struct metrics_histogram *h,
                            const char *help)
{
    uint64_t sum = 0;
    describe(out, name, "histogram", help);
    for (size_t i = 0; i < METRICS_BUCKETS; i++) {
        sum += h->bucket[i];
        cli_text_printf(out, "%s_bucket{le=\"%g\"} %llu\n", name, bounds[i], (unsigned long long)sum);
    }
    cli_text_printf(out, "%s_bucket{le=\"+Inf\"} %llu\n%s_sum %.9g\n%s_count %llu\n", name,
                    (unsigned long long)h->count, name, h->sum, name, (unsigned long long)h->count);
}

static void write_requests(struct cli_text *out, const struct metrics *m)
{
    static const char name[] = "helm_gateway_requests_total";
    describe(out, name, "counter",
             "Requests by path and class of status; aborted: the client went away first.");
    for (size_t i = 0; i < METRICS_ROUTES; i++)
        for (size_t k = 0; k < METRICS_CLASSES; k++) {
            if (!m->requests[i][k]) continue;
            const struct route *route = i < route_count ? &routes[i] : &route_none;
            cli_text_printf(out, "%s{path=\"%s\",status=\"", name, route->path);
            if (k)
                cli_text_printf(out, "%zuxx", k);
            else
                cli_text_printf(out, "aborted");
            cli_text_printf(out, "\"} %llu\n", (unsigned long long)m->requests[i][k]);
        }
}

/* A label's value: names come from the daemon. */
static void write_label(struct cli_text *out, const char *text)
{
    for (; *text; text++)
        if (*text >= 32 && *text < 127 && *text != '"' && *text != '\\') cli_text_add(out, text, 1);
}

static void write_workers(struct cli_text *out, const struct helm_status *s)
{
    static const struct {
        const char *name, *type, *help;
    } rows[] = {{"helm_worker_busy_seconds_total", "counter", "Computing."},
                {"helm_worker_wait_seconds_total", "counter", "In steps, waiting for the other worker."},
                {"helm_worker_weight_bytes_read_total", "counter",
                 "Weights read by the worker's own processor."},
                {"helm_worker_link_bytes_total", "counter", "Weights copied over the link."},
                {"helm_worker_restarts_total", "counter", "Times that helmd started it again."},
                {"helm_worker_vram_bytes", "gauge", "Device memory in use."}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        describe(out, rows[i].name, rows[i].type, rows[i].help);
        for (size_t k = 0; k < s->worker_count; k++) {
            const struct helm_worker_status *w = &s->workers[k];
            const double values[] = {w->busy_seconds,       w->wait_seconds, (double)w->weight_bytes_read,
                                     (double)w->link_bytes, w->restarts,     (double)w->vram_bytes};
            cli_text_printf(out, "%s{worker=\"", rows[i].name);
            write_label(out, w->name);
            cli_text_printf(out, "\"} %.17g\n", voice_finite(values[i]));
        }
    }
}

static void write_daemon(struct cli_text *out, const struct helm_status *s)
{
    write_gauge(out, "helm_requests_running", s->running, "Sequences that have a slot.");
    write_gauge(out, "helm_requests_queued", s->queued, "Requests that wait for a slot.");
    write_gauge(out, "helm_queue_limit", s->queue_limit, "Requests that may wait.");
    write_gauge(out, "helm_kv_pages_used", s->kv_pages_used, "Pages of the KV cache in use.");
    write_gauge(out, "helm_kv_pages", s->kv_pages_total, "Pages of the KV cache.");
    write_gauge(out, "helm_kv_pages_cached", s->kv_pages_cached,
                "Free pages that prompts can find by their tokens.");
    write_gauge(out, "helm_kv_places_used", s->kv_places_used,
                "Room for pages in VRAM in use; a cache in two tiers.");
    write_gauge(out, "helm_kv_places", s->kv_places_total,
                "Room for pages in VRAM; 0: the cache has one tier.");
    write_gauge(out, "helm_kv_pages_host", s->kv_pages_host,
                "Pages of running sequences in host memory alone.");
    write_counter(out, "helm_kv_pages_moved_out_total", s->kv_pages_moved_out_total,
                  "Pages that gave their place in VRAM away.");
    write_counter(out, "helm_kv_pages_fetched_total", s->kv_pages_fetched_total,
                  "Pages that were copied to VRAM again.");
    write_counter(out, "helm_prefix_hits_total", s->prefix_hits_total,
                  "Requests that found pages of their prompt.");
    write_counter(out, "helm_cached_tokens_total", s->tokens_cached_total,
                  "Tokens of prompts that were not computed.");
    write_counter(out, "helm_prefix_evictions_total", s->prefix_evictions_total,
                  "Cached pages given to others.");
    write_counter(out, "helm_requests_total", s->requests_total,
                  "Generations that helmd took, of all clients.");
    write_counter(out, "helm_prompt_tokens_total", s->tokens_prompt_total, "Tokens of prompts computed.");
    write_counter(out, "helm_output_tokens_total", s->tokens_output_total, "Tokens generated.");
    write_counter(out, "helm_steps_total", s->steps_total, "Steps of the model.");
    write_seconds(out, "helm_step_seconds_total", s->seconds_steps, "Time in which a step was under way.");
    write_seconds(out, "helm_linear_seconds_total", s->seconds_linear,
                  "The workers' time in matrix products.");
    write_seconds(out, "helm_attention_seconds_total", s->seconds_attention,
                  "The workers' time in attention.");
    write_seconds(out, "helm_sample_seconds_total", s->seconds_sample,
                  "The workers' time in drawing tokens.");
    write_workers(out, s);
}

void metrics_write(struct gateway *g, struct cli_text *out)
{
    const struct helm_status *status = info_status(g);
    const struct metrics *m = &g->metrics;
    size_t open = 0;
    for (const struct exchange *ex = g->exchanges; ex; ex = ex->next) open += ex->choice_count && !ex->over;
    write_requests(out, m);
    write_gauge(out, "helm_gateway_generations_open", (double)open,
                "Requests whose answers are being generated.");
    write_counter(out, "helm_gateway_prompt_tokens_total", m->prompt_tokens,
                  "Tokens of prompts of finished requests.");
    write_counter(out, "helm_gateway_completion_tokens_total", m->completion_tokens,
                  "Tokens generated for finished requests.");
    write_counter(out, "helm_gateway_cancelled_total", m->cancelled, "Generations whose client went away.");
    write_counter(out, "helm_gateway_slow_clients_dropped_total", m->slow_dropped,
                  "Answers dropped: they were not fetched.");
    write_counter(out, "helm_gateway_refused_keys_total", m->refused_keys,
                  "Requests without a key that fits.");
    write_histogram(out, "helm_gateway_time_to_first_token_seconds", &m->first_token,
                    "From a request's headers to its first token.");
    write_histogram(out, "helm_gateway_generation_seconds", &m->duration,
                    "From a request's headers to its last token.");
    write_histogram(out, "helm_gateway_handover_seconds", &m->handover,
                    "From a streamed token's coming from helmd to its being written to the client's socket.");
    write_gauge(out, "helm_up", status != NULL, "Whether helmd answers.");
    if (status) write_daemon(out, status);
}
