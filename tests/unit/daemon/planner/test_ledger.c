/* Unit tests of daemon/planner/memory/ledger.c and analyse.c, on machines that exist only here: through
 * planner.c without an accelerator, with one line by line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "common/base/units.h"
#include "daemon/steps/kv_pages.h"
#include "daemon/planner/planner.h"
#include "tests/unit/daemon/planner/made_up_model.h"
#include "tests/written_plans.h"
#include "worker-gpu/engine.h"

/* 1 GiB of weights, 114,688 bytes of KV a token in 16 bits: the shape of Qwen3-0.6B. */
static struct model_tensor tensors[] = {
    {.role = TENSOR_EMBED, .layer = -1, .rows = 151936, .cols = 1024, .bytes = (uint64_t)151936 * 1024 * 2},
    {.role = TENSOR_GATE, .layer = 0, .rows = 3072, .cols = 1024, .bytes = GIB - (uint64_t)151936 * 1024 * 2},
    {.role = TENSOR_FINAL_NORM, .layer = -1, .rows = 1, .cols = 1024, .bytes = 2048},
};
static struct model model_06b(uint32_t max_context)
{
    struct model m = {.tensors = tensors, .tensor_count = 3};
    m.config.layers = 28;
    strcpy(m.config.architecture, "LlamaForCausalLM");
    m.config.hidden = 1024;
    m.config.intermediate = 3072;
    m.config.vocab = 151936;
    m.config.heads = 16;
    m.config.kv_heads = 8;
    m.config.head_dim = 128;
    m.config.max_context = max_context;
    m.config.tied_head = true;
    static struct model tables; /* the same of every context */
    if (!tables.by_role) {
        tables = m;
        assert_true(made_up_index(&tables));
    }
    tables.config.max_context = max_context;
    return tables;
}

static const struct ledger_wish usual = {
    .kv_dtype = KV_F16, .slots = 8, .step_tokens = 512, .page_tokens = 32, .threads = 2};

static struct cgroup_memory machine(uint64_t available)
{
    return (struct cgroup_memory){.limit_bytes = CGROUP_UNLIMITED,
                                  .machine_bytes = 64 * GIB,
                                  .available_bytes = available};
}

static int fit(const struct model *m, const struct ledger_wish *wish, const struct cgroup_memory *memory,
               struct plan *plan, struct arena_spec *spec, struct helm_err *err)
{
    struct profile profile = made_up_profile(&rates_3090);
    const struct planner_request request = {.model = m,
                                            .wish = *wish,
                                            .machine = {.memory = *memory},
                                            .profile = &profile};
    profile.gpu.device = PROFILE_DEVICE_NONE;
    plan_free(plan);
    return planner_make(&request, plan, spec, err);
}

static void lines_add_up_and_stay_under_the_limit(void **state)
{
    (void)state;
    struct model m = model_06b(40960);
    for (uint64_t mib = 1600; mib < 40000; mib = mib * 5 / 4) {
        struct cgroup_memory memory = machine(mib * MIB);
        struct plan plan = {0};
        struct arena_spec spec;
        struct helm_err err = {0};
        struct arena_header header;
        assert_int_equal(fit(&m, &usual, &memory, &plan, &spec, &err), 0);
        uint64_t sum = 0;
        for (uint32_t i = 0; i < plan.memory[PLAN_HOST].line_count; i++)
            sum += plan.memory[PLAN_HOST].line[i].bytes;
        assert_true(sum == plan.memory[PLAN_HOST].total && sum <= mib * MIB);
        assert_true(plan.page_count >= kv_pages_for(plan.context_tokens, 32));
        assert_int_equal(arena_plan(&spec, &header, &err), 0);
        assert_true(header.total_bytes < plan.memory[PLAN_HOST].total);
        assert_int_equal(spec.page_count, plan.page_count);
        plan_free(&plan);
    }
}

