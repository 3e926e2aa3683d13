/* Shared by the tests of grammars: a vocabulary of all bytes with some longer tokens, and texts put through
 * grammars. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/text/grammar/engine.h"

#define BYTES_END 256u /* the id that ends an output; ids below are the bytes, ids above are `longer` */

/* longer: tokens, ended by NULL. */
static inline struct helm_vocabulary *open_bytes(const char *const *longer)
{
    static unsigned char bytes[1 << 20];
    static uint32_t offset[1 << 16];
    const uint32_t end = BYTES_END;
    uint32_t vocab = 257, used = 256;
    struct helm_vocabulary *v;
    struct helm_err err = {0};
    for (uint32_t i = 0; i < 256; i++) {
        bytes[i] = (unsigned char)i;
        offset[i] = i;
    }
    offset[256] = 256;
    offset[257] = 256;
    for (; longer && *longer; longer++) {
        const size_t n = strlen(*longer);
        memcpy(bytes + used, *longer, n);
        used += (uint32_t)n;
        offset[++vocab] = used;
    }
    if (vocabulary_open_bytes(bytes, offset, vocab, &end, 1, &v, &err)) fail_msg("%s", err.text);
    return v;
}

static inline struct helm_grammar *open_grammar(const struct helm_vocabulary *v, enum helm_grammar_kind kind,
                                                const char *text)
{
    struct helm_grammar *g;
    struct helm_err err = {0};
    if (helm_grammar_open(v, kind, text, strlen(text), &g, &err)) fail_msg("%s: %s", text, err.text);
    return g;
}

enum fit { FITS_NOT, FITS_BEGINS, FITS };

/* Byte by byte. FITS_BEGINS: something that begins so fits. */
static inline enum fit fit(struct helm_grammar *g, const char *text, size_t length)
{
    struct helm_matcher *m;
    struct helm_err err = {0};
    enum fit out = FITS_BEGINS;
    if (helm_matcher_open(g, &m, &err)) fail_msg("%s", err.text);
    for (size_t i = 0; i < length && out; i++) {
        const int rc = helm_matcher_take(m, (unsigned char)text[i], &err);
        if (rc && rc != HELM_E_FORMAT) fail_msg("%s", err.text);
        if (rc) out = FITS_NOT;
    }
    if (out && helm_matcher_may_end(m)) out = FITS;
    helm_matcher_close(m);
    return out;
}

/* Texts that fit and texts that do not, each list ended by NULL. */
struct fit_case {
    const char *grammar;
    const char *good[12], *bad[16];
};
static inline void check_cases(enum helm_grammar_kind kind, const struct fit_case *cases, size_t count)
{
    struct helm_vocabulary *v = open_bytes(NULL);
    for (size_t i = 0; i < count; i++) {
        struct helm_grammar *g = open_grammar(v, kind, cases[i].grammar);
        for (int k = 0; k < 12 && cases[i].good[k]; k++)
            if (fit(g, cases[i].good[k], strlen(cases[i].good[k])) != FITS)
                fail_msg("%s does not take: %s", cases[i].grammar, cases[i].good[k]);
        for (int k = 0; k < 16 && cases[i].bad[k]; k++)
            if (fit(g, cases[i].bad[k], strlen(cases[i].bad[k])) == FITS)
                fail_msg("%s takes: %s", cases[i].grammar, cases[i].bad[k]);
        helm_grammar_close(g);
    }
    helm_vocabulary_close(v);
}

/* Grammars that are refused, and what the error says. */
struct refusal_case {
    const char *grammar;
    int code;
    const char *says;
};
static inline void check_refusals(enum helm_grammar_kind kind, const struct refusal_case *cases, size_t count)
{
    struct helm_vocabulary *v = open_bytes(NULL);
    for (size_t i = 0; i < count; i++) {
        struct helm_grammar *g;
        struct helm_err err = {0};
        const int rc = helm_grammar_open(v, kind, cases[i].grammar, strlen(cases[i].grammar), &g, &err);
        if (rc == 0) fail_msg("%s is not refused", cases[i].grammar);
        if (rc != cases[i].code || !strstr(err.text, cases[i].says))
            fail_msg("%s: %s (%d) does not say %s", cases[i].grammar, err.text, rc, cases[i].says);
        assert_null(g);
    }
    helm_vocabulary_close(v);
}
