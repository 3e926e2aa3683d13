/* Where slots of experts lie in VRAM. Each unit at home on `mixed` has its gates, then ups, then downs, one
 * slot after the other. The tables that say which expert is in which slot come after all of them. Slots of
 * packed experts begin with the matrix's table of offsets, as the matrix does. They are as large as an expert
 * is by its shape and a part more; a larger expert has no slot.
 *
 * Called by the planner's ledger and by the GPU worker, which allocates and fills that memory. Pure. */
#pragma once

#include "common/model/model.h"
#include "common/plan/plan.h"

enum slot_role { SLOT_GATE, SLOT_UP, SLOT_DOWN, SLOT_ROLES };
enum tensor_role slot_tensor(enum slot_role role);

/* Bytes from one slot of the matrix's `experts` to the next in this format; *before: of what lies in front of
 * all. */
uint64_t slot_stride(const struct model_tensor *tensor, uint32_t experts, enum tensor_format format,
                     uint64_t *before);

/* One role of a unit's slots. */
struct slot_place {
    uint64_t at, stride; /* of slot 0 from the beginning of all; bytes from one slot to the next, those of an
                            expert at most */
};
struct slot_unit {
    uint32_t unit;
    struct slot_place role[SLOT_ROLES];
};
struct slots_place {
    struct slot_unit *unit; /* [units]; caller's memory, or NULL */
    uint32_t units;
    uint64_t tables; /* where they begin: [units][experts] numbers of 32 bits, one more, [experts] */
    uint64_t bytes;  /* of all; 0: the plan has none */
};
/* By the formats of the plan's placements, or without any as weights are stored. HELM_E_UNSUPPORTED: experts
 * that cannot lie in slots; HELM_E_MISMATCH: a unit without experts, or with fewer than slots. */
HELM_MUST_CHECK int slots_place(const struct model *model, const struct plan *plan, struct slots_place *place,
                                struct helm_err *err);
