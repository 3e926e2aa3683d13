/* Values to blocks of places in grids. See quantize.h. No state but the table that a caller holds. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/formats/quantize.h"

#define VALUES     256 /* of a block */
#define GROUP_MAX  32
#define DIMS_MAX   8
#define LEVELS_MAX 8
#define NEAREST    24 /* entries that are tried of those around a point */
#define STARTS     10 /* scales that are tried for a group */
#define STEPS      17 /* scales of scales that are tried for a block */
#define TRIED      5  /* of them with all of the block coded again */
#define COUNTS     16 /* a group's scale is an odd number below twice that, times the block's */

/* The differences between the formats. */
struct kind {
    enum tensor_format format;
    int dims, levels, entries, group;
    bool even;   /* of eight values an even number is negative */
    float times; /* of the block's fp16 scale */
    uint64_t level;
    const uint64_t *eights;
    const uint32_t *fours;
    void (*pack)(uint8_t *block, const uint16_t place[64], const uint8_t sign[32], const uint8_t count[16]);
};

struct quantize_grid {
    const struct kind *kind;
    float value[1024][DIMS_MAX]; /* of the entries */
    float level[LEVELS_MAX];
    uint16_t near[][NEAREST]; /* [levels ^ dims]: a point's first level is its lowest digit */
};

/* ---- packing: the counterpart of blocks_grid.h ---- */

static void pack_iq2_xs(uint8_t *block, const uint16_t place[64], const uint8_t sign[32],
                        const uint8_t count[16])
{
    for (int i = 0; i < 32; i++) {
        const uint16_t both = (uint16_t)(place[i] | (sign[i] & 127) << 9);
        memcpy(block + 2 + 2 * i, &both, sizeof both);
    }
    for (int i = 0; i < 8; i++) block[66 + i] = (uint8_t)(count[2 * i] | count[2 * i + 1] << 4);
}
static void pack_iq2_s(uint8_t *block, const uint16_t place[64], const uint8_t sign[32],
                       const uint8_t count[16])
{
    memset(block + 66, 0, 8);
    for (int i = 0; i < 32; i++) {
        block[2 + i] = (uint8_t)place[i];
        block[66 + i / 4] |= (uint8_t)(place[i] >> 8 << i % 4 * 2);
        block[34 + i] = sign[i];
    }
    for (int i = 0; i < 8; i++) block[74 + i] = (uint8_t)(count[2 * i] | count[2 * i + 1] << 4);
}
static void pack_iq3_xxs(uint8_t *block, const uint16_t place[64], const uint8_t sign[32],
                         const uint8_t count[16])
{
    for (int i = 0; i < 64; i++) block[2 + i] = (uint8_t)place[i];
    for (int run = 0; run < 8; run++) {
        uint32_t word = (uint32_t)count[run] << 28;
        for (int i = 0; i < 4; i++) word |= (uint32_t)(sign[4 * run + i] & 127) << 7 * i;
        memcpy(block + 66 + 4 * run, &word, sizeof word);
    }
}
static void pack_iq3_s(uint8_t *block, const uint16_t place[64], const uint8_t sign[32],
                       const uint8_t count[16])
{
    memset(block + 66, 0, 8);
    for (int i = 0; i < 64; i++) {
        block[2 + i] = (uint8_t)place[i];
        block[66 + i / 8] |= (uint8_t)(place[i] >> 8 << i % 8);
    }
    memcpy(block + 74, sign, 32);
    for (int i = 0; i < 4; i++) block[106 + i] = (uint8_t)(count[2 * i] | count[2 * i + 1] << 4);
}

static const struct kind kinds[] = {
    {FORMAT_IQ2_XS, 8, 3, 512, 16, true, 0.125f, BLOCK_LEVELS_IQ2, block_grid_iq2_xs, NULL, pack_iq2_xs},
    {FORMAT_IQ2_S, 8, 3, 1024, 16, false, 0.125f, BLOCK_LEVELS_IQ2, block_grid_iq2_s, NULL, pack_iq2_s},
    {FORMAT_IQ3_XXS, 4, 8, 256, 32, true, 0.25f, BLOCK_LEVELS_IQ3_XXS, NULL, block_grid_iq3_xxs,
     pack_iq3_xxs},
    {FORMAT_IQ3_S, 4, 8, 512, 32, false, 1, BLOCK_LEVELS_IQ3_S, NULL, block_grid_iq3_s, pack_iq3_s}};

static const struct kind *kind_of(enum tensor_format format)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].format == format) return &kinds[i];
    return NULL;
}

bool quantize_grid_writes(enum tensor_format format)
{
    return kind_of(format) != NULL;
}
bool quantize_grid_needs_importance(enum tensor_format format)
{
    return format == FORMAT_IQ2_XS || format == FORMAT_IQ2_S;
}

