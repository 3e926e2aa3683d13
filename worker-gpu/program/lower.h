/* Inside lowering: what program.c (spans, phases), math.c and attention.c (what is computed), supply.c (where
 * weights and caches come from) and chain.c (chains) share.
 *
 * Entries are added to one list in the order in which they are issued. An error is kept in `rc`; entries
 * added after it are discarded. */
#pragma once

#include "worker-gpu/program/program.h"

struct lowering {
    const struct gpu_source *source;
    struct gpu_program *program;
    const struct ring_schedule *ring; /* the phase's */
    struct helm_err *err;
    int rc;
    uint32_t next_slice, next_copy; /* of the schedule */
    uint32_t next_home;             /* of the slices of weights packed in VRAM */
    uint32_t next_tail;             /* of its tail: the first copy that is not released yet */
    uint32_t ahead;                 /* the slice that is expanded before its turn, from 1 on; 0: none yet */
    uint32_t staged, fetched;       /* layers whose cache is in a staging pool: computed, asked for */
    bool borrows;                   /* caches go back */
    bool stores;                    /* filled pages are copied to the arena */
    bool embedded; /* the embedding is taken at the beginning, with what layers take of the tokens */
    struct gpu_entry nowhere; /* takes an entry for which there was no memory: never issued, rc is set */
};

struct gpu_entry *lower_add(struct lowering *low, enum op_kind kind, int32_t layer);
void lower_word(struct lowering *low, enum op_kind kind, _Atomic uint32_t *word, uint32_t value,
                enum device_compare compare);
const struct gpu_matrix *lower_matrix(struct lowering *low, enum tensor_role role, int32_t layer);

/* An operation of the model: of a unit, or the head's, which stands after the last unit. */
struct lower_at {
    uint32_t unit, op;
    const struct math_op *math;
    int32_t layer; /* -1: the head */
};
struct lower_at lower_at(const struct lowering *low, uint32_t unit, uint32_t op);
static inline uint32_t lower_head_unit(const struct lowering *low)
{
    return unit_count(low->source->model->config.layers);
}

/* ---- supply ---- */

/* An operation's weights, or one slice of them: rows of up to three matrices, all of `format`. Weights of
 * several formats make several pieces. */
struct piece_part {
    uint32_t weight; /* which of the operation's */
    const struct gpu_matrix *matrix;
    const char *data;
    const uint32_t *offset; /* of a variable format: its first group's entry in the table of offsets */
    uint32_t row, rows;
};
struct piece {
    struct piece_part part[MATH_WEIGHTS_MAX];
    uint32_t part_count;
    uint32_t first, end;       /* of the operation's weights: the run that it is of (ring_run_end) */
    enum tensor_format format; /* that it is multiplied in */
    uint32_t index;            /* of the operation's pieces */
    bool streamed, home;       /* a slice of the ring, or of weights packed in VRAM */
    uint32_t slice;            /* of the ring */
};
/* The operation's next piece, ready to be computed with; false after the last. *piece begins as zeros. The
 * ring's entries after the use of a piece are added by the call for the next one. */
bool lower_next_piece(struct lowering *low, const struct lower_at *at, struct piece *piece);
/* All of the run from piece->first on where it is at home, in its format. */
void lower_whole_piece(struct lowering *low, const struct lower_at *at, struct piece *piece);
/* Whether the device multiplies by a piece in the format that it has. */
bool lower_reads(const struct lowering *low, const struct math_op *math, const struct piece *piece,
                 enum gpuk_schedule schedule);
/* Expands a slice of weights packed in VRAM. */
struct gpu_entry *lower_expand_home(struct lowering *low, uint32_t index);

/* First in a step: its copies begin after the uses of the step before. */
void lower_begin_copies(struct lowering *low);
/* After the step block: the copies that may begin before anything is computed. */
void lower_first_copies(struct lowering *low);
/* Where a span waits for the CPU: expands its first slice meanwhile. The place that it is expanded to is
 * unused by then, unless weights packed in VRAM are expanded before it. The slice has arrived by then, unless
 * the link is far too slow, and then the span would wait for it in any case. */
void lower_expand_ahead(struct lowering *low, const struct plan_span *span);
/* After all spans: borrowed caches are back. After the end word: the tail. */
void lower_end_caches(struct lowering *low);
void lower_tail(struct lowering *low);

/* The cache of a layer, a host's layer in its staging pool; the copies to there before the layer's attention,
 * and back after it. With two tiers: both pools, the second one staged for a chunk; the host's layer with a
 * page table of its own; after a chunk's attention the copies of the pages that it has filled. */
void lower_cache(const struct lowering *low, uint32_t layer, struct gpuk_attention *a);
/* The caches of a chunk's attention in pieces: own, and the layer in the arena's pages. */
struct gpu_supply lower_cache_pieces(const struct lowering *low, uint32_t layer);
void lower_cache_begin(struct lowering *low, uint32_t layer);
void lower_cache_end(struct lowering *low, uint32_t layer);

/* ---- math ---- */

/* A unit; `out` of the decode tiers: where the residual stream goes, x or a lane. */
void lower_unit(struct lowering *low, uint32_t unit, float *out);
/* Whether another processor computes rows of the unit's MLP (experts.c); the residual stream to it, before
 * the unit's own products; its sum, added to the stream after them, into `out` as lower_unit has it. */
bool lower_shares(const struct lowering *low, uint32_t unit);
void lower_share_begin(struct lowering *low, uint32_t unit);
void lower_share_end(struct lowering *low, uint32_t unit, float *out);

void lower_embed(struct lowering *low);
/* The embedding, and what MLP halves take of the tokens. */
void lower_inputs(struct lowering *low);
/* The hidden states that drafts begin with; `drafts`: the head after these. */
void lower_hidden_states(struct lowering *low);
void lower_head(struct lowering *low, bool drafts);

/* Joins the operations of a whole list to chains where it can (chain.c). */
void lower_chains(struct lowering *low);
/* Before that, in an invariant plan: attention whose next product is one that chains have with the bits of
 * few tokens gets a chain's order, in the lists of one token and of few; where one of several tokens is far,
 * up to GPU_APART_POSITION. */
void lower_attention_chained(struct lowering *low);
