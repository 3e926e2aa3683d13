/* The tokens of a vocabulary as a trie of their bytes, flat and in order: a walk over it is a walk through memory.
 *
 * Made by vocabulary.c; read by mask.c. A special token's bytes are SPECIAL_BYTE, which UTF-8 never has, and its id in
 * three bytes: only a grammar that names it comes there (llguidance marks them the same way). Immutable. */
#ifndef HELM_CLIENT_TEXT_GRAMMAR_VOCABULARY_H
#define HELM_CLIENT_TEXT_GRAMMAR_VOCABULARY_H

#include "client/text/grammar/grammar.h"

#define VOCABULARY_SPECIAL       0xffu
#define VOCABULARY_SPECIAL_BYTES 4
#define VOCABULARY_TOKEN_BYTES   1024 /* tokens of more bytes are never allowed */
#define VOCABULARY_ENDS          64

struct trie_node {
    uint32_t next;  /* the node behind everything below this one */
    uint32_t first; /* tokens that end here: token[first .. first + count) */
    uint16_t count;
    uint8_t byte;
};

/* Nodes in preorder, children by rising bytes; the root itself is not among them. */
struct trie {
    struct trie_node *node;
    uint32_t count, tokens;
    uint32_t *token; /* [tokens] */
};

struct helm_vocabulary {
    struct trie trie;
    uint32_t vocab, words; /* ids; words of a mask */
    uint32_t longest;      /* bytes of a token */
    uint32_t *offset;      /* [vocab + 1] of each token's bytes; none: never allowed */
    unsigned char *bytes;
    uint32_t end[VOCABULARY_ENDS], end_count;
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
/* A trie of `count` tokens, sorted by their bytes; of each its id and where its bytes are. */
struct trie_entry {
    const unsigned char *bytes;
    uint32_t length, id;
};
HELM_MUST_CHECK int trie_build(const struct trie_entry *entry, uint32_t count, struct trie *trie,
                               struct helm_err *err);
void trie_free(struct trie *trie);
int trie_entry_order(const void *a, const void *b);

#endif
