/* Choosing homes. See search.h. Called by planner.c and helm-plan; owns what it returns. */
#include "daemon/planner/search/space.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ON_CPU    (1u << PLAN_HOME_CPU)
#define ON_GPU    (1u << PLAN_HOME_GPU)
#define ON_STREAM (1u << PLAN_HOME_STREAM)

static const struct {
    const char *name;
    unsigned homes, ends;
    bool packs; /* for the CPU */
} strategies[SEARCH_STRATEGIES] = {
    [SEARCH_BEST] = {"best", ON_CPU | ON_GPU | ON_STREAM, ON_CPU | ON_GPU, true},
    [SEARCH_ALL_GPU] = {"all-gpu", ON_GPU, ON_GPU, true},
    [SEARCH_ALL_CPU] = {"all-cpu", ON_CPU, ON_CPU, true},
    [SEARCH_THESIS] = {"thesis", ON_CPU | ON_GPU, ON_CPU | ON_GPU, false},
    [SEARCH_STREAM] = {"stream", ON_GPU | ON_STREAM, ON_GPU, true},
    [SEARCH_EXPERTS_CPU] = {"experts-cpu", ON_CPU | ON_GPU, ON_GPU, false},
    [SEARCH_MIXED] = {"mixed", ON_CPU | ON_GPU, ON_GPU, false},
};

const char *search_strategy_name(enum search_strategy strategy)
{
    return (unsigned)strategy < SEARCH_STRATEGIES ? strategies[strategy].name : "unknown";
}

bool search_strategy_packs(enum search_strategy strategy)
{
    return strategies[strategy].packs;
}

/* ---- the thesis's space: every split ---- */

static void put_split(enum plan_home *home, uint32_t units, uint32_t gpu, bool first)
{
    for (uint32_t u = 0; u < units; u++) {
        bool on_gpu = first ? u < gpu : u >= units - gpu;
        home[u] = on_gpu ? PLAN_HOME_GPU : PLAN_HOME_CPU;
    }
}

/* A split of the layers: the first or the last `gpu` units on the GPU. `items`: all of them. */
struct split {
    uint32_t gpu;
    bool first;
    unsigned uses;
    struct space_tally items;
};

/* Units [from, from + 2) from the GPU to the CPU. */
static void move_layer(const struct space *s, uint32_t from, struct space_tally *sum)
{
    for (uint32_t i = from * s->items / s->table->units; i < (from + 2) * s->items / s->table->units; i++)
        space_tally_move(s, sum, i, PLAN_HOME_GPU, PLAN_HOME_CPU);
}

/* Calls `visit` for each split and place of the ends, the most layers on the GPU first: the first that fits
 * is mostly the fastest, and the sums of the others say that they are slower. The ring is what prefill keeps.
 * Sums are kept from one split to the next: adding them up anew would take most of the time where few splits
 * fit. */
typedef void (*split_visit)(struct space *s, const struct split *split, const struct space_ends *ends,
                            uint64_t ring, void *context);

static void each_split(struct space *s, split_visit visit, void *context)
{
    uint32_t units = s->table->units;
    struct space_tally sum[2];
    put_split(s->scratch, units, units, true);
    sum[0] = sum[1] = space_tally_of(s, s->scratch);
    for (uint32_t cpu = 0; cpu <= units; cpu += 2) {
        const uint32_t gpu = units - cpu;
        for (int first = 0; first < 2 && cpu; first++) move_layer(s, first ? gpu : cpu - 2, &sum[first]);
        for (int first = 0; first < 2; first++)
            for (uint32_t e = 0; e < s->ends_count; e++) {
                const struct split split = {.gpu = gpu,
                                            .first = first,
                                            .uses = (gpu ? ON_GPU : 0) | (gpu < units ? ON_CPU : 0),
                                            .items = sum[first]};
                if (first && (gpu == 0 || gpu == units)) continue; /* the same twice */
                if ((split.uses & s->item[0].allowed) != split.uses) continue;
                visit(s, &split, &s->ends[e], space_ring_least(s, split.uses, &s->ends[e]), context);
            }
    }
}

static struct search_bytes split_bytes(const struct space *s, const struct split *split,
                                       const struct space_ends *ends, uint64_t ring)
{
    struct search_bytes b = space_bytes_once(s, split->uses, ends, ring);
    b.vram += split->items.items.vram;
    b.host += split->items.items.host;
    return b;
}

static void try_split(struct space *s, const struct split *split, const struct space_ends *ends,
                      uint64_t ring, void *context)
{
    (void)context;
    if (!space_fits(s, split_bytes(s, split, ends, ring)) || space_tally_late(s, &split->items, ends, 0))
        return;
    put_split(s->scratch, s->table->units, split->gpu, split->first);
    (void)space_try(s, s->scratch, ends, ring, 0);
}

static void need_of_split(struct space *s, const struct split *split, const struct space_ends *ends,
                          uint64_t ring, void *context)
{
    struct search_found *found = context;
    put_split(s->scratch, s->table->units, split->gpu, split->first);
    if (!space_allows(s, s->scratch, ends)) return;
    struct search_bytes b = split_bytes(s, split, ends, ring);
    uint64_t more_vram = b.vram > s->memory->vram_limit ? b.vram - s->memory->vram_limit : 0;
    uint64_t more_host = b.host > s->memory->host_limit ? b.host - s->memory->host_limit : 0;
    if (!more_host && more_vram < found->more_vram) found->more_vram = more_vram;
    if (!more_vram && more_host < found->more_host) found->more_host = more_host;
}

