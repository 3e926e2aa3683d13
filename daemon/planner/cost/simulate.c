/* One step on a list of resources: processors and links. See cost.h and schedule.h. Called by the search
 * (thousands of times a plan), by forecasts and by reports; owns nothing, allocates nothing.
 *
 * No two processors compute at the same time: each unit needs the one before. The links depend on neither:
 * each copies its streamed units' bytes in order, round and round, as long as its ring has room, and the ring
 * has room again as units are computed. All are fluids: bytes move at rates, and a rate changes when the ring
 * becomes full or empty, when the copying reaches the next unit or when a processor that reads the same
 * memory begins or ends (each has a rate alone and a rate beside the other).
 *
 * The ring's bytes at a step's begin were copied while the step before ended. How a step changes that amount,
 * f, is max(low, min(high, f + d)) for some low, high and d: so the state that repeats is reached after one
 * step, either from a full ring (where d >= 0) or from an empty one. */
#include <math.h>
#include <string.h>

#include "daemon/planner/cost/larger.h"
#include "daemon/planner/cost/schedule.h"

#define ROUNDS_MAX 12

/* `fill` bytes of the ring are copied and not yet computed with; `left` of task `at` to copy. Where no task
 * needs a link, the first one's state is that of a link that has ended. */
struct link_state {
    double fill, left;
    double slowest;    /* as the schedule says */
    double busy, rest; /* seconds, of a step: it copied; what is left of its copies at least */
    double owed;       /* seconds in which it has other things to move before it copies on */
    const struct schedule_task *at, *first;
    bool ended; /* cold: everything is copied */
};

struct simulation {
    const struct schedule *plan;
    struct cost_result *result; /* NULL: only the time counts */
    double now, give_up;
    uint32_t links; /* copied from the schedule: what is asked most often */
    bool cold;
    double ring;
    double least; /* seconds: what is left of the step's units and hand-overs at least */
    double hand_overs;
    struct link_state link[COST_RESOURCES]; /* as the schedule's lists */
    double busy[COST_RESOURCES];            /* seconds of each processor */
};

/* ---- the timeline ---- */

static void add_span(struct cost_result *r, const struct cost_span *span, bool link)
{
    if (span->to <= span->from) return;
    for (uint32_t i = link ? r->span_count : 0; i-- > 0;) {
        struct cost_span *last = &r->span[i]; /* one span for copies of a unit without a pause between them */
        if (last->resource != span->resource) continue;
        if (last->unit != span->unit || span->from - last->to > SECONDS_LEAST) break;
        last->to = span->to;
        return;
    }
    if (r->span_count < r->span_max) r->span[r->span_count++] = *span;
}

static inline void note_task(struct simulation *s, const struct schedule_task *task, double from, double to)
{
    if (!s->result || !s->result->span) return;
    const struct cost_span span = {(enum cost_resource)task->on.processor, task->unit, from, to};
    add_span(s->result, &span, false);
}

static inline void note_copy(struct simulation *s, uint32_t link, uint32_t unit, double from, double to)
{
    if (!s->result || !s->result->span) return;
    const enum cost_resource resource = link < s->links ? s->plan->link[link].resource : COST_LINK;
    const struct cost_span span = {resource, unit, from, to};
    add_span(s->result, &span, true);
}

/* ---- links ---- */

static inline void copy(struct link_state *link, double bytes, bool cold)
{
    link->fill += bytes;
    link->left -= bytes;
    if (link->left > BYTES_LEAST) return;
    link->fill += link->left;
    link->at = link->at->next;
    if (link->at == link->first) link->ended = cold;
    link->left = link->at->bytes;
}

