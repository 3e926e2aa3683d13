/* A generation's place in its grammar, and the masks that say what may follow. See connection.h.
 *
 * Called by generate.c. Owns the matcher and the memory of one mask. Few tokens go as a list of ids, more as bits. */
#include <stdlib.h>
#include <string.h>

#include "client/connection/connection.h"
#include "client/text/grammar/grammar.h"
#include "client/text/grammar/engine.h"

#define IDS_MAX 512 /* as proto/helm.proto says */

struct constraint {
    struct helm_matcher *matcher;
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
    helm_matcher_close(c->matcher);
    free(c);
}

int constraint_mask(struct constraint *c, uint32_t index, Helm__V1__Mask **mask, struct helm_err *err)
{
    size_t count = 0, n = 0;
    const int rc = helm_matcher_mask(c->matcher, c->bits, err);
    if (rc < 0) return rc;
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
    return 0;
}

int constraint_take(struct constraint *c, uint32_t token, bool *more, struct helm_err *err)
{
    const int rc = helm_matcher_take(c->matcher, token, err);
    *more = rc == 0 && !helm_matcher_has_ended(c->matcher);
    return rc;
}
