/* The CPU computing with packed weights: the same model under plans that differ in `pack_cpu` alone, whose
 * logits must agree; by the CPU alone, and beside an emulated device that streams, in prompts, what the CPU
 * computes in decode.
 *
 * The golden models have rows that packed kernels do not take, so a small one is made here. Compared are
 * steps of every tier: one token, a few, a chunk, more than a tile; one row and several. One token's reads
 * are checked against the tables of offsets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "tests/golden/packed_local.h"
#include "tests/written_formats.h"
#include "worker-gpu/engine.h"

/* Instrumented, the emulated device takes ten seconds for a plan: the one with all homes and two prefill
 * lists, in rows that the second of them takes (those of more than a tile are the CPU's alone here, and the
 * GPU's in test_golden_home); of the CPU's runs every second. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FIRST_PAIR 2
#define NEXT_LOCAL 2
#define PAIR_MOST  110
#else
#define FIRST_PAIR 0
#define NEXT_LOCAL 1
#define PAIR_MOST  0
#endif

/* Without packed kernels the scalar ones run, 20 times as long: of more tokens than are multiplied at a time
 * once, in the release build. */
#define SCALAR_MOST 110

/* ---- by the CPU alone ---- */

static uint64_t run_local(const char *kernels, bool pack_cpu, uint32_t threads, const struct script *script,
                          float *logits)
{
    struct plan_unit unit[UNITS + 2];
    struct plan plan = {.layers = LAYERS,
                        .unit = units_all(unit, LAYERS, PLAN_HOME_CPU),
                        .step_tokens = STEP_TOKENS};
    write_formats(&plan, &(struct written_formats){.link = true, .cpu = pack_cpu});
    struct runner on = {.most = has_kernels() || (threads > 1 && !PAIR_MOST) ? 0 : SCALAR_MOST};
    struct local *local = run_plan_local(kernels, &plan, threads, script, &on, logits);
    const struct weights *w = &local->engine.weights;
    const struct tensor_matrix *head = weights_matrix(w, TENSOR_HEAD, -1);
    const uint64_t head_bytes = tensor_format_bytes(head->format, head->rows, head->cols);
    assert_int_equal(head->format, FORMAT_BF16);
    assert_int_equal(w->packed_from > 0, pack_cpu);
    uint64_t units = w->matrix_bytes - 2 * head_bytes; /* the embedding is as large */
    if (pack_cpu) {
        assert_int_equal(w->packed_from, units);
        assert_in_range(w->packed_to, units * 66 / 100, units * 76 / 100);
        units = w->packed_to;
        assert_non_null(strstr(local->engine.base.report.kernels, "bf16-packed "));
    } else {
        assert_null(strstr(local->engine.base.report.kernels, "bf16-packed "));
    }
    assert_int_equal(on.one_token_bytes, units + head_bytes);
    close_local(local);
    return on.one_token_bytes;
}

