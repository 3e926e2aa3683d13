/* Searching text for a regular expression or a literal, within a budget.
 *
 * Patterns are compiled once, when the tokenizer is opened, and shared by all threads; what a search needs to
 * write lies in a struct tok_matcher. A hostile pattern or text meets three bounds: PCRE2's match, depth and
 * heap limits for one match, and the matcher's CPU time for all matches of one call. Called by the
 * normalizers, pre-tokenizers and decoders. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "client/text/tokenizer/internal.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MATCH_LIMIT      10000000u /* backtracking steps of one match, beside those its length earns */
#define MATCH_LIMIT_BYTE 16u       /* more steps for each byte of the subject */
#define DEPTH_LIMIT      100000u
#define HEAP_LIMIT_KIB   65536u
#define JIT_STACK_MAX    (4u * 1024u * 1024u)
#define CPU_BUDGET_NS    UINT64_C(10000000000) /* of one call, beside what its text earns */
#define CPU_BUDGET_BYTE  2000u                 /* more ns for each byte of that text */
#define CALLS_PER_CHECK  128u

static int compile(const char *text, size_t length, void **code, struct helm_err *err)
{
    int number, rc = 0;
    PCRE2_SIZE offset;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context) return helm_fail(err, HELM_E_NOMEM, "no memory for a regular expression");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_bsr(context, PCRE2_BSR_UNICODE);
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)text, length,
                                         PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                                         &number, &offset, context);
    pcre2_compile_context_free(context);
    if (!compiled) {
        char message[160];
        pcre2_get_error_message(number, (PCRE2_UCHAR *)message, sizeof message);
        rc = helm_fail(err, HELM_E_UNSUPPORTED, "regular expression '%.*s%s': %s",
                       (int)(length > 128 ? 128 : length), text, length > 128 ? "..." : "", message);
    } else {
        /* Where machine code is forbidden the interpreter gives the same matches, slower. */
        (void)pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
    }
    *code = compiled;
    return rc;
}

int tok_pattern_open(struct tok_pattern *pattern, const char *text, size_t length, bool regex,
                     struct helm_err *err)
{
    *pattern = (struct tok_pattern){0};
    if (length > TOK_PATTERN_MAX)
        return helm_fail(err, HELM_E_LIMIT, "a pattern of %zu bytes exceeds the limit of %d", length,
                         TOK_PATTERN_MAX);
    if (!regex && length) {
        tok_buffer_append(&pattern->literal, text, length);
        return tok_buffer_check(&pattern->literal, err);
    }
    struct tok_buffer translated = {0}; /* the empty literal matches as the empty expression does */
    (void)tok_buffer_reserve(&translated, length * 4);
    int rc = tok_regex_translate(text, length, &translated, err);
    if (!rc) rc = compile(translated.data, translated.length, &pattern->code, err);
    tok_buffer_free(&translated);
    return rc;
}

void tok_pattern_free(struct tok_pattern *pattern)
{
    tok_buffer_free(&pattern->literal);
    pcre2_code_free(pattern->code);
    pattern->code = NULL;
}

