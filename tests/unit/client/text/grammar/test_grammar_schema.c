/* JSON schemas: texts that fit and texts that do not; what is refused, and where the error says it is. */
#include "matching.h"

static void test_values(void **state)
{
    (void)state;
    static const struct fit_case cases[] = {
        {"{\"type\":\"string\"}",
         {"\"\"", "\"a \xc3\xa9\\n\\\"\\\\\""},
         {"", "\"", "a", "\"\n\"", "\"\\q\"", "\"a\"\""}},
        {"{\"type\":\"integer\"}",
         {"0", "-12", "123456789012345678"},
         {"", "01", "1.5", "-", "1e3", "1234567890123456789"}},
        {"{\"type\":\"number\"}", {"0", "-1.50", "2e10", "1.5E-3"}, {".5", "1.", "01", "1e", "1e999", "NaN"}},
        {"{\"type\":\"boolean\"}", {"true", "false"}, {"True", "tru", "null"}},
        {"{\"type\":\"null\"}", {"null"}, {"nul", ""}},
        {"{\"type\":[\"null\",\"integer\"]}", {"null", "5"}, {"5.5", "\"\""}},
        {"{\"const\":{\"a\":[1,\"x\"]}}", {"{\"a\":[1,\"x\"]}"}, {"{\"a\": [1,\"x\"]}", "{}"}},
        {"{\"enum\":[\"red\",\"gr\\u00fcn\",3,null]}",
         {"\"red\"", "\"gr\xc3\xbcn\"", "3", "null"},
         {"red", "\"re\"", "4"}},
        {"{\"enum\":[\"a\",1],\"type\":\"string\"}", {"\"a\""}, {"1"}},
        {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
         {"\"ab\"", "\"\xc3\xa9\\n\\\"\""},
         {"\"a\"", "\"abcd\""}},
        {"{\"type\":\"string\",\"maxLength\":0}", {"\"\""}, {"\"a\""}},
        {"{\"type\":\"string\",\"pattern\":\"^a+$\"}", {"\"a\"", "\"aaa\""}, {"\"\"", "\"ab\""}},
        {"{\"type\":\"string\",\"pattern\":\"b\"}", {"\"abc\"", "\"b\""}, {"\"ac\"", "\"\""}},
        {"{\"type\":\"string\",\"pattern\":\"^a|b$\"}", {"\"ax\"", "\"xb\""}, {"\"xbx\"", "\"\""}},
        {"{\"type\":\"string\",\"pattern\":\"^[\\\"\\\\\\\\\\\\n]$\"}",
         {"\"\\\"\"", "\"\\\\\"", "\"\\n\""},
         {"\"\"\"", "\"n\""}},
        {"{\"pattern\":\"^\\\\x01$\"}", {"\"\\u0001\""}, {"\"\\u0002\"", "\"\x01\""}},
        {"{\"type\":\"string\",\"format\":\"date\"}",
         {"\"2024-02-28\"", "\"1999-12-31\"", "\"2026-11-30\""},
         {"\"2024-02-30\"", "\"2024-13-01\"", "\"2024-11-31\"", "\"24-1-1\""}},
        {"{\"type\":\"string\",\"format\":\"time\"}",
         {"\"23:59:59Z\"", "\"00:00:00.5+01:30\""},
         {"\"24:00:00Z\"", "\"1:2:3\""}},
        {"{\"type\":\"string\",\"format\":\"date-time\"}", {"\"2024-01-02T03:04:05Z\""}, {"\"2024-01-02\""}},
        {"{\"type\":\"string\",\"format\":\"uuid\"}",
         {"\"123e4567-e89b-12d3-a456-426614174000\""},
         {"\"123e4567e89b12d3a456426614174000\"", "\"g23e4567-e89b-12d3-a456-426614174000\""}},
        {"{\"type\":\"string\",\"format\":\"ipv4\"}", {"\"10.0.255.1\""}, {"\"10.0.256.1\"", "\"01.0.0.1\""}},
        {"{\"type\":\"string\",\"format\":\"email\"}", {"\"a.b@c.de\""}, {"\"a@\"", "\"a@b\""}},
        {"true", {"{}", "[1,{\"a\":null}]", "\"x\""}, {"", "{", "[1,]"}},
        {"{}", {"{\"a\": [ 1, 2 ]}", "1"}, {"{\"a\" 1}"}},
    };
    check_cases(HELM_GRAMMAR_JSON_SCHEMA, cases, sizeof cases / sizeof *cases);
}

