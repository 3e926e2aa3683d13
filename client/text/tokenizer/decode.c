/* Ids to text, all at once or as they come: both are the same chain of streaming decoders.
 *
 * Each decoder is a stage that is fed a token's text in chunks, told where the token ends, and told where the
 * list ends. It hands on what no later token can change and holds back the rest: a run of byte tokens until
 * it ends (one bad byte makes all of it U+FFFD), an unfinished character, trailing characters that Strip may
 * still take. Stages that need a whole token (Replace) wait for its end; after Fuse or ByteLevel, which make
 * one token of all, that is the end of the list. Called by clients; struct helm_detokenizer owns its stages.
 */
#include "client/text/tokenizer/internal.h"
#include "common/base/units.h"

#include <stdlib.h>
#include <string.h>

struct stage {
    const struct tok_decoder *decoder;
    struct tok_buffer token;  /* the token so far, for stages that need all of it */
    struct tok_buffer bytes;  /* ByteFallback: the run of bytes; ByteLevel: an unfinished character */
    struct tok_buffer result; /* text being handed on */
    size_t index;             /* Metaspace, join: tokens ended */
    uint32_t stripped;        /* Strip: leading characters taken from this token */
    uint32_t held;            /* Strip: trailing characters held back */
    bool inside;              /* Strip: past the leading characters */
};

struct helm_detokenizer {
    const struct helm_tokenizer *tokenizer;
    bool skip_special;
    struct tok_matcher matcher;
    struct tok_buffer out;
    struct helm_err failed; /* by an expression; what a buffer lacks, it says itself */
    size_t stage_count;
    struct stage stages[];
};

static void feed(struct helm_detokenizer *d, size_t at, const char *text, size_t length);
static void end_token(struct helm_detokenizer *d, size_t at);

static void feed_token(struct helm_detokenizer *d, size_t at, const char *text, size_t length)
{
    feed(d, at, text, length);
    end_token(d, at);
}

static void feed_strip(struct helm_detokenizer *d, size_t at, const char *text, size_t length)
{
    struct stage *stage = &d->stages[at];
    const struct tok_decoder *decoder = stage->decoder;
    stage->result.length = 0;
    for (size_t i = 0, step; i < length; i += step) {
        uint32_t codepoint;
        step = utf8_get(text + i, &codepoint);
        if (codepoint == decoder->strip_char && !stage->inside && stage->stripped < decoder->strip_start) {
            stage->stripped++;
            continue;
        }
        stage->inside = true;
        if (codepoint == decoder->strip_char && stage->held < decoder->strip_stop) {
            stage->held++;
            continue;
        }
        for (; codepoint != decoder->strip_char && stage->held; stage->held--)
            tok_buffer_append_char(&stage->result, decoder->strip_char);
        tok_buffer_append(&stage->result, text + i, step);
    }
    feed(d, at + 1, stage->result.data, stage->result.length);
}

static void feed_metaspace(struct helm_detokenizer *d, size_t at, const char *text, size_t length)
{
    struct stage *stage = &d->stages[at];
    bool drop = stage->index == 0 && stage->decoder->drop_first;
    stage->result.length = 0;
    for (size_t i = 0, step; i < length; i += step) {
        uint32_t codepoint;
        step = utf8_get(text + i, &codepoint);
        if (codepoint != stage->decoder->replacement)
            tok_buffer_append(&stage->result, text + i, step);
        else if (!drop)
            tok_buffer_append(&stage->result, " ", 1);
    }
    feed(d, at + 1, stage->result.data, stage->result.length);
}

