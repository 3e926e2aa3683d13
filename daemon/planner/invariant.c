/* The choice of an invariant plan. See invariant.h. */
#include "daemon/planner/invariant.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/units.h"
#include "common/plan/engine_limits.h"
#include "daemon/planner/profile/programs.h"
#include "daemon/planner/profile/policy.h"

enum invariant_option invariant_option_named(const char *name)
{
    static const char *const names[INVARIANT_OPTIONS] = {"auto", "on", "off"};
    for (int i = 0; i < INVARIANT_OPTIONS; i++)
        if (strcmp(name, names[i]) == 0) return (enum invariant_option)i;
    return INVARIANT_AUTO;
}

/* With two tiers the positions left to the CPU depend on a sequence's room in VRAM: in an invariant plan it
 * has none. */
static void become(struct plan *plan, bool invariant, uint32_t direct_permille)
{
    plan->invariant = invariant;
    plan->kv_direct_permille = invariant && plan_kv_tiered(plan) ? PERMILLE : direct_permille;
}

/* How many times as long a decode step of `sequences` takes, and a first token. */
struct price {
    uint32_t sequences;
    double decode, first;
};

static int predict(const struct planner_request *request, const struct plan *plan, uint32_t sequences,
                   uint32_t context, struct planner_prediction *prediction, struct helm_err *err)
{
    return planner_predict(request, plan, sequences, context,
                           request->prompt ? request->prompt : PLANNER_PROMPT_TOKENS, prediction, err);
}

static int price_of(const struct planner_request *request, struct plan *plan, uint32_t direct_permille,
                    uint32_t context, struct price *price, struct helm_err *err)
{
    struct planner_prediction with, without;
    become(plan, false, direct_permille);
    int rc = predict(request, plan, price->sequences, context, &without, err);
    become(plan, true, direct_permille);
    if (!rc) rc = predict(request, plan, price->sequences, context, &with, err);
    if (rc) return rc;
    price->decode = with.decode.seconds / without.decode.seconds;
    price->first = with.ttft.seconds / without.ttft.seconds;
    return 0;
}

/* The worse of what a short context and the typical one lose, by rates and as forecasts say it: these go by
 * the model's own programs where there are some, and attention is not alike in error. */
static int price_batch(const struct planner_request *asked, const struct planner_request *request,
                       struct plan *plan, uint32_t direct_permille, struct price *worst, struct helm_err *err)
{
    const uint32_t typical = planner_typical_context(asked, plan->context_tokens),
                   context[] = {typical, typical < PLANNER_SHORT_CONTEXT ? typical : PLANNER_SHORT_CONTEXT};
    const struct planner_request *const by[] = {request, asked};
    int rc = 0;
    for (int b = 0; b < (asked == request ? 1 : 2); b++)
        for (int c = 0; c < (context[1] == typical ? 1 : 2) && !rc; c++) {
            struct price price = {.sequences = worst->sequences};
            rc = price_of(by[b], plan, direct_permille, context[c], &price, err);
            worst->decode = fmax(worst->decode, price.decode);
            worst->first = fmax(worst->first, price.first);
        }
    return rc;
}

/* No rates are those of several tokens that the CPU multiplies each as one, nor of a GPU's attention in a
 * chain's order, which it may have where it has chains. */
static bool lacks_rates(const struct profile *profile, const struct plan *plan)
{
    return plan_most_tokens(plan, PLAN_CPU0) > 0 ||
           (plan_device_computes(plan) && profile->gpu.chain_gemv.value > 0);
}

/* The most expensive price of several sequences. *known: false where the profile lacks it and nothing was
 * `measured`. */
static int price_several(const struct planner_request *request, struct plan *plan, uint32_t direct_permille,
                         bool measured, struct price *worst, bool *known, struct helm_err *err)
{
    int rc = 0;
    *worst = (struct price){.decode = 1};
    *known = measured || plan->slots < 2 || !lacks_rates(request->profile, plan);
    for (uint32_t n = 2; n <= ENGINE_FEW_TOKENS && n <= plan->slots && *known && !rc; n *= 2) {
        struct price price = {.sequences = n};
        rc = price_of(request, plan, direct_permille, planner_typical_context(request, plan->context_tokens),
                      &price, err);
        if (!rc && (n == 2 || price.decode > worst->decode)) *worst = price;
    }
    return rc;
}

