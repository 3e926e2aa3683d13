/* helmd's configuration. See config.h. Called by main.c; owns the strings that came from the file.
 *
 * A line of the file is turned into "--key=value" and goes through the same parser as the command line, so
 * both know the same options, bounds and messages. */
#include "daemon/start/config.h"
#include "common/base/cpu.h"
#include "common/plan/engine_limits.h"
#include "daemon/children/accelerator.h"
#include "daemon/clients/endpoint.h"
#include "daemon/planner/page_size.h"

#include <grp.h>
#include <ini.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPTION_COUNT_MAX 64
#define OWNED_MAX        256
#define GATEWAY_GROUP    "helm-gateways" /* systemd/helm.sysusers */

struct option_table {
    struct args_option option[OPTION_COUNT_MAX];
    bool given[OPTION_COUNT_MAX]; /* on the command line, or in the file while that is read */
    uint32_t count;
};

/* The table; targets point into `c`. */
static void table_build(struct option_table *t, struct config *c)
{
    const struct args_option options[] = {
        {"model", 'm', ARGS_TEXT, "DIR", "checkpoint folder (Hugging Face layout) or GGUF file; required",
         .target = &c->model},
        {"listen", 0, ARGS_LIST, "ENDPOINT",
         "ipc:///PATH, or tcp://ADDRESS:PORT with CURVE keys; repeatable\n"
         "(default ipc://RUNDIR/helmd.sock)",
         .target = &c->listen},
        {"device", 0, ARGS_TEXT, "DEVICE",
         "auto, cpu, cuda[:N] or emulated (default auto: usable GPUs, else cpu);\n"
         "two GPUs: cuda:N,cuda:M",
         .target = &c->device},
        {"vram", 0, ARGS_TEXT, "SIZE[,SIZE]",
         "ceiling for everything allocated on the device; two: on two devices\n"
         "(default: what is free there; emulated: 1 GiB)",
         .target = &c->vram},
        {"emulated-copy", 0, ARGS_SIZE, "SIZE",
         "bytes a second that the emulated device copies\n"
         "(default: as fast as memory)",
         .target = &c->emulated_copy_bytes_per_s},
        {"host-memory", 0, ARGS_SIZE, "SIZE",
         "host memory to use at most (default: what the machine and cgroup leave)",
         .target = &c->host_memory_bytes},
        {"disk-rate", 0, ARGS_SIZE, "SIZE",
         "bytes a second that the disk gives, for models larger than memory\n"
         "(default: as the profile says, or measured with the model's files)",
         .target = &c->disk_bytes_per_s, .min = 1},
        {"ctx", 0, ARGS_U64, "TOKENS",
         "longest sequence (default: the model's, at most 8192, as memory allows)", .target = &c->ctx,
         .min = 16, .max = MODEL_CONTEXT_MAX},
        {"threads", 't', ARGS_U64, "N", "compute threads (default: one a physical core)",
         .target = &c->threads, .min = 1, .max = 1024},
        {"node", 0, ARGS_U64, "N",
         "NUMA node of memory and threads\n"
         "(default: the GPU's, else the one with the most memory available)",
         .target = &c->node, .max = 1023},
        {"kv-dtype", 0, ARGS_CHOICE, "TYPE",
         "KV cache as f16, bf16, f32, or q8_0: blocks of 32, half of\nf16's bytes and not exact (default "
         "f16)",
         .target = &c->kv_dtype_name, .choices = "f16|bf16|f32|q8_0"},
        {"kv-tiers", 0, ARGS_CHOICE, KV_TIERS_CHOICES,
         "KV cache of the GPU's layers wholly in VRAM (one), or its newest pages\n"
         "there and all in host memory (two) (default " KV_TIERS_DEFAULT ")",
         .target = &c->kv_tiers_name, .choices = KV_TIERS_CHOICES},
        {"kv-page-tokens", 0, ARGS_CHOICE, PAGE_SIZE_CHOICES,
         "positions of a page of the KV cache: what is cheapest, or as said\n(default " PAGE_SIZE_DEFAULT ")",
         .target = &c->kv_page_tokens, .choices = PAGE_SIZE_CHOICES},
        {"kv-tokens", 0, ARGS_U64, "TOKENS",
         "tokens the KV pool holds, all sequences together\n"
         "(default 16384, or one context if that is longer, as memory allows)",
         .target = &c->kv_tokens, .min = 16, .max = 1u << 28},
        {"state-snapshots", 0, ARGS_SIZE, "SIZE",
         "host memory for states of fixed size, as hybrid models have, at positions\n"
         "that later prompts may go on from (default: as memory allows)",
         .target = &c->snapshot_bytes},
        {"speculate", 0, ARGS_CHOICE, REQUEST_SPECULATE_CHOICES,
         "guess several tokens of an answer at once from what the text said before,\n"
         "and keep those that the model would have drawn; auto: as many as make\n"
         "the answer faster, or none; mtp: as the model's own layer of drafts\nguesses; draft: as the "
         "draft model guesses; draft=MODEL: the same, and it is MODEL\n"
         "(default off, draft with --draft-model)",
         .target = &c->speculate_name, .choices = REQUEST_SPECULATE_CHOICES},
        {"draft-model", 0, ARGS_TEXT, "MODEL",
         "a small model of the same vocabulary, as --model takes it, whose guesses are drafts",
         .target = &c->draft_model},
        {"draft-device", 0, ARGS_TEXT, "DEVICE",
         "where the draft model computes: auto, cpu, cuda[:N] or emulated\n(default: the first of --device)",
         .target = &c->draft_device},
        {"draft-tokens", 0, ARGS_U64, "N",
         "guessed tokens of a sequence in a step at most; 0: none, whatever requests say\n"
         "(default 4 with --speculate ngram or draft, 15 with auto, 3 with mtp, else 0)",
         .target = &c->draft_tokens, .max = ENGINE_DRAFTS_MAX},
        {"prefix-cache", 0, ARGS_CHOICE, "on|off|peer",
         "do not compute the beginning of a prompt that is in the KV pool\n"
         "already: whoever had it computed (on), or the same user or\n"
         "CURVE key (peer) (default on)",
         .target = &c->prefix_cache_name, .choices = "on|off|peer"},
        {"parallel", 0, ARGS_U64, "N", "sequences computed on at once (default 8, at most 64)",
         .target = &c->parallel, .min = 1, .max = CONFIG_SLOTS_MAX},
        {"queue", 0, ARGS_U64, "N", "requests that may wait beside those (default 256)", .target = &c->queue,
         .min = 0, .max = CONFIG_QUEUE_MAX},
        {"step-tokens", 0, ARGS_U64, "N",
         "most tokens in one step: the prefill chunk\n"
         "(default: the planner's choice, 512 to 4096)",
         .target = &c->step_tokens, .min = 16, .max = 8192},
        {"spin-us", 0, ARGS_U64, "US", "how long waiting threads spin before they sleep (default 8)",
         .target = &c->spin_us, .max = 1000000},
        {"kernels", 0, ARGS_TEXT, "NAME", "use this kernel variant wherever it exists",
         .target = &c->kernels},
        {"plan", 0, ARGS_TEXT, "FILE", "use this plan (JSON) instead of making one", .target = &c->plan_file},
        {"profile", 0, ARGS_TEXT, "FILE",
         "plan for the machine in this profile (JSON)\n"
         "(default: this one's, measured at the first start)",
         .target = &c->profile_file},
        {"now", 0, ARGS_TEXT, "auto|on|off|FILE",
         "whether the forecast, and a plan more than 10 % off, go by what memory gives now:\n"
         "auto measures it where the profile is this machine's; FILE: as helm-profile --now prints it\n"
         "(default auto)",
         .target = &c->now},
        {"strategy", 0, ARGS_CHOICE, "NAME",
         "best, or the best of a simpler kind: all-gpu, all-cpu, thesis (one\n"
         "run of whole layers on the GPU), stream (no CPU),\n"
         "experts-cpu (experts on the CPU, all else on the GPU), mixed (experts in both memories) (default "
         "best)",
         .target = &c->strategy_name, .choices = "best|all-gpu|all-cpu|thesis|stream|experts-cpu|mixed"},
        {"share", 0, ARGS_CHOICE, SHARE_CHOICES,
         "whether GPU and CPU compute the rows of a dense MLP together: auto where the forecast gains\n"
         "(default off)",
         .target = &c->share_name, .choices = SHARE_CHOICES},
        {"experts-histogram", 0, ARGS_TEXT, "FILE",
         "uses of experts, as helm-cli experts --histogram wrote them: which are in VRAM at first",
         .target = &c->experts_file},
        {"batch", 0, ARGS_U64, "N",
         "sequences decoding together that the plan is made fastest for\n"
         "(default 1)",
         .target = &c->batch, .min = 1, .max = CONFIG_SLOTS_MAX},
        {"prompt", 0, ARGS_U64, "TOKENS", "prompt whose time to first token is forecast (default 128)",
         .target = &c->prompt, .min = 1, .max = MODEL_CONTEXT_MAX},
        {"max-stall-ms", 0, ARGS_U64, "MS",
         "how long a step may get through a prompt's tokens while other\n"
         "sequences decode (default 500; 0: no bound)",
         .target = &c->max_stall_ms, .max = 3600000},
        {"gpu-graphs", 0, ARGS_CHOICE, "on|off", "replay captured steps on the GPU (default on)",
         .target = &c->gpu_graphs_name, .choices = "on|off"},
        {"gpu-chains", 0, ARGS_CHOICE, "on|off",
         "decode one token on the GPU with chains of operations in one kernel,\n"
         "where it has them (default on)",
         .target = &c->gpu_chains_name, .choices = "on|off"},
        {"pack", 0, ARGS_CHOICE, "auto|all|off",
         "keep bf16 weights packed, without loss: more of them fit VRAM, fewer bytes\n"
         "cross the link or are read by the CPU (default auto: where that pays;\n"
         "all: the CPU's beside a GPU, too)",
         .target = &c->pack_name, .choices = "auto|all|off"},
        {"weights", 0, ARGS_TEXT, "FORMAT",
         "how weights lie in memory: stored, or the mixture of blocks, such as\n"
         "q4_k_m, that they are converted to at load, with its loss (default stored)",
         .target = &c->weights_name},
        {"activations", 0, ARGS_CHOICE, ACTIVATIONS_CHOICES,
         "what blocks are multiplied with: exact, or rounded to int8 in blocks of 32\n"
         "(default auto: int8 where that is faster and the model's own check allows it)",
         .target = &c->activations_name, .choices = ACTIVATIONS_CHOICES},
        {"invariant", 0, ARGS_CHOICE, INVARIANT_CHOICES,
         "whether a request's tokens and logprobs depend on nothing but the request:\n"
         "not on others, chunks, what the cache holds, or a worker's death\n"
         "(default auto: where decode takes at most 5 %, a prompt 10 % longer)",
         .target = &c->invariant_name, .choices = INVARIANT_CHOICES},
        {"exact", 0, ARGS_FLAG, NULL, "the same as --activations exact", .target = &c->exact},
        {"rundir", 0, ARGS_TEXT, "DIR", "where sockets and locks go", .target = &c->rundir},
        {"worker-dir", 0, ARGS_TEXT, "DIR", "where the workers' programs are (default: beside helmd)",
         .target = &c->worker_dir},
        {"drain-seconds", 0, ARGS_U64, "S", "on SIGTERM, how long open requests may go on (default 0)",
         .target = &c->drain_seconds, .max = 86400},
        {"step-timeout-ms", 0, ARGS_U64, "MS",
         "a worker silent for longer in one step is replaced\n"
         "(default: from the forecast and the model's size)",
         .target = &c->step_timeout_ms, .min = 100, .max = 86400000},
        {"restart-limit", 0, ARGS_U64, "N",
         "workers that may die within a minute before helmd gives up (default 8)",
         .target = &c->restart_limit, .max = 1000},
        {"curve-secret-key-file", 0, ARGS_TEXT, "FILE",
         "the daemon's CURVE secret key (Z85, mode 0600), for tcp://", .target = &c->curve_secret_key_file},
        {"curve-clients-file", 0, ARGS_TEXT, "FILE",
         "public keys (Z85, one a line) of TCP clients that may connect", .target = &c->curve_clients_file},
        {"admin-group", 0, ARGS_TEXT, "GROUP",
         "users of this group (name or number) may list and cancel everybody's\n"
         "requests, as root and helmd's own user may (default: nobody else)",
         .target = &c->admin_group_name},
        {"gateway-group", 0, ARGS_TEXT, "GROUP",
         "programs of this group (name or number) may say for which of their users they\n"
         "ask, as administrators may (default: " GATEWAY_GROUP ", if there is such a group)",
         .target = &c->gateway_group_name},
        {"parent-fd", 0, ARGS_U64, "FD", "end when this descriptor (a pipe) is closed by its writer",
         .target = &c->parent_fd, .max = 65535},
        {"die-with-parent", 0, ARGS_FLAG, NULL, "end when the process that started this one ends",
         .target = &c->die_with_parent},
        {"ready-fd", 0, ARGS_U64, "FD",
         "write \"ready ENDPOINT\" or \"error CODE TEXT\" there when it is known", .target = &c->ready_fd,
         .max = 65535},
        {"log-level", 0, ARGS_CHOICE, "LEVEL", "error, warn, info or debug (default info)",
         .target = &c->log_level_name, .choices = "error|warn|info|debug"},
        {"config", 0, ARGS_TEXT, "FILE", "read options from here: KEY = VALUE lines, same names",
         .target = &c->config_file},
    };
    _Static_assert(sizeof options <= sizeof t->option, "OPTION_COUNT_MAX is too small");
    memset(t, 0, sizeof *t);
    t->count = sizeof options / sizeof *options;
    memcpy(t->option, options, sizeof options);
    for (uint32_t i = 0; i < t->count; i++) t->option[i].given = &t->given[i];
}

