/* helm-profile: what its files share.
 *
 * helm_profile.c holds the options and the order of work; shape.c makes a model that exists only to be
 * measured; steps.c runs the CPU worker's engine over it, for cpu.c, for which packed.c has packed weights,
 * and for formats.c, which measures other formats of weights; device.c asks helm-worker-gpu to measure the
 * device; programs.c, programs_gpu.c and programs_all.c measure a model's own programs; now.c takes what
 * memory gives at a moment; host.c measures doorbells; samples.c turns numbers into
 * values; print.c shows them. docs/profile.md says what each number means. */
#pragma once

#include <jansson.h>
#include <sched.h>
#include <stdio.h>

#include "daemon/planner/profile/now.h"
#include "daemon/planner/profile/programs.h"
#include "daemon/planner/profile/profile.h"
#include "common/base/units.h"
#include "common/measure/reader.h"
#include "worker-cpu/local.h"

struct profile_device_run;

/* Instrumented products take 10 to 50 times as long, and a sanitized build's rates are no one's: it measures
 * each value in the same way, with fewer weights of a format and one sample where others take several. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PROFILE_SANITIZED 1
#else
#define PROFILE_SANITIZED 0
#endif

/* ---- samples.c ---- */

#define PROFILE_SAMPLES_MAX 256
struct profile_samples {
    double value[PROFILE_SAMPLES_MAX];
    uint32_t count;
};
/* Beyond PROFILE_SAMPLES_MAX the oldest give way. */
void profile_samples_add(struct profile_samples *samples, double value);
/* Median, 10th and 90th percentile; unknown without samples. */
struct profile_value profile_samples_value(const struct profile_samples *samples);
/* Puts a point at x, in the place of one that is there; ignored when the table is full or the value is 0. */
void profile_table_put(struct profile_table *table, uint32_t x, struct profile_value value);

/* ---- progress ---- */

struct profile_progress {
    FILE *out; /* NULL: say nothing */
    double start_s;
    double attempt_s; /* when this attempt began */
    double late_s;    /* after so long it is late */
};
/* So much of the minute is gone that what can be left out is left out: on a machine that is busy. */
bool profile_late(const struct profile_progress *progress);
void profile_say(const struct profile_progress *progress, const char *fmt, ...) HELM_PRINTF(2, 3);

/* ---- shape.c ---- */

/* A model of `layers` layers of one of the Qwen3 shapes. */
struct profile_shape {
    const char *size; /* of mkmodel: "8b" */
    uint32_t layers;
    uint64_t layer_bytes; /* of bf16 */
    const enum tensor_format
        *format;      /* of a layer's matrices, layer after layer, round and round; borrowed */
    uint32_t formats; /* 0: all are bf16 */
};
/* Bytes of a format for each byte of as many values of bf16. */
static inline double profile_format_part(enum tensor_format format)
{
    const struct tensor_format_traits *t = tensor_format_of(format);
    return (double)t->block_bytes / (2.0 * t->block_values);
}
/* How much must pass by between two reads of the same byte, so that what was measured is memory: caches do
 * not forget the oldest first, and keep up to their own size of whatever goes round. With less than
 * PROFILE_CACHES_LEAST times their size rates are estimates. */
#define PROFILE_CACHES_LEAST 3
/* How much is loaded to be measured with; `caches`: the last-level caches together, 0 where unknown; `cpus`:
 * that may fill it. */
uint64_t profile_weights_past(uint64_t caches, uint32_t cpus, bool quick);
/* The largest shape that makes `bytes` of weights or a little more in at least two layers, and no more than
 * `most`: matrices as large as a real step's, one after another. */
HELM_MUST_CHECK int profile_shape_choose(uint64_t bytes, uint64_t most, struct profile_shape *shape,
                                         struct helm_err *err);
/* The same in whole rounds of layers of these formats. */
HELM_MUST_CHECK int profile_shape_choose_formats(uint64_t bytes, uint64_t most,
                                                 const enum tensor_format *format, uint32_t formats,
                                                 struct profile_shape *shape, struct helm_err *err);
/* The model, without files (common/model/sample.h). */
HELM_MUST_CHECK int profile_shape_make(const struct profile_shape *shape, struct model *model,
                                       struct helm_err *err);

/* ---- steps.c ---- */

