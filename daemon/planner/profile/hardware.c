/* Which hardware this is: the fingerprint that a profile is kept under. See profile.h. Reads /proc and /sys;
 * a fact that the system does not give is digested as "?", so that it counts when it appears. */
#include <ctype.h>
#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cgroup.h"
#include "common/base/cpu.h"
#include "common/base/digest.h"
#include "common/base/file.h"
#include "common/base/units.h"
#include "daemon/planner/profile/profile.h"

#define NODES_MAX  64
#define CACHES_MAX 8
#define LINE_TEXT  256

/* Facts are collected as text; what does not fit is an error, never cut off. */
struct facts {
    char text[PROFILE_FACTS_TEXT];
    size_t used;
    bool overflow;
};

static void facts_add(struct facts *facts, const char *fmt, ...) HELM_PRINTF(2, 3);
static void facts_add(struct facts *facts, const char *fmt, ...)
{
    size_t room = sizeof facts->text - facts->used;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(facts->text + facts->used, room, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= room)
        facts->overflow = true;
    else
        facts->used += (size_t)n;
}

/* First line of root/path without its end; "?" if there is none. */
static const char *read_line(const char *root, const char *path, char line[LINE_TEXT])
{
    if (!file_first_line(line, LINE_TEXT, "%s%s", root, path)) snprintf(line, LINE_TEXT, "?");
    return line;
}

/* The first "key : value" of a file like /proc/cpuinfo; "?" if there is none. */
static void read_field(const char *root, const char *path, const char *key, char value[LINE_TEXT])
{
    char whole[512], line[4096];
    snprintf(whole, sizeof whole, "%s%s", root, path);
    snprintf(value, LINE_TEXT, "?");
    FILE *file = fopen(whole, "re");
    if (!file) return;
    while (fgets(line, sizeof line, file)) {
        size_t length = strlen(key);
        if (strncmp(line, key, length) != 0) continue;
        const char *at = line + length + strspn(line + length, " \t");
        if (*at != ':') continue;
        at += 1 + strspn(at + 1, " \t");
        snprintf(value, LINE_TEXT, "%.*s", (int)strcspn(at, "\n"), at);
        break;
    }
    fclose(file);
}

/* "0-3,8" of the CPUs, in rising order. */
static void add_cpus(struct facts *facts, const struct cpu_set *cpus)
{
    bool used[CPU_MAX * 8] = {false};
    int limit = (int)(sizeof used / sizeof *used), above = 0;
    const char *comma = "";
    for (int i = 0; i < cpus->count; i++) {
        if (cpus->cpu[i] >= 0 && cpus->cpu[i] < limit)
            used[cpus->cpu[i]] = true;
        else
            above++;
    }
    facts_add(facts, "cpus: ");
    for (int first = 0; first < limit; first++) {
        if (!used[first]) continue;
        int last = first;
        while (last + 1 < limit && used[last + 1]) last++;
        facts_add(facts, first == last ? "%s%d" : "%s%d-%d", comma, first, last);
        comma = ",";
        first = last;
    }
    facts_add(facts, above ? " and %d more\n" : "\n", above);
}

static void add_caches(struct facts *facts, const char *root)
{
    char path[128], level[LINE_TEXT], type[LINE_TEXT], size[LINE_TEXT], shared[LINE_TEXT];
    for (int i = 0; i < CACHES_MAX; i++) {
        const char *folder = "/sys/devices/system/cpu/cpu0/cache/index";
        snprintf(path, sizeof path, "%s%d/level", folder, i);
        if (read_line(root, path, level)[0] == '?') break;
        snprintf(path, sizeof path, "%s%d/type", folder, i);
        read_line(root, path, type);
        snprintf(path, sizeof path, "%s%d/size", folder, i);
        read_line(root, path, size);
        snprintf(path, sizeof path, "%s%d/shared_cpu_list", folder, i);
        facts_add(facts, "cache: L%s %s %s of %s\n", level, type, size, read_line(root, path, shared));
    }
}

