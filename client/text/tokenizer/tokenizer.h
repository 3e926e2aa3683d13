/* Text to token ids and back, from a Hugging Face tokenizer.json or a GGUF file; part of libhelm's public,
 * stable C API.
 *
 * Called by helm-cli, the gateway, tests and programs that link libhelm. helmd never uses it: it sees ids
 * only. The results are those of the Hugging Face `tokenizers` library for BPE models (byte-level, and
 * SentencePiece style with byte fallback). A feature of a tokenizer.json that is not implemented fails at
 * open with HELM_E_UNSUPPORTED and a name, never later and never approximately. GGUF files of the
 * models `gpt2` (byte-level BPE) and `llama` (SentencePiece's BPE) are read; control and user-defined tokens
 * are the added ones.
 *
 * A struct helm_tokenizer is immutable once open: any number of threads may use one at the same time. A
 * struct helm_detokenizer belongs to one thread at a time and must be closed before its tokenizer.
 *
 * Text is UTF-8 and may hold NUL bytes; lengths are in bytes. Invalid UTF-8 given to encode is replaced as
 * Python's errors="replace" does: each longest prefix of a well-formed sequence, and each other stray byte,
 * becomes one U+FFFD.
 *
 * Limits (HELM_E_LIMIT names the one that broke): tokenizer.json 64 MiB, tokenizer_config.json 16 MiB, ids
 * below HELM_TOKENIZER_ID_LIMIT, text to encode HELM_TOKENIZER_TEXT_LIMIT bytes, and a budget of work for
 * every regular expression, so that a hostile file or text ends in an error instead of a hang. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HELM_TOKENIZER_ID_LIMIT   (16u * 1024u * 1024u) /* ids are below this */
#define HELM_TOKENIZER_TEXT_LIMIT (32u * 1024u * 1024u) /* most bytes of text, normalized too */
#define HELM_TOKENIZER_NO_ID      UINT32_MAX            /* "there is no such token" */

struct helm_tokenizer;   /* opaque */
struct helm_detokenizer; /* opaque */

/* Flags of helm_tokenizer_encode. */
enum helm_tokenizer_encode_flag {
    HELM_TOKENIZER_ENCODE_PLAIN = 0,
    /* Added tokens ("<|im_start|>", "<s>") written in the text become their ids, as in Hugging Face's
     * encode(). Without it the text is data: every byte of it goes through the model, so a user cannot forge
     * a control token. */
    HELM_TOKENIZER_ENCODE_PARSE_ADDED = 1,
    /* The post-processor's template is applied (a leading <s>, say), as with add_special_tokens=True. */
    HELM_TOKENIZER_ENCODE_ADD_SPECIAL = 2,
};

/* Flags of helm_tokenizer_decode and helm_detokenizer_open. */
enum helm_tokenizer_decode_flag {
    HELM_TOKENIZER_DECODE_ALL = 0,
    HELM_TOKENIZER_DECODE_SKIP_SPECIAL = 1, /* tokens marked special produce no text */
};

/* ---- opening ---- */

/* Opens the tokenizer of a folder or of a GGUF file. A folder: its tokenizer.json and, where they exist,
 * tokenizer_config.json and chat_template.jinja; without tokenizer.json, its only GGUF file. For a split GGUF
 * file, name the first part. */
HELM_MUST_CHECK int helm_tokenizer_open(const char *path, struct helm_tokenizer **out, struct helm_err *err);

/* The same from memory: tokenizer_json is the text of tokenizer.json; config_json (NULL: none) of
 * tokenizer_config.json. Nothing of either is kept. */
HELM_MUST_CHECK int helm_tokenizer_open_memory(const char *tokenizer_json, size_t tokenizer_length,
                                               const char *config_json, size_t config_length,
                                               struct helm_tokenizer **out, struct helm_err *err);

/* Frees it; NULL is allowed. */
void helm_tokenizer_close(struct helm_tokenizer *tokenizer);

/* ---- text and ids ---- */

/* *ids is malloc'd (free() it; never NULL on success, even for no ids) and holds *count ids. `flags` is a sum
 * of enum helm_tokenizer_encode_flag. */
HELM_MUST_CHECK int helm_tokenizer_encode(const struct helm_tokenizer *tokenizer, const char *text,
                                          size_t length, unsigned flags, uint32_t **ids, size_t *count,
                                          struct helm_err *err);

