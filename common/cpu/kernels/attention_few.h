/* Attention of few query rows (decode): K and V are read where they lie, once for as many rows as registers
 * hold.
 *
 * Included once by each attention_<isa>.c through attention_simd.h, which has the rows' spans and vec_exp. A
 * pass has `rows` rows, a power of two up to FEW_ROWS, and every vector of scores has TOGETHER = LANES / rows
 * positions of each:
 *
 *   scores   [position / TOGETHER][row][position % TOGETHER]
 *   maxima, sums, corrections: a vector a pass, lanes as in scores
 *
 * so that nothing is summed across lanes but the LANES dot products of such a vector, all in one go
 * (vec_reduce_lanes), and the softmax takes all rows at once.
 *
 * Memory is the limit. Pages lie anywhere and a head's rows of one are a few KiB, so the hardware's
 * prefetchers begin anew again and again. While a head's rows of a block are used, those that are used next
 * are asked into the second level cache, in the order in which they lie: the next head's, after the last
 * head's keys the first head's values, after its values the next block's keys, and at a task's end the first
 * of the thread's next task (attention_task.next). They are asked for line by line between the products, at
 * the pace at which lines are used: a burst of sixteen fills the queue of misses, which loads of what is
 * there already need, too, and the products wait until memory has answered. A few rows ahead of their use
 * lines are asked into the first level. Rows of heads lie side by side, so the bytes after a head's last row
 * are used next. */
#pragma once

#include <float.h>

#include "common/cpu/kernels/attention_cells.h"

#define FEW_ROWS_MAX 8 /* of a task */
#define FEW_ROWS     (LANES / 2)
#define NEAR_ROWS    4 /* of values: how far ahead of their use rows are asked into the first level cache */
#define FEW_VECS_MAX 8 /* accumulators of one row's output */

/* A block of positions, of one page. */
struct few_place {
    const char *keys;   /* the first head's numbers of its first key; NULL: there is none */
    const char *scales; /* and scales */
    uint32_t count;
};

/* A head's keys, or its values, of a block. */
struct few_rows {
    const char *at, *next; /* numbers; those that are asked for meanwhile (next_count of them) */
    const float *scales;   /* [position][each] */
    const float *biases;   /* of CELL_BYTES, likewise */
    size_t count, next_count, bytes, each;
};

/* The arrays of a pass, in the task's scratch. */
struct few_pass {
    const float *q; /* [dimension / LANES][row][LANES], scaled */
    float *o;       /* [row][stride] */
    float *p;       /* scores, then weights */
    float *m, *s, *fix;
    size_t stride;
};

INLINE void ask(const char *row, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, 0, 2);
}
/* Asked into the first level: what is used in a moment. */
INLINE void ask_near(const char *row, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, 0, 3);
}
/* The rows that are asked for while a block's are used, byte for byte: `bytes` from `at` on of the whole.
 * Lines of the first and of the second half take turns, of f16 two pages of 4 KiB: what the hardware fetches
 * ahead is more with two streams. Where there are none it is rows in use, which costs nothing. */
struct few_asked {
    const char *rows;
    size_t half;
};
INLINE struct few_asked few_asked(const struct few_rows *rows)
{
    const size_t half = rows->count / 2 * rows->bytes / 64 * 64;
    return rows->next_count ? (struct few_asked){rows->next, half} : (struct few_asked){rows->at, 0};
}
INLINE void ask_part(const struct few_asked *asked, size_t at, const size_t bytes, const enum kv_dtype dtype)
{
    if (dtype == KV_Q8_0) /* a head's rows are one such page */
        ask(asked->rows + at, bytes);
    else if (bytes % 128)
        __builtin_prefetch(asked->rows + (at & 64 ? asked->half : 0) + at / 128 * 64, 0, 2);
    else
        for (size_t i = 0; i < bytes; i += 128) {
            __builtin_prefetch(asked->rows + (at + i) / 2, 0, 2);
            __builtin_prefetch(asked->rows + asked->half + (at + i) / 2, 0, 2);
        }
}

