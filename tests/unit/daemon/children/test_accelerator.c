/* Unit tests of daemon/children/accelerator.c: what a probe may print, and which device is chosen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/units.h"
#include "daemon/children/accelerator.h"
#include "tests/unit/daemon/made_program.h"

static const char *const two =
    "{\"devices\": [{\"name\": \"Small\", \"uuid\": \"GPU-1\", \"vram_bytes\": 8589934592, \"vram_free\": "
    "4294967296, \"numa_node\": 1, \"compute\": \"8.6\"}, {\"name\": \"Large\\u0007\", \"uuid\": \"GPU-2\", "
    "\"vram_bytes\": 25769803776, \"vram_free\": 21474836480, \"numa_node\": null, \"compute\": \"9.0\", "
    "\"context_bytes\": 536870912, \"driver\": \"550.54.15\", \"link_generation\": 5, \"link_width\": "
    "16}]}";

static int parse(const char *text, struct accelerator_info *devices, uint32_t *count, struct helm_err *err)
{
    return accelerator_parse(text, strlen(text), devices, count, err);
}

static void a_probe_is_read(void **state)
{
    (void)state;
    struct accelerator_info d[ACCELERATOR_COUNT_MAX];
    struct helm_err err = {0};
    uint32_t count;
    assert_int_equal(parse(two, d, &count, &err), 0);
    assert_int_equal(count, 2);
    assert_string_equal(d[0].name, "Small");
    assert_int_equal(d[0].numa_node, 1);
    assert_true(d[0].vram_free == 4 * GIB && d[0].context_bytes == 0);
    assert_string_equal(d[1].name, "Large?"); /* goes to a log: no control characters */
    assert_int_equal(d[1].numa_node, -1);
    assert_true(d[1].context_bytes == 512 * MIB);
    assert_string_equal(d[1].driver, "550.54.15");
    assert_true(d[1].link_generation == 5 && d[1].link_width == 16);
    assert_true(d[0].driver[0] == 0 && d[0].link_generation == 0 && d[0].link_width == 0);
}

static void a_bad_probe_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *word;
        int rc;
    } cases[] = {{"{\"devices\": [], \"error\": \"no driver\"}", "no driver", HELM_E_NOT_FOUND},
                 {"{\"devices\": []}", "none", HELM_E_NOT_FOUND},
                 {"{}", "none", HELM_E_NOT_FOUND},
                 {"[]", "none", HELM_E_NOT_FOUND},
                 {"CUDA error 35", "probe", HELM_E_FORMAT},
                 {"{\"devices\": 3}", "no array", HELM_E_FORMAT},
                 {"{\"devices\": [7]}", "device 0", HELM_E_FORMAT},
                 {"{\"devices\": [{\"name\": \"x\", \"vram_bytes\": 0, \"vram_free\": 0}]}", "vram_bytes",
                  HELM_E_LIMIT},
                 {"{\"devices\": [{\"name\": \"x\", \"vram_bytes\": 5, \"vram_free\": 6}]}", "vram_free",
                  HELM_E_LIMIT},
                 {"{\"devices\": [{\"vram_bytes\": 5, \"vram_free\": 5}]}", "name", HELM_E_FORMAT}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct accelerator_info d[ACCELERATOR_COUNT_MAX];
        struct helm_err err = {0};
        uint32_t count = 99;
        int rc = parse(cases[i].text, d, &count, &err);
        if (rc != cases[i].rc || !strstr(err.text, cases[i].word))
            fail_msg("%s: %d '%s', expected %d with '%s'", cases[i].text, rc, err.text, cases[i].rc,
                     cases[i].word);
        assert_int_equal(count, 0);
    }
}

/* A program that does so when it is called with --probe. */
static const char *program_doing(const char *script)
{
    char whole[2048];
    snprintf(whole, sizeof whole, "[ \"$1\" = --probe ] || exit 99\n%s", script);
    return made_program(whole);
}

static const char *program_printing(const char *text)
{
    char script[1024];
    int n = snprintf(script, sizeof script, "cat <<'END'\n%s\nEND", text);
    assert_true(n > 0 && (size_t)n < sizeof script);
    return program_doing(script);
}

/* The text that accelerator_choose("auto") writes to standard error. */
static void choose_and_listen(const char *program, struct accelerator *a, char *said, size_t size)
{
    struct helm_err err = {0};
    char path[] = "/tmp/helm-probe-words-XXXXXX";
    int before = dup(STDERR_FILENO), fd = mkostemp(path, O_CLOEXEC);
    assert_true(before >= 0 && fd >= 0 && dup2(fd, STDERR_FILENO) >= 0);
    int rc = accelerator_choose("auto", 0, program, a, &err);
    dup2(before, STDERR_FILENO);
    close(before);
    ssize_t n = pread(fd, said, size - 1, 0);
    close(fd);
    unlink(path);
    assert_int_equal(rc, 0);
    assert_true(n >= 0);
    said[n] = 0;
}

