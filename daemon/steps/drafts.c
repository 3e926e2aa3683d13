/* Drafts of a sequence. See drafts.h. Called by batcher_drafts.c; owns nothing. */
#include "daemon/steps/drafts.h"

struct place {
    const uint32_t *text; /* in which the drafts stand, */
    uint32_t at, count;   /* from here on; its tokens */
    uint32_t match;       /* tokens in front of it that the known ones end with; 0: there is no such place */
};

/* How many tokens in front of text[at] the known ones end with. */
static uint32_t match_at(const struct sequence *seq, const uint32_t *text, uint32_t at)
{
    const uint32_t *end = seq->tokens + seq->token_count;
    uint32_t match = 0;
    while (match < DRAFTS_MATCH_MAX && match < at && match < seq->token_count &&
           text[at - 1 - match] == end[-1 - (int64_t)match])
        match++;
    return match;
}

/* The longest match in text[..count), the last of several. The known tokens themselves end at count: no place
 * is there. */
static void look_in(const struct sequence *seq, const uint32_t *text, uint32_t count, struct place *best)
{
    const uint32_t last = seq->tokens[seq->token_count - 1],
                   first = count > DRAFTS_LOOK ? count - DRAFTS_LOOK : 1;
    for (uint32_t at = count - 1; count && at >= first && best->match < DRAFTS_MATCH_MAX; at--) {
        if (text[at - 1] != last) continue;
        const uint32_t match = match_at(seq, text, at);
        if (match >= DRAFTS_MATCH_LEAST && match > best->match)
            *best = (struct place){.text = text, .at = at, .count = count, .match = match};
    }
}

/* The prediction's next place, if the answer is at it: of its last tokens at least half stand in the
 * prediction where they stand in the answer. It comes first if all of them do, otherwise after all other
 * places. */
static void follow_prediction(const struct sequence *seq, struct place *best)
{
    const uint32_t output = sequence_output_count(seq), *answer = seq->tokens + seq->prompt_count;
    uint32_t same = 0, last = 0;
    if (output >= seq->prediction_count) return;
    for (uint32_t i = output > DRAFTS_ALIGNED ? output - DRAFTS_ALIGNED : 0; i < output; i++, last++)
        same += seq->prediction[i] == answer[i];
    if (!same || 2 * same < last) return;
    *best = (struct place){.text = seq->prediction,
                           .at = output,
                           .count = seq->prediction_count,
                           .match = same == last ? DRAFTS_MATCH_MAX : 1};
}

uint32_t drafts_find(const struct sequence *seq, uint32_t least, uint32_t most, uint32_t *draft)
{
    struct place best = {0};
    uint32_t count = 0;
    follow_prediction(seq, &best);
    look_in(seq, seq->prediction, seq->prediction_count, &best);
    look_in(seq, seq->tokens, seq->token_count, &best);
    if (!best.match || best.match < least) return 0;
    for (; count < most && best.at + count < best.count; count++) draft[count] = best.text[best.at + count];
    /* a text that repeats itself goes on as it began */
    for (const uint32_t period = count; best.text == seq->tokens && count < most; count++)
        draft[count] = draft[count - period];
    return count;
}

uint32_t drafts_next(uint32_t most, uint32_t drafts, uint32_t kept)
{
    const uint32_t next = kept == drafts ? 2 * drafts : kept + 1;
    return next < most ? next : most;
}
