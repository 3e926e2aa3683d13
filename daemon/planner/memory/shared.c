/* Memory of plans that share MLPs between two processors (common/plan/share.h). See ledger.h and memory.h;
 * owns nothing.
 *
 * The planner's model is whole; placements and buffers are those of the workers' model, whose MLPs are cut
 * as the plan says. */
#include "common/plan/placement.h"
#include "common/plan/share.h"
#include "daemon/planner/memory/memory.h"

int ledger_write(const struct ledger_case *c, uint32_t ctx, uint32_t page_count, struct plan *plan,
                 struct arena_spec *spec, struct helm_err *err)
{
    struct ledger_case cut = *c;
    struct model model;
    int rc = plan_share_copy(plan, c->model, &model, &cut.model, err);
    if (rc) return rc;
    rc = ledger_write_cut(&cut, ctx, page_count, plan, spec, err);
    model_share_free(&model);
    return rc;
}

/* A part of `bytes`, with what three matrices may be rounded up by. */
static uint64_t part_of(uint64_t bytes, double part, uint64_t align)
{
    return (uint64_t)(part * (double)bytes) + 3 * align;
}

void memory_share_units(const struct ledger_case *c, uint32_t rows, struct search_bytes *unit)
{
    const enum plan_memory device = plan_home_memory(PLAN_HOME_GPU);
    const bool emulated = c->machine->device.kind == LEDGER_DEVICE_EMULATED;
    for (uint32_t u = 0; u < unit_count(c->table->layers); u++) {
        const double own = analyse_own_part(c->table, u, rows);
        const struct analyse_bytes bytes = analyse_units(c->table, u, u);
        struct search_bytes *const at = &unit[SEARCH_HOMES * u + PLAN_HOME_CPU];
        if (own <= 0) continue;
        at->vram = bytes.vram_vectors + ledger_graph_bytes(c, u, 0) +
                   part_of(bytes.vram - bytes.vram_vectors, own, placement_align(device));
        at->host = bytes.vector_bytes + part_of(bytes.arena, 1 - own, placement_align(PLAN_HOST)) +
                   (emulated ? at->vram : 0);
    }
}
