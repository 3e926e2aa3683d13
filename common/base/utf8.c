/* UTF-8. See utf8.h. */
#include "common/base/utf8.h"

#include <string.h>

size_t utf8_step(const char *bytes, size_t length, enum utf8_state *state)
{
    const uint8_t *p = (const uint8_t *)bytes;
    uint8_t lead = p[0], low = 0x80, high = 0xBF;
    size_t wanted;
    *state = UTF8_VALID;
    if (lead < 0x80) return 1;
    if (lead >= 0xC2 && lead <= 0xDF) {
        wanted = 2;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
        wanted = 3;
        if (lead == 0xE0) low = 0xA0;  /* shorter forms exist */
        if (lead == 0xED) high = 0x9F; /* surrogates */
    } else if (lead >= 0xF0 && lead <= 0xF4) {
        wanted = 4;
        if (lead == 0xF0) low = 0x90;
        if (lead == 0xF4) high = 0x8F; /* beyond U+10FFFF */
    } else {
        *state = UTF8_INVALID;
        return 1;
    }
    for (size_t i = 1; i < wanted; i++) {
        if (i >= length) {
            *state = UTF8_INCOMPLETE;
            return i;
        }
        if (p[i] < low || p[i] > high) {
            *state = UTF8_INVALID;
            return i;
        }
        low = 0x80;
        high = 0xBF;
    }
    return wanted;
}

size_t utf8_get(const char *bytes, uint32_t *codepoint)
{
    const uint8_t *p = (const uint8_t *)bytes;
    if (p[0] < 0x80) {
        *codepoint = p[0];
        return 1;
    }
    if (p[0] < 0xE0) {
        *codepoint = (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu);
        return 2;
    }
    if (p[0] < 0xF0) {
        *codepoint = (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
        return 3;
    }
    *codepoint = (p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
    return 4;
}

size_t utf8_get_before(const char *bytes, size_t end, uint32_t *codepoint)
{
    size_t at = end - 1;
    while (at > 0 && ((uint8_t)bytes[at] & 0xC0) == 0x80) at--;
    return utf8_get(bytes + at, codepoint);
}

size_t utf8_put(uint32_t codepoint, char *out)
{
    if (codepoint < 0x80) {
        out[0] = (char)codepoint;
        return 1;
    }
    if (codepoint < 0x800) {
        out[0] = (char)(0xC0 | codepoint >> 6);
        out[1] = (char)(0x80 | (codepoint & 0x3F));
        return 2;
    }
    if (codepoint < 0x10000) {
        out[0] = (char)(0xE0 | codepoint >> 12);
        out[1] = (char)(0x80 | (codepoint >> 6 & 0x3F));
        out[2] = (char)(0x80 | (codepoint & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | codepoint >> 18);
    out[1] = (char)(0x80 | (codepoint >> 12 & 0x3F));
    out[2] = (char)(0x80 | (codepoint >> 6 & 0x3F));
    out[3] = (char)(0x80 | (codepoint & 0x3F));
    return 4;
}

static size_t skip_ascii(const char *bytes, size_t length)
{
    size_t i = 0;
    for (; i + 8 <= length; i += 8) {
        uint64_t word;
        memcpy(&word, bytes + i, 8);
        if (word & UINT64_C(0x8080808080808080)) break;
    }
    while (i < length && (uint8_t)bytes[i] < 0x80) i++;
    return i;
}

bool utf8_is_valid(const char *bytes, size_t length)
{
    enum utf8_state state;
    for (size_t i = 0; i < length;) {
        i += skip_ascii(bytes + i, length - i);
        if (i == length) break;
        i += utf8_step(bytes + i, length - i, &state);
        if (state != UTF8_VALID) return false;
    }
    return true;
}
