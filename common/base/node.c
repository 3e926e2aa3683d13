/* NUMA nodes and their memory. See node.h. Owns nothing. */
#include "common/base/node.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/file.h"

#define NODES_MAX 1024 /* the kernel's own limit */

/* The value after "key:" in lines of "key: value" or "Node 0 key: value kB". False: there is none. */
static bool find_value(const char *root, const char *path, const char *key, char *value, size_t size)
{
    char full[PATH_MAX], line[4096];
    size_t length = strlen(key);
    bool found = false;
    snprintf(full, sizeof full, "%s%s", root, path);
    FILE *file = fopen(full, "re");
    while (file && !found && fgets(line, sizeof line, file)) {
        const char *at = line;
        if (strncmp(at, "Node ", 5) == 0) at += 5 + strspn(at + 5, "0123456789 ");
        found = strncmp(at, key, length) == 0 && at[length] == ':';
        if (!found) continue;
        at += length + 1;
        at += strspn(at, " \t");
        snprintf(value, size, "%s", at);
        value[strcspn(value, "\n")] = '\0';
    }
    if (file) fclose(file);
    return found;
}

static uint64_t find_bytes(const char *root, const char *path, const char *key)
{
    char value[64];
    return find_value(root, path, key, value, sizeof value) ? strtoull(value, NULL, 10) * 1024 : 0;
}

bool node_list_has(const char *list, int number)
{
    while (*list >= '0' && *list <= '9') {
        char *end;
        long first = strtol(list, &end, 10), last = first;
        if (*end == '-') last = strtol(end + 1, &end, 10);
        if (number >= first && number <= last) return true;
        if (*end != ',') return false;
        list = end + 1;
    }
    return false;
}

struct node {
    uint64_t total;
    uint64_t free; /* or filled with what can be dropped; the kernel's reserves are not taken off */
    bool allowed, cpus;
};

static struct node look_at(const char *root, int number, const char *allowed)
{
    char path[96], cpus[16];
    file_first_line(cpus, sizeof cpus, "%s/sys/devices/system/node/node%d/cpulist", root, number);
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/meminfo", number);
    return (struct node){.total = find_bytes(root, path, "MemTotal"),
                         .free = find_bytes(root, path, "MemFree") + find_bytes(root, path, "Active(file)") +
                                 find_bytes(root, path, "Inactive(file)") +
                                 find_bytes(root, path, "SReclaimable") / 2,
                         .allowed = node_list_has(allowed, number),
                         .cpus = cpus[0] != '\0'};
}

/* Nodes that are there and those that this process may use; false: a machine without NUMA. */
static bool read_lists(const char *root, char *online, char *allowed, size_t size)
{
    file_first_line(online, size, "%s/sys/devices/system/node/online", root);
    if (!find_value(root, "/proc/self/status", "Mems_allowed_list", allowed, size))
        snprintf(allowed, size, "%s", online);
    return online[0] != '\0';
}

int node_choose_under(const char *root, int wanted, int *node, struct helm_err *err)
{
    char online[4096], allowed[4096];
    uint64_t most = 0;
    bool described = false; /* the system says how much memory any node has */
    *node = -1;
    if (!read_lists(root, online, allowed, sizeof online)) {
        if (wanted > 0)
            return helm_fail(err, HELM_E_NOT_FOUND, "NUMA node %d: this machine has no NUMA", wanted);
        return 0;
    }
    for (int i = 0; i < NODES_MAX; i++) {
        if (!node_list_has(online, i) || (wanted >= 0 && i != wanted)) continue;
        const struct node n = look_at(root, i, allowed);
        described = described || n.total > 0;
        if (!n.allowed || n.total == 0) continue;
        if (wanted < 0 && (!n.cpus || n.free < most || (n.free == most && *node >= 0))) continue;
        most = n.free;
        *node = i;
    }
    if (*node >= 0) return 0;
    if (wanted < 0 && !described) return 0; /* a container that hides it */
    if (wanted >= 0)
        return helm_fail(err, HELM_E_NOT_FOUND, "NUMA node %d: no such node, or not allowed for this process",
                         wanted);
    return helm_fail(err, HELM_E_NOT_FOUND, "no NUMA node with memory and CPUs is allowed for this process");
}

int node_choose(int wanted, int *node, struct helm_err *err)
{
    bool forbidden =
        syscall(SYS_get_mempolicy, NULL, NULL, 0ul, NULL, 0ul) < 0 && (errno == ENOSYS || errno == EPERM);
    if (!forbidden) return node_choose_under("", wanted, node, err);
    *node = -1;
    if (wanted <= 0) return 0;
    return helm_fail(err, HELM_E_NOT_FOUND, "NUMA node %d: memory policies are not allowed here", wanted);
}

int node_read_memory_under(const char *root, int node, struct cgroup_memory *memory, struct helm_err *err)
{
    char online[4096], allowed[4096];
    struct node own = {0};
    uint64_t free = 0;
    uint32_t nodes = 0;
    int rc = cgroup_read_memory_under(root, memory, err);
    if (rc || node < 0 || !read_lists(root, online, allowed, sizeof online)) return rc;
    for (int i = 0; i < NODES_MAX; i++) {
        if (!node_list_has(online, i)) continue;
        const struct node n = look_at(root, i, allowed);
        if (i == node) own = n;
        free += n.free;
        nodes += n.total > 0;
    }
    if (own.total == 0)
        return helm_fail(err, HELM_E_NOT_FOUND, "NUMA node %d: no such node, or without memory", node);
    if (nodes < 2) return 0;
    /* The memory that the kernel says is available of all nodes, by this one's part of the free memory:
     * reserves are shared alike. */
    const double part = free ? (double)own.free / (double)free : 0;
    const uint64_t bytes = (uint64_t)(part * (double)memory->machine_available_bytes);
    if (bytes >= memory->available_bytes) return 0;
    memory->available_bytes = bytes;
    memory->node = node;
    memory->node_bytes = own.total;
    return 0;
}

int node_read_memory(int node, struct cgroup_memory *memory, struct helm_err *err)
{
    return node_read_memory_under("", node, memory, err);
}
