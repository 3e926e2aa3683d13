/* Lowering: the operations of the model's units (common/model/unit.h) to flat programs. See program.h.
 *
 * Each operation of the model becomes the entries that program_ops_of names; each kind has one function. A
 * LINEAR has a segment for each weight; gated ones are combined while they are in the cache. With several
 * tokens the NORM before it, with or without a weight, tiles the input for the matrix kernel; gates and ups
 * are tiled by the LINEAR that joins them, but for a shared expert's, whose down comes after other
 * products. */
#include "worker-cpu/program/lower.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/grow.h"
#include "common/model/able.h"
#include "common/plan/state.h"

void lower_unsupported(struct lowering *low, int32_t layer, const char *what)
{
    if (!low->rc)
        low->rc = helm_fail(low->err, HELM_E_UNSUPPORTED, "layer %d: %s cannot be lowered for the CPU", layer,
                            what);
}

struct program_entry *lower_entry(struct lowering *low, enum op_kind kind, int32_t layer)
{
    struct program *p = low->program;
    if (!GROW(p->entry, p->count, low->capacity)) {
        low->rc = helm_fail(low->err, HELM_E_NOMEM, "no memory for a program of %u entries", p->count + 1);
        return &low->nowhere;
    }
    struct program_entry *e = &p->entry[p->count++];
    memset(e, 0, sizeof *e);
    e->kind = kind;
    e->layer = layer;
    e->chunk = TOKENS_A_CHUNK;
    return e;
}

/* Rows of these are as long as the layer's heads or MLP are, whatever other layers have. */
static bool is_of_layer(enum model_buffer buffer)
{
    return buffer == BUFFER_Q || buffer == BUFFER_K || buffer == BUFFER_V || buffer == BUFFER_GATE ||
           buffer == BUFFER_UP;
}

/* Numbers of a token in an operation's input. */
static uint32_t input_width(const struct lowering *low, const struct math_op *op, enum model_buffer in,
                            int32_t layer)
{
    if ((in == BUFFER_A || in == BUFFER_GATE) && op->weights)
        return weights_matrix(low->source->weights, op->weight[0], layer)->cols;
    return low->source->act->width[in];
}

static void add_segment(struct lowering *low, struct program_entry *e, const struct math_op *op,
                        uint32_t weight, int32_t layer)
{
    const struct program_source *s = low->source;
    const struct tensor_matrix *m = weights_matrix(s->weights, op->weight[weight], layer);
    const struct linear_set *kernels = &s->kernels->linear[s->inputs][m->format];
    float *out = s->act->buffer[op->out[weight]];
    if (!m->data || !out) lower_unsupported(low, layer, "a linear without weights or output");
    if (!kernels->one || (kernels->one->col_unit && m->cols % kernels->one->col_unit))
        lower_unsupported(low, layer, "a linear of weights whose format has no kernel here");
    e->decoded |= low->tiled && kernels->decode;
    struct program_segment *g = &e->segment[e->segment_count++];
    *g = (struct program_segment){.matrix = *m,
                                  .kernels = kernels,
                                  .bias = weights_vector(s->weights, op->bias[weight], layer),
                                  .out = out,
                                  .out_width =
                                      is_of_layer(op->out[weight]) ? m->rows : s->act->width[op->out[weight]],
                                  .role = op->weight[weight]};
}

/* A router, which is kept as fp32 beside the matrices: exact, however many tokens. */
static void add_router(struct lowering *low, struct program_entry *e, const struct math_op *op, int32_t layer)
{
    const enum tensor_role role = op->router;
    const struct program_source *s = low->source;
    const struct model_config *c = &s->model->config;
    const float *router = weights_vector(s->weights, role, layer);
    if (!router) lower_unsupported(low, layer, "a router without weights");
    e->segment[e->segment_count++] =
        (struct program_segment){.matrix = {.format = FORMAT_F32,
                                            .data = router,
                                            .bytes = (uint64_t)c->router.experts * c->hidden * sizeof *router,
                                            .rows = c->router.experts,
                                            .cols = c->hidden},
                                 .kernels = &s->kernels->linear[LINEAR_EXACT][FORMAT_F32],
                                 .bias = weights_vector(s->weights, op->bias[0], layer),
                                 .out = s->act->buffer[BUFFER_ROUTER],
                                 .out_width = s->act->width[BUFFER_ROUTER],
                                 .role = role};
}

