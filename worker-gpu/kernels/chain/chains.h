/* Chains: consecutive operations of one token in one launch, under the same rules as the launchers of kernels.h.
 *
 * Called by the CUDA device, by tests/gpu and by tools/bench/gpu; the emulated device has its own of the same lists.
 *
 * One block a multiprocessor stays for all of them. Between operations the blocks meet at a counter in device
 * memory, unless neither needs what the other stores; while they do, and while one of them computes attention, the
 * copy engine brings the weights of the operations behind it into shared memory, so that memory never rests between
 * operations. All blocks must be resident at once: a cooperative launch, one at a time on the device. Results are those of gpuk_gemv,
 * gpuk_attention_decode, gpuk_experts_glu and gpuk_experts_down up to the order of sums, those of gpuk_delta_convolve and
 * gpuk_delta_rule to the bit, and the same bits from run to run. */
#pragma once

#include "worker-gpu/kernels/delta/delta.h"
#include "worker-gpu/kernels/experts/experts.h"
#include "worker-gpu/kernels/kernels.h"
#include "worker-gpu/kernels/weigh.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A sparse MLP is three operations that stand one behind the other: the router's product, experts' gates and ups, which
 * make the choice first, and their downs. Every block makes the choice for itself, and only then knows which weights to
 * ask for; the downs' are on their way while gates and ups are computed. */
enum gpuk_chain_kind {
    GPUK_CHAIN_LINEAR,
    GPUK_CHAIN_ATTENTION,
    GPUK_CHAIN_ROUTER,
    GPUK_CHAIN_EXPERTS_GLU,
    GPUK_CHAIN_EXPERTS_DOWN,
    GPUK_CHAIN_CONVOLVE, /* a gated delta net's, */
    GPUK_CHAIN_DELTA,    /* and its rule; in chains without experts and with them */
    GPUK_CHAIN_WEIGH,    /* a shared expert's weight: no link, the router's product has one more row */
    GPUK_CHAIN_ROWS,     /* a product with a few rows of plain numbers in a chain of blocks: read past the ring */
    GPUK_CHAIN_KINDS
};
struct gpuk_chain_op {
    enum gpuk_chain_kind kind;
    union {
        struct gpuk_linear_args
            linear; /* as gpuk_gemv takes it; ROUTER: fp32, one matrix, its rows the experts; ROWS: no residual */
        struct {
            struct gpuk_attention args; /* as gpuk_attention_decode takes it, one token, fused */
            float *out;
        } attention;
        struct {
            struct gpuk_experts_glu
                args; /* as gpuk_experts_glu takes it, of the logits and the x of the router in
                                             front; act is not for others: weights may be in it */
            struct model_router router; /* args.router is not looked at */
        } glu;
        struct gpuk_experts_down down; /* of the choice and of act in front */
        struct gpuk_delta delta;       /* CONVOLVE, DELTA: of one token, the step's first */
        struct gpuk_weigh
            weigh; /* act is left as it is: the product that reads it multiplies by the weight */
    };
};
/* A list in device memory, ready to run; addresses in it stay as they were when it was written. */
struct gpuk_chain {
    const void *list; /* device */
    uint32_t count;   /* operations of the list */
    uint32_t links;   /* of them, those that are one of the chain: not weights of shared experts */
    int variant;      /* of the kernel; the launcher's own */
    bool sparse;      /* it has experts, or ROWS */
    uint32_t warps, askers, slots, pitch, shared_bytes, blocks, meetings, linears, region_bytes, norm_bytes;
};
/* Whether operation `op` can be part of a chain on this device: bulk copies, 16-byte alignment, x within
 * shared memory; of experts: every one in its slot, of another format than fp32. A list may be cut at operations that cannot; those go as kernels of
 * their own. Operations of one chain have caches of one dtype, attention of one step block, and weights of one plain
 * format or of blocks of any (a router's and ROWS apart). */
static inline bool gpuk_chain_mixes(enum tensor_format a, enum tensor_format b)
{
    return a == b || (!tensor_format_is_plain(a) && !tensor_format_is_plain(b));
}
/* The format of an operation's weights that must go together; FORMAT_COUNT: it has none. */
static inline enum tensor_format gpuk_chain_format(const struct gpuk_chain_op *op)
{
    return op->kind == GPUK_CHAIN_LINEAR         ? op->linear.format
           : op->kind == GPUK_CHAIN_EXPERTS_GLU  ? op->glu.args.gate.format
           : op->kind == GPUK_CHAIN_EXPERTS_DOWN ? op->down.down.format
                                                 : FORMAT_COUNT;
}
/* Products behind a shared expert's weight: the router's, and after the experts' downs the one that reads what is weighed. */
#define GPUK_CHAIN_WEIGHED 4
static inline bool gpuk_chain_weighs(const struct gpuk_weigh *w, const struct gpuk_linear_args *router,
                                     const struct gpuk_linear_args *weighed)
{
    return router->x == w->x && router->norm == w->norm && router->eps == w->eps &&
           router->cols == w->width && w->dtype == DTYPE_F32 && weighed->x == (const float *)w->act &&
           weighed->cols == w->n && !weighed->norm;
}
/* Whether what belongs to operation i of a list stands beside it: of a sparse MLP all three, of one token's x, choice and
 * activations; with a shared expert's weight the product that reads what it weighs. */
