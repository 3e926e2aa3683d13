/* Unit tests of worker-gpu/device/nvml.c over entries of our own: whose memory it is, and what is said where
 * the library does not know. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>
#include <unistd.h>

#include "worker-gpu/device/nvml.h"

/* The library: what it says, and how often it was opened and closed. */
static struct {
    int fails; /* of `processes` */
    unsigned count;
    struct nvml_process process[200];
    unsigned long long used;
    int opened;
} library;

static int fake_init(void)
{
    library.opened++;
    return 0;
}
static int fake_end(void)
{
    library.opened--;
    return 0;
}
static int fake_find(const char *bus, void **device)
{
    *device = &library;
    return strcmp(bus, "0000:3b:00.0") != 0;
}
static int fake_memory(void *device, void *total_free_used)
{
    const unsigned long long memory[3] = {1000000, 1000000 - library.used, library.used};
    assert_ptr_equal(device, &library);
    memcpy(total_free_used, memory, sizeof memory);
    return 0;
}
static int fake_processes(void *device, unsigned *count, struct nvml_process *process)
{
    const int too_small = 7;
    assert_ptr_equal(device, &library);
    if (library.fails) return library.fails;
    unsigned room = *count;
    *count = library.count;
    if (library.count > room) return too_small;
    memcpy(process, library.process, library.count * sizeof *process);
    return 0;
}

static const struct nvml_entries entries = {.init = fake_init,
                                            .end = fake_end,
                                            .find = fake_find,
                                            .memory = fake_memory,
                                            .processes = fake_processes};

static struct nvml_answer ask(void)
{
    struct nvml_answer answer;
    assert_true(nvml_ask_through(&entries, "0000:3b:00.0", &answer));
    assert_int_equal(library.opened, 0);
    assert_int_equal(answer.used_bytes, library.used);
    return answer;
}

static void list(unsigned i, unsigned pid, unsigned long long bytes)
{
    library.process[i] = (struct nvml_process){.pid = pid, .used_bytes = bytes};
    if (library.count <= i) library.count = i + 1;
}

static const unsigned other = 1; /* no test is */

/* Others come and go while a context is opened: it takes what this process took. */
static void others_do_not_count(void **state)
{
    (void)state;
    uint64_t bytes;
    memset(&library, 0, sizeof library);
    library.used = 300;
    list(0, other, 300);
    struct nvml_answer before = ask();
    assert_false(before.own_known);
    library.used = 300 + 70 + 5000;
    list(0, other, 5300);
    list(1, (unsigned)getpid(), 70);
    struct nvml_answer after = ask();
    assert_true(after.own_known);
    assert_true(nvml_taken(&before, &after, &bytes));
    assert_int_equal(bytes, 70);
    library.used = 80;
    library.count = 0;
    list(0, (unsigned)getpid(), 80); /* the other one is gone, ours grew */
    struct nvml_answer later = ask();
    assert_true(nvml_taken(&after, &later, &bytes));
    assert_int_equal(bytes, 10);
}

/* Where the library does not list us, or not our memory, or another's number is ours: the difference of all.
 */
static void else_the_difference_of_all(void **state)
{
    (void)state;
    uint64_t bytes;
    for (int how = 0; how < 5; how++) {
        memset(&library, 0, sizeof library);
        struct nvml_entries without = entries;
        struct nvml_answer before, after;
        library.used = 300;
        if (how == 0) without.processes = NULL;
        if (how == 1) library.fails = 3;
        if (how == 4) list(0, (unsigned)getpid(), 250); /* a namesake outside this container */
        assert_true(nvml_ask_through(&without, "0000:3b:00.0", &before));
        library.used = 420;
        if (how == 2) list(0, (unsigned)getpid(), UINT64_MAX);
        if (how == 3)
            for (unsigned i = 0; i < 200; i++) list(i, (unsigned)getpid() + 1 + i, 1);
        assert_true(nvml_ask_through(&without, "0000:3b:00.0", &after));
        assert_int_equal(after.own_known, how == 4);
        assert_false(nvml_taken(&before, &after, &bytes));
        assert_int_equal(bytes, 120);
        assert_false(nvml_taken(&after, &before, &bytes)); /* less than before */
        assert_int_equal(bytes, 0);
    }
}

static void an_unknown_device_is_no_answer(void **state)
{
    (void)state;
    struct nvml_answer answer;
    struct nvml_entries without = entries;
    assert_false(nvml_ask_through(&entries, "0000:01:00.0", &answer));
    without.memory = NULL;
    assert_false(nvml_ask_through(&without, "0000:3b:00.0", &answer));
    assert_int_equal(answer.used_bytes, 0);
    assert_int_equal(library.opened, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(others_do_not_count),
        cmocka_unit_test(else_the_difference_of_all),
        cmocka_unit_test(an_unknown_device_is_no_answer),
    };
    return cmocka_run_group_tests_name("worker-gpu/nvml", tests, NULL, NULL);
}