static uint64_t cpu_time_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void set_match_limit(struct tok_matcher *matcher, size_t length)
{
    uint64_t limit = MATCH_LIMIT + (uint64_t)length * MATCH_LIMIT_BYTE;
    pcre2_set_match_limit(matcher->context, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
    matcher->subject_length = length;
}

static int matcher_prepare(struct tok_matcher *matcher, size_t length, struct helm_err *err)
{
    if (!matcher->context) {
        matcher->match_data = pcre2_match_data_create(16, NULL);
        matcher->context = pcre2_match_context_create(NULL);
        if (!matcher->match_data || !matcher->context)
            return helm_fail(err, HELM_E_NOMEM, "no memory for matching a regular expression");
        pcre2_set_depth_limit(matcher->context, DEPTH_LIMIT);
        pcre2_set_heap_limit(matcher->context, HEAP_LIMIT_KIB);
        set_match_limit(matcher, length);
    }
    if (length != matcher->subject_length) set_match_limit(matcher, length);
    if (matcher->calls++ % CALLS_PER_CHECK == 0) {
        uint64_t now = cpu_time_ns();
        size_t text_length = matcher->text_length ? matcher->text_length : length;
        if (!matcher->deadline_ns) {
            matcher->budget_ns = CPU_BUDGET_NS + (uint64_t)text_length * CPU_BUDGET_BYTE;
            matcher->deadline_ns = now + matcher->budget_ns;
        }
        if (now > matcher->deadline_ns)
            return helm_fail(err, HELM_E_LIMIT, "regular expressions took more than %llu s of CPU time",
                             (unsigned long long)(matcher->budget_ns / 1000000000u));
    }
    return 0;
}

void tok_matcher_free(struct tok_matcher *matcher)
{
    pcre2_match_data_free(matcher->match_data);
    pcre2_match_context_free(matcher->context);
    pcre2_jit_stack_free(matcher->jit_stack);
    *matcher = (struct tok_matcher){0};
}

static int match_once(const struct tok_pattern *pattern, struct tok_matcher *matcher,
                      struct tok_search *search, struct helm_err *err)
{
    const size_t length = search->subject.length, from = search->at;
    int rc = matcher_prepare(matcher, length, err);
    if (rc) return rc;
    int count;
    for (;;) {
        count = pcre2_match(pattern->code, (PCRE2_SPTR)search->subject.text, length, from, PCRE2_NO_UTF_CHECK,
                            matcher->match_data, matcher->context);
        if (count != PCRE2_ERROR_JIT_STACKLIMIT || matcher->jit_stack) break;
        /* The 32 KiB that compiled code has by itself are enough for nearly every match. */
        matcher->jit_stack = pcre2_jit_stack_create(64 * 1024, JIT_STACK_MAX, NULL);
        if (!matcher->jit_stack)
            return helm_fail(err, HELM_E_NOMEM, "no memory for matching a regular expression");
        pcre2_jit_stack_assign(matcher->context, NULL, matcher->jit_stack);
    }
    search->found = count >= 0;
    if (search->found) {
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(matcher->match_data);
        search->start = span[0];
        search->end = span[1];
        /* \K in a lookahead may start a match after its end or before the last one. */
        if (search->start < from || search->end < search->start)
            return helm_fail(err, HELM_E_UNSUPPORTED,
                             "regular expression: a match that ends before it starts");
        return 0;
    }
    if (count == PCRE2_ERROR_NOMATCH) return 0;
    char message[160];
    pcre2_get_error_message(count, (PCRE2_UCHAR *)message, sizeof message);
    return helm_fail(err, HELM_E_LIMIT, "regular expression: %s, on %zu bytes of text", message, length);
}

int tok_pattern_next(const struct tok_pattern *pattern, struct tok_matcher *matcher,
                     struct tok_search *search, struct helm_err *err)
{
    const char *subject = search->subject.text;
    const size_t length = search->subject.length;
    search->found = false;
    if (!pattern->code) {
        const char *hit = search->at < length ? memmem(subject + search->at, length - search->at,
                                                       pattern->literal.data, pattern->literal.length)
                                              : NULL;
        if (!hit) return 0;
        search->found = true;
        search->start = (size_t)(hit - subject);
        search->at = search->end = search->start + pattern->literal.length;
        return 0;
    }
    while (search->at <= length) {
        int rc = match_once(pattern, matcher, search, err);
        if (rc || !search->found) return rc;
        if (search->start != search->end || !search->matched || search->last_end != search->end) {
            search->at = search->last_end = search->end;
            search->matched = true;
            return 0;
        }
        /* An empty match just after the last match does not count: look on from the next character. */
        uint32_t codepoint;
        search->found = false;
        search->at += search->at < length ? utf8_get(subject + search->at, &codepoint) : 1;
    }
    return 0;
}

int tok_pattern_replace(const struct tok_pattern *pattern, const struct tok_buffer *content,
                        struct tok_matcher *matcher, struct tok_slice text, struct tok_buffer *out,
                        bool *dropped_start, struct helm_err *err)
{
    struct tok_search search = {.subject = text};
    for (size_t done = 0;; done = search.end) {
        int rc = tok_pattern_next(pattern, matcher, &search, err);
        if (rc) return rc;
        const size_t end = search.found ? search.start : text.length;
        tok_buffer_append(out, text.text + done, end - done);
        if (!search.found) return tok_buffer_check(out, err);
        if (search.start == 0 && search.end > 0 && content->length == 0) *dropped_start = true;
        tok_buffer_append(out, content->data, content->length);
    }
}
