/* The two reference tokenizers (byte-level Qwen3, SentencePiece-style Llama 2) against every recorded case.
 *
 * The files are too large for the repository: they are read from $HELM_SHARED (default ../shared) and the
 * test says so loudly where they are absent. Small tokenizers that cover the rest are in test_tokenizer.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/text/tokenizer/tokenizer.h"
#include "common/base/file.h"
#include "common/base/json.h"

static const char *shared_folder(void)
{
    const char *folder = getenv("HELM_SHARED");
    return folder ? folder : "../shared";
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static struct helm_tokenizer *open_shared(const char *name)
{
    struct helm_err err = {0};
    struct helm_tokenizer *tokenizer = NULL;
    char path[512], *text;
    size_t length;
    snprintf(path, sizeof path, "%s/tokenizers/%s.tokenizer.json", shared_folder(), name);
    if (access(path, R_OK) != 0) {
        print_message("%s skipped: HELM_SHARED does not name the folder that has it\n", path);
        skip();
    }
    if (file_read(path, 64u << 20, &text, &length, &err)) fail_msg("%s", err.text);
    double start = now_ms();
    if (helm_tokenizer_open_memory(text, length, NULL, 0, &tokenizer, &err)) fail_msg("%s", err.text);
    print_message("%s: opened in %.1f ms\n", name, now_ms() - start);
    free(text);
    return tokenizer;
}

/* The incremental detokenizer gives the same bytes, and never half a character. */
static void check_pieces(const struct helm_tokenizer *tokenizer, const uint32_t *ids, size_t count,
                         const char *expected, size_t expected_length)
{
    struct helm_err err = {0};
    struct helm_detokenizer *d;
    size_t at = 0;
    assert_int_equal(helm_detokenizer_open(tokenizer, HELM_TOKENIZER_DECODE_ALL, &d, &err), 0);
    for (size_t i = 0; i <= count; i++) {
        const char *piece;
        size_t length;
        int rc = i < count ? helm_detokenizer_push(d, ids[i], &piece, &length, &err)
                           : helm_detokenizer_finish(d, &piece, &length, &err);
        assert_int_equal(rc, 0);
        assert_true(at + length <= expected_length);
        assert_memory_equal(expected + at, piece, length);
        at += length;
        if (at < expected_length) assert_int_not_equal((uint8_t)expected[at] & 0xC0, 0x80);
    }
    assert_int_equal(at, expected_length);
    helm_detokenizer_close(d);
}

static int check_case(const struct helm_tokenizer *tokenizer, const json_t *line, size_t number)
{
    struct helm_err err = {0};
    const json_t *text = json_object_get(line, "text"), *ids = json_object_get(line, "ids");
    const json_t *decoded = json_object_get(line, "decoded");
    uint32_t *got;
    size_t count, length;
    char *back;
    int bad = 0;
    if (helm_tokenizer_encode(tokenizer, json_string_value(text), json_string_length(text),
                              HELM_TOKENIZER_ENCODE_PARSE_ADDED, &got, &count, &err))
        fail_msg("line %zu: %s", number, err.text);
    size_t wanted = json_array_size(ids);
    uint32_t *list = malloc((wanted + 1) * sizeof *list);
    for (size_t i = 0; i < wanted; i++) list[i] = (uint32_t)json_integer_value(json_array_get(ids, i));
    if (count != wanted || memcmp(got, list, count * sizeof *list) != 0) {
        print_error("line %zu: ids differ for '%s'\n", number, json_string_value(text));
        bad = 1;
    }
    if (helm_tokenizer_decode(tokenizer, list, wanted, HELM_TOKENIZER_DECODE_ALL, &back, &length, &err))
        fail_msg("line %zu: %s", number, err.text);
    if (length != json_string_length(decoded) || memcmp(back, json_string_value(decoded), length) != 0) {
        print_error("line %zu: decoded '%s', not '%s'\n", number, back, json_string_value(decoded));
        bad = 1;
    }
    check_pieces(tokenizer, list, wanted, back, length);
    free(list);
    free(got);
    free(back);
    return bad;
}

static void check_all(const char *name)
{
    struct helm_err err = {0};
    struct helm_tokenizer *tokenizer = open_shared(name);
    char path[512], *text;
    size_t length, number = 0;
    int bad = 0;
    snprintf(path, sizeof path, "%s/tokenizers/%s.jsonl", shared_folder(), name);
    if (file_read(path, 64u << 20, &text, &length, &err)) fail_msg("%s", err.text);
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        json_t *value;
        if (json_parse_bounded(path, line, (size_t)(end - line), 1u << 20, &value, &err))
            fail_msg("%s", err.text);
        bad += check_case(tokenizer, value, ++number);
        json_decref(value);
    }
    free(text);
    helm_tokenizer_close(tokenizer);
    print_message("%s: %zu cases, %d differ\n", name, number, bad);
    assert_true(number >= 700);
    assert_int_equal(bad, 0);
}

static void test_qwen3(void **state)
{
    (void)state;
    check_all("qwen3");
}

static void test_llama2(void **state)
{
    (void)state;
    check_all("llama2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_qwen3), cmocka_unit_test(test_llama2)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