struct profile_cpu_options {
    uint32_t threads; /* 0: as the worker chooses */
    int node;         /* NUMA node, -1: none */
    uint64_t caches;  /* bytes of the last-level caches together, 0 where unknown */
    bool quick;
    bool brief;         /* only what plans of the formats asked for need */
    bool invariant;     /* the engine's plan is: several tokens of a step have each the bits of one */
    uint32_t sequences; /* that the cache has room for; 0: one */
    const struct profile_progress *progress;
};
/* The worker's engine over a model that exists only to be measured, and where its steps' time goes. */
struct profile_steps {
    struct local local;
    bool open;
    uint64_t *entry_ns; /* of the last step's program, *local.engine.run.program[0] */
    uint32_t entries;
    uint32_t slot;     /* of the sequence that steps are of */
    double region_s;   /* that a region of the pool costs, empty */
    cpu_set_t allowed; /* the caller's CPUs before it became thread 0 */
};
/* Loads it, its weights zeros, its cache of this type; the caller becomes its thread 0. */
HELM_MUST_CHECK int profile_steps_open(const struct profile_cpu_options *options,
                                       const struct profile_shape *shape, enum kv_dtype kv_dtype,
                                       struct profile_steps *steps, struct helm_err *err);
/* The same over a model that was made (common/model/sample.h), which is taken. */
struct profile_made {
    struct model *model;
    enum kv_dtype kv_dtype;
    uint32_t slots, context_tokens, step_tokens, pages; /* as struct local_options */
};
HELM_MUST_CHECK int profile_steps_open_made(const struct profile_cpu_options *options,
                                            const struct profile_made *made, struct profile_steps *steps,
                                            struct helm_err *err);
void profile_steps_close(struct profile_steps *steps);
/* The region of its weights, to be written to; its size is the engine's. */
HELM_MUST_CHECK int profile_steps_weights(struct profile_steps *steps, char **weights, struct helm_err *err);
/* Random blocks in all matrices that have one of these formats (format_bit). */
HELM_MUST_CHECK int profile_steps_fill(struct profile_steps *steps, unsigned formats, struct helm_err *err);
/* One step of a single row; `seconds` of all of it. */
HELM_MUST_CHECK int profile_steps_run(struct profile_steps *steps, uint32_t start, uint32_t tokens,
                                      double *seconds, struct helm_err *err);
/* One step of these rows, whose tokens are in the history. */
HELM_MUST_CHECK int profile_steps_rows(struct profile_steps *steps, const struct step_row *rows,
                                       uint32_t count, double *seconds, struct helm_err *err);
/* Seconds of a layer's entries of these kinds (a bit each) in the last step. */
double profile_steps_layer(const struct profile_steps *steps, int32_t layer, unsigned kinds);
#define PROFILE_KIND(kind) (1u << (kind))
/* Without what empty regions cost: a quarter at most, on a machine so busy that regions were measured at a
 * worse moment. */
double profile_steps_less(const struct profile_steps *steps, double seconds, uint32_t regions);
/* Bytes a second of the last step's products, of one token, in layers of the shape's format number
 * `index`. */
double profile_steps_read(const struct profile_steps *steps, const struct profile_shape *shape,
                          uint32_t index);

/* ---- cpu.c ---- */

struct profile_cpu_run;
/* Loads the engine; the caller becomes its thread 0. */
HELM_MUST_CHECK int profile_cpu_open(const struct profile_cpu_options *options, struct profile_cpu_run **run,
                                     struct helm_err *err);
void profile_cpu_close(struct profile_cpu_run *run);
/* Everything of the CPU that is not beside copies; adds the engine's part to profile->step. */
HELM_MUST_CHECK int profile_cpu_measure(struct profile_cpu_run *run, struct profile *profile,
                                        struct helm_err *err);
/* A device whose copies run beside the CPU's steps, and their bytes a second: beside steps of one token with
 * plain weights, and beside plain reads. */
struct profile_company {
    struct profile_device_run *device;
    struct profile_samples plain, packed, read;
};
/* Decodes for about `seconds` more, with plain and packed weights in turns: alone (company NULL, in turns
 * with reads), or beside copies. gemv, gemv_packed and read, or the rates beside copies, are then those of
 * all calls so far. */
HELM_MUST_CHECK int profile_cpu_gemv(struct profile_cpu_run *run, double seconds,
                                     struct profile_company *company, struct profile_cpu *cpu,
                                     struct helm_err *err);

