/* Printing programs. See engine.h. */

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/plan/state.h"
#include "worker-cpu/engine.h"

static const char *const tier_title[OP_TIER_COUNT] = {"1 token", "2 to 16 tokens", "a chunk of tokens"};

static void print_phase(const struct engine *engine, uint32_t phase, FILE *out)
{
    const struct plan *plan = &engine->plan;
    for (int t = 0; t < OP_TIER_COUNT; t++) {
        char title[96];
        if (!program_tier_occurs(plan, phase, (enum op_tier)t)) continue;
        if (plan->prefill_count == 0)
            snprintf(title, sizeof title, "%s", tier_title[t]);
        else if (phase == 0)
            snprintf(title, sizeof title, "decode, %s", tier_title[t]);
        else
            snprintf(title, sizeof title, "prefill of %u tokens and more, %s", plan_phase_from(plan, phase),
                     tier_title[t]);
        program_print(&engine->programs[LINEAR_EXACT].tier[phase][t], title, out);
    }
    const struct program *apart = &engine->programs[LINEAR_EXACT].apart[phase];
    if (apart->few) {
        char title[96];
        snprintf(title, sizeof title, "list %u, 2 to %u tokens, with the kernels of one", phase, apart->few);
        program_print(apart, title, out);
    }
    for (int t = 0; t <= OP_TIER_FEW && phase == 0 && plan_kv_assisted(plan); t++) {
        char title[96];
        snprintf(title, sizeof title, "decode, with a part of the GPU's cache, %s", tier_title[t]);
        program_print(&engine->programs[LINEAR_EXACT].assisted[t], title, out);
    }
}

/* Everything but weights and a real arena: lowering stores addresses and reads no weight, so address space
 * is enough. */
static int print_engine(struct engine *engine, const char *folder, uint32_t threads, const char *kernels,
                        FILE *out, struct helm_err *err)
{
    float logits = 0;
    void *space = MAP_FAILED;
    size_t bytes = 0;
    int rc = engine_choose_kernels(engine, kernels, KV_F16, err);
    if (!rc) rc = weights_plan(&engine->model, &engine->plan, &engine->weights, err);
    if (!rc) rc = engine_check_kernels(engine, err);
    if (rc) return helm_err_prefix(err, "%s", folder);
    bytes = (size_t)engine->weights.host.region_bytes + 1;
    space = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) return helm_fail_errno(err, "cannot reserve %zu bytes of address space", bytes);
    const struct cpu_activations_case size = {.config = &engine->model.config,
                                              .unit_tokens = 1,
                                              .end_tokens = 1,
                                              .sampled_rows = 1};
    rc = weights_place(&engine->weights, space, err);
    if (!rc)
        rc = activations_create(&size, engine->weights.formats, &engine->kernels,
                                cpu_room_of(&size, placements_formats(&engine->weights.host)).activations,
                                &logits, &engine->act, err);
    if (!rc) rc = engine_lower(engine, threads, err);
    if (rc) goto out;
    for (uint32_t p = 0; p < plan_phase_count(&engine->plan); p++) print_phase(engine, p, out);
    if (engine->head) {
        program_print(&engine->programs[LINEAR_EXACT].head_one, "head, 1 sampled row", out);
        program_print(&engine->programs[LINEAR_EXACT].head_many, "head, several sampled rows", out);
        const struct program *apart = &engine->programs[LINEAR_EXACT].head_apart;
        char title[96];
        snprintf(title, sizeof title, "head, 2 to %u sampled rows, with the kernels of one", apart->few);
        if (apart->few) program_print(apart, title, out);
    }
out:
    munmap(space, bytes);
    return rc;
}

int print_plan(const char *folder, const struct plan *plan, uint32_t threads, const char *kernels, FILE *out,
               struct helm_err *err)
{
    struct engine *engine = aligned_alloc(64, (sizeof *engine + 63) / 64 * 64);
    if (!engine) return helm_fail(err, HELM_E_NOMEM, "no memory");
    memset(engine, 0, sizeof *engine);
    int rc = engine_read_model(folder, plan, &engine->model, err);
    engine->plan = (struct plan){.layers = engine->model.config.layers, .step_tokens = UINT32_MAX};
    if (!rc)
        rc = plan ? plan_copy(plan, &engine->plan, err) : plan_make_units(&engine->plan, PLAN_HOME_CPU, err);
    if (!rc && !plan) plan_take_states(&engine->plan, &engine->model);
    if (!rc) rc = engine_check_plan(&engine->plan, &engine->model.config, err);
    if (!rc && !engine->plan.placement) rc = placement_make(&engine->model, NULL, &engine->plan, err);
    if (!rc) rc = print_engine(engine, folder, threads, kernels, out, err);
    engine_free(&engine->base);
    free(engine);
    return rc;
}
