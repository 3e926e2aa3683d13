/* One request's embeddings, or scores of documents: a few at a time at the daemon, so that a long list leaves
 * others their place in its queue. See exchange.h. Callbacks come from inside helm_dispatch, as exchange.c's
 * do. */
#include <math.h>
#include <stdlib.h>

#include "client/gateway/gateway.h"

/* A copy scaled to unit length, as OpenAI's embeddings are, so that a product is a cosine. All zeroes stay
 * so. */
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

/* One has its result: others are sent. */
static void finish(struct choice *c)
{
    struct helm_err err = {0};
    c->over = true;
    const int rc = embedding_send(c->exchange, &err);
    if (rc < 0)
        exchange_fail(c->exchange, rc, err.text);
    else
        exchange_finished(c);
}

static void on_embedding(void *user, uint64_t request, const struct helm_embedding *embedding)
{
    struct choice *c = user;
    struct exchange *ex = c->exchange;
    (void)request;
    choice_closed(c);
    if (ex->over || ex->dropped) return;
    c->embedding_count = embedding->count;
    c->embedding = unit_copy(embedding->values, embedding->count);
    if (c->embedding)
        finish(c);
    else
        exchange_fail(ex, HELM_E_NOMEM, "no memory for an embedding");
}

/* The softmax over the two logits. The logprobs' common term, the sum over all tokens, falls out. */
static void on_token(void *user, uint64_t request, const struct helm_token *token)
{
    struct choice *c = user;
    (void)request;
    if (token->top_count != 2) return;
    const double yes = (double)token->top[0].logprob, no = (double)token->top[1].logprob;
    if (!isnan(yes) && !isnan(no) && (isfinite(yes) || isfinite(no))) c->score = 1 / (1 + exp(no - yes));
}

/* A score's end. An embedding's: cancelled, or failed midway. */
static void on_done(void *user, uint64_t request, const struct helm_done *done)
{
    struct choice *c = user;
    (void)request;
    choice_closed(c);
    if (c->exchange->over || c->exchange->dropped) return;
    if (c->exchange->ask.kind != ASK_RERANK || done->finish >= HELM_FINISH_CANCELLED)
        exchange_broken(c, "request", done);
    else if (c->score >= 0)
        finish(c);
    else
        exchange_fail(c->exchange, HELM_E_INTERNAL,
                      "helmd does not say the logprobs of given tokens: it is older than this gateway");
}

static int send_one(struct choice *c, const char *label, const struct helm_callbacks *callbacks,
                    struct helm_err *err)
{
    const struct ask *ask = &c->exchange->ask;
    const struct gateway *g = c->exchange->gateway;
    const struct ask_prompt *prompt = &ask->prompt[c->prompt];
    const struct helm_embed_request embed = {.prompt = prompt->ids,
                                             .prompt_count = prompt->count,
                                             .pooling = ask->pooling,
                                             .deadline_ms = g->model.answer_ms,
                                             .label = label,
                                             .user = gateway_user(c->exchange)};
    const struct helm_generate_request judge = {.prompt = prompt->ids,
                                                .prompt_count = prompt->count,
                                                .max_tokens = 1,
                                                .logprobs_of = ask->judged,
                                                .logprobs_of_count = 2,
                                                .ignore_eos = true,
                                                .deadline_ms = g->model.answer_ms,
                                                .label = label,
                                                .user = gateway_user(c->exchange)};
    c->score = -1;
    const int rc = ask->kind == ASK_RERANK
                       ? helm_generate(g->cli.client, &judge, callbacks, c, 0, &c->number, err)
                       : helm_embed(g->cli.client, &embed, callbacks, c, 0, &c->number, err);
    if (rc == 0) choice_opened(c);
    return rc;
}

/* Those that have not been sent, as far as there may be more at once. */
int embedding_send(struct exchange *ex, struct helm_err *err)
{
    static const struct helm_callbacks callbacks = {.token = on_token,
                                                    .done = on_done,
                                                    .error = exchange_on_error,
                                                    .embedding = on_embedding};
    char label[ASK_LABEL + 1];
    uint32_t open = 0;
    int rc = 0;
    exchange_label(ex, label);
    for (uint32_t i = 0; i < ex->accepted; i++) open += ex->choices[i].number != 0;
    while (rc == 0 && open < EMBEDDING_AT_ONCE && ex->accepted < ex->choice_count) {
        rc = send_one(&ex->choices[ex->accepted++], label, &callbacks, err);
        open++;
    }
    return rc;
}
