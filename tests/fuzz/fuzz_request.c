/* Fuzz target: request_parse over arbitrary frames. An accepted request must keep every bound that batcher.c
 * and the workers rely on; a refused one must come with a code and a text. */
#include <stdlib.h>
#include <string.h>

#include "daemon/steps/request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define VOCAB   1000
#define CONTEXT 64

static void require(bool kept)
{
    if (!kept) abort();
}

static void check_generate(const struct request_generate *g)
{
    const struct sampling_params *s = &g->sampling;
    require(g->prompt && g->prompt_count >= 1 && g->max_tokens >= 1);
    require((uint64_t)g->prompt_count + g->max_tokens <= CONTEXT);
    for (uint32_t i = 0; i < g->prompt_count; i++) require(g->prompt[i] < VOCAB);
    require(g->stop_count <= REQUEST_STOP_MAX);
    for (uint32_t i = 0; i < g->stop_count; i++) require(g->stop[i] < VOCAB);
    require(memchr(g->label, 0, sizeof g->label) != NULL);
    require(s->temperature >= 0 && s->temperature <= 100 && s->top_p > 0 && s->top_p <= 1);
    require(s->min_p >= 0 && s->min_p <= 1 && s->repetition_penalty > 0 && s->repetition_penalty <= 100);
    require(s->presence_penalty >= -2 && s->presence_penalty <= 2);
    require(s->frequency_penalty >= -2 && s->frequency_penalty <= 2);
    require(s->logprobs <= SAMPLING_LOGPROBS_MAX && s->bias_count <= SAMPLING_BIAS_MAX);
    for (uint32_t i = 0; s->asked && i < s->logprobs; i++) require(s->of[i] < VOCAB);
    for (uint32_t i = 0; i < s->bias_count; i++)
        require(s->bias[i].token < VOCAB && s->bias[i].bias >= -100 && s->bias[i].bias <= 100);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct request_limits limits = {.vocab = VOCAB, .context = CONTEXT, .names_users = true};
    struct request request;
    struct request_error error;
    int rc = request_parse(data, size, &limits, &request, &error);
    if (rc == 0) {
        require(request.request_id != 0 && request.kind != REQUEST_NONE);
        require(memchr(request.user, 0, sizeof request.user) != NULL);
        if (request.kind == REQUEST_GENERATE) check_generate(&request.generate);
        if (request.kind == REQUEST_CANCEL)
            require((request.cancel_id == 0) != (request.cancel_request_id == 0));
    } else {
        require(rc < 0 && error.code != HELM__V1__ERROR_CODE__ERROR_UNSPECIFIED && error.text[0]);
    }
    request_free(&request);
    return 0;
}
