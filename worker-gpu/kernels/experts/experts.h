/* The GPU's kernels for mixtures of experts: launchers beside those of kernels.h, under the same rules.
 *
 * A sparse MLP is a router, of each token's chosen experts gate and up, and their downs weighted and added to
 * the residual stream. The ids stay in device memory: no launch depends on them, so a captured graph is
 * replayed for whatever experts a step chooses.
 *
 * Experts' matrices of one role lie in slots of equal stride. `slot` says in which slot an expert lies, or
 * that it is absent: then its part of the sums is left out, and the worker that has it adds it. So all in
 * VRAM, a part of a layer and a pool of slots that change between steps are one case.
 *
 * Sums over a token's experts are taken in the order of choice, in fp32: the same choice and slots give the
 * same bits, whatever other tokens are there. */
#pragma once

#include "worker-gpu/kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "common/model/router.h"

#define GPUK_SLOT_ABSENT 0xffffffffu
/* Set, unless it is absent: the expert of the number in the other bits is read where it lies in host
 * memory. */
#define GPUK_SLOT_HOST 0x80000000u

/* One role's matrices [rows][cols] of a layer's experts. Those in packed bf16, which a few tokens' launchers
 * take, are one packed matrix: `weight` is where its first group lies, `host` its table of offsets, in device
 * memory; slot NULL, stride 0. */
struct gpuk_experts {
    enum tensor_format format;
    uint32_t experts;     /* of the layer */
    uint32_t rows, cols;  /* of one matrix */
    const uint32_t *slot; /* [experts]; NULL: expert e is in slot e, none is absent; gate and up share it */
    const void *weight;   /* of slot 0, 16-byte aligned */
    uint64_t stride;      /* bytes from one slot's matrix to the next, a multiple of 16 */
    const float *bias;    /* [experts][rows], by expert; or NULL */
    /* Expert 0 in host memory, for slots that lie there; the same stride; not for chunks. Bytes next to a
     * matrix are readable up to whole 128 bytes. */
    const void *host;
};
/* The experts that a step's tokens chose. A token's experts differ: kernels have room for as many pairs of an
 * expert as there are tokens. */
struct gpuk_choice {
    uint32_t chosen; /* of each token */
    uint32_t *id;    /* [tokens][chosen] */
    float *weight;   /* [tokens][chosen] */
    /* [experts]: multiplies weights as they are chosen, by gpuk_route and gpuk_experts_ask; NULL: nothing
     * does */
    const float *scale;
};

/* out[token * out_stride + e] = weight[e] . x[token] + bias[e] of the first *count tokens, x normalised first
 * if there is a norm (as gpuk_linear_args.norm); all fp32. A token has the same bits among any others, where
 * they are up to GPUK_BATCH_MAX, and where they are more. */
struct gpuk_router_logits {
    const float *weight, *bias; /* [experts][cols]; [experts] or NULL */
    const float *x, *norm;      /* [token * x_stride + i]; [cols] or NULL */
    float *out;
    uint32_t experts, cols, x_stride, out_stride;
    float eps;
};
/* The workspace decides how many tokens a launch has, and nothing else; one of GPUK_MATMUL_WORKSPACE bytes
 * takes some thousand. */
HELM_MUST_CHECK int gpuk_router_logits(const struct gpuk_router_logits *args, uint32_t tokens,
                                       const uint32_t *count, void *workspace, size_t workspace_bytes,
                                       uint32_t flags, void *stream, struct helm_err *err);
/* id and weight of each of the first *count tokens from its logits, logits[token * experts + i], as
 * router_choose defines (ids the same wherever logits are; weights within a few units of the last place).
 * choice_bias: [experts] or NULL. */
HELM_MUST_CHECK int gpuk_route(const struct model_router *router, const uint32_t *count, uint32_t tokens,
                               const float *logits, const float *choice_bias, const struct gpuk_choice *out,
                               uint32_t flags, void *stream, struct helm_err *err);

/* For all launchers here: count NULL means all tokens.
 *
 * act[token][j][row] = glu(gate, up) of expert id[token][j] over x[token * x_stride + i], normalised first if
 * there is a norm (as gpuk_linear_args.norm). Up to GPUK_BATCH_MAX tokens. An expert that several tokens
 * chose is read once where that is faster. An absent expert's act is not written. */
