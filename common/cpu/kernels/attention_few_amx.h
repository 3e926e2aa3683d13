/* One token's attention over a cache of q8_0 with AMX-INT8: a task of few query rows, in blocks of TILED_KEYS
 * positions, whose operands and products are attention_digits.h's.
 *
 * As attention_few.h, which says how pages are read: all heads' keys of a block as they lie, then all heads'
 * values, and what is used next is asked into the second level meanwhile. Blocks begin at multiples of
 * TILED_KEYS; positions outside the task have weight 0, whatever lies there. Included by attention_simd.h
 * where TILED is defined. */
#pragma once

#include "common/cpu/kernels/attention_digits.h"

/* Where the groups of a block lie: the first head's numbers of the first key, and scales. */
struct tiled_place {
    const char *keys[TILED_GROUPS], *scales[TILED_GROUPS];
};

/* Asks lines of two pages in turn into the second level: `lines` from `at` on of each. */
INLINE void tiled_ask(const char *const *far, size_t at, const size_t lines)
{
    UNROLL for (size_t i = 0; i < lines; i++)
    {
        __builtin_prefetch(far[0] + at + i * 64, 0, 2);
        __builtin_prefetch(far[1] + at + i * 64, 0, 2);
    }
}

static bool tiled_takes(const struct attention_task *task)
{
    return task->kv->dtype == KV_Q8_0 && task->kv->head_dim == TILED_DIM &&
           task->kv->page_tokens >= TILED_GROUP;
}

/* The block at b, of what [lo, hi) has of it. Where a group is outside it is another, whose scores are
 * masked. */
static void tiled_find(struct tiled_place *place, const struct attention_task *task, uint32_t b, uint32_t lo,
                       uint32_t hi)
{
    const struct kv_layout *kv = task->kv;
    const size_t scales = kv_scales_at(kv);
    for (uint32_t g = 0; g < TILED_GROUPS; g++) {
        uint32_t at = b + g * TILED_GROUP;
        if (at + TILED_GROUP <= lo) at = lo / TILED_GROUP * TILED_GROUP;
        if (at >= hi) at = (hi - 1) / TILED_GROUP * TILED_GROUP;
        const uint32_t in_page = at & (kv->page_tokens - 1);
        const char *rows = page_rows(task, at);
        place->keys[g] = rows + in_page * TILED_DIM;
        place->scales[g] = rows + scales + in_page * TILED_BLOCKS * sizeof(uint16_t);
    }
}

static void tiled_task_begin(const struct attention_task *task, const struct tiled_scratch *t, size_t rows,
                             size_t passes)
{
    const size_t all = passes * task->kv_heads;
    for (size_t at = 0; at < all; at++) {
        const size_t head = at / passes, first = at % passes * PASS_ROWS,
                     count = rows - first < PASS_ROWS ? rows - first : PASS_ROWS;
        const float *from[PASS_ROWS] = {NULL};
        for (size_t r = 0; r < count; r++) {
            const size_t row = first + r;
            from[r] = task->q + row / task->group * task->q_stride +
                      (head * task->group + row % task->group) * TILED_DIM;
        }
        tiled_queries(t->q + at * TILED_BLOCKS * 512, t->worth + at * LANES, from, count, task->scale);
    }
    memset(t->o, 0, all * PASS_ROWS * TILED_DIM * sizeof(float));
    memset(t->s, 0, all * LANES * sizeof(float));
    for (size_t at = 0; at < all; at++) vec_store(t->m + at * LANES, vec_set1(-INFINITY));
}

struct tiled_turn {
    const struct tiled_scratch *t;
    const struct tiled_place *now, *next;
    size_t heads, head_bytes,
        to_values; /* of the task; of a head's keys; heads from its last keys to its first values */
    uint32_t b, lo, hi;
    const struct seen *seen;
};

/* Group g of the rows that are used i-th in a block, all heads' keys and then values; after the last the next
 * block's. */
