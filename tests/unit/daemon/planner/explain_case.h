/* A model of config.json alone on a machine that ships described, and a plan for it written by hand that has
 * every home, cuts inside layers and both prefill lists. For test_explain.c and test_plot.c. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "daemon/children/accelerator.h"
#include "daemon/planner/formats.h"
#include "daemon/planner/report/explain.h"
#include "tests/written_plans.h"

struct explain_case {
    struct model model;
    struct profile profile;
    struct planner_request request;
    struct plan plan;
};

/* `profile`: a file in profiles/. vram 0: what the profile says is free. */
static inline void case_open(struct explain_case *c, const char *model, const char *profile, uint64_t vram)
{
    char path[256];
    struct helm_err err = {0};
    bool derived;
    memset(c, 0, sizeof *c);
    snprintf(path, sizeof path, "tests/data/configs/%s", model);
    if (model_read_headers(path, &c->model, &derived, &err)) fail_msg("%s", err.text);
    snprintf(path, sizeof path, "profiles/%s.json", profile);
    if (profile_read(path, NULL, &c->profile, &err)) fail_msg("%s", err.text);
    c->request = (struct planner_request){.model = &c->model,
                                          .wish = {.kv_dtype = KV_F16,
                                                   .slots = 8,
                                                   .page_tokens = 32,
                                                   .batch = 1,
                                                   .threads = c->profile.cpu.threads},
                                          .machine = {.memory = {.limit_bytes = CGROUP_UNLIMITED,
                                                                 .machine_bytes = c->profile.host_bytes,
                                                                 .available_bytes = c->profile.host_bytes}},
                                          .no_device = "there is none",
                                          .profile = &c->profile,
                                          .strategy = SEARCH_BEST,
                                          .batch = 1,
                                          .prompt = 128};
    const struct accelerator_info device = {.vram_bytes = c->profile.gpu.vram_bytes,
                                            .vram_free = c->profile.gpu.vram_free,
                                            .context_bytes = c->profile.gpu.context_bytes};
    if (c->profile.gpu.device == PROFILE_DEVICE_CUDA)
        accelerator_ledger_cuda(&device, vram, &c->request.machine.device);
}

static inline void case_close(struct explain_case *c)
{
    plan_free(&c->plan);
    model_free(&c->model);
}

static inline void case_make(struct explain_case *c)
{
    struct helm_err err = {0};
    struct arena_spec spec;
    if (planner_make(&c->request, &c->plan, &spec, &err)) fail_msg("%s", err.text);
}

/* A third of the layers on the GPU, then attention on the CPU and MLPs streamed by turns, the end on the CPU.
 */
static inline void case_write(struct explain_case *c)
{
    struct plan *plan = &c->plan;
    uint32_t layers = c->model.config.layers;
    enum plan_home home[2 * MODEL_LAYERS_MAX];
    struct analyse_table table = {0};
    struct helm_err err = {0};
    *plan = (struct plan){.layers = layers,
                          .context_tokens = 4096,
                          .step_tokens = 512,
                          .slots = 8,
                          .page_tokens = 32,
                          .page_count = 128,
                          .kv_dtype = "f16",
                          .device[PLAN_GPU0].ring_bytes = 256 * MIB,
                          .embed = PLAN_CPU0,
                          .head = PLAN_GPU0,
                          .memory[PLAN_HOST].limit = 64 * GIB,
                          .memory[PLAN_VRAM0].limit = 8 * GIB};
    for (uint32_t u = 0; u < unit_count(layers); u++)
        home[u] = u < 2 * (layers / 3)                     ? PLAN_HOME_GPU
                  : unit_part(u) == UNIT_MLP && u < layers ? PLAN_HOME_STREAM
                                                           : PLAN_HOME_CPU;
    if (plan_make_units(plan, PLAN_HOME_CPU, &err)) fail_msg("%s", err.text);
    plan_set_homes(plan, 0, home);
    add_list(plan, 17, home);
    for (uint32_t u = 0; u < unit_count(layers); u++)
        if (home[u] == PLAN_HOME_CPU) home[u] = PLAN_HOME_STREAM;
    add_list(plan, 96, home);
    if (plan_check(plan, &err)) fail_msg("%s", err.text);
    if (analyse_table_build(&c->model, &table, &err)) fail_msg("%s", err.text);
    analyse_fill_units(&table, plan);
    analyse_table_free(&table);
    ledger_add(&plan->memory[PLAN_HOST], "weights", 9 * GIB);
    ledger_add(&plan->memory[PLAN_VRAM0], "weights & ring", 6 * GIB);
}
