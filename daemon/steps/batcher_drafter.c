/* Drafts by a draft model (daemon/children/drafter.h): asked for as soon as a sequence's newest token is
 * known, waited for within bounds. See batcher_private.h. Called by batcher.c, batcher_drafts.c and loop.c;
 * owns nothing.
 *
 * Each sequence with such drafts has a request at the draft model's helmd, which knows the sequence's tokens
 * and, after them, the drafts that it made: `made_at` and `made` of struct sequence. An ask says how many of
 * these stand and which tokens come instead. The number of drafts was chosen when the last step was formed
 * (batcher_ask_drafts). All sequences whose tokens a step made are asked for together, and no step is formed
 * before the drafts of all are there, or late. Late ones are not waited for again: their sequence has no
 * drafts until they have come. */
#include <stdio.h>
#include <string.h>

#include "common/base/units.h"
#include "daemon/children/drafter.h"
#include "daemon/steps/batcher_private.h"

/* An answer is late after this long, or after the time that it should take by this factor. */
#define LATE_US     100000
#define LATE_FACTOR 4
/* After a refusal that may not last. */
#define AGAIN_US 1000000
/* An answer that has not come for so long is not coming: its connection was lost. */
#define LOST_US 120000000
/* Asks that the mean of prices remembers, and their tokens that come new; more take longer. */
#define PRICE_ASKS   16
#define PRICE_TOKENS 16
#define PRICE_JUMP   2.0 /* by which one ask moves the mean at most */

static bool has_request(const struct sequence *seq)
{
    return seq->drafter.state == DRAFTER_ASKED || seq->drafter.state == DRAFTER_THERE;
}

static bool may_have_request(const struct sequence *seq)
{
    return seq->makes && seq->speculates && !seq->mask && !seq->again && !seq->pooling &&
           !batcher_ended(seq) && seq->slot != SEQUENCE_NO_SLOT;
}

bool batcher_can_ask(const struct batcher *batcher, const struct sequence *seq)
{
    return !batcher->with.drafter || seq->drafter.state == DRAFTER_THERE;
}

static double expected_seconds(const struct batcher *batcher, uint32_t drafts)
{
    const struct batcher_drafts *d = &batcher->drafts;
    return d->first.seconds + (drafts - 1) * d->further.seconds;
}

static void ask(struct batcher *batcher, struct sequence *seq, uint64_t now_us)
{
    uint32_t stand = 0;
    while (stand < seq->made_count && seq->made_at + stand < seq->token_count &&
           seq->made[stand] == seq->tokens[seq->made_at + stand])
        stand++;
    const uint32_t kept = seq->made_at + stand, drafts = seq->drafter.wanted;
    const uint64_t late_us = (uint64_t)(LATE_FACTOR * 1e6 * expected_seconds(batcher, drafts));
    seq->drafter.wanted = 0;
    if (!drafter_go_on(batcher->with.drafter, seq->id, kept - seq->prompt_count, seq->tokens + kept,
                       seq->token_count - kept, drafts))
        return;
    seq->drafter.state = DRAFTER_ASKED;
    seq->drafter.expects = drafts;
    seq->drafter.measured = seq->token_count - kept <= PRICE_TOKENS;
    seq->drafter.asked_us = now_us;
    seq->drafter.due_us = now_us + (late_us > LATE_US ? late_us : LATE_US);
    seq->made_at = seq->token_count;
    seq->made_count = 0;
}

/* The prompt, and a token that no step waits for. One that the draft model's context has no room for is not
 * sent: a frame that is much too large would close the connection, and end the requests of all. */
static void begin(struct batcher *batcher, struct sequence *seq, uint64_t now_us)
{
    if (seq->prompt_count >= batcher->with.drafter->context_tokens) {
        seq->drafter.state = DRAFTER_REFUSED;
        return;
    }
    if (now_us < seq->drafter.due_us ||
        !drafter_begin(batcher->with.drafter, seq->id, seq->tokens, seq->prompt_count, &seq->sampling))
        return;
    seq->drafter.state = DRAFTER_ASKED;
    seq->drafter.expects = 1;
    seq->drafter.measured = false;
    seq->drafter.asked_us = now_us;
    seq->drafter.due_us = 0;
    seq->made_at = seq->prompt_count;
    seq->made_count = 0;
}

void batcher_ask_drafter(struct batcher *batcher, uint64_t now_us)
{
    if (!batcher->with.drafter || !drafter_is_ready(batcher->with.drafter)) return;
    for (uint32_t i = 0; i < batcher->seq_count; i++) {
        struct sequence *seq = batcher->seq[i];
        if (!may_have_request(seq)) continue;
        if (seq->drafter.state == DRAFTER_ASKED && now_us > seq->drafter.asked_us + LOST_US)
            batcher_leave_drafter(batcher, seq);
        if (seq->drafter.state == DRAFTER_NONE)
            begin(batcher, seq, now_us);
        else if (seq->drafter.state == DRAFTER_THERE && seq->drafter.wanted && !seq->asked &&
                 seq->rung >= seq->prompt_count && seq->made_at < seq->token_count)
            ask(batcher, seq, now_us);
    }
}

