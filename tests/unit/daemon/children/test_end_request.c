/* Unit tests of daemon/children/child_run.c, and of what waits for a child at start while the signals
 * wait. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/children/accelerator.h"
#include "daemon/children/child_run.h"
#include "tests/unit/daemon/made_program.h"

static bool readable(int fd)
{
    struct pollfd item = {.fd = fd, .events = POLLIN};
    return poll(&item, 1, 0) == 1 && (item.revents & POLLIN);
}

/* As the loop would. */
static void take_signal(int number)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, number);
    assert_int_equal(sigtimedwait(&set, NULL, &(struct timespec){0}), number);
}

static void every_signal_is_seen_and_left(void **state)
{
    (void)state;
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP};
    struct helm_err err = {0};
    int fd = end_request_watch();
    assert_true(fd >= 0);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        assert_int_equal(end_request_check(&err), 0);
        assert_false(readable(fd));
        raise(signals[i]);
        for (int again = 0; again < 2; again++) {
            assert_true(readable(fd));
            assert_int_equal(end_request_check(&err), HELM_E_CANCELLED);
            assert_non_null(strstr(err.text, strsignal(signals[i])));
        }
        take_signal(signals[i]);
    }
    assert_int_equal(end_request_check(&err), 0);
    close(fd);
}

static void a_probe_is_not_waited_for(void **state)
{
    (void)state;
    struct accelerator a;
    struct helm_err err = {0};
    const char *program = made_program("exec sleep 600");
    raise(SIGTERM);
    static const char *const options[] = {"auto", "cuda"};
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(accelerator_choose(options[i], 0, program, &a, &err), HELM_E_CANCELLED);
    take_signal(SIGTERM);
    unlink(program);
}

static void a_probe_hears_signals_itself(void **state)
{
    (void)state;
    struct accelerator a;
    struct helm_err err = {0};
    const char *program = made_program("kill -TERM $$; echo '{\"devices\": []}'");
    assert_int_equal(accelerator_choose("cuda", 0, program, &a, &err), HELM_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "killed by signal 15"));
    unlink(program);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_signal_is_seen_and_left),
        cmocka_unit_test(a_probe_is_not_waited_for),
        cmocka_unit_test(a_probe_hears_signals_itself),
    };
    struct helm_err err = {0};
    if (end_request_block(&err)) return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
