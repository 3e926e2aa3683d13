/* A plan in words, for the log: lists, ring, forecast, every line of the ledgers. See planner.h. Called by
 * main.c; owns nothing. */
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/units.h"
#include "common/plan/share.h"
#include "common/plan/stages.h"
#include "common/shared/kv_layout.h"
#include "daemon/planner/cost/cost.h"
#include "daemon/planner/planner.h"
#include "daemon/planner/profile/found.h"

#define LINE_TEXT 160 /* stages are printed as many to a line as fit */

static void stage_text(const struct plan_stage *stage, char *text, size_t size)
{
    char bytes[UNITS_TEXT];
    units_format_size(stage->bytes, bytes);
    if (stage->ops != PLAN_OPS_ALL)
        snprintf(text, size, "%u's %s %s %s", stage->first, plan_ops_name(stage->ops),
                 plan_home_name(stage->home), bytes);
    else if (stage->first == stage->last)
        snprintf(text, size, "%u %s %s", stage->first, plan_home_name(stage->home), bytes);
    else
        snprintf(text, size, "%u to %u %s %s", stage->first, stage->last, plan_home_name(stage->home), bytes);
}

static void log_line(bool decode, const char *name, const char *line)
{
    if (decode)
        log_info("plan: %s: layers %s", name, line);
    else
        log_debug("plan: %s: layers %s", name, line);
}

/* The decode list says where everything is; the details of other lists are logged at level debug. */
static void log_stages(const struct plan *plan, uint32_t phase, const char *name)
{
    char line[LINE_TEXT] = "", text[LINE_TEXT];
    size_t used = 0;
    struct plan_stage stage;
    for (uint32_t u = 0; u < unit_count(plan->layers);) {
        u = plan_stage_at(plan, phase, u, &stage);
        stage_text(&stage, text, sizeof text);
        size_t length = strlen(text);
        if (used && used + length + sizeof ", " > sizeof line) {
            log_line(phase == 0, name, line);
            used = 0;
        }
        used += (size_t)snprintf(line + used, sizeof line - used, "%s%s", used ? ", " : "", text);
    }
    log_line(phase == 0, name, line);
}

/* Weights that decode steps move, and their packed size. */
static void log_moved(const char *who, const struct cost_crossing *moved)
{
    char size[2][UNITS_TEXT];
    if (moved->crossing < moved->bytes)
        log_info("plan: decode %s %s packed, as about %s", who, units_format_size(moved->bytes, size[0]),
                 units_format_size(moved->crossing, size[1]));
    else if (moved->bytes)
        log_info("plan: decode %s %s as they are", who, units_format_size(moved->bytes, size[0]));
}

static void log_packing(const struct planner_request *r, const struct plan *plan)
{
    struct analyse_table table;
    if (analyse_table_build(r->model, &table, NULL)) return;
    const struct cost_crossing link = cost_bytes_of(&table, plan, PLAN_HOME_STREAM),
                               cpu = cost_bytes_of(&table, plan, PLAN_HOME_CPU);
    log_moved("streams", &link);
    if (cpu.crossing < cpu.bytes) log_moved("computes on the CPU with", &cpu);
    const struct cost_crossing gpu = cost_bytes_of(&table, plan, PLAN_HOME_GPU);
    if (gpu.crossing < gpu.bytes) log_moved("reads in VRAM", &gpu);
    analyse_table_free(&table);
}

/* A list's bytes by home. */
static void log_homes(const struct plan *plan, uint32_t phase, const char *name)
{
    uint64_t bytes[PLAN_HOMES] = {0};
    char line[LINE_TEXT] = "", size[UNITS_TEXT];
    size_t used = 0;
    for (uint32_t u = 0; u < unit_count(plan->layers); u++)
        bytes[plan->unit[u].home[phase]] += plan->unit[u].bytes[phase];
    for (int h = 0; h < PLAN_HOMES && used < sizeof line; h++)
        if (bytes[h])
            used += (size_t)snprintf(line + used, sizeof line - used, "%s%s on %s", used ? ", " : "",
                                     units_format_size(bytes[h], size), plan_home_name((enum plan_home)h));
    log_info("plan: %s: %s", name, line);
}

static void log_ring(const struct plan *plan)
{
    char read[UNITS_TEXT], ring[UNITS_TEXT];
    log_info("plan: %u half layers of %s are read from disk in each step, through a ring of %s",
             plan_disk_units(plan), units_format_size(plan->memory[PLAN_DISK].total, read),
             units_format_size(plan_disk_ring(plan), ring));
}

static void log_disk(const struct planner_request *r, const struct plan *plan)
{
    const struct profile_found *counted = &r->profile->found;
    const uint32_t slots = plan_disk_slots(plan), experts = r->model->config.router.experts;
    log_info(
        "plan: host memory has slots for %u of the %u experts of each of %u layers on disk; %.1f %% of the "
        "chosen ones are expected there, %s",
        slots, experts, plan_disk_units(plan), PERCENT * found_part(counted, slots, experts),
        counted->uses ? "by what a run counted" : "as if each was chosen alike");
}

