/* Attention's shape for any vector width: which keys meet which queries, the streaming softmax, and the two
 * ways to run a task. Included once by each attention_<isa>.c, after it has the vectors of
 * lanes256.h or lanes512.h, TILE_VECS, VARIANT(name) of what it exports and the tile kernels
 * (attention_tile_f32.h or its own).
 *
 * - Few rows (tokens * group <= FEW_ROWS_MAX: decode): attention_few.h.
 * - Tiles (prefill): up to TILE_ROWS_MAX query rows at a time against blocks of KEYS_BLOCK positions. A
 *   block's keys are transposed into scratch, its values converted, and both are then used by all the rows as
 *   register-blocked matrix products of TILE_ROWS rows; tiles that see nothing of a block skip it. A query's
 *   result does not depend on the others: what it does not see is added with weight 0.
 *
 * A "row" is one query of one head: row = token * group + head of the group. Sums run in a fixed order that
 * depends only on the task's arguments. */
#pragma once

#include <math.h>
#include <string.h>

#include "common/base/units.h"
#include "common/cpu/kernels/attention_cells.h"

#ifndef TILE_ROWS_MAX
#define TILE_ROWS_MAX 192
#endif
/* Tiles that are laid otherwise than as numbers of fp32 define these: the granule of a row's padded
 * dimensions, the floats of a packed query and of a row's scores and weights, a thread's actions before tiles
 * and after them. */
#ifndef TILE_DIMS
#define TILE_DIMS          LANES
#define TILE_QUERY(stride) (stride)
#define TILE_WEIGHTS       KEYS_BLOCK
#define tile_begin()       ((void)0)
#define tile_end()         ((void)0)
#endif

static inline uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Positions [lo, hi) that token t sees of the task's range; hi <= lo when it sees none. Both only grow with
 * t. */
struct span {
    uint32_t lo, hi;
};
static inline struct span token_span(const struct attention_task *task, uint32_t t)
{
    uint32_t end = task->start + t + 1;
    struct span span = {task->kv_first, min_u32(task->kv_last, end)};
    if (task->window != 0 && end > task->window) span.lo = max_u32(span.lo, end - task->window);
    return span;
}

/* exp(x) for x <= 0: within 1.5 ulp of the exact value down to -87.3, 0 below (the true value is
 * under 1.2e-38); NaN stays NaN. x = n ln 2 + r with |r| <= ln 2 / 2, then Taylor-like coefficients fitted on
 * that interval. */
static inline vec vec_exp(vec x)
{
    const vec lowest = vec_set1(-87.3f);
    vec n = vec_round(vec_mul(vec_max(lowest, x), vec_set1(1.44269504f)));
    vec r = vec_fnmadd(n, vec_set1(0.693359375f), vec_max(lowest, x));
    r = vec_fnmadd(n, vec_set1(-2.12194440e-4f), r);
    vec p = vec_set1(1.9875691500e-4f);
    p = vec_fmadd(p, r, vec_set1(1.3981999507e-3f));
    p = vec_fmadd(p, r, vec_set1(8.3334519073e-3f));
    p = vec_fmadd(p, r, vec_set1(4.1665795894e-2f));
    p = vec_fmadd(p, r, vec_set1(1.6666665459e-1f));
    p = vec_fmadd(p, r, vec_set1(5.0000001201e-1f));
    p = vec_fmadd(p, vec_mul(r, r), vec_add(r, vec_set1(1.0f)));
    return vec_zero_below(vec_scale2(p, n), x, lowest);
}

/* One row's streaming-softmax state: running maximum, and the sum kept per lane until the end. */
struct row_state {
    float *m;   /* [row] */
    float *s;   /* [row][LANES] */
    float *fix; /* [row]: what the row's o must be multiplied with before this block is added */
};

/* Which keys of the block at b, of `count`, a row sees: [lo, hi), relative to b; hi <= lo: none. */
struct seen {
    int lo, hi;
};
static inline struct seen row_seen(const struct attention_task *task, size_t row, uint32_t b, uint32_t count)
{
    struct span span = token_span(task, (uint32_t)(row / task->group));
    struct seen seen = {(int)(max_u32(span.lo, b) - b), span.hi > b ? (int)min_u32(span.hi - b, count) : 0};
    if (seen.hi < seen.lo) seen.hi = seen.lo = 0;
    return seen;
}

