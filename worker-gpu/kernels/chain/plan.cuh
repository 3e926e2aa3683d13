/* What the files that write chains' lists share: operations as linear ones, and where their blocks meet.
 *
 * Included by chain/list.cu and chain/meetings.cu. */
#pragma once

#include <vector>

#include "worker-gpu/kernels/chain/chain.cuh"

static inline uint32_t chosen_of(const struct gpuk_chain_op *op)
{
    return op->kind == GPUK_CHAIN_EXPERTS_GLU    ? op->glu.args.choice.chosen
           : op->kind == GPUK_CHAIN_EXPERTS_DOWN ? op->down.choice.chosen
                                                 : 0;
}
/* Whether its weights come through the ring. */
static inline bool has_tiles(const struct gpuk_chain_op *op)
{
    return gpuk_chain_format(op) != FORMAT_COUNT;
}
/* An operation as the linear one that it is like, experts' as that of one expert. */
static inline struct gpuk_linear_args linear_of(const struct gpuk_chain_op *op)
{
    struct gpuk_linear_args a = {};
    if (op->kind == GPUK_CHAIN_EXPERTS_GLU) {
        const struct gpuk_experts_glu *g = &op->glu.args;
        a.format = g->gate.format, a.cols = g->gate.cols, a.segments = 2, a.swiglu = true;
        a.segment[0] = {g->gate.weight, nullptr, nullptr, g->act, g->gate.rows};
        a.segment[1] = {g->up.weight, nullptr, nullptr, g->act, g->up.rows};
        a.x = g->x, a.norm = g->norm, a.eps = g->eps;
    } else if (op->kind == GPUK_CHAIN_EXPERTS_DOWN) {
        const struct gpuk_experts_down *d = &op->down;
        a.format = d->down.format, a.cols = d->down.cols, a.segments = 1;
        a.segment[0] = {d->down.weight, nullptr, nullptr, d->out, d->down.rows};
        a.x = d->act, a.residual = d->residual, a.out_stride = d->out_stride;
    } else {
        a = op->linear;
    }
    return a;
}
/* Whether the weights of its norm are fetched ahead. */
static inline bool has_norm(const struct gpuk_chain_op *op)
{
    return (op->kind == GPUK_CHAIN_LINEAR || gpuk_chain_passes_ring(op)) && op->linear.norm;
}

/* Words of results that go on without a meeting, of a chain with experts: logits, and x. */
struct sparse_words {
    uint64_t logits, x; /* how many */
};
struct sparse_words sparse_words_of(const struct gpuk_chain_op *op, uint32_t count);

/* An operation of the list that is one of the chain. */
struct chain_link {
    const struct gpuk_chain_op *op;
    const struct gpuk_weigh *weigh; /* of a router's product: the weight that is one more row of it */
};
/* A list's operations in the order in which a chain has them. A shared expert's weight is no link, but a row of the router's
 * product behind it. A product in front of that product, or of ROWS, follows it, which has put x into shared memory: of the same
 * x, and neither needs the other's. */
std::vector<struct chain_link> chain_links(const struct gpuk_chain_op *op, uint32_t count);

/* Joins operations by words where that can be, in a chain with experts, and plans where blocks meet: items have their weights.
 * words: of logits, then of x. added: operation i adds to rows that the same threads stored in the one before. Returns how often
 * blocks meet. */
uint32_t chain_meetings(const struct gpuk_device *device, const std::vector<struct chain_link> &links,
                        const std::vector<bool> &added, uint64_t *words, struct chain_item *items);
/* Whether `b` adds to the rows that `a` in front of it stores: of one matrix of as many rows, out of one place. */
bool chain_adds_to(const struct gpuk_chain_op *a, const struct gpuk_chain_op *b);
/* Then the same threads have these rows in both, if all of a block's have room at once in either. */
bool chain_same_threads(const struct chain_weights *w);
