/* The tokenizer through its public interface: added tokens, templates, files, lookups, hostile and
 * unsupported input.
 *
 * The small tokenizers of tests/data/tokenizers cover every component that has no test of its own. */
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

#include "client/text/tokenizer/tokenizer.h"
#include "common/base/file.h"

#define PARSE HELM_TOKENIZER_ENCODE_PARSE_ADDED
#define ADD   HELM_TOKENIZER_ENCODE_ADD_SPECIAL

static struct helm_tokenizer *open_json(const char *json)
{
    struct helm_err err = {0};
    struct helm_tokenizer *tokenizer;
    if (helm_tokenizer_open_memory(json, strlen(json), NULL, 0, &tokenizer, &err)) fail_msg("%s", err.text);
    return tokenizer;
}

static struct helm_tokenizer *open_data(const char *name)
{
    struct helm_err err = {0};
    char path[128], *text;
    size_t length;
    snprintf(path, sizeof path, "tests/data/tokenizers/%s.json", name);
    if (file_read(path, 1u << 24, &text, &length, &err)) fail_msg("%s", err.text);
    struct helm_tokenizer *tokenizer = open_json(text);
    free(text);
    return tokenizer;
}

/* The tokens' spellings with '|' between. */
static void check_bytes(const struct helm_tokenizer *t, unsigned flags, const char *text, size_t length,
                        const char *expected)
{
    struct helm_err err = {0};
    uint32_t *ids;
    size_t count, used = 0;
    char joined[1024] = "";
    if (helm_tokenizer_encode(t, text, length, flags, &ids, &count, &err)) fail_msg("%s", err.text);
    for (size_t i = 0; i < count; i++) {
        const char *token = helm_tokenizer_id_to_token(t, ids[i], NULL);
        used += (size_t)snprintf(joined + used, sizeof joined - used, "%s%s", i ? "|" : "",
                                 token ? token : "(none)");
    }
    free(ids);
    if (strcmp(joined, expected) != 0) fail_msg("'%s': '%s', not '%s'", text, joined, expected);
}

static void check(const struct helm_tokenizer *t, unsigned flags, const char *text, const char *expected)
{
    check_bytes(t, flags, text, strlen(text), expected);
}

static void test_byte_level(void **state)
{
    (void)state;
    struct helm_tokenizer *t = open_data("bytelevel");
    check(t, PARSE, "", "");
    check(t, PARSE, "hello world", "hello|Ġworld");
    check(t, PARSE, "hello  world\n\n", "hello|Ġ|Ġworld|ĊĊ");
    check(t, PARSE, "caf\u00E9 cafe\u0301", "c|a|f|Ã©|Ġ|c|a|f|Ã©");
    check(t, PARSE, "\U0001F601\U0001F602", "ðŁĺ|ģ|ðŁĺ|Ĥ");
    check_bytes(t, PARSE, "a\0b", 3, "a|Ā|b");
    check(t, PARSE, "<|bos|>hello<|end|>", "<|bos|>|hello|<|end|>");
    check(t, 0, "<|bos|>", "<|||b|o|s|||>");
    check(t, ADD, "hello", "<|bos|>|hello");
    check(t, ADD, "", "<|bos|>");
    check(t, PARSE | ADD, "<think>", "<|bos|>|<think>");
    check(t, PARSE, "hello \n<pad>  hello", "hello|<pad>|hello"); /* lstrip and rstrip */
    check(t, PARSE, "<pad> <pad>", "<pad>|<pad>");
    helm_tokenizer_close(t);
}

