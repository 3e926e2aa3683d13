/* Costs of whole plans: decode steps, the first token of a prompt, error bars. See cost.h. Called by helmd,
 * helm-plan and the planner; owns nothing. */
#include "daemon/planner/cost/cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/plan/state.h"
#include "common/plan/schedule.h"
#include "daemon/planner/cost/rates.h"

/* The home by whose format a unit is priced: weights in a second device's memory have that of the first. */
static enum plan_home priced_home(enum plan_home home)
{
    return plan_home_memory(home) == PLAN_HOST || !plan_processor_has_memory(plan_home_processor(home))
               ? home
               : PLAN_HOME_GPU;
}

void cost_plan_of(const struct plan *plan, uint32_t phase, enum plan_home *home, bool *kv_cpu,
                  struct cost_plan *out)
{
    const bool reads = plan_disk_ring(plan) > 0;
    *out = (struct cost_plan){.home = home,
                              .kv_cpu = kv_cpu,
                              .embed = plan->embed,
                              .head = plan->head,
                              .ring_bytes = reads ? plan_disk_ring(plan)
                                                  : plan_device_of(plan, PLAN_HOME_STREAM)->ring_bytes,
                              .reads = reads,
                              .cold = phase != 0 && !reads};
    for (uint32_t l = 0; l < plan->layers; l++) kv_cpu[l] = plan_keeper(plan, l) == PLAN_CPU0;
    for (uint32_t u = 0; u < unit_count(plan->layers); u++) home[u] = plan->unit[u].home[phase];
}

/* A chunk that appends in the arena finds all that is in front of it there. */
struct cost_tiers cost_tiers_of(const struct plan *plan, uint32_t tokens, uint32_t rows, uint32_t context)
{
    const bool in_arena = tokens > ENGINE_FEW_TOKENS && plan_appends_in_arena(plan);
    const uint32_t host = in_arena ? context : plan_host_tokens(plan, rows, context);
    return (struct cost_tiers){.two = plan_kv_tiered(plan),
                               .host_tokens = host,
                               .direct_permille = plan_direct_permille(plan, (uint64_t)rows * host),
                               .direct_window = plan->kv_direct_window,
                               .windows = plan->window_page_count > 0};
}

struct cost_experts cost_experts_of(const struct plan *plan, const struct model *model)
{
    return (struct cost_experts){.slots = plan_experts(plan)->slots,
                                 .direct_permille = plan_experts(plan)->direct_permille,
                                 .hit = plan_hit_rate(plan, model->config.router.experts),
                                 .disk_slots = plan_disk_slots(plan)};
}

void cost_stream_rest(const struct analyse_table *analysed, const struct plan *plan, struct cost_table *table)
{
    for (uint32_t u = 0; u < table->units; u++) {
        struct cost_unit *unit = &table->unit[u];
        const double rest = 1 - analyse_own_part(analysed, u, plan->shared_rows);
        if (plan->unit[u].home[0] != PLAN_HOME_SHARED) continue;
        unit->link *= rest;
        unit->link_beside *= rest;
        unit->crossing = (uint64_t)(rest * (double)unit->crossing);
    }
}

void cost_formats_of(const struct plan *plan, enum tensor_format (*format)[PLAN_HOMES])
{
    const uint32_t units = unit_count(plan->layers);
    for (uint32_t u = 0; u <= units; u++)
        for (int h = 0; h < PLAN_HOMES; h++) format[u][h] = PLAN_AS_STORED;
    for (uint32_t u = 0; u < units; u++)
        for (uint32_t p = 0; p < plan_phase_count(plan); p++)
            format[u][priced_home(plan->unit[u].home[p])] = plan_unit_format(plan, u);
    format[units][priced_home(plan_processor_home(plan->head))] = plan_head_format(plan);
}

static uint64_t saving_of(uint64_t bytes, enum tensor_format format)
{
    return format == FORMAT_BF16_PACKED ? bytes - cost_crossing_bytes(bytes) : 0;
}

