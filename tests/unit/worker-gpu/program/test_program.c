/* Unit tests of worker-gpu/program*.c and print.c: which programs there are, what they work in, how a plan
 * reads when it is printed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "daemon/planner/memory/ledger.h"
#include "worker-gpu/engine.h"
#include "worker-gpu/program/program.h"
#include "tests/written_formats.h"
#include "tests/written_plans.h"

static void programs_follow_the_lists(void **state)
{
    (void)state;
    struct plan plan = {.prefill_count = 2, .prefill_from = {17, 300}};
    struct helm_err err = {0};
    assert_int_equal(gpu_program_check_phases(&plan, &err), 0);
    for (int t = 0; t < GPU_TIER_CHUNK; t++) {
        assert_true(gpu_program_exists(&plan, 512, 0, (enum gpu_tier)t));
        assert_false(gpu_program_exists(&plan, 512, 1, (enum gpu_tier)t));
    }
    assert_false(gpu_program_exists(&plan, 512, 0, GPU_TIER_CHUNK));
    assert_true(gpu_program_exists(&plan, 512, 1, GPU_TIER_CHUNK));
    assert_true(gpu_program_exists(&plan, 512, 2, GPU_TIER_CHUNK));
    assert_false(gpu_program_exists(&plan, 299, 2, GPU_TIER_CHUNK));
    assert_false(gpu_program_exists(&plan, 2, 0, GPU_TIER_4));
    plan.invariant = true; /* 1, 8 and 16 tokens alone, the latter where steps have them */
    for (int t = 0; t < GPU_TIER_CHUNK; t++)
        assert_int_equal(gpu_program_exists(&plan, 512, 0, (enum gpu_tier)t),
                         t == GPU_TIER_1 || t == GPU_TIER_8 || t == GPU_TIER_16);
    assert_false(gpu_program_exists(&plan, 8, 0, GPU_TIER_16));
    assert_true(gpu_program_exists(&plan, 2, 0, GPU_TIER_8));
    assert_false(gpu_program_exists(&plan, 1, 0, GPU_TIER_8));
    const struct plan_schedule decode = {0}, chunk = {.chunk = true};
    assert_int_equal(gpu_tier_for(&plan, &decode, 1), GPU_TIER_1);
    assert_int_equal(gpu_tier_for(&plan, &decode, 2), GPU_TIER_8);
    assert_int_equal(gpu_tier_for(&plan, &decode, 8), GPU_TIER_8);
    assert_int_equal(gpu_tier_for(&plan, &decode, 9), GPU_TIER_16);
    assert_int_equal(gpu_tier_for(&plan, &chunk, 1), GPU_TIER_CHUNK);
    plan.invariant = false;
    assert_int_equal(gpu_tier_for(&plan, &decode, 1), GPU_TIER_1);
    plan.prefill_from[0] = 18;
    assert_true(gpu_program_exists(&plan, 512, 0, GPU_TIER_CHUNK));
    plan.prefill_from[0] = 16;
    assert_int_equal(gpu_program_check_phases(&plan, &err), HELM_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "16"));
    assert_non_null(strstr(err.text, "17"));
}

