/* Counters of the gateway, and /metrics: these and its daemon's (client/shared/daemon_metrics.c). See
 * metrics.h. */
#include "client/gateway/metrics.h"

#include <stdlib.h>

#include "client/shared/daemon_metrics.h"
#include "client/shared/exposition.h"
#include "client/gateway/gateway.h"
#include "client/gateway/routes.h"
#include "common/base/units.h"

static const double bounds[METRICS_BUCKETS] = {0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025,
                                               0.05,   0.1,    0.25,  1,     5,     30,   120};

void metrics_observe(struct metrics_histogram *h, double seconds)
{
    size_t at = 0;
    while (at < METRICS_BUCKETS && seconds > bounds[at]) at++;
    h->bucket[at]++;
    h->sum += seconds;
}

static void write_histogram(struct cli_text *out, const char *name, const struct metrics_histogram *h,
                            const char *help)
{
    exposition_histogram(out, name, &(struct helm_histogram){bounds, h->bucket, METRICS_BUCKETS + 1, h->sum},
                         help);
}

static void write_requests(struct cli_text *out, const struct metrics *m)
{
    static const char name[] = "helm_gateway_requests_total";
    exposition_family(out, name, "counter",
                      "Requests by path and class of status; aborted: the client went away first.");
    for (size_t i = 0; i < METRICS_ROUTES; i++)
        for (size_t k = 0; k < METRICS_CLASSES; k++) {
            if (!m->requests[i][k]) continue;
            const struct route *route = i < route_count ? &routes[i] : routes_stranger("");
            cli_text_printf(out, "%s{path=\"%s\",status=\"", name, route->path);
            if (k)
                cli_text_printf(out, "%zuxx", k);
            else
                cli_text_printf(out, "aborted");
            cli_text_printf(out, "\"} %llu\n", (unsigned long long)m->requests[i][k]);
        }
}

void metrics_write(struct gateway *g, const struct inquiry_fact *status, const struct inquiry_fact *plan,
                   struct cli_text *out)
{
    const struct metrics *m = &g->metrics;
    const uint64_t age_us = status ? units_now_us() - status->at_us : 0;
    size_t open = 0;
    for (const struct exchange *ex = LIST_FIRST(&g->exchanges); ex; ex = LIST_NEXT(ex, link))
        open += ex->choice_count && !ex->over;
    write_requests(out, m);
    exposition_gauge(out, "helm_gateway_generations_open", (double)open,
                     "Requests whose answers are being generated.");
    exposition_counter(out, "helm_gateway_prompt_tokens_total", m->prompt_tokens,
                       "Tokens of prompts of finished requests.");
    exposition_counter(out, "helm_gateway_completion_tokens_total", m->completion_tokens,
                       "Tokens generated for finished requests.");
    exposition_counter(out, "helm_gateway_cancelled_total", m->cancelled,
                       "Generations whose client went away.");
    exposition_counter(out, "helm_gateway_slow_clients_dropped_total", m->slow_dropped,
                       "Answers dropped: they were not fetched.");
    exposition_gauge(out, "helm_gateway_connections", g->peers.places, "Connections that have a place.");
    exposition_counter(out, "helm_gateway_connections_evicted_total", g->peers.evicted,
                       "Connections that gave way to others.");
    exposition_counter(out, "helm_gateway_connections_refused_total", g->peers.refused,
                       "Requests refused for want of a place.");
    exposition_counter(out, "helm_gateway_connections_turned_away_total", g->peers.turned_away,
                       "Connections closed at once, since too many of their address waited to be served.");
    exposition_counter(out, "helm_gateway_requests_late_total", g->peers.late,
                       "Connections ended in the middle of a request that did not come in time.");
    exposition_counter(out, "helm_gateway_refused_keys_total", m->refused_keys,
                       "Requests without a key that fits.");
    write_histogram(out, "helm_gateway_time_to_first_token_seconds", &m->first_token,
                    "From a request's headers to its first token.");
    write_histogram(out, "helm_gateway_generation_seconds", &m->duration,
                    "From a request's headers to its last token.");
    write_histogram(out, "helm_gateway_handover_seconds", &m->handover,
                    "From a streamed token's coming from helmd to its being written to the client's socket.");
    write_histogram(out, "helm_gateway_turn_seconds", &m->turn,
                    "What the loop did between two waits: meanwhile every client waits.");
    if (status)
        exposition_gauge(out, "helm_gateway_status_age_seconds", (double)age_us * 1e-6,
                         "Since helmd last said what follows.");
    const bool is_new = status && age_us <= INQUIRY_SILENT_US;
    daemon_metrics_write(is_new ? status->status : NULL, is_new && plan ? plan->plan : NULL, out);
}