static void context_follows_model_and_memory(void **state)
{
    (void)state;
    struct model big = model_06b(40960), small = model_06b(2000);
    struct cgroup_memory roomy = machine(40 * GIB), tight = machine(1600 * MIB);
    struct plan plan = {0};
    struct arena_spec spec;
    struct helm_err err = {0};
    assert_int_equal(fit(&big, &usual, &roomy, &plan, &spec, &err), 0);
    assert_int_equal(plan.context_tokens, 8192);
    assert_int_equal(plan.page_count, LEDGER_POOL_TOKENS / 32);
    assert_int_equal(fit(&small, &usual, &roomy, &plan, &spec, &err), 0);
    assert_int_equal(plan.context_tokens, 2000);
    assert_int_equal(plan.page_count, 8 * 63); /* every slot's whole context, not more */
    assert_int_equal(fit(&big, &usual, &tight, &plan, &spec, &err), 0);
    assert_in_range(plan.context_tokens, LEDGER_CTX_LEAST, 4096);
    struct ledger_wish wish = usual;
    wish.ctx = 32768;
    assert_int_equal(fit(&big, &wish, &roomy, &plan, &spec, &err), 0);
    assert_int_equal(plan.context_tokens, 32768);
    assert_int_equal(plan.page_count, 1024);
    wish.ctx = 40961;
    assert_int_equal(fit(&big, &wish, &roomy, &plan, &spec, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "40960"));
}

static void what_does_not_fit_is_refused_with_numbers(void **state)
{
    (void)state;
    struct model m = model_06b(40960);
    struct cgroup_memory memory = machine(900 * MIB);
    struct plan plan = {0};
    struct arena_spec spec;
    struct helm_err err = {0};
    assert_int_equal(fit(&m, &usual, &memory, &plan, &spec, &err), HELM_E_CAPACITY);
    assert_non_null(strstr(err.text, "weights 1.00 GiB"));
    assert_non_null(strstr(err.text, "has 900.00 MiB"));
    memory = machine(64 * GIB);
    memory.limit_bytes = 3 * GIB;
    memory.available_bytes = 2 * GIB;
    struct ledger_wish wish = usual;
    wish.ctx = 40960;
    assert_int_equal(fit(&m, &wish, &memory, &plan, &spec, &err), HELM_E_CAPACITY);
    assert_non_null(strstr(err.text, "cgroup limit of 3.00 GiB"));
    memory.node = 1;
    memory.node_bytes = 32 * GIB;
    assert_int_equal(fit(&m, &wish, &memory, &plan, &spec, &err), HELM_E_CAPACITY);
    assert_non_null(strstr(err.text, "has 2.00 GiB (free of NUMA node 1's 32.00 GiB)"));
    wish.host_memory_bytes = GIB;
    assert_int_equal(fit(&m, &wish, &memory, &plan, &spec, &err), HELM_E_CAPACITY);
    assert_non_null(strstr(err.text, "--host-memory"));
}

static void a_stated_pool_is_taken_as_stated(void **state)
{
    (void)state;
    struct model m = model_06b(40960);
    struct cgroup_memory memory = machine(40 * GIB);
    struct ledger_wish wish = usual;
    struct plan plan = {0};
    struct arena_spec spec;
    struct helm_err err = {0};
    wish.page_count = 2000;
    assert_int_equal(fit(&m, &wish, &memory, &plan, &spec, &err), 0);
    assert_int_equal(plan.page_count, 2000);
    wish.page_count = 20;
    assert_int_equal(fit(&m, &wish, &memory, &plan, &spec, &err), 0);
    assert_int_equal(plan.context_tokens, 640);
    wish.ctx = 1000;
    assert_int_equal(fit(&m, &wish, &memory, &plan, &spec, &err), HELM_E_CAPACITY);
    assert_non_null(strstr(err.text, "one context of 1000"));
}

static uint64_t line_of(const struct ledger *ledger, const char *what)
{
    for (uint32_t i = 0; i < ledger->line_count; i++)
        if (strncmp(ledger->line[i].what, what, strlen(what)) == 0) return ledger->line[i].bytes;
    return 0;
}

static void totals_count_every_tensor(void **state)
{
    (void)state;
    struct model m = model_06b(40960);
    struct analyse_table table;
    struct helm_err err = {0};
    struct arena_spec spec;
    struct plan_unit unit[WRITTEN_UNITS(28)];
    struct plan plan = {.layers = 28, .unit = units_all(unit, 28, PLAN_HOME_CPU)};
    assert_int_equal(analyse_table_build(&m, &table, &err), 0);
    assert_true(table.total_stored == GIB + 2048);
    assert_true(table.tied);
    const struct ledger_machine there = {.memory = machine(8 * GIB),
                                         .device = {.kind = LEDGER_DEVICE_CUDA, .limit = GIB}};
    const struct ledger_case c = {.model = &m, .wish = &usual, .machine = &there, .table = &table};
    const uint64_t head = (uint64_t)151936 * 1024 * 2;
    assert_int_equal(ledger_write(&c, 256, 8, &plan, &spec, &err), 0);
    assert_true(line_of(&plan.memory[PLAN_HOST], "weights") == GIB); /* matrices; the final norm is private */
    assert_int_equal(line_of(&plan.memory[PLAN_HOST], "norms"), 4096);
    /* tied: the embedding is read as the head */
    assert_true(analyse_token_bytes(&table, &plan, PLAN_HOME_CPU) == GIB);
    assert_true(analyse_token_bytes(&table, &plan, PLAN_HOME_GPU) == 0);
    plan.head = PLAN_GPU0; /* layers and lookup here, head there: the tied matrix is at both */
    plan_drop_placements(&plan);
    assert_int_equal(ledger_write(&c, 256, 8, &plan, &spec, &err), 0);
    assert_true(line_of(&plan.memory[PLAN_HOST], "weights") == GIB);
    assert_int_equal(line_of(&plan.memory[PLAN_VRAM0], "weights"), head + 4096);
    assert_true(analyse_token_bytes(&table, &plan, PLAN_HOME_CPU) == GIB - head);
    assert_true(analyse_token_bytes(&table, &plan, PLAN_HOME_GPU) == head);
    plan_drop_placements(&plan);
    analyse_table_free(&table);
}

