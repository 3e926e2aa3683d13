/* Unit tests of daemon/steps/request.c: every field at its bound and past it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/steps/request.h"

static struct request_limits limits = {.vocab = 100, .context = 50};

struct example {
    Helm__V1__Request request;
    Helm__V1__Generate generate;
    Helm__V1__Sampling sampling;
    uint32_t prompt[64], stop[80];
    Helm__V1__LogitBias bias[400], *biases[400];
};

static void example_init(struct example *e)
{
    memset(e, 0, sizeof *e);
    helm__v1__request__init(&e->request);
    helm__v1__generate__init(&e->generate);
    helm__v1__sampling__init(&e->sampling);
    for (size_t i = 0; i < 400; i++) {
        helm__v1__logit_bias__init(&e->bias[i]);
        e->biases[i] = &e->bias[i];
    }
    e->request.version = 1;
    e->request.request_id = 5;
    e->request.body_case = HELM__V1__REQUEST__BODY_GENERATE;
    e->request.generate = &e->generate;
    e->generate.sampling = &e->sampling;
    e->generate.prompt = e->prompt;
    e->generate.n_prompt = 10;
    e->generate.max_tokens = 4;
    e->generate.stop_token_ids = e->stop;
    e->sampling.logit_bias = e->biases;
}

static int parse(const struct example *e, struct request *request, struct request_error *error)
{
    size_t size = helm__v1__request__get_packed_size(&e->request);
    uint8_t *data = malloc(size);
    helm__v1__request__pack(&e->request, data);
    int rc = request_parse(data, size, &limits, request, error);
    free(data);
    return rc;
}

static void takes(const struct example *e)
{
    struct request request;
    struct request_error error;
    int rc = parse(e, &request, &error);
    if (rc) fail_msg("refused: %s", error.text);
    request_free(&request);
}

static void refuses(const struct example *e, Helm__V1__ErrorCode code, const char *word)
{
    struct request request;
    struct request_error error;
    assert_int_not_equal(parse(e, &request, &error), 0);
    assert_int_equal(error.code, code);
    if (!strstr(error.text, word)) fail_msg("'%s' does not name '%s'", error.text, word);
    assert_int_equal(request.request_id, e->request.request_id);
    request_free(&request);
}

static void defaults_are_filled_in(void **state)
{
    (void)state;
    struct example e;
    struct request request;
    struct request_error error;
    example_init(&e);
    e.generate.max_tokens = 0;
    e.generate.label = (char *)"caf\xc3\xa9";
    assert_int_equal(parse(&e, &request, &error), 0);
    const struct request_generate *g = &request.generate;
    assert_int_equal(request.kind, REQUEST_GENERATE);
    assert_int_equal(g->max_tokens, 40);
    assert_true(g->sampling.top_p == 1 && g->sampling.repetition_penalty == 1 &&
                g->sampling.temperature == 0);
    assert_false(g->has_seed);
    assert_string_equal(g->label, "caf\xc3\xa9");
    request_free(&request);
    e.generate.sampling = NULL;
    takes(&e);
}

static void every_float_has_its_bounds(void **state)
{
    (void)state;
    struct example e;
    example_init(&e);
    const struct {
        float *field, low, high;
        const char *name;
    } fields[] = {{&e.sampling.temperature, 0, 100, "temperature"},
                  {&e.sampling.top_p, 0, 1, "top_p"},
                  {&e.sampling.min_p, 0, 1, "min_p"},
                  {&e.sampling.repetition_penalty, 0, 100, "repetition_penalty"},
                  {&e.sampling.presence_penalty, -2, 2, "presence_penalty"},
                  {&e.sampling.frequency_penalty, -2, 2, "frequency_penalty"}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const float bad[] = {NAN, INFINITY, -INFINITY, nextafterf(fields[i].low, -1000),
                             nextafterf(fields[i].high, 1000)};
        *fields[i].field = fields[i].low;
        takes(&e);
        *fields[i].field = fields[i].high;
        takes(&e);
        for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
            *fields[i].field = bad[k];
            refuses(&e, HELM__V1__ERROR_CODE__ERROR_MALFORMED, fields[i].name);
        }
        *fields[i].field = 0;
    }
}

static void counts_and_ids_have_their_bounds(void **state)
{
    (void)state;
    struct example e;
    example_init(&e);
    e.generate.logprobs = 20;
    e.generate.n_stop_token_ids = 64;
    e.sampling.n_logit_bias = 300;
    e.prompt[9] = e.stop[63] = e.bias[299].token = 99;
    e.bias[299].bias = -100;
    takes(&e);
    e.generate.logprobs = 21;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_MALFORMED, "logprobs");
    uint32_t asked[21] = {0};
    e.generate.logprobs = 1;
    e.generate.logprobs_of = asked;
    e.generate.n_logprobs_of = 2;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_MALFORMED, "logprobs_of are both there");
    e.generate.logprobs = 0;
    e.generate.n_logprobs_of = 20;
    asked[19] = 99;
    takes(&e);
    asked[19] = 100;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_MALFORMED, "logprobs_of[19] is 100");
    e.generate.n_logprobs_of = 21;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_TOO_LARGE, "logprobs_of");
    e.generate.n_logprobs_of = 0;
    e.generate.n_stop_token_ids = 65;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_TOO_LARGE, "stop_token_ids");
    e.generate.n_stop_token_ids = 64;
    e.stop[63] = 100;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_MALFORMED, "stop_token_ids[63]");
    e.generate.n_stop_token_ids = 0;
    e.sampling.n_logit_bias = 301;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_TOO_LARGE, "logit_bias");
    e.sampling.n_logit_bias = 300;
    e.bias[299].token = 100;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_MALFORMED, "logit_bias[299]");
    e.bias[299].token = 1;
    e.bias[299].bias = -100.5f;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_MALFORMED, "logit_bias[299]");
    e.sampling.n_logit_bias = 0;
    e.prompt[9] = 100;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_MALFORMED, "prompt[9]");
}

static void marks_rise_within_the_prompt(void **state)
{
    (void)state;
    struct example e;
    struct request request;
    struct request_error error;
    uint32_t marks[65];
    example_init(&e);
    for (uint32_t i = 0; i < 65; i++) marks[i] = i + 1;
    e.generate.marks = marks;
    e.generate.n_marks = 10; /* the last is the prompt's end */
    takes(&e);
    assert_int_equal(parse(&e, &request, &error), 0);
    assert_int_equal(request.generate.mark_count, 10);
    assert_int_equal(request.generate.mark[9], 10);
    request_free(&request);
    e.generate.n_marks = 11;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_MALFORMED, "marks[10] is 11, must be in [1, 10]");
    e.generate.n_marks = 65;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_TOO_LARGE, "marks has 65 entries, at most 64 are taken");
    e.generate.n_marks = 2;
    marks[0] = 0;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_MALFORMED, "marks[0] is 0, must be in [1, 10]");
    marks[0] = marks[1] = 4;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_MALFORMED, "marks[1] is 4, not above the mark in front of it, 4");
    marks[1] = UINT32_MAX;
    e.generate.n_marks = 3;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_MALFORMED, "marks[1] is 4294967295");
}

