/* The rate of a chunk's products with experts, by tokens of each: gates, ups and downs grouped as a step groups them; and
 * bytes a second of a few tokens', and what a launch costs beside its bytes. See measure/private.h; called by measure/formats.c.
 *
 * Experts of Qwen3-30B-A3B's shape lie in the format's blocks, as many as there is room for up to 32. A chunk's tokens choose at
 * random, the same each time, so that some experts have more of them than others, as in a model. Few tokens choose different
 * ones, which go round from launch to launch. What is made lies in the room behind the blocks. */
#include <math.h>
#include <string.h>

#include "worker-gpu/measure/private.h"

#define HIDDEN  2048u
#define INNER   768u
#define EXPERTS 32u
#define CHOSEN  8u
#define PAIRS   (MEASURE_TOKENS_MAX * CHOSEN)

/* What is in the room. */
struct room {
    struct gpuk_groups groups;
    char *act, *sums;
    uint64_t bytes;
};

static uint64_t matrix_bytes(const struct measure *m)
{
    return tensor_format_bytes(m->format, INNER, HIDDEN);
}
static uint32_t experts_of(const struct measure *m)
{
    const uint64_t fit = m->weight_bytes / (3 * matrix_bytes(m));
    return fit < EXPERTS ? (uint32_t)fit : EXPERTS;
}
static uint32_t chosen_of(uint32_t experts)
{
    return experts < 2 * CHOSEN ? 1 : CHOSEN;
}

static struct room room_of(const struct measure *m, uint32_t pairs)
{
    struct room r = {0};
    char *at = measure_room(m);
    r.groups =
        (struct gpuk_groups){.first = (uint32_t *)(void *)at, .pair = (uint32_t *)(void *)at + EXPERTS + 1};
    at += ((EXPERTS + 1 + PAIRS) * sizeof(uint32_t) + 255) / 256 * 256;
    r.act = at;
    at += (uint64_t)pairs * INNER * sizeof(uint16_t);
    r.sums = at;
    at += (uint64_t)pairs * HIDDEN * sizeof(float);
    r.bytes = (uint64_t)(at - measure_room(m));
    return r;
}

/* Pairs of tokens and experts in order of experts. Host memory first, then the device's. */
static int put_groups(struct measure *m, uint32_t tokens, struct helm_err *err)
{
    const uint32_t experts = experts_of(m), chosen = chosen_of(experts);
    uint32_t *first = (uint32_t *)(void *)m->host, *pair = first + EXPERTS + 1, count = 0, state = 1;
    uint8_t id[PAIRS];
    for (uint32_t t = 0; t < tokens; t++) {
        uint32_t taken = 0; /* a bit an expert */
        for (uint32_t j = 0; j < chosen; j++) {
            uint32_t e;
            do {
                state = state * 1664525u + 1013904223u;
                e = (state >> 16) % experts;
            } while (taken >> e & 1);
            taken |= 1u << e;
            id[t * chosen + j] = (uint8_t)e;
        }
    }
    for (uint32_t e = 0; e <= EXPERTS; e++) {
        first[e] = count;
        for (uint32_t p = 0; p < tokens * chosen; p++)
            if (id[p] == e) pair[count++] = p;
    }
    int rc = device_copy(m->device, DEVICE_COMPUTE, DEVICE_TO_DEVICE, measure_room(m), m->host,
                         (EXPERTS + 1 + PAIRS) * sizeof(uint32_t), err);
    return rc ? rc : measure_drain(m, DEVICE_COMPUTE, err);
}

static struct gpuk_experts role_of(const struct measure *m, uint32_t role)
{
    const uint32_t experts = experts_of(m);
    return (struct gpuk_experts){.format = m->format,
                                 .experts = experts,
                                 .rows = role < 2 ? INNER : HIDDEN,
                                 .cols = role < 2 ? HIDDEN : INNER,
                                 .weight = m->weights + role * experts * matrix_bytes(m),
                                 .stride = matrix_bytes(m)};
}