/* ---- with an accelerator, by line ---- */

#define LAYERS 4
static const struct made_up_shape small = {LAYERS, 256, 512, 4, 2, 64, 1000, false};
/* Attention and MLP of each layer; c, g and s for the homes. */
static const char decode_homes[] = "ggcsccgs", mixed_homes[] = "ggssscgs", streamed_homes[] = "ggssssgs";

struct lined {
    struct made_up made;
    struct ledger_wish wish;
    struct ledger_machine machine;
    struct ledger_case c;
    struct plan plan;
    struct arena_spec spec;
    struct plan_unit unit[WRITTEN_UNITS(LAYERS)];
};

static void open_lined(struct lined *l)
{
    assert_true(made_up_open(&l->made, &small));
    l->wish = usual;
    l->wish.step_tokens = 256;
    l->machine = (struct ledger_machine){.memory = machine(8 * GIB),
                                         .device = {.kind = LEDGER_DEVICE_CUDA,
                                                    .limit = GIB,
                                                    .context_bytes = 300 * MIB,
                                                    .graph_bytes = 10 * MIB,
                                                    .graph_layer_bytes = MIB,
                                                    .graph_slice_bytes = 10 * KIB,
                                                    .library_bytes = 20 * MIB}};
    l->c = (struct ledger_case){.model = &l->made.model,
                                .wish = &l->wish,
                                .machine = &l->machine,
                                .table = &l->made.analysed};
    l->plan = (struct plan){.layers = LAYERS,
                            .unit = units_of_letters(l->unit, LAYERS, decode_homes, 2 * LAYERS),
                            .device[PLAN_GPU0].ring_bytes = 3 * MIB,
                            .embed = PLAN_CPU0,
                            .head = PLAN_GPU0};
}

static void write_lined(struct lined *l)
{
    struct helm_err err = {0};
    plan_drop_placements(&l->plan);
    if (ledger_write(&l->c, 1024, 100, &l->plan, &l->spec, &err)) fail_msg("%s", err.text);
}

/* The buffers of a CPU that looks the embedding up and computes units in steps of up to `most` tokens. */
static uint64_t cpu_bytes(const struct lined *l, uint32_t most)
{
    const struct cpu_activations_case size = {.config = &l->made.model.config,
                                              .unit_tokens = most,
                                              .end_tokens = l->wish.step_tokens};
    const struct cpu_room room = cpu_room_of(&size, format_bit(FORMAT_BF16));
    return room.activations + l->wish.threads * room.thread;
}

