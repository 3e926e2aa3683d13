/* Plans as structs: units, phases, spans, ledgers. See plan.h; plan_json.c is their JSON form. Called by the
 * planner, helmd, the workers and clients; pure but for the arrays of a copy. */
#include "common/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/units.h"

static const char *const home_names[] = {"cpu", "gpu", "stream", "direct", "disk"};
#define HOME_COUNT (sizeof home_names / sizeof *home_names)

const char *plan_home_name(enum plan_home home)
{
    return (size_t)home < HOME_COUNT ? home_names[home] : "unknown";
}

enum plan_home plan_home_worker(enum plan_home home)
{
    return home == PLAN_HOME_CPU || home == PLAN_HOME_DISK ? PLAN_HOME_CPU : PLAN_HOME_GPU;
}

const char *plan_ops_name(enum plan_ops ops)
{
    static const char *const names[PLAN_OPS_COUNT] = {"all", "attention", "mlp"};
    return (unsigned)ops < PLAN_OPS_COUNT ? names[ops] : "unknown";
}

/* ---- phases and units ---- */

uint32_t plan_phase_count(const struct plan *plan)
{
    return 1 + plan->prefill_count;
}

uint32_t plan_phase_for(const struct plan *plan, uint32_t tokens)
{
    uint32_t phase = 0;
    while (phase < plan->prefill_count && tokens >= plan->prefill[phase].from_tokens) phase++;
    return phase;
}

struct plan_phase plan_phase_at(const struct plan *plan, uint32_t phase)
{
    if (phase) return plan->prefill[phase - 1];
    return (struct plan_phase){.from_tokens = 1, .stages = plan->stages, .stage_count = plan->stage_count};
}

uint32_t plan_most_tokens(const struct plan *plan, enum plan_home worker)
{
    uint32_t most = 0;
    for (uint32_t p = 0; p < plan_phase_count(plan); p++) {
        const struct plan_phase phase = plan_phase_at(plan, p);
        uint32_t last = p < plan->prefill_count ? plan->prefill[p].from_tokens - 1 : plan->step_tokens;
        if (last > plan->step_tokens) last = plan->step_tokens;
        if (phase.from_tokens > last) continue; /* no step is that long */
        for (uint32_t i = 0; i < phase.stage_count; i++)
            if (plan_home_worker(phase.stages[i].home) == worker && last > most) most = last;
    }
    return most;
}

enum plan_home plan_unit_home(const struct plan *plan, uint32_t phase, uint32_t unit)
{
    const struct plan_phase p = plan_phase_at(plan, phase);
    for (uint32_t i = 0; i < p.stage_count; i++)
        if (unit <= plan_stage_last_unit(&p.stages[i])) return p.stages[i].home;
    return PLAN_HOME_CPU;
}

void plan_unit_homes(const struct plan *plan, uint32_t phase, enum plan_home *home)
{
    const struct plan_phase p = plan_phase_at(plan, phase);
    for (uint32_t i = 0; i < p.stage_count; i++)
        for (uint32_t u = plan_stage_first_unit(&p.stages[i]); u <= plan_stage_last_unit(&p.stages[i]); u++)
            home[u] = p.stages[i].home;
}

void plan_packed_units(const struct plan *plan, const bool *link, const bool *cpu, bool *packed)
{
    for (uint32_t u = 0; u < 2 * plan->layers; u++) {
        bool on_cpu = false, other = false;
        for (uint32_t p = 0; p < plan_phase_count(plan); p++) {
            enum plan_home home = plan_unit_home(plan, p, u);
            on_cpu |= home == PLAN_HOME_CPU;
            other |= home != PLAN_HOME_CPU && home != PLAN_HOME_STREAM;
        }
        packed[u] = !other && (on_cpu ? plan->pack_cpu && cpu[u] : plan->pack && link[u]);
    }
}

