/* Files of importance: both kinds read to the same; what is wrong in them is named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/model/gguf_write.h"
#include "tools/quantize/imatrix.h"

#define COLS 8
static const float sums[2][COLS] = {{4, 0, 2, 2, 8, 0, 0, 0}, {3, 3, 3, 3, 3, 3, 3, 3}};
static const char *const names[] = {"blk.0.ffn_up.weight", "blk.0.ffn_down.weight"};

struct bytes {
    uint8_t data[4096];
    size_t length;
};
static void put(struct bytes *b, const void *from, size_t length)
{
    memcpy(b->data + b->length, from, length);
    b->length += length;
}
static void put_i32(struct bytes *b, int32_t number)
{
    put(b, &number, sizeof number);
}

static struct bytes old_kind(int32_t calls, int32_t cols)
{
    struct bytes b = {.length = 0};
    put_i32(&b, 2);
    for (int i = 0; i < 2; i++) {
        put_i32(&b, (int32_t)strlen(names[i]));
        put(&b, names[i], strlen(names[i]));
        put_i32(&b, calls);
        put_i32(&b, cols);
        put(&b, sums[i], sizeof sums[i]);
    }
    put_i32(&b, 5); /* a last chunk and a data set's name, which newer files of this kind have */
    return b;
}

/* Sums of both matrices, and counts unless `without`; and those of a matrix of three experts, the last of
 * which was never called. */
struct written {
    const char *type;
    float calls;
    bool without;
};
static struct bytes gguf_kind(const struct written *w)
{
    char path[] = "/tmp/helm-imatrix-XXXXXX", *text;
    static const float experts[3 * COLS] = {[0] = 400, [1] = 400, [COLS] = 1, [COLS + 1] = 3, [2 * COLS] = 9};
    const float calls[3] = {w->calls, w->calls, 0};
    struct gguf_values values = {0};
    struct gguf_output_tensor t[6];
    const void *data[6] = {experts, calls};
    struct gguf_output output;
    struct helm_err err = {0};
    struct bytes b;
    uint32_t count = 2;
    t[0] = (struct gguf_output_tensor){.name = "blk.0.ffn_up_exps.weight.in_sum2",
                                       .format = FORMAT_F32,
                                       .rows = 3,
                                       .cols = COLS};
    t[1] = (struct gguf_output_tensor){.name = "blk.0.ffn_up_exps.weight.counts",
                                       .format = FORMAT_F32,
                                       .rows = 3,
                                       .cols = 1};
    for (int i = 0; i < 2; i++) {
        t[count] = (struct gguf_output_tensor){.format = FORMAT_F32, .rows = 1, .cols = COLS, .vector = true};
        snprintf(t[count].name, sizeof t[count].name, "%s.in_sum2", names[i]);
        data[count++] = sums[i];
        if (w->without) continue;
        t[count] = (struct gguf_output_tensor){.format = FORMAT_F32, .rows = 1, .cols = 1, .vector = true};
        snprintf(t[count].name, sizeof t[count].name, "%s.counts", names[i]);
        data[count++] = calls;
    }
    gguf_put_text(&values, "general.type", w->type);
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    if (gguf_output_open(path, &values, t, count, &output, &err)) fail_msg("%s", err.text);
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(gguf_output_write(&output, &t[i], 0, data[i], t[i].bytes, &err), 0);
    assert_int_equal(gguf_output_finish(&output, &err), 0);
    assert_int_equal(file_read(path, sizeof b.data, &text, &b.length, &err), 0);
    memcpy(b.data, text, b.length);
    free(text);
    unlink(path);
    gguf_values_free(&values);
    return b;
}

