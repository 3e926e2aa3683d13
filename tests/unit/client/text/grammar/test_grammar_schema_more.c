/* JSON schemas as people's programs write them: formats beside patterns, lengths of patterns, names of
 * properties, multiples, bounds of 64 bits and more, decimals, annotations and keywords whose value excludes
 * nothing; and the bounds of work. */
#include "matching.h"

static void test_more(void **state)
{
    (void)state;
    static const struct fit_case cases[] = {
        {"{\"type\":\"string\",\"format\":\"date\",\"pattern\":\"^\\\\d{4}-\\\\d{2}-\\\\d{2}$\"}",
         {"\"2024-02-29\"", "\"2000-02-29\"", "\"2023-12-31\""},
         {"\"2023-02-29\"", "\"1900-02-29\"", "\"2024-02-30\"", "\"2100-02-29\""}},
        {"{\"type\":\"string\",\"format\":\"date\",\"pattern\":\"^20\"}",
         {"\"2024-02-29\""},
         {"\"1999-01-01\"", "\"20\""}},
        {"{\"format\":\"date-time\",\"pattern\":\"Z$\"}",
         {"\"2028-02-29T00:00:00Z\""},
         {"\"2028-02-29T00:00:00+01:00\"", "\"2027-02-29T00:00:00Z\""}},
        {"{\"type\":\"string\",\"format\":\"email\",\"pattern\":\"^(?!\\\\.)(?!.*\\\\.\\\\.)[a-z]+@x$\"}",
         {"\"a.b@c.de\""},
         {"\"a@\""}},
        {"{\"type\":\"string\",\"format\":\"uuid\",\"pattern\":\"^[0-9a-f]{8}-[0-9a-f]{4}-4\"}",
         {"\"123e4567-e89b-42d3-a456-426614174000\""},
         {"\"123e4567-e89b-12d3-a456-426614174000\""}},
        {"{\"type\":\"string\",\"format\":\"uri\"}", {"\"x y\"", "\"\""}, {"x"}},
        {"{\"type\":\"string\",\"format\":\"uri\",\"pattern\":\"^h\"}", {"\"http\""}, {"\"x\""}},
        {"{\"type\":\"string\",\"format\":\"uri\",\"maxLength\":2}", {"\"ab\""}, {"\"abc\""}},
        {"{\"type\":\"string\",\"format\":\"hostname\",\"maxLength\":3}", {"\"abc\""}, {"\"abcd\"", "\"\""}},
        {"{\"pattern\":\"^[a-z]+$\",\"maxLength\":3}", {"\"a\"", "\"abc\""}, {"\"\"", "\"abcd\"", "\"A\""}},
        {"{\"pattern\":\"^[a-z]*$\",\"minLength\":2}", {"\"ab\"", "\"abcdefgh\""}, {"\"\"", "\"a\""}},
        {"{\"pattern\":\"b\",\"minLength\":3,\"maxLength\":4}",
         {"\"abc\"", "\"xxxb\"",
          "\"\xc3"
          "\xa9"
          "b\\n\"",
          "\"b\\t\\\"\""},
         {"\"b\"", "\"ab\"", "\"aaab1\"", "\"aaa\""}},
        {"{\"pattern\":\"^(\\\\u00e9|\\\\\\\\)*$\",\"maxLength\":2}",
         {"\"\xc3"
          "\xa9"
          "\\\\\"",
          "\"\""},
         {"\"\xc3"
          "\xa9"
          "\xc3"
          "\xa9"
          "\xc3"
          "\xa9"
          "\"",
          "\"\\\\\\\\\\\\\""}},
        {"{\"type\":\"string\",\"maxLength\":100000}", {"\"abc\""}, {"abc"}},
        {"{\"enum\":[0.1,0.25,-1.5e-7,100.0,5]}",
         {"0.1", "0.25", "-1.5e-7", "100.0", "5"},
         {"0.10000000000000001", "100"}},
        {"{\"const\":19.99}", {"19.99"}, {"19.989999999999998"}},
        {"{\"const\":1.50}", {"1.50"}, {"1.5", "1.500"}},
        {"{\"enum\":[123456789012345678901234567890,-1E5]}",
         {"123456789012345678901234567890", "-1E5"},
         {"123456789012345680000000000000", "1.2345678901234568e29", "-100000.0"}},
        {"{\"const\":{\"a\":[0.1,\"0.1\"]}}", {"{\"a\":[0.1,\"0.1\"]}"}, {NULL}},
        {"{\"type\":\"integer\",\"multipleOf\":5}",
         {"0", "5", "-15", "1000", "99999999999999995"},
         {"1", "-4", "05", "-0", ""}},
        {"{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":-20,\"maximum\":100}",
         {"-14", "-7", "0", "7", "98"},
         {"-21", "105", "1", "-1", "97", "70 "}},
        {"{\"type\":\"integer\",\"multipleOf\":100,\"minimum\":150}",
         {"200", "1000"},
         {"100", "0", "250", "-200"}},
        {"{\"type\":\"number\",\"multipleOf\":5,\"exclusiveMinimum\":0}", {"5", "10"}, {"0", "7.5", "-5"}},
        {"{\"type\":\"number\",\"multipleOf\":0.01}", {"1", "1.2", "-0.25"}, {"1.234", "1e5"}},
        {"{\"type\":\"number\",\"multipleOf\":0.1,\"exclusiveMinimum\":0,\"maximum\":2}",
         {"0.1", "2", "1.9"},
         {"0", "0.0", "0.12", "2.1"}},
        {"{\"type\":\"integer\",\"multipleOf\":1}", {"3"}, {"3.5"}},
        {"{\"type\":\"integer\",\"multipleOf\":0.5}", {"3"}, {"3.5"}},
        {"{\"type\":\"integer\",\"minimum\":-9007199254740991,\"maximum\":9007199254740991}",
         {"9007199254740991", "-9007199254740991"},
         {"9007199254740992"}},
        {"{\"type\":\"integer\",\"minimum\":9223372036854775806,\"maximum\":9223372036854775807}",
         {"9223372036854775806", "9223372036854775807"},
         {"9223372036854775808", "0"}},
        {"{\"type\":\"integer\",\"minimum\":-9223372036854775808}",
         {"-9223372036854775808", "5"},
         {"-9223372036854775809"}},
        {"{\"type\":\"integer\",\"minimum\":0,\"maximum\":18446744073709551615}", {"0", "18"}, {"-1"}},
        {"{\"type\":\"integer\",\"minimum\":-1e+300,\"maximum\":1e+300}", {"-5", "12"}, {"x"}},
        {"{\"type\":\"integer\",\"minimum\":0.5,\"exclusiveMaximum\":2.5}", {"1", "2"}, {"0", "3"}},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":-1.5,\"maximum\":-0.5}", {"-1"}, {"-2", "0"}},
        {"{\"type\":\"number\",\"minimum\":-1e+30}", {"-1.5", "2"}, {NULL}},
        {"{\"type\":\"string\",\"nullable\":true}", {"null", "\"a\""}, {"1"}},
        {"{\"type\":\"string\",\"nullable\":false}", {"\"a\""}, {"null"}},
        {"{\"type\":\"string\",\"enum\":[\"a\"],\"nullable\":true}", {"null", "\"a\""}, {"\"b\""}},
        {"{\"type\":\"string\",\"contentEncoding\":\"base64\",\"contentMediaType\":\"image/png\"}",
         {"\"a\""},
         {"1"}},
        {"{\"type\":\"integer\",\"format\":\"int64\"}", {"1"}, {"\"a\""}},
        {"{\"format\":\"int32\"}", {"1", "\"a\"", "null"}, {"x"}},
        {"{\"type\":\"array\",\"items\":{\"const\":1},\"uniqueItems\":false,\"minItems\":0}",
         {"[]", "[1,1]"},
         {"[2]"}},
        {"{\"type\":\"array\",\"minContains\":0,\"maxContains\":3}", {"[]", "[2]"}, {"1"}},
        {"{\"enum\":[\"a\"],\"minLength\":0,\"nullable\":false}", {"\"a\""}, {"\"\""}},
        {"{\"not\":false,\"if\":{},\"dependentRequired\":{},\"unevaluatedProperties\":true,"
         "\"patternProperties\":{}}",
         {"1", "{}"},
         {"x"}},
        {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"},\"minProperties\":0}",
         {"{}", "{\"a\":1}"},
         {"{\"a\":\"b\"}"}},
        {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"},\"minProperties\":1}",
         {"{\"a\":1}"},
         {"{}"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":2}},\"minProperties\":1}",
         {"{\"a\":1}", "{\"b\":2}"},
         {"{}"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1}},\"required\":[\"a\"],"
         "\"additionalProperties\":false,\"minProperties\":1,\"maxProperties\":2}",
         {"{\"a\":1}"},
         {"{}"}},
        {"{\"type\":\"object\",\"propertyNames\":{\"type\":\"string\"},\"additionalProperties\":{\"const\":1}"
         "}",
         {"{}", "{\"x\":1,\"y\":1}"},
         {"{\"x\":2}"}},
        {"{\"type\":\"object\",\"propertyNames\":true,\"additionalProperties\":{\"const\":1}}",
         {"{\"x\":1}"},
         {NULL}},
        {"{\"type\":\"object\",\"propertyNames\":{\"type\":\"string\",\"enum\":[\"a\",\"b\"]},"
         "\"additionalProperties\":{\"const\":1},\"required\":[\"a\",\"b\"]}",
         {"{\"a\":1,\"b\":1}"},
         {"{\"a\":1}", "{\"a\":1,\"b\":1,\"c\":1}"}},
        {"{\"type\":\"object\",\"propertyNames\":{\"enum\":[\"a\",\"b\"]},\"additionalProperties\":{"
         "\"const\":1}}",
         {"{}", "{\"b\":1}", "{\"a\":1,\"b\":1}"},
         {"{\"c\":1}", "{\"a\":1,\"a\":1}"}},
        {"{\"type\":\"object\",\"propertyNames\":{\"type\":\"string\",\"pattern\":\"^k[0-9]$\"},"
         "\"additionalProperties\":{\"const\":1}}",
         {"{}", "{\"k1\":1,\"k2\":1}"},
         {"{\"x\":1}"}},
        {"{\"type\":\"object\",\"propertyNames\":{\"maxLength\":2},\"additionalProperties\":{\"const\":1}}",
         {"{\"ab\":1}"},
         {"{\"abc\":1}"}},
        {"{\"propertyNames\":{\"$ref\":\"#/$defs/"
         "n\"},\"additionalProperties\":{\"const\":1},\"$defs\":{\"n\":{\"enum\":[\"a\"]}}}",
         {"{\"a\":1}"},
         {"{\"b\":1}"}},
        {"{\"allOf\":[{\"type\":\"string\",\"pattern\":\"^a\"},{\"maxLength\":2}]}",
         {"\"ab\""},
         {"\"abc\"", "\"b\""}},
    };
    check_cases(HELM_GRAMMAR_JSON_SCHEMA, cases, sizeof cases / sizeof *cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
