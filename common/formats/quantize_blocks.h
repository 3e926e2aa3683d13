/* Values to GGUF's blocks of few bits: each format's numbers, fit and packing. The counterpart of blocks32.h
 * and blocks256.h; fits are in quantize_fit.h and quantize_steps.h. Included by quantize_ref.c and the like,
 * which say under which name (QUANTIZE) the one function stands.
 *
 * Sixteen groups are taken at once, whatever block, row or matrix they belong to. */
#pragma once

#include <string.h>

#include "common/formats/quantize.h"
#include "common/formats/quantize_steps.h"

#define COUNTED(table) table, (int)(sizeof(table) / sizeof *(table))

struct batch {
    struct fit_groups g;
    struct fit_result fit;
    struct fit_stepped s;
    uint8_t number[FIT_GROUPS *
                   FIT_VALUES_MAX]; /* in the order of the values; the lowest, or a table's first, is 0 */
};

/* Numbers for these scales and least values. */
FIT_INLINE void write_numbers(struct batch *b, const struct fit_code *code, const struct fit_result *r)
{
    const struct fit_table table = fit_table_of(code);
    for (int at = 0; at < FIT_GROUPS; at += FIT_LANES) {
        const fit_lanes inverse = fit_inverse(fit_load(&r->scale[at])),
                        from = fit_load(&r->least[at]) * inverse;
        for (int i = 0; i < b->g.values; i++) {
            const fit_lanes x = fit_load(&b->g.value[i][at]) * inverse - from;
            const fit_mask index =
                code->table ? fit_find(x, &table).index
                            : __builtin_convertvector(fit_nearest(x, code, &table) - code->low, fit_mask);
            for (int lane = 0; lane < FIT_LANES; lane++)
                b->number[(at + lane) * b->g.values + i] = (uint8_t)index[lane];
        }
    }
}

/* Numbers of blocks of 256, by counts and steps. */
FIT_INLINE void write_stepped_numbers(struct batch *b, const struct fit_code *code)
{
    for (int at = 0; at < FIT_GROUPS; at += FIT_LANES) {
        fit_store(&b->fit.scale[at], fit_load(&b->s.unit.scale[at]) * fit_load(&b->s.count.scale[at]));
        fit_store(&b->fit.least[at], -fit_load(&b->s.unit.least[at]) * fit_load(&b->s.count.least[at]));
    }
    write_numbers(b, code, &b->fit);
}

static inline void put_half(uint8_t *to, uint16_t half)
{
    memcpy(to, &half, sizeof half);
}

/* Rounds scales and least values to what a block holds. */
static inline void round_halves(struct batch *b)
{
    for (int i = 0; i < FIT_GROUPS; i++) {
        const float most = 65504, least = b->fit.least[i];
        b->s.step[i] = convert_f32_f16(b->fit.scale[i]);
        b->s.depth[i] = convert_f32_f16(least < -most ? -most : least > most ? most : least);
        b->fit.scale[i] = convert_f16_f32(b->s.step[i]);
        b->fit.least[i] = convert_f16_f32(b->s.depth[i]);
    }
}

/* ---- blocks of 32: a group each ---- */

static inline void pack_nibbles(const uint8_t *number, uint8_t *to)
{
    for (int i = 0; i < 16; i++) to[i] = (uint8_t)((number[i] & 15) | number[i + 16] << 4);
}
static inline void pack_fifths(const uint8_t *number, uint8_t *to)
{
    uint32_t word = 0;
    for (int i = 0; i < 32; i++) word |= (uint32_t)(number[i] >> 4) << i;
    memcpy(to, &word, sizeof word);
}

/* Steps, least values where blocks have them (DEPTH), fifth bits (FIFTH), numbers. */
enum { DEPTH = 1, FIFTH = 2 };
FIT_INLINE void write_blocks32(struct batch *b, const struct fit_code *code, int parts, uint8_t *out)
{
    round_halves(b);
    write_numbers(b, code, &b->fit);
    for (int i = 0; i < FIT_GROUPS; i++, out += 16) {
        put_half(out, b->s.step[i]);
        out += 2;
        if (parts & DEPTH) put_half(out, b->s.depth[i]);
        if (parts & DEPTH) out += 2;
        if (parts & FIFTH) pack_fifths(b->number + i * 32, out);
        if (parts & FIFTH) out += 4;
        pack_nibbles(b->number + i * 32, out);
    }
}

