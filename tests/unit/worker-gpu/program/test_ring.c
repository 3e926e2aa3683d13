/* Unit tests of worker-gpu/program/ring.c: slices cover every weight once, and a play of copies and uses in
 * any order that events allow never finds another slice's bytes, over any ring, phase after phase; packed
 * matrices too, whose slices have any sizes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/formats/packed.h"
#include "common/base/units.h"
#include "tests/written_plans.h"
#include "worker-gpu/program/ring.h"

#define LAYERS 5
#define SEEDS  3000
#define GROUPS 32 /* more than any matrix here has */

struct setup {
    struct model model;
    struct gpu_matrix matrix[(LAYERS + 1) * TENSOR_ROLE_COUNT];
    struct gpu_weights weights;
    struct plan plan;
    struct plan_unit unit[2 * LAYERS + 2];
    enum plan_home home[PLAN_PHASES_MAX][2 * LAYERS];
    uint32_t table[LAYERS][TENSOR_ROLE_COUNT][GROUPS]; /* of packed matrices */
};

static uint32_t draw(uint64_t *state, uint32_t below)
{
    *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % below;
}

/* Packs the matrices of some units: groups of any size that they can have. */
static void pack_some(struct setup *s, const enum tensor_role *roles, size_t count, uint64_t *state)
{
    for (uint32_t u = 0; u < 2 * LAYERS; u++) {
        if (draw(state, 3) == 0) continue;
        for (size_t i = 0; i < count; i++) {
            struct gpu_matrix *m = &s->matrix[(unit_layer(u) + 1) * TENSOR_ROLE_COUNT + roles[i]];
            uint32_t *table = s->table[unit_layer(u)][roles[i]];
            if (unit_part_of_role(roles[i]) != unit_part(u)) continue;
            for (uint32_t g = 0; g < packed_groups(m->rows); g++) {
                uint64_t most =
                    packed_group_bytes_max(packed_group_values(m->rows, m->cols, g)) / PACKED_ALIGN;
                table[g + 1] = table[g] + 1 + draw(state, (uint32_t)most);
            }
            m->format = FORMAT_BF16_PACKED;
            m->offset = m->offset_device = table;
        }
    }
    s->weights.offsets_known = true;
}

static void set_model(struct setup *s, uint32_t layers)
{
    s->model.config.layers = layers;
    strcpy(s->model.config.architecture, "LlamaForCausalLM");
    model_math_build(&s->model.config, &s->model.math);
    s->weights.model = &s->model;
    s->weights.self = PLAN_GPU0;
    s->weights.matrix = s->matrix;
}

/* Matrices of odd sizes at addresses without memory; homes by chance, the same ones `gpu` in every phase. */
static void make_setup(struct setup *s, uint64_t seed)
{
    static const enum tensor_role roles[] = {TENSOR_Q,    TENSOR_K,  TENSOR_V,   TENSOR_O,
                                             TENSOR_GATE, TENSOR_UP, TENSOR_DOWN};
    uint64_t state = seed * 77 + 5, at = 1 << 20;
    uint32_t hidden = 8 + 8 * draw(&state, 20), q = 16 * (1 + draw(&state, 12)), kv = 1 + draw(&state, 40),
             n = 16 + draw(&state, 300);
    const bool packs = seed % 4 == 1;
    if (packs) {
        hidden = hidden / 16 * 16 + 16;
        kv = kv / 16 * 16 + 16;
        n = n / 16 * 16;
    }
    const uint32_t rows[] = {q, kv, kv, hidden, n, n, hidden},
                   cols[] = {hidden, hidden, hidden, q, hidden, hidden, n};
    memset(s, 0, sizeof *s);
    set_model(s, LAYERS);
    for (int32_t l = 0; l < LAYERS; l++)
        for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
            at = (at + 63) / 64 * 64;
            s->matrix[(uint32_t)(l + 1) * TENSOR_ROLE_COUNT + roles[i]] =
                (struct gpu_matrix){.host = (const char *)(uintptr_t)at, /* never read */
                                    .format = FORMAT_BF16,
                                    .rows = rows[i],
                                    .cols = cols[i]};
            at += (uint64_t)rows[i] * cols[i] * 2;
        }
    if (packs) pack_some(s, roles, sizeof roles / sizeof *roles, &state);
    s->plan.layers = LAYERS;
    s->plan.unit = units_all(s->unit, LAYERS, PLAN_HOME_CPU);
    s->plan.prefill_count = draw(&state, PLAN_PHASES_MAX);
    for (uint32_t p = 0; p <= s->plan.prefill_count; p++) {
        for (uint32_t u = 0; u < 2 * LAYERS; u++) {
            static const enum plan_home choice[] = {PLAN_HOME_STREAM, PLAN_HOME_CPU, PLAN_HOME_STREAM,
                                                    PLAN_HOME_GPU};
            s->home[p][u] = p == 0                             ? choice[draw(&state, 4)]
                            : s->home[0][u] == PLAN_HOME_GPU   ? PLAN_HOME_GPU
                            : seed % 3 == 0 || draw(&state, 2) ? PLAN_HOME_STREAM
                                                               : s->home[0][u];
        }
        plan_set_homes(&s->plan, p, s->home[p]);
        if (p) s->plan.prefill_from[p - 1] = 16 + p;
    }
    uint64_t least = 16 * 2ull * (n > 2 * hidden ? n : 2 * hidden) + 1024;
    if (least < 32ull * q) least = 32ull * q;
    s->plan.device[PLAN_GPU0].ring_bytes = least + draw(&state, seed % 2 ? 4000 : 600000);
}

