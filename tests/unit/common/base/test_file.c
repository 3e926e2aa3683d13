/* Reading files of strangers: names, links in and out, hub snapshots, pipes, folders, sizes, short files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/file.h"

struct place {
    char root[64];
};

static const char *in(const struct place *place, const char *name, char path[256])
{
    snprintf(path, 256, "%s/%s", place->root, name);
    return path;
}

static void make_folder(const struct place *place, const char *name)
{
    char path[256];
    assert_int_equal(mkdir(in(place, name, path), 0755), 0);
}

static void make_file(const struct place *place, const char *name, const char *text)
{
    char path[256];
    FILE *file = fopen(in(place, name, path), "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void make_link(const struct place *place, const char *name, const char *target)
{
    char path[256];
    assert_int_equal(symlink(target, in(place, name, path)), 0);
}

static int set_up(void **state)
{
    struct place *place = calloc(1, sizeof *place);
    strcpy(place->root, "/tmp/helm-test-file-XXXXXX");
    if (!place || !mkdtemp(place->root)) return -1;
    *state = place;
    return 0;
}

static int tear_down(void **state)
{
    struct place *place = *state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", place->root);
    int rc = system(command);
    free(place);
    return rc;
}

static int open_in(const struct place *place, const char *folder, const char *name, struct helm_err *err)
{
    char path[256];
    int fd = 99;
    uint64_t bytes = 99;
    int rc = file_open_inside(in(place, folder, path), name, &fd, &bytes, err);
    if (rc) {
        assert_int_equal(fd, -1);
        return rc;
    }
    assert_int_equal(bytes, 4);
    close(fd);
    return 0;
}

static void test_names(void **state)
{
    struct helm_err err = {0};
    make_folder(*state, "m");
    make_file(*state, "m/a", "data");
    make_file(*state, "outside", "data");
    assert_int_equal(open_in(*state, "m", "a", &err), 0);
    assert_int_equal(open_in(*state, "m", "absent", &err), HELM_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "/m/absent: no such file"));
    assert_int_equal(open_in(*state, "absent", "a", &err), HELM_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "no such folder"));
    static const char *const bad[] = {"", ".", "..", "../outside", "/etc/passwd", "x/../a", "./a"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(open_in(*state, "m", bad[i], &err), HELM_E_FORMAT);
}

static void test_pointers(void **state)
{
    struct helm_err err = {0};
    make_folder(*state, "m");
    make_file(*state, "m/pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n");
    make_file(*state, "m/other", "vers");
    assert_int_equal(open_in(*state, "m", "pointer", &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "pointer: a Git LFS pointer"));
    char path[256];
    struct place *place = *state;
    assert_int_equal(file_check_parent(in(place, "m/new", path), &err), 0);
    assert_int_equal(file_check_parent("new", &err), 0);
    assert_int_equal(file_check_parent("/new", &err), 0);
    assert_int_equal(file_check_parent(in(place, "none/new", path), &err), HELM_E_NOT_FOUND);
}

static void test_links(void **state)
{
    struct helm_err err = {0};
    make_folder(*state, "m");
    make_folder(*state, "m/sub");
    make_folder(*state, "mm");
    make_file(*state, "m/a", "data");
    make_file(*state, "m/sub/b", "data");
    make_file(*state, "mm/c", "data");
    make_link(*state, "m/inside", "a");
    make_link(*state, "m/deeper", "sub/b");
    make_link(*state, "m/chain", "inside");
    make_link(*state, "m/loop", "loop");
    make_link(*state, "m/dangling", "nowhere");
    make_link(*state, "m/sibling",
              "../mm/c"); /* shares the folder's name as a prefix, but is not inside it */
    make_link(*state, "m/system", "/etc/passwd");
    make_link(*state, "alias", "m");
    assert_int_equal(open_in(*state, "m", "inside", &err), 0);
    assert_int_equal(open_in(*state, "m", "deeper", &err), 0);
    assert_int_equal(open_in(*state, "m", "chain", &err), 0);
    assert_int_equal(open_in(*state, "alias", "a", &err), 0); /* the folder itself may be a link */
    assert_int_equal(open_in(*state, "m", "loop", &err), HELM_E_IO);
    assert_int_equal(open_in(*state, "m", "dangling", &err), HELM_E_NOT_FOUND);
    assert_int_equal(open_in(*state, "m", "sibling", &err), HELM_E_PERMISSION);
    assert_non_null(strstr(err.text, "a link that leaves the model folder"));
    assert_int_equal(open_in(*state, "m", "system", &err), HELM_E_PERMISSION);
}

