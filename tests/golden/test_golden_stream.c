/* Golden runs with streamed weights: rings from two slices to more than the model, stages that alternate
 * inside layers, prefill lists that compute on the GPU what decode computes on the CPU, borrowed caches,
 * chunks of several sub-chunks. Both engines run as threads over one arena (letter_plans.h). Checked: tokens
 * and logprobs against the reference; the same bits in a second run, with every ring, with weights in VRAM.
 * Whatever is held to another plan's bits runs once. HELM_TEST_DEVICE=cuda as in test_golden_split.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/golden/courses.h"
#include "tests/golden/letter_plans.h"

/* Splits and alternations that end inside a layer, without a ring. */
static void half_layers_are_split(void **state)
{
    (void)state;
    need_device();
    static const char *const plans[] = {"gcccgccc", "gcgcgcgc", "cgcgcgcg",
                                        "gggccccc", "cccccggg", "cggccggc"};
    for (size_t i = !all_plans(); i < sizeof plans / sizeof *plans; i += all_plans() ? 1 : 3) {
        const struct case_plan c = {.decode = plans[i], .kv_dtype = KV_F16, .ends_apart = i % 2};
        run_plan("tests/data/golden/qwen3", &c,
                 i == 1   ? ALONE | TOGETHER | GREEDY | TWICE
                 : i == 4 ? TOGETHER
                          : TOGETHER | ONCE,
                 i == 1 ? 300 : 140);
    }
    const struct case_plan bias = {.decode = "gcgcgcgc", .kv_dtype = KV_BF16};
    run_plan("tests/data/golden/qwen2-bias", &bias, ALONE | ODD | TOGETHER, 140);
}

/* Everything through the ring, whatever its size: the same bits as with everything in VRAM. */
static void every_ring_gives_the_same_bits(void **state)
{
    (void)state;
    need_device();
    static const char *const models[] = {"tests/data/golden/qwen3", "tests/data/golden/qwen2-bias",
                                         "tests/data/golden/llama3-ropescaled"};
    static const uint64_t rings[] = {RING_TWO, 64 * KIB, RING_SOME, 2 * MIB, RING_ALL};
    for (size_t m = 0; m < (all_plans() ? 3 : 1); m++) {
        const size_t next = m ? 3 : all_plans() ? 1 : FEW_PLANS ? 4 : 2;
        const struct case_plan resident = {.decode = "gggggggg", .kv_dtype = KV_F16, .by_kernels = true};
        uint64_t expected = run_plan(models[m], &resident, TOGETHER | ONCE, 300);
        for (size_t r = 0; r < sizeof rings / sizeof *rings; r += next) {
            const struct case_plan c = {.decode = "ssssssss", .ring = rings[r], .kv_dtype = KV_F16};
            assert_true(run_plan(models[m], &c, r == 2 ? TOGETHER : TOGETHER | ONCE, 300) == expected);
        }
    }
    /* Copies that come late are waited for, by every tier and from one phase to the next. */
    struct case_plan slow = {
        .decode = "ssgsssss", .prefill = {"ssgsssss"}, .from = {30}, .ring = RING_SOME, .kv_dtype = KV_F16};
    uint64_t expected = run_plan("tests/data/golden/qwen3", &slow, TOGETHER, 33);
    for (int i = 0; i < (FEW_PLANS ? 1 : 3); i++) {
        slow.copy_bytes_per_s = i < 2 ? 400 * MIB : 0;
        slow.no_graphs = i > 0;
        assert_true(run_plan("tests/data/golden/qwen3", &slow, TOGETHER | ONCE, 33) == expected);
    }
    const struct case_plan anew = {.decode = "ssssssss",
                                   .ring = RING_SOME,
                                   .kv_dtype = KV_F16,
                                   .no_graphs = true};
    const struct case_plan graphs = {.decode = "ssssssss", .ring = RING_SOME, .kv_dtype = KV_F16};
    const unsigned modes = FEW_PLANS ? TOGETHER : ALONE | GREEDY | TOGETHER | ONCE;
    assert_true(run_plan("tests/data/golden/qwen3", &anew, modes, 140) ==
                run_plan("tests/data/golden/qwen3", &graphs, modes, 140));
}

