/* Fuzz target: a safetensors file's first bytes. The input is a whole file: length word, header, data. What
 * is accepted must tile the data exactly. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct safetensors header;
    struct helm_err err = {0};
    uint64_t length;
    if (size < 8 || safetensors_header_length("fuzz", data, size, &length, &err)) return 0;
    uint64_t data_bytes = size - 8 - length, at = 0;
    if (safetensors_parse("fuzz", (const char *)data + 8, (size_t)length, data_bytes, &header, &err) == 0) {
        for (uint32_t i = 0; i < header.count; i++) {
            if (header.entries[i].begin != at || header.entries[i].rank > SAFETENSORS_RANK_MAX) abort();
            at += header.entries[i].bytes;
        }
        if (at != data_bytes) abort();
    } else if (!err.code || !err.text[0]) {
        abort();
    }
    safetensors_free(&header);
    return 0;
}