/* Sums of 16 over 8 columns: halves of them are importance; what was never used has a little. */
static void check(const struct bytes *b, bool experts)
{
    struct imatrix m;
    struct helm_err err = {0};
    const float *importance;
    if (imatrix_parse("test", b->data, b->length, &m, &err)) fail_msg("%s", err.text);
    assert_int_equal(m.count, experts ? 3 : 2);
    assert_int_equal(imatrix_find(&m, "blk.0.ffn_up_exps.weight", 3 * COLS, &importance, &err), 0);
    assert_int_equal(importance != NULL, experts);
    for (int i = 0; i < 3 * COLS && experts; i++) {
        static const float first[] = {4, 4}, second[] = {2, 6};
        const float expected = i >= 2 * COLS   ? 1
                               : i % COLS > 1  ? 1e-4f
                               : i / COLS == 0 ? first[i]
                                               : second[i - COLS];
        assert_true(fabsf(importance[i] - expected) < 1e-6f);
    }
    assert_int_equal(imatrix_find(&m, names[0], COLS, &importance, &err), 0);
    for (int i = 0; i < COLS; i++)
        assert_true(fabsf(importance[i] - (sums[0][i] > 0 ? sums[0][i] / 2 : 1e-4f)) < 1e-6f);
    assert_int_equal(imatrix_find(&m, names[1], COLS, &importance, &err), 0);
    for (int i = 0; i < COLS; i++) assert_true(importance[i] == 1);
    assert_int_equal(imatrix_find(&m, "output.weight", COLS, &importance, &err), 0);
    assert_null(importance);
    assert_int_equal(imatrix_find(&m, names[1], COLS + 1, &importance, &err), HELM_E_MISMATCH);
    assert_non_null(strstr(err.text, "has 9 columns, the imatrix 8"));
    imatrix_free(&m);
}

static void both_kinds_are_read(void **state)
{
    (void)state;
    const struct bytes old = old_kind(7, COLS), gguf = gguf_kind(&(struct written){"imatrix", 100, false});
    check(&old, false);
    check(&gguf, true);
}

static void refuses(const struct bytes *b, int code, const char *text)
{
    struct imatrix m;
    struct helm_err err = {0};
    assert_int_equal(imatrix_parse("FILE", b->data, b->length, &m, &err), code);
    assert_null(m.entries);
    assert_true(strncmp(err.text, "FILE: ", 6) == 0);
    if (!strstr(err.text, text)) fail_msg("'%s' does not say '%s'", err.text, text);
}

static void what_is_wrong_is_named(void **state)
{
    (void)state;
    struct bytes b = gguf_kind(&(struct written){"model", 1, false});
    refuses(&b, HELM_E_FORMAT, "of type 'model', not imatrix");
    b = gguf_kind(&(struct written){"imatrix", 1, true});
    refuses(&b, HELM_E_NOT_FOUND, "'blk.0.ffn_up.weight.in_sum2' has no 'blk.0.ffn_up.weight.counts'");
    b = gguf_kind(&(struct written){"imatrix", 0, false});
    refuses(&b, HELM_E_FORMAT, "no matrix was measured");
    b = gguf_kind(&(struct written){"imatrix", NAN, false});
    refuses(&b, HELM_E_FORMAT, "no matrix was measured");
    b = old_kind(0, COLS);
    refuses(&b, HELM_E_FORMAT, "no matrix was measured");
    b = old_kind(1, 0);
    refuses(&b, HELM_E_LIMIT, "'blk.0.ffn_up.weight': a number of columns is 0");
    b = old_kind(1, 1 << 30);
    refuses(&b, HELM_E_LIMIT, "a number of columns is 1073741824, not between 1 and 1048576");
    b = old_kind(-1, COLS);
    refuses(&b, HELM_E_LIMIT, "a number of calls is -1");
    b = old_kind(1, COLS);
    b.length -= 8;
    refuses(&b, HELM_E_FORMAT, "'blk.0.ffn_down.weight': 4 bytes are missing");
    b = old_kind(1, COLS);
    memset(b.data, 0xff, 4);
    refuses(&b, HELM_E_LIMIT, "the number of entries (no GGUF file: of the older kind) is -1");
    b = old_kind(1, COLS);
    b.data[9] = '\n';
    refuses(&b, HELM_E_FORMAT, "a name has the byte 0x0a");
    b = old_kind(1, COLS);
    memcpy(b.data + 8 + strlen(names[0]) + 8, &(float){-1}, 4);
    refuses(&b, HELM_E_FORMAT, "'blk.0.ffn_up.weight': column 0 has the importance -1");
    b.length = 3;
    refuses(&b, HELM_E_FORMAT, "1 bytes are missing");
}

static void the_same_name_twice_is_refused(void **state)
{
    (void)state;
    struct bytes once = old_kind(1, COLS), b = {.length = 0};
    const size_t entry = 4 + strlen(names[0]) + 8 + sizeof sums[0];
    put_i32(&b, 2);
    put(&b, once.data + 4, entry);
    put(&b, once.data + 4, entry);
    refuses(&b, HELM_E_FORMAT, "'blk.0.ffn_up.weight' is there twice");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_kinds_are_read),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(the_same_name_twice_is_refused),
    };
    return cmocka_run_group_tests_name("quantize/imatrix", tests, NULL, NULL);
}
