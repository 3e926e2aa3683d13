/* Cutting `stream` units into slices and laying these into the ring. See ring.h. */
#include "worker-gpu/program/ring.h"

#include <stdlib.h>
#include <string.h>

#include "common/formats/packed.h"
#include "common/base/units.h"
#include "common/program/op.h"
#include "common/program/slices.h"

const struct math_op *ring_math_of(const struct model *model, uint32_t unit, uint32_t op)
{
    if (unit == unit_count(model->config.layers)) return &model->math.head;
    return &model_unit_math(model, unit)->op[op];
}

int32_t ring_layer_of(const struct model *model, uint32_t unit)
{
    return unit == unit_count(model->config.layers) ? -1 : (int32_t)unit_layer(unit);
}

uint32_t ring_run_end(const struct gpu_weights *weights, const struct math_op *math, int32_t layer,
                      uint32_t first)
{
    enum tensor_format format[MATH_WEIGHTS_MAX];
    for (uint32_t w = 0; w < math->weights; w++)
        format[w] = gpu_matrix_of(weights, math->weight[w], layer)->format;
    return program_run_end(math, format, first);
}

struct cutting {
    const struct gpu_weights *weights;
    struct ring_schedule *schedule;
    uint32_t capacity;
    const struct plan *plan;
    uint64_t ring_bytes;
    bool home; /* cuts weights in VRAM that some step expands, instead of those in the arena */
    struct helm_err *err;
};
/* Weights of an operation that are cut together. */
struct run {
    uint32_t unit, op, first, end;
};

static struct ring_slice *add_slice(struct cutting *c)
{
    struct ring_schedule *s = c->schedule;
    if (s->count == c->capacity) {
        uint32_t capacity = c->capacity ? 2 * c->capacity : 64;
        struct ring_slice *grown = realloc(s->slice, capacity * sizeof *grown);
        if (!grown) return NULL;
        s->slice = grown;
        c->capacity = capacity;
    }
    struct ring_slice *slice = &s->slice[s->count++];
    memset(slice, 0, sizeof *slice);
    slice->after = -1;
    return slice;
}

/* Where a part's rows are from the matrix's first on, and their bytes: of a variable format its groups', and
 * before they are there at most. */
static void place_part(const struct gpu_weights *w, const struct gpu_matrix *m, struct ring_part *part,
                       uint64_t *from, uint64_t *bytes)
{
    const enum tensor_format format = m->format;
    *from = part->row * tensor_format_row_bytes(format, m->cols);
    *bytes = part->rows * tensor_format_row_bytes(format, m->cols);
    if (!tensor_format_of(format)->variable) return;
    uint32_t first = part->row / PACKED_ROWS, end = packed_groups(part->row + part->rows);
    part->offset = m->offset_device ? m->offset_device + first : NULL;
    if (m->offset && (!m->host || w->offsets_known)) {
        *from = packed_at(m->offset, first);
        *bytes = packed_at(m->offset, end) - *from;
        return;
    }
    uint64_t most = packed_group_bytes_max(PACKED_ROWS * m->cols);
    *from = first * most;
    *bytes = (end - first) * most;
}

/* The matrix of weight `weight` of an operation. */
static const struct gpu_matrix *matrix_of(const struct cutting *c, uint32_t unit, uint32_t op,
                                          uint32_t weight)
{
    const struct model *model = c->weights->model;
    return gpu_matrix_of(c->weights, ring_math_of(model, unit, op)->weight[weight],
                         ring_layer_of(model, unit));
}

static void add_part(const struct cutting *c, struct ring_slice *slice, uint32_t weight,
                     const struct slice_part *cut)
{
    const struct gpu_matrix *m = matrix_of(c, slice->unit, slice->op, weight);
    struct ring_part *part = &slice->part[slice->part_count++];
    uint64_t from, bytes;
    c->schedule->weight_bytes += cut->rows * tensor_format_row_bytes(m->format, m->cols);
    *part = (struct ring_part){.weight = weight,
                               .row = cut->row,
                               .rows = cut->rows,
                               .out = cut->out,
                               .at = round_up(slice->bytes, RING_ALIGN)};
    place_part(c->weights, m, part, &from, &bytes);
    const char *first = m->host ? m->host : m->data;
    part->from = first ? first + from : NULL;
    part->bytes = bytes;
    slice->bytes = part->at + bytes;
}