static void the_context_holds_prompt_and_output(void **state)
{
    (void)state;
    struct example e;
    example_init(&e);
    e.generate.max_tokens = 40;
    takes(&e);
    e.generate.max_tokens = 41;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_CONTEXT, "max_tokens");
    e.generate.max_tokens = UINT32_MAX;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_CONTEXT, "max_tokens");
    e.generate.max_tokens = 0;
    e.generate.n_prompt = 49;
    takes(&e);
    e.generate.n_prompt = 50;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_CONTEXT, "prompt");
    e.generate.n_prompt = 0;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_MALFORMED, "prompt");
}

static void labels_are_clean_text(void **state)
{
    (void)state;
    struct example e;
    example_init(&e);
    char label[66];
    memset(label, 'x', sizeof label);
    label[64] = 0;
    e.generate.label = label;
    takes(&e);
    label[64] = 'x';
    label[65] = 0;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_TOO_LARGE, "label");
    static const char *const bad[] = {"a\nb",     "\x7f",         "\xff",
                                      "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                                      "\xe2\x82", "\xc2\x9b"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        e.generate.label = (char *)bad[i];
        refuses(&e, HELM__V1__ERROR_CODE__ERROR_MALFORMED, "label");
    }
    e.generate.label = (char *)"\xf0\x9f\x98\x80 \xe2\x9c\x93";
    takes(&e);
}

