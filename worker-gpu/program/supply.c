/* Lowering: where the weights and caches that operations work with come from. See program.h and lower.h;
 * called by program.c and math.c.
 *
 *   weights   at home in VRAM: whole; streamed: slices of the ring, between waiting for each and setting its
 *             place free; of a format that the device does not multiply by: expanded, slice by slice
 *   copies    of the phase's schedule, each as soon as what it overwrites has been used; the tail's last
 *   caches    of the host's layers: into a staging pool before attention, and back; with two tiers of the
 *             GPU's too what a chunk finds in the arena, and what it fills to the arena */
#include "worker-gpu/program/lower.h"

static void add_event(struct lowering *low, enum op_kind kind, enum device_queue queue, uint32_t event)
{
    struct gpu_entry *e = lower_add(low, kind, -1);
    e->supply.queue = queue;
    e->supply.event = event;
}

/* ---- copies ---- */

static void add_copy(struct lowering *low, uint32_t index, uint32_t event)
{
    const struct ring_slice *slice = &low->ring->slice[index];
    struct gpu_entry *e = lower_add(low, OP_STREAM_COPY, (int32_t)unit_layer(slice->unit));
    e->supply.slice = index;
    e->supply.event = event;
    for (uint32_t i = 0; i < slice->part_count && index < low->ring->count; i++)
        low->program->copy_bytes += slice->part[i].bytes;
}

/* The copies that may be queued once slice `used` has been (-1: from the beginning on). */
static void add_copies(struct lowering *low, int32_t used)
{
    const struct ring_schedule *ring = low->ring;
    bool first = true;
    for (; low->next_copy < ring->count && ring->slice[low->next_copy].after <= used; low->next_copy++) {
        if (ring->slice[low->next_copy].held) continue;
        if (first && used >= 0) {
            add_event(low, OP_RECORD, DEVICE_COMPUTE, gpu_event_used((uint32_t)used));
            add_event(low, OP_FOLLOW, DEVICE_COPY, gpu_event_used((uint32_t)used));
        }
        first = false;
        add_copy(low, low->next_copy, gpu_event_arrived(low->next_copy));
    }
    if (low->next_copy < ring->count) return;
    /* The tail's copies are at the end of the list; the events that release them are added here. */
    for (first = true; low->next_tail < ring->tail; low->next_tail++, first = false) {
        if (ring->slice[ring->count + low->next_tail].after > used) break;
        if (first) add_event(low, OP_RECORD, DEVICE_COMPUTE, low->source->events.tail + low->next_tail);
    }
}

/* ---- pieces ---- */

void lower_whole_piece(struct lowering *low, const struct lower_at *at, struct piece *piece)
{
    piece->end = ring_run_end(low->source->weights, at->math, at->layer, piece->first);
    for (uint32_t w = piece->first; w < piece->end; w++) {
        const struct gpu_matrix *m = lower_matrix(low, at->math->weight[w], at->layer);
        piece->format = m->format;
        piece->part[piece->part_count++] = (struct piece_part){
            .weight = w, .matrix = m, .data = m->data, .offset = m->offset_device, .rows = m->rows};
    }
}

/* A slice in its own place: in the ring, or at home. */
static void take_slice(const struct lowering *low, const struct lower_at *at, const struct ring_slice *slice,
                       struct piece *piece)
{
    const struct gpu_source *s = low->source;
    for (uint32_t i = 0; i < slice->part_count; i++) {
        const struct ring_part *p = &slice->part[i];
        const struct gpu_matrix *m = gpu_matrix_of(s->weights, at->math->weight[p->weight], at->layer);
        piece->format = m->format;
        piece->part[piece->part_count++] =
            (struct piece_part){.weight = p->weight,
                                .matrix = m,
                                .data = m->host ? s->ring_memory + slice->place + p->at : p->from,
                                .offset = p->offset,
                                .row = p->row,
                                .rows = p->rows};
    }
}

/* The same slice in the place that it is expanded to. */
static void take_expanded(const struct lowering *low, const struct ring_slice *slice, struct piece *piece)
{
    for (uint32_t i = 0; i < slice->part_count; i++) {
        piece->part[i].data = low->source->expanded + slice->part[i].out;
        piece->part[i].offset = NULL;
    }
    piece->format = tensor_format_plain(tensor_format_product(piece->format));
}

