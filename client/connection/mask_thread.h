/* A thread that makes masks which take long, so that the loop of the program goes on for its other requests.
 *
 * Called by constraint.c and generate.c in the caller's thread. A job is part of its constraint. The thread
 * touches a job and its constraint from mask_thread_push until mask_thread_take or mask_thread_remove returns
 * it; the grammar must stay for as long. The job that has used the least time is next: one grammar cannot
 * keep another's requests waiting. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

enum mask_job_state { MASK_JOB_NONE, MASK_JOB_WAITING, MASK_JOB_RUNNING, MASK_JOB_DONE };
struct mask_job {
    void *owner;
    void (*work)(struct mask_job *job); /* sets rc and err */
    uint64_t number;                    /* of the request */
    int rc;
    struct helm_err err;
    /* the thread's: */
    enum mask_job_state state;
    uint64_t spent_us;
    struct mask_job *next;
};
struct mask_thread; /* opaque */

/* event_fd: an eventfd, borrowed, that is raised when a job is done. */
HELM_MUST_CHECK int mask_thread_open(int event_fd, struct mask_thread **out, struct helm_err *err);
void mask_thread_push(struct mask_thread *thread, struct mask_job *job);
/* A job that is done, which is not the thread's any more; NULL: none. NULL is allowed. */
struct mask_job *mask_thread_take(struct mask_thread *thread);
/* Takes a job back in whatever state it is; waits while it runs. */
void mask_thread_remove(struct mask_thread *thread, struct mask_job *job);
/* No job may be left. NULL is allowed. */
void mask_thread_close(struct mask_thread *thread);
