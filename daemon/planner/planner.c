/* Making, taking and forecasting plans. See planner.h. Called by main.c and helm-plan; the lists belong to
 * the plan. */
#include "daemon/planner/planner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/units.h"
#include "common/shared/kv_layout.h"
#include "common/plan/share.h"
#include "common/plan/state.h"
#include "daemon/planner/formats.h"
#include "daemon/planner/ideas.h"

static const char *const tiers_names[KV_TIERS_COUNT] = {
    [KV_TIERS_ONE] = "one", [KV_TIERS_TWO] = "two", [KV_TIERS_AUTO] = "auto"};

const char *kv_tiers_name(enum kv_tiers tiers)
{
    return (unsigned)tiers < KV_TIERS_COUNT ? tiers_names[tiers] : "unknown";
}

enum kv_tiers kv_tiers_named(const char *name)
{
    int t = 0;
    while (t + 1 < KV_TIERS_COUNT && strcmp(name, tiers_names[t]) != 0) t++;
    return (enum kv_tiers)t;
}

enum share_option share_option_named(const char *name)
{
    static const char *const names[SHARE_OPTIONS] = {"auto", "on", "off"};
    int s = 0;
    while (s + 1 < SHARE_OPTIONS && strcmp(name, names[s]) != 0) s++;
    return (enum share_option)s;
}

/* ---- checking the request ---- */

static int check_sizes(const struct making *m, struct helm_err *err)
{
    const struct ledger_wish *w = &m->r->wish;
    uint32_t model_ctx = m->r->model->config.max_context, ctx = making_first_ctx(m);
    if (w->ctx > model_ctx)
        return helm_fail(err, HELM_E_LIMIT, "--ctx %u: the model was made for at most %u tokens", w->ctx,
                         model_ctx);
    const uint32_t head_dim = m->r->model->config.head_dim;
    if (!kv_dtype_takes(w->kv_dtype, head_dim))
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "a KV cache of %s needs heads of a multiple of %d dimensions: this model's have %u "
                         "(--kv-dtype f16 takes any)",
                         kv_dtype_name(w->kv_dtype), KV_Q8_0_VALUES, head_dim);
    if (m->batch > w->slots)
        return helm_fail(err, HELM_E_USAGE, "--batch %u is more than the %u sequences there are slots for",
                         m->batch, w->slots);
    if (w->page_count && w->page_count < m->batch * kv_pages_for(ctx, w->page_tokens)) {
        if (m->batch == 1)
            return helm_fail(err, HELM_E_CAPACITY,
                             "%u KV pages of %u tokens do not hold one context of %u tokens", w->page_count,
                             w->page_tokens, ctx);
        return helm_fail(err, HELM_E_CAPACITY,
                         "%u KV pages of %u tokens do not hold %u contexts of %u tokens", w->page_count,
                         w->page_tokens, m->batch, ctx);
    }
    return 0;
}

uint32_t planner_typical_context(const struct planner_request *r, uint32_t ctx)
{
    if (r->typical) return r->typical < ctx ? r->typical : ctx;
    return r->wish.ctx || ctx < 2 ? ctx : ctx / 2;
}

uint64_t planner_room(const struct planner_request *r)
{
    const struct ledger_machine *m = &r->machine;
    const struct ledger_device *const device[] = {&m->device, &m->second};
    uint64_t room = m->memory.available_bytes;
    if (r->wish.host_memory_bytes && r->wish.host_memory_bytes < room) room = r->wish.host_memory_bytes;
    for (size_t i = 0; i < sizeof device / sizeof *device; i++)
        if (device[i]->kind == LEDGER_DEVICE_CUDA) room += device[i]->limit;
    return room;
}

/* Warns where there is less host memory than was asked for. */
static void warn_of_memory(const struct planner_request *r)
{
    char asked[UNITS_TEXT], free_text[UNITS_TEXT];
    if (r->wish.host_memory_bytes > r->machine.memory.available_bytes)
        log_warn("--host-memory %s: only %s are free", units_format_size(r->wish.host_memory_bytes, asked),
                 units_format_size(r->machine.memory.available_bytes, free_text));
}

