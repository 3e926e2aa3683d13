/* Where the blocks of a chain meet: before an operation that reads what others stored, or stores over what others read, since
 * they met last. Operations between two meetings are products of one x (q and k, and v of another format; the router's beside a
 * shared expert's), or one that adds to what the same threads have just stored.
 *
 * Called by chain/list.cu. Addresses say which operation depends on which; a list says nothing about it. */
#include "worker-gpu/kernels/chain/plan.cuh"

#include <algorithm>

static const int CHAIN_WORDS = 1; /* struct gpuk_device: chain_words */

struct sparse_words sparse_words_of(const struct gpuk_chain_op *op, uint32_t count)
{
    struct sparse_words words = {};
    for (uint32_t i = 0; i < count; i++) {
        if (op[i].kind != GPUK_CHAIN_ROUTER) continue;
        words.logits = std::max(words.logits, (uint64_t)(op[i].linear.segment[0].rows + 1) / 2 * 2);
        words.x = std::max(words.x, (uint64_t)op[i].linear.cols);
    }
    return words;
}

/* Words that a link gives. */
struct given {
    uint64_t *at; /* NULL: none */
    uint32_t to;  /* the link that takes them */
};
/* What link i gives: logits to the gates behind it, or x to the next one, if what it makes is only that and few enough numbers
 * that each block loads twice the bytes sooner than all meet. */
static struct given words_given(const struct gpuk_device *device, const std::vector<struct chain_link> &links,
                                uint32_t i, const struct sparse_words &sparse, uint64_t *words)
{
    const int how = device->chain_words ? device->chain_words : CHAIN_WORDS;
    const struct gpuk_chain_op *op = links[i].op;
    if (sparse.logits == 0 || i + 1 == links.size() || how < 0) return {};
    const struct gpuk_chain_op *next = links[i + 1].op;
    if (op->kind == GPUK_CHAIN_ROUTER) return {words, next->kind == GPUK_CHAIN_EXPERTS_GLU ? i + 1 : i + 2};
    if (how < 2 || (next->kind != GPUK_CHAIN_LINEAR && next->kind != GPUK_CHAIN_ROUTER)) return {};
    if (op->kind != GPUK_CHAIN_LINEAR && op->kind != GPUK_CHAIN_EXPERTS_DOWN) return {};
    /* The next operation adds nothing to x. One that does reads what other blocks stored there, so all blocks meet
     * before it. */
    const struct gpuk_linear_args a = linear_of(op);
    const bool gives = a.residual && !next->linear.residual && a.segments == 1 &&
                       a.segment[0].rows % 2 == 0 && a.segment[0].rows == next->linear.cols &&
                       a.segment[0].out == next->linear.x && next->linear.cols <= sparse.x;
    return {gives ? words + sparse.logits : nullptr, i + 1};
}

/* ---- what depends on what */

/* What an operation's blocks read that the chain's operations store, and what they store. */
struct touched {
    const char *from, *to;
};
struct touches {
    touched read[2], stored[GPUK_SEGMENTS_MAX];
    bool all; /* it is not looked at: blocks meet in front of it and behind it */
};
static struct touched numbers(const float *from, uint64_t count)
{
    return {(const char *)from, from ? (const char *)(from + count) : nullptr};
}
static struct touches touches_of(const struct gpuk_chain_op *op)
{
    struct touches t = {};
    t.all = !gpuk_chain_passes_ring(op) && !has_tiles(op);
    if (t.all) return t;
    const struct gpuk_linear_args a = linear_of(op);
    const uint64_t vectors = chosen_of(op) ? chosen_of(op) : 1;
    uint32_t most = 0;
    for (uint32_t s = 0; s < (a.swiglu ? 1 : a.segments); s++) {
        t.stored[s] =
            numbers(a.segment[s].out,
                    op->kind == GPUK_CHAIN_EXPERTS_GLU ? vectors * a.segment[s].rows : a.segment[s].rows);
        most = std::max(most, a.segment[s].rows);
    }
    /* gates have x in shared memory, and read logits */
    if (op->kind == GPUK_CHAIN_EXPERTS_GLU)
        t.read[0] = numbers(op->glu.args.logits, op->glu.router.experts);
    else
        t.read[0] = numbers(a.x, op->kind == GPUK_CHAIN_EXPERTS_DOWN ? vectors * a.cols : a.cols);
    t.read[1] = numbers(a.residual, most);
    return t;
}
static bool meet_in(const touched &a, const touched &b)
{
    return a.from < b.to && b.from < a.to;
}
/* Whether one stores what the other reads or stores. residual: of which `b` reads and stores the rows that the same threads of
 * `a` stored; words: of what `b` reads first. */
