/* Printing a program, entry by entry. See program.h; called by print.c. */
#include "worker-gpu/program/program.h"

static void print_slice(const struct gpu_source *source, const struct gpu_program *program,
                        const struct gpu_entry *e, FILE *out)
{
    const struct ring_schedule *ring = e->home ? source->home : &source->ring[program->phase];
    const uint32_t index = e->supply.slice;
    const struct ring_slice *slice = &ring->slice[index];
    fprintf(out, " slice %u, %s of unit %u, rows", index,
            ring_math_of(source->model, slice->unit, slice->op)->name, slice->unit);
    for (uint32_t i = 0; i < slice->part_count; i++)
        fprintf(out, "%s %u-%u", i ? "," : "", slice->part[i].row,
                slice->part[i].row + slice->part[i].rows - 1);
    if (e->home) return;
    fprintf(out, ", ring %llu-%llu%s", (unsigned long long)slice->place,
            (unsigned long long)(slice->place + slice->bytes - 1),
            index >= ring->count ? ", for the next step" : "");
}

static void print_event(const struct gpu_source *source, const struct gpu_entry *e, FILE *out)
{
    const struct gpu_events *events = &source->events;
    uint32_t event = e->supply.event;
    const char *queue = e->supply.queue == DEVICE_COPY ? "link" : "compute";
    if (event == GPU_EVENT_BEGIN)
        fprintf(out, " beginning");
    else if (event < GPU_EVENT_KV_USED)
        fprintf(out, " cache in pool %u", event - GPU_EVENT_KV_IN);
    else if (event < GPU_EVENT_KV_BACK)
        fprintf(out, " use of pool %u", event - GPU_EVENT_KV_USED);
    else if (event == GPU_EVENT_KV_BACK)
        fprintf(out, " cache given back");
    else if (event < events->prefix)
        fprintf(out, " %s of slice %u", (event - GPU_EVENT_SLICES) % 2 ? "use" : "arrival",
                (event - GPU_EVENT_SLICES) / 2);
    else if (event < events->tail)
        fprintf(out, " arrival of slice %u, copied by the step before", event - events->prefix);
    else
        fprintf(out, " room for the next step's slices, %u", event - events->tail);
    fprintf(out, " (%s)", queue);
}

static void print_linear(const struct gpuk_linear_args *a, FILE *out)
{
    for (uint32_t s = 0; s < a->segments; s++) fprintf(out, " %ux%u", a->segment[s].rows, a->cols);
    fprintf(out, " %s%s%s%s", tensor_format_name(a->format), a->norm ? ", normed" : "",
            a->swiglu ? ", swiglu" : "", a->residual ? ", + residual" : "");
}

static void print_matmul(const struct op_matmul *m, FILE *out)
{
    fprintf(out, " %ux%u %s%s", m->rows, m->cols, dtype_name(m->dtype), m->accumulate ? ", + residual" : "");
}

/* What an entry says beside its name. */
static void print_arguments(const struct gpu_source *source, const struct gpu_program *program,
                            const struct gpu_entry *e, FILE *out)
{
    switch (e->op.kind) {
    case OP_GEMV:
    case OP_GEMM_SMALL:
        print_linear(&e->op.as.linear, out);
        break;
    case OP_MATMUL:
        print_matmul(&e->op.as.matmul, out);
        break;
    case OP_WORD_WAIT:
    case OP_WORD_WRITE:
        fprintf(out, " %u", e->op.as.word.value);
        break;
    case OP_CHAIN:
        fprintf(out, " %u operations, one kernel", e->op.as.chain.count);
        break;
    case OP_STREAM_COPY:
    case OP_EXPAND:
        print_slice(source, program, e, out);
        break;
    case OP_KV_IN:
    case OP_KV_OUT:
        fprintf(out, " %u", e->supply.staging);
        break;
    case OP_RECORD:
    case OP_FOLLOW:
        print_event(source, e, out);
        break;
    default: /* its name says all */
        break;
    }
}

void gpu_program_print(const struct gpu_source *source, const struct gpu_program *program, const char *title,
                       FILE *out)
{
    const struct ring_schedule *ring = &source->ring[program->phase];
    uint32_t held = 0, chain_end = 0;
    while (held < ring->count && ring->slice[held].held) held++;
    fprintf(out, "%s: %u entries%s\n", title, program->count, program->graph ? ", one graph" : "");
    if (ring->count)
        fprintf(out, "      ring of %llu bytes, %u slices, %u there at the beginning, %llu bytes a step\n",
                (unsigned long long)source->plan->ring_bytes, ring->count, held,
                (unsigned long long)ring->copy_bytes);
    for (uint32_t i = 0; i < program->count; i++) {
        const struct gpu_entry *e = &program->entry[i];
        fprintf(out, "%5u ", i);
        if (e->layer >= 0)
            fprintf(out, "layer %-4d ", e->layer);
        else
            fprintf(out, "%-11s", "");
        fprintf(out, "%s%s", i < chain_end ? "| " : "", op_name(e->op.kind));
        if (e->op.kind == OP_CHAIN) chain_end = i + 1 + e->op.as.chain.count;
        print_arguments(source, program, e, out);
        if (e->sub != GPU_SUB_ALL && program->block.subs > 1) fprintf(out, ", sub-chunk %u", e->sub);
        fputc('\n', out);
    }
}
