/* Which profile is planned with. See profiling.h. Called by main.c before any thread exists; owns nothing. */
#include "daemon/children/profiling.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "common/base/log.h"
#include "daemon/children/child_run.h"
#include "daemon/children/worker_process.h"

#define PROGRAM "helm-profile"
#define LIMIT_S 300 /* it says itself that it needs one minute at most */

static void log_line(const char *line)
{
    log_info(PROGRAM ": %s", line);
}

/* So that it measures this very machine: what is planned for. */
struct options {
    const char *argv[16];
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

static int measure(const struct profiling_request *r, unsigned formats, bool quick, struct helm_err *err)
{
    char program[4096], how[128];
    struct options o;
    struct child_run child = {.name = PROGRAM,
                              .program = program,
                              .argv = o.argv,
                              .parent_fd = r->parent_fd,
                              .limit_s = LIMIT_S,
                              .words.on_line = log_line};
    int rc = worker_process_find(r->program_dir, PROGRAM, program, sizeof program, err);
    if (rc) return rc;
    make_options(r, formats, &o);
    if (r->program_dir) {
        o.argv[o.count++] = "--worker-dir";
        o.argv[o.count++] = r->program_dir;
    }
    if (quick) o.argv[o.count++] = "--quick";
    sd_notify(0, "STATUS=measuring this machine");
    rc = child_run(&child, err);
    const char *last = child_words_end(&child.words);
    if (rc || (WIFEXITED(child.status) && WEXITSTATUS(child.status) == 0)) return rc;
    worker_process_describe(child.status, how, sizeof how);
    return helm_fail(err, HELM_E_PEER, PROGRAM " %s%s%s", how, last[0] ? ": " : "", last);
}

/* ---- which one ---- */

static int read_checked(const char *path, const struct profiling_request *r, struct profile *profile,
                        struct helm_err *err)
{
    int rc = profile_read(path, profile, err);
    if (!rc && r->device->ledger.kind != LEDGER_DEVICE_NONE && profile->gpu.device == PROFILE_DEVICE_NONE)
        rc =
            helm_fail(err, HELM_E_MISMATCH, "%s is of a machine without a device, and --device %s was chosen",
                      path, r->device->name);
    return rc;
}

/* What the cached one lacks of the plan's formats is measured into it. */
static int add_formats(const struct profiling_request *r, const char *path, bool quick,
                       struct profile *profile, struct helm_err *err)
{
    const unsigned lacking = profile_formats_lacking(profile, r->formats);
    struct helm_err why = {0};
    char names[PROFILE_FORMATS_TEXT];
    if (!lacking) return 0;
    profile_formats_text(lacking, names);
    log_info("profile: it has no rates of %s yet: measuring them (up to 15 s)", names);
    int rc = measure(r, lacking, quick, &why);
    if (rc == HELM_E_CANCELLED) {
        *err = why;
        return rc;
    }
    if (rc) log_warn("profile: %s could not be measured: %s", names, why.text);
    return rc ? 0 : read_checked(path, r, profile, err);
}

/* The cached one, measured first where there is none that can be used. */
static int get_cached(const struct profiling_request *r, const char *fingerprint, struct profile *profile,
                      struct helm_err *err)
{
    char path[4096], options[160];
    struct options o;
    struct helm_err found = {0};
    bool quick = r->device->ledger.kind != LEDGER_DEVICE_CUDA;
    int rc = profile_cache_path(fingerprint, path, sizeof path, err);
    if (rc) return rc;
    if (access(path, F_OK) == 0) {
        if (!read_checked(path, r, profile, &found)) goto found;
        log_warn("the cached profile cannot be used: %s", found.text);
    } else {
        log_info("there is no profile of this machine yet");
    }
    log_info("profile: measuring it, %s", quick ? "quickly (some seconds)" : "once (up to a minute)");
    rc = measure(r, 0, quick, err);
    if (rc) return rc;
    if (access(path, F_OK))
        return helm_fail(err, HELM_E_MISMATCH, PROGRAM " ended well and left no %s: is it of this build?",
                         path);
    rc = read_checked(path, r, profile, err);
    if (rc) return rc;
found:
    rc = add_formats(r, path, quick, profile, err);
    if (rc) return rc;
    log_info("profile: %s, of %s%s", path, profile->made, profile->quick ? ", taken quickly" : "");
    if (profile->quick) {
        make_options(r, 0, &o);
        for (size_t i = 1, n = 0; i < o.count && n < sizeof options; i++)
            n += (size_t)snprintf(options + n, sizeof options - n, " %s", o.argv[i]);
        log_info("profile: `" PROGRAM "%s` takes a minute and makes better forecasts", options);
    }
    return 0;
}

int profiling_get(const struct profiling_request *r, struct profile *profile, struct helm_err *err)
{
    struct profile_hardware hardware = {.threads = r->threads, .node = r->node};
    struct helm_err unknown = {0};
    char fingerprint[72];
    memset(profile, 0, sizeof *profile);
    /* as helm-profile calls it */
    if (r->copy_bytes_per_s)
        snprintf(hardware.device, sizeof hardware.device, "%.60s, copies %llu a second", r->device->hardware,
                 (unsigned long long)r->copy_bytes_per_s);
    else
        snprintf(hardware.device, sizeof hardware.device, "%s", r->device->hardware);
    int rc = profile_fingerprint(&hardware, fingerprint, NULL, 0, r->file ? &unknown : err);
    if (r->file) {
        rc = read_checked(r->file, r, profile, err);
        if (rc) return helm_err_prefix(err, "--profile");
        bool here = profile->fingerprint[0] && strcmp(profile->fingerprint, fingerprint) == 0;
        log_info("profile: %s, of %s", r->file,
                 here ? "this machine"
                 : profile->fingerprint[0]
                     ? "another machine, or other threads or devices: forecasts are for those"
                     : "a machine that is described: forecasts are for that one");
    } else if (!rc) {
        rc = get_cached(r, fingerprint, profile, err);
        if (rc == HELM_E_CANCELLED) return rc;
        if (rc) return helm_err_prefix(err, "no profile of this machine (--profile FILE gives one)");
    }
    return rc;
}
