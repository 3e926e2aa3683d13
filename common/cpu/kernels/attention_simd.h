/* Attention's shape for any vector width: which keys meet which queries, the streaming softmax, and the two
 * ways to run a task. Included once by each attention_<isa>.c, after it has the vectors of
 * lanes256.h or lanes512.h, TILE_VECS, FEW_ROWS, VARIANT(name) of what it exports and the tile kernels
 * (attention_tile_f32.h or its own).
 *
 * - Few rows (tokens * group <= FEW_ROWS_MAX: decode): K and V rows are read where they lie, once, each
 *   converted in registers and used by every query row. Memory is the limit, so the next rows are prefetched
 *   across page borders, where the hardware's prefetcher stops.
 * - Tiles (prefill): up to TILE_ROWS_MAX query rows at a time against blocks of KEYS_BLOCK positions. A
 *   block's keys are transposed into scratch, its values converted, and both are then used by all the rows
 *   as register-blocked matrix products of TILE_ROWS rows; tiles that see nothing of a block skip it. A query's result
 *   does not depend on the others: what it does not see is added with weight 0.
 *
 * A "row" is one query of one head: row = token * group + head of the group. Sums run in a fixed order that
 * depends only on the task's arguments. */
#ifndef HELM_COMMON_CPU_KERNELS_ATTENTION_SIMD_H
#define HELM_COMMON_CPU_KERNELS_ATTENTION_SIMD_H

#include <math.h>
#include <string.h>

#include "common/cpu/kernels/attention_cells.h"

#define TILE_ROWS_MAX 192
#define FEW_ROWS_MAX  8

static inline size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}
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
        float *x = p + r * KEYS_BLOCK;
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
        float *x = p + r * KEYS_BLOCK, *s = state->s + (first + r) * LANES;
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

/* Ends rows [first, first + count): writes o (stride padded) normalised, or partial with m and s. */
static void finish_rows(const struct attention_task *task, size_t first, size_t count, const float *o,
                        size_t stride, const struct row_state *state)
{
    size_t head_dim = task->kv->head_dim;
    for (size_t r = 0; r < count; r++) {
        size_t row = first + r;
        float sum = vec_reduce_add(vec_load(state->s + r * LANES));
        float *out = task->out + row / task->group * task->out_stride + row % task->group * head_dim;
        float factor = 1;
        if (task->m != NULL) {
            task->m[row] = state->m[r];
            task->s[row] = sum;
        } else {
            factor = sum == 0 ? 0 : 1 / sum; /* no key visible: o is 0 and stays 0 */
        }
        size_t d = 0;
        for (; d + LANES <= head_dim; d += LANES)
            vec_store(out + d, vec_mul(vec_load(o + r * stride + d), vec_set1(factor)));
        for (; d < head_dim; d++) out[d] = o[r * stride + d] * factor;
    }
}

static void reset_rows(size_t count, float *o, size_t stride, const struct row_state *state)
{
    memset(o, 0, count * stride * sizeof(float));
    memset(state->s, 0, count * LANES * sizeof(float));
    for (size_t r = 0; r < count; r++) state->m[r] = -INFINITY;
}

/* ---- few rows ---------------------------------------------------------------------------------- */

/* p[r][k .. k + 3] = q[r] . keys k .. k + 3 for `rows` rows. */
INLINE void few_scores(float *p, const float *q, size_t stride, const struct cells *cells, size_t k,
                       size_t head_dim, const size_t rows, const enum kv_dtype dtype)
{
    const char *const *keys = cells->keys + k;
    const size_t each = cells->scales;
    const float *scales = cells->key_scales + k * each;
    vec acc[FEW_ROWS][4];
    UNROLL for (size_t r = 0; r < rows; r++) acc[r][0] = acc[r][1] = acc[r][2] = acc[r][3] = vec_set1(0);
    for (size_t d = 0; d < head_dim; d += LANES) {
        size_t left = head_dim - d;
        vec k0 = cell_widen(keys[0], scales, d, left, dtype);
        vec k1 = cell_widen(keys[1], scales + each, d, left, dtype);
        vec k2 = cell_widen(keys[2], scales + 2 * each, d, left, dtype);
        vec k3 = cell_widen(keys[3], scales + 3 * each, d, left, dtype);
        UNROLL for (size_t r = 0; r < rows; r++)
        {
            vec x = vec_load(q + r * stride + d);
            acc[r][0] = vec_fmadd(x, k0, acc[r][0]);
            acc[r][1] = vec_fmadd(x, k1, acc[r][1]);
            acc[r][2] = vec_fmadd(x, k2, acc[r][2]);
            acc[r][3] = vec_fmadd(x, k3, acc[r][3]);
        }
    }
    UNROLL for (size_t r = 0; r < rows; r++)
        _mm_storeu_ps(p + r * KEYS_BLOCK + k, vec_reduce_add4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]));
}

/* A block of positions on the few-rows way. The next block's keys are fetched while this one's values are
 * used: its first bytes would otherwise be waited for, page after page. */
