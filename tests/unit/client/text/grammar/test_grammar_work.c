/* The cost of a stranger's grammar: texts that would take minutes or gigabytes are refused before the work,
 * long lists are read in time that grows as they do, and a matcher gives up after a number of steps. Times
 * are processor time. */
#include "matching.h"

#include <stdatomic.h>
#include <time.h>

#include "client/text/grammar/schema.h"

#ifdef __SANITIZE_ADDRESS__
#define SLOW 20.0
#else
#define SLOW 1.0
#endif

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

struct writer {
    char *text;
    size_t length;
};
static void add(struct writer *w, const char *fmt, ...) HELM_PRINTF(2, 3);
static void add(struct writer *w, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    w->length += (size_t)vsnprintf(w->text + w->length, HELM_GRAMMAR_TEXT_LIMIT - w->length, fmt, ap);
    va_end(ap);
    assert_in_range(w->length, 0, HELM_GRAMMAR_TEXT_LIMIT - 1);
}

/* Opens it within `most` seconds; the code. */
static int open_within(enum helm_grammar_kind kind, const struct writer *w, double most, struct helm_err *err)
{
    struct helm_vocabulary *v = open_bytes(NULL);
    struct helm_grammar *g;
    const double begin = seconds();
    const int rc = helm_grammar_open(v, kind, w->text, w->length, &g, err);
    const double spent = seconds() - begin;
    if (spent > most * SLOW) fail_msg("%.60s...: %.2f s", w->text, spent);
    helm_grammar_close(g);
    helm_vocabulary_close(v);
    return rc;
}

static void test_long_lists(void **state)
{
    (void)state;
    struct writer w = {.text = malloc(HELM_GRAMMAR_TEXT_LIMIT)};
    struct helm_err err = {0};
    add(&w, "{\"oneOf\":[{\"const\":-1}");
    for (int i = 0; i < 15000; i++) add(&w, ",{\"const\":%d}", i);
    add(&w, "]}");
    if (open_within(HELM_GRAMMAR_JSON_SCHEMA, &w, 0.6, &err)) fail_msg("%s", err.text);
    w.length = 0;
    add(&w, "{\"enum\":[-1");
    for (int i = 0; i < 15000; i++) add(&w, ",%d", i);
    add(&w, "]}");
    if (open_within(HELM_GRAMMAR_JSON_SCHEMA, &w, 0.6, &err)) fail_msg("%s", err.text);
    w.length = 0;
    add(&w, "root ::= \"y\"");
    for (int i = 0; i < 30000; i++) add(&w, " | \"z\" a%d", i);
    for (int i = 0; i < 30000; i++) add(&w, "\na%d ::= \"x\"", i);
    const int rc = open_within(HELM_GRAMMAR_GBNF, &w, 0.6, &err);
    if (rc && rc != HELM_E_LIMIT) fail_msg("%s", err.text);
    free(w.text);
}

/* Each pair of many schemas, each value of two lists, each property among many required ones. */
static void test_squares(void **state)
{
    (void)state;
    struct writer w = {.text = malloc(HELM_GRAMMAR_TEXT_LIMIT)};
    static const struct {
        const char *begin, *item, *middle, *other, *end;
        int count, code;
        const char *says;
    } rows[] = {
        {"{\"oneOf\":[{}", ",{\"type\":\"object\",\"required\":[\"%d\"]}", "", NULL, "]}", 4000,
         HELM_E_UNSUPPORTED, "schema, at #: 'oneOf'"},
        {"{\"items\":{\"oneOf\":[{\"type\":\"null\"}", ",{\"const\":%d,\"type\":\"integer\"}", "", NULL,
         "]}}", 9000, HELM_E_LIMIT, "schema, at #/items: the schema takes more than"},
        {"{\"allOf\":[{\"enum\":[0", ",%d", "]},{\"enum\":[-1", ",-%d", "]}]}", 9000, HELM_E_LIMIT,
         "schema, at #: the schema takes more than"},
        {"{\"allOf\":[{\"enum\":[0", ",9007199254740992.001%d", "]},{\"enum\":[-1", ",9007199254740992.002%d",
         "]}]}", 9000, HELM_E_LIMIT, "schema, at #: the schema takes more than"},
        {"{\"anyOf\":[{},{\"required\":[\"x\"", ",\"%d\"", "],\"properties\":{\"x\":{}", ",\"%d\":{}", "}}]}",
         20000, HELM_E_LIMIT, "at #/anyOf/1"},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct helm_err err = {0};
        w.length = 0;
        add(&w, "%s", rows[r].begin);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        for (int i = 1; i <= rows[r].count; i++) add(&w, rows[r].item, i);
        add(&w, "%s", rows[r].middle);
        for (int i = 1; i <= rows[r].count && rows[r].other; i++) add(&w, rows[r].other, i);
#pragma GCC diagnostic pop
        add(&w, "%s", rows[r].end);
        const int rc = open_within(HELM_GRAMMAR_JSON_SCHEMA, &w, 0.6, &err);
        if (rc != rows[r].code || !strstr(err.text, rows[r].says))
            fail_msg("row %zu: %d %s", r, rc, err.text);
    }
    free(w.text);
}