/* The planner charges what the worker takes; no kernel of the device wants more than its place there. */
static void workspace_is_as_charged(void **state)
{
    (void)state;
    const struct device_options options = {.name = "emulated"};
    struct device *d;
    struct helm_err err = {0};
    struct plan_unit unit[WRITTEN_UNITS(36)];
    struct plan plan = {.layers = 36,
                        .unit = units_all(unit, 36, PLAN_HOME_GPU),
                        .embed = PLAN_GPU0,
                        .head = PLAN_GPU0};
    static const struct model_config shapes[] = {
        {.hidden = 4096, .intermediate = 12288, .vocab = 151936, .heads = 32, .kv_heads = 8, .head_dim = 128},
        {.hidden = 1024, .intermediate = 3072, .vocab = 151936, .heads = 16, .kv_heads = 8, .head_dim = 128},
        {.hidden = 5120, .intermediate = 25600, .vocab = 151936, .heads = 64, .kv_heads = 8, .head_dim = 128},
        {.hidden = 256, .intermediate = 704, .vocab = 512, .heads = 8, .kv_heads = 2, .head_dim = 64},
        {.hidden = 5120,
         .intermediate = 17408,
         .vocab = 248320,
         .heads = 24,
         .kv_heads = 4,
         .head_dim = 256,
         .gated_attention = true,
         .delta = {.key_heads = 16, .value_heads = 48, .key_dim = 128, .value_dim = 128, .channels = 10240}},
    };
    static const uint32_t tokens[] = {1, 64, 192, 512, 2048, 4096};
    assert_int_equal(device_open(&options, &d, &err), 0);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++) {
            struct model model = {.config = shapes[s]};
            struct gpu_buffers buffers = {0};
            const struct arena_header h = {.slots = 8,
                                           .samples = 8,
                                           .step_tokens = tokens[t],
                                           .context_tokens = 8192,
                                           .pages_per_slot = 8192 / 32,
                                           .kv = {.dtype = DTYPE_BF16}};
            model.config.dtype = DTYPE_BF16;
            model.config.layers = 36;
            strcpy(model.config.architecture, "LlamaForCausalLM");
            plan.device[PLAN_GPU0].vram_page_count = (s + t) % 2 ? 100 : 0; /* two tiers take more */
            gpu_buffers_place(&model, &plan, PLAN_GPU0, &h, d, &buffers);
            const struct ledger_wish wish = {.kv_dtype = KV_BF16, .slots = 8, .page_tokens = 32};
            const struct ledger_case c = {.model = &model, .wish = &wish};
            const struct ledger_workspace what = {.step_tokens = tokens[t],
                                                  .ctx = 8192,
                                                  .layers = true,
                                                  .head = true,
                                                  .tiered = plan_kv_tiered(&plan)};
            /* an invariant plan's products are of multiples */
            assert_int_equal(buffers.work.sub_tokens % GPU_STEADY_TOKENS, 0);
            assert_int_equal(buffers.work.bytes - d->ask.matmul_workspace, ledger_workspace_bytes(&c, &what));
            if (gpu_buffers_check(&model.config, d, &buffers, &err)) fail_msg("%s", err.text);
            buffers.work.area[GPU_AREA_FEW].bytes = 0;
            assert_int_equal(gpu_buffers_check(&model.config, d, &buffers, &err), HELM_E_INTERNAL);
            assert_non_null(strstr(err.text, "candidates"));
        }
    plan.device[PLAN_GPU0].vram_page_count = 0;
    /* without chains there are no lists */
    const struct arena_header h = {
        .slots = 8, .samples = 8, .step_tokens = 1, .pages_per_slot = 1, .kv = {.dtype = DTYPE_BF16}};
    struct model model = {.config = shapes[0]};
    struct gpu_buffers with = {0}, without = {0};
    model.config.layers = 36;
    strcpy(model.config.architecture, "LlamaForCausalLM");
    gpu_buffers_place(&model, &plan, PLAN_GPU0, &h, d, &with);
    d->no_chains = "of this test";
    gpu_buffers_place(&model, &plan, PLAN_GPU0, &h, d, &without);
    const uint64_t chains = with.work.area[GPU_AREA_CHAINS].bytes;
    assert_int_equal(without.work.area[GPU_AREA_CHAINS].bytes, 0);
    assert_true(chains >= d->ask.chain_bytes(NULL, 5 * 36 + 1));
    assert_int_equal(with.work.bytes - without.work.bytes, (chains + 255) / 256 * 256);
    device_close(d);
}

