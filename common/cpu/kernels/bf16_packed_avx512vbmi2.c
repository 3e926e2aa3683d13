/* Packed bf16 with AVX-512 VBMI and VBMI2: one token's products with groups as they are, and rows decoded.
 *
 * A tile's codes are brought into order of values once; from then on 32 values are a vector: a shift and a
 * mask give their exponents' codes, an expansion puts the next escapes of the list where codes say so, a byte
 * permutation doubles the signs and mantissas into words, and one select joins them. The two halves of a
 * group's rows are read side by side as two streams: their tiles have the same columns, so that x is loaded
 * once for both, and one does not wait for what the other does. Called through the table of linear.c after
 * the CPU check. Columns are a multiple of PACKED_CPU_COLS, so that one of a tile's four runs of values never
 * has two rows. */
#include <string.h>

#include "common/cpu/kernels/lanes512.h"
#include "common/cpu/kernels/variants.h"
#include "common/formats/packed.h"

#define RUN    PACKED_CPU_COLS            /* values of a run */
#define RUNS   (PACKED_TILE / RUN)        /* of a tile */
#define LISTED 32                         /* bytes of the list that are read where the next escape stands */
#define ROOM   (PACKED_TILE + 2 * LISTED) /* of a tile's escapes and what is read after them */
/* Tiles ahead of each stream: whole ones, so that none is missed where streams end. Into L1, and where
 * reads have a second level also into L2. */
#define NEAR      3
#define FAR       6
#define LIST_NEAR 512 /* bytes ahead in the list of escapes */
#define RAW_NEAR  2048

/* A coded group. */
struct coded {
    const uint8_t *group, *record, *list, *end;
    uint32_t values;
    __m512i base; /* where the exponents of 32 values stand */
};

INLINE struct coded coded_of(const void *group)
{
    struct packed_header header;
    memcpy(&header, group, sizeof header);
    struct coded c = {.group = group, .values = header.values};
    c.record = c.group + packed_table_bytes(header.values);
    c.list = c.record + (size_t)packed_tiles(header.values) * PACKED_TILE_BYTES;
    c.end = c.group + (size_t)header.units * PACKED_ALIGN;
    c.base = _mm512_set1_epi16((short)(header.base << 7));
    return c;
}

INLINE bool is_raw(const void *group)
{
    return ((const struct packed_header *)group)->kind == PACKED_RAW;
}

/* A tile while it is read from its front. */
struct tile {
    const uint8_t *record, *list;
    __m512i codes[8]; /* in order of values: 32 of each run k in each */
};

/* Codes of 16 lanes, 4 words each, to 4 vectors of 4 lanes. */
INLINE void order_codes(__m512i to[4], const uint8_t *code)
{
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
                  high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31),
                  low2 = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11),
                  high2 = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
    const __m512i a = _mm512_loadu_si512(code), b = _mm512_loadu_si512(code + 128),
                  c = _mm512_loadu_si512(code + 256);
    __m512i d = _mm512_and_si512(_mm512_srli_epi32(a, 12), _mm512_set1_epi32(0x000f000f));
    /* 0xea: first and second, or third */
    d = _mm512_ternarylogic_epi32(_mm512_srli_epi32(b, 8), _mm512_set1_epi32(0x00f000f0), d, 0xea);
    d = _mm512_ternarylogic_epi32(_mm512_srli_epi32(c, 4), _mm512_set1_epi32(0x0f000f00), d, 0xea);
    const __m512i ab_low = _mm512_permutex2var_epi32(a, low, b),
                  ab_high = _mm512_permutex2var_epi32(a, high, b),
                  cd_low = _mm512_permutex2var_epi32(c, low, d),
                  cd_high = _mm512_permutex2var_epi32(c, high, d);
    to[0] = _mm512_permutex2var_epi64(ab_low, low2, cd_low);
    to[1] = _mm512_permutex2var_epi64(ab_low, high2, cd_low);
    to[2] = _mm512_permutex2var_epi64(ab_high, low2, cd_high);
    to[3] = _mm512_permutex2var_epi64(ab_high, high2, cd_high);
}

