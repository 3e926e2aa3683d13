/* Draws a token from logits; the exact meaning of every step stands in common/sampling.h.
 *
 * Called by the worker of the last stage once per sampled row. Owns nothing: works in the caller's scratch,
 * allocates nothing. The whole vocabulary is read once or twice, four logits at a time, in blocks of 64; each
 * block leaves its largest logit (and its weight), and everything after that looks only into blocks that can
 * matter: top-k   the k-th largest block maximum is a lower bound of the k-th largest logit; top-p   tokens
 * lighter than (1 - p) * sum / vocab cannot, all together, weigh more than what top-p cuts off; draw    the
 * block is found by the blocks' weights. Candidates are gathered in order of ids; the cut among them is found
 * by buckets and quickselect, never a sort. */
#include "common/sampling.h"

#include <immintrin.h>
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#define BLOCK      64 /* logits */
#define BUCKETS    1024
#define BUCKETS_AT 512 /* candidates from which a pass over buckets pays */
#define WEIGHT_ONE ((uint64_t)1 << 40)

/* A token that may be drawn. `key` grows in falling order: inverted ordered bits of the logit, then the id.
 */
struct candidate {
    uint64_t key;
    uint64_t weight;
};

struct bucket {
    uint64_t count, weight;
};

struct workspace {
    float *adjusted;             /* [vocab] */
    uint32_t *seen;              /* [vocab]: only entries of tokens in the history are ever valid */
    float *block_max;            /* [blocks] */
    float *block_copy;           /* [blocks]: reordered by selection */
    uint64_t *block_weight;      /* [blocks] */
    struct bucket *bucket;       /* [BUCKETS] */
    struct candidate *candidate; /* [vocab + 4], in order of ids */
    struct candidate *select;    /* [vocab], reordered by selection */
};

/* One row of logits as the passes see it. */
struct row {
    const float *x;
    uint32_t vocab, blocks;
    float top;      /* largest finite logit */
    float inv_temp; /* 1 / temperature, at most FLT_MAX */
};

static size_t lay_out(struct workspace *w, char *base, uint32_t vocab)
{
    size_t blocks = ((size_t)vocab + BLOCK - 1) / BLOCK, at = 0;
    void *place[8];
    const size_t bytes[8] = {vocab * sizeof(*w->adjusted),
                             vocab * sizeof(*w->seen),
                             blocks * sizeof(*w->block_max),
                             blocks * sizeof(*w->block_copy),
                             blocks * sizeof(*w->block_weight),
                             BUCKETS * sizeof(*w->bucket),
                             ((size_t)vocab + 4) * sizeof(*w->candidate),
                             vocab * sizeof(*w->select)};
    for (size_t i = 0; i < 8; i++) {
        place[i] = base == NULL ? NULL : base + at;
        at += (bytes[i] + 63) / 64 * 64;
    }
    *w = (struct workspace){place[0], place[1], place[2], place[3], place[4], place[5], place[6], place[7]};
    return at;
}

size_t sampling_scratch_bytes(uint32_t vocab)
{
    struct workspace unused;
    return lay_out(&unused, NULL, vocab);
}

/* ---- four logits at a time --------------------------------------------------------------------- */

static inline __m128 select4(__m128 mask, __m128 yes, __m128 no)
{
    return _mm_or_ps(_mm_and_ps(mask, yes), _mm_andnot_ps(mask, no));
}

/* Non-finite logits become -inf. */
static inline __m128 load_finite(const float *x)
{
    __m128 v = _mm_loadu_ps(x);
    __m128i size = _mm_and_si128(_mm_castps_si128(v), _mm_set1_epi32(0x7fffffff));
    __m128 finite = _mm_castsi128_ps(_mm_cmpgt_epi32(_mm_set1_epi32(0x7f800000), size));
    return select4(finite, v, _mm_set1_ps(-INFINITY));
}

/* exp((x - top) * inv_temp), from 1 down to about 1e-38 (which weighs 0) for everything far below. x = n ln 2
 * + r, |r| <= ln 2 / 2; adding and subtracting 1.5 * 2^23 rounds to the nearest whole number. */
