/* Each normalizer, pre-tokenizer and pattern by itself: what it does to text, shown as pieces with '|'
 * between. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/text/tokenizer/internal.h"

/* A tokenizer whose model does not matter; *rc gets open's result. */
static struct helm_tokenizer *open_with(const char *normalizer, const char *pretokenizer, int *rc,
                                        struct helm_err *err)
{
    char json[4096];
    struct helm_tokenizer *tokenizer = NULL;
    snprintf(json, sizeof json,
             "{\"normalizer\":%s,\"pre_tokenizer\":%s,\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},"
             "\"merges\":[]}}",
             normalizer, pretokenizer);
    *rc = helm_tokenizer_open_memory(json, strlen(json), NULL, 0, &tokenizer, err);
    return tokenizer;
}

static void check_normalizer(const char *spec, const char *text, const char *expected)
{
    struct helm_err err = {0};
    struct tok_matcher matcher = {0};
    struct tok_buffer out = {0};
    bool dropped;
    int rc;
    struct helm_tokenizer *t = open_with(spec, "null", &rc, &err);
    if (rc) fail_msg("%s: %s", spec, err.text);
    assert_int_equal(tok_normalize(t, (struct tok_slice){text, strlen(text)}, &matcher, &out, &dropped, &err),
                     0);
    if (out.length != strlen(expected) || memcmp(out.data, expected, out.length) != 0)
        fail_msg("%s of '%s': '%.*s', not '%s'", spec, text, (int)out.length, out.data, expected);
    tok_buffer_free(&out);
    tok_matcher_free(&matcher);
    helm_tokenizer_close(t);
}

static void check_pretokenizer(const char *spec, const char *text, bool first, const char *expected)
{
    struct helm_err err = {0};
    struct tok_matcher matcher = {0};
    struct tok_words words = {0};
    char joined[1024] = "";
    size_t used = 0;
    int rc;
    struct helm_tokenizer *t = open_with("null", spec, &rc, &err);
    if (rc) fail_msg("%s: %s", spec, err.text);
    rc = tok_pretokenize(t, (struct tok_slice){text, strlen(text)}, first, &matcher, &words, &err);
    if (rc) fail_msg("%s on '%s': %s", spec, text, err.text);
    for (size_t i = 0; i < words.pieces.count; i++)
        used +=
            (size_t)snprintf(joined + used, sizeof joined - used, "%s%.*s", i ? "|" : "",
                             (int)words.pieces.data[i].length, words.source + words.pieces.data[i].offset);
    if (strcmp(joined, expected) != 0) fail_msg("%s of '%s': '%s', not '%s'", spec, text, joined, expected);
    tok_words_free(&words);
    tok_matcher_free(&matcher);
    helm_tokenizer_close(t);
}

static void test_normalizers(void **state)
{
    (void)state;
    check_normalizer("{\"type\":\"NFC\"}", "e\u0301 A\u030A x", "\u00E9 \u00C5 x");
    check_normalizer("{\"type\":\"NFC\"}", "\uFB01\u212B", "\uFB01\u00C5");
    check_normalizer("{\"type\":\"NFD\"}", "\u00E9\uD55C", "e\u0301\u1112\u1161\u11AB");
    check_normalizer("{\"type\":\"NFKC\"}", "\uFB01 \uFF21\u2460 \u2026", "fi A1 ...");
    check_normalizer("{\"type\":\"NFKD\"}", "\u1EAD\u2026", "a\u0323\u0302...");
    /* marks in the wrong order are sorted, equal classes keep theirs */
    check_normalizer("{\"type\":\"NFD\"}", "a\u0301\u0323\u0300", "a\u0323\u0301\u0300");
    check_normalizer("{\"type\":\"NFC\"}", "a\u0301\u0323\u0300", "\u1EA1\u0301\u0300");
    check_normalizer("{\"type\":\"Lowercase\"}", "\u00C4B\u0130\u03A3x", "\u00E4bi\u0307\u03C3x");
    check_normalizer("{\"type\":\"StripAccents\"}", "e\u0304\u0304o\u0E33\u0E49", "eo\u0E33");
    check_normalizer("{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":false}", "\u3000 a ", "a ");
    check_normalizer("{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true}", " \n ", "");
    check_normalizer("{\"type\":\"Prepend\",\"prepend\":\"\u2581\"}", "x", "\u2581x");
    check_normalizer("{\"type\":\"Prepend\",\"prepend\":\"\u2581\"}", "", "");
    check_normalizer("{\"type\":\"Replace\",\"pattern\":{\"String\":\"''\"},\"content\":\"\\\"\"}", "''a''",
                     "\"a\"");
    check_normalizer("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"\\\\s+\"},\"content\":\" \"}",
                     "a \n\tb  c", "a b c");
    check_normalizer("{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"-\"}", "ab", "-a-b-");
    check_normalizer(
        "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKD\"},{\"type\":\"Sequence\",\"normalizers\":["
        "{\"type\":\"StripAccents\"},{\"type\":\"Lowercase\"}]}]}",
        "Me llam\u00F3 \u1EAC\u2026", "me llamo a...");
}

