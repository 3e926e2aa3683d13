/* A tokenizer from a GGUF file's key/values (tokenizer.ggml.*, tokenizer.chat_template).
 *
 * Two models: `gpt2`, byte-level BPE whose cuts tokenizer.ggml.pre names (gguf_kinds.c), and `llama`,
 * SentencePiece's BPE, whose merges follow from its tokens' scores: of all pairs that make a token the one of
 * the highest score is merged first. Both become the structs that tokenizer.json becomes, and run through the
 * same code. Everything is checked here: files come from strangers. Called by tokenizer.c and chat.c at
 * open. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/text/tokenizer/gguf_kinds.h"
#include "client/text/tokenizer/internal.h"
#include "common/base/grow.h"
#include "common/model/gguf.h"

#define MERGES_MAX  (1u << 23)
#define SPLITS_WORK (UINT64_C(1) << 31) /* bytes hashed to find the pairs that scores imply */
#define TOKENS      "tokenizer.ggml.tokens"
#define TYPES       "tokenizer.ggml.token_type"
#define SCORES      "tokenizer.ggml.scores"
#define MERGES      "tokenizer.ggml.merges"
#define TEMPLATE    "tokenizer.chat_template"

enum token_type {
    TYPE_UNDEFINED,
    TYPE_NORMAL,
    TYPE_UNKNOWN,
    TYPE_CONTROL,
    TYPE_USER_DEFINED,
    TYPE_UNUSED,
    TYPE_BYTE,
    TYPE_COUNT
};

struct reading {
    const struct gguf *header;
    struct helm_tokenizer *tokenizer;
    const struct tok_gguf_kind *kind; /* NULL: model `llama` or `gemma4` */
    bool merged;                      /* `gemma4`: its merges are in the file; no space in front */
    uint8_t *types;                   /* enum token_type of each token */
    uint32_t count;
    struct helm_err *err;
};

/* ---- values ---- */

/* The list called `key`, of texts or of numbers, `count` of them (0: any number); NULL and 0 in *rc: it is
 * absent, as it may be. */
static const struct gguf_value *find_list(const struct gguf *header, const char *key, bool texts,
                                          uint64_t count, bool required, int *rc, struct helm_err *err)
{
    const struct gguf_value *value = gguf_find(header, key);
    *rc = 0;
    if (!value && required) *rc = helm_fail(err, HELM_E_NOT_FOUND, "key '%s' is missing", key);
    if (!value) return NULL;
    if (!value->array || (value->type == GGUF_STRING) != texts)
        *rc = helm_fail(err, HELM_E_FORMAT, "key '%s' is %s%s, not an array of %s", key,
                        value->array ? "an array of " : "", gguf_type_name(value->type),
                        texts ? "strings" : "numbers");
    else if (count && value->count != count)
        *rc = helm_fail(err, HELM_E_MISMATCH, "key '%s' has %llu elements, but there are %llu tokens", key,
                        (unsigned long long)value->count, (unsigned long long)count);
    return *rc ? NULL : value;
}

static int read_bool(const struct gguf *header, const char *key, bool *out, struct helm_err *err)
{
    const struct gguf_value *value = gguf_find(header, key);
    if (!value) return 0;
    if (value->array || value->type != GGUF_BOOL)
        return helm_fail(err, HELM_E_FORMAT, "key '%s' is not a bool", key);
    bool negative;
    *out = gguf_whole(value, 0, &negative) != 0;
    return 0;
}

/* A text that is used as one; *text is the caller's. */
static int copy_text(const struct gguf_value *value, size_t max, char **text, struct helm_err *err)
{
    uint64_t length;
    *text = NULL;
    if (value->array || value->type != GGUF_STRING)
        return helm_fail(err, HELM_E_FORMAT, "key '%s' is not a string", value->key);
    const uint8_t *at = value->data;
    const char *found = gguf_string(&at, &length);
    if (length > max)
        return helm_fail(err, HELM_E_LIMIT, "key '%s': a string of %llu bytes, the limit is %zu", value->key,
                         (unsigned long long)length, max);
    if (memchr(found, '\0', length) || !utf8_is_valid(found, length))
        return helm_fail(err, HELM_E_FORMAT, "key '%s': not a UTF-8 text", value->key);
    *text = strndup(found, length);
    return *text ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory for '%s'", value->key);
}