/* The context in which an operation is made. */
struct making {
    const struct math_op *op, *next_op; /* and the next one in its part; NULL: none */
    int32_t layer;
    enum op_kind kind; /* that it becomes */
    bool sampled;
    bool asked; /* of experts that the GPU asks for */
};

/* NULL: the operation has no such vector, or it is not here. */
static const float *vector_of(const struct lowering *low, const struct making *m, enum tensor_role role)
{
    return weights_vector(low->source->weights, role, m->layer);
}

/* An entry of that kind, with the buffers that the operation reads and writes. */
static struct program_entry *add(struct lowering *low, const struct making *m)
{
    const struct activations *act = low->source->act;
    struct program_entry *e = lower_entry(low, m->kind, m->layer);
    e->in = act->buffer[m->op->in];
    e->width = act->width[m->op->in];
    e->out = act->buffer[m->op->out[0]];
    e->out_width = act->width[m->op->out[0]];
    return e;
}

/* An entry of its own, first in the program. */
static void make_embed(struct lowering *low, const struct making *m)
{
    const struct tensor_matrix *table = weights_matrix(low->source->weights, m->op->weight[0], -1);
    if (!table->data || tensor_format_of(table->format)->variable ||
        table->bytes < tensor_format_bytes(table->format, table->rows, table->cols))
        lower_unsupported(low, m->layer, "an embedding that is not here, or not in rows of one size,");
    struct program_entry *e = &low->program->entry[0];
    e->gather = true;
    e->out = low->source->act->buffer[m->op->out[0]];
    e->scale = m->op->out_scale;
    e->position_first = m->op->position_first;
    e->vector = vector_of(low, m, m->op->positions);
    if (m->op->positions != TENSOR_NONE && !e->vector)
        lower_unsupported(low, m->layer, "learned positions that are not here");
}

/* A norm of the residual stream into the buffer of normalised inputs, or to tiles alone; without a weight it
 * only tiles. */
static void make_norm(struct lowering *low, const struct making *m)
{
    const struct program_source *s = low->source;
    if (low->few && m->op->norm == TENSOR_NONE) return; /* nothing is tiled */
    struct program_entry *e = lower_entry(low, OP_NORM, m->layer);
    e->in = s->act->buffer[m->op->in];
    e->width = input_width(low, m->op, m->op->in, m->layer);
    e->sampled = m->sampled;
    if (m->op->norm == TENSOR_NONE) return;
    e->norm = vector_of(low, m, m->op->norm);
    e->layer_norm = m->op->norm_kind == NORM_LAYER;
    e->norm_bias = vector_of(low, m, m->op->norm_bias);
    const bool experts = m->op->kind == MATH_ROUTE || m->op->kind == MATH_EXPERTS_GLU; /* read that */
    if (!low->tiled || experts) e->out = s->act->buffer[BUFFER_H];
    if (!e->norm) lower_unsupported(low, m->layer, "a norm without weight");
}

/* A product with an activation tiles the numbers that it has just joined for the next one. Where its kernel
 * does both at once, no gate or up leaves a core's caches. */
static void tile_joined(struct lowering *low, struct program_entry *e, const struct making *m)
{
    const struct program_source *s = low->source;
    const struct program_segment *gate = &e->segment[0], *up = &e->segment[1];
    const struct linear_kernel *k = gate->kernels->tokens;
    for (uint32_t w = 0; w < m->next_op->weights; w++) {
        const struct tensor_matrix *next = weights_matrix(s->weights, m->next_op->weight[w], m->layer);
        cut_tiles(e, s->kernels->linear[s->inputs][next->format].tokens);
    }
    if (e->gated && e->activation == ACTIVATION_SILU && k == up->kernels->tokens && !gate->kernels->decode &&
        !up->kernels->decode && !gate->bias && !up->bias && e->tile_count == 1 &&
        e->tile[0]->tile == k->tile && gate->matrix.rows % k->tile_cols == 0)
        e->join = k->join;
}

