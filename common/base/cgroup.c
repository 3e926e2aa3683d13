/* Memory and CPU limits of the cgroups this process is in. See cgroup.h. Owns nothing.
 *
 * Knows cgroup v1 (one hierarchy per controller), v2 (one for all) and both mounted at once. A controller is
 * looked for in every hierarchy that mounts it, at this process's group and at each ancestor that the mount
 * shows. */
#include "common/base/cgroup.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/suggest.h"

/* v1 writes INT64_MAX rounded down to its page size. */
#define KERNEL_UNLIMITED ((uint64_t)INT64_MAX - 65535)

/* One mounted hierarchy, as /proc/self/mountinfo shows it. */
struct hierarchy {
    bool v2;
    char mounted[PATH_MAX]; /* where */
    char shows[PATH_MAX];   /* which group is at the mount point: "/" or a container's own */
};

typedef void (*group_visitor)(const char *folder, bool v2, void *context);

static FILE *open_under(const char *root, const char *path)
{
    char full[2 * PATH_MAX];
    snprintf(full, sizeof full, "%s%s", root, path);
    return fopen(full, "re");
}

/* A whole number; "max" and -1 are CGROUP_UNLIMITED. */
static bool parse_number(const char *text, uint64_t *value)
{
    if (strncmp(text, "max", 3) == 0 || text[0] == '-') {
        *value = CGROUP_UNLIMITED;
        return true;
    }
    if (*text < '0' || *text > '9') return false;
    errno = 0;
    *value = strtoull(text, NULL, 10);
    if (errno == ERANGE || *value >= KERNEL_UNLIMITED) *value = CGROUP_UNLIMITED;
    return true;
}

static bool read_number(const char *folder, const char *name, uint64_t *value)
{
    char line[64];
    return file_first_line(line, sizeof line, "%s/%s", folder, name) && parse_number(line, value);
}

/* "key 123" in memory.stat or "Key:   123 kB" in meminfo. */
static bool find_number(FILE *file, const char *key, uint64_t *value)
{
    char line[256];
    size_t length = strlen(key);
    rewind(file);
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, key, length) != 0 || (line[length] != ' ' && line[length] != ':')) continue;
        const char *at = line + length + 1;
        while (*at == ' ' || *at == '\t') at++;
        return parse_number(at, value);
    }
    return false;
}

/* mountinfo writes blank, tab, newline and backslash as \ooo. */
static void unescape(char *text)
{
    char *to = text;
    for (const char *at = text; *at; at++) {
        if (at[0] == '\\' && at[1] >= '0' && at[1] <= '3' && at[2] >= '0' && at[2] <= '7' && at[3] >= '0' &&
            at[3] <= '7') {
            *to++ = (char)((at[1] - '0') * 64 + (at[2] - '0') * 8 + (at[3] - '0'));
            at += 3;
        } else {
            *to++ = *at;
        }
    }
    *to = '\0';
}

static bool copy_path(char *to, const char *from)
{
    size_t length = strlen(from);
    if (length >= PATH_MAX) return false;
    memcpy(to, from, length + 1);
    unescape(to);
    return true;
}

/* "36 35 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory": a hierarchy that may
 * hold `controller`? (v2 does not say at the mount which controllers it has.) */
static bool parse_mount(char *line, const char *controller, struct hierarchy *hierarchy)
{
    char *field[6], *save = NULL;
    char *tail = strstr(line, " - ");
    if (!tail) return false;
    *tail = '\0';
    for (int i = 0; i < 6; i++) {
        field[i] = strtok_r(i ? NULL : line, " ", &save);
        if (!field[i]) return false;
    }
    char *type = strtok_r(tail + 3, " \n", &save);
    char *source = type ? strtok_r(NULL, " \n", &save) : NULL;
    char *options = source ? strtok_r(NULL, " \n", &save) : NULL;
    if (!options) return false;
    hierarchy->v2 = strcmp(type, "cgroup2") == 0;
    if (!hierarchy->v2 && (strcmp(type, "cgroup") != 0 || !suggest_knows(options, ',', controller)))
        return false;
    return copy_path(hierarchy->shows, field[3]) && copy_path(hierarchy->mounted, field[4]);
}

/* This process's group in the v2 hierarchy, or in the v1 hierarchy of `controller`. */
static bool own_group(const char *root, bool v2, const char *controller, char group[PATH_MAX])
{
    FILE *file = open_under(root, "/proc/self/cgroup");
    if (!file) return false;
    char *line = NULL;
    size_t size = 0;
    bool found = false;
    while (!found && getline(&line, &size, file) > 0) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path) continue;
        controllers++;
        *path++ = '\0';
        if (v2 ? *controllers != '\0' : !suggest_knows(controllers, ',', controller)) continue;
        size_t length = strlen(path);
        if (length >= PATH_MAX) continue;
        memcpy(group, path, length + 1);
        found = true;
    }
    free(line);
    fclose(file);
    return found;
}

/* From this process's group up to the mount point. */
static void visit_ancestors(const char *root, const struct hierarchy *hierarchy, const char *group,
                            group_visitor visit, void *context)
{
    /* A group outside what the mount shows ("/../other", another container's) has no folder here: the mount
     * point is then the closest ancestor that can be seen. */
    size_t shown = strcmp(hierarchy->shows, "/") == 0 ? 0 : strlen(hierarchy->shows);
    const char *below = "";
    if (strncmp(group, hierarchy->shows, shown) == 0 && (group[shown] == '/' || group[shown] == '\0') &&
        !strstr(group, "/.."))
        below = group + shown;
    char folder[3 * PATH_MAX];
    int mount_length = snprintf(folder, sizeof folder, "%s%s", root, hierarchy->mounted);
    int length =
        mount_length + snprintf(folder + mount_length, sizeof folder - (size_t)mount_length, "%s", below);
    while (length > mount_length && folder[length - 1] == '/') folder[--length] = '\0';
    for (;;) {
        visit(folder, hierarchy->v2, context);
        if (length <= mount_length) return;
        while (length > mount_length && folder[length - 1] != '/') length--;
        while (length > mount_length && folder[length - 1] == '/') length--;
        folder[length] = '\0';
    }
}

