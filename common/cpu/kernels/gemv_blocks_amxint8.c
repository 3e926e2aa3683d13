/* One to sixteen tokens' products with blocks by AMX (tdpbssd), activations as whole numbers of 22 bits and a
 * sign, against the largest of a group of 32 columns: three digits of 8 bits with signs of their own. Sums of
 * a group's numbers times digits are whole numbers, which have no order; joined and scaled they are added in
 * fp32 in one order for one token and for many. A chunk of 256 columns of sixteen rows is taken apart once
 * for all tokens, while the one before is multiplied.
 *
 * A tile: digits of tokens x a group. B tile: fours of columns x sixteen rows of weights. C tile: digits x
 * rows, so that scales are vectors. Digit p of token t of n is part p * n + t, the upper digits first;
 * sixteen parts are a panel, of which there are up to three.
 *
 * The process must have asked the kernel for tile state (cpu_enable_amx). Called through the table of
 * linear.c after the CPU check. */
#include "common/cpu/kernels/amx_tiles.h"
#include "common/cpu/kernels/lanes512.h"

#include <math.h>

INLINE vec block_numbers(const void *at)
{
    return vec_widen_i8(at);
}
#include "common/cpu/kernels/blocks_rows512.h"
#include "common/cpu/kernels/variants.h"

#define DIGITS      3
#define BITS        22 /* of x, beside its sign: an upper digit of 7 may become 128 */
#define TOKENS      16 /* whose sums are in tiles at once */
#define LINE        64 /* bytes of a row of tiles but x's: */
#define X_LINE      STEP
#define CHUNK       (STEPS * STEP)
#define AHEAD       4   /* chunks that each row is fetched ahead */
#define BATCH_PARTS 192 /* sums that wait for their scales: so many parts of steps */
#define CHUNK_BYTES 272 /* of a row, at most */

/* ---- x: digits, panels [step][part][column]; scales, then sums, [step][token] ---- */

static size_t steps_of(size_t cols)
{
    return cols / STEP;
}
static size_t chunks_of(size_t cols)
{
    return (cols + CHUNK - 1) / CHUNK;
}
static size_t chunk_steps(size_t cols, size_t c)
{
    const size_t left = (cols - c * CHUNK) / STEP;
    return left < STEPS ? left : STEPS;
}
static size_t digits_bytes(size_t tokens, size_t cols)
{
    return steps_of(cols) * tokens * DIGITS * X_LINE;
}
static size_t group_bytes(size_t tokens, size_t cols)
{
    return (digits_bytes(tokens, cols) + steps_of(cols) * tokens * 2 * sizeof(float) + 63) / 64 * 64;
}

/* The exponent that makes whole numbers of a step's x, and the float that takes it back: no number, and so
 * are all sums, where x is not finite. */
INLINE int to_whole(const vec half[2], float *scale)
{
    const __m512i bits = _mm512_set1_epi32(0x7fffffff),
                  a = _mm512_and_si512(_mm512_castps_si512(half[0]), bits),
                  b = _mm512_and_si512(_mm512_castps_si512(half[1]), bits);
    const unsigned exponent = _mm512_reduce_max_epu32(_mm512_max_epu32(a, b)) >> 23;
    const int by = BITS - 1 + 127 - (int)(exponent ? exponent : 1);
    *scale = exponent == 255 ? NAN : _mm512_cvtss_f32(vec_scale2(vec_set1(1), vec_set1((float)-by)));
    return by;
}

/* Digits of 32 whole numbers: the upper ones, the middle ones, the lowest. */
INLINE void digits_of(__m256i digit[DIGITS], const __m512i whole[2])
{
    const __m512i half = _mm512_set1_epi32(0x808080), /* carried from digit to digit, and taken back */
        by_digit =
            _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)),
                  lower = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29),
                  upper = _mm512_setr_epi32(2, 6, 10, 14, 18, 22, 26, 30, 2, 6, 10, 14, 18, 22, 26, 30);
    __m512i four[2];
    UNROLL for (size_t i = 0; i < 2; i++) four[i] =
        _mm512_shuffle_epi8(_mm512_xor_si512(_mm512_add_epi32(whole[i], half), half), by_digit);
    const __m512i both = _mm512_permutex2var_epi32(four[0], lower, four[1]);
    digit[0] = _mm512_castsi512_si256(_mm512_permutex2var_epi32(four[0], upper, four[1]));
    digit[1] = _mm512_extracti64x4_epi64(both, 1);
    digit[2] = _mm512_castsi512_si256(both);
}

