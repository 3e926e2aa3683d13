/* Golden runs with weights on disk: the same bits as with all of them in memory, for prompts whole and in
 * chunks of odd sizes, for several sequences at once, on the CPU alone and with a device. Experts with one
 * slot a layer and with more, where the device has all else and a layer's experts; whole units with a ring
 * for one and for several, between units of the device, of host memory or of neither, from safetensors and
 * from a GGUF file with interleaved rows. And what is refused, and what ends a step: a file that was cut, or
 * written to. Blocks of experts in a GGUF file: test_helmd_disk.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/device_choice.h"
#include "tests/golden/pair_walks.h"
#include "tests/written_plans.h"
#include "worker-cpu/local.h"

#define STEP_TOKENS 256
#define CONTEXT     320
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LONGEST    40
#define NEXT_MODEL 3
#else
#define LONGEST    70 /* tokens of a prompt */
#define NEXT_MODEL 1
#endif

static int step_local(void *local, const struct step_row *rows, uint32_t count,
                      const struct step_result **result, struct helm_err *err)
{
    return local_step(local, rows, count, result, err);
}

/* Experts: slots 0: all in memory. device: it computes what is no expert's, and the last layer's experts.
 * Dense: `homes` is a letter for each half layer, over and over; ring: as many times the largest one on disk
 * as there is room in the ring, 0: in memory. */
struct disk_case {
    const char *folder;
    uint32_t slots;
    bool device;
    const char *homes;
    double ring;
};
struct opened {
    struct local local;
    struct pair pair;
};

static int open_pair(const char *folder, const struct plan *plan, struct pair *pair, struct helm_err *err)
{
    const struct pair_options options = {.folder = folder,
                                         .plan = plan,
                                         .device = device_name(),
                                         .copy_rows = true,
                                         .kv_dtype = KV_F16,
                                         .threads = 2,
                                         .slots = CASES_MAX,
                                         .context_tokens = CONTEXT,
                                         .step_tokens = STEP_TOKENS,
                                         .vram_bytes = 256 << 20,
                                         .peer_wait_ms = 120000};
    return pair_open(&options, pair, err);
}

/* The homes of a dense model's half layers, and its ring. */
static void place_dense(const struct disk_case *c, const struct model *model, struct plan *plan)
{
    struct helm_err err = {0};
    uint64_t largest = 0, room;
    for (uint32_t u = 0; u < unit_count(plan->layers); u++) {
        const enum plan_home home = home_of_letter(c->homes[u % strlen(c->homes)]);
        plan->unit[u].home[0] = home == PLAN_HOME_DISK && c->ring <= 0 ? PLAN_HOME_CPU : home;
        if (plan->unit[u].home[0] != PLAN_HOME_DISK) continue;
        if (disk_ring_room(model, u, &room, &err)) fail_msg("%s: %s", c->folder, err.text);
        if (room > largest) largest = room;
    }
    plan_device_at(plan, PLAN_HOME_DISK)->ring_bytes = (uint64_t)(c->ring * (double)largest);
}

static int open_case(const struct disk_case *c, struct opened *opened, struct helm_err *err)
{
    struct model model;
    if (model_read(c->folder, &model, err)) return err->code;
    struct plan plan = {.layers = model.config.layers, .step_tokens = STEP_TOKENS};
    int rc = plan_make_units(&plan, c->device ? PLAN_HOME_GPU : PLAN_HOME_CPU, err);
    if (c->device) plan.embed = plan.head = PLAN_GPU0;
    for (uint32_t l = 0; l < plan.layers - c->device && !rc; l++)
        if (model_layer_sparse(&model.config, l))
            plan.unit[unit_of(l, UNIT_MLP)].home[0] = c->slots ? PLAN_HOME_DISK : PLAN_HOME_CPU;
    plan_device_at(&plan, PLAN_HOME_DISK)->experts.slots = c->slots;
    if (c->homes) place_dense(c, &model, &plan);
    plan_take_states(&plan, &model);
    const struct local_options options = {.folder = c->folder,
                                          .plan = &plan,
                                          .kv_dtype = KV_F16,
                                          .threads = 2,
                                          .slots = CASES_MAX,
                                          .context_tokens = CONTEXT,
                                          .step_tokens = STEP_TOKENS};
    if (!rc) rc = plan_check(&plan, err);
    if (!rc)
        rc = c->device ? open_pair(c->folder, &plan, &opened->pair, err)
                       : local_open(&options, &opened->local, err);
    plan_free(&plan);
    model_free(&model);
    return rc;
}

