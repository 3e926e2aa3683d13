/* helm-cli plan: the running plan, and what it was seen doing beside what it should do. A table for people;
 * as JSON the plan itself, which --plan reads again, with two members more. See cli.h and query.h. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/commands.h"
#include "client/cli/query.h"
#include "common/base/json.h"
#include "common/plan/placement.h"
#include "common/plan/stages.h"
#include "common/base/units.h"

#define STEPS_SHOWN 6 /* kinds of steps, the most frequent ones */

/* ---- table: stages and memory ------------------------------------------------------------------------- */

static void ledger_table(const char *title, const struct ledger *ledger, struct cli_text *out)
{
    char text[UNITS_TEXT];
    cli_text_printf(out, "\n%-40s %12s\n", title, "BYTES");
    for (uint32_t i = 0; i < ledger->line_count; i++)
        cli_text_printf(out, "%-40s %12s\n", ledger->line[i].what,
                        units_format_size(ledger->line[i].bytes, text));
    cli_text_printf(out, "%-40s %12s\n", "total", units_format_size(ledger->total, text));
    if (ledger->limit < INT64_MAX)
        cli_text_printf(out, "%-40s %12s\n", "limit", units_format_size(ledger->limit, text));
}

static void phase_table(const struct plan *plan, uint32_t phase, struct cli_text *out)
{
    struct plan_stage stage;
    char text[UNITS_TEXT];
    if (phase == 0)
        cli_text_printf(out, "\n%s\n",
                        plan->prefill_count ? "DECODE, and steps of few tokens" : "EVERY STEP");
    else
        cli_text_printf(out, "\nPREFILL, steps of %u tokens and more\n", plan_phase_from(plan, phase));
    cli_text_printf(out, "%10s  %-9s  %-8s %14s\n", "LAYERS", "OPS", "HOME", "WEIGHTS");
    for (uint32_t u = 0; u < unit_count(plan->layers);) {
        u = plan_stage_at(plan, phase, u, &stage);
        char layers[32];
        snprintf(layers, sizeof layers, stage.first == stage.last ? "%u" : "%u-%u", stage.first, stage.last);
        cli_text_printf(out, "%10s  %-9s  %-8s %14s\n", layers, plan_ops_name(stage.ops),
                        plan_home_name(stage.home), units_format_size(stage.bytes, text));
    }
}

static void stages_table(const struct plan *plan, struct cli_text *out)
{
    char text[UNITS_TEXT];
    cli_text_printf(out,
                    "%u layers, context %u tokens, up to %u sequences, steps of up to %u tokens\n"
                    "KV cache %s, %u pages of %u tokens\nembedding on %s, head on %s",
                    plan->layers, plan->context_tokens, plan->slots, plan->step_tokens, plan->kv_dtype,
                    plan->page_count, plan->page_tokens, plan_processor_name(plan->embed),
                    plan_processor_name(plan->head));
    for (int p = 0; p < PLAN_PROCESSORS; p++)
        if (plan->device[p].ring_bytes)
            cli_text_printf(out, "; streamed weights pass a ring of %s",
                            units_format_size(plan->device[p].ring_bytes, text));
    if (plan->weights)
        cli_text_printf(out, "\nweights quantised at load, as %s", mixture_name(plan->weights));
    for (int p = 0; p < PLAN_PROCESSORS; p++)
        if (plan->inputs[p] == LINEAR_INT8)
            cli_text_printf(out, "\nblocks multiplied with int8 activations on %s",
                            plan_processor_name((enum plan_processor)p));
    uint64_t varying = 0;
    const uint32_t packed = placements_packed_in_vram(plan, &varying);
    const bool head = plan_head_format(plan) == FORMAT_BF16_PACKED;
    if (packed || head)
        cli_text_printf(out, "\npacked in VRAM: %u of its half layers, in order%s, in %s at most", packed,
                        head ? ", and the head" : "", units_format_size(varying, text));
    cli_text_add(out, "\n", 1);
    for (uint32_t phase = 0; phase < plan_phase_count(plan); phase++) phase_table(plan, phase, out);
}

/* ---- table: planned and measured ---------------------------------------------------------------------- */

/* "13.8", "120", "0.42" */
static const char *number(double value, char text[24])
{
    if (!isfinite(value) || value <= 0) return "-";
    snprintf(text, 24, "%.*f", value >= 100 ? 0 : value >= 10 ? 1 : 2, value);
    return text;
}

/* By how much `measured` is above `planned`, in percent. */
static const char *difference(double measured, double planned, char text[24])
{
    if (!(measured > 0) || !(planned > 0)) return "-";
    snprintf(text, 24, "%+.1f %%", 100 * (measured / planned - 1));
    return text;
}

static void row(const char *what, const char *unit, double planned, double measured, const char *note,
                struct cli_text *out)
{
    char a[24], b[24], c[24];
    cli_text_printf(out, "%-36s %9s %9s %-7s %10s  %s\n", what, number(planned, a), number(measured, b), unit,
                    difference(measured, planned, c), note);
}

static double per_second(double count, double seconds)
{
    return seconds > 0 ? count / seconds : 0;
}

