/* Unit test of plans that keep weights packed in VRAM: a small model on small devices, every home of every
 * half layer, every place of the ends, some rings, every number of packed half layers and the head packed or
 * not, each as a plan that is taken and priced, beside the plan that is made. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/planner/memory/memory.h"
#include "tests/unit/daemon/planner/packed_case.h"
#include "tests/written_plans.h"

#define SMALL_LAYERS 3
#define SMALL_UNITS  (2 * SMALL_LAYERS)
#define HOMES        (1u << SMALL_UNITS)
/* From one size of VRAM to the next: of `make test`, and of `make test-full`. */
#define NEXT_VRAM      (384 * MIB)
#define NEXT_VRAM_FULL (128 * MIB)

static const struct made_up_shape small_shape = {SMALL_LAYERS, 4096, 12288, 32, 8, 128, 32000, false};

static double taken_seconds(const struct planner_request *r, struct plan *plan)
{
    struct planner_prediction p;
    struct arena_spec spec;
    struct helm_err err = {0};
    int rc = planner_take(r, plan, &spec, &err);
    if (rc == HELM_E_CAPACITY || rc == HELM_E_LIMIT) return INFINITY;
    if (!rc) rc = planner_predict(r, plan, 1, plan->context_tokens, 0, &p, &err);
    if (rc) fail_msg("%s", err.text);
    return p.decode.seconds;
}

struct best {
    double all, plain; /* of all plans; of those that pack nothing in VRAM */
};

static void try_packing(const struct bench *b, const struct plan *from, uint32_t gpu, struct best *best)
{
    struct planner_request r = b->r;
    r.refusal = NULL;
    for (uint32_t units = 0; units <= gpu; units++)
        for (int head = 0; head <= (from->head == PLAN_GPU0); head++) {
            struct plan_unit unit[SMALL_UNITS + 2];
            const struct written_formats w = {.link = true, .vram = units, .head = head};
            struct plan plan = *from;
            memcpy(unit, from->unit, sizeof unit);
            plan.unit = unit;
            write_formats(&plan, &w);
            plan.placement = NULL; /* made for these formats */
            double seconds = taken_seconds(&r, &plan);
            plan_drop_placements(&plan);
            best->all = fmin(best->all, seconds);
            if (!units && !head) best->plain = fmin(best->plain, seconds);
        }
}

static struct best brute_force(const struct bench *b, const struct plan *made)
{
    const struct ledger_case c = {&b->made.model, &b->r.wish, &b->r.machine, &b->made.analysed};
    uint64_t least, most;
    memory_ring_sizes(&c, &least, &most);
    struct best best = {INFINITY, INFINITY};
    for (uint32_t p = 0; p < HOMES; p++) {
        enum plan_home home[SMALL_UNITS];
        struct plan_unit unit[SMALL_UNITS + 2];
        uint32_t gpu = 0;
        bool stream = false;
        for (uint32_t u = 0; u < SMALL_UNITS; u++) {
            home[u] = p & 1u << u ? PLAN_HOME_GPU : PLAN_HOME_STREAM;
            gpu += home[u] == PLAN_HOME_GPU;
            stream |= home[u] == PLAN_HOME_STREAM;
        }
        for (uint64_t ring = least; ring <= (stream ? most : least); ring += least) {
            const struct plan plan = {.layers = SMALL_LAYERS,
                                      .context_tokens = made->context_tokens,
                                      .step_tokens = made->step_tokens,
                                      .slots = made->slots,
                                      .page_tokens = made->page_tokens,
                                      .kv_dtype = "f16",
                                      .unit = units_of_homes(unit, SMALL_LAYERS, home),
                                      .device[PLAN_GPU0].ring_bytes = stream ? ring : 0,
                                      .embed = PLAN_GPU0,
                                      .head = PLAN_GPU0};
            try_packing(b, &plan, gpu, &best);
        }
    }
    return best;
}

/* All or nothing, and plain again what there is room for, is rarely more than some percent from the best of
 * all; where no plan packs in VRAM, none that does is faster by more than that. */
static void made_plans_are_near_the_best(void **state)
{
    (void)state;
    static const double parts[] = {0.3, 0.6, 0.85, 1.2}; /* of the plain rate, with packed weights */
    struct bench b;
    double worst = 0, sum = 0;
    int count = 0, packed = 0, better = 0;
    const uint64_t next = getenv("HELM_TEST_FULL") ? NEXT_VRAM_FULL : NEXT_VRAM;
    bench_open(&b, &small_shape, 100 * GIB, GIB);
    b.profile = made_up_profile(&rates_3090);
    b.profile.gpu.expand = made_up_value(400e9);
    b.r.wish.ctx = 512;
    b.r.wish.step_tokens = 16; /* no lists for prompts: what decode wants is all there is */
    b.r.wish.pack = b.r.wish.pack_gpu = true;
    b.r.strategy = SEARCH_STREAM;
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++)
        for (uint64_t vram = 1152 * MIB; vram <= 2560 * MIB; vram += next) {
            struct plan plan;
            b.profile.gpu.gemv_packed = made_up_value(parts[k] * b.profile.gpu.gemv.value);
            b.r.machine.device.limit = vram;
            make(&b, &plan);
            double seconds = seconds_of(&b.r, &plan);
            const struct best best = brute_force(&b, &plan);
            const bool packs = packed_units(&plan) || packed_head(&plan);
            double gap = seconds / best.all - 1;
            if (gap > 0.03)
                print_message("%llu MiB, %.2f of the plain rate: %.3f ms, the best %.3f, plain %.3f\n",
                              (unsigned long long)(vram / MIB), parts[k], 1e3 * seconds, 1e3 * best.all,
                              1e3 * best.plain);
            assert_true(seconds <= best.plain * (1 + SEARCH_ALIKE));
            if (best.all < best.plain * 0.9) assert_true(packs);
            worst = fmax(worst, gap);
            sum += gap;
            count++;
            packed += packs;
            better += best.all < 0.95 * best.plain;
            plan_free(&plan);
        }
    print_message(
        "%d devices, %d with packed weights in VRAM, of %d that gain a twentieth by it: %.2f %% above the "
        "best at worst, %.2f %% in the mean\n",
        count, packed, better, 100 * worst, 100 * sum / count);
    assert_true(better > count / 4 && packed >= better && packed < count);
    assert_true(worst < 0.05 && sum / count < 0.01);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(made_plans_are_near_the_best),
    };
    return cmocka_run_group_tests_name("planner/packed_search", tests, NULL, NULL);
}
