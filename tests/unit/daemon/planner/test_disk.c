/* The idea of experts on disk (daemon/planner/disk.c): what host memory has no room for is planned there,
 * with as many slots as fit, the more memory the more and the faster, down to the rate of all in memory; the
 * price is that of the bytes; a device has all that is no expert's and whole layers' experts, and takes part
 * only where that is faster and nothing fits in memory; and without a disk's rate a refusal as before. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/planner/profile/found.h"
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

/* ---- with a device ---- */

static void open_device_case(struct explain_case *c, uint64_t host, uint64_t vram)
{
    case_open(c, "qwen3-30b-a3b", "thesis-rtx3090", vram);
    c->request.wish.host_memory_bytes = host;
    c->request.machine.memory.available_bytes = 200 * GIB;
    c->profile.disk_read = (struct profile_value){RATE, RATE, RATE};
}

static double make_with_device(struct explain_case *c, uint64_t host, uint64_t vram)
{
    struct planner_prediction p;
    open_device_case(c, host, vram);
    case_make(c);
    assert_true(c->plan.memory[PLAN_HOST].total <= host && c->plan.memory[PLAN_VRAM0].total <= vram);
    return seconds_of(c, &c->plan, 512, &p);
}

/* Attention, dense parts and ends in VRAM, and of experts as many whole layers as fit: with more VRAM fewer
 * are on disk, with enough none is, and then the search's plan stands. */
static void more_vram_is_fewer_layers_on_disk(void **state)
{
    (void)state;
    double before = INFINITY;
    uint32_t layers = UINT32_MAX;
    for (uint64_t gib = 4; gib <= 64; gib *= 2) {
        struct explain_case c;
        const double seconds = make_with_device(&c, 16 * GIB, gib * GIB);
        const struct plan *plan = &c.plan;
        const uint32_t disk = plan_disk_units(plan);
        assert_true(seconds < before);
        assert_true(disk < layers);
        if (disk) {
            const uint64_t each = 54 * GIB / plan->layers;
            assert_int_equal(plan->head, PLAN_GPU0);
            for (uint32_t l = 0; l < plan->layers && gib > 4; l++) {
                const enum plan_home experts = plan->unit[unit_of(l, UNIT_MLP)].home[0];
                assert_int_equal(plan->unit[unit_of(l, UNIT_ATTENTION)].home[0], PLAN_HOME_GPU);
                assert_int_equal(experts, l < plan->layers - disk ? PLAN_HOME_GPU : PLAN_HOME_DISK);
            }
            assert_int_equal(plan->memory[PLAN_DISK].total, disk * each);
            /* another layer's experts would not fit in VRAM, nor another slot of each in host memory */
            assert_true(plan->memory[PLAN_VRAM0].total + each > gib * GIB);
            assert_true(plan->memory[PLAN_HOST].total + disk * each / 128 * 102 / 100 +
                            LEDGER_ROUNDING_BYTES >
                        16 * GIB);
        } else {
            assert_true(gib >= 48 && !plan_disk_slots(plan));
        }
        before = seconds;
        layers = disk;
        case_close(&c);
    }
    assert_int_equal(layers, 0);
}

/* Faster than the CPU alone; not planned where memory has room; where the device is required it has a part,
 * where another strategy is asked for none is planned. */
static void a_device_takes_part_where_it_gains(void **state)
{
    (void)state;
    struct explain_case with, alone, roomy;
    struct planner_prediction p;
    struct helm_err err = {0};
    struct arena_spec spec;
    const double seconds = make_with_device(&with, 16 * GIB, 8 * GIB);
    open_case(&alone, 16 * GIB, RATE);
    case_make(&alone);
    assert_true(seconds < 0.95 * seconds_of(&alone, &alone.plan, 512, &p));
    case_close(&alone);
    (void)make_with_device(&roomy, 64 * GIB, 8 * GIB);
    assert_int_equal(plan_disk_units(&roomy.plan), 0);
    case_close(&roomy);
    plan_free(&with.plan);
    with.request.device_required = true;
    case_make(&with);
    assert_true(plan_disk_units(&with.plan) > 0 && plan_devices(&with.plan) == 1);
    plan_free(&with.plan);
    /* a second device has no part in it, but its memory counts where weights may lie */
    with.request.machine.second = with.request.machine.device;
    assert_true(planner_room(&with.request) == 16 * GIB + 2 * with.request.machine.device.limit);
    case_make(&with);
    assert_true(plan_disk_units(&with.plan) > 0 && !plan_uses(&with.plan, PLAN_GPU1));
    with.request.machine.second = (struct ledger_device){.limit = UINT64_MAX};
    plan_free(&with.plan);
    with.request.strategy = SEARCH_MIXED;
    assert_int_equal(planner_make(&with.request, &with.plan, &spec, &err), HELM_E_CAPACITY);
    case_close(&with);
}

