/* An explained plan as a table, for people. See explain.h. */
#include <math.h>
#include <string.h>

#include "common/base/units.h"
#include "common/plan/share.h"
#include "daemon/planner/report/explain.h"

#define WIDTH 72

/* Cut layers make long lists: what each home comes to. */
static void print_sums(const struct explain_list *list, FILE *out)
{
    char text[UNITS_TEXT], stages[32];
    static const enum plan_home homes[] = {PLAN_HOME_GPU,   PLAN_HOME_GPU1,   PLAN_HOME_CPU, PLAN_HOME_STREAM,
                                           PLAN_HOME_MIXED, PLAN_HOME_SHARED, PLAN_HOME_DISK};
    for (size_t h = 0; h < sizeof homes / sizeof *homes; h++) {
        uint64_t bytes = 0;
        uint32_t count = 0;
        double seconds = 0;
        for (uint32_t i = 0; i < list->stage_count; i++) {
            if (list->stage[i].stage.home != homes[h]) continue;
            bytes += list->stage[i].stage.bytes;
            seconds += list->stage[i].seconds;
            count++;
        }
        snprintf(stages, sizeof stages, "%u stage%s", count, count == 1 ? "" : "s");
        if (count)
            fprintf(out, "  %-10s %-10s %-7s %12s %11.3f\n", "in all", stages, plan_home_name(homes[h]),
                    units_format_size(bytes, text), 1e3 * seconds);
    }
}

static bool stages_alike(const struct explain_stage *a, const struct explain_stage *b)
{
    return a->stage.ops == b->stage.ops && a->stage.home == b->stage.home &&
           !strcmp(a->bound_by, b->bound_by);
}

/* Layers from stage `at` on that are two stages each, attention and MLP in different homes, the same in every
 * layer: of a mixture with experts in both memories dozens. 1: fewer than two are, and the stage is printed
 * by itself. */
static uint32_t layers_alike(const struct explain_list *list, uint32_t at)
{
    const struct explain_stage *s = list->stage + at;
    uint32_t layers = 0;
    while (at + 2 * layers + 1 < list->stage_count) {
        const struct explain_stage *pair = s + 2 * (size_t)layers;
        uint32_t layer = s->stage.first + layers;
        if (pair[0].stage.first != layer || pair[0].stage.last != layer || pair[1].stage.first != layer ||
            pair[1].stage.last != layer || !stages_alike(pair, s) || !stages_alike(pair + 1, s + 1))
            break;
        layers++;
    }
    return layers > 1 ? layers : 1;
}

/* One line: a stage, or every second one of `layers` layers. */
static void print_stages(const struct explain *x, const struct explain_list *list, uint32_t at,
                         uint32_t layers, FILE *out)
{
    char text[UNITS_TEXT], range[32];
    const struct explain_stage *first = list->stage + at, *last = first + 2 * (size_t)(layers - 1);
    uint64_t bytes = 0;
    double seconds = 0;
    for (const struct explain_stage *s = first; s <= last; s += 2) {
        bytes += s->stage.bytes;
        seconds += s->seconds;
    }
    snprintf(range, sizeof range, first->stage.first == last->stage.last ? "%u" : "%u-%u", first->stage.first,
             last->stage.last);
    fprintf(out, "  %-10s %-10s %-7s %12s %11.3f   %s", range, plan_ops_name(first->stage.ops),
            plan_home_name(first->stage.home), units_format_size(bytes, text), 1e3 * seconds,
            first->bound_by);
    if (first->measured)
        fprintf(out, ", measured +-%.0f %%\n", 100 * first->spread);
    else
        fprintf(out, "%s\n", x->request->profile->programs ? ", by rates" : "");
}

