/* Shared by the tests of packed weights: the 8B shape on an H200's machine, a step of it priced, a plan with
 * its forecast, the bytes of its host weights. Included by test_packed*.c. */
#pragma once

#include "tests/unit/daemon/planner/plan_case.h"
#include "tests/written_formats.h"

#include <math.h>

#include "daemon/planner/cost/cost.h"

#define UNITS 72 /* of the 8B shape */
/* One token's products of the CPU with packed weights (105 GB/s with plain ones, 80 beside the link). */
#define CPU_PACKED        135e9
#define CPU_PACKED_BESIDE 95e9

/* `vram` 0: no device. Closed by bench_close. */
static inline void open_8b(struct bench *b, uint64_t vram)
{
    bench_open(b, &shape_8b, 100 * GIB, vram);
    b->profile = made_up_profile(&rates_h200);
    b->r.wish.ctx = 2048;
    b->r.device_required = vram > 0;
}

/* The same on a processor that has kernels for packed weights, measured with one token, and with the wish to
 * pack all. */
static inline void open_packed_cpu(struct bench *b, uint64_t vram)
{
    open_8b(b, vram);
    b->profile.cpu.gemv_packed = made_up_value(CPU_PACKED);
    b->profile.cpu.gemv_packed_beside = made_up_value(CPU_PACKED_BESIDE);
    b->r.wish.pack = b->r.wish.pack_cpu = b->r.wish.pack_all = true;
}

/* Bytes of a unit's matrices: its norms are plain. */
static inline double matrices_of(const struct bench *b, uint32_t unit)
{
    double bytes = 0;
    for (uint32_t i = 0; i < b->made.model.tensor_count; i++) {
        const struct model_tensor *t = &b->made.tensor[i];
        if (t->layer < 0 || t->rows == 1) continue;
        if (model_tensor_unit(t) == unit) bytes += (double)t->bytes;
    }
    return bytes;
}

static inline struct cost_table price_8b(const struct bench *b, uint32_t tokens, const bool *packed,
                                         bool packed_cpu)
{
    enum tensor_format format[UNITS + 1][PLAN_HOMES];
    const struct cost_step step = {tokens, 1, 1, 4096, .kv_dtype = KV_F16, .format = format};
    struct cost_table table;
    struct helm_err err = {0};
    for (uint32_t u = 0; u <= UNITS; u++) {
        const bool link = u < UNITS && packed && packed[u] && b->made.analysed.packs[u];
        format[u][PLAN_HOME_GPU] = PLAN_AS_STORED;
        format[u][PLAN_HOME_STREAM] = link ? FORMAT_BF16_PACKED : PLAN_AS_STORED;
        format[u][PLAN_HOME_CPU] =
            link && packed_cpu && b->made.analysed.packs_cpu[u] ? FORMAT_BF16_PACKED : PLAN_AS_STORED;
    }
    if (cost_price(&b->made.model, &b->made.analysed, &b->profile, &step, &table, &err))
        fail_msg("%s", err.text);
    return table;
}

static inline void close_to(double a, double b)
{
    if (fabs(a - b) > 1e-9 * fmax(fabs(a), fabs(b))) fail_msg("%.12g is not %.12g", a, b);
}

static inline void make_predicted(struct bench *b, struct plan *plan, struct planner_prediction *prediction)
{
    struct helm_err err = {0};
    make(b, plan);
    if (planner_predict(&b->r, plan, 1, 1024, 128, prediction, &err)) fail_msg("%s", err.text);
}

/* Bytes of the ledger's line that begins so, 0: there is none. */
static inline uint64_t line_of(const struct ledger *ledger, const char *what)
{
    for (uint32_t i = 0; i < ledger->line_count; i++)
        if (strncmp(ledger->line[i].what, what, strlen(what)) == 0) return ledger->line[i].bytes;
    return 0;
}

/* In VRAM: half layers that lie packed there; whether the head does. */
static inline uint32_t packed_units(const struct plan *plan)
{
    return plan_units_in(plan, PLAN_VRAM0, FORMAT_BF16_PACKED);
}

static inline bool packed_head(const struct plan *plan)
{
    return plan_head_format(plan) == FORMAT_BF16_PACKED;
}

/* Whether, of half layers in host memory, all lie packed that every list streams (`link`), all that some list
 * gives to the CPU (`cpu`), and no others; *found: how many of those. */
static inline bool host_packs(const struct plan *plan, bool link, bool cpu, uint32_t *found)
{
    if (found) *found = 0;
    for (uint32_t u = 0; u < unit_count(plan->layers); u++) {
        const bool packed = plan_unit_format(plan, u) == FORMAT_BF16_PACKED;
        if (plan_home_memory(plan->unit[u].home[0]) != PLAN_HOST) continue;
        if (packed != (is_on_cpu(plan, u) ? cpu : link)) return false;
        if (found) *found += packed;
    }
    return true;
}

/* Whether the CPU computes with some that are. */
static inline bool cpu_packs(const struct plan *plan)
{
    for (uint32_t u = 0; u < unit_count(plan->layers); u++)
        if (is_on_cpu(plan, u) && plan_unit_format(plan, u) == FORMAT_BF16_PACKED) return true;
    return false;
}

/* The place of every matrix in host memory, as the workers lay it out. */
static inline uint64_t region_of(const struct bench *b, const struct plan *plan)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < b->made.model.tensor_count; i++) {
        const struct model_tensor *t = &b->made.tensor[i];
        if (t->layer < 0 || t->rows == 1) continue;
        uint32_t u = model_tensor_unit(t);
        if (plan->unit[u].home[0] == PLAN_HOME_GPU) continue;
        const enum tensor_format format = plan_unit_format(plan, u);
        bytes += (placement_room(t, format == PLAN_AS_STORED ? t->format : format, PLAN_HOST, NULL) + 63) /
                 64 * 64;
    }
    if (plan->embed == PLAN_CPU0) bytes += b->made.analysed.embed.stored;
    if (plan->head == PLAN_CPU0) bytes += b->made.analysed.head.stored;
    return bytes;
}
