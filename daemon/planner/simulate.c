/* One step on three resources: CPU, GPU, link. See cost.h. Called by the search (thousands of times a plan)
 * and by whoever explains one; owns nothing, allocates nothing.
 *
 * CPU and GPU never compute at the same time: each unit needs the one before. The link depends on neither: it
 * copies the streamed units' bytes in order, round and round, as long as the ring has room, and the ring has
 * room again as the GPU computes. All three are fluids: bytes move at rates, and a rate changes when the ring
 * becomes full or empty, when the copying reaches the next unit or when the CPU begins or ends (the two share
 * the host's memory: each has a rate alone and a rate beside the other).
 *
 * What the ring holds at a step's begin was copied while the step before ended. How a step changes that
 * amount, f, is max(low, min(high, f + d)) for some low, high and d: so the state that repeats is reached
 * after one step, either from a full ring (where d >= 0) or from an empty one. */
#include "daemon/planner/cost.h"

#include <math.h>
#include <string.h>

#include "common/model/model.h"
#include "daemon/planner/larger.h"

#define UNITS_MAX  (2 * MODEL_LAYERS_MAX)
#define EPS_BYTES  1e-3 /* less is nothing: what rounding leaves */
#define EPS_PART   1e-8 /* of a step: what such bytes may come to */
#define RING_LEAST 4096 /* bytes; streaming through no ring at all would never end */
#define SAME_BYTES 1.0
#define ROUNDS_MAX 12

struct streamed {
    double bytes, alone, beside; /* rates in bytes a second */
    uint32_t unit;
};

struct simulation {
    const struct cost_table *table;
    const struct cost_plan *plan;
    struct cost_result *result; /* NULL: only the time counts */
    double now, give_up;
    /* the link: `fill` bytes of the ring are copied and not yet computed with; `left` of unit `at` to copy */
    double ring, fill, left;
    uint32_t count, at;
    bool
        alone; /* the GPU computes all of a step of one token, which is launched ahead (worker-gpu/ahead.h) */
    bool ended; /* cold: everything is copied */
    /* the CPU: whether it sleeps when the step begins, when its first unit came and its last one ended */
    bool asleep, cpu_used;
    double cpu_first, cpu_end;
    double ready;  /* before that the GPU has other things to do */
    double issued; /* until when the host puts the kernels so far into the GPU's queue */
    double busy[COST_RESOURCES], hand_overs;
    /* What the step's units take at least: computed with and handed over, and copied; `slowest`: of the rates
     * at which they are. */
    double least, least_link, slowest;
    struct streamed streamed[UNITS_MAX];
};

/* ---- the timeline ---- */

static void note_span(struct simulation *s, enum cost_resource resource, uint32_t unit, double from,
                      double to)
{
    struct cost_result *r = s->result;
    if (!r || !r->span || to <= from) return;
    if (resource == COST_LINK) /* one span for copies of a unit without a pause between them */
        for (uint32_t i = r->span_count; i-- > 0;) {
            struct cost_span *last = &r->span[i];
            if (last->resource != COST_LINK) continue;
            if (last->unit != unit || from - last->to > 1e-12) break;
            last->to = to;
            return;
        }
    if (r->span_count < r->span_max)
        r->span[r->span_count++] =
            (struct cost_span){.resource = resource, .unit = unit, .from = from, .to = to};
}

/* ---- the link ---- */

static void copy(struct simulation *s, double bytes)
{
    s->fill += bytes;
    s->left -= bytes;
    if (s->left > EPS_BYTES) return;
    s->fill += s->left;
    if (++s->at == s->count) {
        s->at = 0;
        s->ended = s->plan->cold;
    }
    s->left = s->streamed[s->at].bytes;
}