static const float starts4[] = {-8, -7.4f, -8.6f, -9.2f, 7, 7.6f, 8.2f};
static inline void quantize_q4_0(struct batch *b, uint8_t *out)
{
    const struct fit_code code = {.low = -8, .high = 7};
    fit_scales(&b->g, &code, COUNTED(starts4), &b->fit);
    write_blocks32(b, &code, 0, out);
}

/* In steps of 15, 31 and 3 to a range. */
#define CUT(steps, below, above)                                                                             \
    {                                                                                                        \
        below / (steps), above / (steps)                                                                     \
    }
static const struct fit_cut cuts4[] = {CUT(15, 0, 0),       CUT(15, 0, -0.5f),     CUT(15, 0, 0.5f),
                                       CUT(15, 0.5f, 0),    CUT(15, -0.5f, 0),     CUT(15, 0.4f, 0.4f),
                                       CUT(15, 0.8f, 0.8f), CUT(15, -0.3f, -0.3f), CUT(15, 0.2f, 0.2f)};
static inline void quantize_q4_1(struct batch *b, uint8_t *out)
{
    const struct fit_code code = {.high = 15, .least = true, .free = true};
    fit_ranges(&b->g, &code, COUNTED(cuts4), &b->fit);
    write_blocks32(b, &code, DEPTH, out);
}

static const float starts5[] = {-16, -15.3f, -16.7f, -17.4f, 15, 15.7f};
static inline void quantize_q5_0(struct batch *b, uint8_t *out)
{
    const struct fit_code code = {.low = -16, .high = 15};
    fit_scales(&b->g, &code, COUNTED(starts5), &b->fit);
    write_blocks32(b, &code, FIFTH, out);
}

static const struct fit_cut cuts5[] = {CUT(31, 0, 0),      CUT(31, 0, -0.5f), CUT(31, 0, 0.5f),
                                       CUT(31, 0.5f, 0),   CUT(31, -0.5f, 0), CUT(31, 0.4f, 0.4f),
                                       CUT(31, 0.8f, 0.8f)};
static inline void quantize_q5_1(struct batch *b, uint8_t *out)
{
    const struct fit_code code = {.high = 31, .least = true, .free = true};
    fit_ranges(&b->g, &code, COUNTED(cuts5), &b->fit);
    write_blocks32(b, &code, DEPTH | FIFTH, out);
}

static const float iq4_values[] = {IQ4_CODES};
static const float starts_iq4[] = {-127, -112, -120, -134, -142, 113, 105, 121, 129};
static inline void quantize_iq4_nl(struct batch *b, uint8_t *out)
{
    const struct fit_code code = {.table = iq4_values, .count = 16};
    fit_scales(&b->g, &code, COUNTED(starts_iq4), &b->fit);
    write_blocks32(b, &code, 0, out);
}