static void a_gateway_names_users(void **state)
{
    (void)state;
    struct example e;
    struct request request;
    struct request_error error;
    char user[66];
    example_init(&e);
    assert_int_equal(parse(&e, &request, &error), 0);
    assert_string_equal(request.user, "");
    request_free(&request);
    e.request.user = (char *)"anna";
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_DENIED, "only a gateway");
    limits.names_users = true;
    assert_int_equal(parse(&e, &request, &error), 0);
    assert_string_equal(request.user, "anna");
    request_free(&request);
    memset(user, 'x', sizeof user);
    user[64] = 0;
    e.request.user = user;
    takes(&e);
    user[64] = 'x';
    user[65] = 0;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_TOO_LARGE, "user");
    e.request.user = (char *)"a\x1b[2J";
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_MALFORMED, "user");
    limits.names_users = false;
}

static void envelopes_are_checked(void **state)
{
    (void)state;
    struct example e;
    struct request request;
    struct request_error error;
    example_init(&e);
    e.request.version = 2;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_MALFORMED, "version");
    e.request.version = 1;
    e.request.request_id = 0;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_MALFORMED, "request_id");
    e.request.request_id = 3;
    e.request.body_case = HELM__V1__REQUEST__BODY__NOT_SET;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_MALFORMED, "body");
    assert_int_equal(request_parse((const uint8_t *)"\xff\xff", 2, &limits, &request, &error), HELM_E_FORMAT);
}

/* A Request with all that it may hold. Its prompt and stop ids are written packed, as by protobuf-c, or with
 * a tag before each, which other encoders may do; numbers take the bytes that they need. */
