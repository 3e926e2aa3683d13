/* The template interpreter's limits, and its errors: each with its code, its line and its words. Its
 * renderings are compared with jinja2's in test_jinja_golden.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/text/jinja/jinja.h"
#include "common/base/json.h"

static int run(const char *source, size_t length, const char *variables, const struct jinja_input *limits,
               char **text, struct helm_err *err)
{
    struct jinja_template *template = NULL;
    struct jinja_input input = limits ? *limits : (struct jinja_input){0};
    struct json_numbers *numbers = NULL;
    json_t *json = NULL;
    size_t bytes = 0;
    if (!variables) variables = "{}";
    if (json_parse_numbers("variables", variables, strlen(variables), 1 << 20, &numbers, &json, err))
        fail_msg("%s", err->text);
    input.variables = json;
    input.numbers = numbers;
    *err = (struct helm_err){0};
    *text = NULL;
    int rc = jinja_parse(source, length, &template, err);
    if (!rc) rc = jinja_render(template, &input, text, &bytes, err);
    if (!rc) assert_int_equal(strlen(*text), bytes);
    if (rc) {
        assert_null(*text);
        assert_int_equal(err->code, rc);
    }
    jinja_free(template);
    json_decref(json);
    json_numbers_free(numbers);
    return rc;
}

static void expect_text(const char *source, const char *variables, const char *expected)
{
    struct helm_err err;
    char *text;
    if (run(source, strlen(source), variables, NULL, &text, &err)) fail_msg("%s: %s", source, err.text);
    assert_string_equal(text, expected);
    free(text);
}

static void expect_error(const char *source, int code, const char *words)
{
    struct helm_err err;
    char *text;
    int rc = run(source, strlen(source), NULL, NULL, &text, &err);
    if (rc != code || !strstr(err.text, words)) {
        free(text);
        fail_msg("%.200s\ngot %d (%s), expected %d (%s)", source, rc, err.text, code, words);
    }
}

/* `before` n times, `middle`, `after` n times */
static char *nest(const char *before, const char *middle, const char *after, size_t n)
{
    size_t b = strlen(before), a = strlen(after), m = strlen(middle);
    char *text = malloc(n * (a + b) + m + 1), *at = text;
    assert_non_null(text);
    for (size_t i = 0; i < n; i++, at += b) memcpy(at, before, b);
    memcpy(at, middle, m);
    at += m;
    for (size_t i = 0; i < n; i++, at += a) memcpy(at, after, a);
    *at = '\0';
    return text;
}

static void expect_nested_error(const char *before, const char *middle, const char *after, size_t n,
                                const char *words)
{
    char *source = nest(before, middle, after, n);
    expect_error(source, HELM_E_LIMIT, words);
    free(source);
}

static void test_nesting(void **state)
{
    (void)state;
    char *fine = nest("{% if 1 %}", "x", "{% endif %}", 90);
    expect_text(fine, NULL, "x");
    free(fine);
    expect_nested_error("{% if 1 %}", "x", "{% endif %}", 200, "nested deeper than 100");
    fine = nest("(", "1", ")", 90);
    char source[400];
    snprintf(source, sizeof source, "{{ %s }}", fine);
    expect_text(source, NULL, "1");
    free(fine);
    const char *const openers[][2] = {{"(", ")"},  {"[", "]"},  {"not ", ""},         {"-", ""},
                                      {"f(", ")"}, {"a[", "]"}, {"1 if 1 else ", ""}, {"{1:", "}"}};
    for (size_t i = 0; i < sizeof openers / sizeof *openers; i++) {
        char before[64];
        snprintf(before, sizeof before, "%s", openers[i][0]);
        char *inner = nest(before, "1", openers[i][1], 5000);
        char *whole = malloc(strlen(inner) + 16);
        assert_non_null(whole);
        sprintf(whole, "\n{{ %s }}", inner);
        expect_error(whole, HELM_E_LIMIT, "line 2: ");
        free(whole);
        free(inner);
    }
    /* a long chain is no nesting for the parser, but is for the tree */
    char *chain = nest("1+", "1", "", 100000);
    char *whole = malloc(strlen(chain) + 16);
    assert_non_null(whole);
    sprintf(whole, "{{ %s }}", chain);
    expect_error(whole, HELM_E_LIMIT, "nested deeper than 1200");
    free(whole);
    free(chain);
    expect_error("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", HELM_E_LIMIT,
                 "macros call each other deeper than 100");
}

