/* Refusals with numbers. See candidate.h. Called by planner.c; owns nothing. */
#include "daemon/planner/ideas.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/units.h"

#define GROW_PARTS (2 * PLANNER_TRIES) /* it grows by one of so many, where the search says no number */

/* ---- by how much ---- */

static void raise_limits(struct making *m, uint64_t vram, uint64_t host)
{
    char from[LEDGER_FROM_TEXT];
    m->machine = m->r->machine;
    m->wish.host_memory_bytes = m->r->wish.host_memory_bytes;
    if (units_add(m->machine.device.limit, vram, &m->machine.device.limit))
        m->machine.device.limit = UINT64_MAX;
    if (!host) return;
    uint64_t limit = ledger_host_limit(&m->c, from);
    m->wish.host_memory_bytes = 0;
    m->machine.memory.available_bytes = limit + host;
}

struct growing {
    struct making *m;
    const struct spec *spec;
    const struct memory_wish *wish;
    const struct cost_table *prices;
    struct candidate *made; /* scratch, whose plan is the last one that fits */
};

/* By how much one limit has to grow: at least what the search said, and as much more as it still asks for;
 * where that is nothing though it found no plan (its number is a bound), a part of what it was. */
static int grow(const struct growing *g, bool vram, uint64_t *more, struct helm_err *err)
{
    for (uint32_t tries = 0; tries < PLANNER_TRIES && *more != NEVER; tries++) {
        raise_limits(g->m, vram ? *more : 0, vram ? 0 : *more);
        int rc = candidate_search(g->m, g->spec, g->wish, g->prices, g->made, err);
        if (rc || g->made->fits) return rc;
        uint64_t next = vram ? g->made->vram : g->made->host;
        if (next == 0) next = *more / GROW_PARTS + MIB;
        if (next == NEVER || units_add(*more, next, more)) break;
    }
    *more = NEVER;
    return 0;
}

/* By how much each limit really would have to grow, into *more, and the ledgers of the plan that would be
 * made then, into *c. */
static int find_nearest(struct making *m, const struct spec *spec, struct candidate *more,
                        struct candidate *c, struct helm_err *err)
{
    struct spec at = *spec;
    struct cost_table prices;
    struct arena_spec arena;
    at.packing = more->packing == PACKING_NONE ? PACKING_NONE : PACKING_ALL;
    m->wish.step_tokens = m->asked.step_tokens ? m->asked.step_tokens : LEDGER_STEP_TOKENS;
    m->wish.pack_cpu = candidate_packs_cpu(m, &at);
    m->wish.pack_gpu = at.packing != PACKING_NONE;
    const struct memory_wish wish = making_memory_wish(m, &at);
    int rc = making_price_packing(m, &at, &prices, err);
    if (rc) return rc;
    const struct growing g = {.m = m, .spec = &at, .wish = &wish, .prices = &prices, .made = c};
    rc = grow(&g, false, &more->host, err);
    if (!rc) rc = grow(&g, true, &more->vram, err);
    if (!rc && more->vram > more->host) /* the plan that is described is that of the lesser growth */
        rc = grow(&g, false, &more->host, err);
    if (!rc && more->vram == NEVER && more->host == NEVER) {
        const uint64_t plenty = PLAN_BYTES_MAX / PLAN_MEMORIES; /* all memories' together are a plan's, too */
        raise_limits(m, spec->device ? plenty : 0, plenty);
        rc = candidate_search(m, &at, &wish, &prices, c, err);
        if (!rc && !c->fits)
            rc = helm_fail(err, HELM_E_INTERNAL, "no plan fits, however much memory there were");
    }
    cost_table_free(&prices);
    raise_limits(m, 0, 0);
    return rc ? rc
              : ledger_write(&m->c, spec->ctx, ledger_least_pages(&m->c, spec->ctx), &c->plan, &arena, err);
}

/* ---- which other requests would fit ---- */

