/* A plan's work, and its alternatives. See explain.h. Called by helm-plan; report/text.c prints it,
 * report/json.c makes JSON of it. */
#include "daemon/planner/report/explain.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "common/model/arch.h"
#include "daemon/planner/memory/memory.h"
#include "daemon/planner/profile/found.h"

#define LINK_WAIT_LEAST 0.02 /* of a stage's time: less waiting for the link than that does not bound it */
#define BOUNDS          3

/* Inputs of the lists, the splits and the timeline. */
struct reckoning {
    const struct planner_request *request;
    const struct plan *plan;
    struct analyse_table analysed;
    enum plan_home home[UNIT_PARTS * MODEL_LAYERS_MAX];
    bool kv_cpu[MODEL_LAYERS_MAX];
    double done[UNIT_PARTS * MODEL_LAYERS_MAX + 2];
};

static int reckoning_open(struct reckoning *k, const struct planner_request *request, const struct plan *plan,
                          struct helm_err *err)
{
    const uint32_t layers = request->model->config.layers;
    *k = (struct reckoning){.request = request, .plan = plan};
    if (plan->layers != layers)
        return helm_fail(err, HELM_E_MISMATCH, "the plan has %u layers, the model %u", plan->layers, layers);
    return analyse_table_build(request->model, &k->analysed, err);
}

static int price(const struct reckoning *k, const struct cost_step *step, struct cost_table *table,
                 struct helm_err *err)
{
    return cost_price(k->request->model, &k->analysed, k->request->profile, step, table, err);
}

/* ---- stages ---- */

static double unit_seconds(const struct cost_unit *unit, enum plan_home home)
{
    if (home == PLAN_HOME_STREAM) return unit->stream;
    if (home == PLAN_HOME_MIXED) return unit->mixed;
    if (home == PLAN_HOME_SHARED) return unit->shared;
    if (home == PLAN_HOME_DISK) return unit->disk;
    if (home == PLAN_HOME_GPU1) return unit->gpu1;
    return home == PLAN_HOME_CPU ? unit->cpu : unit->gpu;
}

/* `hand_over`: seconds of `wall` that the residual stream was under way for. */
static const char *bound_of(const struct cost_table *table, const struct plan_stage *stage, double wall,
                            double hand_over)
{
    static const char *const names[BOUNDS] = {"memory", "compute", "overhead"};
    double seconds[BOUNDS] = {0}, all = 0;
    bool gpu = plan_processor_has_memory(plan_home_processor(stage->home));
    for (uint32_t u = plan_stage_first_unit(stage); u <= plan_stage_last_unit(stage); u++) {
        const struct cost_unit *unit = &table->unit[u];
        const char *bound = gpu ? unit->gpu_bound : unit->cpu_bound;
        double s = unit_seconds(unit, stage->home);
        all += s;
        for (int b = 0; b < BOUNDS; b++)
            if (bound && strcmp(bound, names[b]) == 0) seconds[b] += s;
    }
    if (stage->home == PLAN_HOME_STREAM && wall - hand_over - all > LINK_WAIT_LEAST * wall) return "link";
    if (hand_over > all) return "hand-over";
    if (stage->home == PLAN_HOME_DISK && table->unit[plan_stage_first_unit(stage)].disk_wait > 0)
        return "disk";
    int most = 0;
    for (int b = 1; b < BOUNDS; b++)
        if (seconds[b] > seconds[most]) most = b;
    return names[most];
}

/* Whether the model's own programs price a stage, and the widest of their spreads. */
static void note_measured(const struct cost_table *table, struct explain_stage *stage)
{
    const bool cpu = stage->stage.home == PLAN_HOME_CPU;
    stage->measured = true;
    for (uint32_t u = plan_stage_first_unit(&stage->stage); u <= plan_stage_last_unit(&stage->stage); u++) {
        const struct cost_unit *unit = &table->unit[u];
        stage->measured &= cpu ? unit->cpu_measured : unit->gpu_measured;
        stage->spread = fmax(stage->spread, cpu ? unit->cpu_spread : unit->gpu_spread);
    }
    if (!stage->measured) stage->spread = 0;
}

