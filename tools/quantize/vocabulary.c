/* Tokenizers for GGUF files. See vocabulary.h. */
#include "tools/quantize/vocabulary.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/text/tokenizer/gguf_kinds.h"
#include "client/text/tokenizer/internal.h"
#include "common/model/gguf.h"

/* Values of tokenizer.ggml.token_type. */
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER_DEFINED, TYPE_UNUSED, TYPE_BYTE };

/* Text that tells the kinds apart: contractions, runs of digits, letter cases, marks, scripts, signs before
 * line ends. */
static const char sample[] =
    "Hello World's I'LL don't HTMLParser iPhoneX 3.14159 1234567890 na\u00efve cafe\u0301 "
    "\u041f\u0440\u0438\u0432\u0435\u0442 \u041c\u0418\u0420 "
    "\u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac "
    "\u4f60\u597d\uff0c\u4e16\u754c \u3053\u3093\u306b\u3061\u306f \ud55c\uad6d\uc5b4 "
    "\u0645\u0631\u062d\u0628\u0627\r\n\n  \t  x=a+b;//c\n/** d */ (e) \"f\" \u2026\n\n\n   end  \u3000 "
    "\u0661\u0662\u0663 \u0928\u092e\u0938\u094d\u0924\u0947 \U0001f642\U0001f469\u200d\U0001f467 "
    "_snake_case "
    "CamelCase99 !!\n#$%& ..../\n's'T'Re 2024-11-23T10:15 \u01c5ungla   ";

struct merge {
    uint32_t left, right, rank;
};

static int by_rank(const void *left, const void *right)
{
    const struct merge *a = left, *b = right;
    return a->rank < b->rank ? -1 : a->rank > b->rank;
}

/* In order, in a fresh array. */
static int list_merges(const struct helm_tokenizer *t, struct merge **merges, uint32_t *count,
                       struct helm_err *err)
{
    const size_t slots = t->vocab.merges ? (size_t)1 << t->vocab.merge_bits : 0;
    *count = 0;
    *merges = malloc((slots + 1) * sizeof **merges);
    if (!*merges) return helm_fail(err, HELM_E_NOMEM, "no memory for the merges");
    for (size_t i = 0; i < slots; i++) {
        const struct tok_merge_slot *slot = &t->vocab.merges[i];
        if (slot->pair != UINT64_MAX)
            (*merges)[(*count)++] =
                (struct merge){(uint32_t)(slot->pair >> 32), (uint32_t)slot->pair, slot->rank};
    }
    qsort(*merges, *count, sizeof **merges, by_rank);
    return 0;
}

static void put_merges(struct gguf_values *v, const struct helm_tokenizer *t, const struct merge *merges,
                       uint32_t count)
{
    char text[2 * TOK_ADDED_LENGTH_MAX + 1]; /* put_tokens has refused longer ones */
    gguf_put_array(v, "tokenizer.ggml.merges", GGUF_STRING, count);
    for (uint32_t i = 0; i < count; i++) {
        size_t left, right;
        const char *first = helm_tokenizer_id_to_token(t, merges[i].left, &left),
                   *second = helm_tokenizer_id_to_token(t, merges[i].right, &right);
        memcpy(text, first, left);
        text[left] = ' ';
        memcpy(text + left + 1, second, right);
        gguf_put_string_element(v, text, left + 1 + right);
    }
}

/* SentencePiece's score of a token falls with the rank of the merge that makes it. */
static int put_scores(struct gguf_values *v, const struct helm_tokenizer *t, const struct merge *merges,
                      uint32_t count, uint32_t rows, struct helm_err *err)
{
    float *score = calloc(rows, sizeof *score);
    if (!score) return helm_fail(err, HELM_E_NOMEM, "no memory for %u scores", rows);
    for (uint32_t i = 0; i < count; i++) {
        const struct tok_merge_slot *slot = tok_vocab_find_merge(&t->vocab, merges[i].left, merges[i].right);
        if (slot && slot->id < rows && score[slot->id] == 0) score[slot->id] = -1 - (float)merges[i].rank;
    }
    gguf_put_array(v, "tokenizer.ggml.scores", GGUF_F32, rows);
    gguf_put_element(v, score, rows * sizeof *score);
    free(score);
    return 0;
}

