/* One client frame, checked. See request.h. Called by serve.c and the fuzz target; owns nothing between
 * calls. */
#include "daemon/steps/request.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/printable.h"

static int HELM_PRINTF(4, 5)
    request_refuse(struct request_error *error, int rc, Helm__V1__ErrorCode code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    error->code = code;
    vsnprintf(error->text, sizeof error->text, fmt, ap);
    va_end(ap);
    return rc;
}
#define REFUSE_BOUND(...)                                                                                    \
    request_refuse(error, HELM_E_LIMIT, HELM__V1__ERROR_CODE__ERROR_MALFORMED, __VA_ARGS__)
#define REFUSE_FORMAT(...)                                                                                   \
    request_refuse(error, HELM_E_FORMAT, HELM__V1__ERROR_CODE__ERROR_MALFORMED, __VA_ARGS__)
#define REFUSE_TOO_LARGE(...)                                                                                \
    request_refuse(error, HELM_E_LIMIT, HELM__V1__ERROR_CODE__ERROR_TOO_LARGE, __VA_ARGS__)
#define REFUSE_CONTEXT(...)                                                                                  \
    request_refuse(error, HELM_E_LIMIT, HELM__V1__ERROR_CODE__ERROR_CONTEXT, __VA_ARGS__)

/* ---- frames ------------------------------------------------------------------------------------------- */

/* The most that each part takes: a list may be written packed or one tag an entry. */
enum frame_bytes {
    FRAME_TAG = 1,
    FRAME_VARINT = 5, /* of 32 bits; lengths too */
    FRAME_VARINT64 = 10,
    FRAME_FLOAT = 4,
    FRAME_TOKEN = FRAME_TAG + FRAME_VARINT,
    FRAME_LENGTH = FRAME_TAG + FRAME_VARINT,
    FRAME_BIAS = FRAME_LENGTH + FRAME_TOKEN + FRAME_TAG + FRAME_FLOAT,
    FRAME_SAMPLING = FRAME_LENGTH + 6 * (FRAME_TAG + FRAME_FLOAT) + 2 * (FRAME_TAG + FRAME_VARINT) +
                     FRAME_TAG + FRAME_VARINT64 + SAMPLING_BIAS_MAX * FRAME_BIAS,
    FRAME_GENERATE = 2 * FRAME_LENGTH /* its own and of a packed prompt */ + 5 * (FRAME_TAG + FRAME_VARINT) +
                     FRAME_LENGTH + REQUEST_STOP_MAX * FRAME_TOKEN + FRAME_LENGTH +
                     REQUEST_MARKS_MAX * FRAME_TOKEN + FRAME_LENGTH + FRAME_TAG + FRAME_VARINT +
                     REQUEST_PREDICTION_MAX * FRAME_TOKEN + FRAME_LENGTH +
                     SAMPLING_LOGPROBS_MAX * FRAME_TOKEN + FRAME_LENGTH + REQUEST_LABEL_MAX,
    FRAME_MASK =
        3 * FRAME_LENGTH + FRAME_TAG + FRAME_VARINT + REQUEST_MASK_MAX * FRAME_TOKEN, /* and its bits */
    FRAME_SHAPE = 2 * FRAME_LENGTH + REQUEST_WEIGHTS_MAX + FRAME_LENGTH + REQUEST_KV_DTYPE_MAX +
                  4 * (FRAME_TAG + FRAME_VARINT) + FRAME_TAG + FRAME_VARINT64,
    FRAME_PIECE =
        2 * FRAME_LENGTH + FRAME_TAG + FRAME_VARINT + 2 * (FRAME_TAG + FRAME_VARINT64) + REQUEST_PIECE,
    FRAME_REQUEST = FRAME_TAG + FRAME_VARINT + FRAME_TAG + FRAME_VARINT64 + FRAME_LENGTH + REQUEST_USER_MAX,
    FRAME_UNKNOWN = 16 << 10, /* fields of later versions */
    FRAME_WITHOUT_PROMPT =
        FRAME_SAMPLING + FRAME_GENERATE + FRAME_MASK + FRAME_SHAPE + FRAME_REQUEST + FRAME_UNKNOWN,
    FRAME_WITH_PIECE = FRAME_PIECE + FRAME_REQUEST + FRAME_UNKNOWN
};