static inline __m128 exp_below(__m128 x, const struct row *row)
{
    const __m128 magic = _mm_set1_ps(12582912.0f);
    __m128 z = _mm_mul_ps(_mm_sub_ps(x, _mm_set1_ps(row->top)), _mm_set1_ps(row->inv_temp));
    z = _mm_max_ps(z, _mm_set1_ps(-87.0f));
    __m128 shifted = _mm_add_ps(_mm_mul_ps(z, _mm_set1_ps(1.44269504f)), magic);
    __m128 n = _mm_sub_ps(shifted, magic);
    __m128 r = _mm_sub_ps(z, _mm_mul_ps(n, _mm_set1_ps(0.693359375f)));
    r = _mm_add_ps(r, _mm_mul_ps(n, _mm_set1_ps(2.12194440e-4f)));
    __m128 p = _mm_set1_ps(1.9875691500e-4f);
    p = _mm_add_ps(_mm_mul_ps(p, r), _mm_set1_ps(1.3981999507e-3f));
    p = _mm_add_ps(_mm_mul_ps(p, r), _mm_set1_ps(8.3334519073e-3f));
    p = _mm_add_ps(_mm_mul_ps(p, r), _mm_set1_ps(4.1665795894e-2f));
    p = _mm_add_ps(_mm_mul_ps(p, r), _mm_set1_ps(1.6666665459e-1f));
    p = _mm_add_ps(_mm_mul_ps(p, r), _mm_set1_ps(5.0000001201e-1f));
    p = _mm_add_ps(_mm_mul_ps(p, _mm_mul_ps(r, r)), _mm_add_ps(r, _mm_set1_ps(1.0f)));
    __m128i exponent =
        _mm_slli_epi32(_mm_castps_si128(shifted), 23); /* n in the exponent's place, modulo 2^32 */
    __m128 e = _mm_castsi128_ps(_mm_add_epi32(_mm_castps_si128(p), exponent));
    return _mm_min_ps(e, _mm_set1_ps(1.0f));
}

/* floor(e * 2^40) = upper * 2^20 + lower, each part a 32-bit lane. */
static inline void split_weight(__m128 e, __m128i *upper, __m128i *lower)
{
    const __m128 scale = _mm_set1_ps(1048576.0f);
    __m128 scaled = _mm_mul_ps(e, scale);
    *upper = _mm_cvttps_epi32(scaled);
    *lower = _mm_cvttps_epi32(_mm_mul_ps(_mm_sub_ps(scaled, _mm_cvtepi32_ps(*upper)), scale));
}

static inline uint64_t sum_lanes(__m128i x)
{
    uint32_t lane[4];
    _mm_storeu_si128((__m128i *)(void *)lane, x);
    return (uint64_t)lane[0] + lane[1] + lane[2] + lane[3];
}

/* The BLOCK logits of block b; those past the end of the vocabulary read as -inf through `tail`. */
static inline const float *block_at(const struct row *row, uint32_t b, float tail[BLOCK])
{
    uint32_t first = b * BLOCK;
    if (row->vocab - first >= BLOCK) return row->x + first;
    for (uint32_t i = 0; i < BLOCK; i++) tail[i] = first + i < row->vocab ? row->x[first + i] : -INFINITY;
    return tail;
}

static float max_lanes(__m128 x)
{
    float lane[4], top = -INFINITY;
    _mm_storeu_ps(lane, x);
    for (int i = 0; i < 4; i++) top = lane[i] > top ? lane[i] : top;
    return top;
}

/* Fills block_max and row->top; -inf if no logit is finite. */
static void find_maxima(struct row *row, float *block_max)
{
    float tail[BLOCK];
    __m128 top = _mm_set1_ps(-INFINITY);
    for (uint32_t b = 0; b < row->blocks; b++) {
        const float *x = block_at(row, b, tail);
        __m128 a = load_finite(x), c = load_finite(x + 4);
        for (int i = 8; i < BLOCK; i += 8) {
            a = _mm_max_ps(a, load_finite(x + i));
            c = _mm_max_ps(c, load_finite(x + i + 4));
        }
        a = _mm_max_ps(a, c);
        a = _mm_max_ps(a, _mm_movehl_ps(a, a));
        a = _mm_max_ss(a, _mm_shuffle_ps(a, a, 1));
        block_max[b] = _mm_cvtss_f32(a);
        top = _mm_max_ss(top, a);
    }
    row->top = max_lanes(top);
}