/* The sub-chunks' arrays lie apart from each other and from the page table. */
static void step_blocks_do_not_overlap(void **state)
{
    (void)state;
    static const uint32_t tokens[] = {1, 16, 512, 576, 1088, 4096};
    for (size_t i = 0; i < 2 * sizeof tokens / sizeof *tokens; i++) {
        struct gpu_block b;
        char *base = calloc(1, 1 << 20);
        const bool two_tables = i % 2;
        gpu_block_place(tokens[i / 2], 9, 7, two_tables, &b);
        assert_true(b.arena_table + (two_tables ? 9 * 7 * sizeof(uint32_t) : 0) <= b.page_table);
        assert_int_equal(b.arena_table == b.page_table, !two_tables);
        assert_true(b.row_begin >= b.row_slot + 9 * sizeof(uint32_t));
        assert_true(b.row_begin + 9 * sizeof(uint32_t) <= b.sample_token);
        assert_true(b.bytes < 1 << 20);
        assert_int_equal(b.subs, (tokens[i / 2] + 511) / 512);
        const char *last = base;
        for (uint32_t sub = 0; sub < b.subs; sub++) {
            const struct gpuk_step step = gpu_block_step(&b, base, 7, sub);
            assert_ptr_equal(step.token_id, (const uint32_t *)(base + b.token_id) + 512 * sub);
            assert_ptr_equal(step.page_table, base + b.page_table);
            assert_true((const char *)step.counts >= last);
            last = (const char *)(step.row_slot + 9);
            assert_true((const char *)(step.token_row + (tokens[i / 2] < 512 ? tokens[i / 2] : 512)) <=
                        (const char *)step.row_first);
            assert_true((const char *)(step.row_first + 10) <= (const char *)step.row_slot);
            assert_true(last <= base + b.arena_table);
        }
        free(base);
    }
}

static char *printed_of(const char *folder, const struct plan *plan, int expected)
{
    char *text = NULL;
    size_t bytes = 0;
    struct helm_err err = {0};
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    int rc = gpu_print_plan(folder, plan, 1, "", out, &err);
    fclose(out);
    if (rc != expected) fail_msg("%d: %s", rc, err.text);
    return text;
}
static char *printed(const struct plan *plan, int expected)
{
    return printed_of("tests/data/golden/qwen3", plan, expected);
}

static void plans_are_printed(void **state)
{
    (void)state;
    struct plan_unit unit[WRITTEN_UNITS(4)];
    const enum plan_home d[] = {0, 2, 1, 2, 0, 0, 2, 2}, p[] = {2, 2, 1, 2, 2, 2, 2, 2};
    struct plan plan = {.layers = 4,
                        .unit = units_of_homes(unit, 4, d),
                        .device[PLAN_GPU0].ring_bytes = 300 * KIB,
                        .step_tokens = 600,
                        .embed = PLAN_CPU0,
                        .head = PLAN_GPU0};
    add_list(&plan, 17, p);
    char *text = printed(&plan, 0);
    static const char *const parts[] = {"1 token: ",
                                        "read step block",
                                        "9 to 16 tokens: ",
                                        "a chunk of tokens, prefill from 17 tokens on: ",
                                        "ring of 307200 bytes",
                                        "link: copy slice 0, q k v of unit 0, rows 0-",
                                        "gate up of unit 1",
                                        "for the next step",
                                        "wait for arrival of slice",
                                        "record use of slice",
                                        "borrow the cache, pool 0",
                                        "give the cache back, pool 1",
                                        "sub-chunk 1"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(text, parts[i])) fail_msg("'%s' is missing", parts[i]);
    assert_null(strstr(text, "copy step block")); /* that would stand in line after a slice */
    free(text);
    text = printed(NULL, 0);
    assert_non_null(strstr(text, "copy step block"));
    assert_non_null(strstr(text, "swiglu"));
    assert_null(strstr(text, "link:"));
    free(text);
    plan.prefill_from[0] = 5;
    free(printed(&plan, HELM_E_UNSUPPORTED));
    plan.layers = 3;
    free(printed(&plan, HELM_E_MISMATCH));
}