static double end_seconds(const struct cost_result *result, uint32_t end, const struct cost_unit *unit,
                          enum plan_processor processor)
{
    for (uint32_t i = 0; i < result->span_count; i++)
        if (result->span[i].unit == end) return result->span[i].to - result->span[i].from;
    return processor == PLAN_CPU0 ? unit->cpu : unit->gpu;
}

/* The layer that makes drafts, which is computed after the head, and in its price. Its seconds. */
static double explain_drafts_stage(const struct reckoning *k, uint32_t phase, const struct cost_table *table,
                                   struct explain_list *list)
{
    struct explain_stage *out = &list->stage[list->stage_count++];
    plan_stage_at(k->plan, phase, plan_answer_units(k->plan), &out->stage);
    for (uint32_t u = table->units; u < unit_count(k->plan->layers); u++)
        out->seconds += unit_seconds(&table->unit[u], out->stage.home);
    out->bound_by = bound_of(table, &out->stage, out->seconds, 0);
    note_measured(table, out);
    return out->seconds;
}

/* Prices one step by this phase's list. `span` gets its timeline. */
static int explain_phase(struct reckoning *k, uint32_t phase, struct explain_list *list,
                         struct cost_span *span, uint32_t span_max, uint32_t *span_count,
                         struct helm_err *err)
{
    enum tensor_format format[UNIT_PARTS * MODEL_LAYERS_MAX + 1][PLAN_HOMES];
    cost_formats_of(k->plan, format);
    const struct cost_step step = {.tokens = list->tokens,
                                   .rows = list->rows,
                                   .samples = list->rows,
                                   .context = list->context,
                                   .kv_dtype = k->request->wish.kv_dtype,
                                   .format = format,
                                   .kv = cost_tiers_of(k->plan, list->tokens, list->rows, list->context),
                                   .experts = cost_experts_of(k->plan, k->request->model),
                                   .shared_rows = k->plan->shared_rows,
                                   .invariant = k->plan->invariant,
                                   .one_as_few = k->plan->invariant && plan_device_computes(k->plan)};
    struct cost_result result = {.done = k->done, .span = span, .span_max = span_max};
    struct cost_table table = {0};
    struct cost_plan plan;
    struct plan answer = *k->plan; /* a layer that makes drafts is a stage of its own */
    answer.layers -= answer.draft_layers;
    const uint32_t units = unit_count(answer.layers);
    list->stage = calloc(unit_count(k->plan->layers), sizeof *list->stage);
    if (!list->stage) return helm_fail(err, HELM_E_NOMEM, "no memory for %u stages", units);
    cost_plan_of(k->plan, phase, k->home, k->kv_cpu, &plan);
    int rc = price(k, &step, &table, err);
    if (rc) return rc;
    cost_stream_rest(&k->analysed, k->plan, &table);
    cost_simulate(&table, &plan, &result);
    *span_count = result.span_count;
    if (!isfinite(result.seconds)) {
        cost_table_free(&table);
        return helm_fail(err, HELM_E_MISMATCH, "the plan uses a GPU, the profile has none");
    }
    list->embed = end_seconds(&result, COST_SPAN_EMBED, &table.embed, plan.embed);
    list->seconds = result.seconds;
    memcpy(list->busy, result.busy, sizeof list->busy);
    enum plan_processor at = plan.embed;
    double before = list->embed;
    for (uint32_t u = 0; u < units;) {
        struct explain_stage *out = &list->stage[list->stage_count++];
        u = plan_stage_at(&answer, phase, u, &out->stage);
        if (list->from_tokens) out->stage.format = PLAN_AS_STORED; /* decode's list says formats */
        enum plan_processor worker = plan_home_processor(out->stage.home);
        double end = k->done[plan_stage_last_unit(&out->stage)];
        out->seconds = end - before;
        out->bound_by = bound_of(&table, &out->stage, out->seconds,
                                 worker == at ? 0 : table.hand_over + table.activation);
        note_measured(&table, out);
        before = end;
        at = worker;
    }
    list->head = k->done[table.units] - before;
    if (answer.draft_layers) list->head -= explain_drafts_stage(k, phase, &table, list);
    list->step = result.seconds - k->done[table.units];
    cost_table_free(&table);
    return 0;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Prefill lists are priced at a whole chunk of the prompt, or what comes nearest to it among the steps that
 * use the list. */
static int explain_lists(struct reckoning *k, struct explain *x, struct helm_err *err)
{
    static const char *const names[PLAN_PHASES_MAX] = {"decode", "prefill_short", "prefill"};
    const struct plan *plan = k->plan;
    uint32_t units = unit_count(plan->layers), span_max = 16 * units + 64, ignored = 0;
    const bool own = plan->prefill_count > 0; /* else decode's homes hold for prompts, too */
    const uint32_t chunk = least(x->prompt, plan->step_tokens), lists = own ? plan->prefill_count : 1;
    x->span = calloc(span_max, sizeof *x->span);
    if (!x->span) return helm_fail(err, HELM_E_NOMEM, "no memory for a timeline of %u units", units);
    x->list[0] =
        (struct explain_list){.name = names[0], .tokens = x->batch, .rows = x->batch, .context = x->context};
    x->list_count = 1;
    int rc = explain_phase(k, 0, &x->list[0], x->span, span_max, &x->span_count, err);
    for (uint32_t i = 0; i < lists && !rc; i++) {
        uint32_t from = own ? plan_phase_from(plan, i + 1) : UINT32_MAX, tokens = chunk;
        if (own && tokens < from) tokens = from;
        if (own) tokens = least(tokens, plan_phase_last(plan, i + 1));
        struct explain_list *list = &x->list[x->list_count++];
        *list = (struct explain_list){.name = names[PLAN_PHASES_MAX - lists + i],
                                      .from_tokens = from,
                                      .tokens = tokens,
                                      .rows = 1,
                                      .context = tokens};
        rc = explain_phase(k, own ? i + 1 : 0, list, NULL, 0, &ignored, err);
    }
    return rc;
}

/* Bytes, as stored in the files, of the weights that are packed in VRAM. */
static uint64_t packed_bytes(const struct reckoning *k)
{
    uint64_t sum = plan_head_format(k->plan) == FORMAT_BF16_PACKED ? k->analysed.head.stored : 0;
    for (uint32_t u = 0; u < unit_count(k->plan->layers); u++)
        if (plan_unit_format(k->plan, u) == FORMAT_BF16_PACKED &&
            plan_home_memory(k->plan->unit[u].home[0]) != PLAN_HOST)
            sum += analyse_units_stored(&k->analysed, u, u);
    return sum;
}

/* ---- what else there was ---- */

static void say_why(const struct planner_refusal *refusal, const struct helm_err *err, char why[200])
{
    char needed[UNITS_TEXT], available[UNITS_TEXT];
    if (refusal->refused)
        snprintf(why, 200, "needs %s of %s, has %s", units_format_size(refusal->needed, needed),
                 refusal->what, units_format_size(refusal->available, available));
    else
        snprintf(why, 200, "%.199s", err->text);
}

void explain_other_sizes(const struct plan *plan, struct planner_request *r)
{
    r->typical = planner_typical_context(r, plan->context_tokens);
    r->wish.ctx = plan->context_tokens;
    if (!r->plan_given) return;
    r->wish.page_count = r->wish.step_tokens = r->wish.vram_page_count = 0; /* theirs to choose */
    r->wish.places_stand = false;
}

/* The best plan of another strategy for the same context. That it does not fit is an answer, not an error. */
static int explain_strategy(const struct reckoning *k, const struct explain *x, struct explain_strategy *out,
                            struct helm_err *err)
{
    struct planner_refusal refusal = {0};
    struct planner_request r = *k->request;
    struct planner_prediction prediction = {0};
    struct helm_err refused = {0};
    struct plan plan = {0};
    struct arena_spec spec;
    if (out->strategy == r.strategy && !r.plan_given) {
        *out = (struct explain_strategy){.strategy = r.strategy,
                                         .feasible = true,
                                         .decode_s = x->prediction.decode.seconds,
                                         .ttft_s = x->prediction.ttft.seconds};
        return 0;
    }
    if (out->strategy == SEARCH_MIXED && (k->plan->invariant || r.one_memory)) {
        snprintf(out->why, sizeof out->why, "an invariant plan has a layer's experts in one memory");
        return 0;
    }
    r.strategy = out->strategy;
    explain_other_sizes(k->plan, &r);
    r.tiers = out->strategy == SEARCH_BEST && plan_kv_tiered(k->plan) ? KV_TIERS_TWO : KV_TIERS_ONE;
    r.refusal = &refusal;
    r.second = NULL;
    r.device_required = out->strategy != SEARCH_ALL_CPU && out->strategy != SEARCH_BEST;
    r.sizes_alone = r.device_required; /* others plan without the device, and the log says why */
    int rc = planner_make(&r, &plan, &spec, &refused);
    if (rc == HELM_E_CAPACITY || rc == HELM_E_UNSUPPORTED) {
        say_why(&refusal, &refused, out->why);
        rc = 0;
    } else if (rc) {
        rc = helm_fail(err, rc, "strategy %s: %s", search_strategy_name(out->strategy), refused.text);
    } else {
        const uint32_t at_once = planner_at_once(&r, &plan);
        plan.invariant = k->plan->invariant && !plan_mixed_units(&plan); /* priced as this plan is */
        rc = planner_predict(&r, &plan, at_once, x->context, x->prompt, &prediction, err);
        out->feasible = !rc;
        out->decode_s = prediction.decode.seconds * x->batch / at_once;
        out->ttft_s = prediction.ttft.seconds;
    }
    plan_free(&plan);
    return rc;
}

/* ---- every thesis split ---- */

struct split_place {
    uint32_t gpu_layers;
    bool first; /* they are the first layers */
    enum plan_processor embed, head;
};

static void place_homes(const struct split_place *place, uint32_t layers, enum plan_home *home)
{
    for (uint32_t l = 0; l < layers; l++) {
        bool gpu = place->first ? l < place->gpu_layers : l >= layers - place->gpu_layers;
        home[unit_of(l, UNIT_ATTENTION)] = home[unit_of(l, UNIT_MLP)] = gpu ? PLAN_HOME_GPU : PLAN_HOME_CPU;
    }
}

static bool place_fits(const struct reckoning *k, const struct memory *memory,
                       const struct split_place *place)
{
    const struct search_found found = {.home = (enum plan_home *)k->home,
                                       .embed = place->embed,
                                       .head = place->head};
    const struct search_bytes sum = memory_sum(memory, &found, k->analysed.tied, plan_answer_units(k->plan));
    return !memory->vram_missing && !memory->host_missing && sum.vram <= memory->search.vram_limit &&
           sum.host <= memory->search.host_limit;
}

/* Whether both processors attend to a cache that several layers read, which no plan has. */
static bool is_torn(const struct cost_table *table, const enum plan_home *home)
{
    unsigned on = 0;
    for (uint32_t u = 0; u < table->units; u++)
        if (table->unit[u].together) on |= 1u << (home[u] == PLAN_HOME_CPU);
    return on == 3;
}

/* The fastest that fits of all places for both ends and the run; where none fits, the fastest of all. */
static struct explain_split explain_split(struct reckoning *k, const struct memory *memory,
                                          const struct cost_table *table, uint32_t gpu_layers)
{
    const uint32_t layers = plan_answer_units(k->plan) / UNIT_PARTS;
    struct explain_split best = {.decode_s = INFINITY};
    for (uint32_t way = 0; way < 8; way++) {
        struct split_place place = {.gpu_layers = gpu_layers,
                                    .first = way & 4,
                                    .embed = way & 1 ? plan_home_processor(PLAN_HOME_GPU) : PLAN_CPU0,
                                    .head = way & 2 ? plan_home_processor(PLAN_HOME_GPU) : PLAN_CPU0};
        if (k->analysed.tied && place.embed != place.head) continue;
        if (gpu_layers == 0 && (way & 7)) continue; /* nothing on the GPU */
        if (gpu_layers == layers && place.first) continue;
        place_homes(&place, layers, k->home);
        const struct cost_plan plan = {.home = k->home, .embed = place.embed, .head = place.head};
        const bool fits = !is_torn(table, k->home) && place_fits(k, memory, &place);
        if (fits < best.fits) continue;
        const double seconds = cost_seconds(table, &plan, fits == best.fits ? best.decode_s : INFINITY);
        if (fits == best.fits && seconds >= best.decode_s) continue;
        best = (struct explain_split){.fits = fits, .decode_s = seconds};
    }
    return best;
}

/* As in the files: splits pack nothing. By the sums that the search goes by. */
static int explain_splits(struct reckoning *k, struct explain *x, struct helm_err *err)
{
    const struct planner_request *r = k->request;
    struct ledger_wish wish = r->wish;
    const struct ledger_case c = {.model = r->model,
                                  .wish = &wish,
                                  .machine = &r->machine,
                                  .table = &k->analysed};
    const struct cost_step step = {.tokens = x->batch,
                                   .rows = x->batch,
                                   .samples = x->batch,
                                   .context = x->context,
                                   .kv_dtype = wish.kv_dtype};
    struct cost_table table = {0};
    struct memory memory = {.unit = NULL};
    if (r->machine.device.kind == LEDGER_DEVICE_NONE) return 0;
    if (!wish.step_tokens) wish.step_tokens = LEDGER_STEP_TOKENS;
    wish.ctx = k->plan->context_tokens;
    wish.pack = wish.pack_cpu = wish.pack_gpu = false;
    const struct memory_wish sums = {.ctx = wish.ctx,
                                     .pages = ledger_least_pages(&c, wish.ctx),
                                     .device = true,
                                     .cpu = true};
    const uint32_t layers = plan_answer_units(k->plan) / UNIT_PARTS;
    x->split = calloc((size_t)layers + 1, sizeof *x->split);
    if (!x->split) return helm_fail(err, HELM_E_NOMEM, "no memory for %u splits", layers);
    int rc = price(k, &step, &table, err);
    if (!rc) rc = memory_build(&c, &sums, &memory, err);
    for (uint32_t g = 0; g <= layers && !rc; g++) x->split[g] = explain_split(k, &memory, &table, g);
    memory_free(&memory);
    cost_table_free(&table);
    return rc;
}

/* ---- experts ---- */

static void explain_experts(const struct model *model, uint32_t batch, struct explain_experts *x)
{
    for (uint32_t l = 0; l < model->config.layers; l++) x->layers += model_layer_sparse(&model->config, l);
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct model_tensor *t = &model->tensors[i];
        const bool shared =
            t->role == TENSOR_SHARED_GATE || t->role == TENSOR_SHARED_UP || t->role == TENSOR_SHARED_DOWN;
        if (shared) x->shared_bytes += t->bytes;
        if (!arch_role_of_experts(t->role)) continue;
        x->bytes += t->bytes;
        x->token_bytes += (uint64_t)((double)t->bytes * analyse_read_part(&model->config, t, 1));
        x->step_bytes += (uint64_t)((double)t->bytes * analyse_read_part(&model->config, t, batch));
    }
}

