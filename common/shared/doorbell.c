/* Ringing and waiting on a word in shared memory. See doorbell.h. Called by helmd and every worker; owns
 * nothing.
 *
 * No wake-up is lost because four accesses are sequentially consistent: the ringer stores value, then reads
 * sleepers; the waiter raises sleepers, then reads value. In their single order one side must see the other's
 * write: either the ringer sees a sleeper and calls futex_wake, or the waiter sees the new value and does not
 * sleep. (Operations rather than fences: thread sanitizer understands the former only.) */
#include "common/shared/doorbell.h"

#include <errno.h>
#include <xmmintrin.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/base/spin.h"
#include "common/base/units.h"

/* Not FUTEX_PRIVATE_FLAG anywhere: the other side is another process. */
static long futex_call(_Atomic uint32_t *word, int operation, uint32_t number,
                       const struct timespec *deadline)
{
    return syscall(SYS_futex, (uint32_t *)word, operation, number, deadline, NULL, FUTEX_BITSET_MATCH_ANY);
}

void doorbell_init(struct doorbell *bell, uint32_t value)
{
    atomic_store_explicit(&bell->sleepers, 0, memory_order_relaxed);
    atomic_store_explicit(&bell->value, value, memory_order_release);
}

void doorbell_ring(struct doorbell *bell, uint32_t value)
{
    atomic_store_explicit(&bell->value, value, memory_order_seq_cst);
    if (atomic_load_explicit(&bell->sleepers, memory_order_seq_cst) != 0)
        futex_call(&bell->value, FUTEX_WAKE, INT_MAX, NULL);
}

static bool spin_until_changed(const struct doorbell *bell, uint32_t seen, uint64_t until_ns, uint32_t *value)
{
    for (uint64_t now_ns, yield_ns = 0;; spin_yield(now_ns, &yield_ns)) {
        for (int i = 0; i < SPIN_PAUSES; i++) {
            *value = doorbell_read(bell);
            if (*value != seen) return true;
            _mm_pause();
        }
        now_ns = units_now_ns();
        if (now_ns >= until_ns) return false;
    }
}

/* Sleeps once; returns false when the deadline (NULL: none) has passed. */
static bool sleep_until_rung(struct doorbell *bell, uint32_t seen, const struct timespec *deadline)
{
    /* WAIT_BITSET takes an absolute monotonic deadline, so interrupted sleeps do not add up. */
    if (futex_call(&bell->value, FUTEX_WAIT_BITSET, seen, deadline) == 0) return true;
    if (errno == EAGAIN || errno == EINTR) return true; /* rung in between; a signal */
    if (errno == ETIMEDOUT) return false;
    abort(); /* the word is not mapped or not aligned: a broken invariant, and looping on it would burn a core
              */
}

bool doorbell_wait(struct doorbell *bell, uint32_t seen, uint32_t spin_us, int timeout_ms, uint32_t *now)
{
    uint32_t value = doorbell_read(bell);
    bool rung = value != seen;
    if (rung || timeout_ms == 0) goto out;

    uint64_t start_ns = units_now_ns();
    uint64_t deadline_ns = timeout_ms < 0 ? UINT64_MAX : start_ns + (uint64_t)timeout_ms * 1000000u;
    if (spin_us) {
        uint64_t spin_ns = start_ns + (uint64_t)spin_us * 1000u;
        rung = spin_until_changed(bell, seen, spin_ns < deadline_ns ? spin_ns : deadline_ns, &value);
        if (rung) goto out;
    }

    struct timespec deadline = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
                                .tv_nsec = (long)(deadline_ns % 1000000000u)};
    atomic_fetch_add_explicit(&bell->sleepers, 1, memory_order_seq_cst);
    for (bool in_time = true;;) {
        value = atomic_load_explicit(&bell->value, memory_order_seq_cst);
        rung = value != seen;
        if (rung || !in_time) break; /* a ring that came with the deadline still counts */
        in_time = sleep_until_rung(bell, seen, timeout_ms < 0 ? NULL : &deadline);
    }
    atomic_fetch_sub_explicit(&bell->sleepers, 1, memory_order_relaxed);
out:
    if (rung && now) *now = value;
    return rung;
}
