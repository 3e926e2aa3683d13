/* The costs of a model. See analyse.h. Called by the rest of the planner; pure. */
#include "daemon/planner/cost/analyse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/arch.h"
#include "common/model/share.h"
#include "common/plan/home.h"
#include "common/plan/placement.h"
#include "daemon/planner/profile/programs.h"

double analyse_chosen_part(const struct model_config *c, double tokens)
{
    return 1 - pow(1 - (double)c->router.chosen / (double)c->router.experts, tokens);
}

double analyse_read_part(const struct model_config *c, const struct model_tensor *t, double tokens)
{
    return arch_role_of_experts(t->role) ? analyse_chosen_part(c, tokens) : 1;
}

static void bytes_add_tensor(const struct model *model, struct analyse_bytes *sum,
                             const struct model_tensor *t)
{
    const struct model_config *c = &model->config;
    const enum plan_memory device = plan_home_memory(PLAN_HOME_GPU);
    sum->stored += t->bytes;
    sum->token += arch_role_of_experts(t->role) ? t->bytes / c->router.experts * c->router.chosen : t->bytes;
    if (model_tensor_is_vector(t)) {
        const uint64_t vram = placement_vector_room(t, device);
        sum->vram += vram;
        sum->vram_vectors += vram;
        sum->vector_bytes += placement_vector_room(t, PLAN_HOST);
        return;
    }
    const uint64_t arena = placement_rounded(PLAN_HOST, placement_room(t, t->format, PLAN_HOST, NULL));
    sum->arena += arena;
    sum->vram += placement_rounded(device, placement_room(t, t->format, device, NULL));
    if (!placement_takes(model, t, FORMAT_BF16_PACKED)) return;
    sum->packable += t->bytes;
    if (t->layer < 0) return; /* the ends lie in the arena as they are */
    sum->packed_more +=
        placement_rounded(PLAN_HOST, placement_room(t, FORMAT_BF16_PACKED, PLAN_HOST, NULL)) - arena;
}

static void bytes_add(struct analyse_bytes *sum, const struct analyse_bytes *b)
{
    sum->stored += b->stored;
    sum->token += b->token;
    sum->arena += b->arena;
    sum->packed_more += b->packed_more;
    sum->vram += b->vram;
    sum->vram_vectors += b->vram_vectors;
    sum->vector_bytes += b->vector_bytes;
    sum->packable += b->packable;
}

int analyse_table_build(const struct model *model, struct analyse_table *table, struct helm_err *err)
{
    *table = (struct analyse_table){.layers = model->config.layers};
    uint32_t units = unit_count(table->layers);
    table->before = calloc((size_t)units + 1, sizeof *table->before);
    table->packs = calloc((size_t)units + 1, sizeof *table->packs);
    table->packs_cpu = calloc((size_t)units + 1, sizeof *table->packs_cpu);
    table->packs_vram = calloc((size_t)units + 1, sizeof *table->packs_vram);
    table->signature = calloc((size_t)units + 1, sizeof *table->signature);
    table->mlp_rows = calloc((size_t)table->layers + 1, sizeof *table->mlp_rows);
    if (!table->before || !table->packs || !table->packs_cpu || !table->packs_vram || !table->signature ||
        !table->mlp_rows) {
        analyse_table_free(table);
        return helm_fail(err, HELM_E_NOMEM, "no memory for a table of layers");
    }
    placement_packing(model, table->packs, table->packs_cpu);
    for (uint32_t u = 0; u <= units; u++) table->signature[u] = programs_signature(model, u);
    for (uint32_t l = 0; l < table->layers; l++) {
        const struct model_tensor *down = model_find(model, TENSOR_DOWN, (int32_t)l);
        if (down && share_takes_layer(model, l)) table->mlp_rows[l] = (uint32_t)down->cols;
    }
    for (uint32_t u = 0; u < units; u++)
        table->packs_vram[u] =
            table->packs[u] && (!model->config.router.experts ||
                                (model_unit_math(model, u)->experts && !model_unit_math(model, u)->beside));
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct model_tensor *t = &model->tensors[i];
        table->total_stored += t->bytes;
        table->blocks |= t->layer >= 0 && !tensor_format_is_plain(t->format);
        uint32_t unit = model_tensor_unit(t);
        if (t->layer >= 0 && (uint32_t)t->layer < table->layers)
            bytes_add_tensor(model, &table->before[unit + 1], t);
        else if (t->role == TENSOR_EMBED)
            bytes_add_tensor(model, &table->embed, t);
        else if (t->role == TENSOR_HEAD)
            bytes_add_tensor(model, &table->head, t);
        else if (!model_is_input(model, t->role)) /* those are the ledger's (ledger_inputs_bytes) */
            bytes_add_tensor(model, &table->final_norm, t);
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
    free(table->packs_vram);
    free(table->mlp_rows);
    free(table->signature);
    *table = (struct analyse_table){0};
}

