/* A chunk's attention in pieces. See pieces.h. */
#include "worker-gpu/program/pieces.h"

#include "worker-gpu/program/tiers.h"

/* ---- numbers ---- */

struct gpu_staged gpu_staged_of(const struct plan *plan, const struct batch_row *row, uint32_t index,
                                bool own)
{
    const uint32_t page = plan->page_tokens, tile = plan_tile_pages(page);
    const uint32_t pages = (own ? row->host_tokens : row->start) / page;
    struct gpu_staged s = {.pieces = pages / tile * tile, .arrived = pages, .end = pages};
    s.tail = 2 * plan_staging(plan).piece + plan_tail_at(page, index, row->token_first, !own);
    if (own) return s;
    s.arrived = (row->start + page - 1) / page;
    s.end = (row->start + row->count + page - 1) / page;
    return s;
}

void gpu_pieces_fill(const struct plan *plan, const struct batch_row *row, uint32_t index, bool own,
                     uint32_t *before, uint32_t *table)
{
    const struct gpu_staged s = gpu_staged_of(plan, row, index, own);
    const uint32_t places = 2 * plan_staging(plan).piece;
    if (index == 0) before[0] = 0;
    before[index + 1] = before[index] + s.pieces;
    for (uint32_t i = 0; i < s.pieces; i++) table[i] = (before[index] + i) % places | GPUK_PAGE_HOST;
    for (uint32_t i = s.pieces; i < s.end; i++) table[i] = (s.tail + i - s.pieces) | GPUK_PAGE_HOST;
}

/* ---- copies ---- */

/* A row's pages [from, to), whose places are consecutive from `place` on. */
struct stretch {
    const struct batch_row *row;
    uint32_t from, to, place;
    bool out; /* to the arena */
};

static int copy_stretch(const struct gpu_source *s, const struct gpu_entry *e, const struct stretch *x,
                        struct helm_err *err)
{
    const struct kv_layout *host = &arena_header_of(s->arena)->kv;
    const uint64_t layer = kv_layer_bytes(host), page = kv_page_bytes(host);
    char *arena = (char *)arena_region_ptr(s->arena, ARENA_REGION_KV) + e->supply.kv_layer * layer;
    int rc = 0;
    for (uint32_t i = x->from, run; i < x->to && !rc; i += run) {
        const uint32_t number = x->row->pages[i];
        for (run = 1; i + run < x->to && x->row->pages[i + run] == number + run;) run++;
        char *there = arena + number * page, *here = (char *)s->staging[0] + (x->place + i - x->from) * layer;
        const struct device_copy_2d copy = {.to = x->out ? there : here,
                                            .from = x->out ? here : there,
                                            .to_stride = x->out ? page : layer,
                                            .from_stride = x->out ? layer : page,
                                            .width = layer,
                                            .height = run};
        rc = device_copy_2d(s->device, DEVICE_COPY, x->out ? DEVICE_TO_HOST : DEVICE_TO_DEVICE, &copy, err);
    }
    return rc;
}

/* A row's page between its place in VRAM and the arena, of a layer of the GPU's in a chunk that appends in
 * the arena. Other layers have no places then. */
static int copy_placed(const struct gpu_source *s, const struct gpu_entry *e, const struct batch_row *row,
                       uint32_t index, enum device_direction direction, struct helm_err *err)
{
    struct gpu_cells cells = {.layer = (uint32_t)e->layer, .layers = 1};
    if (!plan_appends_in_arena(s->plan) || plan_kv_of(s->plan, cells.layer, &cells.kv_layer) != s->self)
        return 0;
    return gpu_copy_page(s, direction, &cells, row->pages[index], row->places[index], err);
}

/* The first page of a row that the layer sees: of a window the first of its tile, since attention reads whole
 * tiles. */
static uint32_t seen_from(const struct gpu_source *s, const struct gpu_entry *e, const struct batch_row *row)
{
    const struct model_config *c = &s->model->config;
    const uint32_t window = c->window ? c->window[e->layer] : 0, page = s->plan->page_tokens,
                   tile = plan_tile_pages(page);
    return window && row->start + 1 > window ? (row->start + 1 - window) / page / tile * tile : 0;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}
static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t pieces_of(const struct gpu_source *s, const struct gpu_entry *e, const struct batch *batch)
{
    const uint32_t piece = plan_staging(s->plan).piece;
    uint32_t pages = 0;
    for (uint32_t r = 0; r < batch->row_count; r++)
        pages += gpu_staged_of(s->plan, &batch->row[r], r, e->supply.own).pieces;
    return (pages + piece - 1) / piece;
}

