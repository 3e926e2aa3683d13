/* The shape of a session's pages, and what decides the numbers of an invariant plan's. See session_origin.h.
 * Called by sessions.c; owns nothing. */
#include "daemon/steps/session_origin.h"

#include <stdio.h>
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
    for (uint32_t u = 0; u < unit_count(plan->layers); u++) {
        digest = add_number(digest, plan->unit[u].home[list]);
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

bool session_origin_list(const struct plan *plan, const struct workers *workers, uint64_t origin, bool exact,
                         uint32_t *list)
{
    *list = 0;
    if (!plan->invariant) return true;
    for (; *list < plan_list_count(plan); ++*list)
        if (session_origin_of(plan, workers, *list, exact) == origin) return true;
    return false;
}

bool session_shape_differs(const struct request_shape *from, const struct request_shape *to, char *text,
                           size_t room)
{
    const struct {
        const char *what;
        uint32_t from, to;
    } numbers[] = {{"layers", from->layers, to->layers},
                   {"KV heads", from->kv_heads, to->kv_heads},
                   {"head_dim", from->head_dim, to->head_dim},
                   {"tokens in a page", from->page_tokens, to->page_tokens}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (numbers[i].from == numbers[i].to) continue;
        snprintf(text, room, "the session has %u %s, this daemon %u", numbers[i].from, numbers[i].what,
                 numbers[i].to);
        return true;
    }
    if (strcmp(from->kv_dtype, to->kv_dtype) != 0)
        snprintf(text, room, "the session's KV cache is of %s, this daemon's of %s", from->kv_dtype,
                 to->kv_dtype);
    else if (strcmp(from->weights, to->weights) != 0)
        snprintf(text, room, "the session's weights were converted to '%s', this daemon's to '%s'",
                 from->weights, to->weights);
    else if (from->model != to->model)
        snprintf(text, room, "the session is of model %016llx, this daemon serves model %016llx",
                 (unsigned long long)from->model, (unsigned long long)to->model);
    else
        return false;
    return true;
}
