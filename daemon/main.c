/* helmd: the coordinator. This file holds the start order and nothing else.
 *
 * configuration -> model -> device, profile, plan and memory ledgers -> run directory and locks -> keeper ->
 * arena -> sockets -> loop -> everything back in reverse. Where the model's check of int8 activations fails: workers
 * and arena back, another plan, arena and workers again (remake). Exit status: 0 ended on request, 2 usage, 4 refused
 * to start, 5 failed. */
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>
#include <zmq.h>

#include "common/base/cpu.h"
#include "common/base/json.h"
#include "common/base/node.h"
#include "common/base/log.h"
#include "common/base/start.h"
#include "common/base/units.h"
#include "common/model/able.h"
#include "common/model/identity.h"
#include "common/model/parts.h"
#include "common/plan/schedule.h"
#include "daemon/children/accelerator.h"
#include "daemon/clients/endpoint.h"
#include "daemon/clients/serve_session.h"
#include "daemon/config.h"
#include "daemon/children/end_request.h"
#include "daemon/loop.h"
#include "daemon/planner/activations/decision.h"
#include "daemon/planner/histogram.h"
#include "daemon/planner/page_size.h"
#include "daemon/planner/parts_look.h"
#include "daemon/planner/planner.h"
#include "daemon/children/profiling.h"
#include "daemon/steps/check.h"
#include "daemon/steps/request.h"
#include "daemon/children/worker_process.h"
#include "common/cpu/kernels/linear.h"

#define LARGE_BUFFER (128 << 10) /* bytes of one that goes back to the system when it is freed */

struct helmd {
    int argc;
    char **argv;
    struct config config;
    struct model model;
    struct loaded_files files;
    struct plan plan;
    char *plan_json;
    uint32_t typical_context; /* that forecasts of decode are for */
    struct arena_spec arena_spec;
    struct arena arena;
    struct rundir rundir;
    struct keeper keeper;
    struct accelerator device;
    int node;                /* NUMA node of weights, caches and compute threads; -1: none */
    bool measured_now;       /* the profile is not from a file */
    struct profile measured; /* what is planned by: as in the file, or as it would be now */
    struct profile current;  /* what is forecast by: as it would be now, where that is known */
    struct profile profile;  /* either, with the rates of the activations that are planned with */
    struct machine_now now;
    struct planner_request request;
    struct activations activations;
    struct invariant invariant;
    struct page_size page_size;
    struct histogram experts;
    struct check check;
    struct observe observe;
    void *zmq;
    struct client_socket *clients;
    struct metrics metrics;
    struct batcher batcher;
    struct sessions sessions;
    uint64_t identity; /* of the model */
    struct workers workers;
    struct serve serve;
    struct loop loop;
    int signal_fd, ready_fd, parent_fd;
};

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

static int plan_from_file(struct helmd *d, struct helm_err *err)
{
    json_t *json = NULL;
    struct planner_request *request = &d->request;
    int rc = json_read_file(d->config.plan_file, PLAN_TEXT_MAX, &json, err);
    if (!rc) rc = plan_from_json(json, &d->plan, err);
    json_decref(json);
    if (!rc) rc = model_cut_experts(&d->model, plan_expert_parts(&d->plan), err);
    if (!rc) {
        formats_lay_as_planned(&d->model, &d->plan);
        activations_take(&d->plan, &d->activations);
        planner_adopt(&d->plan, &request->wish);
        rc = packed_look_take(request, &d->plan, &d->arena_spec, err);
    }
    return rc ? helm_err_prefix(err, "--plan %s", d->config.plan_file) : 0;
}

/* For the room that a plan keeps for packed weights in VRAM. */
static void look_at_weights(struct planner_request *request)
{
    const struct packed_parts *p = &request->wish.parts;
    const uint64_t bytes = packed_look_first(request);
    char read[UNITS_TEXT];
    if (bytes)
        log_info(
            "weights come to %.3f (attention), %.3f (MLP), %.3f (head) of their bytes packed, by %s of them",
            p->attention, p->mlp, p->head, units_format_size(bytes, read));
}

