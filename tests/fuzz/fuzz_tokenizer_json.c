/* Any bytes as tokenizer.json: refused with an error, or a tokenizer that encodes and decodes without harm.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "client/text/tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char sample[] = "Hello <s>w\xC3\xB6rld\xE2\x96\x81 \xF0\x9F\x98\x81\xFF\n\n ab 123 it's";
    struct helm_err err = {0};
    struct helm_tokenizer *tokenizer;
    if (helm_tokenizer_open_memory((const char *)data, size, NULL, 0, &tokenizer, &err)) {
        if (err.code >= 0 || err.text[0] == '\0') abort(); /* an error says what is wrong */
        return 0;
    }
    for (unsigned flags = 0; flags < 4; flags++) {
        uint32_t *ids;
        size_t count, length;
        char *text;
        if (helm_tokenizer_encode(tokenizer, sample, sizeof sample - 1, flags, &ids, &count, &err)) continue;
        if (!helm_tokenizer_decode(tokenizer, ids, count, flags & 1, &text, &length, &err)) {
            if (text[length] != '\0') abort();
            free(text);
        }
        free(ids);
    }
    for (uint32_t id = 0; id < helm_tokenizer_vocab_size(tokenizer) && id < 300; id++) {
        size_t length;
        const char *token = helm_tokenizer_id_to_token(tokenizer, id, &length);
        if (token && helm_tokenizer_token_to_id(tokenizer, token, length) != id) abort();
    }
    helm_tokenizer_close(tokenizer);
    return 0;
}