struct cost_crossing cost_bytes_of(const struct analyse_table *analysed, const struct plan *plan,
                                   enum plan_home home)
{
    const uint64_t bytes = analyse_token_bytes(analysed, plan, home);
    uint64_t saving = 0;
    for (uint32_t u = 0; u < unit_count(plan->layers); u++) {
        if (plan->unit[u].home[0] != home) continue;
        const struct analyse_bytes of = analyse_units(analysed, u, u);
        saving += saving_of(home == PLAN_HOME_STREAM ? of.stored : of.token, plan_unit_format(plan, u));
    }
    if (home == plan_processor_home(plan->head))
        saving += saving_of(analysed->head.stored, plan_head_format(plan));
    return (struct cost_crossing){.bytes = bytes, .crossing = bytes - saving};
}

/* ---- error bars ---- */

static double spread_at(const struct profile_table *table, uint32_t tokens)
{
    const struct profile_value v = profile_table_at(table, tokens);
    return cost_rates_spread(&v);
}

/* The spread of the profile's rates of the CPU in such a step; 0 where all that it computes was measured. */
static double spread_of_cpu(const struct profile *profile, const struct cost_table *table,
                            const struct cost_plan *plan)
{
    bool measured = plan->head != PLAN_CPU0 || table->head.cpu_measured || table->head.cpu <= 0;
    for (uint32_t u = 0; u < table->units; u++)
        measured &= plan_home_processor(plan->home[u]) != PLAN_CPU0 || table->unit[u].cpu_measured;
    if (measured) return 0;
    return table->tokens <= 1 ? cost_rates_spread(&profile->cpu.gemv)
                              : spread_at(&profile->cpu.linear, table->tokens);
}

/* Whether all that the GPU computes in such a step was measured in VRAM: then its rates' spreads say
 * nothing. */
static bool measured_gpu(const struct cost_table *table, const struct cost_plan *plan)
{
    bool measured = plan->head == PLAN_CPU0 || table->head.gpu_measured || table->head.gpu <= 0;
    for (uint32_t u = 0; u < table->units; u++)
        measured &= plan_home_processor(plan->home[u]) == PLAN_CPU0 || table->unit[u].gpu_measured;
    return measured;
}

/* Which experts tokens will choose is not known: as many of those that are read may be in memory in truth. */
#define DISK_HITS_SPREAD 0.5

#define DISK_SPREAD_MOST 0.75 /* a busy disk's samples may differ by more */

/* The part of the step that waits for experts. */
static double spread_of_disk(const struct profile *profile, const struct cost_table *table,
                             const struct cost_plan *plan, double seconds)
{
    double waited = 0;
    for (uint32_t u = 0; u < table->units; u++)
        waited += plan->home[u] == PLAN_HOME_DISK && !plan->reads ? table->unit[u].disk_wait : 0;
    const double spread =
        fmin(hypot(cost_rates_spread(&profile->disk_read), DISK_HITS_SPREAD), DISK_SPREAD_MOST);
    return seconds > 0 ? spread * waited / seconds : 0;
}

/* A processor's seconds of the step are off by its rate's spread. The spread of the link, or of the disk that
 * gives whole units, counts for the seconds without computing, which were all spent waiting for it. Both
 * spreads include disturbances while they were measured. They are independent, so squares add up. */