/* The least count of a kind of step that is shown: about STEPS_SHOWN kinds, the most frequent ones, are. */
static uint64_t least_count_shown(const struct helm_plan_steps *steps, size_t count)
{
    uint64_t least = 1;
    for (size_t shown = count; shown > STEPS_SHOWN;) {
        uint64_t next = UINT64_MAX;
        shown = 0;
        for (size_t i = 0; i < count; i++)
            if (steps[i].count > least && steps[i].count < next) next = steps[i].count;
        if (next == UINT64_MAX) break; /* all alike */
        least = next;
        for (size_t i = 0; i < count; i++) shown += steps[i].count >= least;
    }
    return least;
}

/* "planned 12.1 to 14.8"; without an upper end where the spreads leave none. */
static const char *between(double low, double high, char text[64])
{
    char from[24], to[24];
    if (high > 0 && isfinite(high))
        snprintf(text, 64, "planned %s to %s", number(low, from), number(high, to));
    else
        snprintf(text, 64, "planned %s or more", number(low, from));
    return text;
}

static void forecast_rows(const struct helm_plan_info *p, struct cli_text *out)
{
    char what[64], note[64];
    snprintf(what, sizeof what, "forecast: %u at once, context %u", p->batch, p->context);
    between(per_second(p->batch, p->decode_seconds_high), per_second(p->batch, p->decode_seconds_low), note);
    if (p->decode_seconds > 0) row(what, "token/s", per_second(p->batch, p->decode_seconds), 0, note, out);
    snprintf(what, sizeof what, "forecast: first token after %u", p->prompt);
    between(p->ttft_seconds_low * 1e3, p->ttft_seconds_high * 1e3, note);
    if (p->ttft_seconds > 0) row(what, "ms", p->ttft_seconds * 1e3, 0, note, out);
}

static void measured_rows(const struct helm_plan_info *p, struct cli_text *out)
{
    char what[64], note[64];
    uint64_t least = least_count_shown(p->decode, p->decode_count);
    for (size_t i = 0; i < p->decode_count; i++) {
        const struct helm_plan_steps *s = &p->decode[i];
        if (s->count < least) continue;
        snprintf(what, sizeof what, "decode, %u at once, context %u", s->batch, s->tokens);
        snprintf(note, sizeof note, "%" PRIu64 " step%s", s->count, s->count == 1 ? "" : "s");
        row(what, "token/s", per_second(s->batch, s->planned_seconds),
            per_second(s->batch, s->measured_seconds), note, out);
    }
    least = least_count_shown(p->ttft, p->ttft_count);
    for (size_t i = 0; i < p->ttft_count; i++) {
        const struct helm_plan_steps *s = &p->ttft[i];
        if (s->count < least) continue;
        snprintf(what, sizeof what, "first token after a prompt of %u", s->tokens);
        snprintf(note, sizeof note, "%" PRIu64 " prompt%s", s->count, s->count == 1 ? "" : "s");
        row(what, "ms", s->planned_seconds * 1e3, s->measured_seconds * 1e3, note, out);
    }
}

static void resource_rows(const struct helm_plan_info *p, struct cli_text *out)
{
    char what[64];
    for (size_t i = 0; i < p->resource_count; i++) {
        const struct helm_plan_resource *r = &p->resources[i];
        struct cli_text name = {0};
        cli_text_say(&name, "$", CLEAN(r->name));
        snprintf(what, sizeof what, "%.20s busy while decoding", name.data ? name.data : "");
        row(what, "%", 100 * r->busy_planned, 100 * r->busy, "", out);
        snprintf(what, sizeof what, "%.20s weights", name.data ? name.data : "");
        if (r->bytes_per_second_planned > 0)
            row(what, "GB/s", r->bytes_per_second_planned / 1e9, r->bytes_per_second / 1e9, "", out);
        cli_text_free(&name);
    }
}

static void speed_table(const struct helm_plan_info *p, struct cli_text *out)
{
    cli_text_printf(out, "\n%-36s %9s %9s %-7s %10s\n", "SPEED", "PLANNED", "MEASURED", "", "DIFFERENCE");
    forecast_rows(p, out);
    measured_rows(p, out);
    resource_rows(p, out);
    if (p->now[0]) cli_text_say(out, "$\n", CLEAN(p->now));
    if (p->drift[0]) cli_text_say(out, "$drift: $\n", PLAIN(p->drifting ? "" : "last "), CLEAN(p->drift));
}

static void plan_table(const struct helm_plan_info *info, const struct plan *plan, struct cli_text *out)
{
    stages_table(plan, out);
    speed_table(info, out);
    ledger_table("HOST MEMORY", &plan->memory[PLAN_HOST], out);
    for (int p = 0; p < PLAN_PROCESSORS; p++) {
        const enum plan_memory memory = plan_processor_memory((enum plan_processor)p);
        if (memory == PLAN_HOST || !plan->memory[memory].line_count) continue;
        ledger_table(plan_device_index((enum plan_processor)p) ? "VRAM OF THE SECOND DEVICE" : "VRAM",
                     &plan->memory[memory], out);
    }
}

