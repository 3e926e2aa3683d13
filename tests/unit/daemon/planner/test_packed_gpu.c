/* Unit tests of planning with weights that lie packed in VRAM: what they cost and take there, which plans
 * keep how many of them so, plans from a file. */
#include <math.h>
#include <string.h>
#include <time.h>

#include "common/formats/packed.h"
#include "daemon/observe/forecast.h"
#include "daemon/planner/formats.h"
#include "tests/unit/daemon/planner/packed_case.h"

#define OPERATION 4e-6
#define EXPAND    1e12
#define PACKED    3e12 /* gpu.gemv_packed, where it is known */
/* Instrumented, a plan takes three times as long: few sizes of VRAM, without bounds of time. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define NEXT_SIZE 5
#define TIMES     1
#define MOST      INFINITY /* times as long as without packed weights */
#else
#define NEXT_SIZE 1
#define TIMES     3
#define MOST      4
#endif

/* The 8B shape on an H200's machine, whose GPU reads packed weights. */
static void open_packing(struct bench *b, const struct made_up_shape *shape, uint64_t vram)
{
    open_8b(b, vram);
    if (shape != &shape_8b) {
        made_up_close(&b->made);
        assert_true(made_up_open(&b->made, shape));
    }
    b->profile.gpu.operation = made_up_value(OPERATION);
    b->profile.gpu.expand = made_up_value(EXPAND);
    b->profile.gpu.gemv_packed = made_up_value(PACKED);
    b->r.wish.pack = b->r.wish.pack_gpu = true;
}

static struct cost_table price_step(const struct bench *b, uint32_t tokens, const bool *packed, bool head)
{
    enum tensor_format format[UNITS + 1][PLAN_HOMES];
    const struct cost_step step = {.tokens = tokens,
                                   .rows = tokens <= 16 ? tokens : 1,
                                   .samples = tokens <= 16 ? tokens : 1,
                                   .context = 4096,
                                   .kv_dtype = KV_F16,
                                   .format = format};
    struct cost_table table;
    struct helm_err err = {0};
    for (uint32_t u = 0; u <= UNITS; u++) {
        const bool it = u < UNITS ? packed && packed[u] : head;
        format[u][PLAN_HOME_CPU] = format[u][PLAN_HOME_STREAM] = PLAN_AS_STORED;
        format[u][PLAN_HOME_GPU] = it ? FORMAT_BF16_PACKED : PLAN_AS_STORED;
    }
    if (cost_price(&b->made.model, &b->made.analysed, &b->profile, &step, &table, &err))
        fail_msg("%s", err.text);
    return table;
}

static void repack(const struct bench *b, struct plan *plan, uint32_t units, bool head)
{
    const struct ledger_case c = {&b->made.model, &b->r.wish, &b->r.machine, &b->made.analysed};
    formats_set_vram(&c, units, head, plan);
}

/* One token: the measured rate in the plain one's stead, or a part of expanding; several: all is expanded,
 * slice by slice. Nothing but `gpu` of packed units changes. */
static void packed_units_have_their_prices(void **state)
{
    (void)state;
    struct bench b;
    bool packed[UNITS];
    open_packing(&b, &shape_8b, 8 * GIB);
    for (uint32_t u = 0; u < UNITS; u++) packed[u] = u % 3 == 0;
    for (int way = 0; way < 3; way++) { /* measured; by a part of expanding; expanded */
        if (way) b.profile.gpu.gemv_packed = (struct profile_value){0};
        if (way == 1) {
            b.profile.gpu.chain_gemv = b.profile.gpu.gemv; /* no faster here, and no cheaper to begin */
            b.profile.gpu.chain_attention = b.profile.gpu.attention;
            b.profile.gpu.chain_operation = made_up_value(OPERATION);
        } else {
            b.profile.gpu.chain_gemv = (struct profile_value){0};
        }
        for (uint32_t tokens = 1; tokens <= 4; tokens += 3) {
            struct cost_table raw = price_step(&b, tokens, NULL, false),
                              table = price_step(&b, tokens, packed, true);
            for (uint32_t u = 0; u <= UNITS; u++) {
                const struct cost_unit *a = u < UNITS ? &raw.unit[u] : &raw.head,
                                       *z = u < UNITS ? &table.unit[u] : &table.head;
                close_to(z->cpu, a->cpu);
                assert_int_equal(z->bytes, a->bytes);
                assert_false(a->gpu_packed);
                assert_int_equal(z->gpu_packed, u == UNITS || packed[u]);
                if (u < UNITS) {
                    close_to(z->stream, a->stream);
                    close_to(z->link, a->link);
                    assert_int_equal(z->crossing, a->bytes);
                }
                if (!z->gpu_packed) {
                    close_to(z->gpu, a->gpu);
                    continue;
                }
                /* the head's norm is in a unit's bytes, not in its matrix' */
                double bytes = (double)(u < UNITS ? a->bytes : b.made.analysed.head.stored);
                double slices = ceil(bytes / (32 << 20)), more = slices - (u < UNITS ? 2 : 1);
                double expand = bytes / EXPAND + slices * OPERATION;
                double longer = way ? 0.6 * expand : bytes / PACKED - bytes / 3600e9;
                if (tokens > 1 || way == 2) longer = expand + fmax(0, more) * OPERATION;
                close_to(z->gpu, a->gpu + longer);
            }
            cost_table_free(&raw);
            cost_table_free(&table);
        }
    }
    bench_close(&b);
}