/* Sum of one block's weights. Two versions with the same bits: AVX2 halves the time of the longest pass; its
 * lanes do the same multiplications and additions in the same order (no FMA), so nothing depends on which one
 * ran. */
static uint64_t block_sum_sse2(const float *x, const struct row *row)
{
    __m128i upper = _mm_setzero_si128(), lower = _mm_setzero_si128(), u, l;
    for (int i = 0; i < BLOCK; i += 4) {
        split_weight(exp_below(load_finite(x + i), row), &u, &l);
        upper = _mm_add_epi32(upper, u);
        lower = _mm_add_epi32(lower, l);
    }
    return (sum_lanes(upper) << 20) + sum_lanes(lower);
}

__attribute__((target("avx2"))) static uint64_t block_sum_avx2(const float *x, const struct row *row)
{
    const __m256 magic = _mm256_set1_ps(12582912.0f), scale = _mm256_set1_ps(1048576.0f),
                 one = _mm256_set1_ps(1.0f);
    const __m256 top = _mm256_set1_ps(row->top), inv_temp = _mm256_set1_ps(row->inv_temp);
    __m256i upper = _mm256_setzero_si256(), lower = _mm256_setzero_si256();
    for (int i = 0; i < BLOCK; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i);
        __m256i size = _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fffffff));
        __m256i finite = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x7f800000), size);
        v = _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), v, _mm256_castsi256_ps(finite));
        __m256 z = _mm256_max_ps(_mm256_mul_ps(_mm256_sub_ps(v, top), inv_temp), _mm256_set1_ps(-87.0f));
        __m256 shifted = _mm256_add_ps(_mm256_mul_ps(z, _mm256_set1_ps(1.44269504f)), magic);
        __m256 n = _mm256_sub_ps(shifted, magic);
        __m256 r = _mm256_sub_ps(z, _mm256_mul_ps(n, _mm256_set1_ps(0.693359375f)));
        r = _mm256_add_ps(r, _mm256_mul_ps(n, _mm256_set1_ps(2.12194440e-4f)));
        __m256 p = _mm256_set1_ps(1.9875691500e-4f);
        p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(1.3981999507e-3f));
        p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(8.3334519073e-3f));
        p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(4.1665795894e-2f));
        p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(1.6666665459e-1f));
        p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(5.0000001201e-1f));
        p = _mm256_add_ps(_mm256_mul_ps(p, _mm256_mul_ps(r, r)), _mm256_add_ps(r, one));
        __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
        __m256 e = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
        __m256 scaled = _mm256_mul_ps(_mm256_min_ps(e, one), scale);
        __m256i u = _mm256_cvttps_epi32(scaled);
        upper = _mm256_add_epi32(upper, u);
        __m256 rest = _mm256_mul_ps(_mm256_sub_ps(scaled, _mm256_cvtepi32_ps(u)), scale);
        lower = _mm256_add_epi32(lower, _mm256_cvttps_epi32(rest));
    }
    __m128i u = _mm_add_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1));
    __m128i l = _mm_add_epi32(_mm256_castsi256_si128(lower), _mm256_extracti128_si256(lower, 1));
    return (sum_lanes(u) << 20) + sum_lanes(l);
}

/* Sum of all weights; each block's goes to block_weight unless that is NULL. */
static uint64_t find_weights(const struct row *row, const float *block_max, uint64_t *block_weight)
{
    float tail[BLOCK];
    uint64_t sum = 0;
    bool avx2 = __builtin_cpu_supports("avx2") != 0;
    for (uint32_t b = 0; b < row->blocks; b++) {
        uint64_t weight = 0;
        if ((block_max[b] - row->top) * row->inv_temp > -28.0f) { /* exp(-28) < 2^-40 */
            const float *x = block_at(row, b, tail);
            weight = avx2 ? block_sum_avx2(x, row) : block_sum_sse2(x, row);
        }
        if (block_weight != NULL) block_weight[b] = weight;
        sum += weight;
    }
    return sum;
}

