/* The space of plans. See search/space.h. Called by search*.c. */
#include "daemon/planner/search/space.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "daemon/planner/cost/larger.h"

static bool same_item(const struct space_item *a, const struct space_item *b)
{
    return a->count == b->count && a->allowed == b->allowed && a->crossing == b->crossing &&
           a->link == b->link && a->cache == b->cache &&
           memcmp(a->seconds, b->seconds, sizeof a->seconds) == 0 &&
           memcmp(a->vram, b->vram, sizeof a->vram) == 0 && memcmp(a->host, b->host, sizeof a->host) == 0 &&
           memcmp(a->floor, b->floor, sizeof a->floor) == 0;
}

static void number_kinds(struct space *s)
{
    s->kinds = 0;
    for (uint32_t i = 0; i < s->items; i++) {
        uint32_t k = 0;
        while (k < s->kinds && !same_item(&s->item[s->kind_first[k]], &s->item[i])) k++;
        s->item[i].kind = k;
        if (k == s->kinds) {
            s->kind_first[s->kinds] = i;
            s->kind_count[s->kinds++] = 0;
        }
        s->kind_count[k]++;
    }
}

static void add_unit(struct space *s, uint32_t unit, struct space_item *item)
{
    struct search_bytes *bytes = &s->bytes[SPACE_HOMES * (item - s->item)];
    const struct cost_unit *u = &s->table->unit[unit];
    item->seconds[PLAN_HOME_CPU] += u->cpu;
    item->seconds[PLAN_HOME_GPU] += u->gpu;
    item->seconds[PLAN_HOME_STREAM] += u->stream;
    item->link +=
        u->link +
        (s->kv_cpu && unit_part(unit) == UNIT_ATTENTION && s->kv_cpu[unit_layer(unit)] ? u->borrow : 0);
    item->crossing += u->crossing;
    item->cache += u->kv.link;
    for (int h = 0; h < SPACE_HOMES && s->memory; h++) {
        item->vram[h] += s->memory->unit[SPACE_HOMES * unit + (uint32_t)h].vram;
        item->host[h] += s->memory->unit[SPACE_HOMES * unit + (uint32_t)h].host;
        bytes[h] = (struct search_bytes){.vram = item->vram[h], .host = item->host[h]};
    }
}

static int allocate(struct space *s, uint32_t items, struct helm_err *err)
{
    uint32_t units = s->table->units;
    s->items = items;
    s->item = calloc(items, sizeof *s->item);
    s->kind_first = calloc(2 * (size_t)items, sizeof *s->kind_first);
    s->priced = calloc(SPACE_PRICED, sizeof *s->priced);
    s->home = calloc(2 * (size_t)units, sizeof *s->home);
    s->bytes = calloc(SPACE_HOMES * (size_t)items, sizeof *s->bytes);
    if (!s->item || !s->kind_first || !s->priced || !s->home || !s->bytes)
        return helm_fail(err, HELM_E_NOMEM, "no memory to search homes of %u half layers", units);
    s->kind_count = s->kind_first + items;
    s->scratch = s->home + units;
    return 0;
}

static void add_ends(struct space *s, enum plan_processor embed, enum plan_processor head, bool tied)
{
    struct space_ends *e = &s->ends[s->ends_count++];
    const struct cost_table *t = s->table;
    *e = (struct space_ends){.embed = embed, .head = head};
    e->seconds = t->step + (embed == PLAN_CPU0 ? t->embed.cpu : t->embed.gpu) +
                 (head == PLAN_CPU0 ? t->head.cpu : t->head.gpu);
    /* what all on the GPU does without, and nothing else: it takes at least that */
    if (embed != PLAN_CPU0 && head != PLAN_CPU0) e->seconds -= t->step + 2 * t->launch;
    if (!s->memory) return;
    if (tied) {
        e->bytes = s->memory->tied_both[embed];
    } else {
        e->bytes.vram = s->memory->embed[embed].vram + s->memory->head[head].vram;
        e->bytes.host = s->memory->embed[embed].host + s->memory->head[head].host;
    }
}

