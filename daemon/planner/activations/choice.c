/* Choice of activations. See choice.h. */
#include "daemon/planner/activations/choice.h"

#include <string.h>

#include "common/model/arch.h"
#include "daemon/planner/cost/analyse.h"
#include "daemon/planner/profile/policy.h"

enum activations_option activations_option_named(const char *name)
{
    static const char *const names[ACTIVATIONS_OPTIONS] = {"auto", "exact", "int8"};
    for (int i = 0; i < ACTIVATIONS_OPTIONS; i++)
        if (strcmp(name, names[i]) == 0) return (enum activations_option)i;
    return ACTIVATIONS_AUTO;
}

static bool is_blocks(enum tensor_format format)
{
    return format >= FORMAT_Q8_0;
}

double activations_gain(const struct model *model, const struct profile *profile,
                        enum plan_processor processor)
{
    double exact = 0, rounded = 0;
    bool gains = false;
    if (processor != PLAN_CPU0) return 0; /* devices have no such kernels */
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct model_tensor *t = &model->tensors[i];
        const struct profile_format *f = &profile->format[t->format];
        const bool looked_up = t->role == TENSOR_EMBED && !model->config.tied_head;
        const double rate = f->cpu_gemv.value, int8 = f->cpu_int8_gemv.value;
        if (arch_role_is_vector(t->role) || !is_blocks(t->format) || looked_up) continue;
        if (rate <= 0) return 0;
        const double bytes = (double)t->bytes * analyse_read_part(&model->config, t, 1);
        exact += bytes / rate;
        rounded += bytes / (int8 > 0 ? int8 : rate);
        gains |= int8 > 0;
    }
    return gains ? exact / rounded : 0;
}

void activations_choose(enum activations_option option, const struct model *model,
                        const struct profile *profile, const bool can[PLAN_PROCESSORS],
                        enum linear_inputs inputs[PLAN_PROCESSORS])
{
    for (int p = 0; p < PLAN_PROCESSORS; p++) {
        const double gain = activations_gain(model, profile, (enum plan_processor)p);
        const bool wanted = option == ACTIVATIONS_AUTO   ? gain >= 1 + WORTH_CHANGE
                            : option == ACTIVATIONS_INT8 ? can[p]
                                                         : false;
        inputs[p] = wanted ? LINEAR_INT8 : LINEAR_EXACT;
    }
}

bool activations_any(const enum linear_inputs inputs[PLAN_PROCESSORS])
{
    bool any = false;
    for (int p = 0; p < PLAN_PROCESSORS; p++) any |= inputs[p] == LINEAR_INT8;
    return any;
}

void activations_rates(const struct profile *profile, const enum linear_inputs inputs[PLAN_PROCESSORS],
                       struct profile *with)
{
    *with = *profile;
    with->programs_int8 = inputs[PLAN_CPU0] == LINEAR_INT8;
    for (int i = 0; i < FORMAT_COUNT && inputs[PLAN_CPU0] == LINEAR_INT8; i++) {
        struct profile_format *f = &with->format[i];
        if (f->cpu_int8_gemv.value <= 0) continue; /* it has no such kernels */
        f->cpu_gemv = f->cpu_int8_gemv;
        f->cpu_gemv_beside = f->cpu_int8_gemv_beside;
        if (f->cpu_int8_linear.count) f->cpu_linear = f->cpu_int8_linear;
    }
}

static bool has_blocks(const struct model_unit *unit)
{
    for (uint32_t i = 0; i < unit->matrix_count; i++)
        if (is_blocks(unit->tensor[i]->format)) return true;
    return false;
}

uint32_t activations_units(const struct plan *plan, const struct model *model)
{
    const struct model_tensor *head = model_find(model, TENSOR_HEAD, -1);
    uint32_t count = plan->inputs[plan->head] == LINEAR_INT8 && head && is_blocks(head->format);
    for (uint32_t u = 0; u < unit_count(plan->layers); u++)
        count += plan->inputs[plan_home_processor(plan->unit[u].home[0])] == LINEAR_INT8 &&
                 has_blocks(&model->unit[u]);
    return count;
}
