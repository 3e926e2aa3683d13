/* What a model costs. See analyse.h. Called by the rest of the planner; pure. */
#include "daemon/planner/analyse.h"

#include <stdlib.h>
#include <string.h>

#include "common/host_weights.h"
#include "common/sampling.h"
#include "common/units.h"

#define HOST_VECTOR_ALIGN 64
#define VRAM_WEIGHT_ALIGN 256
#define VRAM_SUB_TOKENS   512       /* of a long chunk at a time, as the GPU worker cuts it */
#define VRAM_CHAIN_BYTES  1024      /* of an operation in a list of chained ones */
#define VRAM_SUMS_BYTES   (8 << 20) /* most of a small batch's products that wait for others */

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

static const struct model_tensor *find_or_null(const struct model *model, enum tensor_role role,
                                               int32_t layer)
{
    return role == TENSOR_NONE ? NULL : model_find(model, role, layer);
}

void analyse_layer(const struct model *model, uint32_t layer, struct analyse_layer *out)
{
    memset(out, 0, sizeof *out);
    for (uint32_t i = 0; i < model->graph.layer_count; i++) {
        const struct model_op *op = &model->graph.layer[i];
        const struct model_tensor *weight = find_or_null(model, op->weight, (int32_t)layer);
        const struct model_tensor *bias = find_or_null(model, op->bias, (int32_t)layer);
        struct analyse_op *a = &out->op[out->op_count++];
        a->kind = op->kind;
        a->weight = op->weight;
        a->bytes = (weight ? weight->bytes : 0) + (bias ? bias->bytes : 0);
        if (op->kind == OP_LINEAR && weight) a->flops = 2 * weight->rows * weight->cols;
        out->bytes += a->bytes;
    }
}

/* What a matrix comes to packed, by its shape: headers and tables of its groups, codes, and some escapes. */
static uint64_t packed_bytes_of(const struct model_tensor *t)
{
    uint32_t values = packed_group_values((uint32_t)t->rows, (uint32_t)t->cols, 0);
    uint64_t escapes = (uint64_t)(ANALYSE_PACKED_ESCAPES * values) + 1, most = packed_group_bytes_max(values);
    uint64_t group = packed_table_bytes(values) +
                     packed_round((uint64_t)packed_tiles(values) * PACKED_TILE_BYTES + escapes);
    return packed_groups((uint32_t)t->rows) * (group < most ? group : most);
}

/* Rows of one are norms and biases. */
static void bytes_add_tensor(struct analyse_bytes *sum, const struct model_tensor *t)
{
    uint64_t as_fp32 = t->rows * t->cols * sizeof(float);
    bool vector = t->rows == 1;
    sum->stored += t->bytes;
    sum->vram += round_up(vector ? as_fp32 : t->bytes, VRAM_WEIGHT_ALIGN);
    if (vector) {
        sum->vector_bytes += round_up(as_fp32, HOST_VECTOR_ALIGN);
        sum->vram_vectors += round_up(as_fp32, VRAM_WEIGHT_ALIGN);
    } else {
        sum->arena += round_up(t->bytes, HOST_WEIGHTS_ALIGN);
        if (t->layer >= 0 && host_weights_can_pack(t))
            sum->packed_more += round_up(host_weights_room(t, true), HOST_WEIGHTS_ALIGN) -
                                round_up(t->bytes, HOST_WEIGHTS_ALIGN);
        if (!host_weights_can_pack(t)) return;
        sum->packable += t->bytes;
        sum->packed += packed_bytes_of(t);
        sum->packed_tables +=
            round_up(packed_offsets_bytes((uint32_t)t->rows), VRAM_WEIGHT_ALIGN) + VRAM_WEIGHT_ALIGN;
    }
}

static void bytes_add(struct analyse_bytes *sum, const struct analyse_bytes *b)
{
    sum->stored += b->stored;
    sum->arena += b->arena;
    sum->packed_more += b->packed_more;
    sum->vram += b->vram;
    sum->vram_vectors += b->vram_vectors;
    sum->vector_bytes += b->vector_bytes;
    sum->packable += b->packable;
    sum->packed += b->packed;
    sum->packed_tables += b->packed_tables;
}