static void print_list(const struct explain *x, const struct explain_list *list, FILE *out)
{
    char head[96];
    const struct plan *plan = x->plan;
    int n = snprintf(head, sizeof head, "%s, a step of %u token%s", list->name, list->tokens,
                     list->tokens == 1 ? "" : "s");
    if (list->rows == 1 && list->tokens == 1)
        snprintf(head + n, sizeof head - (size_t)n, " at position %u", list->context);
    if (list->rows > 1)
        snprintf(head + n, sizeof head - (size_t)n, ", one a sequence, at position %u", list->context);
    fprintf(out, "%-*s %9.2f ms\n", WIDTH - 13, head, 1e3 * list->seconds);
    fprintf(out, "  %-10s %-10s %-7s %12s %11s   %s\n", "layers", "ops", "home", "bytes", "ms", "bound by");
    fprintf(out, "  %-10s %-10s %-7s %12s %11.3f\n", "embedding", "", plan_processor_name(plan->embed), "",
            1e3 * list->embed);
    for (uint32_t i = 0; i < list->stage_count;) {
        uint32_t layers = layers_alike(list, i), rows = layers > 1 ? 2 : 1;
        for (uint32_t row = 0; row < rows; row++) print_stages(x, list, i + row, layers, out);
        i += layers * rows;
    }
    fprintf(out, "  %-10s %-10s %-7s %12s %11.3f\n", "head", "", plan_processor_name(plan->head), "",
            1e3 * list->head);
    fprintf(out, "  %-10s %-10s %-7s %12s %11.3f\n", "helmd", "", "", "", 1e3 * list->step);
    print_sums(list, out);
    fputc('\n', out);
}

static void print_ledger(const char *name, const struct ledger *ledger, FILE *out)
{
    char text[UNITS_TEXT], limit[UNITS_TEXT];
    if (!ledger->line_count) return;
    fprintf(out, "%s\n", name);
    for (uint32_t i = 0; i < ledger->line_count; i++)
        fprintf(out, "  %12s  %s\n", units_format_size(ledger->line[i].bytes, text), ledger->line[i].what);
    if (ledger->limit == UINT64_MAX)
        fprintf(out, "  %12s  in all\n\n", units_format_size(ledger->total, text));
    else
        fprintf(out, "  %12s  in all, of %s\n\n", units_format_size(ledger->total, text),
                units_format_size(ledger->limit, limit));
}

static void print_strategies(const struct explain *x, FILE *out)
{
    fprintf(out, "strategies\n");
    if (x->request->plan_given)
        fprintf(out, "  %-11s %8.2f token/s, first token after %10.1f ms   <- this plan\n", "as given",
                explain_rate(x), 1e3 * x->prediction.ttft.seconds);
    for (uint32_t i = 0; i < x->strategies; i++) {
        const struct explain_strategy *s = &x->strategy[i];
        const char *name = search_strategy_name(s->strategy);
        if (s->feasible)
            fprintf(out, "  %-11s %8.2f token/s, first token after %10.1f ms%s\n", name,
                    x->batch / s->decode_s, 1e3 * s->ttft_s,
                    s->strategy == x->request->strategy && !x->request->plan_given ? "   <- this plan" : "");
        else
            fprintf(out, "  %-11s does not fit: %s\n", name, s->why);
    }
}

static const char *how_many(uint32_t n, const char *one, const char *many)
{
    return n == 1 ? one : many;
}

/* Whether experts in both memories are packed. */
static bool both_packed(const struct plan *plan)
{
    for (uint32_t u = 0; u < unit_count(plan->layers); u++)
        if (plan->unit[u].home[0] == PLAN_HOME_MIXED && plan_format_varies(plan_unit_format(plan, u)))
            return true;
    return false;
}

/* Weights that a decode step moves there, and their packed size. */
static void print_moved(const char *name, const struct cost_crossing *moved, FILE *out)
{
    char text[UNITS_TEXT], packed[UNITS_TEXT];
    if (moved->bytes == 0) return;
    fprintf(out, "%-8s %s of weights a decode step%s%s\n", name, units_format_size(moved->bytes, text),
            moved->crossing < moved->bytes ? ", packed to about " : ", as they are",
            moved->crossing < moved->bytes ? units_format_size(moved->crossing, packed) : "");
}