uint32_t plan_packed_on_gpu(const struct plan *plan, const bool *can, bool *packed)
{
    uint32_t count = 0;
    for (uint32_t u = 0; u < 2 * plan->layers; u++) {
        packed[u] = count < plan->pack_gpu && can[u] && plan_unit_home(plan, 0, u) == PLAN_HOME_GPU;
        count += packed[u];
    }
    return count;
}

uint32_t plan_stages_of(const enum plan_home *home, uint32_t layers, struct plan_stage *stages)
{
    uint32_t count = 0;
    for (uint32_t l = 0; l < layers; l++) {
        enum plan_home attention = home[2 * l], mlp = home[2 * l + 1];
        struct plan_stage *last = count ? &stages[count - 1] : NULL;
        if (attention != mlp) {
            stages[count++] =
                (struct plan_stage){.first = l, .last = l, .home = attention, .ops = PLAN_OPS_ATTENTION};
            stages[count++] = (struct plan_stage){.first = l, .last = l, .home = mlp, .ops = PLAN_OPS_MLP};
        } else if (last && last->ops == PLAN_OPS_ALL && last->home == mlp) {
            last->last = l;
        } else {
            stages[count++] = (struct plan_stage){.first = l, .last = l, .home = mlp, .ops = PLAN_OPS_ALL};
        }
    }
    return count;
}

uint32_t plan_layers_of(const struct plan *plan, enum plan_home worker)
{
    uint32_t layers = 0;
    for (uint32_t i = 0; i < plan->stage_count; i++) {
        const struct plan_stage *stage = &plan->stages[i];
        if (plan_home_worker(stage->home) == worker && stage->ops != PLAN_OPS_MLP)
            layers += stage->last - stage->first + 1;
    }
    return layers;
}

enum plan_home plan_kv_of(const struct plan *plan, uint32_t layer, uint32_t *kv_layer)
{
    uint32_t before[2] = {0, 0}; /* by worker */
    for (uint32_t i = 0; i < plan->stage_count; i++) {
        const struct plan_stage *stage = &plan->stages[i];
        enum plan_home worker = plan_home_worker(stage->home);
        if (stage->ops == PLAN_OPS_MLP) continue;
        if (layer <= stage->last) {
            *kv_layer = before[worker] + layer - stage->first;
            return worker;
        }
        before[worker] += stage->last - stage->first + 1;
    }
    *kv_layer = 0;
    return PLAN_HOME_CPU;
}

bool plan_has_home(const struct plan *plan, enum plan_home home)
{
    for (uint32_t p = 0; p < plan_phase_count(plan); p++) {
        const struct plan_phase phase = plan_phase_at(plan, p);
        for (uint32_t i = 0; i < phase.stage_count; i++)
            if (phase.stages[i].home == home) return true;
    }
    return false;
}

bool plan_uses(const struct plan *plan, enum plan_home worker)
{
    if (plan->embed == worker || plan->head == worker) return true;
    for (uint32_t p = 0; p < plan_phase_count(plan); p++) {
        const struct plan_phase phase = plan_phase_at(plan, p);
        for (uint32_t i = 0; i < phase.stage_count; i++) {
            if (plan_home_worker(phase.stages[i].home) == worker) return true;
            if (worker == PLAN_HOME_CPU && phase.stages[i].home != PLAN_HOME_GPU) return true;
        }
    }
    return false;
}

bool plan_borrows_kv(const struct plan *plan)
{
    for (uint32_t p = 1; p < plan_phase_count(plan); p++) {
        const struct plan_phase phase = plan_phase_at(plan, p);
        for (uint32_t i = 0; i < phase.stage_count; i++) {
            const struct plan_stage *stage = &phase.stages[i];
            uint32_t kv_layer;
            if (stage->ops == PLAN_OPS_MLP || plan_home_worker(stage->home) != PLAN_HOME_GPU) continue;
            for (uint32_t l = stage->first; l <= stage->last; l++)
                if (plan_kv_of(plan, l, &kv_layer) == PLAN_HOME_CPU) return true;
        }
    }
    return false;
}

/* ---- checks ---- */

