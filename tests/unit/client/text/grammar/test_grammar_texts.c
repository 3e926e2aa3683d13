/* Regular expressions and GBNF: texts that fit and texts that do not; random expressions against PCRE2; what
 * is refused. */
#include "matching.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

static void test_regex(void **state)
{
    (void)state;
    static const struct fit_case cases[] = {
        {"abc", {"abc"}, {"", "ab", "abcd", "xabc"}},
        {"^abc$", {"abc"}, {"^abc$", "ab"}},
        {"a|bc|", {"a", "bc", ""}, {"b", "abc"}},
        {"(ab)*c", {"c", "abc", "ababc"}, {"ac", "ab", "aabc"}},
        {"a{2,4}", {"aa", "aaa", "aaaa"}, {"a", "aaaaa"}},
        {"a{3}", {"aaa"}, {"aa", "aaaa"}},
        {"a{2,}b", {"aab", "aaaaaab"}, {"ab"}},
        {"(a?){3}b", {"b", "ab", "aaab"}, {"aaaab"}},
        {"[a-cx]+", {"abcx"}, {"", "d"}},
        {"[^a-c]",
         {"d", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\n"},
         {"a", "\xc3", "\xed\xa0\x80", "\xff"}},
        {".", {"a", "\xc3\xa9"}, {"\n", "", "ab"}},
        {"\\d{3}-\\w+\\s?", {"123-a_B", "000-x "}, {"12-a", "123-"}},
        {"\\D\\W\\S", {"a-b"}, {"1-b", "aab"}},
        {"[\\d.]+", {"1.2"}, {"a"}},
        {"\\x41\\u00e9\\t\\.\\\\", {"A\xc3\xa9\t.\\"}, {"A"}},
        {"[\\u4e00-\\u9fff]{2}", {"\xe4\xb8\xad\xe6\x96\x87"}, {"\xe4\xb8\xad", "ab"}},
        {"(?:a|(?<name>b))+?", {"ab"}, {"c"}},
        {"[]a]", {"]", "a"}, {"b"}},
        {"[a-]", {"-", "a"}, {"b"}},
        {"a{2}{1}", {NULL}, {NULL}},
    };
    check_cases(HELM_GRAMMAR_REGEX, cases, sizeof cases / sizeof *cases - 1);
}

static void test_regex_refusals(void **state)
{
    (void)state;
    static const struct refusal_case cases[] = {
        {"a(b", HELM_E_FORMAT, "does not end"},
        {"a)b", HELM_E_FORMAT, "closes nothing"},
        {"[a", HELM_E_FORMAT, "does not end"},
        {"*a", HELM_E_FORMAT, "repeats nothing"},
        {"a**", HELM_E_FORMAT, "repeats a repetition"},
        {"a{2}{1}", HELM_E_FORMAT, "repeats a repetition"},
        {"a{3,2}", HELM_E_FORMAT, "less as its most"},
        {"a{99999999}", HELM_E_LIMIT, "65536"},
        {"(a{60000}){60000}", HELM_E_LIMIT, "states"},
        {"(?=a)b", HELM_E_UNSUPPORTED, "look-around"},
        {"(?<=a)b", HELM_E_UNSUPPORTED, "look-around"},
        {"(?i)b", HELM_E_UNSUPPORTED, "flags"},
        {"(a)\\1", HELM_E_UNSUPPORTED, "'\\1'"},
        {"\\bword", HELM_E_UNSUPPORTED, "'\\b'"},
        {"\\p{L}", HELM_E_UNSUPPORTED, "'\\p'"},
        {"a++", HELM_E_UNSUPPORTED, "possessive"},
        {"a^b", HELM_E_UNSUPPORTED, "ends of the expression"},
        {"[[:alpha:]]", HELM_E_UNSUPPORTED, "[:alpha:]"},
        {"[b-a]", HELM_E_FORMAT, "backwards"},
        {"\xff", HELM_E_FORMAT, "UTF-8"},
        {"[^\\s\\S]", HELM_E_FORMAT, "nothing fits"},
        {"\\xg0", HELM_E_FORMAT, "hexadecimal"},
    };
    check_refusals(HELM_GRAMMAR_REGEX, cases, sizeof cases / sizeof *cases);
}

/* ---- against PCRE2 ---- */

static uint64_t seed = 7;
static uint32_t draw(uint32_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % below);
}

