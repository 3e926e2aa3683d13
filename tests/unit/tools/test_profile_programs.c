/* A model's own programs, measured by helm-profile: every kind of half layer of models from their
 * configuration alone, in the ways that this processor has; and that time is bounded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tools/profile/profile_tool.h"

static struct programs programs;

static void measure(const char *folder, bool invariant, double seconds)
{
    struct model model = {0};
    struct helm_err err = {0};
    bool derived;
    const struct profile_programs request = {
        .cpu = {.threads = 2, .node = -1, .quick = true, .caches = 1 << 20, .invariant = invariant},
        .model = &model,
        .kv_dtype = KV_F16,
        .seconds = seconds};
    if (model_read_headers(folder, &model, &derived, &err)) fail_msg("%s", err.text);
    if (!invariant) programs_list(&model, &programs);
    if (profile_programs_measure(&request, &programs, &err)) fail_msg("%s: %s", folder, err.text);
    assert_null(model.tensors); /* taken */
}

static bool has(const struct programs_times *times, uint32_t tokens)
{
    for (uint32_t i = 0; i < times->count; i++)
        if (times->cell[i].tokens == tokens) return true;
    return false;
}

static void check_cells(const struct programs_times *times, const char *name)
{
    for (uint32_t i = 0; i < times->count; i++) {
        const struct programs_cell *c = &times->cell[i];
        if (!(c->seconds > 0 && c->low <= c->seconds && c->high >= c->seconds && c->seconds < 60))
            fail_msg("%s: %u tokens: %g (%g to %g)", name, c->tokens, c->seconds, c->low, c->high);
    }
}

/* Layers that attend and gated delta nets, dense MLPs, experts with a shared one, windows and sinks. */
static void every_kind_is_measured(void **state)
{
    (void)state;
    static const char *const folders[] = {"tests/data/golden/qwen3", "tests/data/golden/qwen35moe",
                                          "tests/data/golden/gptoss"};
    for (size_t f = 0; f < sizeof folders / sizeof *folders; f++) {
        measure(folders[f], false, 60);
        if (f == 0) measure(folders[f], true, 60);
        assert_true(programs.kinds >= 3);
        for (uint32_t k = 0; k < programs.kinds; k++) {
            const struct programs_kind *kind = &programs.kind[k];
            const bool head = k + 1 == programs.kinds;
            for (int w = 0; w < PROGRAMS_WAYS; w++) check_cells(&kind->cpu[w], kind->name);
            for (int w = 0; w <= (f == 0 ? PROGRAMS_INVARIANT : 0); w += PROGRAMS_INVARIANT) {
                if (!has(&kind->cpu[w], 1) || !has(&kind->cpu[w], 16))
                    fail_msg("%s: %s: no time of a token or of 16", folders[f], kind->name);
                assert_int_equal(has(&kind->cpu[w], 512), !head);
            }
        }
    }
}

/* Without time there is the next token's, which nothing does without, and nothing else. */
static void time_is_bounded(void **state)
{
    (void)state;
    measure("tests/data/golden/qwen3", false, 0);
    for (uint32_t k = 0; k < programs.kinds; k++) {
        assert_true(has(&programs.kind[k].cpu[PROGRAMS_EXACT], 1));
        for (uint32_t tokens = 2; tokens <= 2048; tokens *= 2)
            assert_false(has(&programs.kind[k].cpu[PROGRAMS_EXACT], tokens));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_is_measured),
        cmocka_unit_test(time_is_bounded),
    };
    return cmocka_run_group_tests_name("profile/programs", tests, NULL, NULL);
}