/* Copies for `seconds` from s->now on, or until the ring is full. Returns how long. */
static double link_run(struct simulation *s, double seconds, bool beside)
{
    double active = 0;
    if (s->count == 0) return 0;
    while (!s->ended && active < seconds) {
        double room = s->ring - s->fill;
        if (room <= EPS_BYTES) break;
        const struct streamed *q = &s->streamed[s->at];
        double rate = beside ? q->beside : q->alone;
        double bytes = smaller(s->left, room), dt = bytes / rate;
        if (dt > seconds - active) {
            dt = seconds - active;
            bytes = dt * rate;
        }
        note_span(s, COST_LINK, q->unit, s->now + active, s->now + active + dt);
        copy(s, bytes);
        active += dt;
    }
    s->busy[COST_LINK] += active;
    return active;
}

/* ---- the processors ---- */

/* The GPU with what it has, or nobody: a hand-over, the step's begin and end. */
static void run_alone(struct simulation *s, double seconds)
{
    link_run(s, seconds, false);
    s->now += seconds;
}

/* After a pause the CPU's threads sleep, and all of a unit is not under way until they are awake. */
static void wake_cpu(struct simulation *s)
{
    bool asleep = s->cpu_used ? s->now - s->cpu_end > COST_CPU_AWAKE_S : s->asleep;
    if (!s->cpu_used) s->cpu_first = s->now;
    s->cpu_used = true;
    if (!asleep) return;
    run_alone(s, s->table->wake);
    s->busy[COST_CPU] += s->table->wake;
}

/* The CPU is slower for as long as the link copies. */
static void run_cpu(struct simulation *s, uint32_t unit, double alone, double beside)
{
    double begin = s->now;
    bool shared = unit != COST_SPAN_EMBED || s->table->tokens > 1; /* a single row is one thread's */
    if (shared) wake_cpu(s);
    double seconds = alone, active = link_run(s, beside, true);
    if (active > 0) seconds = active + (beside > active ? (1 - active / beside) * alone : 0);
    note_span(s, COST_CPU, unit, begin, s->now + seconds);
    s->busy[COST_CPU] += seconds;
    s->now += seconds;
    if (shared) s->cpu_end = s->now;
}

/* A chunk's kernels are put into the queue one by one, all of them from the step's begin on, whoever computes
 * meanwhile: the GPU cannot be done with what is not in it. */
static void wait_for_host(struct simulation *s, double until)
{
    if (s->now < until) run_alone(s, until - s->now);
}

static void run_gpu(struct simulation *s, uint32_t unit, double seconds, double issue)
{
    double begin = s->now;
    wait_for_host(s, s->ready);
    s->busy[COST_GPU] += seconds;
    run_alone(s, seconds);
    s->issued += issue;
    wait_for_host(s, s->issued);
    note_span(s, COST_GPU, unit, begin, s->now);
}

/* Weights in the ring: computed with no faster than they come; room in the ring as they are done with. */
static void run_stream(struct simulation *s, const struct streamed *q, double gpu, double issue)
{
    wait_for_host(s, s->ready);
    double begin = s->now, came = s->now, left = q->bytes, own = q->bytes / larger(gpu, 1e-12);
    bool all_came = s->fill >= left - EPS_BYTES;
    while (left > EPS_BYTES) {
        const struct streamed *next = &s->streamed[s->at];
        double room = s->ring - s->fill, copied = s->ended ? 0 : next->alone, used = own;
        if (room <= EPS_BYTES && copied > own) copied = own;
        if (s->fill <= EPS_BYTES && copied < own) used = copied;
        double net = copied - used, dt = left / used;
        if (copied > 0) dt = smaller(dt, s->left / copied);
        if (net > 0 && room > EPS_BYTES) dt = smaller(dt, room / net);
        if (net < 0 && !all_came) dt = smaller(dt, s->fill / -net);
        left -= used * dt;
        s->fill -= used * dt;
        if (copied > 0) {
            note_span(s, COST_LINK, next->unit, s->now, s->now + dt);
            s->busy[COST_LINK] += dt * (copied / next->alone); /* the rest of dt it waits for room */
            copy(s, copied * dt);
        }
        if (s->fill < 0) s->fill = 0;
        s->now += dt;
        if (!all_came && s->fill >= left - EPS_BYTES) {
            all_came = true;
            came = s->now;
        }
    }
    /* Where the GPU waited to the end, it still has the last slice before it. */
    double last = smaller(s->table->slice, gpu), late = came > begin ? came + last - s->now : 0;
    if (late > 0) run_alone(s, late);
    s->busy[COST_GPU] += gpu;
    s->issued += issue;
    wait_for_host(s, s->issued);
    note_span(s, COST_GPU, q->unit, begin, s->now);
}

