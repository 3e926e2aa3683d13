/* Makes GGUF files with a vocabulary in memory, well formed or not: what the tests of their tokenizer begin
 * with. */
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/gguf.h"

#define VOCAB_BYTES (21u << 20)

struct vocab_file {
    uint8_t *bytes; /* VOCAB_BYTES */
    size_t length;
    uint64_t keys;
};

static inline void put(struct vocab_file *f, uint64_t number, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) f->bytes[f->length++] = (uint8_t)(number >> 8 * i);
}
static inline void put_bytes(struct vocab_file *f, const char *text, size_t length)
{
    put(f, length, 8);
    memcpy(f->bytes + f->length, text, length);
    f->length += length;
}
static inline void put_string(struct vocab_file *f, const char *text)
{
    put_bytes(f, text, strlen(text));
}
static inline void vocab_start(struct vocab_file *f)
{
    f->bytes = malloc(VOCAB_BYTES);
    if (!f->bytes) abort();
    f->length = f->keys = 0;
    put(f, 0x46554747, 4);
    put(f, 3, 4);
    put(f, 0, 8);
    put(f, 0, 8); /* of keys: vocab_end */
}
static inline void put_key(struct vocab_file *f, const char *key, enum gguf_type type)
{
    f->keys++;
    put_string(f, key);
    put(f, type, 4);
}
static inline void put_text(struct vocab_file *f, const char *key, const char *text)
{
    put_key(f, key, GGUF_STRING);
    put_string(f, text);
}
static inline void put_u32(struct vocab_file *f, const char *key, uint32_t number)
{
    put_key(f, key, GGUF_U32);
    put(f, number, 4);
}
static inline void put_f32(struct vocab_file *f, float number)
{
    uint32_t bits;
    memcpy(&bits, &number, 4);
    put(f, bits, 4);
}
static inline void put_bool(struct vocab_file *f, const char *key, bool yes)
{
    put_key(f, key, GGUF_BOOL);
    put(f, yes, 1);
}
/* Its elements follow. */
static inline void put_list(struct vocab_file *f, const char *key, enum gguf_type type, uint64_t count)
{
    put_key(f, key, GGUF_ARRAY);
    put(f, type, 4);
    put(f, count, 8);
}
static inline void put_texts(struct vocab_file *f, const char *key, const char *const *texts, size_t count)
{
    put_list(f, key, GGUF_STRING, count);
    for (size_t i = 0; i < count; i++) put_string(f, texts[i]);
}
static inline void put_i32s(struct vocab_file *f, const char *key, const int *numbers, size_t count)
{
    put_list(f, key, GGUF_I32, count);
    for (size_t i = 0; i < count; i++) put(f, (uint32_t)numbers[i], 4);
}
static inline void put_f32s(struct vocab_file *f, const char *key, const float *numbers, size_t count)
{
    put_list(f, key, GGUF_F32, count);
    for (size_t i = 0; i < count; i++) put_f32(f, numbers[i]);
}
static inline void vocab_end(struct vocab_file *f)
{
    memcpy(f->bytes + 16, &f->keys, 8);
}
