/* tokenizer.json's components as structs: normalizers, pre-tokenizers, decoders, post-processor.
 *
 * Sequences are flattened, nested ones too: running them one after the other is what they mean. A type or an
 * option that is not implemented is HELM_E_UNSUPPORTED and named. Called by tokenizer/load.c; what it builds
 * belongs to the struct helm_tokenizer it is given, also when it fails halfway. */
#include "client/text/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"

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

/* The index of `name`, or `count`. */
static size_t index_of(const char *name, const char *const *names, size_t count)
{
    size_t i = 0;
    while (i < count && strcmp(names[i], name) != 0) i++;
    return i;
}
#define INDEX_OF(name, names) index_of(name, names, sizeof(names) / sizeof *(names))

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
    tok_buffer_append(content, json_string_value(text), json_string_length(text));
    return tok_buffer_check(content, err);
}

static int read_char(const json_t *item, const char *key, uint32_t *codepoint, struct helm_err *err)
{
    const json_t *text = json_object_get(item, key);
    size_t length = json_string_length(text);
    if (!json_is_string(text) || length == 0 || utf8_get(json_string_value(text), codepoint) != length)
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
        size_t i = INDEX_OF(scheme, names);
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

/* ---- normalizers ---- */

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
    size_t kind = INDEX_OF(type, names);
    if (kind == sizeof names / sizeof *names) return unsupported("normalizer", err);
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

int tok_parse_normalizer(struct helm_tokenizer *tokenizer, const json_t *item, struct helm_err *err)
{
    return visit_component(tokenizer, item, "normalizers", 0, add_normalizer, err);
}

/* ---- pre-tokenizers ---- */

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
    *behavior = (enum tok_split_behavior)INDEX_OF(name, names);
    if (*behavior <= TOK_SPLIT_CONTIGUOUS) return 0;
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
    step->replacement_length = utf8_put(codepoint, step->replacement);
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
    size_t kind = INDEX_OF(type, names);
    if (kind == sizeof names / sizeof *names) return unsupported("pre-tokenizer", err);
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

int tok_parse_pretokenizer(struct helm_tokenizer *tokenizer, const json_t *item, struct helm_err *err)
{
    int rc = visit_component(tokenizer, item, "pretokenizers", 0, add_pretokenizer, err);
    if (rc || tokenizer->pretokenizer_count == 0) return rc;
    struct tok_pretokenizer *last = &tokenizer->pretokenizers[tokenizer->pretokenizer_count - 1];
    last->last_byte_level = last->kind == TOK_PRETOKENIZER_BYTE_LEVEL;
    tokenizer->bpe.byte_level = last->last_byte_level;
    return 0;
}

/* ---- decoders ---- */

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
    size_t kind = INDEX_OF(type, names);
    if (kind == sizeof names / sizeof *names) return unsupported("decoder", err);
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

int tok_parse_decoder(struct helm_tokenizer *tokenizer, const json_t *item, struct helm_err *err)
{
    int rc = visit_component(tokenizer, item, "decoders", 0, add_decoder, err);
    if (rc || (item && !json_is_null(item))) return rc;
    rc = grow((void **)&tokenizer->decoders, 0, sizeof *tokenizer->decoders, err);
    if (rc) return rc;
    tokenizer->decoders[0].kind = TOK_DECODER_JOIN;
    tokenizer->decoder_count = 1;
    return 0;
}

/* ---- post-processor ---- */

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

int tok_parse_processor(struct helm_tokenizer *tokenizer, const json_t *item, struct helm_err *err)
{
    return visit_component(tokenizer, item, "processors", 0, add_processor, err);
}
