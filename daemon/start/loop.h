/* The one poll loop: client sockets, control socket, the workers' eventfd, signals, the parent's pipe.
 *
 * Called by main.c. Handlers never block. Before each sleep the batcher rings the next step and sends what
 * the last one gave, backlogs are tried again, and the wake-up time is the nearest of all that want one.
 * Around the time when a step should end (scheduler.h) the loop does not sleep but looks at the workers'
 * bells, where a CPU is free for that. Leaving the loop has a reason and an exit status; there is no other
 * way out. */
#pragma once

#include "daemon/children/keeper.h"
#include "daemon/children/rundir.h"
#include "daemon/clients/serve.h"

struct check;
struct loop {
    struct serve *serve;
    struct check
        *check; /* runs when the workers are ready, before anything is served; NULL: none, or it has ended */
    bool check_waits; /* its time before serving is up: it goes on while nothing else is open */
    void *context;    /* of these two */
    /* The check has ended, or its round. Has the plan's activations decided, or says in check_waits that the
     * check is to go on between requests. *again: other workers are on their way. */
    int (*decide)(void *context, bool *again, struct helm_err *err);
    void (*reload)(void *context); /* on SIGHUP */
    struct keeper *keeper;
    struct drafter *drafter;
    struct rundir *rundir;
    int signal_fd;
    int parent_fd;    /* -1: none */
    int ready_fd;     /* -1: none, or told already */
    int timer_fd;     /* wakes a little before the step in flight should end; -1: it is only waited for */
    bool real_device; /* what the GPU worker computes on is not these CPUs */
    uint64_t drain_us;
    uint64_t watchdog_us; /* systemd's, 0: none */

    bool leaving; /* drain is over or nothing can go on */
    int exit_status;
    uint64_t drain_end_us; /* when draining began: how long open requests may go on */
    uint64_t keeper_retry_us;
    uint64_t watchdog_next_us;
    uint64_t idle_us;  /* check_waits: since when nothing is open; 0: something is */
    uint64_t said_us;  /* when the check's progress was last told */
    uint64_t timer_us; /* what timer_fd is set to */
};

/* Blocks SIGTERM, SIGINT, SIGHUP, SIGCHLD and opens the descriptor that reports them. Before any thread
 * starts. */
HELM_MUST_CHECK int loop_open_signals(int *signal_fd, struct helm_err *err);
/* Whether there are CPUs for looking for a step's end without pause, beside those that compute at that time.
 * `threads`: of the CPU worker, 0 without one; `gpu`: there is a GPU worker, and `gpu_last`: it is the one
 * that ends the step, on a device of its own. */
bool loop_may_look(uint32_t cpus, uint32_t threads, bool gpu, bool gpu_last);
/* Serves what clients have sent, no more than a round's share of it; returns how many frames. The rest is for
 * the next round. */
uint32_t loop_take_clients(struct loop *loop);
/* Runs until told to end; returns the exit status. */
int loop_run(struct loop *loop);

/* workers_events, context = struct loop *. */
void loop_on_prepare(void *context, uint32_t epoch);
void loop_on_ready(void *context);
void loop_on_lost(void *context, const struct workers_loss *loss);
void loop_on_given_up(void *context, int code, const char *why, bool ever_ready);

/* One line to --ready-fd, once. */
void loop_tell_ready_fd(int *ready_fd, const char *fmt, ...) HELM_PRINTF(2, 3);