/* ---- tokens ---- */

static int read_types(struct reading *r)
{
    int rc;
    bool negative;
    r->types = malloc(r->count);
    if (!r->types) return helm_fail(r->err, HELM_E_NOMEM, "no memory for %u tokens", r->count);
    memset(r->types, TYPE_NORMAL, r->count);
    const struct gguf_value *list = find_list(r->header, TYPES, false, r->count, false, &rc, r->err);
    for (uint32_t i = 0; list && i < r->count; i++) {
        const uint64_t type = gguf_whole(list, i, &negative);
        if (type >= TYPE_COUNT)
            return helm_fail(r->err, HELM_E_FORMAT, "key '%s': token %u has type %lld, none of 0 to %d",
                             TYPES, i, (long long)type, TYPE_COUNT - 1);
        r->types[i] = (uint8_t)type;
    }
    return rc;
}

static int read_tokens(struct reading *r, const struct gguf_value *list)
{
    struct tok_vocab *vocab = &r->tokenizer->vocab;
    struct tok_token_list tokens = {0};
    const uint8_t *at = list->data;
    int rc = 0;
    vocab->bytes.limit = TOK_JSON_BYTES_MAX;
    for (uint32_t id = 0; id < r->count && !rc; id++) {
        uint64_t length;
        const char *text = gguf_string(&at, &length);
        if (length > TOK_ADDED_LENGTH_MAX)
            rc = helm_fail(r->err, HELM_E_LIMIT, "token %u has %llu bytes, more than %d", id,
                           (unsigned long long)length, TOK_ADDED_LENGTH_MAX);
        else if (!utf8_is_valid(text, length))
            rc = helm_fail(r->err, HELM_E_FORMAT, "token %u is not UTF-8", id);
        else if (length) { /* one without a text is only a row of the model */
            const size_t offset = vocab->bytes.length;
            tok_buffer_append(&vocab->bytes, text, length);
            rc = tok_vocab_spell(vocab, &tokens, id, offset, r->err);
        }
    }
    if (!rc && !tokens.count) rc = helm_fail(r->err, HELM_E_FORMAT, "no token has a text");
    if (!rc) rc = tok_vocab_index(vocab, &tokens, r->count, r->err);
    if (rc) helm_err_prefix(r->err, "key '%s'", TOKENS);
    tok_token_list_free(&tokens);
    return rc;
}

/* Control tokens and those that users defined are found in text before the model sees it. */
static int read_added(struct reading *r)
{
    struct helm_tokenizer *t = r->tokenizer;
    size_t count = 0, used = 0;
    for (uint32_t id = 0; id < r->count; id++)
        count += r->types[id] >= TYPE_UNKNOWN && r->types[id] <= TYPE_USER_DEFINED;
    if (count > TOK_ADDED_MAX)
        return helm_fail(r->err, HELM_E_LIMIT, "%zu control and user-defined tokens, more than %d", count,
                         TOK_ADDED_MAX);
    struct tok_added_spec *specs = calloc(count + 1, sizeof *specs);
    if (!specs) return helm_fail(r->err, HELM_E_NOMEM, "no memory for %zu added tokens", count);
    for (uint32_t id = 0; id < r->count; id++) {
        if (r->types[id] < TYPE_UNKNOWN || r->types[id] > TYPE_USER_DEFINED) continue;
        struct tok_added_spec *spec = &specs[used];
        spec->text = helm_tokenizer_id_to_token(t, id, &spec->length);
        spec->token = (struct tok_added_token){.id = id, .special = r->types[id] != TYPE_USER_DEFINED};
        used += spec->text != NULL;
    }
    int rc = tok_install_added(t, specs, used, r->err);
    free(specs);
    return rc;
}

