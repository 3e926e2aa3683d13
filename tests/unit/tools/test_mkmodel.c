/* helm-mkmodel's parts: the same bytes for any number of threads and shards, values with the promised spread,
 * every preset sound, and what it writes is what the reader accepts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <math.h>

#include "common/model/shards.h"
#include "tests/unit/common/model/build_checkpoint.h"
#include "tools/mkmodel/mkmodel.h"

#define CONFIG                                                                                               \
    "{\"architectures\": [\"LlamaForCausalLM\"], \"attention_bias\": true, \"mlp_bias\": true, "             \
    "\"hidden_size\": 250,"                                                                                  \
    "\"intermediate_size\": 603, \"num_hidden_layers\": 2, \"num_attention_heads\": 6, "                     \
    "\"num_key_value_heads\": 3,"                                                                            \
    "\"head_dim\": 14, \"vocab_size\": 1501, \"dtype\": \"bfloat16\"}"

static void make_with(struct built *b, struct mkmodel_request request)
{
    static const char *const files[] = {"unused"};
    struct model_config config;
    struct mkmodel_result result;
    struct helm_err err = {0};
    built_start(b, CONFIG, files, 1);
    built_text(b, "config.json", CONFIG);
    assert_int_equal(model_read_config(b->folder, &config, &err), 0);
    request.config = &config, request.folder = b->folder;
    if (mkmodel_write(&request, &result, &err)) fail_msg("%s", err.text);
    assert_true(result.tensors == 35);
    model_config_free(&config);
}

static void make(struct built *b, enum dtype dtype, uint64_t seed, uint64_t shard_bytes, uint32_t threads)
{
    make_with(b, (struct mkmodel_request){
                     .dtype = dtype, .seed = seed, .shard_bytes = shard_bytes, .threads = threads});
}

static uint16_t *read_tensor(const struct model *model, const struct model_tensor *tensor)
{
    char path[512];
    uint16_t *values = malloc(tensor->bytes);
    snprintf(path, sizeof path, "%s/%s", model->folder, model->shards[tensor->shard].file);
    int fd = open(path, O_RDONLY);
    assert_true(values && fd >= 0);
    assert_int_equal(pread(fd, values, tensor->bytes, (off_t)tensor->offset), tensor->bytes);
    close(fd);
    return values;
}

static void test_same_bytes_for_any_threads_and_shards(void **state)
{
    (void)state;
    struct built a, b, other;
    struct model one, many, seeded;
    struct helm_err err = {0};
    make(&a, DTYPE_BF16, 7, (uint64_t)1 << 40, 1);
    make(&b, DTYPE_BF16, 7, 400000, 5);
    make(&other, DTYPE_BF16, 8, (uint64_t)1 << 40, 2);
    if (model_read(a.folder, &one, &err) || model_read(b.folder, &many, &err) ||
        model_read(other.folder, &seeded, &err))
        fail_msg("%s", err.text);
    assert_int_equal(one.shard_count, 1);
    assert_true(many.shard_count > 3);
    assert_int_equal(one.tensor_count, many.tensor_count);
    for (uint32_t i = 0; i < one.tensor_count; i++) {
        const struct model_tensor *t = &one.tensors[i];
        uint16_t *x = read_tensor(&one, t), *y = read_tensor(&many, model_find(&many, t->role, t->layer));
        uint16_t *z = read_tensor(&seeded, model_find(&seeded, t->role, t->layer));
        assert_memory_equal(x, y, t->bytes);
        assert_true(memcmp(x, z, t->bytes) != 0);
        free(x);
        free(y);
        free(z);
    }
    model_free(&one);
    model_free(&many);
    model_free(&seeded);
    built_end(&a);
    built_end(&b);
    built_end(&other);
}

static double decode(uint16_t bits, enum dtype dtype)
{
    if (dtype == DTYPE_BF16) {
        uint32_t wide = (uint32_t)bits << 16;
        float value;
        memcpy(&value, &wide, sizeof value);
        return value;
    }
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double size = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return bits & 0x8000 ? -size : size;
}

/* --embedding is the embedding's alone. */
static void test_embedding(void **state)
{
    (void)state;
    struct built usual, large;
    struct model a, b;
    struct helm_err err = {0};
    const struct mkmodel_request request = {.seed = 7, .shard_bytes = (uint64_t)1 << 40, .threads = 1};
    struct mkmodel_request with = request;
    with.embedding = 4;
    make_with(&usual, request), make_with(&large, with);
    if (model_read(usual.folder, &a, &err) || model_read(large.folder, &b, &err)) fail_msg("%s", err.text);
    for (uint32_t i = 0; i < a.tensor_count; i++) {
        const struct model_tensor *t = &a.tensors[i], *same = model_find(&b, t->role, t->layer);
        const uint64_t count = t->bytes / 2;
        uint16_t *x = read_tensor(&a, t), *y = read_tensor(&b, same);
        double squares = 0;
        for (uint64_t n = 0; n < count; n++) squares += pow(decode(y[n], DTYPE_BF16), 2);
        if (t->role == TENSOR_EMBED)
            assert_true(fabs(sqrt(squares / (double)count) - 4) < 0.04);
        else
            assert_memory_equal(x, y, t->bytes);
        free(x);
        free(y);
    }
    model_free(&a);
    model_free(&b);
    built_end(&usual);
    built_end(&large);
}

