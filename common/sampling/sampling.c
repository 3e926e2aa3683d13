/* Draws a token from logits; the exact meaning of every step stands in common/sampling/sampling.h.
 *
 * Called by the worker of the last stage once per sampled row. Owns nothing: works in the caller's scratch,
 * allocates nothing. The passes over the whole vocabulary are common/sampling/pass.c; each block of 64 logits
 * leaves its largest (and its weight), and everything after that looks only into blocks that can matter:
 *
 * - top-k: the k-th largest block maximum is a lower bound of the k-th largest logit;
 * - top-p: tokens lighter than (1 - p) * sum / vocab cannot, all together, weigh more than what is cut
 *   off, and mostly a far higher floor will do;
 * - draw: the block is found by the blocks' weights.
 *
 * Candidates stand in order of ids; the cut among them is found by buckets and quickselect, never a sort. */
#include "common/sampling/sampling.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "common/sampling/cut.h"
#include "common/sampling/pass.h"

struct workspace {
    uint32_t *seen;                  /* [vocab]: index among the changes */
    struct sampling_changes changes; /* [vocab] */
    float *raw, *changed;            /* [vocab]: their logits before and after */
    float *allowed;                  /* [vocab]: the row as the mask leaves it */
    float *block_max;                /* [blocks] */
    float *block_copy;               /* [blocks]: reordered by selection */
    uint64_t *block_weight;          /* [blocks] */
    struct sampling_cut cut; /* candidate [vocab + 4], in order of ids when from a row; select [vocab] */
    struct sampling_candidate *candidate; /* as in `cut` */
};

static size_t lay_out(struct workspace *w, char *base, uint32_t vocab)
{
    size_t blocks = ((size_t)vocab + SAMPLING_BLOCK - 1) / SAMPLING_BLOCK, at = 0;
    const struct {
        void **place;
        size_t bytes;
    } part[] = {{(void **)&w->seen, vocab * sizeof(*w->seen)},
                {(void **)&w->changes.token, vocab * sizeof(*w->changes.token)},
                {(void **)&w->changes.times, vocab * sizeof(*w->changes.times)},
                {(void **)&w->raw, vocab * sizeof(*w->raw)},
                {(void **)&w->changed, vocab * sizeof(*w->changed)},
                {(void **)&w->allowed, vocab * sizeof(*w->allowed)},
                {(void **)&w->block_max, blocks * sizeof(*w->block_max)},
                {(void **)&w->block_copy, blocks * sizeof(*w->block_copy)},
                {(void **)&w->block_weight, blocks * sizeof(*w->block_weight)},
                {(void **)&w->cut.bucket, SAMPLING_BUCKETS * sizeof(*w->cut.bucket)},
                {(void **)&w->candidate, ((size_t)vocab + 4) * sizeof(*w->candidate)},
                {(void **)&w->cut.select, ((size_t)vocab + 4) * sizeof(*w->cut.select)}};
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        *part[i].place = base == NULL ? NULL : base + at;
        at += (part[i].bytes + 63) / 64 * 64;
    }
    w->cut.candidate = w->candidate;
    return at;
}

size_t sampling_scratch_bytes(uint32_t vocab)
{
    struct workspace unused = {0};
    return lay_out(&unused, NULL, vocab);
}

/* Gathers at least the first k of the row in falling order (fewer only if fewer are finite). */
static size_t gather_first(const struct workspace *w, const struct sampling_row *row, uint32_t k)
{
    float floor_logit = -INFINITY;
    if (k <= row->blocks) {
        memcpy(w->block_copy, w->block_max, row->blocks * sizeof(*w->block_copy));
        floor_logit = sampling_kth_largest(w->block_copy, row->blocks, k);
    }
    size_t n = sampling_gather(row, w->block_max, floor_logit, w->candidate);
    if (n > k) n = sampling_keep_up_to(w->candidate, n, sampling_find_cut(&w->cut, row, n, k, false));
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

static bool has_top_k(const struct sampling_params *p, uint32_t vocab)
{
    return p->top_k > 0 && p->top_k < vocab;
}

static uint64_t min_p_weight(const struct sampling_params *p)
{
    return (uint64_t)((double)p->min_p * (double)SAMPLING_WEIGHT_ONE);
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
        if (sampling_sum_weights(w->candidate, n) >= target) return n;
    }
    if (target == sum) return sampling_gather(row, w->block_max, -INFINITY, w->candidate);
    return sampling_gather(row, w->block_max, sampling_logit_of(row, light < 1 ? light : 1), w->candidate);
}

