/* Template text to tokens: tags, white space control (-, +, trim_blocks, lstrip_blocks), raw blocks,
 * comments, literals. See jinja/lex.h. Called by jinja_parse. */
#include "client/text/jinja/lex.h"
#include "common/base/units.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define JINJA_LEX_OPEN_MAX 100

struct lexer {
    struct jinja_run *run;
    const char *text; /* line ends are all \n */
    size_t length, at;
    uint32_t line; /* of text[at] */
    struct jinja_token *tokens;
    size_t count, space;
    char open[JINJA_LEX_OPEN_MAX];
    int open_count;
};

static void add_token(struct lexer *lx, struct jinja_token token)
{
    jinja_grow(lx->run, &lx->tokens, sizeof token, lx->count, &lx->space);
    token.line = lx->line;
    lx->tokens[lx->count++] = token;
}

static void advance_to(struct lexer *lx, size_t to)
{
    for (; lx->at < to; lx->at++)
        if (lx->text[lx->at] == '\n') lx->line++;
}

static char peek(const struct lexer *lx, size_t ahead)
{
    return lx->at + ahead < lx->length ? lx->text[lx->at + ahead] : '\0';
}

static bool starts_with(const struct lexer *lx, size_t at, const char *words)
{
    size_t n = strlen(words);
    return at <= lx->length && lx->length - at >= n && memcmp(lx->text + at, words, n) == 0;
}

static size_t skip_space(const struct lexer *lx, size_t at)
{
    return at + jinja_space_before(lx->text + at, lx->length - at);
}

/* The text before a tag, cut as the tag's sign asks. `print`: {{ leaves indentation alone. */
static void add_data(struct lexer *lx, size_t end, char sign, bool print)
{
    const char *text = lx->text + lx->at;
    size_t length = end - lx->at;
    if (sign == '-') {
        length -= jinja_space_after(text, length);
    } else if (sign != '+' && !print) {
        size_t line_start = length;
        while (line_start > 0 && text[line_start - 1] != '\n') line_start--;
        bool at_line_start = line_start > 0 || lx->at == 0 || lx->text[lx->at - 1] == '\n';
        if (at_line_start &&
            jinja_space_before(text + line_start, length - line_start) == length - line_start)
            length = line_start;
    }
    if (length) add_token(lx, (struct jinja_token){.kind = JINJA_TOKEN_DATA, .text = text, .length = length});
    advance_to(lx, end);
}

/* Where the text goes on after a tag's end at `at`: "-" eats white space, "+" nothing, otherwise one line end
 * if `trim`. Returns 0 if no such end stands there. */
static size_t tag_end(const struct lexer *lx, size_t at, const char *mark, bool plus, bool trim)
{
    char sign = at < lx->length ? lx->text[at] : '\0';
    if (sign == '-' && starts_with(lx, at + 1, mark)) return skip_space(lx, at + 3);
    if (plus && sign == '+' && starts_with(lx, at + 1, mark)) return at + 3;
    if (!starts_with(lx, at, mark)) return 0;
    return trim && starts_with(lx, at + 2, "\n") ? at + 3 : at + 2;
}

static char sign_at(const struct lexer *lx, size_t at)
{
    char c = at < lx->length ? lx->text[at] : '\0';
    return c == '-' || c == '+' ? c : '\0';
}

/* {% raw %} at `at`? Where its contents begin, or 0. */
static size_t raw_begin(const struct lexer *lx, size_t at)
{
    size_t p = skip_space(lx, at + 2 + (sign_at(lx, at + 2) != '\0'));
    if (!starts_with(lx, p, "raw")) return 0;
    return tag_end(lx, skip_space(lx, p + 3), "%}", false, false);
}

