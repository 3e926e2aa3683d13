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
    size_t stage_count;
    struct stage stages[];
};

static int feed(struct helm_detokenizer *d, size_t at, const char *text, size_t length, struct helm_err *err);
static int end_token(struct helm_detokenizer *d, size_t at, struct helm_err *err);

static int feed_token(struct helm_detokenizer *d, size_t at, const char *text, size_t length,
                      struct helm_err *err)
{
    int rc = feed(d, at, text, length, err);
    return rc ? rc : end_token(d, at, err);
}

static int feed_strip(struct helm_detokenizer *d, size_t at, const char *text, size_t length,
                      struct helm_err *err)
{
    struct stage *stage = &d->stages[at];
    const struct tok_decoder *decoder = stage->decoder;
    stage->result.length = 0;
    for (size_t i = 0; i < length;) {
        uint32_t codepoint;
        size_t step = utf8_get(text + i, &codepoint);
        int rc = 0;
        if (codepoint == decoder->strip_char && !stage->inside && stage->stripped < decoder->strip_start) {
            stage->stripped++;
        } else if (codepoint == decoder->strip_char) {
            stage->inside = true;
            if (stage->held < decoder->strip_stop)
                stage->held++;
            else
                rc = tok_buffer_append(&stage->result, text + i, step, err);
        } else {
            stage->inside = true;
            for (; stage->held && !rc; stage->held--)
                rc = tok_buffer_append_char(&stage->result, decoder->strip_char, err);
            if (!rc) rc = tok_buffer_append(&stage->result, text + i, step, err);
        }
        if (rc) return rc;
        i += step;
    }
    return feed(d, at + 1, stage->result.data, stage->result.length, err);
}

static int feed_metaspace(struct helm_detokenizer *d, size_t at, const char *text, size_t length,
                          struct helm_err *err)
{
    struct stage *stage = &d->stages[at];
    bool drop = stage->index == 0 && stage->decoder->drop_first;
    stage->result.length = 0;
    for (size_t i = 0; i < length;) {
        uint32_t codepoint;
        size_t step = utf8_get(text + i, &codepoint);
        int rc = 0;
        if (codepoint != stage->decoder->replacement)
            rc = tok_buffer_append(&stage->result, text + i, step, err);
        else if (!drop)
            rc = tok_buffer_append(&stage->result, " ", 1, err);
        if (rc) return rc;
        i += step;
    }
    return feed(d, at + 1, stage->result.data, stage->result.length, err);
}

/* A chunk of the current token, whole characters only. */
static int feed(struct helm_detokenizer *d, size_t at, const char *text, size_t length, struct helm_err *err)
{
    if (at == d->stage_count) return tok_buffer_append(&d->out, text, length, err);
    struct stage *stage = &d->stages[at];
    switch (stage->decoder->kind) {
    case TOK_DECODER_BYTE_LEVEL:
    case TOK_DECODER_BYTE_FALLBACK:
    case TOK_DECODER_REPLACE:
        return tok_buffer_append(&stage->token, text, length, err);
    case TOK_DECODER_FUSE:
        return feed(d, at + 1, text, length, err);
    case TOK_DECODER_STRIP:
        return feed_strip(d, at, text, length, err);
    case TOK_DECODER_METASPACE:
        return feed_metaspace(d, at, text, length, err);
    case TOK_DECODER_JOIN: {
        int rc =
            stage->index ? feed(d, at + 1, " ", 1, err) : 0; /* the only stage: tokens come in one chunk */
        return rc ? rc : feed(d, at + 1, text, length, err);
    }
    }
    return helm_fail(err, HELM_E_INTERNAL, "no such decoder");
}

/* The bytes that a token of the byte-level alphabet stands for; any other token stands for its own. */
static int append_token_bytes(struct stage *stage, struct helm_err *err)
{
    const struct tok_buffer *token = &stage->token;
    size_t before = stage->bytes.length;
    int rc = tok_buffer_reserve(&stage->bytes, token->length, err);
    if (rc) return rc;
    for (size_t i = 0; i < token->length;) {
        uint32_t codepoint;
        i += utf8_get(token->data + i, &codepoint);
        int byte = tok_bytelevel_byte(codepoint);
        if (byte < 0) {
            stage->bytes.length = before;
            return tok_buffer_append(&stage->bytes, token->data, token->length, err);
        }
        stage->bytes.data[stage->bytes.length++] = (char)byte;
    }
    return 0;
}

