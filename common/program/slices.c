/* Slices of weights, and the room in which they lie expanded. See slices.h. */
#include "common/program/slices.h"

#include "common/base/units.h"
#include "common/formats/packed.h"
#include "common/plan/engine_limits.h"
#include "common/plan/placement.h"
#include "common/program/op.h"

/* ---- slices ---- */

static bool is_of_experts(const struct math_op *math)
{
    return math->kind == MATH_EXPERTS_GLU || math->kind == MATH_EXPERTS_DOWN;
}

bool slice_lies(const struct math_op *math, enum tensor_format format)
{
    return tensor_format_is_plain(format) || (is_of_experts(math) && !tensor_format_of(format)->variable);
}

/* Bytes of a row as a chunk multiplies it. */
static uint64_t expanded_row_bytes(const struct slice_matrix *m)
{
    return m->cols * dtype_bytes(tensor_format_product(m->format));
}

void slice_rows(const struct slice_run *run, uint64_t *rows, uint64_t *each)
{
    const struct math_op *math = run->math;
    const uint64_t ring_bytes = run->home ? UINT64_MAX : run->ring_bytes;
    uint64_t row_bytes = 0, target = ring_bytes / RING_SHARE, most = RING_SLICE_BYTES,
             granule = RING_ROWS; /* of experts whole ones */
    *rows = 0;
    for (uint32_t i = 0; i < run->count; i++) {
        const struct slice_matrix *m = &run->matrix[i];
        const bool lies = slice_lies(math, m->format), packed = tensor_format_of(m->format)->variable;
        const uint64_t bytes =
            is_of_experts(math) && lies ? tensor_format_row_bytes(m->format, m->cols) : expanded_row_bytes(m);
        if (is_of_experts(math)) granule = m->rows / run->experts;
        if (!lies) most = run->home && !packed ? HOME_SLICE_BYTES : RING_PACKED_SLICE_BYTES;
        *rows = math->gated ? m->rows : *rows + m->rows;
        row_bytes = math->gated ? row_bytes + bytes : bytes;
    }
    if (target > most) target = most;
    const uint64_t slices = (*rows * row_bytes + target - 1) / (target ? target : 1);
    *each = round_up((*rows + slices - 1) / slices, granule);
    /* rounding must not make two slices larger than the ring */
    while (*each > granule && *each * row_bytes > ring_bytes / 2) *each -= granule;
    if (*each > *rows) *each = *rows;
}

uint32_t slice_parts(const struct slice_run *run, uint32_t first, uint32_t rows,
                     struct slice_part part[MATH_WEIGHTS_MAX], uint64_t *expanded)
{
    uint32_t count = 0, before = 0;
    *expanded = 0;
    for (uint32_t i = 0; i < run->count; i++) {
        const struct slice_matrix *m = &run->matrix[i];
        uint32_t from = first > before ? first - before : 0,
                 to = first + rows > before ? first + rows - before : 0;
        if (run->math->gated) from = first, to = first + rows;
        if (to > m->rows) to = m->rows;
        before += m->rows;
        if (from >= to) continue;
        part[count] = (struct slice_part){.matrix = i, .row = from, .rows = to - from};
        if (!slice_lies(run->math, m->format)) {
            part[count].out = round_up(*expanded, RING_ALIGN);
            *expanded = part[count].out + (to - from) * expanded_row_bytes(m);
        }
        count++;
    }
    return count;
}

/* ---- room ---- */

/* A run of one matrix, or of pairs, has no slice that is larger than its first. */
static void hold_run(const struct slice_run *run, struct slices_room *room)
{
    struct slice_part part[MATH_WEIGHTS_MAX];
    uint64_t rows, each, expanded;
    const bool alike = run->count == 1 || run->math->gated;
    slice_rows(run, &rows, &each);
    for (uint64_t first = 0; first < (alike ? 1 : rows); first += each) {
        slice_parts(run, (uint32_t)first, (uint32_t)(rows - first < each ? rows - first : each), part,
                    &expanded);
        expanded = round_up(expanded, VRAM_ALIGN);
        if (expanded > room->slice) room->slice = expanded;
    }
}