static void print_experts(const struct explain *x, FILE *out)
{
    const struct model_config *c = &x->request->model->config;
    const struct explain_experts *e = &x->experts;
    const uint32_t parts = model_expert_parts(c);
    char stored[UNITS_TEXT], token[UNITS_TEXT];
    if (!e->layers) return;
    fprintf(out, "experts  %u in %u of %u layers, %u a token: %s, of which a token reads %s",
            c->router.experts / parts, e->layers, c->layers, c->router.chosen / parts,
            units_format_size(e->bytes, stored), units_format_size(e->token_bytes, token));
    if (parts > 1) fprintf(out, ", each in %u parts", parts);
    if (x->batch > 1)
        fprintf(out, ", a step of %u %s (chosen evenly: assumed)", x->batch,
                units_format_size(e->step_bytes, token));
    if (e->shared_bytes)
        fprintf(out, "; a shared one for every token, %s", units_format_size(e->shared_bytes, stored));
    fputc('\n', out);
    if (!e->mixed) return;
    fprintf(
        out,
        "mixed    %u layers, %u slots each%s%s; of missing experts the GPU reads %.1f %%; up to %u come a "
        "step\n"
        "         %.1f %% of the chosen ones in VRAM (%s): %.2f ms a step",
        e->mixed, plan_experts(x->plan)->slots, parts > 1 ? " for parts" : "",
        both_packed(x->plan) ? ", packed" : "", plan_experts(x->plan)->direct_permille / 10.0,
        plan_experts(x->plan)->moves, 100 * e->hit,
        plan_experts(x->plan)->hit_permille ? "as the plan states" : "each chosen alike: assumed",
        1e3 * e->seconds);
    if (plan_experts(x->plan)->hit_permille)
        fprintf(out, "; each chosen alike %.2f ms", 1e3 * e->seconds_even);
    fputc('\n', out);
}

/* Whole units. */
static void print_ring(const struct explain *x, FILE *out)
{
    char read[UNITS_TEXT], ring[UNITS_TEXT];
    if (plan_disk_ring(x->plan))
        fprintf(out, "disk     %u of %u half layers, %s a step, through a ring of %s; read at %.2f GB/s\n",
                plan_disk_units(x->plan), unit_count(x->plan->layers),
                units_format_size(x->plan->memory[PLAN_DISK].total, read),
                units_format_size(plan_disk_ring(x->plan), ring),
                1e-9 * x->request->profile->disk_read.value);
}

static void print_disk(const struct explain *x, FILE *out)
{
    const uint32_t slots = plan_disk_slots(x->plan), experts = x->request->model->config.router.experts;
    if (!slots) return;
    fprintf(out, "disk     experts of %u of %u layers, of each %u of %u in host memory; read at %.2f GB/s\n",
            plan_disk_units(x->plan), x->experts.layers, slots, experts,
            1e-9 * x->request->profile->disk_read.value);
    for (int m = PLAN_MEMORIES; m-- > 0;) {
        char text[UNITS_TEXT];
        if (!x->experts.there[m]) continue;
        fprintf(out, "         %-6s %10s of experts, %5.1f %% of the chosen ones\n",
                plan_memory_name((enum plan_memory)m), units_format_size(x->experts.there[m], text),
                100 * x->experts.found[m]);
    }
    const struct profile_found *counted = &x->request->profile->found;
    if (counted->uses)
        fprintf(out, "         by what a run found in %u slots: %.1f %% of %llu uses\n", counted->slots,
                100.0 * (double)counted->found / (double)counted->uses, (unsigned long long)counted->uses);
    else
        fprintf(out, "         as if each was chosen alike, until a run has counted: mostly more is found\n");
}

/* MLPs that both processors compute. */
static void print_shared(const struct plan *plan, const struct model *model, FILE *out)
{
    const uint32_t all = model->config.intermediate, units = plan_shared_units(plan);
    if (units)
        fprintf(out, "shared   %u MLPs: the GPU computes %u of %u rows, %.1f %%, the CPU the others\n", units,
                plan->shared_rows, all, 100.0 * plan->shared_rows / all);
}

