/* Lowering: where the numbers of the model's buffers lie in the device's memory, and as what. See making.h;
 * called by math.c, attention.c and experts.c. */
#include "worker-gpu/program/making.h"

/* The product that reads a buffer from this operation on; NULL: none does. */
static const struct math_op *reader_of(const struct lowering *low, const struct making *m,
                                       enum model_buffer buffer)
{
    const struct math_part *part = model_unit_math(low->source->model, m->at->unit);
    for (uint32_t i = m->at->op; i < part->ops; i++)
        if (part->op[i].in == buffer && part->op[i].weights > 0) return &part->op[i];
    return NULL;
}

/* Type of a chunk's numbers in a buffer: the one that the weights ask for which are multiplied by them
 * next. */
static enum dtype read_as(const struct lowering *low, const struct making *m, enum model_buffer buffer)
{
    const struct math_op *reader = reader_of(low, m, buffer);
    return reader ? making_dtype(low, reader, 0, m->at->layer) : DTYPE_F32;
}

/* Numbers of a token between a layer's gates and downs: rows are as long as the layer's MLP is wide, whatever
 * others have. */
static uint32_t act_width(const struct lowering *low, const struct making *m)
{
    const struct math_op *reader = reader_of(low, m, BUFFER_GATE);
    if (!reader || reader->kind != MATH_LINEAR) return low->source->model->config.intermediate;
    return gpu_matrix_of(low->source->weights, reader->weight[0], m->at->layer)->cols;
}

/* Numbers of a row in front of a buffer, where what products leave for attention, or for a gated delta net,
 * stands side by side. */
static uint32_t before(const struct model_config *c, const struct model_heads *heads,
                       enum model_buffer buffer)
{
    const struct model_delta *d = &c->delta;
    const uint32_t q = c->heads * heads->head_dim, kv = heads->kv_heads * heads->head_dim,
                   gate = c->gated_attention ? q : 0, z = d->channels,
                   alpha = z + d->value_heads * d->value_dim;
    switch (buffer) {
    case BUFFER_Q_GATE:
        return q;
    case BUFFER_K:
        return q + gate;
    case BUFFER_V:
    case BUFFER_Q_HEADS: /* of latent attention, where there is no v */
        return q + gate + kv;
    case BUFFER_Q_LOW:
        return q + gate + kv + model_latent_q(c);
    case BUFFER_DELTA_Z:
        return z;
    case BUFFER_DELTA_ALPHA:
        return alpha;
    case BUFFER_DELTA_BETA:
        return alpha + d->value_heads;
    default:
        return 0;
    }
}

/* A row of these of a sub-chunk's tokens, or of few tokens. */
static struct place side_by_side(const struct lowering *low, const struct making *m, enum model_buffer buffer,
                                 uint32_t width)
{
    const struct gpu_buffers *b = low->source->buffers;
    const bool chunk = making_tier(low) == OP_TIER_CHUNK;
    float *row = (float *)(void *)making_row(gpu_area(b, chunk ? GPU_AREA_CHUNK_QKV : GPU_AREA_FEW_QKV),
                                             m->sub, width, sizeof(float));
    const struct model_heads heads = making_heads(low, m);
    return (struct place){(char *)(row + before(&low->source->model->config, &heads, buffer)), width,
                          DTYPE_F32};
}

/* The output of attention, or of a gated delta net: `width` numbers of each token. Without an area of its own
 * a chunk's takes the place of q k v. */
static struct place attention_output(const struct lowering *low, const struct making *m,
                                     enum model_buffer buffer, uint32_t width)
{
    const struct gpu_buffers *b = low->source->buffers;
    const struct model_config *c = &low->source->model->config;
    char *own = gpu_area(b, GPU_AREA_CHUNK_A), *qkv = gpu_area(b, GPU_AREA_CHUNK_QKV);
    if (making_tier(low) != OP_TIER_CHUNK)
        return (struct place){gpu_area(b, GPU_AREA_FEW_A), width, DTYPE_F32};
    const enum dtype dtype = read_as(low, m, buffer);
    /* with two tiers the outputs of all sub-chunks, contiguous, when all of q k v has been used */
    if (own || plan_kv_tiered(low->source->plan))
        return (struct place){making_row(own ? own : qkv, m->sub, width, dtype_bytes(dtype)), width, dtype};
    return (struct place){making_row(qkv, m->sub, workspace_attention_width(c), sizeof(float)), width, dtype};
}