/* Token `t` of `tokens`. Sums are made of sixteen steps at once. */
static void order_token(char *to, const float *x, size_t t, size_t tokens, size_t cols)
{
    const size_t steps = steps_of(cols), parts = tokens * DIGITS;
    float *scales = (float *)(void *)(to + digits_bytes(tokens, cols)) + t, *sums = scales + steps * tokens;
    char *row[DIGITS];
    size_t row_bytes[DIGITS]; /* from step to step */
    for (size_t p = 0; p < DIGITS; p++) {
        const size_t part = p * tokens + t, panel = part / ROWS,
                     rows = parts - panel * ROWS < ROWS ? parts - panel * ROWS : ROWS;
        row[p] = to + (panel * ROWS * steps + part % ROWS) * X_LINE;
        row_bytes[p] = rows * X_LINE;
    }
    vec all[LANES];
    float sum[LANES];
    for (size_t s = 0; s < steps; s++, x += STEP) {
        const vec half[2] = {vec_load(x), vec_load(x + LANES)};
        const vec by = vec_set1((float)to_whole(half, &scales[s * tokens]));
        const __m512i whole[2] = {_mm512_cvtps_epi32(vec_scale2(half[0], by)),
                                  _mm512_cvtps_epi32(vec_scale2(half[1], by))};
        __m256i digit[DIGITS];
        digits_of(digit, whole);
        UNROLL for (size_t p = 0; p < DIGITS; p++)
            _mm256_store_si256((__m256i *)(void *)(row[p] + s * row_bytes[p]), digit[p]);
        all[s % LANES] = vec_add(half[0], half[1]);
        if (s % LANES < LANES - 1 && s + 1 < steps) continue;
        const size_t first = s / LANES * LANES;
        for (size_t i = s % LANES + 1; i < LANES; i++) all[i] = vec_zero();
        vec_store(sum, vec_reduce_lanes(all));
        for (size_t i = first; i <= s; i++) sums[i * tokens] = sum[i - first];
    }
}

static void order(float *to, const float *x, size_t cols)
{
    order_token((char *)to, x, 0, 1, cols);
}

static void order_few(void *to, const float *x, size_t ldx, size_t tokens, size_t cols)
{
    char *group = to;
    for (size_t t = 0; t < tokens; t += TOKENS, group += group_bytes(TOKENS, cols)) {
        const size_t count = tokens - t < TOKENS ? tokens - t : TOKENS;
        for (size_t i = 0; i < count; i++) order_token(group, x + (t + i) * ldx, i, count, cols);
    }
}

static size_t ordered_bytes(size_t cols)
{
    return group_bytes(1, cols);
}

static size_t ordered_few_bytes(size_t tokens, size_t cols)
{
    const size_t last = tokens % TOKENS;
    return tokens / TOKENS * group_bytes(TOKENS, cols) + (last ? group_bytes(last, cols) : 0);
}

/* ---- products ---- */

/* Numbers: tile 4; x: 6, of the last panel 7; sums: 0 and 1, of the last panel 2. With one panel, which is
 * the last one, x: 6, sums: 0 and 1, too. */
static void shape_tiles(size_t panels, size_t last_rows)
{
    struct tile_shapes shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        const bool last = panels == 1 || i == 2 || i == 7, numbers = i == 4;
        shapes.row_bytes[i] = i >= 6 ? X_LINE : LINE;
        shapes.rows[i] = (uint8_t)(numbers ? STEP / 4 : last ? last_rows : ROWS);
    }
    tiles_shape(&shapes);
}

/* Rows of a matrix against a group of tokens, and the reads after them. */
struct rows {
    const uint8_t *w;
    size_t count, cols, row_bytes, chunk_bytes; /* chunk_bytes: of a row */
    take_fn *take;
    const char *next;
    size_t next_stride;
    const char *x;
    const float *x_scales, *x_sums;
    size_t tokens, parts, panels, last_rows;
    bool least;
};

/* A thread's room. */
struct room {
    struct chunk chunk[2];
    _Alignas(64) int32_t sums[BATCH_PARTS * ROWS];
    vec total[TOKENS];
    _Alignas(64) uint8_t rows[ROWS * CHUNK_BYTES]; /* of a matrix's last ones, if they are fewer */
};

