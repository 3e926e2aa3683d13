/* Speculation: which sequences of a step get drafts, how many, and which of these were right. See batcher.h.
 * Called by batcher.c, batcher_requests.c and batcher_results.c; owns nothing.
 *
 * A step with drafts is one of few tokens: all rows of answers have ENGINE_FEW_TOKENS together, so with many
 * sequences none has a draft. A row with drafts needs all tokens in front of them, so a sequence that gets
 * drafts has one step in flight at most. A constrained sequence has no drafts: only its client knows which
 * tokens a draft may be followed by.
 *
 * The number of drafts of a `priced` sequence is chosen by draft_count.h, for all such sequences together. It
 * is chosen before their tokens have come, since only sequences that get drafts wait for them, and again by
 * the drafts that were found. Steps without drafts are rung ahead of time; then what the drafts would have
 * been is compared with what comes. */
#include <string.h>

#include "common/plan/schedule.h"
#include "daemon/steps/batcher_private.h"
#include "daemon/steps/drafts.h"

void batcher_begin_drafts(const struct batcher *batcher, struct sequence *seq, enum request_speculate asked)
{
    enum request_speculate kind = asked == REQUEST_SPECULATE_DEFAULT ? batcher->with.speculate : asked;
    if (asked == REQUEST_SPECULATE_DEFAULT && kind <= REQUEST_SPECULATE_OFF && seq->prediction_count)
        kind = REQUEST_SPECULATE_NGRAM;
    const uint32_t most = batcher->with.plan->draft_tokens;
    seq->speculates = most && !seq->pooling && kind > REQUEST_SPECULATE_OFF;
    seq->priced = kind == REQUEST_SPECULATE_AUTO;
    seq->makes = kind == REQUEST_SPECULATE_MTP || kind == REQUEST_SPECULATE_DRAFT ||
                 (seq->priced && (batcher->with.plan->draft_layers || batcher->with.drafter));
    seq->draft_most = seq->priced ? 0 : most;
    draft_rate_begin(&seq->rate);
    draft_rate_begin_made(&seq->made_rate, &batcher->drafts.made);
}

static bool speculates(const struct sequence *seq)
{
    return seq->speculates && !seq->mask && !batcher_ended(seq) && seq->slot != SEQUENCE_NO_SLOT;
}

/* Whether its next row is one of its answer. */
static bool answers(const struct sequence *seq)
{
    return seq->slot != SEQUENCE_NO_SLOT && !batcher_ended(seq) && !seq->again && !seq->pooling &&
           seq->rung >= seq->prompt_count;
}

/* Drafts that may be kept of those after its next token. */
static uint32_t drafts_left(const struct sequence *seq)
{
    const uint32_t next = sequence_output_count(seq) + seq->asked + 1;
    return seq->max_tokens > next ? seq->max_tokens - next : 0;
}

/* ---- numbers that follow prices ---- */

/* The priced sequences of a step, and the step without their drafts. */
struct priced {
    struct draft_step step;
    struct draft_row row[ENGINE_FEW_TOKENS];
    struct sequence *seq[ENGINE_FEW_TOKENS];
    uint32_t count;
    uint64_t positions; /* of all rows */
    struct step_prices_row price;
};

/* A row of the step. `most`: drafts that it may have, if it is priced; others have `tokens` with theirs. */
static void priced_add(struct priced *p, struct sequence *seq, uint32_t tokens, uint32_t most)
{
    p->step.rows++;
    p->step.tokens += tokens;
    p->positions += seq->token_count;
    if (!most || p->count == ENGINE_FEW_TOKENS) return;
    const bool made = seq->makes && !seq->quotes;
    p->row[p->count] = (struct draft_row){.right = draft_rate_right(made ? &seq->made_rate : &seq->rate),
                                          .most = most,
                                          .made = made};
    p->seq[p->count++] = seq;
}

/* Whether the step's prices are known, and it has room for drafts of priced sequences. */
static bool priced_open(struct batcher *batcher, struct priced *p)
{
    struct step_prices *prices = &batcher->with.observe->prices;
    const uint32_t few = plan_decode_tokens(batcher->with.plan);
    if (!p->count || p->step.tokens >= few || few > ENGINE_FEW_TOKENS) return false;
    const uint32_t context = (uint32_t)(p->positions / p->step.rows);
    p->step.room = few - p->step.tokens;
    p->step.copy = prices->copy;
    p->step.seconds = p->price.seconds;
    if (!step_prices_known(prices, p->step.rows, context)) {
        batcher->drafts.rows = p->step.rows;
        batcher->drafts.context = context;
    }
    if (!step_prices_get(prices, p->step.rows, &p->price)) return false;
    const bool asks = batcher->with.drafter != NULL;
    p->step.first = asks ? batcher->drafts.first.seconds : p->price.first;
    p->step.further = asks ? batcher->drafts.further.seconds : p->price.further;
    return true;
}