/* ---- the table ---- */

static size_t points_of(const struct kind *k)
{
    size_t points = 1;
    for (int i = 0; i < k->dims; i++) points *= (size_t)k->levels;
    return points;
}

/* The nearest entries of a point, the nearest first. */
static void find_near(const struct quantize_grid *g, size_t point, uint16_t near[NEAREST])
{
    const struct kind *k = g->kind;
    float at[DIMS_MAX], distance[NEAREST];
    int count = 0;
    for (int i = 0; i < k->dims; i++, point /= (size_t)k->levels) at[i] = g->level[point % (size_t)k->levels];
    for (int e = 0; e < k->entries; e++) {
        float d = 0;
        for (int i = 0; i < k->dims; i++) d += (at[i] - g->value[e][i]) * (at[i] - g->value[e][i]);
        int place = count;
        if (count == NEAREST && !(d < distance[NEAREST - 1])) continue;
        if (count < NEAREST)
            count++;
        else
            place = NEAREST - 1;
        for (; place > 0 && d < distance[place - 1]; place--) {
            distance[place] = distance[place - 1];
            near[place] = near[place - 1];
        }
        distance[place] = d;
        near[place] = (uint16_t)e;
    }
}

struct quantize_grid *quantize_grid_make(enum tensor_format format)
{
    const struct kind *k = kind_of(format);
    const size_t points = k ? points_of(k) : 0;
    struct quantize_grid *g = k ? malloc(sizeof *g + points * sizeof *g->near) : NULL;
    if (!g) return NULL;
    g->kind = k;
    for (int l = 0; l < k->levels; l++) g->level[l] = (float)(k->level >> 8 * l & 255);
    for (int e = 0; e < k->entries; e++)
        for (int i = 0; i < k->dims; i++)
            g->value[e][i] = (float)((k->eights ? k->eights[e] : k->fours[e]) >> 8 * i & 255);
    for (size_t p = 0; p < points; p++) find_near(g, p, g->near[p]);
    return g;
}

void quantize_grid_free(struct quantize_grid *grid)
{
    free(grid);
}

/* ---- a group ---- */

/* Sixteen or 32 values: magnitudes, signs, weights. */
struct group {
    float x[GROUP_MAX], w[GROUP_MAX];
    uint8_t negative[GROUP_MAX / 8]; /* a bit each */
};
/* How it is coded at a scale, and the sums that the best scale for that comes from. */
struct coded {
    uint16_t place[8];
    uint8_t sign[4];
    double across, grid; /* sums of w x g, with the signs, and of w g g */
};

/* The point of `dims` values at a scale whose inverse is `by`. */
static size_t point_of(const struct quantize_grid *g, const float *x, float by)
{
    size_t point = 0;
    for (int i = g->kind->dims - 1; i >= 0; i--) {
        const float at = x[i] * by;
        int l = 0;
        while (l + 1 < g->kind->levels && at > (g->level[l] + g->level[l + 1]) / 2) l++;
        point = point * (size_t)g->kind->levels + (size_t)l;
    }
    return point;
}

/* The best entry near `dims` values, by w (x - scale g)^2. */
static int best_entry(const struct quantize_grid *g, const float *x, const float *w, float scale, float by)
{
    const uint16_t *near = g->near[point_of(g, x, by)];
    float least = INFINITY;
    int best = near[0];
    for (int n = 0; n < NEAREST; n++) {
        const float *v = g->value[near[n]];
        float error = 0;
        for (int i = 0; i < g->kind->dims; i++) {
            const float off = x[i] - scale * v[i];
            error += w[i] * off * off;
        }
        if (error < least) least = error, best = near[n];
    }
    return best;
}
/* The same of values of which one sign is turned, where that costs least; *least: the error. */
static int best_turned(const struct quantize_grid *g, const float *x, const float *w, float scale, float by,
                       int *turned, float *least)
{
    const uint16_t *near = g->near[point_of(g, x, by)];
    int best = near[0];
    *least = INFINITY;
    *turned = 0;
    for (int n = 0; n < NEAREST; n++) {
        const float *v = g->value[near[n]];
        float error = 0, turn = INFINITY;
        int which = 0;
        for (int i = 0; i < g->kind->dims; i++) {
            const float off = x[i] - scale * v[i], more = w[i] * x[i] * v[i];
            error += w[i] * off * off;
            if (more < turn) turn = more, which = i;
        }
        error += 4 * scale * turn;
        if (error < *least) *least = error, best = near[n], *turned = which;
    }
    return best;
}