static const char *config_keep(struct config *c, const char *text)
{
    if (c->owned_count == OWNED_MAX) return NULL;
    if (!c->owned) c->owned = calloc(OWNED_MAX, sizeof *c->owned);
    char *copy = c->owned ? strdup(text) : NULL;
    if (copy) c->owned[c->owned_count++] = copy;
    return copy;
}

struct file_reader {
    struct config *config;
    struct option_table *table;
    struct args_spec spec;
    bool from_command_line[OPTION_COUNT_MAX];
    bool from_file[OPTION_COUNT_MAX];
    char text[HELM_ERR_TEXT];
    bool failed;
};

/* Kept until ini_parse has returned: only then is the line's number known. */
static int file_fail(struct file_reader *r, const char *text)
{
    snprintf(r->text, sizeof r->text, "%s", text);
    r->failed = true;
    return 0;
}

/* inih's handler: 1 goes on; the first 0 makes ini_parse return this line's number. */
static int file_take(void *user, const char *section, const char *name, const char *value)
{
    struct file_reader *r = user;
    struct helm_err sub = {0};
    char text[HELM_ERR_TEXT];
    if (r->failed) return 0;
    if (section[0] && strcmp(section, "helmd") != 0) {
        snprintf(text, sizeof text, "unknown section [%.64s] (only [helmd], or none)", section);
        return file_fail(r, text);
    }
    uint32_t at = 0;
    while (at < r->table->count && strcmp(r->table->option[at].name, name) != 0) at++;
    if (at == r->table->count || strcmp(name, "config") == 0) {
        snprintf(text, sizeof text, "unknown key '%.64s'", name);
        return file_fail(r, text);
    }
    const struct args_option *option = &r->table->option[at];
    if (r->from_file[at] && option->kind != ARGS_LIST) {
        snprintf(text, sizeof text, "'%.64s' is set twice", name);
        return file_fail(r, text);
    }
    r->from_file[at] = true;
    bool yes = !strcmp(value, "true") || !strcmp(value, "yes") || !strcmp(value, "on") || !strcmp(value, "1");
    bool no = !strcmp(value, "false") || !strcmp(value, "no") || !strcmp(value, "off") || !strcmp(value, "0");
    if (option->kind == ARGS_FLAG && !yes && !no) {
        snprintf(text, sizeof text, "'%.64s' is yes or no, not '%.64s'", name, value);
        return file_fail(r, text);
    }
    if (r->from_command_line[at] || (option->kind == ARGS_FLAG && no)) return 1;
    char argument[1024];
    int n = option->kind == ARGS_FLAG ? snprintf(argument, sizeof argument, "--%s", name)
                                      : snprintf(argument, sizeof argument, "--%s=%s", name, value);
    if (n < 0 || (size_t)n >= sizeof argument) return file_fail(r, "the value is too long");
    const char *kept = config_keep(r->config, argument);
    if (!kept) return file_fail(r, "too many settings, or no memory for them");
    char *argv[] = {(char *)"helmd", (char *)kept, NULL};
    struct args_parsed parsed;
    if (args_parse(&r->spec, 2, argv, &parsed, &sub)) return file_fail(r, sub.text);
    return 1;
}

