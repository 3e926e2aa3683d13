/* Checkpoints whose matrices are of a format with blocks, of every such format that files have: their logits
 * must agree with those of the same numbers written out as fp32. By the CPU alone, with the reference and
 * with the kernels it chooses; one token, a few, a chunk, more than a tile; one row and several. The
 * embedding, which is gathered row by row, is of the format too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/cpu.h"
#include "common/base/file.h"
#include "tests/golden/made_model.h"
#include "worker-cpu/local.h"

/* A tensor of the model in `folder` as it is to be written: vectors as they are, matrices through `format`
 * and, `wide`, decoded again. Owned by the caller. */
static char *tensor_bytes(const struct model *model, const struct model_tensor *t, enum tensor_format format,
                          bool wide, uint64_t *bytes, enum tensor_format *written)
{
    const uint32_t rows = (uint32_t)t->rows, cols = (uint32_t)t->cols;
    struct helm_err err = {0};
    int fd;
    uint64_t file_bytes;
    if (file_open_inside(folder, model->shards[t->shard].file, &fd, &file_bytes, &err))
        fail_msg("%s", err.text);
    char *raw = malloc(t->bytes);
    assert_non_null(raw);
    assert_int_equal(pread(fd, raw, t->bytes, (off_t)t->offset), t->bytes);
    close(fd);
    *bytes = t->bytes;
    *written = t->format;
    if (rows == 1) return raw;
    char *blocks = malloc(tensor_format_bytes(format, rows, cols));
    assert_non_null(blocks);
    if (tensor_format_of(format)->write(raw, tensor_format_value(t->format), rows, cols, blocks, bytes, &err))
        fail_msg("%s", err.text);
    free(raw);
    *written = format;
    if (!wide) return blocks;
    const struct tensor_matrix matrix = {format, blocks, *bytes, rows, cols};
    *bytes = tensor_format_bytes(FORMAT_F32, rows, cols);
    *written = FORMAT_F32;
    float *values = malloc(*bytes);
    assert_non_null(values);
    for (uint32_t r = 0; r < rows; r++)
        assert_int_equal(tensor_format_read_row(&matrix, r, values + (size_t)r * cols, &err), 0);
    free(blocks);
    return (char *)values;
}