/* Part of the gain that is left if drafts are not always found. */
static bool pays_to_wait(const struct priced *p, double gain)
{
    double found = 0;
    for (uint32_t i = 0; i < p->count; i++)
        if (p->row[i].drafts && draft_rate_found(&p->seq[i]->rate) > found)
            found = draft_rate_found(&p->seq[i]->rate);
    return 1 + found * (gain - 1) >= DRAFT_GAIN_LEAST;
}

/* Sequences that may go back to in front of their drafts once the steps in flight are done, which then have
 * no drafts any more. */
static uint32_t places_back(const struct batcher *batcher)
{
    if (!batcher->snapshots.on) return UINT32_MAX;
    uint32_t back = snapshots_room(&batcher->snapshots);
    for (uint32_t i = 0; i < batcher->seq_count; i++)
        back += batcher->seq[i]->asked > 0 && batcher->seq[i]->draft_count > 0;
    return back;
}

/* How many drafts priced sequences get once their tokens have come: those that find no place to go back to
 * get none. Those whose drafts the layer makes have their number already (batcher_ask_drafts). */
static void count_ahead(struct batcher *batcher)
{
    struct priced p = {0};
    if (batcher->drafts.probes) return; /* counted already */
    uint32_t back = places_back(batcher);
    for (uint32_t i = 0; i < batcher->seq_count; i++) {
        struct sequence *seq = batcher->seq[i];
        if (!answers(seq)) continue;
        const uint32_t most = batcher->with.plan->draft_tokens, left = drafts_left(seq);
        const bool speculating = speculates(seq), chooses = seq->priced && !seq->makes && speculating,
                   priced = chooses && back;
        if (chooses) seq->draft_most = 0;
        if (back && (priced || (speculating && seq->draft_most))) back--;
        const uint32_t again = seq->redo > seq->rung ? seq->redo - seq->rung : 0;
        priced_add(&p, seq, 1 + again + (chooses ? 0 : seq->draft_most),
                   !priced       ? 0
                   : left < most ? left
                                 : most);
    }
    if (!priced_open(batcher, &p)) return;
    const double gain = draft_count_choose(&p.step, 0, p.row, p.count);
    if (!pays_to_wait(&p, gain)) {
        batcher->drafts.probes = draft_probe_choose(&batcher->drafts.probe, &p.step, p.row, p.count);
        if (!batcher->drafts.probes) return;
    }
    for (uint32_t i = 0; i < p.count; i++) p.seq[i]->draft_most = p.row[i].drafts;
}

/* A sequence of the view whose row is one of an answer. */
static bool decodes(const struct scheduler_seq *s)
{
    return s->running && !s->held && s->cached >= s->prompt && scheduler_decodes(s);
}

/* Drops the drafts of sequences of the view that were found but do not pay. */
static void count_found(struct batcher *batcher, uint32_t count)
{
    struct priced p = {0};
    if (batcher->drafts.probes) return;
    for (uint32_t i = 0; i < count; i++) {
        struct sequence *seq = batcher->seq[batcher->view_index[i]];
        const struct scheduler_seq *view = &batcher->view[i];
        if (!decodes(view)) continue;
        const uint32_t tokens = 1 + view->again;
        if (seq->priced && !seq->makes)
            priced_add(&p, seq, tokens, seq->draft_count);
        else
            priced_add(&p, seq, tokens + seq->draft_count, 0);
    }
    const bool known = priced_open(batcher, &p);
    if (known) draft_count_choose(&p.step, 0, p.row, p.count);
    for (uint32_t i = 0; i < p.count; i++) p.seq[i]->draft_count = known ? p.row[i].drafts : 0;
}

bool batcher_waits_for_drafts(struct batcher *batcher)
{
    count_ahead(batcher);
    for (uint32_t i = 0; i < batcher->seq_count; i++) {
        const struct sequence *seq = batcher->seq[i];
        if (seq->asked > 0 && speculates(seq) && (seq->draft_count || seq->draft_most)) return true;
    }
    return false;
}

/* Drafts that are found are free, but those of a short match are worse than the layer's. */
static uint32_t least_match(const struct sequence *seq)
{
    return seq->priced && seq->makes ? DRAFTS_MATCH_SURE : 1;
}

