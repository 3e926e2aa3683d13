/* Questions with one answer: status, model, list, plan, cancel by the daemon's id. See helm.h.
 *
 * Called by programs, and by connection.c for the handshake. Each answer is copied into one allocation, its
 * strings and arrays behind the struct, so that the caller frees it with one free(). */
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#include "client/connection/connection.h"
#include "common/base/round.h"

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

static void copy_status(struct block *block, const Helm__V1__Status *from)
{
    struct helm_status *to = block_take(block, sizeof *to);
    struct helm_worker_status *workers = block_take(block, from->n_workers * sizeof *workers);
    const char *version = block_text(block, from->version), *state = block_text(block, from->state);
    const char *kv_dtype = block_text(block, from->kv_dtype);
    const char *prefix_cache = block_text(block, from->prefix_cache);
    const char *activations = block_text(block, from->activations);
    const char *invariant = block_text(block, from->invariant);
    for (size_t i = 0; i < from->n_workers; i++) {
        const Helm__V1__WorkerStatus *w = from->workers[i];
        const char *name = block_text(block, w->name), *worker_state = block_text(block, w->state);
        const char *kernels = block_text(block, w->kernels), *device = block_text(block, w->device);
        if (workers)
            workers[i] = (struct helm_worker_status){.name = name,
                                                     .state = worker_state,
                                                     .kernels = kernels,
                                                     .device = device,
                                                     .pid = w->pid,
                                                     .epoch = w->epoch,
                                                     .restarts = w->restarts,
                                                     .threads = w->threads,
                                                     .numa_node = w->numa_node,
                                                     .weight_bytes = w->weight_bytes,
                                                     .huge_bytes = w->huge_bytes,
                                                     .loaded_bytes = w->loaded_bytes,
                                                     .vram_bytes = w->vram_bytes,
                                                     .busy_seconds = w->busy_seconds,
                                                     .wait_seconds = w->wait_seconds,
                                                     .weight_bytes_read = w->weight_bytes_read,
                                                     .link_bytes = w->link_bytes};
    }
    const struct helm_count *ended = copy_counts(block, from->ended, from->n_ended),
                            *refused = copy_counts(block, from->refused, from->n_refused);
    const struct helm_histogram queue = copy_histogram(block, from->queue_seconds),
                                ttft = copy_histogram(block, from->ttft_seconds),
                                tpot = copy_histogram(block, from->tpot_seconds),
                                sequences = copy_histogram(block, from->step_sequences);
    if (!to) return;
    *to = (struct helm_status){.version = version,
                               .state = state,
                               .uptime_ms = from->uptime_ms,
                               .running = from->running,
                               .queued = from->queued,
                               .queue_limit = from->queue_limit,
                               .kv_pages_used = from->kv_pages_used,
                               .kv_pages_total = from->kv_pages_total,
                               .prefix_cache = prefix_cache,
                               .invariant = invariant,
                               .kv_pages_cached = from->kv_pages_cached,
                               .prefix_hits_total = from->prefix_hits_total,
                               .tokens_cached_total = from->tokens_cached_total,
                               .prefix_evictions_total = from->prefix_evictions_total,
                               .snapshots = from->snapshots,
                               .snapshots_total = from->snapshots_total,
                               .snapshot_bytes = from->snapshot_bytes,
                               .snapshot_hits_total = from->snapshot_hits_total,
                               .snapshots_dropped_total = from->snapshots_dropped_total,
                               .kv_places_used = from->kv_places_used,
                               .kv_places_total = from->kv_places_total,
                               .kv_pages_host = from->kv_pages_host,
                               .kv_pages_moved_out_total = from->kv_pages_moved_out_total,
                               .kv_pages_fetched_total = from->kv_pages_fetched_total,
                               .experts_used_total = from->experts_used_total,
                               .experts_present_total = from->experts_present_total,
                               .experts_moved_total = from->experts_moved_total,
                               .kv_dtype = kv_dtype,
                               .kv_token_bytes = from->kv_token_bytes,
                               .activations = activations,
                               .requests_total = from->requests_total,
                               .tokens_prompt_total = from->tokens_prompt_total,
                               .tokens_output_total = from->tokens_output_total,
                               .steps_total = from->steps_total,
                               .seconds_linear = from->seconds_linear,
                               .seconds_attention = from->seconds_attention,
                               .seconds_sample = from->seconds_sample,
                               .seconds_idle = from->seconds_idle,
                               .load_seconds_left = from->load_seconds_left,
                               .seconds_steps = from->seconds_steps,
                               .workers = workers,
                               .worker_count = from->n_workers,
                               .ended = ended,
                               .ended_count = from->n_ended,
                               .refused = refused,
                               .refused_count = from->n_refused,
                               .queue_seconds = queue,
                               .ttft_seconds = ttft,
                               .tpot_seconds = tpot,
                               .step_sequences = sequences,
                               .preemptions_total = from->preemptions_total,
                               .restarts_total = from->restarts_total,
                               .seconds_waiting = from->seconds_waiting,
                               .seconds_link = from->seconds_link,
                               .kv_page_tokens = from->kv_page_tokens,
                               .names_users = from->names_users};
}

