/* Weights of a model that only exists to be measured. See weights.h; called by weights/load.c.
 *
 * Matrices are random blocks, the same few over and over: what is multiplied decides neither time nor, but
 * for zeros, power. Embeddings are larger, and vectors as common/model/sample.h says why. */
#include <string.h>

#include "common/base/units.h"
#include "common/formats/random_blocks.h"
#include "common/model/arch.h"
#include "worker-gpu/weights/weights.h"

#define MADE_PIECE (4 * MIB)

/* Pinned memory of this size, filled with a format's blocks, over and over in a matrix's place. */
static int fill_matrix(struct gpu_weights *w, const struct gpu_weights_place *p, const void *piece,
                       uint64_t piece_bytes, struct helm_err *err)
{
    const uint64_t bytes = tensor_format_bytes(p->format, p->tensor->rows, p->tensor->cols);
    int rc = 0;
    for (uint64_t at = 0; at < bytes && !rc; at += piece_bytes)
        rc = device_copy(w->device, DEVICE_COPY, DEVICE_TO_DEVICE, (char *)w->memory + p->offset + at, piece,
                         bytes - at < piece_bytes ? bytes - at : piece_bytes, err);
    return rc;
}

/* All matrices of a format, or its embeddings. */
static int fill_matrices(struct gpu_weights *w, enum tensor_format format, bool embeddings, char *piece,
                         struct helm_err *err)
{
    const uint64_t block = tensor_format_of(format)->block_bytes, bytes = MADE_PIECE / block * block;
    bool filled = false;
    int rc = 0;
    for (uint32_t i = 0; i < w->place_count && !rc; i++) {
        const struct gpu_weights_place *p = &w->place[i];
        if (p->format != format || arch_role_is_vector(p->tensor->role)) continue;
        if ((p->tensor->role == TENSOR_EMBED) != embeddings) continue;
        if (!filled)
            random_blocks_fill(format, embeddings ? RANDOM_EMBEDDINGS : RANDOM_WEIGHTS, piece, bytes);
        filled = true;
        rc = fill_matrix(w, p, piece, bytes, err);
    }
    return rc || !filled ? rc : device_await(w->device, DEVICE_COPY, err);
}

int gpu_weights_make(struct gpu_weights *w, struct helm_err *err)
{
    void *piece = NULL;
    if (w->packed_room) return helm_fail(err, HELM_E_UNSUPPORTED, "weights that are made up are not packed");
    int rc = device_alloc(w->device, DEVICE_WEIGHTS, w->bytes, &w->memory, err);
    if (!rc) rc = device_host_alloc(w->device, MADE_PIECE, &piece, err);
    if (!rc) rc = gpu_weights_load_vectors(w, NULL, err);
    for (int f = 0; f < 2 * FORMAT_COUNT && !rc; f++)
        if (!tensor_format_of((enum tensor_format)(f / 2))->variable)
            rc = fill_matrices(w, (enum tensor_format)(f / 2), f % 2, piece, err);
    if (piece) w->device->ops->host_free(w->device, piece);
    if (!rc) gpu_weights_fill_tables(w, w->memory);
    return rc;
}
