/* The thread of long masks: jobs come back done, the one that used the least time first, and are taken back
 * in any state. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "client/connection/mask_thread.h"

#define JOBS 8

static struct gate {
    _Atomic int begun, open; /* jobs that began; jobs that may end */
    uint64_t order[2 * JOBS];
} gate;

static void work(struct mask_job *job)
{
    const int turn = atomic_fetch_add(&gate.begun, 1);
    gate.order[turn] = job->number;
    while (atomic_load(&gate.open) <= turn) usleep(100);
    job->rc = (int)job->number;
}

static void wait_begun(int count)
{
    while (atomic_load(&gate.begun) < count) usleep(100);
}

static struct mask_job *wait_done(struct mask_thread *t, int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    struct mask_job *job;
    uint64_t count;
    while (!(job = mask_thread_take(t))) {
        assert_int_equal(poll(&p, 1, 30000), 1);
        (void)!read(fd, &count, sizeof count);
    }
    return job;
}

static void test_jobs(void **state)
{
    (void)state;
    struct mask_job job[JOBS] = {0};
    struct mask_thread *t;
    struct helm_err err = {0};
    const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    memset(&gate, 0, sizeof gate);
    assert_null(mask_thread_take(NULL));
    assert_int_equal(mask_thread_open(fd, &t, &err), 0);
    assert_null(mask_thread_take(t));
    for (int i = 0; i < JOBS; i++) {
        job[i].work = work;
        job[i].number = (uint64_t)i + 1;
        job[i].spent_us = i ? 100 - (uint64_t)i : 0; /* later ones have used less */
        mask_thread_push(t, &job[i]);
        if (i == 0) wait_begun(1);
    }
    mask_thread_remove(t, &job[3]); /* while it waits */
    assert_int_equal(job[3].state, MASK_JOB_NONE);
    atomic_store(&gate.open, 2 * JOBS);
    for (int i = 0; i < JOBS - 1; i++) {
        const struct mask_job *done = wait_done(t, fd);
        assert_int_equal(done->state, MASK_JOB_NONE);
        assert_int_equal(done->rc, (int)done->number);
    }
    static const uint64_t order[] = {1, 8, 7, 6, 5, 3, 2};
    for (int i = 0; i < JOBS - 1; i++) assert_int_equal(gate.order[i], order[i]);
    mask_thread_close(t);
    close(fd);
}

/* Taking a job back while it runs waits for it; when it is done, it is not handed out. */
static void test_removal(void **state)
{
    (void)state;
    struct mask_job job[2] = {{.work = work, .number = 1}, {.work = work, .number = 2}};
    struct mask_thread *t;
    struct helm_err err = {0};
    const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    memset(&gate, 0, sizeof gate);
    assert_int_equal(mask_thread_open(fd, &t, &err), 0);
    mask_thread_push(t, &job[0]);
    wait_begun(1);
    atomic_store(&gate.open, 1);
    mask_thread_remove(t, &job[0]);
    assert_int_equal(job[0].rc, 1);
    assert_null(mask_thread_take(t));
    mask_thread_push(t, &job[1]);
    wait_begun(2);
    atomic_store(&gate.open, 2);
    assert_ptr_equal(wait_done(t, fd), &job[1]);
    mask_thread_close(t);
    mask_thread_close(NULL);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_jobs),
        cmocka_unit_test(test_removal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
