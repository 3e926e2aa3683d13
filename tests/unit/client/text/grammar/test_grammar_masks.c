/* Masks: the same tokens as trying each of them byte by byte allows, for random grammars and for those with
 * long repetitions and deep nesting; special tokens, ends, and what a matcher refuses. */
#include "matching.h"

static uint64_t seed = 11;
static uint32_t draw(uint32_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % below);
}

static const char *const pieces[] = {
    "ab", "abc", "ba", "aab", "bb", "ca", "cab", "(a", "a)", "((", "))", "()", "a,", ",a", "a,b", "\"a", "\"",
    "\",\"", "\":", "\xc3\xa9", "a\xc3",
    "\xa9"
    "b",
    "\": \"", "{\"", "\"}", "}}", "[[", "]]", "],", "1,", "12", "123", "  ", " a", "a b c", "aaaaaaaa",
    "bbbbbbbbbbbb", "abababab", "\n  ", "true", "tru", "ue,",
    /* of each class, and with more after: slices.h */
    "AB", "aBc", "a_1", "a1\"", "ab\"", "ab\",", "a b\"}", "a-b", "a-b\n", "ab\\n", "ab\\", "\\\"a", "\x7f",
    "\xc3\xa9\"", "a\xc3\xa9\xe4\xb8\xad", "\xe4\xb8\xad\xe6\x96\x87\",", "b\xe4\xb8", "\xed\xa0\x80",
    "\xf0\x9f\x98\x80", "ab\xf0\x9f\x98\x80)", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb", "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\"",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"", NULL};

/* By opening a matcher of its own for each token and giving it bytes alone. */
static bool allows(struct helm_grammar *g, const uint32_t *tokens, uint32_t count, uint32_t token)
{
    const struct helm_vocabulary *v = g->vocabulary;
    struct helm_matcher *m;
    struct helm_err err = {0};
    bool good = true;
    assert_int_equal(helm_matcher_open(g, &m, &err), 0);
    for (uint32_t i = 0; i <= count && good; i++) {
        const uint32_t id = i < count ? tokens[i] : token;
        if (id == BYTES_END) {
            good = helm_matcher_may_end(m);
            continue;
        }
        for (uint32_t at = v->offset[id]; at < v->offset[id + 1] && good; at++)
            good = helm_matcher_take(m, v->bytes[at], &err) == 0;
    }
    helm_matcher_close(m);
    return good;
}

/* Goes on by tokens at random, and compares the mask at each step. `few`: of the other tokens every seventh
 * is tried. */
static void check_masks(struct helm_grammar *g, uint32_t steps, bool few)
{
    const struct helm_vocabulary *v = g->vocabulary;
    struct helm_matcher *m;
    struct helm_err err = {0};
    uint32_t *bits = calloc(v->words, 4), *slow = calloc(v->words, 4), tokens[512], count = 0;
    assert_int_equal(helm_matcher_open(g, &m, &err), 0);
    while (count < steps && !helm_matcher_has_ended(m)) {
        uint32_t allowed = 0, pick = 0;
        if (helm_matcher_mask(m, bits, &err)) fail_msg("%s", err.text);
        memset(slow, 0, v->words * 4);
        assert_int_equal(mask_fill_slowly(m, slow, &err), 0);
        if (helm_matcher_may_end(m)) slow[BYTES_END / 32] |= 1u << BYTES_END % 32;
        assert_memory_equal(bits, slow, v->words * 4);
        for (uint32_t id = 0; id < v->vocab; id++) {
            const bool bit = bits[id / 32] >> id % 32 & 1;
            if (!few || (id + count) % 7 == 0) assert_int_equal(bit, allows(g, tokens, count, id));
            if (bit && draw(++allowed) == 0) pick = id;
        }
        assert_true(allowed > 0);
        assert_int_equal(helm_matcher_take(m, pick, &err), 0);
        tokens[count++] = pick;
    }
    free(bits);
    free(slow);
    helm_matcher_close(m);
}