/* With several tokens the input has been tiled: by the norm in front, or by the gated product whose output it
 * is. */
static void make_linear(struct lowering *low, const struct making *m)
{
    const enum model_buffer in = m->op->norm == TENSOR_NONE ? m->op->in : BUFFER_H;
    struct program_entry *e = lower_entry(low, OP_LINEAR, m->layer);
    e->sampled = m->sampled;
    e->residual = m->op->residual;
    e->in = low->source->act->buffer[in];
    e->width = input_width(low, m->op, m->op->in, m->layer);
    e->soft_cap = m->op->soft_cap;
    e->gated = m->op->gated;
    e->activation = m->op->activation;
    e->scale = m->op->out_scale;
    if (m->op->times != BUFFER_NONE) {
        const struct activations *act = low->source->act;
        e->times = act->buffer[m->op->times] + (size_t)m->layer * low->source->model->config.per_layer;
        e->times_width = act->width[m->op->times];
    }
    if (m->op->kind == MATH_ROUTE) add_router(low, e, m->op, m->layer);
    for (uint32_t w = 0; w < m->op->weights; w++) add_segment(low, e, m->op, w, m->layer);
    if (low->rc) return;
    for (uint32_t i = 0; i < e->segment_count && low->tiled && in != BUFFER_GATE; i++)
        cut_tiles(e - 1, e->segment[i].kernels->tokens);
    if (low->tiled && in == BUFFER_GATE) e->tiled = TILED_JOINED;
    if (low->tiled && m->op->out[0] == BUFFER_GATE) tile_joined(low, e, m);
    cut_rows(low, e, m->op->kind == MATH_ROUTE);
    low->program->bytes += e->bytes;
}

/* Each head's rows times its own part of the input. */
static void make_linear_heads(struct lowering *low, const struct making *m)
{
    struct program_entry *e = add(low, m);
    e->head_in = m->op->head_in;
    e->head_out = m->op->head_out;
    add_segment(low, e, m->op, 0, m->layer);
    e->segment[0].out_width = low->source->model->config.heads * e->head_out;
    if (low->rc) return;
    cut_heads(low, e);
    low->program->bytes += e->bytes;
}

/* Head norms and rotations in one pass, which also fills the cache. */
static void make_rope_append(struct lowering *low, const struct making *m)
{
    const struct program_source *s = low->source;
    struct program_entry *e = lower_entry(low, OP_ROPE_APPEND, m->layer);
    const uint32_t cache = model_cache_layer(&s->model->config, (uint32_t)m->layer);
    if (plan_kv_of(s->plan, cache, &e->kv_layer) != s->self)
        lower_unsupported(low, m->layer, "attention whose KV cache is not the CPU's");
    e->in_window = plan_keeps_window(s->plan, cache);
    e->other_cache = m->op->other_cache;
    e->no_rope = m->op->no_rope;
    e->rope = m->op->rope;
    e->kv_heads = m->op->kv_heads;
    e->head_dim = m->op->head_dim;
    e->latent = m->op->latent;
    e->v_is_k = m->op->v_is_k;
    e->v_normed = m->op->v_normed;
    e->rope_dims = m->op->rope_dims ? m->op->rope_dims : e->head_dim;
    if (!e->no_rope) low->program->entry[0].rotates |= 1u << e->rope;
    e->norm = vector_of(low, m, m->op->q_norm);
    e->norm2 = vector_of(low, m, m->op->k_norm);
}

