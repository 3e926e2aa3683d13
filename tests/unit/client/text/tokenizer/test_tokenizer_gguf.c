/* Tokenizers of GGUF files: small made vocabularies, both models, every kind, and files that lie. Whole
 * vocabularies are in test_tokenizer_vocab.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "client/text/chat.h"
#include "client/text/tokenizer/gguf_kinds.h"
#include "client/text/tokenizer/internal.h"
#include "tests/unit/client/text/tokenizer/build_vocab.h"

#define COUNT(list) (sizeof(list) / sizeof *(list))

static const char *const bpe_tokens[] = {"a",
                                         "b",
                                         "c",
                                         "ab",
                                         "abc",
                                         "\xC4\xA0",
                                         "\xC4\xA0"
                                         "a",
                                         "1",
                                         "<|end|>",
                                         "<user x>",
                                         "",
                                         "\xC3\x83",
                                         "\xC2\xA9"};
static const int bpe_types[] = {1, 1, 1, 1, 1, 1, 1, 1, 3, 4, 5, 1, 1};
static const char *const bpe_merges[] = {"a b", "ab c", "\xC4\xA0 a"};
/* U+2581 is E2 96 81 */
#define SP "\xE2\x96\x81"
static const char *const spm_tokens[] = {"<unk>", "<s>", "</s>", "<0x41>", "<0xC3>", "<0xA9>", SP,
                                         "a",     "b",   SP "a", "ab",     SP "ab",  "aa"};
static const int spm_types[] = {2, 3, 3, 6, 6, 6, 1, 1, 1, 1, 1, 1, 1};
static const float spm_scores[] = {0, 0, 0, 0, 0, 0, -10, -11, -12, -2, -1, -3, -4};

/* Keys that a test leaves out or puts in another's place: their names, and the file goes on after them. */
static void bpe_file(struct vocab_file *f, const char *pre, const char *without)
{
    vocab_start(f);
    put_text(f, "tokenizer.ggml.model", "gpt2");
    if (pre) put_text(f, "tokenizer.ggml.pre", pre);
    if (!strstr(without, "tokens")) put_texts(f, "tokenizer.ggml.tokens", bpe_tokens, COUNT(bpe_tokens));
    if (!strstr(without, "type")) put_i32s(f, "tokenizer.ggml.token_type", bpe_types, COUNT(bpe_types));
    if (!strstr(without, "merges")) put_texts(f, "tokenizer.ggml.merges", bpe_merges, COUNT(bpe_merges));
    if (!strstr(without, "eos")) put_u32(f, "tokenizer.ggml.eos_token_id", 8);
}

static void spm_file_as(struct vocab_file *f, const char *model, const char *without)
{
    vocab_start(f);
    put_text(f, "tokenizer.ggml.model", model);
    put_texts(f, "tokenizer.ggml.tokens", spm_tokens, COUNT(spm_tokens));
    put_i32s(f, "tokenizer.ggml.token_type", spm_types, COUNT(spm_types));
    if (!strstr(without, "scores")) put_f32s(f, "tokenizer.ggml.scores", spm_scores, COUNT(spm_scores));
    put_u32(f, "tokenizer.ggml.bos_token_id", 1);
    put_u32(f, "tokenizer.ggml.eos_token_id", 2);
    put_u32(f, "tokenizer.ggml.unknown_token_id", 0);
}

static void spm_file(struct vocab_file *f, const char *without)
{
    spm_file_as(f, "llama", without);
}

/* Ends the file, frees it. */
static int open_file(struct vocab_file *f, struct helm_tokenizer **t, struct helm_err *err)
{
    const struct gguf_source source = {"test", f->bytes, f->length, f->length, true};
    struct gguf header;
    bool more;
    *t = NULL;
    vocab_end(f);
    int rc = gguf_parse(&source, &header, &more, err);
    if (!rc) rc = tok_open_gguf(&header, t, err);
    gguf_free(&header);
    free(f->bytes);
    return rc;
}

static struct helm_tokenizer *opened(struct vocab_file *f)
{
    struct helm_err err = {0};
    struct helm_tokenizer *t;
    if (open_file(f, &t, &err)) fail_msg("%s", err.text);
    return t;
}