static int wanted_node(const struct config *c)
{
    return c->node == CONFIG_NO_NODE ? -1 : (int)c->node;
}

/* The formats of the weights as --weights has them stored. */
static unsigned formats_of(struct helmd *d)
{
    formats_lay(&d->model, d->config.weights);
    return model_formats(&d->model);
}

static struct profiling_request profiling_of(const struct helmd *d, unsigned formats)
{
    const struct config *c = &d->config;
    return (struct profiling_request){.file = c->profile_file,
                                      .program_dir = c->worker_dir,
                                      .device = &d->device,
                                      .threads = (uint32_t)c->threads,
                                      .node = wanted_node(c),
                                      .copy_bytes_per_s = c->emulated_copy_bytes_per_s,
                                      .formats = formats,
                                      .dense = kv_dtype_is_plain(c->kv_dtype) &&
                                               !d->model.config.router.experts && formats &&
                                               !(formats & format_bit(FORMAT_BF16)),
                                      .parent_fd = d->parent_fd};
}

/* A plan from a file has its own size. */
static void size_pages(struct helmd *d)
{
    struct ledger_wish *wish = &d->request.wish;
    page_size_choose(&(struct page_size_case){.model = &d->model,
                                              .profile = &d->measured,
                                              .device = d->config.strategy == SEARCH_ALL_CPU
                                                            ? NULL
                                                            : &d->request.machine.device,
                                              .kv_dtype = wish->kv_dtype,
                                              .slots = wish->slots,
                                              .ctx = wish->ctx,
                                              .option = d->config.kv_page_tokens},
                     &d->page_size);
    wish->page_tokens = d->page_size.tokens;
    wish->page_count = kv_pages_for((uint32_t)d->config.kv_tokens, wish->page_tokens);
    if (!d->config.plan_file) log_info("pages: %s", d->page_size.text);
}

/* What is known of the machine, and wished of a plan. */
/* None where GPU workers cannot compute this model; an error where one was asked for by name. */
static int choose_device(struct helmd *d, const char *gpu_program, struct helm_err *err)
{
    const struct config *c = &d->config;
    struct helm_err why = {0};
    const int able = able_check_worker(&d->model.math, ABLE_GPU, &why);
    if (able && strcmp(c->device, "auto") != 0 && strcmp(c->device, "cpu") != 0)
        return helm_fail(err, able, "--device %s: %.460s", c->device, why.text);
    if (able) log_warn("device: %s: everything is planned on the CPU", why.text);
    const int rc = accelerator_choose(able ? "cpu" : c->device, c->vram_given ? c->vram_bytes : 0,
                                      gpu_program, &d->device, err);
    if (able) snprintf(d->device.why, sizeof d->device.why, "%.150s", why.text);
    return rc;
}

