/* Steps of many tokens. See prefill.h. Called by planner.c; owns nothing: lists belong to the plan. */
#include "daemon/planner/prefill.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/planner/formats.h"
#include "daemon/planner/planner.h"

/* ---- how many tokens ---- */

/* Seconds of one token in a chunk of `tokens`, its weights being there. */
static int gpu_seconds(const struct ledger_case *c, const struct profile *profile, uint32_t tokens,
                       double *seconds, struct helm_err *err)
{
    const struct cost_step step = {
        .tokens = tokens, .rows = 1, .samples = 1, .context = tokens, .kv_dtype = c->wish->kv_dtype};
    struct cost_table table;
    *seconds = 0;
    int rc = cost_price(c->model, c->table, profile, &step, &table, err);
    if (rc) return rc;
    for (uint32_t u = 0; u < table.units; u++) *seconds += table.unit[u].gpu;
    cost_table_free(&table);
    return 0;
}

/* Parts of experts have a sum of each, so that a chunk has room for as many tokens as of whole ones: each
 * chunk streams all. Where the context is long for the chunk a prompt may have many of them, so they may have
 * twice the room. */
uint64_t prefill_buffers_most(const struct ledger_case *c, uint32_t ctx, uint32_t tokens)
{
    const uint64_t most = c->machine->device.limit / PREFILL_VRAM_PARTS;
    const bool parts = model_expert_parts(&c->model->config) > 1,
               is_long = ctx / tokens >= PREFILL_MANY_CHUNKS;
    return most << (parts + is_long);
}

int prefill_step_tokens(const struct ledger_case *c, const struct profile *profile, uint32_t ctx,
                        uint32_t *tokens, struct helm_err *err)
{
    const struct ledger_device *device = &c->machine->device;
    uint64_t layers = 0,
             fits = device->limit -
                    (device->limit < device->context_bytes ? device->limit : device->context_bytes);
    for (uint32_t u = 0; u < unit_count(c->table->layers) && !ledger_is_second(c, u); u++)
        layers += c->wish->pack_gpu && c->table->packs_vram[u] ? ledger_packed_unit_bytes(c, u)
                                                               : analyse_units(c->table, u, u).vram;
    *tokens = LEDGER_STEP_TOKENS;
    if (device->kind == LEDGER_DEVICE_NONE || layers <= fits) return 0;
    double copying = (double)(layers - fits) / profile->link.h2d.value;
    while (*tokens < PREFILL_CHUNK_MAX && 2 * *tokens <= ctx) {
        const struct ledger_workspace twice = {.step_tokens = 2 * *tokens,
                                               .ctx = ctx,
                                               .layers = true,
                                               .head = true,
                                               .tiered = c->wish->vram_page_count > 0};
        uint64_t bytes = ledger_workspace_bytes(c, &twice);
        double computing;
        int rc = gpu_seconds(c, profile, *tokens, &computing, err);
        if (rc) return rc;
        if (computing >= copying || bytes > prefill_buffers_most(c, ctx, 2 * *tokens)) break;
        *tokens *= 2;
    }
    return 0;
}

/* ---- what is computed where ---- */

struct choice {
    const struct ledger_case *c;
    const struct profile *profile;
    const struct search_found *decode;
    uint32_t units;
    const enum tensor_format (*format)[PLAN_HOMES];
};

/* The first tokens of a sequence have places. */
static struct cost_tiers here(const struct choice *choice)
{
    return (struct cost_tiers){.two = choice->c->wish->vram_page_count > 0};
}

/* Homes for a step of one row of `tokens` tokens. */
static int homes_for(const struct choice *choice, uint32_t tokens, enum plan_home *home, struct helm_err *err)
{
    const struct cost_step step = {.tokens = tokens,
                                   .rows = 1,
                                   .samples = 1,
                                   .context = tokens,
                                   .kv_dtype = choice->c->wish->kv_dtype,
                                   .format = choice->format,
                                   .kv = here(choice)};
    struct cost_table table;
    double seconds;
    int rc = cost_price(choice->c->model, choice->c->table, choice->profile, &step, &table, err);
    if (rc) return rc;
    rc = search_prefill(&table, choice->decode, home, &seconds, err);
    cost_table_free(&table);
    return rc;
}

static bool same(const struct choice *choice, const enum plan_home *a, const enum plan_home *b)
{
    return memcmp(a, b, choice->units * sizeof *a) == 0;
}

/* Appends the list `b`, from the number of tokens on from which it is faster than `a`, if there is one. */
static int append(const struct choice *choice, const enum plan_home *a, const enum plan_home *b,
                  uint32_t from, struct plan *plan, struct helm_err *err)
{
    const struct search_crossover crossover = {.model = choice->c->model,
                                               .analysed = choice->c->table,
                                               .profile = choice->profile,
                                               .decode = choice->decode,
                                               .a = a,
                                               .b = b,
                                               .context = 0,
                                               .format = choice->format,
                                               .kv = here(choice),
                                               .kv_dtype = choice->c->wish->kv_dtype};
    uint32_t tokens = 0;
    if (from > plan->step_tokens) return 0;
    int rc = search_crossing(&crossover, from, plan->step_tokens, &tokens, err);
    if (rc || !tokens) return rc;
    plan->prefill_from[plan->prefill_count++] = tokens;
    plan_set_homes(plan, plan->prefill_count, b);
    return 0;
}

int prefill_choose(const struct ledger_case *c, const struct profile *profile,
                   const struct search_found *decode, struct plan *plan, struct helm_err *err)
{
    enum tensor_format format[FORMATS_ROWS][PLAN_HOMES];
    struct choice choice = {.c = c,
                            .profile = profile,
                            .decode = decode,
                            .units = unit_count(model_answer_layers(&c->model->config)),
                            .format = format};
    uint32_t brief = plan->step_tokens < PLANNER_PROMPT_TOKENS ? plan->step_tokens : PLANNER_PROMPT_TOKENS;
    const enum plan_home *before = decode->home;
    uint32_t from = GPU_CHUNK_TOKENS;
    plan->prefill_count = 0;
    if (plan->step_tokens < GPU_CHUNK_TOKENS) return 0;
    enum plan_home first[UNIT_PARTS * MODEL_LAYERS_MAX], second[UNIT_PARTS * MODEL_LAYERS_MAX];
    formats_wished(c, format);
    for (uint32_t u = 0; u < choice.units; u++) /* what the CPU has as stored is streamed so, too */
        if (decode->home[u] == PLAN_HOME_CPU) format[u][PLAN_HOME_STREAM] = format[u][PLAN_HOME_CPU];
    formats_plan_vram(plan, format);
    int rc = homes_for(&choice, brief, first, err);
    if (!rc) rc = homes_for(&choice, plan->step_tokens, second, err);
    if (rc) goto out;
    if (!same(&choice, first, before) && !same(&choice, first, second)) {
        rc = append(&choice, before, first, from, plan, err);
        if (rc) goto out;
        if (plan->prefill_count) {
            before = first;
            from = plan->prefill_from[0] + 1;
        }
    }
    if (!same(&choice, second, before)) rc = append(&choice, before, second, from, plan, err);
out:
    if (rc) plan->prefill_count = 0;
    return rc;
}
