/* Attention, the meaning of it: one query at a time, every sum in double, a two-pass softmax, one scalar
 * conversion per element read. No blocks, no streaming, nothing clever: tests hold every fast variant against
 * this file.
 *
 * Called through the table in common/cpu/kernels/attention.c. Pure; scratch holds one query's sums. */
#include "common/cpu/kernels/attention_kernels.h"

#include <math.h>

/* The K or V of the positions of one's page, found through the page table. */
static const char *kv_cells(const struct attention_task *task, uint32_t position, uint32_t is_value)
{
    const struct kv_layout *kv = task->kv;
    return (const char *)task->pool +
           kv_offset(kv, task->pages[position / kv->page_tokens], task->layer, is_value, task->kv_head);
}

static double score(const struct attention_task *task, const float *q, uint32_t position)
{
    const struct kv_layout *kv = task->kv;
    const char *keys = kv_cells(task, position, 0);
    const uint32_t at = position % kv->page_tokens;
    double sum = 0;
    for (uint32_t d = 0; d < kv->head_dim; d++) sum += (double)q[d] * (double)kv_cell_value(kv, keys, at, d);
    return sum * (double)task->scale;
}

static void attend_query(const struct attention_task *task, uint32_t t, uint32_t g)
{
    uint32_t head_dim = task->kv->head_dim, position = task->start + t;
    uint32_t first = task->kv_first, last = task->kv_last;
    if (last > position + 1) last = position + 1;
    if (task->window != 0 && position + 1 > task->window && first < position + 1 - task->window)
        first = position + 1 - task->window;
    const float *q = task->q + t * task->q_stride + (size_t)g * head_dim;
    float *out = task->out + t * task->out_stride + (size_t)g * head_dim;

    double maximum = -INFINITY, sum = 0;
    for (uint32_t p = first; p < last; p++) {
        double x = score(task, q, p);
        if (x > maximum) maximum = x;
    }
    /* Partials are relative to the float that is reported, not to the double it was rounded from. */
    if (task->m != NULL) maximum = (double)(task->m[(size_t)t * task->group + g] = (float)maximum);
    double *o = task->scratch;
    for (uint32_t d = 0; d < head_dim; d++) o[d] = 0;
    for (uint32_t p = first; p < last; p++) {
        double weight = exp(score(task, q, p) - maximum);
        sum += weight;
        const char *values = kv_cells(task, p, 1);
        for (uint32_t d = 0; d < head_dim; d++)
            o[d] += weight * (double)kv_cell_value(task->kv, values, p % task->kv->page_tokens, d);
    }
    if (task->s != NULL) task->s[(size_t)t * task->group + g] = (float)sum;
    if (task->m == NULL) sum = attention_sum_with(maximum, sum, task->sinks ? task->sinks + g : NULL);
    for (uint32_t d = 0; d < head_dim; d++)
        out[d] = (float)(task->m == NULL && first < last ? o[d] / sum : o[d]);
}

void attention_attend_ref(const struct attention_task *task)
{
    struct attention_task one = *task;
    for (uint32_t head = 0; head < task->kv_heads; head++, one.kv_head++) {
        for (uint32_t t = 0; t < task->tokens; t++)
            for (uint32_t g = 0; g < task->group; g++) attend_query(&one, t, g);
        one.q += task->group * task->kv->head_dim;
        if (task->sinks != NULL) one.sinks += task->group;
        one.out += task->group * task->kv->head_dim;
        if (task->m != NULL) one.m += task->group, one.s += task->group;
    }
}

size_t attention_scratch_ref(const struct kv_layout *kv, uint32_t tokens, uint32_t group)
{
    (void)tokens;
    (void)group;
    return (kv->head_dim * sizeof(double) + 63) / 64 * 64;
}
