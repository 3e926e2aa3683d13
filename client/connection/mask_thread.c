/* The thread of long masks. See mask_thread.h. Owns the thread and its lists; jobs are only linked. */
#include "client/connection/mask_thread.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/units.h"

#define NICENESS 5

struct mask_thread {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more, done;
    struct mask_job *waiting, *finished; /* lists, the newest first */
    int event_fd;
    bool quit;
};

static void unlink_job(struct mask_job **list, const struct mask_job *job)
{
    while (*list && *list != job) list = &(*list)->next;
    if (*list) *list = job->next;
}

/* The waiting job that has used the least time, of equals the oldest. */
static struct mask_job *choose(const struct mask_thread *t)
{
    struct mask_job *best = t->waiting;
    for (struct mask_job *job = best; job; job = job->next)
        if (job->spent_us <= best->spent_us) best = job;
    return best;
}

static void *run(void *argument)
{
    struct mask_thread *t = argument;
    const uint64_t one = 1;
    setpriority(PRIO_PROCESS, (id_t)gettid(),
                NICENESS); /* where processors are few, other streams come first */
    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (!t->quit && !t->waiting) pthread_cond_wait(&t->more, &t->lock);
        if (t->quit) break;
        struct mask_job *job = choose(t);
        unlink_job(&t->waiting, job);
        job->state = MASK_JOB_RUNNING;
        pthread_mutex_unlock(&t->lock);
        const uint64_t begin = units_now_us();
        job->work(job);
        pthread_mutex_lock(&t->lock);
        job->spent_us += units_now_us() - begin;
        job->state = MASK_JOB_DONE;
        job->next = t->finished;
        t->finished = job;
        pthread_cond_broadcast(&t->done);
        (void)!write(t->event_fd, &one, sizeof one); /* EAGAIN: it is raised already */
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

int mask_thread_open(int event_fd, struct mask_thread **out, struct helm_err *err)
{
    struct mask_thread *t = calloc(1, sizeof *t);
    sigset_t all, before;
    *out = NULL;
    if (!t) return helm_fail(err, HELM_E_NOMEM, "no memory for a thread");
    t->event_fd = event_fd;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->more, NULL);
    pthread_cond_init(&t->done, NULL);
    sigfillset(&all); /* signals are the program's */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int failed = pthread_create(&t->thread, NULL, run, t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        free(t);
        return helm_fail(err, HELM_E_IO, "a thread for masks cannot be started");
    }
    *out = t;
    return 0;
}

void mask_thread_push(struct mask_thread *t, struct mask_job *job)
{
    pthread_mutex_lock(&t->lock);
    job->state = MASK_JOB_WAITING;
    job->next = t->waiting;
    t->waiting = job;
    pthread_cond_signal(&t->more);
    pthread_mutex_unlock(&t->lock);
}

struct mask_job *mask_thread_take(struct mask_thread *t)
{
    if (!t) return NULL;
    pthread_mutex_lock(&t->lock);
    struct mask_job *job = t->finished;
    if (job) {
        t->finished = job->next;
        job->state = MASK_JOB_NONE;
    }
    pthread_mutex_unlock(&t->lock);
    return job;
}

void mask_thread_remove(struct mask_thread *t, struct mask_job *job)
{
    pthread_mutex_lock(&t->lock);
    while (job->state == MASK_JOB_RUNNING) pthread_cond_wait(&t->done, &t->lock);
    unlink_job(&t->waiting, job);
    unlink_job(&t->finished, job);
    job->state = MASK_JOB_NONE;
    pthread_mutex_unlock(&t->lock);
}

void mask_thread_close(struct mask_thread *t)
{
    if (!t) return;
    pthread_mutex_lock(&t->lock);
    t->quit = true;
    pthread_cond_signal(&t->more);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->thread, NULL);
    pthread_cond_destroy(&t->more);
    pthread_cond_destroy(&t->done);
    pthread_mutex_destroy(&t->lock);
    free(t);
}