/* A run of marks as long as a text must not take quadratic time. */
static void test_many_marks(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct tok_matcher matcher = {0};
    struct tok_buffer out = {0};
    bool dropped;
    int rc;
    size_t pairs = 200000;
    struct helm_tokenizer *t = open_with("{\"type\":\"NFC\"}", "null", &rc, &err);
    assert_int_equal(rc, 0);
    char *text = malloc(pairs * 4);
    for (size_t i = 0; i < pairs; i++) memcpy(text + 4 * i, "\u0301\u0323", 4);
    assert_int_equal(tok_normalize(t, (struct tok_slice){text, pairs * 4}, &matcher, &out, &dropped, &err),
                     0);
    assert_int_equal(out.length, pairs * 4);
    assert_memory_equal(out.data, "\u0323\u0323", 4);
    assert_memory_equal(out.data + out.length - 4, "\u0301\u0301", 4);
    free(text);
    tok_buffer_free(&out);
    helm_tokenizer_close(t);
}

#define SPLIT(regex, behavior, invert)                                                                       \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"},\"behavior\":\"" behavior                     \
    "\",\"invert\":" invert "}"
#define SPLIT_STRING(text, behavior)                                                                         \
    "{\"type\":\"Split\",\"pattern\":{\"String\":\"" text "\"},\"behavior\":\"" behavior                     \
    "\",\"invert\":false}"

static void test_split(void **state)
{
    (void)state;
    const char *how = "How are you doing?";
    check_pretokenizer(SPLIT("\\\\w+|[^\\\\w\\\\s]+", "Removed", "true"), how, true, "How|are|you|doing|?");
    check_pretokenizer(SPLIT("\\\\w+|[^\\\\w\\\\s]+", "Isolated", "true"), how, true,
                       "How| |are| |you| |doing|?");
    check_pretokenizer(SPLIT("\\\\w+|[^\\\\w\\\\s]+", "MergedWithPrevious", "true"), how, true,
                       "How |are |you |doing|?");
    check_pretokenizer(SPLIT("\\\\w+|[^\\\\w\\\\s]+", "MergedWithNext", "true"), how, true,
                       "How| are| you| doing|?");
    check_pretokenizer(SPLIT("\\\\w+|[^\\\\w\\\\s]+", "Contiguous", "true"), how, true,
                       "How| |are| |you| |doing?");
    const char *dashes = "the-final--countdown-";
    check_pretokenizer(SPLIT_STRING("-", "Removed"), dashes, true, "the|final|countdown");
    check_pretokenizer(SPLIT_STRING("-", "Isolated"), dashes, true, "the|-|final|-|-|countdown|-");
    check_pretokenizer(SPLIT_STRING("-", "MergedWithPrevious"), dashes, true, "the-|final-|-|countdown-");
    check_pretokenizer(SPLIT_STRING("-", "MergedWithNext"), dashes, true, "the|-final|-|-countdown|-");
    check_pretokenizer(SPLIT_STRING("-", "Contiguous"), dashes, true, "the|-|final|--|countdown|-");
    check_pretokenizer(SPLIT_STRING("-", "MergedWithNext"), "--a", true, "-|-a");
    check_pretokenizer(SPLIT_STRING("-", "MergedWithPrevious"), "--a", true, "-|-|a");
    check_pretokenizer(SPLIT_STRING("", "Isolated"), "a\u00E9b", true, "a|\u00E9|b");
    check_pretokenizer(SPLIT("(?=x)", "Isolated", "false"), "axbxx", true, "a|xb|x|x");
    check_pretokenizer(SPLIT("$", "Isolated", "false"), "a\\nb", true, "a\\nb");
}

