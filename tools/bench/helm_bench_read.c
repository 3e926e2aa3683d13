/* helm-bench-read: measures how fast this machine's memory can be read, once for each request.
 *
 * One buffer, touched once and kept, and threads pinned as the CPU worker pins its own: a measurement takes
 * about 0.15 s and can stand right before and after what it is compared with, on machines whose memory is
 * shared with others and changes within seconds (tools/bench/cpu_share.py). Each line on standard input asks
 * for one; the answer is a line with GB/s. The loops are read_limit.c's. With --arena the memory is that of a
 * running helmd's weights itself, mapped as its workers map it: what is compared are the same bytes then. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "common/base/args.h"
#include "common/shared/arena.h"
#include "common/base/cgroup.h"
#include "common/base/cpu.h"
#include "common/base/units.h"
#include "common/cpu/pool.h"
#include "client/bench/bench.h"

#define AVAILABLE_PART 4 /* the buffer takes at most one part in four of free memory */

static int fail(const struct helm_err *err)
{
    fprintf(stderr, "helm-bench-read: %s\n", err->text);
    return 1;
}

/* The threads and bytes that were not asked for. */
static int fill_in(uint64_t *threads, int node, uint64_t bytes, struct helm_err *err)
{
    static struct cpu_set set;
    struct cgroup_memory memory;
    int rc = cpu_usable(node, &set, err);
    if (rc == 0) rc = cgroup_read_memory(&memory, err);
    if (rc < 0) return rc;
    if (*threads == 0) *threads = (uint64_t)set.suggested;
    if (bytes > memory.available_bytes / AVAILABLE_PART)
        return helm_fail(err, HELM_E_NOMEM,
                         "%" PRIu64 " bytes are more than a quarter of the %" PRIu64 " free", bytes,
                         memory.available_bytes);
    return 0;
}

/* The weights of a running helmd, with the huge pages that its workers made. */
static int open_arena(const char *path, struct arena *arena, uint64_t *huge_bytes, struct helm_err *err)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return helm_fail_errno(err, "%s", path);
    int rc = arena_attach(fd, arena, err);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    const struct arena_region *weights = &arena_header_of(arena)->region[ARENA_REGION_WEIGHTS];
    uint64_t small_bytes = 0;
    if (!weights->bytes) {
        arena_close(arena);
        return helm_fail(err, HELM_E_STATE, "%s holds no weights: nothing of the model lies in host memory",
                         path);
    }
    arena_populate(arena, weights->offset, weights->bytes, huge_bytes, &small_bytes);
    return 0;
}

int main(int argc, char *argv[])
{
    uint64_t threads = 0, bytes = 4 * GIB, count = 0;
    double node = -1;
    const char *arena_path = NULL;
    const struct args_option options[] = {
        {"threads", 't', ARGS_U64, "N", "threads that read (0: as many as the CPU worker takes by itself)",
         .target = &threads, .min = 0, .max = POOL_THREADS_MAX},
        {"node", 0, ARGS_DOUBLE, "N", "NUMA node of the CPUs (-1: any)", .target = &node, .min = -1,
         .max = 1023},
        {"buffer", 0, ARGS_SIZE, "SIZE", "memory to read (4GiB): much more than the caches",
         .target = &bytes},
        {"arena", 0, ARGS_TEXT, "PATH",
         "read the weights of a running helmd instead: its arena, /proc/PID/fd/N, an idle daemon's",
         .target = &arena_path},
        {"count", 0, ARGS_U64, "N", "measure so often and end, without asking standard input",
         .target = &count, .min = 0, .max = 1000000},
    };
    const struct args_spec spec = {
        .program = "helm-bench-read",
        .usage = "[options]",
        .about =
            "Says how fast memory can be read, in GB/s: one line for each line on standard input.\n"
            "The first line of output is 'ready THREADS BYTES HUGE': how much of it lies on huge pages of\n"
            "a daemon; 0 for memory of its own, for which they are asked for and not counted.",
        .options = options,
        .option_count = sizeof options / sizeof *options};
    struct args_parsed parsed;
    struct helm_err err = {0};
    args_parse_main(&spec, argc, argv, &parsed);
    struct arena arena = {0};
    const void *memory = NULL;
    uint64_t huge_bytes = 0;
    if (arena_path) {
        if (open_arena(arena_path, &arena, &huge_bytes, &err) < 0) return fail(&err);
        memory = arena_region_ptr(&arena, ARENA_REGION_WEIGHTS);
        bytes = arena_header_of(&arena)->region[ARENA_REGION_WEIGHTS].bytes;
    }
    if (fill_in(&threads, (int)node, memory ? 0 : bytes, &err) < 0) return fail(&err);
    struct read_limit *limit;
    if (read_limit_open((uint32_t)threads, (int)node, memory, bytes, &limit, &err) < 0) return fail(&err);
    printf("ready %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", threads, bytes, huge_bytes);
    fflush(stdout);
    for (uint64_t i = 0; count == 0 || i < count; i++) {
        char line[64];
        if (count == 0 && !fgets(line, sizeof line, stdin)) break;
        double gb_s;
        if (read_limit_measure(limit, &gb_s, &err)) return fail(&err);
        printf("%.3f\n", gb_s);
        if (fflush(stdout)) break;
    }
    read_limit_close(&limit);
    if (arena_path) arena_close(&arena);
    return ferror(stdout) != 0;
}
