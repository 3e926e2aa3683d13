/* Unit tests of common/base/node.c, on fabricated /proc and /sys trees and on this machine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "common/base/node.h"
#include "common/base/units.h"
#include "tests/unit/common/base/tree.h"

/* MiB; what is free is a quarter of it each: free, active and inactive pages of files, twice as much
 * reclaimable. */
static void write_node(const char *root, int node, const char *cpus, unsigned total, unsigned available)
{
    char path[96], text[512];
    unsigned each = available / 4 * 1024;
    snprintf(path, sizeof path, "sys/devices/system/node/node%d/cpulist", node);
    snprintf(text, sizeof text, "%s\n", cpus);
    tree_write(root, path, text);
    snprintf(path, sizeof path, "sys/devices/system/node/node%d/meminfo", node);
    snprintf(text, sizeof text,
             "Node %d MemTotal:       %u kB\nNode %d MemFree:        %u kB\nNode %d MemUsed:         5 kB\n"
             "Node %d Active(file):   %u kB\nNode %d Inactive(file): %u kB\nNode %d SReclaimable:   %u kB\n",
             node, total * 1024, node, each, node, node, each, node, each, node, 2 * each);
    tree_write(root, path, text);
}

/* Two nodes of 16 GiB with 4 and 12 GiB available, of which the kernel keeps half for itself; a third one
 * that has memory and no CPUs. */
static void write_machine(const char *root)
{
    tree_write(root, "proc/meminfo", "MemTotal:       37748736 kB\nMemAvailable:    9437184 kB\n");
    tree_write(root, "proc/self/status", "Name:\thelmd\nMems_allowed:\t7\nMems_allowed_list:\t0-2\n");
    tree_write(root, "sys/devices/system/node/online", "0-1,4\n");
    write_node(root, 0, "0-7", 16 * 1024, 4 * 1024);
    write_node(root, 1, "8-15", 16 * 1024, 12 * 1024);
    write_node(root, 4, "", 4 * 1024, 2 * 1024);
}

static int choose(const char *root, int wanted)
{
    struct helm_err err = {0};
    int node = -2;
    if (node_choose_under(root, wanted, &node, &err)) fail_msg("%s", err.text);
    return node;
}

static struct cgroup_memory memory_of(const char *root, int node)
{
    struct cgroup_memory memory;
    struct helm_err err = {0};
    if (node_read_memory_under(root, node, &memory, &err)) fail_msg("%s", err.text);
    return memory;
}

/* Names without sizes, as some containers have it: that is no reason to refuse, and no node to bind to. */
static void nodes_that_are_not_described_are_one(void **state)
{
    (void)state;
    char root[TREE_PATH];
    struct helm_err err = {0};
    int node;
    tree_make(root);
    assert_int_equal(choose(root, -1), -1);
    tree_write(root, "proc/self/status", "Mems_allowed_list:\t0\n");
    tree_write(root, "sys/devices/system/node/online", "0\n");
    assert_int_equal(choose(root, -1), -1);
    assert_int_equal(node_choose_under(root, 0, &node, &err), HELM_E_NOT_FOUND);
    tree_remove(root);
}

static void the_node_with_most_memory_is_chosen(void **state)
{
    (void)state;
    char root[TREE_PATH];
    struct helm_err err = {0};
    int node;
    tree_make(root);
    write_machine(root);
    assert_int_equal(choose(root, -1), 1);
    assert_int_equal(choose(root, 0), 0);
    write_node(root, 0, "0-7", 16 * 1024, 14 * 1024);
    assert_int_equal(choose(root, -1), 0);
    /* alike: the first */
    write_node(root, 0, "0-7", 16 * 1024, 12 * 1024);
    assert_int_equal(choose(root, -1), 0);
    /* memory without CPUs is never the first choice, and not allowed here */
    write_node(root, 4, "", 64 * 1024, 60 * 1024);
    assert_int_equal(choose(root, -1), 0);
    assert_int_equal(node_choose_under(root, 4, &node, &err), HELM_E_NOT_FOUND);
    tree_write(root, "proc/self/status", "Mems_allowed_list:\t1,4\n");
    assert_int_equal(choose(root, -1), 1);
    assert_int_equal(choose(root, 4), 4);
    assert_int_equal(node_choose_under(root, 0, &node, &err), HELM_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "NUMA node 0"));
    assert_non_null(strstr(err.text, "not allowed"));
    assert_int_equal(node_choose_under(root, 7, &node, &err), HELM_E_NOT_FOUND);
    assert_int_equal(node, -1);
    tree_write(root, "proc/self/status", "Mems_allowed_list:\t4\n");
    assert_int_equal(node_choose_under(root, -1, &node, &err), HELM_E_NOT_FOUND);
    tree_remove(root);
}