static uint32_t start_walks(const struct walker *on, const struct golden *golden, struct walk *walks)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < golden->count; i++) {
        if (golden->cases[i].prompt_count > LONGEST) continue;
        walk_start(on, &walks[count], &golden->cases[i], count, 5);
        count++;
    }
    assert_true(count > 1);
    return count;
}

/* All cases, each alone whole, each alone in odd chunks, all together. */
static uint64_t digest_of(const struct disk_case *c, const struct golden *golden)
{
    static const uint32_t whole[] = {0}, odd[] = {7, 1, 33, 16, 64, 2}, mixed[] = {13, 0, 5, 40, 1, 200, 3};
    struct helm_err err = {0};
    struct opened *opened = aligned_alloc(64, (sizeof *opened + 63) / 64 * 64);
    if (open_case(c, opened, &err)) fail_msg("%s, %u slots: %s", c->folder, c->slots, err.text);
    const struct walker on = {.arena = c->device ? &opened->pair.arena : &opened->local.arena,
                              .engines = c->device ? (void *)&opened->pair : &opened->local,
                              .step = c->device ? step_pair : step_local,
                              .gap_allowed = 0.4,
                              .margin = 0.1,
                              .worst = 0.4};
    struct outcome all = {0};
    struct walk walks[CASES_MAX];
    uint32_t count = start_walks(&on, golden, walks);
    for (uint32_t i = 0; i < count; i++) run_walks(&on, &walks[i], 1, whole, 1, &all);
    count = start_walks(&on, golden, walks);
    for (uint32_t i = 0; i < count; i++) run_walks(&on, &walks[i], 1, odd, sizeof odd / sizeof *odd, &all);
    count = start_walks(&on, golden, walks);
    run_walks(&on, walks, count, mixed, sizeof mixed / sizeof *mixed, &all);
    assert_int_equal(all.wrong, 0);
    assert_true(all.worst <= 0.4);
    if (c->slots) {
        const struct arena_experts *seen = arena_experts_of(on.arena);
        assert_true(seen->steps > 0 && seen->used > seen->present);
        assert_true(c->slots < 2 || seen->present > 0);
    }
    c->device ? pair_close(&opened->pair) : local_close(&opened->local);
    free(opened);
    return all.digest;
}

/* Experts in one tensor a role and in one each, beside a shared expert, of hybrids, chosen within groups. */
static const struct {
    const char *model;
    uint32_t slots[2];
} mixtures[] = {
    {"mixtral", {1, 3}}, {"qwen3moe", {1, 5}}, {"qwen2moe", {2}}, {"qwen35moe", {3}}, {"deepseekv3", {1}}};

static void same_bits(bool device)
{
    for (size_t m = 0; m < sizeof mixtures / sizeof *mixtures; m += NEXT_MODEL) {
        char folder[256];
        struct golden golden;
        snprintf(folder, sizeof folder, "tests/data/golden/%s", mixtures[m].model);
        golden_read(folder, &golden);
        const struct disk_case memory = {.folder = folder, .device = device};
        const uint64_t wanted = digest_of(&memory, &golden);
        for (int i = 0; i < 2 && mixtures[m].slots[i]; i++) {
            const struct disk_case disk = {.folder = folder, .slots = mixtures[m].slots[i], .device = device};
            if (digest_of(&disk, &golden) != wanted)
                fail_msg("%s, %u slots: other bits than in memory", mixtures[m].model, disk.slots);
        }
        golden_free(&golden);
    }
}

