/* The arena: the memory that helmd and its workers share. One definition, checked by every side.
 *
 * helmd creates the arena, fills in the header and the regions it writes, and hands the descriptor to the
 * workers, which refuse another magic, ABI or size. Every region has exactly one writer:
 *
 *   region              writer                    readers
 *   header              helmd (before spawning)   all
 *   control.step        helmd                     workers  step ring, one doorbell down
 *   control.done[w]     worker w                  helmd    doorbell up (an eventfd wakes helmd's poll loop)
 *   control.result      the head's worker         helmd
 *   control.drawn_bell  the head's worker         workers  the step whose result is written
 *   slots               helmd                     workers  sampling parameters; only of a slot in no step
 *   masks               helmd                     workers  tokens that a slot's next one is drawn from, a bit
 *                                                          an id; only of a slot in no step that samples
 *   history             helmd, the head's worker  workers  token ids of each slot, drafts included, see below
 *   page_table          helmd                     workers  KV page numbers of each slot, then likewise of
 *                                                          windows
 *   vram_table          helmd                     workers  of the same pages, their places in VRAM: two tiers
 *                                                          only
 *   lanes               one worker each           another  activation hand-over, see lane.h
 *   kv_lanes            one worker each           another  queries, and the partial results for them: two
 *                                                          tiers only
 *   expert_lanes        one worker each           another  requests for experts in both memories, and answers
 *   experts             the worker with slots     helmd    counters of the use of experts, struct
 *                                                          arena_experts
 *   logits              the head's worker         helmd    whole rows that tokens were drawn from, for its
 *                                                          check; a GPU worker's pooled rows pass through it
 *   pooled              the head's worker         helmd    a slot's pooled hidden states; a running sum until
 *                                                          the step that ends its prompt is done
 *   session             helmd, the GPU worker     both     cells of one page that lies in VRAM alone, while
 *                                                          they are moved: one tier only; see STEP_KV_OUT
 *   snapshots           the layer's worker, helmd both     fixed states of a sequence at a position
 *                                                          (state_layout.h); helmd writes one that no step in
 *                                                          flight has (sessions)
 *   state               the layer's worker        itself   fixed states of each slot, of the CPU's layers
 *   kv                  the layer's worker        workers  pages, see kv_layout.h; helmd writes pages that no
 *                                                          step in flight has, before they are known
 *                                                          (sessions)
 *   weights             the loading worker        workers  read-only after READY
 *
 * Steps in flight. helmd may ring a step while the one before it is computed; every worker computes them in
 * their order. A row whose token the step before samples is flagged STEP_ROW_FOLLOWS: its token is in that
 * step's result, and a worker without the head waits for drawn_bell before it reads the result. Hence the
 * history:
 *
 *   position                    writer             when
 *   of a row that follows       the head's worker  when it takes the row
 *   every other known token     helmd              when the sequence enters its slot, when a result is taken
 *                                                  and no row for the token was rung, before workers start
 *   of a draft                  helmd              when the row is rung; no other step has the slot then
 *   after a row that makes      the head's worker  while it makes drafts: the sampled token and these;
 *   drafts                                         helmd writes them again when it takes the result
 *
 * Two steps share the ring only where no worker's part of the second touches what another worker's part of
 * the first may still read or write: a step in front of another has one token a row, and both are of the
 * plan's decode list, in which every cache is used by one worker. Lanes keep their own order.
 *
 * Two tiers of the cache (plan.h, vram_page_count). A page's number is its place in the arena, which has room
 * for the cells of all layers. While it is appended to, and as long as there is room, it has a place in VRAM,
 * too, where the GPU keeps the cells of its layers. When a step has filled a page, the GPU worker copies its
 * cells to the arena before it rings `done`: from then on the place in VRAM may be given away, and a worker's
 * death costs nothing of the page. Positions below host_tokens of a row are taken from the arena, the others
 * from VRAM by vram_table; entries of positions below host_tokens mean nothing. An entry at or above
 * host_tokens of any step in flight stays as it is.
 *
 *   positions                      steps of few tokens                      chunks
 *   below direct_from              the CPU attends (STEP_KV_ASSISTED)       brought to VRAM layer by layer
 *   direct_from to host_tokens     the GPU's kernel reads the arena         the same
 *   from host_tokens on            the GPU's kernel reads VRAM              the same
 *
 * A chunk that is longer than VRAM has places for is flagged STEP_KV_ARENA (plan_appends_in_arena): the GPU
 * computes each of its layers in VRAM that all layers take in turn, and copies the cells to the arena, whole
 * pages or not. Positions in front of the chunk are taken from the arena as far as their pages are whole,
 * else from the page's place. A row's pages from plan_placed_from on, in which the next step goes on, have
 * their cells in their places, too, by vram_table.
 *
 * In a step flagged STEP_KV_ASSISTED the GPU puts the queries of each of its layers that the plan has the CPU
 * attend to (plan_assists_layer), normed and rotated, into its kv lane to the CPU, [token][head][head_dim],
 * and the CPU answers in that to the GPU with the result over its positions, [token][head]{m, s, o[head_dim]}
 * (thesis 4.18 to 4.20: the maximum score, the sum of exponentials, their sum of values; -inf, 0, 0 for a row
 * without such positions). Tickets count those layers, from 1 on, in both lanes. All positions below
 * host_tokens of the GPU's other layers are read by its kernel.
 *
 * Experts at home in both memories. In every step the GPU puts each such layer's tokens into its expert lane
 * to the CPU: the residual stream [capacity][hidden], after it for each token and choice which expert the CPU
 * computes (ARENA_EXPERT_NONE: the GPU does), [capacity][experts_chosen], and its weight, likewise; capacity
 * is step_tokens. The CPU answers in that to the GPU with their weighted sum, [token][hidden]. Tickets count
 * those layers, from 1 on, in both lanes. Which of them lie in VRAM the GPU worker alone knows.
 *
 * step.fetch: pages of the arena that the GPU copies to places in VRAM by the way; steps after this one may
 * count on them.
 *
 * Fixed states (state_layout.h). Before a step each worker copies, of its layers, the snapshot `state_from`
 * of a row to the row's slot; a row at position 0 begins with zeros instead. A row leaves snapshots: each
 * entry of `left` is the state after that many of the row's tokens. Operations write it as they pass; the
 * state after all tokens is copied after the step. A worker rings `done` when its parts are there.
 *
 * Drafts. The last `drafts` tokens of a row are guesses that helmd has put into the history after the known
 * tokens. The row is sampled after its last known token and after each draft, each time as it would be with
 * the tokens up to there alone. helmd keeps the drafts that were sampled; the next row of the slot begins
 * where the first wrong one stood, or with fixed states where a snapshot was left in front of the drafts.
 * Pages and states after that position mean nothing.
 *
 * Drafts that are made. In a plan with a layer that makes drafts the head's worker computes it for all tokens
 * of each step, so that its cache follows. For a row with drafts_next it makes that many guesses of the
 * tokens after the one that it sampled after the last right draft. They are in the result's `made`, row by
 * row; ARENA_NO_DRAFT where it made fewer, since the row's pages end or nothing was sampled. No other step
 * has the slot meanwhile.
 *
 * Windows. Layers that keep a window have a page table of their own, with an entry for each page of the
 * sequence. An entry in front of state_window_hidden(start) of a row means nothing: its page is others'.
 * Entries from there on stay as they are while a step in flight may read them.
 *
 * A change of anything here raises ARENA_ABI. */
