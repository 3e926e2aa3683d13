/* Workers take as much as the ledger says, to the byte: golden models by plans with units at every home, as
 * stored, packed and in blocks, with one tier of the cache and two, run by both engines in one process
 * (tests/golden/pair.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "common/plan/placement.h"
#include "common/plan/state.h"
#include "daemon/planner/formats.h"
#include "daemon/planner/memory/ledger.h"
#include "tests/golden/pair.h"
#include "tests/written_plans.h"
#include "worker-cpu/engine.h"
#include "worker-gpu/engine.h"

#define CONTEXT     256
#define SLOTS       2
#define STEP_TOKENS 64
#define PAGE_TOKENS 16
#define THREADS     2
#define LAYERS_MAX  16

struct place {
    const char *homes;   /* of the units, over and over: c, g, s, m (experts in both memories) */
    const char *prompts; /* of steps of 17 tokens and more, of what is not at home in VRAM; NULL: the same */
    const char *weights; /* a mixture; NULL: as stored */
    uint32_t places;     /* two tiers */
};
static const struct place places[] = {
    {"g", NULL, NULL, 0},    {"c", NULL, NULL, 0},        {"gc", NULL, NULL, 0},  {"cg", "s", NULL, 0},
    {"gs", NULL, NULL, 0},   {"ccgggs", "s", NULL, 0},    {"gm", "s", NULL, 0},   {"g", NULL, "q4_k_m", 0},
    {"gs", NULL, "q8_0", 0}, {"cg", "s", "q4_k_m", 0},    {"gm", "s", "q8_0", 0}, {"g", NULL, NULL, 24},
    {"ggcg", "s", NULL, 24}, {"ggcggs", "s", "q8_0", 24},
};

#define PLACES (sizeof places / sizeof *places)

static bool may_be(const struct model *model, uint32_t unit, enum plan_home home)
{
    const bool experts = model_unit_math(model, unit)->experts;
    if (home == PLAN_HOME_MIXED) return experts;
    return home != PLAN_HOME_STREAM || !experts;
}

/* The plan of a place: what a unit cannot have is on the GPU instead; fixed states stay with their
 * processor. */
static void write_plan(const struct model *model, const struct place *p, struct plan_unit *unit,
                       struct plan *plan)
{
    const uint32_t layers = model->config.layers, units = unit_count(layers);
    *plan = (struct plan){.layers = layers,
                          .unit = units_of_letters(unit, layers, p->homes, strlen(p->homes)),
                          .weights = p->weights ? mixture_named(p->weights) : NULL,
                          .device[PLAN_GPU0].ring_bytes = 2 * MIB};
    plan_take_states(plan, model);
    for (uint32_t u = 0; u < units; u++)
        if (!may_be(model, u, unit[u].home[0])) unit[u].home[0] = PLAN_HOME_GPU;
    if (p->prompts) add_letters(plan, 17, p->prompts);
    for (uint32_t u = 0; u < units && p->prompts; u++)
        if (unit[u].home[0] == PLAN_HOME_GPU || model_unit_math(model, u)->state == STATE_FIXED)
            unit[u].home[1] = unit[u].home[0];
    plan->embed = plan_home_processor(unit[0].home[0]);
    plan->head = plan_home_processor(unit[units - 1].home[0]);
    if (plan_mixed_units(plan))
        plan->device[PLAN_GPU0].experts = (struct plan_experts){.slots = 2, .move_cost = 1};
}

static uint64_t lines(const struct ledger *ledger, const char *const *names)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < ledger->line_count; i++)
        for (const char *const *name = names; *name; name++)
            if (strncmp(ledger->line[i].what, *name, strlen(*name)) == 0) sum += ledger->line[i].bytes;
    return sum;
}
#define LINES(ledger, ...) lines(ledger, (const char *const[]){__VA_ARGS__, NULL})

static void same(const char *folder, const struct place *p, const char *what, uint64_t taken, uint64_t said)
{
    if (taken != said)
        fail_msg("%s, %s %s %s %u: %s takes %llu, the ledger says %llu", folder, p->homes,
                 p->prompts ? p->prompts : "-", p->weights ? p->weights : "-", p->places, what,
                 (unsigned long long)taken, (unsigned long long)said);
}

/* Both ledgers of the plan that the workers have. */
static void write_ledgers(const char *folder, const struct pair *pair, struct plan *plan)
{
    struct model model;
    struct analyse_table table;
    struct arena_spec spec;
    struct helm_err err = {0};
    if (model_read(folder, &model, &err)) fail_msg("%s", err.text);
    formats_lay(&model, pair->plan.weights);
    if (analyse_table_build(&model, &table, &err) || plan_copy(&pair->plan, plan, &err))
        fail_msg("%s", err.text);
    const struct ledger_wish wish = {.kv_dtype = KV_F16,
                                     .slots = SLOTS,
                                     .step_tokens = STEP_TOKENS,
                                     .page_tokens = PAGE_TOKENS,
                                     .page_count = plan->page_count,
                                     .vram_page_count = plan_kv_places(plan),
                                     .threads = THREADS,
                                     .places_stand = true};
    const struct ledger_machine machine = {.memory.available_bytes = 64 * GIB,
                                           .device = {.kind = LEDGER_DEVICE_CUDA, .limit = 64 * GIB}};
    const struct ledger_case c = {.model = &model, .wish = &wish, .machine = &machine, .table = &table};
    if (ledger_write(&c, CONTEXT, plan->page_count, plan, &spec, &err)) fail_msg("%s", err.text);
    analyse_table_free(&table);
    model_free(&model);
}