/* A plan whose weights cross the link packed against the same one with plain ones. Sanitized runs have the
 * packed one alone: its memory is what is new. */
static void packed_and_plain(const char *model, const struct case_plan *plain, unsigned modes,
                             uint32_t longest)
{
    struct case_plan c = *plain;
    c.pack = true;
    uint64_t packed = run_plan(model, &c, modes, longest);
    if (!FEW_PLANS) assert_true(run_plan(model, plain, modes, longest) == packed);
}

/* Weights that crossed the link packed are the same weights: the same bits, whatever the ring, the tier, the
 * phase and the list, beside units that are not packed. */
static void packed_weights_give_the_same_bits(void **state)
{
    (void)state;
    need_device();
    static const struct case_plan plans[] = {
        {.decode = "ssssssss", .ring = RING_TWO + 512, .kv_dtype = KV_F16},
        {.decode = "ssssssss", .ring = 64 * KIB, .kv_dtype = KV_F16},
        {.decode = "ssssssss", .ring = RING_SOME, .kv_dtype = KV_F16, .no_graphs = true},
        {.decode = "ssssssss", .ring = RING_ALL, .kv_dtype = KV_F16},
        {.decode = "ssgsssss",
         .prefill = {"ssgsssss"},
         .from = {30},
         .ring = RING_SOME,
         .kv_dtype = KV_F16,
         .copy_bytes_per_s = 400 * MIB},
        {.decode = "csgcscgs", /* of the streamed ones the first is the CPU's for short prompts */
         .prefill = {"ccgsscgs", "ssgsssgs"},
         .from = {17, 100},
         .ring = RING_SOME,
         .kv_dtype = KV_F16},
        {.decode = "ssssssss", .ring = RING_SOME, .kv_dtype = KV_F16, .step_tokens = 1088},
    };
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i += FEW_PLANS ? 3 : 1) {
        /* the second's ring lies between its neighbours', the third is below of another model, packed_at_home
         * has the last's chunks */
        if ((i == 1 || i == 2 || i == 6) && !all_plans()) continue;
        const unsigned modes =
            i == 3 && !FEW_PLANS ? ALONE | ODD | TOGETHER | GREEDY | ONCE : TOGETHER | ONCE;
        const uint32_t longest = i == 6 ? UINT32_MAX : i < 2 ? 33 : 120;
        packed_and_plain("tests/data/golden/qwen3", &plans[i], modes, longest);
    }
    static const char *const models[] = {"tests/data/golden/qwen2-bias",
                                         "tests/data/golden/llama3-ropescaled"};
    for (size_t m = 0; m < (FEW_PLANS ? 0 : all_plans() ? 2 : 1); m++) {
        packed_and_plain(models[m], &plans[2], TOGETHER | ONCE, 140);
    }
}

/* Weights at home in VRAM that lie packed there give the same bits as plain ones: whole products of one
 * token, slices that are expanded otherwise; some of them and all; beside streamed ones that are expanded to
 * the same place. */
static void packed_at_home_gives_the_same_bits(void **state)
{
    (void)state;
    need_device();
    static const struct case_plan plans[] = {
        {.decode = "gggggggg", .pack_gpu = 8, .kv_dtype = KV_F16},
        {.decode = "gsggsggc", .pack_gpu = 3, .ring = RING_SOME, .kv_dtype = KV_F16, .pack = true},
        {.decode = "ccgggggg", .pack_gpu = 5, .kv_dtype = KV_F16, .no_graphs = true},
        {.decode = "gsgsgsgs",
         .prefill = {"gsgsgsgs"},
         .from = {17},
         .pack_gpu = 4,
         .ring = RING_TWO + 512,
         .kv_dtype = KV_F16,
         .pack = true,
         .step_tokens = 1088},
    };
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i += FEW_PLANS ? 3 : 1) {
        if (i == 2 && !all_plans()) continue; /* graphs are the same to all */
        const unsigned modes = i == 0 ? TOGETHER | GREEDY | ONCE : TOGETHER | ONCE;
        const uint32_t longest = i == 3 ? UINT32_MAX : 60;
        struct case_plan c = plans[i];
        c.by_kernels = true; /* chains of what is plain add in another order */
        uint64_t packed = run_plan("tests/data/golden/qwen3", &c, modes, longest);
        c.pack_gpu = 0;
        if (!FEW_PLANS) assert_true(run_plan("tests/data/golden/qwen3", &c, modes, longest) == packed);
    }
    if (FEW_PLANS) return;
    /* its head is also its embedding, which is the CPU's then */
    struct case_plan bias = {.decode = "cgggcggg", .pack_gpu = 6, .kv_dtype = KV_F16, .by_kernels = true};
    uint64_t packed = run_plan("tests/data/golden/qwen2-bias", &bias, TOGETHER, 140);
    bias.pack_gpu = 0;
    assert_true(run_plan("tests/data/golden/qwen2-bias", &bias, TOGETHER | ONCE, 140) == packed);
}

