/* The files of a checkpoint: contradictory indexes, links out of the folder, generation_config.json, weights
 * cut short, and headers without weights. */
#include "tests/unit/common/model/written_checkpoints.h"

/* The weight_map of the list, to be bent. */
static void start_map(struct built *b)
{
    b->map = json_object();
    for (size_t i = 0; i < json_array_size(b->tensors); i++) {
        json_t *tensor = json_array_get(b->tensors, i);
        json_object_set(b->map, json_string_value(json_object_get(tensor, "name")),
                        json_object_get(tensor, "file"));
    }
}

static void test_index_contradicts_shards(void **state)
{
    (void)state;
    struct built b;
    built_start(&b, QWEN3, two_files, 2);
    start_map(&b);
    json_object_set_new(b.map, "model.layers.0.mlp.up_proj.weight", json_string(two_files[1]));
    expect(&b, HELM_E_MISMATCH, "says it is in model-00002-of-00002.safetensors");
    built_start(&b, QWEN3, two_files, 2);
    start_map(&b);
    json_object_del(b.map, "model.layers.0.mlp.up_proj.weight");
    expect(&b, HELM_E_MISMATCH, "'model.layers.0.mlp.up_proj.weight' is not in model.safetensors.index.json");
    built_start(&b, QWEN3, two_files, 2);
    start_map(&b);
    built_remove(&b, "model.layers.1.mlp.up_proj.weight");
    expect(&b, HELM_E_MISMATCH, "says tensor 'model.layers.1.mlp.up_proj.weight' is in model-00002-of-00002");
    built_start(&b, QWEN3, two_files, 2);
    start_map(&b);
    json_object_set_new(b.map, "x", json_string("absent.safetensors"));
    expect(&b, HELM_E_NOT_FOUND,
           "absent.safetensors: no such file: an incomplete download, file 1 of 3 is missing");
    /* The same tensor in two shards: the index can name only one. */
    built_start(&b, QWEN3, two_files, 2);
    start_map(&b);
    json_array_append_new(b.tensors,
                          built_tensor("model.norm.weight", "BF16", json_pack("[i]", 8), two_files[1]));
    expect(&b, HELM_E_MISMATCH, "tensor 'model.norm.weight': model.safetensors.index.json says it is in");
}

/* Names that nothing is read from may stand in the index without a tensor, or with one. */
static void test_index_lists_unused(void **state)
{
    (void)state;
    static const char *const configs[] = {LLAMA, QWEN2};
    static const char *const names[] = {"model.layers.0.self_attn.rotary_emb.inv_freq", "lm_head.weight"};
    for (size_t i = 0; i < 2; i++) {
        struct built b;
        built_start(&b, configs[i], two_files, 2);
        start_map(&b);
        json_object_set_new(b.map, names[i], json_string(two_files[1]));
        expect(&b, 0, "");
        /* with it, another that is missing is still noticed, and named */
        built_start(&b, configs[i], two_files, 2);
        start_map(&b);
        json_object_set_new(b.map, names[i], json_string(two_files[1]));
        built_remove(&b, "model.layers.1.mlp.up_proj.weight");
        expect(&b, HELM_E_MISMATCH, "says tensor 'model.layers.1.mlp.up_proj.weight' is in model-00002-of-0");
        /* and one that is there makes up for none that is missing */
        json_t *shape = i ? json_pack("[i, i]", 16, 8) : json_pack("[i]", 2);
        built_start(&b, configs[i], two_files, 2);
        json_array_append_new(b.tensors, built_tensor(names[i], i ? "BF16" : "F32", shape, two_files[1]));
        start_map(&b);
        expect(&b, 0, "");
        built_start(&b, configs[i], two_files, 2);
        shape = i ? json_pack("[i, i]", 16, 8) : json_pack("[i]", 2);
        json_array_append_new(b.tensors, built_tensor(names[i], i ? "BF16" : "F32", shape, two_files[1]));
        start_map(&b);
        built_remove(&b, "model.layers.1.mlp.up_proj.weight");
        expect(&b, HELM_E_MISMATCH, "says tensor 'model.layers.1.mlp.up_proj.weight' is in model-00002-of-0");
        /* but not in another file than the index says */
        built_start(&b, configs[i], two_files, 2);
        shape = i ? json_pack("[i, i]", 16, 8) : json_pack("[i]", 2);
        json_array_append_new(b.tensors, built_tensor(names[i], i ? "BF16" : "F32", shape, two_files[1]));
        start_map(&b);
        json_object_set_new(b.map, names[i], json_string(two_files[0]));
        expect(&b, HELM_E_MISMATCH, "says it is in model-00001-of-00002.safetensors");
    }
    /* the head of a model that is not tied is no such tensor */
    struct built b;
    built_start(&b, QWEN3, two_files, 2);
    start_map(&b);
    built_remove(&b, "lm_head.weight");
    expect(&b, HELM_E_MISMATCH, "says tensor 'lm_head.weight' is in model-0000");
}

