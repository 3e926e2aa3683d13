/* A helmd of one's own: started for one command, ended with it.
 *
 * Called by session.c and by client/bench. It lives in a fresh directory (mode 0700) under $XDG_RUNTIME_DIR
 * or /tmp that holds its socket and its log; both go when it ends, on every way out. It is a process group of
 * its own, so that Ctrl-C reaches helm-cli alone, and dies with helm-cli even when that is killed. */
#pragma once

#include "client/shared/cli.h"

/* Starts helmd (found beside this program) with the options in *cli and waits until it is ready. Needs
 * cli_catch_signals. HELM_E_NOT_FOUND and HELM_E_CAPACITY and so on are helmd's own words; HELM_E_CANCELLED:
 * a signal came, which *signal_number names. On failure nothing is left. */
HELM_MUST_CHECK int private_daemon_start(struct cli *cli, struct private_daemon **out, int *signal_number,
                                         struct helm_err *err);

/* The exit status that says why private_daemon_start failed with this code, a signal apart: helmd's own
 * (usage, refused), or failed where it died or could not be run. */
int private_daemon_exit(int code);

/* "ipc://..."; valid as long as the daemon. */
const char *private_daemon_endpoint(const struct private_daemon *daemon);

/* Prints the last lines of its log, for when it died. Nothing with --log-level: they were shown already. */
void private_daemon_show_log(const struct private_daemon *daemon);

/* Ends it (SIGTERM, after a few seconds SIGKILL), removes the directory, clears *daemon; NULL is allowed. */
void private_daemon_stop(struct private_daemon **daemon);
