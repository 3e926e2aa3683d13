/* Fuzz target: plan_from_json over arbitrary JSON. An accepted plan must print, and parse again to the same
 * plan. */
#include <stdlib.h>

#include "common/base/json.h"
#include "common/plan/placement.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct helm_err err = {0};
    struct plan plan, again;
    json_t *json = NULL;
    if (json_parse_bounded("plan", (const char *)data, size, 1u << 20, &json, &err)) return 0;
    if (plan_from_json(json, &plan, &err) == 0) {
        uint32_t there = 0;
        for (int m = 0; m < PLAN_MEMORIES; m++) there += placements_in(&plan, (enum plan_memory)m).count;
        if (there > plan.placement_count) abort();
        json_t *printed = plan_to_json(&plan);
        if (!printed || plan_from_json(printed, &again, &err)) abort();
        json_t *reprinted = plan_to_json(&again);
        if (!reprinted || !json_equal(printed, reprinted)) abort();
        json_decref(reprinted);
        json_decref(printed);
        plan_free(&again);
        plan_free(&plan);
    }
    json_decref(json);
    return 0;
}