static double hand_over_s(const struct cost_table *table)
{
    return table->hand_over + table->activation;
}

static void hand_over(struct simulation *s)
{
    double seconds = hand_over_s(s->table);
    run_alone(s, seconds);
    s->hand_overs += seconds;
}

static void run_end(struct simulation *s, uint32_t name, const struct cost_unit *u, enum plan_home home)
{
    if (home == PLAN_HOME_CPU)
        run_cpu(s, name, u->cpu, u->cpu_beside);
    else
        run_gpu(s, name, larger(u->gpu - (s->alone ? s->table->launch : 0), 0), u->issue);
}

static double own_seconds(const struct cost_unit *unit, enum plan_home home)
{
    return home == PLAN_HOME_CPU   ? smaller(unit->cpu, unit->cpu_beside)
           : home == PLAN_HOME_GPU ? unit->gpu
                                   : unit->stream;
}

/* What is left of a step. */
struct rest {
    double least, link;
};

/* Whether the step certainly takes longer than `most`: what is left of it takes as long as its units or its
 * copies do, but those that the ring holds. */
static bool is_late(const struct simulation *s, const struct rest *rest, double most)
{
    double link = rest->link - s->fill / s->slowest;
    return s->now + larger(rest->least, link) > most;
}

/* One step from the ring's present state. False: ended early, as it takes longer than `most`. */
static bool run_step(struct simulation *s, double most)
{
    const struct cost_table *table = s->table;
    const struct cost_plan *plan = s->plan;
    struct cost_result *r = s->result;
    enum plan_home at = plan->embed;
    struct rest rest = {s->least, s->least_link};
    uint32_t next = 0;
    s->now = s->hand_overs = 0;
    s->issued = s->alone ? 0 : table->begin;
    s->ready = s->alone ? 0 : plan->embed == PLAN_HOME_CPU ? table->ready : table->begin;
    s->cpu_used = false;
    memset(s->busy, 0, sizeof s->busy);
    if (r) r->span_count = 0;
    run_end(s, COST_SPAN_EMBED, &table->embed, plan->embed);
    for (uint32_t u = 0; u < table->units; u++) {
        enum plan_home home = plan->home[u], worker = plan_home_worker(home);
        const struct cost_unit *unit = &table->unit[u];
        if (worker != at) {
            hand_over(s);
            rest.least -= hand_over_s(table);
        }
        at = worker;
        if (home == PLAN_HOME_STREAM) {
            const struct streamed *q = &s->streamed[next++];
            run_stream(s, q, unit->stream, unit->issue_stream);
            rest.link -= q->bytes / q->alone;
        } else if (worker == PLAN_HOME_CPU) {
            run_cpu(s, u, unit->cpu, unit->cpu_beside);
        } else {
            run_gpu(s, u, unit->gpu, unit->issue);
        }
        rest.least -= own_seconds(unit, home);
        if (r && r->done) r->done[u] = s->now;
        if (is_late(s, &rest, most)) return false;
    }
    if (plan->head != at) hand_over(s);
    run_end(s, COST_SPAN_HEAD, &table->head, plan->head);
    if (r && r->done) r->done[table->units] = s->now;
    if (!s->alone) run_alone(s, table->step);
    if (r && r->done) r->done[table->units + 1] = s->now;
    return true;
}

/* ---- rounds ---- */