double cost_uncertainty(const struct profile *profile, const struct cost_table *table,
                        const struct cost_plan *plan, const struct cost_result *result)
{
    bool one = table->tokens <= 1, streams = false, packed = false;
    bool in_vram = table->head.gpu_packed && plan_processor_has_memory(plan->head);
    double waited = result->seconds - result->hand_overs - table->step;
    double cpu = spread_of_cpu(profile, table, plan);
    const struct profile_value *gemv =
        profile->gpu.chain_gemv.value > 0 ? &profile->gpu.chain_gemv : &profile->gpu.gemv;
    double gpu = measured_gpu(table, plan) ? 0
                 : one                     ? cost_rates_spread(gemv)
                                           : spread_at(&profile->gpu.linear, table->tokens);
    for (uint32_t u = 0; u < table->units; u++) {
        streams = streams || plan->home[u] == PLAN_HOME_STREAM;
        double *spread = plan_home_processor(plan->home[u]) == PLAN_CPU0 ? &cpu : &gpu;
        *spread = fmax(*spread, spread == &cpu ? table->unit[u].cpu_spread : table->unit[u].gpu_spread);
        packed = packed || (plan->home[u] == PLAN_HOME_CPU && table->unit[u].cpu_packed &&
                            !table->unit[u].cpu_measured);
        in_vram = in_vram || (priced_home(plan->home[u]) == PLAN_HOME_GPU && table->unit[u].gpu_packed);
    }
    double *ends = plan->head == PLAN_CPU0 ? &cpu : &gpu;
    *ends = fmax(*ends, ends == &cpu ? table->head.cpu_spread : table->head.gpu_spread);
    if (streams && one) cpu = fmax(cpu, cost_rates_spread(&profile->cpu.gemv_beside));
    if (packed) cpu = fmax(cpu, cost_rates_spread(&profile->cpu.gemv_packed));
    if (packed && one && streams) cpu = fmax(cpu, cost_rates_spread(&profile->cpu.gemv_packed_beside));
    if (in_vram && one) gpu = fmax(gpu, cost_rates_spread(&profile->gpu.gemv_packed));
    if (in_vram) gpu = fmax(gpu, cost_rates_spread(&profile->gpu.expand));
    const double disturbance = profile_disturbance(profile);
    cpu = hypot(cpu, disturbance);
    waited -= result->busy[COST_CPU] + result->busy[COST_GPU];
    if (!(streams || plan->reads) || waited < 0) waited = 0;
    if (result->seconds <= 0) return 0;
    cpu *= result->busy[COST_CPU] / result->seconds;
    gpu *= result->busy[COST_GPU] / result->seconds;
    const struct profile_value *comes = plan->reads ? &profile->disk_read : &profile->link.h2d;
    double link = hypot(cost_rates_spread(comes), disturbance) * waited / result->seconds;
    const double disk = spread_of_disk(profile, table, plan, result->seconds);
    double hand_over = cost_rates_spread(&profile->link.hand_over) * result->hand_overs / result->seconds;
    double step = cost_rates_spread(&profile->step) * table->step / result->seconds;
    return sqrt(cpu * cpu + gpu * gpu + link * link + hand_over * hand_over + step * step + disk * disk);
}

/* ---- steps of a plan ---- */

struct walk {
    const struct cost_case *c;
    enum kv_dtype kv_dtype;
    double half_width;      /* seconds, so far */
    double link_late;       /* what the last step left the link to do */
    double seconds, before; /* of the last step; until a second device's part of it begins */
    enum plan_home home[UNIT_PARTS * MODEL_LAYERS_MAX];
    bool kv_cpu[MODEL_LAYERS_MAX];
    enum tensor_format format[UNIT_PARTS * MODEL_LAYERS_MAX + 1][PLAN_HOMES];
    double done[UNIT_PARTS * MODEL_LAYERS_MAX + 2];
};

static int walk_open(const struct cost_case *c, struct walk *w, struct helm_err *err)
{
    w->c = c;
    w->kv_dtype = kv_dtype_named(c->plan->kv_dtype);
    w->half_width = w->link_late = w->seconds = w->before = 0;
    if (w->kv_dtype == KV_DTYPE_COUNT)
        return helm_fail(err, HELM_E_FORMAT, "the plan's kv_dtype '%s' is none", c->plan->kv_dtype);
    if (c->plan->layers != c->model->config.layers)
        return helm_fail(err, HELM_E_MISMATCH, "the plan has %u layers, the model %u", c->plan->layers,
                         c->model->config.layers);
    if (plan_disk_units(c->plan) && c->profile->disk_read.value <= 0)
        return helm_fail(
            err, HELM_E_USAGE,
            "weights lie on disk, whose rate is not known: --disk-rate SIZE states the bytes a second");
    cost_formats_of(c->plan, w->format);
    return 0;
}

