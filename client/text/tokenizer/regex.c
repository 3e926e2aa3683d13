/* Oniguruma's pattern syntax, which tokenizer.json uses, rewritten as PCRE2's.
 *
 * The two agree on most of what tokenizers use. They differ in classes (\s, \w, \h, \v, \b), options ((?m) is
 * PCRE2's
 * (?s)), scripts, \uHHHH and a few quantifiers; each is rewritten to mean what Oniguruma means. Syntax that
 * has no equal form is refused by name: never matched approximately. Called by tokenizer/pattern.c; owns
 * nothing. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "client/text/tokenizer/internal.h"

#include <pcre2.h>
#include <stdio.h>
#include <string.h>

/* Insides of character classes. */
#define SPACE_BODY "\\x09-\\x0d\\x20\\x{85}\\p{Z}"
#define NOT_SPACE_BODY                                                                                       \
    "\\x00-\\x08\\x0e-\\x1f\\x21-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{"   \
    "2027}"                                                                                                  \
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"
#define WORD_BODY                                                                                            \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}"         \
    "\\x{1f170}-\\x{1f189}"
#define HEX_BODY "0-9A-Fa-f"

struct translation {
    const char *at;
    const char *end;
    const char *start;
    struct tok_buffer *out;
    struct helm_err *err;
};

static int put(struct translation *t, const char *text)
{
    tok_buffer_append(t->out, text, strlen(text));
    return 0;
}

static int copy(struct translation *t, size_t length)
{
    tok_buffer_append(t->out, t->at, length);
    t->at += length;
    return 0;
}

static int refuse(struct translation *t, size_t length)
{
    if (length > (size_t)(t->end - t->at)) length = (size_t)(t->end - t->at);
    if (length > 32) length = 32;
    return helm_fail(t->err, HELM_E_UNSUPPORTED,
                     "regular expression: '%.*s' at byte %zu has no equal in PCRE2", (int)length, t->at,
                     (size_t)(t->at - t->start));
}

static char peek(const struct translation *t, size_t ahead)
{
    return (size_t)(t->end - t->at) > ahead ? t->at[ahead] : '\0';
}

static bool pcre2_knows(const char *pattern)
{
    int code;
    PCRE2_SIZE offset;
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                                         &code, &offset, NULL);
    bool known = compiled != NULL;
    pcre2_code_free(compiled);
    return known;
}

/* \p{Name}: general categories are the same; scripts must be asked for as such, for PCRE2's bare name means
 * script extensions; long category names are not known to PCRE2. */
static int translate_property(struct translation *t)
{
    static const char *const long_names[][2] = {
        {"Letter", "L"},
        {"Uppercase_Letter", "Lu"},
        {"Lowercase_Letter", "Ll"},
        {"Mark", "M"},
        {"Nonspacing_Mark", "Mn"},
        {"Number", "N"},
        {"Decimal_Number", "Nd"},
        {"Digit", "Nd"},
        {"Punctuation", "P"},
        {"Symbol", "S"},
        {"Separator", "Z"},
        {"Other", "C"},
    };
    const char *close = peek(t, 2) == '{' ? memchr(t->at, '}', (size_t)(t->end - t->at)) : NULL;
    if (!close || close - t->at > 64) return refuse(t, 8);
    bool caret = peek(t, 3) == '^';
    const char *name = t->at + 3 + caret;
    int length = (int)(close - name);
    bool inverted = (t->at[1] == 'P') != caret;
    char text[96], probe[160];
    snprintf(text, sizeof text, "%.*s", length, name);
    for (size_t i = 0; i < sizeof long_names / sizeof *long_names; i++)
        if (strcasecmp(text, long_names[i][0]) == 0) snprintf(text, sizeof text, "%s", long_names[i][1]);
    if (strlen(text) > 2) {
        snprintf(probe, sizeof probe, "\\p{sc:%.*s}", length, name);
        if (pcre2_knows(probe)) snprintf(text, sizeof text, "sc:%.*s", length, name);
    }
    snprintf(probe, sizeof probe, "\\%c{%s}", inverted ? 'P' : 'p', text);
    if (!pcre2_knows(probe)) return refuse(t, (size_t)(close + 1 - t->at));
    t->at = close + 1;
    return put(t, probe);
}

