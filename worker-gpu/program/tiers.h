/* Two tiers of the cache (plan.h, arena_layout.h): copies of pages between VRAM's places and the arena.
 *
 * A page has the cells of all layers in the arena, numbered as in the model, and of the GPU's layers in VRAM,
 * numbered as plan_kv_of says. Called by issue.c, of a chunk's layers, and by ../tiers.c, of whole pages.
 * Owns nothing. */
#pragma once

#include "worker-gpu/program/program.h"

/* Neighbouring layers, on both sides. */
struct gpu_cells {
    uint32_t kv_layer; /* the first one in VRAM's pages */
    uint32_t layer;    /* in the arena's */
    uint32_t layers;
};
/* The run of the GPU's layers that begins at model layer `from` or after it; false where there is none. */
bool gpu_cells_next(const struct gpu_source *source, uint32_t from, struct gpu_cells *cells);

/* Pages that a step fills which takes the batch's rows, each `ahead` tokens further: how many. */
uint32_t gpu_fills(const struct batch *batch, uint32_t page_tokens, uint32_t ahead);
/* Whether some of its rows have pages in the arena alone. */
bool gpu_reads_host(const struct batch *batch);
/* Puts copies of these layers of those pages into a queue, from VRAM to the arena. */
HELM_MUST_CHECK int gpu_store_filled(const struct gpu_source *source, enum device_queue queue,
                                     const struct gpu_cells *cells, const struct batch *batch, uint32_t ahead,
                                     struct helm_err *err);
/* Puts a copy of these layers of one page into the copy queue: to the arena, or to its place. */
HELM_MUST_CHECK int gpu_copy_page(const struct gpu_source *source, enum device_direction direction,
                                  const struct gpu_cells *cells, uint32_t page, uint32_t place,
                                  struct helm_err *err);
/* Puts copies of all of the GPU's layers into the copy queue, from the arena to VRAM. */
HELM_MUST_CHECK int gpu_fetch_pages(const struct gpu_source *source, const struct step_fetch *fetch,
                                    uint32_t count, struct helm_err *err);
/* Bytes of a page in VRAM, which is what either copies. */
uint64_t gpu_tier_page_bytes(const struct gpu_source *source);
