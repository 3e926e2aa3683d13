/* helm-profile: measures this machine for the planner, at most once: the result is kept under a fingerprint
 * of the hardware (docs/profile.md).
 *
 * Run by people, and by helmd at its first start:
 *   helm-profile --device X [--threads N] [--node N] [--quick]
 *     leaves the profile where profile_cache_path says and exits 0; says on stderr what it does
 *   helm-profile --programs --model PATH --device X [--weights NAME] [--kv-dtype T]
 *     prints what the model's own programs take, measured where the cache has no file of them, as JSON
 *   helm-profile --now --device X [--threads N] [--node N] [--formats NAME [--activations int8]]
 *     prints what memory and link give at this moment, as JSON, and keeps nothing
 * A profile that cannot be kept is a warning ("not kept: ..."), and is printed all the same.
 * Start order only: options, device, fingerprint, what is cached, or else the measuring. */
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "common/base/args.h"
#include "common/base/cpu.h"
#include "common/base/cgroup.h"
#include "common/base/load.h"
#include "common/base/log.h"
#include "common/base/start.h"
#include "common/model/mixture.h"
#include "common/base/units.h"
#include "daemon/children/accelerator.h"
#include "daemon/children/worker_process.h"
#include "common/cpu/pool.h"
#include "tools/interrupt/interrupt.h"
#include "tools/profile/profile_tool.h"

#define BESIDE_S       1.3
#define BESIDE_QUICK_S 0.4
/* A full one of a quiet machine with a GPU takes 45 s. */
#define LATE_S         55.0
#define LATE_QUICK_S   38.0
#define ATTEMPTS       2
#define ATTEMPTS_QUICK 4
#define FORMATS_S      15.0 /* after so long, formats are not measured again */
#define PATH_TEXT      4096

struct options {
    const char *device, *out, *worker_dir, *formats, *model, *activations, *weights, *kv_dtype, *on;
    uint64_t threads, node, caches, copy_bytes_per_s;
    bool force, json, quick, brief, node_given, now, programs;
};

struct tool {
    struct options options;
    unsigned formats;        /* of weights, that are asked for */
    enum tensor_format main; /* the one of --formats, or what most of --model's bytes are of */
    struct accelerator device;
    int node;               /* NUMA node, as helmd chooses it; -1: none */
    char worker[PATH_TEXT]; /* helm-worker-gpu */
    struct profile_progress progress;
    struct profile profile;
    struct model model; /* of --model; empty: none was named */
    struct programs programs;
};

static bool has_device(const struct tool *t)
{
    return t->device.ledger.kind != LEDGER_DEVICE_NONE;
}

/* The pair that the planner lives of: the CPU decodes while the link streams. In turns with decoding alone,
 * so that both see the same minutes of a machine that others use, too. */
static int measure_beside(struct tool *t, struct profile_cpu_run *cpu, struct profile_company *company,
                          struct helm_err *err)
{
    struct profile *p = &t->profile;
    double seconds = t->options.quick ? BESIDE_QUICK_S : BESIDE_S;
    int rc = 0;
    for (int i = 0; i < (t->options.quick ? 2 : 4) && !rc && (i == 0 || !profile_late(&t->progress)); i++) {
        rc = profile_device_stream_start(company->device, err);
        if (!rc) rc = profile_cpu_gemv(cpu, seconds, company, &p->cpu, err);
        if (!rc) rc = profile_device_stream_stop(company->device, err);
        if (!rc) rc = profile_cpu_gemv(cpu, seconds, NULL, &p->cpu, err);
    }
    if (rc) return rc;
    p->link.h2d_beside = profile_samples_value(&company->plain);
    p->link.h2d_beside_packed = profile_samples_value(&company->packed);
    p->link.h2d_beside_read = profile_samples_value(&company->read);
    profile_say(&t->progress, "both at once: CPU %.4g GB/s (alone %.4g), link %.4g GB/s (alone %.4g)",
                p->cpu.gemv_beside.value * 1e-9, p->cpu.gemv.value * 1e-9, p->link.h2d_beside.value * 1e-9,
                p->link.h2d.value * 1e-9);
    profile_say(&t->progress, "both at once: CPU reads %.4g GB/s (alone %.4g), link %.4g GB/s",
                p->cpu.read_beside.value * 1e-9, profile_table_at(&p->cpu.read, p->cpu.threads).value * 1e-9,
                p->link.h2d_beside_read.value * 1e-9);
    if (p->cpu.gemv_packed_beside.value > 0)
        profile_say(&t->progress, "both at once, packed weights: CPU %.4g GB/s (alone %.4g), link %.4g GB/s",
                    p->cpu.gemv_packed_beside.value * 1e-9, p->cpu.gemv_packed.value * 1e-9,
                    p->link.h2d_beside_packed.value * 1e-9);
    return 0;
}

