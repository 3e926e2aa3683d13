/* A generation's place in its grammar, and the masks that say what may follow. See connection.h.
 *
 * Called by generate.c. Owns the matcher and the memory of one mask. Few tokens go as a list of ids, more as
 * bits. Masks that take longer than a moment are made by the connection's mask thread (mask_thread.c):
 * meanwhile the caller's loop goes on. */
#include <stdatomic.h>
#include <stdlib.h>

#include "client/connection/connection.h"
#include "client/connection/mask_thread.h"
#include "client/text/grammar/grammar.h"
#include "client/text/grammar/engine.h"

#define IDS_MAX 512 /* as proto/helm.proto says */

#define QUICK_STEPS 8192 /* of a mask in the caller's thread: some 0.2 ms */

struct constraint {
    struct helm_matcher *matcher;
    struct mask_job job;
    struct mask_thread *thread; /* NULL: it was never needed */
    uint32_t token, index;
    bool took; /* of the job: the token is taken, the mask is to be made */
    Helm__V1__Mask mask;
    uint32_t ids[IDS_MAX];
    uint32_t vocab, words;
    uint32_t bits[]; /* [words] */
};

int constraint_open(struct helm_grammar *grammar, struct constraint **out, struct helm_err *err)
{
    const uint32_t vocab = helm_vocabulary_size(grammar->vocabulary), words = (vocab + 31) / 32;
    *out = NULL;
    struct constraint *c = calloc(1, sizeof *c + words * sizeof *c->bits);
    if (!c) return helm_fail(err, HELM_E_NOMEM, "no memory for a request");
    c->vocab = vocab;
    c->words = words;
    const int rc = helm_matcher_open(grammar, &c->matcher, err);
    if (rc < 0)
        free(c);
    else
        *out = c;
    return rc;
}

void constraint_close(struct constraint *c)
{
    if (!c) return;
    if (c->thread) {
        atomic_store(&c->matcher->stop, true);
        mask_thread_remove(c->thread, &c->job);
    }
    helm_matcher_close(c->matcher);
    free(c);
}

int constraint_mask(struct constraint *c, uint32_t index, Helm__V1__Mask **mask, struct helm_err *err)
{
    const int rc = helm_matcher_mask(c->matcher, c->bits, err);
    if (rc < 0) return rc;
    constraint_message(c, index, mask);
    return 0;
}

void constraint_message(struct constraint *c, uint32_t index, Helm__V1__Mask **mask)
{
    size_t count = 0, n = 0;
    helm__v1__mask__init(&c->mask);
    c->mask.index = index;
    for (uint32_t w = 0; w < c->words; w++) count += (size_t)__builtin_popcount(c->bits[w]);
    if (count > IDS_MAX) { /* words are little-endian here as bits are on the wire */
        c->mask.bits = (ProtobufCBinaryData){(c->vocab + 7) / 8, (uint8_t *)c->bits};
    } else {
        for (uint32_t w = 0; w < c->words; w++)
            for (uint32_t rest = c->bits[w]; rest; rest &= rest - 1)
                c->ids[n++] = 32 * w + (uint32_t)__builtin_ctz(rest);
        c->mask.tokens = c->ids;
        c->mask.n_tokens = n;
    }
    *mask = &c->mask;
}

/* Takes the token, unless that was done, and fills in the bits of the next mask. */
static int step(struct constraint *c, uint64_t quick, struct helm_err *err)
{
    int rc = 0;
    c->matcher->quick = quick;
    if (!c->took) rc = helm_matcher_take(c->matcher, c->token, err);
    if (rc < 0) return rc;
    c->took = true;
    return helm_matcher_has_ended(c->matcher) ? 0 : helm_matcher_mask(c->matcher, c->bits, err);
}

static void work(struct mask_job *job)
{
    struct constraint *c = job->owner;
    job->rc = step(c, 0, &job->err);
}

int constraint_take(struct constraint *c, const struct constraint_token *token, struct mask_thread **thread,
                    bool *more, struct helm_err *err)
{
    if (c->job.state != MASK_JOB_NONE)
        return helm_fail(err, HELM_E_PEER, "the daemon went on before it had the mask of token %u", c->index);
    c->token = token->id;
    c->index = token->index;
    c->took = false;
    int rc = step(c, QUICK_STEPS, err);
    *more = rc == 0 && !helm_matcher_has_ended(c->matcher);
    if (rc != HELM_E_BUSY) return rc;
    if (!*thread) rc = mask_thread_open(token->event_fd, thread, err);
    if (!*thread) return rc;
    c->thread = *thread;
    c->job.owner = c;
    c->job.work = work;
    c->job.number = token->number;
    mask_thread_push(c->thread, &c->job);
    return 0;
}

int constraint_result(struct constraint *c, bool *more, uint32_t *token, uint32_t *index,
                      struct helm_err *err)
{
    *more = c->job.rc == 0 && !helm_matcher_has_ended(c->matcher);
    *token = c->token;
    *index = c->index;
    if (c->job.rc < 0 && err) *err = c->job.err;
    return c->job.rc;
}
