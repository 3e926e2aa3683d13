/* helm-plan: where the weights of a model would lie on a machine, which processor would compute each unit,
 * and how fast that would be.
 *
 * Options, model, machine, plan, explanation, printing; the work is in daemon/planner. Reads config.json, the
 * tensors' headers, and a few weights where they are there and may be packed in VRAM; with --profile it looks
 * at nothing of the machine it runs on but free memory, and that only where neither profile nor --host-memory
 * says how much there is. docs/helm-plan.md explains the output. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/args.h"
#include "common/base/cpu.h"
#include "common/base/json.h"
#include "common/base/node.h"
#include "common/base/start.h"
#include "common/base/log.h"
#include "common/base/printable.h"
#include "common/model/able.h"
#include "common/base/units.h"
#include "daemon/children/accelerator.h"
#include "common/model/parts.h"
#include "common/shared/kv_layout.h"
#include "daemon/planner/activations/decision.h"
#include "daemon/planner/histogram.h"
#include "daemon/planner/invariant.h"
#include "daemon/planner/formats.h"
#include "daemon/planner/report/explain.h"
#include "daemon/planner/page_size.h"
#include "daemon/planner/packed_look.h"
#include "daemon/planner/profile/found.h"
#include "daemon/planner/profile/now.h"
#include "daemon/planner/profile/programs.h"
#include "daemon/planner/report/plot.h"
#include "daemon/children/worker_process.h"

#define GPU_WORKER     "helm-worker-gpu"
#define STATUS_FAILED  1
#define STATUS_REFUSED 4
#define JSON_STYLE     (JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9))
#define PATH_TEXT      4096

struct options {
    const char *model, *profile, *now, *strategy, *device, *vram, *plot, *plan, *experts, *pack, *weights,
        *kv_dtype, *kv_tiers, *kv_page_tokens, *activations, *invariant, *share, *speculate;
    struct accelerator_wish devices; /* of `device` and `vram` */
    uint64_t host_memory_bytes, disk_bytes_per_s, snapshot_bytes, ctx, batch, parallel, prompt, at, node,
        drafts;
    bool json, node_given, prompt_given, strategy_given, exact;
};

static enum search_strategy strategy_of(const char *name)
{
    for (int s = 0; s < SEARCH_STRATEGIES; s++)
        if (strcmp(name, search_strategy_name((enum search_strategy)s)) == 0) return (enum search_strategy)s;
    return SEARCH_BEST;
}

/* Whether GPU workers can compute the model; if not, no_device says which operation they cannot, and
 * everything is planned on the CPU, as helmd does. */
static int check_able(const struct options *o, struct planner_request *r, bool *able, struct helm_err *err)
{
    struct helm_err why = {0};
    const int rc = able_check_worker(&r->model->math, ABLE_GPU, &why);
    *able = !rc;
    if (rc && strcmp(o->device, "auto") != 0 && strcmp(o->device, "cpu") != 0)
        return helm_fail(err, rc, "--device %s: %.460s", o->device, why.text);
    if (rc) snprintf(r->no_device, sizeof r->no_device, "%.150s", why.text);
    return 0;
}

/* A GPU that a profile describes, with a ceiling. */
static void describe_device(const struct profile_gpu *gpu, uint64_t vram, struct ledger_device *ledger)
{
    const struct accelerator_info device = {.vram_bytes = gpu->vram_bytes,
                                            .vram_free = gpu->vram_free,
                                            .context_bytes = gpu->context_bytes};
    char asked[UNITS_TEXT], there[UNITS_TEXT];
    *ledger = (struct ledger_device){.limit = UINT64_MAX};
    if (gpu->device == PROFILE_DEVICE_CUDA)
        accelerator_ledger_cuda(&device, vram, ledger);
    else if (gpu->device == PROFILE_DEVICE_EMULATED)
        accelerator_ledger_emulated(vram, ledger);
    if (gpu->device == PROFILE_DEVICE_CUDA && vram > gpu->vram_bytes)
        log_warn("--vram %s: the profile's GPU has %s", units_format_size(vram, asked),
                 units_format_size(gpu->vram_bytes, there));
}

/* The second GPU of the file, where the options have one: with one name the next one that there is. A GPU
 * that is alone in its file stands for two where there are two ceilings. */