/* ---- JSON --------------------------------------------------------------------------------------------- */

/* null for what is unknown, or no number. */
static json_t *real(double value)
{
    return isfinite(value) && value > 0 ? json_real(value) : json_null();
}

static json_t *interval(double value, double low, double high)
{
    return json_pack("{s:o, s:o, s:o}", "value", real(value), "low", real(low), "high", real(high));
}

static json_t *percent(double measured, double planned)
{
    return measured > 0 && planned > 0 && isfinite(measured / planned)
               ? json_real(100 * (measured / planned - 1))
               : json_null();
}

static json_t *forecast_json(const struct helm_plan_info *p)
{
    return json_pack("{s:i, s:i, s:i, s:o, s:o}", "batch", (int)p->batch, "context", (int)p->context,
                     "prompt", (int)p->prompt, "decode_tok_s",
                     interval(per_second(p->batch, p->decode_seconds),
                              per_second(p->batch, p->decode_seconds_high),
                              per_second(p->batch, p->decode_seconds_low)),
                     "ttft_ms",
                     interval(p->ttft_seconds * 1e3, p->ttft_seconds_low * 1e3, p->ttft_seconds_high * 1e3));
}

static json_t *measured_json(const struct helm_plan_info *p)
{
    json_t *decode = json_array(), *ttft = json_array(), *resources = json_array();
    for (size_t i = 0; i < p->decode_count; i++) {
        const struct helm_plan_steps *s = &p->decode[i];
        double measured = per_second(s->batch, s->measured_seconds),
               planned = per_second(s->batch, s->planned_seconds);
        json_array_append_new(decode, json_pack("{s:i, s:i, s:I, s:o, s:o, s:o}", "batch", (int)s->batch,
                                                "context", (int)s->tokens, "steps", (json_int_t)s->count,
                                                "tok_s", real(measured), "planned_tok_s", real(planned),
                                                "difference_percent", percent(measured, planned)));
    }
    for (size_t i = 0; i < p->ttft_count; i++) {
        const struct helm_plan_steps *s = &p->ttft[i];
        json_array_append_new(ttft,
                              json_pack("{s:i, s:I, s:o, s:o, s:o}", "prompt", (int)s->tokens, "prompts",
                                        (json_int_t)s->count, "ms", real(s->measured_seconds * 1e3),
                                        "planned_ms", real(s->planned_seconds * 1e3), "difference_percent",
                                        percent(s->measured_seconds, s->planned_seconds)));
    }
    for (size_t i = 0; i < p->resource_count; i++) {
        const struct helm_plan_resource *r = &p->resources[i];
        json_array_append_new(resources,
                              json_pack("{s:s, s:o, s:o, s:o, s:o}", "name", r->name, "busy", real(r->busy),
                                        "planned_busy", real(r->busy_planned), "bytes_per_second",
                                        real(r->bytes_per_second), "planned_bytes_per_second",
                                        real(r->bytes_per_second_planned)));
    }
    return json_pack("{s:o, s:o, s:o, s:b, s:s}", "decode", decode, "ttft", ttft, "resources", resources,
                     "drifting", p->drifting, "drift", p->drift);
}

static int plan_json(const struct helm_plan_info *info, json_t *object, struct cli_text *out,
                     struct helm_err *err)
{
    json_t *forecast = forecast_json(info), *measured = measured_json(info);
    bool added = forecast && measured && json_object_set(object, "forecast", forecast) == 0 &&
                 json_object_set_new(object, "now", json_string(info->now)) == 0 &&
                 json_object_set(object, "measured", measured) == 0;
    json_decref(forecast);
    json_decref(measured);
    char *text = added ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    if (!text) return helm_fail(err, HELM_E_NOMEM, "no memory for the plan as JSON");
    cli_text_printf(out, "%s\n", text);
    free(text);
    return 0;
}

int command_plan(struct cli *cli, int argc, char *const argv[])
{
    const struct args_spec about = {
        .program = "helm-cli plan",
        .usage = "[--json]",
        .about =
            "The plan in force: what is computed where, how fast it should be and is, and the memory it\n"
            "takes. --json prints it as --plan reads it."};
    bool json = false;
    struct args_parsed parsed;
    struct helm_err err = {0};
    struct cli_text out = {0};
    struct plan plan = {0};
    struct helm_plan_info *info = NULL;
    json_t *object = NULL;
    int exit_status = query_begin(cli, &about, argc, argv, &json, &parsed);
    if (exit_status != CLI_EXIT_DONE) return exit_status;
    int rc = helm_plan_info(cli->client, CLI_ANSWER_MS, &info, &err);
    if (rc == 0)
        rc = json_parse_bounded("the plan", info->json, strlen(info->json), CLI_TEXT_MAX, &object, &err);
    if (rc == 0) rc = plan_from_json(object, &plan, &err);
    if (rc == 0 && json) rc = plan_json(info, object, &out, &err);
    if (rc == 0 && !json) plan_table(info, &plan, &out);
    exit_status = query_finish(&out, rc, &err);
    plan_free(&plan);
    json_decref(object);
    free(info);
    return exit_status;
}
