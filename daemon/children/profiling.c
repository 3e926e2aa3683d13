/* Which profile is planned with. See profiling.h. Called by main.c before any thread exists; owns nothing. */
#include "daemon/children/profiling.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <systemd/sd-daemon.h>
#include <time.h>
#include <unistd.h>

#include "common/base/json.h"
#include "common/base/load.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "daemon/children/child_run.h"
#include "daemon/children/worker_process.h"

#define PROGRAM          "helm-profile"
#define LIMIT_S          300 /* it says itself that it needs one minute at most */
#define NOW_S            60  /* --now: a second, and what opening a device takes */
#define NOW_TEXT         1024
#define PROGRAMS_LIMIT_S 120 /* the same, of --programs: 20 s at most, more on a machine that is busy */
#define LOOK_MS          300 /* whether the machine is quiet */
#define RETAKE_S         600

/* A measurement and its reason. `doing` is shown to the waiting user with the line that follows: by systemd,
 * or by helm-cli, which reads NOTIFY_SOCKET when it has started this daemon. */
struct job {
    const char *doing;
    unsigned formats; /* beside what every profile has */
    bool quick, brief, force;
};

/* The status line has a clock of its own, so "  0.2 s  CPU: loading" is shown without its time. */
static const char *without_time(const char *line)
{
    const char *at = line + strspn(line, " 0123456789.");
    if (strncmp(at, "s  ", 3) == 0) return at + 3;
    return line + strspn(line, " ");
}

static void tell_line(void *context, const char *line)
{
    const struct job *job = context;
    const bool lost = strncmp(without_time(line), "not kept", 8) == 0;
    log_at(lost ? LOG_LEVEL_WARN : LOG_LEVEL_INFO, PROGRAM ": %s%s", line,
           lost ? ": the next start measures again" : "");
    sd_notifyf(0, "STATUS=%s: %s", job->doing, without_time(line));
}

/* So that it measures this very machine: what is planned for. */
struct options {
    const char *argv[24];
    size_t count;
    char number[3][24], formats[PROFILE_FORMATS_TEXT];
};

static void add_number(struct options *o, int which, bool there, const char *name, long long value)
{
    snprintf(o->number[which], sizeof o->number[which], "%lld", value);
    if (!there) return;
    o->argv[o->count++] = name;
    o->argv[o->count++] = o->number[which];
}

static void make_options(const struct profiling_request *r, unsigned formats, struct options *o)
{
    *o = (struct options){.argv = {PROGRAM, "--device", r->device->name[0] ? r->device->name : "cpu"},
                          .count = 3};
    add_number(o, 0, r->threads, "--threads", r->threads);
    add_number(o, 1, r->node >= 0, "--node", r->node);
    add_number(o, 2, r->copy_bytes_per_s, "--emulated-copy", (long long)r->copy_bytes_per_s);
    profile_formats_text(formats, o->formats);
    if (!formats) return;
    o->argv[o->count++] = "--formats";
    o->argv[o->count++] = o->formats;
}

static void add_worker_dir(const struct profiling_request *r, struct options *o)
{
    if (!r->program_dir) return;
    o->argv[o->count++] = "--worker-dir";
    o->argv[o->count++] = r->program_dir;
}

/* `child` has what becomes of its words and of its text. */
static int run_program(const struct profiling_request *r, struct options *o, struct child_run *child,
                       struct helm_err *err)
{
    char program[4096], how[128];
    int rc = worker_process_find(r->program_dir, PROGRAM, program, sizeof program, err);
    if (rc) return rc;
    child->name = PROGRAM;
    child->program = program;
    child->argv = o->argv;
    child->parent_fd = r->parent_fd;
    rc = child_run(child, err);
    const char *last = child_words_end(&child->words);
    if (rc || (WIFEXITED(child->status) && WEXITSTATUS(child->status) == 0)) return rc;
    worker_process_describe(child->status, how, sizeof how);
    return helm_fail(err, HELM_E_PEER, PROGRAM " %s%s%s", how, last[0] ? ": " : "", last);
}

