/* Handing activations from one worker to the next. See lane.h. Called by workers between stages; owns
 * nothing. */
#include "common/lane.h"

#include "common/units.h"

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

int lane_publish(struct lane *lane, uint32_t ticket, struct helm_err *err)
{
    uint32_t last = doorbell_read(&lane->bell);
    if (ticket != last + 1)
        return helm_fail(err, HELM_E_STATE, "lane: ticket %u published after %u", ticket, last);
    doorbell_ring(&lane->bell, ticket);
    return 0;
}

int lane_wait(struct lane *lane, uint32_t ticket, uint32_t spin_us, int timeout_ms, struct helm_err *err)
{
    uint64_t deadline_us = timeout_ms < 0 ? UINT64_MAX : units_now_us() + (uint64_t)timeout_ms * 1000u;
    uint32_t seen = doorbell_read(&lane->bell);
    for (;;) {
        int32_t ahead = (int32_t)(seen - ticket); /* tickets wrap */
        if (ahead == 0) return 0;
        if (ahead > 0)
            return helm_fail(err, HELM_E_PEER, "lane: waiting for ticket %u, but %u is published already",
                             ticket, seen);
        int left_ms = -1;
        if (timeout_ms >= 0) {
            uint64_t now_us = units_now_us();
            left_ms = now_us >= deadline_us ? 0 : (int)((deadline_us - now_us + 999) / 1000);
        }
        if (!doorbell_wait(&lane->bell, seen, spin_us, left_ms, &seen))
            return helm_fail(err, HELM_E_PEER, "lane: ticket %u not published within %d ms (last is %u)",
                             ticket, timeout_ms, seen);
    }
}
