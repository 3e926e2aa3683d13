/* The ring of half layers on disk (worker-cpu/disk/ring.c): each time that a unit is there it has the bytes
 * that loading gives, rows that lie interleaved in the file in order, with a ring for one unit, for some and
 * for all, step after step; also after a step that ended early; and it closes whatever is under way. What
 * common/plan/disk.c gives it: places within the ring that overlap only where the ring begins anew; and what
 * it refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/model/shards.h"
#include "tests/written_plans.h"
#include "worker-cpu/disk/disk.h"

struct ring_case {
    struct model model;
    struct plan plan;
    struct model_shards shards;
    struct pool *pool;
    struct disk *disk;
};

static int open_plan(struct ring_case *c, const char *folder, const char *homes, uint64_t ring,
                     struct helm_err *err)
{
    memset(c, 0, sizeof *c);
    if (model_read(folder, &c->model, err)) fail_msg("%s", err->text);
    c->plan = (struct plan){.layers = c->model.config.layers};
    assert_int_equal(plan_make_units(&c->plan, PLAN_HOME_CPU, err), 0);
    for (uint32_t u = 0; u < unit_count(c->plan.layers); u++)
        c->plan.unit[u].home[0] = home_of_letter(homes[u % strlen(homes)]);
    plan_device_at(&c->plan, PLAN_HOME_DISK)->ring_bytes = ring;
    struct disk_ring place = {0};
    return disk_ring_place(&c->model, &c->plan, &place, err);
}

static void close_plan(struct ring_case *c)
{
    plan_free(&c->plan);
    model_free(&c->model);
}

static void open_ring(struct ring_case *c, const char *folder, const char *homes, uint64_t ring)
{
    struct helm_err err = {0};
    char reduced[DISK_REDUCED_TEXT];
    if (open_plan(c, folder, homes, ring, &err) || model_shards_open(&c->model, &c->shards, &err) ||
        pool_create(1, NULL, 0, &c->pool, &err) ||
        disk_open(&c->model, &c->plan, NULL, c->pool, &c->disk, reduced, &err) || disk_start(c->disk, &err))
        fail_msg("%s", err.text);
}

static void close_ring(struct ring_case *c)
{
    disk_close(c->disk);
    pool_destroy(c->pool);
    model_shards_close(&c->shards);
    close_plan(c);
}

/* Takes a unit and compares its matrices. */
static void take(struct ring_case *c, uint32_t unit)
{
    struct helm_err err = {0};
    const struct model_unit *u = &c->model.unit[unit];
    if (disk_take_unit(c->disk, unit, &err)) fail_msg("%s", err.text);
    for (uint32_t i = 0; i < u->matrix_count; i++) {
        const struct model_tensor *t = u->tensor[i];
        char *wanted = malloc(t->bytes);
        assert_non_null(wanted);
        if (model_shards_read(&c->shards, t, 0, t->bytes, wanted, &err)) fail_msg("%s", err.text);
        assert_memory_equal(wanted, disk_matrix(c->disk, t), t->bytes);
        free(wanted);
    }
}

static uint64_t largest_of(const char *folder)
{
    struct model model;
    struct helm_err err = {0};
    uint64_t largest = 0, room;
    if (model_read(folder, &model, &err)) fail_msg("%s", err.text);
    for (uint32_t u = 0; u < unit_count(model.config.layers); u++) {
        if (disk_ring_room(&model, u, &room, &err)) fail_msg("%s", err.text);
        if (room > largest) largest = room;
    }
    model_free(&model);
    return largest;
}

