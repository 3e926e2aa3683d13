/* helm-bench-read: how fast this machine's memory can be read, again and again, whenever it is asked.
 *
 * One buffer, touched once and kept, and threads pinned as the CPU worker pins its own: a measurement takes
 * about 0.15 s and can stand right before and after what it is compared with, on machines whose memory is
 * shared with others and changes within seconds (tools/bench/cpu_share.py). Each line on standard input asks
 * for one; the answer is a line with GB/s. The loops are read_limit.c's. */
#include <inttypes.h>
#include <stdio.h>

#include "common/args.h"
#include "common/cgroup.h"
#include "common/cpu.h"
#include "common/units.h"
#include "tools/bench/bench.h"

#define THREADS_MAX    1024
#define AVAILABLE_PART 4 /* of the memory that is free, at most one part in so many */

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

int main(int argc, char *argv[])
{
    uint64_t threads = 0, bytes = 4 * GIB, count = 0;
    double node = -1;
    const struct args_option options[] = {
        {"threads", 't', ARGS_U64, "N", "threads that read (0: as many as the CPU worker takes by itself)",
         .target = &threads, .min = 0, .max = THREADS_MAX},
        {"node", 0, ARGS_DOUBLE, "N", "NUMA node of the CPUs (-1: any)", .target = &node, .min = -1,
         .max = 1023},
        {"buffer", 0, ARGS_SIZE, "SIZE", "memory to read (4GiB): much more than the caches",
         .target = &bytes},
        {"count", 0, ARGS_U64, "N", "measure so often and end, without asking standard input",
         .target = &count, .min = 0, .max = 1000000},
    };
    const struct args_spec spec = {
        .program = "helm-bench-read",
        .usage = "[options]",
        .about = "Says how fast memory can be read, in GB/s: one line for each line on standard input.\n"
                 "The first line of output is 'ready THREADS BYTES'.",
        .options = options,
        .option_count = sizeof options / sizeof *options};
    struct args_parsed parsed;
    struct helm_err err = {0};
    args_parse_main(&spec, argc, argv, &parsed);
    if (fill_in(&threads, (int)node, bytes, &err) < 0) return fail(&err);
    struct read_limit *limit;
    if (read_limit_open((uint32_t)threads, (int)node, bytes, &limit, &err) < 0) return fail(&err);
    printf("ready %" PRIu64 " %" PRIu64 "\n", threads, bytes);
    fflush(stdout);
    for (uint64_t i = 0; count == 0 || i < count; i++) {
        char line[64];
        if (count == 0 && !fgets(line, sizeof line, stdin)) break;
        printf("%.3f\n", read_limit_measure(limit));
        if (fflush(stdout)) break;
    }
    read_limit_close(&limit);
    return ferror(stdout) != 0;
}
