/* helm-gateway: HTTP in front of helmd, for the tools that people already use (docs/gateway.md).
 *
 * Start order: options -> signals -> keys -> address -> daemon (named, or a private one) -> model's texts ->
 * threads -> server -> loop -> everything back in reverse. No logic here. Exit status: as helm-cli's. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "client/gateway/arrivals.h"
#include "client/gateway/gateway.h"
#include "client/gateway/grammars.h"
#include "client/gateway/jobs.h"
#include "client/gateway/listen.h"
#include "client/gateway/server.h"
#include "common/base/cpu.h"
#include "common/base/log.h"

#define THREADS_MAX 8

struct options {
    const char *listen, *name, *log_level, *pooling;
    struct args_list hosts, aliases, origins;
    uint64_t request_seconds, stall_seconds, address_connections, answer_seconds, keep_bytes;
};

static const char epilogue[] =
    "Without --connect and --model the daemon is found as helm-cli finds it. SIGHUP reads the keys again.\n"
    "exit status: 0 done, 2 usage, 3 no daemon, 4 refused, 5 failed\n";

/* How many connections there may be: a descriptor each, and some more for the gateway itself. */
static void allow_connections(struct peers *p)
{
    struct rlimit limit;
    const rlim_t others = PEERS_RESERVED + PEERS_LEAVING + ARRIVALS_FEW + 48, enough = PEERS_MAX + others,
                 wanted = enough + ARRIVALS_MAX - ARRIVALS_FEW;
    p->places_max = PEERS_MAX;
    p->waiting_max = ARRIVALS_MAX;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= wanted) return;
    const struct rlimit more = {limit.rlim_max < wanted ? limit.rlim_max : wanted, limit.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &more) == 0) limit = more;
    if (limit.rlim_cur >= enough) {
        p->waiting_max = ARRIVALS_FEW + (uint32_t)(limit.rlim_cur - enough);
        return;
    }
    p->waiting_max = ARRIVALS_FEW;
    p->places_max = limit.rlim_cur > others + 1 ? (uint32_t)(limit.rlim_cur - others) : 1;
    log_warn("%llu descriptors are allowed: %u connections instead of %d", (unsigned long long)limit.rlim_cur,
             p->places_max, PEERS_MAX);
}

static int start(struct gateway *g, const struct options *o, struct helm_err *err)
{
    struct cpu_set cpus;
    char at[128] = "";
    g->request_us = o->request_seconds * 1000000;
    g->model.aliases = &o->aliases;
    g->model.answer_ms = (uint32_t)(o->answer_seconds * 1000);
    g->access.hosts = &o->hosts;
    allow_connections(&g->peers);
    g->peers.address_max = (uint32_t)o->address_connections;
    g->peers.stall_us = o->stall_seconds * 1000000;
    int rc = info_open_model(g, o->name, err);
    if (rc == 0) rc = responses_open((size_t)o->keep_bytes, &g->model.responses, err);
    if (o->pooling) {
        g->model.pooling = strcmp(o->pooling, "last") == 0 ? HELM_POOLING_LAST : HELM_POOLING_MEAN;
        *g->model.pooling_why = 0;
    }
    if (rc == 0) rc = cpu_usable(-1, &cpus, err);
    const int half = rc == 0 ? (cpus.suggested + 1) / 2 : 1;
    /* one more, which the bodies of one user never take */
    if (rc == 0) rc = jobs_open(half < THREADS_MAX ? (uint32_t)half + 1 : THREADS_MAX, &g->jobs, err);
    if (rc == 0) rc = inquiry_open(&g->cli, &g->inquiry, err);
    if (rc == 0) gateway_ask_users(g);
    if (rc == 0) rc = server_open(g, o->listen, at, err);
    if (rc == 0)
        log_info("serving %s at http://%s, from %s%s", g->model.name, at, helm_client_endpoint(g->cli.client),
                 g->access.file ? "" : ", without API keys");
    return rc;
}

