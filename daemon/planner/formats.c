/* Formats of a plan's weights. See formats.h. Called by candidate.c, unpacking.c, prefill.c and planner.c. */
#include "daemon/planner/formats.h"

#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/model/arch.h"

/* ---- all weights ---- */

int formats_read(const char *name, const struct mixture **weights, struct helm_err *err)
{
    char names[256] = "stored";
    *weights = NULL;
    if (strcmp(name, "stored") == 0) return 0;
    *weights = mixture_named(name);
    if (*weights && mixture_lays(*weights)) return 0;
    for (uint32_t i = 0; mixture_at(i); i++) {
        const size_t at = strlen(names);
        if (mixture_lays(mixture_at(i)))
            snprintf(names + at, sizeof names - at, ", %s", mixture_name(mixture_at(i)));
    }
    return helm_fail(err, HELM_E_USAGE, "--weights %s: there are %s", name, names);
}

/* Whether number `at` of a plan's formats is that of the matrix: numbers of units, the embedding, the
 * head. */
static bool is_of(const struct model *model, const struct model_tensor *t, uint32_t at)
{
    const uint32_t units = unit_count(model->config.layers);
    if (arch_role_is_vector(t->role)) return false;
    if (at < units) return t->layer >= 0 && model_tensor_unit(t) == at;
    return t->role == (at == units || model->config.tied_head ? TENSOR_EMBED : TENSOR_HEAD);
}

static void lay(struct model *model, uint32_t at, enum tensor_format format)
{
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct model_tensor *t = &model->tensors[i];
        if (is_of(model, t, at) &&
            !(tensor_format_is_plain(t->format) && tensor_format_takes(format, t->rows, t->cols)))
            return;
    }
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        struct model_tensor *t = &model->tensors[i];
        if (is_of(model, t, at)) mixture_lay_tensor(model, t, format);
    }
}

void formats_lay(struct model *model, const struct mixture *weights)
{
    if (weights) mixture_lay(model, weights);
}

void formats_lay_as_planned(struct model *model, const struct plan *plan)
{
    if (!model->laid) formats_lay(model, plan->weights);
    for (uint32_t at = 0; at < unit_count(plan->layers) + 2 && plan->layers == model->config.layers; at++)
        if (plan->unit[at].format != PLAN_AS_STORED && !plan_format_varies(plan->unit[at].format))
            lay(model, at, plan->unit[at].format);
}

/* The format of blocks of the matrices of number `at`; single numbers and mixtures: as stored. */
static enum tensor_format as_laid(const struct model *model, uint32_t at)
{
    enum tensor_format laid = PLAN_AS_STORED;
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct model_tensor *t = &model->tensors[i];
        if (!is_of(model, t, at)) continue;
        if (tensor_format_is_plain(t->format) || (laid != PLAN_AS_STORED && laid != t->format))
            return PLAN_AS_STORED;
        laid = t->format;
    }
    return laid;
}

int formats_name_weights(const struct model *model, struct plan *plan, struct helm_err *err)
{
    if (plan->weights && plan->weights != model->laid)
        return helm_fail(err, HELM_E_MISMATCH, "the plan has weights as '%s', --weights says '%s'",
                         mixture_name(plan->weights), model->laid ? mixture_name(model->laid) : "stored");
    plan->weights = model->laid;
    return 0;
}

void formats_warn_unmeasured(const struct model *model, const struct profile *profile)
{
    char names[PROFILE_FORMATS_TEXT];
    const unsigned lacking = profile_formats_lacking(profile, model_formats(model));
    if (!lacking) return;
    profile_formats_text(lacking, names);
    log_warn("the profile has no rates of %s: bf16's bytes a second are assumed (helm-profile --formats %s "
             "measures "
             "them)",
             names, names);
}

static bool is_resident(const struct plan *plan, uint32_t unit)
{
    return plan_home_memory(plan->unit[unit].home[0]) != PLAN_HOST;
}

uint32_t formats_packable(const struct ledger_case *c, const struct plan *plan)
{
    uint32_t count = 0;
    for (uint32_t u = 0; u < unit_count(plan->layers); u++)
        count += c->table->packs_vram[u] && is_resident(plan, u);
    return count;
}

bool formats_head_packable(const struct ledger_case *c, const struct plan *plan)
{
    return c->table->packs_head && plan->head != PLAN_CPU0 && !(c->table->tied && plan->embed != PLAN_CPU0);
}

/* The first of each device's, as many as its part of all. */
void formats_set_vram(const struct ledger_case *c, uint32_t units, bool head, struct plan *plan)
{
    uint32_t left[PLAN_MEMORIES] = {0}, all = formats_packable(c, plan), before = 0, given = 0;
    for (uint32_t u = 0; u < unit_count(plan->layers); u++)
        left[plan_home_memory(plan->unit[u].home[0])] += c->table->packs_vram[u] && is_resident(plan, u);
    for (int i = 0; i < PLAN_MEMORIES; i++) {
        before += left[i];
        left[i] = all ? (uint32_t)((uint64_t)units * before / all) - given : 0;
        given += left[i];
    }
    for (uint32_t u = 0; u < unit_count(plan->layers); u++) {
        if (!is_resident(plan, u)) continue;
        uint32_t *const of = &left[plan_home_memory(plan->unit[u].home[0])];
        const bool packed = *of && c->table->packs_vram[u];
        plan_set_unit_format(plan, u, packed ? FORMAT_BF16_PACKED : PLAN_AS_STORED);
        *of -= packed;
    }
    plan_set_head_format(plan, head ? FORMAT_BF16_PACKED : PLAN_AS_STORED);
}