uint64_t batcher_waits_for_drafter(struct batcher *batcher, uint64_t now_us)
{
    uint64_t until_us = 0;
    for (uint32_t i = 0; i < batcher->seq_count; i++) {
        const struct sequence *seq = batcher->seq[i];
        if (seq->drafter.state != DRAFTER_ASKED || seq->made_at != seq->token_count || seq->asked ||
            !may_have_request(seq) || now_us >= seq->drafter.due_us)
            continue;
        if (seq->drafter.due_us > until_us) until_us = seq->drafter.due_us;
    }
    if (until_us && !batcher->in_flight && !batcher->drafts.waits_us) batcher->drafts.waits_us = now_us;
    return until_us;
}

void batcher_leave_drafter(struct batcher *batcher, struct sequence *seq)
{
    if (has_request(seq)) drafter_end(batcher->with.drafter, seq->id);
    seq->drafter.state = DRAFTER_NONE;
    batcher->drafts.waits_us = 0; /* it may have been the one that was waited for */
}

void batcher_describe_drafter(const struct batcher *batcher, char text[BATCHER_DRAFTER_TEXT])
{
    const struct drafter *d = batcher->with.drafter;
    const struct batcher_drafts *drafts = &batcher->drafts;
    char host[UNITS_TEXT], vram[UNITS_TEXT];
    *text = 0;
    if (!d) return;
    snprintf(
        text, BATCHER_DRAFTER_TEXT,
        "%.200s: %s, pid %ld, %u restarts; %s of host memory, %s of VRAM; first draft %.2f ms, each further "
        "one %.2f ms (%s)",
        d->with.model, drafter_is_ready(d) ? "ready" : "restarting", (long)d->pid, d->restarts,
        units_format_size(d->host_bytes, host), units_format_size(d->vram_bytes, vram),
        1e3 * drafts->first.seconds, 1e3 * drafts->further.seconds,
        drafts->first.asks ? "measured" : "forecast");
}

/* ---- what the drafter says ---- */

static void take_price(struct drafter_price *price, double seconds)
{
    if (price->seconds > 0) { /* at first a forecast's */
        const double most = price->seconds * PRICE_JUMP, least = price->seconds / PRICE_JUMP;
        seconds = seconds > most ? most : seconds < least ? least : seconds;
    }
    if (price->asks < PRICE_ASKS) price->asks++;
    price->seconds += (seconds - price->seconds) / price->asks;
}

static void measure(struct batcher *batcher, struct sequence *seq, uint64_t now_us)
{
    if (!seq->drafter.measured) return;
    if (seq->made_count == 1) {
        take_price(&batcher->drafts.first, (double)(now_us - seq->drafter.asked_us) / 1e6);
        seq->drafter.asked_us = now_us;
    } else if (!seq->drafter.expects) {
        take_price(&batcher->drafts.further,
                   (double)(now_us - seq->drafter.asked_us) / 1e6 / (seq->made_count - 1));
    }
}

static struct sequence *find(struct batcher *batcher, uint64_t id)
{
    for (uint32_t i = 0; i < batcher->seq_count; i++)
        if (batcher->seq[i]->id == id && !batcher->seq[i]->again) return batcher->seq[i];
    return NULL;
}

static void on_token(void *context, uint64_t id, uint32_t token)
{
    struct batcher *batcher = context;
    struct sequence *seq = find(batcher, id);
    if (!seq || seq->drafter.state != DRAFTER_ASKED) return;
    if (token >= batcher->with.model->vocab || seq->made_count == ENGINE_DRAFTS_MAX) {
        batcher_leave_drafter(batcher, seq);
        seq->drafter.state = DRAFTER_REFUSED;
        return;
    }
    seq->made[seq->made_count++] = token;
    seq->drafter.expects--;
    measure(batcher, seq, units_now_us());
    if (!seq->drafter.expects) seq->drafter.state = DRAFTER_THERE;
}

static void on_ended(void *context, uint64_t id, bool again)
{
    struct sequence *seq = find(context, id);
    if (!seq) return;
    seq->drafter.state = again ? DRAFTER_NONE : DRAFTER_REFUSED;
    seq->drafter.due_us = units_now_us() + AGAIN_US;
}

static void on_lost(void *context)
{
    struct batcher *batcher = context;
    for (uint32_t i = 0; i < batcher->seq_count; i++) {
        batcher->seq[i]->drafter.state = DRAFTER_NONE;
        batcher->seq[i]->drafter.due_us = 0;
    }
}

void batcher_open_drafter(struct batcher *batcher)
{
    struct drafter *drafter = batcher->with.drafter;
    if (!drafter) return;
    drafter->events =
        (struct drafter_events){.context = batcher, .token = on_token, .ended = on_ended, .lost = on_lost};
    batcher->drafts.first.seconds = batcher->drafts.further.seconds = drafter->token_seconds;
}
