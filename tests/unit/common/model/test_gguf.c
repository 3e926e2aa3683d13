/* GGUF headers: what is accepted, and hostile ones with the error that each must give. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/common/model/build_gguf.h"

static struct built built;

/* Parses from memory that ends where the file does, so that a sanitizer sees reads after it. */
static int parse_part(const struct built *b, size_t length, struct gguf *header, bool *more,
                      struct helm_err *err)
{
    uint8_t *copy = malloc(length ? length : 1);
    assert_non_null(copy);
    memcpy(copy, b->bytes, length);
    int rc = gguf_parse(&(struct gguf_source){"f.gguf", copy, length, length, false}, header, more, err);
    if (rc)
        free(copy);
    else
        header->bytes = copy;
    return rc;
}

static void refuse(const struct built *b, int code, const char *text)
{
    struct gguf header;
    struct helm_err err = {0};
    bool more;
    int rc = parse_part(b, b->length, &header, &more, &err);
    if (rc != code || !strstr(err.text, text) || !strstr(err.text, "f.gguf"))
        fail_msg("'%s': %d, \"%s\"", text, rc, err.text);
    assert_null(header.entries);
    assert_null(header.values);
    assert_false(more);
}

static void good_file(struct built *b)
{
    put_start(b, 3, 8);
    put_text(b, "general.architecture", "llama");
    put_u32(b, "general.alignment", 64);
    put_f32(b, "a.float", 0.5f);
    put_key(b, "a.minus", GGUF_I16);
    put(b, (uint16_t)-7, 2);
    put_key(b, "a.wide", GGUF_I64);
    put(b, (uint64_t)-9, 8);
    put_key(b, "a.flag", GGUF_BOOL);
    put(b, 1, 1);
    put_key(b, "a.words", GGUF_ARRAY);
    put(b, GGUF_STRING, 4);
    put(b, 2, 8);
    put_string(b, "one");
    put_string(b, "");
    put_key(b, "a.layers", GGUF_ARRAY);
    put(b, GGUF_U8, 4);
    put(b, 3, 8);
    put(b, 0x050505, 3);
    put_tensor(b, "b", 32, 3, 8, 64); /* Q8_0: 102 bytes */
    put_tensor(b, "a", 5, 0, 0, 0);   /* F32 */
    put_tensor(b, "c", 2, 2, 30, 192);
    put_data(b, 64, 200);
}

