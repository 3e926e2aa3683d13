/* Gated delta nets, chunk by chunk. See execute.h.
 *
 * A chunk goes through all tokens of its row in their order, so that states need no lock, and results do not
 * depend on how a sequence is cut into steps or steps into chunks. */

#include "worker-cpu/program/execute.h"

#define CHANNELS_A_CHUNK                                                                                     \
    256 /* whole cache lines, so that threads share none; a multiple of any kernel's vectors */
#define ALONE_CHANNELS 16384 /* of all tokens together: too little work to wake other threads for */

_Static_assert(MODEL_DELTA_HEAD_MAX <= DELTA_HEAD_MAX && MODEL_DELTA_HEAD_UNIT % DELTA_HEAD_UNIT == 0,
               "kernels take all heads that a model may have");

static uint32_t chunks_of(const struct program_entry *e)
{
    return (e->width + CHANNELS_A_CHUNK - 1) / CHANNELS_A_CHUNK;
}

static void chunk_convolve(void *ctx, uint32_t chunk, uint32_t thread)
{
    (void)thread;
    const struct run *run = ctx;
    const struct program_entry *e = run->entry;
    const struct batch_row *row = &run->batch.row[chunk / chunks_of(e)];
    const uint32_t first = chunk % chunks_of(e) * CHANNELS_A_CHUNK, left = e->width - first;
    struct delta_convolution now = {.x = run->act->buffer[BUFFER_DELTA_QKV] +
                                         (size_t)row->token_first * e->width + first,
                                    .stride = e->width,
                                    .channels = left < CHANNELS_A_CHUNK ? left : CHANNELS_A_CHUNK,
                                    .weight = e->delta.conv + first,
                                    .weight_stride = e->width,
                                    .state = state_of_row(run, e, row) + first,
                                    .state_stride = e->width};
    const struct state_part part = {now.state, DELTA_COLUMNS, now.channels, e->width};
    for (uint32_t at = 0; at < row->count; at += now.tokens) {
        now.tokens = batch_left_next(row, at) - at;
        run->kernels->vector->delta->convolve(&now);
        state_keep(run, row, at + now.tokens, &part);
        now.x += now.tokens * now.stride;
    }
}

static void chunk_rule(void *ctx, uint32_t chunk, uint32_t thread)
{
    (void)thread;
    const struct run *run = ctx;
    const struct program_entry *e = run->entry;
    const struct model_delta *d = &run->config->delta;
    const struct batch_row *row = &run->batch.row[chunk / d->value_heads];
    const uint32_t head = chunk % d->value_heads, key = e->delta.order == HEADS_IN_TURN
                                                            ? head % d->key_heads
                                                            : head / (d->value_heads / d->key_heads);
    const size_t first = row->token_first, keys = (size_t)d->key_heads * d->key_dim,
                 values = (size_t)d->value_heads * d->value_dim, at = head * (size_t)d->value_dim;
    float *const *buffer = run->act->buffer;
    const float *qkv = e->in + first * e->width;
    struct delta_run now = {.key = d->key_dim,
                            .value = d->value_dim,
                            .q = qkv + key * (size_t)d->key_dim,
                            .k = qkv + keys + key * (size_t)d->key_dim,
                            .v = qkv + 2 * keys + at,
                            .stride = e->width,
                            .z = buffer[BUFFER_DELTA_Z] + first * values + at,
                            .z_stride = values,
                            .alpha = buffer[BUFFER_DELTA_ALPHA] + first * d->value_heads + head,
                            .beta = buffer[BUFFER_DELTA_BETA] + first * d->value_heads + head,
                            .gate_stride = d->value_heads,
                            .decay = e->delta.decay[head],
                            .dt_bias = e->delta.time_bias[head],
                            .norm = e->delta.norm,
                            .eps = (float)run->config->norm_eps,
                            .state = state_of_row(run, e, row) + at * d->key_dim,
                            .out = e->out + first * e->out_width + at,
                            .out_stride = e->out_width};
    const struct state_part part = {now.state, 1, d->key_dim * d->value_dim, 0};
    for (uint32_t done = 0; done < row->count; done += now.tokens) {
        now.tokens = batch_left_next(row, done) - done;
        run->kernels->vector->delta->rule(&now);
        state_keep(run, row, done + now.tokens, &part);
        now.q += now.tokens * now.stride;
        now.k += now.tokens * now.stride;
        now.v += now.tokens * now.stride;
        now.z += now.tokens * now.z_stride;
        now.alpha += now.tokens * now.gate_stride;
        now.beta += now.tokens * now.gate_stride;
        now.out += now.tokens * now.out_stride;
    }
}

/* Attention's output by its gate. */
static void chunk_gate(void *ctx, uint32_t chunk, uint32_t thread)
{
    (void)thread;
    const struct run *run = ctx;
    const struct program_entry *e = run->entry;
    const uint32_t first = chunk * e->chunk, left = run->batch.token_count - first,
                   count = left < e->chunk ? left : e->chunk;
    float *out = e->out + (size_t)first * e->width;
    run->kernels->vector->sigmoid(out, e->in + (size_t)first * e->width, out, (size_t)count * e->width);
}

bool delta_is(enum op_kind kind)
{
    return kind == OP_CONVOLVE || kind == OP_DELTA || kind == OP_GATE;
}

struct pool_job delta_job(struct run *run, const struct program_entry *e)
{
    const uint32_t rows = run->batch.row_count;
    if (e->kind == OP_DELTA)
        return (struct pool_job){.run = chunk_rule, .chunks = rows * run->config->delta.value_heads};
    if (e->kind == OP_GATE)
        return (struct pool_job){.run = chunk_gate,
                                 .chunks = (run->batch.token_count + e->chunk - 1) / e->chunk,
                                 .alone = (uint64_t)run->batch.token_count * e->width <= ALONE_CHANNELS};
    return (struct pool_job){.run = chunk_convolve,
                             .chunks = rows * chunks_of(e),
                             .alone = (uint64_t)run->batch.token_count * e->width <= ALONE_CHANNELS};
}