int making_open(const struct planner_request *r, struct making *m, struct helm_err *err)
{
    warn_of_memory(r);
    *m = (struct making){.r = r,
                         .asked = r->wish,
                         .machine = r->machine,
                         .batch = r->batch ? r->batch : 1,
                         .required = r->device_required || r->tiers == KV_TIERS_TWO,
                         .cache = r->cache};
    m->asked.batch = m->batch;
    m->wish = m->asked;
    m->c =
        (struct ledger_case){.model = r->model, .wish = &m->wish, .machine = &m->machine, .table = &m->table};
    int rc = check_sizes(m, err);
    return rc ? rc : analyse_table_build(r->model, &m->table, err);
}

void making_settle(struct making *m)
{
    m->asked.free_places = plan_free_places(m->asked.slots, m->asked.page_tokens);
    m->asked.pack = m->asked.pack && cost_packing_pays(m->r->profile);
    m->of = known_case(m);
}

static int check_mixed(const struct planner_request *r, struct helm_err *err)
{
    if (r->strategy != SEARCH_MIXED) return 0;
    if (!r->model->config.router.experts)
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "--strategy mixed is for mixtures of experts: this model has none");
    if (r->one_memory)
        return helm_fail(
            err, HELM_E_USAGE,
            "--strategy mixed with --invariant on: which processor computes an expert depends on what came "
            "before");
    return 0;
}

static int check_profile(const struct planner_request *r, struct helm_err *err)
{
    if (!r->profile)
        return helm_fail(err, HELM_E_USAGE,
                         "no profile of the machine: helm-profile measures one, and nothing is planned "
                         "without it");
    int rc = profile_check(r->profile, err);
    if (rc) return rc;
    if (r->machine.device.kind != LEDGER_DEVICE_NONE && r->profile->gpu.device == PROFILE_DEVICE_NONE)
        return helm_fail(err, HELM_E_MISMATCH,
                         "the machine has a device, but the profile (%s) says nothing of one",
                         r->profile->machine);
    return 0;
}

/* ---- making ---- */

static bool packed_on_cpu(const struct plan *plan)
{
    for (uint32_t u = 0; u < unit_count(plan->layers); u++)
        if (formats_packed_on_cpu(plan, u)) return true;
    return false;
}

/* The best plan that uses the device, if it may; otherwise the CPU's; otherwise one with weights on disk. */
static int make_lists(struct making *m, struct candidate *best, struct helm_err *err)
{
    const struct planner_request *r = m->r;
    const bool device = r->machine.device.kind != LEDGER_DEVICE_NONE && r->strategy != SEARCH_ALL_CPU,
               free_choice = r->strategy == SEARCH_BEST;
    struct helm_err refused = {0};
    struct planner_refusal refusal = {0};
    struct spec spec = {.strategy = r->strategy, .device = true},
                disk = {.strategy = r->strategy, .device = device};
    int rc = device ? ideas_run(m, &spec, best, err) : 0;
    if (!rc && device && r->machine.second.kind != LEDGER_DEVICE_NONE) rc = second_try(m, &spec, best, err);
    if (rc || (device && best->fits)) return rc;
    if (device && r->tiers == KV_TIERS_TWO)
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "--kv-tiers two: no plan with a layer's cache on the GPU fits with a context of %u "
                         "(--kv-tiers auto takes one tier then)",
                         spec.ctx);
    if (device) {
        rc = refusal_write(m, &spec, best, err);
        if (rc != HELM_E_CAPACITY || !free_choice) return rc;
        refused = *err;
        if (r->refusal) refusal = *r->refusal;
    }
    spec = (struct spec){.strategy = SEARCH_ALL_CPU};
    rc = m->required ? 0 : ideas_run(m, &spec, best, err);
    if (!rc) rc = disk_try(m, &disk, best, err);
    if (!rc && !best->fits && refused.code) { /* what is missing beside the device is less */
        *err = refused;
        if (r->refusal) *r->refusal = refusal;
        return refused.code;
    }
    if (!rc && !best->fits) rc = refusal_write(m, &spec, best, err);
    if (rc) return rc;
    if (refused.code)
        log_warn("device: planned %s: %s",
                 !plan_devices(&best->plan)    ? "on the CPU alone"
                 : plan_disk_ring(&best->plan) ? "with layers on disk"
                                               : "with experts on disk",
                 refused.text);
    if (r->refusal) *r->refusal = (struct planner_refusal){0};
    return 0;
}

