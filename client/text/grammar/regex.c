/* Regular expressions as expressions of a grammar: recursive descent. See regex.h. */
#include "client/text/grammar/regex.h"

#include <string.h>

#include "client/text/grammar/json_text.h"
#include "common/base/units.h"

#define DEPTH_MAX 100
#define SET_MAX   512 /* ranges of one class */

struct parser {
    struct exprs *x;
    const char *text;
    size_t length, at;
    enum regex_mode mode;
    uint32_t depth;
};

struct set {
    struct expr_range range[SET_MAX];
    uint32_t count;
};

#define REFUSE(p, code, ...) exprs_fail((p)->x, code, "regular expression: " __VA_ARGS__)

static bool more(const struct parser *p)
{
    return p->at < p->length && !p->x->failed;
}

static bool peek(const struct parser *p, const char *what)
{
    const size_t n = strlen(what);
    return p->length - p->at >= n && memcmp(p->text + p->at, what, n) == 0;
}

static bool eat(struct parser *p, const char *what)
{
    if (!peek(p, what)) return false;
    p->at += strlen(what);
    return true;
}

static uint32_t next_char(struct parser *p)
{
    uint32_t c = 0;
    if (!expr_next_char(p->text, p->length, &p->at, &c))
        REFUSE(p, HELM_E_FORMAT, "%s at byte %zu", p->at < p->length ? "no UTF-8" : "it ends too early",
               p->at);
    return c;
}

/* ---- classes ---- */

static void set_add(struct parser *p, struct set *set, uint32_t low, uint32_t high)
{
    if (set->count == SET_MAX)
        REFUSE(p, HELM_E_LIMIT, "the class at byte %zu has more than %d ranges", p->at, SET_MAX);
    else
        set->range[set->count++] = (struct expr_range){low, high};
}

/* \d, \w, \s and their opposites, of ASCII. false: another letter. */
static bool add_named(struct parser *p, struct set *set, uint32_t letter)
{
    static const struct {
        char name;
        uint32_t count;
        struct expr_range range[4];
    } classes[] = {{'d', 1, {{'0', '9'}}},
                   {'w', 4, {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}},
                   {'s', 2, {{'\t', '\r'}, {' ', ' '}}}};
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        struct expr_range opposite[8];
        const bool straight = letter == (uint32_t)classes[i].name;
        if (!straight && letter != (uint32_t)classes[i].name - 32) continue;
        const uint32_t n =
            straight ? classes[i].count : ranges_invert(classes[i].range, classes[i].count, opposite);
        for (uint32_t k = 0; k < n; k++)
            set_add(p, set, straight ? classes[i].range[k].low : opposite[k].low,
                    straight ? classes[i].range[k].high : opposite[k].high);
        return true;
    }
    return false;
}

static uint32_t read_hex(struct parser *p, uint32_t digits)
{
    uint32_t value = 0;
    for (uint32_t i = 0; i < digits; i++) {
        const char c = p->at < p->length ? p->text[p->at] : 0;
        const int d = units_hex_digit(c);
        if (d < 0) {
            REFUSE(p, HELM_E_FORMAT, "byte %zu is no hexadecimal digit of an escape", p->at);
            return 0;
        }
        value = value << 4 | (uint32_t)d;
        p->at++;
    }
    if (value >= 0xd800 && value <= 0xdfff)
        REFUSE(p, HELM_E_UNSUPPORTED, "surrogates such as \\u%04x", value);
    return value;
}

