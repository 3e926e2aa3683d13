/* Lowering: operations that read a sequence's state: fixed ones, and attention, including its hand-overs to a
 * CPU that attends to a part of the cache. See program.h and making.h; called by math.c, whose table has
 * these functions. */
#include <math.h>

#include "worker-gpu/program/making.h"

/* Whether the CPU attends to a part of the layer's cache in this program. */
static bool is_assisted(const struct lowering *low, const struct making *m)
{
    const struct gpu_source *s = low->source;
    const uint32_t *window = s->model->config.window;
    return low->program->attending == GPU_ATTENDS_ASSISTED &&
           plan_assists_layer(s->plan, window ? window[m->at->layer] : 0);
}

uint32_t making_attention_ops(const struct lowering *low, const struct making *m,
                              enum op_kind kinds[PROGRAM_OPS_MAX])
{
    if (is_assisted(low, m)) return program_ops_assisted(kinds);
    /* with the bits of rotation, append and attention one after the other (GPUK_ORDER_ALONE) */
    const enum op_tier tier = low->program->tier == GPU_TIER_1 ? OP_TIER_ONE : making_tier(low);
    return program_ops_of(m->at->math, PROCESSOR_GPU, tier, kinds);
}

static struct gpuk_attention attention_of(const struct lowering *low, const struct making *m)
{
    const struct gpu_source *s = low->source;
    const struct model_config *c = &s->model->config;
    const struct gpu_program *p = low->program;
    const struct place q = making_place(low, m, BUFFER_Q);
    const struct math_op *math = m->at->math;
    const uint32_t turning = math->rope_dims ? math->rope_dims : math->head_dim;
    const bool gated = math->output_gate != BUFFER_NONE, own = !math->other_cache,
               k_alone = math->v_is_k || math->latent;
    const uint32_t cache = model_cache_layer(c, (uint32_t)m->at->layer);
    struct gpuk_attention a = {
        .step =
            gpu_block_step(&p->block, gpu_area(s->buffers, GPU_AREA_BLOCK), p->step.pages_per_slot, m->sub),
        .heads = c->heads,
        .window = c->window ? c->window[m->at->layer] : 0,
        .scale = math->score_scale,
        .sinks = making_vector(low, m, math->sinks),
        .q_norm = making_vector(low, m, math->q_norm),
        .k_norm = making_vector(low, m, math->k_norm),
        .v_normed = math->v_normed,
        .eps = (float)c->norm_eps,
        .rope_table = (float *)making_row(gpu_rope_table(s->buffers, c, math->rope), m->sub, turning / 2 * 2,
                                          sizeof(float)),
        .rope_dims = turning,
        .gate = gated ? (const float *)(void *)making_place(low, m, math->output_gate).at : NULL,
        .gate_stride = q.stride,
        .q = (const float *)(void *)q.at,
        .k = own ? (const float *)(void *)making_place(low, m, BUFFER_K).at : NULL,
        .v = own ? (const float *)(void *)making_place(low, m, k_alone ? BUFFER_K : BUFFER_V).at : NULL,
        .q_stride = q.stride,
        .kv_stride = q.stride,
        .order = s->plan->invariant ? GPUK_ORDER_ALONE : GPUK_ORDER_TOGETHER};
    const char *block = gpu_area(s->buffers, GPU_AREA_BLOCK);
    const bool windowed =
        p->attending == GPU_ATTENDS_ASSISTED && a.window && !plan_keeps_window(s->plan, cache);
    if (windowed) a.step.page_table = (const void *)(block + p->block.arena_table);
    if (is_assisted(low, m))
        a.step.row_begin = (const void *)(block + (windowed ? p->block.window_begin : p->block.row_begin));
    lower_cache(low, cache, &a);
    return a;
}

/* A chunk's queries of this sub-chunk, and of two tiers all of them: attention reads what lies in the arena
 * once for the whole step. */
