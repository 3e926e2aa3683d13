/* One request of HTTP and its answer, from the first header to the last byte.
 *
 * server.c makes it, feeds it the body and fetches the answer for libmicrohttpd; jobs.c has its body read in
 * a thread; exchange.c starts its generations and ends them; choice.c turns tokens into text; a voice
 * (voice.h) writes them in the client's dialect. All of it but the reading of bodies runs in the gateway's
 * one loop. */
#pragma once

#include <stdatomic.h>
#include <sys/queue.h>
#include <time.h>

#include "client/gateway/ask.h"
#include "client/gateway/inquiry.h"
#include "client/text/answer/answer.h"

struct exchange;
struct gateway;
struct user;
struct voice;

/* A token whose logprobs wait for the text that it is part of. */
struct choice_token {
    uint64_t at; /* where its text begins in the output */
    uint32_t token;
    float logprob;
    uint32_t top_count;
    struct helm_logprob top[];
};

/* A call of a tool. Calls follow each other: only the last one may be open. */
struct choice_call {
    char *name;
    struct cli_text
        arguments; /* JSON text; the model's own, so that it may be wrong, or cut with the answer */
    bool ended;
};

/* Items of a response (voice_responses.c), in the order of the answer. */
struct choice_items {
    uint8_t what[ANSWER_CALLS_MAX + 2];
    uint32_t count, sequence, calls_done; /* sequence: events so far */
    bool open[2];
};

/* Blocks of a message (voice_anthropic.c) in a stream. */
struct choice_blocks {
    uint32_t count, calls_done;
    uint8_t open; /* the last one's kind, until it is closed */
};

/* One generation of an exchange. */
struct choice {
    struct exchange *exchange;
    uint32_t index;  /* in the answer */
    uint32_t prompt; /* which of the ask's prompts */
    uint64_t number; /* of libhelm while it is open, else 0: choice_closed */
    bool accepted, over;
    struct helm_detokenizer *detokenizer;
    struct cli_text held;          /* text that may yet turn out to be a stop text */
    uint64_t decided;              /* bytes of output before `held` */
    struct answer *answer;         /* takes the decided text apart */
    struct cli_text thought, text; /* as far as they are certain */
    struct choice_call *calls;     /* [ANSWER_CALLS_MAX] once there is one */
    size_t call_count;
    /* written for a stream; arguments_sent: bytes of the last of the calls_sent */
    size_t thought_sent, text_sent, calls_sent, arguments_sent;
    struct choice_token **tokens; /* with logprobs: all of them */
    size_t token_count, token_space, tokens_decided, tokens_sent;
    uint32_t completion_tokens, thought_tokens;
    struct choice_items items;
    struct choice_blocks blocks;
    const char *stopped_by; /* the stop text that ended it, borrowed from the ask; NULL: none did */
    enum helm_finish finish;
    bool reported; /* the daemon ended it and said: */
    uint32_t cached_tokens;
    uint64_t drafted_tokens, accepted_tokens;
    /* [embedding_count] of ASK_EMBEDS, of unit length; all else but `number` and `over` is unused */
    float *embedding;
    size_t embedding_count;
    double score; /* of ASK_RERANK, in the same way: of its document, 0 to 1; below 0: not there yet */
};

enum exchange_state {
    EXCHANGE_BODY,   /* the request is being received */
    EXCHANGE_WORK,   /* a thread has it: asks helmd, reads its body, writes its end */
    EXCHANGE_ASKED,  /* the daemon has it; nothing is answered yet */
    EXCHANGE_ANSWER, /* the answer's status is known: libmicrohttpd fetches it */
};

/* Exchanges that are passed on, linked by `job`, in the order in which they came. */
STAILQ_HEAD(exchange_list, exchange);

struct exchange {
    struct gateway *gateway;
    void *connection; /* of libmicrohttpd */
    const struct route *route;
    struct peer *peer;
    enum exchange_state state;
    LIST_ENTRY(exchange) link;  /* all of them */
    STAILQ_ENTRY(exchange) job; /* of a queue of jobs.c */
    char id[33];
    char user[64];      /* whose key it was, for the log */
    struct user *whose; /* users.h; NULL: it was refused before that was known */
    char named[256];    /* the name that routes_find found in the path */
    time_t created;
    uint64_t begin_us, first_us, over_us;
    uint64_t unread_us; /* since when there is something to write; 0: there is not */
    uint64_t spoke_us;  /* when a stream was last written */

