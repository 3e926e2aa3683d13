/* Unit tests of common/base/cpu.c, on fabricated sysfs trees and on this machine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/cpu.h"
#include "tests/unit/common/base/tree.h"

#define LEAF1_ALL  (1u << 12 | 1u << 27 | 1u << 28 | 1u << 29)
#define LEAF7_AVX2 (1u << 5)
#define LEAF7_512  (1u << 5 | 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31)
#define EDX_AMX    (1u << 22 | 1u << 24 | 1u << 25)
#define EDX_FP16   (1u << 23)
#define ECX_VBMI   (1u << 1 | 1u << 6)
#define ECX_VNNI   (1u << 11)
#define XCR0_ALL   (0xe6u | 0x60000u)

static void features_need_processor_and_kernel(void **state)
{
    (void)state;
    const unsigned up_to_512 = CPU_AVX2 | CPU_AVX512;
    const unsigned all = up_to_512 | CPU_AVX512_BF16 | CPU_AMX_BF16 | CPU_AVX512_FP16 | CPU_AVX512_VBMI2;
    const struct {
        struct cpu_id id;
        unsigned features;
    } cases[] = {
        {{0, 0, 0, 0, 0, 0}, 0},
        {{LEAF1_ALL, LEAF7_512, EDX_AMX | EDX_FP16, 1u << 5, XCR0_ALL, ECX_VBMI}, all},
        {{LEAF1_ALL, LEAF7_512, EDX_AMX | EDX_FP16, 1u << 5, 0xe7u, ECX_VBMI}, all & ~(unsigned)CPU_AMX_BF16},
        {{LEAF1_ALL, LEAF7_512, EDX_AMX | EDX_FP16, 1u << 5, 0x7u, ECX_VBMI},
         CPU_AVX2},                                                          /* kernel saves no zmm */
        {{LEAF1_ALL, LEAF7_512, EDX_AMX, 1u << 5, 0x3u, ECX_VBMI}, 0},       /* nor ymm */
        {{LEAF1_ALL & ~(1u << 27), LEAF7_512, 0, 0, XCR0_ALL, ECX_VBMI}, 0}, /* no xgetbv */
        {{LEAF1_ALL & ~(1u << 29), LEAF7_512, 0, 0, XCR0_ALL, ECX_VBMI}, 0}, /* no F16C */
        {{LEAF1_ALL, LEAF7_AVX2, EDX_AMX, 1u << 5, XCR0_ALL, ECX_VBMI}, CPU_AVX2},
        {{LEAF1_ALL, LEAF7_512 & ~(1u << 31), 0, 1u << 5, XCR0_ALL, ECX_VBMI}, CPU_AVX2}, /* no VL */
        {{LEAF1_ALL, LEAF7_512, 1u << 24, 1u << 5, XCR0_ALL, 0},
         up_to_512 | CPU_AVX512_BF16}, /* tiles only */
        {{LEAF1_ALL, LEAF7_512, EDX_AMX & ~(1u << 25), 1u << 5, XCR0_ALL, 0},
         up_to_512 | CPU_AVX512_BF16},                                      /* and of bf16 alone */
        {{LEAF1_ALL, LEAF7_512, EDX_AMX, 0, XCR0_ALL, 1u << 1}, up_to_512}, /* VBMI without VBMI2 */
        {{LEAF1_ALL, LEAF7_512, 0, 0, XCR0_ALL, 1u << 6}, up_to_512},
        {{LEAF1_ALL, LEAF7_512, 0, 0, XCR0_ALL, ECX_VBMI}, up_to_512 | CPU_AVX512_VBMI2},
        {{LEAF1_ALL, LEAF7_512, 0, 0, XCR0_ALL, ECX_VNNI}, up_to_512 | CPU_AVX512_VNNI},
        {{LEAF1_ALL, LEAF7_512, 0, 0, 0x7u, ECX_VNNI}, CPU_AVX2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(cpu_decode_features(&cases[i].id), cases[i].features);
}