#pragma once

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "common/shared/doorbell.h"
#include "common/shared/state_layout.h"
#include "common/sampling/sampling.h"

#define ARENA_MAGIC       0x414d4c48u /* "HLMA" */
#define ARENA_ABI         21u
#define ARENA_SLOTS_MAX   64 /* sequences that hold KV at once */
#define ARENA_WORKERS_MAX 8
#define ARENA_STEP_RING   4 /* steps in flight at most; a power of two */
#define ARENA_STEP_ROWS   ARENA_SLOTS_MAX
#define ARENA_STEP_FETCH  32 /* pages that a step brings to VRAM at most */
#define ARENA_STEP_DRAFTS 15 /* drafts of a step at most: ENGINE_DRAFTS_MAX */
#define ARENA_ROW_STATES  8  /* snapshots that a row leaves at most */
#define ARENA_KV_TOKENS   16 /* of a step whose queries go to the CPU: ENGINE_FEW_TOKENS */
#define ARENA_EXPERT_NONE 0xffffffffu
#define ARENA_NO_DRAFT    0xffffffffu
#define ARENA_HUGE_PAGE   ((uint64_t)2 << 20)

enum arena_region_id {
    ARENA_REGION_CONTROL,
    ARENA_REGION_SLOTS,
    ARENA_REGION_MASKS,
    ARENA_REGION_HISTORY,
    ARENA_REGION_PAGE_TABLE,
    ARENA_REGION_VRAM_TABLE,
    ARENA_REGION_LANES, /* by enum arena_lane_kind, from here on */
    ARENA_REGION_KV_LANES,
    ARENA_REGION_EXPERT_LANES,
    ARENA_REGION_EXPERTS,
    ARENA_REGION_LOGITS,
    ARENA_REGION_POOLED,
    ARENA_REGION_SESSION,
    ARENA_REGION_SNAPSHOTS,
    ARENA_REGION_STATE,
    ARENA_REGION_KV,
    ARENA_REGION_WEIGHTS,
    ARENA_REGION_COUNT
};