/* Fills in the device's properties that are known without measuring. */
static void describe_device(struct tool *t)
{
    struct profile_gpu *gpu = &t->profile.gpu;
    const struct accelerator *a = &t->device;
    bool cuda = a->ledger.kind == LEDGER_DEVICE_CUDA;
    gpu->device = cuda ? PROFILE_DEVICE_CUDA : PROFILE_DEVICE_EMULATED;
    snprintf(gpu->name, sizeof gpu->name, "%s", cuda ? a->info.name : "emulated, on the CPU");
    snprintf(gpu->uuid, sizeof gpu->uuid, "%s", a->info.uuid);
    snprintf(gpu->compute, sizeof gpu->compute, "%s", a->info.compute);
    gpu->vram_bytes = cuda ? a->info.vram_bytes : a->ledger.limit;
    gpu->vram_free = cuda ? a->info.vram_free : a->ledger.limit;
    gpu->context_bytes = a->ledger.context_bytes;
    t->profile.link.generation = a->info.link_generation;
    t->profile.link.width = a->info.link_width;
}

static struct profile_cpu_options cpu_options_of(const struct tool *t)
{
    return (struct profile_cpu_options){.threads = (uint32_t)t->options.threads,
                                        .node = t->node,
                                        .caches = t->options.caches,
                                        .quick = t->options.quick,
                                        .brief = t->options.brief,
                                        .progress = &t->progress};
}

static struct profile_device_options device_options_of(const struct tool *t)
{
    return (struct profile_device_options){.program = t->worker,
                                           .name = t->device.name,
                                           .copy_bytes_per_s = t->options.copy_bytes_per_s,
                                           .host_bytes = PROFILE_CACHES_LEAST * t->options.caches,
                                           .quick = t->options.quick || t->options.now};
}

static int open_device(const struct tool *t, struct profile_device_run **device, struct helm_err *err)
{
    const struct profile_device_options options = device_options_of(t);
    return profile_device_open(&options, device, err);
}

/* Attention over caches that are no single numbers, and of all types for a GPU. */
static int measure_kv(struct tool *t, struct helm_err *err)
{
    const struct profile_cpu_options options = cpu_options_of(t);
    int rc =
        has_device(t) ? profile_attend_measure(&options, KV_F16, &t->profile.cpu.attention_host, err) : 0;
    for (int d = 0; d < KV_DTYPE_COUNT && !rc; d++) {
        struct profile_kv *kv = &t->profile.kv[d];
        if (kv_dtype_is_plain((uint32_t)d)) continue;
        rc = profile_kv_measure(&options, (enum kv_dtype)d, kv, err);
        if (!rc && has_device(t))
            rc = profile_attend_measure(&options, (enum kv_dtype)d, &kv->cpu_attention_host, err);
        if (!rc)
            profile_say(&t->progress,
                        "CPU: attention over a cache of %s, %.4g GB/s (f16 %.4g), for a GPU %.4g (%.4g)",
                        kv_dtype_name((enum kv_dtype)d), kv->cpu_attention.value * 1e-9,
                        t->profile.cpu.attention.value * 1e-9, kv->cpu_attention_host.value * 1e-9,
                        t->profile.cpu.attention_host.value * 1e-9);
    }
    return rc;
}

