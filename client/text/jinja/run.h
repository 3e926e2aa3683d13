/* The working state of one parse or one rendering: its memory, its limits, its error.
 *
 * Called by every jinja_*.c. All memory comes from the arena and goes at once with it; nothing is freed
 * singly. Every failure passes through jinja_fail, which puts the template's line before the words and
 * returns to jinja_try: no function below it returns after a failure, so none has a result to be checked.
 * Whatever needs giving back is therefore the arena's, or is owned by the caller of jinja_try. */
#pragma once

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/base/printable.h"

struct jinja_chunk;
struct jinja_arena {
    struct jinja_chunk *chunks;
    size_t free_bytes; /* left in the newest chunk */
    size_t bytes, bytes_max;
    bool marked; /* its chunks have room for marks */
};

struct jinja_value;
struct jinja_scope;
struct jinja_run {
    struct jinja_arena arena;
    struct helm_err *err;
    jmp_buf failed; /* where jinja_fail returns to: jinja_try */
    int code;       /* of the failure */
    uint32_t line;  /* of what is being parsed or evaluated */
    uint64_t steps, steps_max;
    size_t output_max;
    int depth, macro_depth;
    int64_t now_s;
    struct jinja_scope *scope;       /* the innermost one, whose names are seen */
    const struct jinja_value *piped; /* into the filters of a filter or set block */
    bool marks;                      /* bytes have marks (below) */
    const struct jinja_arena *own;   /* of the template: what it wrote itself */
    const char *own_key;             /* as in struct jinja_input */
    const struct json_numbers *numbers;
};

/* Calls `work` with `what`: 0, or the code of the failure that ended it. */
HELM_MUST_CHECK int jinja_try(struct jinja_run *run, void (*work)(struct jinja_run *run, void *what),
                              void *what);
/* Records the failure "line N: ..." and goes back to jinja_try. */
_Noreturn void jinja_fail(struct jinja_run *run, int code, const char *fmt, ...) HELM_PRINTF(3, 4);

/* Zeroed, aligned for anything. */
void *jinja_alloc(struct jinja_run *run, size_t bytes);
/* Room for one more item in the array that the pointer at `array` names: `count` of `*space` are in use. */
void jinja_grow(struct jinja_run *run, void *array, size_t item_bytes, size_t count, size_t *space);
void jinja_arena_free(struct jinja_arena *arena);

/* Counts work; HELM_E_LIMIT past steps_max. */
void jinja_step(struct jinja_run *run, uint64_t steps);

/* Text that grows in the arena. Zero-initialise. */
struct jinja_buffer {
    char *data;
    size_t length, space;
};
void jinja_buffer_add(struct jinja_run *run, struct jinja_buffer *buffer, const char *text, size_t length);

/* ---- marks: a bit for each byte of the arena, set where the template itself wrote it. Copies carry their
 * marks; parts of a text lie where the text does. All else, what came with the variables and what was
 * computed from it, has none. */

/* Whether the template wrote all of these bytes; false without marks. */
bool jinja_is_own(const struct jinja_run *run, const char *text, size_t length);
/* Marks bytes in the run's arena. */
void jinja_mark_own(struct jinja_run *run, const char *text, size_t length);
/* Sets bit `at` + i of `to` (zeroed) where byte i has a mark. */
void jinja_read_marks(const struct jinja_run *run, const char *text, size_t length, unsigned char *to,
                      size_t at);

/* ---- UTF-8, checked when it came in */

/* Bytes of the character that starts with this byte. */
static inline size_t jinja_utf8_size(unsigned char first)
{
    return first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}
static inline uint32_t jinja_utf8_decode(const char *text, size_t *size)
{
    uint32_t code;
    *size = utf8_get(text, &code);
    return code;
}
/* Where the last character before `end` begins. */
static inline size_t jinja_utf8_before(const char *text, size_t end)
{
    size_t at = end - 1;
    while (at > 0 && ((unsigned char)text[at] & 0xC0) == 0x80) at--;
    return at;
}
size_t jinja_utf8_count(const char *text, size_t bytes);
/* Whether Python's str.isspace and str.strip take it for white space. */
bool jinja_is_space(uint32_t code);
/* Bytes of white space at the text's start, at its end. */
size_t jinja_space_before(const char *text, size_t bytes);
size_t jinja_space_after(const char *text, size_t bytes);