/* Rules r0 to r5, each of which begins with a character, so none calls itself at once. */
static void make_grammar(char *to, size_t room)
{
    static const char *const atoms[] = {"\"a\"",  "\"b\"",        "[a-c]", "[^a-c()]",
                                        "\"ab\"", "\"\xc3\xa9\"", "[()]",  "\",\""};
    static const char *const repeats[] = {"", "", "*", "?", "+", "{2,3}"};
    size_t used = (size_t)snprintf(to, room, "root ::= r0\n");
    for (int r = 0; r < 6; r++) {
        used += (size_t)snprintf(to + used, room - used, "r%d ::= ", r);
        const uint32_t alternatives = 1 + draw(3);
        for (uint32_t a = 0; a <= alternatives; a++) {
            used += (size_t)snprintf(to + used, room - used, "%s%s%s", a ? " | " : "", atoms[draw(8)],
                                     repeats[draw(2)]);
            if (a == alternatives) break; /* one that can end */
            for (uint32_t p = draw(3); p > 0; p--) {
                if (draw(2))
                    used += (size_t)snprintf(to + used, room - used, " r%u%s", draw(6), repeats[draw(6)]);
                else
                    used +=
                        (size_t)snprintf(to + used, room - used, " %s%s", atoms[draw(8)], repeats[draw(6)]);
            }
        }
        used += (size_t)snprintf(to + used, room - used, "\n");
    }
}

static void test_random_grammars(void **state)
{
    (void)state;
    struct helm_vocabulary *v = open_bytes(pieces);
    for (int round = 0; round < 60; round++) {
        char text[4096];
        make_grammar(text, sizeof text);
        struct helm_grammar *g;
        struct helm_err err = {0};
        /* too many ways to read it is a limit that some of them meet */
        if (helm_grammar_open(v, HELM_GRAMMAR_GBNF, text, strlen(text), &g, &err)) {
            assert_int_equal(err.code, HELM_E_LIMIT);
            continue;
        }
        check_masks(g, 8, false);
        helm_grammar_close(g);
    }
    helm_vocabulary_close(v);
}

static void test_chosen_grammars(void **state)
{
    (void)state;
    static const struct {
        enum helm_grammar_kind kind;
        const char *text;
    } cases[] = {
        {HELM_GRAMMAR_REGEX, "[ab]{3,100}c"}, /* turns of a long repetition share their summaries */
        {HELM_GRAMMAR_REGEX, "([ab]{2,40}c){3,60}"},
        {HELM_GRAMMAR_REGEX, "(a?b?){30,90}"},
        {HELM_GRAMMAR_REGEX, "[ab]{60}"},
        {HELM_GRAMMAR_JSON_OBJECT, ""},
        {HELM_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"minLength\":30,\"maxLength\":80}"},
        {HELM_GRAMMAR_JSON_SCHEMA,
         "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":60},\"minItems\":2}"},
        {HELM_GRAMMAR_JSON_SCHEMA, "{\"properties\":{\"a\":{\"type\":\"string\"},\"ab\":{\"type\":"
                                   "\"integer\"}},\"additionalProperties\":true}"},
        {HELM_GRAMMAR_JSON_SCHEMA, "{\"enum\":[\"ab\",\"a b\",\"abab\",12]}"},
        {HELM_GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":"
                                   "\"^[a-z]{2,6}$\"}}"},
        {HELM_GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":"
                                   "\"^[A-Za-z0-9_]+$\"}}"},
        {HELM_GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":"
                                   "\"^[A-Z]?[^b]*$\"}}"},
        {HELM_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"maxLength\":33}"},
        {HELM_GRAMMAR_REGEX, "[a-z ]+"},
        {HELM_GRAMMAR_REGEX, "([^a]|a[^b])*"},
        {HELM_GRAMMAR_REGEX, "\"[\\u0080-\\uffffa]{1,40}\""},
        {HELM_GRAMMAR_GBNF, "root ::= \"\\\"\" c* \"\\\"\" | [a-z]+ r\nc ::= [^\"\\\\] | "
                            "\"\\\\\" [\"n]\nr ::= c | \",\" root"},
        {HELM_GRAMMAR_GBNF, "root ::= \"(\" root \")\" | \"a\""},
        {HELM_GRAMMAR_GBNF, "root ::= (\"(\" root \")\" | \"a\" root)? \",\""},
    };
    struct helm_vocabulary *v = open_bytes(pieces);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct helm_grammar *g = open_grammar(v, cases[i].kind, cases[i].text);
        for (int round = 0; round < 3; round++) check_masks(g, 40, true);
        helm_grammar_close(g);
    }
    helm_vocabulary_close(v);
}

