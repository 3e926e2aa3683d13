/* Refusals with numbers. See attempt.h. Called by planner.c; owns nothing. */
#include "daemon/planner/attempt.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/units.h"
#include "daemon/planner/profile/planned.h"

/* Whether another strategy (or none of the device) would fit. */
static bool would_fit(struct making *m, enum search_strategy strategy, bool device, uint32_t ctx)
{
    const struct trying t = {.strategy = strategy, .device = device, .ctx = ctx};
    struct helm_err none = {0};
    bool required = m->required, fits;
    m->required = required && device;
    int rc = attempt_fits(m, &t, &fits, &none);
    m->required = required;
    return !rc && fits;
}

struct words {
    char text[200];
    size_t used;
};

static void add_words(struct words *w, const char *fmt, ...) HELM_PRINTF(2, 3);
static void add_words(struct words *w, const char *fmt, ...)
{
    va_list args;
    if (w->used && w->used + 5 < sizeof w->text)
        w->used += (size_t)snprintf(w->text + w->used, sizeof w->text - w->used, ", or ");
    va_start(args, fmt);
    int n = vsnprintf(w->text + w->used, sizeof w->text - w->used, fmt, args);
    va_end(args);
    if (n > 0) w->used += (size_t)n < sizeof w->text - w->used ? (size_t)n : sizeof w->text - w->used - 1;
}

/* Names the requests nearest to this one that would fit. */
static void name_nearest(struct making *m, const struct trying *t, const struct attempt *attempt,
                         struct words *would)
{
    char size[UNITS_TEXT], from[LEDGER_FROM_TEXT];
    uint64_t bytes;
    if (m->r->wish.ctx && !m->r->wish.page_count)
        for (uint32_t smaller = t->ctx / 2; smaller >= LEDGER_CTX_LEAST; smaller /= 2) {
            if (!would_fit(m, t->strategy, t->device, smaller)) continue;
            add_words(would, "--ctx %u", smaller);
            break;
        }
    if (attempt->vram != NEVER && attempt->vram &&
        !units_add(m->r->machine.device.limit, attempt->vram, &bytes))
        add_words(would, "%s of VRAM", units_format_size(bytes, size));
    if (attempt->host != NEVER && attempt->host &&
        !units_add(ledger_host_limit(&m->c, from), attempt->host, &bytes))
        add_words(would, "%s of host memory", units_format_size(bytes, size));
    if (t->device && t->strategy != SEARCH_BEST && would_fit(m, SEARCH_BEST, true, t->ctx))
        add_words(would, "--strategy best");
    if (t->device && would_fit(m, SEARCH_ALL_CPU, false, t->ctx))
        add_words(would, "--device cpu (helm-plan: --strategy all-cpu)");
    if (!would->used) add_words(would, "a smaller model");
}

int refusal_write(struct making *m, const struct trying *t, struct attempt *attempt, struct plan *plan,
                  struct helm_err *err)
{
    struct planner_refusal *refusal = m->r->refusal;
    struct words would = {.used = 0};
    char text[HELM_ERR_TEXT];
    int rc = attempt_nearest(m, t, attempt, plan, err);
    if (rc) return rc;
    if (!m->r->sizes_alone) name_nearest(m, t, attempt, &would);
    ledger_describe(&m->c, plan, text, sizeof text);
    bool host = plan->memory[PLAN_HOST].total > plan->memory[PLAN_HOST].limit;
    const struct ledger *ledger = host ? &plan->memory[PLAN_HOST] : &plan->memory[PLANNED_VRAM];
    uint64_t more = host ? attempt->host : attempt->vram, needed = ledger->total;
    if (more != NEVER && !units_add(ledger->limit, more, &more) && more > needed) needed = more;
    if (refusal) {
        *refusal = (struct planner_refusal){.refused = true,
                                            .what = host ? "host memory" : "VRAM",
                                            .needed = needed,
                                            .available = ledger->limit};
        snprintf(refusal->nearest, sizeof refusal->nearest, "%s", would.text);
    }
    if (!t->device)
        return helm_fail(err, HELM_E_CAPACITY,
                         "does not fit with a context of %u; nearest would be %s. All on the CPU: %.330s",
                         t->ctx, would.text, text);
    return helm_fail(err, HELM_E_CAPACITY,
                     "no plan (%s) fits with a context of %u; nearest would be %s. It %.330s",
                     search_strategy_name(t->strategy), t->ctx, would.text, text);
}
