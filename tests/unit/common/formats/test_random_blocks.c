/* Unit tests of common/formats/random_blocks.c: blocks of every format are numbers of the size of weights. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "common/formats/random_blocks.h"

#define BLOCKS 512

static void blocks_are_numbers_up_to(float most)
{
    static unsigned char bytes[BLOCKS * 1024], again[BLOCKS * 1024];
    for (int f = 0; f < FORMAT_COUNT; f++) {
        const struct tensor_format_traits *t = tensor_format_of((enum tensor_format)f);
        if (t->variable) continue;
        const uint64_t size = (uint64_t)BLOCKS * t->block_bytes;
        uint32_t different = 0;
        memset(bytes, 0x5a, sizeof bytes);
        random_blocks_fill((enum tensor_format)f, most, bytes, size);
        assert_true(bytes[size] == 0x5a); /* no byte more */
        for (uint32_t b = 0; b < BLOCKS; b++) {
            const unsigned char *block = bytes + b * t->block_bytes;
            const struct tensor_matrix matrix = {.format = (enum tensor_format)f,
                                                 .data = block,
                                                 .bytes = t->block_bytes,
                                                 .rows = 1,
                                                 .cols = t->block_values};
            float value[256], largest = 0;
            assert_int_equal(tensor_format_read_row(&matrix, 0, value, NULL), 0);
            for (uint32_t i = 0; i < t->block_values; i++) {
                if (!isfinite(value[i])) fail_msg("%s: block %u has %g", t->name, b, (double)value[i]);
                largest = fmaxf(largest, fabsf(value[i]));
            }
            if (largest < most / 256 || largest > most)
                fail_msg("%s: block %u up to %g", t->name, b, (double)largest);
            different += memcmp(block, bytes, t->block_bytes) != 0;
        }
        assert_true(different > BLOCKS / 2);
        random_blocks_fill((enum tensor_format)f, most, again, size);
        assert_memory_equal(bytes, again, size);
    }
}

static void every_block_is_numbers(void **state)
{
    (void)state;
    blocks_are_numbers_up_to(RANDOM_WEIGHTS);
    blocks_are_numbers_up_to(RANDOM_EMBEDDINGS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_block_is_numbers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
