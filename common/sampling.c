/* Draws a token from logits; the exact meaning of every step stands in common/sampling.h.
 *
 * Called by the worker of the last stage once per sampled row. Owns nothing: works in the caller's scratch,
 * allocates nothing. The passes over the whole vocabulary are common/sampling_pass.c; each block of 64 logits
 * leaves its largest (and its weight), and everything after that looks only into blocks that can matter:
 *
 * - top-k: the k-th largest block maximum is a lower bound of the k-th largest logit;
 * - top-p: tokens lighter than (1 - p) * sum / vocab cannot, all together, weigh more than what is cut
 *   off, and mostly a far higher floor will do;
 * - draw: the block is found by the blocks' weights.
 *
 * Candidates stand in order of ids; the cut among them is found by buckets and quickselect, never a sort. */
#include "common/sampling.h"
#include "common/sampling_pass.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#define BUCKETS    1024
#define BUCKETS_AT 512 /* candidates from which a pass over buckets pays */

struct bucket {
    uint64_t count, weight;
};

struct workspace {
    float *adjusted;                      /* [vocab] */
    uint32_t *seen;                       /* [vocab]: only entries of tokens in the history are ever valid */
    float *block_max;                     /* [blocks] */
    float *block_copy;                    /* [blocks]: reordered by selection */
    uint64_t *block_weight;               /* [blocks] */
    struct bucket *bucket;                /* [BUCKETS] */
    struct sampling_candidate *candidate; /* [vocab + 4], in order of ids */
    struct sampling_candidate *select;    /* [vocab], reordered by selection */
};

static size_t lay_out(struct workspace *w, char *base, uint32_t vocab)
{
    size_t blocks = ((size_t)vocab + SAMPLING_BLOCK - 1) / SAMPLING_BLOCK, at = 0;
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

/* ---- selection --------------------------------------------------------------------------------- */

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
static uint64_t cut_by_quickselect(struct sampling_candidate *c, size_t n, uint64_t target, bool by_weight)
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
            struct sampling_candidate swap = c[i];
            c[i] = c[end];
            c[end] = swap;
            if (swap.key == pivot) pivot_at = end;
            total += by_weight ? swap.weight : 1;
            end++;
        }
        struct sampling_candidate last = c[pivot_at];
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

static uint32_t bucket_of(float x, const struct sampling_row *row)
{
    float below = (row->top - x) * row->inv_temp * ((BUCKETS - 1) / 28.0f);
    return below < BUCKETS - 1 ? (uint32_t)below : BUCKETS - 1;
}

/* cut_by_quickselect over the n candidates of `w`, with one pass over buckets first when there are many:
 * buckets follow falling order, so only the one in which the target falls is searched. */
static uint64_t find_cut(const struct workspace *w, const struct sampling_row *row, size_t n, uint64_t target,
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

static size_t keep_up_to(struct sampling_candidate *c, size_t n, uint64_t cut)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        c[kept] = c[i];
        kept += c[i].key <= cut;
    }
    return kept;
}

static uint64_t sum_weights(const struct sampling_candidate *c, size_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += c[i].weight;
    return sum;
}