INLINE const char *tiled_group(const struct tiled_turn *turn, size_t i, size_t g)
{
    if (i >= 2 * turn->heads) return turn->next->keys[g];
    if (i >= turn->heads) i += turn->to_values;
    return turn->now->keys[g] + i * turn->head_bytes;
}
/* Where the scales of that group are. */
INLINE const char *tiled_scales_at(const struct tiled_turn *turn, const char *rows, size_t g)
{
    return rows + (turn->now->scales[g] - turn->now->keys[g]);
}

/* The operands of four blocks in sequence: a group's keys and a pass's queries. */
struct tiled_round {
    const char *keys;
    const int8_t *q;
};
INLINE struct tiled_round tiled_round_of(const struct tiled_turn *turn, size_t round, const size_t passes)
{
    const size_t head = round / passes / TILED_GROUPS;
    return (struct tiled_round){
        .keys = tiled_group(turn, head, round / passes % TILED_GROUPS),
        .q = turn->t->q + (head * passes + round % passes) * TILED_BLOCKS * 512,
    };
}
INLINE void tiled_round_multiply(tiled_sums last, const struct tiled_scratch *t,
                                 const struct tiled_round *round, const size_t b)
{
    tiled_scores_multiply(last, b % 2, t->sums + b * 256, round->keys + b * KV_Q8_0_VALUES,
                          round->q + b * 512);
}

/* Products run five blocks ahead of what takes their sums, and sums are stored three blocks ahead, to a ring
 * of four blocks: what is stored and what is loaded at a time differ in the lower 12 bits of their addresses,
 * by which a core first tells them apart. */
INLINE void tiled_keys(const struct tiled_turn *turn, const size_t passes)
{
    const struct tiled_scratch *t = turn->t;
    const size_t rounds = turn->heads * TILED_GROUPS * passes;
    tiled_sums last = {NULL, NULL};
    struct tiled_round next = tiled_round_of(turn, 0, passes), then = tiled_round_of(turn, 1, passes);
    UNROLL for (size_t b = 0; b < TILED_BLOCKS; b++) tiled_round_multiply(last, t, &next, b);
    tiled_round_multiply(last, t, &then, 0);
    for (size_t round = 0; round < rounds; round++) {
        const size_t pass = round % passes, head = round / passes / TILED_GROUPS,
                     g = round / passes % TILED_GROUPS, at = head * passes + pass;
        const char *far[2] = {tiled_group(turn, head + 1, g / 2), tiled_group(turn, head + 1, g / 2 + 2)};
        next = then;
        then = tiled_round_of(turn, round + 2, passes);
        if (pass == 0) {
            const char *scales = tiled_scales_at(turn, tiled_group(turn, head, g), g);
            for (size_t i = 0; i < TILED_BLOCKS; i++)
                vec_store(t->scales + i * LANES, lanes_widen(scales, i * LANES, LANES, DTYPE_F16));
        }
        vec x[TILED_GROUP];
        UNROLL for (size_t b = 0; b < TILED_BLOCKS; b++)
        {
            if (round + (b < 3 ? 1 : 2) < rounds)
                tiled_round_multiply(last, t, b < 3 ? &next : &then, (b + 1) % TILED_BLOCKS);
            else if (last[(b + 1) % 2])
                tiled_scores_store(last, (b + 1) % 2);
            tiled_scores_add(x, t->sums + b * 256, t->scales, b);
            tiled_ask(far, g % 2 * 1024 + (pass * TILED_BLOCKS + b) * 256 / passes, 4 / passes);
        }
        tiled_scores_of(t->p + pass * PASS_SCORES + g * 64, x, t->worth + at * LANES);
        if (g + 1 < TILED_GROUPS) continue;
        const struct few_pass few = {.p = t->p + pass * PASS_SCORES,
                                     .m = t->m + at * LANES,
                                     .s = t->s + at * LANES,
                                     .fix = t->fix + at * LANES};
        tiled_softmax(&few, t->w + at * PASS_SCORES, turn->seen + pass * PASS_ROWS);
    }
}