static int make(struct making *m, struct plan *plan, struct arena_spec *arena, struct helm_err *err)
{
    struct candidate best = {.fits = false};
    int rc = make_lists(m, &best, err);
    *plan = best.plan;
    if (rc) return rc;
    m->wish = best.wish;
    m->wish.pack_cpu = packed_on_cpu(plan); /* the last candidate may have been another strategy's */
    rc = formats_name_weights(m->r->model, plan, err);
    if (rc) return rc;
    analyse_fill_units(&m->table, plan);
    rc = ideas_finish(m, plan, arena, err);
    return rc ? rc : plan_check(plan, err);
}

static int make_one(const struct planner_request *r, struct plan *plan, struct arena_spec *spec,
                    struct helm_err *err)
{
    struct making m = {0};
    bool device = r->machine.device.kind != LEDGER_DEVICE_NONE;
    memset(plan, 0, sizeof *plan);
    if (r->refusal) *r->refusal = (struct planner_refusal){0};
    int rc = 0;
    if (!device && r->strategy != SEARCH_BEST && r->strategy != SEARCH_ALL_CPU)
        rc = helm_fail(err, HELM_E_UNSUPPORTED, "--strategy %s needs a device: %s",
                       search_strategy_name(r->strategy), r->no_device);
    if (!rc && r->tiers == KV_TIERS_TWO && (!device || r->strategy != SEARCH_BEST))
        rc = helm_fail(err, HELM_E_UNSUPPORTED, "--kv-tiers two needs --strategy best and a device%s%s",
                       device ? "" : ": ", device ? "" : r->no_device);
    if (!rc && r->tiers == KV_TIERS_TWO && r->model->config.reads)
        rc = helm_fail(
            err, HELM_E_UNSUPPORTED,
            "--kv-tiers two: %u layers of the model read the cache of others, which cannot have two tiers",
            r->model->config.reading_layers);
    if (!rc && r->tiers == KV_TIERS_TWO && r->model->config.drafts)
        rc = helm_fail(err, HELM_E_UNSUPPORTED,
                       "--kv-tiers two: a plan with a layer of drafts (--speculate mtp) has one tier");
    if (!rc && !device && r->device_required) rc = helm_fail(err, HELM_E_UNSUPPORTED, "%s", r->no_device);
    if (!rc && r->device_required && r->strategy == SEARCH_ALL_CPU)
        rc = helm_fail(err, HELM_E_USAGE,
                       "--strategy all-cpu leaves the device idle that was asked for: --device cpu");
    if (!rc) rc = check_mixed(r, err);
    if (!rc) rc = check_profile(r, err);
    if (!rc) rc = making_open(r, &m, err);
    if (!rc) rc = shared_check(&m, err);
    if (!rc) {
        making_settle(&m);
        rc = make(&m, plan, spec, err);
    }
    if (rc) plan_free(plan);
    analyse_table_free(&m.table);
    for (int p = 0; p < PLAN_PROCESSORS && !rc; p++)
        if (plan->head == (enum plan_processor)p || plan_most_tokens(plan, (enum plan_processor)p))
            plan->inputs[p] = r->inputs[p];
    return rc;
}

/* ---- fewer at once ---- */

uint32_t planner_at_once(const struct planner_request *r, const struct plan *plan)
{
    const uint32_t batch = r->batch ? r->batch : 1,
                   pages = kv_pages_for(plan->context_tokens, plan->page_tokens),
                   contexts = pages ? plan->page_count / pages : batch;
    return contexts < 1 ? 1 : contexts < batch ? contexts : batch;
}

/* Tokens a second of all sequences that decode at once. */
static int rate_of(const struct planner_request *r, const struct plan *plan, double *rate,
                   struct helm_err *err)
{
    struct planner_prediction p;
    const uint32_t at_once = planner_at_once(r, plan);
    int rc = planner_predict(r, plan, at_once, planner_typical_context(r, plan->context_tokens), 1, &p, err);
    *rate = rc ? 0 : at_once / p.decode.seconds;
    return rc;
}