bool analyse_shares(const struct analyse_table *table)
{
    bool shares = false;
    for (uint32_t l = 0; l < table->layers; l++) shares |= table->mlp_rows[l] > 0;
    return shares;
}

double analyse_own_part(const struct analyse_table *table, uint32_t unit, uint32_t rows)
{
    const uint32_t all = unit_part(unit) == UNIT_MLP ? table->mlp_rows[unit_layer(unit)] : 0;
    return rows < all ? (double)rows / all : 0;
}

struct analyse_bytes analyse_units(const struct analyse_table *table, uint32_t first, uint32_t last)
{
    const struct analyse_bytes *to = &table->before[last + 1], *from = &table->before[first];
    return (struct analyse_bytes){.stored = to->stored - from->stored,
                                  .token = to->token - from->token,
                                  .arena = to->arena - from->arena,
                                  .packed_more = to->packed_more - from->packed_more,
                                  .vram = to->vram - from->vram,
                                  .vram_vectors = to->vram_vectors - from->vram_vectors,
                                  .vector_bytes = to->vector_bytes - from->vector_bytes,
                                  .packable = to->packable - from->packable};
}

uint64_t analyse_token_bytes(const struct analyse_table *table, const struct plan *plan, enum plan_home home)
{
    uint64_t sum = home == plan_processor_home(plan->head) ? table->head.stored : 0;
    for (uint32_t u = 0; u < unit_count(plan->layers); u++) {
        const struct analyse_bytes bytes = analyse_units(table, u, u);
        const double own = analyse_own_part(table, u, plan->shared_rows);
        if (plan->unit[u].home[0] == PLAN_HOME_SHARED && home == PLAN_HOME_GPU)
            sum += (uint64_t)(own * (double)bytes.token);
        if (plan->unit[u].home[0] == PLAN_HOME_SHARED && home == PLAN_HOME_CPU)
            sum += (uint64_t)((1 - own) * (double)bytes.token);
        if (plan->unit[u].home[0] != home) continue;
        sum += home == PLAN_HOME_STREAM ? bytes.stored : bytes.token;
    }
    return sum;
}

uint64_t analyse_units_stored(const struct analyse_table *table, uint32_t first, uint32_t last)
{
    return table->before[last + 1].stored - table->before[first].stored;
}

void analyse_fill_units(const struct analyse_table *table, struct plan *plan)
{
    for (uint32_t u = 0; u < unit_count(plan->layers); u++) {
        const struct analyse_bytes bytes = analyse_units(table, u, u);
        struct plan_unit *unit = &plan->unit[u];
        for (uint32_t p = 0; p < plan_phase_count(plan); p++) {
            unit->bytes[p] = bytes.stored;
            unit->token_bytes[p] = unit->home[p] == PLAN_HOME_STREAM ? bytes.stored : bytes.token;
        }
    }
}