static void a_unit_has_the_bytes_of_its_file(void **state)
{
    (void)state;
    static const struct {
        const char *folder, *homes;
    } cases[] = {{"tests/data/golden/qwen3", "d"},
                 {"tests/data/golden/qwen2-bias", "cd"},
                 {"tests/data/golden-gguf/llama-Q4_K_M", "d"},
                 {"tests/data/golden-gguf/qwen3-Q2_K", "ddc"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint32_t part = 4; part <= 40; part += part < 12 ? 3 : 14) { /* quarters of the largest unit */
            struct ring_case c;
            open_ring(&c, cases[i].folder, cases[i].homes, largest_of(cases[i].folder) * part / 4);
            for (int step = 0; step < 3; step++)
                for (uint32_t u = 0; u < unit_count(c.plan.layers); u++) {
                    if (c.plan.unit[u].home[0] != PLAN_HOME_DISK) continue;
                    take(&c, u);
                    disk_leave_unit(c.disk);
                }
            close_ring(&c);
        }
}

/* The next step begins with the first unit again, or with any. */
static void a_step_may_end_early(void **state)
{
    (void)state;
    static const uint32_t ends[] = {0, 3, 7, 1, 6, 2};
    struct ring_case c;
    open_ring(&c, "tests/data/golden/qwen3", "d", 2 * largest_of("tests/data/golden/qwen3"));
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        for (uint32_t u = 0; u <= ends[i]; u++) {
            take(&c, u);
            if (u < ends[i] || i % 2) disk_leave_unit(c.disk); /* or it ended within the unit */
        }
    take(&c, 5);
    close_ring(&c);
}

static void it_closes_at_any_time(void **state)
{
    (void)state;
    for (uint32_t units = 0; units < 8; units++) {
        struct ring_case c;
        open_ring(&c, "tests/data/golden/qwen3", "d", 3 * largest_of("tests/data/golden/qwen3"));
        for (uint32_t u = 0; u < units; u++) {
            take(&c, u);
            disk_leave_unit(c.disk);
        }
        close_ring(&c);
    }
}

/* ---- places ---- */

static void places_follow_one_another(void **state)
{
    (void)state;
    struct ring_case c;
    struct helm_err err = {0};
    struct disk_passing passing[8];
    struct disk_ring ring = {.passing = passing};
    const uint64_t bytes = 5 * largest_of("tests/data/golden/qwen3") / 2;
    if (open_plan(&c, "tests/data/golden/qwen3", "d", bytes, &err)) fail_msg("%s", err.text);
    assert_int_equal(disk_ring_place(&c.model, &c.plan, &ring, &err), 0);
    assert_int_equal(ring.units, 8);
    assert_int_equal(ring.bytes, bytes);
    uint64_t at = 0, file = 0;
    for (uint32_t u = 0; u < ring.units; u++) {
        const struct model_unit *unit = &c.model.unit[u];
        assert_int_equal(passing[u].unit, u);
        assert_int_equal(passing[u].room % DISK_ALIGN, 0);
        assert_true(passing[u].at == at || (passing[u].at == 0 && at + passing[u].room > bytes));
        at = passing[u].at + passing[u].room;
        assert_true(at <= bytes);
        for (uint32_t i = 0; i < unit->matrix_count; i++) file += unit->tensor[i]->bytes;
    }
    assert_int_equal(ring.file_bytes, file);
    close_plan(&c);
}

static void what_cannot_be_read_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *folder;
        uint64_t ring;
        int rc;
        const char *says;
    } cases[] = {{"tests/data/golden/qwen35", 1 << 20, HELM_E_UNSUPPORTED, "otherwise than matrix by matrix"},
                 {"tests/data/golden/mixtral", 1 << 20, HELM_E_MISMATCH,
                  "layer 0 has experts, which need slots"},
                 {"tests/data/golden/qwen3", 1 << 20, HELM_E_CAPACITY,
                  "'disk_ring_bytes' is 1048576: the MLP of"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ring_case c;
        struct helm_err err = {0};
        assert_int_equal(open_plan(&c, cases[i].folder, "d", cases[i].ring, &err), cases[i].rc);
        if (!strstr(err.text, cases[i].says)) fail_msg("'%s' instead of '%s'", err.text, cases[i].says);
        close_plan(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_unit_has_the_bytes_of_its_file),
                                       cmocka_unit_test(a_step_may_end_early),
                                       cmocka_unit_test(it_closes_at_any_time),
                                       cmocka_unit_test(places_follow_one_another),
                                       cmocka_unit_test(what_cannot_be_read_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
