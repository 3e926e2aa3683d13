/* Drafts by the model's own layer. See drafts.h. */
#include "worker-cpu/drafts.h"

#include <string.h>

#include "common/base/units.h"
#include "common/plan/schedule.h"
#include "common/worker/drafting.h"

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

int drafts_run(struct run *run, const struct step_programs *programs, struct step_result *result,
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