static void test_accepts(void **state)
{
    (void)state;
    struct gguf h;
    struct helm_err err = {0};
    bool more;
    good_file(&built);
    if (parse_part(&built, built.length, &h, &more, &err)) fail_msg("%s", err.text);
    assert_int_equal(h.count, 3);
    assert_int_equal(h.alignment, 64);
    assert_int_equal(h.data_offset % 64, 0);
    assert_int_equal(h.data_offset + 200, built.length);
    assert_string_equal(h.entries[0].name, "a");
    assert_int_equal(h.entries[0].rank, 1);
    assert_int_equal(h.entries[0].bytes, 20);
    assert_string_equal(h.entries[1].name, "b");
    assert_int_equal(h.entries[1].format, FORMAT_Q8_0);
    assert_int_equal(h.entries[1].shape[0], 3);
    assert_int_equal(h.entries[1].shape[1], 32);
    assert_int_equal(h.entries[1].bytes, 3 * 34);
    assert_int_equal(h.entries[2].begin, 192);
    assert_ptr_equal(gguf_find_tensor(&h, "c"), &h.entries[2]);
    assert_null(gguf_find_tensor(&h, "d"));

    uint64_t number = 77;
    double real = 3;
    char text[16] = "x";
    assert_int_equal(gguf_get_string(&h, "general.architecture", true, text, sizeof text, &err), 0);
    assert_string_equal(text, "llama");
    assert_int_equal(gguf_get_string(&h, "general.architecture", true, text, 5, &err), HELM_E_LIMIT);
    assert_int_equal(gguf_get_string(&h, "a.float", true, text, 5, &err), HELM_E_FORMAT);
    assert_int_equal(gguf_get_double(&h, "a.float", true, 0, 1, &real, &err), 0);
    assert_true(real == 0.5);
    assert_int_equal(gguf_get_double(&h, "a.float", true, 0.75, 1, &real, &err), HELM_E_LIMIT);
    assert_int_equal(gguf_get_double(&h, "a.wide", true, -10, 0, &real, &err), 0);
    assert_true(real == -9);
    assert_int_equal(gguf_get_double(&h, "a.minus", true, -10, 0, &real, &err), 0);
    assert_true(real == -7);
    assert_int_equal(gguf_get_u64(&h, "a.minus", true, 0, 10, &number, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "-7"));
    assert_int_equal(gguf_get_u64(&h, "a.absent", true, 0, 10, &number, &err), HELM_E_NOT_FOUND);
    assert_int_equal(gguf_get_u64(&h, "a.absent", false, 0, 10, &number, &err), 0);
    assert_int_equal(gguf_get_u64(&h, "a.float", false, 0, 10, &number, &err), HELM_E_FORMAT);
    assert_int_equal(number, 77);
    assert_int_equal(gguf_get_u64(&h, "a.layers", true, 0, 10, &number, &err), 0);
    assert_int_equal(number, 5);
    const struct gguf_value *words = gguf_find(&h, "a.words");
    assert_non_null(words);
    assert_int_equal(words->count, 2);
    const uint8_t *at = words->data;
    assert_memory_equal(gguf_string(&at, &number), "one", 3);
    assert_int_equal(number, 3);
    gguf_string(&at, &number);
    assert_int_equal(number, 0);
    gguf_free(&h);
    gguf_free(&h); /* a zeroed one is fine */
    put_start(&built, 0, 0);
    assert_int_equal(parse_part(&built, built.length, &h, &more, &err), 0);
    gguf_free(&h);
}

/* Cut at every byte: an error, and never a read after the end. */
static void test_truncated(void **state)
{
    (void)state;
    struct gguf h;
    bool more;
    good_file(&built);
    const size_t header = built.length - 200;
    for (size_t length = 0; length < built.length; length++) {
        struct helm_err err = {0};
        if (parse_part(&built, length, &h, &more, &err) == 0) {
            /* the last tensor's 8 bytes end the data; there is no padding to miss */
            fail_msg("%zu of %zu bytes are accepted", length, built.length);
        }
        assert_true(err.code != 0 && strstr(err.text, "f.gguf"));
        assert_false(more);
        /* The same as the beginning of a whole file: more is asked for exactly while the header is not
         * whole. */
        uint8_t *copy = malloc(length + 1);
        memcpy(copy, built.bytes, length);
        err = (struct helm_err){0};
        int rc =
            gguf_parse(&(struct gguf_source){"f.gguf", copy, length, built.length, false}, &h, &more, &err);
        assert_int_equal(rc != 0, more);
        if (length >= header) assert_int_equal(rc, 0);
        gguf_free(&h);
        /* For planning the data may be missing. */
        rc = gguf_parse(&(struct gguf_source){"f.gguf", copy, length, length, true}, &h, &more, &err);
        if (length >= header) assert_int_equal(rc, 0);
        gguf_free(&h);
        free(copy);
    }
}