/* room[ROOM]: for escapes after which less than LISTED bytes may be read. */
INLINE void tile_open(struct tile *t, const struct coded *c, size_t number, uint8_t *room)
{
    uint32_t start[2];
    memcpy(start, c->group + sizeof(struct packed_header) + number * sizeof *start, sizeof start);
    t->record = c->record + number * PACKED_TILE_BYTES;
    t->list = c->list + start[0];
    if (__builtin_expect(c->list + start[1] + LISTED > c->end, 0)) {
        /* not by a call: what is in vector registers would have to be saved around it */
        const uint32_t count = start[1] - start[0];
        for (uint32_t i = 0; i < count; i += 64) {
            const __mmask64 here = ~(__mmask64)0 >> (count - i < 64 ? 64 - (count - i) : 0);
            _mm512_storeu_si512(room + i, _mm512_maskz_loadu_epi8(here, t->list + i));
        }
        t->list = room;
    }
    order_codes(t->codes, t->record);
    order_codes(t->codes + 4, t->record + 64);
}

/* The next 32 values: of run `k`, with the codes of codes[q] and the bytes of rest[64] that q is in. */
INLINE __m512i tile_values(struct tile *t, __m512i base, __m512i rest, const unsigned k, const unsigned q)
{
    const __m512i codes = _mm512_set1_epi16(PACKED_ESCAPE << 7), bits = _mm512_set1_epi16((short)0x807f);
    const __m512i twice = _mm512_set_epi8(31, 31, 30, 30, 29, 29, 28, 28, 27, 27, 26, 26, 25, 25, 24, 24, 23,
                                          23, 22, 22, 21, 21, 20, 20, 19, 19, 18, 18, 17, 17, 16, 16, 15, 15,
                                          14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 9, 9, 8, 8, 7, 7, 6, 6, 5,
                                          5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0),
                  twice_high = _mm512_or_si512(twice, _mm512_set1_epi8(32));
    __m512i e = k == 3 ? _mm512_srli_epi16(t->codes[q], 2) : _mm512_slli_epi16(t->codes[q], 7 - 3 * k);
    e = _mm512_and_si512(e, codes);
    const __mmask32 escaped = _mm512_cmpeq_epi16_mask(e, codes);
    const __m512i escapes = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const void *)t->list));
    e = _mm512_mask_expand_epi16(_mm512_add_epi16(e, base), escaped, _mm512_slli_epi16(escapes, 7));
    t->list += (unsigned)__builtin_popcount(escaped);
    const __m512i words = _mm512_permutexvar_epi8(q & 1 ? twice_high : twice, rest);
    return _mm512_ternarylogic_epi32(e, words, bits, 0xd8); /* of words where bits are set, else of e */
}

/* sum[s][half of a pair] += 32 weights times x, of which x[0] has the even columns, x[1] the odd ones. */
INLINE void multiply(__m512 sum[2], __m512i values, const __m512 x[2])
{
    const __m512i odd = _mm512_set1_epi32((int)0xffff0000);
    sum[0] = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(values, 16)), x[0], sum[0]);
    sum[1] = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(values, odd)), x[1], sum[1]);
}

INLINE void fetch(const uint8_t *at, size_t lines)
{
    UNROLL for (size_t i = 0; i < lines; i++) _mm_prefetch((const char *)at + 64 * i, _MM_HINT_T0);
}

/* A group's streams, and where they go on. */
struct streams {
    const uint8_t *record, *next; /* this group's records and the next one's, or NULL */
    size_t bytes;                 /* of each */
};
INLINE const uint8_t *stream_at(const struct streams *p, size_t s, size_t tile)
{
    const size_t to = tile * PACKED_TILE_BYTES;
    return to < p->bytes || !p->next ? p->record + s * p->bytes + to
                                     : p->next + s * p->bytes + (to - p->bytes);
}
/* Places to fetch while a tile is multiplied, line by line. */
struct ahead {
    const uint8_t *near, *far; /* far: NULL without a second level */
};
INLINE void ahead_fetch(struct ahead to, size_t line, const bool two_levels)
{
    if (two_levels) _mm_prefetch((const char *)to.far + 64 * line, _MM_HINT_T1);
    _mm_prefetch((const char *)to.near + 64 * line, _MM_HINT_T0);
}

/* Run k of `S` tiles. ahead[s]: from where on what comes later is fetched. */
INLINE void run_multiply(struct tile *t, __m512i base, const float *x, __m512 sum[2][2],
                         const struct ahead *ahead, const unsigned k, const size_t S, const bool two_levels)
{
    UNROLL for (unsigned line = 0; line < 4; line++)
    {
        __m512i rest[2];
        UNROLL for (size_t s = 0; s < S; s++)
        {
            ahead_fetch(ahead[s], 4 * k + line, two_levels);
            rest[s] = _mm512_loadu_si512(t[s].record + PACKED_CODE_BYTES + k * 256 + line * 64);
        }
        UNROLL for (unsigned q = 2 * line; q < 2 * line + 2; q++, x += 32)
        {
            const __m512 xs[2] = {_mm512_load_ps(x), _mm512_load_ps(x + 16)};
            UNROLL for (size_t s = 0; s < S; s++)
                multiply(sum[s], tile_values(&t[s], base, rest[s], k, q), xs);
        }
    }
}