static int config_read_file(struct config *config, struct option_table *table, const struct args_spec *spec,
                            struct helm_err *err)
{
    struct file_reader r = {.config = config, .table = table, .spec = *spec};
    memcpy(r.from_command_line, table->given, sizeof r.from_command_line);
    int rc = ini_parse(config->config_file, file_take, &r);
    if (r.failed) return helm_fail(err, HELM_E_USAGE, "%s:%d: %s", config->config_file, rc, r.text);
    if (rc == -1) return helm_fail_errno(err, "--config %s", config->config_file);
    if (rc == -2) return helm_fail(err, HELM_E_NOMEM, "--config %s: no memory", config->config_file);
    if (rc > 0) return helm_fail(err, HELM_E_USAGE, "%s:%d: not a KEY = VALUE line", config->config_file, rc);
    return 0;
}

/* `name` NULL: ENDPOINT_NO_GROUP. */
static int read_group(const char *option, const char *name, uint32_t *out, struct helm_err *err)
{
    char *end;
    *out = ENDPOINT_NO_GROUP;
    if (!name) return 0;
    const unsigned long number = strtoul(name, &end, 10);
    const struct group *group = getgrnam(name);
    if (!group && (!*name || *end || number >= ENDPOINT_NO_GROUP))
        return helm_fail(err, HELM_E_USAGE, "--%s: there is no group '%.64s'", option, name);
    *out = group ? group->gr_gid : (uint32_t)number;
    return 0;
}

