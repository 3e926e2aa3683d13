/* Choice of kernel variants. See kernel_set.h. */
#include "common/cpu/kernels/kernel_set.h"

#include <stdio.h>
#include <string.h>

static bool vector_has(const char *name)
{
    size_t count;
    const struct vector_variant *const *table = vector_variants(&count);
    for (size_t i = 0; i < count; i++)
        if (strcmp(table[i]->name, name) == 0) return true;
    return false;
}

static bool attention_has(const char *name, enum kv_dtype kv_dtype)
{
    size_t count;
    const struct attention_variant *const *table = attention_variants(&count);
    for (size_t i = 0; i < count; i++)
        if (table[i]->kv_dtype == kv_dtype && strcmp(table[i]->name, name) == 0) return true;
    return false;
}

/* Whether a format that is multiplied with a kernel of this name has one so called. */
static bool linear_knows(const char *name)
{
    for (int f = 0; f < FORMAT_COUNT; f++)
        for (int s = LINEAR_ONE_TOKEN; s <= LINEAR_DECODE; s++)
            for (int i = LINEAR_EXACT; i < LINEAR_INPUTS; i++)
                if (linear_has((enum tensor_format)f, (enum linear_schedule)s, (enum linear_inputs)i, name))
                    return true;
    return false;
}

int kernel_set_choose(unsigned features, const char *name, enum kv_dtype kv_dtype, struct kernel_set *set,
                      struct helm_err *err)
{
    memset(set, 0, sizeof *set);
    if (name && !*name) name = NULL;
    bool known = !name || linear_knows(name);
    int rc = 0;
    for (int i = 0; i < LINEAR_INPUTS * FORMAT_COUNT && !rc; i++) {
        const enum linear_inputs inputs = (enum linear_inputs)(i / FORMAT_COUNT);
        const enum tensor_format format = (enum tensor_format)(i % FORMAT_COUNT);
        rc = linear_choose_set(format, inputs, features, name, &set->linear[inputs][format], err);
    }
    if (rc) return rc;
    bool has = name && vector_has(name);
    known |= has;
    rc = vector_choose(features, has ? name : NULL, &set->vector, err);
    if (rc) return rc;
    has = name && attention_has(name, kv_dtype);
    known |= has;
    rc = attention_choose(kv_dtype, features, has ? name : NULL, &set->attention, err);
    if (rc) return rc;
    if (!known) return helm_fail(err, HELM_E_NOT_FOUND, "no kernel variant is called '%.60s'", name);
    return 0;
}

int kernel_set_steady(struct kernel_set *set, struct helm_err *err)
{
    for (int i = 0; i < LINEAR_INPUTS * FORMAT_COUNT; i++) {
        struct linear_set *linear = &set->linear[i / FORMAT_COUNT][i % FORMAT_COUNT];
        if (!linear->tokens) continue;
        if (linear->tokens->unsteady)
            return helm_fail(err, HELM_E_UNSUPPORTED,
                             "kernels \"%s\" sum in orders of their own: an invariant plan takes others",
                             linear->tokens->name);
        if (linear->tokens->steady) linear->tokens = linear->tokens->steady;
    }
    return 0;
}

int kernel_set_need(const struct kernel_set *set, unsigned used, unsigned features, struct helm_err *err)
{
    for (int i = 0; i < FORMAT_COUNT; i++) {
        const enum tensor_format f = (enum tensor_format)i;
        const struct linear_set *linear = &set->linear[LINEAR_EXACT][f];
        const struct linear_kernel *none;
        if (!(used & format_bit(f))) continue;
        if (!linear->one) return linear_choose(f, LINEAR_ONE_TOKEN, LINEAR_EXACT, features, NULL, &none, err);
        if (!linear->tokens) return linear_choose(f, LINEAR_DECODE, LINEAR_EXACT, features, NULL, &none, err);
    }
    return 0;
}

bool kernel_set_has_int8(const struct kernel_set *set, unsigned used)
{
    for (int f = 0; f < FORMAT_COUNT; f++) {
        const struct linear_set *linear = &set->linear[LINEAR_INT8][f];
        if (!(used & format_bit((enum tensor_format)f)) || !linear->one || !linear->tokens) continue;
        if (linear->one->inputs == LINEAR_INT8 || linear->tokens->inputs == LINEAR_INT8) return true;
    }
    return false;
}

const char *kernel_set_text(const struct kernel_set *set, enum linear_inputs inputs, unsigned used,
                            char *text, size_t size)
{
    size_t n = 0;
    text[0] = '\0';
    for (int f = 0; f < FORMAT_COUNT && n < size; f++) {
        const struct linear_set *linear = &set->linear[inputs][f];
        if (!(used & format_bit((enum tensor_format)f)) || !linear->one) continue;
        const bool int8 = linear->one->inputs == LINEAR_INT8;
        n += (size_t)snprintf(text + n, size - n, "%s %s%s%s%s%s%s ",
                              tensor_format_name((enum tensor_format)f), int8 ? "int8 " : "",
                              int8 ? linear->one->name : "", int8 ? " " : "",
                              linear->decode ? linear->decode->name : "", linear->decode ? "+" : "",
                              linear->tokens->name);
    }
    if (n < size)
        snprintf(text + n, size - n, "vector %s attention %s", set->vector->name, set->attention->name);
    return text;
}
