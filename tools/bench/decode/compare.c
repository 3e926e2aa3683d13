/* Steps of one token with each way of reading weights ahead switched off in turn, and with other distances.
 * See compare.h.
 *
 * All variants run in this process, one step each a round, because machines differ more from minute to minute
 * than the variants do. Owns a second lowering of the one-token programs, with coarse chunks. */
#include "tools/bench/decode/compare.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "common/measure/stats.h"

struct variant {
    const char *name;
    struct run_reads reads;
    uint32_t quiet_us;
    bool coarse;
};

enum kind { KIND_QKV, KIND_O, KIND_GATE, KIND_DOWN, KIND_HEAD, KIND_REST, KIND_COUNT };
static const char *const kind_name[KIND_COUNT] = {"q k v", "o", "gate up", "down", "head", "rest"};

enum { VARIANTS_MAX = 20 };

struct compare {
    const struct compare_options *o;
    struct variant variant[VARIANTS_MAX];
    uint32_t variants;
    struct program coarse[2]; /* layers, head */
    uint64_t *entry_ns[2];
    double bytes[KIND_COUNT];
    double *seconds[VARIANTS_MAX][KIND_COUNT]; /* [rounds] */
    double *step[VARIANTS_MAX], *read[VARIANTS_MAX];
};

static struct variant *add(struct compare *c, const char *name)
{
    struct variant *v = &c->variant[c->variants++];
    *v = (struct variant){.name = name,
                          .reads = c->o->local->engine.run.reads,
                          .quiet_us = POOL_SPIN_QUIET_US};
    return v;
}

static void list_variants(struct compare *c)
{
    struct variant *v = add(c, "as it is");
    v = add(c, "none of these");
    v->reads = (struct run_reads){.gemv = {.near = v->reads.gemv.near}};
    v->quiet_us = 0;
    v->coarse = true;
    add(c, "no second prefetch level")->reads.gemv.far = 0;
    add(c, "nothing across chunks")->reads.across = false;
    add(c, "nothing while waiting")->reads.idle_bytes = 0;
    add(c, "short spins")->quiet_us = 0;
    add(c, "coarse chunks")->coarse = true;
    add(c, "into L2 4 KiB ahead")->reads.gemv.far = 4 * KIB;
    add(c, "into L2 8 KiB ahead")->reads.gemv.far = 8 * KIB;
    add(c, "into L2 16 KiB ahead")->reads.gemv.far = 16 * KIB;
    add(c, "into L2 32 KiB ahead")->reads.gemv.far = 32 * KIB;
    add(c, "into L1 1 KiB ahead")->reads.gemv.near = KIB;
    add(c, "into L1 4 KiB ahead")->reads.gemv.near = 4 * KIB;
    add(c, "while waiting 64 KiB")->reads.idle_bytes = 64 * KIB;
    add(c, "while waiting 1 MiB")->reads.idle_bytes = MIB;
    add(c, "spins of 1 ms")->quiet_us = 1000;
}

static enum kind kind_of(const struct program_entry *e)
{
    if (e->kind != OP_LINEAR) return KIND_REST;
    switch (e->segment[0].role) {
    case TENSOR_Q:
    case TENSOR_K:
    case TENSOR_V:
        return KIND_QKV;
    case TENSOR_O:
        return KIND_O;
    case TENSOR_GATE:
    case TENSOR_UP:
        return KIND_GATE;
    case TENSOR_DOWN:
        return KIND_DOWN;
    default:
        return KIND_HEAD;
    }
}

static void swap_programs(struct compare *c)
{
    struct step_programs *programs = &c->o->local->engine.programs[LINEAR_EXACT];
    struct program layers = programs->tier[0][OP_TIER_ONE], head = programs->head_one;
    programs->tier[0][OP_TIER_ONE] = c->coarse[0], programs->head_one = c->coarse[1];
    c->coarse[0] = layers, c->coarse[1] = head;
}

static int measure(struct compare *c, uint32_t variant, uint32_t round, struct helm_err *err)
{
    struct engine *engine = &c->o->local->engine;
    const struct variant *v = &c->variant[variant];
    const struct step_row row = {.start = c->o->start, .count = 1, .flags = STEP_ROW_SAMPLE};
    const struct step_result *result;
    const struct program *program[2];
    const struct run_reads before = engine->run.reads;
    if (v->coarse) swap_programs(c);
    program[0] = &engine->programs[LINEAR_EXACT].tier[0][OP_TIER_ONE],
    program[1] = &engine->programs[LINEAR_EXACT].head_one;
    for (int p = 0; p < 2; p++) {
        memset(c->entry_ns[p], 0xff, program[p]->count * sizeof *c->entry_ns[p]);
        engine->run.entry_ns[p] = c->entry_ns[p];
    }
    engine->run.reads = v->reads;
    pool_set_quiet_spin(engine->pool, v->quiet_us);
    uint64_t begin = units_now_ns();
    int rc = local_step(c->o->local, &row, 1, &result, err);
    c->step[variant][round] = (double)(units_now_ns() - begin) * 1e-9;
    pool_set_quiet_spin(engine->pool, POOL_SPIN_QUIET_US);
    engine->run.reads = before;
    engine->run.entry_ns[0] = engine->run.entry_ns[1] = NULL;
    for (int k = 0; k < KIND_COUNT; k++) c->bytes[k] = 0;
    for (int p = 0; p < 2; p++)
        for (uint32_t i = 0; i < program[p]->count; i++) {
            enum kind kind = kind_of(&program[p]->entry[i]);
            c->bytes[kind] += (double)program[p]->entry[i].bytes;
            c->seconds[variant][kind][round] += (double)c->entry_ns[p][i] * 1e-9;
        }
    if (v->coarse) swap_programs(c);
    if (!rc && result->row[0].status != STEP_ROW_OK)
        rc = helm_fail(err, HELM_E_INTERNAL, "a step gave status %u", result->row[0].status);
    if (!rc) c->read[variant][round] = c->o->read(c->o->read_ctx);
    return rc;
}