static int32_t type_of(const struct helm_tokenizer *t, uint32_t id, const char *text)
{
    if (!text) return TYPE_UNUSED;
    if (id == helm_tokenizer_role_id(t, "unk_token")) return TYPE_UNKNOWN;
    for (uint32_t i = 0; i < t->added.count; i++)
        if (t->added.tokens[i].id == id) return t->added.tokens[i].special ? TYPE_CONTROL : TYPE_USER_DEFINED;
    if (t->bpe.byte_fallback && strlen(text) == 6 && strncmp(text, "<0x", 3) == 0 && text[5] == '>')
        return TYPE_BYTE;
    return TYPE_NORMAL;
}

/* A token for each row of the model; rows without one are named as padding is. */
static int put_tokens(struct gguf_values *v, const struct helm_tokenizer *t, uint32_t rows,
                      struct helm_err *err)
{
    char padding[24];
    int32_t *type = calloc(rows, sizeof *type);
    if (!type) return helm_fail(err, HELM_E_NOMEM, "no memory for %u tokens", rows);
    gguf_put_array(v, "tokenizer.ggml.tokens", GGUF_STRING, rows);
    for (uint32_t id = 0; id < rows; id++) {
        size_t length = 0;
        const char *text = helm_tokenizer_id_to_token(t, id, &length);
        if (length > TOK_ADDED_LENGTH_MAX) { /* such a file would not be read again */
            free(type);
            return helm_fail(err, HELM_E_LIMIT, "tokenizer.json: token %u has %zu bytes, at most %d", id,
                             length, TOK_ADDED_LENGTH_MAX);
        }
        type[id] = type_of(t, id, text);
        if (!text) length = (size_t)snprintf(padding, sizeof padding, "[PAD%u]", id);
        gguf_put_string_element(v, text ? text : padding, length);
    }
    gguf_put_array(v, "tokenizer.ggml.token_type", GGUF_I32, rows);
    gguf_put_element(v, type, rows * sizeof *type);
    free(type);
    return 0;
}

/* ---- roles ---- */

/* The first is the tokenizer's or the configuration's, further ones are ends of turns and messages. */
static void put_ends(struct gguf_values *v, const struct model_config *config, uint32_t first)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    uint32_t used = 0;
    if (first != HELM_TOKENIZER_NO_ID) gguf_put_u32(v, keys[used++], first);
    for (uint32_t i = 0; i < config->eos_count && used < sizeof keys / sizeof *keys; i++)
        if ((uint32_t)config->eos[i] != first && (uint32_t)config->eos[i] < config->vocab)
            gguf_put_u32(v, keys[used++], (uint32_t)config->eos[i]);
}

/* Tokens before and after every text are the file's beginning and end. */
static void put_roles(struct gguf_values *v, const struct helm_tokenizer *t,
                      const struct model_config *config)
{
    static const char *const roles[][2] = {{"tokenizer.ggml.unknown_token_id", "unk_token"},
                                           {"tokenizer.ggml.padding_token_id", "pad_token"}};
    const uint32_t *around = t->template_ids;
    const bool before = t->template_count > 1 && around[0] != HELM_TOKENIZER_NO_ID,
               after = t->template_count > 1 && around[t->template_count - 1] != HELM_TOKENIZER_NO_ID;
    uint32_t bos = before ? around[0] : helm_tokenizer_role_id(t, "bos_token");
    if (bos == HELM_TOKENIZER_NO_ID && config->bos >= 0) bos = (uint32_t)config->bos;
    if (bos < config->vocab) gguf_put_u32(v, "tokenizer.ggml.bos_token_id", bos);
    put_ends(v, config, after ? around[t->template_count - 1] : helm_tokenizer_role_id(t, "eos_token"));
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        const uint32_t id = helm_tokenizer_role_id(t, roles[i][1]);
        if (id < config->vocab) gguf_put_u32(v, roles[i][0], id);
    }
    gguf_put_bool(v, "tokenizer.ggml.add_bos_token", before);
    gguf_put_bool(v, "tokenizer.ggml.add_eos_token", after);
    for (size_t i = 0; i < t->config.template_count; i++) {
        char key[GGUF_KEY_MAX] = "tokenizer.chat_template";
        const struct tok_named *named = &t->config.templates[i];
        if (strcmp(named->name, "default") != 0)
            snprintf(key, sizeof key, "tokenizer.chat_template.%s", named->name);
        gguf_put_text(v, key, named->text);
    }
}

void vocabulary_put_none(struct gguf_values *v, const struct model_config *config)
{
    gguf_put_text(v, "tokenizer.ggml.model", "no_vocab");
    if (config->bos >= 0) gguf_put_u32(v, "tokenizer.ggml.bos_token_id", (uint32_t)config->bos);
    put_ends(v, config, HELM_TOKENIZER_NO_ID);
}

