/* Rates of other formats of weights than bf16. See profile_tool.h. Called by helm_profile.c.
 *
 * The CPU's by steps of the worker's engine over a model whose layers are bf16 and each of the formats in
 * turn. A step has the time of both, some milliseconds apart, so what else goes on in the machine meets them
 * alike: a format's rate is that of the profile times the median ratio to bf16's. Blocks are random; the
 * device has its own (worker-gpu/measure/formats.c). */
#include <stdlib.h>
#include <string.h>

#include "common/base/cgroup.h"
#include "common/base/cpu.h"
#include "common/base/node.h"
#include "common/base/units.h"
#include "tools/profile/profile_tool.h"

#define DEVICE_S       3.6 /* of all formats */
#define DEVICE_S_LEAST 0.4 /* of each of many */
#define DEVICE_S_MOST  1.2
#define ONE_S          1.2 /* alone, and beside copies */
#define MANY_S         0.6 /* of each number of tokens */
#define QUICK          4   /* times less in a hurry */
#define STEP_S_MOST    1.2 /* a step expected to take longer is left out, */
#define STEP_S_QUICK   1.0 /* in a hurry */
#define LEAST_BYTES    (1152 * MIB)
#define LEAST_QUICK    ((PROFILE_SANITIZED ? 60 : 192) * MIB)
#define LEAST_SAMPLES  (PROFILE_SANITIZED ? 1 : 3)
#define FEW            32 /* tokens up to which a step is repeated, however long it takes */

/* From steps that are reading to those that are work. */
static const uint32_t counts[] = {4, 32, 128};
#define COUNTS (sizeof counts / sizeof *counts)

struct formats {
    struct profile_cpu_options options;
    enum tensor_format format[FORMAT_COUNT]; /* of layers: bf16 first */
    uint32_t count;
    struct profile_shape shape;
    struct profile_steps steps;
    bool cached; /* so few weights that caches hold a part of them that counts */
    struct profile_samples ratio[LINEAR_INPUTS][FORMAT_COUNT]; /* [][as format]: to bf16 */
};

/* ---- weights ---- */

/* Bytes of all formats' layers: past the caches. */
static uint64_t wanted_bytes(const struct formats *f)
{
    const uint64_t caches = PROFILE_CACHES_LEAST * f->options.caches,
                   least = f->options.quick ? LEAST_QUICK : LEAST_BYTES;
    return caches > least ? caches : least;
}

static int open_steps(struct formats *f, struct helm_err *err)
{
    const uint64_t caches = PROFILE_CACHES_LEAST * f->options.caches;
    struct cgroup_memory memory;
    int rc = node_read_memory(f->options.node, &memory, err);
    if (!rc)
        rc = profile_shape_choose_formats(wanted_bytes(f), memory.available_bytes / 3, f->format, f->count,
                                          &f->shape, err);
    if (!rc) rc = profile_steps_open(&f->options, &f->shape, KV_F16, &f->steps, err);
    if (!rc) rc = profile_steps_fill(&f->steps, f->steps.local.engine.weights.formats, err);
    if (!rc) f->cached = f->steps.local.engine.weights.host.region_bytes < caches;
    return rc;
}

/* ---- rates ---- */

/* Values a second of the last step's layers of format number `i`. */
static double rate_of(const struct formats *f, uint32_t i)
{
    double seconds = 0, layers = 0;
    for (uint32_t l = i; l < f->shape.layers; l += f->count, layers++)
        seconds +=
            profile_steps_layer(&f->steps, (int32_t)l, PROFILE_KIND(OP_LINEAR) | PROFILE_KIND(OP_NORM));
    return (double)f->shape.layer_bytes / 2 * layers / seconds;
}

/* Whether a format has products with int8 activations here: then the engine's other programs multiply by it
 * so. */
static bool has_int8(const struct formats *f, uint32_t i)
{
    return f->steps.local.engine.programs[LINEAR_INT8].plan && linear_has_int8(f->format[i], cpu_features());
}

/* A step, which is a sample of every format's ratio. */
static int run_step(struct formats *f, uint32_t tokens, enum linear_inputs inputs, struct helm_err *err)
{
    double spent = 0;
    (void)engine_use(&f->steps.local.engine, inputs);
    int rc = profile_steps_run(&f->steps, 0, tokens, &spent, err);
    if (rc) return rc;
    double rate[FORMAT_COUNT];
    for (uint32_t i = 0; i < f->count; i++)
        rate[i] = tokens == 1 ? profile_steps_read(&f->steps, &f->shape, i) : rate_of(f, i);
    for (uint32_t i = 1; i < f->count; i++) profile_samples_add(&f->ratio[inputs][i], rate[i] / rate[0]);
    return 0;
}

/* Steps of `tokens` tokens for `seconds`, with exact and with int8 activations in turns. */
static int run_steps(struct formats *f, uint32_t tokens, double seconds, struct helm_err *err)
{
    const uint32_t least = tokens > FEW ? 1 : LEAST_SAMPLES;
    const bool int8 = f->steps.local.engine.programs[LINEAR_INT8].plan != NULL;
    double spent = 0, end = 0;
    int rc =
        tokens > FEW ? 0 : profile_steps_run(&f->steps, 0, tokens, &spent, err); /* finds all in its place */
    for (uint32_t i = 0; i < f->count; i++)
        f->ratio[LINEAR_EXACT][i].count = f->ratio[LINEAR_INT8][i].count = 0;
    end = units_now_s() + seconds / (f->options.quick ? QUICK : 1);
    for (uint32_t n = 0; !rc && (n < least || units_now_s() < end); n++) {
        rc = run_step(f, tokens, LINEAR_EXACT, err);
        if (!rc && int8) rc = run_step(f, tokens, LINEAR_INT8, err);
    }
    return rc;
}

