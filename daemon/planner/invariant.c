/* The choice of an invariant plan. See invariant.h. */
#include "daemon/planner/invariant.h"

#include <stdio.h>
#include <string.h>

enum invariant_option invariant_option_named(const char *name)
{
    static const char *const names[INVARIANT_OPTIONS] = {"auto", "on", "off"};
    for (int i = 0; i < INVARIANT_OPTIONS; i++)
        if (strcmp(name, names[i]) == 0) return (enum invariant_option)i;
    return INVARIANT_AUTO;
}

/* What the CPU attends to of a cache in two tiers depends on how much room in VRAM a sequence has. */
static void become(struct plan *plan, bool invariant, uint32_t direct_permille)
{
    plan->invariant = invariant;
    plan->kv_direct_permille = invariant && plan_kv_tiered(plan) ? 1000 : direct_permille;
}

static int predict(const struct planner_request *request, const struct plan *plan,
                   struct planner_prediction *prediction, struct helm_err *err)
{
    return planner_predict(request, plan, request->batch ? request->batch : 1,
                           planner_typical_context(request, plan->context_tokens),
                           request->prompt ? request->prompt : PLANNER_PROMPT_TOKENS, prediction, err);
}

static double percent(double part)
{
    return (part - 1) * 100;
}

int invariant_decide(const struct planner_request *request, bool given, struct plan *plan,
                     struct invariant *invariant, struct helm_err *err)
{
    const uint32_t direct = plan->kv_direct_permille;
    const bool was = plan->invariant;
    struct planner_prediction with, without;
    double decode = 1, first = 1;
    const bool priced = request->profile != NULL && !was;
    if (priced) {
        int rc = predict(request, plan, &without, err);
        become(plan, true, direct);
        if (!rc) rc = predict(request, plan, &with, err);
        if (rc) return rc;
        decode = with.decode.seconds / without.decode.seconds;
        first = with.ttft.seconds / without.ttft.seconds;
    }
    const char *why = "by configuration";
    bool on = invariant->option == INVARIANT_ON;
    const bool several = request->batch > INVARIANT_BATCH && plan_most_tokens(plan, PLAN_CPU0) > 0;
    if (invariant->option == INVARIANT_AUTO) {
        on = given ? was : !several && decode <= INVARIANT_DECODE && first <= INVARIANT_PREFILL;
        why = given     ? "as the plan says"
              : several ? "several sequences would be slower on the CPU"
                        : "by price";
    }
    become(plan, on, direct);
    if (priced)
        snprintf(invariant->text, sizeof invariant->text,
                 "%s: %s; as priced decode %s %+.1f %%, first token %+.1f %%", on ? "on" : "off", why,
                 on ? "takes" : "would take", percent(decode), percent(first));
    else
        snprintf(invariant->text, sizeof invariant->text, "%s: %s", on ? "on" : "off", why);
    return 0;
}