/* Whether a profile is of what will be planned for. */
static int check_device(const char *what, const struct profiling_request *r, const struct profile *profile,
                        struct helm_err *err)
{
    if (r->device->ledger.kind == LEDGER_DEVICE_NONE || profile->gpu.device != PROFILE_DEVICE_NONE) return 0;
    return helm_fail(err, HELM_E_MISMATCH, "%s is of a machine without a device, and --device %s was chosen",
                     what, r->device->name);
}

static int measure(const struct profiling_request *r, struct job *job, struct profile *profile,
                   struct helm_err *err)
{
    static const char printed[] = "what " PROGRAM " printed";
    struct options o;
    struct child_run child = {.text = malloc(PROFILE_BYTES_MAX + 1),
                              .most = PROFILE_BYTES_MAX,
                              .limit_s = LIMIT_S,
                              .words = {.on_line = tell_line, .context = job}};
    if (!child.text) return helm_fail(err, HELM_E_NOMEM, "no memory for a profile");
    make_options(r, job->formats, &o);
    add_worker_dir(r, &o);
    o.argv[o.count++] = "--json";
    if (job->quick) o.argv[o.count++] = "--quick";
    if (job->brief) o.argv[o.count++] = "--brief";
    if (job->force) o.argv[o.count++] = "--force";
    sd_notifyf(0, "STATUS=%s", job->doing);
    int rc = run_program(r, &o, &child, err);
    if (!rc && !child.length)
        rc = helm_fail(err, HELM_E_MISMATCH,
                       PROGRAM " ended well and printed no profile: is it of this build?");
    if (!rc) rc = profile_parse(printed, child.text, child.length, profile, err);
    if (!rc) rc = check_device(printed, r, profile, err);
    free(child.text);
    return rc;
}

/* ---- which one ---- */

static int read_checked(const char *path, const struct profiling_request *r, struct profile *profile,
                        struct helm_err *err)
{
    /* A machine's own, else the one that is named likewise on another; the first where there is none such. */
    const char *const names[] = {r->device->info.uuid, r->device->name, NULL};
    int rc = HELM_E_NOT_FOUND;
    for (size_t i = 0; i < sizeof names / sizeof *names && rc == HELM_E_NOT_FOUND; i++)
        if (names[i] ? names[i][0] != 0 : !r->exactly) rc = profile_read(path, names[i], profile, err);
    return rc ? rc : check_device(path, r, profile, err);
}

/* Measures something into the cached profile. Where that fails the profile that is there serves, and a
 * warning says that `what` was not measured; an ended start is an error. */
static int measure_into(const struct profiling_request *r, struct job *job, const char *what,
                        struct profile *profile, struct helm_err *err)
{
    struct helm_err why = {0};
    struct profile measured;
    int rc = measure(r, job, &measured, &why);
    if (rc == HELM_E_CANCELLED) {
        *err = why;
        return rc;
    }
    if (rc)
        log_warn("profile: %s could not be measured%s: %s", what, job->force ? " again" : "", why.text);
    else
        *profile = measured;
    return 0;
}

/* Measures the plan's formats that the cached profile lacks into it. */
static int add_formats(const struct profiling_request *r, struct profile *profile, struct helm_err *err)
{
    const unsigned lacking = profile_formats_lacking(profile, r->formats);
    char names[PROFILE_FORMATS_TEXT];
    if (!lacking) return 0;
    profile_formats_text(lacking, names);
    log_info("profile: it has no rates of %s yet: measuring them (up to 15 s)", names);
    struct job job = {.doing = "measuring the model's formats, once for each",
                      .formats = lacking,
                      .quick = true,
                      .brief = profile->brief};
    return measure_into(r, &job, names, profile, err);
}

/* A brief one is measured in full for a plan that needs the rest, with all formats that it has. */
static int complete(const struct profiling_request *r, struct profile *profile, bool *fresh,
                    struct helm_err *err)
{
    struct job job = {.doing = "measuring this machine in full, only this once",
                      .quick = true,
                      .force = true};
    if (!profile->brief || r->dense) return 0;
    for (int f = 0; f < FORMAT_COUNT; f++) {
        const unsigned bit = format_bit((enum tensor_format)f);
        const bool there = !profile_formats_lacking(profile, bit) || (r->formats & bit);
        if (there && profile_format_has_rates((enum tensor_format)f)) job.formats |= bit;
    }
    log_info("profile: it was taken for models of some formats alone: measuring the rest");
    *fresh = true;
    return measure_into(r, &job, "the rest of the machine", profile, err);
}

