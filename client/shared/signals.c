/* SIGINT, SIGTERM and SIGHUP as something to read, so that what was begun can be ended. See cli.h.
 *
 * Called by session.c, by everything that waits and by helm-bench; the descriptor belongs to struct cli. */
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "client/shared/cli.h"

int cli_catch_signals(struct cli *cli, struct helm_err *err)
{
    sigset_t set;
    if (cli->signal_fd >= 0) return 0;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    cli->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (cli->signal_fd < 0) return helm_fail_errno(err, "signalfd");
    sigaddset(&set, SIGCHLD); /* private_daemon_stop waits for it */
    if (sigprocmask(SIG_BLOCK, &set, NULL) < 0) return helm_fail_errno(err, "sigprocmask");
    return 0;
}

int cli_take_signal(struct cli *cli)
{
    struct signalfd_siginfo info;
    if (cli->signal_fd < 0 || read(cli->signal_fd, &info, sizeof info) != sizeof info) return 0;
    return (int)info.ssi_signo;
}
