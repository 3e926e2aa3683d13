/* One generation's tokens as text: stop texts, calls of tools, logprobs beside the text they belong to. See
 * exchange.h.
 *
 * Text goes through three hands: the detokenizer holds back what is no whole character yet, `held` what may
 * be the beginning of a stop text, the parser of answers what may be a tag or a call. */
#include <stdlib.h>
#include <string.h>

#include "client/gateway/exchange.h"
#include "client/gateway/gateway.h"
#include "client/text/stop_text.h"
#include "common/base/grow.h"

/* A part of the answer, as the parser tells it. */
static void take_part(void *user, enum answer_event event, const char *data, size_t length)
{
    struct choice *c = user;
    struct choice_call *last = c->call_count ? &c->calls[c->call_count - 1] : NULL;
    switch (event) {
    case ANSWER_THOUGHT:
        cli_text_add(&c->thought, data, length);
        break;
    case ANSWER_TEXT:
        cli_text_add(&c->text, data, length);
        break;
    case ANSWER_CALL:
        if (!c->calls) c->calls = calloc(ANSWER_CALLS_MAX, sizeof *c->calls);
        last = c->calls ? &c->calls[c->call_count] : NULL;
        if (last) last->name = strndup(data, length);
        if (last && last->name) {
            c->call_count++;
            cli_text_add(&last->arguments, "", 0);
        } else {
            c->text.failed = true;
        }
        break;
    case ANSWER_ARGUMENTS:
        if (last) cli_text_add(&last->arguments, data, length);
        break;
    case ANSWER_CALL_END:
        if (last) last->ended = true;
        break;
    }
    if (last && last->arguments.failed) c->text.failed = true;
}

int choice_open(struct choice *c, struct helm_err *err)
{
    const struct ask *ask = &c->exchange->ask;
    const struct ask_model *model = &c->exchange->gateway->model;
    const struct answer_wish wish = {.tags = ask->conversation ? model->tags : NULL,
                                     .calls = ask->tools ? model->calls : NULL,
                                     .tools = ask->tools,
                                     .at = ask->at};
    cli_text_add(&c->text, "", 0);
    cli_text_add(&c->thought, "", 0);
    c->answer = answer_open(&wish, take_part, c);
    if (!c->answer) return helm_fail(err, HELM_E_NOMEM, "no memory for an answer");
    return helm_detokenizer_open(model->tokenizer, HELM_TOKENIZER_DECODE_SKIP_SPECIAL, &c->detokenizer, err);
}

static bool keep_token(struct choice *c, const struct helm_token *token)
{
    if (!GROW(c->tokens, c->token_count, c->token_space)) return false;
    struct choice_token *kept = malloc(sizeof *kept + token->top_count * sizeof *token->top);
    if (!kept) return false;
    *kept = (struct choice_token){c->decided + c->held.length, token->token, token->logprob,
                                  (uint32_t)token->top_count};
    memcpy(kept->top, token->top, token->top_count * sizeof *token->top);
    c->tokens[c->token_count++] = kept;
    return true;
}

/* The first `count` bytes of held are part of the answer. */
static void decide(struct choice *c, size_t count)
{
    if (count) {
        answer_push(c->answer, c->held.data, count);
        c->decided += count;
        c->held.length -= count;
        memmove(c->held.data, c->held.data + count, c->held.length + 1);
    }
    while (c->tokens_decided < c->token_count && c->tokens[c->tokens_decided]->at < c->decided)
        c->tokens_decided++;
}

/* More text; `last`: nothing follows. */
static void add_text(struct choice *c, const char *data, size_t length, bool last)
{
    const struct ask *ask = &c->exchange->ask;
    const struct stop_texts stop = {ask->stop, ask->stop_count};
    cli_text_add(&c->held, data, length);
    if (c->held.failed) return;
    const size_t cut = stop_text_find(&stop, c->held.data, c->held.length, 0);
    if (cut == SIZE_MAX) {
        decide(c, c->held.length - (last ? 0 : stop_text_held(&stop, c->held.data, c->held.length, 0)));
        return;
    }
    for (size_t i = 0; i < ask->stop_count && !c->stopped_by; i++)
        if (strncmp(c->held.data + cut, ask->stop[i], strlen(ask->stop[i])) == 0)
            c->stopped_by = ask->stop[i];
    decide(c, cut);
    c->held.length = 0;
    c->finish = HELM_FINISH_STOP;
    c->over = true;
    answer_finish(c->answer);
}