static size_t largest_frame(uint32_t context, uint32_t id, bool packed, uint8_t **out)
{
    uint8_t *body = malloc((size_t)context * 6 + 65536), *frame = malloc((size_t)context * 6 + 65536 + 32);
    size_t n = 0, head = 0;
    struct example e;
    example_init(&e);
    e.request.request_id = UINT64_MAX;
    char label[65];
    memset(label, 'x', 64);
    label[64] = 0;
    e.generate.label = e.request.user = label;
    e.generate.max_tokens = 1;
    e.generate.logprobs = 20;
    e.generate.ignore_eos = true;
    e.generate.deadline_ms = e.sampling.top_k = UINT32_MAX;
    e.sampling.temperature = e.sampling.top_p = e.sampling.min_p = 0.5F;
    e.sampling.repetition_penalty = e.sampling.presence_penalty = e.sampling.frequency_penalty = 0.5F;
    e.sampling.has_seed = true;
    e.sampling.seed = UINT64_MAX;
    e.sampling.n_logit_bias = 300;
    for (uint32_t i = 0; i < 300; i++) e.bias[i].token = id, e.bias[i].bias = 1;
    for (uint32_t i = 0; i < 64; i++) e.stop[i] = id;
    e.generate.n_stop_token_ids = packed ? 64 : 0;
    uint32_t marks[REQUEST_MARKS_MAX];
    for (uint32_t i = 0; i < REQUEST_MARKS_MAX; i++) marks[i] = context - REQUEST_MARKS_MAX + i;
    e.generate.marks = marks;
    e.generate.n_marks = context > 2 * REQUEST_MARKS_MAX ? REQUEST_MARKS_MAX : 0;
    Helm__V1__Mask mask = HELM__V1__MASK__INIT;
    uint32_t allowed[REQUEST_MASK_MAX];
    for (uint32_t i = 0; i < REQUEST_MASK_MAX; i++) allowed[i] = id;
    mask.n_tokens = REQUEST_MASK_MAX;
    mask.tokens = allowed;
    e.generate.mask = &mask;
    e.generate.n_prompt = 0;
    uint32_t *prompt = malloc(context * sizeof *prompt);
    for (uint32_t i = 0; i < context; i++) prompt[i] = id;
    if (packed) {
        e.generate.n_prompt = context - 1;
        e.generate.prompt = prompt;
    }
    n = helm__v1__generate__pack(&e.generate, body);
    uint8_t token[5];
    for (int i = 0; i < 5; i++) token[i] = (uint8_t)((id >> 7 * i & 127) | (i < 4) << 7);
    for (uint32_t i = 0; !packed && i < context - 1 + 64; i++) {
        body[n++] = i < context - 1 ? 0x08 : 0x20; /* prompt, stop_token_ids */
        memcpy(body + n, token, sizeof token);
        n += sizeof token;
    }
    e.request.body_case = HELM__V1__REQUEST__BODY__NOT_SET;
    head = helm__v1__request__pack(&e.request, frame);
    frame[head++] = 0x1a; /* generate */
    size_t length = n;
    for (; length >= 128; length >>= 7) frame[head++] = (uint8_t)((length & 127) | 128);
    frame[head++] = (uint8_t)length;
    memcpy(frame + head, body, n);
    free(body);
    free(prompt);
    *out = frame;
    return head + n;
}

static void the_largest_request_of_any_context_is_taken(void **state)
{
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    static const uint32_t contexts[] = {2, 131072};
#else
    static const uint32_t contexts[] = {2, 50, 4096, 131072, 1000000};
#endif
    /* The largest of the ids that take five bytes in a frame, once, whose mask has half a GiB; else the
     * least. */
    const uint32_t most = UINT32_MAX - 1, least = 1u << 28;
    for (size_t i = 0; i < sizeof contexts / sizeof *contexts; i++) {
        for (int packed = 0; packed < 2; packed++) {
            const uint32_t id = i == 0 && packed ? most : least;
            const struct request_limits large = {.vocab = id + 1,
                                                 .context = contexts[i],
                                                 .names_users = true};
            struct request request;
            struct request_error error;
            uint8_t *frame;
            size_t size = largest_frame(contexts[i], id, packed, &frame);
            const struct request_limits small = {.vocab = 0, .context = contexts[i]};
            assert_true(size <= request_frame_max(&small));
            if (request_parse(frame, size, &large, &request, &error)) fail_msg("%s", error.text);
            assert_int_equal(request.generate.prompt_count, contexts[i] - 1);
            assert_int_equal(request.generate.stop_count, 64);
            assert_int_equal(request.generate.sampling.bias_count, 300);
            request_free(&request);
            free(frame);
        }
    }
    assert_true(request_frame_max(&(struct request_limits){.context = 1u << 21}) <= REQUEST_FRAME_MAX);
    assert_true(request_frame_max(&(struct request_limits){.context = UINT32_MAX}) <= REQUEST_FRAME_MAX);
    /* little beyond what the largest takes, which is a session's piece here */
    assert_true(request_frame_max(&limits) < REQUEST_PIECE + 32768);
}

/* It is refused before it is unpacked, so whether the rest is a Request does not matter; its sender is told
 * which of its requests it was. */