static void test_invalid_utf8(void **state)
{
    (void)state;
    struct helm_tokenizer *t = open_data("bytelevel");
    /* U+FFFD is EF BF BD; one for each longest prefix of a character and for each other stray byte */
    static const struct {
        const char *bad, *good;
    } cases[] = {
        {"\xFF", "\uFFFD"},
        {"a\xE4\xB8z", "a\uFFFDz"},
        {"\xF0\x9F\x98", "\uFFFD"},
        {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
        {"\xC0\x80", "\uFFFD\uFFFD"},
        {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
        {"\xE0\x80\xC3\xA9", "\uFFFD\uFFFD\u00E9"},
        {"\xC3\xC3\xA9", "\uFFFD\u00E9"},
    };
    struct helm_err err = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t *a, *b;
        size_t na, nb;
        assert_int_equal(helm_tokenizer_encode(t, cases[i].bad, strlen(cases[i].bad), 0, &a, &na, &err), 0);
        assert_int_equal(helm_tokenizer_encode(t, cases[i].good, strlen(cases[i].good), 0, &b, &nb, &err), 0);
        assert_int_equal(na, nb);
        assert_memory_equal(a, b, na * sizeof *a);
        free(a);
        free(b);
    }
    helm_tokenizer_close(t);
}

static void test_sentencepiece(void **state)
{
    (void)state;
    struct helm_tokenizer *t = open_data("sentencepiece");
    check(t, PARSE, "hello world", "▁hello|▁world");
    check(t, PARSE, " hello", "▁▁|hello");
    check(t, PARSE, "a\u00E9\u6211b", "▁|a|é|<0xE6>|<0x88>|<0x91>|b");
    check(t, PARSE, "</s>hello", "</s>|▁hello");
    check(t, PARSE, "hello</s> world", "▁hello|</s>|▁▁|w|or|ld");
    check(t, ADD, "a", "<s>|▁|a");
    check(t, 0, "<s>", "▁|<0x3C>|<0x73>|<0x3E>");
    helm_tokenizer_close(t);
}

static void test_metaspace(void **state)
{
    (void)state;
    struct helm_tokenizer *t = open_data("metaspace");
    check(t, PARSE, "He a\u0301", "▁he|▁a");
    check(t, PARSE, "h\u00E9 z", "▁he|▁|<unk>");
    check(t, PARSE, "he  [MASK] he",
          "▁he|[MASK]|▁he"); /* lstrip takes the left side only; no prefix after it */
    check(t, PARSE, "[MASK]he", "[MASK]|he");
    check(t, PARSE, "A\u0301B", "ab");               /* found in the normalized text */
    check(t, PARSE, "ABe ab-", "▁a|b|e|▁|ab|<unk>"); /* single_word refuses the first */
    helm_tokenizer_close(t);
}

static void test_words(void **state)
{
    (void)state;
    struct helm_tokenizer *t = open_data("words");
    check(t, PARSE, "  The \u00C0nd, 12xxx!\n", "the|and|,|1|2|x|!");
    check(t, PARSE, "a\u00DF\u00DFb", "a|[UNK]|b");
    check(t, PARSE, " \n ", "");
    helm_tokenizer_close(t);
}

static const char added_base[] = "{\"normalizer\":{\"type\":\"Lowercase\"},\"added_tokens\":[%s],\"model\":{"
                                 "\"unk_token\":\"_\",\"fuse_unk\":true,"
                                 "\"vocab\":{\"_\":0},\"merges\":[]}}";

/* The cases that Hugging Face tests its own matcher with. */
static void test_added_tokens(void **state)
{
    (void)state;
    char json[2048];
    snprintf(json, sizeof json, added_base,
             "{\"id\":1,\"content\":\"my\",\"lstrip\":true,\"rstrip\":true,\"normalized\":true},"
             "{\"id\":2,\"content\":\"name\",\"normalized\":true},"
             "{\"id\":3,\"content\":\"ony\",\"single_word\":true,\"normalized\":true},"
             "{\"id\":4,\"content\":\"[CLS]\",\"special\":true},{\"id\":5,\"content\":\"[SEP]\",\"special\":"
             "true}");
    struct helm_tokenizer *t = open_json(json);
    check(t, PARSE, "[CLS] My name is Anthony [SEP]", "[CLS]|my|name|_|[SEP]");
    check(t, PARSE, "[cls]xony", "_");
    check(t, PARSE, "x ONY", "_|ony");
    helm_tokenizer_close(t);
    snprintf(json, sizeof json, added_base, "{\"id\":1,\"content\":\"<mask>\",\"single_word\":true}");
    t = open_json(json);
    check(t, PARSE, "<mask> My name <mask> A<mask> <mask>ony <mask>", "<mask>|_|<mask>|_|<mask>");
    check(t, PARSE, "<mask>, <mask>- \u25CC\u0330<mask>", "<mask>|_|<mask>|_");
    helm_tokenizer_close(t);
    snprintf(json, sizeof json, added_base,
             "{\"id\":1,\"content\":\"<mask>\",\"single_word\":true,\"lstrip\":true,\"rstrip\":true}");
    t = open_json(json);
    check(t, PARSE, "Hi <mask> there\t<mask>\t<mask>\u2000", "_|<mask>|_|<mask>|<mask>");
    helm_tokenizer_close(t);
    /* leftmost, then longest */
    snprintf(json, sizeof json, added_base,
             "{\"id\":1,\"content\":\"ab\"},{\"id\":2,\"content\":\"abcd\"},"
             "{\"id\":3,\"content\":\"bc\"},{\"id\":1,\"content\":\"ab\"},{\"id\":9,\"content\":\"\"}");
    t = open_json(json);
    check(t, PARSE, "abcababcd", "ab|_|ab|abcd");
    check(t, PARSE, "xbcab", "_|bc|ab");
    assert_int_equal(helm_tokenizer_vocab_size(t), 10);
    assert_null(helm_tokenizer_id_to_token(t, 9, NULL));
    helm_tokenizer_close(t);
}

/* Enough of them for the table to grow; each begins as others do, and one is the beginning of ten. */
static void test_many_added_tokens(void **state)
{
    (void)state;
    const uint32_t count = 5000;
    const size_t space = 64 * count;
    char *json = malloc(space), name[32];
    assert_non_null(json);
    size_t used = (size_t)snprintf(json, space, "{\"model\":{\"vocab\":{},\"merges\":[]},\"added_tokens\":[");
    for (uint32_t i = 0; i < count; i++)
        used += (size_t)snprintf(json + used, space - used, "%s{\"id\":%u,\"content\":\"<t%u\"}",
                                 i ? "," : "", i, i);
    snprintf(json + used, space - used, "]}");
    struct helm_tokenizer *t = open_json(json);
    free(json);
    for (uint32_t i = 0; i < count; i++) {
        int length = snprintf(name, sizeof name, "<t%u", i);
        assert_int_equal(helm_tokenizer_token_to_id(t, name, (size_t)length), i);
        assert_int_equal(helm_tokenizer_token_to_id(t, name, 2), HELM_TOKENIZER_NO_ID);
    }
    assert_int_equal(helm_tokenizer_token_to_id(t, "<t5000", 6), HELM_TOKENIZER_NO_ID);
    assert_int_equal(helm_tokenizer_token_to_id(t, "", 0), HELM_TOKENIZER_NO_ID);
    check(t, PARSE, "<t7<t77<t4999<t0", "<t7|<t77|<t4999|<t0");
    helm_tokenizer_close(t);
}

static void test_lookups(void **state)
{
    (void)state;
    struct helm_tokenizer *t = open_data("bytelevel");
    size_t length;
    assert_int_equal(helm_tokenizer_token_to_id(t, "a", 1), 97);
    uint32_t bos = helm_tokenizer_token_to_id(t, "<|bos|>", 7);
    assert_int_equal(bos, helm_tokenizer_vocab_size(t) - 4);
    assert_true(helm_tokenizer_is_special(t, bos));
    assert_false(helm_tokenizer_is_special(t, bos + 2));
    assert_false(helm_tokenizer_is_special(t, HELM_TOKENIZER_NO_ID));
    assert_string_equal(helm_tokenizer_id_to_token(t, bos, &length), "<|bos|>");
    assert_int_equal(length, 7);
    assert_null(helm_tokenizer_id_to_token(t, HELM_TOKENIZER_NO_ID, &length));
    assert_int_equal(helm_tokenizer_token_to_id(t, "<|bos|", 6), HELM_TOKENIZER_NO_ID);
    assert_int_equal(helm_tokenizer_token_to_id(t, "", 0), HELM_TOKENIZER_NO_ID);
    assert_null(helm_tokenizer_role_token(t, "bos_token"));
    assert_null(helm_tokenizer_chat_template(t, NULL));
    uint32_t *ids;
    size_t count;
    struct helm_err err = {0};
    assert_int_equal(helm_tokenizer_encode(t, "a", 1, 4, &ids, &count, &err), HELM_E_USAGE);
    assert_null(ids);
    helm_tokenizer_close(t);
    helm_tokenizer_close(NULL);
    helm_detokenizer_close(NULL);
}

static void write_file(const char *folder, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    fclose(f);
}

static const char small[] =
    "{\"added_tokens\":[{\"id\":3,\"content\":\"<s>\",\"special\":true},{\"id\":4,\"content\":"
    "\"</s>\",\"special\":true}],\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}}";

static void test_folder(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct helm_tokenizer *t;
    char folder[] = "/tmp/helm-tokenizer-XXXXXX", path[256];
    assert_non_null(mkdtemp(folder));
    assert_int_equal(helm_tokenizer_open(folder, &t, &err), HELM_E_NOT_FOUND);
    assert_null(t);
    write_file(folder, "tokenizer.json", small);
    assert_int_equal(helm_tokenizer_open(folder, &t, &err), 0); /* the other files are optional */
    assert_null(helm_tokenizer_role_token(t, "eos_token"));
    helm_tokenizer_close(t);
    write_file(
        folder, "tokenizer_config.json",
        "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"</s>\",\"lstrip\":false},\"pad_token\":null,"
        "\"add_bos_token\":true,\"chat_template\":[{\"name\":\"default\",\"template\":\"A\"},{\"name\":"
        "\"tool_use\","
        "\"template\":\"B\"}]}");
    assert_int_equal(helm_tokenizer_open(folder, &t, &err), 0);
    assert_string_equal(helm_tokenizer_role_token(t, "bos_token"), "<s>");
    assert_string_equal(helm_tokenizer_role_token(t, "eos_token"), "</s>");
    assert_int_equal(helm_tokenizer_role_id(t, "eos_token"), 4);
    assert_int_equal(helm_tokenizer_role_id(t, "pad_token"), HELM_TOKENIZER_NO_ID);
    assert_true(helm_tokenizer_add_bos(t));
    assert_false(helm_tokenizer_add_eos(t));
    assert_string_equal(helm_tokenizer_chat_template(t, NULL), "A");
    assert_string_equal(helm_tokenizer_chat_template(t, "tool_use"), "B");
    assert_null(helm_tokenizer_chat_template(t, "rag"));
    helm_tokenizer_close(t);
    write_file(folder, "chat_template.jinja", "{{ C }}");
    assert_int_equal(helm_tokenizer_open(folder, &t, &err), 0);
    assert_string_equal(helm_tokenizer_chat_template(t, "default"), "{{ C }}");
    helm_tokenizer_close(t);
    write_file(folder, "chat_template.jinja", "\xFF");
    assert_int_equal(helm_tokenizer_open(folder, &t, &err), HELM_E_FORMAT);
    assert_null(t);
    write_file(folder, "chat_template.jinja", "");
    static const char *const bad[] = {"{\"chat_template\":3}",
                                      "{\"bos_token\":[]}",
                                      "[]",
                                      "{\"add_bos_token\":\"yes\"}",
                                      "{\"chat_template\":[{\"name\":\"x\"}]}",
                                      "{"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_file(folder, "tokenizer_config.json", bad[i]);
        assert_int_equal(helm_tokenizer_open(folder, &t, &err), HELM_E_FORMAT);
        assert_non_null(strstr(err.text, "tokenizer_config.json"));
    }
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"};
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

#define MODEL(vocab, merges) "{\"model\":{\"vocab\":" vocab ",\"merges\":" merges "}}"
#define WITH(part)           "{" part ",\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[]}}"

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        int code;
        const char *named;
    } cases[] = {
        {"", HELM_E_FORMAT, "JSON"},
        {"[]", HELM_E_FORMAT, "not an object"},
        {"{}", HELM_E_FORMAT, "model"},
        {"{\"model\":{}}", HELM_E_FORMAT, "vocab"},
        {"{\"model\":{\"vocab\":{}}}", HELM_E_FORMAT, "merges"},
        {"{\"model\":{\"vocab\":[],\"merges\":[]}}", HELM_E_FORMAT, "vocab"},
        {MODEL("{\"a\":0,\"a\":1}", "[]"), HELM_E_FORMAT, "'a' has two ids"},
        {MODEL("{\"a\":0,\"b\":0}", "[]"), HELM_E_FORMAT, "id 0 is both 'a' and 'b'"},
        {MODEL("{\"a\":16777216}", "[]"), HELM_E_LIMIT, "16777216"},
        {MODEL("{\"a\":99999999999999999999999}", "[]"), HELM_E_LIMIT, "not below"},
        {MODEL("{\"a\":-1}", "[]"), HELM_E_FORMAT, "an id"},
        {MODEL("{\"a\":1.5}", "[]"), HELM_E_FORMAT, "'}'"},
        {MODEL("{\"a\":01}", "[]"), HELM_E_FORMAT, "an id"},
        {MODEL("{\"a\" 1}", "[]"), HELM_E_FORMAT, "':'"},
        {MODEL("{\"a\\q\":1}", "[]"), HELM_E_FORMAT, "escape"},
        {MODEL("{\"a\\ud800\":1}", "[]"), HELM_E_FORMAT, "surrogate"},
        {MODEL("{\"a\\udc00\":1}", "[]"), HELM_E_FORMAT, "surrogate"},
        {MODEL("{\"\xFF\":1}", "[]"), HELM_E_FORMAT, "UTF-8"},
        {MODEL("{\"a\":0,\"b\":1}", "[\"a b\"]"), HELM_E_FORMAT, "'ab'"},
        {MODEL("{\"a\":0,\"ax\":1}", "[[\"a\",\"x\"]]"), HELM_E_FORMAT, "'x'"},
        {MODEL("{\"a\":0}", "[\"aa\"]"), HELM_E_FORMAT, "one space"},
        {MODEL("{\"a\":0}", "[\"a a a\"]"), HELM_E_FORMAT, "one space"},
        {MODEL("{\"a\":0}", "[[\"a\"]]"), HELM_E_FORMAT, "','"},
        {MODEL("{\"a\":0}", "[1]"), HELM_E_FORMAT, "a string"},
        {MODEL("{\"a\":0}", "[]") "x", HELM_E_FORMAT, "JSON"},
        {"{\"model\":{\"vocab\":{},\"vocab\":{},\"merges\":[]}}", HELM_E_FORMAT, "duplicate"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", HELM_E_UNSUPPORTED, "Unigram"},
        {"{\"model\":{\"dropout\":0.1,\"vocab\":{},\"merges\":[]}}", HELM_E_UNSUPPORTED, "dropout"},
        {"{\"model\":{\"end_of_word_suffix\":\"</w>\",\"vocab\":{},\"merges\":[]}}", HELM_E_UNSUPPORTED,
         "</w>"},
        {WITH("\"normalizer\":{\"type\":\"Precompiled\"}"), HELM_E_UNSUPPORTED, "normalizer: Precompiled"},
        {WITH("\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(a)\"},\"content\":\"$1\"}"),
         HELM_E_UNSUPPORTED, "'$'"},
        {WITH("\"normalizer\":{\"type\":\"Replace\",\"pattern\":{},\"content\":\"\"}"), HELM_E_FORMAT,
         "pattern"},
        {WITH("\"decoder\":{\"type\":\"WordPiece\"}"), HELM_E_UNSUPPORTED, "decoder: WordPiece"},
        {WITH("\"post_processor\":{\"type\":\"BertProcessing\"}"), HELM_E_UNSUPPORTED, "BertProcessing"},
        {WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"B\"}}]"
              "}"),
         HELM_E_FORMAT, "'B'"},
        {WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":"
              "\"x\"}}]}"),
         HELM_E_FORMAT, "'x'"},
        {WITH("\"added_tokens\":{}"), HELM_E_FORMAT, "added_tokens"},
        {WITH("\"added_tokens\":[{\"id\":1}]"), HELM_E_FORMAT, "content"},
        {WITH("\"added_tokens\":[{\"content\":\"x\"}]"), HELM_E_FORMAT, "'id'"},
        {WITH("\"added_tokens\":[{\"id\":16777216,\"content\":\"x\"}]"), HELM_E_LIMIT, "id"},
        {WITH("\"added_tokens\":[{\"id\":1,\"content\":\"a\"}]"), HELM_E_MISMATCH, "'a' is 1 here and 0"},
        {WITH("\"added_tokens\":[{\"id\":1,\"content\":\"x\"}]"), HELM_E_MISMATCH, "also 'b'"},
        {WITH("\"added_tokens\":[{\"id\":5,\"content\":\"x\"},{\"id\":6,\"content\":\"x\"}]"),
         HELM_E_MISMATCH, "two ids"},
        {WITH("\"normalizer\":{\"type\":\"StripAccents\"},\"added_tokens\":[{\"id\":5,\"content\":\"\u0301\"}"
              "]"),
         HELM_E_UNSUPPORTED, "nothing once normalized"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct helm_err err = {0};
        struct helm_tokenizer *t;
        int rc = helm_tokenizer_open_memory(cases[i].json, strlen(cases[i].json), NULL, 0, &t, &err);
        if (rc != cases[i].code || !strstr(err.text, cases[i].named))
            fail_msg("%s: %d '%s', not %d '%s'", cases[i].json, rc, err.text, cases[i].code, cases[i].named);
        assert_null(t);
    }
}