static void test_counts(void **state)
{
    (void)state;
    static const uint64_t huge[] = {UINT64_C(1) << 63, UINT64_MAX, UINT64_MAX / 8 + 2, 1u << 31};
    for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
        put_start(&built, 0, huge[i]);
        refuse(&built, HELM_E_LIMIT, "key/values, the limit is");
        put_start(&built, huge[i], 0);
        refuse(&built, HELM_E_LIMIT, "tensors, the limit is");
        put_start(&built, 0, 1); /* a key longer than the file */
        put(&built, huge[i], 8);
        refuse(&built, HELM_E_LIMIT, "a key");
        put_start(&built, 0, 1); /* a string */
        put_key(&built, "k", GGUF_STRING);
        put(&built, huge[i], 8);
        refuse(&built, HELM_E_FORMAT, "key 'k': a string");
        for (int type = 0; type < GGUF_TYPES; type++) { /* an array */
            if (type == GGUF_ARRAY) continue;
            put_start(&built, 0, 1);
            put_key(&built, "k", GGUF_ARRAY);
            put(&built, (uint64_t)type, 4);
            put(&built, huge[i], 8);
            refuse(&built, HELM_E_FORMAT, "key 'k'");
        }
        put_start(&built, 1, 0);
        put(&built, huge[i], 8);
        refuse(&built, HELM_E_LIMIT, "a tensor's name");
    }
    put_start(&built, 2, 0); /* fewer than it says */
    put_tensor(&built, "a", 1, 0, 0, 0);
    refuse(&built, HELM_E_FORMAT, "an incomplete download: ");
}

static void test_keys(void **state)
{
    (void)state;
    put_start(&built, 0, 1); /* nested arrays */
    put_key(&built, "k", GGUF_ARRAY);
    put(&built, GGUF_ARRAY, 4);
    put(&built, 1, 8);
    put(&built, GGUF_U8, 4);
    put(&built, 1, 8);
    put(&built, 1, 1);
    refuse(&built, HELM_E_UNSUPPORTED, "key 'k': an array of arrays");
    put_start(&built, 0, 1);
    put_key(&built, "k", GGUF_TYPES);
    refuse(&built, HELM_E_FORMAT, "type 13");
    put_start(&built, 0, 1);
    put_key(&built, "k", GGUF_BOOL);
    put(&built, 2, 1);
    refuse(&built, HELM_E_FORMAT, "neither 0 nor 1");
    put_start(&built, 0, 2);
    put_u32(&built, "same", 1);
    put_u32(&built, "same", 1);
    refuse(&built, HELM_E_FORMAT, "key 'same' is there twice");
    put_start(&built, 0, 1);
    put_u32(&built, "", 1);
    refuse(&built, HELM_E_LIMIT, "a key: 0 bytes");
    put_start(&built, 0, 1);
    put_u32(&built, "tab\there", 1);
    refuse(&built, HELM_E_FORMAT, "byte 0x09");
    char name[GGUF_KEY_MAX + 1] = {0};
    memset(name, 'k', GGUF_KEY_MAX);
    put_start(&built, 0, 1);
    put_u32(&built, name, 1);
    refuse(&built, HELM_E_LIMIT, "a key: 128 bytes");
    static const uint32_t bad[] = {0, 3, 31, 33, 1u << 31, UINT32_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put_start(&built, 0, 1);
        put_u32(&built, "general.alignment", bad[i]);
        refuse(&built, bad[i] && bad[i] < 100 ? HELM_E_FORMAT : HELM_E_LIMIT, "general.alignment");
    }
    put_start(&built, 0, 1);
    put_text(&built, "general.alignment", "32");
    refuse(&built, HELM_E_FORMAT, "'general.alignment' is string");
}

static void test_start(void **state)
{
    (void)state;
    put_start(&built, 0, 0);
    built.bytes[0] = 'X';
    refuse(&built, HELM_E_FORMAT, "no GGUF file");
    static const uint32_t versions[] = {0, 1, 4, 3u << 24};
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        put_start(&built, 0, 0);
        memcpy(built.bytes + 4, &versions[i], 4);
        refuse(&built, HELM_E_UNSUPPORTED, "version");
    }
}

static void one_tensor(struct built *b, uint32_t rank, const uint64_t *dimension, uint32_t type,
                       uint64_t offset)
{
    put_start(b, 1, 0);
    put_string(b, "t");
    put(b, rank, 4);
    for (uint32_t i = 0; i < rank; i++) put(b, dimension[i], 8);
    put(b, type, 4);
    put(b, offset, 8);
    put_data(b, 32, 128);
}

