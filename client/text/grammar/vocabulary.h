/* The tokens of a vocabulary by their bytes.
 *
 * Made by vocabulary.c; read by summary.c and mask.c. A special token's bytes are VOCABULARY_SPECIAL, which
 * UTF-8 never has, and its id in three bytes: only a grammar that names it comes there (llguidance marks them
 * the same way). Immutable. */
#pragma once

#include "client/text/grammar/grammar.h"
#include "client/text/grammar/slices.h"

#define VOCABULARY_SPECIAL       0xffu
#define VOCABULARY_SPECIAL_BYTES 4
#define VOCABULARY_TOKEN_BYTES   1024 /* tokens of more bytes are never allowed */
#define VOCABULARY_ENDS          64

struct helm_vocabulary {
    struct trie trie;      /* of all tokens */
    struct slices slices;  /* the same tokens in parts */
    uint32_t vocab, words; /* ids; words of a mask */
    uint32_t longest;      /* bytes of a token */
    uint32_t *offset;      /* [vocab + 1] of each token's bytes; none: never allowed */
    unsigned char *bytes;
    uint32_t end[VOCABULARY_ENDS], end_count;
    _Atomic size_t
        *held; /* bytes of all grammars and outputs (GRAMMAR_BYTES_MAX): the one thing that changes */
};

static inline bool vocabulary_is_end(const struct helm_vocabulary *v, uint32_t id)
{
    for (uint32_t i = 0; i < v->end_count; i++)
        if (v->end[i] == id) return true;
    return false;
}

/* The same from bytes: token i is bytes[offset[i] .. offset[i + 1]). For tests; copies both. */
HELM_MUST_CHECK int vocabulary_open_bytes(const unsigned char *bytes, const uint32_t *offset, uint32_t vocab,
                                          const uint32_t *ends, size_t end_count,
                                          struct helm_vocabulary **out, struct helm_err *err);