/* The lines of a program that begin so, each without its number and layer. */
static bool in_order(const char *text, const char *title, const char *const *parts, size_t count)
{
    const char *at = strstr(text, title), *end = at ? strstr(at + 1, " entries") : NULL;
    if (end) end = strstr(end + 1, " entries"); /* of the program after this one */
    for (size_t i = 0; i < count && at; i++) at = strstr(at + 1, parts[i]);
    return at && (!end || at < end);
}

/* With two tiers a decode tier has one more program, in which queries are down before the GPU attends and
 * what comes up is waited for after that; chunks attend once for all sub-chunks, and copy what they fill
 * layer by layer. */
static void two_tiers_are_printed(void **state)
{
    (void)state;
    struct plan_unit unit[WRITTEN_UNITS(4)];
    const enum plan_home d[] = {1, 1, 0, 0, 1, 2, 1, 1}, p[] = {1, 1, 2, 2, 1, 2, 1, 1};
    struct plan plan = {.layers = 4,
                        .unit = units_of_homes(unit, 4, d),
                        .device[PLAN_GPU0].ring_bytes = 300 * KIB,
                        .step_tokens = 600,
                        .embed = PLAN_GPU0,
                        .head = PLAN_GPU0,
                        .context_tokens = 640,
                        .slots = 2,
                        .page_tokens = 32,
                        .page_count = 60,
                        .device[PLAN_GPU0].vram_page_count = 40};
    add_list(&plan, 17, p);
    char *text = printed(&plan, 0);
    static const char *const assisted[] = {"layer 0    gemv",
                                           "layer 0    rope, append",
                                           "wait for word 0",
                                           "layer 0    put queries in lane, 512 numbers",
                                           "write word 1",
                                           "layer 0    attend",
                                           "wait for word 1",
                                           "layer 0    merge with partial results, 8 heads",
                                           "layer 2    put queries",
                                           "write word 2",
                                           "wait for word 2",
                                           "layer 3    put queries",
                                           "write word 3",
                                           "wait for word 3",
                                           "layer 3    merge",
                                           "write word 0",
                                           "layer 3    | gemv 256x512",
                                           "argmax"};
    static const char *const chunk[] = {
        "layer 0      link: borrow the cache, pool 0, of a step with pages in the arena",
        "layer 0    rope, append, sub-chunk 0",
        "layer 0    rope, append, sub-chunk 1",
        "layer 0    attend",
        "record use of pool 0 (compute), of a step that does either",
        "wait for use of pool 0 (link), of a step that does either",
        "layer 1      link: borrow the cache, pool 0\n",
        "layer 0      link: store filled pages, of a step that fills a page",
        "wait for cache in pool 0 (compute)\n",
        "layer 1    rope, append, sub-chunk 0",
        "layer 1    attend",
        "layer 1      link: give the cache back, pool 0\n",
        "layer 2      link: borrow the cache, pool 0, of a step with",
        "wait for cache in pool 0 (compute), of a step with pages in the arena",
        "layer 2    attend",
        "layer 2      link: store filled pages",
        "wait for cells stored (compute)\n"};
    assert_true(
        in_order(text, "1 token, the CPU attends to a part", assisted, sizeof assisted / sizeof *assisted));
    assert_true(in_order(text, "9 to 16 tokens, the CPU attends", assisted + 1, 15));
    assert_true(in_order(text, "a chunk of tokens, prefill", chunk, sizeof chunk / sizeof *chunk));
    assert_null(strstr(text, "pool 1"));
    assert_null(strstr(text, "layer 1      link: store"));
    char *one = printed(&plan, 0),
         *same = strstr(one, ", the CPU attends"); /* the others are as with one tier */
    assert_non_null(same);
    plan.device[PLAN_GPU0].vram_page_count = 0;
    char *other = printed(&plan, 0);
    assert_memory_equal(one, other, (size_t)(strstr(other, "a chunk") - other));
    assert_null(strstr(other, "attends"));
    free(text);
    free(one);
    free(other);
}

static bool is_product(const char *line)
{
    return strstr(line, "gemv ") || strstr(line, "gemm small") || strstr(line, "matmul ");
}

