/* Unit tests of matrices by columns beside chains: how the loader puts them (worker-gpu/weights.c), and what
 * the emulated device does with them (emulated_columns.c): copies, matrix products, small batches in two
 * parts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/worker-gpu/device_test.h"
#include "tools/mkmodel/mkmodel.h"
#include "worker-cpu/kernels/convert.h"
#include "worker-gpu/weights.h"

/* ---- loading ---- */

/* `down`, 264 x 9000, is more than one piece of the loader's. */
static const char config_text[] =
    "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 264, "
    "\"intermediate_size\": 9000, \"num_hidden_layers\": 2, \"num_attention_heads\": 3, "
    "\"num_key_value_heads\": 1, \"head_dim\": 20, \"vocab_size\": 50, \"rms_norm_eps\": 1e-5, "
    "\"max_position_embeddings\": 64, \"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\"}";

static void make_folder(char *folder)
{
    struct helm_err err = {0};
    struct model_config config;
    struct mkmodel_result result;
    char path[96];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(config_text, file);
    fclose(file);
    if (model_config_parse("config", config_text, strlen(config_text), &config, &err))
        fail_msg("%s", err.text);
    const struct mkmodel_request request = {.config = &config,
                                            .folder = folder,
                                            .dtype = DTYPE_BF16,
                                            .seed = 3,
                                            .shard_bytes = GIB,
                                            .threads = 1};
    if (mkmodel_write(&request, &result, &err)) fail_msg("%s", err.text);
    model_config_free(&config);
}

static void remove_folder(const char *folder)
{
    char path[96];
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* A matrix in the device's memory, which is the host's here, is the file's or the file's transposed. */
static void check_matrix(const struct model *model, const char *folder, const struct gpu_weights *w,
                         enum tensor_role role, int32_t layer, bool columns)
{
    const struct model_tensor *t = model_find(model, role, layer);
    const struct gpu_matrix *m = gpu_matrix_of(w, role, layer);
    uint16_t *file = malloc(t->bytes);
    char path[96];
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, file, t->bytes, (off_t)t->offset), (ssize_t)t->bytes);
    close(fd);
    assert_int_equal(m->columns, columns);
    assert_int_equal(m->rows, t->rows);
    assert_int_equal(m->cols, t->cols);
    const uint16_t *data = m->data;
    for (uint64_t r = 0; r < t->rows; r++)
        for (uint64_t c = 0; c < t->cols; c++)
            if (data[columns ? c * t->rows + r : r * t->cols + c] != file[r * t->cols + c])
                fail_msg("%s: row %llu, column %llu", t->name, (unsigned long long)r, (unsigned long long)c);
    free(file);
}

static void load(const struct model *model, const struct plan *plan, struct device *d, struct gpu_weights *w)
{
    _Atomic uint64_t done = 0;
    OK(gpu_weights_plan(model, plan, d, NULL, GIB, w, why));
    OK(gpu_weights_load(w, 3, &done, NULL, why));
    assert_int_equal(done, w->matrix_bytes);
}

