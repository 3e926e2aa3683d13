/* Unit tests of worker-gpu/program/issue.c: which launches may begin before the one in front has ended. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "worker-gpu/program/program.h"

static uint32_t flags[32], launches;

static int note(struct device *d, const struct op *op, struct helm_err *err)
{
    (void)d, (void)err;
    flags[launches++] = op->flags;
    return 0;
}
static int no_wait(struct device *d, _Atomic uint32_t *word, uint32_t value, struct helm_err *err)
{
    (void)d, (void)word, (void)value, (void)err;
    return 0;
}

static const struct device_ops noting = {.run = note, .word_write = no_wait};
static uint32_t token;
static float memory[24], y[8], z[8];
#define X (memory + 8) /* what most products read */

#define ENTRY(kind_, ...)                                                                                    \
    {                                                                                                        \
        .op = {.kind = kind_, .tokens = 1, __VA_ARGS__ }                                                     \
    }
#define GEMV(from, to)                                                                                       \
    ENTRY(OP_GEMV, .as.linear = {.x = from, .cols = 8, .segments = 1, .segment = {{.out = to, .rows = 8}}})
#define WEIGH(type, what) ENTRY(OP_WEIGH, .as.weigh = {.act = what, .dtype = type, .n = 8})
#define DOWN(chunk, to)                                                                                      \
    ENTRY(OP_EXPERTS_DOWN, .as.experts_down = {.is_chunk = chunk, .few = {.out = to, .down = {.rows = 8}}})
static struct gpu_entry entries[] = {
    ENTRY(OP_READ_BLOCK, .flags = 0),
    ENTRY(OP_EMBED, .flags = 0),
    GEMV(X, y),
    GEMV(y, z),
    GEMV(X, y), /* its x is no result of the one in front */
    ENTRY(OP_CHAIN, .as.chain = {.count = 1}),
    GEMV(X, y),
    WEIGH(DTYPE_F32, z),
    GEMV(X, y), /* its x is not what was weighed */
    WEIGH(DTYPE_F32, X),
    GEMV(X, y),
    WEIGH(DTYPE_F32, X - 4), /* the last four of what was weighed are the first of x */
    GEMV(X, y),
    WEIGH(DTYPE_BF16, z), /* a chunk's: it is not looked at where it lies */
    GEMV(X, y),
    DOWN(false, z),
    GEMV(X, y), /* its x is no sum of the experts in front */
    DOWN(false, X),
    GEMV(X, y),
    DOWN(false, X + 7), /* the last of x is the first of the sums */
    GEMV(X, y),
    DOWN(true, z),
    GEMV(X, y),
    ENTRY(OP_ARGMAX, .as.argmax = {.next = {.token_id = &token}}),
    ENTRY(OP_EMBED, .flags = 0),
    GEMV(X, y),
};

#define LAUNCHES (sizeof entries / sizeof *entries - 1) /* a chain's operation is issued with it */

static void issue_all(bool early_launch, enum gpu_tier tier)
{
    static char block[64];
    static const struct gpu_buffers buffers;
    static const struct plan plan;
    struct device device = {.ops = &noting, .early_launch = early_launch};
    const struct gpu_source source = {.plan = &plan,
                                      .device = &device,
                                      .buffers = &buffers,
                                      .block_host = block};
    const struct gpu_program program = {.tier = tier,
                                        .tokens = 1,
                                        .samples = 1,
                                        .entry = entries,
                                        .count = sizeof entries / sizeof *entries,
                                        .tail = sizeof entries / sizeof *entries};
    const struct gpu_issue issue = {.tokens = 1, .rows = 1, .samples = 1};
    struct helm_err err = {0};
    launches = 0;
    assert_int_equal(gpu_program_issue(&source, &program, &issue, &err), 0);
}

/* No chain does, and no launch after a chain or after one that writes the step block. A product need not wait
 * for a product, a weighing or the experts' sums in front where its x is older. */
static void one_tokens_kernels_begin_early(void **state)
{
    (void)state;
    const uint32_t early = GPUK_EARLY, beside = GPUK_EARLY | GPUK_BESIDE;
    /* a chain's operations are issued with it */
    const uint32_t expected[] = {0,     0,     early, early, beside, 0,     0,      beside, early,
                                 early, early, early, early, early,  early, beside, early,  early,
                                 early, early, early, early, early,  0,     early};
    issue_all(true, GPU_TIER_1);
    assert_int_equal(launches, sizeof expected / sizeof *expected);
    assert_memory_equal(flags, expected, sizeof expected);
}

static void others_do_not(void **state)
{
    (void)state;
    const struct {
        bool early_launch;
        enum gpu_tier tier;
    } cases[] = {{false, GPU_TIER_1}, {true, GPU_TIER_2}, {true, GPU_TIER_16}, {true, GPU_TIER_CHUNK}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        issue_all(cases[c].early_launch, cases[c].tier);
        assert_int_equal(launches, LAUNCHES);
        for (uint32_t i = 0; i < launches; i++) assert_int_equal(flags[i], 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_tokens_kernels_begin_early),
        cmocka_unit_test(others_do_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
