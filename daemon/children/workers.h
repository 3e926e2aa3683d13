/* The workers: spawned, told what to load, watched, replaced. The topology is written here, once (workers.c).
 *
 * Called by loop.c. Owns the control socket, the children and their eventfds. A message counts only if it
 * comes from a process that was spawned for the current epoch; late messages of older ones are ignored; a
 * worker that breaks the protocol is killed like one that hangs. Events are reported through `struct
 * workers_events`.
 *
 * Workers live and die together: they wait for each other in the arena, so when one ends the others are
 * killed, and all are started again under the next epoch once the last is reaped. That ends when it happens
 * too often within a minute, or when some starts in a row did not come to READY, however long they took.
 *
 * States of one: down (all start at start_at_us) -> starting (until HELLO) -> loading (until READY) -> ready
 * -> down ... */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <zmq.h>

#include "common/shared/arena.h"
#include "common/base/err.h"
#include "common/model/model.h"
#include "common/plan/plan.h"
#include "daemon/children/keeper.h"

#define WORKERS_MAX PLAN_PROCESSORS /* one a processor */

enum worker_state { WORKER_DOWN, WORKER_STARTING, WORKER_LOADING, WORKER_READY };

/* ---- the check that a worker which is started again loads the same (workers_watch.c) ----
 *
 * Called at every READY. Without this, weights that changed on disk under a running daemon would give other
 * tokens after a worker's death, without a word. */

/* The digests of one worker (content.h); 0: not known. */
struct loaded {
    uint64_t vectors;  /* of what every start reads: norms, biases, the configuration's numbers */
    uint64_t matrices; /* of the rest */
};

/* The state that the model's files had when it was read, for a name in the reason. */
struct loaded_files {
    const struct model *model; /* borrowed */
    struct stat *file;         /* [shard_count + 1]: the last is the configuration's, if it is a file */
};

HELM_MUST_CHECK int loaded_files_note(const struct model *model, struct loaded_files *files,
                                      struct helm_err *err);
void loaded_files_free(struct loaded_files *files);

/* Holds what a worker says that it loaded `now` against what it loaded before, and keeps it. HELM_E_MISMATCH:
 * it is not the same; the text names the first file that looks changed. */
HELM_MUST_CHECK int loaded_check(struct loaded *before, const struct loaded *now,
                                 const struct loaded_files *files, struct helm_err *err);

/* ---- the workers ---- */

struct workers_config {
    const char *control;    /* endpoint to bind */
    const char *worker_dir; /* NULL: beside helmd */
    const char *log_level;
    const char *folder;               /* of the checkpoint */
    const struct loaded_files *files; /* borrowed */
    const struct plan *plan;
    const char *plan_json;
    const char *kernels;
    /* Each GPU worker's device ("cuda:0", "emulated") and its ceiling, by plan_device_index. */
    const char *device[PLAN_PROCESSORS];
    uint64_t vram_bytes[PLAN_PROCESSORS];
    uint64_t copy_bytes_per_s; /* the emulated device's; 0: as fast as memory */
    bool no_graphs;            /* the GPU worker issues every step anew */
    bool no_chains;            /* the GPU worker decodes with a kernel an operation */
    int32_t node;              /* NUMA node, -1: the workers' choice */
    uint32_t threads, spin_us;
    uint32_t restart_limit;   /* deaths within a minute */
    uint64_t step_timeout_ms; /* 0: from the two below */
    uint64_t token_bytes;     /* weights read for one decoded token */
    uint64_t token_flops;
};

/* How the workers were lost. */
struct workers_loss {
    /* KV pages still hold what they should: with two tiers those that are whole, in the arena. */
    bool kv_intact;
    bool outside; /* one was killed from outside while it was sound: no request is to blame */
    const char *why;
};

struct workers_events {
    void *context;
    /* Before each start: the arena must be quiet under the new epoch. */
    void (*prepare)(void *context, uint32_t epoch);
    void (*ready)(void *context); /* all of them are */
    /* The first of them is gone; the others are being killed, and may touch the arena until `prepare`. */
    void (*lost)(void *context, const struct workers_loss *loss);
    /* No worker can be had. `code`: why; `ever_ready`: it failed midway rather than at start. */
    void (*given_up)(void *context, int code, const char *why, bool ever_ready);
};