static int issue_experts(const struct measure_work *w, struct helm_err *err)
{
    const struct measure *m = w->m;
    const uint32_t chosen = chosen_of(experts_of(m));
    const struct room room = room_of(m, w->tokens * chosen);
    const enum dtype dtype = tensor_format_product(m->format);
    const struct op glu = {.kind = OP_EXPERTS_GLU,
                           .tokens = w->tokens,
                           .count = m->kernels->step.counts,
                           .as.experts_glu = {.is_chunk = true,
                                              .chunk = {.gate = role_of(m, 0),
                                                        .up = role_of(m, 1),
                                                        .glu = GLU_SILU,
                                                        .chosen = chosen,
                                                        .groups = room.groups,
                                                        .dtype = dtype,
                                                        .act_dtype = dtype,
                                                        .x = m->kernels->h,
                                                        .act = room.act}}};
    const struct op down = {.kind = OP_EXPERTS_DOWN,
                            .tokens = w->tokens,
                            .count = m->kernels->step.counts,
                            .as.experts_down = {.is_chunk = true,
                                                .chunk = {.down = role_of(m, 2),
                                                          .chosen = chosen,
                                                          .groups = room.groups,
                                                          .dtype = dtype,
                                                          .act = room.act,
                                                          .sums = (float *)(void *)room.sums}}};
    int rc = device_run(m->device, &glu, err);
    return rc ? rc : device_run(m->device, &down, err);
}

static int measure_at(struct measure *m, uint32_t tokens, struct helm_err *err)
{
    const uint32_t experts = experts_of(m), pairs = tokens * chosen_of(experts);
    struct measure_samples samples;
    const struct measure_work w = {
        .m = m, .issue = issue_experts, .shape = m->kernels->large, .tokens = tokens, .ops = 1};
    struct op convert =
        measure_norm(m->kernels, tokens, HIDDEN, m->kernels->h, tensor_format_product(m->format));
    convert.as.norm.norm = NULL; /* as many weights of a norm as this need not be there */
    int rc = measure_set_step(m, 0, tokens, err);
    if (!rc) rc = device_run(m->device, &convert, err);
    if (!rc) rc = put_groups(m, tokens, err);
    if (!rc) rc = measure_time_works(&w, 1, false, &samples, err);
    if (rc) return rc;
    measure_to_rate(&samples, 2.0 * 3 * INNER * HIDDEN * pairs, 0);
    measure_print(m, "gpu.experts", (pairs + experts - 1) / experts, &samples);
    return 0;
}

/* ---- few tokens ---- */

/* Two ways to read `experts` experts once, each by one token: `chosen` of each token at a time. */
struct few_size {
    uint32_t tokens, experts, chosen[2];
};
struct few_room {
    uint32_t *id; /* as many as `experts`, as floats weights behind them */
    float *act, *out;
    void *work;
    uint64_t bytes;
};

static struct few_room few_room_of(const struct measure *m)
{
    char *at = measure_room(m);
    struct few_room r = {.id = (uint32_t *)(void *)at};
    at += (2 * EXPERTS * sizeof(uint32_t) + 255) / 256 * 256;
    r.act = (float *)(void *)at;
    at += (uint64_t)EXPERTS * INNER * sizeof(float);
    r.out = (float *)(void *)at;
    at += (uint64_t)GPUK_BATCH_MAX * HIDDEN * sizeof(float);
    r.work = at;
    at += (uint64_t)GPUK_BATCH_MAX * HIDDEN * sizeof(float);
    r.bytes = (uint64_t)(at - measure_room(m));
    return r;
}

static int put_few(struct measure *m, struct helm_err *err)
{
    uint32_t *id = (uint32_t *)(void *)m->host;
    float *weight = (float *)(void *)(id + EXPERTS);
    for (uint32_t e = 0; e < EXPERTS; e++) id[e] = e, weight[e] = 0.125f;
    int rc = device_copy(m->device, DEVICE_COMPUTE, DEVICE_TO_DEVICE, measure_room(m), m->host,
                         2 * EXPERTS * sizeof(uint32_t), err);
    return rc ? rc : measure_drain(m, DEVICE_COMPUTE, err);
}