/* The other plan comes in the place of this one if it makes more of the request's tokens a second; it is
 * freed, or this one is. */
static void take_faster(struct plan *plan, struct arena_spec *spec, double *rate, struct plan *other,
                        const struct arena_spec *room, double seen)
{
    const struct plan before = *plan;
    if (seen > *rate) {
        *plan = *other, *other = before;
        *spec = *room;
        *rate = seen;
    }
    plan_free(other);
}

/* A plan of the same context for `at_once` sequences, in the place of this one if it makes more of the
 * request's. */
static int try_fewer(const struct planner_request *r, uint32_t at_once, struct plan *plan,
                     struct arena_spec *spec, double *rate, struct helm_err *err)
{
    struct planner_request fewer = *r;
    struct plan other = {0};
    struct arena_spec room;
    struct planner_second note = {""};
    double seen = 0;
    fewer.typical = planner_typical_context(r, plan->context_tokens);
    fewer.wish.ctx = plan->context_tokens;
    fewer.refusal = NULL;
    fewer.second = &note;
    fewer.batch = fewer.wish.batch = at_once;
    int rc = make_one(&fewer, &other, &room, err);
    fewer.batch = r->batch; /* its pool may have room for more of them */
    if (!rc) rc = rate_of(&fewer, &other, &seen, err);
    if (!rc && seen > *rate && r->second) *r->second = note;
    take_faster(plan, spec, rate, &other, &room, rc ? 0 : seen);
    return rc;
}

/* ---- windows ---- */

/* A plan whose layers with a window keep all pages in two tiers, in the place of one that keeps their windows
 * in VRAM, if it decodes faster: places take less of VRAM than the windows of all slots where a window is
 * long. */
static int try_pages(const struct planner_request *r, struct plan *plan, struct arena_spec *spec,
                     struct helm_err *err)
{
    struct planner_cache own = {.first = NULL};
    struct planner_request pages = *r;
    struct plan other = {0};
    struct arena_spec room;
    struct helm_err refused;
    double rate, seen = 0;
    if (!plan->window_page_count || !plan_devices(plan) || r->tiers == KV_TIERS_ONE ||
        r->strategy != SEARCH_BEST || r->wish.windows_stand)
        return 0;
    pages.cache = &own;
    pages.tiers = KV_TIERS_TWO;
    pages.wish.windows_stand = true;
    pages.wish.ctx = plan->context_tokens;
    pages.refusal = NULL;
    pages.second = NULL;
    int rc = rate_of(r, plan, &rate, err);
    /* else it does not fit */
    const bool there =
        !rc && !make_one(&pages, &other, &room, &refused) && !rate_of(r, &other, &seen, &refused);
    take_faster(plan, spec, &rate, &other, &room, there ? seen : 0);
    planner_cache_free(&own);
    return rc;
}

int planner_make(const struct planner_request *request, struct plan *plan, struct arena_spec *spec,
                 struct helm_err *err)
{
    struct planner_cache own = {.first = NULL};
    struct planner_request r = *request;
    double rate;
    if (!r.cache) r.cache = &own;
    if (r.second) r.second->text[0] = 0;
    int rc = make_one(&r, plan, spec, err);
    if (!rc && (rc = try_pages(&r, plan, spec, err))) plan_free(plan);
    if (!rc && r.strategy == SEARCH_BEST && r.batch >= 2 && !r.wish.page_count) {
        rc = rate_of(&r, plan, &rate, err);
        const double together = rate;
        if (!rc) rc = try_fewer(&r, 1, plan, spec, &rate, err);
        /* Where one alone makes more, its pool had room for several: two at once may gain nothing, but more
         * do. */
        const bool all = rate > together;
        bool gains = true;
        for (uint32_t n = r.batch / 2; n > 1 && (all || gains) && !rc; n /= 2) {
            const double before = rate;
            rc = try_fewer(&r, n, plan, spec, &rate, err);
            gains = rate > before;
        }
        if (rc) plan_free(plan);
    }
    planner_cache_free(&own);
    if (!rc && r.second && strncmp(r.second->text, "used", 4) == 0 &&
        !plan_uses(plan, plan_home_processor(PLAN_HOME_GPU1)))
        snprintf(r.second->text, sizeof r.second->text, "left out: a cache in two tiers is faster");
    return rc;
}

