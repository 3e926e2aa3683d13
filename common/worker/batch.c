/* Checking a step's rows. See batch.h. */
#include "common/worker/batch.h"

#include <math.h>
#include <string.h>

#include "common/plan/plan.h"

#define POOLS (STEP_ROW_POOL_MEAN | STEP_ROW_POOL_LAST)

/* Whether a row's positions lie where it may say they do: in the arena alone whole pages in front of what it
 * computes, from there on in VRAM. A step that appends in the arena finds a page that is not whole in VRAM,
 * and leaves one there. */
static bool take_tiers(const struct arena *arena, const struct step_row *in, bool in_arena,
                       uint32_t last_page)
{
    const struct arena_header *h = arena_header_of(arena);
    if (!h->vram_page_count) return in->host_tokens == 0 && in->direct_from == 0;
    if (in->host_tokens > in->start || in->host_tokens % h->kv.page_tokens != 0) return false;
    if (in->direct_from > in->host_tokens || in->direct_from % h->kv.page_tokens != 0) return false;
    const uint32_t *places = arena_vram_table_of(arena, in->slot), page = h->kv.page_tokens;
    const uint32_t from = in_arena ? plan_placed_from(page, in->start, in->count) : in->host_tokens / page;
    if (in_arena && in->start % page && places[in->start / page] >= h->vram_page_count) return false;
    for (uint32_t i = from; i <= last_page; i++)
        if (places[i] >= h->vram_page_count) return false;
    return true;
}

/* Whether the pages of windows that it reads and writes are there. */
static bool take_windows(const struct arena *arena, const struct step_row *in, uint32_t last_page)
{
    const struct arena_header *h = arena_header_of(arena);
    const uint32_t *windows = h->window_page_count ? arena_window_table_of(arena, in->slot) : NULL;
    uint32_t i = windows ? state_window_hidden(in->start, h->window_tokens, h->kv.page_tokens) : 0;
    for (; windows && i <= last_page; i++)
        if (windows[i] >= h->window_page_count) return false;
    return true;
}

/* Whether the snapshots that it begins with and leaves are there. */
static bool take_states(const struct arena_header *h, const struct step_row *in)
{
    uint32_t before = 0;
    if (in->state_from > h->snapshot_count) return false;
    if (in->state_from && in->start == 0) return false; /* nothing comes before position 0 */
    for (uint32_t i = 0; i < ARENA_ROW_STATES && in->left[i].to; before = in->left[i++].at)
        if (in->left[i].to > h->snapshot_count || in->left[i].at <= before || in->left[i].at > in->count)
            return false;
    return true;
}

/* Checks one row and takes the tokens that are known; false leaves the row out of the step. `used` has a bit
 * per slot. */
static bool take_row(const struct arena *arena, uint32_t vocab, const struct step_row *in, uint64_t *used,
                     struct batch *batch, struct batch_row *row)
{
    const bool follows = (in->flags & STEP_ROW_FOLLOWS) != 0;
    const uint32_t pools = in->flags & POOLS;
    const struct arena_header *h = arena_header_of(arena);
    if (in->slot >= h->slots || *used >> in->slot & 1) return false;
    if (in->count == 0 || in->count > h->step_tokens - batch->token_count) return false;
    if ((follows || batch->assisted) && in->count != 1) return false;
    if (pools && (in->flags & STEP_ROW_SAMPLE || pools == POOLS)) return false;
    if (in->drafts &&
        (in->drafts >= in->count || (in->flags & (STEP_ROW_SAMPLE | STEP_ROW_MASKED)) != STEP_ROW_SAMPLE))
        return false;
    if (in->drafts_next && (in->flags & (STEP_ROW_SAMPLE | STEP_ROW_MASKED)) != STEP_ROW_SAMPLE) return false;
    if (in->flags & STEP_ROW_SAMPLE && in->drafts >= h->samples - batch->sample_count) return false;
    if (in->start >= h->context_tokens || in->count > h->context_tokens - in->start) return false;
    const uint32_t *history = arena_history_of(arena, in->slot);
    const uint32_t *pages = arena_page_table_of(arena, in->slot);
    uint32_t last_page = (in->start + in->count - 1) / h->kv.page_tokens;
    for (uint32_t i = 0; i <= last_page; i++)
        if (pages[i] >= h->page_count) return false;
    if (!take_tiers(arena, in, batch->flags & STEP_KV_ARENA, last_page)) return false;
    if (!take_windows(arena, in, last_page)) return false;
    if (!take_states(h, in)) return false;
    for (uint32_t i = 0; i < in->count; i++) {
        uint32_t token = follows ? 0 : history[in->start + i], at = batch->token_count + i;
        if (token >= vocab) return false;
        batch->token[at] = token;
        batch->position[at] = in->start + i;
        batch->token_row[at] = (uint8_t)batch->row_count;
    }
    *used |= UINT64_C(1) << in->slot;
    *row = (struct batch_row){.pages = pages,
                              .places = h->vram_page_count ? arena_vram_table_of(arena, in->slot) : NULL,
                              .windows = h->window_page_count ? arena_window_table_of(arena, in->slot) : NULL,
                              .host_tokens = in->host_tokens,
                              .direct_from = in->direct_from,
                              .state_from = in->state_from,
                              .slot = in->slot,
                              .start = in->start,
                              .count = in->count,
                              .token_first = batch->token_count,
                              .sample = (in->flags & STEP_ROW_SAMPLE) != 0,
                              .drafts = in->drafts,
                              .drafts_next = in->drafts_next,
                              .follows = follows,
                              .masked = (in->flags & STEP_ROW_MASKED) != 0,
                              .pools = pools};
    memcpy(row->left, in->left, sizeof row->left);
    return true;
}