/* The device first and the CPU after it, each alone, then both. Its process stays, idle, until the end. */
static int measure(struct tool *t, struct helm_err *err)
{
    const struct options *o = &t->options;
    struct profile *p = &t->profile;
    struct profile_cpu_run *cpu = NULL;
    struct profile_device_run *device = NULL;
    struct profile_company *company = NULL;
    const struct profile_cpu_options cpu_options = cpu_options_of(t);
    int rc = 0;
    p->quick = o->quick;
    p->brief = o->brief;
    pin_prefer_node(t->node); /* the device's process inherits it */
    if (has_device(t)) {
        describe_device(t);
        profile_say(&t->progress, "device: %s", t->device.text);
        rc = open_device(t, &device, err);
        if (!rc) rc = profile_device_measure(device, p, err);
        if (!rc)
            profile_say(&t->progress, "device: VRAM %.4g GB/s, one token %.4g GB/s, link %.4g GB/s",
                        p->gpu.read.value * 1e-9, p->gpu.gemv.value * 1e-9, p->link.h2d.value * 1e-9);
    }
    if (!rc) rc = profile_host_doorbell(&p->step, err); /* before this thread is pinned */
    if (!rc) rc = profile_host_wake(o->quick, &p->wake, err);
    if (!rc) rc = profile_cpu_open(&cpu_options, &cpu, err);
    if (!rc) rc = profile_cpu_measure(cpu, p, err);
    if (!rc && device) {
        company = calloc(1, sizeof *company);
        if (company) company->device = device;
        rc = company ? measure_beside(t, cpu, company, err)
                     : helm_fail(err, HELM_E_NOMEM, "no memory to measure what is beside copies");
    }
    free(company);
    profile_cpu_close(cpu);
    profile_device_close(device);
    if (!rc && !o->brief && !profile_late(&t->progress)) rc = measure_kv(t, err);
    return rc;
}

/* On a machine that does other things, too, two values may contradict each other. `again`: there is time to
 * measure once more; else what is too fast becomes what limits it. True: measure again. */
static bool unsound(struct tool *t, bool again, int *rc, struct helm_err *err)
{
    *rc = profile_check(&t->profile, err);
    if (!*rc) return false;
    profile_say(&t->progress, "%s: %s", err->text, again ? "measuring again" : "marked as disturbed");
    if (again || !profile_settle(&t->profile)) return again;
    *rc = profile_check(&t->profile, err);
    return false;
}

static int measure_until_sound(struct tool *t, struct helm_err *err)
{
    for (int left = t->options.quick ? ATTEMPTS_QUICK : ATTEMPTS;; left--) {
        memset(&t->profile, 0, sizeof t->profile);
        t->progress.attempt_s = units_now_s();
        struct load load;
        load_begin(&load);
        int rc = measure(t, err);
        if (rc) return rc;
        t->profile.busy_percent = load_others(&load);
        if (unsound(t, left > 1, &rc, err)) continue;
        if (!rc && t->profile.busy_percent >= PROFILE_BUSY)
            profile_say(&t->progress,
                        "other programs took %u %% of the processors' time: marked as disturbed",
                        t->profile.busy_percent);
        return rc;
    }
}

/* Formats that are asked for and not there yet. */
static int measure_formats(struct tool *t, struct helm_err *err)
{
    const struct profile_cpu_options options = cpu_options_of(t);
    const unsigned lacking = profile_formats_lacking(&t->profile, t->formats);
    char names[PROFILE_FORMATS_TEXT];
    profile_formats_text(lacking, names);
    profile_say(&t->progress, "formats of weights: %s", names);
    const double begin_s = units_now_s();
    pin_prefer_node(t->node);
    for (int left = t->options.quick ? ATTEMPTS_QUICK : ATTEMPTS;; left--) {
        struct profile_device_run *device = NULL;
        int rc = has_device(t) ? open_device(t, &device, err) : 0;
        if (!rc) rc = profile_formats_measure(&options, lacking, device, &t->profile, err);
        profile_device_close(device);
        if (rc) return rc;
        if (!unsound(t, left > 1 && units_now_s() - begin_s <= FORMATS_S, &rc, err)) return rc;
    }
}