bool lower_reads(const struct lowering *low, const struct math_op *math, const struct piece *piece,
                 enum gpuk_schedule schedule)
{
    struct device *d = low->source->device;
    if (math->kind == MATH_LINEAR_HEADS) return !tensor_format_of(piece->format)->variable;
    if (math->kind != MATH_LINEAR) /* experts: packed ones are expanded for a chunk */
        return !tensor_format_of(piece->format)->variable || schedule == GPUK_ONE || schedule == GPUK_FEW;
    struct gpuk_linear_args args = {.format = piece->format,
                                    .segments = piece->part_count,
                                    .swiglu = math->gated};
    for (uint32_t i = 0; i < piece->part_count; i++) {
        const struct piece_part *p = &piece->part[i];
        args.cols = p->matrix->cols;
        args.segment[i] = (struct gpuk_linear){.weight = p->data, .offset = p->offset, .rows = p->rows};
    }
    return tensor_format_is_plain(piece->format) || d->ask.linear_takes(d, &args, schedule);
}

/* How the tier multiplies by the operation's weights. A chunk's head is of few rows. */
static enum gpuk_schedule schedule_of(const struct lowering *low, const struct lower_at *at)
{
    if (low->program->tier == GPU_TIER_1 && !low->source->plan->invariant) return GPUK_ONE;
    return low->program->tier == GPU_TIER_CHUNK && at->layer >= 0 ? GPUK_CHUNK : GPUK_FEW;
}

/* Whether this slice of the ring is multiplied by without being expanded. */
static bool reads_slice(const struct lowering *low, const struct ring_slice *slice)
{
    const struct lower_at at = lower_at(low, slice->unit, slice->op);
    struct piece piece = {0};
    take_slice(low, &at, slice, &piece);
    return lower_reads(low, at.math, &piece, schedule_of(low, &at));
}

static struct gpu_entry *add_expand(struct lowering *low, const struct ring_slice *slice, uint32_t index)
{
    const struct lower_at at = lower_at(low, slice->unit, slice->op);
    struct gpu_entry *e = lower_add(low, OP_EXPAND, at.layer);
    struct op_expand *expand = &e->op.as.expand;
    struct piece from = {0};
    take_slice(low, &at, slice, &from);
    e->supply.slice = index;
    for (uint32_t i = 0; i < from.part_count; i++)
        expand->part[i] = (struct gpuk_expand_part){.format = from.format,
                                                    .weight = from.part[i].data,
                                                    .offset = from.part[i].offset,
                                                    .out = low->source->expanded + slice->part[i].out,
                                                    .rows = from.part[i].rows,
                                                    .cols = from.part[i].matrix->cols};
    expand->parts = from.part_count;
    return e;
}

struct gpu_entry *lower_expand_home(struct lowering *low, uint32_t index)
{
    struct gpu_entry *e = add_expand(low, &low->source->home->slice[index], index);
    e->home = true;
    return e;
}

/* Whether this slice of the prefix is ever copied again after loading, so that it may be on its way. */
static bool is_copied(const struct lowering *low, uint32_t prefix)
{
    const struct gpu_source *s = low->source;
    for (uint32_t p = 0; p < plan_phase_count(s->plan); p++)
        for (uint32_t t = 0; t < s->ring[p].tail; t++)
            if (s->ring[p].slice[s->ring[p].count + t].prefix == prefix) return true;
    return false;
}

/* Waits for a slice to arrive. Unless products read it as it is, it is expanded then, and its place in the
 * ring set free. */
static void add_arrival(struct lowering *low, uint32_t index)
{
    const struct ring_slice *slice = &low->ring->slice[index];
    if (!slice->held)
        add_event(low, OP_FOLLOW, DEVICE_COMPUTE, gpu_event_arrived(index));
    else if (is_copied(low, slice->prefix))
        add_event(low, OP_FOLLOW, DEVICE_COMPUTE, low->source->events.prefix + slice->prefix);
    if (reads_slice(low, slice)) return;
    add_expand(low, slice, index);
    add_copies(low, (int32_t)index);
}

/* Passes slices at home of units before this one. Where decode has a layer's experts in both memories, a list
 * for prompts may have the CPU compute them: the shared expert's slices lie in VRAM all the same. */
static void pass_home(struct lowering *low, uint32_t unit)
{
    const struct ring_schedule *home = low->source->home;
    while (low->next_home < home->count && home->slice[low->next_home].unit < unit) low->next_home++;
}

/* The slice at `next`, if it is of this operation, and of the piece's run. */
static const struct ring_slice *slice_of(const struct ring_schedule *slices, uint32_t next,
                                         const struct lower_at *at, const struct piece *piece)
{
    const struct ring_slice *slice = next < slices->count ? &slices->slice[next] : NULL;
    const bool own = slice && slice->unit == at->unit && slice->op == at->op;
    return own && slice->part[0].weight >= piece->first && slice->part[0].weight < piece->end ? slice : NULL;
}

