/* Errors beside llama.cpp's own files: of each matrix that a file of the collection has in blocks, HELM's
 * blocks of the same format are no farther from the weights than the file's. The weights are those of the
 * collection's Q8_0 file of the same model: 0.5 % off the original, on the file's side of the comparison
 * only, which is taken off it. Needs HELM_GOLDEN_GGUF, the collection's folder. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/model/arch.h"
#include "common/model/shards.h"

#define WEIGHTS     "qwen3-Q8_0"
#define WEIGHTS_OFF 0.0055 /* relative: what Q8_0 loses of values near a normal distribution */

static const char *const files[] = {"qwen3-Q6_K", "qwen3-Q5_K_M", "qwen3-Q4_K_M", "qwen3-Q3_K_M",
                                    "qwen3-Q2_K", "qwen3-IQ4_NL", "qwen3-IQ4_XS", "qwen3-Q4_0"};

struct opened {
    struct model model;
    struct model_shards shards;
};

static void open_model(const char *collection, const char *name, struct opened *o)
{
    char path[512];
    struct helm_err err = {0};
    snprintf(path, sizeof path, "%s/%s/model.gguf", collection, name);
    if (model_read(path, &o->model, &err)) fail_msg("%s", err.text);
    if (model_shards_open(&o->model, &o->shards, &err)) fail_msg("%s", err.text);
}

static void close_model(struct opened *o)
{
    model_shards_close(&o->shards);
    model_free(&o->model);
}

/* A matrix in blocks as numbers, in a fresh array. */
static float *values_of(const struct tensor_matrix *m)
{
    struct helm_err err = {0};
    float *values = malloc((size_t)m->rows * m->cols * sizeof *values);
    assert_non_null(values);
    for (uint32_t r = 0; r < m->rows; r++)
        assert_int_equal(tensor_format_read_row(m, r, values + (size_t)r * m->cols, &err), 0);
    return values;
}

static float *read_values(const struct opened *o, const struct model_tensor *t)
{
    struct helm_err err = {0};
    void *bytes = malloc((size_t)t->bytes);
    assert_non_null(bytes);
    if (model_shards_read(&o->shards, t, 0, t->bytes, bytes, &err)) fail_msg("%s", err.text);
    const struct tensor_matrix m = {t->format, bytes, t->bytes, (uint32_t)t->rows, (uint32_t)t->cols};
    float *values = values_of(&m);
    free(bytes);
    return values;
}

static double error_of(const float *values, const float *weights, size_t count)
{
    double off = 0, all = 0;
    for (size_t i = 0; i < count; i++) {
        const double w = (double)weights[i], d = (double)values[i] - w;
        off += d * d;
        all += w * w;
    }
    return sqrt(off / all);
}

/* The error of HELM's blocks of these weights. */
static double own_error(const float *weights, const struct model_tensor *t)
{
    struct helm_err err = {0};
    const struct tensor_rows rows = {FORMAT_F32, t->format, (uint32_t)t->rows, (uint32_t)t->cols, weights};
    void *blocks = malloc((size_t)t->bytes);
    assert_non_null(blocks);
    if (tensor_format_convert(&rows, blocks, &err)) fail_msg("%s", err.text);
    const struct tensor_matrix m = {t->format, blocks, t->bytes, (uint32_t)t->rows, (uint32_t)t->cols};
    float *values = values_of(&m);
    const double error = error_of(values, weights, (size_t)t->rows * t->cols);
    free(values);
    free(blocks);
    return error;
}

static void no_farther_than_llama_cpp(void **state)
{
    (void)state;
    const char *collection = getenv("HELM_GOLDEN_GGUF");
    uint32_t compared = 0;
    if (!collection) {
        print_message("skipped: HELM_GOLDEN_GGUF does not name the collection of GGUF files\n");
        skip();
    }
    struct opened weights, file;
    open_model(collection, WEIGHTS, &weights);
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        double sum[2] = {0, 0};
        uint32_t matrices = 0;
        open_model(collection, files[f], &file);
        for (uint32_t i = 0; i < file.model.tensor_count; i++) {
            const struct model_tensor *t = &file.model.tensors[i];
            if (arch_role_is_vector(t->role)) continue;
            const struct model_tensor *w = model_find(&weights.model, t->role, t->layer);
            assert_non_null(w);
            float *wanted = read_values(&weights, w), *theirs = read_values(&file, t);
            const double there = error_of(theirs, wanted, (size_t)t->rows * t->cols),
                         here = own_error(wanted, t);
            if (here > sqrt(there * there - WEIGHTS_OFF * WEIGHTS_OFF))
                fail_msg("%s, %s as %s: %.5f, llama.cpp's %.5f", files[f], t->name,
                         tensor_format_name(t->format), here, there);
            sum[0] += here, sum[1] += there;
            matrices++;
            free(wanted);
            free(theirs);
        }
        print_message("%s: %u matrices, mean error %.5f, llama.cpp's %.5f\n", files[f], matrices,
                      sum[0] / matrices, sum[1] / matrices);
        compared += matrices;
        close_model(&file);
    }
    close_model(&weights);
    assert_true(compared > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_farther_than_llama_cpp)};
    return cmocka_run_group_tests_name("golden/quantize", tests, NULL, NULL);
}