/* Top-p and min-p of the n candidates, which hold what both leave and the best token; `sum` weighs all that
 * top-p is a part of. Returns how many stay. */
static size_t narrow(const struct workspace *w, const struct sampling_row *row,
                     const struct sampling_params *p, size_t n, uint64_t sum)
{
    uint64_t floor_weight = min_p_weight(p);
    if (p->top_p < 1) {
        uint64_t target = top_p_target(sum, (double)p->top_p);
        if (target < sum)
            n = sampling_keep_up_to(w->candidate, n, sampling_find_cut(&w->cut, row, n, target, true));
    }
    if (floor_weight > 0) {
        size_t kept = 0;
        for (size_t i = 0; i < n; i++)
            if (w->candidate[i].weight >= floor_weight) w->candidate[kept++] = w->candidate[i];
        n = kept;
    }
    return n;
}

/* Draws one of n candidates in order of ids. */
static uint32_t draw_from(const struct sampling_candidate *c, size_t n, const struct sampling_params *p,
                          uint32_t index)
{
    uint64_t at = pick(sampling_sum_weights(c, n), p->seed, index);
    size_t i = 0;
    for (; at >= c[i].weight; i++) at -= c[i].weight;
    return key_id(c[i].key);
}

static uint32_t draw_token(const struct workspace *w, const struct sampling_row *row,
                           const struct sampling_params *p, uint32_t index)
{
    uint64_t sum = 0;
    size_t n;
    if (has_top_k(p, row->vocab)) {
        n = gather_first(w, row, p->top_k);
        sum = sampling_sum_weights(w->candidate, n);
    } else if (p->top_p < 1) {
        sum = sampling_find_weights(row, w->block_max, NULL);
        n = gather_prefix(w, row, sum, (double)p->top_p);
    } else if (min_p_weight(p) > 0) {
        n = sampling_gather(row, w->block_max, sampling_logit_of(row, (double)p->min_p), w->candidate);
    } else {
        sum = sampling_find_weights(row, w->block_max, w->block_weight);
        return draw_from_all(w, row, sum, p, index);
    }
    return draw_from(w->candidate, narrow(w, row, p, n, sum), p, index);
}

static float inverse_of(float temperature)
{
    float inverse = 1 / temperature;
    return inverse < FLT_MAX ? inverse : FLT_MAX;
}

/* The log of the sum of weights at temperature 1. */
static double log_sum_of(float top, uint64_t weights)
{
    return (double)top + log((double)weights / (double)SAMPLING_WEIGHT_ONE);
}

/* log-softmax of the model's own logits: the first `n` candidates are reported, `drawn` is the result's. */
static void report_logprobs(struct sampling_candidate *c, size_t n, float top, uint64_t weights, float drawn,
                            struct sampling_result *result)
{
    const double log_sum = log_sum_of(top, weights);
    result->logprob = (float)((double)(drawn + 0.0f) - log_sum);
    for (size_t i = 1; i < n; i++) { /* insertion: at most SAMPLING_LOGPROBS_MAX */
        struct sampling_candidate one = c[i];
        size_t j = i;
        for (; j > 0 && c[j - 1].key > one.key; j--) c[j] = c[j - 1];
        c[j] = one;
    }
    result->top_count = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        result->top[i].token = key_id(c[i].key);
        result->top[i].logprob = (float)((double)key_logit(c[i].key) - log_sum);
    }
}

/* The same of the tokens that are asked of. */
static void report_asked(const struct sampling_params *p, const struct sampling_row *row, uint64_t weights,
                         struct sampling_result *result)
{
    const double log_sum = log_sum_of(row->top, weights);
    result->logprob = (float)((double)(row->x[result->token] + 0.0f) - log_sum);
    result->top_count = p->logprobs;
    for (uint32_t i = 0; i < p->logprobs; i++) {
        const float logit = row->x[p->of[i]];
        result->top[i].token = p->of[i];
        result->top[i].logprob = isfinite(logit) ? (float)((double)(logit + 0.0f) - log_sum) : -INFINITY;
    }
}

static uint32_t logprobs_wanted(const struct sampling_params *p, uint32_t vocab)
{
    uint32_t wanted = p->logprobs < SAMPLING_LOGPROBS_MAX ? p->logprobs : SAMPLING_LOGPROBS_MAX;
    return wanted < vocab ? wanted : vocab;
}

/* The row with -inf in place of what the mask leaves out. */
static void apply_mask(const float *logits, uint32_t vocab, const uint32_t *mask, float *out)
{
    for (uint32_t first = 0; first < vocab; first += 32) {
        const uint32_t bits = mask[first / 32], n = vocab - first < 32 ? vocab - first : 32;
        for (uint32_t i = 0; i < n; i++) out[first + i] = bits >> i & 1 ? logits[first + i] : -INFINITY;
    }
}