size_t request_frame_max(const struct request_limits *limits)
{
    size_t bytes = FRAME_WITHOUT_PROMPT + (size_t)limits->context * FRAME_TOKEN + limits->vocab / 8 + 1;
    if (bytes < FRAME_WITH_PIECE) bytes = FRAME_WITH_PIECE;
    return bytes < REQUEST_FRAME_MAX ? bytes : REQUEST_FRAME_MAX;
}

/* The request's number in a frame that is not unpacked, so that its sender knows which of its requests was
 * refused: encoders write the number before the body. 0: it is not there. */
static uint64_t frame_request_id(const uint8_t *data, size_t size)
{
    enum { VERSION = 1 << 3, REQUEST_ID = 2 << 3 }; /* tags of varints */
    for (size_t at = 0; at < size && (data[at] == VERSION || data[at] == REQUEST_ID);) {
        uint8_t tag = data[at++];
        uint64_t value = 0;
        for (uint32_t shift = 0;; shift += 7) {
            if (at == size || shift >= 64) return 0;
            value |= (uint64_t)(data[at] & 127) << shift;
            if (data[at++] < 128) break;
        }
        if (tag == REQUEST_ID) return value;
    }
    return 0;
}

/* ---- memory for unpacking: small frames can claim millions of empty messages --------------------------- */

/* For a prompt with a tag for each token protobuf-c keeps an entry of 32 bytes a token, in blocks that
 * double, beside the token itself. */
#define UNPACK_TOKEN          80
#define UNPACK_WITHOUT_PROMPT (((size_t)1 << 20) + (size_t)REQUEST_PREDICTION_MAX * UNPACK_TOKEN)

static size_t unpack_max(const struct request_limits *limits)
{
    size_t bytes = UNPACK_WITHOUT_PROMPT + (size_t)limits->context * UNPACK_TOKEN + limits->vocab / 8;
    return bytes < REQUEST_UNPACK_MAX ? bytes : REQUEST_UNPACK_MAX;
}

struct unpack_budget {
    size_t left;
};

static void *budget_alloc(void *data, size_t size)
{
    struct unpack_budget *budget = data;
    /* 32: what the allocator itself adds to a small block, roughly. */
    size_t cost = size + 32;
    if (cost < size || cost > budget->left) return NULL;
    budget->left -= cost;
    return malloc(size ? size : 1);
}

static void budget_free(void *data, void *pointer)
{
    (void)data;
    free(pointer);
}

/* ---- fields ------------------------------------------------------------------------------------------- */

/* NaN fails every comparison, so it is refused as well. */
static bool in_range(float value, float low, float high)
{
    return value >= low && value <= high;
}

/* Labels are shown on terminals and put into other clients' answers: valid UTF-8, no control characters. */
static bool label_is_clean(const char *text)
{
    size_t left = strlen(text), bytes = 1;
    for (; left && bytes; left -= bytes, text += bytes) bytes = printable_character(text, left);
    return bytes;
}

/* How many logprobs beside a token's own, or of which tokens. */
static int parse_logprobs(const Helm__V1__Generate *in, const struct request_limits *limits,
                          struct sampling_params *s, struct request_error *error)
{
    if (in->logprobs > SAMPLING_LOGPROBS_MAX)
        return REFUSE_BOUND("logprobs is %u, at most %d are given", in->logprobs, SAMPLING_LOGPROBS_MAX);
    if (in->n_logprobs_of > SAMPLING_LOGPROBS_MAX)
        return REFUSE_TOO_LARGE("logprobs_of has %zu entries, at most %d are taken", in->n_logprobs_of,
                                SAMPLING_LOGPROBS_MAX);
    if (in->n_logprobs_of && in->logprobs)
        return REFUSE_BOUND("logprobs and logprobs_of are both there, at most one of them is taken");
    for (size_t i = 0; i < in->n_logprobs_of; i++) {
        if (in->logprobs_of[i] >= limits->vocab)
            return REFUSE_BOUND("logprobs_of[%zu] is %u, the vocabulary has %u", i, in->logprobs_of[i],
                                limits->vocab);
        s->of[i] = in->logprobs_of[i];
    }
    s->asked = in->n_logprobs_of != 0;
    s->logprobs = s->asked ? (uint32_t)in->n_logprobs_of : in->logprobs;
    return 0;
}