static int check_list(const struct plan *plan, const struct plan_phase *phase, struct helm_err *err)
{
    uint32_t next = 0, units = 2 * plan->layers;
    if (!phase->stage_count) return helm_fail(err, HELM_E_LIMIT, "no stages");
    for (uint32_t i = 0; i < phase->stage_count; i++) {
        const struct plan_stage *stage = &phase->stages[i];
        if (stage->last < stage->first || stage->last >= plan->layers ||
            (stage->ops != PLAN_OPS_ALL && stage->first != stage->last))
            return helm_fail(err, HELM_E_LIMIT, "stage %u: layers [%u, %u], '%s', are no part of %u layers",
                             i, stage->first, stage->last, plan_ops_name(stage->ops), plan->layers);
        if (plan_stage_first_unit(stage) != next)
            return helm_fail(err, HELM_E_FORMAT,
                             "stage %u begins with the %s of layer %u, not of layer %u's %s", i,
                             plan_stage_first_unit(stage) & 1 ? "MLP" : "attention", stage->first, next / 2,
                             next & 1 ? "MLP" : "attention");
        next = plan_stage_last_unit(stage) + 1;
    }
    if (next != units)
        return helm_fail(err, HELM_E_FORMAT, "layers %u to %u belong to no stage", next / 2,
                         plan->layers - 1);
    return 0;
}

static int check_against_decode(const struct plan *plan, uint32_t phase, struct helm_err *err)
{
    for (uint32_t u = 0; u < 2 * plan->layers; u++) {
        enum plan_home home = plan_unit_home(plan, phase, u), decode = plan_unit_home(plan, 0, u);
        if ((home == PLAN_HOME_GPU) != (decode == PLAN_HOME_GPU))
            return helm_fail(err, HELM_E_FORMAT,
                             "the %s of layer %u is at home on '%s', in decode on '%s': weights do not move",
                             u & 1 ? "MLP" : "attention", u / 2, plan_home_name(home),
                             plan_home_name(decode));
        if (!(u & 1) && plan_home_worker(home) == PLAN_HOME_CPU && plan_home_worker(decode) == PLAN_HOME_GPU)
            return helm_fail(err, HELM_E_FORMAT,
                             "the attention of layer %u is on '%s', but its KV cache is in VRAM", u / 2,
                             plan_home_name(home));
    }
    return 0;
}

static int check_packed_on_gpu(const struct plan *plan, struct helm_err *err)
{
    uint32_t units = 0;
    for (uint32_t u = 0; plan->pack_gpu && u < 2 * plan->layers; u++)
        units += plan_unit_home(plan, 0, u) == PLAN_HOME_GPU;
    if (plan->pack_gpu > units)
        return helm_fail(err, HELM_E_LIMIT, "'pack_gpu' is %u, but %u half layers are at home on 'gpu'",
                         plan->pack_gpu, units);
    if (plan->pack_head && plan->head != PLAN_HOME_GPU)
        return helm_fail(err, HELM_E_FORMAT, "'pack_head' is true, but 'head' is not 'gpu'");
    if ((plan->pack_gpu || plan->pack_head) && !plan->pack_gpu_bytes)
        return helm_fail(err, HELM_E_FORMAT,
                         "weights lie packed in VRAM ('pack_gpu', 'pack_head'), but 'pack_gpu_bytes' is 0");
    return 0;
}

int plan_check(const struct plan *plan, struct helm_err *err)
{
    uint32_t before = 1;
    for (uint32_t p = 0; p < plan_phase_count(plan); p++) {
        const struct plan_phase phase = plan_phase_at(plan, p);
        int rc = check_list(plan, &phase, err);
        if (!rc && p && phase.from_tokens <= before)
            rc = helm_fail(err, HELM_E_LIMIT, "begins at %u tokens, the one before at %u", phase.from_tokens,
                           before);
        if (!rc && p) rc = check_against_decode(plan, p, err);
        if (rc) {
            if (p) helm_err_prefix(err, "prefill list %u", p);
            return rc;
        }
        before = phase.from_tokens;
    }
    if (plan_has_home(plan, PLAN_HOME_STREAM) && !plan->ring_bytes)
        return helm_fail(err, HELM_E_FORMAT, "there are 'stream' stages, but 'ring_bytes' is 0");
    return check_packed_on_gpu(plan, err);
}

