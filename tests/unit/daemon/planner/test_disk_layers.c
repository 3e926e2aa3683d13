/* The idea of half layers on disk (daemon/planner/disk_layers.c): as few bytes there as memory has no room
 * for, the more memory the fewer and the faster, down to none; MLPs first, evenly spread; a step that takes
 * as long as reading does, or as computing where that is longer, with a band; longer chunks; a device that
 * has as much as it has room for; text, JSON and refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/planner/disk_spread.h"
#include "tests/unit/daemon/planner/explain_case.h"

#define RATE 2e9

static void open_case(struct explain_case *c, uint64_t host, uint64_t vram, double rate)
{
    case_open(c, "qwen3-8b", "thesis-rtx3090", vram);
    if (!vram) c->request.machine.device = (struct ledger_device){.limit = UINT64_MAX};
    snprintf(c->request.no_device, sizeof c->request.no_device, "--device cpu");
    c->request.wish.host_memory_bytes = host;
    c->request.machine.memory.available_bytes = 200 * GIB;
    c->profile.disk_read = (struct profile_value){rate, 0.9 * rate, 1.1 * rate};
}

static void predict(const struct explain_case *c, uint32_t prompt, struct planner_prediction *p)
{
    struct helm_err err = {0};
    if (planner_predict(&c->request, &c->plan, 1, 4096, prompt, p, &err)) fail_msg("%s", err.text);
}

static uint32_t units_at(const struct plan *plan, enum plan_home home, enum unit_part part)
{
    uint32_t count = 0;
    for (uint32_t u = part; u < unit_count(plan->layers); u += UNIT_PARTS)
        count += plan->unit[u].home[0] == home;
    return count;
}

/* Between two of a home there are as many others everywhere, or one more or less. */
static void is_even(const struct plan *plan, enum plan_home home, enum unit_part part)
{
    uint32_t since = UINT32_MAX, least = UINT32_MAX, most = 0;
    for (uint32_t l = 0; l < plan->layers; l++) {
        const bool here = plan->unit[unit_of(l, part)].home[0] == home;
        if (since != UINT32_MAX) since++;
        if (!here) continue;
        if (since != UINT32_MAX && since < least) least = since;
        if (since != UINT32_MAX && since > most) most = since;
        since = 0;
    }
    assert_true(most == 0 || most - least <= 1);
}

static void more_memory_is_fewer_bytes_and_faster(void **state)
{
    (void)state;
    double before = INFINITY;
    uint64_t bytes = UINT64_MAX;
    for (uint64_t gib = 4; gib <= 18; gib += 2) {
        struct explain_case c;
        struct planner_prediction p;
        open_case(&c, gib * GIB, 0, RATE);
        case_make(&c);
        predict(&c, 128, &p);
        const struct plan *plan = &c.plan;
        const struct ledger *host = &plan->memory[PLAN_HOST], *disk = &plan->memory[PLAN_DISK];
        const double read = (double)disk->total / RATE;
        assert_true(host->total <= gib * GIB);
        assert_true(disk->total < bytes && p.decode.seconds < before);
        bytes = disk->total;
        before = p.decode.seconds;
        if (gib == 18) assert_true(!disk->total && !plan_disk_units(plan) && !plan_disk_ring(plan));
        if (gib == 18) bytes = 0;
        if (gib < 18) {
            const uint64_t mlp = 3ull * 4096 * 12288 * 2;
            assert_true(plan_disk_ring(plan) >= 2 * mlp && plan_disk_ring(plan) <= 3 * mlp + MIB);
            /* another half layer would not fit, or attention has room where an MLP has none */
            assert_true(host->limit - host->total < mlp + 4 * MIB);
            assert_true(!units_at(plan, PLAN_HOME_DISK, UNIT_ATTENTION) ||
                        units_at(plan, PLAN_HOME_DISK, UNIT_MLP) == plan->layers);
            is_even(plan, PLAN_HOME_DISK, UNIT_MLP);
            is_even(plan, PLAN_HOME_DISK, UNIT_ATTENTION);
            /* as long as reading takes, but for the last half layers and the head */
            assert_true(p.decode.seconds > read && p.decode.seconds < 1.1 * read + 0.05);
            assert_true(p.decode.low < 0.97 * p.decode.seconds && p.decode.high > 1.03 * p.decode.seconds);
        }
        case_close(&c);
    }
    assert_int_equal(bytes, 0);
}

/* A disk that is faster than the processor is not what a step waits for; a slow one is all of it. Chunks are
 * longer where the disk is slow, and a prompt reads once a chunk. */