/* Bytes that cross the link in a decode step, the second from the same state on, and the time it takes. */
static uint64_t decode_link_bytes(const struct case_plan *c, uint64_t *weights, double *seconds)
{
    struct pair *pair = calloc(1, sizeof *pair);
    struct helm_err err = {0};
    const struct step_result *result;
    uint64_t bytes = 0;
    open_pair("tests/data/golden/qwen3", c, pair, vram_of_device(), 0);
    for (uint32_t i = 0; i < 8; i++) arena_history_of(&pair->arena, 0)[i] = 3 + i;
    struct device *device = ((struct gpu_engine *)pair->server[PAIR_GPU].engine)->device;
    uint64_t before, after;
    *seconds = 1e9;
    for (uint32_t i = 0; i < 8; i++) {
        const struct step_row row = {.slot = 0, .start = i, .count = 1, .flags = STEP_ROW_SAMPLE};
        uint64_t start_us = units_now_us();
        before = device->copied_bytes[DEVICE_COPY][DEVICE_TO_DEVICE];
        if (pair_step(pair, &row, 1, &result, &err)) fail_msg("%s", err.text);
        double took = (double)(units_now_us() - start_us) * 1e-6;
        if (i && took < *seconds) *seconds = took;
        after = device->copied_bytes[DEVICE_COPY][DEVICE_TO_DEVICE];
        assert_int_equal(pair_times(pair, PAIR_GPU)->link_bytes, after - before);
        if (i)
            assert_true(i == 1 ||
                        bytes == pair_times(pair, PAIR_GPU)->link_bytes); /* every step copies the same */
        bytes = pair_times(pair, PAIR_GPU)->link_bytes;
        *weights = pair_times(pair, PAIR_GPU)->weight_bytes;
    }
    pair_close(pair);
    free(pair);
    return bytes;
}

/* Packed, the same weights are fewer bytes on the link, and a step that waits for it is shorter by so much.
 */
static void packed_weights_are_fewer_bytes(void **state)
{
    (void)state;
    need_device();
    struct case_plan c = {.decode = "ssssssss",
                          .ring = RING_SOME,
                          .kv_dtype = KV_F16,
                          .copy_bytes_per_s = 100 * MIB};
    uint64_t weights[2];
    double seconds[2];
    uint64_t raw = decode_link_bytes(&c, &weights[0], &seconds[0]);
    c.pack = true;
    uint64_t packed = decode_link_bytes(&c, &weights[1], &seconds[1]);
    const bool timed = strcmp(device_name(), "emulated") == 0 && !FEW_PLANS;
    for (int again = 0; timed && seconds[1] >= 0.9 * seconds[0] && again < 5; again++) { /* busy elsewhere? */
        double other;
        packed = decode_link_bytes(&c, &weights[1], &other);
        seconds[1] = other < seconds[1] ? other : seconds[1];
    }
    print_message("%llu bytes a step in %.3f s, packed %llu in %.3f s\n", (unsigned long long)raw, seconds[0],
                  (unsigned long long)packed, seconds[1]);
    assert_int_equal(weights[0], weights[1]); /* the computed bytes are as many */
    assert_true(packed > raw * 6 / 10 && packed < raw * 8 / 10);
    if (timed) assert_true(seconds[1] < 0.9 * seconds[0]);
}