static void test_hub_snapshots(void **state)
{
    struct helm_err err = {0};
    static const char *const folders[] = {
        "models--o--x",           "models--o--x/blobs",       "models--o--x/other",
        "models--o--x/snapshots", "models--o--x/snapshots/r", "models--o--x/snapshots/r/deep"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) make_folder(*state, folders[i]);
    make_file(*state, "models--o--x/blobs/h", "data");
    make_file(*state, "models--o--x/other/h", "data");
    make_link(*state, "models--o--x/snapshots/r/ok", "../../blobs/h");
    make_link(*state, "models--o--x/snapshots/r/bad", "../../other/h");
    make_link(*state, "models--o--x/snapshots/r/deep/ok", "../../../blobs/h");
    make_link(*state, "models--o--x/snapshots/r/deep/bad", "../../../other/h");
    assert_int_equal(open_in(*state, "models--o--x/snapshots/r", "ok", &err), 0);
    assert_int_equal(open_in(*state, "models--o--x/snapshots/r", "bad", &err), HELM_E_PERMISSION);
    assert_int_equal(open_in(*state, "models--o--x/snapshots/r/deep", "ok", &err), 0);
    assert_int_equal(open_in(*state, "models--o--x/snapshots/r/deep", "bad", &err), HELM_E_PERMISSION);
}

static void test_not_regular(void **state)
{
    struct helm_err err = {0};
    char path[256];
    make_folder(*state, "m");
    make_folder(*state, "m/folder");
    assert_int_equal(mkfifo(in(*state, "m/pipe", path), 0644), 0);
    make_link(*state, "m/device", "/dev/zero");
    assert_int_equal(open_in(*state, "m", "folder", &err), HELM_E_FORMAT);
    assert_int_equal(open_in(*state, "m", "pipe", &err), HELM_E_FORMAT); /* and does not hang */
    assert_non_null(strstr(err.text, "not a regular file"));
    assert_int_equal(open_in(*state, "m", "device", &err), HELM_E_PERMISSION);
}

static void test_read(void **state)
{
    struct helm_err err = {0};
    char path[256], *text = (char *)path;
    size_t length = 99;
    make_file(*state, "empty", "");
    make_file(*state, "four", "data");
    assert_int_equal(file_read(in(*state, "four", path), 4, &text, &length, &err), 0);
    assert_int_equal(length, 4);
    assert_string_equal(text, "data"); /* NUL-terminated */
    free(text);
    assert_int_equal(file_read(in(*state, "four", path), 3, &text, &length, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "4 bytes exceed the limit of 3"));
    assert_null(text);
    assert_int_equal(length, 0);
    assert_int_equal(file_read(in(*state, "empty", path), 3, &text, &length, &err), 0);
    assert_int_equal(length, 0);
    assert_string_equal(text, "");
    free(text);
    assert_int_equal(file_read_inside(((struct place *)*state)->root, "four", 4, &text, &length, &err), 0);
    free(text);
    assert_int_equal(file_read_inside(((struct place *)*state)->root, "absent", 4, &text, &length, &err),
                     HELM_E_NOT_FOUND);
    assert_null(text);
}

static void test_pread_all(void **state)
{
    struct helm_err err = {0};
    char path[256], buffer[8] = {0};
    make_file(*state, "f", "0123456789");
    FILE *file = fopen(in(*state, "f", path), "r");
    assert_non_null(file);
    assert_int_equal(file_pread_all(fileno(file), buffer, 4, 3, "f", &err), 0);
    assert_memory_equal(buffer, "3456", 4);
    assert_int_equal(file_pread_all(fileno(file), buffer, 0, 99, "f", &err), 0);
    assert_int_equal(file_pread_all(fileno(file), buffer, 8, 5, "f", &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "f: file ends at byte 10, 3 bytes short"));
    fclose(file);
    assert_int_equal(file_pread_all(-1, buffer, 1, 0, "f", &err), HELM_E_IO);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {CASE(test_names),         CASE(test_links),       CASE(test_pointers),
                                       CASE(test_hub_snapshots), CASE(test_not_regular), CASE(test_read),
                                       CASE(test_pread_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