static int parse_sampling(const Helm__V1__Sampling *in, const struct request_limits *limits,
                          struct request_generate *out, struct request_error *error)
{
    struct sampling_params *s = &out->sampling;
    s->top_p = 1;
    s->repetition_penalty = 1;
    if (!in) return 0;
    if (!in_range(in->temperature, 0, 100))
        return REFUSE_BOUND("temperature is %g, must be in [0, 100]", (double)in->temperature);
    if (!in_range(in->top_p, 0, 1)) return REFUSE_BOUND("top_p is %g, must be in [0, 1]", (double)in->top_p);
    if (!in_range(in->min_p, 0, 1)) return REFUSE_BOUND("min_p is %g, must be in [0, 1]", (double)in->min_p);
    if (!in_range(in->repetition_penalty, 0, 100))
        return REFUSE_BOUND("repetition_penalty is %g, must be in [0, 100]", (double)in->repetition_penalty);
    if (!in_range(in->presence_penalty, -2, 2))
        return REFUSE_BOUND("presence_penalty is %g, must be in [-2, 2]", (double)in->presence_penalty);
    if (!in_range(in->frequency_penalty, -2, 2))
        return REFUSE_BOUND("frequency_penalty is %g, must be in [-2, 2]", (double)in->frequency_penalty);
    if (in->n_logit_bias > SAMPLING_BIAS_MAX)
        return REFUSE_TOO_LARGE("logit_bias has %zu entries, at most %d are taken", in->n_logit_bias,
                                SAMPLING_BIAS_MAX);
    s->temperature = in->temperature;
    s->top_k = in->top_k;
    if (in->top_p != 0) s->top_p = in->top_p;
    s->min_p = in->min_p;
    if (in->repetition_penalty != 0) s->repetition_penalty = in->repetition_penalty;
    s->presence_penalty = in->presence_penalty;
    s->frequency_penalty = in->frequency_penalty;
    for (size_t i = 0; i < in->n_logit_bias; i++) {
        const Helm__V1__LogitBias *bias = in->logit_bias[i];
        if (bias->token >= limits->vocab)
            return REFUSE_BOUND("logit_bias[%zu].token is %u, the vocabulary has %u", i, bias->token,
                                limits->vocab);
        if (!in_range(bias->bias, -100, 100))
            return REFUSE_BOUND("logit_bias[%zu].bias is %g, must be in [-100, 100]", i, (double)bias->bias);
        s->bias[i].token = bias->token;
        s->bias[i].bias = bias->bias;
    }
    s->bias_count = (uint32_t)in->n_logit_bias;
    out->has_seed = in->has_seed;
    s->seed = in->seed;
    return 0;
}

