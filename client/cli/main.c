/* helm-cli: the command line of HELM.
 *
 * Start order: global options -> command -> that command's options -> (connect or private daemon -> work) ->
 * close. No logic here: each command is in its own file. Owns the one struct cli. */
#include <signal.h>
#include <string.h>

#include "client/cli/commands.h"
#include "client/bench/command_bench.h"
#include "common/base/suggest.h"

static const struct args_command commands[] = {
    {"run", "[PROMPT|-]", "text in, text streamed out"},
    {"chat", "", "a conversation, with history"},
    {"generate", "", "tokens or text in, tokens and text out; for scripts"},
    {"tokenize", "TEXT|-", "text to token ids (with --model or --tokenizer: no daemon)"},
    {"detokenize", "IDS", "token ids to text (with --model or --tokenizer: no daemon)"},
    {"session", "save|restore FILE", "what was computed of a text, to a file and back"},
    {"status", "", "the daemon's state, workers and counters"},
    {"top", "", "the same live: speed, where the time goes, requests"},
    {"metrics", "", "the counters as Prometheus reads them"},
    {"ps", "", "open requests of every client"},
    {"cancel", "ID", "ends a request that ps shows"},
    {"plan", "", "what is computed where, and the memory it takes"},
    {"experts", "", "what tokens chose of experts that lie in both memories"},
    {"bench", "", "how fast it is, over lengths, models and VRAM ceilings"},
    {"pull", "ORG/NAME[:TAG|/FILE]", "downloads a model from the hub into its cache"},
    {"help", "[COMMAND]", "this, or a command's options"},
};
#define COMMANDS (sizeof commands / sizeof *commands)

/* In the same order; `help` is main's own. */
static int (*const runs[])(struct cli *cli, int argc, char *const argv[]) = {
    command_run,     command_chat,   command_generate, command_tokenize, command_detokenize,
    command_session, command_status, command_top,      command_metrics,  command_ps,
    command_cancel,  command_plan,   command_experts,  command_bench,    command_pull,
};
_Static_assert(sizeof runs / sizeof *runs + 1 == COMMANDS, "a row for each command");

/* Commands of Ollama and llama.cpp (docs/coming-from.md), and the like, that have another name here. */
static const struct {
    const char *words, *instead;
} elsewhere[] = {
    {"serve server start daemon load",
     "`helmd --model PATH` serves a model, `helm-gateway --model PATH` by HTTP"},
    {"gateway http api", "`helm-gateway --model PATH` serves a model by HTTP"},
    {"list ls models", "models lie in Hugging Face's cache: `hf cache ls` lists them"},
    {"rm remove delete", "models lie in Hugging Face's cache: `hf cache rm` removes them"},
    {"show inspect info", "`helm-inspect PATH` shows a model, `helm-cli status` the daemon"},
    {"stop kill abort", "`helm-cli cancel ID` ends a request, SIGTERM a daemon (`systemctl stop helmd`)"},
    {"create quantize quantise convert",
     "`helm-quantize --model PATH --to Q4_K_M --out FILE.gguf` writes a GGUF file"},
    {"profile measure", "`helm-profile` measures this machine"},
    {"download get fetch", "`helm-cli pull ORG/NAME` downloads a model"},
    {"complete completion ask", "`helm-cli run PROMPT` continues a text, `run --chat` answers a question"},
    {"embed embedding embeddings", "`helm-gateway` has embeddings: POST /v1/embeddings"},
    {"encode decode", "`helm-cli tokenize TEXT` and `helm-cli detokenize IDS`"},
    {"health slots props", "`helm-cli status` shows the daemon's state, `helm-cli top` its load"},
    {"version", "`helm-cli --version`"},
    {"push cp copy login signin signup",
     "HELM has no such command: models come from the hub (`helm-cli pull`)"},
};

static const char epilogue[] =
    "Without --connect and --model: $HELM_ENDPOINT, else ipc:///run/helm/helmd.sock if it exists,\n"
    "else ipc://$XDG_RUNTIME_DIR/helm/helmd.sock, else ipc:///tmp/helm-UID/helmd.sock.\n"
    "\n"
    "exit status: 0 done, 2 usage, 3 no daemon, 4 refused, 5 failed midway, 128+N ended by signal N\n";

static int refuse_command(const struct args_spec *spec, const char *word)
{
    struct suggest near;
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        if (suggest_knows(elsewhere[i].words, ' ', word))
            return cli_usage(spec, "no command '%s': %s", word, elsewhere[i].instead);
    suggest_begin(&near, word, strlen(word));
    for (size_t i = 0; i < COMMANDS; i++) suggest_try(&near, commands[i].name);
    if (near.best) return cli_usage(spec, "no command '%.100s': is '%s' meant?", word, near.best);
    return cli_usage(spec, "no command '%.100s'", word);
}