static void test_value_nesting(void **state)
{
    (void)state;
    const char *const uses[] = {"{{ ns.x }}", "{{ ns.x|tojson }}", "{{ ns.x == ns.y }}", "{{ ns.x < ns.y }}",
                                "{{ {ns.t: 1} }}"};
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) {
        char source[512];
        snprintf(source, sizeof source,
                 "{%% set ns = namespace(x=[], y=[], t=()) %%}{%% for i in range(5000) %%}{%% set ns.x = "
                 "[ns.x] %%}"
                 "{%% set ns.y = [ns.y] %%}{%% set ns.t = (ns.t,) %%}{%% endfor %%}%s",
                 uses[i]);
        struct helm_err err;
        char *text;
        int rc = run(source, strlen(source), NULL, NULL, &text, &err);
        if (rc != HELM_E_LIMIT && rc != HELM_E_FORMAT) fail_msg("%s: %d", uses[i], rc);
        assert_non_null(strstr(err.text, "line 1: "));
    }
}

static void test_limits(void **state)
{
    (void)state;
    struct helm_err err;
    char *text;
    struct jinja_template *template;
    char *big = malloc(JINJA_TEMPLATE_BYTES_MAX + 1);
    assert_non_null(big);
    memset(big, 'x', JINJA_TEMPLATE_BYTES_MAX + 1);
    assert_int_equal(jinja_parse(big, JINJA_TEMPLATE_BYTES_MAX + 1, &template, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "1048577 bytes, more than 1048576"));
    assert_int_equal(jinja_parse(big, JINJA_TEMPLATE_BYTES_MAX, &template, &err), 0);
    jinja_free(template);
    free(big);
    expect_error("\n{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
                 HELM_E_LIMIT, "line 2: the template takes more than 2000000 steps");
    expect_error("{{ 'twenty bytes of text' * 99999999 }}", HELM_E_LIMIT,
                 "a text of more than 16777216 bytes");
    expect_error(
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        HELM_E_LIMIT, "a text of more than 16777216 bytes");
    expect_error("{% set x = [1] * 99999999 %}", HELM_E_LIMIT, "steps");
    expect_error("{{ range(100001) }}", HELM_E_LIMIT, "'range' of more than 100000 items");
    expect_error("{{ range(-9223372036854775807, 9223372036854775807) }}", HELM_E_LIMIT, "'range' of more");
    expect_error("{{ 'x'|indent(999999999) }}", HELM_E_LIMIT, "a text of more than 16777216 bytes");
    expect_error("{{ '%9999d' % 1 }}", HELM_E_LIMIT, "a width of more than 1000");
    /* work that makes no text counts too */
    const char *const busy[] = {
        "{% set ns.t = () %}{% for i in range(90) %}{% set ns.t = (ns.t, ns.t) %}{% endfor %}{{ {ns.t: 1} }}",
        "{% for i in range(9999) %}{% if ns.x.rfind('a' * 999999 + 'b') %}{% endif %}{% endfor %}",
        "{% for i in range(9999) %}{% if ns.x == ns.y %}{% endif %}{% endfor %}",
        "{% for i in range(9999) %}{% if ns.x is upper %}{% endif %}{% endfor %}",
        "{% for i in range(9999) %}{% set y = ns.x|wordcount %}{% endfor %}",
        "{% for i in range(9999) %}{% set y = ns.x|int %}{% endfor %}",
        "{% for i in range(9999) %}{% set y = ns.x.removeprefix('a') %}{% endfor %}",
        "{% for i in range(9999) %}{% set y = ns.x.splitlines() %}{% endfor %}",
    };
    for (size_t i = 0; i < sizeof busy / sizeof *busy; i++) {
        char source[512];
        snprintf(source, sizeof source,
                 "{%% set ns = namespace(x='a' * 999999) %%}{%% set ns.y = ns.x[1:] + 'b' %%}%s", busy[i]);
        expect_error(source, HELM_E_LIMIT, "2000000 steps");
    }
    /* nor does it wait with counting until it is done: one of these calls would take from minutes to an hour
     */
    const char *const endless[] = {
        "{{ ns.t.strip(ns.s ~ 'b') }}",
        "{{ ns.t.lstrip(ns.s ~ 'b') }}",
        "{{ ns.t.rstrip(ns.s ~ 'b') }}",
        "{{ ns.t|trim(ns.s ~ 'b') }}",
        "{{ ns.t.strip(ns.s) }}{{ ns.s.strip('a') }}{{ (ns.e * 8).strip(ns.s ~ '\u00e9') }}",
        "{{ ns.s.startswith((ns.s,) * 1000000) }}",
        "{{ ns.s.endswith((ns.s,) * 1000000) }}",
        "{{ ([0] * 500000)|map(attribute=ns.s)|list }}",
        "{{ ([0] * 500000)|map(attribute=ns.d, default=0)|list }}",
    };
    for (size_t i = 0; i < sizeof endless / sizeof *endless; i++) {
        char source[512];
        snprintf(source, sizeof source,
                 "{%% set ns = namespace(s=('a' * 64) * 100000, t=('b' * 64) * 100000, d='a.' * 3200000, "
                 "e='\u00e9' * 640000) %%}%s",
                 endless[i]);
        expect_error(source, HELM_E_LIMIT, "2000000 steps");
    }
    /* a long text that is cheap to look at is within the limit */
    expect_text("{{ ((' ' * 64) * 16000 ~ 'x' ~ '\n' * 64).strip(' \n') }}", NULL, "x");
    expect_text("{{ ('\u00e9' * 9999 ~ 'x').strip('\u00e8\u00e9') }}", NULL, "x");
    expect_text("{{ ('x' ~ 'b' * 9999).startswith(('a', 'x' ~ 'b' * 9999)) }}", NULL, "True");
    struct jinja_input small = {.steps_max = 50};
    const char *loop = "{% for i in range(40) %}{{ i }}{% endfor %}";
    assert_int_equal(run(loop, strlen(loop), NULL, &small, &text, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "more than 50 steps"));
    small = (struct jinja_input){.output_bytes_max = 10};
    assert_int_equal(run("0123456789", 10, NULL, &small, &text, &err), 0);
    free(text);
    assert_int_equal(run("0123456789a", 11, NULL, &small, &text, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "more than 10 bytes"));
    small = (struct jinja_input){.memory_bytes_max = 10000};
    const char *doubling = "{% for i in range(100) %}{{ [i] * 100 }}{% endfor %}";
    assert_int_equal(run(doubling, strlen(doubling), NULL, &small, &text, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "more than 10000 bytes of memory"));
}