/* Twice the values of E2M1 in rising order, with half the scale; and which numbers of files they are. */
static const float e2m1_values[] = {-12, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12};
static const uint8_t e2m1_number[] = {15, 14, 13, 12, 11, 10, 9, 0, 1, 2, 3, 4, 5, 6, 7};
static inline void quantize_mxfp4(struct batch *b, uint8_t *out)
{
    const struct fit_code code = {.table = e2m1_values, .count = 15};
    uint8_t exponent[FIT_GROUPS];
    float scale[3][FIT_GROUPS] FIT_ALIGNED, error[3][FIT_GROUPS] FIT_ALIGNED;
    for (int i = 0; i < FIT_GROUPS; i++) {
        float most = 0;
        for (int j = 0; j < b->g.values; j++) most = fmaxf(most, fabsf(b->g.value[j][i]));
        const int e = (int)(convert_f32_bits(most) >> 23) - 2; /* most is 4 to 8 times 2^(e - 127) */
        exponent[i] =
            (uint8_t)(e < 3 ? 3 : e); /* at least 2^-125: the squares of smaller ones are 0 anyhow */
        for (int k = 0; k < 3; k++) scale[k][i] = convert_bits_f32((uint32_t)(exponent[i] + k - 2) << 23);
    }
    for (int k = 0; k < 3; k++)
        for (int at = 0; at < FIT_GROUPS; at += FIT_LANES) {
            const struct fit_totals none = {fit_all(0), fit_all(0)};
            const struct fit_sums sums = fit_sum(&b->g, &code, at, fit_load(&scale[k][at]), fit_all(0));
            fit_store(&error[k][at], fit_error(&none, &sums, fit_load(&scale[k][at]), fit_all(0)));
        }
    for (int i = 0; i < FIT_GROUPS; i++) {
        int best = 1;
        if (error[0][i] < error[best][i]) best = 0;
        if (error[2][i] < error[best][i]) best = 2;
        b->fit.scale[i] = scale[best][i];
        b->fit.least[i] = 0;
        exponent[i] = (uint8_t)(exponent[i] + best - 1);
    }
    write_numbers(b, &code, &b->fit);
    for (int i = 0; i < FIT_GROUPS; i++, out += 17) {
        uint8_t number[32];
        for (int j = 0; j < 32; j++) number[j] = e2m1_number[b->number[i * 32 + j]];
        out[0] = exponent[i];
        pack_nibbles(number, out + 1);
    }
}

/* ---- blocks of 256 ---- */

/* 256 numbers: 4 bits in 128 bytes, by runs of 64; 2 bits in 64 bytes, by halves; one bit in 32 bytes. */
static inline void pack_fours(const uint8_t *number, uint8_t *to)
{
    for (int run = 0; run < 4; run++)
        for (int i = 0; i < 32; i++)
            to[run * 32 + i] = (uint8_t)((number[run * 64 + i] & 15) | number[run * 64 + 32 + i] << 4);
}
static inline void pack_twos(const uint8_t *number, int from, uint8_t *to)
{
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < 32; i++) {
            const uint8_t *n = number + half * 128 + i;
            to[half * 32 + i] = (uint8_t)((n[0] >> from & 3) | (n[32] >> from & 3) << 2 |
                                          (n[64] >> from & 3) << 4 | (n[96] >> from & 3) << 6);
        }
}
static inline void pack_ones(const uint8_t *number, int from, uint8_t *to)
{
    for (int i = 0; i < 32; i++) {
        unsigned byte = 0;
        for (int run = 0; run < 8; run++) byte |= (unsigned)(number[run * 32 + i] >> from & 1) << run;
        to[i] = (uint8_t)byte;
    }
}

static const struct fit_cut cuts2[] = {CUT(3, 0, 0),         CUT(3, 0.12f, 0.12f), CUT(3, 0.24f, 0.24f),
                                       CUT(3, 0.36f, 0.36f), CUT(3, 0.48f, 0.48f), CUT(3, 0.6f, 0.6f),
                                       CUT(3, 0.5f, 0),      CUT(3, 0, 0.5f)};
static inline void quantize_q2_k(struct batch *b, uint8_t *out)
{
    const struct fit_code code = {.high = 3, .least = true};
    const struct fit_range range = {0, 15, 16};
    fit_ranges(&b->g, &code, COUNTED(cuts2), &b->fit);
    fit_steps(&b->g, &code, &range, &b->fit, &b->s);
    write_stepped_numbers(b, &code);
    for (int i = 0; i < 16; i++) out[i] = (uint8_t)((int)b->s.count.scale[i] | (int)b->s.count.least[i] << 4);
    pack_twos(b->number, 0, out + 16);
    put_half(out + 80, b->s.step[0]);
    put_half(out + 82, b->s.depth[0]);
}

