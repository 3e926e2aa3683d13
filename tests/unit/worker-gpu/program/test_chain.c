/* Unit tests of chains: what lowering makes of whole plans (worker-gpu/program/chain.c, seen through print.c)
 * and of lists made for the purpose, and what the emulated device does with them (emulated/chain.c). That
 * results are the same bits with and without is in tests/golden/test_golden_split.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tests/unit/worker-gpu/device/device_test.h"
#include "tests/written_plans.h"
#include "worker-gpu/engine.h"
#include "worker-gpu/program/lower.h"

/* ---- plans ---- */

/* One sign more; what is between events over and over becomes one sign. */
static void add_sign(char *signs, size_t size, char sign)
{
    size_t at = strlen(signs);
    char last = at ? signs[at - 1] : 0, before = at > 1 ? signs[at - 2] : 0;
    if (sign == '.' && (last == '.' || last == '*')) return;
    if (sign == '.' && last == 'o' && before == '*')
        signs[at - 1] = '\0';
    else if (sign == '.' && last == 'o' && before == '.')
        signs[at - 1] = '*';
    else
        snprintf(signs + at, size - at, "%c", sign);
}

/* The list of one token as signs: [N] a chain of N operations, o one that stands alone, < and > a word waited
 * for and written, . what the ring's events and copies order, * operations between such. */
static void read_signs(const char *text, char *signs, size_t size)
{
    static const struct {
        const char *text, *sign;
    } plain[] = {{"gemv", "o"},          {"attend", "o"},     {"convolve", "o"}, {"gated delta rule", "o"},
                 {"wait for word", "<"}, {"write word", ">"}, {"record", "."},   {"wait for ", "."}};
    const char *line = strstr(text, "1 token: "), *end = strstr(text, "2 tokens: ");
    size_t at = 0;
    assert_true(line && end);
    for (line = strchr(line, '\n') + 1; line < end; line = strchr(line, '\n') + 1) {
        char what[160], *chain;
        unsigned count = 0;
        snprintf(what, sizeof what, "%.*s", (int)(strchr(line, '\n') - line), line);
        if (strchr(what, '|')) continue;
        if ((chain = strstr(what, "chain of "))) {
            assert_int_equal(sscanf(chain, "chain of %u operations", &count), 1);
            at += (size_t)snprintf(signs + at, size - at, "[%u]", count);
            for (const char *member = line; count > 0; count--) { /* those after it are its own */
                member = strchr(member, '\n') + 1;
                assert_true(memchr(member, '|', (size_t)(strchr(member, '\n') - member)) != NULL);
            }
            continue;
        }
        for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
            if (!strstr(what, plain[i].text)) continue;
            add_sign(signs, size, plain[i].sign[0]);
            at = strlen(signs);
            break;
        }
        assert_true(at < size);
    }
}

/* `homes`: a letter a half layer, c, g or s; of up to four layers. */
static void model_lowers_to(const char *model, const char *homes, char embed, char head, uint64_t ring_bytes,
                            const char *wanted)
{
    struct plan_unit unit[WRITTEN_UNITS(4)];
    struct helm_err err = {0};
    char signs[256] = "", *text = NULL;
    size_t bytes = 0;
    const uint32_t layers = (uint32_t)strlen(homes) / 2;
    struct model read;
    struct plan plan = {.layers = layers,
                        .unit = units_of_letters(unit, layers, homes, 2 * (size_t)layers),
                        .device[PLAN_GPU0].ring_bytes = ring_bytes,
                        .step_tokens = 256,
                        .embed = embed == 'g' ? PLAN_GPU0 : PLAN_CPU0,
                        .head = head == 'g' ? PLAN_GPU0 : PLAN_CPU0};
    if (model_read(model, &read, &err)) fail_msg("%s", err.text);
    plan_take_states(&plan, &read);
    model_free(&read);
    FILE *out = open_memstream(&text, &bytes);
    int rc = gpu_print_plan(model, &plan, 1, "", out, &err);
    fclose(out);
    if (rc) fail_msg("%s: %s", homes, err.text);
    read_signs(text, signs, sizeof signs);
    if (strcmp(signs, wanted)) fail_msg("%s: %s instead of %s\n%s", homes, signs, wanted, text);
    free(text);
}