static int read_groups(struct config *c, struct helm_err *err)
{
    int rc = read_group("admin-group", c->admin_group_name, &c->admin_group, err);
    const char *gateways = c->gateway_group_name;
    if (!gateways && getgrnam(GATEWAY_GROUP)) gateways = GATEWAY_GROUP;
    return rc ? rc : read_group("gateway-group", gateways, &c->gateway_group, err);
}

/* Whether it is known which of the ceilings of --vram, if any, the draft model is under. */
static bool draft_ceiling_known(const struct config *c)
{
    const char *draft = c->draft_device, *first = c->devices.device[0], *second = c->devices.device[1];
    if (!draft || !c->devices.vram[0] || strcmp(draft, "cpu") == 0 || strcmp(draft, first) == 0) return true;
    return strncmp(draft, "cuda:", 5) == 0 && strncmp(first, "cuda:", 5) == 0 && strcmp(draft, second) != 0;
}

static int config_check(struct config *c, struct helm_err *err)
{
    if (!c->model) return helm_fail(err, HELM_E_USAGE, "--model DIR is required");
    const char *d = c->device;
    int rc = accelerator_wish_read(d, c->vram, false, &c->devices, err);
    if (!rc && c->emulated_copy_bytes_per_s && strcmp(c->devices.device[0], "emulated") != 0)
        rc = helm_fail(err, HELM_E_USAGE, "--emulated-copy is for --device emulated, not '%s'", d);
    if (!rc) rc = cpu_check_threads(c->node == CONFIG_NO_NODE ? -1 : (int)c->node, c->threads, err);
    if (rc) return rc;
    /* Every running sequence must get its token in each step, or a full house would stall. */
    if (c->step_tokens && c->step_tokens < c->parallel)
        return helm_fail(err, HELM_E_USAGE, "--step-tokens %llu is less than --parallel %llu",
                         (unsigned long long)c->step_tokens, (unsigned long long)c->parallel);
    if (c->batch > c->parallel)
        return helm_fail(err, HELM_E_USAGE, "--batch %llu is more than --parallel %llu",
                         (unsigned long long)c->batch, (unsigned long long)c->parallel);
    for (int i = 0; i < SEARCH_STRATEGIES; i++)
        if (strcmp(c->strategy_name, search_strategy_name((enum search_strategy)i)) == 0)
            c->strategy = (enum search_strategy)i;
    for (int i = 0; i < PREFIX_SHARINGS; i++)
        if (strcmp(c->prefix_cache_name, prefix_sharing_name((enum prefix_sharing)i)) == 0)
            c->sharing = (enum prefix_sharing)i;
    rc = request_speculate_read(&c->speculate_name, &c->draft_model, &c->draft_tokens, &c->speculate, err);
    if (!rc && c->draft_device) rc = accelerator_check_option(c->draft_device, err);
    if (!rc && c->draft_device && !c->draft_model)
        rc = helm_fail(err, HELM_E_USAGE, "--draft-device %.60s is for --draft-model", c->draft_device);
    if (!rc && !draft_ceiling_known(c))
        rc = helm_fail(
            err, HELM_E_USAGE,
            "--draft-device %.60s: with --vram it is cpu, the first of --device as written there, or "
            "a cuda:N that --device does not name",
            c->draft_device);
    if (rc) return rc;
    c->no_graphs = strcmp(c->gpu_graphs_name, "off") == 0;
    c->no_chains = strcmp(c->gpu_chains_name, "off") == 0;
    c->pack = strcmp(c->pack_name, "off") != 0;
    c->pack_all = strcmp(c->pack_name, "all") == 0;
    rc = read_groups(c, err);
    if (rc) return rc;
    rc = formats_read(c->weights_name, &c->weights, err);
    if (rc) return rc;
    c->activations = activations_option_named(c->activations_name);
    if (c->exact && c->activations == ACTIVATIONS_INT8)
        return helm_fail(err, HELM_E_USAGE, "--exact forbids --activations int8");
    if (c->exact) c->activations = ACTIVATIONS_EXACT;
    c->invariant = invariant_option_named(c->invariant_name);
    c->kv_tiers = kv_tiers_named(c->kv_tiers_name);
    c->kv_dtype = kv_dtype_named(c->kv_dtype_name); /* one of the option's choices */
    return log_level_parse(c->log_level_name, &c->log_level, err);
}