static enum tensor_format format_of(const struct slices_unit *u, const struct model_tensor *t)
{
    return placement_format(u->model, u->weights, t, u->format);
}

/* The operation's runs that lie in the device's memory, or those that do not. */
static void hold_operation(const struct slices_unit *u, const struct math_op *math, int32_t layer,
                           bool resident, struct slices_room *room)
{
    enum tensor_format format[MATH_WEIGHTS_MAX];
    const struct model_tensor *tensor[MATH_WEIGHTS_MAX];
    for (uint32_t w = 0; w < math->weights; w++) {
        tensor[w] = model_find(u->model, math->weight[w], layer);
        format[w] = format_of(u, tensor[w]);
    }
    if (resident && is_of_experts(math) && slice_lies(math, format[0])) return;
    for (uint32_t first = 0, end; first < math->weights; first = end) {
        struct slice_run run = {.math = math,
                                .experts = u->model->config.router.experts,
                                .ring_bytes = u->ring_bytes,
                                .home = resident};
        end = program_run_end(math, format, first);
        if (placement_lies(u->home, math->weight[first], u->memory) != resident) continue;
        if (resident && tensor_format_is_plain(format[first])) continue;
        for (uint32_t w = first; w < end; w++)
            run.matrix[run.count++] = (struct slice_matrix){.format = format[w],
                                                            .rows = (uint32_t)tensor[w]->rows,
                                                            .cols = (uint32_t)tensor[w]->cols};
        hold_run(&run, room);
    }
}

void slices_add(const struct slices_unit *u, struct slices_room *room)
{
    const struct math_part *math = model_unit_math(u->model, u->unit);
    const struct model_unit *unit = &u->model->unit[u->unit];
    bool expands = false;
    for (uint32_t i = 0; i < unit->matrix_count; i++) {
        const struct model_tensor *t = unit->tensor[i];
        const enum tensor_format format = format_of(u, t);
        expands |= !tensor_format_is_plain(format);
        if (u->computed && tensor_format_of(format)->variable && !placement_lies(u->home, t->role, u->memory))
            room->tables += round_up(packed_offsets_bytes((uint32_t)t->rows), VRAM_ALIGN);
    }
    for (uint32_t i = 0; i < math->ops && expands; i++) {
        const struct math_op *op = &math->op[i];
        if (op->weights && u->streamed) hold_operation(u, op, (int32_t)unit->layer, false, room);
        if (op->weights) hold_operation(u, op, (int32_t)unit->layer, true, room);
    }
}

void slices_add_head(const struct slices_unit *u, struct slices_room *room)
{
    if (plan_format_varies(u->format)) hold_operation(u, &u->model->math.head, -1, true, room);
}

struct slices_room slices_of_plan(const struct model *model, const struct plan *plan,
                                  enum plan_processor device)
{
    struct slices_room room = {0};
    struct slices_unit u = {.model = model,
                            .weights = plan->weights,
                            .memory = plan_processor_memory(device),
                            .ring_bytes = plan->device[device].ring_bytes};
    for (u.unit = 0; u.unit < unit_count(plan->layers); u.unit++) {
        u.home = plan->unit[u.unit].home[0];
        u.format = plan_unit_format(plan, u.unit);
        u.computed = plan_computes(plan, device, u.unit);
        u.streamed = false;
        for (uint32_t p = 0; p < plan_phase_count(plan); p++)
            u.streamed |= plan_home_streams(plan->unit[u.unit].home[p], device);
        if (u.computed) slices_add(&u, &room);
    }
    u.home = plan_processor_home(device);
    u.format = plan_head_format(plan);
    if (plan->head == device) slices_add_head(&u, &room);
    return room;
}
