/* Which quantizer this processor runs, and its errors. See quantize.h. */
#include "common/formats/quantize.h"

#include "common/base/cpu.h"

static quantize_blocks *quantizer(void)
{
    const unsigned features = cpu_features();
    return features & CPU_AVX512 ? quantize_avx512 : features & CPU_AVX2 ? quantize_avx2 : quantize_ref;
}

int quantize_rows(const struct tensor_rows *rows, const float *importance, void *out, struct helm_err *err)
{
    const struct quantize_values values = {.data = rows->values,
                                           .dtype = (enum dtype)rows->from,
                                           .count = (uint64_t)rows->rows * rows->cols,
                                           .cols = rows->cols,
                                           .importance = importance};
    const uint64_t done = quantizer()(rows->to, &values, out);
    if (done == values.count) return 0;
    for (uint64_t i = done; i < values.count; i++) {
        const float value = convert_load(values.data, values.dtype, i);
        if (!(value >= -QUANTIZE_MOST && value <= QUANTIZE_MOST))
            return helm_fail(err, HELM_E_FORMAT, "%s: row %llu has %g at %llu, not between -65504 and 65504",
                             tensor_format_name(rows->to), (unsigned long long)(i / rows->cols),
                             (double)value, (unsigned long long)(i % rows->cols));
    }
    return helm_fail(err, HELM_E_INTERNAL, "%s: a block was refused without a reason",
                     tensor_format_name(rows->to));
}