static void refused(struct vocab_file *f, int code, const char *words)
{
    struct helm_err err = {0};
    struct helm_tokenizer *t;
    int rc = open_file(f, &t, &err);
    if (rc != code || !strstr(err.text, words))
        fail_msg("%d '%s', not %d with '%s'", rc, err.text, code, words);
    assert_null(t);
}

/* `ids`: with blanks between. Text that has its ids comes back from them. */
static void check(const struct helm_tokenizer *t, unsigned flags, const char *text, const char *ids,
                  const char *back)
{
    struct helm_err err = {0};
    uint32_t *got;
    size_t count, length;
    char line[256] = "", *decoded;
    if (helm_tokenizer_encode(t, text, strlen(text), flags, &got, &count, &err)) fail_msg("%s", err.text);
    for (size_t i = 0; i < count; i++)
        snprintf(line + strlen(line), sizeof line - strlen(line), "%s%u", i ? " " : "", got[i]);
    assert_string_equal(line, ids);
    if (helm_tokenizer_decode(t, got, count, HELM_TOKENIZER_DECODE_SKIP_SPECIAL, &decoded, &length, &err))
        fail_msg("%s", err.text);
    assert_string_equal(decoded, back);
    free(decoded);
    free(got);
}

static void test_byte_level(void **state)
{
    (void)state;
    struct vocab_file f;
    bpe_file(&f, "gpt-2", "");
    put_u32(&f, "tokenizer.ggml.bos_token_id", 8);
    put_bool(&f, "tokenizer.ggml.add_eos_token", true);
    struct helm_tokenizer *t = opened(&f);
    check(t, 0, "abc ab1", "4 5 3 7", "abc ab1");
    check(t, 0, " a\xC3\xA9", "6 11 12", " a\xC3\xA9");
    check(t, HELM_TOKENIZER_ENCODE_PARSE_ADDED, "a<|end|>b<user x>", "0 8 1 9", "ab<user x>");
    check(t, 0, "<|end|>", "", ""); /* its bytes have no tokens here */
    check(t, HELM_TOKENIZER_ENCODE_ADD_SPECIAL, "b", "1 8", "b");
    assert_true(helm_tokenizer_is_special(t, 8));
    assert_false(helm_tokenizer_is_special(t, 9));
    assert_false(helm_tokenizer_add_bos(t));
    assert_true(helm_tokenizer_add_eos(t));
    assert_int_equal(helm_tokenizer_vocab_size(t), COUNT(bpe_tokens));
    assert_null(helm_tokenizer_id_to_token(t, 10, NULL)); /* a row without a text */
    assert_string_equal(helm_tokenizer_role_token(t, "eos_token"), "<|end|>");
    assert_int_equal(helm_tokenizer_role_id(t, "bos_token"), 8);
    helm_tokenizer_close(t);
}

static void test_scores(void **state)
{
    (void)state;
    struct vocab_file f;
    spm_file(&f, "");
    struct helm_tokenizer *t = opened(&f);
    /* "ab" (-1) before " a" (-2): the pair with the best result first */
    check(t, 0, "ab", "11", "ab");
    check(t, 0, "aab", "9 10", "aab");
    check(t, 0, "aaa", "9 12", "aaa");
    check(t, 0, "a a", "9 9", "a a");
    check(t, 0, " a", "6 9", " a"); /* the space before the text is put there whatever follows */
    check(t, 0, "A\xC3\xA9", "6 3 4 5", "A\xC3\xA9");
    check(t, 0, "z", "6 0", "");
    check(t, HELM_TOKENIZER_ENCODE_ADD_SPECIAL | HELM_TOKENIZER_ENCODE_PARSE_ADDED, "a</s>a", "1 9 2 9",
          "a a");
    assert_true(helm_tokenizer_add_bos(t));
    helm_tokenizer_close(t);
    spm_file(&f, "");
    put_bool(&f, "tokenizer.ggml.add_space_prefix", false);
    put_bool(&f, "tokenizer.ggml.add_bos_token", false);
    t = opened(&f);
    check(t, HELM_TOKENIZER_ENCODE_ADD_SPECIAL, "ab a", "10 9", "ab a");
    check(t, 0, " a", "9", " a");
    helm_tokenizer_close(t);
}