/* The run's matrices, as slices are cut of them. */
static int matrices_of(const struct cutting *c, const struct run *run, struct slice_run *cut)
{
    const struct model *model = c->weights->model;
    *cut = (struct slice_run){.math = ring_math_of(model, run->unit, run->op),
                              .experts = model->config.router.experts,
                              .ring_bytes = c->ring_bytes,
                              .home = c->home};
    for (uint32_t w = run->first; w < run->end; w++) {
        const struct gpu_matrix *m = matrix_of(c, run->unit, run->op, w);
        if (!m->host && slice_lies(cut->math, m->format))
            return helm_fail(c->err, HELM_E_INTERNAL, "layer %d: weights %d are not in the arena",
                             ring_layer_of(model, run->unit), (int)cut->math->weight[w]);
        cut->matrix[cut->count++] =
            (struct slice_matrix){.format = m->format, .rows = m->rows, .cols = m->cols};
    }
    return 0;
}

static int cut_run(struct cutting *c, const struct run *run)
{
    const struct model *model = c->weights->model;
    struct slice_part part[MATH_WEIGHTS_MAX];
    struct slice_run cut;
    uint64_t rows = 0, each = 0;
    int rc = matrices_of(c, run, &cut);
    if (!rc) slice_rows(&cut, &rows, &each);
    for (uint64_t first = 0; !rc && first < rows; first += each) {
        struct ring_slice *slice = add_slice(c);
        if (!slice) return helm_fail(c->err, HELM_E_NOMEM, "no memory for %u slices", c->schedule->count);
        slice->unit = run->unit;
        slice->op = run->op;
        const uint32_t parts =
            slice_parts(&cut, (uint32_t)first, (uint32_t)(rows - first < each ? rows - first : each), part,
                        &slice->expanded);
        for (uint32_t i = 0; i < parts; i++) add_part(c, slice, run->first + part[i].matrix, &part[i]);
        if (slice->bytes > c->ring_bytes) {
            char want[UNITS_TEXT], have[UNITS_TEXT];
            return helm_fail(c->err, HELM_E_CAPACITY,
                             "the ring of %s is too small: %u rows of layer %d's %s take %s",
                             units_format_size(c->ring_bytes, have), (unsigned)each,
                             ring_layer_of(model, run->unit), ring_math_of(model, run->unit, run->op)->name,
                             units_format_size(slice->bytes, want));
        }
    }
    return rc;
}

/* Whether a matrix lies in VRAM in a format that some step expands; for the head, of which few rows are
 * wanted, that is one of variable size. */
static bool is_expanded(const struct gpu_matrix *m, int32_t layer)
{
    return !m->host &&
           (layer < 0 ? tensor_format_of(m->format)->variable : !tensor_format_is_plain(m->format));
}

static int cut_operation(struct cutting *c, uint32_t unit, uint32_t op)
{
    const struct math_op *math = ring_math_of(c->weights->model, unit, op);
    const int32_t layer = ring_layer_of(c->weights->model, unit);
    int rc = 0;
    const enum tensor_format format = matrix_of(c, unit, op, 0)->format;
    if (c->home && !tensor_format_is_plain(format) &&
        slice_lies(math, format)) /* experts, whatever the step */
        return 0;
    /* weights that every token reads beside experts in both memories are in VRAM, however these stream */
    if (!c->home &&
        placement_lies(c->plan->unit[unit].home[0], math->weight[0], plan_processor_memory(c->weights->self)))
        return 0;
    for (struct run run = {.unit = unit, .op = op}; run.first < math->weights && !rc; run.first = run.end) {
        run.end = ring_run_end(c->weights, math, layer, run.first);
        if (!c->home || is_expanded(matrix_of(c, unit, op, run.first), layer)) rc = cut_run(c, &run);
    }
    return rc;
}

/* All operations of a unit that have weights. */
static int cut_unit(struct cutting *c, uint32_t unit)
{
    const struct math_part *math = model_unit_math(c->weights->model, unit);
    int rc = 0;
    for (uint32_t i = 0; i < math->ops && !rc; i++)
        if (math->op[i].weights) rc = cut_operation(c, unit, i);
    return rc;
}