/* A head's scales, as whole numbers of each block. */
static void tiled_values_scales(const struct tiled_turn *turn, size_t head, float worth[TILED_BLOCKS])
{
    vec x[TILED_GROUPS][TILED_BLOCKS];
    UNROLL for (size_t g = 0; g < TILED_GROUPS; g++)
        tiled_scales_across(x[g], tiled_scales_at(turn, tiled_group(turn, turn->heads + head, g), g));
    if (turn->b < turn->lo || turn->b + TILED_KEYS > turn->hi) { /* whatever lies outside */
        const int lo = turn->lo > turn->b ? (int)(turn->lo - turn->b) : 0, hi = (int)(turn->hi - turn->b);
        UNROLL for (int g = 0; g < TILED_GROUPS; g++) UNROLL for (size_t b = 0; b < TILED_BLOCKS; b++)
            x[g][b] = vec_keep(x[g][b], lo - g * LANES, hi - g * LANES, vec_zero());
    }
    tiled_scales_whole(turn->t->scales, x, worth);
}

/* A head's values: groups, those that are asked into the first level after them, and into the second. */
struct tiled_rows {
    const char *now[TILED_GROUPS], *near[TILED_GROUPS], *far[TILED_GROUPS];
};

/* A quarter of the weights and values of two blocks become operands: a row, and a group. */
INLINE void tiled_values_prepare(const struct tiled_scratch *t, const struct tiled_rows *rows, const float *w,
                                 const size_t pair, const size_t quarter, const size_t passes)
{
    uint8_t *weights = t->weights + pair * 2 * PASSES_MAX * 768 + quarter * 192;
    char *values = t->values + pair * 4096 + quarter * 64;
    const char *from = rows->now[quarter] + pair * 64;
    /* the other half of these rows, or the next head's */
    const char *near = pair == 0 ? rows->now[quarter] + 64 : rows->near[quarter];
    const char *far[2] = {rows->far[pair], rows->far[pair + 2]};
    for (size_t pass = 0; pass < passes; pass++)
        UNROLL for (size_t b = 0; b < 2; b++) tiled_weights(weights + (b * PASSES_MAX + pass) * 768,
                                                            w + pass * PASS_SCORES + quarter * TILED_KEYS,
                                                            t->scales + (2 * pair + b) * TILED_KEYS);
    UNROLL for (size_t l = 0; l < 4; l++)
    {
        tiled_ask(far, quarter * 512 + l * 128, 2);
        UNROLL for (size_t i = 4 * l; i < 4 * l + 4; i++) __builtin_prefetch(near + i * 128, 0, 3);
        tiled_spread(values + l * 256, from + 4 * l * TILED_DIM);
    }
}

/* In quarters of pairs of blocks, eight for a head: weights and values become operands, are multiplied when
 * TILED_LAG more have, half a block at a time, and sums are added to outputs a head later. Bytes stored by
 * one are loaded by the next, and tiles are loaded only of what has left the queue of stores. */
#define TILED_LAG   5
#define TILED_STEPS (2 * TILED_BLOCKS)
INLINE void tiled_values(const struct tiled_turn *turn, const size_t passes)
{
    const struct tiled_scratch *t = turn->t;
    float worth[2][TILED_BLOCKS];
    tiled_sums last = {NULL, NULL};
    for (size_t head = 0; head <= turn->heads; head++) {
        const bool here = head < turn->heads;
        const size_t before = (head - 1) * passes;
        struct tiled_rows rows = {{NULL}, {NULL}, {NULL}};
        if (here) {
            for (size_t g = 0; g < TILED_GROUPS; g++) {
                rows.now[g] = tiled_group(turn, turn->heads + head, g);
                rows.far[g] = tiled_group(turn, turn->heads + head + 1, g);
                rows.near[g] = head + 1 < turn->heads ? rows.far[g] : rows.now[g];
            }
            tiled_values_scales(turn, head, worth[head % 2]);
        }
        UNROLL for (size_t step = 0; step < TILED_STEPS; step++)
        {
            const size_t of = (step + TILED_STEPS - TILED_LAG) % TILED_STEPS;
            UNROLL for (size_t pass = 0; pass < passes; pass++)
            {
                const size_t odd = pass; /* one register less with one pass: a neighbour has more */
                if (step >= TILED_LAG ? here : head > 0)
                    tiled_values_multiply(last, odd, t->sums + (of * PASSES_MAX + pass) * 192,
                                          t->weights + (of / 2 * PASSES_MAX + pass) * 768,
                                          t->values + of * 1024);
                else if (last[odd])
                    tiled_values_store(last, odd);
            }
            if (here)
                tiled_values_prepare(t, &rows, t->w + head * passes * PASS_SCORES, step / 4, step % 4,
                                     passes);
            for (size_t pass = 0; pass < passes && head > 0; pass++)
                tiled_values_of(t->o + (before + pass) * PASS_ROWS * TILED_DIM + step * LANES,
                                t->sums + (step * PASSES_MAX + pass) * 192, t->fix + (before + pass) * LANES,
                                worth[(head - 1) % 2][step / 2]);
        }
    }
    TILE_FENCE();
}

