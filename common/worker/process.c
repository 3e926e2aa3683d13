/* A worker's main program. See engine.h. */
#include "common/worker/engine.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "common/base/args.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/start.h"
#include "common/cpu/pool.h"
#include "common/worker/control.h"

/* True when helmd died between fork and prctl, so that no signal will come: we belong to init now, and init
 * is no helmd (in a container helmd may itself be process 1). */
static bool is_orphan(void)
{
    char name[32] = "";
    if (getppid() != 1) return false;
    FILE *file = fopen("/proc/1/comm", "r");
    if (file) {
        if (!fgets(name, sizeof name, file)) name[0] = '\0';
        fclose(file);
    }
    return strncmp(name, "helmd", 5) != 0;
}

static int read_secret(int fd, unsigned char *secret, struct helm_err *err)
{
    size_t have = 0;
    while (have < CONTROL_SECRET_BYTES) {
        ssize_t got = read(fd, secret + have, CONTROL_SECRET_BYTES - have);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return helm_fail_errno(err, "--secret-fd %d", fd);
        if (got == 0)
            return helm_fail(err, HELM_E_PEER, "--secret-fd %d: %zu bytes of %d", fd, have,
                             CONTROL_SECRET_BYTES);
        have += (size_t)got;
    }
    close(fd);
    return 0;
}

static int serve(struct control_options *control, int arena_fd, int secret_fd, struct helm_err *err)
{
    struct arena arena = {.fd = -1};
    int rc = read_secret(secret_fd, control->secret, err);
    if (!rc) rc = arena_attach(arena_fd, &arena, err);
    if (rc) goto out;
    if (arena_header_of(&arena)->epoch != control->epoch) {
        rc = helm_fail(err, HELM_E_MISMATCH, "the arena is of epoch %u, this worker of %u",
                       arena_header_of(&arena)->epoch, control->epoch);
        goto out;
    }
    control->arena = &arena;
    rc = control_serve(control, err);
out:
    arena_close(&arena);
    return rc;
}

static int print(const struct worker_engine_ops *engine, const char *folder, const char *plan_file,
                 uint32_t threads, const char *kernels, struct helm_err *err)
{
    struct plan plan = {0};
    json_t *json = NULL;
    int rc = plan_file ? json_read_file(plan_file, PLAN_TEXT_MAX, &json, err) : 0;
    if (rc) return rc;
    if (plan_file) rc = plan_from_json(json, &plan, err);
    if (rc) rc = helm_err_prefix(err, "%s", plan_file);
    if (!rc) rc = engine->print_plan(folder, plan_file ? &plan : NULL, threads, kernels, stdout, err);
    json_decref(json);
    plan_free(&plan);
    return rc;
}

