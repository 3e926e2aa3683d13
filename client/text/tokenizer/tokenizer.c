/* The tokenizer as its users see it: open, encode, look up, close. See tokenizer.h.
 *
 * Encoding is: repair the UTF-8; cut at added tokens that are matched as written; normalize what is between;
 * cut at added tokens that are matched normalized; pre-tokenize; BPE; post-process. struct encoding owns the
 * scratch memory of one call, so a tokenizer itself never changes once it is open. */
#include "client/text/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/model/gguf.h"

/* ---- opening ---- */

int helm_tokenizer_open_memory(const char *tokenizer_json, size_t tokenizer_length, const char *config_json,
                               size_t config_length, struct helm_tokenizer **out, struct helm_err *err)
{
    *out = NULL;
    struct helm_tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    if (!tokenizer) return helm_fail(err, HELM_E_NOMEM, "no memory for a tokenizer");
    int rc = tok_load(tokenizer, tokenizer_json, tokenizer_length, err);
    if (!rc && config_json) rc = tok_config_parse(&tokenizer->config, config_json, config_length, err);
    if (rc)
        helm_tokenizer_close(tokenizer);
    else
        *out = tokenizer;
    return rc;
}

/* Leaves *text NULL if there is no such file. */
static int read_optional(const char *folder, const char *name, char **text, size_t *length,
                         struct helm_err *err)
{
    struct helm_err local = {0};
    *text = NULL;
    int rc = file_read_inside(folder, name, TOK_CONFIG_BYTES_MAX, text, length, &local);
    if (rc == 0 || rc == HELM_E_NOT_FOUND) return 0;
    return helm_fail(err, rc, "%s", local.text);
}

static int open_folder(const char *folder, const char *json, size_t json_length, struct helm_tokenizer **out,
                       struct helm_err *err)
{
    char *config = NULL, *chat = NULL;
    size_t config_length = 0, chat_length = 0;
    int rc = read_optional(folder, "tokenizer_config.json", &config, &config_length, err);
    if (!rc) rc = read_optional(folder, "chat_template.jinja", &chat, &chat_length, err);
    if (!rc) rc = helm_tokenizer_open_memory(json, json_length, config, config_length, out, err);
    if (!rc && chat) {
        if (memchr(chat, '\0', chat_length) || !utf8_is_valid(chat, chat_length))
            rc = helm_fail(err, HELM_E_FORMAT, "chat_template.jinja: not a UTF-8 text");
        else
            rc = tok_config_set_template(&(*out)->config, "default", chat, err);
        if (rc) {
            helm_tokenizer_close(*out);
            *out = NULL;
        }
    }
    free(config);
    free(chat);
    return rc;
}

/* *found: `path` means a GGUF file. */
static int open_gguf(const char *path, bool *found, struct helm_tokenizer **out, struct helm_err *err)
{
    struct gguf header;
    int rc = gguf_open(path, &header, err);
    *found = rc || header.values;
    if (!rc && *found) rc = tok_open_gguf(&header, out, err);
    gguf_free(&header);
    return rc;
}

int helm_tokenizer_open(const char *path, struct helm_tokenizer **out, struct helm_err *err)
{
    char *json = NULL;
    size_t length = 0;
    bool found = true;
    struct helm_err absent = {0};
    *out = NULL;
    int rc = file_is_folder(path)
                 ? file_read_inside(path, "tokenizer.json", TOK_JSON_BYTES_MAX, &json, &length, &absent)
                 : helm_fail(&absent, HELM_E_NOT_FOUND, "neither a folder nor a GGUF file");
    if (rc == 0)
        rc = open_folder(path, json, length, out, err);
    else if (rc != HELM_E_NOT_FOUND)
        rc = helm_fail(err, rc, "%s", absent.text);
    else if ((rc = open_gguf(path, &found, out, err)) == 0 && !found)
        rc = helm_fail(err, HELM_E_NOT_FOUND, "%s", absent.text);
    if (rc) helm_err_prefix(err, "%s", path);
    free(json);
    return rc;
}

