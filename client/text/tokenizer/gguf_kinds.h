/* Kinds of byte-level BPE that GGUF files name. The table is in tokenizer/gguf_kinds.c. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct tok_gguf_kind {
    const char *name;      /* tokenizer.ggml.pre */
    const char *aliases;   /* further names that files have for the same cuts; NULL: none */
    const char *splits[6]; /* regular expressions, one after the other; NULL: no more */
    bool nfc;              /* text is normalized before */
    bool ignore_merges;    /* a word that is a token is that token */
    bool add_bos;          /* where tokenizer.ggml.add_bos_token does not say */
};

/* NULL: there is none with that index or name; a kind may have further names. */
const struct tok_gguf_kind *tok_gguf_kind(size_t index);
const struct tok_gguf_kind *tok_gguf_kind_named(const char *name);
