/* Declarations that workers.c (starting, messages, ends) and workers_watch.c (time) share; no other file
 * includes it. */
#pragma once

#include "daemon/children/workers.h"
#include "proto/control.pb-c.h"

#define CONTROL_VERSION   1
#define CONTROL_FRAME_MAX ((int64_t)1 << 20)
#define SECOND_US         ((uint64_t)1000000)
#define HELLO_WITHIN_US   (30 * SECOND_US)
#define PING_EVERY_US     (10 * SECOND_US)
#define SILENCE_MAX_US    (60 * SECOND_US) /* idle or loading, with a PING unanswered */
#define STEP_PING_US      (2 * SECOND_US)  /* for the answer to a PING sent because a step is late */
#define STEP_LATE_FACTOR  10               /* a worker that answers PING may be this many bounds late */
#define LAST_WORDS_US     (SECOND_US / 5)  /* for the FAULT of a worker that has exited already */
#define START_TRIES       3                /* in a row without READY, be it the first or a later one */
#define RETRY_WAIT_US     SECOND_US        /* after a later one that failed; twice as long after the second */
#define DEATH_WINDOW_US   (60 * SECOND_US)

typedef Helm__Control__V1__Control control_msg;

/* workers.c */
void workers_start(struct workers *workers);
void worker_send(struct workers *workers, struct worker *worker, Helm__Control__V1__Control__BodyCase kind,
                 void *body);
/* It has ended, and no word of it is to come. */
void worker_end(struct workers *workers, struct worker *worker);
void worker_close_fd(struct worker *worker);
/* Breaks the protocol, or hangs. */
void worker_kill(struct worker *worker, const char *why);

/* workers_watch.c */
double worker_seconds_left(const struct worker *worker, uint64_t now_us);
/* How long a worker may wait for the other's part of a step: longer than helmd waits for the whole. */
uint32_t workers_peer_wait_ms(const struct workers_config *config);
