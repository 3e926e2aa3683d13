/* Runs the CPU worker's share of one step. See step.h.
 *
 * Owns nothing: weights belong to weights.c, buffers to execute.c, the step and its result to the arena.
 * Between the first and the last layer it never allocates, locks or logs. */
#include "worker-cpu/step.h"

#include <string.h>

#include "common/base/units.h"
#include "common/plan/schedule.h"
#include "common/worker/batch.h"
#include "worker-cpu/disk/disk.h"
#include "worker-cpu/program/state.h"
#include "common/worker/drafting.h"

/* The program of the layers. HELM_E_LIMIT: the plan has none for such a step. */
static int choose_program(const struct step_programs *programs, const struct batch *batch,
                          const struct program **program, struct helm_err *err)
{
    struct plan_schedule schedule;
    int rc = plan_schedule_of(programs->plan, batch->flags, batch->token_count, &schedule, err);
    if (rc) return rc;
    const uint32_t phase = schedule.phase;
    const enum op_tier tier = schedule.chunk ? OP_TIER_CHUNK : program_tier_of(batch->token_count);
    *program = &programs->tier[phase][tier];
    if (tier == OP_TIER_FEW && batch->token_count <= programs->apart[phase].few)
        *program = &programs->apart[phase];
    if (!batch->assisted) return 0;
    if (phase || tier > OP_TIER_FEW || !plan_kv_assisted(programs->plan))
        return helm_fail(err, HELM_E_LIMIT,
                         "a step of %u tokens has the CPU attend to the GPU's cache: list %u",
                         batch->token_count, phase);
    *program = &programs->assisted[tier];
    return 0;
}

/* Pools the rows that ask for it; the residual stream of all tokens is still there. */
static void pool_rows(const struct run *run)
{
    const struct math_op *head = &run->weights->model->math.head;
    const float *norm = weights_vector(run->weights, head->norm, -1),
                *bias =
                    head->norm_bias == TENSOR_NONE ? NULL : weights_vector(run->weights, head->norm_bias, -1);
    for (uint32_t i = 0; i < run->batch.row_count; i++) {
        const struct batch_row *row = &run->batch.row[i];
        const struct pooled_part all = {.count = row->count,
                                        .x = run->act->buffer[BUFFER_X] +
                                             (size_t)row->token_first * run->config->hidden,
                                        .norm = norm,
                                        .bias = bias,
                                        .layer_norm = head->norm_kind == NORM_LAYER,
                                        .eps = run->config->norm_eps};
        if (row->pools) pooled_take(run->arena, row, &all);
    }
}

/* ---- drafts by the model's own layer ---- */

/* Runs the layer, or the head, or both over the batch. Times add up with the step's. */
static int execute(struct run *run, const struct program *layer, const struct program *head, uint64_t *bytes,
                   struct helm_err *err)
{
    const uint64_t linear_ns = run->linear_ns, attention_ns = run->attention_ns, sample_ns = run->sample_ns,
                   wait_ns = run->wait_ns;
    run->program[0] = layer;
    run->program[1] = head;
    *bytes += (layer ? layer->bytes : 0) + (head ? head->bytes : 0);
    const int rc = execute_run(run, err);
    run->linear_ns += linear_ns;
    run->attention_ns += attention_ns;
    run->sample_ns += sample_ns;
    run->wait_ns += wait_ns;
    return rc;
}

/* Hidden states of these tokens become the first ones. They rise, so none is overwritten before it is
 * read. */
static void gather(struct run *run, const uint32_t *from, uint32_t count)
{
    const size_t hidden = run->config->hidden;
    float *x = run->act->buffer[BUFFER_X];
    for (uint32_t i = 0; i < count; i++) memmove(x + i * hidden, x + from[i] * hidden, hidden * sizeof *x);
}

static int drafts_run(struct run *run, const struct step_programs *programs, struct step_result *result,
                      uint64_t *bytes, struct helm_err *err)
{
    struct draftings drafts;
    struct batch *batch = &run->batch;
    struct plan_schedule schedule;
    int rc = plan_schedule_of(programs->plan, batch->flags, batch->token_count, &schedule, err);
    if (rc) return rc;
    const enum op_tier tier = schedule.chunk ? OP_TIER_CHUNK : program_tier_of(batch->token_count);
    drafting_begin(run->arena, run->config->vocab, result, batch, &drafts);
    rc = execute(run, &programs->drafts_first[tier], NULL, bytes, err);
    if (rc || !drafts.count) return rc;
    run->result = &run->drawn;
    run->further = DRAFTING_FURTHER;
    const struct program *layer = NULL; /* the first drafts' hidden states are there */
    uint64_t first_ns = 0;
    do {
        const struct program *head = drafts.count == 1 ? &programs->drafts_one : &programs->drafts_many;
        gather(run, drafts.from, drafts.count);
        rc = execute(run, layer, head, bytes, err);
        if (!first_ns) first_ns = units_now_ns();
        if (rc || !drafting_next(run->arena, run->drawn.row, batch, &drafts, result)) break;
        for (uint32_t r = 0; r < batch->row_count; r++) run->row[r] = (struct run_row){.in = &batch->row[r]};
        layer = &programs->drafts_next[program_tier_of(drafts.count)];
    } while (true);
    result->further_us = (uint32_t)((units_now_ns() - first_ns) / 1000);
    run->result = result;
    run->further = 0;
    return rc;
}

/* ---- a step ---- */

int step_run(struct run *run, const struct step_programs *programs, const struct step *step,
             struct step_result *result, struct helm_err *err)
{
    uint64_t start_ns = units_now_ns(), bytes = 0;
    run->wait_ns = run->linear_ns = run->attention_ns = run->sample_ns = 0;
    struct batch *batch = &run->batch;
    const bool head = programs->plan->head == programs->self;
    int rc = batch_take(run->arena, run->config->vocab, step, batch, result, err);
    if (!rc && (head || programs->reads_tokens))
        rc = batch_follow(run->arena, run->config->vocab, step, head, batch, err);
    if (rc) return rc;
    run->result = result;
    for (uint32_t i = 0; i < batch->row_count; i++) run->row[i] = (struct run_row){.in = &batch->row[i]};
    if (batch->row_count) {
        bool draws = programs->head_one.count && batch->sample_count;
        rc = choose_program(programs, batch, &run->program[0], err);
        if (rc) return rc;
        run->program[1] = !draws                                            ? NULL
                          : batch->sample_count == 1                        ? &programs->head_one
                          : batch->sample_count <= programs->head_apart.few ? &programs->head_apart
                                                                            : &programs->head_many;
        bytes = run->program[0]->bytes + (run->program[1] ? run->program[1]->bytes : 0);
        state_begin(run->states, run->pool, batch, run->program[0]->phase);
        rc = execute_run(run, err);
        if (run->disk) disk_end_step(run->disk, batch->token_count);
        if (rc) return rc;
        state_end(run->states, run->pool, batch, run->program[0]->phase);
        if (head && batch->pool_count) pool_rows(run);
        if (head && programs->plan->draft_layers) rc = drafts_run(run, programs, result, &bytes, err);
        if (rc) return rc;
    }
    result->compute_ns = units_now_ns() - start_ns - run->wait_ns;
    result->linear_ns = run->linear_ns;
    result->attention_ns = run->attention_ns;
    result->sample_ns = run->sample_ns;
    result->weight_bytes = bytes;
    return 0;
}
