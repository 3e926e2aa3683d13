/* Shared by the fuzz targets of grammars: a text as a grammar over a small vocabulary, refused with words or
 * walked by the tokens that its masks allow, which must be those that trying each of them allows. */
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "client/text/grammar/engine.h"

#define FUZZ_TEXT_MAX 2048 /* longer ones take longer and say no more */
#define FUZZ_STEPS    12
#define FUZZ_END      256

static struct helm_vocabulary *fuzz_vocabulary(void)
{
    static const char *const longer[] = {"\"a",
                                         "\": ",
                                         "{\"",
                                         "\"}",
                                         "[[",
                                         "]]",
                                         "],",
                                         "1,",
                                         "12",
                                         "  ",
                                         "ab",
                                         "abc",
                                         "\xc3\xa9",
                                         "a\"",
                                         "true",
                                         "\n  ",
                                         "aaaaaaaa",
                                         "00",
                                         "aB",
                                         "a_1",
                                         "ab\",",
                                         "a-b\n",
                                         "ab\\n",
                                         "b\xe4\xb8",
                                         "\x7f",
                                         "a\xe4\xb8\xad\"",
                                         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\""};
    static struct helm_vocabulary *v;
    unsigned char bytes[512];
    uint32_t offset[300], vocab = 257, used = 256;
    const uint32_t end = FUZZ_END;
    if (v) return v;
    for (uint32_t i = 0; i < 256; i++) bytes[i] = (unsigned char)i, offset[i] = i;
    offset[256] = offset[257] = 256;
    for (size_t i = 0; i < sizeof longer / sizeof *longer; i++) {
        memcpy(bytes + used, longer[i], strlen(longer[i]));
        used += (uint32_t)strlen(longer[i]);
        offset[++vocab] = used;
    }
    if (vocabulary_open_bytes(bytes, offset, vocab, &end, 1, &v, NULL)) abort();
    return v;
}

/* Chosen by `seed`: the walk depends on nothing else. */
static void fuzz_walk(struct helm_grammar *g, uint32_t seed)
{
    const struct helm_vocabulary *v = g->vocabulary;
    uint32_t bits[16], slow[16];
    struct helm_matcher *m;
    struct helm_err err = {0};
    if (helm_matcher_open(g, &m, &err)) {
        if (!*err.text) abort();
        return;
    }
    for (int step = 0; step < FUZZ_STEPS && !helm_matcher_has_ended(m); step++) {
        uint32_t allowed = 0, pick = 0;
        const int rc = helm_matcher_mask(m, bits, &err);
        if (rc == HELM_E_LIMIT || rc == HELM_E_UNSUPPORTED) break;
        if (rc) abort();
        memset(slow, 0, sizeof slow);
        if (mask_fill_slowly(m, slow, &err)) break;
        if (helm_matcher_may_end(m)) slow[FUZZ_END / 32] |= 1u << FUZZ_END % 32;
        if (memcmp(bits, slow, v->words * sizeof *bits) != 0) abort();
        for (uint32_t id = 0; id < v->vocab; id++) {
            if (!(bits[id / 32] >> id % 32 & 1)) continue;
            seed = seed * 1664525 + 1013904223;
            if (seed % ++allowed == 0) pick = id;
        }
        if (!allowed) abort();
        const int took = helm_matcher_take(m, pick, &err);
        if (took == HELM_E_LIMIT) break;
        if (took) abort();
    }
    helm_matcher_close(m);
}

static int fuzz_grammar(enum helm_grammar_kind kind, const uint8_t *data, size_t size)
{
    struct helm_grammar *g;
    struct helm_err err = {0};
    if (size == 0 || size > FUZZ_TEXT_MAX) return 0;
    if (helm_grammar_open(fuzz_vocabulary(), kind, (const char *)data + 1, size - 1, &g, &err)) {
        if (!*err.text || g) abort();
        return 0;
    }
    for (uint32_t i = 0; i < 3; i++) fuzz_walk(g, data[0] + 256 * i);
    helm_grammar_close(g);
    return 0;
}
