/* A lane hands the activations of a step's tokens from one worker to another, through the arena.
 *
 * There is one lane for each pair of workers and direction (plan_link_of), none when one worker computes
 * everything. One writer, one reader, in plan order. `data` is fp32, [token][hidden]; the word beside it says
 * whether writer or reader is next. Within a step the hand-overs of a lane have tickets 1, 2, ..., n:
 *
 *   writer  lane_acquire(ticket): ticket 1 waits for word 0 (the reader is done with the step before); a
 *           later one finds ticket - 1, whose reader has answered since by the lane of the other direction
 *           fills data, then lane_publish(ticket): word = ticket, releasing data
 *   reader  lane_wait(ticket): waits for the word to be exactly that, acquiring data; takes data away
 *           after the step's last ticket lane_release(): word = 0, so that no later step can take this one
 *           for its own
 *
 * So a ticket depends on the plan alone, never on the step's number: the same words are waited for and
 * written by a captured CUDA graph (cuStreamWaitValue32, cuStreamWriteValue32) in every step. The writer
 * never overwrites what is not taken, the reader never takes anything twice, however many steps are in the
 * ring. A worker that died leaves its word: both are restarted and helmd sets every lane to 0 with the new
 * epoch.
 *
 * A GPU cannot call futex, so waiting is polling: at first continuously, then every LANE_NAP_US. It always
 * ends (HELM_E_PEER). */
#pragma once

#include <assert.h>
#include <stddef.h>

#include "common/shared/doorbell.h"
#include "common/base/err.h"

#define LANE_NAP_US 20

struct lane {
    _Alignas(64) struct doorbell bell; /* value: the published ticket, 0 = taken */
    _Alignas(64) float data[];         /* [step_tokens][hidden] */
};
static_assert(offsetof(struct lane, data) == 64, "lane payload starts on its own cache line");

/* Bytes of one lane, a multiple of 4096; UINT64_MAX when that overflows. */
uint64_t lane_bytes(uint32_t step_tokens, uint32_t hidden);

void lane_init(struct lane *lane);

/* Writer: waits until `ticket` may be written. HELM_E_PEER after timeout_ms (negative: never),
 * HELM_E_CANCELLED once *cancel (may be NULL) is true, HELM_E_STATE when the word is of no protocol. */
HELM_MUST_CHECK int lane_acquire(const struct lane *lane, uint32_t ticket, uint32_t spin_us, int timeout_ms,
                                 const _Atomic bool *cancel, struct helm_err *err);
/* Publishes `ticket`, which must be the last one plus one (else HELM_E_STATE). */
HELM_MUST_CHECK int lane_publish(struct lane *lane, uint32_t ticket, struct helm_err *err);
/* Reader: waits until `ticket` is published. HELM_E_PEER after timeout_ms or when the lane runs ahead of it,
 * HELM_E_CANCELLED as above. */
HELM_MUST_CHECK int lane_wait(const struct lane *lane, uint32_t ticket, uint32_t spin_us, int timeout_ms,
                              const _Atomic bool *cancel, struct helm_err *err);
/* Reader: done with the last ticket of a step. */
void lane_release(struct lane *lane);

/* Polls a word until it is `value`: true, or false after timeout_ms (negative: never) or once *cancel (may be
 * NULL) is true. *last: the value seen last. */
bool lane_poll(const _Atomic uint32_t *word, uint32_t value, uint32_t spin_us, int timeout_ms,
               const _Atomic bool *cancel, uint32_t *last);