static void list_units(struct simulation *s)
{
    enum plan_home at = s->plan->embed;
    s->count = 0;
    s->least = s->least_link = 0;
    s->alone = s->table->tokens == 1 && !s->plan->cold && s->plan->embed == PLAN_HOME_GPU &&
               s->plan->head == PLAN_HOME_GPU;
    s->slowest = INFINITY;
    for (uint32_t u = 0; u < s->table->units && s->count < UNITS_MAX; u++) {
        const struct cost_unit *unit = &s->table->unit[u];
        enum plan_home home = s->plan->home[u], worker = plan_home_worker(home);
        s->least += own_seconds(unit, home) + (worker != at ? hand_over_s(s->table) : 0);
        at = worker;
        if (home != PLAN_HOME_GPU) s->alone = false;
        if (home != PLAN_HOME_STREAM) continue;
        double bytes = larger((double)unit->crossing, 1);
        double borrow = s->count == 0 && s->plan->cold ? s->plan->link_late : 0; /* what comes first */
        if (!(u & 1) && s->plan->kv_cpu && s->plan->kv_cpu[u / 2]) borrow += unit->borrow;
        double link = larger(unit->link + borrow, 1e-12), alone = bytes / link;
        s->streamed[s->count++] =
            (struct streamed){.bytes = bytes,
                              .alone = alone,
                              .beside = bytes / larger(unit->link_beside + borrow, 1e-12),
                              .unit = u};
        s->least_link += link;
        s->slowest = smaller(s->slowest, alone);
    }
}

static void begin_with(struct simulation *s, double fill)
{
    s->fill = 0;
    s->at = 0;
    s->left = s->streamed[0].bytes;
    s->ended = false;
    while (fill > EPS_BYTES && !s->ended) {
        double bytes = smaller(fill, s->left);
        fill -= bytes;
        copy(s, bytes);
    }
}

/* Runs a step; whether the ring ended as it began. s->now is above `most` where the step would have been. */
static bool run_round(struct simulation *s, double most)
{
    double fill = s->fill;
    if (!run_step(s, most)) s->now = INFINITY;
    return s->count == 0 || s->plan->cold || fabs(s->fill - fill) < SAME_BYTES;
}

/* Whether the CPU's pause between its last unit of a step and its first of the next one is too long. */
static bool falls_asleep(const struct simulation *s)
{
    return s->cpu_used && s->cpu_first + (s->now - s->cpu_end) > COST_CPU_AWAKE_S;
}

static bool run(struct simulation *s)
{
    list_units(s);
    s->ring = larger((double)s->plan->ring_bytes, RING_LEAST);
    double held = s->plan->cold ? smaller(s->ring, (double)s->plan->held_bytes) : s->ring;
    if (s->count) begin_with(s, held);
    s->fill = s->count ? s->fill : 0;
    s->asleep = s->plan->cold;
    bool known = s->plan->cold || s->table->wake <= 0; /* whether the CPU sleeps when a step begins */
    for (int i = 0; i < ROUNDS_MAX; i++) {
        if (i == 2) begin_with(s, 0);
        /* From a full ring on, no later step is faster than this one: with a CPU that is awake, the less. */
        const double most = i < 2 ? s->give_up * (1 + EPS_PART) : INFINITY;
        bool same = run_round(s, most);
        if (i < 2 && s->now > s->give_up) return false;
        if (!known && falls_asleep(s)) {
            s->asleep = true;
            if (s->count) begin_with(s, held);
            same = false;
            i = -1;
        }
        known = true;
        if (same) break;
    }
    return s->now <= s->give_up;
}

void cost_simulate(const struct cost_table *table, const struct cost_plan *plan, struct cost_result *result)
{
    struct simulation s; /* 64 KiB, of which what is used is filled in */
    s.table = table;
    s.plan = plan;
    s.result = result;
    s.give_up = INFINITY;
    run(&s);
    result->seconds = s.now;
    result->hand_overs = s.hand_overs;
    memcpy(result->busy, s.busy, sizeof s.busy);
}

double cost_seconds(const struct cost_table *table, const struct cost_plan *plan, double give_up)
{
    struct simulation s;
    s.table = table;
    s.plan = plan;
    s.result = NULL;
    s.give_up = give_up;
    return run(&s) ? s.now : INFINITY;
}
