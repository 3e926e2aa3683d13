/* Rates of products with weights of other formats than bf16. See measure/private.h; called by measure.c.
 *
 * The same operations as bf16's, over as many bytes of random blocks in the weights' memory. Blocks take its
 * first half; caches of a chain's attention and expanded weights lie in the other. */
#include "common/base/units.h"
#include "common/formats/random_blocks.h"
#include "worker-gpu/measure/private.h"

#define VALUES      20 /* works that are timed for a format, about */
#define PIECE_BYTES (16 * MIB)

/* Blocks from pinned memory, the same piece over and over. */
static int put_blocks(struct measure *m, struct helm_err *err)
{
    const uint64_t block = tensor_format_of(m->format)->block_bytes,
                   room = m->host_bytes < PIECE_BYTES ? m->host_bytes : PIECE_BYTES,
                   piece = room / block * block;
    int rc = 0;
    random_blocks_fill(m->format, RANDOM_WEIGHTS, m->host, piece);
    for (uint64_t at = 0; at < m->weight_bytes && !rc; at += piece)
        rc = device_copy(m->device, DEVICE_COMPUTE, DEVICE_TO_DEVICE, m->weights + at, m->host,
                         m->weight_bytes - at < piece ? m->weight_bytes - at : piece, err);
    return rc ? rc : measure_drain(m, DEVICE_COMPUTE, err);
}

static int measure_few(struct measure *m, struct helm_err *err)
{
    static const uint32_t tokens[] = {2, 4, 8, 16};
    double rate = 0;
    int rc = 0;
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens && !rc; i++)
        rc = measure_linear_at(m, tokens[i], &rate, err);
    return rc;
}

/* Chunks that are short enough to be multiplied with blocks as they lie, after few tokens' rate. A CPU that
 * plays a GPU has no time for more than one of them. */
static int measure_short(struct measure *m, bool wide, struct helm_err *err)
{
    static const uint32_t tokens[] = {32, GPU_SHORT_TOKENS, GPU_WIDE_TOKENS};
    double rate = 0;
    int rc = 0;
    for (size_t i = 0; i < (m->emulated ? 1 : sizeof tokens / sizeof *tokens) && !rc; i++)
        if (wide || tokens[i] <= GPU_SHORT_TOKENS) rc = measure_linear_at(m, tokens[i], &rate, err);
    return rc;
}

/* Whole layers of the shapes that the device multiplies by as they lie; those of a device that is a CPU are
 * the smallest. */
static int measure_all(struct measure *m, struct helm_err *err)
{
    const struct measure_kernels *k = m->kernels;
    struct measure_samples least;
    double operation = 0;
    const bool room = measure_layers_of(m, k->small) > 0,
               both_one =
                   room && measure_reads(m, k->large, GPUK_ONE) && measure_reads(m, k->small, GPUK_ONE),
               both_few =
                   room && measure_reads(m, k->large, GPUK_FEW) && measure_reads(m, k->small, GPUK_FEW),
               both_short = both_few && !tensor_format_is_plain(m->format) &&
                            measure_reads(m, k->large, GPUK_SHORT) && measure_reads(m, k->small, GPUK_SHORT),
               both_wide = both_short && measure_reads(m, k->large, GPUK_WIDE) &&
                           measure_reads(m, k->small, GPUK_WIDE);
    int rc = put_blocks(m, err);
    if (!rc) rc = measure_tiny(m, true, &least, err);
    if (rc) return rc;
    operation = measure_median_of(&least);
    if (both_one) rc = measure_gemv_run(m, &least, &operation, err);
    if (!rc && both_few) rc = measure_few(m, err);
    if (!rc && both_short) rc = measure_short(m, both_wide, err);
    if (!rc && !tensor_format_is_plain(m->format)) rc = measure_expand_blocks(m, operation, err);
    if (!rc && both_one && measure_chains_take(m)) {
        double in_chain = 0;
        rc = measure_chain_layers(m, operation, &in_chain, err);
    }
    return rc ? rc : measure_set_step(m, 0, 1, err);
}

int measure_format_run(struct measure *m, enum tensor_format format, double seconds, struct helm_err *err)
{
    struct measure_kernels *k = m->kernels;
    const struct measure_shape *large = k->large;
    const uint64_t bytes = m->weight_bytes;
    m->format = format;
    m->budget_s = seconds / VALUES;
    m->weight_bytes = bytes / 2 / 4096 * 4096;
    if (m->emulated || measure_layers_of(m, large) == 0) k->large = k->small;
    if (m->emulated && measure_layer_bytes(k->small, format) < bytes)
        m->weight_bytes = measure_layer_bytes(k->small, format);
    int rc = measure_all(m, err);
    k->large = large;
    m->weight_bytes = bytes;
    m->budget_s = 0;
    m->format = FORMAT_BF16;
    return rc;
}
