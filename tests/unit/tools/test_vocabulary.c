/* Tokenizers for GGUF files (tools/quantize/vocabulary.c): what goes in comes out, tokens that no file may
 * have are named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/model/gguf_write.h"
#include "tools/quantize/vocabulary.h"

#define VOCAB 512

/* A folder with the tokenizer of the tests and, unless `letters` is 0, tokens of `letters` letters, joined by
 * a merge. */
static int put(size_t letters, struct gguf_values *values, const char **kind, struct helm_err *err)
{
    char folder[] = "/tmp/helm-vocabulary-XXXXXX", path[64];
    struct model_config config = {.vocab = VOCAB, .bos = -1};
    json_t *json = json_load_file("tests/data/tokenizers/bytelevel.json", 0, NULL);
    assert_non_null(json);
    assert_non_null(mkdtemp(folder));
    if (letters) {
        json_t *model = json_object_get(json, "model");
        char *text = malloc(2 * letters + 2);
        memset(text, 'q', 2 * letters);
        text[2 * letters] = '\0';
        json_object_set_new(json_object_get(model, "vocab"), text, json_integer(401));
        text[letters] = '\0';
        json_object_set_new(json_object_get(model, "vocab"), text, json_integer(400));
        json_t *pair = json_array();
        json_array_append_new(pair, json_string(text));
        json_array_append_new(pair, json_string(text));
        json_t *merges = json_object_get(model, "merges"), *first = json_array_get(merges, 0);
        if (json_is_string(first)) {
            json_decref(pair);
            pair = json_sprintf("%s %s", text, text);
        }
        json_array_append_new(merges, pair);
        free(text);
    }
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    assert_int_equal(json_dump_file(json, path, 0), 0);
    json_decref(json);
    memset(values, 0, sizeof *values);
    int rc = vocabulary_put(values, folder, &config, kind, err);
    unlink(path);
    rmdir(folder);
    return rc;
}

static void a_tokenizer_finds_its_kind(void **state)
{
    struct gguf_values values;
    struct helm_err err = {0};
    const char *kind = NULL;
    (void)state;
    if (put(0, &values, &kind, &err)) fail_msg("%s", err.text);
    assert_non_null(kind);
    assert_true(values.count > 4 && !values.failed);
    gguf_values_free(&values);
    if (put(500, &values, &kind, &err)) fail_msg("%s", err.text); /* 1,000 letters joined */
    gguf_values_free(&values);
}

static void tokens_that_no_file_may_have_are_refused(void **state)
{
    struct gguf_values values;
    struct helm_err err = {0};
    const char *kind = NULL;
    (void)state;
    assert_int_equal(put(1500, &values, &kind, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "token 400 has 1500 bytes, at most 1024"));
    gguf_values_free(&values);
    assert_int_equal(put(600, &values, &kind, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "token 401 has 1200 bytes"));
    gguf_values_free(&values);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_tokenizer_finds_its_kind),
                                       cmocka_unit_test(tokens_that_no_file_may_have_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
