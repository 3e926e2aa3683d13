/* Unit tests of worker-gpu/program/tiers.c: which pages a step fills, and copies of their cells between
 * VRAM's places and the arena, where either numbers layers in its own way, on the emulated device; and of
 * pieces.c: places of what a chunk brings to VRAM. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tests/written_plans.h"
#include "worker-gpu/program/pieces.h"
#include "worker-gpu/program/tiers.h"

#define PAGES  7
#define PLACES 5

static struct plan_unit unit[WRITTEN_UNITS(5)];
static const struct plan *a_plan(void)
{
    static const enum plan_home home[] = {0, 0, 1, 1, 1,
                                          0, 0, 1, 2, 2}; /* the caches of layers 1, 2, 4 are the GPU's */
    static struct plan plan;
    plan = (struct plan){.layers = 5,
                         .unit = units_of_homes(unit, 5, home),
                         .device[PLAN_GPU0].vram_page_count = PLACES};
    return &plan;
}

static void runs_of_layers_are_found(void **state)
{
    (void)state;
    const struct gpu_source s = {.plan = a_plan(), .self = PLAN_GPU0};
    struct gpu_cells cells;
    assert_true(gpu_cells_next(&s, 0, &cells));
    assert_true(cells.layer == 1 && cells.kv_layer == 0 && cells.layers == 2);
    assert_true(gpu_cells_next(&s, cells.layer + cells.layers, &cells));
    assert_true(cells.layer == 4 && cells.kv_layer == 2 && cells.layers == 1);
    assert_false(gpu_cells_next(&s, cells.layer + cells.layers, &cells));
}

static void filled_pages_are_counted(void **state)
{
    (void)state;
    static const struct {
        uint32_t start, count, ahead, filled;
    } cases[] = {{0, 1, 0, 0},  {15, 1, 0, 1}, {14, 1, 1, 1},  {15, 1, 1, 0}, {0, 16, 0, 1},
                 {0, 48, 0, 3}, {5, 40, 0, 2}, {16, 15, 0, 0}, {31, 2, 0, 1}, {1, 14, 0, 0}};
    struct batch *batch = calloc(1, sizeof *batch);
    uint32_t sum = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        batch->row_count = 1;
        batch->row[0] = (struct batch_row){.start = cases[i].start, .count = cases[i].count};
        assert_int_equal(gpu_fills(batch, 16, cases[i].ahead), cases[i].filled);
    }
    /* of several rows the sum */
    batch->row_count = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (cases[i].ahead) continue;
        batch->row[batch->row_count++] = (struct batch_row){.start = cases[i].start, .count = cases[i].count};
        sum += cases[i].filled;
    }
    assert_int_equal(gpu_fills(batch, 16, 0), sum);
    free(batch);
}

/* Every cell says whose it is. */
static void write_cells(char *pool, const struct kv_layout *l, uint32_t pages, unsigned mark)
{
    for (uint64_t i = 0; i < pages * kv_page_bytes(l) / sizeof(uint32_t); i++)
        ((uint32_t *)(void *)pool)[i] = mark << 28 | (uint32_t)i;
}

static void cells_are_copied_both_ways(void **state)
{
    (void)state;
    const struct device_options options = {.name = "emulated"};
    struct helm_err err = {0};
    struct arena arena;
    struct device *d;
    void *kv_pool = NULL;
    const struct arena_spec spec = {
        .slots = 2,
        .context_tokens = 16 * PAGES,
        .step_tokens = 64,
        .hidden = 64,
        .vocab = 64,
        .lanes = {PLAN_LINKS, PLAN_LINKS},
        .kv = {.layers = 5, .kv_heads = 2, .head_dim = 32, .page_tokens = 16, .dtype = KV_Q8_0},
        .page_count = PAGES,
        .vram_page_count = PLACES,
        .kv_heads_asking = 4};
    if (arena_create(&spec, &arena, &err)) fail_msg("%s", err.text);
    if (device_open(&options, &d, &err)) fail_msg("%s", err.text);
    const struct arena_region *region = &arena_header_of(&arena)->region[ARENA_REGION_KV];
    char *host = arena_region_ptr(&arena, ARENA_REGION_KV), *want = malloc(region->bytes);
    struct gpu_source s = {.plan = a_plan(), .self = PLAN_GPU0, .arena = &arena, .device = d, .kv = spec.kv};
    s.kv.layers = 3;
    const uint64_t vram_bytes = PLACES * kv_page_bytes(&s.kv), layer = kv_layer_bytes(&s.kv);
    assert_int_equal(device_alloc(d, DEVICE_KV, vram_bytes, &kv_pool, &err), 0);
    assert_int_equal(device_host_register(d, "cache", host, region->bytes, false, &err), 0);
    s.kv_pool = kv_pool;
    assert_int_equal(gpu_tier_page_bytes(&s), 3 * layer);

    /* pages 0 to 3 of the row, of which a step of 34 tokens from 15 on fills the first three */
    static const uint32_t pages[] = {4, 5, 2, 6}, places[] = {0, 1, 3, 4};
    struct batch *batch = calloc(1, sizeof *batch);
    batch->row_count = 1;
    batch->row[0] = (struct batch_row){.pages = pages, .places = places, .start = 15, .count = 34};
    write_cells(host, &spec.kv, PAGES, 1);
    write_cells(kv_pool, &s.kv, PLACES, 2);
    memcpy(want, host, region->bytes);
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t l = 0; l < 3; l++)
            memcpy(want + kv_offset(&spec.kv, pages[i], l == 2 ? 4 : l + 1, 0, 0),
                   (char *)kv_pool + kv_offset(&s.kv, places[i], l, 0, 0), layer);
    struct gpu_cells cells;
    for (uint32_t from = 0; gpu_cells_next(&s, from, &cells); from = cells.layer + cells.layers)
        if (gpu_store_filled(&s, DEVICE_COMPUTE, &cells, batch, 0, &err)) fail_msg("%s", err.text);
    assert_int_equal(device_await(d, DEVICE_COMPUTE, &err), 0);
    assert_memory_equal(host, want, region->bytes);

    /* and back, to other places: two neighbours, and one alone */
    static const struct step_fetch fetch[] = {{4, 2}, {5, 3}, {2, 0}};
    write_cells(kv_pool, &s.kv, PLACES, 3);
    memcpy(want, kv_pool, vram_bytes);
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t l = 0; l < 3; l++)
            memcpy(want + kv_offset(&s.kv, fetch[i].place, l, 0, 0),
                   host + kv_offset(&spec.kv, fetch[i].page, l == 2 ? 4 : l + 1, 0, 0), layer);
    if (gpu_fetch_pages(&s, fetch, 3, &err)) fail_msg("%s", err.text);
    assert_int_equal(device_await(d, DEVICE_COPY, &err), 0);
    assert_memory_equal(kv_pool, want, vram_bytes);

    free(batch);
    free(want);
    d->ops->host_unregister(d, host);
    device_free(d, DEVICE_KV, vram_bytes, kv_pool);
    device_close(d);
    arena_close(&arena);
}

