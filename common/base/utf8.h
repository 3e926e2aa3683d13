/* UTF-8: what is well formed, and its characters. Called by readers of texts from outside. Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