static void the_slower_one_counts(void **state)
{
    (void)state;
    uint32_t chunk = UINT32_MAX;
    double rates[] = {0.3e9, 2e9, 1e12}, computing = 0;
    for (int i = 2; i >= 0; i--) {
        struct explain_case c;
        struct planner_prediction p;
        open_case(&c, 8 * GIB, 0, rates[i]);
        c.request.wish.ctx = 8192;
        case_make(&c);
        predict(&c, 8192, &p);
        const double read = (double)c.plan.memory[PLAN_DISK].total / rates[i];
        if (i == 2) computing = p.decode.seconds;
        assert_true(i == 2 ? read < 0.1 * computing : p.decode.seconds > read);
        assert_true(i == 2 || fabs(p.decode.seconds - read) < computing);
        const uint32_t chunks = (8192 + c.plan.step_tokens - 1) / c.plan.step_tokens;
        assert_true(p.ttft.seconds > chunks * read);
        assert_true(chunk == UINT32_MAX || c.plan.step_tokens >= chunk);
        chunk = c.plan.step_tokens;
        case_close(&c);
    }
    assert_true(chunk >= 1024);
}

/* In VRAM as much as it has room for, attention first; less is read the more that is. */
static void a_device_has_what_it_has_room_for(void **state)
{
    (void)state;
    uint64_t before = UINT64_MAX;
    for (uint64_t gib = 3; gib <= 9; gib += 2) {
        struct explain_case c;
        struct planner_prediction p;
        open_case(&c, 4 * GIB, gib * GIB, RATE);
        case_make(&c);
        predict(&c, 128, &p);
        const struct plan *plan = &c.plan;
        assert_true(plan->memory[PLAN_VRAM0].total <= gib * GIB && plan->memory[PLAN_HOST].total <= 4 * GIB);
        assert_true(plan->memory[PLAN_VRAM0].total > gib * GIB - 300 * MIB);
        assert_true(plan->memory[PLAN_DISK].total > 0 && plan->memory[PLAN_DISK].total < before);
        assert_true(!units_at(plan, PLAN_HOME_GPU, UNIT_MLP) ||
                    units_at(plan, PLAN_HOME_GPU, UNIT_ATTENTION) == plan->layers);
        is_even(plan, PLAN_HOME_GPU, UNIT_ATTENTION);
        assert_true(p.decode.seconds > (double)plan->memory[PLAN_DISK].total / RATE);
        before = plan->memory[PLAN_DISK].total;
        case_close(&c);
    }
}

/* ---- the ring ---- */

/* As many times as it is filled, it is filled alike. */
static void a_ring_is_filled_alike(void **state)
{
    (void)state;
    static struct spread_layers l;
    enum plan_home home[SPREAD_UNITS_MAX];
    for (uint32_t layers = 1; layers <= 64; layers++)
        for (uint64_t part = 1; part <= 8; part++) {
            l.units = unit_count(layers);
            uint64_t all = 0, there = 0, least = 0, at = 0, filled = UINT64_MAX;
            for (uint32_t u = 0; u < l.units; u++)
                all += l.room[u] = (unit_part(u) == UNIT_MLP ? 300 : 100) * 4096;
            spread_homes(&l, layers / 4, all * part / 8, home);
            for (uint32_t u = 0; u < l.units; u++) {
                if (home[u] != PLAN_HOME_DISK) continue;
                there += l.room[u];
                if (l.room[u] > least) least = l.room[u];
            }
            const uint64_t ring = spread_ring(&l, home);
            assert_true(there ? ring >= least && ring <= 3 * least : !ring);
            for (uint32_t u = 0; u < l.units; u++) {
                if (home[u] != PLAN_HOME_DISK) continue;
                if (at + l.room[u] > ring) filled = at < filled ? at : filled, at = 0;
                at += l.room[u];
            }
            if (at < filled) filled = at;
            if (there > 12 * least) assert_true(filled + least >= ring / 2);
        }
    for (uint32_t u = 0; u < l.units; u++) l.room[u] = 0; /* none can be on disk */
    spread_homes(&l, 3, UINT64_MAX, home);
    assert_int_equal(spread_ring(&l, home), 0);
}

/* ---- text ---- */

