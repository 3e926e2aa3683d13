/* Chat templates as checkpoints have them: where they are found, the special tokens, rendering from C strings
 * and from JSON, the demo model's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/text/chat.h"

static void write_file(const char *folder, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (!text) {
        unlink(path);
        return;
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

static int make_folder(void **state)
{
    char *folder = strdup("/tmp/helm-test-chat-XXXXXX");
    *state = folder;
    return folder && mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    write_file(*state, "chat_template.jinja", NULL);
    write_file(*state, "tokenizer_config.json", NULL);
    int rc = rmdir(*state);
    free(*state);
    return rc;
}

static struct helm_chat *open_chat(const char *folder)
{
    struct helm_err err = {0};
    struct helm_chat *chat;
    if (helm_chat_open(folder, &chat, &err)) fail_msg("%s", err.text);
    return chat;
}

static void expect_json(const struct helm_chat *chat, const char *messages, const char *tools,
                        const char *extra, int prompt, const char *expected)
{
    struct helm_err err = {0};
    char *text;
    size_t length;
    const struct helm_chat_input input = {messages, tools, extra, prompt, 1753500000};
    if (helm_chat_render_json(chat, &input, &text, &length, &err)) fail_msg("%s", err.text);
    assert_string_equal(text, expected);
    assert_int_equal(length, strlen(expected));
    free(text);
}

static void expect_open_error(const char *folder, int code, const char *words)
{
    struct helm_err err = {0};
    struct helm_chat *chat;
    int rc = helm_chat_open(folder, &chat, &err);
    if (rc != code || !strstr(err.text, words))
        fail_msg("got %d (%s), expected %d (%s)", rc, err.text, code, words);
    assert_null(chat);
}

static void test_demo(void **state)
{
    (void)state;
    struct helm_chat *chat = open_chat("tools/models/demo");
    const struct helm_chat_message messages[] = {{"user", "Hello"},
                                                 {"assistant", "Hi \xF0\x9F\x98\x80"},
                                                 {"user", "?"}};
    struct helm_err err = {0};
    char *text;
    size_t length;
    assert_int_equal(helm_chat_render(chat, messages, 3, 1, &text, &length, &err), 0);
    const char *expected =
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHi \xF0\x9F\x98\x80<|im_end|>\n"
        "<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n";
    assert_string_equal(text, expected);
    assert_int_equal(length, strlen(expected));
    free(text);
    assert_int_equal(helm_chat_render(chat, NULL, 0, 0, &text, &length, &err), 0);
    assert_string_equal(text, "");
    free(text);
    helm_chat_close(&chat);
    assert_null(chat);
    helm_chat_close(&chat);
}

static void test_places(void **state)
{
    const char *folder = *state;
    expect_open_error(folder, HELM_E_NOT_FOUND, "has no chat template");
    write_file(folder, "tokenizer_config.json", "{\"bos_token\": \"<s>\", \"eos_token\": null}");
    expect_open_error(folder, HELM_E_NOT_FOUND, "has no chat template");
    write_file(
        folder, "tokenizer_config.json",
        "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\", \"lstrip\": false}, \"pad_token\": "
        "null,"
        " \"add_bos_token\": true, \"chat_template\": \"{{ bos_token }}A{{ eos_token }}{{ pad_token }}|"
        "{{ pad_token is defined }}{{ tools }}{{ documents }}\"}");
    struct helm_chat *chat = open_chat(folder);
    expect_json(chat, "[]", NULL, NULL, 0, "<s>A</s>|FalseNoneNone");
    expect_json(chat, "[]", NULL, "{\"bos_token\": \"B\"}", 0, "BA</s>|FalseNoneNone");
    helm_chat_close(&chat);
    /* a file of its own wins, with the same tokens */
    write_file(folder, "chat_template.jinja", "{{ bos_token }}file{{ eos_token }}\n");
    chat = open_chat(folder);
    expect_json(chat, "[]", NULL, NULL, 0, "<s>file</s>");
    helm_chat_close(&chat);
    write_file(folder, "tokenizer_config.json", NULL);
    chat = open_chat(folder);
    expect_json(chat, "[]", NULL, NULL, 0, "file");
    helm_chat_close(&chat);
}

static void test_named_templates(void **state)
{
    const char *folder = *state;
    write_file(
        folder, "tokenizer_config.json",
        "{\"chat_template\": [{\"name\": \"default\", \"template\": \"plain\"}, {\"name\": \"rag\", "
        "\"template\": \"{% nonsense\"}, {\"name\": \"tool_use\", \"template\": \"{{ tools|length }}\"}]}");
    struct helm_chat *chat = open_chat(folder);
    expect_json(chat, "[]", NULL, NULL, 0, "plain");
    expect_json(chat, "[]", "null", NULL, 0, "plain");
    expect_json(chat, "[]", "[{}, {}]", NULL, 0, "2");
    helm_chat_close(&chat);
    write_file(folder, "tokenizer_config.json",
               "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"x\"}]}");
    expect_open_error(folder, HELM_E_NOT_FOUND, "none of its templates is named 'default'");
    write_file(folder, "tokenizer_config.json", "{\"chat_template\": [{\"name\": \"default\"}]}");
    expect_open_error(folder, HELM_E_FORMAT, "entry 0 has no name or no template");
    write_file(folder, "tokenizer_config.json", "{\"chat_template\": 5}");
    expect_open_error(folder, HELM_E_FORMAT, "neither a text nor a list");
    write_file(folder, "tokenizer_config.json", "{\"chat_template\": \"a\\n{% if\"}");
    expect_open_error(folder, HELM_E_FORMAT,
                      "tokenizer_config.json: chat_template: line 2: a tag has no end");
    write_file(folder, "tokenizer_config.json", "{\"bos_token\": 5, \"chat_template\": \"a\"}");
    expect_open_error(folder, HELM_E_FORMAT, "'bos_token' is neither a text nor a token");
    write_file(folder, "tokenizer_config.json", "[");
    expect_open_error(folder, HELM_E_FORMAT, "tokenizer_config.json: not valid JSON");
    write_file(folder, "chat_template.jinja", "{% include 'x' %}");
    expect_open_error(folder, HELM_E_UNSUPPORTED, "chat_template.jinja: line 1: the tag 'include'");
}

