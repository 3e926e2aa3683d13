/* The draft model of `--draft-model`: whether it fits the model, its daemon's options, and the memory that it
 * takes. Called by daemon/main.c before the machine is looked at, so that what the draft model holds is not
 * planned with; see start.h. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/node.h"
#include "common/base/units.h"
#include "common/model/vocabulary.h"
#include "daemon/start/start.h"

struct arguments {
    struct drafter_options *of;
    bool failed; /* no memory, or too many */
};

static void HELM_PRINTF(2, 3) add(struct arguments *a, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    a->failed = a->failed || a->of->arguments == DRAFTER_ARGUMENTS ||
                vasprintf(&a->of->argument[a->of->arguments], fmt, ap) < 0;
    va_end(ap);
    if (!a->failed) a->of->arguments++;
}

static void add_text(struct arguments *a, const char *option, const char *value)
{
    if (value && *value) add(a, "--%s=%s", option, value);
}

static void add_number(struct arguments *a, const char *option, uint64_t value, uint64_t not_given)
{
    if (value != not_given) add(a, "--%s=%llu", option, (unsigned long long)value);
}

/* Whether the draft model is on the model's first device, and under its ceiling. */
static bool on_first_device(const struct config *c)
{
    return !c->draft_device || strcmp(c->draft_device, c->devices.device[0]) == 0;
}

/* Sockets of its own, and a machine as this one's. One device; no longer a context than it has. Its drafts
 * need not be the same on another day, and pages are shared as strictly as here. */
static int write_options(const struct helmd *d, const struct model *draft, struct drafter_options *options,
                         struct helm_err *err)
{
    const struct config *c = &d->config;
    struct arguments a = {.of = options};
    const uint64_t ctx = c->ctx < draft->config.max_context ? c->ctx : draft->config.max_context;
    *options = (struct drafter_options){.parent_fd = d->parent_fd, .model = c->draft_model};
    snprintf(options->endpoint, sizeof options->endpoint, "ipc://%s/draft/helmd.sock", d->rundir.private_dir);
    add_text(&a, "model", draft->path);
    add(&a, "--rundir=%s/draft", d->rundir.private_dir);
    add_text(&a, "listen", options->endpoint);
    add_text(&a, "log-level", c->log_level == LOG_LEVEL_INFO ? "warn" : log_level_name(c->log_level));
    add_text(&a, "invariant", "off");
    add_text(&a, "prefix-cache", c->sharing == PREFIX_ON ? "on" : "off");
    add_text(&a, "device", c->draft_device ? c->draft_device : c->devices.device[0]);
    if (on_first_device(c)) add_number(&a, "vram", c->devices.vram[0], 0);
    add_number(&a, "emulated-copy", c->emulated_copy_bytes_per_s, 0);
    add_number(&a, "host-memory", c->host_memory_bytes, 0);
    add_number(&a, "ctx", ctx, 0);
    add_number(&a, "kv-tokens", c->kv_tokens ? c->kv_tokens : planner_draft_pool((uint32_t)ctx), 0);
    add_number(&a, "parallel", c->parallel, 0);
    add_number(&a, "threads", c->threads, 0);
    add_number(&a, "node", c->node, CONFIG_NO_NODE);
    add_number(&a, "spin-us", c->spin_us, CONFIG_SPIN_US);
    add_number(&a, "step-timeout-ms", c->step_timeout_ms, 0);
    add_number(&a, "restart-limit", c->restart_limit, UINT64_MAX);
    add_number(&a, "max-stall-ms", c->max_stall_ms, UINT64_MAX); /* always: 0 is without bound */
    add_text(&a, "kv-dtype", c->kv_dtype_name);
    add_text(&a, "kernels", c->kernels);
    add_text(&a, "activations", c->exact ? "exact" : c->activations_name);
    add_text(&a, "profile", c->profile_file);
    add_text(&a, "now", c->now);
    add_text(&a, "worker-dir", c->worker_dir);
    add_text(&a, "gpu-graphs", c->gpu_graphs_name);
    add_text(&a, "gpu-chains", c->gpu_chains_name);
    return a.failed ? helm_fail(err, HELM_E_NOMEM, "no memory for the draft model's options") : 0;
}

static int check_model(const struct helmd *d, struct model *draft, struct helm_err *err)
{
    bool sizes_alone;
    int rc = model_read(d->config.draft_model, draft, err);
    if (!rc) rc = vocabulary_compare(&d->model, draft, &sizes_alone, err);
    if (rc) return helm_err_prefix(err, "--draft-model"), rc;
    if (sizes_alone)
        log_warn("draft model: neither model has a tokenizer, so only the sizes of the vocabularies were "
                 "compared");
    if (draft->weight_bytes >= d->model.weight_bytes)
        log_warn("draft model: %s is not smaller than the model", draft->path);
    return 0;
}

/* Takes what the draft model's plan holds from the ceilings that were given; without ceilings what is free
 * is looked at later. */
static int lower_ceilings(struct helmd *d, struct helm_err *err)
{
    struct config *c = &d->config;
    const struct drafter *drafter = &d->drafter;
    struct {
        uint64_t *ceiling, bytes;
        const char *option;
    } of[] = {{&c->devices.vram[0], drafter->vram_bytes, "vram"},
              {&c->host_memory_bytes, drafter->host_bytes, "host-memory"}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        char takes[UNITS_TEXT], given[UNITS_TEXT];
        if (!*of[i].ceiling || (i == 0 && !on_first_device(c))) continue;
        if (*of[i].ceiling <= of[i].bytes)
            return helm_fail(err, HELM_E_CAPACITY, "the draft model takes %s, all of --%s %s",
                             units_format_size(of[i].bytes, takes), of[i].option,
                             units_format_size(*of[i].ceiling, given));
        *of[i].ceiling -= of[i].bytes;
    }
    return 0;
}

int drafting_open(struct helmd *d, struct helm_err *err)
{
    struct drafter_options options;
    struct model draft = {0};
    struct cgroup_memory before = {0}, after = {0};
    if (!d->config.draft_model) return 0;
    int rc = check_model(d, &draft, err);
    if (!rc) rc = write_options(d, &draft, &options, err);
    if (!rc) rc = node_read_memory(-1, &before, err);
    if (!rc) rc = drafter_open(d->zmq, &options, &d->keeper, &d->drafter, err);
    if (!rc) rc = node_read_memory(-1, &after, err);
    if (!rc) rc = lower_ceilings(d, err);
    model_free(&draft);
    if (rc) return rc;
    const uint64_t held =
        before.available_bytes > after.available_bytes ? before.available_bytes - after.available_bytes : 0;
    d->draft_untouched = d->drafter.host_bytes > held ? d->drafter.host_bytes - held : 0;
    log_info("draft model: %s is ready", d->config.draft_model);
    return 0;
}