/* Equal scores: the leftmost pair first. Text never becomes a control token or a byte's, whatever their
 * scores. */
/* Model `gemma4`: tokens as SentencePiece has them, merges in the file, no space in front unless it says
 * so. */
static void test_merged(void **state)
{
    (void)state;
    static const char *const merges[] = {"a b", SP " a"};
    struct vocab_file f;
    spm_file_as(&f, "gemma4", "scores");
    put_texts(&f, "tokenizer.ggml.merges", merges, COUNT(merges));
    struct helm_tokenizer *t = opened(&f);
    check(t, HELM_TOKENIZER_ENCODE_ADD_SPECIAL, "ab aA\xC3\xA9", "1 10 9 3 4 5", "ab aA\xC3\xA9");
    check(t, 0, " ab", "6 10", " ab");
    helm_tokenizer_close(t);
    spm_file_as(&f, "gemma4", "scores");
    refused(&f, HELM_E_NOT_FOUND, "'tokenizer.ggml.merges' is missing");
}

static void test_ties_and_forgeries(void **state)
{
    (void)state;
    static const char *const tokens[] = {"a",  "aa",  "aaa", "<",    "s",     ">",
                                         "<s", "<s>", "<0",  "x41>", "<0x41>"};
    static const int types[] = {1, 1, 1, 1, 1, 1, 1, 3, 1, 1, 6};
    static const float scores[] = {0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 9};
    struct vocab_file f;
    vocab_start(&f);
    put_text(&f, "tokenizer.ggml.model", "llama");
    put_texts(&f, "tokenizer.ggml.tokens", tokens, COUNT(tokens));
    put_i32s(&f, "tokenizer.ggml.token_type", types, COUNT(types));
    put_f32s(&f, "tokenizer.ggml.scores", scores, COUNT(scores));
    put_bool(&f, "tokenizer.ggml.add_space_prefix", false);
    struct helm_tokenizer *t = opened(&f);
    check(t, 0, "aaaaa", "2 1", "aaaaa");
    check(t, 0, "<s>", "6 5", "<s>");
    check(t, HELM_TOKENIZER_ENCODE_PARSE_ADDED, "<s>", "7", "");
    helm_tokenizer_close(t);
}

/* How each kind cuts: byte-level tokens of one byte and merges of everything, so that ids say where words
 * end. */
static void test_kinds(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text, *words;
    } cases[] = {
        {"gpt-2", "it's 1234  x\n\ny", "it|'s| 1234| | x|\n|\n|y"},
        {"llama-bpe", "It'S 12345  x\n\ny!?\n", "It|'S| |123|45| | x|\n\n|y|!?\n"},
        {"qwen2", "it's 12 (x)\n", "it|'s| |1|2| (|x|)\n"},
        {"qwen35", "it's 12 (x)\n", "it|'s| |1|2| (|x|)\n"},
        {"gpt-4o", "helloWorld's HTTPServer 1234/", "hello|World's| HTTPServer| |123|4|/"},
        {"tekken", "helloWorld's 12", "hello|World|'s| |1|2"},
        {"deepseek-llm", "ab 12!?\nc", "ab| |1|2|!?|\n|c"},
        {"deepseek-v3", "ab 1234!x \xE4\xB8\x80\xE4\xB8\x80y", "ab| |123|4|!x| |\xE4\xB8\x80\xE4\xB8\x80|y"},
        {"glm4", "it's 12345", "it|'s| |123|45"},
        {"seed-coder", "it's 12 (x).\n\ny", "it|'s| |1|2| (|x|).|\n\n|y"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct tok_gguf_kind *kind = tok_gguf_kind_named(cases[i].name);
        assert_non_null(kind);
        struct vocab_file f;
        bpe_file(&f, cases[i].name, "");
        struct helm_tokenizer *t = opened(&f);
        struct tok_matcher matcher = {0};
        struct tok_words words = {0};
        struct helm_err err = {0};
        char got[256] = "";
        const struct tok_slice text = {cases[i].text, strlen(cases[i].text)};
        if (tok_pretokenize(t, text, true, &matcher, &words, &err)) fail_msg("%s", err.text);
        for (size_t k = 0; k < words.pieces.count; k++)
            snprintf(got + strlen(got), sizeof got - strlen(got), "%s%.*s", k ? "|" : "",
                     (int)words.pieces.data[k].length, words.source + words.pieces.data[k].offset);
        if (strcmp(got, cases[i].words)) fail_msg("%s: '%s', not '%s'", cases[i].name, got, cases[i].words);
        tok_words_free(&words);
        tok_matcher_free(&matcher);
        helm_tokenizer_close(t);
    }
    assert_null(tok_gguf_kind(COUNT(cases))); /* no kind is left out */
    assert_null(tok_gguf_kind_named("falcon"));
    static const char *const aliases[][2] = {
        {"llama3", "llama-bpe"}, {"llama-v3", "llama-bpe"}, {"deepseek-r1-qwen", "qwen2"},
        {"llama4", "gpt-4o"},    {"chatglm-bpe", "glm4"},   {"phi-2", "gpt-2"},
        {"dbrx", "glm4"},        {"smaug-bpe", "glm4"},     {"minimax-m2", "gpt-4o"}};
    for (size_t i = 0; i < COUNT(aliases); i++)
        assert_ptr_equal(tok_gguf_kind_named(aliases[i][0]), tok_gguf_kind_named(aliases[i][1]));
}