/* ---- scores ---- */

INLINE void few_scores_step(vec acc[LANES], const float *q, const char *const *keys,
                            const float *const *scales, const struct few_asked *asked, size_t k,
                            const char *near, size_t d, size_t left, const size_t rows,
                            const enum kv_dtype dtype)
{
    const size_t together = LANES / rows;
    const size_t bytes = together * kv_number_bytes(dtype, LANES);
    vec x[LANES];
    ask_part(asked, k, bytes, dtype);
    ask_near(near, bytes);
    UNROLL for (size_t i = 0; i < together; i++) x[i] = cell_widen(keys[i], scales[i], d, left, dtype);
    UNROLL for (size_t r = 0; r < rows; r++)
    {
        const vec one = vec_load(q + r * LANES);
        UNROLL for (size_t i = 0; i < together; i++) acc[r * together + i] =
            vec_fmadd(one, x[i], acc[r * together + i]);
    }
}

#ifdef CELL_BYTES
#define CELL_BYTES_ROWS 4 /* with fewer there are more positions at a time than registers for their bytes */
/* The same of CELL_BYTES dimensions at a time, of q8_0. */
INLINE void few_scores_bytes(vec acc[LANES], const float *q, const char *const *keys,
                             const float *const *scales, const float *const *biases, size_t d,
                             const size_t rows)
{
    const size_t together = LANES / rows, part = KV_Q8_0_VALUES / LANES;
    cell_bytes bytes[LANES];
    UNROLL for (size_t i = 0; i < together; i++) bytes[i] = cell_bytes_load(keys[i] + d);
    UNROLL for (size_t v = 0; v < CELL_BYTES / LANES; v++)
    {
        vec x[LANES];
        const size_t s = d / KV_Q8_0_VALUES + v / part;
        UNROLL for (size_t i = 0; i < together; i++) x[i] =
            cell_bytes_part(bytes[i], v, scales[i][s], biases[i][s]);
        UNROLL for (size_t r = 0; r < rows; r++)
        {
            const vec one = vec_load(q + (v * rows + r) * LANES);
            UNROLL for (size_t i = 0; i < together; i++) acc[r * together + i] =
                vec_fmadd(one, x[i], acc[r * together + i]);
        }
    }
}
#endif

INLINE void few_scores(const struct few_pass *pass, const struct few_rows *block, size_t head_dim,
                       const size_t rows, const enum kv_dtype dtype)
{
    const size_t together = LANES / rows, last = block->count - 1;
    const struct few_asked asked = few_asked(block);
    for (size_t k = 0; k < block->count; k += together) {
        const char *keys[LANES];
        const float *scales[LANES], *q = pass->q;
        const char *near = block->at + (k + together) * block->bytes;
        vec acc[LANES];
        UNROLL for (size_t i = 0; i < together; i++)
        {
            const size_t there = k + i < last ? k + i : last; /* after the last it again: masked below */
            keys[i] = block->at + there * block->bytes;
            scales[i] = block->scales + there * block->each;
        }
        UNROLL for (size_t i = 0; i < LANES; i++) acc[i] = vec_set1(0);
        size_t d = 0;
#ifdef CELL_BYTES
        const float *biases[LANES];
        for (size_t i = 0; i < together; i++)
            biases[i] = block->biases + (k + i < last ? k + i : last) * block->each;
        for (; dtype == KV_Q8_0 && rows >= CELL_BYTES_ROWS && d + CELL_BYTES <= head_dim;
             d += CELL_BYTES, q += rows * CELL_BYTES) {
            const size_t at = together * d;
            ask_part(&asked, k * block->bytes + at, together * CELL_BYTES, dtype);
            ask_near(near + at, together * CELL_BYTES);
            few_scores_bytes(acc, q, keys, scales, biases, d, rows);
        }
#endif
        for (; d + LANES <= head_dim; d += LANES, q += rows * LANES) {
            const size_t at = together * kv_number_bytes(dtype, (uint32_t)d);
            few_scores_step(acc, q, keys, scales, &asked, k * block->bytes + at, near + at, d, LANES, rows,
                            dtype);
        }
        if (d < head_dim)
            few_scores_step(acc, q, keys, scales, &asked, k * block->bytes, near, d, head_dim - d, rows,
                            dtype);
        vec_store(pass->p + k * rows, vec_reduce_lanes(acc));
    }
}