static void streamed_and_borrowed_have_their_lines(void **state)
{
    (void)state;
    struct lined l = {0};
    open_lined(&l);
    write_lined(&l);
    const uint64_t attention = 2 * 256 * 256 * 2 + 2 * 128 * 256 * 2, mlp = 3 * 512 * 256 * 2, norm = 256 * 4,
                   layer_page = 2ull * 2 * 32 * 64 * 2, head = 1000 * 256 * 2;
    /* VRAM: layer 0, the attention of layer 3 and the head; norms of these, of two streamed halves and the
     * last one. */
    assert_int_equal(line_of(&l.plan.memory[PLAN_VRAM0], "weights"),
                     2 * attention + mlp + 5 * norm + head + norm);
    assert_int_equal(line_of(&l.plan.memory[PLAN_VRAM0], "KV pool"),
                     2 * 100 * layer_page); /* of the layers 0 and 3 */
    assert_int_equal(line_of(&l.plan.memory[PLAN_VRAM0], "stream ring"), 3 * MIB);
    assert_int_equal(line_of(&l.plan.memory[PLAN_VRAM0], "borrowed KV"), 0);
    assert_int_equal(line_of(&l.plan.memory[PLAN_VRAM0], "graphs"),
                     10 * MIB + 5 * MIB / 2 + 2 * 3 * 10 * KIB); /* 5 halves; slices */
    assert_int_equal(line_of(&l.plan.memory[PLAN_VRAM0], "context"), 300 * MIB);
    /* On the host: embedding, layers 1 and 2 whole, the MLP of layer 3. */
    assert_int_equal(line_of(&l.plan.memory[PLAN_HOST], "weights"), head + 2 * attention + 3 * mlp);
    assert_int_equal(line_of(&l.plan.memory[PLAN_HOST], "KV cache"), 2 * 100 * layer_page);
    assert_int_equal(line_of(&l.plan.memory[PLAN_HOST], "norms"), 3 * norm);
    uint64_t decode_only = line_of(&l.plan.memory[PLAN_HOST], "activations");
    assert_int_equal(decode_only, cpu_bytes(&l, 256));
    assert_true(line_of(&l.plan.memory[PLAN_HOST], "GPU driver") > 0);

    /* Long prompts on the GPU: it borrows two caches. */
    add_letters(&l.plan, 33, mixed_homes);
    uint64_t vram = l.plan.memory[PLAN_VRAM0].total;
    write_lined(&l);
    assert_int_equal(line_of(&l.plan.memory[PLAN_VRAM0], "borrowed KV"), 2 * 100 * layer_page);
    assert_int_equal(l.plan.memory[PLAN_VRAM0].total, vram + 2 * 100 * layer_page + 2 * norm);
    assert_int_equal(line_of(&l.plan.memory[PLAN_HOST], "activations"),
                     decode_only); /* layer 2's MLP: any length */
    /* Where it computes every half layer of them, the CPU's buffers end with the shorter steps. */
    l.plan.prefill_count = 0;
    add_letters(&l.plan, 33, streamed_homes);
    write_lined(&l);
    assert_int_equal(line_of(&l.plan.memory[PLAN_HOST], "activations"), cpu_bytes(&l, 32));
    assert_true(cpu_bytes(&l, 32) < decode_only);
    plan_drop_placements(&l.plan);
    made_up_close(&l.made);
}

static void the_emulated_devices_memory_is_the_hosts(void **state)
{
    (void)state;
    struct lined l = {0};
    open_lined(&l);
    write_lined(&l);
    uint64_t driver = line_of(&l.plan.memory[PLAN_HOST], "GPU driver"), host = l.plan.memory[PLAN_HOST].total;
    l.machine.device.kind = LEDGER_DEVICE_EMULATED;
    write_lined(&l);
    uint64_t staging = line_of(&l.plan.memory[PLAN_HOST], "staging for the emulated");
    assert_int_equal(line_of(&l.plan.memory[PLAN_HOST], "the emulated device's memory"),
                     l.plan.memory[PLAN_VRAM0].total);
    assert_int_equal(l.plan.memory[PLAN_HOST].total,
                     host - driver + staging + l.plan.memory[PLAN_VRAM0].total);
    plan_drop_placements(&l.plan);
    made_up_close(&l.made);
}

/* Bytes that worker-gpu/draw.c takes, a slot: its room in pinned memory, and how often each changed token
 * occurs.
 */
static void draws_take_host_memory_where_the_head_is_the_gpus(void **state)
{
    (void)state;
    struct lined l = {0};
    open_lined(&l);
    write_lined(&l);
    assert_int_equal(GPU_DRAW_SLOT_BYTES,
                     sizeof(struct gpuk_few_room) + SAMPLING_CHANGES_MAX * sizeof(uint32_t));
    assert_int_equal(l.plan.head, PLAN_HOME_GPU);
    const uint64_t draws = line_of(&l.plan.memory[PLAN_HOST], "draws"), host = l.plan.memory[PLAN_HOST].total;
    const uint64_t scratch = sampling_scratch_bytes(l.made.model.config.vocab);
    assert_in_range(draws, l.plan.slots * GPU_DRAW_SLOT_BYTES + GPU_SAMPLERS_MAX * scratch,
                    l.plan.slots * GPU_DRAW_SLOT_BYTES + GPU_SAMPLERS_MAX * (scratch + 128));
    assert_int_equal(draws, ledger_draw_bytes(&l.c));
    l.wish.slots += 10;
    write_lined(&l);
    assert_int_equal(line_of(&l.plan.memory[PLAN_HOST], "draws"), draws + 10 * GPU_DRAW_SLOT_BYTES);
    l.wish.slots -= 10;
    l.plan.head = PLAN_CPU0;
    write_lined(&l);
    assert_int_equal(line_of(&l.plan.memory[PLAN_HOST], "draws"), 0);
    assert_true(l.plan.memory[PLAN_HOST].total >
                host - draws); /* the head's weights and the logits are still there */
    plan_drop_placements(&l.plan);
    made_up_close(&l.made);
}