/* A chunk of the current token, whole characters only. */
static void feed(struct helm_detokenizer *d, size_t at, const char *text, size_t length)
{
    if (at == d->stage_count) {
        tok_buffer_append(&d->out, text, length);
        return;
    }
    struct stage *stage = &d->stages[at];
    switch (stage->decoder->kind) {
    case TOK_DECODER_BYTE_LEVEL:
    case TOK_DECODER_BYTE_FALLBACK:
    case TOK_DECODER_REPLACE:
        tok_buffer_append(&stage->token, text, length);
        break;
    case TOK_DECODER_FUSE:
        feed(d, at + 1, text, length);
        break;
    case TOK_DECODER_STRIP:
        feed_strip(d, at, text, length);
        break;
    case TOK_DECODER_METASPACE:
        feed_metaspace(d, at, text, length);
        break;
    case TOK_DECODER_JOIN: /* the only stage: tokens come in one chunk */
        if (stage->index) feed(d, at + 1, " ", 1);
        feed(d, at + 1, text, length);
        break;
    }
}

/* The bytes that a token of the byte-level alphabet stands for; any other token stands for its own. */
static void append_token_bytes(struct stage *stage)
{
    const struct tok_buffer *token = &stage->token;
    size_t before = stage->bytes.length;
    for (size_t i = 0; i < token->length;) {
        uint32_t codepoint;
        i += utf8_get(token->data + i, &codepoint);
        const int byte = tok_bytelevel_byte(codepoint);
        if (byte < 0) {
            stage->bytes.length = before;
            tok_buffer_append(&stage->bytes, token->data, token->length);
            return;
        }
        tok_buffer_append(&stage->bytes, &(char){(char)byte}, 1);
    }
}

static void flush_characters(struct helm_detokenizer *d, size_t at, bool final)
{
    struct stage *stage = &d->stages[at];
    stage->result.length = 0;
    const size_t taken = tok_utf8_append_lossy(&stage->result, stage->bytes.data, stage->bytes.length, final);
    stage->bytes.length -= taken;
    if (stage->bytes.length) memmove(stage->bytes.data, stage->bytes.data + taken, stage->bytes.length);
    feed(d, at + 1, stage->result.data, stage->result.length);
}