static int look_at_machine(struct helmd *d, struct helm_err *err)
{
    const struct config *c = &d->config;
    char gpu_program[4096] = "";
    struct cpu_set cpus;
    struct helm_err none = {0};
    struct planner_request *request = &d->request;
    *request = (struct planner_request){.model = &d->model,
                                        .wish = {.kv_dtype = c->kv_dtype,
                                                 .slots = (uint32_t)c->parallel,
                                                 .step_tokens = (uint32_t)c->step_tokens,
                                                 .batch = (uint32_t)c->batch,
                                                 .ctx = (uint32_t)c->ctx,
                                                 .threads = (uint32_t)c->threads,
                                                 .pack = c->pack,
                                                 .pack_cpu = linear_pays(FORMAT_BF16_PACKED, cpu_features()),
                                                 .pack_all = c->pack_all,
                                                 .pack_gpu = true,
                                                 .host_memory_bytes = c->host_memory_bytes},
                                        .profile = &d->profile,
                                        .strategy = c->strategy,
                                        .tiers = c->kv_tiers,
                                        .batch = (uint32_t)c->batch,
                                        .prompt = (uint32_t)c->prompt};
    const struct profiling_request profiling = profiling_of(d, formats_of(d));
    /* A missing program is reported by the choice of the device. */
    int rc = worker_process_find(c->worker_dir, workers_program_name(PLAN_GPU0), gpu_program,
                                 sizeof gpu_program, &none);
    rc = choose_device(d, gpu_program, err);
    if (!rc) rc = accelerator_choose_node(&d->device, wanted_node(c), &d->node, err);
    if (!rc) rc = cpu_check_threads(d->node, c->threads, err);
    if (!rc) rc = profiling_get(&profiling, &d->measured, &d->measured_now, err);
    if (!rc) rc = end_request_check(err);
    if (c->no_chains) /* what they would take is no price to plan with */
        d->measured.gpu.chain_gemv = d->measured.gpu.chain_attention = d->measured.gpu.chain_operation =
            (struct profile_value){0};
    d->current = d->measured;
    if (!rc) rc = node_read_memory(d->node, &request->machine.memory, err);
    if (!rc && !request->wish.threads) {
        rc = cpu_usable(-1, &cpus, err);
        request->wish.threads = rc ? 1 : (uint32_t)cpus.suggested;
    }
    if (rc) return rc;
    accelerator_ledger_measured(&d->measured.gpu, &d->device.ledger);
    request->machine.device = d->device.ledger;
    request->device_required = d->device.required;
    snprintf(request->no_device, sizeof request->no_device, "%s", d->device.why);
    size_pages(d);
    look_at_weights(request);
    d->activations = (struct activations){.option = c->activations, .kernels = c->kernels};
    activations_want(&d->model, &d->measured, cpu_features(), &d->activations);
    d->invariant.option = c->invariant;
    if (c->experts_file) {
        rc = histogram_read(c->experts_file, &d->model, &d->experts, err);
        if (rc) return helm_err_prefix(err, "--experts-histogram"), rc;
        request->experts = &d->experts;
    }
    request->one_memory = c->invariant == INVARIANT_ON;
    return 0;
}

static void free_plan(struct helmd *d)
{
    free(d->plan_json);
    d->plan_json = NULL;
    forecast_close(&d->observe.forecast);
    plan_free(&d->plan);
}

/* A plan with the activations that are wanted now. */
static int lay_plan(struct helmd *d, struct helm_err *err)
{
    const struct config *c = &d->config;
    activations_rates(&d->measured, d->activations.inputs, &d->profile);
    memcpy(d->request.inputs, d->activations.inputs, sizeof d->request.inputs);
    int rc = c->plan_file ? plan_from_file(d, err)
                          : parts_look_make(&d->model, &d->request, &d->plan, &d->arena_spec, err);
    activations_rates(&d->measured, d->plan.inputs, &d->profile); /* as the plan in a file has them */
    return rc ? rc : invariant_decide(&d->request, c->plan_file != NULL, &d->plan, &d->invariant, err);
}

static int lay_plan_again(struct helmd *d, struct helm_err *err)
{
    free_plan(d);
    return lay_plan(d, err);
}

/* What memory gives now, once, where the plan has a use for it: forecasts go by it, and where it is far from the profile's
 * another plan. */
static int look_at_memory(struct helmd *d, struct helm_err *err)
{
    struct profiling_request profiling = profiling_of(d, 0);
    const bool used = plan_uses(&d->plan, PLAN_CPU0) || plan_kv_tiered(&d->plan);
    if (d->now.text[0]) return 0;
    profiling.reads = profile_reads_of(&d->measured, model_main_format(&d->model), d->plan.inputs[PLAN_CPU0]);
    int rc = profiling_now(&profiling, d->config.now, used, d->measured_now, &d->measured, &d->now, err);
    if (rc || !d->now.known) return rc;
    profile_now_apply(&d->measured, &d->now.rates, &d->current);
    if (!d->now.plans) return 0;
    d->measured = d->current;
    return lay_plan_again(d, err);
}