static int describe_second(const struct options *o, struct profile *profile, struct profile *second,
                           struct planner_request *r, struct helm_err *err)
{
    const char *name = o->devices.device[1];
    const bool any = !strchr(o->device, ','), automatic = strcmp(name, "auto") == 0;
    struct helm_err none = {0};
    if (!name[0]) return 0;
    const int rc = profile_read(o->profile, automatic ? "cuda:1" : name, second, &none);
    const bool alone = rc == HELM_E_NOT_FOUND && any;
    if (alone && !o->devices.vram_given) return 0;
    if (rc && !alone) return helm_fail(err, rc, "%s: %.400s", o->profile, none.text);
    if (!alone) profile->second = second;
    describe_device(alone ? &profile->gpu : &second->gpu, o->devices.vram[1], &r->machine.second);
    return 0;
}

/* The device and the memory of the machine that a profile describes. */
static int describe_machine(const struct options *o, bool able, struct profile *profile,
                            struct profile *second, struct planner_request *r, struct helm_err *err)
{
    struct cgroup_memory *memory = &r->machine.memory;
    if (o->devices.vram_given && profile->gpu.device == PROFILE_DEVICE_NONE)
        return helm_fail(err, HELM_E_USAGE, "--vram: the profile's machine has no GPU");
    describe_device(&profile->gpu, o->devices.vram[0], &r->machine.device);
    const int rc =
        able && profile->gpu.device != PROFILE_DEVICE_NONE ? describe_second(o, profile, second, r, err) : 0;
    if (rc) return rc;
    if (able)
        snprintf(r->no_device, sizeof r->no_device, "%s",
                 strcmp(o->device, "cpu") == 0 ? "--device cpu" : "the profile's machine has none");
    else
        r->machine.device = (struct ledger_device){.limit = UINT64_MAX};
    if (!profile->host_bytes && !o->host_memory_bytes) return cgroup_read_memory(memory, err);
    /* --host-memory alone limits then, and the ledger says so */
    uint64_t bytes = o->host_memory_bytes ? PLAN_BYTES_MAX : profile->host_bytes;
    *memory = (struct cgroup_memory){.limit_bytes = CGROUP_UNLIMITED,
                                     .machine_bytes = bytes,
                                     .available_bytes = bytes};
    return 0;
}

static int wanted_node(const struct options *o)
{
    return o->node_given ? (int)o->node : -1;
}

/* The profile that helm-profile left of this machine with one device. */
static int read_kept(const struct options *o, const struct accelerator *device, struct profile *profile,
                     struct ledger_device *ledger, struct helm_err *err)
{
    struct profile_hardware hardware = {.threads = 0, .node = wanted_node(o)};
    char path[PATH_TEXT], fingerprint[72];
    snprintf(hardware.device, sizeof hardware.device, "%s", device->hardware);
    int rc = profile_fingerprint(&hardware, fingerprint, NULL, 0, err);
    if (!rc) rc = profile_cache_path(fingerprint, path, sizeof path, err);
    if (rc) return rc;
    if (access(path, F_OK))
        return helm_fail(
            err, HELM_E_NOT_FOUND,
            "there is no profile of this machine (%.250s): `helm-profile --device %s` makes one in a "
            "minute, --profile FILE takes another machine's",
            path, device->name[0] ? device->name : "cpu");
    rc = profile_read(path, NULL, profile, err);
    if (!rc) accelerator_ledger_measured(&profile->gpu, ledger);
    return rc ? helm_err_prefix(err, "the profile of this machine cannot be used (helm-profile renews it)")
              : 0;
}

/* This machine: its devices, its memory, and its profile; a second one's where that is another model. */
static int find_machine(const struct options *o, bool able, struct profile *profile, struct profile *second,
                        struct planner_request *r, struct helm_err *err)
{
    int node = -1;
    static struct accelerator device, other; /* large */
    struct helm_err none = {0};
    char program[PATH_TEXT] = "";
    /* A missing program is reported by the choice of the device. */
    if (worker_process_find(NULL, GPU_WORKER, program, sizeof program, &none)) program[0] = 0;
    int rc = start_check_proc(err);
    if (!rc)
        rc = accelerator_choose(able ? o->devices.device[0] : "cpu", o->devices.vram[0], program, &device,
                                err);
    if (!rc) rc = accelerator_choose_second(&o->devices, &device, &other, err);
    if (!rc) rc = accelerator_choose_node(&device, wanted_node(o), &node, err);
    if (!rc) rc = node_read_memory(node, &r->machine.memory, err);
    if (rc) return rc;
    r->machine.device = device.ledger;
    r->machine.second = other.ledger;
    if (able) snprintf(r->no_device, sizeof r->no_device, "%s", device.why);
    rc = read_kept(o, &device, profile, &r->machine.device, err);
    if (rc || other.ledger.kind == LEDGER_DEVICE_NONE) return rc;
    if (accelerator_alike(&device, &other)) {
        accelerator_ledger_measured(&profile->gpu, &r->machine.second);
        return 0;
    }
    rc = read_kept(o, &other, second, &r->machine.second, err);
    if (!rc) profile->second = second;
    if (rc != HELM_E_NOT_FOUND || !accelerator_second_unnamed(&o->devices)) return rc;
    fprintf(stderr, "helm-plan: %s is left out: %s\n", other.name, err->text);
    r->machine.second.kind = LEDGER_DEVICE_NONE;
    *err = (struct helm_err){0};
    return 0;
}

