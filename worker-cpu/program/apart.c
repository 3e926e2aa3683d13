/* Up to how many tokens a program multiplies faster with the kernels of one token than with those of several. Called by program.c for
 * plans that are not invariant; owns nothing. */
#include "worker-cpu/program/program.h"

/* How many tokens a kernel of one multiplies faster than kernels of several do, which unpack blocks to rows or tiles first; measured by
 * helm-bench-kernels --few (docs/operations.md, "The same tokens"). */
static uint32_t few_worth(const struct linear_kernel *one)
{
    const struct tensor_format_traits *format = tensor_format_of(one->format);
    if (!one->few || (format->block_values == 1 && !format->variable)) return 0;
    if (format->variable) return 2;
    return one->inputs == LINEAR_INT8 && one->features & CPU_AVX512_VNNI ? 8 : 4;
}

uint32_t program_apart_tokens(const struct program *program)
{
    uint32_t most = UINT32_MAX;
    for (uint32_t i = 0; i < program->count; i++) {
        const struct program_entry *e = &program->entry[i];
        if (e->experts) return 0;
        for (uint32_t s = 0; e->kind == OP_LINEAR && s < e->segment_count; s++) {
            const uint32_t worth = few_worth(e->segment[s].kernels->one);
            if (worth < most) most = worth;
        }
    }
    return most == UINT32_MAX ? 0 : most;
}
