/* A lane: how one worker hands the activations of a step's tokens to the next, through the arena.
 *
 * One writer, one reader, in plan order: the writer fills `data` (fp32, [token][hidden]), then publishes the
 * step's ticket; the reader waits for that ticket and may read until it publishes its own lane. Tickets grow
 * by one per hand-over and are compared exactly, so a late or repeated publish is seen (HELM_E_PEER), never
 * read as new. The word is also what a CUDA stream waits on (cuStreamWaitValue32), hence a doorbell at a
 * fixed offset. */
#ifndef HELM_COMMON_LANE_H
#define HELM_COMMON_LANE_H

#include <assert.h>
#include <stddef.h>

#include "common/doorbell.h"
#include "common/err.h"

struct lane {
    _Alignas(64) struct doorbell bell; /* value = last published ticket; starts at 0 */
    _Alignas(64) float data[];         /* [step_tokens][hidden] */
};
static_assert(offsetof(struct lane, data) == 64, "lane payload starts on its own cache line");

/* Bytes of one lane, a multiple of 4096; UINT64_MAX when that overflows. */
uint64_t lane_bytes(uint32_t step_tokens, uint32_t hidden);

void lane_init(struct lane *lane);
/* Publishes `ticket`, which must be the last one plus one (else HELM_E_STATE). */
HELM_MUST_CHECK int lane_publish(struct lane *lane, uint32_t ticket, struct helm_err *err);
/* Waits until `ticket` is published. HELM_E_PEER after timeout_ms or when the lane runs ahead of the ticket.
 */
HELM_MUST_CHECK int lane_wait(struct lane *lane, uint32_t ticket, uint32_t spin_us, int timeout_ms,
                              struct helm_err *err);

#endif