/* ---- merges ---- */

static int read_merges(struct reading *r)
{
    struct tok_vocab *vocab = &r->tokenizer->vocab;
    struct tok_buffer joined = {0};
    int rc;
    const struct gguf_value *list = find_list(r->header, MERGES, true, 0, true, &rc, r->err);
    if (rc) return rc;
    if (list->count > MERGES_MAX)
        return helm_fail(r->err, HELM_E_LIMIT, "key '%s': %llu merges, more than %u", MERGES,
                         (unsigned long long)list->count, MERGES_MAX);
    rc = tok_vocab_reserve_merges(vocab, list->count, r->err);
    const uint8_t *at = list->data;
    for (uint32_t rank = 0; rank < list->count && !rc; rank++) {
        uint64_t length;
        size_t split = 0;
        const char *text = gguf_string(&at, &length);
        joined.length = 0;
        if (length > 2 * TOK_ADDED_LENGTH_MAX + 1)
            rc = helm_fail(r->err, HELM_E_LIMIT, "merge %u has %llu bytes", rank, (unsigned long long)length);
        else
            tok_buffer_append(&joined, text, length);
        if (!rc && !tok_merge_cut(&joined, &split))
            rc = helm_fail(r->err, HELM_E_FORMAT, "merge %u is not two parts with one space", rank);
        if (!rc) rc = tok_vocab_merge_spelled(vocab, &joined, split, rank, r->err);
    }
    if (rc) helm_err_prefix(r->err, "key '%s'", MERGES);
    tok_buffer_free(&joined);
    return rc;
}

struct scored {
    double score;
    uint32_t id;
};

static int compare_scores(const void *left, const void *right)
{
    const struct scored *a = left, *b = right;
    return a->score > b->score ? -1 : a->score < b->score;
}

/* Tokens by falling score; equal scores, equal ranks. */
static int rank_tokens(struct reading *r, uint32_t *ranks)
{
    int rc;
    const struct gguf_value *list = find_list(r->header, SCORES, false, r->count, true, &rc, r->err);
    struct scored *order = rc ? NULL : calloc(r->count, sizeof *order);
    if (!rc && !order) rc = helm_fail(r->err, HELM_E_NOMEM, "no memory for %u scores", r->count);
    for (uint32_t id = 0; id < r->count && !rc; id++) {
        order[id] = (struct scored){gguf_number(list, id), id};
        if (!isfinite(order[id].score))
            rc = helm_fail(r->err, HELM_E_FORMAT, "key '%s': token %u has the score %g", SCORES, id,
                           order[id].score);
    }
    if (!rc) qsort(order, r->count, sizeof *order, compare_scores);
    for (uint32_t i = 0; i < r->count && !rc; i++)
        ranks[order[i].id] = i && order[i].score == order[i - 1].score ? ranks[order[i - 1].id] : i;
    free(order);
    return rc;
}

struct pair {
    uint32_t left, right, whole;
};
struct pairs {
    struct pair *data;
    size_t count, capacity;
    uint64_t work; /* bytes hashed */
};

/* Whether text becomes this token by merging: no control token is made of text, no byte of its spelling. */
static bool merges(const struct reading *r, uint32_t id)
{
    if (id == HELM_TOKENIZER_NO_ID) return false;
    const uint8_t type = r->types[id];
    return type != TYPE_UNKNOWN && type != TYPE_CONTROL && type != TYPE_BYTE;
}