/* The work beside products, taking apart: chunk `c`, unit after unit. */
struct side {
    struct chunk *to;
    const uint8_t *w;
    size_t row_bytes, unit, steps;
    uintptr_t next; /* fetched, next_stride bytes apart */
    size_t next_stride;
};

static void side_begin(struct side *s, const struct rows *g, struct room *room, size_t c)
{
    const size_t at = (c + AHEAD) * g->chunk_bytes;
    const bool here = at < g->row_bytes;
    *s = (struct side){.to = &room->chunk[c % 2],
                       .w = g->w + c * g->chunk_bytes,
                       .row_bytes = g->row_bytes,
                       .steps = chunk_steps(g->cols, c),
                       .next = here ? (uintptr_t)g->w + at : (uintptr_t)g->next + (at - g->row_bytes),
                       .next_stride = here ? g->row_bytes : g->next_stride};
    if (g->count == ROWS) return;
    const size_t bytes = g->chunk_bytes * s->steps / STEPS;
    for (size_t r = 0; r < g->count; r++)
        memcpy(room->rows + r * CHUNK_BYTES, s->w + r * g->row_bytes, bytes);
    s->w = room->rows;
    s->row_bytes = CHUNK_BYTES;
}

INLINE void side_unit(struct side *s, const struct rows *g)
{
    if (s->unit == UNITS) return;
    for (size_t r = 4 * s->unit; r < 4 * s->unit + 4; r++)
        for (size_t i = 0; i < g->chunk_bytes; i += 64)
            _mm_prefetch((const char *)(s->next + r * s->next_stride + i), _MM_HINT_T0);
    g->take(s->to, s->w, s->row_bytes, s->unit++, s->steps);
}

/* Where a batch of steps lies: their numbers, x of the first panel and of the last one, sums
 * [step][part][row]. */
struct batch {
    const char *numbers, *x, *last;
    size_t panel_bytes, last_bytes; /* of a whole panel; of the last one's step */
    int32_t *sums;
    size_t step_sums; /* a step's */
};
INLINE const char *numbers_of(const struct batch *b, size_t s)
{
    return b->numbers + s * (STEP / 4) * LINE;
}
INLINE const char *x_of(const struct batch *b, size_t s, size_t panel)
{
    return b->x + panel * b->panel_bytes + s * ROWS * X_LINE;
}
INLINE const char *last_of(const struct batch *b, size_t s)
{
    return b->last + s * b->last_bytes;
}
INLINE int32_t *sums_of(const struct batch *b, size_t s, size_t panel)
{
    return b->sums + s * b->step_sums + panel * ROWS * LANES;
}

/* A product to tile `to`, of numbers in tile 4 and x in tile 6 or 7. */
#define LOAD_NUMBERS(s) TILE_LOAD(4, numbers_of(b, s), LINE)
#define PRODUCT(to, x_tile, from)                                                                            \
    do {                                                                                                     \
        TILE_ZERO(to);                                                                                       \
        TILE_LOAD(x_tile, from, X_LINE);                                                                     \
        _tile_dpbssd(to, x_tile, 4);                                                                         \
    } while (0)

/* Sums of two steps from s on, of one panel. An instruction's sums take long to come: rows are taken apart
 * before they are stored. Few tile registers are named, since a core has few more where its other hyperthread
 * uses them. */