static void log_lists(const struct planner_request *r, const struct plan *plan)
{
    char name[48] = "decode", size[2][UNITS_TEXT];
    for (uint32_t p = 0; p < plan_phase_count(plan); p++) {
        if (p) snprintf(name, sizeof name, "steps of %u tokens and more", plan_phase_from(plan, p));
        log_homes(plan, p, name);
        log_stages(plan, p, name);
    }
    if (plan_disk_slots(plan) && r->profile) log_disk(r, plan);
    if (plan_disk_ring(plan)) log_ring(plan);
    if (plan->weights)
        log_info("plan: weights are quantised at load, as %s: %s in all", mixture_name(plan->weights),
                 units_format_size(r->model->weight_bytes, size[0]));
    log_info("plan: embedding on %s, head on %s", plan_processor_name(plan->embed),
             plan_processor_name(plan->head));
    if (plan_expert_parts(plan) > 1)
        log_info("plan: each expert is in %u parts, and VRAM has slots for parts", plan_expert_parts(plan));
    if (plan->shared_rows)
        log_info("plan: GPU and CPU compute %u MLPs together, %u of %u rows on the GPU",
                 plan_shared_units(plan), plan->shared_rows, r->model->config.intermediate);
    for (int p = 0; p < PLAN_PROCESSORS; p++)
        if (plan->device[p].ring_bytes)
            log_info("plan: streamed weights pass through a ring of %s",
                     units_format_size(plan->device[p].ring_bytes, size[0]));
    log_packing(r, plan);
    uint64_t varying = 0;
    const uint32_t packed = placements_packed_in_vram(plan, &varying);
    const bool head = plan_head_format(plan) == FORMAT_BF16_PACKED;
    if (packed || head)
        log_info("plan: in VRAM %u half layers%s lie packed, in up to %s", packed,
                 head ? " and the head" : "", units_format_size(varying, size[0]));
    log_info("plan: up to %u tokens a step%s", plan->step_tokens,
             plan_appends_in_arena(plan) ? "; chunks of prompts append in host memory, layer by layer" : "");
}

static void log_context(const struct planner_request *r, const struct plan *plan)
{
    uint32_t model_ctx = r->model->config.max_context, ctx = plan->context_tokens;
    if (r->wish.ctx)
        log_info("context: %u tokens, as asked (the model's own: %u)", ctx, model_ctx);
    else if (ctx < model_ctx)
        log_info("context: %u tokens (the model's own: %u; --ctx raises it as far as memory goes)", ctx,
                 model_ctx);
    else
        log_info("context: %u tokens, the model's own", ctx);
    char bytes[UNITS_TEXT];
    log_info("KV cache: %u pages of %u tokens in %s (%s a token), %.1f whole contexts for %u slots",
             plan->page_count, plan->page_tokens, plan->kv_dtype,
             units_format_size(model_kv_bytes_per_token(&r->model->config,
                                                        plan_kv_layer_in_arena(plan, plan->layers),
                                                        kv_dtype_named(plan->kv_dtype)),
                               bytes),
             (double)plan->page_count / kv_pages_for(ctx, plan->page_tokens), plan->slots);
    if (plan_kv_tiered(plan))
        log_info("KV cache: two tiers: VRAM has %u places, filled up to %u, of %s; of what lies in "
                 "host memory alone the GPU reads up to %u positions a step itself, of more %.1f %%; the CPU "
                 "attends to the "
                 "rest",
                 plan_kv_places(plan), plan_places_filled(plan),
                 units_format_size((uint64_t)plan_kv_places(plan) * plan->page_tokens *
                                       model_kv_bytes_per_token(&r->model->config, plan_device_layers(plan),
                                                                kv_dtype_named(plan->kv_dtype)),
                                   bytes),
                 plan->kv_direct_positions, (double)PERCENT * plan->kv_direct_permille / PERMILLE);
}

/* With what is known of the machine; a plan from a file may come without a profile. */
static void log_forecast(const struct planner_request *r, const struct plan *plan)
{
    struct planner_prediction p;
    struct helm_err err = {0};
    uint32_t batch = r->batch ? r->batch : 1, prompt = r->prompt ? r->prompt : PLANNER_PROMPT_TOKENS;
    uint32_t context = planner_typical_context(r, plan->context_tokens);
    if (!r->profile) return;
    if (prompt > plan->context_tokens) prompt = plan->context_tokens;
    if (planner_predict(r, plan, batch, context, prompt, &p, &err)) {
        log_warn("forecast: %s", err.text);
        return;
    }
    log_info("forecast: %.3g token/s (%.3g to %.3g) with %u at once, each with a context of %u; first token "
             "%.3g ms (%.3g to %.3g) after a prompt of %u",
             batch / p.decode.seconds, batch / p.decode.high, p.decode.low > 0 ? batch / p.decode.low : 0,
             batch, context, p.ttft.seconds * KILO, p.ttft.low * KILO, p.ttft.high * KILO, prompt);
}

void planner_log(const struct planner_request *r, const struct plan *plan)
{
    log_lists(r, plan);
    log_context(r, plan);
    log_forecast(r, plan);
    ledger_log("memory", &plan->memory[PLAN_HOST]);
    for (int p = 0; p < PLAN_PROCESSORS; p++) {
        const enum plan_processor device = (enum plan_processor)p;
        if (plan_processor_has_memory(device) && plan_uses(plan, device))
            ledger_log(plan_device_index(device) ? "VRAM of the second device" : "VRAM",
                       &plan->memory[plan_processor_memory(device)]);
    }
}
