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

enum plan_home { PLAN_HOME_GPU, PLAN_HOME_CPU, PLAN_HOME_STREAM, PLAN_HOME_DIRECT, PLAN_HOME_DISK };
const char *plan_home_name(enum plan_home home); /* "gpu", "cpu", "stream", "direct", "disk" */

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
    struct ledger host, vram;
};

/* The JSON form, which people edit and helm-plan prints (it adds members; unknown ones are ignored):
 *
 *   {"layers": 28, "context_tokens": 4096, "step_tokens": 512, "slots": 8,
 *    "page_tokens": 32, "page_count": 1024, "kv_dtype": "bf16" | "f16" | "f32",
 *    "stages": [{"layers": [first, last], "home": "gpu"|"cpu"|"stream"|"direct"|"disk", "bytes": N}, ...],
 *    "host": {"limit": N | null (no limit), "lines": [{"what": TEXT, "bytes": N}, ...], "total": N},
 *    "vram": the same}
 *
 * Every member shown must be there. Stages cover 0 .. layers-1 in order; a ledger's lines add up to its total
 * (HELM_E_MISMATCH) and the total is within its limit (HELM_E_CAPACITY).
 *
 * plan_to_json: a fresh object (json_decref), NULL without memory. plan_from_json leaves *plan empty on an
 * error. */
json_t *plan_to_json(const struct plan *plan);
HELM_MUST_CHECK int plan_from_json(const json_t *json, struct plan *plan, struct helm_err *err);
void plan_free(struct plan *plan);

#endif