/* The plan and its forecast, before anything is allocated. */
static int make_plan(struct helmd *d, struct helm_err *err)
{
    bool again = false;
    int rc = lay_plan(d, err);
    if (!rc && !d->activations.decided) activations_look(&d->model, &d->plan, &d->activations, &again);
    if (!rc && again) rc = lay_plan_again(d, err);
    if (!rc) rc = look_at_memory(d, err);
    activations_rates(&d->current, d->plan.inputs, &d->profile); /* the plan stands: forecasts */
    if (!rc) rc = forecast_open(&d->model, &d->profile, &d->plan, &d->observe.forecast, err);
    if (rc) return rc;
    formats_warn_unmeasured(&d->model, &d->profile);
    planner_log(&d->request, &d->plan);
    log_info("activations: %s", d->activations.text);
    log_info("invariant: %s", d->invariant.text);
    d->typical_context = planner_typical_context(&d->request, d->plan.context_tokens);
    json_t *json = plan_to_json(&d->plan);
    d->plan_json = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    return d->plan_json ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory for the plan as JSON");
}

static int remake(struct helmd *d, struct helm_err *err);

static uint32_t worker_index(const struct helmd *d, enum plan_processor processor)
{
    for (uint32_t i = 0; i < d->workers.count; i++)
        if (d->workers.worker[i].processor == processor) return i;
    return OBSERVE_NO_WORKER;
}

static struct workers_config workers_config_of(const struct helmd *d)
{
    return (struct workers_config){.control = d->rundir.control,
                                   .worker_dir = d->config.worker_dir,
                                   .log_level = log_level_name(d->config.log_level),
                                   .folder = d->model.path,
                                   .files = &d->files,
                                   .plan = &d->plan,
                                   .plan_json = d->plan_json,
                                   .kernels = d->config.kernels,
                                   .device = d->device.name,
                                   .vram_bytes = d->device.ledger.limit,
                                   .copy_bytes_per_s = d->config.emulated_copy_bytes_per_s,
                                   .no_graphs = d->config.no_graphs,
                                   .no_chains = d->config.no_chains,
                                   .node = d->node,
                                   .threads = (uint32_t)d->config.threads,
                                   .spin_us = (uint32_t)d->config.spin_us,
                                   .restart_limit = (uint32_t)d->config.restart_limit,
                                   .step_timeout_ms = d->config.step_timeout_ms,
                                   .token_bytes = d->model.weight_bytes,
                                   .token_flops = 2 * d->model.parameter_count};
}

static int open_workers(struct helmd *d, struct helm_err *err)
{
    const struct workers_config config = workers_config_of(d);
    const struct workers_events events = {.context = &d->loop,
                                          .prepare = loop_on_prepare,
                                          .ready = loop_on_ready,
                                          .lost = loop_on_lost,
                                          .given_up = loop_on_given_up};
    return workers_open(d->zmq, &config, &events, &d->arena, &d->keeper, &d->workers, err);
}

