/* GBNF as expressions: recursive descent. See gbnf.h. */
#include "client/text/grammar/gbnf.h"

#include <jansson.h>
#include <string.h>

#include "common/base/units.h"

#define DEPTH_MAX 100
#define NAME_MAX  64
#define SET_MAX   512

struct parser {
    struct exprs *x;
    const char *text;
    size_t length, at, line;
    json_t *names; /* of each [its rule, the line where it was first used] */
    uint32_t depth;
};

#define REFUSE(p, code, ...) exprs_fail((p)->x, code, "grammar, line " __VA_ARGS__)

static bool more(const struct parser *p)
{
    return p->at < p->length && !p->x->failed;
}
static char look(const struct parser *p)
{
    return p->at < p->length ? p->text[p->at] : 0;
}

/* White space and comments; line ends only where `lines`. */
static void skip(struct parser *p, bool lines)
{
    for (; more(p); p->at++) {
        const char c = p->text[p->at];
        if (c == '#') {
            while (p->at + 1 < p->length && p->text[p->at + 1] != '\n') p->at++;
        } else if (c == '\n') {
            if (!lines) return;
            p->line++;
        } else if (c != ' ' && c != '\t' && c != '\r') {
            return;
        }
    }
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* The rule of the name that stands here. */
static uint32_t read_name(struct parser *p)
{
    char name[NAME_MAX + 1];
    const size_t from = p->at;
    while (p->at < p->length && is_name(p->text[p->at])) p->at++;
    const size_t n = p->at - from;
    if (n == 0 || n > NAME_MAX) {
        if (n)
            REFUSE(p, HELM_E_LIMIT, "%zu: a name has more than %d characters", p->line, NAME_MAX);
        else
            REFUSE(p, HELM_E_FORMAT, "%zu: a name is missing", p->line);
        return 0;
    }
    memcpy(name, p->text + from, n);
    name[n] = 0;
    const json_t *known = json_object_get(p->names, name);
    if (known) return (uint32_t)json_integer_value(json_array_get(known, 0));
    const uint32_t rule = exprs_new_rule(p->x);
    if (json_object_set_new(p->names, name, json_pack("[I, I]", (json_int_t)rule, (json_int_t)p->line)))
        exprs_fail(p->x, HELM_E_NOMEM, "no memory for a grammar's rules");
    return rule;
}

/* ---- texts and classes ---- */

static uint32_t read_hex(struct parser *p, uint32_t digits)
{
    uint32_t value = 0;
    for (uint32_t i = 0; i < digits; i++, p->at++) {
        const char c = look(p);
        const int d = units_hex_digit(c);
        if (d < 0) {
            REFUSE(p, HELM_E_FORMAT, "%zu: an escape needs %u hexadecimal digits", p->line, digits);
            return 0;
        }
        value = value << 4 | (uint32_t)d;
    }
    if (value > EXPR_CHAR_MAX || (value >= 0xd800 && value <= 0xdfff))
        REFUSE(p, HELM_E_FORMAT, "%zu: there is no character %x", p->line, value);
    return value;
}

static uint32_t read_char(struct parser *p)
{
    uint32_t c = 0;
    if (!expr_next_char(p->text, p->length, &p->at, &c)) {
        REFUSE(p, HELM_E_FORMAT, "%zu: %s", p->line,
               p->at < p->length ? "a character is not UTF-8" : "the grammar ends too early");
        return 0;
    }
    if (c == '\n') p->line++;
    if (c != '\\') return c;
    const char letter = look(p);
    p->at++;
    switch (letter) {
    case 'x':
        return read_hex(p, 2);
    case 'u':
        return read_hex(p, 4);
    case 'U':
        return read_hex(p, 8);
    case 'n':
        return '\n';
    case 't':
        return '\t';
    case 'r':
        return '\r';
    case '\\':
    case '"':
    case '[':
    case ']':
    case '-':
    case '^':
        return (unsigned char)letter;
    default:
        REFUSE(p, HELM_E_UNSUPPORTED,
               "%zu: the escape '\\%c' is not one of \\n \\t \\r \\\\ \\\" \\[ \\] \\- \\^ \\x \\u \\U",
               p->line, letter >= 32 && letter < 127 ? letter : '?');
        return 0;
    }
}

static uint32_t parse_text(struct parser *p)
{
    const uint32_t seq = expr_seq(p->x);
    const size_t line = p->line;
    p->at++;
    while (more(p) && look(p) != '"') expr_add(p->x, seq, expr_char(p->x, read_char(p)));
    if (!p->x->failed && look(p) != '"')
        REFUSE(p, HELM_E_FORMAT, "%zu: the text that begins there does not end", line);
    p->at++;
    return seq;
}

static uint32_t parse_class(struct parser *p)
{
    struct expr_range range[SET_MAX], out[SET_MAX + 2];
    uint32_t count = 0;
    const size_t line = p->line;
    p->at++;
    const bool inverted = look(p) == '^';
    p->at += inverted;
    while (more(p) && look(p) != ']') {
        const uint32_t low = read_char(p);
        uint32_t high = low;
        if (look(p) == '-' && p->at + 1 < p->length && p->text[p->at + 1] != ']') {
            p->at++;
            high = read_char(p);
            if (high < low) REFUSE(p, HELM_E_FORMAT, "%zu: a range of a class runs backwards", p->line);
        }
        if (count == SET_MAX)
            REFUSE(p, HELM_E_LIMIT, "%zu: a class has more than %d ranges", line, SET_MAX);
        else
            range[count++] = (struct expr_range){low, high};
    }
    if (!p->x->failed && look(p) != ']')
        REFUSE(p, HELM_E_FORMAT, "%zu: the class that begins there does not end", line);
    p->at++;
    count = ranges_normalize(range, count);
    if (!inverted) return expr_set(p->x, range, count);
    return expr_set(p->x, out, ranges_invert(range, count, out));
}

/* ---- rules ---- */

static uint32_t parse_alternatives(struct parser *p, bool nested);

static uint32_t parse_item(struct parser *p)
{
    const char c = look(p);
    const size_t line = p->line;
    if (c == '"') return parse_text(p);
    if (c == '[') return parse_class(p);
    if (c == '.') {
        p->at++;
        return expr_set(p->x, &(struct expr_range){0, EXPR_CHAR_MAX}, 1);
    }
    if (c == '(') {
        p->at++;
        if (++p->depth > DEPTH_MAX)
            REFUSE(p, HELM_E_LIMIT, "%zu: groups nest deeper than %d", line, DEPTH_MAX);
        skip(p, true);
        const uint32_t inner = parse_alternatives(p, true);
        p->depth--;
        if (!p->x->failed && look(p) != ')')
            REFUSE(p, HELM_E_FORMAT, "%zu: the group that begins there does not end", line);
        p->at++;
        return inner;
    }
    if (is_name(c)) return expr_rule(p->x, read_name(p));
    if (c == '<' || c == '!')
        REFUSE(p, HELM_E_UNSUPPORTED, "%zu: tokens by name or number ('%c') are not supported", line, c);
    else
        REFUSE(p, HELM_E_FORMAT, "%zu: '%c' begins no text, class, group or name", line,
               c >= 32 && c < 127 ? c : '?');
    return 0;
}

static uint32_t read_count(struct parser *p)
{
    uint32_t n = 0;
    if (look(p) < '0' || look(p) > '9')
        REFUSE(p, HELM_E_FORMAT, "%zu: a repetition is {m}, {m,}, {,n} or {m,n}", p->line);
    for (; look(p) >= '0' && look(p) <= '9'; p->at++)
        n = n > EXPR_REPEAT_MAX ? n : n * 10 + (uint32_t)(look(p) - '0');
    return n;
}

static uint32_t parse_repeats(struct parser *p, uint32_t item, bool lines)
{
    for (; more(p); skip(p, lines)) {
        uint32_t min = 0, max = EXPR_UNBOUNDED;
        const char c = look(p);
        if (c == '+') {
            min = 1;
        } else if (c == '?') {
            max = 1;
        } else if (c == '{') {
            p->at++;
            skip(p, true);
            min = max = look(p) == ',' ? 0 : read_count(p);
            skip(p, true);
            if (look(p) == ',') {
                p->at++;
                skip(p, true);
                max = look(p) == '}' ? EXPR_UNBOUNDED : read_count(p);
                skip(p, true);
            }
            if (!p->x->failed && (look(p) != '}' || max < min))
                REFUSE(p, HELM_E_FORMAT, "%zu: a repetition is {m}, {m,}, {,n} or {m,n}", p->line);
        } else if (c != '*') {
            return item;
        }
        p->at++;
        item = expr_repeat(p->x, item, min, max);
    }
    return item;
}

/* A rule goes on after a line end inside a group and after '|'. */
static uint32_t parse_alternatives(struct parser *p, bool nested)
{
    const uint32_t alt = expr_alt(p->x);
    for (;;) {
        const uint32_t seq = expr_add(p->x, expr_seq(p->x), expr_seq(p->x));
        expr_add(p->x, alt, seq);
        for (skip(p, nested); more(p) && look(p) != '|' && look(p) != ')' && look(p) != '\n';
             skip(p, nested)) {
            const uint32_t item = parse_item(p);
            skip(p, nested);
            expr_add(p->x, seq, parse_repeats(p, item, nested));
        }
        if (!more(p) || look(p) != '|') return alt;
        p->at++;
        skip(p, true);
    }
}

static void parse_rule(struct parser *p)
{
    const size_t line = p->line;
    const char *name = p->text + p->at;
    const uint32_t rule = read_name(p);
    const int shown = (int)(p->text + p->at - name);
    skip(p, false);
    if (p->x->failed) return;
    if (p->length - p->at < 3 || memcmp(p->text + p->at, "::=", 3) != 0) {
        REFUSE(p, HELM_E_FORMAT, "%zu: '::=' is missing after '%.*s'", line, shown, name);
        return;
    }
    p->at += 3;
    if (p->x->rules[rule] != EXPR_NONE)
        REFUSE(p, HELM_E_FORMAT, "%zu: the rule '%.*s' is defined twice", line, shown, name);
    skip(p, true);
    exprs_define(p->x, rule, parse_alternatives(p, false));
    if (more(p) && look(p) != '\n') REFUSE(p, HELM_E_FORMAT, "%zu: '%c' closes nothing", p->line, look(p));
}

void gbnf_rules(struct exprs *x, const char *text, size_t length, const char *const *names, uint32_t *rules,
                size_t count)
{
    struct parser p = {.x = x, .text = text, .length = length, .line = 1, .names = json_object()};
    const char *name;
    json_t *rule;
    for (skip(&p, true); more(&p); skip(&p, true)) parse_rule(&p);
    json_object_foreach(p.names, name, rule)
    {
        if (!x->failed && x->rules[json_integer_value(json_array_get(rule, 0))] == EXPR_NONE)
            exprs_fail(x, HELM_E_FORMAT, "grammar, line %lld: the rule '%s' is not defined",
                       (long long)json_integer_value(json_array_get(rule, 1)), name);
    }
    for (size_t i = 0; i < count && !x->failed; i++) {
        rule = json_object_get(p.names, names[i]);
        if (!rule)
            exprs_fail(x, HELM_E_FORMAT, "the grammar has no rule '%s', which it must begin with", names[i]);
        rules[i] = (uint32_t)json_integer_value(json_array_get(rule, 0));
    }
    json_decref(p.names);
}

uint32_t gbnf_parse(struct exprs *x, const char *text, size_t length)
{
    static const char *const name = "root";
    uint32_t root = 0;
    gbnf_rules(x, text, length, &name, &root, 1);
    return x->failed ? 0 : expr_rule(x, root);
}
