/* Stop texts: where an output ends although the model goes on.
 *
 * Called by helm-cli and the gateway with the text as it grows. A stop text may span tokens, so text that
 * could be the beginning of one is held back until that is decided. Pure; owns nothing. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* NUL-terminated texts; empty ones are found nowhere. */
struct stop_texts {
    const char *const *text;
    size_t count;
};

/* Where the first stop text begins in text[from, length), or SIZE_MAX. */
size_t stop_text_find(const struct stop_texts *stop, const char *text, size_t length, size_t from);

/* How many bytes at the end of text[from, length) could still begin a stop text. */
size_t stop_text_held(const struct stop_texts *stop, const char *text, size_t length, size_t from);
