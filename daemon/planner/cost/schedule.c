/* From prices and homes to a list of resources and of work on them. See schedule.h. Called by simulate.c, as
 * often as that is. */
#include "daemon/planner/cost/schedule.h"

#include <math.h>

/* By home and, of embedding and head, by processor. The link is the first of the list where there is one. */
static const struct schedule_place place_of[PLAN_HOMES] = {
    [PLAN_HOME_CPU] = {.processor = COST_CPU, .link = SCHEDULE_NO_LINK, .contends = true},
    [PLAN_HOME_GPU] = {.processor = COST_GPU, .link = SCHEDULE_NO_LINK, .worker = PLAN_GPU0},
    [PLAN_HOME_STREAM] = {.processor = COST_GPU, .link = 0, .worker = PLAN_GPU0},
    [PLAN_HOME_MIXED] = {.processor = COST_GPU, .link = SCHEDULE_NO_LINK, .worker = PLAN_GPU0},
    /* no two devices compute at once: they count as one resource */
    [PLAN_HOME_GPU1] = {.processor = COST_GPU, .link = SCHEDULE_NO_LINK, .worker = PLAN_GPU1},
    /* with a hand-over from the GPU and one back, as the CPU's own */
    [PLAN_HOME_SHARED] = {.processor = COST_CPU, .link = SCHEDULE_NO_LINK, .contends = true},
    /* experts; whole units come by the link */
    [PLAN_HOME_DISK] = {.processor = COST_CPU, .link = SCHEDULE_NO_LINK, .contends = true}};

/* Whether the GPU computes all of a step, which is launched after the one before (worker-gpu/follow.h). */
static bool is_ahead(const struct cost_table *table, const struct cost_plan *plan)
{
    if (!table->follows || plan->cold || !plan_processor_has_memory(plan->embed) ||
        !plan_processor_has_memory(plan->head))
        return false;
    for (uint32_t u = 0; u < table->units; u++)
        if (plan->home[u] != PLAN_HOME_GPU || table->unit[u].kv.way > 0) return false;
    return true;
}

static void list_resources(const struct cost_table *table, const struct cost_plan *plan, bool ahead,
                           struct schedule *s)
{
    s->processors = COST_LINK;
    s->links = 0;
    s->processor[COST_CPU] = s->processor[COST_GPU] = (struct schedule_processor){0};
    if (!ahead) s->processor[COST_GPU].ready = plan->embed == PLAN_CPU0 ? table->ready : table->begin;
    s->hand_over = table->hand_over + table->activation;
    s->hand_over_more = plan->reads ? 0 : table->hand_over_more;
    s->ring = larger((double)plan->ring_bytes, COST_RING_LEAST);
    s->held = plan->cold ? smaller(s->ring, (double)plan->held_bytes) : s->ring;
    s->end = ahead ? 0 : table->step;
    s->cold = plan->cold;
}

static struct schedule_task end_task(const struct cost_unit *u, enum plan_processor processor, double launch)
{
    struct schedule_task task = {.on = place_of[plan_processor_home(processor)]};
    if (processor == PLAN_CPU0) {
        task.seconds = u->cpu;
        task.beside = u->cpu_beside;
    } else {
        task.seconds = task.beside = larger((plan_device_index(processor) ? u->gpu1 : u->gpu) - launch, 0);
    }
    return task;
}

/* A unit's bytes on the link, and its seconds: alone, and beside a processor that contends. `last` as the
 * link's. */
struct copy {
    uint64_t bytes;
    double seconds, beside, last;
};

static void put_on_link(const struct copy *copy, struct schedule *s, struct schedule_task *task,
                        struct schedule_task **last)
{
    struct schedule_link *link = &s->link[0];
    if (s->links == 0) {
        *link = (struct schedule_link){.resource = COST_LINK,
                                       .first = task,
                                       .slowest = INFINITY,
                                       .last = copy->last};
        s->links = 1;
        *last = task;
    }
    const double seconds = larger(copy->seconds, SECONDS_LEAST);
    task->on.link = 0;
    task->bytes = larger((double)copy->bytes, 1);
    task->rate = task->bytes / seconds;
    task->rate_beside = task->bytes / larger(copy->beside, SECONDS_LEAST);
    link->least += seconds;
    link->slowest = smaller(link->slowest, task->rate);
    (*last)->next = task;
    task->next = link->first;
    *last = task;
}