/* Turns the scores p[row][KEYS_BLOCK] of `rows` rows (at most 8, from row `first` of the state) into weights
 * exp(score - m), 0 for keys that a row does not see; updates the rows. Weights are stored by `put`, which
 * returns the value that was stored (a tile may round it). The rows' corrections are one vector exp. */
INLINE void softmax_rows(float *p, const struct seen *seen, size_t first, const size_t rows,
                         const struct row_state *state, vec (*put)(float *p, size_t at, vec w))
{
    const vec none = vec_set1(-INFINITY);
    _Alignas(64) float before[LANES] = {0}, shift[LANES] = {0}, fix[LANES];
    for (size_t r = 0; r < rows; r++) {
        float *x = p + r * TILE_WEIGHTS;
        vec top = none;
        if (seen[r].lo == 0 && seen[r].hi == KEYS_BLOCK) {
            for (size_t at = 0; at < KEYS_BLOCK; at += LANES) top = vec_max(top, vec_load(x + at));
        } else {
            for (int at = 0; at < seen[r].hi; at += LANES) {
                vec kept = vec_keep(vec_load(x + at), seen[r].lo - at, seen[r].hi - at, none);
                vec_store(x + at, kept);
                top = vec_max(top, kept);
            }
        }
        float now = vec_reduce_max(top);
        before[r] = state->m[first + r];
        now = before[r] > now ? before[r] : now;
        state->m[first + r] = now;
        shift[r] =
            now == -INFINITY ? 0 : now; /* only -infinities so far: their weights must be 0 and not NaN */
    }
    vec_store(fix, vec_exp(vec_sub(vec_load(before), vec_load(shift))));
    for (size_t r = 0; r < rows; r++) {
        float *x = p + r * TILE_WEIGHTS, *s = state->s + (first + r) * LANES;
        vec sum = vec_mul(vec_load(s), vec_set1(fix[r])), m = vec_set1(shift[r]);
        int end = seen[r].hi;
        for (int at = 0; at < KEYS_BLOCK; at += LANES) {
            vec w = at < end ? vec_exp(vec_sub(vec_load(x + at), m)) : vec_set1(0);
            sum = vec_add(sum, put(x, (size_t)at, w));
        }
        vec_store(s, sum);
        state->fix[first + r] = fix[r];
    }
}

static inline vec put_f32(float *p, size_t at, vec w)
{
    vec_store(p + at, w);
    return w;
}

/* Ends a row: writes o (stride padded) normalised, or partial with m and the sum. */
static void finish_row(const struct attention_task *task, size_t head, size_t row, float m, float sum,
                       const float *o)
{
    size_t head_dim = task->kv->head_dim, d = 0, in_head = head * task->group + row % task->group;
    float *out = task->out + row / task->group * task->out_stride + in_head * head_dim;
    float factor = 1;
    if (task->m != NULL) {
        task->m[head * task->group + row] = m;
        task->s[head * task->group + row] = sum;
    } else {
        if (task->sinks != NULL) sum += expf(task->sinks[in_head] - m);
        factor = sum == 0 ? 0 : 1 / sum; /* no key visible: o is 0 and stays 0 */
    }
    for (; d + LANES <= head_dim; d += LANES) vec_store(out + d, vec_mul(vec_load(o + d), vec_set1(factor)));
    for (; d < head_dim; d++) out[d] = o[d] * factor;
}

static void finish_rows(const struct attention_task *task, size_t first, size_t count, const float *o,
                        size_t stride, const struct row_state *state)
{
    for (size_t r = 0; r < count; r++)
        finish_row(task, 0, first + r, state->m[r], vec_reduce_add(vec_load(state->s + r * LANES)),
                   o + r * stride);
}

static void reset_rows(size_t count, float *o, size_t stride, const struct row_state *state)
{
    memset(o, 0, count * stride * sizeof(float));
    memset(state->s, 0, count * LANES * sizeof(float));
    for (size_t r = 0; r < count; r++) state->m[r] = -INFINITY;
}