/* Memory in whole GiB: the kernel keeps a little more or less from one boot to the next. */
static void add_memory(struct facts *facts, const char *root)
{
    char value[LINE_TEXT], path[128], list[LINE_TEXT];
    read_field(root, "/proc/meminfo", "MemTotal", value);
    facts_add(facts, "memory: %llu GiB\n", (strtoull(value, NULL, 10) + GIB / KIB / 2) / (GIB / KIB));
    for (int node = 0; node < NODES_MAX; node++) {
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", node);
        if (read_line(root, path, list)[0] == '?') continue;
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d/distance", node);
        char distance[LINE_TEXT];
        facts_add(facts, "node %d: CPUs %s, distances %s\n", node, list, read_line(root, path, distance));
    }
}

int profile_fingerprint_under(const struct profile_machine *machine, const struct profile_hardware *hardware,
                              char out[72], char *facts_out, size_t facts_size, struct helm_err *err)
{
    static const char *const fields[] = {"vendor_id", "model name", "cpu family",
                                         "model",     "stepping",   "microcode"};
    const char *const root = machine->root;
    char value[LINE_TEXT];
    int rc = 0;
    out[0] = '\0';
    if (facts_out && facts_size) facts_out[0] = '\0';
    struct facts *facts = calloc(1, sizeof *facts);
    if (!facts) return helm_fail(err, HELM_E_NOMEM, "no memory for the hardware's facts");
    facts_add(facts, "helm: " HELM_VERSION ", profile %d, method %d\n", PROFILE_VERSION, PROFILE_METHOD);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        read_field(root, "/proc/cpuinfo", fields[i], value);
        facts_add(facts, "%s: %s\n", fields[i], value);
    }
    facts_add(facts, "instructions: %s\n",
              cpu_features_text(cpu_features(), value,
                                sizeof value)); /* an emulator's or the kernel's choice */
    add_cpus(facts, machine->cpus);
    facts_add(facts, "cores: %d, quota %g\n", machine->cpus->cores, machine->quota);
    add_caches(facts, root);
    add_memory(facts, root);
    facts_add(facts, "threads: %u\n", hardware->threads);
    if (hardware->node >= 0) facts_add(facts, "node: %d\n", hardware->node);
    facts_add(facts, "device: %s\n", hardware->device);
    if (facts->overflow) {
        rc = helm_fail(err, HELM_E_LIMIT, "the hardware's description is longer than %d bytes",
                       PROFILE_FACTS_TEXT);
    } else {
        struct digest digest = digest_begin();
        digest_add(&digest, facts->text, facts->used);
        digest_text(&digest, out);
        if (facts_out && facts_size) snprintf(facts_out, facts_size, "%s", facts->text);
    }
    free(facts);
    return rc;
}

int profile_fingerprint(const struct profile_hardware *hardware, char out[72], char *facts, size_t facts_size,
                        struct helm_err *err)
{
    struct cpu_set *cpus = malloc(sizeof *cpus);
    out[0] = '\0';
    if (!cpus) return helm_fail(err, HELM_E_NOMEM, "no memory for the list of CPUs");
    int rc = cpu_usable(-1, cpus, err);
    const struct profile_machine machine = {.root = "", .cpus = cpus, .quota = cgroup_cpu_quota()};
    if (!rc) rc = profile_fingerprint_under(&machine, hardware, out, facts, facts_size, err);
    free(cpus);
    return rc;
}

void profile_cpu_name(char name[PROFILE_TEXT])
{
    cpu_model_name(name, PROFILE_TEXT);
    for (char *at = name; *at; at++)
        if (!isascii(*at) || !isprint(*at)) *at = '?';
}

/* Bytes of the last-level cache of this CPU, 0 if another CPU has named it already. */
static uint64_t last_cache_of(int cpu)
{
    char path[128], text[LINE_TEXT];
    uint64_t size = 0;
    int last = -1;
    for (int i = 0; i < CACHES_MAX; i++) {
        char *end;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index%d/size", cpu, i);
        uint64_t bytes = strtoull(read_line("", path, text), &end, 10);
        bytes *= *end == 'K' ? KIB : *end == 'M' ? MIB : *end == 'G' ? GIB : 1;
        if (bytes > size) {
            size = bytes;
            last = i;
        }
    }
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index%d/shared_cpu_list", cpu, last);
    if (last < 0 || strtol(read_line("", path, text), NULL, 0) != cpu) return 0;
    return size;
}

uint64_t profile_l3_bytes(void)
{
    uint64_t sum = 0;
    for (int cpu = 0; cpu < CPU_MAX; cpu++) sum += last_cache_of(cpu);
    return sum;
}