static int print_json(json_t *json, struct helm_err *err)
{
    char *text = json ? json_dumps(json, JSON_STYLE) : NULL;
    json_decref(json);
    if (!text) return helm_fail(err, HELM_E_NOMEM, "no memory to print the plan");
    puts(text);
    free(text);
    return 0;
}

/* Refuses a plan that cannot fit, with its numbers. */
static int refuse(const struct options *o, const struct planner_refusal *refusal, struct helm_err *err)
{
    char text[HELM_ERR_TEXT];
    memcpy(text, err->text, sizeof text);
    if (!o->json) {
        fprintf(stderr, "helm-plan: %s\n", text);
        return STATUS_REFUSED;
    }
    if (!print_json(explain_refusal_to_json(refusal, text), err)) return STATUS_REFUSED;
    fprintf(stderr, "helm-plan: %s\n", err->text);
    return STATUS_FAILED;
}

static int explain(const struct options *o, const struct planner_request *r, const struct plan *plan,
                   bool derived, struct helm_err *err)
{
    struct explain x;
    if (o->prompt_given && r->prompt > plan->context_tokens)
        return helm_fail(err, HELM_E_LIMIT,
                         "--prompt %u: the context is %u tokens (--ctx says how long it is to be)", r->prompt,
                         plan->context_tokens);
    if (o->at > plan->context_tokens)
        return helm_fail(err, HELM_E_LIMIT, "--at %llu: the context is %u tokens", (unsigned long long)o->at,
                         plan->context_tokens);
    uint32_t at = o->at ? (uint32_t)o->at : o->prompt_given ? r->prompt + 1 : 0;
    log_set_level(LOG_LEVEL_ERROR); /* the table has what the other strategies lack */
    int rc = explain_make(r, plan, at, &x, err);
    if (rc) return rc;
    uint64_t pages = (uint64_t)x.batch * kv_pages_for(x.context, plan->page_tokens);
    if (pages > plan->page_count)
        rc = helm_fail(err, HELM_E_LIMIT,
                       "%u sequences of %u tokens take %llu KV pages: the plan has %u (--at says how many "
                       "tokens)",
                       x.batch, x.context, (unsigned long long)pages, plan->page_count);
    if (!rc && o->plot) rc = plot_write(&x, o->plot, err);
    if (!rc && o->json) {
        rc = print_json(explain_to_json(&x), err);
    } else if (!rc) {
        FILE *out = printable_open(stdout); /* names in a checkpoint are untrusted */
        if (!out) rc = helm_fail(err, HELM_E_NOMEM, "no memory for the report");
        if (out && derived) fprintf(out, "(no tensors there: their sizes are what config.json implies)\n");
        if (out) explain_print(&x, out);
        if (out && fclose(out)) rc = helm_fail_errno(err, "standard output");
    }
    if (!rc && (fflush(stdout) || ferror(stdout))) rc = helm_fail_errno(err, "standard output");
    explain_free(&x);
    return rc;
}

/* A plan that was made before, or edited: checked, and its ledgers written anew. */
static int take_plan(const char *path, struct planner_request *r, struct model *model, struct plan *plan,
                     struct arena_spec *arena, struct helm_err *err)
{
    json_t *json = NULL;
    int rc = json_read_file(path, PLAN_TEXT_MAX, &json, err);
    if (!rc) rc = plan_from_json(json, plan, err);
    json_decref(json);
    if (!rc) rc = model_cut_experts(model, plan_expert_parts(plan), err);
    if (!rc) formats_lay_as_planned(model, plan);
    if (!rc) rc = packed_look_take(r, plan, arena, err);
    return rc ? helm_err_prefix(err, "--plan %s", path) : 0;
}