/* ---- pieces ---- */

#define ROWS 6
#define LINE 80

/* Rows at random, of a step of at most plan->step_tokens. */
static void draw_rows(const struct plan *plan, uint32_t *random, struct batch_row rows[ROWS])
{
    const uint32_t page = plan->page_tokens;
    uint32_t tokens = 0;
    for (uint32_t r = 0; r < ROWS; r++) {
        *random = *random * 1664525u + 1013904223u;
        const uint32_t start = (*random >> 8) % (page * 60),
                       count = 1 + (*random >> 20) % (plan->step_tokens / ROWS);
        rows[r] = (struct batch_row){.start = start,
                                     .count = count,
                                     .token_first = tokens,
                                     .host_tokens = (*random >> 4) % (start / page + 1) * page};
        tokens += count;
    }
}

/* Pages of a row that attention reads while a piece is in VRAM lie in that piece's half; pages in the tail
 * stay. */
static void check_pieces(const struct plan *plan, const struct batch_row rows[ROWS], bool own)
{
    static uint32_t table[ROWS][LINE];
    const struct plan_staging pool = plan_staging(plan);
    const uint32_t page = plan->page_tokens, tile = plan_tile_pages(page);
    uint32_t before[ROWS + 1], tails[4096] = {0}, from, to;
    assert_true(pool.pages <= 4096 && pool.piece % tile == 0);
    for (uint32_t r = 0; r < ROWS; r++) gpu_pieces_fill(plan, &rows[r], r, own, before, table[r]);
    struct gpuk_part part = {.before = before, .pages = pool.piece};
    uint32_t seen[ROWS] = {0};
    for (; part.piece * pool.piece < before[ROWS]; part.piece++) {
        bool taken[4096] = {false};
        for (uint32_t r = 0; r < ROWS; r++) {
            gpuk_part_span(&part, r, page, &from, &to);
            assert_true(from % (tile * page) == 0 && to % (tile * page) == 0);
            assert_true(to <= from || from == seen[r]);
            for (uint32_t i = from / page; i < to / page; i++) {
                const uint32_t place = table[r][i] & ~GPUK_PAGE_HOST;
                assert_true(table[r][i] & GPUK_PAGE_HOST && place / pool.piece == part.piece % 2);
                assert_false(taken[place]);
                taken[place] = true;
            }
            if (to > from) seen[r] = to;
        }
    }
    part.piece = GPUK_PART_LAST;
    for (uint32_t r = 0; r < ROWS; r++) {
        const struct gpu_staged s = gpu_staged_of(plan, &rows[r], r, own);
        const uint32_t end =
            own ? rows[r].host_tokens : (rows[r].start + rows[r].count + page - 1) / page * page;
        gpuk_part_span(&part, r, page, &from, &to);
        assert_true(from == seen[r] && to == UINT32_MAX && s.pieces * page == from && s.end * page == end);
        for (uint32_t i = s.pieces; i < s.end; i++) {
            const uint32_t place = table[r][i] & ~GPUK_PAGE_HOST;
            assert_true(place >= 2 * pool.piece && place < pool.pages);
            assert_int_equal(tails[place]++, 0);
        }
    }
}

static void pieces_and_tails_have_places(void **state)
{
    (void)state;
    static const uint32_t pages[] = {16, 32, 128, 512}, pieces[] = {0, 1, 3, 8, 40};
    uint32_t random = 3;
    for (int i = 0; i < 400; i++) {
        struct plan plan = *a_plan();
        struct batch_row rows[ROWS];
        plan.page_tokens = pages[i % 4];
        plan.page_count = 20 + (uint32_t)i;
        plan.kv_piece_pages = pieces[i % 5];
        plan.step_tokens = 600;
        plan.slots = ROWS;
        if (i % 2) add_letters(&plan, 17, "g");
        draw_rows(&plan, &random, rows);
        check_pieces(&plan, rows, true);
        assert_int_equal(plan_borrows_kv(&plan), i % 2);
        if (i % 2) check_pieces(&plan, rows, false);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_of_layers_are_found),
        cmocka_unit_test(filled_pages_are_counted),
        cmocka_unit_test(cells_are_copied_both_ways),
        cmocka_unit_test(pieces_and_tails_have_places),
    };
    return cmocka_run_group_tests_name("worker-gpu/program/tiers", tests, NULL, NULL);
}
