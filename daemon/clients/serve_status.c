/* The daemon's state and counters as a Status message. See serve.h. */
#include "daemon/clients/serve.h"

#include "daemon/steps/tiers.h"

/* Names for clients, by number; NULL: none that is counted. */
static const char *const ends[METRICS_ENDS] = {
    [HELM__V1__FINISH_REASON__FINISH_EOS] = "eos",
    [HELM__V1__FINISH_REASON__FINISH_STOP] = "stop",
    [HELM__V1__FINISH_REASON__FINISH_LENGTH] = "length",
    [HELM__V1__FINISH_REASON__FINISH_CANCELLED] = "cancelled",
    [HELM__V1__FINISH_REASON__FINISH_ERROR] = "error",
    [HELM__V1__FINISH_REASON__FINISH_EMBEDDED] = "embedded",
};
static const char *const refusals[METRICS_REFUSALS] = {
    [HELM__V1__ERROR_CODE__ERROR_MALFORMED] = "malformed",
    [HELM__V1__ERROR_CODE__ERROR_TOO_LARGE] = "too_large",
    [HELM__V1__ERROR_CODE__ERROR_BUSY] = "busy",
    [HELM__V1__ERROR_CODE__ERROR_NOT_FOUND] = "not_found",
    [HELM__V1__ERROR_CODE__ERROR_CONTEXT] = "context",
    [HELM__V1__ERROR_CODE__ERROR_NOT_READY] = "not_ready",
    [HELM__V1__ERROR_CODE__ERROR_FAILED] = "failed",
    [HELM__V1__ERROR_CODE__ERROR_DUPLICATE] = "duplicate",
    [HELM__V1__ERROR_CODE__ERROR_DENIED] = "denied",
};

/* Those that have names, also those that are 0: a series that begins with its first event has no rate
 * then. */
static size_t fill_counts(const char *const *names, const uint64_t *counts, uint32_t limit,
                          Helm__V1__NamedCount *out, Helm__V1__NamedCount **out_at)
{
    size_t used = 0;
    for (uint32_t i = 0; i < limit; i++) {
        if (!names[i]) continue;
        helm__v1__named_count__init(&out[used]);
        out[used].name = (char *)names[i];
        out[used].count = counts[i];
        out_at[used] = &out[used];
        used++;
    }
    return used;
}

static Helm__V1__Histogram *fill_histogram(const struct metrics *m, enum metrics_kind kind,
                                           Helm__V1__Histogram *out)
{
    uint32_t count;
    helm__v1__histogram__init(out);
    out->bounds = (double *)metrics_bounds(kind, &count); /* packed from, not written to */
    out->n_bounds = count;
    out->counts = (uint64_t *)m->histogram[kind].bucket;
    out->n_counts = count + 1;
    out->sum = m->histogram[kind].sum;
    return out;
}

static void fill_worker(const struct workers *workers, const struct metrics *m, uint32_t index,
                        Helm__V1__WorkerStatus *out)
{
    const struct worker *w = &workers->worker[index];
    helm__v1__worker_status__init(out);
    out->name = (char *)w->name;
    out->pid = (uint32_t)w->pid;
    out->state = (char *)worker_state_name(workers, w);
    out->epoch = workers->epoch;
    out->restarts = w->restarts;
    out->threads = w->threads;
    out->numa_node = w->node;
    out->kernels = (char *)w->kernels;
    out->weight_bytes = w->weight_bytes;
    out->huge_bytes = w->huge_bytes;
    out->loaded_bytes = w->bytes_done;
    out->device = (char *)w->device;
    out->vram_bytes = w->vram_bytes;
    out->busy_seconds = (double)m->worker[index].busy_ns / 1e9;
    out->wait_seconds = (double)m->worker[index].wait_ns / 1e9;
    out->weight_bytes_read = m->worker[index].weight_bytes;
    out->link_bytes = m->worker[index].link_bytes;
}

/* The least time that the copied bytes need: bytes are counted, the link's time is not measured. */
static double link_seconds(const struct serve *serve)
{
    const struct profile *profile = serve->observe->forecast.c.profile;
    const double rate = profile ? profile->link.h2d.value : 0;
    return rate > 0 ? (double)serve->metrics->link_bytes / rate : 0;
}