/* All the pairs of tokens that make this one. */
static int split_token(struct reading *r, uint32_t id, struct pairs *pairs)
{
    const struct tok_vocab *vocab = &r->tokenizer->vocab;
    const struct tok_entry *entry = &vocab->entries[id];
    const char *text = vocab->bytes.data + entry->offset;
    uint32_t codepoint;
    pairs->work += (uint64_t)entry->length * entry->length;
    if (pairs->work > SPLITS_WORK)
        return helm_fail(r->err, HELM_E_LIMIT, "key '%s': too many long tokens", TOKENS);
    for (size_t at = 0; at < entry->length;) {
        at += utf8_get(text + at, &codepoint);
        const uint32_t left = tok_vocab_find(vocab, text, at);
        if (at >= entry->length || !merges(r, left)) continue;
        const uint32_t right = tok_vocab_find(vocab, text + at, entry->length - at);
        if (!merges(r, right)) continue;
        if (pairs->count == MERGES_MAX || !GROW(pairs->data, pairs->count, pairs->capacity))
            return helm_fail(r->err, HELM_E_LIMIT, "no memory for %zu merges, of at most %u",
                             pairs->count + 1, MERGES_MAX);
        pairs->data[pairs->count++] = (struct pair){left, right, id};
    }
    return 0;
}

static int make_merges(struct reading *r)
{
    struct tok_vocab *vocab = &r->tokenizer->vocab;
    struct pairs pairs = {0};
    uint32_t *ranks = calloc(r->count, sizeof *ranks);
    int rc =
        ranks ? rank_tokens(r, ranks) : helm_fail(r->err, HELM_E_NOMEM, "no memory for %u ranks", r->count);
    for (uint32_t id = 0; id < r->count && !rc; id++)
        if (merges(r, id)) rc = split_token(r, id, &pairs);
    if (!rc) rc = tok_vocab_reserve_merges(vocab, pairs.count, r->err);
    for (size_t i = 0; i < pairs.count && !rc; i++) {
        const struct pair *p = &pairs.data[i];
        rc = tok_vocab_add_merge(vocab, p->left, p->right, ranks[p->whole], p->whole, r->err);
    }
    free(pairs.data);
    free(ranks);
    return rc;
}

/* ---- what happens before and after the model ---- */

static int parse(struct reading *r,
                 int parse_step(struct helm_tokenizer *, const json_t *, struct helm_err *), json_t *steps)
{
    int rc = steps ? parse_step(r->tokenizer, steps, r->err)
                   : helm_fail(r->err, HELM_E_NOMEM, "no memory for a step");
    json_decref(steps);
    return rc;
}

