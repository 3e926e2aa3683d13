/* Questions with one answer: status, model, list, plan, cancel by the daemon's id. See helm.h.
 *
 * Called by programs, and by connection.c for the handshake. Each answer is copied into one allocation, its
 * strings and arrays after the struct, so that the caller frees it with one free(). */
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#include "client/connection/connection.h"
#include "common/base/units.h"

/* Lays out one block: a first pass with a NULL base counts bytes, a second one copies. */
struct block {
    char *base;
    size_t used;
};

static void *block_take(struct block *block, size_t bytes)
{
    size_t at = round_up(block->used, alignof(max_align_t));
    block->used = at + bytes;
    return block->base ? block->base + at : NULL;
}

static const char *block_text(struct block *block, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *at = block->base ? block->base + block->used : NULL;
    block->used += bytes;
    return at ? memcpy(at, text, bytes) : NULL;
}

static const struct helm_count *copy_counts(struct block *block, Helm__V1__NamedCount *const *from,
                                            size_t count)
{
    struct helm_count *to = block_take(block, count * sizeof *to);
    for (size_t i = 0; i < count; i++) {
        const char *name = block_text(block, from[i]->name);
        if (to) to[i] = (struct helm_count){.name = name, .count = from[i]->count};
    }
    return to;
}

/* One whose lists do not fit together is none. */
static struct helm_histogram copy_histogram(struct block *block, const Helm__V1__Histogram *from)
{
    if (!from || from->n_counts != from->n_bounds + 1) return (struct helm_histogram){0};
    double *bounds = block_take(block, from->n_bounds * sizeof *bounds);
    uint64_t *counts = block_take(block, from->n_counts * sizeof *counts);
    if (bounds && from->n_bounds) memcpy(bounds, from->bounds, from->n_bounds * sizeof *bounds);
    if (counts) memcpy(counts, from->counts, from->n_counts * sizeof *counts);
    return (struct helm_histogram){.bounds = bounds,
                                   .counts = counts,
                                   .bucket_count = from->n_counts,
                                   .sum = from->sum};
}

/* Members of an answer that are called the same in its struct; texts are copied. */
#define SAME(from, member) .member = (from)->member
#define TEXT(from, member) .member = block_text(block, (from)->member)

static void copy_status(struct block *block, const Helm__V1__Status *from)
{
    struct helm_status *to = block_take(block, sizeof *to);
    struct helm_worker_status *workers = block_take(block, from->n_workers * sizeof *workers);
    for (size_t i = 0; i < from->n_workers; i++) {
        const Helm__V1__WorkerStatus *w = from->workers[i];
        const struct helm_worker_status worker = {
            TEXT(w, name),       TEXT(w, state),        TEXT(w, kernels),      TEXT(w, device),
            SAME(w, pid),        SAME(w, epoch),        SAME(w, restarts),     SAME(w, threads),
            SAME(w, numa_node),  SAME(w, weight_bytes), SAME(w, huge_bytes),   SAME(w, loaded_bytes),
            SAME(w, vram_bytes), SAME(w, busy_seconds), SAME(w, wait_seconds), SAME(w, weight_bytes_read),
            SAME(w, link_bytes)};
        if (workers) workers[i] = worker;
    }
    const struct helm_status status = {
        TEXT(from, version), TEXT(from, state), TEXT(from, kv_dtype), TEXT(from, prefix_cache),
        TEXT(from, activations), TEXT(from, invariant), SAME(from, uptime_ms), SAME(from, running),
        SAME(from, queued), SAME(from, queue_limit), SAME(from, names_users), SAME(from, load_seconds_left),
        /* the KV cache, states and experts */
        SAME(from, kv_token_bytes), SAME(from, kv_page_tokens), SAME(from, kv_pages_used),
        SAME(from, kv_pages_total), SAME(from, kv_pages_cached), SAME(from, kv_pages_host),
        SAME(from, kv_pages_moved_out_total), SAME(from, kv_pages_fetched_total), SAME(from, kv_places_used),
        SAME(from, kv_places_total), SAME(from, prefix_hits_total), SAME(from, prefix_evictions_total),
        SAME(from, tokens_cached_total), SAME(from, snapshots), SAME(from, snapshots_total),
        SAME(from, snapshots_dropped_total), SAME(from, snapshot_bytes), SAME(from, snapshot_hits_total),
        TEXT(from, speculate), TEXT(from, draft_model), SAME(from, draft_tokens),
        SAME(from, tokens_drafted_total), SAME(from, tokens_accepted_total), SAME(from, seconds_with_drafts),
        SAME(from, seconds_without_drafts), SAME(from, experts_used_total), SAME(from, experts_present_total),
        SAME(from, experts_moved_total),
        /* counters */
        SAME(from, requests_total), SAME(from, tokens_prompt_total), SAME(from, tokens_output_total),
        SAME(from, steps_total), SAME(from, preemptions_total), SAME(from, restarts_total),
        SAME(from, seconds_linear), SAME(from, seconds_attention), SAME(from, seconds_sample),
        SAME(from, seconds_idle), SAME(from, seconds_steps), SAME(from, seconds_waiting),
        SAME(from, seconds_link), .workers = workers, .worker_count = from->n_workers,
        .ended = copy_counts(block, from->ended, from->n_ended), .ended_count = from->n_ended,
        .refused = copy_counts(block, from->refused, from->n_refused), .refused_count = from->n_refused,
        .queue_seconds = copy_histogram(block, from->queue_seconds),
        .ttft_seconds = copy_histogram(block, from->ttft_seconds),
        .tpot_seconds = copy_histogram(block, from->tpot_seconds),
        .step_sequences = copy_histogram(block, from->step_sequences)};
    if (to) *to = status;
}