/* ---- what a run found ---- */

/* A token is priced by what was counted with another number of slots, a chunk that chooses all by its slots;
 * without counts, or with counts of other experts, each is chosen alike. */
static void what_a_run_found_is_priced(void **state)
{
    (void)state;
    struct explain_case c;
    struct planner_prediction even, counted, other;
    open_case(&c, 16 * GIB, RATE);
    case_make(&c);
    const uint32_t slots = plan_disk_slots(&c.plan);
    const double without = seconds_of(&c, &c.plan, 4096, &even), bytes = 54.0 * GIB * 8 / 128;
    c.profile.found = (struct profile_found){.uses = 1000, .found = 700, .slots = 13, .experts = 128};
    assert_true(fabs(found_part(&c.profile.found, 13, 128) - 0.7) < 1e-9);
    const double found = found_part(&c.profile.found, slots, 128);
    assert_true(found > 0.7 && found < 0.85 && found_part(&c.profile.found, 128, 128) == 1);
    const double with = seconds_of(&c, &c.plan, 4096, &counted),
                 saved = (found - slots / 128.0) * bytes / RATE;
    assert_true(fabs(without - with - saved) < 0.02 * without);
    assert_true(fabs(counted.ttft.seconds - even.ttft.seconds) < 0.02 * even.ttft.seconds);
    c.profile.found.experts = 64;
    assert_true(seconds_of(&c, &c.plan, 4096, &other) == without);
    /* all of few uses were found: one slot does not find all; fewer than chance is none */
    const struct profile_found all = {.uses = 10, .found = 10, .slots = 64, .experts = 128},
                               few = {.uses = 100, .found = 1, .slots = 64, .experts = 128};
    assert_true(found_part(&all, 1, 128) < 0.8);
    assert_true(found_part(&few, 32, 128) == 0.25);
    case_close(&c);
}

static void what_a_run_found_is_kept(void **state)
{
    (void)state;
    char folder[] = "/tmp/helm-test-found-XXXXXX", path[128], command[64];
    struct model model;
    struct helm_err err = {0};
    static struct profile profile; /* large */
    assert_non_null(mkdtemp(folder));
    assert_int_equal(setenv("XDG_CACHE_HOME", folder, 1) | unsetenv("STATE_DIRECTORY"), 0);
    if (model_read("tests/data/golden/mixtral", &model, &err)) fail_msg("%s", err.text);
    assert_int_equal(found_read(&model, &profile, &err), HELM_E_NOT_FOUND);
    assert_true(profile.found.of && !profile.found.uses);
    struct profile_found found = profile.found;
    found.uses = 1000, found.found = 700, found.slots = 3, found.experts = 8;
    if (found_write(&found, &err)) fail_msg("%s", err.text);
    if (found_read(&model, &profile, &err)) fail_msg("%s", err.text);
    assert_memory_equal(&profile.found, &found, sizeof found);
    found.found = 1001; /* more than uses */
    if (found_write(&found, &err)) fail_msg("%s", err.text);
    assert_int_equal(found_read(&model, &profile, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "'found' is 1001"));
    assert_true(profile.found.of && !profile.found.uses);
    snprintf(path, sizeof path, "%s/helm/profiles/experts-%016llx.json", folder,
             (unsigned long long)found.of);
    assert_int_equal(unlink(path), 0);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    model_free(&model);
}

/* A short run moves what a long one counted by its share, with whatever number of slots, and the sum is
 * bounded: a change of the model's use is followed. */
static void runs_are_added_up(void **state)
{
    (void)state;
    struct profile_found all = {.of = 1},
                         half = {.of = 1, .uses = 1000, .found = 500, .slots = 16, .experts = 128};
    const struct profile_found run = {.of = 1, .uses = 100000, .found = 70000, .slots = 13, .experts = 128};
    found_add(&all, &run);
    assert_memory_equal(&all, &run, sizeof run);
    found_add(&all, &half);
    assert_int_equal(all.uses, 101000);
    assert_int_equal(all.slots, 16);
    const double before = found_part(&run, 16, 128), now = found_part(&all, 16, 128);
    assert_true(before > 0.7 && fabs(now - (100 * before + 0.5) / 101) < 1e-4);
    for (int i = 0; i < 400; i++) {
        half.uses = 1000000, half.found = 500000;
        found_add(&all, &half);
        assert_true(all.uses <= FOUND_USES_MOST && all.found <= all.uses);
    }
    assert_true(fabs(found_part(&all, 16, 128) - 0.5) < 1e-3);
    half.experts = 64;
    found_add(&all, &half);
    assert_memory_equal(&all, &half, sizeof half);
}

