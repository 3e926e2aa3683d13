/* Numbers in schemas: bounds and multiples against arithmetic, at any width, with decimals; constants that a
 * double would join. */
#include "matching.h"

#define CENTS 100

/* In hundredths: a schema's bounds, and whether n is in them. */
struct range {
    int low, high, multiple; /* INT_MIN-like 0 of multiple: none */
    bool open_low, open_high, integer;
};

static bool holds(const struct range *r, int n)
{
    if (r->open_low ? n <= r->low : n < r->low) return false;
    if (r->open_high ? n >= r->high : n > r->high) return false;
    return (!r->integer || n % CENTS == 0) && (!r->multiple || n % r->multiple == 0);
}

static void write_cents(char *to, size_t space, int n, int places)
{
    const int size = n < 0 ? -n : n;
    if (places == 0)
        snprintf(to, space, "%s%d", n < 0 ? "-" : "", size / CENTS);
    else if (places == 1)
        snprintf(to, space, "%s%d.%d", n < 0 ? "-" : "", size / CENTS, size % CENTS / 10);
    else
        snprintf(to, space, "%s%d.%02d", n < 0 ? "-" : "", size / CENTS, size % CENTS);
}

/* n in each way to write it. An integer is written without a point. */
static void check_number(struct helm_grammar *g, const struct range *r, const char *schema, int n)
{
    static const int parts[] = {CENTS, 10, 1};
    for (int places = 0; places < 3; places++) {
        char number[24];
        if (n % parts[places]) continue;
        write_cents(number, sizeof number, n, places);
        int most = 2; /* places that a multiple leaves */
        if (r->multiple && r->multiple % 10 == 0) most = r->multiple % CENTS ? 1 : 0;
        if (r->integer) most = 0;
        const bool good = holds(r, n) && places <= most;
        if ((fit(g, number, strlen(number)) == FITS) != good) fail_msg("%s: %s", schema, number);
    }
}

static void test_against_arithmetic(void **state)
{
    (void)state;
    static const int multiples[] = {0, 0, 1, 5, 10, 25, 75, 100, 150, 300, 700, 1000};
    struct helm_vocabulary *v = open_bytes(NULL);
    uint32_t seed = 7;
    for (int round = 0; round < 60; round++) {
        uint32_t draw[6];
        for (int i = 0; i < 6; i++) draw[i] = (seed = seed * 1664525 + 1013904223) >> 8;
        struct range r = {.low = (int)(draw[0] % 4000) - 2000, .multiple = multiples[draw[2] % 12]};
        r.high = r.low + (int)(draw[1] % 2500);
        if (draw[5] & 1) r.low -= r.low % CENTS, r.high -= r.high % CENTS;
        r.open_low = draw[3] & 1;
        r.open_high = draw[3] & 2;
        r.integer = draw[4] % 3 == 0;
        char low[24], high[24], multiple[24], more[64] = "", schema[256];
        write_cents(low, sizeof low, r.low, 2);
        write_cents(high, sizeof high, r.high, 2);
        write_cents(multiple, sizeof multiple, r.multiple, 2);
        if (r.multiple) snprintf(more, sizeof more, ",\"multipleOf\":%s", multiple);
        snprintf(schema, sizeof schema, "{\"type\":\"%s\",\"%s\":%s,\"%s\":%s%s}",
                 r.integer ? "integer" : "number", r.open_low ? "exclusiveMinimum" : "minimum", low,
                 r.open_high ? "exclusiveMaximum" : "maximum", high, more);
        bool any = false;
        for (int n = r.low; n <= r.high; n++) any = any || holds(&r, n);
        if (!any) continue;
        struct helm_grammar *g = open_grammar(v, HELM_GRAMMAR_JSON_SCHEMA, schema);
        for (int n = r.low - 250; n <= r.high + 250; n++) check_number(g, &r, schema, n);
        helm_grammar_close(g);
    }
    helm_vocabulary_close(v);
}

#define TWO_256  "115792089237316195423570985008687907853269984665640564039457584007913129639935"
#define TWO_256A "115792089237316195423570985008687907853269984665640564039457584007913129639936"