/* Room for a matrix that packs to `part` of its bytes: a little more, and its table, on boundaries. */
static uint64_t room_of(const struct model_tensor *t, double part)
{
    const uint64_t groups = (uint64_t)ceil(part * (double)t->bytes * (1 + PLACEMENT_PACKED_SLACK)),
                   table = packed_offsets_bytes((uint32_t)t->rows);
    return (groups + 255) / 256 * 256 + (table + 255) / 256 * 256;
}

/* Weights that do not fit plain fit packed, in about 0.71 of the bytes, or in what was sampled; small
 * matrices take more. */
static void rooms_are_those_of_packed_matrices(void **state)
{
    (void)state;
    struct bench b;
    static const struct made_up_shape tiny = {2, 64, 128, 4, 2, 16, 300, false};
    for (int small = 0; small < 2; small++) {
        open_packing(&b, small ? &tiny : &shape_8b, 8 * GIB);
        const struct ledger_case c = {&b.made.model, &b.r.wish, &b.r.machine, &b.made.analysed};
        for (uint32_t u = 0; u < 2; u++) {
            const struct analyse_bytes bytes = analyse_units(&b.made.analysed, u, u);
            uint64_t tables = 0, plain = 0;
            for (uint32_t i = 0; i < b.made.model.tensor_count; i++) {
                const struct model_tensor *t = &b.made.tensor[i];
                if (t->layer != 0 || t->rows == 1 || unit_part_of_role(t->role) != unit_part(u)) continue;
                plain += t->bytes;
                tables += (packed_offsets_bytes((uint32_t)t->rows) + 255) / 256 * 256;
            }
            assert_int_equal(bytes.packable, plain);
            double part = (double)(ledger_packed_unit_bytes(&c, u) - tables) / (double)plain;
            if (part < (small ? 0.74 : 0.71 * 1.0045) || part > (small ? 1.1 : 0.71 * 1.0065))
                fail_msg("unit %u of %s comes to %.4f", u, small ? "a tiny model" : "8B", part);
        }
        b.r.wish.parts = (struct packed_parts){0.7, 0.6, 0.5};
        uint64_t rooms[2] = {0, 0};
        for (uint32_t u = 0; u < 2; u++)
            for (uint32_t i = 0; i < b.made.model.unit[u].matrix_count; i++)
                rooms[u] += room_of(b.made.model.unit[u].tensor[i], u ? 0.6 : 0.7);
        assert_int_equal(ledger_packed_unit_bytes(&c, 0), rooms[0]);
        assert_int_equal(ledger_packed_unit_bytes(&c, 1), rooms[1]);
        if (!small) /* 300 rows are no whole groups */
            assert_int_equal(ledger_packed_head_bytes(&c),
                             room_of(model_find(&b.made.model, TENSOR_HEAD, -1), 0.5));
        assert_int_equal(b.made.analysed.packs_head, !small);
        bench_close(&b);
    }
}

static uint32_t units_at(const struct plan *plan, enum plan_home home)
{
    uint32_t count = 0;
    for (uint32_t u = 0; u < unit_count(plan->layers); u++) count += plan->unit[u].home[0] == home;
    return count;
}

