/* Processor features and usable CPUs. See cpu.h. Owns what the first call of cpu_features() found. */
#include "common/base/cpu.h"

#include <cpuid.h>
#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/cgroup.h"
#include "common/base/file.h"
#include "common/base/node.h"

#define ARCH_GET_XCOMP_PERM 0x1022
#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_TILEDATA   18
#define KERNEL_CPUS_MAX     65536 /* largest affinity mask tried */

/* XCR0: registers that the kernel saves on a context switch. */
#define XCR0_AVX    0x6u           /* SSE, AVX */
#define XCR0_AVX512 (0x6u | 0xe0u) /* and opmask, upper halves, upper 16 */
#define XCR0_AMX    0x60000u       /* tile configuration, tile data */

#define UP_TO_512  (CPU_AVX2 | CPU_AVX512)
#define UP_TO_BF16 (UP_TO_512 | CPU_AVX512_BF16)

/* Each feature's name, and the features that the files of its kernels are compiled with: itself and those it
 * includes. */
static const struct {
    unsigned bit;
    const char *name;
    unsigned includes;
} names[] = {{CPU_AVX2, "avx2", CPU_AVX2},
             {CPU_AVX512, "avx512", UP_TO_512},
             {CPU_AVX512_BF16, "avx512-bf16", UP_TO_BF16},
             {CPU_AMX_BF16, "amx-bf16", UP_TO_BF16 | CPU_AMX_BF16},
             {CPU_AVX512_FP16, "avx512-fp16", UP_TO_512 | CPU_AVX512_FP16},
             {CPU_AVX512_VBMI2, "avx512-vbmi2", UP_TO_512 | CPU_AVX512_VBMI2},
             {CPU_AVX512_VNNI, "avx512-vnni", UP_TO_512 | CPU_AVX512_VNNI}};
#define NAMES (sizeof names / sizeof *names)

static int has_bits(unsigned word, unsigned bits)
{
    return (word & bits) == bits;
}

unsigned cpu_decode_features(const struct cpu_id *id)
{
    const unsigned fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;       /* leaf 1 ecx */
    const unsigned avx2 = 1u << 5, f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31; /* leaf 7 ebx */
    const unsigned amx_bf16 = 1u << 22, fp16 = 1u << 23;                                      /* leaf 7 edx */
    const unsigned amx_tile = 1u << 24, amx_int8 = 1u << 25;
    const unsigned bf16 = 1u << 5;                                   /* leaf 7.1 eax */
    const unsigned vbmi = 1u << 1, vbmi2 = 1u << 6, vnni = 1u << 11; /* leaf 7 ecx */
    unsigned features = 0;

    if (!has_bits(id->leaf1_ecx, osxsave | avx | fma | f16c) || !has_bits(id->leaf7_ebx, avx2) ||
        !has_bits(id->xcr0, XCR0_AVX))
        return 0;
    features |= CPU_AVX2;
    if (!has_bits(id->leaf7_ebx, f | dq | bw | vl) || !has_bits(id->xcr0, XCR0_AVX512)) return features;
    features |= CPU_AVX512;
    if (has_bits(id->leaf7_edx, fp16)) features |= CPU_AVX512_FP16;
    if (has_bits(id->leaf7_ecx, vbmi | vbmi2)) features |= CPU_AVX512_VBMI2;
    if (has_bits(id->leaf7_ecx, vnni)) features |= CPU_AVX512_VNNI;
    if (!has_bits(id->leaf71_eax, bf16)) return features;
    features |= CPU_AVX512_BF16;
    /* Each feature includes the ones above it: the files of the AMX kernels are compiled with all of them. */
    if (has_bits(id->leaf7_edx, amx_bf16 | amx_tile | amx_int8) && has_bits(id->xcr0, XCR0_AMX))
        features |= CPU_AMX_BF16;
    return features;
}

int cpu_parse_mask(const char *text, unsigned *mask, struct helm_err *err)
{
    *mask = 0;
    if (!text || !*text) {
        *mask = ~0u;
        return 0;
    }
    if (strcmp(text, "none") == 0) return 0;
    for (const char *at = text; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        const size_t length = strcspn(at, ",");
        size_t i = 0;
        while (i < NAMES && (strlen(names[i].name) != length || strncmp(names[i].name, at, length) != 0)) i++;
        if (i == NAMES) {
            char all[128];
            return helm_fail(err, HELM_E_USAGE, CPU_VARIABLE "=%.100s: '%.*s' is none of none %s", text,
                             (int)(length < 40 ? length : 40), at, cpu_features_text(~0u, all, sizeof all));
        }
        *mask |= names[i].includes;
    }
    return 0;
}