int analyse_table_build(const struct model *model, struct analyse_table *table, struct helm_err *err)
{
    *table = (struct analyse_table){.layers = model->config.layers};
    uint32_t units = 2 * table->layers;
    table->before = calloc((size_t)units + 1, sizeof *table->before);
    table->packs = calloc((size_t)units + 1, sizeof *table->packs);
    table->packs_cpu = calloc((size_t)units + 1, sizeof *table->packs_cpu);
    if (!table->before || !table->packs || !table->packs_cpu) {
        analyse_table_free(table);
        return helm_fail(err, HELM_E_NOMEM, "no memory for a table of layers");
    }
    host_weights_packing(model, table->packs, table->packs_cpu);
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct model_tensor *t = &model->tensors[i];
        table->total_stored += t->bytes;
        uint32_t unit = 2 * (uint32_t)t->layer + model_role_is_mlp(t->role);
        if (t->layer >= 0 && (uint32_t)t->layer < table->layers)
            bytes_add_tensor(&table->before[unit + 1], t);
        else if (t->role == TENSOR_EMBED)
            bytes_add_tensor(&table->embed, t);
        else if (t->role == TENSOR_HEAD)
            bytes_add_tensor(&table->head, t);
        else
            bytes_add_tensor(&table->final_norm, t);
    }
    for (uint32_t u = 1; u <= units; u++) bytes_add(&table->before[u], &table->before[u - 1]);
    table->tied = table->head.stored == 0;
    if (table->tied) table->head = table->embed;
    table->packs_head = table->head.packable > 0;
    return 0;
}

void analyse_table_free(struct analyse_table *table)
{
    free(table->before);
    free(table->packs);
    free(table->packs_cpu);
    *table = (struct analyse_table){0};
}

struct analyse_bytes analyse_units(const struct analyse_table *table, uint32_t first, uint32_t last)
{
    const struct analyse_bytes *to = &table->before[last + 1], *from = &table->before[first];
    return (struct analyse_bytes){.stored = to->stored - from->stored,
                                  .arena = to->arena - from->arena,
                                  .packed_more = to->packed_more - from->packed_more,
                                  .vram = to->vram - from->vram,
                                  .vram_vectors = to->vram_vectors - from->vram_vectors,
                                  .vector_bytes = to->vector_bytes - from->vector_bytes,
                                  .packable = to->packable - from->packable,
                                  .packed = to->packed - from->packed,
                                  .packed_tables = to->packed_tables - from->packed_tables};
}

void analyse_share(const struct analyse_table *table, const struct plan *plan, enum plan_home home,
                   struct analyse_share *out)
{
    *out = (struct analyse_share){0};
    for (uint32_t i = 0; i < plan->stage_count; i++) {
        const struct plan_stage *stage = &plan->stages[i];
        if (stage->home != home) continue;
        const struct analyse_bytes bytes =
            analyse_units(table, plan_stage_first_unit(stage), plan_stage_last_unit(stage));
        bytes_add(&out->bytes, &bytes);
        out->units += plan_stage_last_unit(stage) - plan_stage_first_unit(stage) + 1;
    }
    out->token_bytes = out->bytes.stored;
    if (home != PLAN_HOME_CPU && home != PLAN_HOME_GPU) return;
    out->kv_layers = plan_layers_of(plan, home);
    if (plan->head == home) {
        bytes_add(&out->bytes, &table->head);
        bytes_add(&out->bytes, &table->final_norm);
        out->token_bytes += table->head.stored;
    }
    if (plan->embed == home && !(table->tied && plan->head == home))
        bytes_add(&out->bytes, &table->embed); /* of a tied model the head is the same bytes */
}

uint64_t analyse_vectors(const struct analyse_table *table, const struct plan *plan, enum plan_home worker)
{
    enum plan_home home[2 * MODEL_LAYERS_MAX];
    bool its[2 * MODEL_LAYERS_MAX] = {false};
    bool on_gpu = worker == PLAN_HOME_GPU;
    uint64_t sum = 0;
    for (uint32_t p = 0; p < plan_phase_count(plan); p++) {
        plan_unit_homes(plan, p, home);
        for (uint32_t u = 0; u < 2 * table->layers; u++) its[u] |= plan_home_worker(home[u]) == worker;
    }
    for (uint32_t u = 0; u < 2 * table->layers; u++) {
        const struct analyse_bytes bytes = analyse_units(table, u, u);
        if (its[u]) sum += on_gpu ? bytes.vram_vectors : bytes.vector_bytes;
    }
    if (plan->head == worker) sum += on_gpu ? table->final_norm.vram_vectors : table->final_norm.vector_bytes;
    return sum;
}

