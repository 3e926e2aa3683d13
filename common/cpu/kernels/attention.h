/* Attention over paged KV on the CPU: causal, grouped-query, streaming softmax, exact over any page split.
 *
 * Called by worker-cpu/step.c for (sequence, kv head, range of pages) tasks; partial results merge exactly
 * (running maximum m, sum s, unnormalised output o: Rabe & Staats 2021; FlashAttention, Dao et al. 2022, eq.
 * of section 3.1). Pure functions; the caller owns everything. Variants stand in a table as in kernels.h. */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/cpu.h"
#include "common/base/err.h"
#include "common/shared/kv_layout.h"
#include "common/model/model.h"

/* One kv head of one sequence, or with one token neighbouring ones: of each `group` query heads for each of
 * `tokens` query positions start, start+1, ... attend to cache positions [kv_first, kv_last), cut to the
 * causal and window limits of each query (a query at position p sees positions max(0, p - window + 1) .. p;
 * window 0 = all). Keys and values of all those positions, the step's own included, are already in the
 * cache. */
struct attention_task {
    const float *q; /* q[t * q_stride + (h * group + g) * head_dim + d] */
    size_t q_stride;
    uint32_t tokens, group;
    uint32_t kv_heads; /* h: 1, or with tokens = 1 up to all from kv_head on. Several heads' cells of a page
                          lie in one run, which memory gives faster than pieces of it. */
    uint32_t start;
    uint32_t kv_first, kv_last;
    uint32_t window;
    float scale; /* 1/sqrt(head_dim) */
    /* sinks[h * group + g]: a score of no position, which joins the head's softmax and has no value; NULL:
     * none. It counts where results are normalised, not in partial ones. */
    const float *sinks;
    bool steady; /* a query's bits are the same whichever others are asked with it, and those of many queries;
                    without it few queries may go another way */
    const struct kv_layout *kv;
    const void *pool;      /* base of the KV region */
    const uint32_t *pages; /* the sequence's page table */
    uint32_t layer;        /* in the layer group */
    uint32_t kv_head;
    float *out; /* out[t * out_stride + (h * group + g) * head_dim + d]: normalised if m and s are NULL, else
                   partial o */
    size_t out_stride;
    float *m, *s;  /* [tokens * kv_heads * group] partial maxima and sums, or NULL; a query with nothing
                      visible in the range has m = -INFINITY, s = 0, o = 0 */
    void *scratch; /* scratch_bytes of the variant, 64-byte aligned */
    /* The task that the same thread is likely to attend to next, with its own positions, pages and kv head:
     * the first of its cells are asked into the cache meanwhile. NULL: not known. Nothing else of it is
     * looked at, and no result depends on it. */
    const struct attention_task *next;
};

struct attention_variant {
    const char *name;
    unsigned features;
    enum kv_dtype kv_dtype;
    void (*attend)(const struct attention_task *task);
    size_t (*scratch_bytes)(const struct kv_layout *kv, uint32_t tokens, uint32_t group);
};
const struct attention_variant *const *attention_variants(size_t *count);
HELM_MUST_CHECK int attention_choose(enum kv_dtype kv_dtype, unsigned features, const char *name,
                                     const struct attention_variant **variant, struct helm_err *err);

/* Partial results of the same queries: o[p] = parts' outputs ([n][head_dim] each, rows out_stride apart as in
 * the task is NOT assumed here: dense), m[p], s[p]; sinks: of each query, or NULL. */
struct attention_parts {
    const float *const *o, *const *m, *const *s;
    size_t count;
    const float *sinks;
};
/* Merges those of `n` = tokens * group queries; writes normalised out (dense). */
void attention_merge(float *out, const struct attention_parts *parts, size_t n, size_t head_dim);

/* A query's sum with its sink: m, s of all its positions. */
static inline double attention_sum_with(double m, double s, const float *sink)
{
    return sink ? s + exp((double)*sink - m) : s;
}

/* Takes a further piece's partial results of one query into (*m, *s, o), which begins as -INFINITY, 0, 0:
 * thesis eqs. 4.18 to 4.20, the piece's exponentials having been summed by itself (m_piece: its maximum
 * score, s_piece: their sum, o_piece: their sum of values, [head_dim]). A piece with nothing visible changes
 * nothing. */
void attention_fold(float *m, float *s, float *o, float m_piece, float s_piece, const float *o_piece,
                    size_t head_dim);

/* Appends one token's K or V of one head: converts or quantises head_dim floats into the page. */
void kv_append(const struct kv_layout *kv, void *pool, const uint32_t *pages, uint32_t layer, bool is_value,
               uint32_t kv_head, uint32_t position, const float *x);
