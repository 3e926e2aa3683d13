/* Serving a plan: workers, steps, the check of int8 activations, the loop. Where that check fails, another
 * plan takes its place before anything is served. Called by daemon/main.c; see start.h. */
#include <systemd/sd-daemon.h>

#include "common/base/log.h"
#include "common/base/start.h"
#include "daemon/planner/profile/found.h"
#include "daemon/start/start.h"

static int remake(struct helmd *d, struct helm_err *err);

/* The CPU's worker, or the first device's. */
static uint32_t worker_index(const struct helmd *d, bool device)
{
    for (uint32_t i = 0; i < d->workers.count; i++)
        if (plan_processor_has_memory(d->workers.worker[i].processor) == device) return i;
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
                                   .device = {d->device.name, d->second.name},
                                   .vram_bytes = {d->device.ledger.limit, d->second.ledger.limit},
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

int serving_open_workers(struct helmd *d, struct helm_err *err)
{
    const struct workers_config config = workers_config_of(d);
    const struct workers_events events = {.context = &d->loop,
                                          .prepare = loop_on_prepare,
                                          .ready = loop_on_ready,
                                          .lost = loop_on_lost,
                                          .given_up = loop_on_given_up};
    return workers_open(d->zmq, &config, &events, &d->arena, &d->keeper, &d->workers, err);
}

static void name_short_drafts(const struct helmd *d)
{
    const uint32_t drafts = d->drafter.context_tokens, context = d->plan.context_tokens;
    if (d->config.draft_model && drafts < context)
        log_warn("draft model: its context is %u tokens, the model's %u: sequences have no drafts beyond it",
                 drafts, context);
}

/* Opens the parts that work for the plan's workers, once they are known. */
int serving_open_steps(struct helmd *d, struct helm_err *err)
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
        .speculate = d->config.speculate,
        .drafter = d->config.draft_model ? &d->drafter : NULL,
        .sink = {.context = &d->serve, .token = serve_token, .done = serve_done, .moved = serve_moved}};
    const struct sessions_sink answering = serve_session_sink(&d->serve);
    struct activations *a = &d->activations;
    struct helm_err why = {0};
    bool again = false;
    const uint32_t gpu = worker_index(d, true);
    name_short_drafts(d);
    observe_init(&d->observe, worker_index(d, false), gpu,
                 gpu == OBSERVE_NO_WORKER ? 0 : d->workers.count - gpu, d->config.max_stall_ms);
    batcher_free(&d->batcher); /* of another plan */
    sessions_free(&d->sessions);
    int rc = batcher_init(&d->batcher, &batching, err);
    /* Cells of a longrope's other table are those of another model. */
    const uint64_t identity = d->identity + rope_is_long(&d->model.config, d->plan.context_tokens);
    if (!rc) rc = sessions_init(&d->sessions, &d->batcher, &d->workers, identity, &answering, err);
    if (rc || !a->checks) return rc;
    const uint32_t step_tokens = d->plan.invariant ? plan_decode_tokens(&d->plan) : d->plan.step_tokens;
    const struct check_options checking = {.arena = &d->arena,
                                           .model = &d->model.config,
                                           .pool = &d->batcher.pages,
                                           .snapshots = &d->batcher.snapshots,
                                           .before = &a->before,
                                           .workers = d->workers.count,
                                           .step_tokens = step_tokens};
    if (check_open(&checking, &d->check, &why) == 0) return 0;
    log_warn("activations: %s", why.text);
    activations_decide(&d->plan, NULL, a, &again);
    return again ? remake(d, err) : 0;
}

int serving_check_room(const struct helmd *d, struct helm_err *err)
{
    struct arena_header header;
    const int rc = arena_plan(&d->arena_spec, &header, err);
    return rc ? rc : start_check_arena(header.total_bytes, err);
}

/* Another plan in the place of this one, before anything was served: with exact activations, since the check
 * failed. Clients' sockets stay, and the bound that they have on frames: the context becomes no longer. */
static int remake(struct helmd *d, struct helm_err *err)
{
    workers_end_all(&d->workers);
    planning_free(d);
    arena_close(&d->arena);
    int rc = planning_make(d, err);
    if (!rc) rc = serving_check_room(d, err);
    if (!rc) rc = arena_create(&d->arena_spec, &d->arena, err);
    const struct workers_config config = workers_config_of(d);
    if (!rc) rc = workers_renew(&d->workers, &config, err);
    if (!rc) rc = serving_open_steps(d, err);
    return rc;
}

/* Rereads the options that may change while it serves: the level of log lines, and the CURVE keys that are
 * let in. */
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
                              .forecast_batch = planner_at_once(&d->request, &d->plan),
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

/* Adds the hits of experts on disk to those of earlier runs: the next plan goes by them. */
static void keep_found(const struct helmd *d)
{
    struct profile_found found = {.of = d->measured.found.of}, all = d->measured.found;
    struct helm_err err = {0};
    /* a plan that could not be made again has left no arena */
    if (!d->arena.base || !plan_disk_slots(&d->plan) || !found.of) return;
    const struct arena_experts *seen = arena_experts_of(&d->arena);
    if (atomic_load(&seen->steps) < FOUND_LEAST_STEPS) return;
    found.slots = plan_disk_slots(&d->plan);
    found.experts = d->model.config.router.experts;
    found.uses = atomic_load(&seen->used);
    found.found = atomic_load(&seen->present);
    if (!found.found || found.slots == found.experts) return;
    found_add(&all, &found);
    if (found_write(&all, &err))
        log_warn("what was found of experts on disk is not kept: %s", err.text);
    else
        log_info("experts on disk: %.1f %% of %llu uses were found in %u slots: kept for the next plan, "
                 "with earlier runs %.1f %% of %llu",
                 100.0 * (double)found.found / (double)found.uses, (unsigned long long)found.uses,
                 found.slots, 100.0 * (double)all.found / (double)all.uses, (unsigned long long)all.uses);
}

int serving_run(struct helmd *d)
{
    uint64_t watchdog_us = 0;
    sd_watchdog_enabled(0, &watchdog_us);
    fill_serve(d);
    d->loop = (struct loop){.serve = &d->serve,
                            .check = d->activations.checks ? &d->check : NULL,
                            .decide = decide,
                            .keeper = &d->keeper,
                            .drafter = &d->drafter,
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
    const int rc = loop_run(&d->loop);
    keep_found(d);
    return rc;
}