/* Down to where the grammar's nesting ends, and up again. */
static void test_depth(void **state)
{
    (void)state;
    struct helm_vocabulary *v = open_bytes(pieces);
    struct helm_grammar *g = open_grammar(v, HELM_GRAMMAR_GBNF, "root ::= \"(\" root \")\" | \"a\"");
    struct helm_matcher *m;
    struct helm_err err = {0};
    uint32_t *bits = calloc(v->words, 4), *slow = calloc(v->words, 4), depth = 0;
    assert_int_equal(helm_matcher_open(g, &m, &err), 0);
    for (bool open = true; open;) {
        assert_int_equal(helm_matcher_mask(m, bits, &err), 0);
        memset(slow, 0, v->words * 4);
        assert_int_equal(mask_fill_slowly(m, slow, &err), 0);
        assert_memory_equal(bits, slow, v->words * 4);
        open = bits['(' / 32] >> '(' % 32 & 1;
        if (!open) continue;
        assert_int_equal(helm_matcher_take(m, '(', &err), 0);
        depth++;
    }
    assert_in_range(depth, STACKS_DEPTH_MAX - 8, STACKS_DEPTH_MAX + 8);
    assert_int_equal(helm_matcher_take(m, '(', &err), HELM_E_FORMAT);
    assert_int_equal(helm_matcher_take(m, 'a', &err), 0);
    for (; depth > 0; depth--) assert_int_equal(helm_matcher_take(m, ')', &err), 0);
    assert_true(helm_matcher_may_end(m));
    free(bits);
    free(slow);
    helm_matcher_close(m);
    helm_grammar_close(g);
    helm_vocabulary_close(v);
}

/* A long output: the past is forgotten, the place is not. */
static void test_long_output(void **state)
{
    (void)state;
    struct helm_vocabulary *v = open_bytes(pieces);
    struct helm_grammar *g =
        open_grammar(v, HELM_GRAMMAR_JSON_SCHEMA,
                     "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"maxItems\":3000}");
    struct helm_matcher *m;
    struct helm_err err = {0};
    uint32_t *bits = calloc(v->words, 4);
    assert_int_equal(helm_matcher_open(g, &m, &err), 0);
    assert_int_equal(helm_matcher_take(m, '[', &err), 0);
    for (int i = 0; i < 3000; i++) {
        if (i) assert_int_equal(helm_matcher_take(m, ',', &err), 0);
        assert_int_equal(helm_matcher_take(m, '7', &err), 0);
        if (i % 50 == 0) assert_int_equal(helm_matcher_mask(m, bits, &err), 0);
        assert_true(m->stacks.place_count < 2000);
    }
    assert_int_equal(helm_matcher_take(m, ',', &err), HELM_E_FORMAT);
    assert_int_equal(helm_matcher_take(m, ']', &err), 0);
    assert_true(helm_matcher_may_end(m));
    free(bits);
    helm_matcher_close(m);
    helm_grammar_close(g);
    helm_vocabulary_close(v);
}

