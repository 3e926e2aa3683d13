/* Which weights in VRAM are packed, where not all need to be. See candidate.h. Called by candidate.c; owns
 * nothing.
 *
 * The search assumes that all weights that can be packed are, so that most of them fit in VRAM. Most devices
 * compute faster with plain weights, so the room that is left is then spent on unpacking: only the first half
 * layers stay packed, as few as fit allows, or all of them. Either is tried with the head packed or not, and
 * with an embedding that would be in VRAM there or not; the fastest wins.
 */
#include "daemon/planner/candidate.h"

#include <math.h>

#include "daemon/planner/formats.h"

struct choosing {
    struct making *m;
    const struct spec *spec;
    struct plan *plan;
};

static int fits_with(const struct choosing *c, uint32_t units, bool head, bool *fits, struct helm_err *err)
{
    struct arena_spec arena;
    formats_set_vram(&c->m->c, units, head, c->plan);
    int rc = ledger_write(&c->m->c, c->spec->ctx, ledger_least_pages(&c->m->c, c->spec->ctx), c->plan, &arena,
                          err);
    *fits = !rc && ledger_fits(c->plan);
    return rc;
}

/* The least number of packed units with which the plan fits; UINT32_MAX: not with all of them. */
static int least_units(const struct choosing *c, uint32_t all, bool head, uint32_t *units,
                       struct helm_err *err)
{
    uint32_t fewer = 0, enough = all;
    bool fits;
    *units = UINT32_MAX;
    int rc = fits_with(c, all, head, &fits, err);
    if (rc || !fits) return rc;
    rc = fits_with(c, 0, head, &fits, err); /* without any there may be no place to expand to either */
    if (rc) return rc;
    if (fits) enough = 0;
    while (enough - fewer > 1) {
        uint32_t middle = fewer + (enough - fewer) / 2;
        rc = fits_with(c, middle, head, &fits, err);
        if (rc) return rc;
        *(fits ? &enough : &fewer) = middle;
    }
    *units = enough;
    return 0;
}

static int seconds_with(const struct choosing *c, uint32_t units, bool head, double *seconds,
                        struct helm_err *err)
{
    enum tensor_format format[FORMATS_ROWS][PLAN_HOMES];
    bool kv_cpu[MODEL_LAYERS_MAX];
    enum plan_home home[UNIT_PARTS * MODEL_LAYERS_MAX];
    struct cost_table prices;
    struct cost_plan plan;
    formats_set_vram(&c->m->c, units, head, c->plan);
    formats_wished(&c->m->c, format);
    formats_plan_vram(c->plan, format);
    int rc = making_price(c->m, c->spec, format, &prices, err);
    if (rc) return rc;
    cost_plan_of(c->plan, 0, home, kv_cpu, &plan);
    *seconds = cost_seconds(&prices, &plan, INFINITY);
    cost_table_free(&prices);
    return 0;
}

/* The best choice so far. */
struct choice {
    double seconds;
    uint32_t units;
    bool head;
    enum plan_processor embed;
};

static int choose_units(const struct choosing *c, uint32_t all, bool head, struct choice *best,
                        struct helm_err *err)
{
    for (int h = 0; h <= head; h++) {
        uint32_t try[2] = {UINT32_MAX, all};
        int rc = least_units(c, all, h, &try[0], err);
        if (rc) return rc;
        for (int i = 0; i < 2 && try[0] != UINT32_MAX; i++) {
            double took;
            rc = seconds_with(c, try[i], h, &took, err);
            if (rc) return rc;
            if (took < best->seconds)
                *best = (struct choice){.seconds = took, .units = try[i], .head = h, .embed = c->plan->embed};
        }
    }
    return 0;
}

int unpacking_choose(struct making *m, const struct spec *spec, struct candidate *made, struct helm_err *err)
{
    struct plan *plan = &made->plan;
    const struct choosing c = {.m = m, .spec = spec, .plan = plan};
    const uint32_t all = plan_units_in(plan, plan_home_memory(PLAN_HOME_GPU), FORMAT_BF16_PACKED) +
                         plan_units_in(plan, plan_home_memory(PLAN_HOME_GPU1), FORMAT_BF16_PACKED);
    const bool head = plan_head_format(plan) == FORMAT_BF16_PACKED;
    struct choice best = {.seconds = INFINITY, .units = all, .head = head, .embed = plan->embed};
    bool fits;
    int rc = choose_units(&c, all, head, &best, err);
    /* An embedding in VRAM takes the place of weights that could lie there plain. */
    if (!rc && spec->strategy == SEARCH_BEST && plan->embed != PLAN_CPU0 && !m->table.tied) {
        plan->embed = PLAN_CPU0;
        rc = choose_units(&c, all, head, &best, err);
        plan->embed = best.embed;
    }
    if (rc) return rc;
    made->seconds = best.seconds;
    rc = fits_with(&c, best.units, best.head, &fits, err);
    if (!rc && !fits) rc = helm_fail(err, HELM_E_INTERNAL, "a plan with packed weights fits no more");
    return rc;
}
