/* Unit tests of common/shared/arena.c and the layout; several threads and processes:
 * tests/ipc/test_arena_*.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/shared/arena.h"
#include "common/model/model.h"
#include "common/base/units.h"

#define WEIGHT_BYTES (6 * MIB + 12345)

static struct arena_spec small_spec(void)
{
    return (struct arena_spec){
        .slots = 3,
        .context_tokens = 1000,
        .step_tokens = 33,
        .hidden = 127,
        .vocab = 1001,
        .lanes = {2},
        .kv = {.layers = 5, .kv_heads = 3, .head_dim = 80, .page_tokens = 32, .dtype = DTYPE_BF16},
        .page_count = 96,
        .weight_bytes = WEIGHT_BYTES};
}

static struct arena create_small(void)
{
    struct arena_spec spec = small_spec();
    struct arena arena;
    struct helm_err err = {0};
    if (arena_create(&spec, &arena, &err)) fail_msg("%s", err.text);
    return arena;
}

static void regions_are_aligned_apart_and_large_enough(void **state)
{
    (void)state;
    struct arena_spec spec = small_spec();
    for (uint32_t weights = 0; weights < 2; weights++) {
        struct arena_header header;
        struct helm_err err = {0};
        if (!weights) spec.weight_bytes = 0;
        assert_int_equal(arena_plan(&spec, &header, &err), 0);
        uint64_t end = sizeof header;
        for (int i = 0; i < ARENA_REGION_COUNT; i++) {
            bool big = i == ARENA_REGION_KV || i == ARENA_REGION_WEIGHTS;
            assert_true(header.region[i].offset >= end);
            assert_int_equal(header.region[i].offset % (big ? ARENA_HUGE_PAGE : 4096), 0);
            end = header.region[i].offset + header.region[i].bytes;
        }
        assert_true(end <= header.total_bytes);
        assert_int_equal(header.total_bytes % ARENA_HUGE_PAGE, 0);
        assert_int_equal(header.pages_per_slot, 32);
        assert_int_equal(header.region[ARENA_REGION_CONTROL].bytes, sizeof(struct arena_control));
        assert_int_equal(header.region[ARENA_REGION_SLOTS].bytes, 3 * sizeof(struct arena_slot));
        assert_int_equal(header.region[ARENA_REGION_HISTORY].bytes, 3 * 1000 * 4);
        assert_int_equal(header.region[ARENA_REGION_PAGE_TABLE].bytes, 3 * 32 * 4);
        assert_int_equal(header.region[ARENA_REGION_LANES].bytes, 2 * lane_bytes(33, 127));
        assert_int_equal(header.region[ARENA_REGION_LOGITS].bytes, 3 * 1001 * 4);
        assert_int_equal(header.region[ARENA_REGION_KV].bytes, 96 * kv_page_bytes(&spec.kv));
        assert_int_equal(header.region[ARENA_REGION_WEIGHTS].bytes, spec.weight_bytes);
        spec = small_spec();
    }
}

static void bad_sizes_are_named(void **state)
{
    (void)state;
    struct arena_spec good = small_spec();
    const struct {
        size_t at; /* of a uint32_t in struct arena_spec */
        uint32_t value;
        int code;
        const char *name;
    } cases[] = {
        {offsetof(struct arena_spec, slots), 0, HELM_E_LIMIT, "slots"},
        {offsetof(struct arena_spec, slots), 65, HELM_E_LIMIT, "slots"},
        {offsetof(struct arena_spec, context_tokens), 0, HELM_E_LIMIT, "context_tokens"},
        {offsetof(struct arena_spec, context_tokens), UINT32_MAX, HELM_E_LIMIT, "context_tokens"},
        {offsetof(struct arena_spec, step_tokens), 0, HELM_E_LIMIT, "step_tokens"},
        {offsetof(struct arena_spec, hidden), 0, HELM_E_LIMIT, "hidden"},
        {offsetof(struct arena_spec, hidden), UINT32_MAX, HELM_E_LIMIT, "hidden"},
        {offsetof(struct arena_spec, vocab), UINT32_MAX, HELM_E_LIMIT, "vocab"},
        {offsetof(struct arena_spec, lanes), UINT32_MAX, HELM_E_LIMIT, "lanes"},
        {offsetof(struct arena_spec, kv.layers), UINT32_MAX, HELM_E_LIMIT, "kv.layers"},
        {offsetof(struct arena_spec, kv.kv_heads), 0, HELM_E_LIMIT, "kv.kv_heads"},
        {offsetof(struct arena_spec, kv.kv_heads), 1u << 31, HELM_E_LIMIT, "kv.kv_heads"},
        {offsetof(struct arena_spec, kv.head_dim), UINT32_MAX, HELM_E_LIMIT, "kv.head_dim"},
        {offsetof(struct arena_spec, kv.page_tokens), 0, HELM_E_LIMIT, "kv.page_tokens"},
        {offsetof(struct arena_spec, kv.page_tokens), 24, HELM_E_LIMIT, "power of two"},
        {offsetof(struct arena_spec, kv.dtype), KV_DTYPE_COUNT, HELM_E_LIMIT, "kv.dtype"},
        {offsetof(struct arena_spec, kv.dtype), KV_Q8_0, HELM_E_UNSUPPORTED, "kv.head_dim is 80"},
        {offsetof(struct arena_spec, page_count), UINT32_MAX, HELM_E_LIMIT, "KV pool"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct arena_spec spec = good;
        struct arena_header header;
        struct arena arena;
        struct helm_err err = {0};
        memcpy((char *)&spec + cases[i].at, &cases[i].value, sizeof(uint32_t));
        assert_int_equal(arena_plan(&spec, &header, &err), cases[i].code);
        if (!strstr(err.text, cases[i].name)) fail_msg("case %zu: %s", i, err.text);
        assert_int_equal(arena_create(&spec, &arena, &err), cases[i].code);
        assert_null(arena.base);
    }
    struct arena_spec spec = good;
    struct arena_header header;
    struct helm_err err = {0};
    spec.weight_bytes = UINT64_MAX;
    assert_int_equal(arena_plan(&spec, &header, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "weight_bytes"));
    spec = good;
    spec.lanes[ARENA_LANE_STEP] = 4096, spec.hidden = 1u << 24, spec.step_tokens = 1u << 28;
    assert_int_equal(arena_plan(&spec, &header, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "lanes"));
    spec = good;
    spec.kv = (struct kv_layout){65536, 65536, 65536, 65536, KV_F32};
    assert_int_equal(arena_plan(&spec, &header, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "KV pool"));
    spec = good;
    spec.page_count = 0, spec.kv.layers = 0; /* no KV on the host at all is fine */
    assert_int_equal(arena_plan(&spec, &header, &err), 0);
}