static void write_model(const char *to, enum tensor_format format, bool wide)
{
    struct model model;
    struct helm_err err = {0};
    if (model_read(folder, &model, &err)) fail_msg("%s", err.text);
    json_t *header = json_object();
    FILE *data = tmpfile();
    uint64_t end = 0;
    assert_true(header && data);
    for (uint32_t i = 0; i < model.tensor_count; i++) {
        const struct model_tensor *t = &model.tensors[i];
        uint64_t bytes;
        enum tensor_format written;
        char *at = tensor_bytes(&model, t, format, wide, &bytes, &written);
        json_t *shape = t->rows == 1 ? json_pack("[I]", (json_int_t)t->cols)
                                     : json_pack("[I, I]", (json_int_t)t->rows, (json_int_t)t->cols);
        json_object_set_new(header, t->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", tensor_format_of(written)->file,
                                      "shape", shape, "data_offsets", (json_int_t)end,
                                      (json_int_t)(end + bytes)));
        assert_int_equal(fwrite(at, 1, bytes, data), bytes);
        end += bytes;
        free(at);
    }
    char path[TREE_PATH + 32], *text = json_dumps(header, JSON_COMPACT), buffer[4096];
    const uint64_t length = strlen(text);
    snprintf(path, sizeof path, "%s/model.safetensors", to);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(&length, 8, 1, file), 1);
    assert_int_equal(fwrite(text, 1, length, file), length);
    rewind(data);
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, data)) > 0;)
        assert_int_equal(fwrite(buffer, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
    fclose(data);
    free(text);
    json_decref(header);
    model_free(&model);
    tree_write(to, "config.json", CONFIG);
}

static int step_local(void *local, const struct step_row *rows, uint32_t count,
                      const struct step_result **result, struct helm_err *err)
{
    return local_step(local, rows, count, result, err);
}

struct format_case {
    const char *kernels;
    uint32_t threads, most; /* tokens of a row; 0: what the script says */
};
/* The reference's loops are slow, and have no tiles that a long row would pass. */
static const struct format_case cases[] = {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* test_linear and test_tensor_format */
    {.kernels = "ref", .threads = 2, .most = 40},
#endif
    {.kernels = "avx2", .threads = 1},
    {.threads = 3}};
/* Every other format passes every tile with one of the cases, in turns (HELM_TEST_FULL: every format): a long
 * row is the same to all, and every kernel's tiles are test_linear's. Instrumented, one format with each. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LONG_ROWS(format, turn) ((format) == FORMAT_Q4_K)
#else
#define LONG_ROWS(format, turn) (((format) + (turn)) % (getenv("HELM_TEST_FULL") ? 2 : 4) == 0)
#endif

/* *bytes: of weights, that one token reads. */
static void run_local(const char *from, const struct format_case *c, float *logits, uint64_t *bytes,
                      char *said, size_t size)
{
    struct helm_err err = {0};
    struct local *local = aligned_alloc(64, (sizeof *local + 63) / 64 * 64);
    const struct local_options options = {.folder = from,
                                          .kernels = c->kernels,
                                          .kv_dtype = KV_F32,
                                          .threads = c->threads,
                                          .slots = SLOTS,
                                          .context_tokens = CONTEXT,
                                          .step_tokens = STEP_TOKENS};
    assert_non_null(local);
    if (local_open(&options, local, &err)) fail_msg("%s", err.text);
    struct runner on = {.arena = &local->arena, .engines = local, .step = step_local, .most = c->most};
    run_script(&on, &all_tiers, logits);
    *bytes = on.one_token_bytes;
    snprintf(said, size, "%s", local->engine.base.report.kernels);
    local_close(local);
    free(local);
}

static void check_format(enum tensor_format format)
{
    const struct tensor_format_traits *traits = tensor_format_of(format);
    char blocks[TREE_PATH], wide[TREE_PATH], said[256];
    float *logits[2] = {calloc((size_t)SAMPLES * VOCAB, sizeof(float)),
                        calloc((size_t)SAMPLES * VOCAB, sizeof(float))};
    assert_true(logits[0] && logits[1]);
    tree_make(blocks);
    tree_make(wide);
    write_model(blocks, format, false);
    write_model(wide, format, true);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t bytes[2];
        /* decoders of the others for it, a row at a time, are test_blocks' */
        if (cases[i].kernels && strcmp(cases[i].kernels, "ref") == 0 && format != FORMAT_Q8_0) continue;
        struct format_case c = cases[i];
        if (!c.most && !LONG_ROWS(format, i)) c.most = 40;
        run_local(wide, &c, logits[0], &bytes[0], said, sizeof said);
        run_local(blocks, &c, logits[1], &bytes[1], said, sizeof said);
        const double worst = compare(logits[0], logits[1]);
        print_message("%s, kernels %s: worst difference %.2g of the spread\n", traits->name, said, worst);
        assert_non_null(strstr(said, traits->name));
        assert_int_equal(bytes[0] * traits->block_bytes, bytes[1] * traits->block_values * sizeof(float));
        /* By itself a processor multiplies several tokens with blocks as bf16 where it does so with bf16
         * weights. */
        assert_true(worst < (!cases[i].kernels && cpu_features() & CPU_AVX512_BF16 ? 0.2 : 1e-4));
    }
    tree_remove(blocks);
    tree_remove(wide);
    free(logits[0]);
    free(logits[1]);
}

/* Instrumented, one of each family. */
static bool is_of_this_build(enum tensor_format format)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return format == FORMAT_Q5_1 || format == FORMAT_Q4_K || format == FORMAT_IQ4_NL;
#else
    return format < FORMAT_COUNT;
#endif
}

static void formats_agree_with_their_numbers(void **state)
{
    (void)state;
    uint32_t checked = 0;
    for (int f = 0; f < FORMAT_COUNT; f++) {
        const struct tensor_format_traits *traits = tensor_format_of((enum tensor_format)f);
        if (!traits->file || traits->block_values == 1 || !traits->write ||
            !is_of_this_build((enum tensor_format)f))
            continue;
        check_format((enum tensor_format)f);
        checked++;
    }
    assert_true(checked > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(formats_agree_with_their_numbers)};
    return cmocka_run_group_tests_name("golden/formats", tests, make_model, remove_model);
}
