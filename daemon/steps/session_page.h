/* A KV page, or a page of windows, as sessions have it: one block of bytes, [layer][K, V][kv_head] of all
 * layers of the model that keep such pages, whichever worker computes a layer (kv_layout.h has a layer's
 * bytes; proto/helm.proto the rest).
 *
 * Called by sessions.c. Pure but for the arena's pages. With one tier the cells of the GPU's layers lie in
 * VRAM alone: they are taken from, or put into, the arena's session region, and a step of STEP_KV_OUT or
 * STEP_KV_IN does the rest. */
#pragma once

#include <stdbool.h>

#include "common/plan/plan.h"
#include "common/shared/arena.h"
#include "daemon/children/workers.h"
#include "daemon/steps/request.h"

struct session_page {
    const struct plan *plan;   /* borrowed */
    const struct arena *arena; /* borrowed */
    enum state_kind kind;      /* of its layers: STATE_PAGES, or STATE_WINDOW */
    struct kv_layout kv;       /* of all such layers */
    uint64_t bytes;
    bool moves; /* some cells lie in VRAM alone */
};

/* HELM_E_MISMATCH: the arena has no room for what lies in VRAM alone. */
HELM_MUST_CHECK int session_page_init(struct session_page *p, const struct plan *plan,
                                      const struct arena *arena, enum state_kind kind, struct helm_err *err);
/* bytes[p->bytes] from the page; where `moves`, after a step of STEP_KV_OUT. */
void session_page_read(const struct session_page *p, uint32_t page, unsigned char *bytes);
/* And to the page; where `moves`, in front of a step of STEP_KV_IN. */
void session_page_write(const struct session_page *p, uint32_t page, const unsigned char *bytes);
/* Whether all its numbers are finite, and scales not negative: kernels multiply what a page has after a
 * sequence's last position by 0. *layer: of one that is not. */
bool session_page_is_finite(const struct session_page *p, const unsigned char *bytes, uint32_t *layer);

/* Whether all numbers of fixed states are finite: fp32, zeros where records leave room. */
bool session_state_is_finite(const unsigned char *state, uint64_t bytes);

/* ---- whether a session's pages are those of this daemon ----
 *
 * By their shape, and their origin as far as it shows in their bits. It is a digest, of an invariant plan
 * (common/plan/schedule.h) alone: of the version, the workers' kernels and devices, the homes and formats of
 * units in the list that computed the prompt, and how activations are rounded. Pages of one origin, model and
 * type of cache are the same for the same tokens. Known once workers are ready. */

/* 0: the plan is not invariant. exact: steps are STEP_EXACT. */
uint64_t session_origin_of(const struct plan *plan, const struct workers *workers, uint32_t list, bool exact);
/* The list of an invariant plan whose pages have this origin; 0 of another plan. False: none has it. */
bool session_origin_list(const struct plan *plan, const struct workers *workers, uint64_t origin, bool exact,
                         uint32_t *list);
/* Writes what differs between two shapes, in words; false: nothing does. */
bool session_shape_differs(const struct request_shape *from, const struct request_shape *to, char *text,
                           size_t room);