static void experts_on_disk_have_the_same_bits(void **state)
{
    (void)state;
    same_bits(false);
}

static void a_device_takes_part_with_the_same_bits(void **state)
{
    (void)state;
    need_device();
    same_bits(true);
}

/* ---- whole units ---- */

/* Attention alone and MLPs alone, everything, one unit, and what a planner makes. */
static const struct {
    const char *folder, *homes;
    double ring[2];
} dense[] = {{"golden/qwen3", "dcdd", {1, 3}},    {"golden-gguf/llama-Q4_K_M", "d", {1, 2.5}},
             {"golden/qwen2-bias", "cd", {1, 8}}, {"golden/llama3-ropescaled", "dccc", {1}},
             {"golden/phi3", "d", {1.5}},         {"golden/gemma3", "dddc", {2}},
             {"golden/qwen3", "cccccccd", {1}}},
  beside[] = {{"golden/qwen3", "gdgc", {1, 3}},
              {"golden-gguf/llama-Q4_K_M", "ggdc", {1.5}},
              {"golden/qwen2-bias", "gdgdgggg", {1}}};

static void dense_same_bits(bool device)
{
    const size_t count = device ? sizeof beside / sizeof *beside : sizeof dense / sizeof *dense;
    for (size_t m = 0; m < count; m++) {
        char folder[256];
        struct golden golden;
        snprintf(folder, sizeof folder, "tests/data/%s", device ? beside[m].folder : dense[m].folder);
        golden_read(folder, &golden);
        struct disk_case c = {.folder = folder,
                              .device = device,
                              .homes = device ? beside[m].homes : dense[m].homes};
        const uint64_t wanted = digest_of(&c, &golden);
        for (int i = 0; i < 2; i++) {
            c.ring = device ? beside[m].ring[i] : dense[m].ring[i];
            if (c.ring > 0 && digest_of(&c, &golden) != wanted)
                fail_msg("%s, %s, a ring for %.1f: other bits than in memory", folder, c.homes, c.ring);
        }
        golden_free(&golden);
    }
}

static void units_on_disk_have_the_same_bits(void **state)
{
    (void)state;
    dense_same_bits(false);
}

static void units_of_a_device_between_them_too(void **state)
{
    (void)state;
    need_device();
    dense_same_bits(true);
}

/* ---- faults ---- */

static void copy_file(const char *from, const char *to)
{
    char *bytes = malloc(16 << 20);
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    assert_true(bytes && in && out);
    const size_t count = fread(bytes, 1, 16 << 20, in);
    assert_true(count > 0 && count < 16 << 20 && fwrite(bytes, 1, count, out) == count);
    fclose(in);
    assert_int_equal(fclose(out), 0);
    free(bytes);
}

/* A step of a token after the file has become another: its text. */
static void step_after(const char *file, bool whole, void (*change)(const char *file), struct helm_err *err)
{
    char folder[64];
    struct opened *opened = aligned_alloc(64, (sizeof *opened + 63) / 64 * 64);
    struct local *local = &opened->local;
    const struct step_result *result;
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(file, '/') - file), file);
    const struct disk_case experts = {.folder = folder, .slots = 1},
                           units = {.folder = folder, .homes = "cd", .ring = 1};
    if (open_case(whole ? &units : &experts, opened, err)) fail_msg("%s", err->text);
    for (uint32_t i = 0; i < 8; i++) arena_history_of(&local->arena, 0)[i] = 5 + i;
    arena_slot_of(&local->arena, 0)->prompt_count = 8;
    struct step_row row = {.slot = 0, .count = 1, .flags = STEP_ROW_SAMPLE};
    if (local_step(local, &row, 1, &result, err)) fail_msg("%s", err->text);
    change(file);
    int rc = 0;
    for (uint32_t i = 1; i < 8 && !rc; i++) {
        row.start = i;
        rc = local_step(local, &row, 1, &result, err);
    }
    assert_int_equal(rc, HELM_E_MISMATCH);
    local_close(local);
    free(opened);
}