static void test_refusals(void **state)
{
    (void)state;
    struct vocab_file f;
    bpe_file(&f, "falcon", "");
    refused(&f, HELM_E_UNSUPPORTED,
            "'falcon' is not supported (supported: gpt-2, llama-bpe, qwen2, qwen35, gpt-4o, tekken, "
            "deepseek-llm, deepseek-v3, glm4, seed-coder)");
    bpe_file(&f, NULL, "");
    refused(&f, HELM_E_NOT_FOUND, "tokenizer.ggml.pre");
    vocab_start(&f);
    put_text(&f, "tokenizer.ggml.model", "bert");
    refused(&f, HELM_E_UNSUPPORTED, "'bert' is not supported (supported: gpt2, llama, gemma4)");
    vocab_start(&f);
    put_text(&f, "tokenizer.ggml.model", "no_vocab");
    refused(&f, HELM_E_NOT_FOUND, "has no tokenizer");
    vocab_start(&f);
    refused(&f, HELM_E_NOT_FOUND, "tokenizer.ggml.model");
    bpe_file(&f, "gpt-2", "tokens");
    refused(&f, HELM_E_NOT_FOUND, "tokenizer.ggml.tokens");
    bpe_file(&f, "gpt-2", "merges");
    refused(&f, HELM_E_NOT_FOUND, "tokenizer.ggml.merges");
    spm_file(&f, "scores");
    refused(&f, HELM_E_NOT_FOUND, "tokenizer.ggml.scores");
}

