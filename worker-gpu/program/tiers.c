/* Copies of pages between the two tiers of the cache. See tiers.h. */
#include "worker-gpu/program/tiers.h"

bool gpu_cells_next(const struct gpu_source *s, uint32_t from, struct gpu_cells *cells)
{
    const struct plan *plan = s->plan;
    uint32_t kv_layer;
    *cells = (struct gpu_cells){0};
    for (uint32_t l = from; l < plan->layers; l++) {
        if (!plan_keeps_pages(plan, l) || plan_kv_of(plan, l, &kv_layer) != s->self) {
            if (cells->layers) return true;
            continue;
        }
        if (!cells->layers) *cells = (struct gpu_cells){.kv_layer = kv_layer, .layer = l};
        cells->layers++;
    }
    return cells->layers > 0;
}

/* `run` pages, neighbours on both sides, from `page` and `place` on. */
struct pages {
    uint32_t page, place, run;
};

static int copy_pages(const struct gpu_source *s, enum device_queue queue, enum device_direction direction,
                      const struct gpu_cells *cells, const struct pages *p, struct helm_err *err)
{
    const struct kv_layout *host = &arena_header_of(s->arena)->kv;
    const uint64_t layer_bytes = kv_layer_bytes(host), host_stride = kv_page_bytes(host),
                   stride = kv_page_bytes(&s->kv);
    char *there = (char *)arena_region_ptr(s->arena, ARENA_REGION_KV) + p->page * host_stride +
                  plan_kv_layer_in_arena(s->plan, cells->layer) * layer_bytes;
    char *here = (char *)s->kv_pool + p->place * stride + cells->kv_layer * layer_bytes;
    const bool down = direction == DEVICE_TO_HOST;
    const uint64_t width = cells->layers * layer_bytes;
    if (p->run == 1)
        return device_copy(s->device, queue, direction, down ? there : here, down ? here : there, width, err);
    const struct device_copy_2d copy = {.to = down ? there : here,
                                        .from = down ? here : there,
                                        .to_stride = down ? host_stride : stride,
                                        .from_stride = down ? stride : host_stride,
                                        .width = width,
                                        .height = p->run};
    return device_copy_2d(s->device, queue, direction, &copy, err);
}

int gpu_copy_page(const struct gpu_source *s, enum device_direction direction, const struct gpu_cells *cells,
                  uint32_t page, uint32_t place, struct helm_err *err)
{
    const struct pages p = {.page = page, .place = place, .run = 1};
    return copy_pages(s, DEVICE_COPY, direction, cells, &p, err);
}

/* ---- what steps fill ---- */

/* Pages of a row, by index, that end in tokens of the step. */
static void filled_of(const struct batch_row *row, uint32_t page_tokens, uint32_t ahead, uint32_t *first,
                      uint32_t *end)
{
    *first = (row->start + ahead) / page_tokens;
    *end = (row->start + ahead + row->count) / page_tokens;
}

uint32_t gpu_fills(const struct batch *batch, uint32_t page_tokens, uint32_t ahead)
{
    uint32_t pages = 0, first, end;
    for (uint32_t r = 0; r < batch->row_count; r++) {
        filled_of(&batch->row[r], page_tokens, ahead, &first, &end);
        pages += end - first;
    }
    return pages;
}

bool gpu_reads_host(const struct batch *batch)
{
    for (uint32_t r = 0; r < batch->row_count; r++)
        if (batch->row[r].host_tokens) return true;
    return false;
}

int gpu_store_filled(const struct gpu_source *s, enum device_queue queue, const struct gpu_cells *cells,
                     const struct batch *batch, uint32_t ahead, struct helm_err *err)
{
    int rc = 0;
    for (uint32_t r = 0; r < batch->row_count && !rc; r++) {
        const struct batch_row *row = &batch->row[r];
        uint32_t at, end;
        filled_of(row, s->kv.page_tokens, ahead, &at, &end);
        while (at < end && !rc) {
            struct pages p = {.page = row->pages[at], .place = row->places[at], .run = 1};
            while (at + p.run < end && row->pages[at + p.run] == p.page + p.run &&
                   row->places[at + p.run] == p.place + p.run)
                p.run++;
            rc = copy_pages(s, queue, DEVICE_TO_HOST, cells, &p, err);
            at += p.run;
        }
    }
    return rc;
}

/* ---- what is fetched ---- */

int gpu_fetch_pages(const struct gpu_source *s, const struct step_fetch *fetch, uint32_t count,
                    struct helm_err *err)
{
    struct gpu_cells cells;
    int rc = 0;
    for (uint32_t from = 0; !rc && gpu_cells_next(s, from, &cells); from = cells.layer + cells.layers)
        for (uint32_t i = 0; i < count && !rc;) {
            struct pages p = {.page = fetch[i].page, .place = fetch[i].place, .run = 1};
            while (i + p.run < count && fetch[i + p.run].page == p.page + p.run &&
                   fetch[i + p.run].place == p.place + p.run)
                p.run++;
            rc = copy_pages(s, DEVICE_COPY, DEVICE_TO_DEVICE, &cells, &p, err);
            i += p.run;
        }
    return rc;
}

uint64_t gpu_tier_page_bytes(const struct gpu_source *s)
{
    return kv_page_bytes(&s->kv);
}