static void lex_raw(struct lexer *lx)
{
    uint32_t line = lx->line;
    for (size_t p = lx->at; p + 1 < lx->length; p++) {
        if (lx->text[p] != '{' || lx->text[p + 1] != '%') continue;
        char sign = sign_at(lx, p + 2);
        size_t name = skip_space(lx, p + 2 + (sign != '\0'));
        if (!starts_with(lx, name, "endraw")) continue;
        size_t after = tag_end(lx, skip_space(lx, name + 6), "%}", true, true);
        if (!after) continue;
        add_data(lx, p, sign, false);
        advance_to(lx, after);
        return;
    }
    lx->run->line = line;
    jinja_fail(lx->run, HELM_E_FORMAT, "'raw' has no end");
}

static void lex_comment(struct lexer *lx)
{
    for (size_t p = lx->at; p + 1 < lx->length; p++) {
        if (lx->text[p] != '#' || lx->text[p + 1] != '}') continue;
        size_t end = p > lx->at && (lx->text[p - 1] == '-' || lx->text[p - 1] == '+') ? p - 1 : p;
        advance_to(lx, tag_end(lx, end, "#}", true, true));
        return;
    }
    lx->run->line = lx->line;
    jinja_fail(lx->run, HELM_E_FORMAT, "a comment has no end");
}

/* ---- literals */

