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

#define LAYERS  3
#define ROOM    (48 * MIB)
#define READERS 16
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

/* All on the GPU, the first five half layers and the head packed in `room`. */
static void plan_weights(uint64_t room, struct gpu_weights *w)
{
    struct plan_stage stages[2 * LAYERS] = {{.first = 0, .last = LAYERS - 1, .home = PLAN_HOME_GPU}};
    enum tensor_format format[2 * LAYERS + 2];
    struct plan plan = {.layers = LAYERS,
                        .stages = stages,
                        .stage_count = 1,
                        .pack_gpu_bytes = room,
                        .embed = PLAN_GPU0,
                        .head = PLAN_GPU0};
    write_formats(&plan, &(struct written_formats){.vram = 5, .head = true}, format);
    OK(gpu_weights_plan(&model, &plan, NULL, 0, w, why));
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
    assert_int_equal(m->packed, place->packed);
    if (!m->packed) {
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
    struct gpu_weights w;
    _Atomic uint64_t done = 0;
    struct device *d = open_emulated(256 * MIB, 0, 5000);
    plan_weights(room, &w);
    OK(gpu_weights_load(&w, d, readers, &done, NULL, why));
    assert_int_equal(done, w.matrix_bytes);
    uint32_t packed = 0;
    for (uint32_t i = 0; i < w.place_count; i++) {
        packed += w.place[i].packed;
        check_matrix(&w, &w.place[i]);
    }
    assert_int_equal(packed, 2 * 7 + 4 + 1); /* two layers, attention of the third, the head */
    const uint64_t took = w.packed_table_bytes + w.packed_bytes;
    gpu_weights_free(&w);
    device_close(d);
    return took;
}

static void any_number_of_readers_loads_the_same(void **state)
{
    (void)state;
    const uint64_t took = load_and_check(1, ROOM);
    assert_int_equal(load_and_check(3, ROOM), took);
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
    struct gpu_weights w;
    _Atomic uint64_t done = 0;
    struct device *d = open_emulated(256 * MIB, 0, 5000);
    real = d->ops;
    failing = *real;
    if (e->begin_fails) failing.thread_begin = fail_some_begin;
    if (e->wait_fails) failing.event_wait = fail_some_wait;
    atomic_store(&calls_left, calls);
    plan_weights(e->room, &w);
    d->ops = &failing;
    assert_int_equal(gpu_weights_load(&w, d, READERS, &done, e->cancel, &err), e->code);
    if (!strstr(err.text, e->text)) fail_msg("'%s' is not in '%s'", e->text, err.text);
    assert_true(done <= w.matrix_bytes);
    d->ops = real;
    gpu_weights_free(&w);
    device_close(d);
}

static void no_reader_waits_for_one_that_failed(void **state)
{
    (void)state;
    static const _Atomic bool yes = true;
    const uint64_t took = load_and_check(2, ROOM);
    const struct ending cancelled = {ROOM, &yes, .code = HELM_E_CANCELLED, .text = "loading was cancelled"},
                        begins = {ROOM, .begin_fails = true, .code = HELM_E_PEER, .text = "no thread begins"},
                        waits = {ROOM, .wait_fails = true, .code = HELM_E_PEER, .text = "no event is"},
                        full = {took - 1, .code = HELM_E_CAPACITY, .text = "pack worse than planned"};
    load_in_vain(&cancelled, 0);
    for (int32_t calls = 0; calls < READERS; calls += 5) load_in_vain(&begins, calls);
    for (int32_t calls = 1; calls < 20; calls += 6) load_in_vain(&waits, calls);
    load_in_vain(&full, 0);
    char path[TREE_PATH + 300];
    snprintf(path, sizeof path, "%s/%s", folder, model.shards[0].file);
    assert_int_equal(truncate(path, (off_t)(model.shards[0].bytes / 2)), 0); /* the last: it is gone now */
    const struct ending cut = {ROOM, .code = HELM_E_FORMAT, .text = "file ends at byte"};
    load_in_vain(&cut, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_readers_loads_the_same),
        cmocka_unit_test(no_reader_waits_for_one_that_failed),
    };
    return cmocka_run_group_tests_name("worker-gpu/weights_load", tests, make_model, remove_model);
}