static void test_limits(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct helm_tokenizer *t;
    size_t length = (64u << 20) + 1;
    char *text = calloc(length, 1);
    assert_int_equal(helm_tokenizer_open_memory(text, length, NULL, 0, &t, &err), HELM_E_LIMIT);
    free(text);
    char json[8192];
    size_t used =
        (size_t)snprintf(json, sizeof json, "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[");
    for (int i = 0; i < 65; i++)
        used +=
            (size_t)snprintf(json + used, sizeof json - used, "%s{\"type\":\"Whitespace\"}", i ? "," : "");
    snprintf(json + used, sizeof json - used, "]},\"model\":{\"vocab\":{},\"merges\":[]}}");
    assert_int_equal(helm_tokenizer_open_memory(json, strlen(json), NULL, 0, &t, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "more than 64 steps"));
    /* a normalizer that makes text grow without bound is stopped */
    char big[512], *spaces = malloc(1u << 20);
    char content[201];
    memset(content, 'a', 200);
    content[200] = '\0';
    snprintf(big, sizeof big,
             "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" "
             "\"},\"content\":\"%s\"},\"model\":{\"vocab\":{},"
             "\"merges\":[]}}",
             content);
    t = open_json(big);
    memset(spaces, ' ', 1u << 20);
    uint32_t *ids;
    size_t count;
    assert_int_equal(helm_tokenizer_encode(t, spaces, 1u << 20, 0, &ids, &count, &err), HELM_E_LIMIT);
    free(spaces);
    helm_tokenizer_close(t);
}