/* Each link has a lane of each kind that it needs, apart from all others, and all become empty together. */
static void every_link_has_lanes_of_its_own(void **state)
{
    (void)state;
    static const uint32_t floats[ARENA_LANE_KINDS] = {33 * 127, ARENA_KV_TOKENS * 2 * (80 + 2),
                                                      33 * (127 + 2 * 3)};
    struct arena_spec spec = small_spec();
    struct arena arena;
    struct arena_header header;
    struct helm_err err = {0};
    spec.vram_page_count = 4, spec.kv_heads_asking = 2;
    spec.expert_layers = 1, spec.experts = 8, spec.experts_chosen = 3;
    assert_int_equal(arena_plan(&spec, &header, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "kv lanes"));
    spec.lanes[ARENA_LANE_KV] = 4, spec.lanes[ARENA_LANE_EXPERTS] = 3;
    if (arena_create(&spec, &arena, &err)) fail_msg("%s", err.text);
    for (int k = 0; k < ARENA_LANE_KINDS; k++)
        for (uint32_t l = 0; l < spec.lanes[k]; l++) {
            struct lane *lane = arena_lane_at(&arena, (enum arena_lane_kind)k, l);
            assert_int_equal(lane_publish(lane, 1, &err), 0);
            for (uint32_t i = 0; i < floats[k]; i++) lane->data[i] = (float)(10 * k + (int)l);
        }
    for (int k = 0; k < ARENA_LANE_KINDS; k++)
        for (uint32_t l = 0; l < spec.lanes[k]; l++) {
            const struct lane *lane = arena_lane_at(&arena, (enum arena_lane_kind)k, l);
            assert_int_equal(doorbell_read(&lane->bell), 1);
            for (uint32_t i = 0; i < floats[k]; i++) assert_true(lane->data[i] == (float)(10 * k + (int)l));
        }
    arena_empty_lanes(&arena);
    for (int k = 0; k < ARENA_LANE_KINDS; k++)
        for (uint32_t l = 0; l < spec.lanes[k]; l++)
            assert_int_equal(doorbell_read(&arena_lane_at(&arena, (enum arena_lane_kind)k, l)->bell), 0);
    arena_close(&arena);
}

