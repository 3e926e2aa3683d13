/* The check of int8 activations. See check.h. Called from the one loop; one step is in flight at a time. */
#include "daemon/steps/check.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Sequences that begin with different tokens, from all over the vocabulary; those of a further round with
 * others. */
static uint32_t first_token(const struct check *c, uint32_t sequence)
{
    const uint32_t even =
        (uint32_t)((2 * (uint64_t)sequence + 1) * c->model->vocab / (2 * (uint64_t)c->sequences));
    return (uint32_t)(((uint64_t)even + c->seed * UINT64_C(2654435761)) % c->model->vocab);
}

/* CHECK_SEQUENCES sequences, or as many as there are pages for. */
int check_open(const struct check_options *o, struct check *check, struct helm_err *err)
{
    const struct model_config *model = o->model;
    const struct arena_header *h = arena_header_of(o->arena);
    const uint32_t first = model->bos >= 0 && (uint32_t)model->bos < model->vocab ? 2 : 1,
                   tokens = first - 1 + CHECK_POSITIONS, pages = (tokens - 1) / h->kv.page_tokens + 1,
                   tier = h->vram_page_count ? h->vram_page_count : h->page_count,
                   windows = o->pool->windows.on ? h->window_page_count : tier,
                   there = windows < tier ? windows : tier,
                   states = o->snapshots->on ? o->snapshots->count / 2 : CHECK_SEQUENCES,
                   room = there / (2 * pages) < states ? there / (2 * pages) : states;
    *check = (struct check){.arena = o->arena,
                            .pool = o->pool,
                            .snapshots = o->snapshots,
                            .model = model,
                            .workers = o->workers,
                            .first = first,
                            .pages = pages,
                            .sequences = room < CHECK_SEQUENCES ? room : CHECK_SEQUENCES};
    if (o->before) check->before = *o->before;
    if (check->sequences * CHECK_POSITIONS < VERDICT_LEAST || tokens > h->context_tokens)
        return helm_fail(err, HELM_E_CAPACITY,
                         "the KV cache of %u pages of %u tokens%s is too small for a check over %d positions",
                         there, h->kv.page_tokens, o->snapshots->on ? " with its snapshots" : "",
                         VERDICT_LEAST);
    check->rows = CHECK_SEQUENCES - CHECK_ALONE;
    if (check->rows > h->slots) check->rows = h->slots;
    if (check->rows > o->step_tokens) check->rows = o->step_tokens;
    check->exact = malloc((size_t)check->rows * h->vocab * sizeof *check->exact);
    check->sequence = calloc(check->sequences, sizeof *check->sequence);
    check->table =
        calloc((size_t)check->sequences * 2 * pages + o->pool->windows.distance, sizeof *check->table);
    if (check->exact && check->sequence && check->table) return 0;
    const uint32_t rows = check->rows;
    check_close(check);
    return helm_fail(err, HELM_E_NOMEM, "no memory for %u rows of %u logits", rows, h->vocab);
}

void check_close(struct check *check)
{
    free(check->exact);
    free(check->sequence);
    free(check->table);
    memset(check, 0, sizeof *check);
}

/* ---- steps ---- */

/* The sequences of the step that begins with sequence `from`. */
static uint32_t count_from(const struct check *c, uint32_t from)
{
    const uint32_t left = c->sequences - from;
    if (from < CHECK_ALONE) return 1;
    return left < c->rows ? left : c->rows;
}

/* Slot `row` becomes that of a sequence: its tokens so far, and its pages of this way. */
static void fill_slot(const struct check *c, uint32_t row, uint32_t sequence)
{
    struct arena_slot *slot = arena_slot_of(c->arena, row);
    uint32_t *table = arena_page_table_of(c->arena, row);
    memcpy(arena_history_of(c->arena, row), c->sequence[sequence].token, (c->at + 1) * sizeof(uint32_t));
    const uint32_t at = (2 * sequence + (c->rounded ? 1 : 0)) * c->pages;
    memcpy(table, c->table + at, c->pages * sizeof *table);
    if (c->pool->windows.on)
        memcpy(arena_window_table_of(c->arena, row), c->table + c->pool->windows.distance + at,
               c->pages * sizeof *table);
    /* nothing is ever moved out: all places are its own */
    for (uint32_t p = 0; p < c->pages && arena_header_of(c->arena)->vram_page_count; p++)
        arena_vram_table_of(c->arena, row)[p] = at + p;
    memset(slot, 0, sizeof *slot);
    /* without top-k, top-p and min-p the whole row is drawn from, and so is in the arena */
    slot->sampling = (struct sampling_params){.temperature = 1,
                                              .top_p = 1,
                                              .repetition_penalty = 1,
                                              .seed = c->seed + sequence + 1};
    slot->prompt_count = c->first;
}

