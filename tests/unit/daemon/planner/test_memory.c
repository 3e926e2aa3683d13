/* Unit tests of daemon/planner/memory/memory.c: what the search adds up is what the ledger then writes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "common/base/units.h"
#include "daemon/planner/memory/memory.h"
#include "tests/unit/daemon/planner/made_up_model.h"
#include "tests/written_plans.h"

#define LAYERS 6
#define UNITS  (2 * LAYERS)
#define CTX    1024
#define PAGES  32

static const struct made_up_shape small = {LAYERS, 512, 1536, 8, 2, 64, 4000, false};
static const struct made_up_shape small_tied = {LAYERS, 512, 1536, 8, 2, 64, 4000, true};
static const struct ledger_wish usual = {
    .kv_dtype = KV_F16, .slots = 4, .step_tokens = 256, .page_tokens = 32, .threads = 2};

static struct ledger_machine machine_of(enum ledger_device_kind kind)
{
    return (struct ledger_machine){.memory = {.limit_bytes = CGROUP_UNLIMITED,
                                              .machine_bytes = 64 * GIB,
                                              .available_bytes = 40 * GIB},
                                   .device = {.kind = kind,
                                              .limit = 8 * GIB,
                                              .context_bytes = 300 * MIB,
                                              .graph_bytes = 10 * MIB,
                                              .graph_layer_bytes = 100 * KIB,
                                              .graph_slice_bytes = 5 * KIB,
                                              .library_bytes = 20 * MIB}};
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void random_homes(uint32_t *seed, bool tied, struct search_found *found)
{
    bool stream = false;
    for (uint32_t u = 0; u < UNITS; u++) {
        found->home[u] = (enum plan_home)(next_random(seed) % 3);
        stream |= found->home[u] == PLAN_HOME_STREAM;
    }
    found->embed = (enum plan_processor)(next_random(seed) % 2);
    found->head = tied ? found->embed : (enum plan_processor)(next_random(seed) % 2);
    found->ring_bytes = stream ? 4 * MIB : 0;
}

/* The ledger's total without what is there whatever the plan is. */
static uint64_t host_beside(const struct ledger_case *c, const struct plan *plan)
{
    struct helm_err err = {0};
    uint64_t fixed;
    assert_int_equal(ledger_fixed_host_bytes(c, CTX, &fixed, &err), 0);
    return plan->memory[PLAN_HOST].total > fixed ? plan->memory[PLAN_HOST].total - fixed : 0;
}

static void hold_against_ledger(const struct ledger_case *c, struct search_found *found,
                                const struct memory *memory)
{
    struct plan_unit unit[UNITS + 2];
    struct plan plan = {.layers = LAYERS,
                        .unit = units_of_homes(unit, LAYERS, found->home),
                        .device[PLAN_GPU0].ring_bytes = found->ring_bytes,
                        .embed = found->embed,
                        .head = found->head};
    struct arena_spec spec;
    struct helm_err err = {0};
    const struct search_bytes sum = memory_sum(memory, found, c->table->tied, UNITS);
    if (ledger_write(c, CTX, PAGES, &plan, &spec, &err)) fail_msg("%s", err.text);
    plan_drop_placements(&plan);
    bool cpu = plan_uses(&plan, PLAN_CPU0), gpu = plan_uses(&plan, PLAN_GPU0);
    /* Never less than the ledger; more only by what does not add up by units: graphs of slices, the
     * workspace of layers where only the head is there, lanes of a plan of one worker. */
    bool layers = plan_most_tokens(&plan, PLAN_GPU0) > 0;
    const struct ledger_workspace with = {.step_tokens = 256, .ctx = CTX, .layers = true},
                                  without = {.step_tokens = 256, .ctx = CTX};
    const uint64_t idle =
        layers || !gpu ? 0 : ledger_workspace_bytes(c, &with) - ledger_workspace_bytes(c, &without);
    const uint64_t vram = gpu ? plan.memory[PLAN_VRAM0].total : 0;
    uint64_t slices = 0; /* the search does not know yet how large the ring's will be */
    for (uint32_t u = 0; u < UNITS; u++)
        if (found->home[u] == PLAN_HOME_STREAM)
            slices += ledger_graph_bytes(c, u, memory->search.ring_granule) -
                      ledger_graph_bytes(c, u, found->ring_bytes);
    assert_in_range(sum.vram, vram, vram + idle + slices + 128 * KIB);
    const uint64_t lanes = cpu && gpu ? 0 : 2 * lane_bytes(256, 512);
    const uint64_t emulated =
        c->machine->device.kind == LEDGER_DEVICE_EMULATED ? idle + slices + memory->search.ring_max : 0;
    assert_true(sum.host >= host_beside(c, &plan));
    assert_true(sum.host <=
                host_beside(c, &plan) + lanes + emulated + ledger_cpu_buffer_bytes(c, 256) + 16 * MIB);
}

