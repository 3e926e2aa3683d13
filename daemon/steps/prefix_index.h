/* Which KV pages hold which tokens after which beginning: this lets a prompt find pages that are there.
 *
 * Called by kv_pages.c only, which says when a page becomes known, rests (has no holder) and is taken. A
 * known page has a number, given once and never again, and names the number of the page in front of it; of a
 * first page that is the caller's scope. So a page found by (number in front, tokens) has the very tokens of
 * its whole beginning, and no hash decides about that. Owns its arrays; allocates nothing after
 * prefix_index_init. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

#define PREFIX_NO_PAGE UINT32_MAX
/* Scopes are below, as many for each list of the plan; those of one sequence alone in the upper half, and in
 * the upper half of that those of its pages after its prompt; pages' numbers from here on. */
#define PREFIX_LIST_SCOPES   ((uint64_t)1 << 37)
#define PREFIX_OWN_SCOPES    ((uint64_t)1 << 40)
#define PREFIX_ANSWER_SCOPES (PREFIX_OWN_SCOPES + ((uint64_t)1 << 39))
#define PREFIX_SCOPES        ((uint64_t)1 << 41)

struct prefix_page {
    uint64_t number; /* 0: not known */
    uint64_t before;
    uint32_t next;         /* in its bucket */
    uint32_t older, newer; /* of those that rest */
    bool rests;
};

struct prefix_index {
    uint32_t page_tokens, mask; /* buckets - 1 */
    uint32_t resting;
    uint32_t oldest, newest;
    uint64_t key, next_number;
    struct prefix_page *page; /* [pages] */
    uint32_t *tokens;         /* [pages][page_tokens] */
    uint32_t *bucket;         /* [mask + 1] */
};

HELM_MUST_CHECK int prefix_index_init(struct prefix_index *index, uint32_t pages, uint32_t page_tokens,
                                      struct helm_err *err);
void prefix_index_free(struct prefix_index *index);

/* The page that holds these page_tokens tokens after `before`, or PREFIX_NO_PAGE. */
uint32_t prefix_index_find(const struct prefix_index *index, uint64_t before, const uint32_t *tokens);
/* The hash of (before, tokens), never 0; differs from daemon to daemon. */
uint64_t prefix_index_hash(const struct prefix_index *index, uint64_t before, const uint32_t *tokens);
static inline uint64_t prefix_index_number(const struct prefix_index *index, uint32_t page)
{
    return index->page[page].number;
}

/* `page` is not known, and no other page is known to hold this. Its number: a new one, or `number` if that is
 * not 0. */
uint64_t prefix_index_add(struct prefix_index *index, uint32_t page, uint64_t before, const uint32_t *tokens,
                          uint64_t number);
/* `page` is known; it rests no more. */
void prefix_index_remove(struct prefix_index *index, uint32_t page);

/* A known page has lost its last holder (rest), or has a holder again (wake). It rests as if it had come to
 * rest just before page `newer` did, if that rests. PREFIX_NO_PAGE: now. */
void prefix_index_rest_before(struct prefix_index *index, uint32_t page, uint32_t newer);
void prefix_index_wake(struct prefix_index *index, uint32_t page);