/* Every row of every matrix of a streamed unit is in one slice, in order. Returns how many parts are packed.
 */
static uint32_t check_cover(const struct setup *s, uint32_t phase, const struct ring_schedule *ring)
{
    uint32_t at = 0, packed = 0;
    uint64_t bytes = 0;
    for (uint32_t u = 0; u < 2 * LAYERS; u++) {
        if (s->home[phase][u] != PLAN_HOME_STREAM) continue;
        const struct math_part *math = model_unit_math(&s->model, u);
        for (uint32_t op = 0; op < math->ops; op++) {
            const struct math_op *of = &math->op[op];
            uint32_t seen[TENSOR_ROLE_COUNT] = {0};
            for (; at < ring->count && ring->slice[at].unit == u && ring->slice[at].op == op; at++) {
                const struct ring_slice *slice = &ring->slice[at];
                assert_true(slice->place % RING_ALIGN == 0);
                assert_true(slice->place + slice->bytes <= s->plan.device[PLAN_GPU0].ring_bytes);
                if (of->gated) {
                    assert_int_equal(slice->part_count, 2);
                    assert_int_equal(slice->part[0].row, slice->part[1].row);
                    assert_int_equal(slice->part[0].rows, slice->part[1].rows);
                }
                for (uint32_t i = 0; i < slice->part_count; i++) {
                    const struct ring_part *part = &slice->part[i];
                    const enum tensor_role role = of->weight[part->weight];
                    const struct gpu_matrix *m = gpu_matrix_of(&s->weights, role, (int32_t)(unit_layer(u)));
                    assert_int_equal(part->row, seen[role]);
                    assert_true(part->at % RING_ALIGN == 0 && part->at + part->bytes <= slice->bytes);
                    uint64_t raw = part->rows * m->cols * 2ull, from = part->row * m->cols * 2ull;
                    assert_int_equal(slice->expanded > 0, m->offset != NULL);
                    if (m->offset) {
                        uint32_t first = part->row / 16, end = (part->row + part->rows) / 16;
                        assert_int_equal(part->row % 16 + part->rows % 16, 0);
                        from = packed_at(m->offset, first);
                        assert_int_equal(part->bytes, packed_at(m->offset, end) - from);
                        assert_ptr_equal(part->offset, m->offset + first);
                        assert_true(part->out % RING_ALIGN == 0 && part->out + raw <= slice->expanded);
                        if (i) assert_true(part->out >= part[-1].out + part[-1].rows * m->cols * 2ull);
                        packed++;
                    } else {
                        assert_int_equal(part->bytes, raw);
                    }
                    assert_ptr_equal(part->from, (const char *)m->host + from);
                    seen[role] += part->rows;
                    bytes += raw;
                }
            }
            for (uint32_t i = 0; i < of->weights; i++)
                assert_int_equal(seen[of->weight[i]],
                                 gpu_matrix_of(&s->weights, of->weight[i], (int32_t)(unit_layer(u)))->rows);
        }
    }
    assert_int_equal(at, ring->count);
    assert_int_equal(bytes, ring->weight_bytes);
    return packed;
}