static void block_weights(const float *x, const struct row *row, uint64_t weight[BLOCK])
{
    for (int i = 0; i < BLOCK; i += 4) {
        uint32_t upper[4], lower[4];
        __m128i u, l;
        split_weight(exp_below(load_finite(x + i), row), &u, &l);
        _mm_storeu_si128((__m128i *)(void *)upper, u);
        _mm_storeu_si128((__m128i *)(void *)lower, l);
        for (int j = 0; j < 4; j++) weight[i + j] = ((uint64_t)upper[j] << 20) + lower[j];
    }
}

/* ---- selection --------------------------------------------------------------------------------- */

static uint64_t falling_key(float x, uint32_t id)
{
    uint32_t bits;
    x += 0.0f; /* -0 and +0 are a tie */
    memcpy(&bits, &x, sizeof(bits));
    bits ^= (bits >> 31) != 0 ? 0xffffffffu : 0x80000000u;
    return (uint64_t)~bits << 32 | id;
}
static uint32_t key_id(uint64_t key)
{
    return (uint32_t)key;
}
static float key_logit(uint64_t key)
{
    uint32_t bits = ~(uint32_t)(key >> 32);
    bits ^= (bits >> 31) != 0 ? 0x80000000u : 0xffffffffu;
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* The k-th largest of n floats (k from 1), which are reordered. */
static float kth_largest(float *x, size_t n, size_t k)
{
    size_t lo = 0, hi = n;
    for (;;) {
        float a = x[lo], b = x[lo + (hi - lo) / 2], c = x[hi - 1];
        float pivot = a > b ? (b > c ? b : a > c ? c : a) : (a > c ? a : b > c ? c : b);
        size_t above = lo, below = hi, i = lo; /* [lo, above) > pivot, [below, hi) < pivot, equals between */
        while (i < below) {
            float v = x[i];
            if (v > pivot) {
                x[i++] = x[above];
                x[above++] = v;
            } else if (v < pivot) {
                x[i] = x[--below];
                x[below] = v;
            } else {
                i++;
            }
        }
        if (k <= above - lo) {
            hi = above;
        } else if (k <= below - lo) {
            return pivot;
        } else {
            k -= below - lo;
            lo = below;
        }
    }
}

/* The key at which the running total over c in falling order first reaches `target` (at least 1 and at most
 * the whole): of weights, or of the number of candidates. c is reordered; keys are distinct. */
static uint64_t cut_by_quickselect(struct candidate *c, size_t n, uint64_t target, bool by_weight)
{
    size_t lo = 0, hi = n;
    while (hi - lo > 1) {
        uint64_t a = c[lo].key, b = c[lo + (hi - lo) / 2].key, d = c[hi - 1].key;
        uint64_t pivot = a < b ? (b < d ? b : a < d ? d : a) : (a < d ? a : b < d ? d : b);
        size_t end = lo; /* [lo, end): keys <= pivot */
        uint64_t total = 0;
        size_t pivot_at = lo;
        for (size_t i = lo; i < hi; i++) {
            if (c[i].key > pivot) continue;
            struct candidate swap = c[i];
            c[i] = c[end];
            c[end] = swap;
            if (swap.key == pivot) pivot_at = end;
            total += by_weight ? swap.weight : 1;
            end++;
        }
        struct candidate last = c[pivot_at];
        c[pivot_at] = c[end - 1];
        c[end - 1] = last;
        uint64_t before = total - (by_weight ? last.weight : 1);
        if (target > total) {
            target -= total;
            lo = end;
        } else if (target > before) {
            return pivot;
        } else {
            hi = end - 1;
        }
    }
    return c[lo].key;
}

static uint32_t bucket_of(float x, const struct row *row)
{
    float below = (row->top - x) * row->inv_temp * ((BUCKETS - 1) / 28.0f);
    return below < BUCKETS - 1 ? (uint32_t)below : BUCKETS - 1;
}

/* cut_by_quickselect over the n candidates of `w`, with one pass over buckets first when there are many:
 * buckets follow falling order, so only the one in which the target falls is searched. */
static uint64_t find_cut(const struct workspace *w, const struct row *row, size_t n, uint64_t target,
                         bool by_weight)
{
    size_t selected = n;
    if (n < BUCKETS_AT) {
        memcpy(w->select, w->candidate, n * sizeof(*w->select));
    } else {
        memset(w->bucket, 0, BUCKETS * sizeof(*w->bucket));
        for (size_t i = 0; i < n; i++) {
            struct bucket *bucket = &w->bucket[bucket_of(key_logit(w->candidate[i].key), row)];
            bucket->count++;
            bucket->weight += w->candidate[i].weight;
        }
        uint32_t at = 0;
        for (;; at++) {
            uint64_t total = by_weight ? w->bucket[at].weight : w->bucket[at].count;
            if (target <= total) break;
            target -= total;
        }
        selected = 0;
        for (size_t i = 0; i < n; i++) {
            w->select[selected] = w->candidate[i];
            selected += bucket_of(key_logit(w->candidate[i].key), row) == at;
        }
    }
    return cut_by_quickselect(w->select, selected, target, by_weight);
}

/* The tokens with logit >= floor_logit, a prefix of the falling order, as candidates in order of ids. */
static size_t gather(const struct workspace *w, const struct row *row, float floor_logit)
{
    const __m128 floor4 = _mm_max_ps(_mm_set1_ps(floor_logit), _mm_set1_ps(-FLT_MAX));
    float tail[BLOCK];
    size_t n = 0;
    for (uint32_t b = 0; b < row->blocks; b++) {
        if (!(w->block_max[b] >= floor_logit) || w->block_max[b] == -INFINITY) continue;
        const float *x = block_at(row, b, tail);
        for (uint32_t i = 0; i < BLOCK; i += 4) {
            int mask = _mm_movemask_ps(_mm_cmpge_ps(load_finite(x + i), floor4));
            if (mask == 0) continue;
            /* Written always (hence the slack of 4), kept by moving on: which ones stay is a coin's toss to a
             * branch predictor. */
            for (uint32_t j = 0; j < 4; j++, mask >>= 1) {
                w->candidate[n].key = falling_key(x[i + j], b * BLOCK + i + j);
                n += (size_t)(mask & 1);
            }
        }
    }
    for (size_t i = 0; i < n; i += 4) {
        float x[4] = {row->top, row->top, row->top, row->top};
        uint32_t upper[4], lower[4];
        __m128i u, l;
        size_t count = n - i < 4 ? n - i : 4;
        for (size_t j = 0; j < count; j++) x[j] = key_logit(w->candidate[i + j].key);
        split_weight(exp_below(_mm_loadu_ps(x), row), &u, &l);
        _mm_storeu_si128((__m128i *)(void *)upper, u);
        _mm_storeu_si128((__m128i *)(void *)lower, l);
        for (size_t j = 0; j < count; j++) w->candidate[i + j].weight = ((uint64_t)upper[j] << 20) + lower[j];
    }
    return n;
}

/* A logit a little below the one at which a token is `weight` times as likely as the best. */
static float logit_of(const struct row *row, double weight)
{
    double z = log(weight) - 1e-4; /* more than exp and the subtraction can be off by */
    return nextafterf((float)((double)row->top + z / (double)row->inv_temp), -INFINITY);
}

static size_t keep_up_to(struct candidate *c, size_t n, uint64_t cut)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        c[kept] = c[i];
        kept += c[i].key <= cut;
    }
    return kept;
}