/* The ledger has both lines, the room is what its units take, and no unit more could lie plain. */
static void check_packed(struct bench *b, const struct plan *plan)
{
    const struct ledger_case c = {&b->made.model, &b->r.wish, &b->r.machine, &b->made.analysed};
    uint64_t room = packed_head(plan) ? ledger_packed_head_bytes(&c) : 0, last = 0, plain = 0, more;
    bool plain_before = false;
    for (uint32_t u = 0; u < unit_count(plan->layers); u++) {
        const bool there = plan->unit[u].home[0] == PLAN_HOME_GPU,
                   packed = there && plan_unit_format(plan, u) == FORMAT_BF16_PACKED;
        if (!there) continue;
        assert_false(packed && plain_before); /* the first of those that can be */
        plain_before |= !packed && b->made.analysed.packs[u];
        const struct analyse_bytes bytes = analyse_units(&b->made.analysed, u, u);
        if (packed) last = bytes.vram - bytes.vram_vectors - ledger_packed_unit_bytes(&c, u);
        if (packed) room += ledger_packed_unit_bytes(&c, u);
        if (!packed) plain += bytes.vram - bytes.vram_vectors;
    }
    assert_int_equal(placements_in(plan, PLAN_VRAM0).varying, room);
    assert_int_equal(line_of(&plan->memory[PLAN_VRAM0], "packed weights"), room);
    if (plan->head == PLAN_GPU0 && !packed_head(plan)) plain += b->made.analysed.head.vram;
    if (plan->embed == PLAN_GPU0) plain += b->made.analysed.embed.vram;
    more = placement_vectors(&b->made.model, plan, PLAN_GPU0, NULL, NULL);
    assert_int_equal(line_of(&plan->memory[PLAN_VRAM0], "weights"), plain + more);
    assert_in_range(line_of(&plan->memory[PLAN_VRAM0], "expanded"), 32 * MIB, 40 * MIB);
    /* pages of the pool were added with what was left */
    const uint64_t pool = (plan->page_count - ledger_least_pages(&c, plan->context_tokens)) *
                          (uint64_t)plan_layers_of(plan, PLAN_GPU0) * ledger_kv_layer_bytes(&c, 1);
    if (packed_units(plan))
        assert_true(plan->memory[PLAN_VRAM0].total - pool + last > plan->memory[PLAN_VRAM0].limit);
}

/* Bytes of the layers' weights in VRAM, before packing. */
static uint64_t weights_in_vram(const struct bench *b, const struct plan *plan)
{
    return analyse_token_bytes(&b->made.analysed, plan, PLAN_HOME_GPU) -
           (plan->head == PLAN_GPU0 ? b->made.analysed.head.stored : 0);
}

/* The same machine with more and more VRAM: packed plans are faster until all is there plain; they keep as
 * few packed as they must. */
static void plans_pack_what_they_must(void **state)
{
    (void)state;
    struct bench b;
    uint32_t before = UINT32_MAX;
    bool wholly = false;
    open_packing(&b, &shape_8b, 8 * GIB);
    for (uint64_t vram = 6 * GIB; vram <= 20 * GIB; vram += NEXT_SIZE * GIB) {
        struct plan plain, plan;
        struct planner_prediction slow, fast;
        b.r.machine.device.limit = vram;
        b.r.wish.pack_gpu = false;
        make_predicted(&b, &plain, &slow);
        assert_true(packed_units(&plain) == 0 && !packed_head(&plain) &&
                    !placements_in(&plain, PLAN_VRAM0).varying);
        b.r.wish.pack_gpu = true;
        make_predicted(&b, &plan, &fast);
        print_message("8B at %2llu GiB: %.2f token/s, packed %.2f: %u of %u half layers in VRAM%s\n",
                      (unsigned long long)(vram / GIB), 1 / slow.decode.seconds, 1 / fast.decode.seconds,
                      packed_units(&plan), units_at(&plan, PLAN_HOME_GPU),
                      packed_head(&plan) ? ", head" : "");
        if (units_at(&plain, PLAN_HOME_GPU) == UNITS && plain.head == PLAN_GPU0) {
            assert_true(packed_units(&plan) == 0 && !packed_head(&plan)); /* nothing to win */
            close_to(slow.decode.seconds, fast.decode.seconds);
        } else {
            assert_true(fast.decode.seconds < (vram < 15 * GIB ? 0.95 : 0.99) * slow.decode.seconds);
            assert_true(packed_units(&plan) > 0);
            assert_true(weights_in_vram(&b, &plan) > weights_in_vram(&b, &plain));
            check_packed(&b, &plan);
        }
        if (units_at(&plan, PLAN_HOME_GPU) == UNITS) {
            assert_true(!wholly || packed_units(&plan) < before || packed_units(&plan) == 0);
            wholly = true;
            before = packed_units(&plan);
        }
        plan_free(&plain);
        plan_free(&plan);
    }
    assert_true(wholly && before == 0);
    bench_close(&b);
}

