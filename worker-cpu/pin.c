/* NUMA node and CPU of each thread. See pin.h. */
#include "worker-cpu/pin.h"

#include <numa.h>
#include <sched.h>
#include <signal.h>
#include <string.h>

int pin_choose_node(int wanted, int *node, struct helm_err *err)
{
    *node = -1;
    if (numa_available() < 0) {
        if (wanted > 0)
            return helm_fail(err, HELM_E_NOT_FOUND, "NUMA node %d: this machine has no NUMA", wanted);
        return 0;
    }
    struct bitmask *allowed = numa_get_mems_allowed();
    if (!allowed) return helm_fail(err, HELM_E_NOMEM, "cannot read the allowed NUMA nodes");
    int rc = 0;
    if (wanted >= 0) {
        long long free_bytes;
        if (wanted > numa_max_node() || !numa_bitmask_isbitset(allowed, (unsigned)wanted) ||
            numa_node_size64(wanted, &free_bytes) < 0)
            rc = helm_fail(err, HELM_E_NOT_FOUND,
                           "NUMA node %d: no such node, or not allowed for this process", wanted);
        else
            *node = wanted;
        goto out;
    }
    long long best = -1;
    for (int i = 0; i <= numa_max_node(); i++) {
        long long free_bytes = 0;
        if (!numa_bitmask_isbitset(allowed, (unsigned)i)) continue;
        if (numa_node_size64(i, &free_bytes) <= 0) continue;
        if (free_bytes > best) {
            best = free_bytes;
            *node = i;
        }
    }
    if (*node < 0)
        rc = helm_fail(err, HELM_E_NOT_FOUND, "no NUMA node with memory is allowed for this process");
out:
    numa_bitmask_free(allowed);
    return rc;
}

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
        return helm_fail(err, HELM_E_PERMISSION, "cannot start a thread on CPU %d: %s", cpu, strerror(code));
    return 0;
}
