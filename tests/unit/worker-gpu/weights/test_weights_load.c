/* Unit tests of worker-gpu/weights/load.c: packed and plain weights of a small model in the emulated device's
 * memory by any number of readers, held against the files; and every way in which loading ends early, after
 * which no reader waits for another: cancelled, a file cut off, a device that fails, too little room. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/formats/packed.h"
#include "tests/unit/common/base/tree.h"
#include "tests/unit/worker-gpu/device/device_test.h"
#include "tools/mkmodel/mkmodel.h"
#include "worker-gpu/weights/weights.h"
#include "tests/written_formats.h"
#include "tests/written_plans.h"

#define LAYERS  3
#define READERS 16
#define FULL    1.0 /* of the bytes of packed weights, their room */
#define CONFIG                                                                                               \
    "{\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", \"hidden_size\": 256, "          \
    "\"intermediate_size\": 9600, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, "                    \
    "\"num_key_value_heads\": 2, \"head_dim\": 64, \"vocab_size\": 1008, \"max_position_embeddings\": "      \
    "1024, \"rms_norm_eps\": 1e-6, \"rope_theta\": 1000000.0, \"tie_word_embeddings\": false, "              \
    "\"dtype\": \"bfloat16\"}"

static char folder[TREE_PATH];
static struct model model;

static int make_model(void **state)
{
    (void)state;
    struct model_config config;
    struct mkmodel_result result;
    tree_make(folder);
    tree_write(folder, "config.json", CONFIG);
    OK(model_read_config(folder, &config, why));
    const struct mkmodel_request request = {.config = &config,
                                            .folder = folder,
                                            .dtype = DTYPE_BF16,
                                            .seed = 3,
                                            .shard_bytes = 16 * MIB,
                                            .threads = 2};
    OK(mkmodel_write(&request, &result, why));
    model_config_free(&config);
    OK(model_read(folder, &model, why));
    assert_true(model.shard_count > 1);
    return 0;
}

static int remove_model(void **state)
{
    (void)state;
    model_free(&model);
    tree_remove(folder);
    return 0;
}

/* All on the GPU, the first five half layers and the head packed. */
struct all_there {
    struct plan plan;
    struct plan_unit unit[WRITTEN_UNITS(LAYERS)];
};

static void write_all(struct all_there *all)
{
    all->plan = (struct plan){.layers = LAYERS,
                              .unit = units_all(all->unit, LAYERS, PLAN_HOME_GPU),
                              .embed = PLAN_GPU0,
                              .head = PLAN_GPU0};
    write_formats(&all->plan, &(struct written_formats){.vram = 5, .head = true});
}

/* With room for packed ones by their bytes; or for `room` bytes, where that is not 0. */
static void plan_weights(struct all_there *all, double part, uint64_t room)
{
    const struct packed_parts parts = {part, part, part};
    write_all(all);
    OK(placement_make(&model, &parts, &all->plan, why));
    if (!room) return;
    const struct placements in = placements_in(&all->plan, PLAN_VRAM0);
    uint64_t more = in.varying;
    for (uint32_t i = all->plan.placement_count; i-- > 0 && more > room;) {
        struct placement *p = &all->plan.placement[i];
        if (p->format != FORMAT_BF16_PACKED) break;
        const uint64_t less = more - room < p->bytes - 1 ? more - room : p->bytes - 1;
        p->bytes -= less;
        more -= less;
    }
    assert_int_equal(placements_in(&all->plan, PLAN_VRAM0).varying, room);
}

static uint16_t *read_tensor(const struct model_tensor *t)
{
    char path[TREE_PATH + 300];
    uint16_t *value = malloc(t->bytes);
    assert_non_null(value);
    snprintf(path, sizeof path, "%s/%s", folder, model.shards[t->shard].file);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)t->offset, SEEK_SET), 0);
    assert_int_equal(fread(value, 1, t->bytes, file), t->bytes);
    assert_int_equal(fclose(file), 0);
    return value;
}

