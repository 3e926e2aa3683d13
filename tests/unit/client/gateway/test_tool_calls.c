/* Calls of tools in answers, in each family's way and however the answer is cut; stop texts; the bytes of tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/gateway/access.h"
#include "client/gateway/tool_calls.h"
#include "client/text/stop_text.h"
#include "client/text/tokenizer/tokenizer.h"

#define CALL   "{\"name\": \"f\", \"arguments\": {\"x\": \"}\"}}"
#define OBJECT "{\"name\": \"f\", \"parameters\": {\"x\": \"}\"}}"
#define ANSWER "{\"x\":\"}\"}" /* the arguments */

static const struct {
    enum tool_style style;
    const char *said, *text;
    size_t calls;
} cases[] = {
    {TOOLS_NONE, "<tool_call>" CALL "</tool_call>", "<tool_call>" CALL "</tool_call>", 0},
    {TOOLS_TAGGED, "<tool_call>" CALL "</tool_call>", "", 1},
    {TOOLS_TAGGED, "So: \n\n<tool_call>\n" CALL "\n</tool_call>\n<tool_call>" CALL "</tool_call>\n",
     "So:", 2},
    {TOOLS_TAGGED, "<tool_call>" CALL, "", 1},
    {TOOLS_TAGGED, "<tool_call>{}</tool_call> x", "<tool_call>{}</tool_call> x", 0},
    {TOOLS_TAGGED, "a <tool_", "a <tool_", 0},
    {TOOLS_TAGGED, "<tool_call>" CALL " " CALL "</tool_call>", "<tool_call>" CALL " " CALL "</tool_call>", 0},
    {TOOLS_OBJECT, OBJECT, "", 1},
    {TOOLS_OBJECT, " <|python_tag|>" OBJECT "; " OBJECT "\n", "", 2},
    {TOOLS_OBJECT, "{\"name\": \"g\", \"parameters\": {}}", "{\"name\": \"g\", \"parameters\": {}}", 0},
    {TOOLS_OBJECT, "It {is}", "It {is}", 0},
    {TOOLS_LISTED, "[TOOL_CALLS] [" CALL ", " CALL "]", "", 2},
    {TOOLS_LISTED, "[TOOL_CALLS]f[ARGS]{\"x\":\"}\"}[TOOL_CALLS]f{\"x\":\"}\"}", "", 2},
    {TOOLS_LISTED, "[TOOL_CALLS] [1] and", "[TOOL_CALLS] [1] and", 0},
    {TOOLS_LISTED, "[TOOL_CALLS]", "[TOOL_CALLS]", 0},
};

static void test_calls_are_found_however_the_answer_is_cut(void **state)
{
    (void)state;
    json_t *tools = json_pack("[{s:s, s:{s:s}}]", "type", "function", "function", "name", "f");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const size_t length = strlen(cases[i].said);
        for (size_t step = 1; step <= length; step++) {
            struct cli_text text = {0};
            struct tool_parser parser = {.style = cases[i].style, .tools = tools, .text = &text};
            cli_text_add(&text, "", 0);
            for (size_t at = 0; at < length; at += step)
                tool_parser_push(&parser, cases[i].said + at, length - at < step ? length - at : step);
            tool_parser_finish(&parser);
            assert_string_equal(text.data, cases[i].text);
            assert_int_equal(parser.count, cases[i].calls);
            for (size_t k = 0; k < parser.count; k++) {
                assert_string_equal(parser.calls[k].name, "f");
                assert_string_equal(parser.calls[k].arguments, ANSWER);
            }
            tool_parser_free(&parser);
            cli_text_free(&text);
        }
    }
    json_decref(tools);
}

static void test_no_more_calls_than_fit(void **state)
{
    (void)state;
    struct cli_text text = {0};
    struct tool_parser parser = {.style = TOOLS_TAGGED, .text = &text};
    static const char one[] = "<tool_call>" CALL "</tool_call>";
    for (int i = 0; i < TOOL_CALLS_MAX + 1; i++) tool_parser_push(&parser, one, strlen(one));
    tool_parser_finish(&parser);
    assert_int_equal(parser.count, TOOL_CALLS_MAX);
    assert_string_equal(text.data, one);
    tool_parser_free(&parser);
    cli_text_free(&text);
}

