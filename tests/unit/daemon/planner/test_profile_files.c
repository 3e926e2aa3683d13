/* Unit tests of daemon/planner/profile*.c: what is checked and settled, files, fingerprints and where they
 * are kept. */
#include "tests/unit/daemon/planner/written_profiles.h"

static void check_names_what_is_missing_or_contradicts(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct profile p = whole();
    p.cpu.attention = (struct profile_value){0};
    assert_int_equal(profile_check(&p, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "cpu.attention "));
    p = whole();
    p.gpu.linear.count = 0;
    assert_int_equal(profile_check(&p, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "gpu.linear"));
    p = whole();
    p.cpu.gemv_beside = (struct profile_value){0};
    assert_int_equal(profile_check(&p, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "cpu.gemv_beside"));
    p = whole();
    p.cpu.gemv = measured(360e9);
    assert_int_equal(profile_check(&p, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "cpu.gemv"));
    assert_non_null(strstr(err.text, "cpu.read"));
    p = whole();
    p.cpu.gemv_packed = measured(400e9);
    assert_int_equal(profile_check(&p, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "cpu.gemv_packed"));
    p = whole();
    p.cpu.gemv_packed_beside = measured(450e9);
    assert_int_equal(profile_check(&p, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "cpu.gemv_packed_beside"));
    p = whole();
    p.link.h2d_beside_packed = measured(170e9);
    assert_int_equal(profile_check(&p, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "link.h2d_beside_packed"));
    p = whole();
    p.link.h2d_beside = measured(170e9);
    assert_int_equal(profile_check(&p, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "link.h2d_beside"));
    p = whole();
    p.gpu.vram_free = p.gpu.vram_bytes + 1;
    assert_int_equal(profile_check(&p, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "vram_free"));
    p = whole();
    p.gpu.chain_gemv = measured(15000e9);
    assert_int_equal(profile_check(&p, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "chain_gemv"));
    p = whole();
    p.gpu.chain_attention = (struct profile_value){0};
    assert_int_equal(profile_check(&p, &err), HELM_E_FORMAT);
    p = whole(); /* these may be missing */
    p.gpu.chain_gemv = p.gpu.chain_attention = p.gpu.chain_operation = (struct profile_value){0};
    p.cpu.gemv_packed = p.cpu.gemv_packed_beside = p.link.h2d_beside_packed = (struct profile_value){0};
    p.gpu.gemv_packed = (struct profile_value){0};
    p.link.direct = p.step = p.cpu.operation = (struct profile_value){0};
    p.gpu.operation = p.gpu.launch = p.link.latency = p.link.hand_over = (struct profile_value){0};
    assert_int_equal(profile_check(&p, &err), 0);
}

static void what_others_disturbed_is_settled(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct profile p = whole(), before;
    before = p;
    assert_false(profile_settle(&p));
    assert_memory_equal(&p, &before, sizeof p);
    p.cpu.gemv = measured(360e9);
    p.cpu.gemv_beside = measured(2000e9);
    p.link.h2d_beside = measured(170e9);
    p.format[FORMAT_Q4_K].cpu_gemv = measured(900e9);
    p.format[FORMAT_Q4_K].cpu_gemv_beside = measured(4000e9);
    assert_int_equal(profile_check(&p, &err), HELM_E_FORMAT);
    assert_true(profile_settle(&p));
    assert_int_equal(profile_check(&p, &err), 0);
    const double read = profile_table_at(&p.cpu.read, p.cpu.threads).value;
    assert_true(p.cpu.gemv.value == read && p.format[FORMAT_Q4_K].cpu_gemv.value == read);
    assert_int_equal(p.busy_percent, PROFILE_BUSY);
    p.gpu.chain_attention = (struct profile_value){0}; /* a fault that is no disturbance stays one */
    assert_false(profile_settle(&p));
    assert_int_equal(profile_check(&p, &err), HELM_E_FORMAT);
}

