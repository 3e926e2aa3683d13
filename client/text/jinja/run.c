/* Memory, limits, errors and UTF-8 of the template interpreter. See jinja/run.h. */
#include "client/text/jinja/run.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES 65536u
#define ALIGNMENT   16u

struct jinja_chunk {
    struct jinja_chunk *older;
    size_t bytes;
    _Alignas(ALIGNMENT) char data[]; /* then, in an arena with marks, a bit for each of its bytes */
};

int jinja_try(struct jinja_run *run, void (*work)(struct jinja_run *run, void *what), void *what)
{
    if (setjmp(run->failed)) return run->code;
    work(run, what);
    return 0;
}

void jinja_fail(struct jinja_run *run, int code, const char *fmt, ...)
{
    char words[HELM_ERR_TEXT];
    va_list args;
    va_start(args, fmt);
    vsnprintf(words, sizeof words, fmt, args);
    va_end(args);
    run->code = run->line ? helm_fail(run->err, code, "line %u: %s", run->line, words)
                          : helm_fail(run->err, code, "%s", words);
    longjmp(run->failed, 1);
}

void *jinja_alloc(struct jinja_run *run, size_t bytes)
{
    struct jinja_arena *arena = &run->arena;
    size_t rounded = bytes > SIZE_MAX / 2 ? bytes : (bytes + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
    if (rounded > arena->bytes_max || arena->bytes > arena->bytes_max - rounded)
        jinja_fail(run, HELM_E_LIMIT, "the template needs more than %zu bytes of memory", arena->bytes_max);
    if (rounded > arena->free_bytes) {
        /* chunks grow with what is in use, so that a large rendering does not make thousands of them */
        size_t space = CHUNK_BYTES + arena->bytes / 4;
        if (rounded > space) space = rounded;
        struct jinja_chunk *chunk = malloc(sizeof *chunk + space + (arena->marked ? space / 8 + 1 : 0));
        if (!chunk) jinja_fail(run, HELM_E_NOMEM, "no memory for the template's values");
        *chunk = (struct jinja_chunk){arena->chunks, space};
        if (arena->marked) memset(chunk->data + space, 0, space / 8 + 1);
        arena->chunks = chunk;
        arena->free_bytes = space;
    }
    char *place = arena->chunks->data + (arena->chunks->bytes - arena->free_bytes);
    arena->free_bytes -= rounded;
    arena->bytes += rounded;
    memset(place, 0, rounded);
    return place;
}

void jinja_grow(struct jinja_run *run, void *array, size_t item_bytes, size_t count, size_t *space)
{
    if (count < *space) return;
    size_t wanted = *space ? 2 * *space : 4;
    void *old, *grown = jinja_alloc(run, wanted * item_bytes);
    memcpy(&old, array, sizeof old);
    if (count) memcpy(grown, old, count * item_bytes);
    memcpy(array, &grown, sizeof grown);
    *space = wanted;
}

void jinja_arena_free(struct jinja_arena *arena)
{
    while (arena->chunks) {
        struct jinja_chunk *older = arena->chunks->older;
        free(arena->chunks);
        arena->chunks = older;
    }
    *arena = (struct jinja_arena){0};
}

void jinja_step(struct jinja_run *run, uint64_t steps)
{
    run->steps += steps;
    if (run->steps > run->steps_max || run->steps < steps)
        jinja_fail(run, HELM_E_LIMIT, "the template takes more than %llu steps",
                   (unsigned long long)run->steps_max);
}

/* ---- marks */

/* The chunk that `text` lies in, or NULL. */
static struct jinja_chunk *chunk_of(const struct jinja_arena *arena, const char *text)
{
    struct jinja_chunk *chunk = arena->chunks;
    const uintptr_t at = (uintptr_t)text;
    while (chunk && (at < (uintptr_t)chunk->data || at >= (uintptr_t)chunk->data + chunk->bytes))
        chunk = chunk->older;
    return chunk;
}

static bool bit(const unsigned char *bits, size_t i)
{
    return bits[i / 8] >> (i % 8) & 1;
}

static void set_bits(unsigned char *bits, size_t from, size_t count)
{
    for (; count && from % 8; from++, count--) bits[from / 8] |= (unsigned char)(1u << from % 8);
    memset(bits + from / 8, 0xFF, count / 8);
    for (from += count / 8 * 8, count %= 8; count; from++, count--)
        bits[from / 8] |= (unsigned char)(1u << from % 8);
}

void jinja_read_marks(const struct jinja_run *run, const char *text, size_t length, unsigned char *to,
                      size_t at)
{
    if (!run->marks || !length) return;
    const struct jinja_chunk *chunk = chunk_of(&run->arena, text);
    if (!chunk) {
        if (chunk_of(run->own, text)) set_bits(to, at, length);
        return;
    }
    const unsigned char *bits = (const unsigned char *)chunk->data + chunk->bytes;
    const size_t from = (size_t)(text - chunk->data);
    for (size_t i = 0; i < length; i++)
        if (bit(bits, from + i)) to[(at + i) / 8] |= (unsigned char)(1u << (at + i) % 8);
}

bool jinja_is_own(const struct jinja_run *run, const char *text, size_t length)
{
    if (!run->marks) return false;
    const struct jinja_chunk *chunk = chunk_of(&run->arena, text);
    if (!chunk) return chunk_of(run->own, text) != NULL;
    const unsigned char *bits = (const unsigned char *)chunk->data + chunk->bytes;
    const size_t from = (size_t)(text - chunk->data);
    size_t i = 0;
    while (i < length && bit(bits, from + i)) i++;
    return i == length;
}

void jinja_mark_own(struct jinja_run *run, const char *text, size_t length)
{
    struct jinja_chunk *chunk = run->marks ? chunk_of(&run->arena, text) : NULL;
    if (chunk) set_bits((unsigned char *)chunk->data + chunk->bytes, (size_t)(text - chunk->data), length);
}

/* `to` is fresh: none of its bytes has a mark. */
static void copy_marks(struct jinja_run *run, const char *to, const char *from, size_t length)
{
    struct jinja_chunk *chunk = run->marks ? chunk_of(&run->arena, to) : NULL;
    if (chunk)
        jinja_read_marks(run, from, length, (unsigned char *)chunk->data + chunk->bytes,
                         (size_t)(to - chunk->data));
}

/* ---- text that grows */

void jinja_buffer_add(struct jinja_run *run, struct jinja_buffer *buffer, const char *text, size_t length)
{
    if (length == 0) return;
    jinja_step(run, length / 64);
    if (length > run->output_max || buffer->length > run->output_max - length)
        jinja_fail(run, HELM_E_LIMIT, "the template makes a text of more than %zu bytes", run->output_max);
    if (buffer->length + length > buffer->space) {
        size_t space = buffer->space ? 2 * buffer->space : 256;
        while (space < buffer->length + length) space *= 2;
        char *grown = jinja_alloc(run, space);
        if (buffer->length) memcpy(grown, buffer->data, buffer->length);
        copy_marks(run, grown, buffer->data, buffer->length);
        buffer->data = grown;
        buffer->space = space;
    }
    memcpy(buffer->data + buffer->length, text, length);
    copy_marks(run, buffer->data + buffer->length, text, length);
    buffer->length += length;
}

size_t jinja_utf8_count(const char *text, size_t bytes)
{
    size_t count = 0;
    for (size_t i = 0; i < bytes; i++) count += ((unsigned char)text[i] & 0xC0) != 0x80;
    return count;
}

bool jinja_is_space(uint32_t code)
{
    return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 || code == 0xA0 ||
           code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
           code == 0x202F || code == 0x205F || code == 0x3000;
}

size_t jinja_space_before(const char *text, size_t bytes)
{
    size_t at = 0, size;
    while (at < bytes && jinja_is_space(jinja_utf8_decode(text + at, &size))) at += size;
    return at;
}

size_t jinja_space_after(const char *text, size_t bytes)
{
    size_t end = bytes;
    while (end > 0) {
        size_t at = jinja_utf8_before(text, end), size;
        if (!jinja_is_space(jinja_utf8_decode(text + at, &size))) break;
        end = at;
    }
    return bytes - end;
}
