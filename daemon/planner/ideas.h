/* The planner's one loop: ideas make candidates, each is priced and held to the ledger, the best stays.
 *
 * Called by planner.c. An idea is a file of at most 200 lines beside this one; ideas.c has the table of them.
 * To add one, write its file and its row. */
#pragma once

#include "daemon/planner/candidate.h"

/* The best plan for the spec's strategy: of the largest context for which there is one. spec->ctx becomes the
 * last one tried. */
HELM_MUST_CHECK int ideas_run(struct making *m, struct spec *spec, struct candidate *best,
                              struct helm_err *err);
/* The best plan for one context, by the ideas that are tried for each. */
HELM_MUST_CHECK int ideas_try_context(struct making *m, const struct spec *spec, struct candidate *best,
                                      struct helm_err *err);
/* Whether the spec's context fits with some tiers that the request allows. */
HELM_MUST_CHECK int ideas_fit(struct making *m, const struct spec *spec, bool *fits, struct helm_err *err);
/* Ideas for a plan whose lists stand: they change its sizes, and write its ledgers. */
HELM_MUST_CHECK int ideas_finish(struct making *m, struct plan *plan, struct arena_spec *arena,
                                 struct helm_err *err);

/* ---- ideas: each puts the best of its candidates in the place of *best, if that is worse ---- */

/* packing.c: one tier, or the spec's; weights packed in VRAM, and read packed by the CPU, or not. */
HELM_MUST_CHECK int packing_try(struct making *m, const struct spec *spec, struct candidate *best,
                                struct helm_err *err);
/* The same where it is known how weights are packed. NULL: it is not. */
struct packing_known {
    enum packing vram;
    bool cpu;
};
HELM_MUST_CHECK int packing_best(struct making *m, const struct spec *spec, const struct packing_known *like,
                                 struct candidate *best, struct helm_err *err);
/* strategies.c: what the restricted strategies would make. */
HELM_MUST_CHECK int strategies_try(struct making *m, const struct spec *spec, struct candidate *best,
                                   struct helm_err *err);
/* tiers.c: two tiers of the cache, with more and more places, and longer chunks. */
HELM_MUST_CHECK int tiers_try(struct making *m, const struct spec *spec, struct candidate *best,
                              struct helm_err *err);
/* Whether the request and the spec allow two tiers. */
bool tiers_may_be_two(const struct making *m, const struct spec *spec);
/* experts.c: a layer's experts in both memories. */
HELM_MUST_CHECK int experts_try(struct making *m, const struct spec *spec, struct candidate *best,
                                struct helm_err *err);
/* shared.c: dense MLPs that GPU and CPU compute together. Then whether --share on, if that is asked for, can
 * be: HELM_E_UNSUPPORTED names the tensor that cannot be cut, its number and the limit. */
HELM_MUST_CHECK int shared_try(struct making *m, const struct spec *spec, struct candidate *best,
                               struct helm_err *err);
HELM_MUST_CHECK int shared_check(const struct making *m, struct helm_err *err);
/* For a plan of `experts-cpu`, of a model with shared experts: these in VRAM, and one slot a layer that never
 * changes. */
HELM_MUST_CHECK int experts_try_shared(struct making *m, const struct spec *spec, struct candidate *best,
                                       struct helm_err *err);
/* chunks.c: longer chunks, of a plan that stands. */
HELM_MUST_CHECK int chunks_lengthen(struct making *m, struct plan *plan, struct arena_spec *arena,
                                    struct helm_err *err);
/* disk.c: where nothing else fits, experts on disk, or half layers of a dense model. spec->ctx becomes the
 * plan's. */
HELM_MUST_CHECK int disk_try(struct making *m, struct spec *spec, struct candidate *best,
                             struct helm_err *err);
/* Host memory with which such a plan fits, as much of the other weights in VRAM as that has room for; 0: none
 * does, however much there is. */
HELM_MUST_CHECK int disk_least_host(struct making *m, uint32_t ctx, bool device, uint64_t *bytes,
                                    struct helm_err *err);
/* second.c: the last layers on a second device, the other ideas for those before. */
HELM_MUST_CHECK int second_try(struct making *m, const struct spec *spec, struct candidate *best,
                               struct helm_err *err);
/* cpu_alone.c: no device. */
HELM_MUST_CHECK int cpu_alone_try(struct making *m, const struct spec *spec, struct candidate *best,
                                  struct helm_err *err);