/* Reads the tokens that a mask allows, as bits. */
static int parse_mask(const Helm__V1__Mask *in, const struct request_limits *limits, uint32_t **out,
                      struct request_error *error)
{
    const uint32_t vocab = limits->vocab, words = request_mask_words(vocab);
    bool any = false;
    if (in->n_tokens && in->bits.len)
        return REFUSE_BOUND("mask has tokens and bits, at most one of them is taken");
    if (in->n_tokens > REQUEST_MASK_MAX)
        return REFUSE_TOO_LARGE("mask.tokens has %zu entries, at most %d are taken", in->n_tokens,
                                REQUEST_MASK_MAX);
    if (in->bits.len > ((size_t)vocab + 7) / 8)
        return REFUSE_TOO_LARGE("mask.bits has %zu bytes, the vocabulary of %u needs %zu", in->bits.len,
                                vocab, ((size_t)vocab + 7) / 8);
    uint32_t *mask = calloc(words, sizeof *mask);
    if (!mask)
        return request_refuse(error, HELM_E_NOMEM, HELM__V1__ERROR_CODE__ERROR_FAILED,
                              "no memory for the mask");
    for (size_t i = 0; i < in->n_tokens; i++) {
        if (in->tokens[i] >= vocab) {
            free(mask);
            return REFUSE_BOUND("mask.tokens[%zu] is %u, the vocabulary has %u", i, in->tokens[i], vocab);
        }
        mask[in->tokens[i] / 32] |= 1u << in->tokens[i] % 32;
    }
    for (size_t i = 0; i < in->bits.len; i++) mask[i / 4] |= (uint32_t)in->bits.data[i] << 8 * (i % 4);
    const bool beyond = vocab % 32 && mask[words - 1] >> vocab % 32;
    for (uint32_t w = 0; w < words; w++) any = any || mask[w];
    if (beyond || !any) {
        free(mask);
        return beyond ? REFUSE_BOUND("mask.bits has a bit for an id beyond the vocabulary of %u", vocab)
                      : REFUSE_BOUND("mask allows no token, at least one is needed");
    }
    *out = mask;
    return 0;
}

/* Tokens of a text, as a copy. */
static int copy_tokens(const char *name, const uint32_t *tokens, size_t count,
                       const struct request_limits *limits, uint32_t **out, struct request_error *error)
{
    for (size_t i = 0; i < count; i++)
        if (tokens[i] >= limits->vocab)
            return REFUSE_BOUND("%s[%zu] is token %u, the vocabulary has %u", name, i, tokens[i],
                                limits->vocab);
    *out = malloc(count * sizeof **out);
    if (!*out)
        return request_refuse(error, HELM_E_NOMEM, HELM__V1__ERROR_CODE__ERROR_FAILED, "no memory for the %s",
                              name);
    memcpy(*out, tokens, count * sizeof **out);
    return 0;
}

static int parse_prompt(const uint32_t *prompt, size_t count, const struct request_limits *limits,
                        struct request_generate *out, struct request_error *error)
{
    if (count == 0) return REFUSE_BOUND("prompt is empty, at least one token is needed");
    if (count > REQUEST_PROMPT_MAX)
        return REFUSE_TOO_LARGE("prompt has %zu tokens, at most %u fit a request", count, REQUEST_PROMPT_MAX);
    int rc = copy_tokens("prompt", prompt, count, limits, &out->prompt, error);
    if (!rc) out->prompt_count = (uint32_t)count;
    return rc;
}

static int parse_speculate(const Helm__V1__Generate *in, const struct request_limits *limits,
                           struct request_generate *out, struct request_error *error)
{
    static const enum request_speculate kinds[] = {
        [HELM__V1__SPECULATE__SPECULATE_DEFAULT] = REQUEST_SPECULATE_DEFAULT,
        [HELM__V1__SPECULATE__SPECULATE_OFF] = REQUEST_SPECULATE_OFF,
        [HELM__V1__SPECULATE__SPECULATE_NGRAM] = REQUEST_SPECULATE_NGRAM,
        [HELM__V1__SPECULATE__SPECULATE_AUTO] = REQUEST_SPECULATE_AUTO,
        [HELM__V1__SPECULATE__SPECULATE_MTP] = REQUEST_SPECULATE_MTP,
        [HELM__V1__SPECULATE__SPECULATE_DRAFT] = REQUEST_SPECULATE_DRAFT};
    if ((size_t)in->speculate >= sizeof kinds / sizeof *kinds)
        return REFUSE_BOUND("speculate is %d, must be 0 (default), 1 (off), 2 (ngram), 3 (auto), 4 (mtp) or "
                            "5 (draft)",
                            (int)in->speculate);
    out->speculate = kinds[in->speculate];
    if (out->speculate > REQUEST_SPECULATE_OFF && !limits->draft_tokens)
        return REFUSE_BOUND("speculate is %s, but helmd has no room for drafts: it needs --draft-tokens",
                            request_speculate_name(out->speculate));
    if (out->speculate == REQUEST_SPECULATE_MTP && !limits->draft_layers)
        return REFUSE_BOUND("speculate is mtp, but helmd has not read a layer that makes drafts: it needs "
                            "--speculate mtp");
    if (out->speculate == REQUEST_SPECULATE_DRAFT && !limits->draft_model)
        return REFUSE_BOUND("speculate is draft, but helmd has no draft model: it needs --draft-model");
    if (in->n_prediction > REQUEST_PREDICTION_MAX)
        return REFUSE_TOO_LARGE("prediction has %zu tokens, at most %d are taken", in->n_prediction,
                                REQUEST_PREDICTION_MAX);
    if (!in->n_prediction) return 0;
    int rc = copy_tokens("prediction", in->prediction, in->n_prediction, limits, &out->prediction, error);
    if (!rc) out->prediction_count = (uint32_t)in->n_prediction;
    return rc;
}