static void next_streamed(struct lowering *low, const struct lower_at *at, const struct ring_slice *slice,
                          struct piece *piece)
{
    low->next_slice++;
    piece->streamed = true;
    take_slice(low, at, slice, piece);
    if (!reads_slice(low, slice)) take_expanded(low, slice, piece);
    if (low->ahead != piece->slice + 1) add_arrival(low, piece->slice);
}

/* At home in a format that may have to be expanded: whole where the tier's product takes it so. */
static void next_home(struct lowering *low, const struct lower_at *at, const struct ring_slice *slice,
                      struct piece *piece)
{
    if (slice->part[0].weight == piece->first && slice->part[0].row == 0) {
        struct piece whole = *piece;
        lower_whole_piece(low, at, &whole);
        if (!low->rc && lower_reads(low, at->math, &whole, schedule_of(low, at))) {
            *piece = whole;
            while (slice_of(low->source->home, low->next_home, at, piece)) low->next_home++;
            return;
        }
    }
    piece->home = true;
    take_slice(low, at, slice, piece);
    take_expanded(low, slice, piece);
    lower_expand_home(low, low->next_home++);
}

/* At home, and of no slices: multiplied by as it is. */
static void next_whole(struct lowering *low, const struct lower_at *at, struct piece *piece)
{
    lower_whole_piece(low, at, piece);
    if (low->rc || lower_reads(low, at->math, piece, schedule_of(low, at))) return;
    low->rc = helm_fail(low->err, HELM_E_INTERNAL, "layer %d: no slices expand the %s of %s", at->layer,
                        tensor_format_name(piece->format), at->math->name);
}

bool lower_next_piece(struct lowering *low, const struct lower_at *at, struct piece *piece)
{
    const bool begun = piece->part_count > 0, was_streamed = piece->streamed, was_home = piece->home;
    if (was_streamed) add_copies(low, (int32_t)piece->slice);
    if (low->rc) return false;
    pass_home(low, at->unit);
    struct piece next = {.index = begun ? piece->index + 1 : 0,
                         .slice = low->next_slice,
                         .first = piece->first,
                         .end = piece->end};
    if (begun && !(was_streamed && slice_of(low->ring, low->next_slice, at, piece)) &&
        !(was_home && slice_of(low->source->home, low->next_home, at, piece)))
        next.first = piece->end;
    if (next.first >= at->math->weights) return false;
    next.end = ring_run_end(low->source->weights, at->math, at->layer, next.first);
    *piece = next;
    const struct ring_slice *streamed = slice_of(low->ring, low->next_slice, at, piece),
                            *home = slice_of(low->source->home, low->next_home, at, piece);
    if (streamed)
        next_streamed(low, at, streamed, piece);
    else if (home)
        next_home(low, at, home, piece);
    else
        next_whole(low, at, piece);
    return !low->rc;
}

/* Whether the program has slice a's turn before b's: of a shared expert before its unit's experts, too. */
static bool is_before(const struct ring_slice *a, const struct ring_slice *b)
{
    return a->unit < b->unit || (a->unit == b->unit && a->op < b->op);
}

void lower_expand_ahead(struct lowering *low, const struct plan_span *span)
{
    if (low->next_slice >= low->ring->count) return;
    const struct ring_slice *slice = &low->ring->slice[low->next_slice];
    const struct ring_schedule *home = low->source->home;
    if (slice->unit >= span->first_unit + span->unit_count || reads_slice(low, slice)) return;
    pass_home(low, span->first_unit);
    if (low->next_home < home->count && is_before(&home->slice[low->next_home], slice)) return;
    low->ahead = low->next_slice + 1;
    add_arrival(low, low->next_slice);
}

/* ---- caches ---- */

/* Whether the layer's cache is the host's, as that of all is in a chunk that appends in the arena; else
 * *kv_layer is its place in VRAM. */
static bool is_borrowed(const struct lowering *low, uint32_t layer, uint32_t *kv_layer)
{
    if (plan_kv_of(low->source->plan, layer, kv_layer) != low->source->self) return true;
    if (plan_keeps_window(low->source->plan, layer)) return false;
    if (low->program->tier != GPU_TIER_CHUNK || !plan_appends_in_arena(low->source->plan)) return false;
    *kv_layer = plan_kv_layer_in_arena(low->source->plan, layer);
    return true;
}

/* Whether a layer's attention is computed here from a staging pool: a borrowed cache, and of a chunk with two
 * tiers what lies in the arena of any. *own: the cache is the GPU's; *kv_layer: in the arena's pages. */