/* Contents of a lane. Each kind has a lane for each link from one worker to another, up to the last link that
 * is used. */
enum arena_lane_kind { ARENA_LANE_STEP, ARENA_LANE_KV, ARENA_LANE_EXPERTS, ARENA_LANE_KINDS };

struct arena_region {
    uint64_t offset; /* from the arena's base; multiple of 64, of ARENA_HUGE_PAGE for kv and weights */
    uint64_t bytes;
};

struct arena_header {
    uint32_t magic, abi;
    uint64_t total_bytes;
    uint32_t epoch; /* raised at each respawn of workers; late messages of an older epoch are ignored */
    uint32_t slots; /* in use, <= ARENA_SLOTS_MAX */
    uint32_t context_tokens; /* longest sequence: columns of history */
    uint32_t step_tokens;    /* most tokens in one step over all its rows (prefill chunk) */
    uint32_t pages_per_slot; /* columns of the page table */
    uint32_t page_count;     /* pages in the kv region */
    uint32_t hidden, vocab;
    uint32_t lanes[ARENA_LANE_KINDS];
    uint32_t vram_page_count; /* two tiers: places in VRAM; 0: one tier */
    uint32_t kv_heads_asking; /* query heads of a layer, of the kv lanes; 0 with one tier */
    /* of experts in both memories: of a token chosen, in a layer, layers; all 0: there are none */
    uint32_t experts_chosen, experts, expert_layers;
    uint32_t snapshot_count;
    /* Layers that keep a window (state_layout.h): its tokens, pages of each of their pools, the host's
     * layers; 0: none does */
    uint32_t window_tokens, window_page_count, window_layers;
    uint32_t samples; /* rows of logits: a step samples at most as many positions; >= slots */
    struct kv_layout kv;
    uint32_t window_kv_heads, window_head_dim; /* of cells of windows */
    uint32_t reserved;
    struct state_layout state; /* slots: of the CPU's layers */
    struct arena_region region[ARENA_REGION_COUNT];
};

/* One sequence's share of a step: tokens history[slot][start .. start + count) are run through the model at
 * those positions; with STEP_ROW_SAMPLE the logits after the last one become a token. */
