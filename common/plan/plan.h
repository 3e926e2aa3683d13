/* A plan: which parts of the model are computed where, and the ledger of all memory that follows from it.
 *
 * Made by daemon/planner, sent to the workers and to clients as JSON, saved and edited by hand. Pure data.
 *
 * The unit of a plan is half a layer: the attention half (norm, q k v, attention, o) or the MLP half (norm,
 * gate up, down). Between two units only the residual stream passes, so any cut there costs one hand-over.
 * Units are numbered through the model (common/model/unit.h).
 *
 * A plan has one list of stages for decode steps and may have further ones for steps of many tokens (phases).
 * A list is the units' homes in that phase; stages of several units exist in the JSON form alone. The decode
 * list says where the bytes are: a unit at home on `gpu` is in VRAM, every other is in the arena. It also
 * says where the KV cache of a layer is: with the worker that computes its attention half in decode. A
 * prefill list has the same units on `gpu`, and may compute the others by either worker (`cpu` or `stream`),
 * with one exception: where the cache is in VRAM no other processor can attend. Only the decode list has MLP
 * halves on `mixed` or `shared`; others have the latter on `stream`. A unit on `disk` is so in every list.
 *
 * Weights lie in memory in one of three ways: as they are stored in the files, converted as the plan's
 * mixture says (common/model/mixture.h), or converted without loss to another format
 * (common/formats/tensor_format.h), in which they also cross the link. The plan says which for each unit, for
 * the embedding and for the head. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/formats/linear_inputs.h"
#include "common/formats/tensor_format.h"
#include "common/model/mixture.h"
#include "common/model/unit.h"
#include "common/plan/home.h"

#define PLAN_STAGES_MAX      2048
#define PLAN_LINES_MAX       32
#define PLAN_SLOTS_MAX       64
#define PLAN_SNAPSHOTS_MAX   (1u << 16)
#define PLAN_TOKENS_MAX      (1u << 28)
#define PLAN_PAGE_TOKENS_MAX (1u << 16)
#define PLAN_STEPS_IN_FLIGHT 2 /* one that is computed, one that is next */
#define PLAN_PLACEMENTS_MAX  (1u << 14)
#define PLAN_MOVES_MAX       4096 /* experts that a step brings */
#define PLAN_MOVE_COST       600
#define PLAN_MOVE_COST_MAX   100000
#define PLAN_BYTES_MAX       ((uint64_t)INT64_MAX) /* what a JSON number holds */

#define PLAN_AS_STORED FORMAT_COUNT

#define PLAN_PREFILLS_MAX 2
#define PLAN_PHASES_MAX   (1 + PLAN_PREFILLS_MAX)
#define PLAN_LISTS_MAX    (2 * PLAN_PHASES_MAX) /* of prompts: schedule.h */

/* A layer keeps this of a sequence (state.h). */
struct plan_state {
    enum state_kind kind;
    uint64_t bytes; /* of the record, of STATE_FIXED */
};

struct plan_unit {
    enum plan_home home[PLAN_PHASES_MAX];
    enum tensor_format format; /* of its matrices in their memory; PLAN_AS_STORED: as in the files */
    struct plan_state state;   /* of an attention half, where plan.has_states */
    /* Bytes of weights, and those that a step of one token reads, by phase, for people. In a plan that was
     * read from JSON the first unit of each stage has the stage's. */
    uint64_t bytes[PLAN_PHASES_MAX], token_bytes[PLAN_PHASES_MAX];
};

/* Experts of the units that the decode list has at home on `mixed`. All of them lie in host memory; VRAM has
 * slots for copies of some. In a step of few tokens the GPU reads some of the chosen ones that are missing
 * over the link. */
