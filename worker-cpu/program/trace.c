/* The trace of decode steps. See trace.h.
 *
 * Lines of the file, times in ns of one clock:
 *   step NUMBER BEGIN END                                       BEGIN: before its first entry
 *   entry STEP NUMBER LAYER BYTES CHUNKS ASKED BEGIN END KIND   ASKED: the one before had ended; BEGIN: it was published
 *   chunk STEP ENTRY CHUNK BYTES THREAD FROM TO SWITCHES WAITS  SWITCHES: how often the thread was taken off its CPU so far;
 *                                                               WAITS: how often it gave it up itself, asleep
 *   lost COUNT                                                  chunks without room */
#include "worker-cpu/program/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "common/base/units.h"

#define ENTRIES_MAX (1u << 16)
#define CHUNKS_MAX  (1u << 17) /* of a thread */

struct trace_chunk {
    uint32_t entry, chunk; /* of the trace's entries */
    uint64_t from_ns, to_ns;
    uint64_t switches, waits;
};

struct trace_thread {
    _Alignas(64) struct trace_chunk *chunk;
    uint32_t count, lost;
};

struct trace_item {
    const struct program_entry *entry;
    uint32_t step, number, chunks;
    uint64_t asked_ns, begin_ns, end_ns;
};

struct trace {
    FILE *file;
    uint32_t threads, first, count; /* which steps, by number from 1 on */
    uint32_t steps;                 /* so far */
    bool prompts, on;
    pool_chunk_fn *run; /* of the entry that is computed */
    struct trace_item *item;
    uint32_t items, number; /* number: of the step's entries */
    uint64_t begin_ns[TRACE_STEPS], end_ns[TRACE_STEPS];
    struct trace_thread thread[];
};

int trace_open(uint32_t threads, struct trace **out, struct helm_err *err)
{
    const char *path = getenv(TRACE_VARIABLE);
    *out = NULL;
    if (!path || !*path) return 0;
    struct trace *trace = aligned_alloc(64, sizeof *trace + threads * sizeof trace->thread[0]);
    if (!trace) return helm_fail(err, HELM_E_NOMEM, "no memory for a trace");
    memset(trace, 0, sizeof *trace + threads * sizeof trace->thread[0]);
    trace->threads = threads;
    trace->prompts = getenv(TRACE_PROMPTS) != NULL;
    trace->first = trace->prompts ? TRACE_FIRST_PROMPT : TRACE_FIRST;
    trace->count = trace->prompts ? TRACE_STEPS_PROMPTS : TRACE_STEPS;
    trace->item = calloc(ENTRIES_MAX, sizeof *trace->item);
    bool all = trace->item != NULL;
    for (uint32_t t = 0; t < threads && all; t++) {
        trace->thread[t].chunk = malloc(CHUNKS_MAX * sizeof *trace->thread[t].chunk);
        all = trace->thread[t].chunk != NULL;
        if (all) memset(trace->thread[t].chunk, 0, CHUNKS_MAX * sizeof *trace->thread[t].chunk);
    }
    int rc = all ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory for a trace");
    if (!rc) trace->file = fopen(path, "we");
    if (!rc && !trace->file) rc = helm_fail_errno(err, TRACE_VARIABLE " %s", path);
    if (rc) {
        trace_close(trace);
        return rc;
    }
    *out = trace;
    return 0;
}

void trace_close(struct trace *trace)
{
    if (!trace) return;
    for (uint32_t t = 0; t < trace->threads; t++) free(trace->thread[t].chunk);
    if (trace->file) fclose(trace->file);
    free(trace->item);
    free(trace);
}

/* ---- recording ---- */

void trace_begin_step(struct trace *trace, uint32_t tokens)
{
    trace->on = false;
    if ((tokens > 1) != trace->prompts) return;
    trace->steps++;
    if (trace->steps < trace->first || trace->steps >= trace->first + trace->count) return;
    trace->on = true;
    trace->number = 0;
    trace->begin_ns[trace->steps - trace->first] = units_now_ns();
}