static void lowers_to(const char *homes, char embed, char head, uint64_t ring_bytes, const char *wanted)
{
    model_lowers_to("tests/data/golden/qwen3", homes, embed, head, ring_bytes, wanted);
}

static void chains_end_where_something_stands_between(void **state)
{
    (void)state;
    /* the last > of each: the step's end; where the CPU comes last, also that its turn was published */
    lowers_to("gggggggg", 'g', 'g', 0, "[21]>");
    lowers_to("gggggggg", 'g', 'c', 0, "<[20]>>");
    lowers_to("gggggggg", 'c', 'g', 0, "<[21]>>");
    lowers_to("gcgcgcgc", 'g', 'c', 0, "<[3]><[3]><[3]><[3]>>>");
    lowers_to("cgcgcgcg", 'c', 'g', 0, "<<[2]><[2]><[2]>><[3]>>");
    lowers_to("ggccggcc", 'g', 'c', 0, "<[5]><[5]>>>");
    lowers_to("cgccgccg", 'c', 'g', 0, "<<[2]><[3]>><[3]>>");
    lowers_to("ccgccgcc", 'c', 'g', 0, "<<[3]><[2]>><o>>");
    /* slices stand alone, and so does attention between slices; what is resident beside them is chained */
    lowers_to("ggssgggg", 'g', 'g', 200 * 1024, "[5].*[11]>.");
    lowers_to("gsgsgsgs", 'g', 'g', 200 * 1024, "[3].*[3].*[3].*o[3].*o>.");
    lowers_to("sgsgsgsg", 'g', 'g', 200 * 1024, ".*o[2].*[2].*o[2].*[3]>.");
    lowers_to("cgscsgcs", 'c', 'g', 200 * 1024, "<<[2].*o><.*[2]>><.*o>>.");
    /* a ring that holds everything orders nothing, yet the slices in it are no part of a chain */
    lowers_to("gssggssg", 'g', 'g', 64 << 20, "[3]ooooo[5]ooooo[3]>");
    /* none of mixtures */
    model_lowers_to("tests/data/golden/qwen3moe", "gggggg", 'g', 'g', 0, "oooooooooooooo>");
    /* gated delta nets are two operations between their products, a chain of their own where those are
     * streamed */
    model_lowers_to("tests/data/golden/qwen35", "gggggggg", 'g', 'g', 0, "[24]>");
    model_lowers_to("tests/data/golden/qwen35", "gcgcgcgc", 'g', 'c', 0, "<[4]><[4]><[4]><[3]>>>");
    model_lowers_to("tests/data/golden/qwen35", "sgggggsg", 'g', 'g', 200 * 1024, ".*o[2].*[14].oo.*[3]>.");
}

/* ---- lists made here ---- */

static bool takes_narrow(struct device *d, const struct gpuk_chain_op *op)
{
    (void)d;
    return op->kind == GPUK_CHAIN_ATTENTION || op->linear.cols < 100;
}

/* g: a linear of bf16, f: of f32, w: one that is not taken, s: of the ring, a: fused attention, b: attention
 * of a batch, q and p: a batch's linear of Q4_K and of bf16 in an invariant plan, h: one of Q4_K for samples,
 * e: an event, x: experts' gates, of a mixture. The tail stands after '/'. */
static void add_all(struct lowering *low, const char *list)
{
    struct gpu_program *p = low->program;
    for (const char *c = list; *c; c++) {
        if (*c == '/') {
            p->tail = p->count;
            continue;
        }
        struct gpu_entry *e = lower_add(low,
                                        *c == 'e'                ? OP_RECORD
                                        : *c == 'x'              ? OP_EXPERTS_GLU
                                        : *c == 'a' || *c == 'b' ? OP_ATTEND_DECODE
                                        : strchr("pqh", *c)      ? OP_GEMM_SMALL
                                                                 : OP_GEMV,
                                        (int32_t)(c - list));
        if (e->op.kind == OP_ATTEND_DECODE) e->op.as.attention.fused = *c == 'a';
        if (e->op.kind != OP_GEMV && e->op.kind != OP_GEMM_SMALL) continue;
        static const uint32_t samples = 1;
        if (*c == 'h') e->op.count = &samples;
        e->slice = *c == 's';
        e->op.as.linear.segments = 1;
        e->op.as.linear.segment[0].rows = 8;
        e->op.as.linear.steady = e->op.kind == OP_GEMM_SMALL;
        e->op.as.linear.format = *c == 'f' ? FORMAT_F32 : *c == 'q' || *c == 'h' ? FORMAT_Q4_K : FORMAT_BF16;
        e->op.as.linear.cols = *c == 'w' ? 200 : *c == 'q' || *c == 'h' ? 256 : 64;
    }
    if (!strchr(list, '/')) p->tail = p->count;
}