int cpu_read_mask(unsigned *mask, struct helm_err *err)
{
    return cpu_parse_mask(getenv(CPU_VARIABLE), mask, err);
}

static unsigned detect(void)
{
    struct cpu_id id = {0};
    unsigned a, b, c, d, subleaves = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    id.leaf1_ecx = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        subleaves = a;
        id.leaf7_ebx = b;
        id.leaf7_ecx = c;
        id.leaf7_edx = d;
    }
    if (subleaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) id.leaf71_eax = a;
    if (id.leaf1_ecx & 1u << 27) { /* OSXSAVE: xgetbv faults without it */
        unsigned low, high;
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        id.xcr0 = low;
    }
    return cpu_decode_features(&id);
}

const char *cpu_mask_text(char *text, size_t size)
{
    const char *mask = getenv(CPU_VARIABLE);
    char left[128];
    text[0] = '\0';
    if (mask && *mask)
        snprintf(text, size, CPU_VARIABLE "=%.40s: of this processor's instructions %s", mask,
                 cpu_features() ? cpu_features_text(cpu_features(), left, sizeof left) : "none");
    return text;
}

/* A virtual machine's monitor answers cpuid, in microseconds, and some callers ask for each token. */
unsigned cpu_features(void)
{
    static _Atomic unsigned found; /* with `asked`, once it is known */
    const unsigned asked = 1u << 31;
    unsigned features = atomic_load_explicit(&found, memory_order_relaxed), mask;
    if (features) return features & ~asked;
    struct helm_err err = {0};
    if (cpu_read_mask(&mask, &err)) {
        fprintf(stderr, "%s\n", err.text);
        exit(2);
    }
    features = detect() & mask;
    atomic_store_explicit(&found, features | asked, memory_order_relaxed);
    return features;
}

int cpu_enable_amx(struct helm_err *err)
{
    if (!(cpu_features() & CPU_AMX_BF16))
        return helm_fail(err, HELM_E_UNSUPPORTED, "AMX: this processor or kernel has no bf16 tiles");
    if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_TILEDATA) != 0)
        return helm_fail(err, HELM_E_UNSUPPORTED, "AMX: the kernel refuses tile state to this process: %s",
                         strerror(errno));
    unsigned long granted = 0;
    if (syscall(SYS_arch_prctl, ARCH_GET_XCOMP_PERM, &granted) != 0 || !(granted & 1ul << XFEATURE_TILEDATA))
        return helm_fail(err, HELM_E_UNSUPPORTED, "AMX: tile state was requested but not granted");
    return 0;
}

const char *cpu_features_text(unsigned features, char *text, size_t size)
{
    if (size == 0) return text;
    text[0] = '\0';
    size_t used = 0;
    for (size_t i = 0; i < NAMES; i++) {
        if (!(features & names[i].bit)) continue;
        int n = snprintf(text + used, size - used, "%s%s", used ? " " : "", names[i].name);
        if (n < 0 || (size_t)n >= size - used) break;
        used += (size_t)n;
    }
    return text;
}

#define CPU_FILE  "%s/devices/system/cpu/cpu%d/topology/"
#define NODE_CPUS "%s/devices/system/node/node%d/cpulist"

/* A name for the physical core of a CPU: its lowest sibling, else package and core number, else (no sysfs)
 * the CPU itself, which makes every CPU a core of its own. */
static long long core_key(const char *sys_root, int cpu)
{
    static const char *const lists[] = {"core_cpus_list", "thread_siblings_list"};
    char line[64];
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        if (file_first_line(line, sizeof line, CPU_FILE "%s", sys_root, cpu, lists[i]) && *line >= '0' &&
            *line <= '9')
            return strtol(line, NULL, 10);
    }
    char package[64];
    if (file_first_line(line, sizeof line, CPU_FILE "core_id", sys_root, cpu) &&
        file_first_line(package, sizeof package, CPU_FILE "physical_package_id", sys_root, cpu))
        return (1ll << 48) + (strtoll(package, NULL, 10) << 24) + strtol(line, NULL, 10);
    return (1ll << 56) + cpu;
}

int cpu_usable_under(const char *sys_root, const int *allowed, int allowed_count, double quota, int node,
                     struct cpu_set *set, struct helm_err *err)
{
    char list[16384] = "";
    long long key[CPU_MAX];
    int sibling[CPU_MAX], sibling_count = 0;
    memset(set, 0, sizeof *set);