static int parse_room(const Helm__V1__Generate *in, const struct request_limits *limits,
                      struct request_generate *out, struct request_error *error)
{
    if (in->n_prompt > REQUEST_PROMPT_MAX) return 0; /* is refused by that bound */
    if (in->n_prompt >= limits->context)
        return REFUSE_CONTEXT("prompt has %zu tokens, the context of %u must hold it and one token more",
                              in->n_prompt, limits->context);
    uint32_t room = limits->context - (uint32_t)in->n_prompt;
    if (in->max_tokens > room)
        return REFUSE_CONTEXT("prompt of %zu and max_tokens of %u do not fit the context of %u tokens",
                              in->n_prompt, in->max_tokens, limits->context);
    out->max_tokens = in->max_tokens ? in->max_tokens : room;
    return 0;
}

static int parse_label(const char *in, struct request_generate *out, struct request_error *error)
{
    size_t label = in ? strlen(in) : 0;
    if (label > REQUEST_LABEL_MAX)
        return REFUSE_TOO_LARGE("label has %zu bytes, at most %d are taken", label, REQUEST_LABEL_MAX);
    if (label && !label_is_clean(in))
        return REFUSE_BOUND("label is not UTF-8 text without control characters");
    memcpy(out->label, in ? in : "", label);
    return 0;
}

static int parse_embed(const Helm__V1__Request *body, const struct request_limits *limits,
                       struct request *request, struct request_error *error)
{
    const Helm__V1__Embed *in = body->embed;
    struct request_generate *out = &request->generate;
    static const enum request_pooling poolings[] = {[HELM__V1__POOLING__POOLING_MEAN] = REQUEST_POOL_MEAN,
                                                    [HELM__V1__POOLING__POOLING_LAST] = REQUEST_POOL_LAST};
    if ((size_t)in->pooling >= sizeof poolings / sizeof *poolings)
        return REFUSE_BOUND("pooling is %d, must be 0 (mean) or 1 (last)", (int)in->pooling);
    if (in->n_prompt > limits->context)
        return REFUSE_CONTEXT("prompt has %zu tokens, the context holds %u", in->n_prompt, limits->context);
    out->pooling = poolings[in->pooling];
    out->deadline_ms = in->deadline_ms;
    out->max_tokens = 1;
    out->sampling.top_p = 1;
    out->sampling.repetition_penalty = 1;
    out->has_seed = true; /* nothing is drawn */
    int rc = parse_label(in->label, out, error);
    return rc ? rc : parse_prompt(in->prompt, in->n_prompt, limits, out, error);
}

/* Where the prompt may part from later ones. */
static int parse_marks(const Helm__V1__Generate *in, struct request_generate *out,
                       struct request_error *error)
{
    if (in->n_marks > REQUEST_MARKS_MAX)
        return REFUSE_TOO_LARGE("marks has %zu entries, at most %d are taken", in->n_marks,
                                REQUEST_MARKS_MAX);
    for (size_t i = 0; i < in->n_marks; i++) {
        if (in->marks[i] == 0 || in->marks[i] > in->n_prompt)
            return REFUSE_BOUND("marks[%zu] is %u, must be in [1, %zu], the tokens of the prompt", i,
                                in->marks[i], in->n_prompt);
        if (i && in->marks[i] <= in->marks[i - 1])
            return REFUSE_BOUND("marks[%zu] is %u, not above the mark in front of it, %u", i, in->marks[i],
                                in->marks[i - 1]);
        out->mark[i] = in->marks[i];
    }
    out->mark_count = (uint32_t)in->n_marks;
    return 0;
}

