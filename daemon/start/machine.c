/* The machine as helmd sees it before it plans: device, NUMA node, profile, memory; and what helmd asks of a
 * plan. Called by daemon/main.c; see start.h. */
#include <stdio.h>
#include <string.h>

#include "common/base/cpu.h"
#include "common/base/log.h"
#include "common/base/node.h"
#include "common/base/units.h"
#include "common/cpu/kernels/linear.h"
#include "common/model/able.h"
#include "common/model/mixture.h"
#include "daemon/children/child_run.h"
#include "daemon/planner/packed_look.h"
#include "daemon/planner/profile/found.h"
#include "daemon/start/start.h"

#define VRAM_PART 2 /* weights of this part of VRAM leave room for any cache */

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

struct profiling_request machine_profiling(const struct helmd *d, unsigned formats)
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

/* None where GPU workers cannot compute this model; an error where one was asked for by name. */
static int choose_device(struct helmd *d, const char *gpu_program, struct helm_err *err)
{
    const struct accelerator_wish *wish = &d->config.devices;
    const char *const device = wish->device[0];
    struct helm_err why = {0};
    const int able =
        able_check_worker(&d->model.math, strcmp(device, "emulated") == 0 ? ABLE_EMULATED : ABLE_GPU, &why);
    if (able && strcmp(device, "auto") != 0 && strcmp(device, "cpu") != 0)
        return helm_fail(err, able, "--device %s: %.460s", device, why.text);
    if (able) log_warn("device: %s: everything is planned on the CPU", why.text);
    int rc = accelerator_choose(able ? "cpu" : device, wish->vram[0], gpu_program, &d->device, err);
    if (!rc) rc = accelerator_choose_second(wish, &d->device, &d->second, err);
    if (able) snprintf(d->device.why, sizeof d->device.why, "%.150s", why.text);
    return rc;
}

/* Chains that will not run are no price to plan with. */
static void forget_chains(const struct config *c, struct profile *profile)
{
    if (!c->no_chains) return;
    profile->gpu.chain_gemv = profile->gpu.chain_attention = profile->gpu.chain_operation =
        (struct profile_value){0};
}

/* The second device's rates are the first's where both are the same model; else it is measured as the first
 * is. One that nobody named is left out where that fails. */
static int look_at_second(struct helmd *d, unsigned formats, struct helm_err *err)
{
    struct profiling_request profiling = machine_profiling(d, formats);
    bool fresh;
    profiling.device = &d->second, profiling.exactly = true;
    d->measured.second = NULL;
    if (d->second.ledger.kind == LEDGER_DEVICE_NONE) return 0;
    if (accelerator_alike(&d->device, &d->second)) {
        log_info("profile: %s is like %s, and is not measured itself", d->second.name, d->device.name);
        return 0;
    }
    log_info("profile: %s (%s) is another model: it has a profile of its own", d->second.name,
             d->second.info.name);
    const int rc = profiling_get(&profiling, &d->second_measured, &fresh, err);
    forget_chains(&d->config, &d->second_measured);
    if (!rc) d->measured.second = &d->second_measured;
    if (!rc || rc == HELM_E_CANCELLED || !accelerator_second_unnamed(&d->config.devices)) return rc;
    log_warn("device: %s is left out: %s", d->second.name, err->text);
    d->second.ledger.kind = LEDGER_DEVICE_NONE;
    *err = (struct helm_err){0};
    return 0;
}

/* The model's own programs. A model that VRAM certainly has all room for leaves the CPU nothing to compute:
 * the device's alone. */
static int look_at_programs(struct helmd *d, struct helm_err *err)
{
    const struct config *c = &d->config;
    const struct profiling_request profiling = machine_profiling(d, 0);
    const uint64_t vram = d->device.ledger.kind == LEDGER_DEVICE_NONE ? 0 : d->device.ledger.limit;
    const struct profiling_model model = {.model = &d->model,
                                          .weights = c->weights ? mixture_name(c->weights) : "stored",
                                          .kv_dtype = kv_dtype_name(c->kv_dtype),
                                          .device_alone = d->model.weight_bytes <= vram / VRAM_PART};
    int rc = profiling_programs(&profiling, &model, &d->measured, &d->programs, err);
    if (!rc && d->programs.kinds) d->measured.programs = &d->programs;
    return rc;
}