static void copy_model_info(struct block *block, const Helm__V1__ModelInfo *from)
{
    struct helm_model_info *to = block_take(block, sizeof *to);
    uint32_t *eos = block_take(block, from->n_eos * sizeof *eos);
    const struct helm_model_info info = {
        TEXT(from, folder),       TEXT(from, architecture), TEXT(from, dtype),   SAME(from, layers),
        SAME(from, hidden),       SAME(from, intermediate), SAME(from, heads),   SAME(from, kv_heads),
        SAME(from, head_dim),     SAME(from, vocab),        SAME(from, context), SAME(from, model_context),
        SAME(from, weight_bytes), SAME(from, parameters),   SAME(from, bos),     .eos = eos,
        .eos_count = from->n_eos};
    if (!to) return;
    if (from->n_eos) memcpy(eos, from->eos, from->n_eos * sizeof *eos);
    *to = info;
}

static void copy_list(struct block *block, const Helm__V1__List *from)
{
    struct helm_list *to = block_take(block, sizeof *to);
    struct helm_list_entry *entries = block_take(block, from->n_entries * sizeof *entries);
    for (size_t i = 0; i < from->n_entries; i++) {
        const Helm__V1__ListEntry *e = from->entries[i];
        const struct helm_list_entry entry = {TEXT(e, state),         TEXT(e, label),
                                              TEXT(e, user),          SAME(e, id),
                                              SAME(e, prompt_tokens), SAME(e, prefilled_tokens),
                                              SAME(e, output_tokens), SAME(e, max_tokens),
                                              SAME(e, age_ms)};
        if (entries) entries[i] = entry;
    }
    if (to) *to = (struct helm_list){.entries = entries, .count = from->n_entries, .others = from->others};
}

static struct helm_plan_steps *copy_steps(struct block *block, Helm__V1__PlanSteps *const *from, size_t count)
{
    struct helm_plan_steps *to = block_take(block, count * sizeof *to);
    for (size_t i = 0; to && i < count; i++)
        to[i] = (struct helm_plan_steps){SAME(from[i], batch), SAME(from[i], tokens), SAME(from[i], count),
                                         SAME(from[i], measured_seconds), SAME(from[i], planned_seconds)};
    return to;
}

static void copy_plan(struct block *block, const Helm__V1__Plan *from)
{
    static const Helm__V1__PlanForecast unknown = HELM__V1__PLAN_FORECAST__INIT;
    const Helm__V1__PlanForecast *f = from->forecast ? from->forecast : &unknown;
    struct helm_plan_info *to = block_take(block, sizeof *to);
    struct helm_plan_resource *resources = block_take(block, from->n_resources * sizeof *resources);
    const bool whole = from->n_expert_uses == from->n_expert_layers * (size_t)from->experts;
    const size_t layers = whole ? from->n_expert_layers : 0, uses = layers * from->experts;
    uint64_t *use = block_take(block, uses * sizeof *use);
    uint32_t *layer = block_take(block, layers * sizeof *layer);
    if (use && uses) memcpy(use, from->expert_uses, uses * sizeof *use);
    if (layer && layers) memcpy(layer, from->expert_layers, layers * sizeof *layer);
    for (size_t i = 0; i < from->n_resources; i++) {
        const Helm__V1__PlanResource *r = from->resources[i];
        const struct helm_plan_resource resource = {TEXT(r, name), SAME(r, busy), SAME(r, busy_planned),
                                                    SAME(r, bytes_per_second),
                                                    SAME(r, bytes_per_second_planned)};
        if (resources) resources[i] = resource;
    }
    const struct helm_plan_info plan = {TEXT(from, json),
                                        TEXT(from, drift),
                                        TEXT(from, now),
                                        SAME(f, batch),
                                        SAME(f, context),
                                        SAME(f, prompt),
                                        SAME(f, decode_seconds),
                                        SAME(f, decode_seconds_low),
                                        SAME(f, decode_seconds_high),
                                        SAME(f, ttft_seconds),
                                        SAME(f, ttft_seconds_low),
                                        SAME(f, ttft_seconds_high),
                                        SAME(from, drifting),
                                        .decode = copy_steps(block, from->decode, from->n_decode),
                                        .decode_count = from->n_decode,
                                        .ttft = copy_steps(block, from->ttft, from->n_ttft),
                                        .ttft_count = from->n_ttft,
                                        .resources = resources,
                                        .resource_count = from->n_resources,
                                        .expert_layers = layer,
                                        .expert_layer_count = layers,
                                        .experts = layers ? from->experts : 0,
                                        .expert_uses = use};
    if (to) *to = plan;
}