static void test_hostile_tokens(void **state)
{
    (void)state;
    struct vocab_file f;
    static char long_text[1100];
    const char *const blank[] = {"", ""}, *const twice[] = {"a", "b", "a"}, *const broken[] = {"a", "\xC3"},
                      *const endless[] = {long_text};
    memset(long_text, 'a', sizeof long_text - 1);
    bpe_file(&f, "gpt-2", "tokens type merges eos");
    put_texts(&f, "tokenizer.ggml.merges", bpe_merges, 0);
    const struct vocab_file start = f;
    const struct {
        const char *const *texts;
        size_t count;
        int code;
        const char *words;
    } cases[] = {{twice, 3, HELM_E_FORMAT, "'a' has two ids, 0 and 2"},
                 {broken, 2, HELM_E_FORMAT, "token 1 is not UTF-8"},
                 {endless, 1, HELM_E_LIMIT, "token 0 has 1099 bytes"},
                 {blank, 2, HELM_E_FORMAT, "no token has a text"},
                 {twice, 0, HELM_E_LIMIT, "0 tokens"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        f = start;
        f.bytes = malloc(VOCAB_BYTES);
        memcpy(f.bytes, start.bytes, start.length);
        put_texts(&f, "tokenizer.ggml.tokens", cases[i].texts, cases[i].count);
        refused(&f, cases[i].code, cases[i].words);
    }
    f = start;
    put_list(&f, "tokenizer.ggml.tokens", GGUF_STRING, UINT64_C(1) << 32);
    put_string(&f, "a");
    refused(&f, HELM_E_FORMAT, "tokenizer.ggml.tokens");
    bpe_file(&f, "gpt-2", "tokens");
    put_list(&f, "tokenizer.ggml.tokens", GGUF_U32, 1);
    put(&f, 1, 4);
    refused(&f, HELM_E_FORMAT, "an array of u32, not an array of strings");
    bpe_file(&f, "gpt-2", "type");
    put_i32s(&f, "tokenizer.ggml.token_type", bpe_types, 3);
    refused(&f, HELM_E_MISMATCH, "has 3 elements, but there are 13 tokens");
    bpe_file(&f, "gpt-2", "type");
    const int wrong[COUNT(bpe_tokens)] = {1, 7};
    put_i32s(&f, "tokenizer.ggml.token_type", wrong, COUNT(wrong));
    refused(&f, HELM_E_FORMAT, "token 1 has type 7");
}

static void test_hostile_merges(void **state)
{
    (void)state;
    static const struct {
        const char *merge, *words;
    } cases[] = {{"a x", "token 'x', which is not"},   {"b a", "token 'ba', which is not"},
                 {"ab", "two parts with one space"},   {"", "two parts with one space"},
                 {"a b ", "two parts with one space"}, {" ", "merge 0"}};
    struct vocab_file f;
    for (size_t i = 0; i < COUNT(cases); i++) {
        bpe_file(&f, "gpt-2", "merges");
        put_texts(&f, "tokenizer.ggml.merges", &cases[i].merge, 1);
        refused(&f, HELM_E_FORMAT, cases[i].words);
    }
    spm_file(&f, "scores");
    put_f32s(&f, "tokenizer.ggml.scores", spm_scores, COUNT(spm_scores) - 1);
    refused(&f, HELM_E_MISMATCH, "has 12 elements, but there are 13 tokens");
    for (size_t i = 0; i < 2; i++) {
        float scores[COUNT(spm_scores)] = {0};
        scores[7] = i ? NAN : INFINITY;
        spm_file(&f, "scores");
        put_f32s(&f, "tokenizer.ggml.scores", scores, COUNT(scores));
        refused(&f, HELM_E_FORMAT, "token 7 has the score");
    }
}

static void test_hostile_roles(void **state)
{
    (void)state;
    struct vocab_file f;
    const uint32_t ids[] = {13, UINT32_MAX};
    for (size_t i = 0; i < COUNT(ids); i++) {
        bpe_file(&f, "gpt-2", "eos");
        put_u32(&f, "tokenizer.ggml.eos_token_id", ids[i]);
        refused(&f, HELM_E_LIMIT, "'tokenizer.ggml.eos_token_id'");
    }
    static const char *const unused[] = {"bos", "eot", "eom", "unknown", "padding", "seperator", "mask"};
    for (size_t i = 0; i < COUNT(unused); i++) { /* unneeded keys refuse no file */
        char key[64];
        snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", unused[i]);
        bpe_file(&f, "gpt-2", "");
        put_u32(&f, key, ids[i % COUNT(ids)]);
        struct helm_tokenizer *t = opened(&f);
        assert_null(helm_tokenizer_role_token(t, "bos_token"));
        assert_null(helm_tokenizer_role_token(t, "pad_token"));
        assert_non_null(helm_tokenizer_role_token(t, "eos_token"));
        helm_tokenizer_close(t);
    }
    bpe_file(&f, "gpt-2", "eos");
    put_u32(&f, "tokenizer.ggml.eos_token_id", 10); /* the token without a text */
    refused(&f, HELM_E_FORMAT, "token 10 is not");
    bpe_file(&f, "gpt-2", "");
    put_bool(&f, "tokenizer.ggml.add_bos_token", true);
    refused(&f, HELM_E_FORMAT, "names no bos_token");
    bpe_file(&f, "gpt-2", "");
    put_u32(&f, "tokenizer.ggml.add_bos_token", 1);
    refused(&f, HELM_E_FORMAT, "is not a bool");
}

static void test_templates(void **state)
{
    (void)state;
    struct vocab_file f;
    bpe_file(&f, "gpt-2", "");
    put_text(&f, "tokenizer.chat_template", "{{ eos_token }}");
    put_text(&f, "tokenizer.chat_template.tool_use", "tools");
    put_text(&f, "tokenizer.chat_templates", "neither");
    struct helm_tokenizer *t = opened(&f);
    assert_string_equal(helm_tokenizer_chat_template(t, NULL), "{{ eos_token }}");
    assert_string_equal(helm_tokenizer_chat_template(t, "tool_use"), "tools");
    assert_null(helm_tokenizer_chat_template(t, "s"));
    helm_tokenizer_close(t);
    bpe_file(&f, "gpt-2", "");
    put_text(&f, "tokenizer.chat_template", "\xFF");
    refused(&f, HELM_E_FORMAT, "not a UTF-8 text");
    bpe_file(&f, "gpt-2", "");
    put_key(&f, "tokenizer.chat_template", GGUF_STRING);
    put(&f, 20u << 20, 8);
    memset(f.bytes + f.length, ' ', 20u << 20);
    f.length += 20u << 20;
    refused(&f, HELM_E_LIMIT, "a string of 20971520 bytes");
}

static void write_file(const char *path, struct vocab_file *f)
{
    FILE *file = fopen(path, "wb");
    vocab_end(f);
    assert_non_null(file);
    assert_int_equal(fwrite(f->bytes, 1, f->length, file), f->length);
    assert_int_equal(fclose(file), 0);
    free(f->bytes);
}

/* A file, a folder with one, the first of several; a tokenizer.json beside it wins in a folder. */
static void test_paths(void **state)
{
    (void)state;
    char folder[] = "/tmp/helm-gguf-XXXXXX", path[64], json[64];
    struct helm_err err = {0};
    struct helm_tokenizer *t;
    struct helm_chat *chat;
    struct vocab_file f;
    const struct helm_chat_message message = {"user", "abc"};
    char *text;
    size_t length;
    assert_non_null(mkdtemp(folder));
    bpe_file(&f, "gpt-2", "");
    put_text(&f, "tokenizer.chat_template",
             "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}");
    snprintf(path, sizeof path, "%s/x-00001-of-00002.gguf", folder);
    snprintf(json, sizeof json, "%s/tokenizer.json", folder);
    assert_int_not_equal(helm_tokenizer_open(folder, &t, &err), 0);
    assert_int_equal(err.code, HELM_E_NOT_FOUND);
    assert_int_equal(helm_chat_open(folder, &chat, &err), HELM_E_NOT_FOUND);
    write_file(path, &f);
    const char *const paths[] = {folder, path};
    for (size_t i = 0; i < COUNT(paths); i++) {
        if (helm_tokenizer_open(paths[i], &t, &err)) fail_msg("%s", err.text);
        check(t, 0, "abc", "4", "abc");
        helm_tokenizer_close(t);
        if (helm_chat_open(paths[i], &chat, &err)) fail_msg("%s", err.text);
        if (helm_chat_render(chat, &message, 1, 0, &text, &length, &err)) fail_msg("%s", err.text);
        assert_string_equal(text, "abc<|end|>");
        free(text);
        helm_chat_close(&chat);
    }
    FILE *file = fopen(json, "w");
    fputs("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":7},\"merges\":[]}}", file);
    fclose(file);
    if (helm_tokenizer_open(folder, &t, &err)) fail_msg("%s", err.text);
    check(t, 0, "a", "7", "a");
    helm_tokenizer_close(t);
    if (helm_tokenizer_open(path, &t, &err)) fail_msg("%s", err.text);
    check(t, 0, "a", "0", "a");
    helm_tokenizer_close(t);
    unlink(json);
    unlink(path);
    rmdir(folder);
    assert_int_equal(helm_tokenizer_open(path, &t, &err), HELM_E_NOT_FOUND);
    assert_int_equal(helm_chat_open(path, &chat, &err), HELM_E_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_byte_level),     cmocka_unit_test(test_scores),
        cmocka_unit_test(test_merged),         cmocka_unit_test(test_ties_and_forgeries),
        cmocka_unit_test(test_kinds),          cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_hostile_tokens), cmocka_unit_test(test_hostile_merges),
        cmocka_unit_test(test_hostile_roles),  cmocka_unit_test(test_templates),
        cmocka_unit_test(test_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
