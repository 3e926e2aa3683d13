/* Experts' tensors as gpt-oss's files have them: which ones of the model they are, their values row by row,
 * whatever part is asked for, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "common/model/shards.h"
#include "tests/unit/common/model/build_checkpoint.h"

#define EXPERTS 3
#define HIDDEN  64
#define INNER   32
#define SHAPE                                                                                                \
    "{\"architectures\": [\"GptOssForCausalLM\"], \"hidden_size\": 64, \"intermediate_size\": 32, "          \
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 4, "    \
    "\"vocab_size\": 16, \"dtype\": \"bfloat16\", \"num_local_experts\": 3, \"num_experts_per_tok\": 2, "    \
    "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4}"
#define BLOCKS  SHAPE ", \"quantization_config\": {\"quant_method\": \"mxfp4\"}}"
#define COLUMNS SHAPE "}"
static const char *const one_file[] = {"model.safetensors"};
static const char *const two_files[] = {"model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors"};
#define LAYER "model.layers.1.mlp.experts."

struct opened {
    struct built b;
    struct model m;
    struct model_shards shards;
};

/* Every byte of every file is a function of its place. */
static uint8_t byte_at(uint64_t at)
{
    return (uint8_t)(at * 151 + at / 7 + at / 251);
}

static void fill(const struct built *b, const char *file)
{
    char path[256];
    uint64_t length;
    snprintf(path, sizeof path, "%s/%s", b->folder, file);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fread(&length, 8, 1, f), 1);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    const uint64_t end = (uint64_t)ftell(f);
    assert_int_equal(fseek(f, (long)(8 + length), SEEK_SET), 0);
    for (uint64_t at = 8 + length; at < end; at++) fputc(byte_at(at), f);
    fclose(f);
}

static void open_built(struct opened *o, const char *config, const char *const *files, size_t count,
                       const char *moved)
{
    struct helm_err err = {0};
    built_start(&o->b, config, files, count);
    if (moved) json_object_set_new(built_find(&o->b, moved), "file", json_string(files[0]));
    built_write(&o->b);
    for (size_t i = 0; i < count; i++) fill(&o->b, files[i]);
    if (model_read(o->b.folder, &o->m, &err)) fail_msg("%s", err.text);
    if (model_shards_open(&o->m, &o->shards, &err)) fail_msg("%s", err.text);
}

static void close_built(struct opened *o)
{
    model_shards_close(&o->shards);
    model_free(&o->m);
    built_end(&o->b);
}

/* The whole tensor, and some of it again from and to any byte. */
static uint8_t *read_tensor(const struct opened *o, enum tensor_role role)
{
    const struct model_tensor *t = model_find(&o->m, role, 1);
    struct helm_err err = {0};
    assert_non_null(t);
    uint8_t *all = malloc(t->bytes), *part = malloc(t->bytes);
    if (model_shards_read(&o->shards, t, 0, t->bytes, all, &err)) fail_msg("%s", err.text);
    for (uint64_t from = 0; from < t->bytes; from += t->bytes / 5 + 3) {
        const uint64_t bytes = (t->bytes - from) * 2 / 3 + 1;
        if (model_shards_read(&o->shards, t, from, bytes, part, &err)) fail_msg("%s", err.text);
        assert_memory_equal(part, all + from, bytes);
    }
    free(part);
    return all;
}

/* Value c of row `row` of expert e as the format's description says: numbers two in a byte, the lower half
 * first. */