static void test_wide(void **state)
{
    (void)state;
    static const struct fit_case cases[] = {
        {"{\"type\":\"integer\",\"minimum\":0,\"maximum\":18446744073709551615}",
         {"0", "18446744073709551615", "18446744073709551614", "9999999999999999999"},
         {"18446744073709551616", "20000000000000000000", "-1"}},
        {"{\"type\":\"integer\",\"minimum\":9223372036854775808}",
         {"9223372036854775808", "10000000000000000000", "99999999999999999999"},
         {"9223372036854775807", "1", "-9223372036854775809"}},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":9223372036854775807}",
         {"9223372036854775808"},
         {"9223372036854775807"}},
        {"{\"type\":\"integer\",\"maximum\":-9223372036854775809}",
         {"-9223372036854775809", "-90000000000000000000"},
         {"-9223372036854775808", "0"}},
        {"{\"type\":\"integer\",\"minimum\":1e19,\"maximum\":1.2E19}",
         {"10000000000000000000", "12000000000000000000"},
         {"9999999999999999999", "12000000000000000001"}},
        {"{\"type\":\"integer\",\"minimum\":0,\"maximum\":" TWO_256 "}", {"0", TWO_256}, {TWO_256A}},
        {"{\"type\":\"integer\",\"minimum\":0,\"maximum\":" TWO_256 ",\"multipleOf\":5}",
         {"0", TWO_256},
         {"7"}},
        {"{\"type\":\"number\",\"maximum\":9007199254740993}",
         {"9007199254740993", "9007199254740992.5"},
         {"9007199254740993.5", "9007199254740994"}},
        {"{\"type\":\"number\",\"minimum\":0.1000000000000000055511151231257827}",
         {"0.1000000000000001", "0.2"},
         {"0.1", "0.1000000000000000"}},
        {"{\"type\":\"number\",\"exclusiveMinimum\":1e-300}",
         {"0.0000000000000001", "1"},
         {"0", "0.0", "-1"}},
        {"{\"type\":\"number\",\"minimum\":1e-300,\"maximum\":1E300}", {"0.5", "12"}, {"0", "-1"}},
        {"{\"type\":\"number\",\"minimum\":-0.5,\"maximum\":0.5}",
         {"-0.5", "0.5", "0", "0.49", "-0.4999", "0.50"},
         {"-0.51", "0.500001", "-0", "-0.0", "1"}},
        {"{\"type\":\"number\",\"multipleOf\":0.25}", {"0", "0.25", "1.5", "-2.75"}, {"0.3", "0.2", "1.125"}},
        {"{\"type\":\"number\",\"multipleOf\":2.5e-1}", {"0.75"}, {"0.7"}},
        {"{\"type\":\"integer\",\"multipleOf\":1.5}", {"0", "3", "-6"}, {"1", "2", "4"}},
        {"{\"type\":\"integer\",\"multipleOf\":3e20}",
         {"0", "300000000000000000000"},
         {"3", "100000000000000000000"}},
        {"{\"type\":\"integer\",\"multipleOf\":1e19,\"minimum\":1}",
         {"10000000000000000000", "20000000000000000000"},
         {"0", "15000000000000000000"}},
        {"{\"type\":\"integer\",\"multipleOf\":1e18,\"minimum\":7e40}",
         {"70000000000000000000000000000000000000000"},
         {"0"}},
        {"{\"type\":\"integer\",\"minimum\":3,\"exclusiveMinimum\":true,\"maximum\":5,\"exclusiveMaximum\":"
         "false}",
         {"4", "5"},
         {"3", "6"}},
        {"{\"enum\":[18446744073709551616,18446744073709551617,1.10]}",
         {"18446744073709551616", "18446744073709551617", "1.10"},
         {"18446744073709551618", "1.1"}},
        {"{\"oneOf\":[{\"const\":9007199254740993.0},{\"const\":9007199254740992.0}]}",
         {"9007199254740993.0", "9007199254740992.0"},
         {"9007199254740994.0"}},
        {"{\"allOf\":[{\"type\":\"integer\",\"minimum\":9007199254740993},{\"minimum\":9007199254740992}]}",
         {"9007199254740993"},
         {"9007199254740992"}},
        {"{\"allOf\":[{\"enum\":[18446744073709551616,18446744073709551617]},{\"enum\":[18446744073709551617]"
         "}]}",
         {"18446744073709551617"},
         {"18446744073709551616"}},
        {"{\"type\":\"integer\",\"enum\":[9007199254740993.5,2.0,3]}",
         {"2.0", "3"},
         {"9007199254740993.5", "2"}},
    };
    check_cases(HELM_GRAMMAR_JSON_SCHEMA, cases, sizeof cases / sizeof *cases);
}

static void test_same_constants(void **state)
{
    (void)state;
    static const struct refusal_case cases[] = {
        {"{\"oneOf\":[{\"const\":1},{\"const\":1.0}]}", HELM_E_UNSUPPORTED, "'oneOf'"},
        {"{\"oneOf\":[{\"enum\":[1e20]},{\"const\":100000000000000000000}]}", HELM_E_UNSUPPORTED, "'oneOf'"},
        {"{\"type\":\"integer\",\"minimum\":18446744073709551617,\"maximum\":18446744073709551616}",
         HELM_E_FORMAT, "nothing fits"},
        {"{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":1,\"maximum\":6}", HELM_E_FORMAT,
         "nothing fits"},
    };
    check_refusals(HELM_GRAMMAR_JSON_SCHEMA, cases, sizeof cases / sizeof *cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_arithmetic), cmocka_unit_test(test_wide),
                                       cmocka_unit_test(test_same_constants)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