static void test_a_template_shows_its_style(void **state)
{
    (void)state;
    assert_int_equal(tool_style_of(NULL), TOOLS_NONE);
    assert_int_equal(tool_style_of("{{ messages }}<tool_call>"), TOOLS_NONE);
    assert_int_equal(tool_style_of("{% if tools %}<tool_call>"), TOOLS_TAGGED);
    assert_int_equal(tool_style_of("{% if tools %}[TOOL_CALLS]"), TOOLS_LISTED);
    assert_int_equal(tool_style_of("{% if tools %}<|start_header_id|>"), TOOLS_OBJECT);
    assert_int_equal(tool_style_of("{% if tools %}"), TOOLS_NONE);
}

static void test_stop_texts(void **state)
{
    (void)state;
    static const char *const texts[] = {"STOP", "abc"};
    const struct stop_texts stop = {texts, 2}, none = {texts, 0};
    assert_int_equal(stop_text_find(&stop, "xxabcSTOP", 9, 0), 2);
    assert_int_equal(stop_text_find(&stop, "xxabcSTOP", 9, 3), 5);
    assert_true(stop_text_find(&stop, "xxab", 4, 0) == SIZE_MAX);
    assert_true(stop_text_find(&none, "abc", 3, 0) == SIZE_MAX);
    assert_int_equal(stop_text_held(&stop, "xxSTO", 5, 0), 3);
    assert_int_equal(stop_text_held(&stop, "xxSTO", 5, 3), 0); /* what came before `from` was decided */
    assert_int_equal(stop_text_held(&stop, "xxa", 3, 0), 1);
    assert_int_equal(stop_text_held(&none, "xxa", 3, 0), 0);
}

static void test_tokens_have_bytes(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct helm_tokenizer *tokenizer = NULL;
    static const char text[] = "na\xC3\xAFve \xF0\x9F\x99\x82 \xE6\x97\xA5";
    uint32_t *ids = NULL;
    size_t count = 0, used = 0, length = 0;
    char *bytes = NULL, all[sizeof text] = "";
    assert_int_equal(helm_tokenizer_open("tools/models/demo", &tokenizer, &err), 0);
    assert_int_equal(helm_tokenizer_encode(tokenizer, text, strlen(text), 0, &ids, &count, &err), 0);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(helm_tokenizer_token_bytes(tokenizer, ids[i], &bytes, &length, &err), 0);
        assert_true(used + length < sizeof all);
        memcpy(all + used, bytes, length);
        used += length;
        free(bytes);
    }
    assert_int_equal(used, strlen(text));
    assert_memory_equal(all, text, used);
    assert_int_equal(helm_tokenizer_token_bytes(tokenizer, 1u << 20, &bytes, &length, &err), 0);
    assert_int_equal(length, 0);
    free(bytes);
    free(ids);
    helm_tokenizer_close(tokenizer);
}

static void test_hosts_and_origins(void **state)
{
    (void)state;
    const struct args_list hosts = {.item = {"me.example"}, .count = 1};
    const struct access access = {.hosts = &hosts};
    static const char *const good[] = {"localhost", "LOCALHOST:1", "127.0.0.1",  "10.0.0.1:80",
                                       "[::1]",     "[fe80::1]:9", "me.example", "ME.example:443"};
    static const char *const bad[] = {"",     "x",   "evil.example", "127.0.0.1.evil",   "localhost.evil",
                                      "[::1", "::1", "localhost:x",  "me.example:80:80", "[::1]x"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_true(access_host_allowed(&access, good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(access_host_allowed(&access, bad[i]));
    assert_false(access_host_allowed(&access, NULL));
    assert_true(access_origin_allowed(NULL, "localhost"));
    assert_true(access_origin_allowed("http://localhost:80", "localhost:80"));
    assert_false(access_origin_allowed("http://localhost:81", "localhost:80"));
    assert_false(access_origin_allowed("null", "localhost:80"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_are_found_however_the_answer_is_cut),
        cmocka_unit_test(test_no_more_calls_than_fit),
        cmocka_unit_test(test_a_template_shows_its_style),
        cmocka_unit_test(test_stop_texts),
        cmocka_unit_test(test_tokens_have_bytes),
        cmocka_unit_test(test_hosts_and_origins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