static int flush_characters(struct helm_detokenizer *d, size_t at, bool final, struct helm_err *err)
{
    struct stage *stage = &d->stages[at];
    size_t taken = 0;
    stage->result.length = 0;
    int rc =
        tok_utf8_append_lossy(&stage->result, stage->bytes.data, stage->bytes.length, final, &taken, err);
    if (rc) return rc;
    stage->bytes.length -= taken;
    if (stage->bytes.length) memmove(stage->bytes.data, stage->bytes.data + taken, stage->bytes.length);
    return feed(d, at + 1, stage->result.data, stage->result.length, err);
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

static int flush_run(struct helm_detokenizer *d, size_t at, struct helm_err *err)
{
    struct stage *stage = &d->stages[at];
    size_t count = stage->bytes.length;
    int rc = 0;
    if (count == 0) return 0;
    stage->bytes.length = 0;
    if (utf8_is_valid(stage->bytes.data, count)) return feed_token(d, at + 1, stage->bytes.data, count, err);
    for (size_t i = 0; i < count && !rc; i++) rc = feed_token(d, at + 1, "\xEF\xBF\xBD", 3, err);
    return rc;
}

static int end_byte_fallback(struct helm_detokenizer *d, size_t at, struct helm_err *err)
{
    struct stage *stage = &d->stages[at];
    int byte = byte_of_token(&stage->token);
    if (byte >= 0) {
        char c = (char)byte;
        return tok_buffer_append(&stage->bytes, &c, 1, err);
    }
    int rc = flush_run(d, at, err);
    return rc ? rc : feed_token(d, at + 1, stage->token.data, stage->token.length, err);
}

static int end_replace(struct helm_detokenizer *d, size_t at, struct helm_err *err)
{
    struct stage *stage = &d->stages[at];
    const struct tok_slice token = {stage->token.data, stage->token.length};
    bool dropped;
    stage->result.length = 0;
    int rc = token.length ? tok_pattern_replace(&stage->decoder->pattern, &stage->decoder->content,
                                                &d->matcher, token, &stage->result, &dropped, err)
                          : 0;
    return rc ? rc : feed_token(d, at + 1, stage->result.data, stage->result.length, err);
}

static int end_token(struct helm_detokenizer *d, size_t at, struct helm_err *err)
{
    if (at == d->stage_count) return 0;
    struct stage *stage = &d->stages[at];
    int rc = 0;
    switch (stage->decoder->kind) {
    case TOK_DECODER_BYTE_LEVEL:
        rc = append_token_bytes(stage, err);
        if (!rc) rc = flush_characters(d, at, false, err);
        stage->token.length = 0;
        return rc;
    case TOK_DECODER_BYTE_FALLBACK:
        rc = end_byte_fallback(d, at, err);
        stage->token.length = 0;
        return rc;
    case TOK_DECODER_REPLACE:
        rc = end_replace(d, at, err);
        stage->token.length = 0;
        return rc;
    case TOK_DECODER_FUSE:
        return 0;
    case TOK_DECODER_STRIP:
        stage->stripped = 0;
        stage->held = 0;
        stage->inside = false;
        return end_token(d, at + 1, err);
    case TOK_DECODER_METASPACE:
    case TOK_DECODER_JOIN:
        stage->index++;
        return end_token(d, at + 1, err);
    }
    return helm_fail(err, HELM_E_INTERNAL, "no such decoder");
}

static int end_list(struct helm_detokenizer *d, struct helm_err *err)
{
    int rc = 0;
    for (size_t at = 0; at < d->stage_count && !rc; at++) {
        switch (d->stages[at].decoder->kind) {
        case TOK_DECODER_BYTE_LEVEL:
            rc = flush_characters(d, at, true, err);
            if (!rc) rc = end_token(d, at + 1, err);
            break;
        case TOK_DECODER_BYTE_FALLBACK:
            rc = flush_run(d, at, err);
            break;
        case TOK_DECODER_FUSE:
            rc = end_token(d, at + 1, err);
            break;
        case TOK_DECODER_REPLACE:
        case TOK_DECODER_STRIP:
        case TOK_DECODER_METASPACE:
        case TOK_DECODER_JOIN:
            break;
        }
    }
    return rc;
}

static void reset(struct helm_detokenizer *d)
{
    for (size_t i = 0; i < d->stage_count; i++) {
        struct stage *stage = &d->stages[i];
        stage->token.length = 0;
        stage->bytes.length = 0;
        stage->index = 0;
        stage->stripped = 0;
        stage->held = 0;
        stage->inside = false;
    }
    d->matcher.deadline_ns = 0;
    d->matcher.calls = 0;
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

static int push_id(struct helm_detokenizer *d, uint32_t id, struct helm_err *err)
{
    size_t length;
    const char *token = helm_tokenizer_id_to_token(d->tokenizer, id, &length);
    if (!token || (d->skip_special && helm_tokenizer_is_special(d->tokenizer, id))) return 0;
    return feed_token(d, 0, token, length, err);
}

static int give(struct helm_detokenizer *d, const char **text, size_t *length, struct helm_err *err)
{
    int rc = tok_buffer_reserve(&d->out, 1, err);
    if (rc) return rc;
    d->out.data[d->out.length] = '\0';
    *text = d->out.data;
    *length = d->out.length;
    return 0;
}

int helm_detokenizer_push(struct helm_detokenizer *d, uint32_t id, const char **text, size_t *length,
                          struct helm_err *err)
{
    *text = "";
    *length = 0;
    d->out.length = 0;
    d->matcher.deadline_ns = 0; /* each call has its own budget */
    d->matcher.calls = 0;
    int rc = push_id(d, id, err);
    return rc ? rc : give(d, text, length, err);
}

int helm_detokenizer_finish(struct helm_detokenizer *d, const char **text, size_t *length,
                            struct helm_err *err)
{
    *text = "";
    *length = 0;
    d->out.length = 0;
    int rc = end_list(d, err);
    reset(d);
    return rc ? rc : give(d, text, length, err);
}

int helm_tokenizer_decode(const struct helm_tokenizer *tokenizer, const uint32_t *ids, size_t count,
                          unsigned flags, char **text, size_t *length, struct helm_err *err)
{
    struct helm_detokenizer *d;
    *text = NULL;
    if (length) *length = 0;
    int rc = helm_detokenizer_open(tokenizer, flags, &d, err);
    if (rc) return rc;
    for (size_t i = 0; i < count && !rc; i++) rc = push_id(d, ids[i], err);
    if (!rc) rc = end_list(d, err);
    if (!rc) rc = tok_buffer_reserve(&d->out, 1, err);
    if (!rc) {
        d->out.data[d->out.length] = '\0';
        *text = d->out.data;
        if (length) *length = d->out.length;
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
    int rc = tok_buffer_append(&stage.token, token ? token : "", spelled, err);
    if (!rc && has_decoder(tokenizer, TOK_DECODER_BYTE_LEVEL)) {
        rc = append_token_bytes(&stage, err);
    } else if (!rc) {
        const int byte = has_decoder(tokenizer, TOK_DECODER_BYTE_FALLBACK) ? byte_of_token(&stage.token) : -1;
        const char c = (char)byte;
        rc = byte >= 0 ? tok_buffer_append(&stage.bytes, &c, 1, err)
                       : tok_buffer_append(&stage.bytes, stage.token.data, stage.token.length, err);
        if (!rc && byte < 0 && !helm_tokenizer_is_special(tokenizer, id))
            stage.bytes.length = put_spaces(stage.bytes.data, stage.bytes.length);
    }
    if (!rc) rc = tok_buffer_reserve(&stage.bytes, 1, err);
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
