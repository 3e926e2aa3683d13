/* The table of linear kernels and the choice among them.
 *
 * Called once by the CPU worker's start, by tests and by the kernel benchmark. Nothing here executes an
 * instruction that plain x86-64 lacks: choosing looks only at the feature bits. Owns nothing; the table is
 * constant. */
#include "common/cpu/kernels/linear.h"

#include <string.h>

#include "common/cpu/kernels/variants.h"

#define BLOCKS(format, FORMAT_NAME, values, bytes, group)                                                    \
    &blocks_ref[BLOCK_##FORMAT_NAME][0], &blocks_ref[BLOCK_##FORMAT_NAME][1],                                \
        &blocks_avx2[0][BLOCK_##FORMAT_NAME], &blocks_avx2[1][BLOCK_##FORMAT_NAME],                          \
        &blocks_avx512[1][BLOCK_##FORMAT_NAME],
#define PLAIN_BLOCKS(format, FORMAT_NAME, values, bytes, group)                                              \
    &blocks_avx512[0][BLOCK_##FORMAT_NAME], &blocks_avx512bf16[BLOCK_##FORMAT_NAME],
#define GRIDS(format, FORMAT_NAME, values, bytes, group)                                                     \
    &grids_avx512vbmi2[BLOCK_##FORMAT_NAME], &grids_avx512bf16vbmi2[BLOCK_##FORMAT_NAME],
#define AMX(format, FORMAT_NAME, values, bytes, group) &blocks_amx[INT8_##FORMAT_NAME],
#define AMX_GEMV(format, FORMAT_NAME, apart, beaten)   &blocks_amxint8_gemv[BLOCKS_AMX_##FORMAT_NAME],
#define INT8_REF(format, FORMAT_NAME, values, bytes, group)                                                  \
    &int8_ref[INT8_##FORMAT_NAME][0], &int8_ref[INT8_##FORMAT_NAME][1],
#define INT8_GEMM_AVX2(format, FORMAT_NAME, values, bytes, group) &int8_avx2_gemm[INT8_##FORMAT_NAME],
#define INT8_FAST(format, FORMAT_NAME, values, bytes, group)      &int8_avx2_gemv[INT8_##FORMAT_NAME],
#define INT8_VNNI(format, FORMAT_NAME, values, bytes, group)                                                 \
    &int8_avx512vnni_gemv[INT8_##FORMAT_NAME], &int8_avx512vnni_gemm[INT8_##FORMAT_NAME],
#define INT8_GATHERS(format, FORMAT_NAME, values, bytes, group)                                              \
    &int8_avx512vnnivbmi2_gathers[INT8_##FORMAT_NAME],
#define INT8_VBMI2(format, FORMAT_NAME, values, bytes, group)                                                \
    &int8_avx512vnnivbmi2_gemv[INT8_##FORMAT_NAME], &int8_avx512vnnivbmi2_gemm[INT8_##FORMAT_NAME],
#define INT8_GRIDS(VBMI2) BLOCK_LARGE_GRID_FORMATS(INT8_GATHERS) BLOCK_GRID_FORMATS(VBMI2)
#define PLAIN(kernels)    &(kernels)[FORMAT_BF16], &(kernels)[FORMAT_F16], &(kernels)[FORMAT_F32]

/* Slowest first: the choice takes the last that fits. OpenBLAS is never chosen by itself. Measured on one Zen
 * 5 core, 1536 x 1024, GFLOP/s at 8 / 16 / 128 / 512 tokens (helm-bench-kernels shows it for any machine):
 *   openblas 0.3.21   f16  40 /  64 / 120 / 129  f32  44 /  68 / 120 / 128  (an AVX2 kernel there)
 *   avx2              f16  99 / 104 / 132 / 135
 *   avx512            f16 184 / 199 / 250 / 266  f32  84 / 124 / 273 / 270  (register-only limit: 266 to 274)
 *   avx512-bf16      bf16 286 / 340 / 507 / 508                             (register-only limit: 530) */
static const struct linear_kernel *const table[] = {PLAIN(linear_ref_gemv),
                                                    PLAIN(linear_avx2_gemv),
                                                    PLAIN(linear_avx512_gemv),
                                                    &linear_amx_gemv,
                                                    PLAIN(linear_ref_gemm),
                                                    PLAIN(linear_openblas_gemm),
                                                    PLAIN(linear_avx2_gemm),
                                                    PLAIN(linear_avx512_gemm),
                                                    &linear_avx512bf16_gemm,
                                                    &linear_amx_gemm,
                                                    &bf16_packed_ref_gemv,
                                                    &bf16_packed_ref_decode,
                                                    &bf16_packed_avx512vbmi2_gemv,
                                                    &bf16_packed_avx512vbmi2_decode,
                                                    &fp8_ref_gemv,
                                                    &fp8_ref_decode,
                                                    &fp8_avx2_gemv,
                                                    &fp8_avx2_decode,
                                                    &fp8_avx512_gemv,
                                                    &fp8_avx512_decode,
                                                    &q8_0_ref_gemv,
                                                    &q8_0_ref_decode,
                                                    &q8_0_avx2_gemv,
                                                    &q8_0_avx2_decode,
                                                    &q8_0_avx512_gemv,
                                                    &q8_0_avx512_decode,
                                                    &q8_0_avx512bf16_decode,
                                                    BLOCK_FORMATS(BLOCKS) BLOCK_PLAIN_FORMATS(PLAIN_BLOCKS)
                                                        BLOCK_GRID_FORMATS(GRIDS) BLOCKS_AMX_FORMATS(AMX_GEMV)
                                                            INT8_FORMATS(AMX) INT8_FORMATS(INT8_REF)
                                                                INT8_NARROW_FORMATS(INT8_GEMM_AVX2)
                                                                    INT8_FORMATS(INT8_FAST)
                                                                        INT8_PLAIN_FORMATS(INT8_VNNI)
                                                                            INT8_GRIDS(INT8_VBMI2)};

const struct linear_kernel *const *linear_kernels(size_t *count)
{
    *count = sizeof table / sizeof *table;
    return table;
}

bool linear_has(enum tensor_format format, enum linear_schedule schedule, enum linear_inputs inputs,
                const char *name)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i]->format == format && table[i]->schedule == schedule && table[i]->inputs == inputs &&
            (!name || strcmp(table[i]->name, name) == 0))
            return true;
    return false;
}

static bool is_known(const char *name)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(table[i]->name, name) == 0) return true;
    return false;
}

int linear_choose(enum tensor_format format, enum linear_schedule schedule, enum linear_inputs inputs,
                  unsigned features, const char *name, const struct linear_kernel **kernel,
                  struct helm_err *err)
{
    const bool by_name_only = tensor_format_of(format)->from != format || inputs == LINEAR_INT8;
    const struct linear_kernel *fastest = NULL;
    char text[128];
    *kernel = NULL;
    for (size_t i = sizeof table / sizeof *table; i-- > 0;) {
        const struct linear_kernel *k = table[i];
        if (k->format != format || k->schedule != schedule || k->inputs != inputs) continue;
        if (name ? strcmp(name, k->name) != 0 : (by_name_only && !k->features) || k->beaten & features)
            continue;
        if (!fastest) fastest = k;
        if (k->features & ~features) continue;
        *kernel = k;
        return 0;
    }
    if (fastest)
        return helm_fail(
            err, HELM_E_UNSUPPORTED,
            "the CPU's kernel \"%s\" for %s weights needs %s, which this processor or kernel lacks",
            fastest->name, tensor_format_name(format),
            cpu_features_text(fastest->features & ~features, text, sizeof text));
    if (!name || is_known(name))
        return helm_fail(err, HELM_E_UNSUPPORTED, "linear kernel \"%s\" does not exist for %s weights",
                         name ? name : "", tensor_format_name(format));
    return helm_fail(
        err, HELM_E_NOT_FOUND,
        "linear kernel \"%s\" is none of ref, openblas, avx2, avx512, avx512-bf16, amx-bf16, amx-int8, "
        "avx512-vbmi2, avx512-vnni, avx512-gather",
        name);
}

/* The kernel of that name where the format has one in this schedule, else the fastest, which may be none. */
static int choose(enum tensor_format format, enum linear_schedule schedule, enum linear_inputs inputs,
                  unsigned features, const char *name, const struct linear_kernel **kernel,
                  struct helm_err *err)
{
    const bool has = name && linear_has(format, schedule, inputs, name);
    const int rc = linear_choose(format, schedule, inputs, features, has ? name : NULL, kernel, err);
    return has ? rc : 0;
}

static int choose_exact(enum tensor_format format, unsigned features, const char *name,
                        struct linear_set *set, struct helm_err *err)
{
    memset(set, 0, sizeof *set);
    int rc = choose(format, LINEAR_ONE_TOKEN, LINEAR_EXACT, features, name, &set->one, err);
    if (rc) return rc;
    /* Over the format's own blocks where there is such a kernel, unless another one's decoder is asked for by
     * name. */
    if (!name || linear_has(format, LINEAR_TOKENS, LINEAR_EXACT, name) ||
        !linear_has(format, LINEAR_DECODE, LINEAR_EXACT, name))
        rc = choose(format, LINEAR_TOKENS, LINEAR_EXACT, features, name, &set->tokens, err);
    if (rc || set->tokens) return rc;
    rc = choose(format, LINEAR_DECODE, LINEAR_EXACT, features, name, &set->decode, err);
    return rc || !set->decode
               ? rc
               : choose(set->decode->rows, LINEAR_TOKENS, LINEAR_EXACT, features, name, &set->tokens, err);
}

int linear_choose_set(enum tensor_format format, enum linear_inputs inputs, unsigned features,
                      const char *name, struct linear_set *set, struct helm_err *err)
{
    const struct linear_kernel *one = NULL, *tokens = NULL;
    int rc = choose_exact(format, features, name, set, err);
    if (rc || inputs == LINEAR_EXACT) return rc;
    rc = choose(format, LINEAR_ONE_TOKEN, inputs, features, name, &one, err);
    if (!rc) rc = choose(format, LINEAR_TOKENS, inputs, features, name, &tokens, err);
    if (one) set->one = one;
    if (tokens) *set = (struct linear_set){.one = set->one, .tokens = tokens};
    return rc;
}

static size_t few_stride(const struct linear_kernel *kernel, size_t cols)
{
    return (kernel->ordered_bytes(cols) + 63) / 64 * 64;
}

size_t linear_ordered_few_bytes(const struct linear_kernel *kernel, size_t tokens, size_t cols)
{
    return kernel->order_few ? kernel->ordered_few_bytes(tokens, cols) : tokens * few_stride(kernel, cols);
}

size_t linear_order_few(const struct linear_kernel *kernel, void *to, const float *x, size_t ldx,
                        size_t tokens, size_t cols)
{
    if (kernel->order_few) {
        kernel->order_few(to, x, ldx, tokens, cols);
        return 0;
    }
    const size_t stride = few_stride(kernel, cols) / sizeof(float);
    for (size_t t = 0; t < tokens; t++) kernel->order((float *)to + t * stride, x + t * ldx, cols);
    return stride;
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
