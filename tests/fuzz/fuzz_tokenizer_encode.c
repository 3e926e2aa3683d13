/* Any bytes as text, and as ids, for the small tokenizers in tests/data: what comes back is valid UTF-8, and
 * the incremental detokenizer gives exactly what decode gives. Byte 0 picks the tokenizer, byte 1 the flags.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/text/tokenizer/tokenizer.h"
#include "client/text/tokenizer/internal.h"
#include "common/base/file.h"

#define TOKENIZERS 4

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct helm_tokenizer *open_file(const char *name)
{
    struct helm_err err = {0};
    struct helm_tokenizer *tokenizer;
    char *text, path[128];
    size_t length;
    snprintf(path, sizeof path, "tests/data/tokenizers/%s.json", name);
    if (file_read(path, 1u << 24, &text, &length, &err) ||
        helm_tokenizer_open_memory(text, length, NULL, 0, &tokenizer, &err)) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    free(text);
    return tokenizer;
}

static void check_decode(const struct helm_tokenizer *tokenizer, const uint32_t *ids, size_t count,
                         unsigned flags)
{
    struct helm_err err = {0};
    struct helm_detokenizer *d;
    char *whole;
    size_t length, at = 0;
    if (helm_tokenizer_decode(tokenizer, ids, count, flags, &whole, &length, &err)) abort();
    if (!utf8_is_valid(whole, length)) abort();
    if (helm_detokenizer_open(tokenizer, flags, &d, &err)) abort();
    for (size_t i = 0; i <= count; i++) {
        const char *piece;
        size_t n;
        if (i < count ? helm_detokenizer_push(d, ids[i], &piece, &n, &err)
                      : helm_detokenizer_finish(d, &piece, &n, &err))
            abort();
        if (!utf8_is_valid(piece, n) || at + n > length || memcmp(whole + at, piece, n) != 0) abort();
        at += n;
    }
    if (at != length) abort();
    helm_detokenizer_close(d);
    free(whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[TOKENIZERS] = {"bytelevel", "sentencepiece", "metaspace", "words"};
    static struct helm_tokenizer
        *tokenizers[TOKENIZERS]; /* libFuzzer calls this function; nothing else can own them */
    struct helm_err err = {0};
    if (size < 2) return 0;
    unsigned pick = data[0] % TOKENIZERS, flags = data[1] & 3;
    if (!tokenizers[pick]) tokenizers[pick] = open_file(names[pick]);
    const struct helm_tokenizer *tokenizer = tokenizers[pick];
    uint32_t *ids, id_end = helm_tokenizer_vocab_size(tokenizer);
    size_t count;
    if (helm_tokenizer_encode(tokenizer, (const char *)data + 2, size - 2, flags, &ids, &count, &err))
        abort();
    for (size_t i = 0; i < count; i++)
        if (ids[i] >= id_end) abort();
    check_decode(tokenizer, ids, count, data[1] >> 2 & 1);
    free(ids);
    ids = malloc(size * sizeof *ids);
    for (size_t i = 2; i < size; i++) ids[i - 2] = (uint32_t)data[i] * (id_end + 3) / 256;
    check_decode(tokenizer, ids, size - 2, data[1] >> 2 & 1);
    free(ids);
    return 0;
}