/* The ring as a list of what was copied where, newest last. */
struct play {
    struct ring_slice there[4096];
    uint32_t count;
};

static void put(struct play *play, const struct ring_slice *slice)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < play->count; i++) {
        const struct ring_slice *old = &play->there[i];
        if (old->place < slice->place + slice->bytes && slice->place < old->place + old->bytes) continue;
        play->there[kept++] = *old;
    }
    play->there[kept++] = *slice;
    play->count = kept;
}

static bool has(const struct play *play, const struct ring_slice *slice)
{
    for (uint32_t i = 0; i < play->count; i++)
        if (play->there[i].place == slice->place && play->there[i].bytes == slice->bytes &&
            play->there[i].part[0].from == slice->part[0].from)
            return true;
    return false;
}

/* One step: copies run as far ahead of the uses as events let them, or (lazy) only as far as they must. */
static void play_step(struct play *play, const struct ring_schedule *ring, bool lazy)
{
    uint32_t copied = 0, total = ring->count + ring->tail;
    for (uint32_t use = 0; use <= ring->count; use++) {
        while (copied < total && ring->slice[copied].after < (int32_t)use) {
            if (lazy && copied > use && use < ring->count) break;
            assert_true(copied >= ring->count || ring->slice[copied].after < (int32_t)copied);
            if (!ring->slice[copied].held) put(play, &ring->slice[copied]);
            copied++;
        }
        if (use < ring->count) assert_true(has(play, &ring->slice[use]));
    }
    assert_int_equal(copied, total);
}

static void no_use_finds_other_bytes(void **state)
{
    (void)state;
    struct setup *s = malloc(sizeof *s);
    struct play *play = calloc(1, sizeof *play);
    uint64_t held = 0, tails = 0, laps = 0, packed = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct ring_schedule ring[PLAN_PHASES_MAX] = {0};
        struct helm_err err = {0};
        uint64_t state_of = seed;
        make_setup(s, seed);
        for (uint32_t p = 0; p < plan_phase_count(&s->plan); p++) {
            if (ring_plan(&s->weights, &s->plan, p, p ? &ring[0] : NULL, &ring[p], &err))
                fail_msg("seed %u: %s", (unsigned)seed, err.text);
            packed += check_cover(s, p, &ring[p]);
        }
        uint32_t prefix = ring_prefix(&ring[0]);
        play->count = 0;
        for (uint32_t i = 0; i < prefix; i++) put(play, &ring[0].slice[i]);
        for (int step = 0; step < 6; step++) {
            uint32_t p = step ? draw(&state_of, plan_phase_count(&s->plan)) : 0;
            play_step(play, &ring[p], draw(&state_of, 2));
            for (uint32_t i = 0; i < prefix; i++) assert_true(has(play, &ring[0].slice[i]));
        }
        for (uint32_t p = 0; p < plan_phase_count(&s->plan); p++) {
            for (uint32_t i = 0; i < ring[p].count; i++) {
                held += ring[p].slice[i].held && p;
                laps += ring[p].slice[i].after >= 0;
            }
            tails += ring[p].tail;
            ring_free(&ring[p]);
        }
    }
    assert_true(held > 0 && tails > 0 && laps > 0 && packed > 0); /* all of it was met */
    free(play);
    free(s);
}

/* A slice of the prefix that stands where decode has it, but after a lap: a slice of this phase is copied
 * over it before it is used, so it has to be copied too. */