static int parse_generate(const Helm__V1__Request *body, const struct request_limits *limits,
                          struct request *request, struct request_error *error)
{
    const Helm__V1__Generate *in = body->generate;
    struct request_generate *out = &request->generate;
    if (in->n_stop_token_ids > REQUEST_STOP_MAX)
        return REFUSE_TOO_LARGE("stop_token_ids has %zu entries, at most %d are taken", in->n_stop_token_ids,
                                REQUEST_STOP_MAX);
    for (size_t i = 0; i < in->n_stop_token_ids; i++) {
        if (in->stop_token_ids[i] >= limits->vocab)
            return REFUSE_BOUND("stop_token_ids[%zu] is %u, the vocabulary has %u", i, in->stop_token_ids[i],
                                limits->vocab);
        out->stop[i] = in->stop_token_ids[i];
    }
    out->stop_count = (uint32_t)in->n_stop_token_ids;
    out->ignore_eos = in->ignore_eos;
    out->stays = in->stays;
    out->deadline_ms = in->deadline_ms;
    int rc = parse_label(in->label, out, error);
    if (!rc) rc = parse_logprobs(in, limits, &out->sampling, error);
    if (!rc) rc = parse_sampling(in->sampling, limits, out, error);
    if (!rc && in->mask && in->mask->index)
        rc = REFUSE_BOUND("mask.index is %u, a request begins with that of token 0", in->mask->index);
    if (!rc && in->mask && in->stays) rc = REFUSE_BOUND("a request with a mask cannot stay");
    if (!rc && in->mask) rc = parse_mask(in->mask, limits, &out->mask, error);
    if (!rc) rc = parse_room(in, limits, out, error);
    if (!rc) rc = parse_prompt(in->prompt, in->n_prompt, limits, out, error);
    if (!rc) rc = parse_speculate(in, limits, out, error);
    return rc ? rc : parse_marks(in, out, error);
}

/* ---- sessions ---- */

static int parse_session_tokens(const uint32_t *tokens, size_t count, const struct request_limits *limits,
                                struct request_session *out, struct request_error *error)
{
    if (count == 0) return REFUSE_BOUND("tokens is empty, at least one token is needed");
    if (count > limits->context)
        return REFUSE_CONTEXT("a session of %zu tokens does not fit the context of %u", count,
                              limits->context);
    out->token_count = (uint32_t)count;
    return copy_tokens("tokens", tokens, count, limits, &out->tokens, error);
}

static int parse_shape(const Helm__V1__SessionShape *in, struct request_shape *out,
                       struct request_error *error)
{
    if (!in) return REFUSE_BOUND("shape is missing, a session to restore has one");
    const size_t weights = strlen(in->weights), kv_dtype = strlen(in->kv_dtype);
    if (weights >= sizeof out->weights || kv_dtype >= sizeof out->kv_dtype)
        return REFUSE_TOO_LARGE(
            "shape.weights has %zu bytes, shape.kv_dtype %zu, at most %zu and %zu are taken", weights,
            kv_dtype, sizeof out->weights - 1, sizeof out->kv_dtype - 1);
    if (!label_is_clean(in->weights) || !label_is_clean(in->kv_dtype)) /* they are shown */
        return REFUSE_BOUND("shape has a name that is not UTF-8 text without control characters");
    *out = (struct request_shape){.model = in->model,
                                  .layers = in->layers,
                                  .kv_heads = in->kv_heads,
                                  .head_dim = in->head_dim,
                                  .page_tokens = in->page_tokens,
                                  .origin = in->origin};
    memcpy(out->weights, in->weights, weights);
    memcpy(out->kv_dtype, in->kv_dtype, kv_dtype);
    return 0;
}