static void a_frame_too_large_is_refused_unread(void **state)
{
    (void)state;
    struct request request;
    struct request_error error;
    size_t most = request_frame_max(&limits);
    uint8_t *frame = malloc(most + 1);
    memset(frame, 0xff, most + 1);
    memcpy(frame, "\x08\x01\x10\xac\x02\x1a", 6); /* version 1, request_id 300, generate */
    assert_int_equal(request_parse(frame, most + 1, &limits, &request, &error), HELM_E_LIMIT);
    assert_int_equal(error.code, HELM__V1__ERROR_CODE__ERROR_TOO_LARGE);
    assert_int_equal(request.request_id, 300);
    char bound[64];
    snprintf(bound, sizeof bound, "at most %zu are taken with a context of 50", most);
    if (!strstr(error.text, bound)) fail_msg("'%s' does not name '%s'", error.text, bound);
    assert_int_equal(request_parse(frame, most, &limits, &request, &error), HELM_E_FORMAT);
    memset(frame, 0xff, 6); /* no number that could be read */
    assert_int_equal(request_parse(frame, most + 1, &limits, &request, &error), HELM_E_LIMIT);
    assert_int_equal(request.request_id, 0);
    memset(frame, 0x10, most + 1); /* a number that is never the right one costs no more than to read it */
    frame[1] = 0xff;
    assert_int_equal(request_parse(frame, most + 1, &limits, &request, &error), HELM_E_LIMIT);
    free(frame);
}

/* Two bytes of frame for each empty LogitBias, which costs a hundred bytes once unpacked: the budget stops
 * it. */
static void a_small_frame_cannot_take_much_memory(void **state)
{
    (void)state;
    enum { ENTRIES = 2000000, BODY = ENTRIES * 2 };
    const struct request_limits large = {.vocab = 100, .context = 1000000}; /* or it is refused unread */
    uint8_t *frame = malloc(BODY + 32);
    struct request request;
    struct request_error error;
    size_t n = 0;
    const uint32_t lengths[] = {BODY + 5, BODY};
    const uint8_t head[] = {0x08, 1, 0x10, 8};
    memcpy(frame, head, sizeof head);
    n = sizeof head;
    for (int i = 0; i < 2; i++) {
        frame[n++] = 0x1a; /* generate, then sampling */
        for (int shift = 0; shift < 28; shift += 7)
            frame[n++] = (uint8_t)((lengths[i] >> shift & 127) | (shift < 21 ? 128 : 0));
    }
    for (uint32_t i = 0; i < ENTRIES; i++) {
        frame[n++] = 0x42; /* logit_bias */
        frame[n++] = 0;
    }
    assert_int_equal(request_parse(frame, n, &large, &request, &error), HELM_E_FORMAT);
    free(frame);
}

static void cancel_names_one(void **state)
{
    (void)state;
    struct example e;
    struct request request;
    struct request_error error;
    Helm__V1__Cancel cancel = HELM__V1__CANCEL__INIT;
    example_init(&e);
    e.request.body_case = HELM__V1__REQUEST__BODY_CANCEL;
    e.request.cancel = &cancel;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_MALFORMED, "exactly one");
    cancel.id = 4;
    assert_int_equal(parse(&e, &request, &error), 0);
    assert_int_equal(request.cancel_id, 4);
    cancel.request_id = 4;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_MALFORMED, "exactly one");
}