void helm_tokenizer_close(struct helm_tokenizer *tokenizer)
{
    if (!tokenizer) return;
    tok_vocab_free(&tokenizer->vocab);
    tok_added_free(&tokenizer->added);
    for (size_t i = 0; i < tokenizer->normalizer_count; i++) {
        tok_buffer_free(&tokenizer->normalizers[i].content);
        tok_pattern_free(&tokenizer->normalizers[i].pattern);
    }
    for (size_t i = 0; i < tokenizer->pretokenizer_count; i++)
        tok_pattern_free(&tokenizer->pretokenizers[i].pattern);
    for (size_t i = 0; i < tokenizer->decoder_count; i++) {
        tok_buffer_free(&tokenizer->decoders[i].content);
        tok_pattern_free(&tokenizer->decoders[i].pattern);
    }
    free(tokenizer->normalizers);
    free(tokenizer->pretokenizers);
    free(tokenizer->decoders);
    free(tokenizer->template_ids);
    tok_config_free(&tokenizer->config);
    free(tokenizer);
}

/* ---- encoding ---- */

struct encoding {
    const struct helm_tokenizer *tokenizer;
    bool parse_added;
    const struct tok_marks *marks; /* NULL: none */
    struct tok_matcher matcher;
    struct tok_words words;
    struct tok_bpe_work *work;
    struct tok_buffer normalized;
    struct tok_pieces pieces;
    struct tok_ids ids;
};

/* Text without added tokens. */
static int encode_plain(struct encoding *e, const char *text, size_t length, bool first, struct helm_err *err)
{
    int rc =
        tok_pretokenize(e->tokenizer, (struct tok_slice){text, length}, first, &e->matcher, &e->words, err);
    return rc ? rc : tok_bpe_encode(e->work, &e->words, err);
}

/* The marks of a section at byte `offset` of the whole text, which became e->normalized; *own is the caller's
 * to free. */
static int mark_section(struct encoding *e, size_t offset, const char *text, size_t length,
                        struct tok_marks *marks, unsigned char **own, struct helm_err *err)
{
    *marks = *e->marks;
    marks->from = offset;
    if (!e->tokenizer->normalizer_count) return 0;
    const int rc = tok_marks_normalize(e->tokenizer, marks, (struct tok_slice){text, length}, &e->normalized,
                                       &e->matcher, own, err);
    marks->own = *own;
    marks->from = 0;
    return rc;
}

/* Text between added tokens that are matched as written; it begins at byte `offset` of the whole. */
static int encode_section(struct encoding *e, size_t offset, const char *text, size_t length, bool first,
                          struct helm_err *err)
{
    const struct helm_tokenizer *t = e->tokenizer;
    const char *const given = text;
    const size_t given_length = length;
    struct tok_marks marks;
    unsigned char *own = NULL;
    int rc;
    if (t->normalizer_count) {
        bool dropped;
        rc = tok_normalize(t, (struct tok_slice){text, length}, &e->matcher, &e->normalized, &dropped, err);
        if (rc) return rc;
        text = e->normalized.data;
        length = e->normalized.length;
        if (dropped) first = false;
    }
    if (!e->parse_added || !t->added.normalized.state_count) return encode_plain(e, text, length, first, err);
    struct tok_pieces pieces = {0};
    rc = e->marks ? mark_section(e, offset, given, given_length, &marks, &own, err) : 0;
    if (!rc)
        rc = tok_added_split(&t->added, &t->added.normalized, e->marks ? &marks : NULL,
                             (struct tok_slice){text, length}, first, &pieces, err);
    for (size_t i = 0; i < pieces.count && !rc; i++) {
        const struct tok_piece *piece = &pieces.data[i];
        if (piece->id != HELM_TOKENIZER_NO_ID)
            rc = tok_ids_push(&e->ids, piece->id, err);
        else
            rc = encode_plain(e, text + piece->offset, piece->length, piece->first, err);
    }
    free(pieces.data);
    free(own);
    return rc;
}