static float mxfp4_value(const struct model_tensor *t, uint64_t file_row, uint64_t c, uint64_t file_rows,
                         uint64_t e)
{
    static const float of[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    const uint64_t row = e * file_rows + file_row;
    const uint8_t two = byte_at(t->offset + row * t->cols / 2 + c / 2), four = c % 2 ? two >> 4 : two & 15,
                  scale = byte_at(t->scales.offset + row * t->cols / 32 + c / 32);
    return ldexpf(four & 8 ? -of[four & 7] : of[four & 7], scale - 127);
}

static void blocks_are_read_by_rows(struct opened *o, enum tensor_role role, uint32_t turns, uint32_t turn)
{
    const struct model_tensor *t = model_find(&o->m, role, 1);
    uint8_t *bytes = read_tensor(o, role);
    struct helm_err err = {0};
    float row[HIDDEN];
    const uint32_t rows = (uint32_t)(t->rows / EXPERTS);
    const struct tensor_matrix m = {FORMAT_MXFP4, bytes, t->bytes, (uint32_t)t->rows, (uint32_t)t->cols};
    assert_int_equal(t->format, FORMAT_MXFP4);
    for (uint32_t r = 0; r < t->rows; r++) {
        assert_int_equal(tensor_format_read_row(&m, r, row, &err), 0);
        for (uint32_t c = 0; c < t->cols; c++) {
            const float want = mxfp4_value(t, r % rows * turns + turn, c, (uint64_t)rows * turns, r / rows);
            if (isfinite(want)) assert_true(row[c] == want);
        }
    }
    free(bytes);
}

static void test_blocks(void **state)
{
    (void)state;
    struct opened o;
    for (int apart = 0; apart < 2; apart++) {
        open_built(&o, BLOCKS, apart ? two_files : one_file, apart ? 2 : 1,
                   apart ? LAYER "gate_up_proj_scales" : NULL);
        const struct model_tensor *gate = model_find(&o.m, TENSOR_GATE_EXPERTS, 1);
        assert_int_equal(gate->shard, apart);
        assert_int_equal(gate->scales.shard, 0);
        blocks_are_read_by_rows(&o, TENSOR_GATE_EXPERTS, 2, 0);
        blocks_are_read_by_rows(&o, TENSOR_UP_EXPERTS, 2, 1);
        blocks_are_read_by_rows(&o, TENSOR_DOWN_EXPERTS, 1, 0);
        close_built(&o);
    }
}

static void values_are(struct opened *o, enum tensor_role role, uint32_t turns, uint32_t turn, bool columns)
{
    const struct model_tensor *t = model_find(&o->m, role, 1);
    uint8_t *bytes = read_tensor(o, role);
    const uint64_t rows = columns ? t->rows / EXPERTS : 1, cols = t->cols;
    for (uint64_t r = 0; r < t->rows; r++)
        for (uint64_t c = 0; c < cols; c++) {
            const uint64_t place = columns ? (r / rows * cols + c) * rows * turns + r % rows * turns + turn
                                           : (r * cols + c) * turns + turn;
            for (int i = 0; i < 2; i++)
                assert_int_equal(bytes[2 * (r * cols + c) + (uint64_t)i],
                                 byte_at(t->offset + 2 * place + (uint64_t)i));
        }
    free(bytes);
}

static void test_columns_and_biases(void **state)
{
    (void)state;
    struct opened o;
    open_built(&o, COLUMNS, one_file, 1, NULL);
    values_are(&o, TENSOR_GATE_EXPERTS, 2, 0, true);
    values_are(&o, TENSOR_UP_EXPERTS, 2, 1, true);
    values_are(&o, TENSOR_DOWN_EXPERTS, 1, 0, true);
    values_are(&o, TENSOR_GATE_EXPERTS_BIAS, 2, 0, false);
    values_are(&o, TENSOR_UP_EXPERTS_BIAS, 2, 1, false);
    values_are(&o, TENSOR_DOWN_EXPERTS_BIAS, 1, 0, false);
    assert_int_equal(o.m.unit[unit_of(1, UNIT_MLP)].matrix_count, 3);
    assert_int_equal(o.m.unit[unit_of(1, UNIT_MLP)].tensor_count, 3 + 1 + 2 + 3);
    assert_true(model_tensor_is_vector(model_find(&o.m, TENSOR_UP_EXPERTS_BIAS, 1)));
    close_built(&o);
}

static void expect(struct built *b, int code, const char *text)
{
    struct model model;
    struct helm_err err = {0};
    built_write(b);
    const int rc = model_read(b->folder, &model, &err);
    if (rc != code || !strstr(err.text, text))
        fail_msg("code %d, text '%s'; expected %d, '%s'", rc, err.text, code, text);
    built_end(b);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *config, *removed, *text;
    } missing[] = {{BLOCKS, LAYER "gate_up_proj_scales",
                    "gate_up_proj_blocks' is there, but without its scales"},
                   {BLOCKS, LAYER "down_proj_blocks", "down_proj_scales' is there, but without its blocks"},
                   {COLUMNS, LAYER "gate_up_proj", "gate_up_proj' is missing"},
                   {COLUMNS, LAYER "down_proj_bias", "down_proj_bias' is missing"},
                   {COLUMNS, "model.layers.0.self_attn.sinks", "self_attn.sinks' is missing"},
                   {COLUMNS, "model.layers.1.mlp.router.bias", "mlp.router.bias' is missing"}};
    struct built b;
    for (size_t i = 0; i < sizeof missing / sizeof *missing; i++) {
        built_start(&b, missing[i].config, one_file, 1);
        built_remove(&b, missing[i].removed);
        expect(&b, HELM_E_NOT_FOUND, missing[i].text);
    }
    static const struct {
        const char *config, *name, *member, *value;
        int code;
        const char *text;
    } changed[] = {
        {BLOCKS, LAYER "gate_up_proj_blocks", "shape", "[3, 64, 2, 8]", HELM_E_MISMATCH,
         "implies [3, 64, 2, 16]"},
        {BLOCKS, LAYER "down_proj_scales", "dtype", "\"BF16\"", HELM_E_UNSUPPORTED, "has dtype BF16, not U8"},
        {COLUMNS, LAYER "down_proj", "dtype", "\"U8\"", HELM_E_UNSUPPORTED, "has dtype U8, not one of"},
        {COLUMNS, LAYER "gate_up_proj", "shape", "[3, 64, 32]", HELM_E_MISMATCH, "implies [3, 64, 64]"}};
    for (size_t i = 0; i < sizeof changed / sizeof *changed; i++) {
        built_start(&b, changed[i].config, one_file, 1);
        json_object_set_new(built_find(&b, changed[i].name), changed[i].member,
                            json_loads(changed[i].value, JSON_DECODE_ANY, NULL));
        expect(&b, changed[i].code, changed[i].text);
    }
    /* Both ways at once. */
    built_start(&b, COLUMNS, one_file, 1);
    json_array_append_new(b.tensors, built_tensor(LAYER "down_proj_blocks", "U8",
                                                  json_pack("[i, i, i, i]", EXPERTS, HIDDEN, INNER / 32, 16),
                                                  one_file[0]));
    expect(&b, HELM_E_MISMATCH, "down_proj_blocks' is also in");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_blocks),
                                       cmocka_unit_test(test_columns_and_biases),
                                       cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests_name("model/fused", tests, NULL, NULL);
}
