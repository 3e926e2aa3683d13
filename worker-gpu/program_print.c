/* Printing a program, entry by entry. See program.h; called by print.c. */
#include "worker-gpu/program.h"

static const char *const kind_name[] = {[GPU_COPY_BLOCK] = "copy step block",
                                        [GPU_READ_BLOCK] = "read step block",
                                        [GPU_ROPE_TABLE] = "rope table",
                                        [GPU_EMBED] = "embed",
                                        [GPU_GEMV] = "gemv",
                                        [GPU_GEMM_SMALL] = "gemm small",
                                        [GPU_NORM] = "norm",
                                        [GPU_MATMUL] = "matmul",
                                        [GPU_ADD_BIAS] = "add bias",
                                        [GPU_SWIGLU] = "swiglu",
                                        [GPU_ROPE_APPEND] = "rope, append",
                                        [GPU_ATTEND_DECODE] = "attend",
                                        [GPU_ATTEND_PREFILL] = "attend",
                                        [GPU_LANE_READ] = "take from lane",
                                        [GPU_LANE_WRITE] = "put in lane",
                                        [GPU_WORD_WAIT] = "wait for word",
                                        [GPU_WORD_WRITE] = "write word",
                                        [GPU_GATHER] = "gather samples",
                                        [GPU_ARGMAX] = "argmax",
                                        [GPU_CHAIN] = "chain of",
                                        [GPU_EXPAND] = "expand",
                                        [GPU_STREAM_COPY] = "  link: copy",
                                        [GPU_KV_IN] = "  link: borrow the cache, pool",
                                        [GPU_KV_OUT] = "  link: give the cache back, pool",
                                        [GPU_RECORD] = "record",
                                        [GPU_FOLLOW] = "wait for"};

static void print_slice(const struct ring_schedule *ring, uint32_t index, bool home, FILE *out)
{
    const struct ring_slice *slice = &ring->slice[index];
    fprintf(out, " slice %u, %s of unit %u, rows", index, ring_op_name(slice->op), slice->unit);
    for (uint32_t i = 0; i < slice->part_count; i++)
        fprintf(out, "%s %u-%u", i ? "," : "", slice->part[i].row,
                slice->part[i].row + slice->part[i].rows - 1);
    if (home) return;
    fprintf(out, ", ring %llu-%llu%s", (unsigned long long)slice->place,
            (unsigned long long)(slice->place + slice->bytes - 1),
            index >= ring->count ? ", for the next step" : "");
}

static void print_event(const struct gpu_source *source, const struct gpu_entry *e, FILE *out)
{
    const struct gpu_events *events = &source->events;
    uint32_t event = e->as.event.event;
    const char *queue = e->as.event.queue == DEVICE_COPY ? "link" : "compute";
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
        fprintf(out, "%s%s", i < chain_end ? "| " : "", kind_name[e->kind]);
        const struct gpuk_linear_args *l = &e->as.linear;
        if (e->kind == GPU_GEMV || e->kind == GPU_GEMM_SMALL) {
            for (uint32_t s = 0; s < l->segments; s++) fprintf(out, " %ux%u", l->segment[s].rows, l->cols);
            fprintf(out, " %s%s%s%s%s", dtype_name(l->dtype), e->packed ? ", packed" : "",
                    l->norm ? ", normed" : "", l->swiglu ? ", swiglu" : "",
                    l->residual ? ", + residual" : "");
        } else if (e->kind == GPU_MATMUL) {
            fprintf(out, " %ux%u %s%s", e->as.matmul.rows, e->as.matmul.cols, dtype_name(e->as.matmul.dtype),
                    e->as.matmul.accumulate ? ", + residual" : "");
        } else if (e->kind == GPU_WORD_WAIT || e->kind == GPU_WORD_WRITE) {
            fprintf(out, " %u", e->as.word.value);
        } else if (e->kind == GPU_CHAIN) {
            fprintf(out, " %u operations, one kernel", e->as.chain.count);
            chain_end = i + 1 + e->as.chain.count;
        } else if (e->kind == GPU_STREAM_COPY || e->kind == GPU_EXPAND) {
            print_slice(e->home ? source->home : ring, e->as.stream.slice, e->home, out);
        } else if (e->kind == GPU_KV_IN || e->kind == GPU_KV_OUT) {
            fprintf(out, " %u", e->as.borrow.staging);
        } else if (e->kind == GPU_RECORD || e->kind == GPU_FOLLOW) {
            print_event(source, e, out);
        }
        if (e->sub != GPU_SUB_ALL && program->block.subs > 1) fprintf(out, ", sub-chunk %u", e->sub);
        fputc('\n', out);
    }
}