/* Where a row is sampled: after its last known token, whose result is the row's, and after each of its
 * drafts, whose results are from `drafted` on. */
static void add_samples(struct batch *batch, const struct batch_row *row, uint32_t drafted)
{
    for (uint32_t i = 0; i <= row->drafts; i++)
        batch->sample[batch->sample_count++] =
            (struct batch_sample){.row = batch->row_count,
                                  .at = row->count - row->drafts + i,
                                  .result = i ? drafted + i - 1 : row->result};
}

/* HELM_E_LIMIT: the rows' drafts are not as many as the step says, or too many. */
static int check_drafts(const struct step *step, struct helm_err *err)
{
    uint64_t drafts = 0, next = 0;
    for (uint32_t i = 0; i < step->row_count; i++) drafts += step->row[i].drafts;
    for (uint32_t i = 0; i < step->row_count; i++) next += step->row[i].drafts_next;
    if (next > ARENA_STEP_DRAFTS)
        return helm_fail(err, HELM_E_LIMIT, "step %u asks for %llu drafts, at most %d are made", step->serial,
                         (unsigned long long)next, ARENA_STEP_DRAFTS);
    if (drafts == step->draft_count && drafts <= ARENA_STEP_DRAFTS) return 0;
    return helm_fail(err, HELM_E_LIMIT, "step %u has %u drafts, its rows %llu, at most %d are taken",
                     step->serial, step->draft_count, (unsigned long long)drafts, ARENA_STEP_DRAFTS);
}

/* Checks the step's own fields of the two tiers. */
static int check_tiers(const struct arena *arena, const struct step *step, struct helm_err *err)
{
    const struct arena_header *h = arena_header_of(arena);
    const bool assisted = (step->flags & STEP_KV_ASSISTED) != 0;
    if (step->fetch_count > ARENA_STEP_FETCH)
        return helm_fail(err, HELM_E_LIMIT, "step %u fetches %u pages, more than %d", step->serial,
                         step->fetch_count, ARENA_STEP_FETCH);
    for (uint32_t i = 0; i < step->fetch_count; i++)
        if (step->fetch[i].page >= h->page_count || step->fetch[i].place >= h->vram_page_count)
            return helm_fail(err, HELM_E_LIMIT, "step %u fetches page %u to place %u of %u and %u",
                             step->serial, step->fetch[i].page, step->fetch[i].place, h->page_count,
                             h->vram_page_count);
    if (step->flags & STEP_KV_ARENA && (!h->vram_page_count || assisted || step->fetch_count))
        return helm_fail(err, HELM_E_LIMIT,
                         "step %u appends in the arena, with flags %#x, %u pages to fetch, %u places in VRAM",
                         step->serial, step->flags, step->fetch_count, h->vram_page_count);
    if (assisted && (!h->vram_page_count || step->token_count > ARENA_KV_TOKENS))
        return helm_fail(err, HELM_E_LIMIT,
                         "step %u of %u tokens has the CPU attend to pages of %u places in VRAM",
                         step->serial, step->token_count, h->vram_page_count);
    return 0;
}

/* A step that moves a page for a session does nothing else. */
static int check_moves(const struct arena *arena, const struct step *step, struct helm_err *err)
{
    const struct arena_header *h = arena_header_of(arena);
    const bool window = (step->flags & STEP_KV_WINDOW) != 0;
    const uint32_t pages = window ? h->window_page_count : h->page_count;
    if (!(step->flags & STEP_KV_MOVES)) return 0;
    if ((step->flags & STEP_KV_MOVES) == STEP_KV_MOVES || step->row_count || step->fetch_count ||
        (h->vram_page_count && !window))
        return helm_fail(err, HELM_E_LIMIT,
                         "step %u moves a page with flags %#x, %u rows, %u pages to fetch, %u places in VRAM",
                         step->serial, step->flags, step->row_count, step->fetch_count, h->vram_page_count);
    if (step->page >= pages)
        return helm_fail(err, HELM_E_LIMIT, "step %u moves page %u of %u", step->serial, step->page, pages);
    return 0;
}

