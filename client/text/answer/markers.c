/* Markers as expressions. See markers.h. */
#include <string.h>

#include "client/text/answer/markers.h"

uint32_t markers_any(struct exprs *x)
{
    return expr_repeat(x, expr_set(x, &(struct expr_range){0, EXPR_CHAR_MAX}, 1), 0, EXPR_UNBOUNDED);
}

uint32_t markers_blanks(struct exprs *x)
{
    static const struct expr_range blanks[] = {{'\t', '\n'}, {'\r', '\r'}, {' ', ' '}};
    return expr_repeat(x, expr_set(x, blanks, 3), 0, 4);
}

/* The special token that text begins with, which ends at one of its closing signs; *length: of its name. */
static uint32_t special_at(const struct helm_tokenizer *t, const char *text, size_t *length)
{
    for (size_t n = strcspn(text, ">]"); text[n]; n += 1 + strcspn(text + n + 1, ">]")) {
        const uint32_t id = helm_tokenizer_token_to_id(t, text, n + 1);
        *length = n + 1;
        if (id != HELM_TOKENIZER_NO_ID && helm_tokenizer_is_special(t, id)) return id;
    }
    return HELM_TOKENIZER_NO_ID;
}

uint32_t markers_text(struct exprs *x, const struct helm_tokenizer *t, const char *marker)
{
    const uint32_t seq = expr_seq(x);
    size_t plain = 0, length = 0;
    while (marker[plain]) {
        const bool may = strchr("<[", marker[plain]) != NULL;
        const uint32_t id = may ? special_at(t, marker + plain, &length) : HELM_TOKENIZER_NO_ID;
        if (id == HELM_TOKENIZER_NO_ID) {
            plain++;
            continue;
        }
        if (plain) expr_add(x, seq, expr_text(x, marker, plain));
        expr_add(x, seq, expr_token(x, id));
        marker += plain + length;
        plain = 0;
    }
    if (plain) expr_add(x, seq, expr_text(x, marker, plain));
    return seq;
}

/* Whether the marker is, or begins with, a special token: then no text can be taken for it. */
static bool begins_special(const struct helm_tokenizer *t, const char *marker)
{
    size_t length;
    return special_at(t, marker, &length) != HELM_TOKENIZER_NO_ID;
}

static bool is_ascii(struct exprs *x, const char *marker)
{
    for (const char *c = marker; *c; c++)
        if ((unsigned char)*c > 127) {
            exprs_fail(x, HELM_E_UNSUPPORTED,
                       "grammars with this family's calls need '%s' as a special token", marker);
            return false;
        }
    return true;
}

uint32_t markers_until(struct exprs *x, const struct helm_tokenizer *t, const char *marker)
{
    if (begins_special(t, marker)) return EXPR_SEQ(x, markers_any(x), markers_text(x, t, marker));
    return is_ascii(x, marker) ? expr_until(x, marker) : expr_seq(x);
}

uint32_t markers_without(struct exprs *x, const struct helm_tokenizer *t, const char *marker)
{
    if (begins_special(t, marker)) return markers_any(x);
    return is_ascii(x, marker) ? expr_without(x, marker) : expr_seq(x);
}

uint32_t markers_header(struct exprs *x, const struct helm_tokenizer *t, const char *channel)
{
    return EXPR_SEQ(x, markers_text(x, t, HARMONY_CHANNEL), expr_string(x, channel),
                    markers_text(x, t, HARMONY_MESSAGE));
}

uint32_t markers_final(struct exprs *x, const struct helm_tokenizer *t, const struct reasoning_tags *tags,
                       enum reasoning_at at, uint32_t answer)
{
    if (tags->open || at == REASONING_CLOSED) return answer;
    const uint32_t json = expr_repeat(x, markers_text(x, t, " <|constrain|>json"), 0, 1);
    return EXPR_SEQ(x, markers_text(x, t, HARMONY_CHANNEL "final"), json, markers_text(x, t, HARMONY_MESSAGE),
                    answer);
}