static float error_of(const struct quantize_grid *g, int entry, const float *x, const float *w, float scale)
{
    float error = 0;
    for (int i = 0; i < g->kind->dims; i++) {
        const float off = x[i] - scale * g->value[entry][i];
        error += w[i] * off * off;
    }
    return error;
}

/* Eight values of which an odd number is negative, in two entries of four: that one has a sign turned which
 * loses less by it. The value that is turned asks for another entry, perhaps: of both that which is better.
 * Returns which value. */
static int turn_of_fours(const struct quantize_grid *g, const float *x, const float *w, float scale, float by,
                         uint16_t place[2])
{
    float loss[2], own[4];
    int turned[2], with[2];
    for (int half = 0; half < 2; half++) {
        const float *xs = x + 4 * half, *ws = w + 4 * half;
        place[half] = (uint16_t)best_entry(g, xs, ws, scale, by);
        with[half] = best_turned(g, xs, ws, scale, by, &turned[half], &loss[half]);
        for (int i = 0; i < 4; i++) { /* the value's place as it is, turned: near other entries */
            memcpy(own, xs, sizeof own);
            own[i] = -own[i];
            const int entry = best_entry(g, own, ws, scale, by);
            const float error = error_of(g, entry, own, ws, scale);
            if (error < loss[half]) loss[half] = error, with[half] = entry, turned[half] = i;
        }
        loss[half] -= error_of(g, place[half], xs, ws, scale);
    }
    const int half = loss[1] < loss[0];
    place[half] = (uint16_t)with[half];
    return 4 * half + turned[half];
}

static void code_eight(const struct quantize_grid *g, const struct group *of, int eight, float scale,
                       float by, struct coded *c)
{
    const struct kind *k = g->kind;
    const float *x = of->x + 8 * eight, *w = of->w + 8 * eight;
    float least;
    int turned = -1;
    const uint8_t negative = of->negative[eight];
    const bool odd = k->even && __builtin_parity(negative);
    uint16_t *place = c->place + 8 * eight / k->dims;
    if (!odd)
        for (int i = 0; i < 8; i += k->dims)
            place[i / k->dims] = (uint16_t)best_entry(g, x + i, w + i, scale, by);
    else if (k->dims == 8)
        *place = (uint16_t)best_turned(g, x, w, scale, by, &turned, &least);
    else
        turned = turn_of_fours(g, x, w, scale, by, place);
    c->sign[eight] = (uint8_t)(turned >= 0 ? negative ^ 1 << turned : negative);
    for (int i = 0; i < 8; i++) {
        const float v = g->value[place[i / k->dims]][i % k->dims], own = i == turned ? -x[i] : x[i];
        c->across += (double)(w[i] * own * v);
        c->grid += (double)(w[i] * v * v);
    }
}

static void code_group(const struct quantize_grid *g, const struct group *of, float scale, struct coded *c)
{
    c->across = c->grid = 0;
    for (int eight = 0; eight < g->kind->group / 8; eight++) code_eight(g, of, eight, scale, 1 / scale, c);
}

/* The error of what is coded, less the sum of w x^2, with another scale. */
static double gain_of(const struct coded *c, double scale)
{
    return scale * (scale * c->grid - 2 * c->across);
}

/* A scale for a group by itself, 0 where all is zero. */
static float fit_group(const struct quantize_grid *g, const struct group *of, struct coded *best)
{
    float most = 0, scale = 0;
    double least = 0;
    for (int i = 0; i < g->kind->group; i++)
        if (of->w[i] > 0) most = fmaxf(most, of->x[i]);
    *best = (struct coded){.grid = 0};
    if (!(most > 0x1p-100f)) return 0;
    for (int s = 0; s < STARTS; s++) {
        struct coded c;
        float at = most / g->level[g->kind->levels - 1] * (0.5f + 0.09f * (float)s);
        for (int turn = 0; turn < 2; turn++) {
            code_group(g, of, at, &c);
            const double fit = c.grid > 0 ? c.across / c.grid : 0;
            if (!(fit > 0)) break;
            if (gain_of(&c, fit) < least) least = gain_of(&c, fit), scale = (float)fit, *best = c;
            at = (float)fit;
        }
    }
    return scale;
}

/* ---- a block ---- */

struct block {
    struct group group[16];
    struct coded coded[16];
    float scale[16];
};

static int count_of(float scale, float step)
{
    const int count = (int)lrintf((scale / step - 1) / 2);
    return count < 0 ? 0 : count >= COUNTS ? COUNTS - 1 : count;
}

/* The block's scale as fp16: of those around what the largest asks for the TRIED whose odd multiples fit
 * best, with the entries that groups have by themselves; the best first. Returns how many. */