static bool is_staged(const struct lowering *low, uint32_t layer, bool *own, uint32_t *kv_layer)
{
    const struct plan *plan = low->source->plan;
    const uint32_t unit = unit_of(layer, UNIT_ATTENTION);
    *own = !is_borrowed(low, layer, kv_layer);
    if (!plan_keeps_pages(plan, layer) && (*own || !plan_keeps_window(plan, layer))) return false;
    if (plan_home_processor(plan->unit[unit].home[low->program->phase]) != low->source->self) return false;
    if (!*own) return true;
    *kv_layer = plan_kv_layer_in_arena(plan, layer);
    return plan_kv_tiered(plan) && low->program->tier == GPU_TIER_CHUNK;
}

/* The `index`th layer that is staged in this phase; false where there are fewer. */
static bool staged_layer(const struct lowering *low, uint32_t index, uint32_t *layer, bool *own,
                         uint32_t *kv_layer)
{
    for (*layer = 0; *layer < low->source->plan->layers; ++*layer)
        if (is_staged(low, *layer, own, kv_layer) && index-- == 0) return true;
    return false;
}

static uint32_t stagings(const struct lowering *low)
{
    return plan_kv_tiered(low->source->plan) ? 1 : GPU_STAGINGS;
}

/* Copies of layers that have a staging pool to go to. */
static void add_fetches(struct lowering *low)
{
    uint32_t layer, kv_layer;
    bool own;
    while (low->fetched < low->staged + stagings(low) &&
           staged_layer(low, low->fetched, &layer, &own, &kv_layer)) {
        uint32_t staging = low->fetched++ % stagings(low);
        struct gpu_entry *e = lower_add(low, OP_KV_IN, (int32_t)layer);
        e->supply = (struct gpu_supply){.kv_layer = kv_layer,
                                        .staging = staging,
                                        .event = GPU_EVENT_KV_IN + staging,
                                        .own = own};
        if (own) e->when = GPU_WHEN_READS_HOST;
    }
}

/* Both pools of a layer: with few tokens the arena's pages where they lie, of a chunk places of the staging
 * pool. For a cache that is the arena's alone the table has pages of the arena only. */
static void take_tiers(const struct lowering *low, uint32_t layer, bool borrowed, struct gpuk_attention *a)
{
    const struct gpu_source *s = low->source;
    const struct kv_layout *host = &arena_header_of(s->arena)->kv;
    const bool chunk = low->program->tier == GPU_TIER_CHUNK;
    char *arena = (char *)arena_region_ptr(s->arena, ARENA_REGION_KV) +
                  plan_kv_layer_in_arena(s->plan, layer) * kv_layer_bytes(host);
    a->kv.pool_host = chunk ? s->staging[0] : arena;
    a->kv.host_stride = chunk ? kv_layer_bytes(host) : kv_page_bytes(host);
    if (borrowed)
        a->step.page_table = (const void *)((const char *)gpu_area(s->buffers, GPU_AREA_BLOCK) +
                                            low->program->block.arena_table);
}

/* Pages of windows lie in a pool of their own, or, borrowed, in the staging memory by the same numbers; their
 * entries stand after those of pages. */
static void take_window(const struct lowering *low, uint32_t layer, struct gpuk_attention *a)
{
    const struct gpu_source *s = low->source;
    uint32_t kv_layer;
    const bool borrowed = is_borrowed(low, layer, &kv_layer);
    a->kv =
        (struct gpuk_kv){.layout = s->window_kv, .pool = s->window_pool, .layer = borrowed ? 0 : kv_layer};
    a->step.page_table += a->step.pages_per_slot / 2;
    if (!borrowed) return;
    a->kv.layout.layers = 1;
    a->kv.pool = gpu_window_staging(s, low->staged % stagings(low));
}

void lower_cache(const struct lowering *low, uint32_t layer, struct gpuk_attention *a)
{
    const struct gpu_source *s = low->source;
    uint32_t kv_layer;
    if (plan_keeps_window(s->plan, layer)) {
        take_window(low, layer, a);
        return;
    }
    const bool borrowed = is_borrowed(low, layer, &kv_layer), tiered = plan_kv_tiered(s->plan);
    a->kv = (struct gpuk_kv){.layout = s->kv,
                             .pool = s->kv_pool,
                             .pool_host = NULL,
                             .layer = borrowed ? 0 : kv_layer};
    if (tiered) take_tiers(low, layer, borrowed, a);
    if (!borrowed || tiered) return;
    a->kv.layout.layers = 1;
    a->kv.pool = s->staging[low->staged % GPU_STAGINGS];
}