/* The kernel's flags in /proc/cpuinfo follow the same rules. */
static void features_agree_with_the_kernel(void **state)
{
    (void)state;
    static const struct {
        unsigned bit;
        const char *flag;
    } flags[] = {{CPU_AVX2, " avx2 "},
                 {CPU_AVX512, " avx512vl "},
                 {CPU_AVX512_BF16, " avx512_bf16 "},
                 {CPU_AVX512_FP16, " avx512_fp16 "},
                 {CPU_AVX512_VBMI2, " avx512_vbmi2 "},
                 {CPU_AVX512_VNNI, " avx512_vnni "},
                 {CPU_AMX_BF16, " amx_bf16 "}};
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (!file) {
        print_message("skipped: there is no /proc/cpuinfo here\n");
        skip();
    }
    char line[8192] = "";
    bool found = false;
    while (!found && fgets(line, sizeof line - 2, file)) found = strncmp(line, "flags", 5) == 0;
    fclose(file);
    if (!found) {
        print_message("skipped: /proc/cpuinfo has no flags here\n");
        skip();
    }
    line[strcspn(line, "\n")] = '\0';
    strcat(line, " ");
    struct helm_err err = {0};
    unsigned mask;
    assert_int_equal(cpu_read_mask(&mask, &err), 0);
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        assert_int_equal((cpu_features() & flags[i].bit) != 0,
                         (mask & flags[i].bit) && strstr(line, flags[i].flag) != NULL);
}

static void a_mask_leaves_what_it_names_and_what_that_includes(void **state)
{
    (void)state;
    const unsigned up_to_512 = CPU_AVX2 | CPU_AVX512, up_to_bf16 = up_to_512 | CPU_AVX512_BF16;
    const struct {
        const char *text;
        unsigned mask;
    } cases[] = {{NULL, ~0u},
                 {"", ~0u},
                 {"none", 0},
                 {"avx2", CPU_AVX2},
                 {"avx512", up_to_512},
                 {"avx512-bf16", up_to_bf16},
                 {"amx-bf16", up_to_bf16 | CPU_AMX_BF16},
                 {"avx512-fp16", up_to_512 | CPU_AVX512_FP16},
                 {"avx512-vbmi2,avx512-vnni", up_to_512 | CPU_AVX512_VBMI2 | CPU_AVX512_VNNI},
                 {"avx2,avx2", CPU_AVX2}};
    struct helm_err err = {0};
    unsigned mask;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(cpu_parse_mask(cases[i].text, &mask, &err), 0);
        assert_int_equal(mask, cases[i].mask);
    }
    /* each with what of it is unknown */
    static const char *const wrong[][2] = {{"avx3", "'avx3'"},
                                           {"avx", "'avx'"},
                                           {"AVX2", "'AVX2'"},
                                           {"avx2,", "''"},
                                           {",", "''"},
                                           {"avx2,none", "'none'"},
                                           {"none,avx2", "'none'"},
                                           {"avx2 avx512", "'avx2 avx512'"},
                                           {"avx2,sse9", "'sse9'"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(cpu_parse_mask(wrong[i][0], &mask, &err), HELM_E_USAGE);
        assert_non_null(strstr(err.text, "HELM_CPU"));
        assert_non_null(strstr(err.text, wrong[i][1]));
        assert_non_null(strstr(err.text, "avx512-vnni")); /* the names there are */
    }
}

/* The features that a program gets which runs under `mask`, whatever runs this test, or -1 and its status is
 * 2. */
