/* Unit tests of daemon/children/drafter.c: when a draft model that died, or cannot be started, is started
 * again. The rest: test_helmd_draft.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/units.h"
#include "daemon/children/drafter.h"

static void on_lost(void *context)
{
    ++*(int *)context;
}

/* One that has not answered its first question for a while is asked for a sign of life, whatever the one in
 * front of it did: it may be reading a long prompt. */
static void each_is_asked_before_it_is_killed(void **state)
{
    (void)state;
    int lost = 0;
    struct drafter d = {.events = {.context = &lost, .lost = on_lost},
                        .pid = 1000000,
                        .ready_fd = -1,
                        .asked_us = 1,
                        .pinged = true};
    assert_false(drafter_child_ended(&d, 1000001, 0));
    assert_true(d.pinged);
    assert_true(drafter_child_ended(&d, 1000000, 0));
    assert_int_equal(lost, 1);
    assert_int_equal(d.pid, 0);
    assert_int_equal(d.asked_us, 0);
    assert_false(d.pinged);
}

/* The loop may sleep until then. */
static void a_start_that_fails_is_tried_again_later(void **state)
{
    (void)state;
    struct rlimit was, none;
    struct drafter d = {.with = {.arguments = 1}, .ready_fd = -1};
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    none = was;
    none.rlim_cur = 0; /* no pipe */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    const uint64_t now_us = units_now_us(), first = drafter_tick(&d, now_us),
                   waits = drafter_tick(&d, now_us + 1), second = drafter_tick(&d, now_us + 2000000);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    assert_int_equal(d.pid, 0);
    assert_true(first >= now_us && first < now_us + 2000000);
    assert_true(second > now_us + 2000000);
    assert_true(waits >= first);
}

/* Ten times as long as the first start, and a minute at least. */
static void a_start_that_hangs_is_given_up(void **state)
{
    (void)state;
    int ends[2], status;
    assert_int_equal(pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* not left if a check fails */
        pause();
        _exit(0);
    }
    struct drafter d = {.with = {.arguments = 1},
                        .pid = pid,
                        .ready_fd = ends[0],
                        .started_us = 1000000,
                        .start_us = 7000000};
    assert_int_equal(drafter_tick(&d, 70000000), 71000000);
    assert_int_equal(waitpid(pid, &status, WNOHANG), 0);
    assert_true(drafter_tick(&d, 71000000) > 71000000);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    d.start_us = 100;
    d.started_us = 1000000;
    d.pid = getpid(); /* a signal would end this test */
    assert_int_equal(drafter_tick(&d, 60000000), 61000000);
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_is_asked_before_it_is_killed),
                                       cmocka_unit_test(a_start_that_fails_is_tried_again_later),
                                       cmocka_unit_test(a_start_that_hangs_is_given_up)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