/* Stacks that double with each rule, expressions whose states do, repetitions of repetitions. */
static void test_doubling(void **state)
{
    (void)state;
    struct writer w = {.text = malloc(HELM_GRAMMAR_TEXT_LIMIT)};
    for (int empty = 0; empty < 2; empty++) {
        struct helm_err err = {0};
        w.length = 0;
        add(&w, "root ::= r0 [a-z ]*\n");
        for (int i = 0; i < 20; i++)
            add(&w, empty ? "r%d ::= r%d? r%d?\n" : "r%d ::= r%d r%d?\n", i, i + 1, i + 1);
        add(&w, empty ? "r20 ::= \"\"\n" : "r20 ::= \"a\"?\n");
        const int rc = open_within(HELM_GRAMMAR_GBNF, &w, 0.3, &err);
        if (rc != HELM_E_LIMIT || !strstr(err.text, "too many ways"))
            fail_msg("%d: %d %s", empty, rc, err.text);
    }
    static const char *const expressions[] = {"((a{1,200}){1,200}){1,200}", "(a|b)*a(a|b){2000}(a|b)*",
                                              "((((a?){60}){60}){60}){60}"};
    for (size_t i = 0; i < 3; i++) {
        struct helm_err err = {0};
        w.length = 0;
        add(&w, "%s", expressions[i]);
        const int rc = open_within(HELM_GRAMMAR_REGEX, &w, 0.6, &err);
        if (rc && rc != HELM_E_LIMIT) fail_msg("%s: %s", expressions[i], err.text);
    }
    free(w.text);
}

/* A fresh matcher holds nothing; a quick call gives up and says so, and what it found so far serves the whole
 * call. */
static void test_steps(void **state)
{
    (void)state;
    static const char *const longer[] = {"ab", "aba", "ba", "b\"", NULL};
    struct helm_vocabulary *v = open_bytes(longer);
    struct helm_grammar *g = open_grammar(v, HELM_GRAMMAR_JSON_SCHEMA,
                                          "{\"pattern\":\"^[ab]*$\",\"minLength\":20,\"maxLength\":4000}");
    struct helm_matcher *m, *other;
    struct helm_err err = {0};
    uint32_t *quick = calloc(v->words, 4), *whole = calloc(v->words, 4);
    const size_t held = *v->held;
    assert_int_equal(helm_matcher_open(g, &m, &err), 0);
    assert_int_equal(helm_matcher_open(g, &other, &err), 0);
    assert_int_equal(helm_matcher_mask(m, quick, &err), 0);
    assert_true(quick['"' / 32] >> '"' % 32 & 1);
    assert_false(helm_matcher_may_end(m));
    assert_int_equal(*v->held, held);
    m->quick = 1;
    assert_int_equal(helm_matcher_take(m, '"', &err), HELM_E_BUSY);
    m->quick = 0;
    assert_int_equal(helm_matcher_take(m, '"', &err), 0);
    assert_true(*v->held > held);
    for (int i = 0; i < 40; i++) {
        m->quick = 3;
        int rc = helm_matcher_mask(m, quick, &err);
        assert_true(rc == 0 || rc == HELM_E_BUSY);
        m->quick = 0;
        assert_int_equal(helm_matcher_mask(m, whole, &err), 0);
        if (rc == 0) assert_memory_equal(quick, whole, v->words * 4);
        rc = helm_matcher_take(m, 257 + (uint32_t)i % 3, &err);
        assert_int_equal(rc, 0);
    }
    atomic_store(&m->stop, true); /* as another thread says that it need not go on */
    assert_int_equal(helm_matcher_take(m, 'a', &err), HELM_E_CANCELLED);
    helm_matcher_close(m);
    assert_int_equal(helm_matcher_take(other, '"', &err), 0);
    helm_matcher_close(other);
    helm_grammar_close(g);
    assert_int_equal(*v->held, 0);
    free(quick);
    free(whole);
    helm_vocabulary_close(v);
}