/* What works for the plan's workers, once they are known. */
static int open_steps(struct helmd *d, struct helm_err *err)
{
    const struct batcher_options batching = {
        .model = &d->model.config,
        .plan = &d->plan,
        .arena = &d->arena,
        .metrics = &d->metrics,
        .observe = &d->observe,
        .workers = d->workers.count,
        .queue_limit = (uint32_t)d->config.queue,
        .sharing = d->config.sharing,
        .sink = {.context = &d->serve, .token = serve_token, .done = serve_done, .moved = serve_moved}};
    const struct sessions_sink answering = serve_session_sink(&d->serve);
    struct activations *a = &d->activations;
    struct helm_err why = {0};
    bool again = false;
    observe_init(&d->observe, worker_index(d, PLAN_CPU0), worker_index(d, PLAN_GPU0), d->config.max_stall_ms);
    batcher_free(&d->batcher); /* of another plan */
    sessions_free(&d->sessions);
    int rc = batcher_init(&d->batcher, &batching, err);
    if (!rc) rc = sessions_init(&d->sessions, &d->batcher, &d->workers, d->identity, &answering, err);
    if (rc || !a->checks) return rc;
    const uint32_t step_tokens = d->plan.invariant ? plan_decode_tokens(&d->plan) : d->plan.step_tokens;
    const struct check_options checking = {.arena = &d->arena,
                                           .model = &d->model.config,
                                           .pool = &d->batcher.pages,
                                           .before = &a->before,
                                           .workers = d->workers.count,
                                           .step_tokens = step_tokens};
    if (check_open(&checking, &d->check, &why) == 0) return 0;
    log_warn("activations: %s", why.text);
    activations_decide(&d->plan, NULL, a, &again);
    return again ? remake(d, err) : 0;
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

static int check_room(const struct helmd *d, struct helm_err *err)
{
    struct arena_header header;
    const int rc = arena_plan(&d->arena_spec, &header, err);
    return rc ? rc : start_check_arena(header.total_bytes, err);
}

static void name_skipped(const struct model *model)
{
    char size[UNITS_TEXT];
    if (model->skipped_count)
        log_info("%u tensors (%s) are not read: they belong to images or drafts, as '%s' does",
                 model->skipped_count, units_format_size(model->skipped_bytes, size), model->skipped);
}

static int start(struct helmd *d, struct helm_err *err)
{
    const struct config *c = &d->config;
    int rc = end_request_block(err);
    if (!rc) rc = endpoint_check_free(c->rundir, &c->listen, err);
    if (!rc) rc = model_read(c->model, &d->model, err);
    if (!rc) name_skipped(&d->model);
    if (!rc) rc = name_folder(&d->model, err);
    if (!rc) rc = loaded_files_note(&d->model, &d->files, err);
    if (!rc) rc = model_identity(&d->model, &d->identity, err);
    if (!rc) rc = look_at_machine(d, err);
    if (!rc) rc = make_plan(d, err);
    if (!rc) rc = check_room(d, err);
    if (!rc) rc = end_request_check(err); /* from here on the loop takes it */
    if (!rc) rc = loop_open_signals(&d->signal_fd, err);
    if (!rc) rc = rundir_open(c->rundir, &c->listen, &d->rundir, err);
    if (!rc) rc = keeper_start(&d->rundir, &d->keeper, err);
    if (!rc) rc = arena_create(&d->arena_spec, &d->arena, err);
    if (rc) return rc;
    metrics_init(&d->metrics);
    d->zmq = zmq_ctx_new();
    if (!d->zmq) return helm_fail(err, HELM_E_NOMEM, "no ZeroMQ context");
    const struct request_limits limits = {.vocab = d->model.config.vocab, .context = d->plan.context_tokens};
    const struct client_socket_options clients = {.endpoints = &d->rundir.endpoints,
                                                  .curve_secret_key_file = c->curve_secret_key_file,
                                                  .curve_clients_file = c->curve_clients_file,
                                                  .admin_group = c->admin_group,
                                                  .frame_max = request_frame_max(&limits)};
    rc = client_socket_open(&clients, &d->clients, err);
    if (!rc) rc = open_workers(d, err);
    if (!rc) rc = open_steps(d, err);
    return rc;
}

/* Another plan in the place of this one, before anything was served: with exact activations, since the check failed.
 * Clients' sockets stay, and the bound that they have on frames: the context becomes no longer. */
static int remake(struct helmd *d, struct helm_err *err)
{
    workers_end_all(&d->workers);
    free_plan(d);
    arena_close(&d->arena);
    int rc = make_plan(d, err);
    if (!rc) rc = check_room(d, err);
    if (!rc) rc = arena_create(&d->arena_spec, &d->arena, err);
    const struct workers_config config = workers_config_of(d);
    if (!rc) rc = workers_renew(&d->workers, &config, err);
    if (!rc) rc = open_steps(d, err);
    return rc;
}

static void stop(struct helmd *d)
{
    workers_close(&d->workers);
    client_socket_close(&d->clients);
    if (d->zmq) zmq_ctx_term(d->zmq);
    sessions_free(&d->sessions);
    batcher_free(&d->batcher);
    check_close(&d->check);
    if (d->arena.base) arena_close(&d->arena);
    rundir_close(&d->rundir);
    keeper_dismiss(&d->keeper);
    free_plan(d);
    loaded_files_free(&d->files);
    histogram_free(&d->experts);
    model_free(&d->model);
    config_free(&d->config);
}

/* What may change while it serves: the level of log lines, and whose CURVE keys are let in. */
static void reload(void *context)
{
    struct helmd *d = context;
    struct config fresh = {0};
    struct helm_err err = {0};
    bool exit_now = false;
    int rc = config_read(d->argc, d->argv, &fresh, &exit_now, &err);
    if (!rc) rc = client_socket_reload(d->clients, fresh.curve_clients_file, &err);
    if (rc) {
        log_error("SIGHUP: nothing is changed: %s", err.text);
    } else {
        log_info("SIGHUP: log level %s", log_level_name(fresh.log_level));
        log_set_level(fresh.log_level);
    }
    config_free(&fresh);
}

/* After another plan was made the bound that the sockets have on frames stays. */
static void fill_serve(struct helmd *d)
{
    const uint32_t before = d->serve.context, context = d->plan.context_tokens;
    d->serve = (struct serve){.clients = d->clients,
                              .batcher = &d->batcher,
                              .sessions = &d->sessions,
                              .workers = &d->workers,
                              .metrics = &d->metrics,
                              .observe = &d->observe,
                              .model = &d->model,
                              .plan_json = d->plan_json,
                              .kv_dtype = kv_dtype_named(d->plan.kv_dtype),
                              .activations = d->activations.text,
                              .invariant = d->invariant.text,
                              .now = d->now.text,
                              .checking = d->activations.checks,
                              .forecast_batch = (uint32_t)d->config.batch,
                              .forecast_context = d->typical_context,
                              .forecast_prompt = (uint32_t)d->config.prompt,
                              .context = before && before < context ? before : context,
                              .draining = d->serve.draining};
}

/* The check has ended, or its round. */
static int decide(void *context, bool *again, struct helm_err *err)
{
    struct helmd *d = context;
    struct activations *a = &d->activations;
    struct verdict verdict;
    int rc = 0;
    *again = false;
    check_found(&d->check, activations_units(&d->plan, &d->model), &verdict);
    if (!verdict_says_enough(&verdict)) {
        activations_wait(&d->plan, &verdict, a);
        if (!d->loop.check_waits) d->batcher.exact = a->exact;
        d->loop.check_waits = true;
    } else {
        if (!d->loop.check_waits)
            activations_decide(&d->plan, &verdict, a, again);
        else if (activations_decide_between(&d->plan, &verdict, a))
            batcher_end_exact(&d->batcher);
        check_close(&d->check);
        d->loop.check = NULL;
        if (*again) rc = remake(d, err);
    }
    if (!rc) fill_serve(d);
    return rc;
}

static int serve_until_told(struct helmd *d)
{
    uint64_t watchdog_us = 0;
    sd_watchdog_enabled(0, &watchdog_us);
    fill_serve(d);
    d->loop = (struct loop){.serve = &d->serve,
                            .check = d->activations.checks ? &d->check : NULL,
                            .decide = decide,
                            .keeper = &d->keeper,
                            .rundir = &d->rundir,
                            .reload = reload,
                            .context = d,
                            .signal_fd = d->signal_fd,
                            .timer_fd = -1,
                            .real_device = d->device.ledger.kind == LEDGER_DEVICE_CUDA,
                            .parent_fd = d->parent_fd,
                            .ready_fd = d->ready_fd,
                            .drain_us = d->config.drain_seconds * 1000000,
                            .watchdog_us = watchdog_us};
    return loop_run(&d->loop);
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
    int rc = start_process(&err);
    log_init("helmd", LOG_LEVEL_INFO);
    if (!rc) rc = config_read(argc, argv, &d.config, &exit_now, &err);
    if (!rc && !exit_now) rc = take_inherited_fd("--ready-fd", d.config.ready_fd, &d.ready_fd, &err);
    if (!rc && !exit_now) rc = take_inherited_fd("--parent-fd", d.config.parent_fd, &d.parent_fd, &err);
    if (rc || exit_now) goto out;
    log_set_level(d.config.log_level);
    char mask[CPU_MASK_TEXT];
    if (*cpu_mask_text(mask, sizeof mask)) log_warn("%s", mask);
    if (d.config.die_with_parent) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != parent) goto out; /* it ended before the line above */
    }
    rc = start(&d, &err);
    if (!rc) status = serve_until_told(&d);
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
