/* Where each position of each KV page lies: one definition for C and CUDA.
 *
 * The cache is an array of pages; a page holds `page_tokens` consecutive positions of one sequence for all
 * layers of one layer group (the layers one worker computes). Inside a page: [layer in group][K, V][kv_head],
 * each the *rows* of one head:
 *
 *   [token in page][head_dim]        numbers of the cells (common/formats/kv_dtype.h)
 *   [token in page][head_dim / 32]   their scales, fp16, of q8_0 alone
 *
 * so that one head's keys of a page are contiguous (a dot product streams them) and so are its values. Scales
 * lie after all numbers and not each in front of its 32 as in GGUF's blocks of 34 bytes: numbers begin on 32
 * bytes then, loads of 16 or 32 of them are aligned, and a page's scales are a few whole cache lines. Rows of
 * quantised cells take whole 16 bytes.
 *
 * In latent attention (`latent` is not 0) a value is the first numbers of its position's key, and there are
 * no rows of V: what reads values finds the keys' rows. A sequence's page table maps position / page_tokens
 * to a page number. Header-only, no state. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/formats/kv_dtype.h"

#define KV_PAGE_TOKENS_DEFAULT 32

struct kv_layout {
    uint32_t layers; /* layers in the group */
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t page_tokens; /* a power of two */
    uint32_t dtype;       /* enum kv_dtype */
    uint32_t
        latent; /* numbers of a value, which are the first of its key; 0: values have rows of their own */
};

/* A layer keeps this of a head: K and V, or both in one. */
KV_INLINE uint32_t kv_kinds(const struct kv_layout *l)
{
    return l->latent ? 1 : 2;
}
/* The most of a head's numbers that are a value's. */
KV_INLINE uint32_t kv_value_dim(const struct kv_layout *l)
{
    return l->latent ? l->latent : l->head_dim;
}

/* One head's rows in a page: bytes of the numbers, after which the scales begin, and of both. */
KV_INLINE uint64_t kv_scales_at(const struct kv_layout *l)
{
    return (uint64_t)l->page_tokens * kv_number_bytes(l->dtype, l->head_dim);
}
KV_INLINE uint64_t kv_head_bytes(const struct kv_layout *l)
{
    const uint64_t bytes = (uint64_t)l->page_tokens * kv_cell_bytes(l->dtype, l->head_dim);
    return kv_dtype_is_plain(l->dtype) ? bytes : (bytes + 15) / 16 * 16;
}
KV_INLINE uint64_t kv_layer_bytes(const struct kv_layout *l)
{
    return (uint64_t)kv_kinds(l) * l->kv_heads * kv_head_bytes(l);
}
KV_INLINE uint64_t kv_page_bytes(const struct kv_layout *l)
{
    return l->layers * kv_layer_bytes(l);
}

/* Byte offset of the rows of (page, layer in group, is_value, kv_head) from the pool's base. */
KV_INLINE uint64_t kv_offset(const struct kv_layout *l, uint32_t page, uint32_t layer, uint32_t is_value,
                             uint32_t kv_head)
{
    return page * kv_page_bytes(l) + layer * kv_layer_bytes(l) +
           ((uint64_t)(is_value && !l->latent) * l->kv_heads + kv_head) * kv_head_bytes(l);
}

/* The plain definition of a cell: its number d as a float. `rows`: as kv_offset says; token: in the page. */
static inline float kv_cell_value(const struct kv_layout *l, const void *rows, uint32_t token, uint32_t d)
{
    const size_t at = (size_t)token * l->head_dim + d;
    if (kv_dtype_is_plain(l->dtype)) return convert_load(rows, (enum dtype)l->dtype, at);
    return convert_load((const char *)rows + kv_scales_at(l), DTYPE_F16, at / KV_Q8_0_VALUES) *
           (float)((const int8_t *)rows)[at];
}

/* Pages that `tokens` positions need. */
static inline uint32_t kv_pages_for(uint32_t tokens, uint32_t page_tokens)
{
    return tokens / page_tokens + (tokens % page_tokens != 0);
}