static bool depends(const struct touches &a, const struct touches &b, bool residual, bool words)
{
    if (a.all || b.all) return true;
    for (const touched &stored : a.stored) {
        if (!words && meet_in(stored, b.read[0])) return true;
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
std::vector<struct chain_link> chain_links(const struct gpuk_chain_op *op, uint32_t count)
{
    std::vector<struct chain_link> links;
    const struct gpuk_weigh *weigh = nullptr;
    for (uint32_t i = 0; i < count; i++) {
        if (op[i].kind == GPUK_CHAIN_WEIGH) {
            weigh = &op[i].weigh;
            continue;
        }
        links.push_back({&op[i], weigh});
        weigh = nullptr;
        if (!gpuk_chain_passes_ring(&op[i]) || links.size() < 2) continue;
        struct chain_link &front = links[links.size() - 2];
        if (front.op->kind == GPUK_CHAIN_LINEAR && same_input(&front.op->linear, &op[i].linear) &&
            !depends(touches_of(front.op), touches_of(&op[i]), false, false))
            std::swap(front, links.back());
    }
    return links;
}
bool chain_adds_to(const struct gpuk_chain_op *a, const struct gpuk_chain_op *b)
{
    if (!has_tiles(a) || b->kind != GPUK_CHAIN_LINEAR || a->kind == GPUK_CHAIN_EXPERTS_GLU) return false;
    const struct gpuk_linear_args front = linear_of(a);
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
    const bool past = gpuk_chain_passes_ring(a);
    if (b->kind != GPUK_CHAIN_LINEAR || (a->kind != GPUK_CHAIN_LINEAR && !past)) return false;
    return same_input(&a->linear, &b->linear) &&
           (past || chain_family(a->linear.format) == chain_family(b->linear.format));
}
uint32_t chain_meetings(const struct gpuk_device *device, const std::vector<struct chain_link> &links,
                        const std::vector<bool> &added, uint64_t *words, struct chain_item *items)
{
    std::vector<struct gpuk_chain_op> ops;
    for (const struct chain_link &link : links) ops.push_back(*link.op);
    const struct sparse_words sparse = sparse_words_of(ops.data(), (uint32_t)ops.size());
    uint32_t meetings = 0, since = 0; /* the first operation since they met */
    for (uint32_t i = 0; i < links.size(); i++) {
        const struct given given = words_given(device, links, i, sparse, words);
        if (given.at) {
            items[i].words_out = given.at;
            items[given.to].words_in = given.at, items[given.to].words_back = given.to - i;
        }
        if (i == 0) continue;
        const struct gpuk_chain_op *op = links[i].op;
        const struct touches own = touches_of(op);
        bool meets = false;
        for (uint32_t j = since; j < i && !meets; j++)
            meets = depends(touches_of(links[j].op), own, j + 1 == i && added[i],
                            items[i].words_in && j + items[i].words_back == i);
        if (meets) items[i].flags |= CHAIN_MEETS, items[i - 1].flags |= CHAIN_ARRIVES, since = i, meetings++;
        if (!meets && keeps_x(links[i - 1].op, op))
            items[i].flags |= CHAIN_KEEPS_X;
        else
            items[i - 1].flags |= CHAIN_HURRIES;
        if (!has_norm(op) || items[i].flags & CHAIN_KEEPS_X) continue;
        items[i - 1].next_norm = op->linear.norm;
        items[i - 1].next_norm_quads = op->linear.cols / 4;
    }
    return meetings; /* a sparse MLP has one, by which launches are told apart */
}
