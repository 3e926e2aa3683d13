/* Weights at home on `disk`: where the files have them, and what host memory has for them.
 *
 * Experts: each such unit has slots for whole experts in the CPU worker's memory, and all units together have
 * cells for experts that no slot is for. Whole units: they pass through a ring there, in the order of the
 * model, and each has its place in it. A slot, a cell or a place has room for the blocks of the file that
 * matrices lie in, so that reads past the page cache bring them as they are. Called by the planner and by the
 * CPU worker. Pure. */
#pragma once

#include "common/disk/reader.h"
#include "common/model/model.h"
#include "common/plan/plan.h"
#include "common/plan/slots.h"

/* One role of a unit's experts. */
struct disk_role {
    const struct model_tensor *tensor;
    uint64_t bytes; /* of an expert's matrix */
    uint64_t at;    /* of its blocks in a slot */
    uint64_t room;  /* that they take at most */
};
struct disk_unit {
    uint32_t unit;
    struct disk_role role[SLOT_ROLES];
    uint64_t slot_bytes;
};
struct disk_room {
    struct disk_unit *unit; /* [units]; caller's memory, or NULL */
    uint32_t units, slots;  /* of each unit */
    uint32_t cells;
    uint64_t slots_bytes;   /* of all units */
    uint64_t cell_bytes;    /* of one: the largest slot */
    uint64_t bytes;         /* of all slots and cells; 0: the plan has none */
    uint64_t experts_bytes; /* of these units' experts in the files */
};
/* Cells for all units: those of one token's experts, or two. */
static inline uint32_t disk_cells(const struct model_config *config)
{
    return config->router.chosen > 2 ? config->router.chosen : 2;
}

/* All 0 of a plan without slots. HELM_E_UNSUPPORTED: experts that cannot be read one by one as they lie;
 * HELM_E_MISMATCH: a unit without experts, or with fewer than slots. */
HELM_MUST_CHECK int disk_place(const struct model *model, const struct plan *plan, struct disk_room *room,
                               struct helm_err *err);
/* The same of one unit, whatever its home: whether it could be on disk. */
HELM_MUST_CHECK int disk_place_unit(const struct model *model, uint32_t unit, struct disk_unit *place,
                                    struct helm_err *err);

/* Where the files have the matrix of an expert. */
struct disk_source {
    uint32_t shard; /* of model.shards */
    uint64_t offset;
};
struct disk_source disk_source_of(const struct model *model, const struct disk_role *role, uint32_t experts,
                                  uint32_t expert);

/* ---- whole units ---- */

/* The blocks of a file that a matrix lies in; it begins `inside` bytes after their beginning. */
struct disk_blocks {
    uint32_t shard; /* of model.shards */
    uint64_t offset, bytes, inside;
};
struct disk_blocks disk_blocks_of(const struct model_tensor *tensor);

/* A unit's matrices in the ring, in the order of model_unit.tensor, each with room for its blocks. */
struct disk_passing {
    uint32_t unit;
    uint64_t at, room; /* bytes from the ring's beginning; that its blocks take */
};
struct disk_ring {
    struct disk_passing *passing; /* [units], in the order of the model; caller's memory, or NULL */
    uint32_t units;
    uint64_t bytes;      /* of the ring; 0: the plan has none */
    uint64_t file_bytes; /* of these units' matrices in the files */
};
/* The places are the same in every step: units lie one after the other, and where the next one would end past
 * the ring's end it lies at the beginning again. HELM_E_UNSUPPORTED: a matrix that cannot be read as it lies,
 * HELM_E_MISMATCH: a unit of experts, HELM_E_CAPACITY: one that is larger than the ring. */
HELM_MUST_CHECK int disk_ring_place(const struct model *model, const struct plan *plan,
                                    struct disk_ring *ring, struct helm_err *err);
/* The room of one unit, whatever its home: whether it could be on disk. */
HELM_MUST_CHECK int disk_ring_room(const struct model *model, uint32_t unit, uint64_t *room,
                                   struct helm_err *err);
