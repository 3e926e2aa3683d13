/* Groups of packed weights: which base, how large, and whether bytes are a group.
 *
 * common/formats/packed.h says the format; tiles are written and read by common/formats/packed_tile.c. No
 * state. */
#include "common/formats/packed.h"

#include <string.h>

#include "common/formats/packed_tile.h"

_Static_assert(sizeof(struct packed_header) == 16, "part of the format");
_Static_assert(sizeof(struct packed_tile) == PACKED_TILE_BYTES, "part of the format");
_Static_assert(PACKED_TILE_BYTES % PACKED_ALIGN == 0, "tiles lie one after another");

bool packed_takes(enum dtype dtype, uint32_t rows, uint32_t cols)
{
    return dtype == DTYPE_BF16 && rows > 0 && cols > 0 && cols <= PACKED_COLS_MAX &&
           packed_matrix_bytes_max(rows, cols) / PACKED_ALIGN <= UINT32_MAX;
}

uint64_t packed_matrix_bytes_max(uint32_t rows, uint32_t cols)
{
    const uint32_t groups = packed_groups(rows);
    if (groups == 0) return 0;
    return (groups - 1) * packed_group_bytes_max(PACKED_ROWS * cols) +
           packed_group_bytes_max(packed_group_values(rows, cols, groups - 1));
}

static uint64_t coded_bytes(uint32_t values, uint32_t escapes)
{
    return packed_table_bytes(values) + (uint64_t)packed_tiles(values) * PACKED_TILE_BYTES +
           packed_round(escapes);
}

void packed_measure(const uint16_t *value, uint32_t values, struct packed_measure *measure)
{
    uint32_t count[256] = {0}, inside = 0, best = 0, base = 0;
    packed_count(value, values, count);
    for (uint32_t e = 0; e < PACKED_ESCAPE; e++) inside += count[e];
    for (uint32_t b = 0; b <= PACKED_BASE_MAX; b++) {
        if (inside > best) best = inside, base = b;
        inside += count[b + PACKED_ESCAPE] - count[b];
    }
    const uint64_t coded = coded_bytes(values, values - best), raw = packed_group_bytes_max(values);
    *measure = coded < raw ? (struct packed_measure){.bytes = (uint32_t)coded,
                                                     .escapes = values - best,
                                                     .kind = PACKED_CODED,
                                                     .base = (uint8_t)base}
                           : (struct packed_measure){.bytes = (uint32_t)raw, .kind = PACKED_RAW};
}

static int write_group(const struct packed_measure *measure, const uint16_t *value, uint32_t values,
                       void *packed, packed_tile_fn *write_tile, struct helm_err *err)
{
    uint8_t *to = packed;
    const bool coded = measure->kind == PACKED_CODED;
    const uint32_t tiles = packed_tiles(values), head = coded ? packed_table_bytes(values) : PACKED_ALIGN;
    if (measure->bytes != (coded ? coded_bytes(values, measure->escapes) : packed_group_bytes_max(values)))
        return helm_fail(err, HELM_E_MISMATCH, "packed group: measured as %u bytes, not those of %u values",
                         measure->bytes, values);
    const struct packed_header header = {.values = values,
                                         .escapes = measure->escapes,
                                         .units = measure->bytes / PACKED_ALIGN,
                                         .kind = measure->kind,
                                         .base = measure->base};
    memset(to, 0, head);
    memcpy(to, &header, sizeof(header));
    if (!coded) {
        const size_t bytes = values * sizeof(uint16_t);
        memcpy(to + head, value, bytes);
        memset(to + head + bytes, 0, measure->bytes - head - bytes);
        return HELM_OK;
    }
    uint8_t *start = to + sizeof(header), *tile = to + head, *list = tile + (size_t)tiles * PACKED_TILE_BYTES;
    uint32_t escapes = 0;
    for (uint32_t t = 0; t < tiles; t++, tile += PACKED_TILE_BYTES) {
        uint16_t last[PACKED_TILE];
        uint8_t escape[PACKED_TILE];
        const uint16_t *from = value + (size_t)t * PACKED_TILE;
        const uint32_t here = values - t * PACKED_TILE;
        memcpy(start + t * sizeof(escapes), &escapes, sizeof(escapes));
        if (here < PACKED_TILE) {
            for (uint32_t i = 0; i < PACKED_TILE; i++)
                last[i] = i < here ? from[i] : (uint16_t)(measure->base << 7);
            from = last;
        }
        const uint32_t more = write_tile(from, measure->base, (struct packed_tile *)(void *)tile, escape);
        if (more > measure->escapes - escapes) {
            escapes = measure->escapes + 1;
            break;
        }
        memcpy(list + escapes, escape, more);
        escapes += more;
    }
    if (escapes != measure->escapes)
        return helm_fail(err, HELM_E_MISMATCH, "packed group: not the %u values that were measured", values);
    memcpy(start + tiles * sizeof(escapes), &escapes, sizeof(escapes));
    memset(list + escapes, 0, (size_t)(to + measure->bytes - (list + escapes)));
    return HELM_OK;
}

int packed_write(const struct packed_measure *measure, const uint16_t *value, uint32_t values, void *packed,
                 struct helm_err *err)
{
    return write_group(measure, value, values, packed, packed_tile_best(), err);
}

int packed_write_ref(const struct packed_measure *measure, const uint16_t *value, uint32_t values,
                     void *packed, struct helm_err *err)
{
    return write_group(measure, value, values, packed, packed_tile_ref, err);
}