void batcher_watch_drafts(struct batcher *batcher, bool rung)
{
    struct batcher_drafts *drafts = &batcher->drafts;
    struct observe *observe = batcher->with.observe;
    uint32_t rows = 0, searched = 0;
    if (rung) drafts->probes = false;
    if (drafts->rows) step_prices_make(&observe->prices, &observe->forecast, drafts->rows, drafts->context);
    drafts->rows = 0;
    for (uint32_t i = 0; i < batcher->seq_count; i++) rows += answers(batcher->seq[i]);
    for (uint32_t i = 0; i < batcher->seq_count && rows < ENGINE_FEW_TOKENS; i++) {
        struct sequence *seq = batcher->seq[(batcher->turn + i) % batcher->seq_count];
        if (!seq->priced || !speculates(seq) || !answers(seq) || seq->looked_at == seq->token_count) continue;
        /* long texts take turns: helmd should be done before the step is */
        searched += seq->token_count + seq->prediction_count;
        if (searched > DRAFTS_LOOK && searched > seq->token_count + seq->prediction_count) return;
        seq->looked_found = drafts_find(seq, least_match(seq), 1, &seq->looked);
        seq->looked_at = seq->token_count;
    }
}

void batcher_compare_draft(struct sequence *seq, uint32_t token)
{
    if (seq->looked_at == seq->token_count)
        draft_rate_take(&seq->rate, seq->looked_found, seq->looked_found && seq->looked == token);
    seq->looked_at = 0;
}

/* ---- what drafts gain ---- */

void batcher_time_drafts(struct batcher *batcher, const struct batcher_flight *flight, double seconds)
{
    const struct step *step = &flight->step;
    struct batcher_drafts *drafts = &batcher->drafts;
    struct step_prices_row price;
    uint32_t made = 0;
    seconds += (double)flight->waited_us / 1e6;
    draft_probe_save(&drafts->probe, seconds);
    drafts->seconds = drafts->plain_seconds = 0;
    for (uint32_t i = 0; i < step->row_count; i++) made += step->row[i].drafts_next;
    if (!step->draft_count && !made && !flight->waited_us) return;
    if (!step_prices_get(&batcher->with.observe->prices, step->row_count, &price)) return;
    drafts->seconds = seconds;
    drafts->plain_seconds = price.seconds[step->row_count];
}

void batcher_count_gain(struct batcher *batcher, struct sequence *seq, uint32_t tokens)
{
    const double with = batcher->drafts.seconds, without = tokens * batcher->drafts.plain_seconds;
    seq->with_drafts_s += with;
    seq->without_drafts_s += without;
    batcher->with.metrics->with_drafts_s += with;
    batcher->with.metrics->without_drafts_s += without;
}

/* ---- drafts of a step ---- */

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

/* Whether drafts are to be found for a sequence of the view: its newest token is known. */
static bool wants_drafts(const struct batcher *batcher, uint32_t at)
{
    const struct sequence *seq = batcher->seq[batcher->view_index[at]];
    return decodes(&batcher->view[at]) && !seq->asked && seq->draft_most && speculates(seq);
}

static void find_of(struct sequence *seq, uint32_t most)
{
    seq->from_made = seq->makes && !seq->quotes;
    if (seq->from_made) {
        seq->draft_count = seq->made_at != seq->token_count ? 0
                           : seq->made_count < most         ? seq->made_count
                                                            : most;
        memcpy(seq->draft, seq->made, seq->draft_count * sizeof *seq->draft);
        return;
    }
    seq->draft_count = most ? drafts_find(seq, least_match(seq), most, seq->draft) : 0;
    if (!most) return;
    seq->looked_at = seq->token_count;
    seq->looked_found = seq->draft_count > 0;
    seq->looked = seq->draft[0];
}

void batcher_find_drafts(struct batcher *batcher, uint32_t count)
{
    uint32_t wanting = 0, room = batcher->with.plan->draft_tokens ? room_of(batcher, count) : 0;
    uint32_t back = batcher->snapshots.on ? snapshots_room(&batcher->snapshots) : UINT32_MAX;
    for (uint32_t i = 0; i < count; i++) wanting += wants_drafts(batcher, i);
    if (!wanting) return;
    for (uint32_t i = 0; i < count; i++) {
        struct sequence *seq = batcher->seq[batcher->view_index[i]];
        if (!wants_drafts(batcher, i)) continue;
        const uint32_t left = drafts_left(seq), share = seq->priced ? room : room / wanting;
        uint32_t each = back ? seq->draft_most : 0;
        if (each > left) each = left;
        if (each > share) each = share;
        find_of(seq, each);
        room -= seq->draft_count;
        back -= seq->draft_count > 0;
        wanting--;
    }
    count_found(batcher, count);
    for (uint32_t i = 0; i < count; i++) {
        if (!wants_drafts(batcher, i)) continue;
        batcher->view[i].drafts = batcher->seq[batcher->view_index[i]]->draft_count;
        batcher->view[i].tokens += batcher->view[i].drafts;
    }
}

