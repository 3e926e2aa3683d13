/* Text from outside, made safe to show: names in files, messages of other programs. A control character (C0, DEL, C1) or
 * a byte that is no UTF-8 becomes \xNN, so that no file can move the cursor or forge a line of a terminal.
 *
 * Called by err.c and log.c for everything they hold, and by tools for what they print. */
#ifndef HELM_COMMON_BASE_PRINTABLE_H
#define HELM_COMMON_BASE_PRINTABLE_H

#include <stddef.h>
#include <stdio.h>

/* `from` as it may be shown, cut to size - 1 bytes between characters; `to` is always NUL-terminated. Returns its
 * length. */
size_t printable(char *to, size_t size, const char *from);

/* A stream whose text goes to `to` (borrowed) as printable() makes it, but for line ends and tabs. fclose flushes and
 * leaves `to` open. NULL: no memory. */
FILE *printable_open(FILE *to);

#endif