/* Cases together, and in turns those with odd numbers alone or all of them greedily, to their last steps,
 * where once is enough. On a GPU, whose kernels are others, the even ones alone beside the latter, and all of
 * it again. */
static unsigned modes_in_turn(size_t plan)
{
    const bool emulated = strcmp(device_name(), "emulated") == 0;
    return TOGETHER | (plan % 2 ? ALONE | ODD : emulated ? GREEDY | ONCE : ALONE | GREEDY);
}

static void cpu_and_stream_alternate(void **state)
{
    (void)state;
    need_device();
    static const struct case_plan plans[] = {
        {.decode = "cscscscs", .ring = RING_TWO, .kv_dtype = KV_F16},
        {.decode = "ccssccss", .ring = RING_ALL, .kv_dtype = KV_F32},
        {.decode = "scscscsc", .ring = RING_SOME, .kv_dtype = KV_F16, .ends_apart = true},
        {.decode = "gscgscgs", .ring = RING_SOME, .kv_dtype = KV_BF16},
        {.decode = "gsscgccg", .ring = RING_SOME, .kv_dtype = KV_Q8_0},
        {.decode = "cgscsggs", .ring = 100 * KIB, .kv_dtype = KV_F16, .no_graphs = true},
    };
    const size_t next = all_plans() ? 1 : 2;
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i += next)
        run_plan("tests/data/golden/qwen3", &plans[i], FEW_PLANS ? TOGETHER : modes_in_turn(i / next),
                 i == 2 ? UINT32_MAX : 140);
    const struct case_plan demo = {.decode = "csgcsgcsgcsgcsgc", .ring = RING_SOME, .kv_dtype = KV_F16};
    run_plan("tools/models/demo", &demo, TOGETHER, all_plans() ? 300 : 140);
}

/* Prompts are computed by other lists than decode, over the same weights and caches. */
static void prefill_lists_borrow_caches(void **state)
{
    (void)state;
    need_device();
    static const struct case_plan plans[] = {
        {.decode = "cccccccc", .prefill = {"ssssssss"}, .from = {17}, .ring = RING_TWO, .kv_dtype = KV_F16},
        {.decode = "cccccccc",
         .prefill = {"cssscsss"},
         .from = {40},
         .ring = RING_SOME,
         .kv_dtype = KV_F32,
         .ends_apart = true},
        {.decode = "csgcscgc",
         .prefill = {"csgsssgc", "ssgsssgs"},
         .from = {17, 100},
         .ring = RING_SOME,
         .kv_dtype = KV_F16},
        {.decode = "scsccsgg",
         .prefill = {"ssscssgg", "ssssssgg"},
         .from = {20, 60},
         .ring = RING_ALL,
         .kv_dtype = KV_BF16,
         .no_graphs = true},
        {.decode = "cccccccc",
         .prefill = {"cssssscs"},
         .from = {17},
         .ring = RING_SOME,
         .kv_dtype = KV_Q8_0,
         .ends_apart = true},
    };
    const size_t next = all_plans() ? 1 : 2;
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i += next)
        run_plan("tests/data/golden/qwen3", &plans[i],
                 !FEW_PLANS ? modes_in_turn(i / next)
                 : i == 2   ? ALONE | TOGETHER
                            : TOGETHER,
                 i % 2 || (i != 2 && next == 2) ? 300 : UINT32_MAX);
    const struct case_plan bias = {
        .decode = "cgcscgcs", .prefill = {"sgsssgss"}, .from = {17}, .ring = RING_SOME, .kv_dtype = KV_F16};
    run_plan("tests/data/golden/qwen2-bias", &bias, ALONE | ODD | TOGETHER, 300);
}