/* Rows of a step that is formed, each of which is to get a token, and those of them that the layer is to make
 * drafts for. */
struct asking {
    struct sequence *seq[ARENA_STEP_ROWS]; /* by row; NULL: none is made for it */
    uint32_t rows, count;
};

/* One whose drafts cannot be asked for has none after this step, unless some are found. */
static void list_asking(const struct batcher *batcher, const struct step *step, struct asking *a)
{
    memset(a, 0, sizeof *a);
    for (uint32_t i = 0; i < step->row_count; i++) {
        struct sequence *seq = batcher->slot[step->row[i].slot].owner;
        if (!(step->row[i].flags & STEP_ROW_SAMPLE)) continue;
        a->rows++;
        if (!seq->makes || !speculates(seq)) continue;
        const bool can = batcher_can_ask(batcher, seq);
        seq->drafter.wanted = 0;
        if (!seq->priced) seq->draft_most = can ? batcher->with.plan->draft_tokens : 0;
        if (!can && !seq->priced) continue;
        a->seq[i] = seq;
        a->count++;
    }
}

/* Numbers of drafts that follow prices, for the step after this one. Those that were found go first, if they
 * have been right as often. */
static void count_asked(struct batcher *batcher, const struct asking *a, const struct step *step)
{
    struct priced p = {0};
    uint32_t back = places_back(batcher);
    for (uint32_t i = 0; i < step->row_count; i++) {
        struct sequence *seq = batcher->slot[step->row[i].slot].owner;
        if (!(step->row[i].flags & STEP_ROW_SAMPLE)) continue;
        const bool priced = a->seq[i] && seq->priced;
        const uint32_t left = drafts_left(seq), most = batcher->with.plan->draft_tokens;
        const bool can = batcher_can_ask(batcher, seq);
        if (priced) {
            seq->quotes = seq->looked_found &&
                          (!can || draft_rate_right(&seq->rate) >= draft_rate_right(&seq->made_rate));
            seq->draft_most = 0;
        }
        priced_add(&p, seq, 1 + (priced ? 0 : seq->draft_most),
                   !priced || !back || !(can || seq->quotes) ? 0
                   : left < most                             ? left
                                                             : most);
        back -= priced && back;
    }
    if (!priced_open(batcher, &p)) return;
    if (draft_count_choose(&p.step, 0, p.row, p.count) < DRAFT_GAIN_LEAST &&
        !draft_probe_choose(&batcher->drafts.probe, &p.step, p.row, p.count))
        return;
    for (uint32_t i = 0; i < p.count; i++) p.seq[i]->draft_most = p.row[i].drafts;
}

void batcher_ask_drafts(struct batcher *batcher, struct step *step)
{
    struct asking a;
    list_asking(batcher, step, &a);
    if (!a.count) return;
    count_asked(batcher, &a, step);
    const uint32_t most = plan_decode_tokens(batcher->with.plan);
    uint32_t room = a.rows < most ? most - a.rows : 0;
    if (room > ARENA_STEP_DRAFTS) room = ARENA_STEP_DRAFTS;
    for (uint32_t i = 0; i < step->row_count; i++) {
        struct sequence *seq = a.seq[i];
        if (!seq) continue;
        const uint32_t left = drafts_left(seq), share = seq->priced ? room : room / a.count;
        uint32_t each = seq->draft_most < share ? seq->draft_most : share;
        a.count--;
        if (each > left) each = left;
        if (!seq->quotes && batcher->with.drafter)
            seq->drafter.wanted = each;
        else if (!seq->quotes)
            step->row[i].drafts_next = each;
        room -= each;
    }
}

void batcher_take_made(struct batcher *batcher, struct sequence *seq, const struct step_row *row,
                       uint32_t made)
{
    const uint32_t *of = batcher->result.made + made;
    seq->made_count = 0;
    seq->made_at = seq->token_count;
    while (seq->made_count < row->drafts_next && of[seq->made_count] != ARENA_NO_DRAFT) seq->made_count++;
    memcpy(seq->made, of, seq->made_count * sizeof *of);
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
    draft_rate_take(seq->from_made ? &seq->made_rate : &seq->rate, row->drafts, kept);
    if (seq->from_made) draft_rate_take(&batcher->drafts.made, row->drafts, kept);
    if (!seq->priced && !seq->makes)
        seq->draft_most = drafts_next(batcher->with.plan->draft_tokens, row->drafts, kept);
    seq->draft_count = seq->looked_at = 0;
    seq->drafted += row->drafts;
    seq->accepted += kept;
    batcher->with.metrics->tokens_drafted_total += row->drafts;
    batcher->with.metrics->tokens_accepted_total += kept;
    return kept;
}
