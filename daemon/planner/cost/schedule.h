/* A step as the simulator takes it: a list of resources, and the units' work on them in order.
 *
 * schedule.c makes it of prices and homes: the only place of the simulation that knows CPU, GPU and link by
 * name. simulate.c runs it. Lives on the caller's stack; nothing is allocated. */
#pragma once

#include "daemon/planner/cost/cost.h"
#include "daemon/planner/cost/larger.h"

#define SCHEDULE_UNITS_MAX (UNIT_PARTS * MODEL_LAYERS_MAX)
#define SCHEDULE_NO_LINK   UINT8_MAX

struct schedule_processor {
    double ready; /* before this moment of a step it has other things to do */
};

/* Where a task is; processor and link are indices of the schedule's lists. */
struct schedule_place {
    uint8_t processor, link;
    uint8_t worker; /* enum plan_processor: between two of them activations are handed over */
    bool contends;  /* the processor reads the memory that links copy from: each slows the other */
};

/* A unit's work: on a processor, and on a link where its weights come by one. */
struct schedule_task {
    double seconds,
        beside; /* of the processor: alone, and while links copy; the same where it does not contend */
    double bytes, rate,
        rate_beside; /* over the link: bytes a second, alone and beside a processor that contends */
    const struct schedule_task *next; /* the next task on its link; the last one's is the first */
    struct cost_kv kv;                /* after `seconds`; kv.link from the task's begin on */
    uint32_t unit;
    struct schedule_place on;
};

/* A link that some task needs: of a plan that reads from disk, the disk. */
struct schedule_link {
    enum cost_resource resource;
    const struct schedule_task *first;
    double least;   /* seconds in which it copies all at least; */
    double slowest; /* seconds a byte of the slowest of them */
    double last;    /* what the last slice of a unit takes the processor after it came */
};

struct schedule {
    uint32_t processors, links;
    struct schedule_processor processor[COST_RESOURCES]; /* by resource: processors are the first of them */
    struct schedule_link link[COST_RESOURCES];
    double hand_over;      /* seconds, from one worker to another: between two devices as well */
    double hand_over_more; /* each, while some link copies */
    double ring;           /* bytes, of each link's */
    double held;           /* of them, at the first step's begin */
    double end;            /* seconds of a step in which nothing computes, after all units */
    double least;          /* seconds of tasks and hand-overs at least */
    bool cold;
    struct schedule_task embed, head;
    uint32_t tasks;
    struct schedule_task *task; /* [units of the table], the caller's */
};
/* Seconds that a task takes at least. */
static inline double schedule_least(const struct schedule_task *task)
{
    return smaller(task->seconds, task->beside) + 2 * task->kv.way + task->kv.cpu;
}
/* Fills in all that is used of *schedule but `task`, and what that points at. */
void schedule_make(const struct cost_table *table, const struct cost_plan *plan, struct schedule *schedule);