/* `S` streams of equal parts of a group's rows; every row is summed in the same order whatever S is. */
INLINE void coded_gemv(float *y, const struct coded *c, uint32_t rows, uint32_t cols, const float *split,
                       const uint8_t *next, const size_t S, const bool two_levels)
{
    const uint32_t runs = c->values / RUN / (uint32_t)S, tiles = (runs + RUNS - 1) / RUNS,
                   row_runs = cols / RUN;
    const size_t head = (size_t)(c->record - c->group);
    const struct streams streams = {c->record, next ? next + head : NULL, (size_t)tiles * PACKED_TILE_BYTES};
    struct tile t[2];
    _Alignas(64) uint8_t room[2][ROOM];
    __m512 sum[2][2];
    uint32_t at = 0;
    UNROLL for (size_t s = 0; s < S; s++) sum[s][0] = sum[s][1] = _mm512_setzero_ps();
    for (uint32_t n = 0; n < tiles; n++) {
        struct ahead ahead[2];
        UNROLL for (size_t s = 0; s < S; s++)
        {
            ahead[s].near = stream_at(&streams, s, n + NEAR);
            ahead[s].far = two_levels ? stream_at(&streams, s, n + FAR) : NULL;
            tile_open(&t[s], c, n + s * tiles, room[s]);
            UNROLL for (size_t line = 16; line < PACKED_TILE_BYTES / 64; line++)
                ahead_fetch(ahead[s], line, two_levels);
            fetch(t[s].list + LIST_NEAR, 1);
        }
        if (n + 1 == tiles && next) {
            /* it is one as this: its head, and where about its streams' escapes begin */
            for (size_t i = 0; i < head; i += 64) fetch(next + i, 1);
            const uint8_t *list = next + (c->list - c->group);
            fetch(list, 4);
            fetch(list + (c->end - c->list) / 2, 4);
        }
        UNROLL for (unsigned k = 0; k < RUNS; k++)
        {
            if (k && RUNS * n + k == runs) break;
            run_multiply(t, c->base, split + (size_t)at * RUN, sum, ahead, k, S, two_levels);
            if (++at < row_runs) continue;
            UNROLL for (size_t s = 0; s < S; s++)
            {
                y[s * (rows / S)] = _mm512_reduce_add_ps(_mm512_add_ps(sum[s][0], sum[s][1]));
                sum[s][0] = sum[s][1] = _mm512_setzero_ps();
            }
            y++;
            at = 0;
        }
    }
}

static void raw_gemv(float *y, const uint8_t *values, uint32_t rows, uint32_t cols, const float *split)
{
    for (uint32_t r = 0; r < rows; r++) {
        __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        for (uint32_t c = 0; c < cols; c += 32, values += 64) {
            const __m512 xs[2] = {_mm512_load_ps(split + c), _mm512_load_ps(split + c + 16)};
            fetch(values + RAW_NEAR, 1);
            multiply(sum, _mm512_loadu_si512(values), xs);
        }
        y[r] = _mm512_reduce_add_ps(_mm512_add_ps(sum[0], sum[1]));
    }
}

static void gemv(float *y, const void *group, const float *split, size_t row_count, size_t col_count,
                 const struct gemv_reads *reads)
{
    const uint32_t rows = (uint32_t)row_count, cols = (uint32_t)col_count;
    if (is_raw(group)) {
        raw_gemv(y, (const uint8_t *)group + PACKED_ALIGN, rows, cols, split);
        return;
    }
    const struct coded c = coded_of(group);
    const void *next = reads ? reads->next : NULL;
    const bool two_levels = reads && reads->far;
    if (rows % 2 || rows / 2 * cols % PACKED_TILE)
        coded_gemv(y, &c, rows, cols, split, next, 1, false);
    else if (two_levels)
        coded_gemv(y, &c, rows, cols, split, next, 2, true);
    else
        coded_gemv(y, &c, rows, cols, split, next, 2, false);
}

/* Even columns and odd ones apart, 32 at a time: as values come out of words. */
static void split_columns(float *split, const float *x, size_t cols)
{
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30),
                  odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
    for (size_t c = 0; c < cols; c += 32) {
        const __m512 a = _mm512_loadu_ps(x + c), b = _mm512_loadu_ps(x + c + 16);
        _mm512_store_ps(split + c, _mm512_permutex2var_ps(a, even, b));
        _mm512_store_ps(split + c + 16, _mm512_permutex2var_ps(a, odd, b));
    }
}

