/* The inside of a connection, shared by the files of libhelm that speak the protocol.
 *
 * connection.c owns the sockets, the table of open requests and the dispatching; generate.c makes Generate
 * and Cancel messages and hands Token, Done and Error to callbacks; constraint.c makes Mask messages; query.c
 * asks questions that have one answer. No other file includes this. */
#pragma once

#include "client/helm.h"
#include "proto/helm.pb-c.h"

#define CONNECTION_VERSION         1                 /* of the protocol */
#define CONNECTION_FRAME_BYTES_MAX ((size_t)8 << 20) /* as proto/helm.proto says */

struct mask_thread; /* mask_thread.h */

/* An entry of the table: a generation, or a question that waits for its answer. */
struct connection_request {
    uint64_t number;
    bool question;
    Helm__V1__Response *answer; /* of a question, once it came */
    struct helm_callbacks callbacks;
    void *user;
    int timeout_ms;
    uint64_t deadline_us;          /* 0: none */
    struct constraint *constraint; /* of a generation with a grammar; owned */
    int event_fd;                  /* the client's */
};

/* Bodies of requests start from this. The caller sets the body; connection_send sets the rest. */
#define CONNECTION_REQUEST_INIT HELM__V1__REQUEST__INIT

/* A fresh entry with a number that was never used on this connection. *request is valid until the next call.
 */
HELM_MUST_CHECK int connection_open_request(struct helm_client *client, struct connection_request **request,
                                            struct helm_err *err);
struct connection_request *connection_find_request(struct helm_client *client, uint64_t number);
void connection_drop_request(struct helm_client *client, uint64_t number);

/* Arms the timer for an entry whose deadline_us was set. */
void connection_watch_deadline(struct helm_client *client, uint64_t deadline_us);

/* Sends one frame with this number. Never blocks: HELM_E_BUSY when the daemon has stopped reading. */
HELM_MUST_CHECK int connection_send(struct helm_client *client, Helm__V1__Request *message, uint64_t number,
                                    struct helm_err *err);
/* A number for a message whose answer is not needed. */
uint64_t connection_next_number(struct helm_client *client);

/* Sends and waits for the answer of kind `expected` (NOT_SET: of any kind); an Error answer becomes its code
 * and text. *answer is freed with helm__v1__response__free_unpacked(answer, NULL). */
HELM_MUST_CHECK int connection_ask(struct helm_client *client, Helm__V1__Request *message,
                                   Helm__V1__Response__BodyCase expected, int timeout_ms,
                                   Helm__V1__Response **answer, struct helm_err *err);

/* generate.c: hands one response to a generation's callbacks. `request` is a copy, its entry is already gone
 * when `generate_is_last` says so. */
bool generate_is_last(const Helm__V1__Response *response);
void generate_deliver(const struct connection_request *request, const Helm__V1__Response *response);

/* constraint.c: a generation's place in its grammar. NULL is allowed to close. */
HELM_MUST_CHECK int constraint_open(struct helm_grammar *grammar, struct constraint **out,
                                    struct helm_err *err);
void constraint_close(struct constraint *constraint);
/* The mask of token `index`, of the constraint's memory until the next call. */
HELM_MUST_CHECK int constraint_mask(struct constraint *constraint, uint32_t index, Helm__V1__Mask **mask,
                                    struct helm_err *err);
void constraint_message(struct constraint *constraint, uint32_t index, Helm__V1__Mask **mask);
/* A token came. *more: constraint_message has the mask of the next one. Otherwise there is none, or *thread
 * makes it, which is started when it is first needed: event_fd is raised then. */
struct constraint_token {
    uint64_t number; /* of the request */
    uint32_t id, index;
    int event_fd;
};
HELM_MUST_CHECK int constraint_take(struct constraint *constraint, const struct constraint_token *token,
                                    struct mask_thread **thread, bool *more, struct helm_err *err);
/* The result of the thread's work, as of constraint_take, for *token, which is number *index. */
HELM_MUST_CHECK int constraint_result(struct constraint *constraint, bool *more, uint32_t *token,
                                      uint32_t *index, struct helm_err *err);

/* generate.c: a token of a request with a constraint: sends the mask of the next one, then hands it on. A
 * constraint that cannot go on ends the request with an error. */
void generate_deliver_constrained(struct helm_client *client, const struct connection_request *request,
                                  const Helm__V1__Response *response, struct mask_thread **thread);
/* generate.c: sends the masks that the thread has made. Returns how many. */
int generate_send_masks(struct helm_client *client, struct mask_thread *thread);

/* generate.c: enum helm_code for the code of an Error message. */
int generate_error_code(Helm__V1__ErrorCode code);

/* query.c: an answer as its struct of helm.h, in one block for free(). */
HELM_MUST_CHECK int query_copy(const Helm__V1__Response *answer, void **out, struct helm_err *err);
