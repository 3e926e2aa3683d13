/* The GPU's kernels for experts that another processor computes with, too: launchers beside those of
 * experts.h, under the same rules.
 *
 * Which of a layer's experts lie in VRAM a table says, which changes between steps. Some chosen experts are
 * missing there: the GPU reads some of these where they lie in host memory, and asks the other processor for
 * the rest, in the words of common/shared/arena_layout.h, through a lane in host memory. Each expert is one
 * processor's, whatever number of tokens chose it. x + (the GPU's sum, in the order of choice) + (the other's
 * sum, in the order of choice): in this order. */
#pragma once

#include "worker-gpu/kernels/experts/experts.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Makes the choice, as gpuk_route does, where there is a router; assigns every expert to a processor, and
 * asks the CPU for its own. */
struct gpuk_experts_ask {
    const struct model_router
        *router; /* NULL: the choice has been made, of any number of tokens; read before it returns */
    const float *logits, *choice_bias;
    struct gpuk_choice choice;
    uint32_t experts;
    const uint32_t *table; /* [experts]: its slot in VRAM, or GPUK_SLOT_ABSENT */
    /* One word on the device: how many of 1,000 of the chosen experts that are missing are read in host
     * memory, rounded: those with the lowest numbers. NULL: none. */
    const uint32_t *direct_permille;
    uint32_t *slot; /* [experts] out: table, and where the GPU reads one in host memory GPUK_SLOT_HOST | its
                       number */
    const float *x; /* [tokens][width] */
    uint32_t width;
    float *lane; /* [capacity][width] x; [capacity][chosen] numbers, GPUK_SLOT_ABSENT: the GPU's; likewise
                    weights */
    uint32_t capacity; /* tokens; at least those of the step */
    uint32_t *seen;    /* [tokens][chosen] in host memory: what was chosen; or NULL */
    /* A word in host memory that becomes `ticket` when all of the lane is there; NULL: whoever launches this
     * sees to it. With a router alone. */
    uint32_t *bell;
    uint32_t ticket;
};
HELM_MUST_CHECK int gpuk_experts_ask(const struct gpuk_experts_ask *args, uint32_t tokens,
                                     const uint32_t *count, uint32_t flags, void *stream,
                                     struct helm_err *err);
/* out[token * width + i] = x[the same] + sum[the same]; sum lies in host memory, out may be x, or there
 * too. */
struct gpuk_experts_add {
    const float *x, *sum;
    float *out;
    uint32_t width;
    /* A word in host memory: sum is there as soon as it is `ticket` or more; NULL: it is there. */
    const uint32_t *bell;
    uint32_t ticket;
};
HELM_MUST_CHECK int gpuk_experts_add(const struct gpuk_experts_add *args, uint32_t tokens,
                                     const uint32_t *count, uint32_t flags, void *stream,
                                     struct helm_err *err);

#ifdef __cplusplus
}
#endif
