/* A request's life. See sequence.h. Called by batcher.c and serve.c; owns the token array. */
#include "daemon/steps/sequence.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int sequence_create(struct request_generate *request, struct sequence **out, struct helm_err *err)
{
    *out = NULL;
    struct sequence *seq = calloc(1, sizeof *seq);
    if (!seq) return helm_fail(err, HELM_E_NOMEM, "no memory for a request");
    seq->slot = SEQUENCE_NO_SLOT;
    seq->scope = seq->restored_scope = SEQUENCE_NO_SCOPE;
    seq->tokens = request->prompt;
    seq->token_count = seq->token_capacity = seq->prompt_count = request->prompt_count;
    request->prompt = NULL;
    seq->mask = request->mask;
    seq->mask_there = seq->mask != NULL;
    request->mask = NULL;
    request->prompt_count = 0;
    seq->prediction = request->prediction;
    seq->prediction_count = request->prediction_count;
    request->prediction = NULL;
    request->prediction_count = 0;
    seq->max_tokens = request->max_tokens;
    seq->sampling = request->sampling;
    memcpy(seq->stop, request->stop, request->stop_count * sizeof *seq->stop);
    seq->stop_count = request->stop_count;
    memcpy(seq->mark, request->mark, request->mark_count * sizeof *seq->mark);
    seq->mark_count = request->mark_count;
    seq->ignore_eos = request->ignore_eos;
    seq->stays = seq->keeps = request->stays;
    seq->pooling = request->pooling;
    memcpy(seq->label, request->label, sizeof seq->label);
    *out = seq;
    return 0;
}

void sequence_free(struct sequence *seq)
{
    if (!seq) return;
    free(seq->tokens);
    free(seq->mask);
    free(seq->prediction);
    free(seq->embedding);
    free(seq);
}

int sequence_append(struct sequence *seq, uint32_t token, const int32_t *eos, uint32_t eos_count,
                    uint64_t now_us, struct helm_err *err)
{
    if (seq->token_count == seq->token_capacity) {
        /* Grown by need, not by max_tokens: a thousand queued requests for whole contexts cost only their
         * prompts. */
        uint64_t limit = (uint64_t)seq->prompt_count + seq->max_tokens;
        uint64_t capacity = (uint64_t)seq->token_capacity * 2 + 64;
        if (capacity > limit) capacity = limit;
        uint32_t *grown = capacity > seq->token_count ? realloc(seq->tokens, capacity * sizeof *grown) : NULL;
        if (!grown) return helm_fail(err, HELM_E_NOMEM, "no memory for %u tokens", seq->token_count + 1);
        seq->tokens = grown;
        seq->token_capacity = (uint32_t)capacity;
    }
    seq->tokens[seq->token_count++] = token;
    if (seq->first_us == 0) seq->first_us = now_us;
    seq->last_us = now_us;
    for (uint32_t i = 0; i < eos_count && !seq->ignore_eos; i++)
        if (eos[i] >= 0 && (uint32_t)eos[i] == token)
            sequence_finish(seq, HELM__V1__FINISH_REASON__FINISH_EOS, "");
    for (uint32_t i = 0; i < seq->stop_count; i++)
        if (seq->stop[i] == token) sequence_finish(seq, HELM__V1__FINISH_REASON__FINISH_STOP, "");
    if (sequence_output_count(seq) >= seq->max_tokens && !seq->stays)
        sequence_finish(seq, HELM__V1__FINISH_REASON__FINISH_LENGTH, "");
    return 0;
}

int sequence_resume(struct sequence *seq, const struct request_resume *resume, struct helm_err *err)
{
    const uint32_t stands = seq->prompt_count + resume->keep, count = stands + resume->count;
    if (count > seq->token_capacity) {
        uint32_t *grown = realloc(seq->tokens, count * sizeof *grown);
        if (!grown) return helm_fail(err, HELM_E_NOMEM, "no memory for %u tokens", count);
        seq->tokens = grown;
        seq->token_capacity = count;
    }
    if (resume->count) memcpy(seq->tokens + stands, resume->tokens, resume->count * sizeof *seq->tokens);
    seq->token_count = count;
    seq->keeps = true;
    seq->max_tokens = resume->keep + resume->count + resume->max_tokens;
    return 0;
}

int sequence_embed(struct sequence *seq, const double *pooled, uint32_t hidden, struct helm_err *err)
{
    const double count = seq->pooling == REQUEST_POOL_MEAN ? seq->prompt_count : 1;
    float *values = malloc(hidden * sizeof *values);
    if (!values) return helm_fail(err, HELM_E_NOMEM, "no memory for an embedding of %u numbers", hidden);
    for (uint32_t i = 0; i < hidden; i++) {
        values[i] = (float)(pooled[i] / count);
        if (isfinite(values[i])) continue;
        free(values);
        return helm_fail(err, HELM_E_FORMAT,
                         "the model's hidden state is not finite (weights or activations overflow)");
    }
    seq->embedding = values;
    sequence_finish(seq, HELM__V1__FINISH_REASON__FINISH_EMBEDDED, "");
    return 0;
}

void sequence_finish(struct sequence *seq, Helm__V1__FinishReason reason, const char *detail)
{
    if (seq->finish != HELM__V1__FINISH_REASON__FINISH_UNSPECIFIED) return;
    seq->finish = reason;
    snprintf(seq->detail, sizeof seq->detail, "%s", detail);
}

static double us_between(uint64_t from, uint64_t to)
{
    return to > from ? (double)(to - from) : 0;
}

void sequence_timings(const struct sequence *seq, uint64_t now_us, Helm__V1__Timings *timings)
{
    helm__v1__timings__init(timings);
    uint32_t output = sequence_output_count(seq);
    timings->total_ms = us_between(seq->arrived_us, now_us) / 1e3;
    timings->queue_ms = us_between(seq->arrived_us, seq->started_us ? seq->started_us : now_us) / 1e3;
    if (output == 0) return;
    timings->ttft_ms = us_between(seq->arrived_us, seq->first_us) / 1e3;
    double prefill_us = us_between(seq->started_us, seq->first_us);
    if (prefill_us > 0) timings->prefill_tok_s = (seq->prompt_count - seq->found) * 1e6 / prefill_us;
    double decode_us = us_between(seq->first_us, seq->last_us);
    if (output > 1 && decode_us > 0) {
        timings->tpot_ms = decode_us / 1e3 / (output - 1);
        timings->decode_tok_s = (output - 1) * 1e6 / decode_us;
    }
}

const char *sequence_state_name(const struct sequence *seq)
{
    if (seq->slot == SEQUENCE_NO_SLOT) return "queued";
    const uint32_t computed = seq->cached > seq->redo ? seq->cached : seq->redo;
    return seq->token_count > computed + 1 || sequence_output_count(seq) == 0 ? "prefill" : "decode";
}
