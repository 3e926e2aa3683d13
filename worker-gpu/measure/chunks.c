/* What a chunk costs beside its operations one by one: how late it begins, how fast the host puts its kernels
 * into the queue, how much longer its layers take together and for as long as a prompt does. See measure.h.
 *
 * Called by measure/kernels.c; owns nothing. Chunks are not captured, so all this is in the time to a first
 * token. Rates come in samples of milliseconds, one operation at a time; a prompt's layers run all of them in
 * turn, from an idle device on, for up to some hundred milliseconds. */
#include <math.h>
#include <stdlib.h>

#include "common/base/units.h"
#include "worker-gpu/measure/private.h"

#define IDLE_MS       20        /* the device's, before a burst and between steps that begin from a pause */
#define OTHERS_BYTES  (4 * MIB) /* twice a large L2 */
#define LONG_BURST_S  0.15
#define SHORT_BURST_S 0.02
#define ISSUED_LAYERS 28 /* less than a queue holds: the host never waits for room in it */

/* Kernels of a chunk's list, for models without biases: of the step's beginning, or of a layer. */
static uint32_t kernels_of(bool layer)
{
    const struct model_config plain = {.architecture = "LlamaForCausalLM"}; /* the layers of a dense model */
    enum op_kind first[PROGRAM_OPS_MAX];
    struct model_math math;
    model_math_build(&plain, &math);
    if (!layer)
        return program_ops_first(PROCESSOR_GPU, first) +
               program_ops_count(&math.embed, PROCESSOR_GPU, OP_TIER_CHUNK);
    return program_part_count(&math.part[UNIT_ATTENTION], PROCESSOR_GPU, OP_TIER_CHUNK) +
           program_part_count(&math.part[UNIT_MLP], PROCESSOR_GPU, OP_TIER_CHUNK);
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
    const struct measure_work first = {.m = m, .tokens = 1, .ops = kernels_of(false)};
    int rc = measure_issue_tiny(&first, err);
    return rc ? rc : device_word_write(m->device, word, 1, err);
}

/* gpu.begin, after a pause as before a prompt; with a graph gpu.begin_graph, one step behind another. */
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
        rc = graph ? d->ops->graph_launch(d, graph, err) : issue_nothing(m, word, err);
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

/* Layers as a chunk has them. In place of rotating and appending, which would change what is measured with,
 * a kernel that does nothing. */
static int issue_layers(const struct measure_work *w, struct helm_err *err)
{
    const struct measure_work rotate = {.m = w->m, .tokens = 1, .ops = 1};
    int rc = 0;
    for (uint32_t l = 0; l < w->ops && !rc; l++) {
        const struct op attend = measure_attend_prefill(w, l % measure_kv_layers(w->m));
        rc = measure_issue_many(w, MEASURE_LAYER_OPS * l, err);
        if (!rc) rc = measure_issue_tiny(&rotate, err);
        if (!rc) rc = device_run(w->m->device, &attend, err);
        for (uint32_t op = 1; op < MEASURE_LAYER_OPS && !rc; op++)
            rc = measure_issue_many(w, MEASURE_LAYER_OPS * l + op, err);
    }
    return rc;
}

/* What the host needs for a kernel, from a pause on, over as many as a small model's prompt has. */
static int measure_issue(struct measure *m, uint64_t *others, struct helm_err *err)
{
    struct measure_samples samples = {.count = 0};
    const struct measure_work w = {
        .m = m, .shape = m->kernels->small, .tokens = 128, .heads = MEASURE_HEADS_PAIR, .ops = ISSUED_LAYERS};
    int rc = measure_set_step(m, 0, w.tokens, err);
    for (uint32_t s = 0; s < samples_of(m) + 1 && !rc; s++) {
        pause_of_others(others);
        double start = units_now_s();
        rc = issue_layers(&w, err);
        double seconds = units_now_s() - start;
        if (s) measure_add(&samples, seconds / (w.ops * kernels_of(true))); /* the first loads code */
        if (!rc) rc = measure_drain(m, DEVICE_COMPUTE, err);
    }
    if (!rc) measure_print(m, "gpu.issue", 0, &samples);
    return rc;
}

/* gpu.together at one number of tokens: bursts of whole layers against the sum of what they are priced as. */
static int measure_together(struct measure *m, const struct measure_chunk_parts *parts, double burst_s,
                            struct helm_err *err)
{
    struct measure_samples samples = {.count = 0};
    const struct measure_work w = {.m = m,
                                   .shape = m->kernels->large,
                                   .tokens = parts->tokens,
                                   .heads = MEASURE_HEADS,
                                   .ops = measure_layers_of(m, m->kernels->large),
                                   .start = MEASURE_CONTEXT / 2 - parts->tokens};
    double sum = parts->linears_s + parts->attention_s + 2 * parts->launch_s; /* rotation, attention */
    if (parts->linears_s <= 0 || parts->attention_s <= 0 || w.ops == 0) return 0;
    int rc = measure_set_step(m, w.start, w.tokens, err);
    uint32_t times = (uint32_t)ceil(burst_s / (sum * w.ops));
    for (uint32_t s = 0; s < (m->options->quick ? 3 : 9) && !rc; s++) {
        units_sleep_ms(IDLE_MS);
        double start = units_now_s();
        for (uint32_t i = 0; i < times && !rc; i++) rc = issue_layers(&w, err);
        if (!rc) rc = measure_drain(m, DEVICE_COMPUTE, err);
        measure_add(&samples, (units_now_s() - start) / (times * w.ops) / sum);
    }
    if (!rc) measure_print(m, "gpu.together", parts->tokens, &samples);
    return rc;
}

/* An emulated device measures only how late a chunk begins: issuing and computing threads share the processors. */
int measure_chunks_run(struct measure *m, const struct measure_chunk_parts *parts, struct helm_err *err)
{
    uint64_t *others = calloc(1, OTHERS_BYTES);
    if (!others) return helm_fail(err, HELM_E_NOMEM, "no memory to pass the caches with");
    int rc = measure_begins(m, others, err);
    if (!rc && !m->emulated) rc = measure_issue(m, others, err);
    free(others);
    if (rc || m->emulated) return rc;
    for (int i = 0; i < MEASURE_CHUNK_SIZES && !rc; i++)
        rc = measure_together(m, &parts[i],
                              parts[i].tokens < MEASURE_TOKENS_MAX ? SHORT_BURST_S : LONG_BURST_S, err);
    return rc;
}