static void make_attend(struct lowering *low, const struct making *m)
{
    const struct model_config *c = &low->source->model->config;
    struct program_entry *e = lower_entry(low, OP_ATTEND, m->layer);
    const uint32_t cache = model_cache_layer(c, (uint32_t)m->layer);
    (void)plan_kv_of(low->source->plan, cache, &e->kv_layer);
    e->in_window = plan_keeps_window(low->source->plan, cache);
    e->kv_heads = m->op->kv_heads;
    e->head_dim = m->op->head_dim;
    e->window = c->window ? c->window[m->layer] : 0;
    e->scale = m->op->score_scale;
    e->sinks = vector_of(low, m, m->op->sinks);
}

/* A gate's output, in place. */
static void make_gate(struct lowering *low, const struct making *m)
{
    struct program_entry *e = add(low, m);
    e->in = low->source->act->buffer[m->op->output_gate];
    e->width = e->out_width;
}

/* Where the operation's state, from byte `at` on, lies in its sequence's slot and in snapshots. */
static void place_state(struct lowering *low, const struct making *m, uint64_t at, struct program_entry *e)
{
    struct state_record record;
    if (!plan_state_record(low->source->plan, low->source->self, (uint32_t)m->layer, &record))
        lower_unsupported(low, m->layer, "a state that is not the CPU's");
    e->state_at = record.slot_at + m->op->state_at + at;
    e->snapshot_at = record.snapshot_at + m->op->state_at + at;
}

/* The convolution, in place, and the rule: of one record, the columns first. */
static void make_delta(struct lowering *low, const struct making *m)
{
    const struct model_delta *d = &low->source->model->config.delta;
    struct program_entry *e = add(low, m);
    place_state(low, m, m->kind == OP_DELTA ? model_delta_matrices_at(d) : 0, e);
    e->delta = (struct program_delta){.conv = vector_of(low, m, m->op->conv),
                                      .decay = vector_of(low, m, m->op->decay),
                                      .time_bias = vector_of(low, m, m->op->time_bias),
                                      .norm = vector_of(low, m, m->op->head_norm),
                                      .order = m->op->head_order};
    if (!e->delta.conv || !e->delta.decay || !e->delta.time_bias || !e->delta.norm)
        lower_unsupported(low, m->layer, "a gated delta net without its vectors");
}

static void make_running_mean(struct lowering *low, const struct making *m)
{
    struct program_entry *e = add(low, m);
    place_state(low, m, 0, e);
    e->out_width = e->width;
}

static void make_sample(struct lowering *low, const struct making *m)
{
    struct program_entry *e = lower_entry(low, OP_SAMPLE, m->layer);
    e->sampled = m->sampled;
    e->chunk = 1;
}

static struct lane *expert_lane(const struct program_source *s, enum plan_processor from,
                                enum plan_processor to)
{
    return s->arena ? arena_lane_at(s->arena, ARENA_LANE_EXPERTS, plan_link_of(from, to)) : NULL;
}

/* The last entry of a layer that was asked for. */
static void answers(struct lowering *low, const struct making *m, struct program_entry *e)
{
    const struct program_source *s = low->source;
    e->asked = m->asked;
    e->out = s->act->buffer[m->op->out[0]];
    e->residual = m->op->residual && !m->asked;
    if (!m->asked) return;
    e->ticket = low->mixed;
    e->answer = expert_lane(s, s->self, plan_home_processor(PLAN_HOME_MIXED));
    e->out = e->answer ? e->answer->data : NULL;
}

static void few_of_experts(struct program_entry *e)
{
    uint32_t most = UINT32_MAX;
    e->few_together = true;
    for (uint32_t s = 0; s < e->segment_count; s++) {
        const struct linear_kernel *one = e->segment[s].kernels->one;
        e->few_together &= one->few != NULL;
        if (one->apart < most) most = one->apart;
    }
    e->few_most = most > 1 ? most : 1;
}

/* Experts on disk are where they are read to. */
static void place_experts(const struct lowering *low, const struct making *m, struct program_entry *e)
{
    const struct program_source *s = low->source;
    e->from_disk = s->plan->unit[unit_of((uint32_t)m->layer, UNIT_MLP)].home[0] == PLAN_HOME_DISK;
    if (!e->from_disk || !s->disk) return;
    for (uint32_t w = 0; w < e->segment_count; w++) {
        e->segment[w].place_rows = e->expert_rows;
        for (int r = 0; r < SLOT_ROLES; r++)
            if (slot_tensor((enum slot_role)r) == e->segment[w].role)
                e->segment[w].place = disk_places(s->disk, m->layer, (enum slot_role)r);
    }
}

