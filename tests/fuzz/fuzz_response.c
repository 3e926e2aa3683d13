/* Fuzz target: what libhelm makes of arbitrary frames from a daemon: callbacks of a generation and copies of
 * answers. Everything handed on must be readable: strings end, counts are true, kinds are known. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/connection/connection.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool kept)
{
    if (!kept) abort();
}

static void on_token(void *user, uint64_t request, const struct helm_token *token)
{
    double sum = 0;
    require(request == 1 && token->top_count <= 20);
    for (size_t i = 0; i < token->top_count; i++) sum += isnan(token->top[i].logprob) ? 0 : 1;
    *(size_t *)user += sum >= 0;
}
static void on_done(void *user, uint64_t request, const struct helm_done *done)
{
    require(request == 1 && done->finish >= HELM_FINISH_EOS && done->finish <= HELM_FINISH_ERROR);
    *(size_t *)user += strlen(done->detail) + strlen(helm_finish_name(done->finish));
}
static void on_error(void *user, uint64_t request, int code, const char *text)
{
    require(request == 1 && code < 0);
    *(size_t *)user += strlen(text);
}

static size_t read_answer(const Helm__V1__Response *response, const void *answer)
{
    size_t sum = 0;
    if (response->body_case == HELM__V1__RESPONSE__BODY_STATUS) {
        const struct helm_status *s = answer;
        sum = strlen(s->version) + strlen(s->state);
        for (size_t i = 0; i < s->worker_count; i++)
            sum += strlen(s->workers[i].name) + strlen(s->workers[i].state) + strlen(s->workers[i].kernels) +
                   strlen(s->workers[i].device);
    } else if (response->body_case == HELM__V1__RESPONSE__BODY_MODEL_INFO) {
        const struct helm_model_info *m = answer;
        sum = strlen(m->folder) + strlen(m->architecture) + strlen(m->dtype);
        for (size_t i = 0; i < m->eos_count; i++) sum += m->eos[i];
    } else if (response->body_case == HELM__V1__RESPONSE__BODY_LIST) {
        const struct helm_list *l = answer;
        for (size_t i = 0; i < l->count; i++)
            sum += strlen(l->entries[i].state) + strlen(l->entries[i].label);
    } else if (response->body_case == HELM__V1__RESPONSE__BODY_PLAN) {
        const struct helm_plan_info *p = answer;
        sum = strlen(p->json) + strlen(p->drift);
        for (size_t i = 0; i < p->decode_count; i++) sum += p->decode[i].batch;
        for (size_t i = 0; i < p->ttft_count; i++) sum += p->ttft[i].tokens;
        for (size_t i = 0; i < p->resource_count; i++) sum += strlen(p->resources[i].name);
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    volatile size_t sink = 0;
    size_t seen = 0;
    Helm__V1__Response *response = helm__v1__response__unpack(NULL, size, data);
    if (!response) return 0;
    const struct connection_request request = {
        .number = 1, .callbacks = {.token = on_token, .done = on_done, .error = on_error}, .user = &seen};
    generate_deliver(&request, response);
    void *answer = NULL;
    struct helm_err err = {0};
    if (query_copy(response, &answer, &err) == 0) seen += read_answer(response, answer);
    sink += seen;
    free(answer);
    helm__v1__response__free_unpacked(response, NULL);
    return 0;
}
