/* Fuzz target: a GGUF file's header. The input is a whole file. An accepted file's tensors must lie in it,
 * aligned and contiguous; every value is read, and the configuration that the keys make. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/checkpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static double sum; /* keeps the compiler from dropping reads */

static void read_value(const struct gguf *header, const struct gguf_value *value)
{
    struct helm_err err = {0};
    uint64_t number = 0;
    double real = 0;
    char text[256];
    const uint8_t *at = value->data;
    for (uint64_t i = 0; i < value->count; i++) {
        if (value->type != GGUF_STRING) {
            sum += gguf_number(value, i);
            continue;
        }
        const char *string = gguf_string(&at, &number);
        for (uint64_t c = 0; c < number; c++) sum += string[c];
    }
    if (gguf_find(header, value->key) != value) abort();
    if (gguf_get_u64(header, value->key, true, 0, UINT64_MAX, &number, &err) == 0) sum += (double)number;
    if (gguf_get_double(header, value->key, true, -1e300, 1e300, &real, &err) == 0) sum += real;
    if (gguf_get_string(header, value->key, true, text, sizeof text, &err) == 0) sum += (double)strlen(text);
}

/* A configuration that is accepted is within the limits that all others rely on. */
static void read_config(struct gguf *header)
{
    const struct gguf_files files = {.part = header, .count = 1};
    struct model_config config;
    struct helm_err err = {0};
    if (gguf_config_read(&files, &config, &err)) {
        if (!err.code || !err.text[0]) abort();
        return;
    }
    if (!config.gguf || config.layers < 1 || config.layers > MODEL_LAYERS_MAX) abort();
    if (config.heads % config.kv_heads || config.head_dim % 2 || config.vocab > MODEL_VOCAB_MAX) abort();
    for (uint32_t i = 0; i < config.layers; i++) sum += config.window[i];
    model_config_free(&config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gguf header;
    struct helm_err err = {0};
    bool more;
    uint64_t at = 0;
    for (int headers = 0; headers < 2; headers++) {
        const struct gguf_source source = {"fuzz", data, size, size, headers};
        if (gguf_parse(&source, &header, &more, &err)) {
            if (!err.code || !err.text[0]) abort();
        } else {
            at = header.data_offset;
            for (uint32_t i = 0; i < header.count; i++) {
                const struct safetensors_entry *e = &header.entries[i];
                if (e->rank > GGUF_RANK_MAX || header.data_offset + e->begin < at) abort();
                if (e->begin % header.alignment || __builtin_add_overflow(e->begin, e->bytes, &at)) abort();
                at += header.data_offset;
                if (!headers && at > size) abort();
            }
            read_config(&header);
            for (uint32_t i = 0; i < header.value_count; i++) read_value(&header, &header.values[i]);
        }
        if (more) abort(); /* it was the whole file */
        gguf_free(&header);
    }
    return 0;
}
