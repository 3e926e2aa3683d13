/* What a model costs. See analyse.h. Called by the rest of the planner; pure. */
#include "daemon/planner/cost/analyse.h"

#include <stdlib.h>
#include <string.h>

#include "common/plan/engine_limits.h"
#include "common/plan/host_weights.h"

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
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
    sum->vram += round_up(vector ? as_fp32 : t->bytes, VRAM_ALIGN);
    if (vector) {
        sum->vector_bytes += round_up(as_fp32, HOST_VECTOR_ALIGN);
        sum->vram_vectors += round_up(as_fp32, VRAM_ALIGN);
    } else {
        sum->arena += round_up(t->bytes, HOST_WEIGHTS_ALIGN);
        if (t->layer >= 0 && host_weights_can_pack(t))
            sum->packed_more += round_up(host_weights_room(t, true), HOST_WEIGHTS_ALIGN) -
                                round_up(t->bytes, HOST_WEIGHTS_ALIGN);
        if (!host_weights_can_pack(t)) return;
        sum->packable += t->bytes;
        sum->packed += packed_bytes_of(t);
        sum->packed_tables += round_up(packed_offsets_bytes((uint32_t)t->rows), VRAM_ALIGN) + VRAM_ALIGN;
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
    uint32_t units = unit_count(table->layers);
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
        table->blocks |= t->layer >= 0 && !tensor_format_is_plain(t->format);
        uint32_t unit = model_tensor_unit(t);
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
    if (plan_home_route(home) != PLAN_RESIDENT) return;
    const enum plan_processor processor = plan_home_processor(home);
    out->kv_layers = plan_layers_of(plan, processor);
    if (plan->head == processor) {
        bytes_add(&out->bytes, &table->head);
        bytes_add(&out->bytes, &table->final_norm);
        out->token_bytes += table->head.stored;
    }
    if (plan->embed == processor && !(table->tied && plan->head == processor))
        bytes_add(&out->bytes, &table->embed); /* of a tied model the head is the same bytes */
}

uint64_t analyse_vectors(const struct analyse_table *table, const struct plan *plan,
                         enum plan_processor processor)
{
    enum plan_home home[2 * MODEL_LAYERS_MAX];
    bool its[2 * MODEL_LAYERS_MAX] = {false};
    const bool on_gpu = processor == PLAN_GPU0;
    uint64_t sum = 0;
    for (uint32_t p = 0; p < plan_phase_count(plan); p++) {
        plan_unit_homes(plan, p, home);
        for (uint32_t u = 0; u < unit_count(table->layers); u++)
            its[u] |= plan_home_processor(home[u]) == processor;
    }
    for (uint32_t u = 0; u < unit_count(table->layers); u++) {
        const struct analyse_bytes bytes = analyse_units(table, u, u);
        if (its[u]) sum += on_gpu ? bytes.vram_vectors : bytes.vector_bytes;
    }
    if (plan->head == processor)
        sum += on_gpu ? table->final_norm.vram_vectors : table->final_norm.vector_bytes;
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