/* The thesis reads weights as they are in the file; all-gpu packs only what would not fit else; a wish not to
 * pack is one. The head of a tied model with both ends in VRAM is rows that are looked up. */
static void strategies_and_wishes(void **state)
{
    (void)state;
    struct bench b;
    struct plan plan;
    struct planner_prediction prediction;
    static const struct made_up_shape tied = {36, 4096, 12288, 32, 8, 128, 151936, true};
    open_packing(&b, &shape_8b, 13 * GIB);
    b.r.strategy = SEARCH_THESIS;
    make_predicted(&b, &plan, &prediction);
    assert_true(packed_units(&plan) == 0 && !packed_head(&plan));
    plan_free(&plan);
    b.r.strategy = SEARCH_ALL_GPU;
    make_predicted(&b, &plan, &prediction);
    assert_int_equal(units_at(&plan, PLAN_HOME_GPU), UNITS);
    assert_true(packed_units(&plan) > 0);
    plan_free(&plan);
    struct arena_spec spec;
    struct helm_err err = {0};
    b.r.wish.pack = false; /* which is how --pack off comes */
    assert_int_equal(planner_make(&b.r, &plan, &spec, &err), HELM_E_CAPACITY);
    assert_true(b.refusal.refused && b.refusal.needed > 15 * GIB);
    plan_free(&plan);
    b.r.wish.pack = true;
    b.r.machine.device.limit = 9 * GIB; /* not even packed: what is named would do */
    assert_int_equal(planner_make(&b.r, &plan, &spec, &err), HELM_E_CAPACITY);
    assert_true(b.refusal.needed > 10 * GIB && b.refusal.needed < 13 * GIB);
    b.r.machine.device.limit = b.refusal.needed;
    plan_free(&plan);
    make_predicted(&b, &plan, &prediction);
    assert_true(packed_units(&plan) > 0);
    plan_free(&plan);
    b.r.strategy = SEARCH_STREAM;
    b.r.machine.device.limit = 8 * GIB;
    make_predicted(&b, &plan, &prediction);
    assert_true(packed_units(&plan) > 0 && units_at(&plan, PLAN_HOME_STREAM) > 0);
    check_packed(&b, &plan);
    plan_free(&plan);
    bench_close(&b);
    open_packing(&b, &tied, 8 * GIB);
    make_predicted(&b, &plan, &prediction);
    assert_true(packed_units(&plan) > 0 && !packed_head(&plan));
    assert_true(plan.embed == plan.head);
    plan_free(&plan);
    bench_close(&b);
}

/* A device that cannot read packed weights fast enough gets none; several sequences at once are priced with
 * expanding at each step. */
static void packing_has_to_pay(void **state)
{
    (void)state;
    struct bench b;
    struct plan plan;
    struct planner_prediction prediction;
    open_packing(&b, &shape_8b, 8 * GIB);
    b.profile.gpu.gemv_packed = made_up_value(60e9);
    make_predicted(&b, &plan, &prediction);
    assert_true(packed_units(&plan) == 0 && !packed_head(&plan));
    plan_free(&plan);
    b.profile.gpu.gemv_packed = made_up_value(PACKED);
    b.r.batch = 4;
    make_predicted(&b, &plan, &prediction);
    assert_true(packed_units(&plan) > 0); /* expanding at 1 TB/s is still faster than the link */
    plan_free(&plan);
    b.profile.gpu.expand = made_up_value(60e9);
    make_predicted(&b, &plan, &prediction);
    assert_true(packed_units(&plan) == 0 && !packed_head(&plan));
    plan_free(&plan);
    bench_close(&b);
}

