/* Where each position of each KV page lies: one definition for C and CUDA.
 *
 * The cache is an array of pages; a page holds `page_tokens` consecutive positions of one sequence for all
 * layers of one layer group (the layers one worker computes). Inside a page: [layer in group][K,
 * V][kv_head][token in page][head_dim]     element type kv dtype so that one head's keys of a page are
 * contiguous rows (a dot product streams them) and so are its values. A sequence's page table maps position /
 * page_tokens to a page number. Header-only, no state. */
#ifndef HELM_COMMON_SHARED_KV_LAYOUT_H
#define HELM_COMMON_SHARED_KV_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#define KV_PAGE_TOKENS_DEFAULT 32

struct kv_layout {
    uint32_t layers; /* layers in the group */
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t page_tokens; /* a power of two */
    uint32_t dtype;       /* enum dtype */
    uint32_t elem_bytes;  /* 2 or 4 */
};

static inline uint64_t kv_head_bytes(const struct kv_layout *l)
{
    return (uint64_t)l->page_tokens * l->head_dim * l->elem_bytes;
}
static inline uint64_t kv_layer_bytes(const struct kv_layout *l)
{
    return 2 * l->kv_heads * kv_head_bytes(l);
}
static inline uint64_t kv_page_bytes(const struct kv_layout *l)
{
    return l->layers * kv_layer_bytes(l);
}

/* Byte offset of (page, layer in group, is_value, kv_head), token 0, from the pool's base. */
static inline uint64_t kv_offset(const struct kv_layout *l, uint32_t page, uint32_t layer, uint32_t is_value,
                                 uint32_t kv_head)
{
    return page * kv_page_bytes(l) + layer * kv_layer_bytes(l) +
           ((uint64_t)is_value * l->kv_heads + kv_head) * kv_head_bytes(l);
}

/* Pages that `tokens` positions need. */
static inline uint32_t kv_pages_for(uint32_t tokens, uint32_t page_tokens)
{
    return tokens / page_tokens + (tokens % page_tokens != 0);
}

#endif