    bool listed = node >= 0 && file_first_line(list, sizeof list, NODE_CPUS, sys_root, node);
    if (node >= 0 && !listed) {
        char ignored[8];
        /* Without any NUMA information the whole machine is node 0. */
        if (node > 0 || file_first_line(ignored, sizeof ignored, NODE_CPUS, sys_root, 1))
            return helm_fail(err, HELM_E_NOT_FOUND, "NUMA node %d does not exist", node);
    }
    int usable = 0;
    for (int i = 0; i < allowed_count; i++) {
        int cpu = allowed[i];
        if (listed && !node_list_has(list, cpu)) continue;
        if (++usable > CPU_MAX)
            return helm_fail(err, HELM_E_LIMIT,
                             "more than %d usable CPUs: narrow the affinity mask (taskset)", CPU_MAX);
        long long own = core_key(sys_root, cpu);
        bool seen = false;
        for (int j = 0; j < set->cores && !seen; j++) seen = key[j] == own;
        if (seen) {
            sibling[sibling_count++] = cpu;
        } else {
            key[set->cores] = own;
            set->cpu[set->cores++] = cpu;
        }
    }
    if (set->cores == 0)
        return helm_fail(err, HELM_E_NOT_FOUND, "no CPU of NUMA node %d is in this process's affinity mask",
                         node);
    memcpy(set->cpu + set->cores, sibling, (size_t)sibling_count * sizeof *sibling);
    set->count = set->cores + sibling_count;
    set->suggested = set->cores;
    if (quota > 0 && ceil(quota) < set->suggested) set->suggested = (int)ceil(quota);
    return 0;
}

int cpu_usable(int node, struct cpu_set *set, struct helm_err *err)
{
    int rc = 0, count = 0, *allowed = NULL;
    cpu_set_t *mask = NULL;
    int cpus = CPU_MAX;
    memset(set, 0, sizeof *set);
    for (;; cpus *= 2) { /* EINVAL: the kernel's mask is longer than ours */
        mask = CPU_ALLOC((size_t)cpus);
        if (!mask) return helm_fail(err, HELM_E_NOMEM, "no memory for an affinity mask of %d CPUs", cpus);
        if (sched_getaffinity(0, CPU_ALLOC_SIZE((size_t)cpus), mask) == 0) break;
        if (errno != EINVAL || cpus >= KERNEL_CPUS_MAX) {
            rc = helm_fail_errno(err, "sched_getaffinity");
            goto out;
        }
        CPU_FREE(mask);
    }
    allowed = malloc((size_t)cpus * sizeof *allowed);
    if (!allowed) {
        rc = helm_fail(err, HELM_E_NOMEM, "no memory for a list of %d CPUs", cpus);
        goto out;
    }
    for (int cpu = 0; cpu < cpus; cpu++) {
        if (CPU_ISSET_S((size_t)cpu, CPU_ALLOC_SIZE((size_t)cpus), mask)) allowed[count++] = cpu;
    }
    rc = cpu_usable_under("/sys", allowed, count, cgroup_cpu_quota(), node, set, err);
out:
    free(allowed);
    CPU_FREE(mask);
    return rc;
}

void cpu_run_anywhere(void)
{
    cpu_set_t set;
    if (sched_getaffinity(getpid(), sizeof set, &set) == 0) sched_setaffinity(0, sizeof set, &set);
}

int cpu_check_threads(int node, uint64_t threads, struct helm_err *err)
{
    struct cpu_set set;
    struct helm_err none = {0};
    if (!threads || cpu_usable(node, &set, &none) || threads <= (uint64_t)set.count) return 0;
    return helm_fail(err, HELM_E_USAGE, "--threads %llu: this process may use %d CPU%s%s: write at most %d",
                     (unsigned long long)threads, set.count, set.count == 1 ? "" : "s",
                     node < 0 ? "" : " of that node", set.count);
}

void cpu_model_name(char *text, size_t size)
{
    if (size == 0) return;
    snprintf(text, size, "unknown");
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (!file) return;
    char line[512];
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, "model name", 10) != 0) continue;
        const char *name = strchr(line, ':');
        if (!name) continue;
        name += 1 + strspn(name + 1, " \t");
        line[strcspn(line, "\n")] = '\0';
        if (*name) snprintf(text, size, "%s", name);
        break;
    }
    fclose(file);
}
