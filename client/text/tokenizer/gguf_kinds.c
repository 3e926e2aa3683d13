/* The kinds of pre-tokenizers that GGUF files name (tokenizer.ggml.pre): how each cuts text into words.
 *
 * The expressions are those of the models' own tokenizer.json files, in Oniguruma's syntax; each is a Split
 * that keeps what it matches as words, one after the other. Read by tokenizer/gguf.c. */
#include <string.h>

#include "client/text/tokenizer/gguf_kinds.h"
#include "common/base/suggest.h"

#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define LINES       "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define SIGNS       " ?[^\\s\\p{L}\\p{N}]+"
#define WORD        "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
/* Words that end where lower case goes over to upper case. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(tail)                                                                                          \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" tail "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" tail
#define CHINESE_V3 "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+"
/* Letters with two cases, as DeepSeek's first tokenizer lists them. */
#define DEEPSEEK_LETTERS                                                                                     \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}"                           \
    "\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}"           \
    "\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}"                   \
    "\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}"            \
    "\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}"                           \
    "\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}"                           \
    "\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}"                   \
    "\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}"                  \
    "\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}"                           \
    "\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}"                   \
    "\\x{2124}\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}"                             \
    "\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}"                   \
    "\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}"                            \
    "\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}"                           \
    "\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}"                           \
    "\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}"                     \
    "\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}"

static const struct tok_gguf_kind kinds[] = {
    {.name = "gpt-2",
     .aliases = "phi-2 exaone4 gigachat a.x-4.0 mellum jina-es jina-de jina-v2-es jina-v2-de",
     .splits = {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+|" SIGNS "|\\s+(?!\\S)|\\s+"}},
    {.name = "llama-bpe",
     .aliases = "llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
     .ignore_merges = true,
     .add_bos = true,
     .splits = {CONTRACTION "|" WORD "|\\p{N}{1,3}|" SIGNS "[\\r\\n]*|" LINES}},
    {.name = "qwen2",
     .aliases = "deepseek-r1-qwen megrez kormo f2llmv2",
     .nfc = true,
     .splits = {CONTRACTION "|" WORD "|\\p{N}|" SIGNS "[\\r\\n]*|" LINES}},
    {.name = "qwen35",
     .nfc = true,
     .splits = {CONTRACTION
                "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" LINES}},
    {.name = "gpt-4o",
     .aliases = "llama4 kanana2 talkie minimax-m2",
     .splits = {CASED(CONTRACTION "?") "|\\p{N}{1,3}|" SIGNS "[\\r\\n/]*|" LINES}},
    {.name = "tekken",
     .ignore_merges = true,
     .add_bos = true,
     .splits = {CASED("") "|\\p{N}|" SIGNS "[\\r\\n/]*|" LINES}},
    {.name = "deepseek-llm",
     .splits = {"[\\r\\n]", "\\s?[" DEEPSEEK_LETTERS "]+",
                "\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+",
                "\\s+$", "[\\x{4e00}-\\x{9fa5}\\x{0800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+", "\\p{N}"}},
    {.name = "deepseek-v3",
     .splits =
         {"\\p{N}{1,3}", CHINESE_V3,
          "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
          "| ?[\\p{P}\\p{S}]+[\\r\\n]*|" LINES}},
    {.name = "glm4",
     .aliases = "chatglm-bpe dbrx smaug-bpe", /* OLMo 2 and 3; SmolLM3 */
     .splits = {CONTRACTION "|" WORD "|\\p{N}{1,3}|" SIGNS "[\\r\\n]*|" LINES}},
    {.name = "seed-coder", .splits = {CONTRACTION "|" WORD "|\\p{N}|" SIGNS "|" LINES}},
};

const struct tok_gguf_kind *tok_gguf_kind(size_t index)
{
    return index < sizeof kinds / sizeof *kinds ? &kinds[index] : NULL;
}

const struct tok_gguf_kind *tok_gguf_kind_named(const char *name)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].name, name) == 0 ||
            (kinds[i].aliases && suggest_knows(kinds[i].aliases, ' ', name)))
            return &kinds[i];
    return NULL;
}