/* Whether nothing but this process runs on the processors it may use. */
static bool machine_is_quiet(void)
{
    struct load load;
    load_begin(&load);
    units_sleep_ms(LOOK_MS);
    return load_others(&load) < PROFILE_QUIET;
}

/* A profile that others disturbed is taken again at a start that finds the machine quiet, at most every
 * RETAKE_S: the one that is there serves until then, and where the second measuring fails. */
static int retake(const struct profiling_request *r, const char *path, struct profile *profile, bool *fresh,
                  struct helm_err *err)
{
    struct job job = {.doing = "measuring this machine again (others were busy on it)",
                      .quick = profile->quick,
                      .brief = profile->brief,
                      .force = true};
    struct stat st;
    if (profile->busy_percent < PROFILE_BUSY || stat(path, &st) || time(NULL) - st.st_mtime < RETAKE_S)
        return 0;
    if (!machine_is_quiet()) {
        log_info("profile: others took %u %% of the processors' time when it was measured, and are at work "
                 "now, too",
                 profile->busy_percent);
        return 0;
    }
    log_info("profile: measuring again: others took %u %% of the processors' time the last time",
             profile->busy_percent);
    *fresh = true;
    return measure_into(r, &job, "the machine", profile, err);
}

static void log_profile(const struct profiling_request *r, const char *path, const struct profile *profile)
{
    char options[160];
    struct options o;
    log_info("profile: %s, of %s%s", path, profile->made, profile->quick ? ", taken quickly" : "");
    if (profile->busy_percent >= PROFILE_BUSY)
        log_warn("profile: other programs took %u %% of the processors' time while it was measured: the "
                 "forecast may be "
                 "too low. A start that finds the machine quiet measures it again",
                 profile->busy_percent);
    if (!profile->quick) return;
    make_options(r, 0, &o);
    for (size_t i = 1, n = 0; i < o.count && n < sizeof options; i++)
        n += (size_t)snprintf(options + n, sizeof options - n, " %s", o.argv[i]);
    log_info("profile: `" PROGRAM "%s` takes a minute and makes better forecasts", options);
}

/* No profile that can be used: measures one, and the model's formats at once. */
static int measure_first(const struct profiling_request *r, struct profile *profile, struct helm_err *err)
{
    struct job job = {.doing = "measuring this machine, only this once",
                      .quick = true,
                      .brief = r->dense && r->device->ledger.kind == LEDGER_DEVICE_NONE};
    for (int f = 0; f < FORMAT_COUNT; f++)
        if (profile_format_has_rates((enum tensor_format)f))
            job.formats |= r->formats & format_bit((enum tensor_format)f);
    log_info("profile: measuring it, quickly (some seconds)");
    return measure(r, &job, profile, err);
}

/* The cached one, measured first where there is none that can be used. No place for it is no reason not to
 * start. */
static int get_cached(const struct profiling_request *r, const char *fingerprint, struct profile *profile,
                      bool *fresh, struct helm_err *err)
{
    char path[4096];
    struct helm_err found = {0};
    int rc = profile_cache_path(fingerprint, path, sizeof path, &found);
    const bool place = rc == 0, there = place && access(path, F_OK) == 0;
    if (there && !read_checked(path, r, profile, &found)) {
        rc = retake(r, path, profile, fresh, err);
        if (!rc && !*fresh) rc = complete(r, profile, fresh, err);
    } else {
        if (there)
            log_warn("the cached profile cannot be used: %s", found.text);
        else
            log_info("there is no profile of this machine yet: %s", place ? path : found.text);
        *fresh = true;
        rc = measure_first(r, profile, err);
    }
    if (!rc) rc = add_formats(r, profile, err);
    if (!rc) log_profile(r, place ? path : "kept nowhere", profile);
    return rc;
}

