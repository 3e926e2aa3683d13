/* Tokens of a step's sampled rows. See draw.h. */
#include "worker-gpu/draw.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "worker-gpu/engine.h"
#include "common/base/units.h"
#include "common/worker/batch.h"

static_assert(sizeof(struct gpuk_few_room) + SAMPLING_CHANGES_MAX * sizeof(uint32_t) == GPU_DRAW_SLOT_BYTES,
              "what the planner charges for a slot's draws");

#define ALONE_MAX                                                                                            \
    8 /* draws from candidates take 1 to 10 us: fewer than these are not worth waking threads for */

static_assert(ARENA_STEP_ROWS <= GPUK_FEW_ROWS, "one launch for all samples of a step");

/* ---- memory ---- */

int gpu_draw_open(struct gpu_engine *g, struct helm_err *err)
{
    struct gpu_draw *draw = &g->draw;
    uint32_t samples = arena_header_of(g->base.arena)->samples;
    void *pinned = NULL;
    uint64_t rooms = samples * sizeof *draw->room;
    int rc = device_host_alloc(g->device, rooms + 64, &pinned, err);
    if (rc) return rc;
    memset(pinned, 0, (size_t)rooms + 64);
    draw->room = pinned;
    draw->done = (_Atomic uint32_t *)((char *)pinned + rooms);
    draw->times = malloc((size_t)samples * SAMPLING_CHANGES_MAX * sizeof *draw->times);
    if (!draw->times)
        return helm_fail(err, HELM_E_NOMEM, "no memory for the changed logits of %u rows", samples);
    for (uint32_t i = 0; i < samples; i++)
        draw->changes[i] = (struct sampling_changes){.token = draw->room[i].token,
                                                     .times = draw->times + (size_t)i * SAMPLING_CHANGES_MAX};
    return 0;
}

void gpu_draw_close(struct gpu_engine *g)
{
    if (g->draw.room) g->device->ops->host_free(g->device, g->draw.room);
    free(g->draw.times);
    g->draw.room = NULL;
    g->draw.times = NULL;
}

/* ---- asking ---- */

/* A sampled position, with its sequence's parameters for the draw. */
struct sample {
    const struct sampling_params *params;
    struct sampling_tokens tokens;
    struct step_result_row *out;
};

static struct sample sample_of(const struct gpu_engine *g, uint32_t i, struct step_result *result)
{
    const struct arena *arena = g->base.arena;
    const struct batch_sample *sample = &g->batch.sample[i];
    const struct batch_row *row = &g->batch.row[sample->row];
    const struct arena_slot *slot = arena_slot_of(arena, row->slot);
    uint32_t length = row->start + sample->at + g->draw.further;
    return (struct sample){.params = &slot->sampling,
                           .tokens = {arena_history_of(arena, row->slot), length,
                                      slot->prompt_count < length ? slot->prompt_count : length,
                                      row->masked ? arena_mask_of(arena, row->slot) : NULL},
                           .out = result ? &result->row[sample->result] : NULL};
}

static int copy_row(struct gpu_engine *g, uint32_t i, struct helm_err *err)
{
    uint32_t vocab = g->model.config.vocab;
    return device_copy(g->device, DEVICE_COMPUTE, DEVICE_TO_HOST, arena_logits_of(g->base.arena, i),
                       (float *)gpu_area(&g->buffers, GPU_AREA_LOGITS) + (size_t)i * vocab,
                       vocab * sizeof(float), err);
}