int space_open(struct space *s, const struct search_problem *problem, unsigned allowed, unsigned embeds,
               unsigned heads, struct helm_err *err)
{
    uint32_t step = problem->whole_layers ? 2 : 1;
    memset(s, 0, sizeof *s);
    s->table = problem->decode;
    s->memory = problem->memory;
    s->must_use = problem->must_use;
    s->must_attend = problem->must_attend;
    s->restricted = s->must_use || s->must_attend;
    s->hand_over = s->table->hand_over + s->table->activation;
    s->fastest = INFINITY;
    if (!problem->device) {
        allowed &= 1u << PLAN_HOME_CPU;
        embeds &= 1u << PLAN_HOME_CPU;
        heads &= 1u << PLAN_HOME_CPU;
    }
    if (problem->no_stream) allowed &= ~(1u << PLAN_HOME_STREAM);
    if (problem->memory->ring_granule == 0 || problem->memory->ring_granule > problem->memory->ring_max)
        allowed &= ~(1u << PLAN_HOME_STREAM);
    int rc = allocate(s, s->table->units / step, err);
    if (rc) return rc;
    for (uint32_t i = 0; i < s->items; i++) {
        s->item[i] = (struct space_item){.first = i * step, .count = step, .allowed = allowed};
        for (uint32_t u = 0; u < step; u++) {
            add_unit(s, i * step + u, &s->item[i]);
            const struct cost_unit *unit = &s->table->unit[i * step + u];
            if (unit->stays) s->item[i].allowed &= ~(1u << PLAN_HOME_STREAM);
            if (unit->together && problem->together)
                s->item[i].allowed &= problem->together, s->restricted = true;
        }
    }
    for (uint32_t i = 0; i < s->items && problem->second; i++) {
        if (s->item[i].first + problem->second < s->table->units) continue;
        s->item[i].allowed = 1u << PLAN_HOME_GPU;
        s->restricted = true;
    }
    for (int e = 0; e < 2; e++)
        for (int h = 0; h < 2; h++)
            if ((embeds & 1u << e) && (heads & 1u << h) && (e == h || !problem->tied))
                add_ends(s, (enum plan_processor)e, (enum plan_processor)h, problem->tied);
    bound_floors(s, s->memory ? s->memory->ring_max : s->ring_fixed);
    number_kinds(s);
    return 0;
}

int space_open_prefill(struct space *s, const struct cost_table *prefill, const struct search_found *decode,
                       const bool *kv_cpu, struct helm_err *err)
{
    memset(s, 0, sizeof *s);
    s->table = prefill;
    s->kv_cpu = kv_cpu;
    s->cold = true;
    s->hand_over = prefill->hand_over + prefill->activation;
    s->fastest = INFINITY;
    s->ring_fixed = decode->ring_bytes;
    int rc = allocate(s, prefill->units, err);
    if (rc) return rc;
    for (uint32_t u = 0; u < s->items; u++) {
        enum plan_home home = decode->home[u];
        unsigned allowed = 1u << PLAN_HOME_CPU | 1u << PLAN_HOME_STREAM;
        if (home == PLAN_HOME_GPU) allowed = 1u << PLAN_HOME_GPU;
        if (home == PLAN_HOME_CPU && decode->ring_bytes == 0) allowed = 1u << PLAN_HOME_CPU;
        /* where the cache is in VRAM; what is packed so that only the GPU has a use for it */
        const struct cost_unit *unit = &prefill->unit[u];
        if (home == PLAN_HOME_STREAM &&
            (unit_part(u) == UNIT_ATTENTION || (unit->packed && !unit->cpu_packed)))
            allowed = 1u << PLAN_HOME_STREAM;
        /* a cache that several layers read is borrowed by none */
        if (unit->together && home == PLAN_HOME_CPU) allowed = 1u << PLAN_HOME_CPU;
        s->item[u] = (struct space_item){.first = u, .count = 1, .allowed = allowed};
        add_unit(s, u, &s->item[u]);
    }
    add_ends(s, decode->embed, decode->head, false);
    bound_floors(s, s->memory ? s->memory->ring_max : s->ring_fixed);
    number_kinds(s);
    return 0;
}