static void test_tensors(void **state)
{
    (void)state;
    static const uint64_t most = INT64_MAX, half = UINT64_C(1) << 63;
    static const struct {
        uint32_t rank;
        uint64_t dimension[5];
        uint32_t type;
        uint64_t offset;
        int code;
        const char *text;
    } cases[] = {
        {0, {0}, 0, 0, HELM_E_LIMIT, "tensor 't': 0 dimensions"},
        {5, {1, 1, 1, 1, 1}, 0, 0, HELM_E_LIMIT, "tensor 't': 5 dimensions"},
        {1, {0}, 0, 0, HELM_E_FORMAT, "dimension 0 is 0"},
        {2, {4, UINT64_MAX}, 0, 0, HELM_E_FORMAT, "dimension 1 is -1"},
        {2, {4, half}, 0, 0, HELM_E_FORMAT, "dimension 1 is -"},
        {1, {most}, 0, 0, HELM_E_LIMIT, "overflows"},
        {2, {UINT64_C(1) << 32, UINT64_C(1) << 31}, 0, 0, HELM_E_LIMIT, "overflows"},
        {4, {UINT64_C(1) << 20, 1 << 20, 1 << 20, 16}, 1, 0, HELM_E_LIMIT, "overflows"},
        {4, {UINT64_C(1) << 32, 1u << 31, 2, 2}, 8, 0, HELM_E_LIMIT, "overflows"},
        {1, {1 << 20}, 0, 0, HELM_E_FORMAT, "an incomplete download"},
        {1, {33}, 0, 0, HELM_E_FORMAT, "an incomplete download"},
        {1, {32}, 0, 32, HELM_E_FORMAT, "begins at 32"},
        {1, {1}, 0, UINT64_MAX, HELM_E_FORMAT, "begins at 18446744073709551615"},
        {1, {32}, 0, half, HELM_E_FORMAT, "begins at"},
        {1,
         {33},
         8,
         0,
         HELM_E_FORMAT,
         "tensor 't': rows of 33 values are no whole blocks of 32, as Q8_0 needs"},
        {2, {288, 4}, 12, 0, HELM_E_FORMAT, "rows of 288 values are no whole blocks of 256, as Q4_K needs"},
        {2, {272, 4}, 20, 0, HELM_E_FORMAT, "rows of 272 values are no whole blocks of 32, as IQ4_NL needs"},
        {1, {24}, 0, 0, HELM_E_FORMAT, "32 bytes follow"},
        {1, {32}, 4, 0, HELM_E_UNSUPPORTED, "type unknown (4)"},
        {1, {256}, 35, 0, HELM_E_UNSUPPORTED, "type TQ2_0 (35) is not supported (supported: F32, F16"},
        {1, {32}, 24, 0, HELM_E_UNSUPPORTED, "type I8 (24)"},
        {1, {32}, UINT32_MAX, 0, HELM_E_UNSUPPORTED, "type unknown (4294967295)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        one_tensor(&built, cases[i].rank, cases[i].dimension, cases[i].type, cases[i].offset);
        refuse(&built, cases[i].code, cases[i].text);
    }
}

/* All tensors of types that are not supported are named, or the first and how many more there are. */
static void test_types(void **state)
{
    (void)state;
    static const char *const name[] = {"blk.0.a", "blk.0.b", "blk.0.c", "blk.1.a", "blk.1.b"};
    put_start(&built, 3, 0);
    put_tensor(&built, "fine", 32, 0, 8, 0);
    put_tensor(&built, "blk.0.a", 256, 0, 35, 64);
    put_tensor(&built, "blk.0.b", 100, 0, 99, 128);
    refuse(&built, HELM_E_UNSUPPORTED,
           "2 tensors have types that are not supported: 'blk.0.a' TQ2_0 (35), 'blk.0.b' unknown (99) "
           "(supported: F32, F16");
    put_start(&built, 5, 0);
    for (int i = 0; i < 5; i++) put_tensor(&built, name[i], 256, 0, 34, 0);
    refuse(&built, HELM_E_UNSUPPORTED,
           "5 tensors have types that are not supported: 'blk.0.a' TQ1_0 (34), 'blk.0.b' TQ1_0 (34), "
           "'blk.0.c' TQ1_0 (34) and 2 more (supported: ");
}

static void test_places(void **state)
{
    (void)state;
    static const struct {
        uint64_t offset[2];
        const char *text;
    } cases[] = {{{0, 0}, "begins at 0"},    /* one upon the other */
                 {{0, 32}, "begins at 32"},  /* overlap: the first has 36 bytes */
                 {{0, 36}, "begins at 36"},  /* not aligned */
                 {{0, 96}, "begins at 96"},  /* a gap */
                 {{32, 96}, "begins at 32"}, /* before the first */
                 {{0, UINT64_MAX - 31}, "begins at"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_start(&built, 2, 0);
        put_tensor(&built, "t", 9, 0, 0, cases[i].offset[0]);
        put_tensor(&built, "u", 9, 0, 0, cases[i].offset[1]);
        put_data(&built, 32, 256);
        refuse(&built, HELM_E_FORMAT, cases[i].text);
    }
    put_start(&built, 2, 0);
    put_tensor(&built, "t", 1, 0, 0, 0);
    put_tensor(&built, "t", 1, 0, 0, 32);
    put_data(&built, 32, 64);
    refuse(&built, HELM_E_FORMAT, "tensor 't' is there twice");
    char name[GGUF_NAME_MAX + 1] = {0};
    memset(name, 'n', GGUF_NAME_MAX);
    put_start(&built, 1, 0);
    put_tensor(&built, name, 1, 0, 0, 0);
    put_data(&built, 32, 4);
    refuse(&built, HELM_E_LIMIT, "a tensor's name: 64 bytes");
    name[GGUF_NAME_MAX - 1] = '\0';
    struct gguf h;
    struct helm_err err = {0};
    bool more;
    put_start(&built, 1, 0);
    put_tensor(&built, name, 1, 0, 0, 0);
    put_data(&built, 32, 4);
    if (parse_part(&built, built.length, &h, &more, &err)) fail_msg("%s", err.text);
    gguf_free(&h);
}

/* A header longer than what is read at first: 5 MiB of words. */
static void test_reads_long_headers(void **state)
{
    (void)state;
    char path[] = "/tmp/helm-test-gguf-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    unlink(path);
    FILE *file = fdopen(fd, "wb");
    put_start(&built, 0, 1);
    put_key(&built, "words", GGUF_ARRAY);
    put(&built, GGUF_STRING, 4);
    put(&built, 5 << 16, 8);
    assert_int_equal(fwrite(built.bytes, 1, built.length, file), built.length);
    built.length = 0;
    put_string(&built, "12345678");
    for (size_t i = 0; i < 5 << 16; i++)
        assert_int_equal(fwrite(built.bytes, 1, built.length, file), built.length);
    assert_int_equal(fflush(file), 0);
    struct gguf h;
    struct helm_err err = {0};
    const uint64_t bytes = (uint64_t)ftell(file);
    if (gguf_read(fd, bytes, "f.gguf", false, &h, &err)) fail_msg("%s", err.text);
    assert_int_equal(gguf_find(&h, "words")->count, 5 << 16);
    gguf_free(&h);
    assert_int_equal(ftruncate(fd, (off_t)bytes - 1), 0);
    assert_int_equal(gguf_read(fd, bytes - 1, "f.gguf", false, &h, &err), HELM_E_FORMAT);
    fclose(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepts),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_start),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_reads_long_headers),
    };
    return cmocka_run_group_tests_name("model/gguf", tests, NULL, NULL);
}