static int features_under(const char *mask)
{
    int found[2], status = 0, features = -1;
    assert_int_equal(pipe(found), 0);
    const pid_t child = fork();
    if (child == 0) {
        setenv(CPU_VARIABLE, mask, 1);
        dup2(found[1], STDOUT_FILENO);
        close(STDERR_FILENO);
        execl("/proc/self/exe", "features", "-", NULL);
        _exit(9);
    }
    close(found[1]);
    if (read(found[0], &features, sizeof features) != sizeof features) features = -1;
    close(found[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == (features < 0 ? 2 : 0));
    return features;
}

static void a_program_keeps_to_the_mask_or_refuses_it(void **state)
{
    (void)state;
    assert_int_equal(features_under("none"), 0);
    assert_int_equal(features_under("avx2") & ~CPU_AVX2, 0);
    assert_int_equal(features_under("avx512") & ~(CPU_AVX2 | CPU_AVX512), 0);
    assert_int_equal(features_under("avx2") & CPU_AVX2, features_under("") & CPU_AVX2);
    assert_int_equal(features_under("avx"), -1);
    assert_int_equal(features_under("avx2,"), -1);
}

static void the_mask_is_named_for_the_log(void **state)
{
    (void)state;
    char text[CPU_MASK_TEXT], *mask = getenv(CPU_VARIABLE);
    char *kept = mask ? strdup(mask) : NULL;
    unsetenv(CPU_VARIABLE);
    assert_string_equal(cpu_mask_text(text, sizeof text), "");
    setenv(CPU_VARIABLE, "", 1);
    assert_string_equal(cpu_mask_text(text, sizeof text), "");
    setenv(CPU_VARIABLE, "avx2", 1);
    assert_non_null(strstr(cpu_mask_text(text, sizeof text), "HELM_CPU=avx2: "));
    if (kept) setenv(CPU_VARIABLE, kept, 1);
    if (!kept) unsetenv(CPU_VARIABLE);
    free(kept);
}

static void amx_is_granted_or_refused_with_a_reason(void **state)
{
    (void)state;
    struct helm_err err = {0};
    int rc = cpu_enable_amx(&err);
    if (cpu_features() & CPU_AMX_BF16) {
        assert_int_equal(rc, 0);
    } else {
        assert_int_equal(rc, HELM_E_UNSUPPORTED);
        assert_non_null(strstr(err.text, "AMX"));
    }
}

static void feature_text_is_bounded(void **state)
{
    (void)state;
    char text[64];
    assert_string_equal(cpu_features_text(0, text, sizeof text), "");
    assert_string_equal(cpu_features_text(CPU_AVX2 | CPU_AMX_BF16, text, sizeof text), "avx2 amx-bf16");
    assert_string_equal(cpu_features_text(CPU_AVX2 | CPU_AVX512, text, 8), "avx2 av");
    assert_string_equal(cpu_features_text(CPU_AVX2, text, 1), "");
}

static void write_cpu(const char *root, int cpu, const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "devices/system/cpu/cpu%d/topology/%s", cpu, name);
    tree_write(root, path, text);
}

static const int eight[] = {0, 1, 2, 3, 4, 5, 6, 7};

static void cores_come_before_siblings(void **state)
{
    (void)state;
    char root[TREE_PATH];
    struct helm_err err = {0};
    struct cpu_set set;
    tree_make(root);
    for (int cpu = 0; cpu < 8;
         cpu++) { /* 4 cores, siblings are neighbours; two kernels' names for the list */
        char list[16];
        snprintf(list, sizeof list, "%d-%d\n", cpu & ~1, cpu | 1);
        write_cpu(root, cpu, cpu < 4 ? "core_cpus_list" : "thread_siblings_list", list);
    }
    assert_int_equal(cpu_usable_under(root, eight, 8, 0, -1, &set, &err), 0);
    static const int order[] = {0, 2, 4, 6, 1, 3, 5, 7};
    assert_int_equal(set.cores, 4);
    assert_int_equal(set.count, 8);
    assert_int_equal(set.suggested, 4);
    assert_memory_equal(set.cpu, order, sizeof order);

    static const int masked[] = {3, 4, 5}; /* cpu 2 is not ours: 3 is then its core's first */
    assert_int_equal(cpu_usable_under(root, masked, 3, 0, -1, &set, &err), 0);
    static const int masked_order[] = {3, 4, 5};
    assert_int_equal(set.cores, 2);
    assert_memory_equal(set.cpu, masked_order, sizeof masked_order);
    tree_remove(root);
}

static void package_and_core_number_name_a_core(void **state)
{
    (void)state;
    char root[TREE_PATH];
    struct helm_err err = {0};
    struct cpu_set set;
    tree_make(root);
    static const char *const core[] = {"0\n", "1\n", "0\n", "1\n", "0\n", "1\n", "0\n", "1\n"};
    for (int cpu = 0; cpu < 8; cpu++) {
        write_cpu(root, cpu, "core_id", core[cpu]);
        write_cpu(root, cpu, "physical_package_id", cpu < 4 ? "0\n" : "1\n");
    }
    assert_int_equal(cpu_usable_under(root, eight, 8, 0, -1, &set, &err), 0);
    static const int order[] = {0, 1, 4, 5, 2, 3, 6, 7};
    assert_int_equal(set.cores, 4);
    assert_memory_equal(set.cpu, order, sizeof order);
    tree_remove(root);
}

static void without_sysfs_every_cpu_is_a_core(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct cpu_set set;
    assert_int_equal(cpu_usable_under("/nonexistent", eight, 8, 0, 0, &set, &err), 0);
    assert_int_equal(set.cores, 8);
    assert_int_equal(cpu_usable_under("/nonexistent", eight, 8, 0, 1, &set, &err), HELM_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "node 1"));
}