struct few_block {
    struct cells cells;
    const char *const *next;
    size_t row_bytes;
};

/* o[r][d .. ) = o * fix[r] + sum over k of p[r][k] * value k, for `rows` rows and `vecs` vectors of
 * dimensions. */
INLINE void few_values(float *o, size_t stride, const float *p, const float *fix,
                       const struct few_block *block, size_t next_count, size_t d, size_t left,
                       const size_t rows, const size_t vecs, const enum kv_dtype dtype)
{
    const struct cells *cells = &block->cells;
    vec acc[FEW_ROWS][4];
    UNROLL for (size_t r = 0; r < rows; r++) UNROLL for (size_t v = 0; v < vecs; v++) acc[r][v] =
        vec_mul(vec_load(o + r * stride + d + v * LANES), vec_set1(fix[r]));
    for (size_t k = 0; k < cells->count; k++) {
        const char *row = cells->keys[k] + cells->distance;
        const float *scales = cells->value_scales + k * cells->scales;
        vec x[4];
        if (k < next_count) prefetch_row(block->next[k], block->row_bytes);
        UNROLL for (size_t v = 0; v < vecs; v++) x[v] =
            cell_widen(row, scales, d + v * LANES, left - v * LANES, dtype);
        UNROLL for (size_t r = 0; r < rows; r++)
        {
            vec w = vec_set1(p[r * KEYS_BLOCK + k]);
            UNROLL for (size_t v = 0; v < vecs; v++) acc[r][v] = vec_fmadd(w, x[v], acc[r][v]);
        }
    }
    UNROLL for (size_t r = 0; r < rows; r++) UNROLL for (size_t v = 0; v < vecs; v++)
        vec_store(o + r * stride + d + v * LANES, acc[r][v]);
}

INLINE void few_values_rows(float *o, size_t stride, const float *p, const float *fix,
                            const struct few_block *block, size_t next_count, size_t head_dim,
                            const size_t rows, const enum kv_dtype dtype)
{
    size_t d = 0;
    for (; d + 4 * LANES <= head_dim; d += 4 * LANES)
        few_values(o, stride, p, fix, block, d == 0 ? next_count : 0, d, head_dim - d, rows, 4, dtype);
    for (; d < head_dim; d += LANES)
        few_values(o, stride, p, fix, block, d == 0 ? next_count : 0, d, head_dim - d, rows, 1, dtype);
}