/* Whether another strategy (or none of the device) would fit. */
static bool would_fit(struct making *m, enum search_strategy strategy, bool device, uint32_t ctx)
{
    const struct spec t = {.strategy = strategy, .device = device, .ctx = ctx};
    struct helm_err none = {0};
    bool required = m->required, fits;
    m->required = required && device;
    int rc = ideas_fit(m, &t, &fits, &none);
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
    if (w->used && w->used + sizeof ", or " <= sizeof w->text)
        w->used += (size_t)snprintf(w->text + w->used, sizeof w->text - w->used, ", or ");
    va_start(args, fmt);
    int n = vsnprintf(w->text + w->used, sizeof w->text - w->used, fmt, args);
    va_end(args);
    if (n > 0) w->used += (size_t)n < sizeof w->text - w->used ? (size_t)n : sizeof w->text - w->used - 1;
}

/* Names the requests nearest to this one that would fit. */
static void name_nearest(struct making *m, const struct spec *t, const struct candidate *more,
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
    if (more->vram != NEVER && more->vram && !units_add(m->r->machine.device.limit, more->vram, &bytes))
        add_words(would, "%s of VRAM", units_format_size(bytes, size));
    if (more->host != NEVER && more->host && !units_add(ledger_host_limit(&m->c, from), more->host, &bytes))
        add_words(would, "%s of host memory", units_format_size(bytes, size));
    if (t->strategy == SEARCH_BEST || t->strategy == SEARCH_ALL_CPU) {
        struct helm_err none;
        const uint64_t has = ledger_host_limit(&m->c, from), without = more->host;
        if (!disk_least_host(m, t->ctx, t->device, &bytes, &none) && bytes > has && bytes - has < without)
            add_words(would, "%s of host memory with %s on disk", units_format_size(bytes, size),
                      m->r->model->config.router.experts ? "experts" : "layers");
    }
    if (t->device && t->strategy != SEARCH_BEST && would_fit(m, SEARCH_BEST, true, t->ctx))
        add_words(would, "--strategy best");
    if (t->device && would_fit(m, SEARCH_ALL_CPU, false, t->ctx))
        add_words(would, "--device cpu (helm-plan: --strategy all-cpu)");
    if (!would->used) add_words(would, "a smaller model");
}

int refusal_write(struct making *m, const struct spec *t, struct candidate *c, struct helm_err *err)
{
    struct planner_refusal *refusal = m->r->refusal;
    struct words would = {.used = 0};
    char text[HELM_ERR_TEXT];
    struct candidate least = {.packing = c->packing, .vram = c->vram, .host = c->host}, *more = &least;
    const struct plan *plan = &c->plan;
    int rc = find_nearest(m, t, more, c, err);
    if (rc) return rc;
    c->fits = false;
    if (!m->r->sizes_alone) name_nearest(m, t, more, &would);
    const bool host = ledger_refused(plan) == PLAN_HOST;
    const struct ledger *ledger = &plan->memory[ledger_refused(plan)];
    uint64_t enough = host ? more->host : more->vram, needed = ledger->total;
    const int used = snprintf(text, sizeof text, "%s", t->device ? ". It " : ". All on the CPU: ");
    ledger_describe(&m->c, plan, text + used, 332);
    if (ledger->total <= ledger->limit) *text = 0; /* no search came as far as to count */
    if (enough != NEVER && !units_add(ledger->limit, enough, &enough) && enough > needed) needed = enough;
    if (refusal) {
        *refusal = (struct planner_refusal){.refused = true,
                                            .what = host ? "host memory" : "VRAM",
                                            .needed = needed,
                                            .available = ledger->limit};
        snprintf(refusal->nearest, sizeof refusal->nearest, "%s", would.text);
    }
    if (!t->device)
        return helm_fail(err, HELM_E_CAPACITY, "does not fit with a context of %u; nearest would be %s%s",
                         t->ctx, would.text, text);
    return helm_fail(err, HELM_E_CAPACITY, "no plan (%s) fits with a context of %u; nearest would be %s%s",
                     search_strategy_name(t->strategy), t->ctx, would.text, text);
}
