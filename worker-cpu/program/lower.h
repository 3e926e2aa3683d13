/* Inside lowering: what spans.c (in which order), program.c (which entries there are) and cut.c (how their
 * rows are cut) share. An error is kept in `rc`; entries added after it are discarded. */
#pragma once

#include "worker-cpu/program/program.h"

#define TOKENS_A_CHUNK 8 /* of entries that are not cut by rows */

struct lowering {
    const struct program_source *source;
    struct program *program;
    uint32_t capacity;
    enum op_tier tier;
    uint32_t tokens; /* typical of the tier, for chunk sizes */
    bool tiled;      /* inputs of linears are (several tokens) */
    bool few;        /* several tokens, each with the bits of one */
    uint32_t asked;  /* layers whose queries come from the GPU, so far */
    uint32_t mixed;  /* layers whose experts it asks for, likewise */
    struct helm_err *err;
    int rc;                       /* entries added after an error go nowhere */
    struct program_entry nowhere; /* is added to, where there is no memory */
};

void lower_unsupported(struct lowering *low, int32_t layer, const char *what);
/* Appends an entry, of zeros but for these. */
struct program_entry *lower_entry(struct lowering *low, enum op_kind kind, int32_t layer);
/* Lowers an operation; `next_op`: the next one of its part, or NULL; asked: by the GPU, for some experts. */
void lower_op(struct lowering *low, const struct math_op *op, const struct math_op *next_op, int32_t layer,
              bool asked);

/* Makes `e` tile for a product's kernel of several tokens, too; a NORM's chunks become multiples of what it
 * tiles at once. */
void cut_tiles(struct program_entry *e, const struct linear_kernel *kernel);
/* Cuts the entry's rows into chunks: a share for each thread that its bytes are worth, in whole row granules,
 * the same cuts in each share. */
void cut_rows(struct lowering *low, struct program_entry *e, bool router);
/* Cuts a head's rows. */
void cut_heads(struct lowering *low, struct program_entry *e);
/* Cuts an expert's rows. */
void cut_experts(struct lowering *low, struct program_entry *e);