static void test_objects(void **state)
{
    (void)state;
    static const struct fit_case cases[] = {
        {"{\"type\":\"object\"}", {"{}", "{\"a\":1}", "{ \"a\": {} }"}, {"[]", "{\"a\"}", "{,}"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"null\"}},"
         "\"required\":[\"a\",\"b\"]}",
         {"{\"a\":1,\"b\":null}", "{\n  \"a\": 1,\n  \"b\": null\n}"},
         {"{\"a\":1}", "{\"b\":null,\"a\":1}", "{\"a\":1,\"b\":null,\"c\":1}", "{}",
          "{\"a\":1,\"b\":null,}"}},
        {"{\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"integer\"},\"c\":{\"type\":"
         "\"integer\"}},\"required\":[\"b\"]}",
         {"{\"b\":1}", "{\"a\":1,\"b\":1}", "{\"b\":1,\"c\":1}", "{\"a\":1,\"b\":1,\"c\":1}"},
         {"{}", "{\"a\":1}", "{\"a\":1,\"c\":1}", "{,\"b\":1}", "{\"b\":1,}"}},
        {"{\"properties\":{\"a\":{\"type\":\"integer\"},\"c\":{\"type\":\"integer\"}},"
         "\"additionalProperties\":false}",
         {"{}", "{\"a\":1}", "{\"c\":1}", "{\"a\":1,\"c\":1}"},
         {"{\"x\":1}", "{\"a\":1,}", "{\"a\":1\"c\":1}"}},
        {"{\"properties\":{\"ab\":{\"type\":\"integer\"},\"a\":{\"type\":\"integer\"}},"
         "\"additionalProperties\":{\"type\":\"null\"}}",
         {"{}", "{\"ab\":1,\"a\":2,\"x\":null}", "{\"abc\":null}", "{\"\":null,\"b\":null}"},
         {"{\"x\":1}", "{\"ab\":null}", "{\"x\":null,\"a\":null}", "{\"x\":null,\"ab\":1}"}},
        {"{\"additionalProperties\":{\"type\":\"integer\"},\"required\":[\"k\"]}",
         {"{\"k\":1}", "{\"k\":1,\"z\":2}"},
         {"{}", "{\"z\":2}", "{\"k\":null}"}},
        {"{\"properties\":{\"a\":false,\"b\":{\"type\":\"null\"}}}", {"{}", "{\"b\":null}"}, {"{\"a\":1}"}},
        {"{\"type\":\"object\",\"properties\":{\"q\\\"\\n\":{\"const\":1}},\"required\":[\"q\\\"\\n\"]}",
         {"{\"q\\\"\\n\":1}"},
         {"{}"}},
    };
    check_cases(HELM_GRAMMAR_JSON_SCHEMA, cases, sizeof cases / sizeof *cases);
}

static void test_arrays(void **state)
{
    (void)state;
    static const struct fit_case cases[] = {
        {"{\"type\":\"array\"}", {"[]", "[1,\"a\",[]]", "[ 1 ]"}, {"[1", "[,]", "{}"}},
        {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":3}",
         {"[1,2]", "[1, 2, 3]"},
         {"[]", "[1]", "[1,2,3,4]", "[1,null]"}},
        {"{\"items\":{\"const\":1},\"maxItems\":1}", {"[]", "[1]"}, {"[1,1]"}},
        {"{\"items\":{\"const\":1},\"minItems\":1}", {"[1]", "[1,1,1]"}, {"[]"}},
        {"{\"prefixItems\":[{\"const\":1},{\"const\":\"a\"}],\"items\":{\"type\":\"null\"}}",
         {"[]", "[1]", "[1,\"a\"]", "[1,\"a\",null,null]"},
         {"[\"a\"]", "[1,null]", "[1,\"a\",1]"}},
        {"{\"prefixItems\":[{\"const\":1},{\"const\":2}],\"items\":false,\"minItems\":1}",
         {"[1]", "[1,2]"},
         {"[]", "[1,2,3]"}},
        {"{\"prefixItems\":[{\"const\":1},{\"const\":2}],\"minItems\":3,\"maxItems\":3}",
         {"[1,2,\"x\"]"},
         {"[1,2]", "[1,2,3,4]"}},
        {"{\"items\":[{\"const\":1}],\"additionalItems\":{\"const\":2}}",
         {"[]", "[1,2,2]"},
         {"[2]", "[1,1]"}},
        {"{\"type\":\"array\",\"items\":false}", {"[]"}, {"[1]"}},
    };
    check_cases(HELM_GRAMMAR_JSON_SCHEMA, cases, sizeof cases / sizeof *cases);
}

static void test_combinations(void **state)
{
    (void)state;
    static const struct fit_case cases[] = {
        {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"},false]}", {"1", "null"}, {"\"a\"", ""}},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"string\"}]}", {"1", "\"\""}, {"null"}},
        {"{\"oneOf\":[{\"properties\":{\"k\":{\"const\":\"a\"},\"x\":{\"const\":1}},\"required\":[\"k\","
         "\"x\"],\"type\":\"object\"},"
         "{\"properties\":{\"k\":{\"const\":\"b\"}},\"required\":[\"k\"],\"type\":\"object\"}]}",
         {"{\"k\":\"a\",\"x\":1}", "{\"k\":\"b\"}"},
         {"{\"k\":\"a\"}", "{\"k\":\"c\"}"}},
        {"{\"allOf\":[{\"type\":\"integer\",\"minimum\":3},{\"maximum\":5}]}", {"3", "5"}, {"2", "6"}},
        {"{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]},"
         "{\"properties\":{\"b\":{\"type\":\"integer\"},\"a\":{\"minimum\":7}},\"required\":[\"b\"]}]}",
         {"{\"a\":7,\"b\":1}"},
         {"{\"a\":6,\"b\":1}", "{\"a\":7}"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1}},\"anyOf\":[{\"required\":[\"a\"]},{"
         "\"properties\":{\"b\":{\"const\":2}},"
         "\"required\":[\"b\"]}]}",
         {"{\"a\":1}", "{\"b\":2}", "{\"a\":1,\"b\":2}"},
         {"{}"}},
        {"{\"$defs\":{\"t\":{\"type\":\"integer\"}},\"items\":{\"$ref\":\"#/$defs/t\"}}",
         {"[1,2]"},
         {"[null]"}},
        {"{\"$ref\":\"#/$defs/a~1b\",\"$defs\":{\"a/b\":{\"const\":1}}}", {"1"}, {"2"}},
        {"{\"$ref\":\"#/$defs/n\",\"minimum\":5,\"$defs\":{\"n\":{\"type\":\"integer\",\"maximum\":9}}}",
         {"5", "9"},
         {"4", "10"}},
        {"{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"next\":{\"anyOf\":[{\"$ref\":"
         "\"#\"},{\"type\":\"null\"}]}},"
         "\"required\":[\"v\",\"next\"]}",
         {"{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":null}}"},
         {"{\"v\":1}", "{\"v\":1,\"next\":{}}"}},
        {"{\"type\":\"integer\",\"title\":\"n\",\"description\":\"d\",\"default\":1,\"examples\":[1],\"x-"
         "order\":3}",
         {"1"},
         {"a"}},
    };
    check_cases(HELM_GRAMMAR_JSON_SCHEMA, cases, sizeof cases / sizeof *cases);
}