static void test_whole_numbers(void **state)
{
    (void)state;
    const char *const sources[] = {"9223372036854775807 + 1",
                                   "-9223372036854775807 - 2",
                                   "9223372036854775807 * 2",
                                   "2 ** 63",
                                   "(-9223372036854775807 - 1) // -1",
                                   "-(-9223372036854775807 - 1)",
                                   "9223372036854775808"};
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        char source[128];
        snprintf(source, sizeof source, "{{ %s }}", sources[i]);
        expect_error(source, HELM_E_LIMIT, "64 bits");
    }
    expect_text("{{ -9223372036854775807 - 1 }} {{ 2 ** 62 }} {{ (-2) ** 63 }}", NULL,
                "-9223372036854775808 4611686018427387904 -9223372036854775808");
    expect_text("{{ 'abc'[9223372036854775807:] }}{{ 'abc'[::9223372036854775807] }}{{ "
                "'abc'[-9223372036854775807:2] }}"
                "{{ 'abc'[::-9223372036854775807] }}",
                NULL, "aabc");
}

/* Whole numbers of JSON beyond 64 bits: printed, compared and passed on as Python does; what would compute
 * with them is refused. */
static void test_wide_numbers(void **state)
{
    (void)state;
    static const char wide[] =
        "{\"a\":18446744073709551616,\"b\":18446744073709551617,\"c\":-18446744073709551616,"
        "\"f\":18446744073709551616.0,\"h\":9007199254740993,\"i\":1e999}";
    static const struct {
        const char *source, *text;
    } good[] = {
        {"{{ a }} {{ c }} {{ a | tojson }} {{ [b] }}",
         "18446744073709551616 -18446744073709551616 18446744073709551616 "
         "[18446744073709551617]"},
        {"{{ a is integer }} {{ a is float }} {{ a is number }} {{ a is boolean }}", "True False True False"},
        {"{{ a == b }} {{ a < b }} {{ c < a }} {{ a == f }} {{ b == f }} {{ b > f }}",
         "False True True True False True"},
        {"{{ a > 1 }} {{ 1 > a }} {{ c < -9223372036854775807 }} {{ a > 1.5 }} {{ c < 0.5 }}",
         "True False True True True"},
        {"{{ a < i }} {{ h == 9007199254740992.0 }} {{ h > 9007199254740992.0 }}", "True False True"},
        {"{{ {'k': a}['k'] }} {{ a in [b, a] }} {{ [b, a] | sort | first }}",
         "18446744073709551616 True 18446744073709551616"},
        {"{{ a | int }} {{ a | abs }} {{ '%s' % a }} {{ '{}'.format(a) }} {{ a ~ '' }}",
         "18446744073709551616 18446744073709551616 18446744073709551616 18446744073709551616 "
         "18446744073709551616"},
        {"{{ a and 1 }} {{ a | string | length }} {{ a | float }}", "1 20 1.8446744073709552e+19"},
        {"{{ '7' | int }} {{ 'x' | int(5) }} {{ '1e400' | int(6) }}", "7 5 6"},
    };
    static const char *const bad[] = {"a + 1",
                                      "1 - a",
                                      "a * 2.0",
                                      "a // 3",
                                      "-a",
                                      "c | abs",
                                      "a | round",
                                      "'%d' % a",
                                      "'%x' % a",
                                      "'{:d}'.format(a)",
                                      "'99999999999999999999' | int",
                                      "1e30 | int"};
    for (size_t k = 0; k < sizeof good / sizeof *good; k++) expect_text(good[k].source, wide, good[k].text);
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        struct helm_err err;
        char source[64], *text = NULL;
        snprintf(source, sizeof source, "{{ %s }}", bad[k]);
        const int rc = run(source, strlen(source), wide, NULL, &text, &err);
        if (rc != HELM_E_LIMIT || !strstr(err.text, "64 bits"))
            fail_msg("%s: %d, %s", bad[k], rc, text ? text : err.text);
    }
}

