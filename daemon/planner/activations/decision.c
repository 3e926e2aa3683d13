/* The choice of activations over a start. See decision.h. */
#include "daemon/planner/activations/decision.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/cpu/kernels/linear.h"

static void say(struct activations *a, const char *fmt, ...) HELM_PRINTF(2, 3);
static void say(struct activations *a, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(a->text, sizeof a->text, fmt, ap);
    va_end(ap);
}

#define ROUNDING_TEXT 32
/* "cpu", "cpu and gpu" */
static const char *rounding(const enum linear_inputs inputs[PLAN_PROCESSORS], char text[ROUNDING_TEXT])
{
    text[0] = '\0';
    for (int p = 0; p < PLAN_PROCESSORS; p++) {
        const size_t at = strlen(text);
        if (inputs[p] == LINEAR_INT8)
            snprintf(text + at, ROUNDING_TEXT - at, "%s%s", at ? " and " : "",
                     plan_processor_name((enum plan_processor)p));
    }
    return text;
}

void activations_want(const struct model *model, const struct profile *profile, unsigned features,
                      struct activations *a)
{
    char on[ROUNDING_TEXT];
    for (int p = 0; p < PLAN_PROCESSORS; p++) /* of a device, the profile knows */
        a->can[p] = activations_gain(model, profile, (enum plan_processor)p) > 0;
    for (int f = 0; f < FORMAT_COUNT; f++)
        if (model_formats(model) & format_bit((enum tensor_format)f))
            a->can[PLAN_CPU0] |= linear_has_int8((enum tensor_format)f, features);
    activations_choose(a->option, model, profile, a->can, a->inputs);
    if (a->option == ACTIVATIONS_EXACT) {
        say(a, "exact, as asked");
    } else if (!activations_any(a->inputs)) {
        say(a, "exact: %s",
            a->option == ACTIVATIONS_INT8 ? "this model and machine have no products with int8"
                                          : "int8 would gain nothing by what the profile says");
    } else {
        say(a, "int8 on %s, once the model's own check has passed", rounding(a->inputs, on));
    }
}

void activations_take(struct plan *plan, struct activations *a)
{
    for (int p = 0; p < PLAN_PROCESSORS; p++) {
        if (a->option == ACTIVATIONS_AUTO && !a->decided)
            a->inputs[p] = a->can[p] ? plan->inputs[p] : LINEAR_EXACT;
        plan->inputs[p] = a->inputs[p];
    }
}

/* The decision once the check has a verdict, or could not be made (v NULL). */
static void settle(const struct verdict *v, const struct plan *plan, struct activations *a, bool *again)
{
    const bool asked = a->option == ACTIVATIONS_INT8, passes = v && verdict_passes(v);
    char on[ROUNDING_TEXT], found[160] = "it could not be checked";
    rounding(plan->inputs, on);
    if (v)
        snprintf(found, sizeof found,
                 "KL divergence %.3g over %u positions, %u of them with one token a step (%s at most %g)",
                 verdict_kl(v), v->positions, v->one_positions, asked ? "auto takes" : "allowed is",
                 VERDICT_KL_MAX);
    *again = !asked && !passes;
    a->checks = a->waits = false;
    a->decided = true;
    if (*again) {
        for (int p = 0; p < PLAN_PROCESSORS; p++) a->inputs[p] = LINEAR_EXACT;
        say(a, "exact: int8 on %s would be faster, but: %s", on, found);
    } else {
        say(a, "int8 on %s%s: %s", on, asked ? ", as asked" : "", found);
    }
}

void activations_look(const struct model *model, const struct plan *plan, struct activations *a, bool *again)
{
    const uint32_t units = activations_units(plan, model);
    struct verdict verdict;
    struct helm_err err = {0};
    char on[ROUNDING_TEXT];
    *again = false;
    if (!units) {
        if (strncmp(a->text, "exact", strlen("exact")) != 0)
            say(a, "exact: the plan multiplies no blocks with int8");
        return;
    }
    int rc = verdict_key(model, a->kernels, a->key, &err);
    if (!rc) rc = verdict_read(a->key, &verdict, &err);
    if (!rc && verdict_holds(&verdict, units)) {
        settle(&verdict, plan, a, again);
        return;
    }
    if (rc && rc != HELM_E_NOT_FOUND) log_warn("activations: %s", err.text);
    if (!rc && verdict.units == units && !verdict_says_enough(&verdict)) a->before = verdict;
    a->checks = true;
    say(a, "int8 on %s, once the model's own check has passed", rounding(plan->inputs, on));
}

static void keep(const struct verdict *verdict, const struct activations *a)
{
    struct helm_err err = {0};
    if (a->key[0] && verdict_write(a->key, verdict, &err))
        log_warn("activations: what the check found cannot be kept, the next start checks again: %s",
                 err.text);
}

void activations_wait(const struct plan *plan, const struct verdict *verdict, struct activations *a)
{
    const bool asked = a->option == ACTIVATIONS_INT8, first = !a->waits;
    char on[ROUNDING_TEXT];
    rounding(plan->inputs, on);
    a->checks = false;
    a->waits = true;
    a->exact = !asked;
    say(a,
        asked ? "int8 on %s, as asked; the check goes on between requests (%u of %d positions so far)"
              : "exact until the check of int8 on %s has ended: it goes on between requests (%u of %d "
                "positions so far)",
        on, verdict->positions, VERDICT_LEAST);
    if (first) log_info("activations: %s", a->text);
    if (verdict->positions) keep(verdict, a);
}

bool activations_decide_between(const struct plan *plan, const struct verdict *verdict, struct activations *a)
{
    const bool exact = a->exact;
    bool fails;
    activations_decide(plan, verdict, a, &fails);
    if (exact && !fails && plan->invariant)
        say(a, "exact until the next start, since the plan is invariant; int8 has passed the check");
    if (fails || plan->invariant) log_info("activations: %s", a->text);
    a->exact = exact && (fails || plan->invariant);
    return exact && !a->exact;
}

void activations_decide(const struct plan *plan, const struct verdict *verdict, struct activations *a,
                        bool *again)
{
    settle(verdict, plan, a, again);
    if (verdict) keep(verdict, a);
    if (!*again) log_info("activations: %s", a->text); /* else with the plan */
}