static void sums_are_the_ledgers(void **state)
{
    (void)state;
    static const enum ledger_device_kind kinds[] = {LEDGER_DEVICE_CUDA, LEDGER_DEVICE_EMULATED};
    uint32_t seed = 7;
    for (int variant = 0; variant < 4; variant++) {
        struct made_up made;
        struct helm_err err = {0};
        struct memory memory;
        enum plan_home home[UNITS];
        struct search_found found = {.home = home};
        bool tied = variant & 1;
        assert_true(made_up_open(&made, tied ? &small_tied : &small));
        const struct ledger_machine machine = machine_of(kinds[variant >> 1]);
        const struct ledger_case c = {.model = &made.model,
                                      .wish = &usual,
                                      .machine = &machine,
                                      .table = &made.analysed};
        const struct memory_wish wish = {.ctx = CTX, .pages = PAGES, .device = true, .cpu = true};
        assert_int_equal(memory_build(&c, &wish, &memory, &err), 0);
        for (int i = 0; i < 500; i++) {
            random_homes(&seed, tied, &found);
            hold_against_ledger(&c, &found, &memory);
        }
        memory_free(&memory);
        made_up_close(&made);
    }
}

static void limits_are_what_is_left(void **state)
{
    (void)state;
    struct made_up made;
    struct helm_err err = {0};
    struct memory memory;
    uint64_t fixed;
    assert_true(made_up_open(&made, &small));
    struct ledger_machine machine = machine_of(LEDGER_DEVICE_CUDA);
    const struct ledger_case c = {.model = &made.model,
                                  .wish = &usual,
                                  .machine = &machine,
                                  .table = &made.analysed};
    struct memory_wish wish = {
        .ctx = CTX, .pages = PAGES, .device = true, .less_vram = GIB, .less_host = MIB};
    assert_int_equal(ledger_fixed_host_bytes(&c, CTX, &fixed, &err), 0);
    assert_int_equal(memory_build(&c, &wish, &memory, &err), 0);
    assert_int_equal(memory.search.vram_limit, 7 * GIB);
    assert_int_equal(memory.search.host_limit, 40 * GIB - fixed - MIB);
    assert_int_equal(memory.vram_missing, 0);
    assert_int_equal(memory.host_missing, 0);
    assert_int_equal(memory.search.ring_least, 0);
    memory_free(&memory);
    machine.memory.available_bytes = 10 * MIB;
    wish.prefill = true;
    assert_int_equal(memory_build(&c, &wish, &memory, &err), 0);
    assert_int_equal(memory.search.host_limit, 0);
    assert_int_equal(memory.host_missing, fixed + MIB - 10 * MIB);
    assert_in_range(memory.search.ring_least, memory.search.ring_granule, memory.search.ring_max);
    memory_free(&memory);
    wish.device = false;
    assert_int_equal(memory_build(&c, &wish, &memory, &err), 0);
    assert_int_equal(memory.search.vram_limit, 0);
    memory_free(&memory);
    wish.pages = UINT32_MAX;
    made.model.config.kv_heads = 4096;
    made.model.config.head_dim = 4096;
    assert_int_equal(memory_build(&c, &wish, &memory, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "pages"));
    made_up_close(&made);
}

static void rings_hold_slices_and_leave_the_device_room(void **state)
{
    (void)state;
    static const struct made_up_shape *const shapes[] = {&small, &shape_8b, &shape_32b, &shape_70b};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        struct made_up made;
        assert_true(made_up_open(&made, shapes[s]));
        /* 16 rows of gate and of up, or of down; and the same again while those are computed. */
        uint64_t gates = 2 * 16ull * shapes[s]->hidden * 2, down = 16ull * shapes[s]->intermediate * 2;
        uint64_t least = memory_ring_least(&made.model), before = 0;
        assert_in_range(least, 2 * (gates > down ? gates : down), 2 * (gates > down ? gates : down) + 2048);
        for (uint64_t vram = 64 * MIB; vram <= 128 * GIB; vram *= 2) {
            struct ledger_machine machine = machine_of(LEDGER_DEVICE_CUDA);
            machine.device.limit = vram;
            const struct ledger_case c = {.model = &made.model,
                                          .wish = &usual,
                                          .machine = &machine,
                                          .table = &made.analysed};
            uint64_t granule, largest;
            memory_ring_sizes(&c, &granule, &largest);
            assert_true(granule >= least && granule >= before && largest % granule == 0);
            assert_true(largest <= vram / 4 || granule <= 2 * least || granule == 64 * KIB);
            before = granule;
        }
        assert_true(before * 4 <= analyse_units_stored(&made.analysed, 1, 1) || before == 64 * KIB);
        made_up_close(&made);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_the_ledgers),
        cmocka_unit_test(limits_are_what_is_left),
        cmocka_unit_test(rings_hold_slices_and_leave_the_device_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