static void test_hostile_indexes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int code;
        const char *says;
    } cases[] = {
        {"", HELM_E_FORMAT, "not valid JSON"},
        {"[]", HELM_E_FORMAT, "'weight_map'"},
        {"{\"weight_map\": {}}", HELM_E_FORMAT, "'weight_map'"},
        {"{\"weight_map\": {\"a\": 1}}", HELM_E_FORMAT, "tensor 'a': its file name is not a string"},
        {"{\"weight_map\": {\"a\": \"../x.safetensors\"}}", HELM_E_FORMAT, "has the byte 0x2f at 2"},
        {"{\"weight_map\": {\"a\": \"/etc/passwd\"}}", HELM_E_FORMAT, "has the byte 0x2f at 0"},
        {"{\"weight_map\": {\"a\": \"x\\n.safetensors\"}}", HELM_E_FORMAT, "has the byte 0x0a at 1"},
        {"{\"weight_map\": {\"a\": \"x.bin\"}}", HELM_E_FORMAT,
         "'x.bin' is not the name of a .safetensors file"},
        {"{\"weight_map\": {\"a\": \".safetensors\"}}", HELM_E_FORMAT, "is not the name"},
        {"{\"weight_map\": {\"a\": \"x.safetensors\", \"a\": \"y.safetensors\"}}", HELM_E_FORMAT,
         "duplicate"},
    };
    struct checkpoint_index index;
    struct helm_err err = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int rc = checkpoint_parse_index("index", cases[i].text, strlen(cases[i].text), &index, &err);
        if (rc != cases[i].code || !strstr(err.text, cases[i].says))
            fail_msg("%s: code %d, text '%s'", cases[i].text, rc, err.text);
        assert_null(index.json);
    }
    char *text = malloc(400000);
    size_t used = (size_t)sprintf(text, "{\"weight_map\": {\"a\": \"0.safetensors\"");
    for (int i = 1; i <= MODEL_SHARDS_MAX; i++)
        used += (size_t)sprintf(text + used, ",\"a%d\":\"%d.safetensors\"", i, i);
    strcpy(text + used, "}}");
    assert_int_equal(checkpoint_parse_index("index", text, strlen(text), &index, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "more than 4096 shards"));
    free(text);
    char name[300];
    snprintf(name, sizeof name, "{\"weight_map\": {\"a\": \"%0170d.safetensors\"}}", 1);
    assert_int_equal(checkpoint_parse_index("index", name, strlen(name), &index, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "a file name of 182 bytes, the limit is 159"));
}

static void test_nothing_there(void **state)
{
    (void)state;
    struct built b;
    struct model model;
    struct helm_err err = {0};
    assert_int_equal(model_read("/nonexistent-folder", &model, &err), HELM_E_NOT_FOUND);
    built_start(&b, QWEN3, one_file, 1);
    assert_int_equal(model_read(b.folder, &model, &err), HELM_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "config.json: no such file"));
    built_text(&b, "config.json", QWEN3);
    assert_int_equal(model_read(b.folder, &model, &err), HELM_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "neither model.safetensors nor model.safetensors.index.json"));
    built_end(&b);
}

static void test_generation_config(void **state)
{
    (void)state;
    struct built b;
    struct model_config config;
    struct helm_err err = {0};
    built_start(&b, QWEN3, one_file, 1);
    built_text(&b, "config.json", QWEN3);
    assert_int_equal(model_read_config(b.folder, &config, &err), 0);
    assert_int_equal(err.code, 0); /* no trace of the optional file that is not there */
    assert_int_equal(config.eos_count, 0);
    model_config_free(&config);
    built_text(&b, "generation_config.json", "{\"eos_token_id\": [5, 6], \"bos_token_id\": 1}");
    assert_int_equal(model_read_config(b.folder, &config, &err), 0);
    assert_int_equal(config.eos_count, 2);
    assert_int_equal(config.bos, 1);
    model_config_free(&config);
    built_text(&b, "generation_config.json", "{");
    assert_int_equal(model_read_config(b.folder, &config, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "generation_config.json"));
    built_end(&b);
}

/* A link inside the folder is followed; one that leaves it is refused. */
static void test_links(void **state)
{
    (void)state;
    struct built b;
    struct model model;
    struct helm_err err = {0};
    char weights[256], moved[256], outside[] = "/tmp/helm-test-outside-XXXXXX";
    built_start(&b, QWEN3, one_file, 1);
    built_write(&b);
    snprintf(weights, sizeof weights, "%s/model.safetensors", b.folder);
    snprintf(moved, sizeof moved, "%s/blob", b.folder);
    assert_int_equal(rename(weights, moved), 0);
    assert_int_equal(symlink("blob", weights), 0);
    if (model_read(b.folder, &model, &err)) fail_msg("%s", err.text);
    model_free(&model);
    assert_int_equal(close(mkstemp(outside)), 0);
    assert_int_equal(rename(moved, outside), 0);
    assert_int_equal(unlink(weights), 0);
    assert_int_equal(symlink(outside, weights), 0);
    assert_int_equal(model_read(b.folder, &model, &err), HELM_E_PERMISSION);
    assert_non_null(strstr(err.text, "leaves the model folder"));
    unlink(outside);
    built_end(&b);
}