/* Experts on disk: what each memory has. */
static void explain_levels(const struct model *model, const struct plan *plan,
                           const struct profile_found *counted, struct explain_experts *x)
{
    const double slots = (double)plan_disk_slots(plan) / model->config.router.experts,
                 found = found_part(counted, plan_disk_slots(plan), model->config.router.experts);
    if (!plan_disk_slots(plan)) return;
    for (uint32_t l = 0; l < model_answer_layers(&model->config); l++) {
        const struct model_unit *unit = &model->unit[unit_of(l, UNIT_MLP)];
        const enum plan_memory memory = plan_home_memory(plan->unit[unit_of(l, UNIT_MLP)].home[0]);
        uint64_t bytes = 0;
        if (!model_layer_sparse(&model->config, l)) continue;
        for (uint32_t i = 0; i < unit->matrix_count; i++)
            if (arch_role_of_experts(unit->tensor[i]->role)) bytes += unit->tensor[i]->bytes;
        const double part = 1.0 / x->layers, here = memory == PLAN_DISK ? found : 0;
        x->there[memory] += bytes;
        x->found[memory] += part * (1 - here);
        x->found[PLAN_HOST] += part * here;
        if (memory == PLAN_DISK) x->there[PLAN_HOST] += (uint64_t)(slots * (double)bytes);
    }
}

