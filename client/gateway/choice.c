/* One generation's tokens as text: stop texts, calls of tools, logprobs beside the text they belong to. See exchange.h.
 *
 * Text goes through three hands: the detokenizer holds back what is no whole character yet, `held` what may be the
 * beginning of a stop text, the tool parser what may be a call. */
#include <stdlib.h>
#include <string.h>

#include "client/gateway/exchange.h"
#include "client/gateway/gateway.h"
#include "client/text/stop_text.h"

int choice_open(struct choice *c, struct helm_err *err)
{
    const struct ask *ask = &c->exchange->ask;
    const struct ask_model *model = &c->exchange->gateway->model;
    c->tools.text = &c->text;
    c->tools.tools = ask->tools;
    c->tools.style = ask->tools ? model->tool_style : TOOLS_NONE;
    cli_text_add(&c->text, "", 0);
    cli_text_add(&c->thought, "", 0);
    c->thinking = (struct thinking){.state = !ask->conversation ? THINKING_OVER
                                             : ask->thinks      ? THINKING_INSIDE
                                                                : THINKING_BEGIN,
                                    .thought = &c->thought};
    return helm_detokenizer_open(model->tokenizer, HELM_TOKENIZER_DECODE_SKIP_SPECIAL, &c->detokenizer, err);
}

static bool keep_token(struct choice *c, const struct helm_token *token)
{
    if (c->token_count == c->token_space) {
        const size_t space = c->token_space ? 2 * c->token_space : 64;
        void *grown = realloc(c->tokens, space * sizeof *c->tokens);
        if (!grown) return false;
        c->tokens = grown;
        c->token_space = space;
    }
    struct choice_token *kept = malloc(sizeof *kept + token->top_count * sizeof *token->top);
    if (!kept) return false;
    *kept = (struct choice_token){c->decided + c->held.length, token->token, token->logprob,
                                  (uint32_t)token->top_count};
    memcpy(kept->top, token->top, token->top_count * sizeof *token->top);
    c->tokens[c->token_count++] = kept;
    return true;
}

/* What of the decided text is no thinking, through the tool parser. */
static void hand_on(struct choice *c)
{
    if (c->said.failed) c->text.failed = true;
    if (c->said.length) tool_parser_push(&c->tools, c->said.data, c->said.length);
    c->said.length = 0;
}

/* Nothing follows. */
static void end_text(struct choice *c)
{
    thinking_finish(&c->thinking, &c->said);
    hand_on(c);
    tool_parser_finish(&c->tools);
}

/* The first `count` bytes of held are part of the answer. */
static void decide(struct choice *c, size_t count)
{
    if (count) {
        thinking_push(&c->thinking, c->held.data, count, &c->said);
        hand_on(c);
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
    end_text(c);
}

/* Special tokens are no text, but for those that begin a call. */
static bool push(struct choice *c, uint32_t token)
{
    const struct helm_tokenizer *tokenizer = c->exchange->gateway->model.tokenizer;
    const char *text = NULL;
    size_t length = 0;
    struct helm_err err = {0};
    if (c->tools.style != TOOLS_NONE && helm_tokenizer_is_special(tokenizer, token)) {
        text = helm_tokenizer_id_to_token(tokenizer, token, &length);
        if (text && tool_calls_is_marker(c->tools.style, text)) {
            add_text(c, text, length, false);
            return !c->held.failed;
        }
    }
    if (helm_detokenizer_push(c->detokenizer, token, &text, &length, &err) < 0) return false;
    if (length) add_text(c, text, length, false);
    return !c->held.failed;
}

bool choice_take(struct choice *c, const struct helm_token *token)
{
    c->completion_tokens++;
    if (c->exchange->ask.logprobs && !keep_token(c, token)) return false;
    const size_t thought = c->thought.length;
    const bool good = push(c, token->token);
    c->thought_tokens += c->thinking.state == THINKING_INSIDE || c->thought.length > thought;
    if (!good || c->text.failed || c->thought.failed) return false;
    if (!c->over && c->exchange->ask.one_call && c->tools.count) {
        c->finish = HELM_FINISH_STOP;
        c->over = true;
    }
    return true;
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
    end_text(c);
    c->finish = finish;
    c->over = true;
}

const char *choice_reason(const struct choice *c)
{
    if (c->tools.count) return "tool_calls";
    return c->finish == HELM_FINISH_LENGTH ? "length" : "stop";
}

void choice_free(struct choice *c)
{
    for (size_t i = 0; i < c->token_count; i++) free(c->tokens[i]);
    free(c->tokens);
    free(c->embedding);
    helm_detokenizer_close(c->detokenizer);
    tool_parser_free(&c->tools);
    cli_text_free(&c->thinking.held);
    cli_text_free(&c->thought);
    cli_text_free(&c->said);
    cli_text_free(&c->held);
    cli_text_free(&c->text);
}