#include "common/cpu/kernels/attention_few.h"
#ifdef TILED
#include "common/cpu/kernels/attention_few_amx.h"
#endif

/* ---- tiles ------------------------------------------------------------------------------------- */

/* Everything one pass over the keys works on, in the caller's scratch. */
struct tile_scratch {
    float *q;      /* [tile][...]: as tile_pack_queries lays it */
    float *p;      /* [row][KEYS_BLOCK] */
    float *o;      /* [row][stride] */
    float *keys;   /* as tile_pack_keys lays it, at most KEYS_BLOCK * round_up(head_dim, LANES) floats */
    float *values; /* likewise */
    float *key_scales, *value_scales; /* [position][scales of a cell] */
    struct row_state state;
};

static size_t tile_scratch_lay(struct tile_scratch *scratch, float *base, size_t rows, size_t stride,
                               size_t scales)
{
    size_t at = 0;
    const struct {
        float **place;
        size_t size;
    } part[] = {
        {&scratch->q, rows * TILE_QUERY(stride)},
        {&scratch->p, rows * TILE_WEIGHTS},
        {&scratch->o, rows * stride},
        {&scratch->keys, KEYS_BLOCK * stride},
        {&scratch->values, KEYS_BLOCK * stride},
        {&scratch->key_scales, KEYS_BLOCK * scales},
        {&scratch->value_scales, KEYS_BLOCK * scales},
        {&scratch->state.m, rows},
        {&scratch->state.fix, rows},
        {&scratch->state.s, rows * LANES},
    };
    for (size_t i = 0; i < sizeof(part) / sizeof(*part); i++) {
        if (base != NULL) *part[i].place = base + at;
        at += round_up(part[i].size, 16); /* cache lines */
    }
    return at * sizeof(float);
}

/* Keys of the block at b that any row of a tile sees, as [lo, hi) relative to b; hi <= lo: none. */
static inline struct span tile_span(const struct attention_task *task, size_t row, size_t rows_end,
                                    uint32_t b, uint32_t count)
{
    size_t last = row + TILE_ROWS - 1 < rows_end ? row + TILE_ROWS - 1 : rows_end - 1;
    struct span first_token = token_span(task, (uint32_t)(row / task->group));
    struct span last_token = token_span(task, (uint32_t)(last / task->group));
    struct span span = {max_u32(first_token.lo, b) - b,
                        last_token.hi > b ? min_u32(last_token.hi - b, count) : 0};
    return span;
}

static void attend_row_block(const struct attention_task *task, size_t first, size_t rows, size_t stride,
                             const struct tile_scratch *scratch)
{
    size_t head_dim = task->kv->head_dim, end = first + rows, padded = round_up(rows, TILE_ROWS);
    const char *keys[KEYS_BLOCK];
    tile_pack_queries(scratch->q, task, first, rows, stride);
    reset_rows(padded, scratch->o, stride, &scratch->state);

    uint32_t lo = token_span(task, (uint32_t)(first / task->group)).lo;
    uint32_t hi = token_span(task, (uint32_t)((end - 1) / task->group)).hi;
    /* Blocks begin at multiples of KEYS_BLOCK, so that a query's do not depend on which ones are asked with
     * it. */
    for (uint32_t b = lo / KEYS_BLOCK * KEYS_BLOCK; lo < hi && b < hi; b += KEYS_BLOCK) {
        const uint32_t skip = lo > b ? lo - b : 0, count = min_u32(KEYS_BLOCK, hi - b);
        find_keys(task, b, skip, count, keys);
        for (uint32_t k = count; k < KEYS_BLOCK; k++) keys[k] = keys[count - 1]; /* masked by the softmax */
        const enum kv_dtype dtype = (enum kv_dtype)task->kv->dtype;
        if (dtype == KV_Q8_0) find_scales(task, b, skip, count, scratch->key_scales, scratch->value_scales);
        const struct cells cells = {keys,
                                    count,
                                    value_distance(task->kv),
                                    scratch->key_scales,
                                    scratch->value_scales,
                                    scales_of(task->kv)};
        tile_pack_keys(scratch->keys, &cells, head_dim, stride, dtype);
        tile_pack_values(scratch->values, &cells, head_dim, stride, dtype);
        for (size_t r = 0; r < padded; r += TILE_ROWS) {
            struct span span = tile_span(task, first + r, end, b, count);
            if (span.hi <= span.lo) continue;
            float *p = scratch->p + r * TILE_WEIGHTS;
            struct seen seen[TILE_ROWS];
            tile_scores(p, scratch->q + r * TILE_QUERY(stride), scratch->keys, head_dim, stride, span.lo,
                        span.hi);
            for (size_t i = 0; i < TILE_ROWS; i++)
                seen[i] = row_seen(task, first + r + i < end ? first + r + i : end - 1, b, count);
            softmax_rows(p, seen, r, TILE_ROWS, &scratch->state, tile_put);
        }
        for (size_t r = 0; r < padded; r += TILE_ROWS) {
            struct span span = tile_span(task, first + r, end, b, count);
            if (span.hi <= span.lo) continue;
            tile_values(scratch->o + r * stride, stride, scratch->p + r * TILE_WEIGHTS,
                        scratch->state.fix + r, scratch->values, span.lo, span.hi);
        }
    }
    finish_rows(task, first, rows, scratch->o, stride, &scratch->state);
}