int packed_write_matrix(const uint16_t *value, uint32_t rows, uint32_t cols, void *packed, uint32_t *offset,
                        struct helm_err *err)
{
    if (!packed_takes(DTYPE_BF16, rows, cols))
        return helm_fail(err, HELM_E_UNSUPPORTED, "packed matrix: %u rows of %u columns", rows, cols);
    const uint32_t groups = packed_groups(rows);
    offset[0] = 0;
    for (uint32_t g = 0; g < groups; g++) {
        const uint16_t *from = value + (size_t)g * PACKED_ROWS * cols;
        const uint32_t values = packed_group_values(rows, cols, g);
        struct packed_measure measure;
        packed_measure(from, values, &measure);
        int rc = packed_write(&measure, from, values, (char *)packed + packed_at(offset, g), err);
        if (rc != HELM_OK) return rc;
        offset[g + 1] = offset[g] + measure.bytes / PACKED_ALIGN;
    }
    return HELM_OK;
}

/* ---- reading: bytes are not trusted ---- */

/* Decodes a coded group. Its header was checked, and all its bytes are there. */
static int read_tiles(const struct packed_header *header, const uint8_t *from, uint16_t *value,
                      struct helm_err *err)
{
    const uint32_t tiles = packed_tiles(header->values);
    const uint8_t *start = from + sizeof(*header), *tile = from + packed_table_bytes(header->values),
                  *list = tile + (size_t)tiles * PACKED_TILE_BYTES;
    uint32_t at = 0, expected = 0;
    for (uint32_t t = 0; t < tiles; t++, tile += PACKED_TILE_BYTES) {
        struct packed_tile copy;
        uint16_t whole[PACKED_TILE];
        const uint32_t here = header->values - t * PACKED_TILE;
        memcpy(&expected, start + t * sizeof(expected), sizeof(expected));
        memcpy(&copy, tile, sizeof(copy));
        const uint32_t more = packed_tile_escapes(&copy);
        if (expected != at || more > header->escapes - at)
            return helm_fail(err, HELM_E_FORMAT,
                             "packed group: tile %u begins at escape %u, has %u; %u before it, %u in all", t,
                             expected, more, at, header->escapes);
        packed_tile_read(&copy, header->base, list + at,
                         here < PACKED_TILE ? whole : value + (size_t)t * PACKED_TILE);
        if (here < PACKED_TILE) memcpy(value + (size_t)t * PACKED_TILE, whole, here * sizeof(*value));
        at += more;
    }
    memcpy(&expected, start + tiles * sizeof(expected), sizeof(expected));
    if (at != header->escapes || expected != at)
        return helm_fail(err, HELM_E_FORMAT, "packed group: %u escapes, not %u", at, header->escapes);
    return HELM_OK;
}

int packed_read(const void *packed, uint64_t bytes, uint32_t values, uint16_t *value, struct helm_err *err)
{
    struct packed_header header;
    if (bytes < sizeof(header))
        return helm_fail(err, HELM_E_FORMAT, "packed group: %llu bytes", (unsigned long long)bytes);
    memcpy(&header, packed, sizeof(header));
    if (header.values != values || values == 0 || values > PACKED_ROWS * PACKED_COLS_MAX)
        return helm_fail(err, HELM_E_FORMAT, "packed group: of %u values, not %u", header.values, values);
    const bool coded = header.kind == PACKED_CODED;
    if ((!coded && header.kind != PACKED_RAW) || header.escapes > (coded ? values : 0) ||
        header.base > (coded ? PACKED_BASE_MAX : 0))
        return helm_fail(err, HELM_E_FORMAT, "packed group: kind %u, %u escapes, base %u", header.kind,
                         header.escapes, header.base);
    const uint64_t need = coded ? coded_bytes(values, header.escapes) : packed_group_bytes_max(values);
    if (need > bytes || need != (uint64_t)header.units * PACKED_ALIGN)
        return helm_fail(err, HELM_E_FORMAT, "packed group: %u units for %llu bytes, of which %llu are there",
                         header.units, (unsigned long long)need, (unsigned long long)bytes);
    if (coded) return read_tiles(&header, packed, value, err);
    memcpy(value, (const uint8_t *)packed + PACKED_ALIGN, values * sizeof(uint16_t));
    return HELM_OK;
}

int packed_read_groups(const struct packed_part *part, uint16_t *value, struct helm_err *err)
{
    const uint32_t *offset = part->offset, rows = part->rows, cols = part->cols, first = part->first,
                   groups = part->groups;
    if (!packed_takes(DTYPE_BF16, rows, cols) || groups > packed_groups(rows) ||
        first > packed_groups(rows) - groups)
        return helm_fail(err, HELM_E_UNSUPPORTED, "packed matrix: groups %u to %u of %u rows of %u columns",
                         first, first + groups, rows, cols);
    for (uint32_t g = first; g < first + groups; g++) {
        if (offset[g] < offset[first] || offset[g + 1] < offset[g] ||
            packed_at(offset, g + 1) - packed_at(offset, first) > part->bytes)
            return helm_fail(err, HELM_E_FORMAT, "packed matrix: group %u lies at units %u to %u", g,
                             offset[g], offset[g + 1]);
        const uint64_t at = packed_at(offset, g) - packed_at(offset, first);
        int rc = packed_read((const char *)part->packed + at, packed_at(offset, g + 1) - packed_at(offset, g),
                             packed_group_values(rows, cols, g), value, err);
        if (rc != HELM_OK) return helm_err_prefix(err, "group %u", g);
        value += packed_group_values(rows, cols, g);
    }
    return HELM_OK;
}