static int parse_write(const Helm__V1__Request *body, const struct request_limits *limits,
                       struct request *request, struct request_error *error)
{
    const Helm__V1__SessionWrite *in = body->session_write;
    struct request_session *out = &request->session;
    (void)limits;
    if (in->data.len == 0 || in->data.len > REQUEST_PIECE)
        return REFUSE_TOO_LARGE("data has %zu bytes, a piece has 1 to %u", in->data.len, REQUEST_PIECE);
    out->id = in->id;
    out->page = in->page;
    out->offset = in->offset;
    out->bytes = (uint32_t)in->data.len;
    out->data = malloc(in->data.len);
    if (!out->data)
        return request_refuse(error, HELM_E_NOMEM, HELM__V1__ERROR_CODE__ERROR_FAILED,
                              "no memory for a piece of a session");
    memcpy(out->data, in->data.data, in->data.len);
    return 0;
}

static int parse_save(const Helm__V1__Request *in, const struct request_limits *limits,
                      struct request *request, struct request_error *error)
{
    return parse_session_tokens(in->session_save->tokens, in->session_save->n_tokens, limits,
                                &request->session, error);
}

static int parse_restore(const Helm__V1__Request *in, const struct request_limits *limits,
                         struct request *request, struct request_error *error)
{
    const Helm__V1__SessionRestore *restore = in->session_restore;
    int rc = parse_shape(restore->shape, &request->session.shape, error);
    return rc ? rc
              : parse_session_tokens(restore->tokens, restore->n_tokens, limits, &request->session, error);
}

static int parse_session_id(const Helm__V1__Request *in, const struct request_limits *limits,
                            struct request *request, struct request_error *error)
{
    (void)limits;
    (void)error;
    request->session.id = request->kind == REQUEST_SESSION_READ ? in->session_read->id : in->session_end->id;
    return 0;
}

/* ---- the others ---- */

static int parse_next_mask(const Helm__V1__Request *in, const struct request_limits *limits,
                           struct request *request, struct request_error *error)
{
    request->mask_index = in->mask->index;
    return parse_mask(in->mask, limits, &request->mask, error);
}

static int parse_resume(const Helm__V1__Request *body, const struct request_limits *limits,
                        struct request *request, struct request_error *error)
{
    const Helm__V1__Resume *in = body->resume;
    struct request_resume *out = &request->resume;
    if (in->n_tokens > limits->context)
        return REFUSE_CONTEXT("tokens has %zu entries, the context holds %u", in->n_tokens, limits->context);
    if (in->max_tokens == 0) return REFUSE_BOUND("max_tokens is 0, a request goes on for at least one");
    out->keep = in->keep;
    out->count = (uint32_t)in->n_tokens;
    out->max_tokens = in->max_tokens;
    return out->count ? copy_tokens("tokens", in->tokens, out->count, limits, &out->tokens, error) : 0;
}

static int parse_cancel(const Helm__V1__Request *in, const struct request_limits *limits,
                        struct request *request, struct request_error *error)
{
    (void)limits;
    request->cancel_id = in->cancel->id;
    request->cancel_request_id = in->cancel->request_id;
    if ((request->cancel_id == 0) == (request->cancel_request_id == 0))
        return REFUSE_BOUND("cancel needs exactly one of id and request_id");
    return 0;
}