static void chains_to(struct device *d, enum gpu_tier tier, const char *list, const char *wanted,
                      uint32_t chained, uint32_t unchained)
{
    struct gpu_program program = {.tier = tier};
    const struct model model = {.config.router.experts = strchr(list, 'x') ? 8 : 0};
    struct gpu_source source = {.device = d, .model = &model};
    struct helm_err err = {0};
    struct lowering low = {.source = &source, .program = &program, .err = &err};
    char text[64] = "";
    size_t at = 0, name = 0;
    add_all(&low, list);
    lower_chains(&low);
    assert_int_equal(low.rc, 0);
    for (uint32_t i = 0; i < program.count; i++) {
        if (i == program.tail) text[at++] = '/';
        if (program.entry[i].op.kind == OP_CHAIN) {
            at += (size_t)snprintf(text + at, sizeof text - at, "%u", program.entry[i].op.as.chain.count);
            assert_int_equal(program.entry[i].layer, -1);
            assert_int_equal(program.entry[i].sub, GPU_SUB_ALL);
            continue;
        }
        if (list[name] == '/') name++;
        assert_int_equal(program.entry[i].layer, (int32_t)name); /* every entry is there, in order */
        text[at++] = list[name++];
    }
    assert_string_equal(text, wanted);
    assert_int_equal(program.chained, chained);
    assert_int_equal(program.unchained, unchained);
    gpu_program_free(&program, d);
}

static void runs_of_two_become_chains(void **state)
{
    (void)state;
    struct device *d = open_emulated(0, 0, 1000);
    bool (*takes)(struct device *, const struct gpuk_chain_op *) = d->ask.chain_takes;
    chains_to(d, GPU_TIER_1, "gag", "3gag", 3, 0);
    chains_to(d, GPU_TIER_1, "g", "g", 0, 1);
    chains_to(d, GPU_TIER_1, "", "", 0, 0);
    chains_to(d, GPU_TIER_1, "gegg", "ge2gg", 2, 1);
    chains_to(d, GPU_TIER_1, "ggsssgg", "2ggsss2gg", 4, 3);
    chains_to(d, GPU_TIER_1, "sasgg", "sas2gg", 2, 3);
    chains_to(d, GPU_TIER_1, "gaffg", "2ga2ffg", 4, 1);
    chains_to(d, GPU_TIER_1, "gbg", "gbg", 0, 2);
    chains_to(d, GPU_TIER_1, "gg/ee", "2gg/ee", 2, 0);
    chains_to(d, GPU_TIER_1, "gge/eg", "2gge/eg", 2, 1);
    chains_to(d, GPU_TIER_2, "gag", "gag", 0, 0);
    /* an invariant plan's: products between attentions, where a chain has few tokens' bits */
    chains_to(d, GPU_TIER_1, "qbqqqqbqqqh", "qb4qqqqb3qqqh", 7, 2);
    chains_to(d, GPU_TIER_1, "qbppqq", "qbpp2qq", 2, 3);
    d->ask.chain_takes = takes_narrow;
    chains_to(d, GPU_TIER_1, "ggwag", "2ggw2ag", 4, 1);
    /* a mixture's operations are kernels of their own, also those that stand beside its experts */
    chains_to(d, GPU_TIER_1, "gagxg", "gagxg", 0, 4);
    d->ask.chain_takes = takes;
    d->no_chains = "of this test";
    chains_to(d, GPU_TIER_1, "gag/e", "gag/e", 0, 3);
    device_close(d);
}

/* In an invariant plan. A chain's attention takes the tokens' own cells from their keys and values, so a
 * layer that reads another one's cache, and has none, is left in its order; the device refuses it
 * otherwise. */