/* The byte of "<0x41>", or -1. */
static int byte_of_token(const struct tok_buffer *token)
{
    if (token->length != 6 || memcmp(token->data, "<0x", 3) != 0 || token->data[5] != '>') return -1;
    int high =
        token->data[3] == '+' ? 0 : units_hex_digit(token->data[3]); /* a sign is a number to Hugging Face */
    int low = units_hex_digit(token->data[4]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

static void flush_run(struct helm_detokenizer *d, size_t at)
{
    struct stage *stage = &d->stages[at];
    const size_t count = stage->bytes.length;
    if (count == 0) return;
    stage->bytes.length = 0;
    if (utf8_is_valid(stage->bytes.data, count)) {
        feed_token(d, at + 1, stage->bytes.data, count);
        return;
    }
    for (size_t i = 0; i < count; i++) feed_token(d, at + 1, "\xEF\xBF\xBD", 3);
}

static void end_byte_fallback(struct helm_detokenizer *d, size_t at)
{
    struct stage *stage = &d->stages[at];
    const int byte = byte_of_token(&stage->token);
    if (byte >= 0) {
        tok_buffer_append(&stage->bytes, &(char){(char)byte}, 1);
        return;
    }
    flush_run(d, at);
    feed_token(d, at + 1, stage->token.data, stage->token.length);
}

static void end_replace(struct helm_detokenizer *d, size_t at)
{
    struct stage *stage = &d->stages[at];
    const struct tok_slice token = {stage->token.data, stage->token.length};
    bool dropped;
    stage->result.length = 0;
    if (token.length && !d->failed.code)
        (void)!tok_pattern_replace(&stage->decoder->pattern, &stage->decoder->content, &d->matcher, token,
                                   &stage->result, &dropped, &d->failed);
    feed_token(d, at + 1, stage->result.data, stage->result.length);
}

static void end_token(struct helm_detokenizer *d, size_t at)
{
    if (at == d->stage_count) return;
    struct stage *stage = &d->stages[at];
    switch (stage->decoder->kind) {
    case TOK_DECODER_BYTE_LEVEL:
        append_token_bytes(stage);
        flush_characters(d, at, false);
        break;
    case TOK_DECODER_BYTE_FALLBACK:
        end_byte_fallback(d, at);
        break;
    case TOK_DECODER_REPLACE:
        end_replace(d, at);
        break;
    case TOK_DECODER_FUSE:
        break;
    case TOK_DECODER_STRIP:
        stage->stripped = stage->held = 0;
        stage->inside = false;
        end_token(d, at + 1);
        break;
    case TOK_DECODER_METASPACE:
    case TOK_DECODER_JOIN:
        stage->index++;
        end_token(d, at + 1);
        break;
    }
    stage->token.length = 0;
}

static void end_list(struct helm_detokenizer *d)
{
    for (size_t at = 0; at < d->stage_count; at++) {
        const enum tok_decoder_kind kind = d->stages[at].decoder->kind;
        if (kind == TOK_DECODER_BYTE_LEVEL) flush_characters(d, at, true);
        if (kind == TOK_DECODER_BYTE_FALLBACK) flush_run(d, at);
        if (kind == TOK_DECODER_BYTE_LEVEL || kind == TOK_DECODER_FUSE) end_token(d, at + 1);
    }
}

static void reset(struct helm_detokenizer *d)
{
    for (size_t i = 0; i < d->stage_count; i++) {
        struct stage *stage = &d->stages[i];
        stage->token.length = stage->bytes.length = stage->index = 0;
        stage->stripped = stage->held = 0;
        stage->inside = false;
        stage->token.failed = stage->bytes.failed = stage->result.failed = 0;
    }
    d->out.failed = 0;
    d->failed = (struct helm_err){0};
}

int helm_detokenizer_open(const struct helm_tokenizer *tokenizer, unsigned flags,
                          struct helm_detokenizer **out, struct helm_err *err)
{
    *out = NULL;
    if (flags & ~(unsigned)HELM_TOKENIZER_DECODE_SKIP_SPECIAL)
        return helm_fail(err, HELM_E_USAGE, "decode: unknown flags 0x%x", flags);
    size_t count = tokenizer->decoder_count;
    struct helm_detokenizer *d = calloc(1, sizeof *d + count * sizeof d->stages[0]);
    if (!d) return helm_fail(err, HELM_E_NOMEM, "no memory for a detokenizer");
    d->tokenizer = tokenizer;
    d->skip_special = (flags & HELM_TOKENIZER_DECODE_SKIP_SPECIAL) != 0;
    d->stage_count = count;
    for (size_t i = 0; i < count; i++) d->stages[i].decoder = &tokenizer->decoders[i];
    *out = d;
    return 0;
}

void helm_detokenizer_close(struct helm_detokenizer *d)
{
    if (!d) return;
    for (size_t i = 0; i < d->stage_count; i++) {
        tok_buffer_free(&d->stages[i].token);
        tok_buffer_free(&d->stages[i].bytes);
        tok_buffer_free(&d->stages[i].result);
    }
    tok_buffer_free(&d->out);
    tok_matcher_free(&d->matcher);
    free(d);
}

/* A call begins: each has its own budget of time. */
static void begin(struct helm_detokenizer *d, const char **text, size_t *length)
{
    *text = "";
    *length = 0;
    d->out.length = 0;
    d->matcher.deadline_ns = 0;
    d->matcher.calls = 0;
}

static void push_id(struct helm_detokenizer *d, uint32_t id)
{
    size_t length;
    const char *token = helm_tokenizer_id_to_token(d->tokenizer, id, &length);
    if (token && !(d->skip_special && helm_tokenizer_is_special(d->tokenizer, id)))
        feed_token(d, 0, token, length);
}

/* The text of this call, which ends with a NUL. */
static int give(struct helm_detokenizer *d, const char **text, size_t *length, struct helm_err *err)
{
    int rc = d->failed.code ? helm_fail(err, d->failed.code, "%s", d->failed.text) : 0;
    for (size_t i = 0; i < d->stage_count && !rc; i++) {
        rc = tok_buffer_check(&d->stages[i].token, err);
        if (!rc) rc = tok_buffer_check(&d->stages[i].bytes, err);
        if (!rc) rc = tok_buffer_check(&d->stages[i].result, err);
    }
    if (!rc && !tok_buffer_reserve(&d->out, 1)) rc = tok_buffer_check(&d->out, err);
    if (rc) return rc;
    d->out.data[d->out.length] = '\0';
    *text = d->out.data;
    *length = d->out.length;
    return 0;
}

int helm_detokenizer_push(struct helm_detokenizer *d, uint32_t id, const char **text, size_t *length,
                          struct helm_err *err)
{
    begin(d, text, length);
    push_id(d, id);
    return give(d, text, length, err);
}

int helm_detokenizer_finish(struct helm_detokenizer *d, const char **text, size_t *length,
                            struct helm_err *err)
{
    begin(d, text, length);
    end_list(d);
    const int rc = give(d, text, length, err);
    reset(d);
    return rc;
}

int helm_tokenizer_decode(const struct helm_tokenizer *tokenizer, const uint32_t *ids, size_t count,
                          unsigned flags, char **text, size_t *length, struct helm_err *err)
{
    struct helm_detokenizer *d;
    const char *decoded;
    size_t bytes;
    *text = NULL;
    if (length) *length = 0;
    int rc = helm_detokenizer_open(tokenizer, flags, &d, err);
    if (rc) return rc;
    for (size_t i = 0; i < count; i++) push_id(d, ids[i]);
    end_list(d);
    rc = give(d, &decoded, &bytes, err);
    if (!rc) {
        *text = d->out.data;
        if (length) *length = bytes;
        d->out.data = NULL; /* the caller's now */
    }
    helm_detokenizer_close(d);
    return rc;
}

/* Which decoders there are says what a token's spelling means; an added token is spelled as its text. */
static bool has_decoder(const struct helm_tokenizer *tokenizer, int kind)
{
    for (size_t i = 0; i < tokenizer->decoder_count; i++)
        if ((int)tokenizer->decoders[i].kind == kind) return true;
    return false;
}

/* SentencePiece writes a space as U+2581. */
static size_t put_spaces(char *text, size_t length)
{
    static const char space[] = "\xE2\x96\x81";
    size_t used = 0;
    for (size_t i = 0; i < length;) {
        const bool found = length - i >= 3 && memcmp(text + i, space, 3) == 0;
        text[used++] = found ? ' ' : text[i];
        i += found ? 3 : 1;
    }
    return used;
}

int helm_tokenizer_token_bytes(const struct helm_tokenizer *tokenizer, uint32_t id, char **bytes,
                               size_t *length, struct helm_err *err)
{
    struct stage stage = {0};
    size_t spelled = 0;
    *bytes = NULL;
    *length = 0;
    const char *token = helm_tokenizer_id_to_token(tokenizer, id, &spelled);
    tok_buffer_append(&stage.token, token ? token : "", spelled);
    const int byte = has_decoder(tokenizer, TOK_DECODER_BYTE_FALLBACK) ? byte_of_token(&stage.token) : -1;
    if (has_decoder(tokenizer, TOK_DECODER_BYTE_LEVEL)) {
        append_token_bytes(&stage);
    } else if (byte >= 0) {
        tok_buffer_append(&stage.bytes, &(char){(char)byte}, 1);
    } else {
        tok_buffer_append(&stage.bytes, stage.token.data, stage.token.length);
        if (!helm_tokenizer_is_special(tokenizer, id))
            stage.bytes.length = put_spaces(stage.bytes.data, stage.bytes.length);
    }
    int rc = tok_buffer_check(&stage.token, err);
    if (!rc && !tok_buffer_reserve(&stage.bytes, 1)) rc = tok_buffer_check(&stage.bytes, err);
    if (!rc) {
        stage.bytes.data[stage.bytes.length] = '\0';
        *bytes = stage.bytes.data;
        *length = stage.bytes.length;
        stage.bytes.data = NULL; /* the caller's now */
    }
    tok_buffer_free(&stage.token);
    tok_buffer_free(&stage.bytes);
    return rc;
}
