/* The arena between two processes: the child keeps nothing of the parent but the descriptor, attaches, and
 * plays doorbell and lane with it; huge pages that the parent made are huge in the child too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/shared/arena.h"
#include "common/model/model.h"
#include "common/base/units.h"

#define TICKETS      20000u
#define TIMEOUT_MS   60000
#define WEIGHT_BYTES (8 * ARENA_HUGE_PAGE)

static struct arena create_arena(void)
{
    struct arena_spec spec = {.slots = 2,
                              .context_tokens = 64,
                              .step_tokens = 4,
                              .hidden = 64,
                              .vocab = 512,
                              .lanes = {2},
                              .kv = {1, 1, 32, 32, KV_BF16},
                              .page_count = 4,
                              .weight_bytes = WEIGHT_BYTES};
    struct arena arena;
    struct helm_err err = {0};
    if (arena_create(&spec, &arena, &err)) fail_msg("%s", err.text);
    return arena;
}

/* Forks; in the child maps the arena afresh from the descriptor, runs `child` and exits with what it returns.
 */
static pid_t fork_attached(struct arena *arena, int (*child)(struct arena *))
{
    pid_t pid = fork();
    if (pid != 0) return pid;
    struct arena own;
    struct helm_err err = {0};
    int fd = dup(arena->fd);
    arena_close(arena);
    if (arena_attach(fd, &own, &err)) {
        fprintf(stderr, "child: %s\n", err.text);
        _exit(99);
    }
    int rc = child(&own);
    arena_close(&own);
    _exit(rc);
}

static int exit_status_of(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000;
}

static int echo_lanes(struct arena *arena)
{
    struct lane *in = arena_lane_of(arena, 0), *out = arena_lane_of(arena, 1);
    struct helm_err err = {0};
    for (uint32_t ticket = 1; ticket <= TICKETS; ticket++) {
        if (lane_wait(in, ticket, ticket % 3 * 10u, TIMEOUT_MS, NULL, &err)) return 1;
        for (int k = 0; k < 64; k++) out->data[k] = in->data[k] * 2;
        if (lane_publish(out, ticket, &err)) return 2;
    }
    return 0;
}

static void lanes_work_across_processes(void **state)
{
    (void)state;
    struct arena arena = create_arena();
    struct lane *out = arena_lane_of(&arena, 0), *in = arena_lane_of(&arena, 1);
    struct helm_err err = {0};
    pid_t pid = fork_attached(&arena, echo_lanes);
    assert_true(pid > 0);
    uint32_t wrong = 0;
    for (uint32_t ticket = 1; ticket <= TICKETS && !wrong; ticket++) {
        for (int k = 0; k < 64; k++) out->data[k] = (float)(ticket + (uint32_t)k);
        if (lane_publish(out, ticket, &err) ||
            lane_wait(in, ticket, ticket % 2 * 10u, TIMEOUT_MS, NULL, &err))
            wrong = ticket;
        for (int k = 0; k < 64 && !wrong; k++) {
            if (in->data[k] != 2 * (float)(ticket + (uint32_t)k)) wrong = ticket;
        }
    }
    if (wrong) kill(pid, SIGKILL);
    int status = exit_status_of(pid);
    assert_int_equal(wrong, 0);
    assert_int_equal(status, 0);
    arena_close(&arena);
}

static int sleep_on_the_bell(struct arena *arena)
{
    (void)doorbell_wait(&arena_control_of(arena)->step_bell, 0, 0, -1, NULL);
    return 0;
}

/* A worker killed in its sleep leaves sleepers raised: that costs a system call, nothing else. */
static void a_killed_sleeper_harms_nobody(void **state)
{
    (void)state;
    struct arena arena = create_arena();
    struct doorbell *bell = &arena_control_of(&arena)->step_bell;
    pid_t dead = fork_attached(&arena, sleep_on_the_bell);
    assert_true(dead > 0);
    for (int i = 0; i < 10000 && atomic_load(&bell->sleepers) == 0; i++) usleep(1000);
    assert_int_equal(atomic_load(&bell->sleepers), 1);
    assert_int_equal(kill(dead, SIGKILL), 0);
    assert_int_equal(exit_status_of(dead), 1000);
    pid_t next = fork_attached(&arena, sleep_on_the_bell);
    assert_true(next > 0);
    for (int i = 0; i < 10000 && atomic_load(&bell->sleepers) < 2; i++) usleep(1000);
    doorbell_ring(bell, 1);
    assert_int_equal(exit_status_of(next), 0);
    arena_close(&arena);
}

/* KiB of shared memory that `mapped` at `base` maps by 2 MiB entries; -1 if /proc does not tell. */
static long pmd_mapped_kib(const void *base, uint64_t bytes)
{
    FILE *file = fopen("/proc/self/smaps", "re");
    if (!file) return -1;
    char line[512];
    long kib = -1;
    bool inside = false;
    while (fgets(line, sizeof line, file)) {
        unsigned long from, to;
        long value;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            inside = from >= (uintptr_t)base && to <= (uintptr_t)base + bytes;
        else if (inside && sscanf(line, "ShmemPmdMapped: %ld kB", &value) == 1)
            kib = (kib < 0 ? 0 : kib) + value;
    }
    fclose(file);
    return kib;
}

/* Reads the weights; 0 if they are right and mapped huge, 7 if right and small. */
static int read_huge_weights(struct arena *arena)
{
    const volatile unsigned char *weights = arena_region_ptr(arena, ARENA_REGION_WEIGHTS);
    for (uint64_t i = 0; i < WEIGHT_BYTES; i += 4096) {
        if (weights[i] != (unsigned char)(i >> 12)) return 1;
    }
    return pmd_mapped_kib(arena->base, arena->bytes) * 1024 >= (long)WEIGHT_BYTES ? 0 : 7;
}

static void huge_pages_are_huge_in_the_other_process(void **state)
{
    (void)state;
    struct arena arena = create_arena();
    struct arena_region region = arena_header_of(&arena)->region[ARENA_REGION_WEIGHTS];
    unsigned char *weights = arena_region_ptr(&arena, ARENA_REGION_WEIGHTS);
    uint64_t huge = 0, small = 0;
    arena_populate(&arena, region.offset, region.bytes, &huge, &small);
    for (uint64_t i = 0; i < WEIGHT_BYTES; i += 4096) weights[i] = (unsigned char)(i >> 12);
    long here_kib = pmd_mapped_kib(arena.base, arena.bytes);
    int there = exit_status_of(fork_attached(&arena, read_huge_weights));
    arena_close(&arena);
    assert_int_equal(huge + small, WEIGHT_BYTES);
    assert_in_set(there, ((const unsigned long[]){0, 7}), 2); /* the contents are right either way */
    if (huge < WEIGHT_BYTES || here_kib < 0) {
        print_message("mapping of %llu bytes in huge pages, of which there were %llu, skipped: this kernel "
                      "gives too few\n",
                      (unsigned long long)WEIGHT_BYTES, (unsigned long long)huge);
        skip();
    }
    assert_true((uint64_t)here_kib * 1024 >= huge); /* populate reports what /proc sees */
    assert_int_equal(there, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lanes_work_across_processes),
        cmocka_unit_test(a_killed_sleeper_harms_nobody),
        cmocka_unit_test(huge_pages_are_huge_in_the_other_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
