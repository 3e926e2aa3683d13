/* The tables of kernel variants and the choice among them.
 *
 * Called once by the CPU worker's start, by tests and by the kernel benchmark. Nothing here executes an
 * instruction that plain x86-64 lacks: choosing looks only at the feature bits. Owns nothing; the tables are
 * constant. */
#include "worker-cpu/kernels.h"

#include <string.h>

#include "worker-cpu/kernels/variants.h"

/* Slowest first: the choice takes the last that fits. OpenBLAS is never chosen by itself. Measured on one Zen
 * 5 core, 1536 x 1024, GFLOP/s at 8 / 16 / 128 / 512 tokens (helm-bench-kernels shows it for any machine):
 *   openblas 0.3.21   f16  40 /  64 / 120 / 129     f32  44 /  68 / 120 / 128     (its kernel there is an
 * AVX2 one) avx2              f16  99 / 104 / 132 / 135 avx512            f16 184 / 199 / 250 / 266     f32
 * 84 / 124 / 273 / 270     (register-only limit: 266 to 274) avx512-bf16      bf16 286 / 340 / 507 / 508
 * (register-only limit: 530) */
static const struct linear_variant *const linear_table[] = {
    &linear_ref[DTYPE_BF16],     &linear_ref[DTYPE_F16],
    &linear_ref[DTYPE_F32],      &linear_openblas[DTYPE_BF16],
    &linear_openblas[DTYPE_F16], &linear_openblas[DTYPE_F32],
    &linear_avx2[DTYPE_BF16],    &linear_avx2[DTYPE_F16],
    &linear_avx2[DTYPE_F32],     &linear_avx512[DTYPE_BF16],
    &linear_avx512[DTYPE_F16],   &linear_avx512[DTYPE_F32],
    &linear_avx512bf16,          &linear_amx,
};

static const struct vector_variant *const vector_table[] = {&vector_ref, &vector_avx2, &vector_avx512};

const struct linear_variant *const *linear_variants(size_t *count)
{
    *count = sizeof linear_table / sizeof *linear_table;
    return linear_table;
}

const struct vector_variant *const *vector_variants(size_t *count)
{
    *count = sizeof vector_table / sizeof *vector_table;
    return vector_table;
}

static int lacks(const char *what, const char *name, unsigned missing, struct helm_err *err)
{
    char text[128];
    return helm_fail(err, HELM_E_UNSUPPORTED,
                     "%s kernel \"%s\" needs %s, which this processor or kernel lacks", what, name,
                     cpu_features_text(missing, text, sizeof text));
}

int linear_choose(enum dtype dtype, unsigned features, const char *name,
                  const struct linear_variant **variant, struct helm_err *err)
{
    *variant = NULL;
    size_t count;
    bool known = false;
    const struct linear_variant *const *table = linear_variants(&count);
    for (size_t i = count; i-- > 0;) {
        const struct linear_variant *v = table[i];
        if (name && strcmp(name, v->name) != 0) continue;
        known = true;
        if (v->dtype != dtype) continue;
        unsigned missing = v->features & ~features;
        if (!missing) {
            *variant = v;
            return 0;
        }
        if (name) return lacks("linear", name, missing, err);
    }
    if (known)
        return helm_fail(err, HELM_E_UNSUPPORTED, "linear kernel \"%s\" does not exist for %s weights", name,
                         dtype_name(dtype));
    return helm_fail(err, HELM_E_NOT_FOUND,
                     "linear kernel \"%s\" is none of ref, openblas, avx2, avx512, avx512-bf16, amx-bf16",
                     name);
}

/* Measured with 16 threads on a Sapphire Rapids (GB/s at 12288 / 4096 columns; plain reads 181 / 182): 3
 * streams fetching 2 KiB ahead 181 / 173; besides 8 KiB ahead into L2 188 / 184, 16 KiB 192 / 183. Whole
 * steps of 8B there: without the second level 147, 8 KiB 160, 16 KiB 155 of 173. On one Zen 5 core, which
 * reads 40 GB/s, the second level costs 7 %, on two cores of an Ice Lake 10 %. */
struct gemv_reads gemv_reads_choose(void)
{
    __builtin_cpu_init();
    return (struct gemv_reads){.near = GEMV_NEAR, .far = __builtin_cpu_is("intel") ? GEMV_FAR : 0};
}

int vector_choose(unsigned features, const char *name, const struct vector_variant **variant,
                  struct helm_err *err)
{
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
        if (name) return lacks("vector", name, missing, err);
    }
    return helm_fail(err, HELM_E_NOT_FOUND, "vector kernel \"%s\" is none of ref, avx2, avx512", name);
}
