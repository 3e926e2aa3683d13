/* Unit tests of daemon/planner/memory/packed_sample.c: what it says of made-up weights in files, held against
 * packing all of them; how much it reads; files that are not whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "common/formats/packed.h"
#include "common/base/units.h"
#include "daemon/planner/memory/packed_sample.h"
#include "tests/written_formats.h"
#include "tests/unit/common/base/tree.h"
#include "tests/unit/daemon/planner/made_up_model.h"
#include "tests/written_plans.h"

#define SHARDS 2
#define HEADER 1000 /* bytes before the first tensor */

static uint32_t random_u32(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* Normal by the sum of uniform ones, near enough. */
static uint16_t random_weight(uint64_t *state, double scale)
{
    double sum = -6;
    for (int i = 0; i < 12; i++) sum += random_u32(state) / 2147483648.0;
    const float x = (float)(scale * sum);
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

struct files {
    char root[TREE_PATH];
    struct made_up made;
    struct model_shard shard[SHARDS];
    struct packed_parts all; /* of all groups */
};

/* Writes a matrix and adds up what its groups come to. Rows differ in scale, some by much. */
static void write_matrix(FILE *file, const struct model_tensor *t, uint64_t *seed, double *plain,
                         double *packed)
{
    uint16_t *value = malloc(t->bytes);
    assert_non_null(value);
    for (uint64_t r = 0; r < t->rows; r++) {
        double scale = 0.02 * (1 + random_u32(seed) % 8) * (r / 16 % 4 == 0 ? 1e-3 * (1 + r % 16) : 1);
        for (uint64_t c = 0; c < t->cols; c++) value[r * t->cols + c] = random_weight(seed, scale);
    }
    for (uint32_t g = 0; g < packed_groups((uint32_t)t->rows); g++) {
        struct packed_measure measure;
        uint32_t values = packed_group_values((uint32_t)t->rows, (uint32_t)t->cols, g);
        packed_measure(value + (size_t)g * PACKED_ROWS * t->cols, values, &measure);
        *plain += 2.0 * values;
        *packed += measure.bytes;
    }
    assert_int_equal(fwrite(value, 1, t->bytes, file), t->bytes);
    free(value);
}

static void files_open(struct files *f)
{
    static const struct made_up_shape shape = {8, 256, 640, 4, 2, 64, 1024, false};
    char path[TREE_PATH + 32];
    double plain[3] = {0}, packed[3] = {0};
    uint64_t seed = 7, at = HEADER;
    memset(f, 0, sizeof *f);
    tree_make(f->root);
    assert_true(made_up_open(&f->made, &shape));
    f->made.model.folder = f->root;
    f->made.model.shards = f->shard;
    f->made.model.shard_count = SHARDS;
    FILE *file = NULL;
    for (uint32_t i = 0; i < f->made.model.tensor_count; i++) {
        struct model_tensor *t = &f->made.tensor[i];
        uint32_t shard = i * SHARDS / f->made.model.tensor_count;
        int kind = t->layer < 0 ? 2 : (unit_part_of_role(t->role) == UNIT_MLP);
        double ignored[2] = {0};
        bool counts = t->rows > 1 && t->role != TENSOR_EMBED;
        if (!file || t[-1].shard != shard) {
            if (file) assert_int_equal(fclose(file), 0);
            snprintf(f->shard[shard].file, sizeof f->shard[shard].file, "%u.safetensors", shard);
            snprintf(path, sizeof path, "%s/%s", f->root, f->shard[shard].file);
            file = fopen(path, "we");
            assert_non_null(file);
            at = HEADER;
            for (int b = 0; b < HEADER; b++) fputc(' ', file);
        }
        t->shard = shard;
        t->offset = at;
        write_matrix(file, t, &seed, counts ? &plain[kind] : &ignored[0],
                     counts ? &packed[kind] : &ignored[1]);
        at += t->bytes;
        f->shard[shard].bytes = at;
    }
    assert_int_equal(fclose(file), 0);
    f->all = (struct packed_parts){packed[0] / plain[0], packed[1] / plain[1], packed[2] / plain[2]};
}

static void files_close(struct files *f)
{
    made_up_close(&f->made);
    tree_remove(f->root);
}

static void near(double part, double spread, double all)
{
    if (spread < 0 || spread > 0.05 || part < all || part > all + 2 * spread + 1e-12)
        fail_msg("%.5f, %.5f of it the spread; all of them come to %.5f", part, spread, all);
}

/* Some groups say what all come to, within what they say of it; all of them exactly. The same files give the
 * same. */
static void parts_are_those_of_all(void **state)
{
    (void)state;
    static struct files f;
    struct packed_sample sample, again;
    struct helm_err err = {0};
    files_open(&f);
    for (uint64_t most = 2 * MIB; most <= 32 * MIB; most *= 4) {
        if (packed_sample_take(&f.made.model, most, &sample, &err)) fail_msg("%s", err.text);
        assert_true(sample.bytes <= most + 8 * 32 * KIB && sample.groups > 0);
        near(sample.parts.attention, sample.spread.attention, f.all.attention);
        near(sample.parts.mlp, sample.spread.mlp, f.all.mlp);
        near(sample.parts.head, sample.spread.head, f.all.head);
        assert_int_equal(packed_sample_take(&f.made.model, most, &again, &err), 0);
        assert_memory_equal(&sample, &again, sizeof sample);
        print_message("%llu KiB in %u groups: %.4f, %.4f, %.4f; all: %.4f, %.4f, %.4f\n",
                      (unsigned long long)(sample.bytes / KIB), sample.groups, sample.parts.attention,
                      sample.parts.mlp, sample.parts.head, f.all.attention, f.all.mlp, f.all.head);
    }
    assert_true(sample.spread.attention == 0 && sample.spread.mlp == 0 && sample.spread.head == 0);
    /* too few to say anything */
    assert_int_equal(packed_sample_take(&f.made.model, 64 * KIB, &sample, &err), 0);
    assert_true(sample.parts.attention == 0 && sample.parts.head == 0);
    files_close(&f);
}

/* Writes values that nothing makes smaller over the matrices of a unit. */
static void scramble(const struct files *f, uint32_t unit)
{
    uint64_t seed = 11;
    char path[TREE_PATH + 32];
    for (uint32_t i = 0; i < f->made.model.tensor_count; i++) {
        const struct model_tensor *t = &f->made.tensor[i];
        if (t->layer != (int32_t)(unit_layer(unit)) || unit_part_of_role(t->role) != unit_part(unit) ||
            t->rows <= 1)
            continue;
        snprintf(path, sizeof path, "%s/%s", f->root, f->shard[t->shard].file);
        FILE *file = fopen(path, "r+e");
        assert_non_null(file);
        assert_int_equal(fseek(file, (long)t->offset, SEEK_SET), 0);
        for (uint64_t b = 0; b < t->bytes; b++) fputc((int)(random_u32(&seed) & 255), file);
        assert_int_equal(fclose(file), 0);
    }
}

/* Only weights that the plan packs are sampled, whatever the others are. */
static void those_of_a_plan_are_looked_at_alone(void **state)
{
    (void)state;
    static struct files f;
    struct plan_unit unit[WRITTEN_UNITS(9)];
    struct plan plan = {.layers = 8, .unit = units_all(unit, 8, PLAN_HOME_GPU), .head = PLAN_GPU0};
    struct packed_sample sample, few;
    struct helm_err err = {0};
    files_open(&f);
    scramble(&f, 1);
    assert_int_equal(packed_sample_take(&f.made.model, 8 * MIB, &sample, &err), 0);
    assert_true(sample.parts.mlp < 0.9);
    assert_int_equal(packed_sample_of_plan(&f.made.model, &plan, 8 * MIB, &few, &err), 0);
    assert_true(few.bytes == 0 && few.parts.mlp == 0); /* it packs none */
    write_formats(&plan, &(struct written_formats){.vram = 2});
    assert_int_equal(packed_sample_of_plan(&f.made.model, &plan, 8 * MIB, &few, &err), 0);
    assert_true(few.parts.mlp > 1 && few.parts.attention < 0.9 && few.parts.head == 0);
    write_formats(&plan, &(struct written_formats){.head = true});
    assert_int_equal(packed_sample_of_plan(&f.made.model, &plan, 8 * MIB, &few, &err), 0);
    assert_true(few.parts.mlp == 0 && few.parts.attention == 0);
    near(few.parts.head, few.spread.head, f.all.head);
    plan.layers = 9; /* of another model */
    assert_int_equal(packed_sample_of_plan(&f.made.model, &plan, 8 * MIB, &few, &err), 0);
    assert_int_equal(few.bytes, 0);
    files_close(&f);
}

static void what_is_not_there_says_nothing(void **state)
{
    (void)state;
    static struct files f;
    struct packed_sample sample;
    struct helm_err err = {0};
    char path[TREE_PATH + 32];
    files_open(&f);
    for (uint32_t i = 0; i < f.made.model.tensor_count; i++) f.made.tensor[i].format = FORMAT_F16;
    assert_int_equal(packed_sample_take(&f.made.model, 8 * MIB, &sample, &err), 0);
    assert_int_equal(sample.bytes, 0);
    for (uint32_t i = 0; i < f.made.model.tensor_count; i++) f.made.tensor[i].format = FORMAT_BF16;
    snprintf(path, sizeof path, "%s/1.safetensors", f.root); /* the later layers, and the head */
    assert_int_equal(truncate(path, (off_t)(f.shard[1].bytes - 1)), 0);
    assert_int_equal(packed_sample_take(&f.made.model, 8 * MIB, &sample, &err), 0);
    assert_true(sample.parts.attention > 0 && sample.parts.mlp > 0 && sample.parts.head == 0);
    assert_int_equal(truncate(path, HEADER), 0);
    assert_int_equal(packed_sample_take(&f.made.model, 8 * MIB, &sample, &err), 0);
    assert_true(sample.parts.attention > 0 && sample.parts.head == 0);
    snprintf(path, sizeof path, "%s/0.safetensors", f.root);
    assert_int_equal(truncate(path, HEADER), 0); /* as of a checkpoint's headers alone */
    assert_int_equal(packed_sample_take(&f.made.model, 8 * MIB, &sample, &err), 0);
    assert_true(sample.bytes == 0 && sample.parts.attention == 0 && sample.parts.mlp == 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(packed_sample_take(&f.made.model, 8 * MIB, &sample, &err), HELM_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "0.safetensors"));
    files_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_those_of_all),
        cmocka_unit_test(those_of_a_plan_are_looked_at_alone),
        cmocka_unit_test(what_is_not_there_says_nothing),
    };
    return cmocka_run_group_tests_name("planner/packed_sample", tests, NULL, NULL);
}