/* Where the profile is to be: the cache's path, if it is kept, and --out. */
static int write_profile(struct tool *t, const char *path, struct helm_err *err)
{
    struct helm_err why = {0};
    interrupt_note(); /* a file has another name until it is whole */
    const int rc = t->options.out ? profile_write(t->options.out, &t->profile, err) : 0;
    const int kept = !rc && path ? profile_write(path, &t->profile, &why) : 0;
    interrupt_release();
    if (!rc && path && kept) profile_say(&t->progress, "not kept: %s", why.text);
    if (!rc && path && !kept) profile_say(&t->progress, "kept: %s", path);
    return rc;
}

/* Where the cached profile is, or is to be; false: nowhere, which is said. */
static bool find_place(struct tool *t, const char *fingerprint, char path[PATH_TEXT])
{
    struct helm_err why = {0};
    const int rc = profile_cache_path(fingerprint, path, PATH_TEXT, &why);
    if (rc) profile_say(&t->progress, "not kept: %s", why.text);
    return rc == 0;
}

/* Before a minute of measuring, whether what comes of it can be kept. */
static bool can_keep(struct tool *t, const char *path)
{
    struct helm_err why = {0};
    int rc = profile_cache_make(path, &why);
    interrupt_note(); /* a file of another name is made and removed */
    if (!rc) rc = profile_write_check(path, &why);
    interrupt_release();
    if (rc) profile_say(&t->progress, "not kept: %s", why.text);
    return rc == 0;
}

/* Those of --formats and of --model's matrices. */
static int read_formats(struct tool *t, struct helm_err *err)
{
    const struct options *o = &t->options;
    struct model *model = &t->model;
    int rc = o->formats ? profile_formats_read(o->formats, &t->formats, err) : 0;
    if (rc) return helm_err_prefix(err, "--formats");
    t->main = FORMAT_BF16;
    for (int f = 0; f < FORMAT_COUNT; f++)
        if (t->formats == format_bit((enum tensor_format)f)) t->main = (enum tensor_format)f;
    if (o->now && t->formats && t->main == FORMAT_BF16)
        return helm_fail(err, HELM_E_USAGE, "--formats: memory is read by one format with --now");
    if (o->weights && strcmp(o->weights, "stored") != 0 && !mixture_named(o->weights))
        return helm_fail(err, HELM_E_USAGE, "--weights: '%.40s' is no mixture of formats", o->weights);
    if (!o->model && o->programs) return helm_fail(err, HELM_E_USAGE, "--programs: of which --model?");
    if (!o->model) return 0;
    rc = profile_programs_model(o->model, o->weights, model, err);
    if (rc) return rc;
    t->formats |= model_formats(model);
    t->main = model_main_format(model);
    return 0;
}

static void write_date(char *text, size_t size)
{
    struct tm date;
    time_t now = time(NULL);
    gmtime_r(&now, &date);
    strftime(text, size, "%Y-%m-%d %H:%M:%S UTC", &date);
}

static void describe_machine(struct tool *t)
{
    struct profile *p = &t->profile;
    struct utsname host;
    char size[UNITS_TEXT];
    struct cgroup_memory memory;
    struct helm_err ignored;
    write_date(p->made, sizeof p->made);
    if (uname(&host)) snprintf(host.nodename, sizeof host.nodename, "this machine");
    uint64_t bytes = cgroup_read_memory(&memory, &ignored) ? 0 : memory.machine_bytes;
    snprintf(p->machine, sizeof p->machine, "%.40s: %u threads of %.50s, %s", host.nodename, p->cpu.threads,
             p->cpu.name, units_format_size(bytes, size));
    for (char *c = p->machine; *c; c++)
        if ((unsigned char)*c < 0x20 || (unsigned char)*c >= 0x7f) *c = '?';
}