/* Each slice of a packed unit is expanded once, after its arrival and in front of its products, or read by a
 * product of one token where it lies; of others none is. */
static void packed_slices_are_expanded_before_their_use(void **state)
{
    (void)state;
    struct plan_unit unit[WRITTEN_UNITS(4)];
    const enum plan_home d[] = {0, 2, 1, 2, 0, 0, 2, 2}, p[] = {2, 2, 1, 2, 2, 2, 2, 0};
    struct plan plan = {.layers = 4,
                        .unit = units_of_homes(unit, 4, d),
                        .device[PLAN_GPU0].ring_bytes = 300 * KIB,
                        .step_tokens = 600};
    add_list(&plan, 17, p);
    write_formats(&plan, &(struct written_formats){.link = true});
    char *text = printed(&plan, 0), *more = NULL;
    uint32_t expanded = 0, programs = 0, products = 0, ahead = 0, read = 0;
    bool arrived = false, ready = false, last_expanded = false, one = false;
    for (char *line = strtok_r(text, "\n", &more); line; line = strtok_r(NULL, "\n", &more)) {
        if (strstr(line, " entries")) {
            programs++;
            one = strncmp(line, "1 token", 7) == 0; /* a long context's among them */
        } else if (strstr(line, "wait for arrival of slice")) {
            arrived = true;
            ready = false; /* the expanded slice is used no more */
        } else if (strstr(line, "  expand slice ")) {
            assert_true(arrived);
            arrived = false;
            ready = true;
            expanded++;
            assert_true(!one || strstr(line, " down of ")); /* the others' columns are multiples of 256 */
            /* decode streams units 1, 3, 6 and 7; the CPU computes 7 in prompts, where 0, 4 and 5 cross too
             */
            assert_true(strstr(line, "unit 1,") || strstr(line, "unit 3,") || strstr(line, "unit 6,"));
            last_expanded = true;
            continue;
        } else if (strstr(line, "bf16-packed")) { /* by one token, what is read where it arrived */
            assert_true(one && arrived && strstr(line, "gemv"));
            arrived = false;
            read++;
        } else if (strstr(line, "wait for word")) {
            ahead += last_expanded;
        } else if (ready && is_product(line)) {
            products++;
        }
        if (!strstr(line, "(link)") && !strstr(line, "link:") && !strstr(line, "record "))
            last_expanded = false;
    }
    assert_int_equal(programs, 7);
    /* gate and up, down of two units, q k v and o of one: one slice or more each, in every program; of them
     * one token has only down expanded */
    assert_true(expanded >= 5 * 6 + 2 && products >= expanded && read >= 4);
    /* decode's units 1 and 6 stand after a hand-over, in prompts it is unit 0: their first slice is expanded
     * before it, but by one token */
    assert_int_equal(ahead, 4 * 2);
    free(text);
    write_formats(&plan, &(struct written_formats){0});
    text = printed(&plan, 0);
    assert_null(strstr(text, "expand"));
    free(text);
}

/* The shared one of experts in both memories lies in VRAM, too. Where a list for prompts has the CPU compute
 * them, the GPU passes its slices, and expands those of the layers after them as any list does. */
