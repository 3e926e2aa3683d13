/* One tile of a packed group (common/formats/packed.h): its record and its escapes.
 *
 * Called by common/formats/packed.c and by the CPU's plain kernel (common/cpu/kernels/bf16_packed_ref.c).
 * Pure functions over caller-owned memory; both writers write the same bytes. */
#pragma once

#include <stdint.h>

#include "common/formats/packed.h"

struct packed_tile {
    uint32_t code[3][32];
    uint8_t rest[PACKED_TILE];
};

/* Writes the record of value[PACKED_TILE] and its escapes' exponents, in order of values, to
 * escape[PACKED_TILE]; returns how many those are. */
typedef uint32_t packed_tile_fn(const uint16_t *value, uint8_t base, struct packed_tile *tile,
                                uint8_t *escape);
packed_tile_fn packed_tile_ref, packed_tile_avx2;
/* The fastest this processor has. */
packed_tile_fn *packed_tile_best(void);

/* How many of the record's codes are escapes. */
uint32_t packed_tile_escapes(const struct packed_tile *tile);
/* The tile's values to value[PACKED_TILE]; escape[]: packed_tile_escapes exponents. */
void packed_tile_read(const struct packed_tile *tile, uint8_t base, const uint8_t *escape, uint16_t *value);

/* count[e] += how many of value[values] have exponent e. */
void packed_count(const uint16_t *value, uint32_t values, uint32_t count[256]);
