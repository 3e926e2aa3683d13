/* Where weights lie and what computes with them: memories, processors, lanes between processors, homes of
 * units. Constant tables, indexed by the enumerations beside them; a further device is a row in each.
 *
 * Asked by the planner, by helmd and by the workers: code that wants to know where bytes are or what computes
 * asks for the memory or the processor of a home, it does not compare homes. A worker knows its own processor
 * (engine_options.processor) and compares with that. No file but these two names a device. Called by
 * everything that reads a plan; owns nothing.
 *
 * A processor's weights and caches are resident in its own memory. A home on another memory has a route by
 * which weights reach the processor. Experts at home on `mixed` all lie in host memory, and some in VRAM as
 * well: the GPU computes with these, and with those that it is told to read over the link, the CPU with the
 * others. Rows of a dense MLP at home on `shared` lie in one memory each: the first ones in VRAM, where the
 * GPU computes with them, the others in host memory, where the CPU does at the same time
 * (common/model/share.h). Weights at home on `disk` stay in the model's files: experts, some of which have
 * slots in host memory, or whole units, which pass through a ring there (common/plan/disk.h). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum plan_memory { PLAN_HOST, PLAN_VRAM0, PLAN_VRAM1, PLAN_DISK, PLAN_MEMORIES };
enum plan_processor { PLAN_CPU0, PLAN_GPU0, PLAN_GPU1, PLAN_PROCESSORS };
enum plan_route {
    PLAN_RESIDENT, /* the processor reads the weights where they lie */
    PLAN_STREAMED, /* they are copied through a ring in the processor's memory */
    PLAN_SLOTS,    /* of experts: some lie in slots in the processor's memory, too; the helper computes with
                      others */
    PLAN_ROWS, /* of a dense MLP: the first lie in the processor's memory alone; the helper has the others */
    PLAN_READ  /* experts are read into slots in the processor's memory when tokens choose them; whole units
                  through a ring there, in the order of the model */
};
/* `cpu` is 0: a plan that says nothing of a home computes there. */
enum plan_home {
    PLAN_HOME_CPU,
    PLAN_HOME_GPU,
    PLAN_HOME_STREAM,
    PLAN_HOME_MIXED,
    PLAN_HOME_SHARED,
    PLAN_HOME_GPU1,
    PLAN_HOME_DISK,
    PLAN_HOMES
};

struct plan_home_row {
    const char *name; /* in plans, options and reports */
    enum plan_memory memory;
    enum plan_processor processor;
    enum plan_route route;
    enum plan_processor helper; /* computes a part of it in the same operation; PLAN_PROCESSORS: none does */
};
struct plan_processor_row {
    const char *name;
    enum plan_memory memory;
};
/* By which one processor hands activations to another: the arena's lane of this index. The links of a
 * processor come after those between the processors before it, so an arena needs no lanes of processors after
 * the last one that is used. */
struct plan_link_row {
    enum plan_processor from, to;
};
#define PLAN_LINKS ((uint32_t)PLAN_PROCESSORS * (PLAN_PROCESSORS - 1))

/* The row of PLAN_HOMES, which is no home, lies in no memory and is computed by no processor. */
extern const struct plan_home_row plan_home_rows[PLAN_HOMES + 1];
extern const struct plan_processor_row plan_processor_rows[PLAN_PROCESSORS];
extern const struct plan_link_row plan_link_rows[PLAN_LINKS];

static inline enum plan_memory plan_home_memory(enum plan_home home)
{
    return plan_home_rows[home].memory;
}
static inline enum plan_processor plan_home_processor(enum plan_home home)
{
    return plan_home_rows[home].processor;
}
/* Whether the processor computes a unit that has this home, or a part of it. */
static inline bool plan_home_computes(enum plan_home home, enum plan_processor processor)
{
    return plan_home_rows[home].processor == processor || plan_home_rows[home].helper == processor;
}
static inline enum plan_memory plan_processor_memory(enum plan_processor processor)
{
    return plan_processor_rows[processor].memory;
}
/* Whether the processor is a device: its memory is not the host's, which all processes share in the arena. */
static inline bool plan_processor_has_memory(enum plan_processor processor)
{
    return plan_processor_memory(processor) != PLAN_HOST;
}
/* Whether a unit with this home is wholly a device's, in its own memory. */
static inline bool plan_home_in_vram(enum plan_home home)
{
    return plan_home_rows[home].route == PLAN_RESIDENT &&
           plan_processor_has_memory(plan_home_rows[home].processor);
}
/* Whether the processor computes with weights that come through its ring from this home. */
static inline bool plan_home_streams(enum plan_home home, enum plan_processor processor)
{
    return plan_home_rows[home].route == PLAN_STREAMED && plan_home_rows[home].processor == processor;
}
/* The home of what a processor has in its own memory. */
enum plan_home plan_processor_home(enum plan_processor processor);
/* The processor whose own memory it is; PLAN_PROCESSORS: the disk's, which is none's. */
enum plan_processor plan_memory_processor(enum plan_memory memory);
/* The processor's number among the devices, from 0 on; the first of them. */
uint32_t plan_device_index(enum plan_processor processor);
enum plan_processor plan_first_device(void);
/* The index of the link, and of its lane; the two differ. */
uint32_t plan_link_of(enum plan_processor from, enum plan_processor to);

/* "cpu", "gpu", "stream", "mixed", "shared", "gpu1", "disk"; "unknown" of a number that is none. */
const char *plan_home_name(enum plan_home home);
const char *plan_processor_name(enum plan_processor processor); /* "cpu", "gpu", "gpu1" */
const char *plan_memory_name(enum plan_memory memory);          /* "host", "vram", "vram1", "disk" */
/* By name; PLAN_HOMES, PLAN_PROCESSORS, PLAN_MEMORIES: there is none. */
enum plan_home plan_home_named(const char *name);
enum plan_processor plan_processor_named(const char *name);
enum plan_memory plan_memory_named(const char *name);
