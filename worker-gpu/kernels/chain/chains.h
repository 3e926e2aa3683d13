/* Chains: consecutive operations of one token in one launch, under the same rules as the launchers of
 * kernels.h.
 *
 * Called by the CUDA device, by tests/gpu and by tools/bench/gpu; the emulated device has its own of the same
 * lists.
 *
 * One block a multiprocessor stays for all of them. Between operations the blocks meet at a counter in device
 * memory, unless neither needs what the other stores; while they do, and while one of them computes
 * attention, the copy engine brings the weights of the operations after it into shared memory, so that memory
 * never rests between operations. All blocks must be resident at once: a cooperative launch, one at a time on
 * the device. Results are those of gpuk_gemv, gpuk_attention_decode up to the order of sums, those of
 * gpuk_delta_convolve and gpuk_delta_rule to the bit, and the same bits from run to run. Mixtures of experts
 * have no chains: their operations are small, and kernels that begin early do them in half the time
 * (linear/gemv_once.cu, experts/once.cu). */
#pragma once

#include "worker-gpu/kernels/delta/delta.h"
#include "worker-gpu/kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum gpuk_chain_kind {
    GPUK_CHAIN_LINEAR,
    GPUK_CHAIN_ATTENTION,
    GPUK_CHAIN_CONVOLVE, /* a gated delta net's, */
    GPUK_CHAIN_DELTA,    /* and its rule */
    GPUK_CHAIN_KINDS
};
struct gpuk_chain_op {
    enum gpuk_chain_kind kind;
    union {
        struct gpuk_linear_args linear; /* as gpuk_gemv takes it */
        struct {
            struct gpuk_attention args; /* as gpuk_attention_decode takes it, one token, fused */
            float *out;
        } attention;
        struct gpuk_delta delta; /* CONVOLVE, DELTA: of one token, the step's first */
    };
};
/* A list in device memory, ready to run; addresses in it stay as they were when it was written. */
struct gpuk_chain {
    const void *list; /* device */
    uint32_t count;   /* operations of the list */
    int variant;      /* of the kernel; the launcher's own */
    uint32_t warps, askers, slots, pitch, shared_bytes, blocks, meetings, linears, region_bytes, norm_bytes;
};
/* Whether operation `op` can be part of a chain on this device: bulk copies, 16-byte alignment, x within
 * shared memory. A list may be cut at operations that cannot; those go as kernels of their own. Operations of
 * one chain have caches of one dtype, attention of one step block, and weights of one plain format or of
 * blocks of any. */
static inline bool gpuk_chain_mixes(enum tensor_format a, enum tensor_format b)
{
    return a == b || (!tensor_format_is_plain(a) && !tensor_format_is_plain(b));
}
/* The format of an operation's weights that must go together; FORMAT_COUNT: it has none. */
static inline enum tensor_format gpuk_chain_format(const struct gpuk_chain_op *op)
{
    return op->kind == GPUK_CHAIN_LINEAR ? op->linear.format : FORMAT_COUNT;
}
bool gpuk_chain_takes(const struct gpuk_device *device, const struct gpuk_chain_op *op);
/* Numbers of a head at most: attention of wider ones is a kernel between chains. */
#define GPUK_CHAIN_HEAD_DIM_MAX 256
/* Pieces of a head's context that attention in a chain hands from block to block at most. */
#define GPUK_CHAIN_PIECES GPU_CHAIN_PIECES
/* Device memory of a list of `count` operations, counters included; a multiple of 256. With attention in it
 * also the pieces' words: heads * GPUK_CHAIN_PIECES * (head_dim + 2) * 8 bytes, rounded up to 256. op NULL:
 * the list alone. */
size_t gpuk_chain_bytes(const struct gpuk_chain_op *op, uint32_t count);
/* Writes the list to `memory` (gpuk_chain_bytes, 256-byte aligned) by a copy on `stream` that is over on
 * return; not under capture. attention_workspace: as in gpuk_attention_decode, of one token.
 * HELM_E_UNSUPPORTED names the operation that cannot be taken. */
HELM_MUST_CHECK int gpuk_chain_write(const struct gpuk_device *device, const struct gpuk_chain_op *op,
                                     uint32_t count, void *memory, void *attention_workspace, void *stream,
                                     struct gpuk_chain *chain, struct helm_err *err);
/* Runs it; may be captured. With GPUK_EARLY it is no cooperative launch: nothing else may be begun on the
 * device before it has ended, as in one stream. */
HELM_MUST_CHECK int gpuk_chain_run(const struct gpuk_chain *chain, uint32_t flags, void *stream,
                                   struct helm_err *err);

#ifdef __cplusplus
}
#endif
