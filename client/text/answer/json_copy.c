/* JSON text as a model writes it: copied without a look at its meaning, so that numbers keep their digits.
 * See parts.h. */
#include <stdio.h>
#include <string.h>

#include "client/text/answer/parts.h"

void json_add_escaped(struct cli_text *out, const char *data, size_t length)
{
    static const char plain[] = "\"\\\n\r\t", escaped[] = "\"\\nrt";
    size_t from = 0;
    for (size_t i = 0; i < length; i++) {
        const unsigned char c = (unsigned char)data[i];
        const char *found = c ? strchr(plain, c) : NULL;
        if (!found && c >= 32) continue;
        cli_text_add(out, data + from, i - from);
        from = i + 1;
        if (found)
            cli_text_printf(out, "\\%c", escaped[found - plain]);
        else
            cli_text_printf(out, "\\u%04x", c);
    }
    cli_text_add(out, data + from, length - from);
}

size_t json_copy_add(struct json_copy *copy, struct cli_text *out, const char *data, size_t length)
{
    size_t at = 0;
    for (; at < length && !copy->done; at++) {
        const char c = data[at];
        if (!copy->in_string && answer_is_blank(c)) continue;
        if (copy->in_string && (unsigned char)c < 32 && !copy->escaped) {
            json_add_escaped(out, &c, 1); /* a newline that the model did not escape */
            continue;
        }
        cli_text_add(out, &c, 1);
        copy->begun = true;
        if (copy->in_string) {
            copy->in_string = copy->escaped || c != '"';
            copy->escaped = !copy->escaped && c == '\\';
        } else if (c == '"') {
            copy->in_string = true;
        } else if (c == '{' || c == '[') {
            copy->depth++;
        } else if ((c == '}' || c == ']') && copy->depth) {
            copy->depth--;
        }
        copy->done = copy->depth == 0 && !copy->in_string && (c == '}' || c == ']');
    }
    return at;
}

size_t json_skip_value(struct json_skip *s, const struct cli_text *text, size_t from)
{
    if (!s->begun || s->from != from) *s = (struct json_skip){.from = from, .at = from, .begun = true};
    const char first = from < text->length ? text->data[from] : 0;
    const bool scalar = first != '{' && first != '[' && first != '"';
    while (s->at < text->length) {
        const char c = text->data[s->at];
        if (scalar && (c == ',' || c == '}' || c == ']' || answer_is_blank(c))) {
            s->begun = false;
            return s->at;
        }
        s->at++;
        if (scalar) continue;
        if (s->in_string) {
            s->in_string = s->escaped || c != '"';
            s->escaped = !s->escaped && c == '\\';
        } else if (c == '"') {
            s->in_string = true;
        } else if (c == '{' || c == '[') {
            s->depth++;
        } else if (c == '}' || c == ']') {
            s->depth--;
        }
        if (!s->in_string && s->depth == 0) {
            s->begun = false;
            return s->at;
        }
    }
    return SIZE_MAX;
}
