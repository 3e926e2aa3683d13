/* Every number of the planner that is a choice, and no fact of a model, a machine or a program: how large it
 * is, and why.
 *
 * Included by all of the planner. A number that another file defines (sizes of slices, pages of a cache,
 * tokens of a few) is included from there. */
#pragma once

#include "common/base/units.h"
#include "common/plan/engine_limits.h"

/* ---- differences that count: parts of a time or of a size ---- */

/* Two searches for nearly the same end so far apart (docs/planner.md: 0.9 % above the bound in the mean):
 * less is no difference. */
#define WORTH_NOTING 0.02
/* A short context may lose this so that long ones gain, and a longer chunk must gain it, which takes
 * room. */
#define WORTH_ROOM 0.03
/* Worth other tokens, or weights that are loaded in another form: forecasts err by 1.5 % in the median
 * and 12 % at worst. */
#define WORTH_CHANGE 0.05
/* Beyond what rates differ by from one hour to the next: worth kernels of another kind, or another
 * measurement's rates. The processors' time that others may take while a profile is measured, likewise. */
#define WORTH_MUCH 0.10
/* Plans whose times differ by less than this part are alike: then the one with fewer changes of home
 * counts, then the one with less VRAM. No forecast is as good as this. */
#define SEARCH_ALIKE 1e-3

/* Drafts of each row, if a layer of the model makes them, in the decode step that plans are compared by: what
 * pays most where 80 % of them are right. Where the head lies counts for each. */
#define PLANNER_DRAFTS 3

/* ---- numbers as a computer has them ---- */

#define ROUNDING      1e-9  /* sums of the same numbers in another order may differ by this part */
#define SECONDS_LEAST 1e-12 /* what may take no time counts as if it took this: rates stay numbers */
#define BYTES_LEAST   1e-3  /* of a fluid: less is what rounding leaves */

/* ---- what is planned for ---- */

/* Contexts that plans and page sizes are judged over, each as much as another: the least one that is served,
 * so many times as many and so on, and the whole. So far a line through two measured programs is drawn on,
 * too. An answer is as long as a short context, where whole requests are judged. */
#define LEDGER_CTX_LEAST       256
#define PLANNER_SHORT_CONTEXT  LEDGER_CTX_LEAST
#define PLANNER_CONTEXT_GROWTH 4
#define PLANNER_ANSWER_TOKENS  PLANNER_SHORT_CONTEXT
/* Tokens of a short prompt, half of a short context: what TTFT is forecast for, and the list for short
 * prompts is made. */
#define PLANNER_PROMPT_TOKENS (PLANNER_SHORT_CONTEXT / 2)
/* Tokens of a chunk for which no weights are streamed: with more the GPU's products are no faster. */
#define LEDGER_STEP_TOKENS GPU_SUB_TOKENS
/* A chunk's buffers may take this part of the device's memory, since weights gain more by the rest; twice
 * as much where a context has so many chunks, which gain as much as a token's decode loses. */
#define PREFILL_VRAM_PARTS  32
#define PREFILL_MANY_CHUNKS 8
/* With experts on disk the CPU's buffers may take this part of host memory: more would take slots. */
#define DISK_CHUNK_PARTS 8
/* The smallest ring is this part of the largest half layer, which the link copies while the CPU computes
 * one; and no ring is smaller than some copies. */
#define RING_PARTS      4
#define COST_RING_LEAST (64 * KIB)
/* Up to this part of the experts has slots in both memories where nothing was counted: in published
 * traces it caught, kept by recency, 67 % of the uses; more would catch few more, and a prompt streams
 * all experts of such layers. */
#define MIXED_EIGHTH 8
/* The link brings experts for this part of a step's time while they move; the rest is for what steps
 * copy. */
#define MOVES_PART 0.8
/* Snapshots of fixed states for each slot, in at most one of as many parts of the host memory that is
 * left: a conversation goes back to its last turns. */
#define LEDGER_SNAPSHOTS 4

/* ---- memory that no program of ours counts ---- */

#define PROCESS_BYTES (128 * MIB) /* helmd, keeper and worker: code, heaps, libraries' own threads */
#define DRIVER_BYTES  (768 * MIB) /* the GPU worker's driver, libraries and staging memory, on the host */

/* ---- how long anything is tried ---- */