static void both_sides_see_the_same_memory(void **state)
{
    (void)state;
    struct arena a = create_small(), b;
    struct helm_err err = {0};
    assert_int_equal(arena_attach(dup(a.fd), &b, &err), 0);
    assert_true(a.base != b.base && a.bytes == b.bytes);
    assert_int_equal((uintptr_t)a.base % ARENA_HUGE_PAGE, 0);
    assert_int_equal((uintptr_t)b.base % ARENA_HUGE_PAGE, 0);
    assert_memory_equal(arena_header_of(&a), arena_header_of(&b), sizeof(struct arena_header));
    assert_int_equal(arena_header_of(&b)->magic, ARENA_MAGIC);

    arena_history_of(&a, 2)[999] = 4242;
    arena_page_table_of(&a, 2)[31] = 95;
    arena_slot_of(&a, 2)->prompt_count = 7;
    arena_logits_of(&a, 2)[1000] = 1.5f;
    arena_lane_of(&a, 1)->data[33 * 127 - 1] = 2.5f;
    doorbell_ring(&arena_control_of(&a)->step_bell, 3);
    assert_int_equal(arena_history_of(&b, 2)[999], 4242);
    assert_int_equal(arena_page_table_of(&b, 2)[31], 95);
    assert_int_equal(arena_slot_of(&b, 2)->prompt_count, 7);
    assert_true(arena_logits_of(&b, 2)[1000] == 1.5f);
    assert_true(arena_lane_of(&b, 1)->data[33 * 127 - 1] == 2.5f);
    assert_int_equal(doorbell_read(&arena_control_of(&b)->step_bell), 3);
    assert_int_equal(doorbell_read(&arena_control_of(&b)->done[ARENA_WORKERS_MAX - 1].bell), 0);
    arena_close(&b);
    arena_history_of(&a, 0)[0] = 1; /* still mapped on this side */
    arena_close(&a);
    arena_close(&a);
    assert_int_equal(a.fd, -1);
}