static void test_json(void **state)
{
    const char *folder = *state;
    write_file(folder, "chat_template.jinja",
               "{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}"
               "{{ c.function.arguments|tojson }}{% endfor %};{% endfor %}{{ enable_thinking }}"
               "{% if add_generation_prompt %}>{% endif %}{% if stamp %}{{ strftime_now('%Y') }}{% endif %}");
    struct helm_chat *chat = open_chat(folder);
    expect_json(
        chat,
        "[{\"role\": \"user\", \"content\": \"\xC3\xA9\"}, {\"role\": \"assistant\", \"content\": null, "
        "\"tool_calls\": [{\"function\": {\"arguments\": {\"z\": 1, \"a\": [1.5, true]}}}]}]",
        NULL, "{\"enable_thinking\": false, \"stamp\": true}", 1,
        "user:\xC3\xA9;assistant:None{\"z\": 1, \"a\": [1.5, true]};False>2025");
    expect_json(
        chat,
        "[{\"role\": 1.50, \"content\": 123456789012345678901234567890, \"tool_calls\": [{\"function\": "
        "{\"arguments\": {\"a\": [1.50, -1E+5, 1e999, 5, 0.10], \"b\": -98765432109876543210}}}]}]",
        NULL, "{\"enable_thinking\": 2.0}", 0,
        "1.50:123456789012345678901234567890{\"a\": [1.50, -1E+5, 1e999, 5, 0.10], \"b\": "
        "-98765432109876543210};2.0");
    struct helm_err err;
    char *text;
    size_t length;
    const struct {
        const char *messages, *tools, *extra;
        int code;
        const char *words;
    } cases[] = {
        {"{}", NULL, NULL, HELM_E_FORMAT, "messages: not a list"},
        {"[", NULL, NULL, HELM_E_FORMAT, "messages: not valid JSON"},
        {NULL, NULL, NULL, HELM_E_FORMAT, "messages: missing"},
        {"[]", "{}", NULL, HELM_E_FORMAT, "tools: not a list"},
        {"[]", NULL, "[]", HELM_E_FORMAT, "extra variables: not an object"},
        {"[]", NULL, "{\"tools\": 1}", HELM_E_FORMAT, "'tools' has a parameter of its own"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        err = (struct helm_err){0};
        const struct helm_chat_input input = {cases[i].messages, cases[i].tools, cases[i].extra, 0, 0};
        int rc = helm_chat_render_json(chat, &input, &text, &length, &err);
        if (rc != cases[i].code || !strstr(err.text, cases[i].words))
            fail_msg("case %zu: %d (%s)", i, rc, err.text);
        assert_null(text);
    }
    const struct helm_chat_message bad[] = {{"user", "fine"}, {"user", "\xff"}};
    assert_int_equal(helm_chat_render(chat, bad, 2, 0, &text, &length, &err), HELM_E_FORMAT);
    assert_string_equal(err.text, "message 1: its content is not UTF-8");
    assert_null(text);
    assert_int_equal(helm_chat_render(chat, bad, 2, 0, &text, &length, NULL), HELM_E_FORMAT);
    helm_chat_close(&chat);
}

static void test_refusal(void **state)
{
    const char *folder = *state;
    write_file(
        folder, "chat_template.jinja",
        "{% if messages[0].role != 'user' %}\n{{ raise_exception('Start with the user') }}{% endif %}ok");
    struct helm_chat *chat = open_chat(folder);
    const struct helm_chat_message messages[] = {{"assistant", "x"}};
    struct helm_err err = {0};
    char *text;
    size_t length;
    assert_int_equal(helm_chat_render(chat, messages, 1, 0, &text, &length, &err), HELM_E_MISMATCH);
    assert_string_equal(err.text, "chat template: Start with the user");
    helm_chat_close(&chat);
}

static void *render_often(void *argument)
{
    const struct helm_chat_message messages[] = {{"user", "Hello"}};
    for (int i = 0; i < 200; i++) {
        struct helm_err err = {0};
        char *text;
        size_t length;
        if (helm_chat_render(argument, messages, 1, 1, &text, &length, &err)) return argument;
        int same = strcmp(text, "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n") == 0;
        free(text);
        if (!same) return argument;
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    struct helm_chat *chat = open_chat("tools/models/demo");
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, render_often, chat), 0);
    for (int i = 0; i < 4; i++) {
        void *failed;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    helm_chat_close(&chat);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_demo),
        cmocka_unit_test_setup_teardown(test_places, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_named_templates, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_json, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_refusal, make_folder, remove_folder),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