/* Copies for `seconds` from s->now on, or until the ring is full. Returns how long. */
static double run_link(struct simulation *s, uint32_t i, double seconds, bool beside)
{
    struct link_state *const now = &s->link[i];
    const double space = s->ring - now->fill;
    if (!s->result && !now->ended && now->owed <= 0 && space > BYTES_LEAST && seconds > 0) {
        const double rate =
            beside ? now->at->rate_beside : now->at->rate; /* mostly this is all that is copied: */
        if (smaller(now->left, space) / rate > seconds) {
            copy(now, seconds * rate, s->cold);
            now->busy += seconds;
            return seconds;
        }
    }
    struct link_state link = s->link[i]; /* a copy, that nothing else points at */
    const double ring = s->ring;
    const bool cold = s->cold;
    double active = smaller(link.owed, seconds);
    link.owed -= active;
    note_copy(s, i, COST_SPAN_CACHE, s->now, s->now + active);
    while (!link.ended && active < seconds) {
        double room = ring - link.fill;
        if (room <= BYTES_LEAST) break;
        const struct schedule_task *task = link.at;
        double rate = beside ? task->rate_beside : task->rate;
        double bytes = smaller(link.left, room), dt = bytes / rate;
        if (dt > seconds - active) {
            dt = seconds - active;
            bytes = dt * rate;
        }
        note_copy(s, i, task->unit, s->now + active, s->now + active + dt);
        copy(&link, bytes, cold);
        active += dt;
    }
    link.busy += active;
    s->link[i] = link;
    return active;
}

/* All of them. Returns how long the longest copies. */
static inline double run_links(struct simulation *s, double seconds, bool beside)
{
    double longest = (s->link[0].ended || s->ring - s->link[0].fill <= BYTES_LEAST) &&
                             s->link[0].owed <= 0 /* most are full */
                         ? 0
                         : run_link(s, 0, seconds, beside);
    for (uint32_t i = 1; i < s->links; i++) longest = larger(longest, run_link(s, i, seconds, beside));
    return longest;
}

/* ---- processors ---- */

/* A processor with what it has, or none: a hand-over, the step's begin and end. */
static void run_alone(struct simulation *s, double seconds)
{
    run_links(s, seconds, false);
    s->now += seconds;
}

/* Slower for as long as a link copies. */
static void run_contending(struct simulation *s, const struct schedule_task *task)
{
    const double begin = s->now;
    double seconds = task->seconds, active = run_links(s, task->beside, true);
    if (active > 0)
        seconds = active + (task->beside > active ? (1 - active / task->beside) * task->seconds : 0);
    note_task(s, task, begin, s->now + seconds);
    s->busy[task->on.processor] += seconds;
    s->now += seconds;
}

/* Before a moment of the step the processor has other things to do. */
static inline void wait_until(struct simulation *s, double until)
{
    if (s->now < until) run_alone(s, until - s->now);
}

static void run_queued(struct simulation *s, const struct schedule_task *task)
{
    double begin = s->now;
    wait_until(s, s->plan->processor[task->on.processor].ready);
    s->busy[task->on.processor] += task->seconds;
    run_alone(s, task->seconds);
    note_task(s, task, begin, s->now);
}

/* Weights in the ring: computed with no faster than they come; room in the ring as they are done with. */
static void run_streamed(struct simulation *s, const struct schedule_task *task)
{
    const struct schedule *const plan = s->plan;
    wait_until(s, plan->processor[task->on.processor].ready);
    struct link_state link = s->link[task->on.link]; /* a copy, that nothing else points at */
    double begin = s->now, came = s->now, left = task->bytes,
           own = task->bytes / larger(task->seconds, SECONDS_LEAST);
    bool all_came = link.fill >= left - BYTES_LEAST;
    while (left > BYTES_LEAST) {
        const struct schedule_task *next = link.at;
        double room = s->ring - link.fill, copied = link.ended || link.owed > 0 ? 0 : next->rate, used = own;
        if (room <= BYTES_LEAST && copied > own) copied = own;
        if (link.fill <= BYTES_LEAST && copied < own) used = copied;
        double net = copied - used, dt = left / used;
        if (copied > 0) dt = smaller(dt, link.left / copied);
        if (net > 0 && room > BYTES_LEAST) dt = smaller(dt, room / net);
        if (net < 0 && !all_came) dt = smaller(dt, link.fill / -net);
        if (link.owed > 0) dt = smaller(dt, link.owed);
        left -= used * dt;
        link.fill -= used * dt;
        if (link.owed > 0) {
            note_copy(s, task->on.link, COST_SPAN_CACHE, s->now, s->now + dt);
            link.busy += dt;
            link.owed = larger(link.owed - dt, 0);
        }
        if (copied > 0) {
            note_copy(s, task->on.link, next->unit, s->now, s->now + dt);
            /* the rest of dt it waits for room */
            if (s->result) link.busy += dt * (copied / next->rate);
            copy(&link, copied * dt, s->cold);
        }
        if (link.fill < 0) link.fill = 0;
        for (uint32_t i = 0; i + 1 < s->links; i++) run_link(s, i < task->on.link ? i : i + 1, dt, false);
        s->now += dt;
        if (!all_came && link.fill >= left - BYTES_LEAST) {
            all_came = true;
            came = s->now;
        }
    }
    s->link[task->on.link] = link;
    /* A processor that waited to the end still has the last slice before it. */
    const double last = smaller(plan->link[task->on.link].last, task->seconds);
    const double late = came > begin ? came + last - s->now : 0;
    if (late > 0) run_alone(s, late);
    s->busy[task->on.processor] += task->seconds;
    note_task(s, task, begin, s->now);
}

