/* From logits to a token: exact, reproducible, stateless.
 *
 * Called by the worker that computes the last stage. Pure functions over caller-owned memory. The steps in
 * their order, where x is a token's logit and "falling order" is by falling x, lowest id first on a tie:
 *
 * 1. Non-finite logits: a token whose logit is NaN, +inf or -inf is out: never drawn, never listed. The next
 *    steps' results for finite logits are cut to the finite range of float. A token that the mask leaves out
 *    is out, too, but listed.
 * 2. Repetition penalty: each distinct token of prompt and output, once: x > 0 ? x / penalty : x * penalty.
 * 3. Presence and frequency penalty: each distinct token of the output: x -= presence + frequency * (times it
 *    occurs in the output).
 * 4. Bias: x += bias for each entry of the list; entries for the same token add up.
 * 5. Temperature 0: the token with the largest x, lowest id on a tie; nothing below happens. Temperature T:
 *    weight = floor(2^40 * exp((x - largest x) / T)), whole numbers, so that sums do not depend on their
 *    order. exp is our own, within 2 ulp, the same bits on every x86-64. A token less than 2^-40 times as
 *    likely as the best weighs 0.
 * 6. Top-k: the first k in falling order stay.
 * 7. Top-p: of those, the shortest prefix in falling order that weighs at least p times their sum.
 * 8. Min-p: of those, the ones with weight >= floor(2^40 * min_p), min_p times the best token's.
 * 9. Draw: a 53-bit number u from Philox4x32-10 (key: seed; counter: index of the token in the sequence)
 *    picks, in order of ids, the first token whose running sum exceeds floor(u * sum / 2^53).
 *
 * So a request replayed after a worker's death draws the same tokens. Ids at or above vocab in the history
 * or in the bias list are ignored. Reported logprobs are those of the model, before any of this:
 * log-softmax over the finite logits. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SAMPLING_BIAS_MAX     300
#define SAMPLING_LOGPROBS_MAX 20

struct sampling_params {
    float temperature;        /* 0 = greedy; at most 100 */
    uint32_t top_k;           /* 0 = off */
    float top_p;              /* 1 = off; in (0, 1] */
    float min_p;              /* 0 = off; in [0, 1] */
    float repetition_penalty; /* 1 = off; in (0, 100] */
    float presence_penalty;   /* 0 = off; in [-2, 2] */
    float frequency_penalty;
    uint32_t
        logprobs; /* how many alternatives to report, 0..SAMPLING_LOGPROBS_MAX; with 0 none is computed */
    uint64_t seed;
    uint32_t bias_count;
    struct {
        uint32_t token;
        float bias; /* in [-100, 100] */
    } bias[SAMPLING_BIAS_MAX];
    uint32_t asked;                     /* 1: the logprobs are of these tokens, not of the likeliest: */
    uint32_t of[SAMPLING_LOGPROBS_MAX]; /* each below vocab */
};

struct sampling_result {
    uint32_t token;
    float logprob;      /* of `token`; 0 when logprobs == 0 */
    uint32_t top_count; /* params.logprobs, or how many finite logits there are if fewer */
    struct {
        uint32_t token;
        float logprob;
    } top[SAMPLING_LOGPROBS_MAX]; /* falling, lowest id first on a tie; or those asked of, in their order:
                                   * -inf without a finite logit */
};

/* Bytes of scratch that a draw needs for this vocabulary; 64-byte aligned. Its content means nothing. */
size_t sampling_scratch_bytes(uint32_t vocab);

/* A sequence's tokens so far: history[0..count), of which the first `prompt` are the prompt; and which may
 * come next. */
struct sampling_tokens {
    const uint32_t *history;
    uint32_t count, prompt;
    const uint32_t *mask; /* bits, id i is bit i % 32 of word i / 32; NULL: all tokens */
};

/* Draws one token, whose index is tokens->count. logits[vocab] are as before on return; meanwhile those that
 * penalties and bias change are changed. If no logit (of the mask's tokens) is finite returns -1 (the caller
 * reports a failed step), else 0. */
int sampling_draw(const struct sampling_params *params, float *logits, uint32_t vocab,
                  const struct sampling_tokens *tokens, void *scratch, struct sampling_result *result);

/* ---- the same draw from less than a row ----
 *
 * For logits that are far away, on a device: sampling_ask says what of a row is enough, the caller fetches
 * that, and sampling_draw_few draws the token that sampling_draw would, with the same logprobs, bit for bit:
 *
 * - Top-k, min-p: the candidates alone, the first ones in falling order. All other tokens come after them.
 * - Penalties and bias: the logits of the tokens they change too, which are few; no other token moves.
 *   Candidates that fall after the last of them count no more, so more are asked for.
 * - Top-p without top-k: the sum of all weights too. Being whole numbers they give the same sum in any order.
 * - Logprobs: the sum of the weights at temperature 1 too.
 *
 * Whether the candidates were enough shows only in them (a nucleus may be wide, a penalty may hit too many):
 * then sampling_draw_few says so, and the row is needed. It is needed from the start for a temperature
 * without any of top-k, top-p and min-p; for top-p without top-k together with penalties or bias; for top-k
 * above SAMPLING_FEW_MAX; where more than SAMPLING_CHANGES_MAX tokens change; with a mask; and with logprobs
 * of asked tokens. */
#define SAMPLING_FEW_MAX     256
#define SAMPLING_CHANGES_MAX 4096

/* Tokens that penalties and bias change. */
struct sampling_changes {
    uint32_t *token, *times; /* caller's memory; `times` is between these functions */
    uint32_t count;
};
enum sampling_need {
    SAMPLING_NEEDS_BEST, /* the largest logit's token, lowest id on a tie, is the result */
    SAMPLING_NEEDS_FEW,
    SAMPLING_NEEDS_ROW
};
struct sampling_ask {
    enum sampling_need need;
    uint32_t candidates; /* how many at least */
    bool sum, model_sum; /* of all weights, with inv_temp and top; of those at temperature 1 */
    float inv_temp;      /* of `sum` */
};
struct sampling_logit {
    uint32_t token;
    float logit;
};
struct sampling_few {
    const struct sampling_logit
        *candidate; /* the first `count` finite logits in falling order, in any order */
    uint32_t count;
    bool all;             /* there are no other finite ones */
    const float *changed; /* logits of changes->token */
    uint64_t sum, model_sum;
};

/* Arguments as for sampling_draw. Lists in `changes` (room for SAMPLING_CHANGES_MAX) whose logits are needed.
 */
void sampling_ask(const struct sampling_params *params, uint32_t vocab, const struct sampling_tokens *tokens,
                  void *scratch, struct sampling_changes *changes, struct sampling_ask *ask);
/* index: of the new token. 0: drawn; -1: no logit is finite; 1: that was not enough, use sampling_draw. */
int sampling_draw_few(const struct sampling_params *params, const struct sampling_few *few, uint32_t vocab,
                      const struct sampling_changes *changes, uint32_t index, void *scratch,
                      struct sampling_result *result);
