/* Unit tests of a model's measured programs: their kinds and layers, the key of their file, the file and its
 * faults, times between cells (daemon/planner/profile/programs*.c), and prices by them
 * (daemon/planner/cost/measured.c). */
#include "tests/unit/daemon/planner/cost_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/planner/profile/now.h"
#include "daemon/planner/profile/programs.h"

static struct programs_cell cell(uint32_t tokens, uint32_t context, double seconds)
{
    return (struct programs_cell){.tokens = tokens,
                                  .context = context,
                                  .seconds = seconds,
                                  .low = seconds * 0.9,
                                  .high = seconds * 1.1};
}

static void put(struct programs_times *t, uint32_t tokens, uint32_t context, double seconds)
{
    const struct programs_cell c = cell(tokens, context, seconds);
    programs_put(t, &c);
}

static double at(const struct programs_times *t, double tokens, double context)
{
    struct programs_price price;
    return programs_at(t, tokens, context, &price) ? price.seconds : -1;
}

/* ---- between cells ---- */

static void contexts_are_straight_lines(void **state)
{
    (void)state;
    struct programs_times t = {.count = 0};
    struct programs_price price;
    assert_false(programs_at(&t, 1, 1, &price));
    put(&t, 1, 4096, 3e-3);
    put(&t, 1, 256, 1e-3);
    assert_int_equal(t.cell[0].context, 256); /* in order, whatever came first */
    expect("short", at(&t, 1, 256), 1e-3);
    expect("long", at(&t, 1, 4096), 3e-3);
    expect("half way", at(&t, 1, (256 + 4096) / 2.0), 2e-3);
    expect("as far again", at(&t, 1, 4096 + 3840), 5e-3);
    expect("never below half", at(&t, 1, 1), fmax(0.5e-3, 1e-3 - 2e-3 * 255 / 3840));
    put(&t, 1, 4096, 4e-3); /* takes the place of the one that is there */
    expect("the last one counts", at(&t, 1, 4096), 4e-3);
    assert_int_equal(t.count, 2);
    struct programs_times falls = {.count = 0};
    put(&falls, 1, 256, 2e-3);
    put(&falls, 1, 4096, 1.9e-3);
    expect("faster with more is noise", at(&falls, 1, 8192), 2e-3);
}

static void tokens_are_lines_in_logarithms(void **state)
{
    (void)state;
    struct programs_times t = {.count = 0};
    put(&t, 1, 256, 1e-3);
    put(&t, 4, 256, 2e-3);
    put(&t, 64, 256, 32e-3);
    expect("1", at(&t, 1, 256), 1e-3);
    expect("2", at(&t, 2, 256), sqrt(2) * 1e-3);
    expect("4", at(&t, 4, 256), 2e-3);
    expect("16: in proportion", at(&t, 16, 256), 8e-3);
    expect("64", at(&t, 64, 256), 32e-3);
    expect("128: the line goes on", at(&t, 128, 256), 64e-3);
    expect("256", at(&t, 256, 256), 128e-3);
    assert_true(at(&t, 257, 256) < 0); /* too far */
    struct programs_times chunks = {.count = 0};
    put(&chunks, 64, 64, 10e-3), put(&chunks, 512, 512, 12e-3), put(&chunks, 2048, 2048, 28e-3);
    expect("up to 512 as fewer", at(&chunks, 128, 128), 10e-3 * pow(1.2, 1 / 3.0));
    expect("longer chunks consist of others", at(&chunks, 1280, 1280), 20e-3);
    expect("as far again", at(&chunks, 3584, 3584), 44e-3);
    struct programs_times one = {.count = 0};
    put(&one, 1, 256, 1e-3);
    expect("nothing between", at(&one, 1, 256), 1e-3);
    assert_true(at(&one, 8, 256) < 0); /* a table of one token says nothing of eight */
    /* cells without the long context lie between those with it */
    struct programs_times holes = {.count = 0};
    put(&holes, 1, 256, 1e-3), put(&holes, 1, 4096, 2e-3), put(&holes, 16, 256, 4e-3);
    expect("4 in the middle", at(&holes, 4, 4096), sqrt(2e-3 * 4e-3));
}