/* All entries from `first` on are issued only for such steps. */
static void only_when(struct lowering *low, uint32_t first, enum gpu_when when)
{
    for (uint32_t i = first; i < low->program->count; i++) low->program->entry[i].when = when;
}

struct gpu_supply lower_cache_pieces(const struct lowering *low, uint32_t layer)
{
    struct gpu_supply supply = {0};
    (void)is_staged(low, layer, &supply.own, &supply.kv_layer);
    return supply;
}

void lower_cache_begin(struct lowering *low, uint32_t layer)
{
    const uint32_t first = low->program->count;
    uint32_t kv_layer;
    bool own;
    if (!is_staged(low, layer, &own, &kv_layer)) return;
    add_event(low, OP_FOLLOW, DEVICE_COMPUTE, GPU_EVENT_KV_IN + low->staged % stagings(low));
    if (own) only_when(low, first, GPU_WHEN_READS_HOST);
}

/* Copies the pages of the layer that a chunk has filled to the arena. */
static void add_store(struct lowering *low, uint32_t layer)
{
    const uint32_t first = low->program->count;
    uint32_t kv_layer;
    (void)is_borrowed(low, layer, &kv_layer);
    lower_add(low, OP_KV_STORE, (int32_t)layer)->supply =
        (struct gpu_supply){.kv_layer = kv_layer, .event = GPU_EVENT_KV_BACK};
    only_when(low, first, GPU_WHEN_FILLS);
    low->stores = true;
}

/* The next layer's pages are copied in before filled ones are copied out: they are needed sooner. */
void lower_cache_end(struct lowering *low, uint32_t layer)
{
    const uint32_t staging = low->staged % stagings(low), first = low->program->count;
    uint32_t kv_layer;
    bool own;
    if (!is_staged(low, layer, &own, &kv_layer)) return;
    add_event(low, OP_RECORD, DEVICE_COMPUTE, GPU_EVENT_KV_USED + staging);
    add_event(low, OP_FOLLOW, DEVICE_COPY, GPU_EVENT_KV_USED + staging);
    if (own) only_when(low, first, GPU_WHEN_TIERS);
    if (!own) {
        lower_add(low, OP_KV_OUT, (int32_t)layer)->supply =
            (struct gpu_supply){.kv_layer = kv_layer, .staging = staging, .event = GPU_EVENT_KV_BACK};
        low->borrows = true;
    }
    low->staged++;
    add_fetches(low);
    if (own) add_store(low, layer);
}

/* ---- a step ---- */

/* Whether this program copies something before it has used anything of the ring: it must not overtake the
 * use that the step before made of the same places. */
static bool begins_with_copies(const struct lowering *low)
{
    const struct ring_schedule *ring = low->ring;
    uint32_t layer, kv_layer;
    bool own;
    for (uint32_t i = 0; i < ring->count && ring->slice[i].after < 0; i++)
        if (!ring->slice[i].held) return true;
    return staged_layer(low, 0, &layer, &own, &kv_layer);
}

void lower_begin_copies(struct lowering *low)
{
    if (!begins_with_copies(low)) return;
    add_event(low, OP_RECORD, DEVICE_COMPUTE, GPU_EVENT_BEGIN);
    add_event(low, OP_FOLLOW, DEVICE_COPY, GPU_EVENT_BEGIN);
}

void lower_first_copies(struct lowering *low)
{
    add_fetches(low);
    add_copies(low, -1);
}

void lower_end_caches(struct lowering *low)
{
    const uint32_t first = low->program->count;
    if (low->borrows || low->stores) add_event(low, OP_FOLLOW, DEVICE_COMPUTE, GPU_EVENT_KV_BACK);
    if (!low->borrows) only_when(low, first, GPU_WHEN_FILLS);
}

/* The tail: after the program's own copies, each as soon as what it overwrites has been used. Several that
 * wait for the same use follow one event. */
void lower_tail(struct lowering *low)
{
    const struct ring_schedule *ring = low->ring;
    low->program->tail = low->program->count;
    for (uint32_t t = 0; t < ring->tail; t++) {
        const struct ring_slice *slice = &ring->slice[ring->count + t];
        if (t == 0 || slice[-1].after < slice->after)
            add_event(low, OP_FOLLOW, DEVICE_COPY, low->source->events.tail + t);
        add_copy(low, ring->count + t, low->source->events.prefix + slice->prefix);
    }
    if (!low->rc &&
        (low->next_slice != ring->count || low->next_copy != ring->count || low->next_tail != ring->tail))
        low->rc =
            helm_fail(low->err, HELM_E_INTERNAL, "of %u slices %u are used, %u copied, and %u of %u more",
                      ring->count, low->next_slice, low->next_copy, low->next_tail, ring->tail);
}