/* All that is known of the machine, and wished of a plan. */
int machine_look(struct helmd *d, struct helm_err *err)
{
    const struct config *c = &d->config;
    char gpu_program[4096] = "";
    struct cpu_set cpus;
    struct helm_err none = {0};
    struct planner_request *request = &d->request;
    *request = (struct planner_request){.model = &d->model,
                                        .wish = {.kv_dtype = c->kv_dtype,
                                                 .slots = (uint32_t)c->parallel,
                                                 .draft_tokens = (uint32_t)c->draft_tokens,
                                                 .step_tokens = (uint32_t)c->step_tokens,
                                                 .batch = (uint32_t)c->batch,
                                                 .ctx = (uint32_t)c->ctx,
                                                 .threads = (uint32_t)c->threads,
                                                 .pack = c->pack,
                                                 .pack_cpu = linear_pays(FORMAT_BF16_PACKED, cpu_features()),
                                                 .pack_all = c->pack_all,
                                                 .pack_gpu = true,
                                                 .host_memory_bytes = c->host_memory_bytes,
                                                 .snapshot_bytes = c->snapshot_bytes},
                                        .profile = &d->profile,
                                        .draft = {.seconds = d->drafter.token_seconds,
                                                  .host_bytes = d->drafter.host_bytes,
                                                  .vram_bytes = d->drafter.vram_bytes},
                                        .strategy = c->strategy,
                                        .tiers = c->kv_tiers,
                                        .batch = (uint32_t)c->batch,
                                        .prompt = (uint32_t)c->prompt,
                                        .second = &d->second_used};
    const unsigned formats = formats_of(d);
    const struct profiling_request profiling = machine_profiling(d, formats);
    /* A missing program is reported by the choice of the device. */
    int rc =
        worker_process_find(c->worker_dir, workers_device_program(), gpu_program, sizeof gpu_program, &none);
    rc = choose_device(d, gpu_program, err);
    if (!rc) rc = accelerator_choose_node(&d->device, wanted_node(c), &d->node, err);
    if (!rc) rc = cpu_check_threads(d->node, c->threads, err);
    if (!rc) rc = profiling_get(&profiling, &d->measured, &d->measured_now, err);
    if (!rc) rc = end_request_check(err);
    forget_chains(c, &d->measured);
    if (!rc) rc = look_at_second(d, formats, err);
    if (!rc) rc = look_at_programs(d, err);
    d->current = d->measured;
    if (!rc) rc = node_read_memory(d->node, &request->machine.memory, err);
    uint64_t *available = &request->machine.memory.available_bytes;
    *available -= d->draft_untouched < *available ? d->draft_untouched : *available;
    if (!rc && !request->wish.threads) {
        rc = cpu_usable(-1, &cpus, err);
        request->wish.threads = rc ? 1 : (uint32_t)cpus.suggested;
    }
    if (rc) return rc;
    accelerator_ledger_measured(&d->measured.gpu, &d->device.ledger);
    accelerator_ledger_measured(d->measured.second ? &d->measured.second->gpu : &d->measured.gpu,
                                &d->second.ledger);
    request->machine.device = d->device.ledger;
    request->machine.second = d->second.ledger;
    rc = profile_disk(&d->model, c->disk_bytes_per_s, profile_disk_room(c->plan_file, planner_room(request)),
                      &d->measured, err);
    if (!rc) found_look(&d->model, &d->measured);
    d->current.disk_read = d->measured.disk_read;
    d->current.found = d->measured.found;
    if (rc) return rc;
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
    request->share = share_option_named(c->share_name);
    return 0;
}
