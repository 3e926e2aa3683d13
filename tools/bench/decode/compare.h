/* helm-bench-decode --compare: what each way of keeping memory busy is worth while one token is computed.
 *
 * Called by helm_bench_decode.c with an engine that is loaded and idle. */
#ifndef HELM_TOOLS_BENCH_DECODE_COMPARE_H
#define HELM_TOOLS_BENCH_DECODE_COMPARE_H

#include <stdio.h>

#include "worker-cpu/local.h"

struct compare_options {
    struct local *local;
    uint32_t start;  /* position of the token that is computed again and again; what is before it is in the
                        cache */
    uint32_t rounds; /* each of one step a variant, with a plain read after it */
    double (*read)(void *ctx); /* one plain read of the weights, GB/s */
    void *read_ctx;
};
HELM_MUST_CHECK int compare_run(const struct compare_options *options, FILE *out, struct helm_err *err);

#endif