/* The first block of the task that the thread takes next, if that is known. */
static bool tiled_find_next(struct tiled_place *place, const struct attention_task *next)
{
    if (!next || !next->tokens || !tiled_takes(next)) return false;
    const uint32_t lo = token_span(next, 0).lo, hi = token_span(next, next->tokens - 1).hi;
    if (lo < hi) tiled_find(place, next, lo / TILED_KEYS * TILED_KEYS, lo, hi);
    return lo < hi;
}

static void attend_tiled(const struct attention_task *task)
{
    const size_t rows = (size_t)task->tokens * task->group, passes = (rows + PASS_ROWS - 1) / PASS_ROWS;
    struct tiled_scratch t;
    struct tiled_place place[2];
    struct seen seen[FEW_ROWS_MAX];
    tiled_scratch_lay(&t, task->scratch, passes, task->kv_heads);
    tiled_task_begin(task, &t, rows, passes);
    tiled_begin();
    const uint32_t lo = token_span(task, 0).lo, hi = token_span(task, task->tokens - 1).hi;
    struct tiled_turn turn = {.t = &t,
                              .heads = task->kv_heads,
                              .head_bytes = kv_head_bytes(task->kv),
                              .to_values = task->kv->kv_heads - task->kv_heads,
                              .b = lo / TILED_KEYS * TILED_KEYS,
                              .lo = lo,
                              .hi = hi,
                              .seen = seen};
    if (lo < hi) tiled_find(&place[0], task, turn.b, lo, hi);
    for (size_t i = 0; lo < hi && turn.b < hi; turn.b += TILED_KEYS, i ^= 1) {
        turn.now = &place[i];
        turn.next = &place[i ^ 1];
        if (turn.b + TILED_KEYS < hi)
            tiled_find(&place[i ^ 1], task, turn.b + TILED_KEYS, lo, hi);
        else if (!tiled_find_next(&place[i ^ 1], task->next))
            turn.next = turn.now; /* asks for what is there */
        for (size_t r = 0; r < passes * PASS_ROWS; r++)
            seen[r] = row_seen(task, r < rows ? r : rows - 1, turn.b, TILED_KEYS);
        if (passes == 1) {
            tiled_keys(&turn, 1);
            tiled_values(&turn, 1);
        } else {
            tiled_keys(&turn, 2);
            tiled_values(&turn, 2);
        }
    }
    tiles_end();
    for (size_t head = 0; head < task->kv_heads; head++)
        for (size_t r = 0; r < rows; r++) {
            const size_t at = head * passes + r / PASS_ROWS, in = r % PASS_ROWS;
            float *o = t.o + (at * PASS_ROWS + in) * TILED_DIM;
            _Alignas(64) float s[LANES];
            vec_store(s, few_sum_4(vec_load(t.s + at * LANES)));
            tiled_order(o);
            finish_row(task, head, r, t.m[at * LANES + in * 4], s[in * 4], o);
        }
}
