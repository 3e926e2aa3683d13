/* Unit tests of common/base/cgroup.c, on fabricated /proc and /sys/fs/cgroup trees and on this machine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "common/base/cgroup.h"
#include "common/base/units.h"
#include "tests/unit/common/base/tree.h"

#define MEMINFO      "MemTotal:       1048576 kB\nMemFree:         1000 kB\nMemAvailable:    524288 kB\n"
#define UNLIMITED_V1 "9223372036854771712\n"

static struct cgroup_memory read_memory(const char *root)
{
    struct cgroup_memory memory;
    struct helm_err err = {0};
    int rc = cgroup_read_memory_under(root, &memory, &err);
    if (rc) fail_msg("%s", err.text);
    return memory;
}

static void no_cgroups_means_no_limit(void **state)
{
    (void)state;
    char root[TREE_PATH];
    tree_make(root);
    tree_write(root, "proc/meminfo", MEMINFO);
    struct cgroup_memory memory = read_memory(root);
    assert_true(memory.limit_bytes == CGROUP_UNLIMITED);
    assert_int_equal(memory.used_bytes, 0);
    assert_int_equal(memory.machine_bytes, GIB);
    assert_int_equal(memory.available_bytes, 512 * MIB);
    assert_true(cgroup_cpu_quota_under(root) == 0);
    tree_remove(root);
}

static void v2_takes_the_lowest_ancestor(void **state)
{
    (void)state;
    char root[TREE_PATH];
    tree_make(root);
    tree_write(root, "proc/meminfo", MEMINFO);
    tree_write(root, "proc/self/cgroup", "0::/system.slice/helmd.service\n");
    tree_write(root, "proc/self/mountinfo",
               "22 1 0:21 / /proc rw - proc proc rw\n"
               "31 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
    tree_write(root, "sys/fs/cgroup/cpu.stat", "usage_usec 1\n");
    tree_write(root, "sys/fs/cgroup/system.slice/memory.max", "268435456\n");
    tree_write(root, "sys/fs/cgroup/system.slice/memory.current", "104857600\n");
    tree_write(root, "sys/fs/cgroup/system.slice/memory.stat",
               "anon 1\nfile 50\nactive_file 20971520\ninactive_file 31457280\n");
    tree_write(root, "sys/fs/cgroup/system.slice/cpu.max", "150000 100000\n");
    tree_write(root, "sys/fs/cgroup/system.slice/helmd.service/memory.max", "max\n");
    tree_write(root, "sys/fs/cgroup/system.slice/helmd.service/memory.current", "4096\n");
    tree_write(root, "sys/fs/cgroup/system.slice/helmd.service/cpu.max", "max 100000\n");
    struct cgroup_memory memory = read_memory(root);
    assert_int_equal(memory.limit_bytes, 256 * MIB);
    assert_int_equal(memory.used_bytes, 50 * MIB);
    assert_int_equal(memory.available_bytes, 206 * MIB);
    assert_true(cgroup_cpu_quota_under(root) == 1.5);

    /* A tighter group below: its limit is the lowest, but its parent's neighbours leave less room. */
    tree_write(root, "sys/fs/cgroup/system.slice/helmd.service/memory.max", "209715200\n");
    tree_write(root, "sys/fs/cgroup/system.slice/memory.current", "209715200\n");
    tree_write(root, "sys/fs/cgroup/system.slice/helmd.service/cpu.max", "50000 100000\n");
    memory = read_memory(root);
    assert_int_equal(memory.limit_bytes, 200 * MIB);
    assert_int_equal(memory.used_bytes, 4096);
    assert_int_equal(memory.available_bytes, 106 * MIB);
    assert_true(cgroup_cpu_quota_under(root) == 0.5);

    tree_write(root, "sys/fs/cgroup/system.slice/memory.current", "999999999999\n"); /* above its limit */
    memory = read_memory(root);
    assert_int_equal(memory.available_bytes, 0);
    tree_remove(root);
}

#define V1_MOUNTS                                                                                            \
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"                                             \
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:3 master:1 - cgroup cgroup rw,cpu,cpuacct\n" \
    "33 31 0:30 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset\n"                             \
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"                             \
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"