/* Whether the cache has what was asked for: not a quick profile where a careful one is wanted. */
static bool take_cached(struct tool *t, const char *path)
{
    struct helm_err err = {0};
    if (t->options.force || access(path, F_OK)) return false;
    if (profile_read(path, NULL, &t->profile, &err)) {
        profile_say(&t->progress, "the cached profile cannot be used: %s", err.text);
        return false;
    }
    if ((t->profile.quick && !t->options.quick) || (t->profile.brief && !t->options.brief)) {
        profile_say(&t->progress, "the cached profile was taken %s: measuring again",
                    t->profile.brief ? "for some formats alone" : "quickly");
        return false;
    }
    profile_say(&t->progress, "cached: %s, of %s", path, t->profile.made);
    return true;
}

static int print_json(json_t *json, struct helm_err *err)
{
    if (!json) return helm_fail(err, HELM_E_NOMEM, "no memory to print JSON");
    json_dumpf(json, stdout, JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9));
    putchar('\n');
    json_decref(json);
    return 0;
}

/* ---- the model's programs ---- */

/* Those that are kept, or measured and kept: as with the profile, a file that cannot be used is measured
 * anew, and no place for one is a warning. */
static int get_programs(struct tool *t, const char *fingerprint, struct helm_err *err)
{
    char path[PATH_TEXT];
    struct helm_err why = {0};
    programs_list(&t->model, &t->programs);
    programs_key(fingerprint, t->options.kv_dtype, &t->programs);
    const bool place = programs_path(&t->programs, path, sizeof path, &why) == 0;
    int rc = t->options.force || !place ? HELM_E_NOT_FOUND : programs_read(path, &t->programs, &why);
    const bool gpu = has_device(t) && !t->programs.gpu_tried,
               cpu = strcmp(t->options.on, "device") != 0 && !programs_has_cpu(&t->programs);
    if (!rc && !gpu && !cpu) {
        profile_say(&t->progress, "the model's programs: cached: %s, of %s", path, t->programs.made);
        return 0;
    }
    if (rc && rc != HELM_E_NOT_FOUND)
        profile_say(&t->progress, "the model's programs cannot be used, measuring again: %s", why.text);
    const struct profile_programs_all all = {.cpu = cpu_options_of(t),
                                             .device = device_options_of(t),
                                             .accelerator = &t->device,
                                             .model = &t->model,
                                             .path = t->options.model,
                                             .weights = t->options.weights,
                                             .kv_dtype = t->options.kv_dtype,
                                             .on_device = gpu,
                                             .on_cpu = cpu};
    rc = profile_programs_all(&all, &t->programs, err);
    write_date(t->programs.made, sizeof t->programs.made);
    if (rc) return rc;
    int kept = place ? profile_cache_make(path, &why) : HELM_E_NOT_FOUND;
    interrupt_note();
    if (!kept) kept = profile_write_json(path, programs_to_json(&t->programs), &why);
    interrupt_release();
    profile_say(&t->progress, kept ? "not kept: %s" : "kept: %s", kept ? why.text : path);
    return 0;
}

/* At this moment, kept nowhere. */
static int run_now(struct tool *t, struct helm_err *err)
{
    const struct profile_cpu_options cpu = cpu_options_of(t);
    const struct profile_device_options device = device_options_of(t);
    const bool int8 = strcmp(t->options.activations, linear_inputs_name(LINEAR_INT8)) == 0;
    const struct profile_reads reads = {t->main, int8 ? LINEAR_INT8 : LINEAR_EXACT};
    struct profile_now now;
    pin_prefer_node(t->node);
    int rc = profile_now_measure(&cpu, has_device(t) ? &device : NULL, &reads, &now, err);
    return rc ? rc : print_json(profile_now_to_json(&now), err);
}

