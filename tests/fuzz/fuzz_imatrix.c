/* Fuzz target: files of importance (tools/quantize/imatrix.c), GGUF and the older kind. Accepted importance
 * is finite, not negative, and of mean 1. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "tools/quantize/imatrix.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct imatrix m;
    struct helm_err err = {0};
    const float *found;
    if (imatrix_parse("fuzz", data, size, &m, &err)) {
        if (!err.code || m.entries) abort();
        return 0;
    }
    for (uint32_t i = 0; i < m.count; i++) {
        const struct imatrix_entry *e = &m.entries[i];
        double sum = 0;
        for (uint32_t c = 0; c < e->cols; c++) {
            if (!(e->importance[c] >= 0)) abort();
            sum += (double)e->importance[c];
        }
        if (fabs(sum / e->cols - 1) > 1e-3) abort();
        if (imatrix_find(&m, e->name, e->cols, &found, &err) || found != e->importance) abort();
    }
    imatrix_free(&m);
    return 0;
}
