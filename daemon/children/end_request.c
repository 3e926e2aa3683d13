/* Signals that end a start. See end_request.h. Called by main.c and child_run.c; owns nothing. */
#include "daemon/children/end_request.h"

#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/signalfd.h>

static const int ending[] = {SIGTERM, SIGINT, SIGHUP};
#define ENDING_COUNT (sizeof ending / sizeof *ending)

static void ending_set(sigset_t *set)
{
    sigemptyset(set);
    for (size_t i = 0; i < ENDING_COUNT; i++) sigaddset(set, ending[i]);
}

int end_request_block(struct helm_err *err)
{
    sigset_t set;
    ending_set(&set);
    return sigprocmask(SIG_BLOCK, &set, NULL) ? helm_fail_errno(err, "sigprocmask") : 0;
}

int end_request_watch(void)
{
    sigset_t set;
    ending_set(&set);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

int end_request_check(struct helm_err *err)
{
    sigset_t pending;
    if (sigpending(&pending)) return 0;
    for (size_t i = 0; i < ENDING_COUNT; i++)
        if (sigismember(&pending, ending[i]) == 1)
            return helm_fail(err, HELM_E_CANCELLED, "ended on request before it was ready (%s)",
                             strsignal(ending[i]));
    return 0;
}