static void make_regex(char *to, size_t room, int depth)
{
    static const char *const atoms[] = {"a",   "b",        "c",
                                        ".",   "[ab]",     "[^a]",
                                        "\\w", "\xc3\xa9", "[\xc3\xa0-\xc3\xbf]"};
    static const char *const repeats[] = {"*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?"};
    const uint32_t parts = 1 + draw(3);
    size_t used = 0;
    to[0] = 0;
    for (uint32_t i = 0; i < parts && used + 64 < room; i++) {
        char inner[512];
        if (i && draw(4) == 0) used += (size_t)snprintf(to + used, room - used, "|");
        if (depth > 0 && draw(3) == 0) {
            make_regex(inner, sizeof inner, depth - 1);
            used += (size_t)snprintf(to + used, room - used, "(%s)", inner);
        } else {
            used += (size_t)snprintf(to + used, room - used, "%s", atoms[draw(sizeof atoms / sizeof *atoms)]);
        }
        if (used < room && draw(3) == 0)
            used += (size_t)snprintf(to + used, room - used, "%s",
                                     repeats[draw(sizeof repeats / sizeof *repeats)]);
    }
}

static void test_regex_against_pcre2(void **state)
{
    (void)state;
    static const char *const chars[] = {"a", "b", "c", "\xc3\xa9", "-", "\n"};
    struct helm_vocabulary *v = open_bytes(NULL);
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    unsigned fitted = 0, begun = 0;
    for (int round = 0; round < 400; round++) {
        char text[600] = "", regex[512], bound[540];
        int number;
        PCRE2_SIZE where;
        make_regex(regex, sizeof regex, 2);
        struct helm_grammar *g = open_grammar(v, HELM_GRAMMAR_REGEX, regex);
        snprintf(bound, sizeof bound, "(?:%s)\\z", regex);
        pcre2_code *code =
            pcre2_compile((PCRE2_SPTR)bound, PCRE2_ZERO_TERMINATED,
                          PCRE2_UTF | PCRE2_ANCHORED | PCRE2_NO_START_OPTIMIZE, &number, &where, NULL);
        assert_non_null(code);
        for (int k = 0; k < 40; k++) {
            size_t length = 0;
            for (uint32_t n = 1 + draw(6); n > 0; n--) /* PCRE2 sees no beginning in an empty text */
                length += (size_t)sprintf(text + length, "%s", chars[draw(sizeof chars / sizeof *chars)]);
            const int whole = pcre2_match(code, (PCRE2_SPTR)text, length, 0, 0, data, NULL);
            const int part = pcre2_match(code, (PCRE2_SPTR)text, length, 0, PCRE2_PARTIAL_HARD, data, NULL);
            const enum fit expected = whole >= 0                                 ? FITS
                                      : part == PCRE2_ERROR_PARTIAL || part >= 0 ? FITS_BEGINS
                                                                                 : FITS_NOT;
            const enum fit got = fit(g, text, length);
            if (got != expected) fail_msg("%s on '%s': %d, PCRE2 says %d", regex, text, got, expected);
            fitted += got == FITS;
            begun += got == FITS_BEGINS;
        }
        pcre2_code_free(code);
        helm_grammar_close(g);
    }
    assert_true(fitted > 1000 && begun > 500); /* it is not all refusals */
    pcre2_match_data_free(data);
    helm_vocabulary_close(v);
}

/* ---- GBNF ---- */

