/* Several sequences through a pair, their steps rung one after the other as helmd rings them, or one at a
 * time: the tokens must be the same. For golden tests, each of which includes it once. Everything asserts;
 * owns nothing. */
#pragma once

#include "tests/golden/pair.h"

#define COURSE_PROMPT 21
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COURSE_TOKENS 24 /* passes the end of a page of 32 */
#else
#define COURSE_TOKENS 46 /* passes the ends of two */
#endif
#define COURSE_SLOTS 20
#define COURSE_OTHER 3 /* the slot of a sequence that comes in between; others run */

/* Tokens of `rows` sequences, all in each step, rung as helmd rings them or one at a time. */
struct course {
    uint32_t rows;
    bool queued, sampled; /* sampled: drawn on the host */
    /* before the step of this output token: another one comes with a prompt, after which nothing is rung; it
     * is in one step of decoding; the last sequence leaves, whose row may be rung. 0: never */
    uint32_t other_at, both_at, leaves_at;
};

static inline uint32_t course_prompt(const struct course *c, uint32_t slot)
{
    return c->other_at && slot == COURSE_OTHER ? 40 : COURSE_PROMPT + slot;
}

static inline void begin_course(struct pair *pair, const struct course *c)
{
    const struct arena_header *h = arena_header_of(&pair->arena);
    for (uint32_t slot = 0; slot < COURSE_SLOTS && slot < h->slots; slot++) {
        uint32_t *history = arena_history_of(&pair->arena, slot);
        for (uint32_t i = 0; i < h->context_tokens; i++)
            history[i] = UINT32_MAX; /* an unknown one is no token */
        for (uint32_t i = 0; i < course_prompt(c, slot); i++) history[i] = (i * (31 + slot) + 5) % h->vocab;
        *arena_slot_of(&pair->arena, slot) =
            (struct arena_slot){.sampling = {.temperature = c->sampled ? 0.8f : 0,
                                             .top_k = c->sampled ? 20 : 0,
                                             .top_p = 1,
                                             .repetition_penalty = c->sampled ? 1.1f : 1,
                                             .seed = 9},
                                .prompt_count = course_prompt(c, slot)};
    }
}

struct course_step {
    struct pair *pair;
    const struct step_row *rows;
    uint32_t count, serial;
    const struct step_result *result;
    uint32_t used; /* rows of slots from here on are of sequences that have left */
    bool followed; /* a step after it was rung */
};

/* Takes the tokens of a step; of those that no row follows the history is ours to write. */
static inline void take_course(const struct course_step *s, uint32_t at, uint32_t (*tokens)[COURSE_TOKENS])
{
    struct helm_err err = {0};
    if (pair_wait(s->pair, s->serial, &err)) fail_msg("%s", err.text);
    for (uint32_t r = 0; r < s->count; r++) {
        const struct step_row *row = &s->rows[r];
        assert_int_equal(s->result->row[r].status, STEP_ROW_OK);
        if (row->slot >= s->used) continue;
        const uint32_t token = tokens[row->slot][at] = s->result->row[r].sampled.token;
        if (!s->followed) arena_history_of(&s->pair->arena, row->slot)[row->start + row->count] = token;
    }
}

/* A prompt, in a step of its own. */
static inline void course_take_prompt(struct pair *pair, uint32_t slot, uint32_t prompt, uint32_t *token)
{
    const struct step_row row = {.slot = slot, .count = prompt, .flags = STEP_ROW_SAMPLE};
    const struct step_result *result;
    struct helm_err err = {0};
    if (pair_step(pair, &row, 1, &result, &err)) fail_msg("%s", err.text);
    *token = arena_history_of(&pair->arena, slot)[prompt] = result->row[0].sampled.token;
}

static inline void run_course(struct pair *pair, const struct course *c, uint32_t (*tokens)[COURSE_TOKENS])
{
    struct step_row rows[2][COURSE_SLOTS]; /* of the step that is computed, and of the one after it */
    const struct step_result *result[2];
    uint32_t serial[2], count[2] = {0}, now = 0;
    bool rung = false; /* the step of this token is, after the one before it */
    begin_course(pair, c);
    for (uint32_t r = 0; r < c->rows; r++) course_take_prompt(pair, r, course_prompt(c, r), &tokens[r][0]);
    for (uint32_t i = 1; i < COURSE_TOKENS; i++, now = !now) {
        const uint32_t used = c->leaves_at && i >= c->leaves_at ? c->rows - 1 : c->rows;
        if (c->other_at && i == c->other_at) {
            uint32_t token;
            assert_false(rung);
            course_take_prompt(pair, COURSE_OTHER, course_prompt(c, COURSE_OTHER), &token);
        }
        if (!rung) {
            for (uint32_t r = 0; r < used; r++)
                rows[now][r] = (struct step_row){.slot = r,
                                                 .start = COURSE_PROMPT + r + i - 1,
                                                 .count = 1,
                                                 .flags = STEP_ROW_SAMPLE};
            count[now] = used;
            if (c->both_at && i == c->both_at)
                rows[now][count[now]++] = (struct step_row){.slot = COURSE_OTHER,
                                                            .start = 40,
                                                            .count = 1,
                                                            .flags = STEP_ROW_SAMPLE};
            serial[now] = pair_ring(pair, rows[now], count[now], &result[now]);
        }
        /* after it, unless what comes next is not known to be that */
        rung = c->queued && i + 1 < COURSE_TOKENS && i + 1 != c->other_at && i + 1 != c->both_at;
        if (rung) {
            for (uint32_t r = 0; r < used; r++)
                rows[!now][r] = (struct step_row){.slot = r,
                                                  .start = COURSE_PROMPT + r + i,
                                                  .count = 1,
                                                  .flags = STEP_ROW_SAMPLE | STEP_ROW_FOLLOWS};
            count[!now] = used;
            serial[!now] = pair_ring(pair, rows[!now], used, &result[!now]);
        }
        const struct course_step step = {.pair = pair,
                                         .rows = rows[now],
                                         .count = count[now],
                                         .serial = serial[now],
                                         .result = result[now],
                                         .used = used,
                                         .followed = rung};
        take_course(&step, i, tokens);
    }
}
