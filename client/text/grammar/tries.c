/* Tries of tokens. See tries.h. */
#include "client/text/grammar/tries.h"

#include <stdlib.h>
#include <string.h>

#define TRIE_SAME_MAX ((1u << 23) - 1) /* tokens of the same bytes */

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

/* Adds the nodes below one: entries [from, to), sorted, begin with its bytes, `depth` of them, and are
 * longer. */
static void add_family(struct trie *trie, const struct trie_entry *entry, uint32_t from, uint32_t to,
                       uint32_t depth)
{
    const uint32_t begin = trie->count;
    for (uint32_t i = from; i < to; i++) {
        if (i > from && entry[i].bytes[depth] == entry[i - 1].bytes[depth]) continue;
        trie->node[trie->count++] = (struct trie_node){.byte = entry[i].bytes[depth], .first = i};
    }
    const uint32_t end = trie->count;
    trie->node[end - 1].last = 1;
    for (uint32_t n = begin; n < end; n++) {
        struct trie_node *node = &trie->node[n];
        const uint32_t node_end = n + 1 < end ? node[1].first : to;
        uint32_t i = node->first;
        for (; i < node_end && entry[i].length == depth + 1 && node->count < TRIE_SAME_MAX; i++)
            node->count++;
        while (i < node_end && entry[i].length == depth + 1) i++;
        if (i == node_end) continue;
        node->children = trie->count;
        add_family(trie, entry, i, node_end, depth + 1);
    }
}

int trie_build(const struct trie_entry *entry, uint32_t count, struct trie *trie, struct helm_err *err)
{
    uint64_t nodes = 0;
    uint32_t empty = 0;
    while (empty < count && entry[empty].length == 0) empty++;
    for (uint32_t i = empty; i < count; i++)
        nodes += entry[i].length - (i > empty ? common_bytes(&entry[i - 1], &entry[i]) : 0);
    *trie = (struct trie){0};
    if (nodes > UINT32_MAX / 2) return helm_fail(err, HELM_E_LIMIT, "the vocabulary has too many bytes");
    trie->node = malloc((nodes ? nodes : 1) * sizeof *trie->node);
    trie->token = malloc((count ? count : 1) * sizeof *trie->token);
    if (!trie->node || !trie->token) {
        trie_free(trie);
        return helm_fail(err, HELM_E_NOMEM, "no memory for a vocabulary of %u tokens", count);
    }
    trie->tokens = count;
    for (uint32_t i = 0; i < count; i++) trie->token[i] = entry[i].id;
    if (empty < count) add_family(trie, entry, empty, count, 0);
    return 0;
}

uint32_t trie_tokens_below(const struct trie *trie, uint32_t node, uint32_t *first)
{
    const struct trie_node *n = &trie->node[node];
    *first = n->first + n->count;
    while (n->children)
        for (n = &trie->node[n->children]; !n->last;) n++;
    return n->first + n->count - *first;
}

void trie_free(struct trie *trie)
{
    free(trie->node);
    free(trie->token);
    *trie = (struct trie){0};
}
