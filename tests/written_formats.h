/* Formats of plans that tests write: by rules instead of unit by unit. */
#pragma once

#include "common/plan/plan.h"

struct written_formats {
    bool link;     /* packed is what every list streams */
    bool cpu;      /* and what some list gives to the CPU */
    uint32_t vram; /* of what is at home in VRAM this many, the first that can be */
    bool head;
    const bool *can, *can_cpu; /* [unit_count(layers)]: be packed, and so for the CPU; NULL: all */
};

/* Whether some list gives a unit to the CPU. */
static inline bool is_on_cpu(const struct plan *plan, uint32_t unit)
{
    bool on_cpu = false;
    for (uint32_t p = 0; p < plan_phase_count(plan); p++)
        on_cpu |= plan_home_processor(plan->unit[unit].home[p]) == PLAN_CPU0;
    return on_cpu;
}

static inline void write_formats(struct plan *plan, const struct written_formats *w)
{
    const uint32_t units = unit_count(plan->layers);
    uint32_t left = w->vram;
    for (uint32_t u = 0; u < units; u++) {
        const bool can = !w->can || w->can[u], can_cpu = !w->can_cpu || w->can_cpu[u];
        bool packed = is_on_cpu(plan, u) ? w->cpu && can_cpu : w->link && can;
        if (plan_home_memory(plan->unit[u].home[0]) == PLAN_VRAM0) left -= packed = left && can;
        plan->unit[u].format = packed ? FORMAT_BF16_PACKED : PLAN_AS_STORED;
    }
    plan->unit[units].format = PLAN_AS_STORED;
    plan->unit[units + 1].format = w->head ? FORMAT_BF16_PACKED : PLAN_AS_STORED;
}
