/* Prices of the embedding and the head, before and after a step's half layers. See cost/spent.h;
 * docs/planner-prices.md has the equations. Called by cost.c; owns nothing. */
#include <math.h>

#include "daemon/planner/cost/measured.h"
#include "daemon/planner/cost/spent.h"

/* By how much the head is later where it lies packed in VRAM: one row's product is no part of a chain,
 * several rows' are of expanded slices. */
static double head_packed(const struct pricing *p, double bytes)
{
    const double few = ceil((double)p->step->samples / ENGINE_FEW_TOKENS);
    if (p->step->samples > 1 || !cost_rates_reads_packed(p, GPU_PACKED_COLS))
        return expand_seconds(p, bytes) +
               few * fmax(0, slices_of((uint64_t)bytes, true) - 1) * product_of(&p->kernel);
    double kernel = fmax(0, bytes / p->kernel.gemv - bytes / p->gpu.gemv) +
                    fmax(0, p->kernel.operation - product_of(&p->gpu));
    return kernel + longer_packed(p, bytes);
}

/* The GPU takes 16 rows at a time. */
void price_head(const struct pricing *p, const struct analyse_table *analysed, struct cost_unit *u)
{
    const struct model_config *c = &p->model->config;
    double samples = p->step->samples, logits = samples * c->vocab * sizeof(float);
    double parameters = (double)c->vocab * c->hidden, bytes = (double)analysed->head.stored;
    struct pricing head = *p;
    head.gpu.parts = 1;
    struct spent cpu = {0}, gpu = {0};
    u->bytes = analysed->head.stored + analysed->final_norm.stored;
    if (samples == 0) return;
    /* Whatever the step's size: only the sampled rows are multiplied. */
    head.cpu.linear = samples > 1 ? profile_table_at(&p->profile->cpu.linear, p->step->samples).value : 0;
    head.gpu.linear = head.gpu.product = 0;
    if (samples > 1) {
        uint32_t rows = (uint32_t)fmin(samples, ENGINE_FEW_TOKENS);
        head.gpu.linear = profile_table_at(&p->profile->gpu.linear, rows).value;
        head.gpu.product = profile_table_at(&p->profile->gpu.linear_operation, rows).value;
    }
    const struct model_tensor *matrix = model_find(p->model, TENSOR_HEAD, -1);
    const enum tensor_format format = matrix ? matrix->format : FORMAT_BF16;
    const struct rates_size size = {p->step->samples, rates_head_tier(p->step->samples)};
    struct format_rates with;
    cost_rates_with(&head, format, &size, &with);
    u->cpu_spread = with.cpu_spread;
    u->gpu_spread = with.gpu_spread;
    spent_linear(&with.cpu, bytes, parameters, samples, &cpu);
    spent_bytes(&head.cpu, logits, p->cpu.read, &cpu);
    const struct math_op *math = &p->model->math.head;
    const enum op_tier tier = rates_head_tier(p->step->samples);
    spent_operations(&p->cpu, program_ops_count(math, PROCESSOR_CPU, tier), &cpu);
    u->cpu = cpu.total;
    u->cpu_beside = cpu.beside;
    u->cpu_bound = spent_bound(&cpu);
    measured_price(p, unit_count(p->model->config.layers), u);
    if (!p->device) return;
    const double there =
        with.expands ? parameters * (double)dtype_bytes(tensor_format_product(format)) : bytes;
    const double few = ceil(samples / ENGINE_FEW_TOKENS);
    for (double left = samples; left > 0; left -= ENGINE_FEW_TOKENS)
        spent_linear(&with.gpu, there, parameters, fmin(left, ENGINE_FEW_TOKENS), &gpu);
    spent_bytes(&head.gpu, logits, p->gpu.read, &gpu);
    /* the matrix (once for every few rows), gathering several rows, choosing the token */
    spent_overhead(&with.gpu, few * product_of(&with.gpu), &gpu);
    if (with.expands)
        spent_overhead(&with.gpu,
                       expanding_seconds(p, with.expand, there) +
                           few * fmax(0, slices_of((uint64_t)there, true) - 1) * product_of(&p->kernel),
                       &gpu);
    head.kernel.parts = 1;
    spent_operations(&head.kernel, program_ops_count(math, PROCESSOR_GPU, tier) - 1.0, &gpu);
    /* and the word that says so, on its way to the host */
    u->gpu = u->stream = gpu.total + p->profile->link.hand_over.value;
    u->gpu_bound = spent_bound(&gpu);
    u->gpu_packed = cost_rates_packed(p, unit_count(p->model->config.layers), PLAN_HOME_GPU);
    if (u->gpu_packed) u->gpu = u->stream = u->gpu + head_packed(&head, bytes);
    measured_price_gpu(p, unit_count(p->model->config.layers), 0, u);
    if (u->gpu_measured) u->gpu = u->stream = u->gpu + p->profile->link.hand_over.value;
}