/* ---- softmax ---- */

/* The largest, or the sum, of each row's lanes, in all of them. */
INLINE vec few_max(vec x, const size_t rows)
{
    if (LANES / rows > 1) x = vec_max(x, vec_swap(x, 1));
    if (LANES / rows > 2) x = vec_max(x, vec_swap(x, 2));
    if (LANES / rows > 4) x = vec_max(x, vec_swap(x, 4));
    if (LANES / rows > 8) x = vec_max(x, vec_swap(x, 8));
    return x;
}
INLINE vec few_sum(vec x, const size_t rows)
{
    if (LANES / rows > 1) x = vec_add(x, vec_swap(x, 1));
    if (LANES / rows > 2) x = vec_add(x, vec_swap(x, 2));
    if (LANES / rows > 4) x = vec_add(x, vec_swap(x, 4));
    if (LANES / rows > 8) x = vec_add(x, vec_swap(x, 8));
    return x;
}

/* Puts -infinity where a row does not see a position of the block. */
static inline void few_mask(const struct few_pass *pass, const struct seen *seen, size_t count, size_t rows)
{
    const size_t together = LANES / rows;
    _Alignas(64) float lo[LANES], hi[LANES], at[LANES];
    for (size_t i = 0; i < LANES; i++) {
        lo[i] = (float)seen[i / together].lo;
        hi[i] = (float)seen[i / together].hi;
        at[i] = (float)(i % together);
    }
    for (size_t k = 0; k < count; k += together) {
        const vec position = vec_add(vec_load(at), vec_set1((float)k));
        vec_store(pass->p + k * rows, vec_between(vec_load(pass->p + k * rows), position, vec_load(lo),
                                                  vec_load(hi), vec_set1(-INFINITY)));
    }
}

/* Scores become weights exp(score - m), 0 for positions that a row does not see; m, s and fix follow. */
INLINE void few_softmax(const struct few_pass *pass, const struct seen *seen, size_t count, const size_t rows)
{
    bool all = count % (LANES / rows) == 0;
    for (size_t r = 0; r < rows; r++) all = all && seen[r].lo == 0 && (size_t)seen[r].hi >= count;
    if (!all) few_mask(pass, seen, count, rows);
    const size_t end = (count + LANES / rows - 1) / (LANES / rows) * LANES;
    float *const p = pass->p;
    vec top = vec_set1(-INFINITY);
    for (size_t i = 0; i < end; i += LANES) top = vec_max(top, vec_load(p + i));
    const vec before = vec_load(pass->m), now = vec_max(few_max(top, rows), before);
    const vec shift =
        vec_zero_below(now, now, vec_set1(-FLT_MAX)); /* only -infinities so far: weights are 0, not NaN */
    const vec fix = vec_exp(vec_sub(before, shift));
    vec sum = vec_mul(vec_load(pass->s), fix);
    for (size_t i = 0; i < end; i += LANES) {
        const vec w = vec_exp(vec_sub(vec_load(p + i), shift));
        sum = vec_add(sum, w);
        vec_store(p + i, w);
    }
    vec_store(pass->m, now);
    vec_store(pass->s, sum);
    vec_store(pass->fix, fix);
}

/* ---- values ---- */

