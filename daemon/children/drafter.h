/* The draft model: a second helmd as a child, of which this one is a client.
 *
 * Called by daemon/start/drafting.c (start), loop.c (poll, tick, children) and batcher_drafter.c (requests).
 * Owns the child, the socket to it and the pipe on which it says that it is ready. The child has a run
 * directory of its own inside helmd's private one, ends with helmd (PR_SET_PDEATHSIG, and the keeper as
 * second line), and has its own process group, so that Ctrl-C reaches helmd alone.
 *
 * Nothing waits for the child once helmd serves: it may die, hang or refuse at any time. Then its requests
 * are gone (`lost`), and it is started again, at first at once and later at most once a minute. One that says
 * nothing for DRAFTER_SILENCE_US although something was asked is asked for a sign of life, and killed
 * after the same time again. One that is started again and takes DRAFTER_START_FACTOR times as long as the
 * first, and DRAFTER_START_US at least, is killed, too.
 *
 * A request has the number that the caller gives it. It stays open at the child: drafter_begin has it compute
 * a prompt and one token, drafter_go_on replaces the end of its answer and has it make more. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <zmq.h>

#include "common/base/err.h"
#include "common/sampling/sampling.h"
#include "daemon/children/keeper.h"

#define DRAFTER_PROGRAM      "helmd (draft)" /* as ps and its lines in the log call it */
#define DRAFTER_SILENCE_US   UINT64_C(10000000)
#define DRAFTER_START_US     UINT64_C(60000000)
#define DRAFTER_START_FACTOR 10
#define DRAFTER_ARGUMENTS    48
#define DRAFTER_ENDPOINT_MAX 128

struct drafter_events {
    void *context;
    /* The next token of a request. */
    void (*token)(void *context, uint64_t id, uint32_t token);
    /* A request has ended by itself. `again`: another one for the same text may succeed. */
    void (*ended)(void *context, uint64_t id, bool again);
    /* All requests are gone. */
    void (*lost)(void *context);
};

struct drafter_options {
    char
        *argument[DRAFTER_ARGUMENTS]; /* of the child, after the program; owned by the drafter from here on */
    uint32_t arguments;
    char endpoint[DRAFTER_ENDPOINT_MAX]; /* that they have it listen on */
    int parent_fd;                       /* its writer's end ends the wait for READY; -1: none */
    const char *model;                   /* its name, for people; borrowed */
};

struct drafter {
    struct drafter_options with;
    struct drafter_events events;
    struct keeper *keeper; /* borrowed */
    void *zmq, *socket;    /* NULL: not ready */
    pid_t pid;             /* 0: none */
    int ready_fd;          /* -1: it has said so, or does not live */
    bool stopping;
    uint64_t start_at_us, ready_us; /* of the next start; when it was ready last */
    uint64_t started_us, start_us;  /* when it was started; what the first start took, 0: it goes on */
    uint32_t failures;              /* since it was ready for a minute */
    uint32_t restarts;
    uint64_t asked_us, heard_us; /* the oldest question since it was heard; 0: none */
    bool pinged;
    /* Its plan says these, once it was ready. */
    uint64_t host_bytes, vram_bytes;
    uint32_t context_tokens;
    double token_seconds;
};

/* Starts the child and waits until it serves. HELM_E_CANCELLED: helmd was told to end. drafter_close either
 * way. */
HELM_MUST_CHECK int drafter_open(void *zmq, const struct drafter_options *options, struct keeper *keeper,
                                 struct drafter *drafter, struct helm_err *err);
/* Ends the child and waits for it. */
void drafter_close(struct drafter *drafter);

bool drafter_is_ready(const struct drafter *drafter);
/* Makes a request of a prompt. False: it could not be sent. */
HELM_MUST_CHECK bool drafter_begin(struct drafter *drafter, uint64_t id, const uint32_t *prompt,
                                   uint32_t count, const struct sampling_params *sampling);
/* The first `keep` tokens of its answer stand, then come `tokens`; it makes `most` more. */
HELM_MUST_CHECK bool drafter_go_on(struct drafter *drafter, uint64_t id, uint32_t keep,
                                   const uint32_t *tokens, uint32_t count, uint32_t most);
void drafter_end(struct drafter *drafter, uint64_t id);

/* For the loop; with no drafter open none of them does anything. */
#define DRAFTER_POLL_MAX 2
int drafter_poll_items(const struct drafter *drafter, zmq_pollitem_t items[DRAFTER_POLL_MAX]);
/* Takes what it has said; calls events. */
void drafter_receive(struct drafter *drafter);
/* Starts it again, asks for a sign of life; returns when to call again, 0: at any time. */
uint64_t drafter_tick(struct drafter *drafter, uint64_t now_us);
/* A child was reaped; whether it was this one. */
bool drafter_child_ended(struct drafter *drafter, pid_t pid, int wait_status);
/* To a new keeper. */
void drafter_tell_keeper(const struct drafter *drafter);
