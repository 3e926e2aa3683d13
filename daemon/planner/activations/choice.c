/* Choice of activations. See choice.h. */
#include "daemon/planner/activations/choice.h"

#include <string.h>

#include "common/model/arch.h"

enum activations_option activations_option_named(const char *name)
{
    static const char *const names[ACTIVATIONS_OPTIONS] = {"auto", "exact", "int8"};
    for (int i = 0; i < ACTIVATIONS_OPTIONS; i++)
        if (strcmp(name, names[i]) == 0) return (enum activations_option)i;
    return ACTIVATIONS_AUTO;
}

static bool is_blocks(enum tensor_format format)
{
    return !tensor_format_is_plain(format) && !tensor_format_of(format)->variable;
}

static double first_of(const struct profile_value *chain, const struct profile_value *alone)
{
    return chain->value > 0 ? chain->value : alone->value;
}

/* Bytes a second of one token's products; 0: not known. */
static double rate_of(const struct profile_format *f, enum plan_processor processor, bool int8)
{
    if (processor == PLAN_CPU0) return int8 ? f->cpu_int8_gemv.value : f->cpu_gemv.value;
    return int8 ? first_of(&f->gpu_int8_chain_gemv, &f->gpu_int8_gemv)
                : first_of(&f->gpu_chain_gemv, &f->gpu_gemv);
}

double activations_gain(const struct model *model, const struct profile *profile,
                        enum plan_processor processor)
{
    double exact = 0, rounded = 0;
    bool gains = false;
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct model_tensor *t = &model->tensors[i];
        const struct profile_format *f = &profile->format[t->format];
        const bool looked_up = t->role == TENSOR_EMBED && !model->config.tied_head;
        const double rate = rate_of(f, processor, false), int8 = rate_of(f, processor, true);
        if (arch_role_is_vector(t->role) || !is_blocks(t->format) || looked_up) continue;
        if (rate <= 0) return 0;
        exact += (double)t->bytes / rate;
        rounded += (double)t->bytes / (int8 > 0 ? int8 : rate);
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
        const bool wanted = option == ACTIVATIONS_AUTO   ? gain >= ACTIVATIONS_GAIN
                            : option == ACTIVATIONS_INT8 ? can[p] || gain > 0
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

/* A format without such rates keeps its own: it has no such kernels. */
static void take_cpu(struct profile_format *f)
{
    if (f->cpu_int8_gemv.value <= 0) return;
    f->cpu_gemv = f->cpu_int8_gemv;
    f->cpu_gemv_beside = f->cpu_int8_gemv_beside;
    if (f->cpu_int8_linear.count) f->cpu_linear = f->cpu_int8_linear;
}

static void take_gpu(struct profile_format *f)
{
    if (f->gpu_int8_gemv.value > 0) {
        f->gpu_gemv = f->gpu_int8_gemv;
        f->gpu_operation = f->gpu_int8_operation;
    }
    if (f->gpu_int8_chain_gemv.value > 0) {
        f->gpu_chain_gemv = f->gpu_int8_chain_gemv;
        f->gpu_chain_operation = f->gpu_int8_chain_operation;
    }
    if (f->gpu_int8_linear.count) {
        f->gpu_linear = f->gpu_int8_linear;
        f->gpu_linear_operation = f->gpu_int8_linear_operation;
    }
}

void activations_rates(const struct profile *profile, const enum linear_inputs inputs[PLAN_PROCESSORS],
                       struct profile *with)
{
    *with = *profile;
    for (int f = 0; f < FORMAT_COUNT; f++) {
        if (inputs[PLAN_CPU0] == LINEAR_INT8) take_cpu(&with->format[f]);
        if (inputs[PLAN_GPU0] == LINEAR_INT8) take_gpu(&with->format[f]);
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
        count += plan->inputs[plan_home_processor(plan_unit_home(plan, 0, u))] == LINEAR_INT8 &&
                 has_blocks(&model->unit[u]);
    return count;
}