/* Where a buffer's rows are. */
struct place making_place(const struct lowering *low, const struct making *m, enum model_buffer buffer)
{
    const struct gpu_buffers *b = low->source->buffers;
    const struct model_config *c = &low->source->model->config;
    const bool chunk = making_tier(low) == OP_TIER_CHUNK;
    enum dtype dtype = DTYPE_F32;
    if (chunk && (buffer == BUFFER_GATE || buffer == BUFFER_UP)) dtype = read_as(low, m, BUFFER_GATE);
    if (chunk && (buffer == BUFFER_SHARED || buffer == BUFFER_SHARED_UP))
        dtype = read_as(low, m, BUFFER_SHARED);
    switch (buffer) {
    case BUFFER_X:
        return (struct place){making_row(gpu_area(b, GPU_AREA_X), m->sub, c->hidden, sizeof(float)),
                              c->hidden, DTYPE_F32};
    case BUFFER_Q:
    case BUFFER_Q_GATE:
    case BUFFER_K:
    case BUFFER_V:
    case BUFFER_Q_HEADS:
        return side_by_side(low, m, buffer, workspace_attention_width(c));
    case BUFFER_Q_LOW: /* beside what else is a product of its input; a chunk's norm takes rows one after
                          another */
        if (!chunk) return side_by_side(low, m, buffer, workspace_attention_width(c));
        return (struct place){making_row(gpu_area(b, GPU_AREA_CHUNK_LOW), m->sub, c->latent.q_rank,
                                         sizeof(float)),
                              c->latent.q_rank, DTYPE_F32};
    case BUFFER_VALUES:
        if (chunk) dtype = read_as(low, m, buffer);
        return (struct place){making_row(gpu_area(b, chunk ? GPU_AREA_CHUNK_VALUES : GPU_AREA_FEW_VALUES),
                                         m->sub, c->heads * c->latent.value, dtype_bytes(dtype)),
                              c->heads * c->latent.value, dtype};
    case BUFFER_DELTA_QKV:
    case BUFFER_DELTA_Z:
    case BUFFER_DELTA_ALPHA:
    case BUFFER_DELTA_BETA:
        return side_by_side(low, m, buffer, workspace_delta_width(c));
    case BUFFER_A:
        return attention_output(low, m, buffer, c->heads * making_heads(low, m).head_dim);
    case BUFFER_DELTA:
        return attention_output(low, m, buffer, c->delta.value_heads * c->delta.value_dim);
    case BUFFER_SHARED:
    case BUFFER_SHARED_UP: /* combined with it */
        if (!chunk)
            return (struct place){gpu_area(b, GPU_AREA_FEW_SHARED), c->shared_intermediate, DTYPE_F32};
        return (struct place){making_row(gpu_area(b, GPU_AREA_CHUNK_SHARED), m->sub, c->shared_intermediate,
                                         dtype_bytes(dtype)),
                              c->shared_intermediate, dtype};
    case BUFFER_OUT:
    case BUFFER_SUM:
        return (struct place){making_row(gpu_area(b, buffer == BUFFER_OUT ? GPU_AREA_OUT : GPU_AREA_SUM),
                                         m->sub, c->hidden, sizeof(float)),
                              c->hidden, DTYPE_F32};
    case BUFFER_PAIR:
        if (chunk) dtype = read_as(low, m, buffer);
        return (
            struct place){making_row(gpu_area(b, GPU_AREA_PAIR), m->sub, 2 * c->hidden, dtype_bytes(dtype)),
                          2 * c->hidden, dtype};
    case BUFFER_PER_LAYER: /* after a gate */
        return (struct place){making_row(gpu_area(b, GPU_AREA_PER_LAYER), m->sub,
                                         workspace_per_layer_width(c), sizeof(float)) +
                                  c->per_layer * sizeof(float),
                              workspace_per_layer_width(c), DTYPE_F32};
    default: /* GATE; UP is combined with it */
        if (!chunk) return (struct place){gpu_area(b, GPU_AREA_FEW_ACT), act_width(low, m), DTYPE_F32};
        return (struct place){making_row(gpu_area(b, GPU_AREA_CHUNK_ACT), m->sub, act_width(low, m),
                                         dtype_bytes(dtype)),
                              act_width(low, m), dtype};
    }
}
