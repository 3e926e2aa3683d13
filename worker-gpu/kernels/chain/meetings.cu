/* Where the blocks of a chain meet: before an operation that reads what others stored, or stores over what
 * others read, since they met last. Operations between two meetings are products of one x (q and k, and v of
 * another format; the router's beside a shared expert's), or one that adds to what the same threads have just
 * stored.
 *
 * Called by chain/list.cu. Addresses say which operation depends on which; a list says nothing about it. */
#include "worker-gpu/kernels/chain/plan.cuh"

#include <algorithm>

/* Numbers of the chain's operations that an operation's blocks read, and those that they store. */
struct touched {
    const char *from, *to;
};
struct touches {
    touched read[2], stored[GPUK_SEGMENTS_MAX];
    bool all; /* not looked at: blocks meet before it and after it */
};
static struct touched numbers(const float *from, uint64_t count)
{
    return {(const char *)from, from ? (const char *)(from + count) : nullptr};
}
static struct touches touches_of(const struct gpuk_chain_op *op)
{
    struct touches t = {};
    t.all = !has_tiles(op);
    if (t.all) return t;
    const struct gpuk_linear_args &a = op->linear;
    uint32_t most = 0;
    for (uint32_t s = 0; s < (a.swiglu ? 1 : a.segments); s++) {
        t.stored[s] = numbers(a.segment[s].out, a.segment[s].rows);
        most = std::max(most, a.segment[s].rows);
    }
    t.read[0] = numbers(a.x, a.cols);
    t.read[1] = numbers(a.residual, most);
    return t;
}
static bool meet_in(const touched &a, const touched &b)
{
    return a.from < b.to && b.from < a.to;
}
/* Whether one stores what the other reads or stores. residual: of which `b` reads and stores the rows that
 * the same threads of `a` stored. */
static bool depends(const struct touches &a, const struct touches &b, bool residual)
{
    if (a.all || b.all) return true;
    for (const touched &stored : a.stored) {
        if (meet_in(stored, b.read[0])) return true;
        if (!residual && meet_in(stored, b.read[1])) return true;
        for (const touched &other : b.stored)
            if (!residual && meet_in(stored, other)) return true;
    }
    for (const touched &stored : b.stored)
        for (uint32_t i = 0; i < 2; i++)
            if (!(residual && i == 1) && meet_in(stored, a.read[i])) return true;
    return false;
}
static bool same_input(const struct gpuk_linear_args *a, const struct gpuk_linear_args *b)
{
    return a->x == b->x && a->norm == b->norm && a->eps == b->eps && a->cols == b->cols;
}
bool chain_adds_to(const struct gpuk_chain_op *a, const struct gpuk_chain_op *b)
{
    if (!has_tiles(a) || !has_tiles(b)) return false;
    const struct gpuk_linear_args &front = a->linear;
    return front.segments == 1 && b->linear.segments == 1 && b->linear.residual &&
           front.segment[0].out == b->linear.segment[0].out &&
           b->linear.residual == b->linear.segment[0].out &&
           front.segment[0].rows == b->linear.segment[0].rows;
}
bool chain_same_threads(const struct chain_weights *w)
{
    const uint32_t fit = CHAIN_SUMS / 2 / w->chunks;
    return w->whole + (w->extra > 0) <= std::min(fit, (uint32_t)chain_shaped::THREADS);
}
/* Whether x of `b`, as it lies in shared memory, is that of `a`. */
static bool keeps_x(const struct gpuk_chain_op *a, const struct gpuk_chain_op *b)
{
    return has_tiles(a) && has_tiles(b) && same_input(&a->linear, &b->linear) &&
           chain_family(a->linear.format) == chain_family(b->linear.format);
}
uint32_t chain_meetings(const struct gpuk_chain_op *op, uint32_t count, const std::vector<bool> &added,
                        struct chain_item *items)
{
    uint32_t meetings = 0, since = 0; /* the first operation since they met */
    for (uint32_t i = 1; i < count; i++) {
        const struct touches own = touches_of(&op[i]);
        bool meets = false;
        for (uint32_t j = since; j < i && !meets; j++)
            meets = depends(touches_of(&op[j]), own, j + 1 == i && added[i]);
        if (meets) items[i].flags |= CHAIN_MEETS, items[i - 1].flags |= CHAIN_ARRIVES, since = i, meetings++;
        if (!meets && keeps_x(&op[i - 1], &op[i]))
            items[i].flags |= CHAIN_KEEPS_X;
        else
            items[i - 1].flags |= CHAIN_HURRIES;
        if (!has_tiles(&op[i]) || !op[i].linear.norm || items[i].flags & CHAIN_KEEPS_X) continue;
        items[i - 1].next_norm = op[i].linear.norm;
        items[i - 1].next_norm_quads = op[i].linear.cols / 4;
    }
    return meetings;
}
