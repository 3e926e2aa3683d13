/* Products with packed weights, and unpacking, in plain C: what the fast kernels are compared with.
 *
 * Called through the table of packed_kernels.c, by tests. Reads tile by tile with common/packed_tile.c. */
#include <string.h>

#include "common/packed_tile.h"
#include "worker-cpu/kernels/packed_variants.h"

/* Tile `number` of a group, raw or coded, to value[PACKED_TILE]; returns how many of them are the group's. */
static uint32_t read_tile(const void *group, uint32_t number, uint16_t *value)
{
    const uint8_t *from = group;
    struct packed_header header;
    struct packed_tile tile;
    uint32_t start;
    memcpy(&header, from, sizeof header);
    const uint32_t left = header.values - number * PACKED_TILE,
                   here = left < PACKED_TILE ? left : PACKED_TILE;
    if (header.kind == PACKED_RAW) {
        memcpy(value, from + PACKED_ALIGN + (size_t)number * PACKED_TILE * sizeof *value,
               here * sizeof *value);
        return here;
    }
    const uint8_t *record = from + packed_table_bytes(header.values),
                  *list = record + (size_t)packed_tiles(header.values) * PACKED_TILE_BYTES;
    memcpy(&start, from + sizeof header + number * sizeof start, sizeof start);
    memcpy(&tile, record + (size_t)number * PACKED_TILE_BYTES, sizeof tile);
    packed_tile_read(&tile, header.base, list + start, value);
    return here;
}

static void split(float *to, const float *x, uint32_t cols)
{
    memcpy(to, x, cols * sizeof *to);
}

static void gemv(float *y, const void *group, uint32_t rows, uint32_t cols, const float *x,
                 const struct gemv_reads *reads)
{
    (void)reads;
    uint32_t row = 0, col = 0;
    float sum = 0;
    for (uint32_t n = 0; row < rows; n++) {
        uint16_t value[PACKED_TILE];
        const uint32_t here = read_tile(group, n, value);
        for (uint32_t i = 0; i < here; i++) {
            const uint32_t bits = (uint32_t)value[i] << 16;
            float w;
            memcpy(&w, &bits, sizeof w);
            sum += w * x[col];
            if (++col < cols) continue;
            y[row++] = sum;
            sum = 0, col = 0;
        }
    }
}

static void unpack(uint16_t *value, const void *group, uint32_t rows, uint32_t cols)
{
    const uint32_t values = rows * cols;
    for (uint32_t n = 0; n < packed_tiles(values); n++) {
        uint16_t tile[PACKED_TILE];
        const uint32_t here = read_tile(group, n, tile);
        memcpy(value + (size_t)n * PACKED_TILE, tile, here * sizeof *value);
    }
}

const struct packed_kernels packed_ref = {.name = "ref", .split = split, .gemv = gemv, .unpack = unpack};