void space_close(struct space *s)
{
    free(s->item);
    free(s->kind_first);
    free(s->priced);
    free(s->home);
    free(s->bytes);
    memset(s, 0, sizeof *s);
}

uint32_t space_changes(const struct space *s, const enum plan_home *home, const struct space_ends *ends)
{
    uint32_t units = s->table->units;
    uint32_t changes = plan_home_processor(home[0]) != ends->embed;
    for (uint32_t u = 1; u < units; u++) changes += home[u] != home[u - 1];
    return changes + (plan_home_processor(home[units - 1]) != ends->head);
}

static bool gpu_used(unsigned uses, const struct space_ends *ends)
{
    return (uses & (1u << PLAN_HOME_GPU | 1u << PLAN_HOME_STREAM)) || ends->embed != PLAN_CPU0 ||
           ends->head != PLAN_CPU0;
}

uint64_t space_ring_least(const struct space *s, unsigned uses, const struct space_ends *ends)
{
    if (!s->memory) return s->ring_fixed;
    uint64_t granule = s->memory->ring_granule, least = s->memory->ring_least;
    if (granule == 0) return 0;
    bool kept = uses & 1u << PLAN_HOME_CPU && gpu_used(uses, ends);
    if (!(uses & 1u << PLAN_HOME_STREAM)) return kept ? least : 0;
    least = kept && least > granule ? least : granule;
    return round_up(least, granule);
}

uint64_t space_ring_most(const struct space *s, unsigned uses, const struct space_ends *ends)
{
    uint64_t least = space_ring_least(s, uses, ends);
    if (!s->memory || !(uses & 1u << PLAN_HOME_STREAM)) return least;
    uint64_t most = s->memory->ring_max / s->memory->ring_granule * s->memory->ring_granule;
    return most > least ? most : least;
}

struct search_bytes space_bytes_once(const struct space *s, unsigned uses, const struct space_ends *ends,
                                     uint64_t ring)
{
    const struct search_memory *m = s->memory;
    struct search_bytes b = ends->bytes;
    if (!m) return b;
    bool cpu = uses & 1u << PLAN_HOME_CPU || ends->embed == PLAN_CPU0 || ends->head == PLAN_CPU0;
    if (cpu) {
        b.vram += m->cpu_any.vram;
        b.host += m->cpu_any.host;
    }
    if (gpu_used(uses, ends)) {
        b.vram += m->gpu_any.vram;
        b.host += m->gpu_any.host;
    }
    if (ring) {
        b.vram += m->stream_any.vram + ring;
        b.host += m->stream_any.host;
    }
    return b;
}

struct space_tally space_tally_of(const struct space *s, const enum plan_home *home)
{
    struct space_tally t = {.count = {0}};
    for (uint32_t i = 0; i < s->items; i++) {
        const enum plan_home at = home[s->item[i].first];
        t.items.vram += s->bytes[SPACE_HOMES * i + at].vram;
        t.items.host += s->bytes[SPACE_HOMES * i + at].host;
        t.count[at]++;
        t.marks += space_mark(i, at);
        for (int k = 0; k < SPACE_FLOORS; k++) t.floor[k] += s->item[i].floor[at][k];
    }
    return t;
}

unsigned space_tally_uses(const struct space_tally *tally)
{
    unsigned uses = 0;
    for (unsigned h = 0; h < SPACE_HOMES; h++) uses |= (unsigned)(tally->count[h] > 0) << h;
    return uses;
}

struct search_bytes space_tally_bytes(const struct space *s, const struct space_tally *tally,
                                      const struct space_ends *ends, uint64_t *ring)
{
    const unsigned uses = space_tally_uses(tally);
    const uint64_t least = space_ring_least(s, uses, ends);
    if (!(uses & 1u << PLAN_HOME_STREAM) || *ring < least) *ring = least;
    struct search_bytes b = space_bytes_once(s, uses, ends, *ring);
    b.vram += tally->items.vram;
    b.host += tally->items.host;
    return b;
}

bool space_tally_fits(const struct space *s, const struct space_tally *tally, const struct space_ends *ends,
                      uint64_t ring)
{
    return space_fits(s, space_tally_bytes(s, tally, ends, &ring));
}

