/* Pages of windows: which of them holds the cells of which page of the KV pool, for layers that keep a window
 * (docs/state.md).
 *
 * Called by kv_pages.c (a page is known no more), prefix.c (sequences) and sessions.c; belongs to struct
 * kv_pages. A sequence holds the pages of windows that its next token sees, and those that its steps append
 * to. They stand in a page table after the other one, with the same index. A page that has left the window is
 * given up. While the page of the KV pool that it belongs to is known, it *rests*: a sequence with the same
 * tokens finds both. If no page is empty, one that rests is taken from its page of the pool, which stays
 * known without it. So a prompt can go on where all pages are known, and the last of them, as many as a
 * window needs, have their pages of windows. Where no layer keeps a window all of this is off. Owns its
 * arrays. A broken count is a broken invariant: abort. */
#pragma once

#include "common/plan/plan.h"
#include "daemon/steps/prefix_index.h"

#define WINDOWS_NONE UINT32_MAX

struct window_page {
    uint32_t page; /* of the KV pool, whose positions it has; WINDOWS_NONE: of no page that is found */
    uint32_t holders;
    uint32_t older, newer; /* of those that rest */
};

struct windows {
    bool on;
    uint32_t tokens, kept; /* plan.h; plan_window_kept */
    uint32_t page_tokens;
    uint32_t distance;                   /* from an entry of a page table to that of the same page's window */
    uint32_t count, free_count, resting; /* free: without holders */
    uint32_t oldest, newest;             /* of those that rest: the oldest is taken first */
    uint64_t dropped;                    /* that rested and were taken for others */
    uint32_t *stack;                     /* [count]; the first free_count - resting are empty */
    uint32_t *of;                        /* [pages of the KV pool] its page of windows; WINDOWS_NONE */
    struct window_page *at;              /* [count] */
    const struct prefix_index *known;    /* borrowed: which pages of the KV pool are known */
};

/* distance: in a page table. On if the plan has pages of windows. */
HELM_MUST_CHECK int windows_init(struct windows *w, const struct plan *plan, const struct prefix_index *known,
                                 uint32_t distance, struct helm_err *err);
void windows_free(struct windows *w);

static inline bool windows_has(const struct windows *w, uint32_t page)
{
    return w->on && w->of[page] != WINDOWS_NONE;
}
/* Empty pages for entries [from, to) of a sequence's row, whose pages are new. */
void windows_grow(struct windows *w, uint32_t *row, uint32_t from, uint32_t to);
/* Those of known pages that have one. */
void windows_share(struct windows *w, uint32_t *row, uint32_t from, uint32_t to);
/* Gives up those of entries [from, to). stay: those that rest are the newest; else the first that are
 * taken. */
void windows_leave(struct windows *w, const uint32_t *row, uint32_t from, uint32_t to, bool stay);

/* Single pages of windows, for sessions. An empty one, held; WINDOWS_NONE: all are held. */
uint32_t windows_take_empty(struct windows *w);
/* It has the cells of `page`, which is known. */
void windows_attach(struct windows *w, uint32_t i, uint32_t page);
/* A page's, which has one, is held; and given up. */
uint32_t windows_hold(struct windows *w, uint32_t page);
void windows_let(struct windows *w, uint32_t i, bool stay);

/* `page` is known no more, or about to become other positions'. */
void windows_forget(struct windows *w, uint32_t page);
/* `page` is not known, but `other` for the same tokens: it has the page of windows from now on, unless it has
 * one. */
void windows_move(struct windows *w, uint32_t page, uint32_t other);
