/* Where the drafts of `--speculate auto` come from, and their forecast: found in the text, or made by the
 * model's own layer of drafts where a plan with that layer is faster, or by a draft model, if there is one.
 *
 * Called by daemon/start/planning.c and helm-plan once a plan without the layer is made. Owns nothing. */
#pragma once

#include "daemon/planner/invariant.h"

/* A planned model: all that another plan overwrites. The caller's, which frees them. */
struct draft_layer_planned {
    struct model *model;
    struct plan *plan;
    struct arena_spec *arena;
    struct planner_request *request;
    struct profile *profile;
    struct invariant *invariant;
    /* Reads the model at `path` with its layer into *model and lays its plan into *plan; both are empty. */
    int (*lay_with_layer)(void *of, const char *path, struct helm_err *err);
    void *of;
};
/* Likeliness that the forecast of drafts found in a text goes by. */
#define DRAFT_FOUND_RIGHT 0.8
#define DRAFT_LAYER_TEXT  400

/* If the model has a layer of drafts, and there is no draft model, makes a second plan with it. If that gains
 * DRAFT_GAIN_LEAST without shortening the context, *planned is that plan from here on; otherwise it is what
 * it was.
 * `text`: where drafts come from, why, and token/s with them and without. HELM_E_NOMEM. */
HELM_MUST_CHECK int draft_layer_decide(const struct draft_layer_planned *planned, char text[DRAFT_LAYER_TEXT],
                                       struct helm_err *err);