int process_main(const char *program, const char *about, const struct worker_engine_ops *engine, int argc,
                 char **argv)
{
    uint64_t arena_fd = 0, done_fd = 0, secret_fd = 0, worker = 0, epoch = 0, threads = 1;
    bool probe = false;
    struct engine_measure_options measure = {0};
    const char *endpoint = NULL, *level_text = "info", *folder = NULL, *plan = NULL, *kernels = "";
    const struct args_option options[] = {
        {"arena-fd", 0, ARGS_U64, "N", "the arena's memfd", .target = &arena_fd, .min = 3, .max = 1 << 20},
        {"done-fd", 0, ARGS_U64, "N", "eventfd to write to after each step", .target = &done_fd, .min = 3,
         .max = 1 << 20},
        {"secret-fd", 0, ARGS_U64, "N", "pipe with the secret for HELLO", .target = &secret_fd, .min = 3,
         .max = 1 << 20},
        {"control", 0, ARGS_TEXT, "ENDPOINT", "helmd's control socket", .target = &endpoint},
        {"worker", 0, ARGS_U64, "INDEX", "this worker's doorbell", .target = &worker,
         .max = ARENA_WORKERS_MAX - 1},
        {"epoch", 0, ARGS_U64, "E", "of the arena", .target = &epoch, .max = UINT32_MAX},
        {"log-level", 0, ARGS_CHOICE, "LEVEL", "error, warn, info or debug", .target = &level_text,
         .choices = "error|warn|info|debug"},
        {"print-program", 0, ARGS_TEXT, "DIR", "print what a checkpoint is lowered to, and exit",
         .target = &folder},
        {"plan", 0, ARGS_TEXT, "FILE", "for --print-program: this worker's share of a plan", .target = &plan},
        {"probe", 0, ARGS_FLAG, NULL, "print the devices there are as JSON, and exit", .target = &probe},
        {"measure", 0, ARGS_TEXT, "DEVICE", "measure a device, as helm-profile asks on stdin",
         .target = &measure.device},
        {"vram", 0, ARGS_SIZE, "SIZE", "for --measure: use no more of the device's memory",
         .target = &measure.vram_bytes},
        {"emulated-copy", 0, ARGS_SIZE, "SIZE", "for --measure: bytes a second the emulated device copies",
         .target = &measure.copy_bytes_per_s},
        {"host", 0, ARGS_SIZE, "SIZE", "for --measure: copies go round in this much host memory or more",
         .target = &measure.host_bytes},
        {"quick", 0, ARGS_FLAG, NULL, "for --measure: in a hurry", .target = &measure.quick},
        {"threads", 0, ARGS_U64, "N", "for --print-program", .target = &threads, .min = 1,
         .max = POOL_THREADS_MAX},
        {"kernels", 0, ARGS_TEXT, "NAME", "for --print-program: a kernel variant", .target = &kernels},
    };
    const struct args_spec spec = {
        .program = program,
        .usage = "--arena-fd N --done-fd N --secret-fd N --control ENDPOINT --worker INDEX "
                 "--epoch E\n--print-program DIR [--plan FILE] [--threads N] [--kernels NAME]\n--probe\n"
                 "--measure DEVICE [--vram SIZE] [--emulated-copy SIZE] [--host SIZE] [--quick]",
        .about = about,
        ARGS_TABLE(options)};
    struct args_parsed parsed;
    struct helm_err err = {0};
    enum log_level level;
    int rc = start_process(&err);
    if (rc) {
        log_init(program, LOG_LEVEL_INFO);
        log_error("%s", err.text);
        return 5;
    }
    args_parse_main(&spec, argc, argv, &parsed);
    rc = log_level_parse(level_text, &level, &err);
    if (rc) return args_usage_error(&spec, &err);
    log_init(program, level);
    const char *wrong = probe && !engine->probe              ? "--probe: this worker computes on no device"
                        : measure.device && !engine->measure ? "--measure: this worker computes on no device"
                        : plan && !folder                    ? "--plan needs --print-program"
                                                             : NULL;
    if (wrong) {
        helm_fail(&err, HELM_E_USAGE, "%s", wrong);
        return args_usage_error(&spec, &err);
    }
    if (probe) {
        engine->probe(stdout);
        return 0;
    }
    if (measure.device) return engine->measure(&measure, stdin, stdout);
    if (folder) {
        rc = print(engine, folder, plan, (uint32_t)threads, kernels, &err);
        if (rc) log_error("%s", err.text);
        return rc ? 5 : 0;
    }
    pid_t parent = getppid();
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent || is_orphan()) {
        log_error("helmd is gone");
        return 5;
    }
    if (!arena_fd || !done_fd || !secret_fd || !endpoint) {
        helm_fail(&err, HELM_E_USAGE, "--arena-fd, --done-fd, --secret-fd and --control are needed");
        return args_usage_error(&spec, &err);
    }
    signal(SIGINT, SIG_IGN); /* the terminal's Ctrl-C is for helmd, which then sends SHUTDOWN */
    signal(SIGPIPE, SIG_IGN);
    struct control_options control = {.engine = engine,
                                      .endpoint = endpoint,
                                      .epoch = (uint32_t)epoch,
                                      .worker = (uint32_t)worker,
                                      .done_fd = (int)done_fd,
                                      .parent = parent};
    rc = serve(&control, (int)arena_fd, (int)secret_fd, &err);
    if (rc) log_error("%s", err.text);
    return rc ? 5 : 0;
}
