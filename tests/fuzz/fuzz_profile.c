/* Fuzz target: profile_from_json over arbitrary JSON. An accepted profile must print, parse again to the same
 * profile, be judged, and give a value at any number of threads or tokens that lies within the table's. */
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "daemon/planner/profile/profile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_table(const struct profile_table *table)
{
    double least = 0, most = 0;
    for (uint32_t i = 0; i < table->count; i++) {
        double value = table->point[i].y.value;
        if (i == 0 || value < least) least = value;
        if (value > most) most = value;
    }
    for (uint32_t x = 0; x < 1000; x = x * 2 + 1) {
        struct profile_value at = profile_table_at(table, x);
        if (at.value < least * (1 - 1e-9) || at.value > most * (1 + 1e-9)) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct helm_err err = {0};
    static struct profile profile, again;
    json_t *json = NULL;
    if (json_parse_bounded("profile", (const char *)data, size, 1u << 20, &json, &err)) return 0;
    if (profile_from_json(json, NULL, &profile, &err) == 0) {
        json_t *printed = profile_to_json(&profile);
        if (!printed || profile_from_json(printed, NULL, &again, &err)) abort();
        json_t *reprinted = profile_to_json(&again);
        if (!reprinted || !json_equal(printed, reprinted)) abort();
        check_table(&profile.cpu.read);
        check_table(&profile.cpu.linear);
        check_table(&profile.gpu.linear);
        int judged = profile_check(&profile, &err);
        if (judged != 0 && judged != HELM_E_FORMAT) abort();
        json_decref(reprinted);
        json_decref(printed);
    }
    json_decref(json);
    return 0;
}
