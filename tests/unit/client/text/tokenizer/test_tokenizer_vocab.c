/* Whole vocabularies as GGUF files (Qwen 2, Llama 2's SentencePiece, DeepSeek LLM) against llama.cpp's texts
 * and ids.
 *
 * The files are too large for the repository: they are read from $HELM_SHARED (default ../shared) and the
 * test says so loudly where they are absent. Small vocabularies are in test_tokenizer_gguf.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/text/tokenizer/tokenizer.h"
#include "common/base/file.h"
#include "common/base/json.h"

#define SEPARATOR "\n__ggml_vocab_test__\n"

/* The text of a shared file, or, where `length` is NULL, its path. */
static char *read_shared(const char *name, size_t *length)
{
    struct helm_err err = {0};
    const char *shared = getenv("HELM_SHARED");
    char path[512], *text;
    snprintf(path, sizeof path, "%s/%s", shared ? shared : "../shared", name);
    if (access(path, R_OK) != 0) {
        print_message("%s skipped: HELM_SHARED does not name the folder that has it\n", path);
        skip();
    }
    if (!length) return strdup(path);
    if (file_read(path, 64u << 20, &text, length, &err)) fail_msg("%s", err.text);
    return text;
}

static char *read_vocabulary(const char *name, const char *suffix, size_t *length)
{
    char file[128];
    snprintf(file, sizeof file, "golden-gguf/vocab/ggml-vocab-%s.gguf%s", name, suffix);
    return read_shared(file, length);
}

/* The ids of a line, and whether these are what `text` gives; then back again. */
static int check_case(const struct helm_tokenizer *t, size_t number, const char *text, size_t length,
                      const char *line)
{
    struct helm_err err = {0};
    uint32_t wanted[2048], *got;
    size_t count = 0, got_count, back_length;
    char *end, *back;
    int bad = 0;
    for (unsigned long id; (id = strtoul(line, &end, 10)), end != line; line = end)
        wanted[count++] = (uint32_t)id;
    if (helm_tokenizer_encode(t, text, length, HELM_TOKENIZER_ENCODE_PARSE_ADDED, &got, &got_count, &err))
        fail_msg("case %zu: %s", number, err.text);
    if (got_count != count || memcmp(got, wanted, count * sizeof *got) != 0) {
        print_error("case %zu: ids of '%.*s' differ: %zu, not %zu\n", number, (int)length, text, got_count,
                    count);
        for (size_t i = 0; i < got_count; i++) print_error(" %u", got[i]);
        print_error("\n");
        bad++;
    }
    if (helm_tokenizer_decode(t, wanted, count, HELM_TOKENIZER_DECODE_ALL, &back, &back_length, &err))
        fail_msg("case %zu: %s", number, err.text);
    if (back_length != length || memcmp(back, text, length) != 0) {
        print_error("case %zu: '%s' comes back, not '%.*s'\n", number, back, (int)length, text);
        bad++;
    }
    free(got);
    free(back);
    return bad;
}

static void check_vocabulary(const char *name)
{
    struct helm_err err = {0};
    struct helm_tokenizer *t;
    size_t input_length, output_length, number = 0;
    char *path = read_vocabulary(name, "", NULL);
    char *input = read_vocabulary(name, ".inp", &input_length),
         *output = read_vocabulary(name, ".out", &output_length);
    int bad = 0;
    if (helm_tokenizer_open(path, &t, &err)) fail_msg("%s", err.text);
    char *line = output, *text = input, *end;
    while ((end = strstr(text, SEPARATOR))) {
        char *line_end = strchr(line, '\n');
        assert_non_null(line_end);
        *line_end = '\0';
        bad += check_case(t, ++number, text, (size_t)(end - text), line);
        line = line_end + 1;
        text = end + sizeof SEPARATOR - 1;
    }
    print_message("%s: %zu cases, both ways, %d differ\n", name, number, bad);
    assert_int_equal(*line, '\0'); /* a line for each text */
    assert_true(number >= 40);
    assert_int_equal(bad, 0);
    helm_tokenizer_close(t);
    free(path);
    free(input);
    free(output);
}

static void test_qwen2(void **state)
{
    (void)state;
    check_vocabulary("qwen2");
}

/* The texts recorded with Qwen 3's tokenizer.json, whose vocabulary is Qwen 2's and a few added tokens after
 * it. */
static void test_qwen3_texts(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct helm_tokenizer *t;
    size_t length, equal = 0, newer = 0;
    char *path = read_shared("golden-gguf/vocab/ggml-vocab-qwen2.gguf", NULL);
    char *lines = read_shared("tokenizers/qwen3.jsonl", &length);
    if (helm_tokenizer_open(path, &t, &err)) fail_msg("%s", err.text);
    const uint32_t tokens = helm_tokenizer_token_to_id(t, "<|im_end|>", 10) + 1; /* the last that both have */
    assert_int_equal(tokens, 151646);
    for (char *line = lines, *end; (end = strchr(line, '\n')); line = end + 1) {
        json_t *value;
        if (json_parse_bounded(path, line, (size_t)(end - line), 1u << 20, &value, &err))
            fail_msg("%s", err.text);
        const json_t *text = json_object_get(value, "text"), *ids = json_object_get(value, "ids");
        uint32_t *got;
        size_t count;
        bool both = true, same;
        for (size_t i = 0; i < json_array_size(ids); i++)
            both &= json_integer_value(json_array_get(ids, i)) < tokens;
        if (helm_tokenizer_encode(t, json_string_value(text), json_string_length(text),
                                  HELM_TOKENIZER_ENCODE_PARSE_ADDED, &got, &count, &err))
            fail_msg("%s", err.text);
        same = count == json_array_size(ids);
        for (size_t i = 0; i < count && same; i++)
            same = got[i] == json_integer_value(json_array_get(ids, i));
        if (both && !same) fail_msg("ids differ for '%s'", json_string_value(text));
        equal += same;
        newer += !both;
        free(got);
        json_decref(value);
    }
    print_message("qwen2 with texts of qwen3: %zu cases equal, %zu have tokens of Qwen 3 alone\n", equal,
                  newer);
    assert_true(equal >= 700 && newer < 10);
    helm_tokenizer_close(t);
    free(path);
    free(lines);
}

static void test_llama(void **state)
{
    (void)state;
    check_vocabulary("llama-spm");
}

static void test_deepseek(void **state)
{
    (void)state;
    check_vocabulary("deepseek-llm");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_qwen2),
        cmocka_unit_test(test_qwen3_texts),
        cmocka_unit_test(test_llama),
        cmocka_unit_test(test_deepseek),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