INLINE void multiply_two(const struct batch *b, size_t s, struct side *side, const struct rows *rows)
{
    LOAD_NUMBERS(s);
    PRODUCT(0, 6, last_of(b, s));
    LOAD_NUMBERS(s + 1);
    PRODUCT(1, 6, last_of(b, s + 1));
    side_unit(side, rows);
    TILE_STORE(0, sums_of(b, s, 0), LINE);
    TILE_STORE(1, sums_of(b, s + 1, 0), LINE);
}
/* One step. */
INLINE void multiply_one(const struct batch *b, size_t s, struct side *side, const struct rows *rows,
                         const size_t panels)
{
    LOAD_NUMBERS(s);
    if (panels > 1) PRODUCT(0, 6, x_of(b, s, 0));
    if (panels > 2) PRODUCT(1, 6, x_of(b, s, 1));
    PRODUCT(2, 7, last_of(b, s));
    if (panels > 1 && s % 2) side_unit(side, rows);
    if (panels > 1) TILE_STORE(0, sums_of(b, s, 0), LINE);
    if (panels > 2) TILE_STORE(1, sums_of(b, s, 1), LINE);
    TILE_STORE(2, sums_of(b, s, panels - 1), LINE);
}
/* `count` steps' sums are joined, scaled and added; x_scales: [step][token]. */
INLINE void scale_steps(vec *total, const int32_t *sums, const struct chunk *chunk, size_t first,
                        const float *x_scales, size_t tokens, const size_t count)
{
    const size_t digit = tokens * LANES, step = DIGITS * digit;
    vec by[STEPS];
    UNROLL for (size_t s = 0; s < count; s++) by[s] = vec_load(chunk->scale[first + s]);
    for (size_t t = 0; t < tokens; t++, sums += LANES) {
        vec sum = total[t];
        UNROLL for (size_t s = 0; s < count; s++)
        {
            const int32_t *at = sums + s * step;
            const __m512i middle = _mm512_slli_epi32(_mm512_load_si512(at + digit), 8),
                          low = _mm512_add_epi32(middle, _mm512_load_si512(at + 2 * digit));
            const vec whole = vec_fmadd(_mm512_cvtepi32_ps(_mm512_load_si512(at)), vec_set1(65536),
                                        _mm512_cvtepi32_ps(low));
            sum = vec_fmadd(vec_mul(whole, vec_set1(x_scales[s * tokens + t])), by[s], sum);
        }
        total[t] = sum;
    }
}
static void scale_sums(vec *total, const int32_t *sums, const struct chunk *chunk, size_t first, size_t count,
                       const float *x_scales, size_t tokens)
{
    if (count == STEPS)
        scale_steps(total, sums, chunk, first, x_scales, tokens, STEPS);
    else if (count == STEPS / 2)
        scale_steps(total, sums, chunk, first, x_scales, tokens, STEPS / 2);
    else
        for (size_t s = 0; s < count; s++)
            scale_steps(total, sums + s * DIGITS * tokens * LANES, chunk, first + s, x_scales + s * tokens,
                        tokens, 1);
}

INLINE void multiply_chunk(const struct rows *g, struct room *room, size_t c, struct side *side,
                           const size_t panels)
{
    const size_t steps = chunk_steps(g->cols, c), most = g->parts > BATCH_PARTS / STEPS ? STEPS / 2 : STEPS;
    const struct chunk *chunk = &room->chunk[c % 2];
    struct batch b = {.panel_bytes = steps_of(g->cols) * ROWS * X_LINE,
                      .last_bytes = g->last_rows * X_LINE,
                      .sums = room->sums,
                      .step_sums = g->parts * LANES};
    for (size_t first = 0, count; first < steps; first += count) {
        const size_t step = c * STEPS + first;
        count = steps - first < most ? steps - first : most;
        b.numbers = (const char *)chunk->number[first * STEP / 4];
        b.x = g->x + step * ROWS * X_LINE;
        b.last = g->x + (panels - 1) * b.panel_bytes + step * b.last_bytes;
        size_t s = 0;
        if (panels == 1)
            for (; s + 2 <= count; s += 2) multiply_two(&b, s, side, g);
        for (; s < count; s++) multiply_one(&b, s, side, g, panels);
        TILE_FENCE();
        scale_sums(room->total, room->sums, chunk, first, count, g->x_scales + step * g->tokens, g->tokens);
    }
    while (side->unit < UNITS) side_unit(side, g);
    const float *x_sums = g->x_sums + c * STEPS * g->tokens;
    for (size_t t = 0; t < g->tokens && g->least; t++)
        for (size_t i = 0; i < steps; i++)
            room->total[t] =
                vec_fmadd(vec_load(chunk->add[i]), vec_set1(x_sums[i * g->tokens + t]), room->total[t]);
}

/* At most ROWS rows. */
INLINE void multiply_rows(float *y, size_t ldy, const struct rows *g, struct room *room, const size_t panels)
{
    const size_t chunks = chunks_of(g->cols);
    struct side side;
    for (size_t t = 0; t < g->tokens; t++) room->total[t] = vec_zero();
    side_begin(&side, g, room, 0);
    while (side.unit < UNITS) side_unit(&side, g);
    for (size_t c = 0; c < chunks; c++) {
        if (c + 1 < chunks) side_begin(&side, g, room, c + 1);
        multiply_chunk(g, room, c, &side, panels);
    }
    for (size_t t = 0; t < g->tokens; t++) vec_store_part(y + t * ldy, g->count, room->total[t]);
}