static void an_explained_plan_says_what_is_read(void **state)
{
    (void)state;
    struct explain_case c;
    struct explain x;
    struct helm_err err = {0};
    char *text, line[128], size[UNITS_TEXT];
    size_t bytes;
    open_case(&c, 8 * GIB, 0, RATE);
    case_make(&c);
    if (explain_make(&c.request, &c.plan, 0, &x, &err)) fail_msg("%s", err.text);
    FILE *out = open_memstream(&text, &bytes);
    explain_print(&x, out);
    fclose(out);
    snprintf(line, sizeof line, "disk     %u of 72 half layers, %s a step, through a ring of ",
             plan_disk_units(&c.plan), units_format_size(c.plan.memory[PLAN_DISK].total, size));
    if (!strstr(text, line)) fail_msg("'%s' is missing in\n%s", line, text);
    assert_non_null(strstr(text, "; read at 2.00 GB/s\n"));
    assert_non_null(strstr(text, "  ring for half layers on disk\n"));
    free(text);
    explain_free(&x);
    case_close(&c);
}

static void a_plan_is_text_and_back(void **state)
{
    (void)state;
    struct explain_case c;
    struct plan again = {0};
    struct arena_spec spec;
    struct helm_err err = {0};
    open_case(&c, 8 * GIB, 0, RATE);
    case_make(&c);
    json_t *json = plan_to_json(&c.plan);
    if (plan_from_json(json, &again, &err)) fail_msg("%s", err.text);
    assert_int_equal(plan_disk_ring(&again), plan_disk_ring(&c.plan));
    if (planner_take(&c.request, &again, &spec, &err)) fail_msg("%s", err.text);
    assert_int_equal(again.memory[PLAN_HOST].total, c.plan.memory[PLAN_HOST].total);
    plan_free(&again);
    static const struct {
        uint32_t slots;
        bool ring;
        const char *says;
    } wrong[] = {{0, false, "'disk_slots' is 0 and 'disk_ring_bytes' 0"},
                 {4, true, "a plan has one of the two"},
                 {4, false, "where only experts have slots"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct plan bad;
        assert_int_equal(plan_copy(&c.plan, &bad, &err), 0);
        bad.unit[0].home[0] = wrong[i].slots && wrong[i].ring ? PLAN_HOME_CPU : PLAN_HOME_DISK;
        for (uint32_t u = 0; u < unit_count(bad.layers); u += UNIT_PARTS)
            if (wrong[i].slots && wrong[i].ring) bad.unit[u].home[0] = PLAN_HOME_CPU;
        plan_device_at(&bad, PLAN_HOME_DISK)->experts.slots = wrong[i].slots;
        if (!wrong[i].ring) plan_device_at(&bad, PLAN_HOME_DISK)->ring_bytes = 0;
        assert_int_equal(plan_check(&bad, &err), HELM_E_FORMAT);
        if (!strstr(err.text, wrong[i].says)) fail_msg("'%s' instead of '%s'", err.text, wrong[i].says);
        plan_free(&bad);
    }
    json_decref(json);
    case_close(&c);
}

/* The size that a refusal names, planned again with it; without a disk's rate it names none. */
static void the_size_that_a_refusal_names_suffices(void **state)
{
    (void)state;
    static const char says[] = " GiB of host memory with layers on disk";
    for (uint64_t vram = 0; vram <= 6 * GIB; vram += 2 * GIB)
        for (int required = 0; required < (vram ? 2 : 1); required++) {
            struct explain_case c;
            struct helm_err err = {0};
            struct arena_spec spec;
            open_case(&c, GIB, vram, 0);
            c.request.device_required = required;
            c.request.wish.ctx = 4096;
            assert_int_equal(planner_make(&c.request, &c.plan, &spec, &err), HELM_E_CAPACITY);
            assert_null(strstr(err.text, "on disk"));
            c.profile.disk_read = (struct profile_value){RATE, RATE, RATE};
            assert_int_equal(planner_make(&c.request, &c.plan, &spec, &err), HELM_E_CAPACITY);
            const char *at = strstr(err.text, says);
            if (!at) fail_msg("%s", err.text);
            while (at[-1] != ' ') at--;
            c.request.wish.host_memory_bytes = (uint64_t)(atof(at) * (double)GIB);
            if (planner_make(&c.request, &c.plan, &spec, &err)) fail_msg("%.4s GiB: %s", at, err.text);
            assert_true(plan_disk_units(&c.plan) > 0);
            case_close(&c);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(more_memory_is_fewer_bytes_and_faster),
                                       cmocka_unit_test(the_slower_one_counts),
                                       cmocka_unit_test(a_device_has_what_it_has_room_for),
                                       cmocka_unit_test(a_ring_is_filled_alike),
                                       cmocka_unit_test(an_explained_plan_says_what_is_read),
                                       cmocka_unit_test(a_plan_is_text_and_back),
                                       cmocka_unit_test(the_size_that_a_refusal_names_suffices)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