static void test_unsupported(void **state)
{
    (void)state;
    const struct {
        const char *source, *words;
    } cases[] = {
        {"a\n{% include 'x' %}", "line 2: the tag 'include'"},
        {"{% extends 'x' %}", "the tag 'extends'"},
        {"{% block a %}{% endblock %}", "the tag 'block'"},
        {"{% import 'a' as b %}", "the tag 'import'"},
        {"{% do f() %}", "the tag 'do'"},
        {"{% for x in y recursive %}{% endfor %}", "recursive"},
        {"\n\n{{ 'a'|urlize }}", "line 3: the filter 'urlize'"},
        {"{{ 1 is prime }}", "the test 'prime'"},
        {"{{ f(*a) }}", "unpacking arguments"},
        {"{{ f(**a) }}", "unpacking arguments"},
        {"{{ 'a'.zfill(5) }}", "the method 'zfill' of a str"},
        {"{{ '{}'.format_map({}) }}", "the method 'format_map' of a str"},
        {"{{ '{:,}'.format(1) }}", "the specification ','"},
        {"{{ '{:{}}'.format(1, 2) }}", "a field inside a field"},
        {"{{ '\\N{DASH}' }}", "the escape \\N"},
        {"{{ a[1, 2] }}", "several subscripts"},
        {"{{ [1]|map('string') }}", "printing a generator"},
        {"{{ range }}", "printing a function"},
        {"{{ strftime_now('%Q') }}", "'strftime_now' with '%Q'"},
        {"{{ '%q' % 1 }}", "the format '%q'"},
        {"{{ lipsum() }}", "'lipsum'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_error(cases[i].source, HELM_E_UNSUPPORTED, cases[i].words);
    /* where it is not reached, it does no harm */
    expect_text("{% if 0 %}{{ 'a'|urlize }}{% endif %}ok", NULL, "ok");
}

static void test_errors(void **state)
{
    (void)state;
    const struct {
        const char *source, *words;
    } cases[] = {
        {"a\nb\n{{ x.y }}", "line 3: 'x' is undefined"},
        {"{{ {}.a.b }}", "'dict object' has no attribute 'a'"},
        {"{{ [][0].b }}", "'list object' has no element 0"},
        {"{{ 'a' + 1 }}", "'+' cannot be applied to 'str' and 'int'"},
        {"{{ 'a' + x }}", "'x' is undefined"},
        {"{{ 1 / 0 }}", "division by zero"},
        {"{% if 1 %}", "'elif' is missing"},
        {"{% if 1 %}{% endfor %}", "unexpected 'endfor'"},
        {"\n{{ 1 + }}", "line 2: unexpected end of a tag, expected an expression"},
        {"{{ (1 }}", "unexpected '}'"},
        {"{{ 'abc }}", "a string has no end"},
        {"\n{{ 1", "line 2: a tag has no end ('}}')"},
        {"{{ \x01 }}", "unexpected character"},
        {"{% break %}", "'break' outside a loop"},
        {"{{ 1|replace('a') }}", "'replace' needs the argument 'new'"},
        {"{{ 1|trim(1, 2) }}", "'trim' takes at most 1 arguments, not 2"},
        {"{{ 1|trim(x=2) }}", "'trim' got an unknown argument 'x'"},
        {"{% macro m() %}{% endmacro %}{{ m(1) }}", "macro 'm' takes not more than 0 arguments"},
        {"{{ [1].append(2) }}", "templates may not change a list with 'append'"},
        {"{{ 5() }}", "a 'int' cannot be called"},
        {"{% for x in 5 %}{% endfor %}", "a 'int' cannot be iterated over"},
        {"{% set a, b = [1] %}", "1 values cannot be unpacked into 2 names"},
        {"{{ {[]: 1} }}", "a list cannot be a key"},
        {"\xff", "not UTF-8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_error(cases[i].source, HELM_E_FORMAT, cases[i].words);
    struct helm_err err;
    char *text;
    const char *refuse = "\n{{ raise_exception('Only ' ~ 2 ~ ' roles') }}";
    assert_int_equal(run(refuse, strlen(refuse), NULL, NULL, &text, &err), HELM_E_MISMATCH);
    assert_string_equal(err.text, "Only 2 roles");
    /* no place for the words is no reason to fall over */
    struct jinja_template *template;
    assert_int_equal(jinja_parse("{{ 1", 4, &template, NULL), HELM_E_FORMAT);
    assert_null(template);
}

static void test_zero_bytes(void **state)
{
    (void)state;
    struct helm_err err;
    struct jinja_template *template;
    json_t *variables = json_pack("{s:s%}", "x", "a\0b", (size_t)3);
    struct jinja_input input = {.variables = variables};
    char *text;
    size_t length;
    assert_int_equal(jinja_parse("{{ x }}\0{{ x|length }}", 22, &template, &err), 0);
    assert_int_equal(jinja_render(template, &input, &text, &length, &err), 0);
    assert_int_equal(length, 5);
    assert_memory_equal(text, "a\0b\0003", 6);
    free(text);
    jinja_free(template);
    json_decref(variables);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nesting),      cmocka_unit_test(test_value_nesting),
        cmocka_unit_test(test_limits),       cmocka_unit_test(test_whole_numbers),
        cmocka_unit_test(test_wide_numbers), cmocka_unit_test(test_unsupported),
        cmocka_unit_test(test_errors),       cmocka_unit_test(test_zero_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