static void test_other_pretokenizers(void **state)
{
    (void)state;
    check_pretokenizer("{\"type\":\"Whitespace\"}", " Hey  man!! \u0394\u0301_2 \u24B6", true,
                       "Hey|man|!!|\u0394\u0301_2|\u24B6");
    check_pretokenizer("{\"type\":\"Whitespace\"}", "\n", true, "");
    check_pretokenizer("{\"type\":\"WhitespaceSplit\"}", "Hey,\u2003man, Good?", true, "Hey,|man,|Good?");
    check_pretokenizer("{\"type\":\"Digits\",\"individual_digits\":false}", "Hey 123 \u00BD!", true,
                       "Hey |123| |\u00BD|!");
    check_pretokenizer("{\"type\":\"Digits\",\"individual_digits\":true}", "Hey 123 f", true,
                       "Hey |1|2|3| f");
    check_pretokenizer("{\"type\":\"Punctuation\"}", "Hey!   you?!$\u3002", true,
                       "Hey|!|   you|?|!|$|\u3002");
    check_pretokenizer("{\"type\":\"Punctuation\",\"behavior\":\"Contiguous\"}", "a?!b", true, "a|?!|b");
    check_pretokenizer(
        "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"WhitespaceSplit\"},{\"type\":\"Digits\","
        "\"individual_digits\":true}]}",
        "a1 22b", true, "a|1|2|2|b");
}

#define METASPACE(scheme, split)                                                                             \
    "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"" scheme "\",\"split\":" split "}"

static void test_metaspace(void **state)
{
    (void)state;
    check_pretokenizer(METASPACE("always", "true"), "Hey   friend!", true, "_Hey|_|_|_friend!");
    check_pretokenizer(METASPACE("always", "true"), "Hey", false, "_Hey");
    check_pretokenizer(METASPACE("first", "true"), "Hey you", true, "_Hey|_you");
    check_pretokenizer(METASPACE("first", "true"), "Hey you", false, "Hey|_you");
    check_pretokenizer(METASPACE("never", "true"), "Hey you", true, "Hey|_you");
    check_pretokenizer(METASPACE("always", "false"), " Hey you", true, "_Hey_you");
    check_pretokenizer("{\"type\":\"Metaspace\",\"replacement\":\"_\",\"add_prefix_space\":false}", "a b",
                       true, "a|_b");
    check_pretokenizer("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Punctuation\"}," METASPACE(
                           "first", "true") "]}",
                       "a.b c", true, "_a|.|b|_c");
}

static void test_byte_level(void **state)
{
    (void)state;
    /* last in the list the bytes themselves go on; anywhere else the alphabet's characters do */
    check_pretokenizer("{\"type\":\"ByteLevel\",\"add_prefix_space\":false}",
                       "Hello my friend, it's  10 \n x", true, "Hello| my| friend|,| it|'s| | 10| \n| x");
    check_pretokenizer("{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":false}", "a b", true,
                       " a b");
    check_pretokenizer("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"}," SPLIT_STRING(
                           "b", "Isolated") "]}",
                       "ab \u00E9", true, "\u0120a|b|\u0120\u00C3\u00A9");
}

