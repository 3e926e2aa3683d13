/* Unit tests of daemon/children/rundir.c: what is removed at the end, and that nothing is that no daemon
 * made. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/children/rundir.h"

struct folder {
    char path[40], rundir[48], place[64], lock[80], listen[80];
};

static int make_folder(void **state)
{
    struct folder *f = calloc(1, sizeof *f);
    assert_non_null(f);
    snprintf(f->path, sizeof f->path, "/tmp/helm-rundir-test-XXXXXX");
    assert_non_null(mkdtemp(f->path));
    snprintf(f->rundir, sizeof f->rundir, "%s/run", f->path);
    snprintf(f->place, sizeof f->place, "%s/notes.txt", f->path);
    snprintf(f->lock, sizeof f->lock, "%s.lock", f->place);
    snprintf(f->listen, sizeof f->listen, "ipc://%s", f->place);
    *state = f;
    return 0;
}

static int remove_folder(void **state)
{
    struct folder *f = *state;
    unlink(f->place);
    unlink(f->lock);
    int rc = rmdir(f->path); /* fails if anything else was left */
    free(f);
    return rc;
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void assert_holds(const char *path, const char *text)
{
    char held[64] = "";
    FILE *file = fopen(path, "r");
    if (!file) fail_msg("%s is gone", path);
    size_t n = fread(held, 1, sizeof held - 1, file);
    held[n] = 0;
    fclose(file);
    assert_string_equal(held, text);
}

static void bind_socket(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    close(fd);
}

static int open_at(const struct folder *f, const char *first, const char *second, struct rundir *dir,
                   struct helm_err *err)
{
    struct args_list listen = {.item = {first, second}, .count = second ? 2 : 1};
    return rundir_open(f->rundir, &listen, dir, err);
}

static void a_file_in_the_place_of_a_socket_stays(void **state)
{
    const struct folder *f = *state;
    struct rundir dir;
    struct helm_err err = {0};
    write_file(f->place, "mine");
    assert_int_equal(open_at(f, f->listen, NULL, &dir, &err), HELM_E_PERMISSION);
    assert_non_null(strstr(err.text, "is not a socket"));
    assert_holds(f->place, "mine");
    rundir_close(&dir);
    assert_holds(f->place, "mine");
    assert_int_equal(access(f->lock, F_OK), -1);
    assert_int_equal(access(f->rundir, F_OK), -1);
}

static void a_link_in_the_place_of_a_socket_stays(void **state)
{
    const struct folder *f = *state;
    struct rundir dir;
    struct helm_err err = {0};
    char target[8] = "";
    assert_int_equal(symlink("nowhere", f->place), 0);
    assert_int_equal(open_at(f, f->listen, NULL, &dir, &err), HELM_E_PERMISSION);
    rundir_close(&dir);
    assert_int_equal(readlink(f->place, target, sizeof target), 7);
}

static void a_refused_second_endpoint_leaves_the_file_and_takes_back_the_first(void **state)
{
    const struct folder *f = *state;
    struct rundir dir;
    struct helm_err err = {0};
    char first[80];
    snprintf(first, sizeof first, "ipc://%s/first", f->path);
    write_file(f->place, "mine");
    assert_int_equal(open_at(f, first, f->listen, &dir, &err), HELM_E_PERMISSION);
    bind_socket(first + 6); /* as the client socket does */
    rundir_close(&dir);
    assert_holds(f->place, "mine");
    assert_int_equal(access(first + 6, F_OK), -1);
}

static void a_file_that_came_after_the_check_stays(void **state)
{
    const struct folder *f = *state;
    struct rundir dir;
    struct helm_err err = {0};
    assert_int_equal(open_at(f, f->listen, NULL, &dir, &err), 0);
    write_file(f->place, "mine");
    rundir_close(&dir);
    assert_holds(f->place, "mine");
}

static void a_lock_that_is_no_daemons_stays(void **state)
{
    const struct folder *f = *state;
    static const char *const texts[] = {"package = 1\n", "12 34", "1\n2\n", "123456789012345678901234567890"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct rundir dir;
        struct helm_err err = {0};
        write_file(f->lock, texts[i]);
        assert_int_equal(open_at(f, f->listen, NULL, &dir, &err), HELM_E_PERMISSION);
        assert_non_null(strstr(err.text, f->lock));
        rundir_close(&dir);
        assert_holds(f->lock, texts[i]);
    }
}

static void what_a_dead_daemon_left_is_replaced_and_removed(void **state)
{
    const struct folder *f = *state;
    struct rundir dir;
    struct helm_err err = {0};
    char pid[24];
    bind_socket(f->place);
    write_file(f->lock, "4194999\n");
    assert_int_equal(open_at(f, f->listen, NULL, &dir, &err), 0);
    assert_int_equal(access(f->place, F_OK), -1); /* stale */
    snprintf(pid, sizeof pid, "%ld\n", (long)getpid());
    assert_holds(f->lock, pid);
    bind_socket(f->place);
    rundir_close(&dir);
    assert_int_equal(access(f->place, F_OK), -1);
    assert_int_equal(access(f->lock, F_OK), -1);
    assert_int_equal(access(f->rundir, F_OK), -1);
}

static void a_live_daemons_socket_stays(void **state)
{
    const struct folder *f = *state;
    struct rundir dir;
    struct helm_err err = {0};
    char pid[24], word[32];
    snprintf(pid, sizeof pid, "%ld\n", (long)getppid());
    write_file(f->lock, pid);
    int held = open(f->lock, O_RDWR | O_CLOEXEC);
    assert_true(held >= 0 && flock(held, LOCK_EX | LOCK_NB) == 0);
    bind_socket(f->place);
    assert_int_equal(open_at(f, f->listen, NULL, &dir, &err), HELM_E_BUSY);
    snprintf(word, sizeof word, "pid %ld", (long)getppid());
    assert_non_null(strstr(err.text, word));
    rundir_close(&dir);
    assert_int_equal(access(f->place, F_OK), 0);
    assert_holds(f->lock, pid);
    close(held);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_file_in_the_place_of_a_socket_stays),
        TEST(a_link_in_the_place_of_a_socket_stays),
        TEST(a_refused_second_endpoint_leaves_the_file_and_takes_back_the_first),
        TEST(a_file_that_came_after_the_check_stays),
        TEST(a_lock_that_is_no_daemons_stays),
        TEST(what_a_dead_daemon_left_is_replaced_and_removed),
        TEST(a_live_daemons_socket_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