static void check_spread(enum dtype dtype, double mean, double spread)
{
    static struct mkmodel_normal normal;
    static struct mkmodel_values values;
    enum { COUNT = 1 << 18 };
    uint16_t *bits = malloc(COUNT * sizeof *bits);
    double sum = 0, squares = 0, within = 0;
    mkmodel_normal_init(&normal);
    mkmodel_values_init(&values, &normal, 1, "t", dtype, mean, spread);
    mkmodel_values_fill(&values, 0, COUNT, bits);
    for (int i = 0; i < COUNT; i++) {
        double x = (decode(bits[i], dtype) - mean) / spread;
        assert_true(fabs(x) < 4);
        sum += x;
        squares += x * x;
        within += fabs(x) < 1;
    }
    assert_true(fabs(sum / COUNT) < 0.01);
    assert_true(fabs(squares / COUNT - 1) < 0.02);
    assert_true(fabs(within / COUNT - 0.6827) < 0.02); /* as of a normal distribution */
    free(bits);
}

static void test_values(void **state)
{
    (void)state;
    check_spread(DTYPE_BF16, 0, 0.02);
    check_spread(DTYPE_F16, 0, 0.02);
    check_spread(DTYPE_F16, 0, 0.0001); /* subnormal in fp16 for the most part */
    check_spread(DTYPE_F16, 1, 0.05);
}

static void test_fill_in_pieces(void **state)
{
    (void)state;
    static struct mkmodel_normal normal;
    static struct mkmodel_values values;
    uint16_t whole[103], pieces[103];
    mkmodel_normal_init(&normal);
    mkmodel_values_init(&values, &normal, 5, "name", DTYPE_BF16, 0, 1);
    mkmodel_values_fill(&values, 0, 103, whole);
    mkmodel_values_fill(&values, 0, 40, pieces);
    mkmodel_values_fill(&values, 40, 60, pieces + 40);
    mkmodel_values_fill(&values, 100, 3, pieces + 100);
    assert_memory_equal(whole, pieces, sizeof whole);
}

static void test_presets(void **state)
{
    (void)state;
    static const char *const archs[] = {"qwen3", "qwen2", "llama", "mistral"};
    static const struct {
        const char *size;
        double billions;
    } sizes[] = {{"0.6b", 0.596}, {"1.7b", 1.72}, {"4b", 4.02}, {"8b", 8.19}, {"14b", 14.77}, {"32b", 32.76}};
    for (size_t a = 0; a < 4; a++)
        for (size_t s = 0; s < 6; s++) {
            json_t *root;
            struct model_config config;
            struct helm_err err = {0};
            assert_int_equal(mkmodel_preset(archs[a], sizes[s].size, DTYPE_F16, &root, &err), 0);
            char *text = json_dumps(root, 0);
            if (model_config_parse("preset", text, strlen(text), &config, &err)) fail_msg("%s", err.text);
            assert_string_equal(config.model_type, archs[a]);
            assert_int_equal(config.dtype, DTYPE_F16);
            double parameters = 0;
            uint64_t rows, cols;
            for (int r = 0; r < TENSOR_ROLE_COUNT; r++)
                if (model_expected_shape(&config, (enum tensor_role)r, -1, &rows, &cols))
                    parameters += (double)(rows * cols) *
                                  (arch_role_per_layer((enum tensor_role)r) ? config.layers : 1);
            if (fabs(parameters / 1e9 - sizes[s].billions) > 0.01 * sizes[s].billions)
                fail_msg("%s %s has %.3f billion parameters", archs[a], sizes[s].size, parameters / 1e9);
            json_t *generation = mkmodel_generation(root);
            assert_int_equal(json_integer_value(json_object_get(generation, "eos_token_id")), 151645);
            json_decref(generation);
            free(text);
            json_decref(root);
            model_config_free(&config);
        }
    json_t *root;
    struct helm_err err = {0};
    assert_int_equal(mkmodel_preset("bert", "8b", DTYPE_BF16, &root, &err), HELM_E_USAGE);
    assert_int_equal(mkmodel_preset("qwen3", "9b", DTYPE_BF16, &root, &err), HELM_E_USAGE);
}