static void spreads_and_company_come_along(void **state)
{
    (void)state;
    struct programs_times t = {.count = 0};
    struct programs_price price;
    struct programs_cell one = cell(1, 256, 1e-3), many = cell(512, 512, 0.1);
    one.beside = 1.5e-3;
    many.low = 0.05;
    programs_put(&t, &one);
    programs_put(&t, &many);
    assert_true(programs_at(&t, 1, 256, &price));
    expect("beside", price.beside, 1.5e-3);
    expect("spread", price.spread, 0.1);
    assert_true(programs_at(&t, 512, 512, &price));
    expect("not measured beside", price.beside, 0.15); /* as one token's */
    expect("wider", price.spread, (0.11 - 0.05) / 2 / 0.1);
    for (uint32_t i = 0; i < 2 * PROGRAMS_CELLS_MAX; i++) put(&t, 1000 + i, 1, 1);
    assert_int_equal(t.count, PROGRAMS_CELLS_MAX);
}

/* ---- kinds, layers, key ---- */

static void kinds_are_shapes_and_formats(void **state)
{
    struct priced *p = *state;
    static struct programs list, other;
    uint32_t layer[MODEL_LAYERS_MAX];
    programs_list(&p->m.model, &list);
    assert_int_equal(list.kinds, 3); /* attention, MLP, head */
    assert_string_equal(list.kind[0].name, "attention of bf16");
    assert_int_equal(programs_layers(&p->m.model, &list, layer), 1);
    assert_int_equal(layer[0], 0);
    programs_key("0123", "f16", &list);

    programs_list(&p->m.model, &other); /* a window in one layer */
    p->m.window[7] = 512;
    programs_list(&p->m.model, &other);
    assert_int_equal(other.kinds, 4);
    assert_int_equal(programs_layers(&p->m.model, &other, layer), 2);
    assert_int_equal(layer[1], 7);
    programs_key("0123", "f16", &other);
    assert_string_not_equal(list.key, other.key);
    p->m.window[7] = 0;

    struct model_tensor *down = &p->m.tensor[9]; /* the first layer's: another format, another kind */
    assert_int_equal(down->role, TENSOR_DOWN);
    down->format = FORMAT_Q6_K;
    programs_list(&p->m.model, &other);
    assert_int_equal(other.kinds, 4);
    assert_string_equal(other.kind[1].name, "MLP of bf16 and q6_k");
    programs_key("0123", "f16", &other);
    assert_string_not_equal(list.key, other.key);
    down->format = FORMAT_BF16;
    down->cols -= 256; /* another shape */
    programs_list(&p->m.model, &other);
    programs_key("0123", "f16", &other);
    assert_string_not_equal(list.key, other.key);
    down->cols += 256;

    programs_list(&p->m.model, &other);
    programs_key("0123", "f16", &other);
    assert_string_equal(list.key, other.key); /* nothing changed */
    programs_key("0124", "f16", &other);
    assert_string_not_equal(list.key, other.key); /* another machine */
    programs_key("0123", "q8_0", &other);
    assert_string_not_equal(list.key, other.key); /* another cache */
}

