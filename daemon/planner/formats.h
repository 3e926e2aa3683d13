/* In which formats a plan's weights lie.
 *
 * Called while a plan is made, searched and priced. Weights lie as they are in the files, or as --weights
 * says; of those the planner makes some packed bf16: streamed weights cross the link sooner so, the CPU reads
 * fewer bytes where its kernels are fast enough, and more weights fit into VRAM. Pure; the tables are the
 * caller's. */
#pragma once

#include "daemon/planner/memory/ledger.h"
#include "daemon/planner/profile/profile.h"

/* ---- of all weights: --weights ---- */

/* Reads the option: "stored" (NULL), or the name of a mixture of blocks. HELM_E_USAGE lists them. */
HELM_MUST_CHECK int formats_read(const char *name, const struct mixture **weights, struct helm_err *err);
/* Has the model's matrices of single numbers lie in the mixture's formats (mixture_format_at_load), with the
 * bytes of those. Sizes and prices are of them from then on; workers convert at load. NULL: leaves them as
 * stored. */
void formats_lay(struct model *model, const struct mixture *weights);
/* The same of what a plan has so: its mixture, and blocks of single stages whose matrices all take them. */
void formats_lay_as_planned(struct model *model, const struct plan *plan);
/* Names the mixture in a plan, so that workers know. HELM_E_MISMATCH: the plan has another. */
HELM_MUST_CHECK int formats_name_weights(const struct model *model, struct plan *plan, struct helm_err *err);

/* Warns of formats that the profile has no rates of: forecasts are then as if of bf16. */
void formats_warn_unmeasured(const struct model *model, const struct profile *profile);

/* ---- of a plan; there is room for its formats (plan_formats_clear) ---- */

/* Formats of units at home in VRAM: the first `units` of those that can be packed are, the others are as
 * stored; and the head where it is there. */
void formats_set_vram(const struct ledger_case *c, uint32_t units, bool head, struct plan *plan);
/* How many of them can be; whether the head can: it is there, and not as the embedding. */
uint32_t formats_packable(const struct ledger_case *c, const struct plan *plan);
bool formats_head_packable(const struct ledger_case *c, const struct plan *plan);
/* Formats of units in host memory, once all lists are final: packed is what every list streams, where the
 * wish is to pack; and what some list gives to the CPU, where that computes with packed weights. */
void formats_set_host(const struct ledger_case *c, struct plan *plan);
/* Whether a unit lies packed and some list gives it to the CPU. */
bool formats_packed_on_cpu(const struct plan *plan, uint32_t unit);
/* Whether the model's weights, and what computes with them, take the plan's formats: HELM_E_UNSUPPORTED. */
HELM_MUST_CHECK int formats_check(const struct ledger_case *c, const struct plan *plan, struct helm_err *err);

/* ---- by unit and home, for prices: the units, then the head ---- */

#define FORMATS_ROWS (UNIT_PARTS * MODEL_LAYERS_MAX + 1)

/* The wish for weights in host memory; as stored in VRAM, and in both. */
void formats_wished(const struct ledger_case *c, enum tensor_format (*format)[PLAN_HOMES]);
/* In VRAM: packed is all that can be; or as in the plan, where it has them there. */
void formats_all_vram(const struct ledger_case *c, enum tensor_format (*format)[PLAN_HOMES]);
void formats_plan_vram(const struct plan *plan, enum tensor_format (*format)[PLAN_HOMES]);