/* The plan's sizes stand, and options beside it must agree with them. Unless --ctx is given, attention is
 * forecast for the default context, as when the plan was made. */
static int agree(const struct options *o, const struct plan *plan, struct planner_request *r,
                 struct helm_err *err)
{
    if (o->ctx && o->ctx != plan->context_tokens)
        return helm_fail(err, HELM_E_LIMIT, "--ctx %llu: the plan in --plan is for a context of %u tokens",
                         (unsigned long long)o->ctx, plan->context_tokens);
    if (o->batch > plan->slots)
        return helm_fail(err, HELM_E_LIMIT, "--batch %llu: the plan in --plan has %u slots",
                         (unsigned long long)o->batch, plan->slots);
    planner_adopt(plan, r->model, &r->wish);
    r->wish.ctx = (uint32_t)o->ctx;
    r->plan_given = true;
    return 0;
}

/* Finds the rates to plan by, and those to forecast by, as helmd has them. */
static int look_at_now(const struct options *o, struct profile *measured, struct profile *current,
                       struct machine_now *now, struct planner_request *r, struct helm_err *err)
{
    struct profile_now rates;
    *current = *measured;
    if (!o->now) return 0;
    int rc = profile_now_read(o->now, &rates, err);
    if (!rc) rc = profile_now_check(measured, &rates, err);
    if (rc) return helm_err_prefix(err, "--now");
    profile_now_decide(measured, &rates, now);
    profile_now_apply(measured, &rates, current);
    if (now->plans) *measured = *current;
    r->now = now->text;
    return 0;
}

/* The plan with the activations that are wanted now. */
static int lay_plan(const struct options *o, const struct profile *measured, struct planner_request *r,
                    struct activations *a, struct model *model, struct plan *plan, struct helm_err *err)
{
    struct arena_spec arena;
    struct profile *profile = (struct profile *)r->profile;
    activations_rates(measured, a->inputs, profile);
    memcpy(r->inputs, a->inputs, sizeof r->inputs);
    int rc = o->plan ? take_plan(o->plan, r, model, plan, &arena, err)
                     : parts_look_make(model, r, plan, &arena, err);
    if (o->plan && !rc) activations_take(plan, a);
    activations_rates(measured, plan->inputs, profile);
    return rc;
}

/* Reads the model's own programs on the profile's machine that helm-profile, or helmd, has kept. */
static void look_at_programs(const struct options *o, const struct model *model, struct profile *measured,
                             struct programs *programs)
{
    char path[PATH_TEXT];
    struct helm_err why = {0};
    const int rc =
        programs_kept(model, measured->fingerprint, o->kv_dtype, programs, path, sizeof path, &why);
    if (!rc) measured->programs = programs;
    if (rc && rc != HELM_E_NOT_FOUND)
        log_warn("the model's measured programs cannot be used, prices go by rates: %s", why.text);
}

/* The model with its layer of drafts, if the plan is to have one, or has it. */
static int read_model(const struct options *o, struct model *model, bool *derived, struct helm_err *err)
{
    bool drafts = strcmp(o->speculate, "mtp") == 0;
    if (o->plan) {
        json_t *json = NULL;
        const int rc = json_read_file(o->plan, PLAN_TEXT_MAX, &json, err);
        if (rc) return helm_err_prefix(err, "--plan %s", o->plan), rc;
        drafts = json_integer_value(json_object_get(json, "draft_layers")) > 0;
        json_decref(json);
    }
    return (drafts ? model_read_drafting_headers : model_read_headers)(o->model, model, derived, err);
}

