/* Which bytes of a rendered chat may be control tokens: those that its template wrote itself.
 *
 * A user's text may spell any token. Cutting it off before encoding would change its ordinary tokens where it
 * meets the template's; so the whole text is encoded at once, and a control token that is found where the
 * template did not write it is passed over. Called by tokenizer/added.c (to ask) and tokenizer.c (to encode).
 * Owns nothing that outlives a call. */
#include "client/text/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

#define ASCII_BAR "<|"
#define WIDE_BAR  "<\xEF\xBD\x9C"

static bool is_own(const struct tok_marks *marks, size_t at)
{
    at += marks->from;
    return marks->own && marks->own[at / 8] >> (at % 8) & 1;
}

static bool begins(const char *text, size_t length, const char *with)
{
    return length >= strlen(with) && memcmp(text, with, strlen(with)) == 0;
}

/* White space is a word of some vocabularies, however many templates write it. */
static bool is_blank(const char *text, size_t length)
{
    for (size_t i = 0; i < length;) {
        uint32_t codepoint;
        i += utf8_get(text + i, &codepoint);
        if (!tok_char_is_space(codepoint) && codepoint != 0x2581) return false;
    }
    return true;
}

static bool is_control(const struct tok_marks *marks, const struct tok_added_token *token)
{
    const struct tok_entry *entry = &marks->vocab->entries[token->id];
    const char *text = marks->vocab->bytes.data + entry->offset;
    if (token->special) return true;
    if (is_blank(text, entry->length)) return false;
    return begins(text, entry->length, ASCII_BAR) || begins(text, entry->length, WIDE_BAR) ||
           memmem(marks->chat_template.text, marks->chat_template.length, text, entry->length);
}

bool tok_marks_allow(const struct tok_marks *marks, const struct tok_added *added, uint32_t index,
                     size_t start, size_t stop)
{
    size_t at = start;
    while (at < stop && is_own(marks, at)) at++;
    if (at == stop) return true;
    if (!marks->known[index]) marks->known[index] = is_control(marks, &added->tokens[index]) ? 1 : 2;
    return marks->known[index] == 2;
}

int tok_marks_normalize(const struct helm_tokenizer *tokenizer, const struct tok_marks *marks,
                        struct tok_slice text, const struct tok_buffer *normalized,
                        struct tok_matcher *matcher, unsigned char **own, struct helm_err *err)
{
    const size_t length = text.length;
    struct tok_buffer part = {.limit = HELM_TOKENIZER_TEXT_LIMIT};
    size_t at = 0, begun = 0; /* bytes of `normalized` and of `text` that are done */
    int rc = 0;
    *own = calloc(normalized->length / 8 + 1, 1);
    if (!*own) return helm_fail(err, HELM_E_NOMEM, "no memory for marks of %zu bytes", normalized->length);
    /* each run of bytes alike is normalized by itself; all together have to be what the whole became */
    for (size_t end; begun < length && !rc; begun = end) {
        const bool mine = is_own(marks, begun);
        for (end = begun + 1; end < length && is_own(marks, end) == mine; end++) {}
        const struct tok_slice run = {text.text + begun, end - begun};
        bool dropped;
        rc = begun ? tok_normalize_inside(tokenizer, run, matcher, &part, err)
                   : tok_normalize(tokenizer, run, matcher, &part, &dropped, err);
        if (rc) break;
        if (part.length > normalized->length - at || memcmp(normalized->data + at, part.data, part.length)) {
            memset(*own, 0, normalized->length / 8 + 1);
            break;
        }
        for (size_t i = 0; i < part.length; i++, at++)
            if (mine) (*own)[at / 8] |= (unsigned char)(1u << at % 8);
    }
    if (!rc && begun >= length && at != normalized->length) memset(*own, 0, normalized->length / 8 + 1);
    tok_buffer_free(&part);
    if (rc) free(*own), *own = NULL;
    return rc;
}