static void what_a_lap_overwrites_is_not_held(void **state)
{
    (void)state;
    struct setup *s = calloc(1, sizeof *s);
    struct play *play = calloc(1, sizeof *play);
    struct ring_schedule ring[2];
    struct helm_err err = {0};
    static const enum tensor_role roles[] = {TENSOR_GATE, TENSOR_UP, TENSOR_DOWN};
    static const uint32_t cols[] = {128, 384, 128}; /* layers 0 and 2 take 12 KiB, layer 1 takes 24 and 12 */
    set_model(s, 3);
    for (uint32_t l = 0; l < 3; l++)
        for (uint32_t i = 0; i < 3; i++)
            s->matrix[(l + 1) * TENSOR_ROLE_COUNT + roles[i]] =
                (struct gpu_matrix){.host = (const char *)(uintptr_t)((3 * l + i + 1) * MIB),
                                    .format = FORMAT_BF16,
                                    .rows = 16,
                                    .cols = cols[l]};
    static const enum plan_home homes[2][6] = {{0, 2, 0, 0, 0, 2}, {0, 0, 0, 2, 0, 2}};
    s->plan = (struct plan){.layers = 3,
                            .device[PLAN_GPU0].ring_bytes = 32 * KIB,
                            .unit = units_of_homes(s->unit, 3, homes[0])};
    add_list(&s->plan, 17, homes[1]);
    for (uint32_t p = 0; p < 2; p++)
        assert_int_equal(ring_plan(&s->weights, &s->plan, p, p ? &ring[0] : NULL, &ring[p], &err), 0);
    assert_int_equal(ring_prefix(&ring[0]), 4);
    assert_int_equal(ring[0].slice[2].place, ring[1].slice[2].place);
    for (uint32_t i = 0; i < 4; i++) put(play, &ring[0].slice[i]);
    for (uint32_t step = 0; step < 4; step++) {
        play_step(play, &ring[step % 2], step > 1);
        for (uint32_t i = 0; i < 4; i++) assert_true(has(play, &ring[0].slice[i]));
    }
    ring_free(&ring[0]);
    ring_free(&ring[1]);
    free(play);
    free(s);
}

/* Slices of 16 KiB, four a lap, nine in all: the last lap has one, where the next step's first belongs. It is
 * copied before those whose places the same layer sets free before it. */
static void the_next_steps_first_slice_comes_first(void **state)
{
    (void)state;
    struct setup *s = calloc(1, sizeof *s);
    struct ring_schedule ring;
    struct helm_err err = {0};
    static const enum tensor_role roles[] = {TENSOR_GATE, TENSOR_UP, TENSOR_DOWN};
    static const enum plan_home homes[6] = {PLAN_HOME_CPU,    PLAN_HOME_STREAM, PLAN_HOME_CPU,
                                            PLAN_HOME_STREAM, PLAN_HOME_CPU,    PLAN_HOME_STREAM};
    set_model(s, 3);
    for (uint32_t l = 0; l < 3; l++)
        for (uint32_t i = 0; i < 3; i++)
            s->matrix[(l + 1) * TENSOR_ROLE_COUNT + roles[i]] =
                (struct gpu_matrix){.host = (const char *)(uintptr_t)((3 * l + i + 1) * MIB),
                                    .format = FORMAT_BF16,
                                    .rows = i == 2 ? 16 : 32,
                                    .cols = i == 2 ? 512 : 256};
    s->plan = (struct plan){.layers = 3,
                            .device[PLAN_GPU0].ring_bytes = 64 * KIB,
                            .unit = units_of_homes(s->unit, 3, homes)};
    assert_int_equal(ring_plan(&s->weights, &s->plan, 0, NULL, &ring, &err), 0);
    assert_int_equal(ring.count, 9);
    assert_int_equal(ring_prefix(&ring), 4);
    assert_int_equal(ring.slice[8].place, ring.slice[0].place);
    assert_int_equal(ring.tail, 4);
    static const uint32_t order[] = {1, 0, 2, 3}; /* 1: used before the last layer begins */
    static const int32_t after[] = {5, 8, 8, 8};
    for (uint32_t t = 0; t < 4; t++) {
        assert_int_equal(ring.slice[9 + t].prefix, order[t]);
        assert_int_equal(ring.slice[9 + t].after, after[t]);
    }
    ring_free(&ring);
    free(s);
}

/* A ring that holds every slice of decode: nothing is copied in a step, in decode or after it. */
static void a_large_ring_keeps_everything(void **state)
{
    (void)state;
    struct setup *s = malloc(sizeof *s);
    struct ring_schedule ring;
    struct helm_err err = {0};
    make_setup(s, 12);
    s->plan.prefill_count = 0;
    s->plan.device[PLAN_GPU0].ring_bytes = 64 * MIB;
    assert_int_equal(ring_plan(&s->weights, &s->plan, 0, NULL, &ring, &err), 0);
    assert_true(ring.count > 0);
    assert_int_equal(ring_prefix(&ring), ring.count);
    assert_int_equal(ring.tail, 0);
    assert_int_equal(ring.copy_bytes, 0);
    ring_free(&ring);
    s->plan.device[PLAN_GPU0].ring_bytes = 256;
    assert_int_equal(ring_plan(&s->weights, &s->plan, 0, NULL, &ring, &err), HELM_E_CAPACITY);
    assert_non_null(strstr(err.text, "256 B"));
    assert_null(ring.slice);
    free(s);
}

