/* The emulated device's chains: lists of one token's operations in its memory, run one after the other by the
 * kernels that they would be alone, so that the results are the same bits. See emulated.h and kernels.h.
 *
 * As strict as a GPU: what cannot be copied in bulk is not taken, a list is written by the queue, never under
 * capture, and a list that something has written over fails the device. */
#include <stdint.h>
#include <string.h>

#include "worker-gpu/device/emulated/queue.h"

#define LIST_MARK UINT64_C(0x6e69616863204d48)
#define BULK      16 /* bytes: what bulk copies begin and end at */

struct list {
    uint64_t mark;
    uint32_t count;
    void *attention_workspace;
    struct gpuk_chain_op op[];
};

static bool in_bulk(const void *at)
{
    return (uintptr_t)at % BULK == 0;
}

static bool takes_linear(const struct gpuk_linear_args *a)
{
    const struct tensor_format_traits *traits = tensor_format_of(a->format);
    const bool loose = !tensor_format_is_plain(a->format) && traits->block_bytes % BULK;
    bool ok = a->segments >= 1 && a->segments <= GPUK_SEGMENTS_MAX && in_bulk(a->x) && in_bulk(a->norm) &&
              !traits->variable && (loose || tensor_format_row_bytes(a->format, a->cols) % BULK == 0);
    for (uint32_t s = 0; s < a->segments && ok; s++) ok = loose || in_bulk(a->segment[s].weight);
    return ok;
}

bool emulated_chain_takes(struct device *d, const struct gpuk_chain_op *op)
{
    (void)d;
    switch (op->kind) {
    case GPUK_CHAIN_LINEAR:
        return takes_linear(&op->linear);
    case GPUK_CHAIN_CONVOLVE:
    case GPUK_CHAIN_DELTA: /* as many numbers as a GPU's registers hold */
        return op->delta.key_dim <= DELTA_HEAD_MAX / 2 && op->delta.value_dim <= DELTA_HEAD_MAX / 2;
    default:
        return op->attention.args.kv.layout.head_dim <= GPUK_CHAIN_HEAD_DIM_MAX;
    }
}

size_t emulated_chain_bytes(const struct gpuk_chain_op *op, uint32_t count)
{
    (void)op; /* no words: one operation follows the other */
    return (sizeof(struct list) + count * sizeof(struct gpuk_chain_op) + 255) / 256 * 256;
}

/* Whether one chain takes both, of one kind, by their weights or caches. */
static bool mixes(const struct gpuk_chain_op *a, const struct gpuk_chain_op *b)
{
    if (a->kind != GPUK_CHAIN_ATTENTION) return gpuk_chain_mixes(gpuk_chain_format(a), gpuk_chain_format(b));
    return a->attention.args.kv.layout.dtype == b->attention.args.kv.layout.dtype;
}

static int check_list(struct device *d, const struct gpuk_chain_op *op, uint32_t count, struct helm_err *err)
{
    const struct gpuk_chain_op *first[2] = {NULL, NULL}; /* of each kind */
    for (uint32_t i = 0; i < count; i++) {
        const struct gpuk_chain_op **like = &first[op[i].kind == GPUK_CHAIN_ATTENTION];
        if (!emulated_chain_takes(d, &op[i]))
            return helm_fail(err, HELM_E_UNSUPPORTED, "operation %u of a chain cannot be taken", i);
        if (op[i].kind != GPUK_CHAIN_ATTENTION && gpuk_chain_format(&op[i]) == FORMAT_COUNT) continue;
        if (*like && !mixes(*like, &op[i]))
            return helm_fail(err, HELM_E_UNSUPPORTED, "operation %u of a chain is of another format", i);
        *like = &op[i];
    }
    return 0;
}

int emulated_chain_write(struct device *d, const struct gpuk_chain_op *op, uint32_t count, void *memory,
                         void *attention_workspace, struct gpuk_chain *chain, struct helm_err *err)
{
    void *host = NULL;
    size_t bytes = emulated_chain_bytes(op, count);
    if (emulated_of(d)->capture) return helm_fail(err, HELM_E_STATE, "a chain is written inside a capture");
    if ((uintptr_t)memory % 256) return helm_fail(err, HELM_E_USAGE, "a chain's list at %p", memory);
    int rc = check_list(d, op, count, err);
    if (!rc) rc = d->ops->host_alloc(d, bytes, &host, err);
    if (rc) return rc;
    struct list *list = memset(host, 0, bytes);
    list->mark = LIST_MARK;
    list->count = count;
    list->attention_workspace = attention_workspace;
    memcpy(list->op, op, count * sizeof *op);
    rc = device_copy(d, DEVICE_COMPUTE, DEVICE_TO_DEVICE, memory, host, bytes, err);
    if (!rc) rc = device_await(d, DEVICE_COMPUTE, err);
    d->ops->host_free(d, host);
    *chain = (struct gpuk_chain){.list = memory, .count = count};
    return rc;
}

void emulated_run_chain(struct emulated_math *math, const struct op *task)
{
    const struct gpuk_chain *chain = &task->as.chain;
    const struct list *list = chain->list;
    if (list->mark != LIST_MARK || list->count != chain->count) {
        math->broken = "a chain's list was written over";
        return;
    }
    for (uint32_t i = 0; i < list->count && !math->broken; i++) {
        const struct gpuk_chain_op *op = &list->op[i];
        switch (op->kind) {
        case GPUK_CHAIN_ATTENTION:
            emulated_run_fused(math, &op->attention.args, op->attention.out, list->attention_workspace);
            break;
        case GPUK_CHAIN_CONVOLVE:
            emulated_convolve(math, &op->delta);
            break;
        case GPUK_CHAIN_DELTA:
            emulated_delta_rule(math, &op->delta);
            break;
        default:
            emulated_linear(math, &op->linear, 1, op->linear.cols, 0);
        }
    }
}
