/* Safetensors headers: what is accepted, and a table of hostile ones with the error each must give. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/model/safetensors.h"

static int parse(const char *text, uint64_t data_bytes, struct safetensors *header, struct helm_err *err)
{
    return safetensors_parse("f.safetensors", text, strlen(text), data_bytes, header, err);
}

static void test_accepts(void **state)
{
    (void)state;
    struct safetensors h;
    struct helm_err err = {0};
    /* Out of order, padded with blanks, an empty tensor at a boundary, a scalar, a foreign type. */
    static const char text[] = "{\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[12,20]},"
                               "\"__metadata__\":{\"format\":\"pt\"},"
                               "\"a\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
                               "\"empty\":{\"dtype\":\"F16\",\"shape\":[0,7],\"data_offsets\":[12,12]},"
                               "\"scalar\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[20,28]}}   ";
    if (parse(text, 28, &h, &err)) fail_msg("%s", err.text);
    assert_int_equal(h.count, 4);
    assert_string_equal(h.entries[0].name, "a");
    assert_string_equal(h.entries[1].name, "empty");
    assert_string_equal(h.entries[2].name, "b");
    assert_string_equal(h.entries[3].name, "scalar");
    assert_int_equal(h.entries[0].format, FORMAT_BF16);
    assert_int_equal(h.entries[0].rank, 2);
    assert_int_equal(h.entries[0].shape[1], 3);
    assert_int_equal(h.entries[2].begin, 12);
    assert_int_equal(h.entries[3].format, FORMAT_COUNT);
    safetensors_free(&h);
    assert_null(h.entries);
    safetensors_free(&h); /* a zeroed one is fine */
    assert_int_equal(parse("{}", 0, &h, &err), 0);
    assert_int_equal(h.count, 0);
    safetensors_free(&h);
}

