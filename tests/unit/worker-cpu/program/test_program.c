/* Unit tests of how one token's products are cut for threads (worker-cpu/program/program.c), seen through
 * what is printed of a checkpoint whose weights are holes in files. That results do not depend on pieces is
 * in tests/golden. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/units.h"
#include "tests/unit/common/model/build_checkpoint.h"
#include "worker-cpu/engine.h"

#define HIDDEN       1024
#define INTERMEDIATE 16384
#define CONFIG                                                                                               \
    "{\"architectures\": [\"Qwen3ForCausalLM\"], \"hidden_size\": 1024, \"intermediate_size\": 16384, "      \
    "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 64, "   \
    "\"vocab_size\": 64, \"dtype\": \"bfloat16\", \"tie_word_embeddings\": true}"
#define LONGEST (128 * KIB) /* a chunk that a thread has begun, no other takes */

/* Chunks of the first operation of this name, the rows of its first, and the threads that share it. */
static void read_chunks(const char *text, const char *name, unsigned *chunks, unsigned *rows,
                        unsigned *threads)
{
    const char *line = strstr(text, name), *at = line ? strstr(line, "; ") : NULL;
    *threads = 0;
    if (!at || sscanf(at, "; %u chunks of %u rows and less, %u thread", chunks, rows, threads) != 3)
        fail_msg("no chunks of %s in\n%s", name, text);
}

static void no_chunk_is_long(void **state)
{
    (void)state;
    static const char *const file = "model.safetensors";
    static const struct {
        const char *name;
        unsigned row_bytes; /* of all matrices whose rows are computed together */
    } of[] = {{"linear gate", 2 * 2 * HIDDEN}, {"linear down", 2 * INTERMEDIATE}};
    struct built b;
    struct helm_err err = {0};
    built_start(&b, CONFIG, &file, 1);
    built_write(&b);
    for (uint32_t threads = 1; threads <= 16; threads *= 2) {
        char *text = NULL;
        size_t size = 0;
        FILE *out = open_memstream(&text, &size);
        assert_non_null(out);
        if (print_plan(b.folder, NULL, threads, NULL, out, &err)) fail_msg("%s", err.text);
        fclose(out);
        for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
            unsigned chunks, rows, shared;
            read_chunks(text, of[i].name, &chunks, &rows, &shared);
            assert_int_equal(shared, threads);
            assert_int_equal(chunks % threads, 0);
            assert_true(rows * of[i].row_bytes <= LONGEST + 4 * of[i].row_bytes); /* whole streams */
            /* a thread at a third of the others' speed has finished its first in time */
            assert_true(chunks / threads >= 3);
        }
        free(text);
    }
    built_end(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_chunk_is_long)};
    return cmocka_run_group_tests_name("worker-cpu/program: program", tests, NULL, NULL);
}
