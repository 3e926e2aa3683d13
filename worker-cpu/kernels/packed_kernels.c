/* The table of packed kernels and the choice among them.
 *
 * Called once by the CPU worker's start, by tests and by the kernel benchmark. Looks at feature bits only.
 * Owns nothing; the table is constant. */
#include "worker-cpu/kernels/packed_kernels.h"

#include "worker-cpu/kernels/packed_variants.h"

static const struct packed_kernels *const table[] = {&packed_ref, &packed_avx512vbmi2};
#define COUNT (sizeof table / sizeof *table)

const struct packed_kernels *const *packed_kernels_all(size_t *count)
{
    *count = COUNT;
    return table;
}

const struct packed_kernels *packed_kernels_choose(unsigned features)
{
    for (size_t i = COUNT; i-- > 1;)
        if (!(table[i]->features & ~features)) return table[i];
    return NULL;
}
