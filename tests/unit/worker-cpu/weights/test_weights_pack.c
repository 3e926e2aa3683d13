/* Unit tests of worker-cpu/weights/weights.c: packed weights of the arena unpack to the files' own, beside
 * weights that lie there as they are; a worker that finds them there leaves them alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/formats/packed.h"
#include "tests/written_formats.h"
#include "tests/written_plans.h"
#include "worker-cpu/weights/weights.h"

#define FOLDER "tests/data/golden/qwen3"
#define UNITS  8

struct bench {
    struct model model;
    struct plan plan;
    struct plan_unit unit[UNITS + 2];
    struct arena arena;
    struct pool *pool;
    struct weights weights;
    _Atomic uint64_t done;
    _Atomic bool cancel;
};

static const enum plan_home homes[UNITS] = {PLAN_HOME_STREAM, PLAN_HOME_CPU, PLAN_HOME_STREAM,
                                            PLAN_HOME_STREAM, PLAN_HOME_GPU, PLAN_HOME_STREAM,
                                            PLAN_HOME_CPU,    PLAN_HOME_CPU};

static void open_arena(struct bench *b)
{
    struct helm_err err = {0};
    const struct arena_spec spec = {
        .slots = 1,
        .context_tokens = 32,
        .step_tokens = 32,
        .hidden = b->model.config.hidden,
        .vocab = b->model.config.vocab,
        .kv = {.layers = 1, .kv_heads = 1, .head_dim = 2, .page_tokens = 32, .dtype = DTYPE_F16},
        .page_count = 1,
        .weight_bytes = b->weights.host.region_bytes};
    assert_int_equal(arena_create(&spec, &b->arena, &err), 0);
}

static void bench_open(struct bench *b, bool pack)
{
    struct helm_err err = {0};
    memset(b, 0, sizeof *b);
    assert_int_equal(model_read(FOLDER, &b->model, &err), 0);
    b->plan = (struct plan){.layers = UNITS / 2,
                            .unit = units_of_homes(b->unit, UNITS / 2, homes),
                            .device[PLAN_GPU0].ring_bytes = 1 << 20,
                            .embed = PLAN_CPU0,
                            .head = PLAN_CPU0};
    write_formats(&b->plan, &(struct written_formats){.link = pack});
    assert_int_equal(placement_make(&b->model, NULL, &b->plan, &err), 0);
    assert_int_equal(weights_plan(&b->model, &b->plan, &b->weights, &err), 0);
    open_arena(b);
    assert_int_equal(pool_create(3, NULL, 0, &b->pool, &err), 0);
}

static int load(struct bench *b, bool ready, struct helm_err *err)
{
    b->done = 0;
    const struct weights_loading loading = {
        .arena = &b->arena, .pool = b->pool, .ready = ready, .bytes_done = &b->done, .cancel = &b->cancel};
    return weights_load(&b->weights, &loading, err);
}

/* As the next worker has it. */
static void begin_again(struct bench *b)
{
    struct helm_err err = {0};
    uint64_t digest = b->weights.digest;
    weights_free(&b->weights);
    assert_int_equal(weights_plan(&b->model, &b->plan, &b->weights, &err), 0);
    assert_int_equal(b->weights.digest, digest);
}

static void bench_close(struct bench *b)
{
    weights_free(&b->weights);
    plan_drop_placements(&b->plan);
    pool_destroy(b->pool);
    arena_close(&b->arena);
    model_free(&b->model);
}

static uint16_t *values_of(const struct bench *b, const struct model_tensor *t)
{
    struct helm_err err = {0};
    uint64_t bytes;
    int fd;
    uint16_t *value = malloc((size_t)t->bytes);
    assert_non_null(value);
    assert_int_equal(file_open_inside(b->model.folder, b->model.shards[t->shard].file, &fd, &bytes, &err), 0);
    assert_int_equal(file_pread_all(fd, value, (size_t)t->bytes, t->offset, t->name, &err), 0);
    close(fd);
    return value;
}

static void check_region(const struct bench *b, bool pack)
{
    const char *region = arena_region_ptr(&b->arena, ARENA_REGION_WEIGHTS);
    uint64_t from = 0, to = 0;
    uint32_t packed = 0;
    for (uint32_t i = 0; i < b->weights.host.count; i++) {
        const struct placement *p = &b->weights.host.place[i];
        const struct model_tensor *t = placement_tensor(&b->model, p);
        const uint32_t rows = (uint32_t)t->rows, cols = (uint32_t)t->cols, groups = packed_groups(rows);
        uint16_t *want = values_of(b, t);
        if (p->format == t->format) {
            assert_memory_equal(region + p->offset, want, (size_t)t->bytes);
            assert_ptr_equal(weights_matrix(&b->weights, t->role, t->layer)->data, region + p->offset);
        } else {
            struct helm_err err = {0};
            const uint32_t *offset = (const uint32_t *)(const void *)(region + p->offset);
            const char *groups_at = region + p->offset + packed_groups_at(rows);
            uint16_t *got = malloc((size_t)t->bytes);
            assert_non_null(got);
            if (packed_read_groups(&(struct packed_part){groups_at, packed_at(offset, groups), offset, rows,
                                                         cols, 0, groups},
                                   got, &err))
                fail_msg("%s: %s", t->name, err.text);
            assert_memory_equal(got, want, (size_t)t->bytes);
            assert_true(packed_groups_at(rows) + packed_at(offset, groups) <= p->bytes);
            assert_null(weights_matrix(&b->weights, t->role, t->layer)->data);
            free(got);
            from += t->bytes;
            to += packed_at(offset, groups);
            packed++;
        }
        free(want);
    }
    assert_int_equal(packed, pack ? 4 + 4 + 3 + 3 : 0); /* units 0, 2, 3 and 5 */
    assert_int_equal(b->weights.packed_from, from);
    assert_int_equal(b->weights.packed_to, to);
    if (pack) assert_in_range(to, from * 68 / 100, from * 76 / 100);
}

