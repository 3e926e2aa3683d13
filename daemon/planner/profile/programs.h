/* How long a model's own programs take on this machine: seconds of each kind of half layer, and of the head.
 *
 * Measured by helm-profile with the worker's engine (tools/profile/programs.c), kept beside the profile for
 * each model's shapes and formats, read by helmd and helm-plan. cost.c prices what was measured by it, and
 * everything else by the rates of profile.h. Pure data; docs/planner-programs.md has the method and the
 * file. */
#pragma once

#include <jansson.h>

#include "common/base/digest.h"
#include "common/base/units.h"
#include "common/model/model.h"

/* The version of the file, and of the method of measuring: a new one has models measured again. */
#define PROGRAMS_VERSION   3
#define PROGRAMS_NAME_TEXT 64
#define PROGRAMS_KINDS_MAX 32 /* more kinds than that have prices by rates */
#define PROGRAMS_CELLS_MAX 32
#define PROGRAMS_BYTES_MAX ((size_t)MIB)

/* The ways in which the CPU multiplies: with weights as they are stored, the same with activations rounded to
 * int8, packed ones. After them the same in invariant plans (common/plan/schedule.h): way +
 * PROGRAMS_INVARIANT. */
enum programs_way {
    PROGRAMS_EXACT,
    PROGRAMS_INT8,
    PROGRAMS_PACKED,
    PROGRAMS_INVARIANT,
    PROGRAMS_WAYS = 2 * PROGRAMS_INVARIANT
};

/* One step's time of such a half layer, the median of its samples, with the 10th and 90th percentile. A step
 * of up to ENGINE_FEW_TOKENS tokens has one token a row, each with `context` positions; a longer one is a
 * chunk of one row whose last token sees `context`. Half layers that read no cache, and the head, have
 * context 0; the head's tokens are sampled rows. */
struct programs_cell {
    uint32_t tokens, context;
    double seconds, low, high;
    double beside; /* seconds while copies to the device flow; 0: not measured */
};
struct programs_times {
    struct programs_cell cell[PROGRAMS_CELLS_MAX]; /* tokens rising, then context */
    uint32_t count;
};

/* Those of the GPU, with all at home in VRAM as it is stored: as most plans run them, and as invariant ones
 * do. */
enum programs_gpu_way { PROGRAMS_GPU, PROGRAMS_GPU_INVARIANT, PROGRAMS_GPU_WAYS };

struct programs_kind {
    uint64_t signature;            /* programs_signature of its units */
    char name[PROGRAMS_NAME_TEXT]; /* "attention of q4_k and q6_k", for people */
    struct programs_times cpu[PROGRAMS_WAYS];
    struct programs_times gpu[PROGRAMS_GPU_WAYS];
};
struct programs {
    char fingerprint[72]; /* of the profile's machine */
    char key[DIGEST_TEXT];
    char made[32], kv_dtype[8];
    uint32_t busy_percent; /* of the processors, that other programs took meanwhile */
    struct programs_kind kind[PROGRAMS_KINDS_MAX];
    uint32_t kinds;
    bool gpu_tried; /* the device was measured, whatever came of it */
    /* a step of the GPU in front of its half layers, the embedding included */
    struct programs_times gpu_begin[PROGRAMS_GPU_WAYS];
};

/* A digest of all that a half layer's time depends on: its operations, the shapes and formats of its tensors,
 * its window, its state. The unit after the last one is the head. */
uint64_t programs_signature(const struct model *model, uint32_t unit);
/* The kinds of a model without their times; a model of more kinds has the first ones. */
void programs_list(const struct model *model, struct programs *programs);
/* The fewest layers, in order, that have all kinds: [MODEL_LAYERS_MAX] of them at most. Returns how many. */
uint32_t programs_layers(const struct model *model, const struct programs *programs, uint32_t *layer);
/* The kind of a unit, or NULL. */
const struct programs_kind *programs_find(const struct programs *programs, uint64_t signature);

/* Files have this name: the fingerprint, the kinds, the type of the cache and the version. */
void programs_key(const char *fingerprint, const char *kv_dtype, struct programs *programs);
/* Where one with this key is kept (profile_cache_path). */
HELM_MUST_CHECK int programs_path(const struct programs *programs, char *path, size_t size,
                                  struct helm_err *err);

/* Whether some of the CPU's are there. */
bool programs_has_cpu(const struct programs *programs);
/* The GPU's could not be measured: there are none. */
void programs_forget_gpu(struct programs *programs);

/* ---- reading them off ---- */

struct programs_price {
    double seconds, beside; /* beside: 0 where that was not measured */
    double spread;          /* half of the way from low to high, in parts of the seconds */
};
/* Puts a cell in its place, in that of one of the same step; ignored where the table is full. */
void programs_put(struct programs_times *times, const struct programs_cell *cell);
/* The time of a step. Straight lines lead from one context to the other and on, and from one number of tokens
 * to the next: in the logarithms of both, and from LEDGER_STEP_TOKENS on, of which longer chunks consist, as
 * they are. False: unmeasured, also of more than four times as many tokens as any cell has. */
bool programs_at(const struct programs_times *times, double tokens, double context,
                 struct programs_price *price);

/* ---- the file ---- */

/* {"helm_programs": 2, "fingerprint", "key", "made", "kv_dtype", "busy_percent", "gpu": BOOL, "gpu_begin":
 * [...], "gpu_invariant_begin": [...], "kinds": [{"name", "signature",
 *  "exact" | "int8" | "packed" | "invariant_exact" | ... | "gpu" | "gpu_invariant": [[tokens, context,
 *    seconds, low, high, beside], ...]}, ...]}. NULL: no
 *  memory. */
json_t *programs_to_json(const struct programs *programs);
/* HELM_E_FORMAT names what is wrong; *programs has no kinds then. */
HELM_MUST_CHECK int programs_from_json(const json_t *json, struct programs *programs, struct helm_err *err);
HELM_MUST_CHECK int programs_parse(const char *what, const char *text, size_t bytes,
                                   struct programs *programs, struct helm_err *err);
/* Reads what is kept of the model's programs on the machine of this fingerprint ("": of none), with this type
 * of cache. *programs has the model's kinds and their key, and `path` their file's name or "", also where it
 * fails. HELM_E_NOT_FOUND: nothing is kept. */
HELM_MUST_CHECK int programs_kept(const struct model *model, const char *fingerprint, const char *kv_dtype,
                                  struct programs *programs, char *path, size_t size, struct helm_err *err);
/* HELM_E_NOT_FOUND: there is none. HELM_E_MISMATCH: it has another key than *programs, which it replaces. */
HELM_MUST_CHECK int programs_read(const char *path, struct programs *programs, struct helm_err *err);
