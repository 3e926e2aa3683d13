/* The single split. See split.h. Called by planner.c; owns nothing. */
#include "daemon/planner/split.h"

#include <string.h>

void split_apply(const struct split *split, const struct analyse_table *table, struct plan *plan)
{
    uint32_t layers = table->layers, gpu = split->gpu_layers;
    uint32_t first = split->gpu_first ? gpu : layers - gpu; /* of the first stage */
    enum plan_home home = split->gpu_first ? PLAN_HOME_GPU : PLAN_HOME_CPU;
    plan->layers = layers;
    plan->embed = split->embed;
    plan->head = split->head;
    plan->stage_count = 0;
    if (first)
        plan->stages[plan->stage_count++] = (struct plan_stage){
            .first = 0, .last = first - 1, .home = home, .bytes = analyse_units_stored(table, 0, 2 * first - 1)};
    if (first < layers)
        plan->stages[plan->stage_count++] =
            (struct plan_stage){.first = first,
                                .last = layers - 1,
                                .home = split->gpu_first ? PLAN_HOME_CPU : PLAN_HOME_GPU,
                                .bytes = analyse_units_stored(table, 2 * first, 2 * layers - 1)};
}

/* Nominal, and only their ratio matters: what a server's memory gives, and a hand-over as measured. */
#define CPU_BYTES_PER_NS 100
#define HAND_OVER_NS     10000

struct score {
    uint64_t ns, vram;
};

static bool score_better(const struct score *a, const struct score *b)
{
    return a->ns != b->ns ? a->ns < b->ns : a->vram < b->vram;
}

static struct score score_of(const struct ledger_case *c, const struct plan *plan)
{
    struct analyse_share cpu;
    enum plan_home at = plan->embed;
    struct score score = {.vram = plan->vram.total};
    analyse_share(c->table, plan, PLAN_HOME_CPU, &cpu);
    score.ns = cpu.token_bytes / CPU_BYTES_PER_NS;
    for (uint32_t i = 0; i <= plan->stage_count; i++) {
        enum plan_home next = i < plan->stage_count ? plan_home_worker(plan->stages[i].home) : plan->head;
        score.ns += next != at ? HAND_OVER_NS : 0;
        at = next;
    }
    return score;
}

uint64_t split_cpu_only_ns(const struct analyse_table *table)
{
    return (table->before[2 * table->layers].stored + table->head.stored) / CPU_BYTES_PER_NS;
}

static uint64_t excess(const struct ledger *ledger)
{
    return ledger->total > ledger->limit ? ledger->total - ledger->limit : 0;
}

/* What the search knows of the best so far; which of its fields are set follows from `search`. */
struct so_far {
    struct split_search *search;
    struct score best;
    uint64_t nearest_excess;
};

static int consider(const struct ledger_case *c, uint32_t ctx, const struct split *split, struct plan *plan,
                    struct so_far *so_far, struct helm_err *err)
{
    struct split_search *search = so_far->search;
    struct arena_spec spec;
    split_apply(split, c->table, plan);
    int rc = ledger_write(c, ctx, ledger_least_pages(c, ctx), plan, &spec, err);
    if (rc) return rc;
    uint64_t host = excess(&plan->host), vram = excess(&plan->vram);
    if (host == 0 && vram == 0) {
        struct score score = score_of(c, plan);
        if (search->found && !score_better(&score, &so_far->best)) return 0;
        search->found = true;
        search->best = *split;
        search->best_ns = score.ns;
        so_far->best = score;
        return 0;
    }
    if (host == 0 && plan->vram.total < search->least_vram) search->least_vram = plan->vram.total;
    if (vram == 0 && plan->host.total < search->least_host) search->least_host = plan->host.total;
    if (host + vram < so_far->nearest_excess) {
        so_far->nearest_excess = host + vram;
        search->nearest = *split;
    }
    return 0;
}

int split_search(const struct ledger_case *c, uint32_t ctx, struct plan *plan, struct split_search *search,
                 struct helm_err *err)
{
    static const enum plan_home homes[] = {PLAN_HOME_CPU, PLAN_HOME_GPU};
    *search = (struct split_search){.least_vram = UINT64_MAX, .least_host = UINT64_MAX};
    struct so_far so_far = {.search = search, .nearest_excess = UINT64_MAX};
    for (uint32_t layers = 0; layers <= c->table->layers; layers++)
        for (int variant = 0; variant < 8; variant++) {
            struct split split = {.gpu_layers = layers,
                                  .gpu_first = variant & 1,
                                  .embed = homes[variant >> 1 & 1],
                                  .head = homes[variant >> 2 & 1]};
            if (layers == 0 && split.head == PLAN_HOME_CPU) continue; /* nothing for the GPU to do */
            if ((layers == 0 || layers == c->table->layers) && split.gpu_first) continue; /* the same twice */
            if (c->table->tied && split.embed != split.head) continue;
            int rc = consider(c, ctx, &split, plan, &so_far, err);
            if (rc) return rc;
        }
    return 0;
}