/* The emulated device's memory is the host's. */
static void check_matrix(const struct gpu_weights *w, const struct gpu_weights_place *place)
{
    const struct model_tensor *t = place->tensor;
    if (t->rows == 1) return;
    const struct gpu_matrix *m = gpu_matrix_of(w, t->role, t->layer);
    uint16_t *wanted = read_tensor(t);
    assert_int_equal(m->format, place->format);
    if (m->format != FORMAT_BF16_PACKED) {
        assert_memory_equal(m->data, wanted, t->bytes);
    } else {
        const uint32_t groups = packed_groups(m->rows);
        uint16_t *value = malloc(t->bytes);
        assert_non_null(value);
        assert_memory_equal(m->offset, m->offset_device, packed_offsets_bytes(m->rows));
        OK(packed_read_groups(&(struct packed_part){m->data, packed_at(m->offset, groups), m->offset, m->rows,
                                                    m->cols, 0, groups},
                              value, why));
        assert_memory_equal(value, wanted, t->bytes);
        free(value);
    }
    free(wanted);
}

/* Returns what the packed ones took, tables and all. */
static uint64_t load_and_check(uint32_t readers, uint64_t room)
{
    struct all_there all;
    struct gpu_weights w;
    _Atomic uint64_t done = 0;
    struct device *d = open_emulated(256 * MIB, 0, 5000);
    plan_weights(&all, FULL, room);
    OK(gpu_weights_plan(&model, &all.plan, PLAN_GPU0, NULL, 0, &w, why));
    OK(gpu_weights_load(&w, d, readers, &done, NULL, why));
    assert_int_equal(done, w.matrix_bytes);
    uint32_t packed = 0;
    for (uint32_t i = 0; i < w.place_count; i++) {
        packed += w.place[i].format == FORMAT_BF16_PACKED;
        check_matrix(&w, &w.place[i]);
    }
    assert_int_equal(packed, 2 * 7 + 4 + 1); /* two layers, attention of the third, the head */
    const uint64_t took = w.packed_table_bytes + w.packed_bytes;
    gpu_weights_free(&w);
    plan_drop_placements(&all.plan);
    device_close(d);
    return took;
}

static void any_number_of_readers_loads_the_same(void **state)
{
    (void)state;
    const uint64_t took = load_and_check(1, 0);
    assert_int_equal(load_and_check(3, 0), took);
    assert_int_equal(load_and_check(READERS, took), took); /* in no more room than it takes */
}

static struct device_ops failing;
static const struct device_ops *real;
static _Atomic int32_t calls_left;

static int fail_some_begin(struct device *d, struct helm_err *err)
{
    if (atomic_fetch_sub(&calls_left, 1) > 0) return real->thread_begin(d, err);
    return helm_fail(err, HELM_E_PEER, "no thread begins");
}

static int fail_some_wait(struct device *d, struct device_event *event, struct helm_err *err)
{
    if (atomic_fetch_sub(&calls_left, 1) > 0) return real->event_wait(d, event, err);
    return helm_fail(err, HELM_E_PEER, "no event is waited for");
}

struct ending {
    uint64_t room;
    const _Atomic bool *cancel;
    bool begin_fails, wait_fails;
    int code;
    const char *text;
};

static void load_in_vain(const struct ending *e, int32_t calls)
{
    struct helm_err err = {0};
    struct all_there all;
    struct gpu_weights w;
    _Atomic uint64_t done = 0;
    struct device *d = open_emulated(256 * MIB, 0, 5000);
    real = d->ops;
    failing = *real;
    if (e->begin_fails) failing.thread_begin = fail_some_begin;
    if (e->wait_fails) failing.event_wait = fail_some_wait;
    atomic_store(&calls_left, calls);
    plan_weights(&all, FULL, e->room);
    OK(gpu_weights_plan(&model, &all.plan, PLAN_GPU0, NULL, 0, &w, why));
    d->ops = &failing;
    assert_int_equal(gpu_weights_load(&w, d, READERS, &done, e->cancel, &err), e->code);
    if (!strstr(err.text, e->text)) fail_msg("'%s' is not in '%s'", e->text, err.text);
    assert_true(done <= w.matrix_bytes);
    d->ops = real;
    gpu_weights_free(&w);
    plan_drop_placements(&all.plan);
    device_close(d);
}

