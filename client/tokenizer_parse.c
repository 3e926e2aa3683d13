/* tokenizer.json's components as structs: normalizers, pre-tokenizers, decoders, post-processor, added
 * tokens, model.
 *
 * Sequences are flattened, nested ones too: running them one after the other is what they mean. A type or an
 * option that is not implemented is HELM_E_UNSUPPORTED and named. Called by tokenizer.c at open; what it
 * builds belongs to the struct helm_tokenizer it is given, also when it fails halfway. */
#include "client/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

#include "common/json.h"

typedef int visit_fn(struct helm_tokenizer *tokenizer, const json_t *item, const char *type,
                     struct helm_err *err);

/* Calls visit for the component, or for each member of a Sequence. */
static int visit_component(struct helm_tokenizer *tokenizer, const json_t *item, const char *members_key,
                           int nesting, visit_fn *visit, struct helm_err *err)
{
    const char *type;
    if (!item || json_is_null(item)) return 0;
    if (!json_is_object(item)) return helm_fail(err, HELM_E_FORMAT, "not an object");
    int rc = json_get_string(item, "type", true, &type, err);
    if (rc) return rc;
    if (strcmp(type, "Sequence") != 0) {
        rc = visit(tokenizer, item, type, err);
        if (rc) helm_err_prefix(err, "%.64s", type);
        return rc;
    }
    const json_t *members = json_object_get(item, members_key);
    if (!json_is_array(members))
        return helm_fail(err, HELM_E_FORMAT, "Sequence: '%s' is not a list", members_key);
    if (nesting >= TOK_NESTING_MAX)
        return helm_fail(err, HELM_E_LIMIT, "sequences nested deeper than %d", TOK_NESTING_MAX);
    size_t i;
    json_t *member;
    json_array_foreach(members, i, member)
    {
        rc = visit_component(tokenizer, member, members_key, nesting + 1, visit, err);
        if (rc) return rc;
    }
    return 0;
}

/* Room for one more stage; the new one is zeroed. */
static int grow(void **list, size_t count, size_t size, struct helm_err *err)
{
    if (count >= TOK_STAGES_MAX) return helm_fail(err, HELM_E_LIMIT, "more than %d steps", TOK_STAGES_MAX);
    char *grown = realloc(*list, (count + 1) * size);
    if (!grown) return helm_fail(err, HELM_E_NOMEM, "no memory for a step");
    memset(grown + count * size, 0, size);
    *list = grown;
    return 0;
}

static int unsupported(const char *what, struct helm_err *err)
{
    return helm_fail(err, HELM_E_UNSUPPORTED, "this %s is not supported", what);
}

/* "pattern": {"String": ...} or {"Regex": ...} */
static int read_pattern(const json_t *item, struct tok_pattern *pattern, bool *regex, struct helm_err *err)
{
    const json_t *spec = json_object_get(item, "pattern");
    const json_t *text = json_object_get(spec, "String");
    *regex = text == NULL;
    if (*regex) text = json_object_get(spec, "Regex");
    if (!json_is_string(text))
        return helm_fail(err, HELM_E_FORMAT, "'pattern' has neither a String nor a Regex");
    return tok_pattern_open(pattern, json_string_value(text), json_string_length(text), *regex, err);
}

static int read_content(const json_t *item, const char *key, struct tok_buffer *content, struct helm_err *err)
{
    const json_t *text = json_object_get(item, key);
    if (!json_is_string(text)) return helm_fail(err, HELM_E_FORMAT, "'%s' is not a string", key);
    return tok_buffer_append(content, json_string_value(text), json_string_length(text), err);
}

static int read_char(const json_t *item, const char *key, uint32_t *codepoint, struct helm_err *err)
{
    const json_t *text = json_object_get(item, key);
    size_t length = json_string_length(text);
    if (!json_is_string(text) || length == 0 || tok_utf8_get(json_string_value(text), codepoint) != length)
        return helm_fail(err, HELM_E_FORMAT, "'%s' is not one character", key);
    return 0;
}