/* One escape of a string literal: text[*at] is what follows the backslash. */
static void lex_escape(struct lexer *lx, const char *text, size_t length, size_t *at, char *out, size_t *used)
{
    static const char plain[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";
    char c = text[(*at)++];
    if (c == '\n') return; /* a line that goes on */
    for (size_t i = 0; i < sizeof plain - 1; i += 2) {
        if (plain[i] != c) continue;
        out[(*used)++] = plain[i + 1];
        return;
    }
    uint32_t code = 0;
    if (c >= '0' && c <= '7') {
        code = (uint32_t)(c - '0');
        for (int i = 0; i < 2 && *at < length && text[*at] >= '0' && text[*at] <= '7'; i++)
            code = code * 8 + (uint32_t)(text[(*at)++] - '0');
    } else if (c == 'x' || c == 'u' || c == 'U') {
        int digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        for (int i = 0; i < digits; i++) {
            int digit = *at < length ? units_hex_digit(text[*at]) : -1;
            if (digit < 0) jinja_fail(lx->run, HELM_E_FORMAT, "a truncated \\%c escape in a string", c);
            code = code * 16 + (uint32_t)digit;
            (*at)++;
        }
        if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
            jinja_fail(lx->run, HELM_E_FORMAT, "\\%c%0*X in a string is no character", c, digits,
                       (unsigned)code);
    } else if (c == 'N') {
        jinja_fail(lx->run, HELM_E_UNSUPPORTED, "the escape \\N{...} in a string");
    } else { /* Python keeps the backslash of an escape that it does not know */
        out[(*used)++] = '\\';
        out[(*used)++] = c;
        return;
    }
    *used += utf8_put(code, out + *used);
}

static void lex_string(struct lexer *lx)
{
    char quote = lx->text[lx->at];
    size_t start = lx->at + 1, end = start, used = 0;
    while (end < lx->length && lx->text[end] != quote) end += lx->text[end] == '\\' ? 2 : 1;
    if (end >= lx->length) jinja_fail(lx->run, HELM_E_FORMAT, "a string has no end");
    char *out = jinja_alloc(lx->run, end - start + 1);
    for (size_t i = start; i < end;) {
        if (lx->text[i] != '\\') {
            out[used++] = lx->text[i++];
            continue;
        }
        size_t next = i + 1 - start;
        /* an escape's text is never longer than the escape */
        lex_escape(lx, lx->text + start, end - start, &next, out, &used);
        i = start + next;
    }
    add_token(lx, (struct jinja_token){.kind = JINJA_TOKEN_STRING, .text = out, .length = used});
    advance_to(lx, end + 1);
}

static bool is_digit(char c, int base)
{
    int value = units_hex_digit(c);
    return value >= 0 && value < base;
}

/* Digits, each but the first perhaps after one '_': where they end. */
static size_t digits_end(const struct lexer *lx, size_t at, int base)
{
    while (at < lx->length) {
        if (is_digit(lx->text[at], base))
            at++;
        else if (lx->text[at] == '_' && at + 1 < lx->length && is_digit(lx->text[at + 1], base))
            at += 2;
        else
            break;
    }
    return at;
}

static void lex_number(struct lexer *lx)
{
    char clean[128];
    size_t used = 0, start = lx->at, end;
    int base = 10;
    bool is_float = false;
    char mark = (char)(peek(lx, 1) | 0x20);
    if (lx->text[start] == '0' && (mark == 'x' || mark == 'o' || mark == 'b')) {
        base = mark == 'x' ? 16 : mark == 'o' ? 8 : 2;
        start += 2;
        end = digits_end(lx, start, base);
        if (end == start) jinja_fail(lx->run, HELM_E_FORMAT, "a number without digits");
    } else {
        end = digits_end(lx, start, 10);
        /* after a dot a number is an index ("a.0.1"), not a fraction */
        bool index = lx->count && lx->tokens[lx->count - 1].kind == JINJA_TOKEN_OPERATOR &&
                     lx->tokens[lx->count - 1].op == '.';
        if (!index && end + 1 < lx->length && lx->text[end] == '.' && is_digit(lx->text[end + 1], 10)) {
            is_float = true;
            end = digits_end(lx, end + 1, 10);
        }
        if (!index && end < lx->length && (lx->text[end] | 0x20) == 'e') {
            size_t digits = end + 1;
            if (digits < lx->length && (lx->text[digits] == '+' || lx->text[digits] == '-')) digits++;
            if (digits < lx->length && is_digit(lx->text[digits], 10)) {
                is_float = true;
                end = digits_end(lx, digits, 10);
            }
        }
        if (!is_float && lx->text[start] == '0' && end > start + 1)
            for (size_t i = start; i < end; i++)
                if (lx->text[i] != '0' && lx->text[i] != '_')
                    jinja_fail(lx->run, HELM_E_FORMAT, "a whole number that starts with 0");
    }
    for (size_t i = start; i < end; i++) {
        if (lx->text[i] == '_') continue;
        if (used + 1 >= sizeof clean)
            jinja_fail(lx->run, HELM_E_LIMIT, "a number of more than %zu digits", sizeof clean - 2);
        clean[used++] = lx->text[i];
    }
    clean[used] = '\0';
    struct jinja_token token = {.kind = is_float ? JINJA_TOKEN_FLOAT : JINJA_TOKEN_INTEGER};
    errno = 0;
    if (is_float)
        token.number = strtod(clean, NULL);
    else
        token.integer = strtoll(clean, NULL, base);
    if (!is_float && errno == ERANGE)
        jinja_fail(lx->run, HELM_E_LIMIT, "the whole number %.40s has more than 64 bits", clean);
    advance_to(lx, end);
    add_token(lx, token);
}

static size_t name_end(const struct lexer *lx, size_t at)
{
    while (at < lx->length) {
        char c = lx->text[at];
        size_t size = 1;
        if ((unsigned char)c >= 0x80) {
            uint32_t code = jinja_utf8_decode(lx->text + at, &size);
            utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code);
            if (!(category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL)) break;
        } else if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     c == '_')) {
            break;
        }
        at += size;
    }
    return at;
}

static void lex_operator(struct lexer *lx)
{
    static const char twos[] = "==!=<=>=**//", codes[] = "ENLGPD", ones[] = "+-*/%~[](){}<>=.:|,";
    char c = lx->text[lx->at], op = '\0';
    size_t size = 1;
    for (size_t i = 0; i < sizeof codes - 1; i++) {
        if (twos[2 * i] != c || twos[2 * i + 1] != peek(lx, 1)) continue;
        op = codes[i];
        size = 2;
    }
    if (!op && memchr(ones, c, sizeof ones - 1)) op = c;
    if (!op) {
        size_t bytes = jinja_utf8_size((unsigned char)c);
        jinja_fail(lx->run, HELM_E_FORMAT, "unexpected character '%.*s'", (int)bytes, lx->text + lx->at);
    }
    if (op == '(' || op == '[' || op == '{') {
        if (lx->open_count == JINJA_LEX_OPEN_MAX)
            jinja_fail(lx->run, HELM_E_LIMIT, "brackets are nested deeper than %d", JINJA_LEX_OPEN_MAX);
        lx->open[lx->open_count++] = op == '(' ? ')' : op == '[' ? ']' : '}';
    } else if (op == ')' || op == ']' || op == '}') {
        if (!lx->open_count || lx->open[--lx->open_count] != op)
            jinja_fail(lx->run, HELM_E_FORMAT, "unexpected '%c'", op);
    }
    add_token(lx, (struct jinja_token){.kind = JINJA_TOKEN_OPERATOR, .op = op});
    lx->at += size;
}