#define QWEN                                                                                                 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| "                        \
    "?[^\\\\s\\\\p{L}\\\\p{N}]+"                                                                             \
    "[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"

static void test_regex(void **state)
{
    (void)state;
    check_pretokenizer(SPLIT(QWEN, "Isolated", "false"), "I'VE 12\n\n  x ..\n\u00E9t\u00E9", true,
                       "I|'VE| |1|2|\n\n| | x| ..\n|\u00E9t\u00E9");
    /* U+180E is no space to Oniguruma; U+0085 and U+3000 are */
    check_pretokenizer(SPLIT("\\\\s+", "Removed", "false"),
                       "a\u180Eb\xC2\x85"
                       "c\u3000d",
                       true, "a\u180Eb|c|d");
    check_pretokenizer(SPLIT("[^\\\\S]", "Removed", "false"), "a\u180Eb c", true, "a\u180Eb|c");
    check_pretokenizer(SPLIT("\\\\h+", "Removed", "false"), "xffzAz", true, "x|z|z");
    check_pretokenizer(SPLIT("\\\\bcat\\\\b", "Isolated", "false"), "cat ca\u0301t cat\u0301s a-cat", true,
                       "cat| ca\u0301t cat\u0301s a-|cat");
    check_pretokenizer(SPLIT("a{,2}b", "Isolated", "false"), "aaab", true, "a|aab");
    check_pretokenizer(SPLIT("(?m:a.b)", "Isolated", "false"), "xa\nbx", true, "x|a\nb|x");
    check_pretokenizer(SPLIT("a.b", "Isolated", "false"), "xa\nbx", true, "xa\nbx");
    check_pretokenizer(SPLIT("^b", "Isolated", "false"), "a\nbb", true, "a\n|b|b");
    check_pretokenizer(SPLIT("\\\\p{Han}+", "Isolated", "false"), "a\u4E2D\u6587\u30FCb", true,
                       "a|\u4E2D\u6587|\u30FCb");
    check_pretokenizer(SPLIT("\\\\p{^L}|\\\\P{Letter}", "Removed", "false"), "a1b", true, "a|b");
    check_pretokenizer(SPLIT("[[:space:]]|\\\\u0062|\\\\x41|\\\\x{e9}", "Removed", "false"), "1 2b3A4\u00E95",
                       true, "1|2|3|4|5");
    check_pretokenizer(SPLIT("\\\\p{L}++\\\\p{L}|x", "Removed", "false"), "abc1", true, "abc1");
    check_pretokenizer(SPLIT("(?i)AB", "Removed", "false"), "1aB2", true, "1|2");
    check_pretokenizer(SPLIT("[]a]", "Removed", "false"), "1]2a3", true, "1|2|3");
}

static void check_refused(const char *spec, int code, const char *named)
{
    struct helm_err err = {0};
    int rc;
    struct helm_tokenizer *t = open_with("null", spec, &rc, &err);
    if (rc != code || !strstr(err.text, named))
        fail_msg("%s: %d '%s', not %d '%s'", spec, rc, err.text, code, named);
    assert_null(t);
}