static void copy_answer(struct block *block, const Helm__V1__Response *answer)
{
    switch (answer->body_case) {
    case HELM__V1__RESPONSE__BODY_STATUS:
        copy_status(block, answer->status);
        break;
    case HELM__V1__RESPONSE__BODY_MODEL_INFO:
        copy_model_info(block, answer->model_info);
        break;
    case HELM__V1__RESPONSE__BODY_LIST:
        copy_list(block, answer->list);
        break;
    case HELM__V1__RESPONSE__BODY_PLAN:
        copy_plan(block, answer->plan);
        break;
    default:
        break;
    }
}

int query_copy(const Helm__V1__Response *answer, void **out, struct helm_err *err)
{
    struct block block = {0};
    copy_answer(&block, answer);
    size_t bytes = block.used;
    block = (struct block){.base = malloc(bytes ? bytes : 1)};
    *out = block.base;
    if (!block.base) return helm_fail(err, HELM_E_NOMEM, "no memory for an answer of %zu bytes", bytes);
    copy_answer(&block, answer);
    return 0;
}

/* Asks `question`, whose body is empty, and copies the answer into one block. */
static int ask_copy(struct helm_client *client, Helm__V1__Request__BodyCase question,
                    Helm__V1__Response__BodyCase expected, int timeout_ms, void **out, struct helm_err *err)
{
    /* The bodies are one union of pointers, and no body has members: any of them packs as any other. */
    Helm__V1__StatusRequest body = HELM__V1__STATUS_REQUEST__INIT;
    Helm__V1__Request message = CONNECTION_REQUEST_INIT;
    Helm__V1__Response *answer = NULL;
    message.body_case = question;
    message.status = &body;
    *out = NULL;
    int rc = connection_ask(client, &message, expected, timeout_ms, &answer, err);
    if (rc < 0) return rc;
    rc = query_copy(answer, out, err);
    helm__v1__response__free_unpacked(answer, NULL);
    return rc;
}

#define QUESTION(function, type, kind)                                                                       \
    int function(struct helm_client *client, int timeout_ms, struct type **out, struct helm_err *err)        \
    {                                                                                                        \
        void *copy;                                                                                          \
        int rc = ask_copy(client, HELM__V1__REQUEST__BODY_##kind, HELM__V1__RESPONSE__BODY_##kind,           \
                          timeout_ms, &copy, err);                                                           \
        *out = copy;                                                                                         \
        return rc;                                                                                           \
    }
QUESTION(helm_status, helm_status, STATUS)
QUESTION(helm_model_info, helm_model_info, MODEL_INFO)
QUESTION(helm_list, helm_list, LIST)
QUESTION(helm_plan_info, helm_plan_info, PLAN)

int helm_plan(struct helm_client *client, int timeout_ms, char **json, struct helm_err *err)
{
    struct helm_plan_info *info = NULL;
    *json = NULL;
    int rc = helm_plan_info(client, timeout_ms, &info, err);
    if (rc < 0) return rc;
    *json = strdup(info->json);
    free(info);
    return *json ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory for the plan");
}

int helm_cancel_id(struct helm_client *client, uint64_t id, int timeout_ms, struct helm_err *err)
{
    Helm__V1__Cancel body = HELM__V1__CANCEL__INIT;
    body.id = id;
    Helm__V1__Request message = CONNECTION_REQUEST_INIT;
    message.body_case = HELM__V1__REQUEST__BODY_CANCEL;
    message.cancel = &body;
    Helm__V1__Response *answer = NULL;
    int rc = connection_ask(client, &message, HELM__V1__RESPONSE__BODY__NOT_SET, timeout_ms, &answer, err);
    if (answer) helm__v1__response__free_unpacked(answer, NULL);
    return rc;
}