static void ring(struct check *c, uint64_t now_us)
{
    struct arena_control *control = arena_control_of(c->arena);
    struct step *step = &control->step[++c->serial % ARENA_STEP_RING];
    *step = (struct step){.serial = c->serial,
                          .epoch = arena_header_of(c->arena)->epoch,
                          .row_count = c->count,
                          .token_count = c->count,
                          .flags = c->rounded ? 0 : STEP_EXACT};
    for (uint32_t r = 0; r < c->count; r++) {
        fill_slot(c, r, c->from + r);
        const uint32_t state =
            c->states ? c->state[2 * (c->from + r) + (c->rounded ? 1 : 0)] : STATE_NO_SNAPSHOT;
        step->row[r] = (struct step_row){.slot = r,
                                         .start = c->at,
                                         .count = 1,
                                         .flags = STEP_ROW_SAMPLE,
                                         .state_from = c->at ? state : STATE_NO_SNAPSHOT,
                                         .left = {{.to = state, .at = 1}}};
    }
    c->begun_us = now_us;
    doorbell_ring(&control->step_bell, c->serial);
}

/* Takes an earlier start's findings, as sums. */
static void begin_sums(struct check *c)
{
    const struct verdict *v = &c->before;
    const uint32_t few = v->positions - v->one_positions;
    c->one = (struct check_sums){v->one_token * v->one_positions, v->one_positions};
    c->few = (struct check_sums){v->tokens * few, few};
}

static void end_round(struct check *c)
{
    c->running = false;
    windows_leave(&c->pool->windows, c->table, 0, c->held, false);
    kv_pages_shrink(c->pool, c->table, &c->held, 0);
    while (c->states) snapshots_give_back(c->snapshots, c->state[--c->states]);
}

/* Pages, and snapshots where states are of fixed size. */
static int take_room(struct check *c)
{
    if (kv_pages_grow(c->pool, c->table, &c->held, c->sequences * 2 * c->pages)) return HELM_E_BUSY;
    windows_grow(&c->pool->windows, c->table, 0, c->held);
    for (; c->snapshots->on && c->states < 2 * c->sequences; c->states++)
        if (!(c->state[c->states] = snapshots_take_empty(c->snapshots))) {
            end_round(c);
            return HELM_E_BUSY;
        }
    return 0;
}

int check_begin(struct check *c, uint32_t serial, bool idle, uint64_t now_us)
{
    if (take_room(c)) return HELM_E_BUSY;
    if (!idle) begin_sums(c);
    c->started_us = now_us;
    c->seed = check_positions(c);
    c->serial = serial;
    c->at = c->from = 0;
    memset(c->took_us, 0, sizeof c->took_us);
    c->rounded = false;
    c->idle = idle;
    c->running = true;
    c->count = count_from(c, 0);
    for (uint32_t s = 0; s < c->sequences; s++) {
        c->sequence[s].token[0] = (uint32_t)c->model->bos;
        c->sequence[s].token[c->first - 1] = first_token(c, s);
    }
    ring(c, now_us);
    return 0;
}

void check_lost(struct check *c)
{
    end_round(c);
}

/* ---- results ---- */

static bool is_done(const struct check *c)
{
    const struct arena_control *control = arena_control_of(c->arena);
    for (uint32_t w = 0; w < c->workers; w++)
        if (doorbell_read(&control->done[w].bell) != c->serial) return false;
    return true;
}

/* A row of the exact step: its token goes on the sequence, its logits are kept. */
static void take_exact(struct check *c, uint32_t row, const struct step_result_row *result)
{
    uint32_t *token = c->sequence[c->from + row].token;
    memcpy(c->exact + (size_t)row * c->model->vocab, arena_logits_of(c->arena, row),
           c->model->vocab * sizeof *c->exact);
    if (c->at + 1 >= c->first) token[c->at + 1] = result->status == STEP_ROW_OK ? result->sampled.token : 0;
}

