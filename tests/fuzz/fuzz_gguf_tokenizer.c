/* Fuzz target: the tokenizer and the chat templates that a GGUF file's key/values describe. The input is a
 * whole file. It is refused with an error, or gives a tokenizer that encodes and decodes without harm. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "client/text/tokenizer/internal.h"
#include "common/model/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const struct helm_tokenizer *tokenizer)
{
    static const char sample[] =
        "Hello <s>w\xC3\xB6rld\xE2\x96\x81 \xF0\x9F\x98\x81\xFF\n\n ab 123 it's <|end|> abc";
    struct helm_err err = {0};
    for (unsigned flags = 0; flags < 4; flags++) {
        uint32_t *ids;
        size_t count, length;
        char *text;
        if (helm_tokenizer_encode(tokenizer, sample, sizeof sample - 1, flags, &ids, &count, &err)) continue;
        for (size_t i = 0; i < count; i++)
            if (ids[i] >= helm_tokenizer_vocab_size(tokenizer)) abort();
        if (!helm_tokenizer_decode(tokenizer, ids, count, flags & 1, &text, &length, &err)) {
            if (text[length] != '\0' || !utf8_is_valid(text, length)) abort();
            free(text);
        }
        free(ids);
    }
    for (uint32_t id = 0; id < helm_tokenizer_vocab_size(tokenizer) && id < 300; id++) {
        size_t length;
        const char *token = helm_tokenizer_id_to_token(tokenizer, id, &length);
        if (token && helm_tokenizer_token_to_id(tokenizer, token, length) != id) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct gguf_source source = {"fuzz", data, size, size, true};
    struct helm_err err = {0};
    struct helm_tokenizer *tokenizer;
    struct tok_config config = {0};
    struct gguf header;
    bool more;
    if (gguf_parse(&source, &header, &more, &err)) return 0; /* fuzz_gguf.c is about that */
    if (tok_open_gguf(&header, &tokenizer, &err)) {
        if (err.code >= 0 || err.text[0] == '\0' || tokenizer) abort(); /* an error says what is wrong */
    } else {
        use(tokenizer);
        helm_tokenizer_close(tokenizer);
    }
    err = (struct helm_err){0};
    if (tok_config_read_gguf(&config, &header, &err) && (err.code >= 0 || err.text[0] == '\0')) abort();
    tok_config_free(&config);
    gguf_free(&header);
    return 0;
}