static void packed_and_plain_lie_side_by_side(void **state)
{
    (void)state;
    uint64_t digest[2];
    for (int pack = 0; pack < 2; pack++) {
        struct bench b;
        struct helm_err err = {0};
        bench_open(&b, pack);
        digest[pack] = b.weights.digest;
        if (load(&b, false, &err)) fail_msg("%s", err.text);
        check_region(&b, pack);
        assert_int_equal(b.done, b.weights.matrix_bytes); /* progress counts what is read */
        bench_close(&b);
    }
    assert_true(digest[0] != digest[1]); /* neither takes what the other left */
}

/* After a worker's death the next one finds everything there: it writes nothing, and knows what it finds. */
static void what_is_there_is_left_alone(void **state)
{
    (void)state;
    struct bench b;
    struct helm_err err = {0};
    bench_open(&b, true);
    assert_int_equal(load(&b, false, &err), 0);
    const uint64_t to = b.weights.packed_to;
    begin_again(&b);
    if (load(&b, true, &err))
        fail_msg("%s", err.text); /* the region is read-only: a write would be a fault */
    assert_int_equal(b.done, 0);
    assert_int_equal(b.weights.packed_to, to);
    check_region(&b, true);
    begin_again(&b);
    if (load(&b, false, &err)) fail_msg("%s", err.text); /* once more over what was there */
    check_region(&b, true);
    bench_close(&b);
}

static void without_placements_nothing_is_planned(void **state)
{
    (void)state;
    struct bench b;
    struct weights w;
    struct helm_err err = {0};
    bench_open(&b, false);
    b.plan.placement[0].bytes--;
    assert_int_equal(weights_plan(&b.model, &b.plan, &w, &err), HELM_E_MISMATCH);
    assert_non_null(strstr(err.text, "placements: model.embed_tokens.weight has "));
    struct plan without = b.plan;
    without.placement = NULL;
    without.placement_count = 0;
    assert_int_equal(weights_plan(&b.model, &without, &w, &err), HELM_E_FORMAT);
    bench_close(&b);
}

static void loading_can_be_cancelled_and_can_fail(void **state)
{
    (void)state;
    struct bench b;
    struct helm_err err = {0};
    bench_open(&b, true);
    b.cancel = true;
    assert_int_equal(load(&b, false, &err), HELM_E_CANCELLED);
    b.cancel = false;
    begin_again(&b);
    for (uint32_t i = 0; i < b.model.tensor_count; i++) /* of a packed one only */
        if (b.model.tensors[i].role == TENSOR_DOWN && b.model.tensors[i].layer == 2)
            b.model.tensors[i].offset = UINT64_C(1) << 40;
    err = (struct helm_err){0};
    assert_true(load(&b, false, &err) < 0);
    assert_non_null(strstr(err.text, "layers.2.mlp.down_proj"));
    bench_close(&b);
}

/* Where the format here is another than the file's: rows as the format's own writer has them, also where two
 * threads' pieces meet. */
static void other_formats_are_converted(void **state)
{
    (void)state;
    struct bench b;
    struct helm_err err = {0};
    bench_open(&b, false);
    weights_free(&b.weights);
    for (uint32_t u = 0; u < UNITS + 2; u++)
        b.unit[u].format = u == 1 || u == UNITS + 1 ? FORMAT_F32 : u == 3 ? FORMAT_Q8_0 : PLAN_AS_STORED;
    const bool tied = b.model.config.tied_head;
    b.unit[UNITS].format = tied ? FORMAT_F32 : PLAN_AS_STORED; /* one matrix, two uses */
    arena_close(&b.arena);
    assert_int_equal(placement_make(&b.model, NULL, &b.plan, &err), 0);
    if (weights_plan(&b.model, &b.plan, &b.weights, &err)) fail_msg("%s", err.text);
    open_arena(&b);
    if (load(&b, false, &err)) fail_msg("%s", err.text);
    assert_int_equal(b.done, b.weights.matrix_bytes);
    const char *region = arena_region_ptr(&b.arena, ARENA_REGION_WEIGHTS);
    uint32_t converted = 0;
    for (uint32_t i = 0; i < b.weights.host.count; i++) {
        const struct placement *p = &b.weights.host.place[i];
        const struct model_tensor *t = placement_tensor(&b.model, p);
        uint16_t *value = values_of(&b, t);
        void *wanted = malloc((size_t)p->bytes);
        assert_non_null(wanted);
        assert_int_equal(tensor_format_of(p->format)->write(value, DTYPE_BF16, (uint32_t)t->rows,
                                                            (uint32_t)t->cols, wanted, NULL, &err),
                         0);
        assert_memory_equal(region + p->offset, wanted, (size_t)p->bytes);
        converted += p->format != t->format;
        free(wanted);
        free(value);
    }
    assert_int_equal(converted, 3 + 3 + 1);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_and_plain_lie_side_by_side),
        cmocka_unit_test(what_is_there_is_left_alone),
        cmocka_unit_test(other_formats_are_converted),
        cmocka_unit_test(without_placements_nothing_is_planned),
        cmocka_unit_test(loading_can_be_cancelled_and_can_fail),
    };
    return cmocka_run_group_tests_name("worker-cpu/weights_pack", tests, NULL, NULL);
}
