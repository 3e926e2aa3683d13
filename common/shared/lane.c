/* Handing activations from one worker to the other. See lane.h. Called by workers between stages; owns
 * nothing. */
#include "common/shared/lane.h"

#include <xmmintrin.h>
#include <sys/prctl.h>
#include <time.h>

#include "common/base/spin.h"
#include "common/base/units.h"

#define SLACK_NS 1000UL /* by default a nap may be 50 us late: more than it is long */

uint64_t lane_bytes(uint32_t step_tokens, uint32_t hidden)
{
    uint64_t bytes;
    if (units_mul((uint64_t)step_tokens * hidden, sizeof(float), &bytes) != 0 ||
        units_add(bytes, sizeof(struct lane) + 4095, &bytes) != 0)
        return UINT64_MAX;
    return bytes & ~(uint64_t)4095;
}

void lane_init(struct lane *lane)
{
    doorbell_init(&lane->bell, 0);
}

bool lane_poll(const _Atomic uint32_t *word, uint32_t value, uint32_t spin_us, int timeout_ms,
               const _Atomic bool *cancel, uint32_t *last)
{
    const struct timespec nap = {.tv_nsec = LANE_NAP_US * 1000};
    uint64_t start_us = units_now_us(), spin_until = start_us + spin_us, yield_ns = 0;
    bool patient = false;
    uint64_t deadline = timeout_ms < 0 ? UINT64_MAX : start_us + (uint64_t)timeout_ms * 1000u;
    for (;;) {
        for (int i = 0; i < SPIN_PAUSES; i++) {
            *last = atomic_load_explicit(word, memory_order_acquire);
            if (*last == value) return true;
            _mm_pause();
        }
        uint64_t now_us = units_now_us();
        if (now_us >= deadline || (cancel && atomic_load_explicit(cancel, memory_order_relaxed))) {
            *last = atomic_load_explicit(word, memory_order_acquire); /* a word at the deadline counts */
            return *last == value;
        }
        if (now_us < spin_until) {
            spin_yield(now_us * 1000, &yield_ns);
            continue;
        }
        if (!patient) prctl(PR_SET_TIMERSLACK, SLACK_NS, 0, 0, 0);
        patient = true;
        nanosleep(&nap, NULL);
    }
}

static bool is_cancelled(const _Atomic bool *cancel)
{
    return cancel && atomic_load_explicit(cancel, memory_order_relaxed);
}

int lane_acquire(const struct lane *lane, uint32_t ticket, uint32_t spin_us, int timeout_ms,
                 const _Atomic bool *cancel, struct helm_err *err)
{
    uint32_t seen = doorbell_read(&lane->bell);
    if (ticket != 1 && seen != ticket - 1)
        return helm_fail(err, HELM_E_STATE, "lane: ticket %u is next, but the word is %u", ticket, seen);
    if (ticket != 1 || lane_poll(&lane->bell.value, 0, spin_us, timeout_ms, cancel, &seen)) return 0;
    if (is_cancelled(cancel)) return helm_fail(err, HELM_E_CANCELLED, "lane: waiting was cancelled");
    return helm_fail(err, HELM_E_PEER, "lane: the last step's hand-over (%u) was not taken within %d ms",
                     seen, timeout_ms);
}

int lane_publish(struct lane *lane, uint32_t ticket, struct helm_err *err)
{
    uint32_t last = doorbell_read(&lane->bell);
    if (ticket != last + 1)
        return helm_fail(err, HELM_E_STATE, "lane: ticket %u published after %u", ticket, last);
    atomic_store_explicit(&lane->bell.value, ticket, memory_order_release);
    return 0;
}

int lane_wait(const struct lane *lane, uint32_t ticket, uint32_t spin_us, int timeout_ms,
              const _Atomic bool *cancel, struct helm_err *err)
{
    uint32_t seen = doorbell_read(&lane->bell);
    /* Only the ticket before it may precede it, or 0 at the start: anything later was never waited for. */
    if ((int32_t)(seen - ticket) > 0)
        return helm_fail(err, HELM_E_PEER, "lane: waiting for ticket %u, but %u is published already", ticket,
                         seen);
    if (lane_poll(&lane->bell.value, ticket, spin_us, timeout_ms, cancel, &seen)) return 0;
    if (is_cancelled(cancel)) return helm_fail(err, HELM_E_CANCELLED, "lane: waiting was cancelled");
    return helm_fail(err, HELM_E_PEER, "lane: ticket %u not published within %d ms (last is %u)", ticket,
                     timeout_ms, seen);
}

void lane_release(struct lane *lane)
{
    atomic_store_explicit(&lane->bell.value, 0, memory_order_release);
}
