/* How weights are cut into slices: those that stream through a device's ring, and those at home in its memory
 * that some step expands, one slice at a time.
 *
 * Called by worker-gpu/program/ring.c, which lays slices out, copies and expands them, and by the planner,
 * which charges what that takes. Pure. */
#pragma once

#include "common/model/model.h"
#include "common/plan/plan.h"

struct slice_matrix {
    enum tensor_format format;
    uint32_t rows, cols;
};
/* Weights of an operation that are cut together. */
struct slice_run {
    const struct math_op *math;
    struct slice_matrix matrix[MATH_WEIGHTS_MAX];
    uint32_t count;
    uint32_t experts;    /* of the model */
    uint64_t ring_bytes; /* of no meaning where they are at home */
    bool home;
};
/* Whether a chunk multiplies by the operation's weights in this format as they lie: of experts by all but
 * packed ones. */
bool slice_lies(const struct math_op *math, enum tensor_format format);
/* The run's rows, and those of each slice: the matrices one below the other; of those used in pairs, of
 * each. */
void slice_rows(const struct slice_run *run, uint64_t *rows, uint64_t *each);
struct slice_part {
    uint32_t matrix, row, rows;
    uint64_t out; /* where its rows lie expanded, from the slice's first on */
};
/* The parts of rows first .. first + rows, their number, and the bytes that they take expanded. */
uint32_t slice_parts(const struct slice_run *run, uint32_t first, uint32_t rows,
                     struct slice_part part[MATH_WEIGHTS_MAX], uint64_t *expanded);

/* Device memory in which slices lie expanded, one after the other, and after it the tables of packed weights
 * that stream. */
struct slices_room {
    uint64_t slice, tables;
};
static inline uint64_t slices_bytes(const struct slices_room *room)
{
    return room->slice ? room->slice + room->tables : 0; /* where nothing is expanded no table is read */
}
/* A unit of a plan or of an idea of one. */
struct slices_unit {
    const struct model *model;
    const struct mixture *weights; /* plan.weights */
    enum plan_memory memory;       /* the device's */
    uint64_t ring_bytes;
    uint32_t unit;
    enum plan_home home; /* in decode */
    enum tensor_format format;
    bool streamed, computed; /* by the device, in some phase */
};
/* Adds the room that the unit needs where it is streamed, and where it lies. */
void slices_add(const struct slices_unit *unit, struct slices_room *room);
/* A head of the device's, with its home and format. */
void slices_add_head(const struct slices_unit *head, struct slices_room *room);
/* The room that a plan's device needs. */
struct slices_room slices_of_plan(const struct model *model, const struct plan *plan,
                                  enum plan_processor device);
