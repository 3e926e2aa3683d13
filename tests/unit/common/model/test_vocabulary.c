/* Unit tests of common/model/vocabulary.c: which models mean the same tokens by the same ids. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/model/gguf_write.h"
#include "common/model/vocabulary.h"

static char base[] = "/tmp/helm-vocabulary-XXXXXX";

static int open_folder(void **state)
{
    (void)state;
    return mkdtemp(base) == NULL;
}
static int close_folder(void **state)
{
    (void)state;
    return rmdir(base); /* fails where something was left */
}

struct made {
    char folder[64], path[80];
    struct model model;
};

/* A folder with this tokenizer.json; NULL: it has none. */
static void make_folder(struct made *made, const char *name, const char *tokenizer, uint32_t vocab)
{
    snprintf(made->folder, sizeof made->folder, "%s/%s", base, name);
    snprintf(made->path, sizeof made->path, "%s/tokenizer.json", made->folder);
    assert_int_equal(mkdir(made->folder, 0700), 0);
    if (tokenizer) {
        FILE *file = fopen(made->path, "w");
        assert_non_null(file);
        fputs(tokenizer, file);
        assert_int_equal(fclose(file), 0);
    }
    made->model = (struct model){.folder = made->folder, .path = made->folder, .config = {.vocab = vocab}};
}

/* A GGUF file with these tokens, up to NULL. */
static void make_gguf(struct made *made, const char *name, const char *const *tokens)
{
    struct gguf_values values = {0};
    struct gguf_output output;
    struct helm_err err = {0};
    uint64_t count = 0;
    snprintf(made->folder, sizeof made->folder, "%s/%s", base, name);
    snprintf(made->path, sizeof made->path, "%s/model.gguf", made->folder);
    assert_int_equal(mkdir(made->folder, 0700), 0);
    while (tokens[count]) count++;
    if (count) gguf_put_array(&values, "tokenizer.ggml.tokens", GGUF_STRING, count);
    for (uint64_t i = 0; i < count; i++) gguf_put_string_element(&values, tokens[i], strlen(tokens[i]));
    if (gguf_output_open(made->path, &values, NULL, 0, &output, &err) || gguf_output_finish(&output, &err))
        fail_msg("%s", err.text);
    gguf_values_free(&values);
    made->model = (struct model){.folder = made->folder,
                                 .path = made->path,
                                 .config = {.gguf = true, .vocab = (uint32_t)count}};
}

static void remove_made(const struct made *made)
{
    unlink(made->path);
    assert_int_equal(rmdir(made->folder), 0);
}

/* NULL: they are the same; else words of the error. */
static void compare(struct made *a, struct made *b, const char *words, bool sizes)
{
    struct helm_err err = {0};
    bool sizes_alone;
    const int rc = vocabulary_compare(&a->model, &b->model, &sizes_alone, &err);
    assert_int_equal(rc, words ? HELM_E_MISMATCH : 0);
    if (words && !strstr(err.text, words)) fail_msg("'%s' does not say '%s'", err.text, words);
    assert_int_equal(sizes_alone, sizes);
    remove_made(a);
    remove_made(b);
}

#define TOKENIZER(vocab, added) "{\"model\": {\"vocab\": " vocab "}, \"added_tokens\": [" added "]}"
#define ABC                     "{\"a\": 0, \"b\": 1, \"c\": 2}"
#define END                     "{\"id\": 3, \"content\": \"<end>\"}"

static void folders_are_compared_text_by_text(void **state)
{
    (void)state;
    static const struct {
        const char *other, *words;
    } cases[] = {{TOKENIZER(ABC, END), NULL},
                 {TOKENIZER("{\"c\": 2, \"b\": 1, \"a\": 0}", END), NULL},
                 {TOKENIZER("[[\"a\", 0.0], [\"b\", -1.5], [\"c\", -2]]", END), NULL},
                 {TOKENIZER("{\"a\": 0, \"c\": 2}", END), NULL}, /* no text cannot differ */
                 {TOKENIZER("{\"a\": 0, \"c\": 1, \"b\": 2}", END), "token 1 is 'b' in"},
                 {TOKENIZER("{\"a\": 0, \"b\": 1, \"cc\": 2}", END), "token 2 is 'c' in"},
                 {TOKENIZER(ABC, "{\"id\": 3, \"content\": \"<stop>\"}"), "token 3 is '<end>' in"},
                 {TOKENIZER(ABC, ""), "has 4 tokens"},
                 {TOKENIZER(ABC, END ", {\"id\": 4, \"content\": \"x\"}"), "has 5"},
                 {"{}", "no tokenizer to compare"},
                 {NULL, "no tokenizer to compare"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct made a, b;
        make_folder(&a, "a", TOKENIZER(ABC, END), 4);
        make_folder(&b, "b", cases[i].other, 9); /* rows beyond the texts do not count */
        compare(&a, &b, cases[i].words, false);
    }
}

static void files_and_folders_are_compared(void **state)
{
    (void)state;
    static const struct {
        const char *const tokens[8], *words;
    } cases[] = {{{"a", "b", "c", "<end>", NULL}, NULL},
                 {{"a", "b", "c", "<end>", "[PAD4]", "[PAD5]", NULL}, NULL},
                 {{"a", "b", "c", "<end>", "[PAD5]", NULL}, "has 5"},
                 {{"a", "b", "x", "<end>", NULL}, "token 2 is 'c' in"},
                 {{NULL}, "no tokenizer to compare"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct made a, b;
        make_folder(&a, "a", TOKENIZER(ABC, END), 4);
        make_gguf(&b, "b", cases[i].tokens);
        compare(&a, &b, cases[i].words, false);
    }
}

static void models_without_texts_are_compared_by_size(void **state)
{
    (void)state;
    for (uint32_t more = 0; more < 2; more++) {
        struct made a, b;
        make_folder(&a, "a", NULL, 100);
        make_folder(&b, "b", NULL, 100 + more);
        compare(&a, &b, more ? "has 100 tokens" : NULL, true);
    }
}

static void what_is_no_tokenizer_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {"{\"model\": {\"vocab\": {\"a\": -1}}}",
                                        "{\"model\": {\"vocab\": {\"a\": \"b\"}}}",
                                        "{\"model\": {\"vocab\": [1]}}",
                                        "{\"added_tokens\": [{\"id\": 1}]}",
                                        "{\"model\": {\"vocab\": {\"a\": 99999999999}}}",
                                        "{"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct made a, b;
        struct helm_err err = {0};
        bool sizes_alone;
        make_folder(&a, "a", TOKENIZER(ABC, END), 4);
        make_folder(&b, "b", texts[i], 4);
        const int rc = vocabulary_compare(&a.model, &b.model, &sizes_alone, &err);
        assert_true(rc == HELM_E_FORMAT || rc == HELM_E_LIMIT);
        remove_made(&a);
        remove_made(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folders_are_compared_text_by_text),
        cmocka_unit_test(files_and_folders_are_compared),
        cmocka_unit_test(models_without_texts_are_compared_by_size),
        cmocka_unit_test(what_is_no_tokenizer_is_refused),
    };
    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