static int cut_phase(struct cutting *c, const struct plan *plan, uint32_t phase)
{
    int rc = 0;
    for (uint32_t u = 0; u < unit_count(plan->layers) && !rc; u++) {
        if (!plan_home_streams(plan->unit[u].home[phase], c->weights->self)) continue;
        if (phase == 0 && model_unit_math(c->weights->model, u)->experts)
            return helm_fail(c->err, HELM_E_UNSUPPORTED,
                             "layer %u: experts are streamed by lists for prompts alone, the plan's decode "
                             "list has them at home 'stream'",
                             unit_layer(u));
        rc = cut_unit(c, u);
    }
    return rc;
}

static bool overlap(const struct ring_slice *a, const struct ring_slice *b)
{
    return a->place < b->place + b->bytes && b->place < a->place + a->bytes;
}

static bool same(const struct ring_slice *a, const struct ring_slice *b)
{
    return a->unit == b->unit && a->op == b->op && a->place == b->place && a->bytes == b->bytes &&
           a->part[0].from == b->part[0].from;
}

/* Places, and after whose use each may be copied. Copies are done in order, so `after` never falls; what was
 * used before a slice that must have been used needs no look. */
static void lay_out(struct ring_schedule *s, uint64_t ring_bytes)
{
    uint64_t at = 0;
    int32_t after = -1;
    for (uint32_t i = 0; i < s->count; i++) {
        struct ring_slice *slice = &s->slice[i];
        if (at + slice->bytes > ring_bytes) at = 0;
        slice->place = at;
        at = round_up(at + slice->bytes, RING_ALIGN);
        for (int32_t j = (int32_t)i - 1; j > after; j--)
            if (overlap(&s->slice[j], slice)) after = j;
        slice->after = after;
    }
}

uint32_t ring_prefix(const struct ring_schedule *decode)
{
    uint32_t count = 0;
    while (count < decode->count && decode->slice[count].after < 0) count++;
    return count;
}

/* From which slice on the phase's last ones are used in one go: units next to each other or with one resident
 * half layer between, all of whose slices can be in the ring before the first is used. */
static uint32_t last_burst(const struct cutting *c, const struct plan *plan, uint32_t phase)
{
    const struct ring_schedule *s = c->schedule;
    const enum plan_home resident = plan_processor_home(c->weights->self);
    uint32_t first = s->count;
    if (first) first--;
    for (; first > 0; first--) {
        const uint32_t unit = s->slice[first - 1].unit, next = s->slice[first].unit;
        if (next > unit + 2) break;
        if (next == unit + 2 && plan->unit[unit + 1].home[phase] != resident) break;
    }
    return s->count && s->slice[s->count - 1].after < (int32_t)first ? first : s->count;
}

/* Adds the slices of the prefix that this phase overwrites, in the order in which their places become free.
 * Places that the last burst sets free are taken as free when it is over, so that the next step's first
 * slices come first: the order of the places is another where the last lap ends, and a step that waits for
 * slice 0 waits for all that is copied before it. */
static int add_tail(struct cutting *c, const struct plan *plan, uint32_t phase,
                    const struct ring_schedule *decode)
{
    struct ring_schedule *s = c->schedule;
    uint32_t own = s->count, prefix = ring_prefix(decode), burst = last_burst(c, plan, phase);
    for (uint32_t k = 0; k < prefix; k++) {
        const struct ring_slice wanted = decode->slice[k];
        int32_t after = -1;
        for (uint32_t j = 0; j < own; j++)
            if (!(s->slice[j].held && same(&s->slice[j], &wanted)) && overlap(&s->slice[j], &wanted))
                after = (int32_t)j;
        if (after < 0) continue;
        if (after >= (int32_t)burst) after = (int32_t)own - 1;
        struct ring_slice *slice = add_slice(c);
        if (!slice) return helm_fail(c->err, HELM_E_NOMEM, "no memory for %u slices", s->count);
        *slice = wanted;
        slice->held = false;
        slice->prefix = k;
        slice->after = after;
        struct ring_slice moved = *slice;
        uint32_t to = s->count - 1;
        for (; to > own && s->slice[to - 1].after > after; to--) s->slice[to] = s->slice[to - 1];
        s->slice[to] = moved;
    }
    s->tail = s->count - own;
    s->count = own;
    for (uint32_t i = own; i < own + s->tail; i++) /* after the phase's own copies */
        if (i && s->slice[i].after < s->slice[i - 1].after) s->slice[i].after = s->slice[i - 1].after;
    return 0;
}