static void o_and_down_are_loaded_by_columns(void **state)
{
    (void)state;
    static const enum tensor_role of_rows[] = {TENSOR_Q, TENSOR_K, TENSOR_V, TENSOR_GATE, TENSOR_UP};
    char folder[64] = "/tmp/helm-test-columns-XXXXXX";
    struct model model;
    struct gpu_weights w;
    struct plan_stage stages[4];
    make_folder(folder);
    OK(model_read(folder, &model, why));
    for (int no_chains = 0; no_chains < 2; no_chains++) {
        static const enum plan_home all[] = {PLAN_HOME_GPU, PLAN_HOME_GPU, PLAN_HOME_GPU, PLAN_HOME_GPU};
        const struct plan plan = {.layers = 2,
                                  .stages = stages,
                                  .stage_count = plan_stages_of(all, 2, stages),
                                  .embed = PLAN_HOME_GPU,
                                  .head = PLAN_HOME_GPU};
        struct device *d = open_emulated(256 * MIB, 0, 1000);
        if (no_chains) d->no_chains = "of this test";
        load(&model, &plan, d, &w);
        for (int32_t layer = 0; layer < 2; layer++) {
            check_matrix(&model, folder, &w, TENSOR_O, layer, !no_chains);
            check_matrix(&model, folder, &w, TENSOR_DOWN, layer, !no_chains);
            for (size_t i = 0; i < sizeof of_rows / sizeof *of_rows; i++)
                check_matrix(&model, folder, &w, of_rows[i], layer, false);
        }
        check_matrix(&model, folder, &w, TENSOR_HEAD, -1, false);
        gpu_weights_free(&w);
        device_close(d);
    }
    /* slices of what is streamed are rows */
    static const enum plan_home mixed[] = {PLAN_HOME_GPU, PLAN_HOME_STREAM, PLAN_HOME_STREAM, PLAN_HOME_GPU};
    const struct plan plan = {.layers = 2,
                              .stages = stages,
                              .stage_count = plan_stages_of(mixed, 2, stages),
                              .ring_bytes = MIB,
                              .embed = PLAN_HOME_GPU,
                              .head = PLAN_HOME_GPU};
    struct device *d = open_emulated(256 * MIB, 0, 1000);
    OK(gpu_weights_plan(&model, &plan, d, folder, GIB, &w, why));
    gpu_weights_pretend(&w, folder);
    assert_true(gpu_matrix_of(&w, TENSOR_O, 0)->columns && gpu_matrix_of(&w, TENSOR_DOWN, 1)->columns);
    assert_false(gpu_matrix_of(&w, TENSOR_O, 1)->columns || gpu_matrix_of(&w, TENSOR_DOWN, 0)->columns);
    assert_true(gpu_matrix_of(&w, TENSOR_O, 1)->host && gpu_matrix_of(&w, TENSOR_DOWN, 0)->host);
    gpu_weights_free(&w);
    device_close(d);
    model_free(&model);
    remove_folder(folder);
}

/* ---- copies ---- */

static void copies_are_transposed(void **state)
{
    (void)state;
    static const uint32_t shapes[][3] = {{1, 1, 1},    {8, 8, 8},    {3, 17, 20},   {40, 9, 40},
                                         {64, 24, 80}, {7, 300, 16}, {129, 65, 200}};
    struct device *d = open_emulated(0, 0, 1000);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const uint32_t rows = shapes[s][0], cols = shapes[s][1], to_rows = shapes[s][2];
        const uint32_t first = to_rows - rows; /* the piece's first row in the whole */
        void *host, *memory;
        OK(device_host_alloc(d, 2ull * rows * cols, &host, why));
        OK(device_alloc(d, DEVICE_WEIGHTS, 2ull * to_rows * cols, &memory, why));
        uint16_t *from = host, *to = memory;
        for (uint32_t i = 0; i < rows * cols; i++) from[i] = (uint16_t)(i * 7 + 1);
        memset(to, 0xff, 2ull * to_rows * cols);
        const struct device_transposed copy = {
            .to = to + first, .from = from, .rows = rows, .cols = cols, .to_rows = to_rows};
        struct device_stats before, after;
        device_read_stats(d, &before);
        OK(device_copy_transposed(d, &copy, why));
        drain(d, DEVICE_COPY);
        device_read_stats(d, &after);
        assert_int_equal(after.copied_bytes[DEVICE_COPY][DEVICE_TO_DEVICE] -
                             before.copied_bytes[DEVICE_COPY][DEVICE_TO_DEVICE],
                         2ull * rows * cols);
        for (uint32_t c = 0; c < cols; c++)
            for (uint32_t r = 0; r < to_rows; r++)
                assert_int_equal(to[c * to_rows + r], r < first ? 0xffff : from[(r - first) * cols + c]);
        device_free(d, DEVICE_WEIGHTS, 2ull * to_rows * cols, memory);
        d->ops->host_free(d, host);
    }
    device_close(d);
}