/* ---- the file ---- */

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void files_are_read_back_or_refused(void **state)
{
    struct priced *p = *state;
    static struct programs list, again;
    struct helm_err err = {0};
    char path[] = "/tmp/test-programs-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    programs_list(&p->m.model, &list);
    programs_key("0123", "f16", &list);
    snprintf(list.made, sizeof list.made, "today");
    list.busy_percent = 12;
    put(&list.kind[0].cpu[PROGRAMS_EXACT], 1, 256, 1.25e-3);
    put(&list.kind[1].cpu[PROGRAMS_PACKED + PROGRAMS_INVARIANT], 512, 512, 0.5);
    put(&list.kind[2].gpu[PROGRAMS_GPU], 16, 0, 2e-5);
    put(&list.gpu_begin[PROGRAMS_GPU], 1, 0, 1e-5);
    list.gpu_tried = true;
    json_t *json = programs_to_json(&list);
    char *text = json_dumps(json, 0);
    assert_non_null(text);
    json_decref(json);
    write_text(path, text);
    programs_list(&p->m.model, &again);
    programs_key("0123", "f16", &again);
    if (programs_read(path, &again, &err)) fail_msg("%s", err.text);
    assert_int_equal(again.busy_percent, 12);
    assert_string_equal(again.made, "today");
    assert_int_equal(again.kinds, 3);
    assert_int_equal(again.kind[0].signature, list.kind[0].signature);
    expect("a cell", again.kind[0].cpu[PROGRAMS_EXACT].cell[0].seconds, 1.25e-3);
    expect("another", again.kind[1].cpu[PROGRAMS_PACKED + PROGRAMS_INVARIANT].cell[0].high, 0.55);
    expect("of the GPU", again.kind[2].gpu[PROGRAMS_GPU].cell[0].seconds, 2e-5);
    expect("its beginning", again.gpu_begin[PROGRAMS_GPU].cell[0].low, 0.9e-5);
    assert_true(again.gpu_tried && programs_has_cpu(&again));
    programs_forget_gpu(&again);
    assert_true(!again.kind[2].gpu[PROGRAMS_GPU].count && !again.gpu_begin[PROGRAMS_GPU].count &&
                programs_has_cpu(&again));

    programs_key("0124", "f16", &again); /* this machine is another one: the file is not of it */
    assert_int_equal(programs_read(path, &again, &err), HELM_E_MISMATCH);
    assert_int_equal(again.kinds, 3); /* and what was asked for stays */
    assert_int_equal(programs_read("/nonexistent/p.json", &again, &err), HELM_E_NOT_FOUND);

    programs_key("0123", "f16", &again);
    text[strlen(text) / 2] = '\0'; /* half a file */
    write_text(path, text);
    assert_int_not_equal(programs_read(path, &again, &err), 0);
    assert_non_null(strstr(err.text, path));
    static const char *const wrong[] = {
        "",
        "[]",
        "{\"helm_programs\": 99}",
        "{\"helm_programs\": 3, \"fingerprint\": \"0\", \"key\": \"0\", \"made\": \"\", \"kv_dtype\": "
        "\"f16\", "
        "\"busy_percent\": 0, \"kinds\": [{\"name\": \"x\", \"signature\": \"12\", \"exact\": [[1, 2, 3]]}]}",
        "{\"helm_programs\": 3, \"fingerprint\": \"0\", \"key\": \"0\", \"made\": \"\", \"kv_dtype\": "
        "\"f16\", "
        "\"busy_percent\": 0, \"kinds\": [{\"name\": \"x\", \"signature\": \"12\", \"exact\": [[1, 2, -3, 1, "
        "1, 0]]}]}",
        "{\"helm_programs\": 3, \"fingerprint\": \"0\", \"key\": \"0\", \"made\": \"\", \"kv_dtype\": "
        "\"f16\", "
        "\"busy_percent\": 0, \"kinds\": [{\"name\": \"x\", \"signature\": \"12\", \"gpu\": [[1, 2, 0, 0, 0, "
        "0]]}]}",
        "{\"helm_programs\": 3, \"fingerprint\": \"0\", \"key\": \"0\", \"made\": \"\", \"kv_dtype\": "
        "\"f16\", "
        "\"busy_percent\": 0, \"gpu_begin\": [[0, 0, 1, 1, 1, 0]], \"kinds\": []}",
        "{\"helm_programs\": 3, \"fingerprint\": \"0\", \"key\": \"0\", \"made\": \"\", \"kv_dtype\": "
        "\"f16\", "
        "\"busy_percent\": 0, \"kinds\": [{\"name\": \"x\", \"signature\": \"xyz\"}]}",
        "{\"helm_programs\": 3, \"fingerprint\": \"0\", \"key\": \"0\", \"made\": \"\", \"kv_dtype\": "
        "\"f16\", "
        "\"busy_percent\": 0, \"kinds\": [{\"name\": \"x\", \"signature\": \"12\", \"exact\": [[1, 2, 1, 1, "
        "1, 0], [1, 2, 1, "
        "1, 1, 0]]}]}"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_true(programs_parse("wrong", wrong[i], strlen(wrong[i]), &again, &err) < 0 && !again.kinds);
    unlink(path);
    free(text);
}

/* ---- prices ---- */

static struct cost_step step_of(uint32_t tokens, uint32_t rows, uint32_t context)
{
    return (struct cost_step){
        .tokens = tokens, .rows = rows, .samples = rows, .context = context, .kv_dtype = KV_F16};
}

static void measured_programs_are_the_price(void **state)
{
    struct priced *p = *state;
    static struct programs list;
    struct cost_unit rates[2], rates_head;
    programs_list(&p->m.model, &list);
    programs_key("0123", "f16", &list);
    price(p, step_of(1, 1, 4096));
    memcpy(rates, p->table.unit, sizeof rates);
    rates_head = p->table.head;
    assert_false(rates[0].cpu_measured || rates_head.cpu_measured);

    put(&list.kind[0].cpu[PROGRAMS_EXACT], 1, 256, 4e-3);
    put(&list.kind[0].cpu[PROGRAMS_EXACT], 1, 4096, 6e-3);
    put(&list.kind[0].cpu[PROGRAMS_EXACT], 8, 256, 8e-3);
    put(&list.kind[2].cpu[PROGRAMS_EXACT], 1, 0, 9e-3);
    p->profile.programs = &list;
    price(p, step_of(1, 1, 4096));
    const struct cost_unit *u = p->table.unit;
    assert_true(u[0].cpu_measured && u[2].cpu_measured && !u[1].cpu_measured);
    expect("attention", u[0].cpu, 6e-3);
    expect("beside copies, as the rates say", u[0].cpu_beside, 6e-3 * rates[0].cpu_beside / rates[0].cpu);
    expect("its spread", u[0].cpu_spread, 0.1);
    expect("the MLP stays by rates", u[1].cpu, rates[1].cpu);
    expect("the GPU too", u[0].gpu, rates[0].gpu);
    expect("head", p->table.head.cpu, 9e-3);
    price(p, step_of(8, 8, 256));
    expect("eight rows", p->table.unit[0].cpu, 8e-3);
    price(p, step_of(8, 1, 512)); /* a prompt of eight tokens reads its cache once */
    assert_true(p->table.unit[0].cpu_measured && p->table.unit[0].cpu <= 8e-3);
    price(p, step_of(64, 1, 64)); /* unmeasured: eight times as many */
    assert_false(p->table.unit[0].cpu_measured);
    struct cost_step other = step_of(1, 1, 4096);
    other.kv_dtype = KV_Q8_0; /* another cache */
    price(p, other);
    assert_false(p->table.unit[0].cpu_measured);
    assert_true(p->table.head.cpu_measured);
}

/* In VRAM; what slices add to a streamed half layer stays by rates; packed weights do, too. */
static void the_gpus_programs_are_its_price(void **state)
{
    struct priced *p = *state;
    static struct programs list;
    static enum tensor_format format[UNIT_PARTS * MODEL_LAYERS_MAX + 1][PLAN_HOMES];
    struct cost_unit rates[2];
    const double hand_over = p->profile.link.hand_over.value;
    programs_list(&p->m.model, &list);
    programs_key("0123", "f16", &list);
    price(p, step_of(1, 1, 4096));
    memcpy(rates, p->table.unit, sizeof rates);
    assert_false(rates[0].gpu_measured || p->table.head.gpu_measured);

    put(&list.kind[0].gpu[PROGRAMS_GPU], 1, 256, 4e-5);
    put(&list.kind[0].gpu[PROGRAMS_GPU], 1, 4096, 6e-5);
    put(&list.kind[2].gpu[PROGRAMS_GPU], 1, 0, 9e-5);
    put(&list.gpu_begin[PROGRAMS_GPU], 1, 0, 1e-5);
    p->profile.programs = &list;
    price(p, step_of(1, 1, 4096));
    const struct cost_unit *u = p->table.unit;
    assert_true(u[0].gpu_measured && !u[1].gpu_measured && p->table.head.gpu_measured && !u[0].cpu_measured);
    expect("attention", u[0].gpu, 6e-5);
    expect("streamed", u[0].stream, fmax(6e-5, rates[0].stream + 6e-5 - rates[0].gpu));
    expect("its spread", u[0].gpu_spread, 0.1);
    expect("the MLP stays by rates", u[1].gpu, rates[1].gpu);
    expect("the CPU too", u[0].cpu, rates[0].cpu);
    expect("head", p->table.head.gpu, 9e-5 + hand_over);
    expect("embedding", p->table.embed.gpu, 1e-5 + hand_over);

    const double streamed = u[0].stream;
    for (uint32_t i = 0; i < 2; i++)
        list.kind[0].gpu[PROGRAMS_GPU].cell[i].beside = 1.5 * list.kind[0].gpu[PROGRAMS_GPU].cell[i].seconds;
    price(p, step_of(1, 1, 4096));
    expect("alone", p->table.unit[0].gpu, 6e-5);
    expect("while the link copies", p->table.unit[0].stream, 1.5 * streamed);
    struct cost_step step = step_of(1, 1, 4096);
    step.invariant = true;
    price(p, step);
    assert_false(p->table.unit[0].gpu_measured);
    put(&list.kind[0].gpu[PROGRAMS_GPU_INVARIANT], 1, 256, 7e-5);
    price(p, step);
    expect("invariant", p->table.unit[0].gpu, 7e-5);
    step = step_of(2, 1, 256);
    step.invariant = true; /* a prompt of two tokens is a chunk there */
    price(p, step);
    assert_false(p->table.unit[0].gpu_measured);
    step = step_of(1, 1, 4096);
    for (uint32_t n = 0; n <= unit_count(p->m.model.config.layers); n++)
        for (int h = 0; h < PLAN_HOMES; h++)
            format[n][h] = n == 0 && h == PLAN_HOME_GPU ? FORMAT_BF16_PACKED : PLAN_AS_STORED;
    step.format = format;
    price(p, step);
    assert_true(!p->table.unit[0].gpu_measured && p->table.unit[2].gpu_measured);
    /* a cache of which half lies elsewhere is read as far as it is here */
    step = step_of(1, 1, 4096);
    step.kv = (struct cost_tiers){.two = true, .host_tokens = 2048, .direct_permille = 1000};
    price(p, step);
    expect("two tiers", p->table.unit[0].gpu - p->table.unit[0].kv.link,
           4e-5 + 2e-5 * (2048 - 256) / (4096 - 256));
}

/* Activations, packed weights and invariant plans are ways of their own. */
static void each_way_has_its_own(void **state)
{
    struct priced *p = *state;
    static struct programs list;
    static enum tensor_format format[UNIT_PARTS * MODEL_LAYERS_MAX + 1][PLAN_HOMES];
    programs_list(&p->m.model, &list);
    programs_key("0123", "f16", &list);
    for (int w = 0; w < PROGRAMS_WAYS; w++) put(&list.kind[1].cpu[w], 2, 256, (w + 1) * 1e-3);
    put(&list.kind[1].cpu[PROGRAMS_EXACT], 1, 256, 0.5e-3);
    p->profile.programs = &list;
    struct cost_step step = step_of(2, 2, 256);
    price(p, step);
    expect("exact", p->table.unit[1].cpu, 1e-3);
    p->profile.programs_int8 = true;
    price(p, step);
    expect("int8", p->table.unit[1].cpu, 2e-3);
    step.invariant = true;
    price(p, step);
    expect("invariant, int8", p->table.unit[1].cpu, 5e-3);
    p->profile.programs_int8 = false;
    price(p, step);
    expect("invariant", p->table.unit[1].cpu, 4e-3);
    step.rows = step.samples = 1;
    price(p, step); /* a prompt of two tokens is a chunk there */
    assert_false(p->table.unit[1].cpu_measured);
    step = step_of(2, 2, 256);
    for (uint32_t u = 0; u <= unit_count(p->m.model.config.layers); u++)
        for (int h = 0; h < PLAN_HOMES; h++)
            format[u][h] = u == 1 && h == PLAN_HOME_CPU ? FORMAT_BF16_PACKED : PLAN_AS_STORED;
    step.format = format;
    p->profile.cpu.gemv_packed = made_up_value(120e9);
    price(p, step);
    expect("packed", p->table.unit[1].cpu, 3e-3);
    list.kind[1].cpu[PROGRAMS_PACKED].count = 0;
    price(p, step);
    assert_false(p->table.unit[1].cpu_measured); /* not plain ones' time */
}

/* Reads that are slower now than they were make programs longer, by what a byte takes more. */
static void programs_move_with_memory(void **state)
{
    struct priced *p = *state;
    static struct programs list;
    struct profile now;
    p->profile.cpu.read.point[0].y = made_up_value(100e9);
    programs_list(&p->m.model, &list);
    programs_key("0123", "f16", &list);
    put(&list.kind[1].cpu[PROGRAMS_EXACT], 1, 256, MLP / 80e9);
    p->profile.programs = &list;
    const struct profile then = p->profile;
    const struct profile_now slower = {.read = 50e9};
    profile_now_apply(&then, &slower, &now);
    assert_ptr_equal(now.programs, &list);
    p->profile = now;
    price(p, step_of(1, 1, 256));
    const double bytes = (double)p->table.unit[1].bytes - 2 * 4096; /* without the norm */
    expect("slower", p->table.unit[1].cpu, MLP / 80e9 + bytes * (1 / 50e9 - 1 / 100e9));
}

/* An error bar of measured units is theirs, whatever the profile's rates spread by. */
static void bars_are_those_of_what_was_measured(void **state)
{
    struct priced *p = *state;
    static struct programs list;
    enum plan_home home[UNIT_PARTS * 36];
    struct cost_result result = {.seconds = 0};
    p->profile.cpu.gemv.low /= 2;
    p->profile.step.value = 0;
    programs_list(&p->m.model, &list);
    programs_key("0123", "f16", &list);
    for (uint32_t k = 0; k < 3; k++) put(&list.kind[k].cpu[PROGRAMS_EXACT], 1, k < 2 ? 256 : 0, 1e-3);
    for (uint32_t u = 0; u < unit_count(36); u++) home[u] = PLAN_HOME_CPU;
    const struct cost_plan plan = {.home = home, .embed = PLAN_CPU0, .head = PLAN_CPU0};
    double bar[2];
    for (int measured = 0; measured < 2; measured++) {
        p->profile.programs = measured ? &list : NULL;
        price(p, step_of(1, 1, 256));
        cost_simulate(&p->table, &plan, &result);
        bar[measured] = cost_uncertainty(&p->profile, &p->table, &plan, &result);
    }
    assert_true(bar[0] > 0.24);
    assert_true(bar[1] > 0.09 && bar[1] < 0.11);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contexts_are_straight_lines),
        cmocka_unit_test(tokens_are_lines_in_logarithms),
        cmocka_unit_test(spreads_and_company_come_along),
        WITH_8B(kinds_are_shapes_and_formats),
        WITH_8B(files_are_read_back_or_refused),
        WITH_8B(measured_programs_are_the_price),
        WITH_8B(the_gpus_programs_are_its_price),
        WITH_8B(each_way_has_its_own),
        WITH_8B(programs_move_with_memory),
        WITH_8B(bars_are_those_of_what_was_measured),
    };
    return cmocka_run_group_tests_name("planner/programs", tests, NULL, NULL);
}