/* Rates of formats that are not bf16. */
static void print_formats(const struct explain *x, FILE *out)
{
    char text[UNITS_TEXT];
    for (uint32_t i = 0; i < x->format_count; i++) {
        const struct explain_format *f = &x->format[i];
        fprintf(out, "%-8s %s of %s, CPU %.4g GB/s", i ? "" : "rates", units_format_size(f->bytes, text),
                tensor_format_name(f->format), f->cpu * 1e-9);
        if (f->gpu > 0) fprintf(out, ", GPU %.4g GB/s", f->gpu * 1e-9);
        fprintf(out, "%s\n", f->measured ? "" : ": bf16's, since the profile has none of it");
    }
}

/* Weights that lie packed in VRAM, and their room there, tables and slack included. */
static void print_packed(const struct explain *x, FILE *out)
{
    const struct plan *plan = x->plan;
    char text[UNITS_TEXT], room[UNITS_TEXT];
    uint64_t varying = 0;
    const uint32_t packed = placements_packed_in_vram(plan, &varying);
    const bool head = plan_head_format(plan) == FORMAT_BF16_PACKED;
    uint32_t units = 0;
    if (!packed && !head) return;
    for (uint32_t u = 0; u < unit_count(plan->layers); u++)
        units += plan_home_memory(plan->unit[u].home[0]) != PLAN_HOST;
    fprintf(out, "vram     %u of %u half layers there%s lie packed: %s in %s\n", packed, units,
            head ? " and the head" : "", units_format_size(x->packed_bytes, text),
            units_format_size(varying, room));
}

/* Who reads what lies in host memory alone, in decode. */
static void print_ways(const struct explain *x, FILE *out)
{
    const struct plan *plan = x->plan;
    if (!plan_kv_assisted(plan)) {
        fprintf(out, "ways     what lies in host memory alone the GPU reads itself\n");
        return;
    }
    fprintf(out,
            "ways     the GPU reads up to %u positions a step from host memory alone; of more it reads %.1f "
            "%%, and "
            "the CPU attends to the rest\n",
            plan->kv_direct_positions, plan->kv_direct_permille / 10.0);
    if (plan->kv_direct_window)
        fprintf(out, "         layers with a window of up to %u: the GPU reads all\n",
                plan->kv_direct_window);
}

/* Where the cache is, and decode over context. */
static void print_cache(const struct explain *x, FILE *out)
{
    const struct plan *plan = x->plan;
    if (!plan_kv_tiered(plan)) {
        fprintf(out, "kv       one tier: each layer's cache with the processor that attends to it\n");
        return;
    }
    fprintf(
        out,
        "kv       two tiers: %u places of %u tokens in VRAM, all pages in host memory\n"
        "filled   up to %u places: %u stay free for pages that sequences begin while a step is in flight\n",
        plan_kv_places(plan), plan->page_tokens, plan_places_filled(plan), plan->kv_free_places);
    print_ways(x, out);
    if (plan_appends_in_arena(plan))
        fprintf(
            out,
            "chunks   up to %u tokens of a prompt a step, more than VRAM has places for: they append in host "
            "memory, layer by layer\n",
            plan->step_tokens);
    else
        fprintf(out, "chunks   up to %u tokens of a prompt a step, which append in VRAM\n",
                plan->step_tokens);
}

static void print_curve(const struct explain *x, FILE *out)
{
    const bool other = x->point_count && isfinite(x->point[0].one_tier);
    fprintf(out, "decode over context, token/s\n  %-10s %10s%s\n", "tokens in", "this plan",
            other ? "   one tier" : "");
    for (uint32_t i = 0; i < x->point_count; i++) {
        const struct explain_point *point = &x->point[i];
        fprintf(out, "  %-10u %10.2f", point->context, explain_point_rate(x, point->seconds));
        if (other) fprintf(out, " %10.2f", explain_point_rate(x, point->one_tier));
        fputc('\n', out);
    }
    if (!other && plan_kv_tiered(x->plan)) fprintf(out, "  (with one tier no plan fits)\n");
    fputc('\n', out);
}

static void print_drafts(const struct explain *x, FILE *out)
{
    if (!x->draft_steps) return;
    fprintf(out,
            "decode with drafts, token/s if each is right with probability\n  %-10s %10s %10s %10s %10s\n",
            "drafts", "step, ms", "0.5", "0.8", "1");
    for (uint32_t d = 0; d < x->draft_steps; d++)
        fprintf(out, "  %-10u %10.3f %10.2f %10.2f %10.2f\n", d,
                1e3 * (x->draft_step_s[d] + x->draft_made_s[d]), explain_draft_rate(x, d, 0.5),
                explain_draft_rate(x, d, 0.8), explain_draft_rate(x, d, 1));
    fputc('\n', out);
}