static int add_byte_level_steps(struct reading *r)
{
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof r->kind->splits / sizeof *r->kind->splits && r->kind->splits[i]; i++)
        json_array_append_new(list, json_pack("{s:s, s:{s:s}, s:s}", "type", "Split", "pattern", "Regex",
                                              r->kind->splits[i], "behavior", "Isolated"));
    json_array_append_new(list, json_pack("{s:s, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                                          "use_regex", 0));
    int rc =
        parse(r, tok_parse_pretokenizer, json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", list));
    if (!rc && r->kind->nfc) rc = parse(r, tok_parse_normalizer, json_pack("{s:s}", "type", "NFC"));
    return rc ? rc : parse(r, tok_parse_decoder, json_pack("{s:s}", "type", "ByteLevel"));
}

static json_t *replace(const char *from, const char *to)
{
    return json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", "String", from, "content", to);
}

static int add_llama_steps(struct reading *r)
{
    static const char space[] = "\xE2\x96\x81"; /* U+2581 */
    bool prefix = !r->merged;
    int rc = read_bool(r->header, "tokenizer.ggml.add_space_prefix", &prefix, r->err);
    if (rc) return rc;
    json_t *before = json_array(), *after = json_pack("[o, {s:s}, {s:s}]", replace(space, " "), "type",
                                                      "ByteFallback", "type", "Fuse");
    if (prefix) json_array_append_new(before, json_pack("{s:s, s:s}", "type", "Prepend", "prepend", space));
    json_array_append_new(before, replace(" ", space));
    if (prefix)
        json_array_append_new(after, json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip", "content", " ",
                                               "start", 1, "stop", 0));
    rc = parse(r, tok_parse_normalizer, json_pack("{s:s, s:o}", "type", "Sequence", "normalizers", before));
    int rc_after =
        parse(r, tok_parse_decoder, json_pack("{s:s, s:o}", "type", "Sequence", "decoders", after));
    return rc ? rc : rc_after;
}

/* A token that encoding may add: whether the file says so, or else its kind. */
static int read_add(const struct reading *r, const char *key, const char *role, bool by_default, bool *add,
                    uint32_t *id)
{
    *id = helm_tokenizer_role_id(r->tokenizer, role);
    *add = by_default && *id != HELM_TOKENIZER_NO_ID;
    int rc = read_bool(r->header, key, add, r->err);
    if (!rc && *add && *id == HELM_TOKENIZER_NO_ID)
        rc = helm_fail(r->err, HELM_E_FORMAT, "key '%s' is true, but the file names no %s", key, role);
    return rc;
}

static int read_template(struct reading *r)
{
    struct helm_tokenizer *t = r->tokenizer;
    uint32_t bos, eos;
    int rc = read_add(r, "tokenizer.ggml.add_bos_token", "bos_token", !r->kind || r->kind->add_bos,
                      &t->config.add_bos, &bos);
    if (!rc) rc = read_add(r, "tokenizer.ggml.add_eos_token", "eos_token", false, &t->config.add_eos, &eos);
    if (rc || (!t->config.add_bos && !t->config.add_eos)) return rc;
    t->template_ids = calloc(3, sizeof *t->template_ids);
    if (!t->template_ids) return helm_fail(r->err, HELM_E_NOMEM, "no memory for a template");
    if (t->config.add_bos) t->template_ids[t->template_count++] = bos;
    t->template_ids[t->template_count++] = HELM_TOKENIZER_NO_ID;
    if (t->config.add_eos) t->template_ids[t->template_count++] = eos;
    return 0;
}

/* ---- roles and chat templates ---- */

static int read_role(struct tok_config *config, const struct gguf *header, const char *name, const char *role,
                     struct helm_err *err)
{
    char key[GGUF_KEY_MAX];
    uint64_t id = 0, length = 0;
    snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", name);
    if (!gguf_find(header, key)) return 0;
    int rc;
    struct helm_err beyond = {0};
    const struct gguf_value *tokens = find_list(header, TOKENS, true, 0, true, &rc, err);
    if (rc) return rc;
    rc = gguf_get_u64(header, key, true, 0, tokens->count ? tokens->count - 1 : 0, &id, &beyond);
    if (rc == HELM_E_LIMIT && strcmp(name, "eos") != 0) return 0; /* beyond the tokens: the file has none */
    if (rc) return helm_fail(err, rc, "%s", beyond.text);
    const uint8_t *at = tokens->data;
    const char *text = "";
    for (uint64_t i = 0; i <= id && i < tokens->count; i++) text = gguf_string(&at, &length);
    if (length == 0 || length > TOK_ADDED_LENGTH_MAX || memchr(text, '\0', length) ||
        !utf8_is_valid(text, length))
        return helm_fail(err, HELM_E_FORMAT, "key '%s': token %llu is not a UTF-8 text of 1 to %d bytes", key,
                         (unsigned long long)id, TOK_ADDED_LENGTH_MAX);
    char *copy = strndup(text, length);
    rc = copy ? tok_config_add_role(config, role, copy, err)
              : helm_fail(err, HELM_E_NOMEM, "no memory for a token");
    free(copy);
    return rc;
}

int tok_config_read_gguf(struct tok_config *config, const struct gguf *header, struct helm_err *err)
{
    static const char *const roles[][2] = {{"bos", "bos_token"},       {"eos", "eos_token"},
                                           {"eom", "eom_token"},       {"eot", "eot_token"},
                                           {"unknown", "unk_token"},   {"padding", "pad_token"},
                                           {"seperator", "sep_token"}, {"mask", "mask_token"}};
    const size_t length = sizeof TEMPLATE - 1;
    int rc = 0;
    for (size_t i = 0; i < sizeof roles / sizeof *roles && !rc; i++)
        rc = read_role(config, header, roles[i][0], roles[i][1], err);
    for (uint32_t i = 0; i < header->value_count && !rc; i++) {
        const struct gguf_value *value = &header->values[i];
        char *text;
        if (strncmp(value->key, TEMPLATE, length) != 0 || (value->key[length] && value->key[length] != '.'))
            continue;
        rc = copy_text(value, TOK_CONFIG_BYTES_MAX, &text, err);
        if (!rc)
            rc = tok_config_set_template(config, value->key[length] ? value->key + length + 1 : "default",
                                         text, err);
        free(text);
    }
    return rc;
}

/* ---- the whole ---- */

/* One of the models and kinds that are known, or a refusal that names them. */
static int read_kind(struct reading *r)
{
    char model[32] = "", pre[32] = "", known[160] = "";
    size_t used = 0;
    int rc = gguf_get_string(r->header, "tokenizer.ggml.model", true, model, sizeof model, r->err);
    r->merged = strcmp(model, "gemma4") == 0;
    if (rc || r->merged || strcmp(model, "llama") == 0) return rc;
    if (strcmp(model, "no_vocab") == 0) /* as a folder without tokenizer.json */
        return helm_fail(r->err, HELM_E_NOT_FOUND, "the file has no tokenizer (model 'no_vocab')");
    if (strcmp(model, "gpt2") != 0)
        return helm_fail(r->err, HELM_E_UNSUPPORTED,
                         "tokenizer model '%s' is not supported (supported: gpt2, llama, gemma4)", model);
    rc = gguf_get_string(r->header, "tokenizer.ggml.pre", true, pre, sizeof pre, r->err);
    if (rc || (r->kind = tok_gguf_kind_named(pre))) return rc;
    const struct tok_gguf_kind *kind;
    for (size_t i = 0; (kind = tok_gguf_kind(i)) && used < sizeof known; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", kind->name);
    return helm_fail(r->err, HELM_E_UNSUPPORTED, "pre-tokenizer '%s' is not supported (supported: %s)", pre,
                     known);
}

static int read_all(struct reading *r)
{
    struct helm_tokenizer *t = r->tokenizer;
    int rc = read_kind(r);
    if (rc) return rc;
    const struct gguf_value *tokens = find_list(r->header, TOKENS, true, 0, true, &rc, r->err);
    if (rc) return rc;
    if (tokens->count == 0 || tokens->count > HELM_TOKENIZER_ID_LIMIT)
        return helm_fail(r->err, HELM_E_LIMIT, "key '%s': %llu tokens, not between 1 and %u", TOKENS,
                         (unsigned long long)tokens->count, HELM_TOKENIZER_ID_LIMIT);
    r->count = (uint32_t)tokens->count;
    rc = read_types(r);
    if (!rc) rc = read_tokens(r, tokens);
    if (!rc) rc = r->kind || r->merged ? read_merges(r) : make_merges(r);
    if (!rc) rc = tok_config_read_gguf(&t->config, r->header, r->err);
    if (!rc) rc = r->kind ? add_byte_level_steps(r) : add_llama_steps(r);
    if (rc) return rc;
    t->bpe.ignore_merges = r->kind && r->kind->ignore_merges;
    t->bpe.byte_fallback = t->bpe.fuse_unk = !r->kind;
    t->bpe.unk_id = helm_tokenizer_role_id(t, "unk_token");
    t->bpe.has_unk = !r->kind && t->bpe.unk_id != HELM_TOKENIZER_NO_ID;
    tok_bpe_prepare(&t->bpe, &t->vocab);
    rc = read_added(r);
    return rc ? rc : read_template(r);
}

int tok_open_gguf(const struct gguf *header, struct helm_tokenizer **out, struct helm_err *err)
{
    *out = NULL;
    struct reading r = {.header = header, .err = err, .tokenizer = calloc(1, sizeof *r.tokenizer)};
    if (!r.tokenizer) return helm_fail(err, HELM_E_NOMEM, "no memory for a tokenizer");
    int rc = read_all(&r);
    free(r.types);
    if (rc)
        helm_tokenizer_close(r.tokenizer);
    else
        *out = r.tokenizer;
    return rc;
}
