/* The device that the planner plans for: one GPU and its memory. Plans that use other devices are written by hand; the ledger
 * counts what those take, and forecasts price their units as this GPU's. */
#pragma once

#include "common/plan/home.h"

#define PLANNED_GPU  PLAN_GPU0
#define PLANNED_VRAM PLAN_VRAM0

/* By whose price another device's part of a plan is forecast. */
static inline enum plan_processor planned_processor(enum plan_processor processor)
{
    return plan_processor_has_memory(processor) ? PLANNED_GPU : processor;
}
static inline enum plan_home planned_home(enum plan_home home)
{
    return plan_home_memory(home) == PLAN_HOST ? home : plan_processor_home(PLANNED_GPU);
}
