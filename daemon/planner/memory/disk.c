/* Lines of the ledgers for weights on disk. See ledger.h and common/plan/disk.h. Pure. */
#include <stdio.h>

#include "common/base/units.h"
#include "common/plan/disk.h"
#include "daemon/planner/memory/ledger.h"

/* Whole half layers, which pass through a ring. */
static int write_ring(const struct model *model, struct plan *plan, struct helm_err *err)
{
    struct disk_ring ring = {0};
    char what[48];
    int rc = disk_ring_place(model, plan, &ring, err);
    if (rc || !ring.units) return rc;
    snprintf(what, sizeof what, "%u half layers", ring.units);
    ledger_add(&plan->memory[PLAN_DISK], what, ring.file_bytes);
    ledger_add(&plan->memory[PLAN_HOST], "ring for half layers on disk",
               round_up(ring.bytes, ARENA_HUGE_PAGE));
    return 0;
}

int ledger_write_disk(const struct model *model, struct plan *plan, struct helm_err *err)
{
    struct disk_room room = {0};
    char what[48];
    if (plan_disk_ring(plan)) return write_ring(model, plan, err);
    int rc = disk_place(model, plan, &room, err);
    if (rc || !room.units) return rc;
    snprintf(what, sizeof what, "experts of %u layers", room.units);
    ledger_add(&plan->memory[PLAN_DISK], what, room.experts_bytes);
    snprintf(what, sizeof what, "%u slots of each of %u layers, %u cells", room.slots, room.units,
             room.cells);
    ledger_add(&plan->memory[PLAN_HOST], what, round_up(room.bytes, ARENA_HUGE_PAGE));
    return 0;
}