static uint64_t sum_weights(const struct candidate *c, size_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += c[i].weight;
    return sum;
}

/* Gathers at least the first k of the row in falling order (fewer only if fewer are finite). */
static size_t gather_first(const struct workspace *w, const struct row *row, uint32_t k)
{
    float floor_logit = -INFINITY;
    if (k <= row->blocks) {
        memcpy(w->block_copy, w->block_max, row->blocks * sizeof(*w->block_copy));
        floor_logit = kth_largest(w->block_copy, row->blocks, k);
    }
    size_t n = gather(w, row, floor_logit);
    if (n > k) n = keep_up_to(w->candidate, n, find_cut(w, row, n, k, false));
    return n;
}

/* ---- the steps --------------------------------------------------------------------------------- */

/* Philox4x32-10 (Salmon et al. 2011): the first 53 bits of the block for (seed, index). */
static uint64_t random_53(uint64_t seed, uint64_t index)
{
    uint32_t c[4] = {(uint32_t)index, (uint32_t)(index >> 32), 0, 0};
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++, k0 += 0x9e3779b9u, k1 += 0xbb67ae85u) {
        uint64_t a = (uint64_t)0xd2511f53u * c[0], b = (uint64_t)0xcd9e8d57u * c[2];
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k1,
                            (uint32_t)a};
        memcpy(c, next, sizeof(c));
    }
    return ((uint64_t)c[0] << 32 | c[1]) >> 11;
}

