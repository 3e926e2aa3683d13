/* Which half layers of a dense model lie on disk, and the ring that they pass through. Pure; for the idea of
 * half layers on disk (disk_layers.c).
 *
 * Each memory's part is spread evenly over the layers. The disk reads all the time as long as the ring has
 * room, and the ring holds only a few half layers: if those on disk were neighbours, the disk would stand
 * still while all others are computed, whoever computes them, and those on disk would then be computed no
 * faster than they are read. MLPs go to disk first, and attention to VRAM: a device gains most by attention,
 * whose cache can then be in VRAM. */
#pragma once

#include "common/plan/plan.h"

#define SPREAD_UNITS_MAX (UNIT_PARTS * MODEL_LAYERS_MAX)

struct spread_layers {
    uint32_t units;
    uint64_t room[SPREAD_UNITS_MAX]; /* of each in a ring; 0: it cannot be read from disk */
};
/* Homes of all: `in_vram` half layers, about `on_disk` bytes of the others (UINT64_MAX: all that can be), and
 * the rest in host memory. home: [units], the caller's. */
void spread_homes(const struct spread_layers *layers, uint32_t in_vram, uint64_t on_disk,
                  enum plan_home *home);
/* Bytes of the ring for the half layers on disk; 0: none are there. */
uint64_t spread_ring(const struct spread_layers *layers, const enum plan_home *home);