static void hybrid_reads_v1_controllers(void **state)
{
    (void)state;
    char root[TREE_PATH];
    tree_make(root);
    tree_write(root, "proc/meminfo", MEMINFO);
    tree_write(root, "proc/self/cgroup",
               "9:name=systemd:/\n4:memory:/jobs/one\n3:cpuset:/\n1:cpu,cpuacct:/jobs\n0::/\n");
    tree_write(root, "proc/self/mountinfo", V1_MOUNTS);
    tree_write(root, "sys/fs/cgroup/unified/cgroup.procs", "");
    tree_write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", UNLIMITED_V1);
    tree_write(root, "sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "134217728\n");
    tree_write(root, "sys/fs/cgroup/memory/jobs/memory.usage_in_bytes", "67108864\n");
    tree_write(root, "sys/fs/cgroup/memory/jobs/memory.stat",
               "inactive_file 1\nactive_file 2\nhierarchical_memory_limit 134217728\n"
               "total_active_file 25165824\ntotal_inactive_file 8388608\n");
    tree_write(root, "sys/fs/cgroup/memory/jobs/one/memory.limit_in_bytes", UNLIMITED_V1);
    tree_write(root, "sys/fs/cgroup/memory/jobs/one/memory.usage_in_bytes", "4096\n");
    tree_write(root, "sys/fs/cgroup/memory/jobs/one/memory.stat", "hierarchical_memory_limit 134217728\n");
    tree_write(root, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    tree_write(root, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    tree_write(root, "sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_quota_us", "250000\n");
    tree_write(root, "sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_period_us", "100000\n");
    struct cgroup_memory memory = read_memory(root);
    assert_int_equal(memory.limit_bytes, 128 * MIB);
    assert_int_equal(memory.used_bytes, 32 * MIB); /* the whole of jobs, not only this group */
    assert_int_equal(memory.available_bytes, 96 * MIB);
    assert_true(cgroup_cpu_quota_under(root) == 2.5);
    tree_remove(root);
}

/* A container without its own cgroup namespace: the path in /proc is the host's, the mount shows only our
 * part. */
static void a_container_sees_its_own_part(void **state)
{
    (void)state;
    static const char *const groups[] = {"4:memory:/docker/abc\n", "4:memory:/docker/abc/inner\n",
                                         "4:memory:/../elsewhere\n", "4:memory:/docker/abcdef\n"};
    char root[TREE_PATH];
    tree_make(root);
    tree_write(root, "proc/meminfo", MEMINFO);
    tree_write(root, "proc/self/mountinfo",
               "35 31 0:32 /docker/abc /sys/fs/cgroup/my\\040memory ro - cgroup cgroup rw,memory\n");
    tree_write(root, "sys/fs/cgroup/my memory/memory.limit_in_bytes", "134217728\n");
    tree_write(root, "sys/fs/cgroup/my memory/memory.usage_in_bytes", "1048576\n");
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        tree_write(root, "proc/self/cgroup", groups[i]);
        assert_int_equal(read_memory(root).limit_bytes, 128 * MIB);
        assert_int_equal(read_memory(root).available_bytes, 127 * MIB);
    }
    /* v1 also tells what the invisible ancestors allow. */
    tree_write(root, "sys/fs/cgroup/my memory/memory.stat", "hierarchical_memory_limit 67108864\n");
    assert_int_equal(read_memory(root).limit_bytes, 64 * MIB);
    tree_remove(root);
}

static void odd_files_are_no_limit(void **state)
{
    (void)state;
    static const char *const odd[] = {"", "\n", "garbage\n", "-1\n", "99999999999999999999999\n"};
    char root[TREE_PATH];
    tree_make(root);
    tree_write(root, "proc/meminfo", MEMINFO);
    tree_write(root, "proc/self/cgroup", "0::/a\nnonsense\n:\n::\n");
    tree_write(root, "proc/self/mountinfo",
               "x\n - \n1 2 3 - cgroup2\n31 23 0:26 / /cg rw - cgroup2 none rw\n");
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        tree_write(root, "cg/a/memory.max", odd[i]);
        tree_write(root, "cg/a/cpu.max", odd[i]);
        assert_true(read_memory(root).limit_bytes == CGROUP_UNLIMITED);
        assert_true(cgroup_cpu_quota_under(root) == 0);
    }
    tree_write(root, "cg/a/cpu.max", "1000 0\n");
    assert_true(cgroup_cpu_quota_under(root) == 0);
    tree_remove(root);
}

static void missing_meminfo_is_an_error(void **state)
{
    (void)state;
    char root[TREE_PATH];
    struct cgroup_memory memory;
    struct helm_err err = {0};
    tree_make(root);
    assert_int_equal(cgroup_read_memory_under(root, &memory, &err), HELM_E_IO);
    assert_non_null(strstr(err.text, "meminfo"));
    tree_write(root, "proc/meminfo", "MemTotal: 5 kB\n");
    assert_int_equal(cgroup_read_memory_under(root, &memory, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "MemAvailable"));
    tree_remove(root);
}

static void this_machine_is_readable(void **state)
{
    (void)state;
    struct cgroup_memory memory;
    struct helm_err err = {0};
    assert_int_equal(cgroup_read_memory(&memory, &err), 0);
    assert_true(memory.machine_bytes >= 64 * MIB);
    assert_true(memory.available_bytes <= memory.machine_bytes);
    assert_true(cgroup_cpu_quota() >= 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_cgroups_means_no_limit),   cmocka_unit_test(v2_takes_the_lowest_ancestor),
        cmocka_unit_test(hybrid_reads_v1_controllers), cmocka_unit_test(a_container_sees_its_own_part),
        cmocka_unit_test(odd_files_are_no_limit),      cmocka_unit_test(missing_meminfo_is_an_error),
        cmocka_unit_test(this_machine_is_readable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
