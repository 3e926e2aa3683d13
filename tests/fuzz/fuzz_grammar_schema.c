/* Any bytes as a JSON schema: refused with words, or masks that are right (fuzz_grammar.h). Byte 0 picks the
 * way through it. */
#include "tests/fuzz/fuzz_grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fuzz_grammar(HELM_GRAMMAR_JSON_SCHEMA, data, size);
}