/* *text is malloc'd, NUL-terminated, valid UTF-8, *length bytes (length may be NULL). Ids that no token has
 * produce no text, as in Hugging Face: models have padded vocabularies. `flags`: enum
 * helm_tokenizer_decode_flag. */
HELM_MUST_CHECK int helm_tokenizer_decode(const struct helm_tokenizer *tokenizer, const uint32_t *ids,
                                          size_t count, unsigned flags, char **text, size_t *length,
                                          struct helm_err *err);

/* ---- vocabulary ---- */

/* The id of the token spelled exactly so (as tokenizer.json spells it: "Ġthe", "▁the", "<0x0A>",
 * "<|im_end|>"), or HELM_TOKENIZER_NO_ID. */
uint32_t helm_tokenizer_token_to_id(const struct helm_tokenizer *tokenizer, const char *token, size_t length);

/* The spelling of an id, NUL-terminated, valid as long as the tokenizer; NULL where no token has the id.
 * length may be NULL. */
const char *helm_tokenizer_id_to_token(const struct helm_tokenizer *tokenizer, uint32_t id, size_t *length);

/* The bytes of text that an id stands for, which need not be whole characters: *bytes is malloc'd,
 * NUL-terminated, *length bytes; none where no token has the id. */
HELM_MUST_CHECK int helm_tokenizer_token_bytes(const struct helm_tokenizer *tokenizer, uint32_t id,
                                               char **bytes, size_t *length, struct helm_err *err);

/* Largest id plus one, added tokens included. (A model may have more rows than this.) */
uint32_t helm_tokenizer_vocab_size(const struct helm_tokenizer *tokenizer);

/* True if the id is an added token marked special: the ones that HELM_TOKENIZER_DECODE_SKIP_SPECIAL leaves
 * out. */
bool helm_tokenizer_is_special(const struct helm_tokenizer *tokenizer, uint32_t id);

/* ---- tokenizer_config.json, or what a GGUF file says ---- */

/* The text of a named token: role is "bos_token", "eos_token", "unk_token",
 * "pad_token", ... NULL where the file has none. Valid as long as the tokenizer. */
const char *helm_tokenizer_role_token(const struct helm_tokenizer *tokenizer, const char *role);

/* The id of that token, or HELM_TOKENIZER_NO_ID. */
uint32_t helm_tokenizer_role_id(const struct helm_tokenizer *tokenizer, const char *role);

/* tokenizer_config.json's add_bos_token / add_eos_token, false where absent. Informative: what encode adds is
 * the post-processor's template, as in Hugging Face's fast tokenizers. */
bool helm_tokenizer_add_bos(const struct helm_tokenizer *tokenizer);
bool helm_tokenizer_add_eos(const struct helm_tokenizer *tokenizer);

/* The chat template called `name` ("default" or NULL: the only or unnamed one; chat_template.jinja wins over
 * tokenizer_config.json's), or NULL where there is none. Valid as long as the tokenizer. */
const char *helm_tokenizer_chat_template(const struct helm_tokenizer *tokenizer, const char *name);

/* ---- incremental detokenizer ---- */

/* Turns ids into text as they arrive. The pieces, put together, are exactly helm_tokenizer_decode of the
 * whole list: a piece never ends inside a character and never holds text that a later id could still change.
 * `flags`: enum helm_tokenizer_decode_flag. */
HELM_MUST_CHECK int helm_detokenizer_open(const struct helm_tokenizer *tokenizer, unsigned flags,
                                          struct helm_detokenizer **out, struct helm_err *err);

/* Takes one id and gives the text that it completed: *text is NUL-terminated, *length bytes (often 0), and
 * valid until the next call on the object. */
HELM_MUST_CHECK int helm_detokenizer_push(struct helm_detokenizer *detokenizer, uint32_t id,
                                          const char **text, size_t *length, struct helm_err *err);

/* Gives what was still held back. The object is then as new and may take another list. */
HELM_MUST_CHECK int helm_detokenizer_finish(struct helm_detokenizer *detokenizer, const char **text,
                                            size_t *length, struct helm_err *err);

/* Frees it; NULL is allowed. */
void helm_detokenizer_close(struct helm_detokenizer *detokenizer);

#ifdef __cplusplus
}
#endif
