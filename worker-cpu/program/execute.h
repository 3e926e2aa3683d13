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

/* One layer's attention for the GPU (assist.c): how the step's rows are cut, and the results of the
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
    struct disk *disk; /* of weights that lie there, or NULL */
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
    struct step_result drawn; /* of drafts (step.c) */
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

/* ---- attend.c: attention of the CPU's layers, chunk by chunk ---- */

/* A pool_chunk_fn of OP_ROPE_APPEND: norms and rotates heads of some tokens, and writes their cells. */
void attend_append(void *run, uint32_t chunk, uint32_t thread);
/* OP_ATTEND of the current entry. Cuts the step's attention into tasks, the same for every layer of as many
 * heads. */
struct pool_job attend_job(struct run *run);

/* ---- delta.c: the convolution and the rule of gated delta nets over a step's rows, each with its state in
 * the row's slot (state.h), and the gate of attention's output ---- */

bool delta_is(enum op_kind kind);
/* CONVOLVE: some channels of a row in a chunk; DELTA: a v head of a row; GATE: attention's output of some
 * tokens. */
struct pool_job delta_job(struct run *run, const struct program_entry *entry);

/* ---- experts.c: mixtures of experts ----
 *
 * The choice, the chosen experts' matrices, the sum; the shared expert's weight. One token: pieces of rows of
 * the chosen experts, shared by the threads as of one matrix; of downs the last one to finish some rows sums
 * them, in the order of choice. Several tokens: they are grouped by expert, each expert's weights are read
 * once a step (once for CPU_EXPERTS_TOKENS of its tokens), and sums are taken in the order of choice,
 * whichever thread computes them.
 *
 * Experts on disk are computed in turns: those that are in memory, then those that came meanwhile, and so on.
 * A turn is a region of gates and ups, or of downs. Which experts are in which turn changes no result.
 *
 * Where the GPU asks for some of a layer's experts (arena_layout.h), its choice comes by a lane instead: of
 * one token those that are asked for stand in front, of several the others have no number. */

static inline bool experts_are(const struct program_entry *e)
{
    return e->kind == OP_ROUTE || e->kind == OP_EXPERTS_TAKE || e->kind == OP_EXPERTS_GLU ||
           e->kind == OP_EXPERTS_DOWN || e->kind == OP_EXPERTS_SUM || e->kind == OP_WEIGH;
}

/* Places of choices and pairs in the activations, counters for all that the programs have; nothing where the
 * model has no experts. */
HELM_MUST_CHECK int experts_create(struct run *run, const struct program *const *programs, uint32_t count,
                                   struct helm_err *err);
void experts_destroy(struct run *run);
/* Before and after an entry with a lane, or that answers by one. */
HELM_MUST_CHECK int experts_begin(struct run *run, const struct program_entry *entry, struct helm_err *err);
HELM_MUST_CHECK int experts_end(const struct program_entry *entry, struct helm_err *err);
/* While a thread waits and one token's downs come next (run->experts.ahead): fetches what it will read first
 * of them into its L2. As a pool_idle_fn. */
bool experts_fetch_ahead(const struct run *run, const struct program_entry *down, uint32_t thread,
                         uint32_t piece);
/* The region of such an entry. Groups the step's tokens before their gates. run->rc: experts on disk could
 * not be read. */
struct pool_job experts_job(struct run *run, const struct program_entry *entry);
/* The region again, of an entry whose experts lie on disk: for those that came meanwhile; waits for some.
 * False: it is over. */
bool experts_again(struct run *run, struct pool_job *job);

/* ---- assist.c: the CPU's part of attention in layers whose cache is the GPU's ----
 *
 * Positions that lie in the arena alone, below each row's direct_from (arena_layout.h, STEP_KV_ASSISTED):
 * entries of kind OP_ATTEND_HOST. The GPU's queries come by one lane and partial
 * results go by another. A layer's work is cut by blocks of kv heads and by pieces of the context, so that
 * all threads have as much to read, and read in long runs; query heads that share a kv head share what is
 * read. Pieces are folded two and two (attention_fold), in an order that does not hang on threads. Owns the
 * partial results of a layer, in struct run. */

/* Room for what the plan can ask for; nothing where its cache has one tier. HELM_E_NOMEM, and
 * assist_destroy. */
HELM_MUST_CHECK int assist_create(struct run *run, struct helm_err *err);
void assist_destroy(struct run *run);

/* Before the entry: waits for its queries, and until partial results may be written. */
HELM_MUST_CHECK int assist_begin(struct run *run, const struct program_entry *e, struct helm_err *err);
/* Cuts it for this step. */
struct pool_job assist_job(struct run *run, const struct program_entry *e);
/* After it: every chunk is done. */
HELM_MUST_CHECK int assist_end(const struct program_entry *e, struct helm_err *err);

/* ---- read_ahead.c: how far ahead weights are read with one token ----
 *
 * Tried out with the model's own weights when they are loaded, before anything is decoded. Whether fetching
 * into the L2 besides the L1 pays depends on how many cores share the memory, not on the processor's make:
 * with 16 cores of a Sapphire Rapids whole steps of 8B go from 147 to 160 GB/s, with two of an Ice Lake from
 * 24.4 to 22.1. Changes no result. */

/* Fewer bytes than this are not worth trying with: caches hold them. */
#define READ_AHEAD_LEAST (64ull << 20)

struct read_ahead {
    double near_rate, far_rate; /* bytes a second into L1 alone, and into the L2 as well; 0: not tried */
};

/* Tries both with the one-token linears of `layers` and `head` (an empty program: none here) and sets
 * run->reads; fewer bytes than `least`, or a difference that may be chance, and they stay as they are. Takes
 * up to a second. */
void read_ahead_choose(struct run *run, const struct program *layers, const struct program *head,
                       uint64_t least, struct read_ahead *found);