static void stop(struct gateway *g)
{
    jobs_close(&g->jobs);
    inquiry_close(&g->inquiry);
    server_close(g);
    if (g->epoll_fd >= 0) close(g->epoll_fd);
    free(g->folder);
    access_free(&g->access);
    cli_close(&g->cli); /* requests that are still open hold a place in their grammar */
    grammars_close(g->model.grammars);
    responses_close(g->model.responses);
    helm_vocabulary_close(g->vocabulary);
}

static int run(struct gateway *g, const struct options *o)
{
    struct helm_err err = {0};
    g->access.origins = &o->origins;
    if (listen_check(o->listen, &err) < 0 || access_check_origins(&g->access, &err) < 0)
        return args_usage_error(g->cli.global, &err);
    if (!g->access.file && !listen_is_loopback(o->listen)) {
        helm_fail(&err, HELM_E_USAGE, "--listen %s is not this machine alone: that needs --api-keys FILE",
                  o->listen);
        return args_usage_error(g->cli.global, &err);
    }
    int rc = cli_catch_signals(&g->cli, &err);
    if (rc == 0) rc = access_read_keys(&g->access, &err);
    if (rc == 0) rc = server_bind(g, o->listen, &err);
    if (rc < 0) return cli_fail(&err, false);
    /* a private helmd's notices are not for systemd, which waits for the gateway */
    const char *told = getenv("NOTIFY_SOCKET");
    char *notify = told ? strdup(told) : NULL;
    unsetenv("NOTIFY_SOCKET");
    int status = cli_open(&g->cli);
    if (notify) setenv("NOTIFY_SOCKET", notify, 1);
    free(notify);
    if (status == CLI_EXIT_DONE && start(g, o, &err) < 0) status = cli_fail(&err, false);
    return status == CLI_EXIT_DONE ? loop_run(g) : status;
}

