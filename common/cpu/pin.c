/* NUMA node and CPU of each thread. See pin.h. */
#include "common/cpu/pin.h"

#include <numa.h>
#include <sched.h>
#include <signal.h>
#include <string.h>

void pin_prefer_node(int node)
{
    if (node >= 0) numa_set_preferred(node);
}

int pin_this_thread(int cpu, struct helm_err *err)
{
    cpu_set_t set;
    if (cpu < 0 || cpu >= CPU_SETSIZE) return helm_fail(err, HELM_E_LIMIT, "cannot pin to CPU %d", cpu);
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    int code = pthread_setaffinity_np(pthread_self(), sizeof set, &set);
    if (code)
        return helm_fail(err, HELM_E_PERMISSION, "cannot pin a thread to CPU %d: %s", cpu, strerror(code));
    return 0;
}

int pin_create_thread(pthread_t *thread, int cpu, void *(*run)(void *), void *arg, struct helm_err *err)
{
    sigset_t all, old;
    pthread_attr_t attr;
    cpu_set_t set;
    if (cpu >= CPU_SETSIZE) return helm_fail(err, HELM_E_LIMIT, "cannot pin to CPU %d", cpu);
    if (pthread_attr_init(&attr)) return helm_fail(err, HELM_E_NOMEM, "no memory for thread attributes");
    int code = 0;
    if (cpu >= 0) {
        CPU_ZERO(&set);
        CPU_SET(cpu, &set);
        code = pthread_attr_setaffinity_np(&attr, sizeof set, &set);
    }
    if (!code) {
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        code = pthread_create(thread, &attr, run, arg);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
    }
    pthread_attr_destroy(&attr);
    if (code)
        return helm_fail(err, HELM_E_PERMISSION, "cannot start a thread on CPU %d (-1: any): %s", cpu,
                         strerror(code));
    return 0;
}