/* The ring holds decode's first slices whenever a step begins (worker-gpu/program/ring.h). A prefill step
 * uses them if its first streamed units are the same. Those that it overwrites are copied again after its
 * last use; where the prompt goes on, only those that the next chunk uses. late: seconds from the step's end
 * until that is over. */
struct leftover {
    uint64_t held;
    double late;
};

static struct leftover leftover_of(const struct walk *w, const struct cost_table *table,
                                   const struct cost_result *result, bool goes_on)
{
    uint64_t ring = plan_device_of(w->c->plan, PLAN_HOME_STREAM)->ring_bytes, prefix = 0, same = 0,
             streamed = 0;
    double seconds = 0, used = 0;
    bool alike = true;
    for (uint32_t u = 0; u < table->units; u++) {
        const struct cost_unit *unit = &table->unit[u];
        bool decode = w->c->plan->unit[u].home[0] == PLAN_HOME_STREAM, here = w->home[u] == PLAN_HOME_STREAM;
        alike = alike && decode == here;
        if (decode && prefix < ring) {
            uint64_t bytes = unit->crossing < ring - prefix ? unit->crossing : ring - prefix;
            prefix += bytes;
            if (alike) same += bytes;
            if (alike || !goes_on) seconds += (double)bytes / (double)unit->crossing * unit->link;
        }
        if (here) streamed += unit->crossing;
        if (here && result) used = result->done[u];
    }
    struct leftover l = {.held = same};
    if (result && streamed > ring) l.late = fmax(0, seconds - (result->seconds - used));
    return l;
}

static uint32_t list_of(const struct plan *plan, const struct cost_step *step)
{
    if (!plan->invariant) return plan_phase_for(plan, step->tokens);
    if (cost_step_decodes(step) && !step->prompt) return 0;
    return plan_list_phase(plan, plan_prompt_list(plan, step->prompt ? step->prompt : step->tokens));
}

static double before_second(const struct walk *w, uint32_t units)
{
    for (uint32_t u = 0; u < units; u++)
        if (plan_device_index(plan_home_processor(w->home[u])) > 0) return u ? w->done[u - 1] : 0;
    return 0;
}

/* asked: its sizes; where the cache is, and in what form, the plan says. */
static int walk_step(struct walk *w, const struct cost_step *asked, struct cost_forecast *f,
                     struct helm_err *err)
{
    const struct cost_case *c = w->c;
    struct cost_step step = *asked;
    step.kv_dtype = w->kv_dtype;
    step.format = w->format;
    step.kv = cost_tiers_of(c->plan, step.tokens, step.rows, step.context);
    step.experts = cost_experts_of(c->plan, c->model);
    step.shared_rows = c->plan->shared_rows;
    struct cost_table table = {0};
    struct cost_result result = {.done = w->done};
    struct cost_plan plan;
    step.invariant = c->plan->invariant;
    step.one_as_few = step.invariant && plan_device_computes(c->plan);
    cost_plan_of(c->plan, list_of(c->plan, &step), w->home, w->kv_cpu, &plan);
    int rc = cost_price(c->model, c->analysed, c->profile, &step, &table, err);
    if (rc) return rc;
    cost_stream_rest(c->analysed, c->plan, &table);
    plan.held_bytes = leftover_of(w, &table, NULL, false).held;
    plan.link_late = w->link_late;
    cost_simulate(&table, &plan, &result);
    w->seconds = result.seconds;
    w->before = before_second(w, table.units);
    w->link_late = plan.cold ? leftover_of(w, &table, &result, step.samples == 0).late : 0;
    if (isfinite(result.seconds)) {
        f->seconds += result.seconds;
        w->half_width += cost_uncertainty(c->profile, &table, &plan, &result) * result.seconds;
        for (int r = 0; r < COST_RESOURCES; r++) f->busy[r] += result.busy[r];
        f->hand_overs += result.hand_overs;
        f->steps++;
    } else {
        rc = helm_fail(err, HELM_E_MISMATCH, "the plan uses a GPU, the profile has none");
    }
    cost_table_free(&table);
    return rc;
}

