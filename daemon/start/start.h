/* The parts of helmd, and the three stages of its start: the machine, its plan, serving.
 *
 * Private to daemon/main.c and this folder. main.c has the order of the start and owns the one `struct
 * helmd`; every function here fills in the members that its comment names. */
#pragma once

#include "common/plan/schedule.h"
#include "daemon/children/accelerator.h"
#include "daemon/children/drafter.h"
#include "daemon/children/profiling.h"
#include "daemon/children/worker_process.h"
#include "daemon/clients/serve.h"
#include "daemon/planner/activations/decision.h"
#include "daemon/planner/histogram.h"
#include "daemon/planner/page_size.h"
#include "daemon/planner/planner.h"
#include "daemon/start/config.h"
#include "daemon/start/loop.h"
#include "daemon/steps/check.h"

struct helmd {
    int argc;
    char **argv;
    struct config config;
    struct model model;
    struct loaded_files files;
    struct plan plan;
    char *plan_json;
    uint32_t typical_context; /* that forecasts of decode are for */
    struct arena_spec arena_spec;
    struct arena arena;
    struct rundir rundir;
    struct keeper keeper;
    struct accelerator device, second; /* second: kind NONE, there is one at most */
    int node;                          /* NUMA node of weights, caches and compute threads; -1: none */
    bool measured_now;                 /* the profile is not from a file */
    struct profile measured;           /* what is planned by: as in the file, or as it would be now */
    struct profile current;            /* what is forecast by: as it would be now, where that is known */
    struct profile second_measured;    /* of a second device unlike the first */
    struct profile profile;            /* either, with the rates of the activations that are planned with */
    struct programs programs;          /* of the model on this machine; no kinds: prices go by rates */
    struct machine_now now;
    struct planner_request request;
    struct planner_second second_used;
    struct activations activations;
    struct invariant invariant;
    struct page_size page_size;
    struct histogram experts;
    struct check check;
    struct observe observe;
    void *zmq;
    struct drafter drafter;
    uint64_t draft_untouched; /* bytes that the draft model will take and has not touched yet */
    struct client_socket *clients;
    struct metrics metrics;
    struct batcher batcher;
    struct sessions sessions;
    uint64_t identity; /* of the model */
    struct workers workers;
    struct serve serve;
    struct loop loop;
    int signal_fd, ready_fd, parent_fd;
};

/* drafting.c: the draft model, if there is one: it serves after this. Ceilings become what it leaves. */
HELM_MUST_CHECK int drafting_open(struct helmd *d, struct helm_err *err);

/* machine.c: device, NUMA node, profile and memory; the request of a plan, with pages and activations. */
HELM_MUST_CHECK int machine_look(struct helmd *d, struct helm_err *err);
/* A measurement of `formats` (a set of format_bit) on this machine; 0: of memory alone. */
struct profiling_request machine_profiling(const struct helmd *d, unsigned formats);

/* planning.c: the plan and its forecast, before anything is allocated. */
HELM_MUST_CHECK int planning_make(struct helmd *d, struct helm_err *err);
void planning_free(struct helmd *d);

/* serving.c: HELM_E_CAPACITY where a resource limit has no room for the plan's arena. */
HELM_MUST_CHECK int serving_check_room(const struct helmd *d, struct helm_err *err);
HELM_MUST_CHECK int serving_open_workers(struct helmd *d, struct helm_err *err);
/* Batcher, sessions and the check of int8 activations, for the plan's workers. */
HELM_MUST_CHECK int serving_open_steps(struct helmd *d, struct helm_err *err);
/* Serves until it is told to end; returns helmd's exit status. */
int serving_run(struct helmd *d);
