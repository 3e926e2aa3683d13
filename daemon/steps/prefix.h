/* A sequence's beginning that is in the KV pool already: found, and left there for others.
 *
 * Called by batcher.c. A page is known as soon as the step that filled it has succeeded, while its sequence
 * still runs; so prompts that begin alike share what the first of them has computed so far. Only full pages
 * are shared, and at least the last known token is always computed, since its logits are wanted. Pages of a
 * sequence that is `apart` are shared up to the last that its prompt fills; those after it are known only to
 * itself, after it had to give its slot away, in a scope of their own. Where a model has fixed states, pages
 * are shared up to the last whose end has a snapshot (snapshots.h), which the sequence begins with; where
 * layers keep a window, up to the last whose window is there (windows.h). Owns nothing. */
#pragma once

#include "daemon/steps/kv_pages.h"
#include "daemon/steps/sequence.h"
#include "daemon/steps/snapshots.h"

/* --prefix-cache: which clients share pages. */
enum prefix_sharing {
    PREFIX_OFF,
    PREFIX_ON,   /* all clients */
    PREFIX_PEER, /* clients of the same user (or CURVE key) each other's */
    PREFIX_SHARINGS
};
const char *prefix_sharing_name(enum prefix_sharing sharing);

/* Where a peer's sequences look for pages. list: that their prompts are computed by (sequence.h), which makes
 * other numbers of the same tokens; 0 where a plan does not tell. */
uint64_t prefix_scope(enum prefix_sharing sharing, uint64_t peer, uint32_t list);
/* The scope of pages of sessions that a peer restored: found by its own requests alone, since helmd cannot
 * tell whether the pages are what the model makes of their tokens. SEQUENCE_NO_SCOPE: nothing is restored. */
uint64_t prefix_restored_scope(enum prefix_sharing sharing, uint64_t peer, uint32_t list);
/* Whole pages of tokens, one after another. */
struct prefix_run {
    const uint32_t *tokens;
    uint32_t count; /* pages */
    uint32_t edge;  /* before this one is `edge_scope`, whatever is in front of it; UINT32_MAX: before none */
    uint64_t edge_scope;
    uint32_t front,
        windows; /* pages in front of the run; how many of the last of them have a page of windows */
};
/* How many pages of the run a sequence can go on after whose last page, or scope, is `end`: those that are
 * known, with fixed states up to the last that has a snapshot, which is *snapshot; with windows up to the
 * last in front of which a window is. */
uint32_t prefix_reached(const struct kv_pages *pages, const struct snapshots *snapshots,
                        const struct prefix_run *run, uint64_t end, uint32_t *snapshot);
/* The one of two scopes, either of which may be SEQUENCE_NO_SCOPE, in which more of the run is reached; the
 * first one on a tie. */
uint64_t prefix_better_scope(const struct kv_pages *pages, const struct snapshots *snapshots,
                             const struct prefix_run *run, const uint64_t scope[2]);

/* `row`: the sequence's of the page table. */

/* It has no pages: before its first slot, or anew. */
void prefix_begin(struct sequence *seq);
/* Gives a sequence of which no step is in flight the known pages that go on where it stands, in place of one
 * that it has begun. True: there were any. */
bool prefix_take(struct kv_pages *pages, struct snapshots *snapshots, uint32_t *row, struct sequence *seq);
/* The number of pages held by others that a sequence without a slot would be given. */
uint32_t prefix_shared(const struct kv_pages *pages, const struct snapshots *snapshots,
                       const struct sequence *seq);
/* A number that two sequences have in common that compute the same page next; 0: none. With fixed states a
 * page alone is of no use to the other one: the same tokens up to the next snapshot that both leave. */
uint64_t prefix_next_page(const struct kv_pages *pages, const struct snapshots *snapshots,
                          const struct sequence *seq);
/* KV of tokens [0, cached) is there now, and good. */
void prefix_computed(struct kv_pages *pages, const uint32_t *row, struct sequence *seq, uint32_t cached);
/* Gives up the pages of windows that tokens from `cached` on do not see. Those that a chosen position needs
 * (snapshots_chosen) stay longest. */
void prefix_pass(struct kv_pages *pages, const struct snapshots *snapshots, const uint32_t *row,
                 struct sequence *seq);
/* It is about to give its slot to an older one: its whole pages are known at least to itself, so that it
 * finds those again that are not given to others meanwhile. */
void prefix_keep(struct kv_pages *pages, const uint32_t *row, struct sequence *seq);
/* The sequence failed: no other one may find its pages. */
void prefix_forget(struct kv_pages *pages, const uint32_t *row, const struct sequence *seq);
