/* Lowering: the ends of a step but the head's products, and inputs of each layer. See making.h; called by
 * math.c. */
#include "worker-gpu/program/making.h"

void make_per_layer(struct lowering *low, const struct making *m)
{
    const struct gpu_source *s = low->source;
    const struct model_config *c = &s->model->config;
    const struct math_op *math = m->at->math;
    const struct gpu_matrix *table = lower_matrix(low, math->weight[0], -1);
    const struct place x = making_place(low, m, math->in);
    const struct gpu_program *p = low->program;
    making_op(low, m)->as.per_layer =
        (struct gpuk_per_layer){.step = gpu_block_step(&p->block, gpu_area(s->buffers, GPU_AREA_BLOCK),
                                                       p->step.pages_per_slot, m->sub),
                                .table = table->data,
                                .format = table->format,
                                .vocab = c->vocab,
                                .layers = c->layers,
                                .width = c->per_layer,
                                .stride = x.stride,
                                .norm = making_vector(low, m, math->norm),
                                .eps = (float)c->norm_eps,
                                .in_scale = math->in_scale,
                                .table_scale = math->table_scale,
                                .out_scale = math->out_scale,
                                .x = (float *)(void *)x.at};
}

void make_embed(struct lowering *low, const struct making *m)
{
    const struct gpu_source *s = low->source;
    const struct gpu_matrix *table = lower_matrix(low, m->at->math->weight[0], -1);
    const float scale = m->at->math->out_scale;
    making_op(low, m)->as.embed =
        (struct op_embed){.step = low->program->step,
                          .table = table->data,
                          .format = table->format,
                          .vocab = s->model->config.vocab,
                          .hidden = s->model->config.hidden,
                          .scale = scale != 0 ? scale : 1,
                          .x = (float *)(void *)making_place(low, m, m->at->math->out[0]).at};
}

/* Joins all of a step's tokens. */
void make_join(struct lowering *low, const struct making *m)
{
    const struct model_config *c = &low->source->model->config;
    const struct math_op *math = m->at->math;
    const struct place out = making_place(low, m, math->out[0]);
    making_op(low, m)->as.join =
        (struct gpuk_join){.a = (const float *)(void *)making_place(low, m, math->other).at,
                           .norm_a = making_vector(low, m, math->other_norm),
                           .b = (const float *)(void *)making_place(low, m, math->in).at,
                           .norm_b = making_vector(low, m, math->in_norm),
                           .eps = (float)c->norm_eps,
                           .width = c->hidden,
                           .out = out.at,
                           .out_dtype = out.dtype};
}

void make_gather(struct lowering *low, const struct making *m)
{
    const struct gpu_buffers *b = low->source->buffers;
    struct op *op = making_op(low, m);
    op->tokens = low->program->samples;
    op->as.gather = (struct op_gather){.step = low->program->step,
                                       .x = gpu_area(b, GPU_AREA_X),
                                       .width = low->source->model->config.hidden,
                                       .out = gpu_area(b, GPU_AREA_SAMPLE)};
}

void make_soft_cap(struct lowering *low, const struct making *m)
{
    struct op *op = making_op(low, m);
    op->tokens = low->program->samples;
    op->count = low->program->step.counts + 2;
    op->as.soft_cap = (struct op_soft_cap){.logits = gpu_area(low->source->buffers, GPU_AREA_LOGITS),
                                           .vocab = low->source->model->config.vocab,
                                           .cap = m->at->math->soft_cap};
}

/* The block is left as that of the same rows one token further: for a step that follows without a block
 * (follow.h); any other brings its own. */
void make_argmax(struct lowering *low, const struct making *m)
{
    const struct gpu_source *s = low->source;
    const struct gpu_program *p = low->program;
    char *block = gpu_area(s->buffers, GPU_AREA_BLOCK);
    struct op *op = making_op(low, m);
    op->tokens = p->samples;
    op->count = p->step.counts + 2;
    op->workspace = gpu_area(s->buffers, GPU_AREA_ARGMAX);
    op->as.argmax = (struct op_argmax){.logits = gpu_area(s->buffers, GPU_AREA_LOGITS),
                                       .vocab = s->model->config.vocab,
                                       .result = s->tokens,
                                       .next = {.token_id = (uint32_t *)(void *)(block + p->block.token_id),
                                                .position = (uint32_t *)(void *)(block + p->block.position)}};
}
