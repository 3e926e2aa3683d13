/* Histograms of experts. See histogram.h. */
#include "daemon/planner/histogram.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/units.h"

#define FILE_MAX (64 * MIB)

static int read_layer(const json_t *json, const struct model *model, struct histogram *h,
                      struct helm_err *err)
{
    uint64_t layer = 0;
    const json_t *uses = json_object_get(json, "uses");
    int rc = json_is_object(json) ? json_get_u64(json, "layer", true, 0, h->layers - 1, &layer, err)
                                  : helm_fail(err, HELM_E_FORMAT, "not an object");
    if (rc) return rc;
    if (!model_layer_sparse(&model->config, (uint32_t)layer))
        return helm_fail(err, HELM_E_MISMATCH, "layer %u of the model has no experts", (uint32_t)layer);
    if (!json_is_array(uses) || json_array_size(uses) != h->experts)
        return helm_fail(err, HELM_E_FORMAT, "'uses' of layer %u is no array of %u numbers", (uint32_t)layer,
                         h->experts);
    for (uint32_t e = 0; e < h->experts; e++) {
        const json_t *n = json_array_get(uses, e);
        if (!json_is_integer(n) || json_integer_value(n) < 0)
            return helm_fail(err, HELM_E_FORMAT, "'uses' of layer %u: %u is no count", (uint32_t)layer, e);
        h->uses[(size_t)layer * h->experts + e] = (uint64_t)json_integer_value(n);
    }
    return 0;
}

static int read_all(const json_t *json, const struct model *model, struct histogram *h, struct helm_err *err)
{
    const json_t *layers = json_object_get(json, "layers"), *layer;
    uint64_t experts = 0;
    size_t i;
    int rc = json_get_u64(json, "experts", true, 1, UINT32_MAX, &experts, err);
    if (!rc && experts != h->experts)
        return helm_fail(err, HELM_E_MISMATCH, "%llu experts a layer, the model has %u",
                         (unsigned long long)experts, h->experts);
    if (!rc && !json_is_array(layers)) rc = helm_fail(err, HELM_E_FORMAT, "'layers' is no array");
    json_array_foreach(layers, i, layer)
    {
        if (!rc && (rc = read_layer(layer, model, h, err))) helm_err_prefix(err, "entry %zu", i);
    }
    return rc;
}

int histogram_read(const char *path, const struct model *model, struct histogram *h, struct helm_err *err)
{
    json_t *json = NULL;
    *h = (struct histogram){.layers = model->config.layers,
                            .experts = model->config.router.experts / model_expert_parts(&model->config)};
    if (!h->experts)
        return helm_fail(err, HELM_E_UNSUPPORTED, "%s: the model is no mixture of experts", path);
    h->uses = calloc((size_t)h->layers * h->experts, sizeof *h->uses);
    if (!h->uses) return helm_fail(err, HELM_E_NOMEM, "no memory for a histogram of %u layers", h->layers);
    int rc = json_read_file(path, FILE_MAX, &json, err);
    if (!rc && (rc = read_all(json, model, h, err))) helm_err_prefix(err, "%s", path);
    json_decref(json);
    if (rc) histogram_free(h);
    return rc;
}

void histogram_free(struct histogram *h)
{
    free(h->uses);
    *h = (struct histogram){0};
}

/* The most used expert, or part of one, that is not taken, of equals the lowest number. Parts are used as
 * their experts. */
static uint32_t most_used(const uint64_t *uses, const bool *taken, uint32_t experts, uint32_t parts)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t e = 0; e < experts * parts; e++)
        if (!taken[e] && (best == UINT32_MAX || uses[e / parts] > uses[best / parts])) best = e;
    return best;
}

int histogram_apply(const struct histogram *h, struct plan *plan, struct helm_err *err)
{
    struct plan_experts *const mixed = &plan_device_at(plan, PLAN_HOME_MIXED)->experts;
    const uint32_t units = plan_mixed_units(plan), slots = mixed->slots, parts = plan_expert_parts(plan);
    double hits = 0;
    free(mixed->first);
    mixed->first = calloc((size_t)units * slots + 1, sizeof *mixed->first);
    if (!mixed->first) return helm_fail(err, HELM_E_NOMEM, "no memory for %u x %u experts", units, slots);
    for (uint32_t l = 0, u = 0; l < plan->layers && u < units; l++) {
        if (plan->unit[unit_of(l, UNIT_MLP)].home[0] != PLAN_HOME_MIXED) continue;
        const uint64_t *uses = h->uses + (size_t)l * h->experts;
        bool taken[MODEL_EXPERTS_MAX] = {false};
        uint64_t all = 0, caught = 0;
        for (uint32_t e = 0; e < h->experts; e++) all += uses[e] * parts;
        for (uint32_t i = 0; i < slots; i++) {
            const uint32_t e = most_used(uses, taken, h->experts, parts);
            mixed->first[(size_t)u * slots + i] = e;
            taken[e] = true;
            caught += uses[e / parts];
        }
        hits += all ? (double)caught / (double)all : (double)slots / (h->experts * parts);
        u++;
    }
    mixed->hit_permille = units ? (uint32_t)round(PERMILLE * hits / units) : 0;
    return 0;
}