uint64_t analyse_units_stored(const struct analyse_table *table, uint32_t first, uint32_t last)
{
    return analyse_units(table, first, last).stored;
}

void analyse_fill_stages(const struct analyse_table *table, struct plan *plan)
{
    for (uint32_t p = 0; p < plan_phase_count(plan); p++) {
        const struct plan_phase phase = plan_phase_at(plan, p);
        for (uint32_t i = 0; i < phase.stage_count; i++)
            phase.stages[i].bytes = analyse_units_stored(table, plan_stage_first_unit(&phase.stages[i]),
                                                         plan_stage_last_unit(&phase.stages[i]));
    }
}

uint64_t analyse_activation_bytes(const struct model_config *c, uint32_t step_tokens, uint32_t rows,
                                  uint32_t threads)
{
    uint64_t q = (uint64_t)c->heads * c->head_dim, kv = (uint64_t)c->kv_heads * c->head_dim;
    /* x, h, q, attention output, k, v, gate, up: one of each a token; inputs of linears are packed once more.
     */
    uint64_t token_floats = 3ull * c->hidden + 3 * q + 2 * kv + 3ull * c->intermediate;
    uint64_t widest = q > c->intermediate ? q : c->intermediate;
    uint64_t thread_bytes = (uint64_t)1 << 20; /* stacks and partial results */
    return (uint64_t)step_tokens * token_floats * sizeof(float) + 4 * widest * sizeof(float) * 64 +
           (uint64_t)rows * c->vocab * sizeof(float) + sampling_scratch_bytes(c->vocab) * threads +
           thread_bytes * threads;
}

uint64_t analyse_vram_workspace_bytes(const struct model_config *c, uint32_t step_tokens, uint32_t rows,
                                      uint32_t context, bool layers, bool head)
{
    const uint64_t q = (uint64_t)c->heads * c->head_dim, kv = (uint64_t)c->kv_heads * c->head_dim, few = 16;
    const uint64_t tokens = round_up(step_tokens, 64), samples = round_up(rows, 16), n = c->intermediate;
    const uint64_t sub = tokens < VRAM_SUB_TOKENS ? tokens : VRAM_SUB_TOKENS, elem = dtype_bytes(c->dtype);
    uint64_t widest = q > n ? q : n;
    if (widest < c->hidden) widest = c->hidden;
    uint64_t linear = few * widest * sizeof(float), sums = 40 * linear;
    if (sums > VRAM_SUMS_BYTES) sums = VRAM_SUMS_BYTES;
    if (linear < sums) linear = sums;
    /* The residual stream, the step's table with its page numbers, inputs or sums of small batches. */
    uint64_t bytes = tokens * (c->hidden * sizeof(float) + 20) + (uint64_t)rows * (context / 8) +
                     (tokens / VRAM_SUB_TOKENS + 1) * 12ull * rows + linear + 96 * KIB;
    if (layers) {
        /* Of all tokens angles and what one half of a layer keeps, of a sub-chunk what passes through; the
         * halves, and decode, take the same place. */
        uint64_t attention = tokens * (q + 2 * kv) * sizeof(float) + sub * q * sizeof(float);
        uint64_t mlp = (tokens + 2 * sub) * n * elem, decode = few * (3 * q + 2 * kv + n) * sizeof(float);
        uint64_t half = attention > mlp ? attention : mlp;
        bytes +=
            (half > decode ? half : decode) + tokens * c->head_dim * sizeof(float) + sub * c->hidden * elem;
        /* one token's operations: five a layer, and the head; what attention's blocks hand each other */
        bytes += (5ull * c->layers + 1) * VRAM_CHAIN_BYTES +
                 c->layers * round_up(c->heads * 4ull * (c->head_dim + 2) * 8, 256);
        /* attention of a small batch in pieces: partial results and their weights */
        bytes += few * 64 * c->heads * (c->head_dim + 2ull) * sizeof(float);
    }
    /* logits, the rows they are made from, the best of each block and of each 64 logits */
    if (head)
        bytes += samples * (((uint64_t)c->vocab + c->vocab / 64 + c->hidden) * sizeof(float) + 32 * KIB);
    return bytes;
}