/* ---- which kind ---- */

/* Whether a file of these values would encode the sample as the tokenizer does. */
static bool encodes_alike(const struct gguf_values *v, const struct helm_tokenizer *t)
{
    const uint32_t version = 3;
    const uint64_t counts[2] = {0, v->count};
    const unsigned flags = HELM_TOKENIZER_ENCODE_PARSE_ADDED | HELM_TOKENIZER_ENCODE_ADD_SPECIAL;
    struct gguf_values file = {0};
    struct gguf header = {0};
    struct helm_tokenizer *other = NULL;
    uint32_t *ids[2] = {NULL, NULL};
    size_t count[2] = {0, 0};
    struct helm_err ignored = {0};
    bool more;
    gguf_put_element(&file, "GGUF", 4);
    gguf_put_element(&file, &version, sizeof version);
    gguf_put_element(&file, counts, sizeof counts);
    gguf_put_element(&file, v->bytes, v->length);
    const struct gguf_source source = {"these keys", file.bytes, file.length, file.length, true};
    bool alike =
        !file.failed && !gguf_parse(&source, &header, &more, &ignored) &&
        !tok_open_gguf(&header, &other, &ignored) &&
        !helm_tokenizer_encode(t, sample, sizeof sample - 1, flags, &ids[0], &count[0], &ignored) &&
        !helm_tokenizer_encode(other, sample, sizeof sample - 1, flags, &ids[1], &count[1], &ignored);
    alike = alike && count[0] == count[1] && memcmp(ids[0], ids[1], count[0] * sizeof *ids[0]) == 0;
    free(ids[0]);
    free(ids[1]);
    helm_tokenizer_close(other);
    gguf_free(&header);
    gguf_values_free(&file);
    return alike;
}

static int put_kind(struct gguf_values *v, const struct helm_tokenizer *t, const char **name,
                    struct helm_err *err)
{
    const struct tok_gguf_kind *kind;
    const size_t length = v->length;
    const uint64_t count = v->count;
    char tried[160] = "";
    for (size_t i = 0; t->bpe.byte_level && (kind = tok_gguf_kind(i)); i++) {
        const size_t used = strlen(tried);
        gguf_put_text(v, "tokenizer.ggml.model", "gpt2");
        gguf_put_text(v, "tokenizer.ggml.pre", kind->name);
        *name = kind->name;
        if (encodes_alike(v, t)) return 0;
        snprintf(tried + used, sizeof tried - used, "%s%s", used ? ", " : "", kind->name);
        v->length = length;
        v->count = count;
    }
    if (!t->bpe.byte_level) {
        gguf_put_text(v, "tokenizer.ggml.model", "llama");
        gguf_put_text(v, "tokenizer.ggml.pre", "default");
        *name = "llama";
        if (encodes_alike(v, t)) return 0;
        strcpy(tried, "llama");
    }
    return helm_fail(err, HELM_E_UNSUPPORTED,
                     "tokenizer.json: no kind of tokenizer in GGUF files cuts text as it does (tried: %s)",
                     tried);
}

static int put_all(struct gguf_values *v, const struct helm_tokenizer *t, const struct model_config *config,
                   const char **kind, struct helm_err *err)
{
    struct merge *merges = NULL;
    uint32_t count = 0;
    if (helm_tokenizer_vocab_size(t) > config->vocab)
        return helm_fail(err, HELM_E_MISMATCH, "tokenizer.json has ids up to %u, the model %u rows for them",
                         helm_tokenizer_vocab_size(t) - 1, config->vocab);
    int rc = put_tokens(v, t, config->vocab, err);
    if (!rc) rc = list_merges(t, &merges, &count, err);
    if (!rc && t->bpe.byte_level)
        put_merges(v, t, merges, count);
    else if (!rc)
        rc = put_scores(v, t, merges, count, config->vocab, err);
    if (!rc) put_roles(v, t, config);
    if (!rc && v->failed) rc = helm_fail(err, HELM_E_NOMEM, "no memory for the tokenizer");
    if (!rc) rc = put_kind(v, t, kind, err);
    free(merges);
    return rc;
}

int vocabulary_put(struct gguf_values *v, const char *folder, const struct model_config *config,
                   const char **kind, struct helm_err *err)
{
    struct helm_tokenizer *t = NULL;
    int rc = helm_tokenizer_open(folder, &t, err);
    if (rc) return rc;
    rc = put_all(v, t, config, kind, err);
    helm_tokenizer_close(t);
    return rc;
}