static void no_reader_waits_for_one_that_failed(void **state)
{
    (void)state;
    static const _Atomic bool yes = true;
    const uint64_t took = load_and_check(2, 0);
    const struct ending cancelled = {0, &yes, .code = HELM_E_CANCELLED, .text = "loading was cancelled"},
                        begins = {0, .begin_fails = true, .code = HELM_E_PEER, .text = "no thread begins"},
                        waits = {0, .wait_fails = true, .code = HELM_E_PEER, .text = "no event is"},
                        full = {took - 1, .code = HELM_E_CAPACITY, .text = "pack worse than planned"};
    load_in_vain(&cancelled, 0);
    for (int32_t calls = 0; calls < READERS; calls += 5) load_in_vain(&begins, calls);
    for (int32_t calls = 1; calls < 20; calls += 6) load_in_vain(&waits, calls);
    load_in_vain(&full, 0);
    char path[TREE_PATH + 300];
    snprintf(path, sizeof path, "%s/%s", folder, model.shards[0].file);
    assert_int_equal(truncate(path, (off_t)(model.shards[0].bytes / 2)), 0); /* the last: it is gone now */
    const struct ending cut = {0, .code = HELM_E_FORMAT, .text = "file ends at byte"};
    load_in_vain(&cut, 0);
}

/* Nothing is read before what the plan says was held against the model. */
static void a_plan_of_other_places_is_refused(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct all_there all;
    struct gpu_weights w;
    write_all(&all);
    assert_int_equal(gpu_weights_plan(&model, &all.plan, PLAN_GPU0, NULL, 0, &w, &err), HELM_E_FORMAT);
    plan_weights(&all, FULL, 64);
    assert_int_equal(gpu_weights_plan(&model, &all.plan, PLAN_GPU0, NULL, 0, &w, &err), HELM_E_CAPACITY);
    assert_non_null(strstr(err.text, "tables of packed weights take "));
    assert_non_null(strstr(err.text, " have 64 for them"));
    plan_drop_placements(&all.plan);
    plan_weights(&all, FULL, 0);
    all.plan.placement[1].offset = all.plan.placement[0].offset;
    assert_int_equal(gpu_weights_plan(&model, &all.plan, PLAN_GPU0, NULL, 0, &w, &err), HELM_E_MISMATCH);
    plan_drop_placements(&all.plan);
}

/* Where the format in VRAM is another than the file's: the values are those of the format's own writer. */
static void other_formats_are_converted(void **state)
{
    (void)state;
    static const enum tensor_format formats[] = {FORMAT_Q8_0, FORMAT_F32, FORMAT_F16};
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
        struct all_there all;
        struct gpu_weights w;
        _Atomic uint64_t done = 0;
        struct device *d = open_emulated(256 * MIB, 0, 5000);
        write_all(&all);
        for (uint32_t u = 0; u < 2 * LAYERS + 2; u++)
            all.unit[u].format = u == 3 || u == 2 * LAYERS + 1 ? formats[f] : PLAN_AS_STORED;
        OK(placement_make(&model, NULL, &all.plan, why));
        OK(gpu_weights_plan(&model, &all.plan, PLAN_GPU0, NULL, 0, &w, why));
        OK(gpu_weights_load(&w, d, READERS, &done, NULL, why));
        assert_int_equal(done, w.matrix_bytes);
        uint32_t converted = 0;
        for (uint32_t i = 0; i < w.place_count; i++) {
            const struct model_tensor *t = w.place[i].tensor;
            if (t->rows == 1) continue;
            const uint64_t bytes = tensor_format_bytes(w.place[i].format, t->rows, t->cols);
            uint16_t *value = read_tensor(t);
            void *wanted = malloc(bytes);
            assert_non_null(wanted);
            OK(tensor_format_of(w.place[i].format)
                   ->write(value, DTYPE_BF16, (uint32_t)t->rows, (uint32_t)t->cols, wanted, NULL, why));
            assert_memory_equal(gpu_matrix_of(&w, t->role, t->layer)->data, wanted, bytes);
            converted += w.place[i].format == formats[f];
            free(wanted);
            free(value);
        }
        assert_int_equal(converted, 3 + 1); /* gate, up and down of layer 1, and the head */
        gpu_weights_free(&w);
        plan_drop_placements(&all.plan);
        device_close(d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_readers_loads_the_same),
        cmocka_unit_test(a_plan_of_other_places_is_refused),
        cmocka_unit_test(other_formats_are_converted),
        cmocka_unit_test(no_reader_waits_for_one_that_failed),
    };
    return cmocka_run_group_tests_name("worker-gpu/weights_load", tests, make_model, remove_model);
}
