/* How an answer is written: one voice a dialect, a table of functions.
 *
 * Called by exchange.c. Each function appends to exchange->out; memory that was short shows in
 * exchange->out.failed. */
#pragma once

#include "client/gateway/exchange.h"

struct voice {
    const char *stream_type;                                          /* of the streamed answer */
    void (*begin)(struct exchange *exchange);                         /* a stream begins; may be NULL */
    void (*delta)(struct exchange *exchange, struct choice *choice);  /* its new part, if any */
    void (*finish)(struct exchange *exchange, struct choice *choice); /* it is over; delta was called */
    void (*end)(struct exchange *exchange);                           /* all are over; may be NULL */
    void (*whole)(struct exchange *exchange);                         /* the answer in one piece */
    void (*fail)(struct exchange *exchange); /* exchange->refusal as the end of a stream */
    const char *silence; /* written into a stream that has nothing to say, so that nobody ends it; NULL:
                            nothing can be */
};
extern const struct voice voice_chat, voice_completion, voice_embeddings, voice_messages, voice_ollama,
    voice_ollama_embed, voice_ollama_embedding, voice_rerank, voice_responses;

#define VOICE_COMMENT ": ping\n\n" /* of server-sent events: no client reads it */

/* refusal as the body of an answer. */
void voice_error_openai(struct cli_text *out, const struct refusal *refusal);
void voice_error_ollama(struct cli_text *out, const struct refusal *refusal);
void voice_error_anthropic(struct cli_text *out, const struct refusal *refusal);

/* The tokens [from, until) with their logprobs, as OpenAI's chats and responses have them; a comma follows
 * each. */
void voice_add_tokens(struct exchange *exchange, const struct choice *choice, size_t from, size_t until);
/* A call of a tool began, or has more arguments, since the last event of a stream. */
bool voice_has_new_calls(const struct choice *choice);
/* The id of a call, as every dialect has it. */
const char *voice_call_id(const struct exchange *exchange, const struct choice *choice, size_t index,
                          char id[10]);
/* Sums over an exchange's choices. */
uint32_t voice_prompt_tokens(const struct exchange *exchange);
uint32_t voice_completion_tokens(const struct exchange *exchange);