/* Words and activations cross between the pieces of copies, where there are some. */
static void hand_over(struct simulation *s, double seconds)
{
    for (uint32_t i = 0; i < s->links && s->plan->hand_over_more > 0; i++) {
        if (s->link[i].ended || s->ring - s->link[i].fill <= BYTES_LEAST) continue;
        seconds += s->plan->hand_over_more;
        break;
    }
    run_alone(s, seconds);
    s->hand_overs += seconds;
}

/* The CPU attends to a part of the cache of a unit that the GPU computes, while that attends too, or
 * waits. */
static void run_assist(struct simulation *s, const struct schedule_task *task)
{
    const struct cost_kv *kv = &task->kv;
    const struct schedule_task attend = {.seconds = kv->cpu,
                                         .beside = kv->cpu_beside,
                                         .unit = task->unit,
                                         .on = {.processor = COST_CPU}};
    hand_over(s, kv->way);
    run_contending(s, &attend);
    hand_over(s, kv->way);
}

static inline void run_task(struct simulation *s, const struct schedule_task *task)
{
    const struct cost_kv *kv = &task->kv;
    if (kv->way <= 0) s->link[0].owed += kv->link;
    if (task->on.link != SCHEDULE_NO_LINK)
        run_streamed(s, task);
    else if (task->on.contends)
        run_contending(s, task);
    else
        run_queued(s, task);
    if (kv->way <= 0) return;
    s->link[0].owed += kv->link;
    run_assist(s, task);
}

/* Whether the step certainly takes longer than `most`: what is left of it takes as long as its units or its
 * copies do, but those that the ring holds. */
static bool is_late(const struct simulation *s, double most)
{
    double least = larger(s->least, s->link[0].rest - s->link[0].fill * s->link[0].slowest);
    for (uint32_t i = 1; i < s->links; i++)
        least = larger(least, s->link[i].rest - s->link[i].fill * s->link[i].slowest);
    return s->now + least > most;
}

static void begin_step(struct simulation *s)
{
    const struct schedule *plan = s->plan;
    s->now = s->hand_overs = 0;
    s->least = plan->least;
    for (uint32_t p = 0; p < plan->processors; p++) s->busy[p] = 0;
    s->link[0].busy = 0;
    for (uint32_t i = 0; i < plan->links; i++) {
        s->link[i].rest = plan->link[i].least;
        s->link[i].busy = 0;
    }
    if (s->result) s->result->span_count = 0;
}

