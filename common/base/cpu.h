/* The processor: instruction-set features and the topology a process may use.
 *
 * Called by the CPU worker (kernel choice, pinning), the planner's profile and test programs. The one place
 * that asks the processor for its instructions, once, and that HELM_CPU limits. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

/* Bits of cpu_features(): set only when the processor has them, the kernel saves their registers (XCR0; for
 * AMX also the arch_prctl permission, which cpu_enable_amx asks for), and HELM_CPU, if set, leaves them. */
enum cpu_feature {
    CPU_AVX2 = 1u << 0,        /* AVX2 + FMA + F16C */
    CPU_AVX512 = 1u << 1,      /* F, BW, VL, DQ */
    CPU_AVX512_BF16 = 1u << 2, /* vdpbf16ps */
    CPU_AMX_BF16 = 1u << 3,    /* tiles, tdpbf16ps and tdpbssd; usable after cpu_enable_amx() */
    CPU_AVX512_FP16 = 1u << 4,
    CPU_AVX512_VBMI2 = 1u << 5, /* VBMI and VBMI2: permutes and expansions of bytes and words */
    CPU_AVX512_VNNI = 1u << 6,  /* vpdpbusd of 64 bytes */
};
unsigned cpu_features(void); /* a HELM_CPU that cpu_read_mask refuses ends the program with status 2 */

/* Features that may be used: "avx2", or several names of cpu_features_text with commas between. Each leaves
 * those that it includes ("avx512-vnni": avx2 and avx512, too), "none" leaves none; NULL or "": all. A name
 * adds nothing that the processor lacks. HELM_E_USAGE names an unknown one. */
#define CPU_VARIABLE "HELM_CPU"
HELM_MUST_CHECK int cpu_parse_mask(const char *text, unsigned *mask, struct helm_err *err);
HELM_MUST_CHECK int cpu_read_mask(unsigned *mask, struct helm_err *err); /* of the environment */
/* "HELM_CPU=avx2: of this processor's instructions avx2"; "" where it is not set. For the log, and READY. */
#define CPU_MASK_TEXT 192
const char *cpu_mask_text(char *text, size_t size);

/* Answers of cpuid and xgetbv, and the features that follow from them: the part of cpu_features() that a test
 * can feed. */
struct cpu_id {
    unsigned leaf1_ecx, leaf7_ebx, leaf7_edx, leaf71_eax, xcr0, leaf7_ecx;
};
unsigned cpu_decode_features(const struct cpu_id *id);

/* Asks the kernel for AMX tile state for this process (inherited by threads made later). 0 or
 * HELM_E_UNSUPPORTED. */
HELM_MUST_CHECK int cpu_enable_amx(struct helm_err *err);

/* "avx2 avx512 avx512-bf16 amx-bf16" into text; "" for none. */
const char *cpu_features_text(unsigned features, char *text, size_t size);

#define CPU_MAX 1024
/* The logical CPUs this process may run on (affinity mask), one per physical core first, SMT siblings after,
 * and how many to use: one a physical core, no more than the cgroup's CPU quota rounded up. With node >= 0
 * only the CPUs of that NUMA node. */
struct cpu_set {
    int cpu[CPU_MAX]; /* logical numbers; [0, cores) are distinct physical cores, [cores, count) their
                         siblings */
    int count;
    int cores;
    int suggested; /* threads to use: min(cores, ceil(cgroup quota)), at least 1 */
};
HELM_MUST_CHECK int cpu_usable(int node, struct cpu_set *set, struct helm_err *err);
/* The calling thread may run from now on wherever the process's main thread may. A thread inherits the mask
 * of the one that creates it, which may be pinned to its core. */
void cpu_run_anywhere(void);

/* Whether --threads has a CPU for each: asked before anything is measured with them. HELM_E_USAGE. A node
 * that cannot be used is for cpu_usable's other callers to refuse. */
HELM_MUST_CHECK int cpu_check_threads(int node, uint64_t threads, struct helm_err *err);

/* cpu_usable over a given sysfs root ("/sys"), affinity list (rising) and quota (0: none): for tests. */
HELM_MUST_CHECK int cpu_usable_under(const char *sys_root, const int *allowed, int allowed_count,
                                     double quota, int node, struct cpu_set *set, struct helm_err *err);

/* Processor's marketing name from /proc/cpuinfo, "unknown" if absent. */
void cpu_model_name(char *text, size_t size);
