/* Text from outside, made safe to show: names in files, messages of other programs. A control character (C0,
 * DEL, C1) or a byte that is no UTF-8 becomes \xNN, so that no file can move the cursor or forge a line of a
 * terminal.
 *
 * Called by err.c and log.c for everything they hold, and by tools for what they print. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Bytes of the character at `from`, of which `length` (at least 1) are there; 0: it may not be shown. */
size_t printable_character(const char *from, size_t length);

/* The character at `from`, or its first byte as \xNN. *taken: bytes of `from`. Returns how many bytes `to`
 * has got. */
size_t printable_show(char to[4], const char *from, size_t length, size_t *taken);

/* `from` as it may be shown, cut to size - 1 bytes between characters; `to` is always NUL-terminated. Returns
 * its length. */
size_t printable(char *to, size_t size, const char *from);

/* A stream whose text goes to `to` (borrowed) as printable() makes it, but for line ends and tabs. fclose
 * flushes and leaves `to` open. NULL: no memory. */
FILE *printable_open(FILE *to);

/* UTF-8: what is well formed, and its characters. Called by readers of texts from outside. Pure. */
enum utf8_state { UTF8_VALID, UTF8_INVALID, UTF8_INCOMPLETE };

/* Length (1 to 4; at least 1) of the character, or of the longest prefix of a well-formed one, at `bytes`. */
size_t utf8_step(const char *bytes, size_t length, enum utf8_state *state);
/* The character at `bytes`, which is valid UTF-8; returns its length. */
size_t utf8_get(const char *bytes, uint32_t *codepoint);
/* The character that ends just before bytes[end]; end > 0. */
size_t utf8_get_before(const char *bytes, size_t end, uint32_t *codepoint);
/* Returns how many bytes `out` has got, at most 4. */
size_t utf8_put(uint32_t codepoint, char *out);
bool utf8_is_valid(const char *bytes, size_t length);