/* One step from the rings' present state. False: ended early, as it takes longer than `most`. */
static bool run_step(struct simulation *s, double most)
{
    const struct schedule *plan = s->plan;
    double *done = s->result ? s->result->done : NULL;
    uint8_t at = plan->embed.on.worker;
    begin_step(s);
    run_task(s, &plan->embed);
    for (uint32_t i = 0; i < plan->tasks; i++) {
        const struct schedule_task *task = &plan->task[i];
        if (task->on.worker != at) {
            hand_over(s, plan->hand_over);
            s->least -= plan->hand_over;
            at = task->on.worker;
        }
        run_task(s, task);
        if (task->on.link != SCHEDULE_NO_LINK) s->link[task->on.link].rest -= task->bytes / task->rate;
        s->least -= schedule_least(task);
        if (done) done[i] = s->now;
        if (is_late(s, most)) return false;
    }
    if (plan->head.on.worker != at) hand_over(s, plan->hand_over);
    run_task(s, &plan->head);
    if (done) done[plan->tasks] = s->now;
    run_alone(s, plan->end);
    if (done) done[plan->tasks + 1] = s->now;
    return true;
}

/* ---- rounds ---- */

/* Every link with `fill` bytes in its ring. */
static void begin_with(struct simulation *s, double fill)
{
    const struct schedule *plan = s->plan;
    for (uint32_t i = 0; i < plan->links; i++) {
        struct link_state *link = &s->link[i];
        const struct schedule_task *first = plan->link[i].first;
        *link = (struct link_state){.at = first,
                                    .first = first,
                                    .left = first->bytes,
                                    .slowest = plan->link[i].slowest};
        for (double rest = fill; rest > BYTES_LEAST && !link->ended;) {
            double bytes = smaller(rest, link->left);
            rest -= bytes;
            copy(link, bytes, s->cold);
        }
    }
}

/* Runs a step; whether the rings ended as they began. s->now is above `most` where the step would have
 * been. */
static bool run_round(struct simulation *s, double most)
{
    double before[COST_RESOURCES];
    bool same = true;
    for (uint32_t i = 0; i < s->plan->links; i++) before[i] = s->link[i].fill;
    if (!run_step(s, most)) s->now = INFINITY;
    for (uint32_t i = 0; i < s->plan->links; i++)
        same = same && fabs(s->link[i].fill - before[i]) < 1 /* byte */;
    return same || s->plan->cold;
}

static bool run(struct simulation *s)
{
    const struct schedule *plan = s->plan;
    s->links = plan->links;
    s->cold = plan->cold;
    s->ring = plan->ring;
    s->link[0] = (struct link_state){.ended = true};
    begin_with(s, plan->held);
    for (int i = 0; i < ROUNDS_MAX; i++) {
        if (i == 2) begin_with(s, 0);
        /* From full rings on, no later step is faster than this one. */
        const double most = i < 2 ? s->give_up * (1 + ROUNDING) : INFINITY;
        bool same = run_round(s, most);
        if (i < 2 && s->now > s->give_up) return false;
        if (same) break;
    }
    return s->now <= s->give_up;
}

static bool simulate(struct simulation *s, const struct cost_table *table, const struct cost_plan *plan)
{
    struct schedule_task task[SCHEDULE_UNITS_MAX]; /* what is used is filled in */
    struct schedule schedule;
    schedule.task = task;
    schedule_make(table, plan, &schedule);
    s->plan = &schedule;
    bool in_time = run(s);
    if (!s->result) return in_time;
    s->result->seconds = s->now;
    s->result->hand_overs = s->hand_overs;
    memset(s->result->busy, 0, sizeof s->result->busy);
    for (uint32_t p = 0; p < schedule.processors; p++) s->result->busy[p] = s->busy[p];
    s->result->busy[COST_LINK] = s->link[0].busy; /* of what else it moved, where it copies no weights */
    for (uint32_t i = 0; i < schedule.links; i++)
        s->result->busy[schedule.link[i].resource] = s->link[i].busy;
    return in_time;
}

void cost_simulate(const struct cost_table *table, const struct cost_plan *plan, struct cost_result *result)
{
    struct simulation s; /* what is used is filled in */
    s.result = result;
    s.give_up = INFINITY;
    simulate(&s, table, plan);
}

double cost_seconds(const struct cost_table *table, const struct cost_plan *plan, double give_up)
{
    struct simulation s;
    s.result = NULL;
    s.give_up = give_up;
    bool in_time = simulate(&s, table, plan);
    return in_time ? s.now : INFINITY;
}