/* Replace: newer versions read $1 in the content of a regular expression, older ones do not. */
static int read_replace(const json_t *item, struct tok_pattern *pattern, struct tok_buffer *content,
                        struct helm_err *err)
{
    bool regex;
    int rc = read_pattern(item, pattern, &regex, err);
    if (!rc) rc = read_content(item, "content", content, err);
    if (!rc && regex && content->length && memchr(content->data, '$', content->length))
        return helm_fail(err, HELM_E_UNSUPPORTED, "'$' in the content that replaces a regular expression");
    return rc;
}

static int read_prepend_scheme(const json_t *item, enum tok_prepend *prepend, struct helm_err *err)
{
    static const char *const names[] = {"always", "first", "never"};
    const char *scheme = NULL;
    bool prefix = true;
    int rc = json_get_string(item, "prepend_scheme", false, &scheme, err);
    if (!rc) rc = json_get_bool(item, "add_prefix_space", false, &prefix, err);
    if (rc) return rc;
    *prepend = TOK_PREPEND_ALWAYS;
    if (scheme) {
        size_t i = 0;
        while (i < 3 && strcmp(scheme, names[i]) != 0) i++;
        if (i == 3) return helm_fail(err, HELM_E_UNSUPPORTED, "prepend_scheme '%.32s'", scheme);
        *prepend = (enum tok_prepend)i;
    }
    if (prefix) return 0;
    if (scheme && *prepend != TOK_PREPEND_NEVER)
        return helm_fail(err, HELM_E_MISMATCH, "add_prefix_space is false but prepend_scheme is '%s'",
                         scheme);
    *prepend = TOK_PREPEND_NEVER;
    return 0;
}

/* ---- normalizers
 * ------------------------------------------------------------------------------------------------ */

static int add_normalizer(struct helm_tokenizer *tokenizer, const json_t *item, const char *type,
                          struct helm_err *err)
{
    static const char *const names[] = {
        [TOK_NORMALIZER_NFC] = "NFC",
        [TOK_NORMALIZER_NFD] = "NFD",
        [TOK_NORMALIZER_NFKC] = "NFKC",
        [TOK_NORMALIZER_NFKD] = "NFKD",
        [TOK_NORMALIZER_PREPEND] = "Prepend",
        [TOK_NORMALIZER_REPLACE] = "Replace",
        [TOK_NORMALIZER_LOWERCASE] = "Lowercase",
        [TOK_NORMALIZER_STRIP_ACCENTS] = "StripAccents",
        [TOK_NORMALIZER_STRIP] = "Strip",
    };
    size_t kind = 0, kinds = sizeof names / sizeof *names;
    while (kind < kinds && strcmp(names[kind], type) != 0) kind++;
    if (kind == kinds) return unsupported("normalizer", err);
    int rc = grow((void **)&tokenizer->normalizers, tokenizer->normalizer_count,
                  sizeof *tokenizer->normalizers, err);
    if (rc) return rc;
    struct tok_normalizer *step = &tokenizer->normalizers[tokenizer->normalizer_count++];
    step->kind = (enum tok_normalizer_kind)kind;
    switch (step->kind) {
    case TOK_NORMALIZER_PREPEND:
        return read_content(item, "prepend", &step->content, err);
    case TOK_NORMALIZER_REPLACE:
        return read_replace(item, &step->pattern, &step->content, err);
    case TOK_NORMALIZER_STRIP:
        rc = json_get_bool(item, "strip_left", true, &step->strip_left, err);
        return rc ? rc : json_get_bool(item, "strip_right", true, &step->strip_right, err);
    default:
        return 0;
    }
}

/* ---- pre-tokenizers
 * --------------------------------------------------------------------------------------------- */