/* A long chunk once, for its token alone. */
static void one_long_prompt(const struct case_plan *c)
{
    struct golden *golden = calloc(1, sizeof *golden);
    struct pair *pair = calloc(1, sizeof *pair);
    struct helm_err err = {0};
    const struct step_result *result;
    golden_read("tests/data/golden/qwen3", golden);
    open_pair("tests/data/golden/qwen3", c, pair, vram_of_device(), 0);
    for (uint32_t i = 0; i < golden->count; i++) {
        const struct golden_case *one = &golden->cases[i];
        if (one->prompt_count < 2 * 257 || one->prompt_count > 800) continue;
        const struct step_row row = {.slot = 0, .count = one->prompt_count, .flags = STEP_ROW_SAMPLE};
        memcpy(arena_history_of(&pair->arena, 0), one->prompt, one->prompt_count * sizeof(uint32_t));
        if (pair_step(pair, &row, 1, &result, &err)) fail_msg("%s", err.text);
        assert_true(one->step[0].gap <= rounded.gap || result->row[0].sampled.token == one->step[0].token);
    }
    pair_close(pair);
    free(pair);
    golden_free(golden);
    free(golden);
}

/* A prompt in one chunk of several sub-chunks: each weight crosses the link once, and nothing else changes.
 */
static void long_chunks_are_cut_inside(void **state)
{
    (void)state;
    need_device();
    const struct case_plan whole = {.decode = "gggggggg",
                                    .kv_dtype = KV_F16,
                                    .step_tokens = 1088,
                                    .by_kernels = true};
    const struct case_plan streamed = {.decode = "ssssssss",
                                       .ring = RING_SOME,
                                       .kv_dtype = KV_F16,
                                       .step_tokens = 1088};
    const struct case_plan borrowed = {.decode = "cscgcccs",
                                       .prefill = {"cscgsscs", "sssgssss"},
                                       .from = {17, 600},
                                       .ring = 100 * KIB,
                                       .kv_dtype = KV_F16,
                                       .step_tokens = 1500};
    if (FEW_PLANS) { /* the one test whose prompts must be long */
        one_long_prompt(&streamed);
        return;
    }
    uint64_t expected =
        run_plan("tests/data/golden/qwen3", &whole, ALONE | ODD | TOGETHER | ONCE, UINT32_MAX);
    assert_true(run_plan("tests/data/golden/qwen3", &streamed, ALONE | ODD | TOGETHER | ONCE, UINT32_MAX) ==
                expected);
    run_plan("tests/data/golden/qwen3", &borrowed, ALONE | TOGETHER, UINT32_MAX);
    if (all_plans())
        run_plan("tests/data/golden/llama3-ropescaled", &borrowed, ALONE | ODD | TOGETHER, UINT32_MAX);
}

/* A step's own counts: bytes over the link, and how they get fewer as the ring holds more. */
static void times_count_what_crosses_the_link(void **state)
{
    (void)state;
    need_device();
    struct helm_err err = {0};
    const struct step_result *result;
    uint64_t link[2], weights = 0;
    static const uint64_t rings[2] = {RING_SOME, RING_ALL};
    for (int r = 0; r < 2; r++) {
        const struct case_plan c = {.decode = "ssccssgg",
                                    .prefill = {"ssssssgg"},
                                    .from = {17},
                                    .ring = rings[r],
                                    .kv_dtype = KV_F16};
        struct pair *pair = calloc(1, sizeof *pair);
        open_pair("tests/data/golden/qwen3", &c, pair, vram_of_device(), 0);
        for (uint32_t i = 0; i < 100; i++) arena_history_of(&pair->arena, 0)[i] = 3 + i;
        const struct step_row prompt = {.slot = 0, .start = 0, .count = 40, .flags = STEP_ROW_SAMPLE};
        const struct step_row more = {.slot = 0, .start = 40, .count = 30, .flags = STEP_ROW_SAMPLE};
        const struct step_row next = {.slot = 0, .start = 70, .count = 1, .flags = STEP_ROW_SAMPLE};
        const uint64_t page = kv_layer_bytes(&arena_header_of(&pair->arena)->kv);
        if (pair_step(pair, &prompt, 1, &result, &err)) fail_msg("%s", err.text);
        uint64_t first = pair_times(pair, PAIR_GPU)->link_bytes; /* two pages back from layer 1, none came */
        if (pair_step(pair, &more, 1, &result, &err)) fail_msg("%s", err.text);
        /* positions 0 to 39 are in two pages, those 40 to 69 in pages 1 and 2 */
        assert_int_equal(pair_times(pair, PAIR_GPU)->link_bytes, first + 2 * page);
        if (pair_step(pair, &next, 1, &result, &err)) fail_msg("%s", err.text);
        link[r] = pair_times(pair, PAIR_GPU)->link_bytes;
        if (r) assert_int_equal(weights, pair_times(pair, PAIR_GPU)->weight_bytes);
        weights = pair_times(pair, PAIR_GPU)->weight_bytes;
        assert_true(pair_times(pair, PAIR_GPU)->busy_ns > 0);
        pair_close(pair);
        free(pair);
    }
    assert_true(link[0] > 0 && link[0] < weights);
    assert_int_equal(link[1], 0); /* all of it stays in the ring */
}

