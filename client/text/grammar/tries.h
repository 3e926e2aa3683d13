/* Tokens as a trie of their bytes, flat and in order: a walk over it is a walk through memory.
 *
 * Made for vocabulary.c, slices.c and summary.c; walked by walk.c. */
#ifndef HELM_CLIENT_TEXT_GRAMMAR_TRIES_H
#define HELM_CLIENT_TEXT_GRAMMAR_TRIES_H

#include <stdint.h>

#include "common/base/err.h"

struct trie_node {
    uint32_t next;  /* the node behind everything below this one */
    uint32_t first; /* tokens that end here: token[first .. first + count) */
    uint32_t count : 24, byte : 8;
};
/* Nodes in preorder, children by rising bytes; the root itself is not among them. */
struct trie {
    struct trie_node *node;
    uint32_t count, tokens;
    uint32_t *token; /* [tokens] */
};
/* One token for it: its id and where its bytes are. */
struct trie_entry {
    const unsigned char *bytes;
    uint32_t length, id;
};
/* A trie of `count` tokens, sorted by their bytes. */
HELM_MUST_CHECK int trie_build(const struct trie_entry *entry, uint32_t count, struct trie *trie,
                               struct helm_err *err);
void trie_free(struct trie *trie);
int trie_entry_order(const void *a, const void *b);

#endif