/* Tokens up to the tag's end mark, which counts only outside brackets. */
static void lex_tag(struct lexer *lx, bool print)
{
    uint32_t line = lx->line;
    lx->open_count = 0;
    while (lx->at < lx->length) {
        lx->run->line = lx->line;
        size_t after = lx->open_count ? 0 : tag_end(lx, lx->at, print ? "}}" : "%}", !print, !print);
        if (after) {
            add_token(lx,
                      (struct jinja_token){.kind = print ? JINJA_TOKEN_PRINT_END : JINJA_TOKEN_BLOCK_END});
            advance_to(lx, after);
            return;
        }
        size_t next = skip_space(lx, lx->at);
        if (next > lx->at) {
            advance_to(lx, next);
            continue;
        }
        const char *at = lx->text + lx->at;
        if (*at >= '0' && *at <= '9') {
            lex_number(lx);
        } else if (*at == '\'' || *at == '"') {
            lex_string(lx);
        } else if ((next = name_end(lx, lx->at)) > lx->at) {
            add_token(lx,
                      (struct jinja_token){.kind = JINJA_TOKEN_NAME, .text = at, .length = next - lx->at});
            lx->at = next;
        } else {
            lex_operator(lx);
        }
    }
    lx->run->line = line;
    jinja_fail(lx->run, HELM_E_FORMAT, "a tag has no end ('%s')", print ? "}}" : "%}");
}

static void lex_all(struct lexer *lx)
{
    while (lx->at < lx->length) {
        size_t p = lx->at;
        char mark = '\0';
        for (; p + 1 < lx->length; p++) {
            mark = lx->text[p + 1];
            if (lx->text[p] == '{' && (mark == '{' || mark == '%' || mark == '#')) break;
        }
        if (p + 1 >= lx->length) { /* no tag follows */
            add_data(lx, lx->length, '+', true);
            break;
        }
        char sign = sign_at(lx, p + 2);
        add_data(lx, p, sign, mark == '{');
        size_t raw = mark == '%' ? raw_begin(lx, p) : 0;
        advance_to(lx, raw ? raw : p + 2 + (sign != '\0'));
        if (raw) {
            lex_raw(lx);
        } else if (mark == '#') {
            lex_comment(lx);
        } else {
            const bool print = mark == '{';
            add_token(lx, (struct jinja_token){.kind = print ? JINJA_TOKEN_PRINT_BEGIN
                                                             : JINJA_TOKEN_BLOCK_BEGIN});
            lex_tag(lx, print);
        }
    }
    add_token(lx, (struct jinja_token){.kind = JINJA_TOKEN_END});
}

const struct jinja_token *jinja_lex(struct jinja_run *run, const char *source, size_t length)
{
    struct lexer lx = {.run = run, .line = 1};
    char *text = jinja_alloc(run, length + 1);
    for (size_t i = 0; i < length; i++) {
        text[lx.length++] = source[i] == '\r' ? '\n' : source[i];
        if (source[i] == '\r' && i + 1 < length && source[i + 1] == '\n') i++;
    }
    /* as keep_trailing_newline=False has it: one line end at the very end is not part of the text */
    if (lx.length && text[lx.length - 1] == '\n') lx.length--;
    lx.text = text;
    lex_all(&lx);
    run->line = 0;
    return lx.tokens;
}