/* ---- from a row -------------------------------------------------------------------------------- */

int sampling_draw(const struct sampling_params *params, float *logits, uint32_t vocab,
                  const struct sampling_tokens *tokens, void *scratch, struct sampling_result *result)
{
    struct workspace w;
    uint32_t blocks = (uint32_t)(((uint64_t)vocab + SAMPLING_BLOCK - 1) / SAMPLING_BLOCK);
    struct sampling_row row = {logits, vocab, blocks, -INFINITY, 1};
    const bool changed = sampling_changes_logits(params), masked = tokens->mask != NULL;
    float *x = logits;
    int rc = 0;
    memset(result, 0, sizeof(*result));
    lay_out(&w, scratch, vocab);
    if (masked) {
        x = w.allowed;
        apply_mask(logits, vocab, tokens->mask, x);
        row.x = x;
    }
    if (changed) {
        (void)sampling_list_changes(params, tokens, vocab, vocab, w.seen, &w.changes);
        for (uint32_t i = 0; i < w.changes.count; i++) w.raw[i] = w.changed[i] = x[w.changes.token[i]];
        sampling_apply_changes(params, vocab, &w.changes, w.seen, w.changed);
        for (uint32_t i = 0; i < w.changes.count; i++) x[w.changes.token[i]] = w.changed[i];
    }
    sampling_find_maxima(&row, w.block_max);
    if (row.top == -INFINITY) {
        rc = -1;
    } else if (params->temperature == 0) {
        result->token = argmax(&row, w.block_max);
    } else {
        row.inv_temp = inverse_of(params->temperature);
        result->token = draw_token(&w, &row, params, tokens->count);
    }
    for (uint32_t i = 0; changed && i < w.changes.count; i++) x[w.changes.token[i]] = w.raw[i];
    if (!rc && params->logprobs > 0) {
        row.inv_temp = 1;
        row.x = logits;
        if (changed || masked) sampling_find_maxima(&row, w.block_max);
        uint64_t weights = sampling_find_weights(&row, w.block_max, NULL);
        if (params->asked) {
            report_asked(params, &row, weights, result);
            return rc;
        }
        size_t n = gather_first(&w, &row, logprobs_wanted(params, vocab));
        report_logprobs(w.candidate, n, row.top, weights, logits[result->token], result);
    }
    return rc;
}

/* ---- from less --------------------------------------------------------------------------------- */

void sampling_ask(const struct sampling_params *p, uint32_t vocab, const struct sampling_tokens *tokens,
                  void *scratch, struct sampling_changes *changes, struct sampling_ask *ask)
{
    bool changed = sampling_changes_logits(p), top_k = has_top_k(p, vocab);
    struct workspace w;
    *ask = (struct sampling_ask){.need = SAMPLING_NEEDS_FEW, .candidates = 1, .model_sum = p->logprobs > 0};
    changes->count = 0;
    if (p->temperature == 0) {
        if (!changed && p->logprobs == 0) ask->need = SAMPLING_NEEDS_BEST;
    } else if (top_k) {
        ask->candidates = p->top_k;
    } else {
        ask->candidates = SAMPLING_FEW_MAX;
        ask->sum = p->top_p < 1;
        ask->inv_temp = inverse_of(p->temperature);
        if (p->top_p < 1 ? changed : min_p_weight(p) == 0) ask->need = SAMPLING_NEEDS_ROW;
    }
    if (ask->candidates > SAMPLING_FEW_MAX || tokens->mask || p->asked) ask->need = SAMPLING_NEEDS_ROW;
    if (changed) ask->candidates = SAMPLING_FEW_MAX;
    if (ask->candidates < logprobs_wanted(p, vocab)) ask->candidates = logprobs_wanted(p, vocab);
    if (ask->need != SAMPLING_NEEDS_FEW || !changed) return;
    lay_out(&w, scratch, vocab);
    if (!sampling_list_changes(p, tokens, vocab, SAMPLING_CHANGES_MAX, w.seen, changes))
        ask->need = SAMPLING_NEEDS_ROW;
}

/* Candidates as penalties and bias leave them; of those that fall after the last one known nothing can be
 * said, so they are left out. */