static void fill_cache(Helm__V1__Status *status, const struct serve *serve)
{
    const struct metrics *m = serve->metrics;
    status->kv_pages_total = serve->batcher->pages.count;
    status->kv_pages_used = serve->batcher->pages.count - serve->batcher->pages.free_count;
    status->kv_dtype = (char *)kv_dtype_name(serve->kv_dtype);
    const struct plan *plan = serve->batcher->with.plan;
    status->kv_token_bytes =
        model_kv_bytes_per_token(&serve->model->config, plan_kv_layer_in_arena(plan, plan->layers),
                                 serve->kv_dtype);
    status->prefix_cache = (char *)prefix_sharing_name(serve->batcher->with.sharing);
    status->kv_pages_cached = serve->batcher->pages.known.resting;
    status->prefix_hits_total = m->prefix_hits_total;
    status->tokens_cached_total = m->tokens_found_total;
    status->speculate = (char *)request_speculate_name(serve->batcher->with.speculate);
    status->draft_tokens = plan->draft_tokens;
    status->tokens_drafted_total = m->tokens_drafted_total;
    status->tokens_accepted_total = m->tokens_accepted_total;
    status->seconds_with_drafts = m->with_drafts_s;
    status->seconds_without_drafts = m->without_drafts_s;
    status->prefix_evictions_total = serve->batcher->pages.evicted;
    const struct snapshots *snapshots = &serve->batcher->snapshots;
    status->snapshots = snapshots_known(snapshots);
    status->snapshots_total = snapshots->count;
    status->snapshot_bytes = arena_header_of(serve->batcher->with.arena)->state.snapshot_bytes;
    status->snapshot_hits_total = snapshots->hits;
    status->snapshots_dropped_total = snapshots->dropped;
    const struct kv_places *places = &serve->batcher->tiers.places;
    status->kv_places_used = kv_places_used(places);
    status->kv_places_total = places->count;
    status->kv_pages_host = tiers_host_pages(&serve->batcher->tiers);
    status->kv_pages_moved_out_total = places->moved_out;
    status->kv_pages_fetched_total = places->fetched;
    status->kv_page_tokens = arena_header_of(serve->batcher->with.arena)->kv.page_tokens;
}

static void fill_experts(Helm__V1__Status *status, const struct arena *arena)
{
    const struct arena_experts *e = arena_experts_of(arena);
    if (!arena_header_of(arena)->expert_layers) return;
    status->experts_used_total = atomic_load_explicit(&e->used, memory_order_relaxed);
    status->experts_present_total = atomic_load_explicit(&e->present, memory_order_relaxed);
    status->experts_moved_total = atomic_load_explicit(&e->moved, memory_order_relaxed);
}

static void fill_counters(struct serve_status *out, const struct metrics *m)
{
    Helm__V1__Status *status = &out->status;
    status->requests_total = m->requests_total;
    status->tokens_prompt_total = m->tokens_prompt_total;
    status->tokens_output_total = m->tokens_output_total;
    status->steps_total = m->steps_total;
    status->preemptions_total = m->preemptions_total;
    status->restarts_total = m->restarts_total;
    status->seconds_linear = (double)m->linear_ns / 1e9;
    status->seconds_attention = (double)m->attention_ns / 1e9;
    status->seconds_sample = (double)m->sample_ns / 1e9;
    status->seconds_idle = metrics_idle_seconds(m);
    status->seconds_steps = (double)m->step_ns / 1e9;
    status->seconds_waiting = (double)m->nobody_ns / 1e9;
    status->n_ended = fill_counts(ends, m->ended, METRICS_ENDS, out->end, out->end_at);
    status->ended = out->end_at;
    status->n_refused = fill_counts(refusals, m->refused, METRICS_REFUSALS, out->refusal, out->refusal_at);
    status->refused = out->refusal_at;
    status->queue_seconds = fill_histogram(m, METRICS_QUEUE, &out->histogram[METRICS_QUEUE]);
    status->ttft_seconds = fill_histogram(m, METRICS_TTFT, &out->histogram[METRICS_TTFT]);
    status->tpot_seconds = fill_histogram(m, METRICS_TPOT, &out->histogram[METRICS_TPOT]);
    status->step_sequences =
        fill_histogram(m, METRICS_STEP_SEQUENCES, &out->histogram[METRICS_STEP_SEQUENCES]);
}

void serve_status_fill(struct serve_status *out, const struct serve *serve, uint64_t now_us)
{
    const struct metrics *m = serve->metrics;
    Helm__V1__Status *status = &out->status;
    helm__v1__status__init(status);
    for (uint32_t i = 0; i < serve->workers->count; i++) {
        fill_worker(serve->workers, m, i, &out->worker[i]);
        out->worker_at[i] = &out->worker[i];
    }
    fill_experts(status, serve->batcher->with.arena);
    status->n_workers = serve->workers->count;
    status->workers = out->worker_at;
    status->version = (char *)HELM_VERSION;
    status->state = (char *)serve_state_name(serve);
    status->uptime_ms = (now_us - m->started_us) / 1000;
    status->running = batcher_running(serve->batcher);
    status->queued = batcher_queued(serve->batcher);
    status->queue_limit = serve->batcher->admission.queue_limit;
    status->activations = (char *)serve->activations;
    status->invariant = (char *)serve->invariant;
    status->load_seconds_left = workers_seconds_left(serve->workers, now_us);
    status->seconds_link = link_seconds(serve);
    fill_cache(status, serve);
    batcher_describe_drafter(serve->batcher, out->draft_model);
    status->draft_model = out->draft_model;
    fill_counters(out, m);
}