static void files_are_written_whole_and_read_back(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct profile p = whole(), again;
    char root[TREE_PATH], path[TREE_PATH + 32];
    tree_make(root);
    snprintf(path, sizeof path, "%s/p.json", root);
    assert_int_equal(profile_read(path, NULL, &again, &err), HELM_E_NOT_FOUND);
    assert_int_equal(profile_write(path, &p, &err), 0);
    assert_int_equal(profile_read(path, NULL, &again, &err), 0);
    assert_true(fabs(again.gpu.operation.value / p.gpu.operation.value - 1) < 1e-8);
    assert_true(fabs(again.gpu.chain_gemv.value / p.gpu.chain_gemv.value - 1) < 1e-8);
    assert_true(fabs(again.gpu.chain_attention.high / p.gpu.chain_attention.high - 1) < 1e-8);
    assert_true(fabs(again.gpu.chain_operation.low / p.gpu.chain_operation.low - 1) < 1e-8);
    assert_true(fabs(again.gpu.chain_attention_pair.value / p.gpu.chain_attention_pair.value - 1) < 1e-8);
    assert_true(fabs(again.gpu.attention_direct.value / p.gpu.attention_direct.value - 1) < 1e-8);
    assert_true(fabs(again.gpu.gemv_packed.value / 3200e9 - 1) < 1e-8);
    assert_int_equal(again.gpu.linear_operation.count, 1);
    assert_true(fabs(again.gpu.linear_operation.point[0].y.value / 6.5e-6 - 1) < 1e-8);
    assert_true(again.gpu.attention_rows.count == 1 && again.gpu.attention_rows.point[0].x == 4096);
    assert_true(fabs(again.cpu.gemv_packed.value / 135e9 - 1) < 1e-8);
    assert_true(fabs(again.cpu.gemv_packed_beside.value / 95e9 - 1) < 1e-8);
    assert_true(fabs(again.link.h2d_beside_packed.value / 53e9 - 1) < 1e-8);
    assert_true(fabs(again.gpu.begin.value / 50e-6 - 1) < 1e-8);
    assert_true(fabs(again.gpu.begin_graph.value / 30e-6 - 1) < 1e-8);
    assert_true(fabs(again.wake.value / 45e-6 - 1) < 1e-8);
    assert_true(fabs(again.cpu.linear.point[1].y.low / p.cpu.linear.point[1].y.low - 1) < 1e-8);
    p.cpu.threads = 8;
    assert_int_equal(profile_write(path, &p, &err), 0); /* over the old one */
    assert_int_equal(profile_read(path, NULL, &again, &err), 0);
    assert_int_equal(again.cpu.threads, 8);
    int files = 0;
    DIR *dir = opendir(root);
    for (struct dirent *e; (e = readdir(dir));) files += e->d_name[0] != '.';
    closedir(dir);
    assert_int_equal(files, 1); /* nothing is left beside it */
    p.cpu.gemv = (struct profile_value){0};
    assert_int_equal(profile_write(path, &p, &err), 0);
    assert_int_equal(profile_read(path, NULL, &again, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "p.json"));
    assert_non_null(strstr(err.text, "cpu.gemv"));
    snprintf(path, sizeof path, "%s/none/p.json", root);
    assert_int_equal(profile_write(path, &p, &err), HELM_E_IO);
    tree_remove(root);
}

static void make_machine(char root[TREE_PATH], const char *microcode)
{
    char cpuinfo[512];
    tree_make(root);
    snprintf(
        cpuinfo, sizeof cpuinfo,
        "processor\t: 0\nvendor_id\t: X\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Some CPU @ 2 GHz\n"
        "stepping\t: 8\nmicrocode\t: %s\n\nprocessor\t: 1\nmicrocode\t: other\n",
        microcode);
    tree_write(root, "proc/cpuinfo", cpuinfo);
    tree_write(root, "proc/meminfo", "MemTotal:       24630840 kB\n");
    tree_write(root, "sys/devices/system/node/node0/cpulist", "0-3\n");
    tree_write(root, "sys/devices/system/node/node0/distance", "10 21\n");
    tree_write(root, "sys/devices/system/node/node1/cpulist", "4-7\n");
    tree_write(root, "sys/devices/system/cpu/cpu0/cache/index0/level", "3\n");
    tree_write(root, "sys/devices/system/cpu/cpu0/cache/index0/type", "Unified\n");
    tree_write(root, "sys/devices/system/cpu/cpu0/cache/index0/size", "32768K\n");
}

static void the_fingerprint_follows_the_hardware(void **state)
{
    (void)state;
    struct helm_err err = {0};
    char root[TREE_PATH], first[72], other[72], facts[PROFILE_FACTS_TEXT];
    struct profile_hardware hardware = {.device = "cuda GPU-1 driver 570.1 gen 5 x16"};
    const struct profile_machine machine = {.root = root, .cpus = &four},
                                 half = {.root = root, .cpus = &four, .quota = 1.5};
    make_machine(root, "0x2b000111");
    assert_int_equal(profile_fingerprint_under(&machine, &hardware, first, facts, sizeof facts, &err), 0);
    assert_int_equal(strlen(first), 32);
    assert_non_null(strstr(facts, "model name: Some CPU @ 2 GHz\n"));
    assert_non_null(strstr(facts, "model: 143\n"));
    assert_non_null(strstr(facts, "microcode: 0x2b000111\n"));
    assert_non_null(strstr(facts, "cpus: 0-2,5\n"));
    assert_non_null(strstr(facts, "memory: 23 GiB\n"));
    assert_non_null(strstr(facts, "node 1: CPUs 4-7"));
    assert_non_null(strstr(facts, "cache: L3 Unified 32768K"));
    assert_non_null(strstr(facts, "device: cuda GPU-1 driver 570.1 gen 5 x16\n"));
    assert_int_equal(profile_fingerprint_under(&machine, &hardware, other, NULL, 0, &err), 0);
    assert_string_equal(first, other);

    const struct profile_hardware changed[] = {{.device = "cuda GPU-1 driver 570.1 gen 4 x16"},
                                               {.device = "cuda GPU-1 driver 580.1 gen 5 x16"},
                                               {.device = "emulated"},
                                               {.device = "", .node = -1},
                                               {.device = "cuda GPU-1 driver 570.1 gen 5 x16", .node = 1},
                                               {.device = "cuda GPU-1 driver 570.1 gen 5 x16", .threads = 2}};
    for (size_t i = 0; i < sizeof changed / sizeof *changed; i++) {
        assert_int_equal(profile_fingerprint_under(&machine, &changed[i], other, NULL, 0, &err), 0);
        assert_string_not_equal(first, other);
    }
    assert_int_equal(profile_fingerprint_under(&half, &hardware, other, NULL, 0, &err), 0);
    assert_string_not_equal(first, other);
    struct cpu_set fewer = four;
    fewer.count = fewer.cores = 3;
    const struct profile_machine smaller = {.root = root, .cpus = &fewer};
    assert_int_equal(profile_fingerprint_under(&smaller, &hardware, other, NULL, 0, &err), 0);
    assert_string_not_equal(first, other);
    tree_remove(root);
    make_machine(root, "0x2b000222");
    assert_int_equal(profile_fingerprint_under(&machine, &hardware, other, NULL, 0, &err), 0);
    assert_string_not_equal(first, other);
    tree_remove(root);
}