/* Text and JSON: each memory's experts, and the part of the choices that is found there. */
static void an_explained_plan_has_its_levels(void **state)
{
    (void)state;
    struct explain_case c;
    struct explain x;
    struct helm_err err = {0};
    char *text;
    size_t size;
    (void)make_with_device(&c, 16 * GIB, 8 * GIB);
    if (explain_make(&c.request, &c.plan, 0, &x, &err)) fail_msg("%s", err.text);
    const uint32_t disk = plan_disk_units(&c.plan), all = c.plan.layers;
    const double slots = plan_disk_slots(&c.plan) / 128.0;
    assert_int_equal(x.experts.there[PLAN_DISK], c.plan.memory[PLAN_DISK].total);
    assert_int_equal(x.experts.there[PLAN_VRAM0] + x.experts.there[PLAN_DISK], 54 * GIB);
    assert_true(fabs(x.experts.found[PLAN_VRAM0] - (all - disk) / (double)all) < 1e-9);
    assert_true(fabs(x.experts.found[PLAN_HOST] - disk * slots / all) < 1e-9);
    assert_true(fabs(x.experts.found[PLAN_DISK] - disk * (1 - slots) / all) < 1e-9);
    FILE *out = open_memstream(&text, &size);
    explain_print(&x, out);
    fclose(out);
    assert_non_null(strstr(text, "\n         vram "));
    assert_non_null(strstr(text, "; read at 3.00 GB/s\n"));
    free(text);
    json_t *json = explain_to_json(&x), *levels = json_object_get(json, "experts_by_level");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(levels, "disk"), "bytes")),
                     (json_int_t)x.experts.there[PLAN_DISK]);
    assert_int_equal(json_object_size(levels), 3);
    json_decref(json);
    explain_free(&x);
    case_close(&c);
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

/* The size that a refusal names, as text with a unit; 0: it names none with experts on disk. */
static uint64_t named_host(const char *text)
{
    static const char end[] = " of host memory with experts on disk";
    const char *at = strstr(text, end);
    double size = 0;
    char unit[4] = "";
    if (!at) return 0;
    while (at > text && at[-1] != ' ') at--;
    at--;
    while (at > text && at[-1] != ' ') at--;
    assert_int_equal(sscanf(at, "%lf %3s", &size, unit), 2);
    return (uint64_t)(size * (double)(strcmp(unit, "GiB") == 0 ? GIB : GIB >> 10));
}

/* Planned again with it, whatever the device has room for, if it must take part as well. */
static void the_size_that_a_refusal_names_suffices(void **state)
{
    (void)state;
    uint32_t named = 0;
    for (uint64_t vram = GIB / 2; vram <= 8 * GIB; vram += vram / 2)
        for (int required = 0; required < 2; required++) {
            struct explain_case c;
            struct plan plan = {0};
            struct arena_spec spec;
            struct helm_err err = {0};
            open_device_case(&c, GIB / 2, vram);
            c.request.device_required = required;
            c.request.wish.ctx = 4096;
            assert_int_equal(planner_make(&c.request, &plan, &spec, &err), HELM_E_CAPACITY);
            const uint64_t host = named_host(err.text);
            named += host > 0;
            c.request.wish.host_memory_bytes = host;
            if (host && planner_make(&c.request, &plan, &spec, &err))
                fail_msg("%.2f GiB of VRAM, %s: %s", (double)vram / GIB, required ? "required" : "auto",
                         err.text);
            plan_free(&plan);
            case_close(&c);
        }
    assert_true(named >= 8);
}

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    refused(0, 16 * GIB, NULL, "nearest would be 57.");   /* no rate of the disk */
    refused(RATE, 2 * GIB, NULL, "nearest would be 57."); /* what is no expert's does not fit */
    refused(RATE, 2 * GIB, NULL, "or 4.32 GiB of host memory with experts on disk");
    struct explain_case c;
    open_case(&c, (uint64_t)(4.32 * GIB), RATE);
    c.request.wish.ctx = LEDGER_CTX_LEAST;
    case_make(&c);
    assert_int_equal(plan_disk_slots(&c.plan), 1);
    case_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(more_memory_is_more_slots_and_faster),
                                       cmocka_unit_test(more_vram_is_fewer_layers_on_disk),
                                       cmocka_unit_test(a_device_takes_part_where_it_gains),
                                       cmocka_unit_test(an_explained_plan_has_its_levels),
                                       cmocka_unit_test(what_a_run_found_is_priced),
                                       cmocka_unit_test(what_a_run_found_is_kept),
                                       cmocka_unit_test(runs_are_added_up),
                                       cmocka_unit_test(a_plan_is_text_and_back),
                                       cmocka_unit_test(the_size_that_a_refusal_names_suffices),
                                       cmocka_unit_test(what_cannot_be_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