static void attention_without_keys_has_no_chains_order(void **state)
{
    (void)state;
    struct device *d = open_emulated(0, 0, 1000);
    const struct plan plan = {.invariant = true};
    struct gpu_program program = {.tier = GPU_TIER_2};
    struct gpu_source source = {.device = d, .plan = &plan};
    struct helm_err err = {0};
    struct lowering low = {.source = &source, .program = &program, .err = &err};
    const float own[1] = {0};
    add_all(&low, "bqbq");
    assert_int_equal(low.rc, 0);
    for (uint32_t i = 0; i < 4; i += 2) program.entry[i].op.as.attention.args.order = GPUK_ORDER_ALONE;
    struct gpuk_attention *with = &program.entry[0].op.as.attention.args,
                          *without = &program.entry[2].op.as.attention.args;
    with->k = with->v = own;
    lower_attention_chained(&low);
    assert_int_equal(program.as_chained, 1);
    assert_int_equal(with->order, GPUK_ORDER_CHAINED);
    assert_int_equal(without->order, GPUK_ORDER_ALONE);
    without->order = GPUK_ORDER_CHAINED;
    assert_int_equal(d->ops->run(d, &program.entry[2].op, &err), HELM_E_USAGE);
    /* attention norms and turns whole keys: it is to read latents in the cache */
    with->order = GPUK_ORDER_ALONE, with->kv.layout.latent = 64;
    assert_int_equal(d->ops->run(d, &program.entry[0].op, &err), HELM_E_USAGE);
    assert_non_null(strstr(err.text, "latents"));
    gpu_program_free(&program, d);
    device_close(d);
}

/* ---- the emulated device ---- */

struct setup {
    struct device *d;
    float *memory, *x, *y, *z;
    char *weight, *list;
};
#define N     16
#define BYTES 65536

static void setup_open(struct setup *s)
{
    void *memory;
    s->d = open_emulated(0, 0, 1000);
    OK(device_alloc(s->d, DEVICE_WORKSPACE, BYTES, &memory, why));
    s->memory = memory;
    s->list = memory;
    s->x = s->memory + 4096;
    s->y = s->x + N;
    s->z = s->y + N;
    s->weight = (char *)(s->z + N);
    for (int i = 0; i < N; i++) s->x[i] = (float)i;
    for (int i = 0; i < N * N; i++) ((float *)(void *)s->weight)[i] = i / N == (i % N + 1) % N ? 2.0f : 0.0f;
}

static struct gpuk_chain_op times_two(const struct setup *s, const float *x, float *out)
{
    return (struct gpuk_chain_op){.kind = GPUK_CHAIN_LINEAR,
                                  .linear = {.format = FORMAT_F32,
                                             .cols = N,
                                             .segments = 1,
                                             .x = x,
                                             .segment = {{.weight = s->weight, .out = out, .rows = N}}}};
}

static int run_chain(struct device *d, const struct gpuk_chain *chain, struct helm_err *err)
{
    const struct op op = {.kind = OP_CHAIN, .as.chain = *chain};
    return device_run(d, &op, err);
}

static void lists_are_run_in_order(void **state)
{
    (void)state;
    struct setup s;
    struct gpuk_chain chain;
    struct helm_err err = {0};
    setup_open(&s);
    struct gpuk_chain_op op[2] = {times_two(&s, s.x, s.y), times_two(&s, s.y, s.z)};
    assert_int_equal(s.d->ask.chain_bytes(NULL, 2) % 256, 0);
    assert_true(s.d->ask.chain_bytes(NULL, 2) <= 16384);
    OK(s.d->ask.chain_write(s.d, op, 2, s.list, NULL, &chain, why));
    memset(op, 0, sizeof op); /* the list has its own */
    OK(run_chain(s.d, &chain, why));
    drain(s.d, DEVICE_COMPUTE);
    for (int i = 0; i < N; i++) assert_true(s.z[(i + 2) % N] == 4.0f * (float)i);
    /* captured like any other operation, and run by each launch */
    struct device_graph *graph;
    OK(s.d->ops->capture_begin(s.d, why));
    OK(run_chain(s.d, &chain, why));
    assert_int_equal(s.d->ask.chain_write(s.d, op, 2, s.list, NULL, &chain, &err), HELM_E_STATE);
    OK(s.d->ops->capture_end(s.d, &graph, why));
    s.x[0] = 100;
    OK(s.d->ops->graph_launch(s.d, graph, true, why));
    drain(s.d, DEVICE_COMPUTE);
    assert_true(s.z[2] == 400.0f);
    s.d->ops->graph_free(s.d, graph);
    /* written over: the device fails instead of running something */
    s.list[3] ^= 1;
    OK(run_chain(s.d, &chain, why));
    struct device_event *event;
    OK(s.d->ops->event_create(s.d, DEVICE_EVENT_PLAIN, &event, why));
    (void)s.d->ops->event_record(s.d, DEVICE_COMPUTE, event, NULL);
    assert_int_equal(s.d->ops->event_wait(s.d, event, &err), HELM_E_DEVICE);
    assert_non_null(strstr(err.text, "written over"));
    s.d->ops->event_free(s.d, event);
    device_free(s.d, DEVICE_WORKSPACE, BYTES, s.memory);
    device_close(s.d);
}

