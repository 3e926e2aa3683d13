/* Attention's tests: a task over shuffled pages with random queries and cells, buffers with guards, and each
 * variant that this machine runs.
 *
 * Tolerances: outputs are convex combinations of values of size about 1. fp32 variants differ from the
 * reference by the rounding of the logits (about 1e-6 of their size) and of the sums, so 2e-5 holds with
 * room; of quantised cells all read the same values. Variants that round many queries and their weights to
 * bf16 (8 bits) are held to 2e-2 of the values' size, which the bf16 class of the golden runs needs; with few
 * queries no variant rounds. */
#pragma once

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/cpu.h"
#include "common/cpu/kernels/attention.h"

struct shape {
    uint32_t head_dim, group, page_tokens, tokens, start, window, kv_first,
        kv_last; /* kv_last 0: everything */
};

struct rig {
    struct kv_layout kv;
    char *pool;
    uint32_t *pages;
    float *q, *out, *m, *s;
    size_t q_stride, out_stride, rows, out_floats;
    void *scratch;
    size_t scratch_bytes;
    float sinks[8]; /* of each query head; used with odd seeds */
    struct attention_task task;
};

static inline uint32_t random_u32(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}
static inline float random_float(uint64_t *state) /* in [-1, 1) */
{
    return (float)random_u32(state) / 1073741824.0f - 1.0f;
}

#define GUARD      64
#define GUARD_BYTE 0xa5

static inline void *guarded(size_t bytes)
{
    char *block = NULL;
    assert_int_equal(posix_memalign((void **)&block, 64, bytes + 2 * GUARD), 0);
    memset(block, GUARD_BYTE, bytes + 2 * GUARD);
    return block + GUARD;
}
static inline void guarded_free(void *pointer, size_t bytes)
{
    unsigned char *block = (unsigned char *)pointer - GUARD;
    for (size_t i = 0; i < GUARD; i++) {
        assert_int_equal(block[i], GUARD_BYTE);
        assert_int_equal(block[GUARD + bytes + i], GUARD_BYTE);
    }
    free(block);
}

/* The pool is NaN wherever no position of the sequence lies: a stray read poisons the result. */
static inline void rig_make(struct rig *rig, const struct shape *shape, enum kv_dtype dtype, float logit_size,
                            uint64_t seed)
{
    const uint32_t layers = 2, kv_heads = 3, layer = 1, kv_head = 1;
    uint64_t state = seed * 2 + 1;
    uint32_t positions = shape->start + shape->tokens;
    uint32_t page_count = (positions + shape->page_tokens - 1) / shape->page_tokens, spare = 2;
    memset(rig, 0, sizeof(*rig));
    const uint32_t latent = seed % 4 == 3 ? (shape->head_dim + 1) / 2 : 0; /* values that are parts of keys */
    rig->kv = (struct kv_layout){layers, kv_heads, shape->head_dim, shape->page_tokens, dtype, latent};
    size_t pool_bytes = (page_count + spare) * kv_page_bytes(&rig->kv);
    rig->pool = malloc(pool_bytes);
    memset(rig->pool, 0xff, pool_bytes); /* NaN in all types */
    rig->pages = malloc((page_count + spare) * sizeof(uint32_t));
    for (uint32_t i = 0; i < page_count + spare; i++) rig->pages[i] = i;
    for (uint32_t i = page_count + spare - 1; i > 0; i--) {
        uint32_t j = random_u32(&state) % (i + 1), swap = rig->pages[i];
        rig->pages[i] = rig->pages[j];
        rig->pages[j] = swap;
    }
    float *x = malloc(shape->head_dim * sizeof(float));
    for (uint32_t p = 0; p < positions; p++)
        for (uint32_t is_value = 0; is_value < kv_kinds(&rig->kv); is_value++) {
            for (uint32_t d = 0; d < shape->head_dim; d++) x[d] = random_float(&state);
            kv_append(&rig->kv, rig->pool, rig->pages, layer, is_value, kv_head, p, x);
        }
    free(x);
    rig->rows = (size_t)shape->tokens * shape->group;
    rig->q_stride = (size_t)shape->group * shape->head_dim + 5;
    rig->out_stride = (size_t)shape->group * shape->head_dim + 3;
    rig->out_floats = (shape->tokens - 1) * rig->out_stride + (size_t)shape->group * shape->head_dim;
    rig->q = malloc(shape->tokens * rig->q_stride * sizeof(float));
    for (size_t i = 0; i < shape->tokens * rig->q_stride; i++) rig->q[i] = random_float(&state) * logit_size;
    for (size_t g = 0; g < sizeof rig->sinks / sizeof *rig->sinks; g++)
        rig->sinks[g] = 2 * random_float(&state);
    rig->out = guarded(rig->out_floats * sizeof(float));
    rig->m = guarded(rig->rows * sizeof(float));
    rig->s = guarded(rig->rows * sizeof(float));
    rig->task = (struct attention_task){
        .q = rig->q,
        .q_stride = rig->q_stride,
        .tokens = shape->tokens,
        .group = shape->group,
        .kv_heads = 1,
        .start = shape->start,
        .kv_first = shape->kv_first,
        .kv_last = shape->kv_last != 0 ? shape->kv_last : positions,
        .window = shape->window,
        .scale = 1.0f / sqrtf((float)shape->head_dim),
        .sinks = seed % 2 ? rig->sinks : NULL,
        .kv = &rig->kv,
        .pool = rig->pool,
        .pages = rig->pages,
        .layer = layer,
        .kv_head = kv_head,
        .out = rig->out,
        .out_stride = rig->out_stride,
    };
}

