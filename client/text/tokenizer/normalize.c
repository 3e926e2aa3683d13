/* Normalizers: what happens to text before it is cut into words.
 *
 * Unicode forms are computed run by run: ASCII never changes and never joins what precedes it, so only a run
 * of other characters, with the ASCII character before it, needs work. Marks are ordered by a stable merge
 * sort, for a text of nothing but marks must not take quadratic time. Called by tokenizer.c; owns nothing. */
#include "client/text/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

struct marked {
    utf8proc_int32_t codepoint;
    int rank; /* canonical combining class */
};

struct form_work {
    utf8proc_int32_t *codes;
    struct marked *marks;
    struct marked *spare;
    size_t capacity;
};

static void form_work_free(struct form_work *work)
{
    free(work->codes);
    free(work->marks);
    free(work->spare);
}

static int form_work_reserve(struct form_work *work, size_t count, struct helm_err *err)
{
    if (count <= work->capacity) return 0;
    size_t capacity = work->capacity ? work->capacity : 256;
    while (capacity < count) capacity *= 2;
    utf8proc_int32_t *codes = realloc(work->codes, capacity * sizeof *codes);
    if (codes) work->codes = codes;
    struct marked *marks = realloc(work->marks, capacity * sizeof *marks);
    if (marks) work->marks = marks;
    struct marked *spare = realloc(work->spare, capacity * sizeof *spare);
    if (spare) work->spare = spare;
    if (!codes || !marks || !spare)
        return helm_fail(err, HELM_E_NOMEM, "no memory to normalize %zu characters", capacity);
    work->capacity = capacity;
    return 0;
}

/* Bottom-up merge sort by class, stable. */
static void sort_marks(struct marked *marks, struct marked *spare, size_t count)
{
    struct marked *from = marks, *to = spare;
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t low = 0; low < count; low += 2 * width) {
            size_t middle = low + width < count ? low + width : count;
            size_t high = low + 2 * width < count ? low + 2 * width : count;
            size_t a = low, b = middle;
            for (size_t k = low; k < high; k++)
                to[k] = a < middle && (b >= high || from[a].rank <= from[b].rank) ? from[a++] : from[b++];
        }
        struct marked *swap = from;
        from = to;
        to = swap;
    }
    if (from != marks) memcpy(marks, from, count * sizeof *marks);
}

static void order_marks(struct form_work *work, size_t count)
{
    for (size_t i = 0; i < count;) {
        size_t n = 0;
        bool sorted = true;
        for (; i + n < count; n++) {
            int rank = utf8proc_get_property(work->codes[i + n])->combining_class;
            if (rank == 0) break;
            work->marks[n] = (struct marked){work->codes[i + n], rank};
            if (n && work->marks[n - 1].rank > rank) sorted = false;
        }
        if (!sorted) {
            sort_marks(work->marks, work->spare, n);
            for (size_t k = 0; k < n; k++) work->codes[i + k] = work->marks[k].codepoint;
        }
        i += n + 1;
    }
}

/* Appends one run in the form that `options` asks for. */
static int append_form(struct form_work *work, const char *run, size_t length, int options,
                       struct tok_buffer *out, struct helm_err *err)
{
    size_t count = 0;
    int boundary = 0;
    for (size_t i = 0; i < length;) {
        uint32_t codepoint;
        i += utf8_get(run + i, &codepoint);
        int rc = form_work_reserve(work, count + 32, err); /* no character has more than 18 parts */
        if (rc) return rc;
        utf8proc_ssize_t parts =
            utf8proc_decompose_char((utf8proc_int32_t)codepoint, work->codes + count, 32,
                                    (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | options),
                                    &boundary);
        if (parts < 0 || parts > 32)
            return helm_fail(err, HELM_E_INTERNAL, "U+%04X cannot be decomposed", codepoint);
        count += (size_t)parts;
    }
    order_marks(work, count);
    if (options & UTF8PROC_COMPOSE) {
        utf8proc_ssize_t composed =
            utf8proc_normalize_utf32(work->codes, (utf8proc_ssize_t)count,
                                     (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
        if (composed < 0) return helm_fail(err, HELM_E_INTERNAL, "text cannot be composed");
        count = (size_t)composed;
    }
    for (size_t i = 0; i < count; i++) tok_buffer_append_char(out, (uint32_t)work->codes[i]);
    return 0;
}

static int run_form(int options, const char *text, size_t length, struct tok_buffer *out,
                    struct helm_err *err)
{
    struct form_work work = {0};
    int rc = 0;
    for (size_t at = 0; at < length && !rc;) {
        size_t other = at;
        while (other < length && (uint8_t)text[other] < 0x80) other++;
        size_t start = other > at && other < length ? other - 1 : other;
        tok_buffer_append(out, text + at, start - at);
        size_t end = other;
        while (end < length && (uint8_t)text[end] >= 0x80) end++;
        if (start < end) rc = append_form(&work, text + start, end - start, options, out, err);
        at = end;
    }
    form_work_free(&work);
    return rc;
}

static void run_lowercase(const char *text, size_t length, struct tok_buffer *out)
{
    for (size_t i = 0; i < length;) {
        uint32_t codepoint;
        i += utf8_get(text + i, &codepoint);
        if (codepoint == 0x130) /* the one character whose lower case is two */
            tok_buffer_append(out, "i\xCC\x87", 3);
        else
            tok_buffer_append_char(out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)codepoint));
    }
}

