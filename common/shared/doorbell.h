/* A doorbell: one 32-bit word in shared memory that one side rings and others wait on.
 *
 * Waiting spins briefly, then sleeps in futex(2) (shared, so it works across processes), and is always
 * bounded. A ring publishes everything the ringer wrote before it (release); a wait that sees the value
 * acquires it. One writer per doorbell. Lives in the arena; owns nothing. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct doorbell {
    _Atomic uint32_t value;
    _Atomic uint32_t sleepers; /* how many are in futex_wait; the ringer skips the system call at 0 */
};

void doorbell_init(struct doorbell *bell, uint32_t value);

/* Stores value and wakes every sleeper. */
void doorbell_ring(struct doorbell *bell, uint32_t value);

static inline uint32_t doorbell_read(const struct doorbell *bell)
{
    return atomic_load_explicit(&bell->value, memory_order_acquire);
}

/* Waits until value != seen: spins up to spin_us, then sleeps. Returns true and the new value in *now, or
 * false after timeout_ms (negative: for ever; 0: only looks). With spin_us 0 it goes straight to sleep. `now`
 * may be NULL and is untouched on a timeout. Spurious wake-ups are handled inside. */
bool doorbell_wait(struct doorbell *bell, uint32_t seen, uint32_t spin_us, int timeout_ms, uint32_t *now);