/* ---- all ---- */

static int check_problem(const struct search_problem *p, struct helm_err *err)
{
    if (p->decode->units < UNIT_PARTS || p->decode->units > UNIT_PARTS * MODEL_LAYERS_MAX ||
        p->decode->units % UNIT_PARTS)
        return helm_fail(err, HELM_E_LIMIT, "%u half layers cannot be placed: 2 to %u, an even number",
                         p->decode->units, UNIT_PARTS * MODEL_LAYERS_MAX);
    return 0;
}

static int take_result(const struct space *s, struct search_found *found, struct helm_err *err)
{
    found->tried = s->tried;
    if (!s->found) return 0;
    size_t bytes = s->table->units * sizeof *found->home;
    found->home = malloc(bytes);
    if (!found->home)
        return helm_fail(err, HELM_E_NOMEM, "no memory for the homes of %u half layers", s->table->units);
    memcpy(found->home, s->home, bytes);
    found->feasible = true;
    found->embed = s->at->embed;
    found->head = s->at->head;
    found->ring_bytes = s->ring;
    found->seconds = s->seconds;
    found->vram = s->vram;
    found->host = s->host;
    return 0;
}

static bool is_second(const struct space *s, const struct search_problem *problem, uint32_t item)
{
    return s->item[item].first + problem->second >= s->table->units;
}

int space_open_strategy(struct space *s, const struct search_problem *problem, enum search_strategy strategy,
                        struct helm_err *err)
{
    memset(s, 0, sizeof *s);
    int rc = check_problem(problem, err);
    if (!rc)
        rc = space_open(s, problem, strategies[strategy].homes, strategies[strategy].ends,
                        strategies[strategy].ends, err);
    for (uint32_t i = 0; i < s->items && (strategy == SEARCH_EXPERTS_CPU || strategy == SEARCH_MIXED); i++)
        if (!is_second(s, problem, i))
            s->item[i].allowed &= s->table->unit[s->item[i].first].experts ? ON_CPU : ON_GPU;
    return rc;
}

static int run_one(const struct search_problem *problem, enum search_strategy strategy,
                   struct search_found *found, struct helm_err *err)
{
    struct space s;
    memset(found, 0, sizeof *found);
    int rc = space_open_strategy(&s, problem, strategy, err);
    if (rc) goto out;
    if (strategy == SEARCH_BEST || strategy == SEARCH_THESIS) each_split(&s, try_split, NULL);
    if (strategy == SEARCH_THESIS) {
        found->exact = true;
    } else {
        rc = exact_search(&s, &found->exact, err);
        /* Where the sums of memory forbid every plan, none is looked for. */
        if (!rc && !found->exact && bound_more(&s, true, NULL, NULL) == 0) rc = mixed_search(&s, err);
    }
    if (!rc) rc = take_result(&s, found, err);
    if (rc) goto out;
    found->fastest = s.fastest;
    if (found->feasible) goto out;
    found->more_vram = bound_more(&s, true, NULL, NULL);
    found->more_host = bound_more(&s, false, NULL, NULL);
    /* Only splits, or those that fit leave the GPU idle. */
    if (strategy == SEARCH_THESIS || found->more_vram == 0) {
        found->more_vram = found->more_host = UINT64_MAX;
        each_split(&s, need_of_split, found);
    }
out:
    space_close(&s);
    if (rc) search_found_free(found);
    return rc;
}

static uint64_t smaller_of(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static bool any_together(const struct cost_table *table)
{
    for (uint32_t u = 0; u < table->units; u++)
        if (table->unit[u].together) return true;
    return false;
}

/* The better of two, of which one is kept; where none fits, what would do is the least of both. */
static void take_better(struct search_found *best, struct search_found *other)
{
    const bool better = other->feasible && (!best->feasible || other->seconds < best->seconds);
    const struct search_found all = {.exact = best->exact && other->exact,
                                     .more_vram = smaller_of(best->more_vram, other->more_vram),
                                     .more_host = smaller_of(best->more_host, other->more_host),
                                     .tried = best->tried + other->tried};
    search_found_free(better ? best : other);
    if (better) *best = *other;
    best->exact = all.exact;
    best->more_vram = all.more_vram;
    best->more_host = all.more_host;
    best->tried = all.tried;
}

/* Units that have to be together are on either processor. */
int search_run(const struct search_problem *problem, enum search_strategy strategy,
               struct search_found *found, struct helm_err *err)
{
    static const unsigned both[] = {ON_GPU | ON_STREAM, ON_CPU};
    struct search_found other;
    if (problem->together || !any_together(problem->decode)) return run_one(problem, strategy, found, err);
    *found = (struct search_found){.exact = true, .more_vram = UINT64_MAX, .more_host = UINT64_MAX};
    for (size_t i = 0; i < sizeof both / sizeof *both; i++) {
        struct search_problem one = *problem;
        one.together = both[i];
        if (!(strategies[strategy].homes & both[i]) || (!problem->device && both[i] != ON_CPU)) continue;
        const int rc = run_one(&one, strategy, &other, err);
        if (rc) {
            search_found_free(found);
            return rc;
        }
        take_better(found, &other);
    }
    return 0;
}

void search_found_free(struct search_found *found)
{
    free(found->home);
    memset(found, 0, sizeof *found);
}