int gpu_draw_queue(struct gpu_engine *g, struct helm_err *err)
{
    struct gpu_draw *draw = &g->draw;
    struct device *d = g->device;
    const uint32_t vocab = g->model.config.vocab;
    int rc = 0;
    draw->few_count = draw->row_count = 0;
    for (uint32_t i = 0; i < g->batch.sample_count && !rc; i++) {
        const struct sample s = sample_of(g, i, NULL);
        struct sampling_changes *changes = &draw->changes[draw->few_count];
        struct sampling_ask ask;
        sampling_ask(s.params, vocab, &s.tokens, g->scratch[0], changes, &ask);
        if (ask.need == SAMPLING_NEEDS_FEW) {
            draw->few[draw->few_count++] = (struct gpuk_few){.row = i,
                                                             .candidates = ask.candidates,
                                                             .changed = changes->count,
                                                             .sum = ask.sum,
                                                             .model_sum = ask.model_sum,
                                                             .inv_temp = ask.inv_temp};
            if (draw->copy_rows) rc = copy_row(g, i, err);
        } else if (ask.need == SAMPLING_NEEDS_ROW) {
            draw->row[draw->row_count++] = i;
            rc = copy_row(g, i, err);
        }
    }
    if (rc || draw->few_count + draw->row_count == 0) return rc;
    atomic_store_explicit(draw->done, 0, memory_order_release);
    const struct op few = {.kind = OP_FEW,
                           .tokens = draw->few_count,
                           .workspace = gpu_area(&g->buffers, GPU_AREA_FEW),
                           .as.few = {.few = draw->few,
                                      .logits = gpu_area(&g->buffers, GPU_AREA_LOGITS),
                                      .vocab = vocab,
                                      .room = draw->room}};
    if (draw->few_count) rc = device_run(d, &few, err);
    return rc ? rc : device_word_write(d, draw->done, 1, err);
}

/* ---- drawing ---- */

struct job {
    struct gpu_engine *g;
    struct step_result *result;
    uint32_t few, rows; /* draws from candidates first, then from rows */
    bool handed_out;
    bool wanting[ARENA_STEP_ROWS]; /* by index of the draw from candidates: they were not enough */
};

static void draw_one(void *ctx, uint32_t chunk, uint32_t thread)
{
    struct job *job = ctx;
    struct gpu_engine *g = job->g;
    struct gpu_draw *draw = &g->draw;
    const uint32_t vocab = g->model.config.vocab;
    const uint32_t i = chunk < job->few ? draw->few[chunk].row : draw->row[chunk - job->few];
    const struct sample s = sample_of(g, i, job->result);
    int rc;
    if (chunk < job->few) {
        const struct gpuk_few_room *room = &draw->room[chunk];
        const struct sampling_few few = {.candidate = room->candidate,
                                         .count = room->found,
                                         .all = room->all != 0,
                                         .changed = room->logit,
                                         .sum = room->sum,
                                         .model_sum = room->model_sum};
        rc = room->found > GPUK_FEW_ROOM
                 ? 1
                 : sampling_draw_few(s.params, &few, vocab, &draw->changes[chunk], s.tokens.count,
                                     g->scratch[thread], &s.out->sampled);
        job->wanting[chunk] = rc == 1;
    } else {
        rc = sampling_draw(s.params, arena_logits_of(g->base.arena, i), vocab, &s.tokens, g->scratch[thread],
                           &s.out->sampled);
    }
    s.out->status = rc ? STEP_ROW_NO_FINITE_LOGIT : STEP_ROW_OK;
}

static bool draw_next(void *ctx, uint32_t thread, struct pool_job *next)
{
    (void)thread;
    struct job *job = ctx;
    if (job->handed_out) return false;
    job->handed_out = true;
    *next = (struct pool_job){.run = draw_one,
                              .chunks = job->few + job->rows,
                              .alone = job->few + job->rows == 1 || (!job->rows && job->few <= ALONE_MAX)};
    return true;
}

/* Rows whose candidates were not enough, copied now; becomes the list of rows. */
static int fetch_wanting(struct gpu_engine *g, const struct job *job, struct helm_err *err)
{
    struct gpu_draw *draw = &g->draw;
    struct device *d = g->device;
    int rc = 0;
    draw->row_count = 0;
    for (uint32_t i = 0; i < job->few && !rc; i++) {
        if (!job->wanting[i]) continue;
        rc = copy_row(g, draw->few[i].row, err);
        draw->row[draw->row_count++] = draw->few[i].row;
    }
    draw->not_enough += draw->row_count;
    if (rc || draw->row_count == 0) return rc;
    rc = d->ops->event_record(d, DEVICE_COMPUTE, g->copied, err);
    return rc ? rc : d->ops->event_wait(d, g->copied, err);
}