/* As helm-profile calls this machine. */
static int fingerprint_of(const struct profiling_request *r, char fingerprint[72], struct helm_err *err)
{
    struct profile_hardware hardware = {.threads = r->threads, .node = r->node};
    if (r->copy_bytes_per_s)
        snprintf(hardware.device, sizeof hardware.device, "%.60s, copies %llu a second", r->device->hardware,
                 (unsigned long long)r->copy_bytes_per_s);
    else
        snprintf(hardware.device, sizeof hardware.device, "%s", r->device->hardware);
    return profile_fingerprint(&hardware, fingerprint, NULL, 0, err);
}

static bool is_of_here(const struct profile *profile, const char *fingerprint)
{
    return profile->fingerprint[0] && strcmp(profile->fingerprint, fingerprint) == 0;
}

int profiling_get(const struct profiling_request *r, struct profile *profile, bool *fresh,
                  struct helm_err *err)
{
    struct helm_err unknown = {0};
    char fingerprint[72];
    memset(profile, 0, sizeof *profile);
    *fresh = false;
    int rc = fingerprint_of(r, fingerprint, r->file ? &unknown : err);
    if (r->file) {
        rc = read_checked(r->file, r, profile, err);
        if (rc) return helm_err_prefix(err, "--profile");
        log_info("profile: %s, of %s%s%s", r->file,
                 is_of_here(profile, fingerprint) ? "this machine"
                 : profile->fingerprint[0]
                     ? "another machine, or other threads or devices: forecasts are for those"
                     : "a machine that is described: forecasts are for that one",
                 profile->gpu.name[0] ? "; its GPU: " : "", profile->gpu.name);
    } else if (!rc) {
        rc = get_cached(r, fingerprint, profile, fresh, err);
        if (rc == HELM_E_CANCELLED) return rc;
        if (rc) return helm_err_prefix(err, "no profile of this machine (--profile FILE gives one)");
    }
    return rc;
}

/* ---- the model's programs ---- */

static int measure_programs(const struct profiling_request *r, const struct profiling_model *m,
                            struct programs *programs, struct helm_err *err)
{
    struct job job = {.doing = "measuring the model on this machine, only this once"};
    struct options o;
    struct child_run child = {.text = malloc(PROGRAMS_BYTES_MAX + 1),
                              .most = PROGRAMS_BYTES_MAX,
                              .limit_s = PROGRAMS_LIMIT_S,
                              .words = {.on_line = tell_line, .context = &job}};
    if (!child.text) return helm_fail(err, HELM_E_NOMEM, "no memory for measured programs");
    make_options(r, 0, &o);
    add_worker_dir(r, &o);
    const char *const more[] = {"--programs", "--model",    m->model->path, "--weights",
                                m->weights,   "--kv-dtype", m->kv_dtype};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) o.argv[o.count++] = more[i];
    if (m->device_alone) {
        o.argv[o.count++] = "--on";
        o.argv[o.count++] = "device";
    }
    sd_notifyf(0, "STATUS=%s", job.doing);
    int rc = run_program(r, &o, &child, err);
    if (!rc) rc = programs_parse(PROGRAM " --programs", child.text, child.length, programs, err);
    free(child.text);
    return rc;
}

/* Whether they are those of all processors that plans use. */
static bool has_all(const struct profiling_request *r, const struct profiling_model *m,
                    const struct programs *programs)
{
    return (m->device_alone || programs_has_cpu(programs)) &&
           (r->device->ledger.kind == LEDGER_DEVICE_NONE || programs->gpu_tried);
}

