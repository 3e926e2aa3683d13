/* Fuzz target: a safetensors file's first bytes. The input is a whole file: length word, header, data. An
 * accepted header must tile the data exactly. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Each accepted tensor, in `data_bytes` of data (or any number of them), begins where the one before
 * ended. */
static void parse(const char *text, size_t length, uint64_t data_bytes)
{
    struct safetensors header;
    struct helm_err err = {0};
    uint64_t at = 0;
    if (safetensors_parse("fuzz", text, length, data_bytes, &header, &err) == 0) {
        for (uint32_t i = 0; i < header.count; i++) {
            if (header.entries[i].begin != at || header.entries[i].rank > SAFETENSORS_RANK_MAX) abort();
            if (__builtin_add_overflow(at, header.entries[i].bytes, &at)) abort();
        }
        if (at != data_bytes && data_bytes != SAFETENSORS_BYTES_UNKNOWN) abort();
    } else if (!err.code || !err.text[0]) {
        abort();
    }
    safetensors_free(&header);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct helm_err err = {0};
    uint64_t length;
    if (size < 8 || safetensors_header_length("fuzz", data, size, &length, &err)) return 0;
    parse((const char *)data + 8, (size_t)length, size - 8 - length);
    parse((const char *)data + 8, (size_t)length, SAFETENSORS_BYTES_UNKNOWN);
    return 0;
}
