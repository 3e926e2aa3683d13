/* Unit tests of the reader, in both ways: bytes as the file has them, whatever sizes of reads, parts and
 * queue; many reads at once; the end of the file inside a block; and each fault: a file that ends too early,
 * a descriptor that cannot be read, a read that fails with EIO; a system that forbids a call of io_uring. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
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

/* ---- where io_uring is not allowed ---- */

/* This process cannot make one system call from now on: it fails with `error`. */
static bool forbid(int call, int error)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
    return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

enum { NO_FILTERS = 77, ALLOWED };

/* In a process of its own, since a filter stays: a usual reader reads the file by threads and says why. */
static int read_without(int call, int error, const char *reason)
{
    struct disk_reader *reader;
    struct helm_err refused, err = {0};
    if (!forbid(call, error)) return NO_FILTERS;
    if (disk_reader_open_usual(&reader, &refused, &err)) fail_msg("%s", err.text);
    if (!refused.code) return ALLOWED;
    assert_int_equal(refused.code, HELM_E_UNSUPPORTED);
    if (strcmp(refused.text, reason) != 0) fail_msg("'%s' instead of '%s'", refused.text, reason);
    for (uint32_t blocks = 1; blocks <= 41; blocks += 20) read_all(reader, blocks);
    disk_reader_close(reader);
    return 0;
}

static void threads_read_where_io_uring_is_not_allowed(void **state)
{
    (void)state;
    static const struct {
        int call, error;
        const char *reason;
    } cases[] = {
        {__NR_io_uring_setup, ENOSYS, "io_uring: Function not implemented"},
        {__NR_io_uring_setup, EPERM, "io_uring: Operation not permitted"},
        {__NR_io_uring_register, EPERM, "io_uring: it does not say that it reads (Linux 5.6 and later do)"},
        {__NR_io_uring_enter, EPERM, "io_uring: Operation not permitted"},
    };
    struct disk_reader *reader;
    struct helm_err refused, err = {0};
    assert_int_equal(disk_reader_open_usual(&reader, &refused, &err), 0);
    disk_reader_close(reader);
    if (refused.code) {
        print_message("skipped: this system allows no %s\n", refused.text);
        skip();
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int status = 0;
        const pid_t child = fork();
        assert_true(child >= 0);
        if (!child) _exit(read_without(cases[i].call, cases[i].error, cases[i].reason));
        assert_true(waitpid(child, &status, 0) == child);
        if (WIFEXITED(status) && WEXITSTATUS(status) == NO_FILTERS) {
            print_message("skipped: this system allows no seccomp filter\n");
            skip();
        }
        if (!WIFEXITED(status) || WEXITSTATUS(status))
            fail_msg("system call %d fails with '%s': status %x", cases[i].call, strerror(cases[i].error),
                     status);
    }
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
                                       cmocka_unit_test(threads_read_where_io_uring_is_not_allowed),
                                       cmocka_unit_test(impossible_readers_are_refused)};
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