/* A value of memory: an estimate where the weights fit the caches. */
static struct profile_value times(const struct formats *f, enum linear_inputs inputs, uint32_t i, double rate)
{
    struct profile_value v = profile_samples_value(&f->ratio[inputs][i]);
    if (f->cached && v.source == PROFILE_MEASURED) v.source = PROFILE_ESTIMATE;
    v.value *= rate, v.low *= rate, v.high *= rate;
    return v;
}

/* `stream`: a device whose copies flow meanwhile. */
static int measure_one(struct formats *f, struct profile_device_run *stream, struct profile *p,
                       struct helm_err *err)
{
    int rc = stream ? profile_device_stream_start(stream, err) : 0;
    if (!rc) rc = run_steps(f, 1, ONE_S, err);
    if (!rc && stream) rc = profile_device_stream_stop(stream, err);
    for (uint32_t i = 1; i < f->count && !rc; i++) {
        struct profile_format *format = &p->format[f->format[i]];
        const double plain = (stream ? p->cpu.gemv_beside : p->cpu.gemv).value;
        *(stream ? &format->cpu_gemv_beside : &format->cpu_gemv) = times(f, LINEAR_EXACT, i, plain);
        if (has_int8(f, i))
            *(stream ? &format->cpu_int8_gemv_beside : &format->cpu_int8_gemv) =
                times(f, LINEAR_INT8, i, plain);
    }
    return rc;
}

static int measure_many(struct formats *f, struct profile *p, struct helm_err *err)
{
    int rc = 0;
    for (size_t c = 0; c < COUNTS && !rc; c++) {
        const double rate = profile_table_at(&p->cpu.linear, counts[c]).value,
                     flops = (double)f->shape.layer_bytes * f->shape.layers * counts[c];
        if (c && flops / rate > (f->options.quick ? STEP_S_QUICK : STEP_S_MOST)) continue;
        rc = run_steps(f, counts[c], MANY_S, err);
        for (uint32_t i = 1; i < f->count && !rc; i++) {
            struct profile_format *format = &p->format[f->format[i]];
            profile_table_put(&format->cpu_linear, counts[c], times(f, LINEAR_EXACT, i, rate));
            if (has_int8(f, i))
                profile_table_put(&format->cpu_int8_linear, counts[c], times(f, LINEAR_INT8, i, rate));
        }
    }
    return rc;
}

static void say(const struct formats *f, const struct profile *p)
{
    for (uint32_t i = 1; i < f->count; i++) {
        const struct profile_format *format = &p->format[f->format[i]];
        char device[64] = "", int8[48] = "";
        if (format->gpu_gemv.value > 0)
            snprintf(device, sizeof device, ", GPU %.4g GB/s",
                     (format->gpu_chain_gemv.value > 0 ? format->gpu_chain_gemv : format->gpu_gemv).value *
                         1e-9);
        if (format->cpu_int8_gemv.value > 0)
            snprintf(int8, sizeof int8, ", with int8 %.4g", format->cpu_int8_gemv.value * 1e-9);
        profile_say(f->options.progress, "%s: one token, CPU %.4g GB/s%s (bf16 %.4g)%s",
                    tensor_format_name(f->format[i]), format->cpu_gemv.value * 1e-9, int8,
                    p->cpu.gemv.value * 1e-9, device);
    }
}

int profile_formats_measure(const struct profile_cpu_options *options, unsigned formats,
                            struct profile_device_run *device, struct profile *profile, struct helm_err *err)
{
    struct formats *f = aligned_alloc(64, (sizeof *f + 63) / 64 * 64);
    if (!f) return helm_fail(err, HELM_E_NOMEM, "no memory to measure formats of weights");
    memset(f, 0, sizeof *f);
    f->options = *options;
    f->format[f->count++] = FORMAT_BF16;
    for (int i = 0; i < FORMAT_COUNT; i++)
        if (formats & format_bit((enum tensor_format)i)) f->format[f->count++] = (enum tensor_format)i;
    double seconds = DEVICE_S / (f->count - 1.0);
    if (seconds < DEVICE_S_LEAST) seconds = DEVICE_S_LEAST;
    if (seconds > DEVICE_S_MOST) seconds = DEVICE_S_MOST;
    if (options->quick) seconds /= QUICK;
    int rc = 0;
    for (uint32_t i = 1; i < f->count && device && !rc; i++)
        rc = profile_device_format(device, f->format[i], seconds, profile, err);
    if (!rc) rc = open_steps(f, err);
    if (!rc) rc = measure_one(f, NULL, profile, err);
    if (!rc && device) rc = measure_one(f, device, profile, err);
    if (!rc) rc = measure_many(f, profile, err);
    if (!rc) say(f, profile);
    profile_steps_close(&f->steps);
    free(f);
    return rc;
}