void explain_print(const struct explain *x, FILE *out)
{
    char text[UNITS_TEXT];
    const struct planner_prediction *p = &x->prediction;
    const struct model *m = x->request->model;
    const struct profile *profile = x->request->profile;
    fprintf(out, "model    %s (%s), %u layers, %s of weights\n", explain_model_name(x),
            m->config.architecture, m->config.layers, units_format_size(m->weight_bytes, text));
    if (x->plan->weights) fprintf(out, "weights  quantised at load, as %s\n", mixture_name(x->plan->weights));
    if (x->request->activations) fprintf(out, "products %s\n", x->request->activations);
    if (x->request->invariant) fprintf(out, "invariant %s\n", x->request->invariant);
    fprintf(out, "machine  %s\n", profile->machine);
    if (x->request->now) fprintf(out, "now      %s\n", x->request->now);
    fprintf(out, "decode   %.2f token/s (%.2f to %.2f): %u %s, %u tokens in\n", explain_rate(x),
            explain_rate_low(x), explain_rate_high(x), x->batch, how_many(x->batch, "sequence", "sequences"),
            x->context);
    if (x->batch < x->asked)
        fprintf(
            out,
            "turns    of %u sequences %u decode at once and the others wait: all together would be slower\n",
            x->asked, x->batch);
    fprintf(out, "first    %.1f ms (%.1f to %.1f) after a prompt of %u %s\n", 1e3 * p->ttft.seconds,
            1e3 * p->ttft.low, 1e3 * p->ttft.high, x->prompt, how_many(x->prompt, "token", "tokens"));
    if (x->request->second && x->request->second->text[0])
        fprintf(out, "second   %s\n", x->request->second->text);
    if (x->request->drafts) fprintf(out, "drafts   %s\n", x->request->drafts);
    print_experts(x, out);
    print_disk(x, out);
    print_ring(x, out);
    print_shared(x->plan, x->request->model, out);
    print_moved("link", &x->crossing, out);
    print_moved("cpu", &x->reading, out);
    print_packed(x, out);
    print_formats(x, out);
    fprintf(out, "context  %u tokens, %u pages of %u in %s, %s a token\n", x->plan->context_tokens,
            x->plan->page_count, x->plan->page_tokens, x->plan->kv_dtype,
            units_format_size(model_kv_bytes_per_token(&m->config,
                                                       plan_kv_layer_in_arena(x->plan, x->plan->layers),
                                                       kv_dtype_named(x->plan->kv_dtype)),
                              text));
    if (x->request->pages) fprintf(out, "pages    %s\n", x->request->pages);
    print_cache(x, out);
    fputc('\n', out);
    print_curve(x, out);
    print_drafts(x, out);
    for (uint32_t i = 0; i < x->list_count; i++) {
        const struct explain_list *list = &x->list[i];
        if (list->from_tokens == UINT32_MAX)
            fprintf(out, "(no list of its own for long steps: decode's homes hold)\n");
        if (list->from_tokens > 1 && list->from_tokens < UINT32_MAX)
            fprintf(out, "(for steps of %u tokens and more)\n", list->from_tokens);
        print_list(x, list, out);
    }
    for (int i = 0; i < PLAN_PROCESSORS; i++) {
        const uint32_t index = plan_device_index((enum plan_processor)i);
        const enum plan_memory memory = plan_processor_memory((enum plan_processor)i);
        if (memory != PLAN_HOST && (!index || x->plan->memory[memory].line_count))
            print_ledger(index ? "VRAM of the second device" : "VRAM", &x->plan->memory[memory], out);
    }
    print_ledger("host memory", &x->plan->memory[PLAN_HOST], out);
    if (plan_disk_units(x->plan)) print_ledger("disk", &x->plan->memory[PLAN_DISK], out);
    print_strategies(x, out);
}
