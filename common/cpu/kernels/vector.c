/* The table of elementwise kernels and the choice among them. Looks at feature bits only; constant data. */
#include "common/cpu/kernels/vector.h"

#include <string.h>

#include "common/cpu/kernels/variants.h"

static const struct vector_variant *const vector_table[] = {&vector_ref, &vector_avx2, &vector_avx512};

const struct vector_variant *const *vector_variants(size_t *count)
{
    *count = sizeof vector_table / sizeof *vector_table;
    return vector_table;
}

int vector_choose(unsigned features, const char *name, const struct vector_variant **variant,
                  struct helm_err *err)
{
    char text[128];
    *variant = NULL;
    size_t count;
    const struct vector_variant *const *table = vector_variants(&count);
    for (size_t i = count; i-- > 0;) {
        const struct vector_variant *v = table[i];
        if (name && strcmp(name, v->name) != 0) continue;
        unsigned missing = v->features & ~features;
        if (!missing) {
            *variant = v;
            return 0;
        }
        if (name)
            return helm_fail(err, HELM_E_UNSUPPORTED,
                             "vector kernel \"%s\" needs %s, which this processor or kernel lacks", name,
                             cpu_features_text(missing, text, sizeof text));
    }
    return helm_fail(err, HELM_E_NOT_FOUND, "vector kernel \"%s\" is none of ref, avx2, avx512", name);
}