int profiling_programs(const struct profiling_request *r, const struct profiling_model *m,
                       const struct profile *profile, struct programs *programs, struct helm_err *err)
{
    char fingerprint[72], path[4096], key[DIGEST_TEXT];
    struct helm_err why = {0};
    int rc = programs_kept(m->model, profile->fingerprint, m->kv_dtype, programs, path, sizeof path, &why);
    const bool kept = !rc, whole = kept && has_all(r, m, programs);
    if (kept) log_info("profile: %s: the model's own programs, of %s", path, programs->made);
    if (whole) return 0;
    if (rc && rc != HELM_E_NOT_FOUND)
        log_warn("profile: the model's measured programs cannot be used: %s", why.text);
    if (fingerprint_of(r, fingerprint, &why) || !is_of_here(profile, fingerprint)) {
        if (!kept) programs->kinds = 0;
        return 0;
    }
    memcpy(key, programs->key, sizeof key);
    log_info("profile: measuring the model's own programs, once (up to 20 s)");
    rc = measure_programs(r, m, programs, &why);
    if (!rc && strcmp(programs->key, key) != 0)
        rc = helm_fail(&why, HELM_E_MISMATCH,
                       "what " PROGRAM " measured is of other shapes or another machine");
    if (!rc) return 0;
    if (rc == HELM_E_CANCELLED) {
        programs->kinds = 0;
        *err = why;
        return rc;
    }
    struct helm_err gone = {0};
    if (!kept ||
        programs_kept(m->model, profile->fingerprint, m->kv_dtype, programs, path, sizeof path, &gone))
        programs->kinds = 0;
    log_warn("profile: the model's own programs could not be measured, prices go by rates: %s", why.text);
    return 0;
}

/* ---- now ---- */

static int measure_now(const struct profiling_request *r, struct profile_now *rates, struct helm_err *err)
{
    struct job job = {.doing = "looking at what memory gives now"};
    char text[NOW_TEXT + 1];
    struct options o;
    struct child_run child = {.text = text,
                              .most = NOW_TEXT,
                              .limit_s = NOW_S,
                              .words = {.on_line = tell_line, .context = &job}};
    json_t *json = NULL;
    make_options(r, profile_format_has_rates(r->reads.format) ? format_bit(r->reads.format) : 0, &o);
    add_worker_dir(r, &o);
    o.argv[o.count++] = "--now";
    if (r->reads.inputs == LINEAR_INT8) {
        o.argv[o.count++] = "--activations";
        o.argv[o.count++] = linear_inputs_name(LINEAR_INT8);
    }
    sd_notifyf(0, "STATUS=%s", job.doing);
    int rc = run_program(r, &o, &child, err);
    if (!rc) rc = json_parse_bounded(PROGRAM " --now", text, child.length, NOW_TEXT, &json, err);
    if (!rc) rc = profile_now_from_json(json, rates, err);
    json_decref(json);
    return rc;
}

/* Why `auto` measures nothing; NULL: it does. */
static const char *why_not_now(const struct profiling_request *r, bool used, bool fresh,
                               const struct profile *profile)
{
    char fingerprint[72];
    struct helm_err unknown = {0};
    if (fresh) return "not measured, the profile is of this moment";
    if (!used) return "not measured, a step reads nothing there";
    if (r->device->ledger.kind == LEDGER_DEVICE_EMULATED) return "not measured beside an emulated device";
    if (fingerprint_of(r, fingerprint, &unknown) || !is_of_here(profile, fingerprint))
        return "not measured, the profile is not this machine's";
    return NULL;
}

int profiling_now(const struct profiling_request *r, const char *option, bool used, bool fresh,
                  const struct profile *profile, struct machine_now *now, struct helm_err *err)
{
    const bool chooses = strcmp(option, PROFILING_NOW_AUTO) == 0, on = strcmp(option, "on") == 0;
    const char *why = strcmp(option, "off") == 0 ? "not measured, --now off"
                      : chooses                  ? why_not_now(r, used, fresh, profile)
                                                 : NULL;
    struct profile_now rates;
    struct helm_err failed = {0};
    profile_now_unknown(now, why ? why : "");
    if (why) {
        log_info("profile: %s", now->text);
        return 0;
    }
    int rc = chooses || on ? measure_now(r, &rates, &failed) : profile_now_read(option, &rates, &failed);
    if (!rc) rc = profile_now_check(profile, &rates, &failed);
    if (rc == HELM_E_CANCELLED || (rc && !chooses)) {
        *err = failed;
        return helm_err_prefix(err, "--now %s", option);
    }
    if (rc) {
        profile_now_unknown(now, "it could not be measured");
        log_warn("profile: %s: %s", now->text, failed.text);
        return 0;
    }
    profile_now_decide(profile, &rates, now);
    log_info("profile: %s", now->text);
    return 0;
}
