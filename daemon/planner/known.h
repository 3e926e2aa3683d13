/* Candidates that were made, by what was asked for: the planner's cache.
 *
 * Owned by the caller of planner_make (planner.h) or, where that gives none, by planner_make for one call. A key is all that a
 * candidate depends on, so that one model's cache serves requests that differ in strategies, tiers and contexts. */
#ifndef HELM_DAEMON_PLANNER_KNOWN_H
#define HELM_DAEMON_PLANNER_KNOWN_H

#include "daemon/planner/candidate.h"

struct known_key {
    struct spec spec;
    struct ledger_wish asked;
    uint32_t batch, context;
    bool required, cache_required; /* some unit or end must be the device's; some layer's cache */
    uint64_t of;
};
struct known_key known_key_of(const struct making *m, const struct spec *spec, uint32_t context);
/* What is planned for, in one number: the model's sizes, the profile, the machine. */
uint64_t known_case(const struct making *m);
/* A copy of the candidate with this key into *out; *found: there is one. */
HELM_MUST_CHECK int known_find(const struct planner_cache *cache, const struct known_key *key,
                               struct candidate *out, bool *found, struct helm_err *err);
HELM_MUST_CHECK int known_add(struct planner_cache *cache, const struct known_key *key,
                              const struct candidate *made, struct helm_err *err);

#endif