static uint64_t pick(uint64_t sum, uint64_t seed, uint64_t index)
{
    return (uint64_t)((unsigned __int128)random_53(seed, index) * sum >> 53);
}

static float cut_to_finite(double x)
{
    return x > (double)FLT_MAX ? FLT_MAX : x < -(double)FLT_MAX ? -FLT_MAX : (float)x;
}

static bool changes_logits(const struct sampling_params *p)
{
    return p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0 ||
           p->bias_count != 0;
}

#define SEEN_DONE UINT32_MAX

/* Penalties and bias, into w->adjusted. Each token's changes are computed in double and rounded once per
 * step. */
static void adjust_logits(const struct sampling_params *p, const float *logits, uint32_t vocab,
                          const uint32_t *history, uint32_t history_count, uint32_t prompt_count,
                          const struct workspace *w)
{
    float *x = w->adjusted;
    memcpy(x, logits, vocab * sizeof(*x));
    if (p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0) {
        for (uint32_t i = 0; i < history_count; i++)
            if (history[i] < vocab) w->seen[history[i]] = 0;
        for (uint32_t i = prompt_count; i < history_count; i++)
            if (history[i] < vocab) w->seen[history[i]]++;
        for (uint32_t i = 0; i < history_count; i++) {
            uint32_t id = history[i];
            if (id >= vocab || w->seen[id] == SEEN_DONE) continue;
            uint32_t times = w->seen[id];
            w->seen[id] = SEEN_DONE;
            if (!isfinite(x[id])) continue;
            double penalty = (double)p->repetition_penalty;
            x[id] = cut_to_finite(x[id] > 0 ? (double)x[id] / penalty : (double)x[id] * penalty);
            if (times == 0) continue;
            double off = (double)p->presence_penalty + (double)p->frequency_penalty * times;
            x[id] = cut_to_finite((double)x[id] - off);
        }
    }
    for (uint32_t i = 0; i < p->bias_count && i < SAMPLING_BIAS_MAX; i++) {
        uint32_t id = p->bias[i].token;
        if (id < vocab && isfinite(x[id])) x[id] = cut_to_finite((double)x[id] + (double)p->bias[i].bias);
    }
}

static uint32_t argmax(const struct row *row, const float *block_max)
{
    uint32_t b = 0;
    while (block_max[b] != row->top) b++;
    uint32_t id = b * BLOCK;
    while (row->x[id] != row->top) id++;
    return id;
}

/* No top-k, no top-p, no min-p: find the block, then the token in it. */
static uint32_t draw_from_all(const struct workspace *w, const struct row *row, uint64_t sum,
                              const struct sampling_params *p, uint32_t index)
{
    float tail[BLOCK];
    uint64_t weight[BLOCK], at = pick(sum, p->seed, index);
    uint32_t b = 0, i = 0;
    for (; at >= w->block_weight[b]; b++) at -= w->block_weight[b];
    block_weights(block_at(row, b, tail), row, weight);
    for (; at >= weight[i]; i++) at -= weight[i];
    return b * BLOCK + i;
}

static uint64_t top_p_target(uint64_t sum, double top_p)
{
    uint64_t target = (uint64_t)ceil(top_p * (double)sum);
    return target < 1 ? 1 : target < sum ? target : sum;
}

/* A prefix of the falling order that holds top-p's. Models are mostly sure of themselves, so two guesses come
 * first; what is lighter than the last floor cannot, all together, weigh more than top-p cuts off. */
static size_t gather_prefix(const struct workspace *w, const struct row *row, uint64_t sum, double top_p)
{
    uint64_t target = top_p_target(sum, top_p);
    double light = (1 - top_p) * (double)sum / (double)WEIGHT_ONE / row->vocab;
    for (double guess = 0.03; guess > 0.0005 && guess > 2 * light; guess /= 30) {
        size_t n = gather(w, row, logit_of(row, guess));
        if (sum_weights(w->candidate, n) >= target) return n;
    }
    if (target == sum) return gather(w, row, -INFINITY);
    return gather(w, row, logit_of(row, light < 1 ? light : 1));
}

