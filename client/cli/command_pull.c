/* helm-cli pull: a model from the hub into its cache. See cli.h and client/hub/pull.h. */
#include <stdio.h>
#include <unistd.h>

#include "client/cli/commands.h"
#include "client/hub/pull.h"
#include "common/base/units.h"

#define LOOK_US 250000 /* how often the line on a terminal is renewed */

struct showing {
    struct cli *cli;
    bool terminal, shown;
    int signal_number;
    uint32_t number; /* of the file that the line is of */
    uint64_t begin_us, begin_at, look_us;
};

static void clear_line(struct showing *s)
{
    if (s->shown) fputs("\r\033[K", stderr);
    s->shown = false;
}

static void say(void *context, const char *line)
{
    clear_line(context);
    cli_complain(line);
}

static void show_line(struct showing *s, const struct pull_progress *p, uint64_t now_us)
{
    char at[UNITS_TEXT], all[UNITS_TEXT], rate_text[UNITS_TEXT];
    const double seconds = (double)(now_us - s->begin_us) / 1e6;
    const double rate = seconds > 0 ? (double)(p->at - s->begin_at) / seconds : 0;
    fprintf(stderr, "\r\033[K%u of %u  %.40s  %s of %s, %s/s", p->number, p->count, p->file,
            units_format_size(p->at, at), units_format_size(p->all, all),
            units_format_size((uint64_t)rate, rate_text));
    if (rate > 0) fprintf(stderr, ", %.0f s left", (double)(p->all - p->at) / rate);
    s->shown = true;
}

static bool show(void *context, const struct pull_progress *p)
{
    struct showing *s = context;
    char size[UNITS_TEXT];
    const uint64_t now_us = units_now_us();
    const int signal_number = cli_take_signal(s->cli);
    if (signal_number) s->signal_number = signal_number;
    if (!p->file || s->signal_number) return !s->signal_number;
    if (!s->begin_us) { /* from here on: what was there already came at no rate */
        s->begin_us = now_us;
        s->begin_at = p->at;
    }
    if (p->done) {
        clear_line(s);
        fprintf(stderr, "%u of %u  %s  %s\n", p->number, p->count, p->file,
                units_format_size(p->bytes, size));
    } else if (s->terminal && now_us - s->look_us >= LOOK_US) {
        show_line(s, p, now_us);
        s->look_us = now_us;
    }
    return true;
}

int command_pull(struct cli *cli, int argc, char *const argv[])
{
    const char *revision = "main";
    const struct args_option table[] = {
        {"revision", 0, ARGS_TEXT, "REV", "branch, tag or commit (main)", .target = &revision},
    };
    const struct args_spec spec = {
        .program = "helm-cli pull",
        .usage = "ORG/NAME[:TAG|/FILE] [options]",
        .about =
            "Downloads a model from the hub into its cache, where --model finds it by the same name: a\n"
            "checkpoint's files, or a GGUF file. TAG is the file's quantisation: ORG/NAME:Q4_K_M. A model\n"
            "that HELM cannot run is refused before its weights are fetched. An interrupted download goes\n"
            "on where it was. Prints where the model lies.\n"
            "\n"
            "HF_ENDPOINT names another hub than https://huggingface.co, HF_TOKEN has the token for private "
            "and\n"
            "gated repositories (else that of `hf auth login`), HF_HOME or HF_HUB_CACHE the cache's folder.",
        ARGS_TABLE(table),
        .min_operands = 1,
        .max_operands = 1,
        .parent = cli->global,
    };
    struct showing showing = {.cli = cli, .terminal = isatty(STDERR_FILENO)};
    struct pull_request request = {.say = say, .progress = show, .context = &showing};
    struct args_parsed parsed;
    struct helm_err err = {0};
    struct pulled pulled;
    args_parse_main(&spec, argc, argv, &parsed);
    if (hub_name_parse(parsed.operand.item[0], &request.name, &err)) return args_usage_error(&spec, &err);
    request.revision = revision;
    int rc = cli_catch_signals(cli, &err);
    if (!rc) rc = pull_model(&request, &pulled, &err);
    clear_line(&showing);
    if (showing.signal_number) return CLI_EXIT_SIGNAL + showing.signal_number;
    if (rc) {
        cli_complain(err.text);
        return rc == HELM_E_PEER || rc == HELM_E_IO || rc == HELM_E_NOMEM ? CLI_EXIT_FAILED
                                                                          : CLI_EXIT_REFUSED;
    }
    if (pulled.model) fprintf(stderr, "helm-cli --model %s chat\n", parsed.operand.item[0]);
    printf("%s\n", pulled.path);
    return fflush(stdout) ? CLI_EXIT_FAILED : CLI_EXIT_DONE;
}