static int encode_text(struct encoding *e, const char *text, size_t length, struct helm_err *err)
{
    const struct helm_tokenizer *t = e->tokenizer;
    if (!e->parse_added) return length ? encode_section(e, 0, text, length, true, err) : 0;
    int rc = tok_added_split(&t->added, &t->added.raw, e->marks, (struct tok_slice){text, length}, true,
                             &e->pieces, err);
    for (size_t i = 0; i < e->pieces.count && !rc; i++) {
        const struct tok_piece *piece = &e->pieces.data[i];
        if (piece->id != HELM_TOKENIZER_NO_ID)
            rc = tok_ids_push(&e->ids, piece->id, err);
        else
            rc = encode_section(e, piece->offset, text + piece->offset, piece->length, piece->first, err);
    }
    return rc;
}

/* The post-processor's template around e->ids. */
static int apply_template(struct encoding *e, struct helm_err *err)
{
    const struct helm_tokenizer *t = e->tokenizer;
    struct tok_ids out = {0};
    int rc = 0;
    if (!t->template_ids) return 0;
    for (size_t i = 0; i < t->template_count && !rc; i++) {
        if (t->template_ids[i] != HELM_TOKENIZER_NO_ID) {
            rc = tok_ids_push(&out, t->template_ids[i], err);
        } else {
            rc = tok_ids_reserve(&out, e->ids.count, err);
            if (!rc && e->ids.count)
                memcpy(out.data + out.count, e->ids.data, e->ids.count * sizeof *out.data);
            if (!rc) out.count += e->ids.count;
        }
    }
    if (rc) {
        free(out.data);
        return rc;
    }
    free(e->ids.data);
    e->ids = out;
    return 0;
}

static int encode(const struct helm_tokenizer *tokenizer, struct tok_slice given, unsigned flags,
                  const struct tok_marks *marks, uint32_t **ids, size_t *count, struct helm_err *err)
{
    const char *text = given.text;
    size_t length = given.length;
    const unsigned known = HELM_TOKENIZER_ENCODE_PARSE_ADDED | HELM_TOKENIZER_ENCODE_ADD_SPECIAL;
    struct encoding e = {.tokenizer = tokenizer,
                         .marks = marks,
                         .parse_added = (flags & HELM_TOKENIZER_ENCODE_PARSE_ADDED) != 0};
    struct tok_buffer repaired = {.limit = HELM_TOKENIZER_TEXT_LIMIT};
    *ids = NULL;
    *count = 0;
    if (flags & ~known) return helm_fail(err, HELM_E_USAGE, "encode: unknown flags 0x%x", flags);
    if (length > HELM_TOKENIZER_TEXT_LIMIT)
        return helm_fail(err, HELM_E_LIMIT, "encode: %zu bytes of text exceed the limit of %u", length,
                         HELM_TOKENIZER_TEXT_LIMIT);
    int rc = tok_bpe_work_open(tokenizer, !e.parse_added || marks, &e.ids, &e.work, err);
    if (rc) return rc;
    if (!utf8_is_valid(text, length)) {
        (void)tok_utf8_append_lossy(&repaired, text, length, true);
        rc = tok_buffer_check(&repaired, err);
        text = repaired.data;
        length = repaired.length;
    }
    /* the first part may be short: the role in front of a long message */
    e.matcher.text_length = length;
    if (!rc) rc = tok_ids_reserve(&e.ids, length / 4 + 8, err);
    if (!rc) rc = encode_text(&e, text, length, err);
    if (!rc && flags & HELM_TOKENIZER_ENCODE_ADD_SPECIAL) rc = apply_template(&e, err);
    if (!rc) rc = tok_ids_reserve(&e.ids, 1, err); /* never NULL */
    if (!rc) {
        *ids = e.ids.data;
        *count = e.ids.count;
        e.ids.data = NULL;
    }
    if (rc) helm_err_prefix(err, "encode");
    free(e.ids.data);
    free(e.pieces.data);
    tok_buffer_free(&e.normalized);
    tok_buffer_free(&repaired);
    tok_words_free(&e.words);
    tok_matcher_free(&e.matcher);
    tok_bpe_work_free(e.work);
    return rc;
}