static int run(struct tool *t, struct helm_err *err)
{
    const struct options *o = &t->options;
    const int wanted = o->node_given ? (int)o->node : -1;
    struct profile_hardware hardware = {.threads = (uint32_t)o->threads, .node = wanted};
    struct helm_err none = {0};
    char fingerprint[72], path[PATH_TEXT];
    int rc = accelerator_check_option(o->device, err);
    if (!rc) rc = cpu_check_threads(wanted, o->threads, err);
    if (!rc) rc = read_formats(t, err);
    if (rc) return rc;
    /* A missing program is reported by the choice of the device. */
    rc = worker_process_find(o->worker_dir, "helm-worker-gpu", t->worker, sizeof t->worker, &none);
    rc = accelerator_choose(o->device, 0, rc ? "" : t->worker, &t->device, err);
    if (!rc) rc = accelerator_choose_node(&t->device, wanted, &t->node, err);
    if (!rc) rc = cpu_check_threads(t->node, o->threads, err);
    if (rc) return rc;
    if (o->now) return run_now(t, err);
    snprintf(hardware.device, sizeof hardware.device, "%s", t->device.hardware);
    if (o->copy_bytes_per_s && t->device.ledger.kind != LEDGER_DEVICE_EMULATED)
        return helm_fail(err, HELM_E_USAGE, "--emulated-copy is for --device emulated");
    if (o->copy_bytes_per_s)
        snprintf(hardware.device, sizeof hardware.device, "%.60s, copies %llu a second", t->device.hardware,
                 (unsigned long long)o->copy_bytes_per_s);
    rc = profile_fingerprint(&hardware, fingerprint, NULL, 0, err);
    interrupt_note();
    if (!rc && o->out) rc = profile_write_check(o->out, err);
    interrupt_release();
    if (rc) return rc;
    if (o->programs) return get_programs(t, fingerprint, err);
    bool keep = find_place(t, fingerprint, path);
    bool cached = keep && take_cached(t, path);
    if (!cached) {
        keep = keep && can_keep(t, path);
        rc = measure_until_sound(t, err);
        if (rc) return rc;
        snprintf(t->profile.fingerprint, sizeof t->profile.fingerprint, "%s", fingerprint);
        describe_machine(t);
    }
    /* A finished profile is kept, whatever becomes of the formats. */
    rc = write_profile(t, keep && !cached ? path : NULL, err);
    if (!rc && profile_formats_lacking(&t->profile, t->formats)) {
        rc = measure_formats(t, err);
        if (!rc) rc = write_profile(t, keep ? path : NULL, err);
    }
    return rc || !o->model ? rc : get_programs(t, fingerprint, err);
}

static int print(const struct tool *t, struct helm_err *err)
{
    int rc = 0;
    if (t->options.programs) {
        rc = print_json(programs_to_json(&t->programs), err);
    } else if (t->options.json) {
        rc = print_json(profile_to_json(&t->profile), err);
    } else {
        profile_print(&t->profile, stdout);
    }
    if (rc) return rc;
    return fflush(stdout) ? helm_fail_errno(err, "writing the profile to standard output") : 0;
}