/* Numbers d .. of a value, as many vectors. */
INLINE void few_values_widen(vec *x, const char *value, const float *scales, const float *biases, size_t d,
                             size_t left, const size_t vecs, const enum kv_dtype dtype)
{
#ifdef CELL_BYTES
    if (dtype == KV_Q8_0 && vecs % (CELL_BYTES / LANES) == 0) {
        const size_t parts = CELL_BYTES / LANES;
        UNROLL for (size_t v = 0; v < vecs; v++)
        {
            const cell_bytes bytes = cell_bytes_load(value + d + v / parts * CELL_BYTES);
            const size_t s = (d + v * LANES) / KV_Q8_0_VALUES;
            x[v] = cell_bytes_part(bytes, v % parts, scales[s], biases[s]);
        }
        return;
    }
#endif
    (void)biases;
    UNROLL for (size_t v = 0; v < vecs; v++) x[v] =
        cell_widen(value, scales, d + v * LANES, left - v * LANES, dtype);
}

/* o[row][d ..] = o * fix[row] + sum over k of weight[k] * value k, for `vecs` vectors of dimensions. */
INLINE void few_values_at(const struct few_pass *pass, const struct few_rows *block, size_t d, size_t left,
                          const size_t rows, const size_t vecs, const enum kv_dtype dtype)
{
    const size_t together = LANES / rows;
    const char *value = block->at;
    const struct few_asked asked = few_asked(block);
    size_t part = block->count * kv_number_bytes(dtype, (uint32_t)d);
    const float *scales = block->scales;
    const ptrdiff_t to_biases = block->biases - block->scales;
    float *const o = pass->o + d;
    vec acc[LANES];
    UNROLL for (size_t r = 0; r < rows; r++)
    {
        const vec fix = vec_set1(pass->fix[r * together]);
        UNROLL for (size_t v = 0; v < vecs; v++) acc[r * vecs + v] =
            vec_mul(vec_load(o + r * pass->stride + v * LANES), fix);
    }
    for (size_t k = 0; k < block->count; k += together) {
        const size_t n = block->count - k < together ? block->count - k : together;
        const float *p = pass->p + k * rows;
        for (size_t i = 0; i < n; i++, p++, value += block->bytes, scales += block->each) {
            vec x[FEW_VECS_MAX];
            ask_part(&asked, part, vecs * kv_number_bytes(dtype, LANES), dtype);
            ask_near(value + NEAR_ROWS * block->bytes + kv_number_bytes(dtype, (uint32_t)d),
                     vecs * kv_number_bytes(dtype, LANES));
            part += vecs * kv_number_bytes(dtype, LANES);
            few_values_widen(x, value, scales, scales + to_biases, d, left, vecs, dtype);
            UNROLL for (size_t r = 0; r < rows; r++)
            {
                const vec w = vec_set1(p[r * together]);
                UNROLL for (size_t v = 0; v < vecs; v++) acc[r * vecs + v] =
                    vec_fmadd(w, x[v], acc[r * vecs + v]);
            }
        }
    }
    UNROLL for (size_t r = 0; r < rows; r++) UNROLL for (size_t v = 0; v < vecs; v++)
        vec_store(o + r * pass->stride + v * LANES, acc[r * vecs + v]);
}

INLINE void few_values(const struct few_pass *pass, const struct few_rows *block, size_t head_dim,
                       const size_t rows, const enum kv_dtype dtype)
{
    const size_t vecs = LANES / rows < FEW_VECS_MAX ? LANES / rows : FEW_VECS_MAX;
    size_t d = 0;
    for (; d + vecs * LANES <= head_dim; d += vecs * LANES)
        few_values_at(pass, block, d, vecs * LANES, rows, vecs, dtype);
    for (; d + LANES <= head_dim; d += LANES) few_values_at(pass, block, d, LANES, rows, 1, dtype);
    if (d < head_dim) few_values_at(pass, block, d, head_dim - d, rows, 1, dtype);
}

/* ---- a task ---- */