static void attend_tiles(const struct attention_task *task)
{
    size_t rows = (size_t)task->tokens * task->group, stride = round_up(task->kv->head_dim, TILE_DIMS);
    size_t block = rows < TILE_ROWS_MAX ? round_up(rows, TILE_ROWS) : TILE_ROWS_MAX;
    struct tile_scratch scratch = {0};
    tile_scratch_lay(&scratch, task->scratch, block, stride, scales_of(task->kv));
    tile_begin();
    for (size_t first = 0; first < rows; first += block)
        attend_row_block(task, first, rows - first < block ? rows - first : block, stride, &scratch);
    tile_end();
}

void VARIANT(attend)(const struct attention_task *task)
{
    if (task->tokens == 0 || task->group == 0) return;
    if (!task->steady && (size_t)task->tokens * task->group <= FEW_ROWS_MAX) {
#ifdef TILED
        if (tiled_takes(task)) {
            attend_tiled(task);
            return;
        }
#endif
        attend_few(task);
        return;
    }
    struct attention_task one = *task;
    one.kv_heads = 1;
    for (uint32_t head = 0; head < task->kv_heads; head++, one.kv_head++) {
        attend_tiles(&one);
        one.q += task->group * task->kv->head_dim;
        if (task->sinks != NULL) one.sinks += task->group;
        one.out += task->group * task->kv->head_dim;
        if (task->m != NULL) one.m += task->group, one.s += task->group;
    }
}

size_t VARIANT(scratch)(const struct kv_layout *kv, uint32_t tokens, uint32_t group)
{
    size_t rows = (size_t)tokens * group, stride = round_up(kv->head_dim, TILE_DIMS);
    size_t one = group > FEW_ROWS_MAX ? FEW_ROWS_MAX : rows < FEW_ROWS_MAX ? rows : FEW_ROWS_MAX;
    struct few_scratch few;
    struct tile_scratch tiles = {0};
    const size_t few_bytes = few_scratch_lay(&few, NULL, kv, kv->kv_heads * one);
    const size_t tile_bytes =
        tile_scratch_lay(&tiles, NULL, rows < TILE_ROWS_MAX ? round_up(rows, TILE_ROWS) : TILE_ROWS_MAX,
                         stride, scales_of(kv));
#ifdef TILED
    struct tiled_scratch tiled;
    const size_t tiled_bytes =
        tiled_scratch_lay(&tiled, NULL, (one + PASS_ROWS - 1) / PASS_ROWS, kv->kv_heads);
    if (tiled_bytes > few_bytes && tiled_bytes > tile_bytes) return tiled_bytes;
#endif
    return tile_bytes > few_bytes ? tile_bytes : few_bytes;
}