static const float starts3[] = {-4, -3.5f, -4.5f, -3, 3, 2.6f, 3.5f};
static inline void quantize_q3_k(struct batch *b, uint8_t *out)
{
    const struct fit_code code = {.low = -4, .high = 3};
    const struct fit_range range = {-32, 31, 16};
    fit_scales(&b->g, &code, COUNTED(starts3), &b->fit);
    fit_steps(&b->g, &code, &range, &b->fit, &b->s);
    write_stepped_numbers(b, &code);
    pack_ones(b->number, 2, out);
    pack_twos(b->number, 0, out + 32);
    memset(out + 96, 0, 12);
    for (int i = 0; i < 16; i++) {
        const int count = (int)b->s.count.scale[i] + 32;
        out[96 + i % 8] |= (uint8_t)((count & 15) << i / 8 * 4);
        out[104 + i % 4] |= (uint8_t)(count >> 4 << i / 4 * 2);
    }
    put_half(out + 108, b->s.step[0]);
}

/* Steps, and 8 counts of scales and least values of 6 bits in 12 bytes. */
static inline void pack_k4(const struct fit_stepped *s, int block, uint8_t *out)
{
    put_half(out, s->step[block]);
    put_half(out + 2, s->depth[block]);
    for (int i = 0; i < 4; i++) {
        const int at = block * 8 + i, scale = (int)s->count.scale[at], least = (int)s->count.least[at],
                  scale4 = (int)s->count.scale[at + 4], least4 = (int)s->count.least[at + 4];
        out[4 + i] = (uint8_t)(scale | scale4 >> 4 << 6);
        out[8 + i] = (uint8_t)(least | least4 >> 4 << 6);
        out[12 + i] = (uint8_t)((scale4 & 15) | (least4 & 15) << 4);
    }
}

static inline void quantize_q4_k(struct batch *b, uint8_t *out)
{
    const struct fit_code code = {.high = 15, .least = true};
    const struct fit_range range = {0, 63, 8};
    fit_ranges(&b->g, &code, COUNTED(cuts4), &b->fit);
    fit_steps(&b->g, &code, &range, &b->fit, &b->s);
    write_stepped_numbers(b, &code);
    for (int i = 0; i < 2; i++, out += 144) {
        pack_k4(&b->s, i, out);
        pack_fours(b->number + i * 256, out + 16);
    }
}

static inline void quantize_q5_k(struct batch *b, uint8_t *out)
{
    const struct fit_code code = {.high = 31, .least = true};
    const struct fit_range range = {0, 63, 8};
    fit_ranges(&b->g, &code, COUNTED(cuts5), &b->fit);
    fit_steps(&b->g, &code, &range, &b->fit, &b->s);
    write_stepped_numbers(b, &code);
    for (int i = 0; i < 2; i++, out += 176) {
        pack_k4(&b->s, i, out);
        pack_ones(b->number + i * 256, 4, out + 16);
        pack_fours(b->number + i * 256, out + 48);
    }
}

static const float starts6[] = {-32, -31.2f, -32.8f, -33.6f, 31, 31.8f};
static inline void quantize_q6_k(struct batch *b, uint8_t *out)
{
    const struct fit_code code = {.low = -32, .high = 31};
    const struct fit_range range = {-128, 127, 16};
    fit_scales(&b->g, &code, COUNTED(starts6), &b->fit);
    fit_steps(&b->g, &code, &range, &b->fit, &b->s);
    write_stepped_numbers(b, &code);
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < 64; i++) {
            const uint8_t *n = b->number + half * 128 + i;
            out[half * 64 + i] = (uint8_t)((n[0] & 15) | n[64] << 4);
        }
    pack_twos(b->number, 4, out + 128);
    for (int i = 0; i < 16; i++) out[192 + i] = (uint8_t)(int8_t)b->s.count.scale[i];
    put_half(out + 208, b->s.step[0]);
}

