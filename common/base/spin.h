/* Waiting without sleep, beside other threads that wait.
 *
 * Where threads spin on every CPU, a thread that is woken gets a CPU only at the scheduler's next tick: helmd
 * lost up to 2 ms of a 40 ms step to 16 compute threads on 16 CPUs. So a thread that spins yields now and
 * then, which costs a third of a microsecond when no other thread is ready. Called by doorbells, lanes, the
 * CPU worker's pool and the GPU worker's step; owns nothing. */
#pragma once

#include <sched.h>
#include <stdint.h>

#include "common/base/units.h"

#define SPIN_YIELD_NS UINT64_C(10000)
#define SPIN_PAUSES   16 /* pauses between two looks at the clock: under a microsecond on every x86-64 */

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
