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

#include "common/base/args.h"
#include "common/base/cpu.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/printable.h"
#include "common/model/able.h"
#include "common/base/units.h"
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
#include "daemon/steps/draft_layer.h"
#include "daemon/steps/request_speculate.h"
#include "tools/plan/options.h"

#define STATUS_FAILED  1
#define STATUS_REFUSED 4
#define JSON_STYLE     (JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9))

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

/* A planned model and what it is planned by. The caller's. */
struct planning {
    const struct options *o;
    const struct mixture *weights;
    const struct profile *measured;
    struct profile *profile; /* the request's */
    struct planner_request *r;
    struct activations *activations;
    struct invariant *invariant;
    struct model *model;
    struct plan *plan;
    struct arena_spec arena;
};

/* The plan with the activations that are wanted now. */
static int lay_plan(struct planning *p, struct helm_err *err)
{
    const struct options *o = p->o;
    activations_rates(p->measured, p->activations->inputs, p->profile);
    memcpy(p->r->inputs, p->activations->inputs, sizeof p->r->inputs);
    int rc = o->plan ? take_plan(o->plan, p->r, p->model, p->plan, &p->arena, err)
                     : parts_look_make(p->model, p->r, p->plan, &p->arena, err);
    if (o->plan && !rc) activations_take(p->plan, p->activations);
    activations_rates(p->measured, p->plan->inputs, p->profile);
    return rc ? rc : invariant_decide(p->r, o->plan != NULL, p->plan, p->invariant, err);
}

static int lay_with_layer(void *of, const char *path, struct helm_err *err)
{
    struct planning *p = of;
    bool derived;
    int rc = model_read_drafting_headers(path, p->model, &derived, err);
    if (rc) return rc;
    formats_lay(p->model, p->weights);
    planner_cache_free(p->r->cache); /* its candidates are without the layer */
    return lay_plan(p, err);
}

/* With --speculate auto, or a draft model: as helmd decides. */
static int decide_drafts(struct planning *p, char text[DRAFT_LAYER_TEXT], struct helm_err *err)
{
    const struct draft_layer_planned planned = {.model = p->model,
                                                .plan = p->plan,
                                                .arena = &p->arena,
                                                .request = p->r,
                                                .profile = p->profile,
                                                .invariant = p->invariant,
                                                .lay_with_layer = lay_with_layer,
                                                .of = p};
    if (p->o->plan || (p->o->kind != REQUEST_SPECULATE_AUTO && !p->o->draft_model)) return 0;
    const int rc = draft_layer_decide(&planned, text, err);
    if (p->model->config.draft_layers && !p->model->config.drafts)
        planner_cache_free(p->r->cache); /* its candidates have the layer */
    p->r->drafts = text;
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
    bool drafts = o->kind == REQUEST_SPECULATE_MTP;
    if (o->plan) {
        static const char *const of_drafts[] = {"draft_layers", NULL};
        const int rc = plan_file_has(o->plan, of_drafts, &drafts, err);
        if (rc) return helm_err_prefix(err, "--plan %s", o->plan), rc;
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
    char drafts[DRAFT_LAYER_TEXT];
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
        rc = o->profile ? machine_describe(o, able, &measured, &second, &r, &err)
                        : machine_find(o, able, &measured, &second, &r, &err);
    if (!rc)
        rc = profile_disk(&model, o->disk_bytes_per_s, profile_disk_room(o->plan, planner_room(&r)),
                          &measured, &err);
    if (!rc) found_look(&model, &measured);
    if (!rc) rc = look_at_now(o, &measured, &current, &now, &r, &err);
    if (rc) goto out;
    r.wish.threads = measured.cpu.threads;
    const struct mixture *weights;
    rc = formats_read(o->weights, &weights, &err);
    if (rc) goto out;
    rc = draft_model_plan(o, &model, &measured, &r, &err);
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
    r.invariant = invariant.text;
    struct planning planning = {.o = o,
                                .weights = weights,
                                .measured = &measured,
                                .profile = &profile,
                                .r = &r,
                                .activations = &activations,
                                .invariant = &invariant,
                                .model = &model,
                                .plan = &plan};
    rc = lay_plan(&planning, &err);
    if (!rc && !derived) activations_look(&model, &plan, &activations, &again);
    if (again) {
        plan_free(&plan);
        rc = lay_plan(&planning, &err);
    }
    if (!rc) rc = decide_drafts(&planning, drafts, &err);
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
                        .drafts = REQUEST_NO_DRAFTS,
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
        {"speculate", 0, ARGS_CHOICE, REQUEST_SPECULATE_CHOICES,
         "drafts, as helmd's. auto: says whether they are found in the text or made by the model's\n"
         "own layer, and how many are forecast to pay; mtp: with that layer; draft: by a draft model\n"
         "(default off, draft with --draft-model)",
         .target = &o.speculate, .choices = REQUEST_SPECULATE_CHOICES},
        {"draft-model", 0, ARGS_TEXT, "MODEL",
         "a small model of the same vocabulary that makes the drafts: the plan is for what it leaves",
         .target = &o.draft_model},
        {"draft-device", 0, ARGS_TEXT, "cpu",
         "the draft model is planned for the CPU (default: for the first device)", .target = &o.draft_device},
        {"draft-tokens", 0, ARGS_U64, "N",
         "drafts of a sequence in a step at most, as helmd's: forecasts of steps with them\n"
         "(default 4 with --speculate ngram or draft, 15 with auto, 3 with mtp, else 0)",
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
    if (request_speculate_read(&o.speculate, &o.draft_model, &o.drafts, &o.kind, &err))
        return args_usage_error(&spec, &err);
    if (o.draft_device && !o.draft_model) {
        (void)helm_fail(&err, HELM_E_USAGE, "--draft-device %.60s is for --draft-model", o.draft_device);
        return args_usage_error(&spec, &err);
    }
    if (o.plan && o.strategy_given) {
        (void)helm_fail(&err, HELM_E_USAGE, "--strategy makes a plan: --plan has one already");
        return args_usage_error(&spec, &err);
    }
    return run(&o, &spec);
}