/* Shapes of published mixtures, each of its own architecture. */
static void test_presets_with_experts(void **state)
{
    (void)state;
    static const struct {
        const char *arch, *size;
        double billions;
    } sizes[] = {{"qwen3_moe", "30b-a3b", 30.53},
                 {"mixtral", "8x7b", 46.70},
                 {"gpt_oss", "20b", 20.91},
                 {"gpt_oss", "120b", 116.83}};
    json_t *root;
    struct helm_err err = {0};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct model_config config;
        struct model model;
        assert_int_equal(mkmodel_preset(sizes[i].arch, sizes[i].size, DTYPE_BF16, &root, &err), 0);
        char *text = json_dumps(root, 0);
        if (model_config_parse("preset", text, strlen(text), &config, &err)) fail_msg("%s", err.text);
        if (model_from_config(&config, &model, &err)) fail_msg("%s", err.text);
        if (fabs((double)model.parameter_count / 1e9 - sizes[i].billions) > 0.01 * sizes[i].billions)
            fail_msg("%s has %.3f billion parameters", sizes[i].size, (double)model.parameter_count / 1e9);
        assert_true(model.config.router.normalise);
        model_free(&model);
        free(text);
        json_decref(root);
    }
    assert_int_equal(mkmodel_preset("qwen3", "30b-a3b", DTYPE_BF16, &root, &err), HELM_E_USAGE);
    assert_non_null(strstr(err.text, "'30b-a3b' is none of architecture 'qwen3'"));
    assert_int_equal(mkmodel_preset("mixtral", "8b", DTYPE_BF16, &root, &err), HELM_E_USAGE);
}

/* A mixture of experts that mkmodel has written in several files, and that was read again. */
struct made {
    struct built b;
    struct model_config config;
    struct model model;
    struct mkmodel_result result;
};

static void made_open(struct made *made, const char *config_text)
{
    static const char *const files[] = {"unused"};
    struct helm_err err = {0};
    built_start(&made->b, config_text, files, 1);
    built_text(&made->b, "config.json", config_text);
    assert_int_equal(model_read_config(made->b.folder, &made->config, &err), 0);
    const struct mkmodel_request request = {.config = &made->config,
                                            .folder = made->b.folder,
                                            .dtype = DTYPE_BF16,
                                            .shard_bytes = 40000,
                                            .threads = 2};
    uint64_t bytes;
    assert_int_equal(mkmodel_bytes(&made->config, &bytes, &err), 0);
    if (mkmodel_write(&request, &made->result, &err)) fail_msg("%s", err.text);
    assert_int_equal(bytes, made->result.bytes); /* of MXFP4 too, before anything is written */
    if (model_read(made->b.folder, &made->model, &err)) fail_msg("%s", err.text);
    assert_true(made->result.shards > 1);
}

static void made_close(struct made *made)
{
    model_free(&made->model);
    model_config_free(&made->config);
    built_end(&made->b);
}