static int fit_block(const struct quantize_grid *g, const struct block *b, uint16_t tried[TRIED])
{
    const int groups = VALUES / g->kind->group;
    float most = 0;
    double error[TRIED];
    int count = 0;
    for (int i = 0; i < groups; i++) most = fmaxf(most, b->scale[i]);
    for (int s = 0; s < STEPS && most > 0; s++) {
        const uint16_t half = convert_f32_f16(most / (31 - 1.5f * (float)(s - 6)) / g->kind->times);
        const float step = convert_f16_f32(half) * g->kind->times;
        double all = 0;
        if (!(step > 0) || !isfinite(step)) continue;
        for (int i = 0; i < groups; i++)
            all += gain_of(&b->coded[i], (double)(step * (float)(2 * count_of(b->scale[i], step) + 1)));
        int place = count < TRIED ? count++ : TRIED - 1;
        if (place == TRIED - 1 && count == TRIED && s >= TRIED && all >= error[place]) continue;
        for (; place > 0 && all < error[place - 1]; place--) {
            error[place] = error[place - 1];
            tried[place] = tried[place - 1];
        }
        error[place] = all;
        tried[place] = half;
    }
    return count;
}

/* A block's code with a scale. */
struct code {
    uint16_t place[64];
    uint8_t sign[32], count[16];
};
/* Each group again with this scale; returns what the error is less by. */
static double code_block(const struct quantize_grid *g, const struct block *b, float step, struct code *code)
{
    const struct kind *k = g->kind;
    const int groups = VALUES / k->group, eights = k->group / 8, places = k->group / k->dims;
    double all = 0;
    for (int i = 0; i < groups; i++) {
        const int around = count_of(b->scale[i], step);
        double least = INFINITY;
        for (int n = around - 1; n <= around + 1; n++) {
            struct coded c;
            if (n < 0 || n >= COUNTS) continue;
            const float scale = step * (float)(2 * n + 1);
            code_group(g, &b->group[i], scale, &c);
            if (gain_of(&c, (double)scale) >= least) continue;
            least = gain_of(&c, (double)scale);
            code->count[i] = (uint8_t)n;
            memcpy(code->place + i * places, c.place, (size_t)places * sizeof *c.place);
            memcpy(code->sign + i * eights, c.sign, (size_t)eights);
        }
        all += least;
    }
    return all;
}

static void write_block(const struct quantize_grid *g, struct block *b, uint8_t *out)
{
    struct code best = {{0}, {0}, {0}};
    uint16_t tried[TRIED], half = 0;
    const int count = fit_block(g, b, tried);
    double least = INFINITY;
    for (int i = 0; i < count; i++) {
        struct code code = {{0}, {0}, {0}};
        const double all = code_block(g, b, convert_f16_f32(tried[i]) * g->kind->times, &code);
        if (all < least) least = all, best = code, half = tried[i];
    }
    memcpy(out, &half, sizeof half);
    g->kind->pack(out, best.place, best.sign, best.count);
}

static bool load_block(const struct quantize_grid *g, const void *values, enum dtype dtype, size_t first,
                       const float *importance, struct block *b)
{
    const int group = g->kind->group;
    for (int i = 0; i < VALUES; i++) {
        struct group *of = &b->group[i / group];
        const float x = convert_load(values, dtype, first + (size_t)i);
        if (!(x >= -QUANTIZE_MOST && x <= QUANTIZE_MOST)) return false;
        const int at = i % group;
        of->x[at] = fabsf(x);
        of->w[at] = importance ? importance[i] : 1;
        if (at % 8 == 0) of->negative[at / 8] = 0;
        if (x < 0) of->negative[at / 8] |= (uint8_t)(1 << at % 8);
    }
    return true;
}

int quantize_grid_rows(const struct quantize_grid *grid, const struct tensor_rows *rows,
                       const float *importance, void *out, struct helm_err *err)
{
    const uint32_t bytes = tensor_format_of(grid->kind->format)->block_bytes;
    uint8_t *to = out;
    for (uint64_t r = 0; r < rows->rows; r++)
        for (uint32_t c = 0; c < rows->cols; c += VALUES, to += bytes) {
            struct block b;
            if (!load_block(grid, rows->values, (enum dtype)rows->from, (size_t)(r * rows->cols + c),
                            importance ? importance + c : NULL, &b))
                return helm_fail(err, HELM_E_FORMAT,
                                 "%s: row %llu has a value that is not between -65504 and 65504",
                                 tensor_format_name(grid->kind->format), (unsigned long long)r);
            for (int i = 0; i < VALUES / grid->kind->group; i++)
                b.scale[i] = fit_group(grid, &b.group[i], &b.coded[i]);
            write_block(grid, &b, to);
        }
    return 0;
}