int ring_plan(const struct gpu_weights *weights, const struct plan *plan, uint32_t phase,
              const struct ring_schedule *decode, struct ring_schedule *schedule, struct helm_err *err)
{
    const uint64_t ring_bytes = plan->device[weights->self].ring_bytes;
    struct cutting c = {
        .weights = weights, .schedule = schedule, .plan = plan, .ring_bytes = ring_bytes, .err = err};
    memset(schedule, 0, sizeof *schedule);
    int rc = cut_phase(&c, plan, phase);
    if (!rc) {
        lay_out(schedule, ring_bytes);
        if (!decode) decode = schedule;
        uint32_t prefix = ring_prefix(decode);
        for (uint32_t i = 0; i < schedule->count && i < prefix; i++) {
            /* after a lap of this phase's own it would be overwritten before it is used */
            schedule->slice[i].held =
                schedule->slice[i].after < 0 && same(&schedule->slice[i], &decode->slice[i]);
            schedule->slice[i].prefix = i;
        }
        rc = add_tail(&c, plan, phase, decode);
    }
    for (uint32_t i = 0; i < schedule->count + schedule->tail && !rc; i++)
        for (uint32_t p = 0; p < schedule->slice[i].part_count && !schedule->slice[i].held; p++)
            schedule->copy_bytes += schedule->slice[i].part[p].bytes;
    if (rc) ring_free(schedule);
    return rc;
}

/* Only the place that they are expanded to limits these slices. */
int ring_plan_home(const struct gpu_weights *weights, const struct plan *plan, struct ring_schedule *schedule,
                   struct helm_err *err)
{
    struct cutting c = {.weights = weights,
                        .schedule = schedule,
                        .plan = plan,
                        .ring_bytes = UINT64_MAX,
                        .home = true,
                        .err = err};
    const uint32_t units = unit_count(plan->layers);
    int rc = 0;
    memset(schedule, 0, sizeof *schedule);
    for (uint32_t u = 0; u < units && !rc; u++) rc = cut_unit(&c, u);
    if (!rc) rc = cut_operation(&c, units, 0);
    if (rc) ring_free(schedule);
    return rc;
}

void ring_free(struct ring_schedule *schedule)
{
    free(schedule->slice);
    memset(schedule, 0, sizeof *schedule);
}

/* ---- expanding packed weights ---- */

static uint64_t table_bytes(const struct gpu_matrix *m)
{
    return round_up(packed_offsets_bytes(m->rows), VRAM_ALIGN);
}

/* Streamed ones of a variable format. */
static bool has_table(const struct gpu_matrix *m)
{
    return m->host && tensor_format_of(m->format)->variable;
}

static uint32_t cells_of(const struct gpu_weights *w)
{
    return (w->model->config.layers + 1) * TENSOR_ROLE_COUNT;
}

void gpu_expand_plan(const struct model *model, const struct plan *plan, enum plan_processor self,
                     struct gpu_expand *expand)
{
    const struct slices_room room = slices_of_plan(model, plan, self);
    *expand = (struct gpu_expand){.slice_bytes = room.slice, .bytes = slices_bytes(&room)};
}

int gpu_expand_take_tables(struct gpu_expand *expand, struct gpu_weights *w, struct device *d,
                           struct helm_err *err)
{
    uint64_t at = expand->slice_bytes;
    int rc = 0;
    if (!expand->bytes) return 0;
    for (uint32_t i = 0; i < cells_of(w) && !rc; i++) {
        struct gpu_matrix *m = &w->matrix[i];
        if (!has_table(m)) continue;
        rc = gpu_weights_check_offsets(m, err);
        if (!rc)
            rc = device_copy(d, DEVICE_COPY, DEVICE_TO_DEVICE, expand->memory + at, m->offset,
                             packed_offsets_bytes(m->rows), err);
        m->offset_device = (const uint32_t *)(expand->memory + at);
        at += table_bytes(m);
    }
    if (!rc) rc = device_await(d, DEVICE_COPY, err);
    w->offsets_known = !rc;
    return rc;
}

void gpu_expand_pretend(struct gpu_expand *expand, struct gpu_weights *w, char *memory)
{
    uint64_t at = expand->slice_bytes;
    expand->memory = memory;
    for (uint32_t i = 0; i < cells_of(w); i++) {
        if (!has_table(&w->matrix[i])) continue;
        w->matrix[i].offset_device = (const uint32_t *)(memory + at);
        at += table_bytes(&w->matrix[i]);
    }
}