static void test_truncated_weights(void **state)
{
    (void)state;
    struct built b;
    struct model model;
    struct helm_err err = {0};
    struct stat st;
    char path[256];
    built_start(&b, QWEN3, one_file, 1);
    built_write(&b);
    snprintf(path, sizeof path, "%s/model.safetensors", b.folder);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size - 1), 0);
    assert_int_equal(model_read(b.folder, &model, &err), HELM_E_FORMAT);
    char text[120];
    snprintf(text, sizeof text, "an incomplete download: %lld bytes are there, %lld expected",
             (long long)st.st_size - 1, (long long)st.st_size);
    assert_non_null(strstr(err.text, text));
    assert_int_equal(truncate(path, st.st_size + 1), 0);
    assert_int_equal(model_read(b.folder, &model, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "1 bytes follow the last tensor"));
    built_end(&b);
}

/* For planning: files cut off after their headers, and a folder with a configuration alone. */
static void test_headers_alone(void **state)
{
    (void)state;
    static const char *const configs[] = {QWEN3, QWEN2, LLAMA};
    for (size_t c = 0; c < 3; c++) {
        struct built b;
        struct model whole, model;
        struct helm_err err = {0};
        struct stat st;
        char path[256];
        bool derived = true;
        built_start(&b, configs[c], one_file, 1);
        built_write(&b);
        snprintf(path, sizeof path, "%s/model.safetensors", b.folder);
        if (model_read(b.folder, &whole, &err)) fail_msg("%s", err.text);
        uint64_t data = whole.tensors[0].offset;
        assert_int_equal(stat(path, &st), 0);
        for (int cut = 0; cut < 3; cut++) {
            assert_int_equal(truncate(path, (off_t[]){st.st_size - 1, (off_t)data, st.st_size}[cut]), 0);
            if (model_read_headers(b.folder, &model, &derived, &err)) fail_msg("%s", err.text);
            assert_false(derived);
            assert_int_equal(model.tensor_count, whole.tensor_count);
            assert_memory_equal(model.tensors, whole.tensors, whole.tensor_count * sizeof *whole.tensors);
            assert_int_equal(model.shards[0].bytes, whole.shards[0].bytes);
            model_free(&model);
        }
        assert_int_equal(truncate(path, st.st_size + 1), 0);
        assert_int_equal(model_read_headers(b.folder, &model, &derived, &err), HELM_E_FORMAT);
        assert_non_null(strstr(err.text, "1 bytes follow the last tensor"));
        assert_int_equal(truncate(path, (off_t)data - 1), 0);
        assert_int_equal(model_read_headers(b.folder, &model, &derived, &err), HELM_E_FORMAT);
        assert_int_equal(unlink(path), 0);
        if (model_read_headers(b.folder, &model, &derived, &err)) fail_msg("%s", err.text);
        assert_true(derived);
        assert_string_equal(model.folder, b.folder);
        assert_int_equal(model.tensor_count, whole.tensor_count);
        assert_int_equal(model.weight_bytes, whole.weight_bytes);
        assert_int_equal(model.parameter_count, whole.parameter_count);
        for (uint32_t u = 0; u < unit_count(whole.config.layers); u++)
            assert_int_equal(model.unit[u].bytes, whole.unit[u].bytes);
        for (uint32_t i = 0; i < whole.tensor_count; i++) {
            const struct model_tensor *a = &whole.tensors[i], *t = model_find(&model, a->role, a->layer);
            assert_non_null(t);
            assert_string_equal(t->name, a->name);
            assert_int_equal(t->rows, a->rows);
            assert_int_equal(t->cols, a->cols);
            assert_int_equal(t->bytes, a->bytes);
            assert_int_equal(t->format, a->format);
        }
        model_free(&model);
        /* An index or a shard of another name: what is named must be there. */
        built_text(&b, "model.safetensors.index.json", "{\"weight_map\": {\"a\": \"b.safetensors\"}}");
        assert_int_equal(model_read_headers(b.folder, &model, &derived, &err), HELM_E_NOT_FOUND);
        assert_false(derived);
        assert_null(model.tensors);
        model_free(&whole);
        built_end(&b);
    }
    struct model model;
    struct helm_err err = {0};
    bool derived;
    assert_int_not_equal(model_read_headers("/nonexistent-folder", &model, &derived, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_index_contradicts_shards), cmocka_unit_test(test_index_lists_unused),
        cmocka_unit_test(test_hostile_indexes),          cmocka_unit_test(test_nothing_there),
        cmocka_unit_test(test_generation_config),        cmocka_unit_test(test_links),
        cmocka_unit_test(test_truncated_weights),        cmocka_unit_test(test_headers_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