static void chunk_traced(void *ctx, uint32_t chunk, uint32_t thread)
{
    struct trace *trace = ((struct run *)ctx)->trace;
    struct trace_thread *t = &trace->thread[thread];
    struct rusage usage = {0};
    const uint32_t entry = trace->items - 1;
    const uint64_t from_ns = units_now_ns();
    trace->run(ctx, chunk, thread);
    const uint64_t to_ns = units_now_ns();
    if (t->count == CHUNKS_MAX) {
        t->lost++;
        return;
    }
    (void)getrusage(RUSAGE_THREAD, &usage); /* cannot fail: the structure is ours */
    t->chunk[t->count++] = (struct trace_chunk){
        entry, chunk, from_ns, to_ns, (uint64_t)usage.ru_nivcsw, (uint64_t)usage.ru_nvcsw};
}

/* The last entry of the step has ended. */
static void end_entry(struct trace *trace, uint64_t now_ns)
{
    if (trace->number && trace->items) trace->item[trace->items - 1].end_ns = now_ns;
}

void trace_entry(struct trace *trace, const struct run *run, uint64_t asked_ns, struct pool_job *job)
{
    if (!trace->on) return;
    end_entry(trace, asked_ns);
    if (trace->items == ENTRIES_MAX) {
        trace->number = 0; /* the rest of the step is left out */
        return;
    }
    trace->item[trace->items++] = (struct trace_item){.entry = run->entry,
                                                      .step = trace->steps,
                                                      .number = trace->number++,
                                                      .chunks = job->chunks,
                                                      .asked_ns = asked_ns,
                                                      .begin_ns = units_now_ns()};
    trace->run = job->run;
    job->run = chunk_traced;
}

/* ---- writing ---- */

/* Bytes of weights that a chunk of a LINEAR or of one token's experts reads; of others 0. */
static uint64_t chunk_bytes(const struct program_entry *e, uint32_t chunk)
{
    const bool linear = e->kind == OP_LINEAR;
    if ((!linear && e->kind != OP_EXPERTS_GLU && e->kind != OP_EXPERTS_DOWN) || !e->bound) return 0;
    const uint32_t piece = linear ? chunk : chunk % e->chunks;
    if (piece >= e->chunks) return 0;
    const uint64_t rows = e->bound[piece + 1] - e->bound[piece], all = e->bound[e->chunks];
    return all ? e->bytes / (linear ? 1 : e->chosen) * rows / all : 0;
}

static void write_all(struct trace *trace)
{
    uint32_t lost = 0;
    for (uint32_t s = 0; s < trace->count; s++)
        fprintf(trace->file, "step %u %llu %llu\n", trace->first + s, (unsigned long long)trace->begin_ns[s],
                (unsigned long long)trace->end_ns[s]);
    for (uint32_t i = 0; i < trace->items; i++) {
        const struct trace_item *item = &trace->item[i];
        fprintf(trace->file, "entry %u %u %d %llu %u %llu %llu %llu %s\n", item->step, item->number,
                item->entry->layer, (unsigned long long)item->entry->bytes, item->chunks,
                (unsigned long long)item->asked_ns, (unsigned long long)item->begin_ns,
                (unsigned long long)item->end_ns, op_name(item->entry->kind));
    }
    for (uint32_t t = 0; t < trace->threads; t++) {
        lost += trace->thread[t].lost;
        for (uint32_t i = 0; i < trace->thread[t].count; i++) {
            const struct trace_chunk *c = &trace->thread[t].chunk[i];
            const struct trace_item *item = &trace->item[c->entry];
            fprintf(trace->file, "chunk %u %u %u %llu %u %llu %llu %llu %llu\n", item->step, item->number,
                    c->chunk, (unsigned long long)chunk_bytes(item->entry, c->chunk), t,
                    (unsigned long long)c->from_ns, (unsigned long long)c->to_ns,
                    (unsigned long long)c->switches, (unsigned long long)c->waits);
        }
    }
    fprintf(trace->file, "lost %u\n", lost);
    fflush(trace->file);
}

void trace_end_step(struct trace *trace)
{
    if (!trace->on) return;
    const uint64_t now_ns = units_now_ns();
    end_entry(trace, now_ns);
    trace->end_ns[trace->steps - trace->first] = now_ns;
    trace->on = false;
    if (trace->steps == trace->first + trace->count - 1) write_all(trace);
}