/* Gathers at least the first k of the row in falling order (fewer only if fewer are finite). */
static size_t gather_first(const struct workspace *w, const struct sampling_row *row, uint32_t k)
{
    float floor_logit = -INFINITY;
    if (k <= row->blocks) {
        memcpy(w->block_copy, w->block_max, row->blocks * sizeof(*w->block_copy));
        floor_logit = kth_largest(w->block_copy, row->blocks, k);
    }
    size_t n = sampling_gather(row, w->block_max, floor_logit, w->candidate);
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

static uint32_t argmax(const struct sampling_row *row, const float *block_max)
{
    uint32_t b = 0;
    while (block_max[b] != row->top) b++;
    uint32_t id = b * SAMPLING_BLOCK;
    while (row->x[id] != row->top) id++;
    return id;
}

/* No top-k, no top-p, no min-p: find the block, then the token in it. */
static uint32_t draw_from_all(const struct workspace *w, const struct sampling_row *row, uint64_t sum,
                              const struct sampling_params *p, uint32_t index)
{
    uint64_t weight[SAMPLING_BLOCK], at = pick(sum, p->seed, index);
    uint32_t b = 0, i = 0;
    for (; at >= w->block_weight[b]; b++) at -= w->block_weight[b];
    sampling_block_weights(row, b, weight);
    for (; at >= weight[i]; i++) at -= weight[i];
    return b * SAMPLING_BLOCK + i;
}

static uint64_t top_p_target(uint64_t sum, double top_p)
{
    uint64_t target = (uint64_t)ceil(top_p * (double)sum);
    return target < 1 ? 1 : target < sum ? target : sum;
}

/* A prefix of the falling order that holds top-p's. Models are mostly sure of themselves, so two guesses come
 * first; what is lighter than the last floor cannot, all together, weigh more than top-p cuts off. */
static size_t gather_prefix(const struct workspace *w, const struct sampling_row *row, uint64_t sum,
                            double top_p)
{
    uint64_t target = top_p_target(sum, top_p);
    double light = (1 - top_p) * (double)sum / (double)SAMPLING_WEIGHT_ONE / row->vocab;
    for (double guess = 0.03; guess > 0.0005 && guess > 2 * light; guess /= 30) {
        size_t n = sampling_gather(row, w->block_max, sampling_logit_of(row, guess), w->candidate);
        if (sum_weights(w->candidate, n) >= target) return n;
    }
    if (target == sum) return sampling_gather(row, w->block_max, -INFINITY, w->candidate);
    return sampling_gather(row, w->block_max, sampling_logit_of(row, light < 1 ? light : 1), w->candidate);
}

static uint32_t draw_token(const struct workspace *w, const struct sampling_row *row,
                           const struct sampling_params *p, uint32_t index)
{
    bool top_k = p->top_k > 0 && p->top_k < row->vocab, top_p = p->top_p < 1;
    uint64_t floor_weight = (uint64_t)((double)p->min_p * (double)SAMPLING_WEIGHT_ONE), sum;
    size_t n;
    if (top_k) {
        n = gather_first(w, row, p->top_k);
        sum = sum_weights(w->candidate, n);
    } else {
        sum = sampling_find_weights(row, w->block_max, w->block_weight);
        if (!top_p && floor_weight == 0) return draw_from_all(w, row, sum, p, index);
        n = top_p
                ? gather_prefix(w, row, sum, (double)p->top_p)
                : sampling_gather(row, w->block_max, sampling_logit_of(row, (double)p->min_p), w->candidate);
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
static void report_logprobs(const struct workspace *w, const struct sampling_row *raw, uint32_t wanted,
                            struct sampling_result *result)
{
    double sum = (double)sampling_find_weights(raw, w->block_max, NULL) / (double)SAMPLING_WEIGHT_ONE;
    double log_sum = (double)raw->top + log(sum);
    size_t n = gather_first(w, raw, wanted);
    result->logprob = (float)((double)raw->x[result->token] - log_sum);
    for (size_t i = 1; i < n; i++) { /* insertion: at most SAMPLING_LOGPROBS_MAX */
        struct sampling_candidate c = w->candidate[i];
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
    struct sampling_row raw = {logits, vocab,
                               (uint32_t)(((uint64_t)vocab + SAMPLING_BLOCK - 1) / SAMPLING_BLOCK), -INFINITY,
                               1};
    struct sampling_row row = raw;
    bool changed = changes_logits(params);
    if (changed) {
        adjust_logits(params, logits, vocab, history, history_count, prompt_count, &w);
        row.x = w.adjusted;
    }
    sampling_find_maxima(&row, w.block_max);
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
        if (changed) sampling_find_maxima(&raw, w.block_max);
        report_logprobs(&w, &raw, wanted < vocab ? wanted : vocab, result);
    }
    return 0;
}
