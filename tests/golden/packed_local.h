/* A made model's plan with packed weights, run by the CPU alone. Included after made_model.h by the golden
 * tests of packed weights; the caller looks at what was loaded and closes. */
#pragma once

#include "common/base/cpu.h"
#include "tests/golden/made_model.h"
#include "worker-cpu/local.h"

static inline bool has_kernels(void)
{
    return linear_pays(FORMAT_BF16_PACKED, cpu_features());
}

static inline int step_local(void *local, const struct step_row *rows, uint32_t count,
                             const struct step_result **result, struct helm_err *err)
{
    return local_step(local, rows, count, result, err);
}

/* *on: what ran; `most` is its own. To be closed by close_local. */
static inline struct local *run_plan_local(const char *kernels, const struct plan *plan, uint32_t threads,
                                           const struct script *script, struct runner *on, float *logits)
{
    struct helm_err err = {0};
    struct local *local = aligned_alloc(64, (sizeof *local + 63) / 64 * 64);
    const struct local_options options = {.folder = folder,
                                          .kernels = kernels,
                                          .plan = plan,
                                          .kv_dtype = KV_F32,
                                          .threads = threads,
                                          .slots = SLOTS,
                                          .context_tokens = CONTEXT,
                                          .step_tokens = STEP_TOKENS};
    assert_non_null(local);
    if (local_open(&options, local, &err)) fail_msg("%s", err.text);
    on->arena = &local->arena, on->engines = local, on->step = step_local;
    run_script(on, script, logits);
    return local;
}

static inline void close_local(struct local *local)
{
    local_close(local);
    free(local);
}