/* Functions of their own: inlined into one, each would lose registers to what the others keep in theirs. */
struct few_kernel {
    void (*scores)(const struct few_pass *pass, const struct few_rows *block, size_t head_dim);
    void (*values)(const struct few_pass *pass, const struct few_rows *block, size_t head_dim);
    void (*softmax)(const struct few_pass *pass, const struct seen *seen, size_t count);
    vec (*sum)(vec x);
};
#define FEW_SOFTMAX(rows)                                                                                    \
    static __attribute__((noinline)) void few_softmax_##rows(const struct few_pass *pass,                    \
                                                             const struct seen *seen, size_t count)          \
    {                                                                                                        \
        few_softmax(pass, seen, count, rows);                                                                \
    }                                                                                                        \
    static vec few_sum_##rows(vec x)                                                                         \
    {                                                                                                        \
        return few_sum(x, rows);                                                                             \
    }
#define FEW_PRODUCTS(rows, dtype)                                                                            \
    static __attribute__((noinline)) void few_scores_##rows##dtype(const struct few_pass *pass,              \
                                                                   const struct few_rows *block,             \
                                                                   size_t head_dim)                          \
    {                                                                                                        \
        few_scores(pass, block, head_dim, rows, dtype);                                                      \
    }                                                                                                        \
    static __attribute__((noinline)) void few_values_##rows##dtype(const struct few_pass *pass,              \
                                                                   const struct few_rows *block,             \
                                                                   size_t head_dim)                          \
    {                                                                                                        \
        few_values(pass, block, head_dim, rows, dtype);                                                      \
    }
#define FEW_KERNELS(rows)                                                                                    \
    FEW_SOFTMAX(rows)                                                                                        \
    FEW_PRODUCTS(rows, KV_F32)                                                                               \
    FEW_PRODUCTS(rows, KV_F16) FEW_PRODUCTS(rows, KV_BF16) FEW_PRODUCTS(rows, KV_Q8_0)
#define FEW_KERNEL(rows, dtype)                                                                              \
    [dtype] = {few_scores_##rows##dtype, few_values_##rows##dtype, few_softmax_##rows, few_sum_##rows}
#define FEW_ROW_OF(rows)                                                                                     \
    {                                                                                                        \
        FEW_KERNEL(rows, KV_F32), FEW_KERNEL(rows, KV_F16), FEW_KERNEL(rows, KV_BF16),                       \
            FEW_KERNEL(rows, KV_Q8_0)                                                                        \
    }

FEW_KERNELS(1)
FEW_KERNELS(2)
FEW_KERNELS(4)
#if LANES == 16
FEW_KERNELS(8)
#endif

/* By the logarithm of the rows. */
static const struct few_kernel few_kernels[][KV_DTYPE_COUNT] = {
    FEW_ROW_OF(1),
    FEW_ROW_OF(2),
    FEW_ROW_OF(4),
#if LANES == 16
    FEW_ROW_OF(8),
#endif
};

/* The pass that takes a task's rows from `row` on, as many as one takes: how many, and its place in
 * few_kernels. */
struct few_width {
    size_t rows, log;
};
static inline struct few_width few_width(size_t rows, size_t row)
{
    struct few_width width = {1, 0};
    while (2 * width.rows <= rows - row && 2 * width.rows <= FEW_ROWS) width.rows *= 2, width.log++;
    return width;
}

/* Where the block at b lies, or, if the task ends before it, the first of the next task. */
static struct few_place few_find(const struct attention_task *task, uint32_t b, uint32_t end)
{
    if (b >= end && task->next && task->next->tokens) {
        task = task->next;
        b = token_span(task, 0).lo;
        end = token_span(task, task->tokens - 1).hi;
    }
    if (b >= end) return (struct few_place){0};
    const struct kv_layout *kv = task->kv;
    const uint32_t in_page = b & (kv->page_tokens - 1);
    const char *rows = page_rows(task, b);
    return (struct few_place){.keys = rows + in_page * kv_number_bytes(kv->dtype, kv->head_dim),
                              .scales = rows + kv_scales_at(kv) + in_page * scales_of(kv) * sizeof(uint16_t),
                              .count = min_u32(min_u32(KEYS_BLOCK, kv->page_tokens - in_page), end - b)};
}

/* Everything a task works on. A head's rows are `rows` of those of all heads, from head * rows on. */
struct few_scratch {
    float *q, *o;       /* [row][stride], queries as a pass reads them */
    float *p;           /* [row][KEYS_BLOCK], as a pass has them */
    float *m, *s, *fix; /* [row][LANES], of a pass the first */
    float *scales;      /* of one head's keys or values of a block, and after them their biases */
    size_t stride;
};

/* Returns its bytes; base NULL: that alone. */
static size_t few_scratch_lay(struct few_scratch *scratch, float *base, const struct kv_layout *kv,
                              size_t rows)
{
    const size_t stride = round_up(kv->head_dim, LANES);
    float *at = base;
    *scratch = (struct few_scratch){.stride = stride};
    const struct {
        float **place;
        size_t size;
    } part[] = {{&scratch->q, rows * stride},
                {&scratch->o, rows * stride},
                {&scratch->p, rows * KEYS_BLOCK},
                {&scratch->m, rows * LANES},
                {&scratch->s, rows * LANES},
                {&scratch->fix, rows * LANES},
                {&scratch->scales, 2 * KEYS_BLOCK * scales_of(kv)}};
    size_t floats = 0;
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        if (base) *part[i].place = at + floats;
        floats += round_up(part[i].size, 16);
    }
    return floats * sizeof(float);
}