static size_t split_bytes(size_t cols)
{
    return cols * sizeof(float);
}

/* The values of run k in order. */
INLINE void run_values(uint16_t *value, struct tile *t, __m512i base, const unsigned k)
{
    UNROLL for (unsigned line = 0; line < 4; line++)
    {
        const __m512i rest = _mm512_loadu_si512(t->record + PACKED_CODE_BYTES + k * RUN + line * 64);
        UNROLL for (unsigned q = 2 * line; q < 2 * line + 2; q++, value += 32)
            _mm512_store_si512(value, tile_values(t, base, rest, k, q));
    }
}

/* `S` tiles side by side, `apart` from each other: one does not wait for what the other does. */
INLINE void coded_decode(uint16_t *value, const struct coded *c, uint32_t number, uint32_t apart,
                         uint8_t room[2][ROOM], const size_t S)
{
    struct tile t[2];
    UNROLL for (size_t s = 0; s < S; s++)
    {
        tile_open(&t[s], c, number + s * apart, room[s]);
        fetch(t[s].record + NEAR * PACKED_TILE_BYTES, PACKED_TILE_BYTES / 64);
    }
    UNROLL for (unsigned k = 0; k < RUNS; k++) UNROLL for (unsigned line = 0; line < 4; line++)
    {
        __m512i rest[2];
        UNROLL for (size_t s = 0; s < S; s++) rest[s] =
            _mm512_loadu_si512(t[s].record + PACKED_CODE_BYTES + k * 256 + line * 64);
        UNROLL for (unsigned q = 2 * line; q < 2 * line + 2; q++, value += 32)
            UNROLL for (size_t s = 0; s < S; s++)
                _mm512_store_si512(value + (size_t)s * apart * PACKED_TILE,
                                   tile_values(&t[s], c->base, rest[s], k, q));
    }
}

/* The last tile, where it is no whole one. */
static void decode_part(uint16_t *value, const struct coded *c, uint32_t number, uint8_t *room)
{
    const uint32_t runs = c->values % PACKED_TILE / RUN;
    struct tile t;
    tile_open(&t, c, number, room);
    UNROLL for (unsigned k = 0; k + 1 < RUNS; k++)
    {
        if (k == runs) break;
        run_values(value + k * RUN, &t, c->base, k);
    }
}

static void decode(void *values, const void *group, size_t rows, size_t cols)
{
    uint16_t *value = values;
    if (is_raw(group)) {
        memcpy(value, (const uint8_t *)group + PACKED_ALIGN, rows * cols * sizeof *value);
        return;
    }
    const struct coded c = coded_of(group);
    const uint32_t whole = c.values / PACKED_TILE, pairs = whole / 2;
    _Alignas(64) uint8_t room[2][ROOM];
    for (uint32_t n = 0; n < pairs; n++) coded_decode(value + (size_t)n * PACKED_TILE, &c, n, pairs, room, 2);
    for (uint32_t n = 2 * pairs; n < whole; n++)
        coded_decode(value + (size_t)n * PACKED_TILE, &c, n, 0, room, 1);
    if (c.values % PACKED_TILE) decode_part(value + (size_t)whole * PACKED_TILE, &c, whole, room[0]);
}

/* ---- a few tokens ---- */

#define FEW_TOKENS 8  /* whose sums are in registers at once */
#define FEW_MOST   16 /* that share a run's values, which stay in L1 */

/* Sums of a row that is begun, of even columns and of odd ones. */
struct few_sums {
    __m512 sum[FEW_MOST][2];
};

/* A run's values of a row times x of T tokens, ldx floats apart: each token's sums as multiply() adds
 * them. */
INLINE void few_run(struct few_sums *sums, size_t token, const uint16_t *value, const float *x, size_t ldx,
                    size_t values, const size_t T)
{
    const __m512i odd = _mm512_set1_epi32((int)0xffff0000);
    __m512 sum[FEW_TOKENS][2];
    UNROLL for (size_t t = 0; t < T; t++) UNROLL for (size_t i = 0; i < 2; i++) sum[t][i] =
        sums->sum[token + t][i];
    for (size_t c = 0; c < values; c += 32) {
        const __m512i both = _mm512_loadu_si512(value + c);
        const __m512 w[2] = {_mm512_castsi512_ps(_mm512_slli_epi32(both, 16)),
                             _mm512_castsi512_ps(_mm512_and_si512(both, odd))};
        UNROLL for (size_t t = 0; t < T; t++) UNROLL for (size_t i = 0; i < 2; i++) sum[t][i] =
            _mm512_fmadd_ps(w[i], _mm512_load_ps(x + t * ldx + c + 16 * i), sum[t][i]);
    }
    UNROLL for (size_t t = 0; t < T; t++) UNROLL for (size_t i = 0; i < 2; i++) sums->sum[token + t][i] =
        sum[t][i];
}