#define T(dtype, shape, offsets) "{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}"
static const struct {
    const char *header;
    uint64_t data_bytes;
    int code;
    const char *text;
} hostile[] = {
    {"", 0, HELM_E_FORMAT, "not valid JSON"},
    {"[]", 0, HELM_E_FORMAT, "not a JSON object"},
    {"{\"a\":1}", 0, HELM_E_FORMAT, "tensor 'a': its description is not an object"},
    {"{\"a\":{}}", 0, HELM_E_FORMAT, "'dtype' is missing"},
    {"{\"a\":" T("7", "[1]", "[0,2]") "}", 2, HELM_E_FORMAT, "'dtype' is not a string"},
    {"{\"a\":" T("\"BF17\"", "[1]", "[0,2]") "}", 2, HELM_E_UNSUPPORTED, "dtype 'BF17' is unknown"},
    {"{\"a\":" T("\"F4\"", "[1]", "[0,2]") "}", 2, HELM_E_UNSUPPORTED, "dtype 'F4'"},
    {"{\"a\":" T("\"F16\"", "3", "[0,2]") "}", 2, HELM_E_FORMAT, "'shape' is not a list"},
    {"{\"a\":" T("\"F16\"", "[1,1,1,1,1,1,1,1,1]", "[0,2]") "}", 2, HELM_E_LIMIT,
     "9 dimensions, the limit is 8"},
    {"{\"a\":" T("\"F16\"", "[-1]", "[0,2]") "}", 2, HELM_E_FORMAT, "'shape' entry 0"},
    {"{\"a\":" T("\"F16\"", "[1.5]", "[0,2]") "}", 2, HELM_E_FORMAT, "'shape' entry 0"},
    {"{\"a\":" T("\"F16\"", "[4294967296,4294967296]", "[0,2]") "}", 2, HELM_E_LIMIT, "overflows 64 bits"},
    {"{\"a\":" T("\"F64\"", "[2305843009213693952]", "[0,0]") "}", 2, HELM_E_LIMIT, "overflows 64 bits"},
    {"{\"a\":" T("\"F16\"", "[99999999999999999999]", "[0,2]") "}", 2, HELM_E_FORMAT,
     "entry 0 is not a whole number"},
    {"{\"a\":" T("\"F16\"", "[1]", "[0]") "}", 2, HELM_E_FORMAT, "'data_offsets' is not a list of two"},
    {"{\"a\":" T("\"F16\"", "[1]", "[0,\"2\"]") "}", 2, HELM_E_FORMAT, "'data_offsets' entry 1"},
    {"{\"a\":" T("\"F16\"", "[1]", "[-2,0]") "}", 2, HELM_E_FORMAT, "'data_offsets' entry 0"},
    {"{\"a\":" T("\"F16\"", "[1]", "[2,0]") "}", 2, HELM_E_FORMAT, "end at 0 before they begin at 2"},
    {"{\"a\":" T("\"F16\"", "[2]", "[0,4]") "}", 2, HELM_E_FORMAT,
     "an incomplete download: 64 bytes are there, 66 expected"},
    {"{\"a\":" T("\"F16\"", "[2]", "[0,2]") "}", 2, HELM_E_FORMAT, "span 2 bytes, dtype and shape need 4"},
    {"{\"a\":" T("\"F16\"", "[1]", "[2,4]") "}", 4, HELM_E_FORMAT,
     "gap of 2 bytes between the header and tensor 'a'"},
    {"{\"a\":" T("\"F16\"", "[1]", "[0,2]") ",\"b\":" T("\"F16\"", "[1]", "[4,6]") "}", 6, HELM_E_FORMAT,
     "gap of 2 bytes between a and tensor 'b'"},
    {"{\"a\":" T("\"F16\"", "[2]", "[0,4]") ",\"b\":" T("\"F16\"", "[1]", "[2,4]") "}", 4, HELM_E_FORMAT,
     "tensor 'b' begins at 2 and overlaps a, which ends at 4"},
    {"{\"a\":" T("\"F16\"", "[1]", "[0,2]") ",\"b\":" T("\"F16\"", "[1]", "[0,2]") "}", 2, HELM_E_FORMAT,
     "overlaps"},
    {"{\"a\":" T("\"F16\"", "[1]", "[0,2]") "}", 3, HELM_E_FORMAT, "1 bytes follow the last tensor"},
    {"{}", 5, HELM_E_FORMAT, "5 bytes follow the last tensor"},
    {"{\"a\":" T("\"F16\"", "[1]", "[0,2]") ",\"a\":" T("\"F16\"", "[1]", "[2,4]") "}", 4, HELM_E_FORMAT,
     "duplicate"},
    {"{\"\":" T("\"F16\"", "[1]", "[0,2]") "}", 2, HELM_E_FORMAT, "empty name"},
    {"{\"a\\u001b[31m\":" T("\"F16\"", "[1]", "[0,2]") "}", 2, HELM_E_FORMAT, "the byte 0x1b at 1"},
    {"{\"a b\":" T("\"F16\"", "[1]", "[0,2]") "}", 2, HELM_E_FORMAT, "the byte 0x20 at 1"},
};

static void test_hostile_headers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        struct safetensors h;
        struct helm_err err = {0};
        int rc = parse(hostile[i].header, hostile[i].data_bytes, &h, &err);
        if (rc != hostile[i].code || !strstr(err.text, hostile[i].text))
            fail_msg("%s: code %d, text '%s'; expected %d, '%s'", hostile[i].header, rc, err.text,
                     hostile[i].code, hostile[i].text);
        assert_null(h.entries);
        assert_null(h.json);
        assert_int_equal(strncmp(err.text, "f.safetensors: ", 15), 0);
    }
}