static void test_refused(void **state)
{
    (void)state;
    check_refused(SPLIT("[a&&b]", "Removed", "false"), HELM_E_UNSUPPORTED, "&&");
    check_refused(SPLIT("[a[b]]", "Removed", "false"), HELM_E_UNSUPPORTED, "[b]");
    check_refused(SPLIT("(*LIMIT_MATCH=9)a", "Removed", "false"), HELM_E_UNSUPPORTED, "(*");
    check_refused(SPLIT("(?R)", "Removed", "false"), HELM_E_UNSUPPORTED, "(?R");
    check_refused(SPLIT("a(?i)b", "Removed", "false"), HELM_E_UNSUPPORTED, "(?i)");
    check_refused(SPLIT("a{1,2}+", "Removed", "false"), HELM_E_UNSUPPORTED, "{1,2}+");
    check_refused(SPLIT("\\\\p{NoSuch}", "Removed", "false"), HELM_E_UNSUPPORTED, "NoSuch");
    check_refused(SPLIT("\\\\xE4", "Removed", "false"), HELM_E_UNSUPPORTED, "\\xE4");
    check_refused(SPLIT("(a", "Removed", "false"), HELM_E_UNSUPPORTED, "parenthes");
    check_refused(SPLIT("[a", "Removed", "false"), HELM_E_FORMAT, "without ']'");
    check_refused(SPLIT("((a{1,1000}){1,1000}){1,1000}", "Removed", "false"), HELM_E_UNSUPPORTED,
                  "too large");
    check_refused(SPLIT("a", "Sideways", "false"), HELM_E_UNSUPPORTED, "Sideways");
    check_refused("{\"type\":\"BertPreTokenizer\"}", HELM_E_UNSUPPORTED, "BertPreTokenizer");
    check_refused("{\"type\":\"Metaspace\",\"replacement\":\"__\"}", HELM_E_FORMAT, "replacement");
    check_refused("{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"first\",\"add_prefix_"
                  "space\":false}",
                  HELM_E_MISMATCH, "prepend_scheme");
    check_refused("{\"type\":\"Sequence\"}", HELM_E_FORMAT, "pretokenizers");
    check_refused("[]", HELM_E_FORMAT, "pre_tokenizer");
}

/* An expression that would take exponential time ends in an error. */
static void test_catastrophe(void **state)
{
    (void)state;
    struct helm_err err = {0};
    uint32_t *ids;
    size_t count;
    int rc;
    char text[4096];
    struct helm_tokenizer *t =
        open_with("null", SPLIT("(?:a|b|ab)*c\\\\1?|((x+)*y)", "Isolated", "false"), &rc, &err);
    if (rc) fail_msg("%s", err.text);
    for (size_t i = 0; i < sizeof text; i++) text[i] = i % 2 ? 'b' : 'a';
    rc = helm_tokenizer_encode(t, text, sizeof text, 0, &ids, &count, &err);
    assert_int_equal(rc, HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "regular expression"));
    helm_tokenizer_close(t);
}

/* Time is earned by the call's whole text, even if the first piece of it is short; a match's steps by what it
 * is matched against. */
static void test_budget(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct tok_pattern pattern;
    static const struct {
        size_t whole;
        uint64_t seconds;
    } cases[] = {{0, 10}, {3, 10}, {30u << 20, 72}};
    assert_int_equal(tok_pattern_open(&pattern, "b+", 2, true, &err), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static const char *const subjects[] = {"abc", "abbbc", "b"};
        struct tok_matcher matcher = {.text_length = cases[i].whole};
        for (size_t k = 0; k < 3; k++) {
            struct tok_search search = {.subject = {subjects[k], strlen(subjects[k])}};
            struct timespec now;
            if (k == 0) clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
            assert_int_equal(tok_pattern_next(&pattern, &matcher, &search, &err), 0);
            assert_true(search.found);
            assert_int_equal(matcher.subject_length, strlen(subjects[k]));
            assert_int_equal(matcher.budget_ns / 1000000000u, cases[i].seconds);
            if (k == 0)
                assert_true(matcher.deadline_ns >=
                            (uint64_t)now.tv_sec * 1000000000u + cases[i].seconds * 1000000000u);
        }
        tok_matcher_free(&matcher);
    }
    tok_pattern_free(&pattern);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_normalizers), cmocka_unit_test(test_many_marks),
        cmocka_unit_test(test_split),       cmocka_unit_test(test_other_pretokenizers),
        cmocka_unit_test(test_metaspace),   cmocka_unit_test(test_byte_level),
        cmocka_unit_test(test_regex),       cmocka_unit_test(test_refused),
        cmocka_unit_test(test_catastrophe), cmocka_unit_test(test_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