/* A tensor for each expert, as published files have; a router's values as a matrix's, not a norm's. */
static void test_experts(void **state)
{
    (void)state;
    static const char config_text[] =
        "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"num_experts\": 5, \"num_experts_per_tok\": 2, "
        "\"moe_intermediate_size\": 24, \"mlp_only_layers\": [1], \"hidden_size\": 64, "
        "\"intermediate_size\": 96, "
        "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 16, "
        "\"vocab_size\": 150, \"dtype\": \"bfloat16\"}";
    struct made made;
    made_open(&made, config_text);
    assert_int_equal(made.result.tensors, made.model.tensor_count - 3 + 3 * 5);
    const struct model_tensor *up = model_find(&made.model, TENSOR_UP_EXPERTS, 0),
                              *router = model_find(&made.model, TENSOR_ROUTER, 0);
    assert_int_equal(up->piece_count, 5);
    assert_int_equal(up->rows, 5 * 24);
    uint16_t *values = read_tensor(&made.model, router);
    double sum = 0;
    for (int i = 0; i < 5 * 64; i++) {
        const uint32_t bits = (uint32_t)values[i] << 16;
        float value;
        memcpy(&value, &bits, sizeof value);
        sum += (double)value * value;
    }
    assert_true(fabs(sum / 5 - 1) < 0.5); /* rows of length 1 */
    free(values);
    made_close(&made);
}

/* MXFP4 as published: numbers and scales that make rows of length about 1, and biases near 0. */
static void test_gpt_oss(void **state)
{
    (void)state;
    static const char config_text[] =
        "{\"architectures\": [\"GptOssForCausalLM\"], \"num_local_experts\": 4, \"num_experts_per_tok\": 2, "
        "\"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 2, "
        "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 16, \"vocab_size\": 150, "
        "\"dtype\": \"bfloat16\", \"quantization_config\": {\"quant_method\": \"mxfp4\"}, "
        "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4}}";
    struct made made;
    struct helm_err err = {0};
    made_open(&made, config_text);
    static const enum tensor_role roles[] = {TENSOR_GATE_EXPERTS, TENSOR_UP_EXPERTS, TENSOR_DOWN_EXPERTS};
    for (int i = 0; i < 3; i++) {
        const struct model_tensor *t = model_find(&made.model, roles[i], 1);
        struct model_shards shards;
        void *bytes = malloc(t->bytes);
        float row[96];
        double sum = 0;
        assert_int_equal(t->format, FORMAT_MXFP4);
        assert_int_equal(model_shards_open(&made.model, &shards, &err), 0);
        assert_int_equal(model_shards_read(&shards, t, 0, t->bytes, bytes, &err), 0);
        const struct tensor_matrix m = {t->format, bytes, t->bytes, (uint32_t)t->rows, (uint32_t)t->cols};
        for (uint32_t r = 0; r < t->rows; r++) {
            assert_int_equal(tensor_format_read_row(&m, r, row, &err), 0);
            for (uint32_t c = 0; c < t->cols; c++) sum += (double)row[c] * (double)row[c];
        }
        assert_true(sum / (double)t->rows > 0.5 && sum / (double)t->rows < 3);
        model_shards_close(&shards);
        free(bytes);
    }
    uint16_t *sinks = read_tensor(&made.model, model_find(&made.model, TENSOR_SINKS, 0));
    for (int i = 0; i < 4; i++) assert_true((sinks[i] & 0x7fff) < 0x3e00); /* below 1/8 */
    free(sinks);
    made_close(&made);
}

static void test_config_file(void **state)
{
    (void)state;
    json_t *root;
    struct helm_err err = {0};
    assert_int_equal(mkmodel_config_file("tests/data/golden/qwen3/config.json", DTYPE_F16, &root, &err), 0);
    assert_string_equal(json_string_value(json_object_get(root, "dtype")), "float16");
    json_decref(root);
    assert_int_equal(mkmodel_config_file("tests/data/absent.json", DTYPE_F16, &root, &err), HELM_E_NOT_FOUND);
    assert_null(root);
}

static void test_write_errors(void **state)
{
    (void)state;
    struct model_config config;
    struct mkmodel_result result;
    struct helm_err err = {0};
    assert_int_equal(model_config_parse("c", CONFIG, strlen(CONFIG), &config, &err), 0);
    struct mkmodel_request request = {.config = &config,
                                      .folder = "/nonexistent",
                                      .dtype = DTYPE_BF16,
                                      .shard_bytes = 1 << 30,
                                      .threads = 2};
    assert_int_equal(mkmodel_write(&request, &result, &err), HELM_E_IO);
    assert_non_null(strstr(err.text, "/nonexistent/model.safetensors: cannot create"));
    model_config_free(&config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bytes_for_any_threads_and_shards),
        cmocka_unit_test(test_embedding),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_fill_in_pieces),
        cmocka_unit_test(test_presets),
        cmocka_unit_test(test_presets_with_experts),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_gpt_oss),
        cmocka_unit_test(test_config_file),
        cmocka_unit_test(test_write_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