static void what_another_list_computes_is_passed(void **state)
{
    (void)state;
    static const char *const letters[] = {"gm/gc", "gm/gs", "gmgg/gcgg", "gmgm/gcgs", "gmgm/gsgc"};
    static const char folder[] = "tests/data/golden/qwen35moe";
    struct model model;
    struct helm_err err = {0};
    if (model_read(folder, &model, &err)) fail_msg("%s", err.text);
    for (size_t l = 0; l < sizeof letters / sizeof *letters; l++) {
        struct plan_unit unit[WRITTEN_UNITS(4)];
        const char *const slash = strchr(letters[l], '/');
        struct plan plan = {.layers = 4,
                            .unit = units_of_letters(unit, 4, letters[l], (size_t)(slash - letters[l])),
                            .device[PLAN_GPU0] = {.ring_bytes = MIB, .experts.slots = 3},
                            .embed = PLAN_GPU0,
                            .head = PLAN_GPU0,
                            .weights = mixture_named("q8_0"),
                            .step_tokens = 512};
        add_letters(&plan, 39, slash + 1);
        plan_take_states(&plan, &model);
        char *text = printed_of(folder, &plan, 0), *more = NULL;
        uint32_t chunks = 0, expanded[2] = {0};
        for (char *line = strtok_r(text, "\n", &more); line; line = strtok_r(NULL, "\n", &more)) {
            if (strstr(line, " entries")) chunks += strstr(line, "a chunk of tokens") != NULL;
            if (!chunks) continue;
            if (strstr(line, "matmul ") && strstr(line, "q8_0")) fail_msg("%s: %s", letters[l], line);
            if (strstr(line, "expand slice ") && !strstr(line, "expert")) expanded[chunks - 1]++;
        }
        assert_int_equal(chunks, 2);
        /* of each of four layers what goes into attention or the delta net, and what comes out */
        if (expanded[0] < 4 * 2 || expanded[0] != expanded[1])
            fail_msg("%s: %u and %u slices", letters[l], expanded[0], expanded[1]);
        free(text);
    }
    model_free(&model);
}

/* One token over a long context: attention in no chain, what is between two in one. */
static void long_contexts_are_attended_to_apart(void **state)
{
    (void)state;
    struct plan_unit unit[WRITTEN_UNITS(4)];
    struct plan plan = {.layers = 4,
                        .unit = units_all(unit, 4, PLAN_HOME_GPU),
                        .embed = PLAN_GPU0,
                        .head = PLAN_GPU0};
    char *text = printed(&plan, 0), *more = NULL, *from = strstr(text, "1 token, a long context: ");
    uint32_t attended = 0, chains = 0;
    assert_non_null(from);
    assert_null(strstr(from + strlen("1 token, a long"), "a long context"));
    (void)strtok_r(from, "\n", &more);
    for (char *line = strtok_r(NULL, "\n", &more); line; line = strtok_r(NULL, "\n", &more)) {
        if (strstr(line, "attend")) {
            assert_null(strchr(line, '|'));
            attended++;
        }
        chains += strstr(line, "chain of") != NULL;
    }
    assert_int_equal(attended, 4);
    assert_int_equal(chains, 4); /* in front of the first is one product alone */
    free(text);
    plan.invariant = true; /* of bf16 weights: attention is in no chain's order */
    text = printed(&plan, 0);
    assert_null(strstr(text, "a long context"));
    free(text);
    plan.invariant = false;
    plan.context_tokens = GPU_APART_POSITION; /* no position is that far */
    text = printed(&plan, 0);
    assert_null(strstr(text, "a long context"));
    free(text);
}

/* An invariant plan's chunks attend in one order, whatever tokens there are. */
static void positions_are_in_ranges(void **state)
{
    (void)state;
    struct plan_unit unit[WRITTEN_UNITS(4)];
    struct plan plan = {.layers = 4,
                        .unit = units_all(unit, 4, PLAN_HOME_GPU),
                        .embed = PLAN_GPU0,
                        .head = PLAN_GPU0};
    for (int invariant = 0; invariant < 2; invariant++) {
        plan.invariant = invariant;
        char *text = printed(&plan, 0);
        assert_int_equal(strstr(text, "attend, positions in ranges") == NULL, invariant);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(programs_follow_the_lists),
        cmocka_unit_test(workspace_is_as_charged),
        cmocka_unit_test(step_blocks_do_not_overlap),
        cmocka_unit_test(plans_are_printed),
        cmocka_unit_test(two_tiers_are_printed),
        cmocka_unit_test(packed_slices_are_expanded_before_their_use),
        cmocka_unit_test(what_another_list_computes_is_passed),
        cmocka_unit_test(long_contexts_are_attended_to_apart),
        cmocka_unit_test(positions_are_in_ranges),
    };
    return cmocka_run_group_tests_name("worker-gpu/program", tests, NULL, NULL);
}
