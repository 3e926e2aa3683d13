/* The emulated device's kernels over rows of logits: the largest, and what a draw needs of one. See
 * emulated.h and kernels.h. */
#include "worker-gpu/device/emulated/emulated.h"

#include <math.h>
#include <stdlib.h>

#include "common/sampling/cut.h"

/* ---- argmax ---- */

void emulated_run_argmax(struct emulated_math *math, const struct op *op)
{
    (void)math;
    const struct op_argmax *c = &op->as.argmax;
    for (uint32_t r = 0, n = emulated_count(op->count, op->tokens); r < n; r++) {
        const float *logits = c->logits + (size_t)r * c->vocab;
        struct gpuk_token best = {.id = GPUK_TOKEN_NONE, .logit = -INFINITY};
        for (uint32_t i = 0; i < c->vocab; i++)
            if (isfinite(logits[i]) && (best.id == GPUK_TOKEN_NONE || logits[i] > best.logit))
                best = (struct gpuk_token){.id = i, .logit = logits[i]};
        c->result[r] = best;
        if (!c->next.token_id) continue;
        c->next.token_id[r] = best.id;
        c->next.position[r] += 1;
    }
}

/* ---- what a draw needs of a row ---- */

/* The candidates: from the k-th largest block maximum on, which at least k logits reach; where there are
 * fewer blocks, from the k-th largest logit on. */
static void find_few(const struct gpuk_few *few, const struct sampling_row *row, const float *block_max,
                     float *copy, struct gpuk_few_room *room)
{
    uint32_t n = 0;
    float least = -INFINITY;
    for (uint32_t b = 0; b < row->blocks; b++)
        if (block_max[b] > -INFINITY) copy[n++] = block_max[b];
    if (n <= few->candidates) {
        n = 0;
        for (uint32_t i = 0; i < row->vocab; i++)
            if (isfinite(row->x[i])) copy[n++] = row->x[i];
    }
    room->all = n <= few->candidates;
    room->found = 0;
    if (!room->all) least = sampling_kth_largest(copy, n, few->candidates);
    for (uint32_t i = 0; i < row->vocab; i++) {
        if (!isfinite(row->x[i]) || row->x[i] < least) continue;
        if (room->found < GPUK_FEW_ROOM)
            room->candidate[room->found] = (struct sampling_logit){.token = i, .logit = row->x[i]};
        room->found++;
    }
}

void emulated_run_few(struct emulated_math *math, const struct op *op)
{
    const struct op_few *c = &op->as.few;
    uint32_t blocks = (c->vocab + SAMPLING_BLOCK - 1) / SAMPLING_BLOCK;
    float *block_max = emulated_scratch(math, SCRATCH_X, (blocks + c->vocab) * sizeof *block_max);
    if (!block_max) return;
    for (uint32_t i = 0; i < op->tokens; i++) {
        const struct gpuk_few *few = &c->few[i];
        struct gpuk_few_room *room = &c->room[i];
        struct sampling_row row = {c->logits + (size_t)few->row * c->vocab, c->vocab, blocks, -INFINITY, 1};
        sampling_find_maxima(&row, block_max);
        find_few(few, &row, block_max, block_max + blocks, room);
        for (uint32_t j = 0; j < few->changed; j++)
            room->logit[j] = room->token[j] < c->vocab ? row.x[room->token[j]] : NAN;
        room->model_sum = few->model_sum && room->found ? sampling_find_weights(&row, block_max, NULL) : 0;
        row.inv_temp = few->inv_temp;
        room->sum = few->sum && room->found ? sampling_find_weights(&row, block_max, NULL) : 0;
    }
}

size_t emulated_argmax_workspace(uint32_t rows)
{
    return rows * sizeof(struct gpuk_token);
}
size_t emulated_few_workspace(uint32_t rows, uint32_t vocab)
{
    return (size_t)rows * ((vocab + SAMPLING_BLOCK - 1) / SAMPLING_BLOCK) * sizeof(float);
}