/* The inputs that MLP halves take of the tokens: a product of the embedding, and rows of a table in host
 * memory. */
static void add_inputs(const struct pricing *p, struct spent *cpu, struct spent *gpu)
{
    const struct math_part *inputs = &p->model->math.inputs;
    for (uint32_t i = 0; i < inputs->ops; i++) {
        const struct math_op *op = &inputs->op[i];
        const struct model_tensor *t = model_find(p->model, op->weight[0], -1);
        const double bytes = (double)t->bytes, parameters = (double)t->rows * (double)t->cols,
                     rows = p->step->tokens * bytes / (double)t->rows;
        spent_operations(&p->cpu, program_ops_count(op, PROCESSOR_CPU, p->tier), cpu);
        if (p->device) spent_operations(&p->kernel, program_ops_count(op, PROCESSOR_GPU, p->tier), gpu);
        if (op->kind == MATH_LINEAR) {
            spent_linear(&p->with[t->format].cpu, bytes, parameters, p->step->tokens, cpu);
            if (p->device) spent_linear(&p->with[t->format].kernel, bytes, parameters, p->step->tokens, gpu);
        } else {
            spent_bytes(&p->cpu, rows, p->cpu.read, cpu);
            if (p->device) spent_bytes(&p->kernel, rows, p->profile->link.h2d.value, gpu);
        }
    }
}

void price_embed(const struct pricing *p, const struct analyse_table *analysed, struct cost_unit *u)
{
    double row = (double)p->model->config.hidden * (sizeof(float) + dtype_bytes(p->model->config.dtype));
    struct spent cpu = {0}, gpu = {0};
    add_inputs(p, &cpu, &gpu);
    u->bytes = analysed->embed.stored;
    u->cpu = u->cpu_beside =
        cpu.total + program_ops_count(&p->model->math.embed, PROCESSOR_CPU, p->tier) * p->cpu.operation +
        p->step->tokens * row / p->cpu.read;
    /* Beside a GPU worker, which looks for the step, the CPU worker has slept. (Before a prompt both have:
     * cost_ttft.) */
    if (p->device && p->tier == OP_TIER_ONE) u->cpu = u->cpu_beside = u->cpu + p->profile->wake.value;
    u->cpu_bound = u->gpu_bound = "overhead";
    /* The launch's way to the device, the operations that a step begins with, the launch of the chain after
     * them. */
    const double begin = measured_begin(p);
    if (p->device)
        u->gpu = u->stream =
            gpu.total + p->profile->link.hand_over.value +
            (begin > 0 ? begin
                       : (p->first + p->chained) * p->kernel.operation + p->step->tokens * row / p->gpu.read);
}

void price_rest(const struct pricing *p, struct cost_table *table)
{
    const struct profile_link *link = &p->profile->link;
    table->step = p->profile->step.value;
    if (!p->device) return;
    if (table->follows) table->launch = link->hand_over.value;
    /* An empty step, less the price of the ends: its way there and back, its first kernels. They begin with
     * the step, whichever processor has the embedding. */
    const struct profile_value *nothing =
        p->tier == OP_TIER_CHUNK ? &p->profile->gpu.begin : &p->profile->gpu.begin_graph;
    double first = p->first * p->kernel.operation;
    table->begin = fmax(0, nothing->value - 2 * link->hand_over.value - first);
    if (nothing->value > 0) table->ready = table->begin + link->hand_over.value + first;
    double crossing = (double)p->step->tokens * p->model->config.hidden * sizeof(float);
    double rate = fmin(link->h2d.value, rate_or(&link->d2h, link->h2d.value));
    struct spent slice = {0};
    table->hand_over = link->hand_over.value;
    table->hand_over_more = fmax(0, link->hand_over_beside.value - link->hand_over.value);
    table->activation = fmax(0, crossing - ENGINE_HAND_OVER_BYTES) / rate;
    bool packed = false;
    for (uint32_t u = 0; u < table->units; u++) packed |= table->unit[u].packed;
    /* of the format that the last unit's matrices begin with */
    const struct model_unit *last = &p->model->unit[table->units - 1];
    const enum tensor_format format = last->matrix_count ? last->tensor[0]->format : FORMAT_BF16;
    const struct format_rates *with = &p->with[format];
    const bool plain = tensor_format_is_plain(format);
    const double expanded = (double)(packed || !plain ? RING_PACKED_SLICE_BYTES : RING_SLICE_BYTES),
                 values = expanded / (double)dtype_bytes(tensor_format_product(format)),
                 bytes = plain || with->expands ? expanded
                                                : (double)tensor_format_row_bytes(format, (uint64_t)values);
    spent_linear(&with->kernel, bytes, values, p->step->tokens, &slice);
    spent_overhead(&with->kernel, product_of(&with->kernel), &slice);
    table->slice = slice.total + (packed          ? expand_seconds(p, expanded)
                                  : with->expands ? expanding_seconds(p, with->expand, expanded)
                                                  : 0);
}
