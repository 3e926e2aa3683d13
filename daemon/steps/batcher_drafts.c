/* Speculation: which sequences of a step get drafts, and which of these were right. See batcher.h. Called by batcher.c and
 * batcher_results.c; owns nothing.
 *
 * A step with drafts is one of few tokens: all rows of answers have ENGINE_FEW_TOKENS together, so with many sequences none
 * has a draft. A row with drafts needs all tokens in front of them, so a sequence that speculates has one step in flight at
 * most. A constrained sequence has no drafts: only its client knows which tokens a draft may be followed by. */
#include <string.h>

#include "common/plan/schedule.h"
#include "daemon/steps/batcher_private.h"
#include "daemon/steps/drafts.h"

static bool speculates(const struct sequence *seq)
{
    return seq->speculates && !seq->mask && !batcher_ended(seq) && seq->slot != SEQUENCE_NO_SLOT;
}

bool batcher_waits_for_drafts(const struct batcher *batcher)
{
    for (uint32_t i = 0; i < batcher->seq_count; i++)
        if (batcher->seq[i]->asked > 0 && speculates(batcher->seq[i])) return true;
    return false;
}

/* A sequence of the view whose row is one of an answer. */
static bool decodes(const struct scheduler_seq *s)
{
    return s->running && !s->held && s->cached >= s->prompt && scheduler_decodes(s);
}

/* Drafts that a step has room for, in all. */
static uint32_t room_of(const struct batcher *batcher, uint32_t count)
{
    const struct arena_header *h = arena_header_of(batcher->with.arena);
    const uint32_t rows = count < h->slots ? count : h->slots;
    uint32_t tokens = 0, most = plan_decode_tokens(batcher->with.plan);
    for (uint32_t i = 0; i < count; i++)
        if (decodes(&batcher->view[i])) tokens += 1 + batcher->view[i].again;
    uint32_t room = tokens < most ? most - tokens : 0;
    if (room > h->samples - rows) room = h->samples - rows;
    return room < ARENA_STEP_DRAFTS ? room : ARENA_STEP_DRAFTS;
}

void batcher_find_drafts(struct batcher *batcher, uint32_t count)
{
    const uint32_t most = batcher->with.plan->draft_tokens;
    uint32_t wanting = 0, room = most ? room_of(batcher, count) : 0;
    uint32_t back = batcher->snapshots.on ? snapshots_room(&batcher->snapshots) : UINT32_MAX;
    for (uint32_t i = 0; i < count; i++)
        wanting += decodes(&batcher->view[i]) && speculates(batcher->seq[batcher->view_index[i]]);
    for (uint32_t i = 0; i < count; i++) {
        struct sequence *seq = batcher->seq[batcher->view_index[i]];
        struct scheduler_seq *view = &batcher->view[i];
        if (!decodes(view) || !speculates(seq)) continue;
        const uint32_t left = seq->max_tokens - sequence_output_count(seq) - 1, share = room / wanting--;
        uint32_t each = seq->draft_most ? seq->draft_most : most;
        if (each > left) each = left;
        if (each > share) each = share;
        seq->draft_count = each && back ? drafts_find(seq, each, seq->draft) : 0;
        room -= seq->draft_count;
        back -= seq->draft_count > 0;
        view->drafts = seq->draft_count;
        view->tokens += seq->draft_count;
    }
}

void batcher_write_drafts(const struct batcher *batcher, struct sequence *seq, const struct step_row *row)
{
    seq->draft_count = row->drafts;
    memcpy(arena_history_of(batcher->with.arena, seq->slot) + row->start + row->count - row->drafts,
           seq->draft, row->drafts * sizeof *seq->draft);
}

uint32_t batcher_keep_drafts(struct batcher *batcher, struct sequence *seq, const struct step_row *row,
                             const struct batcher_sampled *sampled)
{
    uint32_t kept = 0;
    if (!row->drafts) return 0;
    while (!batcher_ended(seq) && kept < row->drafts) {
        const struct step_result_row *got = batcher_sample_of(sampled, kept);
        if (got->status != STEP_ROW_OK || got->sampled.token != seq->draft[kept]) break;
        kept++;
    }
    seq->draft_most = drafts_next(batcher->with.plan->draft_tokens, row->drafts, kept);
    seq->draft_count = 0;
    seq->drafted += row->drafts;
    seq->accepted += kept;
    batcher->with.metrics->tokens_drafted_total += row->drafts;
    batcher->with.metrics->tokens_accepted_total += kept;
    return kept;
}
