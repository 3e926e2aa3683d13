/* tokenizer.json as a whole: the model's options, the added tokens, and the order in which the parts are
 * read.
 *
 * Added tokens come last: those that are matched in normalized text need the normalizers. Called by
 * tokenizer.c and tokenizer/gguf.c at open; what it builds belongs to the struct helm_tokenizer it is given,
 * also when it fails halfway. */
#include "client/text/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"

/* ---- added tokens ---- */

static int read_added(const json_t *item, size_t index, struct tok_added_spec *spec, struct helm_err *err)
{
    struct tok_added_token *token = &spec->token;
    const json_t *content = json_object_get(item, "content");
    uint64_t id = 0;
    if (!json_is_string(content)) return helm_fail(err, HELM_E_FORMAT, "entry %zu has no 'content'", index);
    spec->text = json_string_value(content);
    spec->length = json_string_length(content);
    if (spec->length > TOK_ADDED_LENGTH_MAX)
        return helm_fail(err, HELM_E_LIMIT, "entry %zu has %zu bytes, more than %d", index, spec->length,
                         TOK_ADDED_LENGTH_MAX);
    token->normalized = false;
    int rc = json_get_u64(item, "id", true, 0, HELM_TOKENIZER_ID_LIMIT - 1, &id, err);
    if (!rc) rc = json_get_bool(item, "single_word", false, &token->single_word, err);
    if (!rc) rc = json_get_bool(item, "lstrip", false, &token->lstrip, err);
    if (!rc) rc = json_get_bool(item, "rstrip", false, &token->rstrip, err);
    if (!rc) rc = json_get_bool(item, "special", false, &token->special, err);
    token->normalized = !token->special;
    if (!rc) rc = json_get_bool(item, "normalized", false, &token->normalized, err);
    token->id = (uint32_t)id;
    return rc;
}

/* Gives the token its id and its spelling to what it is searched with. */
static int install_added(struct helm_tokenizer *tokenizer, uint32_t index, const struct tok_added_spec *spec,
                         struct tok_matcher *matcher, struct helm_err *err)
{
    struct tok_vocab *vocab = &tokenizer->vocab;
    struct tok_added *added = &tokenizer->added;
    struct tok_entry *entry = &vocab->entries[spec->token.id];
    uint32_t own = tok_vocab_find(vocab, spec->text, spec->length);
    int rc;
    if (own != HELM_TOKENIZER_NO_ID && own != spec->token.id)
        return helm_fail(err, HELM_E_MISMATCH, "'%.64s' is %u here and %u in model.vocab", spec->text,
                         spec->token.id, own);
    if (own == HELM_TOKENIZER_NO_ID) {
        if (entry->flags & TOK_ENTRY_PRESENT)
            return helm_fail(err, HELM_E_MISMATCH, "'%.64s' has id %u, which is also '%.64s'", spec->text,
                             spec->token.id, vocab->bytes.data + entry->offset);
        rc = tok_vocab_name_id(vocab, spec->token.id, spec->text, spec->length, err);
        if (rc) return rc;
    }
    if (spec->token.special) entry->flags |= TOK_ENTRY_SPECIAL;
    rc = tok_added_insert(added, vocab, spec->token.id, err);
    if (rc || !spec->token.normalized)
        return rc ? rc : tok_finder_add(&added->raw, spec->text, spec->length, index, err);
    struct tok_buffer normalized = {0};
    bool dropped;
    const char *text = spec->text;
    size_t length = spec->length;
    if (tokenizer->normalizer_count) {
        rc = tok_normalize(tokenizer, (struct tok_slice){text, length}, matcher, &normalized, &dropped, err);
        text = normalized.data;
        length = normalized.length;
    }
    if (!rc && length == 0)
        rc = helm_fail(err, HELM_E_UNSUPPORTED, "'%.64s' is nothing once normalized", spec->text);
    /* If two tokens normalize alike, the first counts: it has the lower index. */
    if (!rc) rc = tok_finder_add(&added->normalized, text, length, index, err);
    tok_buffer_free(&normalized);
    return rc;
}

int tok_install_added(struct helm_tokenizer *tokenizer, const struct tok_added_spec *specs, size_t count,
                      struct helm_err *err)
{
    struct tok_added *added = &tokenizer->added;
    struct tok_matcher matcher = {0};
    int rc = tok_added_reserve(added, count, err);
    if (rc) return rc;
    /* Special ones first: they win where two normalize alike. */
    for (int pass = 0; pass < 2 && !rc; pass++) {
        for (size_t i = 0; i < count && !rc; i++) {
            const struct tok_added_spec *spec = &specs[i];
            if (spec->length == 0 || spec->token.special != (pass == 0)) continue;
            uint32_t other = tok_added_find(added, &tokenizer->vocab, spec->text, spec->length);
            if (other == spec->token.id) continue; /* said twice */
            if (other != HELM_TOKENIZER_NO_ID) {
                rc = helm_fail(err, HELM_E_MISMATCH, "'%.64s' has two ids, %u and %u", spec->text, other,
                               spec->token.id);
                break;
            }
            added->tokens[added->count] = spec->token;
            rc = install_added(tokenizer, added->count, spec, &matcher, err);
            if (!rc) added->count++;
        }
    }
    tok_matcher_free(&matcher);
    if (!rc) rc = tok_finder_build(&added->raw, err);
    if (!rc) rc = tok_finder_build(&added->normalized, err);
    return rc;
}