int main(int argc, char **argv)
{
    struct cli cli = {.signal_fd = -1};
    const struct args_option options[] = {
        {"connect", 0, ARGS_TEXT, "ENDPOINT", "the daemon to use: ipc://PATH or tcp://HOST:PORT",
         .target = &cli.connect},
        {"curve-daemon-key-file", 0, ARGS_TEXT, "FILE", "tcp: the daemon's public CURVE key (Z85)",
         .target = &cli.daemon_key_file},
        {"curve-secret-key-file", 0, ARGS_TEXT, "FILE", "tcp: one's own secret CURVE key (Z85, mode 0600)",
         .target = &cli.secret_key_file},
        {"model", 0, ARGS_TEXT, "PATH",
         "start a private daemon on this model for the command: a checkpoint's folder, a GGUF file, or a\n"
         "name ORG/NAME[:TAG|/FILE] that is in the hub's cache",
         .target = &cli.model},
        {"tokenizer", 0, ARGS_TEXT, "PATH",
         "tokenizer.json, or a folder with it, the chat template and generation_config.json,\n"
         "or a GGUF file (default: the model's)",
         .target = &cli.tokenizer},
        {"device", 0, ARGS_TEXT, "DEVICE",
         "auto, cpu, cuda[:N] or emulated; handed to the private daemon,\nas are all below",
         .target = &cli.device},
        {"vram", 0, ARGS_SIZE, "SIZE", "GPU memory it may use: 8GiB, 512MiB, bytes",
         .target = &cli.vram_bytes, .given = &cli.has_vram},
        {"host-memory", 0, ARGS_SIZE, "SIZE", "host memory it may use", .target = &cli.host_memory_bytes,
         .given = &cli.has_host_memory},
        {"ctx", 0, ARGS_U64, "TOKENS", "longest sequence", .target = &cli.ctx_tokens, .min = 1,
         .max = 1 << 26, .given = &cli.has_ctx},
        {"threads", 0, ARGS_U64, "N", "worker threads (default: one a physical core)", .target = &cli.threads,
         .min = 1, .max = 4096, .given = &cli.has_threads},
        {"plan", 0, ARGS_TEXT, "FILE", "use this plan", .target = &cli.plan},
        {"profile", 0, ARGS_TEXT, "FILE", "plan for the machine in this profile", .target = &cli.profile},
        {"strategy", 0, ARGS_CHOICE, "NAME", "best, all-gpu, all-cpu, thesis, stream, experts-cpu or mixed",
         .target = &cli.strategy, .choices = "best|all-gpu|all-cpu|thesis|stream|experts-cpu|mixed"},
        {"config", 0, ARGS_TEXT, "FILE", "more options of helmd, from a file", .target = &cli.config},
        {"kv-dtype", 0, ARGS_TEXT, "TYPE", "of the KV cache: f16, bf16, f32, q8_0", .target = &cli.kv_dtype},
        {"activations", 0, ARGS_TEXT, "NAME", "that blocks are multiplied with: auto, exact, int8",
         .target = &cli.activations},
        {"exact", 0, ARGS_FLAG, NULL, "the same as --activations exact", .target = &cli.exact},
        {"kernels", 0, ARGS_TEXT, "NAME", "use this kernel variant wherever it exists",
         .target = &cli.kernels},
        {"log-level", 0, ARGS_CHOICE, "LEVEL", "error, warn, info or debug: show the private daemon's log",
         .target = &cli.log_level, .choices = "error|warn|info|debug"},
    };
    const struct args_spec global = {
        .program = "helm-cli",
        .usage = "[--connect ENDPOINT | --model DIR [helmd options]] COMMAND [options]",
        .about = "Generates text with a helmd daemon, running or private.",
        ARGS_TABLE(options),
        .commands = commands,
        .command_count = COMMANDS,
        .epilogue = epilogue,
        .stop_at_operand = true,
    };
    struct args_parsed parsed;
    args_parse_main(&global, argc, argv, &parsed);
    cli.global = &global;
    if (parsed.next >= argc) return cli_usage(&global, "no command given");
    argc -= parsed.next;
    argv += parsed.next;
    char *help[] = {argv[argc > 1], (char *)"--help", NULL}; /* of `help COMMAND` */
    if (strcmp(argv[0], "help") == 0) {
        if (argc > 2) return cli_usage(&global, "unexpected argument '%.100s'", argv[2]);
        if (argc == 1) {
            args_print_help(&global, stdout);
            return CLI_EXIT_DONE;
        }
        argc = 2;
        argv = help;
    }
    for (size_t i = 0; i < COMMANDS - 1; i++) {
        if (strcmp(commands[i].name, argv[0]) != 0) continue;
        signal(SIGPIPE, SIG_IGN); /* a closed pipe is a failed write, so that the request is cancelled */
        int status = runs[i](&cli, argc, argv);
        cli_close(&cli);
        return status;
    }
    return refuse_command(&global, argv[0]);
}