static int take_rows(struct check *c, struct helm_err *err)
{
    const struct step_result *result = &arena_control_of(c->arena)->result[c->serial % ARENA_STEP_RING];
    struct check_sums *sums = c->count == 1 ? &c->one : &c->few;
    if (result->serial != c->serial || result->row_count != c->count)
        return helm_fail(err, HELM_E_PEER, "answer to step %u with %u rows is marked %u, %u", c->serial,
                         c->count, result->serial, result->row_count);
    for (uint32_t r = 0; r < c->count; r++) {
        const struct step_result_row row = result->row[r];
        if (row.status > STEP_ROW_NO_FINITE_LOGIT ||
            (row.status == STEP_ROW_OK && row.sampled.token >= c->model->vocab))
            return helm_fail(err, HELM_E_PEER, "row %u of step %u has status %u and token %u of %u", r,
                             c->serial, row.status, row.sampled.token, c->model->vocab);
        if (!c->rounded) {
            take_exact(c, r, &row);
        } else if (c->at + 1 >= c->first) {
            sums->divergence += divergence_of(c->exact + (size_t)r * c->model->vocab,
                                              arena_logits_of(c->arena, r), c->model->vocab);
            sums->positions++;
        }
    }
    return 0;
}

uint32_t check_positions(const struct check *c)
{
    return c->one.positions + c->few.positions;
}

static double mean(const struct check_sums *sums)
{
    return sums->positions ? fmin(sums->divergence / sums->positions, VERDICT_KL_HUGE) : 0;
}

/* Whether the time before requests are served has room for the next step and, if it is an exact one, for its
 * pair. */
static bool has_time(const struct check *c, uint64_t now_us)
{
    const uint64_t *took_us = c->took_us[c->count > 1], needs_us = took_us[1] + (c->rounded ? 0 : took_us[0]);
    return c->idle || now_us + needs_us <= c->started_us + CHECK_US;
}

/* The step after this one; false: that was the last. */
static bool advance(struct check *c, uint64_t now_us)
{
    c->rounded = !c->rounded;
    if (c->rounded) return has_time(c, now_us);
    c->from += c->count;
    if (c->from == c->sequences) {
        const uint64_t spent_us = now_us - c->started_us;
        c->from = 0;
        c->at++;
        if (check_positions(c) >= VERDICT_LEAST && (c->idle || spent_us > CHECK_SOON_US)) return false;
    }
    c->count = count_from(c, c->from);
    return c->at < c->first - 1 + CHECK_POSITIONS && has_time(c, now_us);
}

int check_take(struct check *c, bool yield, uint64_t now_us, bool *done, struct helm_err *err)
{
    *done = false;
    if (!c->running || !is_done(c)) return 0;
    int rc = take_rows(c, err);
    if (rc) return rc;
    c->took_us[c->count > 1][c->rounded] = now_us - c->begun_us;
    *done = !advance(c, now_us) || yield;
    if (*done)
        end_round(c);
    else
        ring(c, now_us);
    return 0;
}

void check_found(const struct check *c, uint32_t units, struct verdict *verdict)
{
    *verdict = (struct verdict){.one_token = mean(&c->one),
                                .tokens = mean(&c->few),
                                .positions = check_positions(c),
                                .one_positions = c->one.positions,
                                .units = units};
}

/* ---- divergence ---- */

static float largest(const float *row, uint32_t count)
{
    float most = -INFINITY;
    for (uint32_t i = 0; i < count; i++)
        if (isfinite(row[i]) && row[i] > most) most = row[i];
    return most;
}

double divergence_of(const float *exact, const float *other, uint32_t count)
{
    const float top = largest(exact, count), other_top = largest(other, count);
    double sum = 0, other_sum = 0, differences = 0; /* weights by exp(x - top) */
    if (!isfinite(top) || !isfinite(other_top)) return INFINITY;
    for (uint32_t i = 0; i < count; i++) {
        const bool in = isfinite(exact[i]), other_in = isfinite(other[i]);
        if (other_in) other_sum += expf(other[i] - other_top);
        if (!in) continue;
        if (!other_in) return INFINITY;
        const double weight = expf(exact[i] - top);
        sum += weight;
        differences += weight * ((double)exact[i] - (double)other[i]);
    }
    const double divergence =
        differences / sum - ((double)top + log(sum)) + ((double)other_top + log(other_sum));
    return divergence > 0 ? divergence : 0;
}
