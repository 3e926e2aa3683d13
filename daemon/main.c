/* helmd: the coordinator. This file holds the start order and nothing else.
 *
 * configuration -> model -> run directory and locks -> keeper -> draft model -> device, profile, plan and
 * memory ledgers -> arena -> sockets -> loop -> everything back in reverse. Where the model's check of int8
 * activations fails: workers and arena back, another plan, arena and workers again (remake). Exit status: 0
 * ended on request, 2 usage, 4 refused to start, 5 failed. */
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>
#include <zmq.h>

#include "common/base/cpu.h"
#include "common/base/log.h"
#include "common/base/start.h"
#include "common/base/units.h"
#include "common/model/content.h"
#include "daemon/clients/endpoint.h"
#include "daemon/children/child_run.h"
#include "daemon/start/start.h"
#include "daemon/steps/request.h"

#define LARGE_BUFFER (128 << 10) /* bytes of one that goes back to the system when it is freed */
#define BLAS_THREADS "OPENBLAS_NUM_THREADS"

/* A descriptor the parent handed down: it must be open, and children must not get it. */
static int take_inherited_fd(const char *what, uint64_t number, int *fd, struct helm_err *err)
{
    *fd = -1;
    if (number == CONFIG_NO_FD) return 0;
    if (fcntl((int)number, F_SETFD, FD_CLOEXEC))
        return helm_fail(err, HELM_E_USAGE, "%s %llu is not an open descriptor", what,
                         (unsigned long long)number);
    *fd = (int)number;
    return 0;
}

/* Clients on this machine open the folder for its tokenizer, workers the model, from wherever they are. */
static int name_folder(struct model *model, struct helm_err *err)
{
    char *path = NULL, *whole = realpath(model->folder, NULL);
    const bool gguf = model->config.gguf;
    if (!whole) return helm_fail_errno(err, "%s: cannot resolve", model->folder);
    if (asprintf(&path, "%s%s%s", whole, gguf ? "/" : "", gguf ? model->shards[0].file : "") < 0) {
        free(whole);
        return helm_fail(err, HELM_E_NOMEM, "no memory for a path");
    }
    free(model->folder);
    free(model->path);
    model->folder = whole;
    model->path = path;
    return 0;
}

/* With the layer that makes drafts, if they are to come from it. */
static int read_model(const struct config *c, struct model *model, struct helm_err *err)
{
    if (c->speculate != REQUEST_SPECULATE_MTP) return model_read(c->model, model, err);
    const int rc = model_read_drafting(c->model, model, err);
    return rc == HELM_E_UNSUPPORTED ? helm_err_prefix(err, "--speculate mtp"), rc : rc;
}

static void name_skipped(const struct model *model)
{
    char size[UNITS_TEXT];
    if (model->skipped_count)
        log_info("%u tensors (%s) are not read: nothing here computes with them, as with '%s'",
                 model->skipped_count, units_format_size(model->skipped_bytes, size), model->skipped);
}

static int start(struct helmd *d, struct helm_err *err)
{
    const struct config *c = &d->config;
    int rc = end_request_block(err);
    if (!rc) rc = endpoint_check_free(c->rundir, &c->listen, err);
    if (!rc) rc = read_model(c, &d->model, err);
    if (!rc) rc = name_folder(&d->model, err);
    if (!rc) rc = loaded_files_note(&d->model, &d->files, err);
    if (!rc) rc = rundir_open(c->rundir, &c->listen, &d->rundir, err);
    if (!rc) rc = keeper_start(&d->rundir, &d->keeper, err);
    if (!rc) d->zmq = zmq_ctx_new();
    if (!rc && !d->zmq) rc = helm_fail(err, HELM_E_NOMEM, "no ZeroMQ context");
    if (!rc) rc = drafting_open(d, err);
    if (!rc) rc = machine_look(d, err);
    if (!rc) rc = planning_make(d, err); /* here it is decided whether the layer of drafts is read */
    if (!rc) name_skipped(&d->model);
    if (!rc) rc = model_identity(&d->model, &d->identity, err);
    if (!rc) rc = serving_check_room(d, err);
    if (!rc) rc = end_request_check(err); /* from here on the loop takes it */
    if (!rc) rc = loop_open_signals(&d->signal_fd, err);
    if (!rc) rc = arena_create(&d->arena_spec, &d->arena, err);
    if (rc) return rc;
    metrics_init(&d->metrics);
    const struct request_limits limits = {.vocab = d->model.config.vocab, .context = d->plan.context_tokens};
    const struct client_socket_options clients = {.endpoints = &d->rundir.endpoints,
                                                  .curve_secret_key_file = c->curve_secret_key_file,
                                                  .curve_clients_file = c->curve_clients_file,
                                                  .groups = {c->admin_group, c->gateway_group},
                                                  .frame_max = request_frame_max(&limits)};
    rc = client_socket_open(&clients, &d->clients, err);
    if (!rc) rc = serving_open_workers(d, err);
    if (!rc) rc = serving_open_steps(d, err);
    return rc;
}