/* A row's sum with its head's sink. */
static inline float rig_sum(const struct rig *rig, size_t row, float m, float s)
{
    return (float)attention_sum_with((double)m, (double)s,
                                     rig->task.sinks ? rig->task.sinks + row % rig->task.group : NULL);
}

static inline void rig_run(struct rig *rig, const struct attention_variant *variant, bool partial)
{
    size_t bytes = variant->scratch_bytes(&rig->kv, rig->task.tokens, rig->task.group);
    void *scratch = guarded(bytes);
    memset(scratch, 0xff, bytes); /* NaN: nothing may rely on what was there */
    memset(rig->out, GUARD_BYTE, rig->out_floats * sizeof(float));
    rig->task.scratch = scratch;
    rig->task.m = partial ? rig->m : NULL;
    rig->task.s = partial ? rig->s : NULL;
    variant->attend(&rig->task);
    guarded_free(scratch, bytes);
}

static inline void rig_free(struct rig *rig)
{
    guarded_free(rig->out, rig->out_floats * sizeof(float));
    guarded_free(rig->m, rig->rows * sizeof(float));
    guarded_free(rig->s, rig->rows * sizeof(float));
    free(rig->pool);
    free(rig->pages);
    free(rig->q);
}

/* Dense copy of the outputs; checks that the gaps between tokens were not written. */
static inline float *rig_dense(const struct rig *rig)
{
    size_t width = (size_t)rig->task.group * rig->kv.head_dim;
    float *dense = malloc(rig->rows * rig->kv.head_dim * sizeof(float));
    for (uint32_t t = 0; t < rig->task.tokens; t++) {
        const float *row = rig->out + t * rig->out_stride;
        memcpy(dense + t * width, row, width * sizeof(float));
        if (t + 1 < rig->task.tokens)
            for (size_t i = 0; i < (rig->out_stride - width) * sizeof(float); i++)
                assert_int_equal(((const unsigned char *)(row + width))[i], GUARD_BYTE);
    }
    return dense;
}

#define FEW_ROWS 8 /* query rows that every variant takes without rounding them */

static inline double tolerance_of(const struct attention_variant *variant, const struct shape *shape)
{
    const bool rounds =
        variant->features & CPU_AVX512_BF16 && variant->kv_dtype != KV_F16; /* of f16 in parts: exact */
    return rounds && shape->tokens * shape->group > FEW_ROWS ? 2e-2 : 2e-5;
}

static inline void expect_close(const float *got, const float *want, size_t count, double tolerance,
                                const char *what)
{
    for (size_t i = 0; i < count; i++) {
        double difference = fabs((double)got[i] - (double)want[i]);
        if (!(difference <= tolerance * (1 + fabs((double)want[i]))))
            fail_msg("%s: element %zu is %.9g, the reference has %.9g", what, i, (double)got[i],
                     (double)want[i]);
    }
}

static inline const struct attention_variant *reference_of(enum kv_dtype dtype)
{
    const struct attention_variant *variant = NULL;
    struct helm_err err = {0};
    assert_int_equal(attention_choose(dtype, 0, "ref", &variant, &err), 0);
    return variant;
}

static inline bool can_run(const struct attention_variant *variant)
{
    struct helm_err err;
    if ((variant->features & ~cpu_features()) != 0) return false;
    if (variant->features & CPU_AMX_BF16 && cpu_enable_amx(&err) != 0) fail_msg("%s", err.text);
    return true;
}

typedef void variant_test(const struct attention_variant *variant);

static inline void each_variant(variant_test *test)
{
    size_t count;
    const struct attention_variant *const *all = attention_variants(&count);
    for (size_t i = 0; i < count; i++) {
        if (!can_run(all[i])) {
            print_message("attention %s of %s: this machine cannot run it\n", all[i]->name,
                          kv_dtype_name(all[i]->kv_dtype));
            continue;
        }
        test(all[i]);
    }
}