static void few_begin(const struct attention_task *task, const struct few_scratch *scratch, size_t rows)
{
    const size_t head_dim = task->kv->head_dim, stride = scratch->stride, all = rows * task->kv_heads;
    for (uint32_t head = 0; head < task->kv_heads; head++)
        for (size_t first = 0; first < rows; first += few_width(rows, first).rows) {
            const size_t width = few_width(rows, first).rows;
            for (size_t row = first; row < first + width; row++) {
                const float *from = task->q + row / task->group * task->q_stride +
                                    (head * task->group + row % task->group) * head_dim;
                float *to = scratch->q + (head * rows + first) * stride + (row - first) * LANES;
                for (size_t d = 0; d < stride; d += LANES, to += width * LANES)
                    vec_store(to, vec_mul(vec_load_part(from + d, d < head_dim ? head_dim - d : 0),
                                          vec_set1(task->scale)));
            }
        }
    memset(scratch->o, 0, all * stride * sizeof(float));
    memset(scratch->s, 0, all * LANES * sizeof(float));
    for (size_t r = 0; r < all; r++) vec_store(scratch->m + r * LANES, vec_set1(-INFINITY));
}

static void few_scales(float *to, float *biases, const char *from, size_t count)
{
    for (size_t at = 0; at < count; at += LANES) {
        const vec scale = lanes_widen(from, at, count - at, DTYPE_F16);
        vec_store_part(to + at, count - at, scale);
#ifdef CELL_BYTES
        vec_store_part(biases + at, count - at, vec_mul(scale, vec_set1(-CELL_BIAS)));
#endif
    }
    (void)biases;
}

/* The rows to ask for while those of a head are used, the turn-th of the block's keys and then values. */
static void few_ask(const struct attention_task *task, struct few_rows *rows, uint32_t turn,
                    const struct few_place *now, const struct few_place *next)
{
    const struct kv_layout *kv = task->kv;
    const bool here = ++turn < 2 * task->kv_heads;
    const struct few_place *place = here ? now : next;
    const size_t at =
        !here ? 0
              : turn % task->kv_heads * kv_head_bytes(kv) + (turn < task->kv_heads ? 0 : value_distance(kv));
    rows->next_count = place->keys ? place->count : 0;
    if (!rows->next_count) return;
    rows->next = place->keys + at;
    if (rows->next_count < rows->count) {
        ask(rows->next, rows->next_count * rows->bytes);
        rows->next_count = 0;
    } else if (rows->next_count > rows->count) {
        ask(rows->next + rows->count * rows->bytes, (rows->next_count - rows->count) * rows->bytes);
        rows->next_count = rows->count;
    }
    if (rows->each) ask(place->scales + at, place->count * rows->each * sizeof(uint16_t));
}

