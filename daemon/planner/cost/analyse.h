/* What a model costs: bytes by layer and operation, KV bytes by token, activation bytes by step.
 *
 * Called by the rest of the planner and by main.c. Pure functions over a checked model; no weights are read.
 * The table belongs to the caller: analyse_table_free. */
#ifndef HELM_DAEMON_PLANNER_COST_ANALYSE_H
#define HELM_DAEMON_PLANNER_COST_ANALYSE_H

#include <stdint.h>

#include "common/base/err.h"
#include "common/model/model.h"
#include "common/plan/plan.h"

/* A range of tensors, counted as each worker lays them out. */
struct analyse_bytes {
    uint64_t stored;       /* in the files */
    uint64_t arena;        /* matrices, in the arena's weights region */
    uint64_t packed_more;  /* that those take there at most where they are kept packed, beside `arena` */
    uint64_t vram;         /* matrices as stored and vectors as fp32, in VRAM */
    uint64_t vram_vectors; /* of them the vectors: norms and biases */
    uint64_t vector_bytes; /* vectors as fp32, private to the CPU worker */
    /* Matrices that can be packed: as stored; what they come to by their shapes, where nobody looked at them
     * (ANALYSE_PACKED_ESCAPES); and beside that their tables of offsets, each on a boundary, in VRAM. */
    uint64_t packable, packed, packed_tables;
};
/* Of bf16 weights so many have an exponent of their own in packed groups (common/formats/packed.h): with it large
 * matrices come to 0.71 of their bytes, what those of language models come to within a hundredth; small ones
 * to more. */
#define ANALYSE_PACKED_ESCAPES 0.041

/* Sums over the units (half layers, common/plan/plan.h), so that any run of them is a difference. */
struct analyse_table {
    uint32_t layers;
    bool tied;
    struct analyse_bytes *before; /* [unit_count(layers) + 1]: of the units 0 .. i-1 */
    /* [unit_count(layers)]: whose matrices can cross the link packed, and be computed with by the CPU
     * (host_weights_packing) */
    bool *packs, *packs_cpu;
    bool packs_head; /* the head can lie packed in VRAM */
    bool blocks;     /* matrices of layers lie as blocks, which chunks expand */
    struct analyse_bytes embed, head, final_norm;
    uint64_t total_stored;
};
HELM_MUST_CHECK int analyse_table_build(const struct model *model, struct analyse_table *table,
                                        struct helm_err *err);
void analyse_table_free(struct analyse_table *table);

/* What is at home where, by the plan's decode list. */
struct analyse_share {
    uint32_t units;             /* of this home */
    uint32_t kv_layers;         /* whose KV cache is with the worker of this home */
    struct analyse_bytes bytes; /* of units of this home; of embedding, head and final norm if they are its */
    uint64_t token_bytes;       /* of them read (or copied) for one decoded token: units and head */
};
/* Of a resident home, with the ends that its processor computes. */
void analyse_share(const struct analyse_table *table, const struct plan *plan, enum plan_home home,
                   struct analyse_share *out);

/* Bytes of units first to last. */
struct analyse_bytes analyse_units(const struct analyse_table *table, uint32_t first, uint32_t last);
/* Bytes of the vectors of the units that a processor computes in any list, and of the final norm if the head is
 * there: in VRAM for the GPU, private for the CPU. */
uint64_t analyse_vectors(const struct analyse_table *table, const struct plan *plan,
                         enum plan_processor processor);
/* Bytes of the weights of units first to last, as stored. */
uint64_t analyse_units_stored(const struct analyse_table *table, uint32_t first, uint32_t last);
/* Fills in the bytes of every stage of every list of the plan. */
void analyse_fill_stages(const struct analyse_table *table, struct plan *plan);

#endif