/* The bytes of the first `positions` cells of the slot's sequence in the host's pool, in order. */
static size_t host_cells(struct pair *pair, uint32_t slot, uint32_t positions, unsigned char *to)
{
    const struct kv_layout *kv = &arena_header_of(&pair->arena)->kv;
    const unsigned char *pool = arena_region_ptr(&pair->arena, ARENA_REGION_KV);
    const size_t numbers = kv_number_bytes(kv->dtype, kv->head_dim),
                 scales = kv_scale_bytes(kv->dtype, kv->head_dim);
    size_t at = 0;
    for (uint32_t p = 0; p < positions; p++)
        for (uint32_t head = 0; head < 2 * kv->layers * kv->kv_heads; head++) {
            const uint32_t page = arena_page_table_of(&pair->arena, slot)[p / kv->page_tokens],
                           token = p % kv->page_tokens;
            const unsigned char *rows = pool + page * kv_page_bytes(kv) + head * kv_head_bytes(kv);
            memcpy(to + at, rows + token * numbers, numbers);
            memcpy(to + at + numbers, rows + kv_scales_at(kv) + token * scales, scales);
            at += numbers + scales;
        }
    return at;
}

/* A page that goes to the GPU and comes back with more cells has the old ones bit for bit. */
static void borrowed_pages_keep_their_cells(void **state)
{
    (void)state;
    need_device();
    struct helm_err err = {0};
    const struct step_result *result;
    for (int d = 0; d < KV_DTYPE_COUNT; d++) {
        const struct case_plan c = {.decode = "ccccccgg",
                                    .prefill = {"csssscgg"},
                                    .from = {17},
                                    .ring = RING_SOME,
                                    .kv_dtype = (enum kv_dtype)d};
        struct pair *pair = calloc(1, sizeof *pair);
        open_pair("tests/data/golden/qwen3", &c, pair, vram_of_device(), 0);
        for (uint32_t i = 0; i < 100; i++) arena_history_of(&pair->arena, 0)[i] = 3 + i;
        static const struct step_row rows[] = {
            {.slot = 0,
             .start = 0,
             .count = 40}, /* borrowed, then appended to where they lie, then borrowed */
            {.slot = 0, .start = 40, .count = 3},
            {.slot = 0, .start = 43, .count = 30, .flags = STEP_ROW_SAMPLE}};
        const size_t room = 128 * kv_page_bytes(&arena_header_of(&pair->arena)->kv);
        unsigned char *before = calloc(1, room), *after = calloc(1, room);
        for (int i = 0; i < 3; i++) {
            const size_t bytes = host_cells(pair, 0, rows[i].start, before);
            if (pair_step(pair, &rows[i], 1, &result, &err)) fail_msg("%s", err.text);
            assert_int_equal(host_cells(pair, 0, rows[i].start, after), bytes);
            assert_memory_equal(before, after, bytes);
            assert_true(i == 1 || pair_times(pair, PAIR_GPU)->link_bytes > 0);
        }
        assert_int_equal(result->row[0].status, STEP_ROW_OK);
        free(before);
        free(after);
        pair_close(pair);
        free(pair);
    }
}

/* Between two chunks of one prompt the ring is not filled for a decode step that does not come; what such a
 * step needs is there when it comes, and so are the tokens. */