static int copy_stages(const struct plan_stage *from, uint32_t count, struct plan_stage **to,
                       struct helm_err *err)
{
    *to = NULL;
    if (!count) return 0;
    *to = malloc(count * sizeof **to);
    if (!*to) return helm_fail(err, HELM_E_NOMEM, "no memory for %u stages", count);
    memcpy(*to, from, count * sizeof **to);
    return 0;
}

int plan_copy(const struct plan *from, struct plan *to, struct helm_err *err)
{
    *to = *from;
    to->stages = NULL;
    for (uint32_t i = 0; i < PLAN_PREFILLS_MAX; i++) to->prefill[i].stages = NULL;
    int rc = copy_stages(from->stages, from->stage_count, &to->stages, err);
    for (uint32_t i = 0; i < from->prefill_count && !rc; i++)
        rc = copy_stages(from->prefill[i].stages, from->prefill[i].stage_count, &to->prefill[i].stages, err);
    if (rc) plan_free(to);
    return rc;
}

void plan_free(struct plan *plan)
{
    free(plan->stages);
    for (uint32_t i = 0; i < PLAN_PREFILLS_MAX; i++) free(plan->prefill[i].stages);
    memset(plan, 0, sizeof *plan);
}

/* ---- spans ---- */

/* The span that work of `worker` goes into: the last one, or a new one after it. */
static struct plan_span *span_of(struct plan_span *spans, uint32_t *count, enum plan_home worker)
{
    if (*count == 0 || spans[*count - 1].worker != worker)
        spans[(*count)++] = (struct plan_span){.worker = worker};
    return &spans[*count - 1];
}

int plan_spans(const struct plan *plan, uint32_t phase, struct plan_span **out, uint32_t *count,
               struct helm_err *err)
{
    const struct plan_phase p = plan_phase_at(plan, phase);
    uint32_t ticket[2] = {0, 0}; /* by the worker that reads */
    *count = 0;
    *out = NULL;
    struct plan_span *spans = calloc((size_t)p.stage_count + 2, sizeof *spans);
    if (!spans) return helm_fail(err, HELM_E_NOMEM, "no memory for %u spans", p.stage_count + 2);
    span_of(spans, count, plan->embed)->embed = true;
    for (uint32_t i = 0; i < p.stage_count; i++) {
        const struct plan_stage *stage = &p.stages[i];
        struct plan_span *span = span_of(spans, count, plan_home_worker(stage->home));
        uint32_t first = plan_stage_first_unit(stage);
        if (!span->unit_count) span->first_unit = first;
        span->unit_count += plan_stage_last_unit(stage) - first + 1;
    }
    span_of(spans, count, plan->head)->head = true;
    for (uint32_t i = 1; i < *count; i++) {
        spans[i].ticket_in = spans[i - 1].ticket_out = ++ticket[spans[i].worker];
        spans[i].last_in = i + 2 >= *count; /* directions alternate */
    }
    *out = spans;
    return 0;
}

/* ---- ledgers ---- */

static void add_saturating(uint64_t *sum, uint64_t bytes)
{
    if (units_add(*sum, bytes, sum)) *sum = UINT64_MAX;
}

void ledger_add(struct ledger *ledger, const char *what, uint64_t bytes)
{
    if (ledger->line_count < PLAN_LINES_MAX) {
        struct ledger_line *line = &ledger->line[ledger->line_count++];
        snprintf(line->what, sizeof line->what, "%s", what);
        line->bytes = bytes;
    } else { /* the lines must still add up to the total */
        struct ledger_line *line = &ledger->line[PLAN_LINES_MAX - 1];
        snprintf(line->what, sizeof line->what, "other");
        add_saturating(&line->bytes, bytes);
    }
    add_saturating(&ledger->total, bytes);
}