static void the_file_is_sealed_and_private(void **state)
{
    (void)state;
    struct arena a = create_small();
    assert_int_equal(ftruncate(a.fd, 4096), -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(ftruncate(a.fd, (off_t)(2 * a.bytes)), -1);
    assert_int_equal(fcntl(a.fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), -1);
    assert_true(fcntl(a.fd, F_GETFD) & FD_CLOEXEC);
    arena_close(&a);
}

static void closing_an_unused_struct_spares_standard_input(void **state)
{
    (void)state;
    struct arena never = {0};
    int had = fcntl(0, F_GETFD);
    arena_close(&never);
    assert_int_equal(fcntl(0, F_GETFD), had);
}

/* Everything in the header that a hostile or older helmd could have put there. */
static void mismatched_headers_are_refused(void **state)
{
    (void)state;
    struct arena a = create_small();
    const struct arena_header good = *arena_header_of(&a);
    const struct {
        size_t at, size;
        uint64_t value;
        int code;
        const char *name;
    } cases[] = {
        {offsetof(struct arena_header, magic), 4, 0, HELM_E_FORMAT, "magic"},
        {offsetof(struct arena_header, abi), 4, ARENA_ABI + 1, HELM_E_MISMATCH, "ABI"},
        {offsetof(struct arena_header, total_bytes), 8, good.total_bytes + 4096, HELM_E_MISMATCH, "file has"},
        {offsetof(struct arena_header, total_bytes), 8, 0, HELM_E_MISMATCH, "file has"},
        {offsetof(struct arena_header, slots), 4, 0, HELM_E_LIMIT, "slots"},
        {offsetof(struct arena_header, slots), 4, 4, HELM_E_MISMATCH, "region slots"},
        {offsetof(struct arena_header, context_tokens), 4, 2000, HELM_E_MISMATCH, "pages_per_slot"},
        {offsetof(struct arena_header, context_tokens), 4, 1001, HELM_E_MISMATCH, "region history"},
        {offsetof(struct arena_header, step_tokens), 4, 1u << 20, HELM_E_MISMATCH, "region lanes"},
        {offsetof(struct arena_header, pages_per_slot), 4, 33, HELM_E_MISMATCH, "pages_per_slot"},
        {offsetof(struct arena_header, page_count), 4, 97, HELM_E_MISMATCH, "region kv"},
        {offsetof(struct arena_header, hidden), 4, UINT32_MAX, HELM_E_LIMIT, "hidden"},
        {offsetof(struct arena_header, vocab), 4, 1002, HELM_E_MISMATCH, "region logits"},
        {offsetof(struct arena_header, lanes), 4, 3, HELM_E_MISMATCH, "region lanes"},
        {offsetof(struct arena_header, kv.head_dim), 4, 128, HELM_E_MISMATCH, "region kv"},
        {offsetof(struct arena_header, kv.kv_heads), 4, 1u << 31, HELM_E_LIMIT, "kv.kv_heads"},
        {offsetof(struct arena_header, kv.dtype), 4, KV_Q8_0, HELM_E_UNSUPPORTED, "kv.head_dim is 80"},
        {offsetof(struct arena_header, region[ARENA_REGION_CONTROL].offset), 8, 0, HELM_E_MISMATCH,
         "region control"},
        {offsetof(struct arena_header, region[ARENA_REGION_SLOTS].offset), 8,
         good.region[ARENA_REGION_SLOTS].offset + 1, HELM_E_MISMATCH, "region slots"},
        {offsetof(struct arena_header, region[ARENA_REGION_KV].offset), 8, UINT64_MAX - 4096, HELM_E_LIMIT,
         "region kv"},
        {offsetof(struct arena_header, region[ARENA_REGION_KV].offset), 8,
         good.region[ARENA_REGION_CONTROL].offset, HELM_E_MISMATCH, "region kv"},
        {offsetof(struct arena_header, region[ARENA_REGION_LOGITS].bytes), 8, UINT64_MAX, HELM_E_LIMIT,
         "region logits"},
        {offsetof(struct arena_header, region[ARENA_REGION_WEIGHTS].bytes), 8, UINT64_MAX, HELM_E_LIMIT,
         "weight_bytes"},
        {offsetof(struct arena_header, region[ARENA_REGION_WEIGHTS].bytes), 8, 64 * MIB, HELM_E_LIMIT,
         "region weights"},
        {offsetof(struct arena_header, region[ARENA_REGION_WEIGHTS].bytes), 8, 0, HELM_E_MISMATCH, "in all"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct arena b;
        struct helm_err err = {0};
        memcpy((char *)a.base + cases[i].at, &cases[i].value, cases[i].size);
        int rc = arena_attach(a.fd, &b, &err);
        *arena_header_of(&a) = good;
        if (rc != cases[i].code || !strstr(err.text, cases[i].name))
            fail_msg("case %zu: code %d, %s", i, rc, err.text);
        assert_null(b.base);
    }
    arena_close(&a);
}

/* A memfd of the arena's size and contents with the given seals. */
static int copy_of(const struct arena *arena, int seals)
{
    int fd = memfd_create("copy", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)arena->bytes), 0);
    assert_int_equal(pwrite(fd, arena->base, 4096, 0), 4096);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void other_descriptors_are_refused(void **state)
{
    (void)state;
    struct arena a = create_small(), b;
    const int all = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    const int bad_seals[] = {F_SEAL_GROW | F_SEAL_SEAL, F_SEAL_SHRINK | F_SEAL_SEAL,
                             F_SEAL_SHRINK | F_SEAL_GROW, all | F_SEAL_WRITE};
    for (size_t i = 0; i < sizeof bad_seals / sizeof *bad_seals; i++) {
        struct helm_err err = {0};
        int fd = copy_of(&a, bad_seals[i]);
        assert_int_equal(arena_attach(fd, &b, &err), HELM_E_FORMAT);
        assert_non_null(strstr(err.text, "sealed"));
        close(fd);
    }
    struct helm_err err = {0};
    int ends[2], null_fd = open("/dev/null", O_RDWR | O_CLOEXEC), empty = memfd_create("empty", MFD_CLOEXEC);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(arena_attach(ends[0], &b, &err), HELM_E_FORMAT);
    assert_int_equal(arena_attach(null_fd, &b, &err), HELM_E_FORMAT);
    assert_int_equal(arena_attach(empty, &b, &err), HELM_E_FORMAT);
    assert_int_equal(arena_attach(-1, &b, &err), HELM_E_IO);
    assert_int_equal(arena_attach(12345, &b, &err), HELM_E_IO);
    close(ends[0]), close(ends[1]), close(null_fd), close(empty);

    int fd = copy_of(&a, all); /* and the good one is taken */
    assert_int_equal(arena_attach(fd, &b, &err), 0);
    arena_close(&b);
    arena_close(&a);
}

static void populating_keeps_contents_and_counts_every_byte(void **state)
{
    (void)state;
    struct arena a = create_small();
    struct arena_region region = arena_header_of(&a)->region[ARENA_REGION_WEIGHTS];
    unsigned char *weights = arena_region_ptr(&a, ARENA_REGION_WEIGHTS);
    for (uint64_t i = 0; i < region.bytes; i += 4093) weights[i] = (unsigned char)(i * 7 + 1);
    uint64_t huge = 0, small = 0;
    arena_populate(&a, region.offset, region.bytes, &huge, &small);
    assert_int_equal(huge + small, region.bytes);
    assert_int_equal(huge % ARENA_HUGE_PAGE, 0);
    assert_true(small >= region.bytes % ARENA_HUGE_PAGE); /* the last, partial extent */
    for (uint64_t i = 0; i < region.bytes; i += 4093)
        assert_int_equal(weights[i], (unsigned char)(i * 7 + 1));
    print_message("           huge %llu, small %llu bytes\n", (unsigned long long)huge,
                  (unsigned long long)small);

    uint64_t again_huge = 0, again_small = 0; /* the counts add up, also over odd pieces */
    arena_populate(&a, region.offset, region.bytes, &again_huge, &again_small);
    assert_int_equal(again_huge, huge);
    huge = small = 0;
    arena_populate(&a, region.offset + 100, 5, &huge, &small);
    assert_int_equal(huge, 0);
    assert_int_equal(small, 5);
    arena_populate(&a, region.offset + 4096, ARENA_HUGE_PAGE, &huge, &small);
    assert_int_equal(huge + small, 5 + ARENA_HUGE_PAGE);

    huge = small = 0; /* never past the end */
    arena_populate(&a, a.bytes - 4096, UINT64_MAX, &huge, &small);
    assert_int_equal(huge + small, 4096);
    arena_populate(&a, a.bytes + 1, 1, &huge, &small);
    arena_populate(&a, 0, 0, &huge, &small);
    assert_int_equal(huge + small, 4096);
    arena_close(&a);
}

static void binding_is_checked(void **state)
{
    (void)state;
    struct arena a = create_small();
    struct arena_region region = arena_header_of(&a)->region[ARENA_REGION_KV];
    struct helm_err err = {0};
    int node = -1;
    if (arena_bind(&a, region.offset, region.bytes, 0, &err)) fail_msg("%s", err.text);
    uint64_t huge = 0, small = 0;
    arena_populate(&a, region.offset, region.bytes, &huge, &small);
    if (arena_node_of(&a, region.offset, &node, &err)) fail_msg("%s", err.text);
    assert_int_equal(node, 0);
    assert_int_equal(arena_bind(&a, region.offset, 0, 0, &err), 0);

    static const int no_nodes[] = {-1, 1023, 1024, 1 << 30};
    for (size_t i = 0; i < sizeof no_nodes / sizeof *no_nodes; i++) {
        struct helm_err bad = {0};
        assert_true(arena_bind(&a, region.offset, region.bytes, no_nodes[i], &bad) < 0);
        assert_non_null(strstr(bad.text, "node"));
    }
    assert_int_equal(arena_bind(&a, region.offset + 8, 4096, 0, &err), HELM_E_LIMIT);
    assert_int_equal(arena_bind(&a, region.offset, UINT64_MAX, 0, &err), HELM_E_LIMIT);
    assert_int_equal(arena_bind(&a, a.bytes + 4096, 0, 0, &err), HELM_E_LIMIT);
    assert_int_equal(arena_node_of(&a, a.bytes, &node, &err), HELM_E_LIMIT);
    assert_int_equal(node, -1);
    arena_close(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(regions_are_aligned_apart_and_large_enough),
        cmocka_unit_test(bad_sizes_are_named),
        cmocka_unit_test(every_link_has_lanes_of_its_own),
        cmocka_unit_test(both_sides_see_the_same_memory),
        cmocka_unit_test(the_file_is_sealed_and_private),
        cmocka_unit_test(closing_an_unused_struct_spares_standard_input),
        cmocka_unit_test(mismatched_headers_are_refused),
        cmocka_unit_test(other_descriptors_are_refused),
        cmocka_unit_test(populating_keeps_contents_and_counts_every_byte),
        cmocka_unit_test(binding_is_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
