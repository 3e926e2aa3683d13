/* Where falling order is cut: the k-th of floats, of candidates, or the one at which their weights reach a
 * sum. See sampling/cut.h. Found by buckets and quickselect, never by a sort. */
#include "common/sampling/cut.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define BUCKETS_AT 512 /* candidates from which a pass over buckets pays */
#define BUCKETS    SAMPLING_BUCKETS

float sampling_kth_largest(float *x, size_t n, size_t k)
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

/* cut_by_quickselect, with one pass over buckets first when there are many candidates: buckets follow falling
 * order, so only the one in which the target falls is searched. */
uint64_t sampling_find_cut(const struct sampling_cut *w, const struct sampling_row *row, size_t n,
                           uint64_t target, bool by_weight)
{
    size_t selected = n;
    if (n < BUCKETS_AT) {
        memcpy(w->select, w->candidate, n * sizeof(*w->select));
    } else {
        memset(w->bucket, 0, BUCKETS * sizeof(*w->bucket));
        for (size_t i = 0; i < n; i++) {
            struct sampling_bucket *bucket = &w->bucket[bucket_of(key_logit(w->candidate[i].key), row)];
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

size_t sampling_keep_up_to(struct sampling_candidate *c, size_t n, uint64_t cut)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        c[kept] = c[i];
        kept += c[i].key <= cut;
    }
    return kept;
}

uint64_t sampling_sum_weights(const struct sampling_candidate *c, size_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += c[i].weight;
    return sum;
}

/* ---- changed logits ---- */

#define NOT_LISTED     UINT32_MAX
#define ONLY_IN_BIASES UINT32_MAX /* in place of the times in the output */

static bool has_penalties(const struct sampling_params *p)
{
    return p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0;
}

static uint32_t bias_count(const struct sampling_params *p)
{
    return p->bias_count < SAMPLING_BIAS_MAX ? p->bias_count : SAMPLING_BIAS_MAX;
}

bool sampling_changes_logits(const struct sampling_params *p)
{
    return has_penalties(p) || p->bias_count != 0;
}

bool sampling_list_changes(const struct sampling_params *p, const struct sampling_tokens *tokens,
                           uint32_t vocab, uint32_t capacity, uint32_t *seen,
                           struct sampling_changes *changes)
{
    const uint32_t *history = tokens->history, history_count = has_penalties(p) ? tokens->count : 0;
    uint32_t n = 0, biases = bias_count(p);
    for (uint32_t i = 0; i < history_count; i++)
        if (history[i] < vocab) seen[history[i]] = NOT_LISTED;
    for (uint32_t i = 0; i < biases; i++)
        if (p->bias[i].token < vocab) seen[p->bias[i].token] = NOT_LISTED;
    for (uint32_t i = 0; i < history_count; i++) {
        uint32_t token = history[i];
        if (token >= vocab) continue;
        if (seen[token] == NOT_LISTED) {
            if (n == capacity) return false;
            changes->token[n] = token;
            changes->times[n] = 0;
            seen[token] = n++;
        }
        changes->times[seen[token]] += i >= tokens->prompt;
    }
    for (uint32_t i = 0; i < biases; i++) {
        uint32_t token = p->bias[i].token;
        if (token >= vocab || seen[token] != NOT_LISTED) continue;
        if (n == capacity) return false;
        changes->token[n] = token;
        changes->times[n] = ONLY_IN_BIASES;
        seen[token] = n++;
    }
    changes->count = n;
    return true;
}

void sampling_index_changes(const struct sampling_changes *changes, uint32_t *seen)
{
    for (uint32_t i = 0; i < changes->count; i++) seen[changes->token[i]] = i;
}

static float cut_to_finite(double x)
{
    return x > (double)FLT_MAX ? FLT_MAX : x < -(double)FLT_MAX ? -FLT_MAX : (float)x;
}

void sampling_apply_changes(const struct sampling_params *p, uint32_t vocab,
                            const struct sampling_changes *changes, const uint32_t *seen, float *x)
{
    double penalty = (double)p->repetition_penalty;
    for (uint32_t i = 0; i < changes->count; i++) {
        uint32_t times = changes->times[i];
        if (times == ONLY_IN_BIASES || !isfinite(x[i])) continue;
        x[i] = cut_to_finite(x[i] > 0 ? (double)x[i] / penalty : (double)x[i] * penalty);
        if (times == 0) continue;
        double off = (double)p->presence_penalty + (double)p->frequency_penalty * times;
        x[i] = cut_to_finite((double)x[i] - off);
    }
    for (uint32_t b = 0; b < bias_count(p); b++) {
        if (p->bias[b].token >= vocab) continue;
        float *at = &x[seen[p->bias[b].token]];
        if (isfinite(*at)) *at = cut_to_finite((double)*at + (double)p->bias[b].bias);
    }
}