/* Ids may have holes; a file in which all tokens are escaped reads like any other. */
static void test_odd_but_valid(void **state)
{
    (void)state;
    struct helm_tokenizer *t =
        open_json(" {\"model\" : { \"merges\":[ \"a b\" ] , \"vocab\":{\"\\u0061\":7 ,\"b\": 1000000,"
                  "\"a\\u0062\":3,\"\\ud83d\\ude00\\n\\\"\":4}} }");
    check(t, 0, "abb", "ab|b");
    assert_int_equal(helm_tokenizer_vocab_size(t), 1000001);
    assert_null(helm_tokenizer_id_to_token(t, 5, NULL));
    assert_string_equal(helm_tokenizer_id_to_token(t, 4, NULL), "\U0001F600\n\"");
    helm_tokenizer_close(t);
    t = open_json(MODEL("{}", "[]"));
    check(t, 0, "abc", "");
    helm_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_byte_level),    cmocka_unit_test(test_invalid_utf8),
        cmocka_unit_test(test_sentencepiece), cmocka_unit_test(test_metaspace),
        cmocka_unit_test(test_words),         cmocka_unit_test(test_added_tokens),
        cmocka_unit_test(test_lookups),       cmocka_unit_test(test_folder),
        cmocka_unit_test(test_refused),       cmocka_unit_test(test_limits),
        cmocka_unit_test(test_odd_but_valid), cmocka_unit_test(test_many_added_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