/* A rate that is low by a part makes a time that is high by the same part. */
static void finish(const struct walk *w, struct cost_forecast *f)
{
    f->low = f->seconds - w->half_width;
    f->high = f->seconds + w->half_width;
    if (f->low < 0) f->low = 0;
}

int cost_one(const struct cost_case *c, const struct cost_step *step, struct cost_forecast *forecast,
             struct helm_err *err)
{
    struct walk w;
    memset(forecast, 0, sizeof *forecast);
    int rc = walk_open(c, &w, err);
    if (!rc) rc = walk_step(&w, step, forecast, err);
    if (!rc) finish(&w, forecast);
    return rc;
}

int cost_decode(const struct cost_case *c, uint32_t batch, uint32_t context, struct cost_forecast *forecast,
                struct helm_err *err)
{
    const struct cost_step step = {.tokens = batch, .rows = batch, .samples = batch, .context = context};
    return cost_one(c, &step, forecast, err);
}

double cost_copy_states(const struct profile *profile, const struct plan *plan)
{
    double seconds = 0;
    for (int p = 0; p < PLAN_PROCESSORS; p++) {
        const double bytes = (double)plan_state_layout(plan, (enum plan_processor)p).slot_bytes;
        if (bytes > 0)
            seconds += plan_processor_has_memory((enum plan_processor)p)
                           ? bytes / rate_or(&profile->link.d2h, profile->link.h2d.value)
                           : 2 * bytes / profile->cpu.gemv.value;
    }
    return seconds;
}

/* The sleepers among helmd and the workers: they sleep when a prompt comes, and helmd until it knows how long
 * steps like this take, from the third of a size on (daemon/steps/scheduler.h). One after another: the
 * workers, then helmd. */
static uint32_t sleepers_of(uint32_t step, uint32_t like_it)
{
    return (step == 0) + (like_it < 2);
}

/* Chunks of a prompt on two devices: each begins a chunk when it is done with the one before and has it, and
 * at most two are in flight. */
struct overlap {
    double first, second; /* when each device is done with its last chunk */
    double before;        /* when the second was with the chunk before that */
    double alone;         /* the chunks one after another */
};

static void overlap_add(struct overlap *o, double before, double seconds)
{
    o->alone += seconds;
    o->first = fmax(o->first, o->before) + before;
    o->before = o->second;
    o->second = fmax(o->first, o->second) + seconds - before;
}

int cost_ttft(const struct cost_case *c, uint32_t prompt_tokens, struct cost_forecast *forecast,
              struct helm_err *err)
{
    struct walk w;
    uint32_t chunk = c->plan->step_tokens;
    memset(forecast, 0, sizeof *forecast);
    if (prompt_tokens == 0 || chunk == 0)
        return helm_fail(err, HELM_E_LIMIT, "no first token after a prompt of %u tokens in steps of %u",
                         prompt_tokens, chunk);
    struct overlap overlap = {0};
    int rc = walk_open(c, &w, err);
    for (uint32_t done = 0, step = 0; done < prompt_tokens && !rc; step++) {
        uint32_t tokens = prompt_tokens - done < chunk ? prompt_tokens - done : chunk;
        forecast->seconds += sleepers_of(step, tokens == chunk ? step : 0) * c->profile->wake.value;
        done += tokens;
        const struct cost_step one = {.tokens = tokens,
                                      .rows = 1,
                                      .samples = done == prompt_tokens,
                                      .context = done,
                                      .prompt = prompt_tokens};
        rc = walk_step(&w, &one, forecast, err);
        overlap_add(&overlap, w.before, w.seconds);
    }
    if (!rc && plan_overlaps_chunks(c->plan)) {
        const double saved = overlap.alone - overlap.second;
        forecast->seconds -= saved;
        w.half_width += saved; /* no measurement has shown this gain yet */
    }
    if (!rc) finish(&w, forecast);
    return rc;
}