static void copy_model_info(struct block *block, const Helm__V1__ModelInfo *from)
{
    struct helm_model_info *to = block_take(block, sizeof *to);
    uint32_t *eos = block_take(block, from->n_eos * sizeof *eos);
    const char *folder = block_text(block, from->folder),
               *architecture = block_text(block, from->architecture);
    const char *dtype = block_text(block, from->dtype);
    if (!to) return;
    if (from->n_eos) memcpy(eos, from->eos, from->n_eos * sizeof *eos);
    *to = (struct helm_model_info){.folder = folder,
                                   .architecture = architecture,
                                   .dtype = dtype,
                                   .layers = from->layers,
                                   .hidden = from->hidden,
                                   .intermediate = from->intermediate,
                                   .heads = from->heads,
                                   .kv_heads = from->kv_heads,
                                   .head_dim = from->head_dim,
                                   .vocab = from->vocab,
                                   .context = from->context,
                                   .model_context = from->model_context,
                                   .weight_bytes = from->weight_bytes,
                                   .parameters = from->parameters,
                                   .bos = from->bos,
                                   .eos = eos,
                                   .eos_count = from->n_eos};
}

static void copy_list(struct block *block, const Helm__V1__List *from)
{
    struct helm_list *to = block_take(block, sizeof *to);
    struct helm_list_entry *entries = block_take(block, from->n_entries * sizeof *entries);
    for (size_t i = 0; i < from->n_entries; i++) {
        const Helm__V1__ListEntry *e = from->entries[i];
        const char *state = block_text(block, e->state), *label = block_text(block, e->label),
                   *user = block_text(block, e->user);
        if (entries)
            entries[i] = (struct helm_list_entry){.id = e->id,
                                                  .state = state,
                                                  .label = label,
                                                  .user = user,
                                                  .prompt_tokens = e->prompt_tokens,
                                                  .prefilled_tokens = e->prefilled_tokens,
                                                  .output_tokens = e->output_tokens,
                                                  .max_tokens = e->max_tokens,
                                                  .age_ms = e->age_ms};
    }
    if (to) *to = (struct helm_list){.entries = entries, .count = from->n_entries, .others = from->others};
}

static struct helm_plan_steps *copy_steps(struct block *block, Helm__V1__PlanSteps *const *from, size_t count)
{
    struct helm_plan_steps *to = block_take(block, count * sizeof *to);
    for (size_t i = 0; to && i < count; i++)
        to[i] = (struct helm_plan_steps){.batch = from[i]->batch,
                                         .tokens = from[i]->tokens,
                                         .count = from[i]->count,
                                         .measured_seconds = from[i]->measured_seconds,
                                         .planned_seconds = from[i]->planned_seconds};
    return to;
}

static void copy_plan(struct block *block, const Helm__V1__Plan *from)
{
    static const Helm__V1__PlanForecast unknown = HELM__V1__PLAN_FORECAST__INIT;
    const Helm__V1__PlanForecast *f = from->forecast ? from->forecast : &unknown;
    struct helm_plan_info *to = block_take(block, sizeof *to);
    const struct helm_plan_steps *decode = copy_steps(block, from->decode, from->n_decode);
    const struct helm_plan_steps *ttft = copy_steps(block, from->ttft, from->n_ttft);
    struct helm_plan_resource *resources = block_take(block, from->n_resources * sizeof *resources);
    const char *json = block_text(block, from->json), *drift = block_text(block, from->drift),
               *now = block_text(block, from->now);
    const bool whole = from->n_expert_uses == from->n_expert_layers * (size_t)from->experts;
    const size_t layers = whole ? from->n_expert_layers : 0, uses = layers * from->experts;
    uint64_t *use = block_take(block, uses * sizeof *use);
    uint32_t *layer = block_take(block, layers * sizeof *layer);
    if (use && uses) memcpy(use, from->expert_uses, uses * sizeof *use);
    if (layer && layers) memcpy(layer, from->expert_layers, layers * sizeof *layer);
    for (size_t i = 0; i < from->n_resources; i++) {
        const Helm__V1__PlanResource *r = from->resources[i];
        const char *name = block_text(block, r->name);
        if (resources)
            resources[i] =
                (struct helm_plan_resource){.name = name,
                                            .busy = r->busy,
                                            .busy_planned = r->busy_planned,
                                            .bytes_per_second = r->bytes_per_second,
                                            .bytes_per_second_planned = r->bytes_per_second_planned};
    }
    if (!to) return;
    *to = (struct helm_plan_info){.json = json,
                                  .batch = f->batch,
                                  .context = f->context,
                                  .prompt = f->prompt,
                                  .decode_seconds = f->decode_seconds,
                                  .decode_seconds_low = f->decode_seconds_low,
                                  .decode_seconds_high = f->decode_seconds_high,
                                  .ttft_seconds = f->ttft_seconds,
                                  .ttft_seconds_low = f->ttft_seconds_low,
                                  .ttft_seconds_high = f->ttft_seconds_high,
                                  .decode = decode,
                                  .decode_count = from->n_decode,
                                  .ttft = ttft,
                                  .ttft_count = from->n_ttft,
                                  .resources = resources,
                                  .resource_count = from->n_resources,
                                  .drifting = from->drifting,
                                  .drift = drift,
                                  .expert_layers = layer,
                                  .expert_layer_count = layers,
                                  .experts = layers ? from->experts : 0,
                                  .expert_uses = use,
                                  .now = now};
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