static void check_gpu(const char *folder, const struct place *p, const struct pair *pair,
                      const struct plan *plan)
{
    const struct gpu_engine *g = (const struct gpu_engine *)pair->server[PAIR_GPU].engine;
    const struct ledger *vram = &plan->memory[PLAN_VRAM0];
    const uint64_t *used = g->device->used;
    same(folder, p, "weights in VRAM", used[DEVICE_WEIGHTS],
         LINES(vram, "weights", "experts", "packed weights"));
    same(folder, p, "the cache in VRAM", used[DEVICE_KV],
         LINES(vram, "KV", "windows of", "fixed states", "borrowed KV"));
    same(folder, p, "the ring", used[DEVICE_RING], LINES(vram, "stream ring"));
    same(folder, p, "the expanded slice", used[DEVICE_EXPANDED], LINES(vram, "expanded slice"));
    same(folder, p, "the GPU's workspace", used[DEVICE_WORKSPACE],
         LINES(vram, "activations, workspace") +
             (g->buffers.work.area[GPU_AREA_MATMUL].bytes ? g->device->ask.matmul_workspace : 0));
}

static void check_cpu(const char *folder, const struct place *p, const struct pair *pair,
                      const struct plan *plan)
{
    const struct engine *e = (const struct engine *)pair->server[PAIR_CPU].engine;
    const struct ledger *host = &plan->memory[PLAN_HOST];
    same(folder, p, "vectors", e->weights.vector_bytes, LINES(host, "norms and biases"));
    same(folder, p, "the CPU's activations and scratch", e->act.bytes + THREADS * e->run.thread_bytes,
         LINES(host, "activations"));
}

/* False: a worker does not compute such a model. */
static bool run_place(const char *folder, const struct place *p)
{
    struct plan_unit unit[WRITTEN_UNITS(LAYERS_MAX)];
    struct plan plan, said;
    struct model model;
    struct helm_err err = {0};
    struct pair *pair = calloc(1, sizeof *pair);
    assert_non_null(pair);
    if (model_read(folder, &model, &err)) fail_msg("%s: %s", folder, err.text);
    assert_in_range(model.config.layers, 1, LAYERS_MAX);
    write_plan(&model, p, unit, &plan);
    model_free(&model);
    const struct pair_options options = {.folder = folder,
                                         .plan = &plan,
                                         .device = "emulated",
                                         .kv_dtype = KV_F16,
                                         .threads = THREADS,
                                         .slots = SLOTS,
                                         .context_tokens = CONTEXT,
                                         .step_tokens = STEP_TOKENS,
                                         .page_tokens = PAGE_TOKENS,
                                         .vram_pages = plan_layers_of(&plan, PLAN_GPU0) ? p->places : 0,
                                         .vram_bytes = 256 * MIB,
                                         .peer_wait_ms = 120000,
                                         .no_graphs = true};
    const int rc = pair_open(&options, pair, &err);
    /* where windows have a pool of their own, the GPU's layers may be of these alone */
    const bool tierless = rc && p->places && strstr(err.text, "no layer's cache is the GPU's");
    if (rc && rc != HELM_E_UNSUPPORTED && !tierless) fail_msg("%s, %s: %s", folder, p->homes, err.text);
    if (rc) {
        free(pair);
        return false;
    }
    write_ledgers(folder, pair, &said);
    const struct arena_header *h = arena_header_of(&pair->arena);
    same(folder, p, "weights in the arena", h->region[ARENA_REGION_WEIGHTS].bytes,
         LINES(&said.memory[PLAN_HOST], "weights", "per-layer embeddings"));
    same(folder, p, "the cache in the arena", h->region[ARENA_REGION_KV].bytes,
         LINES(&said.memory[PLAN_HOST], "KV cache", "windows of"));
    if (pair->used[PAIR_GPU]) check_gpu(folder, p, pair, &said);
    if (pair->used[PAIR_CPU]) check_cpu(folder, p, pair, &said);
    plan_free(&said);
    pair_close(pair);
    free(pair);
    return true;
}

static void workers_take_what_the_ledger_says(void **state)
{
    (void)state;
    static const char *const models[] = {"dots1",     "gptoss",     "granite",    "llama3-ropescaled",
                                         "mixtral",   "opt",        "phi3",       "qwen2-bias",
                                         "qwen2moe",  "qwen3",      "qwen35",     "qwen35moe",
                                         "qwen3moe",  "qwen3next",  "gemma3",     "gemma4",
                                         "gemma4moe", "gemma4e",    "glm4moe",    "minimaxm2",
                                         "glm4",      "smollm3",    "seedoss",    "olmo2",
                                         "olmo3",     "ministral3", "deepseekv2", "deepseekv3",
                                         "glm47flash"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        uint32_t run = 0;
        char folder[64];
        snprintf(folder, sizeof folder, "tests/data/golden/%s", models[m]);
        for (size_t i = 0; i < PLACES; i++) run += run_place(folder, &places[i]);
        print_message("%s: %u of %zu plans\n", folder, run, PLACES);
        assert_true(run > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(workers_take_what_the_ledger_says)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
