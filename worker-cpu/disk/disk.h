/* Weights at home on disk: read from the model's files past the page cache, for each step that needs them.
 *
 * Experts are read when tokens choose them. Host memory has slots for some experts of each such layer
 * (common/plan/disk.h), which follow what tokens choose (common/experts/slots.h), and cells for the others
 * while they are computed. A layer's missing experts are all sent for as soon as its choice is known; those
 * that are there are computed meanwhile.
 *
 * Whole units pass through a ring, always the same ones in the same order: each is sent for as soon as its
 * place in the ring is free, by a thread that also reads while no step runs. Then the ring has the first
 * units of the next step.
 *
 * Opened by engine.c at load; experts are asked for by program/experts.c and units by program/execute.c,
 * between the regions of a step: by one thread at a time. An expert that is read again has the digest of the
 * first time, of a half layer some parts in turn have, and the file has the times and the size that it had,
 * or the step fails. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/cpu/pool.h"
#include "common/plan/disk.h"
#include "common/shared/arena.h"

struct disk;
/* The files, and the slots and cells or the ring of a plan with such units; the pool brings their pages.
 * *reduced: why reads are those of threads, or "". */
#define DISK_REDUCED_TEXT 160
HELM_MUST_CHECK int disk_open(const struct model *model, const struct plan *plan, const struct arena *arena,
                              struct pool *pool, struct disk **disk, char reduced[DISK_REDUCED_TEXT],
                              struct helm_err *err);
/* Logs what was read. NULL is allowed. */
void disk_close(struct disk *disk);
/* Which files they are: part of what a worker says that it loaded (daemon/children/workers.h). */
uint64_t disk_content(const struct disk *disk);
/* [experts] of a layer: where each one's matrix lies, NULL where it is not in memory. Constant address; the
 * contents are of the step. */
const char *const *disk_places(const struct disk *disk, int32_t layer, enum slot_role role);

/* A layer's products with its experts are two stages: gates and ups, then downs. */
enum disk_stage { DISK_GLU, DISK_DOWN, DISK_STAGES };
/* The layer's experts that a step needs, each once: what is missing is sent for. */
void disk_begin(struct disk *disk, int32_t layer, const uint32_t *expert, uint32_t count);
/* Places in that list whose experts can be computed now, [*count] into `turn`; those of the call before are
 * computed. Waits until there is one; 0: the stage is over. HELM_E_IO: the disk failed; HELM_E_MISMATCH: the
 * file is not what it was. */
HELM_MUST_CHECK int disk_next(struct disk *disk, enum disk_stage stage, uint32_t *turn, uint32_t *count,
                              struct helm_err *err);
/* All layers had their turn, in a step of `tokens` tokens: of a few its uses are counted. */
void disk_end_step(struct disk *disk, uint32_t tokens);

/* ---- whole units ---- */

/* Where a tensor's matrix is whenever its unit is there; NULL: it does not pass through the ring. */
const void *disk_matrix(const struct disk *disk, const struct model_tensor *tensor);
/* Begins to fill the ring; nothing of a plan with experts. */
HELM_MUST_CHECK int disk_start(struct disk *disk, struct helm_err *err);
/* Waits until a unit's matrices are there. HELM_E_IO: the disk failed; HELM_E_MISMATCH: the file is not what
 * it was. */
HELM_MUST_CHECK int disk_take_unit(struct disk *disk, uint32_t unit, struct helm_err *err);
/* They were computed: their place is free. */
void disk_leave_unit(struct disk *disk);