static int run(const struct options *o, const struct args_spec *spec)
{
    static struct profile measured, current, profile, second; /* large */
    static struct programs programs;
    struct machine_now now = {.known = false};
    struct helm_err err = {0};
    struct model model = {0};
    struct plan plan = {0};
    struct planner_refusal refusal = {0};
    struct planner_second second_used = {""};
    struct planner_cache cache = {.first = NULL};
    bool derived = false, again = false, able = true;
    int status = 0;
    struct activations activations = {.option = o->exact ? ACTIVATIONS_EXACT
                                                         : activations_option_named(o->activations),
                                      .kernels = ""};
    struct histogram experts = {0};
    struct page_size pages;
    struct invariant invariant = {.option = invariant_option_named(o->invariant)};
    struct planner_request r = {.model = &model,
                                .wish = {.kv_dtype = kv_dtype_named(o->kv_dtype),
                                         .slots = (uint32_t)(o->batch > o->parallel ? o->batch : o->parallel),
                                         .ctx = (uint32_t)o->ctx,
                                         .draft_tokens = (uint32_t)o->drafts,
                                         .batch = (uint32_t)o->batch,
                                         .pack = strcmp(o->pack, "off") != 0,
                                         .pack_cpu = true, /* the profile says whether it can */
                                         .pack_all = strcmp(o->pack, "all") == 0,
                                         .pack_gpu = true,
                                         .host_memory_bytes = o->host_memory_bytes,
                                         .snapshot_bytes = o->snapshot_bytes},
                                .profile = &profile,
                                .one_memory = invariant.option == INVARIANT_ON,
                                .share = share_option_named(o->share),
                                .strategy = strategy_of(o->strategy),
                                .tiers = kv_tiers_named(o->kv_tiers),
                                .batch = (uint32_t)o->batch,
                                .prompt = (uint32_t)o->prompt,
                                .refusal = &refusal,
                                .second = &second_used,
                                .cache = &cache};
    int rc = read_model(o, &model, &derived, &err);
    if (!rc) rc = check_able(o, &r, &able, &err);
    if (!rc && o->profile) rc = profile_read(o->profile, o->devices.device[0], &measured, &err);
    if (!rc)
        rc = o->profile ? describe_machine(o, able, &measured, &second, &r, &err)
                        : find_machine(o, able, &measured, &second, &r, &err);
    if (!rc) rc = profile_disk(&model, o->disk_bytes_per_s, o->plan ? 0 : planner_room(&r), &measured, &err);
    if (!rc) found_look(&model, &measured);
    if (!rc) rc = look_at_now(o, &measured, &current, &now, &r, &err);
    if (rc) goto out;
    r.wish.threads = measured.cpu.threads;
    const struct mixture *weights;
    rc = formats_read(o->weights, &weights, &err);
    if (rc) goto out;
    formats_lay(&model, weights);
    look_at_programs(o, &model, &measured, &programs);
    current.programs = measured.programs;
    current.second = measured.second;
    if (o->experts) {
        rc = histogram_read(o->experts, &model, &experts, &err);
        if (rc) goto out;
        r.experts = &experts;
    }
    page_size_choose(&(struct page_size_case){.model = &model,
                                              .profile = &measured,
                                              .device =
                                                  r.strategy == SEARCH_ALL_CPU ? NULL : &r.machine.device,
                                              .kv_dtype = r.wish.kv_dtype,
                                              .slots = r.wish.slots,
                                              .ctx = r.wish.ctx,
                                              .option = o->kv_page_tokens},
                     &pages);
    r.wish.page_tokens = pages.tokens;
    r.pages = o->plan ? NULL : pages.text;
    if (!derived) (void)packed_look_first(&r);
    r.device_required = r.strategy != SEARCH_BEST && r.strategy != SEARCH_ALL_CPU;
    activations_want(&model, &measured, o->profile ? ~0u : cpu_features(), &activations);
    r.activations = activations.text;
    rc = lay_plan(o, &measured, &r, &activations, &model, &plan, &err);
    if (!rc && !derived) activations_look(&model, &plan, &activations, &again);
    if (again) {
        plan_free(&plan);
        rc = lay_plan(o, &measured, &r, &activations, &model, &plan, &err);
    }
    if (!rc) rc = invariant_decide(&r, o->plan != NULL, &plan, &invariant, &err);
    r.invariant = invariant.text;
    activations_rates(&current, plan.inputs, &profile); /* the plan stands: forecasts */
    if (rc == HELM_E_CAPACITY) {
        status = refuse(o, &refusal, &err);
        rc = 0;
    } else {
        if (!rc && o->plan) rc = agree(o, &plan, &r, &err);
        if (!rc) formats_warn_unmeasured(&model, &profile);
        if (!rc) rc = explain(o, &r, &plan, derived, &err);
    }
out:
    plan_free(&plan);
    planner_cache_free(&cache);
    histogram_free(&experts);
    model_free(&model);
    if (rc == HELM_E_USAGE) return args_usage_error(spec, &err);
    if (rc) fprintf(stderr, "helm-plan: %s\n", err.text);
    return rc ? STATUS_FAILED : status;
}