/* ---- formats.c ---- */

/* Measures the profile's rates of these formats of weights: the CPU's by the ratio to bf16, so that
 * profile->cpu's rates must be there; the device's own, if there is one (else NULL). Takes some seconds,
 * however many there are. */
HELM_MUST_CHECK int profile_formats_measure(const struct profile_cpu_options *options, unsigned formats,
                                            struct profile_device_run *device, struct profile *profile,
                                            struct helm_err *err);

/* ---- programs.c ---- */

/* The model's own programs on the CPU, those of invariant plans where `cpu` says so: times of *programs,
 * whose kinds are the model's (programs_list), beside what it has. The model is taken. `device`: whose copies
 * flow for what is beside them; NULL: none. All takes about `seconds`, what is loaded included. */
struct profile_programs {
    struct profile_cpu_options cpu;
    struct model *model;
    enum kv_dtype kv_dtype;
    struct profile_device_run *device;
    double seconds;
};
HELM_MUST_CHECK int profile_programs_measure(const struct profile_programs *request,
                                             struct programs *programs, struct helm_err *err);
/* Tokens of a step that is measured, in the order of their worth, and the contexts: a short and a long
 * one. */
#define PROFILE_PROGRAM_COUNTS   8
#define PROFILE_PROGRAM_CONTEXTS 2
/* Seconds of a step of `tokens` tokens, by the largest number of tokens below that was measured (step_s; 0:
 * not yet): in proportion, and up to `few` tokens, which wait for memory, by the root of that. 0: unknown. */
double profile_program_expected(const uint32_t counted[PROFILE_PROGRAM_COUNTS],
                                const double step_s[PROFILE_PROGRAM_COUNTS], uint32_t tokens, uint32_t few);
/* Bytes of layers' matrices that a step of one token reads, and all of them: added to. */
void profile_program_bytes(const struct model *model, const uint32_t *layer, uint32_t layers, uint64_t *read,
                           uint64_t *all);
/* The first `few` layers over and over, `rounds` times. Returns how many these are. */
uint32_t profile_program_repeat(uint32_t *layer, uint32_t few, uint32_t rounds);

/* ---- programs_gpu.c ---- */

/* The same programs on the device, all in its memory: gpu[way] of the kinds, and gpu_begin[way]. */
struct profile_programs_gpu {
    const struct model *model;             /* all of it */
    const char *path, *weights, *kv_dtype; /* as helm-worker-gpu reads it */
    struct profile_device_run *device;
    uint64_t vram_free;
    bool emulated;
    enum programs_gpu_way way;
    double seconds; /* when it is loaded */
};
HELM_MUST_CHECK int profile_programs_gpu_measure(const struct profile_programs_gpu *request,
                                                 struct programs *programs, struct helm_err *err);

/* ---- kv.c ---- */

/* The CPU's values of a type of cache. The caller becomes thread 0 of an engine that is gone at the end. */
HELM_MUST_CHECK int profile_kv_measure(const struct profile_cpu_options *options, enum kv_dtype dtype,
                                       struct profile_kv *kv, struct helm_err *err);

/* ---- attend.c ---- */

/* Bytes of such a cache a second that the CPU attends to for a GPU. The caller is thread 0 of a pool
 * meanwhile. */
HELM_MUST_CHECK int profile_attend_measure(const struct profile_cpu_options *options, enum kv_dtype dtype,
                                           struct profile_value *value, struct helm_err *err);

/* ---- packed.c ---- */

struct profile_packed;
/* The layers of an engine that holds them plain, packed, in `layers` places (1 and more; further layers share
 * them), and programs of its first phase over them. *packed is NULL where the processor has no kernels for
 * packed weights, or the shape's columns are not for them. The caller is thread 0 of the engine's pool; the
 * engine outlives *packed. */
HELM_MUST_CHECK int profile_packed_open(struct engine *engine, uint32_t layers,
                                        struct profile_packed **packed, struct helm_err *err);
void profile_packed_close(struct profile_packed *packed);
/* Between steps: the engine's next ones are with packed weights, or again with plain ones. */
void profile_packed_swap(struct profile_packed *packed);
/* Bytes of the packed weights, and the same as a part of the plain ones. */
uint64_t profile_packed_bytes(const struct profile_packed *packed);
double profile_packed_part(const struct profile_packed *packed);