static void *chunk_queries(const struct lowering *low, const struct making *m)
{
    const struct gpu_source *s = low->source;
    const struct model_config *c = &s->model->config;
    void *all = gpu_area(s->buffers, GPU_AREA_CHUNK_Q);
    if (!plan_kv_tiered(s->plan)) return all;
    return making_row(all, m->sub, (uint64_t)c->heads * m->at->math->head_dim,
                      dtype_bytes(kv_query_dtype(s->kv.dtype)));
}

void make_rope_append(struct lowering *low, const struct making *m)
{
    const struct gpu_source *s = low->source;
    const bool chunk = making_tier(low) == OP_TIER_CHUNK;
    making_op(low, m)->as.attention =
        (struct op_attention){.args = attention_of(low, m),
                              .q_dtype = chunk ? kv_query_dtype(s->kv.dtype) : DTYPE_F32,
                              .q = chunk ? chunk_queries(low, m) : gpu_area(s->buffers, GPU_AREA_FEW_Q)};
}

/* Decode attention of an assisted step leaves these beside its outputs: maxima, and after them sums. */
static float *partial_of(const struct lowering *low, bool sums)
{
    float *maxima = gpu_area(low->source->buffers, GPU_AREA_PARTIAL);
    return maxima + (sums ? GPUK_BATCH_MAX * low->source->model->config.heads : 0);
}

/* One token's attention includes rotation and append; of several tokens, in assisted steps and of latents, q
 * comes from ROPE_APPEND. Attention norms and turns whole keys, so it finds latents in the cache alone. */
void make_attend_decode(struct lowering *low, const struct making *m)
{
    const struct model_config *c = &low->source->model->config;
    const bool assisted = is_assisted(low, m);
    struct gpuk_attention args = attention_of(low, m);
    if (m->at->math->latent) args.k = args.v = NULL;
    struct op_attention a = {.args = args,
                             .fused = low->program->tier == GPU_TIER_1 && !assisted && args.k,
                             .partial_m = assisted ? partial_of(low, false) : NULL,
                             .partial_s = assisted ? partial_of(low, true) : NULL,
                             .out = making_place(low, m, BUFFER_A).at};
    if (!a.fused) {
        a.args.q = gpu_area(low->source->buffers, GPU_AREA_FEW_Q);
        a.args.q_stride = c->heads * m->at->math->head_dim;
    }
    struct op *op = making_op(low, m);
    op->as.attention = a;
    if (a.fused) op->tokens = 1; /* of an invariant plan's program, which has room for more */
}

/* The layer's hand-over to the CPU, as tickets count them. */
static uint32_t kv_ticket(const struct lowering *low, const struct making *m)
{
    return plan_assisted_layers(low->source->plan, low->source->model->config.window,
                                (uint32_t)m->at->layer + 1);
}

/* Ticket 1 waits until the CPU is through with the step before; a later one's place is free, since the answer
 * to the one before it has been waited for. */
void make_kv_query(struct lowering *low, const struct making *m)
{
    const struct gpu_source *s = low->source;
    struct lane *lane = arena_lane_at(s->arena, ARENA_LANE_KV, plan_link_of(s->self, PLAN_CPU0));
    const uint32_t ticket = kv_ticket(low, m);
    if (ticket == 1) lower_word(low, OP_WORD_WAIT, &lane->bell.value, 0, DEVICE_EQUAL);
    making_op(low, m)->as.move = (struct op_move){.from = gpu_area(s->buffers, GPU_AREA_FEW_Q),
                                                  .to = lane->data,
                                                  .width = s->model->config.heads * m->at->math->head_dim};
    lower_word(low, OP_WORD_WRITE, &lane->bell.value, ticket, DEVICE_EQUAL);
}