int main(int argc, char **argv)
{
    struct options o = {.strategy = "best",
                        .pack = "auto",
                        .weights = "stored",
                        .activations = "auto",
                        .invariant = "auto",
                        .share = "off",
                        .speculate = "off",
                        .kv_dtype = "f16",
                        .kv_tiers = KV_TIERS_DEFAULT,
                        .kv_page_tokens = PAGE_SIZE_DEFAULT,
                        .device = "auto",
                        .batch = 1,
                        .parallel = 8,
                        .prompt = PLANNER_PROMPT_TOKENS};
    struct args_parsed parsed;
    const struct args_option table[] = {
        {"model", 0, ARGS_TEXT, "DIR",
         "folder with config.json; headers of its safetensors where they are, no weights",
         .target = &o.model},
        {"profile", 0, ARGS_TEXT, "FILE",
         "machine to plan for (default: this one, as helm-profile measured it);\n"
         "described ones are in PREFIX/share/helm/profiles",
         .target = &o.profile},
        {"now", 0, ARGS_TEXT, "FILE",
         "forecast, and plan where it is more than 10 % off, by what memory gives now:\n"
         "what helm-profile --now printed",
         .target = &o.now},
        {"device", 0, ARGS_TEXT, "NAME",
         "as helmd's: auto, cpu, cuda[:N], emulated, or two (default auto); of a profile's GPUs also by "
         "name\n"
         "or uuid",
         .target = &o.device},
        {"node", 0, ARGS_U64, "N",
         "NUMA node of this machine's memory and threads, as helmd's\n"
         "(default: the GPU's, else the one with the most memory available)",
         .target = &o.node, .max = 1023, .given = &o.node_given},
        {"vram", 0, ARGS_TEXT, "SIZE[,SIZE]",
         "VRAM to use at most; two: of two devices (default: what is free)", .target = &o.vram},
        {"disk-rate", 0, ARGS_SIZE, "SIZE",
         "bytes a second that the disk gives, for models larger than memory\n"
         "(default: as the profile says, or measured with the model's files)",
         .target = &o.disk_bytes_per_s, .min = 1},
        {"host-memory", 0, ARGS_SIZE, "SIZE",
         "host memory to use at most (default: what the profile says, or is free)",
         .target = &o.host_memory_bytes},
        {"ctx", 0, ARGS_U64, "N",
         "longest sequence in tokens (default: the model's, at most 8192, as memory allows)",
         .target = &o.ctx, .min = 16, .max = MODEL_CONTEXT_MAX},
        {"batch", 0, ARGS_U64, "N", "sequences that decode together, each with a whole context (default 1)",
         .target = &o.batch, .min = 1, .max = ARENA_SLOTS_MAX},
        {"parallel", 0, ARGS_U64, "N",
         "sequences that have slots, and room for states of fixed size, as helmd's\n"
         "(default 8, and no fewer than --batch)",
         .target = &o.parallel, .min = 1, .max = ARENA_SLOTS_MAX},
        {"speculate", 0, ARGS_CHOICE, "off|mtp",
         "mtp: with the model's own layer of drafts, as helmd's (default off)", .target = &o.speculate,
         .choices = "off|mtp"},
        {"draft-tokens", 0, ARGS_U64, "N",
         "drafts of a sequence in a step at most, as helmd's: forecasts of steps with them\n"
         "(default 0)",
         .target = &o.drafts, .max = ENGINE_DRAFTS_MAX},
        {"prompt", 0, ARGS_U64, "N",
         "prompt that the first token is forecast for (default 128); decode is forecast right\n"
         "after it (default: half way through the context; with --ctx at its end)",
         .target = &o.prompt, .min = 1, .max = MODEL_CONTEXT_MAX, .given = &o.prompt_given},
        {"strategy", 0, ARGS_CHOICE, "NAME",
         "what the plan may do. best: anything; thesis: one run of layers on the GPU, the rest\n"
         "on the CPU; stream: all computed on the GPU; experts-cpu: mixtures of experts on the CPU, all "
         "else\n"
         "on the GPU; mixed: a layer's experts in both memories (default best)",
         .target = &o.strategy, .choices = "best|all-gpu|all-cpu|thesis|stream|experts-cpu|mixed",
         .given = &o.strategy_given},
        {"share", 0, ARGS_CHOICE, SHARE_CHOICES,
         "whether GPU and CPU compute the rows of a dense MLP together, as helmd's (default off)",
         .target = &o.share, .choices = SHARE_CHOICES},
        {"pack", 0, ARGS_CHOICE, "auto|all|off",
         "whether bf16 weights are packed, in VRAM and in host memory, as helmd's (default auto)",
         .target = &o.pack, .choices = "auto|all|off"},
        {"activations", 0, ARGS_CHOICE, ACTIVATIONS_CHOICES,
         "what blocks are multiplied with, as helmd's (default auto)", .target = &o.activations,
         .choices = ACTIVATIONS_CHOICES},
        {"exact", 0, ARGS_FLAG, NULL, "the same as --activations exact", .target = &o.exact},
        {"invariant", 0, ARGS_CHOICE, INVARIANT_CHOICES,
         "whether tokens depend on nothing but the request, as helmd's (default auto)",
         .target = &o.invariant, .choices = INVARIANT_CHOICES},
        {"weights", 0, ARGS_TEXT, "FORMAT", "how weights lie in memory, as helmd's (default stored)",
         .target = &o.weights},
        {"kv-dtype", 0, ARGS_CHOICE, "TYPE", "type of the KV cache, as helmd's (default f16)",
         .target = &o.kv_dtype, .choices = "f16|bf16|f32|q8_0"},
        {"kv-tiers", 0, ARGS_CHOICE, "N", "tiers of the KV cache, as helmd's (default " KV_TIERS_DEFAULT ")",
         .target = &o.kv_tiers, .choices = KV_TIERS_CHOICES},
        {"kv-page-tokens", 0, ARGS_CHOICE, "N",
         "positions of a page of the KV cache, as helmd's (default " PAGE_SIZE_DEFAULT ")",
         .target = &o.kv_page_tokens, .choices = PAGE_SIZE_CHOICES},
        {"state-snapshots", 0, ARGS_SIZE, "SIZE",
         "host memory for states of fixed size, as helmd's (default: as memory allows)",
         .target = &o.snapshot_bytes},
        {"experts-histogram", 0, ARGS_TEXT, "FILE", "uses of experts, as helmd's", .target = &o.experts},
        {"plan", 0, ARGS_TEXT, "FILE",
         "explain this plan (what --json printed, or edited) instead of making one", .target = &o.plan},
        {"at", 0, ARGS_U64, "N", "forecast decode when N tokens are in the context", .target = &o.at,
         .min = 1, .max = MODEL_CONTEXT_MAX},
        {"json", 0, ARGS_FLAG, NULL, "one JSON object, which helmd --plan takes too", .target = &o.json},
        {"plot", 0, ARGS_TEXT, "FILE.svg", "also draw token/s over every split and one step by resource",
         .target = &o.plot},
    };
    const struct args_spec spec = {
        .program = "helm-plan",
        .usage = "--model DIR [--profile FILE] [options]",
        .about = "Plans a model for a machine and says how fast it will be, before anything is loaded.",
        .options = table,
        .option_count = sizeof table / sizeof *table,
        .epilogue =
            "exit status: 0 there is a plan, 1 failed, 2 usage, 4 nothing fits: the numbers and what "
            "would\n\n"
            "  helm-plan --model Qwen3-8B --profile share/helm/profiles/thesis-rtx3090.json --vram 8GiB\n"
            "  helm-plan --model Qwen3-8B --json > plan.json && helmd --model Qwen3-8B --plan plan.json"};
    struct helm_err err = {0};
    log_init("helm-plan", LOG_LEVEL_WARN);
    args_parse_main(&spec, argc, argv, &parsed);
    if (!o.model) {
        (void)helm_fail(&err, HELM_E_USAGE, "--model DIR is required");
        return args_usage_error(&spec, &err);
    }
    if (accelerator_wish_read(o.device, o.vram, o.profile, &o.devices, &err))
        return args_usage_error(&spec, &err);
    if (o.profile && o.node_given) {
        (void)helm_fail(&err, HELM_E_USAGE, "--node chooses a node of this machine: a profile names its own");
        return args_usage_error(&spec, &err);
    }
    if (o.plan && o.strategy_given) {
        (void)helm_fail(&err, HELM_E_USAGE, "--strategy makes a plan: --plan has one already");
        return args_usage_error(&spec, &err);
    }
    return run(&o, &spec);
}
