/* The surroundings of a process. See start.h. */
#include "common/base/start.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/cpu.h"
#include "common/base/units.h"

struct limit {
    int resource;
    const char *name, *letter; /* letter: of ulimit */
    uint64_t least;
    bool bytes;
};

static const struct limit limits[] = {
    {RLIMIT_STACK, "stack size", "-s", START_STACK_LEAST, true},
    {RLIMIT_AS, "address space", "-v", START_MEMORY_LEAST, true},
    {RLIMIT_DATA, "data size", "-d", START_MEMORY_LEAST, true},
    {RLIMIT_NOFILE, "open files", "-n", START_FILES_LEAST, false},
};

static int check(const struct limit *limit, uint64_t least, struct helm_err *err)
{
    struct rlimit value;
    char has[UNITS_TEXT], needs[UNITS_TEXT];
    if (getrlimit((__rlimit_resource_t)limit->resource, &value))
        return helm_fail_errno(err, "the limit of %s", limit->name);
    if (value.rlim_cur == RLIM_INFINITY || value.rlim_cur >= least) return 0;
    if (!limit->bytes)
        return helm_fail(err, HELM_E_CAPACITY,
                         "the limit of %s is %llu; at least %llu are needed (ulimit %s)", limit->name,
                         (unsigned long long)value.rlim_cur, (unsigned long long)least, limit->letter);
    return helm_fail(err, HELM_E_CAPACITY, "the limit of %s is %s; at least %s are needed (ulimit %s)",
                     limit->name, units_format_size(value.rlim_cur, has), units_format_size(least, needs),
                     limit->letter);
}

static int open_standard(struct helm_err *err)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
            return helm_fail_errno(err, "descriptor %d is closed and /dev/null cannot be opened in its place",
                                   fd);
    return 0;
}

int start_check_proc(struct helm_err *err)
{
    if (access("/proc/self", F_OK) == 0) return 0;
    return helm_fail(err, HELM_E_STATE,
                     "/proc is not mounted: memory, processors and this program's folder are read from it "
                     "(mount -t proc proc /proc)");
}

int start_process(struct helm_err *err)
{
    static const int ignored[] = {SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGXFSZ};
    int rc = open_standard(err);
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) signal(ignored[i], SIG_IGN);
    for (size_t i = 0; i < sizeof limits / sizeof *limits && !rc; i++)
        rc = check(&limits[i], limits[i].least, err);
    unsigned mask;
    if (!rc) rc = cpu_read_mask(&mask, err);
    return rc ? rc : start_check_proc(err);
}

int start_check_arena(uint64_t bytes, struct helm_err *err)
{
    int rc = check(&limits[1], bytes + START_MEMORY_LEAST, err);
    return rc ? helm_err_prefix(err, "weights and caches in host memory") : 0;
}