/* Slower than this no plan is kept, nor is it what a search goes on with. */
static double limit_of(const struct space *s, double give_up)
{
    return larger(give_up, s->fastest * (1 + SEARCH_ALIKE));
}

bool space_tally_late(const struct space *s, const struct space_tally *tally, const struct space_ends *ends,
                      double give_up)
{
    double most = 0;
    for (int k = 0; k < SPACE_FLOORS; k++) most = larger(most, ends->floor[k] + tally->floor[k]);
    return most > limit_of(s, give_up) * (1 + ROUNDING);
}

bool space_fits(const struct space *s, struct search_bytes b)
{
    return !s->memory || (b.vram <= s->memory->vram_limit && b.host <= s->memory->host_limit);
}

/* Among plans that are alike the simpler one wins, then the smaller one, then the faster one. */
static bool simpler(const struct space *s, double seconds, uint32_t changes, uint64_t vram)
{
    if (changes != s->changes) return changes < s->changes;
    if (vram != s->vram) return vram < s->vram;
    return seconds < s->seconds;
}

/* Simulated unless that was done before. */
static double price(struct space *s, const struct cost_plan *plan, const struct space_ends *ends,
                    uint64_t marks, double limit)
{
    /* far from the numbers of items */
    const uint64_t at = ~((uint64_t)SPACE_ENDS_MAX * plan->ring_bytes + (uint64_t)(ends - s->ends)),
                   key = marks + random_mixed(at);
    struct space_priced *known = &s->priced[key % SPACE_PRICED];
    s->tried++;
    if (known->key != key || (isinf(known->seconds) && known->limit < limit))
        *known = (struct space_priced){key, cost_seconds(s->table, plan, limit), limit};
    return known->seconds <= limit ? known->seconds : INFINITY;
}

double space_try(struct space *s, const enum plan_home *home, const struct space_ends *ends, uint64_t ring,
                 double give_up)
{
    const struct space_tally tally = space_tally_of(s, home);
    return space_try_tally(s, home, &tally, ends, ring, give_up);
}

bool space_allows(const struct space *s, const enum plan_home *home, const struct space_ends *ends)
{
    bool uses = ends->embed != PLAN_CPU0 || ends->head != PLAN_CPU0, attends = false;
    for (uint32_t i = 0; s->restricted && i < s->items; i++) {
        const enum plan_home at = home[s->item[i].first];
        if (!(s->item[i].allowed & 1u << at)) return false;
        uses |= at != PLAN_HOME_CPU;
        attends |= at != PLAN_HOME_CPU && unit_part(s->item[i].first) == UNIT_ATTENTION;
    }
    return (uses || !s->must_use) && (attends || !s->must_attend);
}

double space_try_tally(struct space *s, const enum plan_home *home, const struct space_tally *tally,
                       const struct space_ends *ends, uint64_t ring, double give_up)
{
    if (!space_allows(s, home, ends)) return INFINITY;
    /* with the ring that these homes need: a change of them may have brought in the first of one */
    const struct search_bytes bytes = space_tally_bytes(s, tally, ends, &ring);
    if (!space_fits(s, bytes)) return INFINITY;
    const struct cost_plan plan = {.home = home,
                                   .kv_cpu = s->kv_cpu,
                                   .embed = ends->embed,
                                   .head = ends->head,
                                   .ring_bytes = ring,
                                   .cold = s->cold};
    const double seconds = price(s, &plan, ends, tally->marks, limit_of(s, give_up));
    if (!isfinite(seconds)) return INFINITY;
    if (seconds < s->fastest) s->fastest = seconds;
    if (seconds > s->fastest * (1 + SEARCH_ALIKE)) return seconds;
    uint32_t changes = space_changes(s, home, ends);
    bool outdated = s->found && s->seconds > s->fastest * (1 + SEARCH_ALIKE);
    if (s->found && !outdated && !simpler(s, seconds, changes, bytes.vram)) return seconds;
    s->found = true;
    s->seconds = seconds;
    s->changes = changes;
    s->vram = bytes.vram;
    s->host = bytes.host;
    s->ring = ring;
    s->at = ends;
    memcpy(s->home, home, s->table->units * sizeof *home);
    return seconds;
}
