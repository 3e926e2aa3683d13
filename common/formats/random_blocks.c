/* Random blocks of any format. See random_blocks.h. */
#include "common/formats/random_blocks.h"

#include <math.h>
#include <string.h>

#include "common/base/random.h"

#define DIFFERENT   256 /* blocks, strewn over all that is filled */
#define BLOCK_BYTES 256 /* of the largest, at most */
#define BLOCK_MOST  256 /* values, likewise */
#define LEAST_PART  256 /* of what the largest value of a block may be */

static bool is_fit(enum tensor_format format, float most, const void *block)
{
    const struct tensor_format_traits *t = tensor_format_of(format);
    const struct tensor_matrix matrix = {
        .format = format, .data = block, .bytes = t->block_bytes, .rows = 1, .cols = t->block_values};
    float value[BLOCK_MOST], largest = 0;
    if (t->read_row(&matrix, 0, value, NULL)) return false;
    for (uint32_t i = 0; i < t->block_values; i++) {
        if (!isfinite(value[i])) return false;
        largest = fmaxf(largest, fabsf(value[i]));
    }
    return largest >= most / LEAST_PART && largest <= most;
}

void random_blocks_fill(enum tensor_format format, float most, void *out, uint64_t bytes)
{
    const uint64_t size = tensor_format_of(format)->block_bytes;
    uint64_t state = RANDOM_SEED;
    unsigned char block[DIFFERENT][BLOCK_BYTES];
    for (int n = 0; n < DIFFERENT; n++) do {
            for (uint64_t i = 0; i < size; i++) block[n][i] = (unsigned char)(random_next(&state) >> 32);
        } while (!is_fit(format, most, block[n]));
    for (uint64_t at = 0; at + size <= bytes; at += size)
        memcpy((char *)out + at, block[random_next(&state) >> 40 & (DIFFERENT - 1)], size);
}

void random_numbers_fill(void *out, uint64_t bytes, uint64_t number)
{
    uint64_t state = RANDOM_SEED + number;
    for (uint64_t i = 0; i < bytes / sizeof state; i++)
        ((uint64_t *)out)[i] = (random_next(&state) & 0x81ff81ff81ff81ffu) | 0x3800380038003800u;
}