static void cut(const char *file)
{
    assert_int_equal(truncate(file, 700000), 0);
}

/* A file that grows by a byte at its end has the same weights, but is no longer the one that was opened. */
static void append(const char *file)
{
    FILE *f = fopen(file, "ab");
    assert_true(f && fputc(0, f) == 0);
    fclose(f);
}

/* Other bytes, and the time of writing as before. */
static void overwrite(const char *file)
{
    struct stat was;
    assert_int_equal(stat(file, &was), 0);
    FILE *f = fopen(file, "r+b");
    assert_non_null(f);
    for (long at = 400000; at < was.st_size; at += 64)
        assert_true(!fseek(f, at, SEEK_SET) && fputc(0x3d, f) == 0x3d);
    fclose(f);
    const struct timespec times[2] = {was.st_atim, was.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, file, times, 0), 0);
}

static void change_files(bool whole)
{
    char folder[] = "build/test-disk-XXXXXX", file[64], config[64];
    struct helm_err err = {0};
    static const struct {
        void (*change)(const char *file);
        const char *says;
    } cases[] = {{cut, "model.safetensors has no byte "},
                 {append, "model.safetensors has another size (byte"},
                 {overwrite, "model.safetensors has other bytes than before (byte"}};
    assert_non_null(mkdtemp(folder));
    snprintf(file, sizeof file, "%s/model.safetensors", folder);
    snprintf(config, sizeof config, "%s/config.json", folder);
    copy_file(whole ? "tests/data/golden/qwen3/config.json" : "tests/data/golden/mixtral/config.json",
              config);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        copy_file(whole ? "tests/data/golden/qwen3/model.safetensors"
                        : "tests/data/golden/mixtral/model.safetensors",
                  file);
        step_after(file, whole, cases[i].change, &err);
        /* read ahead, while the file changes or after it */
        const char *says = whole ? "changed on disk while it was served: model.safetensors " : cases[i].says;
        if (!strstr(err.text, says)) fail_msg("'%s' instead of '%s'", err.text, says);
    }
    unlink(file);
    unlink(config);
    assert_int_equal(rmdir(folder), 0);
}

static void a_file_that_changes_ends_the_step(void **state)
{
    (void)state;
    change_files(false);
    change_files(true);
}

static void what_cannot_be_read_is_refused(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct opened *opened = aligned_alloc(64, (sizeof *opened + 63) / 64 * 64);
    static const struct {
        struct disk_case c;
        int rc;
        const char *says;
    } cases[] = {{{.folder = "tests/data/golden/gptoss", .slots = 2},
                  HELM_E_UNSUPPORTED,
                  "otherwise than matrix by matrix cannot be read from disk"},
                 {{.folder = "tests/data/golden/qwen3", .homes = "d", .ring = 0.9},
                  HELM_E_CAPACITY,
                  "the MLP of layer 0 takes "}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(open_case(&cases[i].c, opened, &err), cases[i].rc);
        if (!strstr(err.text, cases[i].says)) fail_msg("'%s' instead of '%s'", err.text, cases[i].says);
    }
    free(opened);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(experts_on_disk_have_the_same_bits),
                                       cmocka_unit_test(a_device_takes_part_with_the_same_bits),
                                       cmocka_unit_test(units_on_disk_have_the_same_bits),
                                       cmocka_unit_test(units_of_a_device_between_them_too),
                                       cmocka_unit_test(a_file_that_changes_ends_the_step),
                                       cmocka_unit_test(what_cannot_be_read_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
