/* The daemon's state and counters as a Status message. Called by serve.c. */
#pragma once

#include "daemon/clients/serve.h"
#include "proto/helm.pb-c.h"

/* The message and what it points to; strings are the daemon's own. Not to be moved once filled. */
struct serve_status {
    Helm__V1__Status status;
    Helm__V1__WorkerStatus worker[WORKERS_MAX], *worker_at[WORKERS_MAX];
    Helm__V1__NamedCount end[METRICS_ENDS], *end_at[METRICS_ENDS];
    Helm__V1__NamedCount refusal[METRICS_REFUSALS], *refusal_at[METRICS_REFUSALS];
    Helm__V1__Histogram histogram[METRICS_KINDS];
};

void serve_status_fill(struct serve_status *out, const struct serve *serve, uint64_t now_us);