/* Searches for one candidate until the ledger agrees; times that a refusal lets a limit grow until the
 * search agrees; candidates that are put in order, however slow their estimates. Each leaves a smaller
 * difference. */
#define PLANNER_TRIES 8
/* Tries along a line are so many parts of it apart: shares of what the GPU reads directly, lengths of
 * prompts, until a list no longer pays, moves of experts, prices and mixtures of the bound. */
#define PLANNER_SHARES 10
/* Simulations of a small space, item steps of them of a large one: tens of milliseconds. Prices that are
 * kept: searches come back to half of theirs. */
#define SPACE_WORK   400000
#define SPACE_PRICED 8192
/* In a large space: states that are kept after each item, orders that are improved by exchanges,
 * exchanges drawn for each that is tried (memory forbids most where it is full), half of them with an
 * item no further away (delays of the link are local). A search of 36 to 80 layers takes 5 to 40 ms with
 * these, and comes within 4 % of the bound (test_search.c). */
#define ORDER_WIDTH    24
#define ORDER_IMPROVED 3
#define ORDER_DRAWS    20
#define ORDER_NEAR     8
/* Rings that are tried grow by this part, a dozen from the least to the largest. */
#define SEARCH_RING_PART 3
/* Prices of the bound grow by this until the cheapest choice is within the limit, up to a second a byte,
 * which no choice of homes pays. Any price gives a bound, and none need be the very best. */
#define PRICE_GROWTH 8
#define PRICE_LAST   1.0
/* In lists for prompts, places where a run of a model of many layers may end. */
#define PREFILL_RUNS 32

/* ---- what is believed of a measurement ---- */

/* How far two measurements may contradict what cannot be: they were taken after one another, on a machine
 * that may have been busy with something else during one of them. */
#define PROFILE_SLACK 3.0
/* Samples of packed weights: a tenth of a second's reading; fewer groups are no sample, unless they are
 * all; and a part counts as so many standard errors above the mean. */
#define PACKED_SAMPLE_BYTES  (64 * MIB)
#define PACKED_SAMPLE_LEAST  8
#define PACKED_SAMPLE_ERRORS 3
/* Positions over which int8 activations are compared with exact ones: enough to decide, and the most that
 * are taken. */
#define VERDICT_LEAST     128
#define VERDICT_POSITIONS 65536

/* ---- corrections without which forecasts are noticeably worse (docs/planner-prices.md#corrections) ---- */

/* The part of its bytes that a unit's weights have when packed (common/formats/packed.h). It is known
 * only once they are packed, and the plan is made before: this is the part of bf16 weights of language
 * models, within a hundredth. */
#define PROFILE_PACKED_PART 0.71
/* Reading packed weights directly takes longer than reading plain ones by this part of the time to expand
 * them. Measured on an H200, slices of 8B's shapes: 0.57 to 0.61 (docs/results/h200.md). */
#define COST_READ_PACKED_PART 0.6
/* Operations that one token's product with experts in VRAM counts as, where it is a small kernel: blocks wait
 * for the choice, and have few rows each. Measured of Qwen3-30B-A3B in Q4_K_M on an H200: a layer is 17.9 us
 * faster without gates and ups, 9.3 without downs; by one operation each they would take 9.7 and 6.5. */
#define OPERATIONS_OF_EXPERTS 3
/* Operations of the CPU for experts in both memories: gates and ups, downs, and what each expert's begin
 * costs. */
#define EXPERTS_OPERATIONS 3
/* A part of the CPU's time for an expert's bytes that bringing them over the link takes from it, by direct
 * reads or by copies. In twelve layers of Qwen3-30B-A3B in Q4_K on an H100's host it was busy 2.83, 2.63,
 * 2.78 and 2.31 ms a token with 0 to 3 of 8 experts read directly; a copy took 13 to 19 us, and an expert
 * on the CPU 27. */
#define COST_EXPERT_TAKES 0.6
/* How many experts come for each miss while they move: in generated traces 0.67 to 0.74 (test_slots.c). */
#define MOVES_OF_MISSES 0.7
/* The CPU reads a run of a page's keys as if it had this many bytes more: runs of 8 KiB at half the rate
 * of runs of 64 KiB. */
#define RUN_MORE_BYTES (10.7 * KIB)
