/* The threads that read bodies. See jobs.h. Owns threads and queues; exchanges are only passed through. */
#include "client/gateway/jobs.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "client/gateway/users.h"

#define THREADS_MAX 16

struct jobs {
    pthread_t thread[THREADS_MAX];
    uint32_t threads;
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct users_queue waiting;
    struct exchange_list done;
    int event_fd;
    bool quit;
};

static void *run(void *argument)
{
    struct jobs *jobs = argument;
    const uint64_t one = 1;
    pthread_mutex_lock(&jobs->lock);
    while (!jobs->quit) {
        struct exchange *exchange = users_queue_take(&jobs->waiting);
        if (!exchange) {
            pthread_cond_wait(&jobs->more, &jobs->lock);
            continue;
        }
        pthread_mutex_unlock(&jobs->lock);
        exchange_work(exchange);
        pthread_mutex_lock(&jobs->lock);
        users_queue_done(exchange->whose); /* its next one is this thread's to take, if it is its turn */
        STAILQ_INSERT_TAIL(&jobs->done, exchange, job);
        (void)!write(jobs->event_fd, &one, sizeof one); /* EAGAIN: it is raised already */
    }
    pthread_mutex_unlock(&jobs->lock);
    return NULL;
}

int jobs_open(uint32_t threads, struct jobs **out, struct helm_err *err)
{
    struct jobs *jobs = calloc(1, sizeof *jobs);
    *out = NULL;
    if (!jobs) return helm_fail(err, HELM_E_NOMEM, "no memory for threads");
    pthread_mutex_init(&jobs->lock, NULL);
    pthread_cond_init(&jobs->more, NULL);
    STAILQ_INIT(&jobs->done);
    users_queue_open(&jobs->waiting, threads > 1 ? threads - 1 : 1);
    jobs->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = jobs->event_fd < 0 ? helm_fail_errno(err, "eventfd") : 0;
    for (; rc == 0 && jobs->threads < threads && jobs->threads < THREADS_MAX; jobs->threads++)
        if (pthread_create(&jobs->thread[jobs->threads], NULL, run, jobs) != 0) {
            rc = helm_fail(err, HELM_E_IO, "a thread cannot be started");
            break;
        }
    if (rc < 0) jobs_close(&jobs);
    *out = jobs;
    return rc;
}

int jobs_fd(const struct jobs *jobs)
{
    return jobs->event_fd;
}

void jobs_push(struct jobs *jobs, struct exchange *exchange)
{
    pthread_mutex_lock(&jobs->lock);
    users_queue_push(&jobs->waiting, exchange);
    pthread_cond_signal(&jobs->more);
    pthread_mutex_unlock(&jobs->lock);
}

bool jobs_withdraw(struct jobs *jobs, struct exchange *exchange)
{
    pthread_mutex_lock(&jobs->lock);
    const bool waits = users_queue_remove(&jobs->waiting, exchange);
    pthread_mutex_unlock(&jobs->lock);
    return waits;
}

struct exchange *jobs_take(struct jobs *jobs)
{
    uint64_t count;
    (void)!read(jobs->event_fd, &count, sizeof count); /* EAGAIN: it was not raised */
    pthread_mutex_lock(&jobs->lock);
    struct exchange *all = STAILQ_FIRST(&jobs->done);
    STAILQ_INIT(&jobs->done);
    pthread_mutex_unlock(&jobs->lock);
    return all;
}

void jobs_close(struct jobs **out)
{
    struct jobs *jobs = *out;
    if (!jobs) return;
    *out = NULL;
    pthread_mutex_lock(&jobs->lock);
    jobs->quit = true;
    pthread_cond_broadcast(&jobs->more);
    pthread_mutex_unlock(&jobs->lock);
    for (uint32_t i = 0; i < jobs->threads; i++) pthread_join(jobs->thread[i], NULL);
    if (jobs->event_fd >= 0) close(jobs->event_fd);
    pthread_cond_destroy(&jobs->more);
    pthread_mutex_destroy(&jobs->lock);
    free(jobs);
}