/* Special tokens are no text, except for those that divide the parts of an answer. */
static bool push(struct choice *c, uint32_t token)
{
    const struct ask *ask = &c->exchange->ask;
    const struct ask_model *model = &c->exchange->gateway->model;
    const char *text = NULL;
    size_t length = 0;
    struct helm_err err = {0};
    if (ask->conversation && helm_tokenizer_is_special(model->tokenizer, token)) {
        text = helm_tokenizer_id_to_token(model->tokenizer, token, &length);
        if (text && ((ask->tools && call_syntax_has_token(model->calls, text)) ||
                     reasoning_has_token(model->tags, text))) {
            add_text(c, text, length, false);
            return !c->held.failed;
        }
    }
    if (helm_detokenizer_push(c->detokenizer, token, &text, &length, &err) < 0) return false;
    if (length) add_text(c, text, length, false);
    return !c->held.failed;
}

static void drop_call(struct choice_call *call)
{
    free(call->name);
    cli_text_free(&call->arguments);
    *call = (struct choice_call){0};
}

/* The answer ends with its first call, and with what ends that. */
static void keep_one_call(struct choice *c)
{
    const bool more = c->call_count > 1;
    while (c->call_count > 1) drop_call(&c->calls[--c->call_count]);
    if (c->over || !c->call_count || !c->calls[0].ended || (!more && answer_is_calling(c->answer))) return;
    c->finish = HELM_FINISH_STOP;
    c->over = true;
}

bool choice_take(struct choice *c, const struct helm_token *token)
{
    c->completion_tokens++;
    if (c->exchange->ask.logprobs && !keep_token(c, token)) return false;
    const size_t thought = c->thought.length;
    const bool good = push(c, token->token);
    c->thought_tokens += answer_is_thinking(c->answer) || c->thought.length > thought;
    if (!good || c->text.failed || c->thought.failed || answer_failed(c->answer)) return false;
    if (c->exchange->ask.one_call) keep_one_call(c);
    return true;
}

void choice_opened(struct choice *c)
{
    users_open_generation(&c->exchange->gateway->users, c->exchange->whose);
}

void choice_closed(struct choice *c)
{
    if (c->number) users_close_generation(&c->exchange->gateway->users, c->exchange->whose);
    c->number = 0;
}

void choice_finish(struct choice *c, enum helm_finish finish)
{
    const char *text = "";
    size_t length = 0;
    struct helm_err err = {0};
    if (c->over) return;
    if (helm_detokenizer_finish(c->detokenizer, &text, &length, &err) < 0) length = 0;
    add_text(c, text, length, true);
    if (c->over) return; /* the last bytes completed a stop text */
    answer_finish(c->answer);
    c->finish = finish;
    c->over = true;
}

const char *choice_reason(const struct choice *c)
{
    const bool cut = c->finish == HELM_FINISH_LENGTH && c->call_count && !c->calls[c->call_count - 1].ended;
    if (c->call_count && !cut) return "tool_calls";
    return c->finish == HELM_FINISH_LENGTH ? "length" : "stop";
}

void choice_free(struct choice *c)
{
    for (size_t i = 0; i < c->token_count; i++) free(c->tokens[i]);
    free(c->tokens);
    free(c->embedding);
    helm_detokenizer_close(c->detokenizer);
    answer_close(c->answer);
    for (size_t i = 0; i < c->call_count; i++) drop_call(&c->calls[i]);
    free(c->calls);
    cli_text_free(&c->thought);
    cli_text_free(&c->held);
    cli_text_free(&c->text);
}
