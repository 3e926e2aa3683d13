/* One client frame, checked: nothing of what a client sent is believed before it has passed here.
 *
 * Called by serve.c for every frame (and by tests/fuzz/fuzz_request.c). A frame longer than the largest
 * Request that the context allows is refused before it is unpacked; unpacking may use as much memory as that
 * Request needs and no more, whatever the frame claims. Every field is held against its bound in
 * proto/helm.proto; the error names the field and the bound. The result is plain data: no protobuf pointer
 * outlives request_parse. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/sampling/sampling.h"
#include "daemon/steps/request_speculate.h"
#include "proto/helm.pb-c.h"

#define REQUEST_VERSION        1
#define REQUEST_FRAME_MAX      ((size_t)8 << 20)  /* whatever the context */
#define REQUEST_UNPACK_MAX     ((size_t)64 << 20) /* the same */
#define REQUEST_PROMPT_MAX     ((uint32_t)1 << 21)
#define REQUEST_STOP_MAX       64
#define REQUEST_MARKS_MAX      64
#define REQUEST_PREDICTION_MAX 16384
#define REQUEST_LABEL_MAX      64
#define REQUEST_USER_MAX       64
#define REQUEST_MASK_MAX       512                   /* ids of a mask that lists them */
#define REQUEST_PIECE          ((uint32_t)256 << 10) /* the most bytes of a session's page at once */

enum request_kind {
    REQUEST_NONE,
    REQUEST_GENERATE,
    REQUEST_CANCEL,
    REQUEST_STATUS,
    REQUEST_MODEL_INFO,
    REQUEST_PLAN,
    REQUEST_LIST,
    REQUEST_MASK,
    REQUEST_EMBED,
    REQUEST_SESSION_SAVE,
    REQUEST_SESSION_RESTORE,
    REQUEST_SESSION_READ,
    REQUEST_SESSION_WRITE,
    REQUEST_SESSION_END,
    REQUEST_RESUME
};

enum request_pooling { REQUEST_POOL_NONE, REQUEST_POOL_MEAN, REQUEST_POOL_LAST };

struct request_generate {
    /* Embed's, which has prompt, deadline and label beside; max_tokens is 1 then */
    enum request_pooling pooling;
    uint32_t *prompt; /* owned; request_free */
    uint32_t prompt_count;
    uint32_t max_tokens; /* resolved, >= 1 */
    struct sampling_params sampling;
    bool has_seed;
    uint32_t stop[REQUEST_STOP_MAX], stop_count;
    uint32_t mark[REQUEST_MARKS_MAX], mark_count; /* positions in the prompt, rising */
    enum request_speculate speculate;
    uint32_t *prediction, prediction_count; /* that the answer may repeat; owned */
    bool ignore_eos, stays;
    uint32_t deadline_ms;
    char label[REQUEST_LABEL_MAX + 1];
    uint32_t *mask; /* of the first token: bits, request_mask_words of them; owned; NULL: not constrained */
};

/* A request that stays goes on: its answer is replaced from number `keep` on. */
struct request_resume {
    uint32_t keep, count, max_tokens;
    uint32_t *tokens; /* [count]; owned */
};

#define REQUEST_WEIGHTS_MAX  32
#define REQUEST_KV_DTYPE_MAX 8
/* The model and the cache that a session's pages are of. */
struct request_shape {
    uint64_t model; /* common/model/content.h */
    char weights[REQUEST_WEIGHTS_MAX], kv_dtype[REQUEST_KV_DTYPE_MAX];
    uint32_t layers, kv_heads, head_dim, page_tokens;
    uint64_t origin; /* session_page.h */
};
struct request_session {
    uint32_t *tokens; /* of save and restore; owned */
    uint32_t token_count;
    struct request_shape shape; /* of restore */
    uint64_t id;                /* of the others */
    uint32_t page;              /* of write */
    uint64_t offset;
    uint8_t *data; /* owned */
    uint32_t bytes;
};

struct request {
    enum request_kind kind;
    uint64_t request_id;             /* set as soon as it is known, also when the rest is refused */
    char user[REQUEST_USER_MAX + 1]; /* whom it is for; "": its sender */
    struct request_generate generate;
    uint64_t cancel_id, cancel_request_id;
    uint32_t *mask, mask_index; /* REQUEST_MASK; owned, as above */
    struct request_session session;
    struct request_resume resume;
};

struct request_limits {
    uint32_t vocab, context, draft_tokens, draft_layers; /* the latter two: of the plan */
    bool draft_model;                                    /* there is one */
    bool names_users;                                    /* the sender may set `user` */
};

struct request_error {
    Helm__V1__ErrorCode code;
    char text[HELM_ERR_TEXT];
};

/* Bytes of the largest Request for such a model, whichever way its encoder writes lists and numbers, with
 * some room for fields that this version does not know. */
size_t request_frame_max(const struct request_limits *limits);
/* Words of a mask: id i is bit i % 32 of word i / 32. */
static inline uint32_t request_mask_words(uint32_t vocab)
{
    return vocab / 32 + (vocab % 32 != 0);
}
/* 0, or HELM_E_FORMAT/HELM_E_LIMIT/HELM_E_PERMISSION with what to tell the client in *error. request_free
 * either way. */
HELM_MUST_CHECK int request_parse(const uint8_t *data, size_t size, const struct request_limits *limits,
                                  struct request *request, struct request_error *error);
void request_free(struct request *request);