static void chunks_of_a_prompt_leave_the_ring_alone(void **state)
{
    (void)state;
    need_device();
    struct helm_err err = {0};
    const struct step_result *result;
    const struct case_plan c = {
        .decode = "ccssccgg", .prefill = {"ssssssgg"}, .from = {17}, .ring = RING_ALL, .kv_dtype = KV_F16};
    struct pair *pair = calloc(1, sizeof *pair);
    open_pair("tests/data/golden/qwen3", &c, pair, vram_of_device(), 0);
    for (uint32_t i = 0; i < 200; i++)
        arena_history_of(&pair->arena, 0)[i] = arena_history_of(&pair->arena, 1)[i] = 3 + i;
    const uint64_t page = kv_layer_bytes(&arena_header_of(&pair->arena)->kv);
    const struct step_row rows[] = {{.slot = 0, .start = 0, .count = 64},
                                    {.slot = 0, .start = 64, .count = 64},
                                    {.slot = 0, .start = 128, .count = 10},
                                    {.slot = 0, .start = 138, .count = 40, .flags = STEP_ROW_SAMPLE},
                                    {.slot = 0, .start = 178, .count = 1, .flags = STEP_ROW_SAMPLE}};
    uint64_t link[5], weights[5];
    for (int i = 0; i < 5; i++) {
        if (pair_step(pair, &rows[i], 1, &result, &err)) fail_msg("%s", err.text);
        link[i] = pair_times(pair, PAIR_GPU)->link_bytes;
        weights[i] = pair_times(pair, PAIR_GPU)->weight_bytes;
    }
    /* The first two: six streamed halves each, and of two borrowed layers two pages in and out. */
    assert_int_equal(link[1], link[0] + 2 * 2 * page);
    /* The third is of decode's list: it needs two halves, which are missing, and leaves them there. */
    uint64_t halves = link[2];
    assert_true(halves > 0 && halves < weights[2]);
    assert_int_equal(link[0], weights[0] - (weights[2] - halves) + 2 * 2 * page); /* no prefix after it */
    /* The fourth ends the prompt and fills the ring for the fifth. */
    assert_true(link[3] > link[1] && link[3] - link[1] >= halves);
    assert_int_equal(link[4], 0);
    uint32_t token = result->row[0].sampled.token;
    /* The same in chunks that decode's list takes. */
    for (uint32_t at = 0; at < 179; at += 16) {
        const struct step_row row = {.slot = 1,
                                     .start = at,
                                     .count = 179 - at < 16 ? 179 - at : 16,
                                     .flags = STEP_ROW_SAMPLE};
        if (pair_step(pair, &row, 1, &result, &err)) fail_msg("%s", err.text);
        assert_int_equal(pair_times(pair, PAIR_GPU)->link_bytes, 0);
    }
    assert_int_equal(result->row[0].sampled.token, token);
    pair_close(pair);
    free(pair);
    /* Prompts of many chunks, beside rows that decode, over a link that is late. */
    const struct case_plan slow = {.decode = "ccsccsgg",
                                   .prefill = {"cssscsgg", "ssssssgg"},
                                   .from = {17, 30},
                                   .ring = RING_SOME,
                                   .kv_dtype = KV_F16,
                                   .step_tokens = 36,
                                   .copy_bytes_per_s = 400 * MIB};
    for (int i = 0; i < (all_plans() ? 2 : 1); i++) {
        struct case_plan one = slow;
        one.no_graphs = i == 1;
        run_plan("tests/data/golden/qwen3", &one, ALONE | (i ? ODD : 0) | TOGETHER, 140);
    }
}