static void lists_that_no_chain_takes_are_refused(void **state)
{
    (void)state;
    struct setup s;
    struct gpuk_chain chain;
    struct helm_err err = {0};
    static char elsewhere[65536];
    setup_open(&s);
    struct gpuk_chain_op op[2] = {times_two(&s, s.x, s.y), times_two(&s, s.y, s.z)};
    op[1].linear.format = FORMAT_BF16;
    assert_int_equal(s.d->ask.chain_write(s.d, op, 2, s.list, NULL, &chain, &err), HELM_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "operation 1"));
    op[1] = op[0];
    op[1].linear.segment[0].weight = s.weight + 2;
    assert_false(s.d->ask.chain_takes(s.d, &op[1]));
    assert_int_equal(s.d->ask.chain_write(s.d, op, 2, s.list, NULL, &chain, &err), HELM_E_UNSUPPORTED);
    op[1].linear = op[0].linear;
    op[1].linear.cols = N - 1;
    assert_false(s.d->ask.chain_takes(s.d, &op[1]));
    op[1] = op[0];
    assert_int_equal(s.d->ask.chain_write(s.d, op, 2, s.list + 16, NULL, &chain, &err), HELM_E_USAGE);
    char *aligned = elsewhere + (256 - (uintptr_t)elsewhere % 256) % 256;
    assert_int_equal(s.d->ask.chain_write(s.d, op, 2, aligned, NULL, &chain, &err), HELM_E_USAGE);
    device_free(s.d, DEVICE_WORKSPACE, BYTES, s.memory);
    device_close(s.d);
}

/* Any way of cutting what a model has at most fits the room that the buffers keep. */
static void every_cut_has_room(void **state)
{
    (void)state;
    struct device *d = open_emulated(0, 0, 1000);
    struct plan_unit unit[WRITTEN_UNITS(4)];
    const struct plan plan = {.layers = 4, .unit = units_all(unit, 4, PLAN_HOME_GPU)};
    const struct arena_header h = {.slots = 1,
                                   .step_tokens = 1,
                                   .pages_per_slot = 1,
                                   .kv = {.dtype = DTYPE_BF16}};
    const struct model model = {.config = {.architecture = "LlamaForCausalLM",
                                           .layers = 4,
                                           .hidden = 64,
                                           .intermediate = 64,
                                           .vocab = 64,
                                           .heads = 1,
                                           .kv_heads = 1,
                                           .head_dim = 64}};
    struct gpu_buffers buffers = {0};
    gpu_buffers_place(&model, &plan, PLAN_GPU0, &h, d, &buffers);
    for (uint32_t each = 2; each <= 21; each++) {
        uint64_t sum = 21 % each >= 2 ? d->ask.chain_bytes(NULL, 21 % each) : 0;
        sum += 21 / each * d->ask.chain_bytes(NULL, each);
        if (sum > buffers.work.area[GPU_AREA_CHAINS].bytes)
            fail_msg("chains of %u: %llu bytes", each, (unsigned long long)sum);
    }
    device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chains_end_where_something_stands_between),
        cmocka_unit_test(runs_of_two_become_chains),
        cmocka_unit_test(attention_without_keys_has_no_chains_order),
        cmocka_unit_test(lists_are_run_in_order),
        cmocka_unit_test(lists_that_no_chain_takes_are_refused),
        cmocka_unit_test(every_cut_has_room),
    };
    return cmocka_run_group_tests_name("worker-gpu/chain", tests, NULL, NULL);
}
