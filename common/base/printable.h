/* Text from outside, made safe to show: names in files, messages of other programs. A control character (C0,
 * DEL, C1) or a byte that is no UTF-8 becomes \xNN, so that no file can move the cursor or forge a line of a
 * terminal.
 *
 * Called by err.c and log.c for everything they hold, and by tools for what they print. */
#pragma once

#include <stddef.h>
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
