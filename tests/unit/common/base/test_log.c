/* Unit tests of common/base/log.c: standard error is redirected into a pipe. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"

struct capture {
    int saved, read_end;
};

static struct capture capture_begin(void)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    struct capture capture = {dup(STDERR_FILENO), ends[0]};
    assert_true(capture.saved >= 0);
    assert_true(dup2(ends[1], STDERR_FILENO) >= 0);
    close(ends[1]);
    return capture;
}

/* The text of one read(2): a pipe keeps one write(2) of up to PIPE_BUF together. */
static size_t capture_end(struct capture capture, char *text, size_t size)
{
    assert_true(dup2(capture.saved, STDERR_FILENO) >= 0); /* the pipe's last writer is gone: read ends */
    close(capture.saved);
    size_t used = 0;
    ssize_t got;
    while ((got = read(capture.read_end, text + used, size - 1 - used)) > 0) used += (size_t)got;
    close(capture.read_end);
    text[used] = '\0';
    return used;
}

static int count_lines(const char *text)
{
    int lines = 0;
    for (; *text; text++) lines += *text == '\n';
    return lines;
}

static void a_line_has_time_program_and_level(void **state)
{
    (void)state;
    char text[4096];
    unsetenv("JOURNAL_STREAM");
    log_init("helm-test", LOG_LEVEL_INFO);
    struct capture capture = capture_begin();
    log_warn("%d of %s", 3, "four");
    capture_end(capture, text, sizeof text);
    assert_int_equal(count_lines(text), 1);
    assert_non_null(strstr(text, " helm-test warn: 3 of four\n"));
    assert_true(text[2] == ':' && text[5] == ':' && text[8] == '.');
}

static void levels_above_the_threshold_are_silent(void **state)
{
    (void)state;
    char text[4096];
    log_init("helm-test", LOG_LEVEL_WARN);
    struct capture capture = capture_begin();
    log_debug("hidden");
    log_info("hidden");
    log_warn("shown 1");
    log_error("shown 2");
    log_set_level(LOG_LEVEL_DEBUG);
    log_debug("shown 3");
    capture_end(capture, text, sizeof text);
    assert_null(strstr(text, "hidden"));
    assert_int_equal(count_lines(text), 3);
}

static void forged_lines_stay_one_line(void **state)
{
    (void)state;
    char text[4096];
    log_init("helm-test", LOG_LEVEL_INFO);
    struct capture capture = capture_begin();
    log_info("name '%s'", "a\n00:00:00.000 helmd error: forged\r\nb");
    capture_end(capture, text, sizeof text);
    assert_int_equal(count_lines(text), 1);
    assert_null(strchr(text, '\r'));
    assert_non_null(strstr(text, "forged"));
}

static void long_lines_are_cut_and_ended(void **state)
{
    (void)state;
    char text[8192], long_text[3000];
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    log_init("helm-test", LOG_LEVEL_INFO);
    struct capture capture = capture_begin();
    log_info("%s", long_text);
    size_t used = capture_end(capture, text, sizeof text);
    assert_int_equal(count_lines(text), 1);
    assert_true(used <= 1024);
    assert_int_equal(text[used - 1], '\n');
    assert_int_equal(text[used - 2], 'x');
}

static void control_characters_are_shown(void **state)
{
    (void)state;
    char text[4096];
    log_init("helm-test", LOG_LEVEL_INFO);
    struct capture capture = capture_begin();
    log_info("tensor '%s'", "\x1b]0;owned\x07");
    capture_end(capture, text, sizeof text);
    assert_null(strchr(text, '\x1b'));
    assert_non_null(strstr(text, "tensor '\\x1b]0;owned\\x07'\n"));
}

/* The pipe is not read: without O_NONBLOCK of its own the second thousand lines would wait for ever. */
static void a_full_pipe_drops_lines_and_says_so(void **state)
{
    (void)state;
    static char text[1 << 18];
    log_init("helm-test", LOG_LEVEL_INFO);
    struct capture capture = capture_begin();
    for (int i = 0; i < 2000; i++) log_info("line %d of more than a pipe of 64 KiB has room for", i);
    assert_false(fcntl(STDERR_FILENO, F_GETFL) & O_NONBLOCK); /* for other users of stderr it is unchanged */
    size_t used = 0;
    ssize_t got = read(capture.read_end, text, sizeof text / 2);
    assert_true(got > 0);
    used = (size_t)got;
    log_info("there is room again");
    used += capture_end(capture, text + used, sizeof text - used);
    const int shown = count_lines(text);
    char *dropped = strstr(text, " log lines were dropped: standard error took none\n");
    assert_non_null(dropped);
    assert_true(shown < 2000 && shown > 100);
    while (dropped[-1] >= '0' && dropped[-1] <= '9') dropped--;
    assert_int_equal(atoi(dropped), 2000 - (shown - 2)); /* all but the notice and the last */
    assert_non_null(strstr(dropped, "there is room again\n"));
}

static void under_systemd_lines_carry_priorities(void **state)
{
    (void)state;
    char text[4096];
    setenv("JOURNAL_STREAM", "8:1", 1);
    log_init("helm-test", LOG_LEVEL_DEBUG);
    unsetenv("JOURNAL_STREAM");
    struct capture capture = capture_begin();
    log_error("one");
    log_warn("two");
    log_info("three");
    log_debug("four");
    capture_end(capture, text, sizeof text);
    log_init("helm-test", LOG_LEVEL_INFO);
    assert_string_equal(text,
                        "<3>helm-test: one\n<4>helm-test: two\n<6>helm-test: three\n<7>helm-test: four\n");
}

static void level_names_parse(void **state)
{
    (void)state;
    for (int i = LOG_LEVEL_ERROR; i <= LOG_LEVEL_DEBUG; i++) {
        enum log_level level = LOG_LEVEL_ERROR;
        struct helm_err err = {0};
        assert_int_equal(log_level_parse(log_level_name((enum log_level)i), &level, &err), 0);
        assert_int_equal(level, i);
    }
    static const char *const bad[] = {"", "Info", "warning", "info ", "5"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        enum log_level level;
        struct helm_err err = {0};
        assert_int_equal(log_level_parse(bad[i], &level, &err), HELM_E_USAGE);
        assert_non_null(strstr(err.text, "error, warn, info, debug"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_has_time_program_and_level),
        cmocka_unit_test(levels_above_the_threshold_are_silent),
        cmocka_unit_test(forged_lines_stay_one_line),
        cmocka_unit_test(long_lines_are_cut_and_ended),
        cmocka_unit_test(control_characters_are_shown),
        cmocka_unit_test(a_full_pipe_drops_lines_and_says_so),
        cmocka_unit_test(under_systemd_lines_carry_priorities),
        cmocka_unit_test(level_names_parse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