static void run_strip_accents(const char *text, size_t length, struct tok_buffer *out, bool *dropped)
{
    for (size_t i = 0, step; i < length; i += step) {
        uint32_t codepoint;
        step = utf8_get(text + i, &codepoint);
        if (!tok_char_is_mark(codepoint))
            tok_buffer_append(out, text + i, step);
        else if (i == 0)
            *dropped = true;
    }
}

static void run_strip(const struct tok_normalizer *step, const char *text, size_t length,
                      struct tok_buffer *out, bool *dropped)
{
    size_t start = 0, end = length;
    uint32_t codepoint;
    while (step->strip_left && start < end) {
        size_t width = utf8_get(text + start, &codepoint);
        if (!tok_char_is_space(codepoint)) break;
        start += width;
        *dropped = true;
    }
    while (step->strip_right && end > start) {
        size_t width = utf8_get_before(text, end, &codepoint);
        if (!tok_char_is_space(codepoint)) break;
        end -= width;
    }
    tok_buffer_append(out, text + start, end - start);
}

static int run_one(const struct tok_normalizer *step, const char *text, size_t length,
                   struct tok_matcher *matcher, struct tok_buffer *out, bool *dropped, struct helm_err *err)
{
    switch (step->kind) {
    case TOK_NORMALIZER_NFC:
        return run_form(UTF8PROC_COMPOSE, text, length, out, err);
    case TOK_NORMALIZER_NFD:
        return run_form(0, text, length, out, err);
    case TOK_NORMALIZER_NFKC:
        return run_form(UTF8PROC_COMPOSE | UTF8PROC_COMPAT, text, length, out, err);
    case TOK_NORMALIZER_NFKD:
        return run_form(UTF8PROC_COMPAT, text, length, out, err);
    case TOK_NORMALIZER_PREPEND:
        if (length) tok_buffer_append(out, step->content.data, step->content.length);
        tok_buffer_append(out, text, length);
        return 0;
    case TOK_NORMALIZER_REPLACE:
        return tok_pattern_replace(&step->pattern, &step->content, matcher, (struct tok_slice){text, length},
                                   out, dropped, err);
    case TOK_NORMALIZER_LOWERCASE:
        run_lowercase(text, length, out);
        return 0;
    case TOK_NORMALIZER_STRIP_ACCENTS:
        run_strip_accents(text, length, out, dropped);
        return 0;
    case TOK_NORMALIZER_STRIP:
        run_strip(step, text, length, out, dropped);
        return 0;
    }
    return helm_fail(err, HELM_E_INTERNAL, "no such normalizer");
}

static int normalize(const struct helm_tokenizer *tokenizer, struct tok_slice text, bool prepend,
                     struct tok_matcher *matcher, struct tok_buffer *out, bool *dropped_start,
                     struct helm_err *err)
{
    struct tok_buffer next = {.limit = HELM_TOKENIZER_TEXT_LIMIT};
    int rc = 0;
    *dropped_start = false;
    out->limit = HELM_TOKENIZER_TEXT_LIMIT;
    for (size_t i = 0; i < tokenizer->normalizer_count && !rc; i++) {
        if (!prepend && tokenizer->normalizers[i].kind == TOK_NORMALIZER_PREPEND) continue;
        next.length = 0;
        (void)tok_buffer_reserve(&next, text.length);
        rc = run_one(&tokenizer->normalizers[i], text.text, text.length, matcher, &next, dropped_start, err);
        if (!rc) rc = tok_buffer_check(&next, err);
        struct tok_buffer swap = *out;
        *out = next;
        next = swap;
        text = (struct tok_slice){out->data, out->length};
    }
    tok_buffer_free(&next);
    return rc;
}

int tok_normalize(const struct helm_tokenizer *tokenizer, struct tok_slice text, struct tok_matcher *matcher,
                  struct tok_buffer *out, bool *dropped_start, struct helm_err *err)
{
    return normalize(tokenizer, text, true, matcher, out, dropped_start, err);
}

int tok_normalize_inside(const struct helm_tokenizer *tokenizer, struct tok_slice text,
                         struct tok_matcher *matcher, struct tok_buffer *out, struct helm_err *err)
{
    bool dropped;
    out->limit = HELM_TOKENIZER_TEXT_LIMIT;
    out->length = 0;
    tok_buffer_append(out, text.text, text.length); /* as it is, where no normalizer is left */
    const int rc = tok_buffer_check(out, err);
    return rc ? rc : normalize(tokenizer, text, false, matcher, out, &dropped, err);
}
