/* The packed size of weights. See packed_sample.h. Called by helmd and helm-plan. */
#include "daemon/planner/memory/packed_sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/formats/packed.h"
#include "common/model/shards.h"

#define KINDS (UNIT_PARTS + 1)
/* Groups are taken where its multiples fall in a matrix: spread evenly, however many there will be. */

/* Sums over the groups of one kind that were read; the squares are of packed and plain bytes, and both. */
struct tally {
    double plain, packed, plain_plain, packed_packed, plain_packed;
    uint64_t groups, all; /* that were read, that there are */
};

struct taking {
    const struct model *model;
    const bool *units; /* [unit_count(layers)]: whose matrices are looked at; NULL: all, and the head */
    bool head;
    struct model_shards shards;
    struct tally tally[KINDS];
    double due[TENSOR_ROLE_COUNT]; /* groups of matrices of this role that wait for being taken */
    uint64_t taken[TENSOR_ROLE_COUNT];
    double rate; /* of all groups */
    uint16_t *value;
};

/* A file may end after its header, or anywhere: only what is there is looked at. */
static bool is_sampled(const struct taking *k, const struct model_tensor *t)
{
    const struct model *m = k->model;
    bool head = t->role == TENSOR_HEAD || (t->role == TENSOR_EMBED && m->config.tied_head);
    if (t->layer < 0 && !(head && (k->head || !k->units))) return false;
    if (t->layer >= 0 && (uint32_t)t->layer >= m->config.layers) return false;
    if (t->layer >= 0 && k->units && !k->units[model_tensor_unit(t)]) return false;
    if (t->rows <= 1 || !placement_takes(m, t, FORMAT_BF16_PACKED) || t->shard >= m->shard_count)
        return false;
    const uint64_t there = k->shards.bytes[t->shard];
    return t->offset <= there && t->bytes <= there - t->offset;
}

static int kind_of(const struct model_tensor *t)
{
    if (t->layer < 0) return 2;
    return (unit_part_of_role(t->role) == UNIT_MLP);
}

static int take_group(struct taking *k, const struct model_tensor *t, uint32_t group, struct helm_err *err)
{
    uint32_t values = packed_group_values((uint32_t)t->rows, (uint32_t)t->cols, group);
    struct tally *tally = &k->tally[kind_of(t)];
    struct packed_measure measure;
    int rc = model_shards_read(&k->shards, t, (uint64_t)group * PACKED_ROWS * t->cols * sizeof *k->value,
                               values * sizeof *k->value, k->value, err);
    if (rc) return rc;
    packed_measure(k->value, values, &measure);
    double plain = (double)values * sizeof *k->value, packed = measure.bytes;
    tally->plain += plain;
    tally->packed += packed;
    tally->plain_plain += plain * plain;
    tally->packed_packed += packed * packed;
    tally->plain_packed += plain * packed;
    tally->groups++;
    return 0;
}

static int take_matrix(struct taking *k, const struct model_tensor *t, struct helm_err *err)
{
    const uint32_t groups = packed_groups((uint32_t)t->rows);
    int rc = 0;
    k->tally[kind_of(t)].all += groups;
    k->due[t->role] += k->rate * groups;
    for (uint32_t i = 0; i < groups && !rc && k->due[t->role] >= 1; i++, k->due[t->role]--) {
        double place = (double)++k->taken[t->role] * GOLDEN_SECTION;
        uint32_t group = k->rate >= 1 ? i : (uint32_t)((place - floor(place)) * groups);
        rc = take_group(k, t, group < groups ? group : groups - 1, err);
    }
    return rc;
}

/* The quotient of both sums, and its standard error: by what groups differ from it, less where most of all
 * there are were looked at. */
static void finish(const struct tally *y, double *part, double *spread)
{
    *part = *spread = 0;
    if (y->groups == 0 || (y->groups < PACKED_SAMPLE_LEAST && y->groups < y->all)) return;
    double ratio = y->packed / y->plain, n = (double)y->groups;
    double squares = y->packed_packed - 2 * ratio * y->plain_packed + ratio * ratio * y->plain_plain;
    double left = 1 - n / (double)y->all, more = n > 1 ? n / (n - 1) : 1;
    *spread = PACKED_SAMPLE_ERRORS * sqrt(fmax(0, squares) * fmax(0, left) * more) / y->plain;
    *part = ratio + *spread;
}

static int take_all(struct taking *k, uint64_t most_bytes, struct helm_err *err)
{
    const struct model *model = k->model;
    uint64_t bytes = 0, widest = 0;
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct model_tensor *t = &model->tensors[i];
        if (!is_sampled(k, t)) continue;
        bytes += t->bytes;
        if (t->cols > widest) widest = t->cols;
    }
    if (bytes == 0) return 0;
    k->rate = fmin(1, (double)most_bytes / (double)bytes);
    for (int r = 0; r < TENSOR_ROLE_COUNT; r++) k->due[r] = k->rate < 1 ? 0.5 : 0;
    k->value = malloc(PACKED_ROWS * widest * sizeof *k->value);
    int rc = k->value ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory for a few rows of weights");
    for (uint32_t i = 0; i < model->tensor_count && !rc; i++)
        if (is_sampled(k, &model->tensors[i])) rc = take_matrix(k, &model->tensors[i], err);
    return rc;
}

static int take(const struct model *model, const bool *units, bool head, uint64_t most_bytes,
                struct packed_sample *sample, struct helm_err *err)
{
    struct taking k = {.model = model, .units = units, .head = head};
    memset(sample, 0, sizeof *sample);
    if (!model->folder) return 0;
    int rc = model_shards_open(model, &k.shards, err);
    if (!rc) rc = take_all(&k, most_bytes, err);
    model_shards_close(&k.shards);
    free(k.value);
    if (rc) return rc;
    finish(&k.tally[0], &sample->parts.attention, &sample->spread.attention);
    finish(&k.tally[1], &sample->parts.mlp, &sample->spread.mlp);
    finish(&k.tally[2], &sample->parts.head, &sample->spread.head);
    for (int i = 0; i < KINDS; i++) {
        sample->bytes += (uint64_t)k.tally[i].plain;
        sample->groups += (uint32_t)k.tally[i].groups;
    }
    return 0;
}

int packed_sample_take(const struct model *model, uint64_t most_bytes, struct packed_sample *sample,
                       struct helm_err *err)
{
    return take(model, NULL, true, most_bytes, sample, err);
}

int packed_sample_of_plan(const struct model *model, const struct plan *plan, uint64_t most_bytes,
                          struct packed_sample *sample, struct helm_err *err)
{
    const bool head = plan_head_format(plan) == FORMAT_BF16_PACKED;
    bool units[UNIT_PARTS * MODEL_LAYERS_MAX] = {false}, any = head;
    memset(sample, 0, sizeof *sample);
    if (plan->layers != model->config.layers) return 0; /* taking the plan reports it */
    for (uint32_t u = 0; u < unit_count(plan->layers); u++) {
        units[u] = plan_unit_format(plan, u) == FORMAT_BF16_PACKED &&
                   plan_home_memory(plan->unit[u].home[0]) != PLAN_HOST;
        any |= units[u];
    }
    return any ? take(model, units, head, most_bytes, sample, err) : 0;
}
