/* FNV-1a of 128 bits: a name for bytes, equal for equal bytes. It does not resist forgery, and need not.
 *
 * Called by code that stores a measurement under the name of what was measured. Pure. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct digest {
    uint64_t high, low;
};

struct digest digest_begin(void);
void digest_add(struct digest *digest, const void *bytes, size_t count);
/* 32 hexadecimal digits. */
#define DIGEST_TEXT 33
void digest_text(const struct digest *digest, char text[DIGEST_TEXT]);
