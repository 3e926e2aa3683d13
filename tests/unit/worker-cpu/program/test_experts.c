/* Unit tests of how one token's experts are cut into pieces (worker-cpu/program/program.c), seen through what
 * is printed of checkpoints whose weights are holes in files. That results do not depend on pieces is in
 * tests/golden. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/common/model/build_checkpoint.h"
#include "worker-cpu/engine.h"

/* Rows of an expert's gates are no multiple of what kernels read side by side, nor of any number of
 * threads. */
#define CONFIG                                                                                               \
    "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"hidden_size\": 1024, \"intermediate_size\": 64, "      \
    "\"moe_intermediate_size\": 1000, \"num_experts\": 128, \"num_experts_per_tok\": 3, "                    \
    "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 64, "   \
    "\"vocab_size\": 64, \"dtype\": \"bfloat16\", \"tie_word_embeddings\": true}"

#define CHOSEN 3

/* Pieces of the first operation of this name, and the threads that share it. */
static void read_pieces(const char *text, const char *name, unsigned *pieces, unsigned *threads)
{
    const char *line = strstr(text, name), *at = line ? strstr(line, "; ") : NULL;
    unsigned rows;
    *threads = 0;
    if (!at || sscanf(at, "; %u chunks of %u rows and less, %u thread", pieces, &rows, threads) != 3)
        fail_msg("no pieces of %s in\n%s", name, text);
    assert_true(rows <= 256);
}

static void every_thread_has_as_many_pieces(void **state)
{
    (void)state;
    static const char *const file = "model.safetensors";
    struct built b;
    struct helm_err err = {0};
    built_start(&b, CONFIG, &file, 1);
    built_write(&b);
    for (uint32_t threads = 2; threads <= 16; threads++) {
        char *text = NULL;
        size_t size = 0;
        const unsigned most =
            threads <= 2 ? 16 : 32; /* 128 KiB of a gate's 2 MB, or 64: at least 16 for a thread */
        unsigned pieces, shared;
        FILE *out = open_memstream(&text, &size);
        assert_non_null(out);
        if (print_plan(b.folder, NULL, threads, NULL, out, &err)) fail_msg("%s", err.text);
        fclose(out);
        read_pieces(text, "experts' gate up", &pieces, &shared);
        assert_int_equal(shared, threads);
        assert_int_equal(CHOSEN * pieces % threads, 0); /* of all that are chosen */
        assert_true(pieces >= most && pieces < most + threads);
        read_pieces(text, "experts' down", &pieces, &shared);
        assert_int_equal(CHOSEN * pieces % threads, 0);
        assert_true(pieces >= most && pieces < most + threads);
        read_pieces(text, "linear router", &pieces, &shared); /* of 512 KiB */
        assert_int_equal(shared, threads < 8 ? threads : 8);
        free(text);
    }
    built_end(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_thread_has_as_many_pieces)};
    return cmocka_run_group_tests_name("worker-cpu/program: experts", tests, NULL, NULL);
}