static void print(struct compare *c, const char *title, double at, FILE *out)
{
    const uint32_t n = c->o->rounds;
    fprintf(out, "%s of %u rounds; GB/s unless another unit is said\n%-26s %8s %7s %7s %7s", title, n, "",
            "step ms", "step", "linears", "% read");
    for (int k = 0; k < KIND_REST; k++)
        if (c->bytes[k] > 0) fprintf(out, " %8s", kind_name[k]);
    fprintf(out, " %8s %8s\n", "rest us", "read");
    for (uint32_t v = 0; v < c->variants; v++) {
        double all = 0, linear_s = 0, part[KIND_COUNT];
        for (int k = 0; k < KIND_COUNT; k++) {
            part[k] = stats_quantile(c->seconds[v][k], n, at);
            if (k == KIND_REST) continue;
            all += c->bytes[k], linear_s += part[k];
        }
        double step = stats_quantile(c->step[v], n, at), read = stats_quantile(c->read[v], n, 1 - at);
        fprintf(out, "%-26s %8.3f %7.1f %7.1f %5.1f %%", c->variant[v].name, step * 1e3, all / step * 1e-9,
                all / linear_s * 1e-9, all / step * 1e-7 / read);
        for (int k = 0; k < KIND_REST; k++)
            if (c->bytes[k] > 0) fprintf(out, " %8.1f", c->bytes[k] / part[k] * 1e-9);
        fprintf(out, " %8.1f %8.1f\n", part[KIND_REST] * 1e6, read);
    }
    fprintf(out, "a step reads, MB:");
    for (int k = 0; k < KIND_REST; k++)
        if (c->bytes[k] > 0) fprintf(out, " %s %.1f", kind_name[k], c->bytes[k] * 1e-6);
    fputc('\n', out);
}

static int prepare(struct compare *c, struct helm_err *err)
{
    struct engine *engine = &c->o->local->engine;
    const struct program_source source = {.model = &engine->model,
                                          .plan = &engine->plan,
                                          .weights = &engine->weights,
                                          .kernels = &engine->kernels,
                                          .act = &engine->act,
                                          .threads = pool_threads(engine->pool),
                                          .coarse = true,
                                          .arena = engine->base.arena};
    int rc = program_lower(&source, 0, OP_TIER_ONE, &c->coarse[0], err);
    if (!rc) rc = program_lower_head(&source, false, &c->coarse[1], err);
    if (rc) return rc;
    bool all = true;
    for (int p = 0; p < 2; p++) {
        c->entry_ns[p] = calloc(c->coarse[p].count, sizeof *c->entry_ns[p]);
        all &= c->entry_ns[p] != NULL;
    }
    for (uint32_t v = 0; v < c->variants; v++) {
        for (int k = 0; k < KIND_COUNT; k++) {
            c->seconds[v][k] = calloc(c->o->rounds, sizeof(double));
            all &= c->seconds[v][k] != NULL;
        }
        c->step[v] = calloc(c->o->rounds, sizeof(double));
        c->read[v] = calloc(c->o->rounds, sizeof(double));
        all &= c->step[v] && c->read[v];
    }
    return all ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory for %u rounds", c->o->rounds);
}

static void release(struct compare *c)
{
    for (int p = 0; p < 2; p++) {
        program_free(&c->coarse[p]);
        free(c->entry_ns[p]);
    }
    for (uint32_t v = 0; v < c->variants; v++) {
        for (int k = 0; k < KIND_COUNT; k++) free(c->seconds[v][k]);
        free(c->step[v]);
        free(c->read[v]);
    }
}

int compare_run(const struct compare_options *options, FILE *out, struct helm_err *err)
{
    struct compare *c = calloc(1, sizeof *c);
    if (!c) return helm_fail(err, HELM_E_NOMEM, "no memory");
    c->o = options;
    list_variants(c);
    int rc = prepare(c, err);
    for (uint32_t round = 0; round < options->rounds && !rc; round++)
        for (uint32_t v = 0; v < c->variants && !rc; v++) rc = measure(c, v, round, err);
    if (!rc) print(c, "medians", 0.5, out);
    if (!rc) print(c, "best tenths", 0.1, out);
    release(c);
    free(c);
    return rc;
}