/* Every integer around the bounds, and decimals. */
static void test_number_bounds(void **state)
{
    (void)state;
    static const int bounds[][2] = {{0, 0},     {0, 9},     {5, 17},  {99, 101},  {-5, 5},
                                    {-120, -7}, {-1, 1000}, {7, 999}, {-100, 100}};
    struct helm_vocabulary *v = open_bytes(NULL);
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++)
        for (int open = 0; open < 4; open++) {
            const int low = bounds[i][0], high = bounds[i][1];
            char text[200];
            snprintf(text, sizeof text, "{\"type\":\"%s\",\"%s\":%d,\"%s\":%d}", "integer",
                     open & 1 ? "exclusiveMinimum" : "minimum", low,
                     open & 2 ? "exclusiveMaximum" : "maximum", high);
            if (low + (open & 1) > high - (open >> 1)) continue;
            struct helm_grammar *g = open_grammar(v, HELM_GRAMMAR_JSON_SCHEMA, text);
            for (int n = low - 12; n <= high + 12; n++) {
                char number[16];
                const size_t length = (size_t)snprintf(number, sizeof number, "%d", n);
                const bool good = n >= low + (open & 1) && n <= high - (open >> 1);
                if ((fit(g, number, length) == FITS) != good) fail_msg("%s: %s", text, number);
            }
            helm_grammar_close(g);
            memcpy(strstr(text, "integer\""), "number\" ", 8);
            g = open_grammar(v, HELM_GRAMMAR_JSON_SCHEMA, text);
            for (int n = 4 * low - 10; n <= 4 * high + 10; n++) {
                char number[16];
                const double value = n / 4.0;
                const size_t length = (size_t)snprintf(number, sizeof number, "%.2f", value);
                const bool good =
                    (open & 1 ? value > low : value >= low) && (open & 2 ? value < high : value <= high);
                if ((fit(g, number, length) == FITS) != good) fail_msg("%s: %s", text, number);
            }
            helm_grammar_close(g);
        }
    helm_vocabulary_close(v);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct refusal_case cases[] = {
        {"{", HELM_E_FORMAT, "schema"},
        {"[]", HELM_E_FORMAT, "a schema is an object"},
        {"{\"type\":\"strin\"}", HELM_E_FORMAT, "'type'"},
        {"{\"properties\":{\"a\":{\"properties\":{\"b\":{\"uniqueItems\":true}}}}}", HELM_E_UNSUPPORTED,
         "at #/a/b: the keyword 'uniqueItems'"},
        {"{\"not\":{}}", HELM_E_UNSUPPORTED, "'not'"},
        {"{\"if\":{},\"then\":{}}", HELM_E_UNSUPPORTED, "'if'"},
        {"{\"patternProperties\":{\"a\":{}}}", HELM_E_UNSUPPORTED, "'patternProperties'"},
        {"{\"type\":\"object\",\"minProperties\":2}", HELM_E_UNSUPPORTED, "'minProperties'"},
        {"{\"format\":\"uri\",\"pattern\":\"(?=a)\"}", HELM_E_UNSUPPORTED, "look-around"},
        {"{\"items\":{\"pattern\":\"(?=a)\"}}", HELM_E_UNSUPPORTED, "schema, at #/items: regular expression"},
        {"{\"items\":{\"pattern\":\"^(a|b)*a(a|b){12}$\",\"maxLength\":4000}}", HELM_E_LIMIT, "at #/items"},
        {"{\"minLength\":-1}", HELM_E_FORMAT, "'minLength'"},
        {"{\"minLength\":100000}", HELM_E_LIMIT, "'minLength'"},
        {"{\"items\":{\"type\":\"integer\",\"minimum\":1e80}}", HELM_E_LIMIT,
         "at #/items: 'minimum' has more than 80 digits"},
        {"{\"type\":\"number\",\"exclusiveMaximum\":-1e300}", HELM_E_LIMIT,
         "'exclusiveMaximum' has more than"},
        {"{\"type\":\"number\",\"multipleOf\":2.57}", HELM_E_LIMIT, "'multipleOf' is 2.57"},
        {"{\"type\":\"number\",\"multipleOf\":1e-81}", HELM_E_LIMIT, "'multipleOf' is 1e-81"},
        {"{\"type\":\"number\",\"minimum\":\"1\"}", HELM_E_FORMAT, "'minimum' is not a number"},
        {"{\"allOf\":[{\"exclusiveMinimum\":true},{\"exclusiveMinimum\":1}]}", HELM_E_UNSUPPORTED,
         "two 'exclusiveMinimum'"},
        {"{\"type\":\"integer\",\"multipleOf\":257}", HELM_E_LIMIT, "'multipleOf' is 257"},
        {"{\"type\":\"integer\",\"multipleOf\":0}", HELM_E_FORMAT, "'multipleOf'"},
        {"{\"propertyNames\":{\"pattern\":\"^a\"},\"additionalProperties\":{},\"required\":[\"a\"]}",
         HELM_E_UNSUPPORTED, "list of names"},
        {"{\"propertyNames\":{\"enum\":[\"a\"]},\"additionalProperties\":{},\"required\":[\"b\"]}",
         HELM_E_UNSUPPORTED, "'b' is not one of 'propertyNames'"},
        {"{\"oneOf\":[{\"const\":1},{\"const\":2},{\"enum\":[3,1]}]}", HELM_E_UNSUPPORTED, "'oneOf'"},
        {"{\"$ref\":\"http://example.com/a\"}", HELM_E_UNSUPPORTED, "'$ref'"},
        {"{\"$ref\":\"#/$defs/none\"}", HELM_E_FORMAT, "leads nowhere"},
        {"{\"$ref\":\"#\"}", HELM_E_UNSUPPORTED, "calls itself"},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", HELM_E_UNSUPPORTED, "'oneOf'"},
        {"{\"anyOf\":[]}", HELM_E_FORMAT, "'anyOf'"},
        {"{\"anyOf\":[{\"type\":\"null\"}],\"allOf\":[{\"anyOf\":[{\"type\":\"string\"}]}]}",
         HELM_E_UNSUPPORTED, "two different 'anyOf'"},
        {"{\"enum\":[1],\"minimum\":1}", HELM_E_UNSUPPORTED, "'minimum' beside 'enum'"},
        {"false", HELM_E_FORMAT, "nothing fits"},
        {"{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", HELM_E_FORMAT, "nothing fits"},
        {"{\"required\":[\"a\"],\"properties\":{},\"additionalProperties\":false}", HELM_E_FORMAT,
         "nothing fits"},
        {"{\"type\":\"array\",\"items\":{\"$ref\":\"#\"},\"minItems\":1}", HELM_E_FORMAT, "nothing fits"},
    };
    check_refusals(HELM_GRAMMAR_JSON_SCHEMA, cases, sizeof cases / sizeof *cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),        cmocka_unit_test(test_objects),
        cmocka_unit_test(test_arrays),        cmocka_unit_test(test_combinations),
        cmocka_unit_test(test_number_bounds), cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
