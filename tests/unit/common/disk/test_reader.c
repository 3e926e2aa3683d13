/* Unit tests of the reader, in both ways: bytes as the file has them, whatever sizes of reads, parts and
 * queue; many reads at once; the end of the file inside a block; and each fault: a file that ends too early,
 * a descriptor that cannot be read, a read that fails with EIO. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/disk/reader.h"

#define FILE_BYTES (40 * DISK_ALIGN + 1234)
#define READS      24

static char path[] = "build/test-reader-XXXXXX";
static unsigned char *content;

static int make_file(void **state)
{
    (void)state;
    const int fd = mkstemp(path);
    content = malloc(FILE_BYTES);
    if (fd < 0 || !content) return -1;
    for (size_t i = 0; i < FILE_BYTES; i++) content[i] = (unsigned char)(i * 2654435761u >> 13);
    const bool all = write(fd, content, FILE_BYTES) == FILE_BYTES;
    close(fd);
    return all ? 0 : -1;
}

static int remove_file(void **state)
{
    (void)state;
    free(content);
    return unlink(path);
}

static struct disk_reader *open_reader(enum disk_reader_way way, uint32_t depth, uint32_t block)
{
    struct disk_reader *reader = NULL;
    struct helm_err err = {0};
    const struct disk_reader_options o = {.way = way, .depth = depth, .block = block};
    const int rc = disk_reader_open(&o, &reader, &err);
    if (rc == HELM_E_UNSUPPORTED && way == DISK_URING) return NULL;
    if (rc) fail_msg("%s", err.text);
    return reader;
}

static int open_file(void)
{
    const int fd = open(path, O_RDONLY | O_DIRECT);
    assert_true(fd >= 0);
    return fd;
}

/* Every read of a few blocks, all submitted at once; the last one ends with the file. */
static void read_all(struct disk_reader *reader, uint32_t blocks)
{
    struct disk_reading read[READS];
    const int fd = open_file();
    const uint64_t bytes = (uint64_t)blocks * DISK_ALIGN;
    char *memory = aligned_alloc(DISK_ALIGN, READS * bytes);
    uint32_t count = 0, done = 0;
    assert_non_null(memory);
    memset(memory, 0xee, READS * bytes);
    for (uint64_t at = 0; at < FILE_BYTES && count < READS; at += bytes, count++) {
        const uint64_t left = FILE_BYTES - at;
        read[count] = (struct disk_reading){.fd = fd,
                                            .offset = at,
                                            .bytes = bytes,
                                            .least = left < bytes ? left : bytes,
                                            .to = memory + count * bytes};
        disk_reader_submit(reader, &read[count]);
    }
    for (struct disk_reading *r; (r = disk_reader_done(reader, true)); done++) {
        assert_int_equal(r->error, 0);
        assert_false(r->ended);
        assert_memory_equal(r->to, content + r->offset, r->least);
    }
    assert_int_equal(done, count);
    assert_null(disk_reader_done(reader, false));
    free(memory);
    close(fd);
}

static void bytes_are_the_files(void **state)
{
    (void)state;
    static const uint32_t depths[] = {1, 3, 16}, parts[] = {1, 2, 5, 256}, blocks[] = {2, 3, 7, 41};
    for (int way = 0; way < DISK_WAYS; way++)
        for (size_t d = 0; d < 3; d++)
            for (size_t p = 0; p < 4; p++) {
                struct disk_reader *reader =
                    open_reader((enum disk_reader_way)way, depths[d], parts[p] * DISK_ALIGN);
                if (!reader) continue;
                for (size_t b = 0; b < 4; b++) read_all(reader, blocks[b]);
                disk_reader_close(reader);
            }
}

/* One read, with what is said of it when it is done. */
static struct disk_reading read_one(enum disk_reader_way way, int fd, uint64_t offset, uint64_t least)
{
    const uint64_t bytes = (least + DISK_ALIGN - 1) / DISK_ALIGN * DISK_ALIGN;
    struct disk_reader *reader = open_reader(way, 4, DISK_ALIGN);
    if (!reader) skip();
    struct disk_reading read = {
        .fd = fd, .offset = offset, .bytes = bytes, .least = least, .to = aligned_alloc(DISK_ALIGN, bytes)};
    assert_non_null(read.to);
    disk_reader_submit(reader, &read);
    assert_ptr_equal(disk_reader_done(reader, true), &read);
    disk_reader_close(reader);
    free(read.to);
    return read;
}

static void faults(enum disk_reader_way way)
{
    const int fd = open_file(), memory = open("/proc/self/mem", O_RDONLY), writer = open(path, O_WRONLY);
    assert_true(memory >= 0 && writer >= 0);
    /* The file ends in the last block, and before what is needed. */
    struct disk_reading r = read_one(way, fd, 38 * DISK_ALIGN, 2 * DISK_ALIGN + 1234);
    assert_true(!r.error && !r.ended);
    r = read_one(way, fd, 38 * DISK_ALIGN, 2 * DISK_ALIGN + 1235);
    assert_true(!r.error && r.ended);
    assert_int_equal(r.failed_at, FILE_BYTES);
    r = read_one(way, fd, 50 * DISK_ALIGN, DISK_ALIGN);
    assert_true(!r.error && r.ended);
    assert_int_equal(r.failed_at, 50 * DISK_ALIGN);
    /* No memory is mapped at address 0 of a process: EIO. */
    r = read_one(way, memory, 0, 3 * DISK_ALIGN);
    assert_true(r.error == EIO && !r.ended && r.failed_at == 0);
    r = read_one(way, writer, 0, DISK_ALIGN);
    assert_int_equal(r.error, EBADF);
    close(fd);
    close(memory);
    close(writer);
}

static void faults_are_told_by_io_uring(void **state)
{
    (void)state;
    faults(DISK_URING);
}

static void faults_are_told_by_threads(void **state)
{
    (void)state;
    faults(DISK_THREADS);
}

static void impossible_readers_are_refused(void **state)
{
    (void)state;
    static const struct disk_reader_options wrong[] = {{.depth = 0, .block = DISK_ALIGN},
                                                       {.depth = DISK_DEPTH_MAX + 1, .block = DISK_ALIGN},
                                                       {.depth = 1, .block = 0},
                                                       {.depth = 1, .block = 100}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct disk_reader *reader;
        struct helm_err err = {0};
        assert_int_equal(disk_reader_open(&wrong[i], &reader, &err), HELM_E_LIMIT);
        assert_null(reader);
    }
    disk_reader_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bytes_are_the_files),
                                       cmocka_unit_test(faults_are_told_by_io_uring),
                                       cmocka_unit_test(faults_are_told_by_threads),
                                       cmocka_unit_test(impossible_readers_are_refused)};
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