static inline bool gpuk_chain_whole(const struct gpuk_chain_op *op, uint32_t count, uint32_t i)
{
    const struct gpuk_chain_op *of = &op[i];
    const bool front = i > 0, behind = i + 1 < count;
    if (of->kind == GPUK_CHAIN_WEIGH)
        return i + GPUK_CHAIN_WEIGHED < count && of[1].kind == GPUK_CHAIN_ROUTER &&
               of[GPUK_CHAIN_WEIGHED].kind == GPUK_CHAIN_LINEAR &&
               gpuk_chain_weighs(&of->weigh, &of[1].linear, &of[GPUK_CHAIN_WEIGHED].linear);
    if (of->kind == GPUK_CHAIN_ROUTER) return behind && of[1].kind == GPUK_CHAIN_EXPERTS_GLU;
    if (of->kind == GPUK_CHAIN_EXPERTS_GLU) {
        if (!front || !behind || of[-1].kind != GPUK_CHAIN_ROUTER || of[1].kind != GPUK_CHAIN_EXPERTS_DOWN)
            return false;
        const struct gpuk_linear_args *router = &of[-1].linear;
        const struct gpuk_experts_glu *g = &of->glu.args;
        return router->x == g->x && router->norm == g->norm && router->eps == g->eps &&
               router->cols == g->gate.cols && router->segment[0].rows == of->glu.router.experts &&
               router->segment[0].out == g->logits;
    }
    if (of->kind != GPUK_CHAIN_EXPERTS_DOWN) return true;
    if (!front || of[-1].kind != GPUK_CHAIN_EXPERTS_GLU) return false;
    const struct gpuk_experts_glu *g = &of[-1].glu.args;
    return g->act == of->down.act && g->choice.chosen == of->down.choice.chosen &&
           g->gate.rows == of->down.down.cols && g->gate.experts == of->down.down.experts;
}
bool gpuk_chain_takes(const struct gpuk_device *device, const struct gpuk_chain_op *op);
/* Rows of a product that passes by the ring at most, and whether an operation is one. */
#define GPUK_CHAIN_ROWS_MAX 256
static inline bool gpuk_chain_passes_ring(const struct gpuk_chain_op *op)
{
    return op->kind == GPUK_CHAIN_ROUTER || op->kind == GPUK_CHAIN_ROWS;
}
/* Numbers of a head at most: attention of wider ones is a kernel between chains. */
#define GPUK_CHAIN_HEAD_DIM_MAX 256
/* Pieces of a head's context that attention in a chain hands from block to block at most. */
#define GPUK_CHAIN_PIECES GPU_CHAIN_PIECES
/* Device memory of a list of `count` operations, counters included; a multiple of 256. With attention in it
 * also the pieces' words: heads * GPUK_CHAIN_PIECES * (head_dim + 2) * 8 bytes, rounded up to 256; with experts, words of
 * their logits and of x, likewise. op NULL: the list alone. */
size_t gpuk_chain_bytes(const struct gpuk_chain_op *op, uint32_t count);
/* Writes the list to `memory` (gpuk_chain_bytes, 256-byte aligned) by a copy on `stream` that is over on
 * return; not under capture. attention_workspace: as in gpuk_attention_decode, of one token.
 * HELM_E_UNSUPPORTED names the operation that cannot be taken. */
HELM_MUST_CHECK int gpuk_chain_write(const struct gpuk_device *device, const struct gpuk_chain_op *op,
                                     uint32_t count, void *memory, void *attention_workspace, void *stream,
                                     struct gpuk_chain *chain, struct helm_err *err);
/* Runs it; may be captured. With GPUK_EARLY it is no cooperative launch: nothing else may be begun on the device before it has
 * ended, as in one stream. */
HELM_MUST_CHECK int gpuk_chain_run(const struct gpuk_chain *chain, uint32_t flags, void *stream,
                                   struct helm_err *err);

#ifdef __cplusplus
}
#endif
