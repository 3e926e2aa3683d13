/* Large experts in parts: each expert is cut along its inner dimension into experts of its own, whose sum it
 * is.
 *
 * A part has its share of gate's and up's rows and of down's columns. All that knows a model by its tables
 * sees `parts` times as many experts, of which a token chooses `parts` times as many: slots, copies, reads
 * over the link and the CPU's work go by smaller pieces, and nothing else changes. Part j of expert e has the
 * number e * parts + j.
 *
 * The router is not cut: its rows are there once for each part, so the logits of an expert's parts are equal,
 * and the largest `parts` * chosen of them, of equal ones the lowest numbers first, are all parts of the
 * chosen experts. A softmax over parts gives each 1 / parts of its expert's weight, which the router's scale
 * makes up for.
 *
 * Called by helmd and helm-plan, which decide, and by workers, which cut as the plan says (plan.h,
 * expert_parts); by shards.c. Nothing is owned. */
#pragma once

#include "common/model/model.h"

/* An expert is cut if it is larger than this, as stored, until its parts are not; but into no more than keep
 * a token's choices below PARTS_CHOSEN_MAX and the router's rows below PARTS_EXPERTS_MAX, for which kernels
 * are made. */
#define PARTS_EXPERT_BYTES ((uint64_t)24 << 20)
#define PARTS_CHOSEN_MAX   8
#define PARTS_EXPERTS_MAX  256

/* The number of parts that an expert of the files is worth to be cut into: 1, or a power of two. */
uint32_t model_parts_wanted(const struct model *model);
/* Makes `parts` of each expert, in whatever number of parts they were before: 1 makes them whole again.
 * HELM_E_UNSUPPORTED: they cannot be cut so. Only the plan of a model that has none yet may be made from
 * it. */
HELM_MUST_CHECK int model_cut_experts(struct model *model, uint32_t parts, struct helm_err *err);
/* The tensor of whole experts, or of a whole MLP, as the files have it, that a cut one is made of; and where
 * row `row` of the cut one (of a vector: its value) lies in it. */
struct model_tensor parts_whole(const struct model_tensor *tensor);
struct parts_place {
    uint64_t at, bytes; /* of the whole tensor */
    bool zero;          /* it is not there: zeros */
};
struct parts_place parts_place_of(const struct model_tensor *tensor, uint64_t row);
