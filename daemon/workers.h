/* The workers: spawned, told what to load, watched, replaced. The topology is written here, once (workers.c).
 *
 * Called by loop.c. Owns the control socket, the children and their eventfds. A message counts only if it
 * comes from the process that was spawned for the current epoch; what an older one says late is ignored; a
 * worker that breaks the protocol is killed like one that hangs. What happens is told through `struct
 * workers_events`.
 *
 * States: down (to be started at start_at) -> starting (until HELLO) -> loading (until READY) -> ready ->
 * down ... */
#ifndef HELM_DAEMON_WORKERS_H
#define HELM_DAEMON_WORKERS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <zmq.h>

#include "common/arena.h"
#include "common/err.h"
#include "daemon/keeper.h"

enum worker_state { WORKER_DOWN, WORKER_STARTING, WORKER_LOADING, WORKER_READY };

struct workers_config {
    const char *control; /* endpoint to bind */
    const char *program; /* path of the worker's program */
    const char *log_level;
    const char *folder; /* of the checkpoint */
    const char *plan_json;
    const char *kernels;
    uint32_t threads, spin_us;
    uint32_t restart_limit;   /* deaths within a minute */
    uint64_t step_timeout_ms; /* 0: from the two below */
    uint64_t token_bytes;     /* weights read for one decoded token */
    uint64_t token_flops;
};

struct workers_events {
    void *context;
    /* Before each spawn: the arena must be quiet under the new epoch. */
    void (*prepare)(void *context, uint32_t epoch);
    void (*ready)(void *context);
    void (*lost)(void *context, bool kv_intact, const char *why);
    /* No worker can be had. `code`: why; `ever_ready`: it failed midway rather than at start. */
    void (*given_up)(void *context, int code, const char *why, bool ever_ready);
};

struct worker {
    const char *name; /* "cpu" */
    enum worker_state state;
    pid_t pid;
    int done_fd;
    uint32_t epoch, restarts;
    uint8_t secret[16];
    uint8_t routing_id[255];
    size_t routing_id_size;
    bool killed_by_us;
    char why[HELM_ERR_TEXT]; /* what is known of its end before it is reaped */
    int fault_code;
    uint64_t start_at_us, state_since_us, heard_us, pinged_us; /* pinged: unanswered since; 0: none */
    uint64_t loading_since_us, logged_us, bytes_done, bytes_total;
    /* From READY. */
    uint32_t threads;
    int32_t node;
    char kernels[128];
    uint64_t weight_bytes, huge_bytes, weights_digest;
};

struct workers {
    struct workers_config config;
    struct workers_events events;
    struct arena *arena;   /* borrowed */
    struct keeper *keeper; /* borrowed */
    void *socket;
    struct worker worker; /* of a CPU-only plan: one */
    bool ever_ready, stopping;
    uint64_t death_us[64]; /* ring of the latest deaths */
    uint32_t deaths;
};

HELM_MUST_CHECK int workers_open(void *zmq, const struct workers_config *config,
                                 const struct workers_events *events, struct arena *arena,
                                 struct keeper *keeper, struct workers *workers, struct helm_err *err);

#define WORKERS_POLL_MAX 2
int workers_poll_items(struct workers *workers, zmq_pollitem_t items[WORKERS_POLL_MAX]);

/* Control messages that wait. */
void workers_receive(struct workers *workers);
/* Clears the eventfd; true when a worker rang. */
bool workers_take_ring(struct workers *workers);
/* A child was reaped; false when it is none of ours. */
bool workers_child_ended(struct workers *workers, pid_t pid, int wait_status);
/* Starts what is due and looks after late workers; step_rung_us and step_tokens describe the step in flight
 * (0: none). Returns when it wants to be called again. */
uint64_t workers_tick(struct workers *workers, uint64_t now_us, uint64_t step_rung_us, uint32_t step_tokens);
/* Kills a worker that broke the protocol; its end arrives through workers_child_ended. */
void workers_kill(struct workers *workers, const char *why);
/* SHUTDOWN, a bounded wait, then SIGKILL; all reaped, all closed. */
void workers_close(struct workers *workers);

/* Seconds until loading ends at the present rate; 0 when unknown. */
double workers_seconds_left(const struct workers *workers, uint64_t now_us);
const char *workers_state_name(const struct workers *workers);

#endif