int batch_take(const struct arena *arena, uint32_t vocab, const struct step *step, struct batch *batch,
               struct step_result *result, struct helm_err *err)
{
    uint32_t rows = step->row_count;
    uint64_t used = 0;
    int rc = check_tiers(arena, step, err);
    if (!rc) rc = check_moves(arena, step, err);
    if (rc) return rc;
    if ((rows < 1 && !(step->flags & STEP_KV_MOVES)) || rows > ARENA_STEP_ROWS)
        return helm_fail(err, HELM_E_LIMIT, "step %u has %u rows, not between 1 and %d", step->serial, rows,
                         ARENA_STEP_ROWS);
    rc = check_drafts(step, err);
    if (rc) return rc;
    batch->token_count = batch->row_count = batch->sample_count = batch->pool_count = 0;
    batch->flags = step->flags;
    batch->assisted = (step->flags & STEP_KV_ASSISTED) != 0;
    uint32_t drafted = rows, made = 0; /* results of drafts come after those of rows */
    for (uint32_t i = 0; i < rows; made += step->row[i].drafts_next, drafted += step->row[i++].drafts) {
        struct step_result_row *out = &result->row[i];
        struct batch_row *row = &batch->row[batch->row_count];
        const bool taken = take_row(arena, vocab, &step->row[i], &used, batch, row);
        const struct step_result_row begun = {.slot = step->row[i].slot,
                                              .status = taken ? STEP_ROW_OK : STEP_ROW_BAD};
        *out = begun;
        for (uint32_t k = 0; k < step->row[i].drafts; k++) result->row[drafted + k] = begun;
        if (!taken) continue;
        row->result = i;
        row->made = made;
        if (row->sample) add_samples(batch, row, drafted);
        batch->pool_count += row->pools != 0;
        batch->token_count += row->count;
        batch->row_count++;
    }
    result->serial = step->serial;
    result->epoch = step->epoch;
    result->row_count = rows;
    result->reserved = result->further_us = 0;
    for (uint32_t i = 0; i < ARENA_STEP_DRAFTS; i++) result->made[i] = ARENA_NO_DRAFT;
    return 0;
}

/* The token that a step sampled for a slot. */
static const struct step_result_row *row_of(const struct step_result *result, uint32_t slot)
{
    for (uint32_t i = 0; i < result->row_count && i < ARENA_STEP_ROWS; i++)
        if (result->row[i].slot == slot) return &result->row[i];
    return NULL;
}

int batch_follow(const struct arena *arena, uint32_t vocab, const struct step *step, bool head,
                 struct batch *batch, struct helm_err *err)
{
    const uint32_t serial = step->serial - 1;
    const struct step_result *before = &arena_control_of(arena)->result[serial % ARENA_STEP_RING];
    for (uint32_t r = 0; r < batch->row_count; r++) {
        const struct batch_row *row = &batch->row[r];
        if (!row->follows) continue;
        const struct step_result_row *got = before->serial == serial ? row_of(before, row->slot) : NULL;
        if (!got)
            return helm_fail(err, HELM_E_PEER, "step %u follows step %u in slot %u, which that has not",
                             step->serial, serial, row->slot);
        const uint32_t token = got->status == STEP_ROW_OK ? got->sampled.token : 0;
        if (token >= vocab)
            return helm_fail(err, HELM_E_PEER, "step %u follows token %u of a vocabulary of %u", step->serial,
                             token, vocab);
        batch->token[row->token_first] = token;
        if (head) arena_history_of(arena, row->slot)[row->start] = token;
    }
    return 0;
}

/* ---- pooled rows ---- */

#define LANES 8 /* sums side by side, so that one addition need not wait for the one before */

static double inverse_rms(const float *x, uint32_t n, double eps)
{
    double sum[LANES] = {0}, all = 0;
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t k = 0; k < LANES; k++) sum[k] += (double)x[i + k] * x[i + k];
    for (; i < n; i++) sum[0] += (double)x[i] * x[i];
    for (uint32_t k = 0; k < LANES; k++) all += sum[k];
    return 1 / sqrt(all / n + eps);
}

static void add_layer_norm(double *to, const float *x, uint32_t n, const struct pooled_part *part)
{
    double mean = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++) mean += (double)x[i] / n;
    for (uint32_t i = 0; i < n; i++) sum += ((double)x[i] - mean) * ((double)x[i] - mean);
    const double scale = 1 / sqrt(sum / n + part->eps);
    for (uint32_t i = 0; i < n; i++)
        to[i] +=
            ((double)x[i] - mean) * scale * (double)part->norm[i] + (part->bias ? (double)part->bias[i] : 0);
}

void pooled_take(const struct arena *arena, const struct batch_row *row, const struct pooled_part *part)
{
    const uint32_t hidden = arena_header_of(arena)->hidden, end = part->first + part->count;
    const bool mean = row->pools == STEP_ROW_POOL_MEAN;
    double *to = arena_pooled_of(arena, row->slot);
    if (!mean && end < row->count) return;
    if (!mean || (row->start == 0 && part->first == 0)) memset(to, 0, hidden * sizeof *to);
    for (uint32_t t = mean ? 0 : part->count - 1; t < part->count; t++) {
        const float *x = part->x + (size_t)t * hidden;
        if (part->layer_norm) {
            add_layer_norm(to, x, hidden, part);
            continue;
        }
        const double scale = inverse_rms(x, hidden, part->eps);
        for (uint32_t i = 0; i < hidden; i++) to[i] += x[i] * scale * part->norm[i];
    }
}