/* Where memory is all that counts packed weights are read faster: then all stay so, wherever there is room.
 */
static void faster_packed_than_plain(void **state)
{
    (void)state;
    struct bench b;
    struct plan plain, plan;
    struct planner_prediction slow, fast;
    open_packing(&b, &shape_8b, 40 * GIB);
    b.profile.gpu.gemv_packed = made_up_value(1.2 * b.profile.gpu.gemv.value);
    assert_true(cost_packed_is_faster(&b.profile));
    b.r.wish.pack_gpu = false;
    make_predicted(&b, &plain, &slow);
    b.r.wish.pack_gpu = true;
    make_predicted(&b, &plan, &fast);
    assert_true(packed_units(&plan) == UNITS && packed_head(&plan));
    const double bytes = (double)cost_bytes_of(&b.made.analysed, &plan, PLAN_HOME_GPU).bytes;
    assert_true(fabs((slow.decode.seconds - fast.decode.seconds) / (bytes / 3600e9 * (1 - 1 / 1.2)) - 1) <
                0.01);
    plan_free(&plan);
    b.r.batch = 2; /* those are expanded first */
    make_predicted(&b, &plan, &fast);
    assert_true(packed_units(&plan) == 0 && !packed_head(&plan));
    plan_free(&plain);
    plan_free(&plan);
    bench_close(&b);
}

/* Searching twice takes no longer than it may: for 80 layers, prompts' lists included. */
static void making_is_quick(void **state)
{
    (void)state;
    struct bench b;
    open_packing(&b, &shape_70b, 64 * GIB);
    b.r.machine.memory.available_bytes = 200 * GIB;
    static const uint64_t sizes[] = {16 * GIB, 32 * GIB, 64 * GIB, 96 * GIB, 100 * GIB, 120 * GIB};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i += NEXT_SIZE) {
        const uint64_t vram = sizes[i];
        struct plan plan;
        struct arena_spec spec;
        struct helm_err err = {0};
        double took[2] = {INFINITY, INFINITY};
        b.r.machine.device.limit = vram;
        for (int pack = 0; pack < 2; pack++)
            for (int again = 0; again < TIMES; again++) {
                struct timespec from, to;
                b.r.wish.pack_gpu = pack;
                clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
                if (planner_make(&b.r, &plan, &spec, &err)) fail_msg("%s", err.text);
                clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
                took[pack] = fmin(took[pack], (double)(to.tv_sec - from.tv_sec) +
                                                  1e-9 * (double)(to.tv_nsec - from.tv_nsec));
                if (again + 1 < TIMES || !pack) plan_free(&plan);
            }
        print_message("70B at %llu GiB: planned in %.0f ms, with packed weights in VRAM %.0f ms\n",
                      (unsigned long long)(vram / GIB), 1e3 * took[0], 1e3 * took[1]);
        check_plan(&b.r, &plan);
        plan_free(&plan);
        assert_true(took[1] < MOST * took[0] + 0.05);
    }
    bench_close(&b);
}