/* Experts in both memories: what is assumed, and what a decode step would take if all were chosen evenly. */
static int explain_mixed(const struct reckoning *k, struct explain *x, struct helm_err *err)
{
    struct explain_experts *e = &x->experts;
    struct plan even = *k->plan;
    const struct cost_case c = {.model = k->request->model,
                                .analysed = &k->analysed,
                                .profile = k->request->profile,
                                .plan = &even};
    struct cost_forecast f;
    e->mixed = plan_mixed_units(k->plan);
    if (!e->mixed) return 0;
    plan_device_at(&even, PLAN_HOME_MIXED)->experts.hit_permille = 0;
    e->hit = plan_hit_rate(k->plan, k->request->model->config.router.experts);
    e->seconds = x->prediction.decode.seconds;
    int rc = cost_decode(&c, x->batch, x->context, &f, err);
    e->seconds_even = f.seconds;
    return rc;
}

/* ---- formats ---- */

static uint64_t bytes_in(const struct model *model, enum tensor_format format)
{
    const struct model_tensor *head = model_find(model, TENSOR_HEAD, -1);
    uint64_t bytes = head && head->format == format ? head->bytes : 0;
    for (uint32_t u = 0; u < unit_count(model->config.layers); u++)
        for (uint32_t i = 0; i < model->unit[u].matrix_count; i++)
            if (model->unit[u].tensor[i]->format == format) bytes += model->unit[u].tensor[i]->bytes;
    return bytes;
}