/* The arena's room for weights is what loader and copier lay out in it. */
static void weights_have_room_as_they_are_laid_out(void **state)
{
    (void)state;
    static const char json[] =
        "{\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", \"hidden_size\": 80,"
        "\"intermediate_size\": 56, \"num_hidden_layers\": 4, \"num_attention_heads\": 3,"
        "\"num_key_value_heads\": 1, \"head_dim\": 10, \"vocab_size\": 77, \"rms_norm_eps\": 1e-6,"
        "\"max_position_embeddings\": 2048, \"hidden_act\": \"silu\", \"rope_theta\": 10000,"
        "\"torch_dtype\": \"float16\", \"tie_word_embeddings\": false, \"attention_bias\": false}";
    struct model_config config;
    struct model model;
    struct analyse_table table;
    struct helm_err err = {0};
    struct plan_unit unit[WRITTEN_UNITS(LAYERS)];
    if (model_config_parse("test", json, sizeof json - 1, &config, &err)) fail_msg("%s", err.text);
    assert_int_equal(model_from_config(&config, &model, &err), 0);
    assert_int_equal(analyse_table_build(&model, &table, &err), 0);
    const struct ledger_wish wish = usual;
    const struct ledger_machine there = {.memory = machine(GIB),
                                         .device = {.kind = LEDGER_DEVICE_CUDA, .limit = GIB}};
    const struct ledger_case c = {.model = &model, .wish = &wish, .machine = &there, .table = &table};
    for (uint32_t ends = 0; ends < 4; ends++) {
        struct plan plan = {.layers = LAYERS,
                            .unit = units_of_letters(unit, LAYERS, decode_homes, 2 * LAYERS),
                            .device[PLAN_GPU0].ring_bytes = MIB,
                            .embed = ends & 1 ? PLAN_GPU0 : PLAN_CPU0,
                            .head = ends & 2 ? PLAN_GPU0 : PLAN_CPU0};
        struct arena_spec spec;
        assert_int_equal(ledger_write(&c, 256, 8, &plan, &spec, &err), 0);
        assert_int_equal(placement_check(&model, &plan, &err), 0);
        const struct placements host = placements_in(&plan, PLAN_HOST),
                                vram = placements_in(&plan, PLAN_VRAM0);
        assert_int_equal(spec.weight_bytes, host.region_bytes);
        assert_int_equal(line_of(&plan.memory[PLAN_VRAM0], "weights"),
                         vram.region_bytes + placement_vectors(&model, &plan, PLAN_GPU0, NULL, NULL));
        plan_drop_placements(&plan);
    }
    analyse_table_free(&table);
    model_free(&model);
}

static void a_batch_has_as_many_contexts_of_pages(void **state)
{
    (void)state;
    struct lined l = {0};
    open_lined(&l);
    assert_int_equal(ledger_least_pages(&l.c, 1000), 32);
    l.wish.batch = 4;
    assert_int_equal(ledger_least_pages(&l.c, 1000), 4 * 32);
    l.wish.page_count = 50;
    assert_int_equal(ledger_least_pages(&l.c, 1000), 50);
    assert_true(ledger_kv_layer_bytes(&l.c, UINT32_MAX) == UINT32_MAX * (2ull * 2 * 32 * 64 * 2));
    plan_drop_placements(&l.plan);
    made_up_close(&l.made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_add_up_and_stay_under_the_limit),
        cmocka_unit_test(context_follows_model_and_memory),
        cmocka_unit_test(what_does_not_fit_is_refused_with_numbers),
        cmocka_unit_test(a_stated_pool_is_taken_as_stated),
        cmocka_unit_test(totals_count_every_tensor),
        cmocka_unit_test(streamed_and_borrowed_have_their_lines),
        cmocka_unit_test(the_emulated_devices_memory_is_the_hosts),
        cmocka_unit_test(draws_take_host_memory_where_the_head_is_the_gpus),
        cmocka_unit_test(weights_have_room_as_they_are_laid_out),
        cmocka_unit_test(a_batch_has_as_many_contexts_of_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