int main(int argc, char **argv)
{
    struct tool *t = calloc(1, sizeof *t);
    struct helm_err err = {0};
    if (!t) {
        fprintf(stderr, "helm-profile: no memory\n");
        return 1;
    }
    struct options *o = &t->options;
    o->device = "auto", o->activations = linear_inputs_name(LINEAR_EXACT), o->kv_dtype = "f16", o->on = "all";
    const struct args_option table[] = {
        {"device", 0, ARGS_TEXT, "DEVICE", "auto, cpu, cuda[:N] or emulated (auto)", .target = &o->device},
        {"threads", 't', ARGS_U64, "N", "the CPU worker's threads (one a physical core)",
         .target = &o->threads, .min = 1, .max = POOL_THREADS_MAX},
        {"node", 0, ARGS_U64, "N",
         "NUMA node to measure, as helmd's (the GPU's, else the one with the most free)", .target = &o->node,
         .max = 1023, .given = &o->node_given},
        {"force", 'f', ARGS_FLAG, NULL, "measure again, whatever is cached", .target = &o->force},
        {"quick", 'q', ARGS_FLAG, NULL, "some seconds instead of up to a minute; wider spreads",
         .target = &o->quick},
        {"brief", 0, ARGS_FLAG, NULL,
         "with --quick and --formats, without a device: only what plans of these formats need, in half the "
         "time",
         .target = &o->brief},
        {"now", 0, ARGS_FLAG, NULL,
         "only what memory and link give at this moment (a second), as JSON; nothing is kept",
         .target = &o->now},
        {"activations", 0, ARGS_CHOICE, "HOW",
         "with --now: memory is read by products of the one format in --formats, or of the main one of "
         "--model, with\n"
         "these activations (exact); without a format, and of bf16, by plain reads",
         .target = &o->activations, .choices = "exact|int8"},
        {"caches", 0, ARGS_SIZE, "SIZE",
         "last-level caches, where a virtual machine sees more than its share (what the processors say)",
         .target = &o->caches},
        {"out", 'o', ARGS_TEXT, "FILE", "write the profile there, too", .target = &o->out},
        {"json", 0, ARGS_FLAG, NULL, "print JSON instead of a table", .target = &o->json},
        {"formats", 0, ARGS_TEXT, "NAME,...",
         "also these formats of weights (q4_k,q6_k), where the profile lacks them", .target = &o->formats},
        {"model", 0, ARGS_TEXT, "PATH",
         "also the formats that this model's weights have, and its own programs", .target = &o->model},
        {"programs", 0, ARGS_FLAG, NULL, "only the programs of --model, as JSON", .target = &o->programs},
        {"on", 0, ARGS_CHOICE, "WHERE",
         "with --model: its programs on the device alone, for plans that have everything there (all)",
         .target = &o->on, .choices = "all|device"},
        {"weights", 0, ARGS_TEXT, "NAME", "--model's weights as helmd's --weights has them (stored)",
         .target = &o->weights},
        {"kv-dtype", 0, ARGS_CHOICE, "TYPE", "the cache of --model's programs (f16)", .target = &o->kv_dtype,
         .choices = "f16|bf16|f32|q8_0"},
        {"emulated-copy", 0, ARGS_SIZE, "SIZE", "bytes a second that the emulated device copies",
         .target = &o->copy_bytes_per_s},
        {"worker-dir", 0, ARGS_TEXT, "DIR", "where helm-worker-gpu is (beside this program)",
         .target = &o->worker_dir},
    };
    const struct args_spec spec = {
        .program = "helm-profile",
        .usage = "[--device DEVICE] [--threads N] [--node N] [--quick] [--force] [--formats NAME,...] "
                 "[--model PATH] [--out FILE] [--json]",
        .about =
            "Measures this machine for the planner. What was measured is kept, and measured again when the\n"
            "hardware has changed.",
        .options = table,
        .option_count = sizeof table / sizeof *table,
        .epilogue = "exit status: 0 done, 1 failed, 2 usage"};
    struct args_parsed parsed;
    args_parse_main(&spec, argc, argv, &parsed);
    if (!o->caches) o->caches = profile_l3_bytes();
    log_init("helm-profile", LOG_LEVEL_WARN);
    t->progress = (struct profile_progress){.out = stderr,
                                            .start_s = units_now_s(),
                                            .late_s = o->quick ? LATE_QUICK_S : LATE_S};
    int rc = start_check_proc(&err);
    if (!rc) rc = run(t, &err);
    if (!rc && !o->now) rc = print(t, &err);
    model_free(&t->model);
    free(t);
    if (rc == HELM_E_USAGE) return args_usage_error(&spec, &err);
    if (rc) fprintf(stderr, "helm-profile: %s\n", err.text);
    return rc ? 1 : 0;
}
