/* The pages of the KV pool and their holders: a reference count a page, a stack of empty pages, and pages
 * without a holder that are known by their tokens (prefix_index.h).
 *
 * Called by batcher.c and prefix.c. Owns its arrays; page table rows belong to the arena and are passed in. A
 * page with several holders, or a known one, is full and never written again: a sequence that is given one
 * goes on after it, in a page of its own, so there is no copy on write. A known page without holders counts
 * as free. Known pages are reused when the stack is empty, the one that was left longest ago first; of pages
 * left together the later ones of a sequence first, since a page is found only after those in front of it.
 * Taking and dropping are O(1) and allocate nothing. A broken count is a broken invariant: abort. */
#pragma once

#include <stdint.h>

#include "common/base/err.h"
#include "daemon/steps/prefix_index.h"
#include "daemon/steps/windows.h"

struct kv_pages {
    uint32_t count, free_count; /* free: without holders, known or not */
    uint32_t *stack;            /* [count]; the first free_count - known.resting are empty */
    uint16_t *holders;          /* [count]; 0 = free */
    struct prefix_index known;
    struct windows windows; /* of layers that keep a window; off until windows_init */
    uint64_t evicted;       /* known pages that were emptied for others */
};

HELM_MUST_CHECK int kv_pages_init(struct kv_pages *pages, uint32_t count, uint32_t page_tokens,
                                  struct helm_err *err);
void kv_pages_free(struct kv_pages *pages);

/* Grows a sequence's row from *held to `want` pages, all or nothing: HELM_E_BUSY when too few are free. */
HELM_MUST_CHECK int kv_pages_grow(struct kv_pages *pages, uint32_t *row, uint32_t *held, uint32_t want);
/* Drops the references of row[want .. *held). */
void kv_pages_shrink(struct kv_pages *pages, const uint32_t *row, uint32_t *held, uint32_t want);
uint32_t kv_pages_holders(const struct kv_pages *pages, uint32_t page);

/* Grows the row by known pages that hold `tokens`, page_tokens each, after *end (the number of the page in
 * front of them, or the scope), up to `want` pages and as far as there are any. Moves *end on. */
void kv_pages_take_known(struct kv_pages *pages, uint32_t *row, uint32_t *held, uint32_t want,
                         const uint32_t *tokens, uint64_t *end);
/* How many of `count` pages of tokens would be shared: known and held, up to the first that is not. */
uint32_t kv_pages_shared(const struct kv_pages *pages, uint32_t count, const uint32_t *tokens, uint64_t end);
/* A page that the caller holds has these tokens, all of them computed. Its number, or that of the other page
 * which is known for the same; a page that rests gives its place to the one that is held. */
uint64_t kv_pages_make_known(struct kv_pages *pages, uint32_t page, uint64_t before, const uint32_t *tokens);
/* How many of `count` pages of tokens are known after `end`, held or not. */
uint32_t kv_pages_known(const struct kv_pages *pages, uint32_t count, const uint32_t *tokens, uint64_t end);

/* For sessions, which hold a page only while it is copied. An empty page, held; PREFIX_NO_PAGE where none is
 * free, or that would empty page `last`, which is the last of those that were laid down before it. */
uint32_t kv_pages_take_empty(struct kv_pages *pages, uint32_t last);
/* Drops one reference. A known page that loses its last holder is reused just before page `front`, which is
 * in front of it; PREFIX_NO_PAGE: none. */
void kv_pages_leave(struct kv_pages *pages, uint32_t page, uint32_t front);

/* The page is not found any more; its holders keep it. */
void kv_pages_forget(struct kv_pages *pages, uint32_t page);
void kv_pages_forget_all(struct kv_pages *pages);
