/* Which worker computes in a step of several workers, and how long the host may sleep meanwhile.
 *
 * The device does not report that it waits for another worker, and asking it would cost as much as a
 * hand-over. The lanes' words tell: it waits from publishing a ticket (or the step's beginning) until the
 * next one for it is published. A turn's begin and end are known as exactly as the host polls.
 *
 * The CPU worker computes on every CPU. A polling thread takes one from it, and the worker's other threads
 * then wait for the one that was held up. (Measured, 8B at 8 GiB on 16 CPUs: polling without pause for 10 ms
 * of a step of 61 and every 20 us afterwards was 62,000 preemptions in 3 s.) So the host sleeps through most
 * of the time that such turns took before, and polls often only around the end.
 *
 * Called by step.c for each step; owns nothing. Pure: the time is the caller's. */
#pragma once

#include "worker-gpu/program/program.h"

/* Longest and shortest sleep of the host, in ns. */
#define WATCH_NAP_MAX_NS UINT64_C(10000000)
#define WATCH_NAP_MIN_NS UINT64_C(50000)

struct watch {
    struct gpu_program *program;
    const _Atomic uint32_t *word[PLAN_LINKS], *sent; /* of each turn's lanes; others are not looked at */
    uint32_t turn;
    uint32_t left[PLAN_LINKS]; /* of the step before, what a turn's `out` still says: it is not taken yet; 0:
                                  nothing */
    bool alone;                /* one worker computes everything */
    bool waiting;              /* for another worker */
    uint64_t since_ns, seen_ns, waited_ns; /* `since` of this turn or of the wait for it */
};

/* A step of `tokens` begins. word: of the arena's lanes, NULL: there is no other worker; sent:
 * gpu_source.sent. */
void watch_begin(struct watch *w, struct gpu_program *program, uint32_t tokens,
                 const _Atomic uint32_t *const *word, const _Atomic uint32_t *sent, uint64_t now_ns);
void watch_look(struct watch *w, uint64_t now_ns);
/* How long to sleep before the next look: in turns of the CPU worker at least WATCH_NAP_MIN_NS. 0: the device
 * computes, it may be looked for without pause until spin_ns after its turn began; then every nap_ns. */
uint64_t watch_nap_ns(const struct watch *w, uint64_t spin_ns, uint64_t nap_ns, uint64_t now_ns);
/* How long the device has waited for the other worker in all. */
uint64_t watch_end(const struct watch *w);