static void few_add(struct few_sums *sums, const uint16_t *value, const float *x, size_t ldx, size_t values,
                    size_t tokens)
{
    size_t t = 0;
    for (; t + FEW_TOKENS <= tokens; t += FEW_TOKENS)
        few_run(sums, t, value, x + t * ldx, ldx, values, FEW_TOKENS);
    if (t + 4 <= tokens) {
        few_run(sums, t, value, x + t * ldx, ldx, values, 4);
        t += 4;
    }
    if (t + 2 <= tokens) {
        few_run(sums, t, value, x + t * ldx, ldx, values, 2);
        t += 2;
    }
    if (t < tokens) few_run(sums, t, value, x + t * ldx, ldx, values, 1);
}

static void few_end(struct few_sums *sums, float *y, size_t ldy, size_t tokens)
{
    for (size_t t = 0; t < tokens; t++) {
        y[t * ldy] = _mm512_reduce_add_ps(_mm512_add_ps(sums->sum[t][0], sums->sum[t][1]));
        sums->sum[t][0] = sums->sum[t][1] = _mm512_setzero_ps();
    }
}

/* `tokens`: FEW_MOST at most. */
static void coded_few(float *y, size_t ldy, const struct coded *c, uint32_t cols, const float *split,
                      size_t ldx, size_t tokens)
{
    const uint32_t runs = c->values / RUN, row_runs = cols / RUN;
    struct few_sums sums = {0};
    struct tile t;
    _Alignas(64) uint8_t room[ROOM];
    _Alignas(64) uint16_t value[RUN];
    uint32_t at = 0;
    for (uint32_t n = 0; RUNS * n < runs; n++) {
        tile_open(&t, c, n, room);
        fetch(t.record + NEAR * PACKED_TILE_BYTES, PACKED_TILE_BYTES / 64);
        fetch(t.list + LIST_NEAR, 1);
        UNROLL for (unsigned k = 0; k < RUNS; k++)
        {
            if (k && RUNS * n + k == runs) break;
            run_values(value, &t, c->base, k);
            few_add(&sums, value, split + (size_t)at * RUN, ldx, RUN, tokens);
            if (++at < row_runs) continue;
            few_end(&sums, y++, ldy, tokens);
            at = 0;
        }
    }
}

static void few(float *y, size_t ldy, const void *group, const float *split, size_t ldx, size_t rows,
                size_t cols, size_t tokens)
{
    for (size_t t = 0; t < tokens; t += FEW_MOST, y += FEW_MOST * ldy, split += FEW_MOST * ldx) {
        const size_t count = tokens - t < FEW_MOST ? tokens - t : FEW_MOST;
        const uint16_t *raw = (const uint16_t *)((const uint8_t *)group + PACKED_ALIGN);
        if (!is_raw(group)) {
            const struct coded c = coded_of(group);
            coded_few(y, ldy, &c, (uint32_t)cols, split, ldx, count);
            continue;
        }
        for (size_t r = 0; r < rows; r++) {
            struct few_sums sums = {0};
            few_add(&sums, raw + r * cols, split, ldx, cols, count);
            few_end(&sums, y + r, ldy, count);
        }
    }
}

const struct linear_kernel bf16_packed_avx512vbmi2_gemv = {.name = "avx512-vbmi2",
                                                           .features = CPU_AVX512 | CPU_AVX512_VBMI2,
                                                           .format = FORMAT_BF16_PACKED,
                                                           .schedule = LINEAR_ONE_TOKEN,
                                                           .gemv = gemv,
                                                           .few = few,
                                                           .apart = 2,
                                                           .streams = 1,
                                                           .col_unit = PACKED_CPU_COLS,
                                                           .order = split_columns,
                                                           .ordered_bytes = split_bytes};
const struct linear_kernel bf16_packed_avx512vbmi2_decode = {.name = "avx512-vbmi2",
                                                             .features = CPU_AVX512 | CPU_AVX512_VBMI2,
                                                             .format = FORMAT_BF16_PACKED,
                                                             .schedule = LINEAR_DECODE,
                                                             .decode = decode,
                                                             .rows = FORMAT_BF16};
