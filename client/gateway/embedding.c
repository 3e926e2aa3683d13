/* One request's embeddings: a few at a time at the daemon, so that a long list leaves others their place in its queue. See
 * exchange.h. Callbacks come from inside helm_dispatch, as exchange.c's do. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/gateway/gateway.h"

/* A copy scaled to unit length, as OpenAI's embeddings are, so that a product is a cosine. All zeroes stay so. */
static float *unit_copy(const float *values, size_t count)
{
    double squares = 0;
    float *copy = malloc((count ? count : 1) * sizeof *copy);
    if (!copy) return NULL;
    for (size_t i = 0; i < count; i++) squares += (double)values[i] * values[i];
    const double scale = squares > 0 ? 1 / sqrt(squares) : 1;
    for (size_t i = 0; i < count; i++) copy[i] = (float)(values[i] * scale);
    return copy;
}

static void on_embedding(void *user, uint64_t request, const struct helm_embedding *embedding)
{
    struct choice *c = user;
    struct exchange *ex = c->exchange;
    struct helm_err err = {0};
    (void)request;
    choice_closed(c);
    if (ex->over || ex->dropped) return;
    c->over = true;
    c->embedding_count = embedding->count;
    c->embedding = unit_copy(embedding->values, embedding->count);
    int rc =
        c->embedding ? embedding_send(ex, &err) : helm_fail(&err, HELM_E_NOMEM, "no memory for an embedding");
    if (rc < 0)
        exchange_fail(ex, rc, err.text);
    else
        exchange_finished(c);
}

/* Cancelled, or failed midway: no embedding. */
static void on_done(void *user, uint64_t request, const struct helm_done *done)
{
    struct choice *c = user;
    char text[HELM_ERR_TEXT];
    const bool failed = done->finish == HELM_FINISH_ERROR;
    (void)request;
    choice_closed(c);
    if (c->exchange->over || c->exchange->dropped) return;
    snprintf(text, sizeof text, "the embedding %s%s%s", failed ? "failed" : "was cancelled",
             *done->detail ? ": " : "", done->detail);
    exchange_fail(c->exchange, failed ? HELM_E_INTERNAL : HELM_E_CANCELLED, text);
}

static void on_error(void *user, uint64_t request, int code, const char *text)
{
    struct choice *c = user;
    (void)request;
    choice_closed(c);
    if (!c->exchange->over && !c->exchange->dropped) exchange_fail(c->exchange, code, text);
}

/* Those that have not been sent, as far as there may be more at once. */
int embedding_send(struct exchange *ex, struct helm_err *err)
{
    static const struct helm_callbacks callbacks = {.done = on_done,
                                                    .error = on_error,
                                                    .embedding = on_embedding};
    const struct ask *ask = &ex->ask;
    char label[ASK_LABEL + 1];
    uint32_t open = 0;
    int rc = 0;
    snprintf(label, sizeof label, "gateway%s%.48s", *ask->label ? ":" : "", ask->label);
    for (uint32_t i = 0; i < ex->accepted; i++) open += ex->choices[i].number != 0;
    while (rc == 0 && open < EMBEDDING_AT_ONCE && ex->accepted < ex->choice_count) {
        struct choice *c = &ex->choices[ex->accepted++];
        const struct helm_embed_request what = {.prompt = ask->prompt[c->prompt].ids,
                                                .prompt_count = ask->prompt[c->prompt].count,
                                                .pooling = ask->pooling,
                                                .deadline_ms = ex->gateway->model.answer_ms,
                                                .label = label,
                                                .user = gateway_user(ex)};
        rc = helm_embed(ex->gateway->cli.client, &what, &callbacks, c, 0, &c->number, err);
        if (rc == 0) choice_opened(c);
        open++;
    }
    return rc;
}