void make_attend_merge(struct lowering *low, const struct making *m)
{
    const struct gpu_source *s = low->source;
    const struct model_config *c = &s->model->config;
    struct lane *lane = arena_lane_at(s->arena, ARENA_LANE_KV, plan_link_of(PLAN_CPU0, s->self));
    float *out = (float *)(void *)making_place(low, m, BUFFER_A).at;
    const uint32_t ticket = kv_ticket(low, m);
    const struct gpuk_attention attention = attention_of(low, m);
    lower_word(low, OP_WORD_WAIT, &lane->bell.value, ticket, DEVICE_AT_LEAST);
    making_op(low, m)->as.merge = (struct gpuk_merge){.o = out,
                                                      .gate = attention.gate,
                                                      .gate_stride = attention.gate_stride,
                                                      .m = partial_of(low, false),
                                                      .s = partial_of(low, true),
                                                      .other = lane->data,
                                                      .sinks = making_vector(low, m, m->at->math->sinks),
                                                      .heads = c->heads,
                                                      .head_dim = m->at->math->head_dim,
                                                      .out = out};
    if (ticket == plan_assisted_layers(s->plan, c->window, c->layers))
        lower_word(low, OP_WORD_WRITE, &lane->bell.value, 0, DEVICE_EQUAL);
}

/* With two tiers a chunk's attention is in parts (pieces.h), of which this is the last. */
static struct gpuk_part part_of(const struct lowering *low, const struct making *m, bool own)
{
    const struct gpu_source *s = low->source;
    const struct model_config *c = &s->model->config;
    const struct gpu_block *b = &low->program->block;
    const char *block = gpu_area(s->buffers, GPU_AREA_BLOCK);
    float *o = gpu_area(s->buffers, GPU_AREA_CHUNK_PART);
    return (struct gpuk_part){.before = (const void *)(block + (own ? b->pieces : b->arena_pieces)),
                              .pages = plan_staging(s->plan).piece,
                              .piece = GPUK_PART_LAST,
                              .o = o,
                              .state =
                                  o + (size_t)s->buffers->work.tokens * c->heads * m->at->math->head_dim};
}

void make_attend_prefill(struct lowering *low, const struct making *m)
{
    const struct place out = making_place(low, m, BUFFER_A);
    struct op_attention attention = {.args = attention_of(low, m),
                                     .q = chunk_queries(low, m),
                                     .out = out.at,
                                     .out_dtype = out.dtype,
                                     .rows = low->program->block.rows};
    const struct gpu_supply pieces = lower_cache_pieces(low, (uint32_t)m->at->layer);
    if (plan_kv_tiered(low->source->plan) && !plan_keeps_window(low->source->plan, (uint32_t)m->at->layer))
        attention.part = part_of(low, m, pieces.own);
    struct gpu_entry *e = lower_add(low, m->kind, m->at->layer);
    e->sub = m->sub;
    e->op.as.attention = attention;
    if (!low->source->plan->invariant) e->op.workspace = gpu_area(low->source->buffers, GPU_AREA_MATMUL);
    e->supply = pieces;
}

/* A chunk's attention with two tiers: all of it is appended first, so that one launch attends, and what it
 * reads of the arena crosses the link once for all sub-chunks. */
void make_whole_attention(struct lowering *low, struct making *m)
{
    m->kind = OP_ROPE_APPEND;
    for (m->sub = 0; m->sub < low->program->block.subs; m->sub++) make_rope_append(low, m);
    m->kind = OP_ATTEND_PREFILL;
    m->sub = GPU_SUB_ALL;
    make_attend_prefill(low, m);
}

/* ---- fixed states ---- */