static void packed_and_plain_agree(void **state)
{
    (void)state;
    float *logits[2] = {calloc((size_t)SAMPLES * VOCAB, sizeof(float)),
                        calloc((size_t)SAMPLES * VOCAB, sizeof(float))};
    /* the plain kernels are slow; those of several tokens round their inputs to 16 bits, unless they are
     * those
     */
    static const struct {
        const char *kernels;
        uint32_t threads;
        const struct script *script;
        double allowed;
    } cases[] = {{"ref", 2, &one_token, 1e-4},
                 {NULL, 1, &one_token, 1e-4},
                 {NULL, 3, &one_token, 1e-4},
                 {NULL, 1, &all_tiers, 2e-2},
                 {NULL, 3, &all_tiers, 2e-2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += NEXT_LOCAL) {
        const char *kernels = cases[i].kernels;
        double allowed = cases[i].allowed;
        if (!kernels && !has_kernels()) kernels = "ref";
        uint64_t plain = run_local(kernels, false, cases[i].threads, cases[i].script, logits[0]);
        uint64_t packed = run_local(kernels, true, cases[i].threads, cases[i].script, logits[1]);
        double worst = compare(logits[0], logits[1]);
        print_message(
            "kernels %s, %u threads: worst difference %.2g of the spread; %llu bytes, packed %llu\n",
            kernels ? kernels : "chosen", cases[i].threads, worst, (unsigned long long)plain,
            (unsigned long long)packed);
        assert_true(packed < plain);
        assert_true(worst < allowed);
    }
    free(logits[0]);
    free(logits[1]);
}

static void processors_without_kernels_are_told(void **state)
{
    (void)state;
    struct kernel_set set;
    struct helm_err err = {0};
    char text[256];
    assert_int_equal(kernel_set_choose(0, NULL, KV_F16, &set, &err), 0);
    const unsigned packed = format_bit(FORMAT_BF16_PACKED), plain = format_bit(FORMAT_BF16);
    assert_null(set.linear[LINEAR_EXACT][FORMAT_BF16_PACKED].one);
    assert_int_equal(kernel_set_need(&set, plain, 0, &err), 0);
    assert_int_equal(kernel_set_need(&set, packed, 0, &err), HELM_E_UNSUPPORTED);
    print_message("%s\n", err.text);
    assert_non_null(strstr(err.text, "bf16-packed"));
    assert_non_null(strstr(err.text, "avx512"));
    assert_null(strstr(kernel_set_text(&set, LINEAR_EXACT, plain | packed, text, sizeof text), "packed"));
    assert_int_equal(kernel_set_choose(0, "ref", KV_F16, &set, &err), 0); /* by name the plain one is there */
    assert_int_equal(kernel_set_need(&set, packed, 0, &err), 0);
    assert_non_null(
        strstr(kernel_set_text(&set, LINEAR_EXACT, plain | packed, text, sizeof text), "bf16-packed ref"));
}

/* ---- beside a device ---- */

struct pair_case {
    const char *decode, *prefill[PLAN_PREFILLS_MAX];
    uint32_t from[PLAN_PREFILLS_MAX];
    bool no_graphs;
};

static void run_pair(const struct pair_case *c, bool pack, float *logits, uint64_t *link_bytes)
{
    struct plan_unit unit[UNITS + 2];
    struct helm_err err = {0};
    struct pair *pair = calloc(1, sizeof *pair);
    struct plan plan = {.layers = LAYERS,
                        .unit = units_of_letters(unit, LAYERS, c->decode, UNITS),
                        .device[PLAN_GPU0].ring_bytes = 2 * MIB,
                        .embed = PLAN_CPU0,
                        .head = PLAN_CPU0};
    for (uint32_t p = 0; p < PLAN_PREFILLS_MAX && c->prefill[p]; p++)
        add_letters(&plan, c->from[p], c->prefill[p]);
    write_formats(&plan, &(struct written_formats){.link = pack, .cpu = pack});
    const struct pair_options options = {.folder = folder,
                                         .plan = &plan,
                                         .device = "emulated",
                                         .kernels = has_kernels() ? NULL : "ref",
                                         .kv_dtype = KV_F32,
                                         .threads = 2,
                                         .slots = SLOTS,
                                         .context_tokens = CONTEXT,
                                         .step_tokens = STEP_TOKENS,
                                         .vram_bytes = 256 * MIB,
                                         .peer_wait_ms = 120000,
                                         .copy_rows = true,
                                         .no_graphs = c->no_graphs};
    assert_non_null(pair);
    if (pair_open(&options, pair, &err)) fail_msg("%s: %s", c->decode, err.text);
    struct runner on = {.arena = &pair->arena,
                        .engines = pair,
                        .step = step_pair,
                        .most = has_kernels() ? PAIR_MOST : SCALAR_MOST};
    run_script(&on, &all_tiers, logits);
    struct gpu_engine *gpu = (struct gpu_engine *)pair->server[PAIR_GPU].engine;
    *link_bytes = gpu->device->copied_bytes[DEVICE_COPY][DEVICE_TO_DEVICE];
    assert_int_equal(gpu->expand.bytes > 0, pack);
    const struct ledger *vram = &gpu->base.report.vram;
    assert_true(vram->total <= vram->limit);
    pair_close(pair);
    free(pair);
}

static void plans_of_both_workers_agree(void **state)
{
    (void)state;
    static const struct pair_case cases[] = {
        {.decode = "ccccgggg", .prefill = {"ssssgggg"}, .from = {20}},
        {.decode = "ccsscgcc", .prefill = {"sssssgss"}, .from = {17}},
        {.decode = "cssccgsc", .prefill = {"cssscgss", "sssssgss"}, .from = {17, 100}, .no_graphs = true},
    };
    float *logits[2] = {calloc((size_t)SAMPLES * VOCAB, sizeof(float)),
                        calloc((size_t)SAMPLES * VOCAB, sizeof(float))};
    for (size_t i = FIRST_PAIR; i < sizeof cases / sizeof *cases; i++) {
        const struct pair_case c = cases[i];
        uint64_t link[2];
        run_pair(&c, false, logits[0], &link[0]);
        run_pair(&c, true, logits[1], &link[1]);
        double worst = compare(logits[0], logits[1]);
        print_message("%s %s: worst difference %.2g of the spread; %llu bytes over the link, packed %llu\n",
                      c.decode, c.prefill[0], worst, (unsigned long long)link[0],
                      (unsigned long long)link[1]);
        assert_true(worst < 5e-2); /* inputs of several tokens are rounded to 16 bits on both sides */
        assert_true(link[1] < link[0]);
    }
    free(logits[0]);
    free(logits[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_and_plain_agree),
        cmocka_unit_test(processors_without_kernels_are_told),
        cmocka_unit_test(plans_of_both_workers_agree),
    };
    return cmocka_run_group_tests_name("golden/packed", tests, make_model, remove_model);
}