static void quota_caps_the_suggestion(void **state)
{
    (void)state;
    static const struct {
        double quota;
        int suggested;
    } cases[] = {{0, 8}, {0.25, 1}, {1, 1}, {1.5, 2}, {7.01, 8}, {64, 8}};
    struct helm_err err = {0};
    struct cpu_set set;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(cpu_usable_under("/nonexistent", eight, 8, cases[i].quota, -1, &set, &err), 0);
        assert_int_equal(set.suggested, cases[i].suggested);
    }
}

static void a_node_has_its_own_cpus(void **state)
{
    (void)state;
    char root[TREE_PATH];
    struct helm_err err = {0};
    struct cpu_set set;
    tree_make(root);
    tree_write(root, "devices/system/node/node0/cpulist", "0-1,6\n");
    tree_write(root, "devices/system/node/node1/cpulist", "2-5,7\n");
    tree_write(root, "devices/system/node/node2/cpulist", "\n"); /* memory only */
    assert_int_equal(cpu_usable_under(root, eight, 8, 0, 0, &set, &err), 0);
    static const int first[] = {0, 1, 6};
    assert_int_equal(set.count, 3);
    assert_memory_equal(set.cpu, first, sizeof first);
    assert_int_equal(cpu_usable_under(root, eight, 8, 0, 1, &set, &err), 0);
    assert_int_equal(set.count, 5);
    assert_int_equal(cpu_usable_under(root, eight, 8, 0, 2, &set, &err), HELM_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "affinity"));
    assert_int_equal(cpu_usable_under(root, eight, 2, 0, 1, &set, &err), HELM_E_NOT_FOUND);
    assert_int_equal(cpu_usable_under(root, eight, 8, 0, 3, &set, &err), HELM_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "does not exist"));
    tree_remove(root);
}

static void too_many_cpus_are_refused(void **state)
{
    (void)state;
    static int many[CPU_MAX + 1];
    struct helm_err err = {0};
    static struct cpu_set set;
    for (int i = 0; i <= CPU_MAX; i++) many[i] = i;
    assert_int_equal(cpu_usable_under("/nonexistent", many, CPU_MAX, 0, -1, &set, &err), 0);
    assert_int_equal(set.cores, CPU_MAX);
    assert_int_equal(cpu_usable_under("/nonexistent", many, CPU_MAX + 1, 0, -1, &set, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "1024"));
}

static void this_machine_is_readable(void **state)
{
    (void)state;
    struct helm_err err = {0};
    static struct cpu_set set;
    assert_int_equal(cpu_usable(-1, &set, &err), 0);
    assert_in_range(set.cores, 1, set.count);
    assert_in_range(set.suggested, 1, set.cores);
    cpu_set_t mask;
    if (sched_getaffinity(0, sizeof mask, &mask) == 0) {
        assert_int_equal(set.count, CPU_COUNT(&mask));
        for (int i = 0; i < set.count; i++) assert_true(CPU_ISSET(set.cpu[i], &mask));
    }
    char name[128], tiny[4];
    cpu_model_name(name, sizeof name);
    assert_true(name[0] != '\0' && !strchr(name, '\n'));
    cpu_model_name(tiny, sizeof tiny);
    assert_true(strlen(tiny) < sizeof tiny);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[0], "features") == 0) { /* features_under's */
        const int features = (int)cpu_features();
        return write(STDOUT_FILENO, &features, sizeof features) == sizeof features ? 0 : 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(features_need_processor_and_kernel),
        cmocka_unit_test(features_agree_with_the_kernel),
        cmocka_unit_test(a_mask_leaves_what_it_names_and_what_that_includes),
        cmocka_unit_test(a_program_keeps_to_the_mask_or_refuses_it),
        cmocka_unit_test(the_mask_is_named_for_the_log),
        cmocka_unit_test(amx_is_granted_or_refused_with_a_reason),
        cmocka_unit_test(feature_text_is_bounded),
        cmocka_unit_test(cores_come_before_siblings),
        cmocka_unit_test(package_and_core_number_name_a_core),
        cmocka_unit_test(without_sysfs_every_cpu_is_a_core),
        cmocka_unit_test(quota_caps_the_suggestion),
        cmocka_unit_test(a_node_has_its_own_cpus),
        cmocka_unit_test(too_many_cpus_are_refused),
        cmocka_unit_test(this_machine_is_readable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