static inline void quantize_iq4_xs(struct batch *b, uint8_t *out)
{
    const struct fit_code code = {.table = iq4_values, .count = 16};
    const struct fit_range range = {-32, 31, 8};
    fit_scales(&b->g, &code, COUNTED(starts_iq4), &b->fit);
    fit_steps(&b->g, &code, &range, &b->fit, &b->s);
    write_stepped_numbers(b, &code);
    for (int block = 0; block < 2; block++, out += 136) {
        uint16_t high = 0;
        memset(out, 0, 8);
        put_half(out, b->s.step[block]);
        for (int i = 0; i < 8; i++) {
            const int count = (int)b->s.count.scale[block * 8 + i] + 32;
            high = (uint16_t)(high | count >> 4 << 2 * i);
            out[4 + i / 2] |= (uint8_t)((count & 15) << i % 2 * 4);
            pack_nibbles(b->number + block * 256 + i * 32, out + 8 + i * 16);
        }
        put_half(out + 2, high);
    }
}

/* ---- matrices ---- */

/* Loads the next sixteen groups, and zeros after the last. False: a value that is not finite or too large. */
FIT_INLINE bool load_batch(struct batch *b, const struct quantize_values *v, uint64_t first, int values)
{
    const uint64_t end = v->count - first;
    float flat[FIT_GROUPS * FIT_VALUES_MAX] FIT_ALIGNED;
    const uint32_t there =
        (uint32_t)(end < (uint64_t)(FIT_GROUPS * values) ? end : (uint64_t)(FIT_GROUPS * values));
    if (v->dtype == DTYPE_BF16)
        for (uint32_t i = 0; i < there; i++) flat[i] = convert_load(v->data, DTYPE_BF16, first + i);
    else
        for (uint32_t i = 0; i < there; i++) flat[i] = convert_load(v->data, v->dtype, first + i);
    for (uint32_t i = there; i < (uint32_t)(FIT_GROUPS * values); i++) flat[i] = 0;
    fit_mask within = {0};
    within = ~within;
    for (int i = 0; i < FIT_GROUPS * values; i += FIT_LANES) {
        const fit_lanes x = fit_load(flat + i);
        within &= (x <= QUANTIZE_MOST) & (x >= -QUANTIZE_MOST); /* false of NaN */
    }
    bool fits = true;
    for (int lane = 0; lane < FIT_LANES; lane++) fits &= within[lane] != 0;
    b->g.values = values;
    for (int i = 0; i < values; i++)
        for (int group = 0; group < FIT_GROUPS; group++) b->g.value[i][group] = flat[group * values + i];
    if (!v->importance) return fits;
    for (int group = 0; group < FIT_GROUPS; group++) {
        const float *importance = v->importance + (first + (uint64_t)(group * values)) % v->cols;
        for (int i = 0; i < values; i++) b->g.weight[i][group] = importance[i];
    }
    return fits;
}

typedef void block_quantizer(struct batch *b, uint8_t *out);
#define QUANTIZER(format, FORMAT_NAME, values, bytes, group)                                                 \
    [FORMAT_##FORMAT_NAME] = {quantize_##format, group, (bytes) * ((FIT_GROUPS) * (group) / (values))},
static const struct {
    block_quantizer *quantize;
    int values;     /* of a group */
    uint32_t bytes; /* of a batch */
} quantizers[FORMAT_COUNT] = {BLOCK_WRITTEN_FORMATS(QUANTIZER)};

uint64_t QUANTIZE(enum tensor_format format, const struct quantize_values *v, uint8_t *out)
{
    const int values = quantizers[format].values;
    uint8_t last[FIT_GROUPS * 24 + 512];
    struct batch b;
    for (int i = 0; i < FIT_VALUES_MAX; i++)
        for (int group = 0; group < FIT_GROUPS; group++) b.g.weight[i][group] = 1;
    uint64_t first = 0;
    for (uint64_t at = 0; first < v->count; first += (uint64_t)(FIT_GROUPS * values)) {
        const bool whole = v->count - first >= (uint64_t)(FIT_GROUPS * values);
        if (!load_batch(&b, v, first, values)) return first;
        quantizers[format].quantize(&b, whole ? out + at : last);
        if (!whole)
            memcpy(out + at, last,
                   (size_t)(v->count - first) * quantizers[format].bytes / (size_t)(FIT_GROUPS * values));
        at += quantizers[format].bytes;
    }
    return v->count;
}