/* All rows, of at most TOKENS tokens. */
static void multiply_tokens(float *y, size_t ldy, struct rows g, size_t rows, const struct gemv_reads *reads)
{
    struct room room;
    const uint8_t *end = g.w + rows * g.row_bytes;
    if (rows % ROWS) memset(room.rows, 0, sizeof room.rows);
    g.parts = g.tokens * DIGITS;
    g.panels = (g.parts + ROWS - 1) / ROWS;
    g.last_rows = g.parts - (g.panels - 1) * ROWS;
    g.x_scales = (const float *)(const void *)(g.x + digits_bytes(g.tokens, g.cols));
    g.x_sums = g.x_scales + steps_of(g.cols) * g.tokens;
    shape_tiles(g.panels, g.last_rows);
    for (size_t r = 0; r < rows; r += ROWS, g.w += ROWS * g.row_bytes) {
        const bool last = r + ROWS >= rows, known = last && reads && reads->next;
        g.count = last ? rows - r : ROWS;
        g.next = known ? reads->next : last ? (const char *)end : (const char *)g.w + ROWS * g.row_bytes;
        g.next_stride = known ? reads->next_stride : g.row_bytes;
        if (g.panels == 1)
            multiply_rows(y + r, ldy, &g, &room, 1);
        else if (g.panels == 2)
            multiply_rows(y + r, ldy, &g, &room, 2);
        else
            multiply_rows(y + r, ldy, &g, &room, 3);
    }
    tiles_end();
}

static void multiply(float *y, size_t ldy, struct rows g, const float *x, size_t rows, size_t tokens,
                     const struct gemv_reads *reads)
{
    g.x = (const char *)x;
    for (size_t t = 0; t < tokens; t += TOKENS, y += TOKENS * ldy, g.x += group_bytes(TOKENS, g.cols)) {
        g.tokens = tokens - t < TOKENS ? tokens - t : TOKENS;
        multiply_tokens(y, ldy, g, rows, reads);
    }
}

#define FUNCTIONS(format_, FORMAT_NAME, APART, BEATEN)                                                       \
    static struct rows format_##_rows(const void *w, size_t cols)                                            \
    {                                                                                                        \
        return (struct rows){.w = w,                                                                         \
                             .cols = cols,                                                                   \
                             .row_bytes = decode_bytes(cols, FORMAT_##FORMAT_NAME),                          \
                             .chunk_bytes = decode_bytes(CHUNK, FORMAT_##FORMAT_NAME),                       \
                             .take = format_##_take,                                                         \
                             .least = has_least(FORMAT_##FORMAT_NAME)};                                      \
    }                                                                                                        \
    static void format_##_gemv(float *y, const void *w, const float *x, size_t rows, size_t cols,            \
                               const struct gemv_reads *reads)                                               \
    {                                                                                                        \
        multiply(y, 0, format_##_rows(w, cols), x, rows, 1, reads);                                          \
    }                                                                                                        \
    static void format_##_few(float *y, size_t ldy, const void *w, const float *x, size_t ldx, size_t rows,  \
                              size_t cols, size_t tokens)                                                    \
    {                                                                                                        \
        (void)ldx; /* x is of all tokens together */                                                         \
        multiply(y, ldy, format_##_rows(w, cols), x, rows, tokens, NULL);                                    \
    }
BLOCKS_AMX_FORMATS(FUNCTIONS)

#define ROW(format_, FORMAT_NAME, APART, BEATEN)                                                             \
    [BLOCKS_AMX_##FORMAT_NAME] = {.name = "amx-int8",                                                        \
                                  .features = CPU_AVX2 | CPU_AVX512 | CPU_AVX512_BF16 | CPU_AMX_BF16,        \
                                  .format = FORMAT_##FORMAT_NAME,                                            \
                                  .schedule = LINEAR_ONE_TOKEN,                                              \
                                  .gemv = format_##_gemv,                                                    \
                                  .few = format_##_few,                                                      \
                                  .apart = APART,                                                            \
                                  .beaten = BEATEN,                                                          \
                                  .streams = ROWS / 2,                                                       \
                                  .neighbours = true,                                                        \
                                  .row_granule = ROWS,                                                       \
                                  .order = order,                                                            \
                                  .ordered_bytes = ordered_bytes,                                            \
                                  .order_few = order_few,                                                    \
                                  .ordered_few_bytes = ordered_few_bytes},
const struct linear_kernel blocks_amxint8_gemv[BLOCKS_AMX_COUNT] = {BLOCKS_AMX_FORMATS(ROW)};