/* The same mask as ids and as bits, with Generate and by itself. */
static void masks_are_bits_or_ids(void **state)
{
    (void)state;
    struct example e;
    struct request request;
    struct request_error error;
    Helm__V1__Mask mask = HELM__V1__MASK__INIT;
    uint32_t ids[REQUEST_MASK_MAX + 1] = {0, 33, 99}, many = REQUEST_MASK_MAX + 1;
    uint8_t bits[14] = {1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 8};
    for (int as_bits = 0; as_bits < 2; as_bits++) {
        mask = (Helm__V1__Mask)HELM__V1__MASK__INIT;
        mask.tokens = ids;
        mask.n_tokens = as_bits ? 0 : 3;
        mask.bits = (ProtobufCBinaryData){as_bits ? 13 : 0, bits};
        for (int alone = 0; alone < 2; alone++) {
            example_init(&e);
            e.generate.mask = alone ? NULL : &mask;
            mask.index = alone ? 7 : 0;
            if (alone) {
                e.request.body_case = HELM__V1__REQUEST__BODY_MASK;
                e.request.mask = &mask;
            }
            assert_int_equal(parse(&e, &request, &error), 0);
            const uint32_t *got = alone ? request.mask : request.generate.mask;
            assert_non_null(got);
            assert_int_equal(got[0], 1);
            assert_int_equal(got[1], 2);
            assert_int_equal(got[2], 0);
            assert_int_equal(got[3], 8);
            if (alone) assert_int_equal(request.mask_index, 7);
            request_free(&request);
        }
    }
    example_init(&e);
    e.generate.mask = &mask;
    mask.index = 1;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_MALFORMED, "mask.index is 1");
    mask.index = 0;
    mask.n_tokens = 3;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_MALFORMED, "tokens and bits");
    mask.bits.len = 14;
    mask.n_tokens = 0;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_TOO_LARGE, "mask.bits has 14 bytes");
    mask.bits.len = 13;
    bits[12] = 16;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_MALFORMED, "beyond the vocabulary of 100");
    mask.bits.len = 0;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_MALFORMED, "mask allows no token");
    mask.n_tokens = many;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_TOO_LARGE, "mask.tokens has 513");
    mask.n_tokens = 1;
    ids[0] = 100;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_MALFORMED, "mask.tokens[0] is 100");
}

static void embeddings_have_their_own_bounds(void **state)
{
    (void)state;
    struct example e;
    struct request request;
    struct request_error error;
    uint32_t prompt[51] = {3, 4};
    Helm__V1__Embed embed = HELM__V1__EMBED__INIT;
    example_init(&e);
    e.request.body_case = HELM__V1__REQUEST__BODY_EMBED;
    e.request.embed = &embed;
    embed.prompt = prompt;
    embed.n_prompt = 50; /* all of the context */
    embed.pooling = HELM__V1__POOLING__POOLING_LAST;
    embed.label = (char *)"me";
    embed.deadline_ms = 7;
    assert_int_equal(parse(&e, &request, &error), 0);
    assert_int_equal(request.kind, REQUEST_EMBED);
    assert_int_equal(request.generate.pooling, REQUEST_POOL_LAST);
    assert_int_equal(request.generate.prompt_count, 50);
    assert_int_equal(request.generate.max_tokens, 1);
    assert_int_equal(request.generate.deadline_ms, 7);
    assert_string_equal(request.generate.label, "me");
    request_free(&request);
    embed.n_prompt = 51;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_CONTEXT, "context holds 50");
    embed.n_prompt = 0;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_MALFORMED, "prompt is empty");
    embed.n_prompt = 2;
    prompt[1] = limits.vocab;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_MALFORMED, "prompt[1]");
    prompt[1] = 0;
    embed.pooling = (Helm__V1__Pooling)2;
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_MALFORMED, "pooling is 2");
    embed.pooling = HELM__V1__POOLING__POOLING_MEAN;
    embed.label = (char *)"a\nb";
    refuses(&e, HELM__V1__ERROR_CODE__ERROR_MALFORMED, "label");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_filled_in),
        cmocka_unit_test(every_float_has_its_bounds),
        cmocka_unit_test(counts_and_ids_have_their_bounds),
        cmocka_unit_test(marks_rise_within_the_prompt),
        cmocka_unit_test(the_context_holds_prompt_and_output),
        cmocka_unit_test(labels_are_clean_text),
        cmocka_unit_test(a_gateway_names_users),
        cmocka_unit_test(envelopes_are_checked),
        cmocka_unit_test(the_largest_request_of_any_context_is_taken),
        cmocka_unit_test(a_frame_too_large_is_refused_unread),
        cmocka_unit_test(a_small_frame_cannot_take_much_memory),
        cmocka_unit_test(cancel_names_one),
        cmocka_unit_test(masks_are_bits_or_ids),
        cmocka_unit_test(embeddings_have_their_own_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