static void devices_are_chosen(void **state)
{
    (void)state;
    const char *program = program_printing(two);
    struct accelerator a;
    struct helm_err err = {0};
    assert_int_equal(accelerator_choose("auto", 0, program, &a, &err), 0);
    assert_string_equal(a.name, "cuda:1"); /* more is free there */
    assert_true(a.ledger.kind == LEDGER_DEVICE_CUDA && !a.required);
    assert_int_equal(accelerator_choose("cuda:1", 0, program, &a, &err), 0);
    assert_string_equal(a.name, "cuda:1");
    assert_string_equal(a.hardware, "cuda Large? GPU-2 driver 550.54.15 gen 5 x16");
    assert_true(a.ledger.kind == LEDGER_DEVICE_CUDA && a.ledger.limit == 20 * GIB);
    assert_int_equal(accelerator_choose("cuda", 3 * GIB, program, &a, &err), 0);
    assert_string_equal(a.name, "cuda:0");
    assert_string_equal(a.hardware, "cuda Small GPU-1 driver ? gen 0 x0");
    assert_true(a.required && a.ledger.limit == 3 * GIB);
    assert_string_equal(a.ledger.limit_from, "--vram");
    assert_int_equal(a.numa_node, 1);
    assert_int_equal(accelerator_choose("cuda:0", 6 * GIB, program, &a, &err), 0);
    assert_true(a.ledger.limit == 4 * GIB); /* the free memory */
    assert_int_equal(accelerator_choose("cuda:2", 0, program, &a, &err), HELM_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "no device 2"));
    assert_int_equal(accelerator_choose("cpu", 0, program, &a, &err), 0);
    assert_string_equal(a.hardware, "");
    assert_true(a.ledger.kind == LEDGER_DEVICE_NONE);
    assert_int_equal(accelerator_choose("emulated", 0, program, &a, &err), 0);
    assert_string_equal(a.hardware, "emulated");
    assert_true(a.ledger.kind == LEDGER_DEVICE_EMULATED && a.ledger.limit == ACCELERATOR_EMULATED_VRAM);
    assert_int_equal(accelerator_choose("emulated", 1000, program, &a, &err), HELM_E_USAGE);
    unlink(program);
}

static void second_is(const char *devices, const char *ceilings, const char *program, const char *name,
                      uint64_t limit)
{
    struct accelerator_wish wish;
    static struct accelerator first, second;
    struct helm_err err = {0};
    if (accelerator_wish_read(devices, ceilings, false, &wish, &err)) fail_msg("%s", err.text);
    assert_int_equal(accelerator_choose(wish.device[0], wish.vram[0], program, &first, &err), 0);
    if (accelerator_choose_second(&wish, &first, &second, &err)) fail_msg("%s", err.text);
    assert_string_equal(second.name, name);
    assert_true((second.ledger.kind == LEDGER_DEVICE_NONE) == !name[0]);
    assert_true(second.ledger.limit == limit);
}

static void a_second_device_is_chosen(void **state)
{
    (void)state;
    const char *program = program_printing(two);
    static struct accelerator first, second;
    struct accelerator_wish wish;
    struct helm_err err = {0};
    second_is("auto", NULL, program, "cuda:0", 4 * GIB); /* more is free on cuda:1 */
    second_is("auto", "2GiB", program, "", UINT64_MAX);
    second_is("auto", "2GiB,1GiB", program, "cuda:0", GIB);
    second_is("cuda", NULL, program, "", UINT64_MAX);
    second_is("cuda:1", NULL, program, "", UINT64_MAX);
    second_is("cuda", "2GiB,3GiB", program, "cuda:1", 3 * GIB);
    second_is("cuda:1,cuda:0", "2GiB,1GiB", program, "cuda:0", GIB);
    second_is("emulated", "2GiB,1GiB", program, "emulated", GIB);
    second_is("emulated,emulated", NULL, program, "emulated", ACCELERATOR_EMULATED_VRAM);
    assert_int_equal(accelerator_wish_read("cuda:0,cuda:2", NULL, false, &wish, &err), 0);
    assert_int_equal(accelerator_choose("cuda:0", 0, program, &first, &err), 0);
    assert_int_equal(accelerator_choose_second(&wish, &first, &second, &err), HELM_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "no device 2"));
    assert_int_equal(accelerator_wish_read("cuda:0,cuda:00", NULL, false, &wish, &err), 0);
    assert_int_equal(accelerator_choose_second(&wish, &first, &second, &err), HELM_E_USAGE);
    assert_non_null(strstr(err.text, "it is the first device"));
    unlink(program);
    program = program_printing("{\"devices\": [{\"name\": \"Only\", \"vram_bytes\": 9000000000, "
                               "\"vram_free\": 8000000000}]}");
    second_is("auto", NULL, program, "", UINT64_MAX);
    assert_int_equal(accelerator_wish_read("auto", "1GiB,1GiB", false, &wish, &err), 0);
    assert_int_equal(accelerator_choose("auto", 0, program, &first, &err), 0);
    assert_int_equal(accelerator_choose_second(&wish, &first, &second, &err), HELM_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "there is one GPU"));
    unlink(program);
}

