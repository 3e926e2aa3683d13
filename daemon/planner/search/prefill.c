/* Homes for steps of many tokens, and from how many tokens on they pay. See search.h. Called by planner.c and
 * helm-plan; owns nothing. */
#include "daemon/planner/search/space.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Layers whose cache is the CPU's: where decode attends on it. */
static void caches_on_cpu(const struct search_found *decode, uint32_t layers, bool *kv_cpu)
{
    for (uint32_t l = 0; l < layers; l++) kv_cpu[l] = decode->home[2 * l] == PLAN_HOME_CPU;
}

/* `to` for every item that may be there, decode's home for the others. */
static void all_to(const struct space *s, const struct search_found *decode, enum plan_home to,
                   enum plan_home *home)
{
    for (uint32_t u = 0; u < s->items; u++) home[u] = s->item[u].allowed & 1u << to ? to : decode->home[u];
}

/* Every split of a mixture in two runs: the CPU's part first or last, while the link copies for the rest. */
static void try_runs(struct space *s, const struct search_found *decode, enum plan_home *home)
{
    for (uint32_t step = s->items > 2 * PREFILL_RUNS ? s->items / PREFILL_RUNS : 1, at = step; at < s->items;
         at += step)
        for (int first = 0; first < 2; first++) {
            all_to(s, decode, PLAN_HOME_STREAM, home);
            for (uint32_t u = 0; u < s->items; u++)
                if ((first ? u < at : u >= at) && (s->item[u].allowed & 1u << PLAN_HOME_CPU))
                    home[u] = PLAN_HOME_CPU;
            (void)space_try(s, home, &s->ends[0], s->ring_fixed, 0);
        }
}

int search_prefill(const struct cost_table *prefill, const struct search_found *decode, enum plan_home *home,
                   double *seconds, struct helm_err *err)
{
    struct space s = {0};
    enum plan_home mine[UNIT_PARTS * MODEL_LAYERS_MAX];
    bool kv_cpu[MODEL_LAYERS_MAX], exact;
    *seconds = INFINITY;
    if (!decode->feasible) return helm_fail(err, HELM_E_STATE, "no prefill without a plan of decode");
    caches_on_cpu(decode, prefill->units / 2, kv_cpu);
    int rc = space_open_prefill(&s, prefill, decode, kv_cpu, err);
    if (rc) goto out;
    (void)space_try(&s, decode->home, &s.ends[0], s.ring_fixed, INFINITY);
    all_to(&s, decode, PLAN_HOME_CPU, mine);
    (void)space_try(&s, mine, &s.ends[0], s.ring_fixed, INFINITY);
    all_to(&s, decode, PLAN_HOME_STREAM, mine);
    (void)space_try(&s, mine, &s.ends[0], s.ring_fixed, INFINITY);
    try_runs(&s, decode, mine);
    rc = exact_search(&s, &exact, err);
    if (!rc && !exact) rc = mixed_search(&s, err);
    if (rc) goto out;
    memcpy(home, s.home, s.items * sizeof *home);
    *seconds = s.seconds;
    if (!s.found)
        rc = helm_fail(err, HELM_E_MISMATCH, "the decode plan computes on a GPU that the prices do not know");
out:
    space_close(&s);
    return rc;
}

/* ---- from how many tokens ---- */

struct crossing {
    const struct search_crossover *c;
    const bool *kv_cpu;
};

/* By how much b is faster than a in a step of `tokens` tokens, in seconds. */
static int gain_at(const struct crossing *x, uint32_t tokens, double *gain, struct helm_err *err)
{
    const struct search_crossover *c = x->c;
    const struct cost_step step = {.tokens = tokens,
                                   .rows = 1,
                                   .samples = 1,
                                   .context = tokens > c->context ? tokens : c->context,
                                   .kv_dtype = c->kv_dtype,
                                   .format = c->format,
                                   .kv = c->kv};
    struct cost_table table;
    int rc = cost_price(c->model, c->analysed, c->profile, &step, &table, err);
    if (rc) return rc;
    struct cost_plan plan = {.home = c->a,
                             .kv_cpu = x->kv_cpu,
                             .embed = c->decode->embed,
                             .head = c->decode->head,
                             .ring_bytes = c->decode->ring_bytes,
                             .cold = true};
    *gain = cost_seconds(&table, &plan, INFINITY);
    plan.home = c->b;
    *gain -= cost_seconds(&table, &plan, INFINITY);
    cost_table_free(&table);
    return 0;
}

/* Faster at `to` is needed for an answer. Going down by a tenth at a time finds the last number at which b is
 * not faster, whether or not the gain rises steadily; between that and the next, halving does. */
int search_crossing(const struct search_crossover *crossover, uint32_t from, uint32_t to, uint32_t *tokens,
                    struct helm_err *err)
{
    double gain = 0;
    *tokens = 0;
    if (from == 0 || from > to)
        return helm_fail(err, HELM_E_LIMIT, "no crossing between %u and %u tokens", from, to);
    bool kv_cpu[MODEL_LAYERS_MAX];
    caches_on_cpu(crossover->decode, model_answer_layers(&crossover->model->config), kv_cpu);
    const struct crossing x = {.c = crossover, .kv_cpu = kv_cpu};
    uint32_t faster = to, not_faster = from - 1;
    int rc = gain_at(&x, to, &gain, err);
    if (rc || gain <= 0) return rc;
    while (faster > from) {
        uint32_t below = faster - (faster > PLANNER_SHARES ? faster / PLANNER_SHARES : 1);
        if (below < from) below = from;
        rc = gain_at(&x, below, &gain, err);
        if (rc) return rc;
        if (gain <= 0) {
            not_faster = below;
            break;
        }
        faster = below;
    }
    while (faster - not_faster > 1 && faster > from) {
        uint32_t middle = not_faster + (faster - not_faster) / 2;
        rc = gain_at(&x, middle, &gain, err);
        if (rc) return rc;
        *(gain > 0 ? &faster : &not_faster) = middle;
    }
    *tokens = faster;
    return 0;
}