static void copies_take_their_time_and_know_their_memory(void **state)
{
    (void)state;
    enum { ROWS = 512, COLS = 1024 };
    struct helm_err err = {0};
    struct device *d = open_emulated(0, 20 * MIB, 1000);
    void *host, *memory;
    OK(device_host_alloc(d, MIB, &host, why));
    OK(device_alloc(d, DEVICE_WEIGHTS, MIB, &memory, why));
    memset(host, 0, MIB);
    struct device_transposed copy = {.to = memory, .from = host, .rows = ROWS, .cols = COLS, .to_rows = ROWS};
    uint64_t start_us = units_now_us();
    OK(device_copy_transposed(d, &copy, why));
    assert_true(units_now_us() - start_us < 40000);
    drain(d, DEVICE_COPY);
    assert_true(units_now_us() - start_us >= 49000); /* 1 MiB at 20 MiB/s */
    copy.to_rows = ROWS - 1;
    assert_int_equal(device_copy_transposed(d, &copy, &err), HELM_E_USAGE);
    copy.to_rows = ROWS + 1; /* its last column would end behind the memory */
    assert_int_equal(device_copy_transposed(d, &copy, &err), HELM_E_USAGE);
    copy.to_rows = ROWS;
    copy.from = (char *)host + 2;
    assert_int_equal(device_copy_transposed(d, &copy, &err), HELM_E_USAGE);
    copy.from = memory;
    assert_int_equal(device_copy_transposed(d, &copy, &err), HELM_E_USAGE);
    device_free(d, DEVICE_WEIGHTS, MIB, memory);
    d->ops->host_free(d, host);
    device_close(d);
}

/* ---- products ---- */

#define ROWS   24
#define COLS   45
#define TOKENS 6

struct buffers {
    uint16_t rows[ROWS * COLS], columns[COLS * ROWS], x[2 * TOKENS * COLS];
    float out[2][2 * TOKENS * ROWS], sums[2 * TOKENS * ROWS], factors[TOKENS];
    float in[TOKENS * COLS], bias[ROWS], residual[TOKENS * ROWS];
    uint32_t count;
};

static float some(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(int32_t)*state / 2147483648.0f;
}

static uint16_t narrow(enum dtype dtype, float x)
{
    return dtype == DTYPE_F16 ? convert_f32_f16(x) : convert_f32_bf16(x);
}

static void fill_matrix(struct buffers *b, enum dtype dtype, uint32_t *state)
{
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t c = 0; c < COLS; c++)
            b->rows[r * COLS + c] = b->columns[c * ROWS + r] = narrow(dtype, some(state));
}

static void products_are_those_of_rows(void **state)
{
    (void)state;
    struct device *d = open_emulated(0, 0, 1000);
    const struct device_kernels *k = &d->kernels;
    struct buffers *b = calloc(1, sizeof *b);
    struct helm_err err = {0};
    uint32_t random = 5;
    for (int t = 0; t < 2; t++) {
        const enum dtype dtype = t ? DTYPE_F16 : DTYPE_BF16;
        fill_matrix(b, dtype, &random);
        for (uint32_t i = 0; i < 2 * TOKENS * COLS; i++) b->x[i] = narrow(dtype, some(&random));
        for (int i = 0; i < 2 * TOKENS * ROWS; i++) b->out[0][i] = b->out[1][i] = (float)i;
        for (uint32_t tokens = 1; tokens <= 2 * TOKENS; tokens++) {
            OK(k->matmul(d, dtype, DTYPE_F32, tokens, ROWS, COLS, ROWS, true, false, b->rows, b->x, b->out[0],
                         NULL, why));
            OK(k->matmul(d, dtype, DTYPE_F32, tokens, ROWS, COLS, ROWS, true, true, b->columns, b->x,
                         b->out[1], NULL, why));
            drain(d, DEVICE_COMPUTE);
            assert_memory_equal(b->out[0], b->out[1], sizeof b->out[0]);
        }
    }
    /* kernels that take rows only say so */
    const struct gpuk_linear_args args = {.dtype = DTYPE_BF16, .columns = true, .segments = 1, .cols = COLS};
    assert_int_equal(k->gemv(d, &args, NULL, 0, &err), HELM_E_UNSUPPORTED);
    assert_int_equal(k->gemm_small(d, &args, 2, &b->count, NULL, 0, &err), HELM_E_UNSUPPORTED);
    assert_true(k->chain_columns(d, DTYPE_F16, ROWS, COLS) && !k->chain_columns(d, DTYPE_F32, ROWS, COLS));
    assert_false(k->chain_columns(d, DTYPE_BF16, ROWS + 4, COLS));
    free(b);
    device_close(d);
}

