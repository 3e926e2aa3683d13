/* Runs the CPU worker's share of one step. See step.h.
 *
 * Owns nothing: weights belong to weights.c, buffers to execute.c, the step and its result to the arena.
 * Between the first and the last layer it never allocates, locks or logs. */
#include "worker-cpu/step.h"

#include <string.h>

#include "common/units.h"

/* Checks one row and takes its tokens; false leaves the row out of the step. `used` has a bit per slot. */
static bool take_row(struct run *run, const struct step_row *in, uint64_t *used, struct run_row *row)
{
    const struct arena_header *h = arena_header_of(run->arena);
    if (in->slot >= h->slots || *used >> in->slot & 1) return false;
    if (in->count == 0 || in->count > h->step_tokens - run->token_count) return false;
    if (in->start >= h->context_tokens || in->count > h->context_tokens - in->start) return false;
    const uint32_t *history = arena_history_of(run->arena, in->slot);
    const uint32_t *pages = arena_page_table_of(run->arena, in->slot);
    uint32_t last_page = (in->start + in->count - 1) / run->kv.page_tokens;
    for (uint32_t i = 0; i <= last_page; i++)
        if (pages[i] >= h->page_count) return false;
    for (uint32_t i = 0; i < in->count; i++) {
        uint32_t token = history[in->start + i], at = run->token_count + i;
        if (token >= run->config->vocab) return false;
        run->token[at] = token;
        run->position[at] = in->start + i;
        run->token_row[at] = (uint8_t)run->row_count;
    }
    *used |= UINT64_C(1) << in->slot;
    *row = (struct run_row){.pages = pages,
                            .slot = in->slot,
                            .start = in->start,
                            .count = in->count,
                            .token_first = run->token_count,
                            .sample = (in->flags & STEP_ROW_SAMPLE) != 0};
    return true;
}

int step_run(struct run *run, const struct step_programs *programs, const struct step *step,
             struct step_result *result, struct helm_err *err)
{
    uint64_t start_ns = units_now_ns(), used = 0;
    uint32_t rows = step->row_count;
    if (rows < 1 || rows > ARENA_STEP_ROWS)
        return helm_fail(err, HELM_E_LIMIT, "step %u has %u rows, not between 1 and %d", step->serial, rows,
                         ARENA_STEP_ROWS);
    run->token_count = run->row_count = run->sample_count = 0;
    run->result = result;
    for (uint32_t i = 0; i < rows; i++) {
        struct step_result_row *out = &result->row[i];
        struct run_row *row = &run->row[run->row_count];
        memset(out, 0, sizeof *out);
        out->slot = step->row[i].slot;
        if (!take_row(run, &step->row[i], &used, row)) {
            out->status = STEP_ROW_BAD;
            continue;
        }
        row->result = i;
        if (row->sample) run->sample_row[run->sample_count++] = run->row_count;
        run->token_count += row->count;
        run->row_count++;
    }
    uint64_t bytes = 0;
    if (run->row_count) {
        run->program[0] = &programs->tier[program_tier_of(run->token_count)];
        run->program[1] = run->sample_count == 0   ? NULL
                          : run->sample_count == 1 ? &programs->head_one
                                                   : &programs->head_many;
        bytes = run->program[0]->bytes + (run->program[1] ? run->program[1]->bytes : 0);
        execute_run(run);
    }
    result->serial = step->serial;
    result->epoch = step->epoch;
    result->row_count = rows;
    result->reserved = 0;
    result->compute_ns = units_now_ns() - start_ns;
    result->linear_ns = run->row_count ? run->linear_ns : 0;
    result->attention_ns = run->row_count ? run->attention_ns : 0;
    result->sample_ns = run->row_count ? run->sample_ns : 0;
    result->weight_bytes = bytes;
    return 0;
}