/* The kind of request that each body becomes, and the function that reads it; NULL: nothing is in it. */
static const struct {
    enum request_kind kind;
    int (*parse)(const Helm__V1__Request *in, const struct request_limits *limits, struct request *request,
                 struct request_error *error);
} bodies[] = {
    [HELM__V1__REQUEST__BODY_GENERATE] = {REQUEST_GENERATE, parse_generate},
    [HELM__V1__REQUEST__BODY_RESUME] = {REQUEST_RESUME, parse_resume},
    [HELM__V1__REQUEST__BODY_CANCEL] = {REQUEST_CANCEL, parse_cancel},
    [HELM__V1__REQUEST__BODY_STATUS] = {REQUEST_STATUS, NULL},
    [HELM__V1__REQUEST__BODY_MODEL_INFO] = {REQUEST_MODEL_INFO, NULL},
    [HELM__V1__REQUEST__BODY_PLAN] = {REQUEST_PLAN, NULL},
    [HELM__V1__REQUEST__BODY_LIST] = {REQUEST_LIST, NULL},
    [HELM__V1__REQUEST__BODY_MASK] = {REQUEST_MASK, parse_next_mask},
    [HELM__V1__REQUEST__BODY_EMBED] = {REQUEST_EMBED, parse_embed},
    [HELM__V1__REQUEST__BODY_SESSION_SAVE] = {REQUEST_SESSION_SAVE, parse_save},
    [HELM__V1__REQUEST__BODY_SESSION_RESTORE] = {REQUEST_SESSION_RESTORE, parse_restore},
    [HELM__V1__REQUEST__BODY_SESSION_READ] = {REQUEST_SESSION_READ, parse_session_id},
    [HELM__V1__REQUEST__BODY_SESSION_WRITE] = {REQUEST_SESSION_WRITE, parse_write},
    [HELM__V1__REQUEST__BODY_SESSION_END] = {REQUEST_SESSION_END, parse_session_id},
};

static int parse_body(const Helm__V1__Request *in, const struct request_limits *limits,
                      struct request *request, struct request_error *error)
{
    const bool known = (size_t)in->body_case < sizeof bodies / sizeof *bodies;
    request->kind = known ? bodies[in->body_case].kind : REQUEST_NONE;
    if (request->kind == REQUEST_NONE)
        return REFUSE_FORMAT("the request has no body that version %d knows", REQUEST_VERSION);
    return bodies[in->body_case].parse ? bodies[in->body_case].parse(in, limits, request, error) : 0;
}

static int parse_user(const char *in, const struct request_limits *limits, struct request *request,
                      struct request_error *error)
{
    const size_t bytes = strlen(in);
    if (bytes == 0) return 0;
    if (!limits->names_users)
        return request_refuse(error, HELM_E_PERMISSION, HELM__V1__ERROR_CODE__ERROR_DENIED,
                              "user is set, which only a gateway may do: root, helmd's own user, a member of "
                              "gateway-group or admin-group, a CURVE key marked gateway or admin");
    if (bytes > REQUEST_USER_MAX)
        return REFUSE_TOO_LARGE("user has %zu bytes, at most %d are taken", bytes, REQUEST_USER_MAX);
    if (!label_is_clean(in)) return REFUSE_BOUND("user is not UTF-8 text without control characters");
    memcpy(request->user, in, bytes);
    return 0;
}

int request_parse(const uint8_t *data, size_t size, const struct request_limits *limits,
                  struct request *request, struct request_error *error)
{
    memset(request, 0, sizeof *request);
    memset(error, 0, sizeof *error);
    if (size > request_frame_max(limits)) {
        request->request_id = frame_request_id(data, size);
        return REFUSE_TOO_LARGE("frame has %zu bytes, at most %zu are taken with a context of %u tokens",
                                size, request_frame_max(limits), limits->context);
    }
    struct unpack_budget budget = {.left = unpack_max(limits)};
    ProtobufCAllocator allocator = {.alloc = budget_alloc, .free = budget_free, .allocator_data = &budget};
    Helm__V1__Request *in = helm__v1__request__unpack(&allocator, size, data);
    if (!in) return REFUSE_FORMAT("frame of %zu bytes is not a Request", size);
    request->request_id = in->request_id;
    int rc;
    if (in->version != REQUEST_VERSION)
        rc = REFUSE_FORMAT("version is %u, this daemon speaks %d", in->version, REQUEST_VERSION);
    else if (in->request_id == 0)
        rc = REFUSE_BOUND("request_id is 0, must be non-zero");
    else
        rc = parse_user(in->user, limits, request, error);
    if (!rc) rc = parse_body(in, limits, request, error);
    helm__v1__request__free_unpacked(in, &allocator);
    return rc;
}

void request_free(struct request *request)
{
    free(request->generate.prompt);
    free(request->generate.prediction);
    free(request->generate.mask);
    free(request->mask);
    free(request->session.tokens);
    free(request->session.data);
    free(request->resume.tokens);
    memset(request, 0, sizeof *request);
}