int helm_tokenizer_encode(const struct helm_tokenizer *tokenizer, const char *text, size_t length,
                          unsigned flags, uint32_t **ids, size_t *count, struct helm_err *err)
{
    return encode(tokenizer, (struct tok_slice){text, length}, flags, NULL, ids, count, err);
}

int tok_encode_marked(const struct helm_tokenizer *tokenizer, struct tok_slice text, const unsigned char *own,
                      struct tok_slice chat_template, uint32_t **ids, size_t *count, struct helm_err *err)
{
    struct tok_marks marks = {.own = own, .vocab = &tokenizer->vocab, .chat_template = chat_template};
    *ids = NULL;
    *count = 0;
    /* repairing would move what the marks are of */
    if (!utf8_is_valid(text.text, text.length)) return helm_fail(err, HELM_E_FORMAT, "encode: not UTF-8");
    marks.known = calloc(tokenizer->added.count + 1, 1);
    if (!marks.known) return helm_fail(err, HELM_E_NOMEM, "no memory for marks");
    const int rc = encode(tokenizer, text, HELM_TOKENIZER_ENCODE_PARSE_ADDED, &marks, ids, count, err);
    free(marks.known);
    return rc;
}

/* ---- queries ---- */

uint32_t helm_tokenizer_token_to_id(const struct helm_tokenizer *tokenizer, const char *token, size_t length)
{
    uint32_t id = tok_added_find(&tokenizer->added, &tokenizer->vocab, token, length);
    return id != HELM_TOKENIZER_NO_ID ? id : tok_vocab_find(&tokenizer->vocab, token, length);
}

const char *helm_tokenizer_id_to_token(const struct helm_tokenizer *tokenizer, uint32_t id, size_t *length)
{
    const struct tok_vocab *vocab = &tokenizer->vocab;
    if (id >= vocab->id_end || !(vocab->entries[id].flags & TOK_ENTRY_PRESENT)) {
        if (length) *length = 0;
        return NULL;
    }
    if (length) *length = vocab->entries[id].length;
    return vocab->bytes.data + vocab->entries[id].offset;
}

uint32_t helm_tokenizer_vocab_size(const struct helm_tokenizer *tokenizer)
{
    return tokenizer->vocab.id_end;
}

bool helm_tokenizer_is_special(const struct helm_tokenizer *tokenizer, uint32_t id)
{
    return id < tokenizer->vocab.id_end && tokenizer->vocab.entries[id].flags & TOK_ENTRY_SPECIAL;
}

const char *helm_tokenizer_role_token(const struct helm_tokenizer *tokenizer, const char *role)
{
    return tok_config_find(tokenizer->config.roles, tokenizer->config.role_count, role);
}

uint32_t helm_tokenizer_role_id(const struct helm_tokenizer *tokenizer, const char *role)
{
    const char *token = helm_tokenizer_role_token(tokenizer, role);
    return token ? helm_tokenizer_token_to_id(tokenizer, token, strlen(token)) : HELM_TOKENIZER_NO_ID;
}

bool helm_tokenizer_add_bos(const struct helm_tokenizer *tokenizer)
{
    return tokenizer->config.add_bos;
}

bool helm_tokenizer_add_eos(const struct helm_tokenizer *tokenizer)
{
    return tokenizer->config.add_eos;
}

const char *helm_tokenizer_chat_template(const struct helm_tokenizer *tokenizer, const char *name)
{
    return tok_config_find(tokenizer->config.templates, tokenizer->config.template_count,
                           name ? name : "default");
}