static void without_a_gpu_auto_says_why(void **state)
{
    (void)state;
    struct accelerator a;
    struct helm_err err = {0};
    assert_int_equal(accelerator_choose("auto", 0, "/nonexistent/helm-worker-gpu", &a, &err), 0);
    assert_true(a.ledger.kind == LEDGER_DEVICE_NONE);
    assert_non_null(strstr(a.why, "no helm-worker-gpu"));
    assert_int_equal(accelerator_choose("cuda", 0, "/nonexistent/helm-worker-gpu", &a, &err),
                     HELM_E_UNSUPPORTED);
    const char *program = program_printing("{\"devices\": [], \"error\": \"no driver\"}");
    assert_int_equal(accelerator_choose("auto", 0, program, &a, &err), 0);
    assert_non_null(strstr(a.why, "no driver"));
    unlink(program);
    assert_int_equal(accelerator_choose("cuda", 0, "/bin/false", &a, &err), HELM_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "printed nothing"));
}

/* A GPU may be there, and would lie idle. */
static void a_probe_that_fails_is_warned_of(void **state)
{
    (void)state;
    static const struct {
        const char *script, *how, *words;
        bool warned;
    } cases[] = {
        {"echo one >&2; echo 'error while loading shared libraries: libnuma.so.1' >&2; exit 127",
         "exited with status 127 and printed nothing", "shared libraries: libnuma.so.1", true},
        {"echo '{\"devices\": [], \"unusable\": \"libcublasLt.so.13: cannot open\"}'",
         "libcublasLt.so.13: cannot open", "", true},
        {"printf 'half a line' >&2; kill -9 $$", "killed by signal 9", ": half a line", true},
        {"echo '{\"devices\": ['; echo 'out of paper' >&2; exit 3", "nothing that can be read",
         "out of paper", true},
        {"echo '{\"devices\": ['", "probe", "", true},
        {"head -c 70000 /dev/zero", "more than 65536 bytes", "", true},
        {"echo 'no driver, they say' >&2; echo '{\"devices\": [], \"error\": \"no driver\"}'", "no driver",
         "", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct accelerator a;
        struct helm_err err = {0};
        char said[4096];
        const char *program = program_doing(cases[i].script);
        choose_and_listen(program, &a, said, sizeof said);
        assert_true(a.ledger.kind == LEDGER_DEVICE_NONE);
        if (!strstr(said, cases[i].how) || !strstr(said, cases[i].words) ||
            (strstr(said, " warn: ") != NULL) != cases[i].warned)
            fail_msg("%s: said '%s'", cases[i].script, said);
        assert_int_equal(accelerator_choose("cuda", 0, program, &a, &err), HELM_E_UNSUPPORTED);
        if (!strstr(err.text, cases[i].how) || !strstr(err.text, cases[i].words))
            fail_msg("%s: '%s'", cases[i].script, err.text);
        unlink(program);
    }
}

static void what_a_probe_says_is_passed_on(void **state)
{
    (void)state;
    struct accelerator a;
    char said[4096], script[1200];
    snprintf(script, sizeof script, "echo 'a warning of the driver' >&2\ncat <<'END'\n%s\nEND", two);
    const char *program = program_doing(script);
    choose_and_listen(program, &a, said, sizeof said);
    assert_string_equal(a.name, "cuda:1");
    assert_non_null(strstr(said, "a warning of the driver\n"));
    unlink(program);
}

static void a_worker_that_may_not_be_run_is_warned_of(void **state)
{
    (void)state;
    struct accelerator a;
    char said[4096];
    const char *program = program_doing("exit 0");
    chmod(program, 0600);
    choose_and_listen(program, &a, said, sizeof said);
    assert_non_null(strstr(said, " warn: "));
    assert_non_null(strstr(said, "Permission denied"));
    unlink(program);
    choose_and_listen(program, &a, said, sizeof said); /* nothing there: a build without it */
    assert_non_null(strstr(said, " info: "));
    assert_null(strstr(said, " warn: "));
}

int main(void)
{
    unsetenv("JOURNAL_STREAM"); /* levels by name */
    log_init("test", LOG_LEVEL_INFO);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_probe_is_read),
        cmocka_unit_test(a_bad_probe_is_refused),
        cmocka_unit_test(devices_are_chosen),
        cmocka_unit_test(a_second_device_is_chosen),
        cmocka_unit_test(without_a_gpu_auto_says_why),
        cmocka_unit_test(a_probe_that_fails_is_warned_of),
        cmocka_unit_test(what_a_probe_says_is_passed_on),
        cmocka_unit_test(a_worker_that_may_not_be_run_is_warned_of),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
