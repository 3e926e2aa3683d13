/* The costs of a model: bytes by layer and operation, KV bytes by token, activation bytes by step.
 *
 * Called by the rest of the planner and by main.c. Pure functions over a checked model; no weights are read.
 * The table belongs to the caller: analyse_table_free. */
#pragma once

#include <stdint.h>

#include "common/base/err.h"
#include "common/model/model.h"
#include "common/plan/plan.h"

/* A range of tensors, by the sizes of common/plan/placement.h, each rounded up to its memory's boundary. */
struct analyse_bytes {
    uint64_t stored;       /* in the files */
    uint64_t token;        /* of them, what one token reads: of experts those that it chooses */
    uint64_t arena;        /* matrices, in the arena's weights region */
    uint64_t packed_more;  /* that those take there at most where they are kept packed, beside `arena` */
    uint64_t vram;         /* matrices as stored and vectors as fp32, in VRAM */
    uint64_t vram_vectors; /* of them the vectors: norms and biases */
    uint64_t vector_bytes; /* vectors as fp32, private to the CPU worker */
    uint64_t packable;     /* matrices that can be packed, as stored */
};

/* Sums over the units (half layers, common/plan/plan.h), so that any run of them is a difference. */
struct analyse_table {
    uint32_t layers;
    bool tied;
    struct analyse_bytes *before; /* [unit_count(layers) + 1]: of the units 0 .. i-1 */
    /* [unit_count(layers)]: whose matrices can cross the link packed, and be computed with by the CPU
     * (placement_packing) */
    bool *packs, *packs_cpu;
    /* [unit_count(layers)]: of the former, those that plans pack in VRAM: of mixtures the experts, beside
     * which all else is little and is read faster plain, but of those with shared ones none */
    bool *packs_vram;
    /* [layers]: of MLPs that two processors can share (common/model/share.h) the rows; of others 0 */
    uint32_t *mlp_rows;
    uint64_t *signature; /* [unit_count(layers) + 1]: of units and the head (programs_signature) */
    bool packs_head;     /* the head can lie packed in VRAM */
    bool blocks;         /* matrices of layers lie as blocks, which chunks expand */
    struct analyse_bytes embed, head, final_norm;
    uint64_t total_stored;
};
HELM_MUST_CHECK int analyse_table_build(const struct model *model, struct analyse_table *table,
                                        struct helm_err *err);
void analyse_table_free(struct analyse_table *table);

/* The part of a layer's experts that so many tokens choose, each evenly and by itself. */
double analyse_chosen_part(const struct model_config *config, double tokens);
/* The part of a tensor's bytes that a step of `tokens` tokens reads: 1, or for experts the part that some
 * token chooses, if each token chooses evenly and independently among all. */
double analyse_read_part(const struct model_config *config, const struct model_tensor *tensor, double tokens);
/* Bytes of a home's units in the decode list, as stored, and of the head where the home is that of its
 * processor: those read (or copied) for one decoded token. Only chosen experts are read, but all are
 * copied. */
uint64_t analyse_token_bytes(const struct analyse_table *table, const struct plan *plan, enum plan_home home);

/* Whether some MLP can be shared; the part of a unit's rows that is the GPU's where `rows` of them are, 0: it
 * cannot be so. */
bool analyse_shares(const struct analyse_table *table);
double analyse_own_part(const struct analyse_table *table, uint32_t unit, uint32_t rows);

/* Bytes of units first to last. */
struct analyse_bytes analyse_units(const struct analyse_table *table, uint32_t first, uint32_t last);
/* Bytes of the weights of units first to last, as stored. */
uint64_t analyse_units_stored(const struct analyse_table *table, uint32_t first, uint32_t last);
/* Fills in the bytes of every unit in every list of the plan. */
void analyse_fill_units(const struct analyse_table *table, struct plan *plan);