/* ---- host.c ---- */

/* There and back between two threads; from a thread that is not pinned. */
HELM_MUST_CHECK int profile_host_doorbell(struct profile_value *value, struct helm_err *err);
/* From a ring until a thread that slept in futex is there. */
HELM_MUST_CHECK int profile_host_wake(bool quick, struct profile_value *value, struct helm_err *err);

/* ---- device.c ---- */

struct profile_device_options {
    const char *program; /* path of helm-worker-gpu */
    const char *name;    /* "cuda:0", "emulated" */
    uint64_t copy_bytes_per_s;
    uint64_t host_bytes; /* that copies go round in, at least */
    bool quick;
};
/* Starts the process that measures the device, which opens it meanwhile. */
HELM_MUST_CHECK int profile_device_open(const struct profile_device_options *options,
                                        struct profile_device_run **device, struct helm_err *err);
void profile_device_close(struct profile_device_run *device);
/* Everything of the device and the link but what is measured beside the CPU. */
HELM_MUST_CHECK int profile_device_measure(struct profile_device_run *device, struct profile *profile,
                                           struct helm_err *err);
/* Rates of one format of weights, in about `seconds`; profile_device_measure must not follow. */
HELM_MUST_CHECK int profile_device_format(struct profile_device_run *device, enum tensor_format format,
                                          double seconds, struct profile *profile, struct helm_err *err);
/* Bytes a second of copies to the device, alone. */
HELM_MUST_CHECK int profile_device_link(struct profile_device_run *device, double *rate,
                                        struct helm_err *err);
/* A model's programs, as worker-gpu/measure/measure.h has them: loads what the request says; then seconds of
 * whole steps (variant 0), of none of it (1), and without each kind of half layer (2 and more). Closed before
 * anything else is measured. */
struct profile_device_cell {
    uint32_t tokens, context;
    double seconds; /* to be spent on it */
    bool beside;    /* the whole step alone, while copies flow */
};
HELM_MUST_CHECK int profile_device_programs(struct profile_device_run *device, const json_t *request,
                                            struct helm_err *err);
HELM_MUST_CHECK int profile_device_cell(struct profile_device_run *device,
                                        const struct profile_device_cell *cell,
                                        struct profile_samples *variant, uint32_t variants,
                                        struct helm_err *err);
HELM_MUST_CHECK int profile_device_programs_close(struct profile_device_run *device, struct helm_err *err);
/* Between start and stop copies flow from host memory. */
HELM_MUST_CHECK int profile_device_stream_start(struct profile_device_run *device, struct helm_err *err);
HELM_MUST_CHECK int profile_device_stream_stop(struct profile_device_run *device, struct helm_err *err);
/* Meanwhile: how many bytes had arrived when the last copy that is done was. */
struct profile_copied {
    double bytes, at_s;
};
HELM_MUST_CHECK int profile_device_copied(struct profile_device_run *device, struct profile_copied *copied,
                                          struct helm_err *err);

/* ---- programs_all.c ---- */

/* --model as helmd's --weights has it (NULL: stored). */
HELM_MUST_CHECK int profile_programs_model(const char *path, const char *weights, struct model *model,
                                           struct helm_err *err);
/* Both of the above, in at most 20 s: on the device, on the CPU as most plans run them and as invariant ones
 * do, as far as they are wanted. That the device has none is said and no error. */
struct accelerator;
struct profile_programs_all {
    struct profile_cpu_options cpu;
    struct profile_device_options device;
    const struct accelerator *accelerator;
    const struct model *model;
    const char *path, *weights, *kv_dtype;
    bool on_device, on_cpu;
};
HELM_MUST_CHECK int profile_programs_all(const struct profile_programs_all *all, struct programs *programs,
                                         struct helm_err *err);

/* ---- now.c ---- */

/* Measures the rates of memory, read so, and link at this moment, in about half a second and the time to open
 * the device; `device` NULL: none. The caller becomes thread 0 of a pool. now->reads: exact where the format
 * has no other products. */
HELM_MUST_CHECK int profile_now_measure(const struct profile_cpu_options *cpu,
                                        const struct profile_device_options *device,
                                        const struct profile_reads *reads, struct profile_now *now,
                                        struct helm_err *err);

/* ---- print.c ---- */

void profile_print(const struct profile *profile, FILE *out);