/* After a backslash: a character, or a class that is added to *set (*single is false then). */
static uint32_t read_escape(struct parser *p, struct set *set, bool *single)
{
    static const char from[] = "nrtfv0", to[] = "\n\r\t\f\v";
    const size_t at = p->at;
    const uint32_t c = next_char(p);
    *single = true;
    if (p->x->failed) return 0;
    const char *letter = c < 0x80 && c ? strchr(from, (int)c) : NULL;
    if (letter) {
        if (c == '0' && p->at < p->length && p->text[p->at] >= '0' && p->text[p->at] <= '9')
            REFUSE(p, HELM_E_UNSUPPORTED, "octal escapes (byte %zu)", at);
        return (unsigned char)to[letter - from];
    }
    if (c == 'x') return read_hex(p, 2);
    if (c == 'u') return read_hex(p, 4);
    if (add_named(p, set, c)) {
        *single = false;
        return 0;
    }
    if ((c >= '1' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        REFUSE(p, HELM_E_UNSUPPORTED, "'\\%c' (byte %zu) is not supported", (int)c, at);
    return c;
}

static uint32_t make_set(struct parser *p, struct set *set)
{
    set->count = ranges_normalize(set->range, set->count);
    return p->mode == REGEX_JSON_SEARCH ? json_text_set(p->x, set->range, set->count)
                                        : expr_set(p->x, set->range, set->count);
}

static uint32_t parse_class(struct parser *p)
{
    struct set set = {.count = 0};
    const size_t from = p->at;
    const bool inverted = eat(p, "^");
    bool first = true;
    while (more(p) && (first || !peek(p, "]"))) {
        bool single = true, single_high = true;
        first = false;
        if (peek(p, "[:") || peek(p, "[=") || peek(p, "[."))
            REFUSE(p, HELM_E_UNSUPPORTED, "classes such as [:alpha:] (byte %zu)", p->at);
        uint32_t low =
            eat(p, "\\") ? peek(p, "b") ? (p->at++, 8u) : read_escape(p, &set, &single) : next_char(p);
        if (!single) continue;
        uint32_t high = low;
        if (peek(p, "-") && p->at + 1 < p->length && p->text[p->at + 1] != ']') {
            p->at++;
            high = eat(p, "\\") ? read_escape(p, &set, &single_high) : next_char(p);
            if (!single_high || high < low)
                REFUSE(p, HELM_E_FORMAT, "the range that ends at byte %zu runs backwards", p->at);
        }
        set_add(p, &set, low, high);
    }
    if (!p->x->failed && !eat(p, "]"))
        REFUSE(p, HELM_E_FORMAT, "the class that begins at byte %zu does not end", from);
    if (inverted && !p->x->failed) {
        struct expr_range out[SET_MAX + 2];
        set.count = ranges_normalize(set.range, set.count);
        const uint32_t n = ranges_invert(set.range, set.count, out);
        if (n > SET_MAX)
            REFUSE(p, HELM_E_LIMIT, "the class at byte %zu has more than %d ranges", from, SET_MAX);
        else
            memcpy(set.range, out, n * sizeof *out);
        set.count = n;
    }
    return make_set(p, &set);
}

static uint32_t parse_dot(struct parser *p)
{
    struct set set = {.count = 0};
    static const struct expr_range line_ends[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
    set.count = ranges_invert(line_ends, 3, set.range);
    return make_set(p, &set);
}

/* ---- the grammar of expressions ---- */

static uint32_t parse_alternatives(struct parser *p, bool top);

static uint32_t parse_group(struct parser *p)
{
    const size_t from = p->at;
    if (eat(p, "?")) {
        if (peek(p, "<") && !peek(p, "<=") && !peek(p, "<!")) { /* a name changes nothing */
            while (more(p) && p->text[p->at] != '>') p->at++;
            p->at += p->at < p->length;
        } else if (!eat(p, ":")) {
            REFUSE(p, HELM_E_UNSUPPORTED,
                   "the group at byte %zu: only (...), (?:...) and (?<name>...) are supported, "
                   "no look-around and no flags",
                   from);
        }
    }
    if (++p->depth > DEPTH_MAX) REFUSE(p, HELM_E_LIMIT, "groups nest deeper than %d", DEPTH_MAX);
    const uint32_t inner = parse_alternatives(p, false);
    p->depth--;
    if (!p->x->failed && !eat(p, ")"))
        REFUSE(p, HELM_E_FORMAT, "the group that begins at byte %zu does not end", from);
    return inner;
}

static uint32_t parse_atom(struct parser *p)
{
    const size_t at = p->at;
    if (eat(p, "(")) return parse_group(p);
    if (eat(p, "[")) return parse_class(p);
    if (eat(p, ".")) return parse_dot(p);
    if (peek(p, "*") || peek(p, "+") || peek(p, "?"))
        REFUSE(p, HELM_E_FORMAT, "'%c' at byte %zu repeats nothing", p->text[at], at);
    if (peek(p, "^") || peek(p, "$"))
        REFUSE(p, HELM_E_UNSUPPORTED, "'%c' at byte %zu: it may stand at the ends of the expression only",
               p->text[at], at);
    struct set set = {.count = 0};
    bool single = true;
    const uint32_t c = eat(p, "\\") ? read_escape(p, &set, &single) : next_char(p);
    if (single) set_add(p, &set, c, c);
    return make_set(p, &set);
}

static uint32_t read_count(struct parser *p)
{
    uint32_t n = 0;
    const size_t at = p->at;
    while (p->at < p->length && p->text[p->at] >= '0' && p->text[p->at] <= '9') {
        n = n > EXPR_REPEAT_MAX ? n : n * 10 + (uint32_t)(p->text[p->at] - '0');
        p->at++;
    }
    if (p->at == at) REFUSE(p, HELM_E_FORMAT, "byte %zu is no count", at);
    return n;
}

/* true: there was one. */
static bool parse_quantifier(struct parser *p, uint32_t *min, uint32_t *max)
{
    const size_t at = p->at;
    *min = 0;
    *max = EXPR_UNBOUNDED;
    if (eat(p, "*")) {
    } else if (eat(p, "+")) {
        *min = 1;
    } else if (eat(p, "?")) {
        *max = 1;
    } else if (eat(p, "{")) {
        *min = *max = peek(p, ",") ? 0 : read_count(p);
        if (eat(p, ",")) *max = peek(p, "}") ? EXPR_UNBOUNDED : read_count(p);
        if (!p->x->failed && !eat(p, "}"))
            REFUSE(p, HELM_E_FORMAT, "the repetition at byte %zu is not {m}, {m,} or {m,n}", at);
        if (*max < *min) REFUSE(p, HELM_E_FORMAT, "the repetition at byte %zu has less as its most", at);
    } else {
        return false;
    }
    if (eat(p, "+")) REFUSE(p, HELM_E_UNSUPPORTED, "possessive repetitions (byte %zu)", at);
    (void)eat(p, "?"); /* lazy: the same texts */
    return true;
}

static uint32_t any_text(struct parser *p)
{
    return expr_repeat(p->x, json_text_any(p->x), 0, EXPR_UNBOUNDED);
}

/* One alternative; at the top it may be bound to the ends. */
static uint32_t parse_sequence(struct parser *p, bool top)
{
    const uint32_t seq = expr_seq(p->x);
    const bool search = p->mode == REGEX_JSON_SEARCH && top;
    bool bound = top && eat(p, "^");
    if (search && !bound) expr_add(p->x, seq, any_text(p));
    bound = false;
    while (more(p) && !peek(p, "|") && !peek(p, ")")) {
        if (top && peek(p, "$") && (p->at + 1 == p->length || p->text[p->at + 1] == '|')) {
            p->at++;
            bound = true;
            break;
        }
        uint32_t min, max, atom = parse_atom(p);
        if (p->x->failed) break;
        if (parse_quantifier(p, &min, &max)) {
            if (peek(p, "*") || peek(p, "+") || peek(p, "?") || peek(p, "{"))
                REFUSE(p, HELM_E_FORMAT, "byte %zu repeats a repetition", p->at);
            atom = expr_repeat(p->x, atom, min, max);
        }
        expr_add(p->x, seq, atom);
    }
    if (search && !bound) expr_add(p->x, seq, any_text(p));
    return seq;
}

static uint32_t parse_alternatives(struct parser *p, bool top)
{
    const uint32_t alt = expr_alt(p->x);
    do {
        expr_add(p->x, alt, parse_sequence(p, top));
    } while (!p->x->failed && eat(p, "|"));
    return alt;
}

uint32_t regex_parse(struct exprs *x, const char *text, size_t length, enum regex_mode mode)
{
    struct parser p = {.x = x, .text = text, .length = length, .mode = mode};
    const uint32_t whole = parse_alternatives(&p, true);
    if (more(&p)) REFUSE(&p, HELM_E_FORMAT, "the ')' at byte %zu closes nothing", p.at);
    return whole;
}
