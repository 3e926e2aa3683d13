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

/* After the next character. */
static void json_step(struct json_at *in, char c)
{
    if (in->in_string) {
        in->in_string = in->escaped || c != '"';
        in->escaped = !in->escaped && c == '\\';
    } else if (c == '"') {
        in->in_string = true;
    } else if (c == '{' || c == '[') {
        in->depth++;
    } else if ((c == '}' || c == ']') && in->depth) {
        in->depth--;
    }
}

size_t json_copy_add(struct json_copy *copy, struct cli_text *out, const char *data, size_t length)
{
    size_t at = 0;
    for (; at < length && !copy->done; at++) {
        const char c = data[at];
        if (!copy->in.in_string && answer_is_blank(c)) continue;
        if (copy->in.in_string && (unsigned char)c < 32 && !copy->in.escaped) {
            json_add_escaped(out, &c, 1); /* a newline that the model did not escape */
            continue;
        }
        cli_text_add(out, &c, 1);
        copy->begun = true;
        json_step(&copy->in, c);
        copy->done = copy->in.depth == 0 && !copy->in.in_string && (c == '}' || c == ']');
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
        json_step(&s->in, c);
        if (!s->in.in_string && s->in.depth == 0) {
            s->begun = false;
            return s->at;
        }
    }
    return SIZE_MAX;
}
