/* Candidates that were made, by what was asked for: the planner's cache. See candidate.h. Called by
 * candidate.c and planner.c.
 *
 * Owned by the caller of planner_make or, where that gives none, by planner_make for one call. A key is all
 * that a candidate depends on, so that one model's cache serves requests that differ in strategies, tiers and
 * contexts. */
#include "daemon/planner/candidate.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/random.h"

struct known_key {
    struct spec spec;
    struct ledger_wish asked;
    uint32_t batch, context;
    bool required, cache_required; /* some unit or end must be the device's; some layer's cache */
    uint64_t of;
};

struct planner_known {
    struct known_key key;
    struct candidate made;
    struct planner_known *next;
};

/* Padding is part of a key: a difference there costs a search, and never gives a wrong plan. */
static struct known_key key_of(const struct making *m, const struct spec *spec)
{
    const bool may_idle = spec->strategy == SEARCH_BEST || spec->strategy == SEARCH_THESIS;
    struct known_key key;
    memset(&key, 0, sizeof key);
    key.spec = *spec;
    key.asked = m->asked;
    key.asked.ctx = key.spec.priced_at = 0; /* what goes by these is in the spec's context and in `context` */
    key.batch = m->batch;
    key.context = making_context(m, spec);
    key.required = m->required && spec->device && may_idle;
    key.cache_required = key.required && m->r->tiers == KV_TIERS_TWO && spec->places;
    key.of = m->of;
    return key;
}

static uint64_t mix(uint64_t sum, const void *bytes, size_t count)
{
    const unsigned char *at = bytes;
    for (uint64_t word = 0; count; count -= count < sizeof word ? count : sizeof word, at += sizeof word) {
        word = 0;
        memcpy(&word, at, count < sizeof word ? count : sizeof word);
        sum = random_mixed(sum ^ word);
    }
    return sum;
}

uint64_t known_case(const struct making *m)
{
    const struct analyse_table *t = &m->table;
    const uint32_t units = unit_count(t->layers);
    uint64_t sum = mix(1, m->r->profile, sizeof *m->r->profile);
    sum = mix(sum, &m->r->machine, sizeof m->r->machine);
    sum = mix(sum, &m->r->model, sizeof m->r->model);
    sum = mix(sum, &m->r->model->laid, sizeof m->r->model->laid);
    sum = mix(sum, &m->r->model->config, sizeof m->r->model->config);
    sum = mix(sum, t->before, (units + 1) * sizeof *t->before);
    sum = mix(sum, t->packs_vram, units * sizeof *t->packs_vram);
    return mix(sum, t->packs_cpu, units * sizeof *t->packs_cpu);
}

int known_find(const struct making *m, const struct spec *spec, struct candidate *out, bool *found,
               struct helm_err *err)
{
    const struct known_key key = key_of(m, spec);
    *found = false;
    for (const struct planner_known *k = m->cache->first; k; k = k->next) {
        if (memcmp(&k->key, &key, sizeof key) != 0) continue;
        *out = k->made;
        out->plan = (struct plan){0};
        *found = true;
        return plan_copy(&k->made.plan, &out->plan, err);
    }
    return 0;
}

int known_add(const struct making *m, const struct spec *spec, const struct candidate *made,
              struct helm_err *err)
{
    struct planner_known *k = calloc(1, sizeof *k);
    if (!k) return helm_fail(err, HELM_E_NOMEM, "no memory to keep a plan");
    k->key = key_of(m, spec);
    k->made = *made;
    k->made.plan = (struct plan){0};
    int rc = plan_copy(&made->plan, &k->made.plan, err);
    if (rc) {
        free(k);
        return rc;
    }
    k->next = m->cache->first;
    m->cache->first = k;
    m->cache->count++;
    return 0;
}

void planner_cache_free(struct planner_cache *cache)
{
    while (cache->first) {
        struct planner_known *k = cache->first;
        cache->first = k->next;
        plan_free(&k->made.plan);
        free(k);
    }
    cache->count = 0;
}
