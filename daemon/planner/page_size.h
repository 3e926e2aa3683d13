/* How many positions a page of the KV cache has: the size with the least extra time of a decoded token.
 *
 * Called by main.c and helm-plan before a plan is made, since all sizes of a plan are in pages. Pure. Costs
 * that rise or fall with a page's size, in seconds of a token (docs/planner-tiers.md):
 *   places   VRAM that pages of short sequences do not fill: weights that lie in host memory instead. Rises.
 *   again    tokens of a prompt in front of a page that is not whole, which the prefix cache does not share.
 *            Rises.
 *   reads    the CPU reads a page's keys of a few heads in one run; short runs are slow to read. Falls.
 *   copies   a filled page is copied to host memory, a copy for each layer at most, each with a latency.
 *            Falls.
 * The length of page tables (4 bytes a page) is below a microsecond at any size and is left out. */
#pragma once

#include "daemon/planner/planner.h"

#define PAGE_SIZE_LEAST   ((uint32_t)KV_PAGE_TOKENS_DEFAULT)
#define PAGE_SIZES        5 /* 32, 64, ... 512 */
#define PAGE_SIZE_CHOICES "auto|32|64|128|256|512"
#define PAGE_SIZE_DEFAULT "auto"

struct page_size_case {
    const struct model *model;
    const struct profile *profile;
    const struct ledger_device *device; /* what may be used of it; NULL: none is */
    enum kv_dtype kv_dtype;
    uint32_t slots, ctx; /* ctx 0: not said */
    const char *option;  /* one of PAGE_SIZE_CHOICES */
};

enum page_cost { PAGE_COST_PLACES, PAGE_COST_AGAIN, PAGE_COST_READS, PAGE_COST_COPIES, PAGE_COSTS };

struct page_size {
    uint32_t tokens; /* the chosen size */
    /* Parts of a token's time by which it is longer, the mean over contexts: of PAGE_SIZE_LEAST << i
     * tokens */
    double part[PAGE_SIZES][PAGE_COSTS], sum[PAGE_SIZES];
    char text[200]; /* "32 tokens: +0.6 % of a token's time (...); of 64 +1.9 %" */
};

void page_size_choose(const struct page_size_case *c, struct page_size *size);