/* ---- taking ---- */

static int check_lists(const struct plan *plan, struct helm_err *err)
{
    for (uint32_t p = 1; p < plan_phase_count(plan); p++)
        if (plan_phase_from(plan, p) < GPU_CHUNK_TOKENS)
            return helm_fail(err, HELM_E_LIMIT,
                             "prefill list %u: begins at %u tokens; steps of fewer than %d are captured with "
                             "the decode list",
                             p, plan_phase_from(plan, p), GPU_CHUNK_TOKENS);
    return plan_check(plan, err);
}

static int check_ring(const struct making *m, const struct plan *plan, struct helm_err *err)
{
    uint64_t least = memory_ring_least(m->r->model);
    char has[UNITS_TEXT], needs[UNITS_TEXT];
    if (!plan_has_home(plan, PLAN_HOME_STREAM) || plan_device_of(plan, PLAN_HOME_STREAM)->ring_bytes >= least)
        return 0;
    return helm_fail(err, HELM_E_LIMIT,
                     "'ring_bytes' is %s; the 'stream' stages of this model need a ring of at least %s",
                     units_format_size(plan_device_of(plan, PLAN_HOME_STREAM)->ring_bytes, has),
                     units_format_size(least, needs));
}

/* A plan that says nothing of its layers' states has the model's. */
static int check_plan(const struct planner_request *r, struct plan *plan, struct helm_err *err)
{
    const struct model_config *m = &r->model->config;
    if (plan->layers != m->layers)
        return helm_fail(err, HELM_E_MISMATCH, "the plan has %u layers, the model %u", plan->layers,
                         m->layers);
    if (plan->draft_layers != m->drafts)
        return helm_fail(err, HELM_E_MISMATCH,
                         "%u layers of the plan make drafts, %u of the model (--speculate mtp)",
                         plan->draft_layers, m->drafts);
    if (plan->context_tokens > m->max_context)
        return helm_fail(err, HELM_E_LIMIT, "'context_tokens' is %u; the model was made for at most %u",
                         plan->context_tokens, m->max_context);
    if (plan->step_tokens < plan->slots)
        return helm_fail(err, HELM_E_LIMIT, "'step_tokens' is %u: not one for each of the %u 'slots'",
                         plan->step_tokens, plan->slots);
    if (!plan->has_states) plan_take_states(plan, r->model);
    int rc = plan_check_states(plan, r->model, err);
    if (!rc) rc = check_lists(plan, err);
    if (!rc && plan_devices(plan) > 0 && r->machine.device.kind == LEDGER_DEVICE_NONE)
        rc = helm_fail(err, HELM_E_UNSUPPORTED, "the plan needs a GPU: %s", r->no_device);
    if (!rc && plan_uses(plan, plan_home_processor(PLAN_HOME_GPU1)) &&
        r->machine.second.kind == LEDGER_DEVICE_NONE)
        rc = helm_fail(err, HELM_E_UNSUPPORTED,
                       "the plan needs a second GPU: --device names one, or there is one alone");
    return rc;
}

void planner_adopt(const struct plan *plan, const struct model *model, struct ledger_wish *w)
{
    if (plan->context_tokens) w->ctx = plan->context_tokens;
    if (plan->step_tokens) w->step_tokens = plan->step_tokens;
    if (plan->slots) w->slots = plan->slots;
    if (plan->draft_tokens) w->draft_tokens = plan->draft_tokens;
    if (plan->page_tokens) w->page_tokens = plan->page_tokens;
    if (plan->page_count) w->page_count = plan->page_count;
    w->vram_page_count = plan_kv_places(plan);
    w->free_places = plan->kv_free_places;
    w->places_stand = w->windows_stand = true;
    w->window_page_count = plan->window_page_count;
    if (plan->state_snapshots) w->snapshot_bytes = plan->state_snapshots * plan_snapshot_bytes(model);
    const enum kv_dtype kv_dtype = kv_dtype_named(plan->kv_dtype);
    if (kv_dtype != KV_DTYPE_COUNT) w->kv_dtype = kv_dtype;
}

