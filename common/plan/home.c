/* The tables of memories, processors, links and homes. See home.h. Constant data. */
#include "common/plan/home.h"

#include <string.h>

static const char *const memory_names[PLAN_MEMORIES] = {
    [PLAN_HOST] = "host", [PLAN_VRAM0] = "vram", [PLAN_VRAM1] = "vram1", [PLAN_DISK] = "disk"};

const struct plan_processor_row plan_processor_rows[PLAN_PROCESSORS] = {
    [PLAN_CPU0] = {.name = "cpu", .memory = PLAN_HOST},
    [PLAN_GPU0] = {.name = "gpu", .memory = PLAN_VRAM0},
    [PLAN_GPU1] = {.name = "gpu1", .memory = PLAN_VRAM1},
};

const struct plan_link_row plan_link_rows[PLAN_LINKS] = {
    {.from = PLAN_CPU0, .to = PLAN_GPU0}, {.from = PLAN_GPU0, .to = PLAN_CPU0},
    {.from = PLAN_CPU0, .to = PLAN_GPU1}, {.from = PLAN_GPU1, .to = PLAN_CPU0},
    {.from = PLAN_GPU0, .to = PLAN_GPU1}, {.from = PLAN_GPU1, .to = PLAN_GPU0},
};

const struct plan_home_row plan_home_rows[PLAN_HOMES + 1] = {
    [PLAN_HOME_CPU] = {"cpu", PLAN_HOST, PLAN_CPU0, PLAN_RESIDENT, PLAN_PROCESSORS},
    [PLAN_HOME_GPU] = {"gpu", PLAN_VRAM0, PLAN_GPU0, PLAN_RESIDENT, PLAN_PROCESSORS},
    [PLAN_HOME_STREAM] = {"stream", PLAN_HOST, PLAN_GPU0, PLAN_STREAMED, PLAN_PROCESSORS},
    [PLAN_HOME_MIXED] = {"mixed", PLAN_HOST, PLAN_GPU0, PLAN_SLOTS, PLAN_CPU0},
    [PLAN_HOME_SHARED] = {"shared", PLAN_HOST, PLAN_GPU0, PLAN_ROWS, PLAN_CPU0},
    [PLAN_HOME_GPU1] = {"gpu1", PLAN_VRAM1, PLAN_GPU1, PLAN_RESIDENT, PLAN_PROCESSORS},
    [PLAN_HOME_DISK] = {"disk", PLAN_DISK, PLAN_CPU0, PLAN_READ, PLAN_PROCESSORS},
    [PLAN_HOMES] = {"unknown", PLAN_MEMORIES, PLAN_PROCESSORS, PLAN_RESIDENT, PLAN_PROCESSORS},
};

enum plan_home plan_processor_home(enum plan_processor processor)
{
    int home = 0;
    while (plan_home_rows[home].processor != processor || plan_home_rows[home].route != PLAN_RESIDENT) home++;
    return (enum plan_home)home;
}

enum plan_processor plan_memory_processor(enum plan_memory memory)
{
    int processor = 0;
    while (processor < PLAN_PROCESSORS && plan_processor_rows[processor].memory != memory) processor++;
    return (enum plan_processor)processor;
}

uint32_t plan_device_index(enum plan_processor processor)
{
    uint32_t index = 0;
    for (int p = 0; p < (int)processor; p++) index += plan_processor_has_memory((enum plan_processor)p);
    return index;
}

enum plan_processor plan_first_device(void)
{
    int processor = 0;
    while (!plan_processor_has_memory((enum plan_processor)processor)) processor++;
    return (enum plan_processor)processor;
}

uint32_t plan_link_of(enum plan_processor from, enum plan_processor to)
{
    uint32_t link = 0;
    while (plan_link_rows[link].from != from || plan_link_rows[link].to != to) link++;
    return link;
}

const char *plan_home_name(enum plan_home home)
{
    return plan_home_rows[(unsigned)home < PLAN_HOMES ? home : PLAN_HOMES].name;
}

const char *plan_processor_name(enum plan_processor processor)
{
    return (unsigned)processor < PLAN_PROCESSORS ? plan_processor_rows[processor].name : "unknown";
}

const char *plan_memory_name(enum plan_memory memory)
{
    return (unsigned)memory < PLAN_MEMORIES ? memory_names[memory] : "unknown";
}

enum plan_home plan_home_named(const char *name)
{
    int home = 0;
    while (home < PLAN_HOMES && strcmp(name, plan_home_rows[home].name) != 0) home++;
    return (enum plan_home)home;
}

enum plan_processor plan_processor_named(const char *name)
{
    int processor = 0;
    while (processor < PLAN_PROCESSORS && strcmp(name, plan_processor_rows[processor].name) != 0) processor++;
    return (enum plan_processor)processor;
}

enum plan_memory plan_memory_named(const char *name)
{
    int memory = 0;
    while (memory < PLAN_MEMORIES && strcmp(name, memory_names[memory]) != 0) memory++;
    return (enum plan_memory)memory;
}