static uint32_t draw_token(const struct workspace *w, const struct row *row, const struct sampling_params *p,
                           uint32_t index)
{
    bool top_k = p->top_k > 0 && p->top_k < row->vocab, top_p = p->top_p < 1;
    uint64_t floor_weight = (uint64_t)((double)p->min_p * (double)WEIGHT_ONE), sum;
    size_t n;
    if (top_k) {
        n = gather_first(w, row, p->top_k);
        sum = sum_weights(w->candidate, n);
    } else {
        sum = find_weights(row, w->block_max, w->block_weight);
        if (!top_p && floor_weight == 0) return draw_from_all(w, row, sum, p, index);
        n = top_p ? gather_prefix(w, row, sum, (double)p->top_p)
                  : gather(w, row, logit_of(row, (double)p->min_p));
    }
    if (top_p) {
        uint64_t target = top_p_target(sum, (double)p->top_p);
        if (target < sum) n = keep_up_to(w->candidate, n, find_cut(w, row, n, target, true));
    }
    if (floor_weight > 0) {
        size_t kept = 0;
        for (size_t i = 0; i < n; i++)
            if (w->candidate[i].weight >= floor_weight) w->candidate[kept++] = w->candidate[i];
        n = kept;
    }
    uint64_t at = pick(sum_weights(w->candidate, n), p->seed, index);
    size_t i = 0;
    for (; at >= w->candidate[i].weight; i++) at -= w->candidate[i].weight;
    return key_id(w->candidate[i].key);
}

/* log-softmax of the model's own logits, whose maxima are in w->block_max. */
static void report_logprobs(const struct workspace *w, const struct row *raw, uint32_t wanted,
                            struct sampling_result *result)
{
    double sum = (double)find_weights(raw, w->block_max, NULL) / (double)WEIGHT_ONE;
    double log_sum = (double)raw->top + log(sum);
    size_t n = gather_first(w, raw, wanted);
    result->logprob = (float)((double)raw->x[result->token] - log_sum);
    for (size_t i = 1; i < n; i++) { /* insertion: at most SAMPLING_LOGPROBS_MAX */
        struct candidate c = w->candidate[i];
        size_t j = i;
        for (; j > 0 && w->candidate[j - 1].key > c.key; j--) w->candidate[j] = w->candidate[j - 1];
        w->candidate[j] = c;
    }
    result->top_count = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        uint32_t id = key_id(w->candidate[i].key);
        result->top[i].token = id;
        result->top[i].logprob = (float)((double)raw->x[id] - log_sum);
    }
}

int sampling_draw(const struct sampling_params *params, const float *logits, uint32_t vocab,
                  const uint32_t *history, uint32_t history_count, uint32_t prompt_count, void *scratch,
                  struct sampling_result *result)
{
    struct workspace w;
    memset(result, 0, sizeof(*result));
    lay_out(&w, scratch, vocab);
    struct row raw = {logits, vocab, (uint32_t)(((uint64_t)vocab + BLOCK - 1) / BLOCK), -INFINITY, 1};
    struct row row = raw;
    bool changed = changes_logits(params);
    if (changed) {
        adjust_logits(params, logits, vocab, history, history_count, prompt_count, &w);
        row.x = w.adjusted;
    }
    find_maxima(&row, w.block_max);
    if (row.top == -INFINITY) return -1;
    if (params->temperature == 0) {
        result->token = argmax(&row, w.block_max);
    } else {
        float inverse = 1 / params->temperature;
        row.inv_temp = inverse < FLT_MAX ? inverse : FLT_MAX;
        result->token = draw_token(&w, &row, params, history_count);
    }
    if (params->logprobs > 0) {
        uint32_t wanted = params->logprobs < SAMPLING_LOGPROBS_MAX ? params->logprobs : SAMPLING_LOGPROBS_MAX;
        raw.top = row.top;
        if (changed) find_maxima(&raw, w.block_max);
        report_logprobs(&w, &raw, wanted < vocab ? wanted : vocab, result);
    }
    return 0;
}
