/* Texts of two models' tokens. See vocabulary.h. Owns nothing after a call. */
#include "common/model/vocabulary.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/model/gguf.h"

#define TOKENIZER_BYTES_MAX ((size_t)256 << 20)
#define IDS_MAX             ((uint64_t)1 << 24)

struct text {
    const char *bytes; /* NULL: the id has none */
    size_t length;
};

/* Borrows its texts from `json` or `header`, which it owns. */
struct vocabulary {
    const char *name; /* of the model, for errors */
    struct text *text;
    uint64_t count; /* up to the last id with a text */
    json_t *json;
    struct gguf header;
};

static void vocabulary_free(struct vocabulary *v)
{
    free(v->text);
    json_decref(v->json);
    gguf_free(&v->header);
}

/* Whether a text is the filler that conversions to GGUF give an id without one. */
static bool is_filler(uint64_t id, const char *bytes, size_t length)
{
    char filler[32];
    const int n = snprintf(filler, sizeof filler, "[PAD%llu]", (unsigned long long)id);
    return length == (size_t)n && memcmp(bytes, filler, length) == 0;
}

static int put(struct vocabulary *v, uint64_t id, const char *bytes, size_t length, struct helm_err *err)
{
    if (id >= IDS_MAX)
        return helm_fail(err, HELM_E_LIMIT, "%s: token id %llu, the limit is %llu", v->name,
                         (unsigned long long)id, (unsigned long long)IDS_MAX - 1);
    if (is_filler(id, bytes, length)) return 0;
    if (id >= v->count) {
        struct text *grown = realloc(v->text, (id + 1) * sizeof *grown);
        if (!grown) return helm_fail(err, HELM_E_NOMEM, "%s: no memory for its tokens", v->name);
        memset(grown + v->count, 0, (id + 1 - v->count) * sizeof *grown);
        v->text = grown;
        v->count = id + 1;
    }
    v->text[id] = (struct text){bytes, length};
    return 0;
}

static int read_gguf(const struct model *model, struct vocabulary *v, struct helm_err *err)
{
    int rc = gguf_open(model->path, &v->header, err);
    const struct gguf_value *tokens = rc ? NULL : gguf_find(&v->header, "tokenizer.ggml.tokens");
    if (!tokens || !tokens->array || tokens->type != GGUF_STRING) return rc;
    const uint8_t *at = tokens->data;
    for (uint64_t id = 0; id < tokens->count && !rc; id++) {
        uint64_t length;
        const char *bytes = gguf_string(&at, &length);
        rc = put(v, id, bytes, length, err);
    }
    return rc;
}

static int fail_token(const struct vocabulary *v, struct helm_err *err)
{
    return helm_fail(err, HELM_E_FORMAT, "%s: tokenizer.json: a token is not a text with an id", v->name);
}

/* model.vocab: an object of ids by text, or a list of texts with scores. */
static int read_vocab(struct vocabulary *v, json_t *vocab, struct helm_err *err)
{
    int rc = 0;
    for (size_t i = 0; i < json_array_size(vocab) && !rc; i++) {
        const json_t *text = json_array_get(json_array_get(vocab, i), 0);
        rc = json_is_string(text) ? put(v, i, json_string_value(text), json_string_length(text), err)
                                  : fail_token(v, err);
    }
    for (void *at = json_object_iter(vocab); at && !rc; at = json_object_iter_next(vocab, at)) {
        const json_int_t id = json_integer_value(json_object_iter_value(at));
        const char *text = json_object_iter_key(at);
        rc = json_is_integer(json_object_iter_value(at)) && id >= 0
                 ? put(v, (uint64_t)id, text, json_object_iter_key_len(at), err)
                 : fail_token(v, err);
    }
    return rc;
}

static int read_added(struct vocabulary *v, const json_t *added, struct helm_err *err)
{
    int rc = 0;
    for (size_t i = 0; i < json_array_size(added) && !rc; i++) {
        const json_t *id = json_object_get(json_array_get(added, i), "id"),
                     *text = json_object_get(json_array_get(added, i), "content");
        rc = json_is_integer(id) && json_integer_value(id) >= 0 && json_is_string(text)
                 ? put(v, (uint64_t)json_integer_value(id), json_string_value(text), json_string_length(text),
                       err)
                 : fail_token(v, err);
    }
    return rc;
}

static int read_folder(const struct model *model, struct vocabulary *v, struct helm_err *err)
{
    char *text = NULL;
    size_t length = 0;
    struct helm_err none = {0};
    int rc = file_read_inside(model->folder, "tokenizer.json", TOKENIZER_BYTES_MAX, &text, &length, &none);
    if (rc == HELM_E_NOT_FOUND) return 0;
    if (rc) *err = none;
    if (!rc) rc = json_parse_python("tokenizer.json", text, length, TOKENIZER_BYTES_MAX, &v->json, err);
    free(text);
    if (!rc) rc = read_vocab(v, json_object_get(json_object_get(v->json, "model"), "vocab"), err);
    return rc ? rc : read_added(v, json_object_get(v->json, "added_tokens"), err);
}

static int vocabulary_read(const struct model *model, struct vocabulary *v, struct helm_err *err)
{
    *v = (struct vocabulary){.name = model->path};
    return model->config.gguf ? read_gguf(model, v, err) : read_folder(model, v, err);
}

static int compare_texts(const struct vocabulary *a, const struct vocabulary *b, struct helm_err *err)
{
    if (!a->count || !b->count)
        return helm_fail(err, HELM_E_MISMATCH, "%s has no tokenizer to compare with that of %s",
                         a->count ? b->name : a->name, a->count ? a->name : b->name);
    for (uint64_t id = 0; id < a->count && id < b->count; id++) {
        const struct text *x = &a->text[id], *y = &b->text[id];
        if (!x->bytes || !y->bytes) continue;
        if (x->length == y->length && memcmp(x->bytes, y->bytes, x->length) == 0) continue;
        return helm_fail(err, HELM_E_MISMATCH, "token %llu is '%.*s' in %s, and '%.*s' in %s",
                         (unsigned long long)id, (int)(x->length < 40 ? x->length : 40), x->bytes, a->name,
                         (int)(y->length < 40 ? y->length : 40), y->bytes, b->name);
    }
    if (a->count == b->count) return 0;
    return helm_fail(err, HELM_E_MISMATCH, "%s has %llu tokens, %s has %llu", a->name,
                     (unsigned long long)a->count, b->name, (unsigned long long)b->count);
}

int vocabulary_compare(const struct model *model, const struct model *draft, bool *sizes_alone,
                       struct helm_err *err)
{
    struct vocabulary a, b = {0};
    *sizes_alone = false;
    int rc = vocabulary_read(model, &a, err);
    if (!rc) rc = vocabulary_read(draft, &b, err);
    *sizes_alone = !rc && !a.count && !b.count;
    if (*sizes_alone && model->config.vocab != draft->config.vocab)
        rc = helm_fail(err, HELM_E_MISMATCH, "%s has %u tokens, %s has %u", model->path, model->config.vocab,
                       draft->path, draft->config.vocab);
    else if (!rc && !*sizes_alone)
        rc = compare_texts(&a, &b, err);
    vocabulary_free(&a);
    vocabulary_free(&b);
    return rc;
}
