/* Printing a program, entry by entry. See program.h; called by print.c. */
#include "worker-gpu/program/program.h"

struct gpu_printing {
    const struct gpu_source *source;
    const struct gpu_program *program;
    FILE *out;
};

static void print_slice(const struct gpu_printing *p, const struct gpu_entry *e)
{
    const struct gpu_source *source = p->source;
    FILE *out = p->out;
    const struct ring_schedule *ring = e->home ? source->home : &source->ring[p->program->phase];
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

static void print_event(const struct gpu_printing *p, const struct gpu_entry *e)
{
    FILE *out = p->out;
    const struct gpu_events *events = &p->source->events;
    uint32_t event = e->supply.event;
    const bool tiered = plan_kv_tiered(p->source->plan);
    const char *queue = e->supply.queue == DEVICE_COPY ? "link" : "compute";
    if (event == GPU_EVENT_BEGIN)
        fprintf(out, " beginning");
    else if (event < GPU_EVENT_KV_USED)
        fprintf(out, " cache in pool %u", event - GPU_EVENT_KV_IN);
    else if (event < GPU_EVENT_KV_BACK)
        fprintf(out, " use of pool %u", event - GPU_EVENT_KV_USED);
    else if (event == GPU_EVENT_KV_BACK)
        fprintf(out, tiered ? " cells stored" : " cache given back");
    else if (event < events->prefix)
        fprintf(out, " %s of slice %u", (event - GPU_EVENT_SLICES) % 2 ? "use" : "arrival",
                (event - GPU_EVENT_SLICES) / 2);
    else if (event < events->tail)
        fprintf(out, " arrival of slice %u, copied by the step before", event - events->prefix);
    else
        fprintf(out, " room for the next step's slices, %u", event - events->tail);
    fprintf(out, " (%s)", queue);
}

static void print_linear(const struct gpu_printing *p, const struct gpu_entry *e)
{
    const struct gpuk_linear_args *a = &e->op.as.linear;
    for (uint32_t s = 0; s < a->segments; s++) fprintf(p->out, " %ux%u", a->segment[s].rows, a->cols);
    fprintf(p->out, " %s%s%s%s", tensor_format_name(a->format), a->norm ? ", normed" : "",
            a->swiglu ? ", swiglu" : "", a->residual ? ", + residual" : "");
}

static void print_matmul(const struct gpu_printing *p, const struct gpu_entry *e)
{
    const struct op_matmul *m = &e->op.as.matmul;
    fprintf(p->out, " %ux%u %s%s", m->rows, m->cols, tensor_format_name(m->format),
            m->accumulate ? ", + residual" : "");
}

/* A word's value, or which pool. */
static void print_number(const struct gpu_printing *p, const struct gpu_entry *e)
{
    const bool pool = e->op.kind == OP_KV_IN || e->op.kind == OP_KV_OUT;
    fprintf(p->out, " %u", pool ? e->supply.staging : e->op.as.word.value);
}

/* Hand-overs to the CPU that attends, and its answers. */
static void print_lane(const struct gpu_printing *p, const struct gpu_entry *e)
{
    const bool query = e->op.kind == OP_KV_QUERY;
    fprintf(p->out, query ? ", %u numbers a token" : ", %u heads",
            query ? e->op.as.move.width : e->op.as.merge.heads);
}

/* A chunk's attention may cut positions into ranges. */
static void print_ranges(const struct gpu_printing *p, const struct gpu_entry *e)
{
    if (e->op.workspace && !e->op.as.attention.part.before) fprintf(p->out, ", positions in ranges");
}

static void print_chain(const struct gpu_printing *p, const struct gpu_entry *e)
{
    fprintf(p->out, " %u operations, one kernel", e->op.as.chain.count);
}

/* Prints an entry's details after its name. */
static void (*const print_of[OP_KIND_COUNT])(const struct gpu_printing *p, const struct gpu_entry *e) = {
    [OP_GEMV] = print_linear,       [OP_GEMM_SMALL] = print_linear, [OP_MATMUL] = print_matmul,
    [OP_WORD_WAIT] = print_number,  [OP_WORD_WRITE] = print_number, [OP_CHAIN] = print_chain,
    [OP_STREAM_COPY] = print_slice, [OP_EXPAND] = print_slice,      [OP_KV_IN] = print_number,
    [OP_KV_QUERY] = print_lane,     [OP_ATTEND_MERGE] = print_lane, [OP_KV_OUT] = print_number,
    [OP_RECORD] = print_event,      [OP_FOLLOW] = print_event,      [OP_ATTEND_PREFILL] = print_ranges,
};

/* For which steps it is issued. */
static const char *const when_of[] = {[GPU_WHEN_ANY] = "",
                                      [GPU_WHEN_ONE] = ", of one sample",
                                      [GPU_WHEN_SEVERAL] = ", of several samples",
                                      [GPU_WHEN_SHORT] = ", of a chunk of up to",
                                      [GPU_WHEN_LONG] = ", of a chunk of more than",
                                      [GPU_WHEN_FILLS] = ", of a step that fills a page",
                                      [GPU_WHEN_READS_HOST] = ", of a step with pages in the arena",
                                      [GPU_WHEN_TIERS] = ", of a step that does either"};

void gpu_program_print(const struct gpu_source *source, const struct gpu_program *program, const char *title,
                       FILE *out)
{
    const struct gpu_printing printing = {source, program, out};
    const struct ring_schedule *ring = &source->ring[program->phase];
    uint32_t held = 0, chain_end = 0;
    while (held < ring->count && ring->slice[held].held) held++;
    fprintf(out, "%s: %u entries%s\n", title, program->count, program->graph ? ", one graph" : "");
    if (ring->count)
        fprintf(out, "      ring of %llu bytes, %u slices, %u there at the beginning, %llu bytes a step\n",
                (unsigned long long)source->plan->device[source->self].ring_bytes, ring->count, held,
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
        if (print_of[e->op.kind]) print_of[e->op.kind](&printing, e);
        if (e->sub != GPU_SUB_ALL && program->block.subs > 1) fprintf(out, ", sub-chunk %u", e->sub);
        fputs(when_of[e->when], out);
        if (e->when_tokens) fprintf(out, " %u tokens", e->when_tokens);
        fputc('\n', out);
    }
}
