/* Vectors that are stored otherwise than they are used. See model_vector_finish in model.h. Pure but for
 * scratch. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/arch.h"

/* values [rows][cols] becomes [cols][rows]. */
static int transpose(float *values, uint64_t rows, uint64_t cols, struct helm_err *err)
{
    const size_t bytes = (size_t)(rows * cols) * sizeof *values;
    float *copy = malloc(bytes);
    if (!copy) return helm_fail(err, HELM_E_NOMEM, "no memory for a convolution of %zu bytes", bytes);
    memcpy(copy, values, bytes);
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < cols; c++) values[c * rows + r] = copy[r * cols + c];
    free(copy);
    return 0;
}

int model_vector_finish(const struct model_config *config, const struct model_tensor *t, float *values,
                        struct helm_err *err)
{
    const uint64_t count = t->rows * t->cols;
    for (const struct arch_vector *v = arch_of(config)->vectors; v && v->role != TENSOR_NONE; v++)
        for (uint64_t i = 0; v->role == t->role && i < count; i++)
            values[i] = v->form == VECTOR_OVER_ROOT  ? values[i] / sqrtf((float)count)
                        : config->gguf               ? values[i]
                        : v->form == VECTOR_LESS_ONE ? 1 + values[i]
                                                     : -expf(values[i]);
    return arch_role_of_channels(t->role) ? transpose(values, t->rows, t->cols, err) : 0;
}