static void a_nodes_memory_limits(void **state)
{
    (void)state;
    char root[TREE_PATH];
    struct helm_err err = {0};
    struct cgroup_memory memory;
    tree_make(root);
    write_machine(root);
    /* 9 GiB are available of 18 that could be: each node has half of its own */
    memory = memory_of(root, 0);
    assert_int_equal(memory.available_bytes, 2 * GIB);
    assert_int_equal(memory.node, 0);
    assert_int_equal(memory.node_bytes, 16 * GIB);
    assert_int_equal(memory.machine_bytes, 36 * GIB);
    assert_int_equal(memory_of(root, 1).available_bytes, 6 * GIB);
    /* of no node in particular */
    memory = memory_of(root, -1);
    assert_int_equal(memory.available_bytes, 9 * GIB);
    assert_int_equal(memory.node_bytes, 0);
    assert_int_equal(node_read_memory_under(root, 2, &memory, &err), HELM_E_NOT_FOUND);
    /* a cgroup's limit holds as well */
    tree_write(root, "proc/self/cgroup", "0::/a\n");
    tree_write(root, "proc/self/mountinfo", "31 23 0:26 / /cg rw - cgroup2 none rw\n");
    tree_write(root, "cg/a/memory.max", "3221225472\n");
    assert_int_equal(memory_of(root, 0).available_bytes, 2 * GIB);
    assert_int_equal(memory_of(root, 0).node_bytes, 16 * GIB);
    assert_int_equal(memory_of(root, 1).available_bytes, 3 * GIB);
    assert_int_equal(memory_of(root, 1).node_bytes, 0);
    tree_remove(root);
}

static void one_node_is_the_machine(void **state)
{
    (void)state;
    char root[TREE_PATH];
    struct helm_err err = {0};
    int node;
    tree_make(root);
    tree_write(root, "proc/meminfo", "MemTotal:       1048576 kB\nMemAvailable:    524288 kB\n");
    assert_int_equal(choose(root, -1), -1);
    assert_int_equal(choose(root, 0), -1);
    assert_int_equal(node_choose_under(root, 1, &node, &err), HELM_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "no NUMA"));
    assert_int_equal(memory_of(root, 0).available_bytes, 512 * MIB);
    tree_write(root, "sys/devices/system/node/online", "0\n");
    write_node(root, 0, "0-3", 1024, 100); /* its own figures are not asked for */
    assert_int_equal(choose(root, -1), 0);
    assert_int_equal(memory_of(root, 0).available_bytes, 512 * MIB);
    assert_int_equal(memory_of(root, 0).node_bytes, 0);
    tree_remove(root);
}

static void odd_files_are_no_nodes(void **state)
{
    (void)state;
    static const char *const odd[] = {"\n", "x\n", "-\n", "3-\n", "99999999999999999999\n", "0-,1\n"};
    char root[TREE_PATH];
    struct helm_err err = {0};
    struct cgroup_memory memory;
    int node;
    tree_make(root);
    write_machine(root);
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        tree_write(root, "sys/devices/system/node/online", odd[i]);
        if (!node_choose_under(root, -1, &node, &err)) assert_in_range(node + 1, 0, 2);
        (void)!node_read_memory_under(root, 1, &memory, &err);
    }
    tree_write(root, "sys/devices/system/node/online", "0-1\n");
    tree_write(root, "sys/devices/system/node/node1/meminfo", "nonsense\nNode 1 MemTotal: many kB\n");
    assert_int_equal(choose(root, -1), 0);
    tree_remove(root);
}

static void this_machine_has_one(void **state)
{
    (void)state;
    struct cgroup_memory memory;
    struct helm_err err = {0};
    int node;
    if (node_choose(-1, &node, &err)) fail_msg("%s", err.text);
    if (node_read_memory(node, &memory, &err)) fail_msg("%s", err.text);
    assert_true(memory.available_bytes <= memory.machine_available_bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_that_are_not_described_are_one),
        cmocka_unit_test(the_node_with_most_memory_is_chosen),
        cmocka_unit_test(a_nodes_memory_limits),
        cmocka_unit_test(one_node_is_the_machine),
        cmocka_unit_test(odd_files_are_no_nodes),
        cmocka_unit_test(this_machine_has_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
