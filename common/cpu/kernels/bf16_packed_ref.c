/* Packed bf16 in plain C: what the fast kernels are compared with.
 *
 * Called through the table of linear.c. Reads tile by tile with common/formats/packed_tile.c. */
#include <string.h>

#include "common/cpu/kernels/variants.h"
#include "common/formats/convert.h"
#include "common/formats/packed.h"
#include "common/formats/packed_tile.h"

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

static void gemv(float *y, const void *group, const float *x, size_t rows, size_t cols,
                 const struct gemv_reads *reads)
{
    (void)reads;
    size_t row = 0, col = 0;
    float sum = 0;
    for (uint32_t n = 0; row < rows; n++) {
        uint16_t value[PACKED_TILE];
        const uint32_t here = read_tile(group, n, value);
        for (uint32_t i = 0; i < here; i++) {
            sum += convert_bf16_f32(value[i]) * x[col];
            if (++col < cols) continue;
            y[row++] = sum;
            sum = 0, col = 0;
        }
    }
}

static void decode(void *values, const void *group, size_t rows, size_t cols)
{
    for (uint32_t n = 0; n < packed_tiles((uint32_t)(rows * cols)); n++) {
        uint16_t tile[PACKED_TILE];
        const uint32_t here = read_tile(group, n, tile);
        memcpy((uint16_t *)values + (size_t)n * PACKED_TILE, tile, here * sizeof *tile);
    }
}

const struct linear_kernel bf16_packed_ref_gemv = {
    .name = "ref", .format = FORMAT_BF16_PACKED, .schedule = LINEAR_ONE_TOKEN, .gemv = gemv, .streams = 1};
const struct linear_kernel bf16_packed_ref_decode = {.name = "ref",
                                                     .format = FORMAT_BF16_PACKED,
                                                     .schedule = LINEAR_DECODE,
                                                     .decode = decode,
                                                     .rows = FORMAT_BF16};