static void stop(struct helmd *d)
{
    workers_close(&d->workers);
    client_socket_close(&d->clients);
    drafter_close(&d->drafter);
    if (d->zmq) zmq_ctx_term(d->zmq);
    sessions_free(&d->sessions);
    batcher_free(&d->batcher);
    check_close(&d->check);
    if (d->arena.base) arena_close(&d->arena);
    rundir_close(&d->rundir);
    keeper_dismiss(&d->keeper);
    planning_free(d);
    loaded_files_free(&d->files);
    histogram_free(&d->experts);
    model_free(&d->model);
    config_free(&d->config);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], KEEPER_ARGUMENT) == 0) return keeper_main(atoi(argv[2]));
    static struct helmd d; /* large; zeroed */
    struct helm_err err = {0};
    bool exit_now = false;
    int status = 0;
    pid_t parent = getppid();
    d.argc = argc;
    d.argv = argv;
    d.config.ready_fd = CONFIG_NO_FD; /* until it is read */
    d.ready_fd = d.parent_fd = d.signal_fd = d.arena.fd = d.keeper.pipe = -1;
    /* glibc would raise this by itself, and keep what large buffers of clients took */
    mallopt(M_MMAP_THRESHOLD, LARGE_BUFFER);
    /* Workers compute with one thread of OpenBLAS (gemm_openblas.c). Before their main it would make one for
     * each processor, and each of them spins for tens of milliseconds. A value that the user sets is kept. */
    const char *threads = getenv(BLAS_THREADS);
    if (!threads || !*threads) setenv(BLAS_THREADS, threads = "1", 1);
    int rc = start_process(&err);
    log_init(strcmp(argv[0], DRAFTER_PROGRAM) == 0 ? DRAFTER_PROGRAM : "helmd", LOG_LEVEL_INFO);
    if (!rc) rc = config_read(argc, argv, &d.config, &exit_now, &err);
    if (!rc && !exit_now) rc = take_inherited_fd("--ready-fd", d.config.ready_fd, &d.ready_fd, &err);
    if (!rc && !exit_now) rc = take_inherited_fd("--parent-fd", d.config.parent_fd, &d.parent_fd, &err);
    if (rc || exit_now) goto out;
    log_set_level(d.config.log_level);
    char mask[CPU_MASK_TEXT];
    if (*cpu_mask_text(mask, sizeof mask)) log_warn("%s", mask);
    if (strcmp(threads, "1") != 0)
        log_info(BLAS_THREADS "=%.20s: workers start with so many threads of OpenBLAS, and compute with one",
                 threads);
    if (d.config.die_with_parent) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != parent) goto out; /* it ended before the line above */
    }
    rc = start(&d, &err);
    if (!rc) status = serving_run(&d);
out:
    if (rc) {
        bool ended = rc == HELM_E_CANCELLED; /* as by the loop: no failure */
        log_at(ended ? LOG_LEVEL_INFO : LOG_LEVEL_ERROR, "%s", err.text);
        if (d.ready_fd < 0 && d.config.ready_fd <= 65535)
            (void)take_inherited_fd("", d.config.ready_fd, &d.ready_fd, &err);
        loop_tell_ready_fd(&d.ready_fd, "error %s %s", helm_code_name(rc), err.text);
        sd_notifyf(0, "STATUS=%s%.300s", ended ? "" : "refused: ", err.text);
        status = ended ? 0 : rc == HELM_E_USAGE ? 2 : 4;
    }
    stop(&d);
    return status;
}