struct gpuk_experts_glu {
    struct gpuk_experts gate, up; /* of one format and shape */
    enum glu_kind glu;
    struct gpuk_choice choice;
    /* The choice is made here first, as gpuk_route makes it of these, and stored: a launch less. NULL (all
     * three): it has been made. The router is read before the launcher returns. */
    const struct model_router *router;
    const float *logits, *choice_bias;
    const float *x, *norm;
    uint32_t x_stride;
    float eps;
    float *act; /* dense */
    /* The same experts' matrices that read act next: asked into the L2 meanwhile where that is possible; or
     * NULL. */
    const struct gpuk_experts *ahead;
};
HELM_MUST_CHECK int gpuk_experts_glu(const struct gpuk_device *device, const struct gpuk_experts_glu *args,
                                     uint32_t tokens, const uint32_t *count, void *workspace, uint32_t flags,
                                     void *stream, struct helm_err *err);
/* out[token * out_stride + row] = residual[the same] + sum over j of weight[token][j] * (down of id[token][j]
 * over act[token][j])[row]; residual may be out. */
struct gpuk_experts_down {
    struct gpuk_experts down;
    struct gpuk_choice choice;
    const float *act; /* [tokens][chosen][cols] */
    const float *residual;
    float *out;
    uint32_t out_stride;
    /* gpuk_experts_glu in front, which lets this kernel begin when it has begun itself, makes the choice of
     * these: a kernel may make it again instead of waiting for it. router NULL: something else made it. */
    const struct model_router *router;
    const float *logits, *choice_bias;
};
HELM_MUST_CHECK int gpuk_experts_down(const struct gpuk_device *device, const struct gpuk_experts_down *args,
                                      uint32_t tokens, const uint32_t *count, void *workspace, uint32_t flags,
                                      void *stream, struct helm_err *err);
/* Workspace of both launches; cols: of gate and up. */
size_t gpuk_experts_workspace_bytes(uint32_t tokens, uint32_t chosen, uint32_t cols);

/* ---- chunks: any number of tokens, grouped by expert ---- */

/* Pairs (token, j) in the order of experts, within one by token; those of absent experts are left out. */
struct gpuk_groups {
    uint32_t *first; /* [experts + 1]: pairs first[e] .. first[e + 1) chose expert e */
    uint32_t *pair;  /* [tokens * chosen]: token * chosen + j */
    uint32_t *place; /* [tokens * chosen]: where a pair stands in `pair`, or GPUK_SLOT_ABSENT */
};
HELM_MUST_CHECK int gpuk_experts_group(const struct gpuk_choice *choice, uint32_t experts,
                                       const uint32_t *slot, const uint32_t *count, uint32_t tokens,
                                       const struct gpuk_groups *out, uint32_t flags, void *stream,
                                       struct helm_err *err);
/* Grouped products on tensor cores. x: [tokens][cols] of dtype (f16 or bf16: the format's product dtype),
 * normalised. act: [place of pair][rows] of act_dtype, any: what down's product takes. */
struct gpuk_experts_glu_chunk {
    struct gpuk_experts gate, up;
    enum glu_kind glu;
    uint32_t chosen;
    struct gpuk_groups groups;
    enum dtype dtype, act_dtype;
    const void *x;
    void *act;
};
HELM_MUST_CHECK int gpuk_experts_glu_chunk(const struct gpuk_device *device,
                                           const struct gpuk_experts_glu_chunk *args, uint32_t tokens,
                                           uint32_t flags, void *stream, struct helm_err *err);
/* sums[place of pair][row] = down over act[place], fp32, without weight; then gpuk_experts_sum adds them:
 * out[token * out_stride + row] = residual[the same] + sum over j of weight * sums; residual may be out,
 * NULL: 0. */
struct gpuk_experts_down_chunk {
    struct gpuk_experts down;
    uint32_t chosen;
    struct gpuk_groups groups;
    enum dtype dtype;
    const void *act;
    float *sums;
};
HELM_MUST_CHECK int gpuk_experts_down_chunk(const struct gpuk_device *device,
                                            const struct gpuk_experts_down_chunk *args, uint32_t tokens,
                                            uint32_t flags, void *stream, struct helm_err *err);
HELM_MUST_CHECK int gpuk_experts_sum(const struct gpuk_choice *choice, const struct gpuk_groups *groups,
                                     const float *sums, uint32_t rows, const uint32_t *count, uint32_t tokens,
                                     const float *residual, float *out, uint32_t out_stride, uint32_t flags,
                                     void *stream, struct helm_err *err);

#ifdef __cplusplus
}
#endif
