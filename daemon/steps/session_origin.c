/* What decides the numbers of an invariant plan's pages. See session_origin.h. Called by sessions.c; owns nothing. */
#include "daemon/steps/session_origin.h"

#include <string.h>

#include "common/model/content.h"
#include "common/plan/schedule.h"

static uint64_t add(uint64_t digest, const void *bytes, size_t count)
{
    return content_of(bytes, count, digest);
}

static uint64_t add_number(uint64_t digest, uint64_t number)
{
    return add(digest, &number, sizeof number);
}

static uint64_t add_text(uint64_t digest, const char *text)
{
    return add(digest, text, strlen(text) + 1);
}

/* Where each unit of a list lies, and as what. */
static uint64_t add_list(uint64_t digest, const struct plan *plan, uint32_t list)
{
    enum plan_home home[UNIT_PARTS * MODEL_LAYERS_MAX];
    plan_unit_homes(plan, list, home);
    for (uint32_t u = 0; u < unit_count(plan->layers); u++) {
        digest = add_number(digest, home[u]);
        digest = add_number(digest, plan_unit_format(plan, u));
    }
    return digest;
}

uint64_t session_origin_of(const struct plan *plan, const struct workers *workers, uint32_t list, bool exact)
{
    uint64_t digest = add_text(0, HELM_VERSION);
    if (!plan->invariant) return 0;
    for (uint32_t i = 0; i < workers->count; i++) {
        digest = add_text(digest, workers->worker[i].kernels);
        digest = add_text(digest, workers->worker[i].device);
    }
    digest = add_list(digest, plan, plan_list_phase(plan, list));
    digest = add_number(digest, list);
    digest = add_number(digest, plan->step_tokens);
    digest = add_number(digest, plan->embed);
    for (int p = 0; p < PLAN_PROCESSORS; p++)
        digest = add_number(digest, exact ? LINEAR_EXACT : plan->inputs[p]);
    return digest ? digest : 1;
}
