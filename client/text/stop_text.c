/* Finding stop texts. See stop_text.h. */
#include "client/text/stop_text.h"

#include <string.h>

size_t stop_text_find(const struct stop_texts *stop, const char *text, size_t length, size_t from)
{
    size_t first = SIZE_MAX;
    for (size_t i = 0; i < stop->count; i++) {
        const size_t bytes = strlen(stop->text[i]);
        if (bytes == 0 || length - from < bytes) continue;
        const char *at = memmem(text + from, length - from, stop->text[i], bytes);
        if (at && (size_t)(at - text) < first) first = (size_t)(at - text);
    }
    return first;
}

size_t stop_text_held(const struct stop_texts *stop, const char *text, size_t length, size_t from)
{
    size_t held = 0;
    for (size_t i = 0; i < stop->count; i++) {
        const size_t bytes = strlen(stop->text[i]);
        size_t tail = length - from;
        if (bytes && tail > bytes - 1) tail = bytes - 1;
        for (; tail > held; tail--)
            if (bytes && memcmp(text + length - tail, stop->text[i], tail) == 0) held = tail;
    }
    return held;
}