/* GPT-2's expression, which ByteLevel means by use_regex. */
static const char byte_level_regex[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static int read_behavior(const json_t *item, bool required, enum tok_split_behavior *behavior,
                         struct helm_err *err)
{
    static const char *const names[] = {
        [TOK_SPLIT_ISOLATED] = "Isolated",
        [TOK_SPLIT_REMOVED] = "Removed",
        [TOK_SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [TOK_SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
        [TOK_SPLIT_CONTIGUOUS] = "Contiguous",
    };
    const char *name = "Isolated";
    int rc = json_get_string(item, "behavior", required, &name, err);
    if (rc) return rc;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *behavior = (enum tok_split_behavior)i;
        return 0;
    }
    return helm_fail(err, HELM_E_UNSUPPORTED, "behavior '%.32s'", name);
}

static int read_byte_level(const json_t *item, struct tok_pretokenizer *step, struct helm_err *err)
{
    step->add_prefix_space = true;
    step->use_regex = true;
    int rc = json_get_bool(item, "add_prefix_space", false, &step->add_prefix_space, err);
    if (!rc) rc = json_get_bool(item, "use_regex", false, &step->use_regex, err);
    if (rc || !step->use_regex) return rc;
    return tok_pattern_open(&step->pattern, byte_level_regex, sizeof byte_level_regex - 1, true, err);
}

static int read_metaspace(const json_t *item, struct tok_pretokenizer *step, struct helm_err *err)
{
    uint32_t codepoint = 0;
    step->split = true;
    int rc = read_char(item, "replacement", &codepoint, err);
    if (!rc) rc = read_prepend_scheme(item, &step->prepend, err);
    if (!rc) rc = json_get_bool(item, "split", false, &step->split, err);
    step->replacement_length = tok_utf8_put(codepoint, step->replacement);
    return rc;
}

static int add_pretokenizer(struct helm_tokenizer *tokenizer, const json_t *item, const char *type,
                            struct helm_err *err)
{
    static const char *const names[] = {
        [TOK_PRETOKENIZER_BYTE_LEVEL] = "ByteLevel",
        [TOK_PRETOKENIZER_SPLIT] = "Split",
        [TOK_PRETOKENIZER_METASPACE] = "Metaspace",
        [TOK_PRETOKENIZER_DIGITS] = "Digits",
        [TOK_PRETOKENIZER_WHITESPACE] = "Whitespace",
        [TOK_PRETOKENIZER_WHITESPACE_SPLIT] = "WhitespaceSplit",
        [TOK_PRETOKENIZER_PUNCTUATION] = "Punctuation",
    };
    size_t kind = 0, kinds = sizeof names / sizeof *names;
    while (kind < kinds && strcmp(names[kind], type) != 0) kind++;
    if (kind == kinds) return unsupported("pre-tokenizer", err);
    int rc = grow((void **)&tokenizer->pretokenizers, tokenizer->pretokenizer_count,
                  sizeof *tokenizer->pretokenizers, err);
    if (rc) return rc;
    struct tok_pretokenizer *step = &tokenizer->pretokenizers[tokenizer->pretokenizer_count++];
    bool regex, individual = false;
    step->kind = (enum tok_pretokenizer_kind)kind;
    switch (step->kind) {
    case TOK_PRETOKENIZER_BYTE_LEVEL:
        return read_byte_level(item, step, err);
    case TOK_PRETOKENIZER_METASPACE:
        return read_metaspace(item, step, err);
    case TOK_PRETOKENIZER_SPLIT:
        rc = read_pattern(item, &step->pattern, &regex, err);
        if (!rc) rc = read_behavior(item, true, &step->behavior, err);
        return rc ? rc : json_get_bool(item, "invert", false, &step->invert, err);
    case TOK_PRETOKENIZER_DIGITS:
        rc = json_get_bool(item, "individual_digits", false, &individual, err);
        step->behavior = individual ? TOK_SPLIT_ISOLATED : TOK_SPLIT_CONTIGUOUS;
        return rc;
    case TOK_PRETOKENIZER_PUNCTUATION:
        return read_behavior(item, false, &step->behavior, err);
    case TOK_PRETOKENIZER_WHITESPACE: /* the words match, what lies between is removed */
        step->invert = true;
        step->behavior = TOK_SPLIT_REMOVED;
        return 0;
    case TOK_PRETOKENIZER_WHITESPACE_SPLIT:
        step->behavior = TOK_SPLIT_REMOVED;
        return 0;
    }
    return 0;
}

/* ---- decoders
 * --------------------------------------------------------------------------------------------------- */

static int add_decoder(struct helm_tokenizer *tokenizer, const json_t *item, const char *type,
                       struct helm_err *err)
{
    static const char *const names[] = {
        [TOK_DECODER_BYTE_LEVEL] = "ByteLevel",
        [TOK_DECODER_BYTE_FALLBACK] = "ByteFallback",
        [TOK_DECODER_FUSE] = "Fuse",
        [TOK_DECODER_REPLACE] = "Replace",
        [TOK_DECODER_STRIP] = "Strip",
        [TOK_DECODER_METASPACE] = "Metaspace",
    };
    size_t kind = 0, kinds = sizeof names / sizeof *names;
    while (kind < kinds && strcmp(names[kind], type) != 0) kind++;
    if (kind == kinds) return unsupported("decoder", err);
    int rc = grow((void **)&tokenizer->decoders, tokenizer->decoder_count, sizeof *tokenizer->decoders, err);
    if (rc) return rc;
    struct tok_decoder *decoder = &tokenizer->decoders[tokenizer->decoder_count++];
    enum tok_prepend prepend = TOK_PREPEND_ALWAYS;
    uint64_t start = 0, stop = 0;
    decoder->kind = (enum tok_decoder_kind)kind;
    switch (decoder->kind) {
    case TOK_DECODER_REPLACE:
        return read_replace(item, &decoder->pattern, &decoder->content, err);
    case TOK_DECODER_STRIP:
        rc = read_char(item, "content", &decoder->strip_char, err);
        if (!rc) rc = json_get_u64(item, "start", true, 0, 1u << 20, &start, err);
        if (!rc) rc = json_get_u64(item, "stop", true, 0, 1u << 20, &stop, err);
        decoder->strip_start = (uint32_t)start;
        decoder->strip_stop = (uint32_t)stop;
        return rc;
    case TOK_DECODER_METASPACE:
        rc = read_char(item, "replacement", &decoder->replacement, err);
        if (!rc) rc = read_prepend_scheme(item, &prepend, err);
        decoder->drop_first = prepend != TOK_PREPEND_NEVER;
        return rc;
    default:
        return 0;
    }
}

static int read_decoders(struct helm_tokenizer *tokenizer, const json_t *item, struct helm_err *err)
{
    int rc = visit_component(tokenizer, item, "decoders", 0, add_decoder, err);
    if (rc || (item && !json_is_null(item))) return rc;
    rc = grow((void **)&tokenizer->decoders, 0, sizeof *tokenizer->decoders, err);
    if (rc) return rc;
    tokenizer->decoders[0].kind = TOK_DECODER_JOIN;
    tokenizer->decoder_count = 1;
    return 0;
}

/* ---- post-processor
 * --------------------------------------------------------------------------------------------- */

static int add_template_id(struct helm_tokenizer *tokenizer, uint32_t id, struct helm_err *err)
{
    if (tokenizer->template_count >= TOK_TEMPLATE_MAX)
        return helm_fail(err, HELM_E_LIMIT, "more than %d tokens in the template", TOK_TEMPLATE_MAX);
    uint32_t *ids = realloc(tokenizer->template_ids, (tokenizer->template_count + 1) * sizeof *ids);
    if (!ids) return helm_fail(err, HELM_E_NOMEM, "no memory for the template");
    tokenizer->template_ids = ids;
    ids[tokenizer->template_count++] = id;
    return 0;
}

static int add_template_token(struct helm_tokenizer *tokenizer, const json_t *specials, const char *name,
                              struct helm_err *err)
{
    const json_t *ids = json_object_get(json_object_get(specials, name), "ids");
    if (!json_is_array(ids))
        return helm_fail(err, HELM_E_FORMAT, "special_tokens has no ids for '%.64s'", name);
    size_t i;
    json_t *value;
    json_array_foreach(ids, i, value)
    {
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id >= HELM_TOKENIZER_ID_LIMIT)
            return helm_fail(err, HELM_E_LIMIT, "an id of '%.64s' is not below %u", name,
                             HELM_TOKENIZER_ID_LIMIT);
        int rc = add_template_id(tokenizer, (uint32_t)id, err);
        if (rc) return rc;
    }
    return 0;
}

static int add_template(struct helm_tokenizer *tokenizer, const json_t *item, struct helm_err *err)
{
    const json_t *single = json_object_get(item, "single");
    if (tokenizer->template_ids)
        return helm_fail(err, HELM_E_UNSUPPORTED, "a second template in one tokenizer");
    if (!json_is_array(single)) return helm_fail(err, HELM_E_UNSUPPORTED, "'single' is not a list");
    size_t i;
    json_t *piece;
    json_array_foreach(single, i, piece)
    {
        const json_t *sequence = json_object_get(piece, "Sequence"),
                     *token = json_object_get(piece, "SpecialToken");
        const char *name = json_string_value(json_object_get(sequence ? sequence : token, "id"));
        int rc;
        if (!name)
            return helm_fail(err, HELM_E_FORMAT, "'single' entry %zu is neither Sequence nor SpecialToken",
                             i);
        if (sequence && strcmp(name, "A") != 0)
            return helm_fail(err, HELM_E_FORMAT, "'single' names sequence '%.16s'; there is only A", name);
        if (sequence)
            rc = add_template_id(tokenizer, HELM_TOKENIZER_NO_ID, err);
        else
            rc = add_template_token(tokenizer, json_object_get(item, "special_tokens"), name, err);
        if (rc) return rc;
    }
    return 0;
}

static int add_processor(struct helm_tokenizer *tokenizer, const json_t *item, const char *type,
                         struct helm_err *err)
{
    if (strcmp(type, "ByteLevel") == 0) return 0; /* it only moves offsets, which HELM does not give */
    if (strcmp(type, "TemplateProcessing") == 0) return add_template(tokenizer, item, err);
    return unsupported("post-processor", err);
}

/* ---- added tokens
 * ----------------------------------------------------------------------------------------------- */

struct added_spec {
    const char *text;
    size_t length;
    struct tok_added_token token;
};

static int read_added(const json_t *item, size_t index, struct added_spec *spec, struct helm_err *err)
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

/* Gives the token its id and puts its spelling into the trie that it is searched with. */
static int install_added(struct helm_tokenizer *tokenizer, uint32_t index, const struct added_spec *spec,
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
    rc = tok_trie_insert(&added->spelled, spec->text, spec->length, index, err);
    if (rc || !spec->token.normalized)
        return rc ? rc : tok_trie_insert(&added->raw, spec->text, spec->length, index, err);
    struct tok_buffer normalized = {0};
    bool dropped;
    const char *text = spec->text;
    size_t length = spec->length;
    if (tokenizer->normalizer_count) {
        rc = tok_normalize(tokenizer->normalizers, tokenizer->normalizer_count, text, length, matcher,
                           &normalized, &dropped, err);
        text = normalized.data;
        length = normalized.length;
    }
    if (!rc && length == 0)
        rc = helm_fail(err, HELM_E_UNSUPPORTED, "'%.64s' is nothing once normalized", spec->text);
    /* Of two tokens that normalize alike the first counts. */
    size_t matched = 0;
    if (!rc && (tok_trie_longest(&added->normalized, text, length, &matched) == HELM_TOKENIZER_NO_ID ||
                matched != length))
        rc = tok_trie_insert(&added->normalized, text, length, index, err);
    tok_buffer_free(&normalized);
    return rc;
}

static int install_all(struct helm_tokenizer *tokenizer, const json_t *list, struct helm_err *err)
{
    struct tok_added *added = &tokenizer->added;
    struct tok_matcher matcher = {0};
    int rc = 0;
    added->tokens = calloc(json_array_size(list) + 1, sizeof *added->tokens);
    if (!added->tokens) return helm_fail(err, HELM_E_NOMEM, "no memory for added tokens");
    /* Special ones first: they win where two normalize alike. */
    for (int pass = 0; pass < 2 && !rc; pass++) {
        size_t i;
        json_t *item;
        json_array_foreach(list, i, item)
        {
            struct added_spec spec = {0};
            rc = read_added(item, i, &spec, err);
            if (rc) break;
            if (spec.length == 0 || spec.token.special != (pass == 0)) continue;
            uint32_t other = tok_added_find(added, spec.text, spec.length);
            if (other == spec.token.id) continue; /* said twice */
            if (other != HELM_TOKENIZER_NO_ID) {
                rc = helm_fail(err, HELM_E_MISMATCH, "'%.64s' has two ids, %u and %u", spec.text, other,
                               spec.token.id);
                break;
            }
            added->tokens[added->count] = spec.token;
            rc = install_added(tokenizer, added->count, &spec, &matcher, err);
            if (rc) break;
            added->count++;
        }
    }
    tok_matcher_free(&matcher);
    return rc;
}

/* How far the added tokens' ids reach. */
static int measure_added(const json_t *list, uint32_t *id_end, struct helm_err *err)
{
    *id_end = 0;
    if (!list || json_is_null(list)) return 0;
    if (!json_is_array(list)) return helm_fail(err, HELM_E_FORMAT, "not a list");
    if (json_array_size(list) > TOK_ADDED_MAX)
        return helm_fail(err, HELM_E_LIMIT, "%zu added tokens, more than %d", json_array_size(list),
                         TOK_ADDED_MAX);
    size_t i;
    json_t *item;
    json_array_foreach(list, i, item)
    {
        struct added_spec spec = {0};
        int rc = read_added(item, i, &spec, err);
        if (rc) return rc;
        if (spec.token.id >= *id_end) *id_end = spec.token.id + 1;
    }
    return 0;
}

/* ---- model
 * ------------------------------------------------------------------------------------------------------ */

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

int tok_parse(struct helm_tokenizer *tokenizer, const char *text, size_t length, struct helm_err *err)
{
    struct tok_buffer rest = {0};
    struct tok_slice vocab, merges;
    json_t *root = NULL;
    uint32_t extra_id_end = 0;
    const char *part = "tokenizer.json";
    int rc;
    if (length > TOK_JSON_BYTES_MAX)
        return helm_fail(err, HELM_E_LIMIT, "tokenizer.json: %zu bytes exceed the limit of %u", length,
                         TOK_JSON_BYTES_MAX);
    rc = tok_json_cut(text, length, &rest, &vocab, &merges, err);
    if (rc) goto out;
    rc = json_parse_bounded("text", rest.data, rest.length, TOK_JSON_BYTES_MAX, &root, err);
    if (rc) goto out;
    if (!json_is_object(root)) {
        rc = helm_fail(err, HELM_E_FORMAT, "not an object");
        goto out;
    }
    part = "tokenizer.json: added_tokens";
    rc = measure_added(json_object_get(root, "added_tokens"), &extra_id_end, err);
    if (rc) goto out;
    part = "tokenizer.json: model";
    rc = read_model(tokenizer, json_object_get(root, "model"), &vocab, &merges, extra_id_end, err);
    if (rc) goto out;
    part = "tokenizer.json: normalizer";
    rc = visit_component(tokenizer, json_object_get(root, "normalizer"), "normalizers", 0, add_normalizer,
                         err);
    if (rc) goto out;
    part = "tokenizer.json: pre_tokenizer";
    rc = visit_component(tokenizer, json_object_get(root, "pre_tokenizer"), "pretokenizers", 0,
                         add_pretokenizer, err);
    if (rc) goto out;
    if (tokenizer->pretokenizer_count) {
        struct tok_pretokenizer *last = &tokenizer->pretokenizers[tokenizer->pretokenizer_count - 1];
        last->last_byte_level = last->kind == TOK_PRETOKENIZER_BYTE_LEVEL;
        tokenizer->bpe.byte_level = last->last_byte_level;
    }
    tok_bpe_prepare(&tokenizer->bpe, &tokenizer->vocab);
    part = "tokenizer.json: decoder";
    rc = read_decoders(tokenizer, json_object_get(root, "decoder"), err);
    if (rc) goto out;
    part = "tokenizer.json: post_processor";
    rc = visit_component(tokenizer, json_object_get(root, "post_processor"), "processors", 0, add_processor,
                         err);
    if (rc) goto out;
    part = "tokenizer.json: added_tokens";
    rc = install_all(tokenizer, json_object_get(root, "added_tokens"), err);
out:
    if (rc) helm_err_prefix(err, "%s", part);
    json_decref(root);
    tok_buffer_free(&rest);
    return rc;
}
