/* Needs of a process that runs for long, looked at before anything else.
 *
 * Called first in main by helmd and by the workers; start_check_proc also by helm-profile, helm-plan and
 * helm-cli. */
#pragma once

#include <stdint.h>

#include "common/base/err.h"

#define START_STACK_LEAST ((uint64_t)1 << 20) /* of RLIMIT_STACK: threads of libraries have it as theirs */
#define START_MEMORY_LEAST                                                                                   \
    ((uint64_t)512 << 20)    /* of RLIMIT_AS and RLIMIT_DATA: programs, libraries, stacks */
#define START_FILES_LEAST 64 /* of RLIMIT_NOFILE: sockets, events, the arena */

/* Opens /dev/null where descriptor 0, 1 or 2 is closed, so that no file of ours is taken for standard output.
 * Ignores signals that mean nothing here and end a program by default (SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM,
 * SIGPROF), and SIGXFSZ, so that a write beyond `ulimit -f` fails with its reason. HELM_E_CAPACITY: a
 * resource limit is below what is stated above; the text has its name, its value and ulimit's letter.
 * HELM_E_USAGE: HELM_CPU has an unknown name. HELM_E_STATE: as start_check_proc. */
HELM_MUST_CHECK int start_process(struct helm_err *err);

/* HELM_E_STATE: /proc is not mounted. */
HELM_MUST_CHECK int start_check_proc(struct helm_err *err);

/* Whether the limit of address space leaves room for `bytes` of arena. HELM_E_CAPACITY as above. */
HELM_MUST_CHECK int start_check_arena(uint64_t bytes, struct helm_err *err);
