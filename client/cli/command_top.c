/* helm-cli top: what a daemon does, live in the terminal. See cli.h; top_screen.c makes the lines.
 *
 * Asks for status, requests and plan, shows them, waits, asks again: until q, a signal, or the daemon's end.
 * The terminal's other screen is used, and given back however it ends. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "client/cli/commands.h"
#include "client/cli/top_screen.h"
#include "common/base/units.h"

#define SCREEN_BEGIN "\033[?1049h\033[?25l"
#define SCREEN_END   "\033[?25h\033[?1049l"
#define SCREEN_HOME  "\033[H\033[2J"

struct top {
    struct cli *cli;
    struct helm_model_info *model;
    struct helm_status *before, *now;
    struct helm_list *list;
    struct helm_plan_info *plan;
    uint64_t before_us, now_us;
};

static void forget(struct top *t)
{
    free(t->list);
    free(t->plan);
    t->list = NULL;
    t->plan = NULL;
}

/* One look at the daemon. Values that it does not know while it loads stay unknown. */
static int look(struct top *t, struct helm_err *err)
{
    struct helm_client *client = t->cli->client;
    forget(t);
    free(t->before);
    t->before = t->now;
    t->before_us = t->now_us;
    t->now = NULL;
    int rc = helm_status(client, CLI_ANSWER_MS, &t->now, err);
    t->now_us = units_now_us();
    if (!rc && !t->model) {
        rc = helm_model_info(client, CLI_ANSWER_MS, &t->model, err);
        if (rc == HELM_E_STATE) rc = 0;
    }
    if (!rc) rc = helm_list(client, CLI_ANSWER_MS, &t->list, err);
    if (!rc) {
        rc = helm_plan_info(client, CLI_ANSWER_MS, &t->plan, err);
        if (rc == HELM_E_STATE) rc = 0;
    }
    return rc;
}

static int show(const struct top *t, bool live, struct helm_err *err)
{
    struct winsize size = {0};
    if (live) (void)ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
    const struct top_view view = {.endpoint = helm_client_endpoint(t->cli->client),
                                  .model = t->model,
                                  .before = t->before,
                                  .now = t->now,
                                  .list = t->list,
                                  .plan = t->plan,
                                  .seconds = t->before ? (double)(t->now_us - t->before_us) * 1e-6
                                                       : (double)t->now->uptime_ms * 1e-3,
                                  .columns = size.ws_col,
                                  .rows = size.ws_row ? size.ws_row - 1u : 0};
    struct cli_text out = {0};
    if (live) cli_text_printf(&out, SCREEN_HOME);
    top_screen(&view, &out);
    int rc = cli_text_write(&out, err);
    cli_text_free(&out);
    return rc;
}

/* 0: time is over; 'q', or the number of a signal, negative. */
static int wait_key(struct cli *cli, int wait_ms)
{
    struct pollfd p[2] = {{.fd = cli->signal_fd, .events = POLLIN}, {.fd = STDIN_FILENO, .events = POLLIN}};
    const bool keys = isatty(STDIN_FILENO);
    if (poll(p, keys ? 2 : 1, wait_ms) <= 0) return 0;
    const int number = cli_take_signal(cli);
    if (number) return -number;
    char key = 0;
    if (keys && p[1].revents && read(STDIN_FILENO, &key, 1) == 1 && (key == 'q' || key == 'Q' || key == 4))
        return 'q';
    return 0;
}

static int watch(struct top *t, int interval_ms, struct helm_err *err)
{
    struct termios was, raw;
    const bool keys = tcgetattr(STDIN_FILENO, &was) == 0;
    int rc, ended = 0;
    if (keys) {
        raw = was;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    rc = cli_write(SCREEN_BEGIN, sizeof SCREEN_BEGIN - 1, err);
    while (!rc && !ended) {
        rc = look(t, err);
        if (!rc) rc = show(t, true, err);
        if (!rc) ended = wait_key(t->cli, interval_ms);
    }
    struct helm_err ignored = {0};
    (void)!cli_write(SCREEN_END, sizeof SCREEN_END - 1, &ignored);
    if (keys) (void)tcsetattr(STDIN_FILENO, TCSANOW, &was);
    return rc ? rc : ended < 0 ? -ended : 0;
}

int command_top(struct cli *cli, int argc, char *const argv[])
{
    bool once = false;
    double interval = 1;
    const struct args_option options[] = {
        {"interval", 0, ARGS_DOUBLE, "SECONDS", "between two looks (default 1)", .target = &interval,
         .min = 0.1, .max = 3600},
        {"once", 0, ARGS_FLAG, NULL, "print one look and the rates since one an interval before",
         .target = &once},
    };
    const struct args_spec about = {
        .program = "helm-cli top",
        .usage = "[--interval SECONDS] [--once]",
        .about = "What the daemon does, live: speed beside the forecast, where the time goes,\n"
                 "memory, open requests. q ends it.",
        ARGS_TABLE(options),
        .parent = cli->global};
    struct args_parsed parsed;
    struct helm_err err = {0};
    struct top t = {.cli = cli};
    args_parse_main(&about, argc, argv, &parsed);
    if (!once && !isatty(STDOUT_FILENO))
        return cli_usage(&about, "standard output is no terminal: --once prints one look");
    int status = cli_open(cli);
    if (status != CLI_EXIT_DONE) return status;
    int rc = cli_catch_signals(cli, &err), ended = 0;
    if (!rc && once) {
        rc = look(&t, &err);
        if (!rc) ended = wait_key(cli, (int)(interval * 1000));
        if (!rc && !ended) rc = look(&t, &err);
        if (!rc && !ended) rc = show(&t, false, &err);
        ended = ended < 0 ? -ended : 0;
    } else if (!rc) {
        rc = watch(&t, (int)(interval * 1000), &err);
        if (rc > 0) ended = rc, rc = 0;
    }
    forget(&t);
    free(t.before);
    free(t.now);
    free(t.model);
    if (rc < 0) return cli_fail(&err, false);
    return ended ? CLI_EXIT_SIGNAL + ended : CLI_EXIT_DONE;
}
