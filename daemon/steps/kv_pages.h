/* Which pages of the host KV pool are free: a stack of page numbers with a reference count each.
 *
 * Called by batcher.c only. Owns its two arrays; page table rows belong to the arena and are
 * passed in. A page is written by whoever holds the only reference; a page with several references is
 * read-only (a shared prefix). Taking and dropping are O(1) and allocate nothing. A broken count is a broken
 * invariant: abort. */
#ifndef HELM_DAEMON_STEPS_KV_PAGES_H
#define HELM_DAEMON_STEPS_KV_PAGES_H

#include <stdint.h>

#include "common/base/err.h"

struct kv_pages {
    uint32_t count, free_count;
    uint32_t *stack;   /* [count]; the first free_count are free */
    uint16_t *holders; /* [count]; 0 = free */
};

HELM_MUST_CHECK int kv_pages_init(struct kv_pages *pages, uint32_t count, struct helm_err *err);
void kv_pages_free(struct kv_pages *pages);

/* Grows a sequence's row from *held to `want` pages, all or nothing: HELM_E_BUSY when too few are free. */
HELM_MUST_CHECK int kv_pages_grow(struct kv_pages *pages, uint32_t *row, uint32_t *held, uint32_t want);
/* Drops the references of row[want .. *held). */
void kv_pages_shrink(struct kv_pages *pages, const uint32_t *row, uint32_t *held, uint32_t want);
/* One more holder of a page that someone holds; HELM_E_LIMIT at 65535 holders. */
HELM_MUST_CHECK int kv_pages_share(struct kv_pages *pages, uint32_t page);
uint32_t kv_pages_holders(const struct kv_pages *pages, uint32_t page);

#endif
