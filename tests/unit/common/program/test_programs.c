/* Both workers' programs consist of what program_ops_of says: of every golden model, printed whole, each
 * layer in each size of step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/model/model.h"
#include "common/program/op.h"
#include "worker-cpu/engine.h"
#include "worker-gpu/engine.h"

static const char *const models[] = {"tests/data/golden/qwen3",      "tests/data/golden/llama3-ropescaled",
                                     "tests/data/golden/qwen2-bias", "tests/data/golden/qwen2moe",
                                     "tests/data/golden/qwen35",     "tests/data/golden/qwen3next"};

/* By the words that a program's title begins with. */
static const struct {
    const char *title;
    enum op_tier tier;
} tiers[] = {
    {"1 token:", OP_TIER_ONE},  {"2 to 16 tokens:", OP_TIER_FEW}, {"17 or more tokens", OP_TIER_CHUNK},
    {"2 tokens:", OP_TIER_FEW}, {"9 to 16 tokens:", OP_TIER_FEW}, {"a chunk of tokens:", OP_TIER_CHUNK}};

/* The lines of layer 1 from `line` on are these operations; returns the line after them. */
static const char *check_layer(const char *line, const struct model *model, enum processor_kind processor,
                               enum op_tier tier)
{
    for (uint32_t u = unit_of(1, UNIT_ATTENTION); u < unit_of(2, UNIT_ATTENTION); u++) {
        const struct math_part *part = model_unit_math(model, u);
        for (uint32_t i = 0; i < part->ops; i++) {
            enum op_kind kinds[PROGRAM_OPS_MAX];
            const uint32_t count = program_ops_of(&part->op[i], processor, tier, kinds);
            for (uint32_t k = 0; k < count; k++) {
                const char *chain = strstr(line, "chain of "), *end = strchr(line, '\n');
                if (chain && chain < end) line = end + 1; /* its operations follow */
                const char *at = strstr(line, "layer 1    ");
                end = strchr(line, '\n');
                const char *wanted = op_name(kinds[k]);
                assert_true(at && at < end);
                at += strlen("layer 1    ");
                if (strncmp(at, "| ", 2) == 0) at += 2;
                if (strncmp(at, wanted, strlen(wanted)))
                    fail_msg("'%s' instead of '%.*s'", wanted, (int)(end - at), at);
                line = end + 1;
            }
        }
    }
    return line;
}

static uint32_t check_programs(const char *text, const struct model *model, enum processor_kind processor)
{
    uint32_t programs = 0;
    for (size_t t = 0; t < sizeof tiers / sizeof *tiers; t++) {
        const char *title = strncmp(text, tiers[t].title, strlen(tiers[t].title)) ? NULL : text;
        for (const char *line = text; !title && (line = strchr(line, '\n')) && *++line;)
            if (strncmp(line, tiers[t].title, strlen(tiers[t].title)) == 0) title = line;
        if (!title) continue;
        const char *line = strstr(title, "layer 1    ");
        assert_non_null(line);
        while (line[-1] != '\n') line--;
        line = check_layer(line, model, processor, tiers[t].tier);
        const char *end = strchr(line, '\n');
        assert_true(end && !memmem(line, (size_t)(end - line), "layer 1 ", 8));
        programs++;
    }
    return programs;
}

static void programs_are_what_the_table_says(void **state)
{
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++)
        for (int p = 0; p < PROCESSOR_KINDS; p++) {
            struct model model;
            struct helm_err err = {0};
            char *text = NULL;
            size_t bytes = 0;
            FILE *out = open_memstream(&text, &bytes);
            if (model_read(models[m], &model, &err)) fail_msg("%s", err.text);
            int rc = (p == PROCESSOR_CPU ? print_plan : gpu_print_plan)(models[m], NULL, 2, "", out, &err);
            fclose(out);
            if (rc) fail_msg("%s", err.text);
            assert_int_equal(check_programs(text, &model, (enum processor_kind)p),
                             p == PROCESSOR_CPU ? 3 : 4);
            free(text);
            model_free(&model);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(programs_are_what_the_table_says)};
    return cmocka_run_group_tests_name("common/programs", tests, NULL, NULL);
}
