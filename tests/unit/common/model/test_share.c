/* Dense MLPs of two processors (common/model/share.h): both parts of each tensor have the whole one's
 * bytes, from every kind of file; what the cut model computes; what is not cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/model/share.h"
#include "common/model/shards.h"

static void open_model(const char *path, struct model *m, struct model_shards *shards)
{
    struct helm_err err = {0};
    if (model_read(path, m, &err)) fail_msg("%s", err.text);
    if (model_shards_open(m, shards, &err)) fail_msg("%s", err.text);
}

static uint8_t *read_all(const struct model_shards *shards, const struct model_tensor *t)
{
    struct helm_err err = {0};
    uint8_t *bytes = malloc(t->bytes);
    assert_non_null(bytes);
    if (model_shards_read(shards, t, 0, t->bytes, bytes, &err)) fail_msg("%s", err.text);
    return bytes;
}

/* Any bytes of a part are what all of it has there. */
static void check_pieces(const struct model_shards *shards, const struct model_tensor *t, const uint8_t *all)
{
    struct helm_err err = {0};
    uint8_t *piece = malloc(t->bytes);
    assert_non_null(piece);
    for (uint64_t from = 1; from < t->bytes; from += t->bytes / 3 + 7) {
        const uint64_t bytes = (t->bytes - from) * 2 / 3 + 1;
        if (model_shards_read(shards, t, from, bytes, piece, &err)) fail_msg("%s", err.text);
        assert_memory_equal(piece, all + from, bytes);
    }
    free(piece);
}

/* Rows of both parts, one after the other, are the whole tensor's rows: cut by rows, or each row by
 * columns. */
static void check_tensor(const struct model *cut, const struct model_shards *shards, enum tensor_role own,
                         const struct model_tensor *whole, const uint8_t *bytes)
{
    const struct model_tensor *first = model_find(cut, own, whole->layer),
                              *rest = model_find(cut, whole->role, whole->layer);
    assert_int_equal(share_role_of(own), whole->role);
    assert_int_equal(first->bytes + rest->bytes, whole->bytes);
    uint8_t *a = read_all(shards, first), *b = read_all(shards, rest);
    if (whole->role == TENSOR_DOWN) {
        const uint64_t row = whole->bytes / whole->rows, of = first->bytes / whole->rows;
        assert_true(first->rows == whole->rows && first->cols + rest->cols == whole->cols);
        for (uint64_t r = 0; r < whole->rows; r++) {
            assert_memory_equal(a + r * of, bytes + r * row, of);
            assert_memory_equal(b + r * (row - of), bytes + r * row + of, row - of);
        }
    } else {
        assert_true(first->cols == whole->cols && first->rows + rest->rows == whole->rows);
        assert_memory_equal(a, bytes, first->bytes);
        assert_memory_equal(b, bytes + first->bytes, rest->bytes);
    }
    check_pieces(shards, first, a);
    check_pieces(shards, rest, b);
    free(a);
    free(b);
}