static void make_experts(struct lowering *low, const struct making *m)
{
    const struct program_source *s = low->source;
    const struct model_config *c = &s->model->config;
    const bool down = m->kind == OP_EXPERTS_DOWN;
    struct program_entry *e = lower_entry(low, m->kind, m->layer);
    e->experts = c->router.experts;
    e->chosen = c->router.chosen;
    e->expert_rows = down ? c->hidden : c->expert_intermediate;
    e->glu = math_glu(m->op);
    e->asked = m->asked;
    e->in = s->act->buffer[down ? BUFFER_GATE : BUFFER_H]; /* which the norm, or the router's, has left */
    e->width = s->act->width[down ? BUFFER_GATE : BUFFER_H];
    for (uint32_t w = 0; w < m->op->weights; w++) add_segment(low, e, m->op, w, m->layer);
    e->decoded = false;
    if (low->rc) return;
    place_experts(low, m, e);
    few_of_experts(e);
    if (e->segment[0].matrix.rows != (uint64_t)e->experts * e->expert_rows ||
        e->expert_rows % tensor_format_of(e->segment[0].matrix.format)->group_rows) {
        lower_unsupported(low, m->layer, "experts that are no whole groups of rows");
        return;
    }
    cut_experts(low, e);
    low->program->bytes += e->bytes;
    if (down && !low->tiled && !low->few) answers(low, m, e);
}

/* The choice, after the linear that makes its logits; and the sum after several tokens' downs. */
static void make_route(struct lowering *low, const struct making *m)
{
    struct program_entry *e = lower_entry(low, OP_ROUTE, m->layer);
    e->vector = vector_of(low, m, m->op->bias[1]);
    e->scale_of = vector_of(low, m, m->op->expert_scale);
    if (m->op->expert_scale != TENSOR_NONE && !e->scale_of)
        lower_unsupported(low, m->layer, "experts' scales that are not here");
}

static void make_weigh(struct lowering *low, const struct making *m)
{
    struct program_entry *e = add(low, m);
    e->norm = vector_of(low, m, m->op->norm);
    e->vector = vector_of(low, m, m->op->router);
    if (!e->norm || !e->vector)
        lower_unsupported(low, m->layer, "a shared expert's weight without its vector");
}

/* The other input, each with a norm of its own. */
static void add_other(const struct lowering *low, const struct making *m, struct program_entry *e)
{
    e->other = low->source->act->buffer[m->op->other];
    e->in_norm = vector_of(low, m, m->op->in_norm);
    e->other_norm = vector_of(low, m, m->op->other_norm);
}

static void make_add_normed(struct lowering *low, const struct making *m)
{
    struct program_entry *e = add(low, m);
    e->norm = vector_of(low, m, m->op->norm);
    e->residual = m->op->residual;
    e->growth = m->op->growth;
    e->growth_context = m->op->growth_context;
    e->vector = vector_of(low, m, m->op->out_factor);
    if (m->op->other != BUFFER_NONE) add_other(low, m, e);
    if (!e->norm != !m->op->norm || (e->residual && !e->norm) || !e->in || !e->vector != !m->op->out_factor ||
        (e->other && (!e->in_norm || !e->other_norm)))
        lower_unsupported(low, m->layer, "an output's norm without weight");
}

/* Drafts' input: two side by side, each normed. */
static void make_join(struct lowering *low, const struct making *m)
{
    struct program_entry *e = add(low, m);
    add_other(low, m, e);
    if (!e->in_norm || !e->other_norm) lower_unsupported(low, m->layer, "a norm without weight");
}