enum step_row_flags {
    STEP_ROW_SAMPLE = 1u << 0,
    /* For a row of one token: the token is the one that the step before this one samples for the slot, or 0
     * if that found none. If the sequence ends with it, or otherwise meanwhile, helmd ignores this row's
     * result. */
    STEP_ROW_FOLLOWS = 1u << 1,
    /* With STEP_ROW_SAMPLE: the token is one of the slot's mask. No other step in flight samples for the
     * slot, so such a row never follows, and none follows it. */
    STEP_ROW_MASKED = 1u << 2,
    /* The hidden states after the final norm go into the slot's place in `pooled`: all are added (from 0 on
     * where the row starts at 0), or the row's last one is put there. Neither goes with STEP_ROW_SAMPLE. */
    STEP_ROW_POOL_MEAN = 1u << 3,
    STEP_ROW_POOL_LAST = 1u << 4,
};
/* The snapshot `to` becomes the state after a row's first `at` tokens, 1 .. count. */
struct step_state {
    uint32_t to, at;
};
struct step_row {
    uint32_t slot;
    uint32_t start;
    uint32_t count;
    uint32_t flags;
    uint32_t host_tokens; /* 0 with one tier; whole pages, <= start; see above */
    uint32_t direct_from; /* whole pages, <= host_tokens */
    uint32_t drafts;      /* with STEP_ROW_SAMPLE alone: of `count` the last so many are drafts; < count */
    uint32_t state_from;  /* the snapshot, from 1 on, that it begins with; STATE_NO_SNAPSHOT: it goes on from
                             its slot */
    uint32_t
        drafts_next; /* with STEP_ROW_SAMPLE, without a mask: drafts that are made for the slot's next row */
    struct step_state left[ARENA_ROW_STATES]; /* `at` rises; the first of STATE_NO_SNAPSHOT ends them */
};
/* A page of the arena and the place in VRAM that it is copied to. */
struct step_fetch {
    uint32_t page, place;
};
/* Whether a bell at `serial` has reached `step`: serials wrap. */
static inline bool step_reached(uint32_t serial, uint32_t step)
{
    return (int32_t)(serial - step) >= 0;
}
enum step_flags {
    /* Computed with exact activations, whatever the plan says, by workers that LOAD has prepared for it.
     * Either all steps in flight are, or none. */
    STEP_EXACT = 1u << 0,
    /* The CPU attends to a part of the cache of the GPU's layers: some row has direct_from > 0, and there are
     * at most ARENA_KV_TOKENS tokens, one a row. */
    STEP_KV_ASSISTED = 1u << 1,
    /* In an invariant plan (common/plan/schedule.h): all rows are of prompts, and are computed as chunks, by
     * the list of the plan whose number stands from bit STEP_LIST_SHIFT on. */
    STEP_PROMPT = 1u << 2,
    /* No rows, and no other step is in flight: with one tier the GPU worker copies its layers' cells of
     * step.page to the session region, or from there, [its layers][as kv_layout.h has a layer]. Other workers
     * have nothing to do. */
    STEP_KV_OUT = 1u << 3,
    STEP_KV_IN = 1u << 4,
    /* A chunk of two tiers that appends in the arena: every chunk of a plan whose longest one VRAM has too
     * few places for. */
    STEP_KV_ARENA = 1u << 5,
    /* With one of these: step.page is one of windows, and so are the layers, with one tier or two. */
    STEP_KV_WINDOW = 1u << 6,
};
#define STEP_KV_MOVES   (STEP_KV_OUT | STEP_KV_IN)
#define STEP_LIST_SHIFT 8
struct step {
    uint32_t serial; /* 1, 2, ...; ring slot = serial % ARENA_STEP_RING; the doorbell's value */
    uint32_t epoch;
    uint32_t row_count;
    uint32_t token_count; /* sum of count, <= header.step_tokens */
    uint32_t flags;       /* enum step_flags */
    uint32_t fetch_count;
    uint32_t page;        /* of STEP_KV_MOVES */
    uint32_t draft_count; /* sum of drafts */
    struct step_row row[ARENA_STEP_ROWS];
    struct step_fetch fetch[ARENA_STEP_FETCH];
};

enum step_row_status { STEP_ROW_OK = 0, STEP_ROW_NO_FINITE_LOGIT = 1, STEP_ROW_BAD = 2 };
struct step_result_row {
    uint32_t slot;
    uint32_t status;                /* enum step_row_status */
    struct sampling_result sampled; /* of rows with STEP_ROW_SAMPLE */
};
struct step_result {
    uint32_t serial;
    uint32_t epoch;
    uint32_t row_count;
    uint32_t reserved;
    uint64_t compute_ns; /* from seeing the step (or from the end of the one before, where the device had
                            it already) to ringing done */
    uint64_t linear_ns, attention_ns, sample_ns; /* parts of compute_ns, by thread 0's clock */
    uint64_t weight_bytes;            /* read from memory for this step; packed weights count as packed */
    uint32_t made[ARENA_STEP_DRAFTS]; /* of rows with drafts_next, one row's after another's */
    uint32_t further_us;              /* of compute_ns: to make all of those after the first of each row */
    /* [row_count], after their last known token; then of the step's drafts, row by row, after each */
    struct step_result_row row[ARENA_STEP_ROWS + ARENA_STEP_DRAFTS];
};

