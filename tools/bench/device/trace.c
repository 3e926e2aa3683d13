/* Every kernel of a CUDA program with its begin and end, also of those that graphs launch: what each adds to
 * a step where kernels begin before the ones in front of them end. Read by trace.py.
 *
 *   cc -O2 -shared -fPIC -I/usr/local/cuda/include -o trace.so trace.c -lcupti
 *   CUDA_INJECTION64_PATH=$PWD/trace.so HELM_TRACE=/tmp/trace helm-worker-gpu ...  (/tmp/trace.PID)
 *
 * Started by people, with a script in helm-worker-gpu's place that sets the two variables. A line a kernel:
 * begin and end in ns, blocks in x and y, threads, name. Kernels take little longer when traced, but launches
 * do: gaps between steps (230 us on an H200) are the trace's. */
#include <cupti.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define BUFFER_BYTES (8 << 20)
#define FLUSH_MS     300 /* a worker may be killed */

static FILE *out;

static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *bytes, size_t *most_records)
{
    *bytes = BUFFER_BYTES, *most_records = 0, *buffer = aligned_alloc(8, BUFFER_BYTES);
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t bytes,
                                 size_t valid)
{
    CUpti_Activity *record = NULL;
    (void)context, (void)stream, (void)bytes;
    while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
        const CUpti_ActivityKernel9 *k = (const CUpti_ActivityKernel9 *)record;
        if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)
            fprintf(out, "%llu %llu %d %d %d %s\n", (unsigned long long)k->start, (unsigned long long)k->end,
                    k->gridX, k->gridY, k->blockX, k->name);
    }
    fflush(out);
    free(buffer);
}

static void flush_all(void)
{
    cuptiActivityFlushAll(1);
}

/* The driver calls it before its first call returns. */
int InitializeInjection(void)
{
    const char *path = getenv("HELM_TRACE");
    char name[512];
    snprintf(name, sizeof name, "%s.%ld", path ? path : "/tmp/trace", (long)getpid());
    out = fopen(name, "w");
    if (!out || cuptiActivityRegisterCallbacks(give_buffer, take_buffer) != CUPTI_SUCCESS ||
        cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS ||
        cuptiActivityFlushPeriod(FLUSH_MS) != CUPTI_SUCCESS) {
        fprintf(stderr, "%s: the trace cannot be opened, or CUPTI refused\n", name);
        return 0;
    }
    atexit(flush_all);
    return 1;
}
