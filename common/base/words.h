/* Whether a text is one of some words. Pure. */
#pragma once

#include <stdbool.h>
#include <string.h>

/* words: ended by NULL. false for a text that is NULL. */
static inline bool word_in(const char *const *words, const char *text)
{
    while (text && *words && strcmp(*words, text) != 0) words++;
    return text && *words;
}
/* WORD_IS(type, "text", "refusal") */
#define WORD_IS(text, ...) word_in((const char *const[]){__VA_ARGS__, NULL}, text)