int gpu_draw_finish(struct gpu_engine *g, const struct gpuk_token *found, struct step_result *result,
                    struct helm_err *err)
{
    struct gpu_draw *draw = &g->draw;
    struct job job = {.g = g, .result = result, .few = draw->few_count, .rows = draw->row_count};
    for (uint32_t i = 0; i < g->batch.sample_count; i++) { /* those that are drawn get theirs below */
        const struct sample s = sample_of(g, i, result);
        s.out->sampled.token = found[i].id;
        s.out->status = found[i].id < g->model.config.vocab ? STEP_ROW_OK : STEP_ROW_NO_FINITE_LOGIT;
    }
    if (job.few + job.rows == 0) return 0;
    int rc = device_word_poll(g->device, draw->done, 1, g->wait_ms, err);
    if (rc) return rc;
    pool_run(g->samplers, draw_next, &job);
    rc = fetch_wanting(g, &job, err);
    if (rc) return rc;
    draw->from_few += job.few - draw->row_count;
    draw->from_rows += job.rows + draw->row_count;
    if (draw->row_count == 0) return 0;
    job = (struct job){.g = g, .result = result, .rows = draw->row_count};
    pool_run(g->samplers, draw_next, &job);
    return 0;
}

/* ---- pooled rows ---- */

#define ROWS_BYTES MIB /* copied at once at most: few waits, and what was copied is in the cache still */

/* Copies to the host; complete when it returns. */
static int fetch(struct gpu_engine *g, float *to, const float *from, uint64_t floats, struct helm_err *err)
{
    int rc = device_copy(g->device, DEVICE_COMPUTE, DEVICE_TO_HOST, to, from, floats * sizeof(float), err);
    if (!rc) rc = g->device->ops->event_record(g->device, DEVICE_COMPUTE, g->copied, err);
    return rc ? rc : g->device->ops->event_wait(g->device, g->copied, err);
}

int gpu_pool_rows(struct gpu_engine *g, struct helm_err *err)
{
    const struct arena *arena = g->base.arena;
    const uint32_t hidden = g->model.config.hidden;
    const uint64_t room = arena_header_of(arena)->region[ARENA_REGION_LOGITS].bytes,
                   row_bytes = hidden * sizeof(float);
    float *norm = arena_region_ptr(arena, ARENA_REGION_LOGITS), *x = norm + hidden;
    uint64_t most = (room < ROWS_BYTES ? room : ROWS_BYTES) / row_bytes;
    most = most > 2 ? most - 1 : 1; /* the region holds two at least: the norm is one */
    int rc = fetch(g, norm, gpu_vector_of(&g->weights, TENSOR_FINAL_NORM, -1), hidden, err);
    for (uint32_t r = 0; r < g->batch.row_count && !rc; r++) {
        const struct batch_row *row = &g->batch.row[r];
        const bool last = row->pools == STEP_ROW_POOL_LAST;
        if (!row->pools) continue;
        for (uint32_t at = last ? row->count - 1 : 0; at < row->count && !rc; at += (uint32_t)most) {
            const uint32_t left = row->count - at, count = left < most ? left : (uint32_t)most;
            const float *from = gpu_area(&g->buffers, GPU_AREA_X);
            rc = fetch(g, x, from + (size_t)(row->token_first + at) * hidden, (uint64_t)count * hidden, err);
            const struct pooled_part part = {
                .first = at, .count = count, .x = x, .norm = norm, .eps = g->model.config.norm_eps};
            if (!rc) pooled_take(arena, row, &part);
        }
    }
    return rc;
}