/* Parts of a token's row for each layer: its norm is of in's part. */
static void make_per_layer(struct lowering *low, const struct making *m)
{
    const struct tensor_matrix *table = weights_matrix(low->source->weights, m->op->weight[0], -1);
    struct program_entry *e = add(low, m);
    e->norm = vector_of(low, m, m->op->norm);
    e->in_scale = m->op->in_scale;
    e->table_scale = m->op->table_scale;
    e->scale = m->op->out_scale;
    if (!e->norm || !e->in || !table->data || tensor_format_of(table->format)->variable)
        lower_unsupported(low, m->layer,
                          "per-layer embeddings that are not here, or not in rows of one size,");
    e->segment[0] =
        (struct program_segment){.matrix = *table, .role = m->op->weight[0]}; /* none is multiplied */
}

static void make_experts_sum(struct lowering *low, const struct making *m)
{
    struct program_entry *e = lower_entry(low, OP_EXPERTS_SUM, m->layer);
    e->chosen = low->source->model->config.router.chosen;
    e->width = low->source->model->config.hidden;
    answers(low, m, e);
}

/* The entry that takes what the GPU asks for, instead of norm and router. */
static void make_experts_take(struct lowering *low, const struct making *m)
{
    const struct program_source *s = low->source;
    struct program_entry *e = lower_entry(low, OP_EXPERTS_TAKE, m->layer);
    const struct math_op *reads =
        m->next_op && m->next_op->own_norm ? m->next_op : m->op; /* experts' own norm */
    e->norm = vector_of(low, m, reads->norm);
    e->out = s->act->buffer[BUFFER_H];
    e->width = s->act->width[BUFFER_H];
    e->chosen = s->model->config.router.chosen;
    e->ticket = ++low->mixed;
    e->last = low->mixed == plan_mixed_units(s->plan);
    e->lane = expert_lane(s, plan_home_processor(PLAN_HOME_MIXED), s->self);
    if (!e->norm) lower_unsupported(low, m->layer, "a norm without weight");
}

static void (*const make_of[OP_KIND_COUNT])(struct lowering *low, const struct making *m) = {
    [OP_EMBED] = make_embed,
    [OP_NORM] = make_norm,
    [OP_LINEAR] = make_linear,
    [OP_LINEAR_HEADS] = make_linear_heads,
    [OP_ROPE_APPEND] = make_rope_append,
    [OP_ATTEND] = make_attend,
    [OP_SAMPLE] = make_sample,
    [OP_ROUTE] = make_route,
    [OP_ADD_NORMED] = make_add_normed,
    [OP_PER_LAYER] = make_per_layer,
    [OP_JOIN] = make_join,
    [OP_WEIGH] = make_weigh,
    [OP_RUNNING_MEAN] = make_running_mean,
    [OP_CONVOLVE] = make_delta,
    [OP_DELTA] = make_delta,
    [OP_GATE] = make_gate,
    [OP_EXPERTS_GLU] = make_experts,
    [OP_EXPERTS_DOWN] = make_experts,
    [OP_EXPERTS_SUM] = make_experts_sum,
    [OP_EXPERTS_TAKE] = make_experts_take,
};

/* Refuses operations that are not computed here instead of leaving them out. */
static void check_able(struct lowering *low, const struct math_op *op, int32_t layer)
{
    char where[32] = "model";
    if (layer >= 0) snprintf(where, sizeof where, "layer %d", layer);
    if (!low->rc) low->rc = able_check_op(op, ABLE_CPU, where, low->err);
}

void lower_op(struct lowering *low, const struct math_op *op, const struct math_op *next_op, int32_t layer,
              bool asked)
{
    struct making making = {.op = op,
                            .next_op = next_op,
                            .layer = layer,
                            .sampled = op == &low->source->model->math.head ||
                                       op == &low->source->model->math.draft_head,
                            .asked = asked};
    enum op_kind kinds[PROGRAM_OPS_MAX];
    const uint32_t count = (asked ? program_ops_mixed : program_ops_of)(op, PROCESSOR_CPU, low->tier, kinds);
    check_able(low, op, layer);
    for (uint32_t i = 0; i < count && !low->rc; i++) {
        making.kind = kinds[i];
        make_of[kinds[i]](low, &making);
    }
}