static double known_or(const struct profile_value *value, double otherwise)
{
    return value->value > 0 ? value->value : otherwise;
}

static void explain_formats(const struct planner_request *r, struct explain *x)
{
    const struct profile *p = r->profile;
    const unsigned formats = model_formats(r->model), lacking = profile_formats_lacking(p, formats);
    const bool chained = p->gpu.chain_gemv.value > 0;
    for (int i = 0; i < FORMAT_COUNT; i++) {
        const enum tensor_format format = (enum tensor_format)i;
        const struct profile_format *f = &p->format[i];
        if (!(formats & format_bit(format)) || !profile_format_has_rates(format)) continue;
        const double gpu = known_or(&f->gpu_gemv, known_or(&p->gpu.chain_gemv, p->gpu.gemv.value));
        x->format[x->format_count++] =
            (struct explain_format){.format = format,
                                    .bytes = bytes_in(r->model, format),
                                    .measured = !(lacking & format_bit(format)),
                                    .cpu = known_or(&f->cpu_gemv, p->cpu.gemv.value),
                                    .gpu = chained ? known_or(&f->gpu_chain_gemv, gpu) : gpu};
    }
}

/* ---- all of it ---- */

int explain_make(const struct planner_request *request, const struct plan *plan, uint32_t context,
                 struct explain *x, struct helm_err *err)
{
    struct reckoning k;
    *x = (struct explain){.request = request,
                          .plan = plan,
                          .asked = request->batch ? request->batch : 1,
                          .prompt = request->prompt ? request->prompt : PLANNER_PROMPT_TOKENS};
    x->batch = request->plan_given ? x->asked : planner_at_once(request, plan);
    x->prompt = least(x->prompt, plan->context_tokens);
    if (!context) context = planner_typical_context(request, plan->context_tokens);
    x->context = least(context, plan->context_tokens);
    int rc = reckoning_open(&k, request, plan, err);
    if (!rc) rc = planner_predict(request, plan, x->batch, x->context, x->prompt, &x->prediction, err);
    if (!rc) x->crossing = cost_bytes_of(&k.analysed, plan, PLAN_HOME_STREAM);
    if (!rc) x->reading = cost_bytes_of(&k.analysed, plan, PLAN_HOME_CPU);
    if (!rc) {
        const struct cost_crossing second = cost_bytes_of(&k.analysed, plan, PLAN_HOME_GPU1);
        x->gpu_reading = cost_bytes_of(&k.analysed, plan, PLAN_HOME_GPU);
        x->gpu_reading.bytes += second.bytes;
        x->gpu_reading.crossing += second.crossing;
    }
    if (!rc) x->packed_bytes = packed_bytes(&k);
    if (!rc) explain_formats(request, x);
    if (!rc) explain_experts(request->model, x->batch, &x->experts);
    if (!rc) explain_levels(request->model, plan, &request->profile->found, &x->experts);
    if (!rc) rc = explain_mixed(&k, x, err);
    const struct cost_case c = {.model = request->model,
                                .analysed = &k.analysed,
                                .profile = request->profile,
                                .plan = plan};
    if (!rc) rc = explain_drafts(&c, x, err);
    x->strategies = x->experts.layers ? SEARCH_STRATEGIES : SEARCH_EXPERTS_CPU;
    if (!rc) rc = explain_lists(&k, x, err);
    if (!rc) rc = explain_splits(&k, x, err);
    for (uint32_t s = 0; s < x->strategies && !rc; s++) {
        x->strategy[s].strategy = (enum search_strategy)s;
        rc = explain_strategy(&k, x, &x->strategy[s], err);
    }
    if (!rc) rc = explain_curve(x, err);
    analyse_table_free(&k.analysed);
    if (rc) explain_free(x);
    return rc;
}

double explain_rate(const struct explain *x)
{
    return x->batch / x->prediction.decode.seconds;
}

double explain_rate_low(const struct explain *x)
{
    return x->batch / x->prediction.decode.high;
}

double explain_rate_high(const struct explain *x)
{
    const struct planner_prediction *p = &x->prediction;
    if (p->decode.low > 0) return x->batch / p->decode.low;
    return explain_rate(x) * (p->decode.high / p->decode.seconds);
}

const char *explain_model_name(const struct explain *x)
{
    const struct model *model = x->request->model;
    if (model->config.gguf && model->shard_count) return model->shards[0].file;
    const char *slash = model->folder ? strrchr(model->folder, '/') : NULL;
    const char *name = slash ? slash + 1 : model->folder;
    return name && *name && *name != '.' ? name : model->config.architecture;
}

void explain_free(struct explain *x)
{
    for (int i = 0; i < PLAN_PHASES_MAX; i++) free(x->list[i].stage);
    free(x->split);
    free(x->span);
    memset(x, 0, sizeof *x);
}
