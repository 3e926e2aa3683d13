/* A plan: which layers are computed where, and the ledger of all memory that follows from it.
 *
 * Made by daemon/planner, sent to the workers and to clients as JSON, saved and edited by hand. Pure data. */
#ifndef HELM_COMMON_PLAN_H
#define HELM_COMMON_PLAN_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

#define PLAN_STAGES_MAX      2048
#define PLAN_LINES_MAX       32
#define PLAN_SLOTS_MAX       64
#define PLAN_TOKENS_MAX      (1u << 28)
#define PLAN_PAGE_TOKENS_MAX (1u << 16)
#define PLAN_BYTES_MAX       ((uint64_t)INT64_MAX) /* what a JSON number holds */

/* `cpu` is 0: a plan that says nothing of a home computes there. */
enum plan_home { PLAN_HOME_CPU, PLAN_HOME_GPU, PLAN_HOME_STREAM, PLAN_HOME_DIRECT, PLAN_HOME_DISK };
const char *plan_home_name(enum plan_home home); /* "cpu", "gpu", "stream", "direct", "disk" */
/* Which worker computes on weights of this home: PLAN_HOME_CPU or PLAN_HOME_GPU. */
enum plan_home plan_home_worker(enum plan_home home);

struct plan_stage {
    uint32_t first, last; /* layers, inclusive */
    enum plan_home home;
    uint64_t bytes; /* of weights */
};

struct ledger_line {
    char what[48];
    uint64_t bytes;
};
struct ledger {
    uint64_t limit; /* UINT64_MAX: none */
    struct ledger_line line[PLAN_LINES_MAX];
    uint32_t line_count;
    uint64_t total;
};
/* Adds a line and its bytes to the total (saturating). Past PLAN_LINES_MAX lines the last one becomes "other"
 * and takes the rest, so that the lines always add up. */
void ledger_add(struct ledger *ledger, const char *what, uint64_t bytes);

struct plan {
    uint32_t layers;
    uint32_t context_tokens, step_tokens, slots;
    uint32_t page_tokens, page_count;
    char kv_dtype[8];
    struct plan_stage *stages; /* covers 0 .. layers-1 in order, no gap, no overlap */
    uint32_t stage_count;
    enum plan_home embed; /* where the embedding is: `cpu` or `gpu` */
    enum plan_home head;  /* where final norm, lm_head and sampling are: that worker writes the result */
    struct ledger host, vram;
};

/* The way of one step through the workers: spans of one worker each, in order; neighbours differ in worker.
 * Between two spans the residual stream of all the step's tokens is handed over by the lane of that
 * direction (lane.h). */
struct plan_span {
    enum plan_home worker; /* PLAN_HOME_CPU or PLAN_HOME_GPU */
    bool embed, head;
    uint32_t first, count; /* layers; count may be 0 (a span of the embedding or the head alone) */
    uint32_t kv_first;     /* of `first` among the worker's own layers */
    uint32_t ticket_in;    /* 1, 2, ... in its lane and step; 0: the step begins here */
    uint32_t ticket_out;   /* likewise; 0: it ends here */
    bool last_in;          /* no later hand-over of this step comes by the same lane */
};
/* At most stage_count + 2 spans, in a fresh array (free()). */
HELM_MUST_CHECK int plan_spans(const struct plan *plan, struct plan_span **spans, uint32_t *count,
                               struct helm_err *err);
/* Layers that this worker computes, and whether it has anything to do at all. */
uint32_t plan_layers_of(const struct plan *plan, enum plan_home worker);
bool plan_uses(const struct plan *plan, enum plan_home worker);

/* The JSON form, which people edit and helm-plan prints (it adds members; unknown ones are ignored):
 *
 *   {"layers": 28, "context_tokens": 4096, "step_tokens": 512, "slots": 8,
 *    "page_tokens": 32, "page_count": 1024, "kv_dtype": "bf16" | "f16" | "f32",
 *    "stages": [{"layers": [first, last], "home": "gpu"|"cpu"|"stream"|"direct"|"disk", "bytes": N}, ...],
 *    "embed": "cpu"|"gpu" (default: where the first stage is computed),
 *    "head": "cpu"|"gpu" (default: where the last stage is computed),
 *    "host": {"limit": N | null (no limit), "lines": [{"what": TEXT, "bytes": N}, ...], "total": N},
 *    "vram": the same}
 *
 * Every member shown without a default must be there. Stages cover 0 .. layers-1 in order; a ledger's lines
 * add up to its total (HELM_E_MISMATCH) and the total is within its limit (HELM_E_CAPACITY).
 *
 * plan_to_json: a fresh object (json_decref), NULL without memory. plan_from_json leaves *plan empty on an
 * error. */
json_t *plan_to_json(const struct plan *plan);
HELM_MUST_CHECK int plan_from_json(const json_t *json, struct plan *plan, struct helm_err *err);
void plan_free(struct plan *plan);

#endif
