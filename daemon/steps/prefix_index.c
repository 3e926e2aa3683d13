/* Which KV pages hold which tokens after which beginning. See prefix_index.h. Called by kv_pages.c. */
#include "daemon/steps/prefix_index.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static uint32_t *tokens_of(const struct prefix_index *index, uint32_t page)
{
    return index->tokens + (size_t)page * index->page_tokens;
}

int prefix_index_init(struct prefix_index *index, uint32_t pages, uint32_t page_tokens, struct helm_err *err)
{
    uint32_t buckets = 1;
    memset(index, 0, sizeof *index);
    while (buckets < pages) buckets *= 2;
    index->page_tokens = page_tokens;
    index->mask = buckets - 1;
    index->oldest = index->newest = PREFIX_NO_PAGE;
    index->next_number = PREFIX_SCOPES;
    index->page = calloc(pages, sizeof *index->page);
    index->tokens = malloc((size_t)pages * page_tokens * sizeof *index->tokens);
    index->bucket = malloc(buckets * sizeof *index->bucket);
    if (!index->page || !index->tokens || !index->bucket) {
        prefix_index_free(index);
        return helm_fail(err, HELM_E_NOMEM, "no memory to know %u KV pages by their tokens", pages);
    }
    for (uint32_t i = 0; i < buckets; i++) index->bucket[i] = PREFIX_NO_PAGE;
    /* secret, so that a client cannot choose tokens that share a bucket */
    if (getrandom(&index->key, sizeof index->key, 0) < 0) {
        prefix_index_free(index);
        return helm_fail_errno(err, "drawing a key");
    }
    return 0;
}

void prefix_index_free(struct prefix_index *index)
{
    free(index->page);
    free(index->tokens);
    free(index->bucket);
    memset(index, 0, sizeof *index);
}

uint64_t prefix_index_hash(const struct prefix_index *index, uint64_t before, const uint32_t *tokens)
{
    uint64_t hash = index->key ^ before;
    for (uint32_t i = 0; i < index->page_tokens; i++) {
        hash = (hash ^ tokens[i]) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 32;
    }
    return hash | 1;
}

static uint32_t *bucket_of(const struct prefix_index *index, uint64_t before, const uint32_t *tokens)
{
    return &index->bucket[prefix_index_hash(index, before, tokens) >> 8 & index->mask];
}

uint32_t prefix_index_find(const struct prefix_index *index, uint64_t before, const uint32_t *tokens)
{
    uint32_t at = *bucket_of(index, before, tokens);
    while (at != PREFIX_NO_PAGE &&
           (index->page[at].before != before ||
            memcmp(tokens_of(index, at), tokens, index->page_tokens * sizeof *tokens) != 0))
        at = index->page[at].next;
    return at;
}

uint64_t prefix_index_add(struct prefix_index *index, uint32_t page, uint64_t before, const uint32_t *tokens,
                          uint64_t number)
{
    uint32_t *bucket = bucket_of(index, before, tokens);
    if (!number) number = index->next_number++;
    index->page[page] = (struct prefix_page){.number = number, .before = before, .next = *bucket};
    *bucket = page;
    memcpy(tokens_of(index, page), tokens, index->page_tokens * sizeof *tokens);
    return number;
}

void prefix_index_remove(struct prefix_index *index, uint32_t page)
{
    struct prefix_page *p = &index->page[page];
    uint32_t *at = bucket_of(index, p->before, tokens_of(index, page));
    if (p->rests) prefix_index_wake(index, page);
    while (*at != page) at = &index->page[*at].next;
    *at = p->next;
    p->number = 0;
}

void prefix_index_rest_before(struct prefix_index *index, uint32_t page, uint32_t newer)
{
    struct prefix_page *p = &index->page[page];
    if (newer != PREFIX_NO_PAGE && !index->page[newer].rests) newer = PREFIX_NO_PAGE;
    p->rests = true;
    p->newer = newer;
    p->older = newer == PREFIX_NO_PAGE ? index->newest : index->page[newer].older;
    *(p->older == PREFIX_NO_PAGE ? &index->oldest : &index->page[p->older].newer) = page;
    *(p->newer == PREFIX_NO_PAGE ? &index->newest : &index->page[p->newer].older) = page;
    index->resting++;
}

void prefix_index_wake(struct prefix_index *index, uint32_t page)
{
    struct prefix_page *p = &index->page[page];
    p->rests = false;
    *(p->older == PREFIX_NO_PAGE ? &index->oldest : &index->page[p->older].newer) = p->newer;
    *(p->newer == PREFIX_NO_PAGE ? &index->newest : &index->page[p->newer].older) = p->older;
    index->resting--;
}