static void test_gbnf(void **state)
{
    (void)state;
    static const struct fit_case cases[] = {
        {"root ::= \"abc\"", {"abc"}, {"ab", "abcd"}},
        {"root ::= item (\",\" item)* # a list\nitem ::= [0-9]+\n", {"1", "12,3"}, {"", "1,", ",1"}},
        {"# first\n\nroot ::= a | b |\n  c\na ::= \"x\"\nb ::= \"y\"\nc ::= \"z\"", {"x", "y", "z"}, {"xy"}},
        {"root ::= (\n \"a\"\n | \"b\"\n)+", {"ab", "a"}, {""}},
        {"root ::= \"\\x41\\u00e9\\U0001F600\\n\\\"\\\\\"", {"A\xc3\xa9\xf0\x9f\x98\x80\n\"\\"}, {"A"}},
        {"root ::= [^\"\\\\\\x7F\\x00-\\x1F]{2,3}", {"ab", "abc"}, {"a", "a\"", "abcd"}},
        {"root ::= [a\\]\\-]+", {"a]-"}, {"\\"}},
        {"root ::= . .", {"a\n", "\xc3\xa9x"}, {"a"}},
        {"root ::= \"a\"{3} \"b\"{,2} \"c\"{1,}", {"aaac", "aaabbcc"}, {"aac", "aaabbbc", "aaabb"}},
        {"root ::= expr\nexpr ::= term ((\"+\" | \"-\") term)*\nterm ::= \"(\" expr \")\" | [0-9]",
         {"1", "1+2-3", "((1)+2)", "(1-(2+3))"},
         {"1+", "(1", "1)", "()", "+1"}},
        {"root ::= \"(\" root \")\" | \"\"", {"", "()", "(((())))"}, {"(", "())"}},
        {"root ::= \"a\" root \"b\" | \"ab\"", {"ab", "aabb"}, {"aab", "abb"}},
        {"root ::= ws value ws\nws ::= [ \\t\\n]*\nvalue ::= \"x\" | \"[\" ws (value (ws \",\" ws value)*)? "
         "ws \"]\"",
         {"x", " [ x , [ ] ]\n", "[[],x]"},
         {"[x", "[,]", "[x,]"}},
        {"root ::= a a\na ::= \"x\"?", {"", "x", "xx"}, {"xxx"}},
        {"root ::=\n  \"late\"", {"late"}, {""}},
        {"root ::= \"\"", {""}, {"x"}},
        {"root ::= some_name\nsome_name ::= \"1\"", {"1"}, {"2"}},
        {"root ::= never | \"x\"\nnever ::= \"y\" never", {"x"}, {"y"}},
    };
    check_cases(HELM_GRAMMAR_GBNF, cases, sizeof cases / sizeof *cases);
}

static void test_gbnf_refusals(void **state)
{
    (void)state;
    static const struct refusal_case cases[] = {
        {"", HELM_E_FORMAT, "no rule 'root'"},
        {"start ::= \"a\"", HELM_E_FORMAT, "no rule 'root'"},
        {"root ::= other", HELM_E_FORMAT, "'other' is not defined"},
        {"root ::= \"a\"\n\nroot ::= \"b\"", HELM_E_FORMAT, "line 3: the rule 'root' is defined twice"},
        {"root = \"a\"", HELM_E_FORMAT, "'::=' is missing"},
        {"root ::= \"a", HELM_E_FORMAT, "does not end"},
        {"root ::= [a", HELM_E_FORMAT, "does not end"},
        {"root ::= (\"a\"", HELM_E_FORMAT, "does not end"},
        {"root ::= \"a\" )", HELM_E_FORMAT, "closes nothing"},
        {"root ::= \"\\q\"", HELM_E_UNSUPPORTED, "'\\q'"},
        {"root ::= <think>", HELM_E_UNSUPPORTED, "tokens by name"},
        {"root ::= root \"a\" | \"b\"", HELM_E_UNSUPPORTED, "left recursion"},
        {"root ::= a\na ::= e b\nb ::= a \"x\" | \"y\"\ne ::= \"z\"?", HELM_E_UNSUPPORTED, "left recursion"},
        {"root ::= \"a\" root", HELM_E_FORMAT, "nothing fits"},
        {"root ::= \"a\"{2", HELM_E_FORMAT, "repetition"},
        {"root ::= \"a\"{9999999}", HELM_E_LIMIT, "65536"},
        {"root ::= \"\\uD800\"", HELM_E_FORMAT, "no character"},
        {"root ::= \"a\" %", HELM_E_FORMAT, "'%'"},
    };
    check_refusals(HELM_GRAMMAR_GBNF, cases, sizeof cases / sizeof *cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_regex),
        cmocka_unit_test(test_regex_refusals),
        cmocka_unit_test(test_regex_against_pcre2),
        cmocka_unit_test(test_gbnf),
        cmocka_unit_test(test_gbnf_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