/* A streamed unit's copies: its weights; its borrowed cache in the same time; before the first unit, the
 * copies that are late. */
static struct copy streamed(const struct cost_table *table, const struct cost_plan *plan, uint32_t u,
                            bool first)
{
    const struct cost_unit *unit = &table->unit[u];
    double borrow = first && plan->cold ? plan->link_late : 0;
    if (unit_part(u) == UNIT_ATTENTION && plan->kv_cpu && plan->kv_cpu[unit_layer(u)]) borrow += unit->borrow;
    return (struct copy){unit->crossing, unit->link + borrow, unit->link_beside + borrow, table->slice};
}

/* A whole unit from disk, which is computed once all of it is there. */
static struct copy read_whole(const struct cost_unit *unit)
{
    return (struct copy){unit->bytes, unit->read, unit->read, INFINITY};
}

/* A unit on the GPU: the time of its cache in the arena follows its own seconds. */
static void put_on_gpu(const struct cost_unit *unit, const struct cost_plan *plan, double seconds,
                       struct schedule_task *task)
{
    const uint32_t u = task->unit;
    const bool borrows = unit_part(u) == UNIT_ATTENTION && plan->kv_cpu && plan->kv_cpu[unit_layer(u)];
    task->kv = unit->kv;
    task->seconds = seconds - 2 * unit->kv.way - unit->kv.cpu;
    if (borrows) {
        task->seconds += unit->borrow_gpu;
        task->kv.link += unit->borrow_link;
    }
    task->beside = task->seconds;
}

void schedule_make(const struct cost_table *table, const struct cost_plan *plan, struct schedule *s)
{
    const bool ahead = is_ahead(table, plan);
    const double launch = ahead ? table->launch : 0;
    struct schedule_task *last = NULL;
    list_resources(table, plan, ahead, s);
    s->embed = end_task(&table->embed, plan->embed, launch);
    s->embed.unit = COST_SPAN_EMBED;
    s->head = end_task(&table->head, plan->head, launch);
    s->head.unit = COST_SPAN_HEAD;
    s->least = 0;
    s->tasks = table->units;
    uint8_t at = s->embed.on.worker;
    for (uint32_t u = 0; u < s->tasks; u++) {
        const struct cost_unit *unit = &table->unit[u];
        const enum plan_home home = plan->home[u];
        struct schedule_task *task = &s->task[u];
        task->unit = u;
        task->on = place_of[home];
        if (home == PLAN_HOME_CPU) {
            task->seconds = unit->cpu;
            task->beside = plan->reads ? unit->cpu : unit->cpu_beside;
            task->kv = (struct cost_kv){0};
        } else if (home == PLAN_HOME_DISK && plan->reads) {
            const struct copy copy = read_whole(unit);
            task->seconds = task->beside = unit->cpu;
            task->kv = (struct cost_kv){0};
            put_on_link(&copy, s, task, &last);
        } else if (home == PLAN_HOME_SHARED) {
            task->seconds = unit->shared;
            task->beside = unit->shared_beside;
            task->kv = (struct cost_kv){0};
        } else if (home == PLAN_HOME_DISK) {
            task->seconds = unit->disk;
            task->beside = unit->disk + larger(unit->cpu_beside - unit->cpu, 0);
            task->kv = (struct cost_kv){0};
        } else if (home == PLAN_HOME_GPU) {
            put_on_gpu(unit, plan, unit->gpu, task);
        } else if (home == PLAN_HOME_GPU1) {
            put_on_gpu(unit, plan, unit->gpu1, task);
        } else if (home == PLAN_HOME_MIXED) {
            task->kv = unit->mixed_kv;
            task->seconds = task->beside = unit->mixed - 2 * task->kv.way - task->kv.cpu;
        } else {
            const struct copy copy = streamed(table, plan, u, s->links == 0);
            put_on_gpu(unit, plan, unit->stream, task);
            put_on_link(&copy, s, task, &last);
        }
        s->least += schedule_least(task);
        if (task->on.worker == at) continue;
        s->least += s->hand_over;
        at = task->on.worker;
    }
    for (uint32_t i = 0; i < s->links; i++) s->link[i].slowest = 1 / s->link[i].slowest;
}