static int copy_piece(const struct gpu_source *s, const struct gpu_entry *e, const struct batch *batch,
                      uint32_t index, struct helm_err *err)
{
    const uint32_t piece = plan_staging(s->plan).piece, first = index * piece, place = index % 2 * piece;
    uint32_t before = 0;
    int rc = 0;
    for (uint32_t r = 0; r < batch->row_count && !rc; r++) {
        const struct batch_row *row = &batch->row[r];
        const uint32_t pages = gpu_staged_of(s->plan, row, r, e->supply.own).pieces;
        const uint32_t low = larger(before, first), high = smaller(before + pages, first + piece);
        struct stretch x = {.row = row};
        if (low < high) {
            x.from = larger(low - before, seen_from(s, e, row));
            x.to = high - before;
            x.place = place + before + x.from - first;
            rc = copy_stretch(s, e, &x, err);
        }
        before += pages;
    }
    if (rc) return rc;
    return s->device->ops->event_record(s->device, DEVICE_COPY, s->event[GPU_EVENT_PIECE_IN + index % 2],
                                        err);
}

int gpu_pieces_begin(const struct gpu_source *s, const struct gpu_entry *e, const struct batch *batch,
                     struct helm_err *err)
{
    const uint32_t pieces = pieces_of(s, e, batch);
    int rc = 0;
    for (uint32_t r = 0; r < batch->row_count && !rc; r++) {
        const struct gpu_staged staged = gpu_staged_of(s->plan, &batch->row[r], r, e->supply.own);
        const struct stretch x = {&batch->row[r], staged.pieces, staged.arrived, staged.tail, false};
        if (batch->row[r].start % s->plan->page_tokens) /* a page that is not whole is in VRAM alone */
            rc = copy_placed(s, e, &batch->row[r], staged.arrived - 1, DEVICE_TO_HOST, err);
        if (!rc) rc = copy_stretch(s, e, &x, err);
    }
    if (!rc) rc = s->device->ops->event_record(s->device, DEVICE_COPY, s->event[e->supply.event], err);
    for (uint32_t i = 0; i < 2 && i < pieces && !rc; i++) rc = copy_piece(s, e, batch, i, err);
    return rc;
}

int gpu_pieces_back(const struct gpu_source *s, const struct gpu_entry *e, const struct batch *batch,
                    struct helm_err *err)
{
    int rc = 0;
    for (uint32_t r = 0; r < batch->row_count && !rc; r++) {
        const struct batch_row *row = &batch->row[r];
        const struct gpu_staged staged = gpu_staged_of(s->plan, row, r, e->supply.own);
        const uint32_t from = row->start / s->plan->page_tokens;
        const struct stretch x = {row, from, staged.end, staged.tail + from - staged.pieces, true};
        rc = copy_stretch(s, e, &x, err);
        for (uint32_t i = plan_placed_from(s->plan->page_tokens, row->start, row->count); i < staged.end; i++)
            if (!rc) rc = copy_placed(s, e, row, i, DEVICE_TO_DEVICE, err);
    }
    return rc ? rc : s->device->ops->event_record(s->device, DEVICE_COPY, s->event[e->supply.event], err);
}

uint64_t gpu_pieces_copied(const struct gpu_source *s, const struct gpu_entry *e, const struct batch *batch)
{
    uint64_t pages = 0;
    for (uint32_t r = 0; r < batch->row_count; r++) {
        const struct batch_row *row = &batch->row[r];
        const struct gpu_staged staged = gpu_staged_of(s->plan, row, r, e->supply.own);
        if (e->op.kind == OP_KV_OUT)
            pages += staged.end - row->start / s->plan->page_tokens;
        else
            pages += staged.arrived - smaller(seen_from(s, e, row), staged.pieces);
    }
    return pages;
}

/* ---- attention ---- */

/* Piece by piece: what comes into the place of the one that was read follows that launch. */
int gpu_pieces_attend(const struct gpu_source *s, const struct gpu_entry *e, struct op *op,
                      const struct batch *batch, struct helm_err *err)
{
    const struct device_ops *ops = s->device->ops;
    const uint32_t pieces = pieces_of(s, e, batch);
    struct gpuk_part *part = &op->as.attention.part;
    int rc = 0;
    for (uint32_t i = 0; i < pieces && !rc; i++) {
        struct device_event *in = s->event[GPU_EVENT_PIECE_IN + i % 2],
                            *used = s->event[GPU_EVENT_PIECE_USED + i % 2];
        part->piece = i;
        op->flags = 0; /* after an event */
        rc = ops->event_follow(s->device, DEVICE_COMPUTE, in, err);
        if (!rc) rc = device_run(s->device, op, err);
        if (rc || i + 2 >= pieces) continue;
        rc = ops->event_record(s->device, DEVICE_COMPUTE, used, err);
        if (!rc) rc = ops->event_follow(s->device, DEVICE_COPY, used, err);
        if (!rc) rc = copy_piece(s, e, batch, i + 2, err);
    }
    part->piece = GPUK_PART_LAST;
    return rc ? rc : device_run(s->device, op, err);
}