int config_read(int argc, char *const argv[], struct config *config, bool *exit_now, struct helm_err *err)
{
    *exit_now = false;
    *config = (struct config){.device = "auto",
                              .kv_dtype_name = "f16",
                              .kv_tiers_name = KV_TIERS_DEFAULT,
                              .kv_page_tokens = PAGE_SIZE_DEFAULT,
                              .log_level_name = "info",
                              .kernels = "",
                              .prefix_cache_name = "on",
                              .draft_tokens = REQUEST_NO_DRAFTS,
                              .parallel = 8,
                              .queue = 256,
                              .strategy_name = "best",
                              .gpu_graphs_name = "on",
                              .gpu_chains_name = "on",
                              .pack_name = "auto",
                              .weights_name = "stored",
                              .activations_name = "auto",
                              .invariant_name = "auto",
                              .share_name = "off",
                              .now = "auto",
                              .batch = 1,
                              .prompt = 128,
                              .max_stall_ms = CONFIG_STALL_MS,
                              .spin_us = CONFIG_SPIN_US,
                              .restart_limit = 8,
                              .node = CONFIG_NO_NODE,
                              .parent_fd = CONFIG_NO_FD,
                              .ready_fd = CONFIG_NO_FD,
                              .kv_dtype = KV_F16};
    struct option_table table;
    table_build(&table, config);
    struct args_spec spec = {
        .program = "helmd",
        .usage = "--model DIR [options]",
        .about = "Serves one model to local clients. See docs/protocol.md for what it speaks.",
        .options = table.option,
        .option_count = table.count,
        .epilogue = "SIZE: 8GiB, 512MiB or bytes. Exit status: 0 done, 2 usage, 4 refused, 5 failed."};
    struct args_parsed parsed;
    int rc = args_parse(&spec, argc, argv, &parsed, err);
    if (rc) return rc;
    *exit_now = args_answer(&spec, &parsed);
    if (*exit_now) return 0;
    if (config->config_file) rc = config_read_file(config, &table, &spec, err);
    return rc ? rc : config_check(config, err);
}

void config_free(struct config *config)
{
    for (uint32_t i = 0; i < config->owned_count; i++) free(config->owned[i]);
    free(config->owned);
    memset(config, 0, sizeof *config);
}
