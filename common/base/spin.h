/* Waiting without sleep, among others who wait.
 *
 * On a machine whose every CPU has a thread that looks for work, who is woken waits for a CPU until the
 * scheduler's next tick: helmd for up to 2 ms of a step of 40 with 16 compute threads on 16 CPUs. So who
 * spins gives its CPU away now and then to whoever is there, for which nobody being there costs a third of a
 * microsecond. Called by doorbells, lanes, the CPU worker's pool and the GPU worker's step; owns nothing. */
#ifndef HELM_COMMON_BASE_SPIN_H
#define HELM_COMMON_BASE_SPIN_H

#include <sched.h>
#include <stdint.h>

#include "common/base/units.h"

#define SPIN_YIELD_NS UINT64_C(10000)

/* To be called with the time at every look at the clock; *yield_ns is 0 when waiting begins. */
static inline void spin_yield(uint64_t now_ns, uint64_t *yield_ns)
{
    if (*yield_ns && now_ns >= *yield_ns) {
        (void)sched_yield(); /* never fails on Linux */
        now_ns = units_now_ns();
    } else if (*yield_ns) {
        return;
    }
    *yield_ns = now_ns + SPIN_YIELD_NS;
}

#endif
