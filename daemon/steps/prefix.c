/* A sequence's beginning that is in the KV pool already. See prefix.h. Called by batcher.c; owns nothing. */
#include "daemon/steps/prefix.h"

const char *prefix_sharing_name(enum prefix_sharing sharing)
{
    static const char *const names[PREFIX_SHARINGS] = {"off", "on", "peer"};
    return names[sharing];
}

uint64_t prefix_scope(enum prefix_sharing sharing, uint64_t peer)
{
    if (sharing == PREFIX_ON) return 0;
    return sharing == PREFIX_PEER && peer ? peer : SEQUENCE_NO_SCOPE;
}

void prefix_begin(struct sequence *seq)
{
    seq->cached = seq->rung = seq->asked = seq->pages = 0;
    seq->page_end = seq->scope;
}

/* How many whole pages of known tokens may still be taken; 0 unless it stands where a page ends. */
static uint32_t pages_ahead(const struct kv_pages *pages, const struct sequence *seq)
{
    const uint32_t page_tokens = pages->known.page_tokens;
    if (seq->scope == SEQUENCE_NO_SCOPE || seq->rung != seq->cached) return 0; /* a step has it */
    return seq->cached == seq->pages * page_tokens ? (seq->token_count - 1 - seq->cached) / page_tokens : 0;
}

bool prefix_take(struct kv_pages *pages, uint32_t *row, struct sequence *seq)
{
    const uint32_t page_tokens = pages->known.page_tokens, before = seq->pages;
    const uint32_t ahead = pages_ahead(pages, seq);
    if (!ahead) return false;
    kv_pages_take_known(pages, row, &seq->pages, before + ahead, seq->tokens + seq->cached, &seq->page_end);
    if (seq->pages == before) return false;
    seq->cached = seq->rung = seq->pages * page_tokens;
    const uint32_t to = seq->cached < seq->prompt_count ? seq->cached : seq->prompt_count;
    if (to > seq->reach)
        seq->found += to - seq->reach; /* up to `reach` it computed itself, or found before */
    if (seq->cached > seq->reach) seq->reach = seq->cached;
    return true;
}

uint32_t prefix_shared(const struct kv_pages *pages, const struct sequence *seq)
{
    return kv_pages_shared(pages, pages_ahead(pages, seq), seq->tokens, seq->page_end);
}

uint64_t prefix_next_page(const struct kv_pages *pages, const struct sequence *seq)
{
    if (!pages_ahead(pages, seq)) return 0;
    return prefix_index_hash(&pages->known, seq->page_end, seq->tokens + seq->cached);
}

void prefix_computed(struct kv_pages *pages, const uint32_t *row, struct sequence *seq, uint32_t cached)
{
    const uint32_t page_tokens = pages->known.page_tokens;
    /* a row too many may stand behind the last token that is known */
    const uint32_t full = (cached < seq->token_count ? cached : seq->token_count) / page_tokens;
    for (uint32_t i = seq->cached / page_tokens; i < full && seq->scope != SEQUENCE_NO_SCOPE; i++)
        seq->page_end = kv_pages_make_known(pages, row[i], seq->page_end, seq->tokens + i * page_tokens);
    seq->cached = cached;
    if (cached > seq->reach) seq->reach = cached;
}

void prefix_forget(struct kv_pages *pages, const uint32_t *row, const struct sequence *seq)
{
    for (uint32_t i = 0; i < seq->pages; i++) kv_pages_forget(pages, row[i]);
}