/* One block: all heads' keys as they lie, then all heads' values. */
static void few_take(const struct attention_task *task, const struct few_scratch *scratch, size_t rows,
                     uint32_t b, const struct few_place *now, const struct few_place *next)
{
    const struct kv_layout *kv = task->kv;
    const enum kv_dtype dtype = (enum kv_dtype)kv->dtype;
    const size_t stride = scratch->stride;
    struct few_rows block = {.count = now->count,
                             .bytes = kv_number_bytes(dtype, kv->head_dim),
                             .each = scales_of(kv),
                             .scales = scratch->scales,
                             .biases = scratch->scales + KEYS_BLOCK * scales_of(kv)};
    struct seen seen[FEW_ROWS_MAX];
    for (size_t r = 0; r < rows; r++) seen[r] = row_seen(task, r, b, now->count);
    for (uint32_t turn = 0; turn < 2 * task->kv_heads; turn++) {
        const bool values = turn >= task->kv_heads;
        const uint32_t head = turn % task->kv_heads;
        const size_t at = head * kv_head_bytes(kv) + (values ? value_distance(kv) : 0);
        block.at = now->keys + at;
        if (block.each)
            few_scales(scratch->scales, scratch->scales + KEYS_BLOCK * block.each, now->scales + at,
                       now->count * block.each);
        few_ask(task, &block, turn, now, next);
        for (size_t r = 0; r < rows; r += few_width(rows, r).rows) {
            const size_t row = head * rows + r;
            const struct few_pass pass = {.q = scratch->q + row * stride,
                                          .o = scratch->o + row * stride,
                                          .p = scratch->p + row * KEYS_BLOCK,
                                          .m = scratch->m + row * LANES,
                                          .s = scratch->s + row * LANES,
                                          .fix = scratch->fix + row * LANES,
                                          .stride = stride};
            const struct few_kernel *kernel = &few_kernels[few_width(rows, r).log][dtype];
            if (values) {
                kernel->values(&pass, &block, kv->head_dim);
            } else {
                kernel->scores(&pass, &block, kv->head_dim);
                kernel->softmax(&pass, seen + r, now->count);
            }
            block.next_count = 0; /* has been asked for */
        }
    }
}

static void attend_few(const struct attention_task *task)
{
    const size_t rows = (size_t)task->tokens * task->group;
    struct few_scratch scratch;
    few_scratch_lay(&scratch, task->scratch, task->kv, rows * task->kv_heads);
    few_begin(task, &scratch, rows);
    const uint32_t lo = token_span(task, 0).lo, hi = token_span(task, task->tokens - 1).hi;
    struct few_place now = {0}, next;
    if (lo < hi) now = few_find(task, lo, hi);
    for (uint32_t b = lo; b < hi; b += now.count, now = next) {
        next = few_find(task, b + now.count, hi);
        few_take(task, &scratch, rows, b, &now, &next);
        if (b + now.count >= hi) break;
    }
    for (uint32_t head = 0; head < task->kv_heads; head++)
        for (size_t r = 0, width; r < rows; r += width) {
            const size_t row = head * rows + r;
            const struct few_width pass = few_width(rows, r);
            float *s = scratch.s + row * LANES, *m = scratch.m + row * LANES;
            width = pass.rows;
            vec_store(s, few_kernels[pass.log][0].sum(vec_load(s)));
            for (size_t i = 0; i < width; i++)
                finish_row(task, head, r + i, m[i * LANES / width], s[i * LANES / width],
                           scratch.o + (row + i) * scratch.stride);
        }
}
