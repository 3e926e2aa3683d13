/* Tokens as a trie of their bytes. The children of a node lie side by side: a walk looks at all of them and
 * descends into few. Where a model's weights have gone through the caches, a walk's time is that of waiting
 * for memory.
 *
 * Made for vocabulary.c, slices.c and summary.c; walked by walk.c. */
#pragma once

#include <stdint.h>

#include "common/base/err.h"

struct trie_node {
    uint32_t children; /* the first of them; 0: there are none */
    uint32_t first;    /* tokens that end here: token[first .. first + count); those below come after them */
    uint32_t count : 23;
    uint32_t last : 1; /* of its parent's children */
    uint32_t byte : 8;
};
/* The root's children come first, then what is below the first one, the second one, and so on; siblings by
 * rising bytes. The root itself is not among them. */
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
/* Tokens that go on after a node: token[*first .. *first + the result). */
uint32_t trie_tokens_below(const struct trie *trie, uint32_t node, uint32_t *first);
void trie_free(struct trie *trie);
int trie_entry_order(const void *a, const void *b);