int main(int argc, char **argv)
{
    static struct gateway g;
    struct options o = {.listen = "127.0.0.1:8080",
                        .log_level = "info",
                        .request_seconds = 60,
                        .stall_seconds = 10,
                        .address_connections = PEERS_MAX / 2,
                        .answer_seconds = 3600,
                        .keep_bytes = (uint64_t)64 << 20};
    const struct args_option options[] = {
        {"listen", 0, ARGS_TEXT, "HOST:PORT",
         "where to listen (127.0.0.1:8080); other than loopback needs --api-keys", .target = &o.listen},
        {"api-keys", 0, ARGS_TEXT, "FILE",
         "lines of KEY or NAME KEY; one of them must come with each request", .target = &g.access.file},
        {"host", 0, ARGS_LIST, "NAME",
         "a name that clients reach the gateway by, beside localhost and addresses", .target = &o.hosts},
        {"allow-origin", 0, ARGS_LIST, "ORIGIN",
         "pages of this site may ask: SCHEME://HOST[:PORT], or * for all", .target = &o.origins},
        {"name", 0, ARGS_TEXT, "NAME", "the model's name for clients (default: its folder's or file's)",
         .target = &o.name},
        {"alias", 0, ARGS_LIST, "NAME", "a further name", .target = &o.aliases},
        {"request-seconds", 0, ARGS_U64, "N",
         "for receiving a request, and for fetching an answer that is over (60)",
         .target = &o.request_seconds, .min = 1, .max = 3600},
        {"stall-seconds", 0, ARGS_U64, "N",
         "for receiving a request's headers, and the longest that its body may stand still (10)",
         .target = &o.stall_seconds, .min = 1, .max = 3600},
        {"address-connections", 0, ARGS_U64, "N", "most connections of one address (512)",
         .target = &o.address_connections, .min = 1, .max = PEERS_MAX},
        {"answer-seconds", 0, ARGS_U64, "N", "longest time of an answer (3600)", .target = &o.answer_seconds,
         .min = 1, .max = 1000000},
        {"keep-responses", 0, ARGS_SIZE, "SIZE",
         "memory for responses of /v1/responses that are kept; 0 keeps none (64MiB)", .target = &o.keep_bytes,
         .max = (uint64_t)64 << 30},
        {"pooling", 0, ARGS_CHOICE, "HOW",
         "what an embedding is made of, unless a request says: mean (of all tokens' hidden states) or last\n"
         "(default: as the model's files say, else mean)",
         .target = &o.pooling, .choices = "mean|last"},
        {"allow-special", 0, ARGS_FLAG, NULL,
         "control tokens written in messages (<|im_end|>) become such tokens; without it they are text",
         .target = &g.model.allow_special},
        {"log-level", 0, ARGS_CHOICE, "LEVEL", "error, warn, info (a line a request) or debug",
         .target = &o.log_level, .choices = "error|warn|info|debug"},
        {"connect", 0, ARGS_TEXT, "ENDPOINT", "the daemon to use: ipc://PATH or tcp://HOST:PORT",
         .target = &g.cli.connect},
        {"curve-daemon-key-file", 0, ARGS_TEXT, "FILE", "tcp: the daemon's public CURVE key (Z85)",
         .target = &g.cli.daemon_key_file},
        {"curve-secret-key-file", 0, ARGS_TEXT, "FILE", "tcp: one's own secret CURVE key (Z85, mode 0600)",
         .target = &g.cli.secret_key_file},
        {"tokenizer", 0, ARGS_TEXT, "PATH", "where tokenizer and chat template are (default: the model's)",
         .target = &g.cli.tokenizer},
        {"model", 0, ARGS_TEXT, "PATH",
         "start a private daemon on this model: a checkpoint's folder, a GGUF file, or a name "
         "ORG/NAME[:TAG|/FILE]\n"
         "that is in the hub's cache",
         .target = &g.cli.model},
        {"device", 0, ARGS_TEXT, "DEVICE",
         "auto, cpu, cuda[:N] or emulated; handed to the private daemon,\nas are all below",
         .target = &g.cli.device},
        {"vram", 0, ARGS_SIZE, "SIZE", "GPU memory it may use", .target = &g.cli.vram_bytes,
         .given = &g.cli.has_vram},
        {"host-memory", 0, ARGS_SIZE, "SIZE", "host memory it may use", .target = &g.cli.host_memory_bytes,
         .given = &g.cli.has_host_memory},
        {"ctx", 0, ARGS_U64, "TOKENS", "longest sequence", .target = &g.cli.ctx_tokens, .min = 1,
         .max = 1 << 26, .given = &g.cli.has_ctx},
        {"threads", 0, ARGS_U64, "N", "worker threads", .target = &g.cli.threads, .min = 1, .max = 4096,
         .given = &g.cli.has_threads},
        {"profile", 0, ARGS_TEXT, "FILE", "plan for the machine in this profile", .target = &g.cli.profile},
        {"config", 0, ARGS_TEXT, "FILE", "more options of helmd, from a file", .target = &g.cli.config},
    };
    const struct args_spec spec = {
        .program = "helm-gateway",
        .usage = "[--listen HOST:PORT] [--connect ENDPOINT | --model PATH [helmd options]] [options]",
        .about = "Serves a helmd's model by HTTP: OpenAI's, Anthropic's and Ollama's APIs, a page to chat, "
                 "metrics.",
        .options = options,
        .option_count = sizeof options / sizeof options[0],
        .epilogue = epilogue,
    };
    struct args_parsed parsed;
    enum log_level level = LOG_LEVEL_INFO;
    struct helm_err err = {0};
    args_parse_main(&spec, argc, argv, &parsed);
    g.cli.global = &spec;
    g.cli.signal_fd = g.epoll_fd = g.peers.listen_fd = -1;
    peers_init(&g.peers);
    if (log_level_parse(o.log_level, &level, &err) < 0) return args_usage_error(&spec, &err);
    log_init("helm-gateway", level);
    signal(SIGPIPE, SIG_IGN); /* a client that went away is a failed write */
    const int status = run(&g, &o);
    stop(&g);
    return status;
}