/* Where an operation's states lie: that of a row at state + its slot * slot_bytes. */
struct record {
    struct gpuk_step step;
    const uint32_t *row_state;
    char *state;
    uint64_t slot_bytes;
    struct gpuk_left left;
};
static struct record record_of(struct lowering *low, const struct making *m)
{
    const struct gpu_source *s = low->source;
    const struct gpu_program *p = low->program;
    const char *block = gpu_area(s->buffers, GPU_AREA_BLOCK);
    const enum plan_processor keeper = plan_keeper(s->plan, (uint32_t)m->at->layer);
    const struct gpu_records *records = !s->states          ? NULL
                                        : keeper == s->self ? &s->states->own
                                                            : &s->states->borrowed;
    const struct state_layout layout = plan_state_layout(s->plan, keeper);
    struct state_record record;
    if (!plan_state_record(s->plan, keeper, (uint32_t)m->at->layer, &record) && !low->rc)
        low->rc = helm_fail(low->err, HELM_E_INTERNAL, "layer %d: it has no fixed state", m->at->layer);
    return (struct record){
        .step = gpu_block_step(&p->block, block, p->step.pages_per_slot, m->sub),
        .row_state = (const void *)(block + p->block.row_state),
        .state = records ? records->slots + record.slot_at + m->at->math->state_at : NULL,
        .slot_bytes = layout.slot_bytes,
        .left = {.rows = (const void *)(block + p->block.row_left),
                 .snapshots =
                     s->states ? s->states->snapshots + record.snapshot_at + m->at->math->state_at : NULL,
                 .snapshot_bytes = layout.snapshot_bytes,
                 .before = m->sub == GPU_SUB_ALL ? 0 : m->sub * GPU_SUB_TOKENS},
    };
}

void make_running_mean(struct lowering *low, const struct making *m)
{
    const struct record record = record_of(low, m);
    const struct place in = making_place(low, m, m->at->math->in),
                       out = making_place(low, m, m->at->math->out[0]);
    making_op(low, m)->as.running_mean =
        (struct op_running_mean){.step = record.step,
                                 .row_state = record.row_state,
                                 .state = record.state,
                                 .slot_bytes = record.slot_bytes,
                                 .left = record.left,
                                 .in = (const float *)(void *)in.at,
                                 .out = out.at,
                                 .out_dtype = out.dtype,
                                 .width = (uint32_t)(m->at->math->state_bytes / sizeof(float)),
                                 .in_stride = in.stride,
                                 .out_stride = out.stride};
}

void make_delta(struct lowering *low, const struct making *m)
{
    const struct gpu_source *s = low->source;
    const struct math_op *math = m->at->math;
    const struct model_delta *d = &s->model->config.delta;
    const struct record record = record_of(low, m);
    const struct place in = making_place(low, m, math->in), out = making_place(low, m, math->out[0]),
                       z = making_place(low, m, BUFFER_DELTA_Z),
                       alpha = making_place(low, m, BUFFER_DELTA_ALPHA),
                       beta = making_place(low, m, BUFFER_DELTA_BETA);
    const bool chunk = making_tier(low) == OP_TIER_CHUNK;
    float *mixed = gpu_area(s->buffers, chunk ? GPU_AREA_CHUNK_DELTA : GPU_AREA_FEW_DELTA);
    const struct gpuk_delta args = {
        .step = record.step,
        .row_state = record.row_state,
        .state = record.state,
        .slot_bytes = record.slot_bytes,
        .left = record.left,
        .matrices_at = model_delta_matrices_at(d),
        .key_heads = d->key_heads,
        .value_heads = d->value_heads,
        .key_dim = d->key_dim,
        .value_dim = d->value_dim,
        .in_turn = math->head_order == HEADS_IN_TURN,
        .rows = low->program->block.rows,
        .conv = making_vector(low, m, math->conv),
        .decay = making_vector(low, m, math->decay),
        .time_bias = making_vector(low, m, math->time_bias),
        .norm = making_vector(low, m, math->head_norm),
        .eps = (float)s->model->config.norm_eps,
        .in = (const float *)(void *)in.at,
        .z = (const float *)(void *)z.at,
        .alpha = (const float *)(void *)alpha.at,
        .beta = (const float *)(void *)beta.at,
        .in_stride = in.stride,
        .mixed = mixed,
        .chunks =
            chunk && !s->plan->invariant ? mixed + (size_t)s->buffers->work.sub_tokens * d->channels : NULL,
        .out = out.at,
        .out_dtype = out.dtype,
        .out_stride = out.stride,
    };
    if ((!args.conv || !args.decay || !args.time_bias || !args.norm) && !low->rc)
        low->rc = helm_fail(low->err, HELM_E_INTERNAL, "layer %d: a gated delta net without its vectors",
                            m->at->layer);
    making_op(low, m)->as.delta = args;
}
