/* The table of kernels of gated delta nets and the choice among them. See delta.h. */
#include "common/cpu/kernels/delta.h"

#include <string.h>

static const struct delta_variant *const delta_table[] = {&delta_ref, &delta_avx2, &delta_avx512};

const struct delta_variant *const *delta_variants(size_t *count)
{
    *count = sizeof delta_table / sizeof *delta_table;
    return delta_table;
}

int delta_choose(unsigned features, const char *name, const struct delta_variant **variant,
                 struct helm_err *err)
{
    char text[128];
    size_t count;
    const struct delta_variant *const *table = delta_variants(&count);
    *variant = NULL;
    for (size_t i = count; i-- > 0;) {
        const unsigned missing = table[i]->features & ~features;
        if (name && strcmp(name, table[i]->name) != 0) continue;
        if (!missing) {
            *variant = table[i];
            return 0;
        }
        if (name)
            return helm_fail(err, HELM_E_UNSUPPORTED,
                             "delta kernel \"%s\" needs %s, which this processor or kernel lacks", name,
                             cpu_features_text(missing, text, sizeof text));
    }
    return helm_fail(err, HELM_E_NOT_FOUND, "delta kernel \"%s\" is none of ref, avx2, avx512", name);
}