/* Slices are as large as is good for the link, and no larger than a part of the ring. */
static void slices_fit_the_ring(void **state)
{
    (void)state;
    struct setup *s = malloc(sizeof *s);
    struct helm_err err = {0};
    static const uint64_t rings[] = {256 * MIB, 32 * MIB, 8 * MIB};
    make_setup(s, 1);
    for (uint32_t u = 0; u < 2 * LAYERS; u++) s->home[0][u] = PLAN_HOME_STREAM;
    plan_set_homes(&s->plan, 0, s->home[0]);
    for (int i = 0; i < (LAYERS + 1) * TENSOR_ROLE_COUNT; i++) {
        s->matrix[i].format = FORMAT_BF16;
        s->matrix[i].offset = NULL;
        if (s->matrix[i].host) s->matrix[i].rows = 12288, s->matrix[i].cols = 4096;
    }
    for (size_t r = 0; r < sizeof rings / sizeof *rings; r++) {
        struct ring_schedule ring;
        uint64_t most = rings[r] / 4 < RING_SLICE_BYTES ? rings[r] / 4 : RING_SLICE_BYTES, largest = 0;
        s->plan.device[PLAN_GPU0].ring_bytes = rings[r];
        assert_int_equal(ring_plan(&s->weights, &s->plan, 0, NULL, &ring, &err), 0);
        for (uint32_t i = 0; i < ring.count; i++)
            if (ring.slice[i].bytes > largest) largest = ring.slice[i].bytes;
        assert_true(largest <= most + RING_ROWS * 4096 * 4 && largest > most / 2);
        ring_free(&ring);
    }
    free(s);
}

/* As long as sizes are not known the schedule goes by what they are at most: the same slices, none smaller;
 * and packed slices are of more rows, since what crosses the link is less. */
static void unknown_sizes_are_bounds(void **state)
{
    (void)state;
    struct setup *s = malloc(sizeof *s);
    struct helm_err err = {0};
    struct ring_schedule known, bound;
    make_setup(s, 1);
    s->plan.prefill_count = 0;
    s->plan.device[PLAN_GPU0].ring_bytes = 64 * MIB;
    assert_int_equal(ring_plan(&s->weights, &s->plan, 0, NULL, &known, &err), 0);
    s->weights.offsets_known = false;
    assert_int_equal(ring_plan(&s->weights, &s->plan, 0, NULL, &bound, &err), 0);
    assert_int_equal(known.count, bound.count);
    assert_int_equal(known.weight_bytes, bound.weight_bytes);
    for (uint32_t i = 0; i < known.count; i++) {
        assert_true(known.slice[i].bytes <= bound.slice[i].bytes);
        assert_int_equal(known.slice[i].expanded, bound.slice[i].expanded);
    }
    ring_free(&known);
    ring_free(&bound);
    for (int i = 0; i < (LAYERS + 1) * TENSOR_ROLE_COUNT; i++) {
        s->matrix[i].format = FORMAT_BF16_PACKED;
        s->matrix[i].offset = s->table[0][0];
        if (s->matrix[i].host) s->matrix[i].rows = 12288, s->matrix[i].cols = 4096;
    }
    s->plan.device[PLAN_GPU0].ring_bytes = 512 * MIB;
    assert_int_equal(ring_plan(&s->weights, &s->plan, 0, NULL, &bound, &err), 0);
    uint64_t largest = 0;
    for (uint32_t i = 0; i < bound.count; i++)
        if (bound.slice[i].expanded > largest) largest = bound.slice[i].expanded;
    assert_true(largest > RING_SLICE_BYTES && largest <= RING_PACKED_SLICE_BYTES + RING_ROWS * 4096 * 4);
    ring_free(&bound);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_use_finds_other_bytes),
        cmocka_unit_test(what_a_lap_overwrites_is_not_held),
        cmocka_unit_test(the_next_steps_first_slice_comes_first),
        cmocka_unit_test(a_large_ring_keeps_everything),
        cmocka_unit_test(slices_fit_the_ring),
        cmocka_unit_test(unknown_sizes_are_bounds),
    };
    return cmocka_run_group_tests_name("worker-gpu/ring", tests, NULL, NULL);
}