static void parts_have_the_whole_tensors_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        uint32_t rows;
    } cases[] = {{"tests/data/golden/qwen3", 320},
                 {"tests/data/golden/phi3", 64}, /* gate and up are one tensor of the file */
                 {"tests/data/golden-gguf/llama-Q4_K_M/model.gguf", 256},
                 {"tests/data/golden-gguf/qwen3-Q2_K/model.gguf", 512}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct model whole, cut;
        struct model_shards shards, again;
        struct helm_err err = {0};
        bool shared[MODEL_LAYERS_MAX] = {true};
        open_model(cases[c].path, &whole, &shards);
        open_model(cases[c].path, &cut, &again);
        shared[whole.config.layers - 1] = true;
        if (model_share(&cut, shared, cases[c].rows, &err)) fail_msg("%s: %s", cases[c].path, err.text);
        assert_int_equal(cut.tensor_count, whole.tensor_count + 6);
        assert_int_equal(cut.config.shared_intermediate, cases[c].rows);
        uint64_t sum = 0;
        for (uint32_t i = 0; i < cut.tensor_count; i++) sum += cut.tensors[i].bytes;
        assert_int_equal(sum, whole.weight_bytes);
        for (uint32_t u = unit_of(0, UNIT_MLP); u < unit_count(whole.config.layers); u += UNIT_PARTS) {
            const struct math_part *math = model_unit_math(&cut, u);
            assert_int_equal(cut.unit[u].bytes, whole.unit[u].bytes);
            assert_int_equal(math->ops, shared[unit_layer(u)] ? 4 : 2);
            assert_int_equal(cut.unit[u].matrix_count, shared[unit_layer(u)] ? 6 : 3);
        }
        static const enum tensor_role own[] = {TENSOR_OWN_GATE, TENSOR_OWN_UP, TENSOR_OWN_DOWN};
        for (size_t r = 0; r < 3; r++) {
            const struct model_tensor *t = model_find(&whole, share_role_of(own[r]), 0);
            uint8_t *bytes = read_all(&shards, t);
            check_tensor(&cut, &again, own[r], t, bytes);
            free(bytes);
        }
        assert_null(whole.config.layers > 2 ? model_find(&cut, TENSOR_OWN_GATE, 1) : NULL);
        model_shards_close(&shards);
        model_shards_close(&again);
        model_free(&whole);
        model_free(&cut);
    }
}

/* A copy leaves the whole model as it is. */
static void a_copy_is_cut_alone(void **state)
{
    (void)state;
    struct model whole, cut;
    struct helm_err err = {0};
    const bool shared[MODEL_LAYERS_MAX] = {true};
    if (model_read("tests/data/golden/qwen3", &whole, &err)) fail_msg("%s", err.text);
    const uint64_t rows = model_find(&whole, TENSOR_UP, 0)->rows;
    if (model_share_copy(&whole, shared, 64, &cut, &err)) fail_msg("%s", err.text);
    assert_int_equal(model_find(&cut, TENSOR_UP, 0)->rows, rows - 64);
    assert_int_equal(model_find(&whole, TENSOR_UP, 0)->rows, rows);
    assert_int_equal(whole.config.shared_intermediate, 0);
    assert_int_equal(model_share(&cut, shared, 64, &err), HELM_E_INTERNAL); /* a second time */
    model_share_free(&cut);
    model_free(&whole);
}

static void what_cannot_be_cut_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *path, *text;
        uint32_t rows;
    } cases[] = {{"tests/data/golden/qwen3", "of 704 rows cannot be shared at row 704", 704},
                 {"tests/data/golden/qwen3", "cannot be shared at row 0", 0},
                 {"tests/data/golden-gguf/llama-Q4_K_M/model.gguf", "are whole blocks of", 300},
                 {"tests/data/golden/mixtral", "layer 0: only a dense MLP", 64},
                 {"tests/data/golden/gemma3", "layer 0: only a dense MLP", 64},
                 {"tests/data/golden/opt", "layer 0: only a dense MLP", 64}};
    const bool shared[MODEL_LAYERS_MAX] = {true};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct model model;
        struct helm_err err = {0};
        if (model_read(cases[c].path, &model, &err)) fail_msg("%s", err.text);
        assert_int_equal(model_share(&model, shared, cases[c].rows, &err), HELM_E_UNSUPPORTED);
        if (!strstr(err.text, cases[c].text)) fail_msg("'%s' is not in '%s'", cases[c].text, err.text);
        assert_null(model.shared);
        model_free(&model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(parts_have_the_whole_tensors_bytes),
                                       cmocka_unit_test(a_copy_is_cut_alone),
                                       cmocka_unit_test(what_cannot_be_cut_is_refused)};
    return cmocka_run_group_tests_name("common/model/share", tests, NULL, NULL);
}
