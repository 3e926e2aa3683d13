/* Tries of tokens. See tries.h. */
#include "client/text/grammar/tries.h"

#include <stdlib.h>
#include <string.h>

int trie_entry_order(const void *a, const void *b)
{
    const struct trie_entry *x = a, *y = b;
    const uint32_t n = x->length < y->length ? x->length : y->length;
    const int c = memcmp(x->bytes, y->bytes, n);
    if (c) return c;
    if (x->length != y->length) return x->length < y->length ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static uint32_t common_bytes(const struct trie_entry *a, const struct trie_entry *b)
{
    uint32_t n = 0;
    while (n < a->length && n < b->length && a->bytes[n] == b->bytes[n]) n++;
    return n;
}

int trie_build(const struct trie_entry *entry, uint32_t count, struct trie *trie, struct helm_err *err)
{
    uint64_t nodes = 0;
    uint32_t longest = 0;
    for (uint32_t i = 0; i < count; i++) {
        nodes += entry[i].length - (i ? common_bytes(&entry[i - 1], &entry[i]) : 0);
        if (entry[i].length > longest) longest = entry[i].length;
    }
    *trie = (struct trie){0};
    if (nodes > UINT32_MAX / 2) return helm_fail(err, HELM_E_LIMIT, "the vocabulary has too many bytes");
    trie->node = malloc((nodes ? nodes : 1) * sizeof *trie->node);
    trie->token = malloc((count ? count : 1) * sizeof *trie->token);
    uint32_t *open = malloc(((size_t)longest + 1) * sizeof *open); /* nodes from the root to the last token */
    if (!trie->node || !trie->token || !open) {
        free(open);
        trie_free(trie);
        return helm_fail(err, HELM_E_NOMEM, "no memory for a vocabulary of %u tokens", count);
    }
    uint32_t depth = 0;
    trie->tokens = count;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t shared = i ? common_bytes(&entry[i - 1], &entry[i]) : 0;
        while (depth > shared) trie->node[open[--depth]].next = trie->count;
        for (; depth < entry[i].length; depth++) {
            open[depth] = trie->count;
            trie->node[trie->count++] = (struct trie_node){.byte = entry[i].bytes[depth], .first = i};
        }
        trie->token[i] = entry[i].id;
        if (depth && trie->node[open[depth - 1]].count < (1u << 24) - 1) trie->node[open[depth - 1]].count++;
    }
    while (depth > 0) trie->node[open[--depth]].next = trie->count;
    free(open);
    return 0;
}

void trie_free(struct trie *trie)
{
    free(trie->node);
    free(trie->token);
    *trie = (struct trie){0};
}
