/* Vocabularies. See vocabulary.h. */
#include "client/text/grammar/vocabulary.h"

#include <stdlib.h>
#include <string.h>

static int sort_tokens(struct helm_vocabulary *v, struct helm_err *err)
{
    struct trie_entry *entry = malloc((v->vocab ? v->vocab : 1) * sizeof *entry);
    uint32_t count = 0;
    if (!entry) return helm_fail(err, HELM_E_NOMEM, "no memory for a vocabulary of %u tokens", v->vocab);
    for (uint32_t id = 0; id < v->vocab; id++) {
        const uint32_t length = v->offset[id + 1] - v->offset[id];
        if (!length) continue;
        if (length > v->longest) v->longest = length;
        entry[count++] = (struct trie_entry){v->bytes + v->offset[id], length, id};
    }
    qsort(entry, count, sizeof *entry, trie_entry_order);
    int rc = trie_build(entry, count, &v->trie, err);
    if (!rc) rc = slices_build(entry, count, v->words, &v->slices, err);
    free(entry);
    return rc;
}

static int make(uint32_t vocab, const uint32_t *ends, size_t end_count, struct helm_vocabulary **out,
                struct helm_err *err)
{
    *out = NULL;
    if (vocab == 0 || vocab > HELM_TOKENIZER_ID_LIMIT)
        return helm_fail(err, HELM_E_LIMIT, "a vocabulary of %u is not between 1 and %u", vocab,
                         HELM_TOKENIZER_ID_LIMIT);
    if (end_count == 0 || end_count > VOCABULARY_ENDS)
        return helm_fail(err, HELM_E_LIMIT,
                         "%zu tokens end an output, not between 1 and %d: a grammar needs one to end with",
                         end_count, VOCABULARY_ENDS);
    struct helm_vocabulary *v = calloc(1, sizeof *v);
    if (!v) return helm_fail(err, HELM_E_NOMEM, "no memory for a vocabulary");
    *out = v;
    v->vocab = vocab;
    v->words = (vocab + 31) / 32;
    v->offset = calloc((size_t)vocab + 1, sizeof *v->offset);
    v->held = calloc(1, sizeof *v->held);
    if (!v->offset || !v->held)
        return helm_fail(err, HELM_E_NOMEM, "no memory for a vocabulary of %u tokens", vocab);
    for (size_t i = 0; i < end_count; i++) {
        if (ends[i] >= vocab)
            return helm_fail(err, HELM_E_LIMIT, "end token %u lies outside the vocabulary of %u", ends[i],
                             vocab);
        v->end[v->end_count++] = ends[i];
    }
    return 0;
}

int vocabulary_open_bytes(const unsigned char *bytes, const uint32_t *offset, uint32_t vocab,
                          const uint32_t *ends, size_t end_count, struct helm_vocabulary **out,
                          struct helm_err *err)
{
    int rc = make(vocab, ends, end_count, out, err);
    if (rc == 0) {
        struct helm_vocabulary *v = *out;
        memcpy(v->offset, offset, ((size_t)vocab + 1) * sizeof *offset);
        v->bytes = malloc(offset[vocab] ? offset[vocab] : 1);
        if (v->bytes)
            memcpy(v->bytes, bytes, offset[vocab]);
        else
            rc = helm_fail(err, HELM_E_NOMEM, "no memory for a vocabulary of %u tokens", vocab);
    }
    if (rc == 0) rc = sort_tokens(*out, err);
    if (rc < 0) {
        helm_vocabulary_close(*out);
        *out = NULL;
    }
    return rc;
}

/* The bytes of one token at `to`, at most VOCABULARY_TOKEN_BYTES: 0, none, for one that a text never has. */
static int token_bytes(const struct helm_vocabulary *v, const struct helm_tokenizer *tokenizer, uint32_t id,
                       unsigned char *to, uint32_t *length, struct helm_err *err)
{
    *length = 0;
    if (vocabulary_is_end(v, id) || !helm_tokenizer_id_to_token(tokenizer, id, NULL)) return 0;
    if (helm_tokenizer_is_special(tokenizer, id)) {
        to[0] = VOCABULARY_SPECIAL;
        for (int i = 1; i < VOCABULARY_SPECIAL_BYTES; i++)
            to[i] = (unsigned char)(id >> 8 * (VOCABULARY_SPECIAL_BYTES - 1 - i));
        *length = VOCABULARY_SPECIAL_BYTES;
        return 0;
    }
    char *bytes;
    size_t n;
    const int rc = helm_tokenizer_token_bytes(tokenizer, id, &bytes, &n, err);
    if (rc < 0) return rc;
    if (n <= VOCABULARY_TOKEN_BYTES && (n == 0 || (unsigned char)bytes[0] != VOCABULARY_SPECIAL)) {
        memcpy(to, bytes, n);
        *length = (uint32_t)n;
    }
    free(bytes);
    return 0;
}

int helm_vocabulary_open(const struct helm_tokenizer *tokenizer, const uint32_t *ends, size_t end_count,
                         uint32_t vocab, struct helm_vocabulary **out, struct helm_err *err)
{
    const uint32_t known = helm_tokenizer_vocab_size(tokenizer);
    size_t space = 1 << 16, used = 0;
    int rc = make(vocab, ends, end_count, out, err);
    struct helm_vocabulary *v = *out;
    if (rc == 0 && !(v->bytes = malloc(space)))
        rc = helm_fail(err, HELM_E_NOMEM, "no memory for a vocabulary");
    for (uint32_t id = 0; rc == 0 && id < vocab; id++) {
        uint32_t length = 0;
        if (space - used < VOCABULARY_TOKEN_BYTES) {
            void *grown = realloc(v->bytes, 2 * space);
            if (!grown) {
                rc = helm_fail(err, HELM_E_NOMEM, "no memory for a vocabulary of %u tokens", vocab);
                break;
            }
            v->bytes = grown;
            space *= 2;
        }
        if (id < known) rc = token_bytes(v, tokenizer, id, v->bytes + used, &length, err);
        used += length;
        if (used > UINT32_MAX / 2) rc = helm_fail(err, HELM_E_LIMIT, "the vocabulary has too many bytes");
        v->offset[id + 1] = (uint32_t)used;
    }
    if (rc == 0) rc = sort_tokens(v, err);
    if (rc < 0) {
        helm_vocabulary_close(v);
        *out = NULL;
    }
    return rc;
}

void helm_vocabulary_close(struct helm_vocabulary *v)
{
    if (!v) return;
    trie_free(&v->trie);
    slices_free(&v->slices);
    free(v->held);
    free(v->offset);
    free(v->bytes);
    free(v);
}

uint32_t helm_vocabulary_size(const struct helm_vocabulary *v)
{
    return v->vocab;
}
