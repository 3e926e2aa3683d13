/* Makes GGUF files in memory, well formed or not: what the tests of their reader begin with. */
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/gguf.h"

struct built {
    uint8_t bytes[1 << 16];
    size_t length;
};

static inline void put(struct built *b, uint64_t number, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) b->bytes[b->length++] = (uint8_t)(number >> 8 * i);
}
static inline void put_string(struct built *b, const char *text)
{
    put(b, strlen(text), 8);
    memcpy(b->bytes + b->length, text, strlen(text));
    b->length += strlen(text);
}
static inline void put_start(struct built *b, uint64_t tensors, uint64_t values)
{
    b->length = 0;
    put(b, 0x46554747, 4);
    put(b, 3, 4);
    put(b, tensors, 8);
    put(b, values, 8);
}
static inline void put_key(struct built *b, const char *key, enum gguf_type type)
{
    put_string(b, key);
    put(b, type, 4);
}
static inline void put_u32(struct built *b, const char *key, uint32_t number)
{
    put_key(b, key, GGUF_U32);
    put(b, number, 4);
}
static inline void put_f32(struct built *b, const char *key, float number)
{
    uint32_t bits;
    memcpy(&bits, &number, 4);
    put_key(b, key, GGUF_F32);
    put(b, bits, 4);
}
static inline void put_text(struct built *b, const char *key, const char *text)
{
    put_key(b, key, GGUF_STRING);
    put_string(b, text);
}
/* A tensor of one dimension (rows 0) or two; type by its number in files. */
static inline void put_tensor(struct built *b, const char *name, uint64_t cols, uint64_t rows, uint32_t type,
                              uint64_t offset)
{
    put_string(b, name);
    put(b, rows ? 2 : 1, 4);
    put(b, cols, 8);
    if (rows) put(b, rows, 8);
    put(b, type, 4);
    put(b, offset, 8);
}
/* `bytes` of data after the header. */
static inline void put_data(struct built *b, uint64_t alignment, size_t bytes)
{
    while (b->length % alignment) put(b, 0, 1);
    for (size_t i = 0; i < bytes; i++) put(b, i * 37 + 11, 1);
}