/* w->ops launches of w->experts experts each. */
static int issue_few(const struct measure_work *w, struct helm_err *err)
{
    const struct measure *m = w->m;
    const struct few_room room = few_room_of(m);
    int rc = 0;
    for (uint32_t i = 0; i < w->ops / 2 && !rc; i++) {
        const struct gpuk_choice choice = {.chosen = w->experts / w->tokens,
                                           .id = room.id + i * w->experts,
                                           .weight = (float *)(void *)(room.id + EXPERTS) + i * w->experts};
        const struct op glu = {.kind = OP_EXPERTS_GLU,
                               .tokens = w->tokens,
                               .count = m->kernels->step.counts,
                               .workspace = room.work,
                               .as.experts_glu = {.few = {.gate = role_of(m, 0),
                                                          .up = role_of(m, 1),
                                                          .glu = GLU_SILU,
                                                          .choice = choice,
                                                          .x = m->kernels->x,
                                                          .x_stride = HIDDEN,
                                                          .act = room.act}}};
        const struct op down = {.kind = OP_EXPERTS_DOWN,
                                .tokens = w->tokens,
                                .count = m->kernels->step.counts,
                                .workspace = room.work,
                                .as.experts_down = {.few = {.down = role_of(m, 2),
                                                            .choice = choice,
                                                            .act = room.act,
                                                            .residual = room.out,
                                                            .out = room.out,
                                                            .out_stride = HIDDEN}}};
        rc = device_run(m->device, &glu, err);
        if (!rc) rc = device_run(m->device, &down, err);
    }
    return rc;
}

static int measure_few_at(struct measure *m, const struct few_size *size, struct helm_err *err)
{
    const double bytes = 3.0 * size->experts * (double)matrix_bytes(m);
    struct measure_samples samples[2], operation;
    struct measure_work w[2];
    for (int i = 0; i < 2; i++) {
        const uint32_t each = size->tokens * size->chosen[i];
        w[i] = (struct measure_work){.m = m,
                                     .issue = issue_few,
                                     .shape = m->kernels->large,
                                     .tokens = size->tokens,
                                     .experts = each,
                                     .ops = 2 * (size->experts / each)};
    }
    const struct measure_amount large = {bytes, w[0].ops}, small = {bytes, w[1].ops};
    int rc = measure_set_step(m, 0, size->tokens, err);
    if (!rc) rc = measure_time_works(w, 2, true, samples, err);
    if (rc) return rc;
    (void)measure_fit_operation(&large, &small, &samples[0], &samples[1], MEASURE_OPERATION_LEAST,
                                &operation);
    for (uint32_t i = 0; i < operation.count; i++)
        operation.value[i] = fmin(operation.value[i], measure_median_of(&samples[0]) / 2 / w[0].ops);
    measure_print(m, "gpu.experts_few_operation", size->tokens, &operation);
    const double each = measure_median_of(&operation);
    for (uint32_t i = 0; i < samples[0].count; i++) {
        double *value = &samples[0].value[i];
        *value = bytes / fmax(*value - each * w[0].ops, *value / 2);
    }
    measure_print(m, "gpu.experts_few", size->tokens, &samples[0]);
    return 0;
}

static int measure_few_experts(struct measure *m, struct helm_err *err)
{
    static const struct few_size sizes[] = {{1, EXPERTS, {8, 2}}, {8, EXPERTS, {4, 1}}},
                                 emulated[] = {{1, 2, {2, 1}}};
    const struct few_size *list = m->emulated ? emulated : sizes;
    if (experts_of(m) < list->experts || few_room_of(m).bytes > m->weight_bytes / 2) return 0;
    int rc = put_few(m, err);
    for (uint32_t i = 0; i < (m->emulated ? 1 : 2) && !rc; i++) rc = measure_few_at(m, &list[i], err);
    return rc;
}

int measure_experts_run(struct measure *m, struct helm_err *err)
{
    static const uint32_t tokens[] = {32, 128, MEASURE_TOKENS_MAX}, emulated[] = {2};
    const uint32_t *const list = m->emulated ? emulated : tokens, count = m->emulated ? 1 : 3;
    const uint32_t experts = experts_of(m);
    int rc = measure_few_experts(m, err);
    /* the room is as large as the blocks are */
    if (rc || experts < 2 || room_of(m, list[count - 1] * chosen_of(experts)).bytes > m->weight_bytes / 2)
        return rc;
    for (uint32_t i = 0; i < count && !rc; i++) rc = measure_at(m, list[i], err);
    return rc;
}
