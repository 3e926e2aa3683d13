/* Inside worker-cpu/disk: what disk.c opens, and turns.c (experts) and ring.c (whole units) run. */
#pragma once

#include <sys/stat.h>

#include "common/disk/reader.h"
#include "common/model/shards.h"
#include "common/worker/expert_uses.h"
#include "worker-cpu/disk/disk.h"

#define DISK_NONE UINT32_MAX

/* An expert that the step needs of the layer. */
struct disk_need {
    uint32_t expert;
    uint32_t pending[DISK_STAGES]; /* reads that a stage waits for */
    bool there[DISK_STAGES];       /* its bytes are sent for, at least */
    bool computed[DISK_STAGES];
    bool admitted; /* into a slot, by `move` */
    struct expert_move move;
};

/* A read of one role of an expert. */
struct disk_read {
    struct disk_reading read;
    uint32_t need;
    enum slot_role role;
};

/* Room for an expert that no slot is for. */
struct disk_cell {
    char *memory;
    uint32_t need; /* DISK_NONE: it is free */
    bool whole;    /* has all roles, until downs are computed; otherwise those of `stage` */
    enum disk_stage stage;
};

struct disk {
    const struct model *model;
    const struct arena *arena;
    struct model_shards shards; /* opened past the page cache */
    struct stat *file;          /* [shard_count]: as they were when they were opened */
    struct disk_room room;
    uint32_t experts;
    char *memory; /* slots of each unit, then cells; or the ring */
    uint64_t memory_bytes;
    struct ring *ring;           /* NULL: no whole unit lies on disk; otherwise it alone uses the reader */
    char **slots;                /* [units]: of each */
    const char **place;          /* [units][SLOT_ROLES][experts + 1]; the last is NULL */
    uint64_t *digest;            /* [units][SLOT_ROLES][experts]: of the first read; 0: there was none */
    struct expert_slots *policy; /* its layers are units */
    struct disk_reader *reader;
    struct disk_cell *cell; /* [room.cells] */
    struct disk_read *read; /* [SLOT_ROLES * (slots + cells)]: of slots, then of cells */

    /* the layer at hand */
    uint32_t unit;
    struct disk_need need[MODEL_EXPERTS_MAX];
    uint32_t needs;
    uint32_t passing[MODEL_EXPERTS_MAX]; /* those without a slot */
    uint32_t passings;
    bool halves;   /* more of them than cells: gates and ups pass through, then downs */
    uint32_t sent; /* passing ones that have had a cell: of halves first gates and ups, then downs */
    uint32_t turn[MODEL_EXPERTS_MAX], turns; /* being computed */
    uint32_t computed[DISK_STAGES];

    struct expert_slots_seen before;        /* what workers before this one counted */
    struct expert_slots_seen last, counted; /* by all steps; by those of a few tokens */
    uint64_t bytes_read, reads;
};

static inline const char **disk_place_at(const struct disk *d, uint32_t unit, enum slot_role role,
                                         uint32_t expert)
{
    return d->place + ((uint64_t)unit * SLOT_ROLES + role) * (d->experts + 1) + expert;
}
static inline uint64_t *disk_digest_at(const struct disk *d, uint32_t unit, enum slot_role role,
                                       uint32_t expert)
{
    return d->digest + ((uint64_t)unit * SLOT_ROLES + role) * d->experts + expert;
}

/* The bytes of a model that were read, for errors and digests. */
struct disk_read_of {
    const struct model_tensor *tensor;
    uint32_t expert; /* DISK_NONE: the tensor is not of experts */
    uint32_t shard;
    uint64_t offset; /* of the bytes digested, in its file */
};
/* A read that is done: what came is what the file had when it was read first. *first: the digest of then; 0:
 * there was none. HELM_E_IO, HELM_E_MISMATCH. */
HELM_MUST_CHECK int disk_check(const struct disk *disk, const struct disk_reading *read,
                               const struct disk_read_of *of, uint64_t digest, uint64_t *first,
                               struct helm_err *err);

/* ---- ring.c ---- */

/* Tables of the plan's ring, whose memory is disk->memory. */
HELM_MUST_CHECK int disk_ring_open(struct disk *disk, const struct disk_ring *room, struct helm_err *err);
HELM_MUST_CHECK int disk_ring_start(struct ring *ring, struct helm_err *err);
/* Ends the thread; before the reader closes. */
void disk_ring_stop(struct ring *ring);
void disk_ring_free(struct ring *ring);