static void test_long_name(void **state)
{
    (void)state;
    struct safetensors h;
    struct helm_err err = {0};
    char name[MODEL_NAME_MAX + 1], text[512];
    memset(name, 'n', MODEL_NAME_MAX);
    name[MODEL_NAME_MAX] = '\0';
    snprintf(text, sizeof text, "{\"%s\":" T("\"F16\"", "[1]", "[0,2]") "}", name);
    assert_int_equal(parse(text, 2, &h, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "160 bytes, the limit is 159"));
    snprintf(text, sizeof text, "{\"%s\":" T("\"F16\"", "[1]", "[0,2]") "}", name + 1);
    assert_int_equal(parse(text, 2, &h, &err), 0);
    safetensors_free(&h);
}

static void test_too_many_tensors(void **state)
{
    (void)state;
    struct safetensors h;
    struct helm_err err = {0};
    size_t size = (size_t)(MODEL_ENTRIES_MAX + 2) * 80, used = 1;
    char *text = malloc(size);
    strcpy(text, "{");
    for (uint32_t i = 0; i <= MODEL_ENTRIES_MAX; i++)
        used += (size_t)snprintf(text + used, size - used, "%s\"t%u\":" T("\"U8\"", "[0]", "[0,0]"),
                                 i ? "," : "", i);
    strcpy(text + used, "}");
    assert_int_equal(parse(text, 0, &h, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "262145 tensors, the limit is 262144"));
    free(text);
}

static void put_word(uint8_t word[8], uint64_t value)
{
    for (int i = 0; i < 8; i++) word[i] = (uint8_t)(value >> (8 * i));
}

static void test_header_length(void **state)
{
    (void)state;
    struct helm_err err = {0};
    uint8_t word[8];
    uint64_t length;
    put_word(word, 92);
    assert_int_equal(safetensors_header_length("f", word, 100, &length, &err), 0);
    assert_int_equal(length, 92);
    put_word(word, 93);
    assert_int_equal(safetensors_header_length("f", word, 100, &length, &err), HELM_E_FORMAT);
    assert_non_null(
        strstr(err.text, "f: an incomplete download: 100 bytes are there, at least 101 expected"));
    put_word(word, SAFETENSORS_HEADER_MAX + 1ull);
    assert_int_equal(safetensors_header_length("f", word, UINT64_MAX, &length, &err), HELM_E_LIMIT);
    put_word(word, UINT64_MAX);
    assert_int_equal(safetensors_header_length("f", word, 100, &length, &err), HELM_E_LIMIT);
    assert_int_equal(length, 0);
}

static void test_read_from_file(void **state)
{
    (void)state;
    struct safetensors h;
    struct helm_err err = {0};
    static const char json[] = "{\"a\":" T("\"F16\"", "[1]", "[0,2]") "}";
    uint8_t word[8], data[2] = {0};
    char path[] = "/tmp/helm-test-safetensors-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    unlink(path);
    assert_int_equal(safetensors_read(fd, 0, "f", &h, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "f: an incomplete download: 0 bytes are there, at least 8 expected"));
    put_word(word, sizeof json - 1);
    assert_int_equal(write(fd, word, 8), 8);
    assert_int_equal(write(fd, json, sizeof json - 1), sizeof json - 1);
    assert_int_equal(write(fd, data, 2), 2);
    uint64_t bytes = 8 + sizeof json - 1 + 2;
    if (safetensors_read(fd, bytes, "f", &h, &err)) fail_msg("%s", err.text);
    assert_int_equal(h.data_offset, bytes - 2);
    assert_int_equal(h.count, 1);
    safetensors_free(&h);
    /* A file that shrank after its size was asked for. */
    assert_int_equal(ftruncate(fd, 20), 0);
    assert_int_equal(safetensors_read(fd, bytes, "f", &h, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "file ends at byte 20"));
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepts),       cmocka_unit_test(test_hostile_headers),
        cmocka_unit_test(test_long_name),     cmocka_unit_test(test_too_many_tensors),
        cmocka_unit_test(test_header_length), cmocka_unit_test(test_read_from_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
