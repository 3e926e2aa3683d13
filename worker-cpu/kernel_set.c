/* Choice of kernel variants. See kernel_set.h. */
#include "worker-cpu/kernel_set.h"

#include <stdio.h>
#include <string.h>

static bool linear_has(const char *name, enum dtype dtype)
{
    size_t count;
    const struct linear_variant *const *table = linear_variants(&count);
    for (size_t i = 0; i < count; i++)
        if (table[i]->dtype == dtype && strcmp(table[i]->name, name) == 0) return true;
    return false;
}

static bool vector_has(const char *name)
{
    size_t count;
    const struct vector_variant *const *table = vector_variants(&count);
    for (size_t i = 0; i < count; i++)
        if (strcmp(table[i]->name, name) == 0) return true;
    return false;
}

static bool attention_has(const char *name, enum dtype kv_dtype)
{
    size_t count;
    const struct attention_variant *const *table = attention_variants(&count);
    for (size_t i = 0; i < count; i++)
        if (table[i]->kv_dtype == kv_dtype && strcmp(table[i]->name, name) == 0) return true;
    return false;
}

static const struct packed_kernels *packed_named(const char *name)
{
    size_t count;
    const struct packed_kernels *const *table = packed_kernels_all(&count);
    for (size_t i = 0; i < count; i++)
        if (strcmp(table[i]->name, name) == 0) return table[i];
    return NULL;
}

int kernel_set_choose(unsigned features, const char *name, enum dtype kv_dtype, struct kernel_set *set,
                      struct helm_err *err)
{
    memset(set, 0, sizeof *set);
    if (name && !*name) name = NULL;
    bool known = !name;
    for (int d = 0; d < DTYPE_COUNT; d++) {
        bool has = name && linear_has(name, (enum dtype)d);
        known |= has;
        int rc = linear_choose((enum dtype)d, features, has ? name : NULL, &set->linear[d], err);
        if (rc) return rc;
    }
    bool has = name && vector_has(name);
    known |= has;
    int rc = vector_choose(features, has ? name : NULL, &set->vector, err);
    if (rc) return rc;
    has = name && attention_has(name, kv_dtype);
    known |= has;
    rc = attention_choose(kv_dtype, features, has ? name : NULL, &set->attention, err);
    if (rc) return rc;
    const struct packed_kernels *packed = name ? packed_named(name) : NULL;
    known |= packed != NULL;
    set->packed = packed ? packed : packed_kernels_choose(features);
    if (packed && packed->features & ~features) {
        set->packed = NULL;
        return kernel_set_need_packed(set, features, err);
    }
    if (!known) return helm_fail(err, HELM_E_NOT_FOUND, "no kernel variant is called '%.60s'", name);
    return 0;
}

int kernel_set_need_packed(const struct kernel_set *set, unsigned features, struct helm_err *err)
{
    size_t count;
    const struct packed_kernels *const *table = packed_kernels_all(&count);
    char text[128];
    if (set->packed) return 0;
    return helm_fail(err, HELM_E_UNSUPPORTED,
                     "packed weights for the CPU to compute with (the plan's 'pack_cpu') need %s, which this "
                     "processor or kernel lacks",
                     cpu_features_text(table[count - 1]->features & ~features, text, sizeof text));
}

const char *kernel_set_text(const struct kernel_set *set, unsigned used, bool packed, char *text, size_t size)
{
    size_t n = 0;
    text[0] = '\0';
    for (int d = 0; d < DTYPE_COUNT && n < size; d++)
        if (used & 1u << d)
            n += (size_t)snprintf(text + n, size - n, "%s %s ", dtype_name((enum dtype)d),
                                  set->linear[d]->name);
    if (n < size)
        n += (size_t)snprintf(text + n, size - n, "vector %s attention %s", set->vector->name,
                              set->attention->name);
    if (packed && set->packed && n < size) snprintf(text + n, size - n, " packed %s", set->packed->name);
    return text;
}