INLINE void attend_few(const struct attention_task *task, const enum kv_dtype dtype)
{
    const struct kv_layout *kv = task->kv;
    size_t head_dim = kv->head_dim, stride = round_up(head_dim, LANES),
           rows = (size_t)task->tokens * task->group;
    size_t distance = value_distance(kv), row_bytes = kv_number_bytes(dtype, kv->head_dim);
    float m[FEW_ROWS_MAX], fix[FEW_ROWS_MAX];
    _Alignas(64) float s[FEW_ROWS_MAX * LANES], p[FEW_ROWS_MAX * KEYS_BLOCK];
    const struct row_state state = {m, s, fix};
    float *q = task->scratch, *o = q + rows * stride, *key_scales = o + rows * stride;
    float *value_scales = key_scales + KEYS_BLOCK * scales_of(kv);
    const char *keys[2][KEYS_BLOCK];
    struct seen seen[FEW_ROWS_MAX];

    for (size_t r = 0; r < rows; r++) {
        const float *from = task->q + r / task->group * task->q_stride + r % task->group * head_dim;
        for (size_t d = 0; d < head_dim; d++) q[r * stride + d] = from[d] * task->scale;
        for (size_t d = head_dim; d < stride; d++) q[r * stride + d] = 0;
    }
    reset_rows(rows, o, stride, &state);

    uint32_t lo = token_span(task, 0).lo, hi = token_span(task, task->tokens - 1).hi;
    uint32_t next_count = hi > lo ? min_u32(KEYS_BLOCK, hi - lo) : 0;
    int turn = 0;
    if (next_count > 0) find_keys(task, lo, 0, next_count, keys[0]);
    for (uint32_t b = lo; b < hi; b += KEYS_BLOCK, turn ^= 1) {
        uint32_t count = next_count;
        const char **now = keys[turn], **next = keys[turn ^ 1];
        for (uint32_t k = count; k < round_up(count, 4); k++) now[k] = now[count - 1]; /* masked below */
        if (dtype == KV_Q8_0) find_scales(task, b, 0, count, key_scales, value_scales);
        const struct few_block block = {{now, count, distance, key_scales, value_scales, scales_of(kv)},
                                        next,
                                        row_bytes};
        for (size_t k = 0; k < count; k += 4) {
            for (size_t i = k; i < k + 4; i++) prefetch_row(now[i] + distance, row_bytes);
            size_t r = 0;
            for (; r + FEW_ROWS <= rows; r += FEW_ROWS)
                few_scores(p + r * KEYS_BLOCK, q + r * stride, stride, &block.cells, k, head_dim, FEW_ROWS,
                           dtype);
            if (FEW_ROWS > 2 && r + 2 <= rows) {
                few_scores(p + r * KEYS_BLOCK, q + r * stride, stride, &block.cells, k, head_dim, 2, dtype);
                r += 2;
            }
            if (r < rows)
                few_scores(p + r * KEYS_BLOCK, q + r * stride, stride, &block.cells, k, head_dim, 1, dtype);
        }
        for (size_t r = 0; r < rows; r++) seen[r] = row_seen(task, r, b, count);
        softmax_rows(p, seen, 0, rows, &state, put_f32);
        next_count = hi - b > KEYS_BLOCK ? min_u32(KEYS_BLOCK, hi - b - KEYS_BLOCK) : 0;
        if (next_count > 0) find_keys(task, b + KEYS_BLOCK, 0, next_count, next);
        if (dtype == KV_Q8_0) find_scales(task, b + KEYS_BLOCK, 0, next_count, NULL, NULL);
        size_t r = 0, ahead = next_count;
        for (; r + FEW_ROWS <= rows; r += FEW_ROWS, ahead = 0)
            few_values_rows(o + r * stride, stride, p + r * KEYS_BLOCK, fix + r, &block, ahead, head_dim,
                            FEW_ROWS, dtype);
        if (FEW_ROWS > 2 && r + 2 <= rows) {
            few_values_rows(o + r * stride, stride, p + r * KEYS_BLOCK, fix + r, &block, ahead, head_dim, 2,
                            dtype);
            r += 2;
            ahead = 0;
        }
        if (r < rows)
            few_values_rows(o + r * stride, stride, p + r * KEYS_BLOCK, fix + r, &block, ahead, head_dim, 1,
                            dtype);
    }
    finish_rows(task, 0, rows, o, stride, &state);
}

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
        {&scratch->q, rows * stride},
        {&scratch->p, rows * KEYS_BLOCK},
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
    /* Blocks begin at multiples of KEYS_BLOCK, so that a query's do not depend on which ones are asked with it. */
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
            float *p = scratch->p + r * KEYS_BLOCK;
            struct seen seen[TILE_ROWS];
            tile_scores(p, scratch->q + r * stride, scratch->keys, head_dim, stride, span.lo, span.hi);
            for (size_t i = 0; i < TILE_ROWS; i++)
                seen[i] = row_seen(task, first + r + i < end ? first + r + i : end - 1, b, count);
            softmax_rows(p, seen, r, TILE_ROWS, &scratch->state, tile_put);
        }
        for (size_t r = 0; r < padded; r += TILE_ROWS) {
            struct span span = tile_span(task, first + r, end, b, count);
            if (span.hi <= span.lo) continue;
            tile_values(scratch->o + r * stride, stride, scratch->p + r * KEYS_BLOCK, scratch->state.fix + r,
                        scratch->values, span.lo, span.hi);
        }
    }
    finish_rows(task, first, rows, scratch->o, stride, &scratch->state);
}

static void attend_tiles(const struct attention_task *task)
{
    size_t rows = (size_t)task->tokens * task->group, stride = round_up(task->kv->head_dim, LANES);
    size_t block = rows < TILE_ROWS_MAX ? round_up(rows, TILE_ROWS) : TILE_ROWS_MAX;
    struct tile_scratch scratch;
    tile_scratch_lay(&scratch, task->scratch, block, stride, scales_of(task->kv));
    for (size_t first = 0; first < rows; first += block)
        attend_row_block(task, first, rows - first < block ? rows - first : block, stride, &scratch);
}

void VARIANT(attend)(const struct attention_task *task)
{
    if (task->tokens == 0 || task->group == 0) return;
    if (task->steady || (size_t)task->tokens * task->group > FEW_ROWS_MAX)
        attend_tiles(task);
    else if (task->kv->dtype == KV_BF16)
        attend_few(task, KV_BF16);
    else if (task->kv->dtype == KV_F16)
        attend_few(task, KV_F16);
    else if (task->kv->dtype == KV_Q8_0)
        attend_few(task, KV_Q8_0);
    else
        attend_few(task, KV_F32);
}

size_t VARIANT(scratch)(const struct kv_layout *kv, uint32_t tokens, uint32_t group)
{
    size_t rows = (size_t)tokens * group, stride = round_up(kv->head_dim, LANES);
    const size_t few = rows > FEW_ROWS_MAX
                           ? 0
                           : round_up(2 * (rows * stride + KEYS_BLOCK * scales_of(kv)) * sizeof(float), 64);
    struct tile_scratch unused;
    const size_t tiles =
        tile_scratch_lay(&unused, NULL, rows < TILE_ROWS_MAX ? round_up(rows, TILE_ROWS) : TILE_ROWS_MAX,
                         stride, scales_of(kv));
    return few > tiles ? few : tiles;
}

#endif