/* Whether the model's own programs price all half layers of the plan, as invariant plans run them and as
 * others do. */
static bool is_measured(const struct planner_request *request, const struct plan *plan)
{
    const struct programs *programs = request->profile ? request->profile->programs : NULL;
    if (!programs) return false;
    for (uint32_t u = 0; u < unit_count(plan->layers); u++) {
        const struct programs_kind *kind = programs_find(programs, programs_signature(request->model, u));
        const enum tensor_format format = plan_unit_format(plan, u);
        const enum programs_way way = format == FORMAT_BF16_PACKED ? PROGRAMS_PACKED : PROGRAMS_EXACT;
        if (!kind) return false;
        for (uint32_t p = 0; p < plan_phase_count(plan); p++) {
            const bool cpu = plan_home_processor(plan->unit[u].home[p]) == PLAN_CPU0;
            if (format != PLAN_AS_STORED && !(cpu && way == PROGRAMS_PACKED)) return false;
            const struct programs_times *both[2] = {cpu ? &kind->cpu[way] : &kind->gpu[PROGRAMS_GPU],
                                                    cpu ? &kind->cpu[way + PROGRAMS_INVARIANT]
                                                        : &kind->gpu[PROGRAMS_GPU_INVARIANT]};
            if (!both[0]->count || !both[1]->count) return false;
        }
    }
    return true;
}

static double percent(double part)
{
    return (part - 1) * PERCENT;
}

/* batch NULL: nothing was priced. several NULL: several sequences were not. */
static void tell(struct invariant *invariant, bool on, const char *why, const struct price *batch,
                 const struct price *several)
{
    char of_several[48] = "";
    if (several && several->sequences)
        snprintf(of_several, sizeof of_several, ", of %u sequences %+.1f %%", several->sequences,
                 percent(several->decode));
    if (batch)
        snprintf(invariant->text, sizeof invariant->text,
                 "%s: %s; as priced decode %s %+.1f %%%s, first token %+.1f %%", on ? "on" : "off", why,
                 on ? "takes" : "would take", percent(batch->decode), of_several, percent(batch->first));
    else
        snprintf(invariant->text, sizeof invariant->text, "%s: %s", on ? "on" : "off", why);
}

int invariant_decide(const struct planner_request *asked, bool given, struct plan *plan,
                     struct invariant *invariant, struct helm_err *err)
{
    /* Both sides by programs or both by rates, so that they have the same errors. */
    struct planner_request by_rates = *asked;
    struct profile rates = {.programs = NULL};
    const bool measured = is_measured(asked, plan),
               mixes = !measured && asked->profile && asked->profile->programs;
    const struct planner_request *const request = mixes ? &by_rates : asked;
    if (asked->profile) rates = *asked->profile, by_rates.profile = &rates;
    rates.programs = NULL;
    const uint32_t direct = plan->kv_direct_permille;
    if (plan_mixed_units(plan)) {
        if (invariant->option == INVARIANT_ON)
            return helm_fail(
                err, HELM_E_UNSUPPORTED,
                "--invariant on: the plan has experts of a layer in both memories, and which processor "
                "computes one depends on what came before");
        tell(invariant, false, "experts of a layer lie in both memories", NULL, NULL);
        return 0;
    }
    const bool was = plan->invariant;
    struct price batch = {.sequences = request->batch ? request->batch : 1, .decode = 1, .first = 1};
    struct price several = {.decode = 1};
    const bool priced = request->profile != NULL && !was;
    bool known = true;
    int rc = priced ? price_batch(asked, request, plan, direct, &batch, err) : 0;
    if (priced && !rc) rc = price_several(request, plan, direct, measured, &several, &known, err);
    if (rc) return rc;
    const char *why = "by configuration";
    bool on = invariant->option == INVARIANT_ON;
    if (invariant->option == INVARIANT_AUTO) {
        on = given ? was
                   : priced && known && batch.decode <= 1 + WORTH_CHANGE && batch.first <= 1 + WORTH_MUCH &&
                         several.decode <= 1 + WORTH_CHANGE;
        why = given   ? "as the plan says"
              : known ? "by price"
                      : "the profile does not say what several sequences take";
    }
    become(plan, on, direct);
    tell(invariant, on, why, priced ? &batch : NULL, known ? &several : NULL);
    return 0;
}
