/* Batches of drafts by the model's own layer. See drafting.h. */
#include "common/worker/drafting.h"

#include <string.h>

/* How many drafts of a row were sampled. *sampled: whether the position after them was, too. */
static uint32_t kept_of(const struct batch *batch, const struct batch_row *row, uint32_t sample,
                        const struct step_result *result, bool *sampled)
{
    const uint32_t *draft = batch->token + row->token_first + row->count - row->drafts;
    for (uint32_t kept = 0;; kept++) {
        const struct step_result_row *got = &result->row[batch->sample[sample + kept].result];
        *sampled = got->status == STEP_ROW_OK;
        if (!*sampled || kept == row->drafts || got->sampled.token != draft[kept]) return kept;
    }
}

/* The next token of each position: that of the one after it; of a row's last one what was sampled there, or
 * in a prompt what is known. Where neither is, the token itself: nothing reads that cell. */
static void shift_tokens(const struct arena *arena, uint32_t vocab, const struct step_result *result,
                         struct batch *batch)
{
    for (uint32_t r = 0; r < batch->row_count; r++) {
        const struct batch_row *row = &batch->row[r];
        uint32_t *token = batch->token + row->token_first;
        const uint32_t *history = arena_history_of(arena, row->slot), end = row->start + row->count;
        const bool known = !row->sample && end < arena_slot_of(arena, row->slot)->prompt_count &&
                           end < arena_header_of(arena)->context_tokens && history[end] < vocab;
        memmove(token, token + 1, (row->count - 1) * sizeof *token);
        if (known) token[row->count - 1] = history[end];
    }
    for (uint32_t i = 0; i < batch->sample_count; i++) {
        const struct step_result_row *got = &result->row[batch->sample[i].result];
        if (got->status == STEP_ROW_OK) batch->token[batch_sample_token(batch, i)] = got->sampled.token;
    }
}

void drafting_begin(const struct arena *arena, uint32_t vocab, const struct step_result *result,
                    struct batch *batch, struct draftings *drafts)
{
    struct batch_sample last[ARENA_STEP_DRAFTS];
    uint32_t sample = 0;
    drafts->count = drafts->made = 0;
    for (uint32_t r = 0; r < batch->row_count; r++) {
        const struct batch_row *row = &batch->row[r];
        bool sampled = false;
        const uint32_t kept = row->sample ? kept_of(batch, row, sample, result, &sampled) : 0,
                       tokens = row->count - row->drafts + kept, next = row->start + tokens;
        if (sampled && row->drafts_next && next < arena_header_of(arena)->context_tokens) {
            arena_history_of(arena, row->slot)[next] =
                result->row[batch->sample[sample + kept].result].sampled.token;
            last[drafts->count] = (struct batch_sample){.row = r, .at = tokens, .result = drafts->count};
            drafts->list[drafts->count++] =
                (struct drafting){.row = *row, .right = next - 1, .wants = row->drafts_next};
        }
        if (row->sample) sample += 1 + row->drafts;
    }
    shift_tokens(arena, vocab, result, batch);
    memcpy(batch->sample, last, drafts->count * sizeof *last);
    batch->sample_count = drafts->count;
    for (uint32_t i = 0; i < drafts->count; i++) drafts->from[i] = batch_sample_token(batch, i);
}

bool drafting_next(const struct arena *arena, const struct step_result_row *drawn, struct batch *batch,
                   struct draftings *drafts, struct step_result *result)
{
    const struct arena_header *h = arena_header_of(arena);
    const uint32_t page = h->kv.page_tokens, count = drafts->count, made = drafts->made++;
    uint32_t on = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct drafting d = drafts->list[i];
        /* the draft's index is one further: its row's pages are all there are */
        const uint32_t position = d.right + 1 + made, token = drawn[i].sampled.token,
                       pages_end = ((d.row.start + d.row.count - 1) / page + 1) * page;
        if (drawn[i].status != STEP_ROW_OK) continue;
        result->made[d.row.made + made] = token;
        if (made + 1 == d.wants || position >= pages_end || position + 1 >= h->context_tokens) continue;
        arena_history_of(arena, d.row.slot)[position + 1] = token; /* penalties count it */
        drafts->list[on] = d;
        drafts->from[on] = i;
        batch->row[on] = d.row;
        batch->row[on].start = position;
        batch->row[on].count = 1;
        batch->row[on].token_first = on;
        batch->row[on].drafts = 0;
        batch->token[on] = token;
        batch->position[on] = position;
        batch->token_row[on] = (uint8_t)on;
        batch->sample[on] = (struct batch_sample){.row = on, .at = 1, .result = on};
        on++;
    }
    batch->flags = 0;
    batch->token_count = batch->row_count = batch->sample_count = drafts->count = on;
    return on > 0;
}
