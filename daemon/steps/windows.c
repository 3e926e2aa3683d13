/* Pages of windows. See windows.h. Called from the one loop; owns the stack, the counts and the list of those
 * that rest. */
#include "daemon/steps/windows.h"

#include <stdlib.h>

#include "common/base/log.h"
#include "common/plan/state.h"

static void windows_broken(const char *what, uint32_t page)
{
    log_error("windows: %s (page %u): aborting", what, page);
    abort();
}

int windows_init(struct windows *w, const struct plan *plan, const struct prefix_index *known,
                 uint32_t distance, struct helm_err *err)
{
    const uint32_t count = plan->window_page_count;
    *w = (struct windows){.on = count > 0,
                          .tokens = plan->window_tokens,
                          .kept = plan_window_kept(plan),
                          .page_tokens = plan->page_tokens,
                          .distance = distance,
                          .count = count,
                          .free_count = count,
                          .oldest = WINDOWS_NONE,
                          .newest = WINDOWS_NONE,
                          .known = known};
    if (!w->on) return 0;
    w->stack = malloc(count * sizeof *w->stack);
    w->of = malloc(plan->page_count * sizeof *w->of);
    w->at = malloc(count * sizeof *w->at);
    if (!w->stack || !w->of || !w->at) {
        windows_free(w);
        return helm_fail(err, HELM_E_NOMEM, "no memory to track %u pages of windows", count);
    }
    for (uint32_t i = 0; i < count; i++) w->stack[i] = count - 1 - i;
    for (uint32_t i = 0; i < count; i++) w->at[i] = (struct window_page){.page = WINDOWS_NONE};
    for (uint32_t i = 0; i < plan->page_count; i++) w->of[i] = WINDOWS_NONE;
    return 0;
}

void windows_free(struct windows *w)
{
    free(w->stack);
    free(w->of);
    free(w->at);
    *w = (struct windows){0};
}

/* ---- those that rest ---- */

static void link_between(struct windows *w, uint32_t i, uint32_t older, uint32_t newer)
{
    w->at[i].older = older;
    w->at[i].newer = newer;
    *(older == WINDOWS_NONE ? &w->oldest : &w->at[older].newer) = i;
    *(newer == WINDOWS_NONE ? &w->newest : &w->at[newer].older) = i;
    w->resting++;
}

static void unlink_page(struct windows *w, uint32_t i)
{
    const uint32_t older = w->at[i].older, newer = w->at[i].newer;
    *(older == WINDOWS_NONE ? &w->oldest : &w->at[older].newer) = newer;
    *(newer == WINDOWS_NONE ? &w->newest : &w->at[newer].older) = older;
    w->resting--;
}

/* It has no holder and belongs to no page. */
static void push(struct windows *w, uint32_t i)
{
    w->stack[w->free_count - w->resting - 1] = i;
}

static void detach(struct windows *w, uint32_t i)
{
    if (w->at[i].page != WINDOWS_NONE) w->of[w->at[i].page] = WINDOWS_NONE;
    w->at[i].page = WINDOWS_NONE;
}

void windows_forget(struct windows *w, uint32_t page)
{
    if (!windows_has(w, page)) return;
    const uint32_t i = w->of[page];
    detach(w, i);
    if (w->at[i].holders) return;
    unlink_page(w, i);
    push(w, i);
}

void windows_move(struct windows *w, uint32_t page, uint32_t other)
{
    if (!windows_has(w, page) || windows_has(w, other)) return;
    const uint32_t i = w->of[page];
    detach(w, i);
    w->at[i].page = other;
    w->of[other] = i;
}

/* ---- holders ---- */

uint32_t windows_take_empty(struct windows *w)
{
    if (!w->free_count) return WINDOWS_NONE;
    if (w->free_count == w->resting) {
        windows_forget(w, w->at[w->oldest].page);
        w->dropped++;
    }
    const uint32_t i = w->stack[--w->free_count - w->resting];
    if (i >= w->count || w->at[i].holders) windows_broken("an empty page has a holder", i);
    w->at[i] = (struct window_page){.page = WINDOWS_NONE, .holders = 1};
    return i;
}

void windows_attach(struct windows *w, uint32_t i, uint32_t page)
{
    windows_forget(w, page);
    w->at[i].page = page;
    w->of[page] = i;
}

uint32_t windows_hold(struct windows *w, uint32_t page)
{
    if (!windows_has(w, page)) windows_broken("a page that is gone on after has none", page);
    const uint32_t i = w->of[page];
    if (w->at[i].holders++ == 0) {
        unlink_page(w, i);
        w->free_count--;
    }
    return i;
}

void windows_let(struct windows *w, uint32_t i, bool stay)
{
    if (i >= w->count || !w->at[i].holders) windows_broken("a dropped page has no holder", i);
    if (--w->at[i].holders) return;
    w->free_count++;
    if (w->at[i].page != WINDOWS_NONE && prefix_index_number(w->known, w->at[i].page)) {
        link_between(w, i, stay ? w->newest : WINDOWS_NONE, stay ? WINDOWS_NONE : w->oldest);
        return;
    }
    detach(w, i);
    push(w, i);
}

/* ---- sequences ---- */

void windows_grow(struct windows *w, uint32_t *row, uint32_t from, uint32_t to)
{
    for (; w->on && from < to; from++) {
        const uint32_t i = windows_take_empty(w);
        if (i == WINDOWS_NONE) windows_broken("no page is left for", row[from]);
        windows_attach(w, i, row[from]);
        row[w->distance + from] = i;
    }
}

void windows_share(struct windows *w, uint32_t *row, uint32_t from, uint32_t to)
{
    for (; w->on && from < to; from++) row[w->distance + from] = windows_hold(w, row[from]);
}

void windows_leave(struct windows *w, const uint32_t *row, uint32_t from, uint32_t to, bool stay)
{
    for (; w->on && from < to; from++) windows_let(w, row[w->distance + from], stay);
}