/* The ring is part of what a plan needs, and a plan that cannot be run is refused with the reason. */
static void what_cannot_be_run_is_refused(void **state)
{
    (void)state;
    need_device();
    struct pair *pair = calloc(1, sizeof *pair);
    struct case_plan c = {
        .decode = "csccsscc", .prefill = {"ssssssss"}, .from = {17}, .ring = 8 * MIB, .kv_dtype = KV_F16};
    open_pair("tests/data/golden/qwen3", &c, pair, vram_of_device(), 0);
    const struct ledger vram = pair->server[PAIR_GPU].engine->report.vram;
    uint64_t ring = 0;
    for (uint32_t i = 0; i < vram.line_count; i++)
        if (strcmp(vram.line[i].what, "ring") == 0) ring = vram.line[i].bytes;
    assert_int_equal(ring, 8 * MIB);
    pair_close(pair);
    open_pair("tests/data/golden/qwen3", &c, pair, vram.total, 0);
    pair_close(pair);
    open_pair("tests/data/golden/qwen3", &c, pair, vram.total - 4 * MIB, HELM_E_CAPACITY);
    c.ring = 8 * KIB; /* no 16 rows of gate and up */
    open_pair("tests/data/golden/qwen3", &c, pair, vram_of_device(), HELM_E_CAPACITY);
    c.ring = 8 * MIB;
    c.from[0] = 16;
    open_pair("tests/data/golden/qwen3", &c, pair, vram_of_device(), HELM_E_UNSUPPORTED);
    free(pair);
}

/* Rung after others, steps give the same tokens whichever worker has the embedding, the head and the layers,
 * whether tokens are the device's argmax or drawn, and whatever comes in between. */
static void steps_rung_behind_others_give_the_same_tokens(void **state)
{
    (void)state;
    need_device();
    static const struct case_plan plans[] = {
        {.decode = "cccccccc", .kv_dtype = KV_F16},
        {.decode = "ccggccgg", .kv_dtype = KV_F16},
        {.decode = "ccggccgg", .kv_dtype = KV_F16, .ends_apart = true},
        {.decode = "cgcgcgcg", .kv_dtype = KV_F16, .no_graphs = true},
        {.decode = "gccccccg", .kv_dtype = KV_F16},
        {.decode = "cggggggc", .kv_dtype = KV_F16},
        {.decode = "ssssssss", .ring = RING_SOME, .kv_dtype = KV_F16},
        {.decode = "csgcscgs",
         .prefill = {"ccgsscgs", "ssgsssgs"},
         .from = {17, 100},
         .ring = RING_SOME,
         .kv_dtype = KV_F16,
         .pack = true},
    };
    static const struct course courses[] = {{.rows = 3, .queued = true},
                                            {.rows = 3, .queued = true, .sampled = true},
                                            {.rows = 3, .queued = true, .other_at = 10, .both_at = 20},
                                            {.rows = 3, .queued = true, .sampled = true, .leaves_at = 15}};
    for (size_t p = 0; p < sizeof plans / sizeof *plans; p += all_plans() ? 1 : 2) {
        struct pair *pair = calloc(1, sizeof *pair);
        open_pair("tests/data/golden/qwen3", &plans[p], pair, vram_of_device(), 0);
        for (size_t i = 0; i < sizeof courses / sizeof *courses; i += FEW_PLANS ? 3 : 1) {
            static uint32_t tokens[2][COURSE_SLOTS][COURSE_TOKENS];
            struct course plain = courses[i];
            plain.queued = false;
            memset(tokens, 0, sizeof tokens);
            run_course(pair, &plain, tokens[0]);
            run_course(pair, &courses[i], tokens[1]);
            assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
        }
        for (uint32_t i = 0; i < PLAN_LINKS; i++)
            assert_int_equal(doorbell_read(&arena_lane_of(&pair->arena, i)->bell), 0);
        pair_close(pair);
        free(pair);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_cannot_be_run_is_refused),
        cmocka_unit_test(times_count_what_crosses_the_link),
        cmocka_unit_test(borrowed_pages_keep_their_cells),
        cmocka_unit_test(half_layers_are_split),
        cmocka_unit_test(every_ring_gives_the_same_bits),
        cmocka_unit_test(packed_weights_give_the_same_bits),
        cmocka_unit_test(packed_at_home_gives_the_same_bits),
        cmocka_unit_test(packed_weights_are_fewer_bytes),
        cmocka_unit_test(cpu_and_stream_alternate),
        cmocka_unit_test(prefill_lists_borrow_caches),
        cmocka_unit_test(long_chunks_are_cut_inside),
        cmocka_unit_test(chunks_of_a_prompt_leave_the_ring_alone),
        cmocka_unit_test(steps_rung_behind_others_give_the_same_tokens),
    };
    return cmocka_run_group_tests_name("golden/stream", tests, NULL, NULL);
}