struct worker {
    const char *name; /* of its processor: "cpu", "gpu", "gpu1" */
    char program[4096];
    enum plan_processor processor; /* that it runs on */
    enum worker_state state;
    pid_t pid;
    int done_fd;
    uint32_t restarts;
    uint8_t secret[16];
    uint8_t routing_id[255];
    size_t routing_id_size;
    bool killed_by_us; /* breaks the protocol or hangs */
    bool companion;    /* killed because another one ended */
    pid_t ended_pid;   /* reaped; its last message is waited for until ended_at_us */
    int ended_status;
    uint64_t ended_at_us;    /* 0: it has not ended, or its end was dealt with */
    char why[HELM_ERR_TEXT]; /* its own reason for its end */
    int fault_code;
    uint64_t state_since_us, heard_us, pinged_us; /* pinged: unanswered since; 0: none */
    uint64_t loading_since_us, logged_us, bytes_done, bytes_total;
    /* From READY. */
    uint32_t threads;
    int32_t node;
    char kernels[160], device[128];
    uint64_t weight_bytes, huge_bytes, vram_bytes, weights_digest;
    struct loaded loaded;
    const char *stall; /* why a step waits for it: it is "stopped" or "late"; NULL: no step does */
};

struct workers {
    struct workers_config config;
    struct workers_events events;
    struct arena *arena;   /* borrowed */
    struct keeper *keeper; /* borrowed */
    void *socket;
    struct worker worker[WORKERS_MAX]; /* [count]; the index is that of arena_control.done */
    uint32_t count;
    uint32_t epoch;
    uint64_t start_at_us;    /* when all are down: UINT64_MAX = not again */
    bool falling;            /* one has ended; the others are being ended */
    char why[HELM_ERR_TEXT]; /* the end that made them fall */
    int fault_code;
    bool ever_ready, stopping;
    uint64_t death_us[64]; /* ring of the latest deaths */
    uint32_t deaths;
    uint32_t unready_starts; /* starts in a row without READY, including the current one */
};

/* Finds the programs of the plan's workers and binds the control socket; starts nothing yet. */
HELM_MUST_CHECK int workers_open(void *zmq, const struct workers_config *config,
                                 const struct workers_events *events, struct arena *arena,
                                 struct keeper *keeper, struct workers *workers, struct helm_err *err);

/* The program of a device's worker, "helm-worker-gpu", which is also asked for the devices that there are. */
const char *workers_device_program(void);

#define WORKERS_POLL_MAX (1 + WORKERS_MAX)
int workers_poll_items(struct workers *workers, zmq_pollitem_t items[WORKERS_POLL_MAX]);

/* Control messages that wait. */
void workers_receive(struct workers *workers);
/* Clears the eventfds; true when a worker rang. */
bool workers_take_ring(struct workers *workers);
/* A child was reaped; false when it is none of ours. */
bool workers_child_ended(struct workers *workers, pid_t pid, int wait_status);
/* The oldest step in flight, for the watch over workers. */
struct workers_step {
    uint64_t begun_us; /* since when it is the oldest */
    uint32_t tokens, serial;
    double planned_seconds; /* 0: unknown */
};
/* Starts what is due and looks after late workers; `step` is NULL when none is in flight. Returns when it
 * wants to be called again. */
uint64_t workers_tick(struct workers *workers, uint64_t now_us, const struct workers_step *step);
/* Kills the worker that wrote a result which breaks the protocol; its end arrives through
 * workers_child_ended. */
void workers_kill_head(struct workers *workers, const char *why);
/* Tells a new keeper of every child. */
void workers_tell_keeper(const struct workers *workers);
/* SHUTDOWN, a bounded wait, then SIGKILL: all are reaped. Then workers_renew sets up those of another plan,
 * which the next tick starts; their arena is in the old one's place. */
void workers_end_all(struct workers *workers);
HELM_MUST_CHECK int workers_renew(struct workers *workers, const struct workers_config *config,
                                  struct helm_err *err);
/* Ends all and closes everything. */
void workers_close(struct workers *workers);

/* Why a step has waited for a worker for seconds: "stopped" (by a signal, or a debugger) or "late"; NULL: it
 * has not. */
const char *workers_stall(const struct workers *workers);
bool workers_ready(const struct workers *workers);
/* Seconds until loading ends at the present rate, of the slowest; 0 when unknown. */
double workers_seconds_left(const struct workers *workers, uint64_t now_us);
const char *worker_state_name(const struct workers *workers, const struct worker *worker);