/* A special token stands where its expression says, and its bytes nowhere. */
static void test_special_tokens(void **state)
{
    (void)state;
    static const unsigned char bytes[] = {'a', 'b', 0xff, 0, 0, 2, '<', 's', '>'};
    static const uint32_t offset[] = {0, 1, 2, 6, 9, 9}, end = 4;
    struct helm_vocabulary *v;
    struct helm_grammar *g;
    struct helm_matcher *m;
    struct helm_err err = {0};
    uint32_t bits[1];
    assert_int_equal(vocabulary_open_bytes(bytes, offset, 5, &end, 1, &v, &err), 0);
    struct exprs x = {0};
    const uint32_t seq = expr_add(&x, expr_seq(&x), expr_char(&x, 'a'));
    expr_add(&x, expr_add(&x, seq, expr_token(&x, 2)), expr_char(&x, 'b'));
    assert_int_equal(grammar_open_exprs(v, &x, seq, &g, &err), 0);
    exprs_free(&x);
    assert_int_equal(helm_matcher_open(g, &m, &err), 0);
    assert_int_equal(helm_matcher_mask(m, bits, &err), 0);
    assert_int_equal(bits[0], 1u << 0);
    assert_int_equal(helm_matcher_take(m, 0, &err), 0);
    assert_int_equal(helm_matcher_mask(m, bits, &err), 0);
    assert_int_equal(bits[0], 1u << 2);
    assert_int_equal(helm_matcher_take(m, 2, &err), 0);
    assert_int_equal(helm_matcher_take(m, 1, &err), 0);
    assert_int_equal(helm_matcher_mask(m, bits, &err), 0);
    assert_int_equal(bits[0], 1u << 4);
    assert_int_equal(helm_matcher_take(m, 4, &err), 0);
    assert_true(helm_matcher_has_ended(m));
    assert_int_equal(helm_matcher_take(m, 0, &err), HELM_E_STATE);
    helm_matcher_close(m);
    helm_grammar_close(g);
    /* any text: no special token is one */
    assert_int_equal(helm_grammar_open(v, HELM_GRAMMAR_REGEX, "[\\s\\S]*", 7, &g, &err), 0);
    assert_int_equal(helm_matcher_open(g, &m, &err), 0);
    assert_int_equal(helm_matcher_mask(m, bits, &err), 0);
    assert_int_equal(bits[0], 1u << 0 | 1u << 1 | 1u << 3 | 1u << 4);
    assert_int_equal(helm_matcher_take(m, 2, &err), HELM_E_FORMAT);
    assert_int_equal(helm_matcher_take(m, 77, &err), HELM_E_FORMAT);
    helm_matcher_close(m);
    helm_grammar_close(g);
    /* nothing of the vocabulary goes on */
    assert_int_equal(helm_grammar_open(v, HELM_GRAMMAR_REGEX, "c", 1, &g, &err), 0);
    assert_int_equal(helm_matcher_open(g, &m, &err), 0);
    assert_int_equal(helm_matcher_mask(m, bits, &err), HELM_E_UNSUPPORTED);
    helm_matcher_close(m);
    helm_grammar_close(g);
    helm_vocabulary_close(v);
}

static void test_markers(void **state)
{
    (void)state;
    struct helm_vocabulary *v = open_bytes(pieces);
    struct helm_err err = {0};
    for (int without = 0; without < 2; without++) {
        struct exprs x = {0};
        struct helm_grammar *g;
        const uint32_t root = without ? expr_without(&x, "</think>") : expr_until(&x, "</think>");
        assert_int_equal(grammar_open_exprs(v, &x, root, &g, &err), 0);
        exprs_free(&x);
        static const char *const texts[] = {"",         "</think>",   "a<<</think>", "</thi</think>",
                                            "</thinK>", "\xc3\xa9</", "</think>a",   "</think></think>"};
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
            const char *at = strstr(texts[i], "</think>");
            const bool good = without ? !at : at && !at[8];
            assert_int_equal(fit(g, texts[i], strlen(texts[i])) == FITS, good);
        }
        helm_grammar_close(g);
    }
    helm_vocabulary_close(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_grammars), cmocka_unit_test(test_chosen_grammars),
        cmocka_unit_test(test_depth),           cmocka_unit_test(test_long_output),
        cmocka_unit_test(test_special_tokens),  cmocka_unit_test(test_markers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