/* A worker's part of a step. */
struct arena_times {
    uint64_t busy_ns;      /* computing, waits for another worker left out */
    uint64_t wait_ns;      /* waiting for another worker's hand-overs and tokens */
    uint64_t weight_bytes; /* weights read by its own processor; the CPU's packed ones count as packed */
    uint64_t link_bytes;   /* copied over the link (GPU worker) */
};
struct arena_done {
    _Alignas(64) struct doorbell bell;                      /* the last step that this worker is done with */
    _Alignas(64) struct arena_times times[ARENA_STEP_RING]; /* by serial; written before the bell is rung */
};

struct arena_control {
    _Alignas(64) struct doorbell step_bell; /* writer: helmd */
    struct arena_done done[ARENA_WORKERS_MAX];
    _Alignas(64) struct step step[ARENA_STEP_RING];
    _Alignas(64) struct step_result result[ARENA_STEP_RING];
    _Alignas(64) struct doorbell drawn_bell; /* the last step whose result is written */
    /* 1 once the weights region is filled and its pages will not move any more (huge pages are made). Writer:
     * the loading worker. The GPU worker waits for it before it registers the region with the driver. */
    _Alignas(64) struct doorbell weights_bell;
};

/* Uses so far of experts at home in both memories, or on disk, by steps of a few tokens, in which an
 * expert counts once: counts that rise. After it the uses of each, 64 bits, [expert_layers][experts]. */
struct arena_experts {
    _Atomic uint64_t steps, used, present, moved; /* present: of the uses, in slots; moved: brought there */
};

struct arena_slot {
    struct sampling_params sampling;
    uint32_t prompt_count; /* tokens of history that are the prompt */
    uint32_t reserved;
};

static_assert(sizeof(struct doorbell) == 8, "doorbell is two words");
static_assert(sizeof(struct kv_layout) == 24, "header layout");
static_assert(offsetof(struct arena_header, total_bytes) == 8, "header layout");
static_assert(offsetof(struct arena_header, kv) == 100, "header layout");
static_assert(offsetof(struct arena_header, region) == 152, "header layout");
static_assert(sizeof(struct arena_header) == 152 + 16 * ARENA_REGION_COUNT, "header layout");
static_assert(sizeof(struct arena_header) <= 4096, "the header has the first page for itself");
static_assert(offsetof(struct arena_control, done) == 64, "one cache line per doorbell");
static_assert(sizeof(struct arena_times) == 32, "times layout");
static_assert(sizeof(struct arena_done) == 64 + 32 * ARENA_STEP_RING, "one cache line per doorbell");
static_assert(offsetof(struct arena_control, step) == 64 + sizeof(struct arena_done) * ARENA_WORKERS_MAX,
              "one cache line per doorbell");
static_assert(sizeof(struct step_row) == 36 + 8 * ARENA_ROW_STATES, "step row layout");
static_assert(offsetof(struct step, row) == 32, "step layout");
static_assert(sizeof(struct step) == 32 + sizeof(struct step_row) * ARENA_STEP_ROWS + 8 * ARENA_STEP_FETCH,
              "step layout");
static_assert(offsetof(struct step_result, row) == 120, "result layout");
static_assert(sizeof(struct step_result_row) == 20 + 8 * SAMPLING_LOGPROBS_MAX, "result row layout");
static_assert(sizeof(struct sampling_params) == 48 + 8 * SAMPLING_BIAS_MAX + 4 * SAMPLING_LOGPROBS_MAX,
              "slot layout");
static_assert(sizeof(struct arena_slot) == sizeof(struct sampling_params) + 8, "slot layout");
static_assert((ARENA_STEP_RING & (ARENA_STEP_RING - 1)) == 0, "serial % ring survives the wrap of serial");
static_assert(ATOMIC_INT_LOCK_FREE == 2, "doorbells are shared by processes: no lock table");
