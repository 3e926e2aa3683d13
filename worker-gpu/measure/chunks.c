/* A step's cost beside its operations: how late it begins and ends. See measure.h.
 *
 * Called by measure/kernels.c; owns nothing. */
#include <stdlib.h>

#include "common/base/units.h"
#include "worker-gpu/measure/private.h"

#define IDLE_MS      20        /* the device's, between steps that begin from a pause */
#define OTHERS_BYTES (4 * MIB) /* twice a large L2 */

/* Kernels of the beginning of a chunk's list. */
static uint32_t first_kernels(void)
{
    const struct model_config plain = {.architecture = "LlamaForCausalLM"}; /* the layers of a dense model */
    enum op_kind first[PROGRAM_OPS_MAX];
    struct model_math math;
    model_math_build(&plain, &math);
    return program_ops_first(PROCESSOR_GPU, first) +
           program_ops_count(&math.embed, PROCESSOR_GPU, OP_TIER_CHUNK);
}

/* As between requests: the device has been idle for a while, and what the host issues with is in the caches
 * of its core no more, since others computed there meanwhile. Here it is this thread itself that reads and
 * writes through a buffer, after it has slept: it may wake on another core. */
static void pause_of_others(volatile uint64_t *others)
{
    units_sleep_ms(IDLE_MS);
    for (size_t i = 0; i < OTHERS_BYTES / sizeof *others; i += 8) others[i] += i;
}

static uint32_t samples_of(const struct measure *m)
{
    return m->options->quick ? 5 : 15;
}

/* A step that has nothing to do: its first kernels and the word that says that it is done. */
static int issue_nothing(struct measure *m, _Atomic uint32_t *word, struct helm_err *err)
{
    const struct measure_work first = {.m = m, .tokens = 1, .ops = first_kernels()};
    int rc = measure_issue_tiny(&first, err);
    return rc ? rc : device_word_write(m->device, word, 1, err);
}

/* gpu.begin, after a pause as before a prompt; with a graph gpu.begin_graph, one step after another. */
static int measure_begin(struct measure *m, uint64_t *others, struct device_graph *graph,
                         struct helm_err *err)
{
    struct measure_samples samples = {.count = 0};
    struct device *d = m->device;
    _Atomic uint32_t *word = (_Atomic uint32_t *)(void *)m->host;
    int rc = 0;
    for (uint32_t s = 0; s < (graph ? MEASURE_SAMPLES_MAX : 2 * samples_of(m)) && !rc; s++) {
        atomic_store(word, 0);
        if (!graph) pause_of_others(others);
        double start = units_now_s();
        rc = graph ? d->ops->graph_launch(d, graph, true, err) : issue_nothing(m, word, err);
        if (!rc) rc = device_word_poll(d, word, 1, MEASURE_WAIT_MS, err);
        if (s) measure_add(&samples, units_now_s() - start);
    }
    if (!rc) rc = measure_drain(m, DEVICE_COMPUTE, err);
    if (!rc) measure_print(m, graph ? "gpu.begin_graph" : "gpu.begin", 0, &samples);
    return rc;
}

static int measure_begins(struct measure *m, uint64_t *others, struct helm_err *err)
{
    struct device *d = m->device;
    struct device_graph *graph = NULL;
    int rc = measure_set_step(m, 0, 1, err);
    if (!rc) rc = measure_begin(m, others, NULL, err);
    if (!rc) rc = d->ops->capture_begin(d, err);
    if (rc) return rc;
    rc = issue_nothing(m, (_Atomic uint32_t *)(void *)m->host, err);
    int ended = d->ops->capture_end(d, &graph, rc ? NULL : err);
    if (!rc) rc = ended;
    if (!rc) rc = measure_begin(m, others, graph, err);
    if (graph) d->ops->graph_free(d, graph);
    return rc;
}

int measure_chunks_run(struct measure *m, struct helm_err *err)
{
    uint64_t *others = calloc(1, OTHERS_BYTES);
    if (!others) return helm_fail(err, HELM_E_NOMEM, "no memory to pass the caches with");
    int rc = measure_begins(m, others, err);
    free(others);
    return rc;
}