/* Removes packing that is not wished for, and that of the CPU's weights where it has no kernels for packed
 * ones. */
static void take_formats(const struct planner_request *r, struct plan *plan)
{
    if (!r->wish.pack) {
        for (uint32_t u = 0; u < unit_count(plan->layers); u++)
            if (plan_unit_format(plan, u) == FORMAT_BF16_PACKED)
                plan_set_unit_format(plan, u, PLAN_AS_STORED);
        if (plan_head_format(plan) == FORMAT_BF16_PACKED) plan_set_head_format(plan, PLAN_AS_STORED);
        return;
    }
    if (r->wish.pack_cpu || !packed_on_cpu(plan)) return;
    log_warn("'format' of the plan: this processor has no kernels for packed weights; the CPU computes with "
             "them as they are in the file");
    for (uint32_t u = 0; u < unit_count(plan->layers); u++)
        if (formats_packed_on_cpu(plan, u)) plan_set_unit_format(plan, u, PLAN_AS_STORED);
}

/* As workers do, whose model is cut as the plan says. */
static int check_placements(const struct model *model, const struct plan *plan, struct helm_err *err)
{
    const struct model *of;
    struct model cut;
    if (!plan->placement) return 0;
    int rc = plan_share_copy(plan, model, &cut, &of, err);
    if (rc) return rc;
    rc = placement_check(of, plan, err);
    if (rc) helm_err_prefix(err, "where a plan has no 'placements' they are made anew");
    model_share_free(&cut);
    return rc;
}

int planner_take(const struct planner_request *request, struct plan *plan, struct arena_spec *spec,
                 struct helm_err *err)
{
    struct planner_request r = *request;
    struct making m = {0};
    r.batch = 1; /* whether its pool holds a batch is its author's choice */
    planner_adopt(plan, r.model, &r.wish);
    take_formats(&r, plan);
    r.wish.pack_cpu = packed_on_cpu(plan);
    if (!r.wish.step_tokens) r.wish.step_tokens = LEDGER_STEP_TOKENS;
    if (r.refusal) *r.refusal = (struct planner_refusal){0};
    int rc = check_plan(&r, plan, err);
    if (!rc) rc = making_open(&r, &m, err);
    if (rc) goto out;
    rc = check_ring(&m, plan, err);
    if (!rc) rc = formats_name_weights(r.model, plan, err);
    if (!rc) rc = formats_check(&m.c, plan, err);
    if (!rc) rc = check_placements(r.model, plan, err);
    if (rc) goto out;
    analyse_fill_units(&m.table, plan);
    rc = ledger_fit(&m.c, r.wish.ctx, plan, spec, err);
    if (rc == HELM_E_CAPACITY && r.refusal) {
        const enum plan_memory memory = ledger_refused(plan);
        const struct ledger *ledger = &plan->memory[memory];
        const char *what = memory == PLAN_HOST                                ? "host memory"
                           : plan_device_index(plan_memory_processor(memory)) ? "VRAM of the second device"
                                                                              : "VRAM";
        *r.refusal = (struct planner_refusal){true, what, ledger->total, ledger->limit, "another plan"};
    }
out:
    analyse_table_free(&m.table);
    return rc;
}

/* ---- predicting ---- */

int planner_predict(const struct planner_request *r, const struct plan *plan, uint32_t batch,
                    uint32_t context, uint32_t prompt, struct planner_prediction *prediction,
                    struct helm_err *err)
{
    struct analyse_table table = {0};
    memset(prediction, 0, sizeof *prediction);
    int rc = check_profile(r, err);
    if (!rc) rc = analyse_table_build(r->model, &table, err);
    if (rc) return rc;
    const struct cost_case c = {.model = r->model, .analysed = &table, .profile = r->profile, .plan = plan};
    rc = cost_decode(&c, batch ? batch : 1, context, &prediction->decode, err);
    if (!rc) rc = cost_ttft(&c, prompt ? prompt : PLANNER_PROMPT_TOKENS, &prediction->ttft, err);
    analyse_table_free(&table);
    return rc;
}
