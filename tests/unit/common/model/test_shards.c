/* Reading a model's tensors from its files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/model/model.h"
#include "common/model/shards.h"

/* Rows that lie interleaved come in order, whatever part of them is asked for. */
static void test_interleaved_rows(void **state)
{
    (void)state;
    enum { ROWS = 24, WIDTH = 10, HEAD = 8 };
    char path[] = "/tmp/helm-test-rows-XXXXXX";
    uint8_t file[7 + ROWS * WIDTH], wanted[ROWS * WIDTH], got[ROWS * WIDTH];
    struct helm_err err = {0};
    for (size_t i = 0; i < sizeof file; i++) file[i] = (uint8_t)(i * 7 + 3);
    for (int r = 0; r < ROWS; r++) {
        const int head = r / HEAD, i = r % HEAD;
        /* The file's row 2i is row i, its row 2i + 1 row i + HEAD / 2. */
        const int there = head * HEAD + (i < HEAD / 2 ? 2 * i : 2 * (i - HEAD / 2) + 1);
        memcpy(wanted + r * WIDTH, file + 7 + there * WIDTH, WIDTH);
    }
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    unlink(path);
    assert_int_equal(write(fd, file, sizeof file), sizeof file);
    _Atomic uint64_t content = 0;
    const struct model_shards shards = {.fd = &fd, .count = 1, .content = &content};
    const struct model_tensor matrix = {.name = "q",
                                        .rows = ROWS,
                                        .cols = WIDTH,
                                        .bytes = ROWS * WIDTH,
                                        .offset = 7,
                                        .interleaved_heads = ROWS / HEAD};
    struct model_tensor straight = matrix, bias = matrix;
    for (uint64_t from = 0; from <= sizeof wanted; from++)
        for (uint64_t bytes = 0; from + bytes <= sizeof wanted; bytes += 1 + from % 3) {
            memset(got, 0xee, sizeof got);
            assert_int_equal(model_shards_read(&shards, &matrix, from, bytes, got, &err), 0);
            assert_memory_equal(got, wanted + from, bytes);
            if (bytes < sizeof got) assert_int_equal(got[bytes], 0xee);
        }
    straight.interleaved_heads = 0;
    assert_int_equal(model_shards_read(&shards, &straight, 5, 100, got, &err), 0);
    assert_memory_equal(got, file + 12, 100);
    bias.rows = 1, bias.cols = ROWS; /* values of WIDTH bytes */
    assert_int_equal(model_shards_read(&shards, &bias, 0, sizeof got, got, &err), 0);
    assert_memory_equal(got, wanted, sizeof got);
    assert_int_equal(ftruncate(fd, sizeof file - 1), 0);
    assert_int_equal(model_shards_read(&shards, &matrix, 0, sizeof got, got, &err), HELM_E_FORMAT);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_interleaved_rows),
    };
    return cmocka_run_group_tests_name("model/shards", tests, NULL, NULL);
}