static void visit_groups(const char *root, const char *controller, group_visitor visit, void *context)
{
    FILE *file = open_under(root, "/proc/self/mountinfo");
    if (!file) return;
    char *line = NULL, group[PATH_MAX];
    size_t size = 0;
    struct hierarchy *hierarchy = malloc(sizeof *hierarchy);
    while (hierarchy && getline(&line, &size, file) > 0) {
        if (parse_mount(line, controller, hierarchy) && own_group(root, hierarchy->v2, controller, group))
            visit_ancestors(root, hierarchy, group, visit, context);
    }
    free(hierarchy);
    free(line);
    fclose(file);
}

struct memory_search {
    uint64_t limit, used; /* of the group with the lowest limit */
    uint64_t room;        /* least limit - used of any group */
};

/* Page cache that the kernel gives back when a group reaches its limit: both lists of file pages. Shared
 * memory is on neither. v1's plain keys leave out the children, so the totals count where they are there. */
static uint64_t page_cache(FILE *stat, bool v2)
{
    static const char *const key[][2] = {{"total_inactive_file", "inactive_file"},
                                         {"total_active_file", "active_file"}};
    uint64_t all = 0;
    for (size_t i = 0; i < sizeof key / sizeof *key; i++) {
        uint64_t bytes = 0;
        if ((!v2 && find_number(stat, key[i][0], &bytes)) || find_number(stat, key[i][1], &bytes))
            all = bytes > UINT64_MAX - all ? UINT64_MAX : all + bytes;
    }
    return all;
}

static void visit_memory(const char *folder, bool v2, void *context)
{
    struct memory_search *search = context;
    uint64_t limit = CGROUP_UNLIMITED, inherited = CGROUP_UNLIMITED, used = 0, droppable = 0;
    if (!read_number(folder, v2 ? "memory.max" : "memory.limit_in_bytes", &limit)) limit = CGROUP_UNLIMITED;
    char path[3 * PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    FILE *stat = fopen(path, "re");
    if (stat) {
        /* v1 says here what ancestors above the mount point allow. */
        if (!v2 && find_number(stat, "hierarchical_memory_limit", &inherited) && inherited < limit)
            limit = inherited;
        droppable = page_cache(stat, v2);
        fclose(stat);
    }
    if (limit == CGROUP_UNLIMITED) return;
    if (!read_number(folder, v2 ? "memory.current" : "memory.usage_in_bytes", &used)) used = 0;
    used = used > droppable ? used - droppable : 0;
    if (limit < search->limit || (limit == search->limit && used > search->used)) {
        search->limit = limit;
        search->used = used;
    }
    uint64_t room = limit > used ? limit - used : 0;
    if (room < search->room) search->room = room;
}

int cgroup_read_memory_under(const char *root, struct cgroup_memory *memory, struct helm_err *err)
{
    memset(memory, 0, sizeof *memory);
    FILE *file = open_under(root, "/proc/meminfo");
    if (!file) return helm_fail_errno(err, "%s/proc/meminfo: cannot open", root);
    uint64_t total_kib = 0, available_kib = 0;
    bool known = find_number(file, "MemTotal", &total_kib) &&
                 find_number(file, "MemAvailable", &available_kib) && total_kib < UINT64_MAX / 1024 &&
                 available_kib < UINT64_MAX / 1024;
    fclose(file);
    if (!known) return helm_fail(err, HELM_E_FORMAT, "%s/proc/meminfo: no MemTotal or no MemAvailable", root);

    struct memory_search search = {CGROUP_UNLIMITED, 0, CGROUP_UNLIMITED};
    visit_groups(root, "memory", visit_memory, &search);
    memory->limit_bytes = search.limit;
    memory->used_bytes = search.used;
    memory->machine_bytes = total_kib * 1024;
    memory->machine_available_bytes = available_kib * 1024;
    memory->available_bytes = available_kib * 1024 < search.room ? available_kib * 1024 : search.room;
    return 0;
}

int cgroup_read_memory(struct cgroup_memory *memory, struct helm_err *err)
{
    return cgroup_read_memory_under("", memory, err);
}

static void visit_cpu(const char *folder, bool v2, void *context)
{
    double *lowest = context;
    uint64_t quota_us = CGROUP_UNLIMITED, period_us = 0;
    if (v2) {
        char line[64];
        if (!file_first_line(line, sizeof line, "%s/cpu.max", folder) || !parse_number(line, &quota_us))
            return;
        const char *period = strchr(line, ' ');
        if (!period || !parse_number(period + 1, &period_us)) return;
    } else if (!read_number(folder, "cpu.cfs_quota_us", &quota_us) ||
               !read_number(folder, "cpu.cfs_period_us", &period_us)) {
        return;
    }
    if (quota_us == CGROUP_UNLIMITED || quota_us == 0 || period_us == CGROUP_UNLIMITED || period_us == 0)
        return;
    double cpus = (double)quota_us / (double)period_us;
    if (*lowest == 0 || cpus < *lowest) *lowest = cpus;
}

double cgroup_cpu_quota_under(const char *root)
{
    double lowest = 0;
    visit_groups(root, "cpu", visit_cpu, &lowest);
    return lowest;
}

double cgroup_cpu_quota(void)
{
    return cgroup_cpu_quota_under("");
}