    struct inquiry_fact *facts[INQUIRY_QUESTIONS]; /* helmd's answers, if its route wants them */
    struct cli_text body;
    struct ask ask;
    struct refusal refusal;

    struct choice *choices;
    struct choice *last;                       /* that was over */
    uint32_t choice_count, accepted, finished; /* accepted: by the daemon; of embeddings, sent to it */

    /* the answer */
    int status;
    const char *type;
    struct cli_text out;
    size_t sent;
    char allow[64];     /* with 405 and for another site's page: the path's methods */
    bool streams, over; /* out grows until `over` */
    bool writes;        /* all choices are over: a thread writes the end, once what there is was fetched */
    bool queued;        /* libmicrohttpd has the response */
    bool closes;        /* the connection ends with the answer */
    bool called;        /* it waited for its turn, which has come */
    bool suspended;     /* libmicrohttpd does not look at the connection */
    atomic_bool gone;   /* the client went away; a thread looks at it, too */
    bool dropped;       /* the answer ends without its end */
};

/* The gateway's: more output, or an end. Wakes the connection. */
void exchange_wake(struct exchange *exchange);
#define JSON_TYPE "application/json"
/* The whole answer of one piece; takes out->data. */
void exchange_answer(struct exchange *exchange, int status, const char *type, struct cli_text *out);
/* exchange->refusal in the dialect of its route, as the answer or as the end of a stream. */
void exchange_refuse(struct exchange *exchange);

/* helmd was asked (exchange->facts): goes on with the body, or answers. */
void exchange_informed(struct exchange *exchange);
/* In a thread of jobs.c: reads the body, or writes the end. */
void exchange_work(struct exchange *exchange);
/* It comes back. The body was read (exchange->ask or ->refusal): sends the generations. Or the end was
 * written. */
void exchange_start(struct exchange *exchange);
/* The client went away, or reads too slowly: ends what is under way. */
void exchange_drop(struct exchange *exchange, const char *why);
/* One of its choices is over: with the last one the answer is. */
void exchange_finished(struct choice *choice);
/* Ends it with a code of libhelm. */
void exchange_fail(struct exchange *exchange, int code, const char *text);
/* The daemon ended a choice's work (`what`) before it was done, and says how. */
void exchange_broken(struct choice *choice, const char *what, const struct helm_done *done);
/* helm_callbacks.error of a choice. */
void exchange_on_error(void *choice, uint64_t request, int code, const char *text);
/* The exchange's name in helmd's list of requests. */
void exchange_label(const struct exchange *exchange, char label[ASK_LABEL + 1]);
/* Gives everything back; libmicrohttpd is through with it. */
void exchange_free(struct exchange *exchange);

/* ---- bodies.c ---- */

/* A piece of the body came: kept, or the request is refused. */
void bodies_take(struct exchange *exchange, const char *data, size_t length);
void bodies_free(struct exchange *exchange);

/* ---- embedding.c ---- */

#define EMBEDDING_AT_ONCE 8
/* Sends what of ASK_BATCHES has not been sent, as many as may be at the daemon at once. */
HELM_MUST_CHECK int embedding_send(struct exchange *exchange, struct helm_err *err);

/* ---- choice.c ---- */

HELM_MUST_CHECK int choice_open(struct choice *choice, struct helm_err *err);
/* A token came. false: memory was short, or the text is no text. */
bool choice_take(struct choice *choice, const struct helm_token *token);
/* The daemon has its generation (choice->number), or is through with it. */
void choice_opened(struct choice *choice);
void choice_closed(struct choice *choice);
/* The output ends, for this reason; `over` is set. */
void choice_finish(struct choice *choice, enum helm_finish finish);
/* OpenAI's word for how it ended. */
const char *choice_reason(const struct choice *choice);
void choice_free(struct choice *choice);