/* All grammars and outputs share one budget: what finds it used up says so, and goes on when there is room
 * again. */
static void test_budget(void **state)
{
    (void)state;
    struct helm_vocabulary *v = open_bytes(NULL);
    struct helm_err err = {0};
    struct helm_grammar *g = open_grammar(v, HELM_GRAMMAR_GBNF, "root ::= \"a\" [a-z]{3,9} root?"),
                        *other = NULL;
    struct helm_matcher *m;
    const size_t one = *v->held;
    assert_true(one > 1024); /* automaton, states, summaries */
    assert_int_equal(helm_matcher_open(g, &m, &err), 0);
    *v->held += GRAMMAR_BYTES_MAX - one;
    assert_int_equal(helm_matcher_take(m, 'a', &err), HELM_E_BUSY);
    assert_non_null(strstr(err.text, "the grammars in use hold more than 256 MiB together"));
    m->quick = 1000;
    assert_int_equal(helm_matcher_take(m, 'a', &err), HELM_E_BUSY); /* the lock is free again */
    m->quick = 0;
    assert_int_equal(helm_grammar_open(v, HELM_GRAMMAR_REGEX, "a+", 2, &other, &err), HELM_E_BUSY);
    assert_null(other);
    *v->held -= GRAMMAR_BYTES_MAX - one;
    assert_int_equal(helm_matcher_take(m, 'a', &err), 0);
    assert_int_equal(helm_grammar_open(v, HELM_GRAMMAR_REGEX, "a+", 2, &other, &err), 0);
    helm_matcher_close(m);
    helm_grammar_close(other);
    helm_grammar_close(g);
    assert_int_equal(*v->held, 0);
    helm_vocabulary_close(v);
}

/* Nobody waits for it any more: reading a text, building the automaton and preparing masks give up alike. */
static void test_not_wanted(void **state)
{
    (void)state;
    struct helm_vocabulary *v = open_bytes(NULL);
    struct helm_grammar *g = NULL;
    struct helm_err err = {0};
    _Atomic bool stop = true;
    struct exprs read = {.stop = &stop}, built = {.stop = &stop}, prepared = {0};
    const char schema[] = "{\"oneOf\":[{\"const\":1},{\"const\":2},{\"const\":3}]}";
    uint32_t root;
    assert_int_equal(schema_parse(&read, schema, sizeof schema - 1, &root, &err), HELM_E_CANCELLED);
    root = expr_char(&built, 'a');
    assert_int_equal(grammar_open_exprs(v, &built, root, &g, &err), HELM_E_CANCELLED);
    root = expr_char(&prepared, 'a');
    assert_int_equal(grammar_open_exprs(v, &prepared, root, &g, &err), 0);
    assert_null(g->states.stop); /* the call that opened it is over */
    helm_grammar_close(g);
    exprs_free(&read);
    exprs_free(&built);
    exprs_free(&prepared);
    assert_int_equal(*v->held, 0);
    helm_vocabulary_close(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_long_lists), cmocka_unit_test(test_squares), cmocka_unit_test(test_doubling),
        cmocka_unit_test(test_steps),      cmocka_unit_test(test_budget),  cmocka_unit_test(test_not_wanted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