static void small_batches_are_sums_of_parts(void **state)
{
    (void)state;
    static const float scales[] = {1, 3e6f, 2e-6f, 0};
    struct device *d = open_emulated(0, 0, 1000);
    const struct device_kernels *k = &d->kernels;
    struct buffers *b = calloc(1, sizeof *b);
    uint32_t random = 9;
    for (size_t run = 0; run < 2 * sizeof scales / sizeof *scales; run++) {
        const enum dtype dtype = run % 2 ? DTYPE_F16 : DTYPE_BF16;
        const float scale = scales[run / 2];
        fill_matrix(b, dtype, &random);
        for (int i = 0; i < TOKENS * COLS; i++) b->in[i] = some(&random) * scale;
        for (int i = 0; i < ROWS; i++) b->bias[i] = some(&random) * scale;
        for (int i = 0; i < TOKENS * ROWS; i++) b->residual[i] = some(&random) * scale;
        for (int i = 0; i < 2 * TOKENS * ROWS; i++) b->out[0][i] = -77;
        memset(b->x, 0xff, sizeof b->x);
        memset(b->sums, 0xff, sizeof b->sums);
        b->count = TOKENS - 1;
        b->in[b->count * COLS] = NAN; /* of nobody */
        const struct gpuk_parts parts = {.x = b->x, .sums = b->sums, .factors = b->factors};
        const struct gpuk_linear_args args = {
            .dtype = dtype,
            .cols = COLS,
            .segments = 1,
            .columns = true,
            .x = b->in,
            .x_stride = COLS,
            .residual = b->residual,
            .out_stride = ROWS,
            .segment = {{.weight = b->columns, .bias = b->bias, .out = b->out[0], .rows = ROWS}}};
        OK(k->split(d, &args, TOKENS, &b->count, &parts, 0, why));
        OK(k->matmul(d, dtype, DTYPE_F32, 2 * TOKENS, ROWS, COLS, ROWS, false, true, b->columns, b->x,
                     b->sums, NULL, why));
        OK(k->join(d, &args, TOKENS, &b->count, &parts, 0, why));
        drain(d, DEVICE_COMPUTE);
        for (uint32_t t = 0; t < TOKENS; t++)
            for (uint32_t r = 0; r < ROWS; r++) {
                double sum = (double)b->bias[r] + b->residual[t * ROWS + r], size = 0;
                if (t == b->count) {
                    assert_true(b->out[0][t * ROWS + r] == -77);
                    continue;
                }
                for (uint32_t c = 0; c < COLS; c++) {
                    double product = convert_load(b->rows, dtype, r * COLS + c) * b->in[t * COLS + c];
                    sum += product;
                    size += fabs(product);
                }
                if (!(fabs(b->out[0][t * ROWS + r] - sum) <= 1e-5 * (size + fabs(sum))))
                    fail_msg("run %zu, token %u, row %u: %g, not %g", run, t, r, b->out[0][t * ROWS + r],
                             sum);
            }
    }
    free(b);
    device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(o_and_down_are_loaded_by_columns),
        cmocka_unit_test(copies_are_transposed),
        cmocka_unit_test(copies_take_their_time_and_know_their_memory),
        cmocka_unit_test(products_are_those_of_rows),
        cmocka_unit_test(small_batches_are_sums_of_parts),
    };
    return cmocka_run_group_tests_name("worker-gpu/columns", tests, NULL, NULL);
}