static size_t take_few(const struct workspace *w, const struct sampling_params *p,
                       const struct sampling_few *few, uint32_t vocab, const struct sampling_changes *changes)
{
    uint64_t last = 0;
    size_t n = 0;
    sampling_index_changes(changes, w->seen);
    for (uint32_t i = 0; i < changes->count; i++) w->changed[i] = few->changed[i];
    sampling_apply_changes(p, vocab, changes, w->seen, w->changed);
    for (uint32_t i = 0; i < few->count; i++) {
        uint64_t key = falling_key(few->candidate[i].logit, few->candidate[i].token);
        if (key > last) last = key;
        w->candidate[n].key = key;
        n += !sampling_is_changed(changes, w->seen, few->candidate[i].token);
    }
    for (uint32_t i = 0; i < changes->count; i++) {
        if (!isfinite(w->changed[i])) continue;
        w->candidate[n].key = falling_key(w->changed[i], changes->token[i]);
        n += few->all || w->candidate[n].key <= last;
    }
    return n;
}

/* Whether the n candidates hold what top-k, top-p and min-p leave. */
static bool is_enough(const struct workspace *w, const struct sampling_row *row,
                      const struct sampling_params *p, const struct sampling_few *few, size_t n)
{
    float least = INFINITY; /* a token not among them has no larger logit */
    if (few->all) return true;
    if (has_top_k(p, row->vocab)) return n >= p->top_k;
    if (p->top_p < 1)
        return sampling_sum_weights(w->candidate, n) >= top_p_target(few->sum, (double)p->top_p);
    for (uint32_t i = 0; i < few->count; i++) least = fminf(least, few->candidate[i].logit);
    return min_p_weight(p) > 0 && least < sampling_logit_of(row, (double)p->min_p);
}

static void sort_by_id(struct sampling_candidate *c, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        struct sampling_candidate one = c[i];
        size_t j = i;
        for (; j > 0 && key_id(c[j - 1].key) > key_id(one.key); j--) c[j] = c[j - 1];
        c[j] = one;
    }
}

static bool report_few(const struct workspace *w, const struct sampling_params *p,
                       const struct sampling_few *few, uint32_t vocab, const struct sampling_changes *changes,
                       struct sampling_result *result)
{
    struct sampling_row raw = {NULL, vocab, 0, -INFINITY, 1};
    uint32_t wanted = logprobs_wanted(p, vocab);
    float drawn = 0;
    size_t n = few->count;
    if (n < wanted && !few->all) return false;
    if (sampling_is_changed(changes, w->seen, result->token)) drawn = few->changed[w->seen[result->token]];
    for (uint32_t i = 0; i < few->count; i++) {
        const struct sampling_logit *c = &few->candidate[i];
        w->candidate[i] = (struct sampling_candidate){.key = falling_key(c->logit, c->token)};
        if (c->token == result->token) drawn = c->logit;
        raw.top = fmaxf(raw.top, c->logit);
    }
    if (n > wanted)
        n = sampling_keep_up_to(w->candidate, n, sampling_find_cut(&w->cut, &raw, n, wanted, false));
    report_logprobs(w->candidate, n, raw.top, few->model_sum, drawn, result);
    return true;
}

int sampling_draw_few(const struct sampling_params *p, const struct sampling_few *few, uint32_t vocab,
                      const struct sampling_changes *changes, uint32_t index, void *scratch,
                      struct sampling_result *result)
{
    struct workspace w;
    struct sampling_row row = {NULL, vocab, 0, -INFINITY, 1};
    uint64_t best = UINT64_MAX;
    memset(result, 0, sizeof(*result));
    lay_out(&w, scratch, vocab);
    size_t n = take_few(&w, p, few, vocab, changes);
    if (n == 0) return few->all ? -1 : 1;
    for (size_t i = 0; i < n; i++) best = w.candidate[i].key < best ? w.candidate[i].key : best;
    if (p->temperature == 0) {
        result->token = key_id(best);
    } else {
        row.top = key_logit(best);
        row.inv_temp = inverse_of(p->temperature);
        sampling_weigh(&row, w.candidate, n);
        if (!is_enough(&w, &row, p, few, n)) return 1;
        uint64_t sum = few->sum;
        if (has_top_k(p, vocab)) {
            if (n > p->top_k)
                n = sampling_keep_up_to(w.candidate, n, sampling_find_cut(&w.cut, &row, n, p->top_k, false));
            sum = sampling_sum_weights(w.candidate, n);
        }
        n = narrow(&w, &row, p, n, sum);
        sort_by_id(w.candidate, n);
        result->token = draw_from(w.candidate, n, p, index);
    }
    return p->logprobs > 0 && !report_few(&w, p, few, vocab, changes, result) ? 1 : 0;
}
