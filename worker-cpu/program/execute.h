/* Executes a program's entries for one step, chunk by chunk, on the compute pool.
 *
 * Called by step.c, which fills in the step's share of `struct run` and calls execute_run. Between the first
 * and the last entry nothing here allocates, locks or logs. Owns its scratch; everything else is borrowed. */
#pragma once

#include <stdatomic.h>

#include "common/shared/arena.h"
#include "common/cpu/pool.h"
#include "worker-cpu/program/program.h"
#include "worker-cpu/program/state.h"
#include "common/worker/batch.h"

/* Query positions of one attention task of a chunk. */
#define EXECUTE_QUERY_TOKENS 32
/* The least cache positions worth a task of their own when one sequence's attention is split. */
#define EXECUTE_SPLIT_POSITIONS 128

/* One sequence's part of a step. */
struct run_row {
    const struct batch_row *in;
};

/* Queries of one sequence and how their attention is cut: all of its part of a step, or in an invariant
 * plan's decode one query. */
struct run_attend {
    const struct batch_row *in;
    uint32_t first, count; /* of its tokens */
    uint32_t task_first;   /* attention tasks: kv_heads * blocks * splits of them */
    uint32_t blocks;       /* of EXECUTE_QUERY_TOKENS query positions */
    uint32_t splits;       /* of the cache positions; above 1 only when count is 1 */
    uint32_t part_first;   /* partial results, when splits > 1 */
};

/* One layer's attention for the GPU (assist.h): how the step's rows are cut, and the results of the
 * pieces. */
struct run_assist_row {
    uint32_t from, to;           /* positions */
    uint32_t task_first, splits; /* tasks: blocks of kv heads * splits of them */
};
struct run_assist {
    struct run_assist_row row[ARENA_STEP_ROWS];
    uint32_t tasks, width;  /* width: threads that share them */
    uint32_t heads;         /* kv heads of a block, which one task attends to */
    float *out, *max, *sum; /* [task][heads * group] of head_dim, 1, 1; NULL: one tier */
    _Atomic uint32_t *met;  /* [task]: how many of the two that are folded into the one before it are done */
};

/* How weights are read ahead with one token. Changes no result; set between steps, by benchmarks that
 * compare. */
struct run_reads {
    struct gemv_reads gemv; /* without `next`, which is set for each chunk */
    uint32_t idle_bytes;    /* that a waiting thread fetches of its share of the next linear; 0: none */
    bool across;            /* reads past a chunk's end go on in the thread's next chunk */
};

/* One token's downs that come next, for threads that wait: what they are of is known before their turn
 * comes. */
struct run_experts_ahead {
    _Atomic(const struct program_entry *) down; /* NULL: something else comes next */
    _Atomic uint32_t count, id[MODEL_EXPERTS_CHOSEN_MAX];
};

/* The tokens of a step by the experts that they have chosen. */
struct run_experts {
    uint32_t *id, *pair; /* [tokens][chosen]; pairs token * chosen + j in the order of experts */
    float *weight;       /* [tokens][chosen] */
    uint32_t first[MODEL_EXPERTS_MAX + 1]; /* pair[first[e] .. first[e + 1]) chose expert e */
    uint32_t active[MODEL_EXPERTS_MAX];    /* experts that any chose */
    uint32_t active_count;
    uint32_t count; /* of one token, how many: all that are chosen, or that are asked for */
    /* Experts that a region computes: for one token places in `id`, for several in `active`. All of them;
     * from disk, those that came. */
    uint32_t turn[MODEL_EXPERTS_MAX], turns;
    _Atomic uint32_t
        *left; /* of one token's downs, by their pieces: how many experts are still to come; owned */
    struct run_experts_ahead ahead;
};

struct run_thread {
    _Alignas(64) void *scratch; /* for gemm, attention or sampling: one at a time */
    /* one token's input in the order of a kernel, that of entry number `ordered_turn`; rows decoded for a
     * gemm */
    float *ordered;
    gemv_order_fn *ordered_by;
    uint64_t ordered_turn;
    uint32_t ordered_first; /* of a few tokens' inputs, or of experts', which ones */
    size_t ordered_ldx;     /* of a few tokens' */
    void *decoded;
    void *experts; /* scratch of experts.c; NULL: the model has no experts */
};

struct run {
    /* fixed after execute_create */
    const struct arena *arena;
    const struct model_config *config;
    const struct weights *weights;
    const struct kernel_set *kernels;
    const struct activations *act;
    const struct states *states;
    struct disk *disk; /* of experts that lie there, or NULL */
    struct pool *pool;
    struct kv_layout kv, window_kv; /* of pages, and of windows */
    void *kv_pool, *window_pool;
    uint32_t kv_heads_group; /* query heads of one kv head, of layers without a window */
    float *ones;             /* [head_dim]: the weight of a norm that has none */
    float *inv_freq[MODEL_ROPES_MAX];
    float rope_scale[MODEL_ROPES_MAX];
    struct run_thread *thread;
    uint32_t threads;
    bool invariant;                 /* the plan is */
    uint32_t unit_tokens;           /* most tokens of a step that computes layers here */
    uint64_t thread_bytes;          /* of each thread's scratch (common/plan/workspace.h) */
    uint32_t spin_us, peer_wait_ms; /* for the other worker's hand-overs */
    struct run_reads reads;
    const _Atomic bool *cancel;            /* ends waiting for them; NULL: nothing does */
    float *part_out, *part_max, *part_sum; /* [parts_max][group] of head_dim, 1, 1 */
    _Atomic uint32_t *part_left;           /* [parts_max], by the first part of a (row, kv head) */
    uint32_t parts_max;
    struct run_experts experts;

    /* of this step; the batch's arrays are ours */
    struct batch batch;
    struct run_row row[ARENA_STEP_ROWS];
    struct run_attend attend[ARENA_STEP_ROWS];
    uint32_t attend_count;
    bool steady; /* an invariant plan's prompts: each query as it would be alone */
    struct step_result *result;
    struct step_result drawn; /* of drafts (drafts.h) */
    uint32_t further;         /* tokens after the sampled position that are known: 1 of drafts */

    /* progress */
    const struct program *program[2]; /* layers, then head (NULL: nothing is sampled) */
    uint32_t program_index, entry_index;
    uint64_t turn;            /* of the entry being computed, through all steps: from 1 on */
    uint32_t attend_heads;    /* kv heads that attention is cut for; 0: it is not yet */
    uint32_t attend_head_dim; /* and their size */
    uint32_t attend_tasks;
    uint32_t attend_width; /* threads that share it */
    struct run_assist assist;
    const struct program_entry *entry;           /* being computed */
    _Atomic(const struct program_entry *) ahead; /* the next one-token LINEAR after it; NULL: none */
    int rc;                                      /* of a hand-over that failed: the run ended there */
    struct helm_err err;
    uint64_t mark_ns;
    uint64_t *entry_ns[2]; /* NULL, or a caller's [program->count]: the shortest time of each entry so far */
    uint64_t linear_ns, attention_ns, sample_ns, wait_ns;
};

/* The fixed part; `programs` are those that will ever be run (scratch is sized for them). */
HELM_MUST_CHECK int execute_create(struct run *run, const struct program *const *programs,
                                   uint32_t program_count, struct helm_err *err);
void execute_destroy(struct run *run);

/* Runs program[0], then program[1] if any, over the rows of this step. HELM_E_PEER when the other worker's
 * hand-over did not come, HELM_E_CANCELLED when *cancel ended the wait for it. */
HELM_MUST_CHECK int execute_run(struct run *run, struct helm_err *err);