void formats_set_host(const struct ledger_case *c, struct plan *plan)
{
    for (uint32_t u = 0; u < unit_count(plan->layers); u++) {
        bool on_cpu = false;
        /* those of two processors are as experts_slots.c and shared.c have them */
        if (is_resident(plan, u) || plan_home_rows[plan->unit[u].home[0]].helper != PLAN_PROCESSORS) continue;
        for (uint32_t p = 0; p < plan_phase_count(plan); p++)
            on_cpu |= plan_home_processor(plan->unit[u].home[p]) == PLAN_CPU0;
        const bool packed =
            on_cpu ? c->wish->pack_cpu && c->table->packs_cpu[u] : c->wish->pack && c->table->packs[u];
        plan_set_unit_format(plan, u, packed ? FORMAT_BF16_PACKED : PLAN_AS_STORED);
    }
}

void formats_wished(const struct ledger_case *c, enum tensor_format (*format)[PLAN_HOMES])
{
    const struct analyse_table *t = c->table;
    const uint32_t units = unit_count(t->layers);
    for (uint32_t u = 0; u <= units; u++) {
        const bool cpu = u < units && c->wish->pack_cpu && t->packs_cpu[u],
                   link = cpu || (u < units && t->packs[u] && c->wish->pack);
        format[u][PLAN_HOME_CPU] = cpu ? FORMAT_BF16_PACKED : PLAN_AS_STORED;
        format[u][PLAN_HOME_STREAM] = link ? FORMAT_BF16_PACKED : PLAN_AS_STORED;
        format[u][PLAN_HOME_GPU] = format[u][PLAN_HOME_MIXED] = PLAN_AS_STORED;
    }
}

void formats_all_vram(const struct ledger_case *c, enum tensor_format (*format)[PLAN_HOMES])
{
    const struct analyse_table *t = c->table;
    const uint32_t units = unit_count(t->layers);
    for (uint32_t u = 0; u < units; u++)
        if (t->packs_vram[u]) format[u][PLAN_HOME_GPU] = FORMAT_BF16_PACKED;
    if (t->packs_head && !t->tied) format[units][PLAN_HOME_GPU] = FORMAT_BF16_PACKED;
}

void formats_plan_vram(const struct plan *plan, enum tensor_format (*format)[PLAN_HOMES])
{
    const uint32_t units = unit_count(plan->layers);
    for (uint32_t u = 0; u < units; u++)
        if (is_resident(plan, u)) format[u][PLAN_HOME_GPU] = plan_unit_format(plan, u);
    format[units][PLAN_HOME_GPU] = plan_head_format(plan);
}

/* ---- plans from a file ---- */

bool formats_packed_on_cpu(const struct plan *plan, uint32_t unit)
{
    return plan_unit_format(plan, unit) == FORMAT_BF16_PACKED && plan_computes(plan, PLAN_CPU0, unit);
}

int formats_check(const struct ledger_case *c, const struct plan *plan, struct helm_err *err)
{
    const struct analyse_table *t = c->table;
    for (uint32_t u = 0; u < unit_count(plan->layers); u++) {
        const enum tensor_format format = plan_unit_format(plan, u);
        if (format == PLAN_AS_STORED || format == as_laid(c->model, u)) continue;
        const bool packed = format == FORMAT_BF16_PACKED;
        if (!packed || !t->packs[u])
            return helm_fail(err, HELM_E_UNSUPPORTED, "the %s of layer %u cannot lie as '%s'",
                             unit_part_name(unit_part(u)), unit_layer(u), tensor_format_name(format));
        if (!t->packs_cpu[u] && formats_packed_on_cpu(plan, u))
            return helm_fail(err, HELM_E_UNSUPPORTED, "the CPU cannot compute the %s of layer %u as '%s'",
                             unit_part_name(unit_part(u)), unit_layer(u), tensor_format_name(format));
    }
    if (plan_embed_format(plan) != PLAN_AS_STORED &&
        plan_embed_format(plan) != as_laid(c->model, unit_count(plan->layers)))
        return helm_fail(err, HELM_E_UNSUPPORTED, "the embedding cannot lie as '%s'",
                         tensor_format_name(plan_embed_format(plan)));
    if (plan_head_format(plan) == PLAN_AS_STORED ||
        plan_head_format(plan) == as_laid(c->model, unit_count(plan->layers) + 1))
        return 0;
    if (plan_head_format(plan) != FORMAT_BF16_PACKED || !t->packs_head)
        return helm_fail(err, HELM_E_UNSUPPORTED, "'head_format' is '%s', which this head cannot have",
                         tensor_format_name(plan_head_format(plan)));
    if (!formats_head_packable(c, plan))
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "'head_format' is '%s', but the head is the embedding, which is on 'gpu' as well",
                         tensor_format_name(plan_head_format(plan)));
    return 0;
}
