/* The idea of experts on disk (daemon/planner/disk.c): what host memory has no room for is planned there,
 * with as many slots as fit, the more memory the more and the faster, down to the rate of all in memory; the
 * price is that of the bytes; and without a disk's rate a refusal as before. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "tests/unit/daemon/planner/explain_case.h"

#define RATE 3e9

static void open_case(struct explain_case *c, uint64_t host, double rate)
{
    case_open(c, "qwen3-30b-a3b", "thesis-rtx3090", 0);
    c->request.machine.device = (struct ledger_device){.limit = UINT64_MAX};
    snprintf(c->request.no_device, sizeof c->request.no_device, "--device cpu");
    c->request.wish.host_memory_bytes = host;
    c->request.machine.memory.available_bytes = 200 * GIB;
    c->profile.disk_read = (struct profile_value){rate, rate, rate};
}

static double seconds_of(const struct explain_case *c, const struct plan *plan, uint32_t prompt,
                         struct planner_prediction *p)
{
    struct helm_err err = {0};
    if (planner_predict(&c->request, plan, 1, 4096, prompt, p, &err)) fail_msg("%s", err.text);
    return p->decode.seconds;
}

static void more_memory_is_more_slots_and_faster(void **state)
{
    (void)state;
    double before = INFINITY;
    uint32_t slots = 0;
    for (uint64_t gib = 6; gib <= 62; gib += 8) {
        struct explain_case c;
        struct planner_prediction p;
        struct plan plan = {0};
        struct arena_spec spec;
        struct helm_err err = {0};
        open_case(&c, gib * GIB, RATE);
        if (planner_make(&c.request, &plan, &spec, &err))
            fail_msg("%llu GiB: %s", (unsigned long long)gib, err.text);
        const double seconds = seconds_of(&c, &plan, 512, &p);
        const struct ledger *host = &plan.memory[PLAN_HOST], *disk = &plan.memory[PLAN_DISK];
        assert_true(host->total <= gib * GIB);
        assert_true(seconds < before);
        if (plan_disk_units(&plan)) {
            assert_int_equal(plan_disk_units(&plan), plan.layers);
            assert_true(plan_disk_slots(&plan) > slots);
            assert_int_equal(disk->total, 54 * GIB);
            /* another slot of each layer would not fit, with the rounding that the planner leaves */
            assert_true(host->limit - host->total < 54 * GIB / 128 * 102 / 100 + LEDGER_ROUNDING_BYTES);
            /* the bytes of the experts that have no slot, and computing on top of at most as much */
            const double read = 54.0 * GIB * 8 / 128 * (1 - plan_disk_slots(&plan) / 128.0) / RATE;
            assert_true(seconds > read && seconds < 1.15 * read + 0.12);
            /* half of what is read may be there in truth */
            assert_true(p.decode.low < seconds - 0.4 * read && p.decode.high > seconds + 0.4 * read);
            /* a chunk reads every expert that has no slot */
            assert_true(p.ttft.seconds > 54.0 * GIB * (1 - plan_disk_slots(&plan) / 128.0) / RATE);
        } else {
            assert_true(gib > 56 && disk->line_count == 0 && !plan_disk_slots(&plan));
        }
        before = seconds;
        slots = plan_disk_slots(&plan);
        plan_free(&plan);
        case_close(&c);
    }
    assert_int_equal(slots, 0); /* the last one has all in memory */
}

static void a_plan_is_text_and_back(void **state)
{
    (void)state;
    struct explain_case c;
    struct plan plan = {0}, again = {0};
    struct arena_spec spec;
    struct helm_err err = {0};
    open_case(&c, 16 * GIB, RATE);
    if (planner_make(&c.request, &plan, &spec, &err)) fail_msg("%s", err.text);
    json_t *json = plan_to_json(&plan);
    if (plan_from_json(json, &again, &err)) fail_msg("%s", err.text);
    assert_int_equal(plan_disk_slots(&again), plan_disk_slots(&plan));
    assert_int_equal(again.memory[PLAN_DISK].total, plan.memory[PLAN_DISK].total);
    if (planner_take(&c.request, &again, &spec, &err)) fail_msg("%s", err.text);
    assert_int_equal(again.memory[PLAN_HOST].total, plan.memory[PLAN_HOST].total);
    plan_free(&again);
    static const struct {
        uint32_t unit, slots;
        const char *says;
    } wrong[] = {{1, 0, "'disk_slots' is 0"}, {0, 4, "the attention of layer 0 has 'disk' as home"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct plan bad;
        assert_int_equal(plan_copy(&plan, &bad, &err), 0);
        bad.unit[wrong[i].unit].home[0] = PLAN_HOME_DISK;
        plan_device_at(&bad, PLAN_HOME_DISK)->experts.slots = wrong[i].slots;
        assert_int_equal(plan_check(&bad, &err), HELM_E_FORMAT);
        if (!strstr(err.text, wrong[i].says)) fail_msg("'%s' instead of '%s'", err.text, wrong[i].says);
        plan_free(&bad);
    }
    json_decref(json);
    plan_free(&plan);
    case_close(&c);
}

static void refused(double rate, uint64_t host, const char *model, const char *says)
{
    struct explain_case c;
    struct plan plan = {0};
    struct arena_spec spec;
    struct helm_err err = {0};
    open_case(&c, host, rate);
    if (model) {
        case_close(&c);
        case_open(&c, model, "thesis-rtx3090", 0);
        c.request.machine.device = (struct ledger_device){.limit = UINT64_MAX};
        c.request.wish.host_memory_bytes = host;
        c.profile.disk_read = (struct profile_value){rate, rate, rate};
    }
    assert_int_equal(planner_make(&c.request, &plan, &spec, &err), HELM_E_CAPACITY);
    if (!strstr(err.text, says)) fail_msg("'%s' instead of '%s'", err.text, says);
    case_close(&c);
}

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    refused(0, 16 * GIB, NULL, "nearest would be 57.");   /* no rate of the disk */
    refused(RATE, 2 * GIB, NULL, "nearest would be 57."); /* what is no expert's does not fit */
    refused(RATE, 4 * GIB, "qwen3-8b", "of host memory"); /* a dense model */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(more_memory_is_more_slots_and_faster),
                                       cmocka_unit_test(a_plan_is_text_and_back),
                                       cmocka_unit_test(what_cannot_be_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