/* *specs, which point into `list`, are the caller's; *id_end: how far their ids reach. */
static int read_all_added(const json_t *list, struct tok_added_spec **specs, uint32_t *id_end,
                          struct helm_err *err)
{
    *specs = NULL;
    *id_end = 0;
    if (!list || json_is_null(list)) return 0;
    if (!json_is_array(list)) return helm_fail(err, HELM_E_FORMAT, "not a list");
    if (json_array_size(list) > TOK_ADDED_MAX)
        return helm_fail(err, HELM_E_LIMIT, "%zu added tokens, more than %d", json_array_size(list),
                         TOK_ADDED_MAX);
    *specs = calloc(json_array_size(list) + 1, sizeof **specs);
    if (!*specs) return helm_fail(err, HELM_E_NOMEM, "no memory for added tokens");
    size_t i;
    json_t *item;
    json_array_foreach(list, i, item)
    {
        int rc = read_added(item, i, &(*specs)[i], err);
        if (rc) return rc;
        if ((*specs)[i].token.id >= *id_end) *id_end = (*specs)[i].token.id + 1;
    }
    return 0;
}

/* ---- model ---- */

/* An option that changes nothing when null or empty. */
static int refuse_affix(const json_t *model, const char *key, struct helm_err *err)
{
    const char *affix = "";
    int rc = json_get_string(model, key, false, &affix, err);
    if (rc || !*affix) return rc;
    return helm_fail(err, HELM_E_UNSUPPORTED, "%s '%.32s' is not supported", key, affix);
}

static int read_model(struct helm_tokenizer *tokenizer, const json_t *model, const struct tok_slice *vocab,
                      const struct tok_slice *merges, uint32_t extra_id_end, struct helm_err *err)
{
    struct tok_bpe *bpe = &tokenizer->bpe;
    const char *type = "BPE", *unk = NULL;
    double dropout = 0;
    if (!json_is_object(model)) return helm_fail(err, HELM_E_FORMAT, "not an object");
    int rc = json_get_string(model, "type", false, &type, err);
    if (rc) return rc;
    if (strcmp(type, "BPE") != 0)
        return helm_fail(err, HELM_E_UNSUPPORTED, "type '%.32s' is not supported; BPE is", type);
    rc = json_get_double(model, "dropout", false, 0, 1, &dropout, err);
    if (!rc && dropout > 0) rc = helm_fail(err, HELM_E_UNSUPPORTED, "dropout %g is not supported", dropout);
    if (!rc) rc = refuse_affix(model, "continuing_subword_prefix", err);
    if (!rc) rc = refuse_affix(model, "end_of_word_suffix", err);
    if (!rc) rc = json_get_bool(model, "fuse_unk", false, &bpe->fuse_unk, err);
    if (!rc) rc = json_get_bool(model, "byte_fallback", false, &bpe->byte_fallback, err);
    if (!rc) rc = json_get_bool(model, "ignore_merges", false, &bpe->ignore_merges, err);
    if (!rc) rc = json_get_string(model, "unk_token", false, &unk, err);
    if (rc) return rc;
    if (!vocab->text) return helm_fail(err, HELM_E_FORMAT, "'vocab' is missing or not an object");
    if (!merges->text) return helm_fail(err, HELM_E_FORMAT, "'merges' is missing or not a list");
    rc = tok_vocab_load(&tokenizer->vocab, vocab, extra_id_end, err);
    if (!rc) rc = tok_vocab_load_merges(&tokenizer->vocab, merges, err);
    if (rc) return rc;
    bpe->has_unk = unk != NULL;
    bpe->unk_id = unk ? tok_vocab_find(&tokenizer->vocab, unk, strlen(unk)) : HELM_TOKENIZER_NO_ID;
    return 0;
}

int tok_load(struct helm_tokenizer *tokenizer, const char *text, size_t length, struct helm_err *err)
{
    struct tok_buffer rest = {0};
    struct tok_slice vocab, merges;
    json_t *root = NULL;
    uint32_t extra_id_end = 0;
    struct tok_added_spec *added = NULL;
    static const struct {
        const char *name;
        int (*parse)(struct helm_tokenizer *tokenizer, const json_t *item, struct helm_err *err);
    } steps[] = {{"normalizer", tok_parse_normalizer},
                 {"pre_tokenizer", tok_parse_pretokenizer},
                 {"decoder", tok_parse_decoder},
                 {"post_processor", tok_parse_processor}};
    const char *part = NULL;
    if (length > TOK_JSON_BYTES_MAX)
        return helm_fail(err, HELM_E_LIMIT, "tokenizer.json: %zu bytes exceed the limit of %u", length,
                         TOK_JSON_BYTES_MAX);
    int rc = tok_json_cut(text, length, &rest, &vocab, &merges, err);
    if (!rc) rc = json_parse_python("text", rest.data, rest.length, TOK_JSON_BYTES_MAX, &root, err);
    if (!rc && !json_is_object(root)) rc = helm_fail(err, HELM_E_FORMAT, "not an object");
    if (rc) goto out;
    part = "added_tokens";
    rc = read_all_added(json_object_get(root, part), &added, &extra_id_end, err);
    if (rc) goto out;
    part = "model";
    rc = read_model(tokenizer, json_object_get(root, part), &vocab, &merges, extra_id_end, err);
    for (size_t i = 0; i < sizeof steps / sizeof *steps && !rc; i++) {
        part = steps[i].name;
        rc = steps[i].parse(tokenizer, json_object_get(root, part), err);
    }
    if (rc) goto out;
    tok_bpe_prepare(&tokenizer->bpe, &tokenizer->vocab);
    part = "added_tokens";
    rc = tok_install_added(tokenizer, added, json_array_size(json_object_get(root, part)), err);
out:
    if (rc) helm_err_prefix(err, part ? "tokenizer.json: %s" : "tokenizer.json%s", part ? part : "");
    free(added);
    json_decref(root);
    tok_buffer_free(&rest);
    return rc;
}