struct plan_experts {
    uint32_t slots;           /* of each such unit, 1 or more; 0: there are no such units */
    uint32_t direct_permille; /* of the missing ones of a step of few tokens, how many of 1,000 it reads */
    uint32_t moves;           /* that a step brings to VRAM at most, in the stead of others; 0: they stay */
    /* A move's price, in 1,000ths of what finding an expert in VRAM saves (common/experts/slots.h) */
    uint32_t move_cost;
    /* For forecasts: of the chosen ones, how many are in VRAM; 0: as if each was chosen alike */
    uint32_t hit_permille;
    /* [mixed units][slots]: those in VRAM at first, owned; NULL: of each the lowest numbers, of parts those
     * that are the first of their experts, then the second */
    uint32_t *first;
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

/* A plan's sizes of one device; of the CPU, slots and ring of weights on disk alone. */
struct plan_device {
    /* of its memory that streamed weights pass through, of the CPU's those that are read from disk; 0: none
     * do */
    uint64_t ring_bytes;
    /* Pages that its memory has room for, of the layers whose cache it holds. 0: all of them, and these
     * layers have no room in the arena. Else the cache has two tiers: every page has room for all layers in
     * the arena, where its cells are copied once it is full, and the newest pages of a sequence lie in VRAM
     * too. */
    uint32_t vram_page_count;
    struct plan_experts experts; /* of units at home on `mixed`; of the CPU, slots of those on `disk` */
};

struct placement;
struct plan {
    uint32_t layers;
    uint32_t draft_layers; /* of them the last ones, which make drafts: 1 or 0. They lie and are computed
                              where the head is */
    uint32_t context_tokens, step_tokens, slots;
    uint32_t page_tokens, page_count;
    struct plan_device device[PLAN_PROCESSORS];
    /* The watermark: places that are kept free as long as pages can lie in the arena alone. */
    uint32_t kv_free_places;
    /* With two tiers, in steps of few tokens: of the positions that lie in the arena alone, how many of 1,000
     * the GPU reads over the link itself. The CPU attends to the others, unless all rows together have no
     * more than kv_direct_positions there, or the layer's window is no longer than kv_direct_window: the GPU
     * reads all then. */
    uint32_t kv_direct_permille, kv_direct_positions, kv_direct_window;
    /* With two tiers: the pages of a piece in which a chunk brings what lies in the arena alone to VRAM
     * (workspace.h); 0: PLAN_PIECE_POSITIONS. */
    uint32_t kv_piece_pages;
    char kv_dtype[8];
    /* A token's numbers depend on its sequence alone (schedule.h). With two tiers the CPU attends to nothing
     * then. */
    bool invariant;
    /* [unit_count(layers) + 2], owned: the units in order; of the two after them, which are the embedding and
     * the head, only the format counts. */
    struct plan_unit *unit;
    /* "As in the files" is converted to this at load; NULL: it is as in the files */
    const struct mixture *weights;
    /* How each processor rounds the activations that it multiplies blocks with. LINEAR_INT8: to int8, for the
     * formats and numbers of tokens that it has kernels for; exact otherwise. */
    enum linear_inputs inputs[PLAN_PROCESSORS];
    /* Tokens of the shortest steps of the phases after decode: rising, all above 1. */
    uint32_t prefill_from[PLAN_PREFILLS_MAX];
    uint32_t prefill_count;
    /* Experts that each of the files is cut into (common/model/parts.h); 0 or 1: they are whole. Experts here
     * are such parts. */
    uint32_t expert_parts;
    /* For each unit that the decode list has at home on `shared`: how many of its MLP's rows lie in VRAM, the
     * first ones; 0 where there are none (share.h) */
    uint32_t shared_rows;
    bool has_states; /* its units say what each layer keeps of a sequence; otherwise all keep pages */
    uint32_t state_snapshots; /* that host memory has room for; 0 where no state is fixed */
    uint32_t draft_tokens; /* of a sequence in a step at most (docs/speculation.md); 0: no step has drafts */
    /* Layers with a window of window_tokens keep STATE_WINDOW: pages of pools of their own, with this many
     * (state.h); 0: they keep all pages, as others do */
    uint32_t window_tokens, window_page_count;
    bool host_table;           /* host memory has a table of per-layer embeddings, of which devices read rows
                                  (placement.h) */
    enum plan_processor embed; /* where the embedding is */
    enum plan_processor head;  /* where final norm, lm_head and sampling are: it writes the result */
    /* Where every matrix lies, by the lists and formats above (placement.h); NULL: not laid out yet. */
    struct placement *placement;
    uint32_t placement_count;
    struct ledger memory[PLAN_MEMORIES];
};

/* Phases: 0 is decode, i begins at prefill_from[i - 1] tokens. */
static inline uint32_t plan_phase_count(const struct plan *plan)
{
    return 1 + plan->prefill_count;
}
/* The fewest and the most tokens of a step of this phase, the longest step that a plan allows not being
 * looked at. */
static inline uint32_t plan_phase_from(const struct plan *plan, uint32_t phase)
{
    return phase ? plan->prefill_from[phase - 1] : 1;
}
static inline uint32_t plan_phase_last(const struct plan *plan, uint32_t phase)
{
    return phase < plan->prefill_count ? plan->prefill_from[phase] - 1 : UINT32_MAX;
}
/* The phase of a step of `tokens` tokens. Both workers and helmd ask this function, so they agree. */
uint32_t plan_phase_for(const struct plan *plan, uint32_t tokens);
/* The most tokens of any step in which this processor computes a unit or a part of one, up to
 * plan->step_tokens; 0: it computes none. Its buffers for q, k, v, gate and the like are of this size: where
 * the GPU computes every unit of long prompts, the CPU's are as small as for decode. */
uint32_t plan_most_tokens(const struct plan *plan, enum plan_processor processor);
/* Whether it computes this unit, or a part of it, in some phase. */
bool plan_computes(const struct plan *plan, enum plan_processor processor, uint32_t unit);
/* The format in which a unit's matrices lie, or those of the embedding or the head; PLAN_AS_STORED: as in the
 * files. */
static inline enum tensor_format plan_unit_format(const struct plan *plan, uint32_t unit)
{
    return plan->unit[unit].format;
}
static inline enum tensor_format plan_embed_format(const struct plan *plan)
{
    return plan->unit[unit_count(plan->layers)].format;
}
static inline enum tensor_format plan_head_format(const struct plan *plan)
{
    return plan->unit[unit_count(plan->layers) + 1].format;
}
static inline bool plan_format_varies(enum tensor_format format)
{
    return format != PLAN_AS_STORED && tensor_format_of(format)->variable;
}
/* Units at home in this memory whose matrices lie in this format. */
uint32_t plan_units_in(const struct plan *plan, enum plan_memory memory, enum tensor_format format);
/* Gives a plan that has its number of layers units: decode has all at this home, as stored. */
HELM_MUST_CHECK int plan_make_units(struct plan *plan, enum plan_home home, struct helm_err *err);
/* All as stored. This and the two below drop the plan's placements, which must be made anew. */
void plan_formats_clear(struct plan *plan);
void plan_set_unit_format(struct plan *plan, uint32_t unit, enum tensor_format format);
void plan_set_head_format(struct plan *plan, enum tensor_format format);
/* Drops the placements alone, for callers that change the memory that weights are in. */
void plan_drop_placements(struct plan *plan);
/* Units that a token passes through on its way to the head; those of layers that make drafts come after
 * them. */
static inline uint32_t plan_answer_units(const struct plan *plan)
{
    return unit_count(plan->layers - plan->draft_layers);
}
/* The list of a phase: a home for each of those units. Others are at home with the head. */
void plan_set_homes(struct plan *plan, uint32_t phase, const enum plan_home *home);

/* The way of one step through the processors: spans of one processor each, in order; neighbours differ.
 * Layers that make drafts have none: the head's processor computes them after the step. Between two spans the
 * residual stream of all the step's tokens is handed over by the lane of that link (lane.h). */
struct plan_span {
    enum plan_processor processor;
    bool embed, head;
    uint32_t first_unit, unit_count; /* the count may be 0 (a span of the embedding or the head alone) */
    uint32_t ticket_in;              /* 1, 2, ... in its lane and step; 0: the step begins here */
    uint32_t ticket_out;             /* likewise; 0: it ends here */
    uint32_t lane_in, lane_out;      /* plan_link_of; of no meaning where the ticket is 0 */
    bool last_in;                    /* no later hand-over of this step comes by the same lane */
};
/* The spans of one phase, in a fresh array (free()). */
HELM_MUST_CHECK int plan_spans(const struct plan *plan, uint32_t phase, struct plan_span **spans,
                               uint32_t *count, struct helm_err *err);
static inline struct plan_state plan_state_at(const struct plan *plan, uint32_t layer)
{
    return plan->has_states ? plan->unit[unit_of(layer, UNIT_ATTENTION)].state
                            : (struct plan_state){.kind = STATE_PAGES};
}
static inline bool plan_keeps_pages(const struct plan *plan, uint32_t layer)
{
    return plan_state_at(plan, layer).kind == STATE_PAGES;
}
static inline bool plan_keeps_window(const struct plan *plan, uint32_t layer)
{
    return plan_state_at(plan, layer).kind == STATE_WINDOW;
}
/* The processor that holds what a layer keeps of a sequence: that which computes its attention in decode. */
static inline enum plan_processor plan_keeper(const struct plan *plan, uint32_t layer)
{
    return plan_home_processor(plan->unit[unit_of(layer, UNIT_ATTENTION)].home[0]);
}
/* Layers whose KV cache this processor holds. */
uint32_t plan_layers_of(const struct plan *plan, enum plan_processor processor);
static inline uint32_t plan_expert_parts(const struct plan *plan)
{
    return plan->expert_parts ? plan->expert_parts : 1;
}
/* The vram_page_count of the device whose layers' cache has two tiers: at most one has. Whether there is
 * one. */
static inline uint32_t plan_kv_places(const struct plan *plan)
{
    uint32_t places = 0;
    for (int p = 0; p < PLAN_PROCESSORS; p++) places += plan->device[p].vram_page_count;
    return places;
}
static inline bool plan_kv_tiered(const struct plan *plan)
{
    return plan_kv_places(plan) != 0;
}
/* A plan's sizes of the device that computes units at home there; the same to change them. */
static inline const struct plan_device *plan_device_of(const struct plan *plan, enum plan_home home)
{
    return &plan->device[plan_home_processor(home)];
}
static inline struct plan_device *plan_device_at(struct plan *plan, enum plan_home home)
{
    return &plan->device[plan_home_processor(home)];
}
/* Units at home on `disk`: all with slots for their experts, or all whole, with one ring. */
uint32_t plan_disk_units(const struct plan *plan);
static inline uint32_t plan_disk_slots(const struct plan *plan)
{
    return plan_device_of(plan, PLAN_HOME_DISK)->experts.slots;
}
static inline uint64_t plan_disk_ring(const struct plan *plan)
{
    return plan_device_of(plan, PLAN_HOME_DISK)->ring_bytes;
}
/* The experts of the units at home on `mixed`. */
static inline const struct plan_experts *plan_experts(const struct plan *plan)
{
    return &plan_device_of(plan, PLAN_HOME_MIXED)->experts;
}
/* Whether the CPU attends to a part of that cache. Such a plan uses the CPU even if it computes no unit. */
static inline bool plan_kv_assisted(const struct plan *plan)
{
    return plan_kv_tiered(plan) && plan->kv_direct_permille < 1000;
}
/* Layers that have room in the pages of a memory: kv_layout.layers of its pool. The arena's pages have room
 * for the CPU's layers, or for all that keep pages, in the order of the model, where there are two tiers:
 * plan_kv_layer_in_arena. */
uint32_t plan_kv_layer_in_arena(const struct plan *plan, uint32_t layer);
uint32_t plan_kv_layers(const struct plan *plan, enum plan_memory memory);
/* The least that vram_page_count may be with two tiers: pages that one step of few tokens can append to, for
 * steps in flight two of every sequence. */
uint64_t plan_vram_pages_least(const struct plan *plan);
/* Whether VRAM has too few places for the pages that the longest chunk appends to beside those: then chunks
 * append in the arena (STEP_KV_ARENA), and long chunks need no more places than short ones. */
bool plan_appends_in_arena(const struct plan *plan);
/* The first page of a row that has a place after such a chunk: a row that decodes keeps its places, a prompt
 * has one only for the page that is not whole. */
static inline uint32_t plan_placed_from(uint32_t page_tokens, uint32_t start, uint32_t count)
{
    return (count <= page_tokens ? start : start + count) / page_tokens;
}
/* The default of kv_free_places: places that `slots` sequences newly need, on average, while the steps in
 * flight hold those that were given away. When more begin a page at once, the next step waits for these
 * steps. */
uint32_t plan_free_places(uint32_t slots, uint32_t page_tokens);
/* Places that are filled at most, as long as pages can lie elsewhere. */
uint32_t plan_places_filled(const struct plan *plan);
/* For forecasts: positions that lie in the arena alone, of each of `rows` rows of `context` positions. Rows
 * share the places of VRAM evenly and fill them up to the watermark, newest pages first. Whole pages; 0 with
 * one tier. */
uint32_t plan_host_tokens(const struct plan *plan, uint32_t rows, uint32_t context);
/* In a step of few tokens whose rows have `positions` positions in the arena alone, all together: how many of
 * 1,000 the GPU reads itself, of layers whose window the CPU attends to (plan_assists_layer; 0: the whole
 * context). */
uint32_t plan_direct_permille(const struct plan *plan, uint64_t positions);
bool plan_assists_layer(const struct plan *plan, uint32_t window);
/* The number of the GPU's layers in [0, end) that the CPU attends to a part of in such a step: their order
 * counts the hand-overs. `window`: [layers], or NULL: none has one. */
uint32_t plan_assisted_layers(const struct plan *plan, const uint32_t *window, uint32_t end);
/* Pages of a memory's pool. */
uint32_t plan_kv_pages(const struct plan *plan, enum plan_memory memory);
/* The processor whose memory holds a layer's state, and, if it keeps pages or a window, the layer's number in
 * that memory's pages of this kind. */
enum plan_processor plan_kv_of(const struct plan *plan, uint32_t layer, uint32_t *kv_layer);
/* Whether this processor computes anything in any phase (the CPU does for assisted caches), or its worker
 * loads weights into its memory. */
bool plan_uses(const struct plan *plan, enum plan_processor processor);
/* Processors that it uses and whose memory is not the host's. */
uint32_t plan_devices(const struct plan *plan);
/* Whether one of them computes a unit in some phase. */
bool plan_device_computes(const struct plan *plan);
/* Layers whose KV cache lies in the memory of a device; with two tiers their pages have room in the arena,
 * too. */
uint32_t plan_device_layers(const struct plan *plan);
/* In the arena's session region, which has such layers' cells of one page: the first layer of a device. */
uint32_t plan_session_layer(const struct plan *plan, enum plan_processor processor);
/* The arena's lanes for this plan: none where one processor is used alone; else up to the last link between
 * two that are used. The same of processors by their numbers, as bits. */
uint32_t plan_lanes(const struct plan *plan);
uint32_t plan_lanes_between(unsigned processors);
/* The part of the chosen experts that is in VRAM, for forecasts. 0 where there are no such units. */
double plan_hit_rate(const struct plan *plan, uint32_t experts);
/* Units at home on `mixed`; the index of one among them. */
uint32_t plan_mixed_units(const struct plan *plan);
/* Units whose experts have slots: at home on `mixed`, or on `disk` without a ring. */
static inline uint32_t plan_slot_units(const struct plan *plan)
{
    return plan_mixed_units(plan) + (plan_disk_slots(plan) ? plan_disk_units(plan) : 0);
}
uint32_t plan_mixed_index(const struct plan *plan, uint32_t unit);
/* Whether some phase has such a home; such a home from which weights are streamed to this processor. */
bool plan_has_home(const struct plan *plan, enum plan_home home);
bool plan_streams(const struct plan *plan, enum plan_processor processor);
/* Whether another processor computes a part of some unit of this one's (`mixed`, `shared`). */
bool plan_is_helped(const struct plan *plan, enum plan_processor processor);
/* Whether this processor, or any, computes the attention of a layer in some prefill phase whose cache is
 * another's (and so has to borrow it). */
bool plan_borrows(const struct plan *plan, enum plan_processor processor);
bool plan_borrows_kv(const struct plan *plan);
/* Checks the rules for lists at the top of this file, and the ring's size: HELM_E_FORMAT, HELM_E_LIMIT. */
HELM_MUST_CHECK int plan_check(const struct plan *plan, struct helm_err *err);
HELM_MUST_CHECK int plan_check_tiers(const struct plan *plan,
                                     struct helm_err *err); /* plan_check's part for two tiers */
/* A deep copy. plan_free on the caller. */
HELM_MUST_CHECK int plan_copy(const struct plan *from, struct plan *to, struct helm_err *err);

/* Bytes of a plan's JSON, at most, in files and in answers. */
#define PLAN_TEXT_MAX ((size_t)16 << 20)
/* The JSON form, which people edit and helm-plan prints (it adds members; unknown ones are ignored):
 *
 *   {"layers": 28, "draft_layers": 0 (default) or 1, of them the last, "context_tokens": 4096, "step_tokens":
 *     512, "slots": 8,
 *    "page_tokens": 32, "page_count": 1024, "kv_dtype": "bf16" | "f16" | "f32" | "q8_0",
 *    "states": [{"layers": [first, last], "kind": "pages" | "window" | "fixed" | "none", "bytes": N}, ...]
 *      (state.h;
 *      default: pages),
 *    "state_snapshots": N (default 0), "window_tokens", "window_page_count": N (where a layer's kind is
 *      "window"),
 *    "vram_page_count": N, "kv_direct_permille": 0 to 1000, "kv_direct_positions", "kv_direct_window": N,
 *    "kv_piece_pages": N (default of all: 0), "kv_free_places": N (default: plan_free_places),
 *    "invariant": true | false (default), "draft_tokens": 0 (default) to 15,
 *    "stages": {"decode": [{"layers": [first, last], "ops": "all" (default) | "attention" | "mlp",
 *                           "home": "gpu"|"gpu1"|"cpu"|"stream"|"mixed"|"shared"|"disk", "bytes": N,
 *                           "format": "bf16-packed" (default: as stored; in this list alone)}, ...],
 *               "prefill_short": the same (optional), "prefill": the same (optional)},
 *    "prefill_short_from_tokens", "prefill_from_tokens": N | null (default null: that list is not used),
 *    "ring_bytes": N (default 0),
 *    "devices": {"gpu1": {"ring_bytes", "vram_page_count": N (default 0)}} (of the second device; the members
 *      beside it are of "gpu"),
 *    "embed": "cpu"|"gpu"|"gpu1" (default: where the first stage is computed),
 *    "head": "cpu"|"gpu"|"gpu1" (default: where the last stage is computed),
 *    "embed_format", "head_format": as a stage's "format",
 *    "mixed": {"slots": N, "direct_permille": 0 to 1000 (default 0), "moves": N (default 0),
 *                "move_cost": N (in 1,000ths of what a hit saves; default 600),
 *                "hit_permille": N (default 0: as if each expert was chosen alike), "first": [[EXPERT, ...],
 *                  ...] (default: the lowest)} (where there are "mixed" stages),
 *    "expert_parts": N (into which each expert is cut, and of which "mixed" speaks; default 1: whole),
 *    "shared_rows": N (rows of an MLP in VRAM, where there are "shared" stages),
 *    "disk_slots": N (experts of a layer that host memory has room for, where experts are on "disk"),
 *    "disk_ring_bytes": N (of host memory, where whole units are on "disk"; a plan has one of the two),
 *    "activations": {"cpu": "exact" | "int8", "gpu", "gpu1": the same} (default of each: exact),
 *    "weights": "q4_k_m" (a mixture that weights stored as single numbers are converted to; default: none),
 *    "placements": [[TENSOR, FORMAT, "host" | "vram" | "vram1", OFFSET, BYTES], ...] (default: helmd makes
 *      them),
 *    "host": {"limit": N | null (no limit), "lines": [{"what": TEXT, "bytes": N}, ...], "total": N},
 *    "vram": the same, "vram1": the same (where something is "gpu1"), "disk": the same (where something is
 *      "disk")}
 *
 * "stages" may also be an array: the decode list alone. Every member shown without a default is required.
 * Each list covers all layers in order, see plan_check; a ledger's lines add up to its total
 * (HELM_E_MISMATCH) and the total is within its limit (HELM_E_CAPACITY).
 *
 * plan_to_json: a fresh object (json_decref), NULL without memory. plan_from_json leaves *plan empty on an
 * error. */
json_t *plan_to_json(const struct plan *plan);
/* A number of bytes, null for "no limit". */
json_t *plan_bytes_to_json(uint64_t bytes);
HELM_MUST_CHECK int plan_from_json(const json_t *json, struct plan *plan, struct helm_err *err);
/* Whether one of the members, up to NULL, is a number above 0 in a file's plan, which is not checked: for
 * those that prepare before they take it. */
HELM_MUST_CHECK int plan_file_has(const char *path, const char *const members[], bool *has,
                                  struct helm_err *err);
void plan_free(struct plan *plan);