/* A plan from a file keeps what it says as far as that can be. */
static void written_plans_are_checked(void **state)
{
    (void)state;
    struct bench b;
    struct plan plan;
    struct planner_prediction prediction, again;
    struct arena_spec spec;
    struct helm_err err = {0};
    open_packing(&b, &shape_8b, 8 * GIB);
    make_predicted(&b, &plan, &prediction);
    const uint32_t units = packed_units(&plan);
    const bool head = packed_head(&plan);
    const uint64_t room = placements_in(&plan, PLAN_VRAM0).varying;
    plan.placement[plan.placement_count - 1].bytes += 4 * MIB; /* its author may know more */
    assert_int_equal(planner_take(&b.r, &plan, &spec, &err), HELM_E_CAPACITY);
    b.r.machine.device.limit += 4 * MIB;
    assert_int_equal(planner_take(&b.r, &plan, &spec, &err), 0);
    assert_int_equal(line_of(&plan.memory[PLAN_VRAM0], "packed weights"), room + 4 * MIB);
    assert_int_equal(planner_predict(&b.r, &plan, 1, 1024, 128, &again, &err), 0);
    close_to(again.decode.seconds, prediction.decode.seconds);
    b.r.machine.device.limit -= 4 * MIB;
    repack(&b, &plan, units / 2, head); /* the others then lie plain, which takes more than there is */
    assert_int_equal(planner_take(&b.r, &plan, &spec, &err), HELM_E_CAPACITY);
    assert_true(b.refusal.refused && strcmp(b.refusal.what, "VRAM") == 0);
    assert_true(b.refusal.needed > b.refusal.available);
    repack(&b, &plan, units, head);
    b.r.wish.pack = false;
    assert_int_equal(planner_take(&b.r, &plan, &spec, &err), HELM_E_CAPACITY);
    assert_true(packed_units(&plan) == 0 && !packed_head(&plan) && !placements_in(&plan, PLAN_VRAM0).varying);
    b.r.wish.pack = true;
    /* one matrix that is no bf16: its unit cannot be packed */
    uint32_t unit = 0;
    while (plan.unit[unit].home[0] != PLAN_HOME_GPU) unit++;
    for (uint32_t i = 0; i < b.made.model.tensor_count; i++)
        if (b.made.tensor[i].role == (unit_part(unit) == UNIT_MLP ? TENSOR_DOWN : TENSOR_K) &&
            b.made.tensor[i].layer == (int32_t)(unit_layer(unit)))
            b.made.tensor[i].format = FORMAT_F16;
    for (uint32_t u = 0; u < UNITS; u++)
        if (plan.unit[u].home[0] == PLAN_HOME_GPU) plan_set_unit_format(&plan, u, FORMAT_BF16_PACKED);
    plan_set_head_format(&plan, FORMAT_BF16_PACKED);
    assert_int_equal(planner_take(&b.r, &plan, &spec, &err), HELM_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "cannot lie as 'bf16-packed'"));
    plan_set_unit_format(&plan, unit, PLAN_AS_STORED);
    assert_int_equal(planner_take(&b.r, &plan, &spec, &err), HELM_E_CAPACITY); /* it lies plain now */
    plan_free(&plan);
    bench_close(&b);
}

/* A daemon expects of its steps what the plan was made with. */
static void forecasts_price_them_alike(void **state)
{
    (void)state;
    struct bench b;
    struct plan plan;
    struct planner_prediction prediction;
    struct forecast forecast;
    struct cost_forecast decode;
    struct helm_err err = {0};
    open_packing(&b, &shape_8b, 13 * GIB);
    make_predicted(&b, &plan, &prediction);
    assert_true(packed_units(&plan) > 0);
    assert_int_equal(forecast_open(&b.made.model, &b.profile, &plan, &forecast, &err), 0);
    forecast_decode(&forecast, 1, 1024, &decode);
    close_to(decode.seconds, prediction.decode.seconds);
    const struct cost_step chunk = {.tokens = 128, .rows = 1, .samples = 1, .context = 128};
    double packed = forecast_step(&forecast, &chunk);
    forecast_close(&forecast);
    const struct cost_crossing reads = cost_bytes_of(&b.made.analysed, &plan, PLAN_HOME_GPU);
    assert_true(reads.crossing < reads.bytes && reads.crossing > reads.bytes * 7 / 10);
    repack(&b, &plan, 0, false);
    assert_int_equal(cost_bytes_of(&b.made.analysed, &plan, PLAN_HOME_GPU).crossing, reads.bytes);
    assert_int_equal(forecast_open(&b.made.model, &b.profile, &plan, &forecast, &err), 0);
    double plain = forecast_step(&forecast, &chunk);
    assert_true(packed > plain + (double)(reads.bytes - reads.crossing) / EXPAND);
    forecast_close(&forecast);
    plan_free(&plan);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_units_have_their_prices),
        cmocka_unit_test(rooms_are_those_of_packed_matrices),
        cmocka_unit_test(plans_pack_what_they_must),
        cmocka_unit_test(strategies_and_wishes),
        cmocka_unit_test(packing_has_to_pay),
        cmocka_unit_test(faster_packed_than_plain),
        cmocka_unit_test(making_is_quick),
        cmocka_unit_test(written_plans_are_checked),
        cmocka_unit_test(forecasts_price_them_alike),
    };
    return cmocka_run_group_tests_name("planner/packed_gpu", tests, NULL, NULL);
}