static void this_machine_has_a_fingerprint(void **state)
{
    (void)state;
    struct helm_err err = {0};
    const struct profile_hardware none = {0};
    char a[72], b[72], name[PROFILE_TEXT];
    assert_int_equal(profile_fingerprint(&none, a, NULL, 0, &err), 0);
    assert_int_equal(profile_fingerprint(&none, b, NULL, 0, &err), 0);
    assert_string_equal(a, b);
    assert_int_equal(strspn(a, "0123456789abcdef"), 32);
    profile_cpu_name(name);
    assert_true(strlen(name) > 0);
}

static void the_cache_is_where_the_environment_says(void **state)
{
    (void)state;
    struct helm_err err = {0};
    char root[TREE_PATH], path[512], expected[512], value[TREE_PATH + 32];
    struct stat st;
    tree_make(root);
    unsetenv("STATE_DIRECTORY");
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", root, 1);
    assert_int_equal(profile_cache_path("00ff", path, sizeof path, &err), 0);
    snprintf(expected, sizeof expected, "%s/.cache/helm/profiles/00ff.json", root);
    assert_string_equal(path, expected);
    snprintf(value, sizeof value, "%s/.cache/helm/profiles", root);
    assert_int_equal(stat(value, &st), -1); /* that it is named makes nothing */
    assert_int_equal(profile_cache_make(path, &err), 0);
    assert_int_equal(stat(value, &st), 0);
    assert_true(S_ISDIR(st.st_mode));
    snprintf(value, sizeof value, "%s/cache", root);
    setenv("XDG_CACHE_HOME", value, 1);
    assert_int_equal(profile_cache_path("00ff", path, sizeof path, &err), 0);
    snprintf(expected, sizeof expected, "%s/cache/helm/profiles/00ff.json", root);
    assert_string_equal(path, expected);
    snprintf(value, sizeof value, "%s/state:/elsewhere", root);
    setenv("STATE_DIRECTORY", value, 1);
    assert_int_equal(profile_cache_path("00ff", path, sizeof path, &err), 0);
    snprintf(expected, sizeof expected, "%s/state/profiles/00ff.json", root);
    assert_string_equal(path, expected);
    assert_int_equal(profile_cache_path("../x", path, sizeof path, &err), HELM_E_FORMAT);
    assert_int_equal(profile_cache_path("", path, sizeof path, &err), HELM_E_FORMAT);
    assert_int_equal(profile_cache_path("00ff", path, 10, &err), HELM_E_LIMIT);
    assert_string_equal(path, "");
    unsetenv("STATE_DIRECTORY");
    unsetenv("XDG_CACHE_HOME");
    snprintf(value, sizeof value, "%s/nonexistent",
             root); /* is not made: such homes are those of users without one */
    setenv("HOME", value, 1);
    assert_int_equal(profile_cache_path("00ff", path, sizeof path, &err), HELM_E_NOT_FOUND);
    assert_non_null(strstr(err.text, value));
    setenv("HOME", "/dev/null", 1);
    assert_int_equal(profile_cache_path("00ff", path, sizeof path, &err), HELM_E_NOT_FOUND);
    unsetenv("HOME");
    assert_int_equal(profile_cache_path("00ff", path, sizeof path, &err), HELM_E_NOT_FOUND);
    assert_int_equal(profile_cache_make("/dev/null/helm/profiles/00ff.json", &err), HELM_E_IO);
    assert_non_null(strstr(err.text, "/dev/null"));
    tree_remove(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(check_names_what_is_missing_or_contradicts),
        cmocka_unit_test(what_others_disturbed_is_settled),
        cmocka_unit_test(files_are_written_whole_and_read_back),
        cmocka_unit_test(the_fingerprint_follows_the_hardware),
        cmocka_unit_test(this_machine_has_a_fingerprint),
        cmocka_unit_test(the_cache_is_where_the_environment_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