/* \xHH, \x{H...}, \uHHHH */
static int translate_code(struct translation *t)
{
    bool braces = t->at[1] == 'x' && peek(t, 2) == '{';
    size_t digits = 0, from = braces ? 3 : 2, most = braces ? 8 : t->at[1] == 'x' ? 2 : 4;
    uint32_t value = 0;
    char text[24];
    while (digits < most && peek(t, from + digits) &&
           strchr("0123456789abcdefABCDEF", peek(t, from + digits))) {
        char c = peek(t, from + digits++);
        value = value << 4 | (uint32_t)(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    size_t used = from + digits + braces;
    if (digits == 0 || (braces && peek(t, from + digits) != '}') || (t->at[1] == 'u' && digits != 4) ||
        (t->at[1] == 'x' && !braces && value >= 0x80)) /* a lone byte of a UTF-8 sequence */
        return refuse(t, used);
    t->at += used;
    snprintf(text, sizeof text, "\\x{%x}", value);
    return put(t, text);
}

/* A letter after a backslash outside of a class and inside; NULL: it has no equal there. */
struct escape {
    char letter;
    const char *outside, *inside;
};
#define BOUNDARY(before, after)                                                                              \
    "(?:(?<=[" WORD_BODY "])(?" before "[" WORD_BODY "])|(?<![" WORD_BODY "])(?" after "[" WORD_BODY "]))"
static const struct escape escapes[] = {
    {'s', "[" SPACE_BODY "]", SPACE_BODY},
    {'S', "[^" SPACE_BODY "]", NOT_SPACE_BODY},
    {'w', "[" WORD_BODY "]", WORD_BODY},
    {'W', "[^" WORD_BODY "]", NULL},
    {'h', "[" HEX_BODY "]", HEX_BODY},
    {'H', "[^" HEX_BODY "]", NULL},
    {'v', "\\x0b", "\\x0b"},
    {'b', BOUNDARY("!", "="), "\\b"},
    {'B', BOUNDARY("=", "!"), NULL},
    {'O', "(?s:.)", NULL},
};

static int translate_escape(struct translation *t, bool in_class)
{
    const char c = peek(t, 1);
    if (!c) return refuse(t, 2);
    for (size_t i = 0; i < sizeof escapes / sizeof *escapes; i++) {
        if (escapes[i].letter != c) continue;
        const char *text = in_class ? escapes[i].inside : escapes[i].outside;
        if (!text) return refuse(t, 2);
        t->at += 2;
        return put(t, text);
    }
    if (c == 'p' || c == 'P') return translate_property(t);
    if (c == 'x' || c == 'u') return translate_code(t);
    if (strchr("dDntrfae", c) || (!in_class && strchr("AzZGKRXkgN", c)))
        return copy(t, 2); /* the same in both */
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return refuse(t, 2);
    if ((uint8_t)c >= 0x80) { /* an escaped character beyond ASCII is itself */
        uint32_t codepoint;
        t->at++;
        return copy(t, utf8_get(t->at, &codepoint));
    }
    return copy(t, 2);
}

static int translate_posix_bracket(struct translation *t)
{
    const char *close = t->at + 2;
    while (close + 1 < t->end && !(close[0] == ':' && close[1] == ']')) close++;
    if (close + 1 >= t->end || close - t->at > 16) return refuse(t, 16);
    size_t length = (size_t)(close + 2 - t->at);
    bool space = length == 9 && memcmp(t->at, "[:space:]", 9) == 0;
    bool word = length == 8 && memcmp(t->at, "[:word:]", 8) == 0;
    bool inverted = t->at[2] == '^';
    if (inverted && (memcmp(t->at + 3, "sp", 2) == 0 || memcmp(t->at + 3, "wo", 2) == 0))
        return refuse(t, length);
    if (!space && !word) return copy(t, length);
    t->at += length;
    return put(t, space ? SPACE_BODY : WORD_BODY);
}

static int translate_class(struct translation *t)
{
    int rc = copy(t, peek(t, 1) == '^' ? 2 : 1);
    if (!rc && peek(t, 0) == ']') { /* first of all it is a plain character */
        t->at++;
        rc = put(t, "\\]");
    }
    while (!rc && t->at < t->end && *t->at != ']') {
        if (*t->at == '\\')
            rc = translate_escape(t, true);
        else if (*t->at == '[' && peek(t, 1) == ':')
            rc = translate_posix_bracket(t);
        else if (*t->at == '[')
            rc = refuse(t, 8); /* a class within a class */
        else if (*t->at == '&' && peek(t, 1) == '&')
            rc = refuse(t, 8);
        else
            rc = copy(t, 1);
    }
    if (rc) return rc;
    return t->at < t->end ? copy(t, 1)
                          : helm_fail(t->err, HELM_E_FORMAT, "regular expression: '[' without ']'");
}

static int translate_group(struct translation *t)
{
    if (peek(t, 1) == '*') return refuse(t, 8); /* PCRE2's verbs; Oniguruma's callouts */
    if (peek(t, 1) != '?') return copy(t, 1);
    char c = peek(t, 2);
    if (c && strchr(":=!>#<", c)) return copy(t, 3);
    size_t length = 2;
    while (peek(t, length) && strchr("imx-", peek(t, length))) length++;
    char close = peek(t, length);
    /* An option for the rest of a group splits alternatives differently in the two, except at the very start.
     */
    bool whole = close == ')' && t->at == t->start;
    if (length == 2 || (close != ':' && !whole)) return refuse(t, length + 1);
    for (size_t i = 0; i <= length; i++) tok_buffer_append(t->out, t->at[i] == 'm' ? "s" : &t->at[i], 1);
    t->at += length + 1;
    return 0;
}

static int translate_interval(struct translation *t)
{
    size_t i = 1;
    while (peek(t, i) >= '0' && peek(t, i) <= '9') i++;
    size_t low = i - 1;
    bool comma = peek(t, i) == ',';
    size_t high_from = i + comma;
    size_t j = high_from;
    while (comma && peek(t, j) >= '0' && peek(t, j) <= '9') j++;
    if (peek(t, j) != '}' || (low == 0 && j == high_from)) { /* not an interval: a plain brace */
        t->at++;
        return put(t, "\\{");
    }
    char after = peek(t, j + 1);
    if (after == '+' || (after == '?' && !comma)) return refuse(t, j + 2); /* meaning differs */
    if (low > 0) return copy(t, j + 1);
    t->at++;
    int rc = put(t, "{0");
    return rc ? rc : copy(t, j);
}

int tok_regex_translate(const char *pattern, size_t length, struct tok_buffer *out, struct helm_err *err)
{
    struct translation t = {pattern, pattern + length, pattern, out, err};
    int rc = 0;
    if (memchr(pattern, '\0', length))
        return helm_fail(err, HELM_E_UNSUPPORTED, "regular expression: a NUL in it");
    while (!rc && t.at < t.end) {
        switch (*t.at) {
        case '\\':
            rc = translate_escape(&t, false);
            break;
        case '[':
            rc = translate_class(&t);
            break;
        case '(':
            rc = translate_group(&t);
            break;
        case '{':
            rc = translate_interval(&t);
            break;
        default:
            rc = copy(&t, 1);
            break;
        }
    }
    return rc ? rc : tok_buffer_check(out, err);
}
